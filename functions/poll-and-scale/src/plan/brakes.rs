//! The brakes of this plan: an unusual share of the fleet waits before it is taken away.
//!
//! Guarantees: each decision of a brake is in the plan, together with the entry to store.
//! Does not: contain the rule of a brake; `model::brake` does.

use super::actions::{Action, FleetPlan, Note};
use super::view::View;
use model::brake::{Brake, Incident, Permit};
use model::functions::POLL_AND_SCALE;
use model::{BrakeKind, EventPolicy, Subject};

/// A brake as poll-and-scale sees it.
pub(super) fn of(view: &View<'_>, kind: BrakeKind) -> Brake<'static> {
    view.observed.control.brake_of(kind, POLL_AND_SCALE.name, view.now)
}

/// Decides what a brake lets go, and adds the decision to the plan together with the entry to store. Without a trouble, the
/// stored entry says that nothing is held.
pub(super) fn decide(plan: &mut FleetPlan, brake: &Brake<'_>, trouble: Option<Incident>) -> Permit {
    let decision = brake.judge(trouble);
    if decision.permit != Permit::All {
        plan.explained.limits(&decision.reason);
    }
    if !decision.change.is_empty() {
        let action = Action::HoldBack { subject: Subject::Cluster, note: Note::Brake(Box::new(decision.change)) };
        plan.push(action, decision.reason, EventPolicy::of_news(decision.news));
    }
    decision.permit
}
