//! The brakes of this plan: an unusual share of the fleet waits before it is taken away.
//!
//! Guarantees: each decision of a brake is in the plan, together with the entry to store.
//! Does not: contain the rule of a brake; `model::brake` does.

use super::actions::{Action, Note, Plan};
use super::view::View;
use model::BrakeKind;
use model::action::EventPolicy;
use model::brake::{Brake, BrakeChange, Incident, Permit};
use model::events::Subject;
use model::functions::POLL_AND_SCALE;
use model::reason::Reason;

/// A brake as poll-and-scale sees it.
pub(super) fn of(view: &View<'_>, kind: BrakeKind) -> Brake<'static> {
    view.seen.control.brake_of(kind, POLL_AND_SCALE.name, view.now)
}

/// Decides what a brake lets go, and adds the decision to the plan together with the entry to store.
pub(super) fn decide(plan: &mut Plan, brake: &Brake<'_>, trouble: Incident) -> Permit {
    let decision = brake.decide(trouble);
    if decision.permit != Permit::All {
        plan.explained.limits(&decision.reason);
    }
    store(plan, decision.change, decision.reason, decision.news);
    decision.permit
}

/// Notes in the brake's entry that nothing is unusual any more.
pub(super) fn calm(plan: &mut Plan, brake: &Brake<'_>) {
    let change = brake.calm();
    let reason = Reason::TroubleOver { kind: change.kind };
    let is_news = change.entry.is_some();
    store(plan, change, reason, is_news);
}

fn store(plan: &mut Plan, change: BrakeChange, reason: Reason, is_news: bool) {
    if !change.is_empty() {
        let action = Action::HoldBack { subject: Subject::Cluster, note: Note::Brake(Box::new(change)) };
        plan.push(action, reason, EventPolicy::of_news(is_news));
    }
}
