//! The mistakes of a submission, as they are found.
//!
//! Guarantees: all of them are kept, in the order in which they were found.
//! Does not: know what is right; `spec` and its parts do.

/// Everything that is wrong with a submission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job was not submitted: {}", .0.join("; "))]
pub struct BadJob(pub Vec<String>);

/// The mistakes so far.
#[derive(Default)]
pub(crate) struct Mistakes(Vec<String>);

impl Mistakes {
    pub(crate) fn require(&mut self, is_right: bool, message: impl FnOnce() -> String) {
        if !is_right {
            self.0.push(message());
        }
    }

    pub(crate) fn into_list(self) -> Option<Vec<String>> {
        (!self.0.is_empty()).then_some(self.0)
    }
}

/// A wrong text in a message: quoted, and not long.
pub(crate) fn shown(text: &str) -> String {
    if text.chars().count() > 60 {
        format!("{:?}…", text.chars().take(60).collect::<String>())
    } else {
        format!("{text:?}")
    }
}
