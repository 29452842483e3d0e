//! The demonstration: real jobs on real processes, reported as they run, and checked at the end.
//!
//! Flow: `work` makes the jobs and computes their expected results; `progress` submits them and reports every event
//! while the fleet grows, works and shrinks; `verdict` checks everything.
//! Guarantees: it ends within its time limit, with success or not; the expected results are computed
//! here, not by the system it shows.
//! Does not: bypass the tables. Like any user, it submits, cancels and watches jobs through the tables.

mod progress;
mod verdict;
mod work;

pub(super) use verdict::Check;

use super::directory::{SHARED, fresh_directory};
use super::stack::Stack;
use super::terminal::say;
use anyhow::{Context as _, ensure};
use progress::Demo;
use std::path::Path;

/// Runs the demonstration. Returns every check, passed or failed.
pub(super) async fn run(stack: &Stack) -> anyhow::Result<Vec<Check>> {
    let results = stack.places.dir.join("results");
    fresh_directory(&results, SHARED)?;
    let prepared = results.clone();
    let made = tokio::task::spawn_blocking(move || work::make(&prepared)).await;
    let (tasks, urgent) = made?.context("cannot prepare the demonstration's jobs")?;

    let mut demo = Demo::new(stack);
    say(&format!("\nThe demonstration: {} jobs on files; results in {}", tasks.len() + 1, results.display()));
    for task in tasks {
        demo.submit(task).await?;
    }
    let end = demo.follow(urgent).await?;
    verdict::checks(&mut demo, end).await
}

/// Prints every check. Returns an error if one failed.
pub(super) fn judge(checks: &[Check], logs: &Path) -> anyhow::Result<()> {
    say("");
    for check in checks {
        say(&check.to_string());
    }
    let failed = checks.iter().filter(|c| !c.is_ok()).count();
    let (all, logs) = (checks.len(), logs.display());
    ensure!(failed == 0, "{failed} of {all} checks of the demonstration failed: see above, and the logs in {logs}");
    say(&format!("\nAll {all} checks passed."));
    Ok(())
}
