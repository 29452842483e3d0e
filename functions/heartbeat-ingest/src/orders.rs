//! What a node is told of its live allocs.

use crate::{Ingest, internal};
use shared::http::Refusal;
use shared::model::{Alloc, Life};
use shared::wire::AllocOrder;
use std::collections::{BTreeMap, BTreeSet};

impl Ingest {
    /// Every live alloc of a life, read consistently by the ids on its record.
    pub(crate) async fn orders(&self, life: &Life) -> Result<Vec<AllocOrder>, Refusal> {
        let allocs = self.store.allocs(life.allocs.iter().copied()).await.map_err(internal)?;
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

    /// The addresses of all members' nodes, in member order: the newest copy of each member.
    async fn hosts(&self, alloc: &Alloc) -> Result<Vec<String>, Refusal> {
        let Some(job) = self.store.job(alloc.id().job_id).await.map_err(internal)? else { return Ok(Vec::new()) };
        let members = self.store.allocs(job.summary.allocs.iter().copied()).await.map_err(internal)?;
        let mut newest: BTreeMap<u32, &Alloc> = BTreeMap::new();
        for member in &members {
            let id = member.id();
            if newest.get(&id.member).is_none_or(|known| known.id().copy < id.copy) {
                newest.insert(id.member, member);
            }
        }
        let slots: BTreeSet<_> = newest.values().map(|a| a.summary.slot).collect();
        let mut addresses = BTreeMap::new();
        for slot in slots {
            if let Some(record) = self.store.node(slot).await.map_err(internal)? {
                addresses.insert(slot, record.life().and_then(|l| l.address.clone()).unwrap_or_default());
            }
        }
        Ok(newest.values().map(|a| addresses.get(&a.summary.slot).cloned().unwrap_or_default()).collect())
    }
}
