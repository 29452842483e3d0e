//! `down`: `teardown`, and then the stack.
//!
//! Guarantees: the stack goes only after EC2 listed no instance of the cluster. The command can be stopped and given again.
//! Does not: delete the tables and the outputs of jobs, which outlive the stack, unless `--delete-data` is given.

use super::stack::{ClusterStack, delete};
use super::teardown::{self, TeardownArgs};
use super::up;
use crate::console::aws_cli::AwsError;
use crate::console::{Context, Exit};
use clap::Args;
use serde_json::Value;
use store::TABLES;

#[derive(Args, Clone, Debug)]
pub struct DownArgs {
    #[command(flatten)]
    pub(crate) teardown: TeardownArgs,
    /// Delete the tables and the outputs of jobs too
    #[arg(long)]
    delete_data: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &DownArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster_in_aws().await?;
    let (aws, name) = (&cluster.reach.aws, &args.teardown.confirm);
    // Without tables there is no node to end: an earlier `down` was stopped after it had deleted them.
    let stack = ClusterStack::read(aws, name).await?;
    if stack.is_some() {
        let exit = teardown::run(context, &args.teardown).await?;
        if exit != Exit::Done {
            return Ok(exit);
        }
    }
    let account = up::account(aws).await?;
    let output =
        |name: &str| stack.as_ref().and_then(|stack| stack.output(name)).map(|place| place.trim_start_matches("s3://"));
    // CloudFormation deletes no bucket that has something.
    let agents = output("AgentBucket").map(|bucket| format!("s3://{bucket}"));
    let files = format!("s3://nodekeeper-release-{account}-{}/{name}/", aws.region);
    for place in agents.into_iter().chain([files]) {
        unless_gone(aws.call(&["s3", "rm", "--recursive", "--only-show-errors", &place]).await)?;
    }
    let tables: Vec<String> = TABLES.iter().map(|table| format!("{name}-{}", table.table.suffix())).collect();
    let outputs = output("OutputS3").filter(|place| !place.contains('/'));
    if args.delete_data {
        // Before the stack, which knows the bucket.
        for table in &tables {
            unless_gone(aws.call(&["dynamodb", "delete-table", "--table-name", table]).await)?;
        }
        if let Some(bucket) = outputs {
            unless_gone(aws.call(&["s3", "rb", "--force", &format!("s3://{bucket}")]).await)?;
        }
    }
    if stack.is_some() {
        writeln!(context.err, "deleting the stack {name}")?;
        delete(context, aws, name).await?;
    }
    if args.delete_data {
        writeln!(context.out, "nothing of the cluster {name} is left but its logs")?;
        return Ok(Exit::Done);
    }
    let bucket = outputs.map(|bucket| format!(", and the bucket {bucket}, which empties itself in 30 days"));
    writeln!(
        context.out,
        "the stack is gone; what stays are the tables {}{}",
        tables.join(", "),
        bucket.unwrap_or_default()
    )?;
    Ok(Exit::Done)
}

/// An earlier `down` may have been stopped after it.
fn unless_gone(answer: Result<Value, AwsError>) -> Result<(), AwsError> {
    let gone = ["NoSuchBucket", "ResourceNotFoundException", "bucket does not exist"];
    match answer {
        Err(error) if !gone.iter().any(|text| error.code == *text || error.message.contains(text)) => Err(error),
        _ => Ok(()),
    }
}
