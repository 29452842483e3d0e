//! Counts over time: how many nodes were in which phase, how many jobs waited, and what the nodes cost.
//!
//! Guarantees: each value is the mean over its part of the time, so that nothing short is lost between two parts.
//! Does not: read rows; it counts what [`History`] has.

use super::{Charge, History, Phase};
use model::{Span, Time};
use serde::Serialize;

/// The most parts that a time is divided into.
const MOST_PARTS: usize = 500;

/// Values for equal parts of a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    pub from: Time,
    pub to: Time,
    pub part_ms: i64,
    /// The mean number of nodes in each phase, in the order of [`Phase::ALL`]; then by part.
    pub nodes: Vec<(Phase, Vec<f64>)>,
    /// The mean number of jobs that waited.
    pub waiting: Vec<f64>,
    /// What the nodes cost in an hour, in dollars.
    pub usd_per_hour: Vec<f64>,
}

impl Series {
    /// The last `span` of a past, in this many parts.
    pub fn of(past: &History, span: Span, parts: usize) -> Self {
        let parts = parts.clamp(1, MOST_PARTS);
        let from = past.since(span);
        let grid = Grid::over(from, past.to, parts);
        let mut nodes: Vec<(Phase, Vec<f64>)> = Phase::ALL.map(|phase| (phase, vec![0.0; parts])).into();
        let (mut waiting, mut usd_per_hour) = (vec![0.0; parts], vec![0.0; parts]);
        for life in &past.lives {
            let segments = life.segments(past.uses_of(life), from, past.to);
            for segment in &segments {
                if let Some((_, counts)) = nodes.iter_mut().find(|(phase, _)| *phase == segment.phase) {
                    grid.add(counts, segment.from, segment.to, 1.0);
                }
            }
            if let Some(price) = life.price {
                let to = life.to.unwrap_or(past.to);
                grid.add(&mut usd_per_hour, life.from, to, f64::from(price));
            }
        }
        past.waits.iter().for_each(|(begin, end)| grid.add(&mut waiting, *begin, *end, 1.0));
        Self { from, to: past.to, part_ms: grid.part_ms, nodes, waiting, usd_per_hour }
    }
}

/// Equal parts of a time.
pub(crate) struct Grid {
    from: Time,
    pub(crate) part_ms: i64,
    parts: usize,
}

impl Grid {
    /// The time between two moments, in this many parts.
    pub(crate) fn over(from: Time, to: Time, parts: usize) -> Self {
        let part_ms = (to.since(from).as_ms() / i64::try_from(parts).unwrap_or(1).max(1)).max(1);
        Self { from, part_ms, parts }
    }

    /// Adds `value` to each part, by the share of the part that lies between the two moments.
    pub(crate) fn add(&self, values: &mut [f64], begin: Time, end: Time, value: f64) {
        let (begin, end) = (begin.since(self.from).as_ms().max(0), end.since(self.from).as_ms());
        let first = usize::try_from(begin / self.part_ms).unwrap_or(usize::MAX);
        for (n, part) in values.iter_mut().enumerate().take(self.parts).skip(first) {
            let from = i64::try_from(n).unwrap_or(i64::MAX).saturating_mul(self.part_ms);
            if from >= end {
                break;
            }
            let overlap = end.min(from.saturating_add(self.part_ms)) - begin.max(from);
            *part += value * overlap.max(0) as f64 / self.part_ms as f64;
        }
    }
}

/// What a past cost in its last `span`.
pub(crate) fn total(past: &History, span: Span) -> Charge {
    let from = past.since(span);
    let of = |life: &super::NodeLifetime| {
        let time = life.to.unwrap_or(past.to).min(past.to).since(life.from.max(from));
        life.price.map(|price| Charge::of(price, time))
    };
    past.lives.iter().filter_map(of).sum()
}
