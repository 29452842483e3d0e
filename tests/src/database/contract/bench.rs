//! The databases that are compared, the requests to them, and their answers.

use crate::second_opinions::Emulator;
use crate::world::{dynamo_client, dynamo_url, fresh_cluster};
use aws_sdk_dynamodb::types::AttributeValue;
use nodekeeper_cli::local::tables;
use nodekeeper_simulation::database::Plain;
use nodekeeper_simulation::embedded::Embedded;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use store::{
    Answer, Db, DbError, Dynamo, Effect, Index, Item, Key, Page, PageKey, Query, Row, Scan, Table, Write, WriteError,
};

const PLAIN: &str = "the model";
const EMBEDDED: &str = "the embedded DynamoDB, in process";
const HTTP: &str = "the embedded DynamoDB, through the SDK";
const MINISTACK: &str = "ministack";

/// Known mistakes of engines: the engine, the case, and what AWS does.
const EXCUSED: &[(&[&str], &str, &str)] = &[
    (
        &[EMBEDDED, HTTP, MINISTACK],
        "condition: a bound without order",
        "ValidationException: incorrect operand type for operator <; only S, N and B have an order",
    ),
    (
        &[EMBEDDED, HTTP, MINISTACK],
        "condition: one of too many values",
        "developer guide, condition expressions: the list of IN holds up to 100 values",
    ),
    (
        &[EMBEDDED],
        "condition: no number to compare with",
        "the engine looks at operands where it reads JSON, which calling it in process goes around",
    ),
    (
        &[EMBEDDED, HTTP, MINISTACK],
        "effect: an update of the key (in a transaction)",
        "API reference, UpdateItem and TransactWriteItems: key attributes cannot be updated",
    ),
    (
        &[EMBEDDED, HTTP, MINISTACK],
        "effect: a removal of the key (in a transaction)",
        "API reference, UpdateItem and TransactWriteItems: key attributes cannot be updated",
    ),
    (
        &[EMBEDDED, HTTP],
        "refused: an empty hash value",
        "developer guide, naming rules and data types: a key is never empty",
    ),
    (
        &[MINISTACK],
        "condition: an empty set to compare with",
        "developer guide, naming rules and data types: there are no empty sets",
    ),
    (
        &[MINISTACK],
        "effect: an empty set (in a transaction)",
        "developer guide, naming rules and data types: there are no empty sets",
    ),
    (
        &[MINISTACK],
        "effect: numbers are kept in one spelling (in a transaction)",
        "developer guide, naming rules and data types: leading and trailing zeros are trimmed",
    ),
    (
        &[MINISTACK],
        "a key spelled otherwise",
        "developer guide, naming rules and data types: leading and trailing zeros are trimmed",
    ),
    (
        &[MINISTACK],
        "effect: set and removed at once",
        "developer guide, update expressions: an attribute is changed once; two document paths overlap",
    ),
    (&[MINISTACK], "wrong key: shape", "API reference, TransactWriteItems: the primary key is all of its attributes"),
    (
        &[MINISTACK],
        "refused: a start of another type",
        "API reference, Query: only S, N and B of the key's own type are allowed",
    ),
];

#[derive(Clone, Debug)]
pub enum Op {
    Get(Key),
    GetMany(Vec<Key>),
    Query(Query),
    Page(Query, Option<PageKey>),
    Scan(Table, Option<Index>),
    Write(Write, Answer),
    Transact(Vec<Write>),
}

/// A row in a form that can be compared.
pub type Seen = BTreeMap<String, String>;

#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Rows(Vec<Seen>),
    Page(Vec<Seen>, Option<Seen>),
    Row(Option<Seen>),
    Conflict(Option<Seen>),
    Contended,
    Refused,
    Throttled,
    Other,
}

/// Several databases that get the same requests.
pub struct Bench {
    dbs: Vec<(&'static str, Arc<dyn Db>)>,
    /// Whether every combination is tried. If calls are slow, only the most useful combinations are.
    pub thorough: bool,
    /// Whether random walks also compare refused requests.
    pub strict: bool,
    differences: Mutex<Vec<String>>,
    excuses: Mutex<BTreeSet<&'static str>>,
    _emulator: Option<Emulator>,
}

impl Bench {
    pub fn in_process() -> Self {
        let dbs: Vec<(_, Arc<dyn Db>)> =
            vec![(PLAIN, Arc::new(Plain::new())), (EMBEDDED, Arc::new(Embedded::new().unwrap()))];
        Self {
            dbs,
            thorough: true,
            strict: true,
            differences: Mutex::default(),
            excuses: Mutex::default(),
            _emulator: None,
        }
    }

    pub async fn with_sdk(name: &'static str, url: &str, emulator: Option<Emulator>) -> Self {
        let dynamo = Dynamo::new(dynamo_client(url), fresh_cluster());
        tables::make(&dynamo).await.unwrap();
        let dbs: Vec<(_, Arc<dyn Db>)> = vec![(PLAIN, Arc::new(Plain::new())), (name, Arc::new(dynamo))];
        Self {
            dbs,
            thorough: false,
            strict: name != MINISTACK,
            differences: Mutex::default(),
            excuses: Mutex::default(),
            _emulator: emulator,
        }
    }

    pub async fn http() -> Self {
        Self::with_sdk(HTTP, dynamo_url(), None).await
    }

    pub async fn ministack() -> Self {
        let emulator = Emulator::ministack();
        let url = emulator.url.clone();
        Self::with_sdk(MINISTACK, &url, Some(emulator)).await
    }

    /// Sends a request to all databases, and compares their answers with the model's.
    pub async fn ask(&self, what: &str, op: Op) -> Got {
        self.hold(what, op, None).await
    }

    /// Sends a request to all databases, and compares their answers with `expected`.
    pub async fn expect(&self, what: &str, op: Op, expected: &Got) {
        self.hold(what, op, Some(expected)).await;
    }

    pub async fn hold(&self, what: &str, op: Op, expected: Option<&Got>) -> Got {
        let mut model: Option<Got> = None;
        for (name, db) in &self.dbs {
            let (got, words) = ask(db.as_ref(), &op).await;
            let held_to = expected.or(model.as_ref()).unwrap_or(&got);
            if *held_to != got && !self.excused(name, what) {
                let all = format!("{what}: {op:?}\n  expected {held_to:?}\n  {name}: {got:?} {words}");
                self.differences.lock().unwrap().push(all);
            }
            model.get_or_insert(got);
        }
        model.unwrap()
    }

    /// Writes a row without a condition, as the start of a case.
    pub async fn given(&self, write: Write) {
        self.expect("given", Op::Write(write, Answer::None), &Got::Row(None)).await;
    }

    /// Whether all answers have been equal so far.
    pub fn agree(&self) -> bool {
        self.differences.lock().unwrap().is_empty()
    }

    pub fn excused(&self, engine: &str, what: &str) -> bool {
        let excuse = EXCUSED.iter().find(|(names, case, _)| names.contains(&engine) && what.starts_with(case));
        if let Some((_, case, _)) = excuse {
            self.excuses.lock().unwrap().insert(case);
        }
        excuse.is_some()
    }

    /// Fails if an engine is right now, so that its excuse is not needed any more.
    pub fn excuses_are_needed(&self) {
        let used = self.excuses.lock().unwrap();
        for (names, case, _) in EXCUSED {
            let here = self.dbs.iter().any(|(name, _)| names.contains(name));
            assert!(!here || used.contains(case), "{case}: no longer different");
        }
    }

    /// Fails with all differences at once.
    pub fn close(&self) {
        let differences = self.differences.lock().unwrap();
        let first: Vec<&str> = differences.iter().take(60).map(String::as_str).collect();
        assert!(first.is_empty(), "{} differences:\n{}", differences.len(), first.join("\n"));
    }
}

async fn ask(db: &dyn Db, op: &Op) -> (Got, String) {
    let result = match op {
        Op::Get(key) => db.get(key).await.map(|row| Got::Row(row.as_deref().map(seen))),
        Op::GetMany(keys) => db.get_many(keys).await.map(|rows| Got::Rows(sorted(&rows))),
        Op::Query(query) => whole(db, query).await.map(Got::Rows),
        Op::Page(query, from) => {
            let page = db.query(query, from.clone()).await;
            page.map(|p| Got::Page(p.items.iter().map(|row| seen(row)).collect(), p.next.as_ref().map(seen)))
        }
        Op::Scan(table, index) => scan(db, *table, *index).await.map(Got::Rows),
        Op::Write(write, answer) => match db.write(write, *answer).await {
            Ok(row) => Ok(Got::Row(row.as_deref().map(seen))),
            Err(e) => not_written(e),
        },
        Op::Transact(writes) => match db.transact(writes).await {
            Ok(()) => Ok(Got::Row(None)),
            Err(e) => not_written(e),
        },
    };
    match result {
        Ok(got) => (got, String::new()),
        Err(e) => (failed(&e), e.to_string()),
    }
}

fn not_written(error: WriteError) -> Result<Got, DbError> {
    match error {
        WriteError::Conflict(row) => Ok(Got::Conflict(row.as_deref().map(seen))),
        WriteError::Contended => Ok(Got::Contended),
        WriteError::Db(e) => Err(e),
    }
}

pub fn failed(error: &DbError) -> Got {
    match error {
        DbError::Refused { .. } => Got::Refused,
        DbError::Throttled { .. } => Got::Throttled,
        _ => Got::Other,
    }
}

/// Stops a list that never ends. No list in these tests has so many pages.
fn ends(pages: usize) -> Result<(), DbError> {
    let (code, message) = ("Endless".to_owned(), format!("{pages} pages and no end"));
    if pages < 200 { Ok(()) } else { Err(DbError::Refused { operation: "pages", code, message }) }
}

/// Every page of a query. Rows with the same range key, which an index may hold, are sorted.
async fn whole(db: &dyn Db, query: &Query) -> Result<Vec<Seen>, DbError> {
    let range = query.index.map_or(query.table.definition().key, |i| i.key).range.map(|r| r.name);
    let (mut rows, mut from, mut pages): (Vec<Seen>, _, usize) = (Vec::new(), None, 0);
    loop {
        let Page { items, next } = db.query(query, from).await?;
        pages += 1;
        ends(pages)?;
        assert!(query.limit.is_none_or(|l| items.len() <= usize::try_from(l).unwrap()), "a page has too many rows");
        rows.extend(items.iter().map(|row| seen(row)));
        from = next;
        if from.is_none() {
            break;
        }
    }
    if let Some(range) = range {
        for tied in rows.chunk_by_mut(|a, b| a.get(range) == b.get(range)) {
            tied.sort_unstable();
        }
    }
    Ok(rows)
}

async fn scan(db: &dyn Db, table: Table, index: Option<Index>) -> Result<Vec<Seen>, DbError> {
    let (mut rows, mut from, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = db.scan(&Scan::all(table, index), from).await?;
        pages += 1;
        ends(pages)?;
        rows.extend(page.items);
        from = page.next;
        if from.is_none() {
            return Ok(sorted(&rows));
        }
    }
}

fn sorted(items: &[Row]) -> Vec<Seen> {
    let mut rows: Vec<Seen> = items.iter().map(|row| seen(row)).collect();
    rows.sort_unstable();
    rows
}

pub fn seen(item: &Item) -> Seen {
    item.iter().map(|(k, v)| (k.clone(), text(v))).collect()
}

/// A value as a text to compare. Sets and maps have no order. Numbers keep their spelling.
fn text(value: &AttributeValue) -> String {
    let sorted = |all: &[String]| {
        let mut all = all.to_vec();
        all.sort_unstable();
        all.join("|")
    };
    match value {
        AttributeValue::S(t) => format!("S {t}"),
        AttributeValue::N(t) => format!("N {t}"),
        AttributeValue::Ss(all) => format!("SS {}", sorted(all)),
        AttributeValue::Ns(all) => format!("NS {}", sorted(all)),
        AttributeValue::L(all) => format!("L {:?}", all.iter().map(text).collect::<Vec<_>>()),
        AttributeValue::M(map) => format!("M {:?}", seen(map)),
        other => format!("{other:?}"),
    }
}

pub fn s(text: &str) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub fn n(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

pub fn ss(texts: &[&str]) -> AttributeValue {
    AttributeValue::Ss(texts.iter().map(|t| (*t).to_owned()).collect())
}

pub fn ns(numbers: &[&str]) -> AttributeValue {
    AttributeValue::Ns(numbers.iter().map(|t| (*t).to_owned()).collect())
}

pub fn l(list: &[AttributeValue]) -> AttributeValue {
    AttributeValue::L(list.to_vec())
}

pub fn m(map: &[(&str, AttributeValue)]) -> AttributeValue {
    AttributeValue::M(item(map))
}

pub fn item(attributes: &[(&str, AttributeValue)]) -> Item {
    attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect::<HashMap<_, _>>()
}

/// A row's key and its other attributes.
pub fn row(key: &Key, more: &[(&str, AttributeValue)]) -> Item {
    let mut row = key.attributes();
    row.extend(item(more));
    row
}

pub fn put(key: &Key, more: &[(&str, AttributeValue)]) -> Write {
    Write { key: key.clone(), when: Vec::new(), effect: Effect::Put(row(key, more)) }
}

pub fn update(key: &Key, set: &[(&str, AttributeValue)], remove: &[&str]) -> Write {
    let set = set.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    let remove = remove.iter().map(|r| (*r).to_owned()).collect();
    Write { key: key.clone(), when: Vec::new(), effect: Effect::Update { set, remove } }
}

pub fn delete(key: &Key) -> Write {
    Write { key: key.clone(), when: Vec::new(), effect: Effect::Delete }
}

pub fn check(key: &Key) -> Write {
    Write { key: key.clone(), when: Vec::new(), effect: Effect::Check }
}

pub fn job(id: &str) -> Key {
    Key::hash(Table::Jobs, s(id))
}

pub fn handle(node: &str, handle: &str) -> Key {
    Key { table: Table::Handles, hash: s(node), range: Some(s(handle)) }
}
