//! The demands of the queue: what each of them waits for, and whether it can ever be met.
//!
//! Guarantees: a job is called impossible only by what the policy and the catalogue allow, never because EC2 is short
//! of a type at present.
//! Does not: find room for a demand (`packing` does).

use super::super::actions::Action;
use super::super::sizes::Sizes;
use super::super::view::View;
use super::prices::{cheapest, is_within_cap};
use model::policy::Size;
use model::{AllocId, Capacity, JobSummary, MachineNeed, NodeId, Reason, Usd};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// One demand for places: all members of a queued job, or a copy of an unknown alloc.
pub(super) enum Want<'a> {
    Job(&'a JobSummary),
    Copy { job: &'a JobSummary, original: AllocId },
}

/// The result of serving the queue.
#[derive(Default)]
pub(super) struct ServedQueue<'a> {
    /// The placements and rejections of this run.
    pub(super) actions: Vec<(Action, Reason)>,
    /// The demands that this run does not place, in the order of the queue.
    pub(super) waiting: Vec<(Want<'a>, Waits)>,
}

pub(super) enum Waits {
    /// The nodes of these bins, which boot or are launched.
    For(Vec<usize>),
    /// These reasons, and no node comes for the demand.
    Because(Rc<[Reason]>),
}

impl<'a> Want<'a> {
    pub(super) const fn job(&self) -> &'a JobSummary {
        match self {
            Self::Job(job) | Self::Copy { job, .. } => job,
        }
    }

    pub(super) const fn members(&self) -> u32 {
        match self {
            Self::Job(job) => job.needs.nodes,
            Self::Copy { .. } => 1,
        }
    }

    /// The action that places this demand on ready nodes, one for each member.
    pub(super) fn place(&self, ready: &[NodeId]) -> Option<(Action, Reason)> {
        match self {
            Self::Job(job) => {
                let on: Vec<(u32, NodeId)> = (0..).zip(ready.iter().copied()).collect();
                let slots = ready.iter().map(|n| n.slot()).collect();
                Some((Action::Place { job_id: job.job_id, on }, Reason::FitsOn { slots }))
            }
            Self::Copy { original, .. } => {
                let on = *ready.first()?;
                Some((Action::Replace { original: *original, on }, Reason::CopyWanted { original: *original }))
            }
        }
    }
}

/// The needs that are known to be possible, each with a number of nodes. A cache: most jobs of a queue ask for the same.
#[derive(Default)]
pub(super) struct Possible<'a>(HashMap<(Capacity, &'a MachineNeed), u32>);

impl<'a> Possible<'a> {
    /// Why a job can never run with this policy; `None` if it can.
    pub(super) fn never(&mut self, view: &View<'_>, sizes: &Sizes<'_>, job: &'a JobSummary) -> Option<Reason> {
        let (asked, nodes) = ((job.needs.capacity(), &job.needs.machine), job.needs.nodes);
        if self.0.get(&asked).is_some_and(|known| nodes <= *known) {
            return None;
        }
        let reason = never(view, sizes, job);
        if reason.is_none() {
            self.0.insert(asked, nodes);
        }
        reason
    }
}

/// Why a job can never run with this policy; `None` if it can.
pub(super) fn never(view: &View<'_>, sizes: &Sizes<'_>, job: &JobSummary) -> Option<Reason> {
    let (policy, sizes) = (&view.observed.policy, sizes.fitting(job));
    if sizes.is_empty() {
        // What EC2 offers is not known yet, or not completely: a type that fits may come.
        if policy.waits_for_catalogue() {
            return None;
        }
        return Some(policy.none_fits(job.needs.capacity(), &job.needs.machine));
    }
    // A maximum of 0 pauses the cluster: jobs wait.
    if job.needs.nodes > policy.nodes.max && policy.nodes.max > 0 {
        return Some(Reason::MoreThanMaximum { nodes: job.needs.nodes, max: policy.nodes.max });
    }
    let most_of: BTreeMap<&str, u32> = sizes.iter().map(|s| (s.name.as_str(), s.max.unwrap_or(u32::MAX))).collect();
    let most = most_of.into_values().fold(0, u32::saturating_add);
    if job.needs.nodes > most {
        return Some(Reason::MoreThanSizesAllow { nodes: job.needs.nodes, most });
    }
    let cap = policy.nodes.max_price_per_hour;
    let reservation = |size: &Size| policy.catalogue.reservations.get(&size.reservation.as_ref()?.id);
    let ever = |size: &Size| reservation(size).map_or(0, |known| known.total);
    let price = cheapest((&sizes, job.needs.machine.market), job.needs.nodes, |_| 0, ever).unwrap_or(Usd::ZERO);
    (!is_within_cap(policy, price)).then_some(Reason::DearerThanCap { price, cap })
}
