//! `demand`: demand sets, by which a controller says how many nodes another scheduler needs.
//!
//! Guarantees: the same call again changes only how long the set lasts. A write is conditional on the row as read. `set` refuses a
//! set that no run could satisfy.
//! Does not: launch anything. The next run of poll-and-scale does. `plan` and `jobs` say what a set has and lacks.

use crate::changes::operate::{record_event, retried};
use crate::commands::submit::machine_options::MachineOptions;
use crate::console::show::{self, moment, one_line};
use crate::console::{Cluster, Context, Exit, UsageError};
use crate::view::NextRun;
use anyhow::bail;
use clap::{ArgGroup, Args, Subcommand};
use model::amounts::{gibibytes, mebibytes, seconds};
use model::control::{DemandNeed, DemandSet};
use model::names::is_plain_name;
use model::{ActionName, Capacity, ControlKey, Span, Subject, Time};
use serde_json::json;

#[derive(Subcommand, Clone, Debug)]
pub enum DemandCommand {
    /// Say how many nodes, or shares of nodes, are wanted for a while
    Set(Box<SetArgs>),
}

/// `demand set`
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("what").required(true).args(["size", "vcpus"]))]
pub struct SetArgs {
    /// The name of the set: at most 64 letters, digits, '-', '_' and '.'
    name: String,
    /// How many are wanted, at most 10000; 0 for none
    #[arg(long, value_name = "N")]
    count: u32,
    /// Each is a whole node of this size of the policy
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["memory", "scratch", "gpus", "instance_type", "market", "arch", "gpu_type", "gpu_memory_gib", "require", "exclusive"])]
    size: Option<String>,
    /// vCPUs of each, on any node that has them
    #[arg(long)]
    vcpus: Option<u32>,
    /// Memory of each: in MiB, or with a unit such as 512M or 1.5G
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = mebibytes)]
    memory: u64,
    /// Scratch space of each: in GiB, or with a unit such as 100G or 2T
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = gibibytes)]
    scratch: u64,
    /// GPUs of each
    #[arg(long, default_value_t = 0)]
    gpus: u32,
    #[command(flatten)]
    machine: MachineOptions,
    /// Each has a node of its own
    #[arg(long)]
    exclusive: bool,
    /// How long the set counts unless it is set again: from 1m to 7d
    #[arg(long = "for", default_value = "15m", value_name = "TIME", value_parser = seconds)]
    lasts: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl SetArgs {
    /// The need of each demand. One error lists all mistakes.
    fn need(&self) -> Result<DemandNeed, UsageError> {
        let (shortest, longest) = DemandSet::LASTS;
        let mut wrong = Vec::new();
        if !is_plain_name(&self.name) {
            wrong.push(format!("{:?} cannot be the name of a set: 1 to 64 letters, digits, '-', '_', '.'", self.name));
        }
        if self.count > DemandSet::MAX_COUNT {
            wrong.push(format!("--count must be at most {}, it is {}", DemandSet::MAX_COUNT, self.count));
        }
        if !(shortest..=longest).contains(&self.lasts()) {
            wrong.push(format!("--for must be from {shortest} to {longest}"));
        }
        if self.vcpus == Some(0) {
            wrong.push("--vcpus must be at least 1".to_owned());
        }
        let machine = self.machine.need().map_err(|e| UsageError(e.to_string()))?;
        wrong.extend(machine.mistakes(self.gpus));
        if !wrong.is_empty() {
            return Err(UsageError(format!("the demand was not set: {}", wrong.join("; "))));
        }
        // With a size, clap allows none of the other needs.
        let vcpus = self.vcpus.unwrap_or_default();
        Ok(DemandNeed {
            size: self.size.clone(),
            capacity: Capacity { vcpus, memory_mib: self.memory, scratch_gib: self.scratch, gpus: self.gpus },
            machine,
            exclusive: self.exclusive,
        })
    }

    fn lasts(&self) -> Span {
        Span::from_s(i64::try_from(self.lasts).unwrap_or(i64::MAX / 1000))
    }
}

pub(crate) async fn run(context: &mut Context<'_>, command: &DemandCommand) -> anyhow::Result<Exit> {
    let DemandCommand::Set(args) = command;
    let (need, name) = (args.need()?, &args.name);
    let (cluster, now) = (context.cluster().await?, context.now());
    let by = cluster.by().await?;
    let key = ControlKey::Demand(name.clone());
    let (before, after) = retried(async || {
        let before: DemandSet = cluster.store.entry(&key).await?;
        check(&cluster, &before, &need, args.count, now).await?;
        let after = before.wanted(need.clone(), args.count, now + args.lasts(), now);
        let after = cluster.store.write_entry(&before, &after).await?;
        Ok((before, after))
    })
    .await?;
    let changed = after.revision != before.revision;
    let needs = needs(&need);
    if changed {
        let what = format!("{name}: {} of {needs}, {by}", args.count);
        record_event(&cluster, &Subject::Cluster, ActionName::DemandSet, &what, now).await?;
    }
    let (count, version) = (after.count(now), after.revision);
    if args.json {
        let shown = json!({
            "name": name, "count": count, "need": after.need, "version": version, "until_at": after.until_at,
            "changed": changed,
        });
        show::json(context.out, &shown)?;
    } else {
        let until = after.until_at.map(|at| moment(at, now)).unwrap_or_default();
        let how = if changed { "is set to" } else { "is still" };
        writeln!(context.out, "demand set {name} {how} {count} of {needs} until {until}, version {version}")?;
    }
    Ok(Exit::Done)
}

/// Refuses a need that no run could satisfy, and more sets than a run may read. The count of sets is not exact: of two calls at
/// the same moment, both may add the last allowed set.
async fn check(cluster: &Cluster, before: &DemandSet, need: &DemandNeed, count: u32, now: Time) -> anyhow::Result<()> {
    let control = cluster.store.control().await?;
    let most = DemandSet::MOST;
    if !before.applies(now) && control.wanted_sets(now).count() >= most {
        bail!(
            "the demand was not set: there are {most} demand sets, which is the most: one of count 0 ends after its --for"
        );
    }
    let (policy, _) = control.checked_policy()?;
    if let Some(size) = &need.size
        && !policy.has_size(size)
    {
        let known: Vec<&str> = policy.size.iter().map(|size| size.name.as_str()).collect();
        bail!("the demand was not set: the policy has no size {size:?}: it has {}", known.join(", "));
    }
    let never = policy.never_offers(need.capacity, &need.machine).filter(|_| need.size.is_none() && count > 0);
    if let Some(why) = never {
        bail!("the demand was not set: {why}: `nodekeeper sizes` shows what the sizes have");
    }
    Ok(())
}

fn needs(need: &DemandNeed) -> String {
    if let Some(size) = &need.size {
        return format!("size {size}");
    }
    show::narrowed(need.capacity.to_string(), &need.machine, need.exclusive)
}

/// The lines about demand sets at the end of a list of jobs.
pub(crate) fn lines(next: Option<&NextRun>) -> Vec<String> {
    let sets = next.map(|next| next.plan.explained.sets.as_slice()).unwrap_or_default();
    sets.iter().map(|set| one_line(&set.line())).collect()
}
