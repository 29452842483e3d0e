//! The orders that a node gets about its live allocs.
//!
//! Guarantees: the list names every live alloc of the life, read consistently, and those whose rows cannot be read: an agent
//! ends what its list does not name, and leaves these alone. The orders themselves come in parts that fit into an answer: first
//! the oldest that the agent does not have.
//! Does not: change anything.

use crate::{Ingest, internal};
use model::ids::{AllocId, NodeId};
use model::names::is_host;
use model::wire::{AllocOrder, AllocStatus};
use model::{Alloc, Life};
use runtime::http::{MAX_LIST_BYTES, Refusal, bytes_in_answer};
use std::collections::{BTreeMap, BTreeSet};
use store::{DbError, Unreadable};

/// The orders of a node.
#[derive(Default)]
pub(crate) struct Orders {
    /// `None` if the node has the current ones.
    pub(crate) allocs: Option<Vec<AllocOrder>>,
    /// The other live allocs.
    pub(crate) others: Vec<AllocStatus>,
    /// Whether there are more orders than one answer takes: the node asks for them at once.
    pub(crate) are_more: bool,
    /// The allocs whose rows cannot be read.
    pub(crate) unreadable: BTreeSet<AllocId>,
}

impl Ingest {
    /// Every live alloc of a life, read consistently by the ids on its record, if the node may not have the current list. The
    /// node has the orders of what was placed up to `as_of`.
    pub(crate) async fn orders(&self, life: &Life, as_of: u64) -> Result<Orders, Refusal> {
        if as_of >= life.seq {
            return Ok(Orders::default());
        }
        self.list(life, as_of).await.map_err(internal)
    }

    async fn list(&self, life: &Life, as_of: u64) -> Result<Orders, DbError> {
        let mut listed = self.store.allocs_listed(life.allocs.iter().copied()).await?;
        for row in &listed.unreadable {
            tracing::warn!(node_id = %life.node_id, "the node gets no order about an alloc: {row}");
        }
        listed.rows.retain(|a| a.summary.node_id == life.node_id && !a.summary.client.is_final());
        listed.rows.sort_by_key(|a| (a.summary.placed_seq, a.id()));
        let (mut allocs, mut others, mut bytes, mut are_more) = (Vec::new(), Vec::new(), 0, false);
        for alloc in &listed.rows {
            if are_more || alloc.summary.placed_seq <= as_of {
                others.push(alloc.status());
                continue;
            }
            let hosts =
                if alloc.summary.needs.nodes > 1 { self.hosts(alloc).await? } else { host(life).into_iter().collect() };
            let grant_url = self.grant_url.clone().filter(|_| alloc.work.role.is_some());
            let order = AllocOrder { grant_url, ..alloc.order(hosts) };
            bytes += bytes_in_answer(&order);
            if bytes > MAX_LIST_BYTES && !allocs.is_empty() {
                are_more = true;
                others.push(order.status());
            } else {
                allocs.push(order);
            }
        }
        allocs.sort_by_key(|o| o.alloc_id);
        let unreadable = listed.unreadable.iter().filter_map(Unreadable::alloc_id).collect();
        Ok(Orders { allocs: Some(allocs), others, are_more, unreadable })
    }

    /// The addresses of the nodes of all members, by member number, including members that have ended. An unknown
    /// address is empty. Members that were placed together have consecutive copy numbers in the order of their member
    /// numbers. So the ids of the other members' allocs follow from this alloc's id. The address of a node whose row cannot be
    /// read is not known.
    async fn hosts(&self, alloc: &Alloc) -> Result<Vec<String>, DbError> {
        let id = alloc.id();
        let first = id.copy.saturating_sub(id.member);
        let members =
            (0..alloc.summary.needs.nodes).map(|m| AllocId { member: m, copy: first.saturating_add(m), ..id });
        let rows = self.store.allocs_listed(members.clone()).await?.rows;
        let nodes: BTreeMap<AllocId, NodeId> = rows.iter().map(|a| (a.id(), a.summary.node_id)).collect();
        let mut hosts = Vec::new();
        for member in members {
            let node_id = nodes.get(&member).copied();
            let record = match node_id {
                Some(node_id) => match self.store.node(node_id.slot()).await {
                    Err(error @ DbError::Corrupt { .. }) => {
                        tracing::warn!(%error, %node_id, "the address of a member is not known");
                        None
                    }
                    record => record?,
                },
                None => None,
            };
            let life = record.as_ref().and_then(|r| r.life()).filter(|l| Some(l.node_id) == node_id);
            hosts.push(life.and_then(host).unwrap_or_default());
        }
        Ok(hosts)
    }
}

/// The address of a node. Somebody may have written another text into the record.
fn host(life: &Life) -> Option<String> {
    life.address.clone().filter(|address| is_host(address))
}
