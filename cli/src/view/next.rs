//! What the next run of poll-and-scale would do with a job or a node, or why it would do nothing.
//!
//! Guarantees: it says the same as the plan at this moment, for running jobs and the head of the queue. For a job far behind the
//! head, it says that a run has not looked at it. Does not: decide anything itself.

use crate::console::Cluster;
use crate::console::show::one_line;
use model::{ActionName, AllocSummary, ClientStatus, Cloud, JobId, NodeId, NodeRecord, Slot, Time};
use poll_and_scale::FleetPlan;
use runtime::observation::{Audience, Lists, Observation, ObserveError};
use std::collections::BTreeMap;
use std::io::{self, Write};
use store::Store;

pub(crate) struct NextRun {
    pub(crate) plan: FleetPlan,
    pub(crate) observed: Observation,
    jobs: BTreeMap<JobId, String>,
    slots: BTreeMap<Slot, String>,
}

/// Why a job waits, when it starts, and with which changes, each alone, it would start now.
#[derive(Default)]
pub(crate) struct JobWait {
    pub(crate) because: Option<String>,
    pub(crate) starts: Option<String>,
    pub(crate) would_start_if: Option<Vec<String>>,
}

impl NextRun {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, ObserveError> {
        Self::of_lists(Lists::read(store, cloud, Audience::Person, now).await?, store, now).await
    }

    /// Plans with these lists.
    pub(crate) async fn of_lists(lists: Lists, store: &Store, now: Time) -> Result<Self, ObserveError> {
        let seen = lists.observed(store).await?;
        Ok(Self::of(seen, now))
    }

    /// Sorts what the plan says by job and by slot.
    pub(crate) fn of(seen: Observation, now: Time) -> Self {
        let plan = poll_and_scale::plan(&seen, now);
        let waits = plan.explained.by_job().into_iter().map(|(id, waiting)| (id, waiting.reason()));
        let mut jobs: BTreeMap<JobId, String> = waits.collect();
        let stays = plan.explained.staying.iter().map(|(node_id, why)| (node_id.slot(), why.to_string()));
        let mut slots: BTreeMap<Slot, String> = stays.collect();
        for planned in &plan.actions {
            let row = planned.row();
            // The reason why a node stays says more than the idle mark that a run writes for itself.
            if matches!(row.action, ActionName::SetIdle) {
                continue;
            }
            let does = format!("next run: {}: {}", row.action.as_str().replace('_', " "), row.reason);
            match (row.job_id.filter(|_| row.alloc_id.is_none()), row.slot.filter(|_| row.job_id.is_none())) {
                // A job for which a node is launched still waits until the node has booted.
                (Some(job), _) if row.action != ActionName::Launch => _ = jobs.insert(job, does),
                (None, Some(slot)) => _ = slots.insert(slot, does),
                _ => {}
            }
        }
        let phases = seen.allocs.iter().filter_map(|alloc| Some((alloc.alloc_id.job_id, alloc.phase.clone()?)));
        for (job, why) in on_refusing(&seen.nodes, &seen.allocs).into_iter().chain(phases) {
            jobs.entry(job).or_insert(why);
        }
        Self { plan, observed: seen, jobs, slots }
    }

    /// Why this job waits, or what the next run would do with it. `None` if the job does not wait.
    pub(crate) fn of_job(&self, job: JobId) -> Option<&str> {
        self.jobs.get(&job).map(String::as_str)
    }

    /// Why this idle node stays, or what the next run would do with it. `None` if the node works or boots.
    pub(crate) fn of_slot(&self, slot: Slot) -> Option<&str> {
        self.slots.get(&slot).map(String::as_str)
    }
}

impl Cluster {
    pub(crate) async fn next(&self, now: Time) -> Result<NextRun, ObserveError> {
        NextRun::read(&self.store, self.cloud.as_ref(), now).await
    }
}

/// The jobs with an alloc that waits on a node which takes no work now. Such a job waits for the node, or until the agent gives
/// the alloc up.
pub(crate) fn on_refusing(nodes: &[NodeRecord], allocs: &[AllocSummary]) -> BTreeMap<JobId, String> {
    let refuses: BTreeMap<NodeId, &str> = nodes.iter().filter_map(|n| Some((n.node_id()?, n.refuses()?))).collect();
    let pending = allocs.iter().filter(|alloc| alloc.client == ClientStatus::Pending);
    let why = |alloc: &AllocSummary| {
        let why = refuses.get(&alloc.node_id)?;
        Some((alloc.alloc_id.job_id, format!("its node in slot {} takes no work: {why}", alloc.slot)))
    };
    pending.filter_map(why).collect()
}

/// The next run, for a list. If it cannot be planned, the list is shown without it, and standard error says why.
pub(crate) fn for_list(next: Result<NextRun, ObserveError>, err: &mut dyn Write) -> io::Result<Option<NextRun>> {
    match next {
        Ok(next) => Ok(Some(next)),
        Err(e) => {
            writeln!(
                err,
                "nodekeeper: the next run cannot be planned, so its decisions are not shown: {}",
                one_line(&e.to_string())
            )?;
            Ok(None)
        }
    }
}
