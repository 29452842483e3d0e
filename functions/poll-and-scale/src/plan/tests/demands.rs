//! Tests of the plan: pure demand, by which another scheduler gets nodes for its own work.

use super::*;

/// A demand for a whole node of the smallest size.
fn whole_node(spec: &mut JobSpec) {
    (spec.demand, spec.vcpus) = (true, 2);
    spec.command.clear();
}

/// A node that the other scheduler's work has made busy.
fn busy_since(n: u32, s: i64) -> NodeRecord {
    let mut record = idle_long(n);
    if let NodeState::InUse(node) = &mut record.state {
        (node.contact.busy, node.contact.busy_since_at) = (true, Some(at(s)));
    }
    record
}

/// How many are placed, and how many nodes are launched.
fn served(given: &Given) -> (usize, usize) {
    (given.count(at(150), "place"), given.count(at(150), "launch"))
}

#[test]
fn a_node_that_its_own_work_made_busy_satisfies_a_demand_and_no_other_job() {
    let two = given(json!({})).node(busy_since(0, 50)).node(busy_since(1, 60));
    assert_eq!(served(&two.clone().job(5, whole_node).job(6, whole_node)), (2, 0));
    assert_eq!(served(&two.clone().job(5, whole).job(6, whole)), (0, 2));
    // A third demand needs a third node.
    let three = two.job(5, whole_node).job(6, whole_node).job(7, whole_node);
    assert_eq!(served(&three), (2, 1));
}

#[test]
fn what_was_busy_before_the_demand_does_not_satisfy_it() {
    let mut early = given(json!({})).node(busy_since(0, 50)).job(5, whole_node);
    early.seen.jobs[0].submitted_at = at(51);
    assert_eq!(served(&early), (0, 1));
    early.seen.jobs[0].submitted_at = at(50);
    assert_eq!(served(&early), (1, 0));
    // An older record does not say since when. It was assigned before the demand was submitted, or after it.
    let contact = |given: &mut Given, change: fn(&mut model::Contact)| {
        let NodeState::InUse(node) = &mut given.seen.nodes[0].state else { panic!("not in use") };
        change(&mut node.contact);
    };
    contact(&mut early, |c| c.busy_since_at = None);
    assert_eq!(served(&early), (0, 1));
    early.seen.jobs[0].submitted_at = at(-1);
    assert_eq!(served(&early), (1, 0));
    // A demand that has ended stood for the work that still runs.
    contact(&mut early, |c| c.busy_spent = true);
    assert_eq!(served(&early), (0, 1));
}

#[test]
fn two_demands_have_one_node_only_if_they_fit_on_it_together() {
    let half = |spec: &mut JobSpec| {
        whole_node(spec);
        spec.vcpus = 1;
    };
    let one = || given(json!({})).node(busy_since(0, 50));
    assert_eq!(served(&one().job(5, half).job(6, half)), (2, 0));
    assert_eq!(served(&one().job(5, half).job(6, whole_node)), (1, 1));
    let alone = |spec: &mut JobSpec| {
        half(spec);
        spec.exclusive = true;
    };
    assert_eq!(served(&one().job(5, alone).job(6, half)), (1, 1));
}

#[test]
fn each_of_two_demands_finds_the_node_that_is_busy_for_it() {
    for first in [100, 900] {
        let mut given = given(json!({})).node(busy_since(0, 80)).node(busy_since(1, 50));
        given = given.job(5, whole_node).job(6, |spec| {
            whole_node(spec);
            spec.priority = first;
        });
        // Only the node of slot 0 became busy after the later demand.
        let later = given.seen.jobs.iter_mut().find(|job| job.job_id == fixtures::job_id(6)).unwrap();
        later.submitted_at = at(70);
        assert_eq!(served(&given), (2, 0), "priority {first}");
    }
}

#[test]
fn a_node_that_is_busy_before_it_has_reported_is_waited_for() {
    let mut syncing = busy_since(0, 50);
    if let NodeState::InUse(node) = &mut syncing.state {
        (node.contact.status, node.contact.syncing_since_at) = (NodeStatus::Syncing, Some(at(140)));
    }
    let given = given(json!({})).node(syncing).job(5, whole_node);
    assert_eq!(served(&given), (0, 0));
    let explained = plan(&given.seen, at(150)).explained;
    assert_eq!(explained.waiting[0].reason(), "it waits until slot 0 can take work");
}

#[test]
fn demands_of_one_kind_wait_together_and_still_find_a_node_that_is_busy_for_one_of_them() {
    // The cap is reached. The first demand was submitted after the node became busy, and the third before.
    let mut given = given(json!({"nodes": {"max": 1}})).node(busy_since(0, 50));
    given = given.job(5, whole_node).job(6, whole_node).job(7, whole_node);
    (given.seen.jobs[0].submitted_at, given.seen.jobs[1].submitted_at) = (at(60), at(60));
    assert_eq!(served(&given), (1, 0), "{:?}", given.actions(at(150)));
}

#[test]
fn a_demand_ends_when_its_time_is_over_and_wants_no_node_then() {
    let timed = |spec: &mut JobSpec| {
        whole_node(spec);
        spec.timeout_s = 150;
    };
    let given = given(json!({})).job(5, timed);
    assert_eq!((given.count(at(149), "launch"), given.count(at(149), "end_demand")), (1, 0));
    assert_eq!((given.count(at(150), "launch"), given.count(at(150), "end_demand")), (0, 1));
}
