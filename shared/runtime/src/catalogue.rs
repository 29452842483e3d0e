//! Reads the catalogue: what EC2 offers for the sizes of several instance types, and what the account may have.
//!
//! Guarantees: a part that cannot be read stays as it was, with the error; the catalogue has only types that a size of
//! the policy takes, at most [`MAX_TYPES`], the smallest first.
//! Does not: decide when a part is read ([`Catalogue::due`] does), or what is bought (the plan does).

use model::catalogue::{MAX_TYPES, Offered};
use model::control::CatalogueRow;
use model::policy::{Fallback, Size};
use model::quotas::quota_of;
use model::{
    CapacityReservation, Catalogue, CataloguePart, CloudError, Control, ControlKey, Market, Offers, PartState, Policy,
    Time, TypeFacts,
};
use std::collections::{BTreeMap, BTreeSet};
use store::{Store, WriteError};

/// Why the prices count as unreadable although no call was made.
const NO_TYPES: &str = "the instance types could not be read before";

/// The longest error that is kept of a part, in characters.
const MAX_ERROR_CHARS: usize = 300;

/// Reads these parts of a policy's catalogue again. The parts must be in the order of [`CataloguePart::ALL`], because prices are
/// read for the types that were found.
pub async fn read(
    offers: &dyn Offers,
    policy: &Policy,
    before: &Catalogue,
    parts: &[CataloguePart],
    now: Time,
) -> Catalogue {
    let mut catalogue = before.clone();
    let wanted = policy.catalogue_wanted();
    if catalogue.wanted != wanted {
        // The old content stays until it is read again, but no part counts as read for this policy.
        catalogue.parts.clear();
        catalogue.wanted = wanted;
    }
    for part in parts {
        let outcome = read_part(offers, policy, &mut catalogue, *part).await;
        let state = catalogue.parts.entry(*part).or_default();
        state.tried_at = Some(now);
        state.error = outcome.err().map(|error| error.to_string().chars().take(MAX_ERROR_CHARS).collect());
        if state.error.is_none() {
            state.read_at = Some(now);
        }
    }
    catalogue
}

async fn read_part(
    offers: &dyn Offers,
    policy: &Policy,
    catalogue: &mut Catalogue,
    part: CataloguePart,
) -> Result<(), CloudError> {
    let names: BTreeSet<String> = catalogue.types.keys().cloned().collect();
    match part {
        CataloguePart::Types => {
            let patterns: BTreeSet<String> =
                policy.several.iter().flat_map(|size| size.requirements.instance_types.iter().cloned()).collect();
            if patterns.is_empty() {
                return Ok(());
            }
            let types = offers.types(&patterns).await?;
            let zones = offers.zones(&patterns).await?;
            keep_wanted(policy, catalogue, types, zones);
        }
        CataloguePart::Prices if !names.is_empty() => {
            let mut prices = offers.prices(&names).await?;
            catalogue.types.iter_mut().for_each(|(name, offered)| offered.on_demand = prices.remove(name));
        }
        CataloguePart::SpotPrices if !names.is_empty() => {
            let mut prices = offers.spot_prices(&names).await?;
            let of = |prices: &mut BTreeMap<_, _>, name: &String| prices.remove(name).unwrap_or_default();
            catalogue.types.iter_mut().for_each(|(name, offered)| offered.spot = of(&mut prices, name));
        }
        // Without types, no price is needed. But if the types could not be read, the prices are not known either.
        CataloguePart::Prices | CataloguePart::SpotPrices if catalogue.part(CataloguePart::Types).error.is_some() => {
            return Err(CloudError::Unreachable { operation: "prices", detail: NO_TYPES.into() });
        }
        CataloguePart::Prices | CataloguePart::SpotPrices => {}
        CataloguePart::Subnets => {
            catalogue.subnets = offers.subnets(&policy.launch.subnets.iter().cloned().collect()).await?
        }
        CataloguePart::Reservations => {
            catalogue.reservations = offers.reservations(&policy.launch.reservations.iter().cloned().collect()).await?;
        }
        CataloguePart::Quotas => catalogue.quotas = offers.quotas().await?,
    }
    Ok(())
}

/// Replaces the types in the catalogue by those of `types` that a size takes. Their known prices stay.
fn keep_wanted(
    policy: &Policy,
    catalogue: &mut Catalogue,
    types: BTreeMap<String, TypeFacts>,
    mut zones: BTreeMap<String, BTreeSet<String>>,
) {
    let is_taken = |name: &str, facts: &TypeFacts| {
        policy.several.iter().any(|size| size.requirements.lacks(name, size.arch, facts).is_none())
    };
    let mut taken: Vec<(String, TypeFacts)> = types.into_iter().filter(|(name, facts)| is_taken(name, facts)).collect();
    taken.sort_by(|(a, of_a), (b, of_b)| (of_a.vcpus, of_a.memory_mib, a).cmp(&(of_b.vcpus, of_b.memory_mib, b)));
    catalogue.left_out = taken.len().saturating_sub(MAX_TYPES) as u64;
    taken.truncate(MAX_TYPES);
    let mut before = std::mem::take(&mut catalogue.types);
    for (name, facts) in taken {
        let known = before.remove(&name).unwrap_or_default();
        let zones = zones.remove(&name).unwrap_or_default();
        catalogue.types.insert(name, Offered { facts, zones, ..known });
    }
}

/// Something that keeps a policy from buying what it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whether a size cannot be bought at all.
    pub is_wrong: bool,
    pub text: String,
}

/// The text about a part that was not read when it should have been, and whether this keeps a size from being bought.
fn unread(part: CataloguePart, state: &PartState, now: Time) -> Option<(bool, String)> {
    let age = state.read_at.map(|at| now.since(at));
    let read = age.map_or_else(|| "were never read".to_owned(), |age| format!("were last read {age} ago"));
    let is_needed = !matches!(part, CataloguePart::Subnets | CataloguePart::Reservations | CataloguePart::Quotas);
    if let Some(error) = &state.error {
        let again = CataloguePart::Subnets.keeps();
        let says = format!("the {part} cannot be read, and {read}: {error}; they are asked for again every {again}");
        return Some((age.is_none() && is_needed, says));
    }
    let should = match age {
        None if is_needed => "clean-stale-records reads them in its next run".to_owned(),
        // The part is twice as old as it should ever be.
        Some(age) if age >= part.keeps() + part.keeps() => {
            format!("clean-stale-records should read them every {}", part.keeps())
        }
        _ => return None,
    };
    Some((false, format!("the {part} {read}: {should}")))
}

/// What keeps the policy from buying what it names: parts of the catalogue that are missing or old, and sizes without a type or
/// a price.
pub fn faults(policy: &Policy, now: Time) -> Vec<Fault> {
    let (catalogue, mut faults) = (policy.catalogue.as_ref(), Vec::new());
    let mut add = |is_wrong, says| faults.push(Fault { is_wrong, text: says });
    for part in policy.parts_wanted() {
        if let Some((is_wrong, says)) = unread(part, &catalogue.part(part), now) {
            add(is_wrong, says);
        }
    }
    let is_read = |part| catalogue.part(part).read_at.is_some();
    for several in policy.several.iter().filter(|_| !policy.waits_for_catalogue()) {
        if !policy.size.iter().any(|size| size.name == several.name) {
            add(
                true,
                format!(
                    "size {}: no instance type has what it needs, in a zone of the subnets and with a price that is known; `nodekeeper sizes` shows which there are",
                    several.name
                ),
            );
        }
    }
    for size in policy.size.iter().filter(|size| size.reservation.is_none()) {
        if let Some(too_small) = too_small_quota(policy, size) {
            add(true, too_small);
        }
    }
    if catalogue.left_out > 0 {
        add(
            false,
            format!(
                "{} instance types fit and are left out, because there are more than {MAX_TYPES}: name fewer",
                catalogue.left_out
            ),
        );
    }
    for id in
        policy.launch.subnets.iter().filter(|id| is_read(CataloguePart::Subnets) && catalogue.zone_of(id).is_none())
    {
        add(true, format!("EC2 does not know subnet {id}: correct launch.subnets"));
    }
    if is_read(CataloguePart::Reservations) {
        let useless = policy.launch.reservations.iter().filter_map(|id| useless_reservation(policy, id));
        useless.for_each(|says| add(false, says));
    }
    faults
}

/// What a person should know of a policy although nothing is wrong with it: which subnets launch calls name one after the other.
pub fn remarks(policy: &Policy) -> Vec<String> {
    let mut of_zone: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut unknown: Vec<&str> = Vec::new();
    for id in &policy.launch.subnets {
        policy.catalogue.zone_of(id).map_or(&mut unknown, |zone| of_zone.entry(zone).or_default()).push(id);
    }
    let shared = of_zone.into_iter().filter(|(_, ids)| ids.len() > 1).map(|(zone, ids)| {
        format!(
            "zone {zone} has {}: EC2 takes one subnet of a zone in a launch call, so a call names the one with the most free \
             addresses, and a later call the next",
            ids.join(", ")
        )
    });
    let alone = unknown
        .into_iter()
        .filter(|_| policy.launch.subnets.len() > 1)
        .map(|id| format!("the zone of {id} is not known here: launch calls name no other subnet beside it"));
    shared.chain(alone).collect()
}

/// The text about a capacity reservation in which nothing can be launched.
fn useless_reservation(policy: &Policy, id: &str) -> Option<String> {
    let Some(reservation) = policy.catalogue.reservations.get(id) else {
        return Some(format!(
            "EC2 knows no capacity reservation {id} that is not over: take it out of launch.reservations"
        ));
    };
    let CapacityReservation { instance_type, zone, .. } = reservation;
    if !policy.size.iter().any(|size| size.instance_type == *instance_type) {
        return Some(format!(
            "capacity reservation {id} is of {instance_type}, and no size has this type: add one, or nothing uses the reservation"
        ));
    }
    let zones: Vec<&str> = policy.launch.subnets.iter().filter_map(|id| policy.catalogue.zone_of(id)).collect();
    let is_elsewhere = !zones.is_empty() && !zones.contains(&zone.as_str());
    is_elsewhere.then(|| format!("capacity reservation {id} is in {zone}, and no subnet of launch.subnets is: add one"))
}

/// The text about a size if no quota has room for one machine of it. A new account has no room for GPUs at all.
fn too_small_quota(policy: &Policy, size: &Size) -> Option<String> {
    let markets = match (size.market, size.fallback) {
        (Market::Spot, Fallback::OnDemand) => vec![Market::Spot, Market::OnDemand],
        (market, _) => vec![market],
    };
    let mut says = None;
    for market in markets {
        let quota = quota_of(market, &size.instance_type);
        let room = *policy.catalogue.quotas.get(&quota)?;
        if room >= u64::from(size.capacity.vcpus) {
            return None;
        }
        says.get_or_insert_with(|| {
            format!(
                "size {}: {} has {} vCPUs, and the account may have {room} by the quota {quota:?}: ask for more in Service Quotas",
                size.name, size.instance_type, size.capacity.vcpus
            )
        });
    }
    says
}

/// Stores a catalogue in place of the one in `control`. A conflict means that another program stored one since `control` was read.
pub async fn keep(store: &Store, control: &Control, catalogue: &Catalogue) -> Result<(), WriteError> {
    let row = CatalogueRow::of_catalogue(catalogue);
    let is_unreadable = |key: &str| control.unreadable.iter().any(|entry| entry.key == key);
    if control.catalogue.is_none() && is_unreadable(&ControlKey::Catalogue.to_string()) {
        return store.replace_unreadable(&row).await.map(drop);
    }
    let before = control.catalogue.as_ref();
    let version = before.map_or(row.version, |before| before.version);
    store.write(before, &CatalogueRow { version, ..row }, Vec::new()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::catalogue::Subnet;
    use model::enums::ReservationKind;
    use model::fixtures::{FixedOffers, at, offered};
    use serde_json::json;

    fn policy(vcpus: u32) -> Policy {
        let several = json!({"name": "any", "instance_types": ["*"], "vcpus": [vcpus, 1000], "market": "spot",
                             "fallback": "on_demand"});
        let launch = json!({"template": "nodekeeper", "subnets": ["subnet-1"], "reservations": ["cr-1"]});
        Policy::from_json(&json!({"launch": launch, "size": [several]})).unwrap()
    }

    /// Types in this number, each with one vCPU more than the one before.
    fn offers(number: u32) -> FixedOffers {
        let types = (1..=number).map(|n| (format!("m{n}.large"), offered(n, 1, &[("a", 30)]))).collect();
        let subnets = [("subnet-1".to_owned(), Subnet { zone: "a".into(), free: 7 })].into();
        let reservations = [("cr-1".to_owned(), reservation("m2.large", "a"))].into();
        FixedOffers { of: Catalogue { types, subnets, reservations, ..Catalogue::default() }, is_away: false }
    }

    fn reservation(instance_type: &str, zone: &str) -> CapacityReservation {
        let (instance_type, zone) = (instance_type.to_owned(), zone.to_owned());
        CapacityReservation { kind: ReservationKind::OnDemand, instance_type, zone, total: 5, free: 4, ends_at: None }
    }

    async fn all(told: &FixedOffers, policy: &Policy, before: &Catalogue, now: i64) -> (Catalogue, Vec<CataloguePart>) {
        let wanted = policy.catalogue_wanted();
        let due = before.due(&policy.parts_wanted(), &wanted, at(now));
        (read(told, policy, before, &due, at(now)).await, due)
    }

    #[tokio::test]
    async fn each_part_is_read_when_it_is_due() {
        let told = offers(3);
        let (read, due) = all(&told, &policy(2), &Catalogue::default(), 0).await;
        assert_eq!(due, CataloguePart::ALL);
        assert_eq!(
            read.types.keys().collect::<Vec<_>>(),
            ["m2.large", "m3.large"],
            "a type with one vCPU is too small"
        );
        assert_eq!(read.subnets["subnet-1"].free, 7);
        let sizes = policy(2).with_catalogue(read.clone()).size;
        assert_eq!(sizes.iter().map(|size| size.price_per_hour.micros()).collect::<Vec<_>>(), [30, 30, 0]);
        assert_eq!((sizes[2].instance_type.as_str(), sizes[2].market), ("m2.large", Market::Reserved));
        for (later, due) in [
            (0, &[][..]),
            (299, &[]),
            (300, &[CataloguePart::Subnets, CataloguePart::Reservations]),
            (
                3600,
                &[
                    CataloguePart::SpotPrices,
                    CataloguePart::Subnets,
                    CataloguePart::Reservations,
                    CataloguePart::Quotas,
                ],
            ),
            (86_400, &CataloguePart::ALL),
            (-10, &CataloguePart::ALL),
        ] {
            assert_eq!(all(&told, &policy(2), &read, later).await.1, due, "after {later} s");
        }
        // Another policy asks for everything.
        let (other, due) = all(&told, &policy(3), &read, 1).await;
        assert_eq!((due.as_slice(), other.types.len()), (&CataloguePart::ALL[..], 1));
    }

    #[tokio::test]
    async fn prices_count_as_read_only_after_the_types() {
        let (told, away) = (offers(3), FixedOffers { is_away: true, ..FixedOffers::default() });
        let (first, _) = all(&away, &policy(1), &Catalogue::default(), 0).await;
        assert_eq!(first.part(CataloguePart::Prices).read_at, None, "there was no type to ask for");
        assert!(policy(1).with_catalogue(first.clone()).waits_for_catalogue(), "no job is rejected meanwhile");
        let (then, _) = all(&told, &policy(1), &first, 300).await;
        assert_eq!(policy(1).with_catalogue(then.clone()).size.len(), 4, "three types and a reservation");
        let mut older = then;
        older.parts.entry(CataloguePart::Prices).or_default().read_at = Some(at(299));
        assert_eq!(all(&told, &policy(1), &older, 301).await.1, [CataloguePart::Prices], "a type may be new");
    }

    #[tokio::test]
    async fn a_part_that_cannot_be_read_stays_as_it_was() {
        let (told, away) = (offers(3), FixedOffers { is_away: true, ..FixedOffers::default() });
        let (read, _) = all(&told, &policy(1), &Catalogue::default(), 0).await;
        let (later, due) = all(&away, &policy(1), &read, 86_400).await;
        assert_eq!(
            (due.as_slice(), &later.types, &later.subnets),
            (&CataloguePart::ALL[..], &read.types, &read.subnets)
        );
        let state = later.part(CataloguePart::Types);
        assert_eq!(state.read_at, Some(at(0)));
        assert_eq!(state.error.map(|error| error.chars().count()), Some(MAX_ERROR_CHARS));
        assert_eq!(all(&away, &policy(1), &later, 86_410).await.1, [], "it is not asked in each run");
        let (mended, due) = all(&told, &policy(1), &later, 86_700).await;
        assert_eq!((due.as_slice(), mended.part(CataloguePart::Types).error), (&CataloguePart::ALL[..], None));
        // Nothing is known for the new policy, so its jobs wait.
        let (new, _) = all(&away, &policy(2), &read, 1).await;
        assert!(policy(2).with_catalogue(new).waits_for_catalogue());
        assert!(!policy(1).with_catalogue(read).waits_for_catalogue());
    }

    /// Each row: a reservation, and what is said of it.
    #[tokio::test]
    async fn a_reservation_in_which_nothing_can_be_launched_is_named() {
        for (of, expected) in [
            (Some(reservation("m2.large", "a")), None),
            (Some(reservation("p5.48xlarge", "a")), Some("cr-1 is of p5.48xlarge, and no size has this type")),
            (Some(reservation("m2.large", "b")), Some("cr-1 is in b, and no subnet of launch.subnets is")),
            (None, Some("EC2 knows no capacity reservation cr-1 that is not over")),
        ] {
            let mut told = offers(3);
            told.of.reservations = of.clone().into_iter().map(|it| ("cr-1".to_owned(), it)).collect();
            let (read, _) = all(&told, &policy(2), &Catalogue::default(), 0).await;
            let said = faults(&policy(2).with_catalogue(read), at(0));
            match expected {
                Some(expected) => assert!(said.len() == 1 && said[0].text.contains(expected), "{of:?}: {said:?}"),
                None => assert_eq!(said, []),
            }
        }
    }

    #[tokio::test]
    async fn a_catalogue_has_a_bounded_number_of_types() {
        let told = offers(450);
        let (read, _) = all(&told, &policy(1), &Catalogue::default(), 0).await;
        assert_eq!((read.types.len(), read.left_out), (MAX_TYPES, 50));
        assert!(read.types.contains_key("m400.large") && !read.types.contains_key("m401.large"));
        let bytes = CatalogueRow::of_catalogue(&read).document.len();
        assert!(bytes < 300_000, "{bytes}");
    }
}
