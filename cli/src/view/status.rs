//! Whether all is well, and what to do if not.
//!
//! Guarantees: it judges by the one list of signs (`runtime::signs`), as the page and the alarms do. If EC2 cannot be read, it
//! judges by what the functions stored, and a sign says what is not known.
//! Does not: repair anything. The functions do.

use super::present::Snapshot;
use crate::console::show::counted;
use model::handle::STUCK_AFTER;
use model::{Handle, JobSummary, NodeRecord, Subject, Usd};
use runtime::observation::ObserveError;
use runtime::signs::{self, Facts};
pub(crate) use runtime::signs::{Raised as Check, SignLevel};
use runtime::validation::InvalidRow;
use serde::Serialize;
use std::collections::BTreeMap;
use store::{DbError, End, Store, Unreadable};

/// How many events of a subject are searched for warnings.
const EVENTS: i32 = 20;

/// The status in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) well: bool,
    pub(crate) checks: Vec<Check>,
    pub(crate) nodes: BTreeMap<String, usize>,
    pub(crate) jobs: BTreeMap<String, usize>,
    /// Whether more jobs wait than were counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more_jobs_wait: bool,
    /// What the nodes cost per hour, by the prices that the policy had at their launches.
    pub(crate) price_per_hour: Usd,
}

impl Status {
    /// Judges the present. Reads for that also the newest events of the cluster and of the functions, the handles that their nodes
    /// do not destroy, and the jobs that ended last.
    pub(crate) async fn of(store: &Store, present: &Snapshot) -> Result<Self, DbError> {
        let Snapshot { now, control, nodes, jobs, next, .. } = present;
        let now = *now;
        let events = store.history(&Subject::Cluster.to_string(), EVENTS).await?;
        // A run looks at a stuck handle at least once in this time, so it is among the due handles.
        let handles = store.handles_due(now + STUCK_AFTER).await?;
        let stuck: Vec<Handle> = handles.rows.into_iter().filter(|handle| handle.is_stuck(now)).collect();
        let ended = store.ended(&End::NOT_CANCELLED, now - signs::RECENT, signs::ENDED).await?;
        let unreadable = |rows: &[Unreadable]| rows.iter().map(InvalidRow::unreadable).collect::<Vec<_>>();
        let mut rows = match next {
            Ok(next) => next.observed.quarantined.rows.clone(),
            Err(_) => [unreadable(&present.bad_nodes), unreadable(&present.bad_jobs)].concat(),
        };
        rows.extend(unreadable(&handles.unreadable));
        let checks = signs::judge(&Facts {
            nodes,
            jobs,
            ended: &ended,
            allocs: next.as_ref().map_or(&[], |next| &next.observed.allocs),
            stuck: &stuck,
            next: match next {
                Ok(next) => signs::ForeseenPlan::Planned(&next.plan.explained, next.plan.unready),
                Err(ObserveError::Cloud(error)) => signs::ForeseenPlan::Unknown(error),
                // The sign of the policy says the same. Without the tables, there is no status at all.
                Err(ObserveError::Policy(_) | ObserveError::Db(_)) => signs::ForeseenPlan::Unplanned,
            },
            events: &events,
            rows,
            ..Facts::new(control, now)
        });
        Ok(Self {
            well: checks.iter().all(|c| c.level != SignLevel::Wrong),
            checks,
            nodes: counts(nodes.iter().map(node_word)),
            jobs: counts(jobs.iter().map(|j: &JobSummary| j.state.to_string())),
            more_jobs_wait: present.more_jobs_wait,
            price_per_hour: nodes.iter().filter_map(|n| Some(n.life()?.offering.price_per_hour)).sum(),
        })
    }

    /// How many jobs have not ended, by their states.
    pub(crate) fn counted_jobs(&self) -> String {
        let at_least = if self.more_jobs_wait { "at least " } else { "" };
        format!("{at_least}{}", none_or(&self.jobs))
    }

    pub(crate) fn summary(&self) -> String {
        let count = |level| self.checks.iter().filter(|c| c.level == level).count();
        let all = self.checks.len();
        match (count(SignLevel::Wrong), count(SignLevel::Caution)) {
            (0, 0) => "all is well".to_owned(),
            (0, looks) => format!("nothing is wrong; {looks} of {all} checks to look at"),
            (wrong, _) => format!("not all is well: {wrong} of {all} checks"),
        }
    }
}

pub(crate) fn none_or(counts: &BTreeMap<String, usize>) -> String {
    if counts.is_empty() { "none".to_owned() } else { counted(counts) }
}

pub(crate) fn counts(words: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

/// A node's status if it is in use, otherwise its state.
pub(crate) fn node_word(record: &NodeRecord) -> String {
    record.status().map_or_else(|| record.state_name().to_string(), |s| s.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::present::COUNTED;
    use super::*;

    #[test]
    fn a_count_that_goes_no_further_says_at_least() {
        let jobs = BTreeMap::from([("placed".to_owned(), 3), ("queued".to_owned(), COUNTED)]);
        let status = |more_jobs_wait| Status {
            well: true,
            checks: Vec::new(),
            nodes: BTreeMap::new(),
            jobs: jobs.clone(),
            more_jobs_wait,
            price_per_hour: Usd::ZERO,
        };
        assert_eq!(status(false).counted_jobs(), "3 placed, 2000 queued");
        assert_eq!(status(true).counted_jobs(), "at least 3 placed, 2000 queued");
    }
}
