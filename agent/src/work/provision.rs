//! What a command gets before it starts: its rights, its image and its inputs; and how its outputs are kept.
//!
//! Guarantees: a command starts with all of it or not at all, and then nothing stays of it; a stop that comes meanwhile ends the alloc
//! before its command starts; the outputs are stored until the time limit is over, and a stop ends that too.
//! Does not: start, watch or stop the command; the supervisor does.

use super::alloc_dir::AllocPhase;
use super::image;
use super::obstacle::Obstacle;
use super::supervised::Supervised;
use super::user_ids::UserIds;
use crate::job_files::{FetchedInputs, JobFiles, StoredSoFar};
use crate::machine::blocking::{blocking, on_files};
use crate::rights::keys::JobRole;
use crate::rights::{self, secrets};
use crate::runtime::{ALLOC_PATH, ProcessEnv};
use crate::services::Services;
use model::enums::Service;
use model::{ClientStatus, EndCause, StoredOutput};
use remove_tree::remove_tree;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// How often the order to stop is looked for while image and inputs are fetched.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How often it is written down how far a phase is.
const PHASE_INTERVAL: Duration = Duration::from_secs(1);

/// How long outputs may be stored after the command has ended, however short its time limit is.
const AT_LEAST: Duration = Duration::from_secs(60);
/// How long they may be stored without a time limit.
const AT_MOST: Duration = Duration::from_secs(86_400);

#[derive(Default)]
pub struct Provided {
    /// The variables with its credentials and its secrets.
    pub env: ProcessEnv,
    pub role: Option<JobRole>,
}

impl Supervised<'_> {
    /// Gives the command its rights, its image and its inputs.
    pub(crate) async fn provide(&self) -> Result<Provided, Obstacle> {
        let provided = self.provide_all().await;
        self.dir.write_phase(None);
        if provided.is_err() {
            let work = self.dir.work();
            // The directory of the alloc may stay for long, and what was fetched so far may be large.
            if let Err(error) = blocking(move || remove_tree(&work)).await {
                tracing::warn!(%error, "the inputs are left behind");
            }
        }
        provided
    }

    async fn provide_all(&self) -> Result<Provided, Obstacle> {
        self.or_stopped(self.caches()).await?;
        let provided = self.rights().await?;
        let work = &self.task.order.work;
        let places = !work.inputs.is_empty() || work.keep.is_some();
        if let Some(files) = self.files(provided.role.clone()).filter(|_| places) {
            let uid = self.task.uid().map_err(|e| Obstacle::of_node("cannot find out who runs the command", &e))?;
            let text = || format!("preparing: fetching inputs{}", files.fetched.text());
            self.or_stopped(self.in_phase(text, files.place(uid))).await?;
        }
        // The image comes last: until a container uses it, another alloc that needs disk space may remove it.
        let reader =
            provided.role.as_ref().map(|role| secrets::SecretAccess { role, endpoints: &self.context.endpoints });
        self.or_stopped(image::provide(&self.task, &self.dir, reader)).await?;
        Ok(provided)
    }

    /// Makes sure that all that is in the caches of the job belongs to its user.
    async fn caches(&self) -> Result<(), Obstacle> {
        let Some(isolation) = &self.task.isolation else { return Ok(()) };
        for (name, _) in self.task.caches.clone() {
            let (ids, uid, cache) = (UserIds::of(&self.dir), isolation.uid, name.clone());
            let given = on_files(0, move |allowance| ids.hand_over(&cache, uid, allowance)).await;
            given.map_err(|e| Obstacle::of_node(&format!("the cache {name} cannot be given to the job"), &e))?;
        }
        Ok(())
    }

    /// Carries out this step, and writes down each second how far it is.
    async fn in_phase<T>(&self, text: impl Fn() -> String, step: impl Future<Output = T>) -> T {
        let tell = async {
            loop {
                sleep(PHASE_INTERVAL).await;
                self.dir.write_phase(Some(&AllocPhase::of(text())));
            }
        };
        tokio::select! {
            done = step => done,
            never = tell => never,
        }
    }

    /// Carries out this step. An order to stop ends it early.
    async fn or_stopped<T>(&self, step: impl Future<Output = Result<T, Obstacle>>) -> Result<T, Obstacle> {
        tokio::select! {
            done = step => done,
            why = self.stopped() => Err(Obstacle::Stopped(format!("{why} before it was started"))),
        }
    }

    async fn stopped(&self) -> String {
        loop {
            if let Some(why) = self.dir.stop_reason() {
                return why;
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    async fn rights(&self) -> Result<Provided, Obstacle> {
        let Self { task, dir, context } = self;
        let (work, mut env) = (&task.order.work, ProcessEnv::new());
        let (Some(source), Some(_)) = (&task.credentials, &work.role) else { return Ok(Provided::default()) };
        let cannot = |e: io::Error| Obstacle::of_node("cannot give the job its rights", &e);
        let uid = task.uid().map_err(cannot)?;
        let seen_at = task.path_for_job(ALLOC_PATH, dir.path());
        let token = rights::make_token(dir.path(), uid).map_err(cannot)?;
        let role = JobRole { source: source.clone(), token, services: Services::of_alloc(dir.path()) };
        let reader = secrets::SecretAccess { role: &role, endpoints: &context.endpoints };
        let values = self.or_stopped(reader.read(work)).await?;
        if let Some(fault) = secrets::unusable(work, &values) {
            return Err(fault);
        }
        env.extend(secrets::variables(work, &values, dir.path(), &seen_at, uid).map_err(cannot)?);
        env.extend(context.endpoints.clone());
        env.extend(rights::variables(source, &seen_at));
        Ok(Provided { env, role: Some(role) })
    }

    /// The files of the job; `None` if it has none.
    fn files(&self, role: Option<JobRole>) -> Option<JobFiles<'_>> {
        let source = self.task.files.as_ref()?;
        Some(JobFiles { alloc: self, source, role, fetched: FetchedInputs::default() })
    }

    /// While the command of the alloc runs, stores its checkpoints. Does not end.
    pub(crate) async fn keep_checkpoints<T>(&self) -> T {
        if let Some(files) = self.files(None).filter(|_| self.task.order.work.keep.is_some()) {
            files.store_checkpoints().await;
        }
        std::future::pending().await
    }

    /// Stores the checkpoint of an alloc that a supervisor has claimed which is gone, and whose end nobody has written.
    pub(crate) async fn keep_what_is_left(&self) -> io::Result<()> {
        let claimed = self.dir.start_record()?;
        let is_gone = claimed.is_some_and(|by| !process_table::is_alive(by.pid, by.start_ticks));
        if let Some(files) = self.files(None).filter(|_| is_gone)
            && self.dir.exit_record()?.is_none()
        {
            files.store_last_checkpoint().await;
        }
        Ok(())
    }

    /// Stores the outputs and the checkpoint of an alloc that ends for this cause, and whose command may run until `limit`. Call this when no process of the
    /// alloc runs.
    pub(crate) async fn keep(
        &self,
        role: Option<JobRole>,
        cause: EndCause,
        limit: Option<Instant>,
    ) -> (EndCause, Vec<StoredOutput>) {
        let Some(files) = self.files(role) else { return (cause, Vec::new()) };
        let (mut stored, has_succeeded) = (StoredSoFar::default(), cause.client() == ClientStatus::Complete);
        let cut_short = tokio::select! {
            () = self.in_phase(|| "storing outputs".to_owned(), files.store(&cause, &mut stored)) => None,
            cut_short = self.no_time_to_store(limit) => Some(cut_short),
        };
        let cause = match cut_short {
            Some(instead) if has_succeeded => instead,
            _ => stored.cause(cause),
        };
        for note in stored.notes {
            tracing::warn!("{note}");
            // The output of a failed command gets no note, because its last line says why the command failed.
            if cause.client() == ClientStatus::Complete
                && let Err(error) = self.dir.output_files().add_to_stderr(&format!("nodekeeper: {note}\n"))
            {
                tracing::warn!(%error, "cannot add the note to the job's output");
            }
        }
        files.store_last_checkpoint().await;
        (cause, stored.kept)
    }

    /// Waits until the outputs must not be stored any longer, and returns how the alloc ends then. After an order to stop there is as much
    /// time as the command had, and more if the node goes: then nobody can run the command again here. The time limit is the job's
    /// fault only while S3 answers.
    async fn no_time_to_store(&self, limit: Option<Instant>) -> EndCause {
        let (limit_s, now) = (self.task.order.work.timeout_s, Instant::now());
        let (limit, why_not) = match limit {
            Some(limit) => (limit.max(now + AT_LEAST), EndCause::OverTime { limit_s }),
            None => (now + AT_MOST, EndCause::Lost { why: "its outputs were not stored within a day".to_owned() }),
        };
        let stopped = async {
            let why = self.stopped().await;
            let grace = Duration::from_secs(self.task.order.failure_policy.kill_timeout_s).min(AT_MOST);
            sleep(if self.dir.leaves() { grace.max(AT_LEAST) } else { grace }).await;
            EndCause::Stopped { why: format!("{why} while its outputs were stored"), code: None }
        };
        tokio::select! {
            cause = stopped => cause,
            () = sleep_until(limit) => match Services::of_alloc(self.dir.path()).failure("s3") {
                Some(why) => {
                    let why = format!("the command has ended, but its outputs cannot be stored: {why}");
                    EndCause::NoService { service: Service::S3, why }
                }
                None => why_not,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contact::s3_access::S3Environment;
    use crate::protocol::testing;
    use crate::work::alloc_dir::AllocDir;
    use crate::work::supervised::SupervisorContext;

    #[tokio::test(start_paused = true)]
    async fn outputs_are_stored_until_the_time_limit_and_not_long_after_a_stop() {
        let context = SupervisorContext {
            env: ProcessEnv::new(),
            program: "/agent".into(),
            endpoints: ProcessEnv::new(),
            s3: S3Environment::default(),
            clock: || jiff::Timestamp::UNIX_EPOCH,
        };
        let over_time = EndCause::OverTime { limit_s: 100 };
        let why = "the command has ended, but its outputs cannot be stored: it does not answer".into();
        let no_service = EndCause::NoService { service: Service::S3, why };
        let stopped = EndCause::Stopped { why: "cancelled while its outputs were stored".into(), code: None };
        let late = EndCause::Lost { why: "its outputs were not stored within a day".into() };
        let (reached, fails) = (Some(None), Some(Some("it does not answer")));
        for (limit_in_s, is_stopped, leaves, s3, after_s, cause) in [
            (Some(100), false, false, None, 100, &over_time),
            (Some(100), false, false, reached, 100, &over_time),
            (Some(100), false, false, fails, 100, &no_service),
            (Some(10), false, false, None, 60, &over_time),
            (None, false, false, None, 86_400, &late),
            (None, true, false, None, 5, &stopped),
            (Some(100), true, false, fails, 5, &stopped),
            (None, true, true, None, 60, &stopped),
        ] {
            let root = tempfile::tempdir().unwrap();
            let dir = AllocDir::at(root.path().join("allocs/a"));
            std::fs::create_dir_all(dir.path()).unwrap();
            if let Some(why) = s3 {
                Services::of_alloc(dir.path()).note("s3", "http://s3", why);
            }
            if is_stopped {
                dir.order_stop("cancelled").unwrap();
            }
            if leaves {
                dir.leave().unwrap();
            }
            let mut task = testing::task(testing::order(0, 1));
            task.order.work.timeout_s = 100;
            task.order.failure_policy.kill_timeout_s = 5;
            let (alloc, now) = (Supervised { task, dir, context: &context }, Instant::now());
            let found = alloc.no_time_to_store(limit_in_s.map(|s| now + Duration::from_secs(s))).await;
            assert_eq!((&found, now.elapsed().as_secs()), (cause, after_s), "{limit_in_s:?} {is_stopped} {leaves}");
        }
    }
}
