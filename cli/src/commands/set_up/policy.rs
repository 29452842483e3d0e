//! `policy check`, `policy set`, `policy edit`, `policy diff`, `policy show`.
//!
//! Guarantees: a policy is stored only if all of it is valid, and only if the stored version has not changed since the
//! printed difference was computed. The stored policy has every default filled in, so that a release with other
//! defaults changes nothing by itself. An edited text that is not stored is not lost: its file is kept.
//! If EC2 can be asked from here, the functions know at once what the sizes of a stored policy mean, and the quotas of the account.
//! Does not: decide what is valid; `model::policy` does. Keep comments: the stored policy has none.

use crate::changes::operate::record_event;
use crate::commands::submit::strict_json;
use crate::console::{Cluster, Context, Exit, UsageError, bounded, show};
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use model::control::PolicyRow;
use model::policy::{MAX_SHARES, Size, reference};
use model::{ActionName, Arch, Catalogue, CataloguePart, ControlKey, Offers, Policy, Subject, Time};
use runtime::catalogue;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use store::WriteError;

#[derive(Subcommand, Clone, Debug)]
pub enum PolicyCommand {
    /// Check a file and name every mistake in it; if EC2 can be asked, also what it does not have
    Check(FileArgs),
    /// Store a file as the policy and print what changes
    Set(FileArgs),
    /// Change the stored policy in an editor
    Edit(EditArgs),
    /// Print what `set` would change; the exit code is 1 if there is a change
    Diff(FileArgs),
    /// Print the stored policy, or with --defaults a policy to begin with
    Show(ShowPolicyArgs),
}

/// The file of a policy.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    /// The policy as TOML (or as JSON, if the name ends in .json)
    file: PathBuf,
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

/// `policy edit`
#[derive(Args, Clone, Debug)]
pub struct EditArgs {
    /// The editor: a command that takes a file. By default VISUAL, then EDITOR, then vi
    #[arg(long, env = "VISUAL", hide_env_values = true)]
    visual: Option<String>,
    /// As --visual, if that is not given
    #[arg(long, env = "EDITOR", hide_env_values = true, default_value = "vi")]
    editor: String,
}

pub(crate) async fn run(context: &mut Context<'_>, command: &PolicyCommand) -> anyhow::Result<Exit> {
    match command {
        PolicyCommand::Check(args) => check(context, args).await,
        PolicyCommand::Set(args) => set(context, args).await,
        PolicyCommand::Edit(args) => edit(context, args).await,
        PolicyCommand::Diff(args) => diff(context, args).await,
        PolicyCommand::Show(args) => print(context, args).await,
    }
}

pub(crate) fn read(file: &Path) -> anyhow::Result<Policy> {
    let (shown, text) = (file.display(), bounded::file(file)?);
    let policy = if file.extension().is_some_and(|e| e == "json") {
        let document = strict_json::parse(&text).with_context(|| format!("{shown} is not JSON"))?;
        Policy::from_json(&document)
    } else {
        Policy::from_toml(&text)
    };
    policy.with_context(|| format!("{shown} is not usable"))
}

/// Checks a file. If EC2 can be asked from here, its answers are compared, too.
async fn check(context: &mut Context<'_>, args: &FileArgs) -> anyhow::Result<Exit> {
    let policy = read(&args.file)?;
    let sizes = show::several(policy.size.len() + policy.several.len(), "size");
    let max = show::several(policy.nodes.max, "node");
    writeln!(context.out, "{} is valid: {sizes}, at most {max}", args.file.display())?;
    let offered = match context.cluster().await {
        Ok(cluster) => ask(&cluster, &policy, context.now()).await,
        Err(error) => Err(error),
    };
    let is_compared = offered.is_ok();
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
    let has_agent = |arch| match arch {
        Arch::X86_64 => agent.x86_64.is_some(),
        Arch::Arm64 => agent.arm64.is_some(),
    };
    let without: BTreeSet<Arch> = archs.filter(|arch| !has_agent(*arch)).collect();
    let without = without.into_iter().filter(|_| !launch.user_data.contains("agent")).map(|arch| {
        format!("no agent is named for {arch}: nodes register only if their image starts one; `nodekeeper up` names one in [agent]")
    });
    let zones: BTreeSet<_> = launch.subnets.iter().map(|id| policy.catalogue.zone_of(id)).collect();
    let is_one_zone = launch.subnets.len() == 1 || (zones.len() == 1 && !zones.contains(&None));
    let zone = "all subnets are in one zone: EC2 has more to give if launch.subnets has one of each zone";
    without.chain(is_one_zone.then(|| zone.to_owned())).collect()
}

async fn set(context: &mut Context<'_>, args: &FileArgs) -> anyhow::Result<Exit> {
    let document = read(&args.file)?.to_json();
    let cluster = context.cluster().await?;
    let control = cluster.store.ingest_control().await?;
    let key = ControlKey::Policy.to_string();
    if control.policy.is_none() && control.unreadable.iter().any(|entry| entry.key == key) {
        // The stored row cannot be read, so there is nothing to compare with.
        let after = cluster.store.replace_unreadable(&PolicyRow::of_document(&document, None)).await;
        stored_as(context, &cluster, after, "over a row that could not be read").await?;
    } else {
        store_over(context, &cluster, control.policy.as_ref(), &document).await?;
    }
    ask_and_keep(context, &cluster).await?;
    Ok(Exit::Done)
}

async fn diff(context: &mut Context<'_>, args: &FileArgs) -> anyhow::Result<Exit> {
    let document = read(&args.file)?.to_json();
    let before = context.cluster().await?.store.ingest_control().await?.policy;
    let changes = difference(&as_stored(before.as_ref()), &document);
    for line in &changes {
        writeln!(context.out, "{line}")?;
    }
    Ok(Exit::done_if(changes.is_empty()))
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

async fn edit(context: &mut Context<'_>, args: &EditArgs) -> anyhow::Result<Exit> {
    let editor = args.visual.as_deref().filter(|visual| !visual.is_empty()).unwrap_or(&args.editor);
    let cluster = context.cluster().await?;
    let control = cluster.store.ingest_control().await?;
    let (policy, version) = control.checked_policy()?;
    let text = as_toml(version, policy.to_json())?;
    let file = tempfile::Builder::new().prefix("nodekeeper-policy-").suffix(".toml").tempfile()?;
    std::fs::write(file.path(), &text)?;
    open(editor, file.path())?;
    let edited = bounded::file(file.path())?;
    if edited == text {
        writeln!(context.out, "nothing changed")?;
        return Ok(Exit::Done);
    }
    let stored = match Policy::from_toml(&edited) {
        Ok(policy) => store_over(context, &cluster, control.policy.as_ref(), &policy.to_json()).await,
        Err(error) => Err(error.into()),
    };
    if let Err(error) = stored {
        let (_, path) = file.keep().context("the edited file cannot be kept")?;
        let path = path.display();
        return Err(error.context(format!("the edited policy is in {path}, for `nodekeeper policy set {path}`")));
    }
    ask_and_keep(context, &cluster).await?;
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

/// Opens the editor by a shell, because the command may have arguments.
fn open(editor: &str, file: &Path) -> anyhow::Result<()> {
    let status = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(file).status();
    let status = status.with_context(|| format!("the editor {} cannot be started", show::one_line(editor)))?;
    if !status.success() {
        bail!("nothing was stored: the editor {} ended with {status}", show::one_line(editor));
    }
    Ok(())
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
    if before.is_some() {
        for line in &changes {
            writeln!(context.out, "{line}")?;
        }
    }
    let after = PolicyRow::of_document(document, before);
    if after.shares.len() > MAX_SHARES {
        bail!(UsageError(format!(
            "with those that it had, these are {} shares, and jobs may wait in each: at most {MAX_SHARES} are possible; keep the \
             name of an old one in place of a new one",
            after.shares.len()
        )));
    }
    let written = cluster.store.write(before, &after, Vec::new()).await;
    stored_as(context, cluster, written, &format!("{} knobs changed", changes.len())).await
}

/// Prints the stored version, and stores the event.
async fn stored_as(
    context: &mut Context<'_>,
    cluster: &Cluster,
    written: Result<PolicyRow, WriteError>,
    how: &str,
) -> anyhow::Result<()> {
    let after = match written {
        Err(WriteError::Conflict(_)) => bail!(
            "the policy was not stored: someone else stored one meanwhile: look at it (`nodekeeper policy show`) and try again"
        ),
        other => other?,
    };
    let version = after.version.number();
    writeln!(context.out, "stored as version {version}")?;
    let reason = format!("{}: version {version}, {how}", cluster.by().await?);
    record_event(cluster, &Subject::Cluster, ActionName::PolicySet, &reason, context.now()).await
}

/// The text of a stored policy as a file. TOML has no null.
fn as_toml(version: u64, document: Value) -> anyhow::Result<String> {
    Ok(format!("# version {version}\n{}", toml::to_string_pretty(&show::without_nulls(document))?))
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

/// Collects every knob by its path. Sizes have their names as keys, so that another order of sizes is no change.
fn knobs(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                knobs(&below(name), value, found);
            }
        }
        Value::Array(list) if path == "size" => {
            for size in list {
                knobs(&below(size.get("name").and_then(Value::as_str).unwrap_or("?")), size, found);
            }
        }
        Value::Null => {}
        other => _ = found.insert(path.to_owned(), other.to_string()),
    }
}
