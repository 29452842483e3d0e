//! The stage for demand: from the queue to placements, reservations and launches
//! (`docs/rules.md#section-4`).
//!
//! Jobs are taken by the turns of their shares, then by priority, then by submission. A job goes to ready nodes with room (the fullest that
//! fits). Otherwise it reserves room on booting nodes, and otherwise it asks for new nodes.
//!
//! Guarantees: all members of a job are placed at once, on different nodes, or none; the first job that cannot
//! be placed reserves what it needs, and later jobs take only the rest, so that large jobs do not starve;
//! usable nodes are counted once; the caps count every record that is not cleaned.
//! Does not: shut anything down. Sources: Arvados #2881 (demand by the queue, with limits), Karpenter (bins on
//! existing nodes before new ones).

mod arrays;
mod bin;
mod bin_index;
mod bins;
mod caps;
mod counts;
mod eligible;
mod explain;
mod find_ways;
mod limits;
mod next;
mod packing;
mod prices;
mod sets;
mod turns;
mod want;
mod ways;

use super::actions::{Action, FleetPlan};
use super::liveness::{stuck_syncing, wants_copy};
use super::needs::QueueNeeds;
use super::view::View;
use model::{AllocId, JobId, JobState, JobSummary, NodeRecord, NodeStatus, Slot};

use eligible::Eligible;
use limits::WorkInUse;
use packing::{HeadOfLine, LimitMode, New, Packing};
use std::collections::BTreeSet;
use turns::Turns;
use want::{Possible, ServedQueue, Waits, Want};

pub(super) fn plan(view: &View<'_>, plan: &mut FleetPlan) -> QueueNeeds {
    let mut packing = Packing::new(view, LimitMode::Everything);
    let eligible = Eligible::new(view);
    let served = pack(view, &mut packing, &eligible);
    for (action, reason) in eligible.actions(view, &packing.sizes, &served).into_iter().chain(served.actions) {
        plan.add(action, reason);
    }
    eligible.explain(view, &mut plan.explained);
    // Launches beyond `launch.max_per_run` were counted and reserved too. The next runs make them.
    let mut slots = free_slots(view);
    slots.truncate(view.observed.policy.launch.max_per_run as usize);
    plan.next = next::list(view, &packing, &served.waiting);
    explain::waiting(view, &packing, &served.waiting, &slots, &mut plan.explained);
    (plan.wanted, plan.unready) = if packing.findings.is_delayed {
        // The nodes that a run without the pause would launch are wanted too.
        let mut without_pause = Packing::new(view, LimitMode::Caps);
        pack(view, &mut without_pause, &eligible);
        (without_pause.wanted(), without_pause.unready())
    } else {
        (packing.wanted(), packing.unready())
    };
    let needs = packing.needs();
    for (launch, slot) in packing.new.into_iter().zip(slots) {
        let New { offerings, job_id, is_member, .. } = launch;
        let action = Action::Launch { slot, offerings, job_id, is_member };
        plan.add(action, launch.reason);
    }
    needs
}

fn pack<'a>(view: &View<'a>, packing: &mut Packing<'_, 'a>, eligible: &Eligible<'a>) -> ServedQueue<'a> {
    packing.fill_sets();
    let served = serve(view, packing, eligible);
    // Jobs come before the minimum: otherwise new nodes for the minimum would take the room that is made for a job.
    if packing.findings.room.is_none() {
        packing.fill_minimum();
    }
    served
}

/// Serves the queue, the shares in their turns.
fn serve<'a>(view: &View<'a>, packing: &mut Packing<'_, 'a>, eligible: &Eligible<'a>) -> ServedQueue<'a> {
    let mut served = ServedQueue::default();
    let (mut queue, mut limits, mut possible) = (HeadOfLine::Served, WorkInUse::new(view), Possible::default());
    let mut turns = Turns::new(view, wants(view, eligible));
    while let Some(want) = turns.next() {
        let job = want.job();
        if let Some(reason) = possible.never(view, &packing.sizes, job) {
            // After a change of the policy, no size may fit a wanted copy. The copy then reserves nothing, and its job is not
            // rejected.
            match want {
                Want::Job(job) => served.actions.push((Action::Reject(job.job_id), reason)),
                Want::Copy { .. } => served.waiting.push((want, Waits::Because([reason].into()))),
            }
            continue;
        }
        // A job that waits for a limit reserves nothing: what is placed of its array or share uses the room.
        if let Err(reason) = limits.admit(&want) {
            served.waiting.push((want, Waits::Because([reason].into())));
            continue;
        }
        let (members, before) = (want.members(), packing.bins.len());
        turns.count(&job.needs, members);
        let found = match packing.find(job, members, queue) {
            Ok(found) => found,
            Err(why) => {
                queue = HeadOfLine::Blocked;
                served.waiting.push((want, Waits::Because(why)));
                continue;
            }
        };
        if let Err(reason) = limits.take(&want, packing.price_of(job, &found)) {
            packing.undo_launches(before);
            served.waiting.push((want, Waits::Because([reason].into())));
            continue;
        }
        let ready = packing.ready_of(&found);
        packing.take(job, &found);
        packing.findings.has_served = true;
        if ready.len() == members as usize {
            served.actions.extend(want.place(&ready));
        } else {
            served.waiting.push((want, Waits::For(found)));
        }
    }
    served
}

/// The queued jobs that may be placed and the wanted copies, in the order of the queue.
fn wants<'a>(view: &View<'a>, eligible: &Eligible<'a>) -> Vec<Want<'a>> {
    let with_unknown: BTreeSet<JobId> =
        view.observed.allocs.iter().filter(|a| wants_copy(a)).map(|a| a.alloc_id.job_id).collect();
    let mut wants = Vec::new();
    for job in &view.observed.jobs {
        match job.state {
            JobState::Queued if eligible.may_be_placed(job) => wants.push(Want::Job(job)),
            JobState::Placed if with_unknown.contains(&job.job_id) => {
                wants.extend(copies_wanted(view, job).map(|original| Want::Copy { job, original }));
            }
            _ => {}
        }
    }
    wants
}

/// The free slots, the lowest first. Slot 0 is a slot like any other.
fn free_slots(view: &View<'_>) -> Vec<Slot> {
    let is_free = |s: &Slot| !view.is_taken(*s) && !view.observed.quarantined.slots.contains(s);
    Slot::below(view.observed.policy.nodes.max).filter(is_free).collect()
}

/// The unknown allocs whose job wants a copy, and that have none yet. Jobs of several members get no
/// copies, and neither does a job with an alloc that cannot be read: it may be the copy.
fn copies_wanted<'v, 'a>(view: &'v View<'a>, job: &JobSummary) -> impl Iterator<Item = AllocId> + use<'v, 'a> {
    let may_have = job.needs.nodes == 1 && job.allocs.iter().all(|id| view.is_live_alloc(*id));
    let of_job = if may_have { view.allocs_of(job.job_id) } else { &[] };
    of_job
        .iter()
        .filter(|a| wants_copy(a) && !view.ending.contains(&a.alloc_id))
        // A node that is back will soon report the alloc: no copy is needed, unless the report never comes.
        .filter(|a| {
            let is_back = |r: &&NodeRecord| r.status() == Some(NodeStatus::Syncing) && !stuck_syncing(view, r);
            view.node(a.node_id).filter(is_back).is_none()
        })
        .filter(move |a| !of_job.iter().any(|o| model::counts_for(o, a.alloc_id)))
        .map(|a| a.alloc_id)
}
