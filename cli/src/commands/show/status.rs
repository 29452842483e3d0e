//! `status`: whether all is well, and what to do if not.
//!
//! Guarantees: the exit code says whether all is well, unless `--watch` repeats it.
//! Does not: judge (`view::status` does), or repair anything. The functions do.

use crate::commands::watch::{self, Screenful};
use crate::console::show::{self, Rows};
use crate::console::{Cluster, CommandOutcome, Context};
use crate::view::present::{COUNTED, Snapshot};
use crate::view::status::{SignLevel, Status, none_or};
use clap::Args;
use model::time::Time;
use std::io::Write;

#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Show it again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Says whether all is well. With `--watch`, `pause` waits for the next look, and returns whether there is one.
pub(crate) async fn run(
    context: &mut Context<'_>,
    args: &StatusArgs,
    pause: impl AsyncFn() -> bool,
) -> anyhow::Result<CommandOutcome> {
    let cluster = context.cluster().await?;
    if args.watch {
        let look =
            async |now: Time, page: &mut Screenful| print(&read(&cluster, now).await?, &mut page.out, page.colours);
        return watch::repeat(context, look, pause).await;
    }
    let status = read(&cluster, context.now()).await?;
    if args.json {
        show::json(context.out, &status)?;
    } else {
        print(&status, context.out, context.colours)?;
    }
    Ok(CommandOutcome::done_if(status.well))
}

async fn read(cluster: &Cluster, now: Time) -> anyhow::Result<Status> {
    let present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), COUNTED, now).await?;
    Ok(Status::of(&cluster.store, &present).await?)
}

fn print(status: &Status, out: &mut dyn Write, has_colours: bool) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[]);
    for check in &status.checks {
        let mark = match check.level {
            SignLevel::Well => "ok",
            SignLevel::Caution => "look",
            SignLevel::Wrong => "WRONG",
        };
        let to_do = if check.to_do.is_empty() { String::new() } else { format!(": {}", check.to_do) };
        rows.marked(mark, [check.what.clone(), format!("{}{to_do}", check.text)]);
    }
    rows.colours(has_colours).print(out)?;
    writeln!(out, "nodes: {}", none_or(&status.nodes))?;
    writeln!(out, "jobs: {}", status.counted_jobs())?;
    if !status.price_per_hour.is_zero() {
        let price = show::dollars(status.price_per_hour);
        writeln!(out, "cost: {price} an hour by the policy's list prices; `nodekeeper cost` says for what")?;
    }
    writeln!(out, "{}", status.summary())?;
    Ok(())
}
