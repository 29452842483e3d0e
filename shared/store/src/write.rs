//! Conditional writes as values: what a write requires and changes, before it becomes a DynamoDB
//! expression.
//!
//! Guarantees: every name and value has an alias, so that DynamoDB's reserved words do not matter; the
//! same values can be rendered for DynamoDB or applied to tables in memory.
//! Does not: call anything.

use crate::tables::Table;
use aws_sdk_dynamodb::types::AttributeValue;
use std::collections::{BTreeMap, HashMap};

/// A row: attribute names and values, as DynamoDB keeps them.
pub type Item = HashMap<String, AttributeValue>;

#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub table: Table,
    pub hash: AttributeValue,
    /// `None` if the table has no range key.
    pub range: Option<AttributeValue>,
}

impl Key {
    /// A key of a table without a range key.
    pub fn hash(table: Table, hash: AttributeValue) -> Self {
        Self { table, hash, range: None }
    }

    /// The key as the attributes of its row.
    pub fn attributes(&self) -> Item {
        let schema = self.table.definition().key;
        let mut item = Item::from([(schema.hash.name.to_owned(), self.hash.clone())]);
        if let (Some(attribute), Some(value)) = (schema.range, &self.range) {
            item.insert(attribute.name.to_owned(), value.clone());
        }
        item
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Cond {
    /// The row does not have the attribute. For a key attribute: there is no row.
    Absent(&'static str),
    Eq(&'static str, AttributeValue),
    /// The row has the attribute, and its value is less than this.
    Lt(&'static str, AttributeValue),
    /// The attribute has one of these values.
    In(&'static str, Vec<AttributeValue>),
    /// At least one of these holds.
    Any(Vec<Cond>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Put(Item),
    /// Sets some attributes and removes others.
    Update {
        set: BTreeMap<String, AttributeValue>,
        remove: Vec<String>,
    },
    Delete,
    /// Nothing: only the conditions are checked, in a transaction.
    Check,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub key: Key,
    /// All of these conditions must hold.
    pub when: Vec<Cond>,
    pub effect: Effect,
}

impl Cond {
    /// The attribute has this value, or is absent.
    pub fn is(name: &'static str, value: Option<AttributeValue>) -> Self {
        value.map_or_else(|| Self::Absent(name), |value| Self::Eq(name, value))
    }
}

impl Write {
    /// The write with one more condition.
    #[must_use]
    pub fn and(mut self, cond: Cond) -> Self {
        self.when.push(cond);
        self
    }
}

/// Names and values of one expression.
#[derive(Debug, Default)]
pub struct Aliases {
    /// Names by alias: `#n0` and so on.
    pub names: HashMap<String, String>,
    /// Values by alias: `:v0` and so on.
    pub values: HashMap<String, AttributeValue>,
}

impl Aliases {
    /// The alias for `name`: always the same one.
    pub fn name(&mut self, name: &str) -> String {
        if let Some((alias, _)) = self.names.iter().find(|(_, n)| n.as_str() == name) {
            return alias.clone();
        }
        let alias = format!("#n{}", self.names.len());
        self.names.insert(alias.clone(), name.to_owned());
        alias
    }

    /// A new alias for `value`.
    pub fn value(&mut self, value: &AttributeValue) -> String {
        let alias = format!(":v{}", self.values.len());
        self.values.insert(alias.clone(), value.clone());
        alias
    }

    /// The condition expression; `None` if there is no condition.
    pub fn condition(&mut self, conds: &[Cond]) -> Option<String> {
        let parts: Vec<String> = conds.iter().map(|c| self.one(c)).collect();
        (!parts.is_empty()).then(|| parts.join(" AND "))
    }

    fn one(&mut self, cond: &Cond) -> String {
        match cond {
            Cond::Absent(name) => format!("attribute_not_exists({})", self.name(name)),
            Cond::Eq(name, value) => format!("{} = {}", self.name(name), self.value(value)),
            Cond::Lt(name, value) => format!("{} < {}", self.name(name), self.value(value)),
            Cond::In(name, values) => {
                let name = self.name(name);
                let values: Vec<String> = values.iter().map(|v| self.value(v)).collect();
                format!("{name} IN ({})", values.join(", "))
            }
            Cond::Any(conds) => {
                let parts: Vec<String> = conds.iter().map(|c| self.one(c)).collect();
                format!("({})", parts.join(" OR "))
            }
        }
    }

    /// The update expression. Its names and values are in the maps of `self` then.
    pub fn update(&mut self, set: &BTreeMap<String, AttributeValue>, remove: &[String]) -> String {
        let mut clauses = Vec::new();
        if !set.is_empty() {
            let parts: Vec<String> = set.iter().map(|(n, v)| format!("{} = {}", self.name(n), self.value(v))).collect();
            clauses.push(format!("SET {}", parts.join(", ")));
        }
        if !remove.is_empty() {
            let parts: Vec<String> = remove.iter().map(|n| self.name(n)).collect();
            clauses.push(format!("REMOVE {}", parts.join(", ")));
        }
        clauses.join(" ")
    }
}
