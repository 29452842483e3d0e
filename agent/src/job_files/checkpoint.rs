//! Stores the checkpoint of a job: the folder that each try finds as an earlier one left it (`--keep`).
//!
//! ```text
//! allocs/{alloc_id}/leaves         the agent says: the node goes
//!                   checkpoint     the newest checkpoint of this try that is stored
//!                   taken          the newest one that the control plane certainly knows
//! ```
//!
//! The node reports the newest checkpoint with the progress and the end of the alloc, and the next try begins with it. A running try
//! stores its checkpoints at two places in turn, so that they take up no more and more room.
//!
//! Guarantees: a checkpoint is the folder as it was at one moment, because the folder is read twice and both must be equal, but for small
//! files, which are read twice before anything is sent, and for what was added; an older one counts until a newer one is stored whole
//! and known; a failure never changes how the alloc ends, and the job's output says it.
//! Does not: wait for a command that is in the middle of writing: it must write a file under another name and rename it.

use super::made::{MadeOutput, find, unreadable};
use super::{JobFiles, PATIENCE};
use crate::machine::atomic_file::{self, if_there};
use crate::machine::blocking::on_files;
use crate::work::alloc_dir::AllocDir;
use crate::work::obstacle::Obstacle;
use files::MAX_BYTES;
use model::files::{CHECKPOINT_PLACES, Form};
use model::wire::AllocOrder;
use model::{Checkpoint, EndCause};
use std::fs;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// The place of the checkpoint at the end of a try.
const LAST_PLACE: u8 = CHECKPOINT_PLACES - 1;
/// How often to check whether the node goes.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The longest wait between two checkpoints of a command whose node goes.
const LEAVING: Duration = Duration::from_secs(30);
/// How often a folder is read that the command changes meanwhile, and the wait in between.
const ATTEMPTS: usize = 5;
const BETWEEN: Duration = Duration::from_secs(1);
/// The longest that the end of an alloc waits for its checkpoint after a stop: EC2 announces an interruption two minutes ahead.
const MOST_OF_STOPPED: Duration = Duration::from_secs(120);
/// The longest after an end that nobody ordered.
const MOST: Duration = Duration::from_secs(3600);

impl JobFiles<'_> {
    /// Stores checkpoints while the command runs: as often as the job says, and at once and repeatedly when the node goes. Does not end.
    pub async fn store_checkpoints(&self) {
        let every = Some(self.order().work.keep_every_s).filter(|s| *s > 0).map(Duration::from_secs);
        let (mut last, mut has_left, mut is_noted) = (Instant::now(), false, false);
        loop {
            sleep(CHECK_EVERY).await;
            let leaves = self.alloc.dir.leaves();
            let wait = if leaves { Some(every.unwrap_or(LEAVING).min(LEAVING)) } else { every };
            let is_due = leaves && !has_left || wait.is_some_and(|wait| last.elapsed() >= wait);
            if !is_due {
                continue;
            }
            (last, has_left) = (Instant::now(), leaves);
            for attempt in 1..=ATTEMPTS {
                let Err(fault) = self.store_checkpoint(false).await else { break };
                tracing::warn!(?fault, "the checkpoint is not stored");
                if attempt == ATTEMPTS && !is_noted {
                    is_noted = true;
                    self.note_unstored(&format!("{}; it is tried again", EndCause::from(fault)));
                }
                sleep(BETWEEN).await;
            }
        }
    }

    /// Stores the folder as the command left it.
    pub async fn store_last_checkpoint(&self) {
        let most = if self.alloc.dir.stop_reason().is_some() { MOST_OF_STOPPED } else { MOST };
        let why = match timeout(most, self.store_checkpoint(true)).await {
            Ok(Ok(())) => return,
            Ok(Err(fault)) => EndCause::from(fault).to_string(),
            Err(_) => format!("that takes more than {} s", most.as_secs()),
        };
        self.note_unstored(&why);
    }

    fn note_unstored(&self, why: &str) {
        let note = format!("nodekeeper: the checkpoint is not stored: {why}\n");
        tracing::warn!("{note}");
        if let Err(error) = self.alloc.dir.output_files().add_to_stderr(&note) {
            tracing::warn!(%error, "cannot add the note to the job's output");
        }
    }

    async fn store_checkpoint(&self, is_last: bool) -> Result<(), Obstacle> {
        let (AllocOrder { alloc_id, work, .. }, dir) = (self.order(), &self.alloc.dir);
        let Some(path) = work.keep.clone() else { return Ok(()) };
        let last = dir.checkpoint();
        let place = match &last {
            _ if is_last => LAST_PLACE,
            None => 0,
            Some(last) if dir.taken_checkpoint().as_ref() == Some(last) => 1_u8.saturating_sub(last.place),
            // The control plane may know this one or the one before. Neither may be replaced.
            Some(_) => return Ok(()),
        };
        let (work_dir, shown) = (self.work_dir(), path.clone());
        let found = on_files(MAX_BYTES, move |allowance| find(&work_dir, &path, allowance)).await;
        // A try that could not begin has no work directory.
        let found = if_there(found).map(Option::flatten);
        let Some(MadeOutput { what, content, left_out }) = found.map_err(|error| unreadable(&shown, &error))? else {
            return Ok(());
        };
        if content.form != Form::Tree {
            return Err(Obstacle::Job(format!("the checkpoint {shown} is no folder any more")));
        }
        if last.as_ref().or(work.checkpoint.as_ref()).is_some_and(|last| last.content == content) {
            return Ok(());
        }
        let (doing, patience) =
            (format!("the checkpoint {shown} cannot be stored"), if is_last { PATIENCE } else { Duration::ZERO });
        let new = Checkpoint { alloc_id: *alloc_id, place, content };
        let to = new.stored_at(self.alloc_place(&doing)?);
        self.put_content(&what, &new.content, to, &doing, patience).await?;
        if !left_out.is_empty() {
            tracing::warn!("the checkpoint {shown} is stored without {left_out}");
        }
        dir.write_checkpoint("checkpoint", &new).map_err(|e| Obstacle::of_node(&doing, &e))
    }
}

impl AllocDir {
    /// Marks that the node goes: the checkpoint of the alloc is to be stored.
    pub fn leave(&self) -> io::Result<()> {
        let mark = self.path().join("leaves");
        if mark.exists() { Ok(()) } else { atomic_file::write(&mark, b"") }
    }

    pub fn leaves(&self) -> bool {
        self.path().join("leaves").exists()
    }

    /// The newest checkpoint of this try that is stored.
    pub fn checkpoint(&self) -> Option<Checkpoint> {
        self.read_checkpoint("checkpoint")
    }

    fn taken_checkpoint(&self) -> Option<Checkpoint> {
        self.read_checkpoint("taken")
    }

    /// Notes that the control plane has taken this checkpoint, so that its places may be used in turn.
    pub fn note_taken_checkpoint(&self, taken: &Checkpoint) {
        let noted = if self.taken_checkpoint().as_ref() == Some(taken) {
            Ok(())
        } else {
            self.write_checkpoint("taken", taken)
        };
        if let Err(error) = noted {
            tracing::warn!(%error, "no newer checkpoint can be stored");
        }
    }

    fn read_checkpoint(&self, name: &str) -> Option<Checkpoint> {
        serde_json::from_slice(&fs::read(self.path().join(name)).ok()?).ok()
    }

    fn write_checkpoint(&self, name: &str, checkpoint: &Checkpoint) -> io::Result<()> {
        atomic_file::replace(&self.path().join(name), &serde_json::to_vec(checkpoint)?)
    }
}
