//! The pools of a made-up region: each is an instance type in a zone and a market.
//!
//! The names are those of EC2. Prices, room, interruptions and boot times are made up, and drawn from the seed.
//!
//! Guarantees: the room of a pool depends only on the seed, the pool and the hour, and nothing here depends on the
//! policy.
//! Does not: remember anything.

use model::Market;

pub const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

pub struct Type {
    pub name: &'static str,
    pub vcpus: u32,
    pub memory_mib: u64,
    /// The on-demand price an hour, in millionths of a dollar.
    pub micros: u64,
}

const fn of(name: &'static str, vcpus: u32, memory_gib: u64, micros: u64) -> Type {
    Type { name, vcpus, memory_mib: memory_gib * 1024, micros }
}

pub const TYPES: [Type; 10] = [
    of("c7i.large", 2, 4, 90_000),
    of("m7i.large", 2, 8, 100_000),
    of("c7i.xlarge", 4, 8, 180_000),
    of("m7i.xlarge", 4, 16, 200_000),
    of("r7i.xlarge", 4, 32, 265_000),
    of("c7i.2xlarge", 8, 16, 360_000),
    of("m7i.2xlarge", 8, 32, 400_000),
    of("m7a.2xlarge", 8, 32, 465_000),
    of("r7i.2xlarge", 8, 64, 530_000),
    of("m7i.4xlarge", 16, 64, 800_000),
];

#[derive(Clone, Copy, Debug)]
pub struct Pools {
    pub seed: u64,
}

impl Pools {
    /// How many instances a pool has room for in this hour. 0: it is short.
    pub fn room(self, instance_type: &str, zone: &str, market: Market, hour: u64) -> usize {
        let pool = format!("{instance_type} {zone} {market}");
        // Some pools are short more often than others.
        let (rarely, often, least, most) = match market {
            Market::OnDemand => (0.0, 0.06, 100.0, 1000.0),
            Market::Spot => (0.05, 0.35, 30.0, 300.0),
            // Replays have no reservations.
            Market::Reserved => return 0,
        };
        let short = between(rarely, often, self.draw(&pool, "is short", 0));
        if self.draw(&pool, "hour", hour) < short {
            return 0;
        }
        between(least, most, self.draw(&pool, "room", hour)) as usize
    }

    /// The spot price of a type in a zone in this hour: millionths of a dollar for an hour.
    pub fn spot_micros(self, of: &Type, zone: &str, hour: u64) -> u64 {
        let base = between(30.0, 55.0, self.draw(of.name, zone, 0));
        // Prices move slowly.
        let moved = between(-5.0, 5.0, self.draw(of.name, zone, 1 + hour / 6));
        of.micros * (base + moved) as u64 / 100
    }

    /// Whether EC2 warns this spot instance in this step of `step_s` seconds that it will take the instance back. Each
    /// pool has its own rate: 1 to 8 of 100 instances in an hour.
    pub fn may_take(self, pool: (&str, &str), instance_id: &str, step: u64, step_s: f64) -> bool {
        let an_hour = between(0.01, 0.08, self.draw(pool.0, pool.1, 1 << 40));
        self.draw(instance_id, "is taken", step) < an_hour * step_s / 3600.0
    }

    /// How long an instance boots, in seconds.
    pub fn boot_s(self, instance_id: &str) -> i64 {
        2 * between(20.0, 46.0, self.draw(instance_id, "boots", 0)) as i64
    }

    /// A number from 0 to 1, always the same for the same words.
    fn draw(self, of: &str, what: &str, n: u64) -> f64 {
        let bytes = of.bytes().chain([0]).chain(what.bytes()).chain(n.to_le_bytes()).chain(self.seed.to_le_bytes());
        let mut mixed =
            bytes.fold(0xCBF2_9CE4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3));
        for factor in [0xBF58_476D_1CE4_E5B9_u64, 0x94D0_49BB_1331_11EB] {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
        }
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn between(low: f64, high: f64, share: f64) -> f64 {
    low + (high - low) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spot_is_short_more_often_than_on_demand_and_each_hour_is_another() {
        let pools = Pools { seed: 1 };
        let hours = |market| {
            let all = TYPES
                .iter()
                .flat_map(|of| ZONES.iter().flat_map(move |zone| (0..100).map(move |hour| (of.name, *zone, hour))));
            all.filter(|(of, zone, hour)| pools.room(of, zone, market, *hour) == 0).count()
        };
        // Of 3,000 hours.
        let (on_demand, spot) = (hours(Market::OnDemand), hours(Market::Spot));
        assert!((30..180).contains(&on_demand) && (300..900).contains(&spot), "{on_demand} {spot}");
        assert_ne!(pools.draw("a", "b", 1), Pools { seed: 2 }.draw("a", "b", 1));
    }

    #[test]
    fn boots_take_forty_to_ninety_seconds_and_spot_is_cheaper() {
        let pools = Pools { seed: 3 };
        let boots: Vec<i64> = (0..1000).map(|n| pools.boot_s(&format!("i-{n}"))).collect();
        assert_eq!((boots.iter().min(), boots.iter().max()), (Some(&40), Some(&90)));
        for hour in 0..100 {
            assert!(TYPES.iter().all(|of| pools.spot_micros(of, "zone-a", hour) * 100 < of.micros * 61));
        }
    }
}
