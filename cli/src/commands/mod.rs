//! The operators' commands: submit and list jobs, hold and drain nodes, release brakes, ask why.
//!
//! Each group of commands has its own file. A command reads what it needs, writes what it is told to, and prints tables
//! for people or, with `--json`, JSON for programs.
//!
//! Guarantees: every write is conditional, as in the functions, and leaves an event that names the operator; nothing
//! is printed as done before it is written; an error is one line that says what is wrong, why, and what to do.
//! Does not: read the clock or the environment (`main.rs` does), or do the work of the functions: their next run acts
//! on what a command wrote.

mod amounts;
mod array_numbers;
mod bulk;
mod cancel;
mod cost;
mod demand;
mod filter;
mod find;
mod follow;
mod followed;
mod handles;
mod history;
mod init;
mod input;
mod job;
mod job_file;
mod job_line;
mod jobs;
mod logs;
mod next;
mod nodes;
mod operate;
mod output_printer;
mod output_reader;
mod output_stream;
mod plan;
mod policy;
mod policy_edit;
mod progress;
mod run;
mod show;
mod status;
mod stored_output;
mod story;
mod strict_json;
mod submit;
mod teardown;
#[cfg(test)]
pub(crate) mod tests;
mod tone;
mod top;
mod watch;
mod web;

pub use next::Next;
pub(crate) use show::command as command_line;
pub use show::{Screen, error, is_closed};
pub(crate) use status::{Check, Level, Seen, Status, node_word, none_or};
pub(crate) use story::{Happening, WHOLE as WHOLE_STORY, of_job as story_of_job};

use clap::Subcommand;
use futures::future::BoxFuture;
use model::cloud::Cloud;
use model::time::Time;
use std::fmt;
use std::io::{BufRead, Write};
use std::sync::Arc;
use store::{Dynamo, Store};

/// The cluster that a command works on.
#[derive(Clone)]
pub struct Cluster {
    /// The cluster's tables.
    pub store: Store,
    /// The database of the tables.
    pub dynamo: Dynamo,
    /// The cluster's instances in EC2.
    pub cloud: Arc<dyn Cloud>,
    /// Where nodes store outputs.
    pub outputs: s3::S3,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({:?})", self.dynamo)
    }
}

/// Connects to the cluster. Only commands that need a cluster call this.
pub type Connect = Box<dyn Fn() -> BoxFuture<'static, anyhow::Result<Cluster>> + Send + Sync>;

/// What a command works with.
pub struct Context<'a> {
    /// Connects to the cluster.
    pub connect: Connect,
    /// Gives the current time.
    pub clock: Arc<dyn Fn() -> Time + Send + Sync>,
    /// Standard input.
    pub input: &'a mut (dyn BufRead + Send),
    /// Whether standard output is a terminal.
    pub screen: Screen,
    /// Whether standard error is a terminal.
    pub err_screen: Screen,
    /// Whether standard output gets colours.
    pub colours: bool,
    /// Standard output: the result of the command.
    pub out: &'a mut (dyn Write + Send),
    /// Standard error: what went wrong.
    pub err: &'a mut (dyn Write + Send),
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Context")
    }
}

impl Context<'_> {
    fn now(&self) -> Time {
        (self.clock)()
    }

    async fn cluster(&self) -> anyhow::Result<Cluster> {
        (self.connect)().await
    }
}

/// The result of a command that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command did everything, or found all well: exit code 0.
    Done,
    /// The command left something undone, or found a problem, and printed which: exit code 1.
    Failed,
    /// The command ran something else, which ended with this exit code.
    Code(u8),
}

impl Outcome {
    const fn done_if(done: bool) -> Self {
        if done { Self::Done } else { Self::Failed }
    }
}

/// The command line itself is wrong: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The commands of an operator.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Create the tables at a local or test endpoint (in AWS the stack creates them)
    Init(init::InitArgs),
    /// Check, store and show the policy
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Submit a job and print its id
    Submit(Box<submit::SubmitArgs>),
    /// Submit a job, print its output as it comes, and exit with its exit code
    Run(Box<run::RunArgs>),
    /// List jobs
    Jobs(jobs::JobsArgs),
    /// Show a job, its allocs, and why the job waits
    Job(job::JobArgs),
    /// Print the output of a job or an alloc, also while it comes
    Logs(logs::LogsArgs),
    /// Cancel jobs and stop their allocs
    Cancel(cancel::CancelArgs),
    /// Say how many nodes another scheduler needs
    #[command(subcommand)]
    Demand(demand::DemandCommand),
    /// List nodes
    Nodes(nodes::NodesArgs),
    /// Show a node
    Node(nodes::NodeArgs),
    /// Keep nodes up and give them no new work
    Hold(nodes::IntentArgs),
    /// Give nodes no new work and shut them down as soon as they are idle
    Drain(nodes::DrainArgs),
    /// Let nodes take work again after a hold or a drain
    Resume(nodes::IntentArgs),
    /// List the containers and volumes of a node
    Handles(handles::HandlesArgs),
    /// Keep a container or volume from being destroyed
    Keep(handles::KeepArgs),
    /// Release, once, what a brake holds back now, or try at once the launches that EC2 refused
    Release(handles::ReleaseArgs),
    /// Show what the next run would do and why, without doing it
    Plan(plan::PlanArgs),
    /// Show what happened to something, and why
    History(history::HistoryArgs),
    /// Say whether all is well, and what to do if not (then the exit code is 1)
    Status(status::StatusArgs),
    /// Reckon what the nodes cost, and for whom, from the list prices in the policy
    Cost(cost::CostArgs),
    /// Watch the cluster in this terminal: nodes, jobs, why each one waits; cancel and drain by a key
    #[command(after_help = top::HELP)]
    Top(top::TopArgs),
    /// Show the cluster on a page of this machine, until Ctrl-C
    Web(web::WebArgs),
    /// Let every instance go and prove that none is left, before the stack is deleted
    Teardown(teardown::TeardownArgs),
}

/// Runs a command.
pub async fn run(command: Command, context: &mut Context<'_>) -> anyhow::Result<Outcome> {
    use model::Intent;
    match command {
        Command::Init(args) => init::run(context, &args).await,
        Command::Policy(command) => policy::run(context, &command).await,
        Command::Submit(args) => submit::run(context, &args).await,
        Command::Run(args) => run::run(context, &args).await,
        Command::Jobs(args) => jobs::list(context, &args).await,
        Command::Job(args) => job::show(context, &args).await,
        Command::Logs(args) => logs::logs(context, &args).await,
        Command::Cancel(args) => cancel::run(context, &args).await,
        Command::Demand(command) => demand::run(context, &command).await,
        Command::Nodes(args) => nodes::list(context, &args).await,
        Command::Node(args) => nodes::show(context, &args).await,
        Command::Hold(args) => nodes::intend(context, &args.slots, Intent::Hold, None).await,
        Command::Drain(args) => nodes::drain(context, &args).await,
        Command::Resume(args) => nodes::intend(context, &args.slots, Intent::Run, None).await,
        Command::Handles(args) => handles::list(context, &args).await,
        Command::Keep(args) => handles::keep(context, &args).await,
        Command::Release(args) => handles::release(context, &args).await,
        Command::Plan(args) => plan::run(context, &args).await,
        Command::History(args) => history::run(context, &args).await,
        Command::Status(args) => status::run(context, &args).await,
        Command::Cost(args) => cost::run(context, &args).await,
        Command::Top(args) => top::run(context, &args).await,
        Command::Web(args) => web::run(context, &args).await,
        Command::Teardown(args) => teardown::run(context, &args).await,
    }
}
