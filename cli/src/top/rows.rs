//! The rows of the lists as text, and the columns that fit.
//!
//! Guarantees: a text is on one line and cannot control the terminal. The columns fit into the width.

use crate::console::show::{one_line, or_blank, rough};
use crate::view::find::short;
use crate::view::{JobRow, NodeRow};
use model::Intent;
use model::time::Time;
use ratatui::text::Span;

#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) name: &'static str,
    /// If not all columns fit, those with the highest rank are left out first. Rank 0 is never left out.
    rank: u8,
    /// The largest width, but for the last column.
    most: u16,
}

const fn head(name: &'static str, rank: u8, most: u16) -> Head {
    Head { name, rank, most }
}

pub(super) const NODES: &[Head] = &[
    head("SLOT", 0, 6),
    head("STATE", 0, 13),
    head("SIZE", 3, 16),
    head("MARKET", 6, 9),
    head("INSTANCE", 5, 19),
    head("INTENT", 2, 6),
    head("ALLOCS", 2, 6),
    head("HEARD", 4, 7),
    head("UP", 4, 7),
    head("NEXT OR REASON", 1, u16::MAX),
];

pub(super) const JOBS: &[Head] = &[
    head("JOB", 0, 8),
    head("NAME", 1, 24),
    head("STATE", 0, 10),
    head("PRIORITY", 6, 8),
    head("NEEDS", 4, 28),
    head("SLOTS", 3, 12),
    head("AGE", 2, 7),
    head("WHY", 1, u16::MAX),
];

/// The least width of the last, open column.
const LAST: u16 = 10;
/// How many slots of a job are shown.
const SLOTS: usize = 3;

pub(super) fn node(row: &NodeRow, now: Time) -> Vec<String> {
    let age = |at: Option<Time>| at.map(|at| rough(now.since(at))).unwrap_or_default();
    let works = row.work.iter().map(|w| w.name.clone().unwrap_or_else(|| short(w.job_id))).collect::<Vec<_>>();
    let why = match (&row.next, works.as_slice()) {
        (Some(next), _) => next.clone(),
        (None, []) => row.reason.clone(),
        (None, works) => {
            let more = row.allocs.saturating_sub(works.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("runs {}{more}", works.join(", "))
        }
    };
    let cells = [
        row.slot.to_string(),
        row.state.clone(),
        or_blank(row.size.as_ref()),
        or_blank(row.market),
        or_blank(row.instance_id.as_ref()),
        or_blank(row.intent.filter(|intent| *intent != Intent::Run)),
        row.allocs.to_string(),
        age(row.heard_at),
        age(row.assigned_at),
        why,
    ];
    cells.iter().map(|cell| one_line(cell)).collect()
}

pub(super) fn job(row: &JobRow, now: Time) -> Vec<String> {
    let mut needs = row.capacity.to_string();
    if row.nodes > 1 {
        needs.push_str(&format!(", {} nodes", row.nodes));
    }
    let mut slots: Vec<String> = row.slots.iter().take(SLOTS).map(ToString::to_string).collect();
    if row.slots.len() > SLOTS {
        slots.push("…".to_owned());
    }
    let cells = [
        short(row.job_id),
        row.name.clone().or_else(|| row.command.clone()).unwrap_or_default(),
        row.state.to_string(),
        row.priority.to_string(),
        needs,
        slots.join(" "),
        rough(now.since(row.finished_at.unwrap_or(row.submitted_at))),
        or_blank(row.why()),
    ];
    cells.iter().map(|cell| one_line(cell)).collect()
}

/// The columns that fit, by their numbers, with their widths. The last one takes what is left.
pub(super) fn columns(heads: &[Head], cells: &[Vec<String>], width: u16, gap: u16) -> Vec<(usize, u16)> {
    let widest = |n: usize, head: &Head| {
        let texts = cells.iter().filter_map(|row| row.get(n)).map(String::as_str).chain([head.name]);
        let widest = texts.map(|text| Span::raw(text).width()).max().unwrap_or(0);
        u16::try_from(widest).unwrap_or(u16::MAX).min(head.most)
    };
    let mut columns: Vec<(usize, u16)> = heads.iter().enumerate().map(|(n, head)| (n, widest(n, head))).collect();
    // An empty column is left out.
    columns.retain(|(n, _)| cells.iter().any(|row| row.get(*n).is_some_and(|cell| !cell.is_empty())));
    let rank = |n: usize| heads.get(n).map_or(0, |head| head.rank);
    let is_open = |n: usize| heads.get(n).is_some_and(|head| head.most == u16::MAX);
    loop {
        let gaps = gap.saturating_mul(u16::try_from(columns.len()).unwrap_or(u16::MAX).saturating_sub(1));
        let least = |(n, width): &(usize, u16)| if is_open(*n) { LAST.min(*width) } else { *width };
        let needed = columns.iter().map(least).fold(gaps, u16::saturating_add);
        let last = columns.iter().map(|(n, _)| *n).max_by_key(|n| (rank(*n), *n));
        match last {
            Some(last) if needed > width && rank(last) > 0 => columns.retain(|(n, _)| *n != last),
            _ => break,
        }
    }
    let gaps = gap.saturating_mul(u16::try_from(columns.len()).unwrap_or(u16::MAX).saturating_sub(1));
    let closed = columns.iter().filter(|(n, _)| !is_open(*n)).map(|(_, w)| *w).fold(gaps, u16::saturating_add);
    for (n, open) in &mut columns {
        if is_open(*n) {
            *open = width.saturating_sub(closed);
        }
    }
    columns
}
