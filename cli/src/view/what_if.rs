//! What it would take: the least change with which the plan starts a job that waits, or shuts down a node that stays.
//!
//! Each change is tried alone, by asking the plan again.
//! Guarantees: the plan with this change does it. As far as more of a change never does less, no smaller one of its kind does it.
//! At most [`PLANS`] plans are made, and none after [`TIME`]: in a large cluster some changes are then not found.
//! Does not: combine changes, or change anything.

use model::policy::WorkLimits;
use model::{ActionName, Intent, JobId, JobState, JobSummary, MarketNeed, NodeState, Reason, Slot, Time, Usd};
use poll_and_scale::FleetPlan;
use runtime::observation::Observation;
use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// How many plans are made to find the changes for one job or node.
const PLANS: usize = 150;
/// How long plans are made. A plan for 1,000 nodes and 10,000 waiting jobs takes some ten milliseconds.
const TIME: Duration = Duration::from_secs(1);
/// How many more nodes are tried at most, of the policy and of one size.
const MORE_NODES: u32 = 1024;
/// Up to how many dollars an hour are tried.
const MOST_DOLLARS: u64 = 100_000;
/// The limits of a share that are numbers.
type ShareLimit = fn(&mut WorkLimits) -> &mut Option<u64>;
const LIMITS: [(&str, ShareLimit); 4] = [
    ("running", |limits| &mut limits.running),
    ("vcpus", |limits| &mut limits.vcpus),
    ("gpus", |limits| &mut limits.gpus),
    ("nodes", |limits| &mut limits.nodes),
];
/// How many nodes on hold are tried.
const ON_HOLD: usize = 8;

/// The changes with each of which the job would start now, or a node would be launched for it, as "nodes.max were 65, not 64". Empty if
/// it does so without one, or if no change alone is enough.
pub(crate) fn for_job(seen: &Observation, id: JobId, now: Time) -> Vec<String> {
    let begins = |plan: &FleetPlan| begins(plan, id);
    let Some(job) = seen.jobs.iter().find(|job| job.job_id == id && job.state == JobState::Queued) else {
        return Vec::new();
    };
    if begins(&poll_and_scale::plan(seen, now)) {
        return Vec::new();
    }
    let trials = Trials::new(seen, now, &begins);
    let of_policy = trials.of_policy();
    let of_job = [trials.less(job), trials.wider(job), trials.of_priority(job)];
    of_policy.into_iter().chain(of_job.into_iter().flatten()).collect()
}

/// The changes with each of which the next run would shut this idle node down. Empty as for a job.
pub(crate) fn for_node(seen: &Observation, slot: Slot, now: Time) -> Vec<String> {
    let goes = |plan: &FleetPlan| does(plan, ActionName::ShutDown, |row| row.slot == Some(slot));
    if goes(&poll_and_scale::plan(seen, now)) {
        return Vec::new();
    }
    let trials = Trials::new(seen, now, &goes);
    let (min, idle_s) = (seen.policy.nodes.min, seen.policy.idle.timeout_s);
    let fewer = trials.nearest(min.into(), 0, |seen, n| seen.policy.nodes.min = u32::try_from(n).unwrap_or(min));
    let sooner = trials.nearest(idle_s.unsigned_abs(), 0, |seen, s| seen.policy.idle.timeout_s = signed(s));
    let fewer = fewer.map(|n| format!("nodes.min were {n}, not {min}"));
    let sooner = sooner.map(|s| format!("idle.timeout_s were {s}, not {idle_s}"));
    fewer.into_iter().chain(sooner).collect()
}

/// Whether the plan places the job, or has a node on the way for it.
fn begins(plan: &FleetPlan, id: JobId) -> bool {
    let comes = |why: &Reason| {
        matches!(why, Reason::NodesLaunched { .. } | Reason::NodesBoot { .. } | Reason::MaxPerRun { .. })
    };
    let waiting = plan.explained.waiting.iter().find(|waiting| waiting.jobs.contains(&id));
    does(plan, ActionName::Place, |row| row.job_id == Some(id))
        || waiting.is_some_and(|waiting| waiting.why.iter().all(comes))
}

fn does(plan: &FleetPlan, action: ActionName, is_it: impl Fn(&model::action::PlanRow) -> bool) -> bool {
    plan.actions.iter().map(|planned| planned.row()).any(|row| row.action == action && is_it(&row))
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The plans with changes.
struct Trials<'a> {
    observed: &'a Observation,
    now: Time,
    is_met: &'a dyn Fn(&FleetPlan) -> bool,
    /// How many plans may still be made.
    left: Cell<usize>,
    until: Instant,
}

impl<'a> Trials<'a> {
    fn new(observed: &'a Observation, now: Time, is_met: &'a dyn Fn(&FleetPlan) -> bool) -> Self {
        Self { observed, now, is_met, left: Cell::new(PLANS), until: Instant::now() + TIME }
    }

    fn is_over(&self) -> bool {
        self.left.get() == 0 || Instant::now() >= self.until
    }

    /// Whether a plan with this change does it. Without any plan left: no.
    fn does(&self, change: impl FnOnce(&mut Observation)) -> bool {
        if self.is_over() {
            return false;
        }
        self.left.set(self.left.get().saturating_sub(1));
        let mut seen = self.observed.clone();
        change(&mut seen);
        (self.is_met)(&poll_and_scale::plan(&seen, self.now))
    }

    /// The number nearest to `from`, on the way to `end`, with which the plan does it. With `from` it does not.
    fn nearest(&self, from: u64, end: u64, change: impl Fn(&mut Observation, u64)) -> Option<u64> {
        if from == end || !self.does(|seen| change(seen, end)) {
            return None;
        }
        let (mut does_not, mut does) = (from, end);
        while does_not.abs_diff(does) > 1 {
            let middle = does_not.midpoint(does);
            match self.does(|seen| change(seen, middle)) {
                true => does = middle,
                false => does_not = middle,
            }
        }
        (!self.is_over()).then_some(does)
    }

    /// What the policy, an operator or EC2 would have to change.
    fn of_policy(&self) -> Vec<String> {
        let policy = &self.observed.policy;
        let (max, cap) = (policy.nodes.max, policy.nodes.max_price_per_hour);
        let more = |max: u32| u64::from(max.saturating_add(MORE_NODES));
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let mut found = Vec::new();
        let nodes = self.nearest(max.into(), more(max), |seen, n| seen.policy.nodes.max = number(n));
        found.extend(nodes.map(|n| format!("nodes.max were {n}, not {max}")));
        let cents = |cap: Usd| cap.micros() / 10_000;
        let price = |cents: u64| Usd::from_micros(cents.saturating_mul(10_000));
        if !cap.is_zero() {
            let change = |seen: &mut Observation, n| seen.policy.nodes.max_price_per_hour = price(n);
            let dollars = self.nearest(cents(cap), MOST_DOLLARS * 100, change).map(price);
            found.extend(dollars.map(|price| format!("nodes.max_price_per_hour were {price}, not {cap}")));
        }
        for size in &policy.size {
            let Some(max) = size.max else { continue };
            let change = |seen: &mut Observation, n| {
                seen.policy.size.iter_mut().filter(|s| s.name == size.name).for_each(|s| s.max = Some(number(n)));
            };
            let nodes = self.nearest(max.into(), more(max), change);
            found.extend(nodes.map(|n| format!("the maximum of size {} were {n}, not {max}", size.name)));
        }
        for (at, share) in policy.share.iter().enumerate() {
            for (what, limit) in LIMITS {
                let Some(max) = *limit(&mut share.limits.clone()) else { continue };
                let change = |seen: &mut Observation, n| {
                    seen.policy.share.get_mut(at).into_iter().for_each(|share| *limit(&mut share.limits) = Some(n));
                };
                let most = self.nearest(max, max.saturating_add(MORE_NODES.into()), change);
                found.extend(most.map(|n| format!("share {} had {what} = {n}, not {max}", share.name)));
            }
        }
        if !self.observed.control.waits.is_empty() && self.does(|seen| seen.control.waits.clear()) {
            found.push("EC2 had what it refused".to_owned());
        }
        for (key, set) in &self.observed.control.demand_sets {
            let (name, size) = (set.name(), set.size.as_deref().unwrap_or_default());
            let without = |seen: &mut Observation| _ = seen.control.demand_sets.remove(key);
            let command = format!("nodekeeper demand set {name} --size {size} --count 0");
            let says = || format!("demand set {name} wanted no nodes ({command})");
            found.extend(self.does(without).then(says));
        }
        let held =
            self.observed.nodes.iter().filter(|node| node.life().is_some_and(|life| life.intent == Intent::Hold));
        for slot in held.take(ON_HOLD).map(|node| node.slot) {
            let resume = |seen: &mut Observation| {
                for node in seen.nodes.iter_mut().filter(|node| node.slot == slot) {
                    if let NodeState::InUse(in_use) = &mut node.state {
                        in_use.life.intent = Intent::Run;
                    }
                }
            };
            found.extend(self.does(resume).then(|| format!("slot {slot} were not on hold (nodekeeper resume {slot})")));
        }
        found
    }

    /// Whether a plan with this change of the job does it.
    fn with(&self, job: &JobSummary, change: impl FnOnce(&mut JobSummary)) -> bool {
        self.does(|seen| in_place(seen, job, change))
    }

    /// The greatest amounts, below what the job needs, with which it would start.
    fn less(&self, job: &JobSummary) -> Vec<String> {
        let needs = &job.needs;
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let amount = |from: u64, least: u64, set: &dyn Fn(&mut JobSummary, u64)| {
            self.nearest(from, least.min(from), |seen, n| in_place(seen, job, |job| set(job, n)))
        };
        let vcpus = amount(needs.vcpus.into(), 1, &|job, n| job.needs.vcpus = number(n));
        let memory = amount(needs.memory_mib, 0, &|job, n| job.needs.memory_mib = n);
        let scratch = amount(needs.scratch_gib, 0, &|job, n| job.needs.scratch_gib = n);
        let gpus = amount(needs.gpus.into(), 0, &|job, n| job.needs.gpus = number(n));
        let nodes = amount(needs.nodes.into(), 1, &|job, n| job.needs.nodes = number(n));
        let found = [
            vcpus.map(|n| format!("it needed {n} vCPUs, not {}", needs.vcpus)),
            memory.map(|n| format!("it needed {n} MiB of memory, not {}", needs.memory_mib)),
            scratch.map(|n| format!("it needed {n} GiB of scratch, not {}", needs.scratch_gib)),
            gpus.map(|n| format!("it needed {n} GPUs, not {}", needs.gpus)),
            nodes.map(|n| format!("it needed {n} nodes at once, not {}", needs.nodes)),
        ];
        found.into_iter().flatten().collect()
    }

    /// What the job would have to leave open.
    fn wider(&self, job: &JobSummary) -> Vec<String> {
        let machine = &job.needs.machine;
        let mut found = Vec::new();
        let mut without = |is_asked: bool, what: String, change: &dyn Fn(&mut JobSummary)| {
            found.extend((is_asked && self.with(job, change)).then_some(what));
        };
        without(job.needs.exclusive, "it shared its node (without --exclusive)".to_owned(), &|job| {
            job.needs.exclusive = false;
        });
        let asked = machine.market.map(|asked| format!(", not {asked}")).unwrap_or_default();
        for other in [MarketNeed::Spot, MarketNeed::OnDemand].map(Some).into_iter().filter(|m| *m != machine.market) {
            let market = other.map(|other| other.to_string()).unwrap_or_default();
            without(true, format!("it ran on {market}{asked}"), &|job| job.needs.machine.market = other);
        }
        let named = |what: &Option<String>| what.clone().unwrap_or_default();
        let kind = format!("it could run on others than {}", named(&machine.instance_type));
        without(machine.instance_type.is_some(), kind, &|job| job.needs.machine.instance_type = None);
        let gpus = format!("it could run on GPUs other than {}", named(&machine.gpu_type));
        without(machine.gpu_type.is_some(), gpus, &|job| job.needs.machine.gpu_type = None);
        for label in &machine.require {
            without(true, format!("it did not require {label}"), &|job| {
                job.needs.machine.require.remove(label);
            });
        }
        found
    }

    /// The least priority with which the job would start.
    fn of_priority(&self, job: &JobSummary) -> Vec<String> {
        let before = self.observed.jobs.iter().filter(|other| other.state == JobState::Queued);
        let Some(highest) = before.map(|other| other.priority).max() else { return Vec::new() };
        let end = highest.saturating_add(1).min(model::MAX_PRIORITY);
        let own = job.priority;
        let priority = self.nearest(own.into(), end.max(own).into(), |seen, n| {
            in_place(seen, job, |job| job.priority = u32::try_from(n).unwrap_or(own));
        });
        priority.map(|n| format!("its priority were {n}, not {own}")).into_iter().collect()
    }
}

/// Changes this job in the observation.
fn in_place(seen: &mut Observation, job: &JobSummary, change: impl FnOnce(&mut JobSummary)) {
    let mut after = job.clone();
    change(&mut after);
    seen.replace_job(after);
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{self, at};
    use model::policy::example_json;
    use model::{Job, JobSpec, Policy, Rng};
    use serde_json::json;

    /// Some nodes, idle, full, booting or on hold, and jobs of several sizes that wait.
    fn random(rng: &Rng) -> Observation {
        let below = |n: u64| u64::try_from(rng.bits() % u128::from(n)).unwrap();
        let mut document = example_json();
        document["nodes"] = json!({"max": 1 + below(4), "min": 0, "max_price_per_hour": below(3) as f64 * 0.15});
        let mut seen = Observation::empty(Policy::from_json(&document).unwrap(), 1, at(100));
        for n in 0..u32::try_from(below(4)).unwrap() {
            let node = match below(3) {
                0 => fixtures::ready(n).with_intent(Intent::Hold, None, at(90)).unwrap(),
                1 => fixtures::bound(n),
                _ => fixtures::ready(n),
            };
            let instance = node.life().unwrap().instance_id.clone().unwrap();
            seen.instances.push(fixtures::running(&instance, &node));
            seen.nodes.push(node);
        }
        for n in 1..=1 + u32::try_from(below(6)).unwrap() {
            let mut spec = JobSpec::running(["true"]);
            spec.needs.vcpus = 1 + u32::try_from(below(2)).unwrap();
            spec.needs.memory_mib = below(4) * 2_000;
            spec.needs.exclusive = below(3) == 0;
            spec.needs.nodes = 1 + u32::try_from(below(3) / 2).unwrap();
            spec.priority = 400 + u32::try_from(below(3)).unwrap();
            seen.replace_job(Job::submit(fixtures::job_id(n), spec, at(0)).unwrap().summary);
        }
        seen
    }

    /// The two numbers of a change, and how it is made with another number.
    type Kind = (&'static str, fn(&mut Observation, JobId, u64));

    fn job(seen: &mut Observation, id: JobId, change: impl FnOnce(&mut JobSummary)) {
        let mut job = seen.jobs.iter().find(|job| job.job_id == id).unwrap().clone();
        change(&mut job);
        seen.replace_job(job);
    }

    const KINDS: [Kind; 4] = [
        ("nodes.max were", |seen, _, n| seen.policy.nodes.max = n.try_into().unwrap()),
        ("MiB of memory", |seen, id, n| job(seen, id, |job| job.needs.memory_mib = n)),
        ("vCPUs", |seen, id, n| job(seen, id, |job| job.needs.vcpus = n.try_into().unwrap())),
        ("its priority were", |seen, id, n| job(seen, id, |job| job.priority = n.try_into().unwrap())),
    ];

    #[test]
    fn a_change_starts_the_job_and_the_next_smaller_one_of_its_kind_does_not() {
        let rng = Rng::seeded(65);
        let mut found = [0; KINDS.len()];
        for _ in 0..300 {
            let seen = random(&rng);
            let starts = |seen: &Observation, id| begins(&poll_and_scale::plan(seen, at(100)), id);
            for id in seen.jobs.iter().map(|job| job.job_id) {
                let changes = for_job(&seen, id, at(100));
                assert!(changes.is_empty() || !starts(&seen, id));
                for (of_kind, (kind, make)) in found.iter_mut().zip(KINDS) {
                    let Some(text) = changes.iter().find(|text| text.contains(kind)) else { continue };
                    let numbers: Vec<u64> = text.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
                    let [to, from] = numbers[..] else { panic!("{text}") };
                    let with = |n: u64| {
                        let mut seen = seen.clone();
                        make(&mut seen, id, n);
                        starts(&seen, id)
                    };
                    let smaller = if to > from { to - 1 } else { to + 1 };
                    assert!(with(to) && !with(smaller), "{text}: {smaller} is enough: {seen:?}");
                    *of_kind += 1;
                }
            }
        }
        assert!(found.iter().all(|n| *n >= 10), "too few to say anything: {found:?}");
    }

    #[test]
    fn a_limit_of_a_share_is_named_with_the_number_that_would_do() {
        let mut document = example_json();
        document["share"] = json!([{"name": "lab", "members": ["*"], "running": 0}]);
        let mut seen = Observation::empty(Policy::from_json(&document).unwrap(), 1, at(100));
        let mut job = Job::submit(fixtures::job_id(1), JobSpec::running(["true"]), at(0)).unwrap().summary;
        job.share = Some("lab".to_owned());
        seen.replace_job(job);
        let changes = for_job(&seen, fixtures::job_id(1), at(100));
        assert!(changes.contains(&"share lab had running = 1, not 0".to_owned()), "{changes:?}");
    }
}
