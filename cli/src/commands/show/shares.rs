//! `shares`: whose turn it is, what each share uses and may use, and what that costs.
//!
//! Does not: decide whose turn it is; it shows what the next run would compute.

use crate::console::show::{self, Rows, dollars};
use crate::console::{Context, UsageError};
use crate::view::shares::{ShareRow, shares};
use clap::Args;
use model::Usd;
use runtime::observation::Observation;

#[derive(Args, Clone, Debug)]
pub struct SharesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &SharesArgs) -> anyhow::Result<()> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let seen = Observation::read(&cluster.store, cluster.cloud.as_ref(), now).await?;
    let policy = &seen.policy;
    if policy.share.is_empty() && !args.json {
        let none = "the policy has no shares: add [[share]] to the file of `nodekeeper policy set`; `nodekeeper policy show --defaults` shows how";
        return Err(UsageError(none.to_owned()).into());
    }
    let rows = shares(&seen);
    if args.json {
        return show::json(context.out, &rows);
    }
    let heads = &["SHARE", "WEIGHT", "PART", "USED", "PLACED", "WAITING", "vCPU", "GPU", "AN HOUR", "THIS MONTH"];
    Rows::of(heads, rows.iter().map(cells)).print(context.out)?;
    let budget = policy.budget.dollars_per_month;
    if !budget.is_zero() {
        let spent: Usd = seen.nodes.iter().map(|slot| slot.cost_of_month(seen.observed_at)).sum();
        writeln!(context.out, "the nodes of this month have cost {spent} of {budget}")?;
    }
    Ok(())
}

/// A number, with its limit if there is one.
fn within(has: u64, most: Option<u64>) -> String {
    most.map_or_else(|| has.to_string(), |most| format!("{has} of {most}"))
}

fn cells(row: &ShareRow) -> [String; 10] {
    let limits = &row.limits;
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let hour = limits.dollars_per_hour.map(|most| format!(" of {most}")).unwrap_or_default();
    [
        row.share.clone(),
        row.weight.to_string(),
        percent(row.part),
        percent(row.used),
        within(row.placed, limits.running),
        format!("{}{}", row.waiting, if row.more_wait { " or more" } else { "" }),
        within(row.vcpus, limits.vcpus),
        within(row.gpus, limits.gpus),
        format!("{}{hour}", row.dollars_per_hour),
        dollars(row.dollars_this_month),
    ]
}
