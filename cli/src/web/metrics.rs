//! The numbers of the cluster in the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).
//!
//! Guarantees: each metric has its help, its type and, in its name, its unit. Each state of a set is always there, so that a
//! missing number is never taken for zero. If the tables cannot be read, `nodekeeper_up` is 0 and there is no other metric.
//! Does not: read whole tables of jobs or events.

use crate::view::present::Present;
use crate::view::{Live, Views};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use model::control::RunRow;
use model::functions::FUNCTIONS;
use model::time::Time;
use model::{BrakeKind, JobState, NodeStateName, NodeStatus};
use std::fmt::{Display, Write as _};
use std::sync::Arc;

/// The media type of the text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn answer(State(web): State<Arc<Views>>) -> Response {
    let text = match web.live().await {
        Ok(live) => written(&web.source.cluster, Some(&live)),
        Err(error) => {
            tracing::warn!(%error, "the cluster cannot be read");
            written(&web.source.cluster, None)
        }
    };
    ([(header::CONTENT_TYPE, TEXT)], text).into_response()
}

struct Text {
    cluster: String,
    text: String,
}

impl Text {
    /// A gauge with one value for each label.
    fn gauge<L: Display, V: Display>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (L, V)>,
    ) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP nodekeeper_{name} {help}\n# TYPE nodekeeper_{name} gauge");
        for (value_of_label, value) in values {
            let more = match label {
                "" => String::new(),
                _ => format!(",{label}=\"{}\"", escaped(&value_of_label.to_string())),
            };
            let _ = writeln!(self.text, "nodekeeper_{name}{{cluster=\"{}\"{more}}} {value}", escaped(&self.cluster));
        }
    }

    fn one(&mut self, name: &str, help: &str, value: impl Display) {
        self.gauge(name, help, "", [("", value)]);
    }
}

/// Escapes the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

fn seconds(at: Time) -> f64 {
    at.as_ms() as f64 / 1000.0
}

fn written(cluster: &str, live: Option<&Live>) -> String {
    let mut text = Text { cluster: cluster.to_owned(), text: String::new() };
    text.one("up", "Whether the tables can be read.", u8::from(live.is_some()));
    let Some(Live { present, status, .. }) = live else { return text.text };
    text.one("well", "Whether all is well, as `nodekeeper status` says.", u8::from(status.well));
    let wrong = status.checks.iter().filter(|c| c.level == crate::view::status::Level::Wrong).count();
    text.one("checks_wrong", "Checks of `nodekeeper status` that say that an operator must act.", wrong);
    let count = |words: &std::collections::BTreeMap<String, usize>, word: &str| words.get(word).copied().unwrap_or(0);
    // A node in use is counted by its status.
    let states = NodeStateName::ALL.iter().filter(|s| **s != NodeStateName::InUse).map(|s| s.as_str());
    let words = states.chain(NodeStatus::ALL.iter().map(|s| s.as_str()));
    text.gauge(
        "nodes",
        "Node records by status, or by state if the node is not in use. Cleaned ones are free slots.",
        "state",
        words.map(|word| (word, count(&status.nodes, word))),
    );
    let live_states = JobState::ALL.iter().filter(|s| !s.is_ended()).map(|s| s.as_str());
    text.gauge(
        "jobs",
        "Jobs that have not ended, by state. Of the waiting ones, at most 2,000 are counted.",
        "state",
        live_states.map(|word| (word, count(&status.jobs, word))),
    );
    let oldest = present.jobs.iter().filter(|j| j.state == JobState::Queued).map(|j| j.submitted_at).min();
    let age = oldest.map_or(0.0, |at| present.now.since(at).as_s().max(0.0));
    text.one(
        "oldest_queued_job_age_seconds",
        "How long the oldest of the first 2,000 queued jobs has waited since its submission.",
        age,
    );
    let allocs: usize = present.nodes.iter().filter_map(|n| Some(n.life()?.allocs.len())).sum();
    text.one("allocs", "Live allocs on nodes.", allocs);
    let price = f64::from(status.price_per_hour);
    text.one("price_dollars_per_hour", "What the nodes cost in an hour, by the list prices of the policy.", price);
    let limits: Vec<_> = present.control.limits(present.now).iter().map(|l| (l.key().to_string(), 1)).collect();
    text.gauge(
        "limit",
        "Limits that keep launches from being made. A limit that does not hold has no line.",
        "limit",
        limits,
    );
    let brakes = BrakeKind::ALL
        .iter()
        .map(|kind| (kind.as_str(), u8::from(present.control.brake(*kind).holds_back(present.now))));
    text.gauge("brake_holds", "Whether a brake holds something back.", "kind", brakes);
    functions(&mut text, present);
    text.text
}

fn functions(text: &mut Text, present: &Present) {
    let runs = || FUNCTIONS.iter().filter_map(|f| Some((f.name, present.control.runs.get(f.name)?)));
    let mut each = |name: &str, help: &str, value: fn(&RunRow) -> Option<f64>| {
        let values = runs().filter_map(|(function, run)| Some((function, value(run)?)));
        text.gauge(&format!("function_{name}"), help, "function", values);
    };
    let help = "When the last successful run of a function began.";
    each("last_success_timestamp_seconds", help, |run| run.last_success_at.map(seconds));
    let help = "When the last run of a function began.";
    each("last_run_timestamp_seconds", help, |run| Some(seconds(run.started_at)));
    let help = "How long the last run of a function took.";
    each("last_run_duration_seconds", help, |run| Some(run.duration_ms as f64 / 1000.0));
    let help = "Whether the last run of a function failed.";
    each("failing", help, |run| Some(f64::from(run.error.is_some())));
}
