//! The running stand-in: starts functions, schedules and the HTTP server, and stops them.

use crate::error::InvokeError;
use crate::event;
use crate::function::Function;
use crate::functions::Functions;
use crate::host::{Host, LogSink, StopSignal};
use crate::settings::{LambdaSettings, SettingsError};
use crate::stats::Stats;
use crate::{invoke_api, runtime_api, url};
use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use guard::{Listener, Owner, Signatures, origin};
use model::time::Time;
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The running stand-in. Dropping it stops everything too, but does not wait for the end.
#[derive(Debug)]
pub struct Lambda {
    pub(crate) functions: Arc<Functions>,
}

impl Lambda {
    /// Serves `settings` at `listener`, which must be bound to a loopback address, and starts the schedules. A
    /// function's processes start when they are needed. Must be called within a tokio runtime.
    pub fn start(
        settings: LambdaSettings,
        listener: TcpListener,
        log: LogSink,
        clock: Arc<dyn Fn() -> Time + Send + Sync>,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        let host = Arc::new(Host {
            address: listener.local_addr()?,
            region: settings.region,
            inherited_env: settings.inherited_env,
            url_auth: settings.url_auth,
            invoke_auth: settings.invoke_auth,
            clock,
            log,
            stop: watch::Sender::new(false),
        });
        let by_name = settings
            .functions
            .into_iter()
            .map(|function| (function.name.clone(), Arc::new(Function::new(function, Arc::clone(&host)))))
            .collect();
        let lambda = Self { functions: Arc::new(Functions { by_name, host }) };
        for schedule in settings.schedules {
            if let Some(function) = lambda.functions.by_name.get(&schedule.function) {
                let host = Arc::clone(&lambda.functions.host);
                tokio::spawn(event::run_schedule(schedule, Arc::clone(function), host));
            }
        }
        tokio::spawn(serve(listener, lambda.router(), lambda.functions.host.stop_signal()));
        Ok(lambda)
    }

    /// The HTTP side: Runtime API, Invoke API and function URLs. [`Lambda::start`] serves it already; a program may
    /// also merge it into a router of its own.
    pub fn router(&self) -> Router {
        Router::new()
            .merge(runtime_api::routes())
            .merge(self.invoke_api())
            .merge(url::routes())
            .layer(from_fn(origin::programs_only))
            .with_state(Arc::clone(&self.functions))
    }

    fn invoke_api(&self) -> Router<Arc<Functions>> {
        match &self.functions.host.invoke_auth {
            Some(auth) => invoke_api::routes().layer(from_fn_with_state(auth.clone(), Signatures::check)),
            None => invoke_api::routes(),
        }
    }

    /// The address of the HTTP server.
    pub fn address(&self) -> SocketAddr {
        self.functions.host.address
    }

    /// The start of a function's URL, without a slash at the end.
    pub fn url(&self, function: &str) -> String {
        format!("http://{}/lambda-url/{function}", self.address())
    }

    /// Runs a function and waits for its answer.
    pub async fn invoke(&self, function: &str, payload: &Value) -> Result<Value, InvokeError> {
        let ticket = self.functions.get(function)?.submit(payload.to_string().into())?;
        let answer = ticket.wait().await?;
        serde_json::from_slice(&answer).map_err(|source| InvokeError::NotJson { function: function.to_owned(), source })
    }

    /// Queues a run of a function, and does not wait: what AWS calls an `Event` invocation.
    pub fn send_event(&self, function: &str, payload: &Value) -> Result<(), InvokeError> {
        event::send(self.functions.get(function)?, payload.to_string().into()).map(drop)
    }

    /// The counts of every function so far, by name.
    pub fn stats(&self) -> Vec<Stats> {
        self.functions.by_name.values().map(|function| function.stats()).collect()
    }

    /// Stops the schedules, drops waiting invocations, ends all processes (SIGTERM, after two seconds SIGKILL) and
    /// returns when none is left. Callers that still wait get [`InvokeError::ShuttingDown`].
    pub async fn shutdown(&self) {
        self.stop();
        self.functions.host.stop.closed().await;
    }

    fn stop(&self) {
        for function in self.functions.by_name.values() {
            function.stop();
        }
        self.functions.host.stop.send_replace(true);
    }
}

impl Drop for Lambda {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(listener: TcpListener, router: Router, mut stop: StopSignal) {
    // The functions, the agents and the operator run as the user of this program.
    let server = axum::serve(Listener::new(listener, Owner::of_this_program(None)), router);
    // Open connections end with the processes and callers at their other ends.
    tokio::select! {
        ended = server => {
            if let Err(error) = ended {
                tracing::error!(%error, "the local Lambda no longer listens: restart it");
            }
        }
        () = stop.raised() => {}
    }
}
