//! Stores the partial outputs of a job, when its node is about to go.
//!
//! ```text
//! allocs/{alloc_id}/leaves         the agent says: the node goes
//!                   partial.json   what is stored so far
//! ```
//!
//! Partial outputs are stored as contents, like every output. An object below the place of the alloc's output lists them. They are
//! in no row, so nobody takes them for outputs of the job. An output with an `s3://` place of its own is left out: others may read
//! the bucket of the cluster, and at its own place a partial output would be taken for a complete one.
//!
//! Guarantees: the outputs come in the order in which the job names them, each whole as it was at one moment or not at all; what
//! was stored earlier stays until something newer is stored; a failure never changes how the alloc ends.
//! Does not: know when the instance ends, or see files of one output at the same moment while the command writes them.

use super::made::copy;
use super::room::DiskRoom;
use super::{JobFiles, TemporaryFile};
use crate::machine::atomic_file;
use crate::machine::blocking::{blocking, on_files};
use crate::work::alloc_dir::AllocDir;
use files::MAX_BYTES;
use model::StoredOutput;
use model::files::{Content, Output};
use model::stored::S3Place;
use s3::{S3, S3Error};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How often to check whether the node goes.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The wait before the outputs of a running command are stored again: it may have made more.
const AGAIN: Duration = Duration::from_secs(30);
/// The longest that the end of an alloc waits for this: EC2 announces an interruption two minutes ahead.
const MOST: Duration = Duration::from_secs(120);

impl JobFiles<'_> {
    /// As soon as the node goes, stores the outputs of the running command as they are, again and again. Does not end.
    pub async fn store_partial_of_running(&self) {
        while !self.alloc.dir.leaves() {
            sleep(CHECK_EVERY).await;
        }
        loop {
            self.store_partial().await;
            sleep(AGAIN).await;
        }
    }

    /// Stores the outputs of a command that has ended as they are, if its node goes.
    pub async fn store_partial_of_ended(&self) {
        if !self.alloc.dir.leaves() {
            return;
        }
        if timeout(MOST, self.store_partial()).await.is_err() {
            tracing::warn!("not all partial outputs are stored: it takes too long");
        }
    }

    async fn store_partial(&self) {
        let Some(place) = &self.order().output_s3 else { return };
        for output in self.order().work.outputs.iter().filter(|output| output.to.is_none()) {
            match self.stored(place, output).await {
                Ok(Some(stored)) => {
                    tracing::info!(output = output.path, content = %stored.content, "stored as it is now")
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(output = output.path, %error, "a partial output is not stored"),
            }
        }
    }

    /// Stores one output, and adds it to the list of the stored ones. `None` if it is not there, or stored already.
    async fn stored(&self, place: &S3Place, output: &Output) -> Result<Option<StoredOutput>, S3Error> {
        let (work, path, to) = (self.work_dir(), output.path.clone(), self.alloc.dir.copy_of_output());
        let _removed_at_the_end = TemporaryFile(to.clone());
        let room = DiskRoom::of(&work.path)?.now.min(MAX_BYTES);
        let (copied, from) = (to.clone(), work);
        let content = on_files(room, move |allowance| copy(&from, &path, &copied, allowance)).await?;
        match content {
            Some(content) => self.store_copy(place, output, content, &to).await,
            None => Ok(None),
        }
    }

    async fn store_copy(
        &self,
        place: &S3Place,
        output: &Output,
        content: Content,
        copy: &Path,
    ) -> Result<Option<StoredOutput>, S3Error> {
        let stored = StoredOutput { path: output.path.clone(), content, to: None };
        let mut all = self.alloc.dir.partial();
        if all.contains(&stored) {
            return Ok(None);
        }
        let (content, access) = (&stored.content, self.of_node()?);
        let s3: &S3 = access.s3().await?;
        s3.put_file(&place.content(content.sha256()), copy, content.bytes, content.sha256()).await?;
        all.retain(|other| other.path != stored.path);
        all.push(stored.clone());
        let list = serde_json::to_vec(&all).map_err(|e| S3Error::File(e.to_string()))?;
        s3.put(&place.partial(), list.clone(), &[]).await?;
        let dir = self.alloc.dir.clone();
        blocking(move || dir.write_partial(&list)).await?;
        Ok(Some(stored))
    }
}

impl AllocDir {
    /// Marks that the node goes: the partial outputs of the alloc are to be stored.
    pub fn leave(&self) -> io::Result<()> {
        let mark = self.path().join("leaves");
        if mark.exists() { Ok(()) } else { atomic_file::write(&mark, b"") }
    }

    /// Where an output of a running command is copied to before it is stored.
    pub fn copy_of_output(&self) -> PathBuf {
        self.path().join("copy")
    }

    pub fn leaves(&self) -> bool {
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
