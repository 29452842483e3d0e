//! Tests of the plan: demand sets, by which a controller wants a number of nodes.

use super::*;
use model::ControlKey;
use model::control::DemandSet;

impl Given {
    /// A demand set that lasts until second 1000.
    pub(super) fn set(mut self, name: &str, count: u32, size: &str) -> Self {
        let set = DemandSet::new(&ControlKey::Demand(name.into()));
        self.seen.control.put(set.wanted(size, count, at(1000), at(0)));
        self
    }

    fn busy(mut self, slot: usize) -> Self {
        if let NodeState::InUse(node) = &mut self.seen.nodes[slot].state {
            node.contact.health.busy = true;
        }
        self
    }
}

fn launches(given: &Given) -> usize {
    given.count(at(150), "launch")
}

/// The numbers of each set: ready, coming, lacking.
fn has(given: &Given) -> Vec<(u32, u32, u32)> {
    let sets = plan(&given.seen, at(150)).explained.sets;
    sets.iter().map(|set| (set.ready, set.coming, set.lacking())).collect()
}

fn many() -> Given {
    given(json!({"nodes": {"max": 20}}))
}

#[test]
fn a_set_has_so_many_nodes_and_none_after_its_end() {
    let three = many().node(idle_long(0)).set("a", 3, "small");
    assert_eq!((launches(&three), has(&three)), (2, vec![(1, 2, 0)]));
    assert_eq!((three.count(at(999), "launch"), three.count(at(1000), "launch")), (2, 0));
    // A node that boots counts.
    assert_eq!(launches(&many().unlisted(fixtures::assigned(0)).set("a", 2, "small")), 1);
    let reasons: Vec<String> =
        plan(&three.seen, at(150)).actions.iter().map(|planned| planned.reason.to_string()).collect();
    assert_eq!(reasons[0], "demand set a needs it");
}

#[test]
fn a_node_is_used_once() {
    // Two sets do not have the same node, and neither do a set and a job.
    assert_eq!(launches(&many().node(idle_long(0)).set("a", 1, "small").set("b", 1, "small")), 1);
    assert_eq!(launches(&many().node(idle_long(0)).set("a", 1, "small").job(5, |spec| spec.needs.vcpus = 1)), 1);
    // A node with work is no whole node.
    assert_eq!(launches(&many().working(0).set("a", 1, "small")), 1);
}

#[test]
fn a_busy_node_satisfies_a_set_and_the_other_node_goes() {
    let two = many().node(idle_long(0)).node(idle_long(1)).set("a", 1, "small");
    let goes = |given: &Given| -> Vec<String> {
        given.actions(at(900)).into_iter().filter(|action| action.starts_with("shut_down")).collect()
    };
    assert_eq!(goes(&two), ["shut_down slot#1"]);
    assert_eq!(goes(&two.clone().busy(1)), ["shut_down slot#0"]);
    assert_eq!(has(&two.clone().busy(1)), [(1, 0, 0)]);
    let none = many().node(idle_long(0)).set("a", 0, "small");
    assert_eq!(goes(&none), ["shut_down slot#0"]);
}

#[test]
fn a_set_never_exceeds_a_cap_and_says_what_it_lacks() {
    let capped = given(json!({"nodes": {"max": 2}})).node(idle_long(0)).set("a", 5, "small");
    assert_eq!((launches(&capped), has(&capped)), (1, vec![(1, 1, 3)]));
    let explained = plan(&capped.seen, at(150)).explained;
    let why = "demand set a lacks 3 of 5: the 1 node that nodes.max allows is there";
    assert!(explained.limits.iter().any(|limit| limit.to_string().starts_with("demand set a lacks 3 of 5: ")), "{why}");
    let lost = many().set("a", 2, "gone");
    assert_eq!((launches(&lost), has(&lost)), (0, vec![(0, 0, 2)]));
    let lines: Vec<String> =
        plan(&lost.seen, at(150)).explained.sets.iter().map(model::explain::SetNote::line).collect();
    let says = "demand set a: 0 of 2 ready, 0 to come; demand set a lacks 2 of 2: the policy has no size gone";
    assert_eq!(lines, [says]);
}

#[test]
fn an_idle_node_that_satisfies_a_set_says_so_and_is_not_counted_as_idle() {
    let one = many().node(idle_long(0)).set("ci", 1, "small");
    let staying = plan(&one.seen, at(900)).explained.staying;
    assert_eq!(staying.values().map(ToString::to_string).collect::<Vec<_>>(), ["kept for demand set ci"]);
    assert_eq!((one.count(at(900), "set_idle"), one.count(at(900), "shut_down")), (1, 0));
}
