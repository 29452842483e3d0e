//! `teardown`.

use super::*;
use crate::commands::set_up::teardown::{TeardownArgs, wait};
use model::InstanceState;
use std::sync::atomic::{AtomicI64, Ordering};

/// EC2 with the instances that a test sets. A terminated instance stays `shutting-down` until the test ends it.
#[derive(Default)]
struct Ending {
    instances: Mutex<Vec<Instance>>,
    terminated: Mutex<Vec<String>>,
}

impl Ending {
    fn set(&self, id: &str, state: InstanceState) {
        let mut instances = self.instances.lock().unwrap();
        instances.retain(|i| i.instance_id != id);
        let tags = BTreeMap::new();
        instances.push(Instance {
            instance_id: id.into(),
            state,
            launched_at: at(0),
            zone: None,
            instance_type: None,
            subnet_id: None,
            tags,
        });
    }
}

#[async_trait]
impl Cloud for Ending {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(self.instances.lock().unwrap().clone())
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        Ok(None)
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        panic!("a command launched")
    }
    async fn terminate(&self, ids: &[String]) -> Result<(), CloudError> {
        self.terminated.lock().unwrap().extend(ids.iter().cloned());
        ids.iter().for_each(|id| self.set(id, InstanceState::ShuttingDown));
        Ok(())
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
}

/// Waits as `teardown` does. `happens(n)` changes the world before look number `n` (from 1). Each look is 10 s after the last.
async fn waited(world: &World, terminate: bool, timeout_s: u32, happens: impl AsyncFn(i64)) -> Said {
    let args =
        TeardownArgs { confirm: "test".parse().unwrap(), cancel_jobs: false, terminate, prove_s: 120, timeout_s };
    let looks = Arc::new(AtomicI64::new(0));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let clock = Arc::clone(&looks);
    let mut context = Context {
        colours: false,
        err_screen: Screen::Pipe,
        in_screen: Screen::Pipe,
        screen: Screen::Pipe,
        connect: Box::new(|| panic!("it is connected")),
        clock: Arc::new(move || at(1000) + Span::from_s(10 * clock.load(Ordering::Relaxed))),
        input: &mut &b""[..],
        out: &mut out,
        err: &mut err,
    };
    let pause = async || happens(looks.fetch_add(1, Ordering::Relaxed) + 1).await;
    let result = wait(&mut context, &world.cluster, &args, pause).await;
    Said { result, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

fn with(world: &World, ec2: &Arc<Ending>) -> World {
    let mut world = world.clone();
    world.cluster.cloud = Arc::clone(ec2) as Arc<dyn Cloud>;
    world
}

#[tokio::test]
async fn a_teardown_asks_for_the_name_and_then_stores_a_policy_without_nodes() {
    let world = World::with_policy().await;
    let (said, changed) = world.changes(&["teardown", "other"]).await;
    let error = said.error();
    assert!(error.contains("the cluster is test, not other: nothing was done"), "{error}");
    assert_eq!(changed, Vec::<String>::new());

    let (job, _) = world.put_running(1).await;
    let (said, changed) = world.changes(&["teardown", "test", "--cancel-jobs", "--timeout-s", "0"]).await;
    let (out, err) = said.failed();
    assert!(out.starts_with("the policy allows no node now (version 2)\n1 job cancelled\n"), "{out}");
    assert!(err.contains("not done after 0 s") && err.contains("--terminate"), "{err}");
    let key = format!("jobs/{}", job.summary.job_id);
    for row in ["control/policy", "nodes/0", key.as_str(), "events/slot#0/drain"] {
        assert!(changed.iter().any(|c| c == row), "{row}: {changed:?}");
    }
    let (policy, _) = world.store().ingest_control().await.unwrap().checked_policy().unwrap();
    assert_eq!((policy.nodes.min, policy.nodes.max), (0, 0));
}

#[tokio::test]
async fn a_teardown_ends_when_ec2_has_listed_nothing_for_two_minutes() {
    let (world, ec2) = (World::with_policy().await, Arc::new(Ending::default()));
    let world = with(&world, &ec2);
    let node = world.put_node(&fixtures::ready(0)).await;
    ec2.set("i-1", InstanceState::Running);
    let said = waited(&world, false, 7200, async |look| match look {
        3 => ec2.set("i-1", InstanceState::Terminated),
        5 => {
            let drained = world.store().node(node.slot).await.unwrap().unwrap();
            assert_eq!(drained.life().unwrap().intent, Intent::Drain);
            let down = drained.shut_down(at(1001), "drained").unwrap();
            let down = world.store().write(Some(&drained), &down, Vec::new()).await.unwrap();
            let gone = down.clean(at(1002), "gone").unwrap();
            world.store().write(Some(&down), &gone, Vec::new()).await.unwrap();
        }
        // A run that had read the old policy launches.
        8 => ec2.set("i-2", InstanceState::Pending),
        10 => ec2.set("i-2", InstanceState::Terminated),
        // Somebody stores another policy. A run that launches by it would show within the next two minutes.
        20 => {
            let dir = tempfile::tempdir().unwrap();
            world.run(&["policy", "set", &file(&dir, "p.toml", POLICY)]).await.done();
        }
        look => assert!(look <= 33, "it waits for more than two minutes: look {look}"),
    })
    .await;
    let lines = said.done();
    let lines: Vec<&str> = lines.lines().collect();
    assert_eq!(
        lines,
        [
            "the policy allows no node now (version 2)",
            "node records: 1 busy_or_ready; instances: 1 running",
            "node records: 1 busy_or_ready; instances: none",
            "node records: none; instances: none",
            "node records: none; instances: 1 pending",
            "node records: none; instances: none",
            "the policy allows no node now (version 4)",
            "no instance is left: EC2 listed none for 120 s",
        ]
        .map(|l| l.replace("busy_or_ready", &node.state_name().to_string()))
    );
    assert_eq!(*ec2.terminated.lock().unwrap(), Vec::<String>::new(), "poll-and-scale terminates, not the command");
}

#[tokio::test]
async fn a_teardown_terminates_what_no_function_ends() {
    let (world, ec2) = (World::with_policy().await, Arc::new(Ending::default()));
    let world = with(&world, &ec2);
    world.put_node(&fixtures::ready(0)).await;
    for (id, state) in
        [("i-1", InstanceState::Running), ("i-2", InstanceState::Stopped), ("i-3", InstanceState::Terminated)]
    {
        ec2.set(id, state);
    }
    let said = waited(&world, true, 7200, async |look| {
        if look == 2 {
            ["i-1", "i-2"].iter().for_each(|id| ec2.set(id, InstanceState::Terminated));
        }
    })
    .await;
    // The record stays, because no function runs. It does not keep the teardown from ending.
    assert!(said.done().ends_with("no instance is left: EC2 listed none for 120 s\n"));
    assert_eq!(*ec2.terminated.lock().unwrap(), ["i-1", "i-2"]);
}

#[tokio::test]
async fn a_policy_of_another_version_does_not_stop_a_teardown() {
    let world = World::with_policy().await;
    let before = world.store().ingest_control().await.unwrap().policy.unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&before.document).unwrap();
    document["of_the_future"] = serde_json::json!({"knob": 1});
    let newer = model::control::PolicyRow::of_document(&document, None, at(0));
    world.store().write(Some(&before), &newer, Vec::new()).await.unwrap();
    let (said, _) = world.changes(&["teardown", "test", "--timeout-s", "0"]).await;
    assert!(said.failed().0.starts_with("the policy allows no node now (version 3)\n"));
    let after = world.store().ingest_control().await.unwrap().policy.unwrap();
    let after: serde_json::Value = serde_json::from_str(&after.document).unwrap();
    assert_eq!((&after["nodes"]["max"], &after["of_the_future"]["knob"]), (&0.into(), &1.into()));
}

#[tokio::test]
async fn a_teardown_that_takes_too_long_says_what_to_do() {
    let (world, ec2) = (World::with_policy().await, Arc::new(Ending::default()));
    let world = with(&world, &ec2);
    ec2.set("i-1", InstanceState::Running);
    let (out, err) = waited(&world, false, 60, async |_| ()).await.failed();
    assert_eq!(out, "the policy allows no node now (version 2)\nnode records: none; instances: 1 running\n");
    assert!(err.contains("not done after 60 s") && err.contains("--terminate ends instances"), "{err}");
}
