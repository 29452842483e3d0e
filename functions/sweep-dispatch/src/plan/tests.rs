//! Tests of the plan: handles that are due.

use super::*;
use model::fixtures::{self, at};
use model::policy::{Policy, example_json};
use model::{Alloc, HandleKind, HandleState};

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
fn a_handle_that_is_there_twice_is_named_and_nothing_is_decided_about_it() {
    let given = given().working(0);
    let row =
        |name: &str| Handle::new(fixtures::node_id(0), name.into(), HandleKind::Volume, HandleState::Live, 1, at(0));
    let state = serde_json::json!({"now": at(100).as_ms(), "nodes": given.seen.nodes, "policy": example_json(),
        "handles": [row("cache:a"), row("cache:b"), row("cache:a")]});
    let (seen, now) = Observation::from_state(&state, None).unwrap();
    let rows: Vec<(String, Option<String>)> =
        plan(&seen, now).actions.iter().map(|p| (p.row().subject, p.row().handle)).collect();
    assert_eq!(rows, [("slot#0".to_owned(), None), ("slot#0".to_owned(), Some("cache:b".to_owned()))]);
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
