//! A real agent, and a stand-in for the control plane that answers as the test says and records every call.

#![allow(unreachable_pub, reason = "a test binary has no outside")]

pub mod podman;

use axum::Json;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use model::wire::{AllocOrder, AllocReport, AllocUpdate, HandleReport, Heartbeat};
use model::{AllocId, ClientStatus, Desired, FailurePolicy, JobId, Needs, Work};
use nodekeeper_agent::isolation::cgroup;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const NODE_ID: &str = "3-01JD0000000000000000000000";
pub const TOKEN: &str = "secret-token";

/// The longest wait for one step, on a machine that is busy with other things.
pub const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct ControlPlane {
    pub seq: u64,
    pub orders: Vec<AllocOrder>,
    pub incarnations: u32,
    pub must_report: bool,
    /// Whether the answers say that the node is syncing.
    pub is_syncing: bool,
    /// Answer every call with this status and body.
    pub refuse: Option<(u16, Value)>,
    pub next_heartbeat_s: f64,
    pub drains: bool,
    /// When a node that has room is to ask for work, in seconds.
    pub soon_s: Option<f64>,
    /// Whether the answers to reports have the orders too.
    pub orders_with_reports: bool,
    /// The orders that come when an alloc has ended.
    pub next_orders: Vec<AllocOrder>,
    pub beats: Vec<Heartbeat>,
    pub reports: Vec<AllocReport>,
    pub handle_reports: Vec<HandleReport>,
    pub destroy: Vec<String>,
    /// The allocs whose output somebody follows.
    pub follows: Vec<AllocId>,
    /// Whether updates of allocs are neither taken nor refused, as if their rows could not be read.
    pub takes_nothing: bool,
    pub calls: usize,
}

impl ControlPlane {
    /// Changes the orders. As in the real control plane, `seq` rises.
    pub fn order(&mut self, orders: Vec<AllocOrder>) {
        self.seq += 1;
        self.orders = orders;
        for order in &mut self.orders {
            if order.placed_seq == 0 {
                order.placed_seq = self.seq;
            }
        }
    }

    pub fn ends(&self, id: AllocId) -> Vec<AllocUpdate> {
        let all = self.reports.iter().flat_map(|r| &r.allocs);
        all.filter(|a| a.alloc_id == id && a.client.is_final()).cloned().collect()
    }

    pub fn was_reported(&self, id: AllocId, client: ClientStatus) -> bool {
        self.reports.iter().flat_map(|r| &r.allocs).any(|a| a.alloc_id == id && a.client == client)
    }
}

type SharedPlane = Arc<Mutex<ControlPlane>>;

pub fn alloc_id(copy: u32) -> AllocId {
    AllocId { job_id: JobId::new(ulid::Ulid::from_parts(1, 1)), member: 0, copy }
}

/// An order to run `sh -c script`, placed with the next change.
pub fn order(copy: u32, script: &str) -> AllocOrder {
    AllocOrder {
        grant_url: None,
        alloc_id: alloc_id(copy),
        desired: Desired::Run,
        client: ClientStatus::Pending,
        placed_seq: 0,
        needs: Needs::default(),
        work: Work { command: ["sh", "-c", script].map(str::to_owned).into(), ..Work::default() },
        env: BTreeMap::new(),
        failure_policy: FailurePolicy { kill_timeout_s: 20, ..FailurePolicy::default() },
        hosts: vec!["127.0.0.1".into()],
        output_s3: None,
    }
}

async fn answer(
    State(plane): State<SharedPlane>,
    Path((node, what)): Path<(String, String)>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let mut plane = plane.lock().unwrap();
    plane.calls += 1;
    let given = headers.get("authorization").and_then(|h| h.to_str().ok()?.strip_prefix("Bearer "));
    if node != NODE_ID || given != Some(TOKEN) {
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": "unauthorized", "message": "no"}))).into_response();
    }
    if let Some((status, body)) = plane.refuse.clone() {
        return (StatusCode::from_u16(status).unwrap(), Json(body)).into_response();
    }
    let answer = match what.as_str() {
        "heartbeat" => plane.on_heartbeat(serde_json::from_str(&body).unwrap()),
        "allocs" => plane.on_alloc_report(serde_json::from_str(&body).unwrap()),
        "handles" => plane.on_handle_report(serde_json::from_str(&body).unwrap()),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let wrong_incarnation = json!({"error": "wrong_incarnation", "message": "register anew"});
    answer.map_or_else(|| (StatusCode::CONFLICT, Json(wrong_incarnation)).into_response(), |a| Json(a).into_response())
}

/// Each `on_…` function answers one call. `None` means a wrong incarnation.
impl ControlPlane {
    fn incarnation(&self) -> String {
        format!("inc-{}", self.incarnations)
    }

    fn on_heartbeat(&mut self, beat: Heartbeat) -> Option<Value> {
        let current = self.incarnation();
        self.beats.push(beat.clone());
        match beat.incarnation {
            None => self.incarnations += 1,
            Some(given) if given != current => return None,
            Some(_) => {}
        }
        let must_report = std::mem::take(&mut self.must_report);
        let mut answer = json!({
            "status": if self.is_syncing { "syncing" } else { "ready" }, "incarnation": self.incarnation(), "seq": self.seq,
            "next_heartbeat_s": self.next_heartbeat_s, "retry_s": 30.0, "intent": if self.drains { "drain" } else { "run" }, "must_report": must_report,
            "follows": self.follows,
        });
        if !self.reports.iter().any(|r| r.complete) {
            // The control plane places nothing on a node before its first complete report.
            answer["seq"] = json!(0);
        } else if beat.as_of < self.seq {
            answer["orders"] = serde_json::json!({"allocs": self.orders});
        }
        Some(answer)
    }

    fn on_alloc_report(&mut self, report: AllocReport) -> Option<Value> {
        if report.incarnation != self.incarnation() {
            return None;
        }
        let accepted: Vec<AllocId> = report.allocs.iter().filter(|_| !self.takes_nothing).map(|a| a.alloc_id).collect();
        for update in &report.allocs {
            if let Some(order) = self.orders.iter_mut().find(|o| o.alloc_id == update.alloc_id) {
                order.client = update.client;
            }
        }
        let before = self.orders.len();
        self.orders.retain(|o| !o.client.is_final());
        let made_room = self.orders.len() != before;
        if made_room {
            self.seq += 1;
            if let Some(next) = self.next_orders.pop() {
                self.order(vec![next]);
            }
        }
        let is_behind = report.as_of < self.seq;
        self.reports.push(report);
        let mut answer = json!({"status": if self.is_syncing { "syncing" } else { "ready" }, "seq": self.seq, "accepted": accepted, "refused": []});
        if let Some(soon_s) = self.soon_s.filter(|_| made_room) {
            answer["next_heartbeat_s"] = json!(soon_s);
        }
        if self.orders_with_reports && is_behind {
            answer["orders"] = json!({"allocs": self.orders});
        }
        Some(answer)
    }

    fn on_handle_report(&mut self, report: HandleReport) -> Option<Value> {
        if report.incarnation != self.incarnation() {
            return None;
        }
        let listed = |handle: &&String| report.handles.iter().any(|r| r.handle == **handle);
        let destroy: Vec<String> = self.destroy.iter().filter(listed).take(2).cloned().collect();
        self.handle_reports.push(report);
        Some(json!({
            "seq": self.seq, "destroy": destroy, "more": false, "conflicts": [], "refused": false, "next_report_s": 0.5,
        }))
    }
}

/// A directory that users of jobs may enter. It is not below /tmp or the like, where jobs see a directory of their own. The project
/// itself may be in /tmp, or in a home directory that is closed to others.
pub fn open_dir() -> &'static std::path::Path {
    let target = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let is_temporary = target.starts_with("/tmp") || target.starts_with("/var/tmp");
    let is_closed = |dir: &std::path::Path| dir.metadata().unwrap().mode() & 0o001 == 0;
    // Only root has jobs of other users.
    let is_root = nix::unistd::geteuid().is_root();
    if is_root && (is_temporary || target.ancestors().any(is_closed)) {
        std::path::Path::new("/var/lib")
    } else {
        target
    }
}

/// Copies a file that will be executed. Another process writes it. If this one did, a process that another test starts at that moment
/// would inherit the open file, and Linux executes no file that is open for writing.
pub fn copy_program(from: impl AsRef<OsStr>, to: &std::path::Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "{}", to.display());
}

/// One node: its disk, its agent, and its control plane.
pub struct TestNode {
    pub dir: tempfile::TempDir,
    pub plane: SharedPlane,
    pub agent: Option<Child>,
    pub env: Vec<(String, String)>,
    /// The program of the agent, if it is not the built one.
    pub program: Option<PathBuf>,
    /// What a shell does before it becomes the agent.
    pub prelude: String,
}

impl TestNode {
    pub async fn new() -> Self {
        let plane: SharedPlane =
            Arc::new(Mutex::new(ControlPlane { next_heartbeat_s: 0.3, ..ControlPlane::default() }));
        let app = Router::new().route("/v1/nodes/{node}/{what}", post(answer)).with_state(plane.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let dir = tempfile::Builder::new().prefix("nodekeeper-test-").tempdir_in(open_dir()).unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let file =
            json!({"cluster": "test", "node_id": NODE_ID, "token": TOKEN, "heartbeat_url": url, "sweep_url": url});
        std::fs::write(dir.path().join("node.json"), file.to_string()).unwrap();
        Self { dir, plane, agent: None, env: Vec::new(), program: None, prelude: String::new() }
    }

    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn alloc_dir(&self, copy: u32) -> PathBuf {
        self.data().join("allocs").join(alloc_id(copy).to_string())
    }

    pub fn start(&mut self, args: &[&str]) {
        let known = ["--no-imds", "--instance-id", "i-1", "--address", "127.0.0.1"];
        self.start_bare(&[&known, args].concat());
    }

    /// Starts the agent without the options that name its instance.
    pub fn start_bare(&mut self, args: &[&str]) {
        let log = std::fs::File::options().append(true).create(true).open(self.dir.path().join("agent.log")).unwrap();
        let built = PathBuf::from(env!("CARGO_BIN_EXE_nodekeeper-agent"));
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(format!("{}\nexec \"$0\" \"$@\"", self.prelude))
            .arg(self.program.as_ref().unwrap_or(&built));
        command.arg("--config").arg(self.dir.path().join("node.json")).arg("--data-dir").arg(self.data());
        if !args.contains(&"--on-gone") {
            // Replaces the default, which powers the machine off.
            command.args(["--on-gone", "true"]);
        }
        if !args.iter().any(|a| ["--job-uids", "--unisolated"].contains(a)) {
            command.arg("--unisolated");
        }
        if !args.contains(&"--containers") {
            command.args(["--containers", "none"]);
        }
        command.args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).envs(self.env.clone());
        self.agent = Some(command.spawn().unwrap());
    }

    /// Sends KILL, as the out-of-memory killer does.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub fn term_agent(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.agent.as_ref().unwrap().id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    }

    pub async fn agent_exit_code(&mut self) -> Option<i32> {
        let mut agent = self.agent.take().unwrap();
        self.until("the agent ends", |_| agent.try_wait().unwrap()).await.code()
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut ControlPlane) -> T) -> T {
        look(&mut self.plane.lock().unwrap())
    }

    /// Calls `look` again and again until it returns a value.
    pub async fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(value) = look(self) {
                return value;
            }
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default();
                panic!("not in {TIMEOUT:?}: {what}; the agent's log:\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn end_of(&self, copy: u32) -> AllocUpdate {
        self.until("the alloc's end is reported", |w| w.with(|p| p.ends(alloc_id(copy)).first().cloned())).await
    }

    pub async fn running(&self, copy: u32) {
        self.until("the alloc is reported running", |w| {
            w.with(|p| p.was_reported(alloc_id(copy), ClientStatus::Running)).then_some(())
        })
        .await;
    }

    /// The text of a file in the alloc's work directory, as soon as it ends with a newline.
    pub async fn line_of(&self, copy: u32, file: &str) -> String {
        let path = self.alloc_dir(copy).join("work").join(file);
        let line = |_: &Self| std::fs::read_to_string(&path).ok().filter(|t| t.ends_with('\n'));
        self.until("a file is written", line).await.trim().to_owned()
    }

    /// Waits until `n` more heartbeats have been answered.
    pub async fn beats(&self, n: usize) {
        let from = self.with(|p| p.beats.len());
        self.until("heartbeats come", |w| w.with(|p| p.beats.len() >= from + n).then_some(())).await;
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        // Supervisors survive their agent on purpose: kill those of this test.
        for dir in std::fs::read_dir(self.data().join("allocs")).into_iter().flatten().flatten() {
            let started = std::fs::read_to_string(dir.path().join("started")).unwrap_or_default();
            let started: Value = serde_json::from_str(&started).unwrap_or_default();
            if let (Some(pid), Some(ticks)) = (started["pid"].as_i64(), started["start_ticks"].as_u64()) {
                process_table::kill_session(pid as i32, ticks);
            }
            let task = std::fs::read_to_string(dir.path().join("task.json")).unwrap_or_default();
            let isolation = serde_json::from_str::<Value>(&task).unwrap_or_default()["isolation"].take();
            for pid in isolation["uid"].as_u64().map_or(Vec::new(), |uid| process_table::of_user(uid as u32)) {
                process_table::send(pid, nix::sys::signal::Signal::SIGKILL);
            }
            if let Some(group) = isolation["cgroup"].as_str().map(std::path::Path::new) {
                cgroup::kill(group);
                while group.exists() && std::fs::remove_dir(group).is_err() {
                    std::thread::yield_now();
                }
                cgroup::remove_if_empty(group.parent().unwrap());
            }
        }
    }
}

/// Whether this process runs, and is not a zombie.
pub fn is_alive(pid: &str) -> bool {
    process_table::read(pid.parse().unwrap()).is_some_and(|p| !p.zombie)
}

pub fn code(end: &AllocUpdate) -> Option<i32> {
    end.cause.as_ref().and_then(model::EndCause::exit_code)
}

pub fn cause(end: &AllocUpdate) -> String {
    end.cause.as_ref().map(ToString::to_string).unwrap_or_default()
}
