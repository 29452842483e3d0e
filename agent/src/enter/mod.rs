//! Runs a command inside of a running alloc, for a person who looks into it.
//!
//! Flow: [`run`] finds the alloc, starts this program again, and passes on input and output (`streams`). The program that
//! it starts joins what isolates the alloc, gives up the agent's rights, and becomes the command (`join`). An alloc in a container
//! is entered by the runtime of its container. A third process ends the command when its caller is gone (`caller`).
//! Guarantees: the command has the rights of the alloc and no others: its user and groups, control group, view of the files,
//! limits, environment and directory. It has nothing of its caller, neither a terminal, where a process of the alloc could type, nor
//! any other stream. It ends with the alloc, and with its caller.
//! Does not: ask who may do that (whoever is root on the node, or the agent's user), or write down that somebody did.

pub mod caller;
mod join;
mod live;
mod streams;

pub use live::exit_code;

use crate::OWN_PROGRAM;
use crate::runtime::ContainerRuntime;
use crate::work::supervisor::listen_to_ignored;
use caller::CallerWatch;
use live::{LiveAlloc, failed};
use model::AllocId;
use nix::sys::signal::Signal;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use streams::Streams;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, interval};

/// How often the program checks whether the alloc still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The time that a command has to end after its caller got TERM or HUP.
const TIME_TO_END: Duration = Duration::from_secs(5);

/// What to run, and where.
#[derive(Clone, Debug, clap::Args)]
pub struct EnterArgs {
    /// The directory where the agent keeps its state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nodekeeper")]
    pub data_dir: PathBuf,
    /// This is the process that becomes the command. Its environment gets this mark.
    #[arg(long, hide = true)]
    pub join: Option<String>,
    /// The alloc, as `nodekeeper job` shows it.
    pub alloc: AllocId,
    /// The command, after `--`.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Runs the command, and returns its exit code. `term` is the kind of the caller's terminal.
pub fn run(args: &EnterArgs, term: Option<String>) -> anyhow::Result<u8> {
    let live = LiveAlloc::find(&args.data_dir, args.alloc)?;
    if let Some(mark) = &args.join {
        return Err(join::run(&live, &args.command, mark, term));
    }
    let uid = live.task.uid().map_err(failed("find out who runs the alloc"))?;
    let streams = Streams::open(uid).map_err(failed("make the streams of the command"))?;
    let mark = caller::mark();
    let variable = format!("{}={mark}", caller::VARIABLE);
    let container = live.task.container;
    let mut command = Command::new(container.map_or(OWN_PROGRAM, ContainerRuntime::program));
    match container {
        Some(_) => {
            command.args(ContainerRuntime::inside(args.alloc, streams.is_terminal, &variable, &args.command));
        }
        None => {
            command.args(["enter", "--join", &mark, "--data-dir"]).arg(&args.data_dir).arg(args.alloc.to_string());
            command.arg("--").args(&args.command);
        }
    }
    streams.give_to(&mut command).map_err(failed("give the command its streams"))?;
    let entered = Entered { live: &live, mark, is_client: container.is_some() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.map_err(failed("wait for the command"))?.block_on(entered.wait(command, streams));
    let status = status.map_err(failed("run the command"))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128_i32.saturating_add(signal)));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

struct Entered<'a> {
    live: &'a LiveAlloc,
    mark: String,
    /// Whether what is started is the client of a container runtime.
    is_client: bool,
}

impl Entered<'_> {
    /// Starts the command and waits for it. Kills it when the alloc ends, and passes on the signals that the caller gets.
    async fn wait(self, command: Command, streams: Streams) -> io::Result<ExitStatus> {
        let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (mut hangup, mut resized) = (signal(SignalKind::hangup())?, signal(SignalKind::window_change())?);
        // The command ignores no signal because its caller does.
        listen_to_ignored();
        let mut command = tokio::process::Command::from(command);
        let mut child = command.spawn()?;
        // Otherwise this process would keep the command's sides of its streams open.
        drop(command);
        let pid = child.id().map_or(0, |pid| pid as i32);
        let mut watch = CallerWatch::start(&self.mark, (!self.is_client).then_some(pid))?;
        let passing = streams.pass_on()?;
        let mut check = interval(CHECK_INTERVAL);
        // When the wait for the command ends, after the caller got TERM or HUP.
        let mut leaves_at: Option<Instant> = None;
        let status = loop {
            let passed_on = tokio::select! {
                status = child.wait() => break status,
                _ = int.recv() => Signal::SIGINT,
                _ = term.recv() => Signal::SIGTERM,
                _ = hangup.recv() => Signal::SIGHUP,
                _ = resized.recv() => {
                    passing.resize();
                    continue;
                }
                _ = check.tick() => {
                    if !self.live.is_running() || leaves_at.is_some_and(|at| at < Instant::now()) {
                        watch.kill();
                        process_table::send(pid, Signal::SIGKILL);
                    }
                    continue;
                }
            };
            watch.signal(passed_on);
            if passed_on != Signal::SIGINT {
                leaves_at.get_or_insert(Instant::now() + TIME_TO_END);
            }
        };
        watch.end();
        passing.end();
        status
    }
}
