//! Tests of the plan: nodes that become silent, what happens to their allocs, and allocs that are told to stop.

use super::*;
use model::{Desired, JobState};

#[test]
fn hb_05_no_expiry_before_the_deadline_and_hb_04_once_after() {
    let given = given(json!({})).working(0).witnessed();
    assert_eq!(given.actions(at(150)), Vec::<String>::new());
    assert_eq!(given.actions(at(151)), ["disconnect slot#0"]);
}

#[test]
fn a_silent_node_that_no_alloc_waits_for_is_down() {
    let mut given = given(json!({})).working(0).witnessed();
    given.seen.allocs[0].failure_policy.lost_after_s = 0;
    assert_eq!(given.actions(at(151)), ["mark_down slot#0"]);
}

#[test]
fn hb_12_equality_counts_as_expired() {
    let mut given = given(json!({})).working(0);
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
    given.seen.allocs[0].client = ClientStatus::Unknown;
    given.seen.allocs[0].unknown_since_at = Some(at(160));
    assert_eq!(given.actions(at(160 + 599)), Vec::<String>::new());
    let id = fixtures::alloc_id(0);
    assert_eq!(given.actions(at(160 + 600)), [format!("lose_alloc alloc#{id}")], "in this run, and the node follows");
    given.seen.allocs.clear();
    if let NodeState::InUse(node) = &mut given.seen.nodes[0].state {
        node.life.allocs.clear();
    }
    assert_eq!(given.count(at(820), "mark_down"), 1);
}

#[test]
fn cl_18_running_waits_cl_21_pending_is_lost() {
    let mut given = given(json!({})).working(0);
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
    let id = fixtures::alloc_id(0);
    assert_eq!(given.actions(at(160)), [format!("unknown_alloc alloc#{id}")]);
    given.seen.allocs[0].client = ClientStatus::Pending;
    assert_eq!(given.actions(at(160)), ["mark_down slot#0"], "nothing waits for it");
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Down, at(161), "nothing waits").unwrap();
    assert_eq!(given.actions(at(170)), [format!("lose_alloc alloc#{id}")]);
}

#[test]
fn nothing_is_placed_on_a_node_whose_lease_expired() {
    // The node is silent, whether or not EC2 lists its instance.
    let listed = given(json!({})).node(fixtures::ready(0)).job(5, whole).witnessed();
    let unlisted = given(json!({})).unlisted(fixtures::ready(0)).job(5, whole).witnessed();
    assert_eq!((listed.count(at(140), "place"), unlisted.count(at(140), "place")), (1, 1));
    for given in [listed, unlisted] {
        assert_eq!((given.count(at(1000), "place"), given.count(at(1000), "launch")), (0, 1));
    }
}

#[test]
fn if_all_nodes_are_silent_heartbeat_ingest_is_more_likely_down() {
    let mut given = given(json!({}));
    for n in 0..5 {
        given = given.working(n);
    }
    let actions = given.actions(at(160));
    assert_eq!(actions, ["hold_back cluster"]);
    // One of five is not unusual.
    for node in given.seen.nodes.iter_mut().skip(1) {
        if let NodeState::InUse(node) = &mut node.state {
            node.contact.lease_expires_at = at(500);
        }
    }
    assert_eq!(given.actions(at(160)), ["disconnect slot#0"]);
}

#[test]
fn the_allocs_of_an_ended_job_stop() {
    let mut given = given(json!({})).working(0);
    given.seen.jobs.clear();
    assert_eq!(given.actions(at(100)), [format!("stop_alloc alloc#{}", fixtures::alloc_id(0))]);
}

#[test]
fn a_drain_also_stops_unknown_allocs_in_time() {
    for (unknown, by) in [(false, 200), (true, 400)] {
        let mut given = given(json!({})).working(0);
        let mut record = given.seen.nodes.remove(0);
        record = record.with_intent(Intent::Drain, Some(at(by)), at(80)).unwrap();
        if unknown {
            record = record.expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
            given.seen.allocs[0].client = ClientStatus::Unknown;
            given.seen.allocs[0].unknown_since_at = Some(at(151));
        }
        given.seen.nodes.push(record);
        let alloc = fixtures::alloc_id(0);
        let drains = |now| given.actions(now).contains(&format!("drain alloc#{alloc}"));
        // The drain stops allocs one kill time-out and one period of the run before the deadline.
        let last = by - 60 - i64::try_from(given.seen.allocs[0].failure_policy.kill_timeout_s).unwrap();
        assert!(!drains(at(last - 1)) && drains(at(last)), "{unknown}: {:?}", given.actions(at(last)));
    }
}

#[test]
fn nobody_waits_for_an_alloc_that_its_job_no_longer_wants() {
    let id = fixtures::alloc_id(0);
    let mut given = given(json!({})).working(0);
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
    given.seen.allocs[0].client = ClientStatus::Unknown;
    given.seen.allocs[0].unknown_since_at = Some(at(160));
    given.seen.allocs[0].failure_policy.lost_after_s = 86_400;
    assert_eq!(given.actions(at(170)), Vec::<String>::new(), "it is waited for");
    let mut ended = given.seen.jobs.remove(0);
    // Somebody has removed the alloc from the row of its job.
    let mut other = ended.clone();
    other.allocs = [model::ids::AllocId { copy: 1, ..id }].into();
    given.seen.jobs.push(other);
    assert_eq!(given.count(at(170), "stop_alloc"), 1, "its job lists another one");
    given.seen.jobs.clear();
    assert_eq!(given.actions(at(170)), [format!("stop_alloc alloc#{id}")], "cancelled, or done by its copy");
    given.seen.allocs[0].desired = Desired::Stop;
    assert_eq!(given.actions(at(170)), ["mark_down slot#0"]);
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Down, at(171), "nothing waits").unwrap();
    assert_eq!(given.actions(at(180)), [format!("lose_alloc alloc#{id}")]);
    // The alloc is told to stop, and then its node becomes silent.
    given.seen.allocs[0].client = ClientStatus::Running;
    assert_eq!(given.count(at(180), "lose_alloc"), 1, "{:?}", given.actions(at(170)));
    // The process may still run, and a job that regroups starts again only after the process has ended.
    ended.state = JobState::Regrouping;
    given.seen.jobs.push(ended);
    assert_eq!(given.count(at(180), "lose_alloc"), 0, "{:?}", given.actions(at(170)));
    assert_eq!(given.count(at(180), "unknown_alloc"), 1, "{:?}", given.actions(at(170)));
}

#[test]
fn a_silent_node_whose_instance_is_unlisted_is_disconnected_even_if_its_record_cannot_be_cleaned() {
    // EC2 may still know the instance by id although its tags are gone. In that case no run cleans the record.
    let mut given = given(json!({})).working(0);
    given.seen.instances.clear();
    given = given.witnessed();
    given.seen.nodes[0] = given.seen.nodes[0].note_unlisted(Some(at(1000)), at(1000)).unwrap();
    assert_eq!(given.actions(at(2000)), ["clean slot#0", "disconnect slot#0"]);
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(2000), "silent").unwrap();
    let unknown = format!("unknown_alloc alloc#{}", fixtures::alloc_id(0));
    assert_eq!(given.actions(at(2060)), ["clean slot#0".to_owned(), unknown]);
}

#[test]
fn a_node_that_is_shut_down_is_terminated_again_also_while_ec2_does_not_list_it() {
    let record = fixtures::ready(0).shut_down(at(100), "idle").unwrap();
    assert_eq!(given(json!({})).unlisted(record).count(at(110), "terminate"), 1);
}

#[test]
fn a_busy_report_is_believed_while_the_brake_holds() {
    let mut given = given(json!({"heartbeat": {"brake_min": 0}}));
    for n in 0..2 {
        let mut busy = fixtures::ready(n).with_intent(Intent::Drain, None, at(80)).unwrap();
        if let NodeState::InUse(node) = &mut busy.state {
            node.contact.health.busy = true;
        }
        given = given.node(busy);
    }
    let actions = given.actions(at(200));
    assert_eq!((given.count(at(200), "hold_back"), given.count(at(200), "shut_down")), (1, 0), "{actions:?}");
}

#[test]
fn a_node_stuck_in_syncing_loses_its_allocs_only_while_it_heartbeats() {
    let mut given = given(json!({"heartbeat": {"brake_min": 0}}));
    for n in 0..3 {
        given = given.working(n);
        if let NodeState::InUse(node) = &mut given.seen.nodes[n as usize].state {
            (node.contact.status, node.contact.syncing_since_at) = (NodeStatus::Syncing, Some(at(60)));
        }
    }
    let later = at(60 + given.seen.policy.boot.timeout_s + 1);
    // All leases expired at once, so the brake `leases` holds.
    assert_eq!(given.count(later, "lose_alloc"), 0, "{:?}", given.actions(later));
    assert_eq!(given.count(later, "hold_back"), 1, "{:?}", given.actions(later));
    for record in &mut given.seen.nodes {
        if let NodeState::InUse(node) = &mut record.state {
            node.contact.lease_expires_at = later;
        }
    }
    assert_eq!(given.count(later, "lose_alloc"), 3, "{:?}", given.actions(later));
}

#[test]
fn a_node_that_is_back_gets_time_to_report_before_its_unknown_allocs_are_lost() {
    let mut given = given(json!({"boot": {"timeout_s": 300}})).working(0);
    let id = fixtures::alloc_id(0);
    (given.seen.allocs[0].client, given.seen.allocs[0].unknown_since_at) = (ClientStatus::Unknown, Some(at(160)));
    let heard = |status: NodeStatus, since: Option<Time>, s: i64| {
        let mut given = given.clone();
        if let NodeState::InUse(node) = &mut given.seen.nodes[0].state {
            (node.contact.status, node.contact.syncing_since_at) = (status, since);
            node.contact.lease_expires_at = at(2000);
        }
        given.actions(at(160 + s))
    };
    let lost = [format!("lose_alloc alloc#{id}")];
    assert_eq!(heard(NodeStatus::Syncing, Some(at(758)), 600), Vec::<String>::new(), "its report is under way");
    assert_eq!(heard(NodeStatus::Down, None, 600), lost);
    assert_eq!(heard(NodeStatus::Syncing, Some(at(100)), 600), lost, "it never came");
    assert_eq!(heard(NodeStatus::Syncing, Some(at(758)), 719), Vec::<String>::new());
    assert_eq!(heard(NodeStatus::Syncing, Some(at(758)), 720), lost, "not for two runs");
}
