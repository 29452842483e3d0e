//! The invariant of GPUs. It looks at the machines themselves.

use super::Check;
use crate::core::lock;
use model::NodeId;
use model::wire::AllocOrder;
use std::collections::BTreeSet;

impl Check {
    /// No GPU has two live allocs, and each alloc has as many GPUs as its job asked for.
    pub(super) fn invariant_no_gpu_has_two_allocs(&self, node: NodeId, order: &AllocOrder) {
        let Some(ground) = self.ground(node) else { return };
        let gpus = lock(&ground).gpus.clone();
        let all: Vec<&String> = gpus.values().flatten().collect();
        let different: BTreeSet<&String> = all.iter().copied().collect();
        let own = gpus.get(&order.alloc_id).map_or(0, Vec::len);
        if different.len() < all.len() || own != order.needs.gpus as usize {
            let what = format!("{} starts on {node} and has {own} GPUs: {gpus:?}", order.alloc_id);
            self.broken("invariant_no_gpu_has_two_allocs", what);
        }
        if own > 0 {
            self.core.count(if gpus.len() > 1 { "an alloc got GPUs beside another one" } else { "an alloc got GPUs" });
        }
    }
}
