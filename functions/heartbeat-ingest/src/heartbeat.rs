//! `POST …/heartbeat`: the pulse, and everything that is not steady.

use crate::{Ingest, RACES, internal, unwritten};
use model::events::Subject;
use model::ids::NodeId;
use model::time::{Span, Time};
use model::wire::{ErrorCode, Heartbeat, HeartbeatAnswer};
use model::{ActionName, Caller, NodeRecord, NodeStatus};
use runtime::http::{Proven, Refusal, standing, wrong_incarnation};
use store::{Pulse, WriteError};

/// The longest of the caller's own words that are kept, in bytes.
const MAX_WORD_BYTES: usize = 128;

impl Ingest {
    pub(crate) async fn heartbeat(
        &self,
        node_id: NodeId,
        proven: &Proven,
        heartbeat: &Heartbeat,
        now: Time,
    ) -> Result<HeartbeatAnswer, Refusal> {
        check(heartbeat)?;
        if proven.0.as_ref().is_some_and(|p| *p != heartbeat.instance_id) {
            let message = format!("the caller is not instance {}", heartbeat.instance_id);
            return Err(Refusal::new(ErrorCode::ForeignInstance, message));
        }
        let known = self.known(now).await?;
        let beat = self.beat(&known, now);
        let busy = heartbeat.busy.unwrap_or(false);
        let (mut pinged_at, mut lease_expires_at) = (now, beat.lease_expires_at);
        for _ in 0..RACES {
            let record = match &heartbeat.incarnation {
                Some(incarnation) => {
                    let pulse = Pulse {
                        node_id,
                        instance_id: &heartbeat.instance_id,
                        incarnation,
                        boot_id: &heartbeat.boot_id,
                        busy,
                        now: pinged_at,
                        lease_expires_at,
                    };
                    match self.store.pulse(&pulse).await.map_err(internal)? {
                        Ok(record) => return self.answer(record, heartbeat, &beat, now).await,
                        Err(record) => record,
                    }
                }
                None => self.store.node(node_id.slot()).await.map_err(internal)?,
            };
            let record = standing(record, node_id, proven)?;
            let Some(after) = self.unsteady(&record, heartbeat, lease_expires_at, now)? else {
                let heard = matches!(record.status(), Some(NodeStatus::Syncing | NodeStatus::Ready));
                match record.contact() {
                    // This call came twice, or early, and leases are shorter by now: the node may have been told
                    // to call by the end of the one it has.
                    Some(c) if c.last_ping_at < pinged_at && c.lease_expires_at > lease_expires_at => {
                        lease_expires_at = c.lease_expires_at;
                        continue;
                    }
                    // Another process, whose clock is ahead, took a call since, and gave a shorter lease than this
                    // answer needs.
                    Some(c) if heard && c.last_ping_at >= pinged_at && c.lease_expires_at < lease_expires_at => {
                        pinged_at = c.last_ping_at + Span::from_ms(1);
                        continue;
                    }
                    // Nothing but the pulse is new, and that is not newer.
                    _ => return self.answer(record, heartbeat, &beat, now).await,
                }
            };
            match self.store.write(Some(&record), &after, Vec::new()).await {
                Ok(written) => {
                    let subject = Subject::Slot(written.slot);
                    self.tell(&subject, ActionName::Heartbeat, &written.reason, &known, now).await;
                    return self.answer(written, heartbeat, &beat, now).await;
                }
                // Somebody changed the record since: decide anew.
                Err(WriteError::Conflict(_) | WriteError::Contended) => {}
                Err(WriteError::Db(e)) => return Err(internal(e)),
            }
        }
        Err(unwritten(WriteError::CONFLICT))
    }

    /// What a heartbeat that is not steady makes of the record; `None` if nothing but the pulse
    /// would change.
    fn unsteady(
        &self,
        record: &NodeRecord,
        heartbeat: &Heartbeat,
        lease_expires_at: Time,
        now: Time,
    ) -> Result<Option<NodeRecord>, Refusal> {
        let caller = Caller {
            instance_id: &heartbeat.instance_id,
            boot_id: &heartbeat.boot_id,
            busy: heartbeat.busy.unwrap_or(false),
            address: heartbeat.address.as_deref(),
        };
        let impossible = |e: model::NotPossible| Refusal::new(ErrorCode::Internal, e.to_string());
        let bound = record.life().and_then(|l| l.instance_id.as_deref());
        if bound.is_some_and(|id| id != heartbeat.instance_id) {
            let message = "the node belongs to another instance than the caller";
            return Err(Refusal::new(ErrorCode::ForeignInstance, message));
        }
        let Some(incarnation) = &heartbeat.incarnation else {
            let minted = self.store.chance().ulid(now).to_string();
            return record.register(&caller, &minted, lease_expires_at, now).map(Some).map_err(impossible);
        };
        let contact = record.contact().filter(|c| c.incarnation == *incarnation && c.boot_id == heartbeat.boot_id);
        let Some(contact) = contact else {
            return Err(wrong_incarnation("the incarnation or boot is not the current one"));
        };
        let missed = matches!(record.status(), Some(NodeStatus::Disconnected | NodeStatus::Down));
        if !missed && contact.busy == caller.busy {
            return Ok(None);
        }
        record.heartbeat(&caller, lease_expires_at, now).map(Some).map_err(impossible)
    }

    async fn answer(
        &self,
        record: NodeRecord,
        heartbeat: &Heartbeat,
        beat: &crate::Beat,
        now: Time,
    ) -> Result<HeartbeatAnswer, Refusal> {
        let record = self.interrupted(record, heartbeat, now).await?;
        let (Some(life), Some(contact)) = (record.life(), record.contact()) else {
            return Err(Refusal::new(ErrorCode::Internal, "a record without life was answered"));
        };
        // The table was restored from an older backup: what the agent knows is of a future that
        // was undone.
        if heartbeat.incarnation.is_some() && heartbeat.as_of > life.seq {
            return Err(wrong_incarnation("the agent knows more than the table, which was restored from a backup"));
        }
        let allocs = if heartbeat.as_of < life.seq { Some(self.orders(life).await?) } else { None };
        Ok(HeartbeatAnswer {
            status: contact.status,
            incarnation: contact.incarnation.clone(),
            seq: life.seq,
            next_heartbeat_s: beat.next_s(life.allocs.is_empty()),
            intent: life.intent,
            must_report: record.status() == Some(NodeStatus::Syncing),
            allocs,
        })
    }

    /// EC2 said it will take the instance away: a drain with that deadline.
    async fn interrupted(&self, record: NodeRecord, heartbeat: &Heartbeat, now: Time) -> Result<NodeRecord, Refusal> {
        let Some(by) = heartbeat.interrupt_at else { return Ok(record) };
        let Some(after) = record.interrupted(by, now) else { return Ok(record) };
        match self.store.write(Some(&record), &after, Vec::new()).await {
            Ok(written) => Ok(written),
            // The agent says it again.
            Err(WriteError::Conflict(_) | WriteError::Contended) => Ok(record),
            Err(WriteError::Db(e)) => Err(internal(e)),
        }
    }
}

fn check(heartbeat: &Heartbeat) -> Result<(), Refusal> {
    let words = [
        ("instance_id", Some(heartbeat.instance_id.as_str())),
        ("boot_id", Some(heartbeat.boot_id.as_str())),
        ("incarnation", heartbeat.incarnation.as_deref()),
        ("address", heartbeat.address.as_deref()),
    ];
    for (name, word) in words {
        if word.is_some_and(|w| w.is_empty() || w.len() > MAX_WORD_BYTES) {
            let message = format!("{name} must have 1 to {MAX_WORD_BYTES} bytes");
            return Err(Refusal::new(ErrorCode::BadRequest, message));
        }
    }
    Ok(())
}
