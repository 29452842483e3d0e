//! `status`: whether all is well, and what to do if not.
//!
//! Guarantees: the exit code says whether all is well.
//! Does not: judge (`view::status` does), or repair anything. The functions do.

use crate::console::show::{self, Rows};
use crate::console::{Context, Outcome};
use crate::view::present::{COUNTED, Present};
use crate::view::status::{Level, Status, none_or};
use clap::Args;

#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &StatusArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let present = Present::read(&cluster.store, cluster.cloud.as_ref(), COUNTED, now).await?;
    let status = Status::of(&cluster.store, &present).await?;
    if args.json {
        show::json(context.out, &status)?;
    } else {
        print(context, &status)?;
    }
    Ok(Outcome::done_if(status.well))
}

fn print(context: &mut Context<'_>, status: &Status) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[]);
    for check in &status.checks {
        let mark = match check.level {
            Level::Well => "ok",
            Level::Look => "look",
            Level::Wrong => "WRONG",
        };
        let to_do = if check.to_do.is_empty() { String::new() } else { format!(": {}", check.to_do) };
        rows.marked(mark, [check.what.clone(), format!("{}{to_do}", check.says)]);
    }
    rows.colours(context.colours).print(context.out)?;
    writeln!(context.out, "nodes: {}", none_or(&status.nodes))?;
    writeln!(context.out, "jobs: {}", status.counted_jobs())?;
    if !status.price_per_hour.is_zero() {
        let price = show::dollars(status.price_per_hour);
        writeln!(context.out, "cost: {price} an hour by the policy's list prices; `nodekeeper cost` says for what")?;
    }
    writeln!(context.out, "{}", status.verdict())?;
    Ok(())
}
