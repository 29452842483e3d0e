//! A real agent with real processes: packs, whose command runs once for each element.

use crate::common::{TestNode, order};
use model::wire::{AllocOrder, AllocUpdate};
use model::{ClientStatus, Desired, EndCause, Pack};
use std::num::NonZeroU32;
use std::time::Instant;

fn pack(copy: u32, script: &str, elements: &str, at_once: u32) -> AllocOrder {
    let mut order = order(copy, script);
    order.work.pack = Some(Pack { at_once, ..Pack::of(elements.parse().unwrap()) });
    order
}

/// The results in JSON, in one line.
fn results(end: &AllocUpdate) -> String {
    serde_json::to_string(&end.run.elements.results).unwrap()
}

/// What an element printed.
fn printed(end: &AllocUpdate, element: u32) -> &str {
    let place = end.run.elements.places.of(element).unwrap();
    let range = usize::try_from(place.start).unwrap()..usize::try_from(place.end).unwrap();
    &end.run.log_tail.as_deref().unwrap()[range]
}

#[tokio::test]
async fn each_element_has_its_own_number_output_and_end() {
    let mut node = TestNode::new().await;
    let script =
        "echo out $NODEKEEPER_ARRAY_INDEX of $NODEKEEPER_JOB_ID; echo err >&2; cat; touch $NODEKEEPER_ARRAY_INDEX
        case $NODEKEEPER_ARRAY_INDEX in 1) exit 3;; 2) kill -SEGV $$;; 4) ls | tr '\\n' ' ';; esac";
    let mut mixed = pack(0, script, "0-2,4", 1);
    mixed.env.insert("NODEKEEPER_STDIN".into(), "aW4K".into());
    let good = pack(1, "echo $NODEKEEPER_ARRAY_INDEX", "5-104", 8);
    node.with(|p| p.order(vec![mixed, good]));
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!(
        (end.client, end.cause.clone()),
        (ClientStatus::Failed, Some(EndCause::ElementsFailed { failed: 2, elements: 4 }))
    );
    assert_eq!(results(&end), r#"{"exit:0":"0,4","exit:3":"1","signal:11":"2"}"#);
    for element in [0, 1, 2, 4] {
        let said = printed(&end, element);
        assert!(
            said.contains(&format!("out {element} of 0")) && said.contains("err\n") && said.contains("in\n"),
            "{said}"
        );
    }
    assert!(printed(&end, 4).ends_with("0 1 2 4 "), "they share the work directory: {end:?}");
    let end = node.end_of(1).await;
    assert_eq!(
        (end.cause.clone(), results(&end)),
        (Some(EndCause::Exited { code: 0 }), r#"{"exit:0":"5-104"}"#.into())
    );
    assert!((5..=104).all(|n| printed(&end, n) == format!("{n}\n")), "side by side too: {end:?}");
}

#[tokio::test]
async fn a_pack_that_is_told_to_stop_starts_nothing_more_and_what_it_stopped_counts_for_nothing() {
    let mut node = TestNode::new().await;
    let script = "test $NODEKEEPER_ARRAY_INDEX = 0 && exit 0; echo begun; trap 'echo stopped; exit 0' TERM; touch begun; sleep 1000 & wait";
    node.with(|p| p.order(vec![pack(0, script, "0-9", 1)]));
    node.start(&[]);
    let begun = node.alloc_dir(0).join("work/begun");
    node.until("element 1 to begin", |_| begun.exists().then_some(())).await;
    node.with(|p| p.order(vec![AllocOrder { desired: Desired::Stop, ..pack(0, script, "0-9", 1) }]));
    let end = node.end_of(0).await;
    assert!(matches!(end.cause, Some(EndCause::Stopped { code: Some(0), .. })), "{end:?}");
    assert_eq!((results(&end), printed(&end, 1)), (r#"{"exit:0":"0"}"#.into(), "begun\nstopped\n"));
}

#[tokio::test]
async fn after_as_many_failures_as_may_be_no_element_begins() {
    let mut node = TestNode::new().await;
    let script = "test $NODEKEEPER_ARRAY_INDEX = 1";
    let orders = [(1, 0), (1, 1), (1, 2), (1, 10), (2, 2)].into_iter().zip(0..).map(|((at_once, max), copy)| {
        let mut order = pack(copy, script, "0-5", at_once);
        order.work.pack.as_mut().unwrap().max_failures = NonZeroU32::new(max);
        order
    });
    node.with(|p| p.order(orders.collect()));
    node.start(&[]);
    for (copy, failed) in [(0, "0,2-5"), (1, "0"), (2, "0,2"), (3, "0,2-5")] {
        let end = node.end_of(copy).await;
        assert_eq!(end.run.elements.results.failed().to_string(), failed, "{copy}");
        let failed = end.run.elements.results.failed().count();
        assert_eq!(end.cause, Some(EndCause::ElementsFailed { failed, elements: 6 }), "{copy}");
    }
    // What runs beside the last failure runs to its end.
    let failed = node.end_of(4).await.run.elements.results.failed().count();
    assert!((2..=3).contains(&failed), "{failed}");
}

#[tokio::test]
async fn an_element_that_runs_too_long_is_ended_and_the_others_run() {
    let mut node = TestNode::new().await;
    let script =
        "echo $NODEKEEPER_STOP_AT | grep -q . || exit 9; test $NODEKEEPER_ARRAY_INDEX = 1 && sleep 1000 & wait $!";
    let mut slow = pack(0, script, "0-2", 3);
    (slow.work.timeout_s, slow.failure_policy.kill_timeout_s) = (1, 1);
    // The process leaves the group of its element, so it ends only with the alloc.
    let leaves = pack(1, "setsid sleep 1000 > /dev/null 2>&1 < /dev/null & echo $!", "0-1", 1);
    let missing = AllocOrder {
        work: model::Work { command: vec!["./no-such".into()], ..leaves.work.clone() },
        ..pack(2, "", "0-1", 1)
    };
    node.with(|p| p.order(vec![slow, leaves, missing]));
    node.start(&[]);
    assert_eq!(results(&node.end_of(0).await), r#"{"exit:1":"0,2","timeout":"1"}"#);
    let end = node.end_of(1).await;
    assert_eq!(end.client, ClientStatus::Complete);
    let left = (0..=1).filter(|n| crate::common::is_alive(printed(&end, *n).trim())).count();
    assert_eq!(left, 0, "nothing is left of it");
    assert_eq!(results(&node.end_of(2).await), r#"{"exit:127":"0-1"}"#);
}

#[tokio::test]
async fn an_element_that_needs_too_much_memory_is_killed_and_its_neighbours_go_on() {
    let mut node = TestNode::new().await;
    // A child of element 1 uses too much. The other elements use some memory, and end after element 1 was killed.
    let script = r#"case $NODEKEEPER_ARRAY_INDEX in
        1) perl -e '$x = "x" x (200 << 20); sleep 1000'; true;;
        *) perl -e '$x = "x" x (20 << 20); select undef, undef, undef, 0.1 until -e "go"';;
        esac"#;
    let mut order = pack(0, script, "0-2", 3);
    order.needs.memory_mib = 150;
    order.work.timeout_s = 100;
    node.with(|p| p.order(vec![order]));
    node.start(&[]);
    let (log, go) = (node.alloc_dir(0).join("elements"), node.alloc_dir(0).join("work/go"));
    node.until("element 1 to end", |_| std::fs::read_to_string(&log).ok().filter(|text| text.contains("1 memory")))
        .await;
    std::fs::write(go, "").unwrap();
    let end = node.end_of(0).await;
    assert_eq!(
        (end.cause.clone(), results(&end)),
        (Some(EndCause::ElementsFailed { failed: 1, elements: 3 }), r#"{"exit:0":"0,2","memory":"1"}"#.into())
    );
}

#[tokio::test]
async fn what_writes_into_the_stream_of_its_runner_is_lost_and_fails_nobody() {
    let mut node = TestNode::new().await;
    let script = "test $NODEKEEPER_ARRAY_INDEX = 0 && exit; while ! [ -e go ]; do sleep 0.05; done; \
                  echo hello, world > /proc/$PPID/fd/1; sleep 0.2";
    node.with(|p| p.order(vec![pack(0, script, "0-5", 1)]));
    node.start(&[]);
    // Without this wait, output of the next element may come before the end of the first one in the stream.
    let (log, go) = (node.alloc_dir(0).join("elements"), node.alloc_dir(0).join("work/go"));
    node.until("element 0 to end", |_| std::fs::read_to_string(&log).ok().filter(|text| text.contains("0 exit:0")))
        .await;
    std::fs::write(go, "").unwrap();
    let end = node.end_of(0).await;
    assert_eq!((end.client, results(&end)), (ClientStatus::Lost, r#"{"exit:0":"0"}"#.into()));
}

#[tokio::test]
async fn elements_go_on_and_are_told_whatever_becomes_of_the_agent() {
    let mut node = TestNode::new().await;
    let script = "while test $NODEKEEPER_ARRAY_INDEX = 1 && ! test -e go; do sleep 0.05; done; echo x >> $NODEKEEPER_ARRAY_INDEX";
    node.with(|p| p.order(vec![pack(0, script, "0-3", 1)]));
    node.start(&[]);
    node.running(0).await;
    node.kill_agent();
    std::fs::write(node.alloc_dir(0).join("work/go"), "").unwrap();
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!((end.client, results(&end)), (ClientStatus::Complete, r#"{"exit:0":"0-3"}"#.into()));
    for element in 0..4 {
        assert_eq!(std::fs::read_to_string(node.alloc_dir(0).join("work").join(element.to_string())).unwrap(), "x\n");
    }
}

#[tokio::test]
async fn many_small_elements_take_little_more_than_their_commands() {
    let mut node = TestNode::new().await;
    let mut order = pack(0, "", "0-999", 1);
    order.work.command = vec!["true".into()];
    node.with(|p| p.order(vec![order]));
    let began = Instant::now();
    node.start(&[]);
    let end = node.end_of(0).await;
    assert_eq!(results(&end), r#"{"exit:0":"0-999"}"#);
    eprintln!("1,000 elements: {:?}", began.elapsed());
}
