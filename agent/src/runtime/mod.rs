//! How commands are run: one file for each runtime, and the list of them.
//!
//! A new runtime is a new file beside this one, and its entry in [`RuntimeKind::ALL`].
//! Guarantees: no other file of the agent compares runtimes; all of them call [`Runtime`].
//! Does not: supervise (`supervisor` does).

mod docker;
mod interface;
mod process;

pub use interface::{
    CommandSpec, Container, Environment, Invocation, IoFuture, LaunchError, Process, Runtime, StopRequest,
};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::Deref;

/// One of the runtimes. Written as its name on the command line and in task files.
#[derive(Clone, Copy)]
pub struct RuntimeKind(&'static dyn Runtime);

impl RuntimeKind {
    /// Every runtime. The first one is the default.
    pub const ALL: &'static [Self] = &[Self(&process::ProcessRuntime), Self(&docker::DockerRuntime)];

    /// The runtime with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

impl Default for RuntimeKind {
    fn default() -> Self {
        Self(&process::ProcessRuntime)
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
        Self::named(&name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            D::Error::custom(format!("unknown runtime {name:?}: must be one of {}", known.join(", ")))
        })
    }
}

impl ValueEnum for RuntimeKind {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(self.help()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_in_task_files_do_not_change() {
        for (json, name) in [(r#""process""#, "process"), (r#""docker""#, "docker")] {
            let kind: RuntimeKind = serde_json::from_str(json).unwrap();
            assert_eq!(kind.name(), name);
            assert_eq!(serde_json::to_string(&kind).unwrap(), json);
        }
        let error = serde_json::from_str::<RuntimeKind>(r#""vm""#).unwrap_err().to_string();
        assert!(error.contains("unknown runtime \"vm\": must be one of process, docker"), "{error}");
    }

    #[test]
    fn the_default_is_the_first_and_names_are_unique() {
        assert_eq!(RuntimeKind::default(), RuntimeKind::ALL[0]);
        for kind in RuntimeKind::ALL {
            assert_eq!(RuntimeKind::ALL.iter().filter(|other| *other == kind).count(), 1, "{kind:?}");
        }
    }
}
