//! What a run reads before it decides anything (`docs/rules.md#R6`).
//!
//! Guarantees: lists of instances, allocs and handles are read **before** the node records. A record is written before its
//! node has an instance, alloc or handle. So the records are never older than these lists, and a new instance is not
//! mistaken for an orphan. If a page of a list fails, the whole observation fails.
//!
//! In a large fleet, poll-and-scale does not read EC2's list, because that takes tens of seconds. It reads the records
//! first, and then asks EC2 only for the instances that are in question: a node whose heartbeats are on time has an
//! instance. So it sees only instances with a record, mistakes none for an orphan, and finds no orphan.
//! clean-stale-records always reads the list.
//! Does not: decide.

pub use crate::queue::{Audience, QueuePart, QueueRead};
use crate::queue::{BEHIND_FOR_A_PERSON, WaitingRead, queue_order, read_waiting};
use crate::shares::{SharesRead, free_limit_turn, lose_limit_turn, read_shares, take_limit_turn};
use crate::validation::{self, Quarantined};
use futures::future::{try_join, try_join_all, try_join3};
use model::after::{Ends, Followed};
use model::control::{ListPlace, NoPolicy, PollTurn};
use model::functions::POLL_AND_SCALE;
use model::ids::Ulid;
use model::{
    AllocId, AllocIds, AllocSummary, Array, ClientStatus, Cloud, CloudError, Control, ControlKey, Handle, HandleKind,
    Instance, JobId, JobState, JobSummary, Life, NodeId, NodeRecord, NodeState, Policy, Span, Time,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use store::{DbError, End, Ended, Listed, Store, Unreadable, WaitingJobs, placed_last};

/// How far back the jobs that ended, and the warnings, are read.
pub const RECENT: Span = Span::from_s(3600);
/// How many of the jobs that ended last are judged.
pub const ENDED: usize = 50;
/// The most arrays of which one run counts the failed elements.
const ARRAYS_READ: usize = 500;

/// Why a run could not observe. Such a run does nothing and fails.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error(transparent)]
    Db(#[from] DbError),
    #[error(transparent)]
    Cloud(#[from] CloudError),
    /// There is no usable policy.
    #[error(transparent)]
    Policy(#[from] NoPolicy),
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ObservedCounts {
    pub nodes: usize,
    pub instances: usize,
    pub jobs: usize,
    pub allocs: usize,
    /// How many jobs wait at least besides those that were read.
    #[serde(skip_serializing_if = "model::left_out::is_default")]
    pub unread: usize,
}

/// Everything one run has read.
#[derive(Clone, Debug)]
pub struct Observation {
    /// When reading began.
    pub observed_at: Time,
    /// In the order of the slots.
    pub nodes: Vec<NodeRecord>,
    /// Every instance that EC2 lists with our cluster tag; if `is_large`, only those that the run had to ask for (see the head).
    pub instances: Vec<Instance>,
    /// Whether EC2 was asked only for the instances in question.
    pub is_large: bool,
    /// Jobs that are placing, placed or regrouping, and those of the queued ones that were read, in the order of the queue.
    pub jobs: Vec<JobSummary>,
    /// How much of the queue was read.
    pub queue: QueueRead,
    /// How the jobs ended that other jobs follow.
    pub ends: Ends,
    /// How many elements have failed of the arrays with a limit of failures whose elements wait.
    pub failures: BTreeMap<Array, u64>,
    /// The place in the list of jobs that follow others after this run, if it changes.
    pub after_place: Option<ListPlace>,
    /// The live allocs, in the order of their ids.
    pub allocs: Vec<AllocSummary>,
    pub shares: SharesRead,
    /// The turn to place jobs under a limit; `None` while another run has it. Where only a plan is shown, it is not taken.
    pub limit_turn: Option<PollTurn>,
    /// The handles that are due. Only sweep-dispatch reads them.
    pub handles: Vec<Handle>,
    /// The caches that live allocs name, of the nodes that have a cache that is due. Only sweep-dispatch reads them.
    pub used_caches: BTreeMap<NodeId, BTreeSet<String>>,
    /// The place in the jobs table after this run, if it changes.
    pub jobs_place: Option<ListPlace>,
    /// The jobs that ended last. Only clean-stale-records reads them.
    pub ended: Vec<Ended>,
    /// Nodes whose live allocs could not all be read: nothing is placed or stopped on them.
    pub partially_read: BTreeSet<NodeId>,
    /// The rows that contradict the contract: no decision uses them.
    pub quarantined: Quarantined,
    pub control: Control,
    pub policy: Policy,
    pub policy_version: u64,
}

/// The launches of which a node has no instance yet.
pub struct OpenLaunches(HashSet<Ulid>);

impl OpenLaunches {
    /// Whether this life has an instance, and another node of its launch has none yet. Only the records say which
    /// instances of a launch are taken. So no such record is cleaned before each has its instance, because a late
    /// answer of EC2 also names instances that are terminated by then.
    pub fn keep(&self, life: &Life) -> bool {
        life.instance_id.is_some() && self.0.contains(&life.node_id.ulid())
    }
}

/// The lists of a run of poll-and-scale, as they were read.
pub struct Lists {
    /// The control entries, the policy and the instances. The lists below are not in it yet.
    observation: Observation,
    /// The records of nodes, also those that contradict the contract.
    pub nodes: Listed<NodeRecord>,
    waiting: WaitingRead,
    placed: Listed<JobSummary>,
    allocs: Listed<AllocSummary>,
}

impl Lists {
    /// Reads the lists, in the order that the head of this module promises.
    pub async fn read(store: &Store, cloud: &dyn Cloud, audience: Audience, now: Time) -> Result<Self, ObserveError> {
        let control = store.control().await?;
        let (policy, policy_version) = control.checked_policy()?;
        let mut empty = Observation::empty(policy.clone(), policy_version, now);
        // What this run reads later is then newer than all that other runs place.
        if policy.has_limits() {
            empty.limit_turn = match audience {
                Audience::Turn => take_limit_turn(store, now).await?,
                Audience::Run | Audience::Person => free_limit_turn(store, now).await?,
            };
        }
        let is_large = is_large(&control, &policy);
        let segments = segments(is_large);
        let list =
            async { if is_large { Ok(Vec::new()) } else { cloud.instances().await.map_err(ObserveError::from) } };
        let lists = async {
            let waiting = read_waiting(store, &policy, &control, audience, now);
            Ok(try_join3(waiting, store.placed(), store.live_allocs_listed(segments)).await?)
        };
        let (listed, (waiting, placed, allocs)) = try_join(list, lists).await?;
        let nodes = store.nodes_listed(segments).await?;
        let in_question = |record: &&NodeRecord| is_in_question(record, &policy, now);
        let instances =
            if is_large { instances_of(cloud, nodes.rows.iter().filter(in_question)).await? } else { listed };
        let seen = Observation { instances, is_large, control, ..empty };
        Ok(Self { observation: seen, nodes, waiting, placed, allocs })
    }

    pub fn control(&self) -> &Control {
        &self.observation.control
    }

    /// Every job that has not ended, as [`Store::queue_listed`] gives it; `None` if these lists have only a part of them.
    pub fn whole_queue(&self) -> Option<WaitingJobs> {
        self.waiting.is_whole.then(|| {
            let mut waiting = self.waiting.jobs.clone();
            waiting.sort_by_key(queue_order);
            let unreadable = self.waiting.unreadable.iter().chain(&self.placed.unreadable).cloned().collect();
            WaitingJobs { jobs: placed_last(waiting, self.placed.rows.clone()), end: None, unreadable }
        })
    }

    /// The observation that a run decides from: these lists without the rows that contradict the contract, and with the
    /// rows that the lists name.
    pub async fn observed(self, store: &Store) -> Result<Observation, ObserveError> {
        let Self { observation: mut seen, nodes, waiting, placed, allocs } = self;
        (seen.queue, seen.after_place) = (waiting.queue, Some(waiting.after_place));
        seen.jobs = placed_last(waiting.jobs, placed.rows);
        (seen.nodes, seen.allocs) = (nodes.rows, allocs.rows);
        seen.quarantined.unreadable(nodes.unreadable);
        seen.quarantined.unreadable([waiting.unreadable, placed.unreadable, allocs.unreadable].concat());
        // The index shows only a part of a job's row. clean-stale-records has noted the jobs whose other part cannot be
        // read.
        let known = seen.control.place(&ControlKey::JobsPlace).entry.unreadable;
        seen.quarantined.unreadable(store.jobs_unreadable(known).await?);
        let quarantined = &seen.quarantined.jobs;
        seen.jobs.retain(|job| !quarantined.contains(&job.job_id));
        let mut seen = seen.sorted_out();
        seen.read_followed(store).await?;
        seen.read_failures(store).await?;
        seen.complete(store).await?;
        let rules = (&seen.policy, seen.control.totals.as_ref());
        seen.shares = read_shares(store, rules, &seen.allocs, seen.observed_at).await?;
        Ok(seen)
    }
}

impl Observation {
    /// An empty observation with this policy.
    pub fn empty(policy: Policy, policy_version: u64, observed_at: Time) -> Self {
        Self {
            observed_at,
            nodes: Vec::new(),
            instances: Vec::new(),
            is_large: false,
            jobs: Vec::new(),
            queue: QueueRead::default(),
            ends: Ends::new(),
            failures: BTreeMap::new(),
            after_place: None,
            allocs: Vec::new(),
            shares: SharesRead::default(),
            limit_turn: Some(PollTurn::new(&ControlKey::LimitTurn)),
            handles: Vec::new(),
            used_caches: BTreeMap::new(),
            jobs_place: None,
            ended: Vec::new(),
            partially_read: BTreeSet::new(),
            quarantined: Quarantined::default(),
            control: Control::default(),
            policy,
            policy_version,
        }
    }

    /// Reads what poll-and-scale needs for its decisions.
    pub async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, ObserveError> {
        Lists::read(store, cloud, Audience::Run, now).await?.observed(store).await
    }

    /// As [`Self::read`], for a run that places jobs: it takes the turn for jobs under limits, and gives it up if the reading fails.
    pub async fn read_in_turn(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, ObserveError> {
        let read = async { Lists::read(store, cloud, Audience::Turn, now).await?.observed(store).await }.await;
        if read.is_err() {
            lose_limit_turn(store, now).await;
        }
        read
    }

    /// Adds jobs that are put off, for a person. No run reads them before they are due.
    pub async fn with_put_off(mut self, store: &Store) -> Result<Self, ObserveError> {
        self.jobs = placed_last(store.put_off(BEHIND_FOR_A_PERSON).await?.jobs, self.jobs);
        self.sort();
        Ok(self)
    }

    /// Reads the rows of the jobs that others follow, except the jobs that the index shows as waiting or placed: these
    /// have not ended, as far as a list can say.
    async fn read_followed(&mut self, store: &Store) -> Result<(), ObserveError> {
        let ask = followed_of(&self.jobs);
        if ask.is_empty() {
            return Ok(());
        }
        let read = store.jobs_of(ask.iter().copied()).await?;
        let unreadable: BTreeSet<JobId> = read.unreadable.iter().filter_map(Unreadable::job_id).collect();
        self.ends = ends(ask, unreadable, read.rows.iter().map(|job| &job.summary));
        self.quarantined.unreadable(read.unreadable);
        Ok(())
    }

    /// Reads the failures of the first arrays in the queue that have a limit of failures: their elements come next.
    async fn read_failures(&mut self, store: &Store) -> Result<(), ObserveError> {
        let mut arrays = BTreeMap::new();
        for job in self.jobs.iter().filter(|job| job.state == JobState::Queued && !job.tries.begun) {
            if let Some(most) = job.max_failures
                && arrays.len() < ARRAYS_READ
            {
                arrays.insert(Array::of(job.job_id), most.get());
            }
        }
        let failures = async |(array, most)| store.failures(array, most).await.map(|failed| (array, failed));
        let read = arrays.into_iter().map(failures);
        self.failures = try_join_all(read).await?.into_iter().collect();
        Ok(())
    }

    /// Reads what clean-stale-records needs for its decisions: the list of instances, the records, and one page of the jobs.
    /// The place in the jobs table moves on from run to run.
    ///
    /// The age of the observation counts from the end of EC2's list, which may take a minute in a large account. An old list
    /// does no harm. A terminated instance stays terminated, and every action checks again anything else that it takes from
    /// the list.
    pub async fn read_for_cleaning(
        store: &Store,
        cloud: &dyn Cloud,
        clock: impl Fn() -> Time,
    ) -> Result<Self, ObserveError> {
        let control = store.control().await?;
        let (policy, policy_version) = control.checked_policy()?;
        let segments = segments(is_large(&control, &policy));
        let instances = cloud.instances().await?;
        let observed_at = clock();
        let place = control.place(&ControlKey::JobsPlace);
        let (nodes, (jobs, end)) =
            try_join(store.nodes_listed(segments), store.jobs_unreadable_behind(place.job())).await?;
        let mut seen = Self { instances, control, ..Self::empty(policy, policy_version, observed_at) };
        let known = store.jobs_unreadable(place.unreadable.clone()).await?;
        seen.quarantined.unreadable(nodes.unreadable);
        seen.quarantined.unreadable(jobs.into_iter().chain(known));
        seen.jobs_place = Some(place.moved(end, 0).with_unreadable(seen.quarantined.jobs.iter().copied()));
        seen.ended = store.ended(&End::NOT_CANCELLED, observed_at - RECENT, ENDED).await?;
        seen.nodes = nodes.rows;
        Ok(seen.sorted_out())
    }

    /// Reads what sweep-dispatch needs for its decisions: like [`Observation::read`], but with the handles that
    /// are due instead of instances and jobs.
    pub async fn read_for_sweep(store: &Store, now: Time) -> Result<Self, ObserveError> {
        let control = store.control().await?;
        let (policy, policy_version) = control.checked_policy()?;
        let segments = segments(is_large(&control, &policy));
        let handles = store.handles_due(now).await?;
        let nodes = store.nodes_listed(segments).await?;
        let mut seen = Self { control, ..Self::empty(policy, policy_version, now) };
        (seen.nodes, seen.handles) = (nodes.rows, handles.rows);
        seen.quarantined.unreadable(nodes.unreadable);
        seen.quarantined.unreadable(handles.unreadable);
        seen.read_caches(store).await?;
        Ok(seen.sorted_out())
    }

    /// Reads which caches the live allocs of a node name, for the nodes that have a cache that is due. The allocs are those
    /// on the records. An alloc that is placed later changes the record, and then nothing about the cache is written.
    async fn read_caches(&mut self, store: &Store) -> Result<(), ObserveError> {
        let caches = self.handles.iter().filter(|h| h.kind == HandleKind::Volume && h.alloc_id.is_none());
        let nodes: BTreeSet<NodeId> = caches.map(|h| h.node_id).collect();
        let lives = self.nodes.iter().filter_map(NodeRecord::life).filter(|life| nodes.contains(&life.node_id));
        let ids: Vec<AllocId> = lives.clone().flat_map(|life| life.allocs.iter().copied()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let read = store.allocs_listed(ids).await?;
        for alloc in read.rows {
            let named = self.used_caches.entry(alloc.summary.node_id).or_default();
            named.extend(alloc.work.caches);
        }
        // If the row of an alloc cannot be read, nobody knows which caches it names.
        let unreadable: BTreeSet<AllocId> =
            read.unreadable.iter().filter_map(|row| row.text("alloc_id")?.parse().ok()).collect();
        let lives = self.nodes.iter().filter_map(NodeRecord::life);
        let partially_read =
            lives.filter(|life| life.allocs.iter().any(|id| unreadable.contains(id))).map(|life| life.node_id);
        self.partially_read.extend(partially_read.collect::<Vec<_>>());
        self.quarantined.unreadable(read.unreadable);
        Ok(())
    }

    /// Reads some allocs again, by id: those on which the index and the sets `allocs` of the records and jobs differ.
    /// They can differ because each row of the index may be behind. If only the index shows an alloc, the alloc is
    /// final by now, or newer than the record.
    async fn complete(&mut self, store: &Store) -> Result<(), ObserveError> {
        let shown: BTreeSet<AllocId> = self.allocs.iter().map(|a| a.alloc_id).collect();
        let of_jobs = self.jobs.iter().flat_map(|j| j.allocs.iter().copied());
        let mut ask: BTreeSet<AllocId> = of_jobs.filter(|id| !shown.contains(id)).collect();
        // The index shows only a part of a row. If the other part cannot be read, no node gets the order to start.
        let latest = self.observed_at - Span::from_s(self.policy.sweep.creating_s);
        let waits = |alloc: &&AllocSummary| {
            alloc.client == ClientStatus::Pending && alloc.phase.is_none() && alloc.placed_at <= latest
        };
        ask.extend(self.allocs.iter().filter(waits).map(|alloc| alloc.alloc_id));
        for (_, missed) in self.differing() {
            ask.extend(missed);
        }
        if ask.is_empty() {
            return Ok(());
        }
        let read = store.allocs_listed(ask.iter().copied()).await?;
        self.allocs.retain(|a| !ask.contains(&a.alloc_id));
        let mut again: Vec<AllocSummary> = read.rows.into_iter().map(|alloc| alloc.summary).collect();
        again.retain(|alloc| !alloc.client.is_final() && !self.quarantined.allocs.contains(&alloc.alloc_id));
        self.allocs.extend(again);
        self.quarantined.unreadable(read.unreadable);
        self.allocs.sort_by_key(|a| a.alloc_id);
        self.partially_read = self.differing().map(|(node_id, _)| node_id).collect();
        Ok(())
    }

    /// The nodes whose record lists other allocs than this observation has for them, each with the allocs that
    /// differ.
    fn differing(&self) -> impl Iterator<Item = (NodeId, BTreeSet<AllocId>)> {
        let mut shown: BTreeMap<NodeId, Vec<AllocId>> = BTreeMap::new();
        for alloc in &self.allocs {
            shown.entry(alloc.node_id).or_default().push(alloc.alloc_id);
        }
        let lives = self.nodes.iter().filter_map(NodeRecord::life);
        lives.filter_map(move |life| {
            let shown = AllocIds::from(shown.remove(&life.node_id).unwrap_or_default());
            let missed = life.allocs.iter().filter(|id| !shown.contains(id));
            let differ: BTreeSet<AllocId> =
                shown.iter().filter(|id| !life.allocs.contains(id)).chain(missed).copied().collect();
            (!differ.is_empty()).then_some((life.node_id, differ))
        })
    }

    /// Quarantines the rows that contradict the contract, and sorts the others.
    pub(crate) fn sorted_out(mut self) -> Self {
        self.quarantined.entries(&self.control);
        validation::quarantine_nodes(&mut self.quarantined, &mut self.nodes);
        self.sort();
        self
    }

    fn sort(&mut self) {
        self.nodes.sort_by_key(|n| n.slot);
        self.allocs.sort_by_key(|a| a.alloc_id);
        self.jobs.sort_by_key(queue_order);
        self.instances.sort_by(|a, b| a.instance_id.cmp(&b.instance_id));
    }

    /// Marks as partially read each node whose record lists other allocs than this observation has.
    pub(crate) fn with_differing(mut self) -> Self {
        self.partially_read = self.differing().map(|(node_id, _)| node_id).collect();
        self
    }

    /// Replaces the job with this id.
    pub fn replace_job(&mut self, job: JobSummary) {
        self.jobs.retain(|other| other.job_id != job.job_id);
        self.jobs.push(job);
        self.jobs.sort_by_key(queue_order);
    }

    /// The record of this node; `None` if its slot has another life, or the record is quarantined.
    pub fn node(&self, node_id: NodeId) -> Option<&NodeRecord> {
        let at = self.nodes.binary_search_by_key(&node_id.slot(), |n| n.slot).ok()?;
        self.nodes.get(at).filter(|n| n.node_id() == Some(node_id))
    }

    /// How many nodes are in use.
    pub fn in_use(&self) -> usize {
        self.nodes.iter().filter(|n| n.status().is_some()).count()
    }

    /// Reads all records once. Callers that ask for many nodes keep the result.
    pub fn open_launches(&self) -> OpenLaunches {
        let open = self.nodes.iter().filter_map(NodeRecord::life).filter(|life| life.instance_id.is_none());
        OpenLaunches(open.map(|life| life.node_id.ulid()).collect())
    }

    /// Whether EC2 was asked for the instance of this record. Otherwise only the node's heartbeats are known.
    pub fn was_queried(&self, record: &NodeRecord) -> bool {
        !self.is_large || is_in_question(record, &self.policy, self.observed_at)
    }

    /// The live alloc with this id.
    pub fn alloc(&self, id: AllocId) -> Option<&AllocSummary> {
        let at = self.allocs.binary_search_by_key(&id, |a| a.alloc_id).ok()?;
        self.allocs.get(at)
    }

    /// The job with the id and the priority of `job`; `None` if it has another priority by now.
    pub fn job_as(&self, job: &JobSummary) -> Option<&JobSummary> {
        let at = self.jobs.binary_search_by_key(&queue_order(job), queue_order).ok()?;
        self.jobs.get(at)
    }

    /// The counts for a run's answer.
    pub fn counts(&self) -> ObservedCounts {
        ObservedCounts {
            nodes: self.nodes.iter().filter(|n| !n.is_cleaned()).count(),
            instances: self.instances.len() + self.nodes.iter().filter(|n| !self.was_queried(n)).count(),
            jobs: self.jobs.len(),
            allocs: self.allocs.len(),
            unread: self.queue.least.saturating_sub(self.queue.read),
        }
    }
}

/// Whether a decision may need to know from EC2 about this node. If the heartbeats of a bound node are on time, its
/// instance runs.
fn is_in_question(record: &NodeRecord, policy: &Policy, now: Time) -> bool {
    let NodeState::InUse(node) = &record.state else { return true };
    let is_late = node.contact.lease_expires_at - Span::from_s(policy.heartbeat.grace_s) < now;
    let life = &node.life;
    is_late || life.instance_id.is_none() || !life.others.is_empty() || life.absent_since_at.is_some()
}

/// Whether the fleet is so large that EC2 is asked for instances by id, and that tables are read in several parts at the
/// same time. The last run of poll-and-scale has counted the nodes.
fn is_large(control: &Control, policy: &Policy) -> bool {
    let in_use = control.runs.get(POLL_AND_SCALE.name).and_then(|run| run.in_use).unwrap_or(0);
    in_use > u64::from(policy.poll.list_nodes)
}

/// How many parts of a table are read at the same time. More parts need more memory: one page of 1 MiB each.
const fn segments(is_large: bool) -> i32 {
    if is_large { 4 } else { 1 }
}

/// The instances of these records, asked for by id. If a record names none, or one that EC2 does not know as ours, also
/// those with the tag of its node.
async fn instances_of<'a>(
    cloud: &dyn Cloud,
    nodes: impl Iterator<Item = &'a NodeRecord> + Clone,
) -> Result<Vec<Instance>, CloudError> {
    let lives = || nodes.clone().filter_map(NodeRecord::life);
    let ids: Vec<String> = lives().filter_map(|life| life.instance_id.clone()).collect();
    let mut found = cloud.instances_by_id(&ids).await?;
    let known: HashSet<&str> = found.iter().map(|i| i.instance_id.as_str()).collect();
    let is_known = |life: &Life| life.instance_id.as_deref().is_some_and(|id| known.contains(id));
    let others: BTreeSet<NodeId> = lives().filter(|life| !is_known(life)).map(|life| life.node_id).collect();
    if !others.is_empty() {
        // An instance may be bound to a record that is not of its node, and so be known already.
        let mut tagged = cloud.instances_of(&others).await?;
        tagged.retain(|i| !known.contains(i.instance_id.as_str()));
        found.extend(tagged);
    }
    Ok(found)
}

/// The jobs that others follow, without those that are in this list and have not ended.
pub(crate) fn followed_of(jobs: &[JobSummary]) -> BTreeSet<JobId> {
    let mut ids: BTreeSet<JobId> =
        jobs.iter().filter(|job| job.follows()).flat_map(|job| job.after.keys().copied()).collect();
    if !ids.is_empty() {
        jobs.iter().filter(|job| !job.state.is_ended()).for_each(|job| _ = ids.remove(&job.job_id));
    }
    ids
}

/// How the jobs in `asked` ended, by these rows. A job that has not ended, or whose row cannot be read, is left out.
pub(crate) fn ends<'a>(
    asked: BTreeSet<JobId>,
    unreadable: BTreeSet<JobId>,
    rows: impl Iterator<Item = &'a JobSummary>,
) -> Ends {
    let absent = asked.difference(&unreadable).map(|id| (*id, Followed::Absent));
    let mut ends: Ends = absent.collect();
    for job in rows {
        if job.state.is_ended() {
            ends.entry(job.job_id).and_modify(|end| *end = Followed::Ended(job.state));
        } else {
            ends.remove(&job.job_id);
        }
    }
    ends
}
