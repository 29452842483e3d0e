//! Events: what happened and why, kept where a person can look it up.
//!
//! Guarantees: the ids of events are in the order of time.
//! Does not: hold anything that a decision needs. Events are for people.

use crate::enums::ActionName;
use crate::{Life, NodeId, Offering, Rng, Span, Time, Usd};
use derive_more::Display;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use ulid::Ulid;

/// The details of events from which costs are computed: what a life of a slot was.
pub const FOR_COSTS: &[&str] = &["node_id", "size", "instance_type", "market", "price_per_hour", "assigned_at"];

/// The facts about a life in the event of its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastLife {
    pub node_id: NodeId,
    pub size: String,
    pub instance_type: String,
    pub market: String,
    pub price_per_hour: Usd,
    pub assigned_at: Time,
}

impl From<&Life> for PastLife {
    fn from(life: &Life) -> Self {
        let Offering { size, instance_type, market, price_per_hour, .. } = &life.offering;
        Self {
            node_id: life.node_id,
            size: size.clone(),
            instance_type: instance_type.clone(),
            market: market.to_string(),
            price_per_hour: *price_per_hour,
            assigned_at: life.assigned_at,
        }
    }
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Display)]
pub enum Subject {
    /// A slot, and the node that lives in it.
    #[display("slot#{_0}")]
    Slot(crate::ids::Slot),
    #[display("job#{_0}")]
    Job(crate::ids::JobId),
    #[display("alloc#{_0}")]
    Alloc(crate::ids::AllocId),
    /// The whole fleet.
    #[display("cluster")]
    Cluster,
}

/// A row of the events table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// A [`Subject`] as text.
    pub subject: String,
    /// A ULID: it holds the time and makes the event unique.
    pub id: String,
    /// An [`ActionName`] as text.
    pub action: String,
    #[serde(default)]
    pub reason: String,
    /// More about the event, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub detail: BTreeMap<String, Value>,
    /// Epoch **seconds**: DynamoDB deletes the row some time after.
    pub expires_at: i64,
    /// The row that keeps the event from being written again; `None` for an event that is always written.
    #[serde(skip)]
    pub once: Option<Once>,
}

/// The row beside an event that is written once in a while. While this row lasts, nobody writes the event again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// The hash key of its row. No [`Subject`] begins like this.
    pub subject: String,
    /// The range key of its row: a digest of the action and of the key of the event.
    pub id: String,
    /// When the event was written, in epoch seconds.
    pub written_at: i64,
    /// When the event may be written again, in epoch seconds.
    pub expires_at: i64,
}

/// The beginning of the subject of a row that is an [`Once`] and no event.
pub const ONCE_PREFIX: &str = "once#";

impl Event {
    /// An event that happens now. `rng` makes its id unique within the millisecond.
    pub fn new(subject: &Subject, action: ActionName, reason: &str, now: Time, keep: Span, rng: &Rng) -> Self {
        Self { id: rng.ulid(now).to_string(), ..Self::of_change(subject, action, reason, now, keep) }
    }

    /// The event of a change, written in the same transaction as the change. Its id comes from its content
    /// and not from chance, so a retry of the transaction writes the same event.
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
            once: None,
        }
    }

    /// The event of something that several runs, or several functions, notice again and again. `key` says what it is. The event is
    /// written only if nobody has written the same one within `span`.
    pub fn once_in(
        span: Span,
        subject: &Subject,
        action: ActionName,
        (key, reason): (&str, &str),
        now: Time,
        keep: Span,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        (action.as_str(), key).hash(&mut hasher);
        let once = Once {
            subject: format!("{ONCE_PREFIX}{subject}"),
            id: format!("{:016x}", hasher.finish()),
            written_at: now.as_epoch_s(),
            expires_at: (now + span).as_epoch_s(),
        };
        Self { once: Some(once), ..Self::of_change(subject, action, reason, now, keep) }
    }

    /// Adds a detail. One with the same name is replaced.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.detail.insert(name.to_owned(), value.into());
        self
    }

    /// The event with what a life of a slot was, and at what price.
    #[must_use]
    pub fn of_life(mut self, life: &Life) -> Self {
        if let Ok(Value::Object(past)) = serde_json::to_value(PastLife::from(life)) {
            self.detail.extend(past);
        }
        self
    }

    /// The life whose end the event tells; `None` if it does not say what that life was.
    pub fn life(&self) -> Option<PastLife> {
        serde_json::from_value(self.detail.clone().into_iter().collect()).ok()
    }

    /// When the event was made: the time in its id, in milliseconds.
    pub fn at(&self) -> Time {
        let ms = self.id.parse::<Ulid>().map_or(0, |id| id.timestamp_ms());
        Time::from_ms(i64::try_from(ms).unwrap_or(i64::MAX))
    }
}
