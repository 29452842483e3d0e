//! A node: the agent's real protocol on a machine with simulated processes, and the mishaps of machines.
//!
//! Guarantees: a crash leaves exactly what the protocol calls durable; an alloc is started at most once on one
//! disk; processes survive their agent, but not a reboot.
//! Does not: speak HTTP ([`crate::functions`] delivers or loses the requests).

mod binding;
mod calls;
mod ends;
mod gpus;

use self::binding::World;
use self::ends::{ended, failure};
use self::gpus::{gpus_of, late_gpus};
use crate::check::{Ground, Watch};
use crate::core::{Core, Fault, lock};
use crate::ec2::{Ec2, Real};
use crate::functions::Functions;
use crate::scenario::GPUS;
use model::wire::{AllocOrder, NodeFile};
use model::{AllocId, EndCause, Ending, Instance, RunReport, Span, Time};
use nodekeeper_agent::protocol::{
    AllocProgress, Durable, Gpu, Holder, Identity, Lacking, LocalAlloc, MachineTask, Node as Protocol, Observed, assign,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::AbortHandle;

/// The state that survives a reboot.
#[derive(Default)]
struct Disk {
    durable: Option<Durable>,
    /// The order of each alloc that was started, and the number of the boot in which it started.
    started: BTreeMap<AllocId, (AllocOrder, u32)>,
    /// How each ended alloc ended.
    ended: BTreeMap<AllocId, Ending>,
    /// The GPUs that each alloc was given.
    gpus: BTreeMap<AllocId, Vec<String>>,
    /// Containers and volumes, each with its label.
    handles: BTreeMap<String, Option<String>>,
}

struct Process {
    began: Time,
    ends_at: Time,
    cause: EndCause,
    /// The exit code if the process is told to stop.
    told_code: i32,
    stopping: bool,
    /// When each element of a pack ends.
    elements: Vec<(Time, u32)>,
}

pub struct Machine {
    core: Arc<Core>,
    check: Arc<Watch>,
    ec2: Arc<Ec2>,
    functions: Arc<Functions>,
    ground: Arc<Mutex<Ground>>,
    file: NodeFile,
    instance_id: String,
    protocol: Protocol,
    disk: Disk,
    processes: BTreeMap<AllocId, Process>,
    boot: u32,
    booted_at: Time,
    busy_until: Option<Time>,
    refuses_until: Option<Time>,
    /// Until when the machine can start no work.
    cannot_start_until: Option<Time>,
    failed_starts: BTreeSet<AllocId>,
    /// The GPUs of the machine, all in good health.
    gpus: Vec<Gpu>,
    /// How many of the GPUs the driver shows at first, and until when.
    late_gpus: Option<(usize, Time)>,
    /// The GPU that is sick, and until when.
    sick_gpu: Option<(usize, Time)>,
    hangs_at: Option<Time>,
    never_reports: bool,
    stuck: BTreeMap<String, Time>,
    /// Handles that are not listed yet: until when, and their labels.
    appears: BTreeMap<String, (Time, Option<String>)>,
    heartbeat_at: Time,
    report_at: Time,
    handles_at: Time,
    /// When a report of handles was last sent.
    reported_handles_at: Time,
    mishap_at: Time,
}

impl Machine {
    /// Starts an agent on a machine that booted.
    pub fn boot(
        core: &Arc<Core>,
        check: &Arc<Watch>,
        ec2: &Arc<Ec2>,
        functions: &Arc<Functions>,
        real: &Real,
    ) -> AbortHandle {
        let Some(told) = check.invariant_an_instance_is_told_who_it_is(real) else {
            return tokio::spawn(async {}).abort_handle();
        };
        let world = World {
            core: Arc::clone(core),
            check: Arc::clone(check),
            ec2: Arc::clone(ec2),
            functions: Arc::clone(functions),
        };
        let running = match told.node_id {
            Some(node_id) => {
                let machine = Self::new(world, told.of(node_id), real.instance.clone());
                let core = Arc::clone(core);
                tokio::spawn(async move {
                    core.invariant_nothing_panics("an agent", machine.live()).await;
                })
            }
            None => {
                let (core, instance) = (Arc::clone(core), real.instance.clone());
                let work = async move {
                    if let Some(file) = world.bound(told, &instance.instance_id).await {
                        Self::new(world, file, instance).live().await;
                    }
                };
                tokio::spawn(async move {
                    core.invariant_nothing_panics("an agent", work).await;
                })
            }
        };
        running.abort_handle()
    }

    fn new(world: World, mut file: NodeFile, instance: Instance) -> Self {
        let World { core, check, ec2, functions } = world;
        let instance_id = instance.instance_id.clone();
        if core.scenario.batches {
            file.token = Some(functions.token_of(file.node_id));
        }
        let now = core.now();
        let ground = check.machine(&instance_id, file.node_id);
        let durable = Durable::new(file.node_id, "boot-1".into());
        Self {
            ground,
            protocol: Protocol::new(identity(&instance_id), durable),
            file,
            instance_id,
            disk: Disk::default(),
            processes: BTreeMap::new(),
            boot: 1,
            booted_at: now,
            // The other scheduler may have work for the node before nodekeeper has.
            busy_until: core
                .happens(Fault::ForeignWork)
                .then(|| now + Span::from_s(core.of(Fault::ForeignWork, 60, 3600))),
            refuses_until: None,
            cannot_start_until: None,
            failed_starts: BTreeSet::new(),
            late_gpus: late_gpus(&core, &gpus_of(&instance), now),
            gpus: gpus_of(&instance),
            sick_gpu: None,
            // With a time in the past, the machine hangs as soon as it has registered. With a later time, it may have
            // work by then.
            hangs_at: core.is_planned(Fault::Hangs).then(|| now + Span::from_s(core.of(Fault::Hangs, -3600, 3600))),
            never_reports: core.happens(Fault::NeverReports),
            stuck: BTreeMap::new(),
            appears: BTreeMap::new(),
            heartbeat_at: now,
            report_at: now,
            handles_at: now,
            reported_handles_at: now,
            mishap_at: now,
            core,
            check,
            ec2,
            functions,
        }
    }

    fn name(&self) -> String {
        format!("machine {}", self.file.node_id.slot())
    }

    async fn live(mut self) {
        loop {
            self.settle();
            self.work();
            let now = self.core.now();
            if now >= self.mishap_at {
                self.mishap_at = now + Span::from_ms(self.core.between(30_000, 90_000));
                self.mishaps(now).await;
            }
            if self.hangs_at.is_some_and(|at| now >= at) && self.protocol.durable.incarnation.is_some() {
                self.core.happened_now(Fault::Hangs);
                self.core.tell(|| self.name(), || "hangs".into());
                return std::future::pending().await;
            }
            let now = self.core.now();
            if now >= self.heartbeat_at {
                self.notice(now);
                if !self.heartbeat().await {
                    self.ec2.end(&self.instance_id, 5, "told that it is gone, it powers off");
                    return;
                }
                if self.hangs_at.is_some_and(|at| now >= at) {
                    continue;
                }
                self.settle();
                self.work();
                self.ask_for_credentials().await;
            }
            if self.core.now() >= self.report_at && self.has_report() {
                self.report().await;
                self.work();
            }
            if self.core.now() >= self.handles_at {
                self.report_handles().await;
            }
            self.write_ground();
            let mut next = self.heartbeat_at.min(self.handles_at);
            if !self.core.is_healed() {
                next = next.min(self.mishap_at);
            }
            if self.has_report() {
                next = next.min(self.report_at);
            }
            if let Some(ends) = self.processes.values().map(|p| p.ends_at).min() {
                next = next.min(ends);
            }
            let wait = next.since(self.core.now()).as_ms().max(1);
            tokio::time::sleep(Duration::from_millis(wait.unsigned_abs())).await;
        }
    }

    /// Writes down what an observer of the machine itself would see.
    fn write_ground(&self) {
        let mut ground = lock(&self.ground);
        let (known, running, handles) = (&self.protocol.durable.allocs, &self.processes, &self.disk.handles);
        // Usually nothing has changed, and a comparison is cheaper than a copy.
        if !ground.known.iter().eq(known.keys()) {
            ground.known = known.keys().copied().collect();
        }
        if !ground.running.iter().eq(running.keys()) {
            ground.running = running.keys().copied().collect();
        }
        let gpus = running.keys().filter_map(|id| Some((*id, self.disk.gpus.get(id)?.clone())));
        ground.gpus = gpus.collect();
        let order = |id: &AllocId| self.disk.started.get(id).map(|(order, _)| order);
        ground.caches = running.keys().filter_map(order).flat_map(|order| order.work.caches.clone()).collect();
        if !ground.handles.iter().eq(handles.keys()) {
            ground.handles = handles.keys().cloned().collect();
        }
    }

    fn has_report(&self) -> bool {
        (!self.never_reports || self.core.is_healed()) && self.protocol.has_report()
    }

    fn save(&mut self) {
        if self.disk.durable.as_ref() != Some(&self.protocol.durable) {
            self.disk.durable = Some(self.protocol.durable.clone());
        }
    }

    /// Ends processes whose time is over, whether or not an agent is running.
    fn reap(&mut self) -> Vec<AllocId> {
        let now = self.core.now();
        let over: Vec<AllocId> = self.processes.iter().filter(|(_, p)| p.ends_at <= now).map(|(id, _)| *id).collect();
        for id in &over {
            let Some(process) = self.processes.remove(id) else { continue };
            self.appears.remove(&id.to_string());
            self.core.tell(|| self.name(), || format!("{id} ends: {}", process.cause));
            let Some((order, _)) = self.disk.started.get(id) else { continue };
            let ended = process.end(order);
            self.check.elements_ran(*id, &ended.run.elements);
            self.end(*id, ended);
        }
        let late: Vec<String> = self.appears.iter().filter(|(_, (at, _))| *at <= now).map(|(h, _)| h.clone()).collect();
        for handle in late {
            let label = self.appears.remove(&handle).and_then(|(_, label)| label);
            self.disk.handles.insert(handle, label);
        }
        over
    }

    fn end(&mut self, id: AllocId, ended: Ending) {
        self.check.ended(self.file.node_id, id, &ended.cause);
        self.disk.ended.insert(id, ended);
    }

    /// The agent observes the processes that ended.
    fn settle(&mut self) {
        for id in self.reap() {
            let seen = self.look(id);
            self.protocol.observe(id, seen);
        }
    }

    fn work(&mut self) {
        for work in self.protocol.work() {
            match work {
                MachineTask::Run(order) => self.start(&order),
                MachineTask::Stop(order, _) => self.stop(&order),
            }
        }
        self.write_ground();
    }

    /// The state of an alloc on this disk. `Pending` if it was never started here.
    fn look(&mut self, id: AllocId) -> Observed {
        if self.processes.contains_key(&id) {
            return Observed::Running;
        }
        if let Some(ended) = self.disk.ended.get(&id) {
            return Observed::Ended(Box::new(ended.clone()));
        }
        if self.disk.started.contains_key(&id) {
            let ended = ended(EndCause::Lost { why: "its agent was killed".into() });
            self.end(id, ended.clone());
            return Observed::Ended(Box::new(ended));
        }
        Observed::Pending
    }

    fn start(&mut self, order: &AllocOrder) {
        let id = order.alloc_id;
        let seen = self.look(id);
        if seen != Observed::Pending {
            self.protocol.observe(id, seen);
            return;
        }
        let now = self.core.now();
        if self.cannot_start(now, id) || self.protocol.refuses.reason().is_some() {
            // The agent waits for a while before it gives the alloc up. Here it gives up at once.
            let ended = ended(EndCause::NotStarted { why: "the disk is full".into() });
            self.disk.started.insert(id, (order.clone(), self.boot));
            self.end(id, ended.clone());
            self.protocol.observe(id, Observed::Ended(Box::new(ended)));
            return;
        }
        match assign(id, order.needs.gpus, &self.protocol.gpus, &self.holders()) {
            Ok(uuids) if uuids.is_empty() => {}
            Ok(uuids) => _ = self.disk.gpus.insert(id, uuids),
            Err(Lacking::Now(why) | Lacking::Always(why)) => {
                self.core.count("an alloc lacked GPUs");
                let ended = ended(EndCause::NotStarted { why });
                self.disk.started.insert(id, (order.clone(), self.boot));
                self.end(id, ended.clone());
                self.protocol.observe(id, Observed::Ended(Box::new(ended)));
                return;
            }
        }
        let s = match order.work.command.get(1).and_then(|s| s.parse::<i64>().ok()) {
            _ if self.core.is_healed() => 5,
            Some(s) => s,
            None => 1 << 40,
        };
        let timeout = i64::try_from(order.work.timeout_s).unwrap_or(i64::MAX);
        let fails = self.core.happens(Fault::WorkFails);
        let (s, cause) = match (timeout > 0 && s > timeout, fails) {
            (true, _) => (timeout, EndCause::OverTime { limit_s: order.work.timeout_s }),
            (false, true) => {
                let s = self.core.of(Fault::WorkFails, 0, s.min(86_400));
                (s, failure(s, order.needs.memory_mib))
            }
            (false, false) => (s, EndCause::Exited { code: 0 }),
        };
        self.core.tell(|| self.name(), || format!("starts {id} for {s} s"));
        self.disk.started.insert(id, (order.clone(), self.boot));
        let label = Some(self.file.node_id.to_string());
        if self.core.happens(Fault::AppearsLate) {
            let at = now + Span::from_s(self.core.of(Fault::AppearsLate, 10, 1200));
            self.appears.insert(id.to_string(), (at, label.clone()));
        } else {
            self.disk.handles.insert(id.to_string(), label.clone());
        }
        for cache in &order.work.caches {
            self.disk.handles.entry(format!("cache:{cache}")).or_insert_with(|| label.clone());
        }
        // Some processes handle TERM and exit with 0.
        let told_code = if s % 2 == 0 { 0 } else { 143 };
        self.processes.insert(id, Process::new(order, now, s, cause, told_code));
        self.protocol.observe(id, Observed::Running);
        self.write_ground();
        self.check.started(&self.check.tables(), self.file.node_id, order);
    }

    /// The GPUs of allocs, by the directories of the allocs.
    fn holders(&self) -> Vec<Holder> {
        let holds = |id: &AllocId| {
            let is_of_this_boot = self.disk.started.get(id).is_some_and(|(_, boot)| *boot == self.boot);
            is_of_this_boot && !self.disk.ended.contains_key(id)
        };
        let holders = self.disk.gpus.iter().filter(|(id, _)| holds(id));
        holders.map(|(id, uuids)| Holder { alloc_id: *id, uuids: uuids.clone() }).collect()
    }

    /// Whether the machine can start no work now. The node says so after two failures.
    fn cannot_start(&mut self, now: Time, id: AllocId) -> bool {
        if self.core.is_healed() || self.cannot_start_until.is_none_or(|until| now >= until) {
            self.failed_starts.clear();
            return false;
        }
        self.failed_starts.insert(id);
        if self.failed_starts.len() == 2 {
            self.heartbeat_at = now;
        }
        true
    }

    fn stop(&mut self, order: &AllocOrder) {
        let id = order.alloc_id;
        let now = self.core.now();
        if let Some(process) = self.processes.get_mut(&id) {
            if !process.stopping {
                let stubborn = self.core.happens(Fault::IgnoresTerm);
                let s = if stubborn { order.failure_policy.stop_time().as_ms() / 1000 } else { 1 };
                process.stopping = true;
                let code = Some(if stubborn { 137 } else { process.told_code });
                process.cause = EndCause::Stopped { why: "stopped as ordered".into(), code };
                process.ends_at = process.ends_at.min(now + Span::from_s(s));
            }
            return;
        }
        let seen = match self.look(id) {
            Observed::Pending => {
                let ended = ended(EndCause::Stopped { why: "before it was started".into(), code: None });
                self.disk.started.insert(id, (order.clone(), self.boot));
                self.end(id, ended.clone());
                Observed::Ended(Box::new(ended))
            }
            seen => seen,
        };
        self.protocol.observe(id, seen);
    }

    /// Tells the agent what it notices before a call: other work on the node, progress, and an interruption.
    fn notice(&mut self, now: Time) {
        self.protocol.health.busy = self.busy_until.is_some_and(|until| now < until) && !self.core.is_healed();
        self.protocol.interrupt_at = self.ec2.taken_at(&self.instance_id);
        for (id, process) in &self.processes {
            let told = process.told(*id, now);
            self.check.elements_ran(*id, &told);
            let checkpoint = self.disk.started.get(id).and_then(|(order, _)| ends::checkpoint(order));
            let run = RunReport { elements: told, checkpoint, ..RunReport::default() };
            self.protocol.observe_progress(*id, AllocProgress { phase: None, run });
        }
        let refuses = self.refuses_until.is_some_and(|until| now < until) && !self.core.is_healed();
        self.protocol.refuses.metadata = refuses.then(|| "jobs reach the instance metadata".to_owned());
        self.notice_gpus(now);
        let unfit = self.failed_starts.len() >= 2 && self.cannot_start_until.is_some_and(|until| now < until);
        self.protocol.refuses.starts = (unfit && !self.core.is_healed()).then(|| "cannot start work".to_owned());
    }

    /// Mishaps of machines and of their networks. Drawn about once a minute.
    async fn mishaps(&mut self, now: Time) {
        let core = Arc::clone(&self.core);
        let node = self.file.node_id;
        if core.happens(Fault::CutOff) {
            self.functions.cut_off(node, now + Span::from_s(core.of(Fault::CutOff, 10, 3600)));
        }
        if core.happens(Fault::Deaf) {
            self.functions.deafen(node, now + Span::from_s(core.of(Fault::Deaf, 10, 3600)));
        }
        if core.happens(Fault::CutOffForever) {
            self.functions.cut_off(node, now + Span::from_s(1 << 30));
        }
        if core.happens(Fault::PartOfTheNetwork) {
            self.functions.cut_off_some(now + Span::from_s(core.of(Fault::PartOfTheNetwork, 60, 1800)));
        }
        if core.happens(Fault::AgentRefuses) {
            self.refuses_until = Some(now + Span::from_s(core.of(Fault::AgentRefuses, 60, 3600)));
        }
        if !self.gpus.is_empty() && core.happens(Fault::GpuSick) {
            let sick = usize::try_from(core.of(Fault::GpuSick, 0, i64::from(GPUS) - 1)).unwrap_or(0);
            self.sick_gpu = Some((sick, now + Span::from_s(core.of(Fault::GpuSick, 60, 3600))));
            self.heartbeat_at = now;
        }
        if core.happens(Fault::CannotStart) {
            self.cannot_start_until = Some(now + Span::from_s(core.of(Fault::CannotStart, 60, 3600)));
        }
        if core.happens(Fault::Busy) {
            self.busy_until = Some(now + Span::from_s(core.of(Fault::Busy, 60, 1800)));
        }
        if core.happens(Fault::StrayHandle) {
            let name = format!("stray-{}", core.of(Fault::StrayHandle, 0, 999));
            self.disk.handles.insert(name, Some(node.to_string()));
        }
        if core.happens(Fault::ForeignHandle) {
            let name = format!("foreign-{}", core.of(Fault::ForeignHandle, 0, 999));
            let label = (core.of(Fault::ForeignHandle, 0, 1) == 1).then(|| "0-01JD0000000000000000000000".to_owned());
            self.disk.handles.insert(name, label);
        }
        if core.happens(Fault::HandleVanishes) {
            let idle = self.disk.handles.keys().filter(|h| !h.parse().is_ok_and(|id| self.processes.contains_key(&id)));
            let idle: Vec<String> = idle.cloned().collect();
            if let Some(name) = core.one_of(&idle) {
                core.tell(|| self.name(), || format!("{name} vanishes"));
                self.disk.handles.remove(name);
            }
        }
        if core.happens(Fault::DiskLost) {
            core.tell(|| self.name(), || "reboots with an empty disk".into());
            self.disk = Disk::default();
            self.reboot(core.of(Fault::DiskLost, 20, 200)).await;
        } else if core.happens(Fault::Reboots) {
            core.tell(|| self.name(), || "reboots".into());
            self.reboot(core.of(Fault::Reboots, 20, 200)).await;
        } else if core.happens(Fault::StateLost) {
            core.tell(|| self.name(), || "its agent loses its state".into());
            self.disk.durable = None;
            self.restart(core.of(Fault::StateLost, 1, 60)).await;
        } else if core.happens(Fault::AgentCrashes) {
            self.restart(core.of(Fault::AgentCrashes, 1, 400)).await;
        }
    }

    async fn reboot(&mut self, s: i64) {
        self.boot += 1;
        self.booted_at = self.core.now();
        self.processes.clear();
        self.appears.clear();
        self.restart(s).await;
    }

    /// The agent ends, and starts again after `s` seconds with what was on disk.
    async fn restart(&mut self, s: i64) {
        self.core.count("an agent was killed");
        self.core.tell(|| self.name(), || format!("its agent is down for {s} s"));
        self.write_ground();
        tokio::time::sleep(Duration::from_secs(s.unsigned_abs())).await;
        let now = self.core.now();
        self.reap();
        let durable = self.load();
        let ids: Vec<AllocId> = durable.allocs.keys().copied().collect();
        self.protocol = Protocol::new(identity(&self.instance_id), durable);
        self.notice_gpus(now);
        self.save();
        for id in ids {
            let seen = self.look(id);
            self.protocol.observe(id, seen);
        }
        self.heartbeat_at = now;
        self.report_at = now;
        self.handles_at = now;
        self.write_ground();
    }

    /// Loads the state as the agent does. After a reboot, allocs that were not started are not listed any more. Without a
    /// state file, the agent adopts what it finds on the disk.
    fn load(&self) -> Durable {
        let boot_id = format!("boot-{}", self.boot);
        let mut durable = self.disk.durable.clone().unwrap_or_else(|| {
            let mut durable = Durable::new(self.file.node_id, boot_id.clone());
            for (id, (order, _)) in &self.disk.started {
                let name = id.to_string();
                let there = self.disk.handles.contains_key(&name) || self.appears.contains_key(&name);
                if there {
                    durable.allocs.insert(*id, LocalAlloc::new(order.clone()));
                }
                if there {
                    durable.wiped_at = 0;
                }
            }
            durable
        });
        if durable.boot_id != boot_id {
            durable.boot_id = boot_id;
            durable.register_anew();
            durable.allocs.retain(|id, _| self.disk.started.contains_key(id));
        }
        durable
    }
}

fn identity(instance_id: &str) -> Identity {
    Identity { instance_id: instance_id.to_owned(), address: Some("10.0.0.1".into()) }
}
