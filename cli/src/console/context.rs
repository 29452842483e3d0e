//! The inputs and streams of a command, and its outcome.
//!
//! Guarantees: only a command that needs a cluster connects to one.
//! Does not: read the clock or the environment. `main.rs` does.

use super::aws_cli::{AwsCli, AwsError};
use super::person::Person;
use super::show::Screen;
use super::{NoAnswer, UsageError, bounded};
use futures::future::BoxFuture;
use model::{Cloud, Time};
use runtime::observation::ObserveError;
use s3::S3Error;
use serde::Serialize;
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use store::{DbError, Dynamo, Store, WriteError};

pub type WallClock = Arc<dyn Fn() -> Time + Send + Sync>;

#[derive(Clone)]
pub struct Cluster {
    pub store: Store,
    pub dynamo: Dynamo,
    pub cloud: Arc<dyn Cloud>,
    pub outputs: s3::S3,
    pub reach: ClusterAccess,
}

/// How to connect to the machines of a cluster, and who does so.
#[derive(Clone, Debug, Default)]
pub struct ClusterAccess {
    /// The directory with the machines of a local system; `None` for instances of EC2.
    pub local: Option<PathBuf>,
    pub who: Person,
    /// The AWS CLI, for what a cluster needs once.
    pub aws: AwsCli,
    /// The directory of this program, where a release has its other files.
    pub release: PathBuf,
}

impl Cluster {
    /// The words of an event for who changes something: `by ann`.
    pub(crate) async fn by(&self) -> anyhow::Result<String> {
        Ok(format!("by {}", self.reach.who.name().await?))
    }

    /// For a command that another command runs: it uses the same connection.
    pub(crate) fn as_connected(&self) -> Connect {
        let cluster = self.clone();
        Box::new(move || Box::pin(std::future::ready(Ok(cluster.clone()))))
    }
}

/// Connects to the cluster. Only commands that need a cluster call this.
pub type Connect = Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<Cluster>> + Send + Sync>;

pub struct Context<'a> {
    pub connect: Connect,
    pub clock: WallClock,
    pub input: &'a mut (dyn BufRead + Send),
    /// Whether standard output is a terminal.
    pub screen: Screen,
    /// Whether standard error is a terminal.
    pub err_screen: Screen,
    /// Whether standard input is a terminal: somebody can answer.
    pub in_screen: Screen,
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

    /// The cluster in AWS. One of `nodekeeper local` has no account and no stack.
    pub(crate) async fn cluster_in_aws(&self) -> anyhow::Result<Cluster> {
        let cluster = self.cluster().await?;
        if cluster.reach.local.is_some() {
            let why = "this is a cluster of `nodekeeper local`: `nodekeeper status` says whether it is well, and Ctrl-C ends it";
            return Err(UsageError(why.into()).into());
        }
        Ok(cluster)
    }

    /// Asks the person on standard error. The answer is empty at the end of the input.
    pub(crate) fn ask(&mut self, question: &str) -> anyhow::Result<String> {
        write!(self.err, "{question} ")?;
        self.err.flush()?;
        let answer = bounded::line(&mut *self.input, bounded::MOST_ANSWER)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

pub(crate) fn is_yes(answer: &str) -> bool {
    matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did everything, or found all well: exit code 0.
    Done,
    /// The command left something undone, or found a problem, and printed which: exit code 1.
    Failed,
    /// The command ran something else, which ended with this exit code.
    Code(u8),
}

impl Exit {
    pub(crate) const fn done_if(is_done: bool) -> Self {
        if is_done { Self::Done } else { Self::Failed }
    }

    /// The same after another part of the work ended so. What may succeed later counts before what failed.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        let rank = |exit| match exit {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Code(_) => 2,
        };
        if rank(self) < rank(other) { other } else { self }
    }

    /// How a part of the work ended that failed with this error.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        match ErrorKind::of(error) {
            again @ ErrorKind::Again => Self::Code(again.exit_code()),
            ErrorKind::Wrong | ErrorKind::Failed => Self::Failed,
        }
    }
}

/// What a program can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request must change.
    Wrong,
    /// The same request may succeed later: what it needs did not answer.
    Again,
    Failed,
}

impl ErrorKind {
    pub fn of(error: &anyhow::Error) -> Self {
        if error.is::<UsageError>() {
            return Self::Wrong;
        }
        let is_busy = |e: &DbError| matches!(e, DbError::Unreachable { .. } | DbError::Throttled { .. });
        let again = error.chain().any(|cause| {
            cause.is::<NoAnswer>()
                || cause.downcast_ref().is_some_and(AwsError::is_busy)
                || cause.downcast_ref().is_some_and(is_busy)
                || matches!(cause.downcast_ref(), Some(WriteError::Contended | WriteError::Conflict(_)))
                || matches!(cause.downcast_ref(), Some(WriteError::Db(e)) if is_busy(e))
                || matches!(cause.downcast_ref(), Some(ObserveError::Db(e)) if is_busy(e))
                || matches!(cause.downcast_ref(), Some(S3Error::Failed(_)))
        });
        if again { Self::Again } else { Self::Failed }
    }

    /// 75 is EX_TEMPFAIL of sysexits.h.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Wrong => 2,
            Self::Again => 75,
            Self::Failed => 1,
        }
    }
}
