//! `POST …/handles`: a node's report of its handles, and the handles that the node is told to destroy
//! (`docs/rules.md#section-7`).
//!
//! Guarantees: a handle in a report is on the node; a handle that is not in a report counts as missing only if the
//! report is complete, of the current incarnation, and its `as_of` is at least the row's `seq`; if a
//! report would take away an unusual share of the handles, these wait for an operator; a report that repeats the settled
//! one costs one read and no write; a request reads and writes a bounded number of rows, ends in time, and says what it
//! left.
//! Does not: judge the rows; `changes` does, by the rule in `model::handle`.

use crate::Sweep;
use crate::batches::Batches;
use crate::judging::{HandleChanges, OfNode, judge, turn, without_parents};
use crate::plan::is_over;
use model::brake::{Brake, Incident, Threshold};
use model::control::{BrakeEntry, ControlKey, Release};
use model::events::{Event, Subject};
use model::functions::SWEEP_DISPATCH;
use model::handle::{Readiness, ReportRules, cache_name};
use model::ids::{AllocId, NodeId};
use model::policy::Policy;
use model::reason::Reason;
use model::time::{Span, Time};
use model::wire::{
    ErrorCode, HandleReport, HandleReportAnswer, MAX_DIGEST_BYTES, MAX_HANDLES, ReportCounter, ReportedHandle,
};
use model::{
    ActionName, AllocIds, AllocSummary, BrakeKind, ClientStatus, Handle, HandleKind, HandleState, NodeRecord,
    NodeStatus,
};
use runtime::clock::RunClock;
use runtime::http::{Claim, HttpError, Request, first_part, report_of, reporting, standing, too_often};
use runtime::validation::A_DAY;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use store::{DbError, Listed, Unreadable, WriteError, unless_raced};

/// The longest name of a handle, in bytes: DynamoDB's limit for a sort key.
const MAX_HANDLE_BYTES: usize = 1024;

/// The most rows of a node that one request reads. The handles behind them wait until rows have gone.
const MAX_ROWS: usize = 10_000;

/// For how many labels of other nodes one report looks up whether that node's life is over. Later reports take other labels.
const MAX_OWNERS: usize = 20;

/// How many allocs of one node are read to learn which caches they name, or whether they are complete.
const MAX_ALLOCS: usize = 1000;

/// How often a report tries to change the entry of a brake before it leaves that to the next report.
const RACES: usize = 5;

/// One report while it is applied.
struct Applying<'a> {
    sweep: &'a Sweep,
    policy: &'a Policy,
    report: &'a HandleReport,
    /// The names in the entries that were left out. These handles are on the node, so they are not missing.
    skipped: BTreeSet<String>,
    node_id: NodeId,
    record: NodeRecord,
    clock: RunClock,
    now: Time,
}

impl Sweep {
    pub(crate) async fn report(&self, request: &Request, clock: RunClock) -> Result<HandleReportAnswer, HttpError> {
        let now = clock.now();
        let (node_id, _) = request.route(SWEEP_DISPATCH.routes)?;
        let proven = self.credentials.check(request, &self.cluster, node_id)?;
        if !self.rate.allows(node_id, now) {
            return Err(too_often(node_id));
        }
        let (mut report, bad) = report_of::<HandleReport, ReportedHandle>(request, "handles")?;
        let mut skipped: BTreeSet<String> =
            bad.iter().filter_map(|entry| entry.get("handle")?.as_str().map(str::to_owned)).collect();
        let fits = |text: &Option<String>| text.as_ref().is_none_or(|text| text.len() <= MAX_HANDLE_BYTES);
        let is_possible =
            |h: &ReportedHandle| (1..=MAX_HANDLE_BYTES).contains(&h.handle.len()) && fits(&h.parent) && fits(&h.label);
        skipped.extend(report.handles.extract_if(.., |h| !is_possible(h)).map(|h| h.handle));
        if !bad.is_empty() || !skipped.is_empty() {
            let (bad, left_out) = (bad.len(), skipped.len());
            tracing::warn!(%node_id, bad, left_out, "entries of a report are invalid, and are left out");
        }
        check(&report)?;
        let record = self.store.node(node_id.slot()).await.map_err(|e| failed(e.into()))?;
        let claim = Claim {
            incarnation: &report.incarnation,
            as_of: report.as_of,
            report_no: report.report_no,
            counter: ReportCounter::Handles,
        };
        let record = reporting(standing(record, node_id, &proven)?, node_id, claim)?;
        let seq = record.life().map_or(0, |l| l.seq);
        let settled =
            format!("{seq}#{}", report.digest.clone().unwrap_or_else(|| crate::judging::digest(&report.handles)));
        let known = record.contact().and_then(|c| c.settled.as_deref()) == Some(settled.as_str());
        if known && skipped.is_empty() && report.complete && report.as_of >= seq {
            let answer = self.answer(self.report_s.load(Ordering::Relaxed), seq);
            return Ok(HandleReportAnswer { settled: Some(settled), ..answer });
        }
        let control = self.store.ingest_control().await.map_err(|e| failed(e.into()))?;
        let (policy, _) = control.checked_policy().map_err(|e| HttpError::new(ErrorCode::Busy, e.to_string()))?;
        self.report_s.store(policy.sweep.report_s, Ordering::Relaxed);
        let applying = Applying { sweep: self, policy: &policy, report: &report, skipped, node_id, record, clock, now };
        applying.apply(&settled).await.map_err(failed)
    }

    fn answer(&self, report_s: i64, seq: u64) -> HandleReportAnswer {
        let next_report_s = report_s as f64 * self.store.rng().between(1.0, 1.5);
        let (destroy, more, conflicts, braked) = (Vec::new(), false, Vec::new(), false);
        HandleReportAnswer { seq, destroy, more, conflicts, braked, next_report_s, left: 0, settled: None }
    }
}

/// The data by which a report is judged.
struct Basis {
    /// The rows, without those that are left alone.
    rows: Vec<Handle>,
    unreadable: Vec<Unreadable>,
    /// The last handle that was read, if the node has more rows than one request reads.
    cut: Option<String>,
    /// Each handle with a parent, and this parent.
    parents: BTreeMap<String, String>,
    /// The allocs whose containers are there.
    of_containers: BTreeSet<AllocId>,
    /// The entries of the report that are judged.
    handles: Vec<ReportedHandle>,
    /// The labels of other nodes whose lives are over.
    over: BTreeSet<String>,
    allocs: AllocIds,
    used_caches: BTreeSet<String>,
    complete: BTreeMap<AllocId, Time>,
    is_every_row_read: bool,
}

impl Applying<'_> {
    async fn apply(mut self, settled: &str) -> Result<HandleReportAnswer, WriteError> {
        let basis = self.read().await?;
        let rows = &basis.rows;
        let Basis { over, allocs, used_caches, complete, .. } = &basis;
        let node = OfNode { node_id: self.node_id, over, allocs, used_caches, complete };
        let readiness =
            if self.record.status() == Some(NodeStatus::Ready) { Readiness::Ready } else { Readiness::NotReady };
        let mut changes = judge(rows, &basis.handles, self.report.complete, &node, self.rules(readiness), self.now);
        self.record_conflicts(&changes.conflicts).await;
        self.record_unreadable(&basis.unreadable).await;
        self.record_stuck(rows, &changes.destroy).await;
        let (is_held, release) = self.brake(&mut changes, rows, readiness, basis.cut.as_deref()).await?;
        // A report that is partial, or older than the record, must not become the settled one.
        let judges = self.report.complete && self.record.life().is_some_and(|l| self.report.as_of >= l.seq);
        let quiet = readiness == Readiness::Ready
            && judges
            && changes.is_quiet(rows)
            && self.skipped.is_empty()
            && basis.is_every_row_read
            && basis.cut.is_none()
            && !is_held;
        let settled = quiet.then_some(settled);
        if settled.is_some() || changes.writes() {
            self.note_number(settled).await?;
        }
        let left = self.write(&mut changes).await?;
        if let Some((before, after)) = release.filter(|_| left == 0) {
            unless_raced(self.sweep.store.write_entry(&before, &after).await)?;
        }
        let destroy = self.in_order(std::mem::take(&mut changes.destroy), &basis).await?;
        let seq = self.record.life().map_or(0, |l| l.seq);
        let mut answer = self.sweep.answer(self.policy.sweep.report_s, seq);
        let most = self.policy.sweep.max_in_flight as usize;
        answer.destroy = first_part(turn(&destroy, self.report.report_no, most));
        answer.more = destroy.len() > answer.destroy.len();
        answer.conflicts = first_part(changes.conflicts);
        answer.braked = is_held;
        answer.left = left;
        answer.settled = settled.map(str::to_owned);
        Ok(answer)
    }

    /// Reads the data by which the report is judged, and leaves out what cannot be judged.
    async fn read(&self) -> Result<Basis, WriteError> {
        let (Listed { mut rows, unreadable }, cut) = self.sweep.store.first_handles(self.node_id, MAX_ROWS).await?;
        let there = || rows.iter().filter(|row| row.state != HandleState::Gone);
        let parents = there().filter_map(|row| Some((row.handle.clone(), row.parent.clone()?))).collect();
        let of_containers =
            there().filter(|row| row.kind == HandleKind::Container).filter_map(|row| row.alloc_id).collect();
        rows.retain(|row| !self.skipped.contains(&row.handle));
        // Rows that changed after the record was read are left to the next report: this record does not say which allocs ended.
        let seq = self.record.life().map_or(0, |l| l.seq);
        let mut aside = BTreeSet::new();
        rows.retain(|row| row.seq <= seq || !aside.insert(row.handle.clone()));
        // A handle whose row cannot be read must not count as one without a row. It is left alone.
        aside.extend(unreadable.iter().filter_map(|row| row.text("handle").map(str::to_owned)));
        let is_looked_at = |h: &&ReportedHandle| {
            !aside.contains(h.handle.as_str()) && cut.as_deref().is_none_or(|cut| h.handle.as_str() <= cut)
        };
        let mut handles: Vec<ReportedHandle> = self.report.handles.iter().filter(is_looked_at).cloned().collect();
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
        Ok(Basis {
            rows,
            unreadable,
            cut,
            parents,
            of_containers,
            handles,
            over,
            allocs,
            used_caches,
            complete,
            is_every_row_read,
        })
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

    /// Writes what the changes says, and adds the marked handles to those that the node is told to destroy. Returns how many rows
    /// are left to the next report.
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
        let left = batches.left();
        self.record = batches.record();
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

    /// The handles that may be destroyed now. A parent waits for its children, and a cache waits for the containers of the
    /// allocs that name it. If not every row could be read, all volumes wait.
    async fn in_order(&self, mut destroy: BTreeSet<String>, basis: &Basis) -> Result<BTreeSet<String>, WriteError> {
        let volumes = basis.rows.iter().filter(|row| row.kind == HandleKind::Volume && destroy.contains(&row.handle));
        let volumes: BTreeSet<&str> = volumes.map(|row| row.handle.as_str()).collect();
        if volumes.is_empty() {
            return Ok(destroy);
        }
        if basis.cut.is_some() {
            destroy.retain(|handle| !volumes.contains(handle.as_str()));
            return Ok(destroy);
        }
        let caches = self.caches_of(basis.of_containers.iter().copied()).await?;
        if caches.is_none() {
            destroy.retain(|handle| cache_name(handle).is_none());
        }
        Ok(without_parents(destroy, &basis.parents, &caches.unwrap_or_default()))
    }

    /// The labels in the report of other nodes whose lives are certainly over. No other node will destroy their handles.
    async fn labels_of_the_dead(&self, handles: &[ReportedHandle]) -> Result<BTreeSet<String>, WriteError> {
        let labels: BTreeSet<&str> = handles.iter().filter_map(|h| h.label.as_deref()).collect();
        let own = self.node_id.to_string();
        let others = labels.into_iter().filter(|label| *label != own).filter_map(|label| label.parse::<NodeId>().ok());
        let others: Vec<NodeId> = others.collect();
        // Each report begins with other labels: otherwise the first labels, if their nodes live, would hide the rest.
        let turn = usize::try_from(self.report.report_no).unwrap_or(0).wrapping_mul(MAX_OWNERS);
        let first = turn.checked_rem(others.len()).unwrap_or(0);
        let mut over = BTreeSet::new();
        for node_id in others.iter().cycle().skip(first).take(MAX_OWNERS.min(others.len())) {
            match self.sweep.store.node(node_id.slot()).await {
                Ok(record) => over.extend(record.filter(|r| is_over(r, *node_id)).map(|_| node_id.to_string())),
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
        tracing::warn!(node_id = %self.node_id, "{reason}");
        let (subject, keep) = (Subject::Slot(self.node_id.slot()), self.policy.history.keep_events());
        let (key, text) = (reason.key(), reason.to_string());
        let event = Event::once_in(A_DAY, &subject, ActionName::Warn, (&key, &text), self.now, keep);
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

    /// The brake `handles`: handles that the report would destroy as unknown, or drop as missing, wait for an operator if they
    /// are an unusual share of all handles of the node. Returns whether some wait or the brake's entry could not be written:
    /// then this report must not become the settled one. Also returns the release that this report uses up, before and after.
    ///
    /// Only a complete report of a ready node shows that it holds nothing unusual any more.
    async fn brake(
        &self,
        changes: &mut HandleChanges<'_>,
        rows: &[Handle],
        readiness: Readiness,
        cut: Option<&str>,
    ) -> Result<(bool, Option<(Release, Release)>), WriteError> {
        let (store, policy) = (&self.sweep.store, &self.policy.sweep);
        let unusual = changes.twice_unknown.iter().chain(&changes.dropped);
        let ids: Vec<String> = unusual.map(|row| row.handle.clone()).collect();
        // Handles that are being destroyed must not make the share of the others smaller.
        let is_there = |r: &&Handle| !matches!(r.state, HandleState::Gone | HandleState::Destroying);
        let all = rows.iter().filter(is_there).count();
        let threshold = Threshold { number: policy.cap_min.into(), share: policy.cap_fraction };
        let kind = BrakeKind::Handles;
        let source = self.node_id.to_string();
        let judges = self.report.complete && readiness == Readiness::Ready;
        if ids.is_empty() && !judges {
            return Ok((false, None));
        }
        let is_not_judged =
            |id: &str| (!judges && !ids.iter().any(|unusual| unusual == id)) || cut.is_some_and(|cut| id > cut);
        let why = Reason::ManyHandles { node_id: self.node_id, unusual: ids.len(), all };
        // The entry is one row for all nodes, so the reports of several nodes may change it at the same time.
        for _ in 0..RACES {
            let entry: BrakeEntry = store.entry(&ControlKey::Brake(kind)).await?;
            let release: Release = store.entry(&ControlKey::Release(kind)).await?;
            let brake = Brake::new(kind, &source, entry, release, self.now).without_judging(is_not_judged);
            let decision = brake
                .is_unusual(ids.len(), all, threshold)
                .then(|| brake.decide(Incident { hold: None, ids: ids.clone(), not_before: None, why: why.clone() }));
            let change = decision.as_ref().map_or_else(|| brake.calm(), |decision| decision.change.clone());
            if let Some((before, after)) = &change.entry
                && unless_raced(store.write_entry(before, after).await)?.is_none()
            {
                continue;
            }
            let Some(decision) = decision else { return Ok((false, change.release)) };
            if decision.news {
                self.record_event(ActionName::HoldBack, &decision.reason).await;
            }
            changes.twice_unknown.retain(|row| decision.permit.frees(&row.handle));
            changes.dropped.retain(|row| decision.permit.frees(&row.handle));
            let left = changes.twice_unknown.len() + changes.dropped.len();
            return Ok((left < ids.len(), change.release));
        }
        changes.twice_unknown.clear();
        changes.dropped.clear();
        Ok((true, None))
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

/// Refuses too many handles, and an impossible digest.
fn check(report: &HandleReport) -> Result<(), HttpError> {
    let bad = |message: String| Err(HttpError::new(ErrorCode::BadRequest, message));
    if report.handles.len() > MAX_HANDLES {
        return bad(format!(
            "at most {MAX_HANDLES} handles are allowed: report the others in the next reports, with complete: false"
        ));
    }
    let is_plain = |digest: &String| {
        (1..=MAX_DIGEST_BYTES).contains(&digest.len()) && digest.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    match &report.digest {
        Some(digest) if !is_plain(digest) => {
            bad(format!("digest must have 1 to {MAX_DIGEST_BYTES} letters and digits"))
        }
        _ => Ok(()),
    }
}

fn failed(error: WriteError) -> HttpError {
    tracing::error!(%error, "a report failed");
    HttpError::new(ErrorCode::Busy, "the report could not be applied: try again")
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
            parent: None,
            stays: None,
        };
        let report = |handles: usize| HandleReport {
            incarnation: "inc".into(),
            report_no: 1,
            as_of: 1,
            complete: true,
            digest: None,
            handles: (0..handles).map(handle).collect(),
        };
        assert!(check(&report(MAX_HANDLES)).is_ok());
        assert_eq!(check(&report(MAX_HANDLES + 1)).unwrap_err().code, ErrorCode::BadRequest);
    }
}
