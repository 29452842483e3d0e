//! Actions on node records.
//!
//! Guarantees: a write that assumes silence requires `last_ping_at` as read (`docs/rules.md#R4`).
//! Does not: decide; the plan does.

use super::acting::{Acting, Done};
use crate::plan::{Note, ShutdownBasis};
use model::{NodeId, NodeState, NodeStatus, Time};
use runtime::answer::ActError;
use runtime::instances;
use std::sync::PoisonError;
use store::transactions;
use store::{Cond, no_live_allocs, silent_since};

impl Acting<'_> {
    pub(super) async fn abandon(&self, node_id: NodeId, reason: &str) -> Done {
        let record = self.record(node_id)?;
        self.clean(&record, reason, vec![Cond::Absent("instance_id"), silent_since(&record)]).await
    }

    pub(super) async fn shut_down(&self, node_id: NodeId, because: ShutdownBasis, reason: &str, now: Time) -> Done {
        let record = self.record(node_id)?;
        let after = record.shut_down(now, reason)?;
        let mut conditions = Vec::new();
        let deadline = record.life().and_then(|l| l.drain_by_at).is_some_and(|by| now >= by);
        if !deadline {
            conditions.push(no_live_allocs());
        }
        if because != ShutdownBasis::NotNeeded {
            conditions.push(silent_since(&record));
        }
        let written = self.write_node(&record, &after, conditions).await?;
        if because == ShutdownBasis::FailedStart {
            self.count_failed_start(&written, now).await;
        }
        if let Some(id) = written.life().and_then(|l| l.instance_id.clone()) {
            self.ending.lock().unwrap_or_else(PoisonError::into_inner).push((node_id, id));
        }
        Ok(())
    }

    /// Drains a node whose capacity reservation ends. `by`: when EC2 terminates the machine, if it does.
    pub(super) async fn drain(&self, node_id: NodeId, by: Option<Time>, now: Time) -> Done {
        let record = self.record(node_id)?;
        let after = by.map_or_else(|| record.at_risk(now), |by| record.interrupted(by, now));
        self.write_node(&record, &after.ok_or(ActError::CONFLICT)?, Vec::new()).await?;
        Ok(())
    }

    /// Frees a slot. `unlisted` is the instance, if EC2 does not list it. The last proof is then a question to EC2 by id: the
    /// slot is freed only if EC2 does not know the instance, or knows it as terminated.
    pub(super) async fn clean_node(&self, node_id: NodeId, unlisted: Option<&str>, reason: &str, now: Time) -> Done {
        let record = self.record(node_id)?;
        let mut conditions = Vec::new();
        if let Some(instance_id) = unlisted {
            instances::is_gone(self.cloud, instance_id).await?;
            conditions.push(silent_since(&record));
        }
        // An instance that was terminated before its first heartbeat is a failed start, whoever terminated it.
        let failed_start = unlisted.is_none() && matches!(record.state, NodeState::Assigned(_));
        self.clean(&record, reason, conditions).await?;
        if failed_start {
            self.count_failed_start(&record, now).await;
        }
        transactions::end_quota_limits(self.run.store, &self.run.observed.control, &record, now).await;
        Ok(())
    }

    /// Expires a lease, unless a heartbeat has arrived since the record was read.
    pub(super) async fn expire(&self, node_id: NodeId, status: NodeStatus, reason: &str) -> Done {
        let record = self.record(node_id)?;
        let after = record.expire_lease(status, self.run.now(), reason)?;
        self.write_node(&record, &after, vec![silent_since(&record)]).await?;
        Ok(())
    }

    pub(super) async fn keep_note(&self, note: &Note, now: Time) -> Done {
        match note {
            Note::Nothing => {}
            Note::Unlisted(node_id, since) => {
                let record = self.record(*node_id)?;
                self.write_node(&record, &record.note_unlisted(*since, now)?, Vec::new()).await?;
            }
            Note::Brake(change) => self.run.hold_back(change).await?,
            Note::Limit(change) => drop(self.run.store.write_entry(&change.before, &change.after).await?),
        }
        Ok(())
    }
}
