//! What happened to something, and why, in the order of time. A job has a story, with what happened to all its allocs.
//!
//! Rows tell the ordinary course: the row of a job its submission and its end, and the row of an alloc its placement, its start and
//! its end. Events tell the rest, such as a retry.
//!
//! Guarantees: each happening is told once, with the reason that was stored.
//! Does not: show events of nodes in the story of a job, or rows and events that are no longer kept.

use crate::console::show::several;
use futures::{StreamExt, TryStreamExt, stream};
use model::events::FOR_COSTS;
use model::{ActionName, Alloc, AllocId, Event, Job, JobId, JobSummary, Reason, Subject, Time};
use serde::Serialize;
use std::collections::BTreeSet;
use store::{DbError, Store};

/// The most events of a job or an alloc that are read, and the most happenings that are shown.
const WHOLE: i32 = 1000;
/// How many events of a slot, a function or the cluster are shown, unless more are wanted.
const RECENT: i32 = 50;

/// The most allocs whose events are read: the last copies.
const ALLOCS: usize = 100;

/// How many queries are made at the same time.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Happening {
    pub(crate) at: Time,
    /// The subject of its event: the job or the alloc.
    pub(crate) subject: String,
    pub(crate) action: String,
    pub(crate) reason: String,
}

/// What is stored about a subject, the oldest first: the newest `limit` happenings of it. A job and an alloc have a story; the
/// others have their events.
pub(crate) async fn of(store: &Store, subject: &Subject, limit: Option<i32>) -> Result<Vec<Happening>, DbError> {
    let story = match subject {
        Subject::Job(id) => of_job(store, *id, None).await?,
        Subject::Alloc(id) => {
            let mut story = of_job(store, id.job_id, Some(*id)).await?;
            story.retain(|happening| happening.subject == subject.to_string());
            story
        }
        _ => {
            let events = store.history(&subject.to_string(), limit.unwrap_or(RECENT)).await?;
            events.iter().rev().map(Happening::with_detail).collect()
        }
    };
    Ok(in_order(story, subject, limit.unwrap_or(WHOLE)))
}

/// The happenings of a job and of all its allocs, or of this one. Without stored rows, only the events.
async fn of_job(store: &Store, id: JobId, only: Option<AllocId>) -> Result<Vec<Happening>, DbError> {
    let events = store.history(&Subject::Job(id).to_string(), WHOLE).await?;
    let job = store.job(id).await?;
    let allocs = match (only, &job) {
        (Some(id), _) => store.alloc(id).await?.into_iter().collect(),
        (None, Some(job)) => store.allocs_of([job]).await?.rows,
        (None, None) => Vec::new(),
    };
    let mut story: Vec<Happening> = job.iter().flat_map(of_job_row).collect();
    // A person ends a job with an event that says who did; a rejection has one, too.
    let ends = [ActionName::Cancel, ActionName::Reject].map(ActionName::as_str);
    if events.iter().any(|event| ends.contains(&event.action.as_str())) {
        story.retain(|happening| happening.action != ActionName::EndJob.as_str());
    }
    story.extend(events.iter().map(Happening::of_event));
    story.extend(allocs.iter().flat_map(of_alloc_row));
    let ids: BTreeSet<AllocId> = allocs.iter().rev().map(Alloc::id).take(ALLOCS).chain(only).collect();
    let read: Vec<Vec<Happening>> =
        stream::iter(ids).map(|id| events_of_one(store, id)).buffered(AT_ONCE).try_collect().await?;
    story.extend(read.into_iter().flatten());
    Ok(story)
}

/// The events of an alloc, without the placement of a copy: the row of the copy tells it.
async fn events_of_one(store: &Store, id: AllocId) -> Result<Vec<Happening>, DbError> {
    let events = store.history(&Subject::Alloc(id).to_string(), WHOLE).await?;
    let events = events.iter().filter(|e| e.action != ActionName::Replace.as_str());
    Ok(events.map(Happening::of_event).collect())
}

/// The newest `limit` happenings, the oldest of them first. If there are more, the first line says how many.
fn in_order(mut story: Vec<Happening>, subject: &Subject, limit: i32) -> Vec<Happening> {
    // At one moment the order is: what was decided, the alloc that ends by it, the job that ends with the alloc.
    let ends = [ActionName::EndAlloc, ActionName::EndJob].map(ActionName::as_str);
    story.sort_by_key(|happening| (happening.at, ends.iter().position(|end| *end == happening.action)));
    let older = story.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    let first = story.get(older).filter(|_| older > 0).map(|first| Happening {
        at: first.at,
        subject: subject.to_string(),
        action: "…".to_owned(),
        reason: format!("{} before this: give a larger --limit", several(older, "happening")),
    });
    first.into_iter().chain(story.into_iter().skip(older)).collect()
}

impl Happening {
    fn of_event(event: &Event) -> Self {
        let Event { subject, action, reason, .. } = event.clone();
        Self { at: event.at(), subject, action, reason }
    }

    /// The happening of an event that is not of a job, with all that the event says.
    fn with_detail(event: &Event) -> Self {
        let Event { subject, action, mut reason, detail, .. } = event.clone();
        for (name, value) in detail.iter().filter(|(name, _)| !FOR_COSTS.contains(&name.as_str())) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            reason.push_str(&format!(" {name}={value}"));
        }
        Self { at: event.at(), subject, action, reason }
    }
}

/// The submission of a job, and its end.
fn of_job_row(job: &Job) -> Vec<Happening> {
    let JobSummary { submitted_at, priority, needs, by, .. } = &job.summary;
    let by = by.as_ref().map(|by| format!("by {by}: ")).unwrap_or_default();
    let happened = |at: Time, action: ActionName, reason: String| Happening {
        at,
        subject: Subject::Job(job.summary.job_id).to_string(),
        action: action.to_string(),
        reason,
    };
    let submitted = format!("{by}priority {priority}, {} node(s)", needs.nodes);
    let ended = job.finished_at.map(|at| happened(at, ActionName::EndJob, job.now_reason().to_string()));
    std::iter::once(happened(*submitted_at, ActionName::Submit, submitted)).chain(ended).collect()
}

/// The placement, the start and the end of an alloc.
fn of_alloc_row(alloc: &Alloc) -> Vec<Happening> {
    let summary = &alloc.summary;
    let happened = |at: Time, action: &str, reason: String| Happening {
        at,
        subject: Subject::Alloc(alloc.id()).to_string(),
        action: action.to_owned(),
        reason,
    };
    let placed = match summary.replaces {
        Some(original) => format!(
            "a copy on slot {} ({}): {original} is unknown, and its job wants a copy meanwhile",
            summary.slot, summary.node_id
        ),
        None => format!("on slot {} ({})", summary.slot, summary.node_id),
    };
    // The clocks of two functions may differ. A start is never shown before its placement.
    let started_at = summary.started_at.map(|at| at.max(summary.placed_at));
    let started = started_at.map(|at| happened(at, "start", "reported by its node".to_owned()));
    let ended = alloc.finished_at.zip(alloc.cause.clone()).map(|(at, cause)| {
        let reason = Reason::AllocEndedAs { client: summary.client, cause };
        happened(at, ActionName::EndAlloc.as_str(), reason.to_string())
    });
    std::iter::once(happened(summary.placed_at, "place", placed)).chain(started).chain(ended).collect()
}
