//! An output as the command left it in the work directory: a file, a folder, or all that a pattern names.
//!
//! Guarantees: the digest is known before anything is sent; an archive has no file on the disk; a link is followed to what lies in
//! the work directory, and to nothing else.
//! Does not: lock anything: what changes between the digest and the sending is an error of the sending. Files may grow or
//! come, and small ones may change: what is sent has them as they were.

use crate::work::obstacle::{Obstacle, is_of_the_machine};
use files::{
    Allowance, CancelOnDrop, Choice, Digest, LeftOut, MAX_BYTES, MAX_ENTRIES, OpenedEntry, Packed, PackedEntries,
    Selected, digest_within, open_beneath, pack, walk,
};
use model::Content;
use model::files::{Form, Matching, Pattern};
use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::runtime::Handle;

/// How much of an archive is in memory between its writer and its reader, in bytes.
const BUFFER: usize = 256 << 10;

/// Where the work directory is, and where the job sees it.
#[derive(Clone, Debug)]
pub(super) struct WorkDir {
    pub(super) path: PathBuf,
    pub(super) path_for_job: PathBuf,
}

pub(super) struct MadeOutput {
    pub(super) what: OutputForm,
    pub(super) content: Content,
    /// The entries of a folder that are not stored.
    pub(super) left_out: LeftOut,
}

#[derive(Clone, Debug)]
pub(super) enum OutputForm {
    File(Arc<File>),
    Folder(ArchivedOutput),
}

/// What is stored as an archive.
#[derive(Clone, Debug)]
pub(super) struct ArchivedOutput {
    folder: Arc<File>,
    work: WorkDir,
    /// The path of the folder in the work directory.
    at: String,
    /// What stands before each name in the archive. If the output can be a pattern, the names are those in the work directory.
    prefix: String,
    /// What of it is stored; `None` for all.
    pattern: Option<Pattern>,
    /// What its digest is of.
    entries: Option<Arc<PackedEntries>>,
}

/// The output at this path; `None` if nothing is there.
pub(super) fn find(work: &WorkDir, path: &str, allowance: &mut Allowance) -> io::Result<Option<MadeOutput>> {
    let Some(mut what) = open_output(work, path)? else { return Ok(None) };
    let (form, digest, left_out) = match &mut what {
        OutputForm::File(file) => {
            let form = if file.metadata()?.permissions().mode() & 0o111 == 0 { Form::File } else { Form::Program };
            (form, digest_within(&mut again(file)?, allowance)?, LeftOut::default())
        }
        OutputForm::Folder(chosen) => {
            let Some(packed) = chosen.pack(io::sink(), allowance)? else { return Ok(None) };
            chosen.entries = Some(Arc::new(packed.entries));
            (Form::Tree, packed.digest, packed.left_out)
        }
    };
    let Digest { sha256, bytes } = digest;
    let content = Content::new(form, &sha256, bytes).ok_or_else(|| io::Error::other("it has no digest"))?;
    Ok(Some(MadeOutput { what, content, left_out }))
}

fn open_output(work: &WorkDir, path: &str) -> io::Result<Option<OutputForm>> {
    if let Some(file) = open_beneath(&work.path, Path::new(path), &work.path_for_job)? {
        let file = Arc::new(file);
        if !file.metadata()?.is_dir() {
            return Ok(Some(OutputForm::File(file)));
        }
        let prefix = Pattern::of(path).map_or_else(String::new, |_| path.to_owned());
        let (work, at) = (work.clone(), path.to_owned());
        return Ok(Some(OutputForm::Folder(ArchivedOutput {
            folder: file,
            work,
            at,
            prefix,
            pattern: None,
            entries: None,
        })));
    }
    let Some(pattern) = Pattern::of(path) else { return Ok(None) };
    let at = pattern.folder();
    let folder = open_beneath(&work.path, Path::new(&at), &work.path_for_job)?.map(Arc::new);
    let folder = folder.filter(|folder| folder.metadata().is_ok_and(|metadata| metadata.is_dir()));
    let (work, prefix) = (work.clone(), at.clone());
    Ok(folder.map(|folder| {
        OutputForm::Folder(ArchivedOutput { folder, work, at, prefix, pattern: Some(pattern), entries: None })
    }))
}

/// Opens the file once more, to read it from its beginning.
fn again(file: &File) -> io::Result<File> {
    File::open(path_of(file))
}

/// The path of an open file. It names this file even if the job has put another one in its place.
pub(super) fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The fault if something in a work directory cannot be read: the machine's, or what the command left there.
pub(super) fn unreadable(path: &str, error: &io::Error) -> Obstacle {
    if is_of_the_machine(error) {
        return Obstacle::of_node(&format!("the output {path} cannot be read or packed"), error);
    }
    Obstacle::Job(error.to_string())
}

impl ArchivedOutput {
    /// Writes the archive; `None` if the pattern names nothing.
    fn pack<W: Write>(&self, to: W, allowance: &mut Allowance) -> io::Result<Option<Packed<W>>> {
        let is_found = Cell::new(self.pattern.is_none());
        let wanted = |path: &Path| self.wanted(path, &is_found);
        let follow = |path: &Path, target: &Path| self.follow(path, target);
        let before = self.entries.as_deref();
        let choice = Choice { prefix: &self.prefix, wanted: &wanted, follow: &follow, before };
        let packed = pack(&self.folder, to, allowance, &choice)?;
        Ok(is_found.get().then_some(packed))
    }

    fn wanted(&self, path: &Path, is_found: &Cell<bool>) -> Selected {
        let Some(pattern) = &self.pattern else { return Selected::All };
        let full = Path::new(&self.at).join(path);
        let parts: Vec<_> = full.iter().map(OsStr::to_string_lossy).collect();
        match pattern.matches(parts.iter().map(|part| &**part)) {
            Matching::Yes => {
                is_found.set(true);
                Selected::All
            }
            Matching::Alone => {
                is_found.set(true);
                Selected::Alone
            }
            Matching::Above => Selected::Within,
            Matching::No => Selected::No,
        }
    }

    /// The file that a link leads to, if the link would lead nowhere once the archive is unpacked, and the file is in the work directory.
    fn follow(&self, path: &Path, target: &Path) -> io::Result<Option<File>> {
        if self.pattern.is_none() && stays_within(path, target) {
            return Ok(None);
        }
        Ok(self.open(path))
    }

    /// The archive, as it is made.
    pub(super) fn archive(&self) -> Archive {
        let (to, from) = duplex(BUFFER);
        let (mut allowance, interest) = Allowance::new(MAX_BYTES, MAX_ENTRIES);
        let (chosen, handle) = (self.clone(), Handle::current());
        // If this fails, the reader finds an archive that is too short, and that has another digest.
        tokio::task::spawn_blocking(move || {
            chosen.pack(BufWriter::with_capacity(BUFFER, ArchivePipe { to, handle }), &mut allowance).map(drop)
        });
        Archive { from, _interest: interest }
    }

    /// The files of the output, each with its name below the folder, and the entries that are no files.
    pub(super) fn files(&self, allowance: &mut Allowance) -> io::Result<(Vec<PathBuf>, LeftOut)> {
        let (mut names, mut left_out, is_found) = (Vec::new(), LeftOut::or_links(), Cell::new(false));
        walk(&self.folder, allowance, |path| self.wanted(path, &is_found), &mut |_, path, _, found| {
            match found {
                OpenedEntry::File(_) => names.push(path.to_owned()),
                OpenedEntry::Folder => {}
                OpenedEntry::Link(_) if self.open(path).is_some() => names.push(path.to_owned()),
                OpenedEntry::Link(_) | OpenedEntry::Special => left_out.add(path),
            }
            Ok(())
        })?;
        Ok((names, left_out))
    }

    /// A file of it, by its name below the folder.
    pub(super) fn open(&self, name: &Path) -> Option<File> {
        let found = open_beneath(&self.work.path, &Path::new(&self.at).join(name), &self.work.path_for_job);
        found.ok().flatten().filter(|file| file.metadata().is_ok_and(|metadata| metadata.is_file()))
    }
}

/// Whether the link at this path leads to something in its own folder, by its text.
fn stays_within(path: &Path, target: &Path) -> bool {
    let mut depth = path.components().count().saturating_sub(1);
    target.components().all(|part| match part {
        Component::Normal(_) => {
            depth = depth.saturating_add(1);
            true
        }
        Component::CurDir => true,
        Component::ParentDir => depth.checked_sub(1).is_some_and(|above| {
            depth = above;
            true
        }),
        Component::RootDir | Component::Prefix(_) => false,
    })
}

/// Writes for a reader of another task.
struct ArchivePipe {
    to: DuplexStream,
    handle: Handle,
}

impl Write for ArchivePipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.handle.block_on(self.to.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The reading end of an archive that a thread makes. Dropping it ends the thread.
pub(super) struct Archive {
    from: DuplexStream,
    _interest: CancelOnDrop,
}

impl AsyncRead for Archive {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.from).poll_read(context, into)
    }
}
