//! States that no run of nodekeeper makes, and that the next runs put right: tables that were restored to different
//! moments.

use crate::world::{World, job, quick_policy};
use model::{Alloc, ClientStatus, JobState, NodeId, NodeRecord, Subject};
use runtime::answer::{ActionAnswer, ActionOutcome};
use serde_json::json;

/// A world with one ready node that has no work, and will not be shut down soon.
async fn idle() -> (World, NodeId) {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 1, "min": 1});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for _ in 0..20 {
        world.step().await;
        let nodes = world.look.nodes().await.unwrap();
        if let Some(node) = nodes.first().filter(|n| n.takes_work()) {
            let node_id = node.node_id().unwrap();
            return (world, node_id);
        }
    }
    panic!("no node became ready");
}

impl World {
    /// Puts an alloc of a job that never ran into the node's set. Returns the alloc, which has no row.
    async fn list(&self, node_id: NodeId) -> (Alloc, NodeRecord) {
        let job = self.submit(job(&["1"])).await;
        let id = model::ids::AllocId { job_id: job.summary.job_id, member: 0, copy: 7 };
        let record = self.record(node_id).await;
        let alloc = Alloc::place(id, &job, &record, self.now()).unwrap();
        let listed = record.with_alloc(id, self.now()).unwrap();
        (alloc, self.look.write(Some(&record), &listed, Vec::new()).await.unwrap())
    }
}

#[tokio::test]
async fn an_alloc_that_only_a_node_record_lists_is_taken_off_it() {
    for row in [None, Some(ClientStatus::Complete), Some(ClientStatus::Running)] {
        let (mut world, node_id) = idle().await;
        let (mut alloc, before) = world.list(node_id).await;
        let id = alloc.id();
        if let Some(client) = row {
            alloc.summary.client = client;
            if client == ClientStatus::Running {
                // The row is of another life, because the tables are of different moments.
                alloc.summary.node_id = NodeId::new(node_id.slot(), model::ids::Ulid::from_parts(5, 5));
            }
            world.look.write(None, &alloc, Vec::new()).await.unwrap();
        }
        world.pass(5);
        let run = world.poll().await.unwrap();
        let is_done =
            |a: &ActionAnswer| a.subject == Subject::Alloc(id).to_string() && a.outcome == ActionOutcome::Done;
        let told = run.actions.into_iter().filter(is_done);
        let told: Vec<_> = told.collect();
        assert!(!told.is_empty(), "{row:?}");
        let after = world.record(node_id).await;
        assert!(!after.life().unwrap().allocs.contains(&id), "{row:?}");
        assert_eq!(after.version, before.version.next(), "{row:?}: one write");
        // The job that never ran gets the node, and ends.
        world.until_quiet_but(node_id, 60).await;
        let job = world.look.job(id.job_id).await.unwrap().unwrap();
        assert_eq!(job.summary.state, JobState::Complete, "{row:?}");
    }
}

impl World {
    /// Steps until every job has ended and the node has no work.
    async fn until_quiet_but(&mut self, node_id: NodeId, most: u32) {
        for _ in 0..most {
            self.step().await;
            let jobs = self.look.jobs().await.unwrap();
            let free = self.record(node_id).await.life().is_some_and(|life| life.allocs.is_empty());
            if free && jobs.iter().all(|job| job.summary.state.is_ended()) {
                return;
            }
        }
        panic!("{:?} {:?}", self.look.jobs().await, self.record(node_id).await);
    }
}
