//! Points in time and lengths of time, each as one type.
//!
//! Guarantees: arithmetic saturates, so a time from outside cannot overflow.
//! Does not: read a clock anywhere but in [`Time::now`], which the outermost layer calls. Nodes' clocks are never used
//! (`docs/rules.md#R8`): every `Time` comes from the functions' clock.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

/// Milliseconds since the Unix epoch, as in every table attribute that ends in `_at`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(i64);

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(i64);

impl Time {
    /// The beginning of the calendar month of this time, in UTC.
    pub fn month(self) -> Self {
        let there = jiff::Timestamp::from_millisecond(self.0).map(|at| at.to_zoned(jiff::tz::TimeZone::UTC));
        let first = there.and_then(|there| there.first_of_month()?.start_of_day());
        first.map_or(self, |first| Self(first.timestamp().as_millisecond()))
    }

    /// The moment `ms` milliseconds after the epoch.
    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// Whole seconds since the epoch: the unit of DynamoDB's time to live. Nothing else uses it.
    pub const fn as_epoch_s(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Reads the clock. For the outermost layer only: `main.rs`, the entry of a function, a query for current prices. Everything
    /// else takes the time as an argument.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that reads the clock")]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self(since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX)))
    }

    /// The time from `earlier` to this; negative if this is before `earlier`.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    pub const ZERO: Self = Self(0);

    pub const fn from_s(s: i64) -> Self {
        Self(s.saturating_mul(1000))
    }

    pub const fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn as_ms(self) -> i64 {
        self.0
    }

    /// Seconds, with the fraction.
    pub fn as_s(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

impl From<Time> for SystemTime {
    fn from(at: Time) -> Self {
        let far = Duration::from_millis(at.0.unsigned_abs());
        let moved = if at.0 < 0 { Self::UNIX_EPOCH.checked_sub(far) } else { Self::UNIX_EPOCH.checked_add(far) };
        moved.unwrap_or(Self::UNIX_EPOCH)
    }
}

impl Add<Span> for Time {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Time {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    /// RFC 3339.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<jiff::Timestamp>().map(|at| Self::from_ms(at.as_millisecond()))
    }
}

impl fmt::Display for Time {
    /// RFC 3339 in UTC, or the number of milliseconds if the calendar has no such date.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

impl fmt::Display for Span {
    /// As people write it: `850 ms`, `42 s`, `7 min 5 s`, `3 h 20 min`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.unsigned_abs();
        if self.0 < 0 {
            write!(f, "-")?;
        }
        let s = ms / 1000;
        match s {
            0 => write!(f, "{ms} ms"),
            1..60 => write!(f, "{s} s"),
            60..3600 if s.is_multiple_of(60) => write!(f, "{} min", s / 60),
            60..3600 => write!(f, "{} min {} s", s / 60, s % 60),
            _ if (s % 3600) / 60 == 0 => write!(f, "{} h", s / 3600),
            _ => write!(f, "{} h {} min", s / 3600, (s % 3600) / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_overflowing() {
        assert_eq!(Time::from_ms(i64::MAX) + Span::from_s(i64::MAX), Time::from_ms(i64::MAX));
        assert_eq!(Time::from_ms(i64::MIN).since(Time::from_ms(i64::MAX)).as_ms(), i64::MIN);
        let in_ms =
            |ms| SystemTime::from(Time::from_ms(ms)).duration_since(SystemTime::UNIX_EPOCH).map(|d| d.as_millis());
        assert_eq!(in_ms(1_234).unwrap(), 1_234);
        assert_eq!(in_ms(-1_234).unwrap_err().duration().as_millis(), 1_234);
    }

    #[test]
    fn times_and_spans_are_shown_for_people() {
        assert_eq!(Span::from_s(425).to_string(), "7 min 5 s");
        assert_eq!(Span::from_ms(850).to_string(), "850 ms");
        assert_eq!(Span::from_s(12_000).to_string(), "3 h 20 min");
        assert_eq!(Time::from_ms(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Time::from_ms(i64::MAX).to_string(), format!("{} ms", i64::MAX));
    }
}
