//! The decision of poll-and-scale: what to do about an observation, and why. Pure.
//!
//! Each stage is one file. The stages run in this order: whose silence is believed (`failure_detector`), what EC2 lists
//! (`instances`), which leases expired (`leases`), what follows for the allocs (`allocs`), which spot pools EC2 empties
//! (`interruptions`), which capacity reservations end (`reservations`), what the queue needs (`demand`), which unanswered
//! launches are repeated (`relaunch`), and which nodes may be shut down (`shutdown`).
//!
//! Guarantees: the same observation and time give the same plan; after a plan was carried out, the next plan is empty,
//! with the exceptions of `docs/rules.md#section-4`; every action has a reason.
//! Does not: read anything, or make ids. The acting writes check everything again.

mod actions;
mod allocs;
mod brakes;
mod demand;
mod failure_detector;
mod instances;
mod interruptions;
mod leases;
mod liveness;
mod needs;
mod relaunch;
mod reservations;
mod shutdown;
mod sizes;
mod suspicion;
mod view;

pub use actions::{Action, FleetPlan, Note, PlannedAction, ShutdownBasis};
pub(crate) use liveness::window_over;
pub(crate) use sizes::every_offering;

use model::{Reason, Time};
use runtime::observation::Observation;
use view::View;

/// Makes the plan. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> FleetPlan {
    let mut view = View::new(seen, now);
    let mut plan = FleetPlan::default();
    for row in &seen.quarantined.rows {
        let reason = Reason::RowInvalid { what: row.what.clone() };
        plan.add_quietly(Action::Warn(row.subject.clone()), reason);
    }
    failure_detector::plan(&mut view, &mut plan);
    instances::plan(&mut view, &mut plan);
    leases::plan(&mut view, &mut plan);
    allocs::plan(&mut view, &mut plan);
    interruptions::plan(&mut view, &mut plan);
    reservations::plan(&mut view, &mut plan);
    let mut needs = demand::plan(&view, &mut plan);
    relaunch::plan(&view, &mut plan, &mut needs);
    shutdown::plan(&view, &mut plan, &needs);
    plan
}

#[cfg(test)]
mod tests;
