//! The jobs of the demonstration, and their expected results.
//!
//! Guarantees: the expected results are computed here, before any job runs.
//! Does not: run or check anything.

use model::auth::hex;
use model::rng::Rng;
use model::{FailurePolicy, JobSpec, JobState, Needs, Work};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The lines of an input file.
const LINES: usize = 2_000;
/// How many jobs of each kind there are.
const HASHED: usize = 20;
const COUNTED: usize = 6;
const JOINED: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) spec: JobSpec,
    pub(super) expect: Expect,
}

#[derive(Clone, Debug)]
pub(super) struct Expect {
    /// The expectation in words. Jobs with the same words share a check.
    pub(super) what: &'static str,
    pub(super) state: JobState,
    /// The exit codes of its allocs, if the number of tries matters. A failing try prints that it fails on purpose.
    pub(super) exit_codes: Option<Vec<Option<i32>>>,
    /// The files that the job makes, and their content.
    pub(super) results: Vec<(PathBuf, String)>,
}

impl Expect {
    pub(super) const fn new(what: &'static str, state: JobState) -> Self {
        Self { what, state, exit_codes: None, results: Vec::new() }
    }

    fn tried<const N: usize>(self, exit_codes: [i32; N]) -> Self {
        Self { exit_codes: Some(exit_codes.map(Some).into()), ..self }
    }
}

/// The jobs submitted at the start, and the urgent one submitted late.
pub(super) fn make(results: &Path) -> io::Result<(Vec<Task>, Task)> {
    let mut made = 0;
    let mut next = || {
        made += 1;
        input(&results.join(format!("input-{made}")))
    };
    let mut tasks = Vec::new();
    for n in 0..HASHED {
        let needs = Needs { vcpus: 1 + n as u32 % 2, memory_mib: 256, ..Needs::default() };
        let spec = JobSpec { priority: 400 + (n as u32 % 3) * 50, needs, ..JobSpec::default() };
        tasks.push(hash(&format!("hash-{n}"), &[next()?], results, spec)?);
    }
    for n in 0..COUNTED {
        let spec = JobSpec { priority: 300, ..JobSpec::default() };
        let script = format!("wc -l < '{}'", next()?.display());
        tasks.push(says(&format!("count-{n}"), &script, LINES.to_string(), results, spec));
    }
    for n in 0..JOINED {
        let needs = Needs { vcpus: 4, memory_mib: 8_192, ..Needs::default() };
        let spec = JobSpec { priority: 600, needs, ..JobSpec::default() };
        tasks.push(hash(&format!("join-{n}"), &[next()?, next()?, next()?], results, spec)?);
    }
    tasks.extend(special_jobs(results));
    let spec = JobSpec { priority: 1_000, ..JobSpec::default() };
    let urgent = hash("urgent", &[next()?], results, spec)?;
    Ok((tasks, urgent))
}

/// A script that fails when it first runs.
const SECOND: &str = r#"mkdir "$OUT.tried" && { echo failing on purpose, once; exit 9; }; echo at last > "$OUT""#;

/// A script of two members: each waits for the other one, and counts the addresses that it knows.
const TOGETHER: &str = r#"
        : > "$OUT.$NODEKEEPER_MEMBER"
        left=200
        until [ -e "$OUT.$((1 - NODEKEEPER_MEMBER))" ]; do
            left=$((left - 1)); [ $left -gt 0 ] || { echo the other member never came; exit 1; }
            sleep 0.1
        done
        echo "$NODEKEEPER_HOSTS" | tr , '\n' | grep -c . > "$OUT.hosts.$NODEKEEPER_MEMBER"
        sleep 1"#;

/// Jobs that fail, are cancelled or rejected, or do something unusual.
fn special_jobs(results: &Path) -> Vec<Task> {
    let task = |name: &str, script: &str, spec, expect| task(name, script, results, spec, expect);
    let treated = |failure_policy| JobSpec { failure_policy, ..JobSpec::default() };
    let retried = |retry_failed| treated(FailurePolicy { retry_failed, ..FailurePolicy::default() });
    let quick = || treated(FailurePolicy { kill_timeout_s: 2, ..FailurePolicy::default() });
    let needing = |needs| JobSpec { needs, ..JobSpec::default() };
    let fails = || Expect::new("failed with its own exit code, as often as it is retried", JobState::Failed);
    let completes = || Expect::new("complete", JobState::Complete);
    let cancelled = Expect::new("cancelled while running, and stopped", JobState::Cancelled);
    let rejected = Expect::new("rejected with the reason, without a node", JobState::Rejected).tried([]);
    let second = Expect {
        results: vec![(results.join("second-time"), "at last".to_owned())],
        ..Expect::new("failed once, then complete at the second try", JobState::Complete).tried([9, 0])
    };
    let together = Expect {
        results: [0, 1].map(|member| (results.join(format!("together.hosts.{member}")), "2".to_owned())).into(),
        ..Expect::new("complete on two nodes at once, each with both addresses", JobState::Complete)
    };
    // The daemon leaves its parent and its session, and clears its environment.
    let daemon =
        "setsid env -i /bin/sh -c 'cd /; exec sleep 900' > /dev/null 2>&1 & sleep 0.5; echo left a daemon behind";
    let cache = r#"echo "$NODEKEEPER_JOB_ID" >> "$NODEKEEPER_CACHE_DEMO/seen" && [ -s "$NODEKEEPER_CACHE_DEMO/seen" ]"#;
    let cached = JobSpec { work: Work { caches: vec!["demo".into()], ..Work::default() }, ..JobSpec::default() };
    let pair = JobSpec { priority: 700, ..needing(Needs { nodes: 2, ..Needs::default() }) };
    vec![
        task("fail", "echo failing on purpose; exit 3", retried(0), fails().tried([3])),
        task("fail-twice", "echo failing on purpose; exit 7", retried(1), fails().tried([7, 7])),
        task("second-time", SECOND, retried(2), second),
        task("to-cancel", "echo asleep; sleep 600", quick(), cancelled),
        task("too-large", "true", needing(Needs { vcpus: 512, ..Needs::default() }), rejected),
        task("together", TOGETHER, pair, together),
        task("daemon", daemon, quick(), completes()),
        task("cached", cache, cached, completes()),
    ]
}

/// A job that computes the digest of these files together.
fn hash(name: &str, inputs: &[PathBuf], results: &Path, spec: JobSpec) -> io::Result<Task> {
    let mut all = Vec::new();
    for input in inputs {
        all.extend(fs::read(input)?);
    }
    let named: Vec<String> = inputs.iter().map(|input| format!("'{}'", input.display())).collect();
    let script = format!("cat {} | sha256sum | cut -d' ' -f1", named.join(" "));
    Ok(says(name, &script, hex(&Sha256::digest(&all)), results, spec))
}

/// A job whose result is the output of this script.
fn says(name: &str, script: &str, content: String, results: &Path, spec: JobSpec) -> Task {
    let script = format!(r#"sleep 1; {script} > "$OUT.part" && mv "$OUT.part" "$OUT""#);
    let expect = Expect {
        results: vec![(results.join(name), content)],
        ..Expect::new("complete, and the result is right", JobState::Complete)
    };
    task(name, &script, results, spec, expect)
}

fn task(name: &str, script: &str, results: &Path, spec: JobSpec, expect: Expect) -> Task {
    let env = [("OUT".to_owned(), results.join(name).display().to_string())].into();
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    Task {
        name: name.to_owned(),
        spec: JobSpec { name: Some(name.to_owned()), env, work: Work { command, ..spec.work.clone() }, ..spec },
        expect,
    }
}

/// Makes an input file of random lines.
fn input(path: &Path) -> io::Result<PathBuf> {
    let (rng, mut lines) = (Rng::real(), String::new());
    for _ in 0..LINES {
        let _ = writeln!(lines, "{}", rng.bits());
    }
    fs::write(path, lines)?;
    // Jobs read it, as users of their own.
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    Ok(path.to_owned())
}
