//! The present: what the records and EC2 say now, and what the next run would do.
//!
//! Guarantees: every list is read once, except a queue that is longer than a run reads: it is listed again, for people. If EC2
//! or the policy cannot be read, the lists of the tables are read without a plan.
//! Does not: leave out rows that contradict the contract. The plan does.

use super::next::{JobWait, NextRun};
use super::{what_if, when};
use model::{AllocId, Cloud, Control, JobId, JobState, JobSummary, NodeRecord, Slot, Time};
use runtime::observation::{Audience, Lists, ObserveError};
use std::collections::BTreeMap;
use store::{DbError, Listed, Store, Unreadable, WaitingJobs};

/// How many waiting jobs are counted: about as many as a run reads. Of a longer queue, a person only needs to know that it is
/// longer.
pub(crate) const COUNTED: usize = 2_000;

pub(crate) struct Snapshot {
    pub(crate) now: Time,
    pub(crate) control: Control,
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) bad_nodes: Vec<Unreadable>,
    /// The jobs that have not ended: the waiting ones in the order of the queue, then the placed ones.
    pub(crate) jobs: Vec<JobSummary>,
    pub(crate) bad_jobs: Vec<Unreadable>,
    pub(crate) more_jobs_wait: bool,
    pub(crate) next: Result<NextRun, ObserveError>,
}

impl Snapshot {
    /// Reads the present. Of a queue that is longer than a run reads, it has `most` waiting jobs.
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, most: usize, now: Time) -> Result<Self, DbError> {
        let (control, nodes, queue, next) = match Lists::read(store, cloud, Audience::Person, now).await {
            Ok(lists) => {
                let (control, nodes, whole) = (lists.control().clone(), lists.nodes.clone(), lists.whole_queue());
                let queue = match whole {
                    Some(queue) => queue,
                    None => store.queue_listed(most).await?,
                };
                (control, nodes, queue, NextRun::of_lists(lists, store, now).await)
            }
            Err(error) => {
                let (control, nodes) = (store.control().await?, store.nodes_listed(1).await?);
                (control, nodes, store.queue_listed(most).await?, Err(error))
            }
        };
        let Listed { rows: nodes, unreadable: bad_nodes } = nodes;
        let WaitingJobs { jobs, unreadable: bad_jobs, end } = queue;
        Ok(Self { now, control, nodes, bad_nodes, jobs, bad_jobs, more_jobs_wait: end.is_some(), next })
    }

    /// Why a job waits, or what the next run does with it.
    pub(crate) fn waits_because(&self, job: &JobSummary) -> Option<String> {
        let next = self.next.as_ref().ok().and_then(|next| next.of_job(job.job_id)).map(str::to_owned);
        next.or_else(|| job.own_wait(self.now).map(|why| why.to_string()))
    }

    /// Why a job waits, when it starts, and what it would take. An error becomes the answer, so that the job is shown even if EC2
    /// cannot be reached.
    pub(crate) fn wait_of(&self, job: &JobSummary) -> JobWait {
        let (id, because) = (job.job_id, self.waits_because(job));
        match &self.next {
            Ok(NextRun { plan, observed, .. }) => JobWait {
                because,
                starts: when::starts(plan, observed, id, self.now).map(|start| start.to_string()),
                would_start_if: Some(what_if::for_job(observed, id, self.now)).filter(|changes| !changes.is_empty()),
            },
            Err(e) => {
                let unknown = || format!("not known, because the cluster cannot be read: {e}");
                let waits = !job.state.is_ended() && job.state != JobState::Placed;
                JobWait { because: because.or_else(|| waits.then(unknown)), ..JobWait::default() }
            }
        }
    }

    /// The slots of the live allocs.
    pub(crate) fn places(&self) -> BTreeMap<AllocId, Slot> {
        let lives = self.nodes.iter().filter_map(|n| Some((n.slot, n.life()?)));
        lives.flat_map(|(slot, life)| life.allocs.iter().map(move |id| (*id, slot))).collect()
    }

    /// The names of the jobs that have not ended.
    pub(crate) fn names(&self) -> BTreeMap<JobId, &str> {
        self.jobs.iter().filter_map(|j| Some((j.job_id, j.name.as_deref()?))).collect()
    }
}
