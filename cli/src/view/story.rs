//! What happened to something, and why, in the order of time. A job has a story, with what happened to all its allocs.
//!
//! Events tell most of it. Rows tell what has no event of its own: the row of a job its submission, and the row of an alloc its
//! placement and its start. If the end of an alloc changes the state of its job, one event tells both.
//!
//! Guarantees: each happening is told once, with the reason that was stored.
//! Does not: show events of nodes in the story of a job, or rows and events that are no longer kept.

use crate::console::show::several;
use futures::{StreamExt, TryStreamExt, stream};
use model::events::{ENDED_ALLOC, ENDED_AS, FOR_COSTS};
use model::{ActionName, Alloc, AllocId, Event, Job, JobId, JobSummary, Span, Subject, Time};
use serde::Serialize;
use std::collections::BTreeSet;
use store::{DbError, Store};

/// The event of a placement is written at most this long after the placement.
const SAME_RUN: Span = Span::from_s(60);

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
    let (placements, others): (Vec<&Event>, Vec<&Event>) =
        events.iter().partition(|e| e.action == ActionName::Place.as_str());
    let mut story: Vec<Happening> = job.iter().map(Happening::of_submission).collect();
    story.extend(others.into_iter().flat_map(Happening::of_event));
    let mut told_by_rows = BTreeSet::new();
    for alloc in &allocs {
        let placed_at = alloc.summary.placed_at;
        let of_placement = |e: &&&Event| e.at() >= placed_at && e.at().since(placed_at) <= SAME_RUN;
        let event = placements.iter().rev().find(of_placement);
        told_by_rows.extend(event.map(|e| e.at()));
        story.extend(of_row(alloc, event.map(|e| e.reason.as_str())));
    }
    // Events are kept longer than the rows of old allocs.
    story.extend(placements.iter().filter(|e| !told_by_rows.contains(&e.at())).flat_map(|e| Happening::of_event(e)));
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
    Ok(events.flat_map(Happening::of_event).collect())
}

/// The newest `limit` happenings, the oldest of them first. If there are more, the first line says how many.
fn in_order(mut story: Vec<Happening>, subject: &Subject, limit: i32) -> Vec<Happening> {
    // A job ends at the same time as the alloc that ended it. The alloc comes first.
    story.sort_by_key(|happening| (happening.at, happening.action == ActionName::EndJob.as_str()));
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
    /// The happening of an event, after the end of an alloc that the event also tells.
    fn of_event(event: &Event) -> impl Iterator<Item = Self> {
        let Event { subject, action, reason, .. } = event.clone();
        let own = Self { at: event.at(), subject, action, reason };
        let text = |name: &str| event.detail.get(name)?.as_str();
        let ended = text(ENDED_ALLOC).zip(text(ENDED_AS)).map(|(alloc, reason)| Self {
            at: event.at(),
            subject: format!("alloc#{alloc}"),
            action: ActionName::EndAlloc.to_string(),
            reason: reason.to_owned(),
        });
        ended.into_iter().chain([own])
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

    fn of_submission(job: &Job) -> Self {
        let JobSummary { submitted_at, priority, needs, by, .. } = &job.summary;
        let by = by.as_ref().map(|by| format!("by {by}: ")).unwrap_or_default();
        Self {
            at: *submitted_at,
            subject: Subject::Job(job.summary.job_id).to_string(),
            action: ActionName::Submit.to_string(),
            reason: format!("{by}priority {priority}, {} node(s)", needs.nodes),
        }
    }
}

/// The placement and the start of an alloc. `fits` says why its nodes were chosen, if that is known.
fn of_row(alloc: &Alloc, fits: Option<&str>) -> Vec<Happening> {
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
        None => {
            let fits = fits.map(|why| format!(": {why}")).unwrap_or_default();
            format!("on slot {} ({}){fits}", summary.slot, summary.node_id)
        }
    };
    // The clocks of two functions may differ. A start is never shown before its placement.
    let started_at = summary.started_at.map(|at| at.max(summary.placed_at));
    let started = started_at.map(|at| happened(at, "start", "reported by its node".to_owned()));
    std::iter::once(happened(summary.placed_at, "place", placed)).chain(started).collect()
}
