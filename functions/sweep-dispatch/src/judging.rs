//! Judges the handles of a node by one report, row by row. Pure.
//!
//! Guarantees: the label decides, also where there is a row; what a live alloc of the node uses is never destroyed.
//! Does not: contain the rule for one handle (`model::handle` does), or read or write anything.

use model::handle::{Judgement, ReportRules, Sighting, cache_name};
use model::wire::ReportedHandle;
use model::{AllocId, AllocIds, Handle, HandleState, NodeId, Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A container that a complete alloc left gets a row if it is still there this long after the end, so that `status` shows it.
const SOON: Span = Span::from_s(120);

/// What a report changes, row by row.
#[derive(Default)]
pub(crate) struct HandleChanges<'a> {
    /// Rows that change: each as read, and as it is written.
    pub(crate) changed: Vec<(&'a Handle, Handle)>,
    /// Handles that are destroyed, or that need no row because their alloc is live: their rows are deleted.
    pub(crate) gone: Vec<&'a Handle>,
    /// Handles that were missing for too long: their rows become tombstones, with an event.
    pub(crate) dropped: Vec<&'a Handle>,
    /// The rows to make for handles that have this node's label and no row. If a live alloc uses the handle, its row is
    /// `live`, or it needs none. If a complete alloc left it, it needs none at first. Otherwise its row is `unknown`.
    pub(crate) new: Vec<Handle>,
    /// Handles that two reports listed as unknown: they are marked.
    pub(crate) twice_unknown: Vec<&'a Handle>,
    /// Handles that are marked, or that a complete alloc left, and still listed: the node is told to destroy them.
    pub(crate) destroy: BTreeSet<String>,
    /// Handles with the label of another node: the answer names them, and nobody destroys them.
    pub(crate) conflicts: Vec<String>,
    /// Whether a handle is missing and its missing time did not grow. So this report must not become the settled one.
    still_missing: bool,
}

/// What is known of the node besides its handles.
pub(crate) struct OfNode {
    pub(crate) node_id: NodeId,
    /// The labels of other nodes whose lives are over.
    pub(crate) over: BTreeSet<String>,
    /// The live allocs of the node.
    pub(crate) allocs: AllocIds,
    /// The caches that these allocs name.
    pub(crate) used_caches: BTreeSet<String>,
    /// The complete allocs of the node whose containers the report lists, and when they ended.
    pub(crate) complete: BTreeMap<AllocId, Time>,
}

impl OfNode {
    fn is_ours(&self, label: &str) -> bool {
        label == self.node_id.to_string() || self.over.contains(label)
    }

    /// The live alloc that a handle belongs to, if its name is the id of one.
    fn alloc_of(&self, handle: &str) -> Option<AllocId> {
        handle.parse().ok().filter(|id| self.allocs.contains(id))
    }

    /// The complete alloc that left this container, and when it ended.
    fn complete(&self, handle: &str) -> Option<(AllocId, Time)> {
        self.complete.get_key_value(&handle.parse().ok()?).map(|(id, ended_at)| (*id, *ended_at))
    }

    fn is_used(&self, handle: &str) -> bool {
        self.alloc_of(handle).is_some() || cache_name(handle).is_some_and(|cache| self.used_caches.contains(cache))
    }
}

impl HandleChanges<'_> {
    /// Whether nothing is pending, so that the rows need not be read if the same report comes again.
    pub(crate) fn is_quiet(&self, rows: &[Handle]) -> bool {
        let settled = |r: &Handle| matches!(r.state, HandleState::Live | HandleState::Gone);
        rows.iter().all(settled)
            && !self.still_missing
            && self.changed.is_empty()
            && self.dropped.is_empty()
            && self.new.is_empty()
            && self.destroy.is_empty()
            && self.conflicts.is_empty()
    }

    /// Whether a row is written.
    pub(crate) fn writes(&self) -> bool {
        !(self.changed.is_empty()
            && self.gone.is_empty()
            && self.dropped.is_empty()
            && self.new.is_empty()
            && self.twice_unknown.is_empty())
    }
}

/// Judges each row, and the handles without a row. `is_whole`: a handle that is not listed is not on the node.
pub(crate) fn judge<'a>(
    rows: &'a [Handle],
    handles: &[ReportedHandle],
    is_whole: bool,
    node: &OfNode,
    rules: ReportRules,
    now: Time,
) -> HandleChanges<'a> {
    let listed: BTreeMap<&str, &ReportedHandle> = handles.iter().map(|h| (h.handle.as_str(), h)).collect();
    let mut judging = Judging { node, rules, now, changes: HandleChanges::default() };
    for row in rows {
        let found = listed.get(row.handle.as_str()).copied();
        let sighting = if found.is_some() {
            Sighting::Listed
        } else if is_whole && rules.as_of >= row.seq {
            Sighting::NotListed
        } else {
            Sighting::Unproven
        };
        judging.row(row, found, sighting);
    }
    let known: BTreeSet<&str> = rows.iter().map(|r| r.handle.as_str()).collect();
    for handle in listed.values().filter(|h| !known.contains(h.handle.as_str())) {
        judging.unknown(handle);
    }
    judging.changes
}

struct Judging<'a, 'n> {
    node: &'n OfNode,
    rules: ReportRules,
    now: Time,
    changes: HandleChanges<'a>,
}

impl<'a> Judging<'a, '_> {
    /// Judges a handle that has a row. `found` is its entry in the report.
    fn row(&mut self, row: &'a Handle, found: Option<&ReportedHandle>, sighting: Sighting) {
        let (node, rules, now) = (self.node, self.rules, self.now);
        // The label decides, even if there is a row. A handle without a label, or with that of another node, is on the node: so it
        // is not missing, and nobody destroys it.
        if let Some(found) = found.filter(|found| !found.label.as_deref().is_some_and(|label| node.is_ours(label))) {
            self.changes.conflicts.extend(found.label.as_ref().map(|_| row.handle.clone()));
            return;
        }
        // The row of a live alloc's container is from a restored table, or from before its alloc was known again. It goes, because
        // the alloc alone says that its container is used: a row that stayed would outlive the alloc's end.
        if found.is_some() && node.alloc_of(&row.handle).is_some() {
            self.changes.gone.push(row);
            return;
        }
        let is_live = matches!(row.state, HandleState::Live | HandleState::Creating);
        if found.is_some() && node.is_used(&row.handle) && !is_live {
            // A live alloc uses the cache. Its row was marked because it appeared late, or is from a restored table.
            self.changes.changed.push((row, row.used(rules.seq, now)));
            return;
        }
        let changes = &mut self.changes;
        match row.reported(sighting, rules, now) {
            Judgement::Unchanged => {}
            Judgement::Appeared(after) | Judgement::Missing(after) => changes.changed.push((row, after)),
            Judgement::StillMissing => changes.still_missing = true,
            Judgement::Dropped => changes.dropped.push(row),
            Judgement::Gone => changes.gone.push(row),
            Judgement::TwiceUnknown => changes.twice_unknown.push(row),
            Judgement::ToDestroy => _ = changes.destroy.insert(row.handle.clone()),
        }
    }

    /// Judges a handle that has no row.
    fn unknown(&mut self, handle: &ReportedHandle) {
        let (node, rules, now) = (self.node, self.rules, self.now);
        let name = &handle.handle;
        let Some(label) = &handle.label else { return };
        if !node.is_ours(label) {
            // A cloned disk or a moved volume: the answer names the handle, and it stays while its node lives.
            self.changes.conflicts.push(name.clone());
            return;
        }
        // An alloc's container needs a row only if its destruction takes long.
        if node.alloc_of(name).is_some() {
            return;
        }
        if let Some((id, ended_at)) = node.complete(name) {
            self.changes.destroy.insert(name.clone());
            let is_late = now.since(ended_at) >= SOON;
            let marked = || Handle::of_alloc(node.node_id, id, rules.seq, now).marked(rules.seq, now);
            self.changes.new.extend(is_late.then(marked));
            return;
        }
        let row = Handle::unknown(node.node_id, handle, rules.report_no, now);
        self.changes.new.push(if node.is_used(name) { row.used(rules.seq, now) } else { row });
    }
}

/// At most `most` of these. Each report begins with others, so that a handle that cannot be destroyed does not block the rest.
pub(crate) fn turn<T: Clone>(all: &BTreeSet<T>, report_no: u64, most: usize) -> Vec<T> {
    let turn = usize::try_from(report_no).unwrap_or(0).wrapping_mul(most);
    let first = turn.checked_rem(all.len()).unwrap_or(0);
    let (before, from) = (all.iter().take(first), all.iter().skip(first));
    from.chain(before).take(most).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::HandleKind;
    use model::fixtures::{alloc_id, at, node_id};
    use model::handle::Readiness;

    const RULES: ReportRules = ReportRules {
        readiness: Readiness::Ready,
        report_no: 7,
        is_repeat: false,
        seq: 5,
        as_of: 5,
        report: Span::from_s(30),
        missing_grace: Span::from_s(60),
        cache_unused: Span::from_s(60),
    };

    /// In a restored table, the container of a live alloc has a row in any state. A row that stayed would be due in a day, also
    /// after the end of the alloc.
    #[test]
    fn the_row_of_a_live_alloc_goes() {
        let (live, node_id) = (alloc_id(1), node_id(0));
        let node = OfNode {
            node_id,
            over: BTreeSet::new(),
            allocs: [live].into(),
            used_caches: BTreeSet::new(),
            complete: BTreeMap::new(),
        };
        let (handle, kind) = (live.to_string(), HandleKind::Container);
        let listed = ReportedHandle { handle, kind, label: Some(node_id.to_string()), stays: None };
        let row = Handle::of_alloc(node_id, live, 5, at(2000));
        let rows = [
            Handle::unknown(node_id, &listed, 6, at(900)),
            row.marked(5, at(900)),
            Handle { state: HandleState::Live, ..row.clone() },
            row,
        ];
        for row in rows {
            let rows = [row];
            let changes = judge(&rows, std::slice::from_ref(&listed), true, &node, RULES, at(1000));
            assert_eq!((changes.gone.len(), changes.destroy.len()), (1, 0), "{rows:?}");
        }
    }

    /// Alloc, label, and seconds since the alloc's end × whether the container is destroyed, and the state of its new row.
    #[test]
    fn a_container_without_a_row_is_what_its_alloc_says() {
        let (live, complete, unknown) = (alloc_id(1), alloc_id(2), alloc_id(3));
        let (own, other) = (node_id(0).to_string(), node_id(1).to_string());
        for (id, label, ago_s, destroyed, state) in [
            (live, Some(&own), 0, false, None),
            (complete, Some(&own), 0, true, None),
            (complete, Some(&own), 119, true, None),
            (complete, Some(&own), 120, true, Some(HandleState::Destroying)),
            (complete, Some(&other), 0, false, None),
            (complete, None, 0, false, None),
            (unknown, Some(&own), 0, false, Some(HandleState::Unknown)),
        ] {
            let node = OfNode {
                node_id: node_id(0),
                over: BTreeSet::new(),
                allocs: [live].into(),
                used_caches: BTreeSet::new(),
                complete: [(complete, at(1000 - ago_s))].into(),
            };
            let (handle, kind) = (id.to_string(), HandleKind::Container);
            let listed = ReportedHandle { handle: handle.clone(), kind, label: label.cloned(), stays: None };
            let changes = judge(&[], &[listed], true, &node, RULES, at(1000));
            let states: Vec<HandleState> = changes.new.iter().map(|row| row.state).collect();
            assert_eq!(
                (changes.destroy.contains(&handle), states),
                (destroyed, Vec::from_iter(state)),
                "{handle} {ago_s}"
            );
            assert_eq!(
                changes.is_quiet(&[]),
                !destroyed && state.is_none() && changes.conflicts.is_empty(),
                "{handle} {ago_s}"
            );
        }
    }
}
