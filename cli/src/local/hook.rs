//! What AWS does for the webhook: passes on the ends of jobs, as the stream of the jobs table would, and what begins and
//! ceases to be wrong, as the alarms would.
//!
//! Guarantees: a job that was seen waiting or running, and is no longer there, is passed on until the function does not ask
//! for it again; a batch that is tried again holds back no other. What `status` calls wrong for two looks is raised once,
//! and is over once.
//! Does not: read a stream. Deliveries that are under way are lost when this program ends.

use crate::view::present::{COUNTED, Present};
use crate::view::status::{Check, Level, Status};
use lambda_stand_in::Lambda;
use model::cloud::Cloud;
use model::functions::WEBHOOK;
use model::ids::{ClusterName, JobId};
use model::time::Time;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The wait before the first retry of a batch. It doubles up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How often `status` is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// Passes on each batch of ended jobs, until the future is dropped.
pub(super) async fn pass_on(mut ended: UnboundedReceiver<BTreeSet<JobId>>, lambda: Arc<Lambda>) {
    let mut batches = JoinSet::new();
    loop {
        tokio::select! {
            batch = ended.recv() => match batch {
                Some(batch) => drop(batches.spawn(until_told(batch, Arc::clone(&lambda)))),
                None => return,
            },
            Some(_) = batches.join_next() => {}
        }
    }
}

/// Invokes the function with these jobs, and again with those that it names, until it names none.
async fn until_told(mut jobs: BTreeSet<JobId>, lambda: Arc<Lambda>) {
    let mut wait = FIRST_WAIT;
    loop {
        match lambda.invoke(WEBHOOK.name, &event(&jobs)).await {
            Ok(answer) => jobs = again(&answer, &jobs),
            Err(error) => tracing::debug!(%error, "the webhook cannot be invoked"),
        }
        if jobs.is_empty() {
            return;
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// A batch of changes, as the stream passes it on. Each job is its own number.
fn event(jobs: &BTreeSet<JobId>) -> Value {
    let record = |job: &JobId| {
        json!({
            "eventName": "MODIFY", "eventSource": "aws:dynamodb",
            "dynamodb": {"Keys": {"job_id": {"S": job}}, "SequenceNumber": job.to_string(), "StreamViewType": "KEYS_ONLY"},
        })
    };
    json!({ "Records": jobs.iter().map(record).collect::<Vec<_>>() })
}

/// The jobs that the answer names.
fn again(answer: &Value, jobs: &BTreeSet<JobId>) -> BTreeSet<JobId> {
    let failures = answer["batchItemFailures"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = failures.iter().filter_map(|failure| failure["itemIdentifier"].as_str()?.parse().ok());
    named.filter(|job| jobs.contains(job)).collect()
}

/// Passes on what begins and ceases to be wrong, until the future is dropped.
pub(super) async fn watch(
    store: Store,
    cloud: Arc<dyn Cloud>,
    cluster: ClusterName,
    lambda: Arc<Lambda>,
    clock: Arc<dyn Fn() -> Time + Send + Sync>,
) {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut wrong = Wrong::default();
    loop {
        ticks.tick().await;
        let now = clock();
        let status = async { Status::of(&store, &Present::read(&store, cloud.as_ref(), COUNTED, now).await?).await };
        let checks = match status.await {
            Ok(status) => status.checks,
            Err(error) => {
                tracing::debug!(%error, "the tables cannot be read");
                continue;
            }
        };
        for change in wrong.look(checks) {
            if let Err(error) = lambda.send_event(WEBHOOK.name, &change.event(&cluster, now)) {
                tracing::debug!(%error, "the webhook cannot be invoked");
            }
        }
    }
}

/// What was wrong at the last look.
#[derive(Default)]
struct Wrong {
    /// By the name of the check: what it said at first, and whether it was raised.
    known: BTreeMap<String, (String, bool)>,
}

/// Something begins or ceases to be wrong.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    name: String,
    says: String,
    raised: bool,
}

impl Wrong {
    /// What changed with this look. Several things of one name are one.
    fn look(&mut self, checks: Vec<Check>) -> Vec<Change> {
        let mut now: BTreeMap<String, String> = BTreeMap::new();
        for check in checks.into_iter().filter(|check| check.level == Level::Wrong) {
            let says = if check.to_do.is_empty() { check.says } else { format!("{}: {}", check.says, check.to_do) };
            now.entry(dashed(&check.what)).or_insert(says);
        }
        let over: Vec<_> = self.known.keys().filter(|name| !now.contains_key(*name)).cloned().collect();
        let mut changes = Vec::new();
        for name in over {
            if let Some((says, true)) = self.known.remove(&name) {
                changes.push(Change { name, says, raised: false });
            }
        }
        for (name, says) in now {
            match self.known.get_mut(&name) {
                Some((_, raised)) if !*raised => {
                    *raised = true;
                    changes.push(Change { name, says, raised: true });
                }
                Some(_) => {}
                None => drop(self.known.insert(name, (says, false))),
            }
        }
        changes
    }
}

impl Change {
    /// The message that CloudWatch would send.
    fn event(&self, cluster: &ClusterName, now: Time) -> Value {
        let (old, new) = if self.raised { ("OK", "ALARM") } else { ("ALARM", "OK") };
        let reason = if self.raised {
            "`nodekeeper status` calls it wrong"
        } else {
            "`nodekeeper status` no longer calls it wrong"
        };
        let message = json!({
            "AlarmName": format!("{cluster}-{}", self.name), "AlarmDescription": self.says, "OldStateValue": old,
            "NewStateValue": new, "NewStateReason": reason, "StateChangeTime": now.to_string(),
        });
        json!({"Records": [{"EventSource": "aws:sns", "Sns": {"Message": message.to_string()}}]})
    }
}

/// The name of a check as the name of an alarm: `brake#missing` is `brake-missing`.
fn dashed(what: &str) -> String {
    what.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ids::Ulid;

    fn check(what: &str, level: Level, says: &str) -> Check {
        Check { what: what.to_owned(), level, says: says.to_owned(), to_do: "look".to_owned() }
    }

    #[test]
    fn what_is_wrong_for_two_looks_is_raised_once_and_over_once() {
        let mut wrong = Wrong::default();
        let mut look = |checks: &[(&str, Level)]| {
            let checks = checks.iter().map(|(what, level)| check(what, *level, "is bad")).collect();
            wrong.look(checks).into_iter().map(|c| (c.name, c.raised)).collect::<Vec<_>>()
        };
        let raised = |name: &str| (name.to_owned(), true);
        let brake = [("brake#missing", Level::Wrong), ("brake#missing", Level::Wrong), ("waiting", Level::Look)];
        assert_eq!(look(&brake), [], "a start is wrong for a moment");
        assert_eq!(look(&brake), [raised("brake-missing")]);
        assert_eq!(look(&[brake[0], ("row", Level::Wrong)]), []);
        assert_eq!(look(&[("row", Level::Wrong)]), [("brake-missing".to_owned(), false), raised("row")]);
        assert_eq!((look(&[]), look(&[])), (vec![("row".to_owned(), false)], vec![]));
        assert_eq!((look(&brake), look(&[])), (vec![], vec![]), "what was not raised is not over");
    }

    #[test]
    fn a_change_is_a_message_as_of_an_alarm() {
        let cluster: ClusterName = "local".parse().unwrap();
        let change = Change { name: "row".into(), says: "is bad: look".into(), raised: false };
        let event = change.event(&cluster, Time::from_ms(0));
        let message: Value = serde_json::from_str(event["Records"][0]["Sns"]["Message"].as_str().unwrap()).unwrap();
        let told = |name: &str| message[name].as_str().unwrap().to_owned();
        assert_eq!(
            (told("AlarmName"), told("OldStateValue"), told("NewStateValue")),
            ("local-row".into(), "ALARM".into(), "OK".into())
        );
        assert_eq!(
            (told("AlarmDescription"), told("StateChangeTime")),
            ("is bad: look".into(), "1970-01-01T00:00:00.000Z".into())
        );
    }

    #[test]
    fn only_jobs_of_the_batch_that_the_answer_names_are_tried_again() {
        let jobs: BTreeSet<JobId> = (1..=3).map(|n| JobId::new(Ulid::from_parts(1, n))).collect();
        let second = jobs.iter().nth(1).copied().unwrap();
        assert_eq!(event(&jobs)["Records"].as_array().unwrap().len(), 3);
        let number = event(&BTreeSet::from([second]))["Records"][0]["dynamodb"]["SequenceNumber"].clone();
        let other = JobId::new(Ulid::from_parts(9, 9)).to_string();
        let answer = json!({"batchItemFailures": [{"itemIdentifier": number}, {"itemIdentifier": other}, {"itemIdentifier": 7}]});
        assert_eq!(again(&answer, &jobs), BTreeSet::from([second]));
        assert_eq!(again(&json!({"batchItemFailures": []}), &jobs), BTreeSet::new());
        assert_eq!(again(&json!(null), &jobs), BTreeSet::new());
    }
}
