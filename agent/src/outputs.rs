//! The output of allocs on this machine: in the directory of the alloc, and kept for readers after that was destroyed.
//!
//! Guarantees: what is kept stays below a limit, and the oldest goes first; of an output that is larger than the limit the end
//! is kept; a symbolic link is never followed; jobs cannot read what is kept.
//! Does not: survive the machine.

use crate::alloc_dir::AllocDir;
use crate::atomic_file::absent_is_fine;
use crate::data_dir::DataDir;
use crate::unsent::Unsent;
use model::ids::AllocId;
use model::output::Then;
use nix::fcntl::OFlag;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At this byte.
    Byte(u64),
    /// So many bytes before the present end.
    Last(u64),
}

/// A part of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where the part begins in the output, in bytes.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// How many bytes the output had when the part was read.
    pub size: u64,
    /// What comes after the part.
    pub then: Then,
}

/// The output of allocs on this machine.
#[derive(Clone, Debug)]
pub struct Outputs {
    allocs: PathBuf,
    kept: PathBuf,
    unsent: Unsent,
    /// How many bytes are kept.
    limit: u64,
}

impl Outputs {
    /// The output in this data directory. At most `mib` MiB of ended allocs are kept for readers; what `unsent` keeps comes on
    /// top of that.
    pub fn open(data: &DataDir, mib: u64, unsent: Unsent) -> Self {
        let outputs = Self { allocs: data.allocs(), kept: data.outputs(), unsent, limit: mib.saturating_mul(1 << 20) };
        // The files have the user ids of jobs. Only the agent may reach them.
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&outputs.kept) {
            tracing::warn!(%error, path = %outputs.kept.display(), "no output of ended allocs can be kept");
        }
        outputs
    }

    /// Reads at most `most` bytes. `is_known` says whether the alloc is to run here: it may have no output yet.
    pub fn read(&self, id: AllocId, from: Start, most: u64, is_known: bool) -> io::Result<Part> {
        let dir = AllocDir::of(&self.allocs, id);
        // Looked up before the size: what an ended alloc has written is all there is.
        let ended = dir.path().exists() && dir.exit_record()?.is_some();
        if let Some(file) = open_regular(&dir.output())? {
            return part(file, 0, from, most, ended);
        }
        if let Some(file) = open_regular(&self.unsent.path(id))? {
            return part(file, 0, from, most, true);
        }
        if let Some((start, path)) = self.kept_file(id)?
            && let Some(file) = open_regular(&path)?
        {
            return part(file, start, from, most, true);
        }
        let then = match (ended, is_known || dir.path().exists()) {
            (true, _) => Then::End,
            (false, true) => Then::More,
            (false, false) => Then::Missing,
        };
        let offset = if let Start::Byte(byte) = from { byte } else { 0 };
        Ok(Part { offset, bytes: Vec::new(), size: offset, then })
    }

    /// Keeps the output of an alloc whose directory is about to be destroyed: for readers, and until it is stored. If that
    /// fails, the output is lost.
    pub fn keep(&self, id: AllocId, dir: &AllocDir) {
        if let Err(error) = self.unsent.keep(id, dir) {
            tracing::warn!(alloc_id = %id, %error, "the output of an ended alloc will not be stored");
        }
        if let Err(error) = self.try_keep(id, &dir.output()) {
            tracing::warn!(alloc_id = %id, %error, "the output of an ended alloc is not kept");
        }
    }

    fn try_keep(&self, id: AllocId, output: &Path) -> io::Result<()> {
        let Some(mut file) = open_regular(output)? else { return Ok(()) };
        let size = file.metadata()?.len();
        if size == 0 || self.limit == 0 {
            return Ok(());
        }
        let start = size.saturating_sub(self.limit);
        let kept = self.kept.join(format!("{id}@{start}"));
        if start == 0 {
            fs::rename(output, &kept)?;
        } else {
            file.seek(SeekFrom::Start(start))?;
            let mut end = File::options().write(true).create(true).truncate(true).mode(0o600).open(&kept)?;
            io::copy(&mut file.take(self.limit), &mut end)?;
        }
        self.prune()
    }

    /// Removes the oldest output until the rest is below the limit.
    fn prune(&self) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.kept)? {
            match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok((path, metadata)) => files.push((metadata.modified()?, metadata.len(), path)),
                // Several directories are destroyed at a time: another one has removed this file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        files.sort();
        let mut left: u64 = files.iter().map(|(_, size, _)| size).sum();
        for (_, size, path) in files {
            if left <= self.limit {
                return Ok(());
            }
            absent_is_fine(fs::remove_file(path))?;
            left = left.saturating_sub(size);
        }
        Ok(())
    }

    /// The kept output of an alloc, and where it begins in the whole output.
    fn kept_file(&self, id: AllocId) -> io::Result<Option<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.kept) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            entries => entries?,
        };
        let of = id.to_string();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let start = name.to_str().and_then(|name| name.split_once('@')).filter(|(id, _)| *id == of);
            if let Some(start) = start.and_then(|(_, start)| start.parse().ok()) {
                return Ok(Some((start, entry.path())));
            }
        }
        Ok(None)
    }
}

/// Opens a regular file; `None` if there is none. A symbolic link is an error.
pub(crate) fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a part of a file that holds the output from byte `start` on.
fn part(mut file: File, start: u64, from: Start, most: u64, ended: bool) -> io::Result<Part> {
    let size = start.saturating_add(file.metadata()?.len());
    let offset = match from {
        Start::Byte(byte) => byte.max(start),
        Start::Last(bytes) => size.saturating_sub(bytes).max(start),
    };
    file.seek(SeekFrom::Start(offset.saturating_sub(start)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    let read_to = offset.saturating_add(bytes.len() as u64);
    let then = if ended && read_to >= size { Then::End } else { Then::More };
    Ok(Part { offset, bytes, size, then })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc_dir::ExitRecord;
    use crate::protocol::testing::{alloc_id, node_id};

    struct Disk {
        root: tempfile::TempDir,
        outputs: Outputs,
    }

    impl Disk {
        fn new(limit: u64) -> Self {
            let root = tempfile::tempdir().unwrap();
            let data = DataDir::open(root.path()).unwrap();
            let unsent = Unsent::open(&data, node_id(), 1);
            Self { outputs: Outputs { limit, ..Outputs::open(&data, 1, unsent) }, root }
        }

        fn alloc(&self, n: u32, output: &str) -> AllocDir {
            let dir = AllocDir::of(&self.root.path().join("allocs"), alloc_id(n));
            fs::create_dir(dir.path()).unwrap();
            fs::write(dir.output(), output).unwrap();
            dir
        }

        fn read(&self, n: u32, from: Start) -> (u64, String, Then) {
            let part = self.outputs.read(alloc_id(n), from, 4, false).unwrap();
            (part.offset, String::from_utf8(part.bytes).unwrap(), part.then)
        }
    }

    #[test]
    fn output_is_read_in_parts_and_ends_only_after_the_alloc_did() {
        let disk = Disk::new(100);
        let dir = disk.alloc(0, "0123456789");
        assert_eq!(disk.read(0, Start::Byte(0)), (0, "0123".into(), Then::More));
        assert_eq!(disk.read(0, Start::Last(3)), (7, "789".into(), Then::More));
        dir.write_exit_record(&ExitRecord::of(model::EndCause::Exited { code: 0 })).unwrap();
        assert_eq!(disk.read(0, Start::Byte(4)), (4, "4567".into(), Then::More));
        assert_eq!(disk.read(0, Start::Byte(8)), (8, "89".into(), Then::End));
        assert_eq!(disk.read(0, Start::Byte(10)), (10, String::new(), Then::End));
        assert_eq!(disk.read(1, Start::Byte(0)), (0, String::new(), Then::Missing));
        let waits = disk.outputs.read(alloc_id(1), Start::Byte(0), 4, true).unwrap();
        assert_eq!(waits.then, Then::More, "its order is here, and its directory is not made yet");
    }

    #[test]
    fn the_end_of_the_newest_output_is_kept_after_the_directory_is_gone() {
        let disk = Disk::new(8);
        for (n, output) in [(0, "old"), (1, "0123456789"), (2, "new")] {
            let dir = disk.alloc(n, output);
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(n) + 1);
            File::options().append(true).open(dir.output()).unwrap().set_modified(at).unwrap();
            disk.outputs.keep(alloc_id(n), &dir);
            remove_tree::remove_tree(dir.path()).unwrap();
            if n == 1 {
                assert_eq!(disk.read(1, Start::Byte(0)), (2, "2345".into(), Then::More));
                assert_eq!(disk.read(1, Start::Byte(6)), (6, "6789".into(), Then::End));
                let kept = disk.outputs.kept_file(alloc_id(1)).unwrap().unwrap().1;
                File::options().append(true).open(kept).unwrap().set_modified(at).unwrap();
            }
        }
        assert_eq!(disk.read(0, Start::Byte(0)).2, Then::Missing, "the oldest goes first");
        assert_eq!(disk.read(1, Start::Byte(0)).2, Then::Missing);
        assert_eq!(disk.read(2, Start::Byte(0)), (0, "new".into(), Then::End));
    }

    #[test]
    fn a_link_in_the_place_of_the_output_is_not_followed() {
        let disk = Disk::new(100);
        let dir = disk.alloc(0, "");
        fs::remove_file(dir.output()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.output()).unwrap();
        assert!(disk.outputs.read(alloc_id(0), Start::Byte(0), 4, false).is_err());
        disk.outputs.keep(alloc_id(0), &dir);
        assert_eq!(fs::read_dir(&disk.outputs.kept).unwrap().count(), 0);
    }
}
