//! A stand-in for EC2: an HTTP server that speaks the Query protocol well enough for the
//! unmodified AWS SDK, with the instances in memory.
//!
//! Guarantees: client tokens, states, limits, pages, filters and error codes are as AWS
//! documents them (the source stands at each rule); a world is the same again for the same
//! seed, clock and requests; no request, however broken, panics.
//! Does not: verify signatures; know images, networks, volumes or more than one account and
//! region; end instances when nothing asks for it. Parameters that it does not know are
//! ignored, but still tell two requests with one client token apart.
//!
//! What goes wrong in the cloud goes wrong here on demand: see [`Faults`], also at
//! `GET` and `POST /_stand-in/faults`. `GET /_stand-in/instances` shows everything there is, and
//! `POST /_stand-in/instances/{id}/{interrupt|terminate|stop}` is somebody else's doing.

mod config;
mod console;
mod describe;
mod faults;
mod glob;
mod http;
mod ids;
mod machines;
mod refusal;
mod run;
mod shape;
mod tags;
mod templates;
mod terminate;
mod wire;
mod world;

#[cfg(test)]
mod tests;

pub use config::{Bucket, Config, InstanceType, LaunchTemplate, Subnet, TemplateVersion, Throttle};
pub use faults::{FailCall, Faults, Forget, LostAs, Shortage};
pub use http::serve;
pub use machines::{MachineStart, Machines, NoMachines};
pub use world::{Instance, State, StateReason};

use shared::time::{Span, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refusal::Refusal;
use wire::{Params, Xml};
use world::{Leave, World};

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The stand-in: one account in one region.
pub struct Ec2 {
    config: Config,
    clock: Clock,
    machines: Arc<dyn Machines>,
    created_at: Time,
    world: Mutex<World>,
}

/// One call of an action, and all that it may look at or change.
struct Call<'a> {
    config: &'a Config,
    params: &'a Params,
    world: &'a mut World,
    now: Time,
    created_at: Time,
    console: Option<String>,
}

/// What goes back over the wire.
enum Answer {
    Xml(String),
    /// Done, but nobody gets to know: the connection breaks.
    Cut,
}

impl Ec2 {
    /// A region without instances.
    pub fn new(config: Config, clock: Clock, machines: Arc<dyn Machines>) -> Arc<Self> {
        let created_at = clock();
        Arc::new(Self { config, clock, machines, created_at, world: Mutex::default() })
    }

    /// Lets happen what is due by the clock, and tells the machines. Every request does this
    /// first; [`serve`] does it all the time.
    pub fn advance(&self) {
        let now = (self.clock)();
        self.change(|world| world.advance(now, &self.config));
    }

    /// Replaces the faults in force.
    pub fn set_faults(&self, faults: Faults) {
        self.change(|world| world.faults = faults);
    }

    /// The faults still in force.
    pub fn faults(&self) -> Faults {
        self.lock().faults.clone()
    }

    /// All instances, in launch order, whether or not a list would show them.
    pub fn instances(&self) -> Vec<Instance> {
        self.advance();
        self.lock().listed(None).map(|(_, instance)| instance.clone()).collect()
    }

    /// Spot interruption: warns the machine now and takes the instance away after `warning`
    /// (EC2 gives two minutes). Answers when that will be, or `None` without such a live instance.
    pub fn interrupt(&self, instance_id: &str, warning: Span) -> Option<Time> {
        let at = (self.clock)() + warning;
        self.change(|world| world.interrupt(instance_id, at)).then_some(at)
    }

    /// EC2 ends the instance by itself, as on broken hardware. False without such a live instance.
    pub fn terminate_by_cloud(&self, instance_id: &str) -> bool {
        self.leave(instance_id, Leave::End, StateReason::TerminatedByCloud)
    }

    /// EC2 or another user stops the instance. False without such a running instance.
    pub fn stop_by_cloud(&self, instance_id: &str) -> bool {
        self.leave(instance_id, Leave::Stop, StateReason::StoppedByCloud)
    }

    /// The machine powered itself off: the instance stops, or ends if it was launched so
    /// ("Change instance initiated shutdown behavior", EC2 User Guide).
    pub fn powered_off(&self, instance_id: &str) -> bool {
        let ends = self.lock().find(instance_id).is_some_and(|i| i.ends_when_off);
        self.leave(instance_id, if ends { Leave::End } else { Leave::Stop }, StateReason::PoweredOff)
    }

    fn leave(&self, instance_id: &str, to: Leave, why: StateReason) -> bool {
        let now = (self.clock)();
        self.change(|world| {
            world.advance(now, &self.config);
            world.leave(instance_id, to, why, now, &self.config)
        })
    }

    /// Answers one request.
    fn answer(&self, params: &Params) -> (String, Result<Answer, Refusal>) {
        let now = (self.clock)();
        // Asked for before the world is locked, for the machine may ask us something.
        let console = match (params.get("Action"), params.get("InstanceId")) {
            (Some("GetConsoleOutput"), Some(id)) => self.machines.console(id),
            _ => None,
        };
        self.change(|world| {
            world.advance(now, &self.config);
            let request_id = world.fresh_id("", self.config.seed);
            let call = Call { config: &self.config, params, world, now, created_at: self.created_at, console };
            let answer = call.answer(&request_id);
            (request_id, answer)
        })
    }

    /// Changes the world, then tells the machines what came of it.
    fn change<R>(&self, change: impl FnOnce(&mut World) -> R) -> R {
        let result = change(&mut self.lock());
        self.tell_machines();
        result
    }

    /// Makes the queued hook calls, in order and outside of the lock. One caller at a time does
    /// this for all: the others' calls are in the queue that it empties.
    fn tell_machines(&self) {
        {
            let mut world = self.lock();
            if world.telling {
                return;
            }
            world.telling = true;
        }
        loop {
            let mut world = self.lock();
            let Some(hook) = world.hooks.pop_front() else {
                world.telling = false;
                return;
            };
            drop(world);
            hook.make(self.machines.as_ref());
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call<'_> {
    fn answer(mut self, request_id: &str) -> Result<Answer, Refusal> {
        let action = self.params.filled("Action").ok_or(Refusal::MissingAction)?;
        let act: fn(&mut Self, &mut Xml) -> Result<(), Refusal> = match action {
            "RunInstances" => Self::run_instances,
            "DescribeInstances" => Self::describe_instances,
            "TerminateInstances" => Self::terminate_instances,
            "CreateTags" => Self::create_tags,
            "DescribeLaunchTemplates" => Self::describe_launch_templates,
            "DescribeLaunchTemplateVersions" => Self::describe_launch_template_versions,
            "GetConsoleOutput" => Self::get_console_output,
            other => return Err(Refusal::InvalidAction(other.chars().take(100).collect())),
        };
        self.world.faults.meet(action)?;
        let xml = Xml::answer(action, request_id, |xml| act(&mut self, xml))?;
        match (action == "RunInstances").then(|| self.world.faults.lose_answer()).flatten() {
            None => Ok(Answer::Xml(xml)),
            Some(LostAs::Disconnect) => Ok(Answer::Cut),
            Some(LostAs::InternalError) => Err(Refusal::InternalError),
        }
    }

    /// `DryRun`: "checks whether you have the required permissions for the action, without
    /// actually making the request" (common query parameters, EC2 API Reference).
    fn unless_dry_run(&self) -> Result<(), Refusal> {
        if self.params.flag("DryRun")? { Err(Refusal::DryRun) } else { Ok(()) }
    }

    /// EC2 is eventually consistent: a new instance is not known everywhere at once
    /// ("Eventual consistency in the Amazon EC2 API", EC2 Developer Guide).
    fn is_known(&self, instance: &Instance) -> bool {
        self.now.since(instance.launched_at) >= Span::from_ms(self.config.list_lag_ms)
    }
}
