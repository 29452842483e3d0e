//! The list of the jobs that start next on freed room (`docs/rules.md#next`).
//!
//! Guarantees: a job is in the list only if this plan would place it on room that nobody keeps, or if its array allows it in place of
//! another; a node is open only if this plan would place work there.
//! Does not: list jobs of several members, copies, jobs that keep away from a node, or jobs behind the head of the queue.

use super::super::view::View;
use super::bin::At;
use super::packing::Packing;
use super::want::{Waits, Want};
use model::control::NextJobs;
use model::{Array, JobSummary, NodeStatus, Reason, Slot};
use std::collections::BTreeSet;

/// Lists what this plan leaves waiting. While a brake holds, or a demand set lacks nodes, the list is empty.
pub(super) fn list(view: &View<'_>, packing: &Packing<'_, '_>, waiting: &[(Want<'_>, Waits)]) -> NextJobs {
    let (observed, mut next) = (view.observed, NextJobs::default());
    if packing.findings.sets.iter().any(|set| set.lacks().is_some()) || observed.control.is_braked(view.now) {
        return next;
    }
    let is_behind = |job: &JobSummary| observed.queue.part.as_ref().is_some_and(|part| part.jobs.contains(&job.job_id));
    let jobs = waiting.iter().filter_map(|(want, waits)| {
        let Want::Job(job) = want else { return None };
        let may_start = job.needs.nodes == 1 && job.tries.avoids.is_empty() && !job.is_ineligible() && !is_behind(job);
        let is_limited = matches!(waits, Waits::Because(why) if matches!(**why, [Reason::ArrayLimit { .. }]));
        may_start.then(|| (*job, is_limited.then(|| Array::of(job.job_id))))
    });
    next.fill(&observed.policy, jobs, observed.allocs.len());
    if next.alike.is_empty() {
        return next;
    }
    let bins = || packing.bins.iter();
    let open: BTreeSet<Slot> =
        bins().filter(|b| matches!(b.at, At::Ready(_))).filter_map(|b| b.node()).map(|n| n.slot()).collect();
    let ready = observed.nodes.iter().filter(|record| record.status() == Some(NodeStatus::Ready));
    next.closed = ready.map(|record| record.slot).filter(|slot| !open.contains(slot)).collect();
    let kept = bins().filter(|bin| bin.blocked).filter_map(|bin| bin.node()).map(|node| node.slot());
    next.keep(&observed.policy, kept, packing.findings.first.filter(|job| job.needs.nodes == 1));
    next.follows = observed.jobs.iter().any(JobSummary::follows);
    next
}
