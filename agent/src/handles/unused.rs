//! Unused caches make room on the disk of the node.
//!
//! Guarantees: while less than a tenth of the disk is free, the cache goes whose last job is the longest ago; the next report of handles
//! says so. A cache that an alloc of this node names stays.
//! Does not: look at what else takes up the disk: stored inputs and images make room when something needs it.

use super::{HandleStore, HandleTarget, directories, read_label};
use crate::contact::shared_node::SharedNode;
use rustix::fs::statvfs;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::time::sleep;

const INTERVAL: Duration = Duration::from_secs(10);
/// The part of the disk that stays free.
const FREE: u64 = 10;

impl HandleStore {
    /// Never ends.
    pub async fn keep_room(&self, state: &SharedNode) {
        loop {
            sleep(INTERVAL).await;
            self.make_room(state, is_full).await;
        }
    }

    async fn make_room(&self, state: &SharedNode, is_full: impl Fn(&Path) -> bool) {
        while is_full(&self.caches)
            && let Some((name, label)) = self.longest_unused(state)
        {
            if let Err(error) = self.destroy(&HandleTarget::Cache(name.clone()), &label, state).await {
                return tracing::warn!(name, %error, "an unused cache cannot make room");
            }
            tracing::info!(name, "the disk is nearly full: an unused cache is removed");
            state.handles_changed.notify_one();
        }
    }

    /// The name and the label of the cache.
    fn longest_unused(&self, state: &SharedNode) -> Option<(String, String)> {
        let caches = directories(&self.caches).unwrap_or_default().into_iter();
        let unused = caches.filter_map(|(name, _)| {
            let file = self.cache_labels.join(&name);
            let used_at = fs::metadata(&file).and_then(|label| label.modified()).ok()?;
            let is_free = state.read(|n| self.is_free(n, &HandleTarget::Cache(name.clone())));
            Some((used_at, name, read_label(&file).filter(|_| is_free)?))
        });
        unused.min().map(|(_, name, label)| (name, label))
    }
}

fn is_full(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|disk| disk.f_bavail < disk.f_blocks / FREE)
}

#[cfg(test)]
mod tests {
    use super::super::tests::store;
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    #[tokio::test]
    async fn the_longest_unused_caches_go_until_there_is_room() {
        let root = tempfile::tempdir().unwrap();
        let (state, store) = store(root.path());
        for (name, used_at) in [("a", 2), ("b", 1), ("c", 3)] {
            fs::create_dir(store.caches.join(name)).unwrap();
            let label = store.cache_labels.join(name);
            fs::write(&label, "x").unwrap();
            let label = File::options().append(true).open(label).unwrap();
            label.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(used_at)).unwrap();
        }
        // One of another node, or of nobody, stays.
        fs::create_dir(store.caches.join("unlabelled")).unwrap();
        let left = || {
            let names = directories(&store.caches).unwrap().into_iter().map(|(name, _)| name);
            names.collect::<std::collections::BTreeSet<_>>()
        };
        store.make_room(&state, |_| left().len() > 3).await;
        assert_eq!(left().into_iter().collect::<Vec<_>>(), ["a", "c", "unlabelled"]);
        store.make_room(&state, |_| true).await;
        assert_eq!(left().into_iter().collect::<Vec<_>>(), ["unlabelled"]);
    }
}
