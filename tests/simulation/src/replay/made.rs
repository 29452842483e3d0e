//! Made-up arrivals: fewer at night and on weekends, bursts, some large jobs, some jobs of several nodes.
//!
//! Guarantees: the same seed and days give the same arrivals.
//! Does not: represent the work of a real cluster.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

/// The hour of the week in which a world begins, from Monday on: Friday, 8:00 UTC.
const FIRST_HOUR: u64 = 4 * 24 + 8;
/// How many arrivals there are in a busy hour.
const BUSY: f64 = 12.0;

/// The lines of a file of arrivals for this many days.
pub fn lines(seed: u64, days: u64) -> Vec<Value> {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed ^ 0x5EED_0000_0A88_14A1);
    let mut lines = Vec::new();
    for hour in 0..days * 24 {
        let busy = busy(FIRST_HOUR + hour);
        let mut times = Vec::new();
        let most = (BUSY * busy * 2.0) as u64;
        for _ in 0..dice.random_range(0..=most) {
            times.push((dice.random_range(0..3600_u64), false));
        }
        if dice.random_bool(0.06 * busy) {
            times.push((dice.random_range(0..3600), true));
        }
        times.sort_unstable();
        lines.extend(times.into_iter().map(|(s, is_burst)| line(&mut dice, hour * 3600 + s, is_burst)));
    }
    lines
}

/// How busy an hour of the week is, from 0 to 1.
fn busy(hour_of_week: u64) -> f64 {
    let of_day = match hour_of_week % 24 {
        9..=17 => 1.0,
        7 | 8 | 18..=21 => 0.5,
        _ => 0.15,
    };
    let is_weekend = hour_of_week / 24 % 7 >= 5;
    if is_weekend { of_day * 0.25 } else { of_day }
}

fn line(dice: &mut Xoshiro256PlusPlus, at_s: u64, is_burst: bool) -> Value {
    let minutes = |dice: &mut Xoshiro256PlusPlus, low: u64, high: u64| dice.random_range(low * 60..=high * 60);
    if is_burst {
        let count = dice.random_range(30..=120);
        return json!({"at_s": at_s, "seconds": minutes(dice, 2, 15), "count": count, "vcpus": 1, "memory_mib": 1500});
    }
    match dice.random_range(0..100) {
        0..4 => json!({"at_s": at_s, "seconds": minutes(dice, 60, 180), "vcpus": 8, "memory_mib": 28_000}),
        4..7 => json!({"at_s": at_s, "seconds": minutes(dice, 30, 90), "vcpus": 4, "memory_mib": 7000,
                       "nodes": dice.random_range(2..=6)}),
        _ => {
            let vcpus = [1, 1, 2, 2, 4].get(dice.random_range(0..5)).copied().unwrap_or(1);
            json!({"at_s": at_s, "seconds": minutes(dice, 3, 40), "vcpus": vcpus,
                   "memory_mib": vcpus * dice.random_range(1000..=3500)})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::arrivals;

    #[test]
    fn what_is_made_can_be_read_and_has_its_rhythm() {
        let made = lines(1, 28);
        let file: Vec<String> = made.iter().map(Value::to_string).collect();
        let arrivals = arrivals::read(&file.join("\n")).unwrap();
        let in_hours = |wanted: fn(u64) -> bool| arrivals.iter().filter(|a| wanted(FIRST_HOUR + a.at_s / 3600)).count();
        let (nights, weekends) = (in_hours(|hour| hour % 24 < 6), in_hours(|hour| hour / 24 % 7 >= 5));
        assert!(arrivals.len() > 1000 && nights * 8 < arrivals.len() && weekends * 6 < arrivals.len());
        assert!(arrivals.iter().any(|a| a.count > 1) && arrivals.iter().any(|a| a.spec.needs.nodes > 1));
        assert_eq!(made, lines(1, 28));
        assert_ne!(made, lines(2, 28));
    }
}
