//! The outputs on this machine: in the directories of allocs, and kept after these were destroyed.
//!
//! ```text
//! allocs/{alloc_id}/output    what the command prints: standard output and standard error, as they come
//!                   switches  where in `output` the stream changes: see `Switches`, each place as 8 bytes
//!                   stored    how much of it is in S3
//! outputs/{alloc_id}/…        the same files, after the directory of the alloc was destroyed
//!                   place     where it is to be stored in S3
//! ```
//!
//! Guarantees: a directory is destroyed only after an output that is not stored whole has a second name in `outputs/`, so no
//! restart loses it. What is stored whole is kept no longer. The kept outputs stay below a limit: the oldest are removed first, and
//! the log names each. Jobs cannot read kept outputs.
//! Does not: store anything (`uploads` does), or survive the machine.

use super::output_files::{OutputFiles, Progress, open_regular};
use crate::machine::atomic_file::{self, if_there};
use crate::machine::data_dir::DataDir;
use crate::work::alloc_dir::AllocDir;
use model::{AllocId, NodeId, S3Place};
use remove_tree::remove_tree;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most outputs that are kept.
const MAX_KEPT: usize = 10_000;

/// An output that is to be stored in S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstoredOutput {
    pub alloc_id: AllocId,
    pub place: S3Place,
    /// How many bytes are not stored yet.
    pub left: u64,
    pub ended: bool,
}

#[derive(Clone, Debug)]
pub struct Outputs {
    allocs: PathBuf,
    kept: PathBuf,
    node_id: NodeId,
    /// The most bytes that are kept.
    limit: u64,
}

impl Outputs {
    /// At most `mib` MiB of output are kept after their directories were destroyed.
    pub fn open(data: &DataDir, node_id: NodeId, mib: u64) -> Self {
        let limit = mib.saturating_mul(1 << 20);
        let outputs = Self { allocs: data.allocs(), kept: data.outputs(), node_id, limit };
        // Only the agent may reach the files.
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&outputs.kept) {
            tracing::warn!(%error, path = %outputs.kept.display(), "no output of ended allocs can be kept");
        }
        outputs
    }

    /// The files of an output, wherever they are now. [`Outputs::keep`] gives them their new name before they lose the old one.
    pub fn files(&self, id: AllocId) -> OutputFiles {
        let kept = self.kept.join(id.to_string());
        if kept.exists() {
            OutputFiles::at(kept)
        } else {
            OutputFiles::at(AllocDir::of(&self.allocs, id).path().to_owned())
        }
    }

    /// The outputs that are not stored whole: all of them, or `only` these.
    pub fn waiting(&self, only: Option<&BTreeSet<AllocId>>) -> io::Result<Vec<UnstoredOutput>> {
        let mut waiting = BTreeMap::new();
        let is_one = |id: &AllocId| only.is_none_or(|only| only.contains(id));
        // This comes first: an output that gets its second name meanwhile is in one of the two lists.
        let kept = allocs_in(&self.kept)?;
        for alloc_id in allocs_in(&self.allocs)?.into_iter().filter(is_one) {
            let dir = AllocDir::of(&self.allocs, alloc_id);
            let ended = matches!(dir.exit_record(), Ok(Some(_)));
            waiting.extend(self.place_of(&dir).map(|place| (alloc_id, (place, ended))));
        }
        for alloc_id in kept.into_iter().filter(is_one) {
            let place = fs::read_to_string(OutputFiles::at(self.kept.join(alloc_id.to_string())).place()).ok();
            waiting.extend(place.and_then(|text| text.parse().ok()).map(|place| (alloc_id, (place, true))));
        }
        let each = waiting.into_iter().map(|(alloc_id, (place, ended))| {
            let files = self.files(alloc_id);
            let left = files.size().unwrap_or(0).saturating_sub(files.progress().bytes);
            UnstoredOutput { alloc_id, place, left, ended }
        });
        Ok(each.collect())
    }

    /// Notes that the output of this alloc is stored whole, and keeps it no longer.
    pub fn settled(&self, id: AllocId, progress: Progress) -> io::Result<()> {
        AllocDir::of(&self.allocs, id).output_files().note(progress)?;
        remove_tree(&self.kept.join(id.to_string()))
    }

    /// Where the output in the directory is to be stored; `None` if it needs no storing, or not by this node.
    fn place_of(&self, dir: &AllocDir) -> Option<S3Place> {
        if dir.output_files().progress().end {
            return None;
        }
        let task = dir.task().ok()?.filter(|task| task.node_id == self.node_id)?;
        task.order.output_s3
    }

    /// Keeps the output of an alloc whose directory is about to be destroyed, if it is not stored whole. The alloc may have no exit
    /// record, if it ended with the machine. If keeping fails, the output is lost.
    pub fn keep(&self, id: AllocId, dir: &AllocDir) {
        if let Err(error) = self.try_keep(id, dir) {
            tracing::warn!(alloc_id = %id, %error, "the output of an ended alloc is not kept");
        }
    }

    /// The files are linked and not copied, so this needs no space.
    fn try_keep(&self, id: AllocId, dir: &AllocDir) -> io::Result<()> {
        let Some(place) = self.place_of(dir) else { return Ok(()) };
        let files = dir.output_files();
        if open_regular(&files.output())?.is_none() {
            return Ok(());
        }
        let kept = self.kept.join(id.to_string());
        if kept.exists() {
            return Ok(());
        }
        let new = OutputFiles::at(self.kept.join(format!(".new-{id}")));
        remove_tree(new.dir())?;
        DirBuilder::new().mode(0o700).create(new.dir())?;
        fs::hard_link(files.output(), new.output())?;
        if open_regular(&files.switches())?.is_some() {
            fs::hard_link(files.switches(), new.switches())?;
        }
        new.note(files.progress())?;
        atomic_file::replace(&new.place(), place.to_string().as_bytes())?;
        fs::rename(new.dir(), &kept)?;
        atomic_file::sync(&[&self.kept])?;
        self.prune()
    }

    /// Removes the oldest outputs until the rest is below the limit.
    fn prune(&self) -> io::Result<()> {
        let mut outputs: Vec<(SystemTime, u64, AllocId)> = Vec::new();
        for id in allocs_in(&self.kept)? {
            let files = OutputFiles::at(self.kept.join(id.to_string()));
            // Several directories are destroyed at a time: another one may have removed this output.
            if let Ok(output) = fs::symlink_metadata(files.output()) {
                let switches = fs::symlink_metadata(files.switches()).map_or(0, |m| m.len());
                outputs.push((output.modified()?, output.len().saturating_add(switches), id));
            }
        }
        outputs.sort();
        let (mut bytes, mut count) = (outputs.iter().map(|(_, size, _)| size).sum::<u64>(), outputs.len());
        for (_, size, id) in outputs {
            if bytes <= self.limit && count <= MAX_KEPT {
                return Ok(());
            }
            tracing::warn!(alloc_id = %id, bytes = size, "too much output waits to be stored (--keep-output-mib): it is dropped");
            remove_tree(&self.kept.join(id.to_string()))?;
            (bytes, count) = (bytes.saturating_sub(size), count.saturating_sub(1));
        }
        Ok(())
    }
}

/// The names in a directory that are ids of allocs.
fn allocs_in(dir: &Path) -> io::Result<Vec<AllocId>> {
    let Some(entries) = if_there(fs::read_dir(dir))? else { return Ok(Vec::new()) };
    let mut ids = Vec::new();
    for entry in entries {
        ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<AllocId>().ok()));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{alloc_id, node_id, order, task};
    use crate::work::alloc_dir::{AllocTask, ExitRecord};
    use model::EndCause;
    use model::wire::AllocOrder;
    use std::time::Duration;

    struct Disk {
        root: tempfile::TempDir,
        outputs: Outputs,
    }

    impl Disk {
        fn new(limit: u64) -> Self {
            let root = tempfile::tempdir().unwrap();
            let data = DataDir::open(root.path()).unwrap();
            Self { outputs: Outputs { limit, ..Outputs::open(&data, node_id(), 1) }, root }
        }

        fn alloc(&self, n: u32, output: &str) -> AllocDir {
            self.alloc_of(n, output, node_id(), None)
        }

        fn alloc_of(&self, n: u32, output: &str, node_id: NodeId, output_s3: Option<S3Place>) -> AllocDir {
            let dir = AllocDir::of(&self.root.path().join("allocs"), alloc_id(n));
            let task = AllocTask { node_id, ..task(AllocOrder { output_s3, ..order(n, 1) }) };
            dir.create(&task).unwrap();
            fs::write(dir.output_files().output(), output).unwrap();
            dir
        }

        /// Destroys the directory. The output with the higher number is the newer one.
        fn destroy(&self, n: u32, dir: &AllocDir) {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(n) + 1);
            let output = dir.output_files().output();
            fs::File::options().append(true).open(output).unwrap().set_modified(at).unwrap();
            self.outputs.keep(alloc_id(n), dir);
            remove_tree(dir.path()).unwrap();
        }

        fn kept(&self) -> Vec<u32> {
            let mut kept: Vec<u32> = allocs_in(&self.outputs.kept).unwrap().iter().map(|id| id.copy).collect();
            kept.sort_unstable();
            kept
        }

        fn waiting(&self) -> Vec<(u32, u64, bool)> {
            self.outputs.waiting(None).unwrap().iter().map(|w| (w.alloc_id.copy, w.left, w.ended)).collect()
        }
    }

    fn place(n: u32) -> Option<S3Place> {
        Some(format!("s3://logs/c/{n}").parse().unwrap())
    }

    #[test]
    fn the_oldest_is_dropped_and_what_needs_no_storing_is_not_kept() {
        let disk = Disk::new(8);
        for n in [0, 1] {
            disk.destroy(n, &disk.alloc_of(n, "0123", node_id(), place(n)));
        }
        disk.destroy(2, &disk.alloc(2, "0123"));
        assert_eq!(disk.kept(), [0, 1]);
        disk.destroy(3, &disk.alloc_of(3, "0123", node_id(), place(3)));
        assert_eq!(disk.kept(), [1, 3]);
        let nothing = Disk::new(0);
        nothing.destroy(0, &nothing.alloc_of(0, "0123", node_id(), place(0)));
        assert_eq!(nothing.kept(), Vec::<u32>::new());
    }

    #[test]
    fn an_output_waits_until_it_is_stored_whole_also_without_its_directory() {
        let disk = Disk::new(100);
        let dir = disk.alloc_of(0, "zero", node_id(), place(0));
        assert_eq!(disk.waiting(), [(0, 4, false)], "also while its command runs");
        dir.output_files().note(Progress { bytes: 3, end: false }).unwrap();
        dir.write_exit_record(&ExitRecord::of(EndCause::Exited { code: 0 })).unwrap();
        let other: NodeId = "4-01JD0000000000000000000000".parse().unwrap();
        for (n, of, output_s3) in [(5, node_id(), None), (6, other, place(6))] {
            disk.alloc_of(n, "not ours", of, output_s3)
                .write_exit_record(&ExitRecord::of(EndCause::Exited { code: 0 }))
                .unwrap();
        }
        assert_eq!(disk.waiting(), [(0, 1, true)]);
        // The output is kept, and the directory is still there for a moment.
        disk.outputs.keep(alloc_id(0), &dir);
        assert_eq!(disk.waiting(), [(0, 1, true)]);
        disk.destroy(0, &dir);
        assert_eq!(disk.waiting(), [(0, 1, true)]);
        assert_eq!(disk.outputs.waiting(None).unwrap()[0].place, place(0).unwrap());
        let only = |n| disk.outputs.waiting(Some(&[alloc_id(n)].into())).unwrap().len();
        assert_eq!([0, 1].map(only), [1, 0]);
        disk.outputs.settled(alloc_id(0), Progress { bytes: 4, end: true }).unwrap();
        assert_eq!((disk.waiting(), disk.kept()), (vec![], vec![]));
    }

    #[test]
    fn what_ended_with_the_machine_is_stored_too_and_what_is_stored_is_not() {
        let disk = Disk::new(100);
        disk.destroy(1, &disk.alloc_of(1, "cut off", node_id(), place(1)));
        assert_eq!(disk.waiting(), [(1, 7, true)]);
        let stored = disk.alloc_of(2, "stored", node_id(), place(2));
        disk.outputs.settled(alloc_id(2), Progress { bytes: 6, end: true }).unwrap();
        assert_eq!(disk.waiting(), [(1, 7, true)]);
        disk.destroy(2, &stored);
        assert_eq!(disk.waiting(), [(1, 7, true)]);
    }

    #[test]
    fn a_link_in_the_place_of_the_output_is_not_followed() {
        let disk = Disk::new(100);
        let dir = disk.alloc_of(0, "", node_id(), place(0));
        fs::remove_file(dir.output_files().output()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.output_files().output()).unwrap();
        disk.outputs.keep(alloc_id(0), &dir);
        assert_eq!(disk.kept(), Vec::<u32>::new());
    }
}
