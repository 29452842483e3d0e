//! `POST …/handles`: what a node has, and what it is told to destroy.
//!
//! Guarantees: presence counts; absence only in a complete report of the current incarnation
//! whose `as_of` is not below the row's `seq`; `creating` is never missing; a report that asks
//! for unusual destruction is held; one that equals what is settled costs one read and no write.

use crate::Sweep;
use crate::act::{mark, unread};
use sha2::{Digest, Sha256};
use shared::auth::hex;
use shared::brake::Brake;
use shared::events::{Event, Subject};
use shared::http::{Claim, Refusal, Request, reporting, standing};
use shared::ids::NodeId;
use shared::model::{Handle, HandleState, MAX_DUE_S, NodeRecord, NodeStatus};
use shared::policy::Policy;
use shared::store::{ReportCounter, WriteError, change_handle, insert_handle, unchanged};
use shared::time::{Span, Time};
use shared::wire::{ErrorCode, HandleReport, HandleReportAnswer, ReportedHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// The longest handle name that is looked at, in bytes: DynamoDB's limit for a sort key.
const MAX_HANDLE_BYTES: usize = 1024;
/// How long a tombstone stays: far longer than a request may be under way. Every report of a busy node reads
/// those of its node.
const TOMBSTONE: Span = Span::from_s(3600);

/// What a report changes.
#[derive(Default)]
struct Verdict<'a> {
    appeared: Vec<(&'a Handle, Handle)>,
    gone: Vec<&'a Handle>,
    missing: Vec<(&'a Handle, Handle)>,
    dropped: Vec<&'a Handle>,
    new_unknown: Vec<&'a ReportedHandle>,
    twice_unknown: Vec<&'a Handle>,
    back: Vec<&'a Handle>,
    destroy: BTreeSet<String>,
    conflicts: Vec<String>,
    /// Something is missing, and an operator keeps it: its clock begins when that ends, which raises
    /// no `seq`.
    kept_missing: bool,
}

impl Sweep {
    pub(crate) async fn report(&self, request: &Request, now: Time) -> Result<HandleReportAnswer, Refusal> {
        let (node_id, _) = request.route(&["handles"])?;
        let proven = self.credentials.check(request, &self.cluster, node_id)?;
        let report: HandleReport = request.body()?;
        if let Some(long) = report.handles.iter().find(|h| h.handle.is_empty() || h.handle.len() > MAX_HANDLE_BYTES) {
            let message = format!("a handle has {} bytes: 1 to {MAX_HANDLE_BYTES} are allowed", long.handle.len());
            return Err(Refusal::new(ErrorCode::BadRequest, message));
        }
        let record = self.store.node(node_id.slot()).await.map_err(|e| failed(unread(e)))?;
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
        if known && report.complete && report.as_of >= seq {
            return Ok(self.answer(self.report_s.load(Ordering::Relaxed), seq, Vec::new(), false));
        }
        let control = self.store.ingest_control().await.map_err(|e| failed(unread(e)))?;
        let (policy, _) = control.checked_policy().map_err(|e| Refusal::new(ErrorCode::Busy, e.to_string()))?;
        self.report_s.store(policy.sweep.report_s, Ordering::Relaxed);
        match self.apply(record, &report, &policy, settled, now).await {
            Ok(answer) => Ok(answer),
            Err(e) => Err(failed(e)),
        }
    }

    async fn apply(
        &self,
        mut record: NodeRecord,
        report: &HandleReport,
        policy: &Policy,
        settled: String,
        now: Time,
    ) -> Result<HandleReportAnswer, WriteError> {
        let Some(node_id) = record.node_id() else { return Err(WriteError::CONFLICT) };
        let rows = self.store.handles_of(node_id).await?;
        let ready = record.status() == Some(NodeStatus::Ready);
        let mut verdict = judge(&rows, report, node_id, policy, ready, now);
        let held = self.brake(&mut verdict, &rows, policy, node_id, now).await?;
        // What could judge nothing settles nothing.
        let judged = ready && report.complete && record.life().is_some_and(|l| report.as_of >= l.seq);
        let quiet = judged && verdict.is_quiet(&rows) && !held;
        // The number first: from here on an older report is stale.
        let note = quiet.then_some(settled.as_str());
        let noted =
            self.store.note_report(node_id, &report.incarnation, ReportCounter::Handles, report.report_no, note).await;
        match noted {
            Ok(()) => {}
            // An equal number is a repeat: what it changes was changed, or is changed now. A higher
            // one came in between: then this one may no longer judge anything.
            Err(WriteError::Conflict(_)) => {
                let stored = self.store.node(record.slot).await?;
                let repeats = |r: NodeRecord| {
                    let same = r.node_id() == Some(node_id);
                    same && r
                        .contact()
                        .is_some_and(|c| c.incarnation == report.incarnation && c.handle_report_no == report.report_no)
                };
                if !stored.is_some_and(repeats) {
                    return Err(WriteError::CONFLICT);
                }
            }
            Err(e) => return Err(e),
        }
        for (before, after) in verdict.appeared.iter().chain(&verdict.missing) {
            ignore_race(self.store.apply(&change_handle(before, after)).await)?;
        }
        for row in verdict.gone.iter().chain(&verdict.dropped) {
            let after = Handle {
                state: HandleState::Gone,
                due_at: now + TOMBSTONE,
                expires_at: Some((now + Span::from_s(2 * MAX_DUE_S)).as_epoch_s()),
                ..(*row).clone()
            };
            ignore_race(self.store.apply(&change_handle(row, &after)).await)?;
        }
        for dropped in &verdict.dropped {
            self.tell(node_id, "forget_handle", &format!("{} was missing too long", dropped.handle), policy, now).await;
        }
        for unknown in &verdict.new_unknown {
            let row = unknown_row(node_id, unknown, report.report_no, now);
            // Only while the record is this node's.
            ignore_race(self.store.transact(&[unchanged(&record), insert_handle(&row)]).await)?;
        }
        for row in verdict.twice_unknown.iter().chain(&verdict.back) {
            match mark(&self.store, &record, row, now).await {
                Ok(told) => {
                    record = told;
                    verdict.destroy.insert(row.handle.clone());
                }
                Err(e) => ignore_race(Err(e))?,
            }
        }
        let most = policy.sweep.max_in_flight as usize;
        let more = verdict.destroy.len() > most;
        // Other ones each time: those that cannot be destroyed are in nobody's way.
        let turn = usize::try_from(report.report_no).unwrap_or(0).wrapping_mul(most);
        let first = turn.checked_rem(verdict.destroy.len()).unwrap_or(0);
        let (before, from) = (verdict.destroy.iter().take(first), verdict.destroy.iter().skip(first));
        let destroy: Vec<String> = from.chain(before).take(most).cloned().collect();
        let mut answer = self.answer(policy.sweep.report_s, record.life().map_or(0, |l| l.seq), destroy, more);
        answer.conflicts = verdict.conflicts;
        answer.held = held;
        Ok(answer)
    }

    /// A report by which an unusual share would be destroyed as unknown or dropped as missing
    /// waits for an operator.
    async fn brake(
        &self,
        verdict: &mut Verdict<'_>,
        rows: &[Handle],
        policy: &Policy,
        node_id: NodeId,
        now: Time,
    ) -> Result<bool, WriteError> {
        let unusual = verdict.twice_unknown.len() + verdict.dropped.len();
        let all = rows.iter().filter(|r| r.state != HandleState::Gone).count();
        let over = unusual as f64 > policy.sweep.cap_fraction * all as f64 && unusual > policy.sweep.cap_min as usize;
        if !over {
            return Ok(false);
        }
        let before = self.store.memory(Brake::HANDLES.memory()).await?;
        let release = self.store.memory(Brake::HANDLES.release()).await?;
        let why =
            format!("node {node_id}: {unusual} of {all} handles would be destroyed as unknown or dropped as missing");
        let look = Brake::HANDLES.look(&before, Some(&release), None, unusual, &why, now);
        if look.held {
            verdict.twice_unknown.clear();
            verdict.dropped.clear();
        }
        if look.news {
            self.tell(node_id, "hold_back", &look.reason, policy, now).await;
        }
        if let Some(note) = look.note {
            ignore_race(self.store.remember(&before, &note).await.map(|_| ()))?;
        }
        Ok(look.held)
    }

    fn answer(&self, report_s: i64, seq: u64, destroy: Vec<String>, more: bool) -> HandleReportAnswer {
        let next_report_s = report_s as f64 * self.store.chance().between(1.0, 1.5);
        HandleReportAnswer { seq, destroy, more, conflicts: Vec::new(), held: false, next_report_s }
    }

    async fn tell(&self, node_id: NodeId, action: &str, reason: &str, policy: &Policy, now: Time) {
        let (subject, keep) = (Subject::Slot(node_id.slot()), policy.history.keep_events());
        self.store.tell(&Event::new(&subject, action, reason, now, keep, self.store.chance())).await;
    }
}

impl Verdict<'_> {
    /// Whether nothing is pending: the same report again needs no look at the rows.
    fn is_quiet(&self, rows: &[Handle]) -> bool {
        let settled = |r: &Handle| matches!(r.state, HandleState::Live | HandleState::Gone);
        rows.iter().all(settled)
            && !self.kept_missing
            && self.appeared.is_empty()
            && self.missing.is_empty()
            && self.dropped.is_empty()
            && self.new_unknown.is_empty()
            && self.back.is_empty()
            && self.conflicts.is_empty()
    }
}

/// What the report says of each row, and of what has none. Pure.
fn judge<'a>(
    rows: &'a [Handle],
    report: &'a HandleReport,
    node_id: NodeId,
    policy: &Policy,
    ready: bool,
    now: Time,
) -> Verdict<'a> {
    let mut verdict = Verdict::default();
    let listed: BTreeMap<&str, &ReportedHandle> = report.handles.iter().map(|h| (h.handle.as_str(), h)).collect();
    for row in rows {
        let present = listed.contains_key(row.handle.as_str());
        let proves_absence = !present && report.complete && report.as_of >= row.seq;
        match row.state {
            HandleState::Creating if present => {
                let unused = Span::from_s(policy.sweep.cache_unused_s.min(MAX_DUE_S));
                let due_at = if row.alloc_id.is_some() { row.due_at } else { now + unused };
                let after = Handle { state: HandleState::Live, deadline_at: None, due_at, ..row.clone() };
                verdict.appeared.push((row, after));
            }
            HandleState::Destroying if present => _ = verdict.destroy.insert(row.handle.clone()),
            HandleState::Destroying if proves_absence => verdict.gone.push(row),
            HandleState::Live if present && row.missing_ms.is_some() => {
                let after = Handle { missing_ms: None, missing_seen_at: None, ..row.clone() };
                verdict.appeared.push((row, after));
            }
            // The missing clock runs only across accepted reports while the node is ready.
            HandleState::Live if proves_absence && ready && !row.keep => {
                // The time between two reports counts as far as it is usual: in a longer one the node was not
                // ready, or not heard.
                let usual_ms = Span::from_s(policy.sweep.report_s.saturating_mul(2)).as_ms();
                let more = row.missing_seen_at.map_or(0, |at| now.since(at).as_ms().clamp(0, usual_ms));
                let missing = row.missing_ms.unwrap_or(0).saturating_add(more);
                if Span::from_ms(missing) >= Span::from_s(policy.sweep.missing_grace_s) && row.missing_ms.is_some() {
                    verdict.dropped.push(row);
                } else {
                    let after = Handle { missing_ms: Some(missing), missing_seen_at: Some(now), ..row.clone() };
                    verdict.missing.push((row, after));
                }
            }
            HandleState::Live if proves_absence && ready => verdict.kept_missing = true,
            // An operator's word makes it known: a job may use it.
            HandleState::Unknown if present && row.keep => {
                let after = Handle { state: HandleState::Live, unknown_report_no: None, ..row.clone() };
                verdict.appeared.push((row, after));
            }
            HandleState::Unknown
                // (A lower number is another incarnation's: of this one's it would be stale.)
                if present && !row.keep && row.unknown_report_no.is_none_or(|first| report.report_no != first) =>
            {
                verdict.twice_unknown.push(row);
            }
            HandleState::Unknown if proves_absence => verdict.gone.push(row),
            // Back from the dead: the report is newer than the one that buried it. What was only missing (its
            // disk was away) is as it was, and looked at again.
            HandleState::Gone if present && report.as_of >= row.seq && (row.keep || row.missing_ms.is_some()) => {
                let after = Handle {
                    state: HandleState::Live,
                    missing_ms: None,
                    missing_seen_at: None,
                    expires_at: None,
                    due_at: now,
                    ..row.clone()
                };
                verdict.appeared.push((row, after));
            }
            HandleState::Gone if present && report.as_of >= row.seq => verdict.back.push(row),
            _ => {}
        }
    }
    let rows: BTreeSet<&str> = rows.iter().map(|r| r.handle.as_str()).collect();
    for handle in listed.values().filter(|h| !rows.contains(h.handle.as_str())) {
        match &handle.label {
            Some(label) if *label == node_id.to_string() => verdict.new_unknown.push(handle),
            // A cloned disk, a moved volume: named, and left alone.
            Some(_) => verdict.conflicts.push(handle.handle.clone()),
            None => {}
        }
    }
    verdict
}

fn unknown_row(node_id: NodeId, handle: &ReportedHandle, report_no: u64, now: Time) -> Handle {
    let due_at = now + Span::from_s(MAX_DUE_S);
    Handle {
        unknown_report_no: Some(report_no),
        ..Handle::new(node_id, handle.handle.clone(), handle.kind, HandleState::Unknown, 0, due_at)
    }
}

fn digest(handles: &[ReportedHandle]) -> String {
    let mut sorted: Vec<&ReportedHandle> = handles.iter().collect();
    sorted.sort_unstable();
    let json = serde_json::to_vec(&sorted).unwrap_or_default();
    hex(Sha256::digest(json).get(..8).unwrap_or_default())
}

fn ignore_race(result: Result<(), WriteError>) -> Result<(), WriteError> {
    match result {
        // Somebody else changed that row: the next report sees what it is now.
        Err(WriteError::Conflict(_) | WriteError::Contended) => Ok(()),
        other => other,
    }
}

fn failed(error: WriteError) -> Refusal {
    tracing::error!(%error, "a report failed");
    Refusal::new(ErrorCode::Busy, "the tables do not answer: try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::model::HandleKind;
    use shared::policy::example_json;

    #[test]
    fn an_unknown_handle_is_destroyed_when_reported_again_and_lives_once_it_is_kept() {
        let node_id: NodeId = "1-01MCC5RM2T2R0A7YCXD2XH3WEW".parse().unwrap();
        let found = ReportedHandle {
            handle: "found".to_owned(),
            kind: HandleKind::Container,
            label: Some(node_id.to_string()),
        };
        let report = |report_no| HandleReport {
            incarnation: String::new(),
            report_no,
            as_of: 0,
            complete: true,
            handles: vec![found.clone()],
        };
        let (policy, now) = (Policy::from_json(&example_json()).unwrap(), Time::from_ms(0));
        let row = unknown_row(node_id, &found, 3, now);
        // (marked, made live)
        let judged = |row: &Handle, report_no| {
            let (rows, report) = ([row.clone()], report(report_no));
            let verdict = judge(&rows, &report, node_id, &policy, true, now);
            assert!(verdict.gone.is_empty() && verdict.missing.is_empty() && verdict.dropped.is_empty());
            let lives: Vec<Handle> = verdict.appeared.into_iter().map(|(_, after)| after).collect();
            (verdict.twice_unknown.len(), lives)
        };
        assert_eq!(judged(&row, 3), (0, vec![]), "the same report once more");
        assert_eq!(judged(&row, 4), (1, vec![]));
        assert_eq!(judged(&row, 1), (1, vec![]), "the first of another incarnation");
        let kept = Handle { keep: true, ..row };
        let live = Handle { state: HandleState::Live, unknown_report_no: None, ..kept.clone() };
        assert_eq!(judged(&kept, 4), (0, vec![live.clone()]));
        let (rows, none) = ([live], HandleReport { handles: Vec::new(), ..report(5) });
        let verdict = judge(&rows, &none, node_id, &policy, true, now);
        assert!(verdict.missing.is_empty() && !verdict.is_quiet(&rows), "it is looked at again once it is let go");
    }

    #[test]
    fn what_was_away_with_its_disk_is_missing_by_the_reports_and_is_as_it_was_when_it_comes_back() {
        let node_id: NodeId = "1-01MCC5RM2T2R0A7YCXD2XH3WEW".parse().unwrap();
        let found = |handle: &str| ReportedHandle {
            handle: handle.to_owned(),
            kind: HandleKind::Volume,
            label: Some(node_id.to_string()),
        };
        let report =
            |handles| HandleReport { incarnation: String::new(), report_no: 9, as_of: 5, complete: true, handles };
        let mut document = example_json();
        document["sweep"] = serde_json::json!({"report_s": 30, "missing_grace_s": 100});
        let policy = Policy::from_json(&document).unwrap();
        let at = Time::from_ms;
        let live = Handle::new(node_id, "cache:data".to_owned(), HandleKind::Volume, HandleState::Live, 5, at(1));
        let mut row = live.clone();
        // Missed, away for an hour, and missed three times more: at most a minute counts between two reports.
        let mut dropped = Vec::new();
        for ms in [0, 3_600_000, 3_630_000, 3_660_000] {
            let (rows, report) = ([row.clone()], report(Vec::new()));
            let verdict = judge(&rows, &report, node_id, &policy, true, at(ms));
            dropped.push(verdict.dropped.len());
            row = verdict.missing.first().map_or(row.clone(), |(_, after)| after.clone());
        }
        assert_eq!((dropped, row.missing_ms), (vec![0, 0, 0, 1], Some(90_000)));
        let gone = Handle { state: HandleState::Gone, due_at: at(9_000_000), expires_at: Some(9), ..row };
        let (rows, back) = ([gone.clone()], report(vec![found("cache:data")]));
        let verdict = judge(&rows, &back, node_id, &policy, true, at(4_000_000));
        let after: Vec<Handle> = verdict.appeared.into_iter().map(|(_, after)| after).collect();
        assert_eq!((verdict.back.len(), after), (0, vec![Handle { due_at: at(4_000_000), ..live }]));
        // What was destroyed, and is there again, is destroyed again.
        let rows = [Handle { missing_ms: None, missing_seen_at: None, ..gone }];
        assert_eq!(judge(&rows, &back, node_id, &policy, true, at(4_000_000)).back.len(), 1);
    }
}
