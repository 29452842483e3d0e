//! What goes wrong, on demand. Every fault that counts counts itself down, so that reading
//! the faults back shows what is still to come.

use serde::{Deserialize, Serialize};
use shared::model::Market;
use shared::time::Time;
use std::collections::BTreeSet;

use super::glob::Glob;
use super::refusal::Refusal;
use super::world::Instance;

/// The faults in force; none by default. A misspelt field is an error, because a fault that
/// is silently not there makes a test pass that proves nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Offerings that are out of capacity.
    pub shortages: Vec<Shortage>,
    /// The quota of on-demand instances: `InstanceLimitExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
    /// The quota of on-demand vCPUs: `VcpuLimitExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_vcpus: Option<u32>,
    /// The quota of spot instances: `MaxSpotInstanceCountExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_spot_instances: Option<u32>,
    /// So many of the next calls, whatever they are, answer `RequestLimitExceeded`.
    pub throttle_calls: u32,
    /// So many of the next successful RunInstances launch, and their answer is lost.
    pub lose_run_answers: u32,
    /// How an answer is lost.
    pub lost_as: LostAs,
    /// Calls that fail, each once.
    pub fail: Vec<FailCall>,
    /// Instances (`*` and `?` allowed) that stay `shutting-down` or `stopping` while listed here.
    pub stuck: BTreeSet<String>,
    /// Instances that lists leave out.
    pub forget: Vec<Forget>,
    /// So many of the next launched instances run, but nothing ever boots on them.
    pub boot_failures: u32,
}

/// A capacity shortage. What is absent stands for any.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shortage {
    /// The instance type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// The availability zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The market.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// How many instances can still be had before it bites.
    pub left: u32,
}

impl Shortage {
    pub(super) fn concerns(&self, instance_type: &str, zone: &str, market: Market) -> bool {
        self.instance_type.as_deref().is_none_or(|t| t == instance_type)
            && self.zone.as_deref().is_none_or(|z| z == zone)
            && self.market.is_none_or(|m| m == market)
    }
}

/// How an answer is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostAs {
    /// The connection breaks before the answer is whole.
    #[default]
    Disconnect,
    /// The answer is `InternalError`, 500.
    InternalError,
}

/// A call that fails without doing anything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailCall {
    /// The action, as `RunInstances`.
    pub action: String,
    /// Which call of it, counted from now; 1 is the next.
    #[serde(default = "next_call")]
    pub on_call: u32,
    /// The error code answered.
    pub code: String,
    /// The HTTP status of the answer.
    #[serde(default = "client_error")]
    pub status: u16,
    /// The message of the answer.
    #[serde(default)]
    pub message: String,
}

fn next_call() -> u32 {
    1
}

fn client_error() -> u16 {
    400
}

/// Instances that DescribeInstances leaves out although they are there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forget {
    /// Which ones; `*` and `?` allowed.
    pub instance_id: String,
    /// Until when, in milliseconds since the epoch; absent: until the faults are set anew.
    #[serde(default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Also unknown when asked for by id.
    #[serde(default)]
    pub by_id: bool,
}

impl Faults {
    /// The fault that meets this call, if any does; counts it.
    pub(super) fn meet(&mut self, action: &str) -> Result<(), Refusal> {
        if self.throttle_calls > 0 {
            self.throttle_calls -= 1;
            return Err(Refusal::RequestLimitExceeded);
        }
        for fail in self.fail.iter_mut().filter(|f| f.action == action) {
            fail.on_call = fail.on_call.saturating_sub(1);
        }
        let Some(at) = self.fail.iter().position(|f| f.action == action && f.on_call == 0) else { return Ok(()) };
        let FailCall { status, code, message, .. } = self.fail.remove(at);
        Err(Refusal::OnDemand { status, code, message })
    }

    /// Whether this answer of RunInstances gets lost, and how; counts it.
    pub(super) fn lose_answer(&mut self) -> Option<LostAs> {
        self.lose_run_answers = self.lose_run_answers.checked_sub(1)?;
        Some(self.lost_as)
    }

    /// Whether the next instance fails to boot; counts it.
    pub(super) fn fail_boot(&mut self) -> bool {
        let fails = self.boot_failures > 0;
        self.boot_failures = self.boot_failures.saturating_sub(1);
        fails
    }

    /// Whether this instance hangs in a state that it should leave.
    pub(super) fn is_stuck(&self, instance: &Instance) -> bool {
        self.stuck.iter().any(|pattern| Glob::new(pattern).matches(&instance.instance_id))
    }

    /// Whether a list leaves this instance out.
    pub(super) fn is_forgotten(&self, instance: &Instance, by_id: bool, now: Time) -> bool {
        self.forget.iter().any(|forget| {
            (forget.by_id || !by_id)
                && forget.until.is_none_or(|until| now < until)
                && Glob::new(&forget.instance_id).matches(&instance.instance_id)
        })
    }
}
