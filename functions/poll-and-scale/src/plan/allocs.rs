//! The stage for allocs: what follows from the status of their nodes and the state of their jobs.
//!
//! Guarantees: a job waits for an unknown alloc for the window that the job sets, and at most two runs longer if the
//! node is syncing again; an alloc that its job no longer wants is told to stop; of several copies after a reconnect,
//! one stays, on a node that stays if there is one, and the choice is made only while the nodes of all of them are heard.
//! Does not: place copies (the demand stage does).
//! Rules: `docs/rules.md#section-6`. Source: Nomad PR 15068.

use super::actions::{Action, FleetPlan};
use super::liveness::{stuck_syncing, syncing_since, wants_copy, window_over};
use super::reservations;
use super::view::{PERIOD_S, View};
use model::{
    AllocId, AllocSummary, ClientStatus, Desired, Intent, JobId, JobState, JobSummary, NodeRecord, NodeStatus, Reason,
    Reconcile, Span, Time,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn plan(view: &mut View<'_>, plan: &mut FleetPlan) {
    let mut back: BTreeMap<(JobId, u32), Vec<&AllocSummary>> = BTreeMap::new();
    for alloc in &view.observed.allocs {
        if view.is_partially_read(alloc.node_id) || view.decided.contains(&alloc.node_id) {
            continue;
        }
        match one(view, alloc) {
            Some((action, reason)) => {
                if let Action::LoseAlloc(id, _) | Action::StopAlloc(id, _) | Action::Drain(id, _) = &action {
                    view.ending.insert(*id);
                }
                plan.add(action, reason);
            }
            None if alloc.awaiting && alloc.client != ClientStatus::Unknown && alloc.desired == Desired::Run => {
                back.entry((alloc.alloc_id.job_id, alloc.alloc_id.member)).or_default();
            }
            None => {}
        }
    }
    // A copy whose row cannot be read may run, and the node of that copy is not known. So the other copies are left alone.
    for id in &view.observed.quarantined.allocs {
        back.remove(&(id.job_id, id.member));
    }
    for alloc in &view.observed.allocs {
        let member = (alloc.alloc_id.job_id, alloc.alloc_id.member);
        let counts = alloc.desired == Desired::Run && alloc.client != ClientStatus::Unknown;
        if let (true, Some(copies)) = (counts, back.get_mut(&member)) {
            copies.push(alloc);
        }
    }
    // If one of the copies may soon be lost with its node, no other copy is told to stop before that is known.
    for copies in back.into_values().filter(|copies| copies.iter().all(|copy| can_stay(view, copy))) {
        resolve(view, plan, &copies);
    }
    without_rows(view, plan);
    not_on_record(view, plan);
    // A job that is placed but has no live alloc would be stuck for ever. Such a job can exist after the tables were
    // restored to different moments.
    let quarantined = &view.observed.quarantined.allocs;
    let of_quarantined: BTreeSet<JobId> = quarantined.iter().map(|id| id.job_id).collect();
    // An alloc whose row cannot be read may run, also if the job does not list it.
    let has_alloc =
        |job: &JobSummary| job.allocs.iter().any(|id| view.is_live_alloc(*id)) || of_quarantined.contains(&job.job_id);
    for job in &view.observed.jobs {
        if matches!(job.state, JobState::Placing | JobState::Placed | JobState::Regrouping) && !has_alloc(job) {
            plan.add(Action::Requeue(job.job_id), Reason::NoAllocLeft {});
        } else if is_cut_short(view, job) {
            plan.add(Action::Requeue(job.job_id), Reason::PlacingCutShort {});
        }
    }
}

/// Whether the run that places the members of this job in parts has ended too early. A run lasts less than a period. If one lasts
/// longer, its next write fails, because the requeue has changed the version of the job.
fn is_cut_short(view: &View<'_>, job: &JobSummary) -> bool {
    let placed_at = || view.allocs_of(job.job_id).iter().map(|alloc| alloc.placed_at).max();
    job.state == JobState::Placing && placed_at().is_some_and(|at| view.now.since(at) >= Span::from_s(PERIOD_S))
}

/// Takes off the records the allocs that only the record lists: they ended, they are live on another node, or their table was
/// restored to another moment. A record and its allocs change together, so no run causes this. Until it is corrected, the node
/// gets no work and is not shut down.
fn without_rows(view: &View<'_>, plan: &mut FleetPlan) {
    for (_, life) in view.lives().filter(|(_, life)| view.is_partially_read(life.node_id)) {
        let is_here = |id: &AllocId| view.observed.alloc(*id).is_some_and(|alloc| alloc.node_id == life.node_id);
        let is_known = |id: &AllocId| is_here(id) || view.observed.quarantined.allocs.contains(id);
        for id in life.allocs.iter().filter(|id| !is_known(id)) {
            plan.add(Action::LoseAlloc(*id, life.node_id), Reason::AllocWithoutRow {});
        }
    }
}

/// Puts the live allocs on the record of their node that it does not list. Mostly they were placed after this run had read the
/// record, and the action then finds them there. Otherwise the records were restored to another moment.
fn not_on_record(view: &View<'_>, plan: &mut FleetPlan) {
    for alloc in view.observed.allocs.iter().filter(|alloc| view.is_partially_read(alloc.node_id)) {
        let life = view.node(alloc.node_id).and_then(NodeRecord::life);
        if life.is_some_and(|life| !life.allocs.contains(&alloc.alloc_id)) {
            let reason = Reason::NotOnItsNode { node_id: alloc.node_id };
            plan.add(Action::ListAlloc(alloc.alloc_id, alloc.node_id), reason);
        }
    }
}

/// The time beyond its window that a job waits for an unknown alloc whose node heartbeats again.
const STRETCH: Span = Span::from_s(2 * PERIOD_S);

fn one(view: &View<'_>, alloc: &AllocSummary) -> Option<(Action, Reason)> {
    let (id, node_id, now) = (alloc.alloc_id, alloc.node_id, view.now);
    let lose = |reason: Reason| Some((Action::LoseAlloc(id, node_id), reason));
    // The state of a node is not known while its record is quarantined.
    let is_quarantined = view.observed.quarantined.slots.contains(&node_id.slot());
    let Some(record) = view.node(node_id) else {
        return if is_quarantined { None } else { lose(Reason::NodeGone { node_id }) };
    };
    match record.status() {
        // What runs on the node was reported, and is noted as soon as a row can be read or written again.
        Some(NodeStatus::Syncing) if record.has_untaken() => {}
        // The node heartbeats again and will soon report what runs on it. A window that ends meanwhile is
        // extended by two runs, not more.
        Some(NodeStatus::Syncing) if !stuck_syncing(view, record) && !window_over(alloc, now - STRETCH) => {}
        _ if window_over(alloc, now) => {
            return lose(Reason::UnknownTooLong { window_s: alloc.failure_policy.lost_after_s });
        }
        Some(status @ (NodeStatus::Disconnected | NodeStatus::Down)) => match alloc.client {
            // The process may still be running there, so a job that regroups waits for it.
            _ if alloc.desired == Desired::Stop && !regroups(view, alloc) => {
                return lose(Reason::SilentAndToldToStop { status });
            }
            _ if alloc.has_begun() && alloc.failure_policy.lost_after_s > 0 => {
                let reason = Reason::SilentAndWaitedFor { status, window_s: alloc.failure_policy.lost_after_s };
                return Some((Action::UnknownAlloc(id, node_id), reason));
            }
            // The alloc stays unknown. If its job no longer wants the alloc, the code below tells it to stop. The node
            // may never get that order. In that case the next run loses the alloc, and the job does not wait for the
            // node.
            ClientStatus::Unknown => {}
            _ => return lose(Reason::SilentAndNotWaitedFor { status }),
        },
        // The report never came. If the job wants a copy, there is time to place one before the alloc is lost.
        Some(NodeStatus::Syncing) if wants_copy(alloc) && syncing_since(view, record, STRETCH).is_none() => {}
        Some(NodeStatus::Syncing) => return lose(Reason::NeverReported {}),
        Some(NodeStatus::Ready) | None => {}
    }
    if alloc.desired == Desired::Stop {
        return None;
    }
    if let Some(reason) = unwanted(view, alloc) {
        return Some((Action::StopAlloc(id, node_id), reason));
    }
    drain_ends(view, record, alloc).map(|reason| (Action::Drain(id, node_id), reason))
}

/// Whether the job of the alloc regroups: it starts again only after all its allocs that were told to stop have
/// ended.
fn regroups(view: &View<'_>, alloc: &AllocSummary) -> bool {
    view.job(alloc.alloc_id.job_id).is_some_and(|job| job.state == JobState::Regrouping)
}

/// Why the job no longer wants the alloc; `None` if the job still wants it. The queue index may be behind, so the
/// acting write reads the job again.
fn unwanted(view: &View<'_>, alloc: &AllocSummary) -> Option<Reason> {
    match view.job(alloc.alloc_id.job_id) {
        // The state of a quarantined job is not known.
        None if view.observed.quarantined.jobs.contains(&alloc.alloc_id.job_id) => None,
        None => Some(Reason::JobEnded {}),
        Some(job) if !matches!(job.state, JobState::Placing | JobState::Placed) => {
            Some(Reason::JobIs { state: job.state })
        }
        Some(job) if job.done.contains(&alloc.alloc_id.member) => Some(Reason::MemberDone {}),
        Some(job) if !job.allocs.contains(&alloc.alloc_id) => Some(Reason::JobListsOthers {}),
        Some(_) => None,
    }
}

/// Whether this is the last run that leaves the alloc the time that its stop takes before the drain's deadline.
fn drain_ends(view: &View<'_>, record: &NodeRecord, alloc: &AllocSummary) -> Option<Reason> {
    let life = record.life().filter(|l| l.intent == Intent::Drain)?;
    let by = life.drain_by_at?;
    let is_last = view.now + Span::from_s(PERIOD_S) >= by - alloc.failure_policy.stop_time();
    let of_reservation = || reservations::why(view, life).filter(|_| life.interrupt_at.is_some());
    is_last.then(|| of_reservation().unwrap_or(Reason::DrainEnds { by }))
}

/// Whether the alloc certainly goes on: its node is heard and its instance runs, and this plan decides nothing else about the
/// node or the alloc.
fn can_stay(view: &View<'_>, alloc: &AllocSummary) -> bool {
    let node_id = alloc.node_id;
    view.node(node_id)
        .is_some_and(|record| record.is_heard(view.now) && record.life().is_some_and(|life| !view.is_leaving(life)))
        && !view.decided.contains(&node_id)
        && !view.is_partially_read(node_id)
        && !view.ending.contains(&alloc.alloc_id)
}

/// Until when the node of this alloc stays. A drain without a deadline ends later than any that has one, and before never.
fn stays_until(view: &View<'_>, alloc: &AllocSummary) -> Time {
    let Some(life) = view.node(alloc.node_id).and_then(NodeRecord::life) else { return view.now };
    let reserved = reservations::drain_of(view, life);
    let goes = life.intent == Intent::Drain || life.interrupt_at.is_some() || reserved.is_some();
    let by = [life.drain_by_at, life.interrupt_at, reserved.and_then(|drain| drain.by)].into_iter().flatten().min();
    if goes { by.unwrap_or(WHEN_EMPTY) } else { NEVER }
}

/// Later than every deadline of a drain.
const WHEN_EMPTY: Time = Time::from_ms(i64::MAX - 1);
const NEVER: Time = Time::from_ms(i64::MAX);

/// Keeps one of the copies that run: one whose node stays before one whose node goes. Of several, the job's `reconcile` setting
/// decides which.
fn resolve(view: &View<'_>, plan: &mut FleetPlan, copies: &[&AllocSummary]) {
    let Some(first) = copies.first() else { return };
    let strategy = first.failure_policy.reconcile;
    let by_strategy = |a: &AllocSummary| {
        // A pending copy has not started, so it comes last.
        let started = a.started_at.unwrap_or(Time::from_ms(i64::MAX));
        let copy = a.alloc_id.copy;
        match strategy {
            Reconcile::Best => (started, copy),
            Reconcile::KeepOriginal => (Time::from_ms(0), copy),
            Reconcile::KeepReplacement => (Time::from_ms(0), u32::MAX - copy),
        }
    };
    let key = |a: &&&AllocSummary| (Reverse(stays_until(view, a)), by_strategy(a));
    let Some(keep) = copies.iter().min_by_key(key) else { return };
    let stop: Vec<AllocId> = copies.iter().map(|c| c.alloc_id).filter(|id| *id != keep.alloc_id).collect();
    let on = copies.iter().map(|c| c.node_id).collect();
    let is_by_strategy = copies.iter().map(|c| by_strategy(c)).min() == Some(by_strategy(keep));
    let (keep, copies) = (keep.alloc_id, copies.len());
    let reason = if stop.is_empty() {
        Reason::BackAlone {}
    } else if is_by_strategy {
        Reason::BackWithCopies { keep, copies, strategy }
    } else {
        Reason::BackWithCopiesThatGo { keep, copies }
    };
    plan.add(Action::ResolveReconnect { keep, stop, on }, reason);
}
