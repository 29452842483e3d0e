//! Asks a command whether other work keeps the node busy.
//!
//! Guarantees: exit code 0 is busy; any other end, and no end in time, is not.
//! Does not: say anything of allocs: those the control plane knows.

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
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    match tokio::time::timeout(limit, shell.status()).await {
        Ok(Ok(status)) => status.success(),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the busy check cannot be run: taken as not busy");
            false
        }
        Err(_) => {
            tracing::warn!(limit_s = limit.as_secs(), "the busy check does not end: taken as not busy");
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
        assert!(!ask_within("sleep 60", Duration::from_millis(50)).await);
    }
}
