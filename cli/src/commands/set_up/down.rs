//! `down`: `teardown`, and then the stack.
//!
//! Guarantees: the stack and the data go only after EC2 listed no instance of the cluster, whether there is a stack or not. A cluster
//! that is not in this region is an error. The command can be stopped and given again.
//! Does not: delete the tables and the outputs of jobs, which outlive the stack, unless `--delete-data` is given.

use super::stack::{ClusterStack, delete};
use super::teardown::{self, TeardownArgs};
use super::up;
use crate::console::aws_cli::{AwsError, text};
use crate::console::show::several;
use crate::console::{Cluster, Context, Exit, UsageError};
use anyhow::bail;
use clap::Args;
use model::{Instance, InstanceState};
use serde_json::Value;
use store::{TABLES, Table};

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
    let stack = ClusterStack::read(aws, name).await?;
    let exit = end_nodes(context, &cluster, &args.teardown, stack.is_some()).await?;
    if exit != Exit::Done {
        return Ok(exit);
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

/// Ends the instances of the cluster, with its stack or without.
async fn end_nodes(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &TeardownArgs,
    has_stack: bool,
) -> anyhow::Result<Exit> {
    let (name, up) = (&args.confirm, up(cluster).await?);
    if !has_tables(cluster).await? {
        if !up.is_empty() {
            let ids = up.join(" ");
            let end = format!("`aws ec2 terminate-instances --instance-ids {ids}` ends them");
            bail!("the tables of {name} are gone and instances run: {end}");
        }
        if !has_stack {
            let region = &cluster.reach.aws.region;
            let why = format!("there is no cluster {name} in {region}: no stack, no tables and no instances");
            bail!(UsageError(why));
        }
        // An earlier `down` was stopped after it had deleted them.
        return Ok(Exit::Done);
    }
    if !has_stack && !args.terminate && !up.is_empty() {
        let instances = several(up.len(), "instance");
        bail!("the stack of {name} is gone, so no function shuts its {instances} down: give --terminate");
    }
    // Without a stack, no function ends the records.
    let terminate = args.terminate || !has_stack;
    teardown::run(context, &TeardownArgs { terminate, ..args.clone() }).await
}

async fn has_tables(cluster: &Cluster) -> anyhow::Result<bool> {
    let nodes = format!("{}-{}", cluster.dynamo.cluster, Table::Nodes.suffix());
    match cluster.reach.aws.call(&["dynamodb", "describe-table", "--table-name", &nodes]).await {
        Ok(answer) => Ok(text(&answer, "/Table/TableStatus") != "DELETING"),
        Err(error) if error.code == "ResourceNotFoundException" => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The ids of the instances that nobody ends yet.
async fn up(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let instances = cluster.cloud.instances().await?.into_iter();
    let is_up = |i: &Instance| !matches!(i.state, InstanceState::ShuttingDown | InstanceState::Terminated);
    Ok(instances.filter(is_up).map(|instance| instance.instance_id).collect())
}

/// An earlier `down` may have been stopped after it.
fn unless_gone(answer: Result<Value, AwsError>) -> Result<(), AwsError> {
    let gone = ["NoSuchBucket", "ResourceNotFoundException", "bucket does not exist"];
    match answer {
        Err(error) if !gone.iter().any(|text| error.code == *text || error.message.contains(text)) => Err(error),
        _ => Ok(()),
    }
}
