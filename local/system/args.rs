//! The options of `nodekeeper local`, and what `main` reads for it.
//!
//! Does not: open what an option names. The parts do when they start.

use super::ports;
use crate::console::WallClock;
use crate::given::Given;
use crate::running;
use clap::{Args, ValueEnum};
use model::ClusterName;
use std::path::PathBuf;

/// The options of `nodekeeper local`.
#[derive(Args, Clone, Debug)]
pub struct LocalArgs {
    /// The policy, as TOML or JSON [default: a small fleet with short times]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The page's port. DynamoDB, EC2, the functions, STS with the secrets, and S3 have the ports from the second after it on. 0
    /// for any free ports
    #[arg(long, value_name = "PORT", default_value_t = ports::FIRST, value_parser = clap::value_parser!(u16).range(..=i64::from(ports::HIGHEST_FIRST)))]
    pub port: u16,
    /// The directory for machines, logs and the environment file
    #[arg(long, value_name = "DIR", default_value = running::DIRECTORY)]
    pub dir: PathBuf,
    /// Keep the tables in this file [default: in memory]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// The deployment's name
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub cluster: ClusterName,
    /// The key that makes node tokens: at least 64 hexadecimal digits [default: random]
    #[arg(long, value_name = "HEX")]
    pub node_key: Option<String>,
    /// How nodes prove who they are: by a token, or by requests signed with the role of their instances
    #[arg(long, value_enum, default_value_t = LocalAuth::Token, conflicts_with = "functions_url")]
    pub node_auth: LocalAuth,
    /// How many seconds a minute of the functions' schedules takes here
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub tick_s: u64,
    /// The functions run elsewhere, for example under `cargo lambda watch` at
    /// http://127.0.0.1:9000: start none, only invoke those there by schedule
    #[arg(long, value_name = "URL")]
    pub functions_url: Option<String>,
    /// Use the agent's program as it is: build nothing in a source tree
    #[arg(long)]
    pub no_build: bool,
    /// Run jobs as your own user, even if they could be isolated
    #[arg(long)]
    pub unisolated: bool,
    /// Do not run `launch.user_data` of the policy. Otherwise each machine runs it as your own user, before its agent starts
    #[arg(long)]
    pub no_user_data: bool,
}

/// How nodes prove who they are.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAuth {
    /// By a token in the node file.
    Token,
    /// By signatures, which the local function URLs check.
    Iam,
}

/// The inputs that `main` reads.
#[derive(Clone)]
pub struct LocalEnv {
    pub given: Given,
    /// The path of this program.
    pub exe: PathBuf,
    pub clock: WallClock,
}
