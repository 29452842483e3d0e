//! `policy edit`: changes the stored policy in an editor.
//!
//! Guarantees: what is stored was checked as a whole, and is stored only if nobody stored another policy since it was read;
//! a text with mistakes is not lost: it can be edited again, or its file is kept.
//! Does not: keep comments. The stored policy has none.

use super::offers;
use super::policy_store::{as_toml, store_over};
use crate::console::{Context, Outcome, show};
use anyhow::{Context as _, bail};
use clap::Args;
use model::policy::Policy;
use std::path::Path;
use std::process::Command;

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

pub(super) async fn run(context: &mut Context<'_>, args: &EditArgs) -> anyhow::Result<Outcome> {
    let editor = args.visual.as_deref().filter(|visual| !visual.is_empty()).unwrap_or(&args.editor);
    let cluster = context.cluster().await?;
    let control = cluster.store.ingest_control().await?;
    let (policy, version) = control.checked_policy()?;
    let text = as_toml(version, policy.to_json())?;
    let file = tempfile::Builder::new().prefix("nodekeeper-policy-").suffix(".toml").tempfile()?;
    std::fs::write(file.path(), &text)?;
    let document = loop {
        open(editor, file.path())?;
        let edited = std::fs::read_to_string(file.path())?;
        if edited == text {
            writeln!(context.out, "nothing changed")?;
            return Ok(Outcome::Done);
        }
        match Policy::from_toml(&edited) {
            Ok(policy) => break policy.to_json(),
            Err(e) => writeln!(context.err, "nodekeeper: this is not usable: {}", show::error(&e.into()))?,
        }
        let answer = context.ask("Edit it again? [Y/n]")?;
        if answer.is_empty() || matches!(answer.trim(), "n" | "N" | "no" | "No") {
            let (_, path) = file.keep().context("the edited file cannot be kept")?;
            bail!("nothing was stored; the edited policy is in {}", path.display());
        }
    };
    if let Err(error) = store_over(context, &cluster, control.policy.as_ref(), &document).await {
        let (_, path) = file.keep().context("the edited file cannot be kept")?;
        writeln!(context.err, "the edited policy is in {}", path.display())?;
        return Err(error);
    }
    offers::ask_and_keep(context, &cluster).await?;
    Ok(Outcome::Done)
}

/// Opens the editor, as a shell would: the command may have arguments.
fn open(editor: &str, file: &Path) -> anyhow::Result<()> {
    let status = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(file).status();
    let status = status.with_context(|| format!("the editor {} cannot be started", show::one_line(editor)))?;
    if !status.success() {
        bail!("nothing was stored: the editor {} ended with {status}", show::one_line(editor));
    }
    Ok(())
}
