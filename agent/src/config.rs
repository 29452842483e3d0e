//! The command line and the node file.
//!
//! Guarantees: what is wrong with them is one clear line before anything starts.
//! Does not: read the environment or the clock; `main` does.

use clap::{Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};
use shared::wire::{NODE_FILE, NodeFile};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The agent of a nodekeeper node.
#[derive(Clone, Debug, Parser)]
#[command(name = "nodekeeper-agent", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// The node file, written by the instance's user data.
    #[arg(long, value_name = "FILE", default_value = NODE_FILE)]
    pub config: PathBuf,
    /// Where the agent keeps its state, the allocs and the caches.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nodekeeper")]
    pub data_dir: PathBuf,
    /// The EC2 instance id [default: from the instance metadata].
    #[arg(long, value_name = "ID")]
    pub instance_id: Option<String>,
    /// What tells one boot from another [default: the kernel's boot id].
    #[arg(long, value_name = "ID")]
    pub boot_id: Option<String>,
    /// Where other members of a job reach this node [default: from the instance metadata].
    #[arg(long, value_name = "ADDRESS")]
    pub address: Option<String>,
    /// The instance metadata service.
    #[arg(long, value_name = "URL", default_value = "http://169.254.169.254")]
    pub imds_url: String,
    /// Do without instance metadata: needs --instance-id.
    #[arg(long)]
    pub no_imds: bool,
    /// Run by the shell after everything was stopped because this node is no more.
    #[arg(long, value_name = "COMMAND", default_value = "poweroff")]
    pub on_gone: String,
    /// Stop all work after so many seconds without an answer [default: never].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub stop_after_s: Option<Duration>,
    /// Run commands as this user [default: as the agent's own].
    #[arg(long, value_name = "NAME")]
    pub job_user: Option<String>,
    /// How commands are run.
    #[arg(long, value_enum, default_value_t = Runtime::Process)]
    pub runtime: Runtime,
    /// Exit code 0 of this command says that the node is busy with other work.
    #[arg(long, value_name = "COMMAND")]
    pub busy_check: Option<String>,
    /// How often to ask it, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "10")]
    pub busy_check_every_s: Duration,
    /// How many handles are destroyed at a time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub max_destroys: u16,
    /// How long destroying one may take before the next is begun, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "60")]
    pub destroy_timeout_s: Duration,
    /// On TERM or INT, stop all allocs before leaving [default: they go on].
    #[arg(long)]
    pub stop_work_on_exit: bool,
    /// What the agent starts itself as.
    #[command(subcommand)]
    pub internal: Option<Internal>,
}

/// Not for people: the agent starts itself as these.
#[derive(Clone, Debug, Subcommand)]
pub enum Internal {
    /// Supervises the alloc in a directory.
    #[command(hide = true)]
    RunAlloc {
        /// The alloc's directory.
        dir: PathBuf,
    },
    /// Becomes a user, then a command.
    #[command(hide = true)]
    AsUser {
        /// The user.
        user: String,
        /// The program and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
}

/// How commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// As process groups of this machine.
    Process,
    /// As containers, through the docker command.
    Docker,
}

/// Why the agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The node file cannot be read.
    #[error("cannot read the node file {path}: {source}; the user data writes it, or name another with --config")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The node file is not one.
    #[error("the node file {path} is not valid: {source}")]
    Invalid {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// There is no such user.
    #[error("--job-user {0}: there is no such user on this machine")]
    NoSuchUser(String),
    /// Another user than ours.
    #[error("--job-user {0}: only root can run commands as another user; start the agent as root")]
    NotRoot(String),
    /// Who we are is not known.
    #[error("the instance id is not known: give --instance-id, or do not give --no-imds")]
    NoInstanceId,
    /// An empty value.
    #[error("{0} must not be empty")]
    Empty(&'static str),
}

/// Reads and checks the node file.
pub fn read_node_file(path: &Path) -> Result<NodeFile, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(unreadable)?;
    serde_json::from_slice(&bytes).map_err(|source| ConfigError::Invalid { path: path.to_owned(), source })
}

/// Checks what clap cannot.
pub fn check(args: &Args) -> Result<(), ConfigError> {
    if args.no_imds && args.instance_id.is_none() {
        return Err(ConfigError::NoInstanceId);
    }
    let given = [("--instance-id", &args.instance_id), ("--boot-id", &args.boot_id), ("--address", &args.address)];
    if let Some((name, _)) = given.into_iter().find(|(_, value)| value.as_deref() == Some("")) {
        return Err(ConfigError::Empty(name));
    }
    if let Some(name) = &args.job_user {
        let user = nix::unistd::User::from_name(name).ok().flatten();
        let user = user.ok_or_else(|| ConfigError::NoSuchUser(name.clone()))?;
        let own = nix::unistd::geteuid();
        if !own.is_root() && own != user.uid {
            return Err(ConfigError::NotRoot(name.clone()));
        }
    }
    Ok(())
}

fn seconds(given: &str) -> Result<Duration, String> {
    let s: f64 = given.parse().map_err(|_| format!("{given:?} is not a number of seconds"))?;
    if (0.05..=1e7).contains(&s) { Ok(Duration::from_secs_f64(s)) } else { Err("must be 0.05 to 10000000".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Args::command().debug_assert();
        let args = Args::parse_from(["nodekeeper-agent"]);
        assert_eq!(args.config, Path::new("/etc/nodekeeper/node.json"));
        assert_eq!((args.on_gone.as_str(), args.stop_after_s), ("poweroff", None));
        assert!(Args::try_parse_from(["nodekeeper-agent", "--stop-after-s", "-1"]).is_err());
        assert!(Args::try_parse_from(["nodekeeper-agent", "--stop-after-s", "inf"]).is_err());
    }

    #[test]
    fn a_bad_node_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("node.json");
        assert!(read_node_file(&path).unwrap_err().to_string().contains("node.json"));
        std::fs::write(&path, r#"{"cluster": "c"}"#).unwrap();
        assert!(read_node_file(&path).unwrap_err().to_string().contains("node_id"));
    }

    #[test]
    fn without_metadata_the_instance_id_must_be_given() {
        let args = Args::parse_from(["nodekeeper-agent", "--no-imds"]);
        assert!(matches!(check(&args), Err(ConfigError::NoInstanceId)));
    }
}
