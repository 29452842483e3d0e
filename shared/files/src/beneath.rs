//! Writes beneath one folder, whatever is in it.
//!
//! Each part of a path is opened from the folder before it, and never through a link. So a link that an earlier job left, or that
//! somebody makes meanwhile, leads nowhere.
//!
//! Guarantees: nothing outside the folder is written; a file or a link has its name when it is whole, and takes the place of
//! the one that had this name; all of it has the time that the caller gave.
//! Does not: sync anything to the disk, or replace a folder by a file.

use model::rng::Rng;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, fstatat, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use remove_tree::remove_tree;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The most folders within each other.
pub const MAX_DEPTH: usize = 100;

/// A folder beneath which everything is written.
pub struct Beneath {
    root: File,
    /// The time of all that is written.
    at: SystemTime,
}

/// What has a path beneath a folder.
pub enum PathEntry {
    Nothing,
    File(File),
    EmptyFolder,
    Folder,
    /// A link, a pipe, a socket or a device.
    Other,
}

/// A name in an open folder.
struct FolderEntry {
    folder: File,
    name: OsString,
}

/// A file that is not whole yet. Without [`NewFile::finish`] it is removed.
pub struct NewFile {
    temporary: Temporary,
    pub file: File,
    at: SystemTime,
}

/// A folder that is not whole yet. Without [`NewFolder::finish`] it is removed.
pub struct NewFolder {
    temporary: Temporary,
    pub beneath: Beneath,
}

impl Beneath {
    /// This folder, which exists. Links in its own path are followed. What is written below it gets the time `at`. An error if
    /// it is no folder.
    pub fn new(root: &Path, at: SystemTime) -> io::Result<Self> {
        let root = File::options().read(true).open(root)?;
        if root.metadata()?.is_dir() { Ok(Self { root, at }) } else { Err(Errno::ENOTDIR.into()) }
    }

    /// What has this path now. The folders above it are made.
    pub fn there(&self, path: &Path) -> io::Result<PathEntry> {
        let entry = self.entry(path)?;
        match kind(&entry.folder, &entry.name) {
            Err(Errno::ENOENT) => Ok(PathEntry::Nothing),
            Ok(SFlag::S_IFREG) => Ok(PathEntry::File(open(&entry.folder, &entry.name, OFlag::O_RDONLY)?)),
            Ok(SFlag::S_IFDIR) => {
                let mut listed = Dir::from_fd(open(&entry.folder, &entry.name, OFlag::O_DIRECTORY)?.into())?;
                let mut is_empty = true;
                for entry in listed.iter() {
                    is_empty &= matches!(entry?.file_name().to_bytes(), b"." | b"..");
                }
                Ok(if is_empty { PathEntry::EmptyFolder } else { PathEntry::Folder })
            }
            Ok(_) => Ok(PathEntry::Other),
            Err(e) => Err(e.into()),
        }
    }

    /// A file that gets this path when it is whole. The folders above it are made.
    pub fn new_file(&self, path: &Path) -> io::Result<NewFile> {
        let temporary = Temporary::at(self.entry(path)?);
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(&temporary.entry.folder, temporary.name.as_os_str(), flags, mode)?.into();
        Ok(NewFile { temporary, file, at: self.at })
    }

    /// A folder that gets this path when it is whole: nothing, or an empty folder, has it until then.
    pub fn new_folder(&self, path: &Path) -> io::Result<NewFolder> {
        let temporary = Temporary::at(self.entry(path)?);
        mkdirat(&temporary.entry.folder, temporary.name.as_os_str(), Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO)?;
        let root = open(&temporary.entry.folder, &temporary.name, OFlag::O_DIRECTORY)?;
        Ok(NewFolder { temporary, beneath: Self { root, at: self.at } })
    }

    /// The folder with this path, which is made if it is not there. A file or a link in its place is replaced.
    pub fn folder(&self, path: &Path) -> io::Result<Self> {
        let entry = self.entry(path)?;
        match kind(&entry.folder, &entry.name) {
            Ok(SFlag::S_IFDIR) | Err(Errno::ENOENT) => {}
            _ => unlinkat(&entry.folder, entry.name.as_os_str(), UnlinkatFlags::NoRemoveDir)?,
        }
        Ok(Self { root: enter(&entry.folder, &entry.name)?, at: self.at })
    }

    /// Makes a link to `target`, which replaces a file or a link with this path. The folders above it are made. Nothing follows
    /// the link.
    pub fn link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let mut temporary = Temporary::at(self.entry(path)?);
        symlinkat(target, &temporary.entry.folder, temporary.name.as_os_str())?;
        let at = TimeSpec::from_duration(since_1970(self.at));
        utimensat(&temporary.entry.folder, temporary.name.as_os_str(), &at, &at, UtimensatFlags::NoFollowSymlink)?;
        temporary.rename()
    }

    /// Sets the mode of this folder, if it is to have one, and its time. Whatever is written into it later changes its time.
    pub(crate) fn finish(&self, mode: Option<u32>) -> io::Result<()> {
        finish(&self.root, mode, self.at)
    }

    /// Opens the folder in which a path ends, and makes it if it is not there.
    fn entry(&self, path: &Path) -> io::Result<FolderEntry> {
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(leads_out()),
            }
        }
        if names.len() > MAX_DEPTH {
            return Err(io::Error::other(format!("it lies deeper than {MAX_DEPTH} folders")));
        }
        let name = names.pop().ok_or_else(leads_out)?.to_owned();
        let above = names.into_iter().try_fold(self.root.try_clone()?, |at, name| enter(&at, name))?;
        Ok(FolderEntry { folder: above, name })
    }
}

fn leads_out() -> io::Error {
    io::Error::other("it leads out of the folder")
}

/// Opens a folder of an open folder. Makes it if it is not there.
fn enter(at: &File, name: &OsStr) -> io::Result<File> {
    let opened = match open(at, name, OFlag::O_DIRECTORY) {
        Err(Errno::ENOENT) => match mkdirat(at, name, Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO) {
            Ok(()) | Err(Errno::EEXIST) => open(at, name, OFlag::O_DIRECTORY),
            Err(e) => Err(e),
        },
        opened => opened,
    };
    opened.map_err(|e| match (e, kind(at, name)) {
        (Errno::ELOOP | Errno::ENOTDIR, Ok(SFlag::S_IFLNK)) => {
            io::Error::other(format!("{} is a link, which is not followed", Path::new(name).display()))
        }
        (Errno::ENOTDIR, _) => {
            io::Error::new(io::ErrorKind::NotADirectory, format!("{} is no folder", Path::new(name).display()))
        }
        (e, _) => e.into(),
    })
}

/// Never follows a link, and never waits for the other end of a pipe.
fn open(folder: &File, name: &OsStr, flags: OFlag) -> Result<File, Errno> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    openat(folder, name, flags, Mode::empty()).map(File::from)
}

fn kind(folder: &File, name: &OsStr) -> Result<SFlag, Errno> {
    fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map(|there| kind_of(&there))
}

/// Whether it is a file, a folder, a link or something else.
pub(crate) fn kind_of(there: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(there.st_mode) & SFlag::S_IFMT
}

fn finish(file: &File, mode: Option<u32>, at: SystemTime) -> io::Result<()> {
    if let Some(mode) = mode {
        file.set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
    }
    file.set_modified(at)
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// What has a name of its own until it is whole. It is removed with this value.
struct Temporary {
    entry: FolderEntry,
    name: OsString,
    is_whole: bool,
}

impl Temporary {
    fn at(entry: FolderEntry) -> Self {
        let name = format!(".nodekeeper-{:032x}", Rng::real().bits()).into();
        Self { entry, name, is_whole: false }
    }

    fn rename(&mut self) -> io::Result<()> {
        let FolderEntry { folder, name } = &self.entry;
        renameat(folder, self.name.as_os_str(), folder, name.as_os_str())?;
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_whole {
            return;
        }
        let (folder, name) = (&self.entry.folder, self.name.as_os_str());
        if unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) == Err(Errno::EISDIR) {
            let folder: PathBuf = format!("/proc/self/fd/{}", folder.as_raw_fd()).into();
            _ = remove_tree(&folder.join(name));
        }
    }
}

impl NewFile {
    /// The path of the open file. It names this file whatever somebody puts in its place.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Gives the file its mode, its time and its name.
    pub fn finish(mut self, mode: u32) -> io::Result<()> {
        finish(&self.file, Some(mode), self.at)?;
        self.temporary.rename()
    }
}

impl NewFolder {
    /// Gives the folder its name.
    pub fn finish(mut self) -> io::Result<()> {
        self.temporary.rename()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_or_a_folder_has_its_name_only_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let beneath = Beneath::new(dir.path(), SystemTime::UNIX_EPOCH).unwrap();
        let left = || fs::read_dir(dir.path().join("a")).unwrap().count();
        let mut new = beneath.new_file(Path::new("a/f")).unwrap();
        new.file.write_all(b"half").unwrap();
        assert_eq!(fs::read(new.path()).unwrap(), b"half");
        assert!(!dir.path().join("a/f").exists() && left() == 1);
        drop(new);
        assert_eq!(left(), 0);
        let new = beneath.new_folder(Path::new("a/d")).unwrap();
        beneath_file(&new.beneath, "deep/f").finish(0o600).unwrap();
        drop(new);
        assert_eq!(left(), 0);
        let new = beneath.new_folder(Path::new("a/d")).unwrap();
        beneath_file(&new.beneath, "f").finish(0o4755).unwrap();
        fs::create_dir(dir.path().join("a/d")).unwrap();
        new.finish().unwrap();
        assert_eq!(fs::metadata(dir.path().join("a/d/f")).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(left(), 1);
    }

    fn beneath_file(beneath: &Beneath, path: &str) -> NewFile {
        beneath.new_file(Path::new(path)).unwrap()
    }

    #[test]
    fn what_is_there_is_told_and_no_link_is_followed() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("key"), "secret").unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        fs::create_dir_all(dir.path().join("folder/empty")).unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        nix::unistd::mkfifo(&dir.path().join("pipe"), Mode::S_IRWXU).unwrap();
        let beneath = Beneath::new(dir.path(), SystemTime::UNIX_EPOCH).unwrap();
        let there = |path: &str| beneath.there(Path::new(path));
        assert!(matches!(there("nothing").unwrap(), PathEntry::Nothing));
        assert!(matches!(there("./file").unwrap(), PathEntry::File(_)));
        assert!(matches!(there("folder").unwrap(), PathEntry::Folder));
        assert!(matches!(there("folder/empty").unwrap(), PathEntry::EmptyFolder));
        for other in ["link", "pipe"] {
            assert!(matches!(there(other).unwrap(), PathEntry::Other), "{other}");
        }
        let refused = there("link/key").err().unwrap().to_string();
        assert_eq!(refused, "link is a link, which is not followed");
        assert_eq!(there("file/x").err().unwrap().kind(), io::ErrorKind::NotADirectory);
        for out in ["..", "/etc", "", "a/../.."] {
            assert!(there(out).is_err(), "{out:?}");
        }
        assert!(Beneath::new(&dir.path().join("file"), SystemTime::UNIX_EPOCH).is_err());
    }
}
