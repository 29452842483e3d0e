//! The demonstration from start to end.

use super::super::directory::shared_directory;
use super::super::error::LocalError;
use super::super::stack::Stack;
use super::super::terminal::say;
use super::picture;
use super::progress::Demo;
use super::verdict::{self, Check};
use super::work;
use std::path::{Path, PathBuf};

/// The result of the demonstration.
pub(in crate::local) struct Shown {
    /// Every check, passed or failed.
    pub(in crate::local) checks: Vec<Check>,
    /// Where the picture of what happened is, or why there is none.
    picture: Result<PathBuf, LocalError>,
}

/// Runs the demonstration.
pub(in crate::local) async fn run(stack: &Stack) -> Result<Shown, LocalError> {
    let results = stack.places.dir.join("results");
    shared_directory(&results)?;
    let prepared = results.clone();
    let made = tokio::task::spawn_blocking(move || work::make(&prepared)).await;
    let failed = |source| LocalError::System { what: "prepare the demonstration's jobs", source };
    let (tasks, urgent) = made.unwrap_or_else(|e| Err(std::io::Error::other(e))).map_err(failed)?;

    let mut demo = Demo::new(stack);
    say(&format!(
        "\nThe demonstration: {} jobs on files of this machine; results in {}",
        tasks.len() + 1,
        results.display()
    ));
    for task in tasks {
        demo.submit(task).await?;
    }
    let end = demo.follow(urgent).await?;
    let checks = verdict::checks(&mut demo, end).await?;
    Ok(Shown { checks, picture: picture::write(&demo).await })
}

/// Prints every check, and where the picture is; an error if a check failed.
pub(in crate::local) fn judge(shown: &Shown, logs: &Path) -> Result<(), LocalError> {
    let Shown { checks, picture } = shown;
    say("");
    for check in checks {
        say(&check.to_string());
    }
    match picture {
        Ok(file) => say(&format!("\nA picture of it, for a browser: {}", file.display())),
        Err(error) => say(&format!("\nThere is no picture: {}", model::error_chain::error_chain(error))),
    }
    let failed = checks.iter().filter(|c| !c.is_ok()).count();
    if failed > 0 {
        return Err(LocalError::Demo { failed, checks: checks.len(), logs: logs.to_owned() });
    }
    say(&format!("\nAll {} checks passed.", checks.len()));
    Ok(())
}
