//! `POST …/handles`: a node's report of its handles, and the handles that the node is told to destroy
//! (`docs/rules.md#section-7`).
//!
//! Guarantees: a handle in a report is on the node; a handle that is not in a report counts as missing only if the
//! report is complete, of the current incarnation, and its `as_of` is at least the row's `seq`; a report that would take away
//! an unusual share of the handles takes none of them away, and an event says so; a report that repeats the settled one costs
//! one read and no write; a request writes a bounded number of rows, ends in time, and says what it left.
//! Does not: judge the rows; `judging` does, by the rule in `model::handle`.

use crate::Sweep;
use crate::batches::Batches;
use crate::judging::{HandleChanges, OfNode, judge, turn};
use crate::plan::is_over;
use model::handle::{Readiness, ReportRules, cache_name};
use model::wire::{
    ErrorCode, HandleReport, HandleReportAnswer, MAX_DIGEST_BYTES, MAX_HANDLES, ReportCounter, ReportedHandle,
};
use model::{
    ActionName, AllocId, AllocIds, AllocSummary, ClientStatus, Event, Handle, HandleKind, HandleState, NodeId,
    NodeRecord, NodeStatus, Policy, Reason, Span, Subject, Time,
};
use runtime::clock::RunClock;
use runtime::http::{
    Admitted, HttpError, ReportStamp, first_part, internal, policy_now, reporting, standing, unwritten,
};
use runtime::observation::RECENT;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use store::{DbError, Listed, Unreadable, WriteError};

/// The longest name of a handle, in bytes: DynamoDB's limit for a sort key.
const MAX_HANDLE_BYTES: usize = 1024;
/// What a person must correct, and what lasts until then, leaves at most one event in this time.
const A_DAY: Span = Span::from_s(86_400);

/// For how many labels of other nodes one report looks up whether that node's life is over. Later reports take other labels.
const MAX_OWNERS: usize = 20;

/// How many allocs of one node are read to learn which caches they name, or whether they are complete.
const MAX_ALLOCS: usize = 1000;

/// One report while it is applied.
struct Applying<'a> {
    sweep: &'a Sweep,
    policy: &'a Policy,
    report: &'a HandleReport,
    node_id: NodeId,
    record: NodeRecord,
    clock: RunClock,
    now: Time,
}

impl Sweep {
    pub(crate) async fn report(&self, event: &Value, clock: RunClock) -> Result<HandleReportAnswer, HttpError> {
        let now = clock.now();
        let Admitted { node_id, proven, request, .. } = self.admission.admit(event, now)?;
        let report: HandleReport = request.body()?;
        check(&report)?;
        let record = self.store.node(node_id.slot()).await.map_err(internal)?;
        let claim = ReportStamp {
            incarnation: &report.incarnation,
            as_of: report.as_of,
            report_no: report.report_no,
            counter: ReportCounter::Handles,
        };
        let record = reporting(standing(record, node_id, &proven)?, node_id, claim)?;
        let seq = record.life().map_or(0, |l| l.seq);
        let settled = format!("{seq}#{}", report.digest);
        let is_known = record.contact().and_then(|c| c.settled.as_deref()) == Some(settled.as_str());
        if is_known && report.complete && report.as_of >= seq {
            let answer = self.answer(self.report_s.load(Ordering::Relaxed), seq);
            return Ok(HandleReportAnswer { settled: Some(settled), ..answer });
        }
        let (policy, _) = policy_now(&self.store).await?;
        self.report_s.store(policy.sweep.report_s, Ordering::Relaxed);
        let applying = Applying { sweep: self, policy: &policy, report: &report, node_id, record, clock, now };
        applying.apply(&settled).await.map_err(unwritten)
    }

    fn answer(&self, report_s: i64, seq: u64) -> HandleReportAnswer {
        let next_report_s = report_s as f64 * self.store.rng().between(1.0, 1.5);
        let (destroy, more, conflicts, refused) = (Vec::new(), false, Vec::new(), false);
        HandleReportAnswer { seq, destroy, more, conflicts, refused, next_report_s, left: 0, settled: None }
    }
}

/// The data by which a report is judged.
struct Basis {
    /// The rows, without those that are left alone.
    rows: Vec<Handle>,
    unreadable: Vec<Unreadable>,
    /// The allocs whose containers are there.
    of_containers: BTreeSet<AllocId>,
    /// The entries of the report that are judged.
    handles: Vec<ReportedHandle>,
    node: OfNode,
    is_every_row_read: bool,
}

impl Applying<'_> {
    async fn apply(mut self, settled: &str) -> Result<HandleReportAnswer, WriteError> {
        let basis = self.read().await?;
        let rows = &basis.rows;
        let readiness =
            if self.record.status() == Some(NodeStatus::Ready) { Readiness::Ready } else { Readiness::NotReady };
        let mut changes =
            judge(rows, &basis.handles, self.report.complete, &basis.node, self.rules(readiness), self.now);
        self.record_conflicts(&changes.conflicts).await;
        self.record_unreadable(&basis.unreadable).await;
        self.record_stuck(rows, &changes.destroy).await;
        let is_refused = self.refuses(&mut changes, rows).await;
        // A report that is partial, or older than the record, must not become the settled one.
        let judges = self.report.complete && self.record.life().is_some_and(|l| self.report.as_of >= l.seq);
        let quiet =
            readiness == Readiness::Ready && judges && changes.is_quiet(rows) && basis.is_every_row_read && !is_refused;
        let settled = quiet.then_some(settled);
        if settled.is_some() || changes.writes() {
            self.note_number(settled).await?;
        }
        let left = self.write(&mut changes).await?;
        let destroy = self.in_order(std::mem::take(&mut changes.destroy), &basis).await?;
        let seq = self.record.life().map_or(0, |l| l.seq);
        let mut answer = self.sweep.answer(self.policy.sweep.report_s, seq);
        let most = self.policy.sweep.max_in_flight as usize;
        answer.destroy = first_part(turn(&destroy, self.report.report_no, most));
        answer.more = destroy.len() > answer.destroy.len();
        answer.conflicts = first_part(changes.conflicts);
        answer.refused = is_refused;
        answer.left = left;
        answer.settled = settled.map(str::to_owned);
        Ok(answer)
    }

    /// Reads the data by which the report is judged, and leaves out what cannot be judged.
    async fn read(&self) -> Result<Basis, WriteError> {
        let Listed { mut rows, unreadable } = self.sweep.store.handles_of(self.node_id).await?;
        let there = || rows.iter().filter(|row| row.state != HandleState::Gone);
        let of_containers =
            there().filter(|row| row.kind == HandleKind::Container).filter_map(|row| row.alloc_id).collect();
        // Rows that changed after the record was read are left to the next report: this record does not say which allocs ended.
        let seq = self.record.life().map_or(0, |l| l.seq);
        let mut aside = BTreeSet::new();
        rows.retain(|row| row.seq <= seq || !aside.insert(row.handle.clone()));
        // A handle whose row cannot be read must not count as one without a row. It is left alone.
        aside.extend(unreadable.iter().filter_map(|row| row.text("handle").map(str::to_owned)));
        let is_judged = |h: &&ReportedHandle| !aside.contains(h.handle.as_str());
        let mut handles: Vec<ReportedHandle> = self.report.handles.iter().filter(is_judged).cloned().collect();
        let over = self.labels_of_the_dead(&handles).await?;
        let allocs = self.record.life().map(|life| life.allocs.clone()).unwrap_or_default();
        let used_caches = self.used_caches(&handles, &rows, &allocs).await?;
        if used_caches.is_none() {
            // Any cache may be in use, so all are left alone.
            rows.retain(|row| cache_name(&row.handle).is_none());
            handles.retain(|handle| cache_name(&handle.handle).is_none());
        }
        let is_every_row_read = aside.is_empty() && used_caches.is_some();
        let used_caches = used_caches.unwrap_or_default();
        let complete = self.complete(&mut handles, &rows, &allocs).await?;
        let node = OfNode { node_id: self.node_id, over, allocs, used_caches, complete };
        Ok(Basis { rows, unreadable, of_containers, handles, node, is_every_row_read })
    }

    /// The complete allocs of this node whose containers are listed and have no row, and when they ended. A report looks at
    /// [`MAX_ALLOCS`] of them. Later reports look at the rest, when the first ones are gone or have rows.
    async fn complete(
        &self,
        handles: &mut Vec<ReportedHandle>,
        rows: &[Handle],
        live: &AllocIds,
    ) -> Result<BTreeMap<AllocId, Time>, WriteError> {
        let known: BTreeSet<&str> = rows.iter().map(|row| row.handle.as_str()).collect();
        let id = |handle: &ReportedHandle| handle.handle.parse().ok().filter(|id| !live.contains(id));
        let mut asked: BTreeSet<AllocId> = BTreeSet::new();
        handles.retain(|handle| match id(handle).filter(|_| !known.contains(handle.handle.as_str())) {
            Some(_) if asked.len() >= MAX_ALLOCS => false,
            Some(id) => asked.insert(id),
            None => true,
        });
        let read = self.sweep.store.allocs_listed(asked).await?.rows.into_iter();
        let is_complete = |of: &AllocSummary| of.client == ClientStatus::Complete && of.node_id == self.node_id;
        let complete = read.filter(|alloc| is_complete(&alloc.summary));
        Ok(complete.filter_map(|alloc| Some((alloc.id(), alloc.finished_at?))).collect())
    }

    /// Writes the changes, and adds the marked handles to those that the node must destroy. Returns how many rows are left to the
    /// next report.
    async fn write(&mut self, changes: &mut HandleChanges<'_>) -> Result<u64, WriteError> {
        let mut batches = Batches::new(&self.sweep.store, self.record.clone(), self.clock, self.policy, self.now);
        let dropped = batches.write(changes).await?;
        if !dropped.is_empty() {
            let reason = Reason::MissingTooLong { handles: dropped.len(), shown: some_of(&dropped) };
            self.record_event(ActionName::ForgetHandle, &reason).await;
        }
        let marked = batches.mark(&changes.twice_unknown).await?;
        if !marked.is_empty() {
            let reason = Reason::UnknownAgain { handles: marked.len(), shown: some_of(&marked) };
            self.record_event(ActionName::MarkDestroying, &reason).await;
        }
        changes.destroy.extend(marked);
        let left = batches.left;
        self.record = batches.record;
        Ok(left)
    }

    /// The caches that live allocs of the node name; `None` if the row of an alloc cannot be read.
    /// Allocs are read only if the report lists a cache whose row does not say that it is in use.
    async fn used_caches(
        &self,
        handles: &[ReportedHandle],
        rows: &[Handle],
        allocs: &AllocIds,
    ) -> Result<Option<BTreeSet<String>>, WriteError> {
        let is_in_use = |row: &&Handle| matches!(row.state, HandleState::Creating | HandleState::Live);
        let in_use: BTreeSet<&str> = rows.iter().filter(is_in_use).map(|row| row.handle.as_str()).collect();
        let mut caches = handles.iter().filter(|h| cache_name(&h.handle).is_some());
        if caches.all(|h| in_use.contains(h.handle.as_str())) {
            return Ok(Some(BTreeSet::new()));
        }
        self.caches_of(allocs.iter().copied()).await
    }

    async fn caches_of(&self, allocs: impl Iterator<Item = AllocId>) -> Result<Option<BTreeSet<String>>, WriteError> {
        let allocs = self.sweep.store.allocs_listed(allocs.take(MAX_ALLOCS)).await?;
        let named = || allocs.rows.iter().flat_map(|alloc| alloc.work.caches.iter().cloned()).collect();
        Ok(allocs.unreadable.is_empty().then(named))
    }

    /// The handles that may be destroyed now. A cache waits for the containers of the allocs that name it. If the row of one of these
    /// allocs cannot be read, all caches wait.
    async fn in_order(&self, mut destroy: BTreeSet<String>, basis: &Basis) -> Result<BTreeSet<String>, WriteError> {
        if destroy.iter().any(|handle| cache_name(handle).is_some()) {
            let used = self.caches_of(basis.of_containers.iter().copied()).await?;
            let may_go = |cache: &str| used.as_ref().is_some_and(|used| !used.contains(cache));
            destroy.retain(|handle| cache_name(handle).is_none_or(may_go));
        }
        Ok(destroy)
    }

    /// The labels in the report of other nodes whose lives are certainly over. No other node will destroy their handles.
    async fn labels_of_the_dead(&self, handles: &[ReportedHandle]) -> Result<BTreeSet<String>, WriteError> {
        let labels = handles.iter().filter_map(|h| h.label.as_deref()?.parse::<NodeId>().ok());
        let others: BTreeSet<NodeId> = labels.filter(|node_id| *node_id != self.node_id).collect();
        let mut over = BTreeSet::new();
        // The first labels, if their nodes live, do not hide the rest.
        for node_id in turn(&others, self.report.report_no, MAX_OWNERS) {
            match self.sweep.store.node(node_id.slot()).await {
                Ok(record) => over.extend(record.filter(|r| is_over(r, node_id)).map(|_| node_id.to_string())),
                // The life counts as not over, because the record cannot be read.
                Err(error @ DbError::Corrupt { .. }) => tracing::warn!(%error, "the label of a node is not judged"),
                Err(other) => return Err(other.into()),
            }
        }
        Ok(over)
    }

    /// Writes one event a day about the handles that carry the label of another node.
    async fn record_conflicts(&self, conflicts: &[String]) {
        if conflicts.is_empty() {
            return;
        }
        self.warn_daily(&Reason::ForeignHandles { handles: conflicts.len(), shown: some_of(conflicts) }).await;
    }

    /// Writes one event a day about the handles that the node should have destroyed long ago.
    async fn record_stuck(&self, rows: &[Handle], to_destroy: &BTreeSet<String>) {
        let stuck = rows.iter().filter(|row| row.is_stuck(self.now) && to_destroy.contains(&row.handle));
        let stuck: Vec<String> = stuck.map(|row| row.handle.clone()).collect();
        if stuck.is_empty() {
            return;
        }
        let mut reported = self.report.handles.iter().filter(|h| stuck.contains(&h.handle));
        let why =
            reported.find_map(|h| h.stays.as_deref()).unwrap_or("it gives no reason, or is still destroying them");
        let (handles, shown, why) = (stuck.len(), some_of(&stuck), model::short_reason(why));
        self.warn_daily(&Reason::HandlesStay { handles, shown, why }).await;
    }

    /// Writes one event a day about the first row that cannot be read. The next one follows when this one was corrected.
    async fn record_unreadable(&self, unreadable: &[Unreadable]) {
        if let Some(first) = unreadable.first() {
            self.warn_daily(&Reason::RowInvalid { what: first.to_string() }).await;
        }
    }

    async fn warn_daily(&self, reason: &Reason) {
        self.warn_each(A_DAY, &Subject::Slot(self.node_id.slot()), reason).await;
    }

    /// Writes a warning, at most one in this time.
    async fn warn_each(&self, span: Span, subject: &Subject, reason: &Reason) {
        tracing::warn!(node_id = %self.node_id, "{reason}");
        let (keep, key, text) = (self.policy.history.keep_events(), reason.key(), reason.to_string());
        let event = Event::once_in(span, subject, ActionName::Warn, (&key, &text), self.now, keep);
        self.sweep.store.record_event(&event).await;
    }

    fn rules(&self, readiness: Readiness) -> ReportRules {
        let policy = &self.policy.sweep;
        ReportRules {
            readiness,
            report_no: self.report.report_no,
            is_repeat: self.record.contact().is_some_and(|c| c.handle_report_no == self.report.report_no),
            as_of: self.report.as_of,
            seq: self.record.life().map_or(0, |l| l.seq),
            report: Span::from_s(policy.report_s),
            missing_grace: Span::from_s(policy.missing_grace_s),
            cache_unused: Span::from_s(policy.cache_unused_s),
        }
    }

    /// Writes the number of the report before any change: from here on, an older report is stale. An equal number is a repeat:
    /// its changes were made before, or are made now. A conflict if a report with a higher number came in between.
    async fn note_number(&self, settled: Option<&str>) -> Result<(), WriteError> {
        let (store, report) = (&self.sweep.store, self.report);
        let counter = ReportCounter::Handles;
        let noted = store.note_report(self.node_id, &report.incarnation, counter, report.report_no, settled).await;
        let Err(WriteError::Conflict(_)) = noted else { return noted };
        let stored = store.node(self.record.slot).await?.filter(|r| r.node_id() == Some(self.node_id));
        let repeats = stored
            .as_ref()
            .and_then(NodeRecord::contact)
            .is_some_and(|c| c.incarnation == report.incarnation && c.handle_report_no == report.report_no);
        if repeats { Ok(()) } else { Err(WriteError::CONFLICT) }
    }

    /// Refuses to destroy handles as unknown, or to drop them as missing, if they are an unusual share of all handles of the node: the
    /// report or the table is then probably wrong. Returns whether it refuses. The caller must not settle a refused report.
    async fn refuses(&self, changes: &mut HandleChanges<'_>, rows: &[Handle]) -> bool {
        let policy = &self.policy.sweep;
        // Handles that are being destroyed must not make the share of the others smaller.
        let is_there = |r: &&Handle| !matches!(r.state, HandleState::Gone | HandleState::Destroying);
        let (unusual, all) =
            (changes.twice_unknown.len() + changes.dropped.len(), rows.iter().filter(is_there).count());
        if unusual <= policy.cap_min as usize || unusual as f64 <= policy.cap_fraction * all as f64 {
            return false;
        }
        changes.twice_unknown.clear();
        changes.dropped.clear();
        // The signs show the warnings of the cluster for an hour.
        self.warn_each(RECENT, &Subject::Cluster, &Reason::ManyHandles { node_id: self.node_id, unusual, all }).await;
        true
    }

    async fn record_event(&self, action: ActionName, reason: &Reason) {
        let (store, keep) = (&self.sweep.store, self.policy.history.keep_events());
        let subject = Subject::Slot(self.node_id.slot());
        store.record_event(&Event::new(&subject, action, &reason.to_string(), self.now, keep, store.rng())).await;
    }
}

/// The first few of these names, for people.
fn some_of(names: &[String]) -> String {
    names.iter().take(5).cloned().collect::<Vec<_>>().join(", ")
}

/// Refuses too many handles, names that no row can have, and an impossible digest.
fn check(report: &HandleReport) -> Result<(), HttpError> {
    let is_name = |name: &String| (1..=MAX_HANDLE_BYTES).contains(&name.len());
    let digest = &report.digest;
    let is_digest = (1..=MAX_DIGEST_BYTES).contains(&digest.len()) && digest.bytes().all(|b| b.is_ascii_alphanumeric());
    let message = if report.handles.len() > MAX_HANDLES {
        format!(
            "at most {MAX_HANDLES} handles are allowed: report the others in the next reports, with complete: false"
        )
    } else if !report.handles.iter().all(|h| is_name(&h.handle) && h.label.as_ref().is_none_or(is_name)) {
        format!("the name and the label of a handle must have 1 to {MAX_HANDLE_BYTES} bytes")
    } else if !is_digest {
        format!("digest must have 1 to {MAX_DIGEST_BYTES} letters and digits")
    } else {
        return Ok(());
    };
    Err(HttpError::new(ErrorCode::BadRequest, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_handles_than_a_report_may_have_are_refused() {
        let handle = |n: usize| ReportedHandle {
            handle: format!("h{n}"),
            kind: HandleKind::Container,
            label: None,
            stays: None,
        };
        let report = |handles: usize| HandleReport {
            incarnation: "inc".into(),
            report_no: 1,
            as_of: 1,
            complete: true,
            digest: "d".into(),
            handles: (0..handles).map(handle).collect(),
        };
        assert!(check(&report(MAX_HANDLES)).is_ok());
        assert_eq!(check(&report(MAX_HANDLES + 1)).unwrap_err().code, ErrorCode::BadRequest);
    }
}
