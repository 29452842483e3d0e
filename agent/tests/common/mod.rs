//! A control plane that answers as told and remembers what it heard, and an agent against it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

use axum::Json;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use shared::ids::{AllocId, JobId};
use shared::model::{ClientStatus, Desired};
use shared::wire::{AllocOrder, AllocReport, AllocUpdate, HandleReport, Heartbeat};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const NODE_ID: &str = "3-01JD0000000000000000000000";
pub const TOKEN: &str = "secret-token";

/// The longest anything here may take, on a machine that does other things as well.
pub const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub struct Plane {
    pub seq: u64,
    pub orders: Vec<AllocOrder>,
    pub incarnations: u32,
    pub must_report: bool,
    /// Answer everything with this status and body.
    pub refuse: Option<(u16, Value)>,
    pub next_heartbeat_s: f64,
    pub beats: Vec<Heartbeat>,
    pub reports: Vec<AllocReport>,
    pub handle_reports: Vec<HandleReport>,
    pub destroy: Vec<String>,
    pub calls: usize,
}

impl Plane {
    /// Changes the orders as the real one does: `seq` goes up with them.
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

    pub fn said(&self, id: AllocId, client: ClientStatus) -> bool {
        self.reports.iter().flat_map(|r| &r.allocs).any(|a| a.alloc_id == id && a.client == client)
    }
}

type Shared = Arc<Mutex<Plane>>;

pub fn alloc_id(copy: u32) -> AllocId {
    AllocId { job_id: JobId::new(ulid::Ulid::from_parts(1, 1)), member: 0, copy }
}

/// `sh -c script`, placed with the next change.
pub fn order(copy: u32, script: &str) -> AllocOrder {
    AllocOrder {
        alloc_id: alloc_id(copy),
        desired: Desired::Run,
        client: ClientStatus::Pending,
        placed_seq: 0,
        command: ["sh", "-c", script].map(str::to_owned).into(),
        env: BTreeMap::new(),
        image: None,
        caches: Vec::new(),
        timeout_s: 0,
        kill_timeout_s: 20,
        memory_mib: 0,
        vcpus: 1,
        nodes: 1,
        hosts: vec!["127.0.0.1".into()],
    }
}

async fn answer(
    State(plane): State<Shared>,
    Path((node, what)): Path<(String, String)>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let mut plane = plane.lock().unwrap();
    plane.calls += 1;
    let bearer = format!("Bearer {TOKEN}");
    if node != NODE_ID || headers.get("authorization").is_none_or(|h| h != bearer.as_str()) {
        return (StatusCode::UNAUTHORIZED, Json(json!({"error": "unauthorized", "message": "no"}))).into_response();
    }
    if let Some((status, body)) = plane.refuse.clone() {
        return (StatusCode::from_u16(status).unwrap(), Json(body)).into_response();
    }
    let current = format!("inc-{}", plane.incarnations);
    let wrong =
        || (StatusCode::CONFLICT, Json(json!({"error": "wrong_incarnation", "message": "anew"}))).into_response();
    match what.as_str() {
        "heartbeat" => {
            let beat: Heartbeat = serde_json::from_str(&body).unwrap();
            plane.beats.push(beat.clone());
            match beat.incarnation {
                None => plane.incarnations += 1,
                Some(given) if given != current => return wrong(),
                Some(_) => {}
            }
            let must_report = std::mem::take(&mut plane.must_report);
            let mut answer = json!({
                "status": "ready", "incarnation": format!("inc-{}", plane.incarnations), "seq": plane.seq,
                "next_heartbeat_s": plane.next_heartbeat_s, "intent": "run", "must_report": must_report,
            });
            if !plane.reports.iter().any(|r| r.complete) {
                // Nothing is placed on a node before its first complete report.
                answer["seq"] = json!(0);
            } else if beat.as_of < plane.seq {
                answer["allocs"] = serde_json::to_value(&plane.orders).unwrap();
            }
            Json(answer).into_response()
        }
        "allocs" => {
            let report: AllocReport = serde_json::from_str(&body).unwrap();
            if report.incarnation != current {
                return wrong();
            }
            let accepted: Vec<AllocId> = report.allocs.iter().map(|a| a.alloc_id).collect();
            for update in &report.allocs {
                if let Some(order) = plane.orders.iter_mut().find(|o| o.alloc_id == update.alloc_id) {
                    order.client = update.client;
                }
            }
            let before = plane.orders.len();
            plane.orders.retain(|o| !o.client.is_final());
            if plane.orders.len() != before {
                plane.seq += 1;
            }
            plane.reports.push(report);
            Json(json!({"status": "ready", "seq": plane.seq, "accepted": accepted, "refused": []})).into_response()
        }
        "handles" => {
            let report: HandleReport = serde_json::from_str(&body).unwrap();
            if report.incarnation != current {
                return wrong();
            }
            let listed = |h: &&String| report.handles.iter().any(|r| r.handle == **h);
            let destroy: Vec<String> = plane.destroy.iter().filter(listed).take(2).cloned().collect();
            plane.handle_reports.push(report);
            Json(json!({
                "seq": plane.seq, "destroy": destroy, "more": false, "conflicts": [], "held": false, "next_report_s": 0.5,
            }))
            .into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// One node: its control plane, its disk, and its agent.
pub struct World {
    pub dir: tempfile::TempDir,
    pub plane: Shared,
    pub agent: Option<Child>,
    pub env: Vec<(String, String)>,
}

impl World {
    pub async fn new() -> Self {
        let plane: Shared = Arc::new(Mutex::new(Plane { next_heartbeat_s: 0.3, ..Plane::default() }));
        let app = Router::new().route("/v1/nodes/{node}/{what}", post(answer)).with_state(plane.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        let dir = tempfile::tempdir().unwrap();
        let file =
            json!({"cluster": "test", "node_id": NODE_ID, "token": TOKEN, "heartbeat_url": url, "sweep_url": url});
        std::fs::write(dir.path().join("node.json"), file.to_string()).unwrap();
        Self { dir, plane, agent: None, env: Vec::new() }
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

    /// Without saying who it is.
    pub fn start_bare(&mut self, args: &[&str]) {
        let log = std::fs::File::options().append(true).create(true).open(self.dir.path().join("agent.log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodekeeper-agent"));
        command.arg("--config").arg(self.dir.path().join("node.json")).arg("--data-dir").arg(self.data());
        if !args.contains(&"--on-gone") {
            // Never the default, which is to power off.
            command.args(["--on-gone", "true"]);
        }
        command.args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).envs(self.env.clone());
        self.agent = Some(command.spawn().unwrap());
    }

    /// `kill -9`, as an out-of-memory killer would.
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

    pub fn with<T>(&self, look: impl FnOnce(&mut Plane) -> T) -> T {
        look(&mut self.plane.lock().unwrap())
    }

    /// Looks again and again until there is something to see.
    pub async fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(seen) = look(self) {
                return seen;
            }
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default();
                panic!("not in {PATIENCE:?}: {what}; the agent said:\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn end_of(&self, copy: u32) -> AllocUpdate {
        self.until("the alloc's end is reported", |w| w.with(|p| p.ends(alloc_id(copy)).first().cloned())).await
    }

    pub async fn running(&self, copy: u32) {
        self.until("the alloc is reported running", |w| {
            w.with(|p| p.said(alloc_id(copy), ClientStatus::Running)).then_some(())
        })
        .await;
    }

    /// The text of a file in the alloc's work directory, once it has a whole line.
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

impl Drop for World {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        // Supervisors outlive their agent on purpose: end those of this test by what they
        // wrote down.
        for dir in std::fs::read_dir(self.data().join("allocs")).into_iter().flatten().flatten() {
            let started = std::fs::read_to_string(dir.path().join("started")).unwrap_or_default();
            let started: Value = serde_json::from_str(&started).unwrap_or_default();
            if let (Some(pid), Some(ticks)) = (started["pid"].as_i64(), started["start_ticks"].as_u64()) {
                nodekeeper_agent::process::kill_session(pid as i32, ticks);
            }
        }
    }
}

/// Whether this process runs, and is not merely waited for.
pub fn is_alive(pid: &str) -> bool {
    nodekeeper_agent::process::read(pid.parse().unwrap()).is_some_and(|p| !p.zombie)
}
