//! The alloc of a supervisor: what to run, where, and with which settings.
//!
//! Guarantees: nothing of it changes while the alloc runs.
//! Does not: do anything (`provision` and `supervisor` do).

use super::alloc_dir::{AllocDir, AllocTask};
use crate::contact::client::NodeClock;
use crate::contact::s3_access::S3Environment;
use crate::runtime::ProcessEnv;
use model::Time;
use std::path::PathBuf;

pub struct SupervisorContext {
    /// `PATH`, `HOME` and `LANG`, as far as they are set.
    pub env: ProcessEnv,
    /// This program. It is started again to become the job's user.
    pub program: PathBuf,
    /// `AWS_ENDPOINT_URL` and the like, as far as they are set: for jobs with a role.
    pub endpoints: ProcessEnv,
    /// What the environment of the agent says about S3.
    pub s3: S3Environment,
    /// The clock, to sign with, and for the times that people read.
    pub clock: NodeClock,
}

pub struct Supervised<'a> {
    pub task: AllocTask,
    pub dir: AllocDir,
    pub context: &'a SupervisorContext,
}

impl Supervised<'_> {
    pub(crate) fn now(&self) -> Time {
        Time::from_ms((self.context.clock)().as_millisecond())
    }
}
