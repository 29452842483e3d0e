//! What the nodes did: a row for each slot, or, for many slots, how many nodes were in each phase.
//!
//! Guarantees: at most [`MOST_PIECES`] pieces in all rows. If there are more phases, each piece of a row stands for a longer
//! time, and shows the phase that lasted longest in it.

use super::svg::{LEFT, PLOT, Svg};
use crate::series::Grid;
use crate::{History, NodeLifetime, Phase, Segment};
use model::ids::Slot;
use model::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// The most slots that have a row.
const MOST_ROWS: usize = 100;
/// The most pieces of bars, which have a hint each.
const MOST_PIECES: usize = 2500;
/// The height of all rows together, if no row is lower or higher than these.
const ROWS: f64 = 420.0;
const LOWEST: f64 = 5.0;
const HIGHEST: f64 = 20.0;
/// The height of the areas that stand for many slots.
const AREAS: f64 = 260.0;
/// The width of a column of the areas.
const COLUMN: f64 = 2.5;

/// The class and name of a phase, and how much of the height of its row it takes. The phases differ in height too, for
/// those who do not see their colours.
pub(super) const fn look(phase: Phase) -> (&'static str, f64) {
    match phase {
        Phase::Working => ("working", 1.0),
        Phase::Idle => ("idle", 0.4),
        Phase::Booting => ("booting", 0.6),
        Phase::Silent => ("silent", 1.0),
        Phase::Going => ("going", 0.6),
    }
}

/// What is drawn of the nodes.
pub(super) enum Bars {
    Rows { rows: Vec<Row>, thinned: Option<Span> },
    Areas(Areas),
}

/// The row of a slot.
pub(super) struct Row {
    slot: Slot,
    /// When each life began.
    begins: Vec<Time>,
    /// With what the node was.
    pieces: Vec<(Segment, String)>,
}

/// How many nodes were in each phase, in the order of [`Phase::ALL`]; then by column.
pub(super) struct Areas {
    slots: usize,
    counts: Vec<(Phase, Vec<f64>)>,
}

impl Bars {
    /// What is drawn of a past.
    pub(super) fn of(past: &History, slots: &BTreeSet<Slot>, from: Time, to: Time) -> Self {
        if slots.len() > MOST_ROWS {
            return Self::Areas(Areas::of(past, slots.len(), from, to));
        }
        let exact = rows(past, slots, from, to);
        let count = |rows: &[Row]| rows.iter().map(|row| row.pieces.len()).sum::<usize>();
        if count(&exact) <= MOST_PIECES {
            return Self::Rows { rows: exact, thinned: None };
        }
        // Each turn doubles the length of a piece, so the loop ends: at last a row is one piece.
        let mut part_ms = (to.since(from).as_ms() / 512).max(1);
        loop {
            let rows: Vec<Row> = exact.iter().map(|row| row.thinned(from, to, part_ms)).collect();
            if count(&rows) <= MOST_PIECES || part_ms > to.since(from).as_ms() {
                return Self::Rows { rows, thinned: Some(Span::from_ms(part_ms)) };
            }
            part_ms = part_ms.saturating_mul(2);
        }
    }

    pub(super) fn height(&self) -> f64 {
        match self {
            Self::Rows { rows, .. } => row_height(rows.len()) * rows.len().max(1) as f64,
            Self::Areas(_) => AREAS,
        }
    }

    /// What the reader has to know of how it is drawn.
    pub(super) fn remark(&self) -> Option<String> {
        match self {
            Self::Rows { thinned: Some(part), .. } => Some(format!(
                "Thinned out: a piece of a row stands for at least {:.0} min, and shows the phase that lasted longest in it.",
                (part.as_s() / 60.0).ceil()
            )),
            Self::Rows { .. } => None,
            Self::Areas(areas) => Some(format!(
                "{} slots are too many for a row each: the areas show how many nodes were in each phase.",
                areas.slots
            )),
        }
    }

    pub(super) fn draw(&self, svg: &mut Svg, top: f64) {
        match self {
            Self::Rows { rows, .. } => draw_rows(svg, rows, top),
            Self::Areas(areas) => areas.draw(svg, top),
        }
    }
}

fn row_height(rows: usize) -> f64 {
    (ROWS / rows.max(1) as f64).clamp(LOWEST, HIGHEST).floor()
}

/// Every phase of every slot.
fn rows(past: &History, slots: &BTreeSet<Slot>, from: Time, to: Time) -> Vec<Row> {
    let empty = |slot: &Slot| (*slot, Row { slot: *slot, begins: Vec::new(), pieces: Vec::new() });
    let mut rows: BTreeMap<Slot, Row> = slots.iter().map(empty).collect();
    for life in &past.lives {
        if let Some(row) = rows.get_mut(&life.slot) {
            row.begins.push(life.from);
            let segments = life.segments(past.uses_of(life), from, to);
            row.pieces.extend(segments.into_iter().map(|segment| (segment, what(life))));
        }
    }
    rows.into_values().collect()
}

fn what(life: &NodeLifetime) -> String {
    let size = life.size.as_deref().unwrap_or("of unknown size");
    let market = life.market.as_deref().map(|market| format!(", {market}")).unwrap_or_default();
    format!("slot {} ({size}{market})", life.slot)
}

impl Row {
    /// The same row in parts of this length: each has the phase that lasted longest in it.
    fn thinned(&self, from: Time, to: Time, part_ms: i64) -> Self {
        let mut longest: BTreeMap<i64, BTreeMap<Phase, i64>> = BTreeMap::new();
        for (segment, _) in &self.pieces {
            let (begin, end) = (segment.from.since(from).as_ms(), segment.to.since(from).as_ms());
            for part in begin / part_ms..=(end - 1) / part_ms {
                let here = end.min((part + 1) * part_ms) - begin.max(part * part_ms);
                *longest.entry(part).or_default().entry(segment.phase).or_default() += here;
            }
        }
        let mut pieces: Vec<(Segment, String)> = Vec::new();
        for (part, phases) in longest {
            let there: i64 = phases.values().sum();
            let Some((phase, _)) = phases.into_iter().max_by_key(|(_, ms)| *ms).filter(|_| there * 2 >= part_ms) else {
                continue;
            };
            let begin = from + Span::from_ms(part * part_ms);
            let end = (begin + Span::from_ms(part_ms)).min(to);
            match pieces.last_mut().filter(|(last, _)| last.phase == phase && last.to == begin) {
                Some((last, _)) => last.to = end,
                None => pieces.push((Segment { phase, from: begin, to: end }, format!("slot {}, mostly", self.slot))),
            }
        }
        Self { slot: self.slot, begins: Vec::new(), pieces }
    }
}

fn draw_rows(svg: &mut Svg, rows: &[Row], top: f64) {
    let height = row_height(rows.len());
    if rows.is_empty() {
        svg.label(top + 12.0, "no nodes", "");
    }
    // The labels of low rows would overlap.
    let each = (12.0 / height).ceil().max(1.0) as usize;
    let gap = if height >= 8.0 { 3.0 } else { 1.0 };
    for (n, row) in rows.iter().enumerate() {
        let y = top + n as f64 * height;
        if n.is_multiple_of(each) {
            svg.label(y + height / 2.0 + 3.5, &format!("slot {}", row.slot), "");
        }
        svg.rect("track", (LEFT, y), (PLOT, height - gap), "");
        for (segment, what) in &row.pieces {
            let (class, part) = look(segment.phase);
            let (x, end) = (svg.x(segment.from), svg.x(segment.to));
            let high = (height - gap) * part;
            let hint = format!("{what}: {class}, {} to {}", svg.after(segment.from), svg.after(segment.to));
            svg.rect(class, (x, y + (height - gap - high) / 2.0), ((end - x).max(0.5), high), &hint);
        }
        // Two lives of a slot are told apart by where a life begins.
        for begin in &row.begins {
            let x = svg.x(*begin);
            svg.path("line ink", [(x, y), (x, y + height - gap)].into_iter(), "");
        }
    }
}

impl Areas {
    fn of(past: &History, slots: usize, from: Time, to: Time) -> Self {
        let parts = (PLOT / COLUMN) as usize;
        let grid = Grid::over(from, to, parts);
        let mut counts: Vec<(Phase, Vec<f64>)> = Phase::ALL.map(|phase| (phase, vec![0.0; parts])).into();
        for life in &past.lives {
            for segment in life.segments(past.uses_of(life), from, to) {
                if let Some((_, counts)) = counts.get_mut(segment.phase.place()) {
                    grid.add(counts, segment.from, segment.to, 1.0);
                }
            }
        }
        Self { slots, counts }
    }

    /// The areas one above the other.
    fn draw(&self, svg: &mut Svg, top: f64) {
        let parts = self.counts.first().map_or(0, |(_, counts)| counts.len());
        let mut below = vec![0.0; parts];
        let sums = (0..parts).map(|n| self.counts.iter().filter_map(|(_, counts)| counts.get(n)).sum::<f64>());
        let most = sums.fold(1.0, f64::max).ceil();
        let place =
            |n: usize, value: f64| (LEFT + (n as f64 + 0.5) * COLUMN, top + AREAS - 1.0 - value / most * (AREAS - 4.0));
        svg.rect("track", (LEFT, top), (PLOT, AREAS), "");
        svg.label(top + 10.0, &format!("{most:.0} nodes"), "");
        svg.label(top + AREAS, "0", "");
        for (phase, counts) in &self.counts {
            let above: Vec<f64> = below.iter().zip(counts).map(|(below, count)| below + count).collect();
            let edge = |values: &[f64]| -> Vec<(f64, f64)> {
                values.iter().enumerate().map(|(n, value)| place(n, *value)).collect()
            };
            let back = edge(&below).into_iter().rev();
            let (class, _) = look(*phase);
            let peak = counts.iter().copied().fold(0.0, f64::max).ceil();
            svg.path(
                &format!("area {class}"),
                edge(&above).into_iter().chain(back),
                &format!("{class}: at most {peak:.0}"),
            );
            below = above;
        }
    }
}
