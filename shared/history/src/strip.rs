//! The fleet as a strip: for each slot, what its node did in equal parts of a time.
//!
//! Guarantees: a part shows the phase that took most of it; a part without a node is empty.
//! Does not: draw; the page does.

use super::series::Grid;
use super::{History, Phase};
use model::{Slot, Span, Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// What the nodes of a time did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Strip {
    pub from: Time,
    pub part_ms: i64,
    /// One character for each part: `0` to `9` for a node that works, by how full it was (tenths of its vCPUs), `i` idle, `b` booting,
    /// `s` silent, `g` going, and a space without a node.
    pub slots: BTreeMap<Slot, String>,
}

/// The parts of one slot.
struct SlotParts {
    phases: [Vec<f64>; Phase::ALL.len()],
    /// The share of the vCPUs in use.
    full: Vec<f64>,
}

impl Strip {
    /// The last `span` of a past, in this many parts.
    pub fn of(past: &History, span: Span, parts: usize) -> Self {
        let from = past.since(span);
        let grid = Grid::over(from, past.to, parts);
        let mut rows: BTreeMap<Slot, SlotParts> = BTreeMap::new();
        for life in &past.lives {
            let uses = past.uses_of(life);
            let segments = life.segments(uses, from, past.to);
            if segments.is_empty() {
                continue;
            }
            let row = rows.entry(life.slot).or_insert_with(|| SlotParts::new(parts));
            for segment in segments {
                for (phase, shares) in Phase::ALL.iter().zip(&mut row.phases) {
                    if *phase == segment.phase {
                        grid.add(shares, segment.from, segment.to, 1.0);
                    }
                }
            }
            let all = f64::from(life.vcpus.max(1));
            for used in uses {
                grid.add(&mut row.full, used.from.max(from), used.to, f64::from(used.vcpus) / all);
            }
        }
        let slots = rows.into_iter().map(|(slot, row)| (slot, row.text())).collect();
        Self { from, part_ms: grid.part_ms, slots }
    }
}

impl SlotParts {
    fn new(parts: usize) -> Self {
        Self { phases: std::array::from_fn(|_| vec![0.0; parts]), full: vec![0.0; parts] }
    }

    fn text(&self) -> String {
        let cell = |n: usize| {
            let shares = Phase::ALL.iter().zip(&self.phases).map(|(phase, shares)| (phase, shares.get(n).copied()));
            let longest = shares.max_by(|(_, a), (_, b)| a.unwrap_or(0.0).total_cmp(&b.unwrap_or(0.0)));
            match longest.filter(|(_, share)| share.is_some_and(|share| share > 0.0)) {
                None => ' ',
                Some((Phase::Working, share)) => {
                    let full = self.full.get(n).copied().unwrap_or(0.0) / share.unwrap_or(1.0);
                    char::from_digit((full * 10.0).clamp(0.0, 9.0) as u32, 10).unwrap_or('9')
                }
                Some((Phase::Idle, _)) => 'i',
                Some((Phase::Booting, _)) => 'b',
                Some((Phase::Silent, _)) => 's',
                Some((Phase::Going, _)) => 'g',
            }
        };
        (0..self.full.len()).map(cell).collect()
    }
}
