//! A real agent with real processes: whatever starts the program of a job, the program saves its work when the job is stopped.

use crate::common::podman::{IMAGE, Podman};
use crate::common::{TestNode, code, order};
use model::wire::{AllocOrder, AllocUpdate};
use model::{Desired, EndCause, FailurePolicy, Pack, Work};

/// What a person writes around the program, and the signal by which its first process ends; 0 if that is the program itself.
const SHAPES: [(&str, i32); 7] = [
    (r#"exec sh -c "$PROGRAM""#, 0),
    (r#"sh -c "$PROGRAM"; echo finished"#, 1),
    (r#"sh -c 'sh -c "$PROGRAM"; true'; true"#, 1),
    (r#"sh -c "$PROGRAM" | cat"#, 1),
    (r#"sh -c "$PROGRAM" & wait"#, 1),
    (r#"sh -c "$PROGRAM" & setsid sh -c 'sh -c "$PROGRAM"; true'; true"#, 1),
    (r#"(sh -c "$PROGRAM" &); sleep 1000; true"#, 1),
];

/// How long the program takes to save is far more than a shell takes to die. Each of its processes leaves a file of its own.
const PROGRAM: &str = r#"n=${NODEKEEPER_ARRAY_INDEX-0}; trap "sleep 1; echo saved > saved-$n-$$; exit 0" TERM USR1
    echo ready > "ready-$n-$$"; while :; do sleep 0.1; done"#;

/// TERM; an own signal in its place; an own signal that comes before TERM.
const SIGNALS: [(Option<&str>, u64); 3] = [(None, 0), (Some("USR1"), 0), (Some("USR1"), 8)];

struct Case {
    shape: &'static str,
    /// The exit code of the first process.
    code: i32,
    is_limit: bool,
    is_pack: bool,
    order: AllocOrder,
}

fn cases(kinds: &[bool], signals: &[(Option<&str>, u64)], image: Option<&str>) -> Vec<Case> {
    let mut cases = Vec::new();
    // Many containers take a while to start, and the limit counts from there.
    let limit_s = if image.is_some() { 30 } else { 12 };
    for is_pack in kinds {
        for (signal, stop_notice_s) in signals {
            for ((shape, is_above), is_limit) in SHAPES.iter().flat_map(|shape| [(*shape, false), (*shape, true)]) {
                let plain = order(cases.len() as u32, shape);
                let stop_signal = signal.map(|signal| signal.parse().unwrap());
                let failure_policy =
                    FailurePolicy { stop_signal, stop_notice_s: *stop_notice_s, ..plain.failure_policy };
                let work = Work {
                    timeout_s: if is_limit { limit_s } else { 0 },
                    image: image.map(str::to_owned),
                    pack: is_pack.then(|| Pack { at_once: 2, ..Pack::of("0-1".parse().unwrap()) }),
                    ..plain.work
                };
                let env = [("PROGRAM".to_owned(), PROGRAM.to_owned())].into();
                let order = AllocOrder { failure_policy, work, env, ..plain };
                let code = if is_above == 0 { 0 } else { 128 + order.failure_policy.notice_signal().number() };
                cases.push(Case { shape, code, is_limit, is_pack: *is_pack, order });
            }
        }
    }
    cases
}

/// The numbers behind the names of these files of an alloc.
fn files(node: &TestNode, copy: u32, begin: &str) -> Vec<String> {
    let names = std::fs::read_dir(node.alloc_dir(copy).join("work")).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        names.filter_map(|e| Some(e.file_name().to_str()?.strip_prefix(begin)?.to_owned())).collect();
    found.sort();
    found
}

/// Stops all of them, by an order or by their time limits, and looks at what is left of each.
async fn all_save(node: &mut TestNode, cases: &[Case], args: &[&str]) {
    node.with(|p| p.order(cases.iter().map(|case| case.order.clone()).collect()));
    node.start(args);
    for case in cases {
        let copy = case.order.alloc_id.copy;
        let programs =
            if case.shape.matches("$PROGRAM").count() > 1 { 2 } else { 1 } * if case.is_pack { 2 } else { 1 };
        node.until(case.shape, |node| (files(node, copy, "ready-").len() == programs).then_some(())).await;
    }
    let is_stopped = |order: &AllocOrder| order.work.timeout_s == 0;
    node.with(|p| {
        p.orders.iter_mut().filter(|order| is_stopped(order)).for_each(|order| order.desired = Desired::Stop)
    });
    node.with(|p| p.order(p.orders.clone()));
    for case in cases {
        let copy = case.order.alloc_id.copy;
        let end = node.end_of(copy).await;
        let what = format!("{} {:?}: {end:?}", case.shape, case.order.failure_policy);
        assert_eq!(files(node, copy, "saved-"), files(node, copy, "ready-"), "{what}");
        case.ends_as(&end, &what);
    }
    eprintln!("{} of {} saved", cases.len(), cases.len());
}

impl Case {
    fn ends_as(&self, end: &AllocUpdate, what: &str) {
        let results = serde_json::to_string(&end.run.elements.results).unwrap();
        match (self.is_pack, self.is_limit, &end.cause) {
            // Its elements have failed. Those that a stop has ended have no result.
            (true, true, Some(EndCause::ElementsFailed { failed: 2, .. })) if results == r#"{"timeout":"0-1"}"# => {}
            (true, false, Some(EndCause::Stopped { .. })) if results == "{}" => {}
            (false, true, Some(EndCause::OverTime { .. })) => {}
            // The program has ended by itself before its time limit.
            (false, true, Some(EndCause::Exited { code: 0 })) if self.code == 0 => {}
            (false, false, Some(EndCause::Stopped { .. })) => assert_eq!(code(end), Some(self.code), "{what}"),
            _ => panic!("{what}"),
        }
    }
}

#[tokio::test]
async fn processes_save_whatever_starts_them_and_whatever_stops_them() {
    let mut node = TestNode::new().await;
    all_save(&mut node, &cases(&[false], &SIGNALS, None), &[]).await;
}

#[tokio::test]
async fn elements_save_whatever_starts_them_and_whatever_stops_them() {
    let mut node = TestNode::new().await;
    all_save(&mut node, &cases(&[true], &SIGNALS[..2], None), &[]).await;
}

#[tokio::test]
async fn containers_save_whatever_starts_them_and_whatever_stops_them() {
    let Some(podman) = Podman::new() else { return };
    let mut node = TestNode::new().await;
    node.env.extend(podman.env());
    all_save(&mut node, &cases(&[false], &SIGNALS[1..2], Some(IMAGE)), &["--containers", "podman"]).await;
    assert_eq!(podman.containers(), [] as [String; 0]);
}

/// The first process dies of the signal. A program below it hears the signal, and does not end.
const STAYS: &str = r#"sh -c 'trap "echo asked > asked" TERM; echo ready > ready; while :; do sleep 0.1; done'; true"#;

#[tokio::test]
async fn what_does_not_end_in_time_is_killed_and_the_exit_code_is_that_of_the_first_process() {
    let podman = Podman::new();
    let mut node = TestNode::new().await;
    node.env.extend(podman.iter().flat_map(Podman::env));
    let images = [None, None, podman.as_ref().map(|_| IMAGE.to_owned())];
    let orders = images.iter().zip(0..).map(|(image, copy)| {
        let plain = order(copy, STAYS);
        let failure_policy = FailurePolicy { kill_timeout_s: 1, ..plain.failure_policy };
        let pack = (copy == 1).then(|| Pack::of("0".parse().unwrap()));
        AllocOrder { failure_policy, work: Work { image: image.clone(), pack, ..plain.work }, ..plain }
    });
    node.with(|p| p.order(orders.collect()));
    node.start(&["--containers", if podman.is_some() { "podman" } else { "none" }]);
    for copy in 0..3 {
        node.line_of(copy, "ready").await;
    }
    node.with(|p| p.orders.iter_mut().for_each(|order| order.desired = Desired::Stop));
    node.with(|p| p.order(p.orders.clone()));
    for copy in 0..3 {
        let end = node.end_of(copy).await;
        assert_eq!(node.line_of(copy, "asked").await, "asked");
        assert_eq!(code(&end), Some(137), "the first process was halted: {end:?}");
    }
}
