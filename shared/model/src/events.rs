//! Events: what happened and why, kept where a person can look it up.
//!
//! Guarantees: an id orders events by time. Does not: carry anything a decision needs.

use crate::chance::Chance;
use crate::time::{Span, Time};
use crate::words::ActionName;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use ulid::Ulid;

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A slot, and whoever lives in it.
    Slot(crate::ids::Slot),
    /// A job.
    Job(crate::ids::JobId),
    /// An alloc.
    Alloc(crate::ids::AllocId),
    /// A function.
    Function(String),
    /// The whole fleet.
    Cluster,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot(slot) => write!(f, "slot#{slot}"),
            Self::Job(job) => write!(f, "job#{job}"),
            Self::Alloc(alloc) => write!(f, "alloc#{alloc}"),
            Self::Function(name) => write!(f, "function#{name}"),
            Self::Cluster => f.write_str("cluster"),
        }
    }
}

/// A row of the events table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What it is about.
    pub subject: String,
    /// A ULID: when, and which.
    pub id: String,
    /// What was done or seen.
    pub action: String,
    /// Why, in words.
    #[serde(default)]
    pub reason: String,
    /// What else may help.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detail: BTreeMap<String, Value>,
    /// Epoch **seconds**.
    pub expires_at: i64,
}

impl Event {
    /// An event of now. `chance` tells it from others of the same millisecond.
    pub fn new(subject: &Subject, action: ActionName, reason: &str, now: Time, keep: Span, chance: &Chance) -> Self {
        Self {
            subject: subject.to_string(),
            id: chance.ulid(now).to_string(),
            action: action.to_string(),
            reason: reason.to_owned(),
            detail: BTreeMap::new(),
            expires_at: (now + keep).as_epoch_s(),
        }
    }

    /// The event of a change, kept in the same transaction as the change. Its id comes from what it
    /// says, not from chance: a retry of the transaction writes the same event.
    pub fn of_change(subject: &Subject, action: ActionName, reason: &str, now: Time, keep: Span) -> Self {
        let subject = subject.to_string();
        let mut hasher = DefaultHasher::new();
        (&subject, action.as_str(), reason).hash(&mut hasher);
        let ms = u64::try_from(now.as_ms()).unwrap_or(0);
        Self {
            id: Ulid::from_parts(ms, u128::from(hasher.finish())).to_string(),
            subject,
            action: action.to_string(),
            reason: reason.to_owned(),
            detail: BTreeMap::new(),
            expires_at: (now + keep).as_epoch_s(),
        }
    }

    /// With something else that may help.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }

    /// When it happened.
    pub fn at(&self) -> Time {
        let ms = self.id.parse::<Ulid>().map_or(0, |id| id.timestamp_ms());
        Time::from_ms(i64::try_from(ms).unwrap_or(i64::MAX))
    }
}
