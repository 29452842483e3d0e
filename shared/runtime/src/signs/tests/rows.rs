//! The table of the test: each sign with the state that raises it, the one just before, and the one after its end.

pub(super) use super::state::Change;
use super::state::{NOW, Row, State, awaits_gpus, cannot_end, gpus, heard, invalid_row, reaches, row};
use crate::signs::SignLevel;
use model::control::UnreadableEntry;
use model::fixtures::{self, alloc_id, at, job, node_id, ready};
use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE, SWEEP_DISPATCH};
use model::{
    AllocSummary, BrakeKind, Catalogue, CataloguePart, CloudError, Desired, Function, Handle, JobState, NodeState,
    NodeStatus, PartState, Reason, SetNote, Subject,
};
use store::Table;

pub(super) use SignLevel::{Caution, Well, Wrong};

/// A cluster whose first run was so long ago, and in which this function has not run.
fn began(state: &mut State, without: Function, seconds: i64) {
    state.control.runs.remove(without.name);
    state.run(POLL_AND_SCALE).first_at = Some(at(NOW - seconds));
}

pub(super) const ROWS: &[Row] = &[
    row(
        ("policy", Wrong),
        |s| s.control.policy = None,
        &["no policy is stored", "policy set FILE"],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("function", Caution),
        |s| s.run(POLL_AND_SCALE).error = Some("EC2 is away".into()),
        &["poll-and-scale last succeeded 10 s ago; its last run failed: EC2 is away"],
        (|_| (), Well),
        |s| s.run(POLL_AND_SCALE).error = None,
    ),
    row(
        ("function", Caution),
        |s| s.run(POLL_AND_SCALE).failed = 2,
        &["2 actions failed"],
        (|s| s.run(POLL_AND_SCALE).left = 2, Well),
        |s| s.run(POLL_AND_SCALE).failed = 0,
    ),
    row(
        ("function", Wrong),
        |s| {
            let run = s.run(POLL_AND_SCALE);
            (run.error, run.failing_since_at) = (Some("EC2 is away".into()), Some(at(NOW - 60)));
        },
        &["has failed since 1 min ago; its last run failed: EC2 is away", "the error says what is missing"],
        (
            |s| {
                let run = s.run(POLL_AND_SCALE);
                (run.error, run.failing_since_at) = (Some("EC2 is away".into()), Some(at(NOW - 59)));
            },
            Caution,
        ),
        |_| (),
    ),
    row(
        ("function", Wrong),
        |s| s.run(SWEEP_DISPATCH).last_success_at = Some(at(NOW - 301)),
        &["sweep-dispatch last succeeded 5 min ago; it should run every 1 min", "check its schedule"],
        (|s| s.run(SWEEP_DISPATCH).last_success_at = Some(at(NOW - 300)), Well),
        |_| (),
    ),
    row(
        ("function", Wrong),
        |s| s.run(CLEAN_STALE_RECORDS).last_success_at = Some(at(NOW - 1501)),
        &["clean-stale-records last succeeded 25 min ago"],
        (|s| s.run(CLEAN_STALE_RECORDS).last_success_at = Some(at(NOW - 1500)), Well),
        |_| (),
    ),
    row(
        ("function", Wrong),
        |s| {
            let run = s.run(POLL_AND_SCALE);
            (run.left, run.nothing_done_since_at) = (3, Some(at(NOW - 300)));
        },
        &["has done nothing of what it should since 5 min ago: it leaves 3 actions", "poll.stale_after_s"],
        (
            |s| {
                let run = s.run(POLL_AND_SCALE);
                (run.left, run.nothing_done_since_at) = (3, Some(at(NOW - 299)));
            },
            Well,
        ),
        |_| (),
    ),
    row(
        ("function", Wrong),
        |s| began(s, SWEEP_DISPATCH, 301),
        &["sweep-dispatch has never run"],
        (|s| began(s, SWEEP_DISPATCH, 300), Caution),
        |_| (),
    ),
    row(
        ("function", Wrong),
        |s| began(s, CLEAN_STALE_RECORDS, 1501),
        &["clean-stale-records has never run"],
        (|s| began(s, CLEAN_STALE_RECORDS, 1500), Caution),
        |_| (),
    ),
    row(
        ("function", Caution),
        |s| s.run(SWEEP_DISPATCH).last_success_at = Some(at(NOW + 121)),
        &["sweep-dispatch last succeeded in 2 min: its clock or the clock here is wrong"],
        (|s| s.run(SWEEP_DISPATCH).last_success_at = Some(at(NOW + 120)), Well),
        |_| (),
    ),
    row(
        ("heartbeats", Wrong),
        |s| s.entry("ingest", 0, &[("since_at", at(NOW - 301).as_ms().into())]),
        &["heartbeat-ingest last noted heartbeats 5 min ago, and 1 node in use", "its URL"],
        (|s| s.entry("ingest", 0, &[("since_at", at(NOW - 300).as_ms().into())]), Well),
        |s| {
            s.entry("ingest", 0, &[("since_at", at(NOW - 9000).as_ms().into())]);
            s.nodes.clear();
        },
    ),
    row(
        ("plan", Caution),
        |s| s.away = Some(CloudError::Unreachable { operation: "DescribeInstances", detail: "no route".into() }),
        &["is not known here: EC2 did not answer", "credentials"],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("node", Wrong),
        |s| {
            if let NodeState::InUse(node) = &mut s.nodes[0].state {
                node.contact.health.refuses = Some("jobs reach the metadata".into());
            }
        },
        &["slot 0 takes no work: jobs reach the metadata", "mend the image"],
        (|_| (), Well),
        |s| s.nodes.clear(),
    ),
    row(
        ("gpus", Wrong),
        |s| gpus(s, 3, Some("GPU-1 (A10G): fell off the bus")),
        &["slot 0: 3 of its 4 GPUs can be used: GPU-1 (A10G): fell off the bus", "nodekeeper drain 0"],
        (|s| gpus(s, 4, None), Well),
        |s| s.nodes.clear(),
    ),
    row(
        ("node", Wrong),
        |s| gpus(s, 0, Some("GPU-1 (A10G): fell off the bus")),
        &["slot 0 takes no work: GPU-1 (A10G): fell off the bus", "mend the image"],
        (|s| gpus(s, 4, None), Well),
        |s| s.nodes.clear(),
    ),
    row(
        ("unended", Wrong),
        |s| cannot_end(s, Some("alloc 7-0.0")),
        &["slot 0 cannot end alloc 7-0.0: processes were killed and do not die", "nodekeeper drain 0 --by 0s"],
        (|s| cannot_end(s, None), Well),
        |s| s.nodes.clear(),
    ),
    row(
        ("silent", Caution),
        |s| s.nodes = vec![heard(0, 121), heard(1, 10), heard(2, 10)],
        &["1 of 3 nodes in use silent: slot 0 heard 2 min ago"],
        (|s| s.nodes = vec![heard(0, 120), heard(1, 10), heard(2, 10)], Well),
        |s| s.nodes = vec![heard(0, 1), heard(1, 10), heard(2, 10)],
    ),
    row(
        ("silent", Wrong),
        |s| s.nodes = vec![heard(0, 121), heard(1, 121), heard(2, 10)],
        &["2 of 3 nodes in use silent: slot 0 heard 2 min ago, slot 1 heard", "the console"],
        (|s| s.nodes = (0..7).map(|n| heard(n, if n < 2 { 121 } else { 10 })).collect(), Caution),
        |s| s.nodes = vec![heard(2, 10)],
    ),
    row(
        ("silent", Wrong),
        |s| s.nodes = vec![heard(0, 901), heard(1, 10), heard(2, 10), heard(3, 10)],
        &["1 of 4 nodes in use silent: slot 0 heard 15 min ago", "why they stay"],
        (|s| s.nodes = vec![heard(0, 900), heard(1, 10), heard(2, 10), heard(3, 10)], Caution),
        |_| (),
    ),
    row(
        ("boot_failures", Caution),
        |s| s.entry("boot_failures", -1, &[("count", 1.into())]),
        &["1 start failed in a row, the last 1 min ago", "history cluster"],
        (|s| s.entry("boot_failures", -1, &[("count", 0.into())]), Well),
        |s| s.entry("boot_failures", -1, &[("count", 0.into())]),
    ),
    row(
        ("boot_failures", Wrong),
        |s| s.entry("boot_failures", 90, &[("count", 2.into())]),
        &["2 starts failed in a row, the last 1 min ago; next try in 1 min", "correct image, user data or network"],
        (|s| s.entry("boot_failures", -1, &[("count", 1.into())]), Caution),
        |s| {
            s.entry("boot_failures", -1, &[("count", 9.into()), ("since_at", at(NOW - 86_400).as_ms().into())]);
        },
    ),
    row(
        ("booting", Caution),
        |s| s.boots(2101),
        &["slot 1 boots since 35 min and is not given up"],
        (|s| s.boots(2100), Well),
        |_| (),
    ),
    row(
        ("booting", Wrong),
        |s| {
            if let NodeState::InUse(node) = &mut s.nodes[0].state {
                node.contact.status = NodeStatus::Syncing;
                node.contact.syncing_since_at = Some(at(NOW - 3901));
            }
        },
        &["slot 0 synchronizes since 1 h"],
        (
            |s| {
                if let NodeState::InUse(node) = &mut s.nodes[0].state {
                    node.contact.status = NodeStatus::Syncing;
                    node.contact.syncing_since_at = Some(at(NOW - 3900));
                }
            },
            Caution,
        ),
        |_| (),
    ),
    row(
        ("node", Wrong),
        |s| reaches(s, Some("s3")),
        &["slot 0 takes no work: it cannot reach s3, and other nodes can: no route", "mend the image"],
        (|s| reaches(s, Some("ssm")), Well),
        |_| (),
    ),
    row(
        ("service", Wrong),
        |s| reaches(s, None),
        &["1 node cannot reach s3, and no node gets through: no route", "look at the service"],
        (|s| reaches(s, Some("s3")), Well),
        |_| (),
    ),
    row(
        ("booting", Caution),
        |s| awaits_gpus(s, 121),
        &["slot 0 boots since 2 min: 1 of its 4 GPUs can be used: is the driver installed"],
        (|s| awaits_gpus(s, 120), Well),
        |_| (),
    ),
    row(
        ("unready", Caution),
        |s| {
            s.boots(1800);
            s.unready = 1;
        },
        &["1 node wanted and not ready, and the longest wait is 30 min", "nodekeeper plan"],
        (
            |s| {
                s.boots(1799);
                s.unready = 1;
            },
            Well,
        ),
        |s| s.boots(1800),
    ),
    row(
        ("shutting_down", Caution),
        |s| s.nodes.push(ready(1).shut_down(at(NOW - 601), "idle").unwrap()),
        &["slot 1 is shut down since 10 min, and EC2 has not ended i-1"],
        (|s| s.nodes.push(ready(1).shut_down(at(NOW - 600), "idle").unwrap()), Well),
        |_| (),
    ),
    row(
        ("shutting_down", Wrong),
        |s| s.nodes.push(ready(1).shut_down(at(NOW - 1801), "idle").unwrap()),
        &["slot 1 is shut down since 30 min"],
        (|s| s.nodes.push(ready(1).shut_down(at(NOW - 1800), "idle").unwrap()), Caution),
        |_| (),
    ),
    row(
        ("instances", Wrong),
        |s| s.polled(1, 1, 45),
        &["EC2 has listed none of the 1 instance that records name for 45 s", "the console"],
        (|s| s.polled(1, 1, 44), Well),
        |s| s.polled(1, 0, 0),
    ),
    row(
        ("instances", Caution),
        |s| s.polled(3, 2, 45),
        &["EC2 has not listed 2 of the 3 instances"],
        (|s| s.polled(3, 2, 44), Well),
        |s| s.polled(3, 0, 0),
    ),
    row(
        ("instances", Wrong),
        |s| s.polled(3, 2, 900),
        &["for 15 min"],
        (|s| s.polled(3, 2, 899), Caution),
        |s| s.polled(3, 0, 0),
    ),
    row(
        ("strangers", Wrong),
        |s| s.cleaned(1, 0, 0),
        &["1 instance has the tag of the cluster and no readable node id", "i-stranger0", "terminate it"],
        (|s| s.cleaned(0, 0, 0), Well),
        |_| (),
    ),
    row(
        ("orphans", Caution),
        |s| s.cleaned(0, 2, 1),
        &["2 instances without a node, found 5 min ago"],
        (|s| s.cleaned(0, 0, 0), Well),
        |_| (),
    ),
    row(
        ("orphans", Wrong),
        |s| s.cleaned(0, 2, 2),
        &["2 instances without a node", "release orphans --show"],
        (|s| s.cleaned(0, 2, 1), Caution),
        |s| s.cleaned(0, 0, 0),
    ),
    row(
        ("limit", Caution),
        |s| s.entry("limit#short#offering#spot#m7a.large#any", 120, &[("message", "told".into())]),
        &["EC2 is short of spot m7a.large any", "next try in 2 min: told"],
        (|_| (), Well),
        |s| s.entry("limit#short#offering#spot#m7a.large#any", 0, &[]),
    ),
    row(
        ("limit", Wrong),
        |s| {
            s.entry("limit#quota#market#spot", 30, &[]);
            let why = s.control.limits(at(NOW))[0].reason(at(NOW));
            s.explained.waits(&job(0).summary, &[why]);
        },
        &["since 1 min ago; next try in 30 s; job", "waits for it", "Service Quotas"],
        // Nobody waits for it.
        (|s| s.entry("limit#quota#market#spot", 30, &[]), Caution),
        |s| s.entry("limit#quota#market#spot", 0, &[]),
    ),
    row(
        ("limit", Wrong),
        |s| s.entry("limit#refused#subnet#subnet-1", 30, &[]),
        &["EC2 refuses launches with subnet subnet-1", "release launches"],
        (|s| s.entry("limit#throttled#account", 30, &[]), Caution),
        |s| s.entry("limit#refused#subnet#subnet-1", 0, &[]),
    ),
    row(
        ("limit", Wrong),
        |s| s.entry("limit#wrong#template#nodes", 30, &[("policy_version", 1.into())]),
        &["EC2 refuses launches with launch template nodes", "what to correct: the launch template"],
        (|s| s.entry("limit#wrong#template#nodes", 30, &[("policy_version", 0.into())]), Well),
        |_| (),
    ),
    row(
        ("brake", Wrong),
        |s| s.control.put(fixtures::brake(BrakeKind::Missing, "poll-and-scale", vec!["i-1".into()], at(NOW - 1))),
        &["brake#missing held back: many", "nodekeeper release missing"],
        (|_| (), Well),
        |s| s.control.put(fixtures::brake(BrakeKind::Missing, "poll-and-scale", Vec::new(), at(NOW - 1))),
    ),
    row(
        ("brake", Caution),
        |s| s.entry("release#missing", 120, &[("count", 1.into())]),
        &["an operator released what was held; if no run uses the release, it ends in 2 min"],
        (|_| (), Well),
        |s| s.entry("release#missing", 0, &[]),
    ),
    row(
        ("cap", Caution),
        |s| s.explained.limits(&Reason::NodesMax { max: 6, there: 6 }),
        &["all 6 nodes that nodes.max allows are there"],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("row", Wrong),
        |s| s.rows = vec![invalid_row(Table::Nodes, "row 2 of table nodes cannot be read")],
        &["row 2 of table nodes", "correct or delete it"],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("row", Caution),
        |s| s.control.unreadable = vec![entry("of_the_future", false)],
        &["row of_the_future of table control cannot be read"],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("row", Wrong),
        |s| s.control.unreadable = vec![entry("quota", true)],
        &["row quota of table control cannot be read"],
        (|s| s.control.unreadable = vec![entry("of_the_future", false)], Caution),
        |_| (),
    ),
    row(
        ("failed", Caution),
        |s| s.ended(JobState::Failed, 1, 60),
        &["1 of 1 job that ended within an hour failed, the newest: ", "1 min ago", "nodekeeper job ID"],
        (|s| s.ended(JobState::Complete, 1, 60), Well),
        |_| (),
    ),
    row(
        ("failed", Wrong),
        |s| s.ended(JobState::Failed, 30, 60),
        &["30 of 30 jobs that ended within an hour failed, the newest: ", "what do they share"],
        (|s| s.ended(JobState::Failed, 2, 60), Caution),
        |_| (),
    ),
    row(
        ("failed", Wrong),
        |s| {
            s.ended(JobState::Failed, 4, 60);
            s.ended(JobState::Complete, 3, 60);
        },
        &["4 of 7 jobs"],
        (
            |s| {
                s.ended(JobState::Failed, 4, 60);
                s.ended(JobState::Complete, 4, 60);
            },
            Caution,
        ),
        |s| s.ended(JobState::Complete, 4, 60),
    ),
    // As many were read as are read at most, whatever their ends were: there may be more.
    row(
        ("failed", Caution),
        |s| {
            s.ended(JobState::Failed, 9, 60);
            s.ended(JobState::Complete, 39, 60);
            s.ended(JobState::Cancelled, 2, 60);
        },
        &["9 of the last 48 jobs that ended within an hour"],
        (|s| s.ended(JobState::Complete, 1, 60), Well),
        |_| (),
    ),
    row(
        ("rejected", Caution),
        |s| s.ended(JobState::Rejected, 2, 60),
        &["2 jobs rejected within an hour, the newest: ", "nodekeeper job ID"],
        (|s| s.ended(JobState::Complete, 2, 60), Well),
        |_| (),
    ),
    row(
        ("stopping", Wrong),
        |s| s.allocs = vec![told_to_stop(301)],
        &["on slot 0 was told to stop 5 min ago and still runs", "drain 0"],
        (|s| s.allocs = vec![told_to_stop(300)], Well),
        // Then the sign of silent nodes reports the node.
        |s| (s.nodes, s.allocs) = (vec![heard(0, 121)], vec![told_to_stop(301)]),
    ),
    row(
        ("handle", Wrong),
        |s| s.stuck = vec![marked(600)],
        &["slot 0 was told to destroy h 10 min ago and still has it", "nodekeeper history 0"],
        (|s| s.stuck = vec![marked(599)], Well),
        |_| (),
    ),
    row(
        ("starting", Caution),
        |s| s.allocs = vec![placed(601)],
        &["was placed on slot 0 10 min ago and has not started"],
        (|s| s.allocs = vec![placed(600), AllocSummary { phase: Some("pulling a".into()), ..placed(601) }], Well),
        |s| (s.nodes, s.allocs) = (vec![heard(0, 121)], vec![placed(601)]),
    ),
    row(
        ("offers", Wrong),
        |s| s.offers(|c| *part(c, CataloguePart::Types) = away(None)),
        &["the instance types cannot be read, and were never read: AccessDenied"],
        (|s| s.offers(|c| *part(c, CataloguePart::Types) = away(Some(NOW - 90_000))), Caution),
        |s| s.offers(|_| ()),
    ),
    // What is bought does not depend on what is known of the subnets.
    row(
        ("offers", Caution),
        |s| s.offers(|c| *part(c, CataloguePart::Subnets) = away(None)),
        &["the subnets cannot be read, and were never read: AccessDenied"],
        (|s| s.offers(|_| ()), Well),
        |s| s.offers(|_| ()),
    ),
    row(
        ("offers", Caution),
        |s| s.offers(|c| part(c, CataloguePart::SpotPrices).read_at = Some(at(NOW - 7200))),
        &["the spot prices were last read 2 h ago: clean-stale-records should read them every 1 h"],
        (|s| s.offers(|c| part(c, CataloguePart::SpotPrices).read_at = Some(at(NOW - 7199))), Well),
        |s| s.offers(|_| ()),
    ),
    row(
        ("offers", Caution),
        |s| s.offers(|c| *c = Catalogue::default()),
        &["the instance types were never read: clean-stale-records reads them in its next run"],
        (|s| s.offers(|_| ()), Well),
        |s| s.offers(|_| ()),
    ),
    row(
        ("offers", Wrong),
        |s| s.offers(|c| c.types.clear()),
        &["size any: no instance type has what it needs"],
        (|s| s.offers(|_| ()), Well),
        |s| s.offers(|_| ()),
    ),
    row(
        ("offers", Wrong),
        |s| s.offers(|c| c.subnets.clear()),
        &["EC2 does not know subnet subnet-1"],
        (|s| s.offers(|_| ()), Well),
        |s| s.offers(|_| ()),
    ),
    row(
        ("offers", Caution),
        |s| s.offers(|c| c.left_out = 3),
        &["3 instance types fit and are left out"],
        (|s| s.offers(|_| ()), Well),
        |s| s.offers(|_| ()),
    ),
    row(
        ("offers", Wrong),
        |s| s.quota(7),
        &["size large: m7a.2xlarge has 8 vCPUs, and the account may have 7 by", "ask for more in Service Quotas"],
        (|s| s.quota(8), Well),
        |s| s.quota(8),
    ),
    row(
        ("quota", Caution),
        |s| s.four_nodes_and_a_quota(8),
        &["instances 8 of 8 vCPUs are used by this cluster: ask for more"],
        (|s| s.four_nodes_and_a_quota(9), Well),
        |s| s.nodes.truncate(3),
    ),
    row(
        ("budget", Wrong),
        |s| s.month(100),
        &["the nodes of this month have cost $100.00, and budget.dollars_per_month is $100.00: nothing is launched"],
        (|s| s.month(99), Well),
        |s| s.month(0),
    ),
    row(
        ("demand", Caution),
        |s| s.explained.sets = vec![set(1)],
        &["demand set ci: 1 of 3 ready, 1 to come", "nodes.max"],
        (|s| s.explained.sets = vec![set(2)], Well),
        |_| (),
    ),
    row(
        ("waiting", Caution),
        |s| s.explained.waits(&job(0).summary, &[Reason::NodesMax { max: 6, there: 6 }]),
        &["waits: all 6 nodes that nodes.max allows are there"],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("idle", Well),
        |s| s.explained.stays(node_id(0), Reason::DrainedAndIdle {}),
        &["slot 0 stays: "],
        (|_| (), Well),
        |_| (),
    ),
    row(
        ("warning", Caution),
        |s| s.warned(&Subject::Cluster, 3600),
        &["cluster warned 1 h ago: i-9 has no node"],
        (|_| (), Well),
        |s| s.warned(&Subject::Cluster, 3601),
    ),
];

fn part(catalogue: &mut Catalogue, part: CataloguePart) -> &mut PartState {
    catalogue.parts.entry(part).or_default()
}

/// A part that EC2 does not give, and when it was last read.
fn away(read: Option<i64>) -> PartState {
    PartState { read_at: read.map(at), error: Some("AccessDenied".into()), tried_at: Some(at(NOW)) }
}

fn entry(key: &str, is_of_this_version: bool) -> UnreadableEntry {
    UnreadableEntry { key: key.into(), detail: "it is not".into(), is_of_this_version }
}

fn told_to_stop(ago: i64) -> AllocSummary {
    AllocSummary { desired: Desired::Stop, stopping_since_at: Some(at(NOW - ago)), ..placed(ago) }
}

fn marked(ago: i64) -> Handle {
    let (kind, told) = (model::HandleKind::Container, at(NOW - ago));
    Handle::new(node_id(0), "h".into(), kind, model::HandleState::Live, 0, told).marked(1, told)
}

fn placed(ago: i64) -> AllocSummary {
    model::Alloc::place(alloc_id(0), &job(0), &ready(0), at(NOW - ago)).unwrap().summary
}

fn set(coming: u32) -> SetNote {
    let why = vec![Reason::NodesMax { max: 6, there: 6 }];
    SetNote { name: "ci".into(), count: 3, ready: 1, coming, why: if coming == 2 { Vec::new() } else { why } }
}
