//! Capacity reservations of EC2: machines that are paid whether they are used or not.
//!
//! Guarantees: only [`CapacityReservation::until`] says until when the machines of a reservation are reserved.
//! Does not: read them (the crate `cloud` does), count who uses them (the plan does), or make one.
//! Source: EC2 User Guide, "Reserve compute capacity with EC2 On-Demand Capacity Reservations" and "Capacity Blocks for ML".

use crate::enums::ReservationKind;
use crate::{Span, Time};
use serde::{Deserialize, Serialize};

/// The capacity reservation of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reserved {
    /// Like `cr-0123456789abcdef0`.
    pub id: String,
    pub kind: ReservationKind,
}

/// How long before the end of a capacity block EC2 begins to terminate its instances (EC2 User Guide, "Monitor Capacity
/// Blocks using EventBridge").
const BLOCK_ENDS_EARLY: Span = Span::from_s(1_800);

/// A capacity reservation of the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityReservation {
    pub kind: ReservationKind,
    pub instance_type: String,
    pub zone: String,
    /// How many machines it is for.
    pub total: u32,
    /// How many of them nobody uses. 0 if it has not begun.
    #[serde(default)]
    pub free: u32,
    /// When it ends; `None` if it lasts until somebody cancels it.
    pub ends_at: Option<Time>,
}

impl CapacityReservation {
    /// When its machines are no longer reserved. EC2 then terminates those of a capacity block. The others go on, at the price on
    /// demand.
    pub fn until(&self) -> Option<Time> {
        let early = if self.kind == ReservationKind::CapacityBlock { BLOCK_ENDS_EARLY } else { Span::ZERO };
        self.ends_at.map(|end| end - early)
    }
}
