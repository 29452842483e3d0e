//! How the time of a piece of work grows with its size.
//!
//! Benchmarks include this file. For each size it prints the shortest of several times, and the exponent of the growth since
//! the size before: 1 is linear, 2 is quadratic. The shortest time is the one with the least disturbance by other programs.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How often each size is measured at least, and how long.
const LEAST: (u32, Duration) = (5, Duration::from_millis(300));

/// Measures the work at each size. `prepare` makes the input of a size and is not measured.
pub(crate) fn measure<I, R>(name: &str, sizes: &[u32], prepare: impl Fn(u32) -> I, work: impl Fn(&I) -> R) {
    let mut before: Option<(u32, f64)> = None;
    for size in sizes {
        let input = prepare(*size);
        let (mut least, mut times, began) = (f64::MAX, 0, Instant::now());
        while times < LEAST.0 || began.elapsed() < LEAST.1 {
            let from = Instant::now();
            let result = black_box(work(black_box(&input)));
            least = least.min(from.elapsed().as_secs_f64());
            drop(result);
            times += 1;
        }
        let exponent = before.map(|(of, s)| (least / s).ln() / (f64::from(*size) / f64::from(of)).ln());
        let growth = exponent.map_or_else(String::new, |e| format!("growth {e:.2}"));
        let each_ns = least * 1e9 / f64::from(*size);
        println!("{name:<28} {size:>9} {:>12.3} ms {each_ns:>9.0} ns each  {growth}", least * 1e3);
        before = Some((*size, least));
    }
}
