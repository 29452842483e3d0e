//! Tests of the plan: stale records, surplus rows and orphans. Names with K are cases of Arvados #12073 (see
//! `tests/scenarios.md`).

use super::*;
use model::control::{BrakeEntry, Release};
use model::fixtures::{self, at, slot};
use model::policy::example_json;
use model::{ActionName, Catalogue, CataloguePart, ControlKey, NodeStatus, PartState, Policy};

struct Given {
    seen: Observation,
}

/// The plan of a run for which everything that EC2 offers was just read.
fn plan(seen: &Observation, now: Time) -> CleaningPlan {
    let read = PartState { read_at: Some(now), ..PartState::default() };
    let parts = CataloguePart::ALL.map(|part| (part, read.clone())).into();
    let catalogue = Catalogue { parts, wanted: seen.policy.catalogue_wanted(), ..Catalogue::default() };
    super::plan(&Observation { policy: seen.policy.clone().with_catalogue(catalogue), ..seen.clone() }, now)
}

fn given() -> Given {
    Given { seen: Observation::empty(Policy::from_json(&example_json()).unwrap(), 1, at(100)) }
}

impl Given {
    fn node(mut self, record: NodeRecord) -> Self {
        if let Some(id) = record.life().and_then(|l| l.instance_id.clone()) {
            self.seen.instances.push(fixtures::running(&id, &record));
        }
        self.seen.nodes.push(record);
        self
    }
}

fn down(n: u32) -> NodeRecord {
    fixtures::ready(n).expire_lease(NodeStatus::Down, at(151), "silent").unwrap()
}

#[test]
fn k02_a_fresh_record_is_not_stale_k01_an_old_one_is() {
    let down = down(0);
    let mut given = given();
    given.seen.nodes.push(down);
    let clean = |now| plan(&given.seen, now).answer().actions.iter().any(|a| a.action == ActionName::Clean);
    assert!(!clean(at(151 + 7199)) && clean(at(151 + 7200)));
}

#[test]
fn k01_slot_0_is_stale_like_any_other_and_so_is_one_that_never_pinged() {
    let mut given = given();
    given.seen.nodes.extend([fixtures::assigned(0), fixtures::bound(1)]);
    let planned = plan(&given.seen, at(8000)).answer();
    let slots: Vec<_> =
        planned.actions.iter().filter(|a| a.action == ActionName::Clean).filter_map(|a| a.slot).collect();
    assert_eq!(slots, [slot(0), slot(1)]);
}

#[test]
fn an_unusual_share_of_stale_records_waits_but_not_nodes_that_are_shutting_down() {
    let mut given = given();
    given.seen.nodes.extend((0..4).map(fixtures::bound));
    given.seen.nodes.push(fixtures::bound(4).shut_down(at(0), "drained").unwrap());
    let run = |given: &Given| {
        let planned = plan(&given.seen, at(8000));
        let rows: Vec<_> = planned.answer().actions.iter().map(|a| format!("{} {}", a.action, a.subject)).collect();
        let entry = planned.actions.into_iter().find_map(|a| match a.action {
            CleaningAction::HoldBack(change) => change.entry.map(|(_, after)| after),
            _ => None,
        });
        (rows, entry)
    };
    let (rows, entry) = run(&given);
    assert_eq!(rows, ["hold_back cluster", "clean slot#4"]);
    let entry = entry.unwrap();
    assert_eq!((entry.since_at, entry.count), (Some(at(8000)), Some(4)));
    // The brake has held for its time.
    let ids = (0..4).map(|n| fixtures::node_id(n).to_string()).collect();
    given.seen.control.put(fixtures::brake(BrakeKind::Missing, CLEAN_STALE_RECORDS.name, ids, at(8000 - 300)));
    let all: Vec<_> = (0..5).map(|n| format!("clean slot#{n}")).collect();
    assert_eq!(run(&given).0[1..], all);
    // Three are not an unusual number.
    given.seen.control.put(BrakeEntry::new(&ControlKey::Brake(BrakeKind::Missing)));
    given.seen.nodes.remove(0);
    assert_eq!(run(&given).0, all[1..]);
}

#[test]
fn launches_in_place_of_stale_records_do_not_release_the_brake() {
    let mut given = given();
    given.seen.nodes.extend((0..4).map(fixtures::bound));
    let ids = (0..4).map(|n| fixtures::node_id(n).to_string()).collect();
    given.seen.control.put(fixtures::brake(BrakeKind::Missing, CLEAN_STALE_RECORDS.name, ids, at(7900)));
    for n in 4..12 {
        let mut launched = fixtures::bound(n);
        if let NodeState::Assigned(life) = &mut launched.state {
            (life.assigned_at, life.launch_claim_until_at) = (at(7950), at(8010));
        }
        given = given.node(launched);
    }
    let rows = plan(&given.seen, at(8000)).answer().actions;
    let rows: Vec<String> = rows.iter().map(|a| format!("{} {}", a.action, a.subject)).collect();
    assert_eq!(rows, ["hold_back cluster"], "four of the four that were there");
}

#[test]
fn a_record_that_names_the_instance_of_another_node_is_not_cleaned_and_its_own_instance_is_no_orphan() {
    for state in [InstanceState::Running, InstanceState::Terminated] {
        let mut given = given().node(fixtures::ready(0)).node(fixtures::ready(1));
        given.seen.instances[0].state = state;
        if let NodeState::InUse(node) = &mut given.seen.nodes[1].state {
            node.life.instance_id = Some("i-0".into());
        }
        let of_1 = |given: &Given| {
            let rows = plan(&given.seen, at(50_000)).answer().actions.into_iter();
            rows.filter(|a| a.subject == "slot#1").map(|a| a.action).collect::<Vec<_>>()
        };
        assert_eq!(of_1(&given), [], "{state:?}");
        let mut lost = Given { seen: given.seen.clone() };
        lost.seen.instances.truncate(1);
        assert_eq!(of_1(&lost), [], "{state:?}, and EC2 does not list its own");
        // Without the record, its instance is an orphan.
        given.seen.nodes.truncate(1);
        assert_eq!(of_1(&given), [ActionName::TerminateOrphan]);
    }
}

#[test]
fn a_listed_instance_keeps_its_record_however_silent() {
    let given = given().node(down(0));
    assert!(plan(&given.seen, at(1 << 30)).actions.is_empty());
}

#[test]
fn ten_orphans_wait_for_an_operator_and_one_is_terminated() {
    let mut given = given();
    for n in 0..10 {
        given.seen.instances.push(fixtures::running(&format!("i-{n}"), &fixtures::assigned(n)));
    }
    let answer = plan(&given.seen, at(700)).answer();
    assert_eq!(answer.actions.iter().map(|a| a.action).collect::<Vec<_>>(), [ActionName::HoldBack]);
    given.seen.instances.truncate(1);
    let answer = plan(&given.seen, at(700)).answer();
    assert_eq!(answer.actions.iter().map(|a| a.action).collect::<Vec<_>>(), [ActionName::TerminateOrphan]);
    assert!(plan(&given.seen, at(600)).actions.is_empty(), "it is young: its record may be on its way");
}

#[test]
fn a_release_terminates_the_orphans_that_it_names_and_no_other() {
    let mut given = given();
    for n in 0..12 {
        given.seen.instances.push(fixtures::running(&format!("i-{n:02}"), &fixtures::assigned(n)));
    }
    let ids = (0..5).map(|n| format!("i-{n:02}")).collect();
    let held = fixtures::brake(BrakeKind::Orphans, CLEAN_STALE_RECORDS.name, ids, at(600));
    given.seen.control.put(held.clone());
    let release = given.seen.control.release(BrakeKind::Orphans);
    let release = release.given(&held, Span::from_s(3600), at(650));
    given.seen.control.put(&release);
    let planned = plan(&given.seen, at(700));
    let terminated: Vec<&str> = planned
        .actions
        .iter()
        .filter_map(|p| match &p.action {
            CleaningAction::TerminateOrphan { instance_id, .. } => Some(instance_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(terminated, ["i-00", "i-01", "i-02", "i-03", "i-04"]);
    // The run stores what is still held, and that the release is used up.
    let change = planned.actions.iter().find_map(|p| match &p.action {
        CleaningAction::HoldBack(change) => Some(change.as_ref().clone()),
        _ => None,
    });
    let change = change.unwrap();
    let (_, entry) = change.entry.unwrap();
    assert_eq!(entry.count, Some(7));
    assert!(!change.release.unwrap().1.applies(at(700)));
    // The next run terminates none, also when few are left: five of the same trouble have gone.
    given.seen.control.put(entry);
    given.seen.control.put(Release::new(&ControlKey::Release(BrakeKind::Orphans)));
    for left in [7, 2] {
        given.seen.instances.drain(..given.seen.instances.len() - left);
        let actions: Vec<_> = plan(&given.seen, at(760)).answer().actions.iter().map(|a| a.action).collect();
        assert_eq!(actions, [ActionName::HoldBack], "{left}");
    }
    // When none is left, the entry says so, and the next one is an ordinary orphan ten minutes later.
    given.seen.instances.clear();
    let calm = plan(&given.seen, at(800));
    let Some(CleaningAction::HoldBack(change)) = calm.actions.first().map(|p| p.action.clone()) else {
        panic!("{calm:?}")
    };
    assert_eq!(change.entry.unwrap().1.count, Some(0));
}
