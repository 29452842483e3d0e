//! What a node's orders mean on this machine: starting supervisors, stopping them, and
//! seeing what became of them.
//!
//! Guarantees: an alloc is started at most once, also when the agent is killed between any
//! two instructions; a supervisor that died leaves nothing running.
//! Does not: remember anything that the alloc directories do not say, except what could not
//! be written there and what was given up.

use crate::config::Runtime;
use crate::docker;
use crate::durable;
use crate::process;
use crate::protocol::{Ended, Seen, tail};
use crate::state::DataDir;
use crate::task::{AllocDir, Exit, Started, Task, is_cache_name};
use nix::sys::signal::Signal;
use shared::ids::{AllocId, NodeId};
use shared::wire::{AllocOrder, MAX_LOG_TAIL_BYTES};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// How often a supervisor that ends before it claims its alloc is started again.
const MAX_TRIES: u32 = 3;

/// How often this machine may have no room for a supervisor before its alloc is given up: about a minute.
const MAX_REFUSALS: u32 = 300;

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
struct Tries {
    /// Supervisors that were started.
    supervised: u32,
    /// Times that none could be.
    refused: u32,
}

/// How allocs are run here.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The node's own id, for labels.
    pub node_id: NodeId,
    /// This boot.
    pub boot_id: String,
    /// How commands are run.
    pub runtime: Runtime,
    /// As whom.
    pub job_user: Option<String>,
    /// This program, to start supervisors with.
    pub program: PathBuf,
}

/// Starts, stops and looks.
#[derive(Debug)]
pub struct Runner {
    setup: Setup,
    allocs: PathBuf,
    caches: PathBuf,
    cache_labels: PathBuf,
    /// Supervisors that this agent started, to wait for; those of an earlier one are init's.
    children: BTreeMap<AllocId, Child>,
    /// How often it was tried to start a supervisor that claims it.
    tries: BTreeMap<AllocId, Tries>,
    /// What this machine could not start: somebody else's work, if anybody's.
    given_up: BTreeSet<AllocId>,
    /// Ends that have no directory to be written in.
    unwritten: BTreeMap<AllocId, Exit>,
}

impl Runner {
    /// A runner in this data directory.
    pub fn new(setup: Setup, data: &DataDir) -> Self {
        let (allocs, caches, cache_labels) = (data.allocs(), data.caches(), data.cache_labels());
        Self {
            setup,
            allocs,
            caches,
            cache_labels,
            children: BTreeMap::new(),
            tries: BTreeMap::new(),
            given_up: BTreeSet::new(),
            unwritten: BTreeMap::new(),
        }
    }

    fn dir(&self, id: AllocId) -> AllocDir {
        AllocDir::of(&self.allocs, id)
    }

    /// Starts a supervisor for this alloc, unless it has or had one.
    pub fn run(&mut self, order: &AllocOrder) {
        let id = order.alloc_id;
        if self.children.contains_key(&id) || self.unwritten.contains_key(&id) || self.given_up.contains(&id) {
            return;
        }
        let tries = self.tries.entry(id).or_default();
        if tries.supervised >= MAX_TRIES {
            let log = self.dir(id).path().join("supervisor.log");
            return self.never_ran(order, format!("the node could not supervise it: see {} there", log.display()));
        }
        match self.prepare(order).and_then(|dir| self.spawn(&dir)) {
            Ok(None) => {}
            Ok(Some(child)) => {
                self.children.insert(id, child);
                self.tries.entry(id).or_default().supervised += 1;
            }
            Err(error) if is_of_the_machine(&error) => {
                let tries = self.tries.entry(id).or_default();
                if tries.refused == 0 {
                    tracing::warn!(alloc_id = %id, %error, "this machine has no room to start it: tried again");
                }
                tries.refused += 1;
                if tries.refused >= MAX_REFUSALS {
                    tracing::error!(alloc_id = %id, %error, "this machine has no room to start it: given up");
                    self.given_up.insert(id);
                }
            }
            Err(e) => self.never_ran(order, format!("the node could not start it: {e}")),
        }
    }

    fn prepare(&self, order: &AllocOrder) -> io::Result<AllocDir> {
        let dir = self.dir(order.alloc_id);
        if let Some(bad) = order.caches.iter().find(|name| !is_cache_name(name)) {
            let plain = "letters, digits, '-', '_' and '.' only";
            return Err(io::Error::other(format!("{bad:?} cannot be the name of a cache: {plain}")));
        }
        let caches: Vec<_> = order.caches.iter().map(|name| (name.clone(), self.caches.join(name))).collect();
        for (name, path) in &caches {
            let label = self.cache_labels.join(name);
            if !path.exists() {
                // The label first: what has none is never swept.
                durable::replace(&label, self.setup.node_id.to_string().as_bytes())?;
                fs::create_dir(path)?;
            }
        }
        dir.create(&self.task(order, caches))?;
        Ok(dir)
    }

    fn task(&self, order: &AllocOrder, caches: Vec<(String, PathBuf)>) -> Task {
        Task {
            node_id: self.setup.node_id,
            order: order.clone(),
            runtime: self.setup.runtime,
            job_user: self.setup.job_user.clone(),
            boot_id: self.setup.boot_id.clone(),
            caches,
        }
    }

    /// None if it was started before.
    fn spawn(&self, dir: &AllocDir) -> io::Result<Option<Child>> {
        if dir.started()?.is_some() {
            return Ok(None);
        }
        let log = File::options().append(true).create(true).open(dir.path().join("supervisor.log"))?;
        let mut command = Command::new(&self.setup.program);
        command.arg("run-alloc").arg(dir.path()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().map(Some)
    }

    /// Stops this alloc: TERM now, KILL after its kill timeout, both by its supervisor. If it
    /// was not started, it never will be.
    pub fn stop(&mut self, order: &AllocOrder, why: &str) {
        let id = order.alloc_id;
        if self.unwritten.contains_key(&id) {
            return;
        }
        let dir = self.dir(id);
        match dir.started() {
            Ok(None) => self.never_ran(order, format!("not started: {why}")),
            Ok(Some(started)) => {
                let ordered = dir.order_stop(why);
                if process::is_alive(started.pid, started.start_ticks) {
                    process::send(started.pid, Signal::SIGTERM);
                }
                warn_of(id, "cannot order its stop", ordered);
            }
            Err(error) => tracing::warn!(alloc_id = %id, %error, "cannot be stopped: its directory cannot be read"),
        }
    }

    /// Makes sure that it is never started, and says why.
    fn never_ran(&mut self, order: &AllocOrder, why: String) {
        let id = order.alloc_id;
        let dir = self.dir(id);
        let exit = Exit::without_code(why);
        let nobody = Started { pid: 0, start_ticks: 0, boot_id: self.setup.boot_id.clone() };
        let task = self.task(order, Vec::new());
        match dir.create(&task).and_then(|()| dir.claim(&nobody)) {
            // A supervisor was faster: then it runs, and is stopped on the next look.
            Ok(false) => {}
            Ok(true) => {
                if let Err(error) = dir.end(&exit) {
                    tracing::warn!(alloc_id = %id, %error, "cannot write down how it ended");
                    self.unwritten.insert(id, exit);
                }
            }
            Err(error) => {
                tracing::warn!(alloc_id = %id, %error, "cannot write down how it ended");
                self.unwritten.insert(id, exit);
            }
        }
    }

    /// How this alloc is now.
    pub async fn observe(&mut self, id: AllocId) -> io::Result<Seen> {
        let dir = self.dir(id);
        let waited_for = match self.children.get_mut(&id) {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        };
        if waited_for {
            self.children.remove(&id);
        }
        if let Some(exit) = self.unwritten.get(&id) {
            return Ok(ended(&dir, exit.clone()));
        }
        if self.given_up.contains(&id) {
            return Ok(Seen::Gone);
        }
        if let Some(exit) = dir.exit()? {
            return Ok(ended(&dir, exit));
        }
        let Some(started) = dir.started()? else {
            // A supervisor that ended without a claim is tried again.
            return Ok(Seen::Pending);
        };
        let same_boot = started.boot_id == self.setup.boot_id;
        if !same_boot && started.pid != 0 {
            if self.setup.runtime == Runtime::Docker {
                docker::remove(&id.to_string()).await?;
            }
            return Ok(Seen::Gone);
        }
        if same_boot && process::is_alive(started.pid, started.start_ticks) {
            return Ok(Seen::Running);
        }
        if same_boot {
            process::kill_session(started.pid, started.start_ticks);
        }
        if self.setup.runtime == Runtime::Docker {
            docker::remove(&id.to_string()).await?;
        }
        // It may have written its end since we looked: then that stands.
        let why = match started.pid {
            0 => "not started: the agent was killed while it stopped it",
            _ => "its supervisor was killed, and everything it ran with it",
        };
        if let Err(error) = dir.end(&Exit::without_code(why)) {
            if let Some(exit) = dir.exit()? {
                return Ok(ended(&dir, exit));
            }
            tracing::error!(alloc_id = %id, %error, "its end cannot be written");
            self.unwritten.insert(id, Exit::without_code(why));
            return Ok(ended(&dir, Exit::without_code(why)));
        }
        Ok(dir.exit()?.map_or(Seen::Running, |exit| ended(&dir, exit)))
    }

    /// Kills what does not stop by itself.
    pub fn kill(&self, id: AllocId) {
        if let Ok(Some(started)) = self.dir(id).started() {
            process::kill_session(started.pid, started.start_ticks);
        }
    }

    /// Whether a supervisor of this alloc lives, whatever else is known of it.
    pub fn is_running(allocs: &Path, id: AllocId) -> bool {
        match AllocDir::of(allocs, id).started() {
            Ok(None) => false,
            Ok(Some(started)) => process::is_alive(started.pid, started.start_ticks),
            // Unreadable means unknown, and what may be running is not touched.
            Err(_) => true,
        }
    }

    /// Forgets what is remembered of allocs that are over.
    pub fn forget_all_but(&mut self, known: impl Fn(AllocId) -> bool) {
        self.unwritten.retain(|id, _| known(*id));
        self.tries.retain(|id, _| known(*id));
        // A supervisor may outlive the end it wrote by a moment: nobody asks for it again.
        self.children.retain(|_, child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

/// Whether what failed says more of the machine at this moment than of the job: it is tried again for a
/// while, and then it is lost rather than failed.
fn is_of_the_machine(error: &io::Error) -> bool {
    use io::ErrorKind::{ExecutableFileBusy, OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull, WouldBlock};
    let no_files = [nix::libc::EMFILE, nix::libc::ENFILE];
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || matches!(error.kind(), OutOfMemory | WouldBlock | ExecutableFileBusy)
        || error.raw_os_error().is_some_and(|code| no_files.contains(&code))
}

fn warn_of(id: AllocId, what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!(alloc_id = %id, %error, "{what}");
    }
}

fn ended(dir: &AllocDir, exit: Exit) -> Seen {
    let log_tail = output_tail(&dir.output(), MAX_LOG_TAIL_BYTES).ok().filter(|t| !t.is_empty());
    Seen::Ended(Ended { exit_code: exit.exit_code, message: exit.message, log_tail })
}

/// The last at most `limit` bytes of a file, as text.
pub fn output_tail(path: &Path, limit: usize) -> io::Result<String> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let start = len.saturating_sub(limit as u64);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::with_capacity(limit);
    file.take(limit as u64).read_to_end(&mut bytes)?;
    // Where the cut went through a character, leave its rest out; at most three bytes are.
    let cut = bytes.iter().take(3).take_while(|b| start > 0 && (0x80..0xC0).contains(*b)).count();
    // What is not text becomes a sign of three bytes: cut again.
    let text = String::from_utf8_lossy(bytes.get(cut..).unwrap_or_default());
    Ok(tail(&text, limit).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn what_this_machine_has_no_room_to_start_is_lost_after_a_while_and_did_not_fail() {
        let root = tempfile::tempdir().unwrap();
        let data = DataDir::open(root.path()).unwrap();
        // A program that is being written cannot be started: as little as one there is no memory for.
        let program = root.path().join("agent");
        let being_written = File::create(&program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let (node_id, boot_id) = (testing::node_id(), "boot-1".to_owned());
        let setup = Setup { node_id, boot_id, runtime: Runtime::Process, job_user: None, program };
        let mut runner = Runner::new(setup, &data);
        let order = testing::order(0, 1);
        for _ in 1..MAX_REFUSALS {
            runner.run(&order);
            assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Seen::Pending);
        }
        runner.run(&order);
        assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Seen::Gone);
        // Nor is it started when it is listed once more, before the report that says so.
        drop(being_written);
        runner.forget_all_but(|_| false);
        runner.run(&order);
        assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Seen::Gone);
        assert!(runner.children.is_empty());
    }

    #[test]
    fn the_tail_of_the_output_is_short_and_text() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output");
        fs::write(&path, "é".repeat(10_000)).unwrap();
        assert_eq!(output_tail(&path, 101).unwrap(), "é".repeat(50));
        fs::write(&path, b"\xFF".repeat(10_000)).unwrap();
        let text = output_tail(&path, MAX_LOG_TAIL_BYTES).unwrap();
        assert!(text.len() <= MAX_LOG_TAIL_BYTES && text.len() > MAX_LOG_TAIL_BYTES - 3);
        fs::write(&path, "short\n").unwrap();
        assert_eq!(output_tail(&path, 100).unwrap(), "short\n");
    }
}
