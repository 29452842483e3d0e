//! The invariants of brakes: no run and no report takes away an unusual share at once.

use super::{Check, RUN, SLACK, node_id, text, time};
use crate::caller::{Caller, Kind};
use crate::core::lock;
use crate::database::{Change, Model};
use crate::ec2::Real;
use model::control::BrakeEntry;
use model::{ControlKey, Policy, Span, Time};
use store::{Item, Row, Table, control_key, to_json};

/// How many things may have come or gone between a run's observation and its actions.
pub(super) const MOVED: usize = 3;

/// A brake: what it is about, the number and the share above which it holds back, and for how long.
struct Brake {
    name: &'static str,
    /// The source whose part of the brake's entry is about the thing that is taken away.
    source: String,
    /// The id of the thing that is taken away.
    id: String,
    floor: usize,
    fraction: f64,
    /// `None`: until an operator releases it.
    hold_s: Option<i64>,
}

/// How long the brake `leases` has held.
struct Blackout {
    since: Option<Time>,
    released: bool,
    waited: bool,
}

/// The row of a brake as the functions read it. That of a release has the same fields.
fn entry(row: &Row) -> Option<BrakeEntry> {
    serde_json::from_value(to_json(row)).ok()
}

/// Whether a lease expired before the run began.
fn is_long_over(caller: &Caller, row: &Item) -> bool {
    time(row, "lease_expires_at").is_some_and(|at| at + SLACK < caller.began())
}

/// How many nodes should heartbeat, and how many of their leases expired before the run began.
pub(super) fn leases(caller: &Caller, model: &Model) -> (usize, usize) {
    let status = |row: &&Row| matches!(text(row, "status"), Some("ready" | "syncing"));
    let leased = |row: &&Row| text(row, "state") == Some("in_use") && status(row);
    let leased: Vec<&Row> = model.rows(Table::Nodes).filter(leased).collect();
    (leased.len(), leased.iter().filter(|row| is_long_over(caller, row)).count())
}

impl Check {
    /// See [`Self::invariant_an_unusual_share_waits`].
    pub(super) fn brakes(&self, caller: &Caller, model: &Model, change: &Change) {
        let (Some(before), after) = (change.before.as_deref(), change.after.as_deref()) else { return };
        let Some(policy) = self.present_policy() else { return };
        match (&caller.kind, change.table) {
            (_, Table::Control) => {
                let key = text(before, "key").filter(|key| key.starts_with("brake#") || key.starts_with("release#"));
                if let (Some(key), Some(row)) = (key, &change.before) {
                    let (now, mut seen) = (self.core.now(), lock(&self.seen));
                    let rows = seen.brakes.entry(key.to_owned()).or_default();
                    rows.retain(|(_, at, _)| now.since(*at) < RUN);
                    rows.push((caller.number, now, row.clone()));
                }
            }
            (Kind::Run(_), Table::Nodes) => self.node_brakes(caller, model, &policy, before, after),
            (Kind::Node { what: "handles", node, .. }, Table::Handles) => {
                let state = |row: Option<&Item>| row.and_then(|r| text(r, "state")).unwrap_or("").to_owned();
                let taken = match (state(Some(before)).as_str(), state(after).as_str()) {
                    ("unknown", "destroying") => true,
                    // An unknown handle that disappears by itself does not count as a loss.
                    ("unknown" | "destroying" | "gone", _) => false,
                    (_, "gone") => true,
                    _ => false,
                };
                if taken {
                    let rows = model.rows(Table::Handles);
                    let all = rows.filter(|r| node_id(r) == Some(*node) && text(r, "state") != Some("gone")).count();
                    let sweep = &policy.sweep;
                    let floor = sweep.cap_min as usize;
                    let (source, id) = (source_of(caller), text(before, "handle").unwrap_or_default().to_owned());
                    let brake =
                        Brake { name: "handles", source, id, floor, fraction: sweep.cap_fraction, hold_s: None };
                    // Handles that were dropped are not counted in `all`.
                    self.invariant_an_unusual_share_waits(caller, model, &brake, all);
                }
            }
            _ => {}
        }
    }

    fn node_brakes(&self, caller: &Caller, model: &Model, policy: &Policy, before: &Item, after: Option<&Item>) {
        let leased = |row: &Item| matches!(text(row, "status"), Some("ready" | "syncing"));
        let silent = |row: &Item| matches!(text(row, "status"), Some("disconnected" | "down"));
        let up = |row: &Item| matches!(text(row, "state"), Some("assigned" | "in_use"));
        // The silence of a node whose instance does not run has a known cause, and needs no brake.
        let runs = text(before, "instance_id").and_then(|id| self.ec2()?.one(id)).is_some_and(|r| r.is_up());
        if leased(before) && after.is_some_and(silent) && runs {
            let all = model.rows(Table::Nodes).filter(|r| leased(r)).count();
            let beat = &policy.heartbeat;
            let hold_s = Some(beat.brake_hold_s.min(beat.blackout_s));
            let floor = beat.brake_min as usize;
            let brake =
                Brake { name: "leases", floor, fraction: beat.brake_fraction, hold_s, ..taken_by(caller, before) };
            self.invariant_an_unusual_share_waits(caller, model, &brake, all);
            self.invariant_when_all_are_silent_few_go_at_a_time(caller, model, policy, before);
            self.invariant_silence_is_believed_only_with_proof(caller, model, policy, before);
        }
        let cleaned = up(before) && after.is_some_and(|r| text(r, "state") == Some("cleaned"));
        let bound = text(before, "instance_id");
        // Whether EC2 lists the instance now, or listed it when the run read the list.
        let listed = |real: Real| real.is_listed(self.core.now()) || real.is_listed(self.core.now() - RUN);
        let listed = bound.and_then(|id| self.ec2()?.one(id)).is_some_and(listed);
        if cleaned && bound.is_some() && !listed {
            // Nodes that were shut down recently were still up when the run counted the nodes.
            let lately = |r: &Item| time(r, "modified_at").is_some_and(|at| self.core.now().since(at) < RUN);
            let was_up = |r: &Item| up(r) || (text(r, "state") == Some("shutting_down") && lately(r));
            // Nodes that were launched since the brake began to hold do not make the share smaller.
            let since = self.held_since(caller, model, "missing", &source_of(caller));
            let was_there =
                |r: &Item| since.is_none_or(|since| time(r, "assigned_at").is_none_or(|at| at <= since + SLACK));
            let all = model.rows(Table::Nodes).filter(|r| was_up(r) && was_there(r)).count();
            // The run also counted the nodes that it cleaned for another reason: EC2 said that their instances are
            // terminated.
            let cleaned = |r: &Item| text(r, "state") == Some("cleaned") && lately(r);
            let others = model.rows(Table::Nodes).filter(|r| cleaned(r)).count();
            let all = all + others.saturating_sub(caller.taken("missing"));
            let stale = &policy.stale;
            let floor = stale.brake_min as usize;
            let hold_s = Some(stale.brake_hold_s);
            let brake =
                Brake { name: "missing", floor, fraction: stale.brake_fraction, hold_s, ..taken_by(caller, before) };
            self.invariant_an_unusual_share_waits(caller, model, &brake, all);
        }
    }

    /// If all leases of more than `brake_min` nodes expired before the run began, no node is given up for
    /// `blackout_s`, and after that at most the brake's share in a run. A node may go at once if its instance does not
    /// run or an operator released the brake.
    fn invariant_when_all_are_silent_few_go_at_a_time(
        &self,
        caller: &Caller,
        model: &Model,
        policy: &Policy,
        before: &Item,
    ) {
        let beat = &policy.heartbeat;
        let taken = caller.taken("leases");
        let (left, over) = leases(caller, model);
        let all = left + taken;
        let silent = is_long_over(caller, before) && over == left && !caller.has_heard_somebody();
        if !silent || all <= beat.brake_min as usize + MOVED {
            return;
        }
        let Blackout { since, released, waited } = self.blackout(caller, model, policy, before);
        let most = (beat.brake_fraction * all as f64).ceil() as usize + MOVED;
        self.core.count("all were silent, and some went");
        let right = released || (waited && taken <= most);
        if !right {
            let what = format!("{} takes the {taken}th of {all}, silent since {since:?}: {before:?}", caller.name());
            self.broken("invariant_when_all_are_silent_few_go_at_a_time", what);
        }
    }

    /// A node is given up only if some heartbeat was accepted after the node should have called, however small the fleet is.
    /// Otherwise heartbeat-ingest may be down, and the node is given up only after `blackout_s`, or when an operator released
    /// the brake.
    fn invariant_silence_is_believed_only_with_proof(
        &self,
        caller: &Caller,
        model: &Model,
        policy: &Policy,
        before: &Item,
    ) {
        let beat = &policy.heartbeat;
        let Some(due) = time(before, "lease_expires_at").map(|at| at - Span::from_s(beat.grace_s)) else { return };
        let heard_at = lock(&self.seen).heard_at;
        if heard_at.is_some_and(|at| at + SLACK > due) {
            return;
        }
        let Blackout { released, waited, .. } = self.blackout(caller, model, policy, before);
        self.core.count("a silence was believed without proof");
        if !waited && !released {
            let what = format!("{} believes it, heard at {heard_at:?}, due at {due:?}: {before:?}", caller.name());
            self.broken("invariant_silence_is_believed_only_with_proof", what);
        }
    }

    fn blackout(&self, caller: &Caller, model: &Model, policy: &Policy, before: &Item) -> Blackout {
        let now = self.core.now();
        let Brake { source, id, .. } = taken_by(caller, before);
        let since = self.held_since(caller, model, "leases", &source);
        let hold = Span::from_s(policy.heartbeat.blackout_s);
        Blackout {
            since,
            released: self.is_released(caller, model, "leases", &source, &id),
            waited: since.is_some_and(|since| now.since(since) + SLACK >= hold),
        }
    }

    /// The possible rows of a brake's entry or release: the present row, and earlier rows if somebody else has changed
    /// it since the caller began, or shortly before. The caller may have read any of them.
    fn rows(&self, caller: &Caller, model: &Model, key: &ControlKey) -> Vec<BrakeEntry> {
        let seen = lock(&self.seen);
        let earlier = seen.brakes.get(&key.to_string()).into_iter().flatten();
        let earlier = earlier.filter(|(by, at, _)| *by != caller.number && *at + SLACK >= caller.began());
        let rows = model.get(&control_key(key)).into_iter().chain(earlier.map(|(.., row)| row));
        rows.filter_map(entry).collect()
    }

    /// Since when a brake holds something of this source, as its entry says. An expired entry does not count.
    fn held_since(&self, caller: &Caller, model: &Model, name: &str, source: &str) -> Option<Time> {
        let now = self.core.now();
        let rows = self.rows(caller, model, &ControlKey::Brake(name.parse().ok()?));
        let parts = rows.iter().filter_map(|row| row.parts.get(source));
        parts.filter(|part| now < part.until_at + RUN).map(|part| part.since_at).min()
    }

    /// Whether an operator has released this id of this source.
    fn is_released(&self, caller: &Caller, model: &Model, name: &str, source: &str, id: &str) -> bool {
        let Ok(kind) = name.parse() else { return false };
        let now = self.core.now();
        let rows = self.rows(caller, model, &ControlKey::Release(kind));
        let holds = |row: &&BrakeEntry| row.until_at.is_some_and(|until| now < until + RUN);
        let mut parts = rows.iter().filter(holds).filter_map(|row| row.parts.get(source));
        parts.any(|part| part.ids.iter().any(|released| released == id))
    }

    /// Called when an orphan is about to be terminated.
    pub(super) fn orphan(&self, model: &Model, caller: &Caller, real: &Real) {
        let Some(policy) = self.present_policy() else { return };
        if caller.kind == Kind::Run(clean_stale_records::FUNCTION) && real.is_up() {
            let (source, id) = (source_of(caller), real.instance.instance_id.clone());
            let floor = policy.stale.orphan_brake_min as usize;
            let brake = Brake { name: "orphans", source, id, floor, fraction: 0.0, hold_s: None };
            self.invariant_an_unusual_share_waits(caller, model, &brake, 0);
        }
    }

    /// More than the brake's number and share are taken away only after the brake has held for its time, or if an
    /// operator released them by name. `left` is how many still exist.
    fn invariant_an_unusual_share_waits(&self, caller: &Caller, model: &Model, brake: &Brake, left: usize) {
        let taken = caller.takes(brake.name);
        let all = left + taken + MOVED;
        let now = self.core.now();
        let since = self.held_since(caller, model, brake.name, &brake.source);
        let released = self.is_released(caller, model, brake.name, &brake.source, &brake.id);
        let waited = since.zip(brake.hold_s).is_some_and(|(since, s)| now.since(since) + SLACK >= Span::from_s(s));
        if released {
            self.core.count("a brake was released");
        }
        if !released && !waited {
            self.invariant_what_a_brake_holds_stays(caller, model, brake);
        }
        if taken <= brake.floor + MOVED || taken as f64 <= brake.fraction * all as f64 {
            return;
        }
        if waited {
            self.core.count("a brake let go by itself");
        }
        if !released && !waited {
            let what = format!("{} takes {taken} of {all} ({}): {}", caller.name(), brake.name, brake.id);
            self.broken("invariant_an_unusual_share_waits", what);
        }
    }

    /// A run or report does not take away what it has itself written into a brake's entry. A release allows what it
    /// names, and nothing else.
    fn invariant_what_a_brake_holds_stays(&self, caller: &Caller, model: &Model, brake: &Brake) {
        let Ok(kind) = brake.name.parse() else { return };
        let key = ControlKey::Brake(kind);
        let last = |rows: &Vec<(u64, Time, Row)>| rows.last().map(|(by, ..)| *by);
        if lock(&self.seen).brakes.get(&key.to_string()).and_then(last) != Some(caller.number) {
            return;
        }
        let row = model.get(&control_key(&key)).and_then(entry);
        let held = row.as_ref().and_then(|row| row.parts.get(&brake.source));
        if held.is_some_and(|part| part.ids.contains(&brake.id)) {
            let what = format!("{} takes {} although its own entry holds it", caller.name(), brake.id);
            self.broken("invariant_what_a_brake_holds_stays", what);
        }
    }
}

/// The source whose part of a brake is about what this caller takes away.
fn source_of(caller: &Caller) -> String {
    match &caller.kind {
        Kind::Run(function) => (*function).to_owned(),
        Kind::Node { node, .. } => node.to_string(),
        Kind::Operator => String::new(),
    }
}

/// The part of a brake that holds this node, and its id there. The settings are not filled in.
fn taken_by(caller: &Caller, record: &Item) -> Brake {
    let (source, id) = (source_of(caller), node_id(record).map(|id| id.to_string()).unwrap_or_default());
    Brake { name: "", source, id, floor: 0, fraction: 0.0, hold_s: None }
}
