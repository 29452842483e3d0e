//! Whole runs of the three scheduled functions: the metrics that the alarms look at show what the runs find unusual.

use crate::world::{World, job};
use async_trait::async_trait;
use model::{Cloud, CloudError, Instance, LaunchAnswer, LaunchError, LaunchRequest, fixtures};
use runtime::answer::RunAnswer;
use runtime::metrics;
use serde_json::json;

/// An EC2 that lists nothing, or that accepts every termination and carries out none.
struct Odd<'a> {
    world: &'a World,
    lists: bool,
}

#[async_trait]
impl Cloud for Odd<'_> {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        if self.lists { self.world.cloud.instances().await } else { Ok(Vec::new()) }
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        if self.lists { self.world.cloud.instance(instance_id).await } else { Ok(None) }
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        Err(LaunchError::Lost("it is away".into()))
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        Ok(())
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Ok(None)
    }
}

impl World {
    fn metric(&self, run: &RunAnswer, name: &str) -> Option<u64> {
        metrics::of_run(run, &self.cluster, self.now())?[name].as_u64()
    }
}

#[tokio::test]
async fn a_node_that_is_wanted_and_not_ready_is_counted_until_it_is_ready() {
    let mut world = World::new().await;
    let nothing = world.poll().await.unwrap();
    assert_eq!(world.metric(&nothing, "Nodes"), None, "an idle cluster pays for no metric");
    world.submit(job(&["forever"])).await;
    let launches = world.poll().await.unwrap();
    assert_eq!(world.metric(&launches, "NodesNotReady"), Some(1));
    // A new instance may not be listed yet.
    for _ in 0..40 {
        world.step().await;
    }
    let works = world.poll().await.unwrap();
    assert_eq!((world.metric(&works, "Nodes"), world.metric(&works, "NodesNotReady")), (Some(1), Some(0)));
    // The list of EC2 becomes empty.
    assert_eq!(world.metric(&works, "SignsWrong"), None, "all is well");
    let blind = Odd { world: &world, lists: false };
    for expected in [None, Some(1)] {
        let run = poll_and_scale::tick(&world.store, &blind, &world.settings, &json!({}), world.clock()).await.unwrap();
        assert_eq!(world.metric(&run, "SignsWrong"), expected, "two runs must see it: {:?}", run.wrong);
        world.pass(60);
    }
}

#[tokio::test]
async fn orphans_are_told_when_they_stay() {
    let world = World::new().await;
    let (node, offering) = (fixtures::node_id(3), fixtures::offering());
    let request = LaunchRequest::render(&world.settings, &world.policy, node, &[offering]);
    world.cloud.launch(&request, "token").await.unwrap();
    world.pass(world.policy.stale.orphan_after_s);
    let deaf = Odd { world: &world, lists: true };
    let sweep = async || sweep_dispatch::tick(&world.store, &json!({}), world.clock()).await.unwrap();
    for expected in [None, Some(1)] {
        // A function that does not run is told, too.
        sweep().await;
        let run = clean_stale_records::tick(&world.store, &deaf, &json!({}), world.clock()).await.unwrap();
        assert_eq!(world.metric(&run, "SignsWrong"), expected, "one run terminates them: {:?}", run.wrong);
        world.pass(300);
    }
    sweep().await;
    world.clean().await.unwrap();
    let after = world.clean().await.unwrap();
    assert_eq!(world.metric(&after, "SignsWrong"), None, "its termination is under way");
}

#[tokio::test]
async fn overdue_functions_are_told_also_without_anything_else_to_see() {
    let world = World::new().await;
    let sweep = async || sweep_dispatch::tick(&world.store, &json!({}), world.clock()).await.unwrap();
    assert_eq!(world.metric(&sweep().await, "SignsWrong"), Some(1), "the others have never run");
    world.poll().await.unwrap();
    world.clean().await.unwrap();
    assert_eq!(world.metric(&sweep().await, "SignsWrong"), None, "all is well");
    world.pass(301);
    sweep().await;
    assert_eq!(sweep().await.wrong, ["function"], "poll-and-scale is overdue");
}
