//! Runs the same arrivals with each policy.
//!
//! Guarantees: a world in which an invariant broke gives no numbers.
//! Does not: print.

use crate::core::How;
use crate::replay::Replay;
use crate::replay::measured::Measured;
use crate::scenario::Scenario;
use crate::stack;
use crate::world::simulate;
use model::Policy;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What was measured with each policy, in the order of the policies. A policy is its name and its TOML.
pub fn compare(
    seed: u64,
    policies: &[(String, String)],
    replay: Replay,
    threads: usize,
) -> Result<Vec<(String, Measured)>, String> {
    let read = |(name, toml): &(String, String)| {
        let policy = Policy::from_toml(toml).map_err(|e| format!("{name}: {e}"))?;
        Ok((name.clone(), policy.to_json()))
    };
    let policies = policies.iter().map(read).collect::<Result<Vec<_>, String>>()?;
    let (next, replay, results) = (AtomicUsize::new(0), Arc::new(replay), Mutex::new(Vec::new()));
    stack::run_on(threads.clamp(1, policies.len().max(1)), || {
        while let n = next.fetch_add(1, Ordering::Relaxed)
            && let Some((name, policy)) = policies.get(n)
        {
            let scenario = Scenario::replay(seed, policy.clone(), Arc::clone(&replay));
            let outcome = simulate(scenario, How::default());
            let measured = match (outcome.broken, outcome.measured) {
                (None, Some(measured)) => Ok((name.clone(), measured)),
                (broken, _) => Err(format!("{name}: the world broke: {broken:?}")),
            };
            results.lock().unwrap_or_else(PoisonError::into_inner).push((n, measured));
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(n, _)| *n);
    results.into_iter().map(|(_, measured)| measured).collect()
}
