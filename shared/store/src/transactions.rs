//! Writes that more than one function performs: ending and stopping allocs, cleaning a node, ending a pause.
//!
//! Jobs and allocs end only here: whoever ends one calls a function of this module.
//!
//! Guarantees: the end of an alloc is **one** transaction: the alloc, its removal from the sets of the node and the
//! job, the job's transition, and the next look at its handle. The transaction also checks the versions of
//! the other copies that the job's transition depends on. A record is cleaned only after its allocs have ended and its
//! handles' rows are deleted. If a run is killed at any point, the same call finishes the work.
//! Does not: decide when any of this is due.

use crate::conditions::{delete_handle, no_job, no_live_allocs, replace_handle};
use crate::db::{DbError, WriteError, ignore_conflict};
use crate::placing::{Placing, place_one};
use crate::retention::{Retention, event_of};
use crate::rows::{change, unchanged};
use crate::store::Store;
use crate::together::together;
use crate::write::{Cond, Write};
use model::stored::S3Prefix;
use model::{
    ActionName, Alloc, AllocId, ClientStatus, ClusterName, Control, Ending, Event, Handle, Job, JobId, JobSet,
    MAX_DUE_S, MAX_TRANSACTION_ITEMS, NodeRecord, Reason, Span, Subject, Time, counts_for,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the transaction of an end does besides.
#[derive(Clone, Copy, Default)]
pub struct EndExtras<'a> {
    /// The conditions that must hold on the record of the node besides its version.
    pub conditions: &'a [Cond],
    /// The job that gets the room.
    pub next: Option<NextPlaced<'a>>,
}

/// A job of one member that is placed on the room of an alloc that ends.
#[derive(Clone, Copy)]
pub struct NextPlaced<'a> {
    pub job: &'a Job,
    pub output: Option<(&'a S3Prefix, &'a ClusterName)>,
    /// Whether a run must look at this end all the same.
    pub needs_run: bool,
}

/// Ends an alloc. `node` is the record of its node as this run knows it. It is `None` if the life of the node is over:
/// then there is no set to remove the alloc from. Returns the node's record as written.
pub async fn end_alloc(
    store: &Store,
    node: Option<&NodeRecord>,
    alloc: &Alloc,
    ending: &Ending,
    EndExtras { conditions, next }: EndExtras<'_>,
    keep: Retention,
    now: Time,
) -> Result<Option<NodeRecord>, WriteError> {
    let id = alloc.id();
    let mut writes = count_member(store, alloc, ending, JobSet::Leaves, keep, now).await?;
    let handed_on = next.is_some_and(|next| !next.needs_run);
    writes.push(change(Some(alloc), &Alloc { handed_on, ..alloc.end(ending, keep.finished, now) }).0);
    let mut written = None;
    if let Some(node) = node {
        let mut after = node.without_alloc(id, now).map_err(|_| WriteError::CONFLICT)?;
        if let Some(NextPlaced { job, output, .. }) = next {
            let placing = Placing { replaces: None, output, keep, now, only_if: None };
            let (of_next, with_next) = place_one(store, job, &after, &placing).await?;
            writes.extend(of_next);
            after = with_next;
        }
        let (mut write, after) = change(Some(node), &after);
        write.when.extend_from_slice(conditions);
        writes.push(write);
        written = Some(after);
    }
    writes.extend(written.as_ref().and_then(|node| handle_of_ended(id, node, ending, keep, now)));
    store.transact(&writes).await?;
    Ok(written)
}

/// The row that a handle gets when its alloc ends. Before that, the alloc itself says that the handle is in use. The
/// handle is marked for destruction, with the order of this transaction to its node; that of a failed alloc becomes due
/// after [`Retention::failed_handles`]. The handle of a complete alloc needs no row: the row of the alloc says that its
/// node may destroy it. Only a restored table has a row already. It is replaced.
fn handle_of_ended(id: AllocId, node: &NodeRecord, ending: &Ending, keep: Retention, now: Time) -> Option<Write> {
    let life = node.life()?;
    let kept = keep.failed_handles.min(Span::from_s(MAX_DUE_S));
    match ending.client() {
        ClientStatus::Complete => None,
        ClientStatus::Failed if kept > Span::ZERO => {
            Some(replace_handle(&Handle::of_alloc(life.node_id, id, life.seq, now + kept)))
        }
        _ => Some(replace_handle(&Handle::of_alloc(life.node_id, id, life.seq, now).marked(life.seq, now))),
    }
}

/// Tells an alloc to stop because its node's drain deadline is near, and already counts its member as lost or moved for the
/// job. The alloc itself stays live until its node reports its end.
pub async fn stop_and_count_lost(
    store: &Store,
    node: &NodeRecord,
    alloc: &Alloc,
    reason: &str,
    keep: Retention,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let stopped = alloc.stop(now).ok_or(WriteError::CONFLICT)?;
    let mut writes = vec![change(Some(alloc), &stopped).0];
    // It is told to stop as late as its stop allows: the drain counts as over.
    let over_at = node.life().and_then(|life| life.drain_by_at).unwrap_or(now);
    writes.extend(count_member(store, alloc, &node.loses(reason, over_at), JobSet::Stays, keep, now).await?);
    let event = node.bump_seq(now).map_err(|_| WriteError::CONFLICT)?;
    let (write, event) = change(Some(node), &event);
    writes.push(write);
    store.transact(&writes).await?;
    Ok(event)
}

/// How a job counts the end of one of its members: its change, checks that the other live copies of the member are unchanged, and
/// an event if the job does not end: its row will not tell why it waited again.
async fn count_member(
    store: &Store,
    alloc: &Alloc,
    ending: &Ending,
    set: JobSet,
    keep: Retention,
    now: Time,
) -> Result<Vec<Write>, WriteError> {
    let id = alloc.id();
    let Some(job) = store.job(id.job_id).await? else {
        return Ok(vec![no_job(id.job_id)]);
    };
    // Only the other copies of this member decide what becomes of the job. The rows of other members do not matter.
    let copies = job.summary.allocs.iter().copied().filter(|other| *other != id && other.member == id.member);
    let mut others = store.allocs_listed(copies).await?.all()?;
    others.retain(|copy| !copy.summary.client.is_final());
    let summaries: Vec<_> = others.iter().map(|o| o.summary.clone()).collect();
    // What an alloc reported before it was lost counts too.
    let ending = alloc.with_elements(ending);
    let after = job.after_end(&alloc.summary, &ending, &summaries, set, keep.of_jobs(), now);
    let mut writes = vec![change(Some(&job), &after).0];
    writes.extend(others.iter().filter(|o| counts_for(&o.summary, id)).map(unchanged));
    if after.summary.state != job.summary.state && !after.summary.state.is_ended() {
        writes.push(event_of(&Subject::Job(id.job_id), ActionName::EndJob, &after.now_reason(), keep, now));
    }
    Ok(writes)
}

/// Drains a node and writes the event. `by` is the time at which EC2 takes the instance away. Without it, EC2 may do so
/// soon. `None` if the node already drains, or is shutting down. Without `keep_events` there is no event: a policy that
/// cannot be read must not stop the drain.
pub async fn drain_interrupted(
    store: &Store,
    record: &NodeRecord,
    by: Option<Time>,
    keep_events: Option<Span>,
    now: Time,
) -> Result<Option<NodeRecord>, WriteError> {
    let (after, reason) = match by {
        Some(by) => (record.interrupted(by, now), Reason::Interrupted { by }.to_string()),
        None => (record.at_risk(now), Reason::AtRisk {}.to_string()),
    };
    let Some(after) = after else { return Ok(None) };
    let (write, after) = change(Some(record), &after);
    let subject = Subject::Slot(record.slot);
    let event = keep_events.map(|keep| Event::of_change(&subject, ActionName::Drain, &reason, now, keep));
    let writes: Vec<Write> = std::iter::once(write).chain(event.iter().map(Store::event_write)).collect();
    store.transact(&writes).await?;
    Ok(Some(after))
}

/// The most jobs that are submitted or cancelled in one transaction: each cancellation also writes an event.
pub const JOBS_TOGETHER: usize = MAX_TRANSACTION_ITEMS / 2;

/// Changes jobs for an operator and writes their events, at most [`JOBS_TOGETHER`]: all that `after` changes, or none. `after` gives the
/// job as it will be. Returns the jobs as written.
pub async fn change_jobs(
    store: &Store,
    jobs: &[Job],
    (action, reason): (ActionName, &str),
    after: impl Fn(&Job) -> Option<Job>,
    keep: Retention,
    now: Time,
) -> Result<Vec<Job>, WriteError> {
    let (mut writes, mut changed) = (Vec::with_capacity(jobs.len() * 2), Vec::with_capacity(jobs.len()));
    for job in jobs {
        let Some(after) = after(job) else { continue };
        let event = Event::of_change(&Subject::Job(job.summary.job_id), action, reason, now, keep.events);
        let (write, after) = change(Some(job), &after);
        writes.extend([write, Store::event_write(&event)]);
        changed.push(after);
    }
    if !writes.is_empty() {
        store.transact(&writes).await?;
    }
    Ok(changed)
}

/// Rejects a queued job that can never run. The caller writes the event.
pub async fn reject_job(store: &Store, job: &Job, reason: &str, keep: Retention, now: Time) -> Result<Job, WriteError> {
    let after = job.reject(reason, keep.finished, now).ok_or(WriteError::CONFLICT)?;
    store.write(Some(job), &after, Vec::new()).await
}

/// Takes these jobs, which have ended, off the list of jobs that this job follows, and a time off that has come. The caller writes
/// the event.
pub async fn advance_job(store: &Store, job: &Job, ended: &BTreeSet<JobId>, now: Time) -> Result<Job, WriteError> {
    store.write(Some(job), &job.advance(ended, now).ok_or(WriteError::CONFLICT)?, Vec::new()).await
}

/// Queues a job without live allocs again. A job that still has some, because its placing was cut short, becomes
/// `regrouping` until they have stopped. The caller writes the event.
pub async fn requeue_job(store: &Store, job: &Job, reason: &str) -> Result<Job, WriteError> {
    let rows = store.allocs(job.summary.allocs.iter().copied()).await?;
    let has_live = rows.iter().any(|a| !a.summary.client.is_final());
    let after = if has_live { job.cut_short(reason) } else { job.requeue(reason) };
    store.write(Some(job), &after.ok_or(WriteError::CONFLICT)?, Vec::new()).await
}

/// Ends the limits by the quotas that the instance of this record counted for, because it has terminated. A failure is
/// only logged, because the limits also end by themselves.
pub async fn end_quota_limits(store: &Store, control: &Control, record: &NodeRecord, now: Time) {
    let Some(life) = record.life() else { return };
    for change in control.after_termination(&life.offering, now) {
        // A conflict is fine: another action of this run, or another run, wrote the entry.
        if let Err(e) = ignore_conflict(store.write_entry(&change.before, &change.after).await) {
            tracing::warn!(key = %change.key, error = %e, "the end of a limit was not noted");
        }
    }
}

/// How many rows of handles one call of [`clean_node`] deletes, about: as many as take a second or two.
const MOST_HANDLES: usize = 5000;

/// How many rows of handles one transaction deletes besides the check of the record. DynamoDB takes 100 writes.
const HANDLES_TOGETHER: usize = 99;

/// Cleans a record: first its allocs end as lost, then its handles' rows are deleted, then the slot is freed. Each of
/// these writes requires the conditions `more` besides the version, so that a heartbeat that arrives meanwhile stops
/// the remaining writes. If a node has very many handles, one call deletes only the first rows, and the record stays as
/// it is.
pub async fn clean_node(
    store: &Store,
    record: &NodeRecord,
    reason: &str,
    more: Vec<Cond>,
    keep: Retention,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let (mut record, mut unreadable) = (record.clone(), None);
    let Some(life) = record.life().cloned() else { return Err(WriteError::CONFLICT) };
    // A row that cannot be read is left as it is: only the set of the record is corrected.
    let rows = store.allocs_listed(life.allocs.iter().copied()).await?.rows;
    let rows: BTreeMap<AllocId, Alloc> = rows.into_iter().map(|a| (a.id(), a)).collect();
    for id in &life.allocs {
        let live = rows.get(id).filter(|a| !a.summary.client.is_final() && a.summary.node_id == life.node_id);
        record = match live {
            Some(alloc) => {
                let ending = record.loses(reason, now);
                let beside = EndExtras { conditions: &more, next: None };
                match end_alloc(store, Some(&record), alloc, &ending, beside, keep, now).await {
                    Ok(after) => after.unwrap_or(record),
                    // The alloc stays as it is, and so does the slot. The other allocs end, so that their jobs run again.
                    Err(WriteError::Db(error @ DbError::Corrupt { .. })) => {
                        unreadable = Some(error);
                        record
                    }
                    Err(other) => return Err(other),
                }
            }
            // The allocs table has no such live alloc to end: the tables were restored to different moments. Only the
            // set of the record is corrected.
            None => {
                let after = record.without_alloc(*id, now).map_err(|_| WriteError::CONFLICT)?;
                store.write(Some(&record), &after, more.clone()).await?
            }
        };
    }
    if let Some(error) = unreadable {
        return Err(error.into());
    }
    let mut still = unchanged(&record);
    still.when.extend_from_slice(&more);
    let (handles, has_more) = store.first_handles(life.node_id, MOST_HANDLES).await?;
    // A row that cannot be read stays until a person corrects it.
    let deletes: Vec<Write> = handles.rows.iter().map(delete_handle).collect();
    for some in deletes.chunks(HANDLES_TOGETHER) {
        // One row that was changed, or that reading does not show as it is, must not block the others. If the record itself has
        // changed, the last write notices it.
        let delete = |rows| {
            let writes: Vec<Write> = std::iter::once(&still).chain(rows).cloned().collect();
            async move { store.transact(&writes).await }
        };
        for (_, deleted) in together(some, delete).await {
            ignore_conflict(deleted)?;
        }
    }
    // The next run deletes the rest. This one does not fail: it counts as a lost race.
    if has_more {
        return Err(WriteError::CONFLICT);
    }
    let cleaned = record.clean(now, reason).map_err(|_| WriteError::CONFLICT)?;
    let mut more = more;
    more.push(no_live_allocs());
    store.write(Some(&record), &cleaned, more).await
}
