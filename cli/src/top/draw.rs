//! Draws the screen.
//!
//! ```text
//! cluster, whether all is well, price, age     the head
//! what status says is wrong, then its notes
//! why the last look failed
//! the list, or a job, or a node, or the help   the body
//! the question, the filter, or the keys        the foot
//! ```
//!
//! Guarantees: any size of a terminal can be drawn. Text of users and nodes cannot control the terminal. A list costs as much as its
//! rows on the screen, however long it is.
//! Does not: read anything. The time is an argument.

use super::fold::fold;
use super::keys::KEYS;
use super::paint::Paint;
use super::state::{Snapshot, State, View};
use super::{detail, rows};
use crate::console::show::{dollars, is_state, one_line, rough};
use crate::console::tone::Tone;
use crate::view::status::{Check, Level, none_or};
use model::time::Time;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, Row, Table, TableState};

/// The most checks on a high screen, and on a low one.
const CHECKS: (usize, usize) = (4, 1);
/// The least height of a high screen, in lines.
const HIGH: u16 = 20;
/// The columns between two columns of a table.
const GAP: u16 = 2;

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, now: Time, paint: Paint) {
    let area = frame.area();
    let head = head(state, now, paint, area);
    let lines = u16::try_from(head.len()).unwrap_or(u16::MAX).min(area.height.saturating_sub(3));
    let parts = [Constraint::Length(lines), Constraint::Min(1), Constraint::Length(1)];
    let [top, body, bottom] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(Text::from(head)), top);
    if state.help {
        help(frame, body, paint);
    } else if let Some(opened) = &mut state.opened {
        let lines = detail::lines(opened, usize::from(body.width), now, paint);
        opened.lines = (lines.len(), usize::from(body.height));
        opened.line = opened.line.min(lines.len().saturating_sub(usize::from(body.height)));
        let shown = lines.into_iter().skip(opened.line).take(usize::from(body.height));
        frame.render_widget(Paragraph::new(Text::from(shown.collect::<Vec<_>>())), body);
    } else {
        list(frame, state, body, now, paint);
    }
    frame.render_widget(Paragraph::new(foot(state, paint)), bottom);
}

/// The lines at the top.
fn head(state: &State, now: Time, paint: Paint, area: Rect) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    match &state.seen {
        Some(seen) => {
            lines.push(summary(seen, now, paint));
            let status = &seen.status;
            let nodes = (View::Nodes, "1 nodes", none_or(&status.nodes));
            for (view, name, counts) in [nodes, (View::Jobs, "2 jobs", status.counted_jobs())] {
                let style = if state.view == view { paint.head() } else { paint.tone(Tone::Plain) };
                lines.push(Line::from(vec![Span::styled(name, style), Span::raw(format!(": {counts}"))]));
            }
            lines.extend(checks(&seen.status.checks, paint, area));
        }
        None if state.failed.is_none() => lines.push(Line::raw("the cluster is being read")),
        None => {}
    }
    if let Some((since, why)) = &state.failed {
        let old = match &state.seen {
            Some(seen) => format!("; what is shown is {} old", rough(now.since(seen.at))),
            None => String::new(),
        };
        let text = format!("cannot read for {}: {}{old}", rough(now.since(*since)), one_line(why));
        lines.extend(fold(&text, usize::from(area.width), 0).into_iter().take(3).map(|t| Line::styled(t, paint.bad())));
    }
    lines
}

fn summary(seen: &Snapshot, now: Time, paint: Paint) -> Line<'static> {
    let status = &seen.status;
    let notes = status.checks.iter().any(|c| c.level == Level::Look);
    let tone = match (status.well, notes) {
        (false, _) => Tone::Bad,
        (true, true) => Tone::Warn,
        (true, false) => Tone::Good,
    };
    let mut spans = vec![
        Span::styled(one_line(&seen.cluster), paint.head()),
        Span::raw("  "),
        Span::styled(status.verdict(), paint.tone(tone)),
    ];
    if !status.price_per_hour.is_zero() {
        spans.push(Span::raw(format!("  {} an hour", dollars(status.price_per_hour))));
    }
    spans.push(Span::raw(format!("  {} ago", rough(now.since(seen.at)))));
    Line::from(spans)
}

/// The lines of what is wrong, then of the notes.
fn checks(checks: &[Check], paint: Paint, area: Rect) -> Vec<Line<'static>> {
    let most = if area.height >= HIGH { CHECKS.0 } else { CHECKS.1 };
    let of = |level| checks.iter().filter(move |c| c.level == level);
    let told: Vec<&Check> = of(Level::Wrong).chain(of(Level::Look)).collect();
    let more = told.len().saturating_sub(most);
    let line = |(n, check): (usize, &&Check)| {
        let (mark, tone) = if check.level == Level::Wrong { ("WRONG", Tone::Bad) } else { ("look", Tone::Warn) };
        let to_do = if check.to_do.is_empty() { String::new() } else { format!(": {}", check.to_do) };
        let rest =
            if n + 1 == most && more > 0 { format!("(and {more} more: `nodekeeper status`) ") } else { String::new() };
        let text = format!("{rest}{}: {}{to_do}", check.what, check.says);
        Line::from(vec![Span::styled(format!("{mark:<6}"), paint.tone(tone)), Span::raw(one_line(&text))])
    };
    told.iter().take(most).enumerate().map(line).collect()
}

fn list(frame: &mut Frame<'_>, state: &mut State, area: Rect, now: Time, paint: Paint) {
    let Some(seen) = state.seen.clone() else { return };
    let height = usize::from(area.height.saturating_sub(1));
    let (shown, selected) = state.list_mut().on_screen(height);
    let (heads, cells, none): (_, Vec<Vec<String>>, _) = match state.view {
        View::Nodes => {
            let cells = shown.iter().filter_map(|n| Some(rows::node(seen.nodes.get(*n)?, now)));
            let none = if seen.nodes.is_empty() { "no nodes are up" } else { "no node is like that" };
            (rows::NODES, cells.collect(), none)
        }
        View::Jobs => {
            let cells = shown.iter().filter_map(|n| Some(rows::job(seen.jobs.get(*n)?, now)));
            let none = if seen.jobs.is_empty() { "no jobs are stored" } else { "no job is like that" };
            (rows::JOBS, cells.collect(), none)
        }
    };
    if cells.is_empty() {
        frame.render_widget(Paragraph::new(none), area);
        return;
    }
    let columns = rows::columns(heads, &cells, area.width, GAP);
    let of_row = |row: &Vec<String>| {
        Row::new(columns.iter().map(|(n, _)| {
            let text = row.get(*n).cloned().unwrap_or_default();
            let has_colour = heads.get(*n).is_some_and(|head| is_state(head.name));
            let style = if has_colour { paint.word(&text) } else { paint.tone(Tone::Plain) };
            Text::styled(text, style)
        }))
    };
    let head = Row::new(columns.iter().filter_map(|(n, _)| heads.get(*n)).map(|head| head.name)).style(paint.head());
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    let table = Table::new(cells.iter().map(of_row), widths).header(head).column_spacing(GAP);
    let table = table.row_highlight_style(Paint::selected());
    frame.render_stateful_widget(table, area, &mut TableState::default().with_selected(selected));
}

fn help(frame: &mut Frame<'_>, area: Rect, paint: Paint) {
    let width = usize::from(area.width);
    let mut lines = vec![Line::styled("keys", paint.head())];
    for (keys, does) in KEYS {
        lines.extend(fold(&format!("{keys:<23} {does}"), width, 24).into_iter().map(Line::raw));
    }
    lines.push(Line::raw(""));
    lines.push(Line::raw("any key goes back"));
    frame.render_widget(Paragraph::new(Text::from(lines)), area);
}

/// The last line.
fn foot(state: &State, paint: Paint) -> Line<'static> {
    if let Some(action) = &state.question {
        return Line::styled(format!("[y/n] {}", action.question()), paint.bad());
    }
    if state.typing {
        return Line::raw(format!("/{}_", one_line(&state.list().filter)));
    }
    match &state.said {
        Some(Ok(text)) => return Line::raw(one_line(text)),
        Some(Err(why)) => return Line::styled(one_line(why), paint.bad()),
        None => {}
    }
    if state.opened.is_some() {
        return Line::raw("Esc back  l output  c cancel  d drain  ? help  q quit");
    }
    let (filter, shown) = (&state.list().filter, state.list().len());
    let name = if state.view == View::Nodes { "nodes" } else { "jobs" };
    if filter.is_empty() {
        Line::raw("? help  / filter  Enter why  l output  c cancel  d drain  q quit")
    } else {
        Line::raw(format!("{shown} {name} with \"{}\"; Esc shows all", one_line(filter)))
    }
}
