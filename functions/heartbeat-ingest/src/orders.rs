//! The orders that a node gets about its live allocs.
//!
//! Guarantees: the list holds every live alloc of the life, read consistently. If the row of one of them cannot be read, the
//! node gets no list: an agent ends what its list does not name.
//! Does not: change anything.

use crate::{Ingest, internal};
use model::ids::{AllocId, NodeId};
use model::wire::AllocOrder;
use model::{Alloc, Life};
use runtime::http::Refusal;
use std::collections::BTreeMap;
use store::DbError;

impl Ingest {
    /// Every live alloc of a life, read consistently by the ids on its record. `None` if a row that the list needs cannot be
    /// read.
    pub(crate) async fn orders(&self, life: &Life) -> Result<Option<Vec<AllocOrder>>, Refusal> {
        match self.list(life).await {
            Ok(orders) => Ok(Some(orders)),
            Err(error @ DbError::Corrupt { .. }) => {
                tracing::warn!(%error, node_id = %life.node_id, "the node gets no orders");
                Ok(None)
            }
            Err(other) => Err(internal(other)),
        }
    }

    async fn list(&self, life: &Life) -> Result<Vec<AllocOrder>, DbError> {
        let allocs = self.store.allocs(life.allocs.iter().copied()).await?;
        let mut orders = Vec::with_capacity(allocs.len());
        for alloc in &allocs {
            if alloc.summary.node_id != life.node_id || alloc.summary.client.is_final() {
                continue;
            }
            let hosts = if alloc.nodes > 1 { self.hosts(alloc).await? } else { life.address.iter().cloned().collect() };
            orders.push(alloc.order(hosts));
        }
        orders.sort_by_key(|o| o.alloc_id);
        Ok(orders)
    }

    /// The addresses of the nodes of all members, by member number, including members that have ended. An unknown
    /// address is empty. Members that were placed together have consecutive copy numbers in the order of their member
    /// numbers. So the ids of the other members' allocs follow from this alloc's id.
    async fn hosts(&self, alloc: &Alloc) -> Result<Vec<String>, DbError> {
        let id = alloc.id();
        let first = id.copy.saturating_sub(id.member);
        let members = (0..alloc.nodes).map(|m| AllocId { member: m, copy: first.saturating_add(m), ..id });
        let rows = self.store.allocs(members.clone()).await?;
        let nodes: BTreeMap<AllocId, NodeId> = rows.iter().map(|a| (a.id(), a.summary.node_id)).collect();
        let mut hosts = Vec::new();
        for member in members {
            let node_id = nodes.get(&member).copied();
            let record = match node_id {
                Some(node_id) => self.store.node(node_id.slot()).await?,
                None => None,
            };
            let life = record.as_ref().and_then(|r| r.life()).filter(|l| Some(l.node_id) == node_id);
            hosts.push(life.and_then(|l| l.address.clone()).unwrap_or_default());
        }
        Ok(hosts)
    }
}
