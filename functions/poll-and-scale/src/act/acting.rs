//! What all actions of one run share.
//!
//! Guarantees: an action uses the node records as this run read or wrote them; an alloc or a job is read again
//! before it changes, and the write requires the version that was read.
//! Does not: contain any action; the other files do.

use super::launch_rate::LaunchRate;
use model::control::{FailedStarts, PollTurn};
use model::{Cloud, JobId, LaunchCall, LaunchSettings, NodeId, NodeRecord, Scope};
use runtime::answer::ActError;
use runtime::run::Run;
use std::collections::BTreeSet;
use std::sync::Mutex;
use store::{Cond, WriteError};
use store::{Retention, transactions};

/// The result of an action that returns no value.
pub(super) type Done = Result<(), ActError>;

pub(super) struct Acting<'a> {
    pub(super) run: Run<'a>,
    pub(super) cloud: &'a dyn Cloud,
    pub(super) settings: &'a LaunchSettings,
    pub(super) keep: Retention,
    pub(super) rate: LaunchRate,
    /// The entry of the failed starts as this run last wrote it. `None`: this run has not written it.
    pub(super) failed_starts: tokio::sync::Mutex<Option<FailedStarts>>,
    /// The turn in which this run places what is under a limit, if it has one.
    pub(super) limit_turn: tokio::sync::Mutex<Option<PollTurn>>,
    /// The jobs whose rows turned out to be unreadable.
    pub(super) unreadable: Mutex<BTreeSet<JobId>>,
    /// The instances of the nodes that this run shuts down. They are terminated together with the others.
    pub(super) ending: Mutex<Vec<(NodeId, String)>>,
}

impl<'a> Acting<'a> {
    pub(super) fn new(run: Run<'a>, cloud: &'a dyn Cloud, settings: &'a LaunchSettings) -> Self {
        let policy = &run.observed.policy;
        let rate = LaunchRate::new(policy.launch.calls_per_second);
        if run.observed.control.launch_call(run.observed.observed_at) == LaunchCall::One {
            rate.refuse(Scope::FLEET);
        }
        Self {
            cloud,
            settings,
            keep: Retention::of(policy),
            rate,
            failed_starts: tokio::sync::Mutex::default(),
            limit_turn: tokio::sync::Mutex::new(run.observed.limit_turn.clone()),
            unreadable: Mutex::default(),
            ending: Mutex::default(),
            run,
        }
    }

    /// The record of a node as this run last read or wrote it.
    pub(super) fn record(&self, node_id: NodeId) -> Result<NodeRecord, ActError> {
        self.run.locks.record_of(node_id).ok_or(ActError::CONFLICT)
    }

    /// Writes a record, and keeps it for the later actions of this run.
    pub(super) async fn write_node(
        &self,
        before: &NodeRecord,
        after: &NodeRecord,
        conditions: Vec<Cond>,
    ) -> Result<NodeRecord, ActError> {
        let written = self.run.store.write(Some(before), after, conditions).await?;
        self.run.locks.wrote(written.clone());
        Ok(written)
    }

    /// [`Acting::write_node`] for several records, at most 100: all of them change, or none.
    pub(super) async fn write_nodes(
        &self,
        changes: &[(Option<NodeRecord>, NodeRecord)],
        conditions: &[Cond],
    ) -> Result<Vec<NodeRecord>, WriteError> {
        let written = self.run.store.write_together(changes, conditions).await?;
        written.iter().for_each(|record| self.run.locks.wrote(record.clone()));
        Ok(written)
    }

    pub(super) async fn clean(&self, record: &NodeRecord, reason: &str, conditions: Vec<Cond>) -> Result<(), ActError> {
        let now = self.run.now();
        let cleaned = transactions::clean_node(self.run.store, record, reason, conditions, self.keep, now).await?;
        self.run.locks.wrote(cleaned);
        Ok(())
    }
}
