//! Why the local system could not start, or did not do what it should. Causes are sources, for
//! whoever prints the chain.

use std::io;
use std::path::PathBuf;

/// One line each: what, why, what to do.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// A file or directory.
    #[error("cannot {what} {path} (check it, or name another directory with --dir)")]
    File {
        /// What was tried.
        what: &'static str,
        /// With which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another one runs in the same directory.
    #[error("another `nodekeeper local` runs in {0}: end it, or name another directory with --dir")]
    InUse(PathBuf),
    /// A port.
    #[error("cannot listen at port {port} of this machine (give another --port, or 0 for any free one)")]
    Listen {
        /// Which.
        port: u16,
        /// Why not.
        source: io::Error,
    },
    /// Binaries that are not there.
    #[error("{} not found beside {exe}: build all binaries with `cargo build --bins` and start the one built with them", .missing.join(", "))]
    NoBinaries {
        /// Which.
        missing: Vec<&'static str>,
        /// This program.
        exe: PathBuf,
    },
    /// The build.
    #[error(
        "`cargo build --bins` in {root} failed ({why}): see its messages above, or take the binaries as they are with --no-build"
    )]
    Build {
        /// The workspace.
        root: PathBuf,
        /// How it ended.
        why: String,
    },
    /// The policy file.
    #[error("{path} is not a policy: {why}")]
    Policy {
        /// Which; the built-in one has no file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The policy in the tables.
    #[error("the policy was not stored")]
    PolicyNotStored(#[from] shared::store::WriteError),
    /// The node key.
    #[error("--node-key is wrong")]
    Key(#[from] shared::auth::BadKey),
    /// Where the functions are.
    #[error("--functions-url {0:?} is not an address like http://127.0.0.1:9000")]
    FunctionsUrl(String),
    /// The embedded database.
    #[error("the embedded DynamoDB cannot open {path}: {why}; name another file with --data, or leave it out")]
    Database {
        /// Its file.
        path: String,
        /// Why not.
        why: String,
    },
    /// The tables.
    #[error(transparent)]
    Tables(#[from] shared::store::DbError),
    /// The functions.
    #[error(transparent)]
    Functions(#[from] super::lambda::ConfigError),
    /// The operating system.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The demonstration.
    #[error("{failed} of {checks} checks of the demonstration failed: see above, and the logs in {logs}")]
    Demo {
        /// How many failed.
        failed: usize,
        /// Of how many.
        checks: usize,
        /// Where to look.
        logs: PathBuf,
    },
    /// The demonstration was told to end before it was over.
    #[error("the demonstration was interrupted: nothing is left running")]
    Interrupted,
    /// Something outlived it.
    #[error("{0} processes could not be ended: look for them with `ps`, they were started by this command")]
    LeftBehind(usize),
}

impl LocalError {
    /// For `map_err` on file operations.
    pub(super) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}
