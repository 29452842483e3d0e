//! The filter, the search and the paging of a list.
//!
//! Guarantees: an answer has at most [`MOST`] rows, however long the list is.
//! Does not: read the cluster; it works on rows that were read.

use super::array::States;
use super::rows::JobRow;
use model::{Array, JobId, JobState, JobSummary};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use store::End;

const MOST: usize = 500;
/// How many rows are sent without a `limit`.
const USUAL: usize = 100;

/// The query of a list.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ListQuery {
    /// Only rows that contain all these words.
    q: Option<String>,
    /// Only rows in one of these states, separated by commas.
    state: Option<String>,
    /// The field that the rows are sorted by, after a `-` in descending order; rows without it come last.
    sort: Option<String>,
    /// Only jobs of this share, and of this person.
    share: Option<String>,
    by: Option<String>,
    /// Each row is all jobs of a share, or of a person.
    group: Option<JobGrouping>,
    /// Only the jobs of the array of this job, each as a row.
    pub(crate) array: Option<JobId>,
    /// Only what comes behind this place, which the `next` of another answer gives.
    pub(crate) after: Option<String>,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum JobGrouping {
    Share,
    By,
}

#[derive(Debug, Serialize)]
pub(crate) struct ListPart<T> {
    pub(crate) rows: Vec<T>,
    offset: usize,
    /// How many rows match the query.
    total: usize,
    /// How many rows the list has without a query.
    all: usize,
}

impl ListQuery {
    pub(crate) fn searches(&self) -> bool {
        self.q.as_deref().is_some_and(|q| !q.trim().is_empty())
    }

    /// The word of the search, if there is exactly one.
    pub(crate) fn word(&self) -> Option<&str> {
        self.q.as_deref().map(str::trim).filter(|q| !q.is_empty() && !q.contains(char::is_whitespace))
    }

    /// The states of the wanted rows; none for all.
    pub(crate) fn states(&self) -> Vec<&str> {
        self.state.iter().flat_map(|states| states.split(',')).filter(|state| !state.is_empty()).collect()
    }

    /// The state whose jobs are wanted, if they are one list: those that wait, or those of one kind of end.
    pub(crate) fn one_list(&self) -> Option<JobState> {
        let states: Vec<JobState> = self.states().into_iter().map(str::parse).collect::<Result<_, _>>().ok()?;
        let first = *states.first()?;
        let end = End::of(first);
        let is_alike =
            |state: &JobState| if end.is_some() { End::of(*state) == end } else { *state == JobState::Queued };
        states.iter().all(is_alike).then_some(first)
    }

    pub(crate) fn takes_owner(&self, row: &JobRow) -> bool {
        let is = |wanted: &Option<String>, has: &Option<String>| wanted.is_none() || wanted == has;
        let array = |id: &JobId| row.summary.array_count.is_some() && Array::of(*id) == Array::of(row.summary.job_id);
        is(&self.share, &row.summary.share) && is(&self.by, &row.summary.by) && self.array.as_ref().is_none_or(array)
    }

    /// Whether the place is one of this list: the end of a list of ended jobs is a time, and that of the queue a rank.
    pub(crate) fn place_is_of(&self, list: Option<JobState>) -> bool {
        self.after.as_ref().filter(|after| !after.is_empty()).is_none_or(|after| match list {
            Some(JobState::Queued) => after.rsplit('#').next().is_some_and(|id| id.parse::<JobId>().is_ok()),
            list => list.is_some() && after.parse::<i64>().is_ok(),
        })
    }

    /// The states of these jobs by share or by person, if that is wanted. Those of none have no name.
    pub(crate) fn groups(&self, rows: &[JobRow]) -> Option<BTreeMap<String, States>> {
        let grouping = self.group?;
        let mut groups: BTreeMap<String, Vec<&JobSummary>> = BTreeMap::new();
        for JobRow { summary, .. } in rows {
            let of = match grouping {
                JobGrouping::Share => &summary.share,
                JobGrouping::By => &summary.by,
            };
            groups.entry(of.clone().unwrap_or_default()).or_default().push(summary);
        }
        Some(groups.into_iter().map(|(of, jobs)| (of, States::of(jobs))).collect())
    }

    /// The wanted part of the rows that match. `state` gives the state of a row.
    pub(crate) fn of<T: Serialize>(&self, rows: Vec<T>, state: impl Fn(&T) -> &str) -> ListPart<T> {
        self.of_lines(rows, state, |rows| rows)
    }

    /// As [`Self::of`], of the lines that `lines` makes of the rows that match.
    pub(crate) fn of_lines<T: Serialize>(
        &self,
        rows: Vec<T>,
        state: impl Fn(&T) -> &str,
        lines: impl FnOnce(Vec<T>) -> Vec<T>,
    ) -> ListPart<T> {
        let all = rows.len();
        let words: Vec<String> = self.q.iter().flat_map(|q| q.split_whitespace()).map(str::to_lowercase).collect();
        let states = self.states();
        let is_wanted = |row: &T| {
            (states.is_empty() || states.contains(&state(row)))
                && (words.is_empty()
                    || json!(row).as_object().is_some_and(|row| words.iter().all(|word| has(row, word))))
        };
        let mut rows = lines(rows.into_iter().filter(is_wanted).collect());
        rows = self.sorted(rows);
        let total = rows.len();
        let limit = self.limit.unwrap_or(USUAL).clamp(1, MOST);
        rows = rows.into_iter().skip(self.offset).take(limit).collect();
        ListPart { rows, offset: self.offset, total, all }
    }
}

impl ListQuery {
    fn sorted<T: Serialize>(&self, rows: Vec<T>) -> Vec<T> {
        let Some(sort) = self.sort.as_deref().filter(|sort| !sort.is_empty()) else { return rows };
        let value = |row: &T| json!(row).get(sort.trim_start_matches('-')).cloned().unwrap_or_default();
        let mut keyed: Vec<(Value, T)> = rows.into_iter().map(|row| (value(&row), row)).collect();
        keyed.sort_by(|(a, _), (b, _)| {
            let order = match (a.as_f64().zip(b.as_f64()), a.as_str().zip(b.as_str())) {
                (Some((a, b)), _) => a.total_cmp(&b),
                (_, Some((a, b))) => a.to_lowercase().cmp(&b.to_lowercase()),
                _ => return a.is_null().cmp(&b.is_null()),
            };
            if sort.starts_with('-') { order.reverse() } else { order }
        });
        keyed.into_iter().map(|(_, row)| row).collect()
    }
}

/// Whether a text of the row contains this word, which is in lower case, or the word is the slot of the row.
fn has(row: &Map<String, Value>, word: &str) -> bool {
    row.iter().any(|(name, value)| holds(value, word) || (name == "slot" && value.as_u64() == word.parse().ok()))
}

fn holds(value: &Value, word: &str) -> bool {
    match value {
        Value::String(text) => text.to_lowercase().contains(word),
        Value::Array(list) => list.iter().any(|value| holds(value, word)),
        Value::Object(fields) => fields.values().any(|value| holds(value, word)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        state: &'static str,
        name: &'static str,
        slot: u32,
    }

    #[test]
    fn a_part_has_what_was_asked_for() {
        let wanted = |q: &str, state: &str, offset, limit| {
            let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
            let wanted = ListQuery { q: text(q), state: text(state), offset, limit, ..ListQuery::default() };
            let names = |n: u32| if n.is_multiple_of(2) { ("failed", "Train A") } else { ("queued", "train b") };
            let rows = (0..1000).map(|slot| (names(slot), slot)).map(|((state, name), slot)| Row { state, name, slot });
            let part = wanted.of(rows.collect(), |row| row.state);
            (part.rows.len(), part.total, part.all)
        };
        assert_eq!(wanted("", "", 0, None), (100, 1000, 1000));
        assert_eq!(wanted("", "", 950, None), (50, 1000, 1000));
        assert_eq!(wanted("", "", 5000, None), (0, 1000, 1000));
        assert_eq!(wanted("TRAIN a", "", 0, Some(9999)), (500, 1000, 1000));
        assert_eq!(wanted("b", "", 0, Some(3)), (3, 500, 1000));
        assert_eq!(wanted("b", "failed,rejected", 0, None), (0, 0, 1000));
        assert_eq!(wanted("", "failed,", 0, Some(0)), (1, 500, 1000));
        assert_eq!(wanted("17 train", "", 0, None), (1, 1, 1000), "a number is a slot");
    }

    #[test]
    fn rows_are_sorted_by_a_field_and_those_without_it_come_last() {
        let rows = || vec![json!({"n": 10, "t": "b"}), json!({"n": 9}), json!({"t": "A"}), json!({"n": 100, "t": "C"})];
        let sorted = |sort: &str| {
            let wanted = ListQuery { sort: Some(sort.to_owned()), ..ListQuery::default() };
            let rows = wanted.of(rows(), |_| "").rows;
            rows.iter().map(|row| row.get("n").map_or(0, |n| n.as_i64().unwrap())).collect::<Vec<_>>()
        };
        assert_eq!(sorted("n"), [9, 10, 100, 0]);
        assert_eq!(sorted("-n"), [100, 10, 9, 0]);
        assert_eq!(sorted("t"), [0, 10, 100, 9]);
        assert_eq!(sorted(""), [10, 9, 0, 100]);
    }
}
