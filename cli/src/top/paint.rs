//! The colours of `top`.
//!
//! Guarantees: without colours, only bold and reversed text is used.

use crate::console::tone::Tone;
use ratatui::style::{Color, Modifier, Style};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Paint {
    pub(super) colours: bool,
}

impl Paint {
    pub(super) fn tone(self, tone: Tone) -> Style {
        let colour = match tone {
            Tone::Good => Color::Green,
            Tone::Warn => Color::Yellow,
            Tone::Bad => Color::Red,
            Tone::Plain => return Style::new(),
        };
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn word(self, word: &str) -> Style {
        self.tone(Tone::of(word))
    }

    pub(super) fn head(self) -> Style {
        let style = Style::new().add_modifier(Modifier::BOLD);
        if self.colours { style.fg(Color::Cyan) } else { style }
    }

    pub(super) fn bad(self) -> Style {
        self.tone(Tone::Bad).add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
