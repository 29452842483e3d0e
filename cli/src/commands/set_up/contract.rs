//! `contract`: what the template of the stack is checked against.
//!
//! Does not: ask a cluster.

use crate::console::{Context, show};
use model::functions;
use runtime::metrics;
use serde_json::json;
use store::{JOB_EVENT, tables_json};

pub(crate) fn print(context: &mut Context<'_>) -> anyhow::Result<()> {
    let contract = json!({
        "tables": tables_json(), "functions": functions::to_json(), "metrics": metrics::to_json(),
        "job_event": JOB_EVENT,
    });
    show::json(context.out, &contract)
}
