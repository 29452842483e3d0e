//! The events of a run about what it does not do: jobs that wait, and caps that bind.
//!
//! Guarantees: the events and the memory of what was told are one transaction, so that an event is neither lost nor
//! repeated if the run is killed.
//! Does not: decide what is new; `model::told` does.

use super::acting::Acting;
use crate::plan::Plan;
use model::events::Event;
use model::told::ToldRow;
use store::{Store, change};

impl Acting<'_> {
    /// Tells what is new in the plan's explanation.
    pub(super) async fn tell_news(&self, plan: &Plan) {
        let before = self.run.seen.control.told.as_ref();
        let queue = self.run.seen.jobs.iter().map(|job| job.job_id);
        let told = before.cloned().unwrap_or_default();
        let (news, after): (_, ToldRow) = told.news(&plan.explained, queue);
        if after == told || !self.run.may_begin() {
            return;
        }
        let (now, keep) = (self.run.now(), self.keep.events);
        let mut writes = vec![change(before, &after).0];
        let event = |n: &model::told::News| Event::of_change(&n.subject, n.action, &n.reason, now, keep);
        writes.extend(news.iter().map(|n| Store::event_write(&event(n))));
        // A conflict is fine: another run has told the same.
        if let Err(error) = self.run.store.transact(&writes).await
            && !error.is_conflict()
        {
            tracing::warn!(%error, "why jobs wait was not told");
        }
    }
}
