//! The loop that stores output in S3, piece by piece.
//!
//! Guarantees: the report of an end and the heartbeats never wait for an upload; an output that cannot be stored now is tried
//! again, also by the next agent, until it is stored or dropped (see `outputs`); what a running command has printed is stored
//! within about `EACH`, within `EACH_SOON` once EC2 has announced the end of the instance, and within `EACH_FOLLOWED` while somebody
//! follows it; small outputs come first, so that one large output does not delay the others; an output that S3 refuses keeps no other one back; one piece of one output
//! is in memory at a time; a whole piece takes up no room on the disk after S3 has it.
//! Does not: remove anything from S3, or store output that comes after the end of the command.

use super::output_files::Progress;
use super::outputs::{Outputs, UnstoredOutput};
use crate::contact::backoff::{self, LastCalls};
use crate::contact::s3_access::S3Access;
use crate::contact::shared_node::SharedNode;
use crate::machine::blocking::blocking;
use model::stored::{BOTH, END, MORE, OUT, PIECE_BYTES, STREAMS_HEADER, THEN_HEADER};
use model::{AllocId, Switches};
use s3::S3Error;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

/// The time between two rounds for all outputs, if no alloc ends.
const EACH: Duration = Duration::from_secs(30);

/// The time between two rounds once EC2 has announced that it takes the instance away.
const EACH_SOON: Duration = Duration::from_secs(2);

/// The time between two rounds for the outputs that somebody follows.
const EACH_FOLLOWED: Duration = Duration::from_secs(1);

/// The most pieces of one output in one round, so that the others get their turn.
const PIECES: u32 = 16;

pub struct Uploads {
    task: JoinHandle<()>,
    ending: watch::Sender<bool>,
}

impl Uploads {
    pub fn start(state: Arc<SharedNode>, outputs: Outputs, access: S3Access) -> Self {
        let (ending, told) = watch::channel(false);
        let uploader = Uploader { outputs, access, stored: BTreeMap::new(), refused: BTreeSet::new() };
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

/// What a round leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    /// S3 has all that the disk had.
    Whole,
    /// At least one output has more than its share of a round.
    Cut,
}

struct Uploader {
    outputs: Outputs,
    access: S3Access,
    /// How much this process has stored. The disk may not say so, because a full disk takes no note.
    stored: BTreeMap<AllocId, Progress>,
    /// The outputs that S3 refused in the last round. The others come first.
    refused: BTreeSet<AllocId>,
}

impl Uploader {
    async fn run(mut self, state: Arc<SharedNode>, mut ending: watch::Receiver<bool>) {
        let mut failures: u32 = 0;
        // The next round for all outputs.
        let mut all_at = Instant::now();
        loop {
            let is_last = *ending.borrow_and_update();
            let (now, followed) = (Instant::now(), state.followed());
            let is_for_all = is_last || now >= all_at;
            let wait = match self.round((!is_for_all).then(|| followed.clone())).await {
                Ok(Round::Cut) => continue,
                Ok(Round::Whole) => {
                    failures = 0;
                    if is_for_all {
                        all_at = now + if state.read(|node| node.interrupt_at.is_some()) { EACH_SOON } else { EACH };
                    }
                    let until_all = all_at.saturating_duration_since(now);
                    if followed.is_empty() { until_all } else { until_all.min(EACH_FOLLOWED) }
                }
                Err((left, error)) => {
                    failures = failures.saturating_add(1);
                    // Logs the 1st, 2nd, 4th, 8th … failure.
                    if failures.is_power_of_two() {
                        tracing::warn!(left, failures, %error, "output is not stored in S3 yet: trying again");
                    }
                    backoff::wait(LastCalls::Never { attempts: failures }, None)
                }
            };
            if is_last {
                return;
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = state.store_now.notified(), if failures == 0 => all_at = Instant::now(),
                changed = ending.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Stores what there is now, of all outputs or `only` of these, and of each at most [`PIECES`] pieces. If S3 does not answer or
    /// there are no credentials, the rest for the same bucket waits for the next round. A refusal counts for one output only: the
    /// role may write at other places of the bucket. The error says how many outputs are left.
    async fn round(&mut self, only: Option<BTreeSet<AllocId>>) -> Result<Round, (usize, S3Error)> {
        let (outputs, is_for_all) = (self.outputs.clone(), only.is_none());
        let waiting = blocking(move || outputs.waiting(only.as_ref())).await;
        let mut waiting = waiting.map_err(|error| (0_usize, S3Error::from(error)))?;
        if is_for_all {
            self.stored.retain(|id, _| waiting.iter().any(|w| w.alloc_id == *id));
        }
        let refused = std::mem::take(&mut self.refused);
        waiting.sort_by_key(|w| (refused.contains(&w.alloc_id), w.left));
        let (mut closed, mut left, mut failed, mut round) = (BTreeSet::new(), 0, None, Round::Whole);
        for output in waiting {
            let bucket = output.place.bucket().to_owned();
            if closed.contains(&bucket) {
                left += 1;
                continue;
            }
            match self.store(&output).await {
                Ok(Round::Whole) => {}
                Ok(Round::Cut) => round = Round::Cut,
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
        failed.map_or(Ok(round), |error| Err((left, error)))
    }

    /// Stores the part of an output that S3 does not have yet, at most [`PIECES`] pieces of it.
    async fn store(&mut self, output: &UnstoredOutput) -> Result<Round, S3Error> {
        let (id, began) = (output.alloc_id, Instant::now());
        for _ in 0..PIECES {
            let (outputs, known, ended) = (self.outputs.clone(), self.stored.get(&id).copied(), output.ended);
            let Some(piece) = blocking(move || next_piece(&outputs, id, known, ended)).await? else {
                return Ok(Round::Whole);
            };
            let progress = piece.progress;
            self.put(output, piece).await?;
            self.stored.insert(id, progress);
            let outputs = self.outputs.clone();
            let noted = blocking(move || match progress.end {
                true => outputs.settled(id, progress),
                // On a full disk, the note may need the room that the pieces give back.
                false => outputs.files(id).free(progress.bytes).and_then(|()| outputs.files(id).note(progress)),
            });
            if let Err(error) = noted.await {
                tracing::warn!(alloc_id = %id, %error, "cannot note how much of an output is stored");
            }
            if progress.end {
                let (bytes, ms) = (progress.bytes, began.elapsed().as_millis());
                tracing::info!(alloc_id = %id, bytes, ms, place = %output.place, "the output is stored");
            }
        }
        Ok(Round::Cut)
    }

    /// Stores one piece. Its switches come first, so that nobody takes the whole piece for standard output.
    async fn put(&self, output: &UnstoredOutput, piece: NextPiece) -> Result<(), S3Error> {
        let NextPiece { no, bytes, switches, progress } = piece;
        let s3 = self.access.s3().await?;
        if !switches.is_empty() {
            let list = serde_json::to_vec(&switches).map_err(|e| S3Error::File(e.to_string()))?;
            s3.put(&output.place.switches(no), list, &[]).await?;
        }
        let then = (THEN_HEADER, if progress.end { END } else { MORE });
        let streams = (STREAMS_HEADER, if switches.is_empty() { OUT } else { BOTH });
        s3.put(&output.place.piece(no), bytes, &[then, streams]).await
    }
}

/// A piece that is to be stored, and how much of the output is in S3 after that.
struct NextPiece {
    no: u64,
    bytes: Vec<u8>,
    switches: Switches,
    progress: Progress,
}

/// Reads the piece that comes next: from the beginning of the piece that S3 has in part, or not at all. `None` if S3 has all
/// there is.
fn next_piece(
    outputs: &Outputs,
    id: AllocId,
    known: Option<Progress>,
    has_ended: bool,
) -> io::Result<Option<NextPiece>> {
    let files = outputs.files(id);
    let stored = known.unwrap_or_else(|| files.progress());
    let size = match files.size() {
        // A link in the place of the output is no output: S3 gets an empty one.
        Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => 0,
        size => size?,
    };
    // The output was dropped meanwhile. But an output that is missing because its command was never started counts as empty.
    let is_gone = !files.is_there() || size < stored.bytes;
    if is_gone || stored.end || (stored.bytes == size && !has_ended) {
        return Ok(None);
    }
    let no = stored.bytes / PIECE_BYTES;
    let from = no.saturating_mul(PIECE_BYTES);
    let to = size.min(from.saturating_add(PIECE_BYTES));
    let progress = Progress { bytes: to, end: has_ended && to == size };
    let (bytes, switches) = match size {
        0 => (Vec::new(), Switches::default()),
        _ => (files.bytes_within(from, to)?, files.switches_within(from, to)?),
    };
    Ok(Some(NextPiece { no, bytes, switches, progress }))
}
