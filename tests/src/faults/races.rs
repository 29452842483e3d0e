//! Races: many claims of one slot, and several runs at the same time.

use crate::world::{START, World, job, quick_policy};
use model::{JobState, NewLife, NodeId, NodeRecord, Slot};
use nodekeeper_simulation::embedded::Embedded;
use serde_json::json;
use std::sync::Arc;
use store::Store;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nightly_one_of_a_hundred_claimants_wins_each_of_two_thousand_rounds() {
    let store = Store::new(Arc::new(Embedded::new().unwrap()));
    let slot = Slot::new(0).unwrap();
    let mut record: Option<NodeRecord> = None;
    for round in 0..2000 {
        let claims: Vec<NodeRecord> = (0..100)
            .map(|_| {
                let launch =
                    NewLife { node_id: NodeId::new(slot, store.rng().ulid(START)), ..model::fixtures::new_life(0) };
                NodeRecord::assign(slot, record.as_ref(), launch, START, "claimed").unwrap()
            })
            .collect();
        // Separate tasks, so that both threads are used.
        let tries = claims.into_iter().map(|claim| {
            let (store, record) = (store.clone(), record.clone());
            tokio::spawn(async move { store.write(record.as_ref(), &claim, Vec::new()).await })
        });
        let results: Vec<_> = futures::future::join_all(tries).await.into_iter().map(Result::unwrap).collect();
        let winners: Vec<&NodeRecord> = results.iter().filter_map(|r| r.as_ref().ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}");
        assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|e| e.is_conflict()), "round {round}");
        let stored = store.node(slot).await.unwrap().unwrap();
        assert_eq!(stored, *winners[0], "round {round}: the row is the winner's");
        let cleaned = stored.clean(START, "next round").unwrap();
        record = Some(store.write(Some(&stored), &cleaned, Vec::new()).await.unwrap());
    }
}

async fn runs_at_once(runs: usize) {
    let mut policy = quick_policy();
    policy["nodes"]["max"] = json!(5);
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for n in 0..12 {
        let mut spec = job(&["one"]);
        spec.needs.vcpus = 2;
        spec.priority = 500 + n % 3;
        world.submit(spec).await;
    }
    for _ in 0..150 {
        let all = futures::future::join_all((0..runs).map(|_| world.poll())).await;
        assert!(all.iter().all(Option::is_some));
        world.check().await;
        let live = world.ec2.instances().iter().filter(|i| i.state != ec2_stand_in::InstanceState::Terminated).count();
        assert!(live <= 5, "{live} live instances, nodes.max is 5");
        world.step().await;
        world.check().await;
        for node in world.nodes.values() {
            assert!(node.started.values().all(|n| *n == 1), "an alloc was started twice: {:?}", node.started);
        }
        if world.is_quiet().await {
            break;
        }
    }
    let jobs = world.look.jobs().await.unwrap();
    assert!(jobs.iter().all(|j| j.summary.state == JobState::Complete), "{jobs:#?}");
    // No alloc was lost, so each job was placed once.
    assert!(jobs.iter().all(|j| j.summary.tries.copies == 1), "a job was placed twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_runs_at_once_never_exceed_the_maximum() {
    runs_at_once(2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_runs_at_once_never_exceed_the_maximum() {
    runs_at_once(10).await;
}
