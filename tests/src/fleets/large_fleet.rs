//! A fleet so large that poll-and-scale asks EC2 by id, and only for the instances in question. Here every fleet with a
//! node in use counts as large.

use crate::world::all_rows::AllRows;
use crate::world::{World, job, lonely_job, quick_policy};
use async_trait::async_trait;
use model::{Cloud, CloudError, Instance, InstanceState, LaunchAnswer, LaunchError, LaunchRequest, NodeId, fixtures};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An EC2 that counts the calls that list all instances, the ids that are asked for together, and the calls for one id.
struct Counted {
    ec2: Arc<dyn Cloud>,
    lists: AtomicUsize,
    by_id: AtomicUsize,
    of_one: AtomicUsize,
}

#[async_trait]
impl Cloud for Counted {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.ec2.instances().await
    }
    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        self.by_id.fetch_add(instance_ids.len(), Ordering::SeqCst);
        self.ec2.instances_by_id(instance_ids).await
    }
    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        self.ec2.instances_of(nodes).await
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        self.of_one.fetch_add(1, Ordering::SeqCst);
        self.ec2.instance(instance_id).await
    }
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError> {
        self.ec2.launch(request, client_token).await
    }
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        self.ec2.terminate(instance_ids).await
    }
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError> {
        self.ec2.console_output(instance_id).await
    }
}

async fn world() -> (World, Arc<Counted>) {
    let mut policy = quick_policy();
    policy["poll"] = json!({"list_nodes": 0});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let ec2 = Arc::clone(&world.cloud);
    let (lists, by_id, of_one) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let counted = Arc::new(Counted { ec2, lists, by_id, of_one });
    world.cloud = Arc::clone(&counted) as Arc<dyn Cloud>;
    (world, counted)
}

#[tokio::test]
async fn a_large_fleet_lives_without_ec2s_list() {
    let (mut world, counted) = world().await;
    for _ in 0..6 {
        world.submit(job(&["1"])).await;
    }
    let mut by_id = 0;
    for _ in 0..400 {
        let (lists, asked) = (counted.lists.load(Ordering::SeqCst), counted.by_id.load(Ordering::SeqCst));
        let in_use = world.look.control().await.unwrap().runs.get("poll-and-scale").and_then(|run| run.in_use);
        world.poll().await;
        if in_use.is_some_and(|n| n > 0) {
            assert_eq!(counted.lists.load(Ordering::SeqCst), lists, "{in_use:?} nodes are in use");
            by_id += counted.by_id.load(Ordering::SeqCst) - asked;
        }
        world.step().await;
        world.check().await;
        if by_id > 0 && world.is_quiet().await {
            assert_eq!(counted.of_one.load(Ordering::SeqCst), 0, "idle nodes are asked for together before they end");
            return;
        }
    }
    panic!("not quiet, after EC2 was asked for {by_id} ids");
}

/// EC2 is not asked about a node whose heartbeats are on time. After the first late heartbeat it is asked: the instance
/// is gone.
#[tokio::test]
async fn only_a_late_heartbeat_is_a_question() {
    let (mut world, counted) = world().await;
    world.submit(lonely_job()).await;
    for _ in 0..12 {
        world.step().await;
    }
    let first = world.look.nodes().await.unwrap().remove(0);
    assert!(first.is_heard(world.now()));
    let asked = counted.by_id.load(Ordering::SeqCst);
    world.poll().await;
    assert_eq!(counted.by_id.load(Ordering::SeqCst), asked);

    world.cloud.terminate(&[first.life().unwrap().instance_id.clone().unwrap()]).await.unwrap();
    for steps in 0..7 {
        world.step().await;
        if world.look.nodes().await.unwrap().iter().all(|node| node.node_id() != first.node_id()) {
            assert!(steps > 1 && counted.by_id.load(Ordering::SeqCst) > asked, "{steps}");
            return;
        }
    }
    panic!("35 s after its instance has ended, the node still counts as there");
}

/// A node runs, so EC2 is asked by id. A record whose launch got no answer has no id: its instance is found by its tag.
#[tokio::test]
async fn an_instance_without_a_known_id_is_found_by_its_tag() {
    let (mut world, counted) = world().await;
    let mut forever = job(&["forever"]);
    forever.needs.exclusive = true;
    world.submit(forever.clone()).await;
    for _ in 0..12 {
        world.step().await;
    }
    assert_eq!(world.look.live_allocs().await.unwrap().len(), 1);
    world.ec2.set_faults(serde_json::from_value(json!({"lose_run_answers": 1})).unwrap());
    world.submit(forever).await;
    let lists = counted.lists.load(Ordering::SeqCst);
    world.pass(5);
    world.poll().await;
    world.ec2.advance();
    // The claim lasts for a minute. Before it ends, no run repeats the call, which would find the instance too.
    world.pass(10);
    world.poll().await;
    assert_eq!(counted.lists.load(Ordering::SeqCst), lists);
    let nodes = world.look.nodes().await.unwrap();
    let bound = nodes.iter().filter_map(|n| n.life()?.instance_id.clone()).collect::<BTreeSet<_>>();
    let live: BTreeSet<String> = world.ec2.instances().into_iter().map(|i| i.instance_id).collect();
    assert_eq!((bound.len(), &bound), (2, &live));
}

/// EC2 refuses a whole call if it does not know one of its ids. The other instances must be found nevertheless.
#[tokio::test]
async fn unknown_ids_do_not_hide_the_others() {
    let world = World::new().await;
    let mut known = Vec::new();
    for n in 0..7 {
        let offering = fixtures::offering();
        let request = LaunchRequest::render(
            &world.settings,
            &world.policy,
            fixtures::node_id(n),
            std::slice::from_ref(&offering),
        );
        let launched = world.cloud.launch(&request, &format!("token-{n}")).await.unwrap();
        known.extend(launched.instances.into_iter().map(|i| i.instance_id));
    }
    world.ec2.advance();
    for unknown in [0, 1, 3, 300] {
        let strangers = (0..unknown).map(|n| format!("i-{n:017x}"));
        let mut ids: Vec<String> = known.iter().cloned().chain(strangers).collect();
        ids.sort_unstable();
        let found = world.cloud.instances_by_id(&ids).await.unwrap();
        let found: BTreeSet<String> = found.into_iter().map(|i| i.instance_id).collect();
        assert_eq!(found, known.iter().cloned().collect(), "with {unknown} unknown ids");
    }
    assert_eq!(world.cloud.instances_by_id(&[]).await.unwrap(), []);
    let of: BTreeSet<NodeId> = [fixtures::node_id(2), fixtures::node_id(99)].into();
    let found = world.cloud.instances_of(&of).await.unwrap();
    assert_eq!(
        found.iter().map(|i| (i.node_id(), i.state)).collect::<Vec<_>>(),
        [(Some(fixtures::node_id(2)), InstanceState::Pending)]
    );
}
