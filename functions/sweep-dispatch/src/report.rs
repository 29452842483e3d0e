//! `POST …/handles`: a node's report of its handles, and the handles that the node is told to destroy
//! (`docs/rules.md#section-7`).
//!
//! Guarantees: a handle in a report is on the node; a handle that is not in a report counts as missing only if the
//! report is complete, of the current incarnation, and its `as_of` is at least the row's `seq`; if a report would take
//! away an unusual share of the handles, these wait for an operator; a report that repeats the settled one costs one
//! read and no write.
//! Does not: contain the rule for one handle; `model::handle` does.

use crate::Sweep;
use crate::act::mark;
use crate::plan::{A_DAY, is_over};
use model::auth::hex;
use model::brake::{Brake, Trouble, Unbraked};
use model::control::{BrakeEntry, ControlKey, Release};
use model::events::{Event, Subject};
use model::functions::SWEEP_DISPATCH;
use model::handle::{Judgement, Readiness, ReportRules, Sighting};
use model::ids::NodeId;
use model::policy::Policy;
use model::reason::Reason;
use model::time::{Span, Time};
use model::wire::{ErrorCode, HandleReport, HandleReportAnswer, ReportCounter, ReportedHandle};
use model::{ActionName, BrakeKind, Handle, HandleState, NodeRecord, NodeStatus};
use runtime::http::{Claim, Refusal, Request, report_of, reporting, standing, too_often};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use store::{Listed, WriteError, change_handle, insert_handle, unchanged};

/// The longest name of a handle, in bytes: DynamoDB's limit for a sort key.
const MAX_HANDLE_BYTES: usize = 1024;

/// The most handles without a row that one report adds. Each costs a transaction. The next report adds the next ones.
const MAX_ADDED: usize = 200;

/// Of how many other nodes one report asks whether they are no more. The next handles wait until these are gone.
const MAX_OWNERS: usize = 20;

/// How often the entry of a brake is read and written before the report leaves it to the next one.
const RACES: usize = 5;

/// What a report changes, row by row.
#[derive(Default)]
struct Verdict<'a> {
    /// Rows that change: each as read, and as it is written.
    changed: Vec<(&'a Handle, Handle)>,
    /// Handles that are destroyed: their rows become tombstones.
    gone: Vec<&'a Handle>,
    /// Handles that were missing for too long: their rows become tombstones, with an event.
    dropped: Vec<&'a Handle>,
    /// Handles with this node's label and without a row.
    new_unknown: Vec<&'a ReportedHandle>,
    /// Handles that two reports listed as unknown: they are marked.
    twice_unknown: Vec<&'a Handle>,
    /// Handles that were destroyed and are listed again: they are marked.
    back: Vec<&'a Handle>,
    /// Handles that are marked and still listed: the node is told to destroy them.
    destroy: BTreeSet<String>,
    /// Handles with the label of another node: the answer names them, and nobody destroys them.
    conflicts: Vec<String>,
    /// Whether a handle is missing and its missing time does not grow now, because an operator keeps it, for instance.
    /// The time starts when the operator stops keeping it, and that does not raise `seq`. So this report must not become
    /// the settled one.
    still_missing: bool,
}

/// One report while it is applied.
struct Applying<'a> {
    sweep: &'a Sweep,
    policy: &'a Policy,
    report: &'a HandleReport,
    /// The names in entries that were left out. They are on the node, so they are not missing.
    skipped: BTreeSet<String>,
    node_id: NodeId,
    record: NodeRecord,
    now: Time,
}

impl Sweep {
    pub(crate) async fn report(&self, request: &Request, now: Time) -> Result<HandleReportAnswer, Refusal> {
        let (node_id, _) = request.route(SWEEP_DISPATCH.routes)?;
        let proven = self.credentials.check(request, &self.cluster, node_id, now).await?;
        if !self.rate.allows(node_id, now) {
            return Err(too_often(node_id));
        }
        let (mut report, bad) = report_of::<HandleReport, ReportedHandle>(request, "handles")?;
        let mut skipped: BTreeSet<String> =
            bad.iter().filter_map(|entry| entry.get("handle")?.as_str().map(str::to_owned)).collect();
        let is_possible = |h: &ReportedHandle| (1..=MAX_HANDLE_BYTES).contains(&h.handle.len());
        skipped.extend(report.handles.extract_if(.., |h| !is_possible(h)).map(|h| h.handle));
        if !bad.is_empty() || !skipped.is_empty() {
            let (bad, left_out) = (bad.len(), skipped.len());
            tracing::warn!(%node_id, bad, left_out, "entries of a report are not possible: they are left out");
        }
        let record = self.store.node(node_id.slot()).await.map_err(|e| failed(e.into()))?;
        let claim = Claim {
            incarnation: &report.incarnation,
            as_of: report.as_of,
            report_no: report.report_no,
            counter: ReportCounter::Handles,
        };
        let record = reporting(standing(record, node_id, &proven)?, node_id, claim)?;
        let seq = record.life().map_or(0, |l| l.seq);
        let settled = format!("{seq}#{}", digest(&report.handles));
        let known = record.contact().and_then(|c| c.settled.as_deref()) == Some(settled.as_str());
        if known && skipped.is_empty() && report.complete && report.as_of >= seq {
            return Ok(self.answer(self.report_s.load(Ordering::Relaxed), seq));
        }
        let control = self.store.ingest_control().await.map_err(|e| failed(e.into()))?;
        let (policy, _) = control.checked_policy().map_err(|e| Refusal::new(ErrorCode::Busy, e.to_string()))?;
        self.report_s.store(policy.sweep.report_s, Ordering::Relaxed);
        let applying = Applying { sweep: self, policy: &policy, report: &report, skipped, node_id, record, now };
        applying.apply(&settled).await.map_err(failed)
    }

    fn answer(&self, report_s: i64, seq: u64) -> HandleReportAnswer {
        let next_report_s = report_s as f64 * self.store.chance().between(1.0, 1.5);
        let (destroy, conflicts) = (Vec::new(), Vec::new());
        HandleReportAnswer { seq, destroy, more: false, conflicts, held: false, next_report_s }
    }
}

impl Applying<'_> {
    async fn apply(mut self, settled: &str) -> Result<HandleReportAnswer, WriteError> {
        let Listed { mut rows, unreadable } = self.sweep.store.handles_of(self.node_id).await?;
        rows.retain(|row| !self.skipped.contains(&row.handle));
        let readiness =
            if self.record.status() == Some(NodeStatus::Ready) { Readiness::Ready } else { Readiness::NotReady };
        let over = self.labels_of_the_dead().await?;
        // (A handle whose row cannot be read seems to have none. It is not added, because its row is there.)
        let mut verdict = judge(&rows, self.report, self.node_id, &over, self.rules(readiness), self.now);
        self.tell_conflicts(&verdict.conflicts).await;
        let (is_held, release) = self.brake(&mut verdict, &rows).await?;
        // A report that is partial, or older than the record, must not become the settled one.
        let judges = self.report.complete && self.record.life().is_some_and(|l| self.report.as_of >= l.seq);
        let quiet = readiness == Readiness::Ready
            && judges
            && verdict.is_quiet(&rows)
            && self.skipped.is_empty()
            && unreadable.is_empty()
            && !is_held;
        self.note_number(quiet.then_some(settled)).await?;
        self.write_rows(&verdict).await?;
        self.mark_rows(&mut verdict).await?;
        if let Some((before, after)) = release {
            ignore_race(self.sweep.store.write_entry(&before, &after).await.map(drop))?;
        }
        let seq = self.record.life().map_or(0, |l| l.seq);
        let mut answer = self.sweep.answer(self.policy.sweep.report_s, seq);
        let most = self.policy.sweep.max_in_flight as usize;
        answer.more = verdict.destroy.len() > most;
        answer.destroy = turn(&verdict.destroy, self.report.report_no, most);
        answer.conflicts = verdict.conflicts;
        answer.held = is_held;
        Ok(answer)
    }

    /// The labels in the report of other nodes whose lives are certainly over. Nobody else will destroy what carries them.
    async fn labels_of_the_dead(&self) -> Result<BTreeSet<String>, WriteError> {
        let labels: BTreeSet<&str> = self.report.handles.iter().filter_map(|h| h.label.as_deref()).collect();
        let own = self.node_id.to_string();
        let others = labels.into_iter().filter(|label| *label != own).filter_map(|label| label.parse::<NodeId>().ok());
        let mut over = BTreeSet::new();
        for node_id in others.take(MAX_OWNERS) {
            if self.sweep.store.node(node_id.slot()).await?.is_some_and(|record| is_over(&record, node_id)) {
                over.insert(node_id.to_string());
            }
        }
        Ok(over)
    }

    /// One event a day about the handles that carry the label of another node.
    async fn tell_conflicts(&self, conflicts: &[String]) {
        if conflicts.is_empty() {
            return;
        }
        let shown = conflicts.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        let reason = Reason::ForeignHandles { handles: conflicts.len(), shown };
        tracing::warn!(node_id = %self.node_id, "{reason}");
        let (subject, keep) = (Subject::Slot(self.node_id.slot()), self.policy.history.keep_events());
        let (key, text) = (reason.key(), reason.to_string());
        let event = Event::once_in(A_DAY, &subject, ActionName::Warn, (&key, &text), self.now, keep);
        self.sweep.store.tell(&event).await;
    }

    fn rules(&self, readiness: Readiness) -> ReportRules {
        let policy = &self.policy.sweep;
        ReportRules {
            readiness,
            report_no: self.report.report_no,
            as_of: self.report.as_of,
            report: Span::from_s(policy.report_s),
            missing_grace: Span::from_s(policy.missing_grace_s),
            cache_unused: Span::from_s(policy.cache_unused_s),
        }
    }

    /// Writes the number of the report before any change: from here on, an older report is stale. An equal number
    /// is a repeat: its changes were made before, or are made now. If a report with a higher number came in
    /// between, this one may no longer change anything.
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

    async fn write_rows(&self, verdict: &Verdict<'_>) -> Result<(), WriteError> {
        let store = &self.sweep.store;
        for (before, after) in &verdict.changed {
            ignore_race(store.apply(&change_handle(before, after)).await)?;
        }
        for row in verdict.gone.iter().chain(&verdict.dropped) {
            ignore_race(store.apply(&change_handle(row, &row.buried(self.now))).await)?;
        }
        for dropped in &verdict.dropped {
            let reason = Reason::MissingTooLong { handle: dropped.handle.clone() };
            self.tell(ActionName::ForgetHandle, &reason).await;
        }
        for found in verdict.new_unknown.iter().take(MAX_ADDED) {
            let row = Handle::unknown(self.node_id, found, self.report.report_no, self.now);
            // The record must still be that of this node.
            ignore_race(store.transact(&[unchanged(&self.record), insert_handle(&row)]).await)?;
        }
        Ok(())
    }

    async fn mark_rows(&mut self, verdict: &mut Verdict<'_>) -> Result<(), WriteError> {
        for row in verdict.twice_unknown.iter().chain(&verdict.back) {
            match mark(&self.sweep.store, &self.record, row, self.now).await {
                Ok(told) => {
                    self.record = told;
                    verdict.destroy.insert(row.handle.clone());
                }
                Err(e) => ignore_race(Err(e))?,
            }
        }
        Ok(())
    }

    /// The brake `handles`: handles that the report would destroy as unknown, or drop as missing, wait for an operator
    /// if they are an unusual share of all handles of the node. Returns whether some wait, or whether the brake's entry is
    /// not up to date: then the next report must not be taken for a settled one. And the release that this report uses up,
    /// as read and as it is afterwards.
    async fn brake(
        &self,
        verdict: &mut Verdict<'_>,
        rows: &[Handle],
    ) -> Result<(bool, Option<(Release, Release)>), WriteError> {
        let (store, policy) = (&self.sweep.store, &self.policy.sweep);
        let unusual = verdict.twice_unknown.iter().chain(&verdict.dropped);
        let ids: Vec<String> = unusual.map(|row| row.handle.clone()).collect();
        let all = rows.iter().filter(|r| r.state != HandleState::Gone).count();
        let unbraked = Unbraked { number: policy.cap_min.into(), share: policy.cap_fraction };
        let (kind, source) = (BrakeKind::Handles, self.node_id.to_string());
        let why = Reason::ManyHandles { node_id: self.node_id, unusual: ids.len(), all };
        // The entry is one row for all nodes, so the reports of several nodes may change it at the same time.
        for _ in 0..RACES {
            let entry: BrakeEntry = store.entry(&ControlKey::Brake(kind)).await?;
            let release: Release = store.entry(&ControlKey::Release(kind)).await?;
            let brake = Brake::new(kind, &source, entry, release, self.now);
            let decision = brake
                .is_unusual(ids.len(), all, unbraked)
                .then(|| brake.decide(Trouble { hold: None, ids: ids.clone(), not_before: None, why: why.clone() }));
            let change = decision.as_ref().map_or_else(|| brake.calm(), |decision| decision.change.clone());
            let written = match &change.entry {
                Some((before, after)) => store.write_entry(before, after).await.map(drop),
                None => Ok(()),
            };
            match written {
                Ok(()) => {}
                Err(WriteError::Conflict(_) | WriteError::Contended) => continue,
                Err(other) => return Err(other),
            }
            let Some(decision) = decision else { return Ok((false, change.release)) };
            if decision.news {
                self.tell(ActionName::HoldBack, &decision.reason).await;
            }
            verdict.twice_unknown.retain(|row| decision.let_go.frees(&row.handle));
            verdict.dropped.retain(|row| decision.let_go.frees(&row.handle));
            let left = verdict.twice_unknown.len() + verdict.dropped.len();
            return Ok((left < ids.len(), change.release));
        }
        verdict.twice_unknown.clear();
        verdict.dropped.clear();
        Ok((true, None))
    }

    async fn tell(&self, action: ActionName, reason: &Reason) {
        let (store, keep) = (&self.sweep.store, self.policy.history.keep_events());
        let subject = Subject::Slot(self.node_id.slot());
        store.tell(&Event::new(&subject, action, &reason.to_string(), self.now, keep, store.chance())).await;
    }
}

impl Verdict<'_> {
    /// Whether nothing is pending, so that the rows need not be read if the same report comes again.
    fn is_quiet(&self, rows: &[Handle]) -> bool {
        let settled = |r: &Handle| matches!(r.state, HandleState::Live | HandleState::Gone);
        rows.iter().all(settled)
            && !self.still_missing
            && self.changed.is_empty()
            && self.dropped.is_empty()
            && self.new_unknown.is_empty()
            && self.back.is_empty()
            && self.conflicts.is_empty()
    }
}

/// What the report does to each row, and the handles that have no row. Pure.
fn judge<'a>(
    rows: &'a [Handle],
    report: &'a HandleReport,
    node_id: NodeId,
    over: &BTreeSet<String>,
    rules: ReportRules,
    now: Time,
) -> Verdict<'a> {
    let mut verdict = Verdict::default();
    let own = node_id.to_string();
    let is_ours = |label: &String| *label == own || over.contains(label);
    let (mut appeared, mut missing) = (Vec::new(), Vec::new());
    let listed: BTreeMap<&str, &ReportedHandle> = report.handles.iter().map(|h| (h.handle.as_str(), h)).collect();
    for row in rows {
        let found = listed.get(row.handle.as_str());
        // The label decides, also where there is a row. A handle without a label, or with another node's, is there, so it is
        // not missing, and nobody destroys it.
        if let Some(found) = found.filter(|found| !found.label.as_ref().is_some_and(is_ours)) {
            verdict.conflicts.extend(found.label.as_ref().map(|_| row.handle.clone()));
            continue;
        }
        let sighting = if found.is_some() {
            Sighting::Listed
        } else if report.complete && report.as_of >= row.seq {
            Sighting::NotListed
        } else {
            Sighting::Unproven
        };
        match row.reported(sighting, rules, now) {
            Judgement::Unchanged => {}
            Judgement::Appeared(after) => appeared.push((row, after)),
            Judgement::Missing(after) => missing.push((row, after)),
            Judgement::StillMissing => verdict.still_missing = true,
            Judgement::Dropped => verdict.dropped.push(row),
            Judgement::Gone => verdict.gone.push(row),
            Judgement::TwiceUnknown => verdict.twice_unknown.push(row),
            Judgement::Back => verdict.back.push(row),
            Judgement::ToDestroy => _ = verdict.destroy.insert(row.handle.clone()),
        }
    }
    appeared.append(&mut missing);
    verdict.changed = appeared;
    let known: BTreeSet<&str> = rows.iter().map(|r| r.handle.as_str()).collect();
    for handle in listed.values().filter(|h| !known.contains(h.handle.as_str())) {
        match &handle.label {
            Some(label) if is_ours(label) => verdict.new_unknown.push(handle),
            // A cloned disk or a moved volume: the answer names the handle, and it stays while its node lives.
            Some(_) => verdict.conflicts.push(handle.handle.clone()),
            None => {}
        }
    }
    verdict
}

/// At most `most` handles to destroy. Each report begins with other handles, so that a handle that cannot be destroyed
/// does not block the rest.
fn turn(destroy: &BTreeSet<String>, report_no: u64, most: usize) -> Vec<String> {
    let turn = usize::try_from(report_no).unwrap_or(0).wrapping_mul(most);
    let first = turn.checked_rem(destroy.len()).unwrap_or(0);
    let (before, from) = (destroy.iter().take(first), destroy.iter().skip(first));
    from.chain(before).take(most).cloned().collect()
}

fn digest(handles: &[ReportedHandle]) -> String {
    let mut sorted: Vec<&ReportedHandle> = handles.iter().collect();
    sorted.sort_unstable();
    let json = serde_json::to_vec(&sorted).unwrap_or_default();
    hex(Sha256::digest(json).get(..8).unwrap_or_default())
}

/// Ignores a lost race: somebody else changed the row, and the next report is judged against the new row.
fn ignore_race(result: Result<(), WriteError>) -> Result<(), WriteError> {
    match result {
        Err(WriteError::Conflict(_) | WriteError::Contended) => Ok(()),
        other => other,
    }
}

fn failed(error: WriteError) -> Refusal {
    tracing::error!(%error, "a report failed");
    Refusal::new(ErrorCode::Busy, "the report could not be applied: try again")
}
