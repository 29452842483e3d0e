//! Runs a command as another user.
//!
//! Flow: a supervisor starts this program again, as the helper `as-user`, with the agent's own environment. The helper
//! gets the job's environment as its standard input. The helper reads it, gives up the agent's rights, and becomes the
//! command with exactly that environment.
//! Guarantees: no variable of a job is in the environment of a process that still has the agent's rights; otherwise a
//! job's `LD_PRELOAD` would run the job's code as root.
//! Does not: know allocs, or wait for the command.

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::User;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The standard input that carries the job's environment to [`run`]. It is in memory only: an environment may hold
/// secrets, and a full disk must not keep a job from starting.
pub fn environment_as_stdin(env: &BTreeMap<String, String>) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create("nodekeeper-environment", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&serde_json::to_vec(env)?)?;
    file.rewind()?;
    Ok(Stdio::from(file))
}

/// Becomes `user`, and then `command` with the environment that `stdin` holds. Returns only if that fails.
pub fn run(user: &str, command: &[String], stdin: impl Read) -> io::Error {
    let become_and_run = || -> io::Result<io::Error> {
        let env: BTreeMap<String, String> = serde_json::from_reader(stdin)
            .map_err(|e| io::Error::other(format!("the job's environment is not on standard input: {e}")))?;
        let (program, args) = command.split_first().ok_or_else(|| io::Error::other("the command is empty"))?;
        drop_rights(user)?;
        Ok(Command::new(program).args(args).env_clear().envs(env).stdin(Stdio::null()).exec())
    };
    become_and_run().unwrap_or_else(|e| e)
}

/// Takes the user's identity. The groups are changed before the user id, because only root may change groups.
fn drop_rights(user: &str) -> io::Result<()> {
    let user = User::from_name(user)?.ok_or_else(|| io::Error::other(format!("there is no user {user:?}")))?;
    if nix::unistd::geteuid() != user.uid {
        nix::unistd::initgroups(&CString::new(user.name.as_str())?, user.gid)?;
        nix::unistd::setgid(user.gid)?;
        nix::unistd::setuid(user.uid)?;
    }
    Ok(())
}
