//! The commands against an embedded DynamoDB: what they print, and which rows they change.

mod asking;
mod bulk;
mod demand;
mod ending;
mod entering;
mod explaining;
mod fetching;
mod following;
mod in_aws;
mod jobs;
mod naming;
mod nodes;
mod output;
pub(crate) mod output_store;
mod people;
mod permissions;
mod refusing;
mod running;
mod setting_up;
mod sizes;
mod stored;

use crate::command::{Command, run};
use crate::console::{Cluster, ClusterAccess, Context, Exit, Person, Screen, UsageError};
use crate::local::tables;
use crate::view::NextRun;
use async_trait::async_trait;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use clap::Parser;
use model::control::{BrakeEntry, BrakeState, Entry, EntryRow, FailedStarts, LaunchWait, RunNote, RunRow};
use model::fixtures::{self, FixedOffers, at};
use model::{
    Alloc, ClientStatus, Cloud, CloudError, ControlKey, Ending, Event, Handle, HandleKind, HandleState, Instance,
    Intent, Job, JobId, JobState, LaunchAnswer, LaunchError, LaunchRequest, NodeRecord, NodeStatus, Offers, RunReport,
    Span, Subject, Time,
};
use runtime::observation::Observation;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use store::{
    Answer, Db, DbError, Key, Page, PageKey, Query, Row, Scan, TABLES, Table, Write as DbWrite, WriteError, change,
    insert_handle, to_json,
};
use store::{Dynamo, Store};

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

fn parse(line: &[&str]) -> Result<Command, clap::Error> {
    Line::try_parse_from(std::iter::once(&"nodekeeper").chain(line)).map(|l| l.command)
}

/// Whether there is a command with this name.
pub(crate) fn is_command(name: &str) -> bool {
    <Line as clap::CommandFactory>::command().find_subcommand(name).is_some()
}

/// EC2 that lists these instances, has these offers, and refuses every change.
#[derive(Default)]
pub(crate) struct Listed {
    instances: Vec<Instance>,
    offers: Option<FixedOffers>,
}

#[async_trait]
impl Cloud for Listed {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.instances.clone())
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        Ok(None)
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        panic!("a command launched")
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        panic!("a command terminated")
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
    fn offers(&self) -> Option<&dyn Offers> {
        self.offers.as_ref().map(|offers| offers as &dyn Offers)
    }
}

/// Runs just before a write of the command. It sees the writes, and may return a write of another writer, which is made
/// first.
type BeforeWrite = Box<dyn Fn(&[DbWrite]) -> Option<DbWrite> + Send + Sync>;

/// A database that reports each write of the command before it is made.
struct Watched {
    db: Dynamo,
    before_write: BeforeWrite,
    /// The table that may not be written.
    denies: Option<Table>,
    /// How many reads were made.
    reads: Arc<AtomicUsize>,
    /// The answer to the transaction with this number is lost. 0: none is.
    loses: AtomicUsize,
    /// The next reads of several rows end so.
    read_errors: Mutex<Vec<DbError>>,
}

impl Watched {
    fn new(db: Dynamo) -> Self {
        Self {
            db,
            before_write: Box::new(|_| None),
            denies: None,
            reads: Arc::default(),
            loses: AtomicUsize::default(),
            read_errors: Mutex::default(),
        }
    }

    /// A store with a concurrent writer, which makes one of these writes before each write of the command.
    fn rival(db: Dynamo, theirs: Vec<DbWrite>) -> Store {
        let theirs = Mutex::new(theirs.into_iter());
        let before_write: BeforeWrite = Box::new(move |_| theirs.lock().unwrap().next());
        Store::new(Arc::new(Self { before_write, ..Self::new(db) }))
    }

    /// A store, and how many reads it has made.
    fn counting(db: Dynamo) -> (Store, Arc<AtomicUsize>) {
        let counting = Self::new(db);
        let reads = Arc::clone(&counting.reads);
        (Store::new(Arc::new(counting)), reads)
    }

    /// A store of a person who may not write this table.
    fn denying(db: Dynamo, table: Table) -> Store {
        Store::new(Arc::new(Self { denies: Some(table), ..Self::new(db) }))
    }

    async fn before(&self, writes: &[DbWrite]) -> Result<(), WriteError> {
        if writes.iter().any(|write| Some(write.key.table) == self.denies) {
            let (code, message) = ("AccessDeniedException".to_owned(), "user x is not authorized".to_owned());
            return Err(WriteError::Db(DbError::Refused { operation: "UpdateItem", code, message }));
        }
        match (self.before_write)(writes) {
            Some(theirs) => self.db.write(&theirs, Answer::None).await.map(|_| ()),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Db for Watched {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.db.get(key).await
    }
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let error = self.read_errors.lock().unwrap().pop();
        error.map_or(Ok(()), Err)?;
        self.db.get_many(keys).await
    }
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.db.query(query, from).await
    }
    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        self.db.scan(scan, from).await
    }
    async fn write(&self, write: &DbWrite, answer: Answer) -> Result<Option<Row>, WriteError> {
        self.before(std::slice::from_ref(write)).await?;
        self.db.write(write, answer).await
    }
    async fn transact(&self, writes: &[DbWrite]) -> Result<(), WriteError> {
        self.before(writes).await?;
        self.db.transact(writes).await?;
        if self.loses.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(DbError::Unreachable { operation: "TransactWriteItems", detail: "lost".to_owned() }.into());
        }
        Ok(())
    }
    async fn put_new(&self, table: Table, rows: &[store::Item]) -> Result<(), DbError> {
        self.db.put_new(table, rows).await
    }
}

/// The output and the result of a command.
#[derive(Debug)]
struct Said {
    result: anyhow::Result<Exit>,
    out: String,
    err: String,
}

impl Said {
    fn done(self) -> String {
        assert_eq!(self.err, "");
        assert_eq!(self.result.unwrap(), Exit::Done, "{}", self.out);
        self.out
    }

    fn failed(self) -> (String, String) {
        assert_eq!(self.result.unwrap(), Exit::Failed, "{}", self.out);
        (self.out, self.err)
    }

    fn error(self) -> String {
        format!("{:#}", self.result.expect_err("it went well"))
    }

    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    now: Time,
    /// How much time passes between two reads of the clock.
    tick: Span,
    screen: Screen,
    in_screen: Screen,
}

impl World {
    pub(crate) async fn empty() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()));
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("local", "local", None, None, "test"))
            .endpoint_url(url)
            .build();
        let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "test".parse().unwrap());
        let store = Store::new(Arc::new(dynamo.clone()));
        Self {
            cluster: Cluster {
                store,
                dynamo,
                cloud: Arc::new(Listed::default()),
                outputs: output_store::nothing(),
                reach: ClusterAccess { who: Person::named("ann"), ..ClusterAccess::default() },
            },
            now: at(1000),
            tick: Span::ZERO,
            screen: Screen::Pipe,
            in_screen: Screen::Pipe,
        }
    }

    pub(crate) async fn new() -> Self {
        let world = Self::empty().await;
        tables::make(&world.cluster.dynamo).await.unwrap();
        world
    }

    async fn with_policy() -> Self {
        let world = Self::new().await;
        let dir = tempfile::tempdir().unwrap();
        world.run(&["policy", "set", &file(&dir, "p.toml", POLICY)]).await.done();
        world
    }

    pub(crate) fn store(&self) -> &Store {
        &self.cluster.store
    }

    async fn run(&self, line: &[&str]) -> Said {
        self.run_with(line, "").await
    }

    /// A clock that begins with the world's time.
    fn clock(&self) -> Arc<dyn Fn() -> Time + Send + Sync> {
        let (now, tick) = (Mutex::new(self.now), self.tick);
        Arc::new(move || {
            let mut now = now.lock().unwrap();
            *now = *now + tick;
            *now
        })
    }

    async fn run_with(&self, line: &[&str], input: &str) -> Said {
        let command = parse(line).unwrap();
        self.said(input, async |context| run(command, context).await).await
    }

    /// What this prints, and its result.
    async fn said(&self, input: &str, what: impl AsyncFnOnce(&mut Context<'_>) -> anyhow::Result<Exit>) -> Said {
        let cluster = self.cluster.clone();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut context = Context {
            screen: self.screen,
            colours: false,
            err_screen: Screen::Pipe,
            in_screen: self.in_screen,
            connect: Box::new(move || {
                let cluster = cluster.clone();
                Box::pin(async move { Ok(cluster) })
            }),
            clock: self.clock(),
            input: &mut input.as_bytes(),
            out: &mut out,
            err: &mut err,
        };
        let result = what(&mut context).await;
        Said { result, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
    }

    /// Every row of every table, by table and key. An event's key is its subject and action.
    async fn rows(&self) -> BTreeMap<String, serde_json::Value> {
        let mut rows = BTreeMap::new();
        for definition in TABLES {
            let page = self.cluster.dynamo.scan(&Scan::all(definition.table, None), None).await.unwrap();
            assert!(page.next.is_none());
            for item in &page.items {
                let row = to_json(item);
                let text = |name: &str| row[name].as_str().map_or_else(|| row[name].to_string(), str::to_owned);
                let mut key = format!("{}/{}", definition.table.suffix(), text(definition.key.hash.name));
                if definition.table == Table::Events {
                    key = format!("{key}/{}", text("action"));
                } else if let Some(range) = definition.key.range {
                    key = format!("{key}/{}", text(range.name));
                }
                rows.insert(key, row);
            }
        }
        rows
    }

    /// Puts a row as it is, valid or not.
    async fn put_raw(&self, key: store::Key, row: &[(&str, aws_sdk_dynamodb::types::AttributeValue)]) {
        let row = row.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let write = store::Write { key, when: Vec::new(), effect: store::Effect::Put(row) };
        self.store().apply(&write).await.unwrap();
    }

    /// Runs a command. Returns the keys of the rows that it changed.
    async fn changes(&self, line: &[&str]) -> (Said, Vec<String>) {
        let before = self.rows().await;
        let said = self.run(line).await;
        let after = self.rows().await;
        let mut keys: Vec<String> = before.keys().chain(after.keys()).cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.retain(|k| before.get(k) != after.get(k));
        (said, keys)
    }

    pub(crate) async fn put_node(&self, record: &NodeRecord) -> NodeRecord {
        self.store().write(None, record, Vec::new()).await.unwrap()
    }

    pub(crate) async fn put_job(&self, n: u32) -> Job {
        self.store().write(None, &fixtures::job(n), Vec::new()).await.unwrap()
    }

    /// Places job `n` on slot 0, where it runs, with a handle.
    pub(crate) async fn put_running(&self, n: u32) -> (Job, Alloc) {
        let (job, node) = (self.put_job(n).await, fixtures::ready(0));
        let alloc = Alloc::place(fixtures::alloc_id(n), &job, &node, at(100)).unwrap();
        let node = self.put_node(&node.with_alloc(alloc.id(), at(100)).unwrap()).await;
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        let placed = self.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
        let alloc = self.store().write(None, &alloc, Vec::new()).await.unwrap();
        self.put_handle(&node, &alloc.id().to_string()).await;
        (placed, alloc)
    }

    async fn put_handle(&self, node: &NodeRecord, name: &str) {
        let (kind, state) = (HandleKind::Container, HandleState::Live);
        let handle = Handle::new(node.node_id().unwrap(), name.into(), kind, state, 1, at(5000));
        self.store().apply(&insert_handle(&handle)).await.unwrap();
    }

    async fn put_entry<E: Entry>(&self, row: EntryRow<E>) {
        self.store().write(None, &row, Vec::new()).await.unwrap();
    }
}

const POLICY: &str = r#"
[nodes]
max = 4
[launch]
template = "nodekeeper"
[[size]]
name = "small"
instance_type = "m7a.large"
vcpus = 2
memory_mib = 8192
price_per_hour = 0.116
"#;

fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn id(n: u32) -> String {
    fixtures::job_id(n).to_string()
}
