//! A progress bar on standard error, if that is a terminal.
//!
//! Guarantees: a pipe or a file gets nothing of it. When the bar ends, its line is empty again.
//! Does not: measure time.

use std::io::{self, IsTerminal, Write};

/// The width of the bar, in characters.
const WIDTH: u64 = 30;
/// With fewer things than this, no bar is shown: they are done too soon.
const FEWEST: usize = 200;

#[derive(Debug)]
pub(super) struct Bar {
    what: &'static str,
    all: u64,
    done: u64,
    drawn: Option<u64>,
    is_shown: bool,
}

impl Bar {
    pub(super) fn new(what: &'static str, all: usize) -> Self {
        let is_shown = all >= FEWEST && io::stderr().is_terminal();
        Self { what, all: all as u64, done: 0, drawn: None, is_shown }
    }

    pub(super) fn add(&mut self, done: usize) {
        self.done = self.done.saturating_add(done as u64).min(self.all);
        let filled = self.filled();
        if self.is_shown && self.drawn != Some(filled) {
            self.drawn = Some(filled);
            // If the terminal is gone, the work goes on.
            let _ = write!(io::stderr(), "\r{}", self.line());
        }
    }

    fn filled(&self) -> u64 {
        self.done.saturating_mul(WIDTH).checked_div(self.all).unwrap_or(WIDTH)
    }

    fn line(&self) -> String {
        let filled = usize::try_from(self.filled().min(WIDTH)).unwrap_or(0);
        let empty = usize::try_from(WIDTH).unwrap_or(0).saturating_sub(filled);
        format!("{} [{}{}] {} of {}", self.what, "#".repeat(filled), " ".repeat(empty), self.done, self.all)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_and_never_overflows() {
        let mut bar = Bar { is_shown: false, ..Bar::new("jobs", 300) };
        assert_eq!(bar.line(), format!("jobs [{}] 0 of 300", " ".repeat(30)));
        bar.add(100);
        assert_eq!(bar.line(), format!("jobs [{}{}] 100 of 300", "#".repeat(10), " ".repeat(20)));
        bar.add(900);
        assert_eq!(bar.line(), format!("jobs [{}] 300 of 300", "#".repeat(30)));
        assert_eq!(Bar::new("none", 0).filled(), WIDTH);
    }
}
