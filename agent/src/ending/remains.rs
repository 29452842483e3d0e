//! What remains of a command that is stopped, and signals that reach all of it.
//!
//! One rule for processes, elements of packs and containers: once a stop has begun, a command has ended when nothing of it remains,
//! or when its time to stop is over. Only without a stop, the end of its first process is its end.
//!
//! ```text
//! processes     those below the supervisor
//! a container   those below its init, which is halted until nothing else remains: its end would be the end of all
//! an element    see `elements::remains`
//! ```
//!
//! Guarantees: each signal is sent once to each process that remains, whatever group or session it went to, and to the readers of what
//! still saves its work later (`process_table::Notice`); a container whose init
//! cannot be halted gets its signals from its runtime, and ends with its first process.
//! Does not: know when to send what (`stops` does).

use crate::isolation::cgroup;
use crate::runtime::init::InitWatch;
use crate::runtime::{ContainerRuntime, TIMEOUT};
use model::{AllocId, Signal};
use nix::errno::Errno;
use nix::sys::signal::Signal as Number;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use process_table::{self, Notice, ProcessEntry, descendants_now};
use std::path::Path;
use std::sync::Arc;
use tokio::time::Instant;

/// The command of an alloc, for its supervisor.
pub(crate) enum Remains<'a> {
    Processes(Processes<'a>),
    Container(ContainerStop<'a>),
}

impl<'a> Remains<'a> {
    /// Those below the supervisor. In a container that is its client.
    pub(crate) const fn processes(&self) -> &Processes<'a> {
        match self {
            Self::Processes(all) => all,
            Self::Container(stop) => &stop.client,
        }
    }

    /// Sends a signal to all of the command, now or as soon as that can be done.
    pub(crate) fn notify(&mut self, signal: Signal) {
        match self {
            Self::Processes(all) => all.notify(signal),
            Self::Container(stop) => stop.unsent = Some(signal),
        }
    }

    /// Kills all of it. Call this again and again.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Processes(all) => all.kill(),
            // The client says how the container ended. It is killed only if it does not.
            Self::Container(stop) => {
                if !stop.kill() {
                    stop.client.kill();
                }
            }
        }
    }

    /// Whether nothing remains, if the first process or the client has ended. Call this again and again while a stop goes on.
    pub(crate) fn have_ended(&mut self, has_first_ended: bool) -> bool {
        match self {
            Self::Processes(all) => {
                all.go_on();
                has_first_ended && reap_all()
            }
            Self::Container(stop) => {
                stop.go_on();
                has_first_ended
            }
        }
    }
}

/// The processes of a command, below its supervisor.
pub(crate) struct Processes<'a> {
    /// This process. It leads a session and a group.
    pub(crate) supervisor: i32,
    /// The first process, which leads a group.
    pub(crate) first: i32,
    /// Whether the first process runs elements. It passes signals on to them.
    pub(crate) is_pack: bool,
    pub(crate) cgroup: Option<&'a Path>,
    /// What was sent to the command. In a container, that is what runs below its init.
    pub(crate) notice: Notice,
}

impl Processes<'_> {
    /// Those that get a signal to the command.
    fn to_signal(&self) -> Vec<ProcessEntry> {
        let mut found = descendants_now(self.supervisor);
        if self.is_pack {
            let (pids, groups): (Vec<i32>, Vec<i32>) =
                descendants_now(self.first).iter().map(|p| (p.pid, p.group)).unzip();
            // An element's process that has lost its parent is below this process now, but still in the group of the element.
            found.retain(|p| !pids.contains(&p.pid) && !groups.contains(&p.group));
        }
        found
    }

    fn notify(&mut self, signal: Signal) {
        self.notice.send(&self.to_signal(), self.supervisor, signal);
    }

    fn go_on(&mut self) {
        let mut notice = std::mem::take(&mut self.notice);
        notice.go_on(|| self.to_signal(), Instant::now().into_std());
        self.notice = notice;
    }

    pub(crate) fn kill(&self) {
        self.cgroup.into_iter().for_each(cgroup::kill);
        process_table::send_group(self.first, Number::SIGKILL);
        process_table::kill_descendants(self.supervisor);
    }
}

/// Reaps every child that has ended. Call this only when tokio waits for no child. Returns whether this process has no child left.
/// Then it has no descendants either, because a process that loses its parent becomes its child.
pub(crate) fn reap_all() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return false,
            Err(Errno::ECHILD) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// A stop of the command in a container.
pub(crate) struct ContainerStop<'a> {
    /// The client of the runtime. It ends with the container.
    client: Processes<'a>,
    watch: Arc<InitWatch>,
    runtime: ContainerRuntime,
    alloc_id: AllocId,
    /// The signal that no process has got yet: the container may be starting, or its init may not be halted yet.
    unsent: Option<Signal>,
    killed_at: Option<Instant>,
}

impl<'a> ContainerStop<'a> {
    pub(crate) fn new(
        client: Processes<'a>,
        watch: Arc<InitWatch>,
        runtime: ContainerRuntime,
        alloc_id: AllocId,
    ) -> Self {
        Self { client, watch, runtime, alloc_id, unsent: None, killed_at: None }
    }

    /// Halts the init, sends the signal, and lets the init go on when nothing remains.
    fn go_on(&mut self) {
        let send_by_runtime = |signal| self.runtime.notify(self.alloc_id, signal);
        let Some(init) = self.watch.init() else {
            if self.watch.is_elsewhere() {
                self.unsent.take().map(send_by_runtime);
            }
            return;
        };
        let below = init.below();
        if below.is_empty() {
            let _ended_is_fine = init.send(Number::SIGCONT);
        } else if let Some(signal) = self.unsent.filter(|_| process_table::is_halted(init.pid)) {
            let shared = process_table::read(init.pid).map_or(0, |init| init.group);
            self.client.notice.send(&below, shared, signal);
            self.unsent = None;
        } else if self.unsent.is_some() && init.send(Number::SIGSTOP) == Err(Errno::EPERM) {
            // The agent is not root, and the init is a process of another user.
            self.unsent.take().map(send_by_runtime);
        } else {
            self.client.notice.go_on(|| below, Instant::now().into_std());
        }
    }

    /// Kills the processes of the command. The init then ends with the exit code of the first one. Killed again, the whole container
    /// ends at once. Returns whether the client may still end by itself.
    fn kill(&mut self) -> bool {
        let Some(init) = self.watch.init() else { return false };
        self.unsent = None;
        if let Some(at) = self.killed_at {
            let _ended_is_fine = init.send(Number::SIGKILL);
            return at.elapsed() < TIMEOUT;
        }
        self.killed_at = Some(Instant::now());
        init.below().iter().for_each(|p| process_table::send(p.pid, Number::SIGKILL));
        let _ended_is_fine = init.send(Number::SIGCONT);
        true
    }
}
