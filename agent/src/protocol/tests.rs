use super::testing::{alloc_id, durable, order};
use super::*;
use shared::model::{Intent, NodeStatus};
use shared::wire::Refusal;

fn node() -> Node {
    let identity = Identity { instance_id: "i-1".into(), address: Some("10.0.0.1".into()) };
    Node::new(identity, durable())
}

fn answer(seq: u64, allocs: Option<Vec<AllocOrder>>) -> HeartbeatAnswer {
    HeartbeatAnswer {
        status: NodeStatus::Ready,
        incarnation: "inc-1".into(),
        seq,
        next_heartbeat_s: 60.0,
        intent: Intent::Run,
        must_report: false,
        allocs,
    }
}

fn taken(seq: u64, accepted: &[AllocId]) -> AllocReportAnswer {
    AllocReportAnswer { status: NodeStatus::Ready, seq, accepted: accepted.to_vec(), refused: Vec::new(), allocs: None }
}

fn ended(code: i32) -> Seen {
    Seen::Ended(Ended { exit_code: Some(code), message: None, log_tail: Some("the end\n".into()) })
}

/// Registered, told of alloc 0 at seq 5, and the complete report delivered.
fn settled() -> Node {
    let mut node = node();
    assert!(node.on_heartbeat(&answer(5, Some(vec![order(0, 5)]))));
    node.report().unwrap();
    node.on_report(&taken(5, &[alloc_id(0)]));
    assert!(!node.has_report());
    node
}

/// Settled, and alloc 0 runs, as the control plane knows.
fn told_running() -> Node {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    node.report().unwrap();
    node.on_report(&taken(5, &[alloc_id(0)]));
    node
}

#[test]
fn the_first_heartbeat_registers_and_the_next_ones_carry_the_incarnation() {
    let mut node = node();
    assert_eq!(node.heartbeat().incarnation, None);
    assert!(node.on_heartbeat(&answer(7, Some(vec![]))));
    assert_eq!(node.heartbeat().incarnation.as_deref(), Some("inc-1"));
    assert_eq!(node.heartbeat().as_of, 7);
    assert!(!node.on_heartbeat(&answer(7, None)));
}

#[test]
fn nothing_to_report_still_sends_an_empty_complete_report() {
    let mut node = node();
    assert_eq!(node.report(), None, "not before the registration");
    node.on_heartbeat(&answer(7, Some(vec![])));
    let report = node.report().unwrap();
    assert_eq!((report.complete, report.as_of, report.allocs.len()), (true, 7, 0));
    node.on_report(&taken(7, &[]));
    assert_eq!(node.report(), None);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(7, None) });
    assert!(node.report().unwrap().complete);
}

#[test]
fn an_answer_without_a_list_does_not_raise_as_of() {
    let mut node = settled();
    node.on_heartbeat(&answer(9, None));
    assert_eq!(node.heartbeat().as_of, 5);
    node.on_heartbeat(&answer(9, Some(vec![order(0, 5)])));
    assert_eq!(node.heartbeat().as_of, 9);
}

#[test]
fn an_answer_that_was_overtaken_changes_no_orders() {
    let mut node = settled();
    node.on_heartbeat(&answer(9, Some(vec![order(0, 5), order(1, 9)])));
    node.on_heartbeat(&answer(8, Some(vec![order(0, 5)])));
    assert_eq!(node.heartbeat().as_of, 9);
    assert_eq!(node.work().len(), 2);
}

#[test]
fn ag_02_to_05_the_local_state_is_what_is_reported() {
    let states = [
        (Seen::Running, ClientStatus::Running),
        (ended(0), ClientStatus::Complete),
        (ended(3), ClientStatus::Failed),
        (Seen::Pending, ClientStatus::Pending),
    ];
    for (seen, client) in states {
        let mut node = settled();
        node.observe(alloc_id(0), seen);
        // The node was disconnected in between: the control plane says unknown.
        let unknown = AllocOrder { client: ClientStatus::Unknown, ..order(0, 5) };
        node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![unknown])) });
        let report = node.report().unwrap();
        assert_eq!((report.complete, report.as_of), (true, 6));
        assert_eq!(report.allocs.iter().map(|a| a.client).collect::<Vec<_>>(), [client]);
    }
}

#[test]
fn ag_06_unknown_and_stop_is_stopped_and_never_resumed() {
    for seen in [Seen::Pending, Seen::Running] {
        let mut node = settled();
        node.observe(alloc_id(0), seen);
        let stop = AllocOrder { client: ClientStatus::Unknown, desired: Desired::Stop, ..order(0, 5) };
        node.on_heartbeat(&answer(6, Some(vec![stop])));
        assert!(matches!(node.work().as_slice(), [Work::Stop(..)]));
    }
}

#[test]
fn ag_08_a_running_alloc_that_is_no_longer_listed_is_stopped_and_forgotten_untold() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![])) });
    assert!(matches!(node.work().as_slice(), [Work::Stop(..)]));
    assert!(node.report().unwrap().allocs.is_empty());
    assert_eq!(node.unfinished(), [alloc_id(0)], "its directory is in use until it ended");
    node.observe(alloc_id(0), ended(143));
    assert!(node.durable.allocs.is_empty());
}

#[test]
fn an_undelivered_report_is_repeated_as_it_was() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    let first = node.report().unwrap();
    node.observe(alloc_id(0), ended(0));
    node.on_report_refused(ErrorCode::Busy);
    assert_eq!(node.report().unwrap(), first);
    // Its answer is no receipt for the end.
    node.on_report(&taken(5, &[alloc_id(0)]));
    let second = node.report().unwrap();
    assert_eq!(second.report_no, first.report_no + 1);
    assert_eq!(second.allocs[0].client, ClientStatus::Complete);
    node.on_report(&taken(5, &[alloc_id(0)]));
    assert!(node.durable.allocs.is_empty());
}

#[test]
fn an_end_is_in_every_complete_report_until_it_is_answered_for() {
    let mut node = settled();
    node.observe(alloc_id(0), ended(1));
    assert!(!node.report().unwrap().complete);
    node.on_report(&taken(5, &[]));
    assert_eq!(node.report(), None);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(5, None) });
    assert_eq!(node.report().unwrap().allocs.len(), 1);
    let refused = vec![Refusal { alloc_id: alloc_id(0), reason: "of another node".into() }];
    node.on_report(&AllocReportAnswer { refused, ..taken(5, &[]) });
    assert!(node.durable.allocs.is_empty());
}

#[test]
fn not_ready_spends_the_number_and_the_next_report_has_the_new_as_of() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    let refused = node.report().unwrap();
    node.on_report_refused(ErrorCode::NotReady);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![order(0, 5)])) });
    let next = node.report().unwrap();
    assert_eq!((next.report_no, next.as_of, next.complete), (refused.report_no + 1, 6, true));
}

#[test]
fn a_stale_report_takes_the_next_number_and_tells_everything() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    let stale = node.report().unwrap();
    node.on_report_refused(ErrorCode::StaleReport);
    let next = node.report().unwrap();
    assert_eq!((next.report_no, next.complete), (stale.report_no + 1, true));
}

#[test]
fn a_wrong_incarnation_registers_anew_and_keeps_what_runs() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    node.on_report_refused(ErrorCode::WrongIncarnation);
    let beat = node.heartbeat();
    assert_eq!((beat.incarnation, beat.as_of), (None, 0));
    let listed = AllocOrder { client: ClientStatus::Running, ..order(0, 5) };
    let again = HeartbeatAnswer { incarnation: "inc-2".into(), ..answer(8, Some(vec![listed])) };
    assert!(node.on_heartbeat(&again));
    assert!(node.work().is_empty(), "it goes on running");
    let report = node.report().unwrap();
    assert_eq!((report.report_no, report.complete, report.incarnation.as_str()), (1, true, "inc-2"));
    assert_eq!(report.allocs[0].client, ClientStatus::Running);
}

#[test]
fn an_alloc_that_is_lost_here_calls_for_a_complete_report() {
    let mut node = settled();
    let ran = AllocOrder { client: ClientStatus::Running, ..order(1, 6) };
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5), ran])));
    let report = node.report().unwrap();
    assert!(report.complete);
    assert_eq!(report.allocs.iter().map(|a| a.alloc_id).collect::<Vec<_>>(), [alloc_id(0)]);
}

#[test]
fn an_end_is_final() {
    let mut node = settled();
    assert!(node.observe(alloc_id(0), ended(1)));
    assert!(!node.observe(alloc_id(0), Seen::Running));
    assert_eq!(*node.seen(alloc_id(0)), ended(1));
}

#[test]
fn many_long_tails_still_fit_in_one_body() {
    let mut node = node();
    node.on_heartbeat(&answer(1, Some((0..400).map(|n| order(n, 1)).collect())));
    for n in 0..400 {
        let log_tail = Some("\u{1}".repeat(MAX_LOG_TAIL_BYTES));
        node.observe(alloc_id(n), Seen::Ended(Ended { exit_code: Some(1), message: None, log_tail }));
    }
    let body = serde_json::to_vec(&node.report().unwrap()).unwrap();
    assert!(body.len() < shared::wire::MAX_BODY_BYTES, "{}", body.len());
}

#[test]
fn a_tail_is_cut_between_characters() {
    assert_eq!(tail("añb", 2), "b");
    assert_eq!(tail("añb", 3), "ñb");
    assert_eq!(tail("añb", 30), "añb");
    assert_eq!(tail("", 3), "");
}

#[test]
fn work_stopped_by_the_agent_itself_is_not_resumed_by_an_answer() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    node.stop_all("silence");
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5)])));
    assert!(matches!(node.work().as_slice(), [Work::Stop(_, why)] if why == "silence"));
}

#[test]
fn durable_state_survives_its_file() {
    let node = settled();
    let json = serde_json::to_string(&node.durable).unwrap();
    assert_eq!(serde_json::from_str::<Durable>(&json).unwrap(), node.durable);
}

#[test]
fn what_was_placed_before_a_disk_was_wiped_is_never_started_and_what_is_placed_since_is() {
    let mut node = node();
    node.durable.wiped_at = u64::MAX;
    node.on_heartbeat(&answer(5, Some(vec![order(0, 5)])));
    node.on_report_refused(ErrorCode::Busy);
    // The list again, before the report was taken.
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5)])));
    assert_eq!(node.work(), [], "it may have run before the wipe");
    // The report is taken, and the agent killed before it hears so: the next order is another one.
    node.report().unwrap();
    let mut node = Node::new(node.identity.clone(), node.durable.clone());
    node.on_heartbeat(&answer(7, Some(vec![order(1, 7)])));
    assert!(matches!(node.work().as_slice(), [Work::Run(o)] if o.alloc_id == alloc_id(1)));
}

#[test]
fn what_ran_before_a_reboot_is_told_by_its_absence() {
    let mut node = settled();
    assert!(node.observe(alloc_id(0), Seen::Gone));
    let report = node.report().unwrap();
    assert!(report.complete && report.allocs.is_empty());
}

#[test]
fn a_complete_report_from_before_something_was_found_gone_is_not_the_one_that_says_so() {
    let mut node = settled();
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![order(0, 5)])) });
    let before = node.report().unwrap();
    assert_eq!(before.allocs.len(), 1);
    assert!(node.observe(alloc_id(0), Seen::Gone));
    node.on_report(&taken(6, &[alloc_id(0)]));
    let report = node.report().unwrap();
    assert!(report.complete && report.allocs.is_empty() && report.report_no > before.report_no);
}

#[test]
fn a_report_from_before_a_miss_is_not_repeated_for_the_gate() {
    let mut node = settled();
    node.observe(alloc_id(0), Seen::Running);
    let before = node.report().unwrap();
    node.on_report_refused(ErrorCode::Busy);
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(6, Some(vec![order(0, 5)])) });
    let report = node.report().unwrap();
    assert!(report.complete && report.as_of == 6 && report.report_no > before.report_no);
}

#[test]
fn what_a_restored_table_forgot_is_told_again() {
    let mut node = told_running();
    assert!(!node.has_report());
    node.on_heartbeat(&answer(6, Some(vec![order(0, 5)])));
    assert_eq!(node.report().unwrap().allocs[0].client, ClientStatus::Running);
}

#[test]
fn what_is_placed_again_while_it_is_stopped_is_lost_once_it_has_ended() {
    let mut node = told_running();
    // A restored table does not know it, and gives its id a second time.
    node.on_heartbeat(&answer(6, Some(vec![])));
    node.on_heartbeat(&HeartbeatAnswer { must_report: true, ..answer(8, Some(vec![order(0, 8)])) });
    assert!(matches!(node.work().as_slice(), [Work::Stop(..)]));
    let report = node.report().unwrap();
    assert!(report.complete && report.as_of == 8);
    assert_eq!(report.allocs.iter().map(|a| a.client).collect::<Vec<_>>(), [ClientStatus::Running], "it is here");
    node.observe(alloc_id(0), ended(143));
    let report = node.report().unwrap();
    assert!(report.complete && report.allocs.is_empty(), "and now it is not: {report:?}");
    assert_eq!(node.unfinished(), []);
}

#[test]
fn what_is_placed_again_and_dropped_again_is_forgotten_untold() {
    let mut node = told_running();
    node.on_heartbeat(&answer(6, Some(vec![])));
    node.on_heartbeat(&answer(8, Some(vec![order(0, 8)])));
    node.on_heartbeat(&answer(9, Some(vec![])));
    node.observe(alloc_id(0), ended(143));
    assert!(!node.has_report());
}
