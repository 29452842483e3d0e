//! Types whose JSON is their text, and the error of a text that is none of them.
//!
//! Guarantees: JSON has the text that people read and type, and JSON with another text is an error.
//! Does not: read or print the text. Each type does, by `FromStr` and `Display`.

use super::mistakes::shown;
use std::fmt::Display;

/// A text is not what it should be. The message says why, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadText(pub(crate) String);

impl BadText {
    /// `fault` goes on with the sentence that begins with the text.
    pub(crate) fn of(text: &str, fault: impl Display) -> Self {
        Self(format!("{} {fault}", shown(text)))
    }

    /// The text is no name of this kind.
    pub(crate) fn no(kind: &str, text: &str, expected: &str) -> Self {
        Self(format!("{kind} {} is not {expected}", shown(text)))
    }
}

/// Lets serde read these types by their `FromStr`, and write them by their `Display`.
macro_rules! text_form {
    ($($t:ty),*) => {$(
        impl serde::Serialize for $t {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $t {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
pub(crate) use text_form;
