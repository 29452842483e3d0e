//! The loop that tells with the heartbeats which service the node cannot reach, and which it has reached lately.
//!
//! Guarantees: a failure that nobody tries again ends when the service can be connected to, or after `GIVEN_UP`.
//! Does not: call a service, but for that connection.

use super::{LastCall, Services};
use crate::contact::client::NodeClock;
use crate::contact::shared_node::SharedNode;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

/// How often the files are read.
const READ_EVERY: Duration = Duration::from_secs(2);
/// The agent reports a service that has failed for this time. One call that fails and then succeeds says nothing.
const FAILS: Duration = Duration::from_secs(15);
/// The agent reports a service as reached from the former time after the first success until the latter after the last one. If
/// another node reports a failure for less than the former, both may see the end of the same outage.
const REACHED_FROM: Duration = Duration::from_secs(60);
const REACHED_UNTIL: Duration = Duration::from_secs(180);
/// If no job has tried a failed service again for this time, the agent tries it. A call that waits for an answer says so more often.
const UNTRIED: Duration = Duration::from_secs(15);
/// A failure that only the agent itself has tried for this time is forgotten: jobs may use a proxy that the agent does not know.
const GIVEN_UP: Duration = Duration::from_secs(600);
/// The longest time that a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// What the agent remembers of a service between two rounds.
struct ServiceHealth {
    /// Why it could not be reached at first: later failures may say the same in other words.
    why: Option<String>,
    since: Instant,
    /// When a process other than the agent last called it.
    called: Instant,
}

/// Reads the files every `READ_EVERY`. Sends a heartbeat at once when the node cannot reach a service, or can again.
pub async fn watch(state: &SharedNode, services: &Services, clock: NodeClock) {
    let mut healths = BTreeMap::new();
    loop {
        let (fails, reaches) = reach_now(services, &mut healths, SystemTime::from(clock())).await;
        let (failed, reached) = state.read(|node| (node.health.fails.clone(), node.health.reaches.clone()));
        let is_urgent = fails != failed;
        let is_news = is_urgent || reaches != reached;
        if is_news
            && state.update_or_log(|node| (node.health.fails, node.health.reaches) = (fails, reaches)).await.is_some()
            && is_urgent
        {
            state.heartbeat_now.notify_one();
        }
        sleep(READ_EVERY).await;
    }
}

/// Which service the node cannot reach, and which it has reached lately, as `NodeHealth` has it.
async fn reach_now(
    services: &Services,
    healths: &mut BTreeMap<String, ServiceHealth>,
    now: SystemTime,
) -> (Option<String>, Option<String>) {
    let (mut fails, mut reaches, mut seen) = (None, BTreeSet::new(), BTreeSet::new());
    for (file, age, LastCall { service, address, why }) in services.read(now) {
        let (at, is_reached) = (Instant::now(), why.is_none());
        healths.retain(|name, health| *name != service || health.why.is_none() == is_reached);
        let fresh = ServiceHealth { why, since: at, called: at };
        let entry = healths.entry(service.clone()).or_insert(fresh);
        if age < UNTRIED {
            entry.called = at;
        }
        let over = if is_reached { age >= REACHED_UNTIL } else { entry.called.elapsed() >= GIVEN_UP };
        let is_back = !is_reached && age >= UNTRIED && can_connect(&address).await;
        if over || is_back {
            healths.remove(&service);
            let _another_process_may_have = fs::remove_file(file);
            continue;
        }
        seen.insert(service.clone());
        let lasts = entry.since.elapsed();
        match &entry.why {
            None if lasts >= REACHED_FROM => _ = reaches.insert(service),
            Some(why) if lasts >= FAILS => _ = fails.get_or_insert(format!("{service}: {why}")),
            _ => {}
        }
    }
    healths.retain(|service, _| seen.contains(service));
    let reaches = reaches.into_iter().collect::<Vec<_>>().join(",");
    (fails, Some(reaches).filter(|text| !text.is_empty()))
}

async fn can_connect(address: &str) -> bool {
    matches!(timeout(CONNECT, TcpStream::connect(address)).await, Ok(Ok(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    struct Node {
        _dir: tempfile::TempDir,
        services: Services,
        healths: BTreeMap<String, ServiceHealth>,
    }

    impl Node {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self { services: Services::of_node(dir.path()), _dir: dir, healths: BTreeMap::new() }
        }

        /// What is told if the last outcome was noted `age` seconds ago, and what the agent knows has lasted `lasts` seconds longer.
        async fn told(&mut self, age: u64, lasts: u64) -> (Option<String>, Option<String>) {
            let later = Duration::from_secs(lasts);
            for health in self.healths.values_mut() {
                health.since = health.since.checked_sub(later).unwrap();
                health.called = health.called.checked_sub(later).unwrap();
            }
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100_000);
            for file in fs::read_dir(&self.services.0).into_iter().flatten() {
                let file = fs::File::options().write(true).open(file.unwrap().path()).unwrap();
                file.set_modified(now - Duration::from_secs(age)).unwrap();
            }
            reach_now(&self.services, &mut self.healths, now).await
        }
    }

    const URL: &str = "http://127.0.0.1:1/bucket/key?x=1";

    #[tokio::test]
    async fn a_failure_that_lasts_is_told_and_a_success_a_minute_later() {
        let mut node = Node::new();
        node.services.note("s3", URL, Some("connection refused"));
        assert_eq!(node.told(0, 0).await, (None, None), "one call says nothing");
        node.services.note("s3", URL, Some("connection refused, in other words"));
        let fails = Some("s3: connection refused".to_owned());
        assert_eq!(node.told(0, 15).await, (fails.clone(), None));
        node.services.note("registry a:1", "https://a:1", None);
        assert_eq!(node.told(0, 0).await, (fails.clone(), None));
        assert_eq!(node.told(0, 60).await, (fails, Some("registry a:1".into())));
        node.services.note("s3", URL, None);
        assert_eq!(node.told(0, 0).await, (None, Some("registry a:1".into())));
        assert_eq!(node.told(179, 60).await, (None, Some("registry a:1,s3".into())));
        assert_eq!(node.told(180, 0).await, (None, None), "that was long ago");
        assert!(node.healths.is_empty() && fs::read_dir(&node.services.0).unwrap().next().is_none());
    }

    #[tokio::test]
    async fn a_failure_that_nobody_tries_again_ends_with_a_connection_or_after_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut node = Node::new();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        node.services.note("ssm", &url, Some("503"));
        node.told(0, 0).await;
        assert!(node.told(14, 30).await.0.is_some(), "a job tries it");
        assert_eq!(node.told(15, 0).await, (None, None));
        node.services.note("ssm", URL, Some("no route"));
        node.told(0, 0).await;
        assert!(node.told(400, 599).await.0.is_some());
        assert_eq!(node.told(400, 1).await, (None, None));
    }
}
