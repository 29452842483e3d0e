//! Which launches are made with one call.
//!
//! Guarantees: launches of the same offerings share calls if the user data holds nothing of one node; the repeated
//! launches of one batch are one call, for all nodes of the batch that have no instance.
//! Does not: make a call.

use super::acting::Acting;
use super::launch::{Outcomes, Told};
use crate::plan::{Action, Planned};
use async_trait::async_trait;
use model::Offering;
use model::ids::Ulid;
use runtime::answer::ActError;
use runtime::run::{Numbered, PerformTogether};

/// What the launches of one call have in common.
#[derive(PartialEq)]
enum Common<'p> {
    Offerings(&'p [Offering]),
    Batch(Ulid),
}

/// The launches of each call, in the plan's order.
pub(super) fn calls<'p>(acting: &Acting<'_>, launches: Vec<Numbered<'p, Action>>) -> Vec<Vec<Numbered<'p, Action>>> {
    let mut calls: Vec<Vec<Numbered<'p, Action>>> = Vec::new();
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
        // A token in the user data belongs to one node.
        Action::Launch { offerings, .. } if acting.settings.key.is_none() => Some(Common::Offerings(offerings)),
        Action::Relaunch(node_id) => {
            let record = acting.record(*node_id).ok()?;
            record.life()?.batch.as_ref().map(|batch| Common::Batch(batch.ulid()))
        }
        _ => None,
    }
}

#[async_trait]
impl PerformTogether<Action> for Acting<'_> {
    async fn perform_together(&self, call: &[&Planned]) -> Vec<Told> {
        let mut wanted = Vec::new();
        let mut repeated = Vec::new();
        let mut offerings: &[Offering] = &[];
        let mut slots = Vec::new();
        for planned in call {
            match &planned.action {
                Action::Launch { slot, offerings: of, .. } => {
                    offerings = of;
                    wanted.push((*slot, planned.reason.to_string()));
                    slots.push(Some(*slot));
                }
                Action::Relaunch(node_id) => {
                    repeated.push(*node_id);
                    slots.push(Some(node_id.slot()));
                }
                _ => slots.push(None),
            }
        }
        let mut outcomes = Outcomes::new();
        if !wanted.is_empty() {
            outcomes.extend(self.launch(&wanted, offerings).await);
        }
        if !repeated.is_empty() {
            outcomes.extend(self.relaunch(&repeated).await);
        }
        let told = |slot: Option<_>| slot.and_then(|slot| outcomes.remove(&slot));
        slots.into_iter().map(told).map(|t| t.unwrap_or_else(|| ActError::CONFLICT.outcome())).collect()
    }
}
