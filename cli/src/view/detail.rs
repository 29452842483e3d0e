//! One job, and one node, with everything that is stored about it.
//!
//! Guarantees: the values of a job's environment are left out on the page; their names are there.
//! Does not: list jobs or nodes (`rows` does).

use super::live::LiveView;
use super::next::JobWait;
use super::rows::{event_row, retry_rules, with};
use super::story;
use crate::console::show;
use history::History;
use model::{Alloc, EndCause, Job, JobId, Slot, Subject};
use serde_json::{Value, json};
use store::{DbError, Store};

/// The most allocs of a job, and the most lives and events of a slot, that are shown: the newest.
const MOST: usize = 100;

/// A job with its allocs, for programs. The `message` of an alloc is its cause in words.
pub(crate) fn job_shape(job: &Job, allocs: &[Alloc], JobWait { because, starts, would_start_if }: &JobWait) -> Value {
    let cause = job.cause();
    let alloc = |alloc: &Alloc| with(json!(alloc), json!({ "message": alloc.cause.as_ref().map(ToString::to_string) }));
    let more = json!({
        "all_allocs": allocs.iter().map(alloc).collect::<Vec<_>>(), "cause": cause,
        "exit_code": cause.and_then(EndCause::exit_code), "waits_because": because, "starts": starts, "would_start_if": would_start_if,
    });
    show::flat(with(json!(job), more))
}

/// A job on the page.
pub(crate) async fn job_detail(store: &Store, live: &LiveView, id: JobId) -> Result<Option<Value>, DbError> {
    let Some(mut job) = store.job(id).await? else { return Ok(None) };
    let mut allocs = store.allocs_of([&job]).await?.rows;
    allocs.sort_by_key(|a| std::cmp::Reverse((a.summary.placed_at, a.id())));
    allocs.truncate(MOST);
    job.env.values_mut().for_each(String::clear);
    allocs.iter_mut().for_each(|alloc| alloc.env.clear());
    let more = json!({
        "whole_command": show::command(&job.work.command), "rules": retry_rules(&job), "array_index": job.summary.array_index(),
        "story": story::of(store, &Subject::Job(id), None).await?,
    });
    let waits = live.present.wait_of(&job.summary);
    Ok(Some(with(job_shape(&job, &allocs, &waits), more)))
}

/// A node on the page, with the lives of its slot: the newest first.
pub(crate) async fn node_detail(
    store: &Store,
    live: &LiveView,
    past: &History,
    slot: Slot,
) -> Result<Option<Value>, DbError> {
    let Some(record) = store.node(slot).await? else { return Ok(None) };
    let most = i32::try_from(MOST).unwrap_or(i32::MAX);
    let events = store.history(&Subject::Slot(slot).to_string(), most).await?;
    let events = events.iter().map(|event| event_row(event, None));
    let lives = past.lives.iter().rev().filter(|life| life.slot == slot).take(MOST).map(|life| {
        let phases = life.segments(past.uses_of(life), past.from, past.to);
        json!({ "node_id": life.node_id, "size": life.size, "from": life.from, "to": life.to, "phases": phases })
    });
    let more = json!({ "record": record, "events": events.collect::<Vec<_>>(), "lives": lives.collect::<Vec<_>>() });
    Ok(Some(with(live.node(&record), more)))
}
