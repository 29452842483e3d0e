//! Why a demand of the queue is not placed in this run.
//!
//! Guarantees: every job that waits gets at least one reason.
//! Does not: decide; the packing did.

use super::super::view::View;
use super::bin::At;
use super::packing::Packing;
use super::want::{Waits, Want};
use model::{Explanation, JobState, JobSummary, Policy, Reason, Slot};
use std::collections::BTreeMap;

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
    let mut turns = ShareTurns::new(&view.observed.policy, &view.observed.shares.used);
    for (want, waits) in waiting {
        let nodes = match waits {
            Waits::For(bins) => nodes(view, packing, bins, slots),
            Waits::Because(_) => Vec::new(),
        };
        let mut why = if let Waits::Because(why) = waits { why.to_vec() } else { nodes };
        why.iter().filter(|reason| reason.is_limit()).for_each(|reason| explained.limits(reason));
        if waits_for_room(waits) {
            why.extend(turns.next(want.job()));
        }
        match want {
            Want::Job(job) => explained.waits(job, &why),
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

/// Whether a demand waits for room that another one may get first.
fn waits_for_room(waits: &Waits) -> bool {
    let is_own = |reason: &Reason| {
        matches!(
            reason,
            Reason::ArrayLimit { .. }
                | Reason::WorkLimit { .. }
                | Reason::LicencesUsed { .. }
                | Reason::LimitTurnTaken {}
        )
    };
    matches!(waits, Waits::Because(why) if !why.iter().any(is_own))
}

/// What each share has used before whose first waiting job demands of others come. At most three others are named.
struct ShareTurns<'a> {
    policy: &'a Policy,
    used: &'a BTreeMap<String, f64>,
    /// The shares of which a demand waits.
    reasons: BTreeMap<&'a str, Option<Reason>>,
    /// How many demands of each share wait so far.
    waiting: BTreeMap<&'a str, usize>,
}

impl<'a> ShareTurns<'a> {
    fn new(policy: &'a Policy, used: &'a BTreeMap<String, f64>) -> Self {
        Self { policy, used, reasons: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    /// Why the next demand that waits comes after those of others. They come in the order of the queue.
    fn next(&mut self, job: &JobSummary) -> Option<Reason> {
        let Self { policy, used, reasons, waiting } = self;
        let share = policy.share(job.share.as_deref(), job.by.as_deref())?;
        let reason = reasons.entry(&share.name).or_insert_with(|| {
            let others = waiting.len().saturating_sub(3);
            let more = (others > 0).then(|| format!("and some of {others} more"));
            let before: Vec<String> =
                waiting.iter().take(3).map(|(name, jobs)| format!("{jobs} of {name}")).chain(more).collect();
            let percent = |of: f64, all: f64| if all > 0.0 { (100.0 * of / all).round() as u32 } else { 0 };
            (!before.is_empty()).then(|| Reason::ShareTurn {
                share: share.name.clone(),
                used: percent(used.get(&share.name).copied().unwrap_or(0.0), used.values().sum()),
                part: percent(share.weight, policy.share.iter().map(|share| share.weight).sum()),
                before: before.join(", "),
            })
        });
        *waiting.entry(&share.name).or_default() += 1;
        reason.clone()
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
