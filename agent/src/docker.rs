//! Containers, through the docker command.
//!
//! Guarantees: a container is named by its alloc id and labelled with its node id; it gets
//! the same directories and environment as a process would.
//! Does not: pull, build or clean images, or speak to the daemon itself.

use crate::task::{AllocDir, Task};
use shared::ids::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The label that says whose a container is.
pub const LABEL: &str = "nodekeeper.node-id";

/// The longest a question to the daemon may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Where a cache is inside the container.
pub fn cache_path(name: &str) -> PathBuf {
    PathBuf::from("/caches").join(name)
}

/// The arguments after `docker` that run a task. `user` is `uid:gid`.
pub fn run_args(
    task: &Task,
    dir: &AllocDir,
    env: &BTreeMap<String, String>,
    image: &str,
    user: Option<&str>,
) -> Vec<String> {
    let mut options = vec![
        ("--name", task.order.alloc_id.to_string()),
        ("--label", format!("{LABEL}={}", task.node_id)),
        ("--volume", format!("{}:/work", dir.work().display())),
        ("--workdir", "/work".to_owned()),
    ];
    if task.order.memory_mib > 0 {
        options.push(("--memory", format!("{}m", task.order.memory_mib)));
    }
    options.extend(user.map(|user| ("--user", user.to_owned())));
    let mount = |(name, path): &(String, PathBuf)| format!("{}:{}", path.display(), cache_path(name).display());
    options.extend(task.caches.iter().map(|cache| ("--volume", mount(cache))));
    options.extend(env.iter().map(|(name, value)| ("--env", format!("{name}={value}"))));

    let mut args = vec!["run".to_owned(), "--init".to_owned()];
    args.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    args.push(image.to_owned());
    args.extend(task.order.command.iter().cloned());
    args
}

/// Stops a container: TERM, then KILL after `kill_timeout_s`.
pub async fn stop(name: &str, kill_timeout_s: u64) -> io::Result<()> {
    let patience = TIMEOUT + Duration::from_secs(kill_timeout_s);
    docker(&["stop", "--time", &kill_timeout_s.to_string(), name], patience).await.map(drop)
}

/// Removes a container, running or not. One that does not exist is removed.
pub async fn remove(name: &str) -> io::Result<()> {
    match docker(&["rm", "--force", "--volumes", name], TIMEOUT).await {
        Err(e) if e.to_string().to_ascii_lowercase().contains("no such container") => Ok(()),
        other => other.map(drop),
    }
}

/// The containers that carry our label, running or not: name and node id.
pub async fn list() -> io::Result<Vec<(String, String)>> {
    let filter = format!("label={LABEL}");
    let format = format!("{{{{.Names}}}}\t{{{{.Label \"{LABEL}\"}}}}");
    let out = docker(&["ps", "--all", "--no-trunc", "--filter", &filter, "--format", &format], TIMEOUT).await?;
    Ok(out.lines().filter_map(|l| l.split_once('\t')).map(|(n, l)| (n.to_owned(), l.to_owned())).collect())
}

/// Whether this container is one of this node's.
pub async fn is_ours(name: &str, node_id: NodeId) -> io::Result<bool> {
    let own = node_id.to_string();
    Ok(list().await?.iter().any(|(n, label)| n == name && *label == own))
}

async fn docker(args: &[&str], timeout: Duration) -> io::Result<String> {
    let mut command = Command::new("docker");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let verb = args.first().copied().unwrap_or_default();
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("docker {verb} did not end in {timeout:?}"));
    let out = tokio::time::timeout(timeout, command.output()).await.map_err(late)??;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(io::Error::other(format!("docker {verb} failed ({}): {}", out.status, said.trim())))
}
