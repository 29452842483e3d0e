//! Walks a folder that a stranger may have made, and may still change.
//!
//! Each part of a path is opened from the folder before it, and never through a link.

use crate::digest::{Digest, Digesting};
use crate::tree::TreeWriter;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;
use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The most folders within each other.
const MAX_DEPTH: usize = 100;

#[derive(Debug)]
pub enum Found {
    File(File),
    Folder,
    /// A link, and where it leads.
    Link(PathBuf),
    /// A pipe, a socket or a device.
    Special,
}

/// Opens what is at this path below a folder, without following a link. `None`: there is nothing.
pub fn open_beneath(folder: &Path, path: &str) -> io::Result<Option<File>> {
    let mut at: OwnedFd = File::open(folder)?.into();
    for part in path.split('/') {
        let name = CString::new(part)?;
        at = match open(&at, &name) {
            Ok(next) => next,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(Errno::ELOOP) => return Err(io::Error::other(format!("{part} is a link, which is not followed"))),
            Err(e) => return Err(e.into()),
        };
    }
    let file = File::from(at);
    let kind = file.metadata()?.file_type();
    match kind.is_file() || kind.is_dir() {
        true => Ok(Some(file)),
        false => Err(io::Error::other("it is neither a file nor a folder")),
    }
}

/// Never waits for the other end of a pipe.
fn open(folder: &impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(folder, name, OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC, Mode::empty())
}

/// Goes through a folder in the order of the names, each folder before what is in it.
pub fn walk(folder: &File, each: &mut impl FnMut(&Path, u32, Found) -> io::Result<()>) -> io::Result<()> {
    let mut open_folders = vec![Level::of(folder.try_clone()?.into(), PathBuf::new())?];
    while let Some(level) = open_folders.last_mut() {
        let Some(name) = level.names.pop() else {
            open_folders.pop();
            continue;
        };
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let (mode, found, below) = match open(&level.folder, &name).map(File::from) {
            Ok(next) => {
                let metadata = next.metadata()?;
                let (kind, mode) = (metadata.file_type(), metadata.permissions().mode());
                match (kind.is_file(), kind.is_dir()) {
                    (true, _) => (mode, Found::File(next), None),
                    (false, true) => (mode, Found::Folder, Some(next)),
                    (false, false) => (mode, Found::Special, None),
                }
            }
            Err(Errno::ELOOP) => (0o777, Found::Link(readlinkat(&level.folder, name.as_c_str())?.into()), None),
            // A socket, or a device that is not there.
            Err(Errno::ENXIO | Errno::ENODEV) => (0, Found::Special, None),
            // It went away.
            Err(Errno::ENOENT) => continue,
            Err(e) => return Err(io::Error::other(format!("{}: {e}", path.display()))),
        };
        each(&path, mode, found)?;
        let Some(folder) = below else { continue };
        if open_folders.len() >= MAX_DEPTH {
            return Err(io::Error::other(format!("{} lies deeper than {MAX_DEPTH} folders", path.display())));
        }
        open_folders.push(Level::of(folder.into(), path)?);
    }
    Ok(())
}

/// An open folder, and the names in it that were not visited yet.
struct Level {
    folder: OwnedFd,
    path: PathBuf,
    /// In reverse order: the last name is visited first.
    names: Vec<CString>,
}

impl Level {
    fn of(folder: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let mut listed = Dir::from_fd(folder.try_clone()?)?;
        let mut names = Vec::new();
        for entry in listed.iter() {
            let name = entry?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { folder, path, names })
    }
}

/// The pipes, sockets and devices of a folder, which get into no archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    first: Vec<PathBuf>,
    more: usize,
}

impl LeftOut {
    /// How many are named.
    const NAMED: usize = 3;

    pub fn add(&mut self, path: &Path) {
        if self.first.len() < Self::NAMED {
            self.first.push(path.to_owned());
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    pub const fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> =
            self.first.iter().map(|path| path.display().to_string().escape_debug().to_string()).collect();
        write!(f, "its pipes, sockets and devices: {}", names.join(", "))?;
        if self.more == 0 { Ok(()) } else { write!(f, " and {} more", self.more) }
    }
}

/// A packed folder. The archive file is at its beginning.
#[derive(Debug)]
pub struct Packed {
    pub archive: File,
    pub digest: Digest,
    pub left_out: LeftOut,
}

pub fn pack_folder(folder: &File, to: File) -> io::Result<Packed> {
    let mut tree = TreeWriter::new(Digesting::new(BufWriter::new(to)));
    let mut left_out = LeftOut::default();
    walk(folder, &mut |path, mode, found| match found {
        Found::Folder => tree.folder(path, mode),
        Found::Link(target) => tree.link(path, &target),
        Found::File(file) => tree.file(path, mode, file.metadata()?.len(), file),
        Found::Special => {
            left_out.add(path);
            Ok(())
        }
    })?;
    let (mut written, digest) = tree.finish()?.finish()?;
    written.flush()?;
    let mut archive = written.into_inner().map_err(io::IntoInnerError::into_error)?;
    archive.rewind()?;
    Ok(Packed { archive, digest, left_out })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::unpack;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn equal_folders_have_equal_archives_and_what_comes_out_is_what_went_in() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (dir, order) in [(&one, ["b", "a"]), (&other, ["a", "b"])] {
            for name in order {
                fs::create_dir(dir.path().join(name)).unwrap();
                fs::write(dir.path().join(name).join("f"), name).unwrap();
            }
            symlink("a/f", dir.path().join("link")).unwrap();
            nix::unistd::mkfifo(&dir.path().join("pipe"), Mode::S_IRWXU).unwrap();
            UnixListener::bind(dir.path().join("b/socket")).unwrap();
        }
        let pack = |dir: &Path| pack_folder(&File::open(dir).unwrap(), tempfile::tempfile().unwrap()).unwrap();
        let (Packed { mut archive, digest, left_out }, same) = (pack(one.path()), pack(other.path()));
        assert_eq!((digest, &left_out), (same.digest, &same.left_out));
        assert_eq!(left_out.to_string(), "its pipes, sockets and devices: b/socket, pipe");
        let out = tempfile::tempdir().unwrap();
        unpack(&mut archive, out.path()).unwrap();
        assert_eq!(fs::read_to_string(out.path().join("b/f")).unwrap(), "b");
        assert_eq!(fs::read_link(out.path().join("link")).unwrap(), Path::new("a/f"));
        assert!(!out.path().join("pipe").exists());
    }

    #[test]
    fn of_many_that_are_left_out_three_are_named() {
        let mut left_out = LeftOut::default();
        assert!(left_out.is_empty());
        for name in ["a", "b\n", "c", "d", "e"] {
            left_out.add(Path::new(name));
        }
        assert_eq!(left_out.to_string(), "its pipes, sockets and devices: a, b\\n, c and 2 more");
    }

    #[test]
    fn no_link_is_followed() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(secret.path().join("key"), "secret").unwrap();
        symlink(secret.path(), dir.path().join("out")).unwrap();
        symlink(secret.path().join("key"), dir.path().join("key")).unwrap();
        for path in ["out", "out/key", "key"] {
            let refused = open_beneath(dir.path(), path);
            assert!(refused.as_ref().is_err_and(|e| e.to_string().contains("link")), "{path}: {refused:?}");
        }
        assert!(open_beneath(dir.path(), "no/file").unwrap().is_none());
        let mut seen = Vec::new();
        walk(&File::open(dir.path()).unwrap(), &mut |path, _, found| {
            assert!(matches!(found, Found::Link(_)));
            seen.push(path.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [Path::new("key"), Path::new("out")]);
    }

    #[test]
    fn a_folder_that_is_too_deep_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("d/".repeat(MAX_DEPTH + 2))).unwrap();
        assert!(walk(&File::open(dir.path()).unwrap(), &mut |_, _, _| Ok(())).is_err());
    }
}
