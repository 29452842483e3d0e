//! The five functions as the world runs them: killed, late, twice, several at once, and with different clocks. Also
//! the network between the functions and the nodes.
//!
//! Guarantees: the product's own code runs; a request that is delivered late or twice has exactly the bytes that were
//! sent.
//! Does not: decide what a run or a request must do.

use crate::caller::{Caller, Kind};
use crate::check::{Check, Watch};
use crate::core::{Core, Fault, lock};
use crate::ec2::{Ec2, Seen};
use async_trait::async_trait;
use grant_credentials::Grants;
use grant_credentials::sts::{AssumeRole, Sts, StsError};
use heartbeat_ingest::Ingest;
use model::wire::JobCredentials;
use model::{ClusterName, LaunchSettings, NodeId, NodeKey, Rng, Span, Time};
use runtime::answer::Ran;
use runtime::clock::RunClock;
use runtime::http::NodeCredentials;
use runtime::lambda::Reply;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Db, Store};
use sweep_dispatch::Sweep;
use tokio::sync::Notify;

/// The number of processes of each HTTP function. Each has its own cache and clock.
const PROCESSES: usize = 3;

/// A Lambda process: the state of its function, and its clock.
struct Process<T> {
    function: T,
    skew: Span,
}

/// An STS that grants every role.
#[derive(Debug)]
struct AnyRole;

#[async_trait]
impl Sts for AnyRole {
    async fn assume(&self, request: &AssumeRole, lasts: Span, now: Time) -> Result<JobCredentials, StsError> {
        Ok(JobCredentials {
            access_key_id: request.session.clone(),
            secret_access_key: String::new(),
            session_token: String::new(),
            given_at: now,
            expires_at: now + lasts,
            role_arn: request.role_arn.clone(),
        })
    }
}

#[derive(Default)]
struct Network {
    cut: BTreeMap<NodeId, Time>,
    deaf: BTreeMap<NodeId, Time>,
    some_cut: Option<(u64, Time)>,
    down_until: Option<Time>,
    other_version_until: Option<Time>,
    not_running: BTreeMap<&'static str, Time>,
}

pub struct Functions {
    core: Arc<Core>,
    check: Arc<Watch>,
    store: Store,
    cloud: Seen,
    settings: LaunchSettings,
    key: NodeKey,
    ingests: Vec<Process<Ingest>>,
    sweeps: Vec<Process<Sweep>>,
    grants: Grants,
    network: Mutex<Network>,
    callers: AtomicU64,
    last_said: Mutex<Vec<String>>,
    stop: Notify,
}

impl Functions {
    pub fn new(core: &Arc<Core>, check: &Arc<Watch>, db: Arc<dyn Db>, ec2: &Arc<Ec2>) -> Arc<Self> {
        let cluster: ClusterName = "simulated".parse().unwrap_or_else(|_| unreachable!("a good name"));
        let key: NodeKey = "5a".repeat(32).parse().unwrap_or_else(|_| unreachable!("a good key"));
        let seed = core.scenario.seed;
        let store = Store::with_rng(db, Rng::seeded(seed));
        let credentials = NodeCredentials::Token(key.clone());
        let skew = || {
            let ms = if core.happens(Fault::ClockSkew) { core.of(Fault::ClockSkew, -3000, 3000) } else { 0 };
            Span::from_ms(ms)
        };
        let ingests = (0..PROCESSES)
            .map(|_| Process {
                function: Ingest::new(store.clone(), credentials.clone(), cluster.clone()),
                skew: skew(),
            })
            .collect();
        let sweeps = (0..PROCESSES)
            .map(|_| Process {
                function: Sweep::new(store.clone(), credentials.clone(), cluster.clone()),
                skew: skew(),
            })
            .collect();
        Arc::new(Self {
            grants: Grants::new(store.clone(), Arc::new(AnyRole), credentials, cluster.clone()),
            core: Arc::clone(core),
            check: Arc::clone(check),
            store,
            cloud: Seen(Arc::clone(ec2)),
            settings: LaunchSettings {
                cluster,
                key: (!core.scenario.batches).then(|| key.clone()),
                heartbeat_url: "https://heartbeat".into(),
                sweep_url: "https://sweep".into(),
            },
            key,
            ingests,
            sweeps,
            network: Mutex::default(),
            callers: AtomicU64::new(0),
            last_said: Mutex::default(),
            stop: Notify::new(),
        })
    }

    /// What the last run of poll-and-scale reported without acting, and why.
    pub fn last_said(&self) -> Vec<String> {
        lock(&self.last_said).clone()
    }

    /// The credential of a node whose user data has none. (It stands for the role of the instance.)
    pub fn token_of(&self, node_id: NodeId) -> String {
        self.key.token(&self.settings.cluster, node_id)
    }

    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// Ends all runs and requests that are under way: after a restore, the functions use other tables.
    pub fn stop_all(&self) {
        self.stop.notify_waiters();
    }

    /// Runs `work` to its end, or until [`Self::stop_all`].
    async fn until_stopped<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.notified() => None,
            result = work => Some(result),
        }
    }

    /// Ends all faults of the network and of the schedules.
    pub fn heal(&self) {
        *lock(&self.network) = Network::default();
    }

    pub fn cut_off(&self, node: NodeId, until: Time) {
        self.core.tell(|| "network".into(), || format!("{node} is cut off until {until}"));
        lock(&self.network).cut.insert(node, until);
    }

    /// Loses all answers to a node until `until`. Its requests still arrive.
    pub fn deafen(&self, node: NodeId, until: Time) {
        self.core.tell(|| "network".into(), || format!("{node} hears nothing until {until}"));
        lock(&self.network).deaf.insert(node, until);
    }

    fn is_deaf(&self, node: NodeId) -> bool {
        lock(&self.network).deaf.get(&node).is_some_and(|until| self.core.now() < *until)
    }

    /// Cuts off a third of the nodes until `until`.
    pub fn cut_off_some(&self, until: Time) {
        let part = self.core.of(Fault::PartOfTheNetwork, 0, 2).unsigned_abs();
        self.core.tell(|| "network".into(), || format!("a third of the nodes is cut off until {until}"));
        lock(&self.network).some_cut = Some((part, until));
    }

    fn is_cut(&self, node: NodeId) -> bool {
        let now = self.core.now();
        if self.core.happens(Fault::IngestDown) {
            let until = now + Span::from_s(self.core.of(Fault::IngestDown, 60, 3600));
            self.core.tell(|| "network".into(), || format!("heartbeat-ingest answers nobody until {until}"));
            lock(&self.network).down_until = Some(until);
        }
        let network = lock(&self.network);
        network.down_until.is_some_and(|until| now < until)
            || network.cut.get(&node).is_some_and(|until| now < *until)
            || network.some_cut.is_some_and(|(part, until)| now < until && u64::from(node.slot().number()) % 3 == part)
    }

    fn caller(&self, kind: Kind) -> Arc<Caller> {
        let number = self.callers.fetch_add(1, Ordering::Relaxed) + 1;
        let kill_at = if self.core.is_planned(Fault::Killed) {
            let points: &[i64] = if matches!(kind, Kind::Run(_)) { &[120, 120, 600] } else { &[12, 12, 60] };
            let most = self.core.one_of(points).copied().unwrap_or(1);
            u32::try_from(self.core.of(Fault::Killed, 1, most)).unwrap_or(1)
        } else {
            0
        };
        Caller::new(kind, number, kill_at, self.core.now())
    }

    /// Does the work of a caller. Returns `None` if the caller is killed. A kill counts only when it happens: most
    /// callers that are to be killed end before.
    async fn as_caller<T>(&self, caller: &Arc<Caller>, work: impl Future<Output = T>) -> Option<T> {
        let result = caller.run(work).await;
        if result.is_none() {
            self.core.happened_now(Fault::Killed);
            self.core.count(match caller.kind {
                Kind::Run(_) => "a run was killed",
                _ => "a request's function was killed",
            });
            self.core.tell(|| caller.name(), || "killed".into());
        }
        result
    }

    /// Delivers one request of a node. Returns the status and body of the answer, or `None` if the request or the
    /// answer was lost.
    pub async fn post(
        self: &Arc<Self>,
        node: NodeId,
        what: &'static str,
        token: Option<&str>,
        body: String,
    ) -> Option<(u64, String)> {
        let core = &self.core;
        if self.is_cut(node) || core.happens(Fault::RequestLost) {
            sleep_ms(10_000).await;
            return None;
        }
        let path = format!("/v1/nodes/{node}/{what}");
        let body: Arc<str> = body.into();
        let mut headers = json!({"content-type": "application/json"});
        if let (Some(token), Some(headers)) = (token, headers.as_object_mut()) {
            headers.insert("authorization".into(), format!("Bearer {token}").into());
        }
        let event = json!({"version": "2.0", "rawPath": path, "headers": headers, "isBase64Encoded": false,
            "requestContext": {"http": {"method": "POST", "path": path}}, "body": &*body});
        let kind = Kind::Node { node, what, body };
        let late = core.happens(Fault::RequestLate);
        if late || core.happens(Fault::RequestTwice) {
            let ms = core.between(0, 600_000);
            let (functions, event, kind) = (Arc::clone(self), event.clone(), kind.clone());
            core.tell(
                || "network".into(),
                || format!("a request of {node} ({what}) comes, or comes again, in {ms} ms"),
            );
            tokio::spawn(async move {
                sleep_ms(ms).await;
                functions.answer(kind, &event).await;
            });
            if late {
                sleep_ms(10_000).await;
                return None;
            }
        }
        let answer = self.answer(kind, &event).await?;
        if self.is_cut(node) || self.is_deaf(node) || core.happens(Fault::AnswerLost) {
            sleep_ms(5_000).await;
            return None;
        }
        let status = answer.get("statusCode").and_then(Value::as_u64)?;
        Some((status, answer.get("body").and_then(Value::as_str)?.to_owned()))
    }

    async fn answer(&self, kind: Kind, event: &Value) -> Option<Value> {
        let n = usize::try_from(self.core.between(0, PROCESSES as i64 - 1)).unwrap_or(0);
        let to = if let Kind::Node { what, .. } = &kind { *what } else { "" };
        let stale = Check::is_overtaken(&self.check.tables(), &kind);
        let caller = self.caller(kind);
        // Boxed: these futures are large, and the code around them moves them several times.
        let work = async {
            match to {
                "handles" => {
                    let process = self.sweeps.get(n)?;
                    let clock = RunClock::new(self.core.now() + process.skew, None, Duration::from_secs(25));
                    match Box::pin(process.function.handle(event.clone(), clock)).await.ok()? {
                        Reply::Http(answer) => Some(answer),
                        Reply::Run(_) => None,
                    }
                }
                "credentials" => Some(Box::pin(self.grants.handle(event, self.core.now())).await),
                _ => {
                    let process = self.ingests.get(n)?;
                    Some(Box::pin(process.function.handle(event, self.core.now() + process.skew)).await)
                }
            }
        };
        let work = async { self.until_stopped(work).await.flatten() };
        let name = caller.name();
        let work = self.core.invariant_nothing_panics(&name, self.as_caller(&caller, work));
        // The function's own time-out may end the request at any await point.
        let answer = tokio::time::timeout(Duration::from_secs(30), work).await;
        if answer.is_err() {
            self.core.count("a request's function was cut off by its time-out");
        }
        let answer = answer.ok()????;
        self.check.invariant_every_change_has_its_event(&caller);
        self.check.answered(&self.check.tables(), &caller, &answer);
        if stale {
            self.check.invariant_a_stale_report_is_refused(&name, &answer);
        }
        Some(answer)
    }

    /// Whether a function does not run now.
    fn is_down(&self, function: &'static str) -> bool {
        let now = self.core.now();
        if self.core.happens(Fault::FunctionDown) {
            let until = now + Span::from_s(self.core.of(Fault::FunctionDown, 120, 7200));
            self.core.tell(|| function.into(), || format!("does not run until {until}"));
            lock(&self.network).not_running.insert(function, until);
        }
        lock(&self.network).not_running.get(function).is_some_and(|until| now < *until)
    }

    /// The schedule starts a function: once, late, several times or not at all.
    pub fn ring(self: &Arc<Self>, function: &'static str, input: Value) {
        let core = &self.core;
        if self.is_down(function) {
            return;
        }
        let runs = if core.happens(Fault::RunsOverlap) {
            core.of(Fault::RunsOverlap, 2, 10)
        } else if core.happens(Fault::RunTwice) {
            2
        } else {
            1
        };
        for _ in 0..runs {
            let late = if core.happens(Fault::RunLate) { core.of(Fault::RunLate, 100, 50_000) } else { 0 };
            let (functions, input) = (Arc::clone(self), input.clone());
            tokio::spawn(async move {
                if late > 0 {
                    sleep_ms(late).await;
                }
                functions.run(function, &input).await;
            });
        }
    }

    pub async fn run(&self, function: &'static str, input: &Value) {
        let core = &self.core;
        let caller = self.caller(Kind::Run(function));
        let skew = if core.happens(Fault::ClockSkew) { core.of(Fault::ClockSkew, -3000, 3000) } else { 0 };
        let now = core.now() + Span::from_ms(skew);
        let budget_s = if core.happens(Fault::ShortRun) { core.of(Fault::ShortRun, 5, 20) } else { 60 };
        let budget = Duration::from_secs(budget_s.unsigned_abs());
        let clock = RunClock::new(now, None, budget);
        let settings = self.version();
        let work = async {
            let answer = match function {
                poll_and_scale::FUNCTION => {
                    poll_and_scale::tick(&self.store, &self.cloud, &settings, input, clock).await
                }
                clean_stale_records::FUNCTION => {
                    clean_stale_records::tick(&self.store, &self.cloud, input, clock).await
                }
                _ => sweep_dispatch::tick(&self.store, input, clock).await,
            };
            if let Ok(answer) = &answer {
                self.check.invariant_a_warning_drains(&self.check.tables(), &caller, input);
                if answer.ran == Ran::Whole {
                    self.check.invariant_what_stands_still_is_told(&self.check.tables(), &caller, function, answer);
                }
                self.check.invariant_every_change_has_its_event(&caller);
                self.check.invariant_a_refusal_is_remembered(&self.check.tables(), &caller);
                self.check.invariant_a_refused_launch_occupies_no_slot(&self.check.tables(), &caller);
            }
            if let Err(error) = &answer {
                self.check.invariant_an_unreadable_row_stops_no_run(&caller, error);
            }
            self.ran(function, answer);
        };
        let work = core.invariant_nothing_panics(function, self.as_caller(&caller, self.until_stopped(work)));
        match tokio::time::timeout(budget, work).await {
            Ok(_) => {}
            Err(_) => {
                core.count("a run was cut off by its time-out");
                core.tell(|| caller.name(), || "cut off by its time-out".into());
            }
        }
    }

    fn ran(
        &self,
        function: &'static str,
        answer: Result<runtime::answer::RunAnswer, runtime::observation::ObserveError>,
    ) {
        match answer {
            Ok(answer) => {
                self.core.count(match function {
                    poll_and_scale::FUNCTION => "poll-and-scale ran",
                    clean_stale_records::FUNCTION => "clean-stale-records ran",
                    _ => "sweep-dispatch ran",
                });
                if function == poll_and_scale::FUNCTION {
                    let said = answer.actions.iter().filter(|a| a.outcome == runtime::answer::ActionOutcome::Reported);
                    *lock(&self.last_said) =
                        said.map(|a| format!("{} {}: {}", a.action, a.subject, a.reason)).collect();
                }
                for action in &answer.actions {
                    self.core.tell(
                        || function.into(),
                        || {
                            let error = action.error.as_deref().unwrap_or_default();
                            let outcome = action.outcome;
                            format!("{} {}: {} {outcome:?} {error}", action.action, action.subject, action.reason)
                        },
                    );
                    self.core.did(function, action.action, action.outcome);
                }
            }
            Err(e) => {
                self.core.count("a run could not observe");
                self.core.tell(|| function.into(), || format!("could not observe: {e}"));
            }
        }
    }

    /// The settings of the version that runs. For some time, another version may be deployed while the old one still
    /// runs. The launch requests of two versions differ.
    fn version(&self) -> LaunchSettings {
        let now = self.core.now();
        if self.core.happens(Fault::OtherVersion) {
            let until = now + Span::from_s(self.core.of(Fault::OtherVersion, 60, 1200));
            lock(&self.network).other_version_until = Some(until);
        }
        let other = lock(&self.network).other_version_until.is_some_and(|until| now < until);
        let mut settings = self.settings.clone();
        if other && self.core.maybe(0.5) {
            settings.heartbeat_url = "https://heartbeat.other-version".into();
        }
        settings
    }
}

async fn sleep_ms(ms: i64) {
    tokio::time::sleep(Duration::from_millis(ms.max(0).unsigned_abs())).await;
}
