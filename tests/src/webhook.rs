//! The webhook with a real receiver: what arrives, how often, and what it means for jobs.

use crate::end_to_end::{Local, text, until};
use crate::example_events;
use crate::world::{World, free_url, job};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header::LOCATION};
use futures::stream;
use model::functions::WEBHOOK;
use model::ids::{ClusterName, JobId};
use model::time::Time;
use model::webhook::SigningKey;
use model::{Job, JobState};
use runtime::clock::RunClock;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::Store;
use store::steps::{Retention, cancel_job};
use webhook::Webhook;
use webhook::keys::Keys;

const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Got {
    pub id: String,
    at_s: i64,
    signature: String,
    body: Bytes,
}

impl Got {
    pub fn document(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn is_signed(&self) -> bool {
        self.signature == KEY.parse::<SigningKey>().unwrap().sign(&self.id, self.at_s, &self.body)
    }
}

#[derive(Default)]
struct Inside {
    got: Mutex<Vec<Got>>,
    /// The next answers. The last one stays.
    statuses: Mutex<VecDeque<u16>>,
    redirect_to: Option<String>,
    /// Answers have a body without an end.
    endless: bool,
}

/// An HTTP server that takes documents.
pub struct Receiver {
    pub url: String,
    inside: Arc<Inside>,
}

impl Receiver {
    /// A receiver with these answers; the last one is given for ever.
    pub async fn start(statuses: &[u16]) -> Self {
        Self::with(Inside { statuses: Mutex::new(statuses.iter().copied().collect()), ..Inside::default() }).await
    }

    async fn with(inside: Inside) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?secret", listener.local_addr().unwrap());
        let inside = Arc::new(inside);
        let router = axum::Router::new().fallback(take).with_state(Arc::clone(&inside));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, inside }
    }

    pub fn got(&self) -> Vec<Got> {
        self.inside.got.lock().unwrap().clone()
    }

    fn ids(&self) -> Vec<String> {
        self.got().into_iter().map(|got| got.id).collect()
    }

    /// A process of the function that calls this receiver.
    pub fn webhook(&self, store: Store, cluster: &ClusterName) -> Webhook {
        process(&self.url, store, cluster)
    }
}

fn process(url: &str, store: Store, cluster: &ClusterName) -> Webhook {
    Webhook::new(store, cluster.clone(), url.parse().unwrap(), Keys::fixed(KEY.parse().unwrap())).unwrap()
}

async fn take(
    State(inside): State<Arc<Inside>>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, [(axum::http::HeaderName, String); 1], Body) {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let at_s = text("webhook-timestamp").parse().unwrap();
    let got = Got { id: text("webhook-id"), at_s, signature: text("webhook-signature"), body };
    inside.got.lock().unwrap().push(got);
    let mut statuses = inside.statuses.lock().unwrap();
    let status = if statuses.len() > 1 { statuses.pop_front() } else { statuses.front().copied() };
    let endless = || Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b'x'; 4096]))));
    let body = if inside.endless { endless() } else { Body::empty() };
    let location = (LOCATION, inside.redirect_to.clone().unwrap_or_default());
    (StatusCode::from_u16(status.unwrap_or(200)).unwrap(), [location], body)
}

/// A batch of the stream: these jobs have changed. The number of each is its id.
pub fn changed(jobs: &[JobId]) -> Value {
    let record = |job: &JobId| json!({"eventName": "MODIFY", "dynamodb": {"Keys": {"job_id": {"S": job}}, "SequenceNumber": job.to_string()}});
    json!({ "Records": jobs.iter().map(record).collect::<Vec<_>>() })
}

fn again(jobs: &[JobId]) -> Result<Value, String> {
    let failures: Vec<_> = jobs.iter().map(|job| json!({"itemIdentifier": job.to_string()})).collect();
    Ok(json!({ "batchItemFailures": failures }))
}

fn failed(metrics: Option<Value>) -> u64 {
    metrics.map_or(0, |line| line["DeliveriesFailed"].as_u64().unwrap())
}

async fn cancelled(world: &World) -> JobId {
    let job = world.submit(job(&["true"])).await;
    cancel_job(&world.look, &job, "", Retention::of(&world.policy), world.now()).await.unwrap();
    job.summary.job_id
}

fn cluster() -> ClusterName {
    "prod".parse().unwrap()
}

#[tokio::test]
async fn a_jobs_end_arrives_once_and_signed() {
    let (mut world, receiver) = (World::new().await, Receiver::start(&[200]).await);
    let webhook = receiver.webhook(world.look.clone(), &cluster());
    let id = world.submit(job(&["true"])).await.summary.job_id;
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        world.step().await;
        let state = world.look.job(id).await.unwrap().unwrap().summary.state;
        seen.insert(state.to_string());
        // Each change of the row is an event.
        assert_eq!(webhook.handle(&changed(&[id]), world.clock()).await.answer, again(&[]));
        assert_eq!(receiver.got().len(), usize::from(state.is_ended()), "{state}");
    }
    assert_eq!(seen, BTreeSet::from(["placed".to_owned(), "queued".to_owned(), "complete".to_owned()]));
    let job = world.look.job(id).await.unwrap().unwrap();
    let got = receiver.got().remove(0);
    assert!(got.is_signed(), "{got:?}");
    let document = got.document();
    assert_eq!((got.id, &document["type"]), (format!("job_{id}"), &json!("job.ended")));
    let data = &document["data"];
    assert_eq!((&data["state"], &data["exit_code"]), (&json!("complete"), &json!(0)));
    assert_eq!(data["finished_at"], json!(job.finished_at.unwrap()));

    // Another process does not know what this one told: the id is the same, so the receiver does.
    receiver.webhook(world.look.clone(), &cluster()).handle(&changed(&[id]), world.clock()).await.answer.unwrap();
    let ids = receiver.ids();
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");
}

#[tokio::test]
async fn a_receiver_that_fails_twice_gets_a_third_try_with_the_same_id_and_keeps_no_other_job_back() {
    let (world, receiver) = (World::new().await, Receiver::start(&[500, 503, 200]).await);
    let webhook = receiver.webhook(world.look.clone(), &cluster());
    let id = cancelled(&world).await;
    for left in [vec![id], vec![id], vec![]] {
        let told = webhook.handle(&changed(&[id]), world.clock()).await;
        assert_eq!((told.answer, failed(told.metrics)), (again(&left), 0));
    }
    let got = receiver.got();
    assert!(
        got.len() == 3 && got.iter().all(|g| g.is_signed() && g.id == got[0].id && g.body == got[0].body),
        "{got:?}"
    );

    // One of two documents fails: the other one is told by the first try, and is not repeated by the second.
    receiver.inside.statuses.lock().unwrap().extend([500, 200]);
    receiver.inside.statuses.lock().unwrap().pop_front();
    let jobs = [cancelled(&world).await, cancelled(&world).await];
    let Ok(answer) = webhook.handle(&changed(&jobs), world.clock()).await.answer else { panic!("no answer") };
    assert_eq!(answer["batchItemFailures"].as_array().unwrap().len(), 1, "{answer}");
    assert_eq!(webhook.handle(&changed(&jobs), world.clock()).await.answer, again(&[]));
    let ids = receiver.ids();
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (3 + 3, 3), "{ids:?}");
}

#[tokio::test]
async fn a_receiver_that_refuses_a_document_is_not_asked_again() {
    for status in [400, 410] {
        let (world, receiver) = (World::new().await, Receiver::start(&[status]).await);
        let webhook = receiver.webhook(world.look.clone(), &cluster());
        let id = cancelled(&world).await;
        let told = webhook.handle(&changed(&[id]), world.clock()).await;
        assert_eq!((told.answer, failed(told.metrics)), (again(&[]), 1), "the alarm counts it");
        // The row changes again, for instance because its last alloc stops.
        let told = webhook.handle(&changed(&[id]), world.clock()).await;
        assert_eq!((told.answer, told.metrics, receiver.got().len()), (again(&[]), None, 1));
    }
}

#[tokio::test]
async fn a_dead_receiver_neither_delays_nor_changes_a_job_and_is_given_up() {
    let mut world = World::new().await;
    let webhook = process(&free_url(), world.look.clone(), &cluster());
    let id = world.submit(job(&["true"])).await.summary.job_id;
    let row = async |world: &World| -> Job { world.look.job(id).await.unwrap().unwrap() };
    for _ in 0..60 {
        world.step().await;
        webhook.handle(&changed(&[id]), world.clock()).await.answer.unwrap();
    }
    let ended = row(&world).await;
    assert_eq!(ended.summary.state, JobState::Complete);
    world.pass(121);
    let told = webhook.handle(&changed(&[id]), world.clock()).await;
    assert_eq!((told.answer, failed(told.metrics)), (again(&[id]), 1), "it is late");
    world.pass(3600);
    let told = webhook.handle(&changed(&[id]), world.clock()).await;
    assert_eq!((told.answer, failed(told.metrics)), (again(&[]), 1), "it is given up");
    assert_eq!(row(&world).await, ended);
}

#[tokio::test]
async fn the_webhook_follows_no_redirect_and_reads_no_answer() {
    let world = World::new().await;
    let other = Receiver::start(&[200]).await;
    let redirect = Inside { redirect_to: Some(other.url.clone()), ..Inside::default() };
    redirect.statuses.lock().unwrap().push_back(307);
    let first = Receiver::with(redirect).await;
    let id = cancelled(&world).await;
    let told = first.webhook(world.look.clone(), &cluster()).handle(&changed(&[id]), world.clock()).await;
    assert_eq!((told.answer, first.got().len(), other.got().len()), (again(&[id]), 1, 0));

    let endless = Receiver::with(Inside { endless: true, ..Inside::default() }).await;
    let start = Instant::now();
    let told = endless.webhook(world.look.clone(), &cluster()).handle(&changed(&[id]), world.clock()).await;
    assert_eq!((told.answer, endless.got().len()), (again(&[]), 1));
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

#[tokio::test]
async fn without_time_nothing_is_sent_and_everything_is_tried_again() {
    let (world, receiver) = (World::new().await, Receiver::start(&[200]).await);
    let webhook = receiver.webhook(world.look.clone(), &cluster());
    let id = cancelled(&world).await;
    let short = RunClock::new(world.now(), None, Duration::from_secs(11));
    assert_eq!(webhook.handle(&changed(&[id]), short).await.answer, again(&[id]));
    assert_eq!(receiver.got().len(), 0);
}

#[tokio::test]
async fn an_alarm_fails_its_invocation_until_it_is_told_and_both_example_events_are_accepted() {
    let (world, receiver) = (World::new().await, Receiver::start(&[503, 200]).await);
    let cluster = "local".parse().unwrap();
    let webhook = receiver.webhook(world.look.clone(), &cluster);
    let events = example_events::of(&WEBHOOK);
    let event = |name: &str| events.iter().find(|(path, _)| path.ends_with(name)).unwrap().1.clone();
    let alarm = event("alarm.json");
    let at: Time = "2026-11-21T12:00:01Z".parse().unwrap();
    let clock = || RunClock::new(at, None, Duration::from_secs(50));
    let failed = webhook.handle(&alarm, clock()).await.answer;
    assert!(failed.as_ref().is_err_and(|why| why.contains("503")), "{failed:?}");
    assert_eq!(webhook.handle(&alarm, clock()).await.answer, again(&[]));
    let got = receiver.got();
    assert!(got.len() == 2 && got[0].id == got[1].id && got[1].is_signed(), "{got:?}");
    let document = got[1].document();
    assert_eq!((&document["type"], &document["data"]["alarm"]), (&json!("attention.raised"), &json!("brakes-held")));

    // There is no job of that id: nothing to tell.
    assert_eq!(webhook.handle(&event("changed-job.json"), world.clock()).await.answer, again(&[]));
    assert_eq!((events.len(), receiver.got().len()), (2, 2));
}

/// The built programs: the local stack passes on ends and what is wrong.
#[test]
fn end_to_end_the_local_stack_calls_a_receiver() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let receiver = runtime.block_on(Receiver::start(&[500, 200]));
    let mut local = Local::start(&["--webhook", &receiver.url, "--webhook-secret", KEY]);
    let submitted = local.nodekeeper(&["submit", "--wait", "--name", "told", "--", "sh", "-c", "exit 7"]);
    let says = || std::fs::read_to_string(local.path().join("logs/webhook.log")).unwrap_or_default();
    assert!(!submitted.status.success(), "{}", text(&submitted));
    let ends = || receiver.got().into_iter().filter(|got| got.document()["type"] == "job.ended").collect::<Vec<_>>();
    // The first answer is 500, to whichever request came first.
    let got = until("the end of the job", 30, || {
        let ends = ends();
        (receiver.got().len() >= 2 && !ends.is_empty()).then_some(ends)
    });
    assert!(got.iter().all(|one| one.is_signed() && one.id == got[0].id), "{got:?} {}", says());
    let data = got[0].document()["data"].clone();
    assert_eq!(
        (&data["name"], &data["state"], &data["exit_code"]),
        (&json!("told"), &json!("failed"), &json!(7)),
        "{data}"
    );

    assert_eq!(local.stop(), Some(0));
}
