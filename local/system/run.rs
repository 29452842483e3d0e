//! The life of `nodekeeper local`: build, start, run until told to end, end everything.
//!
//! Guarantees: when [`run`] returns, every process that descends from this program has ended, or the error says how many have not.
//! Does not: start or stop the parts itself; `stack` does.

use super::args::{LocalArgs, LocalAuth, LocalEnv};
use super::end_signals::EndSignals;
use super::machines::agent_program::agent;
use super::machines::processes;
use super::stack::Stack;
use super::terminal::say;
use anyhow::{Context as _, ensure};

/// Runs the system until it is told to end.
///
/// Kills every process that descends from this one before it returns: the program must have no
/// other work.
pub async fn run(args: LocalArgs, env: LocalEnv) -> anyhow::Result<()> {
    processes::adopt_orphans().context("cannot adopt processes that lose their parents")?;
    let mut signals = EndSignals::listen().context("cannot listen to signals")?;
    let outcome = start_and_end(&args, &env, &mut signals).await;
    let left = tokio::task::spawn_blocking(|| processes::kill_all(processes::of_ours)).await.unwrap_or(0);
    processes::reap_orphans();
    outcome?;
    ensure!(
        left == 0,
        "{left} processes could not be ended: this command started them; find them with `ps` and kill them"
    );
    Ok(())
}

async fn start_and_end(args: &LocalArgs, env: &LocalEnv, signals: &mut EndSignals) -> anyhow::Result<()> {
    let stack = tokio::select! {
        stack = start(args, env) => stack?,
        () = signals.next() => return Ok(()),
    };
    say(&welcome(args, env, &stack));
    signals.next().await;
    say("ending everything; press Ctrl-C again to end it at once");
    tokio::select! {
        () = stack.shut_down() => {}
        () = signals.next() => stack.machines.kill(),
    }
    Ok(())
}

async fn start(args: &LocalArgs, env: &LocalEnv) -> anyhow::Result<Stack> {
    let agent = agent(&env.exe, !args.no_build).await?;
    Stack::start(args, env, agent).await
}

fn welcome(args: &LocalArgs, env: &LocalEnv, stack: &Stack) -> String {
    let places = &stack.places;
    let tables = args.data.as_ref().map_or_else(|| "in memory".to_owned(), |file| format!("in {}", file.display()));
    let functions = match &stack.functions {
        Some(_) => format!("run here; a minute of their schedules takes {} s", args.tick_s),
        None => format!("run elsewhere; a minute of their schedules takes {} s", args.tick_s),
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
  jobs       {isolation}
  nodes      {auth}
{boot}  commands   set -a; . {env}; set +a; {exe} submit -- echo hello\n",
        cluster = args.cluster,
        isolation = stack.isolation,
        boot = boot(args, &stack.policy.launch.user_data),
        auth = match args.node_auth {
            LocalAuth::Token => "prove who they are by a token",
            LocalAuth::Iam => "sign their requests with the role of their instances, and the function URLs check it",
        },
        url = places.functions,
        env = env_file.display(),
        exe = env.exe.display(),
    );
    if stack.functions.is_none() {
        text.push_str(&format!("  elsewhere  cargo lambda watch --env-file {}\n", env_file.display()));
    }
    text.push_str("Ctrl-C ends everything.");
    text
}

/// The line about `launch.user_data`; empty if the policy has none.
fn boot(args: &LocalArgs, user_data: &str) -> String {
    let who = if nix::unistd::geteuid().is_root() { "root" } else { "your own user" };
    match (user_data.trim().is_empty(), args.no_user_data) {
        (true, _) => String::new(),
        (false, true) => "  boot       launch.user_data is not run: --no-user-data is given\n".to_owned(),
        (false, false) => format!(
            "  boot       each machine runs launch.user_data once as {who} of this computer (--no-user-data: not)\n"
        ),
    }
}
