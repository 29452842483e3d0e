//! The filter, the search and the paging of a list.
//!
//! Guarantees: an answer has at most [`MOST`] rows, however long the list is.

use serde::{Deserialize, Serialize};

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

pub(crate) trait Searched {
    fn state(&self) -> &str;
    /// Whether a word, in lower case, occurs in the row.
    fn has(&self, word: &str) -> bool;
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

    /// The wanted part of the rows that match.
    pub(crate) fn of<T: Searched>(&self, rows: Vec<T>) -> ListPart<T> {
        let all = rows.len();
        let words = words(self.q.as_deref().unwrap_or_default());
        let states: Vec<&str> = self.state.iter().flat_map(|s| s.split(',')).filter(|s| !s.is_empty()).collect();
        let is_wanted =
            |row: &T| (states.is_empty() || states.contains(&row.state())) && words.iter().all(|word| row.has(word));
        let mut rows: Vec<T> = rows.into_iter().filter(is_wanted).collect();
        let total = rows.len();
        let limit = self.limit.unwrap_or(USUAL).clamp(1, MOST);
        rows = rows.into_iter().skip(self.offset).take(limit).collect();
        ListPart { rows, offset: self.offset, total, all }
    }
}

/// The words of a search, in lower case.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_lowercase).collect()
}

/// Whether a word, in lower case, occurs in a text.
pub(crate) fn holds(text: &str, word: &str) -> bool {
    // Most texts are in lower case already, and need no copy.
    text.contains(word) || text.to_lowercase().contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row(&'static str, &'static str);
    impl Searched for Row {
        fn state(&self) -> &str {
            self.0
        }
        fn has(&self, word: &str) -> bool {
            holds(self.1, word)
        }
    }

    #[test]
    fn a_part_has_what_was_asked_for() {
        let wanted = |q: &str, state: &str, offset, limit| {
            let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
            let wanted = ListQuery { q: text(q), state: text(state), offset, limit };
            let rows = (0..1000).map(|n| if n % 2 == 0 { Row("failed", "Train A") } else { Row("queued", "train b") });
            let part = wanted.of(rows.collect());
            (part.rows.len(), part.total, part.all)
        };
        assert_eq!(wanted("", "", 0, None), (100, 1000, 1000));
        assert_eq!(wanted("", "", 950, None), (50, 1000, 1000));
        assert_eq!(wanted("", "", 5000, None), (0, 1000, 1000));
        assert_eq!(wanted("TRAIN a", "", 0, Some(9999)), (500, 1000, 1000));
        assert_eq!(wanted("b", "", 0, Some(3)), (3, 500, 1000));
        assert_eq!(wanted("b", "failed,rejected", 0, None), (0, 0, 1000));
        assert_eq!(wanted("", "failed,", 0, Some(0)), (1, 500, 1000));
    }
}
