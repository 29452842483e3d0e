//! Amounts and moments as people write them: `1h30m`, `1.5G`, `2026-11-24T10:00:00Z`.
//!
//! Guarantees: an amount is rounded up, so that a job never gets less than it asks for; an amount that is too large or
//! not understood is refused, and the refusal says what is allowed.
//! Does not: know what is measured.
//!
//! Why not jiff: it reads no sizes, no plain number and no fraction of a day, and a size and a time have one parser here.

use crate::{Span, Time};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A moment: an RFC 3339 time, a date (its beginning in UTC), or a length of time away from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "GivenMoment", into = "GivenMoment")]
pub enum Moment {
    At(Time),
    Away(Span),
}

impl Moment {
    /// The moment; a length of time counts back from now.
    pub fn before(self, now: Time) -> Time {
        match self {
            Self::At(at) => at,
            Self::Away(span) => now - span,
        }
    }

    /// The moment; a length of time counts from now on.
    pub fn after(self, now: Time) -> Time {
        match self {
            Self::At(at) => at,
            Self::Away(span) => now + span,
        }
    }
}

/// A moment in JSON: milliseconds since the epoch, or a text.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of milliseconds, a time such as \"2026-11-24T10:00:00Z\", or a length of time such as \"2h\""
)]
enum GivenMoment {
    At(Time),
    Text(String),
}

impl TryFrom<GivenMoment> for Moment {
    type Error = String;
    fn try_from(given: GivenMoment) -> Result<Self, String> {
        match given {
            GivenMoment::At(at) => Ok(Self::At(at)),
            GivenMoment::Text(text) => text.parse(),
        }
    }
}

impl From<Moment> for GivenMoment {
    fn from(moment: Moment) -> Self {
        match moment {
            Moment::At(at) => Self::At(at),
            Moment::Away(span) => Self::Text(format!("{}s", span.as_ms() / 1000)),
        }
    }
}

impl FromStr for Moment {
    type Err = String;
    /// Parses `2h`, `2026-11-24`, `2026-11-24T10:00:00Z`.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(s) = seconds(text) {
            return Ok(Self::Away(Span::from_s(i64::try_from(s).unwrap_or(i64::MAX))));
        }
        let at = text.parse::<Time>().or_else(|_| format!("{text}T00:00:00Z").parse());
        at.map(Self::At).map_err(|_| {
            "it must be a length of time such as 30m or 2d, a date, or a time such as 2026-11-24T10:00:00Z".into()
        })
    }
}

/// The names of a unit, and its worth in the smallest unit.
type Unit = (&'static str, u64);

const SECONDS: &[Unit] = &[("s sec", 1), ("m min", 60), ("h hour hours", 3600), ("d day days", 86_400), ("w", 604_800)];

/// Powers of 1024, as every tool for memory means them.
const MEBIBYTES: &[Unit] = &[("M MB MiB", 1), ("G GB GiB", 1 << 10), ("T TB TiB", 1 << 20)];

/// The most digits behind the point.
const MAX_FRACTION: usize = 9;

/// Memory in MiB: `512`, `4G`, `1.5g`, `2TiB`. An error says what is wrong with the text, for a person.
pub fn mebibytes(text: &str) -> Result<u64, String> {
    one(text, MEBIBYTES, 1)
        .ok_or_else(|| "it must be a number of MiB, or a number with a unit: 512M, 4G, 1.5T".to_owned())
}

/// Space in GiB: `20`, `100G`, `2T`. An error as of [`mebibytes`].
pub fn gibibytes(text: &str) -> Result<u64, String> {
    one(text, MEBIBYTES, 1 << 10)
        .map(|mib| mib.div_ceil(1 << 10))
        .ok_or_else(|| "it must be a number of GiB, or a number with a unit: 500M, 100G, 1.5T".to_owned())
}

/// A length of time in seconds: `90`, `10m`, `1h30m`, `1.5d`. An error as of [`mebibytes`].
pub fn seconds(text: &str) -> Result<u64, String> {
    let refused = || "it must be a number of seconds, or numbers with units: 90s, 10m, 1h30m, 1.5d".to_owned();
    if let Some(plain) = one(text, SECONDS, 1) {
        return Ok(plain);
    }
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let number = rest.find(|c: char| !is_of_number(c)).ok_or_else(refused)?;
        let behind = rest.get(number..).unwrap_or_default();
        let unit = behind.find(is_of_number).unwrap_or(behind.len());
        let (part, left) = rest.split_at_checked(number + unit).ok_or_else(refused)?;
        sum = one(part, SECONDS, 1).and_then(|part| sum.checked_add(part)).ok_or_else(refused)?;
        rest = left;
    }
    if text.is_empty() { Err(refused()) } else { Ok(sum) }
}

const fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// One number with one of these units, in the smallest unit. Without a unit it is multiplied by `plain`.
fn one(text: &str, units: &[Unit], plain: u64) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.find(|c| !is_of_number(c)).unwrap_or(text.len()))?;
    let is_it = |(names, _): &&Unit| names.split(' ').any(|name| name.eq_ignore_ascii_case(unit));
    let worth = if unit.is_empty() { plain } else { units.iter().find(is_it)?.1 };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = !whole.is_empty() && (!fraction.is_empty() || !number.contains('.'));
    if !has_digits || fraction.contains('.') || fraction.len() > MAX_FRACTION {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = u128::from(whole.parse::<u64>().ok()?);
    let fraction = if fraction.is_empty() { 0 } else { u128::from(fraction.parse::<u64>().ok()?) };
    let amount = whole.checked_mul(scale)?.checked_add(fraction)?.checked_mul(u128::from(worth))?;
    u64::try_from(amount.div_ceil(scale)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_fractions_and_are_rounded_up() {
        let memory = |text: &str| mebibytes(text).unwrap();
        assert_eq!(
            ["512", "4G", "4g", "1TiB", "1.5G", "2GB", "0.1M"].map(memory),
            [512, 4096, 4096, 1 << 20, 1536, 2048, 1]
        );
        let space = |text: &str| gibibytes(text).unwrap();
        assert_eq!(["20", "2T", "100M", "1.5", "1.5T"].map(space), [20, 2048, 1, 2, 1536]);
        for bad in
            ["", "G", "-1", "1.", ".5G", "1.2.3G", "4 G", "4X", "1G2M", "99999999999999999999", "18446744073709551615T"]
        {
            assert!(mebibytes(bad).is_err() && gibibytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_sums() {
        let time = |text: &str| seconds(text).unwrap();
        assert_eq!(
            ["90", "0", "10m", "2h", "1d", "1h30m", "1.5h", "1d2h3m4s", "90min", "1w"].map(time),
            [90, 0, 600, 7200, 86_400, 5400, 5400, 93_784, 5400, 604_800]
        );
        for bad in ["", "h", "1h30", "1h 30m", "-1h", "1x", "1h-2m", "é", "1é", "18446744073709551615w", "."] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_a_distance() {
        let now = Time::from_ms(1_800_000_000_000);
        let moment = |text: &str| text.parse::<Moment>().unwrap();
        assert_eq!(moment("30m").before(now), now - Span::from_s(1800));
        assert_eq!(moment("30m").after(now), now + Span::from_s(1800));
        assert_eq!(moment("2026-11-24T10:00:00Z").after(now).to_string(), "2026-11-24T10:00:00.000Z");
        assert_eq!(moment("2026-11-24").before(now).to_string(), "2026-11-24T00:00:00.000Z");
        for bad in ["", "yesterday", "2026-13-01", "24.11.2026"] {
            assert!(bad.parse::<Moment>().is_err(), "{bad}");
        }
        for (json, again) in [("\"2h\"", "\"7200s\""), ("5", "5"), ("\"1970-01-01T00:00:01Z\"", "1000")] {
            let moment: Moment = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&moment).unwrap(), again);
        }
    }
}
