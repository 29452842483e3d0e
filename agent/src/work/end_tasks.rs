//! Ends everything that still runs for an alloc whose supervisor is gone, must go, or is not known.
//!
//! Guarantees: a process that hangs in the kernel, or a container runtime that does not answer, holds up no other alloc.
//! Does not: decide that an alloc ends, or how (`runner` and `ends` do).

use super::alloc_dir::{AllocDir, StartRecord};
use super::ends;
use super::user_ids::UserIds;
use model::AllocId;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long the first call waits for the end of an alloc. Most allocs end at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// The allocs that are being ended, each in a task of its own.
#[derive(Debug, Default)]
pub(crate) struct EndTasks(BTreeMap<AllocId, JoinHandle<io::Result<()>>>);

impl EndTasks {
    /// Whether nothing of this alloc runs any more, neither a process nor a container. The first call starts `end`. Later calls only
    /// look whether it is done.
    pub(crate) async fn have_ended(
        &mut self,
        id: AllocId,
        end: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> io::Result<bool> {
        let (mut task, wait) = match self.0.remove(&id) {
            Some(task) => (task, Duration::ZERO),
            None => (tokio::spawn(end), AT_ONCE),
        };
        match timeout(wait, &mut task).await {
            Ok(ended) => ended.map_err(io::Error::other)?.map(|()| true),
            Err(_) => {
                self.0.insert(id, task);
                Ok(false)
            }
        }
    }
}

/// Kills everything that still runs for the alloc in `dir`, its supervisor first. Then takes the files away from the job's user,
/// removes the container, and stores the checkpoint. Of an alloc that was started in an earlier boot, no process is left. `program`
/// is the agent's own.
pub(crate) async fn end(program: PathBuf, dir: AllocDir, start: StartRecord, is_of_this_boot: bool) -> io::Result<()> {
    if is_of_this_boot {
        process_table::kill_session(start.pid, start.start_ticks);
    }
    let task = dir.task()?;
    let keeps = task.as_ref().is_some_and(|task| task.order.work.keep.is_some()) && !start.is_never();
    if let Some(isolation) = task.and_then(|task| task.isolation) {
        UserIds::of(&dir).end(&isolation, &program, &dir).await;
        dir.close()?;
    }
    dir.remove_container().await?;
    if keeps {
        tokio::process::Command::from(ends::supervisor(&program, &dir)?).status().await?;
    }
    Ok(())
}

/// Kills what can be found of an alloc whose files are gone or garbage.
pub(crate) async fn end_unknown(program: PathBuf, dir: AllocDir) -> io::Result<()> {
    if let Some(supervisor) = ends::supervisor_of(&dir) {
        process_table::kill_descendants(supervisor.pid);
        process_table::kill_session(supervisor.pid, supervisor.start_ticks);
    }
    if let Some(isolation) = dir.task().ok().flatten().and_then(|task| task.isolation) {
        UserIds::of(&dir).end(&isolation, &program, &dir).await;
    }
    if let Err(error) = dir.remove_container().await {
        tracing::warn!(dir = %dir.path().display(), %error, "cannot remove the container of the alloc");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::alloc_id;
    use std::future::{pending, ready};

    #[tokio::test(start_paused = true)]
    async fn an_alloc_that_does_not_end_holds_up_no_other() {
        let mut tasks = EndTasks::default();
        assert!(!tasks.have_ended(alloc_id(0), pending()).await.unwrap());
        assert!(tasks.have_ended(alloc_id(1), ready(Ok(()))).await.unwrap());
        // A later call does not start the end again.
        assert!(!tasks.have_ended(alloc_id(0), ready(Ok(()))).await.unwrap());
        let failed = ready(Err(io::ErrorKind::NotFound.into()));
        assert!(tasks.have_ended(alloc_id(2), failed).await.is_err());
        assert!(tasks.have_ended(alloc_id(2), ready(Ok(()))).await.unwrap(), "it is tried again");
    }
}
