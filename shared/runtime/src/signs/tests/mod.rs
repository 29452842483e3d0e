//! Each sign as a row: the state that raises it, the state just before, its words, and the state after its end.

mod rows;
mod state;

use super::*;
use model::control::IngestSummary;
use model::fixtures::{self, at};
use model::{BrakeKind, ControlKey, JobState};
use rows::{Caution, Change, ROWS, Well, Wrong};
use state::{NOW, State, heard, invalid_row};
use std::collections::BTreeSet;

/// What a sign says of a state: how bad it is, and its words.
fn said(sign: &Sign, change: Change) -> (SignLevel, String) {
    let mut state = State::well();
    change(&mut state);
    let raised = (sign.raise)(&state.facts());
    let level = raised.iter().map(|one| one.level).max().unwrap_or(Well);
    let words = |one: &Raised| format!("{} {}: {}", one.what, one.text, one.to_do);
    (level, raised.iter().map(words).collect::<Vec<_>>().join("\n"))
}

#[test]
fn each_sign_is_raised_by_its_state_and_not_just_before_and_ends() {
    for row in ROWS {
        let sign = SIGNS.iter().find(|sign| sign.name == row.sign).unwrap();
        let (level, words) = said(sign, row.raised);
        assert_eq!(level, row.level, "{}: {words}", row.sign);
        for part in row.words {
            assert!(words.contains(part), "{}: {part:?} is not in {words:?}", row.sign);
        }
        assert_eq!(said(sign, row.before).0, row.was, "just before: {}: {words}", row.sign);
        assert!(said(sign, row.ended).0 < row.level.max(Caution), "after its end: {}: {words}", row.sign);
    }
    println!("{} rows of {} signs", ROWS.len(), SIGNS.len());
}

#[test]
fn each_sign_has_a_row_and_says_nothing_when_all_is_well() {
    let with_rows: BTreeSet<&str> = ROWS.iter().map(|row| row.sign).collect();
    assert_eq!(with_rows, SIGNS.iter().map(|sign| sign.name).collect());
    let state = State::well();
    let raised = judge(&state.facts());
    assert!(raised.iter().all(|one| one.level == Well), "{raised:?}");
    assert!(raised.len() <= 6, "`status` has few lines when all is well: {raised:?}");
}

/// The signs that a run of this function reports in the state after this change.
fn told(function: Function, change: Change) -> Vec<&'static str> {
    let mut state = State::well();
    change(&mut state);
    wrong(function, &state.facts())
}

const TELLERS: [Function; 3] = [POLL_AND_SCALE, CLEAN_STALE_RECORDS, SWEEP_DISPATCH];

#[test]
fn a_sign_is_told_when_it_is_wrong_and_never_else() {
    for row in ROWS {
        let sign = SIGNS.iter().find(|sign| sign.name == row.sign).unwrap();
        let is_run = |teller: &SignAlarm| matches!(teller, SignAlarm::Run(..));
        for change in [row.raised, row.before, row.ended] {
            let is_told = TELLERS.iter().any(|function| told(*function, change).contains(&sign.name));
            let is_wrong = said(sign, change).0 == Wrong;
            assert_eq!(is_told, is_wrong && sign.alarms.iter().any(is_run), "{}: {:?}", row.sign, row.words);
        }
    }
}

#[test]
fn what_had_an_alarm_when_each_number_had_one_still_has_one() {
    const TOLD: &[(&str, Function, Change)] = &[
        ("function", SWEEP_DISPATCH, |s| s.run(POLL_AND_SCALE).last_success_at = Some(at(NOW - 301))),
        ("function", SWEEP_DISPATCH, |s| s.run(CLEAN_STALE_RECORDS).last_success_at = Some(at(NOW - 1501))),
        ("function", CLEAN_STALE_RECORDS, |s| s.run(SWEEP_DISPATCH).last_success_at = Some(at(NOW - 301))),
        ("heartbeats", SWEEP_DISPATCH, |s| s.control.put(IngestSummary::new(&ControlKey::Ingest))),
        ("silent", POLL_AND_SCALE, |s| s.nodes = vec![heard(0, 121), heard(1, 121)]),
        ("boot_failures", POLL_AND_SCALE, |s| s.entry("boot_failures", 9, &[("count", 2.into())])),
        ("instances", POLL_AND_SCALE, |s| s.polled(3, 2, 900)),
        ("instances", POLL_AND_SCALE, |s| s.polled(3, 3, 45)),
        ("instances", CLEAN_STALE_RECORDS, |s| s.lacks(3, 3, 285)),
        ("strangers", CLEAN_STALE_RECORDS, |s| s.cleaned(1, 0, 0)),
        ("orphans", CLEAN_STALE_RECORDS, |s| s.cleaned(0, 1, 2)),
        ("brake", POLL_AND_SCALE, |s| {
            s.control.put(fixtures::brake(BrakeKind::Orphans, "clean-stale-records", vec!["i-1".into()], at(NOW - 1)));
        }),
        ("row", POLL_AND_SCALE, |s| s.rows = vec![invalid_row(Table::Nodes, "a row cannot be read")]),
        ("row", CLEAN_STALE_RECORDS, |s| s.rows = vec![invalid_row(Table::Jobs, "a row cannot be read")]),
        ("row", SWEEP_DISPATCH, |s| s.rows = vec![invalid_row(Table::Handles, "a row cannot be read")]),
        ("failed", CLEAN_STALE_RECORDS, |s| s.ended(JobState::Failed, 3, 60)),
    ];
    for (sign, function, change) in TOLD {
        assert_eq!(told(*function, *change), [*sign], "{}", function.name);
    }
    let not_ready: Vec<&Sign> =
        SIGNS.iter().filter(|sign| sign.alarms.iter().any(|t| matches!(t, SignAlarm::NotReady))).collect();
    assert_eq!(not_ready.iter().map(|sign| sign.name).collect::<Vec<_>>(), ["unready"]);
    for function in TELLERS {
        assert!(told(function, |_| ()).is_empty(), "an idle cluster tells nothing");
    }
}

/// In a large fleet only clean-stale-records reads EC2's whole list.
#[test]
fn what_only_the_whole_list_lacks_is_told_too() {
    let sign = SIGNS.iter().find(|sign| sign.name == "instances").unwrap();
    let cases: [(Change, _, _); 5] = [
        (|s| s.lacks(900, 900, 285), Wrong, "EC2 has listed none of the 900 instances that records name for 4 min"),
        (|s| s.lacks(900, 2, 285), Caution, "EC2 has not listed 2 of the 900 instances that records name for 4 min"),
        (|s| s.lacks(900, 2, 900), Wrong, "EC2 has not listed 2 of the 900 instances that records name for 15 min"),
        (|s| s.lacks(900, 900, 284), Well, ""),
        (|s| s.lacks(900, 0, 0), Well, ""),
    ];
    for (change, level, words) in cases {
        let (found, text) = said(sign, change);
        assert_eq!((found, text.contains(words)), (level, true), "{text}");
        assert_eq!(told(CLEAN_STALE_RECORDS, change).contains(&"instances"), level == Wrong, "{words}");
    }
}

#[test]
fn the_page_for_operators_has_the_table_of_signs() {
    let page = include_str!("../../../../../docs/operate.md");
    let alarms = |sign: &Sign| sign.alarms.iter().map(|t| format!("`…-{}`", t.alarm())).collect::<Vec<_>>().join(", ");
    let signs: Vec<(String, String)> = SIGNS.iter().map(|sign| (format!("`{}`", sign.name), alarms(sign))).collect();
    let (_, table) = page.split_once("| sign | raised when | ends | alarm |\n| --- | --- | --- | --- |\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<&str>> = rows.map(|line| line.split('|').map(str::trim).collect()).collect();
    assert!(rows.iter().all(|row| !row[2].is_empty() && !row[3].is_empty()), "each sign is raised and ends");
    let rows: Vec<(String, String)> = rows.iter().map(|row| (row[1].to_owned(), row[4].to_owned())).collect();
    assert_eq!(rows, signs, "docs/operate.md must have these signs with these alarms, in this order");
}

#[test]
fn names_are_said_once() {
    let names: BTreeSet<&str> = SIGNS.iter().map(|sign| sign.name).collect();
    assert_eq!(names.len(), SIGNS.len());
}
