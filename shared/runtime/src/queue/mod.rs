//! Which part of the queue a run reads.
//!
//! Guarantees: what a run reads does not grow with the queue, and every job is read in one of the next runs.
//! Does not: decide.

pub mod shares;

use futures::future::try_join3;
use model::control::ListPlace;
use model::{Control, ControlKey, JobId, JobSummary, Policy, Time};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::HashSet;
use store::{DbError, Store, Unreadable, WaitingJobs, placed_last};

/// How much of the queue a run has read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueRead {
    pub read: usize,
    /// How many jobs wait at least. It is more than `read` if some were not read.
    pub least: usize,
    /// The part behind the head; `None` if everything was read.
    pub part: Option<QueuePart>,
}

/// The part of a long queue that a run reads behind the head.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueuePart {
    pub jobs: HashSet<JobId>,
    /// The place, if the next run reads this part again.
    pub stays: ListPlace,
    /// The place, if the next run reads the part behind this one.
    pub moves: ListPlace,
}

/// The waiting jobs of a run: of the queue, of the jobs that follow others, and of those that are put off.
pub(crate) struct WaitingRead {
    /// A job that moves from one list to another between two queries is there once, as the later list has it.
    pub(crate) jobs: Vec<JobSummary>,
    pub(crate) unreadable: Vec<Unreadable>,
    /// How much of the queue was read.
    pub(crate) queue: QueueRead,
    /// The place in the list of jobs that follow others after this run.
    pub(crate) after_place: ListPlace,
    /// Whether `jobs` are all jobs that wait.
    pub(crate) is_whole: bool,
}

/// Reads the waiting jobs.
pub(crate) async fn read_waiting(
    store: &Store,
    policy: &Policy,
    control: &Control,
    audience: Audience,
    now: Time,
) -> Result<WaitingRead, DbError> {
    let lists = (read_queue(store, policy, control, audience), read_followers(store, control));
    let (of_queue, followers, put_off) =
        try_join3(lists.0, lists.1, read_put_off(store, policy, audience, now)).await?;
    let ((queue, queue_read), (following, after_place, has_all)) = (of_queue, followers);
    Ok(WaitingRead {
        is_whole: queue_read.part.is_none() && has_all && audience == Audience::Person && put_off.end.is_none(),
        jobs: placed_last(put_off.jobs, placed_last(following.jobs, queue.jobs)),
        unreadable: [queue.unreadable, following.unreadable, put_off.unreadable].concat(),
        queue: queue_read,
        after_place,
    })
}

/// The most jobs that follow others that one run reads.
const MOST_FOLLOWERS: usize = 1000;

/// The most followed jobs whose ends one run reads. The first job may follow more.
const FOLLOWED: usize = 2000;

/// A part of the jobs that follow others, the place after this run, and whether these are all of them. The part moves on from run to
/// run, so what a run reads does not grow with their number. Each job is read after `jobs that follow others / 1000` runs, or later if
/// they follow more than two different jobs each.
async fn read_followers(store: &Store, control: &Control) -> Result<(WaitingJobs, ListPlace, bool), DbError> {
    let last = control.place(&ControlKey::AfterPlace);
    let mut part = store.following(last.rank(), MOST_FOLLOWERS).await?;
    // Many jobs may follow the same ones.
    let mut followed = HashSet::new();
    let fits = part.jobs.iter().take_while(|job| {
        let is_first = followed.is_empty();
        followed.extend(job.after.keys().copied());
        is_first || followed.len() <= FOLLOWED
    });
    let fits = fits.count();
    if fits < part.jobs.len() {
        part.jobs.truncate(fits);
        part.end = part.jobs.last().map(JobSummary::rank);
    }
    let is_whole = last.rank().is_none() && part.end.is_none();
    let place = last.moved(part.end.clone(), 0);
    Ok((part, place, is_whole))
}

/// The jobs that are due, at most as many as the head of the queue has, and for a person those that are put off. These cost a run
/// nothing before they are due, however many they are.
async fn read_put_off(store: &Store, policy: &Policy, audience: Audience, now: Time) -> Result<WaitingJobs, DbError> {
    let due = store.jobs_due(now, head_rows(policy)).await?;
    let mut read = match audience {
        Audience::Run | Audience::Turn => WaitingJobs::default(),
        Audience::Person => store.put_off(BEHIND_FOR_A_PERSON).await?,
    };
    // The index may be behind the row.
    let is_due = |job: &JobSummary| job.due_at().is_some_and(|at| at <= now);
    let jobs = due.rows.into_iter().map(|job| job.summary).filter(is_due);
    read.jobs = placed_last(read.jobs, jobs.collect());
    read.unreadable.splice(..0, due.unreadable);
    Ok(read)
}

/// The reader of the queue: a run, or a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// A run, which places jobs.
    Turn,
    /// What a run would read, to say what it would do.
    Run,
    /// A person, who waits for the answer. Of the part behind the head, this reads the beginning.
    Person,
}

/// The head of the queue has at least this many jobs, so that a small fleet rarely has to read behind it.
const LEAST_HEAD: usize = 1000;

/// How many jobs behind the head are read for a person, and how many that are put off.
pub(crate) const BEHIND_FOR_A_PERSON: usize = 250;

/// The part behind the head has at most `poll.queue_rows` divided by this number of jobs.
const HEAD_PER_PART: usize = 4;

/// How many jobs the head of the queue has.
fn head_rows(policy: &Policy) -> usize {
    let largest = policy.size.iter().map(|size| size.capacity.vcpus).max().unwrap_or(1);
    let room = (policy.nodes.max as usize).saturating_mul(largest as usize);
    room.max(LEAST_HEAD).min(policy.poll.queue_rows as usize)
}

/// The waiting jobs of a run: the head of the queue, and, if the queue is longer, one part that moves on from run to run.
/// So what a run reads does not grow with the queue.
///
/// The head has one job for each vCPU of the largest fleet that the policy allows. A job behind many that cannot be placed is
/// read after `jobs behind the head / (poll.queue_rows / 4)` runs, and later only if nodes boot for jobs of the part.
async fn read_queue(
    store: &Store,
    policy: &Policy,
    control: &Control,
    audience: Audience,
) -> Result<(WaitingJobs, QueueRead), DbError> {
    let most = policy.poll.queue_rows as usize;
    // Jobs of a share that the policy had may still wait.
    let shares = control.policy.as_ref().map(|row| row.shares.clone()).unwrap_or_default();
    let mut read = store.queued(&shares, None, head_rows(policy)).await?;
    let of_head: HashSet<JobId> = read.jobs.iter().map(|job| job.job_id).collect();
    let Some(end) = read.end.take() else {
        return Ok((read, QueueRead { read: of_head.len(), least: of_head.len(), part: None }));
    };
    let last = control.place(&ControlKey::QueuePlace);
    let (behind, passed) = match last.rank().filter(|rank| *rank > end.as_str()) {
        Some(rank) => (rank, last.passed),
        None => (end.as_str(), 0),
    };
    let most_behind = match audience {
        Audience::Run | Audience::Turn => (most / HEAD_PER_PART).max(1),
        Audience::Person => BEHIND_FOR_A_PERSON,
    };
    let mut part = store.queued(&shares, Some(behind), most_behind).await?;
    // The heads of the shares end at different places, and so do their parts.
    part.jobs.retain(|job| !of_head.contains(&job.job_id));
    let is_passed = |job: &&JobSummary| part.end.as_ref().is_none_or(|end| job.rank() <= *end);
    let all = passed.saturating_add(part.jobs.iter().filter(is_passed).count() as u64);
    let known = of_head.len().saturating_add(usize::try_from(all).unwrap_or(usize::MAX));
    let least = if part.end.is_some() { known.saturating_add(1) } else { known };
    // After the end, the part begins behind the head again.
    let moves = if part.end.is_some() { last.moved(part.end, all) } else { last.moved(None, 0) };
    let stays = last.moved(Some(behind.to_owned()), passed);
    let of_part = part.jobs.iter().map(|job| job.job_id).collect();
    read.jobs.extend(part.jobs);
    read.unreadable.extend(part.unreadable);
    let part = Some(QueuePart { jobs: of_part, stays, moves });
    let queue_read = QueueRead { read: read.jobs.len(), least, part };
    Ok((read, queue_read))
}

/// The order of the queue: by priority, then by submission.
pub(crate) const fn queue_order(job: &JobSummary) -> (Reverse<u32>, JobId) {
    (Reverse(job.priority), job.job_id)
}
