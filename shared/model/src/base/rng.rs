//! Random values: they make ids unique, and spread calls that would otherwise come at the same time.
//!
//! Guarantees: with a seed, the same calls give the same values on every machine and in every
//! version; clones share one sequence.
//! Does not: make secrets. A decision is right whatever the random values are.

use crate::Time;
use rand::Rng as _;
use rand::rngs::Xoshiro256PlusPlus;
use std::sync::{Arc, Mutex, PoisonError};
use ulid::Ulid;

/// A source of random values. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rng(Option<Arc<Mutex<Xoshiro256PlusPlus>>>);

impl Rng {
    /// The random source of the machine.
    pub const fn real() -> Self {
        Self(None)
    }

    /// A repeatable source.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn seeded(seed: u64) -> Self {
        use rand::SeedableRng;
        Self(Some(Arc::new(Mutex::new(Xoshiro256PlusPlus::seed_from_u64(seed)))))
    }

    fn draw<const N: usize>(&self) -> [u64; N] {
        match &self.0 {
            #[allow(
                clippy::disallowed_methods,
                reason = "this is the one place that uses the random source of the machine"
            )]
            None => std::array::from_fn(|_| rand::rng().next_u64()),
            Some(seeded) => {
                let mut seeded = seeded.lock().unwrap_or_else(PoisonError::into_inner);
                std::array::from_fn(|_| seeded.next_u64())
            }
        }
    }

    /// Random bits, enough to tell apart ids made in the same millisecond.
    pub fn bits(&self) -> u128 {
        let [high, low] = self.draw();
        u128::from(high) << 64 | u128::from(low)
    }

    /// A new ULID from the functions' time and random bits.
    pub fn ulid(&self, now: Time) -> Ulid {
        Ulid::from_parts(u64::try_from(now.as_ms()).unwrap_or(0), self.bits())
    }

    /// A random number from `low` (included) to `high` (not included).
    pub fn between(&self, low: f64, high: f64) -> f64 {
        // This does not use the distributions of `rand`, because a new version of `rand` may change their values. A
        // float holds 53 bits.
        let [bits] = self.draw();
        let unit = (bits >> 11) as f64 / (1_u64 << 53) as f64;
        low + (high - low) * unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(rng: &Rng) -> (u128, Ulid, f64) {
        (rng.bits(), rng.ulid(Time::from_ms(7)), rng.between(1.0, 1.5))
    }

    #[test]
    fn the_same_seed_always_gives_the_same_values_and_the_machine_never_does() {
        assert_eq!(some(&Rng::seeded(1)), some(&Rng::seeded(1)));
        assert_ne!(some(&Rng::seeded(1)), some(&Rng::seeded(2)));
        assert_ne!(some(&Rng::real()), some(&Rng::real()));
        assert_eq!(Rng::seeded(1).bits(), 0xcfc5_d07f_6f03_c29b_bf42_4132_963f_e08d);
    }

    #[test]
    fn clones_share_one_sequence() {
        let (alone, shared) = (Rng::seeded(1), Rng::seeded(1));
        let clone = shared.clone();
        assert_eq!([alone.bits(), alone.bits()], [shared.bits(), clone.bits()]);
    }

    #[test]
    fn between_stays_between() {
        let rng = Rng::seeded(3);
        assert!((0..1000).map(|_| rng.between(1.0, 1.5)).all(|x| (1.0..1.5).contains(&x)));
    }
}
