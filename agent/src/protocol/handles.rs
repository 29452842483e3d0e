//! Reports of handles: when one is due, and its parts.
//!
//! Guarantees: every part is a range of names, and the parts together are all names; a part that failed keeps no other part
//! from being sent; a node whose handles are settled sends no report until they change or one is asked for.
//! Does not: list handles, or destroy them.

use model::auth::hex;
use model::wire::{HandleReport, HandleReportAnswer, ReportPart, ReportedHandle};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;

/// About the most bytes of one part. The body must stay below [`model::wire::MAX_BODY_BYTES`].
const MAX_PART_BYTES: usize = 256 * 1024;
/// The bytes of a handle in a report without its names.
const BYTES_BESIDE: usize = 64;

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

/// One report of all handles: the parts that are still to be sent.
#[derive(Clone, Debug)]
pub struct HandleRound {
    as_of: u64,
    complete: bool,
    digest: String,
    /// In the order of their names.
    handles: Vec<ReportedHandle>,
    todo: VecDeque<ReportPart>,
    sent: Option<ReportPart>,
    settled: Option<String>,
}

impl HandleRound {
    /// The report of this list, in parts of at most `most` handles. `None` if exactly this is settled.
    /// Another `turn` gives the same handles another digest, so that the control plane looks at its rows again.
    pub(crate) fn new(
        as_of: u64,
        list: HandleList,
        most: usize,
        turn: u64,
        settled: Option<&SettledHandles>,
    ) -> Option<Self> {
        let HandleList { mut handles, complete } = list;
        handles.sort_unstable();
        handles.dedup_by(|a, b| a.handle == b.handle);
        let digest = digest(&handles, turn);
        if complete && settled.is_some_and(|settled| settled.digest == digest) {
            return None;
        }
        let ends = ends(&handles, most);
        let of = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        let afters = std::iter::once(None).chain(ends.iter().cloned());
        let todo = afters.zip(&ends).zip(1..).map(|((after, up_to), no)| ReportPart {
            no,
            of,
            after,
            up_to: up_to.clone(),
            resumed: false,
        });
        Some(Self { as_of, complete, digest, todo: todo.collect(), sent: None, settled: None, handles })
    }

    /// The next part, as the report of this number. `None` if every part was sent.
    pub(crate) fn next(&mut self, incarnation: String, report_no: u64) -> Option<HandleReport> {
        let part = self.todo.pop_front()?;
        let handles = self.handles.iter().filter(|h| part.contains(&h.handle)).cloned().collect();
        let is_whole = part.of == 1 && !part.resumed;
        self.sent = Some(part.clone());
        let (part, digest) = ((!is_whole).then_some(part), Some(self.digest.clone()));
        let (as_of, complete) = (self.as_of, self.complete);
        Some(HandleReport { incarnation, report_no, as_of, complete, part, digest, handles })
    }

    /// Applies the answer to the last part.
    pub fn answered(&mut self, answer: &HandleReportAnswer) {
        self.settled.clone_from(&answer.settled);
        if let (Some(sent), Some(after)) = (&self.sent, &answer.resume_after) {
            self.todo.push_front(ReportPart { after: Some(after.clone()), resumed: true, ..sent.clone() });
        }
    }

    /// The last part was not answered, so this report settles nothing.
    pub fn failed(&mut self) {
        self.settled = None;
    }

    /// What this report has settled; `None` while parts are left.
    pub(crate) fn settled(&self) -> Option<SettledHandles> {
        let text = self.settled.clone().filter(|_| self.todo.is_empty())?;
        Some(SettledHandles { text, digest: self.digest.clone() })
    }

    pub fn reported(&self, handle: &str) -> Option<&ReportedHandle> {
        let at = self.handles.binary_search_by(|h| h.handle.as_str().cmp(handle)).ok()?;
        self.handles.get(at)
    }
}

/// The last name of each part; `None` for the last part, which has no end.
fn ends(handles: &[ReportedHandle], most: usize) -> Vec<Option<String>> {
    let (mut ends, mut count, mut bytes) = (Vec::new(), 0, 0);
    let size = |h: &ReportedHandle| {
        let names = [h.label.as_ref(), h.parent.as_ref()].into_iter().flatten().map(String::len).sum::<usize>();
        BYTES_BESIDE + h.handle.len() + names
    };
    let mut last: Option<&ReportedHandle> = None;
    for handle in handles {
        if let Some(last) = last.filter(|_| count >= most.max(1) || bytes + size(handle) > MAX_PART_BYTES) {
            ends.push(Some(last.handle.clone()));
            (count, bytes) = (0, 0);
        }
        (count, bytes) = (count + 1, bytes + size(handle));
        last = Some(handle);
    }
    ends.push(None);
    ends
}

fn digest(sorted: &[ReportedHandle], turn: u64) -> String {
    let mut hash = Sha256::new();
    hash.update(turn.to_le_bytes());
    for h in sorted {
        let fields = [Some(h.handle.as_str()), Some(h.kind.as_str()), h.label.as_deref(), h.parent.as_deref()];
        for field in fields {
            hash.update(field.map_or(u64::MAX, |f| f.len() as u64).to_le_bytes());
            hash.update(field.unwrap_or_default());
        }
    }
    hex(hash.finalize().get(..8).unwrap_or_default())
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
            parent: None,
            stays: None,
        };
        HandleList { handles: names.into_iter().map(handle).collect(), complete: true }
    }

    fn next(round: &mut HandleRound) -> Option<HandleReport> {
        round.next("inc".into(), 1)
    }

    fn answer(settled: Option<&str>, resume_after: Option<&str>) -> HandleReportAnswer {
        HandleReportAnswer {
            seq: 1,
            destroy: vec![],
            more: false,
            conflicts: vec![],
            held: false,
            next_report_s: 30.0,
            left: 0,
            resume_after: resume_after.map(str::to_owned),
            settled: settled.map(str::to_owned),
        }
    }

    #[test]
    fn the_parts_are_all_names_and_each_handle_is_in_one_of_them() {
        for (count, most, parts) in [(0, 3, 1), (1, 3, 1), (3, 3, 1), (4, 3, 2), (100_000, 1000, 100)] {
            let mut round = HandleRound::new(7, list((0..count).rev()), most, 0, None).unwrap();
            let mut names = Vec::new();
            let mut sent = Vec::new();
            while let Some(report) = next(&mut round) {
                assert_eq!((report.as_of, report.complete), (7, true));
                names.extend(report.handles.into_iter().map(|h| h.handle));
                sent.push(report.part);
            }
            assert_eq!(names, list(0..count).handles.into_iter().map(|h| h.handle).collect::<Vec<_>>());
            assert_eq!(sent.len(), parts, "{count}");
            if let [first, .., last] = sent.as_slice() {
                let (first, last) = (first.as_ref().unwrap(), last.as_ref().unwrap());
                assert_eq!((first.no, &first.after, last.no, last.of), (1, &None, parts as u32, parts as u32));
                assert_eq!(last.up_to, None);
            } else {
                assert_eq!(sent, [None]);
            }
        }
    }

    #[test]
    fn long_names_make_more_parts() {
        let name = |n: u32| ReportedHandle {
            handle: format!("{n:04}{}", "x".repeat(1020)),
            kind: HandleKind::Volume,
            label: None,
            parent: None,
            stays: None,
        };
        let handles = (0..1000).map(name).collect();
        let mut round = HandleRound::new(0, HandleList { handles, complete: true }, 1000, 0, None).unwrap();
        let mut parts = 0;
        while let Some(report) = next(&mut round) {
            assert!(serde_json::to_vec(&report.handles).unwrap().len() < 2 * MAX_PART_BYTES);
            parts += 1;
        }
        assert_eq!(parts, 5);
    }

    #[test]
    fn what_is_settled_is_not_reported_again_before_it_changes() {
        let mut round = HandleRound::new(1, list(0..7), 3, 0, None).unwrap();
        for settled in [None, None, Some("1#ab")] {
            next(&mut round).unwrap();
            round.answered(&answer(settled, None));
        }
        assert!(next(&mut round).is_none());
        let settled = round.settled().unwrap();
        assert_eq!(settled.text, "1#ab");
        assert!(HandleRound::new(1, list((0..7).rev()), 3, 0, Some(&settled)).is_none());
        assert!(HandleRound::new(1, list(0..6), 3, 0, Some(&settled)).is_some());
        let partial = HandleList { complete: false, ..list(0..7) };
        assert!(HandleRound::new(1, partial, 3, 0, Some(&settled)).is_some());
    }

    #[test]
    fn a_part_that_was_cut_goes_on_and_settles_nothing_before_its_end() {
        let mut round = HandleRound::new(1, list(0..4), 10, 0, None).unwrap();
        next(&mut round).unwrap();
        round.answered(&answer(None, Some("h00001")));
        let rest = next(&mut round).unwrap();
        let part = rest.part.unwrap();
        assert_eq!((part.after.as_deref(), part.resumed, rest.handles.len()), (Some("h00001"), true, 2));
        round.failed();
        assert!(next(&mut round).is_none() && round.settled().is_none());
    }
}
