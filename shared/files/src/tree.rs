//! A folder as a tar archive.
//!
//! Guarantees: equal folders have equal archives. So an archive has no owners, no times, and of the mode only the nine bits of `rwx`.
//! With times, each `git clone` of the same sources would make another archive.
//! Does not: walk a folder (`folder` does), or choose the time of what it unpacks (the caller does).

use crate::allowance::Allowance;
use crate::beneath::Beneath;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use tar::{Archive, Builder, Entry, EntryType, Header};

/// The time of all that is packed: 2000-01-01. Nothing that is unpacked has it.
const MTIME: u64 = 946_684_800;

/// Writes an archive. The caller adds the entries in the order of their names.
pub(crate) struct TreeWriter<W: Write>(Builder<W>);

impl<W: Write> TreeWriter<W> {
    pub(crate) fn new(to: W) -> Self {
        Self(Builder::new(to))
    }

    pub(crate) fn folder(&mut self, name: &Path, mode: u32) -> io::Result<()> {
        self.0.append_data(&mut header(EntryType::Directory, mode, 0), name, io::empty())
    }

    /// Adds a file of this many bytes. A file that is shorter by now is an error.
    pub(crate) fn file(&mut self, name: &Path, mode: u32, bytes: u64, content: impl Read) -> io::Result<()> {
        let mut content = content.take(bytes);
        self.0.append_data(&mut header(EntryType::Regular, mode, bytes), name, &mut content)?;
        // If the limit is not used up, the content was shorter.
        if content.limit() == 0 {
            return Ok(());
        }
        Err(io::Error::other(format!("{} changes while it is read", name.display())))
    }

    pub(crate) fn link(&mut self, name: &Path, target: &Path) -> io::Result<()> {
        self.0.append_link(&mut header(EntryType::Symlink, 0o777, 0), name, target)
    }

    pub(crate) fn finish(self) -> io::Result<W> {
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

/// Unpacks an archive. Its entries replace what has their names, and everything else stays.
pub fn unpack(archive: &mut File, into: &Beneath) -> io::Result<()> {
    unpack_within(archive, into, &mut Allowance::default())
}

/// As [`unpack`], until the allowance is used up: that is an error.
pub fn unpack_within(archive: impl Read, into: &Beneath, allowance: &mut Allowance) -> io::Result<()> {
    let mut folders = Vec::new();
    for entry in Archive::new(allowance.reading(archive)).entries()? {
        let mut entry = entry?;
        allowance.take_entry()?;
        allowance.check(entry.size())?;
        let path = entry.path()?.into_owned();
        unpack_one(&mut entry, &path, into).map_err(|e| about(&path, &e))?;
        if entry.header().entry_type() == EntryType::Directory {
            folders.push((path, entry.header().mode()?));
        }
    }
    // The modes and times of folders come last, the deepest first: nothing can be put into one that may not be written.
    folders.sort_unstable_by(|(a, _), (b, _)| b.cmp(a));
    for (path, mode) in folders {
        into.folder(&path).and_then(|folder| folder.finish(Some(mode))).map_err(|e| about(&path, &e))?;
    }
    into.finish(None)
}

/// The names of all entries of an archive except its folders.
pub fn names(archive: &mut File) -> io::Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for entry in Archive::new(archive).entries()? {
        let entry = entry?;
        if entry.header().entry_type() != EntryType::Directory {
            names.push(entry.path()?.into_owned());
        }
    }
    Ok(names)
}

fn unpack_one<R: Read>(entry: &mut Entry<'_, R>, path: &Path, into: &Beneath) -> io::Result<()> {
    match entry.header().entry_type() {
        EntryType::Regular => {
            let mut new = into.new_file(path)?;
            if io::copy(entry, &mut new.file)? != entry.size() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            new.finish(entry.header().mode()?)
        }
        EntryType::Directory => into.folder(path).map(drop),
        EntryType::Symlink => {
            let target = entry.link_name()?.ok_or_else(|| io::Error::other("it is a link that leads nowhere"))?;
            into.link(path, &target)
        }
        _ => Err(io::Error::other("it is neither a file nor a folder nor a link")),
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Seek;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;
    use std::time::{Duration, SystemTime};

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
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_123);
        unpack(&mut packed, &Beneath::new(into.path(), at).unwrap()).unwrap();
        assert_eq!(fs::read(into.path().join("a/link")).unwrap(), b"hi");
        assert_eq!(fs::metadata(into.path().join("a/run")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(fs::metadata(into.path().join("a")).unwrap().permissions().mode() & 0o7777, 0o555);
        assert!(into.path().join("x".repeat(200)).join("y".repeat(200)).exists());
        for path in ["a", "a/run", "a/link", "."] {
            let modified = into.path().join(path).symlink_metadata().unwrap().modified().unwrap();
            assert_eq!(modified, at, "{path}");
        }
    }

    type Write = Box<dyn Fn(&mut TreeWriter<&mut File>)>;

    fn entry(entry_type: EntryType, path: &'static str, link: Option<PathBuf>) -> Write {
        Box::new(move |tree| {
            let mut header = header(entry_type, 0o666, 0);
            // The writer of headers refuses what an attacker writes.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            if let Some(link) = &link {
                header.set_link_name(link).unwrap();
            }
            header.set_cksum();
            tree.0.append(&header, io::empty()).unwrap();
        })
    }

    /// Each archive is unpacked into a folder that has a link `left` to a folder outside, and a file `file`.
    #[test]
    fn no_archive_writes_outside_its_folder() {
        use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
        let outside = tempfile::tempdir().unwrap();
        let out = || Some(outside.path().to_owned());
        let evil = || entry(Regular, "out/evil", None);
        let deep: &'static str = Box::leak("d/".repeat(49).into_boxed_str());
        let cases: Vec<(&str, Vec<Write>, &str)> = vec![
            ("through its own link", vec![entry(Symlink, "out", out()), evil()], "out is a link"),
            (
                "through a folder behind its link",
                vec![entry(Symlink, "out", out()), entry(Directory, "out/d", None)],
                "out is a link",
            ),
            (
                "a link behind its link",
                vec![entry(Symlink, "out", out()), entry(Symlink, "out/l", out())],
                "out is a link",
            ),
            ("its link to where it stays", vec![entry(Symlink, "out", Some(".".into())), evil()], "out is a link"),
            (
                "a link after the folder",
                vec![entry(Directory, "out", None), entry(Symlink, "out", out()), evil()],
                "out: ",
            ),
            ("a link that is there", vec![entry(Regular, "left/evil", None)], "left is a link"),
            ("a folder behind a link that is there", vec![entry(Directory, "left/evil", None)], "left is a link"),
            ("to above", vec![entry(Regular, "../evil", None)], "it leads out of the folder"),
            ("from above again", vec![entry(Regular, "a/../../evil", None)], "it leads out of the folder"),
            ("a folder above", vec![entry(Directory, "..", None)], "it leads out of the folder"),
            ("an absolute path", vec![entry(Regular, "/evil", None)], "it leads out of the folder"),
            ("the folder itself", vec![entry(Regular, ".", None)], "it leads out of the folder"),
            ("no name", vec![entry(Regular, "", None)], "it leads out of the folder"),
            ("a hard link", vec![entry(Link, "hard", Some("/etc/passwd".into()))], "neither a file nor a folder"),
            ("a pipe", vec![entry(Fifo, "pipe", None)], "neither a file nor a folder"),
            ("a device", vec![entry(Char, "null", None)], "neither a file nor a folder"),
            ("a disk", vec![entry(Block, "sda", None)], "neither a file nor a folder"),
            ("behind a file", vec![entry(Regular, "file/evil", None)], "file is no folder"),
            ("a file over a folder", vec![entry(Directory, "d", None), entry(Regular, "d", None)], "d: "),
            ("too deep", vec![entry(Directory, deep, None), entry(Regular, deep, None)], ""),
        ];
        assert_eq!(cases.len(), 20);
        for (what, entries, says) in cases {
            let into = tempfile::tempdir().unwrap();
            symlink(outside.path(), into.path().join("left")).unwrap();
            fs::write(into.path().join("file"), "mine").unwrap();
            let beneath = Beneath::new(into.path(), SystemTime::UNIX_EPOCH).unwrap();
            let mut archive = archive(|tree| entries.iter().for_each(|write| write(tree)));
            let error = unpack(&mut archive, &beneath).expect_err(what).to_string();
            assert!(error.contains(says), "{what}: {error}");
            assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "{what}");
            assert_eq!(fs::read_to_string(into.path().join("file")).unwrap(), "mine", "{what}");
            let names =
                fs::read_dir(into.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert!(names.into_iter().all(|name| !name.starts_with(".nodekeeper")), "{what}: it left something behind");
        }
    }

    #[test]
    fn an_archive_replaces_links_and_files_of_its_names_and_leaves_the_rest() {
        let (outside, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("f"), "theirs").unwrap();
        for name in ["file", "folder", "link", "mine"] {
            symlink(outside.path().join("f"), into.path().join(name)).unwrap();
        }
        let mut archive = archive(|tree| {
            tree.file(Path::new("file"), 0o644, 2, &b"hi"[..]).unwrap();
            tree.folder(Path::new("folder"), 0o755).unwrap();
            tree.link(Path::new("link"), Path::new("elsewhere")).unwrap();
        });
        for _ in 0..2 {
            archive.rewind().unwrap();
            unpack(&mut archive, &Beneath::new(into.path(), SystemTime::UNIX_EPOCH).unwrap()).unwrap();
        }
        let of = |name: &str| into.path().join(name);
        assert!(of("file").symlink_metadata().unwrap().is_file() && of("folder").symlink_metadata().unwrap().is_dir());
        assert_eq!(fs::read_link(of("link")).unwrap(), Path::new("elsewhere"));
        assert_eq!(fs::read_link(of("mine")).unwrap(), outside.path().join("f"));
        assert_eq!(fs::read(outside.path().join("f")).unwrap(), b"theirs");
    }

    #[test]
    fn an_archive_that_breaks_off_leaves_no_file_with_its_final_name() {
        let whole = archive(|tree| tree.file(Path::new("f"), 0o644, 2000, &[7; 2000][..]).unwrap());
        whole.set_len(1024).unwrap();
        let into = tempfile::tempdir().unwrap();
        let beneath = Beneath::new(into.path(), SystemTime::UNIX_EPOCH).unwrap();
        let folder = beneath.new_folder(Path::new("o")).unwrap();
        assert!(unpack(&mut { whole }, &folder.beneath).is_err());
        drop(folder);
        assert_eq!(fs::read_dir(into.path()).unwrap().count(), 0);
    }
}
