//! One world: schedules, jobs and operators, and faults for some hours. Then it checks that everything ends that should
//! end.
//!
//! Does not: decide how jobs arrive (`arrivals`), what operators do (`operators`) or which rows become unreadable
//! (`spoiling`).

mod arrivals;
mod controllers;
mod costs;
mod leaving;
mod listing;
mod operators;
mod programs;
mod replay;
mod spoiling;

pub use crate::core::How;
pub(crate) use controllers::STEADY;

use crate::check::{Check, Watch};
use crate::core::{Broken, Core, Fault, Line, START};
use crate::ec2::{Ec2, WARNING_S};
use crate::embedded::Embedded;
use crate::functions::Functions;
use crate::happened::Happened;
use crate::machine::Machine;
use crate::panics;
use crate::replay::measured::Measured;
use crate::scenario::Scenario;
use crate::stack;
use crate::tables::Tables;
use model::{JobId, Span};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::time::sleep;

/// The most ticks of poll-and-scale from one end of a job, or from the end of the faults, to the next end of a job.
/// The same number of ticks is the most until every instance is gone after the last job. It covers the longest waits of
/// a policy: a stale record, a paused launch, a brake.
pub const TICKS_TO_END: u32 = 720;
/// The most ticks after the faults stopped until every earlier drain has ended.
pub const TICKS_TO_DRAIN: u32 = 30;
/// The most ticks after the faults stopped until no record waits for an instance that ended earlier.
pub const TICKS_TO_NOTICE: u32 = 60;
/// The most ticks until every handle row is gone. A row is looked at once a day. A row that a restored table forgot
/// takes another day.
pub const TICKS_TO_FORGET: u32 = 3200;
/// A cluster of at least this many nodes counts as a fleet in fleet-hours.
pub const FLEET: usize = 20;

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub broken: Option<Broken>,
    pub happened: Happened,
    pub hours: f64,
    /// What was simulated while faults could happen.
    pub with_faults: Simulated,
    /// What was simulated without faults: after them, or in a world that has none.
    pub without_faults: Simulated,
    /// The story, if one was told.
    pub lines: Vec<Line>,
    /// What was measured, if the world compares policies.
    pub measured: Option<Measured>,
}

/// How much was simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Simulated {
    /// The hours in which the fleet had at least [`FLEET`] nodes.
    pub fleet_hours: f64,
    /// The hours of all nodes together.
    pub node_hours: f64,
}

impl Simulated {
    pub fn add(&mut self, other: Self) {
        self.fleet_hours += other.fleet_hours;
        self.node_hours += other.node_hours;
    }

    fn minute(&mut self, nodes: usize) {
        let fleet = if nodes >= FLEET { 1.0 } else { 0.0 };
        self.add(Self { fleet_hours: fleet / 60.0, node_hours: nodes as f64 / 60.0 });
    }
}

/// The rule that a world breaks if it stands still.
pub const STANDS_STILL: &str = "invariant_a_world_goes_on";

/// How long a world's time may stand still, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn simulate(scenario: Scenario, how: How) -> Outcome {
    simulate_beside(scenario, how, std::future::ready(()))
}

/// Runs a world, and one more task beside its own tasks. A panic anywhere is a broken invariant of the world.
pub fn simulate_beside(scenario: Scenario, how: How, beside: impl Future<Output = ()> + Send + 'static) -> Outcome {
    simulate_within(scenario, how, PATIENCE, beside)
}

/// [`simulate_beside`], but the world also breaks if its time stands still for this long, in real time. Its thread is
/// left behind.
pub fn simulate_within(
    scenario: Scenario,
    how: How,
    patience: Duration,
    beside: impl Future<Output = ()> + Send + 'static,
) -> Outcome {
    let (tell, hear) = mpsc::channel();
    // The watch needs the core, which the world's thread makes.
    let (give, take) = mpsc::channel();
    let thread = stack::thread().spawn(move || {
        // Nobody listens any more if the world counted as standing still and then went on.
        let _ = tell.send(run_here(scenario, how, &give, beside));
    });
    drop(thread.unwrap_or_else(|e| unreachable!("the machine gives no thread: {e}")));
    let core: Option<Arc<Core>> = take.recv().ok();
    let mut reached = None;
    loop {
        match (hear.recv_timeout(patience), &core) {
            (Ok(outcome), _) => return outcome,
            (Err(RecvTimeoutError::Timeout), Some(core)) if reached == Some(core.reached()) => {
                return stands_still(core);
            }
            (Err(RecvTimeoutError::Timeout), _) => reached = core.as_ref().map(|core| core.reached()),
            (Err(RecvTimeoutError::Disconnected), _) => unreachable!("the thread of a world ended without an outcome"),
        }
    }
}

/// The outcome of a world that stands still. No invariant can be checked, but its story is there.
fn stands_still(core: &Core) -> Outcome {
    let at = core.reached();
    let what = format!("seed {}: its time does not move on", core.scenario.seed);
    Outcome {
        broken: Some(Broken { rule: STANDS_STILL, what, at }),
        hours: at.since(START).as_s() / 3600.0,
        lines: core.lines_from_outside(),
        ..Outcome::default()
    }
}

/// Runs a world on this thread.
fn run_here(
    mut scenario: Scenario,
    how: How,
    core: &mpsc::Sender<Arc<Core>>,
    beside: impl Future<Output = ()> + Send + 'static,
) -> Outcome {
    if scenario.chance(Fault::SeveralTypes) > 0.0 {
        scenario.add_several();
    }
    if scenario.chance(Fault::Reservations) > 0.0 {
        scenario.add_reservations();
    }
    if scenario.chance(Fault::Shares) > 0.0 {
        scenario.add_shares();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.unwrap_or_else(|e| unreachable!("no runtime: {e}"));
    let seed = scenario.seed;
    panics::listen();
    let run = AssertUnwindSafe(|| {
        runtime.block_on(async {
            let world = World::new(scenario, how, core).await;
            drop(tokio::spawn(beside));
            match world.core.scenario.replay.clone() {
                Some(replay) => world.replay(replay).await,
                None => tokio::select! {
                    biased;
                    outcome = Arc::clone(&world).live() => outcome,
                    never = world.programs() => match never {},
                },
            }
        })
    });
    // The world itself may panic too. Then only the message is known.
    let outcome = std::panic::catch_unwind(run)
        .unwrap_or_else(|_| Outcome { broken: Some(panics::broken(seed, "the world", START)), ..Outcome::default() });
    panics::stop_listening();
    outcome
}

struct World {
    core: Arc<Core>,
    check: Arc<Watch>,
    ec2: Arc<Ec2>,
    tables: Arc<Tables>,
    functions: Arc<Functions>,
    store: Store,
    /// The last jobs that arrived, and whether each leaves an output.
    arrived: Mutex<VecDeque<(JobId, bool)>>,
}

/// The counts of a world so far.
struct Lived {
    minutes: u32,
    with_faults: Simulated,
    without_faults: Simulated,
    /// Minutes since the faults stopped.
    healthy_minutes: u32,
    /// The fewest unfinished jobs seen since the faults stopped.
    fewest_jobs: usize,
    /// The healthy minute at which `fewest_jobs` was first seen.
    fewest_since: u32,
}

impl Default for Lived {
    fn default() -> Self {
        Self {
            minutes: 0,
            with_faults: Simulated::default(),
            without_faults: Simulated::default(),
            healthy_minutes: 0,
            fewest_jobs: usize::MAX,
            fewest_since: 0,
        }
    }
}

impl World {
    async fn new(mut scenario: Scenario, how: How, give: &mpsc::Sender<Arc<Core>>) -> Arc<Self> {
        if how.real_store {
            // The embedded store cannot be restored, and its rows cannot be spoiled.
            scenario.set_chance(Fault::Restored, 0.0);
            scenario.set_chance(Fault::RowUnreadable, 0.0);
        }
        let core = Arc::new(Core::new(scenario, how));
        let _ = give.send(Arc::clone(&core));
        let check = Check::new(Arc::clone(&core));
        let twin = if how.real_store {
            match Embedded::new() {
                Ok(real) => Some(Arc::new(real)),
                Err(e) => unreachable!("the embedded store does not start: {e}"),
            }
        } else {
            None
        };
        let tables = Arc::new(Tables::new(Arc::clone(&core), Arc::clone(&check), twin));
        let check = Arc::new(Watch::new(check, Arc::clone(&tables.model)));
        let ec2 = Ec2::new(Arc::clone(&core), Arc::clone(&check));
        check.watch(&ec2);
        let functions = Functions::new(&core, &check, Arc::clone(&tables) as _, &ec2);
        let boot = {
            let (core, check) = (Arc::clone(&core), Arc::clone(&check));
            // Weak references: EC2 keeps this closure, and the functions keep EC2.
            let (weak_ec2, weak_functions) = (Arc::downgrade(&ec2), Arc::downgrade(&functions));
            move |real: &crate::ec2::Real| match (weak_ec2.upgrade(), weak_functions.upgrade()) {
                (Some(ec2), Some(functions)) => Machine::boot(&core, &check, &ec2, &functions, real),
                _ => tokio::spawn(async {}).abort_handle(),
            }
        };
        ec2.on_boot(Box::new(boot));
        let store = functions.store().clone();
        let world = Arc::new(Self { core, check, ec2, tables, functions, store, arrived: Mutex::default() });
        let document = world.core.scenario.policy.clone();
        while !world.set_policy(&document).await {}
        world
    }

    async fn live(self: Arc<Self>) -> Outcome {
        for work in [
            tokio::spawn(Arc::clone(&self).schedules()),
            tokio::spawn(Arc::clone(&self).arrivals()),
            tokio::spawn(Arc::clone(&self).late_arrivals()),
            tokio::spawn(Arc::clone(&self).operators()),
            tokio::spawn(Arc::clone(&self).events()),
            tokio::spawn(Arc::clone(&self).spoil()),
            tokio::spawn(Arc::clone(&self).controller()),
            tokio::spawn(Arc::clone(&self).copies_leave()),
            tokio::spawn(Arc::clone(&self).lists_go_wrong()),
        ] {
            drop(work);
        }
        let trouble = (self.core.scenario.hours * 60.0) as u32;
        let plain_jobs = self.core.scenario.plain_jobs;
        let mut lived = Lived::default();
        loop {
            tokio::select! {
                biased;
                () = self.core.stop.notified() => break,
                () = sleep(Duration::from_secs(60)) => {}
            }
            self.core.invariant_no_task_panics();
            if self.core.what_broke().is_some() {
                break;
            }
            lived.minutes += 1;
            self.count_nodes(&mut lived, trouble);
            if plain_jobs
                && lived.minutes.is_multiple_of(10)
                && self.invariant_everything_ends_in_the_midst_of_chaos(lived.minutes >= trouble)
            {
                break;
            }
            if lived.minutes < trouble || plain_jobs {
                continue;
            }
            if lived.minutes == trouble {
                self.heal().await;
            }
            if self.recovers(&mut lived) {
                break;
            }
        }
        self.invariant_the_reasons_are_the_bill().await;
        self.outcome(&lived)
    }

    fn outcome(&self, lived: &Lived) -> Outcome {
        self.core.invariant_no_task_panics();
        Outcome {
            broken: self.core.what_broke(),
            happened: self.core.happened(),
            hours: f64::from(lived.minutes) / 60.0,
            with_faults: lived.with_faults,
            without_faults: lived.without_faults,
            lines: self.core.lines(),
            measured: None,
        }
    }

    fn count_nodes(&self, lived: &mut Lived, trouble: u32) {
        let in_trouble = lived.minutes <= trouble || self.core.scenario.plain_jobs;
        // An hour without faults proves less, so it is counted separately.
        let has_faults = in_trouble && self.core.scenario.faults().next().is_some();
        let simulated = if has_faults { &mut lived.with_faults } else { &mut lived.without_faults };
        simulated.minute(self.check.up());
    }

    /// One minute after the faults stopped: checks what must have ended by now. Returns whether everything has.
    fn recovers(&self, lived: &mut Lived) -> bool {
        lived.healthy_minutes += 1;
        let healthy = lived.healthy_minutes;
        let tables = self.check.tables();
        if healthy.is_multiple_of(10) {
            self.check.invariant_the_first_job_is_served(&tables, Span::from_s(i64::from(TICKS_TO_END) * 60));
            self.check.invariant_a_follower_goes_on(&tables);
            self.check.invariant_what_is_due_goes_on(&tables);
        }
        // Operators drain nodes in other minutes.
        if healthy % 10 == 5 {
            self.check.invariant_a_demand_set_is_satisfied(&tables);
            self.check.invariant_the_limit_of_an_array_is_used(&tables);
        }
        if healthy == TICKS_TO_DRAIN {
            self.check.invariant_a_drain_ends_by_its_deadline(&tables);
        }
        if healthy == TICKS_TO_NOTICE {
            self.check.invariant_what_is_gone_is_noticed(&tables);
            self.check.invariant_waiting_has_an_end(&tables);
        }
        // While small jobs keep coming, some job is always unfinished.
        let late = self.core.scenario.late_hours * 60;
        if !healthy.is_multiple_of(10) || healthy <= late {
            return false;
        }
        let jobs = Check::jobs_left(&tables);
        drop(tables);
        if jobs < lived.fewest_jobs {
            (lived.fewest_jobs, lived.fewest_since) = (jobs, healthy);
        }
        self.invariant_everything_ends(healthy - lived.fewest_since.max(late))
    }

    /// Plain jobs all end before the world ends, and leave nothing behind, although the faults go on. Returns whether
    /// nothing is left.
    fn invariant_everything_ends_in_the_midst_of_chaos(&self, late: bool) -> bool {
        let left = self.check.what_is_left(&self.check.tables(), 0);
        if let (true, Some(left)) = (late, &left) {
            self.core.broken("invariant_everything_ends_in_the_midst_of_chaos", left.clone());
        }
        left.is_none()
    }

    /// After the faults have stopped, everything that should end ends: within [`TICKS_TO_END`] after the last job
    /// ended, and handle rows within [`TICKS_TO_FORGET`]. Returns whether everything has ended.
    fn invariant_everything_ends(&self, ticks: u32) -> bool {
        let min = self.core.scenario.policy.pointer("/nodes/min").and_then(Value::as_u64).unwrap_or(0);
        let Some(left) = self.check.what_is_left(&self.check.tables(), u32::try_from(min).unwrap_or(0)) else {
            return true;
        };
        let only_handles = left.lines().all(|l| l.trim_start().starts_with("handle "));
        if ticks >= TICKS_TO_FORGET || (ticks >= TICKS_TO_END && !only_handles) {
            self.core.broken("invariant_everything_ends", {
                let said = self.functions.last_said().join("\n  ");
                format!("after {ticks} ticks without a fault and without the end of a job:\n  {left}\n  and poll-and-scale says:\n  {said}")
            });
        }
        false
    }

    async fn schedules(self: Arc<Self>) {
        let ring = |function: &'static str| self.functions.ring(function, json!({}));
        let offset = self.core.between(0, 50_000);
        sleep(Duration::from_millis(offset.unsigned_abs())).await;
        let mut tick = 0_u64;
        loop {
            let period_s = if self.core.is_healed() { 60 } else { self.core.scenario.period_s };
            let third = || sleep(Duration::from_secs(period_s / 3));
            ring(poll_and_scale::FUNCTION);
            third().await;
            ring(sweep_dispatch::FUNCTION);
            third().await;
            if tick.is_multiple_of(5) {
                ring(clean_stale_records::FUNCTION);
            }
            if tick.is_multiple_of(60) {
                self.tables.expire().await;
            }
            tick += 1;
            third().await;
        }
    }

    /// Passes on the warnings of EC2, as EventBridge does.
    async fn events(self: Arc<Self>) {
        loop {
            sleep(Duration::from_secs(10)).await;
            for instance in self.ec2.take_warnings() {
                // Some warnings are lost here. The node's agent sees the warning too.
                if self.core.maybe(0.6) {
                    let taken_at = self.ec2.taken_at(&instance);
                    let input = json!({"detail-type": "EC2 Spot Instance Interruption Warning",
                        "time": taken_at.map(|at| (at - Span::from_s(WARNING_S)).to_string()), "detail": {"instance-id": instance}});
                    self.functions.ring(poll_and_scale::FUNCTION, input);
                }
            }
        }
    }
}
