//! What the next run of poll-and-scale would do with a job or a node, or why it would do nothing.
//!
//! Guarantees: says the same as the plan at this moment. Does not: decide anything itself.

use super::Cluster;
use super::show::one_line;
use model::cloud::Cloud;
use model::ids::{JobId, Slot};
use model::time::Time;
use model::{ActionName, AllocSummary};
use poll_and_scale::Plan;
use runtime::observation::{Observation, ObserveError};
use std::collections::BTreeMap;
use std::io::{self, Write};
use store::Store;

/// The next run of poll-and-scale, as it would be now.
pub struct Next {
    /// What it would do, and what not.
    pub plan: Plan,
    /// The live allocs.
    pub allocs: Vec<AllocSummary>,
    jobs: BTreeMap<JobId, String>,
    slots: BTreeMap<Slot, String>,
}

impl Next {
    /// Reads the cluster and plans. The plan is checked against the tables, as a run would check it.
    pub async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, ObserveError> {
        let seen = Observation::read(store, cloud, now).await?;
        let plan = poll_and_scale::plan(&seen, now);
        let plan = poll_and_scale::act::confirm(store, cloud, &seen, plan, now).await?;
        Ok(Self { allocs: seen.allocs, ..Self::of(plan) })
    }

    /// What this plan does with each job and node.
    pub fn of(plan: Plan) -> Self {
        let waits = plan.explained.by_job().into_iter().map(|(id, waiting)| (id, waiting.reason()));
        let mut jobs: BTreeMap<JobId, String> = waits.collect();
        let stays = plan.explained.staying.iter().map(|(node_id, why)| (node_id.slot(), why.to_string()));
        let mut slots: BTreeMap<Slot, String> = stays.collect();
        for planned in &plan.actions {
            let row = planned.row();
            // The notes that a run makes for itself say less than the reason why a node stays.
            if matches!(row.action, ActionName::SetIdle) {
                continue;
            }
            let does = format!("next run: {}: {}", row.action.as_str().replace('_', " "), row.reason);
            match (row.job_id.filter(|_| row.alloc_id.is_none()), row.slot.filter(|_| row.job_id.is_none())) {
                // A job that a node is launched for still waits until the node has booted.
                (Some(job), _) if row.action != ActionName::Launch => _ = jobs.insert(job, does),
                (None, Some(slot)) => _ = slots.insert(slot, does),
                _ => {}
            }
        }
        Self { plan, allocs: Vec::new(), jobs, slots }
    }

    /// Why this job waits, or what the next run would do with it. `None` if the job does not wait.
    pub fn of_job(&self, job: JobId) -> Option<&str> {
        self.jobs.get(&job).map(String::as_str)
    }

    /// Why this idle node stays, or what the next run would do with it. `None` if the node works or boots.
    pub fn of_slot(&self, slot: Slot) -> Option<&str> {
        self.slots.get(&slot).map(String::as_str)
    }
}

impl Cluster {
    /// The next run of poll-and-scale.
    pub(super) async fn next(&self, now: Time) -> Result<Next, ObserveError> {
        Next::read(&self.store, self.cloud.as_ref(), now).await
    }
}

/// Reads the next run for a list. If EC2 or the policy cannot be read, the list is shown without it, and standard error
/// says why.
pub(super) async fn read_for_list(cluster: &Cluster, now: Time, err: &mut dyn Write) -> io::Result<Option<Next>> {
    match cluster.next(now).await {
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
