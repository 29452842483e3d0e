//! The brakes of this plan: an unusual share of the fleet waits before it is taken away.
//!
//! Guarantees: each decision of a brake is in the plan, together with the entry to store.
//! Does not: contain the rule of a brake; `model::brake` does.

use super::Plan;
use super::actions::{Action, Note};
use super::view::View;
use model::action::Telling;
use model::brake::{Hold, Trouble};
use model::events::Subject;

/// Decides whether a brake holds, and adds the decision to the plan together with the entry to store.
pub(super) fn decide(view: &View<'_>, plan: &mut Plan, trouble: Trouble) -> Hold {
    let (control, kind) = (&view.seen.control, trouble.kind);
    let decision = trouble.decide(&control.brake(kind), &control.release(kind), view.now);
    if decision.hold == Hold::Held {
        plan.explained.limits(&decision.reason);
    }
    if let Some(entry) = decision.entry {
        let action = Action::HoldBack { subject: Subject::Cluster, note: Note::Brake(kind, entry) };
        plan.tell(action, decision.reason, Telling::of_news(decision.news));
    }
    decision.hold
}
