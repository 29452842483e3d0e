//! The story of a job: what happened to it and to all its allocs, and why, in the order of time.
//!
//! What happened to an alloc is read from its row, because each change of the row notes its reason in the same write.
//! What happened to the job is read from its events.
//!
//! Guarantees: each happening is told once, with the reason that was stored.
//! Does not: show events of nodes (`history SLOT`), or rows and events that are no longer kept.

use crate::console::Cluster;
use crate::console::show::several;
use model::events::{Event, Subject};
use model::ids::{AllocId, JobId};
use model::time::{Span, Time};
use model::{ActionName, Alloc, ClientStatus, HistoryEntry, MAX_HISTORY};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use store::{DbError, Store};

/// The event of a placement is written within this time after the placement.
const SAME_RUN: Span = Span::from_s(60);

/// How many events of a job or an alloc are read, and how many happenings are shown.
pub(crate) const WHOLE: i32 = 1000;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Happening {
    pub(crate) at: Time,
    /// The job or the alloc, as in events.
    pub(crate) subject: String,
    /// What happened, in a word.
    pub(crate) action: String,
    pub(crate) reason: String,
}

/// The story of a job. If its row is no longer stored, only its events are told.
pub(crate) async fn of_job(store: &Store, id: JobId, limit: i32) -> Result<Vec<Happening>, DbError> {
    let events = store.history(&Subject::Job(id).to_string(), WHOLE).await?;
    let allocs = match store.job(id).await? {
        // Events tell of the others.
        Some(job) => store.allocs_of(&job).await?.rows,
        None => Vec::new(),
    };
    let (placements, others): (Vec<&Event>, Vec<&Event>) =
        events.iter().partition(|e| e.action == ActionName::Place.as_str());
    let mut story: Vec<Happening> = others.into_iter().map(Happening::of_event).collect();
    let mut told_by_rows = BTreeSet::new();
    for alloc in &allocs {
        let placed_at = alloc.summary.placed_at;
        let of_placement = |e: &&&Event| e.at() >= placed_at && e.at().since(placed_at) <= SAME_RUN;
        let event = placements.iter().rev().find(of_placement);
        told_by_rows.extend(event.map(|e| e.at()));
        story.extend(of_row(alloc, event.map(|e| e.reason.as_str())));
    }
    // The rows of old allocs expire earlier than events.
    story.extend(placements.iter().filter(|e| !told_by_rows.contains(&e.at())).map(|e| Happening::of_event(e)));
    Ok(in_order(story, &Subject::Job(id), limit))
}

/// The story of one alloc. If its row is no longer stored, its events are told.
pub(crate) async fn of_alloc(cluster: &Cluster, id: AllocId, limit: i32) -> anyhow::Result<Vec<Happening>> {
    let store = &cluster.store;
    let story = match store.alloc(id).await? {
        Some(alloc) => of_row(&alloc, None),
        None => {
            let events = store.history(&Subject::Alloc(id).to_string(), WHOLE).await?;
            events.iter().map(Happening::of_event).collect()
        }
    };
    Ok(in_order(story, &Subject::Alloc(id), limit))
}

/// The newest `limit` happenings, the oldest of them first. If there are more, the first line says how many. What happened to one alloc stays in the order of its row:
/// the clocks of two functions may differ by a moment.
fn in_order(story: Vec<Happening>, subject: &Subject, limit: i32) -> Vec<Happening> {
    let mut last: BTreeMap<String, Time> = BTreeMap::new();
    let mut timed: Vec<(Time, bool, Happening)> = Vec::new();
    for happening in story {
        let is_alloc = happening.subject.starts_with("alloc#");
        let before = last.get(&happening.subject).copied().filter(|_| is_alloc);
        let at = before.map_or(happening.at, |before| before.max(happening.at));
        last.insert(happening.subject.clone(), at);
        // The end of a job has the same time as the end of the alloc that caused it.
        timed.push((at, happening.action == ActionName::EndJob.as_str(), happening));
    }
    timed.sort_by_key(|(at, ends, _)| (*at, *ends));
    let older = timed.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
    let first = timed.get(older).filter(|_| older > 0).map(|(at, ..)| Happening {
        at: *at,
        subject: subject.to_string(),
        action: "…".to_owned(),
        reason: format!("{} before this: give a larger --limit", several(older, "happening")),
    });
    first.into_iter().chain(timed.into_iter().skip(older).map(|(.., happening)| happening)).collect()
}

impl Happening {
    fn of_event(event: &Event) -> Self {
        let Event { subject, action, reason, .. } = event.clone();
        Self { at: event.at(), subject, action, reason }
    }
}

/// What happened to an alloc, from its row. `fits` is why the nodes of its placement were chosen, if that is known.
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
    let mut story = vec![happened(summary.placed_at, "place", placed)];
    if let Some(first) = alloc.history.first().filter(|_| alloc.history.len() >= MAX_HISTORY) {
        let what = format!("only the last {} are stored", several(MAX_HISTORY, "change"));
        story.push(happened(first.at, "…", what));
    }
    let mut before: Option<&HistoryEntry> = None;
    for entry in &alloc.history {
        let client = (entry.field == "client").then(|| entry.value.parse::<ClientStatus>().ok()).flatten();
        let was_unknown = before.is_some_and(|b| b.value == ClientStatus::Unknown.as_str());
        let (action, reason) = match (client, entry.field.as_str()) {
            // The placement is told already.
            (Some(ClientStatus::Pending), _) => {
                before = Some(entry);
                continue;
            }
            (Some(ClientStatus::Running), _) if was_unknown => ("back", entry.reason.clone()),
            (Some(ClientStatus::Running), _) => ("start", entry.reason.clone()),
            (Some(ClientStatus::Unknown), _) => ("lost_contact", entry.reason.clone()),
            (Some(end), _) => (end.as_str(), entry.reason.clone()),
            (None, "desired") => ("stop", entry.reason.clone()),
            (None, "awaiting") => ("stay", entry.reason.clone()),
            (None, _) => (entry.field.as_str(), format!("{}: {}", entry.value, entry.reason)),
        };
        story.push(happened(entry.at, action, reason));
        before = client.map(|_| entry).or(before);
    }
    story
}
