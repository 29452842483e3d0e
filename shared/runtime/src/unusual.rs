//! What a run found that a person may have to know of, as numbers. The template's alarms look at them.
//!
//! Guarantees: the numbers come from what the run has read and decided. Nothing is read for them.
//! Does not: say how long something unusual may last. Each alarm does.

use crate::observation::Observation;
use crate::watchdog;
use model::control::Control;
use model::functions::SWEEP_DISPATCH;
use model::time::Time;
use model::{BrakeKind, Life, NodeRecord};
use store::Table;

/// What a run found that is unusual. A function leaves at 0 what another function counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unusual {
    /// How many nodes, records, instances and handles brakes hold back.
    pub held: u64,
    /// Instances that belong to no record.
    pub orphans: u64,
    /// Instances that records name and EC2 does not list.
    pub absent: u64,
    /// Starts that failed in a row.
    pub failed_starts: u64,
    /// Rows that cannot be used. A row of the control table with a key that this version does not know is none of them:
    /// newer code has written it, and a person need not do anything.
    pub set_aside: u64,
    /// Nodes that are wanted and not ready.
    pub unready: u64,
    /// Other functions whose last success is too old.
    pub overdue: u64,
    /// Whether EC2 listed no instance although records name some.
    pub list_is_empty: bool,
}

impl Unusual {
    /// What poll-and-scale found. `unready` is how many of the wanted nodes are not ready.
    pub fn by_poll(seen: &Observation, unready: u32, now: Time) -> Self {
        let lives = || seen.nodes.iter().filter_map(NodeRecord::life);
        let rows = seen.aside.rows.iter().filter(|row| row.table != Table::Control).count();
        let entries = seen.control.unreadable.iter().filter(|entry| entry.is_known).count();
        let absent = |life: &&Life| life.instance_id.is_some() && life.absent_since_at.is_some();
        Self {
            held: BrakeKind::ALL.iter().map(|kind| held(&seen.control, *kind, now)).sum(),
            absent: lives().filter(absent).count() as u64,
            failed_starts: seen.control.failed_starts().count(),
            set_aside: (rows + entries) as u64,
            unready: u64::from(unready),
            list_is_empty: seen.instances.is_empty() && lives().any(|life| life.instance_id.is_some()),
            ..Self::default()
        }
    }

    /// What clean-stale-records found. `terminated` is how many orphans it terminates.
    ///
    /// A release frees what was held, so what is held and what is terminated may be the same orphans.
    ///
    /// Of the rows that are set aside it counts the jobs: it alone reads whole rows of them.
    pub fn by_clean(seen: &Observation, terminated: usize, now: Time) -> Self {
        Self {
            orphans: held(&seen.control, BrakeKind::Orphans, now).max(terminated as u64),
            set_aside: seen.aside.rows.iter().filter(|row| row.table == Table::Jobs).count() as u64,
            ..Self::default()
        }
    }

    /// What sweep-dispatch found.
    ///
    /// It counts the overdue functions because it needs DynamoDB alone: when EC2 does not answer, the two functions that need
    /// EC2 fail, and this one still tells of them. Of the rows that are set aside it counts the handles, which nobody else
    /// reads.
    pub fn by_sweep(seen: &Observation, now: Time) -> Self {
        let in_use = seen.nodes.iter().filter(|n| n.status().is_some()).count();
        Self {
            set_aside: seen.aside.rows.iter().filter(|row| row.table == Table::Handles).count() as u64,
            overdue: watchdog::overdue(&seen.control, &seen.policy, in_use, SWEEP_DISPATCH, now).len() as u64,
            ..Self::default()
        }
    }

    /// Whether there is something that must be told although the run saw and did nothing else. Failed starts alone need not:
    /// their number stays until a node starts, and without work no node does.
    pub fn must_be_told(self) -> bool {
        Self { failed_starts: 0, ..self } != Self::default()
    }
}

/// How much a brake holds back now, as the control table was read.
fn held(control: &Control, kind: BrakeKind, now: Time) -> u64 {
    let brake = control.brake(kind);
    if brake.holds_back(now) { brake.held().unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soundness::Unsound;
    use model::cloud::Instance;
    use model::control::{ControlKey, EntryRow, RunRow, Tally, UnreadableEntry};
    use model::events::Subject;
    use model::fixtures::{self, at};
    use model::functions::POLL_AND_SCALE;
    use model::policy::{Policy, example_json};
    use model::time::Span;

    fn seen() -> Observation {
        Observation::empty(Policy::from_json(&example_json()).unwrap(), 1, at(0))
    }

    fn listed(record: &NodeRecord) -> Instance {
        fixtures::running(record.life().unwrap().instance_id.as_ref().unwrap(), record)
    }

    fn brake(kind: BrakeKind, count: u64, until_s: i64) -> EntryRow {
        let key = ControlKey::Brake(kind);
        EntryRow { count: Some(count), since_at: Some(at(0)), until_at: Some(at(until_s)), ..EntryRow::new(&key) }
    }

    #[test]
    fn what_all_brakes_hold_is_added_up_as_long_as_they_hold() {
        let mut seen = seen();
        seen.control.put(brake(BrakeKind::Leases, 5, 100));
        seen.control.put(brake(BrakeKind::Handles, 20, 200));
        seen.control.put(brake(BrakeKind::Missing, 0, 200));
        let held = |s| Unusual::by_poll(&seen, 0, at(s)).held;
        assert_eq!([held(99), held(100), held(200)], [25, 20, 0]);
    }

    #[test]
    fn an_instance_is_absent_if_a_record_names_it_and_it_was_noted_as_unlisted() {
        let mut seen = seen();
        let unlisted = |n| fixtures::ready(n).note_unlisted(Some(at(0)), at(0)).unwrap();
        let nameless = fixtures::assigned(3).note_unlisted(Some(at(0)), at(0)).unwrap();
        seen.nodes = vec![unlisted(0), unlisted(1), fixtures::ready(2), nameless];
        assert_eq!(Unusual::by_poll(&seen, 0, at(0)).absent, 2);
    }

    #[test]
    fn a_list_is_empty_only_if_records_name_instances() {
        let mut seen = seen();
        let is_empty = |seen: &Observation| Unusual::by_poll(seen, 0, at(0)).list_is_empty;
        assert!(!is_empty(&seen), "there are no records");
        seen.nodes.push(fixtures::assigned(0));
        assert!(!is_empty(&seen), "the record names no instance");
        seen.nodes.push(fixtures::ready(1));
        assert!(is_empty(&seen));
        seen.instances.push(listed(&seen.nodes[1]));
        assert!(!is_empty(&seen));
    }

    #[test]
    fn failed_starts_and_nodes_that_are_not_ready_are_passed_on() {
        let mut seen = seen();
        seen.control.put(EntryRow { count: Some(4), ..EntryRow::new(&ControlKey::FailedStarts) });
        let unusual = Unusual::by_poll(&seen, 3, at(0));
        assert_eq!((unusual.failed_starts, unusual.unready), (4, 3));
    }

    #[test]
    fn each_row_that_is_set_aside_is_counted_by_one_function() {
        let mut seen = seen();
        let row = |table| Unsound { table, subject: Subject::Cluster, what: "it cannot be read".into() };
        let counts =
            |seen: &Observation| (Unusual::by_poll(seen, 0, at(0)).set_aside, Unusual::by_sweep(seen, at(0)).set_aside);
        let entry = |key: &str, is_known| UnreadableEntry { key: key.into(), detail: "it is not".into(), is_known };
        seen.control.unreadable = vec![entry("limit#quota#account", true), entry("of_the_future", false)];
        seen.aside.entries(&seen.control);
        seen.aside.rows.push(row(Table::Nodes));
        assert_eq!(counts(&seen), (2, 0), "nobody has to correct what newer code has written");
        // Only sweep-dispatch reads handles.
        seen.aside.rows.push(row(Table::Handles));
        assert_eq!(counts(&seen).1, 1);
    }

    #[test]
    fn sweep_dispatch_counts_the_other_functions_that_are_overdue() {
        let mut seen = seen();
        let ran = RunRow::after(POLL_AND_SCALE.name, None, at(0), Span::from_s(1), Tally::default());
        seen.control.runs.insert(POLL_AND_SCALE.name.into(), ran);
        let noted = EntryRow { since_at: Some(at(0)), ..EntryRow::new(&ControlKey::Ingest) };
        seen.control.put(noted);
        let overdue = |seen: &Observation, s| Unusual::by_sweep(seen, at(s)).overdue;
        assert_eq!((overdue(&seen, 300), overdue(&seen, 301)), (0, 1));
        seen.nodes.push(fixtures::ready(0));
        assert_eq!(overdue(&seen, 301), 2, "a node is in use, and nobody hears it");
    }

    #[test]
    fn orphans_are_those_that_are_held_or_terminated_and_none_counts_twice() {
        let mut seen = seen();
        let orphans = |seen: &Observation, terminated| Unusual::by_clean(seen, terminated, at(50)).orphans;
        assert_eq!((orphans(&seen, 0), orphans(&seen, 2)), (0, 2));
        seen.control.put(brake(BrakeKind::Orphans, 5, 100));
        seen.control.put(brake(BrakeKind::Leases, 9, 100));
        assert_eq!((orphans(&seen, 0), orphans(&seen, 5)), (5, 5));
    }
}
