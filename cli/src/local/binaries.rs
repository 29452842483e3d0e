//! The binaries of the functions and the agent: found beside this program, and built first in a
//! source tree.
//!
//! Guarantees: in a source tree one command is enough, and it runs the current sources; only what
//! is needed is built, and cargo's progress is visible.
//! Does not: install anything, or rebuild this program.

use super::error::LocalError;
use super::terminal::say;
use model::functions::FUNCTIONS;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// The agent's binary.
const AGENT: &str = "nodekeeper-agent";

/// Whether binaries are built first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Build {
    InSourceTree,
    Never,
}

/// Which binaries are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    FunctionsAndAgent,
    /// The functions run elsewhere.
    AgentOnly,
}

impl Needed {
    fn names(self) -> Vec<&'static str> {
        let functions = FUNCTIONS.iter().map(|function| function.name).filter(|_| self != Self::AgentOnly);
        functions.chain([AGENT]).collect()
    }
}

/// The directory that has all needed binaries.
#[derive(Clone, Debug)]
pub(super) struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// Builds the needed binaries if `exe` is in the target directory of a workspace, and checks
    /// that they exist.
    pub(super) async fn find(exe: &Path, build: Build, needed: Needed) -> Result<Self, LocalError> {
        let dir = exe.parent().unwrap_or(Path::new(".")).to_owned();
        let names = needed.names();
        let missing = |names: &[&'static str]| -> Vec<&'static str> {
            names.iter().copied().filter(|name| !dir.join(name).is_file()).collect()
        };
        if let (Build::InSourceTree, Some(tree)) = (build, SourceTree::of(&dir)) {
            say(&announcement(&names, &missing(&names)));
            tree.build(&names).await?;
        }
        let missing = missing(&names);
        if missing.is_empty() { Ok(Self { dir }) } else { Err(LocalError::NoBinaries { missing, exe: exe.to_owned() }) }
    }

    /// The binary of a function.
    pub(super) fn function(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The agent's binary.
    pub(super) fn agent(&self) -> PathBuf {
        self.dir.join(AGENT)
    }
}

/// The line printed before a build. The first build takes minutes.
fn announcement(names: &[&str], missing: &[&str]) -> String {
    let names = names.join(", ");
    if missing.is_empty() {
        format!("cargo checks that the programs run by `nodekeeper local` are up to date ({names})")
    } else {
        format!(
            "`nodekeeper local` runs the real programs, so cargo builds them first ({names}); \
             this takes minutes once, later builds compile only changes"
        )
    }
}

/// A workspace that this program was built in.
struct SourceTree<'a> {
    root: &'a Path,
    target: &'a Path,
    profile: Profile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Profile {
    Dev,
    Release,
}

impl<'a> SourceTree<'a> {
    /// `dir` must be `{root}/target/{debug or release}`, and the root must have a workspace.
    fn of(dir: &'a Path) -> Option<Self> {
        let profile = match dir.file_name()?.to_str()? {
            "debug" => Profile::Dev,
            "release" => Profile::Release,
            _ => return None,
        };
        let target = dir.parent()?;
        let root = target.parent()?;
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).ok()?;
        manifest.lines().any(|line| line.trim() == "[workspace]").then_some(Self { root, target, profile })
    }

    /// `--workspace --bin` builds these binaries only, but with the features of the whole
    /// workspace. Without `--workspace`, cargo would compile the AWS SDK again.
    fn arguments(&self, names: &[&'static str]) -> Vec<&'static str> {
        let mut arguments = vec!["build", "--workspace"];
        arguments.extend(names.iter().flat_map(|name| ["--bin", *name]));
        if self.profile == Profile::Release {
            arguments.push("--release");
        }
        arguments
    }

    async fn build(&self, names: &[&'static str]) -> Result<(), LocalError> {
        let arguments = self.arguments(names);
        let command = format!("cargo {}", arguments.join(" "));
        let failed = |why: String| LocalError::Build { command: command.clone(), root: self.root.to_owned(), why };
        let mut cargo = Command::new("cargo");
        cargo.args(&arguments).arg("--target-dir").arg(self.target).current_dir(self.root);
        // Standard error is inherited: cargo shows its progress there.
        match cargo.stdin(Stdio::null()).kill_on_drop(true).status().await {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(failed(status.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn missing_binaries_are_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(AGENT), "").unwrap();
        let exe = dir.path().join("nodekeeper");
        let agent = Binaries::find(&exe, Build::InSourceTree, Needed::AgentOnly).await;
        assert!(agent.is_ok(), "nothing is built outside of a source tree");
        let all = Binaries::find(&exe, Build::InSourceTree, Needed::FunctionsAndAgent).await;
        let error = all.unwrap_err().to_string();
        assert!(error.contains("poll-and-scale, clean-stale-records") && !error.contains(AGENT), "{error}");
    }

    #[test]
    fn a_source_tree_is_a_workspace_around_the_target_directory() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("target/release");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(SourceTree::of(&dir).is_none());
        std::fs::write(root.path().join("Cargo.toml"), "[workspace]\n").unwrap();
        assert!(SourceTree::of(&dir).is_some_and(|tree| tree.profile == Profile::Release));
        assert!(SourceTree::of(&root.path().join("target")).is_none());
    }

    #[test]
    fn only_what_is_needed_is_built_with_the_features_of_the_workspace() {
        let tree = SourceTree { root: Path::new("."), target: Path::new("target"), profile: Profile::Release };
        let agent = tree.arguments(&Needed::AgentOnly.names());
        assert_eq!(agent, ["build", "--workspace", "--bin", "nodekeeper-agent", "--release"]);
        let all = tree.arguments(&Needed::FunctionsAndAgent.names());
        assert_eq!(all.iter().filter(|argument| **argument == "--bin").count(), FUNCTIONS.len() + 1);
    }
}
