//! The effect of each key.
//!
//! Guarantees: an open question takes only an answer. Ctrl-C always ends `top`.
//! Does not: do anything outside the state. For that, it returns an [`Effect`].

use super::operator_action::OperatorAction;
use super::state::{Effect, Opened, Selection, State, View};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// The keys, for the help.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("1, 2, Tab", "nodes, jobs, the other one"),
    ("arrows, j, k", "up and down"),
    ("PgUp, PgDn, Home, End", "a page up or down, to the first or last row"),
    ("Enter, w", "all of a job or node: why it waits or stays, its story, the end of its output"),
    ("l", "the end of a job's output"),
    ("/", "show only rows with these words; Enter keeps the filter, Esc takes it away"),
    ("c", "cancel the job, after a question"),
    ("d", "drain the node, after a question"),
    ("r", "read everything again now"),
    ("Esc", "back"),
    ("q, Ctrl-C", "quit"),
];

/// The longest filter, in bytes.
const LONGEST: usize = 200;

/// Takes a key. Returns its effect outside the state.
pub(super) fn press(state: &mut State, key: KeyEvent) -> Option<Effect> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    if control && key.code == KeyCode::Char('c') {
        return Some(Effect::Quit);
    }
    if state.question.is_some() {
        return answer(state, key.code);
    }
    state.said = None;
    if state.typing {
        type_filter(state, key.code, control);
        return None;
    }
    if control {
        return None;
    }
    if state.help {
        state.help = false;
        return (key.code == KeyCode::Char('q')).then_some(Effect::Quit);
    }
    match key.code {
        KeyCode::Char('q') => return Some(Effect::Quit),
        KeyCode::Char('?') => state.help = true,
        KeyCode::Char('r') => return Some(Effect::Refresh),
        KeyCode::Char('1') => return show(state, View::Nodes),
        KeyCode::Char('2') => return show(state, View::Jobs),
        KeyCode::Tab | KeyCode::BackTab => {
            let other = if state.view == View::Nodes { View::Jobs } else { View::Nodes };
            return show(state, other);
        }
        KeyCode::Char('c') => ask(state, true),
        KeyCode::Char('d') => ask(state, false),
        KeyCode::Char('l') => return output(state),
        KeyCode::Enter | KeyCode::Char('w') => return open(state, false),
        KeyCode::Esc => return back(state),
        KeyCode::Char('/') if state.opened.is_none() => state.typing = true,
        other => motion(state, other),
    }
    None
}

fn answer(state: &mut State, code: KeyCode) -> Option<Effect> {
    match code {
        KeyCode::Char('y' | 'Y') => state.question.take().map(Effect::Do),
        KeyCode::Char('n' | 'N' | 'q') | KeyCode::Esc | KeyCode::Enter => {
            state.question = None;
            state.said = Some(Ok("nothing was changed".to_owned()));
            None
        }
        _ => None,
    }
}

fn type_filter(state: &mut State, code: KeyCode, has_control: bool) {
    match code {
        KeyCode::Enter | KeyCode::Up | KeyCode::Down => state.typing = false,
        KeyCode::Esc => {
            state.typing = false;
            state.list_mut().filter.clear();
        }
        KeyCode::Backspace => _ = state.list_mut().filter.pop(),
        KeyCode::Char('u') if has_control => state.list_mut().filter.clear(),
        KeyCode::Char(c) if !has_control && state.list().filter.len() < LONGEST => state.list_mut().filter.push(c),
        _ => return,
    }
    state.filter();
}

fn show(state: &mut State, view: View) -> Option<Effect> {
    state.view = view;
    state.opened.take().map(|_| Effect::Open(None))
}

/// Asks whether to cancel the job, or to drain the node.
fn ask(state: &mut State, is_cancel: bool) {
    let action = match (state.thing(), is_cancel) {
        (Some(Selection::Job(id)), true) => state.job(id).map(OperatorAction::cancel),
        (Some(Selection::Node(slot)), false) => state.node(slot).map(OperatorAction::drain),
        (_, true) => Some(Err("c cancels a job: choose one (2)".to_owned())),
        (_, false) => Some(Err("d drains a node: choose one (1)".to_owned())),
    };
    match action {
        Some(Ok(action)) => state.question = Some(action),
        Some(Err(why)) => state.refuse(&why),
        None => {}
    }
}

fn open(state: &mut State, has_output: bool) -> Option<Effect> {
    if let Some(opened) = &mut state.opened {
        (opened.output, opened.line) = (has_output, 0);
        return None;
    }
    let thing = state.thing()?;
    state.opened = Some(Opened { thing, output: has_output, line: 0, detail: None, missing: None, lines: (0, 1) });
    Some(Effect::Open(Some(thing)))
}

fn output(state: &mut State) -> Option<Effect> {
    if let Some(Selection::Job(_)) = state.thing() {
        return open(state, true);
    }
    state.refuse("l shows the output of a job: choose one (2)");
    None
}

/// Goes from a job or a node back to the list. In the list, clears the filter.
fn back(state: &mut State) -> Option<Effect> {
    if state.opened.take().is_some() {
        return Some(Effect::Open(None));
    }
    state.list_mut().filter.clear();
    state.filter();
    None
}

/// Moves in the list, or in the opened job or node.
fn motion(state: &mut State, code: KeyCode) {
    let (at, last, page) = match &state.opened {
        Some(Opened { line, lines: (all, fit), .. }) => (*line, all.saturating_sub(*fit), *fit),
        None => state.list().place(),
    };
    let to = match code {
        KeyCode::Down | KeyCode::Char('j') => at + 1,
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::PageDown => at.saturating_add(page),
        KeyCode::PageUp => at.saturating_sub(page),
        KeyCode::Home | KeyCode::Char('g') => 0,
        KeyCode::End | KeyCode::Char('G') => last,
        _ => at,
    };
    match &mut state.opened {
        Some(opened) => opened.line = to.min(last),
        None => state.list_mut().select(to),
    }
}
