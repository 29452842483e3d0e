//! Which runtimes of containers this machine has, and which of them runs the jobs with an image.
//!
//! Guarantees: the runtime that the operator named is used; otherwise the first that works. Until one works, all are asked again: a
//! daemon may start after the agent, or be installed while the agent runs. Containers that another agent of this data directory
//! started with another runtime are still listed and removed, if that runtime works.
//! Does not: keep the node from other work meanwhile. Whether a node runs containers says its size, and most jobs need none.

use super::ContainerRuntime;
use crate::contact::shared_node::lock;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// For how long after the agent's start a job with an image waits for a runtime that is installed and does not answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time between two questions to the runtimes: within [`PATIENCE`], and later.
const ASK_SOON: Duration = Duration::from_secs(2);
const ASK_EVERY: Duration = Duration::from_secs(60);

/// Why a job with an image is lost on a node without containers.
pub const NO_CONTAINERS: &str = "this node runs no containers: install docker or podman in the image of its instance, or \
                                 let its size say `containers = false`";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WantedRuntime {
    /// The first runtime that works.
    Auto,
    None,
    Docker,
    Podman,
}

impl WantedRuntime {
    /// The runtime that the operator named.
    const fn named(self) -> Option<ContainerRuntime> {
        match self {
            Self::Auto | Self::None => None,
            Self::Docker => Some(ContainerRuntime::Docker),
            Self::Podman => Some(ContainerRuntime::Podman),
        }
    }
}

/// What a job with an image finds on this node now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    Runs(ContainerRuntime),
    /// A runtime is installed and does not answer yet: its daemon may be starting.
    NotYet,
    Nothing,
}

/// The runtimes of this machine, as they answered last. Clones share what is known.
#[derive(Clone, Debug)]
pub struct Containers {
    wanted: WantedRuntime,
    since: Instant,
    answers: Arc<Mutex<Answers>>,
}

#[derive(Debug, Default)]
struct Answers {
    working: Vec<ContainerRuntime>,
    /// The answer of an installed runtime that does not work.
    failure: Option<String>,
}

impl Containers {
    /// Asks the runtimes once.
    pub async fn find(wanted: WantedRuntime) -> Self {
        let containers = Self { wanted, since: Instant::now(), answers: Arc::default() };
        containers.ask().await;
        tracing::info!(answers = ?*lock(&containers.answers), "runtimes of containers");
        containers
    }

    /// Asks again until a wanted runtime works. The future never ends, because the agent ends if one of its loops does.
    pub async fn watch(&self) {
        while self.wanted != WantedRuntime::None && self.working().is_none() {
            sleep(if self.since.elapsed() < PATIENCE { ASK_SOON } else { ASK_EVERY }).await;
            self.ask().await;
            if let Some(runtime) = self.working() {
                tracing::info!(?runtime, "it runs containers now");
            }
        }
        std::future::pending().await
    }

    async fn ask(&self) {
        let mut answers = Answers::default();
        let is_wanted = self.wanted != WantedRuntime::None;
        for kind in ContainerRuntime::ALL.into_iter().filter(|_| is_wanted) {
            match kind.try_out().await {
                Ok(()) => answers.working.push(kind),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => _ = answers.failure.get_or_insert_with(|| error.to_string()),
            }
        }
        *lock(&self.answers) = answers;
    }

    /// The runtime that runs jobs, if it works.
    fn working(&self) -> Option<ContainerRuntime> {
        let named = self.wanted.named();
        lock(&self.answers).working.iter().copied().find(|kind| named.is_none_or(|named| named == *kind))
    }

    /// What runs a job with an image now.
    pub fn pick(&self) -> Pick {
        let may_come = lock(&self.answers).failure.is_some() && self.since.elapsed() < PATIENCE;
        match self.working().or(self.wanted.named().filter(|_| !may_come)) {
            Some(runtime) => Pick::Runs(runtime),
            None if may_come => Pick::NotYet,
            None => Pick::Nothing,
        }
    }

    /// The runtimes whose containers are listed and removed.
    pub fn listed(&self) -> Vec<ContainerRuntime> {
        let mut known = lock(&self.answers).working.clone();
        known.extend(self.wanted.named().filter(|named| !known.contains(named)));
        known
    }

    /// No runtime, and no search for one.
    pub fn none() -> Self {
        Self { wanted: WantedRuntime::None, since: Instant::now(), answers: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[tokio::test(start_paused = true)]
    async fn the_named_runtime_is_used_and_otherwise_the_first_that_works_and_an_installed_one_is_waited_for() {
        let parse = |name: &str| WantedRuntime::from_str(name, false);
        let kinds = |names: &[&str]| names.iter().filter_map(|name| parse(name).unwrap().named()).collect::<Vec<_>>();
        let (docker, podman) = (Pick::Runs(ContainerRuntime::Docker), Pick::Runs(ContainerRuntime::Podman));
        for (wanted, working, failure, soon, late, known) in [
            ("auto", &["docker", "podman"][..], None, docker, "docker", &["docker", "podman"][..]),
            ("auto", &["podman"], Some("no daemon"), podman, "podman", &["podman"]),
            ("auto", &[], Some("no daemon"), Pick::NotYet, "", &[]),
            ("auto", &[], None, Pick::Nothing, "", &[]),
            ("none", &[], None, Pick::Nothing, "", &[]),
            ("podman", &["docker", "podman"], None, podman, "podman", &["docker", "podman"]),
            // After a while its own error says more.
            ("docker", &["podman"], Some("no daemon"), Pick::NotYet, "docker", &["podman", "docker"]),
        ] {
            let containers = Containers { wanted: parse(wanted).unwrap(), ..Containers::none() };
            *lock(&containers.answers) = Answers { working: kinds(working), failure: failure.map(str::to_owned) };
            assert_eq!((containers.pick(), containers.listed()), (soon, kinds(known)), "{wanted} {working:?}");
            tokio::time::advance(PATIENCE).await;
            let late = parse(late).ok().and_then(WantedRuntime::named).map_or(Pick::Nothing, Pick::Runs);
            assert_eq!(containers.pick(), late, "{wanted} {working:?}");
        }
        for wrong in ["process", "", "Docker"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
