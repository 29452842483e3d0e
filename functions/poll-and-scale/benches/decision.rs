//! How long the decision takes: one plan of poll-and-scale, for fleets and queues of several sizes and shapes.
//!
//! `cargo bench --workspace --bench decision`. Machines are noisy: compare the sizes within one run, by the exponent of
//! the growth.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout, reason = "a benchmark may fail loudly")]

#[path = "../../../tests/growth.rs"]
mod growth;

use model::fixtures::{self, at};
use model::policy::example_json;
use model::{Alloc, Capacity, Catalogue, ClientStatus, Job, JobSpec, NodeRecord, NodeState, Policy, Subnet};
use runtime::observation::Observation;
use serde_json::json;

const SIZES: [u32; 5] = [100, 1_000, 10_000, 30_000, 100_000];

fn empty(nodes: u32) -> Observation {
    let mut document = example_json();
    document["nodes"] = json!({"max": nodes.min(100_000)});
    Observation::empty(Policy::from_json(&document).unwrap(), 1, at(100))
}

fn idle(nodes: u32) -> Observation {
    let mut seen = empty(nodes);
    seen.nodes.extend((0..nodes).map(fixtures::ready));
    seen.instances = seen.nodes.iter().map(|n| fixtures::running(&format!("i-{}", n.slot), n)).collect();
    seen.instances.sort_by(|a, b| a.instance_id.cmp(&b.instance_id));
    seen
}

/// Puts an alloc of one vCPU in each of these states on every node.
fn with_allocs(mut seen: Observation, clients: &[ClientStatus]) -> Observation {
    let mut next = 0;
    for record in &mut seen.nodes {
        for client in clients {
            let job = Job::submit(fixtures::job_id(next), spec(), at(0)).unwrap();
            let mut alloc = Alloc::place(fixtures::alloc_id(next), &job, record, at(70)).unwrap();
            alloc.summary.client = *client;
            if *client == ClientStatus::Unknown {
                (alloc.summary.unknown_since_at, alloc.summary.failure_policy.replace) = (Some(at(80)), true);
            }
            *record = record.with_alloc(alloc.id(), at(70)).unwrap();
            seen.jobs.push(job.with_placed(&[alloc.id()]).unwrap().summary);
            seen.allocs.push(alloc.summary);
            next += 1;
        }
    }
    seen
}

fn spec() -> JobSpec {
    JobSpec::running(["true"])
}

/// Adds queued jobs, each changed by its number.
fn queue(mut seen: Observation, jobs: u32, change: impl Fn(u32, &mut JobSpec)) -> Observation {
    let first = u32::try_from(seen.jobs.len()).unwrap();
    for n in first..first + jobs {
        let mut spec = spec();
        change(n, &mut spec);
        seen.jobs.push(Job::submit(fixtures::job_id(n), spec, at(0)).unwrap().summary);
    }
    seen.jobs.sort_by_key(|j| (std::cmp::Reverse(j.priority), j.job_id));
    seen
}

/// Nodes that boot, in the order of their slots.
fn booting(nodes: u32) -> Observation {
    let mut seen = empty(nodes);
    seen.nodes.extend((0..nodes).map(fixtures::bound));
    seen
}

/// Ready nodes on which different jobs have left different room.
fn ragged(nodes: u32) -> Observation {
    let mut seen = idle(nodes);
    for (n, record) in (0_u32..).zip(&mut seen.nodes) {
        let NodeState::InUse(node) = &mut record.state else { continue };
        node.life.offering.capacity =
            Capacity { vcpus: 2 + n % 7, memory_mib: u64::from(1000 + 977 * (n % 61)), scratch_gib: 0, gpus: 0 };
    }
    seen
}

/// No node, and a size of 300 instance types in six zones with a subnet each, spot with a fallback.
fn many_types(nodes: u32) -> Observation {
    let zones = ["a", "b", "c", "d", "e", "f"];
    let mut document = example_json();
    document["nodes"] = json!({"max": nodes.min(100_000)});
    document["launch"]["subnets"] = zones.map(|zone| format!("subnet-{zone}")).as_slice().into();
    document["size"] = json!([{"name": "any", "instance_types": ["*"], "market": "spot", "fallback": "on_demand"}]);
    let policy = Policy::from_json(&document).unwrap();
    let prices = |n: u32| zones.map(|zone| (zone, u64::from(30_000 + n * 100)));
    let types = (0..300).map(|n| (format!("m{n}.large"), fixtures::offered(2 + n / 50, 8, &prices(n))));
    let subnets = zones.map(|zone| (format!("subnet-{zone}"), Subnet { zone: zone.to_owned(), free: 4000 }));
    let catalogue = Catalogue { types: types.collect(), subnets: subnets.into(), ..Catalogue::default() };
    Observation::empty(policy.with_catalogue(catalogue), 1, at(100))
}

type Prepare = fn(u32) -> Observation;

/// The shapes of a fleet and a queue. Unless the name says otherwise, there are as many jobs as nodes.
const SHAPES: [(&str, Prepare); 15] = [
    ("busy, no queue", |n| with_allocs(idle(n), &[ClientStatus::Running])),
    ("idle, no queue", idle),
    ("all fit, a node each", |n| queue(idle(n), n, |_, spec| spec.needs.vcpus = 2)),
    ("all fit, two on a node", |n| queue(idle(n), n, |_, _| {})),
    ("all fit booting nodes", |n| queue(booting(n), n, |_, _| {})),
    ("nothing is free", |n| queue(with_allocs(idle(n), &[ClientStatus::Running; 2]), n, |_, _| {})),
    ("nothing fits, all differ", |n| {
        queue(with_allocs(idle(n), &[ClientStatus::Running]), n, |n, spec| {
            (spec.needs.vcpus, spec.needs.memory_mib) = (2, u64::from(n % 4000));
        })
    }),
    ("no node, a node each", |n| queue(empty(n), n, |_, spec| spec.needs.vcpus = 2)),
    ("no node, a node each, 300 types", |n| queue(many_types(n), n, |_, spec| spec.needs.vcpus = 2)),
    ("no node, all differ", |n| {
        queue(empty(n), n, |n, spec| (spec.needs.vcpus, spec.needs.memory_mib) = (1 + n % 2, u64::from(n % 3900)))
    }),
    ("many priorities", |n| queue(idle(n), n, |n, spec| (spec.priority, spec.needs.vcpus) = (n % 1000, 1 + n % 2))),
    ("ragged room, all differ", |n| {
        queue(ragged(n), n, |n, spec| {
            (spec.needs.vcpus, spec.needs.memory_mib) = (1 + n % 5, u64::from(n * 31 % 50_000))
        })
    }),
    ("members at once", |n| queue(idle(n), n, |_, spec| spec.needs.nodes = 20)),
    ("many unknown", |n| with_allocs(idle(n), &[ClientStatus::Unknown])),
    ("exclusive, half are in use", |n| {
        let mut seen = idle(n);
        let half: Vec<NodeRecord> = seen.nodes.split_off(n as usize / 2);
        seen = with_allocs(seen, &[ClientStatus::Running]);
        seen.nodes.extend(half);
        queue(seen, n, |_, spec| spec.needs.exclusive = true)
    }),
];

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for (name, prepare) in SHAPES {
        if only.is_empty() || only.iter().any(|word| name.contains(word.as_str())) {
            growth::measure(name, &SIZES, prepare, |seen| poll_and_scale::plan(seen, at(100)));
        }
    }
    let busy = || with_allocs(idle(100), &[ClientStatus::Running; 2]);
    type Waiting<'a> = &'a dyn Fn(u32) -> Observation;
    let waiting: [(&str, Waiting<'_>); 2] = [
        ("100 busy nodes, jobs wait", &|n| queue(busy(), n, |_, _| {})),
        ("100 busy nodes, jobs of 50 shares wait", &|n| {
            let mut document = example_json();
            document["share"] = (0..50).map(|n| json!({"name": format!("s{n}"), "members": ["*"]})).collect();
            let mut seen = queue(busy(), n, |n, spec| spec.share = Some(format!("s{}", n % 50)));
            seen.policy = Policy::from_json(&document).unwrap();
            seen
        }),
    ];
    for (name, prepare) in waiting {
        if only.is_empty() || only.iter().any(|word| name.contains(word.as_str())) {
            growth::measure(name, &[10_000, 100_000, 1_000_000], prepare, |seen| poll_and_scale::plan(seen, at(100)));
        }
    }
}
