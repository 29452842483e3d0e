//! The rows of a world's tables as DynamoDB keeps them, for tests that break rows on purpose.

use crate::world::{World, dynamo_client, dynamo_url};
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::HashMap;

pub type Item = HashMap<String, AttributeValue>;

pub fn s(text: impl ToString) -> AttributeValue {
    AttributeValue::S(text.to_string())
}

pub fn n(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// An item of these attributes.
pub fn item(pairs: &[(&str, AttributeValue)]) -> Item {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// A row without what a steady heartbeat and a report write. They do not read the row before, and touch nothing else.
pub fn without_pulse(mut row: Item) -> Item {
    for name in ["last_ping_at", "lease_expires_at", "uptime_ms", "alloc_report_no", "handle_report_no", "settled"] {
        row.remove(name);
    }
    row
}

/// The tables of one world.
pub struct Raw {
    client: aws_sdk_dynamodb::Client,
    prefix: String,
}

impl Raw {
    pub fn of(world: &World) -> Self {
        Self { client: dynamo_client(dynamo_url()), prefix: world.cluster.to_string() }
    }

    fn table(&self, table: &str) -> String {
        format!("{}-{table}", self.prefix)
    }

    pub async fn get(&self, table: &str, key: &Item) -> Option<Item> {
        let read = self.client.get_item().table_name(self.table(table)).set_key(Some(key.clone()));
        read.consistent_read(true).send().await.unwrap().item
    }

    pub async fn put(&self, table: &str, item: &Item) {
        self.client.put_item().table_name(self.table(table)).set_item(Some(item.clone())).send().await.unwrap();
    }

    pub async fn delete(&self, table: &str, key: &Item) {
        self.client.delete_item().table_name(self.table(table)).set_key(Some(key.clone())).send().await.unwrap();
    }

    /// Every row of a table. The tables of a test fit one page.
    pub async fn rows(&self, table: &str) -> Vec<Item> {
        let scan = self.client.scan().table_name(self.table(table)).consistent_read(true);
        scan.send().await.unwrap().items.unwrap_or_default()
    }
}
