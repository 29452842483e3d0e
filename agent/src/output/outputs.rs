//! The outputs on this machine: in the directories of allocs, and kept after these were destroyed.
//!
//! ```text
//! allocs/{alloc_id}/output    what the command prints: standard output and standard error, as they come
//!                   switches  where in `output` the stream changes: see `Switches`, each place as 8 bytes
//!                   stored    how much of it is in S3
//! outputs/{alloc_id}/…        the same files, after the directory of the alloc was destroyed
//!                   place     where it is to be stored in S3; removed when all of it is stored
//! ```
//!
//! Guarantees: a directory is destroyed only after its output has a second name in `outputs/`, so no restart loses the output. The
//! kept outputs stay below a limit: the oldest outputs that need no storing are removed first, and the log names each output that
//! is removed before it is stored. An output that a reader has just asked for is not removed. Jobs cannot read kept outputs.
//! Does not: send anything (`output` and `uploads` do), or survive the machine.

use super::output_files::{OutputFiles, Progress, open_regular};
use crate::machine::atomic_file::{self, absent_is_fine, if_there, sync_dir};
use crate::machine::data_dir::DataDir;
use crate::work::alloc_dir::AllocDir;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::ids::{AllocId, NodeId};
use model::output::{FOLLOW_LASTS, MAX_PIECE_SWITCHES, Switches, Then};
use model::stored::S3Place;
use model::wire::OutputPiece;
use remove_tree::remove_tree;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The most outputs that are kept.
const MAX_KEPT: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Byte(u64),
    /// This many bytes before the present end.
    Last(u64),
}

/// An output that is to be stored in S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
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
    /// When each output was last read for a reader.
    read_at: Arc<Mutex<BTreeMap<AllocId, Instant>>>,
}

impl Outputs {
    /// At most `mib` MiB of output are kept after their directories were destroyed.
    pub fn open(data: &DataDir, node_id: NodeId, mib: u64) -> Self {
        let limit = mib.saturating_mul(1 << 20);
        let outputs = Self { allocs: data.allocs(), kept: data.outputs(), node_id, limit, read_at: Arc::default() };
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

    /// Whether the command of the alloc will print no more.
    fn has_ended(&self, id: AllocId) -> io::Result<bool> {
        let dir = AllocDir::of(&self.allocs, id);
        Ok(self.kept.join(id.to_string()).exists() || (dir.path().exists() && dir.exit_record()?.is_some()))
    }

    /// Reads at most `most` bytes for a reader, as the first piece that it gets. `is_known` says whether the node has an order for
    /// the alloc: such an alloc may have no output yet.
    pub fn read(&self, id: AllocId, from: Start, most: u64, is_known: bool) -> io::Result<OutputPiece> {
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        read_at.retain(|_, at| is_recent(*at));
        read_at.insert(id, Instant::now());
        drop(read_at);
        // This comes before the size is read, because the output of an ended alloc no longer grows.
        let ended = self.has_ended(id)?;
        let files = self.files(id);
        if open_regular(&files.output())?.is_some() {
            return part(&files, from, most, ended);
        }
        let then = match (ended, is_known || AllocDir::of(&self.allocs, id).path().exists()) {
            (true, _) => Then::End,
            (false, true) => Then::More,
            (false, false) => Then::Missing,
        };
        let offset = if let Start::Byte(byte) = from { byte } else { 0 };
        let (data, switches) = (String::new(), Switches::default());
        Ok(OutputPiece { no: 0, offset, data, switches, size: offset, then })
    }

    /// Every output that is to be stored and is not stored completely.
    pub fn waiting(&self) -> io::Result<Vec<Waiting>> {
        let mut waiting = BTreeMap::new();
        let kept = allocs_in(&self.kept)?;
        for alloc_id in allocs_in(&self.allocs)? {
            let dir = AllocDir::of(&self.allocs, alloc_id);
            let ended = matches!(dir.exit_record(), Ok(Some(_)));
            waiting.extend(self.place_of(&dir).map(|place| (alloc_id, (place, ended))));
        }
        for alloc_id in kept {
            let place = fs::read_to_string(OutputFiles::at(self.kept.join(alloc_id.to_string())).place()).ok();
            match place.and_then(|text| text.parse().ok()) {
                Some(place) => _ = waiting.insert(alloc_id, (place, true)),
                None => _ = waiting.remove(&alloc_id),
            }
        }
        let each = waiting.into_iter().map(|(alloc_id, (place, ended))| {
            let files = self.files(alloc_id);
            let left = files.size().unwrap_or(0).saturating_sub(files.progress().bytes);
            Waiting { alloc_id, place, left, ended }
        });
        Ok(each.collect())
    }

    /// Notes that the output of this alloc needs no storing any more.
    pub fn settled(&self, id: AllocId, progress: Progress) -> io::Result<()> {
        let files = self.files(id);
        files.note(progress)?;
        absent_is_fine(fs::remove_file(files.place()))
    }

    /// Where the output in the directory is to be stored; `None` if it needs no storing, or not by this node.
    fn place_of(&self, dir: &AllocDir) -> Option<S3Place> {
        if dir.output_files().progress().end {
            return None;
        }
        let task = dir.task().ok()?.filter(|task| task.node_id == self.node_id)?;
        task.order.output_s3
    }

    /// Keeps the output of an alloc whose directory is about to be destroyed: for readers, and until it is stored. The alloc may
    /// have no exit record, if it ended with the machine. If keeping fails, the output is lost.
    pub fn keep(&self, id: AllocId, dir: &AllocDir) {
        if let Err(error) = self.try_keep(id, dir) {
            tracing::warn!(alloc_id = %id, %error, "the output of an ended alloc is not kept");
        }
    }

    /// The files are linked and not copied, so this needs no space.
    fn try_keep(&self, id: AllocId, dir: &AllocDir) -> io::Result<()> {
        let (place, files) = (self.place_of(dir), dir.output_files());
        let Some(output) = open_regular(&files.output())? else { return Ok(()) };
        if output.metadata()?.len() == 0 && place.is_none() {
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
        if let Some(place) = place {
            new.note(files.progress())?;
            atomic_file::replace(&new.place(), place.to_string().as_bytes())?;
        }
        fs::rename(new.dir(), &kept)?;
        sync_dir(&self.kept)?;
        self.prune()
    }

    /// Removes outputs until the rest is below the limit: first those that need no storing, and the oldest of them first.
    fn prune(&self) -> io::Result<()> {
        let mut outputs: Vec<(bool, SystemTime, u64, AllocId)> = Vec::new();
        for id in allocs_in(&self.kept)? {
            let files = OutputFiles::at(self.kept.join(id.to_string()));
            // Several directories are destroyed at a time: another one may have removed this output.
            if let Ok(output) = fs::symlink_metadata(files.output()) {
                let switches = fs::symlink_metadata(files.switches()).map_or(0, |m| m.len());
                outputs.push((files.place().exists(), output.modified()?, output.len().saturating_add(switches), id));
            }
        }
        outputs.sort();
        let read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut bytes, mut count) = (outputs.iter().map(|(_, _, size, _)| size).sum::<u64>(), outputs.len());
        for (is_unsent, _, size, id) in outputs {
            if bytes <= self.limit && count <= MAX_KEPT {
                return Ok(());
            }
            if read_at.get(&id).is_some_and(|at| is_recent(*at)) {
                continue;
            }
            if is_unsent {
                tracing::warn!(alloc_id = %id, bytes = size, "too much output waits to be stored (--keep-output-mib): it is dropped");
            }
            remove_tree(&self.kept.join(id.to_string()))?;
            (bytes, count) = (bytes.saturating_sub(size), count.saturating_sub(1));
        }
        Ok(())
    }
}

/// Whether a reader who asked at this time may still wait for more.
fn is_recent(at: Instant) -> bool {
    at.elapsed() < Duration::from_millis(u64::try_from(FOLLOW_LASTS.as_ms()).unwrap_or(0))
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

/// Reads a part of an output. The part is shorter than `most` if it would have too many switches.
fn part(files: &OutputFiles, from: Start, most: u64, is_ended: bool) -> io::Result<OutputPiece> {
    let size = files.size()?;
    let offset = match from {
        Start::Byte(byte) => byte,
        Start::Last(bytes) => size.saturating_sub(bytes),
    };
    let to = size.min(offset.saturating_add(most)).max(offset);
    let mut bytes = files.bytes_within(offset, to)?;
    let mut switches = files.switches_within(offset, to)?;
    if let Some(cut) = switches.limit(MAX_PIECE_SWITCHES) {
        bytes.truncate(usize::try_from(cut).unwrap_or(usize::MAX));
    }
    let read_to = offset.saturating_add(bytes.len() as u64);
    let then = if is_ended && read_to >= size { Then::End } else { Then::More };
    Ok(OutputPiece { no: 0, offset, data: BASE64_STANDARD.encode(&bytes), switches, size, then })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{alloc_id, node_id, order, task};
    use crate::work::alloc_dir::{AllocTask, ExitRecord};
    use model::EndCause;
    use model::wire::AllocOrder;

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

        fn read(&self, n: u32, from: Start) -> (u64, String, Then) {
            let part = self.outputs.read(alloc_id(n), from, 4, false).unwrap();
            (part.offset, String::from_utf8(bytes_of(&part)).unwrap(), part.then)
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
            self.outputs.waiting().unwrap().iter().map(|w| (w.alloc_id.copy, w.left, w.ended)).collect()
        }
    }

    fn bytes_of(piece: &OutputPiece) -> Vec<u8> {
        BASE64_STANDARD.decode(&piece.data).unwrap()
    }

    fn place(n: u32) -> Option<S3Place> {
        Some(format!("s3://logs/c/{n}").parse().unwrap())
    }

    #[test]
    fn output_is_read_in_parts_and_ends_only_after_the_alloc_did() {
        let disk = Disk::new(100);
        let dir = disk.alloc(0, "0123456789");
        assert_eq!(disk.read(0, Start::Byte(0)), (0, "0123".into(), Then::More));
        assert_eq!(disk.read(0, Start::Last(3)), (7, "789".into(), Then::More));
        dir.write_exit_record(&ExitRecord::of(EndCause::Exited { code: 0 })).unwrap();
        assert_eq!(disk.read(0, Start::Byte(4)), (4, "4567".into(), Then::More));
        assert_eq!(disk.read(0, Start::Byte(8)), (8, "89".into(), Then::End));
        assert_eq!(disk.read(0, Start::Byte(10)), (10, String::new(), Then::End));
        assert_eq!(disk.read(1, Start::Byte(0)), (0, String::new(), Then::Missing));
        let waits = disk.outputs.read(alloc_id(1), Start::Byte(0), 4, true).unwrap();
        assert_eq!(waits.then, Then::More, "its order is here, and its directory is not made yet");
    }

    #[test]
    fn each_part_says_which_bytes_are_standard_error_also_after_the_directory_is_gone() {
        let disk = Disk::new(1000);
        let dir = disk.alloc(0, "oeeooeooo");
        let places: Vec<u8> = [1u64, 3, 5, 6].into_iter().flat_map(u64::to_le_bytes).collect();
        // The last switch is being written.
        fs::write(dir.output_files().switches(), [&places[..], &[9, 0]].concat()).unwrap();
        for is_kept in [false, true] {
            if is_kept {
                disk.destroy(0, &dir);
            }
            for (from, expected) in [(0, vec![1, 3]), (1, vec![0, 2]), (2, vec![0, 1, 3]), (4, vec![1, 2])] {
                let part = disk.outputs.read(alloc_id(0), Start::Byte(from), 4, false).unwrap();
                assert_eq!(part.switches, Switches::new(expected), "from {from}");
                for (stream, text) in part.switches.split(&bytes_of(&part)) {
                    let expected = if stream == model::output::Stream::Err { b'e' } else { b'o' };
                    assert!(text.iter().all(|byte| *byte == expected), "from {from}: {text:?}");
                }
            }
        }
    }

    #[test]
    fn a_part_has_no_more_switches_than_fit_into_a_piece() {
        let disk = Disk::new(100);
        let bytes = 3 * MAX_PIECE_SWITCHES as u64;
        let dir = disk.alloc(0, &"x".repeat(bytes as usize));
        let places: Vec<u8> = (1..bytes).flat_map(u64::to_le_bytes).collect();
        fs::write(dir.output_files().switches(), places).unwrap();
        let (mut at, mut parts) = (0, 0);
        while at < bytes {
            let part = disk.outputs.read(alloc_id(0), Start::Byte(at), bytes, false).unwrap();
            assert!(part.switches.len() <= MAX_PIECE_SWITCHES && part.offset == at);
            at += bytes_of(&part).len() as u64;
            parts += 1;
        }
        assert_eq!(parts, 3, "each has as many as fit, also those that begin with standard error");
    }

    #[test]
    fn the_oldest_goes_first_and_what_is_not_stored_or_is_being_read_goes_last() {
        let disk = Disk::new(8);
        for n in [0, 1] {
            disk.destroy(n, &disk.alloc(n, "0123"));
        }
        assert_eq!(disk.read(1, Start::Byte(2)), (2, "23".into(), Then::End), "it is read after its directory is gone");
        disk.destroy(2, &disk.alloc_of(2, "0123", node_id(), place(2)));
        assert_eq!(disk.kept(), [1, 2], "the oldest goes first");
        disk.destroy(3, &disk.alloc(3, "0123"));
        assert_eq!(disk.kept(), [1, 2], "one is being read, and one is not stored");
        disk.outputs.read_at.lock().unwrap().clear();
        disk.destroy(4, &disk.alloc_of(4, "0123", node_id(), place(4)));
        assert_eq!(disk.kept(), [2, 4]);
        disk.destroy(5, &disk.alloc_of(5, "0123", node_id(), place(5)));
        assert_eq!(disk.kept(), [4, 5], "the oldest that waits is dropped last");
        assert_eq!(disk.read(2, Start::Byte(0)).2, Then::Missing);
        let nothing = Disk::new(0);
        nothing.destroy(0, &nothing.alloc(0, "0123"));
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
        assert_eq!(disk.outputs.waiting().unwrap()[0].place, place(0).unwrap());
        disk.outputs.settled(alloc_id(0), Progress { bytes: 4, end: true }).unwrap();
        assert_eq!(disk.waiting(), []);
        assert_eq!(disk.read(0, Start::Byte(0)).1, "zero", "readers still find it");
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
        let dir = disk.alloc(0, "");
        fs::remove_file(dir.output_files().output()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.output_files().output()).unwrap();
        assert!(disk.outputs.read(alloc_id(0), Start::Byte(0), 4, false).is_err());
        disk.outputs.keep(alloc_id(0), &dir);
        assert_eq!(disk.kept(), Vec::<u32>::new());
    }
}
