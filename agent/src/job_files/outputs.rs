//! Stores the outputs of a job, when no process of the job runs any more, and before the exit record is written.
//!
//! Guarantees: an output that cannot be stored keeps no other one back, and makes a command that succeeded a failed one.
//! Does not: find the outputs in the work directory (`made` does), or store the folder of `--keep` (`checkpoint` does).

use super::made::{ArchivedOutput, MadeOutput, OutputForm, WorkDir, find, path_of, unreadable};
use super::{JobFiles, PATIENCE};
use crate::machine::blocking::on_files;
use crate::work::obstacle::{Obstacle, patiently};
use files::{LeftOut, MAX_BYTES, digest_within};
use model::enums::Service;
use model::files::Output;
use model::{ClientStatus, Content, EndCause, S3Place, StoredOutput};
use s3::{S3, S3Error};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Which outputs are stored so far, and which cannot be.
#[derive(Debug, Default)]
pub struct StoredSoFar {
    pub kept: Vec<StoredOutput>,
    /// For people: what of an output is not stored.
    pub notes: Vec<String>,
    /// The outputs that are not there, or cannot be stored as they are, and why.
    missing: BTreeMap<String, String>,
    /// The first fault of the node or of a service.
    fault: Option<Obstacle>,
}

impl StoredSoFar {
    /// Why an alloc ends whose command ended for this cause. A command that succeeded without one of its outputs has failed.
    pub fn cause(&self, cause: EndCause) -> EndCause {
        if cause.client() != ClientStatus::Complete {
            return cause;
        }
        let mut missing = self.missing.clone();
        // To run a command again whose output nobody takes does not help.
        if let Some((path, why)) = missing.pop_first() {
            return EndCause::NoOutput { path, why, others: missing };
        }
        match self.fault.clone() {
            None => cause,
            // The command has run.
            Some(Obstacle::Node(why) | Obstacle::Job(why)) => EndCause::Lost { why },
            Some(fault @ (Obstacle::Service(..) | Obstacle::Stopped(_))) => fault.into(),
        }
    }

    fn add(&mut self, output: &Output, result: Result<(Content, LeftOut), Obstacle>) {
        let (path, to) = (output.path.clone(), output.to.clone());
        match result {
            Ok((content, left_out)) => {
                if !left_out.is_empty() {
                    self.notes.push(format!("the output {path} is kept without {left_out}"));
                }
                self.kept.push(StoredOutput { path, content, to });
            }
            Err(Obstacle::Job(why)) => _ = self.missing.insert(path, why),
            Err(fault) => {
                tracing::warn!(output = path, ?fault, "an output is not stored");
                self.fault.get_or_insert(fault);
            }
        }
    }
}

impl JobFiles<'_> {
    /// Stores the outputs of a command that ended for this cause, if they are to be kept. One that cannot be stored keeps no other one
    /// back.
    pub async fn store(&self, cause: &EndCause, stored: &mut StoredSoFar) {
        let work = &self.order().work;
        for output in work.outputs.iter().filter(|_| cause.client() == ClientStatus::Complete) {
            // Where one output found no service, the others do not wait for it once more.
            let patience = if stored.fault.is_some() { Duration::ZERO } else { PATIENCE };
            let result = self.one(output, patience).await;
            stored.add(output, result);
        }
    }

    pub(super) fn work_dir(&self) -> WorkDir {
        WorkDir { path: self.alloc.dir.work(), path_for_job: self.alloc.task.work_for_job(&self.alloc.dir) }
    }

    async fn one(&self, output: &Output, patience: Duration) -> Result<(Content, LeftOut), Obstacle> {
        let (work, path) = (self.work_dir(), output.path.clone());
        let found = on_files(MAX_BYTES, move |allowance| find(&work, &path, allowance)).await;
        let made = found.map_err(|error| unreadable(&output.path, &error))?;
        let absent = || match output.pattern() {
            Some(_) => "nothing in the work directory has such a name",
            None => "it is not there",
        };
        let MadeOutput { what, content, mut left_out } = made.ok_or_else(|| Obstacle::Job(absent().to_owned()))?;
        let doing = format!("the command has ended, but its output {} cannot be stored", output.path);
        match (&output.to, &what) {
            (None, _) => {
                let place = self.alloc_place(&doing)?.content(content.sha256());
                self.put_content(&what, &content, place, &doing, patience).await?;
            }
            (Some(to), OutputForm::File(file)) => {
                let s3 = self.of_job(&doing).await?;
                put(&s3, to, &path_of(file), (content.bytes, content.sha256()), &doing, patience).await?;
            }
            (Some(to), OutputForm::Folder(chosen)) => {
                left_out = self.put_each(to, chosen, &output.path, &doing, patience).await?
            }
        }
        Ok((content, left_out))
    }

    /// Stores the output in the bucket of the cluster, with the rights of the node.
    pub(super) async fn put_content(
        &self,
        what: &OutputForm,
        content: &Content,
        place: S3Place,
        doing: &str,
        patience: Duration,
    ) -> Result<(), Obstacle> {
        let (bytes, sha256) = (content.bytes, content.sha256());
        let access = self.of_node().map_err(|e| Obstacle::from(e).about(doing))?;
        let put = async || -> Result<(), S3Error> {
            let s3 = access.s3().await?;
            match what {
                OutputForm::File(file) => s3.put_file(&place, &path_of(file), bytes, sha256).await,
                OutputForm::Folder(chosen) => s3.put_from(&place, chosen.archive(), bytes, sha256).await,
            }
        };
        patiently(doing, patience, async || put().await.map_err(refused_to_node)).await
    }

    /// Stores each file of a folder as an object of its own. Returns what of it cannot be an object.
    async fn put_each(
        &self,
        to: &S3Place,
        chosen: &ArchivedOutput,
        path: &str,
        doing: &str,
        patience: Duration,
    ) -> Result<LeftOut, Obstacle> {
        let listed = chosen.clone();
        let listed = on_files(MAX_BYTES, move |allowance| listed.files(allowance)).await;
        let (names, left_out) = listed.map_err(|error| unreadable(path, &error))?;
        let s3 = self.of_job(doing).await?;
        let mut bad = LeftOut::default();
        for name in names {
            let place = name.to_str().and_then(|name| format!("{to}/{name}").parse::<S3Place>().ok());
            let Some(place) = place else {
                bad.add(&name);
                continue;
            };
            let chosen = chosen.clone();
            let found = on_files(MAX_BYTES, move |allowance| {
                let gone = || io::Error::other(format!("{} is gone", name.display()));
                let mut file = chosen.open(&name).ok_or_else(gone)?;
                let digest = digest_within(&mut file, allowance)?;
                Ok((file, digest))
            });
            let (file, digest) = found.await.map_err(|error| unreadable(path, &error))?;
            put(&s3, &place, &path_of(&file), (digest.bytes, &digest.sha256), doing, patience).await?;
        }
        if !bad.is_empty() {
            let names = bad.names();
            return Err(Obstacle::Job(format!(
                "all of it is stored but what has a name that S3 does not take: {names}"
            )));
        }
        Ok(left_out)
    }
}

/// Whatever S3 refuses when the node stores with its own rights, the job did nothing wrong.
fn refused_to_node(error: S3Error) -> Obstacle {
    match error {
        S3Error::Denied(_) | S3Error::Refused(_) => Obstacle::Service(Service::S3, error.to_string()),
        other => other.into(),
    }
}

async fn put(
    s3: &S3,
    to: &S3Place,
    path: &Path,
    (bytes, sha256): (u64, &str),
    doing: &str,
    patience: Duration,
) -> Result<(), Obstacle> {
    patiently(&format!("{doing} at {to}"), patience, async || s3.put_file(to, path, bytes, sha256).await).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_s3_refuses_to_the_node_is_no_fault_of_the_job() {
        let text = String::new;
        for error in
            [S3Error::Denied(text()), S3Error::Refused(text()), S3Error::Failed(text()), S3Error::NoKeys(text())]
        {
            let obstacle = refused_to_node(error.clone());
            assert!(matches!(obstacle, Obstacle::Service(..)), "{error}: {obstacle:?}");
        }
    }
}
