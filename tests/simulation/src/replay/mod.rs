//! Policies compared: the same jobs, boot times, shortages and spot prices for each, and what came of it.
//!
//! ```text
//! arrivals   the file of jobs
//! made       arrivals that are made up
//! pools      the instance types, prices, shortages and interruptions, which are made up
//! measured   what came of it
//! table      as a table, and as JSON
//! ```
//!
//! Guarantees: nothing of the surroundings depends on the policy; the same seed and arrivals give the same numbers again.
//! Does not: know what EC2 really has and costs.

pub mod arrivals;
pub mod made;
pub mod measured;
pub mod pools;
pub mod table;

use arrivals::Arrival;

/// The jobs that arrive in a world whose policy is compared with others.
#[derive(Clone, Debug)]
pub struct Replay {
    /// In the order of their times.
    pub arrivals: Vec<Arrival>,
}

impl Replay {
    /// How many nodes the first arrivals ask for at once: those of the jobs that share a node with nobody.
    pub fn nodes_at_once(&self) -> usize {
        let first = self.arrivals.first().map(|a| a.at_s);
        let at_once = self.arrivals.iter().filter(|a| Some(a.at_s) == first && a.spec.needs.exclusive);
        at_once.map(|a| a.count * a.spec.needs.nodes as usize).sum()
    }
}
