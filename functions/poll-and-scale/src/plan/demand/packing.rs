//! Packing: puts members of jobs on ready nodes, booting nodes and new nodes, below the caps.
//!
//! Guarantees: ready nodes come before booting ones, and booting ones before new ones; the fullest ready node that fits
//! comes first, and booting and new nodes come in the order of their launches; the caps count every record that is not
//! cleaned.
//! Does not: know the order of the queue; `demand` does.

use super::super::shutdown::gives_up;
use super::super::sizes::{Sizes, every_offering, offerings, refusals, usable};
use super::super::view::{ByNode, View};
use super::bins::{At, Bin, Bins, minus};
use super::prices::{Room, is_within_cap};
use super::shelf::Kind;
use model::control::ControlKey;
use model::explain::{SetNote, name_of};
use model::ids::{JobId, NodeId};
use model::policy::Size;
use model::reason::Reason;
use model::{Capacity, Intent, JobSummary, Life, Market, NodeRecord, NodeState, NodeStatus, Offering, Usd};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// What the queue needs of the existing nodes. The `shutdown` stage uses it.
#[derive(Debug, Default)]
pub(in crate::plan) struct Needs {
    /// Nodes on which something is placed or reserved, and the first job that this run reserves the node for.
    pub(in crate::plan) used: ByNode<Option<JobId>>,
    /// Nodes that satisfy a demand set, and the name of the first such set.
    pub(in crate::plan) for_sets: ByNode<String>,
    /// How many nodes count for `nodes.min`, including the launches of this plan.
    pub(in crate::plan) usable: u32,
    /// The room that idle nodes must make. They are shut down even if `nodes.min` would keep them.
    pub(in crate::plan) room: Room,
    /// Idle nodes that fill the maximum of their size, but do not fit the job that waits for that size, because they
    /// were launched before the size was changed, or on demand in place of spot. They are shut down too.
    pub(in crate::plan) outgrown: BTreeSet<NodeId>,
    /// Whether some jobs were not read, and some of those that were read were served. Then the jobs that were not read may
    /// need the idle nodes.
    pub(in crate::plan) more_may_come: bool,
}

/// A node to be launched.
pub(super) struct New<'a> {
    pub(super) size: &'a Size,
    pub(super) offerings: Vec<Offering>,
    pub(super) job_id: Option<JobId>,
    pub(super) reason: Reason,
}

/// Which limits a packing heeds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heed {
    /// The caps of the policy, and what EC2 refuses.
    Everything,
    /// Only the caps of the policy. If EC2 refuses every offering that fits, the packing still counts the node as wanted.
    Caps,
}

/// What is reserved for the first job that waits.
#[derive(Default)]
pub(super) struct Reserved<'a> {
    pub(super) nodes: u32,
    pub(super) price: Usd,
    pub(super) by_size: BTreeMap<&'a str, u32>,
}

pub(super) struct Packing<'v, 'a> {
    pub(super) view: &'v View<'a>,
    pub(super) sizes: Sizes<'a>,
    pub(super) bins: Bins<'a>,
    pub(super) new: Vec<New<'a>>,
    pub(super) records: u32,
    pub(super) spent: Usd,
    pub(super) by_size: BTreeMap<&'a str, u32>,
    /// How many of them are launches of this plan.
    new_by_size: BTreeMap<&'a str, u32>,
    heed: Heed,
    /// Whether a job, or the minimum, waits for the end of a pause or a shortage.
    pub(super) held_up: bool,
    /// How often this plan tries each offering that EC2 was short of.
    tried: BTreeMap<ControlKey, u64>,
    /// What jobs asked for that could not be placed, with the reasons. A change of the bins empties this map.
    failed: HashMap<(Kind<'a>, Capacity, u32), Rc<[Reason]>>,
    /// Whether a job was served: it is placed, or nodes boot for it.
    pub(super) has_served: bool,
    /// The first job that waits.
    pub(super) first: Option<&'a JobSummary>,
    /// The records that are shutting down: how many, and their price.
    pub(super) leaving: (u32, Usd),
    pub(super) leaving_by_size: BTreeMap<&'a str, u32>,
    /// What is reserved for the first job that cannot be placed.
    pub(super) reserved: Reserved<'a>,
    /// What the demand sets have.
    pub(super) sets: Vec<SetNote>,
    /// Why the minimum is not filled; empty if it is.
    pub(super) below_minimum: Vec<Reason>,
    /// The room that is missing for the first job that cannot be placed, or for the minimum, because of a cap.
    pub(super) room: Option<Room>,
    pub(super) outgrown: BTreeSet<NodeId>,
}

/// Whether an earlier job in the queue waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// Every earlier job was served.
    Served,
    /// An earlier job waits, and its needs are reserved.
    SomeoneWaits,
}

/// Why a job waits.
#[derive(PartialEq, Eq)]
pub(super) enum Wait {
    /// A cap is reached: some node must end first.
    Room,
    /// Launches pause, or EC2 has no capacity now. This ends by itself.
    Pause,
}

/// Why a node cannot be launched now.
pub(super) struct Blocked {
    pub(super) wait: Wait,
    pub(super) why: Vec<Reason>,
}

impl Blocked {
    /// Adds a reason, once. Of several sizes that the price cap does not allow, only the first is named.
    fn add(&mut self, reason: Reason) {
        let price = |r: &Reason| matches!(r, Reason::PriceCap { .. });
        let known = if price(&reason) { self.why.iter().any(price) } else { self.why.contains(&reason) };
        if !known {
            self.why.push(reason);
        }
    }
}

impl<'v, 'a> Packing<'v, 'a> {
    pub(super) fn new(view: &'v View<'a>, heed: Heed) -> Self {
        let mut packing = Self {
            view,
            sizes: Sizes::new(&view.seen.policy),
            bins: Bins::new(Vec::new()),
            new: Vec::new(),
            records: u32::try_from(view.seen.aside.slots.len()).unwrap_or(u32::MAX),
            spent: Usd::ZERO,
            by_size: BTreeMap::new(),
            new_by_size: BTreeMap::new(),
            heed,
            held_up: false,
            tried: BTreeMap::new(),
            failed: HashMap::new(),
            has_served: false,
            first: None,
            leaving: (0, Usd::ZERO),
            leaving_by_size: BTreeMap::new(),
            reserved: Reserved::default(),
            sets: Vec::new(),
            below_minimum: Vec::new(),
            room: None,
            outgrown: BTreeSet::new(),
        };
        let mut bins = Vec::with_capacity(view.seen.nodes.len());
        let (mut by_size, mut leaving_by_size) = (Counts::default(), Counts::default());
        for (record, life) in view.lives() {
            packing.records += 1;
            packing.spent = packing.spent + life.offering.price_per_hour;
            by_size.add(&life.offering.size);
            if let NodeState::ShuttingDown(_) = record.state {
                packing.leaving = (packing.leaving.0 + 1, packing.leaving.1 + life.offering.price_per_hour);
                leaving_by_size.add(&life.offering.size);
            }
            // A node whose silence or absence is not believed counts as there, so that nothing is launched in its place,
            // also if it is down already. It gets no work.
            let doubted = view.is_doubted(life.node_id);
            let silent = record.contact().is_some_and(|c| c.lease_expires_at < view.now);
            if ((silent || gives_up(view, record)) && !doubted)
                || view.is_leaving(life)
                || life.intent != Intent::Run
                || view.is_unclear(life.node_id)
                || view.lost.contains(&life.node_id)
            {
                continue;
            }
            let at = match (&record.state, record.status()) {
                (NodeState::InUse(_), Some(_)) if doubted => At::Booting(life.node_id),
                (NodeState::InUse(_), Some(NodeStatus::Ready)) => At::Ready(life.node_id),
                (NodeState::InUse(_), Some(NodeStatus::Syncing)) | (NodeState::Assigned(_), _) => {
                    At::Booting(life.node_id)
                }
                _ => continue,
            };
            bins.push(of_node(view, at, record, life));
        }
        packing.bins = Bins::new(bins);
        (packing.by_size, packing.leaving_by_size) = (by_size.all(), leaving_by_size.all());
        packing
    }

    /// Finds a bin for each member, in the order of [`Bin::preference`], and launches nodes for the rest. If the job must
    /// wait, the error says why. The first such job keeps nodes that it found, and other nodes that it needs are kept
    /// free for it. If the job waits because of a cap, room for new nodes is reserved too.
    pub(super) fn find(&mut self, job: &'a JobSummary, members: u32, queue: Queue) -> Result<Vec<usize>, Rc<[Reason]>> {
        let shape = (Kind::of(job), job.needs.capacity(), members);
        let known = self.failed.get(&shape).filter(|_| queue == Queue::SomeoneWaits).map(Rc::clone);
        if let Some(why) = known {
            return Err(why);
        }
        let mut fitting = self.bins.fitting(job, members as usize);
        let before = self.bins.len();
        while fitting.len() < members as usize {
            match self.launch(job) {
                Ok(n) => fitting.push(n),
                Err(Blocked { wait, mut why }) => {
                    self.held_up |= wait == Wait::Pause;
                    let kept = match wait {
                        // An earlier job waits already, so nothing is kept for this one.
                        _ if queue == Queue::SomeoneWaits => {
                            self.undo_launches(before);
                            0
                        }
                        Wait::Room => self.block(job, &fitting, members, before),
                        Wait::Pause => {
                            self.keep(job, &fitting);
                            self.keep_free(job, &fitting, members);
                            fitting.len()
                        }
                    };
                    self.first = self.first.or(Some(job));
                    if kept > 0 && members > 1 {
                        why.insert(0, Reason::PartFound { found: kept, of: members });
                    }
                    let why: Rc<[Reason]> = why.into();
                    // Nothing has changed, so the next job of this shape finds the same.
                    if queue == Queue::SomeoneWaits {
                        self.failed.insert(shape, Rc::clone(&why));
                    }
                    return Err(why);
                }
            }
        }
        Ok(fitting)
    }

    /// Takes back the launches of the bins from `first` on. New bins are always the last.
    pub(super) fn undo_launches(&mut self, first: usize) {
        let undone = self.bins.len().saturating_sub(first);
        self.bins.truncate(first);
        let left = self.new.len().saturating_sub(undone);
        for new in self.new.drain(left..) {
            for offering in &new.offerings {
                if let Some(tried) = self.tried.get_mut(&ControlKey::shortage_of(offering)) {
                    *tried = tried.saturating_sub(1);
                }
            }
            let price = new.offerings.first().map_or(Usd::ZERO, |o| o.price_per_hour);
            self.records -= 1;
            self.spent = self.spent.saturating_sub(price);
            for counts in [&mut self.by_size, &mut self.new_by_size] {
                if let Some(count) = counts.get_mut(new.size.name.as_str()) {
                    *count = count.saturating_sub(1);
                }
            }
        }
    }

    /// Launches one more node for this job, of the cheapest fitting size that may be launched now.
    fn launch(&mut self, job: &JobSummary) -> Result<usize, Blocked> {
        let sizes = self.sizes.fitting(job);
        let reason = Reason::JobNeedsNode { job: name_of(job) };
        self.launch_one_of(&sizes, job.needs.market, Some(job.job_id), reason)
    }

    pub(super) fn launch_one_of(
        &mut self,
        sizes: &[&'a Size],
        asked: Option<Market>,
        job_id: Option<JobId>,
        reason: Reason,
    ) -> Result<usize, Blocked> {
        let (policy, now) = (&self.view.seen.policy, self.view.now);
        let mut blocked = Blocked { wait: Wait::Pause, why: Vec::new() };
        let mut ways: Vec<Offering> = Vec::new();
        let mut cheapest = None;
        for size in sizes {
            // Room does not help a size that EC2 does not launch now.
            let (of_size, refused) = self.attempts(size, asked);
            if of_size.is_empty() {
                refused.into_iter().for_each(|reason| blocked.add(reason));
            } else if let Some(cap) = self.cap_on(size) {
                blocked.wait = Wait::Room;
                blocked.add(cap);
            } else {
                cheapest = cheapest.or(Some(*size));
                ways.extend(of_size);
            }
        }
        if ways.is_empty() && blocked.wait == Wait::Pause && self.heed == Heed::Caps {
            cheapest = sizes.iter().copied().find(|size| self.cap_on(size).is_none());
            ways = cheapest.map(|size| every_offering(self.view, size, asked)).unwrap_or_default();
        }
        let (Some(size), Some(first)) = (cheapest, ways.first()) else { return Err(blocked) };
        let (market, price) = (first.market, first.price_per_hour);
        self.records += 1;
        // The caps were counted for the first offering. Offerings of other sizes may replace it only if no cap
        // applies to them. What is dearer than a size with a cap does not replace it either: the next run counts the caps
        // anew, and takes the cheaper size.
        let capped = |o: &Offering| {
            !policy.nodes.max_price_per_hour.is_zero() || policy.size_named(&o.size).is_none_or(|s| s.max.is_some())
        };
        let alike = ways.iter().position(|o| o.size != size.name && capped(o));
        ways.truncate(alike.unwrap_or(ways.len()));
        for offering in &ways {
            if self.attempts_allowed(offering).is_some() {
                *self.tried.entry(ControlKey::shortage_of(offering)).or_default() += 1;
            }
        }
        self.spent = self.spent + price;
        for counts in [&mut self.by_size, &mut self.new_by_size] {
            *counts.entry(&size.name).or_default() += 1;
        }
        let capacity = for_jobs(self.view, size.capacity);
        let bin = Bin {
            at: At::New(self.new.len()),
            capacity,
            free: capacity,
            size: &size.name,
            instance_type: &size.instance_type,
            market,
            price_per_hour: price,
            assigned_at: now,
            empty: true,
            taken: false,
            busy: false,
            blocked: false,
            for_job: None,
            for_set: None,
        };
        self.new.push(New { size, offerings: ways, job_id, reason });
        Ok(self.bins.push(bin))
    }

    /// How often this run may try an offering; `None` if EC2 was not short of it recently.
    fn attempts_allowed(&self, offering: &Offering) -> Option<u64> {
        self.view.seen.control.shortage(offering).attempts(self.view.seen.observed_at)
    }

    /// The offerings of a size that one more launch may try; if there is none, also why.
    fn attempts(&self, size: &Size, asked: Option<Market>) -> (Vec<Offering>, Vec<Reason>) {
        let mut spent = Vec::new();
        let mut ways = offerings(self.view, size, asked);
        ways.retain(|offering| {
            let key = ControlKey::shortage_of(offering);
            let over = |most: &u64| self.tried.get(&key).is_some_and(|tried| tried >= most);
            let Some(most) = self.attempts_allowed(offering).filter(over) else { return true };
            let offering = format!("{} {}", offering.market, offering.instance_type);
            spent.push(Reason::AttemptsSpent { offering, most });
            false
        });
        if ways.is_empty() {
            spent.extend(refusals(self.view, size, asked));
        }
        (ways, spent)
    }

    /// Which cap does not allow one more node of this size. If the cap is reached only because of what is reserved
    /// for the first job, the reason names that job.
    fn cap_on(&self, size: &Size) -> Option<Reason> {
        let policy = &self.view.seen.policy;
        let (max, cap, price) = (policy.nodes.max, policy.nodes.max_price_per_hour, size.price_per_hour);
        let (of_size, reserved) = (self.of_size(size), &self.reserved);
        let name = size.name.as_str();
        let (cap, without_reserved) = if self.records >= max {
            let used = self.records.saturating_sub(reserved.nodes);
            let there = used.saturating_sub(u32::try_from(self.new.len()).unwrap_or(u32::MAX));
            let cap = if max == 0 { Reason::ClusterPaused {} } else { Reason::NodesMax { max, there } };
            (cap, used < max)
        } else if let Some(most) = size.max.filter(|most| of_size >= *most) {
            let used = of_size.saturating_sub(reserved.by_size.get(name).copied().unwrap_or(0));
            let there = used.saturating_sub(self.new_by_size.get(name).copied().unwrap_or(0));
            (Reason::SizeMaximum { size: size.name.clone(), max: most, there }, used < most)
        } else if !is_within_cap(policy, self.spent + price) {
            let spent = self.spent.saturating_sub(reserved.price);
            (Reason::PriceCap { spent, price, cap }, is_within_cap(policy, spent + price))
        } else {
            return None;
        };
        match self.first {
            Some(job) if without_reserved => Some(Reason::KeptForEarlier { job: name_of(job) }),
            _ => Some(cap),
        }
    }

    /// Keeps the found bins for the first job that cannot be placed.
    pub(super) fn keep(&mut self, job: &JobSummary, found: &[usize]) {
        self.take(job, found);
        found.iter().for_each(|n| self.bins.block(*n));
    }

    pub(super) fn take(&mut self, job: &JobSummary, found: &[usize]) {
        self.failed.clear();
        found.iter().for_each(|n| self.bins.take(*n, job));
    }

    /// The ready nodes of these bins.
    pub(super) fn ready_of(&self, bins: &[usize]) -> Vec<NodeId> {
        let ready = |n: &usize| if let At::Ready(node) = self.bins.get(*n)?.at { Some(node) } else { None };
        bins.iter().filter_map(ready).collect()
    }

    pub(super) fn usable_nodes(&self) -> u32 {
        self.bins.len().try_into().unwrap_or(u32::MAX)
    }

    /// How many nodes count as there because a brake holds them, although they are down. They keep no other node from
    /// counting for the minimum.
    fn down_nodes(&self) -> u32 {
        let is_down = |node: NodeId| {
            let status = self.view.node(node).and_then(NodeRecord::status);
            matches!(status, Some(NodeStatus::Disconnected | NodeStatus::Down))
        };
        let down = self.bins.iter().filter(|b| matches!(b.at, At::Booting(node) if is_down(node)));
        u32::try_from(down.count()).unwrap_or(u32::MAX)
    }

    /// How many launches are beyond `launch.max_per_run`.
    pub(super) fn later(&self) -> u32 {
        u32::try_from(self.new.len()).unwrap_or(u32::MAX).saturating_sub(self.view.seen.policy.launch.max_per_run)
    }

    pub(super) fn fill_minimum(&mut self) {
        let policy = &self.view.seen.policy;
        let sizes = self.sizes.all();
        while self.usable_nodes() < policy.nodes.min {
            let reason = Reason::BelowMinimum { min: policy.nodes.min };
            let Err(Blocked { wait, why }) = self.launch_one_of(&sizes, None, None, reason) else { continue };
            self.below_minimum = why;
            match wait {
                Wait::Pause => {
                    self.held_up = true;
                    break;
                }
                // The room is reserved for a job, and jobs come before the minimum.
                Wait::Room if self.reserved.nodes > 0 => break,
                Wait::Room => {
                    // Expensive idle nodes must make room, if a cheaper size may be launched now.
                    let to_be_had = |s: &&&Size| !self.is_full(s) && !offerings(self.view, s, None).is_empty();
                    let Some(size) = sizes.iter().find(to_be_had) else { break };
                    let cheap = size.price_per_hour;
                    let dear = self.bins.iter().any(|b| b.is_idle() && b.price_per_hour > cheap);
                    self.room = dear.then(|| Room { nodes: 0, ..self.missing_room(1, cheap) });
                    break;
                }
            }
        }
    }

    pub(super) fn needs(&self) -> Needs {
        let used = self.bins.iter().filter(|b| !b.empty).filter_map(|b| match b.at {
            At::Ready(node) | At::Booting(node) => Some((node, b.for_job)),
            At::New(_) => None,
        });
        let for_sets = self.bins.iter().filter_map(|b| match b.at {
            At::Ready(node) | At::Booting(node) => Some((node, b.for_set?.to_owned())),
            At::New(_) => None,
        });
        Needs {
            for_sets: for_sets.collect(),
            used: used.collect(),
            usable: self.usable_nodes().saturating_sub(self.later()).saturating_sub(self.down_nodes()),
            room: self.room.unwrap_or_default(),
            outgrown: self.outgrown.clone(),
            more_may_come: self.view.seen.queue.part.is_some() && self.has_served,
        }
    }

    /// The number of wanted nodes of each size: nodes with work placed or reserved, and launches.
    pub(super) fn wanted(&self) -> BTreeMap<String, u32> {
        let mut wanted = Counts::default();
        for bin in self.wanted_bins() {
            wanted.add(bin.size);
        }
        wanted.all().into_iter().map(|(size, nodes)| (size.to_owned(), nodes)).collect()
    }

    /// The number of wanted nodes that are not ready: they boot, or would be launched.
    pub(super) fn unready(&self) -> u32 {
        let unready = self.wanted_bins().filter(|b| !matches!(b.at, At::Ready(_)));
        u32::try_from(unready.count()).unwrap_or(u32::MAX)
    }

    fn wanted_bins(&self) -> impl Iterator<Item = &Bin<'a>> {
        self.bins.iter().filter(|b| !b.empty || matches!(b.at, At::New(_)))
    }
}

/// Counts by size. Nodes of the same size are mostly next to each other, so the map is seldom searched.
#[derive(Default)]
struct Counts<'a> {
    all: BTreeMap<&'a str, u32>,
    last: Option<(&'a str, u32)>,
}

impl<'a> Counts<'a> {
    fn add(&mut self, size: &'a str) {
        match &mut self.last {
            Some((of, nodes)) if *of == size => *nodes += 1,
            _ => {
                self.keep();
                self.last = Some((size, 1));
            }
        }
    }

    fn keep(&mut self) {
        if let Some((size, nodes)) = self.last.take() {
            *self.all.entry(size).or_default() += nodes;
        }
    }

    fn all(mut self) -> BTreeMap<&'a str, u32> {
        self.keep();
        self.all
    }
}

/// What jobs get of a machine.
fn for_jobs(view: &View<'_>, capacity: Capacity) -> Capacity {
    usable(capacity, view.seen.policy.nodes.memory_usable)
}

/// The bin of an existing node.
fn of_node<'a>(view: &View<'a>, at: At, record: &NodeRecord, life: &'a Life) -> Bin<'a> {
    let offering = &life.offering;
    let capacity = for_jobs(view, offering.capacity);
    let mut bin = Bin {
        at,
        capacity,
        free: capacity,
        size: &offering.size,
        instance_type: &offering.instance_type,
        market: offering.market,
        price_per_hour: offering.price_per_hour,
        assigned_at: life.assigned_at,
        empty: true,
        taken: false,
        busy: record.contact().is_some_and(|c| c.busy),
        blocked: false,
        for_job: None,
        for_set: None,
    };
    for alloc in view.allocs_on(life.node_id) {
        bin.free = minus(bin.free, alloc.needs.capacity());
        bin.empty = false;
        bin.taken |= alloc.needs.alone();
    }
    bin
}
