//! Fleets during ten minutes in which heartbeat-ingest is down or EC2's list is empty, run by run; and the same fleets with
//! nodes that are really dead.
//!
//! Guarantees: heartbeats come as agents send them, with their jitter and their waits after failures; each run sees what the
//! heartbeats and the runs before it have written.

use super::*;
use model::control::{IngestNote, IngestSummary};
use model::policy::LONGEST_JITTER;
use model::wire::heartbeat_timeout_s;
use model::{ControlKey, Rng};
use std::collections::BTreeSet;

const SIZES: [u32; 10] = [1, 2, 3, 4, 5, 6, 8, 10, 25, 100];
const PHASES: u64 = 100;
/// The outage begins when the fleet has called for a while.
const BEGIN_S: f64 = 400.0;
const OUTAGE_S: f64 = 600.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Incident {
    IngestAway,
    ListEmpty,
    Both,
    /// This many of the nodes die at `BEGIN_S`.
    Dead(u32),
}

/// Whether jobs run on the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fleet {
    Busy,
    Idle,
}

/// How often nodes call, and how often poll-and-scale runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    /// That of the default policy.
    Usual,
    /// That of `nodekeeper local`.
    Quick,
}

impl Pace {
    fn heartbeat(self) -> Value {
        match self {
            Self::Usual => json!({}),
            Self::Quick => json!({"ttl_s": 2, "idle_s": 1, "grace_s": 3}),
        }
    }

    fn runs_every_s(self) -> f64 {
        match self {
            Self::Usual => 60.0,
            Self::Quick => 2.0,
        }
    }
}

struct Lab {
    given: Given,
    pace: Pace,
    rng: Rng,
    /// When each node calls next, and since when its calls have failed.
    calls: Vec<(f64, Option<f64>)>,
    trouble: Incident,
    allocs: BTreeSet<NodeIndex>,
    /// Whether a call without an answer hangs until the agent's time-out. If not, it fails at once.
    calls_hang: bool,
}

type NodeIndex = u32;

fn time(s: f64) -> Time {
    Time::from_ms(at(0).as_ms() + (s * 1000.0) as i64)
}

impl Lab {
    fn new(pace: Pace, fleet: Fleet, nodes: u32, trouble: Incident, seed: u64) -> Self {
        let rng = Rng::seeded(seed);
        // The minimum is the size of the fleet, so a run replaces each node that no longer counts.
        let fleet_size = json!({"min": nodes, "max": 2 * nodes});
        let mut given =
            given(json!({"nodes": fleet_size, "launch": {"max_per_run": 100}, "heartbeat": pace.heartbeat()}));
        let mut allocs = BTreeSet::new();
        for n in 0..nodes {
            match fleet {
                Fleet::Busy => {
                    given = given.working(n);
                    allocs.insert(n);
                }
                Fleet::Idle => given = given.node(fixtures::ready(n)),
            }
        }
        let calls = (0..nodes).map(|_| (rng.between(60.0, 150.0), None)).collect();
        Self { given, pace, rng, calls, trouble, allocs, calls_hang: seed % 2 == 1 }
    }

    fn ingest_answers(&self, s: f64) -> bool {
        let away = matches!(self.trouble, Incident::IngestAway | Incident::Both);
        !(away && (BEGIN_S..BEGIN_S + OUTAGE_S).contains(&s))
    }

    fn is_dead(&self, n: u32, s: f64) -> bool {
        matches!(self.trouble, Incident::Dead(dead) if n < dead && s >= BEGIN_S)
    }

    /// All calls up to this moment.
    fn calls_until(&mut self, end: f64) {
        let policy = self.given.seen.policy.heartbeat.clone();
        let fleet = self.calls.len() as u64;
        let retry_s = policy.retry_s(fleet);
        loop {
            let next = self.calls.iter().enumerate().min_by(|a, b| a.1.0.total_cmp(&b.1.0));
            let Some((index, &(s, failing))) = next else { return };
            if s > end {
                return;
            }
            let n = u32::try_from(index).unwrap();
            let wait = if self.is_dead(n, s) {
                f64::INFINITY
            } else if self.ingest_answers(s) {
                self.heard(index, s);
                let interval_s =
                    if self.allocs.contains(&n) { policy.interval_s(fleet) } else { policy.idle_interval_s(fleet) };
                interval_s * self.rng.between(1.0, LONGEST_JITTER)
            } else {
                // The wait of the agent: short at first, then up to half a minute.
                let overdue = s - failing.unwrap_or(s);
                let hung = if self.calls_hang { heartbeat_timeout_s(retry_s) } else { 0.0 };
                hung + 1.0 + self.rng.between(0.0, 1.0) * if overdue <= 30.0 { 1.0 } else { retry_s - 1.0 }
            };
            let failing = if self.ingest_answers(s) { None } else { failing.or(Some(s)) };
            self.calls[index] = (s + wait, failing);
        }
    }

    fn heard(&mut self, index: usize, s: f64) {
        let lease = self.given.seen.policy.heartbeat.lease(self.calls.len() as u64);
        if let NodeState::InUse(node) = &mut self.given.seen.nodes[index].state {
            node.contact.last_ping_at = time(s);
            node.contact.lease_expires_at = time(s) + lease;
            if matches!(node.contact.status, NodeStatus::Down | NodeStatus::Disconnected) {
                node.contact.status = NodeStatus::Ready;
            }
        }
        let noted: IngestSummary = self.given.seen.control.ingest();
        let gap = self.given.seen.policy.heartbeat.calls_again_within(self.calls.len() as u64);
        if let Some(after) = noted.noted(1, gap, time(s)) {
            self.given.seen.control.put(after);
        }
    }

    /// One run. Returns the rows of the actions that take a node away or buy one.
    fn run(&mut self, s: f64) -> Vec<String> {
        let now = time(s);
        let mut seen = self.given.seen.clone();
        let away = matches!(self.trouble, Incident::ListEmpty | Incident::Both);
        if away && (BEGIN_S..BEGIN_S + OUTAGE_S).contains(&s) {
            seen.instances.clear();
        }
        let mut done = Vec::new();
        for planned in plan(&seen, now).actions {
            let row = planned.row();
            match &planned.action {
                Action::HoldBack { note: crate::plan::Note::Brake(change), .. } => {
                    change.entry.iter().for_each(|(_, after)| self.given.seen.control.put(after));
                }
                Action::HoldBack { note: crate::plan::Note::Unlisted(node_id, since), .. } => {
                    self.change(*node_id, |record| record.note_unlisted(*since, now).unwrap());
                }
                Action::HoldBack { .. } | Action::SetIdle(..) | Action::Warn(_) => {}
                Action::Disconnect(node_id) => {
                    self.change(*node_id, |r| r.expire_lease(NodeStatus::Disconnected, now, "").unwrap());
                    done.push(format!("{} {}", row.action, row.subject));
                }
                Action::MarkDown(node_id) => {
                    self.change(*node_id, |r| r.expire_lease(NodeStatus::Down, now, "").unwrap());
                    done.push(format!("{} {}", row.action, row.subject));
                }
                _ => done.push(format!("{} {}", row.action, row.subject)),
            }
        }
        done
    }

    fn change(&mut self, node_id: model::ids::NodeId, change: impl FnOnce(&NodeRecord) -> NodeRecord) {
        let record = self.given.seen.nodes.iter_mut().find(|r| r.node_id() == Some(node_id)).unwrap();
        *record = change(record);
    }

    /// Runs for `minutes`, with the schedule at this phase, and returns what each run did.
    fn world(mut self, phase_s: f64, minutes: u32) -> Vec<(f64, Vec<String>)> {
        let every_s = self.pace.runs_every_s();
        let (mut runs, mut s) = (Vec::new(), 180.0 + phase_s);
        while s < f64::from(minutes) * 60.0 {
            self.calls_until(s);
            runs.push((s, self.run(s)));
            s += every_s;
        }
        runs
    }
}

fn worlds(pace: Pace, fleet: Fleet, nodes: u32, trouble: Incident, minutes: u32) -> Vec<Vec<(f64, Vec<String>)>> {
    let world = |seed| {
        let phase_s = pace.runs_every_s() * seed as f64 / PHASES as f64;
        Lab::new(pace, fleet, nodes, trouble, seed).world(phase_s, minutes)
    };
    // There are thirty times as many runs in a quick world.
    let most = if pace == Pace::Usual { PHASES } else { PHASES / 10 };
    (0..most).map(world).collect()
}

#[test]
fn an_outage_of_our_own_takes_no_node_down_and_buys_none() {
    for trouble in [Incident::IngestAway, Incident::ListEmpty, Incident::Both] {
        let paces = |nodes: &u32| [(Pace::Usual, *nodes), (Pace::Quick, *nodes)];
        let quick_sizes = |(pace, nodes): &(Pace, u32)| *pace == Pace::Usual || *nodes <= 10;
        for (pace, nodes) in SIZES.iter().flat_map(paces).filter(quick_sizes) {
            for fleet in [Fleet::Busy, Fleet::Idle] {
                for (phase, runs) in worlds(pace, fleet, nodes, trouble, 25).into_iter().enumerate() {
                    let acted: Vec<_> = runs.into_iter().filter(|(_, done)| !done.is_empty()).collect();
                    assert_eq!(acted, [], "{trouble:?}, {nodes} {fleet:?} nodes, {pace:?}, phase {phase}");
                }
            }
        }
    }
}

/// The seconds from the death of the nodes to the run that has noticed the last of them: median and worst.
fn noticed_after(pace: Pace, fleet: Fleet, nodes: u32, dead: u32, minutes: u32) -> (f64, f64) {
    let mut took: Vec<f64> = worlds(pace, fleet, nodes, Incident::Dead(dead), minutes)
        .into_iter()
        .map(|runs| {
            let mut noticed = BTreeSet::new();
            for (s, done) in runs {
                let gone = done.into_iter().filter(|a| a.starts_with("mark_down") || a.starts_with("disconnect"));
                noticed.extend(gone);
                if noticed.len() == dead as usize {
                    return s - BEGIN_S;
                }
            }
            f64::INFINITY
        })
        .collect();
    took.sort_by(f64::total_cmp);
    (took[took.len() / 2], took[took.len() - 1])
}

#[test]
fn trouble_that_is_real_is_acted_on() {
    for (pace, most_s) in [(Pace::Usual, 330.0), (Pace::Quick, 26.0)] {
        for fleet in [Fleet::Busy, Fleet::Idle] {
            // Other nodes prove that heartbeat-ingest works. The time is a lease, the proof, and a run.
            for (nodes, dead) in [(2, 1), (3, 1), (4, 1), (10, 1), (10, 3), (25, 3), (100, 3)] {
                if pace == Pace::Quick && nodes > 10 {
                    continue;
                }
                let (median, worst) = noticed_after(pace, fleet, nodes, dead, 15);
                println!(
                    "{pace:?}: {dead} of {nodes} {fleet:?} nodes dead: after {median:.0} s, at worst {worst:.0} s"
                );
                assert!(worst <= most_s, "{pace:?}: {dead} of {nodes} {fleet:?}: {worst}");
            }
        }
    }
    for fleet in [Fleet::Busy, Fleet::Idle] {
        // No other node proves it: `heartbeat.blackout_s` is half an hour.
        for nodes in [1, 2, 10] {
            let (median, worst) = noticed_after(Pace::Usual, fleet, nodes, nodes, 50);
            println!("all {nodes} {fleet:?} nodes dead: noticed after {median:.0} s, at worst {worst:.0} s");
            assert!((1800.0..2400.0).contains(&median) && worst < 2400.0, "{nodes} {fleet:?}: {median} {worst}");
        }
    }
}

#[test]
fn a_brake_on_absence_is_not_released_by_launches_in_place_of_what_it_holds() {
    // Eight nodes that never sent a heartbeat, and EC2 lists none of their instances.
    let mut given = given(json!({"nodes": {"min": 8, "max": 64}, "boot": {"timeout_s": 86_400}}));
    for n in 0..8 {
        given = given.unlisted(fixtures::bound(n).note_unlisted(Some(at(1000)), at(1000)).unwrap());
    }
    assert_eq!(given.actions(at(2000)), ["hold_back cluster"]);
    // Later launches do not change the share: it is a share of the eight.
    let held = plan(&given.seen, at(2000));
    let Some(Action::HoldBack { note: crate::plan::Note::Brake(change), .. }) =
        held.actions.first().map(|p| p.action.clone())
    else {
        panic!("{:?}", held.actions)
    };
    let (_, entry) = change.entry.unwrap();
    assert_eq!(entry.ids().count(), 8);
    given.seen.control.put(entry);
    for n in 8..24 {
        let mut record = fixtures::bound(n);
        if let NodeState::Assigned(life) = &mut record.state {
            life.assigned_at = at(2010);
        }
        given = given.node(record);
    }
    assert_eq!(given.count(at(2060), "clean"), 0, "{:?}", given.actions(at(2060)));
    assert_eq!(given.count(at(2060), "launch"), 0, "{:?}", given.actions(at(2060)));
}

#[test]
fn what_a_brake_on_absence_holds_is_not_replaced_also_if_it_is_down() {
    let mut given = given(json!({"nodes": {"min": 8, "max": 64}}));
    for n in 0..8 {
        given = given.unlisted(down(n).note_unlisted(Some(at(1000)), at(1000)).unwrap());
    }
    assert_eq!(given.actions(at(2000)), ["hold_back cluster"]);
    // The nodes that were launched before the brake held stay, because they are all that count for the minimum.
    for n in 8..15 {
        given = given.node(idle_long(n));
    }
    let counts = ["hold_back", "clean", "launch", "shut_down"].map(|action| given.count(at(2000), action));
    assert_eq!(counts, [1, 0, 0, 0], "{:?}", given.actions(at(2000)));
}

#[test]
fn a_silent_node_is_suspected_until_heartbeat_ingest_has_proven_itself_twice() {
    let noted = |since: i64, before: i64| {
        let note = IngestNote { since_at: Some(at(since)), before_at: Some(at(before)), ..IngestNote::default() };
        IngestSummary::new(&ControlKey::Ingest).with(note)
    };
    let mut given = given(json!({})).working(0);
    for n in 1..4 {
        given = given.working(n);
    }
    for record in given.seen.nodes.iter_mut().skip(1) {
        if let NodeState::InUse(node) = &mut record.state {
            (node.contact.last_ping_at, node.contact.lease_expires_at) = (at(200), at(320));
        }
    }
    // The lease of slot 0 ended at 150 s, so the node should have called by 120 s.
    given.seen.control.put(noted(200, 115));
    assert_eq!(given.actions(at(210)), ["hold_back cluster"], "the first heartbeat after a gap");
    given.seen.control.put(noted(230, 200));
    assert_eq!(given.actions(at(240)), ["disconnect slot#0"]);
    // The first note of a cluster is one note.
    let mut only = noted(230, 0);
    only.entry.before_at = None;
    given.seen.control.put(only);
    assert_eq!(given.actions(at(240)), ["hold_back cluster"], "no note before");
    // An old note proves nothing, because heartbeat-ingest no longer writes notes. The records prove that it works.
    given.seen.control.put(noted(10, 5));
    assert_eq!(given.actions(at(240)), ["disconnect slot#0"]);
}
