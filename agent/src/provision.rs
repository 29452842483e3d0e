//! What a command gets before it starts: its rights, its image and its inputs; and how its outputs are kept.
//!
//! Guarantees: a command starts with all of it or not at all; a stop that comes meanwhile ends the alloc before its command
//! starts.
//! Does not: start, watch or stop the command; the supervisor does.

use crate::image;
use crate::job_files::JobFiles;
use crate::rights::keys::JobRole;
use crate::rights::{self, secrets};
use crate::runtime::Environment;
use crate::supervised::Supervised;
use model::{ClientStatus, EndCause, StoredOutput};
use std::io;
use std::time::Duration;

/// How often the order to stop is looked for while image and inputs are fetched.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub struct Provided {
    /// The variables with its credentials and its secrets.
    pub env: Environment,
    pub role: Option<JobRole>,
}

impl Supervised<'_> {
    /// Gives the command its rights, its image and its inputs.
    pub(crate) async fn provide(&self) -> Result<Provided, EndCause> {
        let provided = self.rights().await?;
        if let Some(files) = self.files(provided.role.clone()).filter(|_| !self.task.order.work.inputs.is_empty()) {
            let cannot =
                |e: io::Error| EndCause::NotStarted { why: format!("cannot find out who runs the command: {e}") };
            let user = self.task.user().map_err(cannot)?;
            self.or_stopped(files.place(user.as_ref())).await?;
        }
        // The image comes last: until a container uses it, another alloc that needs disk space may remove it.
        let reader = provided.role.as_ref().map(|role| secrets::Reader { role, endpoints: &self.context.endpoints });
        self.or_stopped(image::provide(&self.task, &self.dir, reader)).await?;
        Ok(provided)
    }

    /// Carries out this step. An order to stop ends it early.
    async fn or_stopped(&self, step: impl Future<Output = Result<(), EndCause>>) -> Result<(), EndCause> {
        tokio::select! {
            done = step => done,
            why = self.stopped() => Err(EndCause::Stopped { why: format!("{why} before it was started"), code: None }),
        }
    }

    async fn stopped(&self) -> String {
        loop {
            if let Some(why) = self.dir.stop_reason() {
                return why;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn rights(&self) -> Result<Provided, EndCause> {
        let Self { task, dir, context } = self;
        let (work, mut env) = (&task.order.work, Environment::new());
        let (Some(source), Some(_)) = (&task.credentials, &work.role) else { return Ok(Provided::default()) };
        let cannot = |e: io::Error| EndCause::NotStarted { why: format!("cannot give the job its rights: {e}") };
        let user = task.user().map_err(cannot)?;
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

    /// The files of the job; `None` if it has none.
    fn files(&self, role: Option<JobRole>) -> Option<JobFiles<'_>> {
        let source = self.task.files.as_ref()?;
        Some(JobFiles { alloc: self, source, role, archive: self.dir.path().join("archive") })
    }

    /// The files of a job that has outputs.
    fn outputs(&self, role: Option<JobRole>) -> Option<JobFiles<'_>> {
        self.files(role).filter(|_| !self.task.order.work.outputs.is_empty())
    }

    /// While the command of the alloc runs, stores its partial outputs as soon as the node goes. Does not end.
    pub(crate) async fn keep_partial<T>(&self) -> T {
        if let Some(files) = self.outputs(None) {
            JobFiles { archive: self.dir.copy_of_output(), ..files }.store_partial_of_running().await;
        }
        std::future::pending().await
    }

    /// Stores the outputs of an alloc that ends for this cause. Call this when no process of the alloc runs.
    pub(crate) async fn keep(&self, role: Option<JobRole>, cause: EndCause) -> (EndCause, Vec<StoredOutput>) {
        let Some(files) = self.outputs(role) else { return (cause, Vec::new()) };
        let mut notes = Vec::new();
        let (cause, kept) = files.store(cause, |note| notes.push(note)).await;
        for note in notes {
            tracing::warn!("{note}");
            // The output of a failed command gets no note, because its last line says why the command failed.
            if cause.client() == ClientStatus::Complete
                && let Err(error) = self.dir.output_files().add_to_stderr(&format!("nodekeeper: {note}\n"))
            {
                tracing::warn!(%error, "cannot add the note to the job's output");
            }
        }
        if cause.client() != ClientStatus::Complete {
            files.store_partial_of_ended().await;
        }
        (cause, kept)
    }
}
