//! The past of a cluster, rebuilt from events and records: which node was there when, in which phase, at which price,
//! who used it, and how many jobs waited.
//!
//! Flow: `timeline` makes the lives of the nodes from the events of slots and from the records, `uses` says from the allocs who
//! used them, and which jobs waited, `series` counts over time, `strip` shows each slot, `cost` computes who
//! used the nodes for how much, and `reason` why they were there.
//! Guarantees: only the span that is asked for is read. Memory is bounded (`MOST`), and the past says if something was left out. The
//! present state comes from the records, so a record makes up for a lost event where it can.
//! Does not: go back further than allocs and events are kept (`history.finished_days`, `history.events_days`), or know a bill:
//! prices are those of the policy at the launch.

mod charge;
mod cost;
mod reason;
mod series;
mod strip;
mod timeline;
mod uses;

pub use cost::{By, CostLine, CountedBy, Report};
pub use series::Series;
pub use strip::Strip;
pub use timeline::{NodeLifetime, Phase, PhaseSegment};
pub use uses::Use;

use charge::Charge;

use futures::future::try_join3;
use model::{
    AllocSummary, Control, EndedAlloc, Event, JobId, JobState, JobSummary, NodeId, NodeRecord, Span, Time, Usd,
};
use std::collections::BTreeMap;
use store::{DbError, End, Ended, Past, Store, placed_last};
use uses::MOST;

/// The longest past that can be asked for. Allocs are rarely kept longer.
pub const LONGEST: Span = Span::from_s(90 * 86_400);

/// How many of the jobs that wait are read, and of those that ended without a node.
const MOST_WAITING: usize = 2_000;

#[derive(Clone, Debug)]
pub struct History {
    pub from: Time,
    pub to: Time,
    /// In the order of the slots and of time.
    pub lives: Vec<NodeLifetime>,
    pub uses: BTreeMap<NodeId, Vec<Use>>,
    /// When jobs waited in the queue.
    pub waits: Vec<(Time, Time)>,
    pub jobs: BTreeMap<JobId, CountedBy>,
    pub(crate) idle_timeout: Span,
    /// Whether something did not fit into memory.
    pub is_cut: bool,
}

/// What is stored about a time that ends now.
#[derive(Clone, Debug, Default)]
struct StoredPast {
    /// The events of slots since then.
    events: Vec<Event>,
    nodes: Vec<NodeRecord>,
    /// The allocs that ended since then, and the live ones.
    ended: Vec<EndedAlloc>,
    live: Vec<AllocSummary>,
    /// The jobs that are placed, and those that wait.
    jobs: Vec<JobSummary>,
    /// The jobs that ended since then and did not complete.
    unfinished: Vec<Ended>,
    policy: PolicyNow,
    is_cut: bool,
}

/// What the stored policy says of the past.
#[derive(Clone, Debug, Default)]
struct PolicyNow {
    /// The price of an hour, by size.
    prices: BTreeMap<String, Usd>,
    vcpus: BTreeMap<String, u32>,
    idle_timeout: Span,
    /// How far back everything is kept.
    kept: Span,
}

impl PolicyNow {
    fn of(control: &Control) -> Self {
        let mut now = Self { kept: LONGEST, ..Self::default() };
        let Ok((policy, _)) = control.checked_policy() else { return now };
        now.kept = policy.history.keep_finished().min(policy.history.keep_events());
        now.idle_timeout = Span::from_s(policy.idle.timeout_s);
        for size in policy.size {
            // Of a size of several types, the cheapest counts until the record says which one it is.
            let known = now.prices.entry(size.name.clone()).or_insert(size.price_per_hour);
            *known = size.price_per_hour.min(*known);
            now.vcpus.insert(size.name, size.capacity.vcpus);
        }
        now
    }
}

impl StoredPast {
    /// Reads the last `span` before now, or as much of it as is kept. Returns its beginning, too.
    async fn read(store: &Store, span: Span, now: Time) -> Result<(Self, Time), DbError> {
        let policy = PolicyNow::of(&store.control().await?);
        let from = now - span.min(policy.kept).min(LONGEST);
        // The records are read after the events, so that they contain everything that the events report. An alloc that ends meanwhile is
        // in both lists, and in neither if they were read the other way round.
        let nodes = async { Ok((store.slot_events(from, MOST).await?, store.nodes_listed(1).await?.rows)) };
        let allocs = async { Ok((store.live_allocs_listed(1).await?.rows, store.ended_allocs(from, MOST).await?)) };
        let ((events, nodes), (live, ended), placed) = try_join3(nodes, allocs, store.placed()).await?;
        let (Past { rows: events, more: more_events }, Past { rows: ended, more: more_allocs }) = (events, ended);
        let is_cut = more_events || more_allocs;
        Ok((Self { events, nodes, ended, live, jobs: placed.rows, unfinished: Vec::new(), policy, is_cut }, from))
    }
}

impl History {
    /// Reads what the nodes of the last `span` cost, and for whom. There are no waits in it.
    pub async fn read_costs(store: &Store, span: Span, now: Time) -> Result<Self, DbError> {
        let (past, from) = StoredPast::read(store, span, now).await?;
        Ok(Self { waits: Vec::new(), ..Self::of(past, from, now) })
    }

    /// Reads the last `span` before now. Of a long queue, only its head is read.
    pub async fn read(store: &Store, span: Span, now: Time) -> Result<Self, DbError> {
        let (mut past, from) = StoredPast::read(store, span, now).await?;
        let waiting = store.waiting(None, MOST_WAITING).await?.jobs;
        past.jobs = placed_last(waiting, past.jobs);
        past.unfinished = store.ended(&[End::Failed, End::Cancelled], from, MOST_WAITING).await?;
        Ok(Self::of(past, from, now))
    }

    fn of(past: StoredPast, from: Time, now: Time) -> Self {
        let mut lives = timeline::of(timeline::steps(past.events), &past.nodes, &past.policy.prices, from, now);
        let there = past.nodes.iter().filter_map(NodeRecord::life);
        let there: BTreeMap<NodeId, u32> = there.map(|life| (life.node_id, life.offering.capacity.vcpus)).collect();
        for life in &mut lives {
            let known = life.node_id.and_then(|id| there.get(&id));
            life.vcpus = known.or_else(|| past.policy.vcpus.get(life.size.as_ref()?)).copied().unwrap_or(0);
        }
        let jobs = past.jobs.iter().map(|job| (job.job_id, &job.name, &job.by, &job.share, &job.labels));
        let ended = past.ended.iter().map(|a| (a.alloc_id.job_id, &a.name, &a.by, &a.share, &a.labels));
        let jobs = jobs.chain(ended).map(|(id, name, by, share, labels)| {
            (id, CountedBy { name: name.clone(), by: by.clone(), share: share.clone(), labels: labels.clone() })
        });
        let jobs = jobs.collect();
        let uses: Vec<Use> = uses::of(&past.ended, &past.live, now);
        let queued = past.jobs.iter().filter(|job| job.state == JobState::Queued).map(|job| (job.job_id, now));
        let left = past.unfinished.iter().map(|ended| (ended.job.job_id, ended.at));
        let waits = uses::waits(&uses, left.chain(queued), from);
        let mut by_node: BTreeMap<NodeId, Vec<Use>> = BTreeMap::new();
        for used in uses {
            by_node.entry(used.node_id).or_default().push(used);
        }
        Self {
            from,
            to: now,
            lives,
            uses: by_node,
            waits,
            jobs,
            idle_timeout: past.policy.idle_timeout,
            is_cut: past.is_cut,
        }
    }

    /// The uses of the node of this life.
    pub fn uses_of(&self, life: &NodeLifetime) -> &[Use] {
        life.node_id.and_then(|id| self.uses.get(&id)).map_or(&[], Vec::as_slice)
    }

    /// When the last `span` of this past begins.
    pub fn since(&self, span: Span) -> Time {
        (self.to - span).max(self.from)
    }
}

#[cfg(test)]
mod tests;
