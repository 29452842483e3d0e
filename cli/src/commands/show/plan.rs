//! `plan`: what the next run would do, and why.
//!
//! Guarantees: nothing is written and no instance is changed. With `--state`, each readable line gets one answer, in order and at
//! once. An unreadable line is named on standard error, and the other lines still get their answers.
//! Does not: decide. The planning code of poll-and-scale decides, from the same observation.

use crate::commands::set_up::policy;
use crate::commands::submit::input;
use crate::console::show::{self, Rows, counted};
use crate::console::{Context, Exit, bounded};
use crate::view::find::short;
use crate::view::next::on_refusing;
use crate::view::what_if;
use anyhow::Context as _;
use clap::Args;
use model::action::{PlanAnswer, PlanRow};
use model::{Policy, SetNote, Waiting};
use runtime::observation::Observation;
use std::io::{BufRead, Write};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct PlanArgs {
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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &PlanArgs) -> anyhow::Result<Exit> {
    let policy = args.policy.as_deref().map(policy::read).transpose()?;
    match &args.state {
        None => live(context, args, policy).await,
        Some(file) => {
            let lines = input::open(&mut *context.input, file);
            let mut lines = lines.with_context(|| format!("{} cannot be read", file.display()))?;
            states(policy.as_ref(), &mut *lines, &mut *context.out, &mut *context.err)
        }
    }
}

async fn live(context: &mut Context<'_>, args: &PlanArgs, policy: Option<Policy>) -> anyhow::Result<Exit> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let store = &cluster.store;
    let seen = Observation::read(store, cluster.cloud.as_ref(), now).await?.with_put_off(store).await?;
    let seen = match policy {
        Some(policy) => Observation { policy, ..seen },
        None => seen,
    };
    if let Some(file) = &args.save {
        let state = model::left_out::to_json(&seen.to_state(now))?;
        std::fs::write(file, format!("{state}\n")).with_context(|| format!("{} cannot be written", file.display()))?;
    }
    let answer = poll_and_scale::plan(&seen, now).answer();
    if args.json {
        show::json(context.out, &answer)?;
        return Ok(Exit::Done);
    }
    if answer.actions.is_empty() {
        writeln!(context.out, "the next run would do nothing")?;
    }
    let cells = |action: &PlanRow| [action.action.to_string(), action.subject.clone(), action.reason.clone()];
    Rows::of(&["ACTION", "SUBJECT", "REASON"], answer.actions.iter().map(cells)).print(context.out)?;
    let explained = &answer.explained;
    let first = explained.waiting.first().and_then(|waiting| waiting.jobs.first());
    let changes = first.map(|id| what_if::for_job(&seen, *id, now)).unwrap_or_default();
    let changes = changes.iter().map(|change| format!("the first would start if {change}"));
    let lines = explained.waiting.iter().map(Waiting::line).chain(changes);
    for line in lines.chain(explained.sets.iter().map(SetNote::line)) {
        writeln!(context.out, "{}", show::one_line(&line))?;
    }
    for (job, why) in on_refusing(&seen.nodes, &seen.allocs) {
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
        match answer(policy, &line) {
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

fn answer(policy: Option<&Policy>, line: &[u8]) -> anyhow::Result<PlanAnswer> {
    let state = serde_json::from_slice(line).context("the state is not one JSON object")?;
    let (seen, now) = Observation::from_state(&state, policy)?;
    Ok(poll_and_scale::plan(&seen, now).answer())
}
