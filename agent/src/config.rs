//! The command line and the node file.
//!
//! Guarantees: a mistake in them is reported in one line, before anything starts.
//! Does not: read the environment or the clock; `main` does.

use crate::enter::EnterArgs;
use crate::isolation::ids::{IdRange, JOB_UIDS};
use crate::runtime::WantedRuntime;
use anyhow::{anyhow, bail, ensure};
use clap::{Parser, Subcommand};
use model::names::{is_host, is_id};
use model::wire::{LaunchFile, NODE_FILE};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The agent of a nodekeeper node.
#[derive(Clone, Debug, Parser)]
#[command(name = "nodekeeper-agent", version, args_conflicts_with_subcommands = true)]
pub struct AgentArgs {
    /// The node file, written by the instance's user data.
    #[arg(long, value_name = "FILE", default_value = NODE_FILE)]
    pub config: PathBuf,
    /// Where the agent keeps its state, the allocs and the caches.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nodekeeper")]
    pub data_dir: PathBuf,
    /// The EC2 instance id [default: from the instance metadata].
    #[arg(long, value_name = "ID")]
    pub instance_id: Option<String>,
    /// The id of this boot [default: the kernel's boot id].
    #[arg(long, value_name = "ID")]
    pub boot_id: Option<String>,
    /// Where other members of a job reach this node [default: from the instance metadata].
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// The region of the function URLs and of S3 [default: that of the URL, else AWS_REGION for S3, else from the instance
    /// metadata].
    #[arg(long, value_name = "NAME")]
    pub region: Option<String>,
    /// The instance metadata service.
    #[arg(long, value_name = "URL", default_value = "http://169.254.169.254")]
    pub imds_url: String,
    /// Do not use instance metadata; needs --instance-id.
    #[arg(long)]
    pub no_imds: bool,
    /// Run this shell command after all work was stopped because the node is gone.
    #[arg(long, value_name = "COMMAND", default_value = "poweroff")]
    pub on_gone: String,
    /// Stop all work after this many seconds without an answer [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stop_after_s: Option<Duration>,
    /// The user ids that allocs run as. Each running alloc has one of its own, or shares it with those that name the same cache.
    #[arg(long, value_name = "FIRST-LAST", default_value = JOB_UIDS)]
    pub job_uids: IdRange,
    /// How many processes and threads an alloc may have.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=4_000_000))]
    pub max_tasks: u64,
    /// Run all allocs as the agent's own user: they can do what the agent can.
    #[arg(long)]
    pub unisolated: bool,
    /// Take work even if jobs can read the instance metadata, with the credentials of the instance's role.
    #[arg(long)]
    pub allow_metadata: bool,
    /// Take the GPUs of this machine from this file, and not from `nvidia-smi`: a list in JSON, as in
    /// [{"uuid": "GPU-0", "model": "A10G", "device": "/dev/nvidia0", "sick": false}]. It is read again each second.
    #[arg(long, value_name = "FILE")]
    pub gpus_from: Option<PathBuf>,
    /// What runs the jobs with an image: docker, podman, or `auto` for the first of them that works.
    /// With `none`, this node runs no containers.
    #[arg(long, value_name = "RUNTIME", value_enum, default_value = "auto")]
    pub containers: WantedRuntime,
    /// Exit code 0 of this command means that other work keeps the node busy.
    #[arg(long, value_name = "COMMAND")]
    pub busy_check: Option<String>,
    /// How often to run the busy check, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub busy_check_every_s: Duration,
    /// How many handles are destroyed at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub max_destroys: u16,
    /// How much output is kept on the node after the directory of its alloc was destroyed, until it is stored in S3, in MiB. The
    /// oldest is removed first.
    #[arg(long, value_name = "MIB", default_value_t = 4096, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub keep_output_mib: u64,
    /// How much of the inputs of jobs is kept on the node for other jobs that want the same, in MiB. The input that was unused for
    /// the longest time is removed first. An input that was not used for a day is always removed.
    #[arg(long, value_name = "MIB", default_value_t = 20_480, value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    pub keep_inputs_mib: u64,
    /// How long to wait for one destroy before going on with the others, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub destroy_timeout_s: Duration,
    /// On TERM or INT, stop all allocs before the agent ends [default: they keep running].
    #[arg(long)]
    pub stop_work_on_exit: bool,
    /// What else this program does.
    #[command(subcommand)]
    pub internal: Option<InternalCommand>,
}

/// What this program does besides being the agent. The agent starts this program itself for all of these but the first.
#[derive(Clone, Debug, Subcommand)]
pub enum InternalCommand {
    /// Run a command inside of an alloc that runs on this node: as its user, with its view of the files, its limits and its
    /// environment, or in its container. Only for root and for the agent's user; ends with the exit code of the command.
    Enter(EnterArgs),
    /// Supervise the alloc in a directory.
    #[command(hide = true)]
    RunAlloc {
        /// The directory of the alloc.
        dir: PathBuf,
    },
    /// Become the command that standard input describes.
    #[command(hide = true)]
    AsUser,
    /// End the command that a person runs inside of an alloc, when its caller is gone.
    #[command(hide = true)]
    EndEntered {
        /// What the environment of the command has.
        mark: String,
        /// The first process of the command.
        first: Option<i32>,
    },
    /// Kill everything that runs as a user.
    #[command(hide = true)]
    EndUser {
        /// The user id.
        uid: u32,
        /// A user id that nothing runs as.
        reaper: u32,
    },
    /// Try what standard input describes, with a job's rights.
    #[command(hide = true)]
    Probe,
}

/// Neither the command line nor the metadata gives the instance id.
pub const NO_INSTANCE_ID: &str = "the instance id is not known: give --instance-id, or do not give --no-imds";

pub fn read_node_file(path: &Path) -> anyhow::Result<LaunchFile> {
    let file = path.display();
    let bytes = std::fs::read(path).map_err(|e| {
        anyhow!("cannot read the node file {file}: {e}; the user data writes it, or name another with --config")
    })?;
    serde_json::from_slice(&bytes).map_err(|e| anyhow!("the node file {file} is not valid: {e}"))
}

/// Checks the rules that clap cannot check.
pub fn check(args: &AgentArgs) -> anyhow::Result<()> {
    ensure!(!args.no_imds || args.instance_id.is_some(), NO_INSTANCE_ID);
    // The control plane refuses such an address, and such ids.
    if let Some(address) = args.address.as_ref().filter(|address| !is_host(address)) {
        bail!("--address {address:?} is neither an IP address nor the name of a host");
    }
    let ids = [("--instance-id", &args.instance_id), ("--boot-id", &args.boot_id)];
    if let Some((name, Some(id))) = ids.into_iter().find(|(_, id)| id.as_deref().is_some_and(|id| !is_id(id))) {
        bail!("{name} {id:?} must be 1 to 128 letters, digits, '-', '_', '.' or ':'");
    }
    let job_uids = args.job_uids;
    if !args.unisolated {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "only root can isolate jobs: start the agent as root, or give --unisolated if every job may do what this \
             user can do"
        );
        if let Some(name) = user_in(job_uids) {
            bail!("--job-uids {job_uids}: the user {name} has one of these ids; choose a range that nobody uses");
        }
    }
    Ok(())
}

/// A user of this machine who has an id of the range. Directories of users on other machines (such as LDAP) are not asked, because
/// they may not answer.
fn user_in(range: IdRange) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut of_range = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        range.contains(fields.nth(1)?.parse().ok()?).then(|| name.to_owned())
    });
    of_range.next()
}

/// Takes the right to read the node file away from others: the file may hold the node's token.
pub fn close_node_file(path: &Path) -> anyhow::Result<()> {
    let closed = std::fs::metadata(path).and_then(|metadata| match metadata.permissions().mode() & 0o077 {
        0 => Ok(()),
        _ => std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)),
    });
    let file = path.display();
    closed.map_err(|e| anyhow!("others can read the node file {file}, which may hold the node's token: {e}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let s: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    if (0.05..=1e7).contains(&s) { Ok(Duration::from_secs_f64(s)) } else { Err("must be 0.05 to 10000000".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::collections::BTreeSet;

    #[test]
    fn the_command_line_is_well_formed() {
        AgentArgs::command().debug_assert();
        let args = AgentArgs::parse_from(["nodekeeper-agent"]);
        assert_eq!(args.config, Path::new("/etc/nodekeeper/node.json"));
        assert_eq!((args.on_gone.as_str(), args.stop_after_s), ("poweroff", None));
        assert!(AgentArgs::try_parse_from(["nodekeeper-agent", "--stop-after-s", "-1"]).is_err());
        assert!(AgentArgs::try_parse_from(["nodekeeper-agent", "--stop-after-s", "inf"]).is_err());
    }

    #[test]
    fn the_policy_knows_each_option() {
        let command = AgentArgs::command();
        let own: BTreeSet<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        assert_eq!(own, model::policy::AGENT_OPTIONS.split(' ').collect());
    }

    #[test]
    fn an_error_names_the_node_file_and_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.json");
        assert!(read_node_file(&path).unwrap_err().to_string().contains("node.json"));
        std::fs::write(&path, r#"{"cluster": "c"}"#).unwrap();
        assert!(read_node_file(&path).unwrap_err().to_string().contains("heartbeat_url"));
        std::fs::write(&path, r#"{"cluster": "c", "heartbeat_url": "http://h", "sweep_url": "http://s"}"#).unwrap();
        let file = read_node_file(&path).unwrap();
        assert_eq!(file.any_node(), None);
    }

    #[test]
    fn without_metadata_the_instance_id_must_be_on_the_command_line() {
        let args = AgentArgs::parse_from(["nodekeeper-agent", "--no-imds"]);
        assert_eq!(check(&args).unwrap_err().to_string(), NO_INSTANCE_ID);
    }

    #[test]
    fn what_the_control_plane_would_refuse_is_refused_at_the_start() {
        for (option, value) in [("--address", "a,b"), ("--instance-id", "i 1"), ("--boot-id", "b\n")] {
            let line = ["nodekeeper-agent", "--unisolated", option, value];
            let error = check(&AgentArgs::parse_from(line)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{option} {value:?} ")), "{error}");
        }
    }
}
