//! Checks the results of the demonstration against the expected ones.
//!
//! Guarantees: every job, every result, the events of every slot, and everything that could be left over is checked. A failed check
//! says what is wrong with which job, slot or process.
//! Does not: change anything.

use super::progress::{Demo, End, TIME_LIMIT};
use super::work::{Expect, Task};
use anyhow::{Context as _, ensure};
use model::ids::{JobId, NodeId};
use model::{Alloc, ClientStatus, Desired, Job, JobState};
use std::collections::{BTreeMap, BTreeSet};
use std::{fmt, fs};

/// The most problems of one check that are printed. The others are counted.
const SHOWN: usize = 5;

/// One check: passed if it found no problem.
#[derive(Clone, Debug)]
pub(in crate::local) struct Check {
    what: String,
    problems: Vec<String>,
}

impl Check {
    fn new(what: impl Into<String>, problems: Vec<String>) -> Self {
        Self { what: what.into(), problems }
    }

    fn that(what: impl Into<String>, holds: bool, otherwise: impl FnOnce() -> String) -> Self {
        Self::new(what, if holds { Vec::new() } else { vec![otherwise()] })
    }

    /// The check that no process is left. It is made after everything was shut down.
    pub(in crate::local) fn nothing_left(processes: usize) -> Self {
        Self::that("every process that was started has ended", processes == 0, || {
            format!("{processes} processes are left")
        })
    }

    pub(super) fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}  {}", if self.is_ok() { "ok    " } else { "FAILED" }, self.what)?;
        for problem in self.problems.iter().take(SHOWN) {
            write!(f, "\n            {problem}")?;
        }
        match self.problems.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => write!(f, "\n            and {more} more"),
            _ => Ok(()),
        }
    }
}

/// An ended job with all its allocs.
struct Ended<'a> {
    task: &'a Task,
    job: Job,
    allocs: Vec<Alloc>,
}

pub(super) async fn checks(demo: &mut Demo<'_>, end: End) -> anyhow::Result<Vec<Check>> {
    let mut ended = BTreeMap::new();
    for (id, task) in &demo.jobs {
        if let Some(job) = demo.store().job(*id).await? {
            let allocs = demo.store().allocs_of(&job).await?.all()?;
            ended.insert(*id, Ended { task, job, allocs });
        }
    }
    let mut checks = vec![Check::that(
        format!("{} jobs ended and the fleet shut down within {}", demo.jobs.len(), TIME_LIMIT),
        end == End::InTime && ended.len() == demo.jobs.len(),
        || "it took longer".to_owned(),
    )];
    checks.extend(outcomes(ended.values()));
    checks.push(overtaking(demo, &ended));
    checks.push(once(ended.values()));
    let records = records(demo, ended.values()).await?;
    drop(ended);
    checks.extend(records);
    checks.extend(leftovers(demo).await?);
    Ok(checks)
}

/// Each job ended as expected; one check for each kind of expectation.
fn outcomes<'a>(ended: impl Iterator<Item = &'a Ended<'a>>) -> Vec<Check> {
    let mut groups: BTreeMap<&str, (usize, Vec<String>)> = BTreeMap::new();
    for one in ended {
        let (n, problems) = groups.entry(one.task.expect.what).or_default();
        *n += 1;
        problems.extend(one.check().err().map(|problem| format!("{}: {problem:#}", one.task.name)));
    }
    groups.into_iter().map(|(what, (n, problems))| Check::new(format!("{n} × {what}"), problems)).collect()
}

impl Ended<'_> {
    /// Returns an error that says what is wrong with the job.
    fn check(&self) -> anyhow::Result<()> {
        let Expect { state: wanted, exit_codes, results, .. } = &self.task.expect;
        let (is, reason) = (self.job.summary.state, self.job.reason.as_deref().unwrap_or_default());
        ensure!(is == *wanted, "is {is} ({}), not {wanted}", if reason.is_empty() { "no reason" } else { reason });
        if let Some(wanted) = exit_codes {
            let codes: Vec<_> = self.allocs.iter().map(|a| a.exit_code).collect();
            ensure!(codes == *wanted, "its exit codes are {codes:?}, not {wanted:?}");
            let says_why = |a: &Alloc| a.log_tail.as_deref().is_some_and(|t| t.contains("failing on purpose"));
            ensure!(self.allocs.iter().all(|a| a.exit_code == Some(0) || says_why(a)), "its output was not kept");
        }
        for (path, content) in results {
            let said =
                fs::read_to_string(path).with_context(|| format!("its result {} cannot be read", path.display()))?;
            ensure!(said.trim() == content, "says {:?}, not {content:?}", said.trim());
        }
        ensure!(is == JobState::Complete || !reason.is_empty(), "there is no reason");
        if is == JobState::Cancelled {
            let stopped = |a: &Alloc| a.summary.desired == Desired::Stop && a.summary.client.is_final();
            ensure!(self.allocs.len() == 1 && self.allocs.iter().all(stopped), "it was not stopped");
        }
        if self.job.summary.needs.nodes > 1 {
            self.together()?;
        }
        Ok(())
    }

    /// All members ran at the same time, each on a node of its own.
    fn together(&self) -> anyhow::Result<()> {
        let done: Vec<&Alloc> = self.completed().collect();
        let nodes: BTreeSet<NodeId> = done.iter().map(|a| a.summary.node_id).collect();
        ensure!(nodes.len() == self.job.summary.needs.nodes as usize, "its members ran on {} nodes", nodes.len());
        let placed = done.iter().map(|a| a.summary.placed_at).max();
        let finished = done.iter().filter_map(|a| a.finished_at).min();
        ensure!(placed < finished, "its members did not run at the same time");
        Ok(())
    }

    fn completed(&self) -> impl Iterator<Item = &Alloc> {
        self.allocs.iter().filter(|a| a.summary.client == ClientStatus::Complete)
    }
}

/// The late, urgent job was placed before jobs that already waited.
fn overtaking(demo: &Demo<'_>, ended: &BTreeMap<JobId, Ended<'_>>) -> Check {
    let first = |one: &Ended<'_>| one.allocs.iter().map(|a| a.summary.placed_at).min();
    let urgent = ended.values().find(|one| one.task.name == "urgent").and_then(first);
    let waited = demo.overtaken.iter().filter_map(|id| ended.get(id));
    let placed: Vec<_> = waited.filter_map(first).collect();
    let behind = placed.iter().filter(|at| urgent.is_some_and(|urgent| urgent < **at)).count();
    Check::that(
        format!("the late urgent job overtook {behind} of the {} jobs that waited", placed.len()),
        behind > 0,
        || "it overtook none".to_owned(),
    )
}

/// No member of a job completed twice.
fn once<'a>(ended: impl Iterator<Item = &'a Ended<'a>>) -> Check {
    let is_twice = |one: &&Ended<'_>| {
        let members: BTreeSet<u32> = one.completed().map(|a| a.id().member).collect();
        members.len() < one.completed().count()
    };
    let problems = ended.filter(is_twice).map(|one| format!("{}: completed more than once", one.task.name)).collect();
    Check::new("nothing was done twice", problems)
}

/// Events record every node from launch to end, and every placement.
async fn records<'a>(demo: &Demo<'_>, ended: impl Iterator<Item = &'a Ended<'a>>) -> anyhow::Result<Vec<Check>> {
    let events = demo.store().events().await?;
    let recorded =
        |subject: &str, action: &str| events.iter().filter(|e| e.subject == subject && e.action == action).count();
    let nodes = demo.store().nodes().await?;
    let mut problems = Vec::new();
    let mut lives = 0;
    for node in &nodes {
        let subject = format!("slot#{}", node.slot);
        let launched = recorded(&subject, "launch");
        lives += launched;
        for action in ["launch", "shut_down", "clean"] {
            let n = recorded(&subject, action);
            if n == 0 || n != launched {
                problems.push(format!("slot {}: {launched} × launch, but {n} × {action}", node.slot));
            }
        }
    }
    if lives == 0 {
        problems.push("no node was launched".to_owned());
    }
    let unplaced = ended
        .filter(|one| !one.allocs.is_empty() && recorded(&format!("job#{}", one.job.summary.job_id), "place") == 0);
    let unplaced = unplaced.map(|one| format!("{}: no event records its placement", one.task.name)).collect();
    let silent = events.iter().filter(|e| e.reason.is_empty()).map(|e| format!("{} {}", e.subject, e.action)).collect();
    Ok(vec![
        Check::new(format!("the events record {lives} nodes: launched, shut down, cleaned"), problems),
        Check::new("the events record every placement", unplaced),
        Check::new("every event has a reason", silent),
    ])
}

/// Nothing is left over.
async fn leftovers(demo: &mut Demo<'_>) -> anyhow::Result<Vec<Check>> {
    let live = demo.live_instances();
    let handles = demo.handles().await?;
    let nodes = demo.store().nodes().await?;
    let open = nodes.iter().filter(|n| !n.is_cleaned());
    let open = open.map(|n| format!("slot {} is {}: {}", n.slot, n.state_name(), n.reason)).collect();
    let allocs = demo.store().live_allocs().await?;
    let processes = demo.stack.machines.processes();
    let stats = demo.stack.functions.as_ref().map(|functions| functions.stats()).unwrap_or_default();
    let errors = stats.iter().filter(|s| s.errors > 0).map(|s| {
        let last = s.last.as_ref().filter(|l| !l.ok).map_or("", |l| l.result.as_str());
        format!("{}: {} of {} runs {last}", s.function, s.errors, s.invocations)
    });
    let runs: u64 = stats.iter().map(|s| s.invocations).sum();
    Ok(vec![
        Check::new(format!("none of {runs} function runs failed"), errors.collect()),
        Check::new("every node record is cleaned", open),
        Check::new(format!("none of {} instances is left", demo.instances.len()), live),
        Check::that("no alloc is left", allocs.is_empty(), || format!("{} are live", allocs.len())),
        Check::that("no handle is left", handles == 0, || format!("{handles} rows")),
        Check::that("no process of a machine is left", processes == 0, || format!("{processes} run")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::JobSpec;
    use model::time::Time;

    fn ended(expect: Expect, nodes: u32) -> Result<(), String> {
        let (spec, wanted) = (JobSpec::running(["true"]), expect.state);
        let mut job = Job::submit(JobId::new(ulid::Ulid::nil()), spec.clone(), Time::from_ms(0)).unwrap();
        (job.summary.state, job.summary.needs.nodes) = (JobState::Complete, nodes);
        let task = Task { name: "it".into(), spec, expect };
        let mut one = Ended { task: &task, job, allocs: Vec::new() };
        if wanted != JobState::Complete {
            assert!(one.check().unwrap_err().to_string().contains("is complete"));
            one.job.summary.state = wanted;
        }
        one.check().map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn an_outcome_needs_the_expected_state_and_the_expected_result() {
        let dir = tempfile::tempdir().unwrap();
        let result = dir.path().join("result");
        let ends = |state| Expect::new("it works", state);
        let says = || Expect { results: vec![(result.clone(), "42".into())], ..ends(JobState::Complete) };
        assert!(ended(says(), 1).unwrap_err().contains("cannot be read"));
        fs::write(&result, "41\n").unwrap();
        assert!(ended(says(), 1).unwrap_err().contains("\"41\""));
        fs::write(&result, "42\n").unwrap();
        ended(says(), 1).unwrap();
        let fails = Expect { exit_codes: Some(vec![Some(3)]), ..ends(JobState::Failed) };
        assert!(ended(fails, 1).unwrap_err().contains("exit codes are []"));
        assert!(ended(ends(JobState::Cancelled), 1).is_err(), "cancelled before it ran");
        let rejected = Expect { exit_codes: Some(Vec::new()), ..ends(JobState::Rejected) };
        assert!(ended(rejected, 1).unwrap_err().contains("no reason"));
        assert!(ended(ends(JobState::Complete), 2).unwrap_err().contains("ran on 0 nodes"));
    }

    #[test]
    fn a_failed_check_says_what_is_wrong_in_a_few_lines() {
        let check = Check::new("it works", (0..9).map(|n| format!("problem {n}")).collect());
        let text = check.to_string();
        assert!(
            text.starts_with("  FAILED  it works") && text.contains("problem 4") && text.ends_with("and 4 more"),
            "{text}"
        );
        assert!(!text.contains("problem 5"));
        assert_eq!(Check::nothing_left(0).to_string().trim(), "ok      every process that was started has ended");
    }
}
