//! The files of a job, as options: `--in`, `--workdir` and `--out`.
//!
//! Guarantees: a local file is stored before the job is written, once for each content. A file that cannot be read is an error
//! before anything is stored. `--workdir` leaves out what an ignore file names.
//! Does not: store again what was stored lately (`FRESH`), or follow symbolic links: a link is kept as it is.

use super::git;
use crate::changes::operate::NO_BUCKET;
use crate::console::{Cluster, Context, UsageError, show};
use crate::view::find::Meant;
use crate::view::usage::bytes_text;
use anyhow::{Context as _, bail, ensure};
use clap::{ArgAction, Args};
use files::{Choice, Digest, LeftOut, MAX_DEPTH, Packed, Selected, digest_of, pack_folder};
use futures::future::ready;
use futures::stream::{self, StreamExt, TryStreamExt};
use ignore::WalkBuilder;
use jiff::fmt::rfc2822::DateTimeParser;
use model::amounts::seconds;
use model::files::{Form, MAX_CONTENT_BYTES, Output, Pattern, WORK_DIRECTORY, is_name};
use model::{AfterEnd, Array, Content, Inputs, Job, JobSpec, Policy, S3Place, Source, Span, Time, Work};
use s3::{S3Error, again};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use tempfile::NamedTempFile;

/// A content that was stored longer ago is stored again. So a lifecycle rule of the bucket that deletes objects after a month
/// deletes nothing that a new job needs.
const FRESH: Span = Span::from_s(7 * 86_400);
/// How many files are stored at the same time.
const FILES_AT_ONCE: usize = 16;
/// A file of this size or more is announced, in bytes.
const LARGE: u64 = 16 << 20;
/// Names what `--workdir` leaves out, as `.gitignore` does.
const IGNORE_FILE: &str = ".nodekeeperignore";
/// What `--workdir` always leaves out.
const LEFT_OUT: [&str; 2] = [".git", ".nodekeeper"];
/// What the root of a repository has.
const REPOSITORY: [&str; 2] = [".git", ".jj"];

/// The files of a job, as options.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FileOptions {
    /// A file or a folder for the work directory of the job: a local path; s3://BUCKET/KEY, read with the role of the job; or
    /// job:JOB/PATH, an output of an earlier job (--out), which this job then follows; of an array, a folder that has the output of
    /// each job by its number. NAME is its path in the work directory, by default the same as here. NAME comes after the last =, so
    /// a KEY with a = needs a NAME. May be given several times
    #[arg(long = "in", value_name = "FROM[=NAME]", action = ArgAction::Append)]
    #[serde(skip)]
    inputs: Vec<String>,
    /// Make the content of this folder the work directory of the job, without what git ignores there and what .nodekeeperignore
    /// names. Where git is not installed, any .gitignore, .git/info/exclude and the person's own excludes count
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    workdir: Option<PathBuf>,
    /// A file or a folder of the work directory that is kept when the command has succeeded; if it is missing, the job fails. A pattern
    /// in quotes, such as 'results/*.csv', keeps all that it names then, and at least one. `nodekeeper fetch` gets it. With s3://BUCKET/KEY it is stored there, with the role of the job. May be given several times
    #[arg(long = "out", value_name = "PATH[=S3]", action = ArgAction::Append, value_parser = output)]
    outputs: Vec<Output>,
    /// The folder of the work directory with the checkpoint of the job. What a try leaves there is stored however it ends, or when its
    /// node is about to go, and is there when the next try begins. `nodekeeper fetch` gets it, also of a job that has failed
    #[arg(long, value_name = "DIR", value_parser = kept)]
    keep: Option<String>,
    /// Also store the folder of --keep while the command runs, once in this time (at least 10 s): a job that suddenly loses its node
    /// then repeats at most that much. To store a changed folder costs a request and a write
    #[arg(long = "keep-every", value_name = "TIME", value_parser = seconds, default_value = "0", hide_default_value = true)]
    keep_every_s: u64,
}

fn output(text: &str) -> Result<Output, String> {
    let Output { path, to } = text.parse().map_err(|e: model::BadText| e.to_string())?;
    Ok(Output { path: kept(&path)?, to })
}

fn kept(path: &str) -> Result<String, String> {
    let path = plain(path);
    if !is_name(&path) {
        return Err(
            "the path must be relative to the work directory, without `..` and names of more than 255 bytes".to_owned()
        );
    }
    Ok(path)
}

/// The path without `./` at its beginning and slashes at its end. What is left of `./` is `.`.
pub(crate) fn plain(path: &str) -> String {
    let plain = path.trim_start_matches("./").trim_end_matches('/');
    if plain.is_empty() && path.starts_with('.') { ".".to_owned() } else { plain.to_owned() }
}

struct Upload {
    shown: String,
    path: PathBuf,
    content: Content,
    /// The entries of a folder that the job does not get.
    left_out: LeftOut,
    /// The archive of a folder. It is removed with this value.
    _archive: Option<File>,
}

/// The local files of a submission, each path read once. They are stored before the jobs are written.
#[derive(Default)]
pub(crate) struct LocalFiles {
    /// By path, and by whether it is packed as a work directory.
    uploads: BTreeMap<(PathBuf, bool), Upload>,
}

/// An input that is an output of another job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FromJob {
    name: String,
    /// The job as it is named.
    pub(crate) job: String,
    path: String,
}

impl FileOptions {
    pub(crate) fn of(inputs: Option<Vec<String>>, workdir: Option<String>) -> Self {
        Self { inputs: inputs.unwrap_or_default(), workdir: workdir.map(PathBuf::from), ..Self::default() }
    }

    /// These files of a line beside those of the options. A line has one work directory.
    pub(crate) fn over(mut self, options: &Self) -> Self {
        self.inputs.splice(..0, options.inputs.iter().cloned());
        self.workdir = self.workdir.or_else(|| options.workdir.clone());
        self
    }

    /// Reads the local files, and adds to the work what is known of its files without the cluster. Returns the inputs from other jobs.
    pub(crate) fn read(&self, work: &mut Work, local: &mut LocalFiles) -> anyhow::Result<Vec<FromJob>> {
        let (mut from_jobs, mut folders) = (Vec::new(), Vec::new());
        if let Some(dir) = &self.workdir {
            let content = local.read(dir, true).with_context(|| cannot_read("--workdir", dir))?;
            add(&mut work.inputs, WORK_DIRECTORY.to_owned(), Source::Content(content))?;
        }
        for given in &self.inputs {
            let (from, name) = split(given);
            let option = format!("--in {}", show::one_line(given));
            if let Some(output) = from.strip_prefix("job:") {
                from_jobs.push(
                    FromJob::parse(output, name)
                        .ok_or_else(|| UsageError(format!("{option}: it must be job:JOB/PATH")))?,
                );
            } else if from.starts_with("s3://") {
                let place: S3Place = from.parse().map_err(|e| UsageError(format!("{option}: {e}")))?;
                let file = place.key().rsplit('/').next().unwrap_or_default().to_owned();
                add(&mut work.inputs, name.map_or(file, plain), Source::Object(place))?;
            } else {
                let path = Path::new(from);
                let content = local.read(path, false).with_context(|| cannot_read("--in", path))?;
                let name = name.map(plain).or_else(|| name_of(path)).ok_or_else(|| {
                    UsageError(format!(
                        "{option}: say which name it gets in the work directory: --in {}=NAME",
                        path.display()
                    ))
                })?;
                if content.form == Form::Tree {
                    folders.push((name.clone(), path.to_owned()));
                }
                add(&mut work.inputs, name, Source::Content(content))?;
            }
        }
        let names: Vec<&String> = work.inputs.keys().chain(from_jobs.iter().map(|from: &FromJob| &from.name)).collect();
        folders.iter().try_for_each(|(folder, path)| check_folder(folder, path, &names))?;
        Ok(from_jobs)
    }
}

/// Refuses an input whose path leads through a file of another input, a folder.
fn check_folder(folder: &str, path: &Path, names: &[&String]) -> Result<(), UsageError> {
    for name in names {
        let Some(rest) = name.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')) else { continue };
        let mut above = Path::new(rest).ancestors().skip(1).filter(|part| !part.as_os_str().is_empty());
        if let Some(file) = above.find(|part| path.join(part).is_file()) {
            let file = Path::new(folder).join(file);
            return Err(UsageError(format!(
                "the input {name} is inside of {}, which is a file: give one of them another name, as --in FROM=NAME",
                file.display()
            )));
        }
    }
    Ok(())
}

impl FromJob {
    /// `JOB/PATH`, and the name that it gets.
    fn parse(output: &str, name: Option<&str>) -> Option<Self> {
        let (job, path) = output.split_once('/').map(|(job, path)| (job.to_owned(), plain(path)))?;
        // What a pattern names has its own names in the work directory.
        let own = || Pattern::of(&path).map_or_else(|| path.clone(), |_| WORK_DIRECTORY.to_owned());
        Some(Self { name: name.map_or_else(own, plain), job, path })
    }

    /// Adds the outputs of these jobs to the inputs of a job, which follows them. Of several jobs or members, the input is a folder
    /// with what each of them made.
    pub(crate) fn add(&self, jobs: &[Job], are_array: bool, spec: &mut JobSpec) -> anyhow::Result<()> {
        for job in jobs {
            let job_id = job.summary.job_id;
            keeps(job, &show::one_line(&self.job), &self.path)?;
            let number = are_array.then(|| Array::number(job_id).to_string());
            for member in 0..job.summary.needs.nodes {
                let of_member = (job.summary.needs.nodes > 1).then(|| format!("member-{member}"));
                let source = Source::Output { job_id, member, path: self.path.clone() };
                add(&mut spec.work.inputs, below(&self.name, [number.clone(), of_member]), source)?;
            }
            spec.follow(job_id, AfterEnd::Success);
        }
        Ok(())
    }

    /// Whether these stored jobs, which its name means, are an array. It is an error if some jobs of the array are not stored any more.
    pub(crate) fn is_array(&self, meant: &Meant, jobs: &[Job]) -> anyhow::Result<bool> {
        let (shown, count) = (show::one_line(&self.job), meant.array(jobs));
        ensure!(!jobs.is_empty(), "job {shown} is not stored");
        let missing = count.map_or(0, |count| count.saturating_sub(jobs.len()));
        ensure!(
            missing == 0,
            "{} of the array {shown}: not stored any more; give job:{shown}[N]/{} for the others",
            show::several(missing, "job"),
            self.path
        );
        Ok(count.is_some())
    }
}

impl LocalFiles {
    /// The content of a local path, which is read once.
    fn read(&mut self, path: &Path, is_workdir: bool) -> anyhow::Result<Content> {
        let key = (path.to_owned(), is_workdir);
        if let Some(upload) = self.uploads.get(&key) {
            return Ok(upload.content.clone());
        }
        let upload = match (is_workdir, path.is_dir()) {
            (true, _) => folder(path, pack_unignored)?,
            (false, true) => folder(path, |path, to| pack_folder(&File::open(path)?, to, &Choice::ALL))?,
            (false, false) => file(path)?,
        };
        if upload.content.bytes > MAX_CONTENT_BYTES {
            let most = MAX_CONTENT_BYTES >> 40;
            let why = format!("{} has more than {most} TiB: store it in S3 yourself, and give s3://…", upload.shown);
            bail!(UsageError(why));
        }
        Ok(self.uploads.entry(key).or_insert(upload).content.clone())
    }

    /// Stores the files that are not stored yet, several at the same time.
    pub(crate) async fn store(&self, context: &mut Context<'_>, cluster: &Cluster) -> anyhow::Result<()> {
        if self.uploads.is_empty() {
            return Ok(());
        }
        let (policy, _) = cluster.store.ingest_control().await?.checked_policy()?;
        let (now, policy) = (context.now(), &policy);
        for upload in self.uploads.values().filter(|upload| !upload.left_out.is_empty()) {
            writeln!(context.err, "nodekeeper: the job gets {} without {}", upload.shown, upload.left_out)?;
        }
        let contents: BTreeMap<&str, &Upload> =
            self.uploads.values().map(|upload| (upload.content.sha256(), upload)).collect();
        let missing = stream::iter(contents.into_values()).map(|upload| async move {
            let place = place_of(policy, cluster, &upload.content)?;
            let is_there = is_there(cluster, &place, upload.content.bytes, now).await;
            anyhow::Ok((!is_there).then_some((upload, place)))
        });
        let missing: Vec<_> =
            missing.buffered(FILES_AT_ONCE).try_filter_map(|found| ready(Ok(found))).try_collect().await?;
        for (upload, _) in missing.iter().filter(|(upload, _)| upload.content.bytes >= LARGE) {
            writeln!(context.err, "storing {} ({})", upload.shown, bytes_text(upload.content.bytes))?;
        }
        let stored = stream::iter(missing).map(|(upload, place)| async move {
            let content = &upload.content;
            let put = async || cluster.outputs.put_file(&place, &upload.path, content.bytes, content.sha256()).await;
            again(put).await.map_err(|e| cannot_store(e, upload, &place))
        });
        stored.buffer_unordered(FILES_AT_ONCE).try_collect().await
    }
}

/// Refuses a job that does not keep this output.
fn keeps(job: &Job, shown: &str, path: &str) -> anyhow::Result<()> {
    if job.work.outputs.iter().any(|output| output.path == path) {
        return Ok(());
    }
    let kept: Vec<&str> = job.work.outputs.iter().map(|output| output.path.as_str()).collect();
    let kept = if kept.is_empty() { "nothing".to_owned() } else { kept.join(", ") };
    bail!("job {shown} keeps no {path}: it keeps {kept} (submit --out)")
}

/// The name with these parts behind it. The work directory itself is no part of a name.
fn below(name: &str, parts: [Option<String>; 2]) -> String {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let name = Some(name.to_owned()).filter(|name| name != WORK_DIRECTORY || parts.is_empty());
    name.into_iter().chain(parts).collect::<Vec<_>>().join("/")
}

fn add(inputs: &mut Inputs, name: String, source: Source) -> Result<(), UsageError> {
    match inputs.insert(name.clone(), source) {
        None => Ok(()),
        Some(_) => {
            Err(UsageError(format!("two inputs have the name {name}: give one of them another, as --in FROM=NAME")))
        }
    }
}

fn cannot_store(error: S3Error, upload: &Upload, place: &S3Place) -> anyhow::Error {
    let hint = match error {
        S3Error::Denied(_) => " (whoever submits files needs s3:PutObject and s3:GetObject there)",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("{} cannot be stored at {place}{hint}", upload.shown))
}

/// Whether this content is stored, and will be for a while. Without the permission to look, the answer is no, and the content is
/// stored again.
async fn is_there(cluster: &Cluster, place: &S3Place, bytes: u64, now: Time) -> bool {
    let Ok(head) = cluster.outputs.head(place).await else { return false };
    let stored = head.stored.as_deref().and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
    let is_fresh = stored.is_some_and(|at| now.since(Time::from_ms(at.as_millisecond())) < FRESH);
    head.bytes == bytes && is_fresh
}

pub(crate) fn place_of(policy: &Policy, cluster: &Cluster, content: &Content) -> anyhow::Result<S3Place> {
    let prefix = policy.output.s3.as_ref().context(NO_BUCKET)?;
    Ok(prefix.content(&cluster.dynamo.cluster, content.sha256()))
}

/// Splits `FROM=NAME`. If a file has the whole text as its path, the text is that path.
fn split(given: &str) -> (&str, Option<&str>) {
    if Path::new(given).exists() {
        return (given, None);
    }
    given.rsplit_once('=').map_or((given, None), |(from, name)| (from, Some(name)))
}

/// The name of a local path in the work directory: the path itself if it stays below the current directory, else its last part.
fn name_of(path: &Path) -> Option<String> {
    let parts = || path.components().filter(|part| !matches!(part, Component::CurDir));
    let is_below = parts().all(|part| matches!(part, Component::Normal(_)));
    let name = if is_below { parts().collect::<PathBuf>() } else { path.file_name()?.into() };
    name.into_os_string().into_string().ok().filter(|name| is_name(name))
}

fn cannot_read(option: &str, path: &Path) -> String {
    format!("{option}: {} cannot be read", path.display())
}

fn upload(path: &Path, form: Form, digest: &Digest) -> io::Result<Upload> {
    let content = Content::new(form, &digest.sha256, digest.bytes);
    let content = content.ok_or_else(|| io::Error::other("it has no digest"))?;
    let (shown, left_out) = (path.display().to_string(), LeftOut::default());
    Ok(Upload { shown, path: path.to_owned(), content, left_out, _archive: None })
}

fn file(path: &Path) -> io::Result<Upload> {
    // A device or a pipe may have no end, and opening a pipe waits for a writer.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is neither a file nor a folder"));
    }
    let mut file = File::open(path)?;
    let is_program = file.metadata()?.permissions().mode() & 0o111 != 0;
    upload(path, if is_program { Form::Program } else { Form::File }, &digest_of(&mut file)?)
}

fn folder(path: &Path, pack: impl FnOnce(&Path, File) -> io::Result<Packed<File>>) -> io::Result<Upload> {
    // The archive has no name on the disk. So nothing of it remains if a signal ends this program.
    let Packed { archive, digest, left_out, .. } = pack(path, tempfile::tempfile()?)?;
    let upload = upload(path, Form::Tree, &digest)?;
    let open = format!("/proc/self/fd/{}", archive.as_raw_fd()).into();
    Ok(Upload { path: open, left_out, _archive: Some(archive), ..upload })
}

/// Packs a folder without what git ignores there, by whatever rule, and what [`IGNORE_FILE`] names.
fn pack_unignored(dir: &Path, to: File) -> io::Result<Packed<File>> {
    let dir = &dir.canonicalize()?;
    if !dir.metadata()?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory));
    }
    // Outside of a repository, nothing above the folder counts: a .gitignore there is about something else.
    let is_root = |dir: &&Path| REPOSITORY.iter().any(|name| dir.join(name).exists());
    let root = dir.ancestors().find(is_root);
    let by_git = root.and_then(|_| git::ignored(dir));
    let by_rules = by_git.is_none();
    let mut walk = WalkBuilder::new(dir);
    walk.standard_filters(false).git_ignore(by_rules).git_exclude(by_rules).add_custom_ignore_filename(IGNORE_FILE);
    walk.git_global(by_rules && root.is_some()).parents(root.is_some()).require_git(root.is_some());
    walk.current_dir(root.filter(|_| by_rules).unwrap_or(dir));
    if let Some(rules) = by_git {
        let mut file = NamedTempFile::new()?;
        file.write_all(rules.as_bytes())?;
        walk.add_ignore(file.path());
    }
    walk.filter_entry(|entry| !LEFT_OUT.iter().any(|name| entry.file_name() == *name));
    // What lies deeper is not looked for: packing refuses the folder that it lies in.
    walk.max_depth(Some(MAX_DEPTH + 1));
    let mut wanted = HashSet::new();
    for entry in walk.build() {
        let entry = match entry {
            // An ignore file has a line that is no rule. Its other rules count.
            Err(e) if e.io_error().is_none() => continue,
            entry => entry.map_err(io::Error::other)?,
        };
        wanted.extend(entry.path().strip_prefix(dir).map(Path::to_owned));
    }
    let chosen = |path: &Path| if wanted.contains(path) { Selected::Alone } else { Selected::No };
    pack_folder(&File::open(dir)?, to, &Choice { wanted: &chosen, ..Choice::ALL })
}

/// Warns of a file of this directory that the command names and does not get. The word may mean another file, so this is no error.
pub(crate) fn warn_of_forgotten(context: &mut Context<'_>, spec: &JobSpec) -> io::Result<()> {
    let inputs = &spec.work.inputs;
    let words = spec.work.command.iter().enumerate();
    // What follows the line of `sh -c` is a name for messages.
    let is_name = |n: usize| n == 3 && spec.work.command.get(1).is_some_and(|option| option == "-c");
    let named = words.filter(|(n, word)| !is_name(*n) && (*n > 0 || word.contains('/'))).map(|(_, word)| word);
    let is_placed = |name: &str| inputs.keys().any(|input| Path::new(name).starts_with(input));
    let forgotten = named
        .filter(|_| !inputs.contains_key(WORK_DIRECTORY))
        .find(|word| Path::new(word).is_relative() && Path::new(word).is_file() && !is_placed(&plain(word)));
    match forgotten {
        Some(file) => {
            let file = show::one_line(file);
            writeln!(context.err, "nodekeeper: the job does not get {file}, which is a file here: add --in {file}")
        }
        None => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use files::Beneath;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    #[test]
    fn a_local_input_keeps_its_path_where_that_is_possible() {
        for (path, name) in [
            ("a.py", Some("a.py")),
            ("./data/a.csv", Some("data/a.csv")),
            ("../a.csv", Some("a.csv")),
            ("/etc/hosts", Some("hosts")),
            ("data/", Some("data")),
            ("..", None),
            ("/", None),
        ] {
            assert_eq!(name_of(Path::new(path)).as_deref(), name, "{path}");
        }
        assert_eq!(split("no-such-file=b"), ("no-such-file", Some("b")));
        assert_eq!(output("./a/").unwrap().path, "a");
        assert!(output("../a").is_err());
    }

    /// The names of what a folder has when it is packed as a work directory.
    pub(in crate::commands::submit) fn packed(dir: &Path) -> Vec<String> {
        let packed = folder(dir, pack_unignored).unwrap();
        let out = tempfile::tempdir().unwrap();
        let into = Beneath::new(out.path(), SystemTime::UNIX_EPOCH).unwrap();
        files::unpack(&mut File::open(&packed.path).unwrap(), &into).unwrap();
        let mut found = Vec::new();
        let root = File::open(out.path()).unwrap();
        let all = |_: &Path| files::Selected::All;
        files::walk(&root, &mut files::Allowance::default(), all, &mut |_, path, _, is| {
            if !matches!(is, files::OpenedEntry::Folder) {
                found.push(path.display().to_string());
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(folder(dir, pack_unignored).unwrap().content, packed.content, "and always the same");
        found
    }

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// What there is besides, by paths and texts, and what is packed.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

    /// What is in `a/tree`, given what else there is.
    #[test]
    fn the_work_directory_is_packed_without_what_git_ignores_by_any_rule() {
        let work = ["a/tree/.env", "a/tree/b", "a/tree/sub/.env", "a/tree/sub/b"];
        let all = ["#env", "b", "sub/#env", "sub/b"];
        // In what is packed, `#` stands for a point.
        let cases: [Case<'_>; 19] = [
            ("no repository", &[], &all),
            ("a rule in it, without a repository", &[("a/tree/.gitignore", ".env")], &["#gitignore", "b", "sub/b"]),
            ("a rule above it, without a repository", &[("a/.gitignore", "*"), (".gitignore", "*")], &all),
            ("a rule at the root", &[(".git/HEAD", ""), (".gitignore", ".env")], &["b", "sub/b"]),
            ("a rule between", &[(".git/HEAD", ""), ("a/.gitignore", ".env")], &["b", "sub/b"]),
            (
                "an anchored rule above",
                &[(".git/HEAD", ""), (".gitignore", "/a/tree/.env")],
                &["b", "sub/#env", "sub/b"],
            ),
            ("an anchored rule for elsewhere", &[(".git/HEAD", ""), (".gitignore", "/.env\n/tree/b")], &all),
            ("a rule above the repository", &[("a/.git/HEAD", ""), (".gitignore", "*")], &all),
            (
                "it is the repository",
                &[("a/tree/.git/HEAD", ""), ("a/.gitignore", "*"), ("a/tree/.gitignore", "b")],
                &["#env", "#gitignore", "sub/#env"],
            ),
            (
                "a negation below",
                &[(".git/HEAD", ""), (".gitignore", ".env"), ("a/tree/sub/.gitignore", "!.env")],
                &["b", "sub/#env", "sub/#gitignore", "sub/b"],
            ),
            (
                "a negation above does not count",
                &[(".git/HEAD", ""), (".gitignore", "!.env"), ("a/.gitignore", ".env")],
                &["b", "sub/b"],
            ),
            ("a folder", &[(".git/HEAD", ""), (".gitignore", "sub/")], &["#env", "b"]),
            ("the repository's own excludes", &[(".git/info/exclude", ".env"), (".git/HEAD", "")], &["b", "sub/b"]),
            ("excludes come behind rules", &[(".git/info/exclude", ".env"), (".gitignore", "!.env")], &all),
            (
                "a worktree",
                &[
                    (".git", "gitdir: DIR/main/.git/worktrees/w"),
                    ("main/.git/worktrees/w/commondir", "../.."),
                    ("main/.git/info/exclude", ".env"),
                ],
                &["b", "sub/b"],
            ),
            (
                "a repository in it has its own rules",
                &[
                    (".git/HEAD", ""),
                    (".gitignore", ".env"),
                    ("a/tree/sub/.git/HEAD", ""),
                    ("a/tree/sub/.gitignore", "b"),
                ],
                &["b", "sub/#env", "sub/#gitignore"],
            ),
            ("our own file, above too", &[(".git/HEAD", ""), (".nodekeeperignore", ".env")], &["b", "sub/b"]),
            (
                "our own file is stronger",
                &[(".git/HEAD", ""), (".gitignore", ".env"), ("a/tree/.nodekeeperignore", "!.env")],
                &["#env", "#nodekeeperignore", "b", "sub/#env", "sub/b"],
            ),
            ("a text that is no rule", &[(".git/HEAD", ""), (".gitignore", "[\n.env")], &["b", "sub/b"]),
        ];
        for (what, others, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            work.iter().for_each(|name| write(dir.path(), name, ""));
            let here = dir.path().to_str().unwrap();
            others.iter().for_each(|(name, text)| write(dir.path(), name, &text.replace("DIR", here)));
            let expected: Vec<String> = expected.iter().map(|name| name.replace('#', ".")).collect();
            assert_eq!(packed(&dir.path().join("a/tree")), expected, "{what}");
            let link = dir.path().join("link");
            symlink("a/tree", &link).unwrap();
            assert_eq!(packed(&link), expected, "{what}, by a link");
        }
    }

    #[test]
    fn the_work_directory_is_packed_without_repositories_and_our_own_folder() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            (".gitignore", "*.log\n/target/\n"),
            (".nodekeeperignore", "data/big\n"),
            (".hidden", ""),
            ("run.py", "print(1)"),
            ("x.log", ""),
            ("target/x", ""),
            ("data/big", ""),
            ("data/small", ""),
            (".git/config", ""),
            (".nodekeeper/env", "secret"),
        ] {
            write(dir.path(), name, text);
        }
        symlink("run.py", dir.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("data/socket")).unwrap();
        let left_out = folder(dir.path(), pack_unignored).unwrap().left_out.to_string();
        assert_eq!(left_out, "its pipes, sockets and devices: data/socket");
        let names = [".gitignore", ".hidden", ".nodekeeperignore", "data/small", "link", "run.py"];
        assert_eq!(packed(dir.path()), names);
    }

    #[test]
    fn a_work_directory_has_the_bounds_of_an_input() {
        let (large, deep) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        File::create(large.path().join("hole")).unwrap().set_len(2 << 40).unwrap();
        fs::create_dir_all(deep.path().join("d/".repeat(MAX_DEPTH + 2))).unwrap();
        for dir in [&large, &deep] {
            let all = folder(dir.path(), |path, to| pack_folder(&File::open(path)?, to, &Choice::ALL)).err().unwrap();
            assert_eq!(folder(dir.path(), pack_unignored).err().unwrap().to_string(), all.to_string());
        }
    }
}
