//! What several nodes cost, and what the price cap allows.
//!
//! Guarantees: a mix is the cheapest that the sizes' own maxima allow.
//! Does not: know jobs or bins.

use model::policy::Size;
use model::{MarketNeed, Policy, Usd};

/// Sizes, the cheapest first, for work that asks for this market.
pub(super) type SizesFor<'s, 'a> = (&'s [&'a Size], Option<MarketNeed>);

/// Nodes of several sizes, with their price.
#[derive(Default)]
pub(super) struct Mix<'a> {
    /// How many nodes of each size, and what one of them costs.
    pub(super) of: Vec<(&'a Size, u32, Usd)>,
    pub(super) nodes: u32,
    pub(super) price: Usd,
}

/// The cheapest mix of `nodes` nodes. The mix has fewer nodes if one of these does not allow all: the maximum of a size, the
/// free machines of a capacity reservation, or the price `within`. `there` is the number of nodes that a size has already. `free` is the
/// number of machines that its reservation has left.
pub(super) fn mix<'a>(
    (sizes, asked): SizesFor<'_, 'a>,
    nodes: u32,
    there: impl Fn(&Size) -> u32,
    free: impl Fn(&Size) -> u32,
    within: Option<Usd>,
) -> Mix<'a> {
    let mut mix = Mix::default();
    for size in sizes {
        let taken = |is_shared: &dyn Fn(&Size) -> bool| -> u32 {
            mix.of.iter().filter(|(of, ..)| is_shared(of)).map(|(_, some, _)| some).sum()
        };
        // The instance types of one size share its maximum.
        let of_size = taken(&|of| of.name == size.name);
        let mut allowed = size.max.map_or(u32::MAX, |max| max.saturating_sub(there(size)).saturating_sub(of_size));
        if size.reservation.is_some() {
            // All sizes of its instance type share a reservation.
            let of_reservation = taken(&|of| of.reservation == size.reservation);
            allowed = allowed.min(free(size).saturating_sub(of_reservation));
        }
        let price = size.price_for(asked);
        let affordable = within.map_or(u32::MAX, |most| most.saturating_sub(mix.price).pays_times(price));
        let some = nodes.saturating_sub(mix.nodes).min(allowed).min(affordable);
        mix.nodes += some;
        mix.price = mix.price + price.times(u64::from(some));
        if some > 0 {
            mix.of.push((size, some, price));
        }
    }
    mix
}

/// The price of the cheapest mix of `nodes` nodes, as [`mix`] finds it; `None` if not all of them are allowed.
pub(super) fn cheapest(
    of: SizesFor<'_, '_>,
    nodes: u32,
    there: impl Fn(&Size) -> u32,
    free: impl Fn(&Size) -> u32,
) -> Option<Usd> {
    let mix = mix(of, nodes, there, free, None);
    (mix.nodes == nodes).then_some(mix.price)
}

pub(super) fn is_within_cap(policy: &Policy, price: Usd) -> bool {
    let cap = policy.nodes.max_price_per_hour;
    cap.is_zero() || price <= cap
}
