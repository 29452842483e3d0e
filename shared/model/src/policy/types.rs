//! The policy as a type.
//!
//! Guarantees: a type for each section, with one field for each knob.
//! Does not: say what a knob means or allows; [`super::KNOBS`] and [`super::SIZE_KNOBS`] do.

use super::agent::AgentFile;
use super::share::{Share, WorkLimits};
use super::size::{SeveralTypes, Size};
use crate::enums::Arch;
use crate::stored::S3Prefix;
use crate::wire::{LONGEST_RETRY_S, SHORTEST_RETRY_S, heartbeat_timeout_s};
use crate::{Catalogue, Span, Usd};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A checked policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    pub nodes: NodesPolicy,
    /// The sizes of one instance type. [`Policy::with_catalogue`] adds one for each type of the sizes of several, and one for each
    /// capacity reservation of a size.
    pub size: Vec<Size>,
    /// The sizes of several instance types, as the document has them.
    #[serde(skip)]
    pub several: Vec<SeveralTypes>,
    pub share: Vec<Share>,
    /// What EC2 offers for the sizes; empty before [`Policy::with_catalogue`].
    #[serde(skip)]
    pub catalogue: Arc<Catalogue>,
    pub launch: LaunchPolicy,
    pub agent: AgentPolicy,
    pub boot: BootPolicy,
    pub idle: IdlePolicy,
    pub shutdown: ShutdownPolicy,
    pub stale: StalePolicy,
    pub heartbeat: HeartbeatPolicy,
    pub poll: PollPolicy,
    pub shortage: ShortagePolicy,
    pub quota: QuotaPolicy,
    pub retry: RetryPolicy,
    pub sweep: SweepPolicy,
    pub history: HistoryPolicy,
    pub jobs: JobsPolicy,
    pub output: OutputPolicy,
    pub watchdog: WatchdogPolicy,
    pub shares: SharesPolicy,
    /// The limits of each person.
    pub person: WorkLimits,
    pub limits: LimitsPolicy,
    pub budget: BudgetPolicy,
}

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $name { $(pub $field: $t),* }
    )*};
}

sections! {
    NodesPolicy { min: u32, max: u32, max_price_per_hour: Usd, memory_usable: f64 }
    LaunchPolicy {
        template: Option<String>, subnets: Vec<String>, reservations: Vec<String>, reservation_drain_s: i64,
        zone_share: f64, drain_at_risk: bool, tags: BTreeMap<String, String>, user_data: String,
        max_per_run: u32, max_per_call: usize, calls_per_second: f64,
    }
    AgentPolicy { x86_64: Option<AgentFile>, arm64: Option<AgentFile>, options: String }
    BootPolicy { timeout_s: i64, failures_before_pause: u32 }
    IdlePolicy { timeout_s: i64, confirmations: u32 }
    ShutdownPolicy { windows_min: Vec<u32>, down_after_s: i64 }
    StalePolicy {
        after_s: i64, orphan_after_s: i64, orphan_brake_min: u32, brake_fraction: f64, brake_min: u32, brake_hold_s: i64,
    }
    HeartbeatPolicy {
        ttl_s: i64, idle_s: i64, grace_s: i64, max_per_second: f64, brake_fraction: f64, brake_min: u32,
        brake_hold_s: i64, blackout_s: i64,
    }
    PollPolicy { stale_after_s: i64, min_gap_s: i64, list_nodes: u32, queue_rows: u32 }
    ShortagePolicy { ttl_s: i64 }
    QuotaPolicy { retry_s: i64 }
    RetryPolicy { pause_s: i64, most_s: i64 }
    SweepPolicy {
        missing_grace_s: i64, creating_s: i64, failed_keep_s: i64, cache_unused_s: i64, max_in_flight: u32,
        report_s: i64, cap_fraction: f64, cap_min: u32,
    }
    HistoryPolicy { finished_days: i64, events_days: i64 }
    JobsPolicy { roles: Vec<String> }
    OutputPolicy { s3: Option<S3Prefix> }
    WatchdogPolicy { multiplier: f64, reserve_ms: u64 }
    SharesPolicy { half_life_h: f64, gib_per_vcpu: f64, vcpus_per_gpu: f64 }
    LimitsPolicy { licences: BTreeMap<String, u32> }
    BudgetPolicy { dollars_per_month: Usd }
}

/// The largest factor by which jitter lengthens the time between heartbeats.
pub const LONGEST_JITTER: f64 = 1.5;

impl HeartbeatPolicy {
    /// The seconds between heartbeats of a node with allocs, before jitter, in a fleet of `in_use` nodes. A larger fleet
    /// calls less often, so that its cost is bounded.
    pub fn interval_s(&self, in_use: u64) -> f64 {
        (self.ttl_s as f64).max(self.least_s(in_use))
    }

    /// The seconds between heartbeats of a node without allocs, before jitter: fewer, unless the fleet is large.
    pub fn idle_interval_s(&self, in_use: u64) -> f64 {
        (self.idle_s as f64).max(self.least_s(in_use)).min(self.interval_s(in_use))
    }

    /// The seconds until a node that has room asks for new work for the first time: a run that an end wakes needs about as long.
    pub fn soon_s(&self, in_use: u64) -> f64 {
        self.least_s(in_use).max(0.6).min(self.idle_interval_s(in_use))
    }

    /// The length of every lease: the longest interval of a node with allocs, plus the grace.
    pub fn lease(&self, in_use: u64) -> Span {
        let longest_ms = (self.interval_s(in_use) * LONGEST_JITTER * 1000.0).min(1e12) as i64;
        Span::from_ms(longest_ms) + Span::from_s(self.grace_s)
    }

    /// The longest wait of a node after a heartbeat that failed, in seconds: at most until its next one.
    pub fn retry_s(&self, in_use: u64) -> f64 {
        self.interval_s(in_use).clamp(SHORTEST_RETRY_S, LONGEST_RETRY_S)
    }

    /// Within this time a node whose heartbeat failed sends another one, also if the failed one hung.
    pub fn calls_again_within(&self, in_use: u64) -> Span {
        let retry_s = self.retry_s(in_use);
        Span::from_ms(((retry_s + heartbeat_timeout_s(retry_s)) * 1000.0) as i64)
    }

    /// The seconds between two calls of a node if the whole fleet uses `max_per_second`.
    fn least_s(&self, in_use: u64) -> f64 {
        in_use as f64 / self.max_per_second
    }
}

impl HistoryPolicy {
    /// How long ended jobs and allocs are kept.
    pub const fn keep_finished(&self) -> Span {
        Span::from_s(self.finished_days.saturating_mul(86_400))
    }

    /// How long events are kept.
    pub const fn keep_events(&self) -> Span {
        Span::from_s(self.events_days.saturating_mul(86_400))
    }
}

impl Policy {
    /// The document with every default filled in.
    pub fn to_json(&self) -> Value {
        let mut document = serde_json::to_value(self).unwrap_or(Value::Null);
        let of_one = self.size.iter().filter(|size| !size.is_derived()).map(serde_json::to_value);
        let sizes = of_one.chain(self.several.iter().map(serde_json::to_value)).flatten().collect();
        if let Some(document) = document.as_object_mut() {
            document.insert("size".into(), Value::Array(sizes));
        }
        document
    }

    /// The architecture of work that names none: x86_64 if the policy has a size of it, and otherwise arm64. A program that
    /// was built for one does not run on the other, and most are built for x86_64. In a policy with one architecture, nobody
    /// has to name it.
    pub fn default_arch(&self) -> Arch {
        let of_one = self.size.iter().map(|size| size.kind.arch);
        let mut all = of_one.chain(self.several.iter().map(|size| size.arch));
        if all.clone().next().is_none() || all.any(|arch| arch == Arch::X86_64) { Arch::X86_64 } else { Arch::Arm64 }
    }

    /// The scratch space of the size with the most, in GiB; `None` if a size does not say how much it has.
    pub fn most_scratch_gib(&self) -> Option<u64> {
        let of_one = self.size.iter().map(|size| size.capacity.scratch_gib);
        let mut all = of_one.chain(self.several.iter().map(|size| size.scratch_gib));
        all.try_fold(0, |most, gib| (gib > 0).then_some(most.max(gib))).filter(|most| *most > 0)
    }

    pub fn has_size(&self, name: &str) -> bool {
        self.size.iter().any(|size| size.name == name) || self.several.iter().any(|size| size.name == name)
    }

    /// The most nodes of the size with this name; `None` if it has no cap of its own.
    pub fn most_of(&self, name: &str) -> Option<u32> {
        let of_one = self.size.iter().find(|size| size.name == name).map(|size| size.max);
        of_one.or_else(|| self.several.iter().find(|size| size.name == name).map(|size| size.max)).flatten()
    }
}
