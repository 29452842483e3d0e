//! Failed starts, and launches that must not last longer than their run.

use crate::world::{World, job, quick_policy};
use model::ActionName;
use model::JobSpec;
use model::control::{ControlKey, Entry, EntryRow, FailedStarts, Quota};
use model::time::Span;
use runtime::answer::{Outcome, RunAnswer};
use serde_json::json;

/// A job that needs a node for itself.
fn alone() -> JobSpec {
    let mut spec = job(&["forever"]);
    spec.exclusive = true;
    spec
}

async fn failures(world: &World) -> FailedStarts {
    world.look.entry(&ControlKey::FailedStarts).await.unwrap()
}

#[tokio::test]
async fn instances_that_die_before_they_call_pause_launching() {
    let mut policy = quick_policy();
    policy["boot"]["failures_before_pause"] = json!(2);
    let world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    world.submit(alone()).await;
    let done = |answer: &RunAnswer, action: ActionName| -> Vec<Outcome> {
        answer.actions.iter().filter(|a| a.action == action).map(|a| a.outcome).collect()
    };
    assert_eq!(done(&world.poll().await.unwrap(), ActionName::Launch), [Outcome::Done]);
    for (died, then) in [(1, Outcome::Done), (2, Outcome::Left)] {
        for instance in world.ec2.instances() {
            world.ec2.terminate_by_cloud(&instance.instance_id);
        }
        for _ in 0..10 {
            world.pass(5);
            world.ec2.advance();
        }
        let answer = world.poll().await.unwrap();
        assert_eq!(
            (done(&answer, ActionName::Clean), done(&answer, ActionName::Launch)),
            (vec![Outcome::Done], vec![then]),
            "{answer:?}"
        );
        assert_eq!(failures(&world).await.count(), died);
    }
    assert_eq!(done(&world.poll().await.unwrap(), ActionName::Launch), [], "it pauses");
    world.pass(61);
    assert_eq!(done(&world.poll().await.unwrap(), ActionName::Launch), [Outcome::Done], "the pause is over");
}

#[tokio::test]
async fn a_start_that_succeeds_ends_the_count_before_its_node_is_gone() {
    let mut world = World::new().await;
    let read = failures(&world).await;
    let nine = EntryRow { since_at: Some(world.now()), count: Some(9), wait_s: Some(960), ..read.row().clone() };
    world.look.write_entry(&read, &FailedStarts::from_row(nine)).await.unwrap();
    world.submit(job(&["one"])).await;
    world.until_quiet(120).await;
    let after = failures(&world).await;
    assert_eq!((after.count(), after.pause_s(), after.until_at()), (0, None, None));
}

#[tokio::test]
async fn a_launch_without_time_left_is_left_to_the_next_run() {
    let mut policy = quick_policy();
    policy["launch"]["calls_per_second"] = json!(0.01);
    let world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for _ in 0..4 {
        world.submit(alone()).await;
    }
    let answer = tokio::time::timeout(std::time::Duration::from_secs(40), world.poll()).await;
    let answer = answer.expect("it does not wait for turns that come too late").unwrap();
    let launches: Vec<Outcome> =
        answer.actions.iter().filter(|a| a.action == ActionName::Launch).map(|a| a.outcome).collect();
    assert_eq!(launches.len(), 4);
    assert_eq!(launches.iter().filter(|d| **d == Outcome::Done).count(), 1, "{launches:?}");
    assert_eq!(launches.iter().filter(|d| **d == Outcome::Left).count(), 3, "{launches:?}");
    assert!(world.look.control().await.unwrap().runs.contains_key("poll-and-scale"));
}

#[tokio::test]
async fn after_a_shortage_launches_double_with_each_success() {
    let mut policy = quick_policy();
    policy["nodes"]["max"] = json!(20);
    // One launch after the other, so that each result is noted before the next one.
    policy["launch"]["calls_per_second"] = json!(50);
    policy["size"] = json!([policy["size"][0]]);
    let world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    for _ in 0..15 {
        world.submit(alone()).await;
    }
    let short = |short: bool| {
        let shortages = if short { json!([{}]) } else { json!([]) };
        world.ec2.set_faults(serde_json::from_value(json!({"shortages": shortages})).unwrap());
    };
    let launches = async || -> (usize, usize) {
        let answer = world.poll().await.unwrap();
        let outcomes = answer.actions.iter().filter(|a| a.action == ActionName::Launch).map(|a| a.outcome);
        let outcomes: Vec<Outcome> = outcomes.collect();
        let of = |done: Outcome| outcomes.iter().filter(|d| **d == done).count();
        (of(Outcome::Done), of(Outcome::Failed))
    };
    short(true);
    assert!(launches().await.1 > 0, "it is short");
    assert_eq!(launches().await, (0, 0), "it waits");
    world.pass(world.policy.shortage.ttl_s + 1);
    assert_eq!(launches().await, (0, 1), "its waiting is over: one is tried");
    short(false);
    world.pass(2 * world.policy.shortage.ttl_s + 1);
    for most in [1, 2] {
        assert_eq!(launches().await, (most, 0));
        world.pass(60);
    }
    // Capacity runs out. An earlier success in the same run does not hide the shortage.
    world.ec2.set_faults(serde_json::from_value(json!({"shortages": [{"left": 2}]})).unwrap());
    let (done, failed) = launches().await;
    assert!(done == 2 && failed > 0, "{done} launched, {failed} not");
    world.pass(60);
    assert_eq!(launches().await, (0, 0), "it waits again");
    short(false);
    world.pass(4 * world.policy.shortage.ttl_s + 1);
    for most in [1, 2, 4] {
        assert_eq!(launches().await, (most, 0));
        world.pass(60);
    }
}

#[tokio::test]
async fn a_quota_pause_ends_when_clean_stale_records_sees_that_an_instance_terminated() {
    let world = World::new().await;
    world.submit(alone()).await;
    world.poll().await.unwrap();
    let quota = async || world.look.entry::<Quota>(&ControlKey::Quota).await.unwrap();
    let never = quota().await;
    let until_at = Some(world.now() + Span::from_s(3600));
    let paused = EntryRow { since_at: Some(world.now()), until_at, ..never.row().clone() };
    world.look.write_entry(&never, &Quota::from_row(paused)).await.unwrap();
    world.clean().await.unwrap();
    assert!(quota().await.applies(world.now()), "nothing has terminated");
    for instance in world.ec2.instances() {
        world.ec2.terminate_by_cloud(&instance.instance_id);
    }
    for _ in 0..10 {
        world.pass(5);
        world.ec2.advance();
    }
    world.clean().await.unwrap();
    // The pause ended at the time of the action, which is a little later than the start of the run.
    world.pass(1);
    assert!(!quota().await.applies(world.now()));
}
