//! Reads a cluster: the present, lists and details. Commands and the page use it, so that they show the same.
//!
//! | where | what |
//! | --- | --- |
//! | `array` | an array as one thing |
//! | `attention` | what needs somebody: failed jobs by cause, and nodes; the last hours of each slot |
//! | `cached` | a value that is kept for a while: many viewers cost as much as one |
//! | `commands` | the fields of shown jobs that the index lacks |
//! | `present` | what the records and EC2 say now: the only reader of both |
//! | `rows` | the shapes of a job, of its rules for retries, and of a node: from a record to what programs read |
//! | `live` | the lists of jobs and nodes, for the page |
//! | `live_output` | the last lines of an alloc that runs |
//! | `list` | filters, search and parts of a list |
//! | `detail` | one job, one node |
//! | `find` | the job or node that a person names |
//! | `next`, `status` | what the next run would do, and why not more; whether all is well |
//! | `shares` | whose turn it is, and what each share uses |
//! | `stored` | stored jobs, the newest first |
//! | `story` | what happened to a job |
//! | `usage` | what an alloc or a job used |
//! | `when` | when a job that waits starts, as far as it is known |
//! | `what_if` | what it would take for a job to start, or for a node to go |
//!
//! Guarantees: it changes nothing. It never shows the values in the environment of a job. Nothing is read without a viewer.
//! Does not: know where its results are shown.

pub(crate) mod array;
pub(crate) mod attention;
mod cached;
mod commands;
mod detail;
pub(crate) mod find;
mod list;
mod live;
pub(crate) mod live_output;
pub(crate) mod next;
pub(crate) mod present;
mod rows;
pub(crate) mod shares;
pub(crate) mod status;
pub(crate) mod stored;
pub(crate) mod story;
pub(crate) mod usage;
pub(crate) mod what_if;
pub mod when;

pub(crate) use detail::{job_detail, job_shape, node_detail};
pub(crate) use list::ListQuery;
pub(crate) use live::{EndedJobs, JobsPart, LiveView};
pub(crate) use next::{JobWait, NextRun};
pub(crate) use rows::{JobRow, by_array, end_row, event_row, folded, node_row, retry_rules, with};

use crate::console::{Cluster, WallClock};
use cached::Cached;
use commands::Commands;
use history::History;
use model::{Cloud, Event, Span};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// How far back the history goes.
pub(crate) const PAST: Span = Span::from_s(7 * 86_400);

/// How many events are shown.
pub(crate) const EVENTS: usize = 500;

/// How many jobs of a list have their commands, so that a search finds words in them.
const COMPLETED: usize = 5000;

/// What a local stack shows in addition: its processes.
pub(crate) type Extra = Arc<dyn Fn() -> Value + Send + Sync>;

/// How often the tables may be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long the present is fresh.
    live: Duration,
    /// How long the past is fresh.
    whole: Duration,
    /// A value is fresh at least for this many times the time that its read took.
    times: u32,
    /// How often the page asks.
    pub(crate) refresh_ms: u64,
}

impl Pace {
    /// A cluster on this machine: reading costs nothing.
    #[cfg(feature = "local")]
    pub(crate) const LOCAL: Self =
        Self { live: Duration::from_millis(800), whole: Duration::from_secs(1), times: 3, refresh_ms: 1000 };
    /// A cluster in AWS: each read is paid for.
    pub(crate) const AWS: Self =
        Self { live: Duration::from_secs(4), whole: Duration::from_secs(30), times: 20, refresh_ms: 5000 };
}

/// The cluster that is shown.
#[derive(Clone)]
pub(crate) struct ViewSource {
    pub(crate) cluster: String,
    pub(crate) store: Store,
    pub(crate) cloud: Arc<dyn Cloud>,
    pub(crate) outputs: s3::S3,
    pub(crate) clock: WallClock,
    pub(crate) pace: Pace,
    /// What a local stack shows in addition; `None` for other clusters.
    pub(crate) extra: Option<Extra>,
}

impl ViewSource {
    pub(crate) fn in_aws(cluster: &Cluster, clock: &WallClock) -> Self {
        let (store, cloud, clock) = (cluster.store.clone(), Arc::clone(&cluster.cloud), Arc::clone(clock));
        let (name, outputs) = (cluster.dynamo.cluster.to_string(), cluster.outputs.clone());
        Self { cluster: name, store, cloud, outputs, clock, pace: Pace::AWS, extra: None }
    }
}

pub(crate) struct Views {
    pub(crate) source: ViewSource,
    live: Cached<LiveView>,
    stored: Cached<EndedJobs>,
    past: Cached<History>,
    events: Cached<Vec<Event>>,
    commands: Commands,
}

impl Views {
    pub(crate) fn new(source: ViewSource) -> Self {
        let pace = source.pace;
        Self {
            source,
            live: Cached::new(pace.live, pace.times),
            stored: Cached::new(pace.whole, pace.times),
            past: Cached::new(pace.whole, pace.times),
            events: Cached::new(pace.live, pace.times),
            commands: Commands::default(),
        }
    }

    pub(crate) async fn live(&self) -> Result<Arc<LiveView>, store::DbError> {
        let ViewSource { store, cloud, clock, .. } = &self.source;
        self.live.get(LiveView::read(store, cloud.as_ref(), clock())).await
    }

    pub(crate) async fn stored(&self) -> Result<Arc<EndedJobs>, store::DbError> {
        self.stored.get(EndedJobs::read(&self.source.store)).await
    }

    pub(crate) async fn past(&self) -> Result<Arc<History>, store::DbError> {
        self.past.get(History::read(&self.source.store, PAST, (self.source.clock)())).await
    }

    /// The newest events, the newest first.
    pub(crate) async fn events(&self) -> Result<Arc<Vec<Event>>, store::DbError> {
        self.events.get(async { Ok(self.source.store.newest_events(EVENTS).await?.rows) }).await
    }

    /// Adds the fields that the index lacks to the first [`COMPLETED`] jobs.
    pub(crate) async fn complete(&self, rows: &mut [JobRow]) -> Result<(), store::DbError> {
        let first = rows.len().min(COMPLETED);
        self.commands.complete(&self.source.store, rows.get_mut(..first).unwrap_or_default()).await
    }
}
