//! The whole system on one machine, without AWS: `nodekeeper local`.
//!
//! The very binaries that are deployed run here: the four functions under a stand-in for Lambda
//! ([`lambda`]), against an embedded DynamoDB and a stand-in for EC2 ([`ec2`]) whose instances
//! are real agent processes ([`machines`]) that run real jobs. A page shows it live ([`page`]).
//!
//! Guarantees: everything it starts ends with it, jobs that made themselves daemons included;
//! what it writes stands below one directory; nothing of it listens beyond this machine.
//! Does not: run `launch.user_data`, limit what a machine uses to its size, or keep machines
//! over a restart: with `--data` the tables stay, and the fleet is built anew.

mod binaries;
mod demo;
pub mod ec2;
mod error;
pub mod lambda;
pub mod machines;
pub mod page;
mod processes;
mod stack;
mod wake;

pub use error::LocalError;

use clap::Args;
use shared::ids::ClusterName;
use shared::time::Time;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

use binaries::Binaries;
use stack::Stack;

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// What `nodekeeper local` is told.
#[derive(Args, Clone, Debug)]
pub struct LocalArgs {
    /// The policy, as TOML or JSON [default: a small fleet with short times]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Where the page is served; 0 for any free port
    #[arg(long, value_name = "PORT", default_value_t = 7070)]
    pub port: u16,
    /// Where machines, logs, results and the environment file stand
    #[arg(long, value_name = "DIR", default_value = ".nodekeeper")]
    pub dir: PathBuf,
    /// Keep the tables in this file [default: in memory]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// The deployment's name
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub cluster: ClusterName,
    /// The key node tokens are made with: at least 64 hexadecimal digits [default: random]
    #[arg(long, value_name = "HEX")]
    pub node_key: Option<String>,
    /// From one run of poll-and-scale and sweep-dispatch to the next, in seconds; clean-stale-records
    /// runs every fifth time. In AWS this is a minute [default: 2, with --demo 1]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub tick_s: Option<u64>,
    /// The functions run elsewhere, as under `cargo lambda watch` at http://127.0.0.1:9000: start
    /// none, only wake those there by schedule
    #[arg(long, value_name = "URL")]
    pub functions_url: Option<String>,
    /// Take the functions and the agent as they are, also in a source tree
    #[arg(long)]
    pub no_build: bool,
    /// Show it all on real work, check that it came out right, and leave with 0 or 1
    #[arg(long, conflicts_with_all = ["policy", "data", "functions_url"])]
    pub demo: bool,
}

/// What `main` reads for it.
#[derive(Clone)]
pub struct LocalEnv {
    /// `PATH`
    pub path: Option<String>,
    /// `HOME`
    pub home: Option<String>,
    /// `RUST_LOG`
    pub rust_log: Option<String>,
    /// This program's own file.
    pub exe: PathBuf,
    /// The clock.
    pub clock: Clock,
}

impl std::fmt::Debug for LocalEnv {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalEnv").field("exe", &self.exe).finish_non_exhaustive()
    }
}

impl LocalArgs {
    /// The tick as given, or as is right.
    fn tick_s(&self) -> u64 {
        self.tick_s.unwrap_or(if self.demo { 1 } else { 2 })
    }
}

/// Runs the system until it is told to end, or the demonstration is over. An error is one line
/// for people; a demonstration that went wrong is one too.
///
/// Ends every process that descends from this one when it returns: it is to be all that a
/// program does.
pub async fn run(args: LocalArgs, env: LocalEnv) -> Result<(), LocalError> {
    let system = |what| move |source| LocalError::System { what, source };
    processes::adopt_orphans().map_err(system("adopt processes that lose their parents"))?;
    let mut signals = Signals::listen().map_err(system("listen to signals"))?;
    let outcome = live(&args, &env, &mut signals).await;
    let left = tokio::task::spawn_blocking(|| processes::kill_all(processes::of_ours)).await.unwrap_or(0);
    processes::bury_orphans();
    match outcome {
        Ok(()) if left > 0 => Err(LocalError::LeftBehind(left)),
        outcome => outcome,
    }
}

async fn live(args: &LocalArgs, env: &LocalEnv, signals: &mut Signals) -> Result<(), LocalError> {
    let stack = tokio::select! {
        stack = start(args, env) => stack?,
        () = signals.next() => return if args.demo { Err(LocalError::Interrupted) } else { Ok(()) },
    };
    say(&welcome(args, env, &stack));
    let shown = tokio::select! {
        () = signals.next() => {
            say("ending everything; once more to end it at once");
            None
        }
        shown = demo::run(&stack), if args.demo => Some(shown),
    };
    tokio::select! {
        () = stack.shut_down() => {}
        () = signals.next() => stack.machines.kill(),
    }
    if !args.demo {
        return Ok(());
    }
    let mut checks = shown.ok_or(LocalError::Interrupted)??;
    checks.push(demo::Check::nothing_left(processes::of_ours().len()));
    demo::judge(&checks, &stack.places.logs)
}

async fn start(args: &LocalArgs, env: &LocalEnv) -> Result<Stack, LocalError> {
    let binaries = Binaries::find(&env.exe, !args.no_build, args.functions_url.is_none()).await?;
    Stack::start(args, env, &binaries).await
}

fn welcome(args: &LocalArgs, env: &LocalEnv, stack: &Stack) -> String {
    let places = &stack.places;
    let tables = args.data.as_ref().map_or_else(|| "in memory".to_owned(), |file| format!("in {}", file.display()));
    let functions = match &stack.lambda {
        Some(_) => format!("run here, every {} s", args.tick_s()),
        None => format!("run elsewhere, woken every {} s", args.tick_s()),
    };
    let env_file = args.dir.join("env");
    let (page, dynamo, ec2, logs) = (places.page, places.dynamo, places.ec2, places.logs.display());
    let mut text = format!(
        "nodekeeper local: the whole system on this machine
  page       http://{page}/
  DynamoDB   http://{dynamo}   {tables}, tables {cluster}-…
  EC2        http://{ec2}   faults: GET, POST http://{ec2}/_stand-in/faults
  functions  {url}   {functions}
  logs       {logs}
  commands   set -a; . {env}; set +a; {exe} submit -- echo hello\n",
        cluster = args.cluster,
        url = places.functions,
        env = env_file.display(),
        exe = env.exe.display(),
    );
    if stack.lambda.is_none() {
        text.push_str(&format!("  elsewhere  cargo lambda watch --env-file {}\n", env_file.display()));
    }
    text.push_str(if args.demo { "" } else { "Ctrl-C ends it all." });
    text.trim_end().to_owned()
}

/// One line, or a few, for whoever started this. Without a reader it goes on all the same.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Being told to end: by Ctrl-C, by TERM, or because the terminal is gone.
struct Signals([Signal; 3]);

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let [int, term, hup] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([int?, term?, hup?]))
    }

    async fn next(&mut self) {
        let Self([int, term, hup]) = self;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
