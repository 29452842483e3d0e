//! The filter, the search and the paging of a list.
//!
//! Guarantees: an answer has at most [`MOST`] rows, however long the list is.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

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
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
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
    /// The word of the search, if there is exactly one.
    pub(crate) fn word(&self) -> Option<&str> {
        self.q.as_deref().map(str::trim).filter(|q| !q.is_empty() && !q.contains(char::is_whitespace))
    }

    /// The wanted part of the rows that match. `state` gives the state of a row.
    pub(crate) fn of<T: Serialize>(&self, rows: Vec<T>, state: impl Fn(&T) -> &str) -> ListPart<T> {
        self.of_lines(rows, state, |rows| rows)
    }

    /// The same of the lines that `lines` makes of the rows that match.
    pub(crate) fn of_lines<T: Serialize>(
        &self,
        rows: Vec<T>,
        state: impl Fn(&T) -> &str,
        lines: impl FnOnce(Vec<T>) -> Vec<T>,
    ) -> ListPart<T> {
        let all = rows.len();
        let words: Vec<String> = self.q.iter().flat_map(|q| q.split_whitespace()).map(str::to_lowercase).collect();
        let states: Vec<&str> = self.state.iter().flat_map(|s| s.split(',')).filter(|s| !s.is_empty()).collect();
        let is_wanted = |row: &T| {
            (states.is_empty() || states.contains(&state(row)))
                && (words.is_empty()
                    || json!(row).as_object().is_some_and(|row| words.iter().all(|word| has(row, word))))
        };
        let mut rows = lines(rows.into_iter().filter(is_wanted).collect());
        let total = rows.len();
        let limit = self.limit.unwrap_or(USUAL).clamp(1, MOST);
        rows = rows.into_iter().skip(self.offset).take(limit).collect();
        ListPart { rows, offset: self.offset, total, all }
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
            let wanted = ListQuery { q: text(q), state: text(state), offset, limit };
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
}
