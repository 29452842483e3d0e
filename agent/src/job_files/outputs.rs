//! Stores the outputs of a job, when no process of the job runs any more, and before the exit record is written.

use super::{JobFiles, patiently};
use crate::blocking::blocking;
use crate::fitness::is_lack_of_room;
use files::{Digest, Found, LeftOut, digest_of, open_beneath, pack_folder, walk};
use model::files::{Content, Form, MAX_CONTENT_BYTES, Output, StoredOutput};
use model::stored::S3Place;
use model::{ClientStatus, EndCause};
use nix::libc::EIO;
use s3::{S3, S3Error};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An output as it was found in the work directory.
#[derive(Debug)]
pub(super) struct Made {
    /// The path of the bytes to store: the file itself, its copy, or the archive of a folder.
    pub(super) path: PathBuf,
    /// The folder that is in the archive; `None` for a file.
    folder: Option<File>,
    pub(super) content: Content,
    /// The entries of a folder that are not stored.
    left_out: LeftOut,
    _open: File,
}

/// How the bytes of a file that is an output are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// From the file: nobody writes it any more.
    File,
    /// From a copy of it as it is now.
    Copy,
    /// From the file. A folder is only read for its digest, because each of its files is stored by itself.
    EachFile,
}

impl JobFiles<'_> {
    /// Stores the outputs of a command that ended for this cause, if they are to be kept. Returns the cause of the alloc's end, and
    /// the stored outputs. A command that succeeded without one of its outputs has failed. `say` gets a note for each output that
    /// is not stored completely.
    pub async fn store(&self, cause: EndCause, mut say: impl FnMut(String)) -> (EndCause, Vec<StoredOutput>) {
        let work = &self.order().work;
        let has_succeeded = cause.client() == ClientStatus::Complete;
        let is_kept = has_succeeded || work.keep_failed && cause.is_of_the_command();
        if !is_kept {
            return (cause, Vec::new());
        }
        let mut stored = Vec::new();
        for output in &work.outputs {
            match self.one(output).await {
                Ok((content, left_out)) => {
                    if !left_out.is_empty() {
                        say(format!("the output {} is kept without {left_out}", output.path));
                    }
                    stored.push(StoredOutput { path: output.path.clone(), content, to: output.to.clone() });
                }
                Err(instead) if has_succeeded => return (instead, stored),
                Err(why) => tracing::warn!(output = output.path, %why, "an output of a failed command is not kept"),
            }
        }
        (cause, stored)
    }

    async fn one(&self, output: &Output) -> Result<(Content, LeftOut), EndCause> {
        let no_output = |why: String| EndCause::NoOutput { path: output.path.clone(), why };
        let (work, path, archive) = (self.alloc.dir.work(), output.path.clone(), self.archive.clone());
        let reading = if output.to.is_some() { Reading::EachFile } else { Reading::File };
        let made = match blocking(move || made(&work, &path, &archive, reading)).await {
            Ok(Some(made)) => made,
            Ok(None) => return Err(no_output("it is not there".to_owned())),
            Err(error) => return Err(unreadable(output, &error)),
        };
        let most = MAX_CONTENT_BYTES >> 40;
        if made.content.bytes > MAX_CONTENT_BYTES {
            return Err(no_output(format!("it has more than {most} TiB: split it")));
        }
        let what = format!("the command has ended, but its output {} cannot be stored", output.path);
        let is_stored = self.put(output, &made, &what).await;
        if made.folder.is_some()
            && reading == Reading::File
            && let Err(error) = fs::remove_file(&made.path)
        {
            tracing::warn!(%error, "the archive of an output is left behind");
        }
        is_stored.map(|()| (made.content, made.left_out))
    }

    async fn put(&self, output: &Output, made: &Made, what: &str) -> Result<(), EndCause> {
        match (&output.to, &made.folder) {
            (None, _) => self.put_content(output, made, what).await,
            (Some(to), None) => {
                let s3 = self.of_job(what).await?;
                put(&s3, to, &made.path, (made.content.bytes, made.content.sha256()), what).await
            }
            (Some(to), Some(folder)) => self.put_folder(output, to, folder, what).await,
        }
    }

    /// Stores the output in the bucket of the cluster, with the rights of the node.
    async fn put_content(&self, output: &Output, made: &Made, what: &str) -> Result<(), EndCause> {
        let lost = |e: S3Error| EndCause::Lost { why: format!("{what}: {e}") };
        let (content, alloc) = (&made.content, self.order().output_s3.as_ref());
        let place =
            alloc.ok_or_else(|| lost(S3Error::Refused("the policy names no bucket any more (output.s3)".into())))?;
        let place = place.content(content.sha256());
        let access = self.of_node().map_err(lost)?;
        let put = async || access.s3().await?.put_file(&place, &made.path, content.bytes, content.sha256()).await;
        // What is denied to the node is not the job's fault. But to run the command again would not help.
        patiently(what, put).await.map_err(|cause| match cause {
            EndCause::Rejected { why } => EndCause::NoOutput { path: output.path.clone(), why },
            other => other,
        })
    }

    /// Stores each file of a folder as an object of its own.
    async fn put_folder(&self, output: &Output, to: &S3Place, folder: &File, what: &str) -> Result<(), EndCause> {
        let no_output = |why: String| EndCause::NoOutput { path: output.path.clone(), why };
        let mut all = Vec::new();
        let listed = walk(folder, &mut |path, _, found| {
            if let Found::File(mut file) = found {
                all.push((path.to_owned(), digest_of(&mut file)?));
            }
            Ok(())
        });
        listed.map_err(|e| unreadable(output, &e))?;
        let s3 = self.of_job(what).await?;
        for (path, digest) in all {
            let bad = || no_output(format!("{:?} can be no key of S3", path.display()));
            let name = path.to_str().ok_or_else(bad)?;
            let place: S3Place = format!("{to}/{name}").parse().map_err(|_| bad())?;
            let file = open_beneath(&in_proc(folder), name).map_err(|e| unreadable(output, &e))?.ok_or_else(bad)?;
            put(&s3, &place, &in_proc(&file), (digest.bytes, &digest.sha256), what).await?;
        }
        Ok(())
    }
}

/// The cause of the end if an output cannot be read or packed: a fault of the machine, or what the command left there.
fn unreadable(output: &Output, error: &io::Error) -> EndCause {
    let why = error.to_string();
    if is_lack_of_room(error) || error.raw_os_error() == Some(EIO) {
        return EndCause::Lost { why: format!("the output {} cannot be read or packed: {why}", output.path) };
    }
    EndCause::NoOutput { path: output.path.clone(), why }
}

async fn put(s3: &S3, to: &S3Place, path: &Path, (bytes, sha256): (u64, &str), what: &str) -> Result<(), EndCause> {
    patiently(&format!("{what} at {to}"), async || s3.put_file(to, path, bytes, sha256).await).await
}

/// The path of an open file. It names this file even if the job has put another one in its place.
fn in_proc(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The output at this path in the work directory; `None` if nothing is there. A folder is packed.
pub(super) fn made(work: &Path, path: &str, archive: &Path, reading: Reading) -> io::Result<Option<Made>> {
    let Some(mut open) = open_beneath(work, path)? else { return Ok(None) };
    let metadata = open.metadata()?;
    let is_folder = metadata.is_dir();
    let mut left_out = LeftOut::default();
    let digest = match (is_folder, reading) {
        (true, reading) => {
            let to = if reading == Reading::EachFile { Path::new("/dev/null") } else { archive };
            let packed = pack_folder(&open, File::options().write(true).create(true).truncate(true).open(to)?)?;
            left_out = packed.left_out;
            packed.digest
        }
        (false, Reading::File | Reading::EachFile) => digest_of(&mut open)?,
        (false, Reading::Copy) => {
            let mut copy = File::options().read(true).write(true).create(true).truncate(true).open(archive)?;
            io::copy(&mut (&open).take(metadata.len()), &mut copy)?;
            copy.rewind()?;
            digest_of(&mut copy)?
        }
    };
    let form = match metadata.permissions().mode() & 0o111 {
        _ if is_folder => Form::Tree,
        0 => Form::File,
        _ => Form::Program,
    };
    let Digest { sha256, bytes } = digest;
    let content = Content::new(form, &sha256, bytes).ok_or_else(|| io::Error::other("it has no digest"))?;
    let is_copied = is_folder && reading == Reading::File || reading == Reading::Copy;
    let path = if is_copied { archive.to_owned() } else { in_proc(&open) };
    let folder = is_folder.then(|| open.try_clone()).transpose()?;
    Ok(Some(Made { path, folder, content, left_out, _open: open }))
}
