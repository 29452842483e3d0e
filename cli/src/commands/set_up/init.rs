//! `init`: creates the tables at a local or test endpoint.
//!
//! Guarantees: prints the tables that it created. Does not: change an existing table. In AWS the stack creates them.

use crate::console::{Context, show};
use clap::Args;
use model::functions;
use runtime::metrics;
use serde_json::json;
use store::{JOB_EVENT, tables_json};

#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// Print tables, functions, metrics and the fields of a job's event as JSON instead; needs no cluster
    #[arg(long)]
    print_contract: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &InitArgs) -> anyhow::Result<()> {
    if args.print_contract {
        let contract = json!({
            "tables": tables_json(), "functions": functions::to_json(), "metrics": metrics::to_json(),
            "job_event": JOB_EVENT,
        });
        return show::json(context.out, &contract);
    }
    let cluster = context.cluster().await?;
    let made = cluster.dynamo.create_tables().await?;
    for name in &made {
        writeln!(context.out, "{name}")?;
    }
    if made.is_empty() {
        writeln!(context.out, "nothing changed: every table is there")?;
    }
    Ok(())
}
