//! How long the decision takes: one plan of poll-and-scale, for fleets and queues of several sizes.
//!
//! `cargo bench --workspace --bench decision`. Compare the sizes as ratios within one run: machines are
//! noisy, and absolute times do not carry over.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use model::fixtures::{self, at};
use model::policy::{Policy, example_json};
use model::{Alloc, ClientStatus, Job, JobSpec};
use runtime::observation::Observation;
use std::hint::black_box;

fn empty(nodes: u32) -> Observation {
    let mut document = example_json();
    document["nodes"] = serde_json::json!({"max": nodes});
    Observation::empty(Policy::from_json(&document).unwrap(), 1, at(100))
}

/// Every node runs a job, and nothing waits.
fn busy(nodes: u32) -> Observation {
    let mut seen = empty(nodes);
    for n in 0..nodes {
        let (job, node) = (fixtures::job(n), fixtures::ready(n));
        let mut alloc = Alloc::place(fixtures::alloc_id(n), &job, &node, at(70)).unwrap();
        alloc.summary.client = ClientStatus::Running;
        seen.nodes.push(node.with_alloc(alloc.id(), at(70)).unwrap());
        seen.jobs.push(job.with_placed(&[alloc.id()]).unwrap().summary);
        seen.allocs.push(alloc.summary);
    }
    seen
}

/// Every node is idle, and as many jobs wait as there are nodes. Each job fits one node.
fn idle_with_queue(nodes: u32) -> Observation {
    let mut seen = empty(nodes);
    for n in 0..nodes {
        seen.nodes.push(fixtures::ready(n));
        let spec = JobSpec { command: vec!["true".into()], vcpus: 2, ..JobSpec::default() };
        seen.jobs.push(Job::submit(fixtures::job_id(n), spec, at(0)).unwrap().summary);
    }
    seen
}

fn decision(criterion: &mut Criterion) {
    for (name, state) in [("busy", busy as fn(u32) -> Observation), ("idle_with_queue", idle_with_queue)] {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(10);
        for nodes in [100, 500, 2000] {
            let seen = state(nodes);
            group.throughput(Throughput::Elements(u64::from(nodes)));
            group.bench_with_input(BenchmarkId::from_parameter(nodes), &seen, |bencher, seen| {
                bencher.iter(|| poll_and_scale::plan(black_box(seen), at(100)));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, decision);
criterion_main!(benches);
