//! The loop that stores the output of ended allocs in S3.
//!
//! Guarantees: the report of an end and the heartbeats never wait for an upload; an output that cannot be stored now is tried
//! again, also by the next agent, until it is stored or dropped (see `unsent`); small outputs come first, so that one large
//! output does not delay the others; an output that S3 refuses keeps no other one back; one part of one output is in memory at a time.
//! Does not: store the output of a command that still runs. What the command prints after its end is not waited for.

use crate::backoff::{self, History};
use crate::node_state::NodeState;
use crate::s3_access::S3Access;
use crate::unsent::{Unsent, Waiting};
use model::chance::Chance;
use model::ids::AllocId;
use s3::S3Error;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// When the disk is looked at again although no alloc has ended.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// The loop as its owner sees it.
#[derive(Debug)]
pub struct Uploads {
    task: JoinHandle<()>,
    ending: watch::Sender<bool>,
}

impl Uploads {
    /// Starts the loop.
    pub fn start(state: Arc<NodeState>, unsent: Unsent, access: S3Access) -> Self {
        let (ending, told) = watch::channel(false);
        let uploader = Uploader { unsent, access, settled: BTreeSet::new(), refused: BTreeSet::new() };
        Self { task: tokio::spawn(uploader.run(state, told)), ending }
    }

    /// Lets the loop try once more to store what there is, for at most this time, and ends it. What is left stays on disk.
    pub async fn finish(self, at_most: Duration) {
        let Self { mut task, ending } = self;
        let _ends_with_its_task = ending.send(true);
        if timeout(at_most, &mut task).await.is_err() {
            tracing::warn!("not all output is stored yet: the next agent on this disk goes on");
            task.abort();
        }
    }
}

struct Uploader {
    unsent: Unsent,
    access: S3Access,
    /// The outputs that this process has stored. The disk may not say so, because a full disk takes no note.
    settled: BTreeSet<AllocId>,
    /// The outputs that S3 refused in the last round. The others come first.
    refused: BTreeSet<AllocId>,
}

impl Uploader {
    async fn run(mut self, state: Arc<NodeState>, mut ending: watch::Receiver<bool>) {
        let mut failures: u32 = 0;
        loop {
            let is_last = *ending.borrow_and_update();
            let wait = match self.round().await {
                Ok(()) => {
                    failures = 0;
                    LOOK_AGAIN
                }
                Err(Unfinished { left, error }) => {
                    failures = failures.saturating_add(1);
                    // Logs the 1st, 2nd, 4th, 8th … failure.
                    if failures.is_power_of_two() {
                        tracing::warn!(left, failures, %error, "output is not stored in S3 yet: trying again");
                    }
                    let chance = Chance::real().between(0.0, 1.0);
                    backoff::delay(History::Never { attempts: failures }, None, chance)
                }
            };
            if is_last {
                return;
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = state.alloc_ended.notified(), if failures == 0 => {}
                changed = ending.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Stores what waits now. If S3 does not answer or there are no credentials, the rest for the same bucket waits for the
    /// next round. A refusal counts for one output only: the role may write at other places of the bucket.
    async fn round(&mut self) -> Result<(), Unfinished> {
        let unsent = self.unsent.clone();
        let waiting = blocking(move || unsent.waiting()).await;
        let mut waiting = waiting.map_err(|error| Unfinished { left: 0, error: S3Error::File(error.to_string()) })?;
        self.settled.retain(|id| waiting.iter().any(|w| w.alloc_id == *id));
        waiting.retain(|w| !self.settled.contains(&w.alloc_id));
        let refused = std::mem::take(&mut self.refused);
        waiting.sort_by_key(|w| (refused.contains(&w.alloc_id), w.size));
        let (mut closed, mut left, mut failed) = (BTreeSet::new(), 0, None);
        for output in waiting {
            let bucket = output.place.bucket().to_owned();
            if closed.contains(&bucket) {
                left += 1;
                continue;
            }
            match self.store(&output).await {
                Ok(()) => self.settle(output.alloc_id).await,
                Err(error) => {
                    left += 1;
                    match error {
                        S3Error::Failed(_) | S3Error::NoKeys(_) => _ = closed.insert(bucket),
                        _ => _ = self.refused.insert(output.alloc_id),
                    }
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(()), |error| Err(Unfinished { left, error }))
    }

    /// Stores one output. What cannot be stored at all counts as stored.
    async fn store(&self, output: &Waiting) -> Result<(), S3Error> {
        let Waiting { alloc_id, place, path, .. } = output;
        let (unsent, waiting) = (self.unsent.clone(), output.clone());
        let opened = blocking(move || match unsent.open_output(&waiting)? {
            Some(file) => Ok(Some((file.metadata()?.len(), file))),
            None => Ok(None),
        });
        let (size, file) = match opened.await {
            Ok(Some(opened)) => opened,
            // There is nothing to store.
            Ok(None) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => {
                tracing::warn!(%alloc_id, "the output is a symbolic link: it is not stored");
                return Ok(());
            }
            Err(error) => return Err(S3Error::File(format!("{}: {error}", path.display()))),
        };
        let began = Instant::now();
        self.access.s3().await?.store(place, &Arc::new(file), size).await?;
        tracing::info!(%alloc_id, bytes = size, ms = began.elapsed().as_millis(), %place, "the output is stored");
        Ok(())
    }

    async fn settle(&mut self, id: AllocId) {
        let unsent = self.unsent.clone();
        match blocking(move || unsent.settled(id)).await {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(alloc_id = %id, %error, "the disk does not say that an output is stored");
                self.settled.insert(id);
            }
        }
    }
}

/// A round that left something.
struct Unfinished {
    left: usize,
    error: S3Error,
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
