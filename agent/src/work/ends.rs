//! How an alloc ended, even if files of its directory are missing or garbage.
//!
//! Guarantees: a supervisor is found by its command line if no file names it, so that an alloc whose files are lost or garbage is
//! not started a second time beside the first; an alloc whose end nobody knows is lost, and not waited for.
//! Does not: decide when an alloc is checked (`runner` does).

use super::alloc_dir::{AllocDir, ExitRecord, StartRecord};
use crate::elements;
use crate::output::output_files::output_tail;
use crate::protocol::Observed;
use model::wire::MAX_LOG_TAIL_BYTES;
use model::{AllocId, EndCause, Ending, RunReport};
use process_table::ProcessEntry;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first argument of a supervisor.
pub(crate) const RUN_ALLOC: &str = "run-alloc";

/// A supervisor for this alloc. If an earlier one has claimed the alloc and was killed, this one only stores the checkpoint.
pub(crate) fn supervisor(program: &Path, dir: &AllocDir) -> io::Result<Command> {
    let log = File::options().append(true).create(true).mode(0o600).open(dir.path().join("supervisor.log"))?;
    let mut command = Command::new(program);
    command.arg0("nodekeeper-agent").arg(RUN_ALLOC).arg(dir.path()).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(command)
}

/// The end of an alloc for its report: the exit record, with the tail of the output and the results of the elements.
pub(crate) fn ended(dir: &AllocDir, exit: ExitRecord) -> Observed {
    let (log_tail, tail_switches) = output_tail(&dir.output_files(), MAX_LOG_TAIL_BYTES).unwrap_or_default();
    let log_tail = Some(log_tail).filter(|t| !t.is_empty());
    // If the file cannot be read, the elements run again.
    let elements = elements::report_in(&dir.elements()).unwrap_or_default();
    let ExitRecord { cause, usage, kept, .. } = exit;
    let run = RunReport {
        log_tail,
        tail_switches,
        usage,
        kept,
        elements,
        image_digest: dir.image_digest(),
        checkpoint: dir.checkpoint(),
    };
    Observed::Ended(Box::new(Ending { cause, run }))
}

/// Who claimed the right to start the alloc. If the file is garbage, this is the supervisor that runs.
pub(crate) fn started(dir: &AllocDir) -> io::Result<Option<StartRecord>> {
    let read = dir.start_record();
    if !read.as_ref().is_err_and(is_garbage) {
        return read;
    }
    let (Some(supervisor), Ok(Some(task))) = (supervisor_of(dir), dir.task()) else { return read };
    Ok(Some(StartRecord { pid: supervisor.pid, start_ticks: supervisor.start_ticks, boot_id: task.boot_id }))
}

/// Whether a supervisor of this alloc is running.
pub(crate) fn is_running(dir: &AllocDir) -> bool {
    match started(dir) {
        Ok(None) => false,
        Ok(Some(start)) => process_table::is_alive(start.pid, start.start_ticks),
        Err(error) if is_garbage(&error) => false,
        // Nothing is known: the alloc counts as running, so that nothing of it is destroyed.
        Err(_) => true,
    }
}

/// The exit record of an alloc whose supervisor is gone and wrote none, in this boot.
pub(crate) fn without_supervisor(start: &StartRecord, boot_id: &str) -> ExitRecord {
    ExitRecord::of(if start.is_never() {
        EndCause::NotStarted { why: "the agent was killed while it gave it up".to_owned() }
    } else if start.boot_id == boot_id {
        EndCause::Lost { why: "its supervisor was killed, and everything it ran with it".to_owned() }
    } else {
        EndCause::Lost { why: "its node was rebooted".to_owned() }
    })
}

/// Whether the content of a file is invalid. Reading it again gives the same.
pub(crate) fn is_garbage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// Finds the running supervisor of this alloc by its command line, also if the directory is gone. This reads the command line of
/// every process of the machine.
pub(crate) fn supervisor_of(dir: &AllocDir) -> Option<ProcessEntry> {
    supervisors().find(|(_, path)| path == dir.path()).map(|(process, _)| process)
}

/// The allocs below the directory `allocs` that have a running supervisor.
pub(crate) fn with_supervisors(allocs: &Path) -> BTreeSet<AllocId> {
    let below = supervisors().filter(|(_, path)| path.parent() == Some(allocs));
    below.filter_map(|(_, path)| path.file_name()?.to_str()?.parse().ok()).collect()
}

/// Lists the running supervisors, each with the directory of its alloc.
fn supervisors() -> impl Iterator<Item = (ProcessEntry, PathBuf)> {
    process_table::all().into_iter().filter(|process| !process.zombie).filter_map(|process| {
        let arguments = process_table::arguments(process.pid);
        let mut arguments = arguments.split(|b| *b == 0).skip(1);
        let path = arguments.next().filter(|first| *first == RUN_ALLOC.as_bytes()).and(arguments.next())?;
        Some((process, Path::new(OsStr::from_bytes(path)).to_owned()))
    })
}
