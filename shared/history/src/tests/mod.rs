//! The past of invented events and rows.

use super::*;
use model::fixtures::{self, at};
use model::{ActionName, Rng, Subject};
use std::collections::BTreeSet;

const HOUR: Span = Span::from_s(3600);

struct Log {
    told: StoredPast,
    from: i64,
    n: u64,
}

impl Log {
    fn since(from: i64) -> Self {
        Self { told: StoredPast::default(), from, n: 0 }
    }

    fn event(&mut self, s: i64, slot: u32, action: ActionName) -> Event {
        self.n += 1;
        let subject = Subject::Slot(fixtures::slot(slot));
        Event::new(&subject, action, "", at(s), Span::from_s(99_999), &Rng::seeded(self.n))
    }

    fn slot(&mut self, s: i64, slot: u32, action: ActionName) {
        let event = self.event(s, slot, action);
        self.told.events.push(event);
    }

    fn clean(&mut self, s: i64, record: &NodeRecord) {
        let event = self.event(s, record.slot.number(), ActionName::Clean);
        self.told.events.push(event.of_life(record.life().unwrap()));
    }

    /// The end of an alloc of job `n`, which was on slot `slot`.
    fn used(&mut self, (from, to): (i64, i64), n: u32, slot: u32, vcpus: u32, name: Option<&str>) {
        let copy = u32::try_from(self.told.ended.len()).unwrap();
        self.told.ended.push(EndedAlloc {
            alloc_id: model::AllocId { copy, ..fixtures::alloc_id(n) },
            node_id: fixtures::node_id(slot),
            placed_at: at(from),
            finished_at: at(to),
            needs: model::Needs { vcpus, ..model::Needs::default() },
            name: name.map(str::to_owned),
            price_per_hour: model::Usd::ZERO,
            by: None,
            share: None,
            labels: BTreeMap::new(),
        });
    }

    /// The past with these records of nodes.
    fn past<const N: usize>(mut self, nodes: [NodeRecord; N], now: i64) -> History {
        self.told.nodes = nodes.into();
        History::of(self.told, at(self.from), at(now))
    }
}

fn cleaned(slot: u32, s: i64) -> NodeRecord {
    fixtures::ready(slot).clean(at(s), "terminated").unwrap()
}

fn phases(past: &History, n: usize) -> Vec<(Phase, i64, i64)> {
    let life = &past.lives[n];
    let s = |t: Time| t.since(at(0)).as_ms() / 1000;
    let segments = life.segments(past.uses_of(life), past.from, past.to);
    segments.iter().map(|seg| (seg.phase, s(seg.from), s(seg.to))).collect()
}

/// A node that boots, works, is silent, comes back, goes and is gone.
fn a_life() -> Log {
    let mut log = Log::since(0);
    log.slot(2, 0, ActionName::Launch);
    log.slot(60, 0, ActionName::Heartbeat);
    log.slot(61, 0, ActionName::Ready);
    log.used((100, 400), 1, 0, 1, Some("train"));
    log.slot(500, 0, ActionName::Disconnect);
    log.slot(560, 0, ActionName::Heartbeat);
    log.slot(700, 0, ActionName::ShutDown);
    log.clean(720, &fixtures::ready(0));
    log
}

#[test]
fn a_life_has_its_phases() {
    let past = a_life().past([cleaned(0, 720)], 3600);
    assert_eq!(past.lives.len(), 1);
    assert_eq!(
        phases(&past, 0),
        [
            (Phase::Booting, 0, 61),
            (Phase::Idle, 61, 100),
            (Phase::Working, 100, 400),
            (Phase::Idle, 400, 500),
            (Phase::Silent, 500, 560),
            (Phase::Idle, 560, 700),
            (Phase::Going, 700, 720),
        ]
    );
    let life = &past.lives[0];
    assert_eq!((life.from, life.to), (at(0), Some(at(720))), "it began when the slot was assigned");
    assert_eq!(life.price, Some(Usd::from_micros(100_000)));
}

#[test]
fn a_lost_event_is_mended_by_the_record_or_by_the_next_life() {
    // Only the launch of the present node has an event.
    let mut log = Log::since(0);
    log.slot(1, 0, ActionName::Launch);
    let past = log.past([fixtures::ready(0)], 100);
    assert_eq!(phases(&past, 0), [(Phase::Booting, 0, 60), (Phase::Idle, 60, 100)]);
    assert_eq!((past.lives.len(), past.lives[0].to, past.lives[0].node_id), (1, None, Some(fixtures::node_id(0))));
    // The end of a life has no event. The record is free.
    let mut log = Log::since(0);
    log.slot(1, 0, ActionName::Launch);
    log.slot(60, 0, ActionName::Ready);
    let past = log.past([cleaned(0, 300)], 900);
    assert_eq!(past.lives[0].to, Some(at(300)));
    // Neither the end of one life nor the launch of the next has an event.
    let mut log = Log::since(-900);
    log.slot(-800, 0, ActionName::Ready);
    let past = log.past([fixtures::ready(0)], 100);
    let ends: Vec<_> = past.lives.iter().map(|l| (l.from, l.to)).collect();
    assert_eq!(ends, [(at(-800), Some(at(0))), (at(0), None)]);
    // A launch that came to nothing costs nothing.
    let mut log = Log::since(0);
    log.slot(1, 0, ActionName::Launch);
    log.slot(70, 0, ActionName::Abandon);
    assert_eq!(log.past([], 900).lives, []);
}

#[test]
fn events_may_come_in_any_order() {
    let steps = [(2, ActionName::Launch), (61, ActionName::Ready), (500, ActionName::ShutDown)];
    let mut one = Log::since(100);
    let mut other = Log::since(100);
    steps.iter().for_each(|(s, action)| one.slot(*s, 3, *action));
    steps.iter().rev().for_each(|(s, action)| other.slot(*s, 3, *action));
    let (one, other) = (one.past([cleaned(3, 600)], 900), other.past([cleaned(3, 600)], 900));
    assert_eq!(one.lives, other.lives);
    assert_eq!(phases(&one, 0), [(Phase::Idle, 100, 500), (Phase::Going, 500, 600)]);
}

#[test]
fn a_life_that_was_over_before_is_not_kept() {
    let mut log = a_life();
    log.from = 10_000;
    assert_eq!(log.past([cleaned(0, 720)], 20_000).lives, []);
}

/// Only the events of the span are read.
#[test]
fn a_life_that_began_before_has_its_phases_from_then_on() {
    let mut log = Log::since(300);
    log.slot(700, 0, ActionName::ShutDown);
    log.clean(720, &fixtures::ready(0));
    log.slot(500, 1, ActionName::Ready);
    log.slot(400, 3, ActionName::Disconnect);
    log.used((100, 400), 1, 0, 1, None);
    let past = log.past([cleaned(0, 720), fixtures::ready(1), fixtures::ready(2), cleaned(3, 600)], 900);
    assert_eq!(
        phases(&past, 0),
        [(Phase::Working, 300, 400), (Phase::Idle, 400, 700), (Phase::Going, 700, 720)],
        "its price is in the event of its end"
    );
    assert_eq!(past.lives[0].price, Some(Usd::from_micros(100_000)));
    assert_eq!(phases(&past, 1), [(Phase::Booting, 300, 500), (Phase::Idle, 500, 900)]);
    assert_eq!(phases(&past, 2), [(Phase::Idle, 300, 900)], "nothing happened to it");
    assert_eq!(phases(&past, 3), [(Phase::Silent, 400, 600)], "nothing says when it began");
}

#[test]
fn jobs_wait_from_their_submission_until_they_are_placed_or_end() {
    let mut log = Log::since(0);
    log.used((70, 100), 1, 0, 1, None);
    log.used((130, 200), 1, 0, 1, None);
    // Job 2 waits, and job 3 waits again. Job 4 was cancelled before it was placed.
    log.used((60, 90), 3, 0, 1, None);
    log.told.jobs = vec![fixtures::job(2).summary, fixtures::job(3).summary];
    log.told.unfinished = vec![store::Ended { job: fixtures::job(4).summary, at: at(50) }];
    let past = log.past([], 400);
    let s = |t: Time| t.since(at(0)).as_ms() / 1000;
    let mut waits: Vec<_> = past.waits.iter().map(|(from, to)| (s(*from), s(*to))).collect();
    waits.sort_unstable();
    assert_eq!(waits, [(0, 50), (0, 60), (0, 70), (0, 400), (90, 400), (100, 130)]);
}

#[test]
fn a_series_has_means() {
    let past = a_life().past([cleaned(0, 720)], 1000);
    let series = Series::of(&past, Span::from_s(1000), 10);
    let of = |phase: Phase| series.nodes.iter().find(|(p, _)| *p == phase).map(|(_, v)| v.clone()).unwrap();
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    let working = of(Phase::Working);
    assert!(
        close(working[0], 0.0) && close(working[1], 1.0) && close(working[3], 1.0) && close(working[4], 0.0),
        "{working:?}"
    );
    let booting = of(Phase::Booting);
    assert!(close(booting[0], 0.61) && close(booting[1], 0.0), "{booting:?}");
    assert!(close(of(Phase::Silent)[5], 0.6) && close(of(Phase::Going)[7], 0.2));
    assert!(
        close(series.usd_per_hour[0], 0.1) && close(series.usd_per_hour[7], 0.02) && close(series.usd_per_hour[9], 0.0)
    );
    // Only the last part of the past is asked for.
    let last = Series::of(&past, Span::from_s(500), 5);
    assert_eq!((last.from, last.waiting.len()), (at(500), 5));
    assert!(close(last.nodes.iter().find(|(phase, _)| *phase == Phase::Silent).unwrap().1[0], 0.6));
    assert_eq!(Series::of(&past, HOUR, usize::MAX).waiting.len(), 500);
}

/// Two jobs share a node for an hour, each with its vCPUs; the node is idle before and after.
fn shared() -> History {
    let mut log = Log::since(0);
    log.slot(0, 0, ActionName::Launch);
    log.slot(600, 0, ActionName::Ready);
    log.used((600, 4200), 1, 0, 3, Some("train"));
    log.used((600, 4200), 2, 0, 1, None);
    log.used((4200, 7800), 3, 0, 0, Some("train"));
    for (alloc, (by, team)) in log.told.ended.iter_mut().zip([("ann", "x"), ("bob", "x"), ("ann", "y")]) {
        (alloc.by, alloc.labels) = (Some(by.to_owned()), [("team".to_owned(), team.to_owned())].into());
    }
    log.clean(9000, &fixtures::ready(0));
    log.past([cleaned(0, 9000)], 10_000)
}

#[test]
fn a_price_is_divided_by_vcpus_and_adds_up() {
    let past = shared();
    let usd = |micros| Usd::from_micros(micros);
    let report = Report::of(&past, Span::from_s(10_000), By::Job, None);
    let lines: Vec<_> = report.lines.iter().map(|l| (l.what.clone(), l.usd, l.node_s)).collect();
    let id = |n| fixtures::job_id(n).to_string();
    assert_eq!(lines, [(id(3), usd(100_000), 3600), (id(1), usd(75_000), 2700), (id(2), usd(25_000), 900)]);
    // 600 s of boot and 1200 s until its end.
    assert_eq!((report.without_work_usd, report.without_work_node_s), (usd(50_000), 1800));
    assert_eq!((report.total_usd, report.node_s, report.nodes), (usd(250_000), 9000, 1));
    let names = Report::of(&past, Span::from_s(10_000), By::Name, None);
    let lines: Vec<_> = names.lines.iter().map(|l| (l.what.as_str(), l.count, l.usd)).collect();
    assert_eq!(lines, [("train", 2, usd(175_000)), ("(no name)", 1, usd(25_000))]);
    let by = |by: By, takes: Option<&dyn Fn(&CountedBy) -> bool>| {
        let report = Report::of(&past, Span::from_s(10_000), by, takes);
        let lines = report.lines.into_iter().map(|l| (l.what, l.count, l.usd.micros())).collect::<Vec<_>>();
        (lines, report.these_usd)
    };
    let line = |what: &str, count, micros| (what.to_owned(), count, micros);
    assert_eq!(by(By::Person, None), (vec![line("ann", 2, 175_000), line("bob", 1, 25_000)], None));
    let team = By::Label("team".to_owned());
    assert_eq!(by(team.clone(), None), (vec![line("x", 2, 100_000), line("y", 1, 100_000)], None));
    let of_ann = |job: &CountedBy| job.by.as_deref() == Some("ann");
    assert_eq!(
        by(team, Some(&of_ann)),
        (vec![line("y", 1, 100_000), line("x", 1, 75_000)], Some(usd(175_000))),
        "the total is that of all"
    );
    assert_eq!(by(By::Label("no".to_owned()), None).0, [line("(no such label)", 3, 200_000)]);
    for text in ["job", "name", "size", "person", "label:team"] {
        assert_eq!(String::from(By::try_from(text.to_owned()).unwrap()), text);
    }
    for bad in ["", "label", "label:", "people", "job:x", "Name"] {
        assert!(By::try_from(bad.to_owned()).is_err(), "{bad}");
    }
    let sizes = Report::of(&past, Span::from_s(10_000), By::Size, None);
    let [line] = sizes.lines.as_slice() else { panic!("{:?}", sizes.lines) };
    assert_eq!((line.what.as_str(), line.price_per_hour, line.usd), ("small", Some(usd(100_000)), usd(250_000)));
    // Only what lies in the time counts.
    let last = Report::of(&past, Span::from_s(2200), By::Name, None);
    assert_eq!((last.lines.len(), last.total_usd, last.without_work_usd), (0, usd(33_333), usd(33_333)));
}

#[test]
fn live_work_counts_until_now_and_a_life_without_a_price_counts_nothing() {
    let job = fixtures::job(5);
    let alloc = model::Alloc::place(fixtures::alloc_id(5), &job, &fixtures::ready(0), at(100)).unwrap();
    let mut named = job.summary.clone();
    named.name = Some("now".into());
    let mut log = Log::since(0);
    log.slot(0, 0, ActionName::Launch);
    // Nothing says of which size this node was.
    log.slot(10, 1, ActionName::Ready);
    (log.told.live, log.told.jobs) =
        (vec![alloc.summary], vec![model::JobSummary { state: JobState::Placed, ..named }]);
    // The index of ended allocs may be ahead of the index of live ones.
    let live = model::Alloc::place(fixtures::alloc_id(6), &fixtures::job(6), &fixtures::ready(0), at(100)).unwrap();
    log.used((100, 100), 6, 0, 64, None);
    log.told.ended[0].alloc_id = live.id();
    log.told.live.push(live.summary);
    let past = log.past([fixtures::ready(0), cleaned(1, 500)], 3700);
    let report = Report::of(&past, HOUR, By::Name, None);
    let lines: Vec<_> = report.lines.iter().map(|l| (l.what.as_str(), l.usd, l.node_s)).collect();
    assert_eq!(lines, [("now", Usd::from_micros(100_000), 3600)]);
    assert_eq!((report.unpriced_nodes, report.nodes), (1, 2));
}

#[test]
fn what_is_no_event_of_ours_is_passed_over() {
    for (subject, action) in [("slot#x", "launch"), ("slot#999999999", "launch"), ("", ""), ("slot#1", "of_the_future")]
    {
        let event = Event {
            subject: subject.into(),
            id: "no ulid".into(),
            action: action.into(),
            reason: String::new(),
            detail: BTreeMap::from([("size".to_owned(), 7.into())]),
            expires_at: 0,
            once: None,
        };
        assert!(timeline::steps(vec![event]).is_empty(), "{subject} {action}");
    }
}

fn reasons(past: &History, life: &NodeLifetime) -> Vec<(&'static str, i64)> {
    let sums = reason::of(past, life, (past.from, past.to));
    sums.into_iter().map(|(reason, (ms, _))| (reason.text(), ms / 1000)).collect()
}

#[test]
fn each_moment_of_a_node_has_a_reason() {
    let policy = || PolicyNow {
        vcpus: [("small".to_owned(), 2)].into(),
        idle_timeout: Span::from_s(60),
        ..PolicyNow::default()
    };
    let mut log = a_life();
    log.told.policy = policy();
    let past = log.past([cleaned(0, 720)], 3600);
    // One of two vCPUs worked for 300 s. Idle: 39 s before the work, and 60 of 100 s after it; then the minimum keeps the node.
    let expected = [
        ("work", 150),
        ("room left beside work", 150),
        ("boot", 61),
        ("idle.timeout_s", 99),
        ("idle for longer (nodes.min, a demand set, kept for a job, a shutdown window)", 180),
        ("silent", 60),
        ("shutting down", 20),
    ];
    assert_eq!(reasons(&past, &past.lives[0]), expected);
    // A node that never took work, and one that an operator held and then drained.
    let mut log = Log::since(0);
    log.told.policy = policy();
    log.slot(0, 0, ActionName::Launch);
    log.slot(300, 0, ActionName::ShutDown);
    log.slot(310, 0, ActionName::Clean);
    log.slot(0, 1, ActionName::Launch);
    log.slot(50, 1, ActionName::Ready);
    log.slot(70, 1, ActionName::Hold);
    log.slot(500, 1, ActionName::Drain);
    log.slot(520, 1, ActionName::Clean);
    let past = log.past([cleaned(0, 310), cleaned(1, 520)], 900);
    assert_eq!(reasons(&past, &past.lives[0]), [("failed start", 300), ("shutting down", 10)]);
    assert_eq!(reasons(&past, &past.lives[1]), [("boot", 50), ("idle.timeout_s", 20), ("hold", 430), ("drain", 20)]);
}

#[test]
fn the_reasons_add_up_to_the_bill_on_a_thousand_random_days() {
    use ActionName::{Disconnect, Drain, Heartbeat, Hold, Launch, Ready, Resume, ShutDown};
    let rng = Rng::seeded(65);
    let below = |n: i64| i64::try_from(rng.bits() % u128::from(n.unsigned_abs())).unwrap();
    let mut kinds = BTreeSet::new();
    for _ in 0..1000 {
        let mut log = Log::since(below(40_000));
        log.told.policy = PolicyNow {
            prices: [("small".to_owned(), Usd::from_micros(103_337))].into(),
            vcpus: [("small".to_owned(), u32::try_from(below(5)).unwrap())].into(),
            idle_timeout: Span::from_s(below(2000)),
            kept: LONGEST,
        };
        for slot in 0..3 {
            let mut s = below(20_000);
            for _ in 0..below(12) {
                let kinds = [Launch, Ready, Ready, Heartbeat, Disconnect, ShutDown, Hold, Resume, Drain];
                match below(11) {
                    9.. => log.clean(s, &fixtures::ready(slot)),
                    n => log.slot(s, slot, kinds[usize::try_from(n).unwrap()]),
                }
                s += below(20_000);
            }
            for n in 0..u32::try_from(below(6)).unwrap() {
                let from = below(80_000);
                log.used((from, from + below(9000)), n, slot, 1 + n % 3, None);
            }
        }
        let past = log.past([fixtures::ready(0), cleaned(1, 86_000)], 86_400);
        let span = Span::from_s(1 + below(86_400));
        let (report, by_size) = (Report::of(&past, span, By::Reason, None), Report::of(&past, span, By::Size, None));
        let sum: Charge = past
            .lives
            .iter()
            .flat_map(|life| reason::of(&past, life, (past.since(span), past.to)).into_values())
            .map(|(_, charge)| charge)
            .sum();
        assert_eq!(sum, series::total(&past, span), "{past:?}");
        let node_s = |report: &Report| report.lines.iter().map(|line| line.node_s).sum::<i64>();
        assert!((node_s(&report) - node_s(&by_size)).abs() <= 10, "each line is rounded down: {report:?}");
        kinds.extend(report.lines.into_iter().map(|line| line.what));
    }
    assert_eq!(kinds.len(), 10, "{kinds:?}");
}
