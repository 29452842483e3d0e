//! Each sign as a row: what raises it, what is so just before, its words, and what ends it.

mod rows;
mod state;

use super::*;
use model::events::Subject;
use model::fixtures::at;
use rows::{Change, Look, ROWS, Well, Wrong};
use state::{NOW, State};
use std::collections::BTreeSet;

/// What a sign says of a state: how bad it is, and its words.
fn said(sign: &Sign, change: Change) -> (Level, String) {
    let mut state = State::well();
    change(&mut state);
    let raised = (sign.raise)(&state.facts());
    let level = raised.iter().map(|one| one.level).max().unwrap_or(Well);
    let words = |one: &Raised| format!("{} {}: {}", one.what, one.says, one.to_do);
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
        assert!(said(sign, row.ended).0 < row.level.max(Look), "after its end: {}: {words}", row.sign);
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

#[test]
fn an_alarm_goes_off_only_with_its_sign() {
    for sign in SIGNS {
        for alarm in sign.alarms {
            for row in ROWS {
                for change in [row.raised, row.before, row.ended] {
                    let mut state = State::well();
                    change(&mut state);
                    let facts = state.facts();
                    let rings = (alarm.count)(&facts) >= alarm.at_least;
                    // heartbeats and functions share a metric. Nodes may be unready for half an hour.
                    let raised = SIGNS.iter().filter(|other| {
                        other.name == sign.name || (sign.name == "function" && other.name == "heartbeats")
                    });
                    let is_said = raised.flat_map(|sign| (sign.raise)(&facts)).any(|one| one.level > Well);
                    assert!(!rings || is_said || sign.name == "unready", "{alarm:?} without {}", sign.name);
                }
            }
        }
    }
}

#[test]
fn a_sign_with_an_alarm_rings_when_it_is_wrong() {
    for row in ROWS.iter().filter(|row| row.level == Wrong) {
        let sign = SIGNS.iter().find(|sign| sign.name == row.sign).unwrap();
        let mut state = State::well();
        (row.raised)(&mut state);
        // Each function counts the rows of its tables, and this state has no table.
        let exempt = row.sign == "row"
            || state.control.runs.len() < 3
            || state.run(SWEEP_DISPATCH).last_success_at < Some(at(NOW - 300));
        let rings = sign.alarms.iter().any(|alarm| (alarm.count)(&state.facts()) >= alarm.at_least);
        assert!(rings || sign.alarms.is_empty() || exempt, "{}: {:?}", row.sign, row.words);
    }
}

#[test]
fn a_warning_says_nothing_of_what_is_wrong_already() {
    let mut state = State::well();
    let subject = Subject::Function(SWEEP_DISPATCH.name.into());
    state.warned(&subject, 60);
    let count = |state: &State| judge(&state.facts()).iter().filter(|one| one.says.starts_with("warned")).count();
    assert_eq!(count(&state), 1);
    state.run(SWEEP_DISPATCH).last_success_at = Some(at(NOW - 301));
    assert_eq!(count(&state), 0);
}

#[test]
fn the_page_for_operators_has_the_table_of_signs() {
    let page = include_str!("../../../../../docs/operate.md");
    let alarms = |sign: &Sign| sign.alarms.iter().map(|a| format!("`…-{}`", a.name)).collect::<Vec<_>>().join(", ");
    let line = |s: &Sign| format!("| `{}` | {} | {} | {} |", s.name, s.raised_by, s.ends, alarms(s));
    let lines: Vec<String> = SIGNS.iter().map(line).collect();
    let table = lines.join("\n");
    assert!(page.contains(&table), "docs/operate.md must have this table:\n{table}");
}

#[test]
fn names_are_said_once() {
    let names: BTreeSet<&str> = SIGNS.iter().map(|sign| sign.name).collect();
    assert_eq!(names.len(), SIGNS.len());
    let ids: BTreeSet<&str> = alarms().map(|alarm| alarm.id).collect();
    assert_eq!(ids.len(), alarms().count());
}

#[test]
fn failed_starts_alone_make_no_run_worth_a_metric() {
    let told = |metric: &'static str| must_be_told(&BTreeMap::from([(metric, 3)]));
    assert!(told("Orphans") && told("RowsQuarantined") && !told("FailedStarts"));
    assert!(!must_be_told(&BTreeMap::from([("Orphans", 0)])));
}
