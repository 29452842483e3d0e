//! Packs: a job whose command runs once for each of many elements, in one alloc.
//!
//! ```text
//! outcome of an element   exit:0  exit:75  signal:9  timeout  memory  scratch
//! results                 {"exit:0": "0-98,100-999", "exit:3": "99"}
//! places of output        0-98*12,99*40,100-999*12     numbers * bytes of each, in the order of the output
//! ```
//!
//! Guarantees: each element has one result, the first that is reported; results and places take a few bytes for each element, and
//! much less if the elements are alike.
//! Does not: run anything (the agent does), or know what follows from a result (`pack_progress` does).
//! Rules: `docs/rules.md#packs`.

use crate::mistakes::Mistakes;
use crate::text_form::text_form;
use crate::{BadText, Ranges};
use derive_more::Display;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::str::FromStr;

/// The most elements of one pack. A report of all of them must fit beside many others.
pub const MAX_PACK: u32 = 1_000;
/// The most elements that run at the same time in one alloc.
pub const MAX_AT_ONCE: u32 = 256;
/// How many characters of the list of failed elements are shown.
const MAX_LISTED: usize = 200;

/// The elements of a job; in an alloc and in an order, only those that this try runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pack {
    pub elements: Ranges,
    /// How many of them run at the same time. They share what the job needs.
    #[serde(default = "crate::left_out::one", skip_serializing_if = "crate::left_out::is_one")]
    pub at_once: u32,
    /// When this many of them have failed, no other one begins; `None`: there is no bound. A job has its bound beside its pack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_failures: Option<NonZeroU32>,
}

impl Pack {
    /// These elements, one after the other, without a bound.
    pub const fn of(elements: Ranges) -> Self {
        Self { elements, at_once: 1, max_failures: None }
    }

    /// Whether no other element begins after this many failures.
    pub fn is_over_with(&self, failed: u64) -> bool {
        self.max_failures.is_some_and(|max| failed >= u64::from(max.get()))
    }

    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        let count = self.elements.count();
        mistakes.require((1..=u64::from(MAX_PACK)).contains(&count), || {
            format!("it has {count} elements, a pack has 1 to {MAX_PACK}: give --pack a smaller number")
        });
        let at_once = self.at_once;
        mistakes.require((1..=MAX_AT_ONCE).contains(&at_once), || {
            format!("--at-once must be 1 to {MAX_AT_ONCE}, it is {at_once}")
        });
    }
}

/// How an element ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display)]
pub enum Outcome {
    /// With this exit code.
    #[display("exit:{_0}")]
    Exit(i32),
    /// By this signal, which nodekeeper did not send.
    #[display("signal:{_0}")]
    Signal(i32),
    /// The element ran longer than it may.
    #[display("timeout")]
    Timeout,
    /// The alloc needed more memory than it may use, and the element held the most of it or ran when the alloc ended for that.
    #[display("memory")]
    Memory,
    /// The element ran when its alloc had written more than its scratch space.
    #[display("scratch")]
    Scratch,
}

impl Outcome {
    pub const SUCCESS: Self = Self::Exit(0);
}

impl FromStr for Outcome {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let number = |digits: &str| digits.parse().ok().filter(|n| (0..=255).contains(n));
        let outcome = match (text, text.split_once(':')) {
            ("timeout", _) => Some(Self::Timeout),
            ("memory", _) => Some(Self::Memory),
            ("scratch", _) => Some(Self::Scratch),
            (_, Some(("exit", code))) => number(code).map(Self::Exit),
            (_, Some(("signal", signal))) => number(signal).map(Self::Signal),
            _ => None,
        };
        let fault = "is no outcome of an element: exit:CODE, signal:NUMBER, timeout, memory or scratch";
        outcome.ok_or_else(|| BadText::of(text, fault))
    }
}

text_form!(Outcome);

/// The elements that have ended, by their outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Results(BTreeMap<Outcome, Ranges>);

impl Results {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Outcome, &Ranges)> {
        self.0.iter().map(|(outcome, elements)| (*outcome, elements))
    }

    /// The elements that have ended.
    pub fn ended(&self) -> Ranges {
        let mut all = Ranges::default();
        self.0.values().for_each(|elements| all.extend(elements));
        all
    }

    /// The elements with exit code 0.
    pub fn succeeded(&self) -> Ranges {
        self.0.get(&Outcome::SUCCESS).cloned().unwrap_or_default()
    }

    /// The elements that did not succeed.
    pub fn failed(&self) -> Ranges {
        let mut all = Ranges::default();
        self.iter().filter(|(outcome, _)| *outcome != Outcome::SUCCESS).for_each(|(_, elements)| all.extend(elements));
        all
    }

    /// Adds these elements with their outcome, except those that have ended before.
    pub fn add(&mut self, outcome: Outcome, elements: &Ranges) {
        let new = elements.without(&self.ended());
        if !new.is_empty() {
            self.0.entry(outcome).or_default().extend(&new);
        }
    }

    /// Adds those results that are of elements of `all`. The first result of an element stays.
    pub fn merge(&mut self, other: &Self, all: &Ranges) {
        for (outcome, elements) in other.iter() {
            self.add(outcome, &elements.within(all));
        }
    }

    /// `3 (exit:1), 7,9 (signal:9)`: the elements that failed, of a bounded length.
    pub fn failures(&self) -> String {
        let failed = self.iter().filter(|(outcome, _)| *outcome != Outcome::SUCCESS);
        let text = failed.map(|(outcome, elements)| format!("{elements} ({outcome})")).collect::<Vec<_>>().join(", ");
        match text.char_indices().nth(MAX_LISTED) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
            None => text,
        }
    }
}

/// Where the output of each element is in the output of its alloc: the number of bytes of each element, in the order of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<Stretch>);

/// Consecutive elements with the same number of bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    first: u32,
    last: u32,
    bytes: u64,
}

impl Places {
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element of the output, and how many bytes it has.
    pub fn push(&mut self, element: u32, bytes: u64) {
        match self.0.last_mut() {
            Some(run) if run.bytes == bytes && run.last.checked_add(1) == Some(element) => run.last = element,
            _ => self.0.push(Stretch { first: element, last: element, bytes }),
        }
    }

    /// Which bytes of the output the element has printed; `None` if it is not known.
    pub fn of(&self, element: u32) -> Option<Range<u64>> {
        let mut at = 0_u64;
        for run in &self.0 {
            if (run.first..=run.last).contains(&element) {
                let begin = at.saturating_add(run.bytes.saturating_mul(u64::from(element - run.first)));
                return Some(begin..begin.saturating_add(run.bytes));
            }
            at = at.saturating_add(run.bytes.saturating_mul(u64::from(run.last - run.first) + 1));
        }
        None
    }
}

impl FromStr for Places {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let run = |part: &str| {
            let (numbers, bytes) = part.split_once('*')?;
            let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
            let (first, last, bytes) = (first.parse().ok()?, last.parse().ok()?, bytes.parse().ok()?);
            (first <= last).then_some(Stretch { first, last, bytes })
        };
        let runs = text.split(',').filter(|part| !part.is_empty()).map(run).collect::<Option<_>>();
        runs.map(Self).ok_or_else(|| BadText::of(text, "must be NUMBERS*BYTES, such as 0-9*12,10*0"))
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, Stretch { first, last, bytes }) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            match first == last {
                true => write!(f, "{first}*{bytes}")?,
                false => write!(f, "{first}-{last}*{bytes}")?,
            }
        }
        Ok(())
    }
}

text_form!(Places);

/// The report of one alloc of a pack about its elements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ElementReport {
    #[serde(skip_serializing_if = "Results::is_empty")]
    pub results: Results,
    #[serde(skip_serializing_if = "Places::is_empty")]
    pub places: Places,
}

impl ElementReport {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What is known of the elements of `all` after this newer report.
    #[must_use]
    pub fn then(&self, newer: &Self, all: &Ranges) -> Self {
        let mut results = self.results.clone();
        results.merge(&newer.results, all);
        let places = if newer.places.is_empty() { &self.places } else { &newer.places };
        Self { results, places: places.clone() }
    }
}

/// How many elements a job has, and how many of them are complete or failed: for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementCounts {
    pub elements: u64,
    pub complete: u64,
    pub failed: u64,
}

impl ElementCounts {
    pub fn of(all: &Ranges, results: &Results) -> Self {
        let failed = results.failed().count();
        Self { elements: all.count(), complete: results.ended().count().saturating_sub(failed), failed }
    }
}

impl fmt::Display for ElementCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { elements, complete, failed } = self;
        write!(f, "{complete} of {elements} elements complete")?;
        if *failed > 0 { write!(f, ", {failed} failed") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn ranges(text: &str) -> Ranges {
        text.parse().unwrap()
    }

    fn results(of: &[(&str, &str)]) -> Results {
        let mut results = Results::default();
        for (outcome, elements) in of {
            results.add(outcome.parse().unwrap(), &ranges(elements));
        }
        results
    }

    #[test]
    fn results_have_one_form_and_the_first_one_stays() {
        let mut all = results(&[("exit:0", "0-4"), ("exit:3", "5")]);
        all.merge(&results(&[("exit:0", "5-7"), ("signal:9", "9"), ("timeout", "8")]), &ranges("0-8"));
        let form = json!({"exit:0": "0-4,6-7", "exit:3": "5", "timeout": "8"});
        assert_eq!(serde_json::to_value(&all).unwrap(), form);
        assert_eq!(serde_json::from_value::<Results>(form).unwrap(), all);
        assert_eq!((all.failed().to_string(), all.failures()), ("5,8".into(), "5 (exit:3), 8 (timeout)".into()));
        for bad in ["exit:256", "exit:-1", "exit", "signal:x", ""] {
            assert!(bad.parse::<Outcome>().is_err(), "{bad}");
        }
        let many = results(&[("exit:1", &(0..500).map(|n| (n * 2).to_string()).collect::<Vec<_>>().join(","))]);
        assert_eq!(many.failures().chars().count(), MAX_LISTED + 1);
    }

    #[test]
    fn the_output_of_an_element_is_found_by_its_place() {
        let mut places = Places::default();
        for (element, bytes) in [(0, 12), (1, 12), (2, 12), (3, 40), (7, 0), (8, 0), (5, 1)] {
            places.push(element, bytes);
        }
        assert_eq!(places.to_string(), "0-2*12,3*40,7-8*0,5*1");
        assert_eq!("0-2*12,3*40,7-8*0,5*1".parse(), Ok(places.clone()));
        let of = [0, 2, 3, 8, 5, 4].map(|element| places.of(element));
        assert_eq!(of, [Some(0..12), Some(24..36), Some(36..76), Some(76..76), Some(76..77), None]);
        for bad in ["1", "1*", "*2", "2-1*3", "1*-1"] {
            assert!(bad.parse::<Places>().is_err(), "{bad}");
        }
    }
}
