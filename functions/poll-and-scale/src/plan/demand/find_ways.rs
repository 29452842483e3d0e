//! Finds the ways to launch one more node: the offerings that EC2 may take, the best one first.
//!
//! Guarantees: each way is within the caps; a way of the same size as the first has room for all that this plan puts on the
//! node. A way of another size fits the job, and may have less room: the next run places what does not fit.
//! Does not: know bins, or count what is launched; the packing does.

use super::super::sizes::{every_offering, offerings, refusals};
use super::packing::{Blocked, BlockedBy, LimitMode, Packing};
use super::ways::{CachedWays, Ways};
use model::explain::name_of;
use model::policy::Size;
use model::{ControlKey, Market, MarketNeed, Offering, Reason, Usd};
use std::rc::Rc;

/// The most offerings of a launch. A plan for a thousand nodes and hundreds of instance types would be slow with more, and a
/// run has no time for more refusals.
const MAX_WAYS: usize = 32;

impl<'a> Packing<'_, 'a> {
    /// The cheapest of these sizes that may be launched now, and the offerings to try for it, the best one first.
    pub(super) fn ways(&mut self, sizes: &Rc<[&'a Size]>, asked: Option<MarketNeed>) -> Result<Ways<'a>, Blocked> {
        let is_same = |known: &&CachedWays<'a>| Rc::ptr_eq(&known.sizes, sizes) && known.market == asked;
        if let Some(CachedWays { ways, .. }) = self.last_ways.as_ref().filter(is_same)
            && self.cap_on(ways.size, None).is_none()
            && self.closed(ways.size).is_none()
        {
            return Ok(ways.clone());
        }
        let ways = self.find_ways(sizes, asked)?;
        self.last_ways =
            self.are_steady(&ways).then(|| CachedWays { sizes: Rc::clone(sizes), market: asked, ways: ways.clone() });
        Ok(ways)
    }

    /// Whether the next launch has the same ways, as long as no cap is reached and their reservation has room. A share of a zone,
    /// a price cap or a number of attempts would change the ways.
    fn are_steady(&self, ways: &Ways<'a>) -> bool {
        let policy = &self.view.observed.policy;
        let is_tried = |offering: &Offering| self.attempts_allowed(offering).is_some();
        policy.launch.zone_share >= 1.0
            && policy.nodes.max_price_per_hour.is_zero()
            && !ways.offerings.iter().any(is_tried)
    }

    /// Counts one more attempt at each of these offerings.
    pub(super) fn note_tries(&mut self, offerings: &[Offering]) {
        if self.last_ways.is_some() {
            return;
        }
        for offering in offerings {
            if self.attempts_allowed(offering).is_some() {
                *self.tried.entry(ControlKey::shortage_of(offering)).or_default() += 1;
            }
        }
    }

    fn find_ways(&self, sizes: &[&'a Size], asked: Option<MarketNeed>) -> Result<Ways<'a>, Blocked> {
        let mut blocked = Blocked { wait: BlockedBy::Backoff, why: Vec::new() };
        let mut ways: Vec<(&'a Size, Offering)> = Vec::new();
        for size in sizes {
            if ways.len() >= MAX_WAYS {
                break;
            }
            // Room does not help a size that EC2 does not launch now.
            let (of_size, refused) = self.attempts(size, asked);
            if of_size.is_empty() {
                refused.into_iter().for_each(|reason| blocked.add(reason));
            } else if let Some(cap) = self.cap_on(size, of_size.iter().map(|o| o.price_per_hour).min()) {
                blocked.wait = BlockedBy::Cap;
                blocked.add(cap);
            } else {
                ways.extend(of_size.into_iter().map(|offering| (*size, offering)));
            }
        }
        if ways.is_empty() && blocked.wait == BlockedBy::Backoff && self.limits == LimitMode::Caps {
            let is_allowed = |size: &Size| size.reservation.is_none() && self.cap_on(size, None).is_none();
            let allowed = sizes.iter().copied().find(|size| is_allowed(size));
            let of = |size| {
                every_offering(&self.view.observed.policy, size, asked)
                    .into_iter()
                    .map(move |offering| (size, offering))
            };
            ways = allowed.into_iter().flat_map(of).collect();
        }
        // A size has another price in each zone, so the offerings are sorted, and not the sizes.
        let is_second = |o: &Offering| asked == Some(MarketNeed::SpotFirst) && o.market == Market::OnDemand;
        ways.sort_by_key(|(_, offering)| (is_second(offering), offering.price_per_hour));
        ways.truncate(MAX_WAYS);
        match ways.first() {
            Some((first, _)) => Ok(Ways::new(first, self.alternatives(first, ways))),
            None => Err(blocked),
        }
    }

    /// The ways of the launch whose first way is of this size: those that may be launched in place of the first one.
    fn alternatives(&self, first: &Size, ways: Vec<(&'a Size, Offering)>) -> Vec<Offering> {
        let policy = &self.view.observed.policy;
        let has_price_cap = !policy.nodes.max_price_per_hour.is_zero();
        // The plan puts jobs on the node before it is launched, and they must fit on each type of the size.
        let fits = |size: &Size| size.name != first.name || size.capacity.covers(first.capacity);
        let is_allowed = |o: &Offering| !has_price_cap || !self.counts.is_capped(1, o.price_per_hour);
        // The caps are counted for the size of the first offering. Offerings of other sizes may replace it only if no cap
        // applies to them, and neither may any dearer offering behind one with a cap: the next run counts the caps anew.
        let is_counted = |o: &Offering| o.size == first.name || !(has_price_cap || policy.most_of(&o.size).is_some());
        let allowed = ways.into_iter().filter(|(size, o)| fits(size) && is_allowed(o)).map(|(_, offering)| offering);
        allowed.take_while(is_counted).collect()
    }

    /// How often this run may try an offering; `None` if EC2 was not short of it recently.
    fn attempts_allowed(&self, offering: &Offering) -> Option<u64> {
        self.view.observed.control.shortage(offering).attempts(self.view.observed.observed_at)
    }

    /// The offerings of a size that one more launch may try; if there is none, also why.
    fn attempts(&self, size: &Size, asked: Option<MarketNeed>) -> (Vec<Offering>, Vec<Reason>) {
        if let Some(closed) = self.closed(size) {
            return (Vec::new(), vec![closed]);
        }
        let mut spent = Vec::new();
        let mut ways = offerings(self.view, size, asked);
        ways.retain(|offering| {
            if let Some(zone) = offering.zone.as_deref().filter(|zone| self.counts.is_zone_full(zone)) {
                let (zone, share) = (zone.to_owned(), self.view.observed.policy.launch.zone_share.to_string());
                let full = Reason::ZoneFull { zone, share };
                if !spent.contains(&full) {
                    spent.push(full);
                }
                return false;
            }
            let key = ControlKey::shortage_of(offering);
            let over = |most: &u64| !self.is_together && self.tried.get(&key).is_some_and(|tried| tried >= most);
            let Some(most) = self.attempts_allowed(offering).filter(over) else { return true };
            let offering = format!("{} {}", offering.market, offering.instance_type);
            spent.push(Reason::AttemptsSpent { offering, most });
            false
        });
        if ways.is_empty() {
            spent.extend(refusals(self.view, size, asked));
        }
        (ways, spent)
    }

    /// The cap that does not allow one more node of this size, at this price if it is known. If the cap is reached only because
    /// of the room that is reserved for the first job, the reason names that job.
    fn cap_on(&self, size: &Size, price: Option<Usd>) -> Option<Reason> {
        let (cap, without_reserved) = self.counts.cap_on(size, price.unwrap_or(size.price_per_hour))?;
        match self.findings.first {
            Some(job) if without_reserved => Some(Reason::KeptForEarlier { job: name_of(job) }),
            _ => Some(cap),
        }
    }
}
