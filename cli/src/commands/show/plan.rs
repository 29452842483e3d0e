//! `plan`: what the next run would do, and why.
//!
//! Guarantees: nothing is written and no instance is changed. With `--state`, each readable line gets one answer, in order and at
//! once. An unreadable line is named on standard error, and the other lines still get their answers.
//! Does not: decide. The planning code of the functions decides, from the same observation.

use crate::commands::set_up::policy;
use crate::commands::submit::input;
use crate::console::show::{self, Rows, counted};
use crate::console::{Context, Exit, bounded};
use crate::view::find::short;
use crate::view::next::on_refusing;
use crate::view::what_if;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use model::action::{PlanAnswer, PlanRow};
use model::amounts::Moment;
use model::{Policy, SetNote, Time, Waiting};
use runtime::observation::Observation;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
    /// The function whose next run is planned
    #[arg(long, value_enum, default_value = "poll-and-scale")]
    function: Planner,
    /// Plan from the states in this file instead of the cluster: one JSON object on each line; - for standard
    /// input. Prints one JSON answer on each line
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Also write what is planned from to this file, for --state: for a bug report, or to try another policy. It has no environments,
    /// no output and no user data of nodes
    #[arg(long, value_name = "FILE", conflicts_with = "state")]
    save: Option<PathBuf>,
    /// Use this policy instead of the stored one
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Plan as if it were then: a time such as 2026-11-21T10:00:00Z, a date, or after a length of time such as 2h
    #[arg(long, value_name = "WHEN")]
    at: Option<Moment>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A function that plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Planner {
    /// Launches, placements, lease expiry, shutdowns
    PollAndScale,
    /// Stale records, orphans
    CleanStaleRecords,
    /// Handles that are due
    SweepDispatch,
}

impl Planner {
    fn plan(self, seen: &Observation, now: Time) -> PlanAnswer {
        match self {
            Self::PollAndScale => poll_and_scale::plan(seen, now).answer(),
            Self::CleanStaleRecords => clean_stale_records::plan(seen, now).answer(),
            Self::SweepDispatch => sweep_dispatch::plan(seen, now).answer(),
        }
    }
}

pub(crate) async fn run(context: &mut Context<'_>, args: &PlanArgs) -> anyhow::Result<Exit> {
    let policy = args.policy.as_deref().map(policy::read).transpose()?;
    match &args.state {
        None => live(context, args, policy).await,
        Some(file) => {
            let lines = input::open(&mut *context.input, file);
            let mut lines = lines.with_context(|| format!("{} cannot be read", file.display()))?;
            states(args, policy.as_ref(), &mut *lines, &mut *context.out, &mut *context.err)
        }
    }
}

async fn live(context: &mut Context<'_>, args: &PlanArgs, policy: Option<Policy>) -> anyhow::Result<Exit> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let (store, cloud, at) = (&cluster.store, cluster.cloud.as_ref(), args.at.map_or(now, |at| at.after(now)));
    let seen = match args.function {
        Planner::PollAndScale => Observation::read(store, cloud, now).await?.with_put_off(store).await?,
        Planner::CleanStaleRecords => Observation::read_for_cleaning(store, cloud, || now).await?,
        Planner::SweepDispatch => sweep_dispatch::observe(store, now).await?,
    };
    let seen = match policy {
        Some(policy) => Observation { policy, ..seen },
        None => seen,
    };
    if let Some(file) = &args.save {
        let state = model::left_out::to_json(&seen.to_state(at))?;
        std::fs::write(file, format!("{state}\n")).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    let refusing = match args.function {
        Planner::PollAndScale => on_refusing(&seen.nodes, &seen.allocs),
        Planner::CleanStaleRecords | Planner::SweepDispatch => BTreeMap::new(),
    };
    let answer = args.function.plan(&seen, at);
    if args.json {
        show::json(context.out, &answer)?;
        return Ok(Exit::Done);
    }
    if answer.actions.is_empty() {
        writeln!(context.out, "the next run would do nothing")?;
    }
    // Handles of one node share a subject, so their names are shown too.
    let cells = |action: &PlanRow| {
        let handle = action.handle.as_ref().map(|h| format!(" {h}")).unwrap_or_default();
        [action.action.to_string(), format!("{}{handle}", action.subject), action.reason.clone()]
    };
    Rows::of(&["ACTION", "SUBJECT", "REASON"], answer.actions.iter().map(cells)).print(context.out)?;
    let explained = &answer.explained;
    let first = explained.waiting.first().and_then(|waiting| waiting.jobs.first());
    let first = first.filter(|_| args.function == Planner::PollAndScale);
    let changes = first.map(|id| what_if::for_job(&seen, *id, at)).unwrap_or_default();
    let changes = changes.iter().map(|change| format!("the first would start if {change}"));
    let lines = explained.waiting.iter().map(Waiting::line).chain(changes);
    for line in lines.chain(explained.sets.iter().map(SetNote::line)) {
        writeln!(context.out, "{}", show::one_line(&line))?;
    }
    for (job, why) in refusing {
        writeln!(context.out, "job {} waits: {}", short(job), show::one_line(&why))?;
    }
    for (node_id, why) in &explained.staying {
        writeln!(context.out, "slot {} stays: {}", node_id.slot(), show::one_line(&why.to_string()))?;
    }
    for why in &explained.limits {
        writeln!(context.out, "limit: {}", show::one_line(&why.to_string()))?;
    }
    if !answer.wanted.is_empty() {
        writeln!(context.out, "wanted nodes: {}", counted(&answer.wanted))?;
    }
    if !answer.surplus.is_empty() {
        let slots: Vec<String> = answer.surplus.iter().map(ToString::to_string).collect();
        writeln!(context.out, "not needed: slots {}", slots.join(", "))?;
    }
    Ok(Exit::Done)
}

fn states(
    args: &PlanArgs,
    policy: Option<&Policy>,
    lines: &mut dyn BufRead,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<Exit> {
    let mut all = true;
    for number in 1u64.. {
        let line = bounded::line(lines, bounded::MOST_OF_MANY).context("the states cannot be read")?;
        if line.is_empty() {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        match answer(args, policy, &line) {
            Ok(answer) => {
                writeln!(out, "{}", model::left_out::to_json(&answer)?)?;
                // Flush now, because the other program may wait for this answer before it sends the next state.
                out.flush()?;
            }
            Err(e) => {
                all = false;
                writeln!(err, "nodekeeper: line {number}: {}", show::brief(&format!("{e:#}")))?;
            }
        }
    }
    Ok(Exit::done_if(all))
}

fn answer(args: &PlanArgs, policy: Option<&Policy>, line: &[u8]) -> anyhow::Result<PlanAnswer> {
    let state = serde_json::from_slice(line).context("the state is not one JSON object")?;
    let (seen, now) = Observation::from_state(&state, policy)?;
    Ok(args.function.plan(&seen, args.at.map_or(now, |at| at.after(now))))
}
