//! The first stage: which silence of nodes this run believes.
//!
//! A node is silent when its lease is over. That can be the node's fault or heartbeat-ingest's fault. Only another
//! heartbeat tells the two apart: if heartbeat-ingest accepted one after the silent node should have called, then it
//! worked, and the node did not call.
//!
//! | silent | this run |
//! | --- | --- |
//! | all nodes that were heard within the length of a lease, be it one | only suspects them for `heartbeat.blackout_s`, then believes the silence of a share of the rest in each run |
//! | a node, and no heartbeat was accepted since it should have called | only suspects it |
//! | more than `heartbeat.brake_fraction` and `heartbeat.brake_min` of these nodes | only suspects them for `heartbeat.brake_hold_s` |
//! | any other node | believes it |
//!
//! Guarantees: the silence is judged over the length of a lease and not within one run, because the leases of a fleet
//! end at different times after the same outage. Every later stage counts a suspected node as there: none is disconnected,
//! shut down (except at a drain's deadline), cleaned or replaced, and none gets new work.
//! The only node of a fleet has no other witness than itself, so its silence is believed after `heartbeat.blackout_s`.
//! A node whose instance EC2 lists as stopping, stopped, shutting down or terminated is not judged: its silence has a
//! cause, and is believed.
//! Does not: change the status of a node; the `leases` stage does.
//! Sources: Nomad PR 15068 (mass disconnects), and its rule that a gap of the control plane counts against no node.

use super::actions::{Action, FleetPlan, Note};
use super::brakes;
use super::suspicion::Suspicion;
use super::view::View;
use model::brake::{Incident, Permit, Threshold};
use model::{BrakeKind, Contact, ControlKey, Life, NodeId, NodeStatus, Reason, Span, Subject, Time};
use std::collections::BTreeSet;

/// If a record shows a heartbeat this long after the last note of heartbeat-ingest, then heartbeat-ingest no longer writes its
/// notes, and only the records count.
const UNKEPT_NOTE: Span = Span::from_s(120);

/// A silent node that is still `syncing` or `ready`.
struct SilentNode<'a> {
    node_id: NodeId,
    contact: &'a Contact,
}

/// The nodes whose lease is valid or ended at most one lease length ago, and the silent nodes that are still `syncing`
/// or `ready`.
#[derive(Default)]
struct HeardFleet<'a> {
    /// How many of them there are.
    nodes: usize,
    /// How many of them registered before the brake began to hold. Later ones would make the share of silent nodes look
    /// smaller.
    earlier: usize,
    /// How many of them are silent, also those that are `disconnected` or `down` already.
    fell_silent: usize,
    /// The silent nodes that are still `syncing` or `ready`, the longest silent first.
    open: Vec<SilentNode<'a>>,
    /// The silent nodes whose instances EC2 lists as not running.
    explained: BTreeSet<NodeId>,
    /// When the last heartbeat of the fleet arrived.
    pinged_at: Option<Time>,
    /// When the last lease of the fleet was given, computed with the length that leases have now.
    leased_at: Option<Time>,
}

impl HeardFleet<'_> {
    const fn is_all_silent(&self) -> bool {
        self.fell_silent == self.nodes
    }
}

pub(super) fn plan(view: &mut View<'_>, plan: &mut FleetPlan) {
    let fleet = fleet(view);
    let suspicion = Suspicion {
        silent: fleet.explained.clone(),
        suspected: BTreeSet::new(),
        has_witness: fleet.nodes > 0,
        proven_at: proven_at(view, &fleet),
    };
    view.suspicion = if fleet.open.is_empty() {
        brakes::decide(plan, &brakes::of(view, BrakeKind::Leases), None);
        suspicion
    } else {
        judge(view, plan, &fleet, suspicion)
    };
}

fn fleet<'a>(view: &View<'a>) -> HeardFleet<'a> {
    let policy = &view.observed.policy.heartbeat;
    let contacts: Vec<(&Life, &Contact)> = view
        .lives()
        .filter_map(|(record, life)| Some((life, record.contact().filter(|_| record.status().is_some())?)))
        .collect();
    let lease = policy.lease(contacts.len() as u64);
    let began_at = brakes::of(view, BrakeKind::Leases).began_at();
    let mut fleet = HeardFleet::default();
    for (life, contact) in contacts {
        let node_id = life.node_id;
        if view.is_leaving(life) {
            if contact.lease_expires_at < view.now {
                fleet.explained.insert(node_id);
            }
            continue;
        }
        fleet.pinged_at = fleet.pinged_at.max(Some(contact.last_ping_at));
        fleet.leased_at = fleet.leased_at.max(Some((contact.lease_expires_at - lease).min(view.now)));
        let earlier = usize::from(contact.first_ping_at <= began_at);
        let silent = view.now.since(contact.lease_expires_at);
        let is_open = matches!(contact.status, NodeStatus::Syncing | NodeStatus::Ready);
        if silent > Span::ZERO && (is_open || silent <= lease) {
            fleet.fell_silent += 1;
            fleet.nodes += 1;
            fleet.earlier += earlier;
            fleet.open.extend(is_open.then_some(SilentNode { node_id, contact }));
        } else if silent <= Span::ZERO {
            fleet.nodes += 1;
            fleet.earlier += earlier;
        }
    }
    fleet.open.sort_by_key(|s| (s.contact.lease_expires_at, s.node_id));
    fleet
}

/// The last time for which it is shown that heartbeat-ingest worked. It notes accepted heartbeats in the control table. The
/// note before the last one counts: at the first accepted heartbeat after an outage, other nodes may not have had the time
/// to call again. So the first note of a cluster proves nothing.
fn proven_at(view: &View<'_>, fleet: &HeardFleet<'_>) -> Option<Time> {
    let control = &view.observed.control;
    let noted = control.ingest();
    let Some(noted_at) = noted.since_at else {
        // If the note cannot be read, only the records count. There is no note in a state that a person wrote for
        // `plan --state`. The leases are then proof enough.
        let is_unreadable = control.unreadable.iter().any(|entry| entry.key == ControlKey::Ingest.to_string());
        return if is_unreadable { fleet.pinged_at } else { fleet.pinged_at.max(fleet.leased_at) };
    };
    let is_kept = fleet.pinged_at.is_none_or(|at| at.since(noted_at) < UNKEPT_NOTE);
    if is_kept { noted.before_at } else { fleet.pinged_at }
}

/// Decides about the nodes whose status does not say yet that they are silent.
fn judge(view: &View<'_>, plan: &mut FleetPlan, fleet: &HeardFleet<'_>, mut suspicion: Suspicion) -> Suspicion {
    let policy = &view.observed.policy.heartbeat;
    let all = fleet.is_all_silent();
    let threshold = Threshold { number: policy.brake_min.into(), share: policy.brake_fraction };
    let brake = brakes::of(view, BrakeKind::Leases);
    let many = brake.is_unusual(fleet.fell_silent, fleet.earlier, threshold);
    let ids = |open: &[SilentNode<'_>]| open.iter().map(|s| s.node_id).collect::<BTreeSet<_>>();
    let permit = if all || many { braked(view, plan, fleet) } else { brakes::decide(plan, &brake, None) };
    if let Permit::Only(_) = permit {
        let is_released = |s: &&SilentNode<'_>| permit.frees(&s.node_id.to_string());
        let (released, held): (Vec<_>, Vec<_>) = fleet.open.iter().partition(is_released);
        suspicion.silent.extend(released.iter().map(|s| s.node_id));
        suspicion.suspected = held.iter().map(|s| s.node_id).collect();
    } else if all {
        let most = (policy.brake_fraction * fleet.open.len() as f64).ceil().max(1.0) as usize;
        let (now, later) = fleet.open.split_at(most.min(fleet.open.len()));
        suspicion.silent.extend(ids(now));
        suspicion.suspected = ids(later);
    } else {
        // The node should have called at the latest when its grace began.
        let grace = Span::from_s(policy.grace_s);
        let could_call = |s: &&SilentNode<'_>| suspicion.could_call_after(s.contact.lease_expires_at - grace);
        let (proven, unproven): (Vec<_>, Vec<_>) = fleet.open.iter().partition(could_call);
        suspicion.silent.extend(proven.iter().map(|s| s.node_id));
        suspicion.suspected = unproven.iter().map(|s| s.node_id).collect();
        if !unproven.is_empty() {
            let why = Reason::IngestUnproven { nodes: unproven.len() };
            plan.explained.limits(&why);
            plan.add_quietly(Action::HoldBack { subject: Subject::Cluster, note: Note::Nothing }, why);
        }
    }
    suspicion
}

fn braked(view: &View<'_>, plan: &mut FleetPlan, fleet: &HeardFleet<'_>) -> Permit {
    let policy = &view.observed.policy.heartbeat;
    let (hold_s, not_before, why) = if fleet.is_all_silent() {
        // This outage began at the last heartbeat of the fleet or later. An older entry of the brake is about an outage that
        // has ended, or about a part of the fleet.
        (policy.blackout_s, fleet.pinged_at, Reason::AllSilent { nodes: fleet.nodes })
    } else {
        (policy.brake_hold_s, None, Reason::ManyExpired { expired: fleet.fell_silent, leases: fleet.earlier })
    };
    let hold = Some(Span::from_s(hold_s));
    let ids = fleet.open.iter().map(|s| s.node_id.to_string()).collect();
    brakes::decide(plan, &brakes::of(view, BrakeKind::Leases), Some(Incident { hold, ids, not_before, why }))
}
