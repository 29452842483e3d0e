//! The jobs of the demonstration, and their expected results.
//!
//! Guarantees: the expected results are computed here, before any job runs.
//! Does not: run or check anything.

use model::auth::hex;
use model::rng::Rng;
use model::{FailurePolicy, JobSpec, Needs, Work};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The lines of an input file.
const LINES: usize = 2_000;
/// How many jobs of each kind there are.
const HASHED: usize = 20;
const COUNTED: usize = 6;
const JOINED: usize = 3;

/// One job and its expected result.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) spec: JobSpec,
    pub(super) expect: Expect,
}

/// The expected result of a job.
#[derive(Clone, Debug)]
pub(super) enum Expect {
    /// The job completes, and its result has this content.
    Says { result: PathBuf, content: String },
    /// The job fails this many times, each time with this exit code.
    Fails { exit_code: i32, times: usize },
    /// The job fails once, and then completes.
    SecondTime { exit_code: i32, result: PathBuf },
    /// The job is cancelled while it runs.
    Cancelled,
    /// The job fits no node, so it never runs.
    Rejected,
    /// The members of the job run at the same time and know each other's addresses.
    Together { members: u32, result: PathBuf },
    /// The job completes.
    Completes,
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
        let (name, input) = (format!("count-{n}"), next()?);
        let result = results.join(&name);
        let script = r#"sleep 1; echo $(wc -l < "$IN") > "$OUT.part" && mv "$OUT.part" "$OUT""#;
        let spec = JobSpec { priority: 300, ..JobSpec::default() };
        let expect = Expect::Says { result: result.clone(), content: LINES.to_string() };
        tasks.push(task(&name, script, &[("IN", &input), ("OUT", &result)], spec, expect));
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

/// Fails the first time.
const SECOND: &str = r#"mkdir "$OUT.tried" && { echo failing on purpose, once; exit 9; }; echo at last > "$OUT""#;

/// Two members that wait for each other.
const TOGETHER: &str = r#"
        : > "$OUT.$NODEKEEPER_MEMBER"
        left=200
        until [ -e "$OUT.$((1 - NODEKEEPER_MEMBER))" ]; do
            left=$((left - 1)); [ $left -gt 0 ] || { echo the other member never came; exit 1; }
            sleep 0.1
        done
        echo "$NODEKEEPER_HOSTS" > "$OUT.hosts.$NODEKEEPER_MEMBER"
        sleep 1"#;

/// Jobs that fail, are cancelled or rejected, or do something unusual.
fn special_jobs(results: &Path) -> Vec<Task> {
    let at = |name: &str| results.join(name);
    let treated = |failure_policy| JobSpec { failure_policy, ..JobSpec::default() };
    let retried = |retry_failed| treated(FailurePolicy { retry_failed, ..FailurePolicy::default() });
    let quick = || treated(FailurePolicy { kill_timeout_s: 2, ..FailurePolicy::default() });
    let needing = |needs| JobSpec { needs, ..JobSpec::default() };
    let fails = |name: &str, exit_code: i32, retry_failed: u32| {
        let script = format!("echo failing on purpose; exit {exit_code}");
        let expect = Expect::Fails { exit_code, times: retry_failed as usize + 1 };
        task(name, &script, &[], retried(retry_failed), expect)
    };
    // The daemon leaves its parent and its session, and clears its environment.
    let daemon =
        "setsid env -i /bin/sh -c 'cd /; exec sleep 900' > /dev/null 2>&1 & sleep 0.5; echo left a daemon behind";
    let cache = r#"echo "$NODEKEEPER_JOB_ID" >> "$NODEKEEPER_CACHE_DEMO/seen" && [ -s "$NODEKEEPER_CACHE_DEMO/seen" ]"#;
    let cached = JobSpec { work: Work { caches: vec!["demo".into()], ..Work::default() }, ..JobSpec::default() };
    let second = Expect::SecondTime { exit_code: 9, result: at("second-time") };
    let together = Expect::Together { members: 2, result: at("together") };
    let pair = JobSpec { priority: 700, ..needing(Needs { nodes: 2, ..Needs::default() }) };
    vec![
        fails("fail", 3, 0),
        fails("fail-twice", 7, 1),
        task("second-time", SECOND, &[("OUT", &at("second-time"))], retried(2), second),
        task("to-cancel", "echo asleep; sleep 600", &[], quick(), Expect::Cancelled),
        task("too-large", "true", &[], needing(Needs { vcpus: 512, ..Needs::default() }), Expect::Rejected),
        task("together", TOGETHER, &[("OUT", &at("together"))], pair, together),
        task("daemon", daemon, &[], quick(), Expect::Completes),
        task("cached", cache, &[], cached, Expect::Completes),
    ]
}

/// The digest of these files together.
fn hash(name: &str, inputs: &[PathBuf], results: &Path, spec: JobSpec) -> io::Result<Task> {
    let (result, mut all) = (results.join(name), Vec::new());
    for input in inputs {
        all.extend(fs::read(input)?);
    }
    let named: Vec<String> = inputs.iter().map(|input| format!("'{}'", input.display())).collect();
    let script = format!(
        r#"sleep 1; cat {} | sha256sum | cut -d' ' -f1 > "$OUT.part" && mv "$OUT.part" "$OUT""#,
        named.join(" ")
    );
    let content = hex(&Sha256::digest(&all));
    Ok(task(name, &script, &[("OUT", &result)], spec, Expect::Says { result: result.clone(), content }))
}

fn task(name: &str, script: &str, env: &[(&str, &Path)], spec: JobSpec, expect: Expect) -> Task {
    let env = env.iter().map(|(name, path)| ((*name).to_owned(), path.display().to_string())).collect();
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
    Ok(path.to_owned())
}
