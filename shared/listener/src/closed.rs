//! Logs which connections are closed at once, and whose they are.
//!
//! Guarantees: each one is in the log: the first at once, and those that follow soon as one number for each user and reason.

use crate::admission::WhyClosed;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The least time between two looks at what is to be logged.
pub(crate) const EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Closed(Mutex<Unlogged>);

#[derive(Debug, Default)]
struct Unlogged {
    logged_at: Option<Instant>,
    /// How many connections of a user were closed for a reason.
    counts: BTreeMap<(Option<u32>, WhyClosed), u64>,
}

impl Unlogged {
    /// What is to be logged now.
    fn due(&mut self) -> BTreeMap<(Option<u32>, WhyClosed), u64> {
        if self.counts.is_empty() || self.logged_at.is_some_and(|at| at.elapsed() < EVERY) {
            return BTreeMap::new();
        }
        self.logged_at = Some(Instant::now());
        std::mem::take(&mut self.counts)
    }
}

impl Closed {
    fn unlogged(&self) -> MutexGuard<'_, Unlogged> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, what: &str, user: Option<u32>, why: WhyClosed) {
        *self.unlogged().counts.entry((user, why)).or_default() += 1;
        self.log(what);
    }

    /// Logs what is due.
    pub(crate) fn log(&self, what: &str) {
        let due = self.unlogged().due();
        for ((user, why), connections) in due {
            let user = user.map_or_else(|| "unknown".to_owned(), |user| user.to_string());
            tracing::warn!(what, user, connections, "connections are closed: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_logged_at_once_and_the_others_together() {
        let closed = Closed::default();
        let note = |user| *closed.unlogged().counts.entry((user, WhyClosed::NotTheOwner)).or_default() += 1;
        note(Some(9));
        assert_eq!(closed.unlogged().due().into_values().collect::<Vec<_>>(), [1]);
        for user in [Some(9), None, Some(9)] {
            note(user);
            assert!(closed.unlogged().due().is_empty());
        }
        tokio::time::advance(EVERY).await;
        let due: Vec<_> = closed.unlogged().due().into_iter().map(|((user, _), n)| (user, n)).collect();
        assert_eq!(due, [(None, 1), (Some(9), 2)]);
        assert!(closed.unlogged().due().is_empty());
    }
}
