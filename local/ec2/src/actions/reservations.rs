//! Capacity reservations: DescribeCapacityReservations, and the room for launches in a reservation.
//!
//! Guarantees: a reservation has no more instances than its total. The instances of a capacity block end half an hour before the
//! block does.
//! Does not: make reservations (the faults name them), or use an open one for a launch that does not name it.
//! Source: "DescribeCapacityReservations", EC2 API Reference; "Capacity Blocks for ML", EC2 User Guide.

use model::enums::ReservationKind;
use std::ops::RangeInclusive;

use super::filters;
use crate::api_error::{ApiError, clip};
use crate::call::Ec2Call;
use crate::faults::Reservation;
use crate::instance::InstanceState;
use crate::wire::Xml;
use crate::world::World;

/// The allowed values of `MaxResults`.
const PAGE: RangeInclusive<usize> = 1..=1_000;

impl World {
    /// The reservation with this id, and how many more instances have room in it.
    pub(crate) fn reservation(&self, id: &str) -> Result<(&Reservation, u32), ApiError> {
        let known = self.faults.capacity_reservations.iter().find(|known| known.id == id);
        let absent = || format!("The Capacity Reservation ID '{}' does not exist", clip(id));
        let known = known.ok_or_else(|| ApiError::new("InvalidCapacityReservationId.NotFound", absent()))?;
        let uses = |state: InstanceState| !matches!(state, InstanceState::Terminated | InstanceState::Stopped);
        let used = self.listed(None).filter(|(_, i)| i.capacity_reservation.as_deref() == Some(id) && uses(i.state));
        Ok((known, known.of.total.saturating_sub(u32::try_from(used.count()).unwrap_or(u32::MAX))))
    }
}

impl Ec2Call<'_> {
    /// How many instances of this type can be launched in a zone into this reservation.
    pub(crate) fn room_in_reservation(&self, id: &str, instance_type: &str, zone: &str) -> Result<u32, ApiError> {
        let (known, free) = self.world.reservation(id)?;
        if known.of.until().is_some_and(|until| until <= self.now) {
            let message = format!("The Capacity Reservation '{id}' is not active");
            return Err(ApiError::new("InvalidCapacityReservationState", message));
        }
        if (known.of.instance_type.as_str(), known.of.zone.as_str()) != (instance_type, zone) {
            let why = "the reservation is of another instance type or Availability Zone";
            return Err(ApiError::value(id, "CapacityReservationId", why));
        }
        Ok(free)
    }

    /// One unknown id fails the whole call.
    pub(crate) fn describe_capacity_reservations(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        filters::read(self.params, &[])?;
        let named = self.params.list("CapacityReservationId");
        for id in &named {
            self.world.reservation(id)?;
        }
        let all = &self.world.faults.capacity_reservations;
        let rows: Vec<&Reservation> =
            all.iter().filter(|known| named.is_empty() || named.contains(&known.id.as_str())).collect();
        self.write_page(xml, "capacityReservationSet", rows, PAGE, |xml, known| {
            let is_over = known.of.ends_at.is_some_and(|end| end <= self.now);
            let free = self.world.reservation(&known.id).map_or(0, |(_, free)| free);
            xml.text("capacityReservationId", &known.id);
            xml.text("instanceType", &known.of.instance_type);
            xml.text("instancePlatform", "Linux/UNIX");
            xml.text("availabilityZone", &known.of.zone);
            xml.text("tenancy", "default");
            xml.value("totalInstanceCount", known.of.total);
            xml.value("availableInstanceCount", free);
            xml.text("state", if is_over { "expired" } else { "active" });
            if let Some(end) = known.of.ends_at {
                xml.value("endDate", end);
            }
            xml.text("endDateType", if known.of.ends_at.is_some() { "limited" } else { "unlimited" });
            let is_block = known.of.kind == ReservationKind::CapacityBlock;
            xml.text("reservationType", if is_block { "capacity-block" } else { "default" });
            xml.value("interruptible", known.of.kind == ReservationKind::Interruptible);
        })
    }
}
