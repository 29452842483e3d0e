//! What a day cost, as `cost` tells it, when the day is over.
//!
//! Guarantees: nothing is written, so the world goes on as it would.
//! Does not: know what EC2 really asks for an instance.

use super::World;
use history::{By, History, Report};
use model::Span;

/// More than a world lasts: all that is kept.
const ALL: Span = Span::from_s(90 * 86_400);

impl World {
    /// The reasons for which nodes were there are together the bill, and so are the jobs with the time without work. A line is rounded
    /// down to a second and a millionth of a dollar.
    pub(super) async fn invariant_the_reasons_are_the_bill(&self) {
        let Ok(past) = History::read_costs(&self.store, ALL, self.core.now()).await else { return };
        for by in [By::Reason, By::Size, By::Job] {
            let report = Report::of(&past, ALL, by.clone(), None);
            let (mut node_s, mut micros) = (0, 0);
            for line in &report.lines {
                (node_s, micros) = (node_s + line.node_s, micros + line.usd.micros());
            }
            if by == By::Job {
                (node_s, micros) = (node_s + report.without_work_node_s, micros + report.without_work_usd.micros());
            }
            self.core.count("a bill was added up");
            let lines = report.lines.len() as u64 + 1;
            let (off_s, off) = (report.node_s.abs_diff(node_s), report.total_usd.micros().abs_diff(micros));
            if off_s > lines || off > lines {
                let what = format!("{} by {by:?}: {node_s} s and {micros} of {report:?}", self.core.scenario.seed);
                self.core.broken("invariant_the_reasons_are_the_bill", what);
            }
        }
    }
}
