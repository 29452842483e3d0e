//! One world: the schedules, the jobs, the operators, trouble for some hours, and then the
//! proof that everything that should end does.

use crate::check::Check;
use crate::core::{Broken, Core, Fault, Line, lock};
use crate::ec2::Ec2;
use crate::embedded::Embedded;
use crate::functions::Functions;
use crate::happened::Happened;
use crate::machine::Machine;
use crate::scenario::{Arrivals, Scenario};
use crate::tables::Tables;
use model::control::{ControlKey, PolicyRow, Release};
use model::ids::JobId;
use model::policy::Policy;
use model::time::Span;
use model::{BrakeKind, FailurePolicy, Intent, Job, JobSpec, JobState, Market, Reconcile};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, Table, change_handle};
use tokio::time::sleep;

/// Within so many ticks of poll-and-scale after the faults stop, or after the job before it ended, a
/// job ends; after the last one every instance is gone. (The longest waits of a policy: a stale
/// record, a paused launch, a brake.)
pub const TICKS_TO_END: u32 = 720;
/// Within so many, what was to be drained before they stopped is.
pub const TICKS_TO_DRAIN: u32 = 30;
/// Within so many, nothing waits any more for an instance that was over by then.
pub const TICKS_TO_NOTICE: u32 = 60;
/// Within so many, every handle row too: a row is looked at once a day, and what a restored table has
/// forgotten is left for another.
pub const TICKS_TO_FORGET: u32 = 3200;
/// A fleet-hour is an hour of a cluster with at least so many nodes.
pub const FLEET: usize = 20;

/// What came of one world.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What broke.
    pub broken: Option<Broken>,
    /// What happened.
    pub happened: Happened,
    /// Hours it lasted.
    pub hours: f64,
    /// Hours with a fleet of at least [`FLEET`] nodes.
    pub fleet_hours: f64,
    /// Hours of all nodes together.
    pub node_hours: f64,
    /// The story, where one was told.
    pub lines: Vec<Line>,
}

/// How a world is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Keep the story's lines.
    pub telling: bool,
    /// On the real store (embedded), the model beside it held to the same answers.
    pub real_store: bool,
}

/// Runs a world from its beginning to its end.
pub fn simulate(scenario: Scenario, how: How) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => runtime.block_on(async {
            let world = World::new(scenario, how).await;
            world.live().await
        }),
        Err(e) => unreachable!("no runtime: {e}"),
    }
}

struct World {
    core: Arc<Core>,
    check: Arc<Check>,
    ec2: Arc<Ec2>,
    tables: Arc<Tables>,
    functions: Arc<Functions>,
    store: Store,
}

impl World {
    async fn new(mut scenario: Scenario, how: How) -> Arc<Self> {
        if how.real_store {
            // The embedded store is not restored.
            scenario.set_chance(Fault::Restored, 0.0);
        }
        let core = Arc::new(Core::new(scenario, how.telling));
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
        let ec2 = Ec2::new(Arc::clone(&core), Arc::clone(&check));
        check.watch(Arc::clone(&tables.model), &ec2);
        let functions = Functions::new(&core, &check, Arc::clone(&tables) as _, &ec2);
        let boot = {
            let (core, check) = (Arc::clone(&core), Arc::clone(&check));
            // Weak: EC2 keeps this, and the functions keep EC2.
            let (weak_ec2, weak_functions) = (Arc::downgrade(&ec2), Arc::downgrade(&functions));
            move |real: &crate::ec2::Real| match (weak_ec2.upgrade(), weak_functions.upgrade()) {
                (Some(ec2), Some(functions)) => Machine::boot(&core, &check, &ec2, &functions, real),
                _ => tokio::spawn(async {}).abort_handle(),
            }
        };
        ec2.on_boot(Box::new(boot));
        let store = functions.store().clone();
        let world = Arc::new(Self { core, check, ec2, tables, functions, store });
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
        ] {
            drop(work);
        }
        let (mut minutes, mut fleet, mut nodes) = (0_u32, 0_u32, 0_usize);
        let trouble = (self.core.scenario.hours * 60.0) as u32;
        let mut healthy = 0;
        // How many jobs have not ended, and since when so few.
        let mut fewest = (usize::MAX, 0);
        loop {
            tokio::select! {
                biased;
                () = self.core.stop.notified() => break,
                () = sleep(Duration::from_secs(60)) => {}
            }
            if self.core.what_broke().is_some() {
                break;
            }
            minutes += 1;
            let up = self.check.up();
            nodes += up;
            // What follows when nothing goes wrong any more proves little by the hour.
            let in_trouble = minutes <= trouble || self.core.scenario.plain_jobs;
            fleet += u32::from(up >= FLEET && in_trouble);
            if self.core.scenario.plain_jobs
                && minutes.is_multiple_of(10)
                && self.invariant_everything_ends_in_the_midst_of_chaos(minutes >= trouble)
            {
                break;
            }
            if minutes < trouble || self.core.scenario.plain_jobs {
                continue;
            }
            if minutes == trouble {
                self.heal().await;
            }
            healthy += 1;
            if healthy % 10 == 0 {
                self.check.invariant_the_first_job_is_served(Span::from_s(i64::from(TICKS_TO_END) * 60));
            }
            if healthy == TICKS_TO_DRAIN {
                self.check.invariant_a_drain_ends_by_its_deadline();
            }
            if healthy == TICKS_TO_NOTICE {
                self.check.invariant_what_is_gone_is_noticed();
                self.check.invariant_waiting_has_an_end();
            }
            // As long as jobs come, the last one has not ended.
            let late = self.core.scenario.late_hours * 60;
            if healthy % 10 == 0 && healthy > late {
                let jobs = self.check.jobs_left();
                if jobs < fewest.0 {
                    fewest = (jobs, healthy);
                }
                if self.invariant_everything_ends(healthy - fewest.1.max(late)) {
                    break;
                }
            }
        }
        Outcome {
            broken: self.core.what_broke(),
            happened: self.core.happened(),
            hours: f64::from(minutes) / 60.0,
            fleet_hours: f64::from(fleet) / 60.0,
            node_hours: nodes as f64 / 60.0,
            lines: self.core.lines(),
        }
    }

    /// Plain jobs all end, and leave nothing behind, although nothing is put right: before the world
    /// does. Whether they have.
    fn invariant_everything_ends_in_the_midst_of_chaos(&self, late: bool) -> bool {
        let left = self.check.what_is_left(0);
        if let (true, Some(left)) = (late, &left) {
            self.core.broken("invariant_everything_ends_in_the_midst_of_chaos", left.clone());
        }
        left.is_none()
    }

    /// When the faults are over, everything that should end does: within [`TICKS_TO_END`] since the
    /// last job did, and handle rows within [`TICKS_TO_FORGET`]. Whether it has.
    fn invariant_everything_ends(&self, ticks: u32) -> bool {
        let min = self.core.scenario.policy.pointer("/nodes/min").and_then(Value::as_u64).unwrap_or(0);
        let Some(left) = self.check.what_is_left(u32::try_from(min).unwrap_or(0)) else { return true };
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

    /// EventBridge passes on what EC2 says.
    async fn events(self: Arc<Self>) {
        loop {
            sleep(Duration::from_secs(10)).await;
            for instance in self.ec2.take_warnings() {
                // Not every warning arrives; the node's agent sees it too.
                if self.core.maybe(0.6) {
                    let input = json!({"detail-type": "EC2 Spot Instance Interruption Warning",
                        "detail": {"instance-id": instance}});
                    self.functions.ring(poll_and_scale::FUNCTION, input);
                }
            }
        }
    }

    async fn arrivals(self: Arc<Self>) {
        let core = &self.core;
        let scenario = &core.scenario;
        let mut submitted = 0;
        let mean_ms = (3_600_000.0 / scenario.jobs_per_hour) as i64;
        let end = (scenario.hours * 3_600_000.0) as i64;
        while submitted < scenario.most_jobs && !core.is_healed() {
            let burst = match scenario.arrivals {
                Arrivals::None => return,
                Arrivals::Steady => 1,
                Arrivals::Bursts => core.between(5, 60),
                Arrivals::Backlog => 150,
            };
            for _ in 0..burst {
                if submitted >= scenario.most_jobs {
                    return;
                }
                if self.check.jobs() >= scenario.most_waiting {
                    break;
                }
                self.submit().await;
                submitted += 1;
            }
            let wait = match scenario.arrivals {
                // An exponential wait, roughly.
                Arrivals::Steady => core.between(1, mean_ms * 2),
                Arrivals::Bursts => mean_ms * burst,
                _ => (mean_ms * burst).min(end / 3),
            };
            sleep(Duration::from_millis(wait.unsigned_abs())).await;
        }
    }

    /// Small jobs that would each find room, where a larger one has waited for longer.
    async fn late_arrivals(self: Arc<Self>) {
        let end = Span::from_s(i64::from(self.core.scenario.late_hours) * 3600);
        if end <= Span::ZERO {
            return;
        }
        while !self.core.is_healed_for(end) {
            sleep(Duration::from_secs(120)).await;
            if self.core.is_healed() {
                // Of the least priority: what is before them in the queue has waited for longer.
                let command = vec!["work".into(), "5".into()];
                let spec = JobSpec { command, priority: 100, ..JobSpec::default() };
                self.send(spec).await;
                self.core.count("a small job came late");
            }
        }
    }

    async fn submit(&self) {
        let core = &self.core;
        let pick = |all: &[i64]| core.one_of(all).copied().unwrap_or(0).unsigned_abs();
        let mean = core.scenario.job_s;
        let s = core.between(10, mean * 2);
        let length = if core.maybe(0.01) { "forever".to_owned() } else { s.to_string() };
        let nodes = if core.maybe(0.08) { core.between(2, 6) } else { 1 };
        let mut spec = JobSpec {
            command: vec!["work".into(), length],
            priority: u32::try_from(pick(&[500, 500, 500, 900, 100])).unwrap_or(500),
            vcpus: u32::try_from(pick(&[1, 1, 2, 2, 4, 8])).unwrap_or(1),
            memory_mib: pick(&[0, 512, 1024, 3000]),
            scratch_gib: pick(&[0, 0, 0, 10]),
            nodes: u32::try_from(nodes).unwrap_or(1),
            exclusive: core.maybe(0.05),
            failure_policy: FailurePolicy {
                kill_timeout_s: pick(&[10, 30, 120]),
                lost_after_s: pick(&[0, 60, 600, 600, 1800, 14_400]),
                replace: core.maybe(0.3),
                reconcile: *core
                    .one_of(&[Reconcile::Best, Reconcile::KeepOriginal, Reconcile::KeepReplacement])
                    .unwrap_or(&Reconcile::Best),
            },
            retry_failed: u32::try_from(pick(&[0, 0, 1, 3])).unwrap_or(0),
            retry_lost: u32::try_from(pick(&[0, 3, 3, 10])).unwrap_or(3),
            ..JobSpec::default()
        };
        if core.maybe(0.03) {
            spec.gpus = 1;
        }
        if core.maybe(0.1) {
            spec.timeout_s = pick(&[60, 600]);
        }
        if core.maybe(0.2) {
            spec.caches = vec![["data", "tools"].get(usize::from(core.maybe(0.5))).map_or("data", |c| c).to_owned()];
        }
        if core.maybe(0.02) {
            spec.instance_type = Some("medium.type".into());
        }
        if core.maybe(0.02) {
            spec.market = Some(if core.maybe(0.5) { Market::OnDemand } else { Market::Spot });
        }
        if core.maybe(0.003) {
            // All nodes there may be, at once.
            (spec.nodes, spec.vcpus, spec.memory_mib) = (core.scenario.max(), 1, 0);
            spec.caches.clear();
        }
        if core.maybe(0.01) {
            // Nothing fits it.
            spec.vcpus = 512;
        }
        if core.scenario.plain_jobs {
            spec = JobSpec { command: spec.command, vcpus: 2, retry_lost: 1_000, ..JobSpec::default() };
            spec.command.truncate(1);
            spec.command.push(s.to_string());
        }
        self.send(spec).await;
        core.count("a job was submitted");
        if core.maybe(0.2) {
            let input = json!({"Records": [{"eventName": "INSERT"}]});
            self.functions.ring(poll_and_scale::FUNCTION, input);
        }
    }

    async fn send(&self, spec: JobSpec) {
        let now = self.core.now();
        let id = JobId::new(self.store.chance().ulid(now));
        let Ok(job) = Job::submit(id, spec, now) else { return };
        for _ in 0..5 {
            if self.store.write(None, &job, Vec::new()).await.is_ok() {
                break;
            }
        }
    }

    /// Stores a policy as an operator does.
    async fn set_policy(&self, document: &Value) -> bool {
        let Ok(policy) = Policy::from_json(document) else {
            self.core.broken("the_world_has_a_right_policy", format!("{:?}", Policy::from_json(document)));
            return true;
        };
        let Ok(control) = self.store.control().await else { return false };
        let old = control.policy;
        let row = match &old {
            Some(old) => PolicyRow { document: policy.to_json().to_string(), ..old.clone() },
            None => PolicyRow::new(&policy),
        };
        self.store.write(old.as_ref(), &row, Vec::new()).await.is_ok()
    }

    async fn operators(self: Arc<Self>) {
        let mut backups = VecDeque::new();
        let mut document = self.core.scenario.policy.clone();
        let base = document.clone();
        let mut minutes = 0_u64;
        let mut healthy = 0;
        loop {
            sleep(Duration::from_secs(120)).await;
            minutes += 2;
            let core = &self.core;
            if core.is_healed() {
                if minutes.is_multiple_of(10) {
                    // These two wait for an operator; the others end by themselves.
                    self.release(&[BrakeKind::Orphans, BrakeKind::Handles]).await;
                    healthy += 10;
                    if healthy <= 60 {
                        self.intend(Intent::Drain).await;
                    }
                }
                continue;
            }
            if core.maybe(0.03) {
                self.release(&[BrakeKind::Missing, BrakeKind::Leases, BrakeKind::Orphans, BrakeKind::Handles]).await;
            }
            if minutes.is_multiple_of(10) {
                backups.push_back(lock(&self.tables.model).backup());
                if backups.len() > 4 {
                    backups.pop_front();
                }
            }
            if core.happens(Fault::Restored)
                && let Some(backup) = backups.front()
            {
                self.functions.stop_all();
                core.tell(|| "operator".into(), || "restores the tables as they were".into());
                self.tables.restore(backup);
                document = base.clone();
                while !self.set_policy(&document).await {}
            }
            if core.happens(Fault::ZoneLost) {
                self.ec2.lose_most();
            }
            if core.happens(Fault::OperatorHolds) {
                self.intend(Intent::Hold).await;
            }
            if core.happens(Fault::OperatorDrains) {
                self.intend(Intent::Drain).await;
            }
            if core.maybe(0.05) {
                self.intend(Intent::Run).await;
            }
            if core.happens(Fault::OperatorCancels) {
                self.cancel_one().await;
            }
            if core.happens(Fault::OperatorKeeps) {
                self.keep_one(true).await;
            }
            let mut changed = document.clone();
            if core.happens(Fault::OperatorResizes) {
                let max = core.of(Fault::OperatorResizes, 8, 40);
                let min = base.pointer("/nodes/min").and_then(Value::as_i64).unwrap_or(0);
                set(&mut changed, "/nodes/max", json!(max));
                set(&mut changed, "/nodes/min", json!(min.min(max)));
            }
            if core.happens(Fault::OperatorRewrites) {
                set(&mut changed, "/launch/user_data", json!(format!("echo {minutes}")));
            }
            if core.happens(Fault::OperatorRewritesTimes) {
                let ttl = [30, 60, 300, 900].get(core.of(Fault::OperatorRewritesTimes, 0, 3).unsigned_abs() as usize);
                let ttl = ttl.copied().unwrap_or(60);
                set(&mut changed, "/heartbeat/ttl_s", json!(ttl));
                set(&mut changed, "/heartbeat/idle_s", json!((ttl / 3).max(10)));
                set(&mut changed, "/sweep/report_s", json!(core.of(Fault::OperatorRewritesTimes, 30, 600)));
            }
            if core.happens(Fault::OperatorDropsSize) {
                let without: Vec<Value> = base
                    .get("size")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter(|s| s.get("name").and_then(Value::as_str) != Some("small"))
                    .cloned()
                    .collect();
                set(&mut changed, "/size", Value::Array(without));
            } else if core.happens(Fault::OperatorRewritesSize) {
                let n = core.of(Fault::OperatorRewritesSize, 0, 2);
                let (name, value) = match core.of(Fault::OperatorRewritesSize, 0, 2) {
                    0 => ("vcpus", json!(core.of(Fault::OperatorRewritesSize, 1, 8))),
                    1 => ("memory_mib", json!(core.of(Fault::OperatorRewritesSize, 1024, 16_384))),
                    _ => ("price_per_hour", json!(core.of(Fault::OperatorRewritesSize, 1, 90) as f64 / 100.0)),
                };
                set(&mut changed, &format!("/size/{n}/{name}"), value);
            } else if core.maybe(0.05)
                && let Some(sizes) = base.get("size")
            {
                set(&mut changed, "/size", sizes.clone());
            }
            if changed != document && self.set_policy(&changed).await {
                core.tell(|| "operator".into(), || format!("stores a policy: {:?}", changed.get("nodes")));
                document = changed;
            }
        }
    }

    async fn intend(&self, intent: Intent) {
        let Ok(nodes) = self.store.nodes().await else { return };
        let nodes: Vec<_> = nodes
            .into_iter()
            .filter(|n| n.life().is_some_and(|l| (l.intent == Intent::Run) != (intent == Intent::Run)))
            .collect();
        let Some(record) = self.core.one_of(&nodes) else { return };
        let by = (intent == Intent::Drain && self.core.maybe(0.5))
            .then(|| self.core.now() + Span::from_s(self.core.between(60, 3600)));
        if let Ok(after) = record.with_intent(intent, by, self.core.now()) {
            // A lost race: the operator would try again.
            let _ = self.store.write(Some(record), &after, Vec::new()).await;
        }
    }

    async fn cancel_one(&self) {
        // Any job an operator may know of, also one that has ended.
        let jobs: Vec<JobId> = lock(&self.tables.model)
            .rows(Table::Jobs)
            .filter_map(|row| row.get("job_id")?.as_s().ok()?.parse().ok())
            .collect();
        let Some(job) = self.core.one_of(&jobs) else { return };
        self.cancel(*job).await;
    }

    async fn cancel(&self, id: JobId) {
        for _ in 0..10 {
            let Ok(Some(job)) = self.store.job(id).await else { continue };
            let Some(after) = job.cancel(Span::from_s(7 * 86_400), self.core.now()) else { return };
            if self.store.write(Some(&job), &after, Vec::new()).await.is_ok() {
                return;
            }
        }
    }

    async fn keep_one(&self, keep: bool) {
        let keys: Vec<_> = {
            let model = lock(&self.tables.model);
            model.rows(Table::Handles).map(|r| (r.get("node_id").cloned(), r.get("handle").cloned())).collect()
        };
        let parse = |v: &Option<aws_sdk_dynamodb::types::AttributeValue>| v.as_ref()?.as_s().ok().cloned();
        let some = if keep { self.core.one_of(&keys).cloned().into_iter().collect() } else { keys };
        for (node, handle) in some {
            let (Some(node), Some(handle)) = (parse(&node).and_then(|n| n.parse().ok()), parse(&handle)) else {
                continue;
            };
            let Ok(Some(row)) = self.store.handle(node, &handle).await else { continue };
            if row.keep != keep {
                let after = model::Handle { keep, ..row.clone() };
                let _ = self.store.apply(&change_handle(&row, &after)).await;
            }
        }
    }

    /// An operator lets go of brakes.
    async fn release(&self, kinds: &[BrakeKind]) {
        let now = self.core.now();
        for kind in kinds {
            let Ok(before) = self.store.entry::<Release>(&ControlKey::Release(*kind)).await else { continue };
            let after = before.given(None, Span::from_s(600), now);
            let _ = self.store.write_entry(&before, &after).await;
        }
    }

    /// From now on nothing goes wrong, and operators want nothing unusual.
    async fn heal(&self) {
        self.core.tell(|| "the world".into(), || "the faults are over".into());
        if self.core.maybe(0.3) && self.core.scenario.chance(Fault::ZoneLost) > 0.0 {
            // A last blow.
            self.ec2.lose_most();
        }
        self.core.heal();
        self.ec2.heal();
        self.functions.heal();
        while !self.set_policy(&self.core.scenario.policy).await {}
        for _ in 0..3 {
            let Ok(nodes) = self.store.nodes().await else { continue };
            for record in nodes.iter().filter(|n| n.life().is_some_and(|l| l.intent == Intent::Hold)) {
                if let Ok(after) = record.with_intent(Intent::Run, None, self.core.now()) {
                    let _ = self.store.write(Some(record), &after, Vec::new()).await;
                }
            }
        }
        if let Ok(jobs) = self.store.queue().await {
            for summary in jobs {
                if let Ok(Some(job)) = self.store.job(summary.job_id).await
                    && job.work.command.get(1).is_some_and(|s| s == "forever")
                    && job.summary.state != JobState::Cancelled
                {
                    self.cancel(summary.job_id).await;
                }
            }
        }
        self.keep_one(false).await;
    }
}

fn set(document: &mut Value, path: &str, value: Value) {
    if let Some(place) = document.pointer_mut(path) {
        *place = value;
    } else if let Some((parent, name)) = path.rsplit_once('/')
        && let Some(Value::Object(fields)) = document.pointer_mut(parent)
    {
        fields.insert(name.to_owned(), value);
    }
}
