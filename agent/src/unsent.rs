//! The output on this machine that is not stored in S3 yet.
//!
//! ```text
//! allocs/{alloc_id}/        the output of an ended alloc, as long as its directory lives: see `alloc_dir`
//! unsent/{alloc_id}         the same file, after the directory was destroyed
//! unsent/{alloc_id}.place   where it is to be stored
//! ```
//!
//! Guarantees: a directory is destroyed only after its unsent output has a second name here, so no restart loses it; what is
//! kept here stays below a limit, and each output that is dropped is in the log; a symbolic link is never followed; jobs cannot
//! read what is kept.
//! Does not: send anything (`uploads` does), or survive the machine.

use crate::alloc_dir::AllocDir;
use crate::atomic_file::{self, absent_is_fine};
use crate::data_dir::DataDir;
use crate::outputs::open_regular;
use model::ids::{AllocId, NodeId};
use model::stored::S3Place;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most outputs that are kept. Each takes at least two files.
const MAX_FILES: usize = 10_000;

/// The end of the names of the files with the places.
const PLACE: &str = "place";

/// The unsent output of one node.
#[derive(Clone, Debug)]
pub struct Unsent {
    allocs: PathBuf,
    dir: PathBuf,
    node_id: NodeId,
    /// How many bytes are kept.
    limit: u64,
}

/// An output that is to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The alloc.
    pub alloc_id: AllocId,
    /// Where the output is to be stored.
    pub place: S3Place,
    /// Where it is now.
    pub path: PathBuf,
    /// How large it is, in bytes.
    pub size: u64,
}

impl Unsent {
    /// The unsent output of this node in this data directory. At most `mib` MiB of destroyed directories are kept.
    pub fn open(data: &DataDir, node_id: NodeId, mib: u64) -> Self {
        let unsent = Self { allocs: data.allocs(), dir: data.unsent(), node_id, limit: mib.saturating_mul(1 << 20) };
        // The files have the user ids of jobs. Only the agent may reach them.
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&unsent.dir) {
            tracing::warn!(%error, path = %unsent.dir.display(), "no output can be kept until it is stored");
        }
        unsent
    }

    /// Where the unsent output of an alloc without a directory is.
    pub fn path(&self, id: AllocId) -> PathBuf {
        self.dir.join(id.to_string())
    }

    fn place_file(&self, id: AllocId) -> PathBuf {
        self.dir.join(format!("{id}.{PLACE}"))
    }

    /// Every output that is to be stored and is complete.
    pub fn waiting(&self) -> io::Result<Vec<Waiting>> {
        let mut waiting = Vec::new();
        for alloc_id in allocs_in(&self.dir)? {
            let place = fs::read_to_string(self.place_file(alloc_id)).ok().and_then(|text| text.parse().ok());
            let (path, Some(place)) = (self.path(alloc_id), place) else { continue };
            let size = fs::symlink_metadata(&path).map_or(0, |m| m.len());
            waiting.push(Waiting { alloc_id, place, path, size });
        }
        let kept: BTreeSet<AllocId> = waiting.iter().map(|w: &Waiting| w.alloc_id).collect();
        for alloc_id in allocs_in(&self.allocs)? {
            let dir = AllocDir::of(&self.allocs, alloc_id);
            if !kept.contains(&alloc_id)
                && let Some(place) = self.place_of(&dir)
                && let Ok(Some(_)) = dir.exit_record()
            {
                let path = dir.output();
                let size = fs::symlink_metadata(&path).map_or(0, |m| m.len());
                waiting.push(Waiting { alloc_id, place, path, size });
            }
        }
        Ok(waiting)
    }

    /// Opens the output. `None` if there is none: its command was never started. A file that [`Unsent::keep`] has just taken
    /// from its directory is found at its new place, because it has its new name before it loses the old one.
    pub fn open_output(&self, output: &Waiting) -> io::Result<Option<File>> {
        match open_regular(&output.path)? {
            Some(file) => Ok(Some(file)),
            None => open_regular(&self.path(output.alloc_id)),
        }
    }

    /// Where the output in the directory is to be stored; `None` if it needs no storing, or not by this node.
    fn place_of(&self, dir: &AllocDir) -> Option<S3Place> {
        if dir.is_stored() {
            return None;
        }
        let task = dir.task().ok()?.filter(|task| task.node_id == self.node_id)?;
        task.order.output_s3
    }

    /// Keeps the output of an alloc whose directory is about to be destroyed, if it is not stored yet. Also that of an alloc
    /// that ended with the machine. The file is kept and not copied, so this needs no space.
    pub fn keep(&self, id: AllocId, dir: &AllocDir) -> io::Result<()> {
        let Some(place) = self.place_of(dir) else { return Ok(()) };
        let Some(file) = open_regular(&dir.output())? else { return Ok(()) };
        if file.metadata()?.len() > self.limit {
            tracing::warn!(alloc_id = %id, %place, "an output is larger than --keep-unsent-mib: it will not be stored");
            return Ok(());
        }
        atomic_file::replace(&self.place_file(id), place.to_string().as_bytes())?;
        match fs::hard_link(dir.output(), self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.prune(),
        }
    }

    /// Notes that the output of this alloc needs no storing any more.
    pub fn settled(&self, id: AllocId) -> io::Result<()> {
        // The directory comes first, because the sweep may destroy it between the two steps.
        let noted = AllocDir::of(&self.allocs, id).note_stored();
        self.remove(id)?;
        noted
    }

    fn remove(&self, id: AllocId) -> io::Result<()> {
        absent_is_fine(fs::remove_file(self.path(id)))?;
        absent_is_fine(fs::remove_file(self.place_file(id)))
    }

    /// Drops the oldest output until the rest is below the limit.
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, AllocId)> = Vec::new();
        for id in allocs_in(&self.dir)? {
            // Several directories are destroyed at a time, and uploads end meanwhile.
            if let Ok(metadata) = fs::symlink_metadata(self.path(id)) {
                files.push((metadata.modified()?, metadata.len(), id));
            }
        }
        files.sort();
        let (mut bytes, mut count) = (files.iter().map(|(_, size, _)| size).sum::<u64>(), files.len());
        for (_, size, alloc_id) in files {
            if bytes <= self.limit && count <= MAX_FILES {
                return Ok(());
            }
            tracing::warn!(
                %alloc_id, bytes = size, "too much output waits to be stored (--keep-unsent-mib): the oldest is dropped"
            );
            self.remove(alloc_id)?;
            (bytes, count) = (bytes.saturating_sub(size), count.saturating_sub(1));
        }
        Ok(())
    }
}

/// The names in a directory that are ids of allocs.
fn allocs_in(dir: &Path) -> io::Result<Vec<AllocId>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<AllocId>().ok()));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc_dir::{AllocTask, ExitRecord};
    use crate::protocol::testing::{alloc_id, node_id, order, task};
    use std::os::unix::fs::symlink;

    struct Disk {
        root: tempfile::TempDir,
        unsent: Unsent,
    }

    impl Disk {
        fn new(limit: u64) -> Self {
            let root = tempfile::tempdir().unwrap();
            let data = DataDir::open(root.path()).unwrap();
            Self { unsent: Unsent { limit, ..Unsent::open(&data, node_id(), 1) }, root }
        }

        /// An alloc of this node with a place, and this output.
        fn alloc(&self, n: u32, output: &str) -> AllocDir {
            self.alloc_of(n, output, node_id(), Some(place(n)))
        }

        fn alloc_of(&self, n: u32, output: &str, node_id: NodeId, output_s3: Option<S3Place>) -> AllocDir {
            let dir = AllocDir::of(&self.root.path().join("allocs"), alloc_id(n));
            let order = model::wire::AllocOrder { output_s3, ..order(n, 1) };
            let task = AllocTask { node_id, ..task(order) };
            dir.create(&task).unwrap();
            fs::write(dir.output(), output).unwrap();
            dir
        }

        fn waiting(&self) -> Vec<(u32, String)> {
            let mut waiting = self.unsent.waiting().unwrap();
            waiting.sort_by_key(|w| w.alloc_id);
            waiting.into_iter().map(|w| (w.alloc_id.copy, fs::read_to_string(w.path).unwrap())).collect()
        }
    }

    fn place(n: u32) -> S3Place {
        format!("s3://logs/c/{n}.log").parse().unwrap()
    }

    fn destroy(disk: &Disk, n: u32, dir: &AllocDir) {
        disk.unsent.keep(alloc_id(n), dir).unwrap();
        remove_tree::remove_tree(dir.path()).unwrap();
    }

    #[test]
    fn an_output_waits_from_its_end_until_it_is_stored_also_without_its_directory() {
        let disk = Disk::new(100);
        let dir = disk.alloc(0, "zero");
        assert_eq!(disk.waiting(), [], "it may still grow");
        dir.write_exit_record(&ExitRecord::of(model::EndCause::Exited { code: 0 })).unwrap();
        let other: NodeId = "4-01JD0000000000000000000000".parse().unwrap();
        for (n, of, output_s3) in [(5, node_id(), None), (6, other, Some(place(6)))] {
            disk.alloc_of(n, "not ours", of, output_s3)
                .write_exit_record(&ExitRecord::of(model::EndCause::Exited { code: 0 }))
                .unwrap();
        }
        let all = disk.unsent.waiting().unwrap();
        assert_eq!(all, [Waiting { alloc_id: alloc_id(0), place: place(0), path: dir.output(), size: 4 }]);
        destroy(&disk, 0, &dir);
        assert!(disk.unsent.open_output(&all[0]).unwrap().is_some(), "who saw it in its directory finds it again");
        assert_eq!(disk.unsent.waiting().unwrap()[0].place, place(0));
        assert_eq!(disk.waiting(), [(0, "zero".into())]);
        disk.unsent.settled(alloc_id(0)).unwrap();
        assert_eq!(disk.waiting(), []);
        assert_eq!(fs::read_dir(&disk.unsent.dir).unwrap().count(), 0);
    }

    #[test]
    fn what_is_stored_is_not_kept_and_what_ended_with_the_machine_is() {
        let disk = Disk::new(100);
        let stored = disk.alloc(0, "stored");
        stored.write_exit_record(&ExitRecord::of(model::EndCause::Exited { code: 0 })).unwrap();
        disk.unsent.settled(alloc_id(0)).unwrap();
        assert_eq!(disk.waiting(), []);
        destroy(&disk, 0, &stored);
        destroy(&disk, 1, &disk.alloc(1, "cut off"));
        assert_eq!(disk.waiting(), [(1, "cut off".into())]);
    }

    #[test]
    fn the_oldest_is_dropped_when_there_is_too_much_and_what_is_too_large_is_not_kept() {
        let disk = Disk::new(10);
        for (n, output) in [(0, "0000"), (1, "1111"), (2, "01234567890"), (3, "3333")] {
            let dir = disk.alloc(n, output);
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(n) + 1);
            fs::File::options().append(true).open(dir.output()).unwrap().set_modified(at).unwrap();
            destroy(&disk, n, &dir);
        }
        assert_eq!(disk.waiting(), [(1, "1111".into()), (3, "3333".into())]);
    }

    #[test]
    fn a_link_in_the_place_of_the_output_is_not_kept() {
        let disk = Disk::new(1 << 20);
        let dir = disk.alloc(0, "");
        fs::remove_file(dir.output()).unwrap();
        symlink("/etc/passwd", dir.output()).unwrap();
        assert!(disk.unsent.keep(alloc_id(0), &dir).is_err());
        assert_eq!(disk.waiting(), []);
    }
}
