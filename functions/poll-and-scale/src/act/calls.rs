//! Which actions share a call, and in which order the calls are made.
//!
//! Guarantees: launches of the same offerings share calls, unless the user data holds the token of one node; the members of
//! one job are a call of their own, which launches all of them or none; the repeated launches of a batch are one call, for
//! all its nodes without an instance; the bindings of one launch are one call too.
//! Does not: make a call.

use super::acting::Acting;
use crate::plan::{Action, FleetPlan, PlannedAction};
use model::ids::Ulid;
use model::{JobId, Offering};
use runtime::run::{ActionCall, CallStep};
use std::collections::BTreeMap;

/// What the launches of one call have in common.
#[derive(PartialEq)]
enum Common<'p> {
    Offerings(&'p [Offering]),
    /// The members of one job. Their call launches all of them or none, so no other node is in it.
    Members(JobId, &'p [Offering]),
    Batch(Ulid),
}

/// How many calls run at the same time.
const AT_ONCE: usize = 8;

/// Each action is a call of its own, but for the bindings of one launch, all terminations, and the launches. The launches wait
/// for each other, and no other action should wait for them.
pub(super) fn steps<'p>(acting: &Acting<'_>, plan: &'p FleetPlan) -> Vec<CallStep<'p, Action>> {
    let (mut calls, mut terminate, mut launches) = (Vec::new(), ActionCall::new(), ActionCall::new());
    let mut bound: BTreeMap<Ulid, ActionCall<'p, Action>> = BTreeMap::new();
    for numbered in plan.actions.iter().enumerate() {
        match &numbered.1.action {
            Action::Launch { .. } | Action::Relaunch(_) => launches.push(numbered),
            Action::Terminate { .. } => terminate.push(numbered),
            Action::BindInstance { node_id, .. } => bound.entry(node_id.ulid()).or_default().push(numbered),
            _ => calls.push(vec![numbered]),
        }
    }
    calls.extend(bound.into_values());
    let launches = of_launches(acting, launches);
    vec![CallStep::new(calls, AT_ONCE), CallStep::new(vec![terminate], 1), CallStep::new(launches, AT_ONCE)]
}

/// The launches of each call, in the plan's order.
fn of_launches<'p>(acting: &Acting<'_>, launches: ActionCall<'p, Action>) -> Vec<ActionCall<'p, Action>> {
    let mut calls: Vec<ActionCall<'p, Action>> = Vec::new();
    let most = acting.run.observed.policy.launch.max_per_call;
    // The last call of each kind.
    let mut last: Vec<(Common<'p>, usize)> = Vec::new();
    for (n, planned) in launches {
        let Some(common) = common(acting, planned) else {
            calls.push(vec![(n, planned)]);
            continue;
        };
        let known = last.iter_mut().find(|(of, _)| *of == common);
        match known {
            Some((of, at)) => {
                match calls.get_mut(*at).filter(|call| matches!(of, Common::Batch(_)) || call.len() < most) {
                    Some(call) => call.push((n, planned)),
                    None => {
                        *at = calls.len();
                        calls.push(vec![(n, planned)]);
                    }
                }
            }
            None => {
                last.push((common, calls.len()));
                calls.push(vec![(n, planned)]);
            }
        }
    }
    calls
}

fn common<'p>(acting: &Acting<'_>, planned: &'p PlannedAction) -> Option<Common<'p>> {
    match &planned.action {
        // With a key, the user data holds the token of one node, so each node needs a call of its own.
        Action::Launch { offerings, job_id: Some(job_id), is_member: true, .. } if acting.settings.key.is_none() => {
            Some(Common::Members(*job_id, offerings))
        }
        Action::Launch { offerings, .. } if acting.settings.key.is_none() => Some(Common::Offerings(offerings)),
        Action::Relaunch(node_id) => {
            let record = acting.record(*node_id).ok()?;
            record.life()?.batch.as_ref().map(|batch| Common::Batch(batch.ulid()))
        }
        _ => None,
    }
}
