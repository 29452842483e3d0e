//! The stage for capacity reservations that end: their nodes are drained in time.
//!
//! | reservation | its nodes |
//! | --- | --- |
//! | a capacity block, `launch.reservation_drain_s` before EC2 begins to terminate its instances | get no new work; what runs then is stopped |
//! | another kind, as long before its end | get no new work, and go when their jobs have ended: EC2 lets them run on, at the price on demand |
//! | over, cancelled, or no longer in the policy | as for another kind |
//!
//! Guarantees: while a reservation is not known, its nodes are not drained; a node that an operator holds is drained only if
//! EC2 terminates it.
//! Does not: count who uses a reservation (`demand` does).

use super::actions::{Action, FleetPlan};
use super::view::View;
use model::enums::ReservationKind;
use model::{CataloguePart, Intent, Life, NodeState, Reason, Reserved, Span, Time};

pub(super) fn plan(view: &mut View<'_>, plan: &mut FleetPlan) {
    let mut drained = Vec::new();
    for (record, life) in view.lives() {
        let is_up = matches!(record.state, NodeState::Assigned(_) | NodeState::InUse(_));
        if !is_up || view.decided.contains(&life.node_id) {
            continue;
        }
        let Some(ending) = drain_of(view, life) else { continue };
        let Some(reason) = why(view, life) else { continue };
        drained.push(life.node_id);
        plan.add(Action::DrainNode { node_id: life.node_id, by: ending.by }, reason);
    }
    drained.into_iter().for_each(|node_id| view.lose(node_id));
}

/// The end for which this node is to be drained now; `None` if it is drained already, or not yet.
pub(super) fn drain_of(view: &View<'_>, life: &Life) -> Option<EndingReservation> {
    let lead = Span::from_s(view.observed.policy.launch.reservation_drain_s);
    let ending = ending(view, life.offering.reservation.as_ref()?)?;
    (view.now >= ending.until - lead && !drains_already(life, ending.by)).then_some(ending)
}

/// That the reservation of this node ends; `None` if it has none, or one without an end.
pub(super) fn why(view: &View<'_>, life: &Life) -> Option<Reason> {
    let reservation = life.offering.reservation.as_ref()?;
    let EndingReservation { until, .. } = ending(view, reservation)?;
    Some(Reason::ReservationEnding { reservation: reservation.id.clone(), until })
}

pub(super) struct EndingReservation {
    pub(super) until: Time,
    /// When EC2 terminates the nodes; `None` if it does not.
    pub(super) by: Option<Time>,
}

/// The end of a reservation for its nodes; `None` if it has no end, or if nothing is known of it yet.
fn ending(view: &View<'_>, reservation: &Reserved) -> Option<EndingReservation> {
    let policy = &view.observed.policy;
    let over = Some(EndingReservation { until: view.now, by: None });
    if !policy.launch.reservations.contains(&reservation.id) {
        return over;
    }
    let Some(known) = policy.catalogue.reservations.get(&reservation.id) else {
        let is_read = policy.catalogue.wanted == policy.catalogue_wanted()
            && policy.catalogue.part(CataloguePart::Reservations).read_at.is_some();
        return if is_read { over } else { None };
    };
    let until = known.until()?;
    Some(EndingReservation { until, by: (known.kind == ReservationKind::CapacityBlock).then_some(until) })
}

fn drains_already(life: &Life, by: Option<Time>) -> bool {
    match by {
        Some(by) => life.intent == Intent::Drain && life.drain_by_at.is_some_and(|at| at <= by),
        None => life.intent != Intent::Run,
    }
}
