//! Random reads and writes on few keys. Each answer is compared, and all tables at the end.

use super::bench::{Bench, Got, Op, handle, job, l, m, n, ns, row, s, ss};
use super::lists::query;
use aws_sdk_dynamodb::types::AttributeValue;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use store::{Answer, Cond, DUE, Effect, Index, Item, Key, LIVE, PageKey, QUEUE, Query, TABLES, Table, Write};

const NAMES: &[&str] =
    &["version", "state", "allocs", "done", "extra", "name", "queue", "rank", "live_node", "due", "due_at"];

struct Walk {
    rng: StdRng,
    keys: Vec<Key>,
    /// Whether the walk also tries requests that are refused, and other spellings of numbers.
    strict: bool,
    /// The places at which queries stopped, to continue from later.
    places: Vec<(Query, PageKey)>,
}

pub async fn walk(bench: &Bench, seed: u64, steps: usize) {
    let mut keys: Vec<Key> = (0..4).map(|i| job(&format!("j{i}"))).collect();
    keys.extend((0..4).map(|i| Key::hash(Table::Allocs, s(&format!("a{i}")))));
    keys.extend((0..3).map(|i| Key::hash(Table::Nodes, n(i))));
    keys.extend((0..6).map(|i| handle(&format!("n{}", i % 2), &format!("h{i}"))));
    let mut walk = Walk { rng: StdRng::seed_from_u64(seed), keys, strict: bench.strict, places: Vec::new() };
    let (mut done, mut conflicts, mut refused) = (0, 0, 0);
    for step in 0..steps {
        let op = walk.op();
        let got = bench.ask(&format!("seed {seed} step {step}"), op.clone()).await;
        if !bench.agree() {
            return;
        }
        if let Op::Write(..) | Op::Transact(_) = &op {
            match got {
                Got::Row(_) => done += 1,
                Got::Conflict(_) => conflicts += 1,
                _ => refused += 1,
            }
        } else if let (Op::Page(query, _), Got::Page(_, Some(_))) = (op, &got) {
            walk.remember(query);
        }
    }
    for definition in TABLES {
        bench.ask(&format!("seed {seed} at the end"), Op::Scan(definition.table, None)).await;
        for index in definition.indexes {
            bench.ask(&format!("seed {seed} at the end"), Op::Scan(definition.table, Some(*index))).await;
        }
    }
    // The walk reached enough different situations.
    assert!(!bench.strict || refused > 0, "{refused}");
    assert!(done > steps / 8 && conflicts > steps / 40, "{done} {conflicts}");
}

impl Walk {
    fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_ratio(1, n)
    }

    fn key(&mut self) -> Key {
        let at = self.below(self.keys.len());
        self.keys[at].clone()
    }

    fn name(&mut self) -> &'static str {
        NAMES[self.below(NAMES.len())]
    }

    /// A valid value for an attribute, or sometimes an invalid one. Never an invalid value in a transaction, because
    /// DynamoDB does not document which item's error wins. Never an invalid value for an index key, because DynamoDB
    /// may check the key before or after the conditions.
    fn value(&mut self, key: &Key, name: &str, in_transaction: bool) -> AttributeValue {
        let of_index = ["queue", "rank", "live_node", "due", "due_at"].contains(&name);
        if self.strict && !in_transaction && !of_index && self.one_in(60) {
            return [s(""), n("x"), AttributeValue::Ss(Vec::new()), n(1), AttributeValue::Null(true)][self.below(5)]
                .clone();
        }
        self.good(key, name)
    }

    /// A valid value for an attribute. Each row has its own value for the range key of an index, so that the order is
    /// defined.
    fn good(&mut self, key: &Key, name: &str) -> AttributeValue {
        let of_row = self.keys.iter().position(|k| k == key).unwrap_or_default();
        match name {
            "version" => n([0, 1, 2, 3, -1][self.below(5)]),
            "state" => s(["queued", "placed", "complete"][self.below(3)]),
            "allocs" => ss([&["a"][..], &["a", "b"], &["b", "a"], &["c"]][self.below(4)]),
            "done" => {
                ns([&["1"][..], &["2", "1"], &["10", "9"], &["1.0", "2"]][self.below(if self.strict { 4 } else { 3 })])
            }
            "name" => s(["x", "X", "", "a much longer name"][self.below(4)]),
            "queue" => s(["queued", "placed"][self.below(2)]),
            "rank" => s(&format!("{}-{of_row}", ["9", "10", "a", "B", "é"][self.below(5)])),
            "live_node" => s(["n0", "n1"][self.below(2)]),
            "due" => s("due"),
            "due_at" => n([-7, 0, 9, 10, 100, 1_800_000_000_000_i64][self.below(6)] * 20 + of_row as i64),
            _ => self.any(2),
        }
    }

    fn any(&mut self, depth: u32) -> AttributeValue {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => s(["", "a", "b"][self.below(3)]),
            1 => n(["1", "0.25", "-3", "100", "1.0", "1e2"][self.below(if self.strict { 6 } else { 4 })]),
            2 => AttributeValue::Bool(self.one_in(2)),
            3 => AttributeValue::Null(true),
            4 => ss(&["a"]),
            5 | 6 => l(&(0..self.below(3)).map(|_| self.any(depth - 1)).collect::<Vec<_>>()),
            _ => {
                let names = ["a", "b", "c"];
                let map: Vec<_> = (0..self.below(3)).map(|i| (names[i], self.any(depth - 1))).collect();
                m(&map)
            }
        }
    }

    fn cond(&mut self, key: &Key, depth: u32) -> Cond {
        let name = match self.below(8) {
            0 => key.table.definition().key.hash.name,
            1 | 2 => "version",
            _ => self.name(),
        };
        match self.below(if depth == 0 { 8 } else { 9 }) {
            0..=2 => Cond::Absent(name),
            // Only valid operands. `cases` tests the operands that are refused.
            3 | 4 => Cond::Eq(name, self.good(key, name)),
            5 | 6 => match self.good(key, name) {
                bound @ (AttributeValue::N(_) | AttributeValue::S(_)) => Cond::Lt(name, bound),
                _ => Cond::Lt(name, n(2)),
            },
            7 => Cond::In(name, (0..1 + self.below(3)).map(|_| self.good(key, name)).collect()),
            _ => Cond::Any((0..1 + self.below(2)).map(|_| self.cond(key, depth - 1)).collect()),
        }
    }

    fn attributes(&mut self, key: &Key, in_transaction: bool) -> Vec<(&'static str, AttributeValue)> {
        let count = self.below(5);
        let mut all: BTreeMap<&'static str, AttributeValue> = BTreeMap::new();
        for _ in 0..count {
            let name = self.name();
            all.insert(name, self.value(key, name, in_transaction));
        }
        // Sets both keys of an index together, more often than a random choice would.
        if self.one_in(2) {
            let names: &[&'static str] = match key.table {
                Table::Jobs => &["queue", "rank"],
                Table::Allocs => &["live_node"],
                Table::Handles => &["due", "due_at"],
                _ => &[],
            };
            for name in names {
                all.insert(name, self.value(key, name, in_transaction));
            }
        }
        all.into_iter().collect()
    }

    fn write(&mut self, key: Key, in_transaction: bool) -> Write {
        let effect = match self.below(if in_transaction { 12 } else { 10 }) {
            0..=2 => Effect::Put(row(&key, &self.attributes(&key, in_transaction))),
            3..=7 => {
                let set: BTreeMap<String, AttributeValue> =
                    self.attributes(&key, in_transaction).into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
                let mut remove: Vec<String> = (0..self.below(3)).map(|_| self.name().to_owned()).collect();
                remove.sort_unstable();
                remove.dedup();
                if !self.strict || !self.one_in(20) {
                    remove.retain(|r| !set.contains_key(r));
                }
                if !self.strict && set.is_empty() && remove.is_empty() {
                    remove.push("state".into());
                }
                Effect::Update { set, remove }
            }
            8 | 9 => Effect::Delete,
            _ => Effect::Check,
        };
        let count = [0, 0, 1, 1, 2][self.below(5)];
        let mut when: Vec<Cond> = (0..count).map(|_| self.cond(&key, 1)).collect();
        if effect == Effect::Check && when.is_empty() && !self.one_in(20) {
            when.push(self.cond(&key, 1));
        }
        Write { key, when, effect }
    }

    fn query(&mut self) -> Query {
        let (table, index, hash, most): (Table, Option<Index>, AttributeValue, AttributeValue) = match self.below(4) {
            0 => {
                (Table::Jobs, Some(QUEUE), s(["queued", "placed"][self.below(2)]), s(["10-9", "B", "b"][self.below(3)]))
            }
            1 => (Table::Allocs, Some(LIVE), s(["n0", "n1"][self.below(2)]), s("a1")),
            2 => (Table::Handles, Some(DUE), s("due"), n([-200, 50, 205, 5000][self.below(4)])),
            _ => (Table::Handles, None, s(["n0", "n1"][self.below(2)]), s(["h1", "h2", "h3"][self.below(3)])),
        };
        let range_at_most = self.one_in(3).then_some(most);
        let limit = self.one_in(2).then(|| [1, 2, 3][self.below(3)]);
        Query { range_at_most, newest_first: self.one_in(2), limit, ..query(table, index, hash) }
    }

    fn remember(&mut self, query: Query) {
        // The place to continue from is made from the query. A place without a row is allowed too.
        let key = query.table.definition().key;
        let candidates: Vec<Key> = self
            .keys
            .iter()
            .filter(|k| k.table == query.table && (query.index.is_some() || k.hash == query.hash))
            .cloned()
            .collect();
        let Some(at) = (!candidates.is_empty()).then(|| self.below(candidates.len())) else { return };
        let of = candidates[at].clone();
        let mut place: Item = of.attributes();
        if let Some(index) = query.index {
            place.insert(index.key.hash.name.into(), query.hash.clone());
            if let Some(range) = index.key.range.filter(|r| r.name != key.hash.name) {
                let value = self.good(&of, range.name);
                place.insert(range.name.into(), value);
            }
        }
        // A place beyond the query's bound is not allowed.
        if query.range_at_most.is_none() {
            self.places.push((query, place));
        }
    }

    fn op(&mut self) -> Op {
        match self.below(20) {
            0 => Op::Get(self.key()),
            1 => {
                let of = self.key().table;
                let mut keys: Vec<Key> = self.keys.iter().filter(|k| k.table == of).cloned().collect();
                keys.truncate(1 + self.below(4));
                if self.one_in(10) {
                    keys.push(keys[0].clone());
                }
                Op::GetMany(keys)
            }
            2 => Op::Query(self.query()),
            3 => Op::Page(Query { limit: Some(2), ..self.query() }, None),
            4 => match self.places.pop() {
                Some((query, place)) => Op::Page(query, Some(place)),
                None => Op::Page(Query { limit: Some(1), ..self.query() }, None),
            },
            5 => match self.below(4) {
                0 => Op::Scan(Table::Jobs, Some(QUEUE)),
                1 => Op::Scan(Table::Allocs, Some(LIVE)),
                2 => Op::Scan(Table::Handles, Some(DUE)),
                _ => Op::Scan(Table::Handles, None),
            },
            6..=15 => {
                let key = self.key();
                let answer = if self.one_in(2) { Answer::Row } else { Answer::None };
                Op::Write(self.write(key, false), answer)
            }
            _ => {
                let mut writes: Vec<Write> = Vec::new();
                for _ in 0..1 + self.below(4) {
                    let key = self.key();
                    if writes.iter().all(|w| w.key != key) || self.one_in(10) {
                        writes.push(self.write(key, true));
                    }
                }
                Op::Transact(writes)
            }
        }
    }
}
