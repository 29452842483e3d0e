//! The busy check: a command that says whether other work keeps the node busy.
//!
//! Guarantees: exit code 0 means busy; any other end means not busy; a check that takes too long is killed with its
//! whole process group, and means not busy.
//! Does not: look at allocs; the control plane knows about them.

use nix::sys::signal::Signal;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The longest time that the command may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the command says that the node is busy. A command that cannot run or takes too long does not.
pub async fn check(command: &str) -> bool {
    check_within(command, TIMEOUT).await
}

async fn check_within(command: &str, limit: Duration) -> bool {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match shell.process_group(0).kill_on_drop(true).spawn() {
        Ok(child) => child,
        Err(error) => {
            tracing::warn!(%error, "cannot run the busy check: counted as not busy");
            return false;
        }
    };
    let group = child.id().map_or(0, |pid| pid as i32);
    match tokio::time::timeout(limit, child.wait()).await {
        Ok(status) => status.is_ok_and(|s| s.success()),
        Err(_) => {
            tracing::warn!(limit_s = limit.as_secs(), "the busy check takes too long: counted as not busy");
            // The process was not reaped yet, so the kernel has not reused its pid.
            process_table::send_group(group, Signal::SIGKILL);
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_exit_code_0_means_busy() {
        assert!(check("true").await);
        assert!(!check("exit 3").await);
        assert!(!check("kill -9 $$").await);
    }

    #[tokio::test]
    async fn a_check_that_does_not_end_leaves_no_process_behind() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let command = format!("sleep 60 & echo $! > '{0}.part'; mv '{0}.part' '{0}'; wait", pid.display());
        assert!(!check_within(&command, Duration::from_secs(1)).await);
        let pid: i32 = std::fs::read_to_string(pid).unwrap().trim().parse().unwrap();
        // The process has ended, or is a zombie that its new parent has not reaped yet.
        for _ in 0..100 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("process {pid} still runs");
    }
}
