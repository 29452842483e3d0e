//! Finds the program of the agent beside this one, and builds it first in a source tree.
//!
//! Guarantees: in a source tree one command is enough, and machines run the current sources. Only what is needed is built, and the
//! progress of cargo is visible.
//! Does not: install anything, or rebuild this program.

use crate::local::terminal::say;
use anyhow::{bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

const AGENT: &str = "nodekeeper-agent";
/// What `cargo run` sets for this program, and build scripts look at: that of ring. With these set in this build and not set in that of
/// `cargo run`, each of the two would compile ring anew, and all crates above it.
const OF_CARGO_RUN: &str = "CARGO_MANIFEST_DIR CARGO_PKG_NAME CARGO_PKG_VERSION_MAJOR CARGO_PKG_VERSION_MINOR \
    CARGO_PKG_VERSION_PATCH CARGO_PKG_VERSION_PRE";

/// The agent beside `exe`. It is built first if `may_build` is set and `exe` is in the target directory of a workspace.
pub(in crate::local) async fn agent(exe: &Path, may_build: bool) -> anyhow::Result<PathBuf> {
    let dir = exe.parent().unwrap_or(Path::new("."));
    if let Some((root, target, option)) = source_tree(dir).filter(|_| may_build) {
        say(&format!("cargo checks that {AGENT}, which machines run, is up to date: the first build takes minutes"));
        build(root, target, option).await?;
    }
    let agent = dir.join(AGENT);
    ensure!(
        agent.is_file(),
        "nodekeeper-agent is not beside {}: build all programs with `cargo build --workspace --bins` and start the nodekeeper \
         built with them",
        exe.display()
    );
    Ok(agent)
}

/// The root of the workspace in which this program was built, its target directory, and cargo's option for its profile. `dir`
/// must be `{root}/target/{debug or release}`, and the root must have a workspace.
fn source_tree(dir: &Path) -> Option<(&Path, &Path, Option<&'static str>)> {
    let option = match dir.file_name()?.to_str()? {
        "debug" => None,
        "release" => Some("--release"),
        _ => return None,
    };
    let target = dir.parent()?;
    let root = target.parent()?;
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).ok()?;
    manifest.lines().any(|line| line.trim() == "[workspace]").then_some((root, target, option))
}

async fn build(root: &Path, target: &Path, option: Option<&str>) -> anyhow::Result<()> {
    let mut cargo = cargo_build(target, option);
    // Standard error is inherited: cargo shows its progress there.
    let why = match cargo.current_dir(root).stdin(Stdio::null()).kill_on_drop(true).status().await {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    bail!(
        "`cargo build --workspace --bin {AGENT}` in {} failed ({why}): see its messages above, or use the binaries as they are with --no-build",
        root.display()
    )
}

/// `--workspace --bin` builds one binary, but with the features of the whole workspace. Without `--workspace`, cargo would
/// compile the AWS SDK again.
fn cargo_build(target: &Path, option: Option<&str>) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--workspace", "--bin", AGENT]).args(option).arg("--target-dir").arg(target);
    for name in OF_CARGO_RUN.split(' ') {
        cargo.env_remove(name);
    }
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_is_not_there_is_said_and_nothing_is_built_outside_of_a_source_tree() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("nodekeeper");
        let error = agent(&exe, true).await.unwrap_err().to_string();
        assert!(error.contains(AGENT) && error.contains("cargo build --workspace --bins"), "{error}");
        std::fs::write(dir.path().join(AGENT), "").unwrap();
        assert_eq!(agent(&exe, true).await.unwrap(), dir.path().join(AGENT));
    }

    #[test]
    fn the_build_does_not_see_what_cargo_run_sets() {
        let cargo = cargo_build(Path::new("target"), None);
        let removed: Vec<_> =
            cargo.as_std().get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect();
        assert!(
            ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"].iter().all(|name| removed.contains(&std::ffi::OsStr::new(name))),
            "{removed:?}"
        );
    }

    #[test]
    fn a_source_tree_is_a_workspace_around_the_target_directory() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("target/release");
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(source_tree(&dir), None);
        std::fs::write(root.path().join("Cargo.toml"), "[workspace]\n").unwrap();
        let target = root.path().join("target");
        assert_eq!(source_tree(&dir), Some((root.path(), target.as_path(), Some("--release"))));
        assert_eq!(source_tree(&target), None);
    }
}
