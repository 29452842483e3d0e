//! The region: its clock, its instances, and what EC2 or other users do to them.
//!
//! Guarantees: a machine hears of each change once, in order, and outside of the lock.
//! Does not: speak HTTP (`http` does), or know an action (`actions` does).

use axum::http::HeaderMap;
use model::{Span, Time};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::actions::Ec2Answer;
use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::faults::Faults;
use crate::instance::{Ec2Instance, StateReason};
use crate::machines::Machines;
use crate::settings::Ec2Settings;
use crate::wire::Params;
use crate::world::{Shutdown, World};

type RegionClock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The stand-in: one account in one region.
pub struct Ec2Region {
    pub(crate) settings: Ec2Settings,
    clock: RegionClock,
    machines: Arc<dyn Machines>,
    world: Mutex<World>,
}

impl Ec2Region {
    /// A region without instances. `clock` gives the time of every change.
    pub fn new(settings: Ec2Settings, clock: RegionClock, machines: Arc<dyn Machines>) -> Arc<Self> {
        Arc::new(Self { settings, clock, machines, world: Mutex::default() })
    }

    /// Makes every change that is due by the clock, and tells the machines. Every request does
    /// this first; [`serve`](crate::serve) also does it between requests.
    pub fn advance(&self) {
        let now = (self.clock)();
        self.change(|world| world.advance(now, &self.settings));
    }

    /// Replaces the faults in force.
    pub fn set_faults(&self, faults: Faults) {
        self.change(|world| world.faults = faults);
    }

    /// The faults still in force.
    pub fn faults(&self) -> Faults {
        self.lock().faults.clone()
    }

    /// All instances, in launch order, including those that API lists hide.
    pub fn instances(&self) -> Vec<Ec2Instance> {
        self.advance();
        self.lock().listed(None).map(|(_, instance)| instance.clone()).collect()
    }

    /// Spot interruption: warns the machine now and terminates the instance after `warning`
    /// (EC2 gives two minutes). Returns the time of the termination, or `None` if no live
    /// instance has this id.
    pub fn interrupt(&self, instance_id: &str, warning: Span) -> Option<Time> {
        let at = (self.clock)() + warning;
        self.change(|world| world.interrupt(instance_id, at)).then_some(at)
    }

    /// EC2 terminates the instance by itself, as on broken hardware. False if no live instance
    /// has this id.
    pub fn terminate_by_cloud(&self, instance_id: &str) -> bool {
        self.shut_down(instance_id, Shutdown::Terminate, StateReason::TerminatedByCloud)
    }

    /// EC2 or another user stops the instance. False if no running instance has this id.
    pub fn stop_by_cloud(&self, instance_id: &str) -> bool {
        self.shut_down(instance_id, Shutdown::Stop, StateReason::StoppedByCloud)
    }

    /// The machine powered itself off: the instance stops, or terminates if its launch asked for
    /// that ("Change instance initiated shutdown behavior", EC2 User Guide).
    pub fn powered_off(&self, instance_id: &str) -> bool {
        let terminates = self.lock().find(instance_id).is_some_and(|i| i.ends_when_off);
        let to = if terminates { Shutdown::Terminate } else { Shutdown::Stop };
        self.shut_down(instance_id, to, StateReason::PoweredOff)
    }

    fn shut_down(&self, instance_id: &str, to: Shutdown, why: StateReason) -> bool {
        let now = (self.clock)();
        self.change(|world| {
            world.advance(now, &self.settings);
            world.shut_down(instance_id, to, why, now, &self.settings)
        })
    }

    /// Answers one request; the text is the request id.
    pub(crate) fn answer(&self, params: &Params) -> (String, Result<Ec2Answer, ApiError>) {
        let now = (self.clock)();
        // Read before the lock is taken: the machine may call the stand-in.
        let console = match (params.get("Action"), params.get("InstanceId")) {
            (Some("GetConsoleOutput"), Some(id)) => self.machines.console(id),
            _ => None,
        };
        self.change(|world| {
            world.advance(now, &self.settings);
            let request_id = world.fresh_id("", self.settings.seed);
            let call = Ec2Call { settings: &self.settings, params, world, now, console };
            let answer = call.answer(&request_id);
            (request_id, answer)
        })
    }

    /// Answers one request to the price list or to Service Quotas; the text is the request id.
    pub(crate) fn answer_json(&self, headers: &HeaderMap, body: &[u8]) -> (String, Result<Value, ApiError>) {
        let (now, params) = ((self.clock)(), Params::default());
        self.change(|world| {
            let request_id = world.fresh_id("", self.settings.seed);
            let mut call = Ec2Call { settings: &self.settings, params: &params, world, now, console: None };
            (request_id, call.json(headers, body))
        })
    }

    /// How long the answer to a request takes.
    pub(crate) fn latency_ms(&self, params: &Params) -> u64 {
        let Some(latency) = self.settings.latency.filter(|_| params.get("Action") == Some("DescribeInstances")) else {
            return 0;
        };
        let by_tag = |filter: &Params| filter.get("Name").is_some_and(|name| name.starts_with("tag"));
        let filters = params.structures("Filter").iter().filter(|f| by_tag(f)).count() as u64;
        latency.call_ms.saturating_add(latency.tag_filter_ms.saturating_mul(filters))
    }

    /// Changes the world, then tells the machines.
    fn change<R>(&self, change: impl FnOnce(&mut World) -> R) -> R {
        let result = change(&mut self.lock());
        self.call_hooks();
        result
    }

    /// Makes the queued hook calls, in order and outside of the lock. Only one caller at a time empties the queue. It
    /// also makes the hook calls that other callers queued.
    fn call_hooks(&self) {
        {
            let mut world = self.lock();
            if world.calling_hooks {
                return;
            }
            world.calling_hooks = true;
        }
        loop {
            let mut world = self.lock();
            let Some(hook) = world.hooks.pop_front() else {
                world.calling_hooks = false;
                return;
            };
            drop(world);
            hook(self.machines.as_ref());
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
