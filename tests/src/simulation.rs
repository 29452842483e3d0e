//! The simulation, shortly: a few seeds of every kind, the seeds that ever found a bug, the
//! reference's chaos. Long runs are `cargo run --profile simulation --bin simulate`.

use nodekeeper_simulation::core::Fault;
use nodekeeper_simulation::scenario::Scenario;
use nodekeeper_simulation::story;
use nodekeeper_simulation::world::{How, Outcome, simulate};

/// A world that finds a bug when its repair is undone (by the mistake of this name in
/// `tests/mutants.toml`). A seed means another world whenever the worlds are extended: then the
/// mistake tells which one finds it now.
struct Kept {
    mistake: &'static str,
    seed: u64,
    hours: f64,
    faults: &'static [(Fault, f64)],
}

const KEPT: &[Kept] = &[
    Kept {
        mistake: "new_node_taken_for_a_gone_one",
        seed: 59,
        hours: 4.0,
        faults: &[(Fault::IndexLags, 0.2), (Fault::StaleScan, 0.2), (Fault::Hangs, 0.05)],
    },
    Kept { mistake: "seq_counts_by_one", seed: 102, hours: 4.0, faults: &[(Fault::Restored, 0.02)] },
    Kept { mistake: "acknowledged_end_without_seq", seed: 1, hours: 4.0, faults: &[(Fault::Restored, 0.02)] },
    Kept { mistake: "reserved_node_shut_down", seed: 4, hours: 3.0, faults: &[] },
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
    let mistakes = include_str!("../mutants.toml");
    for Kept { mistake, seed, hours, faults } in KEPT {
        println!("{mistake}");
        assert!(mistakes.contains(&format!("name = \"{mistake}\"\n")), "{mistake} is not in the list");
        let mut scenario = Scenario::of(*seed, *hours);
        for (fault, chance) in *faults {
            scenario.set_chance(*fault, *chance);
        }
        hold(&scenario, How::default());
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
