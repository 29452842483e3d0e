//! Failures on demand. A fault for a number of calls counts itself down, so what can be read back are the faults still
//! to come.
//!
//! Guarantees: a call that fails by a fault changes nothing, and one whose answer is lost is carried out; a fault with
//! a misspelt name is refused.
//! Does not: fail anything at random. Whoever sets the faults chooses the calls.

use model::{CapacityReservation, Market, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use crate::api_error::ApiError;
use crate::instance::Ec2Instance;
use crate::wire::Params;

/// The faults in force; none by default. A misspelt field is an error: if it were ignored, a
/// test would pass without its fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    pub shortages: Vec<Shortage>,
    /// The quota of on-demand instances: `InstanceLimitExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_instances: Option<u32>,
    /// The quota of spot instances: `MaxSpotInstanceCountExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_spot_instances: Option<u32>,
    /// The quota of on-demand vCPUs: `VcpuLimitExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_vcpus: Option<u32>,
    /// The quota of spot vCPUs: `MaxSpotInstanceCountExceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_spot_vcpus: Option<u32>,
    /// The capacity reservations of the account.
    pub capacity_reservations: Vec<Reservation>,
    /// This many of the next calls, of any action, answer `RequestLimitExceeded`.
    pub throttle_calls: u32,
    /// This many of the next successful calls of RunInstances and CreateFleet launch, but their answer is lost.
    pub lose_run_answers: u32,
    pub lost_as: LostAs,
    pub fail: Vec<FailCall>,
    /// Instances (`*`: all) that stay `shutting-down` or `stopping` while named here.
    pub stuck: BTreeSet<String>,
    /// Instances that DescribeInstances leaves out.
    pub forget: Vec<Forget>,
    /// This many of the next launched instances reach `running`, but their machines never boot.
    pub boot_failures: u32,
}

/// A capacity shortage. An absent field matches everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shortage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// The availability zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// How many instances can still be launched before the shortage begins.
    pub left: u32,
}

impl Shortage {
    pub(crate) fn applies_to(&self, instance_type: &str, zone: &str, market: Market) -> bool {
        self.instance_type.as_deref().is_none_or(|t| t == instance_type)
            && self.zone.as_deref().is_none_or(|z| z == zone)
            && self.market.is_none_or(|m| m == market)
    }
}

/// A capacity reservation of the account. The stand-in ignores `free`, because it counts the instances itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reservation {
    /// For example `cr-0123456789abcdef0`.
    pub id: String,
    #[serde(flatten)]
    pub of: CapacityReservation,
}

/// How an answer is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LostAs {
    /// The connection breaks before the answer is complete.
    #[default]
    Disconnect,
    /// The answer is `InternalError`, 500.
    InternalError,
}

/// Calls that fail and change nothing. An absent field of a launch matches every call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailCall {
    /// The action, for example `RunInstances`; `*`: any.
    pub action: String,
    /// Which of the calls that match fails first, counted from now; 1 is the next.
    #[serde(default = "one")]
    pub on_call: u32,
    /// How many of the calls that match fail, one after the other.
    #[serde(default = "one")]
    pub times: u32,
    /// The instance type that the call names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<String>,
    /// The market that the call names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub market: Option<Market>,
    /// The subnet that the call names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subnet_id: Option<String>,
    /// The id or the name of the launch template that the call names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The error code of the answer.
    pub code: String,
    /// The HTTP status of the answer.
    #[serde(default = "client_error")]
    pub status: u16,
    #[serde(default)]
    pub message: String,
}

impl FailCall {
    fn matches(&self, action: &str, params: &Params) -> bool {
        let is = |wanted: &Option<String>, names: &[&str]| {
            wanted.is_none() || names.iter().any(|name| params.filled(name) == wanted.as_deref())
        };
        let spot = params.filled("InstanceMarketOptions.MarketType").is_some_and(|market| market == "spot");
        (self.action == "*" || self.action == action)
            && is(&self.instance_type, &["InstanceType"])
            && is(&self.subnet_id, &["SubnetId"])
            && is(&self.template, &["LaunchTemplate.LaunchTemplateId", "LaunchTemplate.LaunchTemplateName"])
            && self.market.is_none_or(|market| (market == Market::Spot) == spot)
    }
}

fn one() -> u32 {
    1
}

fn client_error() -> u16 {
    400
}

/// Instances that DescribeInstances leaves out although they exist.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forget {
    /// The instance; `*`: all.
    pub instance_id: String,
    /// Until when, in milliseconds since the epoch. Absent: until the faults are replaced.
    #[serde(default)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Whether a call that names them by id does not know them either.
    #[serde(default)]
    pub by_id: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    ById,
    ByFilter,
}

impl Faults {
    /// Fails this call if a fault says so. Counts the call.
    pub(crate) fn fail_call(&mut self, action: &str, params: &Params) -> Result<(), ApiError> {
        if self.throttle_calls > 0 {
            self.throttle_calls -= 1;
            return Err(ApiError::throttled());
        }
        self.fail_part(action, params)
    }

    /// Fails this call if `fail` says so. CreateFleet checks each of its ways, as the call of RunInstances that launches the same.
    pub(crate) fn fail_part(&mut self, action: &str, params: &Params) -> Result<(), ApiError> {
        for fail in self.fail.iter_mut().filter(|f| f.matches(action, params)) {
            fail.on_call = fail.on_call.saturating_sub(1);
        }
        let Some(fail) = self.fail.iter_mut().find(|f| f.matches(action, params) && f.on_call == 0) else {
            return Ok(());
        };
        fail.times = fail.times.saturating_sub(1);
        let error = ApiError { status: fail.status, code: fail.code.clone(), message: fail.message.clone() };
        self.fail.retain(|f| f.times > 0);
        Err(error)
    }

    /// Whether and how this answer of a launch is lost. Counts the lost answer.
    pub(crate) fn lose_answer(&mut self) -> Option<LostAs> {
        self.lose_run_answers = self.lose_run_answers.checked_sub(1)?;
        Some(self.lost_as)
    }

    /// Whether the next instance fails to boot. Counts the failure.
    pub(crate) fn fail_boot(&mut self) -> bool {
        let fails = self.boot_failures > 0;
        self.boot_failures = self.boot_failures.saturating_sub(1);
        fails
    }

    /// Whether this instance stays in a state that it should leave.
    pub(crate) fn is_stuck(&self, instance: &Ec2Instance) -> bool {
        self.stuck.contains("*") || self.stuck.contains(&instance.instance_id)
    }

    /// Whether DescribeInstances leaves this instance out.
    pub(crate) fn is_forgotten(&self, instance: &Ec2Instance, lookup: Lookup, now: Time) -> bool {
        self.forget.iter().any(|forget| {
            (forget.by_id || lookup == Lookup::ByFilter)
                && forget.until.is_none_or(|until| now < until)
                && (forget.instance_id == "*" || forget.instance_id == instance.instance_id)
        })
    }
}
