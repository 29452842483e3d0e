//! Why a demand of the queue is not placed in this run.
//!
//! Guarantees: every job that waits gets at least one reason.
//! Does not: decide; the packing did.

use super::super::view::View;
use super::bin::At;
use super::packing::Packing;
use super::want::{Waits, Want};
use model::{Explanation, JobState, Reason, Slot};

/// Notes why each of these demands waits. `slots` are the slots of the launches of this run, in their order.
pub(super) fn waiting(
    view: &View<'_>,
    packing: &Packing<'_, '_>,
    waiting: &[(Want<'_>, Waits)],
    slots: &[Slot],
    explained: &mut Explanation,
) {
    for limit in view.observed.control.limits(view.now) {
        explained.limits(&limit.reason(view.now));
    }
    if view.observed.queue.part.is_some() {
        let (read, least) = (view.observed.queue.read, view.observed.queue.least);
        explained.limits(&Reason::QueueNotRead { read, least });
    }
    for set in &packing.findings.sets {
        set.lacks().iter().for_each(|reason| explained.limits(reason));
        explained.sets.push(set.clone());
    }
    let minimum = packing.findings.below_minimum.iter();
    minimum.filter(|reason| reason.is_limit()).for_each(|reason| explained.limits(reason));
    if packing.new.len() > slots.len() {
        explained.limits(&later(view));
    }
    for (want, waits) in waiting {
        let nodes = match waits {
            Waits::For(bins) => nodes(view, packing, bins, slots),
            Waits::Because(_) => Vec::new(),
        };
        let why = if let Waits::Because(why) = waits { why } else { nodes.as_slice() };
        why.iter().filter(|reason| reason.is_limit()).for_each(|reason| explained.limits(reason));
        match want {
            Want::Job(job) => explained.waits(job, why),
            Want::Copy { job, original } => {
                let wanted = std::iter::once(Reason::CopyWanted { original: *original });
                explained.waits(job, &wanted.chain(why.iter().cloned()).collect::<Vec<_>>());
            }
        }
    }
    for job in &view.observed.jobs {
        match job.state {
            JobState::Placing => {
                let (placed, of) = (job.allocs.len(), job.needs.nodes);
                explained.waits(job, &[Reason::PlacedInPart { placed, of }]);
            }
            JobState::Regrouping => explained.waits(job, &[Reason::RegroupingMembers {}]),
            JobState::Queued
            | JobState::Placed
            | JobState::Complete
            | JobState::Failed
            | JobState::Cancelled
            | JobState::Rejected => {}
        }
    }
}

/// The reasons of a job that waits for the nodes of these bins.
fn nodes(view: &View<'_>, packing: &Packing<'_, '_>, bins: &[usize], slots: &[Slot]) -> Vec<Reason> {
    let (mut launched, mut boot, mut suspected, mut is_later) = (Vec::new(), Vec::new(), Vec::new(), false);
    for bin in bins.iter().filter_map(|n| packing.bins.get(*n)) {
        match bin.at {
            At::Ready(_) => {}
            At::Booting(node_id) if view.is_suspected(node_id) => suspected.push(node_id.slot()),
            At::Booting(node_id) => boot.push(node_id.slot()),
            At::New(n) => match slots.get(n) {
                Some(slot) => launched.push(*slot),
                None => is_later = true,
            },
        }
    }
    let why = [
        (!launched.is_empty()).then(|| Reason::NodesLaunched { slots: sorted(launched) }),
        (!boot.is_empty()).then(|| Reason::NodesBoot { slots: sorted(boot) }),
        (!suspected.is_empty()).then(|| Reason::NodesSuspected { slots: sorted(suspected) }),
        is_later.then(|| later(view)),
    ];
    why.into_iter().flatten().collect()
}

fn later(view: &View<'_>) -> Reason {
    Reason::MaxPerRun { max: view.observed.policy.launch.max_per_run }
}

fn sorted(mut slots: Vec<Slot>) -> Vec<Slot> {
    slots.sort_unstable();
    slots
}
