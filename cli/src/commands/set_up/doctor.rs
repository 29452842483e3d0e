//! `doctor`: what keeps an account from having a cluster, or a cluster from working, each with its cure.
//!
//! Guarantees: it changes nothing. Every question is asked, also if another one has no answer. A question that the person may not ask
//! is one to look at, not a mistake.
//! Does not: judge a cluster in its own way. It prints the signs of `status` last.

use super::network::Network;
use super::policy;
use super::stack::{ClusterStack, Deploying};
use crate::commands::show::status;
use crate::console::aws_cli::{AwsCli, AwsError, list, text};
use crate::console::{Cluster, Context, Exit, show};
use crate::view::present::{COUNTED, Snapshot};
use crate::view::status::{Check, SignLevel, Status};
use clap::Args;
use model::functions::POLL_AND_SCALE;
use model::{Arch, ClusterName, Policy, Time};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// The name of the cluster, which need not be there yet
    #[arg(value_name = "CLUSTER")]
    pub(crate) name: ClusterName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What one question found.
type Checked = anyhow::Result<Vec<Check>>;

pub(crate) async fn run(context: &mut Context<'_>, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster_in_aws().await?;
    let aws = &cluster.reach.aws;
    let checks = match aws.call(&["sts", "get-caller-identity"]).await {
        // Without credentials no other question has an answer.
        Err(error) => vec![wrong("credentials", error.to_string(), "")],
        Ok(who) => {
            let who = well("credentials", format!("{} in {}", text(&who, "/Arn"), aws.region));
            let of_stack = or_why("stack", of_stack(context, &cluster, &args.name).await);
            [vec![who], account(aws).await, of_stack].concat()
        }
    };
    if args.json {
        show::json(context.out, &checks)?;
    } else {
        status::print_checks(context, &checks)?;
    }
    Ok(Exit::done_if(checks.iter().all(|check| check.level != SignLevel::Wrong)))
}

fn well(what: &str, text: impl Into<String>) -> Check {
    Check::new(what, SignLevel::Well, text, "")
}

fn caution(what: &str, text: impl Into<String>, to_do: impl Into<String>) -> Check {
    Check::new(what, SignLevel::Caution, text, to_do)
}

fn wrong(what: &str, text: impl Into<String>, to_do: impl Into<String>) -> Check {
    Check::new(what, SignLevel::Wrong, text, to_do)
}

/// These checks. Without them it is wrong, or not known if the person may not ask.
fn or_why(what: &str, checked: Checked) -> Vec<Check> {
    checked.unwrap_or_else(|error| {
        let (is_denied, why) = (error.downcast_ref().is_some_and(AwsError::is_denied), show::error(&error));
        vec![if is_denied { caution(what, format!("not known: {why}"), "") } else { wrong(what, why, "") }]
    })
}

/// A question about the account that one call answers.
struct Question {
    what: &'static str,
    call: &'static str,
    /// Where the answer has a number that may be too small, as a JSON pointer, and the smallest that a person need not know.
    least: Option<(&'static str, f64)>,
    /// The text about the answer.
    text: &'static str,
    /// The cure of a small number or of an error. Without one, nothing works after an error.
    to_do: &'static str,
}

const QUESTIONS: [Question; 6] = [
    // Newer regions get this service last.
    Question {
        what: "region",
        call: "scheduler list-schedule-groups --max-results 1",
        least: None,
        text: "it has what the stack uses",
        to_do: "",
    },
    // A fleet of a hundred nodes needs about as many.
    Question {
        what: "lambda",
        call: "lambda get-account-settings",
        least: Some(("/AccountLimit/ConcurrentExecutions", 100.0)),
        text: "executions at once",
        to_do: "enough to begin with; before a large fleet ask for 1,000 in Service Quotas (Lambda, Concurrent executions)",
    },
    Question {
        what: "quota",
        call: "service-quotas get-service-quota --service-code ec2 --quota-code L-1216C47A",
        least: Some(("/Quota/Value", 8.0)),
        text: "vCPUs of on-demand instances at once",
        to_do: "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-1216C47A --desired-value 64",
    },
    Question {
        what: "quota",
        call: "service-quotas get-service-quota --service-code ec2 --quota-code L-34B43A08",
        least: Some(("/Quota/Value", 8.0)),
        text: "vCPUs of spot instances at once",
        to_do: "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-34B43A08 --desired-value 64",
    },
    Question {
        what: "spot",
        call: "iam get-role --role-name AWSServiceRoleForEC2Spot",
        least: None,
        text: "the role for spot instances is there",
        to_do: "before the first spot size: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
    },
    // The image of the stack's launch template.
    Question {
        what: "image",
        call: "ssm get-parameter --name /aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        least: None,
        text: "the parameter with the id of the image can be read",
        to_do: "if a rule of the organization denies it to all, name an image: --parameter NodeImage=ami-…",
    },
];

impl Question {
    async fn ask(&self, aws: &AwsCli) -> Check {
        let call: Vec<&str> = self.call.split(' ').collect();
        let answer = match aws.call(&call).await {
            Err(error) if self.to_do.is_empty() => return wrong(self.what, error.to_string(), ""),
            Err(error) => return caution(self.what, format!("not known: {error}"), self.to_do),
            Ok(answer) => answer,
        };
        let number = self.least.and_then(|(at, least)| Some((answer.pointer(at)?.as_f64()?, least)));
        match number {
            Some((number, least)) if number < least => {
                caution(self.what, format!("{number} {}", self.text), self.to_do)
            }
            Some((number, _)) => well(self.what, format!("{number} {}", self.text)),
            None => well(self.what, self.text),
        }
    }
}

/// What the account lacks.
async fn account(aws: &AwsCli) -> Vec<Check> {
    let mut checks = Vec::new();
    for question in &QUESTIONS {
        checks.push(question.ask(aws).await);
    }
    let network = Network::find(aws, &[]).await.map(|network| match network {
        Network::There { vpc, subnets } => {
            let zones: Vec<&str> = subnets.keys().map(String::as_str).collect();
            vec![well("network", format!("the default network {vpc} in {}", zones.join(", ")))]
        }
        Network::OfStack => vec![caution("network", "this region has no default network", "`nodekeeper up` makes one")],
    });
    checks.extend(or_why("network", network));
    checks
}

/// What is wrong with a cluster that exists.
async fn of_stack(context: &Context<'_>, cluster: &Cluster, name: &ClusterName) -> Checked {
    let (aws, now) = (&cluster.reach.aws, context.now());
    let Some(stack) = ClusterStack::read(aws, name).await? else {
        return Ok(vec![caution("stack", "there is none yet", format!("nodekeeper up {name}"))]);
    };
    let state = format!("{name} in the state {}", stack.status);
    let state = ClusterStack::way(Some(&stack), name).map(|way| match way {
        Deploying::Update => vec![well("stack", state)],
        _ => vec![wrong("stack", state, format!("`nodekeeper up {name}` makes it anew"))],
    });
    let mut checks = or_why("stack", state);
    for (what, output) in [("heartbeats", "HeartbeatUrl"), ("sweeps", "SweepUrl"), ("grants", "GrantUrl")] {
        if let Some(url) = stack.output(output) {
            checks.push(url_answers(what, url).await);
        }
    }
    if let Some(topic) = stack.output("AlarmTopic") {
        checks.extend(or_why("alarms", alarms(aws, topic).await));
    }
    checks.extend(or_why("run", dry_run(aws, name).await));
    checks.extend(or_why("policy", of_policy(cluster).await));
    let signs = or_why("status", signs(cluster, now).await);
    checks.extend(signs.into_iter().filter(|sign| sign.level != SignLevel::Well));
    Ok(checks)
}

/// Whether poll-and-scale can work with its own role: it reads the tables and asks EC2, also for a launch of each size, and changes
/// nothing.
async fn dry_run(aws: &AwsCli, cluster: &ClusterName) -> Checked {
    let (name, file) = (format!("{cluster}-{}", POLL_AND_SCALE.name), tempfile::NamedTempFile::new()?);
    std::fs::write(file.path(), r#"{"dry_run": true}"#)?;
    // The answer takes the place of the event.
    let place = file.path().to_string_lossy();
    let event = format!("fileb://{place}");
    let invoked = aws.call(&["lambda", "invoke", "--function-name", &name, "--payload", &event, &place]).await?;
    let answer = std::fs::read_to_string(file.path())?;
    if !text(&invoked, "/FunctionError").is_empty() {
        return Ok(vec![wrong("run", answer, "see its log")]);
    }
    let mut answer: Value = serde_json::from_str(&answer)?;
    let refused = answer.pointer_mut("/refused").map(Value::take).unwrap_or_else(|| Value::Array(Vec::new()));
    let refused: Vec<Check> = serde_json::from_value(refused)?;
    let run = well("run", "poll-and-scale can read the tables and EC2");
    let launch = well("launch", "EC2 would launch a node of each size");
    Ok([vec![run], if refused.is_empty() { vec![launch] } else { refused }].concat())
}

async fn signs(cluster: &Cluster, now: Time) -> Checked {
    let present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), COUNTED, now).await?;
    Ok(Status::of(&cluster.store, &present).await?.checks)
}

/// Whether a URL of nodes answers. It refuses a request that is not signed.
async fn url_answers(what: &str, url: &str) -> Check {
    let answer = async { reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?.get(url).send().await };
    match answer.await.map(|answer| answer.status().as_u16()) {
        Ok(status) if status < 500 => well(what, format!("{url} answers")),
        Ok(status) => wrong(what, format!("{url} answers with {status}"), "see the log of its function"),
        Err(error) => wrong(
            what,
            format!("{url} does not answer: {}", error.without_url()),
            "nodes need a way there: a public address, or a NAT gateway; from here see the network and the proxy",
        ),
    }
}

async fn alarms(aws: &AwsCli, topic: &str) -> Checked {
    let answer = aws.call(&["sns", "list-subscriptions-by-topic", "--topic-arn", topic]).await?;
    let all = list(&answer, "/Subscriptions");
    let endpoint = |one| text(one, "/Endpoint");
    let waiting = all.iter().find(|one| text(one, "/SubscriptionArn") == "PendingConfirmation");
    Ok(vec![match waiting {
        Some(waiting) => caution(
            "alarms",
            format!("{} has not confirmed", endpoint(waiting)),
            "the link is in the first mail of AWS",
        ),
        None if all.is_empty() => caution(
            "alarms",
            "nobody gets them",
            format!("aws sns subscribe --topic-arn {topic} --protocol email --notification-endpoint YOU@EXAMPLE.ORG"),
        ),
        None => well("alarms", format!("to {}", all.iter().map(endpoint).collect::<Vec<_>>().join(", "))),
    }])
}

/// Checks what the policy names: agents, the bucket of outputs, images and subnets.
async fn of_policy(cluster: &Cluster) -> Checked {
    let (aws, control) = (&cluster.reach.aws, cluster.store.control().await?);
    let (stored, _) = control.checked_policy()?;
    let mut checks: Vec<Check> =
        policy::cautions(&stored).into_iter().map(|text| caution("policy", text, "")).collect();
    for file in [&stored.agent.x86_64, &stored.agent.arm64].into_iter().flatten() {
        checks.extend(or_why("agent", agent(aws, file.url()).await));
    }
    if let Some(place) = &stored.output.s3 {
        checks.extend(or_why("output", output(aws, &place.to_string()).await));
    }
    for (template, arch) in images_of(&stored) {
        checks.extend(or_why("image", image(aws, template, arch).await));
    }
    if !stored.launch.subnets.is_empty() {
        checks.extend(or_why("subnets", subnets(aws, &stored.launch.subnets).await));
    }
    Ok(checks)
}

/// Whether the agent is in its bucket, and since when.
async fn agent(aws: &AwsCli, url: &str) -> Checked {
    let place = url.strip_prefix("s3://").and_then(|place| place.split_once('/'));
    let Some((bucket, key)) = place else { return Ok(Vec::new()) };
    match aws.call(&["s3api", "head-object", "--bucket", bucket, "--key", key]).await {
        Err(error) if error.code == "404" => {
            Ok(vec![wrong("agent", format!("{url} is not there: no node starts"), "`nodekeeper up` puts it there")])
        }
        answer => Ok(vec![well("agent", format!("{url} is there since {}", text(&answer?, "/LastModified")))]),
    }
}

/// Whether the bucket of outputs exists.
async fn output(aws: &AwsCli, place: &str) -> Checked {
    let bucket = place.trim_start_matches("s3://").split('/').next().unwrap_or_default();
    Ok(vec![match aws.call(&["s3api", "head-bucket", "--bucket", bucket]).await {
        Err(error) if error.code == "404" => wrong(
            "output",
            format!("the bucket of {place} is not there: jobs can store no output and no file"),
            "correct output.s3 (the output OutputS3 of the stack), or make the bucket",
        ),
        answer => answer.map(|_| well("output", format!("{place} is there")))?,
    }])
}

/// The launch templates of a policy, each with an architecture of its sizes.
fn images_of(policy: &Policy) -> BTreeSet<(&str, Arch)> {
    let several = policy.several.iter().map(|size| (&size.template, size.arch));
    let sizes = policy.size.iter().map(|size| (&size.template, size.kind.arch)).chain(several);
    sizes.filter_map(|(own, arch)| Some((own.as_deref().or(policy.launch.template.as_deref())?, arch))).collect()
}

/// Whether the image of this launch template runs on machines of this architecture.
async fn image(aws: &AwsCli, template: &str, arch: Arch) -> Checked {
    let (name, version) = template.split_once(':').unwrap_or((template, "$Default"));
    let by = if name.starts_with("lt-") { "--launch-template-id" } else { "--launch-template-name" };
    let call = ["ec2", "describe-launch-template-versions", by, name, "--versions", version, "--resolve-alias"];
    let answer = aws.call(&call).await?;
    let id = text(&answer, "/LaunchTemplateVersions/0/LaunchTemplateData/ImageId");
    let answer = aws.call(&["ec2", "describe-images", "--image-ids", id]).await?;
    let says = format!("{id} of the launch template {template} is for {}", text(&answer, "/Images/0/Architecture"));
    let is_right = text(&answer, "/Images/0/Architecture") == arch.as_str();
    let cure = format!("sizes of {arch} need another: give them a launch template of their own, or correct their arch");
    Ok(vec![if is_right { well("image", says) } else { wrong("image", says, cure) }])
}

/// Whether the subnets have a way to the URLs, and in how many zones they are.
async fn subnets(aws: &AwsCli, ids: &[String]) -> Checked {
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let call = ["ec2", "describe-subnets", "--subnet-ids"];
    let answer = aws.call(&[&call[..], &ids].concat()).await?;
    let subnets = list(&answer, "/Subnets");
    let vpcs: BTreeSet<&str> = subnets.iter().map(|subnet| text(subnet, "/VpcId")).collect();
    let filter = format!("Name=vpc-id,Values={}", Vec::from_iter(vpcs).join(","));
    let tables = aws.call(&["ec2", "describe-route-tables", "--filters", &filter]).await?;
    let lacking = subnets.iter().find_map(|subnet| Some((subnet, without_way(subnet, &tables)?)));
    let zones: BTreeSet<&str> = subnets.iter().map(|subnet| text(subnet, "/AvailabilityZone")).collect();
    Ok(vec![match (lacking, zones.len()) {
        (Some((subnet, why)), _) => wrong(
            "subnets",
            format!("{}: {why}", text(subnet, "/SubnetId")),
            "its nodes reach no URL: give it a way out, or take it out of launch.subnets",
        ),
        (None, 0) => wrong("subnets", "EC2 knows none of them", "correct launch.subnets"),
        (None, 1) => caution("subnets", "all are in one zone", "with subnets of other zones EC2 has more to give"),
        (None, _) => well("subnets", format!("in {}, each with a way out", Vec::from_iter(zones).join(", "))),
    }])
}

/// Why nodes of this subnet reach no URL, if they do not.
fn without_way(subnet: &Value, tables: &Value) -> Option<&'static str> {
    let of = |is_it: &dyn Fn(&Value) -> bool| {
        let mut tables = list(tables, "/RouteTables").iter();
        tables.find(|table| table.get("VpcId") == subnet.get("VpcId") && list(table, "/Associations").iter().any(is_it))
    };
    // A subnet without a table of its own has the main one.
    let table = of(&|link| link.get("SubnetId") == subnet.get("SubnetId"));
    let table = table.or_else(|| of(&|link| link.get("Main") == Some(&Value::Bool(true))))?;
    let mut routes = list(table, "/Routes").iter();
    let Some(out) = routes.find(|route| text(route, "/DestinationCidrBlock") == "0.0.0.0/0") else {
        return Some("its route table has no way to the internet");
    };
    if text(out, "/State") == "blackhole" {
        return Some("its way to the internet leads to something that is gone");
    }
    let is_gateway = text(out, "/GatewayId").starts_with("igw-");
    let is_without_address = is_gateway && subnet.get("MapPublicIpOnLaunch") == Some(&Value::Bool(false));
    is_without_address.then_some("its nodes get no public address, and its way out is an internet gateway")
}
