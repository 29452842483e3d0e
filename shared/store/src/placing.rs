//! Placing the members of a job.
//!
//! Guarantees: all members are placed, each on a node of its own, or no member starts, wherever a run is killed
//! (`docs/rules.md#members`).
//! Does not: decide where.

use crate::conditions::{change_handle, make_handle};
use crate::db::{DbError, WriteError, ignore_conflict};
use crate::retention::{Retention, event_of};
use crate::rows::change;
use crate::store::Store;
use crate::write::Write;
use model::stored::S3Prefix;
use model::{
    ActionName, Alloc, AllocId, ClientStatus, ClusterName, Handle, HandleKind, HandleState, Inputs, Job, JobState,
    MAX_TRANSACTION_ITEMS, NodeRecord, Reason, Source, Subject, Time, cache_handle,
};

/// How the members of a job are placed.
#[derive(Clone, Copy)]
pub struct Placing<'a> {
    /// The unknown alloc that a copy is placed for.
    pub replaces: Option<&'a Alloc>,
    /// Where the whole outputs of the cluster are stored, if they are.
    pub output: Option<(&'a S3Prefix, &'a ClusterName)>,
    pub keep: Retention,
    pub now: Time,
    /// What must hold besides, for a job under a limit: the turn of the run.
    pub only_if: Option<&'a Write>,
}

/// Places these members of a job, each on a node of its own: all of them, or none. The nodes must take work and have
/// the versions as read. Returns the nodes as written.
///
/// One transaction places as many members as fit into it. If there are more, each part is a transaction of its own, and
/// the write of the last part makes the job `placed`: no member starts before. If a part fails, the job becomes
/// `regrouping`, and the members that are on nodes stop. If the run is killed between two parts, the job stays
/// `placing`, and a later run makes it `regrouping`.
pub async fn place(
    store: &Store,
    job: &Job,
    members: &[(u32, &NodeRecord)],
    placing: &Placing<'_>,
) -> Result<Vec<NodeRecord>, WriteError> {
    let address = |node: &NodeRecord| node.life().and_then(|life| life.address.clone()).unwrap_or_default();
    let hosts: Vec<String> = members.iter().filter(|_| members.len() > 1).map(|(_, node)| address(node)).collect();
    let inputs = inputs(store, job).await?;
    let (mut job, mut written) = (job.clone(), Vec::new());
    // Besides the members, a part writes the job, and an event or the alloc that is replaced, and checks a turn.
    for part in members.chunks((MAX_TRANSACTION_ITEMS - 3) / WRITES_OF_MEMBER.saturating_add(job.work.caches.len())) {
        match place_part(store, &job, part, (&hosts, &inputs), placing).await {
            Ok((after, nodes)) => {
                job = after;
                written.extend(nodes);
            }
            Err(error) => {
                let message = format!("only {} of its {} members could be placed", written.len(), members.len());
                if let Some(after) = job.cut_short(&message) {
                    let reason = Reason::JobNow { state: after.summary.state, message: format!(": {message}") };
                    let subject = Subject::Job(job.summary.job_id);
                    let event = event_of(&subject, ActionName::EndJob, &reason, placing.keep, placing.now);
                    // A conflict is fine: somebody else has changed the job, so it is not placed either.
                    ignore_conflict(store.transact(&[change(Some(&job), &after).0, event]).await)?;
                }
                return Err(error);
            }
        }
    }
    Ok(written)
}

/// How many rows placing a member writes, besides its caches: the node and the alloc.
const WRITES_OF_MEMBER: usize = 2;

/// Places these members in one transaction. Returns the job and the nodes as written.
async fn place_part(
    store: &Store,
    job: &Job,
    members: &[(u32, &NodeRecord)],
    (hosts, inputs): (&[String], &Inputs),
    placing: &Placing<'_>,
) -> Result<(Job, Vec<NodeRecord>), WriteError> {
    let Placing { replaces, keep, now, .. } = *placing;
    let mut writes = Vec::new();
    let mut nodes = Vec::new();
    let mut placed = Vec::new();
    for ((member, node), n) in members.iter().zip(0u32..) {
        let id =
            AllocId { job_id: job.summary.job_id, member: *member, copy: job.summary.tries.copies.saturating_add(n) };
        let (of_alloc, node_after) = place_member(store, job, (id, node), inputs, placing).await?;
        let (write, node_after) = change(Some(*node), &node_after);
        writes.push(write);
        nodes.push(node_after);
        writes.extend(of_alloc);
        placed.push(id);
    }
    if let (Some(original), Some(copy)) = (replaces, placed.first()) {
        // The original must still be unknown at the version read: if its node came back meanwhile, no copy is
        // needed.
        if original.summary.client != ClientStatus::Unknown {
            return Err(WriteError::CONFLICT);
        }
        let mut after = original.clone();
        after.summary.replaced_by = Some(*copy);
        writes.push(change(Some(original), &after).0);
    }
    let job_after = job.with_placed(&placed).ok_or(WriteError::CONFLICT)?;
    let (write, job_after) = change(Some(job), &Job { hosts: hosts.to_vec(), ..job_after });
    writes.push(write);
    if job_after.summary.state == JobState::Placing {
        let reason = Reason::PlacedInPart { placed: job_after.summary.allocs.len(), of: job.summary.needs.nodes };
        writes.push(event_of(&Subject::Job(job.summary.job_id), ActionName::Place, &reason, keep, now));
    }
    writes.extend(placing.only_if.cloned());
    let done = store.transact(&writes).await;
    if done.as_ref().is_err_and(WriteError::is_conflict) {
        skip_spent_ids(store, job, &placed).await?;
    }
    done.map(|()| (job_after, nodes))
}

/// The writes of a member besides those of its job and its node, and the record of the node with the alloc.
async fn place_member(
    store: &Store,
    job: &Job,
    (id, node): (AllocId, &NodeRecord),
    inputs: &Inputs,
    placing: &Placing<'_>,
) -> Result<(Vec<Write>, NodeRecord), WriteError> {
    let Placing { replaces, output, keep, now, .. } = *placing;
    let mut alloc = Alloc::place(id, job, node, now).ok_or(WriteError::CONFLICT)?;
    alloc.summary.replaces = replaces.map(Alloc::id);
    alloc.output_s3 = output.map(|(prefix, cluster)| prefix.place(cluster, id));
    alloc.work.inputs.clone_from(inputs);
    // A replaced alloc gives its checkpoint to the row of the job only at its end.
    let of_replaced = replaces.and_then(|replaced| replaced.run.checkpoint.as_ref());
    let newest = of_replaced.into_iter().chain(job.checkpoint(id.member));
    alloc.work.checkpoint = newest.max_by_key(|known| known.alloc_id.copy).cloned();
    let after = node.with_alloc(id, now).map_err(|_| WriteError::CONFLICT)?;
    let mut writes = cache_rows(store, &alloc, keep, now).await?;
    writes.push(change(None, &alloc).0);
    Ok((writes, after))
}

/// The writes that place a job of one member on this node besides the write of the node, and the record of the node with it.
pub(crate) async fn place_one(
    store: &Store,
    job: &Job,
    node: &NodeRecord,
    placing: &Placing<'_>,
) -> Result<(Vec<Write>, NodeRecord), WriteError> {
    let id = AllocId { job_id: job.summary.job_id, member: 0, copy: job.summary.tries.copies };
    let inputs = inputs(store, job).await?;
    let (mut writes, after) = place_member(store, job, (id, node), &inputs, placing).await?;
    let job_after = job.with_placed(&[id]).ok_or(WriteError::CONFLICT)?;
    writes.push(change(Some(job), &Job { hosts: Vec::new(), ..job_after }).0);
    Ok((writes, after))
}

/// The inputs of a job. If one is an output of an earlier job, it is the output that the last successful alloc of that member
/// stored. If there is none, the node reports that before the command starts.
async fn inputs(store: &Store, job: &Job) -> Result<Inputs, DbError> {
    let mut inputs = job.work.inputs.clone();
    for source in inputs.values_mut() {
        let Source::Output { job_id, member, path } = &*source else { continue };
        let Some(earlier) = store.job(*job_id).await? else { continue };
        let allocs = store.allocs_of([&earlier]).await?.rows;
        let of_member = allocs.iter().filter(|alloc| alloc.id().member == *member);
        let succeeded = of_member.filter(|alloc| alloc.has_succeeded());
        let last = succeeded.max_by_key(|alloc| alloc.id().copy);
        if let Some(stored) = last.and_then(|alloc| alloc.run.kept.iter().find(|output| output.path == *path)) {
            *source = stored.source();
        }
    }
    Ok(inputs)
}

/// Skips alloc ids that have rows already. After the tables are restored from backups of different moments, an alloc
/// with the next id may exist although the job does not know of it. Without the skip, the job and those behind it would
/// wait until that row is gone.
async fn skip_spent_ids(store: &Store, job: &Job, ids: &[AllocId]) -> Result<(), WriteError> {
    let same = store.job(job.summary.job_id).await?.is_some_and(|now| now.summary.version == job.summary.version);
    for id in ids.iter().take_while(|_| same) {
        if has_row(store.alloc(*id).await)? {
            let mut after = job.clone();
            let members = u32::try_from(ids.len()).unwrap_or(u32::MAX);
            after.summary.tries.copies = after.summary.tries.copies.saturating_add(members);
            return store.apply(&change(Some(job), &after).0).await;
        }
    }
    Ok(())
}

/// Whether there is a row. A row that cannot be read counts.
fn has_row(read: Result<Option<Alloc>, DbError>) -> Result<bool, DbError> {
    match read {
        Ok(row) => Ok(row.is_some()),
        Err(DbError::Corrupt { .. }) => Ok(true),
        Err(other) => Err(other),
    }
}

/// The writes for the caches that an alloc names. The alloc's own directory needs no row while the alloc lives.
async fn cache_rows(store: &Store, alloc: &Alloc, keep: Retention, now: Time) -> Result<Vec<Write>, WriteError> {
    let (node_id, seq) = (alloc.summary.node_id, alloc.summary.placed_seq);
    let deadline = now + keep.creating;
    let mut writes = Vec::new();
    for cache in &alloc.work.caches {
        let name = cache_handle(cache);
        let row = match store.handle(node_id, &name).await {
            // Nobody knows whether the cache is on the node, so its row stays as it is. Nobody destroys the cache
            // while its row cannot be read. After that, the cache counts as used.
            Err(error @ DbError::Corrupt { .. }) => {
                tracing::warn!(%error, "a handle is left alone");
                continue;
            }
            read => read?,
        };
        writes.push(match row {
            None | Some(Handle { state: HandleState::Gone, .. }) => {
                let new = Handle::new(node_id, name, HandleKind::Volume, HandleState::Creating, seq, deadline);
                make_handle(&Handle { deadline_at: Some(deadline), ..new })
            }
            Some(row) if matches!(row.state, HandleState::Creating | HandleState::Live) => {
                // The cache is used again, so its unused time starts again.
                let deadline_at = if row.state == HandleState::Live { None } else { row.deadline_at };
                let due_at = row.due_at.max(now + keep.creating);
                change_handle(&row, &Handle { seq, deadline_at, due_at, ..row.clone() })
            }
            // The node cannot destroy the cache, so the alloc may use it. A conflict here would come again in each run.
            Some(row) if row.is_stuck(now) => change_handle(&row, &Handle { due_at: deadline, ..row.used(seq, now) }),
            // The node is destroying the cache: the next run places the alloc.
            Some(_) => return Err(WriteError::CONFLICT),
        });
    }
    Ok(writes)
}
