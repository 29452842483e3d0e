//! Which runtimes of containers this machine has, and which of them runs the jobs with an image.
//!
//! Guarantees: the runtime that the operator named is used; otherwise the first that works. Until one works, all are asked again: a
//! daemon may start after the agent, or be installed while the agent runs. Containers that another agent of this data directory
//! started with another runtime are still listed and removed, if that runtime works.
//! Does not: keep the node from other work meanwhile. Whether a node runs containers says its size, and most jobs need none.

use super::RuntimeKind;
use crate::contact::shared_node::lock;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// For how long after the agent's start a job with an image waits for a runtime that is installed and does not answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the runtimes are asked meanwhile, and later.
const ASK_SOON: Duration = Duration::from_secs(2);
const ASK_EVERY: Duration = Duration::from_secs(60);

/// Why a job with an image is lost on a node without containers.
pub const NO_CONTAINERS: &str = "this node runs no containers: install docker or podman in the image of its instance, or \
                                 let its size say `containers = false`";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedRuntime {
    /// The first runtime that works.
    Auto,
    None,
    Only(RuntimeKind),
}

impl FromStr for WantedRuntime {
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

/// What a job with an image finds on this node now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pick {
    Runs(RuntimeKind),
    /// A runtime is installed and does not answer yet: its daemon may be starting. The text is its answer.
    NotYet(String),
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
    working: Vec<RuntimeKind>,
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

    /// Asks again until a wanted runtime works. Does not end.
    pub async fn watch(&self) {
        while self.wanted != WantedRuntime::None && !matches!(self.working(), Some(Pick::Runs(_))) {
            sleep(if self.since.elapsed() < PATIENCE { ASK_SOON } else { ASK_EVERY }).await;
            self.ask().await;
            if let Some(Pick::Runs(runtime)) = self.working() {
                tracing::info!(?runtime, "it runs containers now");
            }
        }
        std::future::pending().await
    }

    async fn ask(&self) {
        let mut answers = Answers::default();
        let candidates = if self.wanted == WantedRuntime::None { &[] } else { RuntimeKind::OF_CONTAINERS };
        for kind in candidates {
            match kind.try_out().await {
                Ok(()) => answers.working.push(*kind),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => _ = answers.failure.get_or_insert_with(|| error.to_string()),
            }
        }
        *lock(&self.answers) = answers;
    }

    fn working(&self) -> Option<Pick> {
        let working = &lock(&self.answers).working;
        let wanted = |kind: &&RuntimeKind| match self.wanted {
            WantedRuntime::Auto => true,
            WantedRuntime::None => false,
            WantedRuntime::Only(only) => **kind == only,
        };
        working.iter().find(wanted).map(|kind| Pick::Runs(*kind))
    }

    /// What runs a job with an image now.
    pub fn pick(&self) -> Pick {
        let failure = lock(&self.answers).failure.clone().filter(|_| self.since.elapsed() < PATIENCE);
        let not_yet = || failure.map(Pick::NotYet);
        let named = || if let WantedRuntime::Only(kind) = self.wanted { Pick::Runs(kind) } else { Pick::Nothing };
        self.working().or_else(not_yet).unwrap_or_else(named)
    }

    /// The runtimes whose containers are listed and removed.
    pub fn listed(&self) -> Vec<RuntimeKind> {
        let mut known = lock(&self.answers).working.clone();
        if let WantedRuntime::Only(kind) = self.wanted
            && !known.contains(&kind)
        {
            known.push(kind);
        }
        known
    }

    /// None, and none is looked for.
    pub fn none() -> Self {
        Self { wanted: WantedRuntime::None, since: Instant::now(), answers: Arc::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_named_runtime_is_used_and_otherwise_the_first_that_works_and_an_installed_one_is_waited_for() {
        let named = |name: &str| RuntimeKind::named(name).unwrap();
        let kinds = |names: &[&str]| names.iter().map(|name| named(name)).collect::<Vec<_>>();
        let not_yet = || Pick::NotYet("no daemon".to_owned());
        for (wanted, working, failure, soon, late, known) in [
            ("auto", &["docker", "podman"][..], None, Pick::Runs(named("docker")), "docker", &["docker", "podman"][..]),
            ("auto", &["podman"], Some("no daemon"), Pick::Runs(named("podman")), "podman", &["podman"]),
            ("auto", &[], Some("no daemon"), not_yet(), "", &[]),
            ("auto", &[], None, Pick::Nothing, "", &[]),
            ("none", &[], None, Pick::Nothing, "", &[]),
            ("podman", &["docker", "podman"], None, Pick::Runs(named("podman")), "podman", &["docker", "podman"]),
            // After a while its own error says more.
            ("docker", &["podman"], Some("no daemon"), not_yet(), "docker", &["podman", "docker"]),
        ] {
            let containers = Containers { wanted: wanted.parse().unwrap(), ..Containers::none() };
            *lock(&containers.answers) = Answers { working: kinds(working), failure: failure.map(str::to_owned) };
            assert_eq!((containers.pick(), containers.listed()), (soon, kinds(known)), "{wanted} {working:?}");
            tokio::time::advance(PATIENCE).await;
            let late = RuntimeKind::named(late).map_or(Pick::Nothing, Pick::Runs);
            assert_eq!(containers.pick(), late, "{wanted} {working:?}");
        }
        for wrong in ["process", "", "Docker"] {
            assert!(
                wrong.parse::<WantedRuntime>().unwrap_err().contains("auto, none or one of docker, podman"),
                "{wrong}"
            );
        }
    }
}
