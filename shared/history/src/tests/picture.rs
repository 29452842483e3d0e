//! Pictures of invented pasts.

use super::*;
use std::collections::BTreeSet;

fn lane(name: &str, tone: Tone, marks: &[(i64, &str)]) -> Lane {
    let marks = marks.iter().map(|(s, name)| (at(*s), (*name).to_owned())).collect();
    Lane { name: name.to_owned(), hint: "the meaning".to_owned(), tone, marks }
}

fn picture(past: &History, lanes: Vec<Lane>) -> Picture<'_> {
    let command = "make 'it' & <see>".to_owned();
    Picture { title: "A & B".to_owned(), command, past, lanes, moments: Vec::new(), remarks: Vec::new() }
}

/// Reads the document to its end: it is XML, each class has a colour, and nothing lies outside of it. Returns its height.
fn check(svg: &str) -> f64 {
    let mut reader = quick_xml::Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    let mut classes = BTreeSet::new();
    let mut height = 0.0;
    loop {
        let element = match reader.read_event().unwrap() {
            quick_xml::events::Event::Eof => break,
            quick_xml::events::Event::Start(element) | quick_xml::events::Event::Empty(element) => element,
            _ => continue,
        };
        let value = |name: &str| {
            let found = element.try_get_attribute(name).unwrap();
            found.map(|a| a.value.into_owned())
        };
        if element.name().as_ref() == "svg" {
            height = value("height").unwrap().parse().unwrap();
        }
        classes.extend(value("class").unwrap_or_default().split(' ').map(str::to_owned));
        let number = |name: &str| value(name).map(|n| n.parse::<f64>().unwrap());
        let (x, y) = (number("x").unwrap_or(0.0), number("y").unwrap_or(0.0));
        assert!((0.0..=1200.0).contains(&x) && (0.0..=height).contains(&y), "{element:?}");
        let (right, low) = (x + number("width").unwrap_or(0.0), y + number("height").unwrap_or(0.0));
        assert!(right <= 1200.5 && low <= height + 0.5, "{element:?}");
    }
    for class in classes.iter().filter(|class| !class.is_empty()) {
        assert!(svg.contains(&format!(".{class}{{")), "no style for {class}");
    }
    height
}

/// The column at which the rectangle with this title begins, and its width.
fn place(svg: &str, class: &str, title: &str) -> (f64, f64) {
    let line = svg.lines().find(|line| line.contains(&format!("\"{class}\"")) && line.contains(title));
    let line = line.unwrap_or_else(|| panic!("{title} is not drawn: {svg}"));
    let number = |name: &str| line.split_once(name).unwrap().1.split('"').next().unwrap().parse::<f64>().unwrap();
    (number(" x=\""), number(" width=\""))
}

#[test]
fn a_picture_has_a_bar_for_each_phase_and_a_tick_for_each_mark() {
    let mut log = a_life();
    log.job(0, 1, ActionName::Submit, "");
    log.job(100, 1, ActionName::Place, "");
    let past = log.past(Present { nodes: vec![cleaned(0, 720)], ..Present::default() }, 3600);
    let lanes = vec![
        lane("kills", Tone::Crash, &[(360, "Killed <now>"), (360, "Killed <now>")]),
        lane("a name that is too long for its place", Tone::Cloud, &[(720, "down\x1b\u{fffe}")]),
    ];
    let mut picture = picture(&past, lanes);
    picture.moments = vec![(at(300), "the \"middle\"".to_owned())];
    picture.remarks = vec!["Remember this.".to_owned()];
    let svg = picture.svg();
    assert_eq!(svg, picture.svg(), "the same bytes");
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    check(&svg);
    assert!(!svg.contains('\x1b') && !svg.contains('\u{fffe}'), "{svg}");
    // 720 s and a fiftieth of them, on 1006 columns, from the 178th on.
    let column = |s: f64| 178.0 + s / 734.4 * 1006.0;
    for (phase, from, to) in [("booting", 0, 61), ("working", 100, 400), ("silent", 500, 560), ("going", 700, 720)] {
        let said = |s: i32| format!("{} min {} s", s / 60, s % 60);
        let title = format!("slot 0 (small, on_demand): {phase}, {} to {}", said(from), said(to));
        let (x, width) = place(&svg, phase, &title);
        let (begin, end) = (column(from.into()), column(to.into()));
        assert!((x - begin).abs() < 0.1 && (x + width - end).abs() < 0.2, "{phase}: {x} {width}");
    }
    let tick = place(&svg, "crash", "6 min 0 s: 2 × Killed &lt;now&gt;").0;
    assert!((tick - column(360.0)).abs() <= 2.0, "{tick}");
    for wanted in [
        "<title id=\"title\">A &amp; B</title>",
        ">A &amp; B</text>",
        ">make &apos;it&apos; &amp; &lt;see&gt;</text>",
        ">kills 2×<title>the meaning</title></text>",
        ">a name that is too long for …<title>",
        ">the &quot;middle&quot;</text>",
        ">Remember this.</text>",
        ">slot 0</text>",
        ">10 min</text>",
        ">working</text>",
        ">jobs that wait</text>",
        "<title>jobs that wait: at most 1</title>",
        "prefers-color-scheme:dark",
    ] {
        assert!(svg.contains(wanted), "{wanted}: {svg}");
    }
}

#[test]
fn an_empty_past_has_a_picture_too() {
    let empty = Log::since(0).past(Present::default(), 3600);
    let svg = picture(&empty, Vec::new()).svg();
    check(&svg);
    assert!(svg.contains(">no nodes</text>"), "{svg}");
}

/// A month in which each of many slots changes every few minutes, with a fault every few seconds.
fn busy(slots: u32, rounds: i64) -> (History, Vec<Lane>) {
    let mut log = Log::since(0);
    let month = 30 * 86_400;
    let round = month / rounds;
    for slot in 0..slots {
        for n in 0..rounds {
            log.slot(n * round, slot, ActionName::Launch);
            log.slot(n * round + round / 3, slot, ActionName::Ready);
            log.slot(n * round + round / 2, slot, ActionName::ShutDown);
            log.slot(n * round + round - 5, slot, ActionName::Clean);
        }
    }
    let names: Vec<String> = (0..40).map(|n| format!("fault number {n}")).collect();
    let marks: Vec<(i64, &str)> = (0..20_000).map(|n| (n * 125, names[(n % 40) as usize].as_str())).collect();
    let past = log.past(Present::default(), month);
    let lanes = (0..70).map(|n| lane(&format!("kind {n}"), Tone::Outage, if n < 8 { &marks } else { &[] })).collect();
    (past, lanes)
}

#[test]
fn a_picture_of_a_month_is_thinned_out_and_says_so() {
    let (past, lanes) = busy(100, 100);
    let svg = picture(&past, lanes).svg();
    let height = check(&svg);
    assert!(svg.len() < 1_500_000 && height < 2000.0, "{} bytes, {height} high", svg.len());
    assert!(svg.contains("Thinned out: a piece of a row stands for at least ") && svg.contains("slot 0, mostly: "));
    assert!(svg.contains(">10 more kinds of marks are not shown.</text>") && svg.contains(">14 d</text>"));
    assert!(svg.contains(" more</title>"), "a tick names only some of what it stands for");
    let (few, lanes) = busy(4, 50);
    let exact = picture(&few, lanes).svg();
    assert!(!exact.contains("Thinned out") && exact.contains(": booting, "));
}

#[test]
fn a_thousand_slots_are_counted_and_not_drawn_each() {
    let nodes = (0..1000).map(fixtures::ready).collect();
    let many = Log::since(0).past(Present { nodes, ..Present::default() }, 3600);
    let svg = picture(&many, Vec::new()).svg();
    let height = check(&svg);
    assert!(svg.len() < 150_000 && height < 1000.0, "{} bytes, {height} high", svg.len());
    for wanted in ["1000 slots are too many for a row each", ">1000 nodes</text>", "<title>idle: at most 1000</title>"]
    {
        assert!(svg.contains(wanted), "{wanted}");
    }
    assert!(!svg.contains(">slot 0</text>"));
}
