//! A folder as a tar archive.
//!
//! Owners, times and all modes but the nine of `rwx` are left out, so that equal folders have equal archives.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use tar::{Archive, Builder, Entry, EntryType, Header};

/// The time of all that is packed: 2000-01-01. Some programs take no time before 1980.
const MTIME: u64 = 946_684_800;

/// Writes an archive. The caller adds the entries in the order of their names.
pub struct TreeWriter<W: Write>(Builder<W>);

impl<W: Write> fmt::Debug for TreeWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TreeWriter(…)")
    }
}

impl<W: Write> TreeWriter<W> {
    pub fn new(to: W) -> Self {
        Self(Builder::new(to))
    }

    pub fn folder(&mut self, name: &Path, mode: u32) -> io::Result<()> {
        self.0.append_data(&mut header(EntryType::Directory, mode, 0), name, io::empty())
    }

    /// Adds a file of this many bytes. A file that is shorter by now is an error.
    pub fn file(&mut self, name: &Path, mode: u32, bytes: u64, content: impl Read) -> io::Result<()> {
        let mut content = content.take(bytes);
        self.0.append_data(&mut header(EntryType::Regular, mode, bytes), name, &mut content)?;
        // If the limit is not used up, the content was shorter.
        if content.limit() == 0 {
            return Ok(());
        }
        Err(io::Error::other(format!("{} changes while it is read", name.display())))
    }

    pub fn link(&mut self, name: &Path, target: &Path) -> io::Result<()> {
        self.0.append_link(&mut header(EntryType::Symlink, 0o777, 0), name, target)
    }

    pub fn finish(self) -> io::Result<W> {
        self.0.into_inner()
    }
}

fn header(entry_type: EntryType, mode: u32, bytes: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(entry_type);
    header.set_mode(mode & 0o777);
    header.set_size(bytes);
    header.set_mtime(MTIME);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Unpacks an archive into a folder that exists. Its entries replace what has their names, and everything else stays.
pub fn unpack(archive: &mut File, into: &Path) -> io::Result<()> {
    let mut archive = Archive::new(archive);
    let mut folders = Vec::new();
    for entry in archive.entries()? {
        let entry = entry?;
        let kind = entry.header().entry_type();
        if !matches!(kind, EntryType::Regular | EntryType::Directory | EntryType::Symlink) {
            let name = entry.path()?.display().to_string();
            return Err(io::Error::other(format!("{name} is neither a file nor a folder nor a link")));
        }
        if kind == EntryType::Directory {
            folders.push(entry);
        } else {
            unpack_one(entry, into)?;
        }
    }
    // The folders come last, the deepest first: nothing can be put into one that may not be written.
    folders.sort_by(|a, b| b.path_bytes().cmp(&a.path_bytes()));
    folders.into_iter().try_for_each(|folder| unpack_one(folder, into))
}

fn unpack_one(mut entry: Entry<'_, &mut File>, into: &Path) -> io::Result<()> {
    // `unpack_in` does not go through a link that leads out of the folder.
    if entry.unpack_in(into)? {
        return Ok(());
    }
    Err(io::Error::other(format!("{} leads out of the folder", entry.path()?.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Seek;
    use std::os::unix::fs::PermissionsExt;

    fn archive(write: impl FnOnce(&mut TreeWriter<&mut File>)) -> File {
        let mut file = tempfile::tempfile().unwrap();
        let mut tree = TreeWriter::new(&mut file);
        write(&mut tree);
        tree.finish().unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn what_is_packed_comes_out_again_and_nothing_gets_special_rights() {
        let mut packed = archive(|tree| {
            tree.folder(Path::new("a"), 0o555).unwrap();
            tree.file(Path::new("a/run"), 0o4755, 2, &b"hi"[..]).unwrap();
            tree.link(Path::new("a/link"), Path::new("run")).unwrap();
            let long = format!("{}/{}", "x".repeat(200), "y".repeat(200));
            tree.file(Path::new(&long), 0o644, 0, io::empty()).unwrap();
            assert!(tree.file(Path::new("short"), 0o644, 3, &b"hi"[..]).is_err(), "it has fewer bytes");
        });
        let into = tempfile::tempdir().unwrap();
        unpack(&mut packed, into.path()).unwrap();
        assert_eq!(fs::read(into.path().join("a/link")).unwrap(), b"hi");
        assert_eq!(fs::metadata(into.path().join("a/run")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::metadata(into.path().join("a")).unwrap().permissions().mode() & 0o7777, 0o555);
        assert!(into.path().join("x".repeat(200)).join("y".repeat(200)).exists());
    }

    #[test]
    fn an_archive_writes_nothing_outside_its_folder() {
        let outside = tempfile::tempdir().unwrap();
        let link = outside.path().to_owned();
        let through = move |tree: &mut TreeWriter<&mut File>| {
            tree.link(Path::new("out"), &link).unwrap();
            tree.file(Path::new("out/evil"), 0o644, 1, &b"x"[..]).unwrap();
        };
        let into = tempfile::tempdir().unwrap();
        assert!(unpack(&mut archive(through), into.path()).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        let mut special = header(EntryType::Fifo, 0o644, 0);
        special.set_path("pipe").unwrap();
        special.set_cksum();
        let mut packed = archive(|tree| tree.0.append(&special, io::empty()).unwrap());
        assert!(unpack(&mut packed, into.path()).is_err());
    }
}
