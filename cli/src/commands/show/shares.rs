//! `shares`: whose turn it is, what each share uses and may use, and what that costs.
//!
//! Guarantees: the order is that of the next run. What is under a limit stands beside it.
//! Does not: count the jobs of a queue that is longer than a run reads: it says that there are more.

use crate::console::show::{self, Rows, dollars};
use crate::console::{Context, UsageError};
use clap::Args;
use model::policy::{Share, WorkAmount};
use model::{JobState, JobSummary, Usd};
use runtime::observation::Observation;
use serde_json::{Value, json};

#[derive(Args, Clone, Debug)]
pub struct SharesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A share at this moment.
struct ShareRow<'a> {
    share: &'a Share,
    /// Its part of the weights, and of what was used.
    part: f64,
    used: f64,
    has: WorkAmount,
    waiting: usize,
    month_usd: Usd,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &SharesArgs) -> anyhow::Result<()> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let seen = Observation::read(&cluster.store, cluster.cloud.as_ref(), now).await?;
    let policy = &seen.policy;
    if policy.share.is_empty() {
        let none = "the policy has no shares: add [[share]] with `nodekeeper policy edit`; `nodekeeper policy show --defaults` shows how";
        return Err(UsageError(none.to_owned()).into());
    }
    let (all_used, weights): (f64, f64) =
        (seen.shares.used.values().sum(), policy.share.iter().map(|s| s.weight).sum());
    let is_of = |share: &Share, name: Option<&str>| policy.share_name(name) == share.name;
    let row = |share| {
        let waits = |job: &&JobSummary| job.state == JobState::Queued && is_of(share, job.share.as_deref());
        let mut has = WorkAmount::default();
        for alloc in seen.allocs.iter().filter(|alloc| is_of(share, alloc.share.as_deref())) {
            has += WorkAmount { running: 1, dollars_per_hour: alloc.price_per_hour, ..WorkAmount::of(&alloc.needs, 1) };
        }
        let used = seen.shares.used.get(&share.name).copied().unwrap_or(0.0);
        ShareRow {
            share,
            part: share.weight / weights,
            used: if all_used > 0.0 { used / all_used } else { 0.0 },
            has,
            waiting: seen.jobs.iter().filter(waits).count(),
            month_usd: seen.shares.costs.get(&share.name).copied().unwrap_or_default(),
        }
    };
    let mut rows: Vec<ShareRow<'_>> = policy.share.iter().map(row).collect();
    rows.sort_by(|a, b| (a.used / a.share.weight).total_cmp(&(b.used / b.share.weight)));
    let is_cut = seen.queue.part.is_some();
    if args.json {
        let rows: Vec<Value> = rows.iter().map(|row| as_json(row, is_cut)).collect();
        return show::json(context.out, &rows);
    }
    let heads = &["SHARE", "WEIGHT", "PART", "USED", "PLACED", "WAITING", "vCPU", "GPU", "AN HOUR", "THIS MONTH"];
    Rows::of(heads, rows.iter().map(|row| cells(row, is_cut))).print(context.out)?;
    if let Some(totals) = seen.control.totals.as_ref().filter(|_| !policy.budget.dollars_per_month.is_zero()) {
        let (spent, budget) = (totals.month_usd, policy.budget.dollars_per_month);
        writeln!(context.out, "the nodes of this month have cost {spent} of {budget}")?;
    }
    Ok(())
}

/// A number, with its limit if there is one.
fn within(has: u64, most: Option<u64>) -> String {
    most.map_or_else(|| has.to_string(), |most| format!("{has} of {most}"))
}

fn cells(row: &ShareRow<'_>, is_cut: bool) -> [String; 10] {
    let (has, limits) = (&row.has, &row.share.limits);
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let hour = limits.dollars_per_hour.map(|most| format!(" of {most}")).unwrap_or_default();
    [
        row.share.name.clone(),
        row.share.weight.to_string(),
        percent(row.part),
        percent(row.used),
        within(has.running, limits.running),
        format!("{}{}", row.waiting, if is_cut { " or more" } else { "" }),
        within(has.vcpus, limits.vcpus),
        within(has.gpus, limits.gpus),
        format!("{}{hour}", has.dollars_per_hour),
        dollars(row.month_usd),
    ]
}

fn as_json(row: &ShareRow<'_>, is_cut: bool) -> Value {
    let (share, has) = (row.share, &row.has);
    json!({
        "share": share.name, "weight": share.weight, "part": row.part, "used": row.used, "waiting": row.waiting,
        "more_wait": is_cut, "placed": has.running, "vcpus": has.vcpus, "gpus": has.gpus, "members": has.nodes,
        "dollars_per_hour": has.dollars_per_hour, "dollars_this_month": row.month_usd,
        "limits": share.limits,
    })
}
