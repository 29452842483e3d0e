//! The demonstration from start to end.

use super::super::directory::shared_directory;
use super::super::error::LocalError;
use super::super::stack::Stack;
use super::super::terminal::say;
use super::progress::Demo;
use super::verdict::{self, Check};
use super::work;
use std::path::Path;

/// Runs the demonstration. Returns every check, passed or failed.
pub(in crate::local) async fn run(stack: &Stack) -> Result<Vec<Check>, LocalError> {
    let results = stack.places.dir.join("results");
    shared_directory(&results)?;
    let prepared = results.clone();
    let made = tokio::task::spawn_blocking(move || work::make(&prepared)).await;
    let failed = |source| LocalError::System { what: "prepare the demonstration's jobs", source };
    let (tasks, urgent) = made.unwrap_or_else(|e| Err(std::io::Error::other(e))).map_err(failed)?;

    let mut demo = Demo::new(stack);
    say(&format!("\nThe demonstration: {} jobs on files; results in {}", tasks.len() + 1, results.display()));
    for task in tasks {
        demo.submit(task).await?;
    }
    let end = demo.follow(urgent).await?;
    verdict::checks(&mut demo, end).await
}

/// Prints every check; an error if one failed.
pub(in crate::local) fn judge(checks: &[Check], logs: &Path) -> Result<(), LocalError> {
    say("");
    for check in checks {
        say(&check.to_string());
    }
    let failed = checks.iter().filter(|c| !c.is_ok()).count();
    if failed > 0 {
        return Err(LocalError::Demo { failed, checks: checks.len(), logs: logs.to_owned() });
    }
    say(&format!("\nAll {} checks passed.", checks.len()));
    Ok(())
}
