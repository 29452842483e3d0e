//! Serves the embedded DynamoDB, makes its tables, and stores the policy in them.
//!
//! Guarantees: expired rows are deleted, soon if there are few rows, and in at most a hundredth of the time. A policy that is
//! stored in a `--data` file stays unless another one is given. Two stacks never use the same `--data` file.

use super::access::Gates;
use super::{dynamo, tables};
use anyhow::{Context as _, anyhow};
use aws_sdk_dynamodb::Client;
use listener::Callers;
use model::control::PolicyRow;
use model::{ClusterName, Policy};
use std::fmt::Display;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::{Dynamo, Store};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The policy when none is given.
pub(super) const POLICY_TOML: &str = include_str!("policy.toml");
/// The least time between two searches for expired rows. In AWS, DynamoDB may take days to delete them.
const SWEEP_PAUSE: Duration = Duration::from_secs(10);
/// A poll reads every row, so the pause after it is at least this many times as long as the poll.
const SWEEP_REST: u32 = 100;

/// Serves the database at `listener` and makes its tables. The receiver learns of writes that wake a function.
pub(super) async fn start(
    path: Option<&Path>,
    cluster: ClusterName,
    access: &Gates,
    listener: TcpListener,
    at: SocketAddr,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<(Store, watch::Receiver<()>)> {
    let name = path.map_or_else(|| "a database in memory".to_owned(), |p| p.display().to_string());
    let failed = |why: &dyn Display| {
        anyhow!("the embedded DynamoDB cannot open {name}: {why}; name another file with --data, or leave it out")
    };
    let lock = path.map(lock).transpose().map_err(|e| failed(&e))?;
    let db = match path {
        None => dynoxide::Database::memory(),
        Some(path) => {
            let path = path.to_str().ok_or_else(|| failed(&"its name is not UTF-8"))?;
            dynoxide::Database::new(path)
        }
    };
    let db = db.map_err(|e| failed(&e))?;
    let (written, told) = watch::channel(());
    let router = access.signed(dynamo::router(db.clone(), written), "dynamodb", dynamo::unsigned);
    access.serve("DynamoDB", listener, Callers::Owner, router, tasks);
    tasks.spawn(async move {
        let _until_the_end = lock;
        loop {
            let (db, began) = (db.clone(), Instant::now());
            let swept = tokio::task::spawn_blocking(move || db.sweep_ttl()).await;
            if let Ok(Err(error)) = swept {
                tracing::warn!(%error, "expired rows are not deleted");
            }
            sleep(pause(began.elapsed())).await;
        }
    });
    let dynamo = Dynamo::new(Client::new(&access.sdk_config(at)), cluster);
    tables::make(&dynamo).await?;
    Ok((Store::new(Arc::new(dynamo)), told))
}

/// Locks the file. Two stacks on one database would launch machines for each other's jobs.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    // The environments of jobs are in the tables. The files that SQLite makes beside it get the same mode.
    file.set_permissions(Permissions::from_mode(0o600))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("another `nodekeeper local` uses it")),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The pause after a poll that took this long.
fn pause(took: Duration) -> Duration {
    SWEEP_PAUSE.max(took.saturating_mul(SWEEP_REST))
}

/// Stores the given policy. Without one, keeps the stored policy or stores the built-in one.
pub(super) async fn store_policy(store: &Store, given: Option<Policy>) -> anyhow::Result<Policy> {
    let control = store.control().await?;
    let policy = match (given, control.checked_policy()) {
        (Some(policy), _) => policy,
        (None, Ok((stored, _))) => return Ok(stored),
        (None, Err(_)) => Policy::from_toml(POLICY_TOML).context("the built-in policy is not valid")?,
    };
    let before = control.policy;
    let written = store.write(before.as_ref(), &PolicyRow::of_policy(&policy), Vec::new()).await;
    written.context("the policy was not stored")?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn no_two_stacks_use_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = lock(&path).unwrap();
        assert!(lock(&path).unwrap_err().to_string().contains("another `nodekeeper local`"));
        drop(first);
        lock(&path).unwrap();
    }

    #[test]
    fn looking_for_expired_rows_takes_a_small_part_of_the_time() {
        let ms = Duration::from_millis;
        for (took, paused) in [(0, 10_000), (90, 10_000), (100, 10_000), (5_000, 500_000)] {
            assert_eq!(pause(ms(took)), ms(paused), "{took} ms");
        }
    }

    #[tokio::test]
    async fn a_stored_policy_stays_unless_another_is_given_and_credentials_of_another_start_are_refused() {
        let mut tasks = JoinSet::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let access = Gates::of_test();
        let at = listener.local_addr().unwrap();
        let cluster: ClusterName = "t".parse().unwrap();
        let wrong = Client::new(&Gates::of_test().sdk_config(at));
        let (store, _) = start(None, cluster.clone(), &access, listener, at, &mut tasks).await.unwrap();
        let refused = format!("{:#}", tables::make(&Dynamo::new(wrong, cluster)).await.unwrap_err());
        assert!(refused.contains("load the environment file"), "{refused}");
        let first = store_policy(&store, None).await.unwrap();
        let mut other = first.clone();
        other.nodes.max = 3;
        assert_eq!(store_policy(&store, Some(other.clone())).await.unwrap(), other);
        assert_eq!(store_policy(&store, None).await.unwrap(), other);
    }
}
