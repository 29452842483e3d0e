//! From the queue to placements, reservations and launches.
//!
//! Jobs are taken by priority, then by submission. A job goes to ready nodes with room (the
//! fullest that fits); else it reserves room on booting ones; else it asks for new ones.
//!
//! Guarantees: a job's members are placed all at once, on different nodes, or not at all; the
//! first job that cannot be placed reserves what it needs and later ones take only the rest,
//! so that large jobs do not starve; usable nodes are counted once; the caps hold over every
//! record that is not cleaned.
//! Does not: shut anything down. Rules: Arvados #2881 (demand by the queue, capped),
//! Karpenter (bins of what exists before what would be new).

mod caps;

use super::sizes::{fits, fitting, offerings, order, usable};
use super::{Action, Plan, View};
use caps::{Room, cheapest, is_within_cap};
use shared::ids::{AllocId, JobId, NodeId, Slot};
use shared::model::{
    Capacity, ClientStatus, Desired, Intent, JobState, JobSummary, Market, NodeState, NodeStatus, Offering, Usd,
};
use shared::policy::Size;
use std::collections::{BTreeMap, BTreeSet};

/// What the queue needs of the nodes there are.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// Nodes something was placed on or reserved on.
    pub(super) used: BTreeSet<NodeId>,
    /// How many nodes count towards `nodes.min`, launches of this plan included.
    pub(super) usable: u32,
    /// What idle nodes are in the way of: they go even if `nodes.min` would keep them.
    pub(super) room: Room,
    /// Idle nodes that fill their size's maximum and that what waits for that size does not fit on,
    /// for the size was changed since or they stand in for it: they go too.
    pub(super) outgrown: BTreeSet<NodeId>,
}

/// Room for members: a node that takes work, one that boots, or one that would be launched.
struct Bin {
    at: At,
    free: Capacity,
    size: String,
    instance_type: String,
    market: Market,
    price_per_hour: Usd,
    /// Nothing is on it and nothing reserved.
    empty: bool,
    /// One member has it alone.
    taken: bool,
    /// Kept for the first job that cannot be placed.
    blocked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Ready(NodeId),
    Booting(NodeId),
    New(usize),
}

struct New {
    size: String,
    offerings: Vec<Offering>,
    reason: String,
}

/// A member that wants a place: of a queued job, or a copy of an unknown alloc.
enum Want<'a> {
    Job(&'a JobSummary),
    Copy { job: &'a JobSummary, original: AllocId },
}

struct Packing<'v, 'a> {
    view: &'v View<'a>,
    bins: Vec<Bin>,
    new: Vec<New>,
    records: u32,
    spent: Usd,
    by_size: BTreeMap<String, u32>,
    paused: Option<String>,
    /// What is being shut down: records and their price.
    leaving: (u32, Usd),
    leaving_by_size: BTreeMap<String, u32>,
    /// Room is kept for the first job that cannot be placed.
    reserved: bool,
    /// A cap is in the way of the first job that cannot be placed, or of the minimum.
    room: Option<Room>,
    outgrown: BTreeSet<NodeId>,
}

pub(super) fn plan(view: &mut View<'_>, plan: &mut Plan) -> Needs {
    let mut packing = Packing::new(view);
    let mut actions: Vec<(Action, String)> = Vec::new();
    let mut starved = false;
    let mut wants: Vec<Want<'_>> = Vec::new();
    for job in &view.seen.jobs {
        match job.state {
            JobState::Queued => wants.push(Want::Job(job)),
            JobState::Placed => {
                wants.extend(copies_wanted(view, job).into_iter().map(|original| Want::Copy { job, original }))
            }
            _ => {}
        }
    }
    for want in &wants {
        let (job, members) = match want {
            Want::Job(job) => {
                if let Some(reason) = never(view, job) {
                    actions.push((Action::Reject(job.job_id), reason));
                    continue;
                }
                (*job, job.nodes)
            }
            // Its size left the policy: nothing of the others' is kept for it.
            Want::Copy { job, .. } if never(view, job).is_some() => continue,
            Want::Copy { job, .. } => (*job, 1),
        };
        let Some(found) = packing.find(job, members, starved) else {
            starved = true;
            continue;
        };
        let ready: Vec<NodeId> = found
            .iter()
            .filter_map(|n| match packing.bins.get(*n)?.at {
                At::Ready(node) => Some(node),
                _ => None,
            })
            .collect();
        packing.take(job, &found);
        if ready.len() < members as usize {
            continue;
        }
        match want {
            Want::Job(job) => {
                let on: Vec<(u32, NodeId)> = (0..).zip(ready.iter().copied()).collect();
                let places: Vec<String> = ready.iter().map(|n| format!("slot {}", n.slot())).collect();
                actions.push((Action::Place { job_id: job.job_id, on }, format!("it fits on {}", places.join(", "))));
            }
            Want::Copy { original, .. } => {
                if let Some(on) = ready.first() {
                    let reason = format!("{original} is unknown, and its job wants a copy meanwhile");
                    actions.push((Action::Replace { original: *original, on: *on }, reason));
                }
            }
        }
    }
    // Work before the minimum: else the room that is made for a job is filled up again.
    if packing.room.is_none() {
        packing.fill_minimum();
    }
    let needs = packing.needs();
    let (new, wanted) = packing.result();
    for (action, reason) in actions {
        plan.add(action, reason);
    }
    let mut free: Vec<Slot> = free_slots(view);
    free.reverse();
    // What is beyond a run's share was still counted and reserved: the next runs launch it.
    for launch in new.into_iter().take(view.seen.policy.launch.max_per_run as usize) {
        let Some(slot) = free.pop() else { break };
        plan.add(Action::Launch { slot, offerings: launch.offerings }, launch.reason);
    }
    plan.wanted = wanted;
    needs
}

/// Free slots, lowest first. Slot 0 is a slot like any other.
fn free_slots(view: &View<'_>) -> Vec<Slot> {
    let taken: BTreeSet<Slot> = view.lives().map(|(r, _)| r.slot).collect();
    Slot::below(view.seen.policy.nodes.max).filter(|s| !taken.contains(s)).collect()
}

/// Unknown allocs whose job wants a copy meanwhile, and that have none.
fn copies_wanted(view: &View<'_>, job: &JobSummary) -> Vec<AllocId> {
    if job.nodes > 1 {
        return Vec::new();
    }
    let of_job: Vec<_> = view.seen.allocs.iter().filter(|a| a.alloc_id.job_id == job.job_id).collect();
    of_job
        .iter()
        .filter(|a| a.client == ClientStatus::Unknown && a.terms.replace && a.desired == Desired::Run)
        .filter(|a| !of_job.iter().any(|o| shared::model::counts_for(o, a.alloc_id)))
        .map(|a| a.alloc_id)
        .collect()
}

/// Why a job can never run with this policy, if it cannot.
fn never(view: &View<'_>, job: &JobSummary) -> Option<String> {
    let policy = &view.seen.policy;
    let sizes = fitting(policy, job);
    if sizes.is_empty() {
        let c = job.capacity;
        let narrowed = match (&job.instance_type, job.market) {
            (None, None) => String::new(),
            (t, m) => format!(" with {} {}", t.as_deref().unwrap_or("any type"), m.map_or("", Market::as_str)),
        };
        return Some(format!(
            "no size fits: it needs {} vCPUs, {} MiB memory, {} GiB scratch, {} GPUs{narrowed}; {} of a size's memory is usable",
            c.vcpus, c.memory_mib, c.scratch_gib, c.gpus, policy.nodes.memory_usable
        ));
    }
    if job.nodes > policy.nodes.max {
        return Some(format!("it needs {} nodes at once and nodes.max is {}", job.nodes, policy.nodes.max));
    }
    let most: u32 = sizes.iter().map(|s| s.max.unwrap_or(u32::MAX)).fold(0, u32::saturating_add);
    if job.nodes > most {
        return Some(format!("it needs {} nodes at once and the sizes that fit allow {most}", job.nodes));
    }
    let cap = policy.nodes.max_price_per_hour;
    let price = cheapest(&sizes, job.nodes, |_| 0).unwrap_or(Usd::ZERO);
    (!is_within_cap(policy, price))
        .then(|| format!("it costs {price} an hour alone and nodes.max_price_per_hour is {cap}"))
}

impl<'v, 'a> Packing<'v, 'a> {
    fn new(view: &'v View<'a>) -> Self {
        let control = &view.seen.control;
        let mut packing = Self {
            view,
            bins: Vec::new(),
            new: Vec::new(),
            records: 0,
            spent: Usd::ZERO,
            by_size: BTreeMap::new(),
            paused: ["quota", "backoff", "boot_failures"]
                .into_iter()
                .find(|k| control.holding(k, view.now).is_some())
                .map(str::to_owned),
            leaving: (0, Usd::ZERO),
            leaving_by_size: BTreeMap::new(),
            reserved: false,
            room: None,
            outgrown: BTreeSet::new(),
        };
        for (record, life) in view.lives() {
            packing.records += 1;
            packing.spent = packing.spent + life.offering.price_per_hour;
            *packing.by_size.entry(life.offering.size.clone()).or_default() += 1;
            if let NodeState::ShuttingDown(_) = record.state {
                packing.leaving = (packing.leaving.0 + 1, packing.leaving.1 + life.offering.price_per_hour);
                *packing.leaving_by_size.entry(life.offering.size.clone()).or_default() += 1;
            }
            // A node whose lease is over is silent already, whatever its status still says.
            let silent = record.contact().is_some_and(|c| c.lease_expires_at < view.now);
            if silent
                || life.intent != Intent::Run
                || view.is_unclear(life.node_id)
                || view.lost.contains(&life.node_id)
            {
                continue;
            }
            let at = match (&record.state, record.status()) {
                (NodeState::InUse(_), Some(NodeStatus::Ready)) => At::Ready(life.node_id),
                (NodeState::InUse(_), Some(NodeStatus::Syncing)) | (NodeState::Assigned(_), _) => {
                    At::Booting(life.node_id)
                }
                _ => continue,
            };
            packing.bins.push(packing.bin(at, &life.offering));
        }
        packing
    }

    fn bin(&self, at: At, offering: &Offering) -> Bin {
        let mut free = usable(offering.capacity, self.view.seen.policy.nodes.memory_usable);
        let (mut empty, mut taken) = (true, false);
        if let At::Ready(node) | At::Booting(node) = at {
            for alloc in self.view.allocs_on(node) {
                free = less(free, alloc.capacity);
                empty = false;
                taken |= alloc.exclusive || alloc.capacity.gpus > 0;
            }
            // Another scheduler's work has the machine.
            taken |= self.view.node(node).and_then(|r| r.contact()).is_some_and(|c| c.busy);
        }
        Bin {
            at,
            free,
            size: offering.size.clone(),
            instance_type: offering.instance_type.clone(),
            market: offering.market,
            price_per_hour: offering.price_per_hour,
            empty,
            taken,
            blocked: false,
        }
    }

    /// Bins for all members, ready before booting before new, the fullest first; launches what
    /// is missing. `None` if the job must wait: the first such job keeps what it found, and where a
    /// cap is in its way, what it will need is kept free.
    fn find(&mut self, job: &JobSummary, members: u32, starved: bool) -> Option<Vec<usize>> {
        let mut fitting: Vec<usize> =
            (0..self.bins.len()).filter(|n| self.bins.get(*n).is_some_and(|b| b.fits(job))).collect();
        fitting.sort_by_key(|n| self.bins.get(*n).map(Bin::preference));
        fitting.truncate(members as usize);
        let before = self.bins.len();
        while fitting.len() < members as usize {
            match self.launch(job) {
                Ok(n) => fitting.push(n),
                Err(wait) => {
                    match wait {
                        // Somebody else waits already: leave no half of it.
                        _ if starved => self.undo_launches(before),
                        Wait::Room => self.block(job, &fitting, members, before),
                        Wait::Pause => {
                            self.keep(job, &fitting);
                            self.keep_free(job, &fitting, members);
                        }
                    }
                    return None;
                }
            }
        }
        Some(fitting)
    }

    /// Takes back the launches of the bins from this one on: they are the last.
    fn undo_launches(&mut self, first: usize) {
        let undone = self.bins.len().saturating_sub(first);
        self.bins.truncate(first);
        let left = self.new.len().saturating_sub(undone);
        for new in self.new.drain(left..) {
            let price = new.offerings.first().map_or(Usd::ZERO, |o| o.price_per_hour);
            self.records -= 1;
            self.spent = self.spent.less(price);
            if let Some(count) = self.by_size.get_mut(&new.size) {
                *count = count.saturating_sub(1);
            }
        }
    }

    /// One more node for this job: the cheapest fitting size that may be launched now.
    fn launch(&mut self, job: &JobSummary) -> Result<usize, Wait> {
        let sizes = fitting(&self.view.seen.policy, job);
        let reason = format!("job {} needs it", name(job));
        self.launch_one_of(&sizes, job.market != Some(Market::Spot), reason)
    }

    fn launch_one_of(&mut self, sizes: &[&Size], may_fall_back: bool, reason: String) -> Result<usize, Wait> {
        let policy = &self.view.seen.policy;
        if self.paused.is_some() {
            return Err(Wait::Pause);
        }
        let mut ways: Vec<Offering> = Vec::new();
        let mut wait = Wait::Pause;
        for size in sizes {
            // Room is no help to a size that EC2 does not have now.
            let of_size = offerings(self.view, size, may_fall_back);
            if of_size.is_empty() {
                continue;
            }
            let dear = !is_within_cap(policy, self.spent + size.price_per_hour);
            if self.records >= policy.nodes.max || self.is_full(size) || dear {
                wait = Wait::Room;
                continue;
            }
            ways.extend(of_size);
        }
        let Some(first) = ways.first().cloned() else { return Err(wait) };
        self.records += 1;
        // A cap is counted on the first way, so others may stand in for it only where no cap is.
        let capped = |o: &Offering| {
            !policy.nodes.max_price_per_hour.is_zero() || policy.size_named(&o.size).is_none_or(|s| s.max.is_some())
        };
        ways.retain(|o| o.size == first.size || !capped(o));
        self.spent = self.spent + first.price_per_hour;
        *self.by_size.entry(first.size.clone()).or_default() += 1;
        let bin = self.bin(At::New(self.new.len()), &first);
        self.new.push(New { size: first.size, offerings: ways, reason });
        self.bins.push(bin);
        Ok(self.bins.len() - 1)
    }

    /// What the first job that cannot be placed has found stays its own.
    fn keep(&mut self, job: &JobSummary, found: &[usize]) {
        self.take(job, found);
        for n in found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.blocked = true;
            }
        }
    }

    fn take(&mut self, job: &JobSummary, found: &[usize]) {
        for n in found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.free = less(bin.free, job.capacity);
                bin.empty = false;
                bin.taken |= alone(job);
            }
        }
    }

    fn usable_nodes(&self) -> u32 {
        self.bins.len().try_into().unwrap_or(u32::MAX)
    }

    /// How many launches are beyond a run's share.
    fn later(&self) -> u32 {
        u32::try_from(self.new.len()).unwrap_or(u32::MAX).saturating_sub(self.view.seen.policy.launch.max_per_run)
    }

    fn fill_minimum(&mut self) {
        let policy = &self.view.seen.policy;
        let mut sizes: Vec<&Size> = policy.size.iter().collect();
        sizes.sort_by_key(|s| order(s));
        while self.usable_nodes() < policy.nodes.min {
            let reason = format!("nodes.min is {}", policy.nodes.min);
            match self.launch_one_of(&sizes, true, reason) {
                Ok(_) => {}
                Err(Wait::Pause) => break,
                // Work before the minimum.
                Err(Wait::Room) if self.reserved => break,
                Err(Wait::Room) => {
                    // Dear idle nodes make way for cheap ones, if there are cheaper ones to be had.
                    let to_be_had = |s: &&&Size| !self.is_full(s) && !offerings(self.view, s, true).is_empty();
                    let Some(size) = sizes.iter().find(to_be_had) else { break };
                    let cheap = size.price_per_hour;
                    let dear = self.bins.iter().any(|b| b.is_idle() && b.price_per_hour > cheap);
                    self.room = dear.then(|| Room { nodes: 0, ..self.missing_room(1, cheap) });
                    break;
                }
            }
        }
    }

    fn needs(&self) -> Needs {
        let used = self.bins.iter().filter(|b| !b.empty).filter_map(|b| match b.at {
            At::Ready(node) | At::Booting(node) => Some(node),
            At::New(_) => None,
        });
        Needs {
            used: used.collect(),
            usable: self.usable_nodes().saturating_sub(self.later()),
            room: self.room.unwrap_or_default(),
            outgrown: self.outgrown.clone(),
        }
    }

    /// The launches, and the nodes wanted by size: those with work on them or reserved, and those
    /// to be launched.
    fn result(self) -> (Vec<New>, BTreeMap<String, u32>) {
        let mut wanted: BTreeMap<String, u32> = BTreeMap::new();
        for bin in &self.bins {
            let size = match bin.at {
                At::Ready(node) | At::Booting(node) if !bin.empty => {
                    self.view.node(node).and_then(|r| r.life()).map(|l| l.offering.size.clone())
                }
                At::New(n) => self.new.get(n).map(|l| l.size.clone()),
                _ => None,
            };
            if let Some(size) = size {
                *wanted.entry(size).or_default() += 1;
            }
        }
        (self.new, wanted)
    }
}

/// Why a job waits.
#[derive(PartialEq, Eq)]
enum Wait {
    /// A cap is reached: something must end first.
    Room,
    /// Launching pauses, or EC2 has none now: it goes on by itself.
    Pause,
}

impl Bin {
    fn is_kind(&self, job: &JobSummary) -> bool {
        job.instance_type.as_ref().is_none_or(|t| *t == self.instance_type)
            && job.market.is_none_or(|m| m == self.market)
    }

    /// Whether it is there, and nothing is on it that anybody knows of.
    fn is_idle(&self) -> bool {
        matches!(self.at, At::Ready(_)) && self.empty && !self.taken
    }

    fn fits(&self, job: &JobSummary) -> bool {
        !self.taken
            && !self.blocked
            && self.is_kind(job)
            && (self.empty || !alone(job))
            && fits(job.capacity, self.free)
    }

    /// Ready before booting before new; then the fullest.
    fn preference(&self) -> (u8, u32, u64, Option<Slot>) {
        let (rank, slot) = match self.at {
            At::Ready(node) => (0, Some(node.slot())),
            At::Booting(node) => (1, Some(node.slot())),
            At::New(_) => (2, None),
        };
        (rank, self.free.vcpus, self.free.memory_mib, slot)
    }
}

/// Whether an alloc of this job has its node alone.
const fn alone(job: &JobSummary) -> bool {
    job.exclusive || job.capacity.gpus > 0
}

const fn less(have: Capacity, taken: Capacity) -> Capacity {
    Capacity {
        vcpus: have.vcpus.saturating_sub(taken.vcpus),
        memory_mib: have.memory_mib.saturating_sub(taken.memory_mib),
        scratch_gib: have.scratch_gib.saturating_sub(taken.scratch_gib),
        gpus: have.gpus.saturating_sub(taken.gpus),
    }
}

fn name(job: &JobSummary) -> String {
    let id: JobId = job.job_id;
    job.name.as_ref().map_or_else(|| id.to_string(), |n| format!("{n} ({id})"))
}
