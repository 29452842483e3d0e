//! What a cap is in the way of, what makes way for it, and what does not.

use super::*;
use model::control::{ControlKey, EntryRow};

/// Two idle nodes of a size that costs 2, a cap of 4, and a size that costs 1.
fn dear_and_idle(min: u32) -> Given {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 1, "memory_mib": 1000, "price_per_hour": 1},
        {"name": "big", "instance_type": "b", "vcpus": 4, "memory_mib": 4000, "price_per_hour": 2}]);
    given(json!({"size": sizes, "nodes": {"min": min, "max": 8, "max_price_per_hour": 4}})).node(big(0)).node(big(1))
}

fn big(n: u32) -> NodeRecord {
    let mut record = of_size(idle_long(n), "big");
    if let NodeState::InUse(node) = &mut record.state {
        node.life.offering.capacity = Capacity { vcpus: 4, memory_mib: 4000, scratch_gib: 0, gpus: 0 };
        node.life.offering.price_per_hour = Usd::from_micros(2_000_000);
    }
    record
}

#[test]
fn a_job_of_many_keeps_only_nodes_that_leave_the_price_for_the_rest() {
    // Four members cost 4 on small nodes alone; with a big one kept they would cost 5.
    let four = dear_and_idle(0).job(5, |s| s.nodes = 4);
    assert_eq!(four.count(at(900), "shut_down"), 2, "{:?}", four.actions(at(900)));
    // Three cost 4 with one of the big ones kept.
    let three = dear_and_idle(0).job(5, |s| s.nodes = 3);
    assert_eq!(three.count(at(900), "shut_down"), 1, "{:?}", three.actions(at(900)));
}

#[test]
fn nodes_kept_for_the_minimum_make_way_for_a_job_and_only_as_many_as_are_in_its_way() {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8000, "price_per_hour": 0.1},
        {"name": "big", "instance_type": "b", "vcpus": 8, "memory_mib": 8000, "price_per_hour": 0.8}]);
    let by_price = json!({"size": sizes, "nodes": {"min": 3, "max": 8, "max_price_per_hour": 1.0}});
    let by_number = json!({"size": sizes, "nodes": {"min": 3, "max": 3}});
    for policy in [by_price, by_number] {
        let given = given(policy).node(idle_long(0)).node(idle_long(1)).node(idle_long(2)).job(5, |s| s.vcpus = 8);
        assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
        assert_eq!(given.count(at(900), "launch"), 0, "there is no room yet");
    }
}

#[test]
fn dear_idle_nodes_make_way_for_the_minimum_and_the_cheapest_do_not() {
    let dear = dear_and_idle(3);
    assert_eq!(dear.count(at(900), "shut_down"), 1, "{:?}", dear.actions(at(900)));
    // Three of the cheapest there are cost more than the cap: nothing is gained by another one.
    let cheap = given(json!({"nodes": {"min": 3, "max_price_per_hour": 0.25}})).node(idle_long(0)).node(idle_long(1));
    assert_eq!(cheap.count(at(900), "shut_down"), 0, "{:?}", cheap.actions(at(900)));
}

#[test]
fn dear_idle_nodes_make_way_for_the_cheapest_size_that_is_not_full() {
    let sizes = json!([
        {"name": "only", "instance_type": "o", "vcpus": 1, "memory_mib": 500, "price_per_hour": 0.5, "max": 1},
        {"name": "small", "instance_type": "s", "vcpus": 1, "memory_mib": 1000, "price_per_hour": 1},
        {"name": "big", "instance_type": "b", "vcpus": 4, "memory_mib": 4000, "price_per_hour": 2}]);
    let policy = json!({"size": sizes, "nodes": {"min": 4, "max": 8, "max_price_per_hour": 5}});
    let mut only = of_size(idle_long(2), "only");
    if let NodeState::InUse(node) = &mut only.state {
        node.life.offering.price_per_hour = Usd::from_micros(500_000);
    }
    // 4.50 of 5: another `only` would be within it, and there may be none.
    let given = given(policy).node(big(0)).node(big(1)).node(only);
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
}

#[test]
fn what_a_price_keeps_from_the_first_job_is_no_later_jobs() {
    // The cap leaves 0.1 of the 0.2 that the first job needs: enough for the second one's node.
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.2}]);
    let given = given(json!({"size": sizes, "nodes": {"max": 8, "max_price_per_hour": 0.2}})).working(0);
    let first = |s: &mut JobSpec| (s.vcpus, s.priority) = (8, 900);
    assert_eq!(given.job(5, first).job(6, whole).count(at(100), "launch"), 0);
}

/// EC2 called the size wrong: until the next policy it is not launched.
fn without_large(mut given: Given) -> Given {
    let key = ControlKey::BadRequest("large".into());
    given.seen.control.put(EntryRow { policy_version: Some(1), ..EntryRow::new(&key) });
    given
}

/// Idle nodes, as many as there may be, of the only size that EC2 has now.
fn short_of_large(job: impl FnOnce(&mut JobSpec)) -> Given {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.2}]);
    let policy = json!({"size": sizes, "nodes": {"min": 2, "max": 2}});
    without_large(given(policy).node(idle_long(0)).node(idle_long(1)).job(5, job))
}

#[test]
fn nothing_makes_way_for_a_size_that_cannot_be_had() {
    let given = short_of_large(|s| s.vcpus = 8);
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
}

/// Six members, each of which needs a node of its own.
fn six(s: &mut JobSpec) {
    (s.nodes, s.vcpus) = (6, 8);
}

#[test]
fn nothing_is_launched_for_half_a_job_of_many() {
    // A node of the fleet's six is busy: the other five would wait for it, idle and paid for.
    let sizes = json!([
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.43}]);
    let policy = |max| json!({"size": sizes, "nodes": {"max": max}});
    let busy = given(policy(6)).working(0).job(5, six);
    assert_eq!(busy.count(at(60), "launch"), 0, "{:?}", busy.actions(at(60)));
    let all = given(policy(7)).working(0).job(5, six);
    assert_eq!(all.count(at(60), "launch"), 6, "{:?}", all.actions(at(60)));
    // Nor is the room a later job's, who would be content with a bit of it.
    let later = busy.job(6, |s| s.vcpus = 8);
    assert_eq!(later.count(at(60), "launch"), 0, "{:?}", later.actions(at(60)));
}

/// A size at this price, one that serves larger jobs, and one that serves them at a higher price.
fn with_a_dear_stand_in(price: f64) -> Value {
    json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": price},
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.43},
        {"name": "gpu", "instance_type": "g", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1.5}])
}

#[test]
fn room_is_made_for_what_can_be_had_and_not_for_what_would_be_cheaper() {
    let policy = json!({"size": with_a_dear_stand_in(1.0), "nodes": {"min": 1, "max": 9, "max_price_per_hour": 2}});
    let mut small = idle_long(0);
    if let NodeState::InUse(node) = &mut small.state {
        node.life.offering.price_per_hour = Usd::from_micros(1_000_000);
    }
    // `large` would fit beside the idle node; `gpu` does not, and only that can be had.
    let given = without_large(given(policy).node(small).job(5, |s| s.vcpus = 8));
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
}

#[test]
fn nothing_makes_way_for_what_costs_too_much_even_alone() {
    let policy = json!({"size": with_a_dear_stand_in(0.1), "nodes": {"min": 1, "max": 9, "max_price_per_hour": 5.25}});
    // Six of `large` would do; six of what can be had would cost 9.
    let given = without_large(given(policy).node(idle_long(0)).job(5, six));
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
    // And what it cannot use is a later job's: the idle node, and another one.
    let later = given.job(6, |s| s.vcpus = 2).job(7, |s| s.vcpus = 2);
    let (placed, launched) = (later.count(at(900), "place"), later.count(at(900), "launch"));
    assert_eq!((placed, launched), (1, 1), "{:?}", later.actions(at(900)));
}

#[test]
fn a_busy_node_is_nobodys_reason_to_shut_a_cheap_one_down() {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 1},
        {"name": "big", "instance_type": "b", "vcpus": 4, "memory_mib": 4000, "price_per_hour": 2}]);
    let mut busy = big(0);
    if let NodeState::InUse(node) = &mut busy.state {
        (node.contact.busy, node.life.offering.price_per_hour) = (true, Usd::from_micros(3_500_000));
    }
    let mut small = idle_long(1);
    if let NodeState::InUse(node) = &mut small.state {
        node.life.offering.price_per_hour = Usd::from_micros(1_000_000);
    }
    let policy = json!({"size": sizes, "nodes": {"min": 3, "max": 8, "max_price_per_hour": 5}});
    let given = given(policy).node(busy).node(small);
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
}

#[test]
fn the_first_job_waits_for_a_node_that_empties_and_not_for_one_that_is_anothers() {
    let sizes = json!([{"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 1}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 2}})).node(fixtures::ready(0)).working(1);
    if let NodeState::InUse(node) = &mut given.seen.nodes[0].state {
        node.contact.busy = true;
    }
    given.seen.allocs[0].capacity.vcpus = 1;
    let first = |s: &mut JobSpec| (s.vcpus, s.priority) = (2, 900);
    let given = given.job(5, first).job(6, |s| s.vcpus = 1);
    assert_eq!(given.count(at(100), "place"), 0, "{:?}", given.actions(at(100)));
}

#[test]
fn a_job_of_more_members_than_a_run_launches_comes_up_also_while_an_earlier_one_waits() {
    let mut given = short_of_large(|s| (s.vcpus, s.priority) = (8, 900));
    given.seen.nodes.clear();
    given.seen.policy.nodes.max = 9;
    given.seen.policy.launch.max_per_run = 3;
    let given = given.job(6, |s| {
        whole(s);
        s.nodes = 5;
    });
    assert_eq!(given.count(at(900), "launch"), 3, "{:?}", given.actions(at(900)));
}

/// A size of which one may be, beside a cheaper one that does not serve what waits for it.
fn one_of_a_kind(nodes: Value) -> Given {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.8, "max": 1}]);
    given(json!({"size": sizes, "nodes": nodes}))
}

fn of_size(mut record: NodeRecord, size: &str) -> NodeRecord {
    if let NodeState::InUse(node) = &mut record.state {
        node.life.offering.size = size.into();
    }
    record
}

#[test]
fn the_minimum_is_filled_while_a_job_waits_for_a_size_that_is_full() {
    let mut given = one_of_a_kind(json!({"min": 3, "max": 8})).working(0).job(5, |s| s.vcpus = 8);
    given.seen.nodes[0] = of_size(given.seen.nodes[0].clone(), "rare");
    assert_eq!(given.count(at(60), "launch"), 2, "{:?}", given.actions(at(60)));
}

#[test]
fn idle_nodes_of_its_own_size_make_way_for_a_job_of_many() {
    // Two of three may be old ones; it needs two new ones.
    let sizes = |max| json!([{"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1, "max": max}]);
    let old = |n| of_size(idle_long(n), "rare");
    let pair = |s: &mut JobSpec| (s.nodes, s.vcpus) = (2, 8);
    let changed = given(json!({"size": sizes(3), "nodes": {"min": 2, "max": 8}})).node(old(0)).node(old(1));
    let changed = changed.job(5, pair);
    assert_eq!(changed.count(at(900), "shut_down"), 1, "{:?}", changed.actions(at(900)));
    // The same where they were bought when the size cost 2: with one of them kept, two new ones fit.
    let dear = |n| {
        let mut record = of_size(idle_long(n), "rare");
        if let NodeState::InUse(node) = &mut record.state {
            node.life.offering.capacity.vcpus = 8;
            node.life.offering.price_per_hour = Usd::from_micros(2_000_000);
        }
        record
    };
    let nodes = json!({"min": 2, "max": 8, "max_price_per_hour": 4.5});
    let cheaper = given(json!({"size": sizes(3), "nodes": nodes})).node(dear(0)).node(dear(1));
    let cheaper = cheaper.job(5, |s| (s.nodes, s.vcpus) = (3, 8));
    assert_eq!(cheaper.count(at(900), "shut_down"), 1, "{:?}", cheaper.actions(at(900)));
}

#[test]
fn what_the_first_job_could_have_of_a_size_is_no_later_jobs() {
    // One of two is busy: the first job waits for it, and the other one's place is its own.
    let sizes =
        json!([{"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1, "max": 2}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 8}})).working(0);
    given.seen.nodes[0] = of_size(given.seen.nodes[0].clone(), "rare");
    let first = |s: &mut JobSpec| (s.nodes, s.vcpus, s.priority) = (2, 8, 900);
    let given = given.job(5, first).job(6, |s| s.vcpus = 8);
    assert_eq!(given.count(at(60), "launch"), 0, "{:?}", given.actions(at(60)));
}

#[test]
fn a_large_job_gets_its_node_also_while_launching_pauses() {
    let mut given = given(json!({"nodes": {"max": 8}})).working(0);
    given.seen.allocs[0].capacity.vcpus = 1;
    given.seen.control.put(EntryRow { until_at: Some(at(9000)), ..EntryRow::new(&ControlKey::Quota) });
    let whole = given.seen.nodes[0].life().unwrap().offering.capacity.vcpus;
    let given = given.job(5, |s| (s.vcpus, s.priority) = (whole, 900)).job(6, |s| s.vcpus = 1);
    assert_eq!(given.count(at(70), "place"), 0, "{:?}", given.actions(at(70)));
}

#[test]
fn as_many_nodes_empty_as_a_dear_one_needs_room_for() {
    // Two nodes at 0.1 work; a job needs 0.8 of the 0.8 there are.
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "big", "instance_type": "b", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.8}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 8, "max_price_per_hour": 0.8}})).working(0).working(1);
    for alloc in &mut given.seen.allocs {
        alloc.capacity.vcpus = 1;
    }
    let given = given.job(5, |s| (s.vcpus, s.priority) = (8, 900)).job(6, |s| s.vcpus = 1);
    assert_eq!(given.count(at(70), "place"), 0, "{:?}", given.actions(at(70)));
}

#[test]
fn nothing_makes_way_for_a_size_that_is_full() {
    // As many nodes as there may be: without the small one there would be room, and no `rare` for it.
    let mut given = one_of_a_kind(json!({"min": 2, "max": 2})).working(0).node(idle_long(1)).job(5, |s| s.vcpus = 8);
    given.seen.nodes[0] = of_size(given.seen.nodes[0].clone(), "rare");
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
}

#[test]
fn a_node_of_a_changed_size_that_is_busy_hides_no_idle_one() {
    let sizes =
        json!([{"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1, "max": 2}]);
    let old = |n| of_size(idle_long(n), "rare");
    let mut busy = old(0);
    if let NodeState::InUse(node) = &mut busy.state {
        node.contact.busy = true;
    }
    let given = given(json!({"size": sizes, "nodes": {"min": 2, "max": 8}})).node(busy).node(old(1));
    let given = given.job(5, |s| s.vcpus = 8);
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
}

#[test]
fn idle_nodes_of_a_size_that_was_changed_make_way_for_what_no_longer_fits_on_them() {
    // Launched when the size had two vCPUs.
    let old = |n| of_size(idle_long(n), "rare");
    let given = one_of_a_kind(json!({"min": 1, "max": 8})).node(old(0)).job(5, |s| s.vcpus = 8);
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
    // What fits on it is placed there.
    let fits = one_of_a_kind(json!({"min": 1, "max": 8})).node(old(0)).job(5, |_| ());
    assert_eq!((fits.count(at(900), "place"), fits.count(at(900), "shut_down")), (1, 0));
}

#[test]
fn a_copy_that_no_size_fits_any_more_holds_nobody_up() {
    let mut given = given(json!({"nodes": {"max": 2}})).working(0).node(idle_long(1));
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
    given.seen.allocs[0].client = ClientStatus::Unknown;
    given.seen.allocs[0].unknown_since_at = Some(at(160));
    given.seen.allocs[0].failure_policy.replace = true;
    given.seen.jobs[0].capacity.vcpus = 512;
    let given = given.job(5, whole);
    assert_eq!(given.count(at(170), "place"), 1, "{:?}", given.actions(at(170)));
}
