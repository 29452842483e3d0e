//! The one list of signs: what a person on call would not call well.
//!
//! `status`, its exit code, the page's banner, `top`, `nodekeeper_well` and the alarms on what the runs found judge from this
//! list and from nothing else. CloudWatch bills each metric and each alarm, so a run does not tell each number that it finds:
//! it tells how many of its signs are wrong. A new sign needs one row in [`SIGNS`], and one in the table test.
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
//! Does not: read anything. Does not say how long CloudWatch waits before an alarm goes off: `infra/check.py` does.

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
pub use facts::{BadRow, Facts, Level, Next, Raised, Stopping};

use model::functions::{CLEAN_STALE_RECORDS, Function, POLL_AND_SCALE, SWEEP_DISPATCH};
use serde_json::{Value, json};
use store::Table;

#[derive(Clone, Copy)]
pub struct Sign {
    /// Its word.
    pub name: &'static str,
    /// What raises it, for people.
    pub raised_by: &'static str,
    /// When it ends, for people.
    pub ends: &'static str,
    /// What it says of what was read. A sign at [`Level::Well`] is a line that says that something works.
    pub raise: Raise,
    /// Who tells it to a person who does not look.
    pub told_by: &'static [Teller],
}

/// What is said of what was read.
pub type Raise = fn(&Facts<'_>) -> Vec<Raised>;

impl std::fmt::Debug for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// What tells of a sign by an alarm of the template.
#[derive(Clone, Copy, Debug)]
pub enum Teller {
    /// The runs of this function: they count the sign in their metric if this says that it is wrong.
    Run(Function, Raise),
    /// The alarm on nodes that are not ready: who deploys says how many of them are usual.
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
    Sign {
        name: "policy",
        raised_by: "no policy is stored, or the stored one cannot be used",
        ends: "with a policy that can be used",
        raise: functions::policy,
        told_by: &[],
    },
    Sign {
        name: "function",
        raised_by: "a function has not succeeded for `watchdog.multiplier` periods, has failed for a period, or does nothing of what it should; look: its last run or one of its actions failed, or its clock is ahead",
        ends: "with its next success",
        raise: functions::scheduled,
        // It needs DynamoDB alone, so it still tells of the functions that need EC2 when EC2 does not answer.
        told_by: &[Teller::Run(SWEEP_DISPATCH, functions::scheduled)],
    },
    Sign {
        name: "heartbeats",
        raised_by: "nodes are in use, and no heartbeat was noted for `watchdog.multiplier` minutes",
        ends: "with the first heartbeat",
        raise: functions::heartbeats,
        told_by: &[Teller::Run(SWEEP_DISPATCH, functions::heartbeats)],
    },
    Sign {
        name: "plan",
        raised_by: "look: what the next run would do is not known, because EC2 cannot be read from here",
        ends: "when EC2 answers",
        raise: functions::plan,
        told_by: &[],
    },
    Sign {
        name: "node",
        raised_by: "an agent takes no work",
        ends: "when the node is shut down, or takes work",
        raise: nodes::refusing,
        told_by: &[],
    },
    Sign {
        name: "gpus",
        raised_by: "a node can use fewer GPUs than its size has",
        ends: "when they can be used again, or the node is gone",
        raise: nodes::sick_gpus,
        told_by: &[],
    },
    Sign {
        name: "silent",
        raised_by: "an unusual share of the nodes in use (`heartbeat.brake_fraction`, at least 2), or one for longer than `shutdown.down_after_s`, is silent; look: any node is silent for longer than its lease",
        ends: "with their heartbeats, or when they are replaced",
        raise: nodes::silent,
        told_by: &[Teller::Run(POLL_AND_SCALE, nodes::silent)],
    },
    Sign {
        name: "boot_failures",
        raised_by: "starts failed in a row, the last one within a day; look: one did",
        ends: "with the first start that succeeds",
        raise: nodes::starts,
        told_by: &[Teller::Run(POLL_AND_SCALE, nodes::starts)],
    },
    Sign {
        name: "booting",
        raised_by: "a node boots or synchronizes for longer than `boot.timeout_s` and `heartbeat.blackout_s`; look: five minutes longer than the first",
        ends: "when it is ready, or given up",
        raise: nodes::booting,
        told_by: &[],
    },
    Sign {
        name: "unready",
        raised_by: "look: nodes are wanted and not ready, and a job or a node has waited for 30 minutes",
        ends: "when they are ready",
        raise: nodes::unready,
        told_by: &[Teller::NotReady],
    },
    Sign {
        name: "shutting_down",
        raised_by: "a node is shut down and its instance has not ended for 30 minutes; look: for 10 minutes",
        ends: "when EC2 lists the instance as terminated",
        raise: nodes::shutting_down,
        told_by: &[],
    },
    Sign {
        name: "instances",
        raised_by: "EC2 lists none of the instances that records name, in two runs, or not all of them for 15 minutes; look: not all of them in two runs",
        ends: "when EC2 lists them, or their records are cleaned",
        raise: nodes::unlisted,
        told_by: &[Teller::Run(POLL_AND_SCALE, nodes::unlisted)],
    },
    Sign {
        name: "strangers",
        raised_by: "an instance runs with the tag of the cluster and without a readable node id",
        ends: "when it is terminated, or loses the tag",
        raise: nodes::strangers,
        told_by: &[Teller::Run(CLEAN_STALE_RECORDS, nodes::strangers)],
    },
    Sign {
        name: "orphans",
        raised_by: "instances that belong to no record are found again and again; look: in one run",
        ends: "when they are terminated",
        raise: nodes::orphans,
        told_by: &[Teller::Run(CLEAN_STALE_RECORDS, nodes::orphans)],
    },
    Sign {
        name: "limit",
        raised_by: "EC2 refuses launches for a quota that jobs wait for, for our permissions, or because a part of the request is wrong; look: it throttles, is short of instances, does not say whether it launched, or nobody waits for the quota",
        ends: "after the time that it says, with the next version of the policy, or with `nodekeeper release launches`",
        raise: held::limits,
        told_by: &[],
    },
    Sign {
        name: "offers",
        raised_by: "no instance type has what a size needs, no quota has room for one machine of a size, EC2 does not know a subnet, or what EC2 offers could never be read; look: it could not be read again, or is twice as old as it should be",
        ends: "when EC2 answers, or with another policy",
        raise: held::offers,
        told_by: &[],
    },
    Sign {
        name: "quota",
        raised_by: "look: nine tenths of a quota of vCPUs are used by the nodes of this cluster",
        ends: "with fewer nodes, or when clean-stale-records reads a higher quota",
        raise: held::quotas,
        told_by: &[],
    },
    Sign {
        name: "brake",
        raised_by: "a brake holds back an unusual number; look: an operator's release is not used yet",
        ends: "after its time, with a release, or when the trouble is over",
        raise: held::brakes,
        told_by: &[Teller::Run(POLL_AND_SCALE, held::brakes)],
    },
    Sign {
        name: "cap",
        raised_by: "look: a cap of the policy keeps nodes from being launched",
        ends: "with a higher cap, or less work",
        raise: held::caps,
        told_by: &[],
    },
    Sign {
        name: "row",
        raised_by: "a row cannot be read, or contradicts the contract; look: newer code has written it",
        ends: "when it is corrected or deleted",
        raise: held::rows,
        // poll-and-scale tells of all rows that it reads, the others of a table that it does not read.
        told_by: &[
            Teller::Run(POLL_AND_SCALE, held::rows),
            Teller::Run(CLEAN_STALE_RECORDS, |facts| held::rows_of(facts, Table::Jobs)),
            Teller::Run(SWEEP_DISPATCH, |facts| held::rows_of(facts, Table::Handles)),
        ],
    },
    Sign {
        name: "failed",
        raised_by: "of the 50 jobs that ended last within an hour, at least 3 and more than half failed; look: any failed",
        ends: "an hour after the last failure; the level as soon as more succeed",
        raise: work::failed,
        told_by: &[Teller::Run(CLEAN_STALE_RECORDS, work::failed)],
    },
    Sign {
        name: "rejected",
        raised_by: "look: a job was rejected within an hour",
        ends: "an hour after it",
        raise: work::rejected,
        told_by: &[],
    },
    Sign {
        name: "stopping",
        raised_by: "an alloc was told to stop, its node is heard, and it still runs after `stop_notice_s`, `kill_timeout_s` and two heartbeats",
        ends: "when it ends",
        raise: work::stopping,
        told_by: &[],
    },
    Sign {
        name: "handle",
        raised_by: "a node was told to destroy a handle ten minutes ago and still has it",
        ends: "when a report of the node no longer lists it",
        raise: work::stuck,
        told_by: &[],
    },
    Sign {
        name: "starting",
        raised_by: "look: an alloc is placed on a node that is heard, and has not started for `sweep.creating_s`",
        ends: "when it starts, or ends",
        raise: work::starting,
        told_by: &[],
    },
    Sign {
        name: "unheld",
        raised_by: "look: a job has waited for 10 minutes, nothing holds it, and a node has been idle for 3 minutes",
        ends: "when it is placed",
        raise: work::unheld,
        told_by: &[],
    },
    Sign {
        name: "demand",
        raised_by: "look: a demand set lacks nodes",
        ends: "when it has them, or nodes that boot for it",
        raise: work::demand,
        told_by: &[],
    },
    Sign {
        name: "waiting",
        raised_by: "look: jobs wait, and why",
        ends: "when they are placed",
        raise: work::waiting,
        told_by: &[],
    },
    Sign {
        name: "idle",
        raised_by: "never: a line says why an idle node stays",
        ends: "when it works, or is shut down",
        raise: work::idle,
        told_by: &[],
    },
    Sign {
        name: "warning",
        raised_by: "look: a function warned within an hour",
        ends: "an hour after the warning",
        raise: held::warnings,
        told_by: &[],
    },
];

/// What all signs say of what was read.
pub fn judge(facts: &Facts<'_>) -> Vec<Raised> {
    let mut raised: Vec<Raised> = Vec::new();
    for sign in SIGNS {
        for one in (sign.raise)(facts) {
            // A warning says nothing new about what is wrong already.
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

/// The signs that a run of this function tells and that are wrong, by what the run has read.
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
