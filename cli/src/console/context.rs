//! What a command works with, and how it ends.
//!
//! Guarantees: only a command that needs a cluster connects to one.
//! Does not: read the clock or the environment. `main.rs` does.

use super::show::Screen;
use futures::future::BoxFuture;
use model::cloud::Cloud;
use model::time::Time;
use std::fmt;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use store::{Dynamo, Store};

/// Gives the time.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The cluster that a command works on.
#[derive(Clone)]
pub struct Cluster {
    /// The cluster's tables.
    pub store: Store,
    /// The database of the tables.
    pub dynamo: Dynamo,
    /// The cluster's instances in EC2.
    pub cloud: Arc<dyn Cloud>,
    /// Where nodes store outputs.
    pub outputs: s3::S3,
    /// How a command gets onto its machines.
    pub reach: Reach,
}

/// How a command gets onto the machines of a cluster, and who gives it.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// The directory with the machines of a local system; `None` for instances of EC2.
    pub local: Option<PathBuf>,
    /// The region of the instances.
    pub region: Option<String>,
    /// The profile of the AWS configuration.
    pub profile: Option<String>,
    /// The person's name on this computer. Nobody checks it: CloudTrail knows who it was.
    pub user: Option<String>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({:?})", self.dynamo)
    }
}

/// Connects to the cluster. Only commands that need a cluster call this.
pub type Connect = Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<Cluster>> + Send + Sync>;

/// What a command works with.
pub struct Context<'a> {
    /// Connects to the cluster.
    pub connect: Connect,
    /// Gives the current time.
    pub clock: Clock,
    /// Standard input.
    pub input: &'a mut (dyn BufRead + Send),
    /// Whether standard output is a terminal.
    pub screen: Screen,
    /// Whether standard error is a terminal.
    pub err_screen: Screen,
    /// Whether standard output gets colours.
    pub colours: bool,
    /// Standard output: the result of the command.
    pub out: &'a mut (dyn Write + Send),
    /// Standard error: what went wrong.
    pub err: &'a mut (dyn Write + Send),
}

impl Context<'_> {
    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    pub(crate) async fn cluster(&self) -> anyhow::Result<Cluster> {
        (self.connect)().await
    }

    /// Asks the person on standard error. The answer is empty at the end of the input.
    pub(crate) fn ask(&mut self, question: &str) -> anyhow::Result<String> {
        write!(self.err, "{question} ")?;
        self.err.flush()?;
        let mut answer = String::new();
        self.input.read_line(&mut answer)?;
        Ok(answer)
    }
}

/// Whether a person agrees.
pub(crate) fn is_yes(answer: &str) -> bool {
    matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")
}

/// The result of a command that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command did everything, or found all well: exit code 0.
    Done,
    /// The command left something undone, or found a problem, and printed which: exit code 1.
    Failed,
    /// The command ran something else, which ended with this exit code.
    Code(u8),
}

impl Outcome {
    pub(crate) const fn done_if(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Failed }
    }
}

/// The command line itself is wrong: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
