//! `simulate`: runs many worlds, one for each seed, until one breaks.
//!
//! Guarantees: exit code 0 if every invariant held, or if policies were compared; 1 if an invariant was broken, with
//! its seed and the story of the smallest failure that was found; 2 for wrong usage.
//! Does not: check anything itself.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints")]

use clap::{Parser, ValueEnum};
use mimalloc::MiMalloc;
use nodekeeper_simulation::compare::compare;
use nodekeeper_simulation::core::{Broken, Fault};
use nodekeeper_simulation::happened::Happened;
use nodekeeper_simulation::replay::arrivals::read;
use nodekeeper_simulation::replay::{Replay, made, table};
use nodekeeper_simulation::scenario::Scenario;
use nodekeeper_simulation::world::{FLEET, How, Outcome, Simulated, simulate};
use nodekeeper_simulation::{stack, story};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A faster allocator: making and dropping rows takes a third of the time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Runs the real decisions and actions in simulated worlds, and checks the invariants after
/// every write.
#[derive(Debug, Parser)]
#[command(name = "simulate", version, after_help = "Example: simulate --small --seeds 7 --hours 12")]
struct Args {
    /// The seeds: `7`, or `1..100` (including the last one)
    #[arg(long, default_value = "1..20", value_parser = seeds)]
    seeds: (u64, u64),
    /// Hours of faults in each world; each world then runs on until everything has ended
    #[arg(long, default_value_t = 12.0)]
    hours: f64,
    /// The chance of a kind of fault, in every world: `Restored=0.02` (may be given several times)
    #[arg(long, value_parser = fault, value_name = "FAULT=CHANCE")]
    fault: Vec<(Fault, f64)>,
    /// A number of the policy, in every world: `sweep.max_in_flight=1` (may be given several times)
    #[arg(long, value_parser = knob, value_name = "KNOB=NUMBER")]
    knob: Vec<(String, u64)>,
    /// How many waiting jobs a run reads from the head of the queue, in every world
    #[arg(long, value_name = "ROWS")]
    queue_rows: Option<u32>,
    /// poll-and-scale reads EC2's whole list only up to this many nodes in use, in every world
    #[arg(long, value_name = "NODES")]
    list_nodes: Option<u32>,
    /// One call launches a batch of nodes, in every world
    #[arg(long)]
    batches: bool,
    /// Run Arvados' chaos instead (see `Scenario::chaos`)
    #[arg(long)]
    chaos: bool,
    /// Run worlds with small fleets, of 3 to 8 nodes (see `Scenario::small`)
    #[arg(long, conflicts_with = "chaos")]
    small: bool,
    /// Run worlds with large fleets, of up to this many nodes (see `Scenario::large`)
    #[arg(long, conflicts_with_all = ["chaos", "small"], value_name = "NODES")]
    large: Option<u32>,
    /// How many jobs a large world submits at its beginning
    #[arg(long, requires = "large", default_value_t = 1000, value_name = "JOBS")]
    jobs: usize,
    /// How many worlds run at once
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Which store answers: the model, or the embedded real one, whose answers are compared with the model's (the
    /// model still answers for indexes that lag and for lists in pages)
    #[arg(long, value_enum, default_value_t = StoreKind::Model)]
    store: StoreKind,
    /// Begin no further world after this many minutes
    #[arg(long)]
    minutes: Option<u64>,
    /// Go on after a failure; print each failure without its story
    #[arg(long)]
    keep_going: bool,
    /// Tell the story of the failure as found, without making it small
    #[arg(long)]
    as_found: bool,
    /// Print only failures and the last line
    #[arg(long)]
    quiet: bool,
    /// Print the calls of AWS that each function made, as JSON
    #[arg(long)]
    calls: bool,
    /// Compare this policy with the others that are given, on the same arrivals, boot times and shortages (may be given
    /// several times). Prices, shortages and interruptions are made up
    #[arg(long, requires = "arrivals", value_name = "FILE")]
    policy: Vec<PathBuf>,
    /// The jobs that arrive: JSON lines such as {"at_s": 120, "seconds": 30, "vcpus": 2, "memory_mib": 4000, "count": 5}
    #[arg(long, requires = "policy", value_name = "FILE")]
    arrivals: Option<PathBuf>,
    /// Print the comparison as JSON
    #[arg(long, requires = "policy")]
    json: bool,
    /// Print made-up arrivals of this many days
    #[arg(long, num_args = 2, value_names = ["SEED", "DAYS"], conflicts_with = "policy")]
    make_arrivals: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StoreKind {
    Model,
    Real,
}

fn fault(text: &str) -> Result<(Fault, f64), String> {
    let (name, chance) =
        text.split_once('=').ok_or_else(|| format!("{text:?} is not FAULT=CHANCE, such as Restored=0.02"))?;
    let fault = Fault::ALL.iter().copied().find(|f| format!("{f:?}") == name);
    let parsed = chance.parse().ok().filter(|c| (0.0..=1.0).contains(c));
    let chance = parsed.ok_or_else(|| format!("{chance:?} is not a chance: give a number from 0 to 1"))?;
    Ok((fault.ok_or_else(|| format!("there is no fault {name:?}: the summary of a run lists all faults"))?, chance))
}

fn knob(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("{text:?} is not KNOB=NUMBER, such as sweep.max_in_flight=1");
    let (name, number) = text.split_once('=').filter(|(name, _)| name.contains('.')).ok_or_else(wrong)?;
    Ok((name.to_owned(), number.parse().map_err(|_| wrong())?))
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let wrong = || format!("{text:?} is not a seed or a range of seeds such as 1..100");
    match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
            if first <= last { Ok((first, last)) } else { Err(wrong()) }
        }
        None => text.parse().map(|seed| (seed, seed)).map_err(|_| wrong()),
    }
}

#[derive(Default)]
struct Sum {
    worlds: u64,
    hours: f64,
    with_faults: Simulated,
    without_faults: Simulated,
    happened: Happened,
    failed: BTreeMap<u64, Broken>,
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.worlds += 1;
        self.hours += outcome.hours;
        self.with_faults.add(outcome.with_faults);
        self.without_faults.add(outcome.without_faults);
        self.happened.add(&outcome.happened);
        if let Some(broken) = &outcome.broken {
            self.failed.insert(seed, broken.clone());
        }
    }

    fn line(&self, began: Instant) -> String {
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        let Simulated { fleet_hours, node_hours } = self.with_faults;
        format!(
            "{:.1} min: {} worlds, {:.0} h simulated, {} kills; with faults {:.0} fleet-hours ({FLEET} nodes or more) and {:.0} node-hours, without {:.0} and {:.0}; {:.0} fleet-hours with faults a minute; {} failed",
            minutes,
            self.worlds,
            self.hours,
            self.happened.kills(),
            fleet_hours,
            node_hours,
            self.without_faults.fleet_hours,
            self.without_faults.node_hours,
            fleet_hours / minutes.max(1e-9),
            self.failed.len(),
        )
    }
}

fn main() -> ExitCode {
    stack::run(simulated)
}

fn simulated() -> ExitCode {
    let args = Args::parse();
    if let [seed, days] = args.make_arrivals[..] {
        made::lines(seed, days).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    match &args.arrivals {
        Some(arrivals) => match compared(&args, arrivals) {
            Ok(shown) => {
                println!("{shown}");
                ExitCode::SUCCESS
            }
            Err(why) => {
                eprintln!("{why}");
                ExitCode::from(2)
            }
        },
        None => run(&args),
    }
}

/// Compares the policies, and shows the result of each.
fn compared(args: &Args, arrivals: &Path) -> Result<String, String> {
    let text = |path: &Path| std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()));
    let named = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, text(path)?))
    };
    let policies = args.policy.iter().map(named).collect::<Result<Vec<_>, String>>()?;
    let read = read(&text(arrivals)?).map_err(|why| format!("{}: {why}", arrivals.display()))?;
    let replay = Replay { arrivals: read };
    let at_once = replay.nodes_at_once();
    let measured = compare(args.seeds.0, &policies, replay, args.threads)?;
    Ok(if args.json {
        serde_json::to_string_pretty(&table::json(&measured, at_once)).unwrap_or_default()
    } else {
        table::text(&measured, at_once)
    })
}

fn run(args: &Args) -> ExitCode {
    let how = How { telling: false, real_store: args.store == StoreKind::Real };
    let began = Instant::now();
    let sum = worlds(args, how, began);
    if args.calls {
        println!("{}", serde_json::to_string_pretty(&sum.happened.calls).unwrap_or_default());
    } else if !args.quiet {
        println!("\n{}\n", sum.happened.table());
    }
    println!("{}", sum.line(began));
    let Some((seed, broken)) = sum.failed.first_key_value() else {
        println!("every invariant held");
        return ExitCode::SUCCESS;
    };
    if !args.keep_going {
        let found = scenario(*seed, args);
        let small =
            if args.as_found { found } else { story::shrink(&found, how, broken.rule, |line| println!("{line}")) };
        println!("\n{}", story::tell(&small, how));
    }
    println!("broken: {} (seed {seed})", broken.rule);
    ExitCode::FAILURE
}

/// Runs the worlds of all seeds, until one breaks or the time is over.
fn worlds(args: &Args, how: How, began: Instant) -> Sum {
    let next = AtomicU64::new(args.seeds.0);
    let sum = Mutex::new(Sum::default());
    let said = Mutex::new(Instant::now());
    let limit = args.minutes.map(|m| Duration::from_secs(m * 60));
    stack::run_on(args.threads.max(1), || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let over = limit.is_some_and(|l| began.elapsed() >= l);
            let failed = !sum.lock().unwrap_or_else(PoisonError::into_inner).failed.is_empty();
            if seed > args.seeds.1 || over || (failed && !args.keep_going) {
                break;
            }
            let outcome = simulate(scenario(seed, args), how);
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.add(seed, &outcome);
            if let Some(broken) = &outcome.broken {
                let what: String = broken.what.chars().take(300).collect();
                println!("seed {seed}: {} at {}: {what}", broken.rule, broken.at);
            }
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            if !args.quiet && said.elapsed() > Duration::from_secs(10) {
                *said = Instant::now();
                println!("{}", sum.line(began));
            }
        }
    });
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn scenario(seed: u64, args: &Args) -> Scenario {
    let mut scenario = match (args.large, args.chaos, args.small) {
        (Some(nodes), ..) => Scenario::large(seed, args.hours, nodes, args.jobs),
        (None, true, _) => Scenario::chaos(seed),
        (None, false, true) => Scenario::small(seed, args.hours),
        (None, false, false) => Scenario::of(seed, args.hours),
    };
    if args.batches {
        scenario.set_batches();
    }
    for (fault, chance) in &args.fault {
        scenario.set_chance(*fault, *chance);
    }
    for (knob, number) in &args.knob {
        scenario.set_number(knob, *number);
    }
    if let Some(rows) = args.queue_rows {
        scenario.set_queue_rows(rows);
    }
    if let Some(nodes) = args.list_nodes {
        scenario.set_list_nodes(nodes);
    }
    scenario
}
