//! The decision of poll-and-scale: what the observation calls for, and why. Pure.
//!
//! One file a stage, in the order their actions are listed: what EC2 says of the instances
//! (`instances`), what silence says of the nodes (`leases`), what follows for the allocs (`allocs`),
//! what the queue wants (`demand`), and which nodes may be shut down (`shutdown`). Below the stages
//! stand the actions (`actions`), the arranged observation (`view`) and the brakes (`brakes`).
//!
//! Guarantees: the same observation and time give the same plan; a plan made again after it was
//! carried out is empty, but for clocks that go on; every action has a reason.
//! Does not: read anything, or make ids; the acting writes check everything again.

mod actions;
mod allocs;
mod brakes;
mod demand;
mod instances;
mod leases;
mod shutdown;
mod sizes;
mod view;

pub use actions::{Action, Because, Note};
pub(crate) use leases::window_over;

use model::time::Time;
use runtime::observation::Observation;
use view::View;

/// What one run decided.
pub type Plan = model::action::Plan<Action>;
/// One action and its reason.
pub type Planned = model::action::Planned<Action>;

/// Decides. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> Plan {
    let mut view = View::new(seen, now);
    let mut plan = Plan::default();
    instances::plan(&mut view, &mut plan);
    leases::plan(&mut view, &mut plan);
    allocs::plan(&mut view, &mut plan);
    let needs = demand::plan(&view, &mut plan);
    shutdown::plan(&view, &mut plan, &needs);
    plan
}

#[cfg(test)]
mod tests;
