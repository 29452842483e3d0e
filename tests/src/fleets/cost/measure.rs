//! Measures what each invocation uses on fleets of several sizes, and what a job and a node use in their whole lives.

use super::fleet::{Fleet, Invocation, JOB_S, Kind};
use super::meter::{Use, stored_bytes};
use model::{JobSpec, Time};
use runtime::metrics::of_run;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use store::{Row, Table};

/// The sizes of the fleets that are measured.
const FLEETS: [u32; 4] = [0, 10, 40, 160];
/// The scheduled runs. Their use grows with the fleet.
pub const RUNS: [Kind; 3] = [Kind::Poll, Kind::Sweep, Kind::Clean];
/// The number of jobs in the fleet in which the life of a job is measured, and the seconds from one job to the next:
/// ten nodes run nearly all the time.
const JOBS: i64 = 40;
const EVERY_S: i64 = (JOB_S + 60) / 10;

/// A use that grows with the fleet: an amount for each invocation, and an amount for each node.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub at_zero: Use,
    pub per_node: Use,
}

impl Line {
    pub fn at(&self, nodes: f64) -> Use {
        self.at_zero + self.per_node * nodes
    }

    /// The line through the first and the last point. The other points must be on the line, except for rounding: each
    /// of several lists is rounded up to whole read units.
    fn through(what: Kind, points: &[(u32, Use)]) -> Self {
        let (&(first, low), &(last, high)) = (points.first().unwrap(), points.last().unwrap());
        let per_node = (high - low) * (1.0 / f64::from(last - first));
        let line = Self { at_zero: low - per_node * f64::from(first), per_node };
        for (nodes, used) in points {
            let off = *used - line.at(f64::from(*nodes));
            assert!(off.reads.abs() <= 2.0 && off.writes.abs() <= 0.1, "{what:?} does not grow in a line: {points:?}");
        }
        line
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Lifetime {
    /// All units, except those of invocations that happen anyway.
    pub used: Use,
    pub alloc_reports: f64,
    /// The number of handle reports that change something.
    pub handle_reports: f64,
    /// The number of events that wake poll-and-scale.
    pub events: f64,
    /// The bytes that stay in the tables, indexes included: ended jobs and allocs, and events.
    pub finished_bytes: f64,
    pub event_bytes: f64,
}

/// The two kinds of steady heartbeats.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beats {
    /// A heartbeat that renews the lease.
    pub renews: Use,
    /// A heartbeat that only asks.
    pub asks: Use,
    /// The share of the heartbeats of an idle node that renew the lease.
    pub renewing_share: f64,
}

impl Beats {
    /// What this heartbeat would use if it were steady.
    fn steady(self, of: &Invocation) -> Use {
        if of.used.writes > 0.0 { self.renews } else { self.asks }
    }
}

#[derive(Clone, Debug)]
pub struct Measured {
    pub idle: BTreeMap<Kind, Line>,
    pub busy: BTreeMap<Kind, Line>,
    pub beat: Beats,
    pub handle_report: Use,
    /// An event that left its work to another run.
    pub left: Use,
    pub job: Lifetime,
    pub node: Lifetime,
    /// The metrics of a run of poll-and-scale in which no sign is wrong, and the bytes of their line.
    pub metrics: f64,
    pub metric_bytes: f64,
}

/// The default policy with these numbers of nodes. Launches are not slowed down, because the speed of launches does not
/// change the cost.
fn policy(min: u32, max: u32) -> Value {
    let mut policy = model::policy::example_json();
    policy["nodes"] = json!({"min": min, "max": max});
    policy["launch"]["subnets"] = json!(["subnet-0123456789abcdef0"]);
    policy["launch"]["calls_per_second"] = json!(1000);
    policy["launch"]["max_per_run"] = json!(1000);
    policy
}

/// An ordinary job, with a command and an environment of 500 bytes. Its output is as long as the kept part can be.
fn spec(command: &str) -> JobSpec {
    let command = vec![command.to_owned(), "x".repeat(100), "y".repeat(150)];
    let env = [("INPUT".to_owned(), "z".repeat(240))].into();
    JobSpec { env, name: Some("an-ordinary-job".into()), ..JobSpec::running(command) }
}

fn mean(of: &[Invocation], kind: Kind) -> Use {
    let uses: Vec<Use> = of.iter().filter(|i| i.kind == kind).map(|i| i.used).collect();
    assert!(!uses.is_empty(), "no {kind:?}");
    uses.iter().fold(Use::default(), |sum, used| sum + *used) * (1.0 / uses.len() as f64)
}

/// The median use of invocations of this kind.
fn usual(of: &[Invocation], kind: Kind) -> Use {
    let mut uses: Vec<Use> = of.iter().filter(|i| i.kind == kind).map(|i| i.used).collect();
    uses.sort_by(|a, b| (a.reads + a.writes).total_cmp(&(b.reads + b.writes)));
    uses[uses.len() / 2]
}

/// A fleet of this size at rest: idle, or with an endless job on each node.
async fn steady(nodes: u32, is_busy: bool) -> (Fleet, Vec<Invocation>) {
    let exclusive = JobSpec { needs: model::Needs { exclusive: true, ..spec("forever").needs }, ..spec("forever") };
    let mut fleet = Fleet::new(&policy(nodes, nodes), exclusive).await;
    if is_busy {
        fleet.submit(i64::from(nodes), 1);
    }
    // This is long enough for the boot, for the start of every job and for the first look at its handle.
    fleet.pass(if is_busy { 1500 } else { 200 }).await;
    assert_eq!(fleet.up(), nodes as usize);
    fleet.take();
    fleet.pass(600).await;
    let at_rest = fleet.take();
    (fleet, at_rest)
}

fn lines(points: &BTreeMap<Kind, Vec<(u32, Use)>>) -> BTreeMap<Kind, Line> {
    points.iter().map(|(kind, points)| (*kind, Line::through(*kind, points))).collect()
}

pub async fn measure() -> Measured {
    let (mut idle, mut busy) = (BTreeMap::new(), BTreeMap::new());
    let (mut beat, mut handle_report) = (Beats::default(), Use::default());
    let (mut metrics, mut metric_bytes) = (0.0, 0.0);
    for nodes in FLEETS {
        for is_busy in [false, true] {
            let (mut fleet, at_rest) = steady(nodes, is_busy).await;
            let points: &mut BTreeMap<Kind, Vec<(u32, Use)>> = if is_busy { &mut busy } else { &mut idle };
            for kind in RUNS {
                points.entry(kind).or_default().push((nodes, mean(&at_rest, kind)));
            }
            if nodes > 0 {
                if is_busy {
                    beat.renews = usual(&at_rest, Kind::Heartbeat);
                } else {
                    let beats: Vec<_> = at_rest.iter().filter(|i| i.kind == Kind::Heartbeat).collect();
                    let renewing = beats.iter().filter(|i| i.used.writes > 0.0).count();
                    beat.asks = usual(&at_rest, Kind::Heartbeat);
                    beat.renewing_share = renewing as f64 / beats.len() as f64;
                }
                assert!(at_rest.iter().all(|i| i.kind != Kind::HandleReport), "nothing changes");
                fleet.reports_are_due();
                fleet.pass(100).await;
                handle_report = usual(&fleet.take(), Kind::HandleReport);
            }
            let answer = fleet.answered.lock().unwrap().clone().unwrap();
            let line = of_run(&answer, &"a-cluster".parse().unwrap(), Time::from_ms(0));
            assert_eq!(line.is_some(), nodes > 0, "a cluster without nodes has no metrics");
            if let Some(line) = line {
                let named = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array().unwrap();
                (metrics, metric_bytes) = (named.len() as f64, line.to_string().len() as f64);
            }
        }
    }
    // The documents promise this for every steady call.
    assert_eq!((beat.renews.reads, beat.renews.writes), (0.0, 1.0), "a renewal is one write and no read");
    assert_eq!((beat.asks.reads, beat.asks.writes), (1.0, 0.0), "a heartbeat that only asks is one read and no write");
    assert!(handle_report.reads < 10.0 && handle_report.writes <= 1.0, "the hourly report: {handle_report:?}");
    let (idle, busy) = (lines(&idle), lines(&busy));
    let job = life_of_a_job(beat, handle_report).await;
    let left = event_that_left().await;
    let node = life_of_a_node(&idle, beat, handle_report).await;
    Measured { idle, busy, beat, handle_report, left, job, node, metrics, metric_bytes }
}

/// The use of whole lives: everything that was used, without the use of the same invocations at rest.
fn lifetime(log: &[Invocation], count: f64, at_rest: impl Fn(&Invocation) -> Use) -> Lifetime {
    let mut life = Lifetime::default();
    for invocation in log {
        let extra = invocation.used - at_rest(invocation);
        life.used += extra;
        match invocation.kind {
            Kind::AllocReport => life.alloc_reports += 1.0,
            Kind::HandleReport if extra.reads + extra.writes > 0.0 => life.handle_reports += 1.0,
            Kind::Woken | Kind::Left => life.events += 1.0,
            _ => {}
        }
    }
    Lifetime {
        used: life.used * (1.0 / count),
        alloc_reports: life.alloc_reports / count,
        handle_reports: life.handle_reports / count,
        events: life.events / count,
        ..life
    }
}

fn bytes(fleet: &Fleet, tables: &[Table]) -> f64 {
    let model = fleet.tables.lock().unwrap();
    tables.iter().flat_map(|t| model.rows(*t).map(|row| stored_bytes(*t, row) as f64)).sum()
}

/// Jobs on a fleet that stays up, from their submission until nothing is left of their handles.
async fn life_of_a_job(beat: Beats, handle_report: Use) -> Lifetime {
    let (mut fleet, at_rest) = steady(10, false).await;
    let run: BTreeMap<Kind, Use> = RUNS.iter().map(|kind| (*kind, mean(&at_rest, *kind))).collect();
    // The process of the function makes a note each minute, in one of the heartbeats.
    let extra = |i: &Invocation| Invocation { used: i.used - beat.steady(i), ..*i };
    let note = mean(&at_rest.iter().map(extra).collect::<Vec<_>>(), Kind::Heartbeat);
    fleet.spec = JobSpec { needs: model::Needs { exclusive: true, ..spec("work").needs }, ..spec("work") };
    let before = (bytes(&fleet, &[Table::Jobs, Table::Allocs]), bytes(&fleet, &[Table::Events]));
    fleet.submit(JOBS, EVERY_S);
    fleet.pass(JOBS * EVERY_S + 2 * 3600).await;
    let ended = |row: &Row| row.get("state").is_some_and(|s| s.as_s().is_ok_and(|s| s == "complete"));
    assert_eq!(fleet.tables.lock().unwrap().rows(Table::Jobs).filter(|row| ended(row)).count() as i64, JOBS);
    let traces = fleet.tables.lock().unwrap().rows(Table::Handles).count();
    assert_eq!(traces, 0, "the handles of the jobs are gone");
    let count = JOBS as f64;
    let life = lifetime(&fleet.take(), count, |i| match i.kind {
        Kind::Heartbeat => beat.steady(i) + note,
        Kind::HandleReport => handle_report,
        Kind::Woken => run[&Kind::Poll],
        // A run of clean-stale-records reads one page of the jobs, however many there are: the bill counts a whole page.
        Kind::Left | Kind::Clean => i.used,
        kind => run.get(&kind).copied().unwrap_or_default(),
    });
    let finished_bytes = (bytes(&fleet, &[Table::Jobs, Table::Allocs]) - before.0) / count;
    let event_bytes = (bytes(&fleet, &[Table::Events]) - before.1) / count;
    Lifetime { finished_bytes, event_bytes, ..life }
}

/// The use of an event that comes while another run waits for its turn.
async fn event_that_left() -> Use {
    let mut fleet = Fleet::new(&policy(0, 0), spec("work")).await;
    fleet.pass(10).await;
    fleet.events(10.0, 20.0);
    fleet.pass(60).await;
    mean(&fleet.take(), Kind::Left)
}

/// Nodes from their launch until their slots are free again.
async fn life_of_a_node(idle: &BTreeMap<Kind, Line>, beat: Beats, handle_report: Use) -> Lifetime {
    const NODES: u32 = 20;
    let mut fleet = Fleet::new(
        &policy(0, NODES),
        JobSpec { needs: model::Needs { exclusive: true, ..spec("work").needs }, ..spec("work") },
    )
    .await;
    fleet.pass(300).await;
    fleet.take();
    let before = bytes(&fleet, &[Table::Events]);
    fleet.set_policy(&policy(NODES, NODES)).await;
    fleet.pass(900).await;
    assert_eq!(fleet.up(), NODES as usize);
    fleet.set_policy(&policy(0, NODES)).await;
    fleet.pass(3600).await;
    assert_eq!(fleet.up(), 0);
    let log = fleet.take();
    let count = f64::from(NODES);
    let life = lifetime(&log, count, |i| match i.kind {
        Kind::Heartbeat => beat.steady(i),
        Kind::HandleReport => handle_report,
        Kind::Woken => idle[&Kind::Poll].at(i.nodes as f64),
        Kind::Left => i.used,
        kind => idle.get(&kind).map(|line| line.at(i.nodes as f64)).unwrap_or_default(),
    });
    Lifetime { event_bytes: (bytes(&fleet, &[Table::Events]) - before) / count, ..life }
}

/// How often events start a run, and how long the runs wait, if `rate` events come in a second: the runs, and the
/// seconds of waiting, in each second.
///
/// After a run, the first event within the gap waits for its end, and an event after the gap starts a run at once. With
/// events at random times, the mean time from one run to the next is `gap + e^(-rate * gap) / rate`, and the mean wait is
/// `gap - (1 - e^(-rate * gap)) / rate`.
pub fn woken(rate: f64, gap_s: f64) -> (f64, f64) {
    if rate <= 0.0 {
        return (0.0, 0.0);
    }
    let none = (-rate * gap_s).exp();
    let cycle_s = gap_s + none / rate;
    (1.0 / cycle_s, (gap_s - (1.0 - none) / rate) / cycle_s)
}

/// The real function on a cluster without nodes must start as many runs as computed.
#[tokio::test(start_paused = true)]
async fn nightly_events_start_as_many_runs_as_computed() {
    for rate in [0.02, 0.2, 2.0] {
        let mut fleet = Fleet::new(&policy(0, 0), spec("work")).await;
        fleet.pass(10).await;
        let (seconds, gap) = (7200.0, poll_and_scale::gap(&fleet.policy.poll, 0));
        fleet.events(rate, seconds);
        fleet.pass(7230).await;
        let log = fleet.take();
        let runs = log.iter().filter(|i| i.kind == Kind::Woken).count() as f64 / seconds;
        let waited = log.iter().filter(|i| i.kind == Kind::Woken).map(|i| i.waited_s).sum::<f64>() / seconds;
        let (expected_runs, expected_wait) = woken(rate, gap.as_ms() as f64 / 1000.0);
        // Scheduled runs also begin gaps, so a little more waits.
        assert!((runs / expected_runs - 1.0).abs() < 0.15, "{rate}: {runs} runs a second, not {expected_runs}");
        assert!((waited - expected_wait).abs() < 0.05, "{rate}: {waited} s of waiting a second, not {expected_wait}");
    }
}
