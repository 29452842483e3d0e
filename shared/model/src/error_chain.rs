//! An error with all its causes, in one line. The AWS SDK alone would only say "dispatch failure".
//!
//! Guarantees: the causes are in order, the outermost first.
//! Does not: classify errors.

use std::error::Error;

pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
