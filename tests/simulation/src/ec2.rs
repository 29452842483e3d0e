//! A simulated EC2 with its failures: lists lag and forget instances, answers are lost, launch tokens are per zone and
//! get spent, capacity is short, quotas are reached, and machines never boot, fail, or are taken back.
//!
//! Guarantees: an instance id is never used twice; a terminated instance never comes back; a
//! repeated token in one zone answers with the first call's instance.
//! Does not: speak EC2's protocol (the stand-in of `nodekeeper local` does).

use crate::caller::Caller;
use crate::check::Check;
use crate::check::cloud::nodes_of;
use crate::core::{Core, Fault, START, lock};
use crate::launch_limits::LaunchLimits;
use async_trait::async_trait;
use model::cloud::{Cloud, CloudError, Instance, InstanceState, LaunchError};
use model::ids::NodeId;
use model::launch::LaunchRequest;
use model::time::{Span, Time};
use model::{Market, Offering};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::task::AbortHandle;

/// How long after a change a list may show the state before.
const OLDER_STATE: Span = Span::from_s(120);
/// How long a terminated instance is listed at most, in milliseconds (EC2: about an hour).
const LISTED_MS: i64 = 3_600_000;

/// An instance as it really is.
#[derive(Clone, Debug)]
pub struct Real {
    /// The instance as EC2 shows it.
    pub instance: Instance,
    /// The node for which the instance was launched.
    pub node_id: NodeId,
    /// The script of its first boot.
    pub user_data: String,
    /// The time from which lists show the instance.
    listed_from: Time,
    /// The time until which no list shows the instance and EC2 does not know its id.
    hidden_until: Option<Time>,
    /// When a terminated instance loses its tags: lists leave it out from then on.
    untagged_at: Option<Time>,
    /// When EC2 forgets the instance, even by its id.
    forgotten_at: Option<Time>,
    /// When EC2 will take the instance back, if EC2 gave a warning.
    pub taken_at: Option<Time>,
    /// The state before the last change, and the time of the change.
    before: Option<(InstanceState, Time)>,
    machine: Option<AbortHandle>,
}

impl Real {
    /// Whether the instance has not been terminated yet.
    pub fn is_live(&self) -> bool {
        self.instance.state != InstanceState::Terminated
    }

    /// Whether processes may run on the instance.
    pub fn is_up(&self) -> bool {
        matches!(self.instance.state, InstanceState::Pending | InstanceState::Running)
    }

    /// Whether lists show the instance, in any state.
    pub fn is_listed(&self, now: Time) -> bool {
        !self.is_hidden(now) && self.untagged_at.is_none_or(|at| now < at)
    }

    /// Whether lists showed the instance at some moment between `since` and `now`.
    pub fn was_listed(&self, since: Time, now: Time) -> bool {
        let shown = self.listed_from.max(self.hidden_until.unwrap_or(since)).max(since);
        shown <= now && self.untagged_at.is_none_or(|at| shown < at)
    }

    /// Whether EC2 hides the instance, or hid it within the last two minutes: see [`Self::is_hidden`].
    pub fn was_hidden(&self, now: Time) -> bool {
        self.is_hidden(now - Span::from_s(120))
    }

    /// Whether EC2 hides the instance: it is too new for lists, or a fault leaves it out.
    pub fn is_hidden(&self, now: Time) -> bool {
        now < self.listed_from || self.hidden_until.is_some_and(|until| now < until)
    }
}

/// Starts an agent on a machine that booted.
pub type Boot = Box<dyn Fn(&Real) -> AbortHandle + Send + Sync>;

#[derive(Default)]
struct Region {
    instances: BTreeMap<String, Real>,
    tokens: BTreeMap<(String, String), (LaunchRequest, Vec<String>)>,
    shortages: BTreeMap<(String, String, Market), Time>,
    quota_until: Option<Time>,
    not_allowed_until: Option<Time>,
    launch_limits: LaunchLimits,
    collapse_until: Option<Time>,
    launched: u64,
    /// Spot warnings that are not passed on yet.
    warnings: Vec<String>,
}

impl Region {
    fn live(&self) -> usize {
        self.instances.values().filter(|r| r.is_live()).count()
    }
}

/// The simulated region.
pub struct Ec2 {
    core: Arc<Core>,
    check: Arc<Check>,
    region: Mutex<Region>,
    boot: OnceLock<Boot>,
}

impl Ec2 {
    /// An empty region.
    pub fn new(core: Arc<Core>, check: Arc<Check>) -> Arc<Self> {
        Arc::new(Self { core, check, region: Mutex::default(), boot: OnceLock::new() })
    }

    /// Sets the function that starts agents on machines. Called once.
    pub fn on_boot(&self, boot: Boot) {
        let _ = self.boot.set(boot);
    }

    /// The instances as they really are.
    pub fn real(&self) -> Vec<Real> {
        lock(&self.region).instances.values().cloned().collect()
    }

    /// Whether there is an instance like this.
    pub fn any(&self, is_like_this: impl Fn(&Real) -> bool) -> bool {
        lock(&self.region).instances.values().any(is_like_this)
    }

    /// One instance as it really is.
    pub fn one(&self, instance_id: &str) -> Option<Real> {
        lock(&self.region).instances.get(instance_id).cloned()
    }

    /// When EC2 will take an instance back, if EC2 gave a warning.
    pub fn taken_at(&self, instance_id: &str) -> Option<Time> {
        lock(&self.region).instances.get(instance_id).and_then(|r| r.taken_at)
    }

    fn is_up(&self, instance_id: &str) -> bool {
        lock(&self.region).instances.get(instance_id).is_some_and(Real::is_up)
    }

    /// How many instances are not terminated.
    pub fn live(&self) -> usize {
        lock(&self.region).live()
    }

    /// Spot warnings for EventBridge to pass on.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.region).warnings)
    }

    /// Ends shortages, quotas and hidden instances.
    pub fn heal(&self) {
        let now = self.core.now();
        let mut region = lock(&self.region);
        region.shortages.clear();
        region.quota_until = None;
        region.not_allowed_until = None;
        region.collapse_until = None;
        for real in region.instances.values_mut() {
            real.hidden_until = real.hidden_until.map(|until| until.min(now));
            real.listed_from = real.listed_from.min(now);
        }
    }

    async fn call(&self, operation: &'static str) -> Result<Arc<Caller>, CloudError> {
        let caller = Caller::current();
        caller.point().await;
        // One instance by its id is asked for with the same call as all of them.
        let name = if operation == "DescribeInstance" { "DescribeInstances" } else { operation };
        self.core.called(caller.function(), &format!("ec2:{name}"), "");
        let slow = self.core.happens(Fault::Ec2Slow);
        let ms = if slow {
            self.core.of(Fault::Ec2Slow, 500, 20_000)
        } else {
            self.core.between(1, self.core.scenario.latency_ms * 2)
        };
        tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
        if slow && operation != "DescribeInstances" {
            caller.was_held_up(self.core.now());
        }
        if operation.starts_with("DescribeInstance") && self.core.happens(Fault::ListFails) {
            return Err(CloudError::Unreachable { operation, detail: "it broke (simulated)".into() });
        }
        Ok(caller)
    }

    /// EC2 carries out or refuses a launch request. Returns the instances, and whether they are new.
    fn land(
        &self,
        caller: &Caller,
        request: &LaunchRequest,
        token: &str,
    ) -> Result<(Vec<Instance>, bool), LaunchError> {
        let zone = match request.offering.subnet_id.as_deref() {
            Some("subnet-b") => "zone-b",
            _ => "zone-a",
        };
        let mut region = lock(&self.region);
        if let Some((earlier, ids)) = region.tokens.get(&(zone.to_owned(), token.to_owned())) {
            self.core.count("a launch token was used again");
            self.check.invariant_a_launch_is_repeated_as_it_was(token, earlier, request);
            if earlier != request {
                return Err(LaunchError::Lost("IdempotentParameterMismatch".into()));
            }
            let known: Vec<&Real> = ids.iter().filter_map(|id| region.instances.get(id)).collect();
            let live = known.iter().filter(|r| r.is_live()).count();
            // The documentation does not say how EC2 answers if only a part of the instances is terminated.
            if live == 0 || (live < ids.len() && self.core.maybe(0.5)) {
                return Err(LaunchError::Spent("IdempotentInstanceTerminated".into()));
            }
            return Ok((known.into_iter().map(|r| r.instance.clone()).collect(), false));
        }
        self.check.launching(caller, request, token);
        self.refuse(&mut region, &request.offering, zone)?;
        let mut nodes = nodes_of(request);
        if nodes.is_empty() {
            return Err(LaunchError::BadRequest("no node id".into()));
        }
        let room = self.core.scenario.quota.saturating_sub(region.live());
        if nodes.len() > room && self.core.maybe(0.5) {
            return Err(LaunchError::Quota("VcpuLimitExceeded (simulated)".into()));
        }
        nodes.truncate(room);
        if nodes.len() > 1 && self.core.happens(Fault::BatchCutShort) {
            nodes.truncate(usize::try_from(self.core.of(Fault::BatchCutShort, 1, nodes.len() as i64 - 1)).unwrap_or(1));
        }
        let mut launched = Vec::new();
        for (index, node_id) in (0..).zip(nodes) {
            self.check.launched(node_id, region.instances.values());
            launched.push(self.create(&mut region, request, zone, node_id, index));
        }
        let ids = launched.iter().map(|i| i.instance_id.clone()).collect();
        region.tokens.insert((zone.to_owned(), token.to_owned()), (request.clone(), ids));
        Ok((launched, true))
    }

    /// The errors that EC2 answers a launch with: a wrong request, the account's limit, no capacity.
    fn refuse(&self, region: &mut Region, offering: &Offering, zone: &str) -> Result<(), LaunchError> {
        let now = self.core.now();
        if self.core.happens(Fault::BadRequest) {
            return Err(LaunchError::BadRequest("InvalidParameterValue (simulated)".into()));
        }
        if self.core.happens(Fault::LaunchNotAllowed) {
            region.not_allowed_until = Some(now + Span::from_s(self.core.of(Fault::LaunchNotAllowed, 30, 900)));
        }
        if region.not_allowed_until.is_some_and(|until| now < until) {
            return Err(LaunchError::NotAllowed("AuthFailure (simulated)".into()));
        }
        if self.core.happens(Fault::Quota) {
            region.quota_until = Some(now + Span::from_s(self.core.of(Fault::Quota, 30, 900)));
        }
        if region.quota_until.is_some_and(|until| now < until) || region.live() >= self.core.scenario.quota {
            return Err(LaunchError::Quota("InstanceLimitExceeded (simulated)".into()));
        }
        let place = (offering.instance_type.clone(), zone.to_owned(), offering.market);
        if self.core.happens(Fault::Shortage) {
            let until = now + Span::from_s(self.core.of(Fault::Shortage, 30, 3600));
            region.shortages.insert(place.clone(), until);
        }
        let never = self.core.scenario.never_had.as_ref() == Some(&place.0);
        if never || region.shortages.get(&place).is_some_and(|until| now < *until) {
            return Err(LaunchError::Capacity("InsufficientInstanceCapacity (simulated)".into()));
        }
        Ok(())
    }

    fn create(
        &self,
        region: &mut Region,
        request: &LaunchRequest,
        zone: &str,
        node_id: NodeId,
        index: u32,
    ) -> Instance {
        let now = self.core.now();
        region.launched += 1;
        let instance = Instance {
            instance_id: format!("i-{:08x}", region.launched),
            state: InstanceState::Pending,
            launched_at: now,
            zone: Some(zone.to_owned()),
            launch_index: Some(index),
            tags: request.tags.clone(),
        };
        let lag = if self.core.happens(Fault::ListLags) { self.core.of(Fault::ListLags, 1, 300) } else { 0 };
        let real = Real {
            instance: instance.clone(),
            node_id,
            user_data: request.user_data.clone(),
            listed_from: now + Span::from_s(lag),
            hidden_until: None,
            untagged_at: None,
            forgotten_at: None,
            taken_at: None,
            before: None,
            machine: None,
        };
        self.core.count("an instance was launched");
        self.core.tell(|| "ec2".into(), || format!("{} launched as {node_id}", instance.instance_id));
        region.instances.insert(instance.instance_id.clone(), real);
        instance
    }

    /// Boots the machine, or lets the boot fail.
    fn grow(self: &Arc<Self>, instance_id: String, instance_type: String, market: Market) {
        let ec2 = Arc::clone(self);
        tokio::spawn(async move {
            let core = &ec2.core;
            let up_s = if core.happens(Fault::BootsSlowly) {
                core.of(Fault::BootsSlowly, 120, 2400)
            } else {
                core.between(15, core.scenario.boot_s)
            };
            sleep_s(up_s / 2).await;
            ec2.change(&instance_id, |r| {
                if r.instance.state == InstanceState::Pending {
                    r.instance.state = InstanceState::Running;
                }
            });
            if core.happens(Fault::DiesBooting) {
                ec2.end(&instance_id, 0, "died while it booted");
                return;
            }
            sleep_s(up_s / 2).await;
            let broken = core.scenario.broken_type.as_ref().is_some_and(|(broken, hours)| {
                *broken == instance_type && core.now().since(START).as_s() < hours * 3600.0
            });
            if broken || core.happens(Fault::NeverBoots) {
                core.tell(|| "ec2".into(), || format!("{instance_id} will never call"));
            } else if let (Some(boot), Some(real)) = (ec2.boot.get(), ec2.one(&instance_id))
                && real.is_up()
            {
                let machine = boot(&real);
                ec2.change(&instance_id, |r| r.machine = Some(machine));
            }
            ec2.live_on(&instance_id, market).await;
        });
    }

    /// What may happen to a running machine as time passes.
    async fn live_on(self: &Arc<Self>, instance_id: &str, market: Market) {
        let core = &self.core;
        while self.is_up(instance_id) && !core.is_healed() {
            sleep_s(120).await;
            if !self.is_up(instance_id) {
                break;
            }
            if core.happens(Fault::InstanceDies) || core.happens(Fault::TerminatedByOthers) {
                self.end(instance_id, core.between(0, 60), "ended by itself or by others");
            } else if core.happens(Fault::Stopped) {
                core.tell(|| "ec2".into(), || format!("{instance_id} is stopped by somebody"));
                self.change(instance_id, |r| r.instance.state = InstanceState::Stopped);
                self.switch_off(instance_id);
            } else if core.happens(Fault::ListLoses) {
                let until = core.now() + Span::from_s(core.of(Fault::ListLoses, 30, 1800));
                core.tell(|| "ec2".into(), || format!("{instance_id} is not listed until {until}"));
                self.change(instance_id, |r| r.hidden_until = Some(until));
            } else if market == Market::Spot && core.happens(Fault::SpotTakenAtOnce) {
                self.end(instance_id, 0, "spot capacity taken back at once");
            } else if market == Market::Spot && core.happens(Fault::SpotTaken) {
                let at = core.now() + Span::from_s(120);
                core.tell(|| "ec2".into(), || format!("{instance_id} will be taken back at {at}"));
                self.change(instance_id, |r| r.taken_at = Some(at));
                lock(&self.region).warnings.push(instance_id.to_owned());
                sleep_s(120).await;
                self.end(instance_id, 0, "spot capacity taken back");
            }
        }
    }

    fn change(&self, instance_id: &str, change: impl FnOnce(&mut Real)) {
        if let Some(real) = lock(&self.region).instances.get_mut(instance_id) {
            let before = real.instance.state;
            change(real);
            if real.instance.state != before {
                real.before = Some((before, self.core.now()));
            }
        }
    }

    /// The instance as a list shows it: perhaps in an older state.
    fn listed(&self, real: &Real) -> Instance {
        let mut instance = real.instance.clone();
        let recent = real.before.filter(|(_, changed_at)| self.core.now().since(*changed_at) < OLDER_STATE);
        if let Some((state, _)) = recent
            && self.core.happens(Fault::ListsOlderState)
        {
            instance.state = state;
        }
        instance
    }

    /// The instances that an answer shows, out of those that it should show.
    async fn shown(
        &self,
        operation: &'static str,
        is_wanted: impl Fn(&Real, Time) -> bool,
    ) -> Result<Vec<Instance>, CloudError> {
        let caller = self.call(operation).await?;
        let core = &self.core;
        let now = core.now();
        if core.happens(Fault::ListCollapses) {
            let until = now + Span::from_s(core.of(Fault::ListCollapses, 60, 900));
            lock(&self.region).collapse_until = Some(until);
        }
        let shown: Vec<Instance> = {
            let mut region = lock(&self.region);
            region.instances.retain(|_, r| r.forgotten_at.is_none_or(|at| now < at));
            let collapsed = region.collapse_until.is_some_and(|until| now < until);
            let shown = region.instances.values().filter(|r| is_wanted(r, now)).enumerate();
            shown
                .filter(|(n, _)| (!collapsed || n % 4 == 0) && !core.happens(Fault::ListForgets))
                .map(|(_, r)| self.listed(r))
                .collect()
        };
        let works = |i: &&Instance| matches!(i.state, InstanceState::Pending | InstanceState::Running);
        shown.iter().filter(|i| !works(i)).for_each(|i| caller.lists_as_leaving(&i.instance_id));
        caller.point().await;
        Ok(shown)
    }

    /// Stops everything that runs on the machine.
    fn switch_off(&self, instance_id: &str) {
        self.change(instance_id, |r| {
            if let Some(machine) = r.machine.take() {
                machine.abort();
            }
        });
        self.check.machine_gone(instance_id);
    }

    /// Ends two thirds of the instances. Lists soon forget them.
    pub fn lose_most(self: &Arc<Self>) {
        for (_, real) in self.real().iter().filter(|r| r.is_up()).enumerate().filter(|(n, _)| n % 3 > 0) {
            self.end_listed(&real.instance.instance_id, 0, 1000, "its zone is lost");
        }
    }

    /// Shuts an instance down, whoever asked for it. After `after_s` seconds EC2 lists it as terminated.
    pub fn end(self: &Arc<Self>, instance_id: &str, after_s: i64, why: &str) {
        let listed_ms = if self.core.maybe(0.2) { self.core.between(1, 120_000) } else { LISTED_MS };
        self.end_listed(instance_id, after_s, listed_ms, why);
    }

    fn end_listed(self: &Arc<Self>, instance_id: &str, after_s: i64, listed_ms: i64, why: &str) {
        let mut ends = false;
        self.change(instance_id, |r| {
            ends = !matches!(r.instance.state, InstanceState::ShuttingDown | InstanceState::Terminated);
            if ends {
                r.instance.state = InstanceState::ShuttingDown;
            }
        });
        if !ends {
            return;
        }
        self.core.tell(|| "ec2".into(), || format!("{instance_id} goes down: {why}"));
        // The processes on the machine may go on for a while.
        let off_s = self.core.between(0, after_s);
        let known_ms = if self.core.maybe(0.5) { listed_ms } else { LISTED_MS };
        let (ec2, instance_id) = (Arc::clone(self), instance_id.to_owned());
        tokio::spawn(async move {
            sleep_s(off_s).await;
            ec2.switch_off(&instance_id);
            sleep_s(after_s - off_s).await;
            let now = ec2.core.now();
            ec2.change(&instance_id, |r| {
                r.instance.state = InstanceState::Terminated;
                r.untagged_at = Some(now + Span::from_ms(listed_ms));
                r.forgotten_at = Some(now + Span::from_ms(known_ms));
            });
        });
    }
}

async fn sleep_s(s: i64) {
    tokio::time::sleep(Duration::from_secs(s.max(0).unsigned_abs())).await;
}

/// The cloud as the functions see it.
pub struct Seen(pub Arc<Ec2>);

#[async_trait]
impl Cloud for Seen {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.0.shown("DescribeInstances", |real, now| real.is_listed(now)).await
    }

    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        let wanted: BTreeSet<&str> = instance_ids.iter().map(String::as_str).collect();
        let is_wanted = |real: &Real, now| real.is_listed(now) && wanted.contains(real.instance.instance_id.as_str());
        self.0.shown("DescribeInstance", is_wanted).await
    }

    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        let of_nodes = |real: &Real, now| real.is_listed(now) && nodes.contains(&real.node_id);
        self.0.shown("DescribeInstance", of_nodes).await
    }

    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        let ec2 = &self.0;
        let caller = ec2.call("DescribeInstance").await?;
        let now = ec2.core.now();
        let found = ec2.one(instance_id);
        let found = found.filter(|r| !r.is_hidden(now) && r.forgotten_at.is_none_or(|at| now < at));
        caller.point().await;
        Ok(found.map(|r| r.instance))
    }

    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<Vec<Instance>, LaunchError> {
        let ec2 = &self.0;
        let core = &ec2.core;
        let caller = Caller::current();
        caller.point().await;
        // A launch call tags what it launches.
        for operation in ["ec2:RunInstances", "ec2:CreateTags"] {
            core.called(caller.function(), operation, "");
        }
        core.count("a launch call was made");
        let nodes = nodes_of(request);
        nodes.iter().for_each(|node| caller.was_answered(*node, false));
        let within = !core.scenario.request_limits || {
            let (mut region, now) = (lock(&ec2.region), core.now());
            region.launch_limits.allow(request.count, now)
        };
        if !within || core.happens(Fault::LaunchThrottled) {
            let error = LaunchError::Throttled("RequestLimitExceeded (simulated)".into());
            caller.was_told(&request.offering, &error, core.now());
            return Err(error);
        }
        // The client gives up after 25 s. A call that is under way then may still be carried out.
        let slow = core.happens(Fault::LaunchSlow);
        let lands_ms = if slow { core.of(Fault::LaunchSlow, 5_000, 35_000) } else { core.between(50, 1500) };
        let offering = request.offering.clone();
        let (landing, request, token) = (Arc::clone(ec2), request.clone(), client_token.to_owned());
        let under_way = Arc::clone(&caller);
        let landed = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(lands_ms.unsigned_abs())).await;
            let (instances, are_new) = landing.land(&under_way, &request, &token)?;
            for instance in instances.iter().filter(|_| are_new) {
                let offering = &request.offering;
                landing.grow(instance.instance_id.clone(), offering.instance_type.clone(), offering.market);
            }
            Ok(instances)
        });
        let result = match tokio::time::timeout(Duration::from_secs(25), landed).await {
            Ok(Ok(result)) => result,
            _ => Err(LaunchError::Lost("no answer in 25 s (simulated)".into())),
        };
        let has_none =
            matches!(result, Err(LaunchError::Capacity(_) | LaunchError::Quota(_) | LaunchError::BadRequest(_)));
        nodes.iter().for_each(|node| caller.was_answered(*node, has_none));
        if let Err(error) = &result
            && !matches!(error, LaunchError::Lost(_) | LaunchError::Throttled(_))
        {
            nodes.iter().for_each(|node| caller.was_refused(*node));
        }
        if let Err(error) = &result {
            caller.was_told(&offering, error, core.now());
        }
        caller.point().await;
        if result.is_ok() && core.happens(Fault::LaunchAnswerLost) {
            return Err(LaunchError::Lost("the answer was lost (simulated)".into()));
        }
        if let Ok(instances) = &result {
            let without: Vec<_> = nodes.iter().skip(instances.len()).collect();
            for node in &without {
                caller.was_refused(**node);
                caller.was_answered(**node, true);
            }
            if !without.is_empty() {
                core.count("a batch was cut short");
                caller.was_told(&offering, &LaunchError::Capacity(String::new()), core.now());
            }
        }
        result
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        let ec2 = &self.0;
        let operation = "TerminateInstances";
        let caller = ec2.call(operation).await?;
        let core = &ec2.core;
        let failed = || CloudError::Unreachable { operation, detail: "it broke (simulated)".into() };
        if core.happens(Fault::TerminateFails) {
            return Err(failed());
        }
        let some = core.happens(Fault::TerminatesSome);
        for (n, id) in instance_ids.iter().enumerate() {
            if some && n % 2 == 1 {
                continue;
            }
            let Some(real) = ec2.one(id) else { continue };
            if matches!(real.instance.state, InstanceState::Terminated | InstanceState::ShuttingDown) {
                continue;
            }
            ec2.check.terminating(&caller, &real);
            core.count("an instance was terminated");
            let slow = core.happens(Fault::TerminatesSlowly);
            let after_s = if slow { core.of(Fault::TerminatesSlowly, 60, 1200) } else { core.between(5, 60) };
            ec2.end(id, after_s, &format!("terminated by {}", caller.name()));
        }
        caller.point().await;
        if some { Err(failed()) } else { Ok(()) }
    }

    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        self.0.call("GetConsoleOutput").await?;
        Ok(Some("kernel panic (simulated)".into()))
    }
}
