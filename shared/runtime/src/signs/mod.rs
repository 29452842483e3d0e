//! The one list of signs: what a person on call would not call well.
//!
//! `status`, its exit code, the page's banner, `top`, `nodekeeper_well` and the alarms on what the runs found judge from this
//! list and from nothing else. A new sign needs one row in [`SIGNS`], and one in the table test.
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
use std::collections::BTreeMap;
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
    pub raise: fn(&Facts<'_>) -> Vec<Raised>,
    /// The alarms that look at the same.
    pub alarms: &'static [Alarm],
}

impl std::fmt::Debug for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// An alarm of the template on a metric of a function's runs.
#[derive(Clone, Copy)]
pub struct Alarm {
    /// Its name in the template.
    pub id: &'static str,
    /// The end of its name in CloudWatch.
    pub name: &'static str,
    pub metric: &'static str,
    /// Who emits the metric.
    pub by: Function,
    /// The least value that raises it.
    pub at_least: u64,
    /// The value, from what the function's run has read.
    pub count: fn(&Facts<'_>) -> u64,
    /// Whether a run that found nothing else says it.
    pub alone: Alone,
}

/// Whether a number makes a run worth its metrics. CloudWatch bills a metric for each hour in which it has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alone {
    /// It ends, so a run tells it even if nothing else is there.
    Told,
    /// It may stay as it is for ever in a cluster without work.
    NotTold,
}

impl std::fmt::Debug for Alarm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

const fn alarm(
    (id, name): (&'static str, &'static str),
    metric: &'static str,
    by: Function,
    count: fn(&Facts<'_>) -> u64,
) -> Alarm {
    Alarm { id, name, metric, by, at_least: 1, count, alone: Alone::Told }
}

/// Every sign, in the order in which `status` shows them.
pub const SIGNS: &[Sign] = &[
    Sign {
        name: "policy",
        raised_by: "no policy is stored, or the stored one cannot be used",
        ends: "with a policy that can be used",
        raise: functions::policy,
        alarms: &[],
    },
    Sign {
        name: "function",
        raised_by: "a function has not succeeded for `watchdog.multiplier` periods, has failed for a period, or does nothing of what it should; look: its last run or one of its actions failed, or its clock is ahead",
        ends: "with its next success",
        raise: functions::scheduled,
        alarms: &[alarm(
            ("FunctionsOverdue", "functions-overdue"),
            "FunctionsOverdue",
            SWEEP_DISPATCH,
            functions::overdue_count,
        )],
    },
    Sign {
        name: "heartbeats",
        raised_by: "nodes are in use, and no heartbeat was noted for `watchdog.multiplier` minutes",
        ends: "with the first heartbeat",
        raise: functions::heartbeats,
        alarms: &[],
    },
    Sign {
        name: "plan",
        raised_by: "look: what the next run would do is not known, because EC2 cannot be read from here",
        ends: "when EC2 answers",
        raise: functions::plan,
        alarms: &[],
    },
    Sign {
        name: "node",
        raised_by: "an agent takes no work",
        ends: "when the node is shut down, or takes work",
        raise: nodes::refusing,
        alarms: &[],
    },
    Sign {
        name: "gpus",
        raised_by: "a node can use fewer GPUs than its size has",
        ends: "when they can be used again, or the node is gone",
        raise: nodes::sick_gpus,
        alarms: &[],
    },
    Sign {
        name: "silent",
        raised_by: "an unusual share of the nodes in use (`heartbeat.brake_fraction`, at least 2), or one for longer than `shutdown.down_after_s`, is silent; look: any node is silent for longer than its lease",
        ends: "with their heartbeats, or when they are replaced",
        raise: nodes::silent,
        alarms: &[alarm(("NodesSilent", "nodes-silent"), "NodesSilent", POLL_AND_SCALE, nodes::silent_count)],
    },
    Sign {
        name: "boot_failures",
        raised_by: "starts failed in a row, the last one within a day; look: one did",
        ends: "with the first start that succeeds",
        raise: nodes::starts,
        alarms: &[Alarm {
            at_least: 2,
            alone: Alone::NotTold,
            ..alarm(("StartsFail", "starts-fail"), "FailedStarts", POLL_AND_SCALE, nodes::failed_starts)
        }],
    },
    Sign {
        name: "booting",
        raised_by: "a node boots or synchronizes for longer than `boot.timeout_s` and `heartbeat.blackout_s`; look: five minutes longer than the first",
        ends: "when it is ready, or given up",
        raise: nodes::booting,
        alarms: &[],
    },
    Sign {
        name: "unready",
        raised_by: "look: nodes are wanted and not ready, and a job or a node has waited for 30 minutes",
        ends: "when they are ready",
        raise: nodes::unready,
        alarms: &[alarm(("NodesNotReady", "nodes-not-ready"), "NodesNotReady", POLL_AND_SCALE, nodes::unready_count)],
    },
    Sign {
        name: "shutting_down",
        raised_by: "a node is shut down and its instance has not ended for 30 minutes; look: for 10 minutes",
        ends: "when EC2 lists the instance as terminated",
        raise: nodes::shutting_down,
        alarms: &[],
    },
    Sign {
        name: "instances",
        raised_by: "EC2 lists none of the instances that records name, in two runs, or not all of them for 15 minutes; look: not all of them in two runs",
        ends: "when EC2 lists them, or their records are cleaned",
        raise: nodes::unlisted,
        alarms: &[
            alarm(("InstancesAbsent", "instances-absent"), "InstancesAbsent", POLL_AND_SCALE, nodes::unlisted_count),
            alarm(
                ("InstanceListEmpty", "instance-list-empty"),
                "InstanceListEmpty",
                POLL_AND_SCALE,
                nodes::all_unlisted_count,
            ),
        ],
    },
    Sign {
        name: "strangers",
        raised_by: "an instance runs with the tag of the cluster and without a readable node id",
        ends: "when it is terminated, or loses the tag",
        raise: nodes::strangers,
        alarms: &[alarm(("Strangers", "strangers"), "Strangers", CLEAN_STALE_RECORDS, nodes::strangers_count)],
    },
    Sign {
        name: "orphans",
        raised_by: "instances that belong to no record are found again and again; look: in one run",
        ends: "when they are terminated",
        raise: nodes::orphans,
        alarms: &[alarm(("Orphans", "orphans"), "Orphans", CLEAN_STALE_RECORDS, nodes::orphans_count)],
    },
    Sign {
        name: "limit",
        raised_by: "EC2 refuses launches for a quota that jobs wait for, for our permissions, or because a part of the request is wrong; look: it throttles, is short of instances, or nobody waits for the quota",
        ends: "after the time that it says, with the next version of the policy, or with `nodekeeper release launches`",
        raise: held::limits,
        alarms: &[],
    },
    Sign {
        name: "offers",
        raised_by: "no instance type has what a size needs, EC2 does not know a subnet, or what EC2 offers could never be read; look: it could not be read again, or is twice as old as it should be",
        ends: "when EC2 answers, or with another policy",
        raise: held::offers,
        alarms: &[],
    },
    Sign {
        name: "brake",
        raised_by: "a brake holds back an unusual number; look: an operator's release is not used yet",
        ends: "after its time, with a release, or when the trouble is over",
        raise: held::brakes,
        alarms: &[alarm(("BrakesHeld", "brakes-held"), "HeldByBrakes", POLL_AND_SCALE, held::held_count)],
    },
    Sign {
        name: "cap",
        raised_by: "look: a cap of the policy keeps nodes from being launched",
        ends: "with a higher cap, or less work",
        raise: held::caps,
        alarms: &[],
    },
    Sign {
        name: "row",
        raised_by: "a row cannot be read, or contradicts the contract; look: newer code has written it",
        ends: "when it is corrected or deleted",
        raise: held::rows,
        alarms: &[
            alarm(("RowsQuarantined", "rows-quarantined"), "RowsQuarantined", POLL_AND_SCALE, |f| {
                held::rows_count(f, None)
            }),
            alarm(("JobRowsQuarantined", "job-rows-quarantined"), "RowsQuarantined", CLEAN_STALE_RECORDS, |f| {
                held::rows_count(f, Some(Table::Jobs))
            }),
            alarm(("HandleRowsQuarantined", "handle-rows-quarantined"), "RowsQuarantined", SWEEP_DISPATCH, |f| {
                held::rows_count(f, Some(Table::Handles))
            }),
        ],
    },
    Sign {
        name: "failed",
        raised_by: "of the 50 jobs that ended last within an hour, at least 3 and more than half failed; look: any failed",
        ends: "an hour after the last failure; the level as soon as more succeed",
        raise: work::failed,
        alarms: &[alarm(("JobsFail", "jobs-fail"), "JobsFailing", CLEAN_STALE_RECORDS, work::failing_count)],
    },
    Sign {
        name: "rejected",
        raised_by: "look: a job was rejected within an hour",
        ends: "an hour after it",
        raise: work::rejected,
        alarms: &[],
    },
    Sign {
        name: "stopping",
        raised_by: "an alloc was told to stop, its node is heard, and it still runs after `stop_notice_s`, `kill_timeout_s` and two heartbeats",
        ends: "when it ends",
        raise: work::stopping,
        alarms: &[],
    },
    Sign {
        name: "handle",
        raised_by: "a node was told to destroy a handle ten minutes ago and still has it",
        ends: "when a report of the node no longer lists it",
        raise: work::stuck,
        alarms: &[],
    },
    Sign {
        name: "starting",
        raised_by: "look: an alloc is placed on a node that is heard, and has not started for `sweep.creating_s`",
        ends: "when it starts, or ends",
        raise: work::starting,
        alarms: &[],
    },
    Sign {
        name: "unheld",
        raised_by: "look: a job has waited for 10 minutes, nothing holds it, and a node has been idle for 3 minutes",
        ends: "when it is placed",
        raise: work::unheld,
        alarms: &[],
    },
    Sign {
        name: "demand",
        raised_by: "look: a demand set lacks nodes",
        ends: "when it has them, or nodes that boot for it",
        raise: work::demand,
        alarms: &[],
    },
    Sign {
        name: "waiting",
        raised_by: "look: jobs wait, and why",
        ends: "when they are placed",
        raise: work::waiting,
        alarms: &[],
    },
    Sign {
        name: "idle",
        raised_by: "never: a line says why an idle node stays",
        ends: "when it works, or is shut down",
        raise: work::idle,
        alarms: &[],
    },
    Sign {
        name: "warning",
        raised_by: "look: a function warned within an hour",
        ends: "an hour after the warning",
        raise: held::warnings,
        alarms: &[],
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

/// Every alarm on a metric of a function's runs.
pub fn alarms() -> impl Iterator<Item = &'static Alarm> {
    SIGNS.iter().flat_map(|sign| sign.alarms)
}

/// What a run of this function found, by metric.
pub fn measured(function: &Function, facts: &Facts<'_>) -> BTreeMap<&'static str, u64> {
    alarms().filter(|alarm| alarm.by == *function).map(|alarm| (alarm.metric, (alarm.count)(facts))).collect()
}

/// Whether these numbers must be told although the run saw and did nothing else.
pub fn must_be_told(measured: &BTreeMap<&'static str, u64>) -> bool {
    let told = |metric: &str| alarms().any(|alarm| alarm.metric == metric && alarm.alone == Alone::Told);
    measured.iter().any(|(metric, value)| *value > 0 && told(metric))
}

/// The alarms as JSON, for the template's check.
pub fn to_json() -> Value {
    let row = |a: &Alarm| json!({"id": a.id, "alarm": a.name, "metric": a.metric, "function": a.by.name, "at_least": a.at_least});
    alarms().map(row).collect()
}
