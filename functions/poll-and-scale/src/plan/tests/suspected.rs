//! Tests of the plan: all stages believe the same silence, which node an instance belongs to, and when a wait ends.

use super::*;
use model::cloud::{BATCH_TAG, NODE_TAG};
use model::control::{BrakeEntry, FailedStarts, IngestSummary, UnreadableEntry};
use model::{Batch, BrakeKind, Class, ControlKey, Instance, NewLife, NodeId, Offering, Reach, Refusal, Scope, Span};

/// `n` ready nodes with a lease until 150 s, and a minimum of as many.
fn fleet(n: u32) -> Given {
    let mut given = given(json!({"nodes": {"min": n, "max": 64}}));
    for k in 0..n {
        given = given.node(fixtures::ready(k));
    }
    given
}

/// The brake of leases holds since one time, and a run has looked at it at another one.
fn held(since_s: i64, looked_s: i64) -> BrakeEntry {
    let ids = (0..5).map(|n| fixtures::node_id(n).to_string()).collect();
    let mut row = fixtures::brake(BrakeKind::Leases, "poll-and-scale", ids, at(since_s));
    let until_at = at(looked_s + 600);
    row.entry.until_at = Some(until_at);
    row.entry.parts.values_mut().for_each(|part| part.until_at = until_at);
    row
}

#[test]
fn what_is_not_believed_is_believed_nowhere() {
    let given = fleet(10);
    assert_eq!(given.actions(at(200)), ["hold_back cluster"], "no launch for nodes.min, and no shutdown");
    // A job waits for the suspected nodes: they have room, but get no work.
    let given = given.job(5, whole);
    assert_eq!(given.actions(at(200)), ["hold_back cluster"]);
}

#[test]
fn also_a_fleet_of_three_may_have_an_outage_that_comes_slowly() {
    let mut given = fleet(3);
    for (record, lease_s) in given.seen.nodes.iter_mut().zip([150, 170, 190]) {
        if let NodeState::InUse(node) = &mut record.state {
            node.contact.lease_expires_at = at(lease_s);
        }
    }
    for s in [160, 180, 200, 900] {
        assert_eq!(given.actions(at(s)), ["hold_back cluster"], "at {s} s");
    }
}

#[test]
fn a_share_that_falls_silent_in_several_runs_is_judged_as_one() {
    // Five of nine nodes are heard. Two fell silent in an earlier run, and two in this one: a part of the network is
    // lost, and no run alone sees more than two.
    let mut given = fleet(9);
    given.seen.policy.nodes.min = 0;
    for (n, record) in given.seen.nodes.iter_mut().enumerate() {
        if n < 2 {
            *record = record.expire_lease(NodeStatus::Disconnected, at(160), "silent").unwrap();
        } else if let (4.., NodeState::InUse(node)) = (n, &mut record.state) {
            (node.contact.last_ping_at, node.contact.lease_expires_at) = (at(195), at(300));
        }
    }
    let actions = given.actions(at(200));
    let touches = |n: u32| actions.iter().any(|a| a.starts_with("mark_down") && a.ends_with(&format!("slot#{n}")));
    assert!(!touches(2) && !touches(3), "{actions:?}");
    assert!(actions.contains(&"hold_back cluster".to_owned()), "{actions:?}");
    // A lease length later, the first two no longer count, and two of seven are no unusual share.
    for record in &mut given.seen.nodes[..2] {
        if let NodeState::InUse(node) = &mut record.state {
            node.contact.lease_expires_at = at(10);
        }
    }
    let actions = given.actions(at(200));
    assert_eq!(actions.iter().filter(|a| a.starts_with("mark_down")).count(), 4, "{actions:?}");
}

#[test]
fn a_fleet_of_one_or_two_doubts_our_own_outage_and_believes_a_death_in_the_end() {
    for (nodes, busy) in [(1, false), (1, true), (2, false), (2, true)] {
        let mut given = given(json!({"nodes": {"min": nodes}}));
        for n in 0..nodes {
            given = if busy { given.working(n) } else { given.node(fixtures::ready(n)) };
        }
        given.seen.allocs.iter_mut().for_each(|a| a.failure_policy.replace = true);
        let note = |since: i64, before: i64| {
            let mut noted = IngestSummary::new(&ControlKey::Ingest);
            (noted.entry.since_at, noted.entry.before_at) = (Some(at(since)), Some(at(before)));
            noted
        };
        // heartbeat-ingest accepted the last heartbeats at 60 s, and none since then.
        given.seen.control.put(note(60, 0));
        assert_eq!(given.actions(at(160)), ["hold_back cluster"], "{nodes} nodes, busy: {busy}");
        given.seen.control.put(held(160, 160 + 1790));
        let gone = |given: &Given, s: i64| given.count(at(s), "mark_down") + given.count(at(s), "disconnect");
        assert_eq!(gone(&given, 160 + 1799), 0, "{nodes} nodes, busy: {busy}");
        assert_eq!(gone(&given, 160 + 1800), 1, "{nodes} nodes, busy: {busy}");
        // Another node is heard. It shows whether heartbeat-ingest worked when the others should have called.
        let mut given = given.witnessed();
        given.seen.control.put(note(170, 110));
        assert_eq!(gone(&given, 180), 0, "{nodes} nodes, busy: {busy}: the first heartbeat after a gap");
        given.seen.control.put(note(230, 170));
        assert_eq!(gone(&given, 240), nodes as usize, "{nodes} nodes, busy: {busy}");
        // Without a note, leases show it. If the note cannot be read, only heartbeats do.
        given.seen.control.put(IngestSummary::new(&ControlKey::Ingest));
        assert_eq!(gone(&given, 240), nodes as usize, "{nodes} nodes, busy: {busy}: no note");
        let (key, detail) = (ControlKey::Ingest.to_string(), "invalid type".to_owned());
        given.seen.control.unreadable.push(UnreadableEntry { key, detail, is_of_this_version: true });
        assert_eq!(gone(&given, 240), 0, "{nodes} nodes, busy: {busy}: a note that cannot be read");
    }
}

#[test]
fn a_second_outage_is_suspected_like_the_first_one() {
    let mut given = fleet(5);
    given.seen.policy.nodes.min = 0;
    // The brake holds since second 200. Then the fleet is heard again, and after that all are silent again.
    given.seen.control.put(held(200, 2100));
    for record in &mut given.seen.nodes {
        if let NodeState::InUse(node) = &mut record.state {
            (node.contact.last_ping_at, node.contact.lease_expires_at) = (at(2000), at(2120));
        }
    }
    assert_eq!(given.actions(at(2200)), ["hold_back cluster"], "and not the end of the first wait");
    // In one outage, the wait ends.
    given.seen.control.put(held(2200, 2200 + 1790));
    assert_eq!(given.actions(at(2200 + 1799)), ["hold_back cluster"]);
    assert_eq!(given.count(at(2200 + 1800), "mark_down"), 2);
}

#[test]
fn nodes_that_register_while_the_brake_holds_do_not_release_it() {
    let mut given = fleet(18);
    given.seen.policy.nodes.min = 0;
    given.seen.control.put(held(160, 190));
    // Four of ten are silent, and eight more registered after the brake began to hold.
    for (n, record) in given.seen.nodes.iter_mut().enumerate() {
        if let (4.., NodeState::InUse(node)) = (n, &mut record.state) {
            (node.contact.last_ping_at, node.contact.lease_expires_at) = (at(195), at(300));
            if n >= 10 {
                node.contact.first_ping_at = at(190);
            }
        }
    }
    assert_eq!(given.count(at(200), "mark_down"), 0);
    for record in &mut given.seen.nodes {
        if let NodeState::InUse(node) = &mut record.state {
            node.contact.first_ping_at = at(60);
        }
    }
    assert_eq!(given.count(at(200), "mark_down"), 4, "four of eighteen are no unusual share");
}

#[test]
fn a_fleet_does_not_become_small_in_the_moment_in_which_its_instances_end() {
    // Three of five nodes lose their zone while heartbeat-ingest is down. The leases of the others end one by one.
    let mut given = fleet(5);
    given.seen.policy.nodes.min = 0;
    for (n, instance) in given.seen.instances.iter_mut().enumerate() {
        instance.state = if n < 3 { InstanceState::ShuttingDown } else { InstanceState::Running };
    }
    for (record, lease_s) in given.seen.nodes.iter_mut().zip([150, 150, 150, 150, 230]) {
        if let NodeState::InUse(node) = &mut record.state {
            node.contact.lease_expires_at = at(lease_s);
        }
    }
    let of_3 = |a: &String| a.ends_with("slot#3");
    let actions = given.actions(at(200));
    assert!(!actions.iter().any(of_3), "{actions:?}");
    assert!(actions.contains(&"hold_back cluster".to_owned()), "{actions:?}");
}

#[test]
fn what_is_to_be_cleaned_is_replaced_only_after_it_was_cleaned() {
    // EC2 does not list the instance, but may still know it by its id. Then no run cleans the record.
    let never_heard = fixtures::bound(0).note_unlisted(Some(at(1000)), at(1000)).unwrap();
    let given = given(json!({"nodes": {"min": 1}})).unlisted(never_heard).job(5, whole);
    assert_eq!(given.actions(at(1500)), ["clean slot#0"]);
}

#[test]
fn a_node_whose_instance_someone_else_stops_gets_no_work_and_nobody_waits_for_it() {
    for state in [InstanceState::Stopping, InstanceState::Stopped, InstanceState::ShuttingDown] {
        for record in [fixtures::ready(0), fixtures::bound(0)] {
            let mut given = given(json!({})).node(record).job(5, whole);
            given.seen.instances[0].state = state;
            assert_eq!((given.count(at(100), "launch"), given.count(at(100), "place")), (1, 0), "{state:?}");
        }
    }
}

#[test]
fn the_silence_of_a_node_whose_instance_does_not_run_has_a_cause_and_is_believed_in_an_outage_too() {
    let mut given = fleet(5);
    given.seen.policy.nodes.min = 0;
    assert_eq!(given.actions(at(200)), ["hold_back cluster"]);
    given.seen.instances[2].state = InstanceState::Stopped;
    assert_eq!(given.actions(at(200)), ["hold_back cluster", "mark_down slot#2"]);
}

#[test]
fn a_start_whose_instance_is_stopped_has_failed() {
    let mut given = given(json!({"nodes": {"max": 1}})).node(fixtures::bound(0)).job(5, whole);
    assert_eq!(given.actions(at(100)), Vec::<String>::new(), "it boots");
    given.seen.instances[0].state = InstanceState::Stopped;
    assert_eq!(given.actions(at(100)), ["shut_down slot#0"]);
}

#[test]
fn a_record_that_names_an_unlisted_instance_is_not_cleaned_while_another_carries_its_tag() {
    let mut given = given(json!({})).node(fixtures::ready(0));
    let named = |record: &mut NodeRecord| match &mut record.state {
        NodeState::InUse(node) => node.life.instance_id = Some("i-elsewhere".into()),
        NodeState::ShuttingDown(node) => node.life.instance_id = Some("i-elsewhere".into()),
        _ => {}
    };
    named(&mut given.seen.nodes[0]);
    for s in [200, 1000, 5000] {
        let actions = given.actions(at(s));
        assert!(actions.contains(&"warn slot#0".to_owned()), "{actions:?}");
        assert!(!actions.iter().any(|a| a.starts_with("clean") || a.starts_with("terminate")), "{actions:?}");
    }
    // A node that is shut down takes all its instances with it.
    given.seen.nodes[0] = fixtures::ready(0).shut_down(at(90), "drained").unwrap();
    named(&mut given.seen.nodes[0]);
    let planned = plan(&given.seen, at(200));
    let ends = |p: &crate::plan::PlannedAction| match &p.action {
        Action::Terminate { instance_id, .. } => Some(instance_id.clone()),
        _ => None,
    };
    assert_eq!(planned.actions.iter().filter_map(ends).collect::<Vec<_>>(), ["i-0"]);
}

#[test]
fn a_record_that_names_the_instance_of_another_node_changes_nothing() {
    let victim = fixtures::ready(0);
    // A copied row of another slot that is shutting down, and a silent node of another slot.
    let named = |record: NodeRecord| {
        let mut record = record;
        match &mut record.state {
            NodeState::InUse(node) => node.life.instance_id = Some("i-0".into()),
            NodeState::ShuttingDown(node) => node.life.instance_id = Some("i-0".into()),
            _ => {}
        }
        record
    };
    for record in [named(fixtures::ready(1).shut_down(at(90), "idle").unwrap()), named(fixtures::ready(1))] {
        for state in [InstanceState::Running, InstanceState::Terminated] {
            let mut given = given(json!({})).node(victim.clone()).unlisted(record.clone());
            given.seen.instances[0].state = state;
            let of_other = |a: &String| a.ends_with("slot#1");
            let actions: Vec<_> = given.actions(at(5000)).into_iter().filter(of_other).collect();
            assert_eq!(actions, ["warn slot#1"]);
        }
    }
    // The tag decides, in any order of the list.
    let given = given(json!({})).node(victim);
    assert_eq!(given.seen.instances[0].tags[NODE_TAG], fixtures::node_id(0).to_string());
}

#[test]
fn no_copy_for_a_node_that_is_back() {
    let mut given = given(json!({"boot": {"timeout_s": 300}})).working(0).node(fixtures::ready(1));
    (given.seen.allocs[0].client, given.seen.allocs[0].unknown_since_at) = (ClientStatus::Unknown, Some(at(160)));
    given.seen.allocs[0].failure_policy.replace = true;
    let status = |given: &Given, status, since: Option<Time>| {
        let mut given = given.clone();
        for record in &mut given.seen.nodes {
            if let NodeState::InUse(node) = &mut record.state {
                node.contact.lease_expires_at = at(5000);
            }
        }
        if let NodeState::InUse(node) = &mut given.seen.nodes[0].state {
            (node.contact.status, node.contact.syncing_since_at) = (status, since);
        }
        (given.count(at(500), "replace"), given.count(at(500), "launch"))
    };
    assert_eq!(status(&given, NodeStatus::Disconnected, None), (1, 0));
    assert_eq!(status(&given, NodeStatus::Syncing, Some(at(450))), (0, 0), "its report is under way");
    assert_eq!(status(&given, NodeStatus::Syncing, Some(at(200))), (1, 0), "its report never came");
    assert_eq!(status(&given, NodeStatus::Syncing, Some(at(80))), (0, 0), "and now the alloc is lost");
    // A run does not copy an alloc that it loses.
    given.seen.allocs[0].unknown_since_at = Some(at(100));
    given.seen.allocs[0].failure_policy.lost_after_s = 400;
    assert_eq!(status(&given, NodeStatus::Disconnected, None), (0, 0));
    given.seen.allocs[0].failure_policy.lost_after_s = 600;
    // Nothing is launched for a copy either.
    given.seen.nodes.truncate(1);
    assert_eq!(status(&given, NodeStatus::Disconnected, None), (0, 1));
    assert_eq!(status(&given, NodeStatus::Syncing, Some(at(450))), (0, 0));
}

#[test]
fn no_launch_is_repeated_while_failed_starts_pause_launching() {
    let mut given = given(json!({})).unlisted(fixtures::assigned(0)).job(5, whole);
    assert_eq!(given.actions(at(400)), ["relaunch slot#0"]);
    let mut failed = FailedStarts::new(&ControlKey::FailedStarts);
    (failed.entry.since_at, failed.entry.until_at, failed.entry.count) = (Some(at(0)), Some(at(1000)), Some(5));
    given.seen.control.put(failed);
    assert_eq!(given.actions(at(400)), ["hold_back slot#0"]);
    assert_eq!(given.actions(at(1000)), ["relaunch slot#0"]);
    given.seen.policy.nodes.max = 0;
    assert_eq!(given.actions(at(1000)), ["hold_back slot#0"], "a paused cluster launches nothing");
}

#[test]
fn a_launch_without_an_answer_is_repeated_only_if_somebody_needs_the_node() {
    let nobody = given(json!({})).unlisted(fixtures::assigned(0));
    assert_eq!(nobody.actions(at(400)), ["hold_back slot#0"]);
    assert_eq!(nobody.clone().job(5, whole).actions(at(400)), ["relaunch slot#0"], "a job needs it");
    let minimum = given(json!({"nodes": {"min": 2}})).unlisted(fixtures::assigned(0)).unlisted(fixtures::assigned(1));
    assert_eq!(minimum.actions(at(400)), ["relaunch slot#0", "relaunch slot#1"], "the minimum needs both");
    let one = given(json!({"nodes": {"min": 1}})).unlisted(fixtures::assigned(0)).unlisted(fixtures::assigned(1));
    assert_eq!(one.actions(at(400)), ["relaunch slot#0", "hold_back slot#1"], "the minimum needs one");
    // An idle node is not shut down in favour of a launch that will not come.
    let idle = given(json!({"nodes": {"min": 1}})).node(idle_long(0)).unlisted(fixtures::assigned(1));
    assert_eq!(idle.count(at(900), "shut_down"), 0, "{:?}", idle.actions(at(900)));
    // If EC2 did launch the instance, the plan binds it. If not, the plan abandons the launch as any other.
    let mut bound = nobody.clone();
    bound.seen.instances.push(fixtures::running("i-0", &fixtures::assigned(0)));
    assert_eq!(bound.actions(at(400)), ["bind_instance slot#0"]);
    let mut unseen = nobody;
    unseen.seen.nodes[0] = unseen.seen.nodes[0].note_unlisted(Some(at(1800)), at(1800)).unwrap();
    assert_eq!(unseen.actions(at(1900)), ["abandon slot#0"]);
}

#[test]
fn a_refusal_of_one_scope_keeps_nobody_else_from_launching() {
    // The job at the head of the queue needs a GPU, and the quota of GPUs is reached. All others fit the size `small`.
    let sizes = json!([
        {"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "gpu", "instance_type": "g5.xlarge", "vcpus": 2, "memory_mib": 8192, "gpus": 1, "price_per_hour": 1}]);
    let gpu = |s: &mut JobSpec| (s.needs.gpus, s.priority) = (1, 900);
    let given = given(json!({"size": sizes})).job(5, gpu).job(6, whole).job(7, whole);
    let gpu = Offering { size: "gpu".into(), instance_type: "g5.xlarge".into(), ..fixtures::offering() };
    for (reach, launches) in [
        (Reach::Account, 0),
        (Reach::Market, 0),
        (Reach::Family, 2),
        (Reach::Type, 2),
        (Reach::Offering, 2),
        (Reach::Request, 2),
    ] {
        let mut refused = given.clone();
        let error = Refusal { reach, class: Class::Quota, message: "VcpuLimitExceeded".into() }.into();
        let change = refused.seen.control.after_refusal(&gpu, &error, &refused.seen.policy, 1, at(100));
        refused.seen.control.put(change.after);
        assert_eq!(refused.count(at(101), "launch"), launches, "{reach}");
        assert_eq!(refused.count(at(160), "launch"), 3, "{reach}: it is tried again");
    }
}

#[test]
fn nodes_that_this_plan_shuts_down_are_no_room_in_it() {
    // The size left the policy.
    let mut old = idle_long(0);
    if let NodeState::InUse(node) = &mut old.state {
        node.life.offering.size = "former".into();
    }
    let given = given(json!({})).node(old).job(5, whole);
    assert_eq!(given.actions(at(100)), ["launch slot#1 small", "shut_down slot#0"]);
    // The boot time is over.
    let given = super::given(json!({})).node(fixtures::bound(0)).job(5, whole);
    assert_eq!(given.actions(at(1800)), ["launch slot#1 small", "shut_down slot#0"]);
}

#[test]
fn a_row_that_contradicts_the_contract_is_named_and_not_used() {
    let (node, job) = (fixtures::ready(0), fixtures::job(1).summary);
    let state = |nodes: Vec<NodeRecord>, jobs: Vec<JobSummary>| {
        let state = json!({"now": at(100).as_ms(), "nodes": nodes, "jobs": jobs, "policy": example_json()});
        let (seen, now) = Observation::from_state(&state, None).unwrap();
        Given { seen }.actions(now)
    };
    let mut moved = node.clone();
    moved.slot = fixtures::slot(3);
    assert_eq!(state(vec![moved.clone()], vec![job]), ["warn slot#3", "launch slot#0 small"]);
    assert_eq!(state(vec![node, moved], Vec::new()), ["warn slot#3", "set_idle slot#0"], "the sound row is used");
}

#[test]
fn nodes_max_0_pauses_the_cluster_and_rejects_no_job() {
    let given = given(json!({"nodes": {"max": 0}})).job(5, whole).job(6, |s| s.needs.nodes = 3);
    assert_eq!(given.actions(at(100)), Vec::<String>::new());
}

#[test]
fn windows_count_from_the_launch_that_ec2_shows() {
    let policy = json!({"shutdown": {"windows_min": [54, 5, 1]}, "idle": {"timeout_s": 60}});
    let mut given = given(policy).node(idle_long(0));
    given.seen.instances[0].launched_at = at(1200);
    assert_eq!(given.count(at(54 * 60), "shut_down"), 0, "minute 54 since the assignment");
    assert_eq!(given.count(at(1200 + 54 * 60), "shut_down"), 1);
}

#[test]
fn a_refusal_of_our_credentials_pauses_launching_and_blames_no_size() {
    let mut given = given(json!({})).job(5, whole);
    let refusal = Refusal { reach: Reach::Account, class: Class::Refused, message: "RequestExpired: the clock".into() };
    let error = refusal.into();
    let change = given.seen.control.after_refusal(&fixtures::offering(), &error, &given.seen.policy, 1, at(100));
    assert_eq!((change.key, change.after.policy_version), (ControlKey::Limit(Class::Refused, Scope::ACCOUNT), None));
    given.seen.control.put(change.after);
    assert_eq!(given.count(at(101), "launch"), 0);
    assert_eq!(given.count(at(100) + Span::from_s(30), "launch"), 1);
}

/// A batch of four, claimed at 0 s; EC2 has not answered. Slot 1 has another life since.
#[test]
fn the_call_of_a_batch_is_repeated_only_while_all_its_nodes_have_their_slots() {
    let ulid = fixtures::node_id(0).ulid();
    let batch = Batch::of_lowest(ulid, (0..4).map(fixtures::slot).collect());
    let of = |n: u32| {
        let node_id = NodeId::new(fixtures::slot(n), ulid);
        let life = NewLife { node_id, batch: batch.clone(), ..fixtures::new_life(n) };
        NodeRecord::assign(fixtures::slot(n), None, life, at(0), "a job needs it").unwrap()
    };
    let whole = (0..4).map(of).fold(given(json!({"nodes": {"min": 4}})), Given::unlisted);
    assert_eq!(whole.actions(at(61)), ["relaunch slot#0", "relaunch slot#1", "relaunch slot#2", "relaunch slot#3"]);
    // If one node of a batch is needed, its whole call is repeated.
    let one = (0..4).map(of).fold(given(json!({"nodes": {"min": 1}})), Given::unlisted);
    assert_eq!(one.count(at(61), "relaunch"), 4);
    let mut broken = whole.clone();
    broken.seen.nodes[1] = fixtures::assigned(1);
    let held = ["hold_back slot#0", "relaunch slot#1", "hold_back slot#2", "hold_back slot#3"];
    assert_eq!(broken.actions(at(61)), held);
    // Listed instances are bound all the same: the lowest slot without an instance gets the oldest one that no record names.
    for instance_id in ["i-c", "i-b"] {
        let tag = (BATCH_TAG.to_owned(), batch.as_ref().unwrap().to_string());
        let instance = fixtures::running(instance_id, &whole.seen.nodes[0]);
        broken.seen.instances.push(Instance { tags: [tag].into(), ..instance });
    }
    let bound = ["bind_instance slot#0", "bind_instance slot#2", "relaunch slot#1", "hold_back slot#3"];
    assert_eq!(broken.actions(at(61)), bound);
}
