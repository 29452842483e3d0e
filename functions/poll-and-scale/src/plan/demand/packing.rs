//! Packing: puts members of jobs on ready nodes, booting nodes and new nodes, below the caps.
//!
//! Guarantees: ready nodes come before booting ones, and booting ones before new ones; the fullest ready node that fits
//! comes first, and booting and new nodes come in the order of their launches; the caps count every record that is not
//! cleaned.
//! Does not: know the order of the queue; `demand` does.

use super::super::liveness::will_terminate;
use super::super::needs::{CapExcess, QueueNeeds};
use super::super::sizes::Sizes;
use super::super::view::View;
use super::bin::{At, Bin, minus};
use super::bin_index::BinKind;
use super::bins::{Bins, Fitting};
use super::counts::{FleetCounts, by_size};
use super::ways::{CachedWays, Ways};
use model::explain::name_of;
use model::policy::Size;
use model::{
    Arch, Capacity, ControlKey, Intent, JobId, JobSummary, Life, Machine, MachineNeed, MarketNeed, NodeId, NodeRecord,
    NodeState, NodeStatus, Offering, Reason, SetNote, Usd,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// For how many different needs the fitting sizes are cached.
const MOST_CACHED: usize = 100;

/// A node to be launched.
pub(super) struct New<'a> {
    pub(super) size: &'a Size,
    pub(super) offerings: Arc<[Offering]>,
    /// What the caps count: the price of its dearest offering.
    price: Usd,
    /// Whether this launch shares its call with the one before it.
    is_together: bool,
    pub(super) job_id: Option<JobId>,
    /// Whether the job needs this node together with others.
    pub(super) is_member: bool,
    pub(super) reason: Reason,
}

/// Which limits a packing keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitMode {
    /// The caps of the policy, and what EC2 refuses.
    Everything,
    /// Only the caps of the policy. If EC2 refuses every offering that fits, the packing still counts the node as wanted.
    Caps,
}

#[derive(Default)]
pub(super) struct Findings<'a> {
    /// Whether a job, or the minimum, waits for the end of a pause or a shortage.
    pub(super) is_delayed: bool,
    /// Whether a job was served: it is placed, or nodes boot for it.
    pub(super) has_served: bool,
    /// The first job that waits.
    pub(super) first: Option<&'a JobSummary>,
    /// The nodes of each demand set.
    pub(super) sets: Vec<SetNote>,
    /// Why the minimum is not filled; empty if it is.
    pub(super) below_minimum: Vec<Reason>,
    /// The room that is missing for the first job that cannot be placed, or for the minimum, because of a cap.
    pub(super) room: Option<CapExcess>,
    /// The job for which idle nodes make way.
    pub(super) room_for: Option<JobId>,
    /// The idle nodes that must go, so that nodes of their size can be launched for the first job that cannot be placed.
    pub(super) outgrown: BTreeSet<NodeId>,
}

type Why = Rc<[Reason]>;

pub(super) struct Packing<'v, 'a> {
    pub(super) view: &'v View<'a>,
    pub(super) sizes: Sizes<'a>,
    pub(super) bins: Bins<'a>,
    pub(super) counts: FleetCounts<'a>,
    pub(super) new: Vec<New<'a>>,
    pub(super) findings: Findings<'a>,
    pub(super) limits: LimitMode,
    /// Whether the next launch shares its call with the last one: both are for members of one job.
    pub(super) is_together: bool,
    /// How often this plan tries each offering that EC2 was short of.
    pub(super) tried: BTreeMap<ControlKey, u64>,
    /// The ways of the last launch.
    pub(super) last_ways: Option<CachedWays<'a>>,
    /// A cache of [`Self::fitting`].
    fits: HashMap<(Capacity, &'a MachineNeed), Rc<[&'a Size]>>,
    /// What jobs asked for that could not be placed, with the reasons. A change of the bins empties this map.
    failed: HashMap<(BinKind<'a>, Capacity, u32), Why>,
}

/// Whether an earlier job in the queue waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadOfLine {
    /// Every earlier job was served.
    Served,
    /// An earlier job waits, and its needs are reserved.
    Blocked,
}

/// What must end before a node can be launched.
#[derive(PartialEq, Eq)]
pub(super) enum BlockedBy {
    /// A cap is reached: some node must end first.
    Cap,
    /// Launches pause, or EC2 has no capacity now. This ends by itself.
    Backoff,
}

/// Why a node cannot be launched now.
pub(super) struct Blocked {
    pub(super) wait: BlockedBy,
    pub(super) why: Vec<Reason>,
}

impl Blocked {
    /// Adds a reason, once. Of several sizes that the price cap does not allow, only the first is named.
    pub(super) fn add(&mut self, reason: Reason) {
        let price = |r: &Reason| matches!(r, Reason::PriceCap { .. });
        let known = if price(&reason) { self.why.iter().any(price) } else { self.why.contains(&reason) };
        if !known {
            self.why.push(reason);
        }
    }
}

impl<'v, 'a> Packing<'v, 'a> {
    pub(super) fn new(view: &'v View<'a>, limits: LimitMode) -> Self {
        let sizes = Sizes::new(&view.observed.policy);
        let bins = view.lives().filter_map(|(record, life)| {
            Some(of_node(view, sizes.default_arch, place(view, record, life)?, record, life))
        });
        Self {
            view,
            bins: Bins::new(bins.collect()),
            sizes,
            counts: FleetCounts::of(view),
            new: Vec::new(),
            findings: Findings::default(),
            limits,
            is_together: false,
            tried: BTreeMap::new(),
            last_ways: None,
            fits: HashMap::new(),
            failed: HashMap::new(),
        }
    }

    /// Finds a bin for each member, in the order of [`Bin::preference`], and launches nodes for the rest. If the job must
    /// wait, the error says why. The first such job keeps nodes that it found, and other nodes that it needs are kept
    /// free for it. If the job waits because of a cap, room for new nodes is reserved too.
    pub(super) fn find(&mut self, job: &'a JobSummary, members: u32, head: HeadOfLine) -> Result<Vec<usize>, Why> {
        let shape = (BinKind::of(job), job.needs.capacity(), members);
        let known = self.failed.get(&shape).filter(|_| head == HeadOfLine::Blocked).map(Rc::clone);
        if let Some(why) = known {
            return Err(why);
        }
        let Fitting { chosen: mut fitting, spare } = self.bins.fitting(job, members as usize);
        let mut spare = spare.into_iter();
        let before = self.bins.len();
        self.is_together = false;
        while fitting.len() < members as usize {
            match self.launch(job) {
                Ok(n) => {
                    fitting.push(n);
                    self.is_together = members > 1 && self.view.observed.policy.launch.max_per_call > 1;
                }
                Err(Blocked { wait, mut why }) => {
                    if let Some(n) = spare.next() {
                        fitting.push(n);
                        continue;
                    }
                    // What is launched after this job is not launched with it.
                    self.is_together = false;
                    self.findings.is_delayed |= wait == BlockedBy::Backoff;
                    let kept = match wait {
                        // An earlier job waits already, so nothing is kept for this one.
                        _ if head == HeadOfLine::Blocked => {
                            self.undo_launches(before);
                            0
                        }
                        BlockedBy::Cap => self.block(job, &fitting, members, before),
                        BlockedBy::Backoff => {
                            // A part of the members is of no use, so nothing is bought for it.
                            self.undo_launches(before);
                            fitting.retain(|n| *n < before);
                            self.keep(job, &fitting);
                            self.keep_free(job, &fitting, members);
                            fitting.len()
                        }
                    };
                    self.findings.first = self.findings.first.or(Some(job));
                    if kept > 0 && members > 1 {
                        why.insert(0, Reason::PartFound { found: kept, of: members });
                    }
                    let why: Why = why.into();
                    // Nothing has changed, so the next job of this shape finds the same.
                    if head == HeadOfLine::Blocked {
                        self.failed.insert(shape, Rc::clone(&why));
                    }
                    return Err(why);
                }
            }
        }
        self.is_together = false;
        Ok(fitting)
    }

    /// Takes back the launches of the bins from `first` on. New bins are always the last.
    pub(super) fn undo_launches(&mut self, first: usize) {
        let undone = self.bins.len().saturating_sub(first);
        self.last_ways = None;
        self.bins.truncate(first);
        let left = self.new.len().saturating_sub(undone);
        for new in self.new.drain(left..) {
            for offering in new.offerings.iter().filter(|_| !new.is_together) {
                if let Some(tried) = self.tried.get_mut(&ControlKey::shortage_of(offering)) {
                    *tried = tried.saturating_sub(1);
                }
            }
            self.counts.take_back(new.size, new.offerings.first().and_then(|o| o.zone.as_deref()), new.price);
        }
    }

    /// Launches one more node for this job, of the cheapest fitting size that may be launched now.
    fn launch(&mut self, job: &'a JobSummary) -> Result<usize, Blocked> {
        let sizes = self.fitting(job);
        if sizes.is_empty() && self.view.observed.policy.waits_for_catalogue() {
            let why = vec![Reason::CatalogueMissing { why: self.view.observed.policy.catalogue_lacks() }];
            return Err(Blocked { wait: BlockedBy::Backoff, why });
        }
        let reason = Reason::JobNeedsNode { job: name_of(job) };
        let launched = self.launch_one_of(&sizes, job.needs.machine.market, Some(job.job_id), reason)?;
        if let Some(new) = self.new.last_mut() {
            new.is_member = job.needs.nodes > 1;
        }
        Ok(launched)
    }

    /// The sizes that fit a job, in the order to try them. Cached, because most jobs of a queue ask for the same as others.
    fn fitting(&mut self, job: &'a JobSummary) -> Rc<[&'a Size]> {
        let asked = (job.needs.capacity(), &job.needs.machine);
        if let Some(known) = self.fits.get(&asked) {
            return Rc::clone(known);
        }
        if self.fits.len() >= MOST_CACHED {
            self.fits.clear();
        }
        let sizes: Rc<[&Size]> = self.sizes.fitting(job).into();
        self.fits.insert(asked, Rc::clone(&sizes));
        sizes
    }

    pub(super) fn launch_one_of(
        &mut self,
        sizes: &Rc<[&'a Size]>,
        asked: Option<MarketNeed>,
        job_id: Option<JobId>,
        reason: Reason,
    ) -> Result<usize, Blocked> {
        let mut ways = self.ways(sizes, asked)?;
        if self.is_together && self.new.last().is_some_and(|last| !ways.are(&last.offerings)) {
            // Launches of other offerings are another call, and so another attempt.
            self.is_together = false;
            ways = self.ways(sizes, asked)?;
        }
        let Ways { size, offerings, price, .. } = ways;
        let Some(first) = offerings.first() else {
            return Err(Blocked { wait: BlockedBy::Backoff, why: Vec::new() });
        };
        let market = first.market;
        if !self.is_together {
            self.note_tries(&offerings);
        }
        self.counts.launch(size, first.zone.as_deref(), price);
        let capacity = for_jobs(self.view, size.capacity);
        let bin = Bin {
            at: At::New(self.new.len()),
            capacity,
            free: capacity,
            size: &size.name,
            machine: Machine { market, ..size.machine(self.sizes.default_arch) },
            price_per_hour: price,
            assigned_at: self.view.now,
            empty: true,
            taken: false,
            busy: false,
            blocked: false,
            for_job: None,
            for_set: None,
        };
        let is_together = self.is_together;
        self.new.push(New { size, offerings, price, is_together, job_id, is_member: false, reason });
        Ok(self.bins.push(bin))
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

    pub(super) fn ready_of(&self, bins: &[usize]) -> Vec<NodeId> {
        let ready = |n: &usize| if let At::Ready(node) = self.bins.get(*n)?.at { Some(node) } else { None };
        bins.iter().filter_map(ready).collect()
    }

    /// What a job costs an hour in these bins.
    pub(super) fn price_of(&self, job: &JobSummary, bins: &[usize]) -> Usd {
        let price = |bin: &Bin<'_>| job.needs.price_on(bin.capacity, bin.price_per_hour);
        bins.iter().filter_map(|n| self.bins.get(*n)).map(price).sum()
    }

    pub(super) fn usable_nodes(&self) -> u32 {
        self.bins.len().try_into().unwrap_or(u32::MAX)
    }

    /// How many nodes count as there only because this run does not believe that they are gone. They are down, so no
    /// other node becomes surplus because of them.
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
        u32::try_from(self.new.len()).unwrap_or(u32::MAX).saturating_sub(self.view.observed.policy.launch.max_per_run)
    }

    pub(super) fn fill_minimum(&mut self) {
        let (sizes, min): (Rc<[&Size]>, u32) = (self.sizes.all().into(), self.view.minimum());
        while self.usable_nodes() < min {
            let reason = Reason::BelowMinimum { min };
            let Err(Blocked { wait, why }) = self.launch_one_of(&sizes, None, None, reason) else { continue };
            self.findings.below_minimum = why;
            match wait {
                BlockedBy::Backoff => {
                    self.findings.is_delayed = true;
                    break;
                }
                // Room is reserved for a job, and jobs come before the minimum.
                BlockedBy::Cap if self.counts.reserved.nodes > 0 => break,
                BlockedBy::Cap => {
                    // Expensive idle nodes must make room, if a cheaper size may be launched now.
                    let to_be_had = |s: &&&Size| !self.counts.is_full(s) && self.is_to_be_had(s, None);
                    let Some(size) = sizes.iter().find(to_be_had) else { break };
                    let cheap = size.price_per_hour;
                    let dear = self.bins.iter().any(|b| b.is_idle() && b.price_per_hour > cheap);
                    self.findings.room = dear.then(|| CapExcess { nodes: 0, ..self.counts.missing_room(1, cheap) });
                    break;
                }
            }
        }
    }

    pub(super) fn needs(&self) -> QueueNeeds {
        let used = self.bins.iter().filter(|b| !b.empty).filter_map(|b| Some((b.node()?, b.for_job)));
        let for_sets = self.bins.iter().filter_map(|b| Some((b.node()?, b.for_set?.to_owned())));
        QueueNeeds {
            for_sets: for_sets.collect(),
            used: used.collect(),
            usable: self.usable_nodes().saturating_sub(self.later()).saturating_sub(self.down_nodes()),
            room: self.findings.room.unwrap_or_default(),
            outgrown: self.findings.outgrown.clone(),
            room_for: self.findings.room_for,
            more_may_come: self.view.observed.queue.part.is_some() && self.findings.has_served,
        }
    }

    /// The number of wanted nodes of each size: nodes with work placed or reserved, and launches.
    pub(super) fn wanted(&self) -> BTreeMap<String, u32> {
        let wanted = by_size(self.wanted_bins().map(|bin| bin.size));
        wanted.into_iter().map(|(size, nodes)| (size.to_owned(), nodes)).collect()
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

/// The place of this node among the bins. `None` if this plan gives the node up, or if it takes no work.
fn place(view: &View<'_>, record: &NodeRecord, life: &Life) -> Option<At> {
    // A node whose silence or absence is not believed counts as there, even if it is down already, so that nothing is launched
    // in its place. It gets no work.
    let suspected = view.is_suspected(life.node_id);
    let silent = record.contact().is_some_and(|c| c.lease_expires_at < view.now);
    if ((silent || will_terminate(view, record)) && !suspected)
        || view.is_leaving(life)
        || life.intent != Intent::Run
        || view.is_partially_read(life.node_id)
        || record.has_untaken()
        || view.lost.contains(&life.node_id)
    {
        return None;
    }
    match (&record.state, record.status()) {
        (NodeState::InUse(_), Some(_)) if suspected => Some(At::Booting(life.node_id)),
        (NodeState::InUse(_), Some(NodeStatus::Ready)) => Some(At::Ready(life.node_id)),
        (NodeState::InUse(_), Some(NodeStatus::Syncing)) | (NodeState::Assigned(_), _) => {
            Some(At::Booting(life.node_id))
        }
        (NodeState::InUse(_), Some(NodeStatus::Disconnected | NodeStatus::Down) | None)
        | (NodeState::ShuttingDown(_) | NodeState::Cleaned { .. }, _) => None,
    }
}

fn for_jobs(view: &View<'_>, capacity: Capacity) -> Capacity {
    view.observed.policy.usable(capacity)
}

fn of_node<'a>(view: &View<'a>, default_arch: Arch, at: At, record: &NodeRecord, life: &'a Life) -> Bin<'a> {
    let Offering { instance_type, market, kind, .. } = &life.offering;
    let offering = &life.offering;
    let capacity = for_jobs(view, Capacity { gpus: record.expected_gpus(), ..offering.capacity });
    let mut bin = Bin {
        at,
        capacity,
        free: capacity,
        size: &offering.size,
        machine: Machine { instance_type, market: *market, kind, default_arch },
        price_per_hour: offering.price_per_hour,
        assigned_at: life.assigned_at,
        empty: true,
        taken: false,
        busy: record.contact().is_some_and(|c| c.health.busy),
        blocked: false,
        for_job: None,
        for_set: None,
    };
    for alloc in view.allocs_on(life.node_id) {
        bin.free = minus(bin.free, alloc.needs.capacity());
        bin.empty = false;
        bin.taken |= alloc.needs.exclusive;
    }
    bin
}
