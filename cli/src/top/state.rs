//! The state of `top`: what it shows and what was read, without a clock, a terminal or a database.
//!
//! Guarantees: nothing is cancelled or drained before a yes to a question that names it. What was read stays until something newer
//! is read. A failed look is remembered until one succeeds.
//! Does not: draw (`draw`), or read and write (`reader`, `operator_action`).

use super::list::List;
use super::operator_action::OperatorAction;
use crate::view::status::Status;
use crate::view::{JobDetail, JobRow, NodeDetail, NodeRow, Searched, words};
use model::ids::{JobId, Slot};
use model::time::Time;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) at: Time,
    pub(super) cluster: String,
    pub(super) status: Status,
    pub(super) jobs: Vec<JobRow>,
    /// The nodes. Free slots are left out.
    pub(super) nodes: Vec<NodeRow>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    #[default]
    Nodes,
    Jobs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    Job(JobId),
    Node(Slot),
}

#[derive(Debug)]
pub(super) enum Detail {
    Job(Box<JobDetail>),
    Node(Box<NodeDetail>),
}

/// The job or the node that fills the screen.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) thing: Selection,
    /// Whether only the output of a job is shown.
    pub(super) output: bool,
    /// The first line on the screen.
    pub(super) line: usize,
    /// What was read last; `None` before the first read.
    pub(super) detail: Option<Detail>,
    /// Why the last read failed.
    pub(super) missing: Option<String>,
    /// How many lines there are, and how many of them fit.
    pub(super) lines: (usize, usize),
}

/// An effect of a key outside the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    /// Read everything again, now.
    Refresh,
    /// Read this job or node again and again; `None`: read none.
    Open(Option<Selection>),
    Do(OperatorAction),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) seen: Option<Arc<Snapshot>>,
    /// When looks began to fail, and why the last one failed.
    pub(super) failed: Option<(Time, String)>,
    pub(super) view: View,
    pub(super) nodes: List<Selection>,
    pub(super) jobs: List<Selection>,
    pub(super) opened: Option<Opened>,
    pub(super) help: bool,
    /// Whether the filter is being typed.
    pub(super) typing: bool,
    /// The change that waits for a yes.
    pub(super) question: Option<OperatorAction>,
    /// The result of the last key: what was done, or why it failed.
    pub(super) said: Option<Result<String, String>>,
}

impl State {
    pub(super) fn saw(&mut self, seen: Arc<Snapshot>) {
        self.seen = Some(seen);
        self.failed = None;
        self.filter();
    }

    pub(super) fn failed(&mut self, at: Time, why: String) {
        let since = self.failed.take().map_or(at, |(since, _)| since);
        self.failed = Some((since, why));
    }

    /// Takes what was read of a job or a node, if it is still open.
    pub(super) fn detailed(&mut self, thing: Selection, read: Result<Detail, String>) {
        let Some(opened) = self.opened.as_mut().filter(|opened| opened.thing == thing) else { return };
        match read {
            Ok(detail) => (opened.detail, opened.missing) = (Some(detail), None),
            Err(why) => opened.missing = Some(why),
        }
    }

    /// The list on the screen.
    pub(super) const fn list(&self) -> &List<Selection> {
        match self.view {
            View::Nodes => &self.nodes,
            View::Jobs => &self.jobs,
        }
    }

    pub(super) const fn list_mut(&mut self) -> &mut List<Selection> {
        match self.view {
            View::Nodes => &mut self.nodes,
            View::Jobs => &mut self.jobs,
        }
    }

    /// Applies the filters to the rows.
    pub(super) fn filter(&mut self) {
        let Some(seen) = &self.seen else { return };
        let wanted = words(&self.nodes.filter);
        let rows = seen.nodes.iter().enumerate().filter(|(_, row)| takes(*row, &wanted));
        self.nodes.update(rows.map(|(n, row)| (n, Selection::Node(row.slot))));
        let wanted = words(&self.jobs.filter);
        let rows = seen.jobs.iter().enumerate().filter(|(_, row)| takes(*row, &wanted));
        self.jobs.update(rows.map(|(n, row)| (n, Selection::Job(row.job_id))));
    }

    /// The job or node on which keys act.
    pub(super) fn thing(&self) -> Option<Selection> {
        self.opened.as_ref().map_or_else(|| self.list().selected(), |opened| Some(opened.thing))
    }

    fn detail(&self) -> Option<&Detail> {
        self.opened.as_ref()?.detail.as_ref()
    }

    pub(super) fn job(&self, id: JobId) -> Option<&JobRow> {
        match self.detail() {
            Some(Detail::Job(job)) if job.row.job_id == id => Some(&job.row),
            _ => self.seen.as_ref()?.jobs.iter().find(|row| row.job_id == id),
        }
    }

    pub(super) fn node(&self, slot: Slot) -> Option<&NodeRow> {
        match self.detail() {
            Some(Detail::Node(node)) if node.row.slot == slot => Some(&node.row),
            _ => self.seen.as_ref()?.nodes.iter().find(|row| row.slot == slot),
        }
    }

    /// Answers a key that has no effect.
    pub(super) fn refuse(&mut self, why: &str) {
        self.said = Some(Err(why.to_owned()));
    }
}

/// Whether each of these words is in the row, or its state begins with it.
fn takes(row: &impl Searched, words: &[String]) -> bool {
    words.iter().all(|word| row.has(word) || row.state().starts_with(word.as_str()))
}
