//! `exec` and `shell`: a command inside of an alloc that runs.
//!
//! The agent of the node runs it: `nodekeeper-agent enter`. On a machine of a local system, this command starts the agent. On an
//! instance of EC2, Session Manager does: an existing service that needs no open port.
//! Guarantees: an event is stored before the command runs: who ran which command, in which alloc.
//! Does not: give anybody a right on the node. In AWS, `ssm:StartSession` does.

use crate::changes::operate::record_event;
use crate::commands::others::Others;
use crate::commands::output::follow::last_allocs;
use crate::console::show::{self, readable};
use crate::console::{Cluster, Context, Exit, UsageError};
use crate::view::find::{Finder, no_job, short_alloc};
use anyhow::{Context as _, bail};
use clap::Args;
use model::{ActionName, Alloc, ClientStatus, NodeRecord, Subject};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The most characters of a command in an event.
const MAX_EVENT_CHARS: usize = 200;

/// Starts bash if there is one, otherwise sh.
pub(crate) const SHELL: [&str; 3] = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"];

/// Where the boot script installs the agent. On some systems, `sudo` does not search this directory.
const AGENT: &str = "/usr/local/bin/nodekeeper-agent";

/// In which alloc.
#[derive(Args, Clone, Debug)]
pub struct InsideArgs {
    /// The id of a job or of one alloc, a part of it, or the job's name
    #[arg(value_name = "JOB")]
    id: String,
    /// The member of a job of several nodes
    #[arg(long, value_name = "N")]
    member: Option<u32>,
    /// Do not ask about a job of somebody else
    #[arg(long, short = 'y')]
    yes: bool,
}

/// `exec`
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "An event records the beginning of the command: give no secret on the command line. The exit code is that of the \
                  command, in AWS that of Session Manager, which does not pass it on."
)]
pub struct ExecArgs {
    #[command(flatten)]
    pub(crate) inside: InsideArgs,
    /// The command, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Replaces this process by the command. Returns only if the person does not agree, or an error.
pub(crate) async fn enter(context: &mut Context<'_>, args: &InsideArgs, command: &[String]) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    let alloc = find(context, &cluster, args).await?;
    let seen = &alloc.summary;
    let record = cluster.store.node(seen.slot).await?.filter(|record| record.node_id() == Some(seen.node_id));
    let gone = || format!("the node of alloc {} is gone: the job runs again elsewhere, or ends", seen.alloc_id);
    let line = line(&cluster, &record.with_context(gone)?, &alloc, command)?;
    if !Others::of(&cluster, [alloc.summary.by.as_deref()]).await?.agree(context, "enter", args.yes)? {
        return Ok(Exit::Failed);
    }
    let told: String = show::one_line(&show::command(command)).chars().take(MAX_EVENT_CHARS).collect();
    let reason = format!("{}: {told}", cluster.by().await?);
    for subject in [Subject::Job(seen.alloc_id.job_id), Subject::Alloc(seen.alloc_id)] {
        record_event(&cluster, &subject, ActionName::EnterAlloc, &reason, context.now()).await?;
    }
    let Some((program, rest)) = line.split_first() else { bail!("there is nothing to run") };
    let error = Command::new(program).args(rest).exec();
    if error.kind() == io::ErrorKind::NotFound && cluster.reach.local.is_none() {
        bail!("there is no program `{program}` here: install the AWS CLI and its Session Manager plugin");
    }
    Err(anyhow::Error::new(error).context(format!("cannot run {program}")))
}

/// The running alloc that is meant.
async fn find(context: &mut Context<'_>, cluster: &Cluster, args: &InsideArgs) -> anyhow::Result<Alloc> {
    let (job_id, only) = Finder::new(cluster).work_of_one(&args.id).await?;
    let job = cluster.store.job(job_id).await?.ok_or_else(|| no_job(job_id))?;
    if let Some(member) = args.member.filter(|member| *member >= job.summary.needs.nodes) {
        let last = job.summary.needs.nodes.saturating_sub(1);
        return Err(UsageError(format!("it has no member {member}: its members are 0 to {last}")).into());
    }
    let mut allocs = readable(context.err, cluster.store.allocs_of([&job]).await?)?;
    allocs.retain(|alloc| only.is_none_or(|id| alloc.id() == id));
    allocs.retain(|alloc| args.member.is_none_or(|member| alloc.id().member == member));
    let ended = allocs.iter().all(|alloc| alloc.summary.client.is_final());
    let waits = allocs.iter().any(|alloc| alloc.summary.client == ClientStatus::Pending);
    allocs.retain(|alloc| alloc.summary.client == ClientStatus::Running);
    let mut allocs: Vec<Alloc> = last_allocs(allocs).collect();
    let id = show::one_line(&args.id);
    match allocs.len() {
        1 => allocs.pop().context("nothing runs"),
        0 if job.summary.state.is_ended() || (only.is_some() && ended) => {
            bail!("it has ended: `nodekeeper logs {id}` has what it printed")
        }
        0 if waits => bail!("it has not started yet: try again in a few seconds"),
        0 => bail!("nothing of it runs now: `nodekeeper job {id}` says why"),
        _ => {
            let members: Vec<String> = allocs.iter().map(|alloc| alloc.id().member.to_string()).collect();
            Err(UsageError(format!(
                "several members of it run: say which with --member, one of {}",
                members.join(", ")
            ))
            .into())
        }
    }
}

/// The command line here that runs the command inside the alloc.
pub(crate) fn line(
    cluster: &Cluster,
    record: &NodeRecord,
    alloc: &Alloc,
    command: &[String],
) -> anyhow::Result<Vec<String>> {
    let (id, slot) = (alloc.id(), record.slot);
    let Some(instance) = record.life().and_then(|life| life.instance_id.as_deref()) else {
        bail!("slot {slot} has no instance any more: alloc {} is not reached", short_alloc(id));
    };
    let reach = &cluster.reach;
    let enter = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned());
        words.chain([id.to_string(), "--".to_owned()]).chain(command.iter().cloned()).collect::<Vec<String>>()
    };
    if let Some(machines) = &reach.local {
        let machine = machines.join(instance);
        let (agent, data) = (machine.join("agent"), machine.join("data"));
        if !agent.exists() {
            bail!("{instance} is not a machine of the local system in {}: is it another one's?", machines.display());
        }
        return Ok(enter(&[&agent.display().to_string(), "enter", "--data-dir", &data.display().to_string()]));
    }
    let remote = show::command(&enter(&["sudo", AGENT, "enter"]));
    let parameters = serde_json::json!({ "command": [remote] }).to_string();
    let mut words = vec!["aws", "ssm", "start-session", "--target", instance];
    words.extend(["--document-name", "AWS-StartInteractiveCommand", "--parameters", &parameters]);
    Ok(words.into_iter().map(str::to_owned).collect())
}
