//! The writes of one report, many at a time.
//!
//! Guarantees: no write begins when little time is left; at most `MAX_WRITES` rows of each kind are written; what was not
//! written is counted, and the next report does it.
//! Does not: decide what is written.

use crate::judging::HandleChanges;
use futures::StreamExt;
use futures::lock::Mutex;
use model::{Handle, NodeRecord, Policy, Time};
use runtime::clock::RunClock;
use store::{
    DbError, Store, Write, WriteError, change, change_handle, delete_handle, insert_handle, together, unchanged,
    unless_raced,
};

/// The most rows of one kind that one request writes.
const MAX_WRITES: usize = 2000;

/// How many writes of single rows run at the same time.
const AT_ONCE: usize = 8;

/// How many rows one transaction writes besides the node's record. DynamoDB takes 100 writes.
pub(crate) const TOGETHER: usize = 99;

pub(crate) struct Batches<'a> {
    store: &'a Store,
    /// The node's record, after the writes.
    pub(crate) record: NodeRecord,
    clock: RunClock,
    reserve_ms: u64,
    now: Time,
    /// How many rows were not written.
    pub(crate) left: u64,
}

impl<'a> Batches<'a> {
    pub(crate) fn new(store: &'a Store, record: NodeRecord, clock: RunClock, policy: &Policy, now: Time) -> Self {
        Self { store, record, clock, reserve_ms: policy.watchdog.reserve_ms, now, left: 0 }
    }

    fn may_begin(&self) -> bool {
        self.clock.has_left(self.reserve_ms)
    }

    /// Writes what changes, and the new rows. Returns the names of the dropped handles whose rows were written.
    pub(crate) async fn write(&mut self, changes: &HandleChanges<'_>) -> Result<Vec<String>, WriteError> {
        let changed = changes.changed.iter().map(|(before, after)| (None, change_handle(before, after)));
        let gone = changes.gone.iter().map(|row| (None, delete_handle(row)));
        let buried = |row: &Handle| change_handle(row, &row.buried(self.now));
        let dropped = changes.dropped.iter().map(|row| (Some(row.handle.clone()), buried(row)));
        let writes: Vec<(Option<String>, Write)> = changed.chain(gone).chain(dropped).collect();
        let dropped = self.one_by_one(writes).await?;
        self.insert(&changes.new).await?;
        Ok(dropped)
    }

    /// Makes single conditional writes, several at the same time. A lost race is fine: the next report judges the new row. Returns
    /// the names of those that were written.
    async fn one_by_one(&mut self, writes: Vec<(Option<String>, Write)>) -> Result<Vec<String>, WriteError> {
        let most = writes.len().min(MAX_WRITES);
        let mut left = writes.len().saturating_sub(most);
        let (store, may_begin) = (self.store, || self.may_begin());
        let work = writes.into_iter().take(most).map(|(name, write)| async move {
            if may_begin() {
                match store.apply(&write).await {
                    // A row that the database refuses must not stop the writes of the others.
                    Err(WriteError::Db(error @ DbError::Refused { .. })) => {
                        tracing::warn!(%error, key = ?write.key, "the row of a handle was not changed");
                        Ok((false, None))
                    }
                    written => unless_raced(written).map(|written| (true, written.and(name))),
                }
            } else {
                Ok((false, None))
            }
        });
        let mut results = futures::stream::iter(work.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
        let mut names = Vec::new();
        while let Some(result) = results.next().await {
            let (began, name): (bool, Option<String>) = result?;
            left += usize::from(!began);
            names.extend(name);
        }
        drop(results);
        self.left = self.left.saturating_add(left as u64);
        Ok(names)
    }

    /// Inserts new rows, if the node's record is unchanged. After a conflict the row exists, or the record has changed. The next report
    /// judges the handle anew.
    async fn insert(&mut self, rows: &[Handle]) -> Result<(), WriteError> {
        let (rows, mut left) = (self.first(rows), 0);
        let this = &*self;
        for chunk in rows.chunks(TOGETHER) {
            let insert = |some: &[Handle]| {
                let rows = some.iter().map(insert_handle);
                let writes: Vec<Write> = std::iter::once(unchanged(&this.record)).chain(rows).collect();
                async move { Ok(this.may_begin() && this.store.transact(&writes).await.map(|()| true)?) }
            };
            for (some, inserted) in together(chunk, insert).await {
                left += if unless_raced(inserted)? == Some(false) { some.len() } else { 0 };
            }
        }
        self.left = self.left.saturating_add(left as u64);
        Ok(())
    }

    /// Marks these rows. Returns the names of those that were marked.
    pub(crate) async fn mark(&mut self, rows: &[&Handle]) -> Result<Vec<String>, WriteError> {
        let (rows, mut marked) = (self.first(rows), Vec::new());
        for chunk in rows.chunks(TOGETHER) {
            let (store, now, clock, reserve_ms) = (self.store, self.now, &self.clock, self.reserve_ms);
            let record = &Mutex::new(&mut self.record);
            let mark = |some| async move {
                let (mut record, may_begin) = (record.lock().await, clock.has_left(reserve_ms));
                if may_begin {
                    **record = mark(store, &record, some, now).await?;
                }
                Ok(may_begin)
            };
            for (some, result) in together(chunk, mark).await {
                if unless_raced(result)? == Some(true) {
                    marked.extend(some.iter().map(|row| row.handle.clone()));
                }
            }
        }
        // The other rows, or the record, have changed, or no time was left. The next report judges these handles anew.
        self.left = self.left.saturating_add(rows.len().saturating_sub(marked.len()) as u64);
        Ok(marked)
    }

    /// The first [`MAX_WRITES`] rows. The others count as left.
    fn first<'r, T>(&mut self, rows: &'r [T]) -> &'r [T] {
        let most = rows.get(..MAX_WRITES).unwrap_or(rows);
        self.left = self.left.saturating_add(rows.len().saturating_sub(most.len()) as u64);
        most
    }
}

/// Marks handles of one node for destruction and raises the node's `seq`, in one transaction, so that the `as_of` of a
/// later report shows whether that report knows of the order. At most `TOGETHER` handles.
pub(crate) async fn mark(
    store: &Store,
    record: &NodeRecord,
    handles: &[&Handle],
    now: Time,
) -> Result<NodeRecord, WriteError> {
    let told = record.bump_seq(now).map_err(|_| WriteError::CONFLICT)?;
    let (write, told) = change(Some(record), &told);
    let seq = told.life().map_or(0, |l| l.seq);
    let mut writes = vec![write];
    writes.extend(handles.iter().map(|handle| change_handle(handle, &handle.marked(seq, now))));
    store.transact(&writes).await?;
    Ok(told)
}
