//! Counts what the code under a benchmark uses: calls, bytes, CPU time and memory.
#![allow(dead_code, reason = "each benchmark uses a part")]

use async_trait::async_trait;
use model::{Cloud, CloudError, ClusterName, Instance, LaunchAnswer, LaunchError, LaunchRequest, NodeId};
use nodekeeper_simulation::embedded;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use store::{Answer, Db, DbError, Dynamo, Item, Key, Page, PageKey, Query, Row, Scan, Table, Write, WriteError};

/// The tables of a cluster on the embedded DynamoDB at this URL.
pub(crate) fn dynamo(url: &str, cluster: ClusterName) -> Dynamo {
    let credentials = aws_sdk_dynamodb::config::Credentials::new("local", "local", None, None, "bench");
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(aws_sdk_dynamodb::config::BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(aws_sdk_dynamodb::config::Region::new("us-east-1"))
        .credentials_provider(credentials)
        .endpoint_url(url);
    Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config.build()), cluster)
}

/// The calls by operation, and the bytes of the rows that came back.
#[derive(Default)]
pub(crate) struct Meter {
    calls: Mutex<BTreeMap<String, usize>>,
    bytes: Mutex<usize>,
}

impl Meter {
    /// The calls and bytes since the last time that this was asked.
    pub(crate) fn take(&self) -> (BTreeMap<String, usize>, usize) {
        (std::mem::take(&mut *self.calls.lock().unwrap()), std::mem::take(&mut *self.bytes.lock().unwrap()))
    }

    fn count(&self, operation: impl Into<String>, calls: usize, rows: &[Row]) {
        *self.calls.lock().unwrap().entry(operation.into()).or_default() += calls;
        *self.bytes.lock().unwrap() += rows.iter().map(|row| embedded::size(row)).sum::<usize>();
    }
}

/// A database or EC2 whose calls are counted.
pub(crate) struct Metered<T> {
    pub(crate) inner: T,
    pub(crate) meter: Arc<Meter>,
}

#[async_trait]
impl<D: Db> Db for Metered<D> {
    async fn get(&self, key: &Key) -> Result<Option<Row>, DbError> {
        let row = self.inner.get(key).await?;
        self.meter.count(format!("get {:?}", key.table), 1, row.as_slice());
        Ok(row)
    }
    async fn get_many(&self, keys: &[Key]) -> Result<Vec<Row>, DbError> {
        let rows = self.inner.get_many(keys).await?;
        self.meter.count("batch get", keys.len().div_ceil(100), &rows);
        Ok(rows)
    }
    async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
        let page = self.inner.query(query, from).await?;
        self.meter.count(format!("query {:?}", query.table), 1, &page.items);
        Ok(page)
    }
    async fn scan(&self, scan: &Scan, from: Option<PageKey>) -> Result<Page, DbError> {
        let page = self.inner.scan(scan, from).await?;
        self.meter.count(format!("scan {:?}", scan.table), 1, &page.items);
        Ok(page)
    }
    async fn write(&self, write: &Write, answer: Answer) -> Result<Option<Row>, WriteError> {
        self.meter.count(format!("write {:?}", write.key.table), 1, &[]);
        self.inner.write(write, answer).await
    }
    async fn transact(&self, writes: &[Write]) -> Result<(), WriteError> {
        self.meter.count("transact", 1, &[]);
        self.inner.transact(writes).await
    }
    async fn put_new(&self, table: Table, rows: &[Item]) -> Result<(), DbError> {
        self.meter.count(format!("batch write {table:?}"), rows.len().div_ceil(25), &[]);
        self.inner.put_new(table, rows).await
    }
}

#[async_trait]
impl<C: Cloud> Cloud for Metered<C> {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        let all = self.inner.instances().await?;
        self.meter.count("DescribeInstances", all.len().div_ceil(1000).max(1), &[]);
        Ok(all)
    }
    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        self.meter.count("DescribeInstances by id", instance_ids.len().div_ceil(250), &[]);
        self.inner.instances_by_id(instance_ids).await
    }
    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        self.meter.count("DescribeInstances by tag", 2 * nodes.len().div_ceil(200), &[]);
        self.inner.instances_of(nodes).await
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        self.meter.count("DescribeInstances of one", 1, &[]);
        self.inner.instance(instance_id).await
    }
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError> {
        self.meter.count("CreateFleet", 1, &[]);
        self.inner.launch(request, client_token).await
    }
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        self.meter.count("TerminateInstances", instance_ids.len().div_ceil(1000), &[]);
        self.inner.terminate(instance_ids).await
    }
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError> {
        self.meter.count("GetConsoleOutput", 1, &[]);
        self.inner.console_output(instance_id).await
    }
}

/// The CPU time of this process so far, in milliseconds. The kernel counts in ticks of 10 ms.
pub(crate) fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}

/// The most memory that this process has had, in MiB.
pub(crate) fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}
