//! Which actions share a call, and in which order the calls are made.
//!
//! Guarantees: launches of the same offerings share calls, unless the user data holds the token of one node; the members of
//! one job are a call of their own, which launches all of them or none; the repeated launches of a batch are one call, for
//! all its nodes without an instance; the bindings of one launch are one call too.
//! Does not: make a call.

use super::acting::Acting;
use crate::plan::{Action, Plan, Planned};
use model::Offering;
use model::ids::{JobId, Ulid};
use runtime::run::{Call, each_alone};
use std::collections::BTreeMap;

/// What the launches of one call have in common.
#[derive(PartialEq)]
enum Common<'p> {
    Offerings(&'p [Offering]),
    /// The members of one job. Their call launches all of them or none, so no other node is in it.
    Members(JobId, &'p [Offering]),
    Batch(Ulid),
}

/// The calls of a plan, in the order in which they are made.
pub(super) struct Calls<'p> {
    /// Each action alone, but the bindings of one launch together.
    pub(super) alone: Vec<Call<'p, Action>>,
    /// All terminations: one call.
    pub(super) terminate: Call<'p, Action>,
    /// The launches. They wait for each other, and no other action should wait for them.
    pub(super) launches: Vec<Call<'p, Action>>,
}

impl<'p> Calls<'p> {
    pub(super) fn of(acting: &Acting<'_>, plan: &'p Plan) -> Self {
        let (mut alone, mut terminate, mut launches) = (Vec::new(), Vec::new(), Vec::new());
        let mut bound: BTreeMap<Ulid, Call<'p, Action>> = BTreeMap::new();
        for numbered in plan.actions.iter().enumerate() {
            match &numbered.1.action {
                Action::Launch { .. } | Action::Relaunch(_) => launches.push(numbered),
                Action::Terminate { .. } => terminate.push(numbered),
                Action::BindInstance { node_id, .. } => bound.entry(node_id.ulid()).or_default().push(numbered),
                _ => alone.push(numbered),
            }
        }
        let alone = each_alone(alone).into_iter().chain(bound.into_values()).collect();
        Self { alone, terminate, launches: of_launches(acting, launches) }
    }
}

/// The launches of each call, in the plan's order.
fn of_launches<'p>(acting: &Acting<'_>, launches: Call<'p, Action>) -> Vec<Call<'p, Action>> {
    let mut calls: Vec<Call<'p, Action>> = Vec::new();
    let most = acting.run.seen.policy.launch.max_per_call;
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

fn common<'p>(acting: &Acting<'_>, planned: &'p Planned) -> Option<Common<'p>> {
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
