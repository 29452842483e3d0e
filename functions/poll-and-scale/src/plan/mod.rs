//! The decision of poll-and-scale: what to do about an observation, and why. Pure.
//!
//! Each stage is one file. The stages run in this order: whose silence is believed (`belief`), what EC2 lists
//! (`instances`), which leases expired (`leases`), what follows for the allocs (`allocs`), what the queue needs
//! (`demand`), which launches without an answer are repeated for it (`relaunch`), and which nodes may be shut down
//! (`shutdown`). The stages share the actions (`actions`), the indexed
//! observation (`view`) and the brakes (`brakes`).
//!
//! Guarantees: the same observation and time give the same plan; after a plan was carried out, the next plan is empty,
//! with the exceptions of `docs/rules.md#section-4`; every action has a reason.
//! Does not: read anything, or make ids. The acting writes check everything again.

mod actions;
mod allocs;
mod belief;
mod brakes;
mod demand;
mod instances;
mod leases;
mod relaunch;
mod shutdown;
mod sizes;
mod view;

pub use actions::{Action, Because, Note};
pub(crate) use leases::window_over;

use model::action::Telling;
use model::functions::POLL_AND_SCALE;
use model::reason::Reason;
use model::time::Time;
use runtime::observation::Observation;
use runtime::watchdog;
use view::View;

/// The plan of one run.
pub type Plan = model::action::Plan<Action>;
/// One action and its reason.
pub type Planned = model::action::Planned<Action>;

/// Makes the plan. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> Plan {
    let mut view = View::new(seen, now);
    let mut plan = Plan::default();
    for row in &seen.aside.rows {
        let reason = Reason::RowUnsound { what: row.what.clone() };
        plan.explained.rows.push((row.subject.clone(), reason.clone()));
        plan.tell(Action::Warn(row.subject.clone()), reason, Telling::Quiet);
    }
    let in_use = seen.nodes.iter().filter(|n| n.status().is_some()).count();
    for (subject, reason) in watchdog::overdue(&seen.control, &seen.policy, in_use, POLL_AND_SCALE, now) {
        plan.tell(Action::Warn(subject), reason, Telling::Once(watchdog::ONCE));
    }
    belief::plan(&mut view, &mut plan);
    instances::plan(&mut view, &mut plan);
    leases::plan(&mut view, &mut plan);
    allocs::plan(&mut view, &mut plan);
    let mut needs = demand::plan(&view, &mut plan);
    relaunch::plan(&view, &mut plan, &mut needs);
    shutdown::plan(&view, &mut plan, &needs);
    plan
}

#[cfg(test)]
mod tests;
