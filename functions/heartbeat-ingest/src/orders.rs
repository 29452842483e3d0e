//! The orders that a node gets about its live allocs.
//!
//! Guarantees: the list names every live alloc of the life, read consistently, and those whose rows cannot be read. An agent
//! ends what its list does not name, and leaves the unreadable ones alone. The orders come in parts that fit into an answer,
//! the oldest first. A member of a job gets its order only when all members are placed.
//! Does not: change anything.

use crate::Ingest;
use model::names::is_host;
use model::wire::{AllocOrder, OrderList};
use model::{Alloc, Desired, Job, JobId, Life};
use runtime::http::{HttpError, MAX_LIST_BYTES, bytes_in_answer, internal};
use std::collections::{BTreeMap, BTreeSet};
use store::{DbError, Unreadable};

/// After how many seconds a node asks for the rest of its orders.
const AT_ONCE_S: f64 = 0.2;
/// After how many seconds a node asks again for the order of a member that may not start yet. Placing the rest mostly takes less.
const MEMBERS_WAIT_S: f64 = 2.0;

#[derive(Default)]
pub(crate) struct NodeOrders {
    /// `None` if the node has the current orders.
    pub(crate) orders: Option<OrderList>,
    /// After how many seconds the node asks again: some orders did not fit into the answer, or members may not start yet.
    pub(crate) again_s: Option<f64>,
}

impl Ingest {
    /// Every live alloc of a life, read consistently by the ids on its record, if the node may not have the current list. The
    /// node has the orders of what was placed up to `as_of`.
    pub(crate) async fn orders(&self, life: &Life, as_of: u64) -> Result<NodeOrders, HttpError> {
        if as_of >= life.seq {
            return Ok(NodeOrders::default());
        }
        self.list(life, as_of).await.map_err(internal)
    }

    async fn list(&self, life: &Life, as_of: u64) -> Result<NodeOrders, DbError> {
        let mut listed = self.store.allocs_listed(life.allocs.iter().copied()).await?;
        for row in &listed.unreadable {
            tracing::warn!(node_id = %life.node_id, "the node gets no order about an alloc: {row}");
        }
        listed.rows.retain(|a| a.summary.node_id == life.node_id && !a.summary.client.is_final());
        listed.rows.sort_by_key(|a| (a.summary.placed_seq, a.id()));
        let jobs = self.jobs_of_several(&listed.rows, as_of).await?;
        let (mut allocs, mut others, mut bytes, mut again_s) = (Vec::new(), Vec::new(), 0, None);
        for alloc in &listed.rows {
            if again_s == Some(AT_ONCE_S) || alloc.summary.placed_seq <= as_of {
                others.push(alloc.status());
                continue;
            }
            let Some(hosts) = hosts(life, alloc, &jobs) else {
                again_s = again_s.or(Some(MEMBERS_WAIT_S));
                others.push(alloc.status());
                continue;
            };
            let grant_url = self.grant_url.clone().filter(|_| alloc.work.role.is_some());
            let order = AllocOrder { grant_url, ..alloc.order(hosts) };
            bytes += bytes_in_answer(&order);
            if bytes > MAX_LIST_BYTES && !allocs.is_empty() {
                again_s = Some(AT_ONCE_S);
                others.push(order.status());
            } else {
                allocs.push(order);
            }
        }
        allocs.sort_by_key(|o| o.alloc_id);
        let unreadable = listed.unreadable.iter().filter_map(Unreadable::alloc_id).collect();
        Ok(NodeOrders { orders: Some(OrderList { allocs, others, unreadable }), again_s })
    }

    /// The jobs of these allocs that have several members: their members start together.
    async fn jobs_of_several(&self, allocs: &[Alloc], as_of: u64) -> Result<BTreeMap<JobId, Job>, DbError> {
        let is_asked = |alloc: &&Alloc| alloc.summary.placed_seq > as_of && alloc.summary.needs.nodes > 1;
        let ids: BTreeSet<JobId> = allocs.iter().filter(is_asked).map(|alloc| alloc.id().job_id).collect();
        let mut jobs = BTreeMap::new();
        for id in ids {
            match self.store.job(id).await {
                Ok(job) => jobs.extend(job.map(|job| (id, job))),
                Err(error @ DbError::Corrupt { .. }) => tracing::warn!(%error, "members of a job do not start"),
                Err(other) => return Err(other),
            }
        }
        Ok(jobs)
    }
}

/// The addresses of the nodes of all members. `None` if the alloc may not start yet.
fn hosts(life: &Life, alloc: &Alloc, jobs: &BTreeMap<JobId, Job>) -> Option<Vec<String>> {
    if alloc.summary.needs.nodes == 1 {
        return Some(life.address.as_deref().and_then(host).into_iter().collect());
    }
    match jobs.get(&alloc.id().job_id).filter(|job| job.lets_start(alloc.id())) {
        Some(job) => Some(job.hosts.iter().map(|address| host(address).unwrap_or_default()).collect()),
        // A stopped alloc ends without a start, so it needs no addresses.
        None => (alloc.summary.desired == Desired::Stop).then(Vec::new),
    }
}

/// The address of a node, if the text of the row is one. Somebody may have written anything there.
fn host(address: &str) -> Option<String> {
    is_host(address).then(|| address.to_owned())
}
