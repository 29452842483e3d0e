//! The page of a cluster: `nodekeeper web` serves it for any cluster, and `nodekeeper local` for its own.
//!
//! | where | what |
//! | --- | --- |
//! | `guard` | who may ask: only this machine, by a name of this machine |
//! | `api` | the answers in JSON, as `docs/contract.md#section-5` says |
//! | `metrics` | the same numbers for Prometheus |
//! | `assets` | the files of the page |
//!
//! Guarantees: it changes nothing; it never shows the environment of a job; nothing is loaded from elsewhere; nothing is
//! read while nobody looks.
//! Does not: ask who looks. It must be served on the loopback address.

mod api;
mod assets;
mod guard;
mod metrics;
#[cfg(test)]
mod tests;

pub use crate::view::{Extra, Pace, Source};

use crate::view::Views;
use axum::Router;
use axum::routing::get;
use std::io;
use std::sync::Arc;
use tokio::net::TcpListener;

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
        .with_state(Arc::new(Views::new(source)));
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
