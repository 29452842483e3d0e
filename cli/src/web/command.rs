//! The command `web`: the page of a cluster, with the operator's own credentials.
//!
//! Guarantees: it listens on the loopback address only, and changes nothing.
//! Only the operator's own programs, and root's, get an answer (`guard`).

use crate::console::{Context, Outcome};
use crate::view::Source;
use anyhow::Context as _;
use clap::Args;
use guard::Owner;
use std::net::Ipv4Addr;
use tokio::net::TcpListener;

#[derive(Args, Clone, Debug)]
pub struct WebArgs {
    /// The port on the loopback address; 0 for any free port
    #[arg(long, value_name = "PORT", default_value_t = 7071)]
    port: u16,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &WebArgs) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await.with_context(|| {
        format!("cannot listen on port {} of this machine: give another --port, or 0 for any free one", args.port)
    })?;
    let source = Source::in_aws(&cluster, &context.clock);
    let (name, at) = (&source.cluster, listener.local_addr()?);
    writeln!(context.out, "the page of cluster {name}: http://{at}/  Ctrl-C ends it")?;
    context.out.flush()?;
    tokio::select! {
        served = super::serve(listener, Owner::of_this_program(None), super::router(source)) => served.context("the page is no longer served: restart")?,
        ended = tokio::signal::ctrl_c() => ended.context("cannot listen to signals")?,
    }
    Ok(Outcome::Done)
}
