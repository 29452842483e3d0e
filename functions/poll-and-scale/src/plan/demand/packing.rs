//! Packing: puts members of jobs on ready nodes, booting nodes and new nodes, below the caps.
//!
//! Guarantees: ready nodes come before booting ones, and booting ones before new ones; of these, the fullest
//! that fits comes first; the caps count every record that is not cleaned.
//! Does not: know the order of the queue; `demand` does.

use super::super::shutdown::gives_up;
use super::super::sizes::{fitting, offerings, order, usable};
use super::super::view::View;
use super::bins::{At, Bin, alone, minus, name};
use super::prices::{Room, is_within_cap};
use model::ids::NodeId;
use model::limits::Limit;
use model::policy::Size;
use model::reason::Reason;
use model::{Intent, JobSummary, Market, NodeState, NodeStatus, Offering, Usd};
use std::collections::{BTreeMap, BTreeSet};

/// What the queue needs of the existing nodes. The `shutdown` stage uses it.
#[derive(Debug, Default)]
pub(in crate::plan) struct Needs {
    /// Nodes on which something is placed or reserved.
    pub(in crate::plan) used: BTreeSet<NodeId>,
    /// How many nodes count for `nodes.min`, including the launches of this plan.
    pub(in crate::plan) usable: u32,
    /// The room that idle nodes must make. They are shut down even if `nodes.min` would keep them.
    pub(in crate::plan) room: Room,
    /// Idle nodes that fill the maximum of their size, but do not fit the job that waits for that size, because they
    /// were launched before the size was changed, or on demand in place of spot. They are shut down too.
    pub(in crate::plan) outgrown: BTreeSet<NodeId>,
}

/// A node to be launched.
pub(super) struct New {
    pub(super) size: String,
    pub(super) offerings: Vec<Offering>,
    pub(super) reason: Reason,
}

pub(super) struct Packing<'v, 'a> {
    pub(super) view: &'v View<'a>,
    pub(super) bins: Vec<Bin>,
    pub(super) new: Vec<New>,
    pub(super) records: u32,
    pub(super) spent: Usd,
    pub(super) by_size: BTreeMap<String, u32>,
    pub(super) paused: Option<Limit>,
    /// The records that are shutting down: how many, and their price.
    pub(super) leaving: (u32, Usd),
    pub(super) leaving_by_size: BTreeMap<String, u32>,
    /// Whether room is kept for the first job that cannot be placed.
    pub(super) reserved: bool,
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

impl<'v, 'a> Packing<'v, 'a> {
    pub(super) fn new(view: &'v View<'a>) -> Self {
        let control = &view.seen.control;
        let mut packing = Self {
            view,
            bins: Vec::new(),
            new: Vec::new(),
            records: u32::try_from(view.seen.aside.slots.len()).unwrap_or(u32::MAX),
            spent: Usd::ZERO,
            by_size: BTreeMap::new(),
            paused: control.launch_pause(view.now),
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
            // A node whose silence or absence is not believed counts as there, so that nothing is launched in its place.
            // It gets no work.
            let doubted = view.belief.is_doubted(life.node_id) || view.held.contains(&life.node_id);
            let silent = record.contact().is_some_and(|c| c.lease_expires_at < view.now);
            if (silent && !doubted)
                || view.is_leaving(life)
                || gives_up(view, record)
                || life.intent != Intent::Run
                || view.is_unclear(life.node_id)
                || view.lost.contains(&life.node_id)
            {
                continue;
            }
            let at = match (&record.state, record.status()) {
                (NodeState::InUse(_), Some(NodeStatus::Ready | NodeStatus::Syncing)) if doubted => {
                    At::Booting(life.node_id)
                }
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

    pub(super) fn bin(&self, at: At, offering: &Offering) -> Bin {
        let mut free = usable(offering.capacity, self.view.seen.policy.nodes.memory_usable);
        let (mut empty, mut taken) = (true, false);
        if let At::Ready(node) | At::Booting(node) = at {
            for alloc in self.view.allocs_on(node) {
                free = minus(free, alloc.capacity);
                empty = false;
                taken |= alloc.exclusive || alloc.capacity.gpus > 0;
            }
            // The agent says busy: another scheduler uses the machine.
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

    /// Finds a bin for each member, in the order of [`Bin::preference`], and launches nodes for the rest. `None` if the
    /// job must wait. The first such job keeps nodes that it found, and other nodes that it needs are kept free for it.
    /// If the job waits because of a cap, room for new nodes is reserved too.
    pub(super) fn find(&mut self, job: &JobSummary, members: u32, queue: Queue) -> Option<Vec<usize>> {
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
                        // An earlier job waits already, so nothing is kept for this one.
                        _ if queue == Queue::SomeoneWaits => self.undo_launches(before),
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

    /// Takes back the launches of the bins from `first` on. New bins are always the last.
    pub(super) fn undo_launches(&mut self, first: usize) {
        let undone = self.bins.len().saturating_sub(first);
        self.bins.truncate(first);
        let left = self.new.len().saturating_sub(undone);
        for new in self.new.drain(left..) {
            let price = new.offerings.first().map_or(Usd::ZERO, |o| o.price_per_hour);
            self.records -= 1;
            self.spent = self.spent.saturating_sub(price);
            if let Some(count) = self.by_size.get_mut(&new.size) {
                *count = count.saturating_sub(1);
            }
        }
    }

    /// Launches one more node for this job, of the cheapest fitting size that may be launched now.
    pub(super) fn launch(&mut self, job: &JobSummary) -> Result<usize, Wait> {
        let sizes = fitting(&self.view.seen.policy, job);
        let reason = Reason::JobNeedsNode { job: name(job) };
        self.launch_one_of(&sizes, job.market, reason)
    }

    pub(super) fn launch_one_of(
        &mut self,
        sizes: &[&Size],
        asked: Option<Market>,
        reason: Reason,
    ) -> Result<usize, Wait> {
        let policy = &self.view.seen.policy;
        if self.paused.is_some() {
            return Err(Wait::Pause);
        }
        let mut ways: Vec<Offering> = Vec::new();
        let mut wait = Wait::Pause;
        for size in sizes {
            // Room does not help a size for which EC2 has no capacity now.
            let of_size = offerings(self.view, size, asked);
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
        // The caps were counted for the first offering. Offerings of other sizes may replace it only if no cap
        // applies to them.
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

    /// Keeps the found bins for the first job that cannot be placed.
    pub(super) fn keep(&mut self, job: &JobSummary, found: &[usize]) {
        self.take(job, found);
        for n in found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.blocked = true;
            }
        }
    }

    pub(super) fn take(&mut self, job: &JobSummary, found: &[usize]) {
        for n in found {
            if let Some(bin) = self.bins.get_mut(*n) {
                bin.free = minus(bin.free, job.capacity);
                bin.empty = false;
                bin.taken |= alone(job);
            }
        }
    }

    /// The ready nodes of these bins.
    pub(super) fn ready_of(&self, bins: &[usize]) -> Vec<NodeId> {
        let ready = |n: &usize| if let At::Ready(node) = self.bins.get(*n)?.at { Some(node) } else { None };
        bins.iter().filter_map(ready).collect()
    }

    pub(super) fn usable_nodes(&self) -> u32 {
        self.bins.len().try_into().unwrap_or(u32::MAX)
    }

    /// How many launches are beyond `launch.max_per_run`.
    pub(super) fn later(&self) -> u32 {
        u32::try_from(self.new.len()).unwrap_or(u32::MAX).saturating_sub(self.view.seen.policy.launch.max_per_run)
    }

    pub(super) fn fill_minimum(&mut self) {
        let policy = &self.view.seen.policy;
        let mut sizes: Vec<&Size> = policy.size.iter().collect();
        sizes.sort_by_key(|s| order(s));
        while self.usable_nodes() < policy.nodes.min {
            let reason = Reason::BelowMinimum { min: policy.nodes.min };
            match self.launch_one_of(&sizes, None, reason) {
                Ok(_) => {}
                Err(Wait::Pause) => break,
                // The room is reserved for a job, and jobs come before the minimum.
                Err(Wait::Room) if self.reserved => break,
                Err(Wait::Room) => {
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

    /// The launches, and the number of wanted nodes of each size: nodes with work placed or reserved, and launches.
    pub(super) fn result(self) -> (Vec<New>, BTreeMap<String, u32>) {
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
