//! The jobs of one world: when they arrive, and what they need.

use super::World;
use crate::core::{Fault, lock};
use crate::scenario::{Arrivals, GPUS};
use model::amounts::Moment;
use model::{
    AfterEnd, FailurePolicy, Job, JobId, JobSpec, MarketNeed, Needs, Output, Pack, Policy, Ranges, Reconcile, Source,
    Span, Time,
};
use serde_json::json;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The output of jobs that leave one.
const OUTPUT: &str = "out";
/// How many of the last jobs are remembered, so that others may follow them.
const LATELY: usize = 20;

/// With this many caches, one transaction places one member.
const CACHES_OF_A_PART: usize = 48;

impl World {
    pub(super) async fn arrivals(self: Arc<Self>) {
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
                Arrivals::Backlog => i64::try_from(scenario.backlog).unwrap_or(i64::MAX),
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
                // A random wait with the mean `mean_ms`.
                Arrivals::Steady => core.between(1, mean_ms * 2),
                Arrivals::Bursts => mean_ms * burst,
                _ => (mean_ms * burst).min(end / 3),
            };
            sleep(Duration::from_millis(wait.unsigned_abs())).await;
        }
    }

    /// Submits small jobs. Each of them would find room, while a larger job has waited for longer.
    pub(super) async fn late_arrivals(self: Arc<Self>) {
        let end = Span::from_s(i64::from(self.core.scenario.late_hours) * 3600);
        if end <= Span::ZERO {
            return;
        }
        while !self.core.is_healed_for(end) {
            sleep(Duration::from_secs(120)).await;
            if self.core.is_healed() {
                // They have the lowest priority, so every job before them in the queue has waited for longer.
                let command = ["work", "5"];
                let spec = JobSpec { priority: 100, ..JobSpec::running(command) };
                self.send(spec).await;
                self.core.count("a small job came late");
            }
        }
    }

    async fn submit(&self) {
        let core = &self.core;
        let mut spec = self.next_job();
        if core.happens(Fault::JobFollows) {
            self.follow(&mut spec);
        }
        if core.happens(Fault::JobPutOff) {
            let wait = Span::from_s(core.of(Fault::JobPutOff, 0, 1800));
            match core.of(Fault::JobPutOff, 0, 2) {
                0 => spec.give_up_after_s = core.of(Fault::JobPutOff, 60, 2400).unsigned_abs(),
                _ => spec.not_before_at = Some(Moment::Away(wait)),
            }
            spec.max_failures = NonZeroU32::new(2);
            core.count("a job was put off");
        }
        let is_plain = spec.needs.nodes == 1 && spec.work.outputs.is_empty();
        if is_plain && core.happens(Fault::PackArrives) {
            let elements = core.of(Fault::PackArrives, 1, 40).unsigned_abs();
            let last = u32::try_from(elements).unwrap_or(1);
            spec.work.pack = Some(Pack::of(Ranges::of(0, last)));
            core.count("a pack was submitted");
        }
        // In an array, a job without an end would never let later jobs begin.
        let ends = spec.work.command.get(1).is_some_and(|length| length != "forever");
        if ends && core.happens(Fault::ArrayArrives) {
            self.submit_array(&spec).await;
        } else {
            self.send(spec).await;
        }
        core.count("a job was submitted");
        if core.maybe(0.2) {
            let input = json!({"Records": [{"eventName": "INSERT"}]});
            self.functions.ring(poll_and_scale::FUNCTION, input);
        }
    }

    /// Submits an array of such jobs, of which only some may be placed at once.
    async fn submit_array(&self, spec: &JobSpec) {
        let draw = |low, high| self.core.of(Fault::ArrayArrives, low, high);
        let now = self.core.now();
        let array = model::array::Array::new(now, draw(0, i64::MAX).unsigned_abs());
        let jobs = u32::try_from(draw(2, 24)).unwrap_or(2);
        let limit = [1, 2, 4, 6].get(usize::try_from(draw(0, 3)).unwrap_or(0)).copied().unwrap_or(1);
        for n in 0..jobs {
            let spec = JobSpec { array_limit: NonZeroU32::new(limit), ..spec.clone() };
            self.send_as(array.job(n), spec, now).await;
        }
        self.core.count("an array was submitted");
    }

    fn next_job(&self) -> JobSpec {
        let core = &self.core;
        let mean = core.scenario.job_s;
        let s = core.between(10, mean * 2);
        let length = if core.maybe(0.01) { "forever".to_owned() } else { s.to_string() };
        let nodes = if core.maybe(0.08) { core.between(2, 6) } else { 1 };
        let priority = u32::try_from(self.pick(&[500, 500, 500, 900, 100])).unwrap_or(500);
        let needs = Needs {
            vcpus: u32::try_from(self.pick(&[1, 1, 2, 2, 4, 8])).unwrap_or(1),
            memory_mib: self.pick(&[0, 512, 1024, 3000]),
            scratch_gib: self.pick(&[0, 0, 0, 10]),
            nodes: u32::try_from(nodes).unwrap_or(1),
            exclusive: core.maybe(0.05),
            ..Needs::default()
        };
        let failure_policy = self.failure_policy(&needs);
        let mut spec = JobSpec { priority, needs, failure_policy, ..JobSpec::running(["work".to_owned(), length]) };
        self.add_rare_needs(&mut spec);
        if s % 2 == 0 {
            spec.work.outputs = vec![Output { path: OUTPUT.to_owned(), to: None }];
        }
        spec.work.keep = (s % 3 == 0).then(|| "checkpoint".to_owned());
        if core.scenario.plain_jobs {
            spec = JobSpec {
                needs: Needs { vcpus: 2, ..Needs::default() },
                failure_policy: FailurePolicy { retry_lost: 1_000, ..FailurePolicy::default() },
                ..JobSpec::running(spec.work.command)
            };
            spec.work.command.truncate(1);
            spec.work.command.push(s.to_string());
        }
        spec
    }

    /// Remembers a job that arrived, so that others may follow it.
    fn remember(&self, job: &Job) {
        let mut arrived = lock(&self.arrived);
        arrived.push_back((job.summary.job_id, !job.work.outputs.is_empty()));
        if arrived.len() > LATELY {
            arrived.pop_front();
        }
    }

    /// Lets a job follow one to three jobs that arrived lately, which may have ended since. The job takes their outputs
    /// as inputs.
    fn follow(&self, spec: &mut JobSpec) {
        let core = &self.core;
        let lately = lock(&self.arrived).clone();
        let draw = |most: usize| {
            let drawn = core.of(Fault::JobFollows, 0, i64::try_from(most).unwrap_or(0));
            usize::try_from(drawn).unwrap_or(0)
        };
        for _ in 0..=draw(2) {
            let end = if draw(1) == 0 { AfterEnd::Success } else { AfterEnd::Any };
            let Some((job_id, leaves)) = lately.get(draw(lately.len().saturating_sub(1))).copied() else { continue };
            spec.after.insert(job_id, end);
            if leaves {
                let output = Source::Output { job_id, member: 0, path: OUTPUT.to_owned() };
                spec.work.inputs.insert(job_id.to_string(), output);
            }
        }
        if !spec.after.is_empty() {
            core.count("a job follows others");
        }
    }

    fn failure_policy(&self, needs: &Needs) -> FailurePolicy {
        let wants_copies = self.core.scenario.chance(Fault::CopyLeaves) > 0.0;
        let mut policy = FailurePolicy {
            kill_timeout_s: self.pick(&[10, 30, 120]),
            lost_after_s: self.pick(&[0, 60, 600, 600, 1800, 14_400]),
            replace: self.core.maybe(0.3) || wants_copies,
            reconcile: *self
                .core
                .one_of(&[Reconcile::Best, Reconcile::KeepOriginal, Reconcile::KeepReplacement])
                .unwrap_or(&Reconcile::Best),
            retry_failed: u32::try_from(self.pick(&[0, 0, 1, 3])).unwrap_or(0),
            retry_lost: u32::try_from(self.pick(&[0, 3, 3, 10])).unwrap_or(3),
            ..FailurePolicy::default()
        };
        if policy.retry_failed == 3 {
            let grows = "memory=again*2,memory*1.5,max-memory=3000M";
            let rules = [
                "exit:75-78=again*2,pause=45s,elsewhere",
                "memory=fail",
                "spot=again*1,pause=1s",
                "lost=again*2,elsewhere",
            ];
            let rules = rules
                .map(|rule| if rule == "memory=fail" && (1..3000).contains(&needs.memory_mib) { grows } else { rule });
            policy.retry = rules.iter().filter_map(|rule| rule.parse().ok()).collect();
            (policy.stop_notice_s, policy.retry_lost) = (20, FailurePolicy::default().retry_lost);
        }
        // What means nothing for this job is refused.
        policy.replace &= policy.lost_after_s > 0 && needs.nodes == 1;
        if !policy.replace {
            policy.reconcile = Reconcile::Best;
        }
        policy
    }

    fn add_rare_needs(&self, spec: &mut JobSpec) {
        let core = &self.core;
        if core.maybe(0.03) || core.happens(Fault::GpusWanted) {
            spec.needs.gpus = spec.needs.vcpus.min(GPUS);
        }
        if core.maybe(0.1) {
            spec.work.timeout_s = self.pick(&[60, 600]);
        }
        if core.maybe(0.2) {
            spec.work.caches =
                vec![["data", "tools"].get(usize::from(core.maybe(0.5))).map_or("data", |c| c).to_owned()];
        }
        if core.maybe(0.02) {
            spec.needs.machine.instance_type = Some("medium.type".into());
        }
        if core.maybe(0.02) {
            spec.needs.machine.market = Some(if core.maybe(0.5) { MarketNeed::OnDemand } else { MarketNeed::Spot });
        }
        if core.maybe(0.003) {
            // The job needs all nodes of the cluster at once.
            (spec.needs.nodes, spec.needs.vcpus, spec.needs.memory_mib) = (core.scenario.max(), 1, 0);
            spec.work.caches.clear();
        }
        if core.happens(Fault::RoleWanted) {
            spec.work.role = Some("job".to_owned());
        }
        if core.happens(Fault::MembersInParts) {
            let members = core.of(Fault::MembersInParts, 2, 4);
            spec.needs.nodes = spec.needs.nodes.max(u32::try_from(members).unwrap_or(2));
            spec.work.caches = (0..CACHES_OF_A_PART).map(|n| format!("part{n}")).collect();
        }
        if core.maybe(0.01) {
            // No size has this many vCPUs.
            spec.needs.vcpus = 512;
        }
    }

    fn pick(&self, all: &[i64]) -> u64 {
        self.core.one_of(all).copied().unwrap_or(0).unsigned_abs()
    }

    pub(super) async fn send(&self, spec: JobSpec) {
        self.send_by(None, spec).await;
    }

    /// Submits a job of this person.
    pub(super) async fn send_by(&self, by: Option<&str>, spec: JobSpec) {
        let (id, now) = (JobId::new(self.store.rng().ulid(self.core.now())), self.core.now());
        let Ok(mut job) = Job::submit(id, spec, now) else { return };
        job.summary.by = by.map(str::to_owned);
        self.write(job).await;
    }

    async fn send_as(&self, id: JobId, spec: JobSpec, now: Time) {
        let Ok(job) = Job::submit(id, spec, now) else { return };
        self.write(job).await;
    }

    /// Writes a job with its share, as the command does.
    async fn write(&self, mut job: Job) {
        let scenario = &self.core.scenario;
        if scenario.chance(Fault::Shares) > 0.0 {
            let is_of_a = job.summary.job_id.random_byte() < 150;
            job.summary.by = Some(if is_of_a { "a-ann" } else { "b-bob" }.to_owned());
        }
        if scenario.policy.get("share").is_some()
            && let Ok(policy) = Policy::from_json(&scenario.policy)
        {
            job.summary.share = policy.share_for(job.summary.by.as_deref(), None).unwrap_or_default();
        }
        self.remember(&job);
        for _ in 0..5 {
            if self.store.write(None, &job, Vec::new()).await.is_ok() {
                break;
            }
        }
    }
}
