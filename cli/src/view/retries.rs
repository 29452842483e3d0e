//! The rules by which a job is tried again, and how often each was used.
//!
//! Guarantees: all rules that count are there, in the order in which they are tried.
//! Does not: say which of them an end would use; `plan --job` does.

use crate::console::show::several;
use model::Job;
use serde::Serialize;

/// A rule of a job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RuleRow {
    pub(crate) rule: String,
    /// How often it was used.
    pub(crate) used: u32,
}

impl RuleRow {
    /// `exit:75=again*3: used 1 time`
    pub(crate) fn line(&self) -> String {
        format!("{}: used {}", self.rule, several(self.used, "time"))
    }
}

/// The rules of a job, in order.
pub(crate) fn retry_rules(job: &Job) -> Vec<RuleRow> {
    let uses = job.summary.tries.rule_uses.iter().copied().chain(std::iter::repeat(0));
    job.failure_policy.rules().zip(uses).map(|(rule, used)| RuleRow { rule: rule.to_string(), used }).collect()
}
