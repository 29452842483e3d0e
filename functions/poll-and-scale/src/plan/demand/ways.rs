//! The ways to launch one more node.
//!
//! Does not: find them; `find_ways` does.

use model::policy::Size;
use model::{MarketNeed, Offering, Usd};
use std::rc::Rc;
use std::sync::Arc;

/// The ways to launch one more node.
#[derive(Clone)]
pub(super) struct Ways<'a> {
    /// The size of the first one.
    pub(super) size: &'a Size,
    pub(super) offerings: Arc<[Offering]>,
    /// What the caps count: the price of the dearest one of this size.
    pub(super) price: Usd,
}

impl<'a> Ways<'a> {
    pub(super) fn new(size: &'a Size, offerings: Vec<Offering>) -> Self {
        let of_size = offerings.iter().filter(|offering| offering.size == size.name);
        let price = of_size.map(|offering| offering.price_per_hour).max().unwrap_or(size.price_per_hour);
        Self { size, offerings: offerings.into(), price }
    }

    /// Whether these are the same offerings.
    pub(super) fn are(&self, others: &Arc<[Offering]>) -> bool {
        Arc::ptr_eq(&self.offerings, others) || self.offerings == *others
    }
}

/// The ways of the last launch, if the next one has the same. To find them takes as long as there are types and zones.
pub(super) struct KnownWays<'a> {
    pub(super) sizes: Rc<[&'a Size]>,
    pub(super) asked: Option<MarketNeed>,
    pub(super) ways: Ways<'a>,
}
