//! A short simulation: a few seeds of every kind, seeds that found a mistake before, and Arvados' chaos
//! (`Scenario::chaos`). Long runs: `cargo run --profile simulation --bin simulate`.

use model::{ActionName, Policy, Span};
use nodekeeper_simulation::compare::compare;
use nodekeeper_simulation::core::{Fault, Line, START};
use nodekeeper_simulation::happened::Happened;
use nodekeeper_simulation::replay::measured::Measured;
use nodekeeper_simulation::replay::{Replay, arrivals};
use nodekeeper_simulation::scenario::Scenario;
use nodekeeper_simulation::story;
use nodekeeper_simulation::world::{How, Outcome as WorldOutcome, simulate, simulate_beside};
use runtime::answer::ActionOutcome;
use std::time::Duration;

/// Seeds whose worlds find a known mistake. `tests/mutants.toml` has the mistake under the same name, with the options
/// of its worlds. When the simulation changes, a seed gives another world. Then `tests/mutants` tells which seed finds
/// the mistake.
const KEPT: &[(&str, u64)] = &[
    ("reserved_node_shut_down", 4),
    ("node_being_terminated_wanted_back", 2),
    ("dear_nodes_kept_in_the_way", 198),
    ("late_heartbeat_believed", 437),
    ("dear_nodes_in_the_way_of_the_minimum", 137),
    ("room_made_for_a_full_size", 888),
    ("late_run_drains_too_long", 50),
    ("a_taken_instance_is_forgotten", 9464),
    ("a_copy_that_cannot_be_read_is_copied", 9912),
    ("what_cannot_end_runs_for_ever", 9103),
    ("handles_of_an_unknown_node_judged", 611290006),
];

/// More such seeds, whose worlds take long.
const LONG: &[(&str, u64)] = &[
    ("acknowledged_end_without_seq", 13),
    ("stale_brake_dropped", 104),
    ("forgotten_node_keeps_its_rows", 13),
    ("minimum_in_the_way_of_work", 79),
    ("ordered_before_the_wipe_started_again", 5),
    ("unwanted_work_waited_for", 47),
    ("lease_shortened_by_a_later_answer", 4),
    ("terminated_one_known_by_id_believed_alive", 40),
    ("spent_ids_insisted_on", 18),
    ("sweep_puts_off_what_is_ending", 17),
    ("sweep_puts_off_what_has_ended", 11),
    ("shortage_lost_to_a_success", 3),
    ("regrouping_waits_for_what_does_not_wait", 46),
    ("success_told_by_its_time", 133),
    ("missing_while_it_is_stopped", 121),
    ("seq_counts_by_one", 73),
    ("launched_as_members_of_a_job_without_room", 20325),
    ("a_row_is_judged_by_an_older_record", 21007),
    ("bound_by_a_part_of_the_launch", 21064),
    ("gate_opened_over_an_end_that_was_not_taken", 960200056),
    ("leases_prove_what_an_unreadable_note_does_not", 12),
];

/// The world of this seed. `options` are those of `simulate`, as in `tests/mutants.toml`.
pub fn world(seed: u64, options: &str) -> Scenario {
    let flag = |name: &str| options.split_whitespace().any(|word| word == name);
    let words: Vec<&str> = options.split_whitespace().filter(|w| !["--small", "--batches"].contains(w)).collect();
    let given = |name: &str| words.chunks(2).filter(|pair| pair[0] == name).map(|pair| pair[1]).collect::<Vec<_>>();
    let hours = given("--hours").first().map_or(4.0, |h| h.parse().unwrap());
    let mut scenario = if flag("--small") { Scenario::small(seed, hours) } else { Scenario::of(seed, hours) };
    if flag("--batches") {
        scenario.set_batches();
    }
    for fault in given("--fault") {
        let (name, rng) = fault.split_once('=').unwrap();
        let fault = Fault::ALL.iter().find(|f| format!("{f:?}") == name).unwrap();
        scenario.set_chance(*fault, rng.parse().unwrap());
    }
    for knob in given("--knob") {
        let (knob, number) = knob.split_once('=').unwrap();
        scenario.set_number(knob, number.parse().unwrap());
    }
    for rows in given("--queue-rows") {
        scenario.set_queue_rows(rows.parse().unwrap());
    }
    scenario
}

fn hold(scenario: &Scenario, how: How) -> WorldOutcome {
    let outcome = simulate(scenario.clone(), how);
    if let Some(broken) = &outcome.broken {
        panic!("seed {}: {}\n{}", scenario.seed, broken.rule, story::tell(scenario, how));
    }
    outcome
}

/// Tests of worlds of one kind: a few seeds in each run, more at night. Each item of `happens` is a count, a fault or
/// an action that must occur in these worlds.
macro_rules! worlds {
    ($($(#[$doc:meta])* $kind:ident: $seeds:expr, $options:expr, $happens:expr;)*) => {$(
        $(#[$doc])*
        mod $kind {
            #[test]
            fn every_invariant_holds() {
                super::hold_worlds($seeds, $options, &$happens);
            }
            #[test]
            fn nightly_every_invariant_holds_in_more() {
                super::hold_worlds(12..=30, $options, &$happens);
            }
        }
    )*};
}

worlds! {
    usual: [1, 2, 3], "--hours 1", [];
    small: [1, 2, 3], "--small --hours 1", [];
    types_and_zones: [1, 2, 6], "--hours 1 --batches --fault SeveralTypes=1 --fault ZoneGone=0.02 --fault SubnetFull=0.1",
        ["ZoneGone", "read_offers"];
    agents_take_no_work: [1, 2, 3], "--small --hours 1 --fault AgentRefuses=0.05", ["AgentRefuses"];
    machines_start_nothing: [1, 2, 3], "--small --hours 1 --fault CannotStart=0.05", ["CannotStart"];
    gpus: [9, 23, 29], "--small --hours 1 --fault GpusWanted=0.6 --fault GpuSick=0.2 --fault AgentCrashes=0.02",
        ["an alloc got GPUs beside another one", "an alloc lacked GPUs"];
    gpus_come_late: [7, 9, 11], "--small --hours 1 --fault GpusWanted=0.6 --fault GpusLate=0.7 --fault CutOff=0.02",
        ["GpusLate", "a node waited for its GPUs"];
    reservations: [1, 2, 3], "--small --hours 2 --batches --fault Reservations=1 --fault GpusWanted=0.3",
        ["a launch was in a capacity reservation", "drain"];
    a_part_of_the_queue_is_read: [1, 2, 3], "--small --hours 1 --queue-rows 4", [];
    rows_unreadable: [1, 2, 3], "--small --hours 1 --fault RowUnreadable=0.3", ["RowUnreadable"];
    copies_leave: [9, 10, 14], "--hours 2 --fault CutOff=0.05 --fault CopyLeaves=0.3",
        ["CopyLeaves", "a copy stayed because the nodes of others go"];
    another_scheduler_demands: [1, 2, 12], "--small --hours 1 --fault ForeignWork=0.4 --fault ControllerWants=0.5", ["ControllerWants"];
    arrays: [1, 2, 3], "--small --hours 1 --fault ArrayArrives=0.3", ["an array was submitted", "an array had room", "an array was full"];
    put_off: [1, 2, 3], "--small --hours 2 --fault JobPutOff=0.4 --fault OperatorPauses=0.5 --fault JobFollows=0.2 --fault ArrayArrives=0.2",
        ["a job was put off", "a job was paused"];
    keys: [1, 2, 3], "--small --hours 2 --fault KeyGivenAgain=0.6 --fault DbAnswerLost=0.1 --fault DbSentTwice=0.05 --fault DbContended=0.1",
        ["a job was submitted with a key", "a program has its jobs", "a program was killed while it submitted"];
    packs: [1, 2, 13], "--small --hours 2 --fault PackArrives=0.5",
        ["a pack was submitted", "a pack was complete", "a pack went on with what was left"];
    members_in_parts: [1, 2, 21], "--small --hours 2 --fault MembersInParts=0.3 --fault Killed=0.03",
        ["a part of a job was placed", "a placing was cut short"];
    roles: [1, 2, 15], "--small --hours 1 --fault RoleWanted=0.6", ["credentials were given", "credentials were refused"];
    one_handle_at_a_time: [1, 2, 3], "--small --hours 1 --knob sweep.max_in_flight=1 --fault StrayHandle=0.3 --fault HandleSticks=0.3",
        ["a node had more to destroy than it may at once"];
    /// What a restore excuses ends an hour after it. Then every invariant holds again for earlier work too.
    restores: [1, 2, 3], "--small --hours 2 --fault Restored=0.03", ["Restored"];
    batches: [1, 2, 3], "--hours 1 --batches", [];
    small_batches: [1, 2, 3], "--small --hours 1 --batches", [];
}

fn hold_worlds(seeds: impl IntoIterator<Item = u64>, options: &str, happens: &[&str]) {
    let mut happened = Happened::default();
    for seed in seeds {
        happened.add(&hold(&world(seed, options), How::default()).happened);
    }
    for what in happens {
        let fault = Fault::ALL.iter().find(|f| format!("{f:?}") == *what).map(|f| happened.faults[*f as usize]);
        let done = |(_, action, outcome): &(&str, ActionName, ActionOutcome)| {
            action.as_str() == *what && *outcome == ActionOutcome::Done
        };
        let actions = happened.did.iter().filter(|(key, _)| done(key)).map(|(_, n)| n);
        let times = fault.unwrap_or(0) + actions.sum::<u64>() + happened.counts.get(*what).copied().unwrap_or(0);
        assert!(times > 0, "{what} never happened: {:?}", happened.counts);
    }
}

#[test]
fn a_panic_in_any_task_of_a_world_fails_this_world() {
    let panics = async {
        tokio::time::sleep(Duration::from_secs(90)).await;
        drop(tokio::spawn(async { panic!("nobody waits for this task") }));
    };
    let scenario = Scenario::small(3, 1.0);
    let broken = simulate_beside(scenario.clone(), How::default(), panics).broken.unwrap();
    assert_eq!(broken.rule, "invariant_nothing_panics");
    assert!(broken.what.starts_with("seed 3: ") && broken.what.contains("nobody waits for this task"), "{broken:?}");
    assert!(broken.what.contains("simulation.rs"), "it names the place: {broken:?}");
    // The panic does not carry over to the next world on the same thread.
    hold(&scenario, How::default());
}

/// heartbeat-ingest answers nobody, for up to an hour each time: no node goes, none is bought, and no work is lost.
#[test]
fn an_outage_of_our_own_costs_a_small_fleet_nothing() {
    for nodes in [1, 2, 5, 10_u32] {
        let mut scenario = Scenario::small(u64::from(nodes), 4.0);
        scenario.chances.fill(0.0);
        // Nobody tells nodekeeper to believe the silence.
        scenario.releases = false;
        scenario.set_chance(Fault::IngestDown, 0.004 / f64::from(nodes));
        let usual = Policy::from_json(&model::policy::example_json()).unwrap().to_json();
        for section in ["heartbeat", "boot", "stale", "shutdown"] {
            scenario.policy[section] = usual[section].clone();
        }
        // One size without a maximum, so that no limit holds back a purchase.
        let mut small = scenario.policy["size"].as_array().unwrap()[0].clone();
        small.as_object_mut().unwrap().remove("max");
        scenario.policy["size"] = serde_json::json!([small]);
        scenario.policy["nodes"] = serde_json::json!({"max": nodes, "min": nodes});
        scenario.set_number("heartbeat.blackout_s", 7200);
        let outcome = hold(&scenario, How { telling: true, ..How::default() });
        let outages = outcome.lines.iter().filter(|line| line.what.starts_with("heartbeat-ingest answers nobody"));
        assert!(outages.count() > 0, "{nodes} nodes: there was no outage");
        let is_early = |line: &&Line| line.at < START + Span::from_s(4 * 3600);
        let launched =
            outcome.lines.iter().filter(is_early).filter(|l| l.who == "ec2" && l.what.contains(" launched for "));
        assert_eq!(launched.count(), nodes as usize, "bought");
        let count = |what: &str| outcome.happened.counts.get(what).copied().unwrap_or(0);
        for what in ["a node became disconnected", "a node became down", "an alloc became unknown"] {
            assert_eq!(count(what), 0, "{nodes} nodes: {what}");
        }
        // What an operator drains is moved.
        let lost = |line: &&Line| line.what.contains("→ \"lost\"") && !line.what.contains("\"moved\"");
        assert_eq!(outcome.lines.iter().filter(lost).map(|line| &line.what).next(), None, "{nodes} nodes");
    }
}

#[test]
fn a_kill_counts_when_something_dies() {
    let mut scenario = Scenario::small(1, 1.0);
    scenario.chances.fill(0.0);
    let calm = hold(&scenario, How::default());
    assert_eq!(calm.happened.kills(), 0);
    assert_eq!(calm.with_faults.node_hours, 0.0, "a world without faults");
    assert!(calm.without_faults.node_hours > 0.0);
    scenario.set_chance(Fault::Killed, 0.5);
    let stormy = hold(&scenario, How { telling: true, ..How::default() });
    let told = stormy.lines.iter().filter(|line| line.what == "killed").count() as u64;
    assert!(told > 10, "{told}");
    assert_eq!(stormy.happened.kills(), told, "no agent is killed here");
    assert_eq!(stormy.happened.faults[Fault::Killed as usize], told, "what was only drawn does not count");
    assert!(stormy.with_faults.node_hours > 0.0 && stormy.without_faults.node_hours > 0.0);
}

#[test]
fn nightly_every_invariant_holds_in_a_large_fleet() {
    for (seed, batches) in [(1, true), (2, false)] {
        let mut scenario = Scenario::large(seed, 0.5, 1000, 1000);
        if batches {
            scenario.set_batches();
        }
        hold(&scenario, How::default());
    }
}

#[test]
fn a_burst_leaves_nothing_behind_within_its_hour() {
    for seed in 1..=4 {
        hold(&Scenario::burst(seed, 60), How::default());
    }
}

/// The fleet grows from no node to 1,000 under the limits that EC2 publishes. Measured are the time and the calls.
#[test]
fn nightly_a_thousand_nodes_are_asked_for_within_seconds() {
    // Ten calls are the least. Each run that sees a part of the burst makes one more.
    for (case, batches, changes, least, most_s, most_calls) in [
        ("one call a node", false, &[][..], 300, 600.0, 1000),
        ("batches", true, &[], 1000, 15.0, 20),
        ("a third of the batches is cut short", true, &[(Fault::BatchCutShort, 0.33)], 600, 900.0, 400),
        ("a fifth of the runs is killed", true, &[(Fault::Killed, 0.2)], 1000, 300.0, 60),
    ] {
        let mut scenario = Scenario::burst(1, 1000);
        if batches {
            scenario.set_batches();
            scenario.set_chance(Fault::BatchCutShort, 0.0);
        }
        for (fault, rng) in changes {
            scenario.set_chance(*fault, *rng);
        }
        let outcome = hold(&scenario, How { telling: true, ..How::default() });
        let launched = outcome.lines.iter().filter(|l| l.who == "ec2" && l.what.contains(" launched for "));
        let at: Vec<f64> = launched.map(|l| l.at.since(START).as_s()).collect();
        let (first, last) = (at[0], at[at.len().min(1000) - 1]);
        let calls = outcome.happened.counts.get("a launch call was made").copied().unwrap_or(0);
        println!("{case}: {} instances, the first 1,000 within {:.1} s, {calls} calls", at.len(), last - first);
        // If the launches take long, some nodes are free again before the last one is launched, so fewer are needed.
        assert!(at.len() >= least && last - first <= most_s, "{case}: {} in {} s", at.len(), last - first);
        assert!(calls <= most_calls, "{case}: {calls}");
    }
}

#[test]
fn every_invariant_holds_on_the_real_store() {
    for seed in [2, 5] {
        hold(&Scenario::of(seed, 0.5), How { real_store: true, ..How::default() });
    }
}

/// Worlds of 24 hours with the usual settings. In each, an invariant once broke because it was too strict. It did not
/// allow for a price of a size when only a few launches try the other sizes, for handle rows that change while their
/// record is cleaned, or for an alloc whose first placement a restore forgot.
const WORLDS_OF_A_DAY: &[u64] =
    &[9700000007, 9700000026, 9700000144, 9700000158, 9700000159, 9700000172, 9800000134, 9800000162];

#[test]
fn nightly_worlds_of_a_day_that_broke_an_invariant_hold_now() {
    for seed in WORLDS_OF_A_DAY {
        hold(&world(*seed, "--hours 24"), How::default());
    }
    // A run that took its own write for another's once counted as one that forgets a refusal.
    hold(&world(52041, "--hours 12"), How::default());
    // Rows that cannot be read: the record of a witness or of a launch under way, an alloc of a life that is over, and the job
    // of an alloc that its node no longer has.
    hold(&world(15, "--small --hours 4 --fault RowUnreadable=0.6 --fault LaunchSlow=0.6"), How::default());
    for seed in [772001, 772028] {
        let options = "--small --hours 24 --fault RowUnreadable=0.05 --fault CopyLeaves=0.2 --fault GpusLate=0.2";
        hold(&world(seed, options), How::default());
    }
    let options = "--small --hours 6 --fault RowUnreadable=0.2 --fault CopyLeaves=0.3 --fault GpusLate=0.3 \
                   --fault GpusWanted=0.3 --fault CutOff=0.02";
    hold(&world(5013, options), How::default());
    hold(&world(880003, "--small --hours 24 --fault RowUnreadable=0.05"), How::default());
    // This world once stood still for ever.
    hold(&world(9600000060, "--small --hours 24 --fault JobFollows=0.2 --fault ArrayArrives=0.2"), How::default());
}

#[test]
fn seeds_that_found_a_mistake_hold_now() {
    hold_kept(KEPT);
}

#[test]
fn nightly_seeds_that_found_a_mistake_and_take_long_hold_now() {
    hold_kept(LONG);
}

fn hold_kept(kept: &[(&str, u64)]) {
    let list: toml::Value = toml::from_str(include_str!("../mutants.toml")).unwrap();
    let mistakes = list["mutant"].as_array().unwrap();
    for (name, seed) in kept {
        println!("{name}");
        let mistake = mistakes.iter().find(|m| m["name"].as_str() == Some(name));
        let worlds = mistake.unwrap_or_else(|| panic!("{name} is not in the list")).get("worlds");
        hold(&world(*seed, worlds.and_then(toml::Value::as_str).unwrap_or_default()), How::default());
    }
}

#[test]
fn one_seed_gives_one_history() {
    let how = How { telling: true, ..How::default() };
    let tell = |outcome: WorldOutcome| -> Vec<String> {
        outcome.lines.iter().map(|l| format!("{} {} {}", l.at, l.who, l.what)).collect()
    };
    let [first, again] = [0, 1].map(|_| tell(simulate(Scenario::of(5, 1.0), how)));
    let differ = first.iter().zip(&again).find(|(a, b)| a != b);
    assert_eq!(differ, None);
    assert_eq!(first.len(), again.len());
    assert!(first.len() > 1000, "a history worth comparing: {}", first.len());
    let other = tell(simulate(Scenario::of(4, 0.5), how));
    assert_ne!(first, other);
}

/// The results of these policies with these arrivals, in the world of this seed.
fn compared(seed: u64, policies: &[(&str, &str)], arrivals: &str) -> Vec<Measured> {
    let policies: Vec<_> = policies.iter().map(|(name, toml)| ((*name).to_owned(), (*toml).to_owned())).collect();
    let replay = Replay { arrivals: arrivals::read(arrivals).unwrap() };
    let measured = compare(seed, &policies, replay, 2).unwrap();
    assert_eq!(
        measured.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        policies.iter().map(|(n, _)| n).collect::<Vec<_>>()
    );
    measured.into_iter().map(|(_, measured)| measured).collect()
}

/// Both types have the same room. Only the price differs.
#[test]
fn the_policy_with_the_cheaper_types_is_cheaper_and_the_same_arrivals_give_the_same_numbers() {
    let policy = |types: &str| {
        format!(
            "[nodes]\nmax = 10\n[launch]\ntemplate = \"lt-0123456789abcdef0\"\nsubnets = [\"subnet-0aaa\", \"subnet-0bbb\"]\n\
             [[size]]\nname = \"any\"\ninstance_types = [{types}]\n"
        )
    };
    let (dear, cheap) = (policy("\"m7a.2xlarge\""), policy("\"m7a.2xlarge\", \"m7i.2xlarge\""));
    let arrivals = "{\"at_s\": 0, \"seconds\": 900, \"vcpus\": 4, \"count\": 6}\n\
                    {\"at_s\": 1800, \"seconds\": 60, \"vcpus\": 8, \"nodes\": 3, \"exclusive\": true}\n";
    let policies = [("dear", dear.as_str()), ("cheap", cheap.as_str())];
    let first = compared(1, &policies, arrivals);
    for measured in &first {
        assert_eq!((measured.submitted, measured.done, measured.not_done), (7, 7, 0));
        assert_eq!(measured.waited.len(), 7);
        assert!(measured.node_hours > 0.75 && measured.most_nodes == 3, "{measured:?}");
    }
    let [dear, cheap] = &first[..] else { panic!("{first:?}") };
    let (of_dear, of_cheap) = (dear.usd / dear.node_hours, cheap.usd / cheap.node_hours);
    assert!((of_dear - 0.465).abs() < 1e-6 && (of_cheap - 0.4).abs() < 1e-6, "{of_dear} {of_cheap}");
    assert!(cheap.usd < dear.usd * 0.9, "{} {}", cheap.usd, dear.usd);
    assert_eq!(compared(1, &policies, arrivals), first);
}

/// A day of twenty people: three floods, some who work all day with short jobs, some with a few long ones, and two with a deadline.
fn day_of_twenty() -> String {
    let rng = model::Rng::seeded(20);
    let mut lines = Vec::new();
    let mut add = |person: usize, hour: f64, minutes: f64, count: u32| {
        let (at_s, seconds) = ((hour * 3600.0) as u64, (minutes * 60.0) as u64);
        lines.push(format!(
            "{{\"at_s\": {at_s}, \"seconds\": {seconds}, \"count\": {count}, \"by\": \"p{person:02}\"}}"
        ));
    };
    // At the head of the day each of three people asks for an hour and a half of the whole cluster.
    (0..3).for_each(|person| add(person, 0.2 * person as f64, 20.0, 160));
    for person in 3..12 {
        (0..16).for_each(|n| add(person, 0.5 * f64::from(n) + rng.between(0.0, 0.4), rng.between(2.0, 10.0), 1));
    }
    for person in 12..18 {
        (0..2).for_each(|n| add(person, 3.0 * f64::from(n) + rng.between(0.0, 2.0), rng.between(60.0, 120.0), 2));
    }
    (18..20).for_each(|person| add(person, 5.0, 15.0, 40));
    lines.join("\n")
}

/// How long the jobs of each person waited, without shares and with a share for each.
#[test]
fn nightly_a_day_of_twenty_people_is_one_in_which_no_flood_makes_others_wait_for_hours() {
    let policy = "[nodes]\nmax = 4\n[launch]\ntemplate = \"lt-0123456789abcdef0\"\nsubnets = [\"subnet-0aaa\", \"subnet-0bbb\"]\n\
                  [[size]]\nname = \"any\"\ninstance_types = [\"m7a.2xlarge\", \"m7i.2xlarge\"]\n";
    let shares: String = (0..20).map(|n| format!("[[share]]\nname = \"p{n:02}\"\nmembers = [\"p{n:02}\"]\n")).collect();
    let with = format!("{policy}{shares}");
    let measured = compared(1, &[("without", policy), ("with", &with)], &day_of_twenty());
    let [without, with] = &measured[..] else { panic!("{measured:?}") };
    assert_eq!((without.done, with.done), (without.submitted, with.submitted));
    let median = |of: &Measured, person: &str| of.waited_of[person][of.waited_of[person].len() / 2].as_s() / 60.0;
    let longest = |of: &Measured, person: &str| of.waited_of[person].last().unwrap().as_s() / 60.0;
    println!("person  jobs  without: median, longest (min)  with: median, longest (min)");
    for (person, waits) in &without.waited_of {
        println!(
            "{person}  {:4}  {:6.0} {:6.0}  {:6.0} {:6.0}",
            waits.len(),
            median(without, person),
            longest(without, person),
            median(with, person),
            longest(with, person)
        );
    }
    let others = (3..20).map(|n| format!("p{n:02}"));
    for person in others {
        assert!(longest(with, &person) < 60.0, "{person} waited for {:.0} min", longest(with, &person));
        assert!(
            median(without, &person) > 60.0 || person.as_str() >= "p12",
            "{person} has waited for hours without shares"
        );
    }
}

/// How often a start is as it was foretold, on five days of made-up jobs that need new nodes. Some start sooner, where other work ends.
#[test]
fn nightly_most_starts_are_as_they_were_foretold() {
    let policy = "[nodes]\nmax = 40\n[launch]\ntemplate = \"lt-0123456789abcdef0\"\nsubnets = [\"subnet-0aaa\", \"subnet-0bbb\"]\n\
                  [[size]]\nname = \"any\"\ninstance_types = [\"m7a.2xlarge\", \"m7i.2xlarge\"]\n";
    for seed in 1..=5 {
        let rng = model::Rng::seeded(seed);
        let line = |n: u64| {
            let (at_s, seconds) = (n * 600 + rng.between(0.0, 600.0) as u64, rng.between(60.0, 1200.0) as u64);
            let (count, vcpus) = (1 + rng.between(0.0, 4.0) as u64, 1 << rng.between(1.0, 4.0) as u32);
            format!("{{\"at_s\": {at_s}, \"seconds\": {seconds}, \"count\": {count}, \"vcpus\": {vcpus}}}")
        };
        let lines: Vec<String> = (0..144).map(line).collect();
        let [measured] = &compared(seed, &[("now", policy)], &lines.join("\n"))[..] else { panic!("one policy") };
        let (right, late) = (measured.foretold(), measured.later(0.95).unwrap());
        println!(
            "seed {seed}: {} starts foretold, {:.0} % right, 95 % at most {late} later",
            measured.later.len(),
            100.0 * right
        );
        assert!(measured.later.len() > 50 && right > 0.6 && late < Span::from_s(30), "{right} {late}");
    }
}

#[test]
fn the_policies_of_the_examples_run_jobs_and_those_with_spot_fall_back() {
    let policies = [
        ("one-type", include_str!("../../examples/policies/one-type.toml")),
        ("several-types", include_str!("../../examples/policies/several-types.toml")),
        ("spot", include_str!("../../examples/policies/spot.toml")),
        ("spot-kept", include_str!("../../examples/policies/spot-kept.toml")),
    ];
    let mut usd = [0.0; 4];
    // On the spot market EC2 chooses among the types of a call, so one world alone says little about prices.
    for seed in 1..=3 {
        let measured = compared(seed, &policies, "{\"at_s\": 600, \"seconds\": 300, \"vcpus\": 2, \"count\": 3}");
        for (((name, _), measured), sum) in policies.iter().zip(&measured).zip(&mut usd) {
            assert_eq!((measured.done, measured.not_done), (3, 0), "{name}");
            *sum += measured.usd;
        }
        // The policy keeps four nodes.
        let [.., spot, kept] = &measured[..] else { panic!("{measured:?}") };
        assert!(kept.most_nodes > spot.most_nodes && kept.waited(1.0) < spot.waited(0.5), "{spot:?} {kept:?}");
    }
    assert!(usd[2] < usd[1] && usd[1] < usd[0], "{usd:?}");
}

#[test]
fn the_summary_names_what_never_happened_and_what_was_only_tried() {
    let mut happened = Happened::default();
    happened.did.insert(("poll-and-scale", ActionName::Requeue, ActionOutcome::Conflict), 3);
    happened.did.insert(("poll-and-scale", ActionName::Place, ActionOutcome::Conflict), 1);
    happened.did.insert(("poll-and-scale", ActionName::Place, ActionOutcome::Done), 2);
    happened.did.insert(("poll-and-scale", ActionName::Warn, ActionOutcome::Reported), 4);
    let table = happened.table();
    let line = |what: &str| table.lines().find(|l| l.split_whitespace().any(|word| word == what)).unwrap().trim();
    assert!(line("requeue").ends_with("Conflict 3, never done"), "{table}");
    assert!(line("purge").ends_with(" never done"), "{table}");
    assert!(line("place").contains("Done 2") && !line("place").contains("never"), "{table}");
    assert!(line("warn").ends_with("Reported 4"), "{table}");
    assert!(line("CutOff").starts_with("0 "), "{table}");
    assert!(table.lines().any(|l| l.trim() == "0  a brake was released"), "{table}");
}

#[test]
fn nightly_b01_the_reference_chaos_at_twice_its_rates_and_ten_times_its_size() {
    let outcome = hold(&Scenario::chaos(1), How::default());
    let count = |what: &str| outcome.happened.counts.get(what).copied().unwrap_or(0);
    assert_eq!(count("a job was submitted"), 2000);
    assert_eq!(count("a job became complete"), 2000, "all jobs end");
    for reached in ["an alloc became lost", "a node became down", "an instance was terminated"] {
        assert!(count(reached) > 0, "never happened: {reached}");
    }
}
