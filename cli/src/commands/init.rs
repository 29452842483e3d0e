//! `init`: creates the tables at a local or test endpoint.
//!
//! Guarantees: prints the tables that it created. Does not: change an existing table. In AWS the stack creates them.

use crate::console::show;
use crate::console::{Context, Outcome};
use clap::Args;
use model::functions;
use runtime::metrics;
use serde_json::json;
use store::tables_json;

/// `init`
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// Print tables, functions and metrics as JSON instead; needs no cluster
    #[arg(long)]
    print_contract: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &InitArgs) -> anyhow::Result<Outcome> {
    if args.print_contract {
        let (tables, functions, metrics) = (tables_json(), functions::to_json(), metrics::to_json());
        show::json(context.out, &json!({"tables": tables, "functions": functions, "metrics": metrics}))?;
        return Ok(Outcome::Done);
    }
    let cluster = context.cluster().await?;
    let made = cluster.dynamo.create_tables().await?;
    for name in &made {
        writeln!(context.out, "{name}")?;
    }
    if made.is_empty() {
        writeln!(context.out, "nothing changed: every table is there")?;
    }
    Ok(Outcome::Done)
}
