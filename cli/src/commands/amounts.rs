//! Amounts as people write them in options. Sizes, lengths of time and moments are those of the model.
//!
//! Guarantees: an amount that is not understood is refused, and the error says what is allowed.
//! Does not: know what the amount is for.

pub(super) use model::amounts::{Moment, gibibytes, mebibytes, seconds};

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
}
