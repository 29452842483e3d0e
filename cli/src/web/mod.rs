//! The page of a cluster: `nodekeeper web` serves it for any cluster, and `nodekeeper local` for its own.
//!
//! | where | what |
//! | --- | --- |
//! | `guard` | who may ask: only this machine, by a name of this machine |
//! | `cached` | what was read, for a while: many viewers cost as much as one |
//! | `live` | the present: what `status` reads, and the lists of jobs and nodes |
//! | `list` | filters, search and parts of a list |
//! | `detail` | one job, one node |
//! | `api` | the answers in JSON, as `docs/contract.md#section-5` says |
//! | `metrics` | the same numbers for Prometheus |
//! | `assets` | the files of the page |
//!
//! Guarantees: it changes nothing; it never shows the environment of a job; nothing is loaded from elsewhere; nothing is
//! read while nobody looks.
//! Does not: ask who looks. It must be served on the loopback address.

mod api;
mod assets;
mod cached;
mod detail;
mod guard;
mod list;
mod live;
mod metrics;
#[cfg(test)]
mod tests;

use crate::local::Clock;
use crate::past::Past;
use axum::Router;
use axum::routing::get;
use cached::Cached;
use live::{Live, Stored};
use model::cloud::Cloud;
use model::time::Span;
use serde_json::Value;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::net::TcpListener;

/// How far back the page looks.
const PAST: Span = Span::from_s(7 * 86_400);

/// What a local stack shows besides: its processes.
pub type Extra = Arc<dyn Fn() -> Value + Send + Sync>;

/// How often the tables may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A cluster on this machine: reading costs nothing.
    Local,
    /// A cluster in AWS: each read is paid for.
    Aws,
}

impl Pace {
    /// The age up to which the present is shown again.
    const fn live(self) -> Duration {
        match self {
            Self::Local => Duration::from_millis(800),
            Self::Aws => Duration::from_secs(4),
        }
    }

    /// The age up to which whole tables, of jobs and of events, are shown again.
    const fn whole(self) -> Duration {
        match self {
            Self::Local => Duration::from_secs(1),
            Self::Aws => Duration::from_secs(30),
        }
    }

    /// How many times as long as reading took something is shown again.
    const fn times(self) -> u32 {
        match self {
            Self::Local => 3,
            Self::Aws => 20,
        }
    }

    /// How often the page asks.
    const fn refresh_ms(self) -> u64 {
        match self {
            Self::Local => 1000,
            Self::Aws => 5000,
        }
    }
}

/// What the page shows.
#[derive(Clone)]
pub struct Source {
    /// The name of the cluster.
    pub cluster: String,
    /// Its tables.
    pub store: Store,
    /// Its instances.
    pub cloud: Arc<dyn Cloud>,
    /// Gives the time.
    pub clock: Clock,
    /// How often the tables may be read.
    pub pace: Pace,
    /// What a local stack shows besides; absent for other clusters.
    pub extra: Option<Extra>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({}, {:?})", self.cluster, self.pace)
    }
}

/// The page, with what it has read.
struct Web {
    source: Source,
    live: Cached<Live>,
    stored: Cached<Stored>,
    past: Cached<Past>,
}

impl Web {
    fn new(source: Source) -> Self {
        let pace = source.pace;
        Self {
            source,
            live: Cached::new(pace.live(), pace.times()),
            stored: Cached::new(pace.whole(), pace.times()),
            past: Cached::new(pace.whole(), pace.times()),
        }
    }

    async fn live(&self) -> Result<Arc<Live>, store::DbError> {
        let Source { store, cloud, clock, .. } = &self.source;
        self.live.get(Live::read(store, cloud.as_ref(), clock())).await
    }

    async fn stored(&self) -> Result<Arc<Stored>, store::DbError> {
        self.stored.get(Stored::read(&self.source.store)).await
    }

    async fn past(&self) -> Result<Arc<Past>, store::DbError> {
        self.past.get(Past::read(&self.source.store, PAST, (self.source.clock)())).await
    }
}

/// The page and its API. [`guarded`] must be around it.
pub fn router(source: Source) -> Router {
    let api = Router::new()
        .route("/api/overview", get(api::overview))
        .route("/api/jobs", get(api::jobs))
        .route("/api/jobs/{job_id}", get(api::job))
        .route("/api/nodes", get(api::nodes))
        .route("/api/nodes/{slot}", get(api::node))
        .route("/api/events", get(api::events))
        .route("/api/past", get(api::past))
        .route("/api/cost", get(api::cost))
        .route("/api/local", get(api::local))
        .route("/metrics", get(metrics::answer))
        .with_state(Arc::new(Web::new(source)));
    api.merge(assets::router())
}

/// The router, for requests of this machine only.
pub fn guarded(router: Router) -> Router {
    router.layer(axum::middleware::from_fn(guard::check))
}

/// Serves until the listener fails or the future is dropped.
pub async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    axum::serve(listener, guarded(router)).await
}
