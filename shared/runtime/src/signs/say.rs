//! Times and numbers as texts for people.
//!
//! Guarantees: a text of somebody else stays on one line and cannot control a terminal.
//! Does not: say exactly when. The records have the times.

use model::names::is_obeyed;
use model::{Span, Time};

/// The text with a space for each control character.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { ' ' } else { c }).collect()
}

/// A span in one unit: `42 s`, `7 min`, `3 h`, `5 days`.
pub fn rough(span: Span) -> String {
    let s = span.as_ms().unsigned_abs() / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..172_800 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
    }
}

/// When something was or will be: `3 min ago`, `in 20 s`.
pub fn when(at: Time, now: Time) -> String {
    let since = now.since(at);
    if since.as_ms() < 0 { format!("in {}", rough(since)) } else { format!("{} ago", rough(since)) }
}

/// A number with its noun: `1 node`, `2 nodes`.
pub fn several(n: impl ToString, noun: &str) -> String {
    let n = n.to_string();
    let plural = if n == "1" { "" } else { "s" };
    format!("{n} {noun}{plural}")
}
