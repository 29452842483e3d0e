//! Why the local system could not start, or failed.
//!
//! Guarantees: each message is one line that says what, why and what to do; the cause is the
//! source of the error.

use std::io;
use std::path::PathBuf;

/// Why the local system could not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error("cannot {what} {path} (check it, or name another directory with --dir)")]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("another `nodekeeper local` runs in {0}: end it, or name another directory with --dir")]
    InUse(PathBuf),
    #[error(
        "{path} is there, and `nodekeeper local` did not make it: it removes what has this name, so move it, or name another \
         directory with --dir"
    )]
    NotOurs { path: PathBuf },
    #[error("{0} belongs to another user, or everybody may write there: name a directory of your own with --dir")]
    OthersDirectory(PathBuf),
    #[error(
        "{what} cannot listen on port {port} of this machine (another `nodekeeper local` may run: end it, or give another \
         --port; 0 for any free ports)"
    )]
    Listen { what: &'static str, port: u16, source: io::Error },
    #[error(
        "nodekeeper-agent is not beside {exe}: build all programs with `cargo build --workspace --bins` and start the nodekeeper built with them"
    )]
    NoAgent { exe: PathBuf },
    #[error(
        "`{command}` in {root} failed ({why}): see its messages above, or use the binaries as they are with --no-build"
    )]
    Build { command: String, root: PathBuf, why: String },
    #[error("{path} is not a valid policy: {why}")]
    Policy { path: PathBuf, why: String },
    #[error("the policy was not stored")]
    PolicyNotStored(#[from] store::WriteError),
    #[error("--node-key is wrong")]
    Key(#[from] model::auth::BadKey),
    #[error("--functions-url {0:?} is not an address like http://127.0.0.1:9000")]
    FunctionsUrl(String),
    #[error("the embedded DynamoDB cannot open {path}: {why}; name another file with --data, or leave it out")]
    Database { path: String, why: String },
    #[error(transparent)]
    Tables(#[from] store::DbError),
    #[error("the functions cannot start")]
    Functions(#[from] runtime::env::BadEnvironment),
    #[error("cannot {what}")]
    System { what: &'static str, source: io::Error },
    #[error("{failed} of {checks} checks of the demonstration failed: see above, and the logs in {logs}")]
    Demo { failed: usize, checks: usize, logs: PathBuf },
    /// A signal ended the demonstration.
    #[error("the demonstration was interrupted: nothing is left running")]
    Interrupted,
    #[error("{0} processes could not be ended: this command started them; find them with `ps` and kill them")]
    LeftBehind(usize),
}

impl LocalError {
    /// For `map_err` on file operations.
    pub(super) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}
