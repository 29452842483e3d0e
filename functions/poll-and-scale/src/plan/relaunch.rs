//! The stage for launches whose answer was lost: the same call with the same token is repeated, if somebody needs the node.
//!
//! Guarantees: a call that nobody needs any more is not repeated. Its record waits for the instance that EC2 may have
//! launched, until `boot.timeout_s`; then the stage for instances abandons it (`docs/rules.md#R5`). The nodes of a batch are
//! one call: if one of them is needed, all are.
//! Does not: know whether the first call launched anything. EC2 answers a repeated token with the same instances.

use super::actions::{Action, FleetPlan, Note};
use super::needs::QueueNeeds;
use super::view::View;
use model::ids::Ulid;
use model::{Batch, Intent, Life, Limit, NodeId, Reason, Subject};
use std::collections::BTreeSet;

pub(super) fn plan(view: &View<'_>, plan: &mut FleetPlan, needs: &mut QueueNeeds) {
    let lives: Vec<&Life> = view.unanswered.iter().filter_map(|node_id| view.node(*node_id)?.life()).collect();
    let needed = needed(view, needs, &lives);
    let batch = |life: &Life| life.batch.as_ref().map(Batch::ulid);
    let batches: BTreeSet<Ulid> =
        lives.iter().filter(|l| needed.contains(&l.node_id)).filter_map(|l| batch(l)).collect();
    for life in &lives {
        let is_needed = needed.contains(&life.node_id) || batch(life).is_some_and(|ulid| batches.contains(&ulid));
        if !is_needed && life.intent == Intent::Run {
            // The node was counted as usable, but it will not come. Without this, an idle node could be shut down in its favour.
            needs.usable = needs.usable.saturating_sub(1);
        }
        match why_paused(view, life, is_needed) {
            Some(why) => {
                let action = Action::HoldBack { subject: Subject::Slot(life.node_id.slot()), note: Note::Nothing };
                plan.add_quietly(action, why);
            }
            None => {
                let waited = view.now.since(life.assigned_at);
                plan.add(Action::Relaunch(life.node_id), Reason::LaunchUnanswered { waited });
            }
        }
    }
}

/// The nodes of these lives that somebody needs: a job, a demand set, the minimum, or an operator who holds the node.
fn needed(view: &View<'_>, needs: &QueueNeeds, lives: &[&Life]) -> BTreeSet<NodeId> {
    let mut spare = needs.usable.saturating_sub(view.minimum());
    let mut is_needed = |life: &Life| {
        let node_id = life.node_id;
        if life.intent != Intent::Run {
            return life.intent == Intent::Hold;
        }
        if needs.more_may_come || needs.used.contains_key(&node_id) || needs.for_sets.contains_key(&node_id) {
            return true;
        }
        // If there are more nodes than the minimum, those of the highest slots are too many.
        let too_many = spare > 0;
        spare = spare.saturating_sub(1);
        !too_many
    };
    lives.iter().rev().filter(|life| is_needed(life)).map(|life| life.node_id).collect()
}

/// Why the call is not repeated now.
fn why_paused(view: &View<'_>, life: &Life, is_needed: bool) -> Option<Reason> {
    // If a node of the batch is gone, the repeated call could launch an instance that no record claims.
    let is_whole = life.batch.as_ref().is_none_or(|batch| batch.nodes().all(|node_id| view.node(node_id).is_some()));
    if !is_whole {
        return Some(Reason::BatchNotWhole {});
    }
    if !is_needed {
        return Some(Reason::NobodyNeedsIt {});
    }
    // A limit holds the call only if each of its ways has one: EC2 may use any of the others.
    let limits: Option<Vec<&Limit>> = life.ways().iter().map(|way| view.limit_on(way)).collect();
    let limit = limits.and_then(|limits| limits.first().map(ToString::to_string));
    let limit = limit.or_else(|| (view.observed.policy.nodes.max == 0).then(|| Reason::ClusterPaused {}.to_string()));
    limit.map(|limit| Reason::RelaunchPaused { limit })
}
