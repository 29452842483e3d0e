//! Records and rows whose node is gone, and instances that nobody knows.

use super::*;

#[test]
fn k02_a_fresh_record_is_not_stale_k01_an_old_one_is() {
    let down = down(0);
    let mut given = given(json!({}));
    given.seen.nodes.push(down);
    let clean = |now| clean_stale_records::plan(&given.seen, now).answer().actions.iter().any(|a| a.action == "clean");
    assert!(!clean(at(151 + 7199)) && clean(at(151 + 7200)));
}

#[test]
fn k01_slot_0_is_stale_like_any_other_and_so_is_one_that_never_pinged() {
    let mut given = given(json!({}));
    given.seen.nodes.extend([fixtures::assigned(0), fixtures::bound(1)]);
    let plan = clean_stale_records::plan(&given.seen, at(8000)).answer();
    let slots: Vec<_> = plan.actions.iter().filter(|a| a.action == "clean").filter_map(|a| a.slot).collect();
    assert_eq!(slots, [slot(0), slot(1)]);
}

#[test]
fn an_unusual_share_of_stale_records_waits_and_what_is_shut_down_does_not() {
    let mut given = given(json!({}));
    given.seen.nodes.extend((0..4).map(fixtures::bound));
    given.seen.nodes.push(fixtures::bound(4).shut_down(at(0), "drained").unwrap());
    let run = |given: &Given| {
        let plan = clean_stale_records::plan(&given.seen, at(8000));
        let rows: Vec<_> = plan.answer().actions.iter().map(|a| format!("{} {}", a.action, a.subject)).collect();
        let memory = plan.actions.into_iter().find_map(|a| match a.action {
            clean_stale_records::Action::HoldBack(memory) => Some(memory),
            _ => None,
        });
        (rows, memory)
    };
    let (rows, memory) = run(&given);
    assert_eq!(rows, ["hold_back cluster", "clean slot#4"]);
    let mut memory = memory.unwrap();
    assert_eq!((memory.key.as_str(), memory.since_at, memory.count), ("brake#missing", Some(at(8000)), Some(4)));
    // It has lasted as long as it must.
    memory.since_at = Some(at(8000 - 300));
    given.seen.control.memories.insert(memory.key.clone(), memory);
    let all: Vec<_> = (0..5).map(|n| format!("clean slot#{n}")).collect();
    assert_eq!(run(&given).0[1..], all);
    // Three are no unusual number.
    given.seen.control.memories.clear();
    given.seen.nodes.remove(0);
    assert_eq!(run(&given).0, all[1..]);
}

#[test]
fn a_listed_instance_keeps_its_record_however_silent() {
    let given = given(json!({})).node(down(0));
    assert!(clean_stale_records::plan(&given.seen, at(1 << 30)).actions.is_empty());
}

#[test]
fn m20_a_listed_terminated_instance_is_gone_at_once() {
    let mut given = given(json!({})).working(0);
    given.seen.instances[0].state = InstanceState::Terminated;
    assert_eq!(given.actions(at(100)), ["clean slot#0"]);
}

#[test]
fn a_handle_whose_node_a_restored_table_forgot_is_left_for_a_day_and_then_goes() {
    let name = fixtures::alloc_id(0).to_string();
    let (kind, state) = (HandleKind::Container, HandleState::Live);
    let row = Handle {
        alloc_id: Some(fixtures::alloc_id(0)),
        ..Handle::new(fixtures::node_id(0), name, kind, state, 1, at(0))
    };
    let look =
        |given: &Given, now| match sweep_dispatch::plan(&given.seen, now).actions.into_iter().next().unwrap().action {
            sweep_dispatch::Action::Wait(_, after) => *after,
            other => panic!("{other:?}"),
        };
    let mut forgotten = given(json!({}));
    forgotten.seen.handles.push(row);
    let first = look(&forgotten, at(0));
    assert_eq!((first.expires_at, first.due_at), (Some(at(86_400).as_epoch_s()), at(43_200)));
    // Later looks do not put it off.
    forgotten.seen.handles = vec![first.clone()];
    assert_eq!(look(&forgotten, at(43_200)).expires_at, first.expires_at);
    // The record came back.
    let mut known = given(json!({})).working(0);
    known.seen.handles.push(first);
    assert_eq!(look(&known, at(43_200)).expires_at, None);
}

#[test]
fn ten_orphans_wait_for_an_operator_and_one_goes() {
    let mut given = given(json!({}));
    for n in 0..10 {
        given.seen.instances.push(running(&format!("i-{n}"), &fixtures::assigned(n)));
    }
    let answer = clean_stale_records::plan(&given.seen, at(700)).answer();
    assert_eq!(answer.actions.iter().map(|a| a.action).collect::<Vec<_>>(), ["hold_back"]);
    given.seen.instances.truncate(1);
    let answer = clean_stale_records::plan(&given.seen, at(700)).answer();
    assert_eq!(answer.actions.iter().map(|a| a.action).collect::<Vec<_>>(), ["terminate_orphan"]);
    assert!(
        clean_stale_records::plan(&given.seen, at(600)).actions.is_empty(),
        "it is young: its record may be on its way"
    );
}
