//! The one list of signs: what a person on call would not call well.
//!
//! `status`, its exit code, the page's banner and the alarms on what the runs found judge
//! from this list and from nothing else. CloudWatch bills each metric and each alarm, so a run tells one number: how
//! many of its signs are wrong. A new sign needs one row in [`SIGNS`], and one in the table test.
//!
//! | where | what |
//! | --- | --- |
//! | `functions` | whether the functions work, and what they noted |
//! | `nodes` | nodes and instances |
//! | `work` | jobs, allocs and demand |
//! | `restraints` | limits, brakes, rows that are not used, warnings |
//! | [`listing`] | what a run notes of EC2's list, for readers without rights in EC2 |
//! | [`say`] | times and numbers as texts |
//!
//! Guarantees: a sign is a pure function of what was read; what a reader could not read is shown as unknown, or raises
//! nothing where another sign says so, and never counts as well.
//! Does not: read anything. Does not say how long CloudWatch waits before an alarm goes off: `infra/picture.py` does.

mod facts;
mod functions;
pub mod listing;
mod nodes;
mod restraints;
pub mod say;
#[cfg(test)]
mod tests;
mod work;

pub use crate::observation::{ENDED, RECENT};
pub use facts::{Facts, ForeseenPlan, Raised, SignLevel};

use model::Function;
use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE, SWEEP_DISPATCH};
use serde_json::{Value, json};
use store::Table;

/// One sign. What raises it and when it ends, in words for people, is the table in `docs/operate.md`.
#[derive(Clone, Copy, Debug)]
pub struct Sign {
    pub name: &'static str,
    /// What the sign finds. A finding at [`SignLevel::Well`] is a line that says that something works.
    pub raise: Raise,
    /// The alarms that go off for this sign, for a person who does not watch `status`.
    pub alarms: &'static [SignAlarm],
}

/// Judges the facts, and gives the lines that a person reads.
pub type Raise = fn(&Facts<'_>) -> Vec<Raised>;

/// An alarm of the template that goes off for a sign.
#[derive(Clone, Copy, Debug)]
pub enum SignAlarm {
    /// The runs of this function. They count the sign in their metric if this finds that it is wrong.
    Run(Function, Raise),
    /// The alarm on nodes that are not ready. The deployment sets how many of them are usual.
    NotReady,
}

impl SignAlarm {
    /// The end of the alarm's name in CloudWatch.
    fn alarm(&self) -> String {
        match self {
            Self::Run(function, _) => format!("{}-signs", function.name),
            Self::NotReady => "nodes-not-ready".to_owned(),
        }
    }
}

/// Every sign, in the order in which `status` shows them.
pub const SIGNS: &[Sign] = &[
    Sign { name: "policy", raise: functions::policy, alarms: &[] },
    Sign {
        name: "function",
        raise: functions::scheduled,
        // sweep-dispatch needs only DynamoDB. So it can still report the other functions when EC2 does not answer.
        alarms: &[
            SignAlarm::Run(SWEEP_DISPATCH, functions::scheduled),
            SignAlarm::Run(CLEAN_STALE_RECORDS, functions::teller),
        ],
    },
    Sign {
        name: "heartbeats",
        raise: functions::heartbeats,
        alarms: &[SignAlarm::Run(SWEEP_DISPATCH, functions::heartbeats)],
    },
    Sign { name: "plan", raise: functions::plan, alarms: &[] },
    Sign { name: "node", raise: nodes::refusing, alarms: &[] },
    Sign { name: "service", raise: nodes::services, alarms: &[SignAlarm::Run(POLL_AND_SCALE, nodes::services)] },
    Sign { name: "gpus", raise: nodes::sick_gpus, alarms: &[] },
    Sign { name: "unended", raise: nodes::unended, alarms: &[] },
    Sign { name: "silent", raise: nodes::silent, alarms: &[SignAlarm::Run(POLL_AND_SCALE, nodes::silent)] },
    Sign { name: "boot_failures", raise: nodes::starts, alarms: &[SignAlarm::Run(POLL_AND_SCALE, nodes::starts)] },
    Sign { name: "booting", raise: nodes::booting, alarms: &[] },
    Sign { name: "unready", raise: nodes::unready, alarms: &[SignAlarm::NotReady] },
    Sign { name: "shutting_down", raise: nodes::shutting_down, alarms: &[] },
    Sign {
        name: "instances",
        raise: nodes::unlisted,
        alarms: &[
            SignAlarm::Run(POLL_AND_SCALE, nodes::unlisted_in_part),
            SignAlarm::Run(CLEAN_STALE_RECORDS, nodes::unlisted_in_all),
        ],
    },
    Sign {
        name: "strangers",
        raise: nodes::strangers,
        alarms: &[SignAlarm::Run(CLEAN_STALE_RECORDS, nodes::strangers)],
    },
    Sign { name: "orphans", raise: nodes::orphans, alarms: &[SignAlarm::Run(CLEAN_STALE_RECORDS, nodes::orphans)] },
    Sign { name: "limit", raise: restraints::limits, alarms: &[] },
    Sign { name: "offers", raise: restraints::offers, alarms: &[] },
    Sign { name: "quota", raise: restraints::quotas, alarms: &[] },
    Sign { name: "brake", raise: restraints::brakes, alarms: &[SignAlarm::Run(POLL_AND_SCALE, restraints::brakes)] },
    Sign { name: "budget", raise: restraints::budget, alarms: &[SignAlarm::Run(POLL_AND_SCALE, restraints::budget)] },
    Sign { name: "cap", raise: restraints::caps, alarms: &[] },
    Sign {
        name: "row",
        raise: restraints::rows,
        // poll-and-scale reports all rows that it reads. The others each report a table that it does not read.
        alarms: &[
            SignAlarm::Run(POLL_AND_SCALE, restraints::rows),
            SignAlarm::Run(CLEAN_STALE_RECORDS, |facts| restraints::rows_of(facts, Table::Jobs)),
            SignAlarm::Run(SWEEP_DISPATCH, |facts| restraints::rows_of(facts, Table::Handles)),
        ],
    },
    Sign { name: "failed", raise: work::failed, alarms: &[SignAlarm::Run(CLEAN_STALE_RECORDS, work::failed)] },
    Sign { name: "rejected", raise: work::rejected, alarms: &[] },
    Sign { name: "stopping", raise: work::stopping, alarms: &[] },
    Sign { name: "handle", raise: work::stuck, alarms: &[] },
    Sign { name: "starting", raise: work::starting, alarms: &[] },
    Sign { name: "demand", raise: work::demand, alarms: &[] },
    Sign { name: "waiting", raise: work::waiting, alarms: &[] },
    Sign { name: "idle", raise: work::idle, alarms: &[] },
    Sign { name: "warning", raise: restraints::warnings, alarms: &[] },
];

/// The findings of all signs.
pub fn judge(facts: &Facts<'_>) -> Vec<Raised> {
    SIGNS.iter().flat_map(|sign| (sign.raise)(facts)).collect()
}

/// The signs that a run of this function tells and that are wrong, judged by what the run has read.
pub fn wrong(function: Function, facts: &Facts<'_>) -> Vec<&'static str> {
    let is_wrong = |teller: &SignAlarm| match teller {
        SignAlarm::Run(by, raise) => *by == function && raise(facts).iter().any(|one| one.level == SignLevel::Wrong),
        SignAlarm::NotReady => false,
    };
    SIGNS.iter().filter(|sign| sign.alarms.iter().any(is_wrong)).map(|sign| sign.name).collect()
}

/// Each sign with each of its alarms as JSON, for the template's check.
pub fn to_json() -> Value {
    let rows =
        |sign: &'static Sign| sign.alarms.iter().map(|teller| json!({"sign": sign.name, "alarm": teller.alarm()}));
    SIGNS.iter().flat_map(rows).collect()
}
