//! The `nodekeeper` command: reads arguments, environment and clock, and runs a command.
//!
//! Guarantees: an error is one line on standard error; the exit code says what to do about it.
//! Does not: contain a command; `command` and `local` do.

#![allow(clippy::disallowed_methods, reason = "the one place that reads the clock and the environment")]

use anstream::AutoStream;
use clap::{ColorChoice, CommandFactory, FromArgMatches, Parser, Subcommand};
use cloud::Ec2;
use model::{ClusterName, Time};
use nodekeeper_cli::command::{self, Command};
#[cfg(not(feature = "local"))]
use nodekeeper_cli::console::UsageError;
use nodekeeper_cli::console::{
    AwsCli, Cluster, ClusterAccess, Context, ErrorKind, Exit, Person, Screen, StandardOutput, WallClock, is_closed,
    show,
};
use nodekeeper_cli::given::Given;
use nodekeeper_cli::help;
#[cfg(feature = "local")]
use nodekeeper_cli::local::{self, LocalArgs, LocalEnv};
use nodekeeper_cli::no_cluster;
use runtime::lambda::log_filter;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use store::{Dynamo, Store};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Keeps EC2 nodes matched to a queue of jobs, with five functions and no server.
#[derive(Parser, Debug)]
#[command(
    name = "nodekeeper",
    version,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 75 what it needs did not answer: try again; `run` ends with the code of its command."
)]
struct Cli {
    /// The name of the deployment, which is part of the names of its tables, and a tag of its instances. By default
    /// NODEKEEPER_CLUSTER, or nodekeeper_cluster of the AWS profile
    #[arg(long, global = true, value_name = "NAME")]
    cluster: Option<ClusterName>,
    /// When tables have colours. auto: on a terminal unless NO_COLOR is set, and with CLICOLOR_FORCE everywhere
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Run the whole system on this machine, without AWS
    #[cfg(feature = "local")]
    Local(LocalArgs),
    /// Run the whole system on this machine, without AWS: only in a checkout
    #[cfg(not(feature = "local"))]
    Local {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        options: Vec<String>,
    },
    /// Print the completion for a shell; the folder of its file must be there
    Completion { shell: clap_complete::Shell },
    #[command(flatten)]
    Operate(Command),
}

/// The default filter of the log. `aws_config` would warn of each place without credentials; the final error says it in one
/// line.
const QUIET: &str = "warn,dynoxide=error,aws_config=off,aws_runtime=error";

/// The exit code if the reader of the output has closed the pipe: that of a program that SIGPIPE ended (128 + 13).
const CLOSED_PIPE: u8 = 141;

#[tokio::main]
async fn main() -> ExitCode {
    let matches = match whole().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let Some(here) = help::other_word(&error) else { error.exit() };
            eprintln!("nodekeeper: {here}");
            return ExitCode::from(ErrorKind::Wrong.exit_code());
        }
    };
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let env = environment();
    let filter = log_filter(env.get("RUST_LOG").map(String::as_str), QUIET);
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(log).with(filter).init();
    let named = match &cli.what {
        What::Operate(command) => command.cluster().cloned(),
        _ => None,
    };
    let given = Given { cluster: named.or(cli.cluster), env };
    let mut out = StandardOutput(io::stdout());
    let ended = run(cli.what, cli.color, given.clone(), &mut out).await;
    match ended.and_then(|exit| out.flush().map(|()| exit).map_err(Into::into)) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::from(1),
        Ok(Exit::Code(code)) => ExitCode::from(code),
        // The reader closed the pipe because it has read enough. The output is not complete, so the code is not 0.
        Err(e) if is_closed(&e) => ExitCode::from(CLOSED_PIPE),
        Err(e) => {
            eprintln!("nodekeeper: {}{}", show::error(&e), no_cluster::where_it_looked(&e, &given));
            ExitCode::from(ErrorKind::of(&e).exit_code())
        }
    }
}

fn whole() -> clap::Command {
    with_negative_numbers(help::dressed(Cli::command(), ""))
}

/// Allows a negative number as the value of each option. clap would otherwise take it for an option, and not say why it is wrong.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_number = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_positional();
    command
        .mut_args(|arg| if takes_number(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

async fn run(what: What, color: ColorChoice, given: Given, out: &mut StandardOutput) -> anyhow::Result<Exit> {
    let clock: WallClock = Arc::new(Time::now);
    match what {
        #[cfg(feature = "local")]
        What::Local(args) => {
            let env = LocalEnv { given, exe: std::env::current_exe()?, clock };
            local::run(args, env).await?;
        }
        #[cfg(not(feature = "local"))]
        What::Local { options } => {
            let line = format!("cargo run -- local {}", options.join(" "));
            let line = line.trim_end();
            let why = format!("a released program has no stand-ins for AWS: in a checkout of nodekeeper, `{line}`");
            return Err(UsageError(why).into());
        }
        What::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut whole(), "nodekeeper", &mut script);
            out.write_all(&script)?;
        }
        What::Operate(command) => {
            let screen = |is_terminal: bool| if is_terminal { Screen::Terminal } else { Screen::Pipe };
            let mut context = Context {
                connect: Box::new(move || Box::pin(connect(given.clone()))),
                clock,
                screen: screen(io::stdout().is_terminal()),
                err_screen: screen(io::stderr().is_terminal()),
                in_screen: screen(io::stdin().is_terminal()),
                colours: colours(color),
                input: &mut io::BufReader::new(io::stdin()),
                out,
                err: &mut io::stderr(),
            };
            return command::run(command, &mut context).await;
        }
    }
    Ok(Exit::Done)
}

/// The variables of the environment whose names and values are UTF-8.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

async fn connect(given: Given) -> anyhow::Result<Cluster> {
    given.check_for_sdk()?;
    let Some(name) = given.named().await? else {
        return Err(no_cluster::unnamed(&std::env::current_dir()?).into());
    };
    no_cluster::listens(&given).await?;
    let config = nodekeeper_cli::aws::config(given.var("AWS_PROFILE")).await?;
    let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::new(&config), name.clone());
    let cloud = Ec2::connect(&config, name).with_offers(&config);
    let outputs = nodekeeper_cli::aws::s3(&config, given.var("AWS_ENDPOINT_URL_S3"), Arc::new(model::Time::now))?;
    let store = Store::new(Arc::new(dynamo.clone()));
    let local = given.var("NODEKEEPER_MACHINES").map(std::path::PathBuf::from);
    let region = config.region().map(ToString::to_string).unwrap_or_default();
    let who = match no_cluster::is_on_this_machine(&given) {
        true => Person::default(),
        false => Person::of_aws(&config, given.var("HOME")),
    };
    let aws = AwsCli { program: "aws".into(), region };
    let release = std::env::current_exe()?.parent().map(Path::to_owned).unwrap_or_default();
    let reach = ClusterAccess { local, who, aws, release };
    Ok(Cluster { store, dynamo, cloud: Arc::new(cloud), outputs, reach })
}

fn colours(choice: ColorChoice) -> bool {
    let wanted = match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
    };
    // crossterm, which draws the tables, checks NO_COLOR itself. `--color always` overrides that.
    crossterm::style::force_color_output(wanted);
    wanted
}
