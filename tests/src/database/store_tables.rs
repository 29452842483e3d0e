//! Tables for the suite of the store, on each of its databases.

use crate::world::{START, dynamo_client, fresh_cluster};
use model::fixtures::{self, at};
use model::{Handle, Job, JobSpec, NodeRecord, Span};
use nodekeeper_cli::local::tables;
use nodekeeper_simulation::database::Plain;
use nodekeeper_simulation::embedded::Embedded;
use std::sync::Arc;
use store::Retention;
use store::placing::Placing;
use store::{Db, Dynamo, Store};

pub(crate) const KEEP: Retention = Retention {
    finished: Span::from_s(86_400),
    events: Span::from_s(86_400),
    failed_handles: Span::from_s(60),
    creating: Span::from_s(600),
    retry: (Span::ZERO, Span::ZERO),
};

/// The database that holds the tables.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// A database behind the SDK.
    Url(&'a str),
    Embedded,
    Model,
}

impl Place<'_> {
    /// The database, with new empty tables.
    async fn db(self) -> Arc<dyn Db> {
        match self {
            Self::Url(url) => {
                let dynamo = Dynamo::new(dynamo_client(url), fresh_cluster());
                tables::make(&dynamo).await.unwrap();
                Arc::new(dynamo)
            }
            Self::Embedded => Arc::new(Embedded::new().unwrap()),
            Self::Model => Arc::new(Plain::new()),
        }
    }
}

pub(crate) struct Tables {
    pub(crate) store: Store,
}

impl Tables {
    pub(crate) async fn new(place: Place<'_>) -> Self {
        Self { store: Store::new(place.db().await) }
    }

    /// A ready node in slot `n`, as stored.
    pub(crate) async fn ready(&self, n: u32) -> NodeRecord {
        let mut record = fixtures::assigned(n);
        record = self.store.write(None, &record, Vec::new()).await.unwrap();
        let instance = format!("i-{n}");
        let next = record.bind(&fixtures::new_instance(&instance), at(1)).unwrap();
        record = self.store.write(Some(&record), &next, Vec::new()).await.unwrap();
        let next = record.register(&fixtures::heartbeat(&instance), "inc-1", at(150), at(60)).unwrap();
        record = self.store.write(Some(&record), &next, Vec::new()).await.unwrap();
        let next = record.open_gate(at(60)).unwrap();
        self.store.write(Some(&record), &next, Vec::new()).await.unwrap()
    }

    pub(crate) async fn job(&self, n: u32, spec: JobSpec) -> Job {
        let job = Job::submit(fixtures::job_id(n), spec, at(0)).unwrap();
        self.store.write(None, &job, Vec::new()).await.unwrap()
    }

    pub(crate) async fn all(&self) -> (Vec<NodeRecord>, Vec<Job>, Vec<Handle>) {
        let mut nodes = self.store.nodes().await.unwrap();
        nodes.sort_by_key(|n| n.slot);
        let mut jobs = self.store.jobs().await.unwrap();
        jobs.sort_by_key(|j| j.summary.job_id);
        let handles = self.store.handles_due(START + Span::from_s(1 << 30)).await.unwrap().rows;
        (nodes, jobs, handles)
    }
}

pub(crate) fn spec() -> JobSpec {
    JobSpec::running(["true"])
}

pub(crate) fn placing_at(s: i64) -> Placing<'static> {
    Placing { replaces: None, output: None, keep: KEEP, now: at(s), only_if: None }
}
