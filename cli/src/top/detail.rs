//! One job or one node, as lines.
//!
//! Guarantees: the lines fit into the width. Text of users and nodes cannot control the terminal.
//! Does not: show the environment of a job.

use super::fold::fold;
use super::paint::Paint;
use super::state::{Detail, Opened, Selection};
use crate::console::show::{Screen, command, moment, one_line, output, several, when};
use crate::console::tone::Tone;
use crate::view::find::{short, short_alloc};
use crate::view::usage::{Used, bytes_text};
use crate::view::{JobDetail, NodeDetail, retry_rules};
use model::JobState;
use model::time::Time;
use ratatui::style::Style;
use ratatui::text::Line;

/// The width of the names of fields.
const NAMES: usize = 16;
/// The columns between two stops of a tab.
const TAB: usize = 8;

/// Lines that are not wider than the screen.
struct Lines {
    lines: Vec<Line<'static>>,
    width: usize,
    paint: Paint,
}

impl Lines {
    fn add(&mut self, style: Style, text: &str, indent: usize) {
        let lines = fold(text, self.width, indent);
        self.lines.extend(lines.into_iter().map(|line| Line::styled(line, style)));
    }

    fn title(&mut self, text: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::raw(""));
        }
        let style = self.paint.head();
        self.add(style, &one_line(text), 0);
    }

    fn field(&mut self, name: &str, value: Option<impl ToString>) {
        if let Some(value) = value {
            let value = one_line(&value.to_string());
            let style = self.paint.word(&value);
            self.add(style, &format!("{name:<NAMES$}{value}"), NAMES);
        }
    }

    fn text(&mut self, text: &str, indent: usize) {
        self.add(Style::new(), text, indent);
    }
}

/// All lines of the opened job or node.
pub(super) fn lines(opened: &Opened, width: usize, now: Time, paint: Paint) -> Vec<Line<'static>> {
    let mut lines = Lines { lines: Vec::new(), width, paint };
    let name = match opened.thing {
        Selection::Job(id) => format!("job {}", short(id)),
        Selection::Node(slot) => format!("slot {slot}"),
    };
    if let Some(why) = &opened.missing {
        lines.add(paint.bad(), &format!("{name} cannot be read: {}", one_line(why)), 0);
    }
    match &opened.detail {
        Some(Detail::Job(job)) if opened.output => outputs(&mut lines, job, now),
        Some(Detail::Job(job)) => of_job(&mut lines, job, now),
        Some(Detail::Node(node)) => of_node(&mut lines, node, now),
        None if opened.missing.is_none() => lines.text(&format!("{name} is being read"), 0),
        None => {}
    }
    lines.lines
}

fn of_job(lines: &mut Lines, job: &JobDetail, now: Time) {
    let row = &job.row;
    let name = row.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    lines.title(&format!("job {name}{}", row.job_id));
    lines.field("state", Some(row.state));
    lines.field("reason", row.reason.as_ref());
    lines.field(if row.state == JobState::Placed { "next" } else { "waits because" }, row.waits_because.as_ref());
    lines.field("command", Some(command(&job.job.work.command)));
    lines.field("image", job.job.work.image.as_ref());
    let nodes = if row.nodes > 1 { format!(" on each of {} nodes", row.nodes) } else { String::new() };
    lines.field("needs", Some(format!("{}{nodes}", row.capacity)));
    lines.field("priority", Some(row.priority));
    lines.field("submitted", Some(moment(row.submitted_at, now)));
    lines.field("ended", row.finished_at.map(|at| moment(at, now)));
    lines.field("used", row.usage.map(|usage| Used { usage, asked: row.capacity }.line()));
    lines.field("failed", Some(several(job.job.failed_count, "time")));
    lines.field("lost", Some(several(job.job.lost_count, "time")));
    for (n, rule) in retry_rules(&job.job).iter().enumerate() {
        lines.field(if n == 0 { "retries" } else { "" }, Some(rule.line()));
    }
    lines.title("what happened");
    for happening in &job.story {
        let reason = one_line(&happening.reason);
        let line = format!("{:<12} {:<12} {reason}", when(happening.at, now), one_line(&happening.action));
        let style = lines.paint.word(&happening.action);
        lines.add(style, &line, 26);
    }
    if job.story.is_empty() {
        lines.text("nothing is stored about it", 0);
    }
    outputs(lines, job, now);
}

/// The end of the output of each alloc, the newest first.
fn outputs(lines: &mut Lines, job: &JobDetail, now: Time) {
    if job.all_allocs.is_empty() {
        lines.title("output");
        lines.text("nothing has run yet", 0);
    }
    for alloc in &job.all_allocs {
        let ended = alloc.finished_at.map(|at| format!(", {}", when(at, now))).unwrap_or_default();
        let (id, client) = (short_alloc(alloc.id()), alloc.summary.client);
        lines.title(&format!("output of {id} on slot {} ({client}{ended})", alloc.summary.slot));
        if let Some(cause) = &alloc.cause {
            let style = lines.paint.tone(Tone::Warn);
            lines.add(style, &one_line(&cause.to_string()), 0);
        }
        lines.field("whole output", alloc.output_s3.as_ref());
        let kept = alloc.kept.iter().map(|output| format!("{} ({})", output.path, bytes_text(output.content.bytes)));
        let kept: Vec<String> = kept.collect();
        lines.field("keeps", (!kept.is_empty()).then(|| one_line(&kept.join(", "))));
        match &alloc.log_tail {
            Some(tail) => {
                let shown = output(tail, Screen::Terminal);
                shown.lines().for_each(|line| lines.text(&without_tabs(line), 0));
            }
            None if client.is_final() => lines.text("its node reported no output", 0),
            None => lines.text("its output is on the node until it ends", 0),
        }
    }
}

/// The line with spaces in place of each tab, up to the next stop.
fn without_tabs(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut column = 0;
    for c in line.chars() {
        if c == '\t' {
            let stop = TAB - column % TAB;
            text.extend(std::iter::repeat_n(' ', stop));
            column += stop;
        } else {
            text.push(c);
            column += 1;
        }
    }
    text
}

fn of_node(lines: &mut Lines, node: &NodeDetail, now: Time) {
    let row = &node.row;
    let id = row.node_id.map(|id| format!(": {id}")).unwrap_or_default();
    lines.title(&format!("slot {}{id}", row.slot));
    lines.field("state", Some(&row.state));
    lines.field("reason", Some(&row.reason).filter(|r| !r.is_empty()));
    lines.field("next", row.next.as_ref());
    lines.field("intent", row.intent);
    let size = row.size.as_ref().zip(row.instance_type.as_ref());
    lines.field("size", size.map(|(size, kind)| format!("{size}: {kind}")));
    let market = row.market.zip(row.price_per_hour);
    lines.field("market", market.map(|(market, price)| format!("{market}, {price} an hour")));
    lines.field("instance", row.instance_id.as_ref());
    lines.field("assigned", row.assigned_at.map(|at| moment(at, now)));
    lines.field("heard from", row.heard_at.map(|at| moment(at, now)));
    lines.field("busy", row.busy.then_some("yes: its agent says so"));
    lines.field("takes no work", node.record.refuses());
    lines.field("GPUs", node.record.sick_gpus());
    for work in &row.work {
        let name = work.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        lines.field("runs", Some(format!("{}{name}", short_alloc(work.alloc_id))));
    }
    let more = row.allocs.saturating_sub(row.work.len());
    lines.field("and", (more > 0).then(|| several(more, "more alloc")));
    lines.title("what happened, the newest first");
    for event in &node.events {
        let line = format!("{:<12} {:<12} {}", when(event.at(), now), one_line(&event.action), one_line(&event.reason));
        lines.text(&line, 26);
    }
    if node.events.is_empty() {
        lines.text("no events are stored", 0);
    }
}
