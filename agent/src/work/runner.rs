//! Carries out orders on this machine: starts supervisors, stops them, and reads the state of their allocs.
//!
//! Guarantees: an alloc is started at most once, even if the agent is killed between any two instructions; a
//! supervisor that was killed leaves nothing running; two allocs whose files are on the machine never have the same GPU,
//! nor the same user id unless they share a cache; an alloc that the node cannot start is lost, with the cause, and never failed.
//! Does not: keep anything outside the alloc directories, except its child processes, the attempts to start an alloc, exit records
//! that could not be written, and the results of the last starts.

use super::alloc_dir::{AllocDir, AllocTask, ExitRecord, StartRecord, is_cache_name};
use super::end_tasks::{self, EndTasks};
use super::ends::{self, ended};
use super::progress::ProgressSampler;
use super::user_ids::{CACHE_FILES, UserIds};
use crate::contact::s3_access::FilesSource;
use crate::isolation::{OwnIds, TaskIsolation};
use crate::machine::atomic_file;
use crate::machine::data_dir::DataDir;
use crate::machine::fitness::{Fitness, is_lack_of_room, no_room, try_disk};
use crate::protocol::{Gpu, Lacking, Observed, assign};
use crate::rights::CredentialsPort;
use crate::runtime::{Containers, NO_CONTAINERS, Pick};
use model::wire::AllocOrder;
use model::{AllocId, ClientStatus, EndCause, NodeId};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;
use tokio::time::Instant;

/// The most supervisors that are started for one alloc, if each of them ends before it claims the alloc.
const MAX_SUPERVISORS: u32 = 3;

/// How long the agent tries to start an alloc on a machine without room.
const NO_ROOM: Duration = Duration::from_secs(60);

/// How long the agent tries again after another error.
const FAILED: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct StartAttempts {
    started: u32,
    /// When the machine had no room for the first time.
    no_room_since: Option<Instant>,
    /// When an attempt failed for another reason for the first time.
    failed_since: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct RunnerSettings {
    /// The node's own id, for labels.
    pub node_id: NodeId,
    pub boot_id: String,
    /// What runs the jobs with an image.
    pub containers: Containers,
    /// The user ids of allocs; `None` if the agent's own user runs them all.
    pub users: Option<OwnIds>,
    /// This program. Supervisors are started with it.
    pub program: PathBuf,
    pub credentials: CredentialsPort,
    pub files: FilesSource,
}

/// Starts and stops supervisors, and reads the state of their allocs.
pub struct Runner {
    pub settings: RunnerSettings,
    allocs: PathBuf,
    caches: PathBuf,
    cache_labels: PathBuf,
    /// The supervisors that this agent started and has to reap. Init reaps the supervisors of an earlier agent.
    children: BTreeMap<AllocId, Child>,
    /// The allocs that an earlier agent started, and whose supervisors still ran when this agent started.
    inherited: BTreeSet<AllocId>,
    attempts: BTreeMap<AllocId, StartAttempts>,
    /// Exit records that could not be written.
    unwritten: BTreeMap<AllocId, ExitRecord>,
    ending: EndTasks,
    /// The user id that the last alloc got. The next alloc gets a later one.
    last_uid: Option<u32>,
    gpus: Vec<Gpu>,
    fitness: Fitness,
    pub progress: ProgressSampler,
}

impl Runner {
    pub fn new(settings: RunnerSettings, data: &DataDir) -> Self {
        let (allocs, caches, cache_labels) = (data.allocs(), data.caches(), data.cache_labels());
        let inherited = ends::with_supervisors(&allocs);
        Self {
            settings,
            allocs,
            caches,
            cache_labels,
            children: BTreeMap::new(),
            inherited,
            attempts: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            ending: EndTasks::default(),
            last_uid: None,
            gpus: Vec::new(),
            fitness: Fitness::default(),
            progress: ProgressSampler::new(data.allocs()),
        }
    }

    /// Why this node cannot start work; `None` if it can. Tries the disk now and then.
    pub fn refusal(&mut self) -> Option<String> {
        let now = Instant::now();
        if self.fitness.is_due(now) {
            self.fitness.disk_tried(try_disk(&self.allocs), now);
        }
        self.fitness.refusal(now).map(str::to_owned)
    }

    /// Sets the present GPUs of the machine.
    pub fn know(&mut self, gpus: Vec<Gpu>) {
        self.gpus = gpus;
    }

    pub fn dir(&self, id: AllocId) -> AllocDir {
        AllocDir::of(&self.allocs, id)
    }

    /// Starts a supervisor for this alloc, unless one is running or has claimed the alloc. `refuses` is why the node
    /// takes no work at present: the alloc is given back, because another node may have room.
    pub fn start(&mut self, order: &AllocOrder, refuses: Option<&str>) {
        let id = order.alloc_id;
        if self.children.contains_key(&id) || self.unwritten.contains_key(&id) {
            return;
        }
        let attempts = self.attempts.entry(id).or_default();
        if attempts.started >= MAX_SUPERVISORS {
            let log = self.dir(id).path().join("supervisor.log");
            let why = format!("its supervisors ended before they could start it: see {} on the node", log.display());
            return self.give_up(order, why);
        }
        if let Some(bad) = order.work.caches.iter().find(|name| !is_cache_name(name)) {
            let rule = "only letters, digits, '-', '_' and '.'";
            let why = format!("{bad:?} cannot be the name of a cache: {rule}");
            return self.never_start(order, EndCause::Rejected { why });
        }
        match self.settings.containers.pick() {
            _ if order.work.image.is_none() => {}
            Pick::Runs(_) => {}
            Pick::NotYet => return,
            // The alloc is lost, and the node stays: it can run jobs without an image.
            Pick::Nothing => return self.never_start(order, EndCause::Lost { why: NO_CONTAINERS.to_owned() }),
        }
        if let Some(why) = refuses {
            return self.not_started(order, why.to_owned());
        }
        match self.prepare(order).and_then(|dir| self.spawn(&dir)) {
            Ok(None) => {}
            Ok(Some(child)) => {
                self.children.insert(id, child);
                let attempts = self.attempts.entry(id).or_default();
                *attempts = StartAttempts { started: attempts.started + 1, ..StartAttempts::default() };
            }
            // The machine can never give what the alloc needs.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.give_up(order, error.to_string()),
            Err(error) => self.start_failed(order, &error),
        }
    }

    /// An attempt to start the alloc failed. It is tried again for a while, and then the alloc is given up.
    fn start_failed(&mut self, order: &AllocOrder, error: &io::Error) {
        let (id, now) = (order.alloc_id, Instant::now());
        let attempts = self.attempts.entry(id).or_default();
        let (since, patience) = if is_lack_of_room(error) {
            (&mut attempts.no_room_since, NO_ROOM)
        } else {
            (&mut attempts.failed_since, FAILED)
        };
        let is_last = since.is_some_and(|since| now.duration_since(since) >= patience);
        if since.replace(since.unwrap_or(now)).is_none() {
            tracing::warn!(alloc_id = %id, %error, "this machine cannot start the alloc: trying again");
            self.fitness.disk_tried(try_disk(&self.allocs), now);
        }
        if is_last {
            self.give_up(order, error.to_string());
        }
    }

    /// Makes sure that the alloc is never started, because this node cannot start it.
    fn give_up(&mut self, order: &AllocOrder, why: String) {
        tracing::error!(alloc_id = %order.alloc_id, why, "this machine cannot start the alloc: giving up");
        self.fitness.failed(order.alloc_id, &why, Instant::now());
        self.not_started(order, why);
    }

    fn not_started(&mut self, order: &AllocOrder, why: String) {
        self.never_start(order, EndCause::NotStarted { why });
    }

    fn prepare(&mut self, order: &AllocOrder) -> io::Result<AllocDir> {
        let dir = self.dir(order.alloc_id);
        let gpus = self.gpus_for(order)?;
        let caches: Vec<_> =
            order.work.caches.iter().map(|name| (name.clone(), self.caches.join(name).join(CACHE_FILES))).collect();
        for (name, files) in &caches {
            let (label, door) = (self.cache_labels.join(name), self.caches.join(name));
            if !door.exists() {
                // The label is written first, because a cache without a label is never swept.
                atomic_file::replace(&label, self.settings.node_id.to_string().as_bytes())?;
                atomic_file::make_dir(&door)?;
            } else if let Ok(text) = fs::read(&label) {
                // The time of the label is that of the last use.
                atomic_file::replace(&label, &text)?;
            }
            if !files.exists() {
                atomic_file::make_dir(files)?;
            }
        }
        // The slices of a GPU share its device file.
        let (own, others): (Vec<&Gpu>, Vec<&Gpu>) = self.gpus.iter().partition(|gpu| gpus.contains(&gpu.uuid));
        let is_own = |device: &PathBuf| own.iter().any(|gpu| gpu.device.as_ref() == Some(device));
        let closed = others.into_iter().filter_map(|gpu| gpu.device.clone()).filter(|device| !is_own(device)).collect();
        let mut task = AllocTask { gpus, ..self.task(order, caches) };
        // Nobody ends what runs as its user before its directory says that it has this user.
        let mut chosen = None;
        match &self.settings.users {
            Some(ids) => {
                let users = UserIds::beside(&self.allocs);
                let uid = chosen.insert(users.choose(&dir, ids, &order.work.caches, self.last_uid)?).uid;
                self.last_uid = Some(uid);
                task.isolation = Some(TaskIsolation {
                    uid,
                    reaper: ids.uids.last,
                    max_tasks: ids.max_tasks,
                    private_mounts: ids.private_mounts,
                    closed,
                    // A container has the group that its runtime makes.
                    cgroup: ids
                        .cgroups
                        .as_ref()
                        .filter(|_| order.work.image.is_none())
                        .map(|parent| parent.join(order.alloc_id.to_string())),
                });
            }
            None => task.unisolated = true,
        }
        let created = dir.create(&task);
        drop(chosen);
        created.map(|()| dir)
    }

    /// The GPUs for this alloc. Other allocs may have to end before there are enough: that counts as a lack of room.
    fn gpus_for(&self, order: &AllocOrder) -> io::Result<Vec<String>> {
        let (id, needs) = (order.alloc_id, order.needs.gpus);
        if needs == 0 {
            return Ok(Vec::new());
        }
        let mut holders = Vec::new();
        for entry in fs::read_dir(&self.allocs)? {
            holders.extend(AllocDir::at(entry?.path()).holder(&self.settings.boot_id)?);
        }
        assign(id, needs, &self.gpus, &holders).map_err(|lacking| match lacking {
            Lacking::Now(why) => no_room(why),
            Lacking::Always(why) => io::Error::new(io::ErrorKind::Unsupported, why),
        })
    }

    /// The task without a user. A supervisor refuses to run it.
    fn task(&self, order: &AllocOrder, caches: Vec<(String, PathBuf)>) -> AllocTask {
        AllocTask {
            node_id: self.settings.node_id,
            order: order.clone(),
            container: match self.settings.containers.pick() {
                Pick::Runs(runtime) if order.work.image.is_some() => Some(runtime),
                Pick::Runs(_) | Pick::NotYet | Pick::Nothing => None,
            },
            isolation: None,
            unisolated: false,
            gpus: Vec::new(),
            boot_id: self.settings.boot_id.clone(),
            caches,
            credentials: self.settings.credentials.source(order),
            files: order.work.has_files().then(|| self.settings.files.clone()),
        }
    }

    /// Starts a supervisor. `None` if the alloc was claimed before.
    fn spawn(&self, dir: &AllocDir) -> io::Result<Option<Child>> {
        if dir.start_record()?.is_some() {
            return Ok(None);
        }
        ends::supervisor(&self.settings.program, dir)?.spawn().map(Some)
    }

    /// Orders this alloc to stop: its supervisor gives the notice, asks the command to stop, and kills it in the end (see `stops`).
    /// If the alloc was not started, it never will be.
    pub fn stop(&mut self, order: &AllocOrder, why: &str) {
        let id = order.alloc_id;
        if self.unwritten.contains_key(&id) {
            return;
        }
        let dir = self.dir(id);
        match ends::started(&dir) {
            Ok(None) => {
                self.never_start(order, EndCause::Stopped { why: format!("{why} before it was started"), code: None })
            }
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
    fn never_start(&mut self, order: &AllocOrder, cause: EndCause) {
        let id = order.alloc_id;
        let dir = self.dir(id);
        let exit = ExitRecord::of(cause);
        let never = StartRecord::never(self.settings.boot_id.clone());
        // A supervisor that has read the task may claim the alloc now. So the task keeps the GPUs of the alloc.
        let gpus = dir.holder(&self.settings.boot_id).ok().flatten().map(|holder| holder.uuids).unwrap_or_default();
        let task = AllocTask { gpus, ..self.task(order, Vec::new()) };
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
    pub async fn observe(&mut self, id: AllocId) -> io::Result<Observed> {
        let dir = self.dir(id);
        if let Some(child) = self.children.get_mut(&id)
            && child.try_wait()?.is_some()
        {
            self.children.remove(&id);
        }
        if let Some(exit) = self.unwritten.get(&id) {
            return Ok(ended(&dir, exit.clone()));
        }
        let read = dir.exit_record().and_then(|exit| Ok((exit, ends::started(&dir)?)));
        let (exit, start) = match read {
            Err(error) if ends::is_garbage(&error) => return self.end_unknown(id, &dir, error.to_string()).await,
            read => read?,
        };
        if let Some(exit) = exit {
            self.learn(id, &exit.cause);
            return Ok(ended(&dir, exit));
        }
        let Some(start) = start else {
            if !dir.path().exists() && self.has_started(id) {
                return self.end_unknown(id, &dir, "its directory is gone from its node".to_owned()).await;
            }
            // The alloc is not started, or its supervisor ended without a claim. A new supervisor is started for it.
            return Ok(Observed::Pending);
        };
        let same_boot = start.boot_id == self.settings.boot_id;
        if same_boot && process_table::is_alive(start.pid, start.start_ticks) {
            // The output is made when the command starts.
            return Ok(if dir.output_files().output().exists() { Observed::Running } else { Observed::Preparing });
        }
        if !self.have_ended(id, &dir, &start).await? {
            return Ok(Observed::Running);
        }
        self.end_without_supervisor(id, &dir, &start)
    }

    /// Whether a supervisor was started for the alloc, by this agent or by an earlier one.
    fn has_started(&self, id: AllocId) -> bool {
        self.inherited.contains(&id) || self.attempts.get(&id).is_some_and(|attempts| attempts.started > 0)
    }

    /// Whether nothing of a started alloc runs any more. The first call begins to end it.
    async fn have_ended(&mut self, id: AllocId, dir: &AllocDir, start: &StartRecord) -> io::Result<bool> {
        let of_this_boot = start.boot_id == self.settings.boot_id;
        let end = end_tasks::end(self.settings.program.clone(), dir.clone(), start.clone(), of_this_boot);
        self.ending.have_ended(id, end).await
    }

    /// Ends an alloc as lost, because its files do not say how it ends.
    async fn end_unknown(&mut self, id: AllocId, dir: &AllocDir, why: String) -> io::Result<Observed> {
        let end = end_tasks::end_unknown(self.settings.program.clone(), dir.clone());
        if !self.ending.have_ended(id, end).await? {
            return Ok(Observed::Running);
        }
        tracing::error!(alloc_id = %id, why, "nobody knows how the alloc ends: it is lost");
        let exit = ExitRecord::of(EndCause::Lost { why });
        self.unwritten.insert(id, exit.clone());
        Ok(ended(dir, exit))
    }

    /// Notes what the end of an alloc says about the fitness of this node.
    fn learn(&mut self, id: AllocId, cause: &EndCause) {
        if let EndCause::NotStarted { why } = cause {
            // Other nodes may have failed to start an earlier copy too, so the job may be to blame.
            if id.copy == 0 {
                self.fitness.failed(id, why, Instant::now());
            }
        } else if cause.client() == ClientStatus::Complete || cause.is_of_the_command() {
            self.fitness.worked();
        }
    }

    /// Writes the exit record of an alloc whose supervisor did not write one.
    fn end_without_supervisor(&mut self, id: AllocId, dir: &AllocDir, start: &StartRecord) -> io::Result<Observed> {
        let exit = ends::without_supervisor(start, &self.settings.boot_id);
        // If the supervisor has written its exit record in the meantime, that record stays.
        let written = dir.write_exit_record(&exit);
        if let Some(exit) = dir.exit_record()? {
            return Ok(ended(dir, exit));
        }
        let Err(error) = written else { return Ok(Observed::Running) };
        tracing::error!(alloc_id = %id, %error, "cannot write the exit record");
        self.unwritten.insert(id, exit.clone());
        Ok(ended(dir, exit))
    }

    /// Kills an alloc that did not stop in time. Does not wait long for it.
    pub async fn kill(&mut self, id: AllocId) {
        let dir = self.dir(id);
        let Ok(Some(start)) = dir.start_record() else { return };
        match self.have_ended(id, &dir, &start).await {
            Ok(true) => {}
            Ok(false) => tracing::warn!(alloc_id = %id, "something of the alloc still runs"),
            Err(error) => tracing::warn!(alloc_id = %id, %error, "cannot end everything that the alloc ran"),
        }
    }

    pub fn forget_all_but(&mut self, known: impl Fn(AllocId) -> bool) {
        self.unwritten.retain(|id, _| known(*id));
        self.attempts.retain(|id, _| known(*id));
        self.progress.forget_all_but(&known);
        // Reaps supervisors here too: one may outlive its exit record, and its alloc is then no longer observed.
        self.children.retain(|_, child| !matches!(child.try_wait(), Ok(Some(_))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing;
    use std::fs::File;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use tokio::time::advance;

    fn runner(root: &Path, program: PathBuf) -> Runner {
        testing::runner(&DataDir::open(root).unwrap(), program)
    }

    fn is_not_started(seen: &Observed) -> bool {
        matches!(seen, Observed::Ended(end) if matches!(end.cause, EndCause::NotStarted { .. }))
    }

    #[tokio::test(start_paused = true)]
    async fn an_alloc_that_the_machine_has_no_room_for_is_lost_after_a_while_and_not_failed() {
        let root = tempfile::tempdir().unwrap();
        // A program that is open for writing cannot be started: ExecutableFileBusy counts as lack of room.
        let program = root.path().join("agent");
        let being_written = File::create(&program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let mut runner = runner(root.path(), program);
        let order = testing::order(0, 1);
        for _ in 0..NO_ROOM.as_secs() {
            runner.start(&order, None);
            assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Observed::Pending);
            advance(Duration::from_secs(1)).await;
        }
        runner.start(&order, None);
        assert!(is_not_started(&runner.observe(order.alloc_id).await.unwrap()));
        // The alloc is not started later either, when the machine has room, not even by another agent.
        drop(being_written);
        runner.forget_all_but(|_| false);
        runner.start(&order, None);
        assert!(is_not_started(&runner.observe(order.alloc_id).await.unwrap()) && runner.children.is_empty());
    }

    /// The path of a stray file that makes a start fail.
    type Place = fn(&Path) -> PathBuf;

    /// The steps of a start: a name, the path where a stray file makes the step fail, and whether every alloc fails then.
    const STEPS: [(&str, Place, bool); 6] = [
        ("the directory of allocs", |root| root.join("allocs"), true),
        ("the directory of the alloc", |root| root.join("allocs").join(testing::alloc_id(0).to_string()), false),
        (
            "the temporary directory of the alloc",
            |root| root.join("allocs").join(format!(".new-{}", testing::alloc_id(0))),
            false,
        ),
        ("the caches", |root| root.join("caches"), true),
        ("the labels of caches", |root| root.join("cache-labels"), true),
        ("the program of the agent", |root| root.join("agent"), true),
    ];

    #[tokio::test(start_paused = true)]
    async fn no_step_of_a_start_that_fails_is_a_failure_of_the_job_and_the_node_tells_it_at_the_second_alloc() {
        let order_of = |copy| AllocOrder {
            work: model::Work { caches: vec!["c".into()], ..testing::order(copy, 1).work },
            ..testing::order(copy, 1)
        };
        for (what, place, is_of_all) in STEPS {
            let root = tempfile::tempdir().unwrap();
            let mut runner = runner(root.path(), root.path().join("agent"));
            let path = place(root.path());
            remove_tree::remove_tree(&path).unwrap();
            fs::write(&path, "").unwrap();
            for copy in 0..2 {
                let order = order_of(copy);
                for _ in 0..=NO_ROOM.as_secs() {
                    runner.start(&order, None);
                    advance(Duration::from_secs(1)).await;
                }
                let seen = runner.observe(order.alloc_id).await.unwrap_or_default();
                let stands_in_the_way = copy == 0 || is_of_all;
                assert!(!stands_in_the_way || is_not_started(&seen), "{what}: {seen:?}");
            }
            assert!(!is_of_all || runner.refusal().is_some(), "{what}: the node refuses");
        }
    }

    #[tokio::test]
    async fn a_step_that_fails_once_is_tried_again() {
        let root = tempfile::tempdir().unwrap();
        let mut runner = runner(root.path(), "/bin/true".into());
        let order = testing::order(0, 1);
        fs::rename(root.path().join("allocs"), root.path().join("away")).unwrap();
        runner.start(&order, None);
        assert_eq!(runner.observe(order.alloc_id).await.unwrap(), Observed::Pending);
        fs::rename(root.path().join("away"), root.path().join("allocs")).unwrap();
        runner.start(&order, None);
        assert_eq!(runner.children.len(), 1);
    }
}
