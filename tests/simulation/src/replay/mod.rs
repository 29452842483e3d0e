//! Compares policies on the same jobs, boot times, shortages and spot prices.
//!
//! ```text
//! arrivals   the file of jobs
//! made       made-up arrivals
//! pools      the made-up instance types, prices, shortages and interruptions
//! measured   the results
//! table      the results as a table and as JSON
//! ```
//!
//! Guarantees: jobs, prices and capacity do not depend on the policy; the same seed and arrivals give the same numbers.
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
    /// How many nodes the first arrivals need at the same time, counting only jobs that share a node with no other job.
    pub fn nodes_at_once(&self) -> usize {
        let first = self.arrivals.first().map(|a| a.at_s);
        let at_once = self.arrivals.iter().filter(|a| Some(a.at_s) == first && a.spec.needs.exclusive);
        at_once.map(|a| a.count * a.spec.needs.nodes as usize).sum()
    }
}
