//! Ranges of user ids.
//!
//! Guarantees: a range has no id that means something else: not root, not `nobody`, not "unchanged".
//! Does not: know which ids are in use.

use derive_more::Display;
use std::str::FromStr;

/// The default range of user ids of jobs. The distributions leave these ids alone: they lie above those of containers
/// and below those that need more than 31 bits (<https://systemd.io/UIDS-GIDS/>).
pub const JOB_UIDS: &str = "1900000000-1900000999";

/// The lowest id of a range. The ids below belong to the system and to people.
const LOWEST: u32 = 10_000;

/// The highest id of a range: some programs read an id as a signed number.
const HIGHEST: u32 = i32::MAX as u32;

/// `nobody` and its neighbour, which means "unchanged" in 16-bit interfaces.
const RESERVED: [u32; 2] = [65_534, 65_535];

/// The fewest ids of a range: the first and the last one may be kept from jobs.
const FEWEST: u32 = 3;

/// Ids from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Display)]
#[display("{first}-{last}")]
pub struct IdRange {
    pub first: u32,
    pub last: u32,
}

impl IdRange {
    pub fn ids(self) -> impl Iterator<Item = u32> {
        self.first..=self.last
    }

    pub const fn contains(self, id: u32) -> bool {
        self.first <= id && id <= self.last
    }
}

impl FromStr for IdRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('-').and_then(|(first, last)| {
            let number = |text: &str| text.trim().parse::<u32>().ok();
            Some((number(first)?, number(last)?))
        });
        let (first, last) = numbers.ok_or_else(|| format!("must be FIRST-LAST, for example {JOB_UIDS}"))?;
        let range = Self { first, last };
        if first < LOWEST || last > HIGHEST {
            let rule = format!("must lie between {LOWEST} and {HIGHEST}");
            return Err(format!("{rule}: lower ids belong to the system and to people"));
        }
        if last.saturating_sub(first).saturating_add(1) < FEWEST || last < first {
            return Err(format!("must have at least {FEWEST} ids"));
        }
        match RESERVED.into_iter().find(|id| range.contains(*id)) {
            Some(id) => Err(format!("must not contain {id}, which has another meaning")),
            None => Ok(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_no_id_with_another_meaning() {
        for (text, want) in [
            ("", "must be FIRST-LAST, for example"),
            ("5", "must be FIRST-LAST"),
            ("a-b", "must be FIRST-LAST"),
            ("-5-7", "must be FIRST-LAST"),
            ("0-100000", "must lie between"),
            ("9999-20000", "must lie between 10000 and 2147483647: lower ids belong to the system and to people"),
            ("20000-4294967294", "must lie between"),
            ("20000-4294967296", "must be FIRST-LAST"),
            ("20000-20001", "must have at least 3 ids"),
            ("30000-20000", "must have at least 3 ids"),
            ("60000-70000", "must not contain 65534, which has another meaning"),
            ("65535-70000", "must not contain 65535"),
        ] {
            let error = text.parse::<IdRange>().unwrap_err();
            assert!(error.starts_with(want), "{text:?}: {error}");
        }
        let range: IdRange = "20000-20002".parse().unwrap();
        let ids = vec![20000, 20001, 20002];
        assert_eq!((range.ids().collect::<Vec<_>>(), range.to_string().as_str()), (ids, "20000-20002"));
    }

    #[test]
    fn the_default_range_is_valid() {
        assert!(JOB_UIDS.parse::<IdRange>().is_ok());
    }
}
