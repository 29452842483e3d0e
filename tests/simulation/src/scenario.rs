//! The settings of one world: its policy, its work and its faults, all drawn from its seed.
//!
//! Guarantees: each seed has some kinds of faults and not others, at rates from calm to storm. (Many different worlds
//! find more mistakes than one world with every fault.)
//! Does not: draw anything while the world runs.

use crate::fault::Fault;
use crate::replay::Replay;
use crate::replay::pools::Pools;
use model::enums::ReservationKind;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// One after the other.
    Steady,
    /// Many at once, then none for a while.
    Bursts,
    /// Most of them at the beginning.
    Backlog,
    None,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    /// For how many hours faults happen. After that, everything must end.
    pub hours: f64,
    /// The chance of each kind of fault, by its place in [`Fault::ALL`].
    pub chances: Vec<f64>,
    pub policy: Value,
    /// The period of the schedules while faults happen, in seconds. After that it is one minute.
    pub period_s: u64,
    /// The longest boot without a fault, in seconds.
    pub boot_s: i64,
    pub arrivals: Arrivals,
    pub jobs_per_hour: f64,
    /// No job is submitted while this many have not ended.
    pub most_waiting: usize,
    /// The mean length of a job, in seconds.
    pub job_s: i64,
    /// The most jobs that are submitted.
    pub most_jobs: usize,
    /// The longest call of DynamoDB or EC2 without a fault, in milliseconds.
    pub latency_ms: i64,
    /// The most rows on one page of a list.
    pub page_rows: usize,
    /// The account's limit: how many instances may be up at once.
    pub quota: usize,
    /// An instance type that is never available.
    pub never_had: Option<String>,
    /// A subnet that does not exist any more.
    pub gone_subnet: Option<String>,
    /// An instance type whose instances do not boot, and for how many hours.
    pub broken_type: Option<(String, f64)>,
    /// How many hours after the faults small jobs keep coming. A waiting job must not starve.
    pub late_hours: u32,
    /// How many jobs of a backlog arrive at once.
    pub backlog: usize,
    /// Whether all jobs are alike and have very many retries. Such jobs must end although the faults go on.
    pub plain_jobs: bool,
    /// Whether one call launches a batch of nodes.
    pub batches: bool,
    /// Whether operators release what brakes hold back while there are faults.
    pub releases: bool,
    /// Whether EC2 keeps to its published limits for launches of a new account.
    pub request_limits: bool,
    /// The jobs that arrive, if this world compares policies. Its EC2 has the pools of `replay::pools` then.
    pub replay: Option<Arc<Replay>>,
}

/// For how many hours small jobs keep coming in some worlds. This is longer than the first job of the queue may wait.
const LATE_HOURS: u32 = 15;

impl Scenario {
    /// The world of a seed, with this many hours of faults.
    pub fn of(seed: u64, hours: f64) -> Self {
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0xA5A5_0000_5A5A_FFFF);
        // The factor for all chances: no faults, calm, ordinary (twice as likely), storm.
        let weather = *pick(&mut dice, &[0.0, 0.3, 1.0, 1.0, 3.0]);
        // Newer faults are not drawn here, so that older seeds still give the same worlds.
        let drawn = |fault: &&Fault| **fault <= Fault::Deaf;
        let mut chances: Vec<f64> = Fault::ALL
            .iter()
            .filter(drawn)
            .map(|fault| {
                let on = dice.random_bool(0.7);
                let strength = 10f64.powf(dice.random_range(-0.5..0.5));
                if on { (fault.base() * weather * strength).min(0.5) } else { 0.0 }
            })
            .collect();
        chances.resize(Fault::ALL.len(), 0.0);
        let mut scenario = Self {
            seed,
            hours,
            chances,
            policy: Value::Null,
            period_s: *pick(&mut dice, &[60, 60, 120, 300, 300]),
            boot_s: *pick(&mut dice, &[90, 90, 240]),
            arrivals: *pick(
                &mut dice,
                &[Arrivals::Steady, Arrivals::Steady, Arrivals::Bursts, Arrivals::Backlog, Arrivals::Steady],
            ),
            jobs_per_hour: 0.0,
            most_waiting: *pick(&mut dice, &[60, 80, 120, 250]),
            job_s: *pick(&mut dice, &[900, 1800, 3600, 7200, 14_400]),
            most_jobs: usize::MAX,
            latency_ms: *pick(&mut dice, &[5, 30, 30, 200]),
            page_rows: *pick(&mut dice, &[5, 40, 1000, 1000]),
            quota: usize::MAX,
            never_had: None,
            gone_subnet: None,
            broken_type: None,
            late_hours: if dice.random_bool(0.05) { LATE_HOURS } else { 0 },
            backlog: 150,
            plain_jobs: false,
            batches: false,
            releases: true,
            request_limits: false,
            replay: None,
        };
        if weather > 0.0 && dice.random_bool(0.1) {
            scenario.set_chance(Fault::Restored, 0.01);
        }
        if dice.random_bool(0.02) {
            scenario.arrivals = Arrivals::None;
        }
        scenario.policy = policy(&mut dice);
        // These dice are separate, so that the rest of the world is the same either way.
        if Xoshiro256PlusPlus::seed_from_u64(seed ^ 0xA5A5_3C3C_0000_FFFF).random_bool(0.4) {
            scenario.set_list_nodes(0);
        }
        // Usually there is more work than all nodes can take. Three jobs need the room of about two nodes.
        let load = if dice.random_bool(0.7) { dice.random_range(1.5..3.0) } else { dice.random_range(0.2..1.2) };
        let wanted = f64::from(scenario.max()) * load;
        scenario.jobs_per_hour = wanted * 3600.0 / scenario.job_s as f64;
        scenario
    }

    /// The world of a seed with a small fleet: 3 to 8 nodes, often with a minimum. Its faults are those that a small fleet
    /// feels most: outages of heartbeat-ingest and of lists, instances that others stop or terminate, lists that show
    /// older states, and credentials that EC2 does not accept.
    pub fn small(seed: u64, hours: f64) -> Self {
        let mut scenario = Self::of(seed, hours);
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x0F0F_0000_C3C3_FFFF);
        let before = f64::from(scenario.max().max(1));
        let max: u32 = dice.random_range(3..=8);
        let min = *pick(&mut dice, &[0, 0, 1, 2, 3, max]);
        let price = *pick(&mut dice, &[0.0, 0.0, 0.0, 0.4]) * f64::from(max);
        if let Some(nodes) = scenario.policy.get_mut("nodes") {
            nodes["max"] = json!(max);
            nodes["min"] = json!(min.min(max));
            nodes["max_price_per_hour"] = json!(price);
        }
        scenario.jobs_per_hour *= f64::from(max) / before;
        scenario.most_waiting = 30;
        let calm = scenario.chances.iter().all(|chance| *chance == 0.0);
        for (fault, chances) in [
            (Fault::IngestDown, [0.0, 0.0002, 0.001]),
            (Fault::ListCollapses, [0.0, 0.002, 0.02]),
            (Fault::ListsOlderState, [0.0, 0.05, 0.3]),
            (Fault::LaunchNotAllowed, [0.0, 0.01, 0.05]),
            (Fault::Stopped, [0.0, 0.001, 0.005]),
            (Fault::TerminatedByOthers, [0.0, 0.001, 0.005]),
        ] {
            let chance = *pick(&mut dice, &chances);
            scenario.set_chance(fault, if calm { 0.0 } else { chance });
        }
        scenario.set_chance(Fault::IdsNotNamed, if calm { 0.0 } else { 0.2 });
        scenario
    }

    /// The world of a seed with a large fleet, of up to `nodes` nodes, and `jobs` jobs that are all submitted at the
    /// beginning. Its faults are those of [`Scenario::of`].
    pub fn large(seed: u64, hours: f64, nodes: u32, jobs: usize) -> Self {
        let mut scenario = Self::of(seed, hours);
        let before = f64::from(scenario.max().max(1));
        let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x3C3C_0000_F0F0_FFFF);
        let min = *pick(&mut dice, &[0, 0, nodes / 2]);
        let price = *pick(&mut dice, &[0.0, 0.0, 0.3]) * f64::from(nodes);
        scenario.set_knob("nodes", "max", json!(nodes));
        scenario.set_knob("nodes", "min", json!(min));
        scenario.set_knob("nodes", "max_price_per_hour", json!(price));
        scenario.set_knob("launch", "max_per_run", json!(pick(&mut dice, &[60, 1000])));
        for size in scenario.policy.get_mut("size").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(most) = size.get_mut("max") {
                let share = most.as_f64().unwrap_or(0.0) / before;
                *most = json!((share.min(1.0) * f64::from(nodes)) as u32);
            }
        }
        scenario.arrivals = Arrivals::Backlog;
        (scenario.backlog, scenario.most_jobs, scenario.most_waiting) = (jobs, jobs, jobs);
        scenario.page_rows = 1000;
        scenario
    }

    /// The world of a seed without faults in which `nodes` jobs arrive at once that need a node each. EC2 keeps to its
    /// published limits for launches.
    pub fn burst(seed: u64, nodes: u32) -> Self {
        let jobs = usize::try_from(nodes).unwrap_or(usize::MAX);
        let mut scenario = Self::large(seed, 1.0, nodes, jobs);
        scenario.chances.fill(0.0);
        scenario.set_knob("nodes", "min", json!(0));
        scenario.set_knob("nodes", "max_price_per_hour", json!(0.0));
        scenario.set_knob("launch", "max_per_run", json!(1000));
        scenario.set_knob("launch", "calls_per_second", json!(2.0));
        // These are the defaults, not drawn: a window could open when the hour is over, and a run of 10 s launches 20 nodes.
        scenario.set_knob("poll", "stale_after_s", json!(45));
        scenario.set_knob("shutdown", "windows_min", json!([]));
        if let Some(fields) = scenario.policy.as_object_mut() {
            fields.insert("size".to_owned(), sizes(false));
        }
        (scenario.plain_jobs, scenario.request_limits, scenario.latency_ms) = (true, true, 30);
        (scenario.period_s, scenario.boot_s, scenario.job_s) = (60, 90, 300);
        scenario
    }

    /// A world without faults in which these jobs arrive and this policy holds. Pools are short by the schedule of the seed,
    /// and EC2 keeps to its published limits for launches.
    pub fn replay(seed: u64, policy: Value, replay: Arc<Replay>) -> Self {
        let mut scenario = Self::of(seed, 1.0);
        scenario.chances.fill(0.0);
        (scenario.policy, scenario.replay) = (policy, Some(replay));
        (scenario.batches, scenario.request_limits, scenario.late_hours) = (true, true, 0);
        (scenario.period_s, scenario.latency_ms, scenario.page_rows) = (60, 30, 1000);
        scenario
    }

    /// The pools of a world that compares policies.
    pub fn pools(&self) -> Option<Pools> {
        self.replay.is_some().then_some(Pools { seed: self.seed })
    }

    /// The chaos of Arvados' dispatcher test (#14807 and later: `TestDispatchToStubDriver`), with twice its error rates
    /// and ten times its size. There are 2,000 jobs and at most 100 instances. A fifth of all launches and terminations
    /// fail. One type is never available, one of two subnets does not exist, and one type is broken for twice the boot
    /// time-out. Of seven instances, two hang, two never call and two never report. A fifth of the others crash.
    /// Functions are killed, and calls of the tables fail.
    pub fn chaos(seed: u64) -> Self {
        let mut scenario = Self::of(seed, 400.0);
        scenario.chances.fill(0.0);
        for (fault, chance) in [
            (Fault::LaunchAnswerLost, 0.1),
            (Fault::LaunchThrottled, 0.1),
            (Fault::TerminateFails, 0.1),
            (Fault::TerminatesSome, 0.1),
            (Fault::NeverBoots, 2.0 / 7.0),
            // The chance of `Hangs` is among instances that boot. The chance of `NeverReports` is among instances that
            // do not hang.
            (Fault::Hangs, 2.0 / 5.0),
            (Fault::NeverReports, 2.0 / 3.0),
            (Fault::InstanceDies, 0.02),
            (Fault::Killed, 0.2),
            (Fault::DbFails, 0.002),
            (Fault::ListFails, 0.02),
            (Fault::FunctionDown, 0.002),
        ] {
            scenario.set_chance(fault, chance);
        }
        scenario.arrivals = Arrivals::Backlog;
        scenario.jobs_per_hour = 100_000.0;
        scenario.job_s = 120;
        scenario.most_jobs = 2000;
        scenario.most_waiting = 2000;
        scenario.quota = 100;
        scenario.never_had = Some("medium.type".into());
        scenario.gone_subnet = Some("subnet-b".into());
        scenario.broken_type = Some(("small.type".into(), 1.0));
        scenario.plain_jobs = true;
        scenario.late_hours = 0;
        scenario.period_s = 60;
        scenario.boot_s = 90;
        scenario.policy = model::policy::example_json();
        let sections = [
            ("nodes", json!({"max": 200})),
            ("size", sizes(false)),
            ("boot", json!({"timeout_s": 600, "failures_before_pause": 1000})),
            (
                "launch",
                json!({"template": "lt-0123456789abcdef0", "max_per_call": 1, "calls_per_second": 10, "subnets": ["subnet-b", "subnet-a"]}),
            ),
        ];
        if let Value::Object(fields) = &mut scenario.policy {
            for (section, value) in sections {
                fields.insert(section.to_owned(), value);
            }
        }
        scenario
    }

    /// The chance of a fault at each of its occasions.
    pub fn chance(&self, fault: Fault) -> f64 {
        self.chances.get(fault as usize).copied().unwrap_or(0.0)
    }

    /// Sets `poll.queue_rows`: how much of the queue a run reads.
    pub fn set_queue_rows(&mut self, rows: u32) {
        self.set_knob("poll", "queue_rows", json!(rows));
    }

    /// Sets `poll.list_nodes`: with 0, poll-and-scale asks EC2 for the instances of its records by id.
    pub fn set_list_nodes(&mut self, nodes: u32) {
        self.set_knob("poll", "list_nodes", json!(nodes));
    }

    /// Sets a number of the policy: `sweep.max_in_flight`, for instance.
    pub fn set_number(&mut self, knob: &str, value: u64) {
        if let Some((section, knob)) = knob.split_once('.') {
            if let Some(policy) = self.policy.as_object_mut() {
                policy.entry(section).or_insert_with(|| json!({}));
            }
            self.set_knob(section, knob, json!(value));
        }
    }

    fn set_knob(&mut self, section: &str, knob: &str, value: Value) {
        if let Some(section) = self.policy.get_mut(section).and_then(Value::as_object_mut) {
            section.insert(knob.to_owned(), value);
        }
    }

    /// Lets one call launch a batch of nodes, often fewer than it asks for.
    pub fn set_batches(&mut self) {
        self.batches = true;
        if let Some(launch) = self.policy.get_mut("launch").and_then(Value::as_object_mut) {
            launch.remove("max_per_call");
        }
        self.set_chance(Fault::BatchCutShort, 0.2);
    }

    pub fn set_chance(&mut self, fault: Fault, chance: f64) {
        if let Some(c) = self.chances.get_mut(fault as usize) {
            *c = chance;
        }
    }

    /// The kinds of faults that this world has.
    pub fn faults(&self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(|f| self.chance(*f) > 0.0)
    }

    /// The policy's largest number of nodes.
    pub fn max(&self) -> u32 {
        self.policy.pointer("/nodes/max").and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
    }
}

fn pick<'a, T>(dice: &mut Xoshiro256PlusPlus, all: &'a [T]) -> &'a T {
    // Every list in this file has entries.
    let n = dice.random_range(0..all.len().max(1));
    all.get(n).unwrap_or_else(|| unreachable!("a list without entries"))
}

/// The GPUs of a machine of the size `gpu`, and of no other.
pub const GPUS: u32 = 4;

pub fn sizes(spot: bool) -> Value {
    let size = |name: &str, vcpus: u32, memory: u32, gpus: u32, price: f64, market: &str, fallback: &str| {
        json!({"name": name, "instance_type": format!("{name}.type"), "vcpus": vcpus, "memory_mib": memory,
               "scratch_gib": 20, "gpus": gpus, "price_per_hour": price, "market": market, "fallback": fallback})
    };
    let mut all = vec![
        size("small", 2, 4096, 0, 0.1, "on_demand", "none"),
        size("medium", 4, 8192, 0, 0.21, "on_demand", "none"),
        size("large", 8, 16384, 0, 0.43, "on_demand", "none"),
        size("gpu", 8, 32768, GPUS, 1.5, "on_demand", "none"),
    ];
    if spot {
        all.push(size("spare", 4, 8192, 0, 0.08, "spot", "on_demand"));
    }
    Value::Array(all)
}

/// `launch.reservation_drain_s` in a world that has reservations.
pub const RESERVATION_DRAIN_S: i64 = 600;

/// The reservations of a world that has some: id, kind, type, number of machines, and its end in minutes.
pub const RESERVATIONS: [(&str, ReservationKind, &str, u32, Option<i64>); 3] = [
    ("cr-lasts", ReservationKind::OnDemand, "small.type", 2, None),
    ("cr-ends", ReservationKind::OnDemand, "medium.type", 3, Some(70)),
    ("cr-block", ReservationKind::CapacityBlock, "gpu.type", 2, Some(110)),
];

/// The types of the size of several types, and their vCPUs.
pub const SEVERAL: [(&str, u32); 5] = [("v1.type", 2), ("v2.type", 2), ("w1.type", 4), ("w2.type", 4), ("x1.type", 8)];

impl Scenario {
    /// Adds capacity reservations to the policy.
    pub fn add_reservations(&mut self) {
        if let Some(launch) = self.policy.get_mut("launch") {
            launch["reservations"] = RESERVATIONS.iter().map(|(id, ..)| *id).collect();
            launch["reservation_drain_s"] = json!(RESERVATION_DRAIN_S);
        }
    }

    /// Adds two shares to the policy, of which the lesser one has a limit.
    pub fn add_shares(&mut self) {
        let most = self.max().div_ceil(2).max(2);
        if let Some(policy) = self.policy.as_object_mut() {
            let shares = json!([{"name": "a", "members": ["a-*"], "running": most}, {"name": "b", "members": ["b-*"], "weight": 2}]);
            policy.extend([("share".to_owned(), shares), ("shares".to_owned(), json!({"half_life_h": 0.5}))]);
        }
    }

    /// Adds a size of several types to the policy, behind the others. It is usually the cheapest.
    pub fn add_several(&mut self) {
        let share = if self.seed.is_multiple_of(3) { 0.6 } else { 1.0 };
        if let Some(sizes) = self.policy.get_mut("size").and_then(Value::as_array_mut) {
            sizes.push(json!({"name": "any", "instance_types": ["v*", "w*", "x*"], "market": "spot",
                              "fallback": "on_demand", "scratch_gib": 20}));
        }
        if let Some(launch) = self.policy.get_mut("launch") {
            launch["subnets"] = json!(["subnet-a", "subnet-b"]);
            // A second subnet in the zone of the first.
            if self.seed.is_multiple_of(2) {
                launch["subnets"] = json!(["subnet-a", "subnet-c", "subnet-b"]);
            }
            launch["zone_share"] = json!(share);
        }
    }
}

fn policy(dice: &mut Xoshiro256PlusPlus) -> Value {
    let mut policy = model::policy::example_json();
    let changes = policy_changes(dice);
    if let Value::Object(fields) = &mut policy {
        for (section, value) in changes {
            match (fields.get_mut(section), value) {
                (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
                (Some(Value::Object(_)), _) => {}
                (_, value) => _ = fields.insert(section.to_owned(), value),
            }
        }
    }
    policy
}

/// The sections of the example policy that this world changes.
fn policy_changes(dice: &mut Xoshiro256PlusPlus) -> BTreeMap<&'static str, Value> {
    let spot = dice.random_bool(0.6);
    let ttl = *pick(dice, &[30, 60, 300, 600, 900, 900]);
    let max: u32 = dice.random_range(21..=30);
    let min = *pick(dice, &[0, 0, 0, 2, 20]);
    // In dollars. Some values are so low that the limit is reached.
    let price = *pick(dice, &[0.0, 0.0, 0.0, 0.25]) * f64::from(max);
    let mut changes: BTreeMap<&'static str, Value> = BTreeMap::from([
        ("nodes", json!({"max": max, "min": min, "max_price_per_hour": price})),
        ("size", limited_sizes(dice, spot)),
    ]);
    changes.insert("retry", json!({"pause_s": 10, "most_s": 60}));
    changes.insert("jobs", json!({"roles": ["arn:aws:iam::000000000000:role/job"]}));
    changes.extend(launch_and_shutdown(dice));
    changes.extend(heartbeat_and_sweep(dice, ttl));
    changes
}

fn limited_sizes(dice: &mut Xoshiro256PlusPlus, spot: bool) -> Value {
    let mut sizes = sizes(spot);
    if dice.random_bool(0.3)
        && let Some(Value::Object(large)) = sizes.get_mut(2)
    {
        large.insert("max".into(), json!(10));
    }
    if dice.random_bool(0.15)
        && let Some(Value::Object(small)) = sizes.get_mut(0)
    {
        small.insert("max".into(), json!(4));
    }
    sizes
}

fn launch_and_shutdown(dice: &mut Xoshiro256PlusPlus) -> [(&'static str, Value); 4] {
    [
        (
            "launch",
            json!({"template": "lt-0123456789abcdef0", "max_per_call": 1, "max_per_run": pick(dice, &[5, 20, 60]),
                   "calls_per_second": pick(dice, &[2.0, 2.0, 10.0, 0.2]),
                   "subnets": pick(dice, &[json!([]), json!(["subnet-a"]), json!(["subnet-a", "subnet-b"])])}),
        ),
        ("boot", json!({"timeout_s": pick(dice, &[300, 600, 1800]), "failures_before_pause": pick(dice, &[3, 10])})),
        ("idle", json!({"timeout_s": pick(dice, &[60, 120, 600]), "confirmations": pick(dice, &[1, 2, 3])})),
        (
            "shutdown",
            json!({"windows_min": pick(dice, &[json!([]), json!([]), json!([8, 2]), json!([54, 5, 1])]),
                   "down_after_s": pick(dice, &[120, 600])}),
        ),
    ]
}

fn heartbeat_and_sweep(dice: &mut Xoshiro256PlusPlus, ttl: i32) -> [(&'static str, Value); 5] {
    [
        (
            "stale",
            json!({"after_s": pick(dice, &[1800, 7200]), "orphan_after_s": pick(dice, &[300, 600]),
                   "brake_min": pick(dice, &[3, 1000])}),
        ),
        (
            "heartbeat",
            json!({"ttl_s": ttl, "idle_s": (ttl / 3).max(10), "grace_s": pick(dice, &[10, 30]),
                   "brake_min": pick(dice, &[3, 1000]), "blackout_s": pick(dice, &[600, 1800])}),
        ),
        ("quota", json!({"retry_s": pick(dice, &[60, 600])})),
        ("poll", json!({"stale_after_s": pick(dice, &[45, 45, 10])})),
        (
            "sweep",
            json!({"report_s": pick(dice, &[30, 120, 300, 600, 600]), "failed_keep_s": pick(dice, &[0, 600, 3600]),
                   "creating_s": pick(dice, &[120, 600]), "cache_unused_s": pick(dice, &[300, 3600, 86_400]),
                   "missing_grace_s": pick(dice, &[60, 300]), "cap_min": pick(dice, &[3, 10])}),
        ),
    ]
}
