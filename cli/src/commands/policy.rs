//! `policy check`, `policy set`, `policy diff`, `policy show`.
//!
//! Guarantees: a policy is stored only if all of it is valid, and only if the stored version has not changed since the
//! printed difference was computed. The stored policy has every default filled in, so that a release with other
//! defaults changes nothing by itself.
//! Does not: decide what is valid; `model::policy` does.

use super::policy_edit::{self, EditArgs};
use super::policy_store::{as_stored, as_toml, difference, store_over, stored_as};
use super::{job_file, offers, strict_json};
use crate::console::{Context, Outcome, show};
use anyhow::Context as _;
use clap::{Args, Subcommand};
use model::control::{ControlKey, PolicyRow};
use model::policy::{Policy, reference};
use std::path::{Path, PathBuf};

#[derive(Subcommand, Clone, Debug)]
pub enum PolicyCommand {
    /// Check a file and name every mistake in it; needs no cluster
    Check(FileArgs),
    /// Store a file as the policy and print what changes
    Set(FileArgs),
    /// Change the stored policy in an editor
    Edit(EditArgs),
    /// Print what `set` would change; the exit code is 1 if that is something
    Diff(FileArgs),
    /// Print the stored policy, or with --defaults a policy to begin with
    #[command(
        after_help = "Example: nodekeeper policy show --defaults > policy.toml && nodekeeper policy check policy.toml"
    )]
    Show(ShowArgs),
}

/// The file of a policy.
#[derive(Args, Clone, Debug)]
pub struct FileArgs {
    /// The policy as TOML (or as JSON, if the name ends in .json)
    file: PathBuf,
}

/// `policy show`
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// Print every knob with its unit, meaning and default instead: a file that `check` and `set` take as it is; needs
    /// no cluster
    #[arg(long)]
    defaults: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "defaults")]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, command: &PolicyCommand) -> anyhow::Result<Outcome> {
    match command {
        PolicyCommand::Check(args) => {
            let policy = read(&args.file)?;
            let (sizes, max) = (
                show::several(policy.size.len() + policy.several.len(), "size"),
                show::several(policy.nodes.max, "node"),
            );
            writeln!(context.out, "{} is valid: {sizes}, at most {max}", args.file.display())?;
            Ok(Outcome::Done)
        }
        PolicyCommand::Set(args) => set(context, args).await,
        PolicyCommand::Edit(args) => policy_edit::run(context, args).await,
        PolicyCommand::Diff(args) => diff(context, args).await,
        PolicyCommand::Show(args) => print(context, args).await,
    }
}

/// Reads and checks a policy.
pub(crate) fn read(file: &Path) -> anyhow::Result<Policy> {
    let shown = file.display();
    let bytes = std::fs::read(file).with_context(|| format!("{shown} cannot be read"))?;
    let text = job_file::text(&bytes, &shown.to_string())?;
    let policy = if file.extension().is_some_and(|e| e == "json") {
        let document = strict_json::parse(text).with_context(|| format!("{shown} is not JSON"))?;
        Policy::from_json(&document)
    } else {
        Policy::from_toml(text)
    };
    policy.with_context(|| format!("{shown} is not usable"))
}

async fn set(context: &mut Context<'_>, args: &FileArgs) -> anyhow::Result<Outcome> {
    let document = read(&args.file)?.to_json();
    let cluster = context.cluster().await?;
    let control = cluster.store.ingest_control().await?;
    let key = ControlKey::Policy.to_string();
    if control.policy.is_none() && control.unreadable.iter().any(|entry| entry.key == key) {
        // The stored row cannot be read, so there is nothing to compare with.
        let after = cluster.store.replace_unreadable(&PolicyRow::of_document(&document)).await;
        stored_as(context, &cluster, after, "over a row that could not be read").await?;
    } else {
        store_over(context, &cluster, control.policy.as_ref(), &document).await?;
    }
    offers::ask_and_keep(context, &cluster).await?;
    Ok(Outcome::Done)
}

async fn diff(context: &mut Context<'_>, args: &FileArgs) -> anyhow::Result<Outcome> {
    let document = read(&args.file)?.to_json();
    let before = context.cluster().await?.store.ingest_control().await?.policy;
    let changes = difference(&as_stored(before.as_ref()), &document);
    for line in &changes {
        writeln!(context.out, "{line}")?;
    }
    Ok(Outcome::done_if(changes.is_empty()))
}

async fn print(context: &mut Context<'_>, args: &ShowArgs) -> anyhow::Result<Outcome> {
    if args.defaults {
        write!(context.out, "{}", reference())?;
        return Ok(Outcome::Done);
    }
    let cluster = context.cluster().await?;
    let (policy, version) = cluster.store.ingest_control().await?.checked_policy()?;
    let document = policy.to_json();
    if args.json {
        show::json(context.out, &document)?;
    } else {
        write!(context.out, "{}", as_toml(version, document)?)?;
    }
    Ok(Outcome::Done)
}
