//! Asks a command whether other work keeps the node busy.
//!
//! Guarantees: exit code 0 is busy; any other end, and no end in time, is not. A check that did not
//! end is killed with all it started in its process group.
//! Does not: say anything of allocs: those the control plane knows.

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The longest the command may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the node is busy.
pub async fn ask(command: &str) -> bool {
    ask_within(command, TIMEOUT).await
}

async fn ask_within(command: &str, limit: Duration) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match shell.process_group(0).kill_on_drop(true).spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::warn!(%error, "the busy check cannot be run: taken as not busy");
            return false;
        }
    };
    let group = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
    match tokio::time::timeout(limit, child.wait()).await {
        Ok(status) => status.is_ok_and(|s| s.success()),
        Err(_) => {
            tracing::warn!(limit_s = limit.as_secs(), "the busy check does not end: taken as not busy");
            // Not reaped yet, so the number is still its own.
            if let Some(group) = group {
                let _gone_is_fine = killpg(group, Signal::SIGKILL);
            }
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_exit_code_0_is_busy() {
        assert!(ask("true").await);
        assert!(!ask("exit 3").await);
        assert!(!ask("kill -9 $$").await);
    }

    #[tokio::test]
    async fn a_check_that_does_not_end_leaves_no_process_behind() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let command = format!("sleep 60 & echo $! > '{0}.part'; mv '{0}.part' '{0}'; wait", pid.display());
        assert!(!ask_within(&command, Duration::from_secs(1)).await);
        let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        // Gone, or dead and waiting to be reaped by whoever inherited it.
        for _ in 0..100 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("process {pid} lives on");
    }
}
