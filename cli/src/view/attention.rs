//! The first screen of the page. It shows what needs somebody: failed jobs by cause, and nodes that are broken, silent or late. It also
//! shows the fleet as a strip: the last hours of each slot, with those nodes first.
//!
//! Guarantees: each count is whole, or says that it is at least that much. Does not: judge the cluster; the signs of `status` do.

use super::live::LiveView;
use super::rows::JobRow;
use history::{History, Strip};
use model::{Control, EndCause, JobId, JobState, NodeRecord, NodeStatus, Slot, Span, Time};
use serde::Serialize;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How many groups of failed jobs, and how many nodes, are named.
pub(crate) const NAMED: usize = 20;
/// A node that has booted for this share of `boot.timeout_s` is late.
const LATE: f64 = 0.5;
/// How many parts the time of the strip has.
const PARTS: usize = 240;

/// Jobs that failed for the same cause.
#[derive(Serialize)]
pub(crate) struct FailedGroup {
    pub(crate) cause: String,
    pub(crate) state: JobState,
    pub(crate) jobs: usize,
    /// The job that ended last.
    pub(crate) job_id: JobId,
    pub(crate) name: Option<String>,
    pub(crate) at: Time,
    /// What its last try printed last.
    pub(crate) last_line: Option<String>,
}

/// How many jobs ended since a moment.
#[derive(Serialize)]
pub(crate) struct EndedSince {
    failed: usize,
    complete: usize,
    /// Whether there may be more.
    at_least: bool,
}

const fn is_failed(state: JobState) -> bool {
    matches!(state, JobState::Failed | JobState::Rejected)
}

/// The failed and rejected jobs by their causes. The group with the newest job comes first.
pub(crate) fn failed(rows: &[JobRow]) -> Vec<FailedGroup> {
    let mut groups: BTreeMap<String, FailedGroup> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_failed(row.summary.state)) {
        let job = &row.summary;
        let cause = job.tries.cause.as_ref().map(EndCause::to_string);
        let cause = cause.or_else(|| row.reason.clone()).unwrap_or_else(|| job.state.to_string());
        let (at, last_line) = (row.finished_at.unwrap_or(job.submitted_at), job.tries.last_line.clone());
        let newest =
            FailedGroup { cause, state: job.state, jobs: 1, job_id: job.job_id, name: job.name.clone(), at, last_line };
        match groups.get_mut(&newest.cause) {
            Some(group) => {
                let jobs = group.jobs + 1;
                if group.at < at {
                    *group = newest;
                }
                group.jobs = jobs;
            }
            None => _ = groups.insert(newest.cause.clone(), newest),
        }
    }
    let mut groups: Vec<FailedGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse(group.at));
    groups
}

/// How many of these jobs ended since then. `has_more` says whether older ended jobs are not in the list.
pub(crate) fn ended_since(rows: &[JobRow], since: Time, has_more: bool) -> EndedSince {
    let of = |is: fn(JobState) -> bool| rows.iter().filter(move |row| is(row.summary.state));
    let count = |is| of(is).filter(|row| row.finished_at.is_some_and(|at| since <= at)).count();
    let is_complete = |state| state == JobState::Complete;
    let all_are_newer = |is| of(is).all(|row| row.finished_at.is_some_and(|at| since <= at));
    let at_least = has_more && (all_are_newer(is_failed) || all_are_newer(is_complete));
    EndedSince { failed: count(is_failed), complete: count(is_complete), at_least }
}

/// The nodes that a person should look at.
pub(crate) fn nodes(live: &LiveView) -> Vec<Value> {
    asking(live).take(NAMED).map(|node| live.node(node)).collect()
}

/// The records of nodes that are silent, cannot use all that they have, or are late.
pub(crate) fn asking(live: &LiveView) -> impl Iterator<Item = &NodeRecord> {
    let present = &live.present;
    let late = late_after(&present.control);
    let asks = move |node: &&NodeRecord| {
        let is_silent = matches!(node.status(), Some(NodeStatus::Disconnected | NodeStatus::Down));
        let boots = node.life().filter(|_| node.contact().is_none() && node.status().is_none());
        let is_late = boots.is_some_and(|life| present.now.since(life.assigned_at) > late);
        !node.is_cleaned() && (is_silent || is_late || node.refuses().is_some() || node.sick_gpus().is_some())
    };
    present.nodes.iter().filter(asks)
}

fn late_after(control: &Control) -> Span {
    let boot_s = control.checked_policy().map_or(i64::MAX / 2_000, |(policy, _)| policy.boot.timeout_s);
    Span::from_ms((boot_s as f64 * 1000.0 * LATE) as i64)
}

#[derive(Serialize)]
pub(crate) struct Fleet {
    #[serde(flatten)]
    strip: Strip,
    /// The slots, in the order of the strip.
    order: Vec<Slot>,
    /// The slots whose nodes need somebody.
    asks: BTreeSet<Slot>,
}

impl Fleet {
    pub(crate) fn of(past: &History, live: &LiveView, span: Span) -> Self {
        let strip = Strip::of(past, span, PARTS);
        let asks: BTreeSet<Slot> = asking(live).map(|record| record.slot).collect();
        let mut order: Vec<Slot> = strip.slots.keys().copied().collect();
        order.sort_by_key(|slot| (!asks.contains(slot), *slot));
        Self { strip, order, asks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{self, at};

    fn row(n: u32, state: JobState, ended_s: i64, cause: Option<EndCause>) -> JobRow {
        let mut job = fixtures::job(n).summary;
        job.state = state;
        (job.tries.cause, job.tries.last_line) = (cause, Some(format!("line {n}")));
        JobRow { finished_at: Some(at(ended_s)), ..JobRow::of_summary(&job) }
    }

    #[test]
    fn failed_jobs_are_grouped_by_cause_with_the_newest_first() {
        let exited = |code| Some(EndCause::Exited { code });
        let rows = [
            row(1, JobState::Failed, 10, exited(1)),
            row(2, JobState::Failed, 30, exited(1)),
            row(3, JobState::Failed, 20, exited(3)),
            row(4, JobState::Complete, 40, exited(0)),
            row(5, JobState::Rejected, 5, None),
        ];
        let groups = failed(&rows);
        let brief: Vec<_> = groups.iter().map(|g| (g.jobs, g.job_id, g.last_line.as_deref())).collect();
        let id = fixtures::job_id;
        assert_eq!(brief, [(2, id(2), Some("line 2")), (1, id(3), Some("line 3")), (1, id(5), Some("line 5"))]);
        let since = |s, more| {
            let EndedSince { failed, complete, at_least } = ended_since(&rows, at(s), more);
            (failed, complete, at_least)
        };
        assert_eq!(since(20, false), (2, 1, false));
        assert_eq!(since(0, false), (4, 1, false));
        assert_eq!(since(0, true), (4, 1, true), "older ones may have ended since then too");
        assert_eq!(since(41, true), (0, 0, false));
    }
}
