//! A size: one kind of machine to launch.
//!
//! Does not: say what a knob means or allows; [`super::SIZE_KNOBS`] does.

use crate::catalogue::Offered;
use crate::enums::Market;
use crate::machine::{Capacity, MachineKind};
use crate::money::Usd;
use crate::reservation::{CapacityReservation, Reserved};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// `[[size]]` with `instance_type`: one kind of machine to launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    pub name: String,
    pub instance_type: String,
    #[serde(flatten)]
    pub capacity: Capacity,
    #[serde(flatten)]
    pub kind: MachineKind,
    pub price_per_hour: Usd,
    pub market: Market,
    pub fallback: Fallback,
    pub max: Option<u32>,
    pub template: Option<String>,
    /// What the catalogue says of the type, if the size is one of several types. `None`: the policy says it all.
    #[serde(skip)]
    pub offered: Option<Arc<Offered>>,
    /// The capacity reservation in which its machines run. The policy has the same size without it too.
    #[serde(skip)]
    pub reservation: Option<Reserved>,
}

impl Size {
    /// Whether the size comes from the catalogue, and not from the document.
    pub const fn is_derived(&self) -> bool {
        self.offered.is_some() || self.reservation.is_some()
    }

    /// The same size in this capacity reservation, where it costs nothing more.
    pub(super) fn reserved(&self, id: &str, reservation: &CapacityReservation) -> Self {
        let reserved = Reserved { id: id.to_owned(), kind: reservation.kind };
        Self {
            price_per_hour: Usd::ZERO,
            market: Market::Reserved,
            fallback: Fallback::None,
            reservation: Some(reserved),
            ..self.clone()
        }
    }
}

/// What is launched in place of a spot size while EC2 is short of spot capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Nothing: launches wait for spot capacity.
    None,
    /// The same instance type, on demand.
    OnDemand,
}
