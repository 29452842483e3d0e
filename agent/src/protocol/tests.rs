use super::testing::{alloc_id, durable, order};
use super::*;
use model::wire::{
    AllocOrder, AllocReportAnswer, ErrorCode, HeartbeatAnswer, MAX_LOG_TAIL_BYTES, OrderList, RefusedUpdate,
};
use model::{AllocId, ClientStatus, Desired, EndCause, Ending, Intent, NodeStatus, RunReport};
use std::collections::BTreeSet;

fn node() -> Node {
    let identity = Identity { instance_id: "i-1".into(), address: Some("10.0.0.1".into()) };
    Node::new(identity, durable())
}

fn answer(seq: u64, allocs: Option<Vec<AllocOrder>>) -> HeartbeatAnswer {
    HeartbeatAnswer {
        report_handles: false,
        status: NodeStatus::Ready,
        incarnation: "inc-1".into(),
        seq,
        next_heartbeat_s: 60.0,
        retry_s: 30.0,
        ask_until_ms: None,
        intent: Intent::Run,
        must_report: false,
        orders: allocs.map(|allocs| OrderList { allocs, ..OrderList::default() }),
        follows: BTreeSet::new(),
    }
}

fn accepted_answer(seq: u64, accepted: &[AllocId]) -> AllocReportAnswer {
    AllocReportAnswer {
        status: NodeStatus::Ready,
        seq,
        accepted: accepted.to_vec(),
        refused: Vec::new(),
        next_heartbeat_s: None,
        jobs_wait: false,
        orders: None,
    }
}

fn ended(code: i32) -> Observed {
    let cause = EndCause::Exited { code };
    Observed::Ended(Box::new(Ending {
        run: RunReport { log_tail: Some("the end\n".into()), ..RunReport::default() },
        ..Ending::new(cause)
    }))
}

/// A registered node with alloc 0 ordered at seq 5, whose complete report is delivered.
fn registered_node() -> Node {
    let mut node = node();
    assert!(node.on_heartbeat(&answer(5, Some(vec![order(0, 5)]))));
    node.report().unwrap();
    node.on_report(&accepted_answer(5, &[alloc_id(0)]));
    assert!(!node.has_report());
    node
}

/// A registered node whose alloc 0 runs. The control plane knows that it runs.
fn node_with_running_alloc() -> Node {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    node.report().unwrap();
    node.on_report(&accepted_answer(5, &[alloc_id(0)]));
    node
}

#[test]
fn the_first_heartbeat_registers_and_the_next_ones_carry_the_incarnation() {
    let mut node = node();
    assert_eq!(node.heartbeat(None).incarnation, None);
    assert!(node.on_heartbeat(&answer(7, Some(vec![]))));
    assert_eq!(node.heartbeat(None).incarnation.as_deref(), Some("inc-1"));
    assert_eq!(node.heartbeat(None).as_of, 7);
    assert!(!node.on_heartbeat(&answer(7, None)));
}

#[test]
fn heartbeats_ask_only_as_long_as_the_last_answer_allows() {
    let mut node = registered_node();
    let asks = |node: &Node| [Some(999), Some(1000), None].map(|uptime_ms| node.heartbeat(uptime_ms).asks);
    assert_eq!(asks(&node), [false; 3]);
    let allows = HeartbeatAnswer { ask_until_ms: Some(1000), ..answer(5, None) };
    node.on_heartbeat(&allows);
    assert_eq!(asks(&node), [true, false, false]);
    node.register_anew();
    assert_eq!(asks(&node), [false; 3]);
    node.on_heartbeat(&allows);
    node.on_heartbeat(&answer(6, None));
    assert_eq!(asks(&node), [false; 3]);
}

#[test]
fn nothing_to_report_still_sends_an_empty_complete_report() {
    let mut node = node();
    assert_eq!(node.report(), None, "not before the registration");
    node.on_heartbeat(&answer(7, Some(vec![])));
    let report = node.report().unwrap();
    assert_eq!((report.complete, report.as_of, report.allocs.len()), (true, 7, 0));
    node.on_report(&accepted_answer(7, &[]));
    assert_eq!(node.report(), None);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(7, None) });
    assert!(node.report().unwrap().complete);
}

#[test]
fn an_answer_without_a_list_does_not_raise_as_of() {
    let mut node = registered_node();
    node.on_heartbeat(&answer(9, None));
    assert_eq!(node.heartbeat(None).as_of, 5);
    node.on_heartbeat(&answer(9, Some(vec![order(0, 5)])));
    assert_eq!(node.heartbeat(None).as_of, 9);
}

#[test]
fn an_answer_older_than_the_last_one_changes_no_orders() {
    let mut node = registered_node();
    node.on_heartbeat(&answer(9, Some(vec![order(0, 5), order(1, 9)])));
    node.on_heartbeat(&answer(8, Some(vec![order(0, 5)])));
    assert_eq!(node.heartbeat(None).as_of, 9);
    assert_eq!(node.work().len(), 2);
}

#[test]
fn ag_02_to_05_the_report_has_the_local_state() {
    let states = [
        (Observed::Running, ClientStatus::Running),
        (ended(0), ClientStatus::Complete),
        (ended(3), ClientStatus::Failed),
        (Observed::Pending, ClientStatus::Pending),
    ];
    for (seen, client) in states {
        let mut node = registered_node();
        node.observe(alloc_id(0), seen);
        // The node was silent for a while: the control plane says unknown.
        let unknown = AllocOrder { client: ClientStatus::Unknown, ..order(0, 5) };
        node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![unknown])) });
        let report = node.report().unwrap();
        assert_eq!((report.complete, report.as_of), (true, 6));
        assert_eq!(report.allocs.iter().map(|a| a.client).collect::<Vec<_>>(), [client]);
    }
}

#[test]
fn ag_06_unknown_and_stop_is_stopped_and_never_resumed() {
    for seen in [Observed::Pending, Observed::Running] {
        let mut node = registered_node();
        node.observe(alloc_id(0), seen);
        let stop = AllocOrder { client: ClientStatus::Unknown, desired: Desired::Stop, ..order(0, 5) };
        node.on_heartbeat(&answer(6, Some(vec![stop])));
        assert!(matches!(node.work().as_slice(), [MachineTask::Stop(..)]));
    }
}

#[test]
fn ag_08_a_running_alloc_that_is_no_longer_listed_is_stopped_and_forgotten_without_a_report() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![])) });
    assert!(matches!(node.work().as_slice(), [MachineTask::Stop(..)]));
    assert!(node.report().unwrap().allocs.is_empty());
    assert_eq!(node.unfinished(), [alloc_id(0)], "its directory is in use until it has ended");
    node.observe(alloc_id(0), ended(143));
    assert!(node.durable.allocs.is_empty());
}

#[test]
fn an_unanswered_report_is_repeated_unchanged() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    let first = node.report().unwrap();
    node.observe(alloc_id(0), ended(0));
    node.on_report_refused(ErrorCode::Busy);
    assert_eq!(node.report().unwrap(), first);
    // The answer to the first report does not acknowledge the end.
    node.on_report(&accepted_answer(5, &[alloc_id(0)]));
    let second = node.report().unwrap();
    assert_eq!(second.report_no, first.report_no + 1);
    assert_eq!(second.allocs[0].client, ClientStatus::Complete);
    node.on_report(&accepted_answer(5, &[alloc_id(0)]));
    assert!(node.durable.allocs.is_empty());
}

#[test]
fn reports_seldom_write_their_numbers_and_an_agent_that_starts_again_uses_none_twice() {
    let mut node = registered_node();
    let (mut writes, mut last) = (0, 0);
    for seq in 6..206 {
        node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(seq, None) });
        let before = node.durable.report_no;
        let report_no = node.report().unwrap().report_no;
        assert!(last < report_no && report_no <= node.durable.report_no);
        last = report_no;
        writes += u32::from(node.durable.report_no != before);
        node.on_report(&accepted_answer(seq, &[]));
    }
    assert!(writes <= 4, "{writes}");
    let mut later = Node::new(node.identity.clone(), node.durable);
    assert!(later.report().unwrap().report_no > last);
}

#[test]
fn an_end_is_in_every_complete_report_until_it_is_acknowledged() {
    let mut node = registered_node();
    node.observe(alloc_id(0), ended(1));
    assert!(!node.report().unwrap().complete);
    node.on_report(&accepted_answer(5, &[]));
    assert_eq!(node.report(), None);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(5, None) });
    assert_eq!(node.report().unwrap().allocs.len(), 1);
    let refused = vec![RefusedUpdate { alloc_id: alloc_id(0), reason: "belongs to another node".into() }];
    node.on_report(&AllocReportAnswer { refused, ..accepted_answer(5, &[]) });
    assert!(node.durable.allocs.is_empty());
}

#[test]
fn not_ready_uses_up_the_number_and_the_next_report_has_the_new_as_of() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    let refused = node.report().unwrap();
    node.on_report_refused(ErrorCode::NotReady);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![order(0, 5)])) });
    let next = node.report().unwrap();
    assert_eq!((next.report_no, next.as_of, next.complete), (refused.report_no + 1, 6, true));
}

#[test]
fn after_a_stale_report_the_next_one_is_complete() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    let stale = node.report().unwrap();
    node.on_report_refused(ErrorCode::StaleReport);
    let next = node.report().unwrap();
    assert_eq!((next.report_no, next.complete), (stale.report_no + 1, true));
}

#[test]
fn a_wrong_incarnation_registers_anew_and_keeps_running_allocs() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    node.on_report_refused(ErrorCode::WrongIncarnation);
    let beat = node.heartbeat(None);
    assert_eq!((beat.incarnation, beat.as_of), (None, 0));
    let listed = AllocOrder { client: ClientStatus::Running, ..order(0, 5) };
    let again = HeartbeatAnswer { incarnation: "inc-2".into(), ..answer(8, Some(vec![listed])) };
    assert!(node.on_heartbeat(&again));
    assert!(node.work().is_empty(), "the running alloc is left alone");
    let report = node.report().unwrap();
    assert_eq!((report.report_no, report.complete, report.incarnation.as_str()), (1, true, "inc-2"));
    assert_eq!(report.allocs[0].client, ClientStatus::Running);
}

#[test]
fn an_alloc_that_is_lost_here_makes_a_complete_report_due() {
    let mut node = registered_node();
    let ran = AllocOrder { client: ClientStatus::Running, ..order(1, 6) };
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5), ran])));
    let report = node.report().unwrap();
    assert!(report.complete);
    assert_eq!(report.allocs.iter().map(|a| a.alloc_id).collect::<Vec<_>>(), [alloc_id(0)]);
}

#[test]
fn an_end_is_final() {
    let mut node = registered_node();
    assert!(node.observe(alloc_id(0), ended(1)));
    assert!(!node.observe(alloc_id(0), Observed::Running));
    assert_eq!(*node.observed(alloc_id(0)), ended(1));
}

#[test]
fn many_long_log_tails_fit_in_one_body() {
    let mut node = node();
    node.on_heartbeat(&answer(1, Some((0..400).map(|n| order(n, 1)).collect())));
    for n in 0..400 {
        let log_tail = Some("\u{1}".repeat(MAX_LOG_TAIL_BYTES));
        let cause = EndCause::Exited { code: 1 };
        node.observe(
            alloc_id(n),
            Observed::Ended(Box::new(Ending {
                run: RunReport { log_tail, ..RunReport::default() },
                ..Ending::new(cause)
            })),
        );
    }
    let report = node.report().unwrap();
    let body = serde_json::to_vec(&report).unwrap();
    assert!(body.len() < model::wire::MAX_BODY_BYTES, "{}", body.len());
    // A tail that is shorter than usual says so: it is not the whole output.
    let tails = || report.allocs.iter().filter_map(|a| a.run.log_tail.as_deref());
    assert!(tails().count() == 400 && tails().all(|t| t.starts_with(model::wire::CUT) && t.len() < 700));
}

#[test]
fn a_tail_is_cut_between_characters() {
    assert_eq!(tail("añb", 2), "b");
    assert_eq!(tail("añb", 3), "ñb");
    assert_eq!(tail("añb", 30), "añb");
    assert_eq!(tail("", 3), "");
}

#[test]
fn an_answer_does_not_resume_work_that_the_agent_stopped() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    node.stop_all("silence");
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5)])));
    assert!(matches!(node.work().as_slice(), [MachineTask::Stop(_, why)] if why == "silence"));
}

#[test]
fn the_durable_state_can_be_written_and_read_back() {
    let node = registered_node();
    let json = serde_json::to_string(&node.durable).unwrap();
    assert_eq!(serde_json::from_str::<Durable>(&json).unwrap(), node.durable);
}

#[test]
fn an_alloc_placed_before_the_wipe_is_never_started_and_a_later_one_is() {
    let mut node = node();
    node.durable.wiped_at = u64::MAX;
    node.on_heartbeat(&answer(5, Some(vec![order(0, 5)])));
    node.on_report_refused(ErrorCode::Busy);
    // The same list again, before the report was accepted.
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5)])));
    assert_eq!(node.work(), [], "it may have run before the wipe");
    // The report is accepted, and the agent is killed before it has the answer. Then another alloc is ordered.
    node.report().unwrap();
    let mut node = Node::new(node.identity.clone(), node.durable.clone());
    node.on_heartbeat(&answer(7, Some(vec![order(1, 7)])));
    assert!(matches!(node.work().as_slice(), [MachineTask::Run(o)] if o.alloc_id == alloc_id(1)));
}

#[test]
fn a_report_from_before_must_report_is_not_repeated_after_it() {
    let mut node = registered_node();
    node.observe(alloc_id(0), Observed::Running);
    let before = node.report().unwrap();
    node.on_report_refused(ErrorCode::Busy);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![order(0, 5)])) });
    let report = node.report().unwrap();
    assert!(report.complete && report.as_of == 6 && report.report_no > before.report_no);
}

#[test]
fn a_status_that_a_restored_table_forgot_is_reported_again() {
    let mut node = node_with_running_alloc();
    assert!(!node.has_report());
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5)])));
    assert_eq!(node.report().unwrap().allocs[0].client, ClientStatus::Running);
}

#[test]
fn an_alloc_placed_again_while_it_is_stopped_is_lost_once_it_has_ended() {
    let mut node = node_with_running_alloc();
    // A restored table does not know the alloc, and its id is placed a second time.
    node.on_heartbeat(&answer(6, Some(vec![])));
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(8, Some(vec![order(0, 8)])) });
    assert!(matches!(node.work().as_slice(), [MachineTask::Stop(..)]));
    let report = node.report().unwrap();
    assert!(report.complete && report.as_of == 8);
    assert_eq!(
        report.allocs.iter().map(|a| a.client).collect::<Vec<_>>(),
        [ClientStatus::Running],
        "it still runs here"
    );
    node.observe(alloc_id(0), ended(143));
    let report = node.report().unwrap();
    assert!(report.complete && report.allocs.is_empty(), "it has ended: {report:?}");
    assert_eq!(node.unfinished(), []);
}

#[test]
fn an_alloc_placed_again_and_dropped_again_is_forgotten_without_a_report() {
    let mut node = node_with_running_alloc();
    node.on_heartbeat(&answer(6, Some(vec![])));
    node.on_heartbeat(&answer(8, Some(vec![order(0, 8)])));
    node.on_heartbeat(&answer(9, Some(vec![])));
    node.observe(alloc_id(0), ended(143));
    assert!(!node.has_report());
}

#[test]
fn an_update_that_is_neither_taken_nor_refused_is_reported_again_after_the_next_heartbeat() {
    let mut node = node_with_running_alloc();
    node.observe(alloc_id(0), ended(0));
    node.report().unwrap();
    // The row of the alloc cannot be read now, so the answer does not mention the alloc.
    node.on_report(&accepted_answer(5, &[]));
    assert!(!node.has_report(), "not again and again");
    for _ in 0..2 {
        node.on_heartbeat(&answer(5, None));
        let report = node.report().unwrap();
        assert_eq!(report.allocs.iter().map(|a| a.client).collect::<Vec<_>>(), [ClientStatus::Complete]);
        node.on_report(&accepted_answer(5, &[]));
    }
    node.on_heartbeat(&answer(5, None));
    node.report().unwrap();
    node.on_report(&accepted_answer(5, &[alloc_id(0)]));
    node.on_heartbeat(&answer(5, None));
    assert!(!node.has_report(), "it was taken");
}
