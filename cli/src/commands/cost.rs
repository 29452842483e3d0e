//! `cost`: what the nodes cost in a time, and for whom.
//!
//! Guarantees: the lines and the line without work add up to the total; what is not known is counted and said.
//! Does not: know a bill. `past` reckons from events and records.

use crate::console::show::{self, Rows, dollars, moment, rough, several};
use crate::console::{Context, Outcome};
use clap::{Args, ValueEnum};
use history::{By, History, LONGEST, Report};
use model::time::Span;

#[derive(Args, Clone, Debug)]
pub struct CostArgs {
    /// How far back: a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = span)]
    since: Span,
    /// What each line is
    #[arg(long, value_enum, default_value_t)]
    by: Lines,
    /// Show at most so many lines, the most expensive ones
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What the lines of the report are.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
enum Lines {
    /// Each job
    Job,
    /// All jobs with the same name together
    #[default]
    Name,
    /// Each size of nodes, with its price
    Size,
}

impl From<Lines> for By {
    fn from(lines: Lines) -> Self {
        match lines {
            Lines::Job => Self::Job,
            Lines::Name => Self::Name,
            Lines::Size => Self::Size,
        }
    }
}

/// Understands `90s`, `30m`, `24h` and `7d`.
fn span(text: &str) -> Result<Span, String> {
    let wrong = || "give a number with s, m, h or d, like 24h".to_owned();
    let (number, unit) =
        text.char_indices().last().and_then(|(at, unit)| Some((text.get(..at)?, unit))).ok_or_else(wrong)?;
    let unit_s = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: i64 = number.parse().map_err(|_| wrong())?;
    let span = Span::from_s(number.saturating_mul(unit_s));
    if number < 1 || span > LONGEST {
        return Err(format!("give at least 1 s and at most {} days", LONGEST.as_ms() / 86_400_000));
    }
    Ok(span)
}

pub(crate) async fn run(context: &mut Context<'_>, args: &CostArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let past = History::read(&cluster.store, args.since, now).await?;
    let mut report = Report::of(&past, args.since, args.by.into());
    let more = report.lines.len().saturating_sub(args.limit);
    report.lines.truncate(args.limit);
    if args.json {
        show::json(context.out, &report)?;
    } else {
        print(context, &report, now)?;
    }
    if more > 0 {
        writeln!(context.err, "{} not shown: --limit N shows N", several(more, "line"))?;
    }
    Ok(Outcome::Done)
}

fn print(context: &mut Context<'_>, report: &Report, now: model::time::Time) -> anyhow::Result<()> {
    let heads: &[&str] = match report.by {
        By::Job => &["JOB", "NAME", "BEGAN", "NODE TIME", "COST"],
        By::Name => &["NAME", "JOBS", "BEGAN", "NODE TIME", "COST"],
        By::Size => &["SIZE", "MARKET", "PRICE AN HOUR", "NODES", "BEGAN", "NODE TIME", "COST"],
    };
    let mut rows = Rows::new(heads);
    for line in &report.lines {
        let mut cells = vec![line.what.clone()];
        match report.by {
            By::Job => cells.push(show::or_blank(line.name.as_ref())),
            By::Name => cells.push(line.count.to_string()),
            By::Size => {
                cells.push(show::or_blank(line.market.as_ref()));
                cells.push(line.price_per_hour.map_or_else(|| "not known".to_owned(), |p| p.to_string()));
                cells.push(line.count.to_string());
            }
        }
        cells.extend([show::when(line.from, now), time(line.node_s), dollars(line.usd)]);
        rows.row(cells);
    }
    rows.print(context.out)?;
    let out = &mut *context.out;
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
    if report.left_out > 0 {
        writeln!(out, "{} did not fit into memory: the true sums are higher", several(report.left_out, "event"))?;
    }
    writeln!(out, "{}", report.estimate)?;
    Ok(())
}

/// Node time: hours with two digits, short times in one unit.
fn time(s: i64) -> String {
    if s < 3600 { rough(Span::from_s(s)) } else { format!("{:.2} h", s as f64 / 3600.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_number_and_a_unit() {
        for (text, s) in [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800)] {
            assert_eq!(span(text), Ok(Span::from_s(s)), "{text}");
        }
        for bad in ["", "h", "24", "0h", "-1h", "1w", "1.5h", "100d", "99999999999999999d", "5é"] {
            assert!(span(bad).is_err(), "{bad}");
        }
    }
}
