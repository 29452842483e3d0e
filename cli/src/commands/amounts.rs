//! Moments as people write them: `2 days ago` as `2d`. Sizes and lengths of time are those of the model.
//!
//! Guarantees: a moment that is not understood is refused, and the error says what is allowed.
//! Does not: know what the moment is for.

pub(super) use model::amounts::{gibibytes, mebibytes, seconds};
use model::time::{Span, Time};

/// A moment: an RFC 3339 time, a date (its beginning in UTC), or a length of time away from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    At(Time),
    Away(Span),
}

impl Moment {
    /// The moment; a length of time counts back from now.
    pub(super) fn before(self, now: Time) -> Time {
        match self {
            Self::At(at) => at,
            Self::Away(span) => now - span,
        }
    }

    /// The moment; a length of time counts from now on.
    pub(super) fn after(self, now: Time) -> Time {
        match self {
            Self::At(at) => at,
            Self::Away(span) => now + span,
        }
    }
}

/// Parses `2h`, `2026-11-24`, `2026-11-24T10:00:00Z`.
pub(super) fn moment(text: &str) -> Result<Moment, String> {
    if let Ok(s) = seconds(text) {
        return Ok(Moment::Away(Span::from_s(i64::try_from(s).unwrap_or(i64::MAX))));
    }
    let midnight = format!("{text}T00:00:00Z");
    let at = text.parse::<jiff::Timestamp>().or_else(|_| midnight.parse());
    at.map(|at| Moment::At(Time::from_ms(at.as_millisecond()))).map_err(|_| {
        "it must be a length of time such as 30m or 2d, a date, or a time such as 2026-11-24T10:00:00Z".into()
    })
}

/// Parses a limit: a whole number from 1 on.
pub(super) fn limit(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "it must be a number of at least 1".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_leaves_something() {
        assert_eq!((limit("1"), limit("50")), (Ok(1), Ok(50)));
        for bad in ["0", "-1", "", "x"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_a_distance() {
        let now = Time::from_ms(1_800_000_000_000);
        assert_eq!(moment("30m").unwrap().before(now), now - Span::from_s(1800));
        assert_eq!(moment("30m").unwrap().after(now), now + Span::from_s(1800));
        assert_eq!(moment("2026-11-24T10:00:00Z").unwrap().after(now).to_string(), "2026-11-24T10:00:00.000Z");
        assert_eq!(moment("2026-11-24").unwrap().before(now).to_string(), "2026-11-24T00:00:00.000Z");
        for bad in ["", "yesterday", "2026-13-01", "24.11.2026"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
