//! Puts the inputs of a job into its work directory.

use super::cache::Cache;
use super::{JobFiles, patiently};
use crate::blocking::blocking;
use crate::isolation::JobUser;
use files::unpack;
use model::EndCause;
use model::files::{Content, Form, Inputs, Source, WORK_DIRECTORY};
use s3::S3Error;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

impl JobFiles<'_> {
    /// Fetches every input and puts it into the work directory. `user` owns what is placed; `None` for the agent's own user.
    pub async fn place(&self, user: Option<&JobUser>) -> Result<(), EndCause> {
        let work = self.alloc.dir.work();
        // The folder that becomes the work directory comes first, because the other inputs are put into it.
        for (name, source) in in_order(&self.order().work.inputs) {
            let what = format!("the input {name} cannot be read");
            let to = if name == WORK_DIRECTORY { Ok(work.clone()) } else { make_way(&work, name) };
            let to =
                to.map_err(|e| EndCause::Rejected { why: format!("the input {name} cannot be put there: {e}") })?;
            match source {
                Source::Content(content) => self.content(content, &to, &what).await?,
                Source::Object(place) => {
                    let s3 = self.of_job(&what).await?;
                    patiently(&what, async || s3.get_file(place, &to).await).await?;
                }
                Source::Output { job_id, path, .. } => {
                    return Err(EndCause::Rejected { why: format!("{what}: job {job_id} left no output {path}") });
                }
            }
        }
        let given = user.map_or(Ok(()), |user| give_away(&work, user));
        given.map_err(|e| EndCause::NotStarted { why: format!("the inputs cannot be given to the job: {e}") })
    }

    async fn content(&self, content: &Content, to: &Path, what: &str) -> Result<(), EndCause> {
        let lost = |e: S3Error| EndCause::Lost { why: format!("{what}: {e}") };
        let Some(place) = self.order().output_s3.as_ref().map(|alloc| alloc.content(content.sha256())) else {
            return Err(EndCause::Rejected { why: format!("{what}: the policy names no bucket any more (output.s3)") });
        };
        let access = self.of_node().map_err(lost)?;
        let cache = Cache::at(self.source.cache.clone());
        let fetch = async |path: &Path| access.s3().await?.get_file(&place, path).await;
        let now = || SystemTime::from((self.alloc.context.clock)());
        let held = patiently(what, async || cache.get(content, now(), fetch).await).await?;
        let (from, to, form) = (held.path.clone(), to.to_owned(), content.form);
        blocking(move || copy(&from, &to, form)).await.map_err(|e| match e.kind() {
            // Another input is in the way.
            io::ErrorKind::IsADirectory | io::ErrorKind::AlreadyExists => {
                EndCause::Rejected { why: format!("{what}: {e}") }
            }
            _ => EndCause::NotStarted { why: format!("{what}: {e}") },
        })
    }
}

fn in_order(inputs: &Inputs) -> impl Iterator<Item = (&str, &Source)> {
    let of = |is_first: bool| {
        inputs
            .iter()
            .filter(move |(name, _)| (*name == WORK_DIRECTORY) == is_first)
            .map(|(name, source)| (name.as_str(), source))
    };
    of(true).chain(of(false))
}

/// Makes the folders of a name, and returns its path. Fails if an earlier input made a link there that leads out of the work
/// directory.
fn make_way(work: &Path, name: &str) -> io::Result<PathBuf> {
    let (root, mut at) = (work.canonicalize()?, work.to_owned());
    let parents = Path::new(name).parent().into_iter().flat_map(Path::components);
    for part in parents {
        at.push(part);
        match fs::create_dir(&at) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ if !at.is_dir() => return Err(io::Error::from(io::ErrorKind::NotADirectory)),
            _ if at.canonicalize()?.starts_with(&root) => {}
            _ => return Err(io::Error::other("another input has a link there that leads out of the work directory")),
        }
    }
    let to = work.join(name);
    match fs::symlink_metadata(&to) {
        Ok(there) if !there.is_dir() => fs::remove_file(&to)?,
        _ => {}
    }
    Ok(to)
}

/// Gives everything in a folder to the user of the job.
fn give_away(folder: &Path, user: &JobUser) -> io::Result<()> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            lchown(entry.path(), Some(user.uid), Some(user.gid))?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, form: Form) -> io::Result<()> {
    if form == Form::Tree {
        fs::create_dir_all(to)?;
        return unpack(&mut File::open(from)?, to);
    }
    fs::copy(from, to)?;
    let mode = if form == Form::Program { 0o755 } else { 0o644 };
    fs::set_permissions(to, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_input_goes_through_a_link_that_leads_out() {
        let (work, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), work.path().join("out")).unwrap();
        symlink(outside.path().join("file"), work.path().join("link")).unwrap();
        assert!(make_way(work.path(), "out/evil").is_err() && make_way(work.path(), "out/a/evil").is_err());
        // A link in the place of the input itself is replaced.
        fs::write(make_way(work.path(), "link").unwrap(), "x").unwrap();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        assert!(make_way(work.path(), "a/b/c").unwrap().parent().unwrap().is_dir());
        fs::write(work.path().join("file"), "").unwrap();
        assert!(make_way(work.path(), "file/c").is_err());
    }

    #[test]
    fn the_work_directory_comes_first() {
        let source: Source = "s3://data/x".parse().unwrap();
        let inputs: Inputs = ["-a", ".", "b"].map(|name| (name.to_owned(), source.clone())).into();
        assert_eq!(in_order(&inputs).map(|(name, _)| name).collect::<Vec<_>>(), [".", "-a", "b"]);
    }
}
