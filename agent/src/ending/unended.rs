//! Marks an alloc that cannot be ended: its processes were killed, and do not die.
//!
//! A process that waits in the kernel for a disk or a file system dies when that answers, and not before.
//!
//! Guarantees: the mark is in the directory of the alloc a minute after the first kill, and only as long as something runs.
//! Does not: kill, or give up. What does not die may still write, so the alloc counts as running.

use crate::work::alloc_dir::AllocDir;
use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// How long processes that were killed may take to die.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for `end`, which kills what runs of the alloc in this directory.
pub(crate) async fn ended<T>(dir: &AllocDir, end: impl Future<Output = T>) -> T {
    let mut end = pin!(end);
    if let Ok(ended) = timeout(PATIENCE, &mut end).await {
        return ended;
    }
    dir.note_unended(true);
    let ended = end.await;
    dir.note_unended(false);
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn an_alloc_whose_processes_do_not_die_is_marked_until_they_do() {
        let root = tempfile::tempdir().unwrap();
        let dir = AllocDir::at(root.path().to_owned());
        for (s, is_marked_after_70_s) in [(50, false), (80, true)] {
            let end = ended(&dir, sleep(Duration::from_secs(s)));
            let look = async {
                sleep(Duration::from_secs(70)).await;
                dir.is_unended()
            };
            assert_eq!(tokio::join!(end, look).1, is_marked_after_70_s, "{s}");
            assert!(!dir.is_unended(), "{s}");
        }
    }
}
