//! `nodekeeper-agent`: reads the command line, the environment and the clock, and passes them to the rest.
//!
//! Guarantees: no other file of the agent reads the clock or the environment; no descriptor of whatever started the
//! agent reaches a job.
//! Does not: decide anything.

use aws_credential_types::Credentials;
use clap::Parser;
use model::{EndCause, Time};
use nodekeeper_agent::OWN_PROGRAM;
use nodekeeper_agent::agent::{self, AgentConfig};
use nodekeeper_agent::config::{self, AgentArgs, InternalCommand};
use nodekeeper_agent::contact::s3_access::S3Environment;
use nodekeeper_agent::enter;
use nodekeeper_agent::isolation::{end, helper, probe};
use nodekeeper_agent::runtime::ProcessEnv;
use nodekeeper_agent::work::alloc_dir::AllocDir;
use nodekeeper_agent::work::supervised::SupervisorContext;
use nodekeeper_agent::work::supervisor;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What is logged: `RUST_LOG`, as in `warn,reqwest=debug`.
#[allow(clippy::disallowed_methods, reason = "a program reads its environment where it starts")]
fn log_filter() -> Targets {
    let filter = std::env::var("RUST_LOG").ok().and_then(|filter| filter.parse().ok());
    filter.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO))
}

fn main() -> ExitCode {
    // First of all, because this closes every descriptor but the standard streams.
    close_inherited();
    let args = AgentArgs::parse();
    // The log may be on a full disk. A log that cannot be written must not end the agent.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(log.log_internal_errors(false)).with(log_filter()).init();
    let result = match args.internal.clone() {
        None => run_agent(args),
        Some(InternalCommand::Enter(args)) => match enter::run(&args, term()) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => {
                print_error(&error.to_string());
                return ExitCode::from(enter::exit_code(&error));
            }
        },
        Some(InternalCommand::RunAlloc { dir }) => run_alloc(dir),
        Some(InternalCommand::AsUser) => return as_user(),
        Some(InternalCommand::EndEntered { mark, first }) => enter::caller::run(&mark, first).map_err(Into::into),
        Some(InternalCommand::EndUser { uid, reaper }) => end::run_helper(uid, reaper).map_err(Into::into),
        Some(InternalCommand::Probe) => {
            probe::run_helper(std::io::stdin().lock(), std::io::stdout().lock()).map_err(Into::into)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "what runs elements gets the clock here, as an argument")]
fn as_user() -> ExitCode {
    let cause = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(stdin) => helper::run(stdin.into(), Time::now),
        Err(e) => Some(EndCause::NotStarted { why: format!("its helper has no standard input: {e}") }),
    };
    let Some(cause) = cause else { return ExitCode::SUCCESS };
    print_error(&cause.to_string());
    // As in a shell: 127 if the program is not found, 126 if it cannot be run.
    ExitCode::from(cause.exit_code().and_then(|code| u8::try_from(code).ok()).unwrap_or(126))
}

fn term() -> Option<String> {
    std::env::var_os("TERM")?.into_string().ok()
}

/// Closes every inherited descriptor except the standard streams. Otherwise jobs would inherit them.
fn close_inherited() {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let open: Vec<i32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The descriptor of the list itself is closed already.
        let _closed_is_fine = nix::unistd::close(fd);
    }
}

/// Unlike `eprintln!` this does not panic if standard error cannot be written.
fn print_error(what: &str) {
    let _unwritable_is_fine = writeln!(std::io::stderr(), "nodekeeper-agent: {what}");
}

fn run_agent(args: AgentArgs) -> anyhow::Result<()> {
    config::check(&args)?;
    let node = config::read_node_file(&args.config)?;
    if !args.unisolated {
        config::close_node_file(&args.config)?;
    }
    let boot_id = match &args.boot_id {
        Some(id) => id.clone(),
        None => std::fs::read_to_string(BOOT_ID)
            .map_err(|e| anyhow::anyhow!("cannot read {BOOT_ID}: {e}; give --boot-id"))?
            .trim()
            .to_owned(),
    };
    #[allow(clippy::disallowed_methods, reason = "the agent gets the clock here, as an argument")]
    let clock = jiff::Timestamp::now;
    let config = AgentConfig { node, args, boot_id, s3: s3_environment(), clock };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(async {
        let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let told_to_end = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        agent::run(config, told_to_end).await
    });
    // Does not wait for running tasks: a destroy that hangs must not delay the end of the agent.
    runtime.shutdown_background();
    outcome
}

/// The settings for S3. Jobs do not get them, except that a job with a role gets the endpoints.
fn s3_environment() -> S3Environment {
    #[allow(clippy::disallowed_methods, reason = "the agent gets its environment here, as an argument")]
    let var = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let credentials = match (var("AWS_ACCESS_KEY_ID"), var("AWS_SECRET_ACCESS_KEY")) {
        (Some(id), Some(secret)) => {
            Some(Credentials::new(id, secret, var("AWS_SESSION_TOKEN"), None, "the environment"))
        }
        _ => None,
    };
    let endpoint = var("AWS_ENDPOINT_URL_S3").or_else(|| var("AWS_ENDPOINT_URL"));
    S3Environment { credentials, region: var("AWS_REGION"), endpoint }
}

fn run_alloc(dir: PathBuf) -> anyhow::Result<()> {
    let names = ["PATH", "HOME", "LANG"];
    let set = names.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?.into_string().ok()?)));
    let mut env: ProcessEnv = set.collect();
    env.entry("PATH".into()).or_insert_with(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
    let is_endpoint = |name: &str| name.starts_with("AWS_ENDPOINT_URL");
    let endpoints = std::env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    let endpoints = endpoints.filter(|(name, value)| is_endpoint(name) && !value.is_empty()).collect();
    let (s3, clock) = (s3_environment(), jiff::Timestamp::now);
    let context = SupervisorContext { env, endpoints, program: OWN_PROGRAM.into(), s3, clock };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(supervisor::run(AllocDir::at(dir), &context))?)
}
