//! webhook: calls a URL when a job has ended, and when an alarm goes off or is over.
//!
//! Flow: an event names jobs whose rows have changed, or alarms; each job is read by its key; what has ended is sent as one
//! signed document ([`document`]).
//!
//! | where | what |
//! | --- | --- |
//! | [`input`] | what an event names |
//! | [`document`] | what is told, and the id of each delivery |
//! | [`receiver`], [`keys`] | one signed request, and what its answer means; the keys of the signatures |
//! | [`settings`] | its variables of the environment |
//! | [`delivery`] | whether a document is sent again, and what a process remembers |
//!
//! Guarantees: each end of a job is told at least once while the receiver takes documents, and repetitions have the same id;
//! one document that is not taken keeps no other document of its batch back; nothing of the cluster waits for a receiver.
//! Does not: write anything, or tell of ends in their order. The end of a job itself calls nobody: a run may be killed right
//! after its write, and the stream of the table is what remembers it.

pub mod delivery;
pub mod document;
pub mod input;
pub mod keys;
pub mod receiver;
pub mod settings;

use delivery::{Memory, Outcome};
use document::Document;
use futures::StreamExt;
use futures::stream;
use input::Input;
use keys::Keys;
use model::functions::WEBHOOK;
use model::ids::{ClusterName, JobId};
use model::time::{Span, Time};
use model::webhook::ReceiverUrl;
use receiver::{Receiver, TIMEOUT};
use runtime::clock::RunClock;
use runtime::lambda::Told;
use runtime::metrics::{self, Deliveries};
use serde_json::{Value, json};
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use store::{DbError, Store};

/// The name of the function.
pub const FUNCTION: &str = WEBHOOK.name;

/// How many documents are sent at the same time. A whole batch of the stream, 100 changes, has time for one try each.
const AT_ONCE: usize = 25;
/// The time that a try needs, in milliseconds: two reads and a request.
const TRY_MS: u64 = TIMEOUT.as_millis() as u64 + 2000;

/// The function: its tables, its receiver and the keys that both know.
#[derive(Debug)]
pub struct Webhook {
    store: Store,
    cluster: ClusterName,
    receiver: Receiver,
    keys: Keys,
    memory: Mutex<Memory>,
}

/// What became of each document of an event.
#[derive(Debug, Default)]
struct Tally {
    deliveries: Deliveries,
    /// Why documents have to be sent again, each with the number of its change in the stream, if it has one.
    again: Vec<(Option<String>, String)>,
}

impl Webhook {
    /// The function on these tables. An error if there are no certificates to check the receiver with.
    pub fn new(store: Store, cluster: ClusterName, url: ReceiverUrl, keys: Keys) -> Result<Self, String> {
        let receiver = Receiver::new(url).map_err(|e| format!("no HTTP client can be made: {e}"))?;
        Ok(Self { store, cluster, receiver, keys, memory: Mutex::default() })
    }

    /// Tells what an event names, and answers what Lambda has to send again.
    ///
    /// A batch of changes is answered with the numbers of those to be sent again. For alarms the whole invocation fails,
    /// because Lambda has no other way to send a message again.
    pub async fn handle(&self, event: &Value, clock: RunClock) -> Told {
        let input = Input::read(event, &self.cluster);
        let is_batch = matches!(input, Input::Changes(_));
        let mut tally = Tally::default();
        match input {
            Input::Changes(jobs) => {
                let tries = jobs.into_iter().map(|(job, number)| {
                    let about = format!("job {job}");
                    self.tried(about, Some(number), clock, self.tell_job(job, clock))
                });
                self.all(&mut tally, tries).await;
            }
            Input::Alarms(alarms) => {
                let tries = alarms.into_iter().map(|alarm| {
                    let document = Document::attention(&self.cluster, &alarm);
                    self.tried(format!("alarm {}", alarm.name), None, clock, self.tell(document, clock))
                });
                self.all(&mut tally, tries).await;
            }
        }
        let failures: Vec<Value> =
            tally.again.iter().filter_map(|(n, _)| Some(json!({"itemIdentifier": n.as_ref()?}))).collect();
        let metrics = metrics::of_deliveries(tally.deliveries, &self.cluster, clock.now());
        let answer = match tally.again.into_iter().next() {
            Some((_, why)) if !is_batch => Err(why),
            _ => Ok(json!({ "batchItemFailures": failures })),
        };
        Told { answer, metrics }
    }

    async fn all(
        &self,
        tally: &mut Tally,
        tries: impl Iterator<Item = impl Future<Output = (Option<String>, Outcome)>>,
    ) {
        let mut tries = stream::iter(tries).buffer_unordered(AT_ONCE);
        while let Some((number, outcome)) = tries.next().await {
            match outcome {
                Outcome::Nothing => {}
                Outcome::Delivered => tally.deliveries.done += 1,
                Outcome::Lost(_) => tally.deliveries.failed += 1,
                Outcome::Again { why, late } => {
                    tally.deliveries.failed += u64::from(late);
                    tally.again.push((number, why));
                }
            }
        }
    }

    /// One try, if there is time for it, and its line in the log.
    async fn tried(
        &self,
        about: String,
        number: Option<String>,
        clock: RunClock,
        tell: impl Future<Output = Outcome>,
    ) -> (Option<String>, Outcome) {
        let outcome = if clock.has_left(TRY_MS) {
            tell.await
        } else {
            Outcome::Again { why: "no time was left for it".to_owned(), late: false }
        };
        let receiver = self.receiver.origin();
        match &outcome {
            Outcome::Nothing => {}
            Outcome::Delivered => tracing::debug!(about, receiver, "told"),
            Outcome::Lost(why) => tracing::error!(about, receiver, why, "not told, and not tried again"),
            Outcome::Again { why, .. } => tracing::warn!(about, receiver, why, "not told yet: it is tried again"),
        }
        (number, outcome)
    }

    /// Tells of a job, if it has ended.
    async fn tell_job(&self, id: JobId, clock: RunClock) -> Outcome {
        let document = match self.ended(id, clock.now()).await {
            Ok(Some(document)) => document,
            // It goes on, or somebody has deleted its row.
            Ok(None) => return Outcome::Nothing,
            Err(error @ DbError::Corrupt { .. }) => return Outcome::Lost(error.to_string()),
            Err(error) => return Outcome::Again { why: error.to_string(), late: false },
        };
        self.tell(document, clock).await
    }

    /// What is to tell of a job; `None` if it has not ended.
    async fn ended(&self, id: JobId, now: Time) -> Result<Option<Document>, DbError> {
        let job = self.store.job(id).await?.filter(|job| job.summary.state.is_ended());
        Ok(job.and_then(|job| Document::job_ended(&self.cluster, &job, now)))
    }

    /// Sends a document, unless this process has delivered it before.
    async fn tell(&self, document: Document, clock: RunClock) -> Outcome {
        let now = clock.now();
        if self.memory().knows(&document.id) {
            return Outcome::Nothing;
        }
        let keys = self.keys.current(now).await;
        let answer = self.receiver.send(&document, &keys, now).await;
        let now = clock.now();
        let age = now.since(document.at).max(Span::ZERO);
        let mut memory = self.memory();
        let outcome = Outcome::of(answer, age, memory.takes_others(now));
        match &outcome {
            Outcome::Delivered => memory.settled(&document.id, Some(now)),
            // A later change of the job's row must not ask again.
            Outcome::Lost(_) => memory.settled(&document.id, None),
            _ => {}
        }
        outcome
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
