//! The invariants of events and of the watchdog: a person can look up what happened, and why.
//!
//! Guarantees: a caller that came to its end, and whose writes were all answered, is judged by its changes and its
//! events.
//! Does not: judge a caller that was killed or cut off. The events of its last actions may be missing.

use super::{Check, RUN, SLACK, alloc_id, is_final, node_id, slot, text, time};
use crate::caller::{Caller, Change as Told, Kind};
use crate::core::lock;
use crate::database::{Change, Model};
use model::events::ONCE_PREFIX;
use model::functions::{self, CLEAN_STALE_RECORDS, SWEEP_DISPATCH};
use model::{AllocId, Span};
use runtime::answer::{ActionOutcome, RunAnswer};
use std::collections::BTreeSet;
use store::{Item, Table, control_key};

/// A word, and the actions of which one needs an event when an attribute changes to the word.
type Rule = (&'static str, &'static [&'static str]);

const STATES: &[Rule] =
    &[("in_use", &["heartbeat"]), ("shutting_down", &["shut_down"]), ("cleaned", &["clean", "abandon"])];

const STATUSES: &[Rule] =
    &[("syncing", &["heartbeat"]), ("ready", &["ready"]), ("disconnected", &["disconnect"]), ("down", &["mark_down"])];

/// The rows of jobs and allocs tell their placements and their ends.
const JOBS: &[Rule] = &[
    ("placing", &["place"]),
    ("queued", &["end_job", "requeue"]),
    ("regrouping", &["end_job", "requeue"]),
    ("rejected", &["reject"]),
];

const HANDLES: &[Rule] = &[("destroying", &["mark_destroying"])];

/// The actions for the new value of an attribute, if the attribute changed.
fn rule(rules: &'static [Rule], before: Option<&Item>, after: Option<&Item>, name: &str) -> &'static [&'static str] {
    let value = |row: Option<&Item>| row.and_then(|r| text(r, name)).map(ToOwned::to_owned);
    let (was, is) = (value(before), value(after));
    let found = rules.iter().find(|(word, _)| was != is && is.as_deref() == Some(word));
    found.map_or(&[], |(_, actions)| actions)
}

fn slot_subject(row: &Item) -> Vec<String> {
    slot(row).or_else(|| node_id(row).map(|n| n.slot())).map(|slot| format!("slot#{slot}")).into_iter().collect()
}

impl Check {
    /// Called for each event that is written.
    pub fn told(&self, caller: &Caller, event: &Item) {
        // Rows of the table that tell nothing.
        let no_event = |subject: &str| subject.starts_with(ONCE_PREFIX) || subject.starts_with("key#");
        if text(event, "subject").is_some_and(no_event) {
            return;
        }
        self.core.count("an event was kept");
        let words = |name: &str| text(event, name).unwrap_or_default().to_owned();
        let (subject, action, reason) = (words("subject"), words("action"), words("reason"));
        self.invariant_an_event_says_why(caller, event);
        caller.told_of(&subject, &action, &reason);
    }

    /// An event names its subject, what was done and why, and it expires.
    fn invariant_an_event_says_why(&self, caller: &Caller, event: &Item) {
        let known = ["slot#", "job#", "alloc#"];
        let subject = text(event, "subject").unwrap_or_default();
        let right = (subject == "cluster" || known.iter().any(|kind| subject.starts_with(kind)))
            && ["id", "action", "reason"].iter().all(|name| text(event, name).is_some_and(|said| !said.is_empty()))
            && event.contains_key("expires_at");
        if !right {
            self.broken("invariant_an_event_says_why", format!("{} wrote {event:?}", caller.name()));
        }
    }

    /// Notes which events these changes need. A drain needs one if EC2 takes the instance away. The operators of this
    /// world write rows as their commands do, but no events.
    pub(super) fn needs_events(&self, caller: &Caller, changes: &[Change]) {
        if caller.kind == Kind::Operator {
            return;
        }
        let ended = |change: &Change| {
            let is = |row: Option<&Item>| row.is_some_and(is_final);
            let ends = is(change.after.as_deref()) && !is(change.before.as_deref());
            change.after.as_deref().and_then(alloc_id).filter(|_| ends && change.table == Table::Allocs)
        };
        let ended: BTreeSet<AllocId> = changes.iter().filter_map(ended).collect();
        for change in changes {
            let (before, after) = (change.before.as_deref(), change.after.as_deref());
            let needed = match (change.table, after) {
                (Table::Nodes, Some(row)) => Self::of_node(caller, before, row),
                (Table::Jobs, Some(row)) => {
                    let subjects = text(row, "job_id").map(|job| format!("job#{job}")).into_iter().collect();
                    vec![(subjects, rule(JOBS, before, after, "state"), None)]
                }
                (Table::Allocs, Some(row)) => self.of_alloc(before, row),
                // A report makes the row of a handle that a complete alloc left. The event of the alloc's end says why
                // the handle goes.
                (Table::Handles, Some(_))
                    if before.is_none() && matches!(caller.kind, Kind::Node { what: "handles", .. }) =>
                {
                    Vec::new()
                }
                // The row of an alloc that ends in the same transaction says why its handle goes.
                (Table::Handles, Some(row)) if !alloc_id(row).is_some_and(|id| ended.contains(&id)) => {
                    vec![(slot_subject(row), rule(HANDLES, before, after, "state"), None)]
                }
                _ => Vec::new(),
            };
            for (subjects, actions, reason) in needed.into_iter().filter(|(_, actions, _)| !actions.is_empty()) {
                let what = format!("{before:?} → {after:?}");
                caller.changed(Told { subjects, actions, reason, what });
            }
        }
    }

    fn of_node(
        caller: &Caller,
        before: Option<&Item>,
        row: &Item,
    ) -> Vec<(Vec<String>, &'static [&'static str], Option<String>)> {
        let after = Some(row);
        let reason = text(row, "reason").map(ToOwned::to_owned);
        let mut state = rule(STATES, before, after, "state");
        // A launch that EC2 refused is not carried out: the run's answer says so, and the slot is free again.
        if before.and_then(node_id).is_some_and(|node| caller.is_refused(node)) {
            state = &[];
        }
        let status = rule(STATUSES, before, after, "status");
        let bound = |r: Option<&Item>| r.is_some_and(|r| r.contains_key("instance_id"));
        let same_life = before.and_then(node_id) == node_id(row);
        let binds: &[&str] = if same_life && bound(after) && !bound(before) {
            &["launch", "relaunch", "bind_instance", "heartbeat"]
        } else {
            &[]
        };
        let drains = |r: Option<&Item>| r.and_then(|r| time(r, "drain_by_at"));
        let drained: &[&str] =
            if same_life && drains(after).is_some() && drains(before) != drains(after) { &["drain"] } else { &[] };
        let subjects = slot_subject(row);
        vec![
            (subjects.clone(), state, reason.clone()),
            (subjects.clone(), status, if status == ["ready"] { None } else { reason }),
            (subjects.clone(), binds, None),
            (subjects, drained, None),
        ]
    }

    /// The return of an alloc, and the decisions of runs about it, are events. Its row says when it was placed, when it started,
    /// and when and why it ended.
    fn of_alloc(
        &self,
        before: Option<&Item>,
        row: &Item,
    ) -> Vec<(Vec<String>, &'static [&'static str], Option<String>)> {
        let Some(id) = alloc_id(row) else { return Vec::new() };
        let own = vec![format!("alloc#{id}")];
        let Some(before) = before else {
            // The event is about the unknown alloc that the new alloc replaces.
            let original = text(row, "replaces").map(|original| format!("alloc#{original}"));
            return original.map(|original| (vec![original], &["replace"][..], None)).into_iter().collect();
        };
        let mut needed = Vec::new();
        if is_final(row) && !["cause", "finished_at", "ended"].iter().all(|said| row.contains_key(*said)) {
            self.broken("invariant_an_end_is_told_by_its_row", format!("{row:?}"));
        }
        let of_client = rule(&[("unknown", &["unknown_alloc"])], Some(before), Some(row), "client");
        needed.push((own.clone(), of_client, None));
        if text(before, "client") == Some("unknown") && text(row, "client") == Some("running") {
            needed.push((own.clone(), &["return_alloc"], None));
        }
        if text(row, "desired") == Some("stop") && text(before, "desired") == Some("run") && !is_final(row) {
            // If one of several copies stays, the event is about that copy.
            let seen = lock(&self.seen);
            let copies = seen.live.keys().filter(|copy| (copy.job_id, copy.member) == (id.job_id, id.member));
            let subjects = own.into_iter().chain(copies.map(|copy| format!("alloc#{copy}"))).collect();
            needed.push((subjects, &["stop_alloc", "drain", "resolve_reconnect"], None));
        }
        needed
    }

    /// Every change has its event: of the right subject and action, and with the reason that the record has. Checked when
    /// the caller has come to its end, if it knows what became of each of its writes.
    pub fn invariant_every_change_has_its_event(&self, caller: &Caller) {
        if caller.is_unsure() {
            return;
        }
        let told = caller.told();
        for change in &told.changes {
            let tells = |(subject, action, reason): &&(String, String, String)| {
                change.subjects.contains(subject)
                    && change.actions.contains(&action.as_str())
                    && change.reason.as_ref().is_none_or(|words| words == reason)
            };
            if told.events.iter().find(tells).is_none() {
                let events = told.events.iter().filter(|(subject, ..)| change.subjects.contains(subject));
                let events: Vec<_> = events.collect();
                let Told { subjects, actions, reason, what } = change;
                let what = format!(
                    "{} left no event {actions:?} of {subjects:?} for {reason:?}, only {events:?}: {what}",
                    caller.name()
                );
                self.broken("invariant_every_change_has_its_event", what);
            }
        }
    }

    /// A run that came to its end has noted in its row that it ran. And if another function was overdue when it began, the
    /// alarms of the run that tells it say so.
    pub fn invariant_what_stands_still_is_told(
        &self,
        model: &Model,
        caller: &Caller,
        function: &'static str,
        answer: &RunAnswer,
    ) {
        let left = answer.actions.iter().any(|action| action.outcome == ActionOutcome::Left);
        if caller.is_unsure() || left || self.forgets(Some(caller.began())) {
            return;
        }
        if self.has_spoiled() {
            // The row of this run, or of another one, may be unreadable.
            return;
        }
        let own = run_row(model, function);
        let noted = own.and_then(|row| time(&row, "started_at")).is_some_and(|at| at + SLACK >= answer.observed_at);
        if !noted && !caller.has_lost() {
            self.broken("invariant_what_stands_still_is_told", format!("{} left no row of itself", caller.name()));
        }
        let most = self.policies(RUN).iter().map(|p| p.watchdog.multiplier).fold(0.0, f64::max);
        for (other, period) in functions::scheduled().filter(|(other, _)| other.name != function) {
            let Some(row) = run_row(model, other.name) else { continue };
            let quiet = time(&row, "last_success_at").or_else(|| time(&row, "failing_since_at"));
            let limit = Span::from_ms((period.as_ms() as f64 * most) as i64) + SLACK + RUN;
            if quiet.is_none_or(|at| caller.began().since(at) <= limit) {
                continue;
            }
            self.core.count("a function was overdue");
            // sweep-dispatch tells the others, and clean-stale-records tells sweep-dispatch.
            let tells = function == SWEEP_DISPATCH.name
                || (function == CLEAN_STALE_RECORDS.name && other.name == SWEEP_DISPATCH.name);
            if tells && !answer.wrong.contains(&"function") {
                let what = format!("{} says nothing of {}: {row:?}", caller.name(), other.name);
                self.broken("invariant_what_stands_still_is_told", what);
            }
        }
    }
}

fn run_row(model: &Model, function: &str) -> Option<store::Row> {
    let key = format!("run#{function}").parse().ok()?;
    model.get(&control_key(&key)).cloned()
}
