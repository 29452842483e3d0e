//! The page of a cluster: `nodekeeper web` serves it for any cluster, and `nodekeeper local` for its own.
//!
//! | where | what |
//! | --- | --- |
//! | `guard` | what a browser may do with an answer; the crate `guard` checks who asks |
//! | `api` | the answers in JSON, as `docs/contract/http.md#page` says |
//! | `assets` | the files of the page |
//!
//! Guarantees: it changes nothing, except that it follows the output of a running job while somebody looks at it. It never shows the values in the environment of a job. Nothing is loaded from elsewhere. Nothing
//! is read without a viewer.
//! Does not: ask which person looks. It must be served on the loopback address, where only programs of the same user get an
//! answer.

mod api;
mod assets;
mod guard;
#[cfg(test)]
mod tests;

use crate::console::{Context, Exit};
use crate::view::{ViewSource, Views};
use anyhow::Context as _;
use axum::Router;
use axum::routing::get;
use clap::Args;
use listener::{Admission, Callers};
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::net::TcpListener;

#[derive(Args, Clone, Debug)]
pub struct WebArgs {
    /// The port on the loopback address; 0 for any free port
    #[arg(long, value_name = "PORT", default_value_t = 7071)]
    port: u16,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &WebArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await.with_context(|| {
        format!("cannot listen on port {} of this machine: give another --port, or 0 for any free one", args.port)
    })?;
    let source = ViewSource::in_aws(&cluster, &context.clock);
    let (name, at) = (&source.cluster, listener.local_addr()?);
    writeln!(context.out, "the page of cluster {name}: http://{at}/  Ctrl-C ends it")?;
    context.out.flush()?;
    tokio::select! {
        never = serve(listener, router(source)) => match never {},
        ended = tokio::signal::ctrl_c() => ended.context("cannot listen to signals")?,
    }
    Ok(Exit::Done)
}

/// The page and its API, for people on this machine. A page of another site gets no answer.
pub(crate) fn router(source: ViewSource) -> Router {
    let api = Router::new()
        .route("/api/overview", get(api::overview))
        .route("/api/jobs", get(api::jobs))
        .route("/api/jobs/{job_id}", get(api::job))
        .route("/api/jobs/{job_id}/output", get(api::output))
        .route("/api/fleet", get(api::fleet))
        .route("/api/nodes", get(api::nodes))
        .route("/api/nodes/{slot}", get(api::node))
        .route("/api/events", get(api::events))
        .route("/api/history", get(api::over_time))
        .route("/api/cost", get(api::cost))
        .route("/api/local", get(api::local))
        .with_state(Arc::new(Views::new(source)));
    let all = api.merge(assets::router()).fallback(api::nothing_here);
    all.layer(axum::middleware::from_fn(guard::check))
}

/// Serves the programs of whoever started this one, until the future is dropped.
async fn serve(listener: TcpListener, router: Router) -> Infallible {
    listener::serve("the page", listener, router, Callers::Owner, Admission::of_this_program(None)).await
}
