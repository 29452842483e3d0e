//! Output: tables and times for people, JSON for programs.
//!
//! Guarantees: text from users or nodes cannot control the terminal.
//! Does not: know what the output means.

use comfy_table::{Cell, Color, Table, presets};
pub(crate) use model::left_out::without_nulls;
use model::names::is_obeyed;
use model::{Arch, Capacity, MachineKind, MachineNeed, Time, Usd};
pub(crate) use runtime::signs::say::{one_line, rough, several, when};
use serde::Serialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use store::{DbError, Listed, Unreadable, WriteError};

/// The most characters of an error that are shown.
const MOST_OF_ERROR: usize = 8000;
/// The most characters that are shown of a text from elsewhere, such as one mistake of many.
const MOST_OF_WORDS: usize = 600;

/// The columns and fields whose words are states. Only these words have colours.
const STATES: [&str; 8] = ["STATE", "STATUS", "CLIENT", "INTENT", "state", "status", "client", "intent"];

pub(crate) fn is_state(name: &str) -> bool {
    STATES.contains(&name)
}

/// A table without borders.
pub(crate) struct Rows {
    table: Table,
    /// The indexes of the columns of states.
    states: Vec<usize>,
}

impl Rows {
    /// A table with these column heads. Without heads, the table is a list of names and values.
    pub(crate) fn new(heads: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if !heads.is_empty() {
            table.set_header(heads.iter().copied());
        }
        let states = heads.iter().enumerate().filter(|(_, head)| is_state(head)).map(|(n, _)| n).collect();
        // A table has no colours until `colours` is called, whatever standard output is.
        table.force_no_tty();
        Self { table, states }
    }

    pub(crate) fn of<C: ToString>(heads: &[&str], rows: impl IntoIterator<Item: IntoIterator<Item = C>>) -> Self {
        let mut table = Self::new(heads);
        rows.into_iter().for_each(|row| table.row(row));
        table
    }

    pub(crate) fn colours(mut self, are_wanted: bool) -> Self {
        if are_wanted {
            self.table.enforce_styling();
        }
        self
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl ToString>) {
        let states = &self.states;
        let cell = |(n, text): (usize, String)| if states.contains(&n) { toned(&text) } else { Cell::new(text) };
        self.table.add_row(cells.into_iter().map(|c| one_line(&c.to_string())).enumerate().map(cell));
    }

    /// Adds a row that begins with a mark, such as `ok` or `WRONG`.
    pub(crate) fn marked(&mut self, mark: &str, cells: impl IntoIterator<Item = impl ToString>) {
        let cells = cells.into_iter().map(|c| Cell::new(one_line(&c.to_string())));
        self.table.add_row([toned(mark)].into_iter().chain(cells));
    }

    /// Adds a name and its value, if there is a value.
    pub(crate) fn field(&mut self, name: &str, value: Option<impl ToString>) {
        let Some(value) = value.map(|value| one_line(&value.to_string())) else { return };
        let value = if is_state(name) { toned(&value) } else { Cell::new(value) };
        self.table.add_row([Cell::new(name), value]);
    }

    /// A field for each value: the first with this name, the others with `other`.
    pub(crate) fn fields(&mut self, name: &str, other: &str, values: impl IntoIterator<Item = impl ToString>) {
        for (n, value) in values.into_iter().enumerate() {
            self.field(if n == 0 { name } else { other }, Some(value));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Prints nothing if the table has no rows.
    pub(crate) fn print(mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        for column in self.table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        writeln!(out, "{}", self.table.trim_fmt())
    }
}

fn toned(word: &str) -> Cell {
    let cell = Cell::new(word);
    if let Some(colour) = colour_of(word) { cell.fg(colour) } else { cell }
}

/// The colour of a state, a status or a mark of `status`. It has no meaning of its own: the word is always there. An unknown word has
/// none.
fn colour_of(word: &str) -> Option<Color> {
    match word {
        "ok" | "ready" | "running" | "placed" | "complete" => Some(Color::DarkGreen),
        // On its way, or an operator may want to know of it.
        "look" | "assigned" | "syncing" | "shutting_down" | "placing" | "regrouping" | "unknown" | "cancelled"
        | "hold" | "drain" | "stop" => Some(Color::DarkYellow),
        // It failed, or somebody must act.
        "WRONG" | "disconnected" | "down" | "failed" | "rejected" | "lost" => Some(Color::DarkRed),
        _ => None,
    }
}

/// Prints one line for each row that cannot be read.
pub(crate) fn unreadable<'r>(err: &mut dyn Write, rows: impl IntoIterator<Item = &'r Unreadable>) -> io::Result<()> {
    for row in rows {
        writeln!(err, "not shown: {}: repair or delete it", one_line(&row.to_string()))?;
    }
    Ok(())
}

/// The rows that can be read. Prints one line for each of the others.
pub(crate) fn readable<R>(err: &mut dyn Write, listed: Listed<R>) -> io::Result<Vec<R>> {
    unreadable(err, &listed.unreadable)?;
    Ok(listed.rows)
}

/// Prints one JSON document. Characters that control a terminal are escaped, so that the document is the same for a person
/// and for a program.
pub(crate) fn json(out: &mut dyn Write, value: &(impl Serialize + ?Sized)) -> anyhow::Result<()> {
    // Outside strings, the only such character in JSON is the line end.
    let escape = |c: char| if c != '\n' && is_obeyed(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    let text = serde_json::to_string_pretty(&model::left_out::to_json(value)?)?;
    let text: String = text.chars().map(escape).collect();
    Ok(writeln!(out, "{text}")?)
}

/// JSON for people: the fields of the parts of a job stand beside its other fields, as in a file of jobs.
pub(crate) fn flat(mut value: Value) -> Value {
    flatten(&mut value);
    value
}

fn flatten(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(flatten),
        Value::Object(fields) => {
            for part in ["needs", "work", "failure_policy"] {
                if let Some(Value::Object(inner)) = fields.get_mut(part) {
                    let mut inner = std::mem::take(inner);
                    fields.remove(part);
                    // What a part does not have hides no field of the whole: both a job's work and its alloc may know the image.
                    inner.retain(|_, value| !value.is_null());
                    fields.extend(inner);
                }
            }
            fields.values_mut().for_each(flatten);
        }
        _ => {}
    }
}

/// The kind of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// A terminal, which obeys control sequences.
    Terminal,
    /// A file or a pipe, which takes every byte as it is.
    Pipe,
}

/// A job's own output. On a terminal, control characters are shown as `\\x1b`, except line ends and tabs: a job's
/// output cannot control the terminal. In a pipe it is unchanged.
pub(crate) fn output(text: &str, screen: Screen) -> Cow<'_, str> {
    let shown = |c: char| !is_obeyed(c) || matches!(c, '\n' | '\t');
    if screen == Screen::Pipe || text.chars().all(shown) {
        return Cow::Borrowed(text);
    }
    let show = |c: char| if shown(c) { c.to_string() } else { format!("\\x{:02x}", u32::from(c)) };
    Cow::Owned(text.chars().map(show).collect())
}

/// The error of DynamoDB that caused this error.
pub fn db_error(error: &anyhow::Error) -> Option<&DbError> {
    error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(WriteError::Db(error)) => Some(error),
        _ => cause.downcast_ref(),
    })
}

/// The text of an error and its causes. The text may quote a node or a user, so control characters are shown and not obeyed, and a
/// long quotation is cut.
pub fn error(error: &anyhow::Error) -> String {
    cut_to(&output(&format!("{error:#}"), Screen::Terminal), MOST_OF_ERROR)
}

/// The words of another on one line, and not long.
pub fn brief(text: &str) -> String {
    cut_to(&one_line(text), MOST_OF_WORDS)
}

/// The text without its middle, if it is longer than this. What is wrong stands at its beginning, and what to do at its end.
fn cut_to(text: &str, most: usize) -> String {
    let chars = text.chars().count();
    if chars <= most {
        return text.to_owned();
    }
    let (begin, end) = (most / 4 * 3, most / 4);
    let begin: String = text.chars().take(begin).collect();
    let end: String = text.chars().skip(chars - end).collect();
    format!("{begin} … ({} characters are left out) … {end}", chars - most)
}

pub(crate) fn or_blank(value: Option<impl ToString>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

/// As [`when`], or an empty text if the time is not known.
pub(crate) fn when_some(at: Option<Time>, now: Time) -> String {
    at.map(|at| when(at, now)).unwrap_or_default()
}

/// A time, exactly and relative to now.
pub(crate) fn moment(at: Time, now: Time) -> String {
    format!("{at} ({})", when(at, now))
}

/// An amount of money for people: two digits after the point, or four below $0.10.
pub(crate) fn dollars(usd: Usd) -> String {
    let dollars = f64::from(usd);
    if dollars == 0.0 || dollars >= 0.1 { format!("${dollars:.2}") } else { format!("${dollars:.4}") }
}

/// The labels of a job: `run=7, team=vision`.
pub(crate) fn labels(labels: &BTreeMap<String, String>) -> Option<String> {
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (!labels.is_empty()).then(|| labels.join(", "))
}

/// A need in words, with what the machine must be, and whether the job is exclusive.
pub(crate) fn narrowed(needs: String, machine: &MachineNeed, is_exclusive: bool) -> String {
    let exclusive = is_exclusive.then(|| "exclusive".to_owned());
    [needs].into_iter().chain(machine.words()).chain(exclusive).collect::<Vec<_>>().join(", ")
}

/// The capacity and the kind of a machine, in words. The usual architecture is left out.
pub(crate) fn kind(has: Capacity, kind: &MachineKind) -> String {
    let mut parts = vec![has.to_string()];
    parts.extend(kind.gpu_type.as_ref().map(|name| format!("GPUs of type {name}")));
    parts.extend((kind.gpu_memory_gib > 0).then(|| format!("{} GiB on each GPU", kind.gpu_memory_gib)));
    parts.extend((kind.arch != Arch::X86_64).then(|| kind.arch.to_string()));
    parts.extend(kind.labels.iter().map(|label| format!("label {label}")));
    parts.extend((!kind.containers).then(|| "no containers".to_owned()));
    parts.join(", ")
}

/// A command, quoted for a shell.
pub(crate) fn command(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    let quoted = |w: &String| {
        if !w.is_empty() && w.chars().all(plain) { w.clone() } else { format!("'{}'", w.replace('\'', r"'\''")) }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Counts with their names: `2 ready, 1 syncing`.
pub(crate) fn counted(counts: impl IntoIterator<Item = (impl ToString, impl ToString)>) -> String {
    let parts: Vec<String> =
        counts.into_iter().map(|(name, n)| format!("{} {}", n.to_string(), name.to_string())).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ClientStatus, Intent, JobState, NodeStateName, NodeStatus, Span};

    #[test]
    fn times_are_said_in_one_unit() {
        let now = Time::from_ms(1_800_000_000_000);
        let said = |s: i64| when(now - Span::from_s(s), now);
        assert_eq!(
            [said(0), said(59), said(60), said(7199), said(90_000), said(172_800)],
            ["0 s ago", "59 s ago", "1 min ago", "1 h ago", "25 h ago", "2 days ago"]
        );
        assert_eq!(said(-61), "in 1 min");
    }

    #[test]
    fn a_table_has_no_borders_and_no_trailing_space() {
        let mut rows = Rows::new(&["JOB", "NAME"]);
        rows.row(["1", "a\x1b[31m\nb"]);
        rows.row(["22", ""]);
        let mut out = Vec::new();
        rows.print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "JOB  NAME\n1    a [31m b\n22\n");
    }

    #[test]
    fn states_have_colours_only_if_they_are_wanted() {
        let printed = |colours| {
            let mut rows = Rows::new(&["JOB", "STATE", "NAME"]).colours(colours);
            rows.row(["1", "failed", "ready"]);
            rows.row(["2", "queued", "\x1b[31mred"]);
            let mut out = Vec::new();
            rows.print(&mut out).unwrap();
            let mut fields = Rows::new(&[]).colours(colours);
            fields.field("state", Some("ready"));
            fields.field("name", Some("ready"));
            fields.marked("WRONG", ["failed"]);
            fields.print(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let plain = printed(false);
        assert_eq!(
            plain,
            "JOB  STATE   NAME\n1    failed  ready\n2    queued   [31mred\nstate  ready\nname   ready\nWRONG  failed\n"
        );
        let coloured = printed(true);
        assert_eq!(
            coloured,
            "JOB  STATE   NAME\n1    \x1b[38;5;1mfailed  \x1b[39mready\n2    queued   [31mred\n\
             state  \x1b[38;5;2mready   \x1b[39m\nname   ready\n\x1b[38;5;1mWRONG  \x1b[39mfailed\n",
            "the state, the value of the field and the mark"
        );
        // Without the colours, the text is the same: the columns stay aligned.
        let text = anstream::adapter::strip_str(&coloured).to_string();
        let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(lines(&text), lines(&plain));
    }

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["sh", "-c", "echo 'a b'", ""].map(str::to_owned);
        assert_eq!(command(&words), r"sh -c 'echo '\''a b'\''' ''");
    }

    /// A new state must get a colour, or be added to this list of words without a colour.
    #[test]
    fn every_state_has_a_colour_or_is_meant_to_have_none() {
        let words = JobState::ALL.iter().map(|w| w.as_str());
        let words = words.chain(NodeStatus::ALL.iter().map(|w| w.as_str()));
        let words = words.chain(NodeStateName::ALL.iter().map(|w| w.as_str()));
        let words = words.chain(ClientStatus::ALL.iter().map(|w| w.as_str()));
        let words = words.chain(Intent::ALL.iter().map(|w| w.as_str()));
        let plain: Vec<&str> = words.filter(|word| colour_of(word).is_none()).collect();
        assert_eq!(plain, ["queued", "cleaned", "in_use", "pending", "run"]);
        assert_eq!(["failed", "ready", ""].map(colour_of), [Some(Color::DarkRed), Some(Color::DarkGreen), None]);
    }
}
