//! Money: US dollars as whole micro-dollars, so that sums and comparisons are exact.
//!
//! Guarantees: never negative, never infinite, never a float while it is added or compared.
//! Does not: know currencies, or what anything costs.

use crate::{BadText, Span};
use derive_more::Sum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Add;

/// The largest amount: a billion dollars.
const MOST: u64 = 1_000_000_000_000_000;

/// An amount of US dollars, mostly a price per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Sum)]
#[serde(try_from = "f64", into = "f64")]
pub struct Usd(u64);

impl Usd {
    pub const ZERO: Self = Self(0);

    /// `micros` millionths of a dollar.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Millionths of a dollar.
    pub const fn micros(self) -> u64 {
        self.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The difference, or zero if `other` is more.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// How many times this amount covers `price`; the largest number if `price` is zero.
    pub fn pays_times(self, price: Self) -> u32 {
        self.0.checked_div(price.0).and_then(|times| u32::try_from(times).ok()).unwrap_or(u32::MAX)
    }

    /// This amount times `part` / `whole`, rounded down. It is never more than this amount.
    pub fn part(self, part: u64, whole: u64) -> Self {
        let part = u128::from(self.0) * u128::from(part.min(whole)) / u128::from(whole).max(1);
        Self(u64::try_from(part).unwrap_or(self.0))
    }

    /// What this time costs at this price of an hour, rounded down to whole micro-dollars.
    pub fn in_time(self, span: Span) -> Self {
        let ms = u128::try_from(span.as_ms()).unwrap_or(0);
        let micros = u128::from(self.0).saturating_mul(ms) / 3_600_000;
        Self(u64::try_from(micros).unwrap_or(MOST).min(MOST))
    }

    /// This amount `n` times. It saturates.
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl TryFrom<f64> for Usd {
    type Error = BadText;
    fn try_from(dollars: f64) -> Result<Self, BadText> {
        let bad = || BadText(format!("{dollars} is not an amount of dollars between 0 and 1000000000"));
        (0.0..=MOST as f64 / 1e6).contains(&dollars).then(|| Self((dollars * 1e6).round() as u64)).ok_or_else(bad)
    }
}

impl From<Usd> for f64 {
    fn from(usd: Usd) -> f64 {
        usd.0 as f64 / 1e6
    }
}

impl Add for Usd {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0).min(MOST))
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dollars, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let digits = format!("{micros:06}");
        let trimmed = digits.trim_end_matches('0');
        write!(f, "${dollars}.{trimmed:0<2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_nonsense_is_refused() {
        let dime = Usd::try_from(0.1).unwrap();
        assert_eq!((0..10).map(|_| dime).sum::<Usd>(), Usd::try_from(1.0).unwrap());
        assert_eq!(dime.to_string(), "$0.10");
        assert_eq!(Usd::from_micros(96_250).to_string(), "$0.09625");
        assert_eq!((dime.part(1, 3).micros(), dime.part(9, 4), dime.part(1, 0)), (33_333, dime, Usd::ZERO));
        assert_eq!(dime.in_time(Span::from_s(1800)).micros(), 50_000);
        assert_eq!(
            (dime.in_time(Span::from_s(-5)), Usd(u64::MAX).in_time(Span::from_s(1 << 40))),
            (Usd::ZERO, Usd(MOST))
        );
        // What a row holds can be read again.
        assert_eq!(Usd::try_from(f64::from(Usd(MOST) + dime)).unwrap(), Usd(MOST));
        for bad in [-0.1, f64::NAN, f64::INFINITY, 1e12] {
            assert!(Usd::try_from(bad).is_err(), "{bad}");
        }
    }
}
