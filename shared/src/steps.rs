//! Sequences of writes that more than one function performs: placing, ending and stopping
//! allocs, cleaning a node.
//!
//! Guarantees: an alloc's end, its leaving of the node's and the job's sets, the job's
//! transition and its handles' next look are **one** transaction, which also checks the
//! versions of the copies it counted on; a record is cleaned only after nothing points at
//! its node any more; killed anywhere, the same call made again finishes the same work.
//! Does not: decide that any of this is due.

use crate::ids::{AllocId, NodeId};
use crate::model::{
    Alloc, ClientStatus, Ending, Handle, HandleKind, HandleState, Job, MAX_DUE_S, NodeRecord, cache_handle, counts_for,
};
use crate::policy::Policy;
use crate::store::{
    Cond, Store, Write, WriteError, change, change_handle, delete_handle, handle_unchanged, make_handle, no_job,
    no_live_allocs, unchanged,
};
use crate::time::{Span, Time};
use std::collections::BTreeMap;

/// What of the policy the steps need.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// How long ended jobs and allocs are kept.
    pub finished: Span,
    /// How long what a failed alloc left is kept.
    pub failed_handles: Span,
    /// How long a handle may take to appear.
    pub creating: Span,
}

impl Keep {
    /// As this policy says.
    pub fn of(policy: &Policy) -> Self {
        Self {
            finished: policy.history.keep_finished(),
            failed_handles: Span::from_s(policy.sweep.failed_keep_s),
            creating: Span::from_s(policy.sweep.creating_s),
        }
    }
}

/// Ends an alloc. `node` is its node's record as known, `None` if that life is over (then
/// there is no set to leave). Returns the node's record as written.
pub async fn end_alloc(
    store: &Store,
    node: Option<&NodeRecord>,
    alloc: &Alloc,
    ending: &Ending,
    keep: Keep,
    now: Time,
) -> Result<Option<NodeRecord>, WriteError> {
    end_alloc_if(store, node, alloc, ending, &[], keep, now).await
}

/// [`end_alloc`], where more must hold of its node's record.
async fn end_alloc_if(
    store: &Store,
    node: Option<&NodeRecord>,
    alloc: &Alloc,
    ending: &Ending,
    more: &[Cond],
    keep: Keep,
    now: Time,
) -> Result<Option<NodeRecord>, WriteError> {
    let id = alloc.id();
    let job = store.job(id.job_id).await?;
    let mut writes = Vec::new();
    match &job {
        Some(job) => {
            let others = other_copies(store, job, id).await?;
            let summaries: Vec<_> = others.iter().map(|o| o.summary.clone()).collect();
            let after = job.after_end(&alloc.summary, ending.client, &summaries, true, keep.finished, now);
            writes.push(change(Some(job), &after).0);
            writes.extend(others.iter().filter(|o| counts_for(&o.summary, id)).map(unchanged));
        }
        None => writes.push(no_job(id.job_id)),
    }
    writes.push(change(Some(alloc), &alloc.end(ending, keep.finished, now)).0);
    let mut written = None;
    if let Some(node) = node {
        let after = node.without_alloc(id, now).map_err(|_| WriteError::CONFLICT)?;
        let (mut write, after) = change(Some(node), &after);
        write.when.extend_from_slice(more);
        writes.push(write);
        written = Some(after);
    }
    if let Some(handle) = store.handle(alloc.summary.node_id, &id.to_string()).await? {
        let failed = ending.client == ClientStatus::Failed;
        let wait = if failed { keep.failed_handles.min(Span::from_s(MAX_DUE_S)) } else { Span::ZERO };
        let due_at = now + wait;
        let there = matches!(handle.state, HandleState::Creating | HandleState::Live);
        // What a failed one left is kept its time, also where the next look would have been sooner.
        if handle.due_at > due_at || (failed && there && handle.due_at != due_at) {
            writes.push(change_handle(&handle, &Handle { due_at, ..handle.clone() }));
        } else if there {
            // It is due: unless a sweep that still saw the alloc live puts it off.
            writes.push(handle_unchanged(&handle));
        }
    }
    store.transact(&writes).await?;
    Ok(written)
}

async fn other_copies(store: &Store, job: &Job, id: AllocId) -> Result<Vec<Alloc>, WriteError> {
    let ids = job.summary.allocs.iter().copied().filter(|other| *other != id);
    Ok(store.allocs(ids).await?.into_iter().filter(|a| !a.summary.client.is_final()).collect())
}

/// Orders an alloc to stop: the alloc and the node's `seq`, one transaction.
pub async fn stop_alloc(
    store: &Store,
    node: &NodeRecord,
    alloc: &Alloc,
    reason: &str,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let stopped = alloc.stop(reason, now).ok_or(WriteError::CONFLICT)?;
    change_with_news(store, node, &[(alloc, stopped)], now).await
}

/// Orders an alloc to stop at its node's drain deadline: its member is lost to the job now,
/// while the alloc itself lives until its node says how it ended.
pub async fn forsake_alloc(
    store: &Store,
    node: &NodeRecord,
    alloc: &Alloc,
    reason: &str,
    keep: Keep,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let id = alloc.id();
    let stopped = alloc.stop(reason, now).ok_or(WriteError::CONFLICT)?;
    let mut writes = vec![change(Some(alloc), &stopped).0];
    if let Some(job) = store.job(id.job_id).await? {
        let others = other_copies(store, &job, id).await?;
        let summaries: Vec<_> = others.iter().map(|o| o.summary.clone()).collect();
        let after = job.after_end(&alloc.summary, ClientStatus::Lost, &summaries, false, keep.finished, now);
        writes.push(change(Some(&job), &after).0);
        writes.extend(others.iter().filter(|o| counts_for(&o.summary, id)).map(unchanged));
    } else {
        writes.push(no_job(id.job_id));
    }
    let told = node.with_news(now).map_err(|_| WriteError::CONFLICT)?;
    let (write, told) = change(Some(node), &told);
    writes.push(write);
    store.transact(&writes).await?;
    Ok(told)
}

/// Changes allocs of one node and raises the node's `seq`, one transaction.
pub async fn change_with_news(
    store: &Store,
    node: &NodeRecord,
    allocs: &[(&Alloc, Alloc)],
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let mut writes: Vec<Write> = allocs.iter().map(|(before, after)| change(Some(*before), after).0).collect();
    let told = node.with_news(now).map_err(|_| WriteError::CONFLICT)?;
    let (write, told) = change(Some(node), &told);
    writes.push(write);
    store.transact(&writes).await?;
    Ok(told)
}

/// Places these members of a job, each on a node of its own, all of them or none: the nodes
/// (ready, wanted, at their versions, into `allocs`, `seq`), the job, the allocs and their
/// handle rows in one transaction. Returns the nodes as written.
pub async fn place(
    store: &Store,
    job: &Job,
    members: &[(u32, &NodeRecord)],
    replaces: Option<&Alloc>,
    keep: Keep,
    now: Time,
) -> Result<Vec<NodeRecord>, WriteError> {
    let mut writes = Vec::new();
    let mut nodes = Vec::new();
    let mut placed = Vec::new();
    for ((member, node), n) in members.iter().zip(0u32..) {
        let id = AllocId { job_id: job.summary.job_id, member: *member, copy: job.summary.copies.saturating_add(n) };
        let mut alloc = Alloc::place(id, job, node, now).ok_or(WriteError::CONFLICT)?;
        alloc.summary.replaces = replaces.map(Alloc::id);
        let node_after = node.with_alloc(id, now).map_err(|_| WriteError::CONFLICT)?;
        let (write, node_after) = change(Some(*node), &node_after);
        writes.push(write);
        nodes.push(node_after);
        let handles = handle_rows(store, &alloc, keep, now).await?;
        writes.extend(handles);
        writes.push(change(None, &alloc).0);
        placed.push(id);
    }
    if let (Some(original), Some(copy)) = (replaces, placed.first()) {
        // Still unknown at the version read: a node that came back meanwhile needs no copy.
        if original.summary.client != ClientStatus::Unknown {
            return Err(WriteError::CONFLICT);
        }
        let mut after = original.clone();
        after.summary.replaced_by = Some(*copy);
        writes.push(change(Some(original), &after).0);
    }
    let job_after = job.with_placed(&placed).ok_or(WriteError::CONFLICT)?;
    writes.push(change(Some(job), &job_after).0);
    let done = store.transact(&writes).await;
    if done.as_ref().is_err_and(WriteError::is_conflict) {
        let on = members.iter().filter_map(|(_, node)| node.node_id());
        skip_spent_ids(store, job, &placed, on).await?;
    }
    done.map(|()| nodes)
}

/// Ids that left traces in a history which a restore undid are not given a second time: a job that
/// insisted on them would wait, and hold up others, until the traces are gone.
async fn skip_spent_ids(
    store: &Store,
    job: &Job,
    ids: &[AllocId],
    on: impl Iterator<Item = NodeId>,
) -> Result<(), WriteError> {
    let same = store.job(job.summary.job_id).await?.is_some_and(|now| now.summary.version == job.summary.version);
    for (id, node) in ids.iter().zip(on).take_while(|_| same) {
        let handle = store.handle(node, &id.to_string()).await?;
        let spent = handle.is_some_and(|h| h.state != HandleState::Gone) || store.alloc(*id).await?.is_some();
        if spent {
            let mut after = job.clone();
            let members = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            after.summary.copies = after.summary.copies.saturating_add(members);
            return store.apply(&change(Some(job), &after).0).await;
        }
    }
    Ok(())
}

async fn handle_rows(store: &Store, alloc: &Alloc, keep: Keep, now: Time) -> Result<Vec<Write>, WriteError> {
    let (node_id, seq) = (alloc.summary.node_id, alloc.summary.placed_seq);
    let deadline = now + keep.creating;
    let creating = |handle: String, kind, alloc_id| Handle {
        alloc_id,
        deadline_at: Some(deadline),
        ..Handle::new(node_id, handle, kind, HandleState::Creating, seq, deadline)
    };
    let mut writes = vec![make_handle(&creating(alloc.id().to_string(), HandleKind::Container, Some(alloc.id())))];
    for cache in &alloc.work.caches {
        let name = cache_handle(cache);
        writes.push(match store.handle(node_id, &name).await? {
            None | Some(Handle { state: HandleState::Gone, .. }) => {
                make_handle(&creating(name, HandleKind::Volume, None))
            }
            Some(row) if matches!(row.state, HandleState::Creating | HandleState::Live) => {
                // Used again: it is not unused from some earlier look on.
                let deadline_at = if row.state == HandleState::Live { None } else { row.deadline_at };
                let due_at = row.due_at.max(now + keep.creating);
                change_handle(&row, &Handle { seq, deadline_at, due_at, ..row.clone() })
            }
            // Being destroyed: the job is left for the next run.
            Some(_) => return Err(WriteError::CONFLICT),
        });
    }
    Ok(writes)
}

/// Cleans a record: first its allocs are lost, then its handles' rows go, then the slot is
/// free. `more` must hold of the record in each of these writes, besides the version: a node that
/// is heard from meanwhile loses nothing any more.
pub async fn clean_node(
    store: &Store,
    record: &NodeRecord,
    reason: &str,
    more: Vec<Cond>,
    keep: Keep,
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let mut record = record.clone();
    let Some(life) = record.life().cloned() else { return Err(WriteError::CONFLICT) };
    let rows = store.allocs(life.allocs.iter().copied()).await?;
    let rows: BTreeMap<AllocId, Alloc> = rows.into_iter().map(|a| (a.id(), a)).collect();
    for id in &life.allocs {
        let live = rows.get(id).filter(|a| !a.summary.client.is_final() && a.summary.node_id == life.node_id);
        record = match live {
            Some(alloc) => {
                let ending = Ending::lost(reason);
                let after = end_alloc_if(store, Some(&record), alloc, &ending, &more, keep, now).await?;
                after.unwrap_or(record)
            }
            // Tables restored to different moments: nothing can end it any more.
            None => {
                let after = record.without_alloc(*id, now).map_err(|_| WriteError::CONFLICT)?;
                store.write(Some(&record), &after, more.clone()).await?
            }
        };
    }
    let mut still = unchanged(&record);
    still.when.extend_from_slice(&more);
    for handle in store.handles_of(life.node_id).await? {
        store.transact(&[delete_handle(&handle), still.clone()]).await?;
    }
    let cleaned = record.clean(now, reason).map_err(|_| WriteError::CONFLICT)?;
    let mut more = more;
    more.push(no_live_allocs());
    store.write(Some(&record), &cleaned, more).await
}
