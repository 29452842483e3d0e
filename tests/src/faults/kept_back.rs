//! A run does not terminate an instance that is not the node's, and does not end an operator's release that nothing
//! used.

use async_trait::async_trait;
use model::cloud::NODE_TAG;
use model::control::{BrakeEntry, PolicyRow, Release};
use model::fixtures::{self, at};
use model::policy::example_json;
use model::{
    ActionName, BrakeKind, Cloud, CloudError, ControlKey, Instance, LaunchAnswer, LaunchError, LaunchRequest,
    LaunchSettings, Policy, Span, Version,
};
use nodekeeper_simulation::database::Plain;
use runtime::answer::{ActionAnswer, ActionOutcome};
use runtime::clock::RunClock;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use store::Store;

const NOW_S: i64 = 10_000;

/// An EC2 whose list may lack instances that it knows by id, and which may refuse to terminate.
#[derive(Default)]
struct Ec2 {
    listed: Vec<Instance>,
    unlisted: Vec<Instance>,
    refuses: AtomicBool,
    terminated: Mutex<Vec<String>>,
}

impl Ec2 {
    fn terminated(&self) -> Vec<String> {
        self.terminated.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl Cloud for Ec2 {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.listed.clone())
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        Ok(self.listed.iter().chain(&self.unlisted).find(|i| i.instance_id == instance_id).cloned())
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        Err(LaunchError::Throttled("nothing is launched here".into()))
    }
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        if self.refuses.load(Ordering::Relaxed) {
            let (operation, detail) = ("TerminateInstances", "it is away".into());
            return Err(CloudError::Unreachable { operation, detail });
        }
        self.terminated.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(instance_ids);
        Ok(())
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
}

async fn tables() -> Store {
    let store = Store::new(Arc::new(Plain::new()));
    let policy = PolicyRow::of_policy(&Policy::from_json(&example_json()).unwrap());
    store.write(None, &policy, Vec::new()).await.unwrap();
    store
}

fn clock(s: i64) -> RunClock {
    RunClock::new(at(s), None, Duration::from_secs(50))
}

fn outcomes(answers: &[ActionAnswer]) -> BTreeMap<(String, ActionOutcome), usize> {
    let mut outcomes = BTreeMap::new();
    for answer in answers {
        *outcomes.entry((answer.action.to_string(), answer.outcome)).or_default() += 1;
    }
    outcomes
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_the_tag_forbids_says_so() {
    let store = tables().await;
    let mut record = fixtures::ready(0).shut_down(at(100), "idle").unwrap();
    record.version = Version::UNWRITTEN;
    store.write(None, &record, Vec::new()).await.unwrap();
    let mut foreign = fixtures::running("i-0", &record);
    foreign.tags.insert(NODE_TAG.to_owned(), fixtures::node_id(7).to_string());
    let ec2 = Ec2 { unlisted: vec![foreign], ..Ec2::default() };
    let settings = LaunchSettings {
        cluster: "c".parse().unwrap(),
        key: None,
        heartbeat_url: "http://h".into(),
        sweep_url: "http://s".into(),
    };
    let ran = poll_and_scale::tick(&store, &ec2, &settings, &json!({}), clock(NOW_S)).await.unwrap();
    let answer = ran.actions.iter().find(|a| a.action == ActionName::Terminate).unwrap();
    assert_eq!(answer.outcome, ActionOutcome::Reported);
    let why = answer.error.as_deref().unwrap_or_default();
    assert!(why.contains("i-0") && why.contains(&fixtures::node_id(7).to_string()), "{why}");
    assert_eq!(ec2.terminated(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_release_is_used_up_by_what_it_let_go_and_not_by_a_run_that_failed() {
    let store = tables().await;
    let orphan = |n: u32| fixtures::running(&format!("i-{n}"), &fixtures::bound(n));
    let ec2 = Ec2 { listed: (0..5).map(orphan).collect(), ..Ec2::default() };
    let run = async |s: i64| {
        let ran = clean_stale_records::tick(&store, &ec2, &json!({}), clock(s)).await.unwrap();
        outcomes(&ran.actions).into_iter().filter(|((action, _), _)| action == "terminate_orphan").collect::<Vec<_>>()
    };
    let all = |outcome: ActionOutcome| vec![(("terminate_orphan".to_owned(), outcome), 5)];
    assert_eq!(run(NOW_S).await, [], "the brake holds them");
    let kind = BrakeKind::Orphans;
    let held: BrakeEntry = store.entry(&ControlKey::Brake(kind)).await.unwrap();
    let before: Release = store.entry(&ControlKey::Release(kind)).await.unwrap();
    let given = before.given(&held, Span::from_s(3600), at(NOW_S + 10));
    store.write_entry(&before, &given).await.unwrap();
    ec2.refuses.store(true, Ordering::Relaxed);
    assert_eq!(run(NOW_S + 60).await, all(ActionOutcome::Failed));
    ec2.refuses.store(false, Ordering::Relaxed);
    assert_eq!(run(NOW_S + 120).await, all(ActionOutcome::Done), "the release still counts");
    let used: Release = store.entry(&ControlKey::Release(kind)).await.unwrap();
    assert!(!used.applies(at(NOW_S + 180)), "a run takes real milliseconds: {used:?}");
}
