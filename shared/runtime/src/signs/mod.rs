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
//! | `held` | limits, brakes, rows that are not used, warnings |
//! | [`found`] | what a run notes of EC2's list, for readers without rights in EC2 |
//! | [`say`] | how times and numbers are said |
//!
//! Guarantees: a sign is a pure function of what was read; what a reader could not read is said to be unknown, or raises
//! nothing where another sign says so, and never counts as well.
//! Does not: read anything. Does not say how long CloudWatch waits before an alarm goes off: `infra/picture.py` does.

mod facts;
pub mod found;
mod functions;
mod held;
mod nodes;
pub mod say;
#[cfg(test)]
mod tests;
mod work;

pub use crate::observation::{ENDED, RECENT};
pub use facts::{BadRow, Facts, Level, Next, Raised};

use model::functions::{CLEAN_STALE_RECORDS, Function, POLL_AND_SCALE, SWEEP_DISPATCH};
use serde_json::{Value, json};
use store::Table;

/// One sign. What raises it and when it ends, in words for people, is the table in `docs/operate.md`.
#[derive(Clone, Copy)]
pub struct Sign {
    pub name: &'static str,
    /// What the sign finds. A finding at [`Level::Well`] is a line that says that something works.
    pub raise: Raise,
    /// The alarms that tell the sign to a person who does not look.
    pub told_by: &'static [Teller],
}

/// Finds what is to be said about the facts.
pub type Raise = fn(&Facts<'_>) -> Vec<Raised>;

impl std::fmt::Debug for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// An alarm of the template that tells a sign.
#[derive(Clone, Copy, Debug)]
pub enum Teller {
    /// The runs of this function. They count the sign in their metric if this finds that it is wrong.
    Run(Function, Raise),
    /// The alarm on nodes that are not ready. The deployment sets how many of them are usual.
    NotReady,
}

impl Teller {
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
    Sign { name: "policy", raise: functions::policy, told_by: &[] },
    Sign {
        name: "function",
        raise: functions::scheduled,
        // sweep-dispatch needs only DynamoDB. So it can still report the other functions when EC2 does not answer.
        told_by: &[Teller::Run(SWEEP_DISPATCH, functions::scheduled)],
    },
    Sign {
        name: "heartbeats",
        raise: functions::heartbeats,
        told_by: &[Teller::Run(SWEEP_DISPATCH, functions::heartbeats)],
    },
    Sign { name: "plan", raise: functions::plan, told_by: &[] },
    Sign { name: "node", raise: nodes::refusing, told_by: &[] },
    Sign { name: "service", raise: nodes::services, told_by: &[Teller::Run(POLL_AND_SCALE, nodes::services)] },
    Sign { name: "gpus", raise: nodes::sick_gpus, told_by: &[] },
    Sign { name: "silent", raise: nodes::silent, told_by: &[Teller::Run(POLL_AND_SCALE, nodes::silent)] },
    Sign { name: "boot_failures", raise: nodes::starts, told_by: &[Teller::Run(POLL_AND_SCALE, nodes::starts)] },
    Sign { name: "booting", raise: nodes::booting, told_by: &[] },
    Sign { name: "unready", raise: nodes::unready, told_by: &[Teller::NotReady] },
    Sign { name: "shutting_down", raise: nodes::shutting_down, told_by: &[] },
    Sign {
        name: "instances",
        raise: nodes::unlisted,
        told_by: &[
            Teller::Run(POLL_AND_SCALE, nodes::unlisted_in_part),
            Teller::Run(CLEAN_STALE_RECORDS, nodes::unlisted_in_all),
        ],
    },
    Sign { name: "strangers", raise: nodes::strangers, told_by: &[Teller::Run(CLEAN_STALE_RECORDS, nodes::strangers)] },
    Sign { name: "orphans", raise: nodes::orphans, told_by: &[Teller::Run(CLEAN_STALE_RECORDS, nodes::orphans)] },
    Sign { name: "limit", raise: held::limits, told_by: &[] },
    Sign { name: "offers", raise: held::offers, told_by: &[] },
    Sign { name: "quota", raise: held::quotas, told_by: &[] },
    Sign { name: "brake", raise: held::brakes, told_by: &[Teller::Run(POLL_AND_SCALE, held::brakes)] },
    Sign { name: "cap", raise: held::caps, told_by: &[] },
    Sign {
        name: "row",
        raise: held::rows,
        // poll-and-scale reports all rows that it reads. The others each report a table that it does not read.
        told_by: &[
            Teller::Run(POLL_AND_SCALE, held::rows),
            Teller::Run(CLEAN_STALE_RECORDS, |facts| held::rows_of(facts, Table::Jobs)),
            Teller::Run(SWEEP_DISPATCH, |facts| held::rows_of(facts, Table::Handles)),
        ],
    },
    Sign { name: "failed", raise: work::failed, told_by: &[Teller::Run(CLEAN_STALE_RECORDS, work::failed)] },
    Sign { name: "rejected", raise: work::rejected, told_by: &[] },
    Sign { name: "stopping", raise: work::stopping, told_by: &[] },
    Sign { name: "handle", raise: work::stuck, told_by: &[] },
    Sign { name: "starting", raise: work::starting, told_by: &[] },
    Sign { name: "unheld", raise: work::unheld, told_by: &[] },
    Sign { name: "demand", raise: work::demand, told_by: &[] },
    Sign { name: "waiting", raise: work::waiting, told_by: &[] },
    Sign { name: "idle", raise: work::idle, told_by: &[] },
    Sign { name: "warning", raise: held::warnings, told_by: &[] },
];

/// The findings of all signs.
pub fn judge(facts: &Facts<'_>) -> Vec<Raised> {
    let mut raised: Vec<Raised> = Vec::new();
    for sign in SIGNS {
        for one in (sign.raise)(facts) {
            // A warning about something that is wrong already says nothing new.
            let subject = one.what.strip_prefix("function#").unwrap_or(&one.what);
            let is_known = sign.name == "warning"
                && raised.iter().any(|r| (r.what == one.what || r.what == subject) && r.level == Level::Wrong);
            if !is_known {
                raised.push(one);
            }
        }
    }
    raised
}

/// The signs that a run of this function tells and that are wrong, judged by what the run has read.
pub fn wrong(function: Function, facts: &Facts<'_>) -> Vec<&'static str> {
    let is_wrong = |teller: &Teller| match teller {
        Teller::Run(by, raise) => *by == function && raise(facts).iter().any(|one| one.level == Level::Wrong),
        Teller::NotReady => false,
    };
    SIGNS.iter().filter(|sign| sign.told_by.iter().any(is_wrong)).map(|sign| sign.name).collect()
}

/// Each sign with each of its alarms as JSON, for the template's check.
pub fn to_json() -> Value {
    let rows =
        |sign: &'static Sign| sign.told_by.iter().map(|teller| json!({"sign": sign.name, "alarm": teller.alarm()}));
    SIGNS.iter().flat_map(rows).collect()
}
