//! What a run leaves behind about what it does not do: events about jobs that wait and caps that bind, and the notes for later runs.
//!
//! Guarantees: the events and the row of what was announced are one transaction, so that an event is neither lost nor
//! repeated if the run is killed.
//! Does not: decide what is new; `model::announced` does.

use super::acting::Acting;
use crate::plan::FleetPlan;
use model::control::{AnnouncedRow, NextJobs, NextList};
use model::{ControlKey, Event, Reason, Span, Version, Waiting};
use runtime::shares::end_limit_turn;
use std::sync::PoisonError;
use store::{Store, change, ignore_conflict};

/// A list counts until the scheduled run after the next one: one of them may fail. An old list is not old knowledge (R6): whoever draws
/// from it requires the job and the node as they are now.
const LIST_COUNTS: Span = Span::from_s(120);

impl Acting<'_> {
    /// Notes where the next run goes on in a long queue. The part stays while nodes boot for its jobs: otherwise no later
    /// run would know what the nodes are for.
    pub(super) async fn note_queue_place(&self, plan: &FleetPlan) {
        let Some(part) = &self.run.observed.queue.part else { return };
        let has_nodes = |w: &Waiting| w.why.iter().any(Reason::is_about_nodes_to_come);
        let mut come = plan.explained.waiting.iter().filter(|w| has_nodes(w)).flat_map(|w| &w.jobs);
        let after = if come.any(|id| part.jobs.contains(id)) { &part.stays } else { &part.moves };
        self.run.note_place(&ControlKey::QueuePlace, after).await;
    }

    /// Notes where the next run goes on in a long list of jobs that follow others.
    pub(super) async fn note_after_place(&self) {
        if let Some(after) = &self.run.observed.after_place {
            self.run.note_place(&ControlKey::AfterPlace, after).await;
        }
    }

    /// Lists the jobs that start next on freed room. If the list is lost, they wait for runs.
    pub(super) async fn list_next(&self, plan: &FleetPlan) {
        let observed = self.run.observed;
        let before = observed.control.next_jobs.clone().unwrap_or_else(|| NextList::new(&ControlKey::NextJobs));
        if (plan.next.alike.is_empty() && before.alike.is_empty()) || !self.run.may_begin() {
            return;
        }
        let until_at = Some(observed.observed_at + LIST_COUNTS);
        let next = NextJobs { until_at, policy_version: observed.policy_version, ..plan.next.clone() };
        // A conflict is fine: another run has listed what it has read.
        if let Err(error) = ignore_conflict(self.run.store.write_entry(&before, &before.with(next)).await) {
            tracing::warn!(%error, "the jobs that start next were not listed");
        }
    }

    /// Adds to the totals what this run has counted. If that fails, a later run counts it.
    pub(super) async fn note_totals(&self) {
        let Some((before, after)) = self.run.observed.shares.totals.as_ref().filter(|_| self.run.may_begin()) else {
            return;
        };
        if let Err(error) = ignore_conflict(self.run.store.write_entry(before, after).await) {
            tracing::warn!(%error, "what shares have used was not noted");
        }
    }

    /// Lets another run place what is under a limit.
    pub(super) async fn end_turn(&self) {
        let Some(turn) = self.limit_turn.lock().await.take().filter(|turn| turn.version != Version::UNWRITTEN) else {
            return;
        };
        if let Err(error) = end_limit_turn(self.run.store, &turn, self.run.now()).await {
            tracing::warn!(%error, "the turn to place what is under a limit was not given back: it ends by itself");
        }
    }

    /// Notes the jobs that this run could not place because their rows cannot be read. The queue's index shows only a part of
    /// a row. From the next run on they keep no node, until clean-stale-records finds that they were repaired.
    pub(super) async fn quarantine_jobs(&self) {
        let found = std::mem::take(&mut *self.unreadable.lock().unwrap_or_else(PoisonError::into_inner));
        let before = self.run.observed.control.place(&ControlKey::JobsPlace);
        let after = before.with_unreadable(before.unreadable.iter().copied().chain(found));
        self.run.note_place(&ControlKey::JobsPlace, &after).await;
    }

    /// Writes events about what is new in the plan's explanation.
    pub(super) async fn announce_news(&self, plan: &FleetPlan) {
        let before = self.run.observed.control.announced.as_ref();
        let key = ControlKey::Announced.to_string();
        if before.is_none() && self.run.observed.control.unreadable.iter().any(|entry| entry.key == key) {
            // The row only says what was announced. While it is unreadable, nothing could be announced, so an empty one replaces it.
            if let Err(error) = self.run.store.replace_unreadable(&AnnouncedRow::new(&ControlKey::Announced)).await {
                tracing::warn!(%error, "the unreadable row of what was announced could not be replaced");
            }
            return;
        }
        // A run reads only a part of the jobs that follow others or are put off, so what was announced of the rest would be forgotten and
        // announced again. The command that submitted such a job has printed why it waits.
        let queue = self.run.observed.jobs.iter().filter(|job| !job.is_ineligible()).map(|job| job.job_id);
        let told = before.cloned().unwrap_or_else(|| AnnouncedRow::new(&ControlKey::Announced));
        let (news, after): (_, AnnouncedRow) = told.news(&plan.explained, queue);
        if after == told || !self.run.may_begin() {
            return;
        }
        let (now, keep) = (self.run.now(), self.keep.events);
        let mut writes = vec![change(before, &after).0];
        let event = |n: &model::announced::News| Event::of_change(&n.subject, n.action, &n.reason, now, keep);
        writes.extend(news.iter().map(|n| Store::event_write(&event(n))));
        // A conflict is fine: another run has announced the same.
        if let Err(error) = ignore_conflict(self.run.store.transact(&writes).await) {
            tracing::warn!(%error, "the events about jobs that wait were not written");
        }
    }
}
