//! Tests of the plan: jobs and a minimum that wait because of a cap, and which idle nodes make room for them.

use super::*;
use model::control::{EntryRow, LaunchWait};
use model::{Class, ControlKey, Offering, Reach, Scope};

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
fn a_job_of_many_members_keeps_only_nodes_that_leave_the_price_cap_enough_for_the_rest() {
    // Four members cost 4 if all are on small nodes. With one big node kept they would cost 5.
    let four = dear_and_idle(0).job(5, |s| s.needs.nodes = 4);
    assert_eq!(four.count(at(900), "shut_down"), 2, "{:?}", four.actions(at(900)));
    // Three members cost 4 with one big node kept.
    let three = dear_and_idle(0).job(5, |s| s.needs.nodes = 3);
    assert_eq!(three.count(at(900), "shut_down"), 1, "{:?}", three.actions(at(900)));
}

#[test]
fn of_the_nodes_kept_for_the_minimum_as_many_as_necessary_make_way_for_a_job() {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8000, "price_per_hour": 0.1},
        {"name": "big", "instance_type": "b", "vcpus": 8, "memory_mib": 8000, "price_per_hour": 0.8}]);
    let by_price = json!({"size": sizes, "nodes": {"min": 3, "max": 8, "max_price_per_hour": 1.0}});
    let by_number = json!({"size": sizes, "nodes": {"min": 3, "max": 3}});
    for policy in [by_price, by_number] {
        let given =
            given(policy).node(idle_long(0)).node(idle_long(1)).node(idle_long(2)).job(5, |s| s.needs.vcpus = 8);
        // The job waits for the shutdown, so it does not wait for `idle.timeout_s` too, which is 120 s after second 60.
        for now in [at(100), at(900)] {
            assert_eq!(given.count(now, "shut_down"), 1, "{:?}", given.actions(now));
            assert_eq!(given.count(now, "launch"), 0, "there is no room yet");
        }
    }
}

#[test]
fn a_node_that_runs_have_not_seen_idle_or_whose_window_is_closed_makes_no_way() {
    let policy = json!({"nodes": {"max": 1}});
    let windows = json!({"nodes": {"max": 1}, "shutdown": {"windows_min": [54, 5, 1]}});
    for (policy, node, goes) in
        [(policy.clone(), idle_long(0), 1), (policy, fixtures::ready(0), 0), (windows, idle_long(0), 0)]
    {
        let given = given(policy).node(node).job(5, |s| s.needs.vcpus = 8);
        assert_eq!(given.count(at(100), "shut_down"), goes, "{:?}", given.actions(at(100)));
    }
}

#[test]
fn expensive_idle_nodes_make_way_for_the_minimum_and_the_cheapest_do_not() {
    let dear = dear_and_idle(3);
    assert_eq!(dear.count(at(900), "shut_down"), 1, "{:?}", dear.actions(at(900)));
    assert_eq!(dear.count(at(100), "shut_down"), 0, "no job waits for that");
    // Three nodes of the cheapest size cost more than the cap, so shutting one down would gain nothing.
    let cheap = given(json!({"nodes": {"min": 3, "max_price_per_hour": 0.25}})).node(idle_long(0)).node(idle_long(1));
    assert_eq!(cheap.count(at(900), "shut_down"), 0, "{:?}", cheap.actions(at(900)));
}

#[test]
fn expensive_idle_nodes_make_way_for_the_cheapest_size_that_is_not_full() {
    let sizes = json!([
        {"name": "only", "instance_type": "o", "vcpus": 1, "memory_mib": 500, "price_per_hour": 0.5, "max": 1},
        {"name": "small", "instance_type": "s", "vcpus": 1, "memory_mib": 1000, "price_per_hour": 1},
        {"name": "big", "instance_type": "b", "vcpus": 4, "memory_mib": 4000, "price_per_hour": 2}]);
    let policy = json!({"size": sizes, "nodes": {"min": 4, "max": 8, "max_price_per_hour": 5}});
    let mut only = of_size(idle_long(2), "only");
    if let NodeState::InUse(node) = &mut only.state {
        node.life.offering.price_per_hour = Usd::from_micros(500_000);
    }
    // The nodes cost 4.50 of 5. Another `only` would fit into that, but its maximum is reached.
    let given = given(policy).node(big(0)).node(big(1)).node(only);
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
}

#[test]
fn a_later_job_does_not_take_what_the_price_cap_keeps_from_the_first_job() {
    // The cap leaves 0.1 of the 0.2 that the first job needs. That would be enough for the second job.
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.2}]);
    let given = given(json!({"size": sizes, "nodes": {"max": 8, "max_price_per_hour": 0.2}})).working(0);
    let first = |s: &mut JobSpec| (s.needs.vcpus, s.priority) = (8, 900);
    assert_eq!(given.job(5, first).job(6, whole).count(at(100), "launch"), 0);
}

/// Adds an entry for a refusal of the size `large` by EC2: this size is not launched for a long time.
fn without_large(mut given: Given) -> Given {
    let large = Offering { size: "large".into(), ..fixtures::offering() };
    let key = ControlKey::Limit(Class::Wrong, Scope::of(Reach::Request, &large));
    let wait = LaunchWait { until_at: Some(at(9000)), ..LaunchWait::default() };
    given.seen.control.put(EntryRow::<LaunchWait>::new(&key).with(wait));
    given
}

/// As many idle nodes as `nodes.max` allows, of the only size that may be launched now.
fn short_of_large(job: impl FnOnce(&mut JobSpec)) -> Given {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.2}]);
    let policy = json!({"size": sizes, "nodes": {"min": 2, "max": 2}});
    without_large(given(policy).node(idle_long(0)).node(idle_long(1)).job(5, job))
}

#[test]
fn nothing_makes_way_for_a_size_that_cannot_be_launched_now() {
    let given = short_of_large(|s| s.needs.vcpus = 8);
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
}

/// Six members, each of which needs a node of its own.
fn six(s: &mut JobSpec) {
    (s.needs.nodes, s.needs.vcpus) = (6, 8);
}

#[test]
fn no_node_is_launched_for_a_part_of_a_job_of_many_members() {
    // One of at most six nodes has work. The other five would cost money while they wait for it.
    let sizes = json!([
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.43}]);
    let policy = |max| json!({"size": sizes, "nodes": {"max": max}});
    let busy = given(policy(6)).working(0).job(5, six);
    assert_eq!(busy.count(at(60), "launch"), 0, "{:?}", busy.actions(at(60)));
    let all = given(policy(7)).working(0).job(5, six);
    assert_eq!(all.count(at(60), "launch"), 6, "{:?}", all.actions(at(60)));
    // A later job that needs only a part of that room does not get it either.
    let later = busy.job(6, |s| s.needs.vcpus = 8);
    assert_eq!(later.count(at(60), "launch"), 0, "{:?}", later.actions(at(60)));
}

/// A size `small` at this price, a size for larger jobs, and a more expensive size for larger jobs.
fn with_a_dear_stand_in(price: f64) -> Value {
    json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": price},
        {"name": "large", "instance_type": "l", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.43},
        {"name": "gpu", "instance_type": "g", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1.5}])
}

#[test]
fn room_is_made_for_a_size_that_can_be_launched_now_and_not_for_a_cheaper_one() {
    let policy = json!({"size": with_a_dear_stand_in(1.0), "nodes": {"min": 1, "max": 9, "max_price_per_hour": 2}});
    let mut small = idle_long(0);
    if let NodeState::InUse(node) = &mut small.state {
        node.life.offering.price_per_hour = Usd::from_micros(1_000_000);
    }
    // `large` would fit below the cap beside the idle node. `gpu` would not, and only `gpu` may be launched now.
    let given = without_large(given(policy).node(small).job(5, |s| s.needs.vcpus = 8));
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
}

#[test]
fn nothing_makes_way_for_nodes_that_alone_exceed_the_price_cap() {
    let policy = json!({"size": with_a_dear_stand_in(0.1), "nodes": {"min": 1, "max": 9, "max_price_per_hour": 5.25}});
    // Six `large` would be within the cap, but six of the size that may be launched now would cost 9.
    let given = without_large(given(policy).node(idle_long(0)).job(5, six));
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
    // A later job gets what the first one cannot use: the idle node, and another one.
    let later = given.job(6, |s| s.needs.vcpus = 2).job(7, |s| s.needs.vcpus = 2);
    let (placed, launched) = (later.count(at(900), "place"), later.count(at(900), "launch"));
    assert_eq!((placed, launched), (1, 1), "{:?}", later.actions(at(900)));
}

#[test]
fn a_busy_node_is_no_reason_to_shut_a_cheap_one_down() {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 1},
        {"name": "big", "instance_type": "b", "vcpus": 4, "memory_mib": 4000, "price_per_hour": 2}]);
    let mut busy = big(0);
    if let NodeState::InUse(node) = &mut busy.state {
        (node.contact.health.busy, node.life.offering.price_per_hour) = (true, Usd::from_micros(3_500_000));
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
fn the_first_job_waits_for_a_node_that_becomes_empty_and_not_for_a_busy_one() {
    let sizes = json!([{"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 1}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 2}})).node(fixtures::ready(0)).working(1);
    if let NodeState::InUse(node) = &mut given.seen.nodes[0].state {
        node.contact.health.busy = true;
    }
    given.seen.allocs[0].needs.vcpus = 1;
    let first = |s: &mut JobSpec| (s.needs.vcpus, s.priority) = (2, 900);
    let given = given.job(5, first).job(6, |s| s.needs.vcpus = 1);
    assert_eq!(given.count(at(100), "place"), 0, "{:?}", given.actions(at(100)));
}

#[test]
fn a_job_of_more_members_than_a_run_launches_also_comes_up_while_an_earlier_one_waits() {
    let mut given = short_of_large(|s| (s.needs.vcpus, s.priority) = (8, 900));
    given.seen.nodes.clear();
    given.seen.policy.nodes.max = 9;
    given.seen.policy.launch.max_per_run = 3;
    let given = given.job(6, |s| {
        whole(s);
        s.needs.nodes = 5;
    });
    assert_eq!(given.count(at(900), "launch"), 3, "{:?}", given.actions(at(900)));
}

/// A size with a maximum of one, and a cheaper size that does not fit the job that waits.
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
    let mut given = one_of_a_kind(json!({"min": 3, "max": 8})).working(0).job(5, |s| s.needs.vcpus = 8);
    given.seen.nodes[0] = of_size(given.seen.nodes[0].clone(), "rare");
    assert_eq!(given.count(at(60), "launch"), 2, "{:?}", given.actions(at(60)));
}

#[test]
fn idle_nodes_of_its_own_size_make_way_for_a_job_of_many_members() {
    // Three nodes are allowed, and two idle ones exist. The job needs two new ones.
    let sizes = |max| json!([{"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1, "max": max}]);
    let old = |n| of_size(idle_long(n), "rare");
    let pair = |s: &mut JobSpec| (s.needs.nodes, s.needs.vcpus) = (2, 8);
    let changed = given(json!({"size": sizes(3), "nodes": {"min": 2, "max": 8}})).node(old(0)).node(old(1));
    let changed = changed.job(5, pair);
    assert_eq!(changed.count(at(900), "shut_down"), 1, "{:?}", changed.actions(at(900)));
    // The same holds for idle nodes that were launched when the size cost 2: with one of them kept, two new ones fit.
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
    let cheaper = cheaper.job(5, |s| (s.needs.nodes, s.needs.vcpus) = (3, 8));
    assert_eq!(cheaper.count(at(900), "shut_down"), 1, "{:?}", cheaper.actions(at(900)));
}

#[test]
fn a_later_job_does_not_take_the_places_of_a_size_that_the_first_job_needs() {
    // One of two nodes has work. The first job waits for its end, and the place of the second node is kept for the job.
    let sizes =
        json!([{"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1, "max": 2}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 8}})).working(0);
    given.seen.nodes[0] = of_size(given.seen.nodes[0].clone(), "rare");
    let first = |s: &mut JobSpec| (s.needs.nodes, s.needs.vcpus, s.priority) = (2, 8, 900);
    let given = given.job(5, first).job(6, |s| s.needs.vcpus = 8);
    assert_eq!(given.count(at(60), "launch"), 0, "{:?}", given.actions(at(60)));
}

#[test]
fn a_large_job_also_gets_its_node_while_launches_pause() {
    let mut given = given(json!({"nodes": {"max": 8}})).working(0);
    given.seen.allocs[0].needs.vcpus = 1;
    let wait = LaunchWait { until_at: Some(at(9000)), ..LaunchWait::default() };
    given.seen.control.put(EntryRow::<LaunchWait>::new(&ControlKey::Limit(Class::Quota, Scope::ACCOUNT)).with(wait));
    let whole = given.seen.nodes[0].life().unwrap().offering.capacity.vcpus;
    let given = given.job(5, |s| (s.needs.vcpus, s.priority) = (whole, 900)).job(6, |s| s.needs.vcpus = 1);
    assert_eq!(given.count(at(70), "place"), 0, "{:?}", given.actions(at(70)));
}

#[test]
fn as_many_nodes_become_empty_as_an_expensive_one_needs_room_for() {
    // Two nodes at 0.1 have work, and a job needs the whole cap of 0.8.
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "big", "instance_type": "b", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 0.8}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 8, "max_price_per_hour": 0.8}})).working(0).working(1);
    for alloc in &mut given.seen.allocs {
        alloc.needs.vcpus = 1;
    }
    let given = given.job(5, |s| (s.needs.vcpus, s.priority) = (8, 900)).job(6, |s| s.needs.vcpus = 1);
    assert_eq!(given.count(at(70), "place"), 0, "{:?}", given.actions(at(70)));
}

#[test]
fn nothing_makes_way_for_a_size_that_is_full() {
    // The maximum of nodes is reached. Without the small node there would be room, but `rare` is full.
    let mut given =
        one_of_a_kind(json!({"min": 2, "max": 2})).working(0).node(idle_long(1)).job(5, |s| s.needs.vcpus = 8);
    given.seen.nodes[0] = of_size(given.seen.nodes[0].clone(), "rare");
    assert_eq!(given.count(at(900), "shut_down"), 0, "{:?}", given.actions(at(900)));
}

#[test]
fn a_busy_node_of_a_changed_size_does_not_hide_an_idle_one() {
    let sizes =
        json!([{"name": "rare", "instance_type": "r", "vcpus": 8, "memory_mib": 8192, "price_per_hour": 1, "max": 2}]);
    let old = |n| of_size(idle_long(n), "rare");
    let mut busy = old(0);
    if let NodeState::InUse(node) = &mut busy.state {
        node.contact.health.busy = true;
    }
    let given = given(json!({"size": sizes, "nodes": {"min": 2, "max": 8}})).node(busy).node(old(1));
    let given = given.job(5, |s| s.needs.vcpus = 8);
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
}

#[test]
fn idle_nodes_of_a_changed_size_make_way_for_a_job_that_no_longer_fits_on_them() {
    // The node was launched when the size had two vCPUs.
    let old = |n| of_size(idle_long(n), "rare");
    let given = one_of_a_kind(json!({"min": 1, "max": 8})).node(old(0)).job(5, |s| s.needs.vcpus = 8);
    assert_eq!(given.count(at(900), "shut_down"), 1, "{:?}", given.actions(at(900)));
    // A job that fits on it is placed there.
    let fits = one_of_a_kind(json!({"min": 1, "max": 8})).node(old(0)).job(5, |_| ());
    assert_eq!((fits.count(at(900), "place"), fits.count(at(900), "shut_down")), (1, 0));
}

#[test]
fn a_copy_that_no_size_fits_any_more_holds_up_no_job() {
    let mut given = given(json!({"nodes": {"max": 2}})).working(0).node(idle_long(1));
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
    given.seen.allocs[0].client = ClientStatus::Unknown;
    given.seen.allocs[0].unknown_since_at = Some(at(160));
    given.seen.allocs[0].failure_policy.replace = true;
    given.seen.jobs[0].needs.vcpus = 512;
    let given = given.job(5, whole);
    assert_eq!(given.count(at(170), "place"), 1, "{:?}", given.actions(at(170)));
}

#[test]
fn idle_nodes_are_kept_while_jobs_are_placed_and_others_were_not_read() {
    let mut given = given(json!({})).node(fixtures::ready(0)).node(fixtures::ready(1)).job(5, |_| {});
    let surplus = |given: &Given| plan(&given.seen, at(100)).surplus.len();
    assert_eq!(surplus(&given), 1);
    let place = given.seen.control.place(&ControlKey::QueuePlace);
    let part = runtime::observation::QueuePart { jobs: [].into(), stays: place.clone(), moves: place };
    given.seen.queue.part = Some(part);
    assert_eq!(surplus(&given), 0);
    let staying = plan(&given.seen, at(100)).explained.staying;
    assert_eq!(staying.values().map(|why| why.word()).collect::<Vec<_>>(), ["kept_for_unread"]);
    // None of the jobs that were read can be placed.
    given.seen.jobs.clear();
    assert_eq!(surplus(&given), 2);
}
