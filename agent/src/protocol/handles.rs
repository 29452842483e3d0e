//! Reports of handles: when one is due, and what it lists.
//!
//! Guarantees: a node whose handles are settled sends no report until they change or one is asked for; of more handles than fit
//! into a report, each is reported in its turn.
//! Does not: list handles, or destroy them.

use model::auth::hex;
use model::wire::{HandleReport, HandleReportAnswer, MAX_HANDLES, ReportedHandle};
use sha2::{Digest, Sha256};

/// The handles that exist, as far as they could be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandleList {
    /// Each handle once.
    pub handles: Vec<ReportedHandle>,
    /// Whether the list certainly has every handle of the node.
    pub complete: bool,
}

/// Handles whose report changed nothing, so that the same report need not be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledHandles {
    /// The text that the answer gave. The heartbeats carry it.
    pub text: String,
    digest: String,
}

/// One report of the handles, to be sent.
#[derive(Clone, Debug)]
pub struct HandleRound {
    as_of: u64,
    complete: bool,
    digest: String,
    /// In the order of their names.
    handles: Vec<ReportedHandle>,
}

impl HandleRound {
    /// The report of this list. `None` if exactly this is settled. Another `turn` gives the same handles another digest, so that the
    /// control plane looks at its rows again.
    pub(crate) fn new(as_of: u64, list: HandleList, turn: u64, settled: Option<&SettledHandles>) -> Option<Self> {
        let HandleList { mut handles, complete } = list;
        handles.sort_unstable();
        handles.dedup_by(|a, b| a.handle == b.handle);
        let digest = digest(&handles, turn);
        let is_settled = complete && settled.is_some_and(|settled| settled.digest == digest);
        (!is_settled).then_some(Self { as_of, complete, digest, handles })
    }

    /// The report of this number.
    pub(crate) fn report(&self, incarnation: String, report_no: u64) -> HandleReport {
        let (as_of, digest, all) = (self.as_of, self.digest.clone(), self.handles.len());
        let first = report_no.wrapping_mul(MAX_HANDLES as u64).checked_rem(all as u64).filter(|_| all > MAX_HANDLES);
        let from = self.handles.iter().cycle().skip(first.map_or(0, |first| first as usize));
        let handles = from.take(all.min(MAX_HANDLES)).cloned().collect();
        HandleReport { incarnation, report_no, as_of, complete: self.complete && first.is_none(), digest, handles }
    }

    /// What the answer says is settled.
    pub(crate) fn settled(&self, answer: &HandleReportAnswer) -> Option<SettledHandles> {
        Some(SettledHandles { text: answer.settled.clone()?, digest: self.digest.clone() })
    }

    pub fn reported(&self, handle: &str) -> Option<&ReportedHandle> {
        let at = self.handles.binary_search_by(|h| h.handle.as_str().cmp(handle)).ok()?;
        self.handles.get(at)
    }
}

fn digest(sorted: &[ReportedHandle], turn: u64) -> String {
    let bytes = serde_json::to_vec(&(turn, sorted)).unwrap_or_default();
    hex(Sha256::digest(bytes).get(..8).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::HandleKind;

    fn list(names: impl IntoIterator<Item = u32>) -> HandleList {
        let handle = |n| ReportedHandle {
            handle: format!("h{n:05}"),
            kind: HandleKind::Container,
            label: Some("node".into()),
            stays: None,
        };
        HandleList { handles: names.into_iter().map(handle).collect(), complete: true }
    }

    fn names(report: &HandleReport) -> Vec<&str> {
        report.handles.iter().map(|h| h.handle.as_str()).collect()
    }

    #[test]
    fn of_more_handles_than_fit_each_is_reported_in_its_turn_and_no_report_is_complete() {
        for (count, reports) in [(0, 1), (1, 1), (5000, 1), (5001, 2), (12_345, 3)] {
            let round = HandleRound::new(7, list((0..count).rev()), 0, None).unwrap();
            let reports: Vec<HandleReport> = (1..=reports).map(|no| round.report("inc".into(), no)).collect();
            let is_whole = count <= 5000;
            assert!(reports.iter().all(|r| r.as_of == 7 && r.complete == is_whole && r.handles.len() <= MAX_HANDLES));
            let sent: std::collections::BTreeSet<&str> = reports.iter().flat_map(names).collect();
            assert_eq!(sent.len(), count as usize, "{count}");
        }
    }

    #[test]
    fn what_is_settled_is_not_reported_again_before_it_changes() {
        let answer = |settled: Option<&str>| HandleReportAnswer {
            seq: 1,
            destroy: vec![],
            more: false,
            conflicts: vec![],
            refused: false,
            next_report_s: 30.0,
            left: 0,
            settled: settled.map(str::to_owned),
        };
        let round = HandleRound::new(1, list(0..7), 0, None).unwrap();
        assert_eq!(round.settled(&answer(None)), None);
        let settled = round.settled(&answer(Some("1#ab"))).unwrap();
        assert_eq!(settled.text, "1#ab");
        assert!(HandleRound::new(1, list((0..7).rev()), 0, Some(&settled)).is_none());
        assert!(HandleRound::new(1, list((0..7).rev()), 1, Some(&settled)).is_some(), "another turn");
        assert!(HandleRound::new(1, list(0..6), 0, Some(&settled)).is_some());
        let partial = HandleList { complete: false, ..list(0..7) };
        assert!(HandleRound::new(1, partial, 0, Some(&settled)).is_some());
    }
}
