//! Sets of numbers as people write them: `0-99,101,200-299`.
//!
//! Guarantees: each set has one text, with the numbers in order and each range as long as it can be; a set of a million
//! numbers without gaps takes no more room than one of two.
//! Does not: know what the numbers are.

use crate::BadText;
use crate::text_form::text_form;
use std::fmt;
use std::str::FromStr;

/// A set of numbers, kept as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// The numbers from the first to the last; none if the last is before the first.
    pub fn of(first: u32, last: u32) -> Self {
        Self(if first <= last { vec![(first, last)] } else { Vec::new() })
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(first, last)| u64::from(*last) - u64::from(*first) + 1).sum()
    }

    pub fn contains(&self, n: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= n);
        after.checked_sub(1).and_then(|place| self.0.get(place)).is_some_and(|(_, last)| n <= *last)
    }

    /// Each number, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// The highest number; `None` if the set is empty.
    pub fn last(&self) -> Option<u32> {
        self.0.last().map(|(_, last)| *last)
    }

    /// Adds the numbers of the other set.
    pub fn extend(&mut self, other: &Self) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(&other.0);
        all.sort_unstable();
        for (first, last) in all {
            match self.0.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => self.0.push((first, last)),
            }
        }
    }

    /// The numbers that the other set does not have.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        let mut holes = other.0.iter().copied().peekable();
        for (first, last) in &self.0 {
            let mut from = Some(*first);
            while let (Some(at), Some((begin, end))) = (from, holes.peek().copied()) {
                if end < at {
                    holes.next();
                } else if begin > *last {
                    break;
                } else {
                    if begin > at {
                        left.push((at, begin - 1));
                    }
                    from = end.checked_add(1).filter(|next| next <= last);
                }
            }
            left.extend(from.map(|at| (at, *last)));
        }
        Self(left)
    }

    /// The numbers that the other set has too.
    #[must_use]
    pub fn within(&self, other: &Self) -> Self {
        self.without(&self.without(other))
    }

    /// The set in parts of at most `most` numbers, in order.
    pub fn chunks(&self, most: u32) -> Vec<Self> {
        let (mut chunks, mut room) = (Vec::new(), 0);
        for (first, last) in &self.0 {
            let mut from = *first;
            loop {
                if room == 0 {
                    chunks.push(Self::default());
                    room = most.max(1);
                }
                let to = from.saturating_add(room - 1).min(*last);
                if let Some(chunk) = chunks.last_mut() {
                    chunk.0.push((from, to));
                }
                room -= to - from + 1;
                if to == *last {
                    break;
                }
                from = to + 1;
            }
        }
        chunks
    }
}

impl FromIterator<u32> for Ranges {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut all: Vec<(u32, u32)> = Vec::new();
        for n in numbers {
            match all.last_mut() {
                Some((first, last)) if *first <= n && n <= last.saturating_add(1) => *last = n.max(*last),
                _ => all.push((n, n)),
            }
        }
        let mut ranges = Self::default();
        ranges.extend(&Self(all));
        ranges
    }
}

impl FromStr for Ranges {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let bad = || {
            BadText::of(
                text,
                "must be numbers and ranges from a smaller to a larger number, such as 0-199 or 1,3,10-20",
            )
        };
        let number = |text: &str| text.parse().ok().filter(|_: &u32| text.bytes().all(|b| b.is_ascii_digit()));
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            number(first).zip(number(last)).filter(|(first, last)| first <= last)
        };
        let all = text.split(',').map(range).collect::<Option<Vec<_>>>().ok_or_else(bad)?;
        let mut ranges = Self::default();
        ranges.extend(&Self(all));
        Ok(ranges)
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (first, last)) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { "," })?;
            match first == last {
                true => write!(f, "{first}")?,
                false => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

text_form!(Ranges);

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(text: &str) -> Ranges {
        text.parse().unwrap()
    }

    #[test]
    fn a_set_has_one_text() {
        for (text, same) in [("0-3", "0-3"), ("7,1,3-5,4", "1,3-5,7"), ("1,2,3", "1-3"), ("5-9,0-6", "0-9"), ("4", "4")]
        {
            assert_eq!(ranges(text).to_string(), same);
        }
        assert_eq!([3, 1, 2, 9, 2].into_iter().collect::<Ranges>(), ranges("1-3,9"));
        assert_eq!(Ranges::of(2, 1), Ranges::default());
        for bad in ["", "a", "1-", "-1", "3-1", "1,,2", "+1", " 1", "4294967296"] {
            assert!(bad.parse::<Ranges>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sets_are_added_and_taken_away_as_sets_of_numbers_are() {
        let numbers = |bits: u32| (0..12).filter(move |n| bits >> n & 1 == 1).collect::<Ranges>();
        for a in (0..4096).step_by(37) {
            for b in (0..4096).step_by(41) {
                let (left, right) = (numbers(a), numbers(b));
                assert_eq!(left.without(&right), numbers(a & !b), "{left} without {right}");
                assert_eq!(left.within(&right), numbers(a & b));
                let mut both = left.clone();
                both.extend(&right);
                assert_eq!(both, numbers(a | b));
                assert_eq!((left.count(), left.last()), (u64::from(a.count_ones()), left.iter().last()));
                assert!((0..13).all(|n| left.contains(n) == (a >> n & 1 == 1)));
            }
        }
        let all = Ranges::of(0, u32::MAX);
        assert_eq!((all.count(), all.contains(u32::MAX)), (1 << 32, true));
        assert_eq!(all.without(&Ranges::of(5, u32::MAX)), Ranges::of(0, 4));
    }

    #[test]
    fn parts_have_each_number_once() {
        let texts = |text: &str, most| ranges(text).chunks(most).iter().map(Ranges::to_string).collect::<Vec<_>>();
        assert_eq!(texts("0-9", 4), ["0-3", "4-7", "8-9"]);
        assert_eq!(texts("0-2,7,9-12", 4), ["0-2,7", "9-12"]);
        assert_eq!(texts("0-2", 100), ["0-2"]);
    }
}
