//! Tests of the node record.

use super::*;
use crate::enums::{Intent, Market, NodeStatus};
use crate::fixtures::{self, at};
use crate::{Capacity, EndCause, Needs, Span, Usd};

#[test]
fn a_cleaned_record_keeps_nothing_of_the_life_but_its_name() {
    let assigned = fixtures::assigned(0);
    let cleaned = assigned.clean(at(9), "refused").unwrap();
    let json = serde_json::to_value(&cleaned).unwrap();
    let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["last_node_id", "modified_at", "reason", "slot", "state", "version"]);
}

#[test]
fn a_slot_knows_what_each_of_its_nodes_has_cost_in_a_month() {
    // A node of the fixtures costs $0.10 an hour.
    let (first, dime) = (fixtures::ready(1), Usd::from_micros(100_000));
    let hour = |n: i64| first.life().unwrap().assigned_at + Span::from_s(3600 * n);
    assert_eq!(first.cost_of_month(hour(2)), dime.times(2));
    let gone = first.clean(hour(3), "terminated").unwrap();
    assert_eq!(gone.cost_of_month(hour(5)), dime.times(3), "what is gone costs no more");
    let next = NodeRecord { state: first.state.clone(), ..gone.clone() };
    assert_eq!(next.cost_of_month(hour(5)), dime.times(8), "the node before, and this one");
    assert_eq!(fixtures::assigned(1).cost_of_month(hour(2)), Usd::ZERO, "no instance");
    let month = (hour(2) + Span::from_s(40 * 86_400)).month();
    assert_eq!((month.month(), gone.cost_of_month(month)), (month, Usd::ZERO));
    let later = first.clean(month + Span::from_s(3600), "terminated").unwrap();
    assert_eq!(later.cost_of_month(month + Span::from_s(9000)), dime, "only its hours in the new month");
}

#[test]
fn a_record_survives_the_table_in_every_state() {
    for record in [
        fixtures::assigned(0),
        fixtures::ready(1),
        fixtures::ready(2).shut_down(at(5), "idle").unwrap(),
        fixtures::assigned(3)
            .bind(&fixtures::new_instance("i-1"), at(1))
            .unwrap()
            .shut_down(at(5), "boot timed out")
            .unwrap(),
        fixtures::assigned(4).clean(at(5), "refused").unwrap(),
    ] {
        let json = serde_json::to_value(&record).unwrap();
        let back: NodeRecord = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(back, record, "{json}");
    }
}

#[test]
fn only_a_complete_report_after_the_lease_expired_makes_ready() {
    // NS-08: a heartbeat brings a disconnected node to syncing, never to ready.
    let node = fixtures::ready(0);
    let silent = node.expire_lease(NodeStatus::Disconnected, at(200), "lease expired").unwrap();
    let back = silent.heartbeat(&fixtures::heartbeat("i-0"), at(400), at(300)).unwrap();
    assert_eq!(back.status(), Some(NodeStatus::Syncing));
    let (life, contact) = (back.life().unwrap(), back.contact().unwrap());
    assert_eq!(contact.gate_seq, life.seq);
    assert!(life.seq > node.life().unwrap().seq);
    assert!(!back.takes_work());
    assert!(back.open_gate(at(301)).unwrap().takes_work());
}

/// How many GPUs its agent can use at each heartbeat of its first boot, and whether it may become ready after it.
#[test]
fn a_node_is_ready_the_first_time_only_with_the_gpus_of_its_size() {
    let mut node = fixtures::bound(0);
    let NodeState::Assigned(life) = &mut node.state else { panic!() };
    life.offering.capacity.gpus = 4;
    let says = |gpus_usable, sick: Option<&str>| crate::wire::Heartbeat {
        health: crate::wire::NodeHealth { gpus_usable, gpus_sick: sick.map(str::to_owned), ..Default::default() },
        ..fixtures::heartbeat("i-0")
    };
    let mut node = node.register(&says(0, None), "inc-1", at(150), at(60)).unwrap();
    for (usable, sick, may) in [(0, None, false), (3, None, false), (3, Some("GPU-3: lost"), false), (4, None, true)] {
        node = node.heartbeat(&says(usable, sick), at(150), at(61)).unwrap();
        assert_eq!((node.open_gate(at(61)).is_ok(), node.awaits().is_none()), (may, may), "{usable} {sick:?}");
        assert_eq!((node.refuses(), node.expected_gpus()), (None, 4), "it is awaited");
    }
    // Silence and another registration before that change nothing.
    let lacks = node.heartbeat(&says(3, None), at(150), at(62)).unwrap();
    let silent = lacks.expire_lease(NodeStatus::Down, at(300), "lease expired").unwrap();
    for back in [
        silent.heartbeat(&says(3, None), at(500), at(400)).unwrap(),
        silent.register(&says(3, None), "inc-2", at(500), at(400)).unwrap(),
    ] {
        assert!(back.open_gate(at(401)).is_err());
    }
    // Once it was ready, GPUs that fail keep it from nothing but work for them.
    let ready = node.open_gate(at(62)).unwrap();
    let sick = ready.heartbeat(&says(3, Some("GPU-3: lost")), at(150), at(70)).unwrap();
    assert_eq!((sick.takes_work(), sick.expected_gpus(), sick.awaits()), (true, 3, None));
    let silent = sick.expire_lease(NodeStatus::Disconnected, at(300), "lease expired").unwrap();
    let back = silent.heartbeat(&says(3, None), at(500), at(400)).unwrap();
    assert!(back.open_gate(at(401)).unwrap().takes_work());
    assert!(ready.heartbeat(&says(0, None), at(150), at(70)).unwrap().refuses().is_some());
}

#[test]
fn a_node_that_registers_again_and_again_is_syncing_since_the_first_time() {
    let since = |r: &NodeRecord| r.contact().unwrap().syncing_since_at;
    let again = |r: &NodeRecord, s| r.register(&fixtures::heartbeat("i-0"), "anew", at(s + 90), at(s)).unwrap();
    let first = again(&fixtures::ready(0), 100);
    assert_eq!(since(&again(&first, 200)), Some(at(100)));
    let silent = first.expire_lease(NodeStatus::Down, at(300), "lease expired").unwrap();
    assert_eq!(since(&again(&silent, 400)), Some(at(400)), "a node that was silent starts again");
}

#[test]
fn a_restored_record_never_gets_a_seq_that_was_given_out_before() {
    let restored = fixtures::ready(0);
    let undone = restored.with_alloc(fixtures::alloc_id(0), at(200)).unwrap();
    let undone = undone.without_alloc(fixtures::alloc_id(0), at(200)).unwrap();
    let anew = restored.bump_seq(at(201)).unwrap();
    let seqs = [&restored, &undone, &anew].map(|r| r.life().unwrap().seq);
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

#[test]
fn wrong_starting_states_are_refused() {
    let cleaned = fixtures::assigned(0).clean(at(1), "x").unwrap();
    assert!(cleaned.clean(at(2), "x").is_err());
    assert!(cleaned.bind(&fixtures::new_instance("i-1"), at(2)).is_err());
    assert!(fixtures::ready(0).bind(&fixtures::new_instance("i-other"), at(2)).is_err());
    assert!(fixtures::assigned(0).shut_down(at(2), "unbound").is_err());
    let working = fixtures::ready(0).with_alloc(fixtures::alloc_id(0), at(1)).unwrap();
    assert!(working.shut_down(at(2), "has work").is_err());
    assert!(working.clean(at(2), "has work").is_err());
    assert!(NodeRecord::assign(working.slot, Some(&working), fixtures::new_life(0), at(3), "x").is_err());
}

#[test]
fn the_pulse_never_moves_back() {
    let node = fixtures::ready(0);
    let ping = node.contact().unwrap().last_ping_at;
    let early = node.heartbeat(&fixtures::heartbeat("i-0"), at(0), at(1)).unwrap();
    assert_eq!(early.contact().unwrap().last_ping_at, ping);
}

#[test]
fn only_a_live_alloc_is_followed_and_only_until_its_follow_or_its_life_is_over() {
    let [one, other] = [0, 1].map(fixtures::alloc_id);
    let follows = |record: &NodeRecord| record.life().unwrap().follows.clone();
    let node = fixtures::ready(0).with_alloc(one, at(100)).unwrap();
    assert!(node.with_follow(other, at(200), at(100)).is_err());
    let node = node.with_alloc(other, at(100)).unwrap();
    let followed = node.with_follow(one, at(130), at(100)).unwrap();
    let renewed = followed.with_follow(one, at(220), at(129)).unwrap();
    assert_eq!(follows(&renewed), [(one, at(220))].into());
    assert_eq!(follows(&followed.with_follow(other, at(220), at(130)).unwrap()), [(other, at(220))].into());
    assert_eq!(follows(&followed.without_alloc(one, at(110)).unwrap()), [].into());
}

#[test]
fn what_is_lost_with_a_node_says_who_took_the_node() {
    let by = at(200);
    let lost = |record: &NodeRecord, s: i64| record.loses("it goes", at(s)).cause;
    let [taken, drained, gone] = ["EC2 takes its instance: it goes", "an operator drains its node: it goes", "it goes"];
    let moved = |why: &str| EndCause::Moved { why: why.to_owned() };
    for (market, cause) in [
        (Market::OnDemand, moved(taken)),
        (Market::Reserved, moved(taken)),
        (Market::Spot, EndCause::Interrupted { why: gone.to_owned() }),
    ] {
        let mut node = fixtures::ready(0);
        let NodeState::InUse(in_use) = &mut node.state else { panic!() };
        in_use.life.offering.market = market;
        let interrupted = node.interrupted(by, at(80)).unwrap();
        assert_eq!(lost(&interrupted, 100), cause, "{market}");
        assert_eq!(interrupted.interrupted(by, at(90)), None, "it is known");
        let earlier = interrupted.with_intent(Intent::Drain, Some(at(150)), at(90)).unwrap();
        assert_eq!(lost(&earlier, 150), moved(drained), "an operator drains it before: {market}");
        let by_operator = node.with_intent(Intent::Drain, Some(by), at(80)).unwrap();
        assert_eq!(lost(&by_operator, 199), EndCause::Lost { why: gone.to_owned() }, "it fails before: {market}");
        assert_eq!(lost(&by_operator, 200), moved(drained), "{market}");
        // A rebalance recommendation has no deadline, so it moves nothing.
        assert_eq!(lost(&node.at_risk(at(80)).unwrap(), 999), EndCause::Lost { why: gone.to_owned() }, "{market}");
    }
}

#[test]
fn a_member_pays_the_largest_of_its_parts_of_a_node() {
    let capacity = Capacity { vcpus: 8, memory_mib: 1000, scratch_gib: 100, gpus: 4 };
    let node = Offering { capacity, price_per_hour: Usd::from_micros(1000), ..fixtures::offering() };
    let small = Needs { vcpus: 1, ..Needs::default() };
    for (needs, micros) in [
        (small.clone(), 125),
        (Needs { memory_mib: 500, ..small.clone() }, 500),
        (Needs { scratch_gib: 20, ..small.clone() }, 200),
        (Needs { gpus: 3, ..small.clone() }, 750),
        (Needs { vcpus: 9, ..small.clone() }, 1000),
        (Needs { exclusive: true, ..small }, 1000),
    ] {
        assert_eq!(node.price_of(&needs).micros(), micros, "{needs:?}");
    }
    let bare = Offering { capacity: Capacity::default(), ..node };
    assert_eq!(bare.price_of(&Needs { gpus: 1, ..Needs::default() }), Usd::ZERO);
}
