//! What a command gets before it starts, beside its directories: its rights, its image and its inputs; and what is kept afterwards.
//!
//! Guarantees: a command starts with all of it or not at all; a stop that comes meanwhile ends the alloc before its command
//! starts.
//! Does not: start, watch or stop the command; the supervisor does.

use crate::alloc_dir::{AllocDir, AllocTask};
use crate::client::Clock;
use crate::image;
use crate::isolation::JobUser;
use crate::job_files::{FilesSource, JobFiles};
use crate::rights::keys::JobRole;
use crate::rights::{self, secrets};
use crate::runtime::Environment;
use crate::s3_access::S3Environment;
use model::time::Time;
use model::{ClientStatus, EndCause, StoredOutput};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How often the order to stop is looked for while image and inputs are fetched.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What `main` passes to a supervisor.
pub struct SupervisorContext {
    /// `PATH`, `HOME` and `LANG`, as far as they are set.
    pub env: Environment,
    /// This program. It is started again to become the job's user.
    pub program: PathBuf,
    /// `AWS_ENDPOINT_URL` and the like, as far as they are set: for jobs with a role.
    pub endpoints: Environment,
    /// What the environment of the agent says about S3.
    pub s3: S3Environment,
    /// The clock, to sign with.
    pub timestamp: Clock,
    /// The clock, for the times that people read.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
}

/// What a command got.
#[derive(Debug, Default)]
pub struct Provided {
    /// Where its credentials are, and its secrets.
    pub env: Environment,
    /// Its role, if it has one.
    pub role: Option<JobRole>,
}

/// Gives a command its rights, its image and its inputs.
pub async fn provide(task: &AllocTask, dir: &AllocDir, context: &SupervisorContext) -> Result<Provided, EndCause> {
    let provided = rights(task, dir, context).await?;
    let reader = provided.role.as_ref().map(|role| secrets::Reader { role, endpoints: &context.endpoints });
    or_stopped(image::provide(task, dir, reader), dir).await?;
    let Some(source) = task.files.as_ref().filter(|_| !task.order.work.inputs.is_empty()) else { return Ok(provided) };
    let cannot = |e: io::Error| EndCause::NotStarted { why: format!("cannot find out who runs the command: {e}") };
    let user = user(task).map_err(cannot)?;
    let files = files(task, dir, context, source, provided.role.clone());
    or_stopped(files.place(user.as_ref()), dir).await.map(|()| provided)
}

/// Carries out this step. An order to stop ends it early.
async fn or_stopped(step: impl Future<Output = Result<(), EndCause>>, dir: &AllocDir) -> Result<(), EndCause> {
    tokio::select! {
        done = step => done,
        why = stopped(dir) => Err(EndCause::Stopped { why: format!("{why} before it was started"), code: None }),
    }
}

async fn stopped(dir: &AllocDir) -> String {
    loop {
        if let Some(why) = dir.stop_reason() {
            return why;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn rights(task: &AllocTask, dir: &AllocDir, context: &SupervisorContext) -> Result<Provided, EndCause> {
    let (work, mut env) = (&task.order.work, Environment::new());
    let (Some(source), Some(_)) = (&task.credentials, &work.role) else { return Ok(Provided::default()) };
    let cannot = |e: io::Error| EndCause::NotStarted { why: format!("cannot give the job its rights: {e}") };
    let user = user(task).map_err(cannot)?;
    let seen_at = task.runtime.alloc_path(dir.path());
    let token = rights::make_token(dir.path(), user.as_ref()).map_err(cannot)?;
    let role = JobRole { source: source.clone(), token };
    let reader = secrets::Reader { role: &role, endpoints: &context.endpoints };
    let values = reader.read(work, || dir.stop_reason().is_some()).await?;
    env.extend(secrets::variables(work, &values, dir.path(), &seen_at, user.as_ref()).map_err(cannot)?);
    env.extend(context.endpoints.clone());
    env.extend(rights::variables(source, &seen_at));
    Ok(Provided { env, role: Some(role) })
}

fn files<'a>(
    task: &'a AllocTask,
    dir: &AllocDir,
    context: &SupervisorContext,
    source: &'a FilesSource,
    role: Option<JobRole>,
) -> JobFiles<'a> {
    let (order, environment, clock) = (&task.order, context.s3.clone(), context.timestamp);
    let (work, archive) = (dir.work(), dir.path().join("archive"));
    JobFiles { order, source, environment, clock, role, work, archive }
}

/// While the command of the alloc runs, stores what it has made of its outputs when the node goes. Does not end.
pub async fn keep_partial<T>(task: &AllocTask, dir: &AllocDir, context: &SupervisorContext) -> T {
    if let Some(source) = task.files.as_ref().filter(|_| !task.order.work.outputs.is_empty()) {
        let files = JobFiles { archive: dir.copy_of_output(), ..files(task, dir, context, source, None) };
        files.store_partial_of_running(dir).await;
    }
    std::future::pending().await
}

/// Stores what is to be kept of an alloc that ends for this cause. Call this when no process of the alloc runs.
pub async fn keep(
    task: &AllocTask,
    dir: &AllocDir,
    context: &SupervisorContext,
    role: Option<JobRole>,
    cause: EndCause,
) -> (EndCause, Vec<StoredOutput>) {
    let Some(source) = task.files.as_ref().filter(|_| !task.order.work.outputs.is_empty()) else {
        return (cause, Vec::new());
    };
    let files = files(task, dir, context, source, role);
    let mut notes = Vec::new();
    let (cause, kept) = files.store(cause, |note| notes.push(note)).await;
    for note in notes {
        tracing::warn!("{note}");
        // The last line of what failed says why it failed.
        if cause.client() == ClientStatus::Complete
            && let Err(error) = dir.output_files().add_to_stderr(&format!("nodekeeper: {note}\n"))
        {
            tracing::warn!(%error, "the job's output does not say so");
        }
    }
    if cause.client() != ClientStatus::Complete {
        files.store_partial_of_ended(dir).await;
    }
    (cause, kept)
}

/// Who runs the command; `None` for the agent's own user.
pub fn user(task: &AllocTask) -> io::Result<Option<JobUser>> {
    if let Some(isolation) = &task.isolation {
        let group = |path: &PathBuf| fs::symlink_metadata(path).map(|m| m.gid());
        let groups = task.caches.iter().map(|(_, path)| group(path)).collect::<io::Result<_>>()?;
        return Ok(Some(JobUser::own(isolation.uid, groups)));
    }
    match &task.job_user {
        Some(name) => match JobUser::named(name)? {
            Some(user) => Ok(Some(user)),
            None => Err(io::Error::other(format!("there is no user {name:?} on the node"))),
        },
        None if task.unisolated => Ok(None),
        None => Err(io::Error::other("the task names no user")),
    }
}
