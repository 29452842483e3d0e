//! The next job on the room that an end frees (`docs/rules.md#next`).
//!
//! Guarantees: a job is drawn by a conditional write, so that no two ends draw the same one; it is still as the run read it.
//! Does not: decide anything that a run has not decided, or fail a report: without a list, a run places the jobs.

use crate::{CachedPolicy, Ingest};
use model::control::next_jobs::{Draw, FreedRoom};
use model::control::{NextDraw, NextList};
use model::{Alloc, ControlKey, Ending, Job, JobState, Machine, NodeRecord, Span, Time};
use std::sync::{Arc, PoisonError};
use store::{DbError, unless_raced};

/// For how long a process uses the list that it has read.
const CACHE: Span = Span::from_s(2);

/// How often an end tries to draw a job, before it leaves its room to the next run.
const DRAWS: u32 = 4;

/// A job that may start on freed room.
pub(crate) struct NextOnRoom {
    pub(crate) job: Job,
    pub(crate) needs_run: bool,
}

/// What becomes of freed room.
#[derive(Default)]
pub(crate) struct RoomUse {
    /// `None`: a run decides what starts there.
    pub(crate) next: Option<NextOnRoom>,
    /// Whether a job that waits fits it.
    pub(crate) is_wanted: bool,
}

impl Ingest {
    /// The list of the jobs that start next, as it was at most [`CACHE`] ago. One that cannot be read is empty.
    async fn next_list(&self, now: Time) -> Arc<NextList> {
        let of = |next: &Option<(Time, Arc<NextList>)>| next.clone().filter(|(at, _)| now.since(*at) < CACHE);
        if let Some((_, list)) = of(&self.next.lock().unwrap_or_else(PoisonError::into_inner)) {
            return list;
        }
        let list = Arc::new(self.store.entry(&ControlKey::NextJobs).await.unwrap_or_else(|error: DbError| {
            tracing::warn!(%error, "the list of the jobs that start next could not be read");
            NextList::new(&ControlKey::NextJobs)
        }));
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Arc::clone(&list)));
        list
    }

    /// Draws the next job for the room of this alloc.
    pub(crate) async fn use_of_room(
        &self,
        cached: &CachedPolicy,
        node: &NodeRecord,
        (alloc, ending): (&Alloc, &Ending),
        now: Time,
    ) -> RoomUse {
        let Ok(node) = node.without_alloc(alloc.id(), now) else { return RoomUse::default() };
        let Some(offering) = node.life().map(|life| &life.offering) else { return RoomUse::default() };
        let machine = Machine {
            instance_type: &offering.instance_type,
            market: offering.market,
            kind: &offering.kind,
            default_arch: cached.policy.default_arch(),
        };
        let freed = FreedRoom { alloc, client: ending.client(), node: &node, machine };
        let next = self.draw(cached, &freed, now).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "no job was drawn for the room of an alloc that ended");
            None
        });
        RoomUse { next, is_wanted: self.next_list(now).await.has_job_for(&freed) }
    }

    async fn draw(
        &self,
        cached: &CachedPolicy,
        freed: &FreedRoom<'_>,
        now: Time,
    ) -> Result<Option<NextOnRoom>, DbError> {
        for _ in 0..DRAWS {
            let list = self.next_list(now).await;
            if list.alike.is_empty() || list.policy_version != cached.version {
                return Ok(None);
            }
            let turn: NextDraw = self.store.entry(&ControlKey::NextTurn).await?;
            let (job, after, needs_run) = match list.draw(&turn, freed, now) {
                Draw::Job { job, turn, needs_run } => (job, turn, needs_run),
                Draw::Nothing => return Ok(None),
                Draw::IsOld => {
                    *self.next.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    continue;
                }
            };
            if unless_raced(self.store.write_entry(&turn, &after).await)?.is_none() {
                continue;
            }
            let read = self.store.job(job.job_id).await?;
            let next = read.filter(|read| read.summary.version.number() == job.version);
            if let Some(job) = next.filter(|job| may_start_beside(job, freed.alloc, now)) {
                return Ok(Some(NextOnRoom { job, needs_run }));
            }
        }
        Ok(None)
    }
}

/// Whether the job may start now, in the transaction that ends this alloc. An alloc of the same job may still be stopping: both would
/// write the row of the job.
fn may_start_beside(job: &Job, alloc: &Alloc, now: Time) -> bool {
    let job = &job.summary;
    job.state == JobState::Queued
        && job.job_id != alloc.id().job_id
        && job.own_wait(now).is_none()
        && job.gives_up_at().is_none_or(|at| now < at)
}
