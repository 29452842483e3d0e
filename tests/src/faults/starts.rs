//! Failed starts, and launches that must end with their run.

use crate::world::{World, job, quick_policy};
use model::control::{FailedStarts, LaunchWait};
use model::{ActionName, Class, ControlKey, JobSpec, Reach, Refusal, Span};
use runtime::answer::{ActionOutcome, RunAnswer};
use serde_json::json;

fn alone() -> JobSpec {
    let mut spec = job(&["forever"]);
    spec.needs.exclusive = true;
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
    let done = |answer: &RunAnswer, action: ActionName| -> Vec<ActionOutcome> {
        answer.actions.iter().filter(|a| a.action == action).map(|a| a.outcome).collect()
    };
    assert_eq!(done(&world.poll().await.unwrap(), ActionName::Launch), [ActionOutcome::Done]);
    for (died, then) in [(1, ActionOutcome::Done), (2, ActionOutcome::Left)] {
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
            (vec![ActionOutcome::Done], vec![then]),
            "{answer:?}"
        );
        assert_eq!(failures(&world).await.count, Some(died));
    }
    assert_eq!(done(&world.poll().await.unwrap(), ActionName::Launch), [], "it pauses");
    world.pass(61);
    assert_eq!(done(&world.poll().await.unwrap(), ActionName::Launch), [ActionOutcome::Done], "the pause is over");
}

#[tokio::test]
async fn a_start_that_succeeds_ends_the_count_before_its_node_is_gone() {
    let mut world = World::new().await;
    let read = failures(&world).await;
    let nine = LaunchWait { since_at: Some(world.now()), count: Some(9), wait_s: Some(960), ..read.entry.clone() };
    world.look.write_entry(&read, &read.with(nine)).await.unwrap();
    world.submit(job(&["one"])).await;
    world.until_quiet(120).await;
    let after = failures(&world).await;
    assert_eq!((after.count, after.wait_s, after.until_at), (Some(0), None, None));
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
    let launches: Vec<ActionOutcome> =
        answer.actions.iter().filter(|a| a.action == ActionName::Launch).map(|a| a.outcome).collect();
    assert_eq!(launches.len(), 4);
    assert_eq!(launches.iter().filter(|d| **d == ActionOutcome::Done).count(), 1, "{launches:?}");
    assert_eq!(launches.iter().filter(|d| **d == ActionOutcome::Left).count(), 3, "{launches:?}");
    assert!(world.look.control().await.unwrap().runs.contains_key("poll-and-scale"));
}

#[tokio::test]
async fn after_a_shortage_launches_double_with_each_success() {
    let mut policy = quick_policy();
    policy["nodes"]["max"] = json!(20);
    // One launch after the other, so that each result is recorded before the next launch.
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
        let outcomes: Vec<ActionOutcome> = outcomes.collect();
        let of = |done: ActionOutcome| outcomes.iter().filter(|d| **d == done).count();
        (of(ActionOutcome::Done), of(ActionOutcome::Failed))
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

/// EC2 has two instances of each type at first, and enough later.
#[tokio::test]
async fn the_members_of_a_job_are_bought_together_or_not_at_all() {
    let mut policy = quick_policy();
    policy["nodes"]["max"] = json!(20);
    policy["launch"]["calls_per_second"] = json!(50);
    let world = World::batched(policy).await;
    let mut spec = alone();
    spec.needs.nodes = 3;
    world.submit(spec).await;
    world.ec2.set_faults(serde_json::from_value(json!({"shortages": [{"left": 2}]})).unwrap());
    let answer = world.poll().await.unwrap();
    assert!(
        answer.actions.iter().any(|a| a.action == ActionName::Launch && a.outcome == ActionOutcome::Failed),
        "{answer:?}"
    );
    assert_eq!(world.ec2.instances().len(), 0, "a part of them would idle");
    assert!(world.look.nodes().await.unwrap().iter().all(model::NodeRecord::is_cleaned));
    world.ec2.set_faults(ec2_stand_in::Faults::default());
    world.pass(4 * world.policy.shortage.ttl_s + 1);
    world.poll().await.unwrap();
    assert_eq!(world.ec2.instances().len(), 3);
}

#[tokio::test]
async fn a_limit_by_a_quota_ends_when_clean_stale_records_sees_that_an_instance_terminated() {
    let world = World::new().await;
    world.submit(alone()).await;
    world.poll().await.unwrap();
    let refused = async || !world.look.control().await.unwrap().limits(world.now()).is_empty();
    let launched = world.look.nodes().await.unwrap().remove(0).life().unwrap().offering.clone();
    let error = Refusal { reach: Reach::Family, class: Class::Quota, message: "VcpuLimitExceeded".into() }.into();
    let control = world.look.control().await.unwrap();
    let change = control.after_refusal(&launched, &error, &world.policy, 1, world.now());
    let longer = LaunchWait { until_at: Some(world.now() + Span::from_s(3600)), ..change.after.entry.clone() };
    world.look.write_entry(&change.before, &change.after.with(longer)).await.unwrap();
    world.clean().await.unwrap();
    assert!(refused().await, "nothing has terminated");
    for instance in world.ec2.instances() {
        world.ec2.terminate_by_cloud(&instance.instance_id);
    }
    for _ in 0..10 {
        world.pass(5);
        world.ec2.advance();
    }
    world.clean().await.unwrap();
    // The limit ended at the time of the action, shortly after the start of the run.
    world.pass(1);
    assert!(!refused().await);
}

/// The sizes differ in market, family and template, and there are two subnets. The first ways are refused. The same run
/// then launches by the first way that the refusal does not concern. A call asks for all its ways, so it meets a
/// refusal of both subnets twice.
#[tokio::test]
async fn after_a_refusal_the_same_run_tries_what_it_does_not_speak_of() {
    let template = |name: &str| json!({"id": format!("lt-{name}"), "name": name, "versions": [{"version": 1}]});
    let subnet = |name: &str| json!({"subnet_id": name, "zone": format!("zone-{name}")});
    for (code, of, message, refusals, expected) in [
        ("InsufficientInstanceCapacity", json!({"subnet_id": "subnet-a"}), "", 1, "spot m7a.large subnet-b"),
        ("InvalidSubnetID.NotFound", json!({"subnet_id": "subnet-a"}), "", 1, "spot m7a.large subnet-b"),
        ("InsufficientFreeAddressesInSubnet", json!({"subnet_id": "subnet-a"}), "", 1, "spot m7a.large subnet-b"),
        ("MaxSpotInstanceCountExceeded", json!({"market": "spot"}), "", 2, "on_demand m7a.large subnet-a"),
        ("VcpuLimitExceeded", json!({"market": "spot"}), "", 2, "on_demand m7a.large subnet-a"),
        (
            "InvalidParameterValue",
            json!({"instance_type": "m7a.large"}),
            "no such type",
            4,
            "on_demand x2idn.large subnet-a",
        ),
        (
            "InvalidParameterValue",
            json!({"template": "one"}),
            "Invalid IAM Instance Profile name",
            2,
            "on_demand x2idn.large subnet-a",
        ),
        ("InvalidAMIID.Unavailable", json!({"template": "one"}), "", 2, "on_demand x2idn.large subnet-a"),
        ("OfTheFuture", json!({"subnet_id": "subnet-a", "market": "spot"}), "", 1, "spot m7a.large subnet-b"),
    ] {
        let mut policy = quick_policy();
        policy["launch"]["template"] = json!("one");
        policy["launch"]["subnets"] = json!(["subnet-a", "subnet-b"]);
        let size = |name: &str, of_type: &str, price: f64| json!({"name": name, "instance_type": of_type, "vcpus": 2, "memory_mib": 4096, "price_per_hour": price});
        let mut sizes = [size("spot", "m7a.large", 0.05), size("memory", "x2idn.large", 0.2)];
        (sizes[0]["market"], sizes[0]["fallback"]) = (json!("spot"), json!("on_demand"));
        sizes[1]["template"] = json!("two");
        policy["size"] = json!(sizes);
        let settings = json!({"subnets": [subnet("subnet-a"), subnet("subnet-b")], "launch_templates": [template("one"), template("two")]});
        let world = World::with(policy, serde_json::from_value(settings).unwrap()).await;
        let mut fail = of.clone();
        (fail["action"], fail["code"], fail["message"]) = (json!("RunInstances"), json!(code), json!(message));
        fail["times"] = json!(100);
        // One call names both subnets, as this run reads that they lie in two zones.
        world.clean().await.unwrap();
        world.ec2.set_faults(serde_json::from_value(json!({"fail": [fail]})).unwrap());
        world.submit(alone()).await;
        let answer = world.poll().await.unwrap();
        let launched: Vec<String> =
            world.ec2.instances().iter().map(|i| format!("{} {} {}", i.market, i.instance_type, i.subnet_id)).collect();
        assert_eq!(launched, [expected], "{code} {of}: {answer:?}");
        let refused = 100 - world.ec2.faults().fail[0].times;
        assert_eq!(refused, refusals, "{code} {of}");
        // The next run does not try the refused way either.
        world.submit(alone()).await;
        world.poll().await.unwrap();
        assert_eq!(world.ec2.instances().len(), 2, "{code} {of}");
        assert_eq!(100 - world.ec2.faults().fail[0].times, refused, "{code} {of}: tried again at once");
    }
}
