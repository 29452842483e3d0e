//! Races: many claims of one slot, and several runs at the same time.

use super::carried_out::{Ec2, settings};
use super::standing_still::Dead;
use crate::world::{START, World, job, quick_policy};
use model::control::PolicyRow;
use model::fixtures::{self, at};
use model::{Job, JobId, JobState, NewLife, NodeId, NodeRecord, NodeState, Policy, Slot, Version};
use nodekeeper_simulation::database::Plain;
use nodekeeper_simulation::embedded::Embedded;
use runtime::clock::RunClock;
use runtime::observation::Observation;
use runtime::run::Run;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
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

/// What the live allocs count for each share, person and licence.
async fn counts(world: &World) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let lives = world.look.nodes().await.unwrap();
    for id in lives.iter().filter_map(NodeRecord::life).flat_map(|life| life.allocs.iter()) {
        let alloc = world.look.alloc(*id).await.unwrap().unwrap().summary;
        *counts.entry(format!("share {}", alloc.share.unwrap())).or_default() += 1;
        *counts.entry(alloc.by.unwrap()).or_default() += u64::from(alloc.needs.vcpus);
        for (name, many) in alloc.needs.licences {
            *counts.entry(name).or_default() += u64::from(many);
        }
    }
    counts
}

/// Three limits, each with more work than it allows and more room than it needs. Ends hand their room on, and so many runs at once
/// read, plan and place. Returns the most of each that was there.
async fn limits_under(runs: usize) -> BTreeMap<String, u64> {
    let mut policy = quick_policy();
    policy["nodes"]["max"] = json!(12);
    policy["share"] = json!([{"name": "a", "members": ["*"], "running": 4}, {"name": "b", "members": ["*"]}]);
    policy["person"] = json!({"vcpus": 5});
    policy["limits"] = json!({"licences": {"matlab": 3}});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for n in 0..36_u32 {
        let mut spec = job(&["one"]);
        spec.share = Some(if n % 3 == 0 { "b" } else { "a" }.to_owned());
        if n % 4 == 0 {
            spec.needs.licences = [("matlab".to_owned(), 1 + n % 2)].into();
        }
        let id = JobId::new(world.look.rng().ulid(world.now()));
        let mut job = Job::submit(id, spec, world.now()).unwrap();
        job.summary.by = Some(["ann", "bob", "eve"][(n % 5).min(2) as usize].to_owned());
        world.look.write(None, &job, Vec::new()).await.unwrap();
    }
    let mut most: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..150 {
        futures::future::join_all((0..runs).map(|_| world.poll())).await;
        let now = counts(&world).await;
        now.into_iter()
            .for_each(|(name, many)| _ = most.entry(name).and_modify(|most| *most = many.max(*most)).or_insert(many));
        world.step().await;
        world.check().await;
        if world.look.jobs().await.unwrap().iter().all(|job| job.summary.state == JobState::Complete) {
            return most;
        }
    }
    panic!("some jobs are left: {:#?}", world.look.jobs().await.unwrap());
}

async fn hold_limits(runs: usize) {
    let most = limits_under(runs).await;
    for (name, limit) in [("share a", 4), ("ann", 5), ("bob", 5), ("eve", 5), ("matlab", 3)] {
        let there = most.get(name).copied().unwrap_or(0);
        assert!(there <= limit, "{name}: {there} at once, {limit} are allowed");
    }
    assert_eq!(most.get("share a"), Some(&4), "{most:?}");
    assert!(most.get("share b") > Some(&4), "{most:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_runs_at_once_never_exceed_a_limit_of_work_and_use_all_of_it() {
    hold_limits(10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nightly_a_hundred_runs_at_once_never_exceed_a_limit_of_work_and_use_all_of_it() {
    hold_limits(100).await;
}

/// A run that stood still for longer than any run may last, as a frozen process does, goes on after another run has taken the turn. Both
/// have planned one job under a limit of one, on different nodes.
#[tokio::test]
async fn a_run_that_has_lost_its_turn_places_nothing_under_a_limit() {
    let mut document = model::policy::example_json();
    document["share"] = json!([{"name": "a", "members": ["*"], "running": 1}, {"name": "b", "members": ["*"]}]);
    let policy = Policy::from_json(&document).unwrap();
    let (store, ec2) = (Store::new(Arc::new(Plain::new())), Ec2::default());
    store.write(None, &PolicyRow::of_policy(&policy), Vec::new()).await.unwrap();
    for (n, vcpus) in [(0, 2), (1, 4)] {
        let mut record = fixtures::ready(n);
        let NodeState::InUse(node) = &mut record.state else { panic!("it is in use") };
        (node.contact.lease_expires_at, node.life.offering.capacity.vcpus) = (at(900), vcpus);
        record.version = Version::UNWRITTEN;
        let instance = format!("i-{n}");
        ec2.all().insert(instance.clone(), fixtures::running(&instance, &record));
        store.write(None, &record, Vec::new()).await.unwrap();
    }
    let submit = async |n, share: &str, (vcpus, priority)| {
        let mut job = fixtures::job(n);
        (job.summary.needs.vcpus, job.summary.priority, job.summary.share) = (vcpus, priority, Some(share.to_owned()));
        job.summary.version = Version::UNWRITTEN;
        store.write(None, &job, Vec::new()).await.unwrap();
    };
    let observed = async |now| Observation::read_in_turn(&store, &ec2, now).await.unwrap();
    // Makes a run. Returns the jobs that its plan places, each with its slot.
    let run = async |observed: &Observation, now| {
        let clock = RunClock::new(now, None, Duration::from_secs(50));
        let run = Run::new(model::functions::POLL_AND_SCALE, &store, observed, clock);
        let plan = poll_and_scale::plan(observed, now);
        poll_and_scale::act::act(run, &ec2, &settings(), &plan).await;
        let places = plan.actions.iter().filter_map(|planned| match &planned.action {
            poll_and_scale::Action::Place { job_id, on } => Some((*job_id, on[0].1.slot())),
            _ => None,
        });
        places.collect::<Vec<_>>()
    };
    let (job, slot) = (fixtures::job_id, fixtures::slot);
    // So no run writes the record of slot 0 because it is idle.
    submit(0, "b", (1, 500)).await;
    assert_eq!(run(&observed(at(90)).await, at(90)).await, [(job(0), slot(0))]);
    submit(1, "a", (1, 500)).await;
    let frozen = observed(at(100)).await;
    submit(2, "a", (4, 900)).await;
    assert_eq!(run(&observed(at(161)).await, at(161)).await, [(job(2), slot(1))]);
    assert_eq!(run(&frozen, at(100)).await, [(job(1), slot(0))]);
    let state = async |n| store.job(job(n)).await.unwrap().unwrap().summary.state;
    assert_eq!([state(1).await, state(2).await], [JobState::Queued, JobState::Placed]);
}

/// EC2 fails in the middle of a run that has the turn: the next run has it at once, and not when the first would have ended.
#[tokio::test]
async fn a_run_that_fails_gives_the_turn_back() {
    let mut document = model::policy::example_json();
    document["share"] = json!([{"name": "a", "members": ["*"], "running": 1}]);
    let store = Store::new(Arc::new(Plain::new()));
    let policy = Policy::from_json(&document).unwrap();
    store.write(None, &PolicyRow::of_policy(&policy), Vec::new()).await.unwrap();
    let ec2 = Ec2::default();
    let has_turn = async |now| Observation::read_in_turn(&store, &ec2, now).await.unwrap().limit_turn.is_some();
    assert!(Observation::read_in_turn(&store, &Dead, at(90)).await.is_err());
    // The second one did not end either, and the third begins while it may still run.
    assert_eq!([has_turn(at(91)).await, has_turn(at(92)).await], [true, false]);
}
