//! The simulation, shortly: a few seeds of every kind, the seeds that ever found a bug, the
//! reference's chaos. Long runs are `cargo run --profile simulation --bin simulate`.

use nodekeeper_simulation::scenario::Scenario;
use nodekeeper_simulation::story;
use nodekeeper_simulation::world::{How, Outcome, simulate};

/// Seeds that found a bug: the seed, the hours of trouble, and what was wrong.
const KEPT: &[(u64, f64, &str)] = &[
    (5, 8.0, "a job of many kept dear nodes idle, and waited for a price that only they stood in the way of"),
    (61, 8.0, "dear idle nodes kept nodes.min from being reached below nodes.max_price_per_hour"),
    (75, 8.0, "nodes kept idle for nodes.min stood in the way of a dearer job for ever"),
];

fn hold(scenario: &Scenario, how: How) -> Outcome {
    let outcome = simulate(scenario.clone(), how);
    if let Some(broken) = &outcome.broken {
        panic!("seed {}: {}\n{}", scenario.seed, broken.rule, story::tell(scenario, how));
    }
    outcome
}

#[test]
fn every_invariant_holds_in_a_few_worlds() {
    for seed in 1..=8 {
        hold(&Scenario::of(seed, 1.0), How::default());
    }
}

#[test]
fn every_invariant_holds_on_the_real_store() {
    for seed in [2, 5] {
        hold(&Scenario::of(seed, 0.5), How { real_store: true, ..How::default() });
    }
}

#[test]
fn what_once_broke_holds() {
    for (seed, hours, what) in KEPT {
        println!("{what}");
        hold(&Scenario::of(*seed, *hours), How::default());
    }
}

#[test]
fn a_seed_is_one_history() {
    let how = How { telling: true, ..How::default() };
    let tell = |outcome: Outcome| -> Vec<String> {
        outcome.lines.iter().map(|l| format!("{} {} {}", l.at, l.who, l.what)).collect()
    };
    let [first, again] = [0, 1].map(|_| tell(simulate(Scenario::of(3, 0.5), how)));
    let differ = first.iter().zip(&again).find(|(a, b)| a != b);
    assert_eq!(differ, None);
    assert_eq!(first.len(), again.len());
    assert!(first.len() > 1000, "a history worth comparing: {}", first.len());
    let other = tell(simulate(Scenario::of(4, 0.5), how));
    assert_ne!(first, other);
}

#[test]
fn b01_the_reference_chaos_at_twice_its_rates_and_ten_times_its_size() {
    let outcome = hold(&Scenario::chaos(1), How::default());
    let count = |what: &str| outcome.happened.counts.get(what).copied().unwrap_or(0);
    assert_eq!(count("a job was submitted"), 2000);
    assert_eq!(count("a job became complete"), 2000, "all jobs end");
    for reached in ["an alloc became lost", "a node became down", "an instance was terminated"] {
        assert!(count(reached) > 0, "never happened: {reached}");
    }
}
