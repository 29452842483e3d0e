//! How many jobs waited and ran over time.

use super::svg::{LEFT, PLOT, Svg};
use crate::series::Grid;
use crate::timeline::union;
use crate::{History, Use};
use model::ids::JobId;
use std::collections::BTreeMap;

/// The height of the lines.
pub(super) const HEIGHT: f64 = 120.0;
/// The width of a column. A value is the mean over its column.
const COLUMN: f64 = 2.5;
/// The classes of the lines, and their names.
pub(super) const LINES: [(&str, &str); 2] = [("waiting", "jobs that wait"), ("running", "jobs that run")];

pub(super) fn draw(svg: &mut Svg, past: &History, top: f64) {
    let parts = (PLOT / COLUMN) as usize;
    let grid = Grid::over(svg.from, svg.to, parts);
    let (mut waiting, mut running) = (vec![0.0; parts], vec![0.0; parts]);
    past.waits.iter().for_each(|(from, to)| grid.add(&mut waiting, *from, *to, 1.0));
    let mut by_job: BTreeMap<JobId, Vec<Use>> = BTreeMap::new();
    for used in past.uses.values().flatten() {
        by_job.entry(used.alloc_id.job_id).or_default().push(used.clone());
    }
    // A job on several nodes is one job.
    for uses in by_job.values() {
        union(uses).iter().for_each(|(from, to)| grid.add(&mut running, *from, *to, 1.0));
    }
    let most = waiting.iter().chain(&running).copied().fold(1.0, f64::max).ceil();
    let bottom = top + HEIGHT;
    let edge = [(LEFT, top), (LEFT, bottom), (LEFT + PLOT, bottom)];
    svg.path("line soft", edge.into_iter(), "");
    svg.label(top + 10.0, &format!("{most:.0} {}", if most > 1.0 { "jobs" } else { "job" }), "");
    svg.label(bottom, "0", "");
    let place = |n: usize, value: f64| (LEFT + (n as f64 + 0.5) * COLUMN, bottom - value / most * (HEIGHT - 4.0));
    for ((class, name), values) in LINES.into_iter().zip([waiting, running]) {
        let points = || values.iter().enumerate().map(|(n, value)| place(n, *value));
        let peak = values.iter().copied().fold(0.0, f64::max).ceil();
        let hint = format!("{name}: at most {peak:.0}");
        if class == "waiting" {
            let ends = [(LEFT + PLOT, bottom), (LEFT, bottom)];
            svg.path("area waiting", points().chain(ends), "");
        }
        svg.path(&format!("line thick {class}"), points(), &hint);
    }
}
