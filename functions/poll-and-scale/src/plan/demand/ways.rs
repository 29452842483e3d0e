//! The ways to launch one more node.
//!
//! Does not: find them; `find_ways` does.

use model::policy::Size;
use model::{MarketNeed, Offering, Usd};
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone)]
pub(super) struct Ways<'a> {
    /// The size of the first offering.
    pub(super) size: &'a Size,
    pub(super) offerings: Arc<[Offering]>,
    /// The price that the caps count: that of the dearest offering of this size.
    pub(super) price: Usd,
}

impl<'a> Ways<'a> {
    pub(super) fn new(size: &'a Size, offerings: Vec<Offering>) -> Self {
        let of_size = offerings.iter().filter(|offering| offering.size == size.name);
        let price = of_size.map(|offering| offering.price_per_hour).max().unwrap_or(size.price_per_hour);
        Self { size, offerings: offerings.into(), price }
    }

    pub(super) fn are(&self, others: &Arc<[Offering]>) -> bool {
        Arc::ptr_eq(&self.offerings, others) || self.offerings == *others
    }
}

/// The ways of the last launch, kept for a next launch with the same ways. Finding them takes time for each type and zone.
pub(super) struct CachedWays<'a> {
    pub(super) sizes: Rc<[&'a Size]>,
    pub(super) market: Option<MarketNeed>,
    pub(super) ways: Ways<'a>,
}
