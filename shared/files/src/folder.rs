//! Walks a folder that a stranger may have made, and may still change.
//!
//! Guarantees: each part of a path is opened from the folder before it, so no link leads a walk out of it; no pipe, socket or
//! device is opened, because the kind of an entry is known before it is opened for reading.
//! Does not: choose what is packed; its caller does.

use crate::allowance::Allowance;
use crate::beneath::{MAX_DEPTH, kind_of};
use crate::digest::{Digest, Digesting};
use crate::tree::TreeWriter;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// The most links that one path leads through, as in the kernel.
const MAX_LINKS: usize = 40;
/// How anything is opened to find out what it is. Neither a link nor a pipe is opened by this.
const BY_PATH: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

pub enum OpenedEntry {
    File(File),
    Folder,
    /// A link, and where it leads.
    Link(PathBuf),
    /// A pipe, a socket or a device.
    Special,
}

/// What a walk does with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selected {
    /// The entry, and all that is in it.
    All,
    /// The entry itself. The walk asks again about each entry in it.
    Alone,
    /// Not the entry itself, but the walk asks about each entry in it.
    Within,
    No,
}

/// Opens what is at this path below a folder. A link is followed if it leads to something in the folder; `path_for_job` is the path by which
/// whoever made the links sees the folder. `None`: there is nothing.
pub fn open_beneath(folder: &Path, path: &Path, path_for_job: &Path) -> io::Result<Option<File>> {
    let folder_file = File::open(folder)?;
    let mut open_folders: Vec<OwnedFd> = Vec::new();
    let mut left = parts(path);
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            open_folders.pop().ok_or_else(|| leads_out(path))?;
            continue;
        }
        let above = open_folders.last().map_or(folder_file.as_fd(), AsFd::as_fd);
        let next = match openat(above, part.as_os_str(), BY_PATH, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if kind_of(&fstat(&next)?) == SFlag::S_IFLNK {
            links += 1;
            let target = PathBuf::from(readlinkat(&next, "")?);
            if links > MAX_LINKS {
                return Err(io::Error::other(format!("{} leads through too many links", path.display())));
            }
            let target = if target.is_absolute() {
                open_folders.clear();
                let below = target.strip_prefix(path_for_job).or_else(|_| target.strip_prefix(folder));
                below.map_err(|_| leads_out(path))?.to_owned()
            } else {
                target
            };
            left.extend(parts(&target));
        } else if open_folders.len() < MAX_DEPTH {
            open_folders.push(next);
        } else {
            return Err(too_deep(path));
        }
    }
    let Some(found) = open_folders.pop() else { return Ok(Some(folder_file)) };
    match kind_of(&fstat(&found)?) {
        SFlag::S_IFREG | SFlag::S_IFDIR => Ok(Some(readable(&found)?)),
        _ => Err(io::Error::other("it is neither a file nor a folder")),
    }
}

fn leads_out(path: &Path) -> io::Error {
    io::Error::other(format!("{} is or leads through a link out of the work directory", path.display()))
}

fn too_deep(path: &Path) -> io::Error {
    io::Error::other(format!("{} lies deeper than {MAX_DEPTH} folders", path.display()))
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |component: Component<'_>| match component {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(part).collect()
}

/// Opens for reading what is known to be a file or a folder.
fn readable(found: &OwnedFd) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    Ok(open(path.as_str(), OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC, Mode::empty())?.into())
}

/// Goes through a folder in the order of the names, each folder before what is in it. `wanted` says of each path which entries are given
/// to `each`.
pub fn walk(
    folder: &File,
    allowance: &mut Allowance,
    wanted: impl Fn(&Path) -> Selected,
    each: &mut impl FnMut(&mut Allowance, &Path, u32, OpenedEntry) -> io::Result<()>,
) -> io::Result<()> {
    let mut open_folders =
        vec![OpenFolder::of(folder.try_clone()?.into(), PathBuf::new(), Selected::Within, allowance)?];
    while let Some(level) = open_folders.last_mut() {
        let Some(name) = level.names.pop() else {
            open_folders.pop();
            continue;
        };
        let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
        let wanted = if level.wanted == Selected::All { Selected::All } else { wanted(&path) };
        if wanted == Selected::No {
            continue;
        }
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let next = match openat(&level.folder, name.as_c_str(), BY_PATH, Mode::empty()) {
            Ok(next) => next,
            // The entry was removed while the folder was read.
            Err(Errno::ENOENT) => continue,
            Err(e) => return Err(failed(e.into())),
        };
        let stat = fstat(&next)?;
        let (mode, kind) = (stat.st_mode & 0o7777, kind_of(&stat));
        let folder = if kind == SFlag::S_IFDIR { Some(readable(&next).map_err(failed)?) } else { None };
        if matches!(wanted, Selected::All | Selected::Alone) {
            let found = match kind {
                SFlag::S_IFREG => OpenedEntry::File(readable(&next).map_err(failed)?),
                SFlag::S_IFDIR => OpenedEntry::Folder,
                SFlag::S_IFLNK => OpenedEntry::Link(readlinkat(&next, "")?.into()),
                _ => OpenedEntry::Special,
            };
            each(allowance, &path, mode, found)?;
        }
        let Some(folder) = folder else { continue };
        if open_folders.len() >= MAX_DEPTH {
            return Err(too_deep(&path));
        }
        open_folders.push(OpenFolder::of(folder.into(), path, wanted, allowance)?);
    }
    Ok(())
}

/// An open folder, and the names in it that were not visited yet.
struct OpenFolder {
    folder: OwnedFd,
    path: PathBuf,
    wanted: Selected,
    /// In reverse order: the last name is visited first.
    names: Vec<CString>,
}

impl OpenFolder {
    fn of(folder: OwnedFd, path: PathBuf, wanted: Selected, allowance: &mut Allowance) -> io::Result<Self> {
        let mut listed = Dir::from_fd(folder.try_clone()?)?;
        let mut names = Vec::new();
        for entry in listed.iter() {
            let name = entry?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                allowance.take_entry()?;
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { folder, path, wanted, names })
    }
}

/// The entries of a folder that are not stored: pipes, sockets and devices, and links where no link can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Whether links can be among them.
    has_links: bool,
    first: Vec<PathBuf>,
    more: usize,
}

impl LeftOut {
    /// How many are named.
    const NAMED: usize = 3;

    /// Links can be among them.
    pub fn or_links() -> Self {
        Self { has_links: true, ..Self::default() }
    }

    /// Counts this path; the first three are named.
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

    /// `a, b, c and 7 more`
    pub fn names(&self) -> String {
        let names: Vec<String> =
            self.first.iter().map(|path| path.display().to_string().escape_debug().to_string()).collect();
        let more = if self.more == 0 { String::new() } else { format!(" and {} more", self.more) };
        format!("{}{more}", names.join(", "))
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let links = if self.has_links { "links to no file of the work directory, " } else { "" };
        write!(f, "its {links}pipes, sockets and devices: {}", self.names())
    }
}

/// Small files up to this many bytes, and at most so many bytes of them, are in memory from the first packing to the next.
const SMALL: u64 = 64 << 10;
const MOST_SMALL: u64 = 16 << 20;

/// What was packed, by its path.
pub type PackedEntries = BTreeMap<PathBuf, PackedEntry>;

#[derive(Debug, Default)]
pub struct PackedEntry {
    /// Of a file.
    bytes: u64,
    /// What a small file had.
    content: Option<Vec<u8>>,
}

/// A packed folder.
pub struct Packed<W> {
    pub archive: W,
    pub digest: Digest,
    pub left_out: LeftOut,
    pub entries: PackedEntries,
}

/// [`pack`] into a file, within the bounds of any folder. The file is at its beginning.
pub fn pack_folder(folder: &File, to: File, choice: &Choice<'_>) -> io::Result<Packed<File>> {
    let Packed { archive, digest, left_out, entries } =
        pack(folder, BufWriter::new(to), &mut Allowance::default(), choice)?;
    let mut archive = archive.into_inner().map_err(io::IntoInnerError::into_error)?;
    archive.rewind()?;
    Ok(Packed { archive, digest, left_out, entries })
}

/// Which part of a folder is packed, and how.
pub struct Choice<'a> {
    /// What stands before each name in the archive.
    pub prefix: &'a str,
    pub wanted: &'a dyn Fn(&Path) -> Selected,
    /// The file that is packed in place of the link at this path with this target; `None` for the link itself.
    pub follow: &'a dyn Fn(&Path, &Path) -> io::Result<Option<File>>,
    /// What was packed of the folder before: nothing else is packed, of each file only as many bytes, and small files as they were. So a
    /// log that grows, a file that is new, and a small one that is replaced make no other archive. `None` for all that is there.
    pub before: Option<&'a PackedEntries>,
}

impl Choice<'_> {
    /// All of a folder, with its links as they are.
    pub const ALL: Choice<'static> =
        Choice { prefix: "", wanted: &|_: &Path| Selected::All, follow: &|_: &Path, _: &Path| Ok(None), before: None };

    /// What is packed for what was found at this path, with its mode.
    fn followed(&self, path: &Path, mode: u32, found: OpenedEntry) -> io::Result<(u32, OpenedEntry)> {
        let OpenedEntry::Link(target) = found else { return Ok((mode, found)) };
        match (self.follow)(path, &target)? {
            Some(file) => Ok((file.metadata()?.permissions().mode(), OpenedEntry::File(file))),
            None => Ok((mode, OpenedEntry::Link(target))),
        }
    }
}

/// Packs a part of a folder. The sizes of all its files are added up before the first one is read. An error if the allowance is
/// too small, before anything is written, or if a file gets shorter meanwhile. For the first packing also if a small file changes or
/// one appears before all is read: so there was a moment at which the folder was as this archive and an equal one of the next packing.
pub fn pack<W: Write>(folder: &File, to: W, allowance: &mut Allowance, choice: &Choice<'_>) -> io::Result<Packed<W>> {
    let mut bytes = 0_u64;
    walk(folder, &mut allowance.again(), choice.wanted, &mut |allowance, path, mode, found| {
        if let (_, OpenedEntry::File(file)) = choice.followed(path, mode, found)? {
            bytes = bytes.saturating_add(file.metadata()?.len());
        }
        allowance.check(bytes)
    })?;
    let mut tree = TreeWriter::new(Digesting::new(to));
    let (mut left_out, mut entries, mut small) = (LeftOut::default(), PackedEntries::new(), 0);
    walk(folder, allowance, choice.wanted, &mut |allowance, path, mode, found| {
        let before = choice.before.map(|before| before.get(path));
        if before.is_some_and(|entry| entry.is_none()) {
            return Ok(());
        }
        let ((mode, found), name) = (choice.followed(path, mode, found)?, Path::new(choice.prefix).join(path));
        let mut entry = PackedEntry::default();
        match found {
            OpenedEntry::Folder => tree.folder(&name, mode)?,
            OpenedEntry::Link(target) => tree.link(&name, &target)?,
            OpenedEntry::Special => left_out.add(&name),
            OpenedEntry::File(file) => match before.flatten() {
                Some(PackedEntry { bytes, content: Some(content) }) => {
                    tree.file(&name, mode, *bytes, content.as_slice())?
                }
                Some(PackedEntry { bytes, .. }) => tree.file(&name, mode, *bytes, allowance.reading(file))?,
                None => {
                    entry.bytes = file.metadata()?.len();
                    if entry.bytes <= SMALL && small + entry.bytes <= MOST_SMALL {
                        small += entry.bytes;
                        let content = entry.content.insert(beginning(allowance.reading(file), entry.bytes)?);
                        tree.file(&name, mode, entry.bytes, content.as_slice())?;
                    } else {
                        tree.file(&name, mode, entry.bytes, allowance.reading(file))?;
                    }
                }
            },
        }
        entries.insert(path.to_owned(), entry);
        Ok(())
    })?;
    if choice.before.is_none() {
        unchanged(folder, &mut allowance.again(), choice, &entries)?;
    }
    let (mut archive, digest) = tree.finish()?.finish()?;
    archive.flush()?;
    Ok(Packed { archive, digest, left_out, entries })
}

fn beginning(file: impl Read, bytes: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(bytes).read_to_end(&mut content)?;
    Ok(content)
}

/// An error if a small file is another one than when it was packed, or if something appeared: an earlier file may name it.
fn unchanged(folder: &File, allowance: &mut Allowance, choice: &Choice<'_>, entries: &PackedEntries) -> io::Result<()> {
    walk(folder, allowance, choice.wanted, &mut |allowance, path, mode, found| {
        let changed = |how: &str| Err(io::Error::other(format!("{} {how} while its folder is read", path.display())));
        let Some(entry) = entries.get(path) else { return changed("appears") };
        match (choice.followed(path, mode, found)?, &entry.content) {
            ((_, OpenedEntry::File(file)), Some(content)) => {
                let is_equal = beginning(allowance.reading(file), entry.bytes)? == *content;
                if is_equal { Ok(()) } else { changed("changes") }
            }
            _ => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allowance::{MAX_BYTES, OverBounds};
    use crate::beneath::Beneath;
    use crate::tree::unpack;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::time::SystemTime;

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
        let pack =
            |dir: &Path| pack_folder(&File::open(dir).unwrap(), tempfile::tempfile().unwrap(), &Choice::ALL).unwrap();
        let (Packed { mut archive, digest, left_out, .. }, same) = (pack(one.path()), pack(other.path()));
        assert_eq!((digest, &left_out), (same.digest, &same.left_out));
        assert_eq!(left_out.to_string(), "its pipes, sockets and devices: b/socket, pipe");
        let out = tempfile::tempdir().unwrap();
        unpack(&mut archive, &Beneath::new(out.path(), SystemTime::UNIX_EPOCH).unwrap()).unwrap();
        assert_eq!(fs::read_to_string(out.path().join("b/f")).unwrap(), "b");
        assert_eq!(fs::read_link(out.path().join("link")).unwrap(), Path::new("a/f"));
        assert!(!out.path().join("pipe").exists());
    }

    #[test]
    fn what_grows_and_what_is_new_is_no_change_and_all_else_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("log", "one\n");
        write("step", "1");
        let folder = File::open(dir.path()).unwrap();
        let packed = |before: Option<&PackedEntries>| {
            let choice = Choice { before, ..Choice::ALL };
            pack(&folder, io::sink(), &mut Allowance::default(), &choice)
        };
        let first = packed(None).unwrap();
        write("log", "one\ntwo\n");
        write("new", "x");
        assert_eq!(packed(Some(&first.entries)).unwrap().digest, first.digest);
        assert_ne!(packed(None).unwrap().digest, first.digest);
        // A small file is stored as it was, and a large one is read again.
        write("step", "2");
        assert_eq!(packed(Some(&first.entries)).unwrap().digest, first.digest);
        let large = |text: &str| write("weights", &text.repeat(SMALL as usize + 1));
        large("a");
        let first = packed(None).unwrap();
        large("b");
        assert_ne!(packed(Some(&first.entries)).unwrap().digest, first.digest);
        write("weights", "");
        assert!(packed(Some(&first.entries)).is_err(), "it is shorter");
        fs::remove_file(dir.path().join("weights")).unwrap();
        assert_ne!(packed(Some(&first.entries)).unwrap().digest, first.digest);
        fs::remove_file(dir.path().join("new")).unwrap();
        // The sizes have been added up, and the second file is read.
        let meanwhile = |name: &str| {
            let asked = std::cell::Cell::new(0);
            let makes = |_: &Path| {
                asked.set(asked.get() + 1);
                if asked.get() == 4 {
                    write(name, "x");
                }
                Selected::All
            };
            let choice = Choice { wanted: &makes, ..Choice::ALL };
            pack(&folder, io::sink(), &mut Allowance::default(), &choice).err().unwrap().to_string()
        };
        assert_eq!(meanwhile("later"), "later appears while its folder is read");
        fs::remove_file(dir.path().join("later")).unwrap();
        assert_eq!(meanwhile("log"), "log changes while its folder is read");
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
    fn a_link_is_followed_only_to_what_is_in_the_folder() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(secret.path().join("key"), "secret").unwrap();
        let link = |to: &Path, name: &str| symlink(to, dir.path().join(name)).unwrap();
        link(secret.path(), "out");
        link(&secret.path().join("key"), "key");
        link(Path::new("../../../../../../etc/passwd"), "up");
        link(Path::new("round"), "round");
        for path in ["out", "out/key", "key", "up", "round"] {
            let refused = open_beneath(dir.path(), Path::new(path), Path::new("/work"));
            assert!(refused.as_ref().is_err_and(|e| e.to_string().contains("link")), "{path}: {refused:?}");
        }
        let mut seen = Vec::new();
        let all = |_: &Path| Selected::All;
        walk(&File::open(dir.path()).unwrap(), &mut Allowance::default(), all, &mut |_, path, _, found| {
            assert!(matches!(found, OpenedEntry::Link(_)));
            seen.push(path.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, ["key", "out", "round", "up"].map(Path::new));
        fs::create_dir_all(dir.path().join("runs/7")).unwrap();
        fs::write(dir.path().join("runs/7/f"), "kept").unwrap();
        link(Path::new("runs/7"), "latest");
        link(Path::new("../latest/f"), "runs/up");
        link(Path::new("/work/runs/up"), "in-container");
        link(&dir.path().join("runs/7/f"), "whole");
        link(Path::new("gone"), "dangling");
        for path in ["latest/f", "runs/up", "in-container", "whole"] {
            let mut file = open_beneath(dir.path(), Path::new(path), Path::new("/work")).unwrap().unwrap();
            assert_eq!(io::read_to_string(&mut file).unwrap(), "kept", "{path}");
        }
        for path in ["no/file", "dangling", "latest/f/x"] {
            assert!(open_beneath(dir.path(), Path::new(path), Path::new("/work")).unwrap().is_none(), "{path}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let over = |allowance: &mut Allowance, sizes: &[u64]| {
            for (n, bytes) in sizes.iter().enumerate() {
                File::create(dir.path().join(n.to_string())).unwrap().set_len(*bytes).unwrap();
            }
            let packed = pack(&File::open(dir.path()).unwrap(), io::sink(), allowance, &Choice::ALL);
            packed.map(|packed| packed.digest.bytes).map_err(|error| OverBounds::of(&error))
        };
        nix::unistd::mkfifo(&dir.path().join("pipe"), Mode::S_IRWXU).unwrap();
        let work = |bytes: u64, entries: u64| Allowance::new(bytes, entries);
        // 3 TiB of holes together: reading them would take many minutes.
        let holes = [1 << 40, 1 << 40, 1 << 40];
        let (mut allowance, _interest) = work(MAX_BYTES, 10);
        assert_eq!(over(&mut allowance, &holes), Err(Some(OverBounds::Bytes(MAX_BYTES))));
        let (mut allowance, _interest) = work(MAX_BYTES, 3);
        assert_eq!(over(&mut allowance, &[1, 1, 1]), Err(Some(OverBounds::Entries(3))));
        let (mut allowance, _interest) = work(MAX_BYTES, 4);
        assert!(over(&mut allowance, &[1, 1, 1]).is_ok());
        let (mut allowance, interest) = work(MAX_BYTES, 4);
        drop(interest);
        assert_eq!(over(&mut allowance, &[1, 1, 1]), Err(Some(OverBounds::Cancelled)));
    }

    #[test]
    fn a_folder_that_is_too_deep_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("d/".repeat(MAX_DEPTH + 2))).unwrap();
        let all = |_: &Path| Selected::All;
        assert!(
            walk(&File::open(dir.path()).unwrap(), &mut Allowance::default(), all, &mut |_, _, _, _| Ok(())).is_err()
        );
    }
}
