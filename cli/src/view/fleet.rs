//! The fleet as a strip: the last hours of each slot, those that need somebody first.

use super::attention;
use super::live::LiveView;
use history::{History, Strip};
use model::{Slot, Span};
use serde::Serialize;
use std::collections::BTreeSet;

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
        let strip = Strip::of(past, span, PARTS);
        let asks: BTreeSet<Slot> = attention::asking(live).map(|record| record.slot).collect();
        let mut order: Vec<Slot> = strip.slots.keys().copied().collect();
        order.sort_by_key(|slot| (!asks.contains(slot), *slot));
        Self { strip, order, asks }
    }
}
