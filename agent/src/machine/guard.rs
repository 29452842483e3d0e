//! Whether this node may run jobs: whether they are isolated as the operator was promised.
//!
//! Flow: [`prepare`] chooses how commands are run, before the agent registers. [`Guard::refusal`] then tries, with a
//! job's rights, whether the instance metadata is out of reach; [`watch`] tries it again every minute, because a rule of
//! a firewall may vanish.
//! Guarantees: an agent that cannot isolate jobs does not start, unless the operator said so by name. A node whose jobs
//! could read the instance metadata, or that cannot find it out, takes no work, and tells the control plane why.
//! Does not: set the rule (the boot script does).

use super::data_dir::DataDir;
use crate::OWN_PROGRAM;
use crate::config::AgentArgs;
use crate::contact::shared_node::SharedNode;
use crate::isolation::probe::{self, Probe, ProbeResult};
use crate::isolation::{OwnIds, PrivateMounts, cgroup, metadata};
use crate::protocol::Refusals;
use anyhow::{anyhow, bail};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the guard tries to reach the metadata.
const INTERVAL: Duration = Duration::from_secs(60);

/// The advice in every refusal because of the metadata.
const ADVICE: &str = "set the rule of the boot script, or give --allow-metadata";

/// What the agent needs to try the metadata again.
#[derive(Clone, Debug)]
pub struct Guard {
    enter: PathBuf,
    /// The user ids to try it with, which no job has; empty if nothing is tried.
    ids: Vec<u32>,
    metadata: Vec<SocketAddr>,
}

/// Chooses who runs commands, and finds out what the machine allows. `None`: the agent's own user runs them.
pub async fn prepare(args: &AgentArgs, data: &DataDir) -> anyhow::Result<(Option<OwnIds>, Guard)> {
    let mut guard = Guard {
        enter: data.allocs(),
        ids: Vec::new(),
        metadata: if args.allow_metadata { Vec::new() } else { metadata::addresses(&args.imds_url) },
    };
    if args.unisolated {
        tracing::warn!("jobs are not isolated: they run as the agent's own user, and can do what the agent can");
        return Ok((None, guard));
    }
    let (uids, max_tasks) = (args.job_uids, args.max_tasks);
    let cgroups = cgroup::set_up(uids.first);
    // No job has these two ids. A job that kills everything of its own user must not kill a probe.
    guard.ids = [uids.first, uids.last].into();
    let no_mounts = guard.must_enter().await?.no_mounts;
    let private_mounts = no_mounts.is_none();
    tracing::info!(user_ids = %uids, private_mounts, ?cgroups, no_mounts, "each job runs as a user id of its own");
    Ok((Some(OwnIds { uids, max_tasks, private_mounts, cgroups }), guard))
}

impl Guard {
    fn probe(&self, uid: u32, mounts: Option<PrivateMounts>, metadata: Vec<SocketAddr>) -> Probe {
        Probe { uid, mounts, enter: self.enter.clone(), metadata }
    }

    /// Finds out what the machine allows. Fails if jobs could not enter the data directory.
    async fn must_enter(&self) -> anyhow::Result<ProbeResult> {
        let Some(id) = self.ids.first() else { bail!("cannot isolate jobs: no user id") };
        let found = probe::run(Path::new(OWN_PROGRAM), &self.probe(*id, Some(PrivateMounts::new()), Vec::new())).await;
        let found = found.map_err(|e| anyhow!("cannot isolate jobs: {e}"))?;
        if let Some(why) = &found.cannot_enter {
            let advice = "let others enter its parents (chmod o+x), or choose another --data-dir";
            bail!("jobs cannot enter {} ({why}): {advice}", self.enter.display());
        }
        Ok(found)
    }

    /// Why this node takes no work; `None` if it may.
    pub async fn refusal(&self) -> Option<String> {
        for id in self.ids.iter().filter(|_| !self.metadata.is_empty()) {
            match self.reach(*id).await {
                Err(error) => {
                    return Some(format!("cannot find out whether jobs reach the metadata: {error}; {ADVICE}"));
                }
                Ok(reached) => {
                    if let Some(address) = reached.first() {
                        return Some(format!("jobs reach the instance metadata at {}: {ADVICE}", address.ip()));
                    }
                }
            }
        }
        None
    }

    /// The addresses of the metadata that a job with this user id reaches as a process. A job in a container reaches the same ones,
    /// because it has the network and the user ids of the machine.
    async fn reach(&self, id: u32) -> io::Result<Vec<SocketAddr>> {
        let probe = self.probe(id, None, self.metadata.clone());
        probe::run(Path::new(OWN_PROGRAM), &probe).await.map(|found| found.metadata)
    }
}

/// Tries before the first heartbeat, so that the control plane places nothing on a node that takes no work.
pub async fn first(state: &SharedNode, guard: &Guard) {
    note(state, guard.refusal().await, |refuses| &mut refuses.metadata).await;
}

/// Tries again and again whether the node may take work, and tells the control plane at once when that changes.
pub async fn watch(state: &SharedNode, guard: &Guard) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        note(state, guard.refusal().await, |refuses| &mut refuses.metadata).await;
    }
}

/// Notes one of the reasons why the node takes no work; `None` if there is none.
pub async fn note(state: &SharedNode, refusal: Option<String>, which: fn(&mut Refusals) -> &mut Option<String>) {
    let mut refuses = state.read(|n| n.refuses.clone());
    let known = which(&mut refuses);
    if *known == refusal {
        return;
    }
    *known = refusal;
    match refuses.reason() {
        Some(why) => tracing::error!(why, "this node takes no work"),
        None => tracing::info!("this node takes work again"),
    }
    state.update_and_beat(|n| n.refuses = refuses).await;
}
