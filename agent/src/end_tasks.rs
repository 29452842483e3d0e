//! Ends what is left of an alloc, when its supervisor is gone or must go.
//!
//! Guarantees: a process that hangs in the kernel, or a container runtime that does not answer, holds up no other alloc.
//! Does not: decide that an alloc ends, or how (`runner` and `ends` do).

use crate::alloc_dir::{AllocDir, StartRecord};
use crate::process_table;
use model::ids::AllocId;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long the first look waits for the end of an alloc. Most allocs end at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The allocs that are being ended, each in a task of its own.
#[derive(Debug, Default)]
pub(crate) struct EndTasks(BTreeMap<AllocId, JoinHandle<io::Result<()>>>);

impl EndTasks {
    /// Whether nothing of this alloc runs any more, neither a process nor a container. Its supervisor is gone. `boot_id` is the
    /// present boot: processes of an earlier one are gone.
    pub(crate) async fn have_ended(
        &mut self,
        id: AllocId,
        dir: &AllocDir,
        start: &StartRecord,
        (program, boot_id): (&Path, &str),
    ) -> io::Result<bool> {
        let mut task = match self.0.remove(&id) {
            Some(task) if !task.is_finished() => {
                self.0.insert(id, task);
                return Ok(false);
            }
            Some(task) => task,
            None => {
                let of_this_boot = (start.boot_id == boot_id).then(|| (program.to_owned(), start.clone()));
                let dir = dir.clone();
                tokio::spawn(async move {
                    if let Some((program, start)) = of_this_boot {
                        end_processes(&program, &dir, &start).await?;
                    }
                    dir.remove_container().await
                })
            }
        };
        match timeout(AT_ONCE, &mut task).await {
            Ok(ended) => ended.map_err(io::Error::other)?.map(|()| true),
            Err(_) => {
                self.0.insert(id, task);
                Ok(false)
            }
        }
    }
}

/// Kills the supervisor of the alloc in `dir`, if it still runs, and everything else that runs for the alloc. Then takes the
/// files away from the job's user.
pub(crate) async fn end_processes(program: &Path, dir: &AllocDir, start: &StartRecord) -> io::Result<()> {
    process_table::kill_session(start.pid, start.start_ticks);
    match dir.task()?.and_then(|task| task.isolation) {
        None => Ok(()),
        Some(isolation) => {
            isolation.end(program, dir.path()).await;
            dir.close()
        }
    }
}
