//! `cost`: what the nodes cost in a span of time, and for whom.
//!
//! Guarantees: the lines and the time without work add up to the total. What is not known is counted, and printed.
//! Does not: know a bill. The crate `history` estimates the cost from events and records.

use crate::commands::filter::OwnerFilter;
use crate::console::show::{self, Rows, dollars, moment, or_blank, rough, several};
use crate::console::{Context, UsageError};
use anyhow::bail;
use clap::Args;
use history::{By, CostLine, CountedBy, History, LONGEST, Report};
use model::Span;
use model::amounts::Moment;
use std::num::NonZeroUsize;

#[derive(Args, Clone, Debug)]
pub struct CostArgs {
    /// Since when: 12h, 30d, a date or a time
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: Moment,
    /// What each line is: name, job, person, share, label KEY, size or reason. A size has its price. A reason says why nodes were there, and each
    /// moment of each node has one
    #[arg(long, value_name = "WHAT", default_value = "name", num_args = 1..=2)]
    by: Vec<String>,
    #[command(flatten)]
    owner: OwnerFilter,
    /// Show at most this many lines, the most expensive ones
    #[arg(long, value_name = "N", default_value = "50")]
    limit: NonZeroUsize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &CostArgs) -> anyhow::Result<()> {
    let by = By::try_from(args.by.join(":")).map_err(|e| UsageError(format!("--by: {e}, such as --by label team")))?;
    if matches!(by, By::Size | By::Reason) && !args.owner.is_empty() {
        let message = "a size and a reason have no person and no label: give --mine and --label with another --by";
        return Err(UsageError(message.into()).into());
    }
    let now = context.now();
    let since = now.since(args.since.before(now));
    if since <= Span::ZERO || since > LONGEST {
        bail!(UsageError(format!("--since: give a time of the last {} days", LONGEST.as_ms() / 86_400_000)));
    }
    let cluster = context.cluster().await?;
    let owner = args.owner.of(&cluster).await?;
    let takes = |job: &CountedBy| owner.takes(job.by.as_deref(), &job.labels);
    let takes: Option<&dyn Fn(&CountedBy) -> bool> = if owner.is_empty() { None } else { Some(&takes) };
    let past = History::read_costs(&cluster.store, since, now).await?;
    if past.from > now - since {
        let kept = rough(now.since(past.from));
        let limit = "history.finished_days and history.events_days";
        writeln!(context.err, "ended jobs and events are kept for {kept} ({limit}): only this time counts")?;
    }
    let mut report = Report::of(&past, since, by, takes);
    let more = report.lines.len().saturating_sub(args.limit.get());
    report.lines.truncate(args.limit.get());
    if args.json {
        show::json(context.out, &report)?;
    } else {
        print(context, &report, now)?;
    }
    if more > 0 {
        writeln!(context.err, "{} not shown: --limit N shows N", several(more, "line"))?;
    }
    Ok(())
}

fn print(context: &mut Context<'_>, report: &Report, now: model::time::Time) -> anyhow::Result<()> {
    let heads: &[&str] = match &report.by {
        By::Job => &["JOB", "NAME", "BEGAN", "NODE TIME", "COST"],
        By::Name => &["NAME", "JOBS", "BEGAN", "NODE TIME", "COST"],
        By::Share => &["SHARE", "JOBS", "BEGAN", "NODE TIME", "COST"],
        By::Person => &["PERSON", "JOBS", "BEGAN", "NODE TIME", "COST"],
        By::Label(_) => &["LABEL", "JOBS", "BEGAN", "NODE TIME", "COST"],
        By::Reason => &["REASON", "NODES", "BEGAN", "NODE TIME", "COST"],
        By::Size => &["SIZE", "MARKET", "PRICE AN HOUR", "NODES", "BEGAN", "NODE TIME", "COST"],
    };
    let cells = |line: &CostLine| {
        let which = match &report.by {
            By::Job => vec![or_blank(line.name.as_ref())],
            By::Name | By::Person | By::Share | By::Label(_) | By::Reason => vec![line.count.to_string()],
            By::Size => {
                let price = line.price_per_hour.map_or_else(|| "not known".to_owned(), |p| p.to_string());
                vec![or_blank(line.market.as_ref()), price, line.count.to_string()]
            }
        };
        let amounts = [show::when(line.from, now), time(line.node_s), dollars(line.usd)];
        [line.what.clone()].into_iter().chain(which).chain(amounts)
    };
    Rows::of(heads, report.lines.iter().map(cells)).print(context.out)?;
    let out = &mut *context.out;
    if let Some(these) = report.these_usd {
        writeln!(out, "these jobs: {}", dollars(these))?;
    }
    writeln!(
        out,
        "without work: {} for {} of node time (booting, idle, silent or going)",
        dollars(report.without_work_usd),
        time(report.without_work_node_s)
    )?;
    writeln!(
        out,
        "total: {} for {}, {} of node time, since {}",
        dollars(report.total_usd),
        several(report.nodes, "node"),
        time(report.node_s),
        moment(report.since, now)
    )?;
    if report.unpriced_nodes > 0 {
        writeln!(out, "{}: no record says the price, so nothing is counted", several(report.unpriced_nodes, "node"))?;
    }
    if report.is_cut {
        writeln!(out, "only the newest jobs fit into memory: the true sums are higher")?;
    }
    writeln!(out, "{}", report.estimate)?;
    Ok(())
}

/// Node time: hours with two digits, or a time below one hour in one unit.
fn time(s: i64) -> String {
    if s < 3600 { rough(Span::from_s(s)) } else { format!("{:.2} h", s as f64 / 3600.0) }
}
