//! Errors that choose the exit code of a command: its command line is wrong, or what it needs does not answer at
//! present.

/// The command line itself, or what it names, is wrong: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// What a command needs does not answer at present, for this reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoAnswer(pub(crate) String);
