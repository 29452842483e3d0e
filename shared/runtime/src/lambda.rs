//! A function from its wiring to its answers: what it needs, its start under Lambda, and how one event is answered.
//!
//! Guarantees: a failed start gives one clear line on standard error and exit code 1; each run knows its
//! deadline, and a run that still waits for an answer then says so before Lambda cuts it off; under Lambda and in
//! `nodekeeper local` a function is made and answers by the same code.
//! Does not: handle events; each function does.

#![allow(clippy::disallowed_methods, reason = "every main.rs starts here: it reads the clock and the environment")]

use crate::answer::RunAnswer;
use crate::clock::RunClock;
use crate::env::{FunctionEnvironment, FunctionNeeds};
use crate::http::NodeCredentials;
use crate::{metrics, trust};
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader, SdkConfig};
use futures::future::BoxFuture;
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use model::{ClusterName, LaunchSettings, Time};
use serde_json::Value;
use std::fmt::Display;
use std::future::Future;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use store::{Dynamo, Store};
use tokio::time::timeout_at;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::util::SubscriberInitExt;

/// How long a run may take if Lambda does not say when the run must end.
const UNKNOWN_BUDGET: Duration = Duration::from_secs(50);

/// How long before its deadline a run is given up.
const GIVEN_UP_BEFORE_MS: u64 = 500;

/// What a function works with.
#[derive(Clone)]
pub struct Parts {
    pub store: Store,
    pub env: FunctionEnvironment,
    /// The configuration of the SDK, for clients that only some functions need.
    pub aws: SdkConfig,
}

impl Parts {
    /// The parts, with the tables that are found through `dynamo`.
    pub fn new(env: FunctionEnvironment, dynamo: &SdkConfig, aws: SdkConfig) -> Self {
        let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::new(dynamo), env.cluster.clone());
        Self { store: Store::new(Arc::new(dynamo)), env, aws }
    }

    pub fn launch_settings(&self) -> LaunchSettings {
        LaunchSettings {
            cluster: self.env.cluster.clone(),
            key: match &self.env.credentials {
                NodeCredentials::Token(key) => Some(key.clone()),
                NodeCredentials::Iam(_) | NodeCredentials::Nobody => None,
            },
            heartbeat_url: self.env.heartbeat_url.clone(),
            sweep_url: self.env.sweep_url.clone(),
        }
    }
}

/// Decides what is logged: what `RUST_LOG` says, as in `warn,store=debug`. If it is not set or cannot be read, `usual` counts.
pub fn log_filter(rust_log: Option<&str>, usual: &str) -> Targets {
    let filter = rust_log.and_then(|text| text.parse().ok());
    filter.unwrap_or_else(|| usual.parse().unwrap_or_default())
}

/// How often the AWS SDK makes a call: three times at most.
pub fn retries() -> RetryConfig {
    RetryConfig::standard().with_max_attempts(3)
}

/// How long a call may take: 2 s for the connection, 10 s for an attempt, 20 s with all attempts.
pub fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(Duration::from_secs(2))
        .operation_attempt_timeout(Duration::from_secs(10))
        .operation_timeout(Duration::from_secs(20))
        .build()
}

/// How the configuration of the AWS SDK is loaded, with limits on how long a call may take.
pub fn sdk_config() -> ConfigLoader {
    let loader = aws_config::defaults(BehaviorVersion::latest()).http_client(store::http_client());
    loader.retry_config(retries()).timeout_config(timeouts())
}

#[derive(Clone, Copy, Debug)]
pub struct Lambda {
    pub name: &'static str,
    pub needs: FunctionNeeds,
    /// Makes the handler, once in a process.
    pub make: fn(Parts) -> Handler,
}

/// Answers an event, which it gets unchanged, with the clock of the run. If it returns an error, the invocation fails with
/// that error in one line.
pub type Handler = Arc<dyn Fn(Value, RunClock) -> BoxFuture<'static, Result<Reply, String>> + Send + Sync>;

/// A handler that keeps `kept` between its invocations. Lambda may end the process, and with it `kept`, at any time.
pub fn handler<S, F, Fut, E>(kept: S, answer: F) -> Handler
where
    S: Send + Sync + 'static,
    F: Fn(Arc<S>, Value, RunClock) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Reply, E>> + Send + 'static,
    E: Display,
{
    let kept = Arc::new(kept);
    Arc::new(move |event, clock| {
        let answer = answer(Arc::clone(&kept), event, clock);
        Box::pin(async move { answer.await.map_err(|e| e.to_string()) })
    })
}

#[derive(Clone, Debug)]
pub enum Reply {
    /// The answer to a request of a node.
    Http(Value),
    /// The answer of a scheduled run.
    Run(Box<RunAnswer>),
}

impl Reply {
    pub fn run(answer: RunAnswer) -> Self {
        Self::Run(Box::new(answer))
    }
}

pub struct FunctionInstance {
    name: &'static str,
    cluster: ClusterName,
    handler: Handler,
}

impl FunctionInstance {
    pub fn new(name: &'static str, cluster: ClusterName, handler: Handler) -> Self {
        Self { name, cluster, handler }
    }

    /// Answers an event. `emit` gets the metrics of a run, and the log gets its line. A failed run has neither: Lambda
    /// counts it.
    pub async fn answer(&self, event: Value, deadline: Option<Time>, emit: impl Fn(Value)) -> Result<Value, String> {
        let clock = RunClock::new(Time::now(), deadline, UNKNOWN_BUDGET);
        let answer = timeout_at(clock.latest(GIVEN_UP_BEFORE_MS), (self.handler)(event, clock)).await;
        match answer.unwrap_or_else(|_| Err("a call was not answered while the run had time to wait".to_owned())) {
            Ok(Reply::Http(answer)) => Ok(answer),
            Ok(Reply::Run(answer)) => {
                metrics::log(&answer);
                metrics::of_run(&answer, &self.cluster, clock.now()).into_iter().for_each(emit);
                Ok(model::left_out::to_json(&answer).unwrap_or_default())
            }
            Err(e) => {
                tracing::error!("{} failed: {e}", self.name);
                Err(e)
            }
        }
    }
}

/// Runs as this function until Lambda ends the process. If it cannot start, it logs why in one line and exits with code 1.
pub async fn serve(lambda: Lambda) {
    // This is the only subscriber of the process, so setting it cannot fail.
    let filter = log_filter(std::env::var("RUST_LOG").ok().as_deref(), "info");
    let format = std::env::var("AWS_LAMBDA_LOG_FORMAT").unwrap_or_default();
    tracing_subscriber::registry().with(log_layer(&format, std::io::stderr)).with(filter).init();
    let served = match parts(lambda.needs).await {
        Ok(parts) => {
            let instance =
                Arc::new(FunctionInstance::new(lambda.name, parts.env.cluster.clone(), (lambda.make)(parts)));
            let answer = move |event: LambdaEvent<Value>| {
                let instance = Arc::clone(&instance);
                async move {
                    let deadline = i64::try_from(event.context.deadline).ok().map(Time::from_ms);
                    let answer = instance.answer(event.payload, deadline, |line| print_line(&line)).await;
                    answer.map_err(|error_message| Diagnostic { error_type: "Failed".into(), error_message })
                }
            };
            lambda_runtime::run(service_fn(answer)).await.map_err(|e| e.to_string())
        }
        Err(e) => Err(e),
    };
    if let Err(e) = served {
        tracing::error!("{} cannot start: {e}", lambda.name);
        std::process::exit(1);
    }
}

/// Lines for people, or JSON if Lambda asks for it: Logs Insights then finds `level`, `message` and each field. Lambda does
/// not change a line of this runtime, and notes the time itself.
fn log_layer(
    format: &str,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
) -> Box<dyn Layer<Registry> + Send + Sync> {
    let log = fmt::layer().with_writer(writer).with_ansi(false).without_time();
    if format == "JSON" { log.json().flatten_event(true).boxed() } else { log.boxed() }
}

/// The variables of the environment. A variable that is not text becomes text with replacement characters.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
}

async fn parts(needs: FunctionNeeds) -> Result<Parts, String> {
    let env = FunctionEnvironment::read(needs, |name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let config = trust::believing(sdk_config(), variables()).load().await;
    if config.region().is_none() {
        return Err("AWS_REGION is not set: Lambda sets it; elsewhere, set it to the region of the tables".into());
    }
    Ok(Parts::new(env, &config, config.clone()))
}

/// Writes metrics to standard output, one JSON object in a line: CloudWatch reads them from the log. A line
/// that cannot be written is lost. The run goes on, because nothing depends on metrics.
fn print_line(line: &Value) {
    drop(writeln!(std::io::stdout(), "{line}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::future::pending;
    use std::sync::Mutex;
    use tokio::time::Instant;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn line(format: &str) -> String {
        let written = Written::default();
        let copy = written.clone();
        let log = tracing_subscriber::registry().with(log_layer(format, move || copy.clone()));
        tracing::subscriber::with_default(log, || tracing::warn!(subject = "job#1", left = 3, "an action failed"));
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// The saved queries of the template name these fields.
    #[test]
    fn a_line_has_its_fields_at_the_top_where_lambda_wants_json() {
        let json: Value = serde_json::from_str(&line("JSON")).unwrap();
        let target = module_path!();
        let wanted =
            json!({"level": "WARN", "message": "an action failed", "subject": "job#1", "left": 3, "target": target});
        assert_eq!(json, wanted);
        assert!(line("Text").ends_with("an action failed subject=\"job#1\" left=3\n"), "{}", line("Text"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_waits_for_ever_says_so_before_it_is_cut_off() {
        let handler: Handler = Arc::new(|_, _| Box::pin(pending()));
        let instance = FunctionInstance::new("x", "c".parse().unwrap(), handler);
        let (began, deadline) = (Instant::now(), Time::now() + model::time::Span::from_s(12));
        let error = instance.answer(Value::Null, Some(deadline), |_| {}).await.unwrap_err();
        assert_eq!(error, "a call was not answered while the run had time to wait");
        assert!(began.elapsed() < Duration::from_secs(12));
    }
}
