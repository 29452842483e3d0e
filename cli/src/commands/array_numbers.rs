//! The numbers of an array as people write them: `0-199`, `1,3,10-20%5`.
//!
//! Guarantees: the numbers are in order, and each is there once.
//! Does not: know what an array is.

use model::array::{ArrayLimit, MAX_ARRAY};
use std::collections::BTreeSet;
use std::str::FromStr;

/// The most jobs of one array.
const MOST: usize = 10_000;

/// The numbers of an array, and how many of its jobs may be placed at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) indexes: Vec<u32>,
    pub(super) limit: Option<ArrayLimit>,
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || "it must be numbers and ranges, such as 0-199 or 1,3,10-20, with %N at the end for a limit".to_owned();
        let (numbers, limit) = match text.split_once('%') {
            None => (text, None),
            Some((numbers, limit)) => {
                let limit = number(limit).and_then(ArrayLimit::new);
                (numbers, Some(limit.ok_or("the limit behind % must be a number of at least 1")?))
            }
        };
        let mut indexes = BTreeSet::new();
        for part in numbers.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = number(first).zip(number(last)).ok_or_else(bad)?;
            if first > last {
                return Err(format!("{first}-{last} is empty: the smaller number comes first"));
            }
            if last >= MAX_ARRAY {
                return Err(format!("{last} is too large: numbers are below {MAX_ARRAY}"));
            }
            if usize::try_from(last - first).is_ok_and(|n| n < MOST) {
                indexes.extend(first..=last);
            }
            if indexes.len() > MOST || usize::try_from(last - first).is_ok_and(|n| n >= MOST) {
                return Err(format!("an array has at most {MOST} jobs"));
            }
        }
        Ok(Self { indexes: indexes.into_iter().collect(), limit })
    }
}

fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ranges_and_a_limit() {
        let of = |text: &str| text.parse::<Numbers>().unwrap();
        assert_eq!(of("0-3%2"), Numbers { indexes: vec![0, 1, 2, 3], limit: ArrayLimit::new(2) });
        assert_eq!(of("7,1,3-5,4"), Numbers { indexes: vec![1, 3, 4, 5, 7], limit: None });
        assert_eq!(of("0-9999").indexes.len(), 10_000);
        for bad in
            ["", "a", "1-", "-1", "3-1", "1,,2", "0-3%0", "0-3%", "0-3%x", "+1", "0-10000", "16777216", "0-4294967295"]
        {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
    }
}
