//! Which runtimes of containers this machine has, and which of them runs the jobs with an image.
//!
//! Guarantees: the runtime that the operator named is used, whether or not it works at the agent's start; otherwise the first that
//! works then. Containers that another agent of this data directory started with another runtime are still listed and removed, if
//! that runtime works.
//! Does not: look again while the agent runs.

use crate::runtime::RuntimeKind;
use std::str::FromStr;

/// Why a job with an image is lost on a node without containers.
pub const NO_CONTAINERS: &str = "this node runs no containers: install docker or podman in the image of its instance, or \
                                 let its size say `containers = false`";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first runtime that works when the agent starts.
    Auto,
    None,
    Only(RuntimeKind),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = RuntimeKind::OF_CONTAINERS.iter().find(|kind| kind.name() == text);
        match (text, known) {
            ("auto", _) => Ok(Self::Auto),
            ("none", _) => Ok(Self::None),
            (_, Some(kind)) => Ok(Self::Only(*kind)),
            _ => {
                let names: Vec<_> = RuntimeKind::OF_CONTAINERS.iter().map(|kind| kind.name()).collect();
                Err(format!("must be auto, none or one of {}", names.join(", ")))
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Containers {
    /// What runs the jobs with an image; `None` if this node runs no containers.
    pub runs: Option<RuntimeKind>,
    /// The runtimes whose containers are listed and removed.
    pub known: Vec<RuntimeKind>,
}

impl Containers {
    pub async fn find(wanted: Wanted) -> Self {
        if wanted == Wanted::None {
            return Self::default();
        }
        let mut working = Vec::new();
        for kind in RuntimeKind::OF_CONTAINERS {
            match kind.try_out().await {
                Ok(()) => working.push(*kind),
                Err(error) => tracing::info!(runtime = kind.name(), %error, "not a runtime of this machine"),
            }
        }
        let found = Self::of(wanted, working);
        tracing::info!(runs = ?found.runs, known = ?found.known, "runtimes of containers");
        found
    }

    fn of(wanted: Wanted, working: Vec<RuntimeKind>) -> Self {
        let runs = match wanted {
            Wanted::None => None,
            Wanted::Only(kind) => Some(kind),
            Wanted::Auto => working.first().copied(),
        };
        let mut known = working;
        known.extend(runs.filter(|kind| !known.contains(kind)));
        Self { runs, known }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_runtime_is_used_and_otherwise_the_first_that_works() {
        let kinds = |names: &[&str]| names.iter().map(|name| RuntimeKind::named(name).unwrap()).collect::<Vec<_>>();
        for (wanted, working, runs, known) in [
            ("auto", &["docker", "podman"][..], Some("docker"), &["docker", "podman"][..]),
            ("auto", &["podman"], Some("podman"), &["podman"]),
            ("auto", &[], None, &[]),
            ("none", &[], None, &[]),
            ("podman", &["docker", "podman"], Some("podman"), &["docker", "podman"]),
            // The daemon of docker may start after the agent.
            ("docker", &["podman"], Some("docker"), &["podman", "docker"]),
        ] {
            let found = Containers::of(wanted.parse().unwrap(), kinds(working));
            assert_eq!((found.runs.map(|kind| kind.name()), found.known), (runs, kinds(known)), "{wanted} {working:?}");
        }
        for wrong in ["process", "", "Docker"] {
            assert!(wrong.parse::<Wanted>().unwrap_err().contains("auto, none or one of docker, podman"), "{wrong}");
        }
    }
}
