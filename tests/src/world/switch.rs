//! The switch between the functions of a world and their database and EC2. It counts calls, kills callers and refuses
//! calls.

use async_trait::async_trait;
use model::{Cloud, CloudError, Instance, LaunchAnswer, LaunchCall, LaunchError, LaunchRequest, NodeId, Offers};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use store::{Answer, Db, DbError, Key, Page, PageKey, Query, Row, Scan, Table, Write, WriteError};

/// Counts the calls that change something, and kills the caller after one of them.
#[derive(Default)]
pub struct Switch {
    calls: AtomicUsize,
    kill_after: AtomicUsize,
    killed: tokio::sync::Notify,
    tables_away: AtomicBool,
    denied: Mutex<Option<Denied>>,
    log: Mutex<Vec<String>>,
    /// The calls of DynamoDB that each function made, as in `infra/calls.json`.
    made: Mutex<BTreeMap<&'static str, BTreeSet<String>>>,
}

/// The writes of a row that a function cannot make, and why.
#[derive(Clone)]
pub struct Denied {
    pub function: &'static str,
    pub key: Key,
    pub why: fn() -> WriteError,
}

impl Switch {
    /// From now on, these writes fail. `None`: none does.
    pub fn deny(&self, denied: Option<Denied>) {
        *self.denied.lock().unwrap() = denied;
    }

    fn may_write(&self, function: &'static str, write: &Write) -> Result<(), WriteError> {
        let denied = self.denied.lock().unwrap();
        let denies = |denied: &&Denied| denied.function == function && denied.key == write.key;
        denied.as_ref().filter(denies).map_or(Ok(()), |denied| Err((denied.why)()))
    }

    pub async fn called(&self, what: String) {
        let n = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        self.log.lock().unwrap().push(what);
        if n == self.kill_after.load(Ordering::SeqCst) {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    pub fn take_tables_away(&self, away: bool) {
        self.tables_away.store(away, Ordering::SeqCst);
    }

    fn has_tables(&self, operation: &'static str) -> Result<(), DbError> {
        let away = self.tables_away.load(Ordering::SeqCst);
        if away { Err(DbError::Unreachable { operation, detail: "it is away".into() }) } else { Ok(()) }
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub fn kill_after(&self, n: usize) {
        self.kill_after.store(n, Ordering::SeqCst);
    }

    pub fn made(&self) -> BTreeMap<&'static str, BTreeSet<String>> {
        self.made.lock().unwrap().clone()
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Awaits `run`. Returns `None` if the switch kills it.
    pub async fn guard<T>(&self, run: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            result = run => Some(result),
            () = self.killed.notified() => None,
        }
    }
}

pub struct Switched<T: ?Sized> {
    pub inner: Arc<T>,
    pub switch: Arc<Switch>,
    pub function: &'static str,
}

impl Switched<dyn Db> {
    fn makes(&self, operation: &'static str, table: Table, index: Option<store::Index>) -> Result<(), DbError> {
        let index = index.map(|index| format!("/{}", index.name)).unwrap_or_default();
        let call = format!("dynamodb:{operation} {}{index}", table.suffix());
        self.switch.made.lock().unwrap().entry(self.function).or_default().insert(call);
        self.switch.has_tables(operation)
    }

    fn makes_write(&self, write: &Write) -> Result<(), WriteError> {
        let operation = match write.effect {
            store::Effect::Put(_) => "PutItem",
            store::Effect::Update { .. } => "UpdateItem",
            store::Effect::Delete => "DeleteItem",
            store::Effect::Check => "ConditionCheckItem",
        };
        self.switch.may_write(self.function, write)?;
        Ok(self.makes(operation, write.key.table, None)?)
    }
}

#[async_trait]
impl Db for Switched<dyn Db> {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        self.makes("GetItem", key.table, None)?;
        self.inner.get(key).await
    }
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        keys.iter().try_for_each(|key| self.makes("BatchGetItem", key.table, None))?;
        self.inner.get_many(keys).await
    }
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        self.makes("Query", query.table, query.index)?;
        self.inner.query(query, from).await
    }
    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        self.makes("Scan", scan.table, scan.index)?;
        self.inner.scan(scan, from).await
    }
    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        self.makes_write(write)?;
        let result = self.inner.write(write, answer).await;
        if write.key.table != Table::Events {
            let state = match &write.effect {
                store::Effect::Update { set, .. } => format!("{:?}", set.get("state").or(set.get("reason"))),
                other => format!("{other:?}").chars().take(12).collect(),
            };
            self.switch.called(format!("write {:?} {state}", write.key.table)).await;
        }
        result
    }
    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        writes.iter().try_for_each(|write| self.makes_write(write))?;
        let result = self.inner.transact(writes).await;
        self.switch.called(format!("transact of {}", writes.len())).await;
        result
    }
    async fn put_new(&self, table: Table, rows: &[store::Item]) -> Result<(), DbError> {
        self.makes("BatchWriteItem", table, None)?;
        self.inner.put_new(table, rows).await
    }
}

#[async_trait]
impl Cloud for Switched<dyn Cloud> {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.inner.instances().await
    }
    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        self.inner.instances_by_id(instance_ids).await
    }
    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        self.inner.instances_of(nodes).await
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        self.inner.instance(instance_id).await
    }
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError> {
        let result = self.inner.launch(request, client_token).await;
        let call = if request.call == LaunchCall::Fleet { "CreateFleet" } else { "RunInstances" };
        // A dry run changes nothing.
        if !request.is_dry_run {
            self.switch.called(call.into()).await;
        }
        result
    }
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        let result = self.inner.terminate(instance_ids).await;
        self.switch.called("TerminateInstances".into()).await;
        result
    }
    fn offers(&self) -> Option<&dyn Offers> {
        self.inner.offers()
    }

    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError> {
        self.inner.console_output(instance_id).await
    }
}
