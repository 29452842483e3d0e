//! What the runs find unusual is in their metrics, which the alarms look at: whole runs of the three scheduled functions.

use crate::world::{World, job};
use async_trait::async_trait;
use model::cloud::{Cloud, CloudError, Instance, LaunchError};
use model::fixtures;
use model::launch::LaunchRequest;
use runtime::answer::RunAnswer;
use runtime::metrics;
use serde_json::json;

/// EC2 whose lists are empty.
struct Blind;

#[async_trait]
impl Cloud for Blind {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Ok(Vec::new())
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        Ok(None)
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<Vec<Instance>, LaunchError> {
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
    /// The value of a metric of this run.
    fn metric(&self, run: &RunAnswer, name: &str) -> Option<u64> {
        metrics::of_run(run, &self.cluster, self.now())?[name].as_u64()
    }
}

#[tokio::test]
async fn a_node_that_is_wanted_and_not_ready_is_counted_until_it_is_ready() {
    let mut world = World::new().await;
    let nothing = world.poll().await.unwrap();
    assert_eq!(world.metric(&nothing, "Runs"), None, "an idle cluster pays for no metric");
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
    assert_eq!(world.metric(&works, "InstanceListEmpty"), Some(0));
    for expected in [0, 1] {
        let blind =
            poll_and_scale::tick(&world.store, &Blind, &world.settings, &json!({}), world.clock()).await.unwrap();
        assert_eq!(world.metric(&blind, "InstanceListEmpty"), Some(expected), "two runs must see it");
        world.pass(60);
    }
}

#[tokio::test]
async fn orphans_are_counted_when_they_are_found() {
    let world = World::new().await;
    let (node, offering) = (fixtures::node_id(3), fixtures::offering());
    let request = LaunchRequest::render(&world.settings, &world.policy, node, &offering);
    world.cloud.launch(&request, "token").await.unwrap();
    let young = world.clean().await.unwrap();
    assert_eq!(world.metric(&young, "Orphans"), Some(0));
    world.pass(world.policy.stale.orphan_after_s);
    let old = world.clean().await.unwrap();
    assert_eq!(world.metric(&old, "Orphans"), Some(1));
    let after = world.clean().await.unwrap();
    assert_eq!(world.metric(&after, "Orphans"), Some(0), "its termination is under way");
}

#[tokio::test]
async fn overdue_functions_are_counted_also_without_anything_else_to_see() {
    let world = World::new().await;
    world.poll().await.unwrap();
    let sweep = async || sweep_dispatch::tick(&world.store, &json!({}), world.clock()).await.unwrap();
    assert_eq!(world.metric(&sweep().await, "FunctionsOverdue"), None, "nothing is unusual");
    world.pass(301);
    assert_eq!(world.metric(&sweep().await, "FunctionsOverdue"), Some(1));
}
