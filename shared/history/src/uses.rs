//! Who used a node, and when; and when jobs waited for one.
//!
//! Guarantees: an alloc counts once, also if an index that is behind still shows it as live.
//! Does not: know what that costs (`cost` does).

use model::{AllocId, AllocSummary, EndedAlloc, JobId, NodeId, Time};
use std::collections::BTreeMap;

/// The most events of nodes and uses of nodes that are kept, each.
pub(crate) const MOST: usize = 300_000;

/// An alloc's time on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub alloc_id: AllocId,
    pub node_id: NodeId,
    pub vcpus: u32,
    pub from: Time,
    /// The end, or now if the alloc is live.
    pub to: Time,
}

/// The uses of these allocs, in the order of their ids, each once: an index that is behind may show an ended one as live.
pub(super) fn of(ended: &[EndedAlloc], live: &[AllocSummary], now: Time) -> Vec<Use> {
    let of = |alloc_id, node_id, vcpus, from, to| Use { alloc_id, node_id, vcpus, from, to };
    let of_ended = ended.iter().map(|a| of(a.alloc_id, a.node_id, a.needs.vcpus, a.placed_at, a.finished_at));
    let of_live = live.iter().map(|a| of(a.alloc_id, a.node_id, a.needs.vcpus, a.placed_at, now));
    let mut uses: Vec<Use> = of_ended.chain(of_live).collect();
    uses.sort_by_key(|used| (used.alloc_id, used.to));
    uses.dedup_by_key(|used| used.alloc_id);
    uses
}

/// The times in which at least one of these allocs was on a node.
pub(super) fn union(uses: &[Use]) -> Vec<(Time, Time)> {
    let mut spans: Vec<(Time, Time)> = uses.iter().map(|u| (u.from, u.to)).collect();
    spans.sort_unstable();
    let mut union: Vec<(Time, Time)> = Vec::new();
    for (from, to) in spans {
        match union.last_mut().filter(|last| from <= last.1) {
            Some(last) => last.1 = last.1.max(to),
            None => union.push((from, to)),
        }
    }
    union
}

/// When jobs waited after `from`: from their submission on, whenever no alloc of them was on a node, until the last one came. A
/// job of `left` waited until the given time, at which it ended, or now. `uses` is in the order of the allocs' ids.
pub(super) fn waits(uses: &[Use], left: impl Iterator<Item = (JobId, Time)>, from: Time) -> Vec<(Time, Time)> {
    let mut left: BTreeMap<JobId, Time> = left.collect();
    let of_job = |a: &Use, b: &Use| a.alloc_id.job_id == b.alloc_id.job_id;
    let mut waits = Vec::new();
    let mut add = |job: JobId, uses: &[Use], end: Option<Time>| {
        let mut begin = job.made_at();
        for (placed, over) in union(uses).into_iter().chain(end.map(|end| (end, end))) {
            if placed > begin.max(from) {
                waits.push((begin.max(from), placed));
            }
            begin = over;
        }
    };
    for uses in uses.chunk_by(of_job) {
        if let Some(job) = uses.first().map(|used| used.alloc_id.job_id) {
            add(job, uses, left.remove(&job));
        }
    }
    left.into_iter().for_each(|(job, end)| add(job, &[], Some(end)));
    waits
}
