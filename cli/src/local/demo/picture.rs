//! The picture of the demonstration: what each node did, and when each job was submitted and ended.
//!
//! Guarantees: it is made of the events and records in the tables, as the page is. Times count from the first event.
//! Does not: decide whether the demonstration succeeded. Its checks count, with a picture or without.

use super::super::error::LocalError;
use super::progress::{Demo, TIME_LIMIT};
use history::{History, Lane, Picture, Tone};
use model::JobState;
use model::time::Span;
use std::path::PathBuf;

/// The picture's name in the directory of the system.
const FILE: &str = "demo.svg";
/// How far back the picture goes: further than any demonstration began.
const SPAN: Span = Span::from_s(TIME_LIMIT.as_ms() / 1000 * 2);

/// Writes the picture into the directory of the system. Returns its path.
pub(super) async fn write(demo: &Demo<'_>) -> Result<PathBuf, LocalError> {
    let past = History::read(demo.store(), SPAN, (demo.stack.clock)()).await?;
    let picture = Picture {
        title: format!("The demonstration: {} jobs as real processes on this machine", demo.jobs.len()),
        command: "nodekeeper local --demo".to_owned(),
        past: &past,
        lanes: lanes(demo).await?,
        moments: Vec::new(),
        remarks: vec![
            "The nodes are processes here: they boot in seconds, and a minute of the schedules takes a second."
                .to_owned(),
        ],
    };
    let file = demo.stack.places.dir.join(FILE);
    tokio::fs::write(&file, picture.svg()).await.map_err(LocalError::file("write", &file))?;
    Ok(file)
}

/// When jobs were submitted, and how they ended.
async fn lanes(demo: &Demo<'_>) -> Result<Vec<Lane>, LocalError> {
    let lane =
        |name: &str, hint: &str, tone| Lane { name: name.to_owned(), hint: hint.to_owned(), tone, marks: vec![] };
    let mut submitted = lane("jobs submitted", "", Tone::People);
    let mut complete = lane("jobs complete", "", Tone::Good);
    let mut other =
        lane("failed or cancelled", "failed, rejected and cancelled jobs, as the demonstration expects", Tone::Bad);
    for (id, task) in &demo.jobs {
        let Some(job) = demo.store().job(*id).await? else { continue };
        submitted.marks.push((job.summary.submitted_at, task.name.clone()));
        if let Some(at) = job.finished_at {
            let state = job.summary.state;
            let lane = if state == JobState::Complete { &mut complete } else { &mut other };
            lane.marks.push((at, format!("{} {state}", task.name)));
        }
    }
    Ok(vec![submitted, complete, other])
}
