//! Crashes: every function is killed after every single write and EC2 call of a whole life, one by one. Each time, the
//! next runs repair everything.

use crate::world::all_rows::AllRows;
use crate::world::raw::{Item, Raw};
use crate::world::{World, job, quick_policy};
use async_trait::async_trait;
use model::fixtures::slot;
use model::{
    ActionName, Batch, Cloud, CloudError, Instance, Intent, JobState, LaunchAnswer, LaunchError, LaunchRequest,
    NodeRecord,
};
use runtime::answer::ActionOutcome;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Store, TABLES, Table};

/// A life with a launch, registrations, placements (one on two nodes at once), a failure with a retry, a cache,
/// shutdowns and cleaning.
async fn life(world: &mut World) -> Vec<(String, JobState)> {
    let mut pair = job(&["pair"]);
    pair.needs.nodes = 2;
    pair.work.caches = vec!["data".into()];
    let mut fails = job(&["fail"]);
    fails.failure_policy.retry_failed = 1;
    for spec in [job(&["one"]), pair, fails] {
        world.submit(spec).await;
    }
    world.until_quiet(120).await;
    let jobs = world.look.jobs().await.unwrap();
    jobs.iter().map(|j| (j.work.command[0].clone(), j.summary.state)).collect()
}

async fn fresh() -> World {
    let mut policy = quick_policy();
    policy["sweep"]["cache_unused_s"] = json!(20);
    World::with(policy, ec2_stand_in::Ec2Settings::default()).await
}

fn right(outcome: &[(String, JobState)]) -> bool {
    outcome.len() == 3
        && outcome.iter().all(|(command, state)| match command.as_str() {
            "fail" => *state == JobState::Failed,
            _ => *state == JobState::Complete,
        })
}

#[tokio::test]
async fn a_run_killed_after_any_write_or_call_is_repaired_by_the_next_runs() {
    let mut world = fresh().await;
    let outcome = life(&mut world).await;
    assert!(right(&outcome), "{outcome:?}");
    let points = world.switch.calls();
    let kinds = world.switch.log();
    for kind in ["CreateFleet", "TerminateInstances", "transact of", "write Nodes", "write Control"] {
        assert!(kinds.iter().any(|k| k.starts_with(kind)), "the life has no {kind}: {kinds:?}");
    }
    println!("{points} points of death");
    for point in 1..=points {
        let mut world = fresh().await;
        world.switch.kill_after(point);
        let outcome = life(&mut world).await;
        assert!(right(&outcome), "killed after call {point} ({:?}): {outcome:?}", world.switch.log().get(point - 1));
        let launched = world.ec2.instances().len();
        assert!(launched <= 4, "killed after call {point}: {launched} instances for two nodes' work");
    }
}

/// Kills the run that places the three members of a job at every point. A transaction places each member.
#[tokio::test]
async fn a_run_killed_between_members_starts_none_of_them() {
    let placing = async |point: Option<usize>| {
        let mut policy = quick_policy();
        policy["nodes"]["min"] = json!(3);
        let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
        for _ in 0..8 {
            world.step().await;
        }
        let mut trio = job(&["trio"]);
        trio.needs.nodes = 3;
        trio.work.caches = (0..48).map(|n| format!("cache{n}")).collect();
        trio.failure_policy.retry_lost = 0;
        let id = world.submit(trio).await.summary.job_id;
        let before = world.switch.calls();
        point.iter().for_each(|point| world.switch.kill_after(before + point));
        world.poll().await;
        (world, id, before)
    };
    let (world, _, before) = placing(None).await;
    let log = world.switch.log().split_off(before);
    assert_eq!(log.iter().filter(|call| call.starts_with("transact of 5")).count(), 3, "{log:?}");
    for point in 1..=log.len() {
        let (mut world, id, _) = placing(Some(point)).await;
        let states: Vec<JobState> = world.look.jobs().await.unwrap().iter().map(|j| j.summary.state).collect();
        let mut done = false;
        for _ in 0..60 {
            world.step().await;
            done = world.look.job(id).await.unwrap().unwrap().summary.state == JobState::Complete;
            if done {
                break;
            }
        }
        assert!(done, "killed after {:?}, when the job was {states:?}", log.get(point - 1));
    }
}

/// A world with four jobs that need a node each, in which EC2 launches `most` instances and then no more.
async fn batch_of_four(most: u32) -> World {
    four_jobs(most, 99).await
}

async fn four_jobs(most: u32, max_per_call: u32) -> World {
    let mut policy = quick_policy();
    policy["idle"]["timeout_s"] = json!(20);
    policy["launch"]["max_per_call"] = json!(max_per_call);
    let world = World::batched(policy).await;
    world.ec2.set_faults(serde_json::from_value(json!({"shortages": [{"left": most}]})).unwrap());
    for n in 0..4 {
        let mut spec = job(&["one"]);
        (spec.needs.exclusive, spec.name) = (true, Some(format!("job {n}")));
        world.submit(spec).await;
    }
    world
}

#[tokio::test]
async fn one_call_asks_for_at_most_as_many_nodes_as_the_policy_allows() {
    for (max_per_call, calls, launched_alone) in [(1, 4, 4), (3, 2, 1), (99, 1, 0)] {
        let world = four_jobs(4, max_per_call).await;
        world.poll().await;
        let log = world.switch.log();
        assert_eq!(log.iter().filter(|call| *call == "CreateFleet").count(), calls, "{max_per_call}: {log:?}");
        let nodes = world.look.nodes().await.unwrap();
        assert!(nodes.iter().all(|n| n.life().is_some_and(|l| l.instance_id.is_some())), "{nodes:?}");
        // A node that is launched alone has a tag of its own, which agents of every version understand.
        let alone = world.ec2.instances().iter().filter(|i| i.tags.contains_key("nodekeeper:node-id")).count();
        assert_eq!(alone, launched_alone);
    }
}

/// Every job ran, each instance belongs to another node, and none was an orphan.
async fn launched_once(world: &World, case: &str) {
    let jobs = world.look.jobs().await.unwrap();
    assert!(jobs.iter().all(|j| j.summary.state == JobState::Complete), "{case}: {jobs:?}");
    let instances = world.ec2.instances();
    let mut launched: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in &instances {
        *launched.entry(&instance.tags["nodekeeper:batch"]).or_default() += 1;
    }
    for (batch, count) in launched {
        assert!(
            count <= batch.parse::<Batch>().unwrap().slots().len(),
            "{case}: more instances than nodes: {instances:?}"
        );
    }
    let events = world.look.events().await.unwrap();
    let orphans: Vec<_> = events.iter().filter(|e| e.action == ActionName::TerminateOrphan.as_str()).collect();
    assert!(orphans.is_empty(), "{case}: {orphans:?}");
}

/// Kills the run that launches at every point, for every number of instances that EC2 may launch for a batch of four.
#[tokio::test]
async fn nightly_a_batch_killed_after_any_write_or_call_is_one_launch() {
    for most in 1..=4 {
        let world = batch_of_four(most).await;
        world.poll().await;
        let (points, log) = (world.switch.calls(), world.switch.log());
        let batch = |call: &&String| call.as_str() == "transact of 4";
        assert_eq!(log.iter().filter(batch).count(), 2, "one claim, and one write of what was launched: {log:?}");
        assert_eq!(log.iter().filter(|call| *call == "CreateFleet").count(), 1, "{log:?}");
        for point in 1..=points {
            let mut world = batch_of_four(most).await;
            world.switch.kill_after(point);
            world.until_quiet(400).await;
            launched_once(&world, &format!("{most} instances, killed after {point}: {:?}", log.get(point - 1))).await;
        }
    }
}

/// The batch is launched, but its answer is lost. The repeated call gets the same instances.
#[tokio::test]
async fn a_batch_whose_answer_is_lost_is_one_launch() {
    for (most, lost_as) in [(4, "disconnect"), (2, "internal_error")] {
        let mut world = batch_of_four(most).await;
        let faults = json!({"shortages": [{"left": most}], "lose_run_answers": 1, "lost_as": lost_as,
            "forget": [{"instance_id": "*", "until": world.now().as_ms() + 90_000}]});
        world.ec2.set_faults(serde_json::from_value(faults).unwrap());
        world.until_quiet(400).await;
        launched_once(&world, lost_as).await;
    }
}

/// An EC2 in front of which an operator drains slot 1 while a launch call is under way.
struct Draining(Arc<dyn Cloud>, Store);

#[async_trait]
impl Cloud for Draining {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.0.instances().await
    }
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        self.0.instance(instance_id).await
    }
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError> {
        let record = self.1.node(slot(1)).await.unwrap().unwrap();
        let drained = record.with_intent(Intent::Drain, None, record.modified_at).unwrap();
        self.1.write(Some(&record), &drained, Vec::new()).await.unwrap();
        self.0.launch(request, client_token).await
    }
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        self.0.terminate(instance_ids).await
    }
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError> {
        self.0.console_output(instance_id).await
    }
}

/// Somebody changes a record of the batch while the batch is launched. The run reads the records again and binds all of
/// them.
#[tokio::test]
async fn a_batch_of_which_one_record_changes_meanwhile_is_bound() {
    let mut world = batch_of_four(4).await;
    world.cloud = Arc::new(Draining(Arc::clone(&world.cloud), world.look.clone()));
    let answer = world.poll().await.unwrap();
    assert!(answer.actions.iter().all(|a| a.outcome == ActionOutcome::Done), "{answer:?}");
    let nodes = world.look.nodes().await.unwrap();
    let lives: Vec<_> = nodes.iter().map(|n| n.life().unwrap()).collect();
    assert!(lives.iter().all(|life| life.instance_id.is_some()), "{lives:?}");
    assert_eq!(lives[1].intent, Intent::Drain);
    world.check().await;
}

#[tokio::test]
async fn a_second_run_changes_nothing() {
    let mut world = World::new().await;
    world.submit(job(&["forever"])).await;
    for _ in 0..8 {
        world.step().await;
    }
    world.poll().await;
    let before = (world.look.nodes().await.unwrap(), world.look.jobs().await.unwrap());
    let answer = world.poll().await.unwrap();
    assert!(answer.actions.is_empty(), "{answer:?}");
    assert_eq!((world.look.nodes().await.unwrap(), world.look.jobs().await.unwrap()), before);
}

#[tokio::test]
async fn a_launch_whose_answer_is_lost_is_one_instance() {
    for lost_as in ["disconnect", "internal_error"] {
        let mut world = World::new().await;
        let faults = json!({"lose_run_answers": 1, "lost_as": lost_as});
        world.ec2.set_faults(serde_json::from_value(faults).unwrap());
        world.submit(job(&["one"])).await;
        world.until_quiet(120).await;
        assert_eq!(world.ec2.instances().len(), 1, "{lost_as}");
    }
}

#[tokio::test]
async fn slot_0_is_used_first_and_cleaned_like_any_other() {
    let mut world = World::new().await;
    world.submit(job(&["one"])).await;
    world.poll().await;
    let nodes = world.look.nodes().await.unwrap();
    assert_eq!(nodes.iter().map(|n| n.slot.number()).collect::<Vec<_>>(), [0]);
    let first = nodes[0].node_id().unwrap();
    world.until_quiet(120).await;
    assert!(world.look.nodes().await.unwrap()[0].is_cleaned());
    // The same slot again, for another life.
    world.submit(job(&["two"])).await;
    world.poll().await;
    let again = world.look.nodes().await.unwrap();
    assert_eq!(again.len(), 1);
    assert_ne!(again[0].node_id().unwrap(), first);
    world.until_quiet(120).await;
}

/// Every row except events, by table.
type Tables = Vec<(&'static str, Vec<Item>)>;

async fn saved(world: &World) -> Tables {
    let raw = Raw::of(world);
    let mut tables = Vec::new();
    for table in TABLES.iter().map(|d| d.table).filter(|table| *table != Table::Events) {
        tables.push((table.suffix(), raw.rows(table.suffix()).await));
    }
    tables
}

async fn restore(world: &World, tables: &Tables) {
    let raw = Raw::of(world);
    for ((table, now), (_, then)) in saved(world).await.iter().zip(tables) {
        for row in now {
            raw.delete(table, row).await;
        }
        for row in then {
            raw.put(table, row).await;
        }
    }
}

#[tokio::test]
async fn a_life_ends_after_tables_are_restored_to_any_earlier_step() {
    for after in 2..=12 {
        for back in [1, 2] {
            let mut world = fresh().await;
            for spec in [job(&["one"]), job(&["fail"]), job(&["two"])] {
                world.submit(spec).await;
            }
            let mut past = vec![saved(&world).await];
            for _ in 0..after {
                world.step().await;
                past.push(saved(&world).await);
            }
            let Some(then) = past.len().checked_sub(1 + back).and_then(|n| past.get(n)) else { continue };
            restore(&world, then).await;
            world.until_quiet(200).await;
            let jobs = world.look.jobs().await.unwrap();
            for job in &jobs {
                let fails = job.work.command == ["fail"];
                let expected = if fails { JobState::Failed } else { JobState::Complete };
                assert_eq!(job.summary.state, expected, "after step {after}, {back} back: {job:#?}");
            }
            assert_eq!(jobs.len(), 3, "after step {after}, {back} back");
        }
    }
}

#[tokio::test]
async fn an_ended_alloc_leaves_a_restored_node() {
    let mut world = fresh().await;
    world.submit(job(&["one"])).await;
    let mut with_alloc = None;
    for step in 0.. {
        assert!(step < 60, "the job does not end");
        world.step().await;
        if world.look.jobs().await.unwrap()[0].summary.state == JobState::Complete {
            break;
        }
        let nodes = world.look.nodes().await.unwrap();
        if nodes.iter().filter_map(|n| n.life()).any(|life| !life.allocs.is_empty()) {
            with_alloc = Some(saved(&world).await);
        }
    }
    restore_only(&world, Table::Nodes, with_alloc.unwrap()).await;
    until_quiet_unchecked(&mut world).await;
}

#[tokio::test]
async fn a_job_whose_allocs_a_restored_table_forgot_is_queued_again_and_ends() {
    let mut world = fresh().await;
    let id = world.submit(job(&["one"])).await.summary.job_id;
    let without_allocs = saved(&world).await;
    for step in 0.. {
        assert!(step < 60, "the job is not placed");
        world.step().await;
        if world.look.jobs().await.unwrap()[0].summary.state == JobState::Placed {
            break;
        }
    }
    restore_only(&world, Table::Allocs, without_allocs).await;
    let did = world.poll().await.unwrap().actions;
    let requeued = did.iter().find(|a| a.action == ActionName::Requeue).map(|a| (a.subject.as_str(), a.outcome));
    assert_eq!(requeued, Some((format!("job#{id}").as_str(), ActionOutcome::Done)), "{did:?}");
    for _ in 0..40 {
        world.step().await;
    }
    // The record of the node no longer lists the forgotten alloc, so the node ends it, and is free.
    let listed = |n: &NodeRecord| n.life().is_some_and(|life| !life.allocs.is_empty());
    let left: Vec<_> = world.look.nodes().await.unwrap().into_iter().filter(listed).collect();
    assert_eq!(left, []);
    until_quiet_unchecked(&mut world).await;
    let jobs = world.look.jobs().await.unwrap();
    assert_eq!(
        jobs.iter().map(|j| (j.summary.job_id, j.summary.state)).collect::<Vec<_>>(),
        [(id, JobState::Complete)]
    );
}

/// Restores one table, and leaves the others as they are.
async fn restore_only(world: &World, table: Table, then: Tables) {
    let mut tables = saved(world).await;
    for ((name, rows), (_, then)) in tables.iter_mut().zip(then) {
        if *name == table.suffix() {
            *rows = then;
        }
    }
    restore(world, &tables).await;
}

/// Steps until the fleet is quiet. Does not call [`World::check`], because tables from different moments break the
/// invariants.
async fn until_quiet_unchecked(world: &mut World) {
    for _ in 0..120 {
        world.step().await;
        if world.is_quiet().await {
            return;
        }
    }
    panic!("{:#?}\n{:#?}", world.look.nodes().await.unwrap(), world.look.jobs().await.unwrap());
}
