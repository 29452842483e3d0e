//! The directory of one alloc: which file says what.
//!
//! ```text
//! allocs/{alloc_id}/label       the node id, written when the directory is made
//!                   task.json   what to run, written before anything is started
//!                   started     which supervisor runs the alloc, or that none ever does: created once
//!                   stop        why the alloc is to stop; absent if it is not to stop
//!                   work/       where the command runs
//!                   tmp/        what the command sees as /tmp
//!                   aws-token   the token by which the job gets its credentials, if it has a role
//!                   secrets/    the secrets that the job wants as files
//!                   passwd      the users that the command sees; the file group has the groups
//!                   elements    how the elements of a pack ended
//!                   output, switches, stored   the output of the command: see `outputs`
//!                   supervisor.log  the errors of its supervisor
//!                   image       the digest of the image of the alloc
//!                   used        the usage of the command so far
//!                   phase       what the supervisor does while the command does not run
//!                   registry/   the login to the registry, while the image is pulled
//!                   exit.json   how the alloc ended: created once
//!                   ended       its command has ended, or is being ended
//!                   unended     its processes were killed, and do not die
//!                   container   its container could not be removed, and may still run
//!                   reserve     disk space for exit.json, while the command runs
//! ```
//!
//! Guarantees: `started` and `exit.json` are each created at most once, however many processes try, and no reader sees
//! a part of their content. So a command runs at most once, and has only one end. Only the job's own user enters the directory, and
//! it reads only what is for the command: no other job learns anything here.
//! Syncs: one step for the files when the directory is made, so that a crash leaves all of it or nothing; two for `started`, with the names
//! of the directory and in it, so that a power cut lets no command run twice; two for `exit.json`, so that no end is lost.
//! Does not: start or stop processes, or look at them.

use crate::contact::s3_access::FilesSource;
use crate::isolation::{self, TaskIsolation};
use crate::machine::atomic_file::{self, Spare, absent_is_fine, make_dir};
use crate::machine::end_pipe::{self, END_PIPE};
use crate::output::output_files::OutputFiles;
use crate::protocol::Holder;
use crate::rights::{CredentialsSource, SECRETS_DIR, TOKEN_FILE};
use crate::runtime::{ContainerRuntime, WORK_DIR};
use model::wire::AllocOrder;
use model::{AllocId, EndCause, ImageDigest, NodeId, StoredOutput, Time, Usage};
use remove_tree::remove_tree;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Marks an alloc whose container could not be removed.
const LEFT: &str = "container";
/// Marks an alloc whose command has ended, or is being ended.
const ENDED: &str = "ended";

/// Marks an alloc whose processes were killed, and do not die.
const UNENDED: &str = "unended";

/// The file beside `allocs/` with the agent's last samples of the GPUs.
pub const GPU_SAMPLES: &str = "gpu-samples.json";

/// Disk space for the exit record.
const RESERVE_BYTES: usize = 8 << 10;

/// What a supervisor needs to know: the content of `task.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocTask {
    pub node_id: NodeId,
    pub order: AllocOrder,
    /// What runs the command in a container; `None` if it is a process of the machine.
    pub container: Option<ContainerRuntime>,
    /// How the alloc is isolated, if it has a user id of its own.
    pub isolation: Option<TaskIsolation>,
    /// Whether the command runs as the agent's own user. A task that has neither this nor another user is not run.
    /// Otherwise an incomplete task would run as root.
    pub unisolated: bool,
    /// The uuids of its GPUs.
    pub gpus: Vec<String>,
    /// The boot in which the alloc is started.
    pub boot_id: String,
    /// Name and directory of each cache.
    pub caches: Vec<(String, PathBuf)>,
    pub credentials: Option<CredentialsSource>,
    pub files: Option<FilesSource>,
}

impl AllocTask {
    /// The user id and group id of the command; `None` for the agent's own user.
    pub fn uid(&self) -> io::Result<Option<u32>> {
        match &self.isolation {
            Some(isolation) => Ok(Some(isolation.uid)),
            None if self.unisolated => Ok(None),
            None => Err(io::Error::other("the task names no user")),
        }
    }

    /// Where the command finds what is at `on_node` on the node, and at `in_container` in a container.
    pub fn path_for_job(&self, in_container: &str, on_node: &Path) -> PathBuf {
        if self.container.is_some() { in_container.into() } else { on_node.to_owned() }
    }

    /// Where the command finds the work directory in this directory of its alloc.
    pub fn work_for_job(&self, dir: &AllocDir) -> PathBuf {
        self.path_for_job(WORK_DIR, &dir.work())
    }

    pub fn cgroup(&self) -> Option<&Path> {
        self.isolation.as_ref()?.cgroup.as_deref()
    }
}

/// Which supervisor runs the alloc: the content of `started`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    /// The pid of the supervisor, which is the leader of a session; 0 if the alloc is never to be started.
    pub pid: i32,
    /// When the supervisor started, in clock ticks since boot.
    pub start_ticks: u64,
    pub boot_id: String,
}

impl StartRecord {
    pub const fn never(boot_id: String) -> Self {
        Self { pid: 0, start_ticks: 0, boot_id }
    }

    pub const fn is_never(&self) -> bool {
        self.pid == 0
    }
}

/// How the alloc ended: the content of `exit.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub cause: EndCause,
    /// By the node's own clock. Only people read this time.
    pub started_at: Option<Time>,
    /// By the node's own clock. Only people read this time.
    pub finished_at: Option<Time>,
    pub usage: Option<Usage>,
    pub kept: Vec<StoredOutput>,
}

impl ExitRecord {
    pub const fn of(cause: EndCause) -> Self {
        Self { cause, started_at: None, finished_at: None, usage: None, kept: Vec::new() }
    }
}

/// What a supervisor does while the command does not run, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocPhase {
    pub text: String,
    /// Whether the phase failed and is tried again: a person should know at once.
    pub is_failing: bool,
}

impl AllocPhase {
    pub const fn of(text: String) -> Self {
        Self { text, is_failing: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocDir(PathBuf);

impl AllocDir {
    pub fn of(allocs: &Path, id: AllocId) -> Self {
        Self(allocs.join(id.to_string()))
    }

    pub const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// The directories that only the command writes to.
    pub fn of_command(&self) -> Vec<PathBuf> {
        vec![self.work(), self.0.join("tmp")]
    }

    /// What takes up the scratch space of the alloc: its directories, and what it prints.
    pub fn of_scratch(&self) -> Vec<PathBuf> {
        let output = self.output_files();
        self.of_command().into_iter().chain([output.output(), output.switches()]).collect()
    }

    pub fn gpu_samples(&self) -> PathBuf {
        self.0.join("../..").join(GPU_SAMPLES)
    }

    pub fn elements(&self) -> PathBuf {
        self.0.join("elements")
    }

    /// What the command used so far, as its supervisor wrote it down last.
    pub fn used(&self) -> Option<Usage> {
        self.read("used").ok().flatten()
    }

    pub fn write_used(&self, usage: &Usage) -> io::Result<()> {
        atomic_file::replace_lightly(&self.0.join("used"), usage)
    }

    /// What the supervisor does while the command does not run; `None` if the command runs.
    pub fn phase(&self) -> Option<AllocPhase> {
        self.read("phase").ok().flatten()
    }

    pub fn write_phase(&self, phase: Option<&AllocPhase>) {
        let written = match phase {
            Some(phase) => atomic_file::replace_lightly(&self.0.join("phase"), phase),
            None => absent_is_fine(fs::remove_file(self.0.join("phase"))),
        };
        if let Err(error) = written {
            tracing::warn!(%error, "cannot write down what is done for the alloc");
        }
    }

    pub fn image_digest(&self) -> Option<ImageDigest> {
        fs::read_to_string(self.0.join("image")).ok()?.parse().ok()
    }

    pub fn write_image_digest(&self, digest: &ImageDigest) -> io::Result<()> {
        atomic_file::replace(&self.0.join("image"), digest.to_string().as_bytes())
    }

    /// The directory with the login to the registry.
    pub fn registry(&self) -> PathBuf {
        self.0.join("registry")
    }

    pub fn output_files(&self) -> OutputFiles {
        OutputFiles::at(self.0.clone())
    }

    /// Creates the directory with its task, unless the directory exists. A crash leaves the whole directory or none. A
    /// directory whose alloc was not started gets the new task: the old one may be of an earlier boot or another agent.
    pub fn create(&self, task: &AllocTask) -> io::Result<()> {
        if self.0.exists() {
            if self.start_record()?.is_none() && self.task()?.as_ref() != Some(task) {
                give_to_job(&self.0, task)?;
                return atomic_file::replace(&self.0.join("task.json"), &serde_json::to_vec(task)?);
            }
            return Ok(());
        }
        let id = task.order.alloc_id;
        let temp = self.0.with_file_name(format!(".new-{id}"));
        remove_tree(&temp)?;
        make_dir(&temp)?;
        make_dir(&temp.join("work"))?;
        give_to_job(&temp, task)?;
        let [label, file] = ["label", "task.json"].map(|name| temp.join(name));
        atomic_file::write(&label, task.node_id.to_string().as_bytes())?;
        atomic_file::write(&file, &serde_json::to_vec(task)?)?;
        atomic_file::sync(&[&label, &file])?;
        fs::rename(&temp, &self.0)
    }

    /// The user id that owns the job's files: the alloc's own until the alloc has ended.
    pub fn owner(&self) -> io::Result<Option<u32>> {
        match fs::symlink_metadata(self.work()) {
            Ok(work) => Ok(Some(work.uid())),
            // A stray file beside the directories of allocs holds no user id.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Takes the job's files away from its user, so that another alloc may get the user id, and removes the files that only a
    /// running command needs. Call this when no process of the user runs. It takes the same short time however much the job left
    /// behind: the rest is removed with the directory.
    pub fn close(&self) -> io::Result<()> {
        for path in self.of_command().into_iter().chain([self.0.clone()]).filter(|p| p.exists()) {
            isolation::give(&path, 0, 0, 0o700)?;
        }
        self.forget_rights()?;
        let mut of_command = isolation::USER_FILES.into_iter().chain([isolation::CLOSED]);
        of_command.try_for_each(|name| absent_is_fine(fs::remove_file(self.0.join(name))))
    }

    /// Removes the token and the secrets of the job.
    pub fn forget_rights(&self) -> io::Result<()> {
        remove_tree(&self.0.join(SECRETS_DIR))?;
        self.forget_login()?;
        absent_is_fine(fs::remove_file(self.0.join(TOKEN_FILE)))
    }

    pub fn forget_login(&self) -> io::Result<()> {
        remove_tree(&self.registry())
    }

    pub fn task(&self) -> io::Result<Option<AllocTask>> {
        self.read("task.json")
    }

    /// Claims the right to start the alloc. Exactly one caller ever gets `true`.
    pub fn claim(&self, by: &StartRecord) -> io::Result<bool> {
        atomic_file::create_once_in(2, &self.0.join("started"), &serde_json::to_vec(by)?)
    }

    pub fn start_record(&self) -> io::Result<Option<StartRecord>> {
        self.read("started")
    }

    /// Writes down that the alloc is to stop, and why. A later reason does not replace the first.
    pub fn order_stop(&self, why: &str) -> io::Result<()> {
        atomic_file::create_once(&self.0.join("stop"), why.as_bytes()).map(drop)
    }

    pub fn stop_reason(&self) -> Option<String> {
        fs::read_to_string(self.0.join("stop")).ok()
    }

    /// Marks that the command of the alloc has ended, or is being ended.
    pub fn mark_ended(&self) -> io::Result<()> {
        if self.has_ended() { Ok(()) } else { atomic_file::write(&self.0.join(ENDED), b"") }
    }

    pub fn has_ended(&self) -> bool {
        self.0.join(ENDED).exists()
    }

    /// Whether the alloc cannot be ended: its processes were killed, and do not die.
    pub fn is_unended(&self) -> bool {
        self.0.join(UNENDED).exists()
    }

    pub fn note_unended(&self, is_unended: bool) {
        if self.is_unended() == is_unended {
            return;
        }
        let mark = self.0.join(UNENDED);
        let noted = if is_unended { atomic_file::write(&mark, b"") } else { absent_is_fine(fs::remove_file(mark)) };
        tracing::warn!(is_unended, ?noted, "whether processes of the alloc were killed and do not die");
    }

    /// The GPUs that the alloc holds: those that its directory names, until nothing of the alloc runs any more, or the machine was
    /// rebooted. `None` if it holds none.
    pub fn holder(&self, boot_id: &str) -> io::Result<Option<Holder>> {
        let names_any = |task: &AllocTask| !task.gpus.is_empty() && task.boot_id == boot_id;
        let Some(task) = self.task()?.filter(names_any) else { return Ok(None) };
        let has_ended = self.exit_record()?.is_some() && !self.0.join(LEFT).exists();
        Ok((!has_ended).then_some(Holder { alloc_id: task.order.alloc_id, uuids: task.gpus }))
    }

    /// Removes the container of the alloc, if it has one.
    pub async fn remove_container(&self) -> io::Result<()> {
        let Some(task) = self.task()? else { return Ok(()) };
        match task.container {
            Some(runtime) => runtime.remove(&task.order.alloc_id.to_string()).await,
            None => Ok(()),
        }
    }

    /// Writes down that the container of the alloc may still run. Its GPUs are not free before the directory is removed.
    pub fn leave_container(&self) -> io::Result<()> {
        atomic_file::create_once(&self.0.join(LEFT), b"").map(drop)
    }

    /// Writes down how the alloc ended. A later record does not replace the first.
    pub fn write_exit_record(&self, exit: &ExitRecord) -> io::Result<()> {
        atomic_file::create_once(&self.0.join("exit.json"), &serde_json::to_vec(exit)?).map(drop)
    }

    /// Disk space for the exit record, because the job may fill the disk.
    pub fn reserve(&self) -> Spare {
        Spare::new(self.0.join("reserve"), RESERVE_BYTES)
    }

    /// [`Self::write_exit_record`], on the space that is kept for it. Wakes the agent.
    pub fn write_exit_record_on(&self, reserve: &Spare, exit: &ExitRecord) -> io::Result<()> {
        reserve.create_once(&self.0.join("exit.json"), &serde_json::to_vec(exit)?)?;
        end_pipe::wake(&self.0.join("../..").join(END_PIPE));
        Ok(())
    }

    pub fn exit_record(&self) -> io::Result<Option<ExitRecord>> {
        self.read("exit.json")
    }

    /// The node id that was written when the directory was created.
    pub fn label(&self) -> Option<String> {
        fs::read_to_string(self.0.join("label")).ok().filter(|l| !l.is_empty())
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        match fs::read(self.0.join(name)) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let says = format!("{} cannot be read: {error}", self.0.join(name).display());
                io::Error::new(io::ErrorKind::InvalidData, says)
            }),
            // A stray file beside the directories of allocs has no content to read.
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Gives the directories of the job to its user, if the alloc has one of its own. This user alone may then enter the directory of
/// the alloc, and cannot list it.
fn give_to_job(dir: &Path, task: &AllocTask) -> io::Result<()> {
    let Some(TaskIsolation { uid, .. }) = task.isolation else { return Ok(()) };
    let tmp = dir.join("tmp");
    if !tmp.exists() {
        make_dir(&tmp)?;
    }
    [dir.join("work"), tmp].iter().try_for_each(|path| isolation::give(path, uid, uid, 0o700))?;
    isolation::give(dir, 0, uid, 0o710)
}

/// Whether this is a valid name of a cache: one path component of plain characters.
pub fn is_cache_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=100).contains(&name.len()) && name.chars().all(plain) && !name.starts_with('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{self, order};

    #[test]
    fn an_alloc_that_an_earlier_boot_did_not_start_is_started_in_this_one() {
        let allocs = tempfile::tempdir().unwrap();
        let task = |boot_id: &str| AllocTask { boot_id: boot_id.to_owned(), ..testing::task(order(0, 1)) };
        let dir = AllocDir::of(allocs.path(), task("").order.alloc_id);
        let boot_of_task = || dir.task().unwrap().unwrap().boot_id;
        dir.create(&task("boot-1")).unwrap();
        dir.create(&task("boot-2")).unwrap();
        assert_eq!(boot_of_task(), "boot-2");
        dir.claim(&StartRecord { pid: 7, start_ticks: 1, boot_id: boot_of_task() }).unwrap();
        dir.create(&task("boot-3")).unwrap();
        assert_eq!(boot_of_task(), "boot-2", "it was started");
    }

    #[test]
    fn an_alloc_holds_its_gpus_until_it_has_ended_and_its_container_is_gone_or_a_reboot() {
        let allocs = tempfile::tempdir().unwrap();
        let task = AllocTask { gpus: vec!["GPU-0".into()], ..testing::task(order(0, 1)) };
        let dir = AllocDir::of(allocs.path(), task.order.alloc_id);
        let holds = |boot: &str| dir.holder(boot).unwrap().is_some();
        assert!(!holds("boot-1"), "there is none");
        dir.create(&task).unwrap();
        assert_eq!((holds("boot-1"), holds("boot-2")), (true, false));
        dir.write_exit_record(&ExitRecord::of(EndCause::Exited { code: 0 })).unwrap();
        assert!(!holds("boot-1"));
        dir.leave_container().unwrap();
        assert!(holds("boot-1"), "its container may run");
    }

    #[test]
    fn a_cache_name_cannot_lead_out_of_its_directory() {
        for good in ["m2", "cargo-registry", "a.b_c"] {
            assert!(is_cache_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "../a", "a b", "é", &"x".repeat(101)] {
            assert!(!is_cache_name(bad), "{bad}");
        }
    }
}
