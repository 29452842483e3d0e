//! The jobs of the demonstration, and their expected results.
//!
//! Guarantees: the expected results are computed here, before any job runs.
//! Does not: run or check anything.

use model::auth::hex;
use model::rng::Rng;
use model::{FailurePolicy, JobSpec, Needs, Work};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The directories with input files.
const ROOTS: [&str; 4] = ["/usr/share", "/usr/include", "/usr/lib", "/etc"];
/// The size of an input file.
const BYTES: std::ops::Range<u64> = 1_024..2 * 1024 * 1024;
/// The most files to choose from.
const CANDIDATES: usize = 4_000;

const HASHED: usize = 12;
const ZIPPED: usize = 8;
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
    /// The job completes, and its result is a gzip file of content with this SHA-256.
    Unzips { result: PathBuf, sha256: String },
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
    let inputs = inputs(results, HASHED + ZIPPED + COUNTED + JOINED * 3)?;
    let mut inputs = inputs.into_iter();
    let mut next = || inputs.next().ok_or_else(|| io::Error::other("too few input files"));
    let mut tasks = Vec::new();
    for n in 0..HASHED {
        let spec = JobSpec {
            priority: 400 + (n as u32 % 3) * 50,
            needs: Needs { memory_mib: 256, ..Needs::default() },
            ..JobSpec::default()
        };
        tasks.push(hash(&format!("hash-{n}"), &next()?, results, spec)?);
    }
    for n in 0..ZIPPED {
        let (name, input) = (format!("zip-{n}"), next()?);
        let result = results.join(&name);
        let script = r#"gzip -c < "$IN" > "$OUT.part" && mv "$OUT.part" "$OUT"; sleep 1"#;
        let spec = JobSpec { needs: Needs { vcpus: 2, memory_mib: 512, ..Needs::default() }, ..JobSpec::default() };
        let expect = Expect::Unzips { result: result.clone(), sha256: sha256(&fs::read(&input)?) };
        tasks.push(task(&name, script, &[("IN", &input), ("OUT", &result)], spec, expect));
    }
    for n in 0..COUNTED {
        let (name, input) = (format!("count-{n}"), next()?);
        let result = results.join(&name);
        let lines = fs::read(&input)?.iter().filter(|b| **b == b'\n').count();
        let script = r#"sleep 1; echo $(wc -l < "$IN") > "$OUT.part" && mv "$OUT.part" "$OUT""#;
        let spec = JobSpec { priority: 300, ..JobSpec::default() };
        let expect = Expect::Says { result: result.clone(), content: lines.to_string() };
        tasks.push(task(&name, script, &[("IN", &input), ("OUT", &result)], spec, expect));
    }
    for n in 0..JOINED {
        let (name, files) = (format!("join-{n}"), [next()?, next()?, next()?]);
        let result = results.join(&name);
        let mut all = Vec::new();
        for file in &files {
            all.extend(fs::read(file)?);
        }
        let script =
            r#"sleep 1; cat "$A" "$B" "$C" | sha256sum | cut -d' ' -f1 > "$OUT.part" && mv "$OUT.part" "$OUT""#;
        let spec = JobSpec {
            priority: 600,
            needs: Needs { vcpus: 4, memory_mib: 8_192, ..Needs::default() },
            ..JobSpec::default()
        };
        let expect = Expect::Says { result: result.clone(), content: sha256(&all) };
        let [a, b, c] = &files;
        tasks.push(task(&name, script, &[("A", a), ("B", b), ("C", c), ("OUT", &result)], spec, expect));
    }
    tasks.extend(special_jobs(results));
    // The urgent job reads this program's own file, which certainly exists.
    let spec = JobSpec { priority: 1_000, ..JobSpec::default() };
    let urgent = hash("urgent", &std::env::current_exe()?, results, spec)?;
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
    let plain = JobSpec::default;
    let fails = |name: &str, exit_code: i32, retry_failed: u32| {
        let script = format!("echo failing on purpose; exit {exit_code}");
        let expect = Expect::Fails { exit_code, times: retry_failed as usize + 1 };
        task(
            name,
            &script,
            &[],
            JobSpec { failure_policy: FailurePolicy { retry_failed, ..FailurePolicy::default() }, ..plain() },
            expect,
        )
    };
    // The daemon leaves its parent and its session, and clears its environment.
    let daemon =
        "setsid env -i /bin/sh -c 'cd /; exec sleep 900' > /dev/null 2>&1 & sleep 0.5; echo left a daemon behind";
    let cache = r#"echo "$NODEKEEPER_JOB_ID" >> "$NODEKEEPER_CACHE_DEMO/seen" && [ -s "$NODEKEEPER_CACHE_DEMO/seen" ]"#;
    let quick = || FailurePolicy { kill_timeout_s: 2, ..FailurePolicy::default() };
    vec![
        fails("fail", 3, 0),
        fails("fail-twice", 7, 1),
        task(
            "second-time",
            SECOND,
            &[("OUT", &at("second-time"))],
            JobSpec { failure_policy: FailurePolicy { retry_failed: 2, ..FailurePolicy::default() }, ..plain() },
            Expect::SecondTime { exit_code: 9, result: at("second-time") },
        ),
        task(
            "to-cancel",
            "echo asleep; sleep 600",
            &[],
            JobSpec { failure_policy: quick(), ..plain() },
            Expect::Cancelled,
        ),
        task(
            "too-large",
            "true",
            &[],
            JobSpec { needs: Needs { vcpus: 512, ..Needs::default() }, ..plain() },
            Expect::Rejected,
        ),
        task(
            "together",
            TOGETHER,
            &[("OUT", &at("together"))],
            JobSpec { priority: 700, needs: Needs { nodes: 2, ..Needs::default() }, ..plain() },
            Expect::Together { members: 2, result: at("together") },
        ),
        task("daemon", daemon, &[], JobSpec { failure_policy: quick(), ..plain() }, Expect::Completes),
        task(
            "cached",
            cache,
            &[],
            JobSpec { work: Work { caches: vec!["demo".into()], ..Work::default() }, ..plain() },
            Expect::Completes,
        ),
    ]
}

fn hash(name: &str, input: &Path, results: &Path, spec: JobSpec) -> io::Result<Task> {
    let result = results.join(name);
    let script = r#"sleep 1; sha256sum < "$IN" | cut -d' ' -f1 > "$OUT.part" && mv "$OUT.part" "$OUT""#;
    let expect = Expect::Says { result: result.clone(), content: sha256(&fs::read(input)?) };
    Ok(task(name, script, &[("IN", input), ("OUT", &result)], spec, expect))
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

/// The digest in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Input files, spread over the files of this machine; generated if there are too few.
fn inputs(results: &Path, wanted: usize) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for root in ROOTS {
        let enough = found.len() + CANDIDATES / ROOTS.len();
        walk(Path::new(root), &mut found, enough);
    }
    let step = (found.len() / wanted.max(1)).max(1);
    let mut chosen: Vec<PathBuf> = found.into_iter().step_by(step).take(wanted).collect();
    while chosen.len() < wanted {
        let path = results.join(format!("input-{}", chosen.len()));
        let lines: String = (0..2_000).map(|_| format!("{}\n", Rng::real().bits())).collect();
        fs::write(&path, lines)?;
        chosen.push(path);
    }
    Ok(chosen)
}

/// Adds readable regular files below `dir`, in a fixed order, until there are `enough`.
fn walk(dir: &Path, found: &mut Vec<PathBuf>, enough: usize) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        if found.len() >= enough {
            return;
        }
        // Symbolic links are not followed, because they can form cycles.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            walk(&path, found, enough);
        } else if metadata.is_file()
            && BYTES.contains(&metadata.len())
            && path.to_str().is_some()
            && fs::File::open(&path).is_ok()
        {
            found.push(path);
        }
    }
}
