//! The built programs, run as users run them: cargo-lambda, bad starts, Ctrl-C. Each wait polls and
//! has a deadline.

mod drills;
mod first_contact;
mod stored_outputs;

use crate::callers::example_events;
use crate::second_opinions::{free_port, python_tool, root, wait_for_port};
use model::functions::FUNCTIONS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program that was built with the tests.
pub fn program(name: &str) -> PathBuf {
    // target/debug/deps/all-… → target/debug
    let directory = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let program = directory.join(name);
    assert!(program.exists(), "{} is missing: run the tests by the README's command", program.display());
    program
}

/// Other processes whose command line contains `mark`.
fn processes_of(mark: &str) -> Vec<String> {
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter_map(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let place = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            (line.contains(mark) || place.to_string_lossy().contains(mark)).then(|| format!("{pid}: {line}"))
        })
        .collect()
}

pub fn until<T>(what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not within {seconds} s");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `nodekeeper local` in its own directory.
pub struct Local {
    process: Child,
    directory: tempfile::TempDir,
}

impl Local {
    pub fn start(args: &[&str]) -> Self {
        Self::start_with(args, &[])
    }

    /// As [`Local::start`], with these variables in the environment.
    fn start_with(args: &[&str], env: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().prefix("nodekeeper-e2e-").tempdir().unwrap();
        let mut command = Command::new(program("nodekeeper"));
        command.args(["local", "--no-build", "--port", "0", "--dir"]).arg(directory.path()).args(args);
        let log = std::fs::File::create(directory.path().join("local.log")).unwrap();
        let process = command.envs(env.iter().copied()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let local = Self { process, directory };
        until("the environment file", 30, || local.path().join("env").exists().then_some(()));
        local
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn env(&self) -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(self.path().join("env")).unwrap();
        text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    pub fn nodekeeper(&self, args: &[&str]) -> Output {
        Command::new(program("nodekeeper")).args(args).envs(self.env()).output().unwrap()
    }

    /// Sends Ctrl-C. Returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGINT).unwrap();
        until("the end after Ctrl-C", 30, || self.process.try_wait().unwrap()).code()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json(local: &Local, args: &[&str]) -> Value {
    let output = local.nodekeeper(args);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", text(&output)))
}

/// With signed requests, the function URLs refuse a stranger before any function runs, and a job runs from its
/// submission to its end.
#[test]
fn with_signed_requests_a_stranger_is_refused_and_a_job_ends() {
    let local = Local::start(&["--tick-s", "1", "--node-auth", "iam"]);
    let submitted = local.nodekeeper(&["submit", "--wait", "--", "sh", "-c", "echo signed"]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    let url = format!("{}/v1/nodes/0-01JD0000000000000000000000/heartbeat", local.env()["NODEKEEPER_HEARTBEAT_URL"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let status = runtime.block_on(async {
        reqwest::Client::new().post(url).bearer_auth("0".repeat(64)).body("{}").send().await.unwrap().status()
    });
    assert_eq!(status.as_u16(), 403);
}

#[test]
fn ctrl_c_leaves_no_process_not_even_a_jobs_daemon() {
    let mut local = Local::start(&["--tick-s", "1"]);
    let mark = local.path().to_string_lossy().into_owned();
    // Isolated jobs write there too.
    let shared = local.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(0o1777)).unwrap();
    let script = format!("setsid bash -c 'exec -a {mark}-daemon sleep 1000' & touch {mark}/shared/started; sleep 1000");
    let submitted = local.nodekeeper(&["submit", "--", "bash", "-c", &script]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    until("the job's start", 60, || shared.join("started").exists().then_some(()));
    assert!(processes_of(&mark).len() > 3);
    assert_eq!(local.stop(), Some(0), "{}", std::fs::read_to_string(local.path().join("local.log")).unwrap());
    until("the end of every process", 10, || processes_of(&mark).is_empty().then_some(()));
}

/// All functions run under `cargo lambda watch`. Each answers `cargo lambda invoke`, a heartbeat can be posted, and a
/// job runs from its submission to its end.
#[test]
fn cargo_lambda_watches_and_invokes_all_four_functions() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let local = Local::start(&["--tick-s", "1", "--functions-url", &url, "--node-key", example_events::KEY]);
    let cargo_lambda = python_tool("cargo-lambda");
    let watch_log = std::fs::File::create(local.path().join("watch.log")).unwrap();
    let mut watch = Command::new(&cargo_lambda)
        .args(["lambda", "watch", "--ignore-changes", "--config", "tests/optimized.toml"])
        .args(["-A", "127.0.0.1", "-P", &port.to_string(), "--env-file"])
        .arg(local.path().join("env"))
        .current_dir(root())
        .stdout(watch_log.try_clone().unwrap())
        .stderr(watch_log)
        .spawn()
        .unwrap();
    wait_for_port(port, "cargo lambda watch");
    let invoke = |function: &str, data: &[&str]| {
        let output = Command::new(&cargo_lambda)
            .args(["lambda", "invoke", function, "--invoke-address", "127.0.0.1", "--invoke-port", &port.to_string()])
            .args(data)
            .current_dir(root())
            .output()
            .unwrap();
        let watched = std::fs::read_to_string(local.path().join("watch.log")).unwrap();
        assert!(output.status.success(), "{function}: {}\n{watched}", text(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output)))
    };
    for function in FUNCTIONS {
        for (path, event) in example_events::of(function) {
            let answer = invoke(function.name, &["--data-file", path.to_str().unwrap()]);
            if event.get("requestContext").is_some() {
                // The credential is valid, but this node has no record.
                assert_eq!(answer["statusCode"], 503, "{}: {answer}", path.display());
            } else {
                assert_eq!(answer["function"], function.name, "{}: {answer}", path.display());
                assert!(answer["duration_ms"].is_number() && answer["outcomes"].is_object(), "{answer}");
            }
        }
    }
    // This function answers only HTTP events, and its answer says so.
    assert_eq!(invoke("heartbeat-ingest", &["--data-ascii", "{}"])["statusCode"], 400);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let node = "0-01JD0000000000000000000000";
    let posted = runtime.block_on(async {
        let url = format!("{url}/lambda-url/heartbeat-ingest/v1/nodes/{node}/heartbeat");
        reqwest::Client::new().post(url).body("{}").send().await.unwrap().status()
    });
    assert_eq!(posted.as_u16(), 401);
    let submitted = local.nodekeeper(&["submit", "--wait", "--", "sh", "-c", "echo from cargo lambda"]);
    let watched = || std::fs::read_to_string(local.path().join("watch.log")).unwrap();
    assert!(submitted.status.success(), "{}\n{}", text(&submitted), watched());
    kill(Pid::from_raw(watch.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    until("the end of cargo lambda", 20, || watch.try_wait().unwrap());
}

#[test]
fn a_bad_start_is_one_clear_line_and_exit_1() {
    for function in ["poll-and-scale", "clean-stale-records", "heartbeat-ingest", "sweep-dispatch", "grant-credentials"]
    {
        let start = |env: &[(&str, &str)]| {
            let output = Command::new(program(function))
                .env_clear()
                .envs(env.iter().copied())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let said = text(&output);
            assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{function}: {said}");
            said
        };
        assert!(start(&[]).contains("NODEKEEPER_CLUSTER is not set"));
        assert!(start(&[("NODEKEEPER_CLUSTER", "a b"), ("AWS_REGION", "x")]).contains("NODEKEEPER_CLUSTER is wrong"));
        if function != "clean-stale-records" {
            let said = start(&[("NODEKEEPER_CLUSTER", "c"), ("AWS_REGION", "x"), ("NODEKEEPER_NODE_KEY", "short")]);
            assert!(said.contains("NODEKEEPER_NODE_KEY is wrong"), "{said}");
        }
    }
}

#[test]
fn missing_tables_give_a_clear_error() {
    let local = Local::start(&["--functions-url", "http://127.0.0.1:9"]);
    let mut env = local.env();
    env.insert("NODEKEEPER_CLUSTER".into(), "elsewhere".into());
    let output = Command::new(program("nodekeeper")).args(["jobs"]).envs(env).output().unwrap();
    let said = text(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("elsewhere-control does not exist") && said.contains("nodekeeper up"), "{said}");
}

/// No function runs, so the job waits. The page says the same as the command.
#[test]
fn the_page_says_why_a_job_waits() {
    let local = Local::start(&["--functions-url", "http://127.0.0.1:9"]);
    let submitted = local.nodekeeper(&["submit", "--name", "waits", "--", "true"]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    let log = || std::fs::read_to_string(local.path().join("local.log")).unwrap();
    let page = until("the address of the page", 10, || {
        log().split_whitespace().skip_while(|word| *word != "page").nth(1).map(str::to_owned)
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let state: Value = until("the job on the page", 10, || {
        let jobs = runtime.block_on(async { reqwest::get(format!("{page}api/jobs")).await?.json::<Value>().await });
        jobs.ok().filter(|jobs| jobs["rows"][0]["name"] == "waits" && jobs["rows"][0].get("waits_because").is_some())
    });
    let jobs: Value = serde_json::from_slice(&local.nodekeeper(&["jobs", "--json"]).stdout).unwrap();
    assert_eq!(jobs[0]["waits_because"], "this run launches for it: slot 0");
    assert_eq!(state["rows"][0]["waits_because"], jobs[0]["waits_because"]);
    let overview = reqwest::get(format!("{page}api/overview"));
    let state: Value = runtime.block_on(async { overview.await.unwrap().json().await.unwrap() });
    let line = state["explained"]["waiting"][0]["line"].as_str().unwrap();
    assert!(line.starts_with("job waits (") && line.ends_with(" waits: this run launches for it: slot 0"), "{state:#}");
}
