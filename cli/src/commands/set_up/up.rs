//! `up`: makes a cluster in AWS, or brings it to this release, and shows that it works.
//!
//! ```text
//!   the release, the account, the network ──▶ "make it?" ──▶ stack ──▶ agents ──▶ policy ──▶ the first job
//! ```
//!
//! Guarantees: nothing changes before the person agrees. Each step does only what is missing, so the command can be given again
//! after any end, and the error of a step says so. A stored policy changes only in the agents that this command put there, and a
//! file of a policy is never overwritten.
//! Does not: change a parameter of an existing stack, unless the person gives it.

use super::network::Network;
use super::policy;
use super::release::ReleaseFiles;
use super::stack::{ClusterStack, Deploying, delete, deploy};
use crate::commands::batch::arguments;
use crate::commands::submit::named;
use crate::commands::submit::run::{self, RunArgs};
use crate::console::aws_cli::{AwsCli, AwsError, text};
use crate::console::{Cluster, Context, Exit, is_yes};
use anyhow::{Context as _, bail};
use clap::Args;
use model::policy::AgentFile;
use model::{Arch, ClusterName, Policy};
use serde_json::Value;
use std::path::PathBuf;

/// The image of arm64 beside that of x86_64, which the template names.
const IMAGE_OF_ARM64: &str = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64";

/// The policy that a cluster begins with.
const FIRST_POLICY: &str = include_str!("../../../../examples/policies/first.toml");

#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// The name of the cluster, and of its stack
    #[arg(value_name = "CLUSTER")]
    pub(crate) name: ClusterName,
    /// The subnets of the nodes, of one network. By default those of the account's default network, or else the stack makes a network
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    subnets: Vec<String>,
    /// The role of your own launch template's instance profile, as an ARN
    #[arg(long, value_name = "ARN", requires = "launch_template")]
    node_role: Option<String>,
    /// A launch template of your own in place of the stack's, as an ARN
    #[arg(long, value_name = "ARN", requires = "node_role")]
    launch_template: Option<String>,
    /// The architecture of a new cluster's nodes: x86_64 or arm64 [default: x86_64, or arm64 if the release has no other agent]
    #[arg(long)]
    arch: Option<Arch>,
    /// Another parameter of the template; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = named)]
    parameter: Vec<(String, String)>,
    /// The directory of the release. By default that of this program
    #[arg(long, value_name = "DIR")]
    release: Option<PathBuf>,
    /// The file of the first policy. It is written if it is not there
    #[arg(long, value_name = "FILE", default_value = "policy.toml")]
    policy: PathBuf,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &UpArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster_in_aws().await?;
    let aws = &cluster.reach.aws;
    let release = ReleaseFiles::in_directory(args.release.as_deref().unwrap_or(&cluster.reach.release))?;
    let arch = release.node_arch(args.arch)?;
    let account = account(aws).await?;
    let stack = ClusterStack::read(aws, &args.name).await?;
    let way = ClusterStack::way(stack.as_ref(), &args.name)?;
    let network = if way == Deploying::Update { None } else { Some(Network::find(aws, &args.subnets).await?) };
    let nodes = network.as_ref().map(|network| (network, arch));
    announce(context, args, aws, &account, stack.as_ref(), nodes)?;
    if !agrees(context, args, "go on?")? {
        bail!("nothing was done");
    }
    let again = |step: &str| {
        format!("{step} is not done; when that is mended, give the same command again, and it goes on there")
    };
    let bucket = bucket(aws, &account).await.with_context(|| again("the bucket of the release"))?;
    if way == Deploying::DeleteAndCreate {
        writeln!(context.err, "deleting what is left of the failed stack")?;
        delete(context, aws, &args.name).await.with_context(|| again("the deletion of the failed stack"))?;
    }
    writeln!(context.err, "the stack {}", args.name)?;
    let parameters = parameters(args, nodes);
    let deployed = deploy(context, aws, &args.name, (&release.template, &bucket), &parameters).await;
    deployed.with_context(|| again("the stack"))?;
    let stack =
        ClusterStack::read(aws, &args.name).await?.context("CloudFormation does not know the stack that it made")?;
    // With a role of your own the stack makes no bucket for agents.
    let bucket = stack.output("AgentBucket").unwrap_or(&bucket);
    let agents = upload(context, aws, &release, bucket).await.with_context(|| again("the upload of the agents"))?;
    if let Some(role) = &args.node_role {
        writeln!(context.err, "{role} must allow s3:GetObject in the bucket {bucket}, where nodes fetch the agent")?;
    }
    let first = PolicyPlaces { stack: &stack, network: network.as_ref(), arch, agents: &agents, bucket };
    store_policy(context, args, &cluster, &first).await.with_context(|| again("the policy"))
}

/// The number of the account.
pub(super) async fn account(aws: &AwsCli) -> Result<String, AwsError> {
    let answer = aws.call(&["sts", "get-caller-identity"]).await?;
    Ok(text(&answer, "/Account").to_owned())
}

/// Says what will be made, where, and what it costs.
fn announce(
    context: &mut Context<'_>,
    args: &UpArgs,
    aws: &AwsCli,
    account: &str,
    stack: Option<&ClusterStack>,
    nodes: Option<(&Network, Arch)>,
) -> anyhow::Result<()> {
    let (err, version) = (&mut *context.err, env!("CARGO_PKG_VERSION"));
    writeln!(err, "cluster {} in {}, account {account}, release {version}", args.name, aws.region)?;
    let state = stack
        .map_or("is made".to_owned(), |stack| format!("is there ({}) and is brought to this release", stack.status));
    writeln!(err, "  the stack {} {state}: six tables, five functions with their roles, alarms, buckets", args.name)?;
    if let Some((network, arch)) = nodes {
        let place = match network {
            Network::There { vpc, subnets } => {
                let subnets: Vec<String> = subnets.iter().map(|(zone, id)| format!("{id} ({zone})")).collect();
                format!("{vpc}: {}", subnets.join(", "))
            }
            Network::OfStack => {
                "a network that the stack makes, which costs nothing: there is no default one".to_owned()
            }
        };
        writeln!(err, "  nodes of {arch} in {place}")?;
    }
    writeln!(err, "  without work less than 3 dollars a month; nodes cost what EC2 asks, as the policy allows")?;
    Ok(())
}

/// Whether the person agrees, or has with `--yes`.
fn agrees(context: &mut Context<'_>, args: &UpArgs, question: &str) -> anyhow::Result<bool> {
    Ok(args.yes || is_yes(&context.ask(&format!("{question} [y/N]"))?))
}

fn parameters(args: &UpArgs, nodes: Option<(&Network, Arch)>) -> Vec<String> {
    let mut all = vec![format!("ClusterName={}", args.name)];
    // What the person chose comes first.
    let is_given = |name: &str| args.parameter.iter().any(|(given, _)| given == name);
    if let Some((network, arch)) = nodes {
        all.extend(Some(network.parameters()).filter(|_| !is_given("VpcId") && !is_given("MakeNetwork")));
        all.extend((arch == Arch::Arm64 && !is_given("NodeImage")).then(|| format!("NodeImage={IMAGE_OF_ARM64}")));
    }
    all.extend(args.node_role.iter().map(|arn| format!("NodeRoleArn={arn}")));
    all.extend(args.launch_template.iter().map(|arn| format!("LaunchTemplateArns={arn}")));
    all.extend(args.parameter.iter().map(|(name, value)| format!("{name}={value}")));
    all
}

/// The bucket for the files that a stack is made from. All clusters of this account and region share it.
pub(super) async fn bucket(aws: &AwsCli, account: &str) -> Result<String, AwsError> {
    let name = format!("nodekeeper-release-{account}-{}", aws.region);
    let place = format!("LocationConstraint={}", aws.region);
    let create = ["s3api", "create-bucket", "--bucket", &name];
    // us-east-1 is the one region that is not named.
    let at: &[&str] = if aws.region == "us-east-1" { &[] } else { &["--create-bucket-configuration", &place] };
    match aws.call(&[&create[..], at].concat()).await {
        Err(error) if !error.code.starts_with("BucketAlready") => return Err(error),
        _ => {}
    }
    // Anybody could have made a bucket of this name, to get at what is uploaded.
    aws.call(&["s3api", "head-bucket", "--bucket", &name, "--expected-bucket-owner", account]).await?;
    Ok(name)
}

/// Puts the agents into this bucket, by names with their digests: nodes that boot may still fetch an older one.
async fn upload(
    context: &mut Context<'_>,
    aws: &AwsCli,
    release: &ReleaseFiles,
    bucket: &str,
) -> anyhow::Result<Vec<(Arch, AgentFile)>> {
    let mut agents = Vec::new();
    for (arch, file, digest) in &release.agents {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let key = format!("{name}-{}", digest.get(..12).unwrap_or_default());
        let place = format!("s3://{bucket}/{key}");
        // S3 stores an object whole or not at all, so an object that exists is complete.
        if aws.call(&["s3api", "head-object", "--bucket", bucket, "--key", &key]).await.is_err() {
            writeln!(context.err, "the agent for {arch}")?;
            let copy = ["s3", "cp", "--only-show-errors", &file.to_string_lossy(), &place];
            aws.call(&copy).await?;
        }
        agents.push((*arch, AgentFile::new(&place, digest).context("the place of the agent is no URL")?));
    }
    Ok(agents)
}

/// What a policy names.
struct PolicyPlaces<'a> {
    stack: &'a ClusterStack,
    network: Option<&'a Network>,
    arch: Arch,
    agents: &'a [(Arch, AgentFile)],
    bucket: &'a str,
}

async fn store_policy(
    context: &mut Context<'_>,
    args: &UpArgs,
    cluster: &Cluster,
    places: &PolicyPlaces<'_>,
) -> anyhow::Result<Exit> {
    let stored = cluster.store.ingest_control().await?.policy;
    if let Some(before) = stored {
        if args.arch.is_some() {
            writeln!(context.err, "--arch is for a new cluster: the policy says what nodes this one has")?;
        }
        let mut document: Value = serde_json::from_str(&before.document).context("the stored policy is not JSON")?;
        if places.renew_agents(&mut document) && agrees(context, args, "start this agent on new nodes?")? {
            policy::store_over(context, cluster, Some(&before), &document).await?;
        }
        writeln!(context.out, "the cluster {} has this release", args.name)?;
        return Ok(Exit::Done);
    }
    if args.policy.exists() {
        writeln!(context.err, "the policy is {}, which was there", args.policy.display())?;
    } else {
        std::fs::write(&args.policy, places.first_policy(args)?)
            .with_context(|| format!("{} cannot be written", args.policy.display()))?;
        writeln!(context.err, "wrote {}: look at its sizes and limits", args.policy.display())?;
    }
    let document = policy::read(&args.policy)?.to_json();
    let shown = args.policy.display();
    if !agrees(context, args, &format!("store {shown} as the policy?"))? {
        writeln!(context.out, "the cluster is there and has no policy: `nodekeeper policy set {shown}` stores it")?;
        return Ok(Exit::Failed);
    }
    policy::store_over(context, cluster, None, &document).await?;
    policy::ask_and_keep(context, cluster).await?;
    first_job(context, args).await
}

impl PolicyPlaces<'_> {
    /// Names the agents of this release in a policy that has agents of this bucket. Returns whether that changes it.
    fn renew_agents(&self, policy: &mut Value) -> bool {
        let own = format!("s3://{}/nodekeeper-agent-", self.bucket);
        let before = policy.clone();
        for (arch, file) in self.agents {
            let at = format!("/agent/{arch}");
            if text(policy, &at).starts_with(&own)
                && let Some(place) = policy.pointer_mut(&at)
            {
                *place = Value::String(file.to_string());
            }
        }
        before != *policy
    }

    /// The text of the first policy: the example with the values of this account.
    fn first_policy(&self, args: &UpArgs) -> anyhow::Result<String> {
        let subnets: Vec<String> = match self.network {
            Some(Network::There { subnets, .. }) => subnets.values().cloned().collect(),
            _ => self.stack.output("Subnets").into_iter().flat_map(|all| all.split(',')).map(str::to_owned).collect(),
        };
        let template = args.launch_template.as_deref().and_then(|arn| arn.rsplit_once('/')).map(|(_, id)| id);
        let template =
            template.or_else(|| self.stack.output("NodeTemplate")).context("the stack has no NodeTemplate")?;
        let output = self.stack.output("OutputS3").context("the stack has no OutputS3")?;
        let agents: Vec<String> = self.agents.iter().map(|(arch, file)| format!("{arch} = \"{file}\"")).collect();
        let of_line = |line: &str| match line.split_once(" = ").map(|(knob, _)| knob) {
            Some("template") => format!("template = {template:?}"),
            Some("subnets") => format!("subnets = {subnets:?}"),
            Some("x86_64") => agents.join("\n"),
            Some("s3") => format!("s3 = {output:?}"),
            Some("name") if self.arch != Arch::X86_64 => format!("{line}\narch = {:?}", self.arch.as_str()),
            _ => line.to_owned(),
        };
        let text = FIRST_POLICY.lines().map(|line| of_line(line) + "\n").collect::<String>();
        Policy::from_toml(&text).context("the first policy is not usable")?;
        Ok(text)
    }
}

async fn first_job(context: &mut Context<'_>, args: &UpArgs) -> anyhow::Result<Exit> {
    writeln!(context.err, "the first job: nodekeeper run --name hello -- echo hello")?;
    let job: RunArgs = arguments(&["--name", "hello"], &["echo", "hello"].map(str::to_owned))?;
    // Its node boots within minutes, if there is one.
    let ran = tokio::time::timeout(std::time::Duration::from_secs(900), run::run(context, &job)).await;
    if ran.is_err() {
        writeln!(context.err, "it has not ended in 15 minutes, and goes on: `nodekeeper job hello` says why it waits")?;
    }
    let exit = ran.unwrap_or(Ok(Exit::Failed))?;
    let says = match exit {
        Exit::Done => format!("works: `export NODEKEEPER_CLUSTER={}` names it for other commands", args.name),
        _ => format!(
            "is there, and the first job did not succeed: `nodekeeper doctor {}` looks for the reason",
            args.name
        ),
    };
    writeln!(context.err, "the cluster {says}")?;
    Ok(exit)
}
