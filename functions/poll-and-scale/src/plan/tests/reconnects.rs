//! Tests of the plan: which copy stays after a reconnect, and when that is not decided yet.

use super::*;
use model::control::IngestSummary;
use model::enums::ReservationKind;
use model::{AllocId, CapacityReservation, ControlKey, Desired, Needs, NodeId, Reconcile, Reserved, Rng};
use std::collections::BTreeSet;
use std::sync::Arc;

/// When the plans are made.
const NOW_S: i64 = 1000;

fn contact(record: &mut NodeRecord, change: impl FnOnce(&mut model::Contact)) {
    if let NodeState::InUse(node) = &mut record.state {
        change(&mut node.contact);
    }
}

/// A ready node that called five seconds ago.
fn heard(n: u32) -> NodeRecord {
    let mut record = fixtures::ready(n);
    contact(&mut record, |c| (c.last_ping_at, c.lease_expires_at) = (at(NOW_S - 5), at(NOW_S + 60)));
    record
}

impl Given {
    /// A job with a copy on each of these nodes, in this order. The first copies are `back`: they came back after a silence.
    fn copies(mut self, job: u32, nodes: &[u32], back: usize, reconcile: Reconcile) -> Self {
        let mut spec = JobSpec { needs: Needs { vcpus: 1, ..Needs::default() }, ..JobSpec::running(["true"]) };
        (spec.failure_policy.replace, spec.failure_policy.reconcile) = (true, reconcile);
        let mut job = Job::submit(fixtures::job_id(job), spec, at(0)).unwrap();
        let mut ids = Vec::new();
        for (copy, n) in (0..).zip(nodes) {
            let id = AllocId { job_id: job.summary.job_id, member: 0, copy };
            let record = self.seen.nodes.iter_mut().find(|r| r.slot == fixtures::slot(*n)).unwrap();
            let mut alloc = Alloc::place(id, &job, &fixtures::ready(*n), at(70)).unwrap().summary;
            (alloc.client, alloc.started_at) = (ClientStatus::Running, Some(at(80 + i64::from(copy))));
            alloc.awaiting = (copy as usize) < back;
            *record = record.listing_again(id, at(70)).unwrap();
            self.seen.allocs.push(alloc);
            ids.push(id);
        }
        job = job.with_placed(&ids).unwrap();
        self.seen.jobs.push(job.summary);
        self.seen.allocs.sort_by_key(|a| a.alloc_id);
        self
    }

    fn record(&mut self, n: u32) -> &mut NodeRecord {
        self.seen.nodes.iter_mut().find(|r| r.slot == fixtures::slot(n)).unwrap()
    }

    /// The copy that stays, if this plan decides which.
    fn keeps(&self) -> Option<u32> {
        let kept = |p: &crate::plan::PlannedAction| match &p.action {
            Action::ResolveReconnect { keep, .. } => Some(keep.copy),
            _ => None,
        };
        plan(&self.seen, at(NOW_S)).actions.iter().find_map(kept)
    }
}

const STRATEGIES: [Reconcile; 3] = [Reconcile::Best, Reconcile::KeepOriginal, Reconcile::KeepReplacement];

#[test]
fn while_a_copy_may_be_lost_with_its_node_no_other_copy_is_stopped() {
    type Incident = (&'static str, fn(&mut Given, u32));
    let silent = |given: &mut Given, n: u32| {
        contact(given.record(n), |c| (c.last_ping_at, c.lease_expires_at) = (at(NOW_S - 100), at(NOW_S - 1)));
    };
    let troubles: [Incident; 7] = [
        ("silent", silent),
        ("suspected", |given, n| {
            contact(given.record(n), |c| (c.last_ping_at, c.lease_expires_at) = (at(NOW_S - 100), at(NOW_S - 1)));
            let mut noted = IngestSummary::new(&ControlKey::Ingest);
            (noted.entry.since_at, noted.entry.before_at) = (Some(at(NOW_S - 5)), Some(at(NOW_S - 100)));
            given.seen.control.put(noted);
        }),
        ("noted as silent", |given, n| {
            contact(given.record(n), |c| c.lease_expires_at = at(NOW_S - 100));
            *given.record(n) = given.record(n).expire_lease(NodeStatus::Disconnected, at(NOW_S - 60), "").unwrap();
        }),
        ("terminated", |given, n| given.seen.instances[n as usize].state = InstanceState::Terminated),
        ("stopping", |given, n| given.seen.instances[n as usize].state = InstanceState::Stopping),
        ("partially_read", |given, n| {
            let id = given.seen.nodes[n as usize].node_id().unwrap();
            given.seen.partially_read.insert(id);
        }),
        ("drained now", |given, n| {
            *given.record(n) =
                given.record(n).with_intent(Intent::Drain, Some(at(NOW_S + 60)), at(NOW_S - 60)).unwrap();
        }),
    ];
    for (reconcile, copies) in STRATEGIES.iter().flat_map(|r| [2, 3].map(|copies| (*r, copies))) {
        let nodes: Vec<u32> = (0..copies).collect();
        let whole = (0..5).fold(given(json!({})), |given, n| given.node(heard(n)));
        let whole = whole.copies(9, &nodes, copies as usize - 1, reconcile);
        let keeps = if reconcile == Reconcile::KeepReplacement { copies - 1 } else { 0 };
        assert_eq!(whole.keeps(), Some(keeps), "{reconcile:?} of {copies}");
        for (name, trouble) in troubles {
            for n in 0..copies {
                let mut given = whole.clone();
                trouble(&mut given, n);
                assert_eq!(given.keeps(), None, "{reconcile:?} of {copies}, node {n} is {name}");
            }
        }
        // A silent node without a copy changes nothing.
        let mut given = whole.clone();
        silent(&mut given, 4);
        assert_eq!(given.keeps(), Some(keeps));
        // A copy whose row cannot be read may run.
        let mut given = whole.clone();
        let hidden = given.seen.allocs.pop().unwrap();
        given.seen.quarantined.allocs.insert(hidden.alloc_id);
        assert_eq!(given.keeps(), None, "{reconcile:?} of {copies}, one cannot be read");
    }
}

/// Makes the node of a copy go.
type Going = fn(&mut Given, u32);

/// Ways in which a node goes.
const GOES: [(&str, Going); 5] = [
    ("drained", |given, n| drain(given.record(n), None)),
    ("drained by a time", |given, n| drain(given.record(n), Some(at(NOW_S + 1800)))),
    ("interrupted", |given, n| {
        let by = at(NOW_S + 110);
        drain(given.record(n), Some(by));
        life(given.record(n), |life| life.interrupt_at = Some(by));
    }),
    ("in a block that ends", |given, n| reserve(given, n, ReservationKind::CapacityBlock)),
    ("in a reservation that ends", |given, n| reserve(given, n, ReservationKind::OnDemand)),
];

fn drain(record: &mut NodeRecord, by: Option<Time>) {
    *record = record.with_intent(Intent::Drain, by, at(NOW_S - 60)).unwrap();
}

fn life(record: &mut NodeRecord, change: impl FnOnce(&mut model::Life)) {
    if let NodeState::InUse(node) = &mut record.state {
        change(&mut node.life);
    }
}

/// Puts the node into a reservation that ends in 40 minutes. In a block, EC2 ends the node half an hour before.
fn reserve(given: &mut Given, n: u32, kind: ReservationKind) {
    let id = format!("cr-{n}");
    let (instance_type, zone, ends_at) = ("m7a.large".to_owned(), "zone-a".to_owned(), Some(at(NOW_S + 2400)));
    let known = CapacityReservation { kind, instance_type, zone, total: 2, free: 0, ends_at };
    Arc::make_mut(&mut given.seen.policy.catalogue).reservations.insert(id.clone(), known);
    given.seen.policy.launch.reservations.push(id.clone());
    given.seen.policy.launch.reservation_drain_s = 3600;
    life(given.record(n), |life| life.offering.reservation = Some(Reserved { id, kind }));
}

#[test]
fn a_copy_whose_node_stays_is_kept_before_one_whose_node_goes() {
    let mut cases = 0;
    for reconcile in STRATEGIES {
        for (way, goes) in GOES {
            // Each set of copies whose nodes go, but not all.
            for going in 0..7_u32 {
                let nodes = (0..5).fold(given(json!({})), |given, n| given.node(heard(n)));
                let mut given = nodes.copies(9, &[0, 1, 2], 2, reconcile);
                let does_go = |n: u32| going >> n & 1 == 1;
                (0..3).filter(|n| does_go(*n)).for_each(|n| goes(&mut given, n));
                let mut stays = (0..3).filter(|n| !does_go(*n));
                let keeps = if reconcile == Reconcile::KeepReplacement { stays.next_back() } else { stays.next() };
                assert_eq!(given.keeps(), keeps, "{reconcile:?}, {way}: {going:03b}");
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 3 * 5 * 7);
}

#[test]
fn of_copies_whose_nodes_all_go_the_one_stays_that_may_stay_longest() {
    for reconcile in STRATEGIES {
        let nodes = (0..5).fold(given(json!({})), |given, n| given.node(heard(n)));
        let mut given = nodes.copies(9, &[0, 1, 2], 2, reconcile);
        for (n, by_s) in [(0, Some(600)), (1, None), (2, Some(1200))] {
            drain(given.record(n), by_s.map(|s| at(NOW_S + s)));
        }
        assert_eq!(given.keeps(), Some(1), "a drain without a deadline waits for its jobs");
        drain(given.record(1), Some(at(NOW_S + 1100)));
        assert_eq!(given.keeps(), Some(2));
    }
}

struct Draw(Rng);

impl Draw {
    fn below(&self, n: u32) -> u32 {
        (self.0.between(0.0, f64::from(n)) as u32).min(n - 1)
    }

    fn is(&self, chance: f64) -> bool {
        self.0.between(0.0, 1.0) < chance
    }

    /// A random fleet with some silent nodes, and jobs with several copies on it.
    fn state(&self) -> Given {
        let nodes = 3 + self.below(6);
        let mut given = (0..nodes).fold(given(json!({})), |given, n| given.node(heard(n)));
        for n in 0..nodes {
            let n_at = n as usize;
            match self.below(12) {
                0 | 1 => contact(given.record(n), |c| c.lease_expires_at = at(NOW_S - 1 - i64::from(self.below(300)))),
                2 => {
                    contact(given.record(n), |c| c.lease_expires_at = at(NOW_S - 200));
                    let status = if self.is(0.5) { NodeStatus::Disconnected } else { NodeStatus::Down };
                    *given.record(n) = given.record(n).expire_lease(status, at(NOW_S - 100), "").unwrap();
                }
                3 => contact(given.record(n), |c| {
                    (c.status, c.syncing_since_at) =
                        (NodeStatus::Syncing, Some(at(NOW_S - i64::from(self.below(3000)))));
                }),
                4 => given.seen.instances[n_at].state = InstanceState::Terminated,
                5 => {
                    let by = at(NOW_S + i64::from(self.below(300)));
                    *given.record(n) = given.record(n).with_intent(Intent::Drain, Some(by), at(NOW_S - 60)).unwrap();
                }
                _ => {}
            }
        }
        if self.is(0.3) {
            let mut noted = IngestSummary::new(&ControlKey::Ingest);
            let before = at(NOW_S - i64::from(self.below(400)));
            (noted.entry.since_at, noted.entry.before_at) = (Some(at(NOW_S - 5)), Some(before));
            given.seen.control.put(noted);
        }
        for job in 0..1 + self.below(3) {
            let first = self.below(nodes);
            let on: Vec<u32> = (0..2 + self.below(2)).map(|k| (first + k) % nodes).collect();
            let back = 1 + self.below(2) as usize;
            given = given.copies(50 + job, &on, back, STRATEGIES[self.below(3) as usize]);
        }
        for alloc in &mut given.seen.allocs {
            match self.below(8) {
                0 => {
                    (alloc.client, alloc.awaiting) = (ClientStatus::Unknown, true);
                    alloc.unknown_since_at = Some(at(NOW_S - i64::from(self.below(800))));
                }
                1 if !alloc.awaiting => alloc.client = ClientStatus::Pending,
                2 => alloc.desired = Desired::Stop,
                _ => {}
            }
        }
        given
    }
}

#[test]
fn a_plan_decides_once_about_a_copy_and_only_on_nodes_that_it_believes_to_be_well() {
    let (mut decided, mut waited) = (0, 0);
    for seed in 0..2000 {
        let given = Draw(Rng::seeded(seed)).state();
        let planned = plan(&given.seen, at(NOW_S));
        let mut copies: Vec<AllocId> = Vec::new();
        let mut given_up: BTreeSet<NodeId> = BTreeSet::new();
        let mut resolved: Vec<AllocId> = Vec::new();
        for planned in &planned.actions {
            match &planned.action {
                Action::LoseAlloc(id, _)
                | Action::UnknownAlloc(id, _)
                | Action::StopAlloc(id, _)
                | Action::Drain(id, _) => copies.push(*id),
                Action::ResolveReconnect { keep, stop, .. } => resolved.extend(stop.iter().chain([keep])),
                Action::Disconnect(node_id)
                | Action::MarkDown(node_id)
                | Action::Clean { node_id, .. }
                | Action::ShutDown { node_id, .. } => {
                    given_up.insert(*node_id);
                }
                _ => {}
            }
        }
        copies.extend(&resolved);
        let once: BTreeSet<AllocId> = copies.iter().copied().collect();
        assert_eq!(once.len(), copies.len(), "seed {seed}: two decisions about one copy: {:#?}", planned.actions);
        for id in &resolved {
            let node_id = given.seen.alloc(*id).unwrap().node_id;
            let record = given.seen.node(node_id).unwrap();
            let is_well = record.is_heard(at(NOW_S)) && !given_up.contains(&node_id);
            assert!(is_well, "seed {seed}: {id} on {record:?}: {:#?}", planned.actions);
        }
        let is_back = |a: &&model::AllocSummary| a.awaiting && a.client != ClientStatus::Unknown;
        decided += usize::from(!resolved.is_empty());
        waited += usize::from(resolved.is_empty() && given.seen.allocs.iter().any(|a| is_back(&a)));
    }
    assert!(decided > 300 && waited > 300, "{decided} decided, {waited} waited");
}
