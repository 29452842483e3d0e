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
use crate::console::{Cluster, Context, Exit, UsageError, show};
use crate::view::present::{COUNTED, Snapshot};
use crate::view::status::{Check, SignLevel, Status};
use clap::Args;
use model::functions::POLL_AND_SCALE;
use model::{ClusterName, Policy, Span, Time};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// AWS refuses signatures of a clock that differs by five minutes.
const CLOCK: Span = Span::from_s(60);

#[derive(Args, Clone, Debug)]
pub struct DoctorArgs {
    /// The name of the cluster, which need not be there yet
    #[arg(value_name = "CLUSTER")]
    pub(crate) name: ClusterName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    if cluster.reach.local.is_some() {
        let why = "this is a cluster of `nodekeeper local`: `nodekeeper status` says whether it is well";
        return Err(UsageError(why.into()).into());
    }
    let aws = &cluster.reach.aws;
    let mut checks = account(aws).await;
    // Without credentials no other question has an answer.
    if checks.iter().all(|check| check.what != "credentials" || check.level == SignLevel::Well) {
        match ClusterStack::read(aws, &args.name).await {
            Ok(Some(stack)) => checks.extend(of_cluster(context, &cluster, &stack, args).await),
            Ok(None) => checks.push(caution("stack", "there is none yet", &format!("nodekeeper up {}", args.name))),
            Err(error) => checks.push(wrong("stack", &show::error(&error), "")),
        }
    }
    if args.json {
        show::json(context.out, &checks)?;
    } else {
        status::print_checks(context, &checks)?;
    }
    Ok(Exit::done_if(checks.iter().all(|check| check.level != SignLevel::Wrong)))
}

fn check(level: SignLevel, what: &str, text: &str, to_do: &str) -> Check {
    Check { what: what.to_owned(), level, text: text.to_owned(), to_do: to_do.to_owned() }
}

fn well(what: &str, text: &str) -> Check {
    check(SignLevel::Well, what, text, "")
}

fn caution(what: &str, text: &str, to_do: &str) -> Check {
    check(SignLevel::Caution, what, text, to_do)
}

fn wrong(what: &str, text: &str, to_do: &str) -> Check {
    check(SignLevel::Wrong, what, text, to_do)
}

/// What this makes of an answer. Without an answer it is wrong, or not known if the person may not ask.
fn answered(what: &str, answer: Result<Value, AwsError>, judge: impl FnOnce(Value) -> Check) -> Check {
    match answer {
        Ok(answer) => judge(answer),
        Err(error) if error.is_denied() => caution(what, &format!("not known: {error}"), ""),
        Err(error) => wrong(what, &error.to_string(), ""),
    }
}

/// A question about the account that one call answers.
struct Question {
    what: &'static str,
    call: &'static str,
    /// Where the answer has the value, as a JSON pointer.
    value: &'static str,
    /// The value may be smaller, and a person should know it.
    least: f64,
    /// What is said of the value.
    text: &'static str,
    /// The code of the error that says that there is none.
    missing: &'static str,
    to_do: &'static str,
}

const PLAIN: Question = Question { what: "", call: "", value: "", least: 0.0, text: "", missing: "", to_do: "" };

const QUESTIONS: [Question; 6] = [
    // Newer regions get this service last.
    Question {
        what: "region",
        call: "scheduler list-schedule-groups --max-results 1",
        text: "it has what the stack uses",
        ..PLAIN
    },
    // A fleet of a hundred nodes needs about as many.
    Question {
        what: "lambda",
        call: "lambda get-account-settings",
        value: "/AccountLimit/ConcurrentExecutions",
        least: 100.0,
        text: "executions at once",
        to_do: "enough to begin with; before a large fleet ask for 1,000 in Service Quotas (Lambda, Concurrent executions)",
        ..PLAIN
    },
    Question {
        what: "quota",
        call: "service-quotas get-service-quota --service-code ec2 --quota-code L-1216C47A",
        value: "/Quota/Value",
        least: 8.0,
        text: "vCPUs of on-demand instances at once",
        to_do: "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-1216C47A --desired-value 64",
        ..PLAIN
    },
    Question {
        what: "quota",
        call: "service-quotas get-service-quota --service-code ec2 --quota-code L-34B43A08",
        value: "/Quota/Value",
        least: 8.0,
        text: "vCPUs of spot instances at once",
        to_do: "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-34B43A08 --desired-value 64",
        ..PLAIN
    },
    Question {
        what: "spot",
        call: "iam get-role --role-name AWSServiceRoleForEC2Spot",
        text: "the role for spot instances",
        missing: "NoSuchEntity",
        to_do: "before the first spot size: aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ..PLAIN
    },
    // The image of the stack's launch template.
    Question {
        what: "image",
        call: "ssm get-parameter --name /aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        text: "the parameter with the id of the image can be read",
        to_do: "if a rule of the organization denies it to all, name an image: --parameter NodeImage=ami-…",
        ..PLAIN
    },
];

impl Question {
    async fn ask(&self, aws: &AwsCli) -> Check {
        let call: Vec<&str> = self.call.split(' ').collect();
        match aws.call(&call).await {
            Err(error) if !self.missing.is_empty() && error.code == self.missing => {
                caution(self.what, &format!("missing: {}", self.text), self.to_do)
            }
            // Nothing works without it.
            Err(error) if self.to_do.is_empty() => wrong(self.what, &error.to_string(), ""),
            Err(error) => caution(self.what, &format!("not known: {error}"), self.to_do),
            Ok(answer) => {
                let value = answer.pointer(self.value).and_then(Value::as_f64);
                let shown = value.map_or_else(|| self.text.to_owned(), |value| format!("{value} {}", self.text));
                let is_enough = value.is_none_or(|value| value >= self.least);
                if is_enough { well(self.what, &shown) } else { caution(self.what, &shown, self.to_do) }
            }
        }
    }
}

/// What the account lacks.
async fn account(aws: &AwsCli) -> Vec<Check> {
    let who = aws.call(&["sts", "get-caller-identity"]).await;
    let mut checks = vec![match who {
        Ok(who) => well("credentials", &format!("{} in {}", text(&who, "/Arn"), aws.region)),
        Err(error) => return vec![wrong("credentials", &error.to_string(), "")],
    }];
    for question in &QUESTIONS {
        checks.push(question.ask(aws).await);
    }
    checks.push(match Network::find(aws, &[]).await {
        Ok(Network::There { vpc, subnets }) => {
            let zones: Vec<&str> = subnets.keys().map(String::as_str).collect();
            well("network", &format!("the default network {vpc} in {}", zones.join(", ")))
        }
        Ok(Network::OfStack) => caution("network", "this region has no default network", "`nodekeeper up` makes one"),
        Err(error) => wrong("network", &show::error(&error), ""),
    });
    checks
}

/// What is wrong with a cluster that is there.
async fn of_cluster(context: &Context<'_>, cluster: &Cluster, stack: &ClusterStack, args: &DoctorArgs) -> Vec<Check> {
    let (aws, now) = (&cluster.reach.aws, context.now());
    let state = format!("{} in the state {}", args.name, stack.status);
    let mut checks = vec![match ClusterStack::way(Some(stack), &args.name) {
        Ok(Deploying::Update) => well("stack", &state),
        Ok(_) => wrong("stack", &state, &format!("`nodekeeper up {}` makes it anew", args.name)),
        Err(error) => wrong("stack", &show::error(&error), ""),
    }];
    for (what, output) in [("heartbeats", "HeartbeatUrl"), ("sweeps", "SweepUrl"), ("grants", "GrantUrl")] {
        if let Some(url) = stack.output(output) {
            checks.extend(url_answers(what, url, now).await);
        }
    }
    if let Some(topic) = stack.output("AlarmTopic") {
        let answer = aws.call(&["sns", "list-subscriptions-by-topic", "--topic-arn", topic]).await;
        checks.push(answered("alarms", answer, |answer| alarms(&answer, topic)));
    }
    checks.push(dry_run(aws, &args.name).await);
    match cluster.store.control().await {
        Ok(control) => match control.checked_policy() {
            Ok((policy, _)) => checks.extend(of_policy(aws, &policy, now).await),
            Err(error) => checks.push(wrong("policy", &error.to_string(), "`nodekeeper policy set` stores one")),
        },
        Err(error) => return checks.into_iter().chain([wrong("tables", &error.to_string(), "")]).collect(),
    }
    match signs(cluster, now).await {
        Ok(signs) => checks.extend(signs.into_iter().filter(|sign| sign.level != SignLevel::Well)),
        Err(error) => checks.push(wrong("status", &show::error(&error), "")),
    }
    checks
}

/// Whether a run of poll-and-scale, which changes nothing, succeeds with its own role: it reads the tables and asks EC2.
async fn dry_run(aws: &AwsCli, cluster: &ClusterName) -> Check {
    let name = format!("{cluster}-{}", POLL_AND_SCALE.name);
    let files = tempfile::NamedTempFile::new().and_then(|answer| Ok((answer, tempfile::NamedTempFile::new()?)));
    let Ok((answer, event)) = files else { return caution("run", "there is no place for a temporary file", "") };
    let event_file = format!("fileb://{}", event.path().display());
    let place = answer.path().to_string_lossy();
    let written = std::fs::write(event.path(), r#"{"dry_run": true}"#);
    let call = ["lambda", "invoke", "--function-name", &name, "--payload", &event_file, &place];
    let invoked = match written {
        Ok(()) => aws.call(&call).await,
        Err(error) => return caution("run", &error.to_string(), ""),
    };
    answered("run", invoked, |invoked| match text(&invoked, "/FunctionError") {
        "" => well("run", "poll-and-scale can read the tables and EC2"),
        _ => wrong("run", &std::fs::read_to_string(answer.path()).unwrap_or_default(), "see its log"),
    })
}

async fn signs(cluster: &Cluster, now: Time) -> anyhow::Result<Vec<Check>> {
    let present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), COUNTED, now).await?;
    Ok(Status::of(&cluster.store, &present).await?.checks)
}

/// A time as HTTP has it, and version 1 of the AWS CLI, or as version 2 has it.
fn time_of(text: &str) -> Option<Time> {
    let http = jiff::fmt::rfc2822::parse(text).map(|at| at.timestamp());
    http.or_else(|_| text.parse()).ok().map(|at: jiff::Timestamp| Time::from_ms(at.as_millisecond()))
}

/// Whether a URL of nodes answers, and whether the clock of this machine agrees with its own. It refuses a request that is not signed.
async fn url_answers(what: &str, url: &str, now: Time) -> Vec<Check> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build();
    let answer = match client {
        Ok(client) => client.get(url).send().await,
        Err(error) => Err(error),
    };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let cure =
                "nodes need a way there: a public address, or a NAT gateway; from here see the network and the proxy";
            return vec![wrong(what, &format!("{url} does not answer: {}", error.without_url()), cure)];
        }
    };
    let status = answer.status().as_u16();
    let mut checks = vec![if status < 500 {
        well(what, &format!("{url} answers"))
    } else {
        wrong(what, &format!("{url} answers with {status}"), "see the log of its function")
    }];
    let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
    if let Some(there) = date.and_then(time_of) {
        let off = if there > now { there.since(now) } else { now.since(there) };
        if off > CLOCK {
            checks.push(wrong(
                "clock",
                &format!("the clock of this machine is off by {off}"),
                "set it: AWS refuses signatures of a wrong time",
            ));
        }
    }
    checks
}

fn alarms(answer: &Value, topic: &str) -> Check {
    let all = list(answer, "/Subscriptions");
    let endpoint = |one| text(one, "/Endpoint");
    if let Some(waiting) = all.iter().find(|one| text(one, "/SubscriptionArn") == "PendingConfirmation") {
        let says = format!("{} has not confirmed", endpoint(waiting));
        return caution("alarms", &says, "the link is in the first mail of AWS");
    }
    if all.is_empty() {
        let cure =
            format!("aws sns subscribe --topic-arn {topic} --protocol email --notification-endpoint YOU@EXAMPLE.ORG");
        return caution("alarms", "nobody gets them", &cure);
    }
    well("alarms", &format!("to {}", all.iter().map(endpoint).collect::<Vec<_>>().join(", ")))
}

/// What is wrong with the places that a policy names.
async fn of_policy(aws: &AwsCli, stored: &Policy, now: Time) -> Vec<Check> {
    let mut checks = Vec::new();
    for file in [&stored.agent.x86_64, &stored.agent.arm64].into_iter().flatten() {
        let Some((bucket, key)) = file.url().strip_prefix("s3://").and_then(|place| place.split_once('/')) else {
            continue;
        };
        let answer = aws.call(&["s3api", "head-object", "--bucket", bucket, "--key", key]).await;
        checks.push(match answer {
            Err(error) if error.code == "404" => {
                wrong("agent", &format!("{} is not there: no node starts", file.url()), "`nodekeeper up` puts it there")
            }
            answer => answered("agent", answer, |answer| {
                let age = now.since(time_of(text(&answer, "/LastModified")).unwrap_or(now));
                well("agent", &format!("{} was put there {age} ago", file.url()))
            }),
        });
    }
    checks.extend(policy::cautions(stored).into_iter().map(|text| caution("policy", text, "")));
    if !stored.launch.subnets.is_empty() {
        checks.push(
            subnets(aws, &stored.launch.subnets)
                .await
                .unwrap_or_else(|error| answered("subnets", Err(error), |_| well("subnets", ""))),
        );
    }
    checks
}

/// Whether the subnets have a way to the URLs, and in how many zones they are.
async fn subnets(aws: &AwsCli, ids: &[String]) -> Result<Check, AwsError> {
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let call = ["ec2", "describe-subnets", "--subnet-ids"];
    let answer = aws.call(&[&call[..], &ids].concat()).await?;
    let subnets = list(&answer, "/Subnets");
    let vpcs: BTreeSet<&str> = subnets.iter().map(|subnet| text(subnet, "/VpcId")).collect();
    let filter = format!("Name=vpc-id,Values={}", Vec::from_iter(vpcs).join(","));
    let tables = aws.call(&["ec2", "describe-route-tables", "--filters", &filter]).await?;
    for subnet in subnets {
        if let Some(why) = without_way(subnet, &tables) {
            let says = format!("{}: {why}", text(subnet, "/SubnetId"));
            let cure = "its nodes reach no URL: give it a way out, or take it out of launch.subnets";
            return Ok(wrong("subnets", &says, cure));
        }
    }
    let zones: BTreeSet<&str> = subnets.iter().map(|subnet| text(subnet, "/AvailabilityZone")).collect();
    Ok(match zones.len() {
        0 => wrong("subnets", "EC2 knows none of them", "correct launch.subnets"),
        1 => caution("subnets", "all are in one zone", "with subnets of other zones EC2 has more to give"),
        _ => well("subnets", &format!("in {}, each with a way out", Vec::from_iter(zones).join(", "))),
    })
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
