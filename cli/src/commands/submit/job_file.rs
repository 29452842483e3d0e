//! `submit --file`: a job from each line of a file.
//!
//! Guarantees: nothing is written before every line is understood, and one error lists the mistakes. A line with a key is a
//! submission of its own. Lines without keys are one submission: of `--key`, or else of their content. Given again, it writes only the
//! missing jobs. If not all jobs were written, the error names the lines. A file without keys whose jobs have all ended is new: a
//! file that is submitted each night runs each night.
//! Does not: remember which jobs outside of the file its names meant: those of the missing jobs are looked up again.

use super::bulk::{self, Together, Written};
use super::followed::JobNames;
use super::input;
use super::job_files::{FileOptions, FromJob, LocalFiles};
use super::job_line::{self, JobLine};
use super::submission::{self, Begin, Earlier, GivenParts, Keyed, TRIES, digest, submit_once};
use crate::changes::operate::{accepting, lacking};
use crate::commands::submit::{self, SubmitArgs};
use crate::console::{Cluster, Context, Exit, UsageError, bounded, show};
use crate::view::find::NoSuch;
use anyhow::{Context as _, bail};
use model::ids::Ulid;
use model::{AfterEnd, Array, Job, JobId, JobSpec, Ranges, Rng, Time};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use store::WriteError;
use store::transactions::JOBS_TOGETHER;

const MAX_JOBS: usize = 100_000;
/// How many mistakes an error lists.
const MOST_MISTAKES: usize = 10;

struct FileLine {
    number: usize,
    spec: JobSpec,
    after: Vec<(String, AfterEnd)>,
    from_jobs: Vec<FromJob>,
}

impl FileLine {
    /// The names of other jobs in the line. The same names may mean other jobs later.
    fn names(&self) -> Value {
        json!({"after": self.after, "in": self.from_jobs})
    }
}

pub(crate) async fn run(context: &mut Context<'_>, args: &SubmitArgs, file: &Path) -> anyhow::Result<Exit> {
    let shown = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
    let lines = input::open(&mut *context.input, file).with_context(|| format!("{shown} cannot be read"))?;
    let bytes = bounded::bytes(lines, &shown, bounded::MOST_OF_MANY)?;
    let jobs = submit(context, args, &bytes, &shown).await?;
    let cluster = context.cluster().await?;
    submit::submitted(context, &cluster, (args.wait, args.json), jobs).await
}

/// Submits the jobs of these lines. Returns them in the order of the lines.
pub(crate) async fn submit(
    context: &mut Context<'_>,
    args: &SubmitArgs,
    bytes: &[u8],
    shown: &str,
) -> anyhow::Result<Vec<Job>> {
    let defaults = JobSpec { key: None, ..args.job.fields(&args.command)? };
    let mut files = LocalFiles::default();
    let lines = understand(bytes, &defaults, &args.job.files, &mut files, shown)?;
    // Every job is checked before anything is written.
    let now = context.now();
    let checked = lines.iter().map(|line| Job::submit(JobId::new(Ulid::nil()), line.spec.clone(), now));
    let mistakes = lines
        .iter()
        .zip(checked)
        .filter_map(|(line, job)| Some((line.number, job_line::about_fields(&job.err()?.0.join("; ")))));
    refuse(shown, mistakes.collect())?;
    let keyed = keys(&lines, shown)?;
    let cluster = context.cluster().await?;
    let file = JobFile { args, cluster: &cluster, lines: &lines, files: &files, shown, now };
    match keyed {
        Some(keys) => file.submit_lines(context, &keys).await,
        None => file.submit_whole(context).await,
    }
}

fn refuse(shown: &str, mistakes: Vec<(usize, String)>) -> Result<(), UsageError> {
    if mistakes.is_empty() {
        return Ok(());
    }
    let told: Vec<String> =
        mistakes.iter().take(MOST_MISTAKES).map(|(line, what)| format!("line {line}: {}", show::brief(what))).collect();
    let more = mistakes.len().saturating_sub(MOST_MISTAKES);
    let more = if more > 0 { format!("; and {more} more lines") } else { String::new() };
    Err(UsageError(format!("nothing of {shown} was submitted: {}{more}", told.join("; "))))
}

/// The jobs of a file. Empty lines and lines that begin with `#` are left out.
fn understand(
    bytes: &[u8],
    defaults: &JobSpec,
    options: &FileOptions,
    files: &mut LocalFiles,
    shown: &str,
) -> anyhow::Result<Vec<FileLine>> {
    let Value::Object(defaults) = serde_json::to_value(defaults)? else { bail!("a job is not an object") };
    let (mut lines, mut mistakes) = (Vec::new(), Vec::new());
    for (line, number) in bounded::text(bytes, shown)?.lines().zip(1..) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let read = job_line::read(line, &defaults).and_then(|JobLine { mut spec, after, files: given }| {
            let from_jobs = given.over(options).read(&mut spec.work, files).map_err(|e| format!("{e:#}"))?;
            Ok(FileLine { number, spec, after, from_jobs })
        });
        match read {
            Ok(line) => lines.push(line),
            Err(what) => mistakes.push((number, what)),
        }
    }
    refuse(shown, mistakes)?;
    match lines.len() {
        0 => Err(UsageError(format!(
            "{shown} has no job: give one JSON object a line, such as {{\"command\": [\"true\"]}}"
        ))
        .into()),
        n if n > MAX_JOBS => {
            Err(UsageError(format!("{shown} has {n} jobs, at most {MAX_JOBS} are allowed: split it")).into())
        }
        _ => Ok(lines),
    }
}

/// The keys of the lines, if they have keys.
fn keys(lines: &[FileLine], shown: &str) -> anyhow::Result<Option<Vec<Keyed>>> {
    if lines.iter().all(|line| line.spec.key.is_none()) {
        return Ok(None);
    }
    let (mut known, mut keys, mut mistakes) = (BTreeMap::new(), Vec::new(), Vec::new());
    for line in lines {
        let Some(key) = line.spec.key.as_deref() else {
            mistakes.push((
                line.number,
                "it has no key, and other lines have one: give each line a key, or none".to_owned(),
            ));
            continue;
        };
        if let Some(first) = known.insert(key, line.number) {
            mistakes.push((line.number, format!("line {first} has the same key")));
        }
        keys.push(Keyed::new(key, GivenParts::of(&line.spec, &line.names())?));
    }
    refuse(shown, mistakes)?;
    Ok(Some(keys))
}

struct JobFile<'a> {
    args: &'a SubmitArgs,
    cluster: &'a Cluster,
    lines: &'a [FileLine],
    files: &'a LocalFiles,
    /// The name of the file, for people.
    shown: &'a str,
    now: Time,
}

impl JobFile<'_> {
    /// Submits a file whose lines have no keys.
    async fn submit_whole(&self, context: &mut Context<'_>) -> anyhow::Result<Vec<Job>> {
        let mut content: Vec<String> =
            self.lines.iter().map(|line| json!([line.spec, line.names()]).to_string()).collect();
        // The jobs that all lines follow, as the options name them.
        content.push(json!(self.args.job.after().collect::<Vec<_>>()).to_string());
        if self.args.again {
            content.push(Rng::real().bits().to_string());
        }
        let content = digest(content.iter().map(String::as_bytes));
        let key = match self.args.job.key.as_deref() {
            Some(key) => Keyed::new(key, GivenParts::of_parts([("lines or options", content)])),
            None => Keyed::of_file(&content),
        };
        let begin = match key.earlier(&self.cluster.store).await? {
            None => Begin::New,
            Some(earlier) if !earlier.is_complete || self.args.job.key.is_some() => Begin::GoesOn(earlier),
            Some(earlier) if self.has_ended(&earlier).await? => {
                let before = show::when(earlier.first.made_at(), self.now);
                writeln!(
                    context.err,
                    "it was submitted {before}, and all of its jobs have ended: it is submitted anew"
                )?;
                Begin::Anew(earlier)
            }
            Some(earlier) => return self.not_written(context, &earlier).await,
        };
        let jobs = async |context: &mut Context<'_>, first| {
            let jobs = self.jobs(&self.ids(first), &BTreeMap::new()).await?;
            self.prepare(context, &self.lines.iter().collect::<Vec<_>>()).await?;
            Ok(jobs)
        };
        let ids = |first| self.ids(first);
        let (first, written) = submit_once(context, self.cluster, Some((key, begin)), ids, jobs).await?;
        self.all_of(context, &self.ids(first), written)
    }

    /// Submits a file whose lines have keys.
    async fn submit_lines(&self, context: &mut Context<'_>, keys: &[Keyed]) -> anyhow::Result<Vec<Job>> {
        let fresh = submission::fresh(self.cluster, self.now);
        for _ in 0..TRIES {
            let mut mistakes = Vec::new();
            let mut ids = self.ids(fresh);
            let mut known = BTreeSet::new();
            let earlier = submission::earlier(&self.cluster.store, keys).await?;
            for ((line, earlier), id) in self.lines.iter().zip(earlier).zip(&mut ids) {
                match earlier.transpose() {
                    Ok(None) => {}
                    Ok(Some(earlier)) => {
                        *id = earlier.first;
                        known.insert(earlier.first);
                    }
                    Err(e) => mistakes.push((line.number, e.to_string())),
                }
            }
            refuse(self.shown, mistakes)?;
            let known: Vec<JobId> = known.into_iter().collect();
            let stored = submission::stored(&self.cluster.store, &known, self.now).await?;
            let stored: BTreeMap<JobId, Job> = stored.into_iter().map(|job| (job.summary.job_id, job)).collect();
            let jobs = self.jobs(&ids, &stored).await?;
            let is_new = |job: &&Job| !stored.contains_key(&job.summary.job_id);
            let new = submission::signed(self.cluster, jobs.iter().filter(is_new).cloned().collect()).await?;
            let rows = keys.iter().zip(&jobs).filter(|(_, job)| is_new(job));
            let rows = rows.map(|(key, job)| Ok((job.summary.job_id, key.row(job.summary.job_id, true, self.now)?)));
            let rows = rows.collect::<anyhow::Result<Vec<_>>>()?;
            if !new.is_empty() {
                let lines = self.lines.iter().zip(&jobs).filter(|(_, job)| is_new(job));
                self.prepare(context, &lines.map(|(line, _)| line).collect::<Vec<_>>()).await?;
            }
            let together = new.chunks(JOBS_TOGETHER).zip(rows.chunks(JOBS_TOGETHER));
            let together = together.map(|(jobs, keys)| Together { jobs, keys: keys.to_vec() }).collect();
            let mut written = bulk::write(self.cluster, together, false).await;
            if !matches!(written.error, Some(WriteError::Conflict(_))) {
                written.jobs.extend(stored.into_values());
                return self.all_of(context, &ids, written);
            }
        }
        Err(submission::contended())
    }

    /// Checks that the policy accepts these new lines, and stores the files.
    async fn prepare(&self, context: &mut Context<'_>, lines: &[&FileLine]) -> anyhow::Result<()> {
        let specs = lines.iter().map(|line| &line.spec);
        let lacking = lacking(self.cluster, specs.clone()).await.into_iter();
        let of_line = |(n, why): (usize, String)| Some((lines.get(n)?.number, job_line::about_fields(&why)));
        refuse(self.shown, lacking.filter_map(of_line).collect())?;
        accepting(self.cluster, specs).await?;
        self.files.store(context, self.cluster).await
    }

    /// The ids of the lines, from this one on. The last bits of an id are its number, but of the id of one line they stay random: jobs
    /// are spread by them.
    fn ids(&self, first: JobId) -> Vec<JobId> {
        if self.lines.len() == 1 {
            return vec![first];
        }
        (0_u32..).take(self.lines.len()).map(|n| Array::of(first).job(n)).collect()
    }

    /// The jobs of the lines, with these ids. Those that are stored already are as they are. A line means, by a name, only earlier
    /// lines with the name, so lines make no circle. If a job that one of the others needs is not stored, this is an error.
    async fn jobs(&self, ids: &[JobId], stored: &BTreeMap<JobId, Job>) -> anyhow::Result<Vec<Job>> {
        let (mut names, mut of_all) = (JobNames::new(self.cluster), JobSpec::default());
        names.add(self.args.job.after(), &[], &BTreeMap::new(), &mut of_all).await?;
        let mut earlier: BTreeMap<&str, Vec<Job>> = BTreeMap::new();
        let (mut jobs, mut mistakes) = (Vec::new(), Vec::new());
        for (line, id) in self.lines.iter().zip(ids) {
            let mut spec = JobSpec { after: of_all.after.clone(), ..line.spec.clone() };
            let after = line.after.iter().map(|(given, end)| (given.as_str(), *end));
            if !stored.contains_key(id)
                && let Err(e) = names.add(after, &line.from_jobs, &earlier, &mut spec).await
            {
                let no_line = if e.is::<NoSuch>() { "no earlier line has this name, and " } else { "" };
                mistakes.push((line.number, format!("{no_line}{e}")));
            }
            spec.key = spec.key.or_else(|| self.args.job.key.clone());
            let job = match stored.get(id) {
                Some(job) => job.clone(),
                None => Job::submit(*id, spec, self.now).map_err(|e| UsageError(e.to_string()))?,
            };
            if let Some(name) = line.spec.name.as_deref() {
                earlier.entry(name).or_default().push(job.clone());
            }
            jobs.push(job);
        }
        refuse(self.shown, mistakes)?;
        Ok(jobs)
    }

    /// Whether all stored jobs of an earlier submission have ended.
    async fn has_ended(&self, earlier: &Earlier) -> anyhow::Result<bool> {
        let stored = self.cluster.store.jobs_of(self.ids(earlier.first)).await?;
        Ok(stored.unreadable.is_empty() && stored.rows.iter().all(|job| job.summary.state.is_ended()))
    }

    /// The stored jobs of an earlier submission of the same lines without a key.
    async fn not_written(&self, context: &mut Context<'_>, earlier: &Earlier) -> anyhow::Result<Vec<Job>> {
        let ids = self.ids(earlier.first);
        let before = show::when(earlier.first.made_at(), self.now);
        writeln!(
            context.err,
            "all of it was submitted {before}, and not all of its jobs have ended, so nothing was written: give --again to submit \
             the same once more"
        )?;
        let mut stored = show::readable(context.err, self.cluster.store.jobs_of(ids.iter().copied()).await?)?;
        stored.sort_by_key(|job| job.summary.job_id);
        if stored.len() < ids.len() {
            let gone = show::several(ids.len() - stored.len(), "job");
            writeln!(context.err, "{gone} of them ended long ago and are not stored any more")?;
        }
        Ok(stored)
    }

    /// The stored jobs in the order of the lines, which have these ids. If some are missing, prints those that are stored; the error
    /// names the lines of the others.
    fn all_of(&self, context: &mut Context<'_>, ids: &[JobId], written: Written) -> anyhow::Result<Vec<Job>> {
        let mut stored: BTreeMap<JobId, Job> = written.jobs.into_iter().map(|job| (job.summary.job_id, job)).collect();
        let there: Vec<Job> = ids.iter().filter_map(|id| stored.remove(id)).collect();
        let Some(error) = written.error else { return Ok(there) };
        let numbers = |of: &BTreeSet<JobId>| {
            let those = self.lines.iter().zip(ids).filter(|(_, id)| of.contains(id));
            ranges(those.map(|(line, _)| line.number))
        };
        submit::print(context, self.args.json, &there)?;
        let missing = numbers(&written.missing);
        writeln!(context.err, "{} of {} jobs are in; not in: lines {missing}", there.len(), ids.len())?;
        if !written.unclear.is_empty() {
            writeln!(context.err, "not known: lines {}", numbers(&written.unclear))?;
        }
        Err(anyhow::Error::new(error).context("not all jobs are in; give the same file again to submit the rest"))
    }
}

/// Numbers in order, as ranges: `1-4, 7`.
fn ranges(numbers: impl Iterator<Item = usize>) -> String {
    let ranges: Ranges = numbers.filter_map(|number| u32::try_from(number).ok()).collect();
    ranges.to_string().replace(',', ", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Needs;

    fn of(text: &str) -> anyhow::Result<Vec<FileLine>> {
        let defaults = JobSpec {
            env: [("A".into(), "1".into())].into(),
            needs: Needs { vcpus: 2, ..Needs::default() },
            ..JobSpec::running(["work"])
        };
        let mut files = LocalFiles::default();
        understand(text.as_bytes(), &defaults, &FileOptions::default(), &mut files, "f")
    }

    #[test]
    fn a_line_replaces_the_options_that_it_names() {
        let lines = of(concat!(
            "# jobs\n{}\n\n",
            r#"{"name": "x", "command": "echo a | wc", "memory": "1.5G", "timeout": "1h30m", "env": {"B": "2"}, "replace": true}"#,
            "\n",
            r#"{"command": ["a"], "memory": 7, "scratch_gib": 3, "lost_after_s": 0}"#
        ))
        .unwrap();
        assert_eq!(lines.iter().map(|line| line.number).collect::<Vec<_>>(), [2, 4, 5]);
        assert_eq!((lines[0].spec.work.command.as_slice(), lines[0].spec.needs.vcpus), (&["work".to_owned()][..], 2));
        let spec = &lines[1].spec;
        assert_eq!(spec.work.command, ["sh", "-c", "echo a | wc"]);
        assert_eq!((spec.needs.memory_mib, spec.work.timeout_s, spec.failure_policy.replace), (1536, 5400, true));
        assert_eq!(spec.env, [("A".into(), "1".into()), ("B".into(), "2".into())].into());
        let spec = &lines[2].spec;
        assert_eq!((spec.needs.memory_mib, spec.needs.scratch_gib, spec.failure_policy.lost_after_s), (7, 3, 0));
    }

    #[test]
    fn every_mistake_is_told_with_its_line() {
        let error =
            of("{}\n{\"vcpu\": 1}\nx\n{\"memory\": \"lots\"}\n{\"nodes\": \"two\"}\n[]").err().unwrap().to_string();
        for part in [
            "line 2: \"vcpu\" is not a field of a job: after, after_any, arch, array_limit, ",
            "line 3: it is not a JSON object",
            "line 4: memory: it must",
            "line 5: nodes: invalid type",
            "line 6: it is not a JSON object",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(error.starts_with("nothing of f was submitted") && !error.contains("line 1:"), "{error}");
        assert!(of("# only a comment\n").err().unwrap().to_string().contains("has no job"));
        let many = of(&"x\n".repeat(40)).err().unwrap().to_string();
        assert!(many.ends_with("; and 30 more lines"), "{many}");
    }

    #[test]
    fn a_mark_before_the_text_is_no_part_of_it() {
        assert_eq!(of("\u{feff}{}\n{}\n").unwrap().len(), 2);
        assert_eq!(of("\u{feff}# jobs\r\n{}\r\n").unwrap().len(), 1);
    }

    #[test]
    fn numbers_are_told_as_ranges() {
        assert_eq!(ranges([1, 2, 3, 7, 9, 10].into_iter()), "1-3, 7, 9-10");
        assert_eq!(ranges(std::iter::empty()), "");
    }
}
