//! The price of each rule: why a node was there, for each moment of its life.
//!
//! | reason | what |
//! | --- | --- |
//! | work | the part of its vCPUs that allocs used |
//! | room left | the other part, while at least one alloc was there |
//! | boot, failed start | until it took work; the second if it never did |
//! | idle time-out | idle, for at most `idle.timeout_s` after its work |
//! | minimum | idle for longer: `nodes.min` or a demand set kept it, a job that waits, or its shutdown window; the history does not tell them apart |
//! | hold, drain | idle, because an operator said so |
//! | silent, going | without heartbeats, and between its shutdown and its end |
//!
//! Guarantees: the reasons of a life take all of its time and its price, each moment once.
//! Does not: know an older policy: `idle.timeout_s` is that of the stored one.

use super::{Charge, History, NodeLifetime, Phase, Use};
use model::{Intent, Span, Time};
use std::collections::BTreeMap;

/// Why a node was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeReason {
    Work,
    RoomLeft,
    Boot,
    FailedStart,
    IdleTimeout,
    Minimum,
    Hold,
    Drain,
    Silent,
    Going,
}

impl NodeReason {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::RoomLeft => "room left beside work",
            Self::Boot => "boot",
            Self::FailedStart => "failed start",
            Self::IdleTimeout => "idle.timeout_s",
            Self::Minimum => "idle for longer (nodes.min, a demand set, kept for a job, a shutdown window)",
            Self::Hold => "hold",
            Self::Drain => "drain",
            Self::Silent => "silent",
            Self::Going => "shutting down",
        }
    }
}

/// The time and the price of this life between two moments, by reason. The time of work and of the room beside it is divided as the
/// price is.
pub(crate) fn of(past: &History, life: &NodeLifetime, (from, to): (Time, Time)) -> BTreeMap<NodeReason, (i64, Charge)> {
    let mut reasons: BTreeMap<NodeReason, (i64, Charge)> = BTreeMap::new();
    let price = life.price.unwrap_or_default();
    let mut add = |reason, ms: i64, charge| {
        let sum = reasons.entry(reason).or_default();
        sum.0 += ms;
        sum.1 += charge;
    };
    let uses = past.uses_of(life);
    for segment in life.segments(uses, from, to) {
        let span = segment.to.since(segment.from);
        let whole = Charge::of(price, span);
        match segment.phase {
            Phase::Working => {
                let (used, all) = (used(uses, segment.from, segment.to), capacity(life, span));
                let (part, ms) = (whole.share(used.min(all), all), part_of(span.as_ms(), used.min(all), all));
                add(NodeReason::Work, ms, part);
                add(NodeReason::RoomLeft, span.as_ms() - ms, whole.minus(part));
            }
            Phase::Idle => {
                for (reason, begin, end) in idle(past, life, uses, (segment.from, segment.to)) {
                    let span = end.since(begin);
                    add(reason, span.as_ms(), Charge::of(price, span));
                }
            }
            Phase::Booting if life.never_worked() => add(NodeReason::FailedStart, span.as_ms(), whole),
            Phase::Booting => add(NodeReason::Boot, span.as_ms(), whole),
            Phase::Silent => add(NodeReason::Silent, span.as_ms(), whole),
            Phase::Going => add(NodeReason::Going, span.as_ms(), whole),
        }
    }
    reasons
}

/// The milliseconds of vCPUs that these allocs used between two moments.
fn used(uses: &[Use], from: Time, to: Time) -> u64 {
    let ms = |used: &Use| used.to.min(to).since(used.from.max(from)).as_ms().max(0).unsigned_abs();
    uses.iter().map(|used| ms(used).saturating_mul(u64::from(used.vcpus))).sum()
}

/// The milliseconds of vCPUs that the node has in this time. Of a node whose size is not known, all of it counts as work.
fn capacity(life: &NodeLifetime, span: Span) -> u64 {
    span.as_ms().unsigned_abs().saturating_mul(u64::from(life.vcpus)).max(1)
}

/// This part of a time.
pub(super) fn part_of(ms: i64, part: u64, whole: u64) -> i64 {
    let whole = i128::from(whole).max(1);
    i64::try_from(i128::from(ms) * i128::from(part) / whole).unwrap_or(ms)
}

/// The parts of an idle time, each with its reason.
fn idle(past: &History, life: &NodeLifetime, uses: &[Use], (from, to): (Time, Time)) -> Vec<(NodeReason, Time, Time)> {
    // Whatever the report cuts off, the time-out began with the end of the last work, or when the node took work.
    let last = uses.iter().map(|used| used.to).filter(|end| *end <= from).max();
    let began = last.or_else(|| life.ready_at()).unwrap_or(from);
    let over = began + past.idle_timeout;
    let mut cuts = vec![from, to, over.clamp(from, to)];
    cuts.extend(life.intents.iter().map(|(at, _)| (*at).clamp(from, to)));
    cuts.sort_unstable();
    cuts.dedup();
    let reason = |at: Time| match life.intents.iter().rev().find(|(since, _)| *since <= at).map(|(_, intent)| intent) {
        Some(Intent::Hold) => NodeReason::Hold,
        Some(Intent::Drain) => NodeReason::Drain,
        Some(Intent::Run) | None if at < over => NodeReason::IdleTimeout,
        Some(Intent::Run) | None => NodeReason::Minimum,
    };
    cuts.windows(2).filter_map(|pair| Some((reason(*pair.first()?), *pair.first()?, *pair.last()?))).collect()
}
