//! The commands of an operator, and the function that runs each.
//!
//! Does not: contain a command. `commands` and `web` do.

use crate::commands::batch;
use crate::commands::operate::{cancel, demand, exec, handles, waiting};
use crate::commands::output::{fetch, logs};
use crate::commands::set_up::{contract, doctor, down, policy, sizes, teardown, up};
use crate::commands::show::{cost, history, job, jobs, nodes, plan, shares, status};
use crate::commands::submit::{self, job_file};
use crate::commands::watch;
use crate::console::{Context, Exit};
use crate::web;
use clap::Subcommand;
use model::ClusterName;

/// The commands of an operator.
#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Make a cluster in AWS, or bring it to this release, and run a first job
    Up(Box<up::UpArgs>),
    /// Look for what keeps an account from having a cluster, or a cluster from working
    Doctor(doctor::DoctorArgs),
    /// Print the tables, functions, metrics and the fields of a job's event as JSON; needs no cluster
    Contract,
    /// Check, store and show the policy
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show which machines the sizes of a policy mean today, and at which prices
    Sizes(sizes::SizesArgs),
    /// Submit a job and print its id
    Submit(Box<submit::SubmitArgs>),
    /// Submit a job, print its output as it comes, and exit with its exit code
    Run(Box<submit::run::RunArgs>),
    /// Submit jobs once more, as they were or with changes
    Rerun(Box<submit::rerun::RerunArgs>),
    /// Answer requests of a program, as lines of JSON: submit, wait, list, logs, fetch and cancel in one process
    Batch(batch::BatchArgs),
    /// List jobs
    Jobs(jobs::JobsArgs),
    /// Show a job, its allocs, and why the job waits
    Job(job::JobArgs),
    /// Print the output of a job or an alloc, also while it comes
    Logs(logs::LogsArgs),
    /// Run a command inside of an alloc that runs: as its user, with its files, its environment, or in its container
    Exec(exec::ExecArgs),
    /// Look into an alloc that runs, with a shell
    Shell(exec::InsideArgs),
    /// Get the files that a job keeps (submit --out)
    Fetch(fetch::FetchArgs),
    /// Cancel jobs and stop their allocs
    Cancel(cancel::CancelArgs),
    /// Keep jobs that wait from being placed, until `continue`
    Pause(waiting::PauseArgs),
    /// Let paused jobs go on, at their old place in the queue
    Continue(waiting::PauseArgs),
    /// Change the priority, the needs or the times of jobs that wait
    Change(Box<waiting::ChangeArgs>),
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
    Handles(nodes::NodeArgs),
    /// Release once what a brake holds back now, or try at once the launches that EC2 refused
    Release(handles::ReleaseArgs),
    /// Show what the next run would do and why, without doing it
    Plan(plan::PlanArgs),
    /// Show what happened to something, and why
    History(history::HistoryArgs),
    /// Say whether all is well, and what to do if not (then the exit code is 1)
    Status(status::StatusArgs),
    /// Estimate what the nodes cost, and for whom, from the list prices in the policy
    Cost(cost::CostArgs),
    /// Show whose turn it is, and what each share of the policy uses and may use
    Shares(shares::SharesArgs),
    /// Show the cluster on a page of this machine, until Ctrl-C
    Web(web::WebArgs),
    /// Let every instance go and prove that none is left, before the stack is deleted
    Teardown(teardown::TeardownArgs),
    /// Let every instance go, and delete the stack
    Down(down::DownArgs),
}

impl Command {
    /// The cluster that the command itself names.
    pub fn cluster(&self) -> Option<&ClusterName> {
        match self {
            Self::Up(args) => Some(&args.name),
            Self::Doctor(args) => Some(&args.name),
            Self::Down(args) => Some(&args.teardown.confirm),
            _ => None,
        }
    }
}

/// The outcome of a command that either does everything or returns an error.
const fn done((): ()) -> Exit {
    Exit::Done
}

pub async fn run(command: Command, context: &mut Context<'_>) -> anyhow::Result<Exit> {
    use model::{Intent, Pause};
    match command {
        Command::Up(args) => up::run(context, &args).await,
        Command::Doctor(args) => doctor::run(context, &args).await,
        Command::Contract => contract::print(context).map(done),
        Command::Policy(command) => policy::run(context, &command).await,
        Command::Submit(args) => match &args.file {
            Some(file) => job_file::run(context, &args, file).await,
            None => submit::run(context, &args).await,
        },
        Command::Sizes(args) => sizes::run(context, &args).await,
        Command::Rerun(args) => submit::rerun::run(context, &args).await,
        Command::Batch(args) => batch::run(context, &args).await,
        Command::Run(args) => submit::run::run(context, &args).await,
        Command::Jobs(args) => watch::show(context, args.watch, async |page| jobs::list(page, &args).await).await,
        Command::Job(args) => job::show(context, &args).await.map(done),
        Command::Logs(args) => logs::logs(context, &args).await,
        Command::Exec(args) => exec::enter(context, &args.inside, &args.command).await,
        Command::Shell(args) => exec::enter(context, &args, &exec::SHELL.map(str::to_owned)).await,
        Command::Fetch(args) => fetch::run(context, &args).await,
        Command::Cancel(args) => cancel::run(context, &args).await,
        Command::Pause(args) => waiting::pause(context, &args, Pause::Begins).await,
        Command::Continue(args) => waiting::pause(context, &args, Pause::Ends).await,
        Command::Change(args) => waiting::change_jobs(context, &args).await,
        Command::Demand(command) => demand::run(context, &command).await,
        Command::Nodes(args) => watch::show(context, args.watch, async |page| nodes::list(page, &args).await).await,
        Command::Node(args) => nodes::show(context, &args).await.map(done),
        Command::Hold(args) => nodes::intend(context, &args.slots, Intent::Hold, None).await,
        Command::Drain(args) => nodes::drain(context, &args).await,
        Command::Resume(args) => nodes::intend(context, &args.slots, Intent::Run, None).await,
        Command::Handles(args) => handles::list(context, &args).await.map(done),
        Command::Release(args) => handles::release(context, &args).await,
        Command::Plan(args) => plan::run(context, &args).await,
        Command::History(args) => history::run(context, &args).await.map(done),
        Command::Status(args) => watch::show(context, args.watch, async |page| status::run(page, &args).await).await,
        Command::Cost(args) => cost::run(context, &args).await.map(done),
        Command::Shares(args) => shares::run(context, &args).await.map(done),
        Command::Web(args) => web::run(context, &args).await,
        Command::Teardown(args) => teardown::run(context, &args).await,
        Command::Down(args) => down::run(context, &args).await,
    }
}
