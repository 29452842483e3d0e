//! The cost of a month: measured use, multiplied by prices, with named assumptions.
//!
//! Does not: count free tiers, discounts, taxes, the instances, their traffic, or the faults of a bad day.

use super::fleet::Kind;
use super::measure::{Measured, RUNS, woken};
use super::meter::Use;
use crate::second_opinions::root;
use model::functions::{CLEAN_STALE_RECORDS, HEARTBEAT_INGEST, POLL_AND_SCALE, SWEEP_DISPATCH};
use model::policy::LONGEST_JITTER;
use model::{Function, Policy};

/// Prices in US dollars, on demand, in us-east-1, as AWS published them in 2025. Source: the pricing pages of AWS
/// Lambda (arm64), Amazon DynamoDB, Amazon CloudWatch, Amazon EventBridge and Amazon SNS.
pub struct Prices {
    pub lambda_request: f64,
    pub lambda_gb_second: f64,
    pub read_unit: f64,
    pub write_unit: f64,
    pub storage_gb_month: f64,
    pub recovery_gb_month: f64,
    pub log_gb: f64,
    pub alarm_metric_month: f64,
    pub metric_month: f64,
    pub scheduler_invocation: f64,
    pub mail: f64,
}

pub const PRICES: Prices = Prices {
    lambda_request: 0.20 / 1e6,
    lambda_gb_second: 0.000_013_333_4,
    read_unit: 0.125 / 1e6,
    write_unit: 0.625 / 1e6,
    storage_gb_month: 0.25,
    recovery_gb_month: 0.20,
    log_gb: 0.50,
    alarm_metric_month: 0.10,
    metric_month: 0.30,
    scheduler_invocation: 1.00 / 1e6,
    mail: 2.00 / 100_000.0,
};

/// 365.25 / 12 days.
pub const MONTH_S: f64 = 2_629_800.0;
const HOURS: f64 = MONTH_S / 3600.0;
const GB: f64 = 1e9;

/// How long invocations take, in milliseconds. Lambda bills this time with the function's memory.
pub const HEARTBEAT_MS: f64 = 5.0;
/// A report that changes something makes several calls of DynamoDB, one after the other.
pub const REPORT_MS: f64 = 20.0;
/// An event that comes too soon makes one read.
pub const LEFT_MS: f64 = 5.0;
/// How much longer a job, or the launch and the end of a node, makes the runs.
pub const ACTIONS_MS: f64 = 50.0;
/// The durations of idle runs of poll-and-scale for two numbers of nodes, measured with the embedded DynamoDB on one
/// core. The other scheduled functions read less.
pub const RUNS_MS: [(f64, f64); 2] = [(1000.0, 130.0), (10_000.0, 420.0)];
/// The size of a run's line in the log, and what CloudWatch adds to each line.
const LOG_LINE_BYTES: f64 = 200.0;
const LINE_OVERHEAD_BYTES: f64 = 26.0;
/// The read units of the page of jobs that a run of clean-stale-records reads: 1 MiB, consistently.
const PAGE_OF_JOBS: f64 = 256.0;
/// Mails of alarms in a month.
pub const MAILS: f64 = 10.0;

#[derive(Clone, Debug)]
pub struct Load {
    pub policy: Policy,
    pub nodes: f64,
    pub jobs_per_node_hour: f64,
    pub lives_per_node_day: f64,
}

/// A row of the bill, and its dollars in a month.
pub type Bill = Vec<(&'static str, f64)>;

/// The template of a cluster as it comes: without job events and without a dashboard.
#[derive(Clone, Debug)]
pub struct Template {
    text: String,
}

impl Template {
    pub fn read() -> Self {
        let text = std::fs::read_to_string(root().join("infra/template.yaml")).unwrap();
        let is_chosen = |block: &str, condition| block.contains(&format!("\n    Condition: {condition}\n"));
        let always = |block: &&str| !["SendsJobEvents", "MakesDashboard"].iter().any(|c| is_chosen(block, c));
        Self { text: text.split("\n\n").filter(always).collect::<Vec<_>>().join("\n\n") }
    }

    pub fn resources(&self, kind: &str) -> usize {
        self.text.lines().filter(|l| l.trim_end() == format!("    Type: {kind}")).count()
    }

    /// Every type of its resources.
    pub fn types(&self) -> Vec<&str> {
        let (_, resources) = self.text.split_once("\nResources:\n").unwrap();
        let types = resources.lines().filter_map(|l| l.strip_prefix("    Type: "));
        types.map(str::trim_end).filter(|t| t.contains("::")).collect()
    }

    /// The metrics of its alarms. CloudWatch bills each of them.
    pub fn alarm_metrics(&self) -> usize {
        let alarms = self.text.split("Type: AWS::CloudWatch::Alarm\n").skip(1);
        alarms.map(|a| a.split("\n\n").next().unwrap().matches("MetricStat:").count().max(1)).sum()
    }

    /// A number of a function's properties.
    pub fn number(&self, resource: &str, property: &str) -> f64 {
        let (_, rest) = self.text.split_once(&format!("\n  {resource}:\n")).unwrap_or_else(|| panic!("no {resource}"));
        let block = rest.split("\n\n").next().unwrap();
        let line = block.lines().find_map(|l| l.trim().strip_prefix(property)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{resource} has no {property}")).trim().parse().unwrap()
    }

    fn memory_gb(&self, function: Function) -> f64 {
        let resource: String = function.name.split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        self.number(&resource, "MemorySize") / 1024.0
    }

    fn lambda(&self, function: Function, requests: f64, ms: f64) -> f64 {
        let seconds = requests * ms / 1000.0 * self.memory_gb(function);
        requests * PRICES.lambda_request + seconds * PRICES.lambda_gb_second
    }
}

pub fn units(used: Use) -> f64 {
    used.reads * PRICES.read_unit + used.writes * PRICES.write_unit
}

pub fn run_ms(nodes: f64) -> f64 {
    let [(n1, ms1), (n2, ms2)] = RUNS_MS;
    ms1 + (nodes - n1) * (ms2 - ms1) / (n2 - n1)
}

fn function(kind: Kind) -> Function {
    match kind {
        Kind::Sweep | Kind::HandleReport => SWEEP_DISPATCH,
        Kind::Clean => CLEAN_STALE_RECORDS,
        Kind::Heartbeat | Kind::AllocReport => HEARTBEAT_INGEST,
        Kind::Poll | Kind::Woken | Kind::Left | Kind::Submit => POLL_AND_SCALE,
    }
}

/// How often a node asks for work after a job has ended: after one second, after two more, and so on, until it gets
/// work. With a queue that is never empty, the next job starts after about four seconds.
const ASKS_PER_JOB: f64 = 2.0;

impl Load {
    pub fn is_busy(&self) -> bool {
        self.jobs_per_node_hour > 0.0
    }

    /// The mean of a random time between `s` and [`LONGEST_JITTER`] times `s`.
    fn with_jitter(s: f64) -> f64 {
        s * (1.0 + LONGEST_JITTER) / 2.0
    }

    /// How often nodes renew their leases, and how often they only ask.
    pub fn heartbeats(&self) -> (f64, f64) {
        let (policy, nodes) = (&self.policy.heartbeat, self.nodes as u64);
        if self.is_busy() {
            // The first heartbeat after a job renews the lease.
            let regular = self.nodes * MONTH_S / Self::with_jitter(policy.interval_s(nodes));
            return (regular + self.jobs(), self.jobs() * (ASKS_PER_JOB - 1.0));
        }
        let interval_s = policy.idle_interval_s(nodes);
        let wait_s = Self::with_jitter(interval_s);
        // The first heartbeat after this time renews the lease: half a wait later, on average.
        let asks_for_s = policy.lease(nodes).as_s() - interval_s * LONGEST_JITTER - policy.grace_s as f64;
        let renewal_s = (asks_for_s + wait_s / 2.0).max(wait_s);
        let (all, renewals) = (self.nodes * MONTH_S / wait_s, self.nodes * MONTH_S / renewal_s);
        (renewals, all - renewals)
    }

    /// A node whose handles do not change reports them once an hour.
    pub fn handle_reports(&self) -> f64 {
        self.nodes * HOURS
    }

    pub fn jobs(&self) -> f64 {
        self.nodes * self.jobs_per_node_hour * HOURS
    }

    pub fn lives(&self) -> f64 {
        self.nodes * self.lives_per_node_day * HOURS / 24.0
    }

    pub fn bill(&self, seen: &Measured, template: &Template) -> Bill {
        // Without nodes there is nothing to measure, and nothing is billed.
        let (metric_names, metric_bytes) =
            if self.nodes > 0.0 { (seen.metrics, seen.metric_bytes + LINE_OVERHEAD_BYTES) } else { (0.0, 0.0) };
        let lines = if self.is_busy() { &seen.busy } else { &seen.idle };
        let run = |kind: Kind| {
            // The other functions have metrics only if a sign is wrong.
            let metric_bytes = if function(kind) == POLL_AND_SCALE { metric_bytes } else { 0.0 };
            template.lambda(function(kind), 1.0, run_ms(self.nodes))
                + units(lines[&kind].at(self.nodes))
                + (LOG_LINE_BYTES + LINE_OVERHEAD_BYTES + metric_bytes) / GB * PRICES.log_gb
        };
        let scheduled = |kind: Kind| {
            let period_s = function(kind).period.unwrap().as_ms() as f64 / 1000.0;
            let jobs = if kind == Kind::Clean && self.jobs() > 0.0 { PAGE_OF_JOBS * PRICES.read_unit } else { 0.0 };
            MONTH_S / period_s * (run(kind) + jobs + PRICES.scheduler_invocation)
        };
        let alarms = template.alarm_metrics() as f64 * PRICES.alarm_metric_month + MAILS * PRICES.mail;
        let call = template.lambda(HEARTBEAT_INGEST, 1.0, HEARTBEAT_MS);
        let (renewals, asks) = self.heartbeats();
        let heartbeats = renewals * (call + units(seen.beat.renews)) + asks * (call + units(seen.beat.asks));
        let handles = template.lambda(SWEEP_DISPATCH, 1.0, HEARTBEAT_MS) + units(seen.handle_report);
        vec![
            ("metrics", metric_names * PRICES.metric_month),
            ("alarms", alarms),
            ("scheduled runs", RUNS.into_iter().map(scheduled).sum()),
            ("heartbeats", heartbeats),
            ("handle reports", self.handle_reports() * handles),
            ("runs that events start", self.woken_runs(seen, template, run(Kind::Poll))),
            ("jobs", self.jobs() * Self::life(&seen.job, template)),
            ("launches and ends of nodes", self.lives() * Self::life(&seen.node, template)),
            ("rows kept, with recovery", self.rows(seen)),
        ]
    }

    /// The cost of runs that events start, of their waiting time, and of invocations that leave their work to another
    /// run.
    fn woken_runs(&self, seen: &Measured, template: &Template, run: f64) -> f64 {
        let events = self.jobs() * seen.job.events + self.lives() * seen.node.events;
        let gap_s = poll_and_scale::gap(&self.policy.poll, self.nodes as u64).as_ms() as f64 / 1000.0;
        let (runs, waiting) = woken(events / MONTH_S, gap_s);
        let waits = waiting * MONTH_S * template.memory_gb(POLL_AND_SCALE) * PRICES.lambda_gb_second;
        let left = template.lambda(POLL_AND_SCALE, 1.0, LEFT_MS) + units(seen.left);
        runs * MONTH_S * run + waits + (events - runs * MONTH_S).max(0.0) * left
    }

    fn life(life: &crate::fleets::cost::measure::Lifetime, template: &Template) -> f64 {
        units(life.used)
            + life.alloc_reports * template.lambda(HEARTBEAT_INGEST, 1.0, REPORT_MS)
            + life.handle_reports * template.lambda(SWEEP_DISPATCH, 1.0, REPORT_MS)
            + template.lambda(POLL_AND_SCALE, 1.0, ACTIONS_MS)
            - PRICES.lambda_request
    }

    fn rows(&self, seen: &Measured) -> f64 {
        let history = &self.policy.history;
        let days = MONTH_S / 86_400.0;
        let kept = |a_month: f64, bytes: f64, keep_days: i64| a_month / days * keep_days as f64 * bytes;
        let bytes = kept(self.jobs(), seen.job.finished_bytes, history.finished_days)
            + kept(self.jobs(), seen.job.event_bytes, history.events_days)
            + kept(self.lives(), seen.node.event_bytes, history.events_days);
        bytes / GB * (PRICES.storage_gb_month + PRICES.recovery_gb_month)
    }
}

pub fn total(bill: &Bill) -> f64 {
    bill.iter().map(|(_, dollars)| dollars).sum()
}
