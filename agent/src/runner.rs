//! Carries out orders on this machine: starts supervisors, stops them, and reads the state of their allocs.
//!
//! Guarantees: an alloc is started at most once, even if the agent is killed between any two instructions; a
//! supervisor that was killed leaves nothing running; two allocs whose files are on the machine never have the same user
//! id.
//! Does not: keep anything outside the alloc directories, except its child processes, the attempts to start an alloc,
//! exit records that could not be written, and allocs that were given up.

use crate::alloc_dir::{AllocDir, AllocTask, ExitRecord, StartRecord, is_cache_name};
use crate::atomic_file;
use crate::data_dir::DataDir;
use crate::isolation::{self, JobUsers, OwnIds, TaskIsolation};
use crate::outputs::OutputFiles;
use crate::process_table;
use crate::protocol::{Ended, Seen, tail};
use crate::runtime::RuntimeKind;
use model::ids::{AllocId, NodeId};
use model::output::Switches;
use model::wire::{AllocOrder, MAX_LOG_TAIL_BYTES};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The most supervisors that are started for one alloc, if each of them ends before it claims the alloc.
const MAX_SUPERVISORS: u32 = 3;

/// The attempts to start an alloc on a machine without room, before the alloc is given up. They take about a minute.
const MAX_NO_ROOM: u32 = 300;

/// The attempts to start one alloc.
#[derive(Clone, Copy, Debug, Default)]
struct StartAttempts {
    /// Supervisors that were started.
    started: u32,
    /// Attempts for which the machine had no room.
    no_room: u32,
}

/// How allocs are run on this node.
#[derive(Clone, Debug)]
pub struct RunnerSettings {
    /// The node's own id, for labels.
    pub node_id: NodeId,
    /// The current boot.
    pub boot_id: String,
    /// How commands are run.
    pub runtime: RuntimeKind,
    /// Who runs commands.
    pub users: JobUsers,
    /// This program, to start supervisors with.
    pub program: PathBuf,
}

/// Starts and stops supervisors, and reads the state of their allocs.
#[derive(Debug)]
pub struct Runner {
    settings: RunnerSettings,
    allocs: PathBuf,
    caches: PathBuf,
    cache_labels: PathBuf,
    /// The supervisors that this agent started and has to reap. Init reaps the supervisors of an earlier agent.
    children: BTreeMap<AllocId, Child>,
    attempts: BTreeMap<AllocId, StartAttempts>,
    /// Allocs that the machine had no room to start. Another node may run them.
    given_up: BTreeSet<AllocId>,
    /// Exit records that could not be written.
    unwritten: BTreeMap<AllocId, ExitRecord>,
    /// The user id that the last alloc got.
    last_uid: Option<u32>,
}

impl Runner {
    /// A runner for this data directory.
    pub fn new(settings: RunnerSettings, data: &DataDir) -> Self {
        let (allocs, caches, cache_labels) = (data.allocs(), data.caches(), data.cache_labels());
        Self {
            settings,
            allocs,
            caches,
            cache_labels,
            children: BTreeMap::new(),
            attempts: BTreeMap::new(),
            given_up: BTreeSet::new(),
            unwritten: BTreeMap::new(),
            last_uid: None,
        }
    }

    fn dir(&self, id: AllocId) -> AllocDir {
        AllocDir::of(&self.allocs, id)
    }

    /// The settings of this runner.
    pub const fn settings(&self) -> &RunnerSettings {
        &self.settings
    }

    /// Starts a supervisor for this alloc, unless one is running or has claimed the alloc. `refuses` is why the node
    /// takes no work at present: the alloc then waits as on a machine without room.
    pub fn start(&mut self, order: &AllocOrder, refuses: Option<&str>) {
        let id = order.alloc_id;
        if self.children.contains_key(&id) || self.unwritten.contains_key(&id) || self.given_up.contains(&id) {
            return;
        }
        let attempts = self.attempts.entry(id).or_default();
        if attempts.started >= MAX_SUPERVISORS {
            let log = self.dir(id).path().join("supervisor.log");
            return self.never_start(order, format!("the node could not supervise it: see {} there", log.display()));
        }
        let prepared = match refuses {
            Some(why) => Err(no_room(format!("the node takes no work: {why}"))),
            None => self.prepare(order),
        };
        match prepared.and_then(|dir| self.spawn(&dir)) {
            Ok(None) => {}
            Ok(Some(child)) => {
                self.children.insert(id, child);
                self.attempts.entry(id).or_default().started += 1;
            }
            Err(error) if is_lack_of_room(&error) => {
                let attempts = self.attempts.entry(id).or_default();
                if attempts.no_room == 0 {
                    tracing::warn!(alloc_id = %id, %error, "this machine has no room to start the alloc: trying again");
                }
                attempts.no_room += 1;
                if attempts.no_room >= MAX_NO_ROOM {
                    tracing::error!(alloc_id = %id, %error, "this machine has no room to start the alloc: giving up");
                    self.given_up.insert(id);
                }
            }
            Err(e) => self.never_start(order, format!("the node could not start it: {e}")),
        }
    }

    fn prepare(&mut self, order: &AllocOrder) -> io::Result<AllocDir> {
        let dir = self.dir(order.alloc_id);
        if let Some(bad) = order.caches.iter().find(|name| !is_cache_name(name)) {
            let rule = "only letters, digits, '-', '_' and '.'";
            return Err(io::Error::other(format!("{bad:?} cannot be the name of a cache: {rule}")));
        }
        let caches: Vec<_> = order.caches.iter().map(|name| (name.clone(), self.caches.join(name))).collect();
        for (name, path) in &caches {
            let label = self.cache_labels.join(name);
            if !path.exists() {
                // The label is written first, because a cache without a label is never swept.
                atomic_file::replace(&label, self.settings.node_id.to_string().as_bytes())?;
                fs::create_dir(path)?;
            }
            self.share_cache(path)?;
        }
        let mut task = self.task(order, caches);
        match &self.settings.users {
            JobUsers::Own(ids) => {
                let uid = self.uid_for(&dir, ids)?;
                self.last_uid = Some(uid);
                task.isolation = Some(TaskIsolation {
                    uid,
                    reaper: ids.uids.last,
                    max_tasks: ids.max_tasks,
                    private_mounts: ids.private_mounts,
                    cgroup: ids.cgroups.as_ref().map(|parent| parent.join(order.alloc_id.to_string())),
                });
            }
            JobUsers::Named(name) => task.job_user = Some(name.clone()),
            JobUsers::Agent => task.unisolated = true,
        }
        dir.create(&task)?;
        Ok(dir)
    }

    /// The user id of the alloc in `dir`: its files' owner, or the next one that owns nothing on this machine. The ids
    /// are taken in turn, so that an id is not used again soon.
    fn uid_for(&self, dir: &AllocDir, ids: &OwnIds) -> io::Result<u32> {
        let range = ids.job_uids();
        if let Some(owner) = dir.owner()?.filter(|uid| range.contains(*uid)) {
            return Ok(owner);
        }
        let mut used = BTreeSet::new();
        for entry in fs::read_dir(&self.allocs)? {
            used.extend(AllocDir::at(entry?.path()).owner()?);
        }
        let last = self.last_uid.unwrap_or(range.last);
        let mut in_turn = range.ids().filter(|uid| *uid > last).chain(range.ids().filter(|uid| *uid <= last));
        let free = in_turn.find(|uid| !used.contains(uid));
        free.ok_or_else(|| no_room(format!("all user ids of jobs are in use ({range}): give a larger --job-uids")))
    }

    /// Lets the allocs that name this cache write there, and nobody else. They share the group of the cache.
    fn share_cache(&self, path: &Path) -> io::Result<()> {
        let JobUsers::Own(ids) = &self.settings.users else { return Ok(()) };
        if ids.cache_gids.contains(fs::symlink_metadata(path)?.gid()) {
            return Ok(());
        }
        let mut used = BTreeSet::new();
        for entry in fs::read_dir(&self.caches)? {
            used.insert(entry?.metadata()?.gid());
        }
        let free = ids.cache_gids.ids().find(|gid| !used.contains(gid)).ok_or_else(|| {
            no_room(format!("all group ids of caches are in use ({}): give a larger --cache-gids", ids.cache_gids))
        })?;
        // Set-group-id: what a job makes in the cache belongs to the group of the cache.
        isolation::give(path, 0, free, 0o2770)
    }

    /// The task without a user, which is not run.
    fn task(&self, order: &AllocOrder, caches: Vec<(String, PathBuf)>) -> AllocTask {
        AllocTask {
            node_id: self.settings.node_id,
            order: order.clone(),
            runtime: self.settings.runtime,
            job_user: None,
            isolation: None,
            unisolated: false,
            boot_id: self.settings.boot_id.clone(),
            caches,
        }
    }

    /// Starts a supervisor. `None` if the alloc was claimed before.
    fn spawn(&self, dir: &AllocDir) -> io::Result<Option<Child>> {
        if dir.start_record()?.is_some() {
            return Ok(None);
        }
        let log = File::options().append(true).create(true).mode(0o600).open(dir.path().join("supervisor.log"))?;
        let mut command = Command::new(&self.settings.program);
        command.arg0("nodekeeper-agent").arg("run-alloc").arg(dir.path()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().map(Some)
    }

    /// Stops this alloc. Its supervisor sends TERM now and KILL after the kill timeout. If the alloc was not started,
    /// it never will be.
    pub fn stop(&mut self, order: &AllocOrder, why: &str) {
        let id = order.alloc_id;
        if self.unwritten.contains_key(&id) {
            return;
        }
        let dir = self.dir(id);
        match dir.start_record() {
            Ok(None) => self.never_start(order, format!("not started: {why}")),
            Ok(Some(start)) => {
                let ordered = dir.order_stop(why);
                if process_table::is_alive(start.pid, start.start_ticks) {
                    process_table::send(start.pid, Signal::SIGTERM);
                }
                if let Err(error) = ordered {
                    tracing::warn!(alloc_id = %id, %error, "cannot write down why the alloc stops");
                }
            }
            Err(error) => tracing::warn!(alloc_id = %id, %error, "cannot stop the alloc: cannot read its directory"),
        }
    }

    /// Makes sure that the alloc is never started, and writes down why.
    fn never_start(&mut self, order: &AllocOrder, why: String) {
        let id = order.alloc_id;
        let dir = self.dir(id);
        let exit = ExitRecord::without_code(why);
        let never = StartRecord::never(self.settings.boot_id.clone());
        let task = self.task(order, Vec::new());
        let written = match dir.create(&task).and_then(|()| dir.claim(&never)) {
            // A supervisor claimed the alloc first: the alloc runs, and the next round stops it.
            Ok(false) => Ok(()),
            Ok(true) => dir.write_exit_record(&exit),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            tracing::warn!(alloc_id = %id, %error, "cannot write the exit record");
            self.unwritten.insert(id, exit);
        }
    }

    /// The state of this alloc now. Writes the exit record of an alloc whose supervisor was killed.
    pub async fn observe(&mut self, id: AllocId) -> io::Result<Seen> {
        let dir = self.dir(id);
        if let Some(child) = self.children.get_mut(&id)
            && child.try_wait()?.is_some()
        {
            self.children.remove(&id);
        }
        if let Some(exit) = self.unwritten.get(&id) {
            return Ok(ended(&dir, exit.clone()));
        }
        if self.given_up.contains(&id) {
            return Ok(Seen::Gone);
        }
        if let Some(exit) = dir.exit_record()? {
            return Ok(ended(&dir, exit));
        }
        let Some(start) = dir.start_record()? else {
            // The alloc is not started, or its supervisor ended without a claim. A new supervisor is started for it.
            return Ok(Seen::Pending);
        };
        let same_boot = start.boot_id == self.settings.boot_id;
        if !same_boot && !start.is_never() {
            self.settings.runtime.remove(&id.to_string()).await?;
            return Ok(Seen::Gone);
        }
        if same_boot && process_table::is_alive(start.pid, start.start_ticks) {
            return Ok(Seen::Running);
        }
        if same_boot {
            self.end_processes(&dir, &start).await?;
        }
        self.settings.runtime.remove(&id.to_string()).await?;
        self.end_without_supervisor(id, &dir, &start)
    }

    /// Ends everything that runs for the alloc in `dir`, whose supervisor does not, and takes its files away from its
    /// user.
    async fn end_processes(&self, dir: &AllocDir, start: &StartRecord) -> io::Result<()> {
        process_table::kill_session(start.pid, start.start_ticks);
        match dir.task()?.and_then(|task| task.isolation) {
            None => Ok(()),
            Some(isolation) => {
                isolation.end(&self.settings.program).await;
                dir.close()
            }
        }
    }

    /// Writes the exit record of an alloc whose supervisor did not write one.
    fn end_without_supervisor(&mut self, id: AllocId, dir: &AllocDir, start: &StartRecord) -> io::Result<Seen> {
        let why = if start.is_never() {
            "not started: the agent was killed while it stopped it"
        } else {
            "its supervisor was killed, and everything it ran with it"
        };
        // If the supervisor has written its exit record in the meantime, that record stays.
        if let Err(error) = dir.write_exit_record(&ExitRecord::without_code(why)) {
            if let Some(exit) = dir.exit_record()? {
                return Ok(ended(dir, exit));
            }
            tracing::error!(alloc_id = %id, %error, "cannot write the exit record");
            self.unwritten.insert(id, ExitRecord::without_code(why));
            return Ok(ended(dir, ExitRecord::without_code(why)));
        }
        Ok(dir.exit_record()?.map_or(Seen::Running, |exit| ended(dir, exit)))
    }

    /// Kills an alloc that did not stop in time.
    pub async fn kill(&self, id: AllocId) {
        let dir = self.dir(id);
        if let Ok(Some(start)) = dir.start_record()
            && let Err(error) = self.end_processes(&dir, &start).await
        {
            tracing::warn!(alloc_id = %id, %error, "cannot end everything that the alloc ran");
        }
    }

    /// Whether a supervisor of this alloc is running.
    pub fn is_running(allocs: &Path, id: AllocId) -> bool {
        match AllocDir::of(allocs, id).start_record() {
            Ok(None) => false,
            Ok(Some(start)) => process_table::is_alive(start.pid, start.start_ticks),
            // Nothing is known: the alloc counts as running, so that nothing of it is destroyed.
            Err(_) => true,
        }
    }

    /// Forgets all allocs except the known ones and those that were given up.
    pub fn forget_all_but(&mut self, known: impl Fn(AllocId) -> bool) {
        self.unwritten.retain(|id, _| known(*id));
        self.attempts.retain(|id, _| known(*id));
        // Reaps supervisors here too: one may run for a moment after it wrote its exit record, when its alloc is no
        // longer observed.
        self.children.retain(|_, child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

/// An error that means: not on this machine at this moment.
fn no_room(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, what)
}

/// Whether the machine has no room at this moment: no memory, disk space, processes or file handles, a read-only disk, or a
/// program file that is still being written. The job did not cause this, so the start is tried again for a while, and after that the alloc is lost rather than failed.
fn is_lack_of_room(error: &io::Error) -> bool {
    use io::ErrorKind::{ExecutableFileBusy, OutOfMemory, QuotaExceeded, ReadOnlyFilesystem, StorageFull, WouldBlock};
    let no_files = [nix::libc::EMFILE, nix::libc::ENFILE];
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
        || matches!(error.kind(), OutOfMemory | WouldBlock | ExecutableFileBusy)
        || error.raw_os_error().is_some_and(|code| no_files.contains(&code))
}

fn ended(dir: &AllocDir, exit: ExitRecord) -> Seen {
    let (log_tail, tail_switches) = output_tail(&dir.output_files(), MAX_LOG_TAIL_BYTES).unwrap_or_default();
    let log_tail = Some(log_tail).filter(|t| !t.is_empty());
    Seen::Ended(Ended { exit_code: exit.exit_code, message: exit.message, log_tail, tail_switches })
}

/// The end of an output as text, at most `limit` bytes, and which of it is standard error.
fn output_tail(files: &OutputFiles, limit: usize) -> io::Result<(String, Switches)> {
    let size = files.size()?;
    let start = size.saturating_sub(limit as u64);
    let bytes = files.bytes_within(start, size)?;
    // The start may be inside a character: leave out its remaining bytes, three at most.
    let cut = bytes.iter().take(3).take_while(|b| start > 0 && (0x80..0xC0).contains(*b)).count();
    let switches = files.switches_within(start.saturating_add(cut as u64), size)?;
    let (mut text, mut of_text) = (String::new(), Switches::default());
    for (stream, part) in switches.split(bytes.get(cut..).unwrap_or_default()) {
        of_text.note(text.len() as u64, stream);
        text.push_str(&String::from_utf8_lossy(part));
    }
    // Each invalid byte became a replacement character of three bytes, so cut again.
    let kept = tail(&text, limit);
    let switches = of_text.part(text.len().saturating_sub(kept.len()) as u64, 0);
    Ok((kept.to_owned(), switches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn an_alloc_that_the_machine_has_no_room_for_is_lost_after_a_while_and_not_failed() {
        let root = tempfile::tempdir().unwrap();
        let data = DataDir::open(root.path()).unwrap();
        // A program that is open for writing cannot be started: ExecutableFileBusy counts as lack of room.
        let program = root.path().join("agent");
        let being_written = File::create(&program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let (node_id, boot_id) = (testing::node_id(), "boot-1".to_owned());
        let settings =
            RunnerSettings { node_id, boot_id, runtime: RuntimeKind::default(), users: JobUsers::Agent, program };
        let mut runner = Runner::new(settings, &data);
        let order = testing::order(0, 1);
        for _ in 1..MAX_NO_ROOM {
            runner.start(&order, None);
            assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Seen::Pending);
        }
        runner.start(&order, None);
        assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Seen::Gone);
        // The alloc is listed once more before the report without it is accepted. It is still not started.
        drop(being_written);
        runner.forget_all_but(|_| false);
        runner.start(&order, None);
        assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Seen::Gone);
        assert!(runner.children.is_empty());
    }

    #[test]
    fn the_end_of_the_output_is_short_and_valid_text() {
        let dir = tempfile::tempdir().unwrap();
        let files = OutputFiles::at(dir.path().to_owned());
        let tail = |output: &[u8], limit| {
            fs::write(files.output(), output).unwrap();
            output_tail(&files, limit).unwrap()
        };
        assert_eq!(tail("é".repeat(10_000).as_bytes(), 101), ("é".repeat(50), Switches::default()));
        let (text, _) = tail(&b"\xFF".repeat(10_000), MAX_LOG_TAIL_BYTES);
        assert!(text.len() <= MAX_LOG_TAIL_BYTES && text.len() > MAX_LOG_TAIL_BYTES - 3);
        assert_eq!(tail(b"short\n", 100), ("short\n".to_owned(), Switches::default()));
        // Standard error from the third byte on, and standard output again from the fifth: a replacement character is longer.
        fs::write(files.switches(), [2u64, 4].map(u64::to_le_bytes).concat()).unwrap();
        let text = "a\u{fffd}\u{fffd}bcd".to_owned();
        assert_eq!(tail(b"a\xff\xffbcd", 100), (text, Switches::new(vec![4, 8])));
        assert_eq!(tail(b"a\xff\xffbcd", 3), ("bcd".to_owned(), Switches::new(vec![0, 1])));
    }
}
