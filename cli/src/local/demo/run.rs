//! The demonstration from start to end.

use super::super::directory::{SHARED, fresh_directory};
use super::super::stack::Stack;
use super::super::terminal::say;
use super::progress::Demo;
use super::verdict::{self, Check};
use super::work;
use anyhow::{Context as _, ensure};
use std::path::Path;

/// Runs the demonstration. Returns every check, passed or failed.
pub(in crate::local) async fn run(stack: &Stack) -> anyhow::Result<Vec<Check>> {
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

/// Prints every check; an error if one failed.
pub(in crate::local) fn judge(checks: &[Check], logs: &Path) -> anyhow::Result<()> {
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
