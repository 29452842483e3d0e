//! Whose turn it is: what each share of the policy uses and may use, and what that costs.
//!
//! Guarantees: the order is that of the next run. What is under a limit stands beside it.
//! Does not: count the jobs of a queue that is longer than a run reads: it says that there are more.

use model::policy::{Share, WorkAmount, WorkLimits};
use model::{JobState, JobSummary, Usd};
use runtime::observation::Observation;
use serde::Serialize;
use std::collections::BTreeSet;

/// A share at this moment.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ShareRow {
    pub(crate) share: String,
    pub(crate) weight: f64,
    /// Its part of the weights, and of what was used.
    pub(crate) part: f64,
    pub(crate) used: f64,
    pub(crate) waiting: usize,
    pub(crate) more_wait: bool,
    pub(crate) placed: u64,
    pub(crate) vcpus: u64,
    pub(crate) gpus: u64,
    pub(crate) members: u64,
    pub(crate) dollars_per_hour: Usd,
    pub(crate) dollars_this_month: Usd,
    pub(crate) limits: WorkLimits,
}

/// The shares of the policy. Those that have used the least against their weights come first.
pub(crate) fn shares(seen: &Observation) -> Vec<ShareRow> {
    let all = &seen.policy.share;
    let used_of = |share: &Share| seen.shares.used.get(&share.name).copied().unwrap_or_default();
    let (all_used, weights) = (all.iter().map(used_of).sum::<f64>(), all.iter().map(|share| share.weight).sum::<f64>());
    let is_of = |share: &Share, name: &Option<String>, by: &Option<String>| {
        seen.policy.share_name(name.as_deref(), by.as_deref()) == share.name
    };
    let row = |share: &Share| {
        let waits = |job: &&JobSummary| job.state == JobState::Queued && is_of(share, &job.share, &job.by);
        let (mut has, mut jobs) = (WorkAmount::default(), BTreeSet::new());
        for alloc in seen.allocs.iter().filter(|alloc| is_of(share, &alloc.share, &alloc.by)) {
            // A limit counts a job of several members once.
            let running = (alloc.needs.nodes == 1 || jobs.insert(alloc.alloc_id.job_id)).into();
            has += WorkAmount { running, dollars_per_hour: alloc.price_per_hour, ..WorkAmount::of(&alloc.needs, 1) };
        }
        ShareRow {
            share: share.name.clone(),
            weight: share.weight,
            part: share.weight / weights,
            used: if all_used > 0.0 { used_of(share) / all_used } else { 0.0 },
            waiting: seen.jobs.iter().filter(waits).count(),
            more_wait: seen.queue.part.is_some(),
            placed: has.running,
            vcpus: has.vcpus,
            gpus: has.gpus,
            members: has.nodes,
            dollars_per_hour: has.dollars_per_hour,
            dollars_this_month: seen.shares.costs.get(&share.name).copied().unwrap_or_default(),
            limits: share.limits.clone(),
        }
    };
    let mut rows: Vec<ShareRow> = all.iter().map(row).collect();
    rows.sort_by(|a, b| (a.used / a.weight).total_cmp(&(b.used / b.weight)));
    rows
}
