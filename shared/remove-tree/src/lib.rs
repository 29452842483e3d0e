//! Removes a directory tree that somebody else made: a job, which may be careless or hostile.
//!
//! Flow: depth first, with an open directory for each level. A directory that lies `MAX_LEVELS` deep is moved to the top of
//! the tree, and removed from there.
//! Guarantees: stack, memory and open files are bounded, however deep or wide the tree is; every step is relative to an
//! open directory, so no symbolic link is followed, even if one takes the place of a directory meanwhile; no mount is
//! entered; an entry that cannot be removed does not keep the others; a directory that its owner closed is opened
//! again.
//! Does not: guard the path to the tree itself, which must be in a directory that only trusted users write to; or remove what
//! is written while it works: the writers must have ended.

use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The levels that are open at the same time. Each has two open files.
const MAX_LEVELS: usize = 16;

/// How a directory is opened to list it.
const LIST: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Removes the file or directory at `path`, with everything below it. What does not exist counts as removed. The error names
/// the first entry that could not be removed; the rest is removed nevertheless.
///
/// It blocks until the tree is removed: call it where that may take seconds.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("{} has no name to remove", path.display()));
    let name = CString::new(path.file_name().ok_or_else(invalid)?.as_bytes())?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let parent = match openat(AT_FDCWD, parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(parent) => parent,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    match Removal::default().run(&parent, &name) {
        None => Ok(()),
        Some((entry, errno)) => {
            let kind = io::Error::from(errno).kind();
            let (entry, why) = (entry.to_string_lossy(), explained(errno));
            Err(io::Error::new(kind, format!("{} cannot be removed: {entry:?}: {why}", path.display())))
        }
    }
}

/// Why an entry stays.
fn explained(errno: Errno) -> &'static str {
    match errno {
        Errno::EXDEV | Errno::EBUSY => "something is mounted there: unmount it",
        other => other.desc(),
    }
}

struct Level {
    fd: OwnedFd,
    entries: OwningIter,
    /// Its name in the level above.
    name: CString,
    /// Whether the present pass over its entries removed one, or added one.
    changed: bool,
    /// Whether an entry of it stays.
    keeps: bool,
}

impl Level {
    fn new(fd: OwnedFd, name: CString) -> Result<Self, Errno> {
        let entries = entries(&fd)?;
        Ok(Self { fd, entries, name, changed: false, keeps: false })
    }

    /// Begins with the first entry again.
    fn again(&mut self) -> Result<(), Errno> {
        self.entries = entries(&self.fd)?;
        (self.changed, self.keeps) = (false, false);
        Ok(())
    }
}

/// The entries of a directory, from the first one on.
fn entries(fd: &OwnedFd) -> Result<OwningIter, Errno> {
    Ok(Dir::openat(fd, c".", LIST, Mode::empty())?.into_iter())
}

#[derive(Default)]
struct Removal {
    /// The first entry that could not be removed, and why.
    first_error: Option<(CString, Errno)>,
    levels: Vec<Level>,
    /// The number of the next directory that is moved to the top.
    moved: u64,
}

impl Removal {
    fn run(mut self, parent: &OwnedFd, name: &CStr) -> Option<(CString, Errno)> {
        match open_directory(parent, name) {
            Ok(fd) => match Level::new(fd, name.to_owned()) {
                Ok(top) => self.levels.push(top),
                Err(errno) => return Some((name.to_owned(), errno)),
            },
            Err(Errno::ENOENT) => return None,
            // Not a directory, or a symbolic link.
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                let removed = unlinkat(parent, name, UnlinkatFlags::NoRemoveDir);
                return removed.err().filter(|errno| *errno != Errno::ENOENT).map(|errno| (name.to_owned(), errno));
            }
            Err(errno) => return Some((name.to_owned(), errno)),
        }
        while let Some(level) = self.levels.last_mut() {
            match level.entries.next() {
                Some(Ok(entry)) if [c".", c".."].contains(&entry.file_name()) => {}
                Some(Ok(entry)) => self.entry(entry.file_name(), entry.file_type()),
                Some(Err(errno)) => {
                    let name = level.name.clone();
                    self.keep(&name, errno);
                    self.end_of_level(parent);
                }
                None => self.end_of_level(parent),
            }
        }
        self.first_error
    }

    /// Removes an entry of the lowest open level, or opens it as the next level.
    fn entry(&mut self, name: &CStr, kind: Option<Type>) {
        let is_deep = self.levels.len() >= MAX_LEVELS;
        let Some(level) = self.levels.last_mut() else { return };
        if kind != Some(Type::Directory) {
            match unlinkat(&level.fd, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => return level.changed = true,
                // Not every file system says what is a directory.
                Err(Errno::EISDIR) => {}
                Err(errno) => return self.keep(name, errno),
            }
        }
        // A directory that is only moved is opened first too: without the rights of root, a closed directory cannot be
        // moved.
        match open_directory(&level.fd, name) {
            Ok(_) if is_deep => self.move_to_top(name),
            Ok(fd) => match Level::new(fd, name.to_owned()) {
                Ok(below) => self.levels.push(below),
                Err(errno) => self.keep(name, errno),
            },
            Err(Errno::ENOENT) => level.changed = true,
            Err(errno) => self.keep(name, errno),
        }
    }

    /// Moves a directory of the lowest open level to the top, where a later pass finds it.
    fn move_to_top(&mut self, name: &CStr) {
        let Self { levels, moved, .. } = self;
        let [top, .., lowest] = levels.as_mut_slice() else { return };
        let renamed = loop {
            let free = CString::new(format!(".moved-{moved}")).unwrap_or_default();
            *moved += 1;
            match renameat(&lowest.fd, name, &top.fd, free.as_c_str()) {
                // The job, or an earlier attempt, has an entry of this name.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR) => {}
                renamed => break renamed,
            }
        };
        match renamed {
            Ok(()) => (top.changed, lowest.changed) = (true, true),
            Err(errno) => self.keep(name, errno),
        }
    }

    /// After the last entry of the lowest open level: removes it, or passes over it again if there is more.
    fn end_of_level(&mut self, parent: &OwnedFd) {
        let Some(mut level) = self.levels.pop() else { return };
        // Only the top gets new entries, so only there another pass may help although an entry stays.
        let may_pass_again = level.changed && (!level.keeps || self.levels.is_empty());
        let removed = if level.keeps {
            Err(Errno::ENOTEMPTY)
        } else {
            let above = self.levels.last().map_or(parent, |above| &above.fd);
            unlinkat(above, level.name.as_c_str(), UnlinkatFlags::RemoveDir)
        };
        match removed {
            Ok(()) | Err(Errno::ENOENT) => match self.levels.last_mut() {
                Some(above) => above.changed = true,
                // A later pass removed what an earlier one could not.
                None => self.first_error = None,
            },
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if may_pass_again => match level.again() {
                Ok(()) => self.levels.push(level),
                Err(errno) => self.keep(&level.name, errno),
            },
            Err(errno) => self.keep(&level.name, errno),
        }
    }

    /// Notes that an entry of the lowest open level stays.
    fn keep(&mut self, name: &CStr, errno: Errno) {
        if let Some(level) = self.levels.last_mut() {
            level.keeps = true;
        }
        self.first_error.get_or_insert_with(|| (name.to_owned(), errno));
    }
}

/// Opens a directory to remove what is in it. A symbolic link or another file is `ENOTDIR` or `ELOOP`, a mount `EXDEV`.
fn open_directory(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let fd = match open_below(parent, name, LIST) {
        Err(Errno::EACCES) => {
            let closed = open_below(parent, name, LIST | OFlag::O_PATH)?;
            // An `O_PATH` descriptor cannot change the mode itself, but its path can.
            let path = format!("/proc/self/fd/{}", closed.as_raw_fd());
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(|_| Errno::EACCES)?;
            open_below(parent, name, LIST)?
        }
        opened => opened?,
    };
    if fstat(&fd)?.st_mode & 0o700 != 0o700 {
        // Only the owner may do so. If it matters, the next step says why it fails.
        let _best_effort = fchmod(&fd, Mode::S_IRWXU);
    }
    Ok(fd)
}

fn open_below(parent: &OwnedFd, name: &CStr, flags: OFlag) -> Result<OwnedFd, Errno> {
    let only_below = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_XDEV | ResolveFlag::RESOLVE_NO_SYMLINKS;
    openat2(parent, name, OpenHow::new().flags(flags).resolve(only_below))
}
