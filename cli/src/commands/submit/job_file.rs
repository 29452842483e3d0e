//! `submit --file`: a job from each line of a file.
//!
//! Guarantees: nothing is written before every line is understood, and one error lists the mistakes. The same file given again
//! writes only the missing jobs, because the ids follow from its content and from the time at which it was begun. If not all jobs
//! were written, the error names the lines. A file whose jobs are all stored and have all ended is new: a file that is submitted
//! each night runs each night.
//! Does not: remember a file longer than events are kept (`history.events_days`), or which jobs outside of it its names meant: those
//! of the missing jobs are looked up again.
//!
//! One event with the subject `submission#…` remembers a file: when it was begun last, and whether all of its jobs are stored.

use super::bulk::{self, Written};
use super::job_line::{self, NamedAfter};
use super::{followed, input};
use crate::changes::operate::{accepting, retention};
use crate::commands::submit::{self, SubmitArgs};
use crate::console::{Cluster, Context, Exit, UsageError, bounded, show};
use crate::view::find::Finder;
use anyhow::Context as _;
use model::array::Array;
use model::auth::hex;
use model::events::Event;
use model::ids::{JobId, Ulid};
use model::ranges::Ranges;
use model::rng::Rng;
use model::time::Time;
use model::{ActionName, AfterEnd, Job, JobSpec};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use store::WriteError;
use store::transactions::Retention;

const MAX_JOBS: usize = 100_000;
/// How many mistakes an error lists.
const MOST_MISTAKES: usize = 10;

struct FileLine {
    number: usize,
    spec: JobSpec,
    after: NamedAfter,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &SubmitArgs, file: &Path) -> anyhow::Result<Exit> {
    let shown = if file.as_os_str() == "-" { "standard input".to_owned() } else { file.display().to_string() };
    let lines = input::open(&mut *context.input, file).with_context(|| format!("{shown} cannot be read"))?;
    let bytes = bounded::bytes(lines, &shown, bounded::MOST_OF_MANY)?;
    let (defaults, files) = args.job.spec(&args.command)?;
    files.refuse_other_jobs()?;
    let lines = understand(&bytes, &defaults, &shown)?;
    // Every job is checked before anything is written.
    let now = context.now();
    let checked = lines.iter().map(|line| Job::submit(Array::new(now, 0).job(0), line.spec.clone(), now));
    let mistakes = lines
        .iter()
        .zip(checked)
        .filter_map(|(line, job)| Some((line.number, job_line::about_fields(&job.err()?.0.join("; ")))));
    refuse(&shown, mistakes.collect())?;
    let cluster = context.cluster().await?;
    let (token, name) = digest(&bytes, &defaults, args)?;
    accepting(&cluster, lines.iter().map(|line| &line.spec)).await?;
    let keep = retention(&cluster).await?;
    let subject = format!("submission#{name}");
    let file = JobFile { args, cluster: &cluster, lines: &lines, shown: &shown, token, subject, keep, now };
    let submission = file.begin_or_go_on(context).await?;
    let array = file.array(submission.begun_at);
    let jobs: Vec<Job> = (0_u32..)
        .zip(specs(&lines, &submission.outside, array))
        .map(|(n, spec)| Job::submit(array.job(n), spec, now))
        .collect::<Result<_, _>>()
        .map_err(|e| UsageError(e.to_string()))?;
    let before = show::when(submission.begun_at, now);
    if submission.is_complete {
        writeln!(
            context.err,
            "all of it was submitted {before}, and not all of its jobs have ended, so nothing was written: give --again to submit \
             the same once more"
        )?;
        return file.given_again(context, &jobs).await;
    }
    if !submission.is_new {
        if now.since(submission.begun_at) >= keep.finished {
            anyhow::bail!(
                "{shown} was begun {before} and not all of it was written; jobs that have ended since may not be stored \
                 any more, so it is not known what is missing: give --again to submit all of it"
            );
        }
        writeln!(context.err, "it was begun {before}: only what is missing is written")?;
    }
    files.store(context, &cluster).await?;
    let written = bulk::write(&cluster, &jobs, !submission.is_new).await;
    if written.error.is_some() {
        return file.broken(context, &jobs, written);
    }
    file.end(&submission).await?;
    submit::submitted(context, &cluster, args, written.jobs).await
}

/// The token of the ids, and the name of the submission. The same content with the same options gives the same.
fn digest(bytes: &[u8], defaults: &JobSpec, args: &SubmitArgs) -> anyhow::Result<(u64, String)> {
    let mut hash = Sha256::new();
    hash.update(serde_json::to_vec(defaults)?);
    // The jobs as the options name them, and not their ids: a name may stand for another job later.
    for follows in args.job.after() {
        hash.update(serde_json::to_vec(&follows)?);
    }
    hash.update([0]);
    hash.update(bytes);
    if args.again {
        hash.update(Rng::real().bits().to_be_bytes());
    }
    let digest = hash.finalize();
    let first: [u8; 8] = digest.get(..8).and_then(|some| some.try_into().ok()).unwrap_or_default();
    Ok((u64::from_be_bytes(first), hex(digest.get(..16).unwrap_or_default())))
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
fn understand(bytes: &[u8], defaults: &JobSpec, shown: &str) -> anyhow::Result<Vec<FileLine>> {
    let Value::Object(defaults) = serde_json::to_value(defaults)? else { anyhow::bail!("a job is not an object") };
    let (mut lines, mut mistakes) = (Vec::new(), Vec::new());
    for (line, number) in bounded::text(bytes, shown)?.lines().zip(1..) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        match job_line::read(line, &defaults) {
            Ok((spec, after)) => lines.push(FileLine { number, spec, after }),
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

/// The jobs outside the file that lines follow, by the names in the lines. If one of them is not stored, this is an error, and
/// nothing is written.
async fn others(
    cluster: &Cluster,
    finder: &mut Finder<'_>,
    lines: &[FileLine],
    shown: &str,
) -> anyhow::Result<BTreeMap<String, Vec<JobId>>> {
    let (mut earlier, mut others, mut mistakes) = (BTreeSet::new(), BTreeMap::new(), Vec::new());
    for line in lines {
        let mut after = BTreeMap::new();
        for (given, end) in line.after.iter().filter(|(given, _)| !earlier.contains(given.as_str())) {
            if !others.contains_key(given) {
                match finder.jobs(given).await {
                    Ok(ids) => _ = others.insert(given.clone(), ids),
                    Err(e) => mistakes.push((line.number, format!("no earlier line has this name, and {e}"))),
                }
            }
            others.get(given).into_iter().flatten().for_each(|id| followed::follow(&mut after, *id, *end));
        }
        if let Err(e) = followed::check(cluster, &after).await {
            mistakes.push((line.number, e.to_string()));
        }
        earlier.extend(line.spec.name.as_deref());
    }
    refuse(shown, mistakes)?;
    Ok(others)
}

/// The jobs of the lines. A line follows only earlier lines with the given name, so lines make no circle.
fn specs(lines: &[FileLine], outside: &Outside, array: Array) -> Vec<JobSpec> {
    let mut earlier: BTreeMap<&str, Vec<JobId>> = BTreeMap::new();
    let mut specs = Vec::with_capacity(lines.len());
    for (n, line) in (0_u32..).zip(lines) {
        let mut spec = JobSpec { after: outside.of_options.clone(), ..line.spec.clone() };
        for (given, end) in &line.after {
            let ids = earlier.get(given.as_str()).or_else(|| outside.of_lines.get(given));
            ids.into_iter().flatten().for_each(|id| followed::follow(&mut spec.after, *id, *end));
        }
        specs.push(spec);
        if let Some(name) = line.spec.name.as_deref() {
            earlier.entry(name).or_default().push(array.job(n));
        }
    }
    specs
}

/// A submission of a file, which is new or was begun before.
struct Submission {
    begun_at: Time,
    is_new: bool,
    is_complete: bool,
    outside: Outside,
    /// The event that remembers it.
    event: Event,
}

/// The jobs outside a file that its jobs follow.
#[derive(Debug, Default)]
struct Outside {
    /// The jobs that the options name. Every job follows them.
    of_options: BTreeMap<JobId, AfterEnd>,
    /// The jobs that lines name, by the given name.
    of_lines: BTreeMap<String, Vec<JobId>>,
}

/// The id of the event that remembers a file. It is fixed: of two programs that begin at once, only one can write the event.
const REMEMBERED: Ulid = Ulid::nil();

struct JobFile<'a> {
    args: &'a SubmitArgs,
    cluster: &'a Cluster,
    lines: &'a [FileLine],
    /// The name of the file, for people.
    shown: &'a str,
    /// The part of the ids of its jobs that follows from its content.
    token: u64,
    /// The subject of its events.
    subject: String,
    keep: Retention,
    now: Time,
}

impl JobFile<'_> {
    fn array(&self, begun_at: Time) -> Array {
        Array::new(begun_at, self.token)
    }

    /// The earlier submission of this file if it is not over, otherwise a new one.
    async fn begin_or_go_on(&self, context: &mut Context<'_>) -> anyhow::Result<Submission> {
        let Some(earlier) = self.earlier().await? else { return self.begin(None).await };
        if !earlier.is_complete || !self.has_ended(earlier.begun_at).await? {
            return Ok(earlier);
        }
        let before = show::when(earlier.begun_at, self.now);
        writeln!(context.err, "it was submitted {before}, and all of its jobs have ended: it is submitted anew")?;
        self.begin(Some(&earlier.event)).await
    }

    /// Looks up the names of the jobs outside the file.
    async fn find_outside(&self) -> anyhow::Result<Outside> {
        let mut finder = Finder::new(self.cluster);
        let of_options = followed::of_options(self.cluster, &mut finder, self.args.job.after()).await?;
        let of_lines = others(self.cluster, &mut finder, self.lines, self.shown).await?;
        Ok(Outside { of_options, of_lines })
    }

    fn event(&self, begun_at: Time, is_complete: bool) -> Event {
        let detail = [("at", begun_at.as_ms().into()), ("complete", is_complete.into())];
        Event {
            subject: self.subject.clone(),
            id: REMEMBERED.to_string(),
            action: ActionName::Submit.to_string(),
            reason: format!("{} of a file", show::several(self.lines.len(), "job")),
            detail: detail.map(|(name, value)| (name.to_owned(), value)).into(),
            expires_at: (self.now + self.keep.events).as_epoch_s(),
            once: None,
        }
    }

    /// The earlier submission of this file; `None` if there was none.
    async fn earlier(&self) -> anyhow::Result<Option<Submission>> {
        let Some(event) = self.cluster.store.history(&self.subject, 1).await?.into_iter().next() else {
            return Ok(None);
        };
        let begun_at = event.detail.get("at").and_then(Value::as_i64);
        let begun_at =
            begun_at.context("the event of an earlier submission of this file cannot be read: give --again")?;
        let is_complete = event.detail.get("complete").and_then(Value::as_bool).unwrap_or(false);
        // No more jobs of a complete one are written, so what they follow is not needed.
        let outside = if is_complete { Outside::default() } else { self.find_outside().await? };
        Ok(Some(Submission { begun_at: Time::from_ms(begun_at), is_new: false, is_complete, outside, event }))
    }

    /// Whether all its stored jobs have ended.
    async fn has_ended(&self, begun_at: Time) -> anyhow::Result<bool> {
        let array = self.array(begun_at);
        let stored = self.cluster.store.jobs_of((0_u32..).take(self.lines.len()).map(|n| array.job(n))).await?;
        Ok(stored.unreadable.is_empty() && stored.rows.iter().all(|job| job.summary.state.is_ended()))
    }

    /// Stores the event of the beginning, in place of the event `before` of a submission that is over.
    async fn begin(&self, before: Option<&Event>) -> anyhow::Result<Submission> {
        let outside = self.find_outside().await?;
        let event = self.event(self.now, false);
        let written = match before {
            None => self.cluster.store.record(&event).await,
            Some(before) => self.cluster.store.record_over(before, &event).await,
        };
        match written {
            Ok(()) => Ok(Submission { begun_at: self.now, is_new: true, is_complete: false, outside, event }),
            // Another program began the same file meanwhile.
            Err(WriteError::Conflict(_)) => {
                self.earlier().await?.context("another program began it meanwhile, and its event is gone: try again")
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Stores in its event that all jobs are stored.
    async fn end(&self, submission: &Submission) -> anyhow::Result<()> {
        let complete = self.event(submission.begun_at, true);
        match self.cluster.store.record_over(&submission.event, &complete).await {
            // Another program has done so.
            Ok(()) | Err(WriteError::Conflict(_)) => Ok(()),
            Err(e) => Err(anyhow::Error::new(e).context("every job is stored, but its event does not say so")),
        }
    }

    /// Prints the ids of the earlier submission.
    async fn given_again(&self, context: &mut Context<'_>, jobs: &[Job]) -> anyhow::Result<Exit> {
        let ids = jobs.iter().map(|job| job.summary.job_id);
        let mut stored = show::readable(context.err, self.cluster.store.jobs_of(ids).await?)?;
        stored.sort_by_key(|job| job.summary.job_id);
        if stored.len() < jobs.len() {
            let gone = show::several(jobs.len() - stored.len(), "job");
            writeln!(context.err, "{gone} of them ended long ago and are not stored any more")?;
        }
        submit::submitted(context, self.cluster, self.args, stored).await
    }

    /// Prints which jobs are stored, and the lines of the others.
    fn broken(&self, context: &mut Context<'_>, jobs: &[Job], written: Written) -> anyhow::Result<Exit> {
        let numbers = |of: &BTreeSet<JobId>| {
            let those = self.lines.iter().zip(jobs).filter(|(_, job)| of.contains(&job.summary.job_id));
            ranges(those.map(|(line, _)| line.number))
        };
        submit::print(context, self.args, &written.jobs)?;
        let missing = numbers(&written.missing);
        writeln!(context.err, "{} of {} jobs are in; not in: lines {missing}", written.jobs.len(), jobs.len())?;
        if !written.unclear.is_empty() {
            writeln!(context.err, "not known: lines {}", numbers(&written.unclear))?;
        }
        let error = written.error.map_or_else(|| anyhow::anyhow!("it was interrupted"), anyhow::Error::new);
        Err(error.context("not all jobs are in; give the same file again to submit the rest"))
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
        understand(text.as_bytes(), &defaults, "f")
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
