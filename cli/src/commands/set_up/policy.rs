//! `policy check`, `policy set`, `policy show`.
//!
//! Guarantees: a policy is stored only if all of it is valid, and only if the stored version has not changed since the
//! printed difference was computed. A file that `policy show` made from another version is refused. The stored policy has every
//! default filled in, so that a release with other defaults changes nothing by itself.
//! If EC2 can be asked from here, the functions know at once what the sizes of a stored policy mean, and the quotas of the account.
//! Does not: decide what is valid; `model::policy` does. Keep comments: the stored policy has none.

use crate::changes::operate::record_event;
use crate::commands::submit::strict_json;
use crate::console::{Cluster, Context, Exit, NoAnswer, UsageError, bounded, is_yes, show};
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use model::control::PolicyRow;
use model::explain::name_of;
use model::policy::{MAX_SHARES, Size, reference};
use model::{
    ActionName, Arch, Catalogue, CataloguePart, ControlKey, JobId, JobSummary, Offers, Policy, Span, Subject, Time,
};
use runtime::catalogue;
use runtime::observation::Observation;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use store::WriteError;

#[derive(Subcommand, Clone, Debug)]
pub enum PolicyCommand {
    /// Check a file and name every mistake in it; with a cluster also what `set` would change, and what EC2 does not have
    Check(FileArgs),
    /// Store a file as the policy and print what changes
    Set(SetPolicyArgs),
    /// Print the stored policy, or with --defaults a policy to begin with
    Show(ShowPolicyArgs),
}

/// The file of a policy.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    /// The policy as TOML or JSON; - is standard input
    file: PathBuf,
}

/// `policy set`
#[derive(Args, Clone, Debug)]
pub struct SetPolicyArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Do not ask about waiting jobs that would be rejected
    #[arg(long, short = 'y')]
    yes: bool,
}

/// `policy show`
#[derive(Args, Clone, Debug)]
pub struct ShowPolicyArgs {
    /// Print every knob with its unit, meaning and default instead: a file that `check` and `set` accept as it is; needs
    /// no cluster
    #[arg(long)]
    defaults: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "defaults")]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, command: &PolicyCommand) -> anyhow::Result<Exit> {
    match command {
        PolicyCommand::Check(args) => check(context, args).await,
        PolicyCommand::Set(args) => set(context, args).await,
        PolicyCommand::Show(args) => print(context, args).await,
    }
}

/// The most bytes of a policy with its defaults: an item of DynamoDB has at most 400 KB.
const MOST_STORED: usize = 350_000;
/// How many jobs are named that would be rejected.
const NAMED: usize = 3;
/// How long a share is remembered that the policy does not have any more.
const FORGOTTEN_AFTER: Span = Span::from_s(86_400);
/// How the file of a shown policy begins, before the number of the version.
const VERSION: &str = "# version ";

pub(crate) fn read(file: &Path) -> anyhow::Result<Policy> {
    parse(&bounded::file(file)?, file)
}

/// The text of a file, or of standard input if it is `-`.
fn text_of(context: &mut Context<'_>, file: &Path) -> anyhow::Result<String> {
    if file.as_os_str() != "-" {
        return bounded::file(file);
    }
    let bytes = bounded::bytes(&mut *context.input, "standard input", bounded::MOST)?;
    Ok(bounded::text(&bytes, "standard input")?.to_owned())
}

fn parse(text: &str, file: &Path) -> anyhow::Result<Policy> {
    let shown = file.display();
    let policy = if file.extension().is_some_and(|e| e == "json") || text.trim_start().starts_with('{') {
        let document = strict_json::parse(text).with_context(|| format!("{shown} is not JSON"))?;
        Policy::from_json(&document)
    } else {
        Policy::from_toml(text)
    };
    let policy = policy.with_context(|| format!("{shown} is not usable"))?;
    let bytes = policy.to_json().to_string().len();
    if bytes > MOST_STORED {
        let why = format!("{shown} has {bytes} bytes with its defaults, and at most {MOST_STORED} can be stored");
        bail!(UsageError(format!("{why}: name several types in one size, and members by patterns")));
    }
    Ok(policy)
}

/// Checks a file. If a cluster can be asked from here, says what `set` would change in its policy, and what EC2 does not have.
async fn check(context: &mut Context<'_>, args: &FileArgs) -> anyhow::Result<Exit> {
    let policy = parse(&text_of(context, &args.file)?, &args.file)?;
    let sizes = show::several(policy.size.len() + policy.several.len(), "size");
    let max = show::several(policy.nodes.max, "node");
    writeln!(context.out, "{} is valid: {sizes}, at most {max}", args.file.display())?;
    let cluster = context.cluster().await;
    if let Ok(cluster) = &cluster
        && let Ok(Some(stored)) = cluster.store.ingest_control().await.map(|control| control.policy)
    {
        for line in difference(&as_stored(Some(&stored)), &policy.to_json()) {
            writeln!(context.out, "{line}")?;
        }
        if let Some(rejected) = rejected(cluster, &policy, context.now()).await {
            writeln!(context.err, "{rejected}")?;
        }
    }
    let offered = match &cluster {
        Ok(cluster) => ask(cluster, &policy, context.now()).await.ok(),
        Err(_) => None,
    };
    let is_compared = offered.is_some();
    let policy = policy.with_catalogue(offered.unwrap_or_default());
    for line in cautions(&policy) {
        writeln!(context.err, "{line}")?;
    }
    if is_compared {
        remark(context, &policy)?;
    } else {
        writeln!(context.err, "not compared with what EC2 has: no account can be asked from here")?;
    }
    Ok(Exit::Done)
}

/// Asks EC2 about all sizes of a policy. Sizes of one type are asked about, too, to compare what the policy says.
pub(super) async fn ask(cluster: &Cluster, policy: &Policy, now: Time) -> anyhow::Result<Catalogue> {
    let offers: &dyn Offers =
        cluster.cloud.offers().ok_or_else(|| anyhow::anyhow!("this cloud does not say what it offers"))?;
    let mut all = policy.clone();
    let typed: Value = policy.size.iter().filter(|size| !size.is_derived()).map(as_several).collect();
    // It is refused only if there is none.
    let asked = Policy::from_json(&json!({"launch": {"template": "any"}, "size": typed}));
    all.several.extend(asked.map(|asked| asked.several).unwrap_or_default());
    let read = catalogue::read(offers, &all, &Catalogue::default(), &CataloguePart::ALL, now).await;
    Ok(Catalogue { wanted: policy.catalogue_wanted(), ..read })
}

/// A size of one type as one of several types, which this type alone meets, whatever EC2 says of it.
fn as_several(size: &Size) -> Value {
    json!({
        "name": size.name, "instance_types": [size.instance_type], "arch": size.kind.arch, "market": size.market,
        "fallback": size.fallback, "gpus": [0, 1 << 20], "generation": "any", "burstable": true, "bare_metal": true,
    })
}

/// What a policy can be used without, and most clusters cannot.
pub(super) fn cautions(policy: &Policy) -> Vec<String> {
    let (launch, agent) = (&policy.launch, &policy.agent);
    let archs = policy.size.iter().map(|size| size.kind.arch).chain(policy.several.iter().map(|size| size.arch));
    let has_agent = |arch| if arch == Arch::Arm64 { agent.arm64.is_some() } else { agent.x86_64.is_some() };
    let without: BTreeSet<Arch> = archs.filter(|arch| !has_agent(*arch)).collect();
    let without = without.into_iter().filter(|_| !launch.user_data.contains("agent")).map(|arch| {
        format!("no agent is named for {arch}: nodes register only if their image starts one; `nodekeeper up` names one in [agent]")
    });
    let zones: BTreeSet<_> = launch.subnets.iter().map(|id| policy.catalogue.zone_of(id)).collect();
    let is_one_zone = launch.subnets.len() == 1 || (zones.len() == 1 && !zones.contains(&None));
    let zone = "all subnets are in one zone: EC2 has more to give if launch.subnets has one of each zone";
    without.chain(is_one_zone.then(|| zone.to_owned())).collect()
}

/// Which waiting jobs a run rejects with this policy, and not with the stored one. `None` if there is none, or it cannot be known.
async fn rejected(cluster: &Cluster, policy: &Policy, now: Time) -> Option<String> {
    let seen = Observation::read(&cluster.store, cluster.cloud.as_ref(), now).await.ok()?;
    let rejects = |seen: &Observation| {
        let rows = poll_and_scale::plan(seen, now).answer().actions.into_iter();
        rows.filter(|row| row.action == ActionName::Reject).filter_map(|row| row.job_id).collect::<BTreeSet<JobId>>()
    };
    let before = rejects(&seen);
    let after = rejects(&Observation { policy: policy.clone(), ..seen.clone() });
    let mut jobs: Vec<&JobSummary> = seen.jobs.iter().collect();
    jobs.retain(|job| after.contains(&job.job_id) && !before.contains(&job.job_id));
    let names: Vec<String> = jobs.iter().take(NAMED).map(|job| name_of(job)).collect();
    let more = if jobs.len() > NAMED { " and others" } else { "" };
    let text = || {
        let count = show::several(jobs.len(), "waiting job");
        format!("the next run would reject {count}, which this policy never lets run: {}{more}", names.join(", "))
    };
    (!jobs.is_empty()).then(text)
}

async fn set(context: &mut Context<'_>, args: &SetPolicyArgs) -> anyhow::Result<Exit> {
    let (yes, FileArgs { file }) = (args.yes, &args.file);
    let text = text_of(context, file)?;
    let policy = parse(&text, file)?;
    let document = policy.to_json();
    let cluster = context.cluster().await?;
    let control = cluster.store.ingest_control().await?;
    let made_from: Option<u64> = text.lines().next().and_then(|line| line.strip_prefix(VERSION)?.trim().parse().ok());
    let stored = control.policy.as_ref().map(|row| row.version.number());
    if let (Some(from), Some(stored)) = (made_from.filter(|from| Some(*from) != stored), stored) {
        let why = format!("the file was made from version {from}, and version {stored} is stored");
        bail!(UsageError(format!("{why}: take out its first line to store it all the same")));
    }
    if !yes
        && let Some(rejected) = rejected(&cluster, &policy, context.now()).await
        && !is_yes(&context.ask(&format!("{rejected}. Store it all the same? [y/N]"))?)
    {
        writeln!(context.err, "\nnothing was stored: answer y, or give --yes")?;
        return Ok(Exit::Failed);
    }
    let key = ControlKey::Policy.to_string();
    if control.policy.is_none() && control.unreadable.iter().any(|entry| entry.key == key) {
        // The stored row cannot be read, so there is nothing to compare with.
        let after = cluster.store.replace_unreadable(&PolicyRow::of_document(&document, None, context.now())).await;
        stored_as(context, &cluster, after, "over a row that could not be read").await?;
    } else {
        store_over(context, &cluster, control.policy.as_ref(), &document).await?;
    }
    ask_and_keep(context, &cluster).await?;
    Ok(Exit::Done)
}

async fn print(context: &mut Context<'_>, args: &ShowPolicyArgs) -> anyhow::Result<Exit> {
    if args.defaults {
        write!(context.out, "{}", reference())?;
        return Ok(Exit::Done);
    }
    let cluster = context.cluster().await?;
    let (policy, version) = cluster.store.ingest_control().await?.checked_policy()?;
    let document = policy.to_json();
    if args.json {
        show::json(context.out, &document)?;
    } else {
        write!(context.out, "{}", as_toml(version, document)?)?;
    }
    Ok(Exit::Done)
}

/// What happens if EC2 cannot be asked from here.
const LATER: &str = "clean-stale-records asks EC2 in its next run";

/// Asks EC2 what the stored policy needs to know, and stores the answers for the functions. So the next run need not wait for
/// clean-stale-records.
pub(super) async fn ask_and_keep(context: &mut Context<'_>, cluster: &Cluster) -> anyhow::Result<()> {
    let control = cluster.store.control().await?;
    let (policy, _) = control.checked_policy()?;
    let Some(offers) = cluster.cloud.offers() else {
        if !policy.several.is_empty() {
            writeln!(context.err, "what EC2 offers is not known from here: {LATER}")?;
        }
        return Ok(());
    };
    // All parts are read, due or not: the person may have made a subnet or a reservation just before.
    let read = catalogue::read(offers, &policy, &policy.catalogue, &policy.parts_wanted(), context.now()).await;
    if let Err(error) = catalogue::keep(&cluster.store, &control, &read).await {
        writeln!(context.err, "what EC2 offers was not stored: {error}; {LATER}")?;
        return Ok(());
    }
    let policy = cluster.store.control().await?.checked_policy()?.0;
    remark(context, &policy).map(drop)
}

/// Prints what is wrong with the sizes of a policy, and what else a person may want to know of them. Returns whether nothing is
/// wrong.
pub(super) fn remark(context: &mut Context<'_>, policy: &Policy) -> anyhow::Result<bool> {
    let faults = catalogue::faults(policy, context.now());
    for says in faults.iter().map(|fault| fault.text.clone()).chain(catalogue::remarks(policy)) {
        writeln!(context.err, "{says}")?;
    }
    Ok(faults.is_empty())
}

/// The stored policy as this release reads it. An older release may have stored it.
fn as_stored(row: Option<&PolicyRow>) -> Value {
    let stored: Value = row.and_then(|row| serde_json::from_str(&row.document).ok()).unwrap_or_default();
    Policy::from_json(&stored).map_or(stored, |p| p.to_json())
}

/// Prints the changes, and stores this policy if the stored one is still `before`.
pub(super) async fn store_over(
    context: &mut Context<'_>,
    cluster: &Cluster,
    before: Option<&PolicyRow>,
    document: &Value,
) -> anyhow::Result<()> {
    let stored = as_stored(before);
    if stored == *document {
        let version = before.map_or(0, |row| row.version.number());
        return Ok(writeln!(context.out, "nothing changed: version {version} is the same")?);
    }
    let changes = difference(&stored, document);
    for line in changes.iter().filter(|_| before.is_some()) {
        writeln!(context.out, "{line}")?;
    }
    let mut after = PolicyRow::of_document(document, before, context.now());
    forget(cluster, &mut after, context.now()).await?;
    if after.shares.len() > MAX_SHARES {
        let with =
            format!("with those of the last day and those that have jobs, these are {} shares", after.shares.len());
        bail!(UsageError(format!("{with}: at most {MAX_SHARES} are possible; keep the name of an old one")));
    }
    let written = cluster.store.write(before, &after, Vec::new()).await;
    let how = before.map_or("the first policy".to_owned(), |_| show::brief(&changes.join("; ")));
    stored_as(context, cluster, written, &how).await
}

/// Forgets the shares that the policy has lacked for so long that no command has an older one in hand, and that no job is of.
async fn forget(cluster: &Cluster, row: &mut PolicyRow, now: Time) -> anyhow::Result<()> {
    let is_old = |since: &Time| now.since(*since) >= FORGOTTEN_AFTER;
    if !row.gone.values().any(is_old) {
        return Ok(());
    }
    // A job that moves between the lists meanwhile is in one of the two reads.
    let (placed, all) = (cluster.store.placed().await?, cluster.store.queue_listed(usize::MAX).await?);
    let is_read = placed.unreadable.is_empty() && all.unreadable.is_empty();
    let kept: BTreeSet<&String> = placed.rows.iter().chain(&all.jobs).filter_map(|job| job.share.as_ref()).collect();
    for (name, _) in row.entry.gone.extract_if(.., |name, since| is_read && is_old(since) && !kept.contains(name)) {
        row.entry.shares.remove(&name);
    }
    Ok(())
}

/// Prints the stored version, and stores the event.
async fn stored_as(
    context: &mut Context<'_>,
    cluster: &Cluster,
    written: Result<PolicyRow, WriteError>,
    how: &str,
) -> anyhow::Result<()> {
    let after = match written {
        Err(WriteError::Conflict(_)) => {
            bail!(NoAnswer("the policy was not stored: someone else stored one meanwhile: try again".to_owned()))
        }
        other => other?,
    };
    let version = after.version.number();
    writeln!(context.out, "stored as version {version}")?;
    let reason = format!("{}: version {version}, {how}", cluster.by().await?);
    record_event(cluster, &Subject::Cluster, ActionName::PolicySet, &reason, context.now()).await
}

/// The text of a stored policy as a file. TOML has no null.
fn as_toml(version: u64, document: Value) -> anyhow::Result<String> {
    Ok(format!("{VERSION}{version}\n{}", toml::to_string_pretty(&show::without_nulls(document))?))
}

/// The changes from one policy to another, one line for each changed knob.
fn difference(before: &Value, after: &Value) -> Vec<String> {
    let (mut old, mut new) = (BTreeMap::new(), BTreeMap::new());
    knobs("", before, &mut old);
    knobs("", after, &mut new);
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let line = |path: &String| match (old.get(path), new.get(path)) {
        (Some(was), Some(is)) if was != is => Some(format!("~ {path}: {was} -> {is}")),
        (Some(was), None) => Some(format!("- {path}: {was}")),
        (None, Some(is)) => Some(format!("+ {path}: {is}")),
        _ => None,
    };
    paths.into_iter().filter_map(line).collect()
}

/// Collects every knob by its path. Sizes and shares have their names as keys, so that another order of them is no change.
fn knobs(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                knobs(&below(name), value, found);
            }
        }
        Value::Array(list) if matches!(path, "size" | "share") => {
            for one in list {
                knobs(&below(one.get("name").and_then(Value::as_str).unwrap_or("?")), one, found);
            }
        }
        Value::Null => {}
        other => _ = found.insert(path.to_owned(), other.to_string()),
    }
}
