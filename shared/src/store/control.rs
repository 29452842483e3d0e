//! The control table: the policy, what the functions did last, and memories that end.
//!
//! Guarantees: a memory is a versioned row like any other. Does not: keep anything a
//! decision needs to be right, only what it needs to be wise (brakes, shortages, pauses).

use crate::model::Version;
use crate::policy::Policy;
use crate::run::{ActionAnswer, Done};
use crate::store::db::DbError;
use crate::store::rows::{Record, s};
use crate::store::tables::Table;
use crate::store::write::Key;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The key of the policy's row.
pub const POLICY: &str = "policy";

/// A memory that ends: a shortage, a quota, a pause, a brake, a release, the last run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// `quota`, `shortage#{market}#{type}#{zone}`, `brake#{kind}` and so on.
    pub key: String,
    /// Raised by every write.
    #[serde(default = "unwritten")]
    pub version: Version,
    /// Until when it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_at: Option<Time>,
    /// Since when it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_at: Option<Time>,
    /// How long it held last, in seconds: what the next one doubles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<i64>,
    /// How many: failed starts, held records, accepted heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The policy version it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<u64>,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

const fn unwritten() -> Version {
    Version::UNWRITTEN
}

impl Memory {
    /// One that holds nothing yet.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            version: Version::UNWRITTEN,
            until_at: None,
            since_at: None,
            wait_s: None,
            count: None,
            policy_version: None,
            message: None,
        }
    }

    /// Whether it still holds.
    pub fn holds(&self, now: Time) -> bool {
        self.until_at.is_some_and(|until| now < until)
    }
}

/// What a function did last: `run#{function}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// `run#{function}`.
    pub key: String,
    /// Raised by every write.
    #[serde(default = "unwritten")]
    pub version: Version,
    /// When the last run began.
    pub started_at: Time,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub duration_ms: i64,
    /// The last run that could observe and ended in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success_at: Option<Time>,
    /// The gap between the last two beginnings, in milliseconds: its period as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_ms: Option<i64>,
    /// Nodes in use, as poll-and-scale saw them: what spreads the heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<u64>,
    /// Actions done.
    #[serde(default)]
    pub actions: u64,
    /// What was left for the next run.
    #[serde(default)]
    pub left: u64,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The stored policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRow {
    /// `policy`.
    pub key: String,
    /// Raised by every `policy set`.
    pub version: Version,
    /// The document as JSON.
    pub document: String,
}

impl RunRow {
    /// Of a function that has not run yet.
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            version: Version::UNWRITTEN,
            started_at: Time::from_ms(0),
            duration_ms: 0,
            last_success_at: None,
            period_ms: None,
            in_use: None,
            actions: 0,
            left: 0,
            error: None,
        }
    }

    /// What a run that could observe leaves, after the function's last one.
    pub fn after(
        function: &str,
        before: Option<&Self>,
        started_at: Time,
        took: Span,
        answers: &[ActionAnswer],
    ) -> Self {
        Self {
            started_at,
            duration_ms: took.as_ms(),
            last_success_at: Some(started_at),
            period_ms: before.map(|b| started_at.since(b.started_at).as_ms()),
            actions: answers.iter().filter(|a| a.done).count() as u64,
            left: answers.iter().filter(|a| a.outcome == Done::Left).count() as u64,
            error: None,
            ..before.cloned().unwrap_or_else(|| Self::new(format!("run#{function}")))
        }
    }
}

impl PolicyRow {
    /// The first policy of a cluster.
    pub fn new(policy: &Policy) -> Self {
        Self { key: POLICY.to_owned(), version: Version::UNWRITTEN, document: policy.to_json().to_string() }
    }
}

macro_rules! control_record {
    ($($t:ty),*) => {$(
        impl Record for $t {
            const TABLE: Table = Table::Control;
            fn key(&self) -> Key {
                control_key(&self.key)
            }
            fn version(&self) -> Version {
                self.version
            }
            fn set_version(&mut self, version: Version) {
                self.version = version;
            }
        }
    )*};
}
control_record!(Memory, RunRow, PolicyRow);

/// The key of a control row.
pub fn control_key(key: &str) -> Key {
    Key::hash(Table::Control, s(key))
}

/// The whole control table as read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Control {
    /// The policy's row.
    pub policy: Option<PolicyRow>,
    /// Memories, by key.
    pub memories: BTreeMap<String, Memory>,
    /// The functions' last runs, by function.
    pub runs: BTreeMap<String, RunRow>,
}

thread_local! {
    /// The last document that was checked, and what it says: a process answers thousands of requests
    /// under one policy.
    static LAST_POLICY: RefCell<Option<(String, Policy)>> = const { RefCell::new(None) };
}

impl Control {
    /// Reads rows given as JSON: from the table, or from `plan --state`.
    pub fn from_rows(rows: impl IntoIterator<Item = Value>) -> Result<Self, DbError> {
        let mut control = Self::default();
        for row in rows {
            let key = row.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
            let corrupt =
                |e: serde_json::Error| DbError::Corrupt { table: "control", key: key.clone(), detail: e.to_string() };
            if key == POLICY {
                control.policy = Some(serde_json::from_value(row).map_err(corrupt)?);
            } else if let Some(function) = key.strip_prefix("run#") {
                control.runs.insert(function.to_owned(), serde_json::from_value(row).map_err(corrupt)?);
            } else {
                control.memories.insert(key.clone(), serde_json::from_value(row).map_err(corrupt)?);
            }
        }
        Ok(control)
    }

    /// The policy, checked again: it may have been written by another version, or by hand.
    pub fn checked_policy(&self) -> Result<(Policy, u64), NoPolicy> {
        let row = self.policy.as_ref().ok_or(NoPolicy::Missing)?;
        let version = row.version.number();
        LAST_POLICY.with_borrow_mut(|last| match last {
            Some((document, policy)) if *document == row.document => Ok((policy.clone(), version)),
            _ => {
                let document: Value = serde_json::from_str(&row.document).map_err(|e| NoPolicy::Bad(e.to_string()))?;
                let policy = Policy::from_json(&document).map_err(|e| NoPolicy::Bad(e.to_string()))?;
                *last = Some((row.document.clone(), policy.clone()));
                Ok((policy, version))
            }
        })
    }

    /// The memory of this key, if it holds.
    pub fn holding(&self, key: &str, now: Time) -> Option<&Memory> {
        self.memories.get(key).filter(|m| m.holds(now))
    }

    /// The memory of this key, or an empty one.
    pub fn memory(&self, key: &str) -> Memory {
        self.memories.get(key).cloned().unwrap_or_else(|| Memory::new(key))
    }
}

/// Why there is no policy to act by.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPolicy {
    /// None was stored.
    #[error("no policy is stored: write one and store it with `nodekeeper policy set FILE`")]
    Missing,
    /// What is stored is wrong.
    #[error("the stored policy is not usable: {0}; store a right one with `nodekeeper policy set FILE`")]
    Bad(String),
}
