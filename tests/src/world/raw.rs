//! The rows of a world's tables as DynamoDB keeps them, for tests that break rows on purpose.

use super::World;
use aws_sdk_dynamodb::types::AttributeValue;
use nodekeeper_simulation::embedded::Embedded;
use std::collections::HashMap;
use store::{Answer, Db, Effect, Key, KeyAttribute, Scan, TABLES, Write};

pub type Item = HashMap<String, AttributeValue>;

pub fn s(text: impl ToString) -> AttributeValue {
    AttributeValue::S(text.to_string())
}

pub fn n(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub fn m(pairs: &[(&str, AttributeValue)]) -> AttributeValue {
    AttributeValue::M(item(pairs))
}

pub fn item(pairs: &[(&str, AttributeValue)]) -> Item {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// A row without the attributes that a steady heartbeat and a report write. These writes do not read the row, and touch
/// no other attribute.
pub fn without_pulse(mut row: Item) -> Item {
    for name in ["last_ping_at", "lease_expires_at", "uptime_ms", "alloc_report_no", "handle_report_no", "settled"] {
        row.remove(name);
    }
    row
}

pub struct Raw {
    tables: Embedded,
}

/// The table of this name, and the key of a row in it. `from` may be the whole row.
fn key(table: &str, from: &Item) -> Key {
    let definition = TABLES.iter().find(|d| d.table.suffix() == table).unwrap_or_else(|| panic!("no table {table}"));
    let value = |attribute: KeyAttribute| from[attribute.name].clone();
    Key { table: definition.table, hash: value(definition.key.hash), range: definition.key.range.map(value) }
}

impl Raw {
    pub fn of(world: &World) -> Self {
        Self { tables: world.tables.clone() }
    }

    async fn write(&self, key: Key, effect: Effect) {
        self.tables.write(&Write { key, when: Vec::new(), effect }, Answer::None).await.unwrap();
    }

    pub async fn get(&self, table: &str, row: &Item) -> Option<Item> {
        self.tables.get(&key(table, row)).await.unwrap().map(|row| (*row).clone())
    }

    pub async fn put(&self, table: &str, row: &Item) {
        self.write(key(table, row), Effect::Put(row.clone())).await;
    }

    pub async fn delete(&self, table: &str, row: &Item) {
        self.write(key(table, row), Effect::Delete).await;
    }

    /// Every row of a table. The tables of a test fit one page.
    pub async fn rows(&self, table: &str) -> Vec<Item> {
        let definition = TABLES.iter().find(|d| d.table.suffix() == table).unwrap();
        let page = self.tables.scan(&Scan::all(definition.table, None), None).await.unwrap();
        assert!(page.next.is_none(), "{table} has more than a page");
        page.items.into_iter().map(|row| (*row).clone()).collect()
    }
}
