//! `fetch`: gets the outputs of a job and its checkpoint, or those of each job of an array.
//!
//! The rows of a job have both. A job that has not completed has no outputs of its own yet: its newest checkpoint is what it left.
//!
//! Guarantees: a written file is whole, and has the digest that the node reported and the time at which the alloc ended. An existing
//! file is replaced only by the same content, or with `--force`. No link that is here already is followed, so nothing is written
//! outside the given folder. What is there is got, what is not is named, and then the exit code is 1.
//! Does not: get a folder that a job stored at an `s3://` place of its own: the AWS CLI does.

use super::follow::of_members;
use crate::commands::submit::job_files::{place_of, plain};
use crate::console::{Cluster, Context, Exit, show};
use crate::view::find::{Finder, Meant, short};
use crate::view::usage::bytes_text;
use anyhow::{Context as _, bail, ensure};
use clap::Args;
use files::{Beneath, Digest, PathEntry, digest_of, names, unpack};
use futures::try_join;
use model::files::{Form, Pattern};
use model::{Alloc, AllocId, Array, Checkpoint, Content, Control, Job, JobId, JobState, S3Place, StoredOutput, Time};
use s3::again;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// The path that means every output.
const ALL: &str = ".";

#[derive(Args, Clone, Debug)]
pub struct FetchArgs {
    /// The job: its id, a part of it, or its name. The name of an array stands for all its jobs, and NAME[3] for number 3
    pub(crate) job: String,
    /// Only this output, as --out named it, or the folder of --keep; `.` is all outputs, and the folder if the job has not completed
    #[arg(default_value = ".", value_parser = |path: &str| anyhow::Ok(plain(path)))]
    path: String,
    /// The folder to put them into; those of an array each into a folder with its number
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// The member of a job of several [default: all, each in a folder member-N]
    #[arg(long, value_name = "N")]
    member: Option<u32>,
    /// Replace files that are here
    #[arg(long)]
    force: bool,
}

/// Outputs of a member, and the alloc that stored them.
struct Kept {
    alloc: AllocId,
    /// When the alloc ended; `None`: it has not.
    at: Option<Time>,
    outputs: Vec<StoredOutput>,
    /// The checkpoint, if the only output is that.
    checkpoint: Option<Checkpoint>,
}

/// The stored rows of some jobs, read together.
pub(crate) struct FetchRows {
    control: Control,
    jobs: BTreeMap<JobId, (Job, Vec<Alloc>)>,
}

impl FetchRows {
    pub(crate) async fn read(
        cluster: &Cluster,
        err: &mut dyn Write,
        ids: impl IntoIterator<Item = JobId>,
    ) -> anyhow::Result<Self> {
        let jobs = show::readable(err, cluster.store.jobs_of(ids).await?)?;
        let (allocs, control) = try_join!(cluster.store.allocs_of(&jobs), cluster.store.ingest_control())?;
        let mut jobs: BTreeMap<JobId, (Job, Vec<Alloc>)> =
            jobs.into_iter().map(|job| (job.summary.job_id, (job, Vec::new()))).collect();
        for alloc in allocs.rows {
            if let Some((_, of_job)) = jobs.get_mut(&alloc.id().job_id) {
                of_job.push(alloc);
            }
        }
        Ok(Self { control, jobs })
    }
}

/// One job whose outputs are fetched.
struct Fetched<'a> {
    cluster: &'a Cluster,
    control: &'a Control,
    args: &'a FetchArgs,
    job: &'a Job,
    allocs: &'a [Alloc],
    /// The job in messages.
    shown: String,
    /// The folder of the job, below the given one.
    folder: PathBuf,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &FetchArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    let meant = Finder::new(&cluster).meant(&args.job).await?;
    let stored = FetchRows::read(&cluster, context.err, meant.ids.iter().copied()).await?;
    fetch(context, &cluster, args, &meant, &stored).await
}

/// Gets the outputs of the jobs that are meant, which are among the stored ones.
pub(crate) async fn fetch(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &FetchArgs,
    meant: &Meant,
    stored: &FetchRows,
) -> anyhow::Result<Exit> {
    let given = show::one_line(&args.job);
    let jobs: Vec<(&Job, &[Alloc])> =
        meant.ids.iter().filter_map(|id| stored.jobs.get(id)).map(|(job, allocs)| (job, allocs.as_slice())).collect();
    let of =
        |(job, allocs), shown, folder| Fetched { cluster, control: &stored.control, args, job, allocs, shown, folder };
    let Some(first) = jobs.first() else { bail!("job {given} is not stored") };
    let Some(count) = meant.array(jobs.iter().map(|(job, _)| *job)) else {
        return of(*first, given, PathBuf::new()).all(context).await;
    };
    let mut exit = Exit::done_if(jobs.len() == count);
    for job in &jobs {
        let n = Array::number(job.0.summary.job_id);
        let of_job = of(*job, format!("{given}[{n}]"), n.to_string().into()).all(context).await;
        exit = exit.and(of_job.or_else(|error| say_error(context, &error))?);
    }
    if jobs.len() < count {
        say(context, &format!("{} of the {count} jobs of {given} are not stored any more", count - jobs.len()))?;
    }
    Ok(exit)
}

fn say_error(context: &mut Context<'_>, error: &anyhow::Error) -> anyhow::Result<Exit> {
    say(context, &show::error(error))?;
    Ok(Exit::of(error))
}

fn say(context: &mut Context<'_>, what: &str) -> anyhow::Result<()> {
    Ok(writeln!(context.err, "nodekeeper: {what}")?)
}

impl Fetched<'_> {
    /// Gets what is wanted of this job. It is done if that is all of it; an error if there is nothing.
    async fn all(&self, context: &mut Context<'_>) -> anyhow::Result<Exit> {
        let Self { args, job, shown, .. } = self;
        let keeps = !job.work.outputs.is_empty() || job.work.keep.is_some();
        ensure!(keeps, "job {shown} keeps nothing: submit it with --out PATH or --keep DIR");
        let members = job.summary.needs.nodes;
        if let Some(member) = args.member.filter(|member| *member >= members) {
            let last = members.saturating_sub(1);
            bail!("job {shown} has no member {member}: its members are 0 to {last}");
        }
        let kept = of_rows(job, self.allocs);
        ensure!(kept.iter().any(|kept| self.wanted(kept).next().is_some()), self.nothing());
        let is_of_array = !self.folder.as_os_str().is_empty();
        let mut exit = Exit::done_if(!is_of_array || job.summary.state == JobState::Complete);
        if exit != Exit::Done {
            say(context, &format!("job {shown} is {}, and this is what it left", job.summary.state))?;
        }
        for member in (0..members).filter(|member| args.member.is_none_or(|wanted| wanted == *member)) {
            let of_member = || kept.iter().filter(|kept| kept.alloc.member == member);
            for missing in self.missing(of_member()) {
                exit = exit.and(Exit::Failed);
                let of = if members > 1 { format!(" of member {member}") } else { String::new() };
                say(context, &format!("job {shown} is {} and has not stored {missing}{of}", job.summary.state))?;
            }
            let folder = match members > 1 && args.member.is_none() {
                true => self.folder.join(format!("member-{member}")),
                false => self.folder.clone(),
            };
            let mut wanted: Vec<_> =
                of_member().flat_map(|kept| self.wanted(kept).map(move |output| (kept, output))).collect();
            // Outputs may lie in others: folders come first, and what patterns name last.
            wanted.sort_by_key(|(_, output)| (is_of_pattern(output), output.content.form != Form::Tree));
            let mut got = Vec::new();
            for (kept, output) in wanted {
                // What a pattern names has its own names below the folder.
                let path = if is_of_pattern(output) { folder.clone() } else { folder.join(&output.path) };
                let of = kept.checkpoint.as_ref().map(|known| format!(", as try {} left it", known.alloc_id));
                let of = of.unwrap_or_default();
                match self.one(output, kept, &path, &mut got, context.now()).await {
                    Ok(()) => {
                        let to = args.dir.join(&path);
                        writeln!(context.out, "{} ({}{of})", to.display(), bytes_text(output.content.bytes))?;
                    }
                    Err(error) => {
                        let error = error.context(format!("{} of job {shown} cannot be fetched", output.path));
                        exit = exit.and(say_error(context, &error)?);
                    }
                }
            }
        }
        Ok(exit)
    }

    fn is_wanted(&self, path: &str) -> bool {
        self.args.path == ALL || self.args.path == path
    }

    /// The outputs that the options ask for. A job that has completed needs no checkpoint.
    fn wanted<'k>(&self, kept: &'k Kept) -> impl Iterator<Item = &'k StoredOutput> {
        let takes_all = kept.checkpoint.is_none() || self.job.summary.state != JobState::Complete;
        let path = &self.args.path;
        kept.outputs.iter().filter(move |output| output.path == *path || takes_all && path == ALL)
    }

    /// The outputs that the job wants kept, and that this member has not stored.
    fn missing<'k>(&self, kept: impl Iterator<Item = &'k Kept>) -> Vec<String> {
        let stored: Vec<&str> = kept.flat_map(|kept| &kept.outputs).map(|output| output.path.as_str()).collect();
        let wanted = self.job.work.outputs.iter().map(|output| output.path.clone());
        wanted.filter(|path| self.is_wanted(path) && !stored.contains(&path.as_str())).collect()
    }

    fn nothing(&self) -> String {
        let (shown, state) = (&self.shown, self.job.summary.state);
        let what = if self.args.path == ALL { "outputs" } else { self.args.path.as_str() };
        let id = short(self.job.summary.job_id);
        format!("job {shown} is {state} and has stored no {what}: `nodekeeper job {id}` shows what it keeps")
    }

    /// Gets one output of these. What the job made is as old as the end of its alloc: an input that was changed later is newer.
    /// `got` is what this call has got already.
    async fn one(
        &self,
        output: &StoredOutput,
        of: &Kept,
        path: &Path,
        got: &mut Vec<PathBuf>,
        now: Time,
    ) -> anyhow::Result<()> {
        let (content, shown) = (&output.content, self.args.dir.join(path));
        let place = match &output.to {
            Some(place) if content.form == Form::Tree => {
                bail!("it is a folder at {place}: `aws s3 cp --recursive {place} {}` gets it", shown.display())
            }
            Some(place) => place.clone(),
            None => {
                let (policy, _) = self.control.checked_policy()?;
                let place = place_of(&policy, self.cluster, content)?;
                of.checkpoint.as_ref().map_or_else(|| place.clone(), |known| known.stored_at(&place))
            }
        };
        let shown = shown.display();
        fs::create_dir_all(&self.args.dir).with_context(|| format!("{} cannot be made", self.args.dir.display()))?;
        // A time in the future would worry make.
        let at = of.at.map_or(now, |at| at.min(now));
        let into = Beneath::new(&self.args.dir, at.into())?;
        if is_of_pattern(output) {
            return self.names(&place, output, into, path, got).await;
        }
        if got.iter().any(|folder| path.starts_with(folder)) {
            return Ok(());
        }
        if content.form == Form::Tree {
            self.folder(&place, output, &into, path).await?;
            got.push(path.to_owned());
            return Ok(());
        }
        let is_other = match into.there(path)? {
            PathEntry::Nothing => false,
            PathEntry::File(mut file) => digest_of(&mut file)?.sha256 != content.sha256(),
            PathEntry::Other => true,
            PathEntry::EmptyFolder | PathEntry::Folder => {
                bail!("{shown} is a folder here: remove it, or name another folder")
            }
        };
        ensure!(
            self.args.force || !is_other,
            "{shown} is here and is another file: --force replaces it, or name another folder"
        );
        let mut new = into.new_file(path)?;
        let open = new.path();
        self.content(&place, output, &open, &mut new.file).await?;
        new.finish(if content.form == Form::Program { 0o755 } else { 0o644 })?;
        got.push(path.to_owned());
        Ok(())
    }

    async fn folder(&self, place: &S3Place, output: &StoredOutput, into: &Beneath, path: &Path) -> anyhow::Result<()> {
        let shown = self.args.dir.join(path);
        let shown = shown.display();
        let is_over = match into.there(path)? {
            PathEntry::Nothing | PathEntry::EmptyFolder => false,
            PathEntry::Folder if self.args.force => true,
            PathEntry::Folder => bail!("{shown} is here: --force unpacks over it"),
            PathEntry::File(_) | PathEntry::Other => {
                bail!("{shown} is here and is no folder: remove it, or name another folder")
            }
        };
        let mut archive = self.archive(place, output).await?;
        if is_over {
            return Ok(unpack(&mut archive, &into.folder(path)?)?);
        }
        let new = into.new_folder(path)?;
        unpack(&mut archive, &new.beneath)?;
        Ok(new.finish()?)
    }

    /// Gets what a pattern names, into this folder below the given one.
    async fn names(
        &self,
        place: &S3Place,
        output: &StoredOutput,
        given: Beneath,
        folder: &Path,
        got: &mut Vec<PathBuf>,
    ) -> anyhow::Result<()> {
        let into = if folder.as_os_str().is_empty() { given } else { given.folder(folder)? };
        let mut archive = self.archive(place, output).await?;
        let names = names(&mut archive)?;
        let is_new = |name: &&PathBuf| !got.iter().any(|known| folder.join(name).starts_with(known));
        for name in names.iter().filter(|name| !self.args.force && is_new(name)) {
            let shown = name.display();
            ensure!(
                matches!(into.there(name)?, PathEntry::Nothing),
                "{shown} is here: --force replaces it, or name another folder"
            );
        }
        archive.rewind()?;
        unpack(&mut archive, &into)?;
        got.extend(names.into_iter().map(|name| folder.join(name)));
        Ok(())
    }

    /// The archive of an output, at its beginning.
    async fn archive(&self, place: &S3Place, output: &StoredOutput) -> anyhow::Result<File> {
        let mut archive = tempfile::tempfile_in(&self.args.dir)?;
        let open: PathBuf = format!("/proc/self/fd/{}", archive.as_raw_fd()).into();
        self.content(place, output, &open, &mut archive).await?;
        archive.rewind()?;
        Ok(archive)
    }

    /// Reads a content into this file, which is open, and checks it.
    async fn content(
        &self,
        place: &S3Place,
        output: &StoredOutput,
        path: &Path,
        file: &mut File,
    ) -> anyhow::Result<()> {
        let content = &output.content;
        let get = async || self.cluster.outputs.get_file(place, path, content.bytes).await;
        again(get).await.with_context(|| place.to_string())?;
        file.rewind()?;
        let Digest { sha256, .. } = digest_of(file)?;
        ensure!(
            sha256 == content.sha256(),
            "{place} does not have the content that the job stored: its digest is {sha256}"
        );
        Ok(())
    }
}

/// Whether it is an archive of what a pattern names.
fn is_of_pattern(output: &StoredOutput) -> bool {
    output.content.form == Form::Tree && Pattern::of(&output.path).is_some()
}

/// For each member, the outputs of the alloc that succeeded, and the newest checkpoint.
fn of_rows(job: &Job, allocs: &[Alloc]) -> Vec<Kept> {
    let running = allocs.iter().filter(|alloc| !alloc.summary.client.is_final());
    let mut newest = job.checkpoints.clone();
    newest.extend(running.filter_map(|alloc| alloc.run.checkpoint.clone()));
    newest.sort_by_key(|known| known.alloc_id.copy);
    // A later entry replaces an earlier one.
    let newest: BTreeMap<u32, Checkpoint> = newest.into_iter().map(|known| (known.alloc_id.member, known)).collect();
    let succeeded = allocs.iter().filter(|alloc| !alloc.run.kept.is_empty() && !alloc.was_stopped());
    let outputs = of_members(succeeded.cloned(), |alloc| (alloc.has_succeeded(), alloc.id().copy));
    let outputs = outputs.map(|alloc| Kept {
        alloc: alloc.id(),
        at: alloc.finished_at,
        outputs: alloc.run.kept,
        checkpoint: None,
    });
    let stored = |path: &str, content: Content| StoredOutput { path: path.to_owned(), content, to: None };
    let checkpoints = newest.into_values().filter_map(|known| {
        let outputs = vec![stored(job.work.keep.as_deref()?, known.content.clone())];
        Some(Kept { alloc: known.alloc_id, at: None, outputs, checkpoint: Some(known) })
    });
    outputs.chain(checkpoints).collect()
}
