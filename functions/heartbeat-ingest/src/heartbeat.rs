//! `POST …/heartbeat`: steady heartbeats, registrations, and heartbeats that change the record.
//!
//! Guarantees: a steady heartbeat is one write, or one read if the agent only asks and its lease lasts; a lease lasts at least until
//! the node was told to call again; an interruption that the agent reports becomes a drain.
//! Does not: look at allocs, except to send the node its orders.

use crate::orders::NodeOrders;
use crate::{HeartbeatTiming, Ingest, RACES};
use model::names::{is_host, is_id};
use model::wire::{ErrorCode, Heartbeat, HeartbeatAnswer};
use model::{ActionName, NodeId, NodeRecord, NodeStatus, Span, Time};
use runtime::http::{CallerProof, HttpError, internal, standing, unwritten, wrong_incarnation};
use store::{Pulse, WriteError, transactions, unless_raced};

impl Ingest {
    pub(crate) async fn heartbeat(
        &self,
        node_id: NodeId,
        proven: &CallerProof,
        heartbeat: &Heartbeat,
        now: Time,
    ) -> Result<HeartbeatAnswer, HttpError> {
        check(heartbeat)?;
        if proven.instance().is_some_and(|id| id != heartbeat.instance_id) {
            let message = format!("the caller is not instance {}", heartbeat.instance_id);
            return Err(HttpError::new(ErrorCode::ForeignInstance, message));
        }
        let cached = self.cached_policy(now).await?;
        let beat = self.beat(&cached, now);
        let heartbeat = &Heartbeat { health: heartbeat.health.clone().clipped(), ..heartbeat.clone() };
        if heartbeat.asks
            && let Some(record) = self.record_for_ask(node_id, proven, heartbeat, &beat).await?
        {
            return self.answer(record, heartbeat, &beat, now).await;
        }
        let (mut pinged_at, mut lease_expires_at) = (now, beat.lease_expires_at());
        for _ in 0..RACES {
            let record = match &heartbeat.incarnation {
                Some(incarnation) => {
                    let pulse = Pulse { node_id, heartbeat, incarnation, now: pinged_at, lease_expires_at };
                    match self.store.pulse(&pulse).await.map_err(internal)? {
                        Ok(record) => return self.answer(record, heartbeat, &beat, now).await,
                        Err(record) => record,
                    }
                }
                None => self.store.node(node_id.slot()).await.map_err(internal)?,
            };
            let record = standing(record, node_id, proven)?;
            let Some(after) = self.unsteady(&record, heartbeat, lease_expires_at, now)? else {
                match pulse_after(&record, pinged_at, lease_expires_at) {
                    Some(pulse) => (pinged_at, lease_expires_at) = pulse,
                    None => return self.answer(record, heartbeat, &beat, now).await,
                }
                continue;
            };
            // If somebody else has changed the record, the loop decides again.
            let written = self.store.write(Some(&record), &after, Vec::new()).await;
            if let Some(written) = unless_raced(written).map_err(internal)? {
                let keep = cached.policy.history.keep_events();
                self.record_event(written.slot, ActionName::Heartbeat, &written.reason, keep, now).await;
                return self.answer(written, heartbeat, &beat, now).await;
            }
        }
        Err(unwritten(WriteError::CONFLICT))
    }

    /// The record of a node that only asks; `None` if the heartbeat must write: the lease is too short, or there is news.
    async fn record_for_ask(
        &self,
        node_id: NodeId,
        proven: &CallerProof,
        heartbeat: &Heartbeat,
        beat: &HeartbeatTiming<'_>,
    ) -> Result<Option<NodeRecord>, HttpError> {
        let record = standing(self.store.node(node_id.slot()).await.map_err(internal)?, node_id, proven)?;
        let is_steady = self.unsteady(&record, heartbeat, beat.lease_expires_at(), beat.now)?.is_none();
        let lasts = record.life().zip(record.contact()).is_some_and(|(life, contact)| beat.leaves_time(life, contact));
        Ok(Some(record).filter(|_| is_steady && lasts))
    }

    /// The record after a heartbeat that is not steady; `None` if only the pulse would change.
    fn unsteady(
        &self,
        record: &NodeRecord,
        heartbeat: &Heartbeat,
        lease_expires_at: Time,
        now: Time,
    ) -> Result<Option<NodeRecord>, HttpError> {
        let impossible = |e: model::NotPossible| HttpError::new(ErrorCode::Internal, e.to_string());
        let bound = record.life().and_then(|l| l.instance_id.as_deref());
        if bound.is_some_and(|id| id != heartbeat.instance_id) {
            let message = "the node belongs to another instance than the caller";
            return Err(HttpError::new(ErrorCode::ForeignInstance, message));
        }
        if is_late(record, heartbeat) {
            let message = "a newer heartbeat of this boot has arrived: this one came late and changes nothing";
            return Err(HttpError::new(ErrorCode::StaleReport, message));
        }
        if record.life().is_some_and(|l| l.batch.is_some()) {
            // Each instance of a batch knows the ids of all its nodes, so the claim of a caller does not count. A run of
            // poll-and-scale binds the instances, by EC2's list or answer.
            let message = "the launch of this node is not confirmed yet: try again";
            return Err(HttpError::new(ErrorCode::Busy, message));
        }
        let Some(incarnation) = &heartbeat.incarnation else {
            let minted = self.store.rng().ulid(now).to_string();
            return record.register(heartbeat, &minted, lease_expires_at, now).map(Some).map_err(impossible);
        };
        let contact = record.contact().filter(|c| c.incarnation == *incarnation && c.boot_id == heartbeat.boot_id);
        let Some(contact) = contact else {
            return Err(wrong_incarnation("the incarnation or boot is not the current one"));
        };
        let lease_is_over = matches!(record.status(), Some(NodeStatus::Disconnected | NodeStatus::Down));
        // If the record has an impossible time, no pulse is newer. Then the whole record is written.
        let is_possible = contact.uptime_ms.is_none_or(|uptime| uptime <= model::LONGEST_UPTIME_MS);
        if is_possible && !lease_is_over && contact.health == heartbeat.health {
            return Ok(None);
        }
        record.heartbeat(heartbeat, lease_expires_at, now).map(Some).map_err(impossible)
    }

    async fn answer(
        &self,
        record: NodeRecord,
        heartbeat: &Heartbeat,
        beat: &HeartbeatTiming<'_>,
        now: Time,
    ) -> Result<HeartbeatAnswer, HttpError> {
        let record = self.interrupted(record, heartbeat, beat.cached.policy.history.keep_events(), now).await?;
        let (Some(life), Some(contact)) = (record.life(), record.contact()) else {
            return Err(HttpError::new(ErrorCode::Internal, "there is no life on the record that was to be answered"));
        };
        // The agent knows a higher `seq` than the table, so the table was restored from a backup, and the agent's
        // orders may no longer exist.
        if heartbeat.incarnation.is_some() && heartbeat.as_of > life.seq {
            return Err(wrong_incarnation("the agent knows more than the table, which was restored from a backup"));
        }
        // An order about a handle raises `seq`, and any other change of the handles changes the digest in the text.
        let is_settled = |said: &String| contact.settled.as_ref() == Some(said) && is_of(said, life.seq);
        let report_handles = heartbeat.handles.as_ref().is_some_and(|said| !is_settled(said));
        let NodeOrders { orders, again_s } = self.orders(life, heartbeat.as_of).await?;
        Ok(HeartbeatAnswer {
            status: contact.status,
            incarnation: contact.incarnation.clone(),
            seq: life.seq,
            next_heartbeat_s: again_s.unwrap_or_else(|| beat.next_s(life.allocs.len(), contact.idle_since_at)),
            retry_s: beat.cached.retry_s(),
            ask_until_ms: heartbeat
                .uptime_ms
                .zip(beat.may_ask_for(life, contact))
                .map(|(up, wait)| up.saturating_add(wait)),
            intent: life.intent,
            must_report: record.status() == Some(NodeStatus::Syncing),
            report_handles,
            orders,
            follows: life.follows.iter().filter(|(_, until_at)| **until_at > now).map(|(id, _)| *id).collect(),
        })
    }

    /// Drains the node if the agent reports that EC2 will interrupt the instance. The interruption is the deadline.
    async fn interrupted(
        &self,
        record: NodeRecord,
        heartbeat: &Heartbeat,
        keep_events: Span,
        now: Time,
    ) -> Result<NodeRecord, HttpError> {
        let Some(by) = heartbeat.interrupt_at else { return Ok(record) };
        let drained = transactions::drain_interrupted(&self.store, &record, Some(by), Some(keep_events), now).await;
        // A lost race is fine: the next heartbeat reports the interruption again.
        Ok(unless_raced(drained).map_err(internal)?.flatten().unwrap_or(record))
    }
}

/// Whether the settled report of handles is of this `seq`. Its text is `seq#digest`.
fn is_of(settled: &str, seq: u64) -> bool {
    settled.split_once('#').is_some_and(|(at, _)| at == seq.to_string())
}

/// Whether the record already has a newer heartbeat of the same boot. A heartbeat that the network delivers minutes late
/// must neither renew the lease nor replace the node's health or the incarnation.
fn is_late(record: &NodeRecord, heartbeat: &Heartbeat) -> bool {
    let contact = record.contact().filter(|c| c.boot_id == heartbeat.boot_id);
    let newest = contact.and_then(|c| c.uptime_ms).filter(|newest| *newest <= model::LONGEST_UPTIME_MS);
    newest.zip(heartbeat.uptime_ms).is_some_and(|(newest, this)| this < newest)
}

/// The call time and the lease end of the next attempt, after the conditional write of the pulse failed although only the
/// pulse would change. `None` if the record has a newer pulse and needs no change.
fn pulse_after(record: &NodeRecord, pinged_at: Time, lease_expires_at: Time) -> Option<(Time, Time)> {
    let contact = record.contact()?;
    let is_heard = matches!(record.status(), Some(NodeStatus::Syncing | NodeStatus::Ready));
    if contact.last_ping_at < pinged_at && contact.lease_expires_at > lease_expires_at {
        // The record has a longer lease than this heartbeat would give: leases have become shorter, and the call came early
        // or twice. The longer lease stays, because the node may have been told to call only shortly before its end.
        return Some((pinged_at, contact.lease_expires_at));
    }
    if is_heard && contact.last_ping_at >= pinged_at && contact.lease_expires_at < lease_expires_at {
        // Another process, whose clock is ahead, has accepted a later call, with a lease that is too short for this answer.
        return Some((contact.last_ping_at + Span::from_ms(1), lease_expires_at));
    }
    None
}

/// Checks the texts of a heartbeat: ids reach lists and calls of EC2, and the address reaches the environment of jobs on other
/// nodes.
fn check(heartbeat: &Heartbeat) -> Result<(), HttpError> {
    let ids = [
        ("instance_id", Some(heartbeat.instance_id.as_str())),
        ("boot_id", Some(heartbeat.boot_id.as_str())),
        ("incarnation", heartbeat.incarnation.as_deref()),
    ];
    let bad = |message: String| Err(HttpError::new(ErrorCode::BadRequest, message));
    if let Some((name, _)) = ids.into_iter().find(|(_, id)| id.is_some_and(|id| !is_id(id))) {
        return bad(format!("{name} must be 1 to 128 letters, digits, '-', '_', '.' or ':'"));
    }
    if heartbeat.address.as_deref().is_some_and(|address| !is_host(address)) {
        return bad("address must be an IP address or the name of a host: correct --address of the agent".to_owned());
    }
    Ok(())
}
