//! The CloudFormation stack of a cluster: its state, its deployment with progress, and its end.
//!
//! Guarantees: a stack that is not of this cluster is never changed. A failure gives the first reason that CloudFormation gives.
//! Does not: undo anything. CloudFormation rolls back.

use crate::console::aws_cli::{AwsCli, AwsError, cure, list, text};
use crate::console::show::several;
use crate::console::{Context, NoAnswer};
use anyhow::{Context as _, bail};
use model::ClusterName;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// The time between two polls of CloudFormation.
const PERIOD: Duration = Duration::from_secs(4);

/// What CloudFormation says of a resource, and what to do about it. `aws_cli` knows what every service says.
const CURES: [(&str, &str); 2] = [
    (
        "already exists",
        "it is left from an earlier cluster of this name, and may hold data: choose another name, or delete it \
         (docs/operate.md#left)",
    ),
    ("imit", "a quota of the account is used up: ask for more in the console (Service Quotas)"),
];

/// A stack that exists.
#[derive(Debug, Default)]
pub(super) struct ClusterStack {
    pub(super) status: String,
    outputs: Vec<Value>,
}

/// How a stack becomes that of this release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deploying {
    Create,
    /// First deletes what a failed deployment left.
    DeleteAndCreate,
    Update,
}

impl ClusterStack {
    /// The stack of this name, if there is one.
    pub(super) async fn read(aws: &AwsCli, cluster: &ClusterName) -> anyhow::Result<Option<Self>> {
        let name = cluster.as_str();
        let stack = match aws.call(&["cloudformation", "describe-stacks", "--stack-name", name]).await {
            Ok(mut answer) => answer.pointer_mut("/Stacks/0").map(Value::take).unwrap_or_default(),
            Err(AwsError { message, .. }) if message.contains("does not exist") => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let status = text(&stack, "/StackStatus").to_owned();
        let of_cluster = pair(list(&stack, "/Parameters"), "Parameter", "ClusterName");
        if status != "REVIEW_IN_PROGRESS" && of_cluster != Some(name) {
            bail!("there is a stack {name} that is not of a cluster {name}: choose another name");
        }
        Ok(Some(Self { status, outputs: list(&stack, "/Outputs").to_vec() }))
    }

    /// An output of the stack.
    pub(super) fn output(&self, name: &str) -> Option<&str> {
        pair(&self.outputs, "Output", name)
    }

    pub(super) fn way(stack: Option<&Self>, name: &ClusterName) -> anyhow::Result<Deploying> {
        let Some(Self { status, .. }) = stack else { return Ok(Deploying::Create) };
        match status.as_str() {
            // A change set that was never carried out.
            "REVIEW_IN_PROGRESS" => Ok(Deploying::Create),
            "ROLLBACK_COMPLETE" | "ROLLBACK_FAILED" | "CREATE_FAILED" | "DELETE_FAILED" => {
                Ok(Deploying::DeleteAndCreate)
            }
            "UPDATE_ROLLBACK_FAILED" => bail!(
                "the stack {name} is in the state {status}: `aws cloudformation continue-update-rollback --stack-name {name}` \
                 brings it back; then give this command again"
            ),
            busy if busy.ends_with("_IN_PROGRESS") => Err(NoAnswer(format!(
                "another deployment of the stack {name} runs ({status}): give this command again when it has ended"
            ))
            .into()),
            _ => Ok(Deploying::Update),
        }
    }
}

/// The value of a name in a list of CloudFormation.
fn pair<'a>(pairs: &'a [Value], kind: &str, name: &str) -> Option<&'a str> {
    let (key, value) = (format!("/{kind}Key"), format!("/{kind}Value"));
    pairs.iter().find(|one| text(one, &key) == name).map(|one| text(one, &value))
}

/// What happens to the resources of a stack from now on.
struct StackProgress<'a> {
    aws: &'a AwsCli,
    name: &'a str,
    old: BTreeSet<String>,
    ready: usize,
    /// The first reason of a failure.
    failed: Option<String>,
}

impl<'a> StackProgress<'a> {
    async fn since_now(aws: &'a AwsCli, name: &'a str) -> Self {
        let mut events = Self { aws, name, old: BTreeSet::new(), ready: 0, failed: None };
        // Before its first deployment a stack has no events.
        events.news().await.unwrap_or_default();
        Self { ready: 0, failed: None, ..events }
    }

    /// Reads what is new. Returns the names of the resources that became ready or went, or failed.
    async fn news(&mut self) -> Result<Vec<String>, AwsError> {
        let answer = self.aws.call(&["cloudformation", "describe-stack-events", "--stack-name", self.name]).await?;
        let mut names = Vec::new();
        // The newest comes first.
        for event in list(&answer, "/StackEvents").iter().rev() {
            let (status, resource) = (text(event, "/ResourceStatus"), text(event, "/LogicalResourceId"));
            let is_known = !self.old.insert(text(event, "/EventId").to_owned());
            if is_known || text(event, "/ResourceType") == "AWS::CloudFormation::Stack" {
                continue;
            }
            let reason = text(event, "/ResourceStatusReason");
            if status.ends_with("_FAILED") && !reason.contains("cancelled") {
                let own = CURES.iter().find(|(text, _)| reason.contains(text));
                let cure = own.map_or_else(|| cure(reason), |(_, cure)| format!("; {cure}"));
                self.failed.get_or_insert_with(|| format!("{resource}: {reason}{cure}"));
            } else if status.ends_with("_COMPLETE") {
                self.ready += 1;
                names.push(resource.to_owned());
            }
        }
        Ok(names)
    }

    /// Prints what is new until the AWS CLI ends that makes this call.
    async fn follow(mut self, context: &mut Context<'_>, args: &[&str]) -> anyhow::Result<()> {
        let mut command = self.aws.command(args);
        let ended = command.stdin(std::process::Stdio::null()).output();
        tokio::pin!(ended);
        let ended = loop {
            tokio::select! {
                ended = &mut ended => break ended,
                () = tokio::time::sleep(PERIOD) => self.print(context).await?,
            }
        };
        self.print(context).await?;
        let answer = AwsCli::answer(args, ended);
        match (answer, self.failed) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(reason)) => bail!("CloudFormation failed at {reason}"),
            (Err(error), None) => Err(error.into()),
        }
    }

    async fn print(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        // A deleted stack has no events by its name. A call that fails is made again after the next pause.
        let names = self.news().await.unwrap_or_default();
        if let Some(last) = names.last() {
            writeln!(context.err, "  {}, last {last}", several(self.ready, "resource"))?;
        }
        Ok(())
    }
}

/// Creates or updates the stack from a template whose files are in this bucket.
pub(super) async fn deploy(
    context: &mut Context<'_>,
    aws: &AwsCli,
    cluster: &ClusterName,
    (template, bucket): (&std::path::Path, &str),
    parameters: &[String],
) -> anyhow::Result<()> {
    let (name, packaged) = (cluster.as_str(), tempfile::NamedTempFile::new()?);
    let (template, packaged) = (template.to_string_lossy(), packaged.path().to_string_lossy());
    let at = ["--s3-bucket", bucket, "--s3-prefix", name];
    let package = ["cloudformation", "package", "--template-file", &template, "--output-template-file", &packaged];
    aws.call(&[&package[..], &at].concat()).await.context("the functions were not uploaded")?;
    let deploy = ["cloudformation", "deploy", "--stack-name", name, "--template-file", &packaged];
    let more = ["--capabilities", "CAPABILITY_IAM", "--no-fail-on-empty-changeset", "--parameter-overrides"];
    let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
    let args = [&deploy[..], &at, &more, &parameters].concat();
    StackProgress::since_now(aws, name).await.follow(context, &args).await
}

/// Deletes the stack. What it retains stays.
pub(super) async fn delete(context: &mut Context<'_>, aws: &AwsCli, cluster: &ClusterName) -> anyhow::Result<()> {
    let name = cluster.as_str();
    let events = StackProgress::since_now(aws, name).await;
    aws.call(&["cloudformation", "delete-stack", "--stack-name", name]).await?;
    events.follow(context, &["cloudformation", "wait", "stack-delete-complete", "--stack-name", name]).await
}
