//! A simulated EC2 with its failures: lists lag and forget instances, answers are lost, capacity is short, quotas are
//! reached, and machines never boot, fail, or are taken back.
//!
//! ```text
//! ec2        the instances as they really are
//! calls      the calls of the functions
//! launches   which launches EC2 carries out, and which it refuses
//! life       what happens to an instance as time passes
//! offers     what there is, at which prices
//! reservations  the capacity reservations, and who uses them
//! ```
//!
//! Guarantees: an instance id is never used twice; a terminated instance never comes back; a
//! repeated token gives the first call's answer; an id that EC2 does not know fails the whole call that
//! names it.
//! Does not: speak EC2's protocol (the stand-in of `nodekeeper local` does).

mod calls;
mod launches;
mod life;
mod offers;
mod reservations;

pub use calls::Seen;

use crate::check::Watch;
use crate::core::{Core, START, lock};
use crate::launch_limits::LaunchLimits;
use crate::replay::pools::ZONES;
use model::{Instance, InstanceState, LaunchAnswer, LaunchRequest, Market, NodeId, Offering, Refusal, Span, Time};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use tokio::task::AbortHandle;

/// How long EC2 keeps a spot instance after its warning, in seconds.
pub const WARNING_S: i64 = 120;

/// An instance as it really is.
#[derive(Clone, Debug)]
pub struct Real {
    /// The instance as EC2 shows it.
    pub instance: Instance,
    /// The nodes that it may become: the only node of its launch, or all nodes of its batch.
    nodes: Arc<[NodeId]>,
    /// The node that it has become; `None` until a record names it.
    pub node: Option<NodeId>,
    instance_type: String,
    market: Market,
    /// The capacity reservation in which it runs.
    reservation: Option<String>,
    /// The script of its first boot.
    pub user_data: String,
    /// The time from which lists show the instance.
    listed_from: Time,
    /// The time until which no list shows the instance and EC2 does not know its id.
    hidden_until: Option<Time>,
    /// When a terminated instance loses its tags. From then on, lists leave it out.
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
    pub fn is_live(&self) -> bool {
        self.instance.state != InstanceState::Terminated
    }

    /// The nodes that the instance is or may become.
    pub fn owners(&self) -> &[NodeId] {
        self.node.as_ref().map_or(&self.nodes, std::slice::from_ref)
    }

    /// Whether the instance is this node, or may become it.
    pub fn is_of(&self, node: NodeId) -> bool {
        self.owners().contains(&node)
    }

    /// Whether the tags of the instance are those of a launch for this node.
    pub fn was_launched_for(&self, node: NodeId) -> bool {
        self.nodes.contains(&node)
    }

    /// Whether it was launched together with others.
    pub fn is_of_batch(&self) -> bool {
        self.nodes.len() > 1
    }

    /// The node or the batch, in words for people.
    pub fn owner(&self) -> String {
        match self.owners() {
            [node] => node.to_string(),
            nodes => format!("a batch of {}", nodes.len()),
        }
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

    /// Whether EC2 does not know the instance by its id.
    pub fn is_unknown(&self, now: Time) -> bool {
        self.is_hidden(now) || self.forgotten_at.is_some_and(|at| at <= now)
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

/// Launches that EC2 refuses for a while: those that are like this offering in the part that the refusal is about.
struct Refused {
    refusal: Refusal,
    like: Offering,
    until: Time,
}

#[derive(Default)]
struct Region {
    instances: BTreeMap<String, Real>,
    tokens: BTreeMap<String, (LaunchRequest, LaunchAnswer)>,
    shortages: BTreeMap<(String, String, Market), Time>,
    /// What EC2 refuses besides shortages.
    refusals: Vec<Refused>,
    launch_limits: LaunchLimits,
    /// Until when EC2 takes no call of several ways.
    no_fleet_until: Option<Time>,
    collapse_until: Option<Time>,
    /// The zone that is lost, and until when.
    lost_zone: Option<(String, Time)>,
    launched: u64,
    /// Spot warnings that are not passed on yet.
    warnings: Vec<String>,
}

impl Region {
    fn live(&self) -> usize {
        self.instances.values().filter(|r| r.is_live()).count()
    }
}

pub struct Ec2 {
    core: Arc<Core>,
    check: Arc<Watch>,
    region: Mutex<Region>,
    boot: OnceLock<Boot>,
}

impl Ec2 {
    pub fn new(core: Arc<Core>, check: Arc<Watch>) -> Arc<Self> {
        Arc::new(Self { core, check, region: Mutex::default(), boot: OnceLock::new() })
    }

    /// The zone of a subnet. In a world that compares policies, the subnets are spread over the zones in turn.
    fn zone_of(&self, subnet_id: Option<&str>) -> &'static str {
        let scenario = &self.core.scenario;
        let subnets = scenario.policy.pointer("/launch/subnets").and_then(Value::as_array);
        let place = || subnets?.iter().position(|subnet| subnet.as_str() == subnet_id);
        match (&scenario.replay, subnet_id) {
            (Some(_), _) => ZONES.get(place().unwrap_or(0) % ZONES.len()).copied().unwrap_or("zone-a"),
            (None, Some("subnet-b")) => "zone-b",
            (None, _) => "zone-a",
        }
    }

    /// How many hours of the world have passed.
    fn hour(&self) -> u64 {
        self.core.now().since(START).as_ms().unsigned_abs() / 3_600_000
    }

    /// Sets the function that starts agents on machines. Called once.
    pub fn on_boot(&self, boot: Boot) {
        let _ = self.boot.set(boot);
    }

    pub fn real(&self) -> Vec<Real> {
        lock(&self.region).instances.values().cloned().collect()
    }

    pub fn any(&self, is_like_this: impl Fn(&Real) -> bool) -> bool {
        lock(&self.region).instances.values().any(is_like_this)
    }

    /// Notes that a record names this instance for this node. Returns the node that the instance was before.
    pub fn name(&self, instance_id: &str, node: NodeId) -> Option<NodeId> {
        lock(&self.region).instances.get_mut(instance_id)?.node.replace(node)
    }

    pub fn one(&self, instance_id: &str) -> Option<Real> {
        lock(&self.region).instances.get(instance_id).cloned()
    }

    /// When EC2 will take an instance back, if EC2 gave a warning.
    pub fn taken_at(&self, instance_id: &str) -> Option<Time> {
        lock(&self.region).instances.get(instance_id).and_then(|r| r.taken_at)
    }

    /// When EC2 will take an instance away: as it warned, or because its capacity block ends.
    pub fn leaves_at(&self, instance_id: &str) -> Option<Time> {
        let region = lock(&self.region);
        let real = region.instances.get(instance_id)?;
        real.taken_at.or_else(|| self.block_ends(&region, real))
    }

    fn is_up(&self, instance_id: &str) -> bool {
        lock(&self.region).instances.get(instance_id).is_some_and(Real::is_up)
    }

    pub fn live(&self) -> usize {
        lock(&self.region).live()
    }

    /// Takes the spot warnings that EventBridge passes on.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.region).warnings)
    }

    /// Ends shortages, refusals and hidden instances.
    pub fn heal(&self) {
        let now = self.core.now();
        let mut region = lock(&self.region);
        region.shortages.clear();
        region.refusals.clear();
        region.collapse_until = None;
        region.lost_zone = None;
        for real in region.instances.values_mut() {
            real.hidden_until = real.hidden_until.map(|until| until.min(now));
            real.listed_from = real.listed_from.min(now);
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
}
