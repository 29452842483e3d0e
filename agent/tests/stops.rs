//! A real agent with real processes: a signal before a stop, and what an alloc used.

use crate::common::{TestNode, code, order};
use model::wire::AllocOrder;
use model::{ClientStatus, Desired, EndCause, FailurePolicy, Work};

/// An order with a notice of a minute by USR1.
fn noticed(script: &str, stop_notice_s: u64, timeout_s: u64) -> AllocOrder {
    let order = order(0, script);
    let stop_signal = Some("USR1".parse().unwrap());
    let failure_policy = FailurePolicy { stop_signal, stop_notice_s, ..order.failure_policy };
    AllocOrder { failure_policy, work: Work { timeout_s, ..order.work }, ..order }
}

#[tokio::test]
async fn a_stop_comes_with_its_signal_and_the_command_may_save_its_work() {
    let mut node = TestNode::new().await;
    // TERM would end the command with another code, and comes only after a minute.
    let script = "exec 2>/dev/null; trap 'echo saved; exit 75' USR1; trap 'exit 3' TERM; echo ready > ready; while :; do sleep 0.1; done";
    node.with(|p| p.order(vec![noticed(script, 60, 0)]));
    node.start(&[]);
    node.line_of(0, "ready").await;
    node.running(0).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    let end = node.end_of(0).await;
    assert_eq!((code(&end), end.run.log_tail.as_deref()), (Some(75), Some("saved\n")), "{end:?}");
}

#[tokio::test]
async fn without_a_notice_the_signal_stands_in_place_of_term() {
    let mut node = TestNode::new().await;
    let script = "trap 'exit 75' USR1; trap 'exit 3' TERM; echo ready > ready; while :; do sleep 0.1; done";
    node.with(|p| p.order(vec![noticed(script, 0, 0)]));
    node.start(&[]);
    node.line_of(0, "ready").await;
    node.running(0).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    assert_eq!(code(&node.end_of(0).await), Some(75));
}

#[tokio::test]
async fn the_signal_comes_before_the_time_limit_and_the_command_knows_when_that_is() {
    let mut node = TestNode::new().await;
    let script = "exec 2>/dev/null; echo $((NODEKEEPER_STOP_AT - $(date +%s))); trap 'echo noticed' USR1; trap 'echo asked; exit 0' TERM; \
                  while :; do sleep 0.1; done";
    node.with(|p| p.order(vec![noticed(script, 2, 4)]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, &end.cause), (ClientStatus::Failed, &Some(EndCause::OverTime { limit_s: 4 })));
    let tail = end.run.log_tail.unwrap();
    assert!(["4\nnoticed\nasked\n", "3\nnoticed\nasked\n"].contains(&tail.as_str()), "{tail}");
    // A command that ends after the notice is not over its time, unless it has perhaps only saved its work.
    let over_time = EndCause::OverTime { limit_s: 4 };
    for (code, keep, cause) in [
        (75, None, EndCause::Exited { code: 75 }),
        (0, None, EndCause::Exited { code: 0 }),
        (75, Some("kept"), EndCause::Exited { code: 75 }),
        (0, Some("kept"), over_time),
    ] {
        let mut node = TestNode::new().await;
        let mut order = noticed(&format!("trap 'exit {code}' USR1; while :; do sleep 0.1; done"), 2, 4);
        order.work.keep = keep.map(str::to_owned);
        node.with(|p| p.order(vec![order]));
        node.start(&[]);
        assert_eq!(node.end_of(0).await.cause, Some(cause), "{code}, {keep:?}");
    }
}

#[tokio::test]
async fn a_command_that_is_stopped_is_asked_too() {
    let mut node = TestNode::new().await;
    let script = "trap 'echo saved; exit 75' TERM; echo ready > ready; kill -STOP $$; sleep 0.1; exit 3";
    let mut order = order(0, script);
    order.failure_policy.kill_timeout_s = 600;
    node.with(|p| p.order(vec![order]));
    node.start(&[]);
    node.line_of(0, "ready").await;
    node.running(0).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..p.orders[0].clone() }]));
    assert_eq!(code(&node.end_of(0).await), Some(75));
}

#[tokio::test]
async fn an_end_says_what_the_whole_tree_used() {
    let mut node = TestNode::new().await;
    // A child does the work, and its parent ends before it.
    let burns = r#"$x = "x" x (80 << 20); 1 while (times)[0] < 1; open F, ">", "done"; print F "1\n""#;
    let script = format!("head -c 5M /dev/zero >file; (perl -e '{burns}' &); until [ -s done ]; do sleep 0.05; done");
    node.with(|p| p.order(vec![order(0, &script)]));
    node.start(&[]);
    let end = node.end_of(0).await;
    let usage = end.run.usage.unwrap();
    assert!((990..60_000).contains(&usage.cpu_ms) && usage.ran_ms >= 990, "{usage:?}");
    assert!((80..400).contains(&usage.memory_mib.unwrap()), "{usage:?}");
    assert!((5..8).contains(&usage.scratch_mib.unwrap()), "{usage:?}");
    assert_eq!(end.client, ClientStatus::Complete);
}
