//! The files of a job: its inputs, and its outputs.
//!
//! The supervisor puts the inputs into the work directory before the command starts, and stores the outputs afterwards. Contents
//! come from the bucket of the cluster, with the rights of the node, and stay on the node for other jobs that want the same. An
//! object of `s3://` is read and written with the role of the job.
//!
//! Guarantees: the command starts with all its inputs or not at all; what a job made is read only in its work directory, and no pipe,
//! socket or device is opened; no archive of a folder is written to the disk; each step has a bound of bytes and of entries, and ends
//! soon after its future is dropped; a content has the digest that names it; a file that certainly cannot be had is told apart from a
//! service that does not answer at present, and neither is a failure of the command.
//! Does not: keep credentials on disk, or use the node's rights for an `s3://` place that the job names.

pub mod cache;
mod checkpoint;
mod consumed;
mod inputs;
mod made;
mod outputs;
mod room;

pub use inputs::FetchedInputs;
pub use outputs::StoredSoFar;

use crate::contact::s3_access::{FilesSource, S3Access};
use crate::machine::atomic_file::absent_is_fine;
use crate::rights::keys::JobRole;
use crate::work::obstacle::Obstacle;
use crate::work::supervised::{Supervised, SupervisorContext};
use model::wire::AllocOrder;
use s3::{S3, S3Error};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// The files of one alloc, and what reading and storing them needs.
pub struct JobFiles<'a> {
    pub alloc: &'a Supervised<'a>,
    pub source: &'a FilesSource,
    pub role: Option<JobRole>,
    pub fetched: FetchedInputs,
}

impl JobFiles<'_> {
    const fn order(&self) -> &AllocOrder {
        &self.alloc.task.order
    }

    /// S3 with the rights of the node.
    fn of_node(&self) -> Result<S3Access, S3Error> {
        let SupervisorContext { s3, clock, .. } = self.alloc.context;
        self.source.access(s3.clone(), *clock)
    }

    /// S3 with the rights of the job. `what` says in an error what cannot be done.
    async fn of_job(&self, what: &str) -> Result<S3, Obstacle> {
        let Some(role) = &self.role else { return Err(Obstacle::Job(format!("{what}: the job has no role"))) };
        role.s3(what, self.alloc.context.s3.endpoint.as_deref()).await
    }
}

/// A file that is removed with this value, also if the work is cut short, unless it has another name by then.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = absent_is_fine(fs::remove_file(&self.0)) {
            tracing::warn!(%error, path = %self.0.display(), "a temporary file is left behind");
        }
    }
}

/// How long S3 may not answer, before the alloc is lost.
const PATIENCE: Duration = Duration::from_secs(300);
