//! The measured results of a policy.
//!
//! Guarantees: a node counts from the binding of its instance until its record is cleaned, with the price of its record.
//! Does not: watch anything; `check::ledger` does.

use model::Span;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    pub submitted: usize,
    pub done: usize,
    /// Jobs that failed, or that can never run.
    pub not_done: usize,
    /// How often a job was placed again after its node was lost.
    pub again: usize,
    /// The time from the submission of each job to its first placement, in ascending order.
    pub waited: Vec<Span>,
    /// The same of the jobs of each person.
    pub waited_of: BTreeMap<String, Vec<Span>>,
    /// How much later than foretold the jobs began whose start was foretold, in ascending order; zero within the foretold times, and less
    /// if earlier.
    pub later: Vec<Span>,
    pub node_hours: f64,
    pub usd: f64,
    pub calls: usize,
    pub refused: usize,
    /// How many instances the calls asked for, and how many EC2 launched.
    pub asked: usize,
    pub launched: usize,
    pub interruptions: usize,
    pub most_nodes: usize,
    /// The time from the first submission to the launch of each instance.
    pub launched_after: Vec<Span>,
    /// The time from the first submission until one node was ready for the first time, two nodes, and so on.
    pub ready_after: Vec<Span>,
}

impl Measured {
    /// The wait that this share of the jobs did not exceed.
    pub fn waited(&self, share: f64) -> Option<Span> {
        nth(&self.waited, share)
    }

    /// The lateness that this share of the jobs did not exceed whose start was foretold.
    pub fn later(&self, share: f64) -> Option<Span> {
        nth(&self.later, share)
    }

    /// The share of foretold starts that were right.
    pub fn foretold(&self) -> f64 {
        let right = self.later.iter().filter(|later| **later == Span::ZERO).count();
        right as f64 / self.later.len().max(1) as f64
    }

    /// The share of calls that EC2 refused.
    pub fn wasted(&self) -> f64 {
        self.refused as f64 / self.calls.max(1) as f64
    }
}

/// The one that this share of the spans does not exceed. They are in ascending order.
fn nth(spans: &[Span], share: f64) -> Option<Span> {
    let n = (spans.len() as f64 * share).ceil() as usize;
    spans.get(n.saturating_sub(1)).copied()
}
