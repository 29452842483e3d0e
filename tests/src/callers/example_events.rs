//! The example events in `infra/events`: the function of their directory accepts each.

use crate::faults::turns::NoEc2;
use crate::second_opinions::root;
use crate::world::EveryRole;
use grant_credentials::Grants;
use model::control::PolicyRow;
use model::fixtures::{at, heartbeat, new_instance, new_life, slot};
use model::functions::FUNCTIONS;
use model::policy::example_json;
use model::{
    Alloc, AllocId, ClusterName, Function, Job, JobSpec, LaunchSettings, NewLife, NodeId, NodeRecord, Policy, Work,
};
use nodekeeper_simulation::database::Plain;
use runtime::answer::Ran;
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use runtime::lambda::Reply;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// The values that the events have for their node. The README names the cluster and the key.
const CLUSTER: &str = "local";
pub const KEY: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const NODE: &str = "0-01JD0000000000000000000000";
const ALLOC: &str = "01JD0000000000000000000001.0.0";
const ROLE: &str = "arn:aws:iam::123456789012:role/reader";
const INSTANCE: &str = "i-0123456789abcdef0";

/// The example events of a function, by their paths below the root.
pub fn of(function: &Function) -> BTreeMap<PathBuf, Value> {
    let directory = root().join("infra/events").join(function.name);
    let files = std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        (path.strip_prefix(root()).unwrap().to_owned(), serde_json::from_str(&text).unwrap())
    };
    files.map(|file| read(file.unwrap().path())).collect()
}

/// A cluster with the node of the events. The node is in use and has reported.
struct Bench {
    store: Store,
    cluster: ClusterName,
}

impl Bench {
    async fn new() -> Self {
        let store = Store::new(Arc::new(Plain::new()));
        let mut policy = example_json();
        policy["jobs"] = serde_json::json!({"roles": [ROLE]});
        let policy = Policy::from_json(&policy).unwrap();
        store.write(None, &PolicyRow::of_policy(&policy), Vec::new()).await.unwrap();
        let node_id: NodeId = NODE.parse().unwrap();
        let life = NewLife { node_id, ..new_life(0) };
        let new = NodeRecord::assign(slot(0), None, life, at(0), "an example").unwrap();
        let assigned = store.write(None, &new, Vec::new()).await.unwrap();
        let bound = assigned.bind(&new_instance(INSTANCE), at(1)).unwrap();
        let bound = store.write(Some(&assigned), &bound, Vec::new()).await.unwrap();
        let registered = bound.register(&heartbeat(INSTANCE), "example", at(150), at(60)).unwrap();
        let registered = store.write(Some(&bound), &registered, Vec::new()).await.unwrap();
        let ready = registered.open_gate(at(60)).unwrap();
        let ready = store.write(Some(&registered), &ready, Vec::new()).await.unwrap();
        let id: AllocId = ALLOC.parse().unwrap();
        let spec = JobSpec {
            work: Work { role: Some("reader".into()), ..JobSpec::running(["true"]).work },
            ..JobSpec::default()
        };
        let job = Job::submit(id.job_id, spec, at(0)).unwrap();
        store.write(None, &job, Vec::new()).await.unwrap();
        let alloc = Alloc::place(id, &job, &ready, at(60)).unwrap();
        store.write(None, &alloc, Vec::new()).await.unwrap();
        store.write(Some(&ready), &ready.with_alloc(alloc.id(), at(60)).unwrap(), Vec::new()).await.unwrap();
        Self { store, cluster: CLUSTER.parse().unwrap() }
    }

    /// The answer of a function, as its `main` makes it.
    async fn invoke(&self, function: &str, event: &Value) -> Reply {
        let clock = RunClock::new(at(61), None, Duration::from_secs(50));
        let credentials = NodeCredentials::Token(KEY.parse().unwrap());
        let settings = LaunchSettings {
            cluster: self.cluster.clone(),
            key: None,
            heartbeat_url: "http://h".into(),
            sweep_url: "http://s".into(),
        };
        let store = self.store.clone();
        match function {
            "poll-and-scale" => {
                Reply::run(poll_and_scale::tick(&store, &NoEc2, &settings, event, clock).await.unwrap())
            }
            "clean-stale-records" => Reply::run(clean_stale_records::tick(&store, &NoEc2, event, clock).await.unwrap()),
            "heartbeat-ingest" => {
                let ingest = heartbeat_ingest::Ingest::new(store, credentials, self.cluster.clone());
                Reply::Http(ingest.handle(event, clock.now()).await)
            }
            "sweep-dispatch" => {
                let sweep = sweep_dispatch::Sweep::new(store, credentials, self.cluster.clone());
                sweep.handle(event.clone(), clock).await.unwrap()
            }
            "grant-credentials" => {
                let grants = Grants::new(store, Arc::new(EveryRole), credentials, self.cluster.clone());
                Reply::Http(grants.handle(event, clock.now()).await)
            }
            other => panic!("{other} is no function"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_example_event_is_accepted_by_its_function() {
    for function in FUNCTIONS {
        let events = of(function);
        let is_http = |event: &Value| event.get("requestContext").is_some();
        assert_eq!(events.values().any(is_http), !function.routes.is_empty(), "{}", function.name);
        assert_eq!(events.values().any(|e| e["detail-type"] == "Scheduled Event"), function.period.is_some());
        for (path, event) in events {
            let bench = Bench::new().await;
            let path = path.display();
            match bench.invoke(function.name, &event).await {
                Reply::Http(answer) => {
                    assert!(is_http(&event), "{path}: {answer}");
                    assert_eq!(answer["statusCode"], 200, "{path}: {answer}");
                }
                Reply::Run(answer) => {
                    assert!(!is_http(&event) && answer.function == function.name, "{path}: {answer:?}");
                    let wanted = if event["dry_run"] == true { Ran::DryRun } else { Ran::Whole };
                    assert_eq!(answer.ran, wanted, "{path}");
                }
            }
            // The node is drained two minutes after the warning, because the event names its instance.
            let record = bench.store.node(slot(0)).await.unwrap().unwrap();
            let drains = record.life().unwrap().drain_by_at.is_some();
            let kind = event["detail-type"].as_str().unwrap_or_default();
            assert_eq!(drains, kind.ends_with("Instance Interruption Warning"), "{path}");
        }
    }
    let directories = std::fs::read_dir(root().join("infra/events")).unwrap();
    assert_eq!(directories.count(), FUNCTIONS.len());
}
