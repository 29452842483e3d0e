//! The agent's program: found beside this one, and built first in a source tree.
//!
//! Guarantees: in a source tree one command is enough, and machines run the current sources; only what is needed is built, and
//! cargo's progress is visible.
//! Does not: install anything, or rebuild this program.

use super::terminal::say;
use anyhow::{bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

const AGENT: &str = "nodekeeper-agent";

/// Whether the program is built first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    InSourceTree,
    Never,
}

/// The agent beside `exe`. It is built if that is the target directory of a workspace.
pub(super) async fn agent(exe: &Path, build: Build) -> anyhow::Result<PathBuf> {
    let dir = exe.parent().unwrap_or(Path::new("."));
    if let (Build::InSourceTree, Some(tree)) = (build, SourceTree::of(dir)) {
        say(&format!("cargo checks that {AGENT}, which machines run, is up to date: the first build takes minutes"));
        tree.build().await?;
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

/// A workspace that this program was built in.
struct SourceTree<'a> {
    root: &'a Path,
    target: &'a Path,
    is_release: bool,
}

impl<'a> SourceTree<'a> {
    /// `dir` must be `{root}/target/{debug or release}`, and the root must have a workspace.
    fn of(dir: &'a Path) -> Option<Self> {
        let is_release = match dir.file_name()?.to_str()? {
            "debug" => false,
            "release" => true,
            _ => return None,
        };
        let target = dir.parent()?;
        let root = target.parent()?;
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).ok()?;
        manifest.lines().any(|line| line.trim() == "[workspace]").then_some(Self { root, target, is_release })
    }

    /// `--workspace --bin` builds one binary, but with the features of the whole workspace. Without `--workspace`, cargo would
    /// compile the AWS SDK again.
    async fn build(&self) -> anyhow::Result<()> {
        let arguments = ["build", "--workspace", "--bin", AGENT, "--release"];
        let arguments = arguments.get(..if self.is_release { 5 } else { 4 }).unwrap_or_default();
        let mut cargo = Command::new("cargo");
        cargo.args(arguments).arg("--target-dir").arg(self.target).current_dir(self.root);
        // Standard error is inherited: cargo shows its progress there.
        let why = match cargo.stdin(Stdio::null()).kill_on_drop(true).status().await {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        bail!(
            "`cargo {}` in {} failed ({why}): see its messages above, or use the binaries as they are with --no-build",
            arguments.join(" "),
            self.root.display()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_agent_that_is_not_there_is_said_and_nothing_is_built_outside_of_a_source_tree() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("nodekeeper");
        let error = agent(&exe, Build::InSourceTree).await.unwrap_err().to_string();
        assert!(error.contains(AGENT) && error.contains("cargo build --workspace --bins"), "{error}");
        std::fs::write(dir.path().join(AGENT), "").unwrap();
        assert_eq!(agent(&exe, Build::InSourceTree).await.unwrap(), dir.path().join(AGENT));
    }

    #[test]
    fn a_source_tree_is_a_workspace_around_the_target_directory() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("target/release");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(SourceTree::of(&dir).is_none());
        std::fs::write(root.path().join("Cargo.toml"), "[workspace]\n").unwrap();
        assert!(SourceTree::of(&dir).is_some_and(|tree| tree.is_release));
        assert!(SourceTree::of(&root.path().join("target")).is_none());
    }
}
