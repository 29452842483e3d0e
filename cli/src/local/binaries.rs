//! The binaries that make up the system: found beside our own, and built first in a source tree.
//!
//! Guarantees: in a source tree one command is enough, and what runs is what stands there.
//! Does not: install anything.

use super::LocalError;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::Command;

/// The functions, by the names of their binaries.
pub(super) const FUNCTIONS: [&str; 4] = ["poll-and-scale", "clean-stale-records", "heartbeat-ingest", "sweep-dispatch"];
/// The agent's binary.
const AGENT: &str = "nodekeeper-agent";

/// Where they are.
#[derive(Clone, Debug)]
pub(super) struct Binaries {
    dir: PathBuf,
}

impl Binaries {
    /// Builds them if `exe` stands in the target directory of a workspace, and makes sure that
    /// they are there. Without `functions` only the agent is needed.
    pub(super) async fn find(exe: &Path, build: bool, functions: bool) -> Result<Self, LocalError> {
        let dir = exe.parent().unwrap_or(Path::new(".")).to_owned();
        if let (true, Some(tree)) = (build, SourceTree::of(&dir)) {
            tree.build().await?;
        }
        let needed = FUNCTIONS.into_iter().filter(|_| functions).chain([AGENT]);
        let missing: Vec<_> = needed.filter(|name| !dir.join(name).is_file()).collect();
        if missing.is_empty() { Ok(Self { dir }) } else { Err(LocalError::NoBinaries { missing, exe: exe.to_owned() }) }
    }

    /// A function's.
    pub(super) fn function(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The agent's.
    pub(super) fn agent(&self) -> PathBuf {
        self.dir.join(AGENT)
    }
}

/// A workspace that this program was built in.
struct SourceTree<'a> {
    root: &'a Path,
    target: &'a Path,
    release: bool,
}

impl<'a> SourceTree<'a> {
    /// `{root}/target/{debug or release}`, and the root has a workspace.
    fn of(dir: &'a Path) -> Option<Self> {
        let release = match dir.file_name()?.to_str()? {
            "debug" => false,
            "release" => true,
            _ => return None,
        };
        let target = dir.parent()?;
        let root = target.parent()?;
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).ok()?;
        manifest.lines().any(|line| line.trim() == "[workspace]").then_some(Self { root, target, release })
    }

    async fn build(&self) -> Result<(), LocalError> {
        let failed = |why: String| LocalError::Build { root: self.root.to_owned(), why };
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--quiet", "--bins", "--target-dir"]).arg(self.target).current_dir(self.root);
        if self.release {
            cargo.arg("--release");
        }
        let status = cargo.stdin(Stdio::null()).kill_on_drop(true).status().await;
        match status {
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
    async fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(AGENT), "").unwrap();
        let exe = dir.path().join("nodekeeper");
        assert!(Binaries::find(&exe, true, false).await.is_ok(), "elsewhere than in a source tree nothing is built");
        let error = Binaries::find(&exe, true, true).await.unwrap_err().to_string();
        assert!(error.contains("poll-and-scale, clean-stale-records") && !error.contains(AGENT), "{error}");
    }

    #[test]
    fn a_source_tree_is_a_workspace_around_the_target_directory() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("target/release");
        std::fs::create_dir_all(&dir).unwrap();
        assert!(SourceTree::of(&dir).is_none());
        std::fs::write(root.path().join("Cargo.toml"), "[workspace]\n").unwrap();
        assert!(SourceTree::of(&dir).is_some_and(|tree| tree.release));
        assert!(SourceTree::of(&root.path().join("target")).is_none());
    }
}
