//! An instance, and its states.
//!
//! Does not: change a state; `world` does.

use model::Market;
use model::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The state of an instance, by EC2's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// EC2 prepares the instance.
    Pending,
    /// The machine is up.
    Running,
    /// On its way to `terminated`.
    ShuttingDown,
    /// Ended for good, but still listed.
    Terminated,
    /// On its way to `stopped`.
    Stopping,
    /// Off, and could be started again.
    Stopped,
}

impl State {
    /// EC2's name and code ("InstanceState", EC2 API Reference).
    pub(crate) const fn name_and_code(self) -> (&'static str, u8) {
        match self {
            Self::Pending => ("pending", 0),
            Self::Running => ("running", 16),
            Self::ShuttingDown => ("shutting-down", 32),
            Self::Terminated => ("terminated", 48),
            Self::Stopping => ("stopping", 64),
            Self::Stopped => ("stopped", 80),
        }
    }

    /// Whether the instance is terminated, or will certainly be.
    pub const fn is_ending(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::Terminated)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    /// `i-` and 17 hexadecimal digits.
    pub instance_id: String,
    /// The id of the RunInstances call that made the instance.
    pub reservation_id: String,
    pub state: State,
    pub launched_at: Time,
    pub instance_type: String,
    /// The vCPUs that count against a quota.
    pub vcpus: u32,
    pub market: Market,
    /// The capacity reservation in which it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_reservation: Option<String>,
    pub subnet_id: String,
    /// The availability zone.
    pub zone: String,
    pub private_ip: String,
    /// Absent if the launch named none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_token: Option<String>,
    pub tags: BTreeMap<String, String>,
    /// The position of the instance in its launch.
    pub launch_index: u32,
    /// Why the instance left `running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<StateReason>,
    /// Whether the machine boots: see [`Faults::boot_failures`](crate::Faults).
    pub boots: bool,
    /// Whether the instance terminates, rather than stops, when its machine powers off
    /// (`InstanceInitiatedShutdownBehavior`).
    pub ends_when_off: bool,
    /// The script for the first boot, decoded.
    #[serde(skip)]
    pub user_data: String,
}

/// Why an instance is in its state ("StateReason", EC2 API Reference).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StateReason {
    /// A call of TerminateInstances.
    TerminatedByUser,
    /// EC2 took a spot instance back.
    SpotTermination,
    /// The hardware failed, or was retired.
    TerminatedByCloud,
    /// The hardware failed, and EC2 stopped the instance.
    StoppedByCloud,
    /// The operating system powered the machine off.
    PoweredOff,
}

impl StateReason {
    /// The code, and the message without the code that it begins with.
    pub(crate) const fn code_and_message(self) -> (&'static str, &'static str) {
        match self {
            Self::TerminatedByUser => ("Client.UserInitiatedShutdown", "User initiated shutdown"),
            Self::SpotTermination => ("Server.SpotInstanceTermination", "Spot instance termination"),
            Self::TerminatedByCloud => ("Server.InternalError", "Internal error on termination"),
            Self::StoppedByCloud => ("Server.ScheduledStop", "Stopped due to a scheduled retirement"),
            Self::PoweredOff => ("Client.InstanceInitiatedShutdown", "Instance initiated shutdown"),
        }
    }
}
