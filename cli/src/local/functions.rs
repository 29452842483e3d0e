//! The schedules, settings and logs of the functions here. Names, periods and routes come from
//! the table [`FUNCTIONS`].

use super::args::{LocalArgs, LocalAuth, LocalEnv};
use super::binaries::Binaries;
use super::credentials::LocalCredentials;
use super::directory::REGION;
use super::error::LocalError;
use super::wake;
use guard::Signatures;
use guard::sigv4::Issuer;
use lambda_stand_in::{FunctionConfig, LambdaSettings, LogSink, Schedule};
use model::functions::{FUNCTIONS, Function, POLL_AND_SCALE};
use model::time::Span;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// The function that answers paths that end in `route`.
pub(super) fn serving(route: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.routes.contains(&route))
}

/// The scheduled functions and their periods. A minute of the table takes `tick_s` seconds.
fn periods(tick_s: u64) -> Vec<(&'static str, Span)> {
    let tick_s = i64::try_from(tick_s).unwrap_or(60);
    let scaled = |period: Span| Span::from_ms(period.as_ms().saturating_mul(tick_s) / 60);
    FUNCTIONS.iter().filter_map(|function| Some((function.name, scaled(function.period?)))).collect()
}

/// All functions as the stand-in for Lambda runs them.
pub(super) fn settings(
    args: &LocalArgs,
    env: &LocalEnv,
    binaries: &Binaries,
    variables: &BTreeMap<String, String>,
    credentials: &Arc<LocalCredentials>,
    invoke_auth: Signatures,
) -> LambdaSettings {
    let schedule = |(name, period): (&str, Span)| Schedule {
        function: name.to_owned(),
        first_after_ms: 100,
        every_ms: u64::try_from(period.as_ms()).unwrap_or(1),
        payload: serde_json::json!({}),
    };
    let inherited = [("PATH", &env.path), ("HOME", &env.home), ("RUST_LOG", &env.rust_log)];
    LambdaSettings {
        functions: FUNCTIONS.iter().map(|function| function_config(function, binaries, variables)).collect(),
        schedules: periods(args.tick_s()).into_iter().map(schedule).collect(),
        region: REGION.to_owned(),
        inherited_env: inherited.into_iter().filter_map(|(n, v)| Some((n.to_owned(), v.clone()?))).collect(),
        url_auth: (args.node_auth == LocalAuth::Iam).then(|| Arc::clone(credentials) as Arc<dyn Issuer>),
        invoke_auth: Some(invoke_auth),
    }
}

/// As in the template: a scheduled function times out before its next run. A function that answers nodes has several
/// processes. poll-and-scale has two more than its schedule needs: one for a run that waits for its turn, and one for
/// events that find that somebody waits.
fn function_config(function: &Function, binaries: &Binaries, variables: &BTreeMap<String, String>) -> FunctionConfig {
    let answers_nodes = !function.routes.is_empty();
    FunctionConfig {
        name: function.name.to_owned(),
        program: binaries.function(function.name),
        env: variables.clone(),
        timeout_ms: if function.period.is_some() { 55_000 } else { 20_000 },
        memory_mb: if answers_nodes { 256 } else { 512 },
        max_concurrency: match function.name {
            _ if answers_nodes => 4,
            name if name == POLL_AND_SCALE.name => 3,
            _ => 1,
        },
        max_waiting: 1_000,
    }
}

/// Writes the output of each function to its own file.
pub(super) fn log_sink(logs: &Path) -> Result<LogSink, LocalError> {
    let mut files = BTreeMap::new();
    for function in FUNCTIONS {
        let path = logs.join(format!("{}.log", function.name));
        let file = File::create(&path).map_err(LocalError::file("write", path))?;
        files.insert(function.name, Mutex::new(file));
    }
    Ok(Arc::new(move |function, line| {
        if let Some(file) = files.get(function) {
            let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        }
    }))
}

/// Invokes the functions that run at `url` by their schedules.
pub(super) fn wake_elsewhere(args: &LocalArgs, url: &str, tasks: &mut JoinSet<()>) -> Result<(), LocalError> {
    let authority = wake::authority(url).ok_or_else(|| LocalError::FunctionsUrl(url.to_owned()))?;
    for (function, period) in periods(args.tick_s()) {
        tasks.spawn(wake::invoke_by_schedule(authority.to_owned(), function, period));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_of_the_schedules_takes_one_tick() {
        for (name, period) in periods(2) {
            let in_aws = model::functions::named(name).unwrap().period.unwrap();
            assert_eq!(period.as_ms() * 30, in_aws.as_ms(), "{name}");
        }
        assert_eq!(periods(60).len(), FUNCTIONS.iter().filter(|f| f.period.is_some()).count());
    }

    #[test]
    fn every_route_that_agents_call_has_a_function() {
        assert!(["heartbeat", "allocs", "handles"].iter().all(|route| serving(route).is_some()));
        assert_eq!(serving("nothing"), None);
    }
}
