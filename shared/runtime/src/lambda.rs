//! Running as a Lambda function: the start and the loop.
//!
//! Guarantees: a failed start gives one clear line on standard error and exit code 1; each run knows its
//! deadline.
//! Does not: handle events; each function does.

#![allow(clippy::disallowed_methods, reason = "every main.rs starts here: it reads the clock and the environment")]

use crate::answer::RunAnswer;
use crate::bounded::{self, Bounded};
use crate::clock::RunClock;
use crate::env::{Environment, Needs};
use crate::http::Credentials;
use crate::metrics;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader, SdkConfig};
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use model::ids::ClusterName;
use model::launch::LaunchSettings;
use model::time::Time;
use serde_json::Value;
use std::fmt::Display;
use std::future::Future;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use store::{Dynamo, Store};

/// How long a run may take if Lambda does not say when the run must end.
const UNKNOWN_BUDGET: Duration = Duration::from_secs(50);

/// What a function works with.
#[derive(Clone, Debug)]
pub struct Parts {
    pub store: Store,
    pub env: Environment,
    /// The configuration of the SDK, for clients that only some functions need.
    pub aws: SdkConfig,
}

impl Parts {
    /// The settings that are needed to render a launch request.
    pub fn launch_settings(&self) -> LaunchSettings {
        LaunchSettings {
            cluster: self.env.cluster.clone(),
            key: match &self.env.credentials {
                Credentials::Token(key) => Some(key.clone()),
                Credentials::Iam(_) | Credentials::Nobody => None,
            },
            heartbeat_url: self.env.heartbeat_url.clone(),
            sweep_url: self.env.sweep_url.clone(),
        }
    }
}

/// How the configuration of the AWS SDK is loaded, with limits on how long a call may take.
pub fn sdk_config() -> ConfigLoader {
    aws_config::defaults(BehaviorVersion::latest())
        .retry_config(RetryConfig::standard().with_max_attempts(3))
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(Duration::from_secs(2))
                .operation_attempt_timeout(Duration::from_secs(10))
                .operation_timeout(Duration::from_secs(20))
                .build(),
        )
}

/// Reads the environment and makes the clients. If that fails, it logs why in one line and exits with code 1.
pub async fn start(function: &str, needs: Needs) -> Parts {
    // This is the only subscriber of the process, so setting it cannot fail.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .without_time()
        .init();
    match parts(needs).await {
        Ok(parts) => parts,
        Err(e) => {
            fail(function, &e);
        }
    }
}

/// Logs why a function cannot start, in one line, and exits with code 1.
pub fn fail(function: &str, error: &dyn Display) -> ! {
    tracing::error!("{function} cannot start: {error}");
    std::process::exit(1)
}

async fn parts(needs: Needs) -> Result<Parts, String> {
    let env = Environment::read(needs, |name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let config = sdk_config().load().await;
    if config.region().is_none() {
        return Err("AWS_REGION is not set: Lambda sets it; elsewhere, set it to the region of the tables".into());
    }
    let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::new(&config), env.cluster.clone());
    Ok(Parts { store: Store::new(Arc::new(Bounded(dynamo))), env, aws: config })
}

/// A function's answer to an event.
#[derive(Clone, Debug)]
pub enum Reply {
    /// The answer to a request of a node.
    Http(Value),
    /// The answer of a scheduled run.
    Run(Box<RunAnswer>),
}

impl Reply {
    /// The answer of a scheduled run.
    pub fn run(answer: RunAnswer) -> Self {
        Self::Run(Box::new(answer))
    }
}

/// Handles events until Lambda ends the process. `handler` gets every event unchanged, and the clock of the run. If
/// the handler returns an error, the invocation fails with that error in one line. This function writes the metrics
/// and the log line of a run.
pub async fn serve<F, Fut, E>(function: &'static str, cluster: ClusterName, handler: F)
where
    F: Fn(Value, RunClock) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Reply, E>> + Send,
    E: Display,
{
    let handler = Arc::new((handler, cluster));
    let result = lambda_runtime::run(service_fn(move |event: LambdaEvent<Value>| {
        let handler = Arc::clone(&handler);
        async move {
            let (handler, cluster) = &*handler;
            let deadline = i64::try_from(event.context.deadline).ok().map(Time::from_ms);
            let clock = RunClock::new(Time::now(), deadline, UNKNOWN_BUDGET);
            match bounded::until(clock.deadline(), handler(event.payload, clock)).await {
                Ok(Reply::Http(answer)) => Ok(answer),
                Ok(Reply::Run(answer)) => {
                    metrics::log(&answer);
                    if let Some(line) = metrics::of_run(&answer, cluster, clock.now()) {
                        print_line(&line);
                    }
                    Ok(serde_json::to_value(answer.bounded()).unwrap_or_default())
                }
                Err(e) => {
                    tracing::error!("{function} failed: {e}");
                    print_line(&metrics::of_failed_run(function, cluster, clock.now()));
                    Err(Diagnostic { error_type: "Failed".into(), error_message: e.to_string() })
                }
            }
        }
    }))
    .await;
    if let Err(e) = result {
        fail(function, &e);
    }
}

/// Writes metrics to standard output, one JSON object in a line: CloudWatch reads them from the log. A line
/// that cannot be written is lost. The run goes on, because nothing depends on metrics.
fn print_line(line: &Value) {
    drop(writeln!(std::io::stdout(), "{line}"));
}
