//! Ends everything that runs as one user id.
//!
//! Flow: this program is started again, as the helper `end-user`. The helper takes the user's rights to signal, and
//! kills all processes of the user in one system call, which no fork can outrun.
//! Guarantees: when [`end_user`] returns, no process of the user runs, whatever process group or session it went to. No process
//! of the user can signal the helper.
//! Does not: end processes of other users. An alloc with a control group does not need this, because no process leaves the group.

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How often the helper kills before it gives up. A process that waits for a disk dies when the disk answers.
const ROUNDS: u32 = 500;

/// The wait between two rounds.
const STEP: Duration = Duration::from_millis(10);

/// The wait before a helper that failed is started again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Returns when no process of `uid` runs. `reaper` is an id that no job has.
pub async fn end_user(program: &Path, uid: u32, reaper: u32) {
    while !process_table::of_user(uid).is_empty() {
        let mut helper = Command::new(program);
        helper.args(["end-user", &uid.to_string(), &reaper.to_string()]).env_clear();
        helper.stdin(Stdio::null()).stdout(Stdio::null());
        match helper.status().await {
            Ok(status) if status.success() => {}
            other => {
                let outcome = other.map_or_else(|e| e.to_string(), |status| status.to_string());
                tracing::warn!(uid, outcome, "processes of a job do not end: trying again");
                // The helper may not start, for example without memory. Killing one process after the other may miss new ones, but
                // is better than nothing.
                for pid in process_table::of_user(uid) {
                    process_table::send(pid, Signal::SIGKILL);
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// The helper: kills all processes of `uid`.
///
/// A process may signal another one if its real or effective id is the real or saved id of the other (`kill(2)`). The
/// effective id here is the job's, so the helper may kill the job. The real and the saved id are the reaper's, so the job
/// may not kill the helper, and the helper reaches nobody else.
pub fn run_helper(uid: u32, reaper: u32) -> io::Result<()> {
    if uid == reaper || uid == 0 || reaper == 0 {
        return Err(io::Error::other(format!("{uid} and {reaper} must be two ids of jobs")));
    }
    nix::unistd::setgroups(&[])?;
    nix::unistd::setresgid(Gid::from_raw(reaper), Gid::from_raw(reaper), Gid::from_raw(reaper))?;
    nix::unistd::setresuid(Uid::from_raw(reaper), Uid::from_raw(uid), Uid::from_raw(reaper))?;
    for _ in 0..ROUNDS {
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => return Err(errno.into()),
        }
        if process_table::of_user(uid).is_empty() {
            return Ok(());
        }
        std::thread::sleep(STEP);
    }
    Err(io::Error::other(format!("processes of {uid} do not end")))
}
