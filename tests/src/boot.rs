//! The boot script, run as on an instance: in its own root and network, from the user data to a job.
//!
//! The user data come from poll-and-scale. The instance metadata, the agent's file and heartbeat-ingest are in another
//! network namespace, at the addresses that an instance sees. Needs root.

use crate::second_opinions::root;
use crate::world::node::http;
use crate::world::{World, quick_policy};
use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use model::{JobSpec, JobState};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};

/// The addresses of the services and of the node, as the node sees them.
const SERVICES: &str = "10.213.0.2";
const NODE: &str = "10.213.0.1";

/// Stands for systemd: starts the commands of the unit.
const SYSTEMCTL: &str = r#"#!/bin/sh
[ "$1" = enable ] || exit 0
unit=/etc/systemd/system/$3
pre=$(sed -n 's/^ExecStartPre=//p' "$unit")
sh -c "$pre" || exit 1
start=$(sed -n 's/^ExecStart=//p' "$unit")
setsid sh -c "exec $start --on-gone true" >/var/log/agent.log 2>&1 </dev/null &
"#;

/// All lines of the unit without its comments. A lost line harms jobs: without KillMode, for example, a restart of the agent ends them.
const UNIT: &str = "\
[Unit]
Description=nodekeeper agent
After=network-online.target docker.service nvidia-persistenced.service nvidia-fabricmanager.service local-fs.target
Wants=network-online.target
RequiresMountsFor=/var/lib/nodekeeper
[Service]
ExecStartPre=/usr/local/sbin/nodekeeper-metadata-rules
ExecStart=/usr/local/bin/nodekeeper-agent --job-uids UIDS 
Restart=always
RestartSec=2
KillMode=process
OOMScoreAdjust=-900
LimitNOFILE=65536
TasksMax=infinity
[Install]
WantedBy=multi-user.target
";

/// The rules of the kernel for the address of the metadata, for IPv4 and IPv6.
const RULES: &str = "\
100: from all to ADDRESS iif lo uidrange UIDS prohibit proto kernel
101: from all to ADDRESS iif lo lookup main proto kernel
102: from all to ADDRESS prohibit proto kernel
";

fn sh(script: &str) -> String {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Two connected network namespaces: one of the node, and one of the services.
struct Network {
    node: String,
    services: String,
}

impl Network {
    fn new() -> Self {
        let pid = std::process::id();
        let (node, services) = (format!("nk{pid}n"), format!("nk{pid}s"));
        sh(&format!(
            "ip netns add {node}; ip netns add {services}
             ip -n {node} link add n0 type veth peer name s0 netns {services}
             ip -n {node} link set lo up; ip -n {services} link set lo up
             ip -n {node} addr add {NODE}/30 dev n0; ip -n {services} addr add {SERVICES}/30 dev s0
             ip -n {services} addr add 169.254.169.254/32 dev s0
             ip -n {node} link set n0 up; ip -n {services} link set s0 up
             ip -n {node} route add 169.254.169.254/32 dev n0"
        ));
        Self { node, services }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Every process in the node's network belongs to this test.
        let end = format!("ip netns pids {} | xargs -r kill -9", self.node);
        let _ended = Command::new("sh").args(["-c", &end]).status();
        for name in [&self.node, &self.services] {
            let _removed = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// A request of the node to heartbeat-ingest, and the channel for its answer.
type Asked = (Value, oneshot::Sender<Value>);

async fn pass_on(
    ask: &mpsc::UnboundedSender<Asked>,
    path: &str,
    headers: &HeaderMap,
    body: &str,
) -> (StatusCode, Bytes) {
    let token = headers.get("authorization").and_then(|h| h.to_str().ok()?.strip_prefix("Bearer "));
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let (answer, answered) = oneshot::channel::<Value>();
    let sent = ask.send((http(path, token, &body), answer));
    let Ok(answer) = answered.await.map_err(|_| sent) else {
        return (StatusCode::SERVICE_UNAVAILABLE, Bytes::new());
    };
    let status = StatusCode::from_u16(answer["statusCode"].as_u64().unwrap() as u16).unwrap();
    (status, Bytes::from(answer["body"].as_str().unwrap().to_owned()))
}

/// Serves the metadata, the agent and the control plane in this network namespace, on a thread of its own.
fn serve(network: &str, instance_id: Arc<Mutex<String>>, agent: Vec<u8>) -> mpsc::UnboundedReceiver<Asked> {
    let (ask, asked) = mpsc::unbounded_channel();
    // The bucket of the agent fails each other time.
    let fetched = Arc::new(AtomicBool::new(false));
    let namespace = std::fs::File::open(format!("/run/netns/{network}")).unwrap();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("0.0.0.0:80").await.unwrap();
            ready.send(()).unwrap();
            let agent = Bytes::from(agent);
            let app =
                axum::Router::new().fallback(move |method: Method, uri: Uri, headers: HeaderMap, body: String| {
                    let (ask, agent, instance_id) = (ask.clone(), agent.clone(), instance_id.lock().unwrap().clone());
                    let fetched = Arc::clone(&fetched);
                    async move {
                        let text = |text: &str| (StatusCode::OK, Bytes::from(text.to_owned()));
                        match (method.as_str(), uri.path()) {
                            ("PUT", "/latest/api/token") => text("t"),
                            ("GET", "/latest/meta-data/instance-id") => text(&instance_id),
                            ("GET", "/latest/meta-data/local-ipv4") => text(NODE),
                            ("GET", "/agent") if fetched.fetch_xor(true, Relaxed) => (StatusCode::OK, agent),
                            ("GET", "/agent") => (StatusCode::SERVICE_UNAVAILABLE, Bytes::from("try again")),
                            ("POST", path) => pass_on(&ask, path, &headers, &body).await,
                            _ => (StatusCode::NOT_FOUND, Bytes::new()),
                        }
                    }
                });
            axum::serve(listener, app).await
        })
    });
    is_ready.recv_timeout(Duration::from_secs(10)).unwrap();
    asked
}

/// A root with the machine's programs, and its own configuration and data.
fn make_root(dir: &Path) {
    for name in [
        "etc/systemd/system",
        "etc/ssl",
        "var/lib",
        "var/log",
        "var/tmp",
        "tmp",
        "run",
        "proc",
        "dev",
        "usr",
        "local/bin",
        "local/sbin",
    ] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in ["tmp", "var/tmp"] {
        std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o1777)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), dir.join(name)).unwrap();
    }
    for name in ["passwd", "group", "nsswitch.conf"] {
        std::fs::copy(Path::new("/etc").join(name), dir.join("etc").join(name)).unwrap();
    }
    sh(&format!("cp -a /etc/ssl/certs {}/etc/ssl/", dir.display()));
    std::fs::write(dir.join("local/bin/systemctl"), SYSTEMCTL).unwrap();
    std::fs::set_permissions(dir.join("local/bin/systemctl"), PermissionsExt::from_mode(0o755)).unwrap();
}

/// Runs the user data in this root and network, as cloud-init would.
fn boot(dir: &Path, network: &Network, user_data: &str) -> (bool, String) {
    std::fs::write(dir.join("user-data"), user_data).unwrap();
    let dir = dir.display();
    let script = format!(
        "mount --bind {dir} {dir}; mount --bind /usr {dir}/usr; mount -o remount,ro,bind {dir}/usr
         mount --bind {dir}/local {dir}/usr/local; mount -t proc proc {dir}/proc; mount --rbind /dev {dir}/dev
         exec chroot {dir} env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh /user-data"
    );
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &network.node, "unshare", "--mount", "sh", "-ec", &script]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn agent_program() -> PathBuf {
    let directory = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    directory.join("nodekeeper-agent")
}

fn digest(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8_lossy(&output.stdout).split_whitespace().next().unwrap().to_owned()
}

#[tokio::test]
async fn the_boot_script_makes_a_node_whose_jobs_are_isolated_and_reach_no_metadata() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can make networks and roots");
    }
    let network = Network::new();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    make_root(dir.path());
    let agent = agent_program();
    let uids = format!("{}-{}", 1_600_000_000 + std::process::id(), 1_600_000_009 + std::process::id());
    let script = std::fs::read_to_string(root().join("infra/boot.sh")).unwrap();
    let given =
        |digest: &str| format!("AGENT_URL=http://{SERVICES}/agent\nAGENT_SHA256={digest}\nJOB_UIDS={uids}\n{script}");
    let mut policy = quick_policy();
    policy["launch"]["user_data"] = given(&digest(&agent)).into();
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    (world.settings.heartbeat_url, world.settings.sweep_url) =
        (format!("http://{SERVICES}"), format!("http://{SERVICES}"));
    let command = "id -u; id -un; curl -s -m 5 http://169.254.169.254/latest/meta-data/instance-id && echo REACHED; \
                   cat /etc/nodekeeper/node.json && echo READ; curl -s -m 5 -o /dev/null http://10.213.0.2/agent && echo network";
    let spec = JobSpec::running(["sh", "-c", command]);
    let job = world.submit(spec).await;
    world.poll().await.unwrap();
    let launched = world.ec2.instances().remove(0);
    let instance_id = Arc::new(Mutex::new(launched.instance_id.clone()));
    let mut asked = serve(&network.services, Arc::clone(&instance_id), std::fs::read(&agent).unwrap());
    // A file other than the one that the operator chose is never run.
    let node_file = launched.user_data.replace(&digest(&agent), &"0".repeat(64));
    let (booted, said) = boot(dir.path(), &network, &node_file);
    assert!(!booted && said.contains("does not have the digest that [agent] says"), "{said}");
    assert!(!dir.path().join("local/bin/nodekeeper-agent").exists());
    // Nor is it started if anything before fails.
    let units = dir.path().join("etc/systemd/system");
    std::fs::rename(&units, units.with_extension("away")).unwrap();
    assert!(!boot(dir.path(), &network, &launched.user_data).0);
    std::fs::rename(units.with_extension("away"), &units).unwrap();
    let (booted, said) = boot(dir.path(), &network, &launched.user_data);
    assert!(booted, "{said}");
    let unit = std::fs::read_to_string(units.join("nodekeeper-agent.service")).unwrap();
    let lines: String =
        unit.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
    assert_eq!(lines, UNIT.replace("UIDS", &uids));
    let families = [("-4", "169.254.169.254", "ipv4"), ("-6", "fd00:ec2::254", "ipv6")];
    for (family, address, _) in families.into_iter().filter(|of| Path::new("/proc/sys/net").join(of.2).exists()) {
        let rules = sh(&format!(
            "ip -n {} -details {family} rule show | grep ^10[0-2]: | tr '\\t' ' ' | sed 's/ *$//'",
            network.node
        ));
        assert_eq!(rules, RULES.replace("ADDRESS", address).replace("UIDS", &uids), "{family}");
    }
    let log = || std::fs::read_to_string(dir.path().join("var/log/agent.log")).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(60);
    let ended = loop {
        assert!(Instant::now() < deadline, "the job does not end: {}", log());
        if let Ok(Some((event, answer))) = tokio::time::timeout(Duration::from_millis(300), asked.recv()).await {
            let path = event["rawPath"].as_str().unwrap().to_owned();
            let told = if path.ends_with("/handles") {
                match world.sweep.handle(event, world.clock()).await.unwrap() {
                    runtime::lambda::Reply::Http(told) => told,
                    _ => panic!("a request started a run"),
                }
            } else {
                world.ingest.handle(&event, world.now()).await
            };
            let _node_is_gone = answer.send(told);
        } else {
            world.pass(1);
            world.ec2.advance();
            world.poll().await.unwrap();
        }
        let now = world.look.job(job.summary.job_id).await.unwrap().unwrap();
        if now.summary.state.is_ended() {
            break now;
        }
    };
    let allocs = world.look.allocs([format!("{}.0.0", job.summary.job_id).parse().unwrap()]).await.unwrap();
    let tail = allocs[0].run.log_tail.clone().unwrap_or_default();
    assert_eq!(ended.summary.state, JobState::Complete, "{tail}\n{}", log());
    let first = uids.split('-').next().unwrap().parse::<u32>().unwrap() + 1;
    assert!(tail.starts_with(&format!("{first}\njob\n")) && tail.ends_with("network\n"), "{tail}");
    assert!(!tail.contains("REACHED") && !tail.contains("READ"), "{tail}");
    let node = world.look.nodes().await.unwrap().remove(0);
    assert_eq!(node.refuses(), None, "{}", log());
    assert!(log().contains("private_mounts=true"), "{}", log());
}
