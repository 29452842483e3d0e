//! Signs: jobs, allocs and demand.
//!
//! Guarantees: failed jobs need an operator only if the cluster may be the cause: several failed within an hour, and
//! more than half.
//! Does not: say anything about allocs on a silent node, which has a sign of its own.

use super::facts::{Facts, Raised, SignLevel, at_most};
use super::say::{one_line, rough, several, when};
use crate::observation::ENDED;
use model::explain::name_of;
use model::{AllocSummary, ClientStatus, Desired, Handle, JobState, NodeRecord, SetNote, Slot, Span, Waiting};
use std::collections::{BTreeMap, BTreeSet};
use store::Ended;

/// How many jobs must have failed before the cluster may be the cause.
const FAILED: usize = 3;
/// The longest wait before a node's next call, as a multiple of its heartbeat interval.
const LONGEST_JITTER: i64 = 2;

fn count(ended: &[Ended], state: JobState) -> usize {
    ended.iter().filter(|ended| ended.job.state == state).count()
}

fn newest(facts: &Facts<'_>, state: JobState) -> String {
    let newest = facts.ended.iter().find(|ended| ended.job.state == state);
    newest.map(|e| format!("{} {}", one_line(&name_of(&e.job)), when(e.at, facts.now))).unwrap_or_default()
}

pub(super) fn failed(facts: &Facts<'_>) -> Vec<Raised> {
    // Rejected jobs never ran, so they do not count.
    let failed = count(facts.ended, JobState::Failed);
    let all = failed + count(facts.ended, JobState::Complete);
    if failed == 0 {
        return Vec::new();
    }
    // Not more were read, whatever their ends were.
    let of = if facts.ended.len() >= ENDED { format!("the last {all} jobs") } else { several(all, "job") };
    let says =
        format!("{failed} of {of} that ended within an hour failed, the newest: {}", newest(facts, JobState::Failed));
    let (level, to_do) = if failed >= FAILED && failed * 2 > all {
        (
            SignLevel::Wrong,
            "`nodekeeper job ID` says why: what do they share, a command, an image, a node, a place to read from?",
        )
    } else {
        (SignLevel::Caution, "`nodekeeper job ID` says why")
    };
    vec![Raised::new("failed", level, says, to_do)]
}

pub(super) fn rejected(facts: &Facts<'_>) -> Vec<Raised> {
    let rejected = count(facts.ended, JobState::Rejected);
    if rejected == 0 {
        return Vec::new();
    }
    let says = format!(
        "{} rejected within an hour, the newest: {}",
        several(rejected, "job"),
        newest(facts, JobState::Rejected)
    );
    vec![Raised::new("rejected", SignLevel::Caution, says, "`nodekeeper job ID` says why")]
}

pub(super) fn stopping(facts: &Facts<'_>) -> Vec<Raised> {
    let heartbeat = &facts.policy.heartbeat;
    // The nodes of a large fleet call less often.
    let in_use = facts.nodes.iter().filter(|n| n.status().is_some()).count();
    let every = heartbeat.ttl_s.max((in_use as f64 / heartbeat.max_per_second) as i64).saturating_mul(LONGEST_JITTER);
    // What a silent node still runs cannot be known, and the node has a sign of its own.
    let heard = heard(facts);
    let line = |alloc: &AllocSummary| {
        let AllocSummary { alloc_id, slot, failure_policy, .. } = alloc;
        let told = facts.now.since(alloc.stopping_since_at?);
        let within =
            failure_policy.stop_time() + Span::from_s(every.saturating_mul(2).saturating_add(heartbeat.grace_s));
        (heard.contains(slot) && told > within).then(|| {
            format!(
                "alloc {alloc_id} on slot {slot} was told to stop {} ago and still runs: see the agent's log on the node; \
                 `nodekeeper drain {slot} --by 0s` gives the machine up",
                rough(told)
            )
        })
    };
    let lines = facts.allocs.iter().filter_map(line).map(|line| (SignLevel::Wrong, line));
    at_most("stopping", lines, "nodekeeper jobs")
}

/// The handles that nodes cannot remove. They fill the disks.
pub(super) fn stuck(facts: &Facts<'_>) -> Vec<Raised> {
    let line = |handle: &Handle| {
        let (slot, told) = (handle.node_id.slot(), rough(handle.stuck_for(facts.now)?));
        Some(format!(
            "slot {slot} was told to destroy {} {told} ago and still has it: `nodekeeper history {slot}` says why",
            handle.handle
        ))
    };
    let lines = facts.stuck.iter().filter_map(line).map(|line| (SignLevel::Wrong, line));
    at_most("handle", lines, "nodekeeper handles")
}

pub(super) fn starting(facts: &Facts<'_>) -> Vec<Raised> {
    let (heard, within) = (heard(facts), Span::from_s(facts.policy.sweep.creating_s));
    let waits = |alloc: &&AllocSummary| {
        alloc.client == ClientStatus::Pending
            // With a phase, the node works on the start, such as on a pull.
            && alloc.phase.is_none()
            && alloc.desired == Desired::Run
            && heard.contains(&alloc.slot)
            && facts.now.since(alloc.placed_at) > within
    };
    let line = |alloc: &AllocSummary| {
        let placed = rough(facts.now.since(alloc.placed_at));
        format!("alloc {} was placed on slot {} {placed} ago and has not started", alloc.alloc_id, alloc.slot)
    };
    let lines = facts.allocs.iter().filter(waits).map(|alloc| (SignLevel::Caution, line(alloc)));
    at_most("starting", lines, "nodekeeper jobs")
}

/// The slots of the nodes whose lease lasts.
fn heard(facts: &Facts<'_>) -> BTreeSet<Slot> {
    let heard = |node: &&NodeRecord| node.contact().is_some_and(|c| c.lease_expires_at >= facts.now);
    facts.nodes.iter().filter(heard).map(|node| node.slot).collect()
}

pub(super) fn demand(facts: &Facts<'_>) -> Vec<Raised> {
    let sets = facts.next.explained().map_or(&[][..], |explained| &explained.sets);
    let level = |set: &SetNote| if set.lacking() > 0 { SignLevel::Caution } else { SignLevel::Well };
    at_most("demand", sets.iter().map(|set| (level(set), set.line())), "nodekeeper plan")
}

pub(super) fn waiting(facts: &Facts<'_>) -> Vec<Raised> {
    let waiting = facts.next.explained().map_or(&[][..], |explained| &explained.waiting);
    at_most("waiting", waiting.iter().map(|waiting: &Waiting| (SignLevel::Caution, waiting.line())), "nodekeeper plan")
}

pub(super) fn idle(facts: &Facts<'_>) -> Vec<Raised> {
    let Some(explained) = facts.next.explained() else { return Vec::new() };
    let mut stays: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node_id, why) in &explained.staying {
        stays.entry(why.to_string()).or_default().push(node_id.slot().to_string());
    }
    let line = |(why, slots): (&String, &Vec<String>)| match slots.as_slice() {
        [slot] => (SignLevel::Well, format!("slot {slot} stays: {why}")),
        _ => (SignLevel::Well, format!("slots {} stay: {why}", slots.join(", "))),
    };
    at_most("idle", stays.iter().map(line), "nodekeeper plan")
}
