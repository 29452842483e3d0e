//! Tests of the plan: handles that are due.

use super::*;
use model::fixtures::{self, at};
use model::policy::example_json;
use model::{Alloc, HandleKind, HandleState, Policy};

struct Given {
    seen: Observation,
}

fn given() -> Given {
    Given { seen: Observation::empty(Policy::from_json(&example_json()).unwrap(), 1, at(100)) }
}

impl Given {
    /// Node `n` ready, with job `n` on it.
    fn working(mut self, n: u32) -> Self {
        let (job, node) = (fixtures::job(n), fixtures::ready(n));
        let alloc = Alloc::place(fixtures::alloc_id(n), &job, &node, at(70)).unwrap();
        self.seen.nodes.push(node.with_alloc(alloc.id(), at(70)).unwrap());
        self.seen.allocs.push(alloc.summary);
        self
    }
}

#[test]
fn the_handles_of_a_quarantined_record_are_left_alone() {
    let mut given = given().working(0);
    given.seen.quarantined.slots.insert(fixtures::slot(0));
    given.seen.nodes.clear();
    let row = Handle::new(fixtures::node_id(0), "cache:a".into(), HandleKind::Volume, HandleState::Live, 1, at(0));
    given.seen.handles.push(row);
    assert!(plan(&given.seen, at(100)).actions.is_empty());
}

#[test]
fn a_handle_whose_node_is_unknown_after_a_restore_stays_for_a_day() {
    let name = fixtures::alloc_id(0).to_string();
    let (kind, state) = (HandleKind::Container, HandleState::Live);
    let row = Handle {
        alloc_id: Some(fixtures::alloc_id(0)),
        ..Handle::new(fixtures::node_id(0), name, kind, state, 1, at(0))
    };
    let look = |given: &Given, now| match plan(&given.seen, now).actions.into_iter().next().unwrap().action {
        SweepAction::Postpone(_, after) => *after,
        other => panic!("{other:?}"),
    };
    let mut forgotten = given();
    forgotten.seen.handles.push(row);
    let first = look(&forgotten, at(0));
    assert_eq!((first.expires_at, first.due_at), (Some(at(86_400).as_epoch_s()), at(43_200)));
    // Later looks do not put the deletion off.
    forgotten.seen.handles = vec![first.clone()];
    assert_eq!(look(&forgotten, at(43_200)).expires_at, first.expires_at);
    // The node's record is back.
    let mut known = given().working(0);
    known.seen.handles.push(first);
    assert_eq!(look(&known, at(43_200)).expires_at, None);
}
