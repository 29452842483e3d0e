//! `POST …/allocs`: a node's report of its allocs, and the gate to `ready` (`docs/rules.md#section-6`).
//!
//! Guarantees: an alloc in a report is on the node; an alloc that is not in a report is lost only if the report
//! is complete, of the current incarnation, not stale, and knows of the placement (`as_of >= placed_seq`);
//! the gate opens last, and only after the whole report was applied; a repeated report gets the same answer.
//! Does not: decide which jobs start, or stop allocs; poll-and-scale does.

use crate::next::RoomUse;
use crate::orders::NodeOrders;
use crate::{CachedPolicy, Ingest, RACES};
use model::wire::{AllocReport, AllocReportAnswer, AllocUpdate, ErrorCode, RefusedUpdate, ReportCounter};
use model::{
    ActionName, Alloc, AllocId, ClientStatus, Contact, Ending, Event, NodeId, NodeRecord, NodeStatus, Reason,
    ReportOutcome, Subject, Time,
};
use runtime::http::{CallerProof, HttpError, ReportStamp, internal, reporting, standing, unwritten};
use std::collections::{BTreeMap, BTreeSet};
use store::transactions::{self, EndExtras, NextPlaced};
use store::{DbError, Retention, Store, Unreadable, Write, WriteError, change, unchanged, unless_raced};

/// The most allocs in a report. A record has room for fewer: DynamoDB allows 400 KiB for a row.
const MAX_ALLOCS: usize = 10_000;

/// How many of the attempts to write an end also place the next job. A lost race for the job must not delay the end.
const HAND_OVERS: u32 = 3;

enum Taken {
    Yes,
    Refused(String),
    /// The update is neither taken nor refused, for this reason, so the node reports it again.
    NotYet(String),
}

/// Why the alloc is left alone, if the error concerns its rows only: a row that cannot be read, or a write that the database
/// refuses (the role does not allow it, the row became too large). Any other error is passed on.
fn left_alone(error: WriteError) -> Result<String, HttpError> {
    match error {
        WriteError::Db(error @ (DbError::Corrupt { .. } | DbError::Refused { .. })) => Ok(error.to_string()),
        other => Err(unwritten(other)),
    }
}

/// Others change the rows of an alloc all the time, or a stored row differs from what its reader makes of it.
const LOST_RACES: &str = "its rows changed during every attempt";

/// One report while it is applied.
struct AllocReporting<'a> {
    ingest: &'a Ingest,
    cached: &'a CachedPolicy,
    proven: &'a CallerProof,
    report: &'a AllocReport,
    node_id: NodeId,
    record: NodeRecord,
    keep: Retention,
    now: Time,
    accepted: Vec<AllocId>,
    refused: Vec<RefusedUpdate>,
    /// The allocs whose room went to another job.
    handed_on: BTreeSet<AllocId>,
    /// Whether a job that waits fits room that went to none.
    room_is_wanted: bool,
    /// What of the report could not be taken: an alloc of the node, and why.
    untaken: Option<String>,
}

impl Ingest {
    pub(crate) async fn report(
        &self,
        node_id: NodeId,
        proven: &CallerProof,
        report: &AllocReport,
        now: Time,
    ) -> Result<AllocReportAnswer, HttpError> {
        if report.allocs.len() > MAX_ALLOCS {
            let message = format!("the report has {} allocs, {MAX_ALLOCS} are allowed", report.allocs.len());
            return Err(HttpError::new(ErrorCode::BadRequest, message));
        }
        let cached = self.cached_policy(now).await?;
        let record = self.qualified(node_id, proven, report).await?;
        if report.complete {
            // The number is written first: from here on, a report with a lower number is stale. A report with an equal
            // number is a repeat: it applies only the updates that were not applied before. A report that is not complete
            // needs no number, because it says only what is there, and presence always counts.
            let counter = ReportCounter::Allocs;
            match self.store.note_report(node_id, &report.incarnation, counter, report.report_no, None).await {
                Ok(()) => {}
                Err(WriteError::Conflict(_)) => _ = self.qualified(node_id, proven, report).await?,
                Err(e) => return Err(unwritten(e)),
            }
        }
        let keep = Retention::of(&cached.policy);
        let mut applying = AllocReporting {
            ingest: self,
            cached: &cached,
            proven,
            report,
            node_id,
            record,
            keep,
            now,
            accepted: Vec::new(),
            refused: Vec::new(),
            handed_on: BTreeSet::new(),
            room_is_wanted: false,
            untaken: None,
        };
        applying.presence(&report.allocs).await?;
        let ended: BTreeSet<_> = report.allocs.iter().filter(|u| u.client.is_final()).map(|u| u.alloc_id).collect();
        let mut has_room = applying.accepted.iter().any(|id| ended.contains(id) && !applying.handed_on.contains(id));
        if report.complete {
            applying.absence(report).await?;
            if applying.pass_gate(report).await? {
                has_room = true;
                let reason = Reason::ReportTaken {}.to_string();
                self.record_event(node_id.slot(), ActionName::Ready, &reason, keep.events, now).await;
            }
        }
        let AllocReporting { record, accepted, refused, room_is_wanted, .. } = applying;
        has_room &= record.takes_work();
        let (Some(life), Some(contact)) = (record.life(), record.contact()) else {
            return Err(HttpError::new(ErrorCode::Internal, "there is no life on the record that took the report"));
        };
        let NodeOrders { orders, again_s } = self.orders(life, report.as_of).await?;
        // The end of an alloc starts a run of poll-and-scale. Without this, a working node would ask for new work only after 60 to
        // 90 s.
        let next_heartbeat_s = again_s.or_else(|| has_room.then(|| cached.soon_s()));
        let jobs_wait = has_room && room_is_wanted;
        let (status, seq) = (contact.status, life.seq);
        Ok(AllocReportAnswer { status, seq, accepted, refused, next_heartbeat_s, jobs_wait, orders })
    }

    /// The record of the caller, if the caller may report: the caller must have sent a heartbeat before.
    async fn qualified(
        &self,
        node_id: NodeId,
        proven: &CallerProof,
        report: &AllocReport,
    ) -> Result<NodeRecord, HttpError> {
        let record = self.store.node(node_id.slot()).await.map_err(internal)?;
        let claim = ReportStamp {
            incarnation: &report.incarnation,
            as_of: report.as_of,
            report_no: report.report_no,
            counter: ReportCounter::Allocs,
        };
        reporting(standing(record, node_id, proven)?, node_id, claim)
    }
}

impl AllocReporting<'_> {
    async fn presence(&mut self, updates: &[AllocUpdate]) -> Result<(), HttpError> {
        let store = &self.ingest.store;
        let ids: BTreeSet<AllocId> = updates.iter().map(|u| u.alloc_id).collect();
        let listed = store.allocs_listed(ids).await.map_err(internal)?;
        let rows: BTreeMap<AllocId, Alloc> = listed.rows.into_iter().map(|a| (a.id(), a)).collect();
        let aside: BTreeMap<AllocId, &Unreadable> =
            listed.unreadable.iter().filter_map(|row| Some((row.alloc_id()?, row))).collect();
        for update in updates {
            let taken = match aside.get(&update.alloc_id) {
                Some(row) => Taken::NotYet(row.to_string()),
                None => self.update(rows.get(&update.alloc_id).cloned(), update).await?,
            };
            match taken {
                Taken::Yes => self.accepted.push(update.alloc_id),
                Taken::Refused(reason) => self.refused.push(RefusedUpdate { alloc_id: update.alloc_id, reason }),
                Taken::NotYet(why) => self.leave(update.alloc_id, &why),
            }
        }
        self.accepted.sort_unstable();
        self.accepted.dedup();
        Ok(())
    }

    /// Leaves an alloc as it is. If it is on the node's record, the node does not become ready before its update is taken: a run
    /// would believe that the node has said all it knows, and lose what it has not heard of.
    fn leave(&mut self, id: AllocId, why: &str) {
        tracing::warn!(alloc_id = %id, "an alloc is left alone: {why}");
        if self.record.life().is_some_and(|life| life.allocs.contains(&id)) {
            self.untaken.get_or_insert_with(|| format!("alloc {id}: {why}"));
        }
    }

    /// Applies one update.
    async fn update(&mut self, mut row: Option<Alloc>, update: &AllocUpdate) -> Result<Taken, HttpError> {
        for attempt in 0..RACES {
            let Some(alloc) = row else { return Ok(Taken::Refused(format!("there is no alloc {}", update.alloc_id))) };
            let written = match alloc.reported(update, self.node_id, self.now) {
                ReportOutcome::Unchanged => return Ok(Taken::Yes),
                ReportOutcome::Refused(reason) => return Ok(Taken::Refused(reason)),
                ReportOutcome::Changed(after) => self.write_change(&alloc, &after).await,
                ReportOutcome::Ends(ending) => self.end(&alloc, &ending, attempt < HAND_OVERS).await,
            };
            match written {
                Ok(()) => return Ok(Taken::Yes),
                Err(e) if e.is_conflict() => {}
                Err(e) => return left_alone(e).map(Taken::NotYet),
            }
            row = match self.again(update.alloc_id).await? {
                Ok(row) => row,
                Err(unreadable) => return left_alone(unreadable.into()).map(Taken::NotYet),
            };
        }
        // The other updates are still applied.
        Ok(Taken::NotYet(LOST_RACES.to_owned()))
    }

    /// Writes an alloc that goes on. The version of the alloc is condition enough, because whoever gives the node up changes its
    /// allocs too. One write costs half of a transaction. If the alloc was unknown, one transaction writes it with an event, and
    /// only if the node's record is unchanged.
    async fn write_change(&self, alloc: &Alloc, after: &Alloc) -> Result<(), WriteError> {
        let store = &self.ingest.store;
        if alloc.summary.client != ClientStatus::Unknown {
            return store.write(Some(alloc), after, Vec::new()).await.map(drop);
        }
        let event = self.event(alloc, ActionName::ReturnAlloc, &Reason::ReportedAgain {}.to_string());
        store.transact(&[change(Some(alloc), after).0, unchanged(&self.record), event]).await
    }

    fn event(&self, alloc: &Alloc, action: ActionName, reason: &str) -> Write {
        let subject = Subject::Alloc(alloc.id());
        Store::event_write(&Event::of_change(&subject, action, reason, self.now, self.keep.events))
    }

    /// Ends an alloc. If `may_hand_on`, the next job that fits its room starts there, in the same transaction.
    async fn end(&mut self, alloc: &Alloc, ending: &Ending, may_hand_on: bool) -> Result<(), WriteError> {
        let (ingest, keep, now) = (self.ingest, self.keep, self.now);
        let room = match may_hand_on {
            true => ingest.use_of_room(self.cached, &self.record, (alloc, ending), now).await,
            false => RoomUse::default(),
        };
        let next = room.next.as_ref().map(|next| NextPlaced {
            job: &next.job,
            output: self.cached.policy.output.s3.as_ref().map(|prefix| (prefix, &ingest.cluster)),
            needs_run: next.needs_run || ending.client() != ClientStatus::Complete,
        });
        let record = Some(&self.record);
        let end = |next| {
            let beside = EndExtras { conditions: &[], next };
            transactions::end_alloc(&ingest.store, record, alloc, ending, beside, keep, now)
        };
        let (after, next) = match end(next).await {
            // A row of the next job that cannot be read or written must not keep this alloc from its end.
            Err(WriteError::Db(error @ (DbError::Corrupt { .. } | DbError::Refused { .. }))) if next.is_some() => {
                tracing::warn!(%error, "the next job was not placed at an end");
                (end(None).await?, None)
            }
            written => (written?, next),
        };
        if let Some(record) = after {
            self.record = record;
        }
        self.room_is_wanted |= next.is_none() && room.is_wanted;
        self.handed_on.extend(next.map(|_| alloc.id()));
        Ok(())
    }

    /// After a lost race: checks again that the node may report, and reads the record and the alloc again.
    async fn again(&mut self, id: AllocId) -> Result<Result<Option<Alloc>, DbError>, HttpError> {
        self.record = self.ingest.qualified(self.node_id, self.proven, self.report).await?;
        Ok(self.ingest.store.alloc(id).await)
    }

    /// Ends as lost the live allocs that a complete report does not list, if the report is new enough to know of them.
    async fn absence(&mut self, report: &AllocReport) -> Result<(), HttpError> {
        let listed: BTreeSet<AllocId> = report.allocs.iter().map(|u| u.alloc_id).collect();
        let live = self.record.life().map(|l| l.allocs.clone()).unwrap_or_default();
        for id in live.iter().filter(|id| !listed.contains(id)) {
            if let Some(why) = self.absent(report, *id).await? {
                self.leave(*id, &why);
            }
        }
        Ok(())
    }

    /// Ends an alloc that a complete report does not list. Returns why it could not, if it is left to the next report.
    async fn absent(&mut self, report: &AllocReport, id: AllocId) -> Result<Option<String>, HttpError> {
        let mut read = self.ingest.store.alloc(id).await;
        for _ in 0..RACES {
            let row = match read {
                Ok(row) => row,
                // Without the row it is not known whether this alloc should be on the node.
                Err(unreadable) => return left_alone(unreadable.into()).map(Some),
            };
            let live = row.filter(|a| !a.summary.client.is_final() && a.summary.node_id == self.node_id);
            if live.as_ref().is_some_and(|alloc| report.as_of < alloc.summary.placed_seq) {
                return Ok(None);
            }
            let written = match live {
                Some(alloc) => self.lose(&alloc).await,
                None => self.forget(id).await,
            };
            match written {
                Ok(()) => return Ok(None),
                Err(e) if e.is_conflict() => {}
                Err(e) => return left_alone(e).map(Some),
            }
            read = self.again(id).await?;
        }
        Ok(Some(LOST_RACES.to_owned()))
    }

    /// Ends an alloc that is not on its node any more. If a row of its job cannot be read, the alloc becomes unknown, and
    /// poll-and-scale ends it later.
    async fn lose(&mut self, alloc: &Alloc) -> Result<(), WriteError> {
        let why = "it is no longer on its node: restarted or wiped";
        match (self.end(alloc, &Ending::lost(why), false).await, alloc.unknown(self.now)) {
            (Err(WriteError::Db(error @ DbError::Corrupt { .. })), Some(unknown)) => {
                let event = self.event(alloc, ActionName::UnknownAlloc, &format!("{why}; it cannot end: {error}"));
                self.ingest.store.transact(&[change(Some(alloc), &unknown).0, event]).await
            }
            (ended, _) => ended,
        }
    }

    /// Removes an alloc without a live row from the node's record. The tables were restored to different moments, and no end of
    /// the alloc will remove it.
    async fn forget(&mut self, id: AllocId) -> Result<(), WriteError> {
        let listed = self.record.life().is_some_and(|life| life.allocs.contains(&id));
        if let (true, Ok(after)) = (listed, self.record.without_alloc(id, self.now)) {
            self.record = self.ingest.store.write(Some(&self.record), &after, Vec::new()).await?;
        }
        Ok(())
    }

    /// Makes the node ready, if the report reaches the gate and all of it was taken; otherwise notes what was not. Returns whether
    /// the node became ready. The caller has already applied the whole report.
    async fn pass_gate(&mut self, report: &AllocReport) -> Result<bool, HttpError> {
        for _ in 0..RACES {
            let is_of = |c: &Contact| report.as_of >= c.gate_seq && c.incarnation == report.incarnation;
            if self.record.status() != Some(NodeStatus::Syncing) || !self.record.contact().is_some_and(is_of) {
                return Ok(false);
            }
            let after = match &self.untaken {
                // The node reports again after each heartbeat, and it is noted once that it does.
                Some(_) if self.record.has_untaken() => return Ok(false),
                Some(untaken) => self.record.with_untaken(untaken, self.now),
                // An error also where the node still lacks GPUs: while it is syncing, each heartbeat brings a complete report.
                None => self.record.open_gate(self.now),
            };
            let Ok(after) = after else { return Ok(false) };
            let written = self.ingest.store.write(Some(&self.record), &after, Vec::new()).await;
            if let Some(written) = unless_raced(written).map_err(internal)? {
                self.record = written;
                return Ok(self.untaken.is_none());
            }
            let record = self.ingest.store.node(self.node_id.slot()).await.map_err(internal)?;
            self.record = standing(record, self.node_id, self.proven)?;
        }
        Err(unwritten(WriteError::CONFLICT))
    }
}
