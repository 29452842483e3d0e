//! The fleet as a strip: the last hours of each slot, those that need somebody first.

use super::attention;
use super::live::LiveView;
use history::{History, Strip};
use model::{NodeId, Slot, Span};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// How many parts the time has.
const PARTS: usize = 240;

#[derive(Serialize)]
pub(crate) struct Fleet {
    #[serde(flatten)]
    strip: Strip,
    /// The slots, in the order of the strip.
    order: Vec<Slot>,
    /// The slots whose nodes need somebody.
    asks: BTreeSet<Slot>,
}

impl Fleet {
    pub(crate) fn of(past: &History, live: &LiveView, span: Span) -> Self {
        let lives = live.present.nodes.iter().filter_map(|record| record.life());
        let now: BTreeMap<NodeId, u32> = lives.map(|life| (life.node_id, life.offering.capacity.vcpus)).collect();
        let policy = live.present.control.checked_policy().ok();
        let sizes = policy.iter().flat_map(|(policy, _)| &policy.size);
        let sizes: BTreeMap<&str, u32> = sizes.map(|size| (size.name.as_str(), size.capacity.vcpus)).collect();
        let strip = Strip::of(past, span, PARTS, |life| {
            let known = life.node_id.and_then(|id| now.get(&id));
            known.or_else(|| sizes.get(life.size.as_deref()?)).copied().unwrap_or(0)
        });
        let asks: BTreeSet<Slot> = attention::asking(live).map(|record| record.slot).collect();
        let mut order: Vec<Slot> = strip.slots.keys().copied().collect();
        order.sort_by_key(|slot| (!asks.contains(slot), *slot));
        Self { strip, order, asks }
    }
}
