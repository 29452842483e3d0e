//! `run`: submits one job, prints its output as it comes, and ends as the job's command did.
//!
//! Guarantees: the exit code is that of the job's command if it has one. The job is cancelled only if the person says so. The
//! standard output of the job goes to standard output, and its standard error to standard error, where this command also says how
//! the job goes. A missing part of the output is an error.
//! Does not: stream the output of a job of several members. It is printed member by member when the job has ended.

use super::followed::AfterEach;
use super::input;
use crate::changes::{JobChange, change_each};
use crate::commands::output::follow::{Follower, Verbosity, end_of, last_allocs};
use crate::commands::output::logs::outputs;
use crate::commands::output::output_printer::Route;
use crate::commands::output::output_stream::{OutputStream, POLL, Until};
use crate::commands::submit::{self, JobOptions};
use crate::console::{Cluster, Context, Exit, UsageError, bounded, is_closed, is_yes, show};
use crate::view::find::short;
use anyhow::Context as _;
use clap::Args;
use futures::StreamExt;
use model::{EndCause, Job, JobId, JobSpec, JobState};
use std::collections::BTreeSet;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The exit code of a job that ended without an exit code of its command.
const NO_CODE: u8 = 125;
/// The exit code if it is not known how the job ends: EX_UNAVAILABLE of sysexits.h. Whoever runs it again may run it twice.
const UNKNOWN: u8 = 69;
/// The exit code of a cancelled job, and of a wait that the person left: as after Ctrl-C (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// `run`
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit codes: that of the command; 74 if it succeeded and a part of its output is missing; 124 if it ran \
                        longer than its time limit; 137 if it was out of memory; 126 or 127 if its program cannot be run or \
                        is not found; 125 if the job ended without one (rejected, lost); 69 if it is not known how it ends: it may go on; 130 if it was cancelled or left; 141 \
                        if its reader closed the pipe: the job goes on; 1 and 2 also if it was not submitted."
)]
pub struct RunArgs {
    #[command(flatten)]
    job: JobOptions,
    /// Read standard input to its end, 11 KiB at most, and give it to the command. Without this the command has none, and an
    /// input that has something to read is an error
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Cancel the job when this command gets Ctrl-C, TERM or HUP, without a question: for CI, which ends its commands so
    #[arg(long)]
    cancel_on_exit: bool,
    /// Print no progress
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// An event from the person while the job runs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Ctrl-C.
    Interrupt,
    /// Somebody ends this command, such as a CI that is stopped, or a terminal that is closed.
    Terminated,
    /// A line of standard input: the answer to the question. It is empty at the end.
    Line(String),
}

/// Listens for Ctrl-C, for lines after the first Ctrl-C, and for the signals that end this command.
#[allow(clippy::disallowed_methods, reason = "the terminal is read only after Ctrl-C")]
fn listen() -> std::io::Result<UnboundedReceiver<Heard>> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let (hear, heard) = unbounded_channel();
    for kind in [SignalKind::terminate(), SignalKind::hangup()] {
        let (mut ends, hear) = (signal(kind)?, hear.clone());
        tokio::spawn(async move { while ends.recv().await.is_some() && hear.send(Heard::Terminated).is_ok() {} });
    }
    tokio::spawn(async move {
        let mut is_first = true;
        while interrupts.recv().await.is_some() && hear.send(Heard::Interrupt).is_ok() {
            if is_first {
                read_lines(hear.clone());
            }
            is_first = false;
        }
    });
    Ok(heard)
}

/// Reads lines in a thread: a read of the terminal cannot be cancelled, and must not keep the program from ending.
fn read_lines(hear: UnboundedSender<Heard>) {
    std::thread::spawn(move || {
        while let Ok(line) = bounded::line(&mut std::io::stdin().lock(), bounded::MOST_ANSWER)
            && !line.is_empty()
        {
            if hear.send(Heard::Line(String::from_utf8_lossy(&line).into_owned())).is_err() {
                return;
            }
        }
        // Standard input has ended, so nobody can answer.
        let _ = hear.send(Heard::Line(String::new()));
    });
}

pub(crate) async fn run(context: &mut Context<'_>, args: &RunArgs) -> anyhow::Result<Exit> {
    if !args.stdin {
        input::refuse_unread()?;
    }
    let heard = listen()?;
    run_with(context, args, heard).await
}

/// [`run`], with the events of the person.
pub(crate) async fn run_with(
    context: &mut Context<'_>,
    args: &RunArgs,
    mut heard: UnboundedReceiver<Heard>,
) -> anyhow::Result<Exit> {
    let now = context.now();
    let job = |spec: &JobSpec, _: &AfterEach, id: JobId| {
        Job::submit(id, spec.clone(), now).map(|job| vec![job]).map_err(|e| UsageError(e.to_string()))
    };
    let (cluster, written) = submit::write(context, &args.job, &args.command, (None, args.stdin), job).await?;
    let jobs = submit::all_of(context, false, written)?;
    let id = jobs.first().context("no job is stored")?.summary.job_id;
    if !args.quiet {
        writeln!(context.err, "job {} is submitted ({id})", short(id))?;
    }
    let verbosity = if args.quiet { Verbosity::Nothing } else { Verbosity::Progress };
    let mut stream = OutputStream::new(&cluster, 0, Until::End, BTreeSet::new(), Route::Apart);
    stream.quiet = args.quiet;
    let mut followed = Follower::new(&cluster, jobs, verbosity);
    match follow(context, &cluster, &mut followed, &mut stream, (id, args.cancel_on_exit), &mut heard).await {
        Ok(true) => {}
        Ok(false) => {
            return Ok(Exit::Code(INTERRUPTED));
        }
        // The reader of the output has closed the pipe. The job goes on.
        Err(e) if is_closed(&e) => return Err(e),
        Err(e) => {
            writeln!(context.err, "nodekeeper: {}", show::error(&e))?;
            return Ok(Exit::Code(UNKNOWN));
        }
    }
    let Some(job) = followed.jobs.first() else { return Ok(Exit::Code(UNKNOWN)) };
    let printed = match rest(context, &cluster, job, &mut stream, &mut heard).await {
        Err(e) if is_closed(&e) => return Err(e),
        // The job has ended, and its exit code stays what it is.
        Err(e) => {
            writeln!(context.err, "nodekeeper: the rest of the output cannot be read: {}", show::error(&e))?;
            stream.leave();
            stream.outcome()
        }
        Ok(outcome) => outcome,
    };
    let state = job.summary.state;
    if !args.quiet || state != JobState::Complete {
        writeln!(context.err, "job {} {}", short(id), end_of(job))?;
    }
    // The exit code is that of the member with which the job failed.
    let code = job.cause().and_then(EndCause::exit_code);
    Ok(match state {
        JobState::Complete => printed,
        JobState::Cancelled => Exit::Code(INTERRUPTED),
        _ => Exit::Code(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(NO_CODE)),
    })
}

/// Waits for the end of the job. Returns `false` if the person left the wait: then the job is cancelled if `cancels`, and goes on
/// otherwise.
async fn follow(
    context: &mut Context<'_>,
    cluster: &Cluster,
    followed: &mut Follower<'_>,
    stream: &mut OutputStream<'_>,
    (id, cancels): (JobId, bool),
    heard: &mut UnboundedReceiver<Heard>,
) -> anyhow::Result<bool> {
    let mut is_asked = false;
    while !followed.poll(context).await? {
        if let [job] = followed.jobs.as_slice()
            && job.summary.needs.nodes == 1
        {
            stream.poll(context, job).await?;
        }
        let until = tokio::time::sleep(followed.pause());
        tokio::pin!(until);
        loop {
            let what = tokio::select! {
                () = &mut until => break,
                Some(what) = heard.recv() => what,
            };
            match what {
                Heard::Interrupt | Heard::Terminated if cancels => {
                    cancel(context, cluster, id).await?;
                    let _closed_is_fine = writeln!(context.err, "job {id} is cancelled");
                    return Ok(false);
                }
                Heard::Interrupt if !is_asked => {
                    is_asked = true;
                    write!(context.err, "\nCancel the job? [y/N] (Ctrl-C again leaves it, and it goes on) ")?;
                    context.err.flush()?;
                }
                Heard::Line(_) if !is_asked => {}
                Heard::Line(answer) if !answer.is_empty() => {
                    is_asked = false;
                    if !is_yes(&answer) {
                        writeln!(context.err, "job {} goes on", short(id))?;
                    } else if let Err(e) = cancel(context, cluster, id).await {
                        writeln!(
                            context.err,
                            "job {} goes on, because it could not be cancelled: {}",
                            short(id),
                            show::error(&e)
                        )?;
                    }
                }
                // Whoever ends this command may have closed its standard error, and without a terminal nobody answers.
                Heard::Interrupt | Heard::Terminated | Heard::Line(_) => {
                    let _closed_is_fine =
                        writeln!(context.err, "\njob {id} goes on: `nodekeeper cancel {}` ends it", short(id));
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

async fn cancel(context: &Context<'_>, cluster: &Cluster, id: JobId) -> anyhow::Result<()> {
    let how = JobChange::cancel(cluster).await?;
    let cancelled = change_each(cluster, &[id], &how, &context.clock).next().await;
    cancelled.map_or(Ok(()), |(_, job)| job.map(drop))
}

/// Prints the rest of the output of an ended job: of one member what has not come yet, of several all. Ctrl-C ends only this.
async fn rest(
    context: &mut Context<'_>,
    cluster: &Cluster,
    job: &Job,
    stream: &mut OutputStream<'_>,
    heard: &mut UnboundedReceiver<Heard>,
) -> anyhow::Result<Exit> {
    if job.summary.needs.nodes > 1 {
        let allocs = cluster.store.allocs_of([job]).await?.rows;
        return outputs(context, cluster, job, &allocs, last_allocs(allocs.clone()), (Route::Apart, None)).await;
    }
    while !stream.poll(context, job).await? {
        let pause = tokio::time::timeout(POLL, heard.recv()).await;
        if pause.is_ok_and(|what| matches!(what, Some(Heard::Interrupt | Heard::Terminated))) {
            stream.leave();
            break;
        }
    }
    Ok(stream.outcome())
}
