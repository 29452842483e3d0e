//! The past of a cluster, rebuilt from events and records: which node was there when, in which phase, at which price,
//! who used it, and how many jobs waited.
//!
//! Flow: `event_digest` keeps the needed parts of each event, `timeline` makes the lives of the nodes from them,
//! `series` counts over time, `strip` shows each slot, and `cost` computes who used the nodes for how much.
//! Guarantees: memory is bounded (`MOST`), whatever the table holds, and what was left out is counted. The present
//! state comes from the records, so a record makes up for a lost event where it can.
//! Does not: go back further than events are kept (`history.events_days`), or know a bill: prices are those of the
//! policy at the launch.

mod charge;
mod cost;
mod event_digest;
mod series;
mod strip;
mod timeline;
mod uses;

pub use cost::{By, CostLine, Report};
pub use series::Series;
pub use strip::Strip;
pub use timeline::{NodeLifetime, Phase, PhaseSegment};
pub use uses::Use;

use charge::Charge;

use event_digest::EventDigest;
use model::{AllocSummary, Control, Event, JobId, JobState, JobSummary, NodeId, NodeRecord, Span, Time, Usd};
use std::collections::BTreeMap;
use store::{DbError, Store};
use uses::MOST;

/// The longest past that can be asked for. Events are rarely kept longer.
pub const LONGEST: Span = Span::from_s(90 * 86_400);

#[derive(Clone, Debug)]
pub struct History {
    pub from: Time,
    pub to: Time,
    /// In the order of the slots and of time.
    pub lives: Vec<NodeLifetime>,
    pub uses: BTreeMap<NodeId, Vec<Use>>,
    /// When jobs waited in the queue.
    pub waits: Vec<(Time, Time)>,
    pub names: BTreeMap<JobId, String>,
    /// The newest events, the newest first.
    pub latest: Vec<Event>,
    /// How many events did not fit into memory.
    pub left_out: usize,
}

/// The present, as the records have it.
#[derive(Clone, Debug, Default)]
struct PresentRecords {
    nodes: Vec<NodeRecord>,
    allocs: Vec<AllocSummary>,
    /// The jobs that have not ended.
    jobs: Vec<JobSummary>,
    /// The prices of the policy, by size.
    prices: BTreeMap<String, Usd>,
}

impl PresentRecords {
    async fn read(store: &Store) -> Result<Self, DbError> {
        let present = Self::read_nodes(store).await?;
        Ok(Self { jobs: store.queue_listed(MOST).await?.jobs, ..present })
    }

    /// Reads the nodes and what runs on them.
    async fn read_nodes(store: &Store) -> Result<Self, DbError> {
        let nodes = store.nodes_listed(1).await?.rows;
        let allocs = store.live_allocs_listed(1).await?.rows;
        Ok(Self { nodes, allocs, jobs: Vec::new(), prices: prices(&store.control().await?) })
    }
}

/// The prices of the stored policy, by size.
fn prices(control: &Control) -> BTreeMap<String, Usd> {
    let Ok((policy, _)) = control.checked_policy() else { return BTreeMap::new() };
    let mut prices: BTreeMap<String, Usd> = BTreeMap::new();
    for size in policy.size {
        // Of a size of several types, the cheapest counts until the record says which one it is.
        let known = prices.entry(size.name).or_insert(size.price_per_hour);
        *known = size.price_per_hour.min(*known);
    }
    prices
}

impl History {
    /// Reads what the nodes of the last `span` cost, and for whom. The queue is not read, so there are no waits and no events
    /// in it.
    pub async fn read_costs(store: &Store, span: Span, now: Time) -> Result<Self, DbError> {
        let mut told = EventDigest::since(now - span.min(LONGEST));
        store.each_event(|event| told.take(event)).await?;
        let present = PresentRecords { jobs: store.placed().await?.rows, ..PresentRecords::read_nodes(store).await? };
        Ok(Self { waits: Vec::new(), latest: Vec::new(), ..Self::of(told, present, now) })
    }

    /// Reads the last `span` before now. Reads every event that is stored.
    pub async fn read(store: &Store, span: Span, now: Time) -> Result<Self, DbError> {
        let mut told = EventDigest::since(now - span.min(LONGEST));
        store.each_event(|event| told.take(event)).await?;
        // The records are read after the events, so that they know everything that the events told.
        Ok(Self::of(told, PresentRecords::read(store).await?, now))
    }

    fn of(told: EventDigest, present: PresentRecords, now: Time) -> Self {
        let EventDigest { from, slots, mut uses, mut names, queue, latest, left_out, .. } = told;
        let lives = timeline::of(slots, &present.nodes, &present.prices, from, now);
        for alloc in &present.allocs {
            uses.push(Use {
                alloc_id: alloc.alloc_id,
                node_id: alloc.node_id,
                vcpus: alloc.needs.vcpus,
                from: alloc.placed_at,
                to: now,
            });
        }
        for job in &present.jobs {
            if let Some(name) = &job.name {
                names.insert(job.job_id, name.clone());
            }
        }
        let mut by_node: BTreeMap<NodeId, Vec<Use>> = BTreeMap::new();
        for used in uses {
            by_node.entry(used.node_id).or_default().push(used);
        }
        for uses in by_node.values_mut() {
            // An alloc that has ended may be here twice: from its event, and from an index that is behind.
            uses.sort_by_key(|u| (u.alloc_id, u.to));
            uses.dedup_by_key(|u| u.alloc_id);
        }
        let waiting = present.jobs.iter().filter(|j| j.state == JobState::Queued).map(|j| (j.job_id, j.submitted_at));
        let waits = queue.waits(&waiting.collect(), from, now);
        Self { from, to: now, lives, uses: by_node, waits, names, latest: latest.newest_first(), left_out }
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
