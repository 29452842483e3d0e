//! How commands are run: one file for each runtime, and the list of them.
//!
//! A job with an image runs in a container, and one without as a process of the machine. A new runtime is a new file beside this
//! one, and its entry in [`RuntimeKind::OF_CONTAINERS`].
//! Guarantees: no other file of the agent compares runtimes; all of them call [`Runtime`].
//! Does not: supervise (`supervisor` does).

mod container;
mod containers;
pub(crate) mod init;
pub(crate) mod interface;
mod process;
pub(crate) mod pulls;

pub use containers::{Containers, NO_CONTAINERS, Pick, WantedRuntime};
pub use interface::{CommandSpec, Container, FirstProcess, HOSTS_FILE, Invocation, Process, ProcessEnv, Runtime};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Deref;

/// One of the runtimes. Written as its name on the command line and in task files.
#[derive(Clone, Copy)]
pub struct RuntimeKind(&'static dyn Runtime);

impl RuntimeKind {
    /// What runs commands without an image.
    pub const PROCESS: Self = Self(&process::ProcessRuntime);

    /// What runs commands in containers, in the order in which an agent looks for them.
    pub const OF_CONTAINERS: &'static [Self] = &[Self(&container::DOCKER), Self(&container::PODMAN)];

    pub fn named(name: &str) -> Option<Self> {
        [Self::PROCESS].iter().chain(Self::OF_CONTAINERS).copied().find(|kind| kind.name() == name)
    }
}

impl Deref for RuntimeKind {
    type Target = dyn Runtime;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for RuntimeKind {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for RuntimeKind {}

impl fmt::Debug for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for RuntimeKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for RuntimeKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| D::Error::custom(format!("unknown runtime {name:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_in_task_files_do_not_change() {
        for (json, name) in [(r#""process""#, "process"), (r#""docker""#, "docker"), (r#""podman""#, "podman")] {
            let kind: RuntimeKind = serde_json::from_str(json).unwrap();
            assert_eq!(kind.name(), name);
            assert_eq!(serde_json::to_string(&kind).unwrap(), json);
        }
        let error = serde_json::from_str::<RuntimeKind>(r#""vm""#).unwrap_err().to_string();
        assert!(error.contains("unknown runtime \"vm\""), "{error}");
    }
}
