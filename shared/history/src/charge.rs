//! What nodes cost over time.
//!
//! Guarantees: sums are exact, because products of price and time are summed before they are divided.
//! Does not: know prices.

use model::{Span, Usd};
use std::iter::Sum;
use std::ops::AddAssign;

const HOUR_MS: u128 = 3_600_000;

/// Millionths of a dollar an hour, times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Charge(u128);

impl Charge {
    /// What this price costs in this time.
    pub(crate) fn of(price_per_hour: Usd, span: Span) -> Self {
        let ms = u128::try_from(span.as_ms()).unwrap_or(0);
        Self(u128::from(price_per_hour.micros()).saturating_mul(ms))
    }

    /// The share `part` of `whole`, rounded down.
    pub(crate) fn share(self, part: u64, whole: u64) -> Self {
        Self(self.0.saturating_mul(u128::from(part)).checked_div(u128::from(whole)).unwrap_or(0))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// In dollars, rounded to a millionth.
    pub(crate) fn usd(self) -> Usd {
        Usd::from_micros(u64::try_from((self.0 + HOUR_MS / 2) / HOUR_MS).unwrap_or(u64::MAX))
    }
}

impl AddAssign for Charge {
    fn add_assign(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }
}

impl Sum for Charge {
    fn sum<I: Iterator<Item = Self>>(charges: I) -> Self {
        charges.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}
