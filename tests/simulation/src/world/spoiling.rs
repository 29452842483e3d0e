//! Rows that become unreadable: somebody writes nonsense into a row of any table, and repairs it later.
//!
//! Guarantees: a spoiled row has a new version, as after any write, so a write by somebody who read it before fails.
//! The repair puts back the one spoiled attribute, and keeps what was written meanwhile.
//! Does not: say what must follow (`check::unreadable` does).

use super::World;
use crate::core::{Fault, lock};
use crate::database::key_as_read;
use aws_sdk_dynamodb::types::AttributeValue;
use model::{Span, Time};
use std::sync::Arc;
use std::time::Duration;
use store::{Item, Key, Table};
use tokio::time::sleep;

/// The most rows that are unreadable at the same time.
const AT_ONCE: usize = 3;

/// An attribute and its wrong value; `None` if the attribute is missing.
type Nonsense = (&'static str, Option<AttributeValue>);

struct Spoiled {
    key: Key,
    attribute: &'static str,
    /// The value before; `None` if there was none.
    sound: Option<AttributeValue>,
    until: Time,
}

fn s(text: &str) -> Option<AttributeValue> {
    Some(AttributeValue::S(text.to_owned()))
}

fn n(number: &str) -> Option<AttributeValue> {
    Some(AttributeValue::N(number.to_owned()))
}

/// The possible damage to a row. (Its ids and its states stay as they are: the checks know it by them.)
fn nonsense(table: Table, row: &Item) -> Vec<Nonsense> {
    let within = |map: &str, name: &str, value: Option<AttributeValue>| match row.get(map) {
        Some(AttributeValue::M(parts)) => {
            let mut parts = parts.clone();
            parts.extend(value.map(|value| (name.to_owned(), value)));
            Some(AttributeValue::M(parts))
        }
        other => other.cloned(),
    };
    let ways: Vec<Nonsense> = match table {
        Table::Nodes => vec![
            ("version", s("seven")),
            ("attempt", None),
            ("seq", n("-4")),
            ("vcpus", n("1.5")),
            ("market", s("gift")),
            ("memory_mib", Some(AttributeValue::Bool(true))),
        ],
        Table::Jobs => vec![
            ("version", None),
            ("needs", within("needs", "memory_mib", s("plenty"))),
            ("priority", Some(AttributeValue::Bool(true))),
            ("failure_policy", within("failure_policy", "kill_timeout_s", n("-1"))),
        ],
        Table::Allocs => {
            vec![("version", None), ("placed_seq", s("seven")), ("needs", within("needs", "memory_mib", n("0.5")))]
        }
        // A handle has no version: its writers compare `seq`.
        Table::Handles => vec![("seq", s("seven")), ("seq", None), ("seq", n("-1"))],
        Table::Control => {
            vec![("document", s("{")), ("version", s("seven")), ("until_at", s("soon")), ("started_at", s("tomorrow"))]
        }
        Table::Events => vec![("reason", n("5")), ("action", None)],
    };
    ways.into_iter().filter(|(attribute, _)| row.contains_key(*attribute)).collect()
}

/// The row with its next version, if it has one.
fn written(mut row: Item, name: &str) -> Item {
    if let Some(AttributeValue::N(version)) = row.get("version").filter(|_| name != "version") {
        let next = version.parse::<u64>().map_or(1, |v| v.saturating_add(1));
        row.insert("version".to_owned(), AttributeValue::N(next.to_string()));
    }
    row
}

impl World {
    /// Spoils rows and repairs them, until the faults are over and every row is sound again.
    pub(super) async fn spoil(self: Arc<Self>) {
        if self.core.scenario.chance(Fault::RowUnreadable) <= 0.0 {
            return;
        }
        let mut spoiled: Vec<Spoiled> = Vec::new();
        loop {
            sleep(Duration::from_secs(60)).await;
            let (now, healed) = (self.core.now(), self.core.is_healed());
            // A restore replaces every row.
            spoiled.retain(|one| self.check.is_spoiled(&one.key));
            let (over, still): (Vec<_>, Vec<_>) = spoiled.into_iter().partition(|one| healed || one.until <= now);
            over.iter().for_each(|one| self.repair(one));
            spoiled = still;
            if healed {
                return;
            }
            if spoiled.len() < AT_ONCE && self.core.happens(Fault::RowUnreadable) {
                spoiled.extend(self.spoil_one());
            }
        }
    }

    /// Waits until every row is repaired: the faults are over.
    pub(super) async fn until_all_is_readable(&self) {
        while self.check.has_spoiled() {
            sleep(Duration::from_secs(10)).await;
        }
    }

    fn spoil_one(&self) -> Option<Spoiled> {
        let core = &self.core;
        let of = |most: usize| {
            let most = i64::try_from(most).unwrap_or(1) - 1;
            usize::try_from(core.of(Fault::RowUnreadable, 0, most)).unwrap_or(0)
        };
        let tables = [Table::Nodes, Table::Jobs, Table::Allocs, Table::Handles, Table::Control, Table::Events];
        let table = *tables.get(of(tables.len()))?;
        let mut model = lock(&self.tables.model);
        // Ended things are not spoiled: no decision needs them.
        let is_alive = |row: &&store::Row| {
            let ended = ["cleaned", "complete", "failed", "cancelled", "rejected"];
            let is =
                |name: &str| row.get(name).and_then(|v| v.as_s().ok()).is_some_and(|w| ended.contains(&w.as_str()));
            table == Table::Events || !row.contains_key("expires_at") && !is("state")
        };
        let rows: Vec<store::Row> = model.rows(table).filter(is_alive).cloned().collect();
        let row = rows.get(of(rows.len()))?;
        let key = key_as_read(table, row).filter(|key| !self.check.is_spoiled(key))?;
        let ways = nonsense(table, row);
        let (attribute, value) = ways.get(of(ways.len()))?.clone();
        let mut bad = written(Item::clone(row), attribute);
        let sound = match value {
            Some(value) => bad.insert(attribute.to_owned(), value),
            None => bad.remove(attribute),
        };
        let until = core.now() + Span::from_s(core.of(Fault::RowUnreadable, 60, 1800));
        core.tell(|| "somebody".into(), || format!("spoils {attribute} of {key:?} until {until}"));
        model.replace(&key, bad.clone(), core.ms());
        drop(model);
        self.check.spoils(&key, &bad);
        Some(Spoiled { key, attribute, sound, until })
    }

    fn repair(&self, one: &Spoiled) {
        let mut model = lock(&self.tables.model);
        self.check.repairs(&one.key);
        let Some(row) = model.get(&one.key) else { return };
        let mut row = Item::clone(row);
        match &one.sound {
            // Whoever read the row before it was spoiled must not write over the repair.
            Some(AttributeValue::N(version)) if one.attribute == "version" => {
                let next = version.parse::<u64>().map_or(1, |v| v.saturating_add(1));
                row.insert("version".to_owned(), AttributeValue::N(next.to_string()));
            }
            Some(sound) => {
                row.insert(one.attribute.to_owned(), sound.clone());
                row = written(row, one.attribute);
            }
            None => _ = row.remove(one.attribute),
        }
        self.core.tell(|| "somebody".into(), || format!("repairs {:?}", one.key));
        model.replace(&one.key, row, self.core.ms());
    }
}
