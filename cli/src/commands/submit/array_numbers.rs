//! The numbers of an array as people write them: `0-199`, `1,3,10-20%5`.
//!
//! Guarantees: the numbers are in order, and each is there once.
//! Does not: know what an array is, or how many jobs it may have.

use model::Ranges;
use model::array::MAX_ARRAY;
use std::num::NonZeroU32;
use std::str::FromStr;

/// The numbers of an array, and how many of its jobs may be placed at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) indexes: Ranges,
    pub(crate) limit: Option<NonZeroU32>,
}

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (numbers, limit) = match text.split_once('%') {
            None => (text, None),
            Some((numbers, limit)) => {
                let limit = limit.parse().ok().filter(|_| limit.bytes().all(|b| b.is_ascii_digit()));
                (numbers, Some(limit.ok_or("the limit behind % must be a number of at least 1")?))
            }
        };
        let indexes: Ranges = numbers.parse().map_err(|e| format!("{e}; steps are written out, and %N is a limit"))?;
        match indexes.last().filter(|last| *last >= MAX_ARRAY) {
            Some(last) => Err(format!("{last} is too large: numbers are below {MAX_ARRAY}")),
            None => Ok(Self { indexes, limit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ranges_and_a_limit() {
        let of = |text: &str| text.parse::<Numbers>().unwrap();
        assert_eq!(of("0-3%2"), Numbers { indexes: Ranges::of(0, 3), limit: NonZeroU32::new(2) });
        assert_eq!(of("7,1,3-5,4"), Numbers { indexes: [1, 3, 4, 5, 7].into_iter().collect(), limit: None });
        assert_eq!(of("0-16777215").indexes.count(), 1 << 24);
        let step = "0-10:2".parse::<Numbers>().unwrap_err();
        assert!(step.ends_with("; steps are written out, and %N is a limit"), "{step}");
        for bad in ["", "a", "3-1", "0-3%0", "0-3%", "0-3%x", "0-3%+1", "16777216", "0-4294967295"] {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
    }
}
