//! Runs a command inside of a running alloc, for a person who looks into it.
//!
//! Flow: [`run`] finds the alloc, starts this program again, and passes on the input and output of the terminal. The program that
//! it starts joins what isolates the alloc, gives up the agent's rights, and becomes the command (`join`). An alloc in a container
//! is entered by the runtime of its container.
//! Guarantees: the command has the rights of the alloc and no others: its user and groups, control group, view of the files,
//! limits, environment and directory. It never holds the terminal of its caller, where a process of the alloc could type. It ends
//! with the alloc.
//! Does not: ask who may do that (whoever is root on the node, or the agent's user), or write down that somebody did.

mod join;
mod live;
mod terminal;

pub use live::exit_code;

use crate::OWN_PROGRAM;
use crate::process_table;
use live::{Live, failed};
use model::ids::AllocId;
use nix::sys::signal::Signal;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;
use terminal::Terminal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

/// How often the program checks whether the alloc still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What to run, and where.
#[derive(Clone, Debug, clap::Args)]
pub struct EnterArgs {
    /// The directory where the agent keeps its state.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nodekeeper")]
    pub data_dir: PathBuf,
    /// This is the process that becomes the command.
    #[arg(long, hide = true)]
    pub join: bool,
    /// The alloc, as `nodekeeper job` shows it.
    pub alloc: AllocId,
    /// The command, after `--`.
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Runs the command, and returns its exit code. `term` is the kind of the caller's terminal.
pub fn run(args: &EnterArgs, term: Option<String>) -> anyhow::Result<u8> {
    let live = Live::find(&args.data_dir, args.alloc)?;
    if args.join {
        return Err(join::run(&live, &args.command, term));
    }
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    if let Some(client) = live.task.runtime.inside(args.alloc, is_terminal, &args.command)
        && let Some((program, rest)) = client.split_first()
    {
        let error = Command::new(program).args(rest).exec();
        return Err(failed(format!("run {program}"))(error));
    }
    let mut command = Command::new(OWN_PROGRAM);
    command.args(["enter", "--join", "--data-dir"]).arg(&args.data_dir).arg(args.alloc.to_string());
    command.arg("--").args(&args.command);
    let terminal = if is_terminal { Some(Terminal::open().map_err(failed("make a terminal"))?) } else { None };
    if let Some(terminal) = &terminal {
        terminal.give_to(&mut command).map_err(failed("give the command a terminal"))?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.map_err(failed("wait for the command"))?.block_on(wait(&live, command, terminal));
    let status = status.map_err(failed("run the command"))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128_i32.saturating_add(signal)));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Starts the command and waits for it. Kills it when the alloc ends, and passes on the signals that the caller gets.
async fn wait(live: &Live, command: Command, terminal: Option<Terminal>) -> io::Result<ExitStatus> {
    let mut command = tokio::process::Command::from(command);
    let mut child = command.spawn()?;
    // Otherwise this process would keep the command's side of the terminal open.
    drop(command);
    let group = child.id().map_or(0, |pid| pid as i32);
    let passing = terminal.map(Terminal::pass_on).transpose()?;
    let (mut int, mut term) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (mut hangup, mut resized) = (signal(SignalKind::hangup())?, signal(SignalKind::window_change())?);
    let mut check = interval(CHECK_INTERVAL);
    loop {
        tokio::select! {
            status = child.wait() => {
                if let Some(passing) = passing {
                    passing.end();
                }
                return status;
            }
            _ = int.recv() => process_table::send_group(group, Signal::SIGINT),
            _ = term.recv() => process_table::send_group(group, Signal::SIGTERM),
            _ = hangup.recv() => process_table::send_group(group, Signal::SIGHUP),
            _ = resized.recv() => if let Some(passing) = &passing { passing.resize() },
            _ = check.tick() => if !live.is_running() {
                process_table::send_group(group, Signal::SIGKILL);
            }
        }
    }
}
