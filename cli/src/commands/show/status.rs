//! `status`: whether all is well, and what to do if not.
//!
//! Guarantees: the exit code says whether all is well, unless `--watch` repeats it.
//! Does not: judge (`view::status` does), or repair anything. The functions do.

use crate::console::show::{self, Rows};
use crate::console::{Context, Exit};
use crate::view::present::{COUNTED, Snapshot};
use crate::view::status::{Check, SignLevel, Status, none_or};
use clap::Args;

#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Show it again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &StatusArgs) -> anyhow::Result<Exit> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), COUNTED, now).await?;
    let status = Status::of(&cluster.store, &present).await?;
    if args.json {
        show::json(context.out, &status)?;
    } else {
        print(context, &status)?;
    }
    Ok(Exit::done_if(status.well))
}

fn print(context: &mut Context<'_>, status: &Status) -> anyhow::Result<()> {
    print_checks(context, &status.checks)?;
    let out = &mut *context.out;
    writeln!(out, "nodes: {}", none_or(&status.nodes))?;
    writeln!(out, "jobs: {}", status.counted_jobs())?;
    if !status.price_per_hour.is_zero() {
        let price = show::dollars(status.price_per_hour);
        writeln!(out, "cost: {price} an hour by the policy's list prices; `nodekeeper cost` says for what")?;
    }
    writeln!(out, "{}", status.summary())?;
    Ok(())
}

/// One line for each, with what to do.
pub(crate) fn print_checks(context: &mut Context<'_>, checks: &[Check]) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[]);
    for check in checks {
        let mark = match check.level {
            SignLevel::Well => "ok",
            SignLevel::Caution => "look",
            SignLevel::Wrong => "WRONG",
        };
        let to_do = if check.to_do.is_empty() { String::new() } else { format!(": {}", check.to_do) };
        rows.marked(mark, [check.what.clone(), format!("{}{to_do}", check.text)]);
    }
    rows.colours(context.colours).print(context.out)?;
    Ok(())
}
