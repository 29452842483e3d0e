//! The paper of a picture: text, rectangles and lines, placed by time.
//!
//! Guarantees: every text is escaped, and has no character that XML forbids. Colours are classes with a light and a dark
//! value, which the reader's browser chooses.
//! Does not: know what it draws.

use model::time::{Span, Time};
use quick_xml::escape::escape;
use std::fmt::Write;

/// The width of the picture.
pub(super) const WIDTH: f64 = 1200.0;
/// The width of what is drawn over time, and the column at which time begins.
pub(super) const PLOT: f64 = 1006.0;
pub(super) const LEFT: f64 = 178.0;
/// The most ticks of the axis of time.
const TICKS: i64 = 13;
/// The steps that an axis of time may have, in seconds: from one second to four weeks.
const STEPS: [i64; 20] = [
    1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800,
    2_419_200,
];

/// The class of each colour: what it is for, on white and on black paper.
const COLOURS: [(&str, &str, &str); 16] = [
    ("paper", "#ffffff", "#0f1419"),
    ("ink", "#1f2328", "#e6edf3"),
    ("soft", "#59636e", "#9aa7b4"),
    ("grid", "#dfe3e8", "#2b333c"),
    ("track", "#f4f5f7", "#182028"),
    ("working", "#1a7f46", "#2ea861"),
    ("idle", "#8cc9a1", "#2c7a4c"),
    ("booting", "#e0a11f", "#d9a02b"),
    ("silent", "#cf2b4f", "#f0506e"),
    ("going", "#8b97a8", "#6b7785"),
    ("waiting", "#c2610c", "#f0883e"),
    ("running", "#1f5fbf", "#589bf5"),
    ("crash", "#7b2fa8", "#c285ec"),
    ("outage", "#c2610c", "#f0883e"),
    ("cloud", "#1f5fbf", "#589bf5"),
    ("people", "#3d7d2a", "#7fbf5f"),
];

/// Text without what XML forbids, or reads as markup.
pub(super) fn plain(text: &str) -> String {
    let is_fine = |c: char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let shown: String = text.chars().map(|c| if is_fine(c) { c } else { ' ' }).collect();
    escape(shown.as_str()).into_owned()
}

/// A length with at most one decimal, which is a tenth of what a screen can show.
pub(super) fn short(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// What is drawn so far, and the time that it shows.
pub(super) struct Svg {
    pub(super) out: String,
    pub(super) from: Time,
    pub(super) to: Time,
}

impl Svg {
    /// Begins the document. Screen readers read the title and the description.
    pub(super) fn begin(&mut self, height: f64, title: &str, description: &str) {
        let (width, height) = (short(WIDTH), short(height));
        let mut light = String::new();
        let mut dark = String::new();
        for (class, on_white, on_black) in COLOURS {
            let _ = write!(light, ".{class}{{color:{on_white}}}");
            let _ = write!(dark, ".{class}{{color:{on_black}}}");
        }
        let _ = write!(
            self.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             role=\"img\" aria-labelledby=\"title description\">\n\
             <title id=\"title\">{}</title>\n<desc id=\"description\">{}</desc>\n\
             <style>text{{font:11px system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:currentColor}}\
             .big{{font-size:17px;font-weight:600}}.code{{font-family:ui-monospace,Menlo,Consolas,monospace}}\
             .end{{text-anchor:end}}.middle{{text-anchor:middle}}rect,.area{{fill:currentColor}}\
             .line{{stroke:currentColor;fill:none}}.thick{{stroke-width:1.8}}.dashed{{stroke-dasharray:4 3}}\
             .area.waiting{{fill-opacity:.25}}{light}\
             @media (prefers-color-scheme:dark){{{dark}}}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
            plain(title),
            plain(description)
        );
    }

    /// The column of a moment.
    pub(super) fn x(&self, at: Time) -> f64 {
        let part = at.since(self.from).as_ms() as f64 / self.span().as_ms().max(1) as f64;
        LEFT + part.clamp(0.0, 1.0) * PLOT
    }

    /// The time that is drawn.
    pub(super) fn span(&self) -> Span {
        self.to.since(self.from)
    }

    /// A moment for people: how long after the beginning.
    pub(super) fn after(&self, at: Time) -> String {
        let ms = at.since(self.from).as_ms().max(0);
        let (s, whole_s) = (ms / 1000, self.span().as_ms() / 1000);
        match whole_s {
            0..=599 => format!("{}.{} s", s, ms % 1000 / 100),
            600..=7199 => format!("{} min {} s", s / 60, s % 60),
            7200..=259_199 => format!("{} h {} min", s / 3600, s / 60 % 60),
            _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
        }
    }

    /// A text with these classes. It ends or begins at the column, or is around it, as the classes say.
    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let _ =
            writeln!(self.out, "<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>", short(x), short(y), plain(text));
    }

    /// The label of a row. A long one is cut off; a browser shows the hint.
    pub(super) fn label(&mut self, y: f64, text: &str, hint: &str) {
        const MOST: usize = 29;
        let shown: String = if text.chars().count() > MOST {
            text.chars().take(MOST - 1).chain(['…']).collect()
        } else {
            text.to_owned()
        };
        let hint = if hint.is_empty() { String::new() } else { format!("<title>{}</title>", plain(hint)) };
        let (x, y, shown) = (short(LEFT - 8.0), short(y), plain(&shown));
        let _ = writeln!(self.out, "<text class=\"ink end\" x=\"{x}\" y=\"{y}\">{shown}{hint}</text>");
    }

    /// A rectangle. A browser shows the hint.
    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64), hint: &str) {
        let _ = write!(
            self.out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            short(x),
            short(y),
            short(width),
            short(height)
        );
        let _ = if hint.is_empty() {
            writeln!(self.out, "/>")
        } else {
            writeln!(self.out, "><title>{}</title></rect>", plain(hint))
        };
    }

    /// A line or an area through these points. A browser shows the hint.
    pub(super) fn path(&mut self, class: &str, points: impl Iterator<Item = (f64, f64)>, hint: &str) {
        let points: Vec<String> = points.map(|(x, y)| format!("{} {}", short(x), short(y))).collect();
        let _ = write!(self.out, "<path class=\"{class}\" d=\"M{}\"", points.join("L"));
        let _ = if hint.is_empty() {
            writeln!(self.out, "/>")
        } else {
            writeln!(self.out, "><title>{}</title></path>", plain(hint))
        };
    }

    /// The axis of time: lines through everything between two heights, and labels above and below.
    pub(super) fn axis(&mut self, top: f64, bottom: f64) {
        let span_s = (self.span().as_ms() / 1000).max(1);
        let step_s = STEPS.into_iter().find(|step| span_s / step < TICKS).unwrap_or(span_s / TICKS);
        let (unit, unit_s) = match step_s {
            0..=59 => ("s", 1.0),
            60..=1799 => ("min", 60.0),
            1800..=86_399 => ("h", 3600.0),
            _ => ("d", 86_400.0),
        };
        for n in 0..=(span_s / step_s) {
            let x = self.x(self.from + Span::from_s(n * step_s));
            self.path("line grid", [(x, top), (x, bottom)].into_iter(), "");
            let label = format!("{} {unit}", short((n * step_s) as f64 / unit_s));
            self.text("soft middle", x, top - 5.0, &label);
            self.text("soft middle", x, bottom + 15.0, &label);
        }
    }
}
