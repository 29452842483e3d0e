//! A past as one picture (SVG): what each node did when, how long the queue was, and what else happened meanwhile.
//!
//! ```text
//! title, how it was made, legend
//! moments   a line through everything
//! lanes     a tick for each mark: faults, ends of jobs
//! bars      a row for each slot, by the phase of its node; for many slots, how many nodes were in each phase
//! queue     jobs that wait, and jobs that run
//! remarks   what was thinned out or left out
//! ```
//!
//! Guarantees: the same past gives the same bytes. The document is valid XML, whatever names it shows. It is readable on
//! white and on black, and has a title and a description for screen readers. Its size is bounded, whatever the past holds,
//! and it says what it does not show.
//! Does not: read or reckon anything: [`History`] has.

mod bars;
mod queue;
mod svg;

use crate::{History, NodeLifetime, Phase};
use model::ids::Slot;
use model::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use svg::{LEFT, Svg, WIDTH};

/// The height of a lane, and of a moment's name.
const LANE: f64 = 15.0;
const MOMENT: f64 = 14.0;
/// The height of title, command and legend.
const HEAD: f64 = 88.0;
/// The width of a tick, and of the columns in which ticks are put together.
const TICK: f64 = 2.0;
/// The most lanes and moments.
const MOST_LANES: usize = 60;
const MOST_MOMENTS: usize = 6;
/// The most different marks that the hint of a tick names.
const MOST_NAMES: usize = 8;

/// The colour of a lane, by what its marks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Something of ours ends in the middle of its work.
    Crash,
    /// Something does not answer, or is not heard.
    Outage,
    /// The cloud does not give, or takes away.
    Cloud,
    /// People do something.
    People,
    /// All is well.
    Good,
    /// Something ended badly.
    Bad,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Outage => "outage",
            Self::Cloud => "cloud",
            Self::People => "people",
            Self::Good => "working",
            Self::Bad => "silent",
        }
    }
}

/// A row of marks of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// What the marks are, in at most 22 letters.
    pub name: String,
    /// The meaning, which a browser shows.
    pub hint: String,
    /// The colour of the marks.
    pub tone: Tone,
    /// When something happened, and its name.
    pub marks: Vec<(Time, String)>,
}

/// A picture to be made.
#[derive(Clone, Debug)]
pub struct Picture<'a> {
    /// What it shows, in one line.
    pub title: String,
    /// The command that makes it.
    pub command: String,
    /// The lives of the nodes, and the queue.
    pub past: &'a History,
    /// The rows of marks, from top to bottom.
    pub lanes: Vec<Lane>,
    /// Moments at which everything changed, with their names.
    pub moments: Vec<(Time, String)>,
    /// What else the reader has to know, one sentence each.
    pub remarks: Vec<String>,
}

impl Picture<'_> {
    /// The picture as a document of its own.
    pub fn svg(&self) -> String {
        let (from, to) = self.bounds();
        let mut svg = Svg { out: String::new(), from, to };
        let slots: BTreeSet<Slot> = self.past.lives.iter().map(|life| life.slot).collect();
        let lanes = self.lanes.len().min(MOST_LANES);
        let moments = self.moments.len().min(MOST_MOMENTS);
        let bars = bars::Bars::of(self.past, &slots, from, to);
        let lanes_at = HEAD + moments as f64 * MOMENT + 18.0;
        let bars_at = lanes_at + lanes as f64 * LANE + if lanes > 0 { 10.0 } else { 0.0 };
        let queue_at = bars_at + bars.height() + 14.0;
        let bottom = queue_at + queue::HEIGHT;
        let remarks = self.remarks(&bars);
        let height = bottom + 26.0 + remarks.len() as f64 * LANE + 6.0;
        svg.begin(height, &self.title, &self.description(&slots, &remarks));
        self.head(&mut svg);
        svg.axis(lanes_at, bottom);
        for (n, lane) in self.lanes.iter().take(MOST_LANES).enumerate() {
            draw_lane(&mut svg, lane, lanes_at + n as f64 * LANE);
        }
        bars.draw(&mut svg, bars_at);
        queue::draw(&mut svg, self.past, queue_at);
        for (n, (at, name)) in self.moments.iter().take(MOST_MOMENTS).enumerate() {
            draw_moment(&mut svg, *at, name, HEAD + n as f64 * MOMENT, bottom);
        }
        for (n, remark) in remarks.iter().enumerate() {
            svg.text("soft", LEFT, bottom + 26.0 + (n as f64 + 0.8) * LANE, remark);
        }
        svg.out.push_str("</svg>\n");
        svg.out
    }

    /// The first and the last moment at which something began or ended. What only lasts is not waited for.
    fn bounds(&self) -> (Time, Time) {
        let past = self.past;
        let lives = past.lives.iter().flat_map(NodeLifetime::moments);
        let waits = past.waits.iter().flat_map(|(from, to)| [*from, *to]);
        let uses = past.uses.values().flatten().flat_map(|used| [used.from, used.to]);
        let marks = self.lanes.iter().flat_map(|lane| lane.marks.iter().map(|(at, _)| *at));
        let moments = self.moments.iter().map(|(at, _)| *at);
        let all = lives.chain(waits).chain(uses).chain(marks).chain(moments);
        let (first, last) = all.fold((past.to, past.from), |(first, last), at| (first.min(at), last.max(at)));
        let (from, to) = (first.max(past.from), last.min(past.to));
        // The axis ends a little after the last moment, so that this moment is visible. It shows at least one second.
        let room = Span::from_ms(to.since(from).as_ms() / 50);
        (from, to.max(from + Span::from_s(1)) + room)
    }

    /// What a screen reader reads of it.
    fn description(&self, slots: &BTreeSet<Slot>, remarks: &[String]) -> String {
        let lanes: Vec<String> =
            self.lanes.iter().map(|lane| format!("{} ({})", lane.name, lane.marks.len())).collect();
        let lanes = if lanes.is_empty() { "none".to_owned() } else { lanes.join(", ") };
        format!(
            "Over time from left to right: marks ({lanes}); what the nodes did: {} nodes in {} slots; jobs that wait and \
             jobs that run. Made by: {}. {}",
            self.past.lives.len(),
            slots.len(),
            self.command,
            remarks.join(" ")
        )
    }

    fn remarks(&self, bars: &bars::Bars) -> Vec<String> {
        let mut remarks = self.remarks.clone();
        remarks.extend(bars.remark());
        let more = self.lanes.len().saturating_sub(MOST_LANES) + self.moments.len().saturating_sub(MOST_MOMENTS);
        if more > 0 {
            remarks.push(format!("{more} more kinds of marks are not shown."));
        }
        if self.past.left_out > 0 {
            remarks.push(format!("{} events were too many to be read, and are not shown.", self.past.left_out));
        }
        remarks
    }

    fn head(&self, svg: &mut Svg) {
        svg.text("ink big", 16.0, 28.0, &self.title);
        svg.text("soft code", 16.0, 48.0, &self.command);
        let mut x = LEFT;
        for phase in Phase::ALL {
            let (name, part) = bars::look(phase);
            svg.rect(name, (x, 62.0 + 12.0 * (1.0 - part) / 2.0), (14.0, 12.0 * part), "");
            svg.text("ink", x + 20.0, 72.0, name);
            x += 40.0 + name.len() as f64 * 6.2;
        }
        x += 10.0;
        for (class, name) in queue::LINES {
            svg.path(&format!("line thick {class}"), [(x, 68.0), (x + 16.0, 68.0)].into_iter(), "");
            svg.text("ink", x + 22.0, 72.0, name);
            x += 42.0 + name.len() as f64 * 6.2;
        }
    }
}

/// A lane, with one tick for each column, however much happened there.
fn draw_lane(svg: &mut Svg, lane: &Lane, y: f64) {
    svg.label(y + 10.5, &format!("{} {}×", lane.name, lane.marks.len()), &lane.hint);
    svg.rect("track", (LEFT, y + 1.0), (svg::PLOT, LANE - 3.0), "");
    let mut columns: BTreeMap<i64, (Time, BTreeMap<&str, usize>)> = BTreeMap::new();
    for (at, name) in &lane.marks {
        let column = ((svg.x(*at) - LEFT) / TICK) as i64;
        let (first, names) = columns.entry(column).or_insert_with(|| (*at, BTreeMap::new()));
        *first = (*first).min(*at);
        *names.entry(name).or_default() += 1;
    }
    for (column, (at, names)) in columns {
        let more = names.len().saturating_sub(MOST_NAMES);
        let mut told: Vec<String> = names
            .into_iter()
            .take(MOST_NAMES)
            .map(|(name, n)| if n == 1 { name.to_owned() } else { format!("{n} × {name}") })
            .collect();
        if more > 0 {
            told.push(format!("{more} more"));
        }
        let hint = format!("{}: {}", svg.after(at), told.join(", "));
        let x = LEFT + column as f64 * TICK;
        svg.rect(lane.tone.class(), (x, y + 1.0), (TICK, LANE - 3.0), &hint);
    }
}

/// A line through everything, with its name above.
fn draw_moment(svg: &mut Svg, at: Time, name: &str, y: f64, bottom: f64) {
    let x = svg.x(at);
    svg.path("line ink dashed", [(x, y), (x, bottom)].into_iter(), "");
    if x > WIDTH * 0.75 {
        svg.text("ink end", x - 5.0, y + 9.0, name);
    } else {
        svg.text("ink", x + 5.0, y + 9.0, name);
    }
}
