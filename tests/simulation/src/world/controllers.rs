//! The controller of one world: it knows how many nodes another scheduler needs, and tells it with demand sets. It
//! forgets to renew some of them.

use super::World;
use crate::core::Fault;
use model::control::DemandTerms;
use model::{ControlKey, Span};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// For how long after the faults the controller still wants one node, in seconds.
const WANTED_S: i64 = 2700;

/// The demand set that is always wanted after the faults.
pub(crate) const STEADY: &str = "steady";

impl World {
    pub(super) async fn controller(self: Arc<Self>) {
        let core = &self.core;
        if core.scenario.chance(Fault::ControllerWants) <= 0.0 {
            return;
        }
        loop {
            sleep(Duration::from_secs(240)).await;
            if core.is_healed_for(Span::from_s(WANTED_S)) {
                return;
            }
            if core.is_healed() {
                self.want(STEADY, "small", 1, 600).await;
            } else if core.happens(Fault::ControllerWants) {
                let draw = |high: i64| core.of(Fault::ControllerWants, 0, high);
                let name = if draw(1) == 0 { "a" } else { "b" };
                let size = ["small", "medium"].get(usize::try_from(draw(1)).unwrap_or(0)).copied().unwrap_or("small");
                let most = i64::from(core.scenario.max()).min(12);
                let count = u32::try_from(draw(most)).unwrap_or(0);
                self.want(name, size, count, 300 + draw(3600)).await;
                core.count("a demand set was written");
            }
        }
    }

    async fn want(&self, name: &str, size: &str, count: u32, lasts_s: i64) {
        let key = ControlKey::Demand(name.to_owned());
        let now = self.core.now();
        let Ok(before) = self.store.entry::<DemandTerms>(&key).await else { return };
        let after = before.wanted(size, count, now + Span::from_s(lasts_s), now);
        // If the race or the answer is lost, the next call repeats it.
        let _ = self.store.write_entry(&before, &after).await;
    }
}
