//! `demand`: demand sets, by which a controller says how many nodes another scheduler needs.
//!
//! Guarantees: the same call again changes only how long the set lasts. A write is conditional on the row as read. `set` refuses a
//! set that no run could satisfy.
//! Does not: launch anything. The next run of poll-and-scale does. `plan` and `jobs` say what a set has and lacks.

use crate::changes::operate::{record_event, retried};
use crate::console::show::{self, moment, one_line};
use crate::console::{Cluster, Context, Exit, UsageError};
use crate::view::NextRun;
use anyhow::bail;
use clap::{Args, Subcommand};
use model::amounts::seconds;
use model::control::DemandSet;
use model::names::is_plain_name;
use model::{ActionName, ControlKey, Span, Subject, Time};
use serde_json::json;

#[derive(Subcommand, Clone, Debug)]
pub enum DemandCommand {
    /// Say how many nodes are wanted for a while
    Set(Box<SetArgs>),
}

/// `demand set`
#[derive(Args, Clone, Debug)]
pub struct SetArgs {
    /// The name of the set: at most 64 letters, digits, '-', '_' and '.'
    name: String,
    /// How many are wanted, at most 10000; 0 for none
    #[arg(long, value_name = "N")]
    count: u32,
    /// The size of the policy that each has, as a whole node
    #[arg(long, value_name = "SIZE")]
    size: String,
    /// How long the set counts unless it is set again: from 1m to 7d
    #[arg(long = "for", default_value = "15m", value_name = "TIME", value_parser = seconds)]
    lasts: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl SetArgs {
    /// Checks the options. One error lists all mistakes.
    fn check(&self) -> Result<(), UsageError> {
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
        if wrong.is_empty() {
            return Ok(());
        }
        Err(UsageError(format!("the demand was not set: {}", wrong.join("; "))))
    }

    fn lasts(&self) -> Span {
        Span::from_s(i64::try_from(self.lasts).unwrap_or(i64::MAX / 1000))
    }
}

pub(crate) async fn run(context: &mut Context<'_>, command: &DemandCommand) -> anyhow::Result<Exit> {
    let DemandCommand::Set(args) = command;
    args.check()?;
    let (name, size) = (&args.name, &args.size);
    let (cluster, now) = (context.cluster().await?, context.now());
    let by = cluster.by().await?;
    let key = ControlKey::Demand(name.clone());
    let (before, after) = retried(async || {
        let before: DemandSet = cluster.store.entry(&key).await?;
        check(&cluster, &before, size, now).await?;
        let after = before.wanted(size, args.count, now + args.lasts(), now);
        let after = cluster.store.write_entry(&before, &after).await?;
        Ok((before, after))
    })
    .await?;
    let changed = after.revision != before.revision;
    if changed {
        let what = format!("{name}: {} of size {size}, {by}", args.count);
        record_event(&cluster, &Subject::Cluster, ActionName::DemandSet, &what, now).await?;
    }
    let (count, version) = (after.count(now), after.revision);
    if args.json {
        let shown = json!({
            "name": name, "count": count, "size": size, "version": version, "until_at": after.until_at,
            "changed": changed,
        });
        show::json(context.out, &shown)?;
    } else {
        let until = after.until_at.map(|at| moment(at, now)).unwrap_or_default();
        let how = if changed { "is set to" } else { "is still" };
        writeln!(context.out, "demand set {name} {how} {count} of size {size} until {until}, version {version}")?;
    }
    Ok(Exit::Done)
}

/// Refuses a size that the policy does not have, and more sets than a run may read. The count of sets is not exact: of two calls at
/// the same moment, both may add the last allowed set.
async fn check(cluster: &Cluster, before: &DemandSet, size: &str, now: Time) -> anyhow::Result<()> {
    let control = cluster.store.control().await?;
    let most = DemandSet::MOST;
    if !before.applies(now) && control.wanted_sets(now).count() >= most {
        bail!(
            "the demand was not set: there are {most} demand sets, which is the most: one of count 0 ends after its --for"
        );
    }
    let (policy, _) = control.checked_policy()?;
    if !policy.has_size(size) {
        let known: Vec<&str> = policy.size.iter().map(|size| size.name.as_str()).collect();
        bail!("the demand was not set: the policy has no size {size:?}: it has {}", known.join(", "));
    }
    Ok(())
}

/// The lines about demand sets at the end of a list of jobs.
pub(crate) fn lines(next: Option<&NextRun>) -> Vec<String> {
    let sets = next.map(|next| next.plan.explained.sets.as_slice()).unwrap_or_default();
    sets.iter().map(|set| one_line(&set.line())).collect()
}
