//! Reads the queue: the waiting jobs in their order, the placed jobs, and the jobs that ended last.
//!
//! One value of the hash key of an index takes about 1,000 writes a second. So the waiting jobs are spread over several
//! values by their ids, and a reader merges them by their ranks.
//!
//! Guarantees: the rows that a part of the queue costs depend on the length of the part, not of the queue.
//! Does not: see more than the index does, which may be behind the table.

use crate::db::{DbError, Page, PageKey, Query, Row};
use crate::rows::end::End;
use crate::rows::listed::{Listed, Unreadable};
use crate::rows::{self, FOLLOWING, PUT_OFF, QUEUED, n, s};
use crate::store::Store;
use crate::tables::{DUE, QUEUE, Table};
use model::control::PolicyRow;
use model::{Array, ControlKey, Job, JobId, JobSummary, Time};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};

impl Store {
    /// Every job that has not ended, queued ones first, each group in the order of the queue; at most `most` waiting jobs. Also the
    /// rows that cannot be read.
    pub async fn queue_listed(&self, most: usize) -> Result<WaitingJobs, DbError> {
        let (mut queue, placed) = (self.waiting(None, most).await?, self.placed().await?);
        queue.jobs = placed_last(queue.jobs, placed.rows);
        queue.unreadable.extend(placed.unreadable);
        Ok(queue)
    }

    /// Every job that is placing, placed or regrouping.
    pub async fn placed(&self) -> Result<Listed<JobSummary>, DbError> {
        self.query(&jobs_with("placed")).await
    }

    /// The waiting jobs behind this rank, also those that follow other jobs or are put off, in the order of the queue, at most `most`.
    pub async fn waiting(&self, behind: Option<&str>, most: usize) -> Result<WaitingJobs, DbError> {
        let shares = self.share_queues().await?;
        self.waiting_in(&every_queue(&shares), behind, most).await
    }

    /// The values of `queue` of the jobs of each share that the policy has or had.
    async fn share_queues(&self) -> Result<Vec<String>, DbError> {
        let policy: PolicyRow = self.entry(&ControlKey::Policy).await?;
        Ok(policy.shares.iter().map(|share| rows::queue_of(share)).collect())
    }

    /// The first jobs that are put off, in the order of the queue, at most `most`.
    pub async fn put_off(&self, most: usize) -> Result<WaitingJobs, DbError> {
        self.waiting_in(&[PUT_OFF], None, most).await
    }

    /// The jobs that a run must look at now, those that are due longest first, at most `most`. The index names them, and then each row
    /// is read consistently. A run must change each of them: otherwise they hide the others.
    pub async fn jobs_due(&self, now: Time, most: usize) -> Result<Listed<Job>, DbError> {
        let range_at_most = Some(n(now.as_ms()));
        let limit = i32::try_from(most).ok();
        let query = Query { range_at_most, limit, ..Query::of(Table::Jobs, Some(DUE), s("due")) };
        let (due, _) = self.rows(&query, None, most).await?;
        self.jobs_of(due.iter().filter_map(|row| row.get("job_id")?.as_s().ok()?.parse().ok())).await
    }

    /// How many elements of this array have failed, as far as the index shows; it stops at `most`.
    pub async fn failures(&self, array: Array, most: u32) -> Result<u64, DbError> {
        let limit = i32::try_from(most).ok();
        let query = Query { limit, ..Query::of(Table::Jobs, Some(DUE), s(rows::failures_of(array))) };
        let (failed, _) = self.rows(&query, None, most as usize).await?;
        let count = |row: &Row| row.get("due_at")?.as_n().ok()?.parse::<u64>().ok();
        Ok(failed.iter().filter_map(count).fold(0, u64::saturating_add))
    }

    /// The jobs behind this rank that may be placed, at most `most`: of no share, and of each of these shares. Each part is read in the
    /// order of the queue, and from a long one come no more jobs than from the others, unless these have fewer. `end` is the first rank
    /// behind which a part has more.
    pub async fn queued(
        &self,
        shares: &BTreeSet<String>,
        behind: Option<&str>,
        most: usize,
    ) -> Result<WaitingJobs, DbError> {
        let queues: Vec<String> = shares.iter().map(|share| rows::queue_of(share)).collect();
        let of_shares = queues.iter().map(|queue| vec![queue.as_str()]);
        let mut parts: Vec<(Vec<&str>, WaitingJobs)> =
            of_shares.chain([QUEUED.to_vec()]).map(|queues| (queues, WaitingJobs::default())).collect();
        let (mut wanted, mut left): (Vec<usize>, usize) = ((0..parts.len()).collect(), most);
        while !wanted.is_empty() && left > 0 {
            let each = left.div_ceil(wanted.len());
            let read = wanted.iter().filter_map(|n| parts.get(*n)).map(|(queues, part)| {
                let from = part.end.as_deref().or(behind);
                self.waiting_in(queues, from, each)
            });
            for (n, read) in wanted.iter().zip(futures::future::try_join_all(read).await?) {
                left = left.saturating_sub(read.jobs.len());
                if let Some((_, part)) = parts.get_mut(*n) {
                    part.jobs.extend(read.jobs);
                    part.unreadable.extend(read.unreadable);
                    part.end = read.end;
                }
            }
            wanted.retain(|n| parts.get(*n).is_some_and(|(_, part)| part.end.is_some()));
        }
        let mut all =
            WaitingJobs { end: parts.iter().filter_map(|(_, part)| part.end.clone()).min(), ..Default::default() };
        for (_, part) in parts {
            all.jobs.extend(part.jobs);
            all.unreadable.extend(part.unreadable);
        }
        Ok(all)
    }

    /// The jobs behind this rank that follow other jobs, in the order of the queue, at most `most`.
    pub async fn following(&self, behind: Option<&str>, most: usize) -> Result<WaitingJobs, DbError> {
        self.waiting_in(&[FOLLOWING], behind, most).await
    }

    /// The jobs that ended last in one of these ways, the newest first: at most `most`, and none that ended before
    /// `since`.
    pub async fn ended(&self, ends: &[End], since: Time, most: usize) -> Result<Vec<Ended>, DbError> {
        self.ended_in(ends, (Some(since), None), most).await
    }

    /// The jobs that ended last in this way, the newest first: at most `most`, and none that ended after `until`.
    pub async fn ended_until(&self, end: End, until: Time, most: usize) -> Result<Vec<Ended>, DbError> {
        self.ended_in(&[end], (None, Some(until)), most).await
    }

    async fn ended_in(
        &self,
        ends: &[End],
        (since, until): (Option<Time>, Option<Time>),
        most: usize,
    ) -> Result<Vec<Ended>, DbError> {
        let [range_at_least, range_at_most] = [since, until].map(|at| at.map(|at| s(rows::ended_rank(at))));
        let hashes = ends.iter().flat_map(|end| end.values());
        let parts = hashes.map(|hash| Query {
            range_at_least: range_at_least.clone(),
            range_at_most: range_at_most.clone(),
            ..jobs_with(hash)
        });
        let (read, _) = self.newest_rows(&parts.collect::<Vec<_>>(), most).await?;
        let of_row = |row: &Row| Some(Ended { at: rows::ended_at(row)?, job: rows::from_item(Table::Jobs, row).ok()? });
        let mut ended: Vec<Ended> = read.iter().filter_map(of_row).collect();
        ended.sort_by_key(|ended| Reverse((ended.at, ended.job.job_id)));
        Ok(ended)
    }

    /// The waiting jobs that were submitted last, the newest first, at most `most`. The index has the order of the
    /// queue, so this costs a query for each priority that waiting jobs have. `end` says that more jobs wait.
    pub async fn waiting_newest(&self, most: usize) -> Result<WaitingJobs, DbError> {
        let shares = self.share_queues().await?;
        let hashes = every_queue(&shares).into_iter().map(|hash| self.newest_of(hash, most));
        let parts = futures::future::try_join_all(hashes).await?;
        // A job that is older than `known` may have a newer one that was not read.
        let known = parts.iter().filter_map(|(_, cut)| *cut).max();
        let all = parts.into_iter().fold(Listed::default(), |all, (part, _)| all.and(part.read));
        let (mut jobs, unreadable) = (all.rows, all.unreadable);
        jobs.retain(|job| known.is_none_or(|known| job.job_id >= known));
        jobs.sort_by_key(|job| Reverse(job.job_id));
        jobs.dedup_by_key(|job| job.job_id);
        let more = known.is_some() || jobs.len() > most;
        jobs.truncate(most);
        let end = jobs.last().map(JobSummary::rank).filter(|_| more);
        Ok(WaitingJobs { jobs, end, unreadable })
    }

    /// The newest jobs of each priority with this value of `queue`, and the newest of the jobs at which a priority was
    /// cut off.
    async fn newest_of(&self, hash: &str, most: usize) -> Result<(QueueShard, Option<JobId>), DbError> {
        // Only the jobs that the commands submit are spread evenly.
        let is_spread = QUEUED.get(1..).is_some_and(|spread| spread.contains(&hash));
        let limit = if is_spread { share(most, SPREAD) } else { most };
        let newest = Query { newest_first: true, limit: i32::try_from(limit).ok(), ..jobs_with(hash) };
        let (mut part, mut range_at_most, mut from, mut cut) = (QueueShard::behind(hash, None), None, None, None);
        loop {
            let query = Query { range_at_most: range_at_most.clone(), ..newest.clone() };
            part.add(self.db.query(&query, from.take()).await?);
            let Some(next) = part.next.take() else { return Ok((part, cut)) };
            let rank = next.get("rank").and_then(|rank| rank.as_s().ok()).and_then(|rank| rank.split_once('#'));
            let of_priority =
                part.read.rows.iter().filter(|job| rank.is_some_and(|(digits, _)| job.rank().starts_with(digits)));
            match rank {
                // Enough of this priority: the next page begins before its first job.
                Some((digits, id)) if of_priority.count() >= limit => {
                    cut = cut.max(id.parse().ok());
                    range_at_most = Some(s(digits));
                }
                _ => from = Some(next),
            }
        }
    }

    /// The jobs behind this rank that have one of these values of `queue`, merged.
    async fn waiting_in(&self, hashes: &[&str], behind: Option<&str>, most: usize) -> Result<WaitingJobs, DbError> {
        let mut parts: Vec<QueueShard> = hashes.iter().map(|hash| QueueShard::behind(hash, behind)).collect();
        // The jobs are spread evenly over the values. So the first page of each value is nearly always enough.
        let limit = match (most, hashes.len()) {
            (usize::MAX, _) => None,
            (most, 1) => i32::try_from(most).ok(),
            (most, hashes) => i32::try_from(share(most, hashes)).ok(),
        };
        let mut wanted: Vec<usize> = (0..parts.len()).collect();
        loop {
            let pages = wanted.iter().filter_map(|n| parts.get(*n)).map(|part| async move {
                self.db.query(&Query { limit, ..jobs_with(&part.hash) }, part.next.clone()).await
            });
            let pages: Vec<Page> = futures::future::try_join_all(pages).await?;
            for (n, page) in wanted.iter().zip(pages) {
                if let Some(part) = parts.get_mut(*n) {
                    part.add(page);
                }
            }
            // A job behind the rank `known` may be on a page that was not read.
            let known = parts.iter().filter(|p| p.next.is_some()).map(|p| p.last.clone()).min();
            let is_known = |job: &JobSummary| known.as_ref().is_none_or(|known| job.rank() <= *known);
            let have: usize = parts.iter().map(|p| p.read.rows.partition_point(is_known)).sum();
            if have >= most || known.is_none() {
                return Ok(WaitingJobs::merged(parts, known.as_deref(), most));
            }
            let behind = |p: &QueueShard| p.next.is_some() && (limit.is_none() || Some(&p.last) == known.as_ref());
            wanted = parts.iter().enumerate().filter(|(_, p)| behind(p)).map(|(n, _)| n).collect();
        }
    }
}

/// The values of `queue` of all waiting jobs, if those of the shares have these.
fn every_queue(shares: &[String]) -> Vec<&str> {
    QUEUED.into_iter().chain([FOLLOWING, PUT_OFF]).chain(shares.iter().map(String::as_str)).collect()
}

/// The query of the jobs with this value of `queue`.
fn jobs_with(value: &str) -> Query {
    Query::of(Table::Jobs, Some(QUEUE), s(value))
}

/// Over how many values the waiting jobs are spread.
const SPREAD: usize = 8;

/// How many rows to read of each value, so that `most` rows of all these values together are nearly always enough.
pub(crate) const fn share(most: usize, values: usize) -> usize {
    most.div_ceil(if values == 0 { 1 } else { values }).saturating_add(most / 32).saturating_add(16)
}

/// A job that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub job: JobSummary,
    pub at: Time,
}

/// Waiting jobs in the order of the queue.
#[derive(Clone, Debug, Default)]
pub struct WaitingJobs {
    pub jobs: Vec<JobSummary>,
    /// The rank of the last of them, if more jobs wait behind it.
    pub end: Option<String>,
    /// The rows that cannot be read, of those that this read has seen.
    pub unreadable: Vec<Unreadable>,
}

impl WaitingJobs {
    fn merged(parts: Vec<QueueShard>, known: Option<&str>, most: usize) -> Self {
        let read = parts.into_iter().fold(Listed::default(), |all, part| all.and(part.read));
        let (mut jobs, unreadable) = (read.rows, read.unreadable);
        // A job that stops following others, or gets another priority, between two reads is in both.
        jobs.sort_by_key(|job| (job.job_id, Reverse(job.version)));
        jobs.dedup_by_key(|job| job.job_id);
        jobs.sort_by_key(|job| (Reverse(job.priority), job.job_id));
        let all = jobs.len();
        let is_known = |job: &JobSummary| known.is_none_or(|known| job.rank().as_str() <= known);
        jobs.truncate(jobs.partition_point(is_known).min(most));
        let more = known.is_some() || jobs.len() < all;
        // Even if none of the rows can be read, the next part begins behind them.
        let end = jobs.last().map(JobSummary::rank).or_else(|| known.map(str::to_owned)).filter(|_| more);
        Self { jobs, end, unreadable }
    }
}

/// The waiting jobs with one value of `queue`, as far as they were read.
struct QueueShard {
    hash: String,
    read: Listed<JobSummary>,
    /// Where the next page begins; `None` if everything was read.
    next: Option<PageKey>,
    /// The rank of the last row that was read.
    last: String,
}

impl QueueShard {
    fn behind(hash: &str, rank: Option<&str>) -> Self {
        let next = rank.map(|rank| {
            let id = rank.split_once('#').map_or("", |(_, id)| id);
            PageKey::from([("queue".into(), s(hash)), ("rank".into(), s(rank)), ("job_id".into(), s(id))])
        });
        Self { hash: hash.to_owned(), read: Listed::default(), next, last: String::new() }
    }

    fn add(&mut self, page: Page) {
        let listed: Listed<JobSummary> = Listed::of(Table::Jobs, &page.items);
        let ranks = listed.unreadable.iter().filter_map(|row| row.text("rank")).map(str::to_owned);
        let last = ranks.chain(listed.rows.last().map(JobSummary::rank)).max();
        self.last = last.unwrap_or_else(|| std::mem::take(&mut self.last));
        self.read = std::mem::take(&mut self.read).and(listed);
        self.next = page.next;
    }
}

/// Both lists together. A job that is placed between the two queries is in both, and its second row is newer.
pub fn placed_last(waiting: Vec<JobSummary>, placed: Vec<JobSummary>) -> Vec<JobSummary> {
    // Otherwise, a large fleet with an empty queue would have its placed jobs in memory twice.
    if waiting.is_empty() {
        return placed;
    }
    let newer: HashSet<JobId> = placed.iter().map(|job| job.job_id).collect();
    let mut jobs = waiting;
    jobs.retain(|job| !newer.contains(&job.job_id));
    jobs.extend(placed);
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::{Answer, Db, Scan, WriteError};
    use crate::rows::Record;
    use crate::write::{Item, Key, Write};
    use async_trait::async_trait;
    use model::fixtures::{self, at};
    use model::{JobSpec, JobState};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// An index in memory that counts the rows that were read.
    #[derive(Default)]
    struct Index_ {
        rows: BTreeMap<(String, String), Row>,
        read: AtomicUsize,
    }

    fn text<'a>(item: &'a Item, name: &str) -> &'a str {
        item.get(name).and_then(|v| v.as_s().ok()).map_or("", String::as_str)
    }

    impl Index_ {
        fn put(&mut self, job: &Job, hash: Option<&str>) {
            let mut item = rows::row(job);
            job.index(&mut item);
            if let Some(hash) = hash {
                item.insert("queue".into(), s(hash));
            }
            let key = (text(&item, "queue").to_owned(), text(&item, "rank").to_owned());
            self.rows.insert(key, Row::from(item));
        }
    }

    #[async_trait]
    impl Db for Index_ {
        async fn get(&self, _: &Key) -> Result<Option<Row>, DbError> {
            Ok(None)
        }
        async fn get_many(&self, _: &[Key]) -> Result<Vec<Row>, DbError> {
            Ok(Vec::new())
        }
        async fn query(&self, query: &Query, from: Option<PageKey>) -> Result<Page, DbError> {
            let hash = query.hash.as_s().unwrap().clone();
            let behind = from.map_or(String::new(), |from| text(&from, "rank").to_owned());
            let most = query.limit.map_or(50, |limit| limit as usize).min(50);
            let within = self.rows.range((hash.clone(), behind.clone())..);
            let mut found = within.take_while(|((h, _), _)| *h == hash).filter(|((_, rank), _)| *rank > behind);
            let items: Vec<Row> = found.by_ref().take(most).map(|(_, row)| row.clone()).collect();
            let next = found.next().and(items.last()).map(|last| (**last).clone());
            self.read.fetch_add(items.len(), Ordering::Relaxed);
            Ok(Page { items, next })
        }
        async fn scan(&self, _: &Scan, _: Option<PageKey>) -> Result<Page, DbError> {
            Ok(Page::default())
        }
        async fn write(&self, _: &Write, _: Answer) -> Result<Option<Row>, WriteError> {
            Err(WriteError::CONFLICT)
        }
        async fn transact(&self, _: &[Write]) -> Result<(), WriteError> {
            Err(WriteError::CONFLICT)
        }
        async fn put_new(&self, _: Table, _: &[Item]) -> Result<(), DbError> {
            Ok(())
        }
    }

    fn job(n: u32) -> Job {
        let spec = JobSpec { priority: n * 7 % 3, ..JobSpec::running(["true"]) };
        let id = JobId::new(ulid(n));
        Job::submit(id, spec, at(i64::from(n))).unwrap()
    }

    fn ulid(n: u32) -> model::ids::Ulid {
        model::ids::Ulid::from_parts(1_800_000_000_000 + u64::from(n), u128::from(n) * 2_654_435_761)
    }

    fn filled(jobs: u32) -> (Arc<Index_>, Vec<JobId>) {
        let mut index = Index_::default();
        let mut all: Vec<Job> = (0..jobs).map(job).collect();
        for (n, job) in all.iter().enumerate() {
            // Another program put some of the jobs.
            index.put(job, (n % 11 == 0).then_some("queued"));
        }
        all.sort_by_key(|job| job.summary.rank());
        (Arc::new(index), all.iter().map(|job| job.summary.job_id).collect())
    }

    fn ids(waiting: &WaitingJobs) -> Vec<JobId> {
        waiting.jobs.iter().map(|job| job.job_id).collect()
    }

    #[tokio::test]
    async fn each_part_of_the_queue_is_read_in_order_and_none_is_left_out() {
        let (index, all) = filled(700);
        let store = Store::new(index);
        for most in [1, 7, 100, 699, 700, 5000, usize::MAX] {
            let (mut read, mut behind) = (Vec::new(), None);
            loop {
                let part = store.waiting(behind.as_deref(), most).await.unwrap();
                assert!(part.jobs.len() == most || part.end.is_none(), "{most}");
                read.extend(ids(&part));
                behind = part.end;
                if behind.is_none() {
                    break;
                }
            }
            assert_eq!(read, all, "{most} at a time");
        }
    }

    #[tokio::test]
    async fn what_is_read_does_not_grow_with_the_queue() {
        let mut read = Vec::new();
        for jobs in [1_000, 20_000] {
            let (index, all) = filled(jobs);
            let part = Store::new(Arc::clone(&index) as Arc<dyn Db>).waiting(None, 300).await.unwrap();
            assert_eq!(ids(&part), all[..300]);
            read.push(index.read.load(Ordering::Relaxed));
        }
        assert!(read[1] <= read[0] * 3 / 2 && read[1] < 900, "{read:?}");
    }

    /// An index of 20,000 jobs, each of which has the share of its number.
    fn shared(share_of: impl Fn(u32) -> Option<u32>) -> (Arc<Index_>, BTreeSet<String>) {
        let (mut index, mut shares) = (Index_::default(), BTreeSet::new());
        for n in 0..20_000 {
            let mut job = job(n);
            job.summary.share = share_of(n).map(|share| format!("s{share}"));
            shares.extend(job.summary.share.clone());
            index.put(&job, None);
        }
        (Arc::new(index), shares)
    }

    #[tokio::test]
    async fn a_head_of_fifty_shares_reads_hardly_more_than_one_without_and_has_as_many_of_each() {
        let mut read = Vec::new();
        for has_shares in [false, true] {
            let (index, shares) = shared(|n| has_shares.then_some(n % 50));
            let head = Store::new(Arc::clone(&index) as Arc<dyn Db>).queued(&shares, None, 1000).await.unwrap();
            let of = |share: &String| head.jobs.iter().filter(|job| job.share.as_ref() == Some(share)).count();
            assert!(head.jobs.len() >= 1000 && head.end.is_some());
            assert!(shares.iter().all(|share| of(share) == 20), "{:?}", shares.iter().map(of).collect::<Vec<_>>());
            read.push(index.read.load(Ordering::Relaxed));
        }
        assert!(read[1] * 10 <= read[0] * 13, "{read:?}");
    }

    #[tokio::test]
    async fn a_flood_of_one_share_takes_what_the_others_leave_and_each_job_is_read_in_some_part() {
        let (index, shares) = shared(|n| Some(if n % 2000 == 0 { 1 + n / 2000 } else { 0 }));
        let store = Store::new(index);
        let head = store.queued(&shares, None, 1000).await.unwrap();
        let flood = head.jobs.iter().filter(|job| job.share.as_deref() == Some("s0")).count();
        assert_eq!((flood, head.jobs.len()), (990, 1000), "the ten others are all there");
        let (mut read, mut behind): (HashSet<JobId>, _) = (HashSet::new(), None);
        loop {
            let part = store.queued(&shares, behind.as_deref(), 1500).await.unwrap();
            read.extend(part.jobs.iter().map(|job| job.job_id));
            behind = part.end;
            if behind.is_none() {
                break;
            }
        }
        assert_eq!(read.len(), 20_000);
    }

    #[tokio::test]
    async fn a_job_that_gets_another_priority_while_the_queue_is_read_is_there_once_as_it_is_now() {
        let (before, other) = (job(0), job(1));
        let mut changed = before.clone();
        for priority in [0, 2] {
            changed.summary.priority = priority;
            let (_, now) = crate::change(Some(&before), &changed);
            let mut index = Index_::default();
            let first = Job { summary: JobSummary { priority: 1, ..before.summary.clone() }, ..before.clone() };
            [&first, &other, &now].into_iter().for_each(|job| index.put(job, None));
            let waiting = Store::new(Arc::new(index)).waiting(None, 9).await.unwrap();
            let read: Vec<_> = waiting.jobs.iter().map(|job| (job.job_id, job.priority)).collect();
            let (now, other) = ((before.summary.job_id, priority), (other.summary.job_id, 1));
            assert_eq!(read, if priority > 1 { [now, other] } else { [other, now] });
        }
    }

    #[test]
    fn a_job_that_is_placed_between_the_two_queries_is_there_once_and_placed() {
        let waiting: Vec<JobSummary> = (0..3).map(|n| fixtures::job(n).summary).collect();
        let placed = JobSummary { state: JobState::Placed, ..waiting[1].clone() };
        let both = placed_last(waiting.clone(), vec![placed.clone()]);
        assert_eq!(both, [waiting[0].clone(), waiting[2].clone(), placed]);
    }
}
