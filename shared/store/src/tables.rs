//! The tables: their keys, indexes and time to live, defined once.
//!
//! Local tables are made from these definitions, and the template is checked against them.
//! Guarantees: no index projects more than the 20 attributes that DynamoDB allows.
//! Does not: name the attributes that are neither keys nor projected; the model's types do.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    Nodes,
    Jobs,
    Allocs,
    Handles,
    Control,
    Events,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    Number,
    Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyAttribute {
    pub name: &'static str,
    pub kind: KeyType,
}

/// A hash key, and a range key if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySchema {
    /// The attribute that rows are found by.
    pub hash: KeyAttribute,
    /// The attribute that rows with the same hash key are ordered by.
    pub range: Option<KeyAttribute>,
}

/// A global secondary index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    pub name: &'static str,
    pub key: KeySchema,
    /// The projected attributes besides the keys; `None` for the keys only.
    pub projected: Option<&'static [&'static str]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    pub table: Table,
    pub key: KeySchema,
    pub indexes: &'static [Index],
    /// Whether DynamoDB deletes rows some time after their `expires_at`.
    pub expires: bool,
}

const fn text(name: &'static str) -> KeyAttribute {
    KeyAttribute { name, kind: KeyType::Text }
}

const fn number(name: &'static str) -> KeyAttribute {
    KeyAttribute { name, kind: KeyType::Number }
}

/// A list of names, without the quotes.
macro_rules! names {
    ($($name:ident)*) => { &[$(stringify!($name)),*] };
}

const fn key(hash: KeyAttribute) -> KeySchema {
    KeySchema { hash, range: None }
}

const fn range_key(hash: KeyAttribute, range: KeyAttribute) -> KeySchema {
    KeySchema { hash, range: Some(range) }
}

/// The attribute of the time to live, in epoch **seconds**.
pub const EXPIRES: &str = "expires_at";

/// Jobs that have not ended, in the order of the queue, and jobs that have ended, by the time of their end. Placing and
/// regrouping jobs count as placed.
pub const QUEUE: Index = Index {
    name: "queue",
    key: range_key(text("queue"), text("rank")),
    projected: Some(names![
        version state name by labels share priority submitted_at needs array_count array_limit max_failures after paused
        give_up_after_s tries done allocs
    ]),
};

/// Every job by its id, spread over the last characters of the ids. It finds the newest jobs, and a job by a part of
/// its id.
///
/// Its keys never change, and it projects nothing else. So a job costs one write here at its submission, and none
/// later. With the last character as the hash key, an id whose end is known is in one of 32 parts, and an id whose
/// beginning is known is one range in each of them. An index by the whole end would cost one more write for each job.
pub const IDS: Index = Index { name: "ids", key: range_key(text("tail"), text("job_id")), projected: None };

/// Every job with a name, by the name and the id, spread as [`IDS`]: ten thousand jobs of one array have the same name, and
/// one hash value takes about 1,000 writes a second. It costs one write at the submission, as [`IDS`] does.
pub const NAMES: Index = Index { name: "names", key: range_key(text("tail"), text("named")), projected: None };

/// Allocs that are not final, by node.
pub const LIVE: Index = Index {
    name: "live",
    key: range_key(text("live_node"), text("alloc_id")),
    projected: Some(names![
        slot node_id desired client placed_seq placed_at started_at phase awaiting unknown_since_at stopping_since_at
        replaces replaced_by share by needs price_per_hour failure_policy
    ]),
};

/// Allocs that have ended, spread as [`IDS`], by the time of their end: what costs are computed from. It costs one write at
/// the end.
pub const ENDED: Index = Index {
    name: "ended",
    key: range_key(text("ended"), number("finished_at")),
    projected: Some(names![node_id placed_at needs price_per_hour name by share labels]),
};

/// Events by their time: those of slots, from which costs are computed, apart from the others.
pub const RECENT: Index = Index {
    name: "recent",
    key: range_key(text("recent"), text("id")),
    projected: Some(names![action reason detail expires_at]),
};

/// Handles, and waiting jobs, in the order in which a run must look at them. Also the jobs of each array with a limit of failures
/// that have failed, or have failed elements: their `due` is the array, and their `due_at` how many elements failed.
pub const DUE: Index = Index { name: "due", key: range_key(text("due"), number("due_at")), projected: None };

pub const TABLES: &[Definition] = &[
    Definition { table: Table::Nodes, key: key(number("slot")), indexes: &[], expires: false },
    Definition { table: Table::Jobs, key: key(text("job_id")), indexes: &[QUEUE, IDS, NAMES, DUE], expires: true },
    Definition { table: Table::Allocs, key: key(text("alloc_id")), indexes: &[LIVE, ENDED], expires: true },
    Definition {
        table: Table::Handles,
        key: range_key(text("node_id"), text("handle")),
        indexes: &[DUE],
        expires: true,
    },
    Definition { table: Table::Control, key: key(text("key")), indexes: &[], expires: false },
    Definition { table: Table::Events, key: range_key(text("subject"), text("id")), indexes: &[RECENT], expires: true },
];

impl Table {
    /// The part of the table's name after the name of the cluster.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Jobs => "jobs",
            Self::Allocs => "allocs",
            Self::Handles => "handles",
            Self::Control => "control",
            Self::Events => "events",
        }
    }

    pub fn definition(self) -> Definition {
        // Every variant has an entry, so the default is never used. The test `every_table_is_defined` checks it.
        let empty = Definition { table: self, key: key(text("key")), indexes: &[], expires: false };
        TABLES.iter().copied().find(|d| d.table == self).unwrap_or(empty)
    }
}

/// The definitions as JSON, for the template's check.
pub fn to_json() -> Value {
    let attribute = |a: KeyAttribute| json!({"name": a.name, "type": match a.kind { KeyType::Number => "N", KeyType::Text => "S" }});
    let key = |k: KeySchema| json!({"hash": attribute(k.hash), "range": k.range.map(attribute)});
    let index = |i: &Index| {
        let projection = match i.projected {
            None => json!({"type": "KEYS_ONLY"}),
            Some(names) => {
                let mut names = names.to_vec();
                names.sort_unstable();
                json!({"type": "INCLUDE", "attributes": names})
            }
        };
        json!({"name": i.name, "hash": attribute(i.key.hash), "range": i.key.range.map(attribute), "projection": projection})
    };
    TABLES
        .iter()
        .map(|d| {
            json!({
                "name": d.table.suffix(), "key": key(d.key),
                "indexes": d.indexes.iter().map(index).collect::<Vec<_>>(),
                "ttl": d.expires.then_some(EXPIRES),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_defined() {
        use Table::{Allocs, Control, Events, Handles, Jobs, Nodes};
        for table in [Nodes, Jobs, Allocs, Handles, Control, Events] {
            assert_eq!(TABLES.iter().filter(|d| d.table == table).count(), 1, "{table:?}");
        }
    }

    #[test]
    fn no_index_projects_more_than_dynamodb_takes() {
        let projected: Vec<usize> =
            TABLES.iter().flat_map(|d| d.indexes).filter_map(|i| i.projected).map(<[_]>::len).collect();
        assert!(projected.iter().all(|n| *n <= 20) && projected.iter().sum::<usize>() <= 100, "{projected:?}");
    }
}
