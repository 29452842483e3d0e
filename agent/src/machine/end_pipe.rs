//! The pipe by which supervisors wake their agent when an alloc has ended.
//!
//! Guarantees: no supervisor waits for an agent; ends that come together wake the agent once.
//! Does not: say which alloc ended, or reach an agent that does not run: whoever is woken must look now and then all the same.

use nix::sys::stat::Mode;
use rustix::fs::OFlags;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tokio::sync::Notify;

/// The pipe in the data directory.
pub const END_PIPE: &str = "ends";

/// Opens the pipe for the agent. An earlier agent may have left it.
pub fn open(path: &Path) -> io::Result<Receiver> {
    let _may_be_there = nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR);
    // For writing too: otherwise the pipe ends with each supervisor.
    OpenOptions::new().read_write(true).open_receiver(path)
}

/// Wakes the agent's loop whenever allocs have ended.
pub async fn pass_on(pipe: &Receiver, wakes: &Notify) {
    loop {
        let _ready = pipe.readable().await;
        while pipe.try_read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
        wakes.notify_one();
    }
}

/// Wakes the agent that has this pipe open, if there is one: an alloc has ended.
pub fn wake(path: &Path) {
    let pipe = File::options().write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let _looks_later = pipe.and_then(|mut pipe| pipe.write_all(&[0]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn many_ends_wake_an_agent_once_and_no_supervisor_waits_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(END_PIPE);
        wake(&path);
        assert!(!path.exists(), "only an agent makes the pipe");
        drop(open(&path).unwrap());
        // An agent was here, and is not.
        wake(&path);
        let (pipe, wakes) = (open(&path).unwrap(), Notify::new());
        let within = async |ms| {
            tokio::select! {
                () = pass_on(&pipe, &wakes) => false,
                woken = timeout(Duration::from_millis(ms), wakes.notified()) => woken.is_ok(),
            }
        };
        assert!(!within(20).await);
        // More than a pipe holds.
        (0..70_000).for_each(|_| wake(&path));
        assert!(within(30_000).await);
        assert!(!within(20).await, "it has heard all of them");
    }
}
