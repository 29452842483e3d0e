//! The files of a release, beside the program.
//!
//! Guarantees: a file that SHA256SUMS names is used only with the digest that stands there.
//! Does not: fetch a release.

use crate::console::UsageError;
use anyhow::{Context as _, ensure};
use model::Arch;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The architectures, and how `uname -m` names them. Functions of the first one are cheaper.
const ARCHITECTURES: [(Arch, &str); 2] = [(Arch::Arm64, "aarch64"), (Arch::X86_64, "x86_64")];

pub(super) struct ReleaseFiles {
    /// The template whose functions are beside it.
    pub(super) template: PathBuf,
    /// The architecture, the file and the digest of each agent.
    pub(super) agents: Vec<(Arch, PathBuf, String)>,
}

impl ReleaseFiles {
    /// The release in this directory. A file that SHA256SUMS names must have the digest that it says.
    pub(super) fn in_directory(directory: &Path) -> anyhow::Result<Self> {
        let files = |begin: &str, end: &str| {
            let file = |(arch, named): (Arch, &str)| (arch, directory.join(format!("{begin}{named}{end}")));
            ARCHITECTURES.map(file).into_iter().filter(|(_, file)| file.is_file()).collect::<Vec<_>>()
        };
        let shown = directory.display();
        let (templates, agents) = (files("template-", ".yaml"), files("nodekeeper-agent-", ""));
        let Some((_, template)) = templates.into_iter().next().filter(|_| !agents.is_empty()) else {
            let why = format!(
                "{shown} has no template-ARCH.yaml and nodekeeper-agent-ARCH: name the directory of a release (--release), or \
                 make one with `infra/package`"
            );
            return Err(UsageError(why).into());
        };
        let sums = std::fs::read_to_string(directory.join("SHA256SUMS")).unwrap_or_default();
        let with_digest = |(arch, file): (Arch, PathBuf)| {
            let bytes = std::fs::read(&file).with_context(|| format!("{} cannot be read", file.display()))?;
            let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let named = sums.lines().filter_map(|line| line.split_once("  ")).find(|(_, of)| *of == name);
            let is_whole = named.is_none_or(|(says, _)| says == digest);
            ensure!(is_whole, "{} is not the file that SHA256SUMS names: fetch the release again", file.display());
            Ok((arch, file, digest))
        };
        let agents = agents.into_iter().map(with_digest).collect::<anyhow::Result<_>>()?;
        Ok(Self { template, agents })
    }

    /// The architecture of a new cluster's nodes: what the person says, or x86_64 if there is an agent for it.
    pub(super) fn node_arch(&self, said: Option<Arch>) -> Result<Arch, UsageError> {
        let there = || self.agents.iter().map(|(arch, ..)| *arch);
        match said.or_else(|| there().max_by_key(|arch| *arch == Arch::X86_64)) {
            Some(arch) if there().any(|one| one == arch) => Ok(arch),
            _ => Err(UsageError(
                "the release has no agent for this --arch: fetch the release again, or leave it out".into(),
            )),
        }
    }
}
