//! The capacity reservations of the simulated region, and which instances use them.
//!
//! Guarantees: a reservation has no more instances than its total, and none after its end.
//! Does not: end the instances of a capacity block (`life` does).

use super::{Ec2, Real, Region};
use crate::core::{START, lock};
use crate::scenario::RESERVATIONS;
use model::enums::ReservationKind;
use model::{CapacityReservation, Span, Time};
use serde_json::Value;
use std::collections::BTreeMap;

impl Ec2 {
    /// All reservations that are not over.
    pub(super) fn reservations(&self) -> BTreeMap<String, CapacityReservation> {
        let (region, now) = (lock(&self.region), self.core.now());
        let all = RESERVATIONS.iter().filter_map(|(id, ..)| Some(((*id).to_owned(), self.reservation(&region, id)?)));
        all.filter(|(_, known)| known.ends_at.is_none_or(|end| now < end)).collect()
    }

    /// A reservation, with its free instances.
    pub(super) fn reservation(&self, region: &Region, id: &str) -> Option<CapacityReservation> {
        let named = self.core.scenario.policy.pointer("/launch/reservations").and_then(Value::as_array)?;
        let (_, kind, instance_type, total, minutes) = RESERVATIONS.iter().find(|(known, ..)| *known == id)?;
        let uses = |real: &&Real| real.is_live() && real.reservation.as_deref() == Some(id);
        let used = region.instances.values().filter(uses).count();
        named.iter().any(|name| name == id).then(|| CapacityReservation {
            kind: *kind,
            instance_type: (*instance_type).to_owned(),
            zone: "zone-a".to_owned(),
            total: *total,
            free: total.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX)),
            ends_at: minutes.map(|minutes| START + Span::from_s(minutes * 60)),
        })
    }

    pub(super) fn room_in(&self, region: &Region, id: &str, zone: &str, now: Time) -> usize {
        let known = self.reservation(region, id);
        let open = known.filter(|it| it.zone == zone && it.until().is_none_or(|until| now < until));
        open.map_or(0, |it| it.free as usize)
    }

    /// When EC2 terminates this instance because its capacity block ends.
    pub(super) fn block_ends(&self, region: &Region, real: &Real) -> Option<Time> {
        let known = self.reservation(region, real.reservation.as_ref()?)?;
        known.until().filter(|_| known.kind == ReservationKind::CapacityBlock)
    }
}
