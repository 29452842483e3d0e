//! Keeps what a job has made so far of its outputs, when its node is about to go.
//!
//! ```text
//! allocs/{alloc_id}/leaves         the agent says: the node goes
//!                   partial.json   what is stored so far
//! ```
//!
//! What is stored is by its content, as every output is. Which contents these are says one object below the place of the alloc's
//! output: it is in no row, so nobody takes it for an output of the job. What the job wants at an `s3://` place of its own is left
//! out: others may read the bucket of the cluster, and at its place it would be taken for whole.
//!
//! Guarantees: the outputs come in the order in which the job names them, each whole as it was at one moment or not at all; what
//! was stored earlier stays until something newer is stored; a failure never changes how the alloc ends.
//! Does not: know when the instance ends, or see files of one output at the same moment while the command writes them.

use super::JobFiles;
use super::outputs::{Made, Reading, made};
use crate::alloc_dir::AllocDir;
use crate::atomic_file::{self, absent_is_fine};
use crate::blocking::blocking;
use model::StoredOutput;
use model::files::{MAX_CONTENT_BYTES, Output};
use model::stored::S3Place;
use s3::{S3, S3Error};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often it is looked whether the node goes.
const LOOK: Duration = Duration::from_millis(500);
/// The wait before a running command is looked at again: it may have made more.
const AGAIN: Duration = Duration::from_secs(30);
/// The longest that an alloc waits for this at its end: EC2 announces an interruption two minutes ahead.
const MOST: Duration = Duration::from_secs(120);

impl JobFiles<'_> {
    /// Stores what there is of the outputs from the moment on at which the node goes, again and again. Does not end.
    pub async fn store_partial_of_running(&self) {
        while !self.alloc.dir.leaves() {
            sleep(LOOK).await;
        }
        loop {
            self.store_partial().await;
            sleep(AGAIN).await;
        }
    }

    /// Stores what there is of the outputs of a command that does not run any more, if its node goes.
    pub async fn store_partial_of_ended(&self) {
        if !self.alloc.dir.leaves() {
            return;
        }
        if timeout(MOST, self.store_partial()).await.is_err() {
            tracing::warn!("not all that the job has made is stored: it takes too long");
        }
        // It may be that of a step that the end of the command cut short.
        _ = absent_is_fine(fs::remove_file(self.alloc.dir.copy_of_output()));
    }

    async fn store_partial(&self) {
        let Some(place) = &self.order().output_s3 else { return };
        for output in self.order().work.outputs.iter().filter(|output| output.to.is_none()) {
            match self.stored(place, output).await {
                Ok(Some(stored)) => {
                    tracing::info!(output = output.path, content = %stored.content, "stored as it is now")
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(output = output.path, %error, "what there is of an output is not stored"),
            }
        }
    }

    /// Stores one output, and says so beside the others. `None` if it is not there, or stored already.
    async fn stored(&self, place: &S3Place, output: &Output) -> Result<Option<StoredOutput>, S3Error> {
        let (work, path, copy) = (self.alloc.dir.work(), output.path.clone(), self.archive.clone());
        let made = blocking(move || made(&work, &path, &copy, Reading::OfCopy)).await?;
        let Some(made) = made else { return Ok(None) };
        let kept = self.store_made(place, output, &made).await;
        if let Err(error) = fs::remove_file(&made.path) {
            tracing::warn!(%error, "the copy of an output is left behind");
        }
        kept
    }

    async fn store_made(&self, place: &S3Place, output: &Output, made: &Made) -> Result<Option<StoredOutput>, S3Error> {
        let stored = StoredOutput { path: output.path.clone(), content: made.content.clone(), to: None };
        let mut all = self.alloc.dir.partial();
        if all.contains(&stored) {
            return Ok(None);
        }
        let (content, access) = (&stored.content, self.of_node()?);
        if content.bytes > MAX_CONTENT_BYTES {
            return Err(S3Error::Refused("it is too large".to_owned()));
        }
        let s3: &S3 = access.s3().await?;
        s3.put_file(&place.content(content.sha256()), &made.path, content.bytes, content.sha256()).await?;
        all.retain(|other| other.path != stored.path);
        all.push(stored.clone());
        let list = serde_json::to_vec(&all).map_err(|e| S3Error::File(e.to_string()))?;
        s3.put(&place.partial(), list.clone(), &[]).await?;
        self.alloc.dir.write_partial(&list)?;
        Ok(Some(stored))
    }
}

impl AllocDir {
    /// Says that the node goes: what the alloc has made so far is to be stored.
    pub fn leave(&self) -> io::Result<()> {
        let mark = self.path().join("leaves");
        if mark.exists() { Ok(()) } else { fs::write(mark, "") }
    }

    /// Where an output of a running command is copied to before it is stored.
    pub fn copy_of_output(&self) -> PathBuf {
        self.path().join("copy")
    }

    fn leaves(&self) -> bool {
        self.path().join("leaves").exists()
    }

    /// The outputs of the alloc that are stored so far.
    fn partial(&self) -> Vec<StoredOutput> {
        let list = fs::read(self.path().join("partial.json")).ok();
        list.and_then(|list| serde_json::from_slice(&list).ok()).unwrap_or_default()
    }

    fn write_partial(&self, list: &[u8]) -> io::Result<()> {
        atomic_file::replace(&self.path().join("partial.json"), list)
    }
}
