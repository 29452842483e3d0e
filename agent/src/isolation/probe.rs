//! What this machine allows, tried out by a process with a job's rights.
//!
//! Flow: this program is started again, as the helper `probe`, with a [`Probe`] on its standard input. The helper tries
//! the private mounts, becomes a job's user, and tries to enter the data directory and to reach the metadata service. It
//! writes a [`ProbeResult`] to its standard output.
//! Guarantees: a helper that cannot become the job's user finds nothing, which is an error.
//! Does not: decide what follows (`guard` does).

use super::{PrivateMounts, helper, metadata};
use crate::machine::memory_file::as_stdin_bytes;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long the helper may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the helper tries as a job would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    pub uid: u32,
    /// The private mounts to try; `None` for none.
    pub mounts: Option<PrivateMounts>,
    /// A directory that jobs must be able to enter.
    pub enter: PathBuf,
    /// Where the metadata service may be.
    pub metadata: Vec<SocketAddr>,
}

/// What the helper found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// Why there are no private mounts; `None` if they work or were not to be tried.
    pub no_mounts: Option<String>,
    /// Why the directory cannot be entered; `None` if it can.
    pub cannot_enter: Option<String>,
    /// The addresses of the metadata service that can be reached.
    pub metadata: Vec<SocketAddr>,
}

/// Runs the helper, and returns what it found.
pub async fn run(program: &Path, probe: &Probe) -> io::Result<ProbeResult> {
    let mut helper = Command::new(program);
    helper.arg("probe").env_clear().current_dir("/").kill_on_drop(true);
    helper.stdin(as_stdin_bytes(&serde_json::to_vec(probe)?)?).stdout(Stdio::piped()).stderr(Stdio::piped());
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("the helper did not end in {TIMEOUT:?}"));
    let output = tokio::time::timeout(TIMEOUT, helper.output()).await.map_err(late)??;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("the helper failed ({}): {}", output.status, stderr.trim())));
    }
    serde_json::from_slice(&output.stdout).map_err(io::Error::from)
}

pub fn run_helper(stdin: impl Read, mut stdout: impl Write) -> io::Result<()> {
    let probe: Probe = serde_json::from_reader(stdin)?;
    let no_mounts = probe.mounts.as_ref().and_then(|m| helper::enter_private_mounts(m).err()).map(|e| e.to_string());
    helper::become_user(probe.uid)?;
    let cannot_enter = std::env::set_current_dir(&probe.enter).err().map(|e| e.to_string());
    let found = ProbeResult { no_mounts, cannot_enter, metadata: metadata::reach(&probe.metadata) };
    stdout.write_all(&serde_json::to_vec(&found)?)
}
