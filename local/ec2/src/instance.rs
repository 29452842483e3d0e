//! An instance, and its states.
//!
//! Does not: change a state; `world` does.

pub use model::cloud::InstanceState;
use model::{Market, Time};
use serde::Serialize;
use std::collections::BTreeMap;

/// EC2's code of a state ("InstanceState", EC2 API Reference).
pub(crate) const fn code(state: InstanceState) -> u8 {
    match state {
        InstanceState::Pending => 0,
        InstanceState::Running => 16,
        InstanceState::ShuttingDown => 32,
        InstanceState::Terminated => 48,
        InstanceState::Stopping => 64,
        InstanceState::Stopped => 80,
    }
}

/// Whether the instance is terminated, or will certainly be.
pub(crate) const fn is_ending(state: InstanceState) -> bool {
    matches!(state, InstanceState::ShuttingDown | InstanceState::Terminated)
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ec2Instance {
    /// `i-` and 17 hexadecimal digits.
    pub instance_id: String,
    /// The id of the RunInstances call that made the instance.
    pub reservation_id: String,
    pub state: InstanceState,
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
