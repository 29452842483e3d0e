//! The files of a job: what its work directory has before the command starts, and what is kept of it afterwards.
//!
//! The supervisor does both. What is stored by its content comes from the bucket of the cluster, with the rights of the node, and
//! stays on the node for other jobs that want the same; an object of `s3://` is read and written with the role of the job.
//!
//! Guarantees: the command starts with all its inputs or not at all; what a job made is never read through a link; a
//! content is what its digest says; what is certainly not to be had is told apart from a service that does not answer at
//! present, and neither is a failure of the command.
//! Does not: keep credentials on disk, or read or write with the node's rights what the job names as `s3://`.

pub mod cache;
mod inputs;
mod outputs;
mod partial;

use crate::client::Clock;
use crate::imds::Imds;
use crate::rights::keys::JobRole;
use crate::role_keys::RoleKeys;
use crate::s3_access::{S3Access, S3Environment};
use model::EndCause;
use model::wire::AllocOrder;
use s3::{S3, S3Error};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Where a supervisor finds S3 and the contents of the node: part of `task.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesSource {
    /// The directory with the contents that are on this node.
    pub cache: PathBuf,
    /// The instance metadata service, if the node uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imds_url: Option<String>,
    /// The region, if it is known without the metadata.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// The files of one alloc, and what reading and storing them needs.
#[derive(Debug)]
pub struct JobFiles<'a> {
    pub order: &'a AllocOrder,
    pub source: &'a FilesSource,
    pub environment: S3Environment,
    pub clock: Clock,
    /// The role of the job, if it has one.
    pub role: Option<JobRole>,
    /// The work directory.
    pub work: PathBuf,
    /// A path for the archive of an output that is a folder.
    pub archive: PathBuf,
}

impl JobFiles<'_> {
    /// S3 with the rights of the node.
    fn of_node(&self) -> Result<S3Access, S3Error> {
        let imds = self.source.imds_url.as_deref().map(Imds::new).transpose();
        let imds = imds.map_err(|e| S3Error::NoKeys(e.to_string()))?;
        let role = imds.clone().map(|imds| Arc::new(RoleKeys::new(imds)));
        Ok(S3Access::new(self.environment.clone(), role, imds, self.source.region.clone(), self.clock))
    }

    /// S3 with the rights of the job. `what` is what cannot be done without.
    async fn of_job(&self, what: &str) -> Result<S3, EndCause> {
        let Some(role) = &self.role else {
            return Err(EndCause::Rejected { why: format!("{what}: the job has no role") });
        };
        role.s3(self.environment.endpoint.as_deref()).await.map_err(|cause| cause.about(what))
    }
}

/// How long S3 may not answer, before the alloc is lost.
const PATIENCE: Duration = Duration::from_secs(300);
/// The wait before a call is made again.
const RETRY: Duration = Duration::from_secs(3);

/// Makes a call of S3 again while it may pass. `what` is what cannot be done then.
async fn patiently<T>(what: &str, call: impl AsyncFn() -> Result<T, S3Error>) -> Result<T, EndCause> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(done) => return Ok(done),
            Err(S3Error::Failed(why) | S3Error::NoKeys(why)) if Instant::now() < deadline => {
                tracing::warn!(what, why, "S3 is tried again");
                sleep(RETRY).await;
            }
            Err(error @ (S3Error::Absent | S3Error::Denied(_) | S3Error::Refused(_))) => {
                return Err(EndCause::Rejected { why: format!("{what}: {error}") });
            }
            Err(error) => return Err(EndCause::Lost { why: format!("{what}: {error}") }),
        }
    }
}
