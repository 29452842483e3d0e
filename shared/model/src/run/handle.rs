//! The handle: a container or volume that lives on a node and must one day be destroyed.
//!
//! ```text
//!   cache: placed              a report lists it           unused, or kept long enough
//!  ────────▶ creating ───────────────────────▶ live ───────────────────────────────▶ destroying
//!   failed      │                               │ ▲                                      │ ▲
//!   alloc       │ kept long enough              │ │ used by a live alloc                 │ │ alloc ended
//!               └───────────────▶ destroying    │ │                                      │ a newer
//!                                               │ unknown ──▶ destroying (listed twice)  │ report does
//!                                               │                                        ▼ not list it
//!                                               │                                        row deleted
//!                                               └─▶ gone: missing for `sweep.missing_grace_s`
//! ```
//!
//! A handle of an alloc has no row while the alloc lives: the alloc itself says that it is in use. After a complete alloc, the
//! handle gets a row only if it stays on the node. Any other end of the alloc, or sweep-dispatch, marks the handle, the node
//! destroys it, and the next report confirms it.
//!
//! Guarantees: a report that may be older than a handle's row never makes the handle missing or gone; a handle
//! is destroyed only if it was marked, or if two reports listed it as unknown. A destroyed handle needs no tombstone: a node's
//! reports have numbers, and a number that is not higher changes nothing.
//! Does not: count how many handles a report would take away; sweep-dispatch does, and refuses an unusual share.
//! Rules: `docs/rules.md#section-7`. Source: Concourse #1959.

use crate::enums::{HandleKind, HandleState};
use crate::wire::ReportedHandle;
use crate::{AllocId, NodeId, Reason, Span, Time};
use serde::{Deserialize, Serialize};

/// The longest time until a run judges a handle again, in seconds.
pub const MAX_DUE_S: i64 = 86_400;

/// A row of the handles table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub node_id: NodeId,
    /// The name on the node.
    pub handle: String,
    pub kind: HandleKind,
    /// The alloc that the handle was made for; `None` for a cache.
    pub alloc_id: Option<AllocId>,
    pub state: HandleState,
    /// The node's `seq` at the last order about this handle. A report with a lower `as_of` does not show whether the
    /// handle is missing.
    pub seq: u64,
    /// For a handle that is `creating`: until when it may stay so. For a live cache: until when it may be unused. For one
    /// that is `destroying`: by when its node should have destroyed it.
    pub deadline_at: Option<Time>,
    /// How long the handle has been missing from accepted reports, in milliseconds.
    pub missing_ms: Option<i64>,
    /// The time of the last accepted report that did not list the handle.
    pub missing_reported_at: Option<Time>,
    /// The number of the report that first listed the handle as unknown.
    pub unknown_report_no: Option<u64>,
    /// When sweep-dispatch judges the handle next; at most a day ahead.
    pub due_at: Time,
    /// Epoch **seconds**: DynamoDB deletes the row some time after. Set on a tombstone, and while the node's record
    /// does not exist or is older than the node.
    pub expires_at: Option<i64>,
}

/// How long a tombstone stays. If a disk comes back later, its handles are unknown. The time is no longer, because each handle
/// report reads all rows of its node.
const TOMBSTONE: Span = Span::from_s(3600);
/// A node that still has a handle this long after the order to destroy it seems unable to destroy it. An event and `status` then name
/// the handle. If it is a cache, the next alloc that names it takes it back. The row is due this often, so that `status` finds it
/// among the rows that are due soon.
pub const STUCK_AFTER: Span = Span::from_s(600);
/// [`MAX_DUE_S`] as a span.
const DAY: Span = Span::from_s(MAX_DUE_S);

/// Whether a report lists the handle of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// The report lists the handle.
    Listed,
    /// The report does not list the handle and is not older than its row: the handle is not on the node.
    NotListed,
    /// The report does not list the handle, but may be older than its row.
    Unproven,
}

/// Whether the reports of a node can make a live handle missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    NotReady,
}

/// What [`Handle::reported`] needs of the report, the node and the policy.
#[derive(Clone, Copy, Debug)]
pub struct ReportRules {
    pub readiness: Readiness,
    pub report_no: u64,
    /// Whether the same report came before. It changes nothing a second time.
    pub is_repeat: bool,
    /// The `seq` of the node.
    pub seq: u64,
    /// The highest `seq` that the agent had applied before it began to list.
    pub as_of: u64,
    /// The time between two reports, by the policy.
    pub report: Span,
    /// How long a live handle may be missing before it counts as gone.
    pub missing_grace: Span,
    /// How long a cache may be unused before it is destroyed.
    pub cache_unused: Span,
}

/// The effect of a report on one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    Unchanged,
    /// The handle is on the node. Its row becomes this one.
    Appeared(Handle),
    /// The handle is missing, but not long enough to count as gone. Its row becomes this one.
    Missing(Handle),
    /// The handle is missing, and its missing time does not grow: the report came twice, or again in the same millisecond.
    StillMissing,
    /// The handle was missing for too long: it counts as gone.
    Dropped,
    /// The handle is destroyed: this report confirms it.
    Gone,
    /// A second report lists the handle although no row orders it.
    TwiceUnknown,
    /// The handle is marked for destruction and is still on the node.
    ToDestroy,
}

/// The state of a handle's node when the handle is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFact {
    /// The life of the node is over.
    Over,
    /// The record does not exist or is older than the node: the table was restored from a backup.
    Lost,
    /// The node lives.
    Lives {
        /// Whether the handle's alloc is live, by the set `allocs` of the node's record.
        is_alloc_live: bool,
        /// Whether the handle is a cache, and a live alloc of the node names it, or may do so.
        is_cache_named: bool,
    },
}

/// The decision about a handle that is due.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    /// The handle is marked for destruction.
    Mark(Reason),
    /// sweep-dispatch judges the handle again later. Its row becomes this one.
    Later(Box<Handle>, Reason),
    /// The tombstone is deleted.
    Forget(Reason),
    /// The row is deleted: the life of the node is over.
    Purge(Reason),
}

impl Handle {
    /// A row with the attributes that every handle has; all others are empty.
    pub const fn new(
        node_id: NodeId,
        handle: String,
        kind: HandleKind,
        state: HandleState,
        seq: u64,
        due_at: Time,
    ) -> Self {
        Self {
            node_id,
            handle,
            kind,
            alloc_id: None,
            state,
            seq,
            deadline_at: None,
            missing_ms: None,
            missing_reported_at: None,
            unknown_report_no: None,
            due_at,
            expires_at: None,
        }
    }

    /// The row of the handle of an alloc. Its node may never have made the handle.
    pub fn of_alloc(node_id: NodeId, alloc_id: AllocId, seq: u64, due_at: Time) -> Self {
        let (kind, state) = (HandleKind::Container, HandleState::Creating);
        Self { alloc_id: Some(alloc_id), ..Self::new(node_id, alloc_id.to_string(), kind, state, seq, due_at) }
    }

    /// The row of a handle that a report lists although no row orders it.
    pub fn unknown(node_id: NodeId, found: &ReportedHandle, report_no: u64, now: Time) -> Self {
        let (handle, state) = (found.handle.clone(), HandleState::Unknown);
        let row = Self::new(node_id, handle, found.kind, state, 0, now + DAY);
        Self { unknown_report_no: Some(report_no), ..row }
    }

    /// The row of a cache that a live alloc names.
    #[must_use]
    pub fn used(&self, seq: u64, now: Time) -> Self {
        let row = Self { state: HandleState::Live, seq, due_at: now + DAY, deadline_at: None, ..self.clone() };
        Self { unknown_report_no: None, expires_at: None, ..row }.not_missing()
    }

    /// The row marked for destruction. `seq` is the number of the order to destroy.
    pub fn marked(&self, seq: u64, now: Time) -> Self {
        let by = now + STUCK_AFTER;
        let row = Self { state: HandleState::Destroying, seq, due_at: by, deadline_at: Some(by), ..self.clone() };
        row.not_missing()
    }

    /// Whether its node was told to destroy it at least [`STUCK_AFTER`] ago, and so seems unable to.
    pub fn is_stuck(&self, now: Time) -> bool {
        self.state == HandleState::Destroying && self.deadline_at.is_some_and(|by| by <= now)
    }

    /// How long ago its node was told to destroy it, if it is stuck.
    pub fn stuck_for(&self, now: Time) -> Option<Span> {
        let by = self.deadline_at.filter(|_| self.is_stuck(now))?;
        Some(now.since(by) + STUCK_AFTER)
    }

    /// The row of a handle that was missing for too long, as a tombstone. If sweep-dispatch does not delete the row, DynamoDB does
    /// two days later.
    pub fn buried(&self, now: Time) -> Self {
        let expires_at = Some((now + DAY + DAY).as_epoch_s());
        Self { state: HandleState::Gone, due_at: now + TOMBSTONE, deadline_at: None, expires_at, ..self.clone() }
    }

    fn not_missing(self) -> Self {
        Self { missing_ms: None, missing_reported_at: None, ..self }
    }

    /// The effect of a report on this row.
    pub fn reported(&self, sighting: Sighting, rules: ReportRules, now: Time) -> Judgement {
        match (self.state, sighting) {
            (HandleState::Creating, Sighting::Listed) => self.appeared(rules, now),
            (HandleState::Destroying, Sighting::Listed) => Judgement::ToDestroy,
            (HandleState::Destroying | HandleState::Unknown, Sighting::NotListed) => Judgement::Gone,
            (HandleState::Live, Sighting::Listed) if self.missing_ms.is_some() => {
                Judgement::Appeared(self.clone().not_missing())
            }
            (HandleState::Live, Sighting::NotListed) if rules.readiness == Readiness::Ready => self.missing(rules, now),
            (HandleState::Unknown, Sighting::Listed) => self.listed_unknown(rules),
            (HandleState::Gone, Sighting::Listed) if rules.as_of >= self.seq => {
                let found = Self { state: HandleState::Live, expires_at: None, due_at: now, ..self.clone() };
                Judgement::Appeared(found.not_missing())
            }
            (HandleState::Creating | HandleState::Live | HandleState::Gone, Sighting::NotListed)
            | (HandleState::Live | HandleState::Gone, Sighting::Listed)
            | (_, Sighting::Unproven) => Judgement::Unchanged,
        }
    }

    /// A cache is due next when it may have been unused for too long. The due time of an alloc's handle stays.
    fn appeared(&self, rules: ReportRules, now: Time) -> Judgement {
        let due_at = if self.alloc_id.is_none() { now + rules.cache_unused.min(DAY) } else { self.due_at };
        Judgement::Appeared(Self { state: HandleState::Live, deadline_at: None, due_at, ..self.clone() })
    }

    /// The missing time grows only between accepted reports of a ready node. After a long gap between two reports, it
    /// grows by no more than twice the usual time between reports: in the rest of the gap, the node was silent or not
    /// ready.
    fn missing(&self, rules: ReportRules, now: Time) -> Judgement {
        if rules.is_repeat && self.missing_reported_at.is_some() {
            return Judgement::StillMissing;
        }
        let usual_ms = rules.report.as_ms().saturating_mul(2);
        let more = self.missing_reported_at.map_or(0, |at| now.since(at).as_ms().clamp(0, usual_ms));
        let missing_ms = self.missing_ms.unwrap_or(0).saturating_add(more);
        if Span::from_ms(missing_ms) >= rules.missing_grace && self.missing_ms.is_some() {
            return Judgement::Dropped;
        }
        let after = Self { missing_ms: Some(missing_ms), missing_reported_at: Some(now), ..self.clone() };
        // DynamoDB refuses a write that changes nothing.
        if after == *self { Judgement::StillMissing } else { Judgement::Missing(after) }
    }

    /// Any other report number counts as a second report. A lower number is from a later incarnation, because within one
    /// incarnation a lower number is refused as stale.
    fn listed_unknown(&self, rules: ReportRules) -> Judgement {
        let first = self.unknown_report_no == Some(rules.report_no);
        if first { Judgement::Unchanged } else { Judgement::TwiceUnknown }
    }

    /// Decides about the handle when it is due. `cache_unused` is how long a cache may be unused.
    pub fn due(&self, node: NodeFact, cache_unused: Span, now: Time) -> Due {
        let (is_alloc_live, is_cache_named) = match node {
            NodeFact::Over => return Due::Purge(Reason::NodeGone { node_id: self.node_id }),
            NodeFact::Lost => return self.orphaned(now),
            NodeFact::Lives { is_alloc_live, is_cache_named } => (is_alloc_live, is_cache_named),
        };
        let tomorrow = |reason| Due::Later(Box::new(Self { due_at: now + DAY, ..self.clone() }), reason);
        if self.state != HandleState::Gone && self.expires_at.is_some() {
            let after = Self { expires_at: None, due_at: now, ..self.clone() };
            return Due::Later(Box::new(after), Reason::NodeKnownAgain {});
        }
        match (self.state, self.alloc_id) {
            (HandleState::Gone, _) => Due::Forget(Reason::Destroyed {}),
            (HandleState::Destroying, _) => {
                Due::Later(Box::new(Self { due_at: now + STUCK_AFTER, ..self.clone() }), Reason::WaitsForReport {})
            }
            (HandleState::Unknown, _) => tomorrow(Reason::NobodyOrdered {}),
            (HandleState::Creating | HandleState::Live, Some(_)) if is_alloc_live => Due::Forget(Reason::AllocLive {}),
            (HandleState::Creating | HandleState::Live, Some(alloc_id)) => Due::Mark(Reason::AllocEnded { alloc_id }),
            (HandleState::Creating | HandleState::Live, None) if self.kind == HandleKind::Volume => {
                self.cache_due(is_cache_named, cache_unused, now)
            }
            (HandleState::Creating | HandleState::Live, None) => Due::Mark(Reason::BelongsToNoAlloc {}),
        }
    }

    /// The row stays for a day. If the node's record does not come back by then, the row is deleted.
    fn orphaned(&self, now: Time) -> Due {
        if self.expires_at.is_some_and(|at| at <= now.as_epoch_s()) {
            return Due::Purge(Reason::RecordMissing {});
        }
        let expires_at = self.expires_at.or_else(|| Some((now + DAY).as_epoch_s()));
        let due_at = now + Span::from_s(MAX_DUE_S / 2);
        Due::Later(Box::new(Self { expires_at, due_at, ..self.clone() }), Reason::RecordMissing {})
    }

    fn cache_due(&self, is_named: bool, unused: Span, now: Time) -> Due {
        let look = unused.min(DAY);
        let later = |deadline_at: Option<Time>, due_at: Time, reason| {
            Due::Later(Box::new(Self { due_at, deadline_at, ..self.clone() }), reason)
        };
        match self.deadline_at {
            _ if is_named => later(None, now + look, Reason::CacheInUse {}),
            Some(by) if now < by => later(Some(by), by.min(now + look), Reason::NotUnusedLongEnough {}),
            Some(_) if self.state == HandleState::Live => Due::Mark(Reason::CacheUnused { unused }),
            Some(_) => Due::Mark(Reason::NeverAppeared {}),
            None => later(Some(now + unused), now + look, Reason::UnusedFromNow {}),
        }
    }
}

/// The cache whose volume this handle is; `None` if it is something else.
pub fn cache_name(handle: &str) -> Option<&str> {
    handle.strip_prefix("cache:")
}

/// The name of a cache's volume on its node.
pub fn cache_handle(cache: &str) -> String {
    format!("cache:{cache}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, at};

    const RULES: ReportRules = ReportRules {
        readiness: Readiness::Ready,
        report_no: 9,
        is_repeat: false,
        seq: 5,
        as_of: 5,
        report: Span::from_s(30),
        missing_grace: Span::from_s(100),
        cache_unused: Span::from_s(86_400),
    };

    fn handle(state: HandleState) -> Handle {
        Handle::new(fixtures::node_id(1), "cache:data".into(), HandleKind::Volume, state, 5, at(1))
    }

    #[test]
    fn an_unknown_handle_is_destroyed_when_reported_again() {
        let row = Handle { unknown_report_no: Some(3), ..handle(HandleState::Unknown) };
        let judged =
            |row: &Handle, report_no| row.reported(Sighting::Listed, ReportRules { report_no, ..RULES }, at(2));
        assert_eq!(judged(&row, 3), Judgement::Unchanged, "the same report once more");
        assert_eq!(judged(&row, 4), Judgement::TwiceUnknown);
        assert_eq!(judged(&row, 1), Judgement::TwiceUnknown, "the first report of another incarnation");
    }

    #[test]
    fn a_handle_whose_disk_was_away_is_missing_by_the_reports_and_live_when_it_comes_back() {
        let live = handle(HandleState::Live);
        let mut row = live.clone();
        // The handle is missing once, then no report comes for an hour, then it is missing three times more. At most a minute
        // counts between two reports.
        let mut dropped = Vec::new();
        for s in [0, 3600, 3630, 3660] {
            match row.reported(Sighting::NotListed, RULES, at(s)) {
                Judgement::Missing(after) => row = after,
                judgement => dropped.push((s, judgement)),
            }
            let again = row.reported(Sighting::NotListed, RULES, at(s));
            assert!(
                s == 3660 || again == Judgement::StillMissing,
                "the same report in the same millisecond: {again:?}"
            );
        }
        assert_eq!((dropped, row.missing_ms), (vec![(3660, Judgement::Dropped)], Some(90_000)));
        let gone = row.buried(at(3660));
        let back = Judgement::Appeared(Handle { due_at: at(4000), ..live });
        assert_eq!(gone.reported(Sighting::Listed, RULES, at(4000)), back);
        let older = ReportRules { as_of: 4, ..RULES };
        assert_eq!(gone.reported(Sighting::Listed, older, at(4000)), Judgement::Unchanged, "an older report");
    }

    #[test]
    fn a_report_shows_that_a_handle_is_missing_only_if_it_is_not_older() {
        for state in HandleState::ALL {
            assert_eq!(handle(*state).reported(Sighting::Unproven, RULES, at(2)), Judgement::Unchanged, "{state}");
        }
        let not_ready = ReportRules { readiness: Readiness::NotReady, ..RULES };
        assert_eq!(handle(HandleState::Live).reported(Sighting::NotListed, not_ready, at(2)), Judgement::Unchanged);
        assert_eq!(handle(HandleState::Creating).reported(Sighting::NotListed, RULES, at(2)), Judgement::Unchanged);
        assert_eq!(handle(HandleState::Destroying).reported(Sighting::NotListed, RULES, at(2)), Judgement::Gone);
    }

    #[test]
    fn a_cache_is_marked_only_after_it_was_unused_for_its_time() {
        let idle = NodeFact::Lives { is_alloc_live: false, is_cache_named: false };
        let busy = NodeFact::Lives { is_alloc_live: false, is_cache_named: true };
        let unused = Span::from_s(1000);
        let Due::Later(counted, Reason::UnusedFromNow {}) = handle(HandleState::Live).due(idle, unused, at(10)) else {
            panic!("the unused time did not start")
        };
        assert_eq!(counted.deadline_at, Some(at(1010)));
        assert!(matches!(counted.due(idle, unused, at(1009)), Due::Later(_, Reason::NotUnusedLongEnough {})));
        assert_eq!(counted.due(idle, unused, at(1010)), Due::Mark(Reason::CacheUnused { unused }));
        let Due::Later(used, Reason::CacheInUse {}) = counted.due(busy, unused, at(1010)) else { panic!("marked") };
        assert_eq!(used.deadline_at, None);
        assert!(matches!(counted.due(NodeFact::Over, unused, at(10)), Due::Purge(_)));
        assert!(matches!(counted.due(NodeFact::Lost, unused, at(10)), Due::Later(_, Reason::RecordMissing {})));
    }

    #[test]
    fn what_never_appeared_by_its_deadline_is_marked() {
        let row = Handle { deadline_at: Some(at(600)), ..handle(HandleState::Creating) };
        let lives = NodeFact::Lives { is_alloc_live: false, is_cache_named: false };
        let unused = Span::from_s(1000);
        assert!(matches!(row.due(lives, unused, at(599)), Due::Later(_, Reason::NotUnusedLongEnough {})));
        assert_eq!(row.due(lives, unused, at(600)), Due::Mark(Reason::NeverAppeared {}));
        // Until its node has destroyed it, the row is due so often that a query for rows due soon finds it.
        let marked = row.marked(9, at(600));
        assert_eq!((marked.due_at, marked.stuck_for(at(1199))), (at(1200), None));
        assert_eq!(marked.stuck_for(at(1260)), Some(Span::from_s(660)));
        let Due::Later(later, Reason::WaitsForReport {}) = marked.due(lives, unused, at(1200)) else {
            panic!("marked")
        };
        assert_eq!((later.due_at, later.stuck_for(at(1260))), (at(1800), Some(Span::from_s(660))));
        // If it appears after all, it is live again.
        let late = row.marked(9, at(600)).used(9, at(700));
        assert_eq!((late.state, late.deadline_at), (HandleState::Live, None));
    }

    #[test]
    fn what_a_failed_alloc_left_is_looked_at_when_its_time_is_over_whether_it_appeared_or_not() {
        let row = Handle::of_alloc(fixtures::node_id(1), fixtures::alloc_id(1), 5, at(90));
        let Judgement::Appeared(live) = row.reported(Sighting::Listed, RULES, at(2)) else { panic!("{row:?}") };
        assert_eq!((live.state, live.due_at), (HandleState::Live, at(90)));
        let ended = NodeFact::Lives { is_alloc_live: false, is_cache_named: false };
        for row in [row, live] {
            assert!(matches!(row.due(ended, DAY, at(90)), Due::Mark(Reason::AllocEnded { .. })), "{row:?}");
        }
    }

    #[test]
    fn a_repeat_of_a_report_changes_nothing() {
        let Judgement::Missing(row) = handle(HandleState::Live).reported(Sighting::NotListed, RULES, at(0)) else {
            panic!("not missing")
        };
        let again = ReportRules { is_repeat: true, ..RULES };
        assert_eq!(row.reported(Sighting::NotListed, again, at(30)), Judgement::StillMissing);
        assert!(matches!(row.reported(Sighting::NotListed, RULES, at(30)), Judgement::Missing(_)));
    }

    #[test]
    fn a_row_whose_record_did_not_come_back_for_a_day_is_deleted() {
        let unused = Span::from_s(1000);
        let Due::Later(row, _) = handle(HandleState::Live).due(NodeFact::Lost, unused, at(0)) else {
            panic!("deleted")
        };
        assert!(matches!(row.due(NodeFact::Lost, unused, at(86_399)), Due::Later(..)));
        assert_eq!(row.due(NodeFact::Lost, unused, at(86_400)), Due::Purge(Reason::RecordMissing {}));
        assert!(matches!(row.due(NodeFact::Over, unused, at(1)), Due::Purge(Reason::NodeGone { .. })));
    }
}
