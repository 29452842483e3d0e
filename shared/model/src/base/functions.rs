//! The table of functions: name, schedule, routes and purpose of each.
//!
//! Guarantees: the signs, `status`, the local stack, the page and the template check all read this
//! table. A new function needs a folder, a block in the template and a row here.
//! Does not: say what a function decides; each function's own crate does.

use crate::Span;
use serde_json::{Value, json};

/// One of the Lambda functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name of the folder, of the binary and of the Lambda function.
    pub name: &'static str,
    /// The time from one scheduled run to the next; `None` for a function that only answers requests or events.
    pub period: Option<Span>,
    /// The last word of each path it answers: `/v1/nodes/{node_id}/{route}`.
    pub routes: &'static [&'static str],
    /// The purpose, in one line.
    pub purpose: &'static str,
}

pub const POLL_AND_SCALE: Function = Function {
    name: "poll-and-scale",
    period: Some(Span::from_s(60)),
    routes: &[],
    purpose: "reads jobs and nodes; launches, places, expires leases, resolves reconnects and shuts down",
};

pub const CLEAN_STALE_RECORDS: Function = Function {
    name: "clean-stale-records",
    period: Some(Span::from_s(300)),
    routes: &[],
    purpose: "cleans node records without a node, terminates orphaned instances",
};

pub const HEARTBEAT_INGEST: Function = Function {
    name: "heartbeat-ingest",
    period: None,
    routes: &["heartbeat", "allocs", "binding"],
    purpose: "takes the nodes' heartbeats and then their alloc reports",
};

pub const SWEEP_DISPATCH: Function = Function {
    name: "sweep-dispatch",
    period: Some(Span::from_s(60)),
    routes: &["handles"],
    purpose: "marks containers and volumes for destruction and tells each node what to destroy",
};

pub const GRANT_CREDENTIALS: Function = Function {
    name: "grant-credentials",
    period: None,
    routes: &["credentials"],
    purpose: "gives a node the credentials of the role of a job that it runs",
};

pub const FUNCTIONS: &[Function] =
    &[POLL_AND_SCALE, CLEAN_STALE_RECORDS, HEARTBEAT_INGEST, SWEEP_DISPATCH, GRANT_CREDENTIALS];

/// The functions that run on a schedule, with their periods.
pub fn scheduled() -> impl Iterator<Item = (&'static Function, Span)> {
    FUNCTIONS.iter().filter_map(|f| Some((f, f.period?)))
}

/// The table as JSON, for the template's check.
pub fn to_json() -> Value {
    let row = |f: &Function| {
        let period_s = f.period.map(|p| p.as_ms() / 1000);
        json!({"name": f.name, "period_s": period_s, "routes": f.routes, "purpose": f.purpose})
    };
    FUNCTIONS.iter().map(row).collect()
}
