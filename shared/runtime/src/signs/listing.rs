//! What a run notes of EC2's list in its row, so that `status` says the same to a person without rights in EC2.
//!
//! Guarantees: the note needs nothing but what the run has read.
//! Does not: count new instances, which EC2 may not list at first, or nodes that are shut down.

use crate::observation::Observation;
use model::control::ListReport;
use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE};
use model::{BrakeKind, Function, Instance, InstanceState, Life, NodeRecord, NodeState, Span, Time};
use std::collections::BTreeSet;

/// How many strangers are named: instances of the cluster without a readable node id.
const NAMED: usize = 20;

/// EC2 lists a new instance within this time, and mostly at once.
const LISTED: Span = Span::from_s(180);

/// What a run of this function found; `None` if it does not read EC2's list. `terminated` is how many orphans it terminates.
pub fn note(function: Function, seen: &Observation, terminated: u64, now: Time) -> Option<ListReport> {
    let before = seen.control.runs.get(function.name).and_then(|run| run.list.clone()).unwrap_or_default();
    if function == POLL_AND_SCALE {
        Some(unlisted(seen, &before, now))
    } else if function == CLEAN_STALE_RECORDS {
        // It reads the whole list, also in a fleet in which poll-and-scale asks only for the instances in question.
        let ListReport { named, unlisted, unlisted_since_at, .. } = unlisted(seen, &before, now);
        Some(ListReport { named, unlisted, unlisted_since_at, ..unclaimed(seen, &before, terminated, now) })
    } else {
        None
    }
}

fn unlisted(seen: &Observation, before: &ListReport, now: Time) -> ListReport {
    let listed: BTreeSet<&str> = seen.instances.iter().map(|i| i.instance_id.as_str()).collect();
    let is_up = |node: &&NodeRecord| matches!(node.state, NodeState::Assigned(_) | NodeState::InUse(_));
    let is_old = |life: &&Life| now.since(life.assigned_at) >= LISTED;
    let up = seen.nodes.iter().filter(is_up);
    let named: Vec<(&NodeRecord, &str)> =
        up.filter_map(|node| Some((node, node.life().filter(is_old)?.instance_id.as_deref()?))).collect();
    let is_unlisted = |(node, id): &&(&NodeRecord, &str)| seen.was_queried(node) && !listed.contains(id);
    let unlisted = named.iter().filter(is_unlisted).count() as u64;
    let unlisted_since_at = (unlisted > 0).then(|| before.unlisted_since_at.unwrap_or(now));
    ListReport { named: named.len() as u64, unlisted, unlisted_since_at, ..ListReport::default() }
}

fn unclaimed(seen: &Observation, before: &ListReport, terminated: u64, now: Time) -> ListReport {
    let is_stranger =
        |i: &&Instance| i.state != InstanceState::Terminated && i.node_id().is_none() && i.batch().is_none();
    let strangers = seen.instances.iter().filter(is_stranger).take(NAMED).map(|i| i.instance_id.clone()).collect();
    // A release frees what was held, so what is held and what is terminated may be the same orphans.
    let brake = seen.control.brake(BrakeKind::Orphans);
    let held = if brake.holds_back(now) { brake.count.unwrap_or(0) } else { 0 };
    let orphans = held.max(terminated);
    let any = orphans > 0;
    ListReport {
        strangers,
        orphans,
        orphans_since_at: any.then(|| before.orphans_since_at.unwrap_or(now)),
        orphans_runs: if any { before.orphans_runs.saturating_add(1) } else { 0 },
        ..ListReport::default()
    }
}
