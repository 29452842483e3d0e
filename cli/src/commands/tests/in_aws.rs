//! `up`, `down` and `doctor` with an AWS CLI that answers what a test says.

use super::*;
use crate::console::{AwsCli, ErrorKind};
use model::{Arch, Policy};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Answers with the file of its first two arguments, and fails with the file of the same name and `.err`. A file that ends in
/// `.once` counts once. It notes each call. A function answers into the file that its call names.
const AWS: &str = r#"#!/bin/sh
cd "$(dirname "$0")/answers" || exit 9
echo "$*" >>../calls
if [ "$2" = invoke ]; then cp function-answer "$7"; fi
for name in "$1-$2.once" "$1-$2"; do
  if [ -e "$name.err" ]; then cat "$name.err" >&2; case "$name" in *.once) rm "$name.err" ;; esac; exit 254; fi
  if [ -e "$name" ]; then cat "$name"; case "$name" in *.once) rm "$name" ;; esac; exit 0; fi
done
"#;

const CREATED: &str = r#"{"Stacks": [{"StackStatus": "CREATE_COMPLETE",
  "Parameters": [{"ParameterKey": "ClusterName", "ParameterValue": "test"}],
  "Outputs": [{"OutputKey": "AgentBucket", "OutputValue": "test-agents"}, {"OutputKey": "NodeTemplate", "OutputValue": "test-node"},
    {"OutputKey": "OutputS3", "OutputValue": "s3://test-outputs"}, {"OutputKey": "Subnets", "OutputValue": "subnet-0d,subnet-0e"},
    {"OutputKey": "AlarmTopic", "OutputValue": "arn:topic"}]}]}"#;

const SUBNETS: &str = r#"{"Subnets": [
  {"SubnetId": "subnet-0a", "VpcId": "vpc-1", "AvailabilityZone": "eu-1a", "AvailableIpAddressCount": 10, "MapPublicIpOnLaunch": true},
  {"SubnetId": "subnet-0b", "VpcId": "vpc-1", "AvailabilityZone": "eu-1b", "AvailableIpAddressCount": 10, "MapPublicIpOnLaunch": true},
  {"SubnetId": "subnet-0c", "VpcId": "vpc-1", "AvailabilityZone": "eu-1b", "AvailableIpAddressCount": 20, "MapPublicIpOnLaunch": true}]}"#;

const ROUTES: &str = r#"{"RouteTables": [{"VpcId": "vpc-1", "Associations": [{"Main": true}],
  "Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}]}]}"#;

const NO_STACK: &str =
    "An error occurred (ValidationError) when calling the DescribeStacks operation: Stack with id test does not exist";

/// The answers of an account in which everything works.
const ACCOUNT: &[(&str, &str)] = &[
    ("sts-get-caller-identity", r#"{"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/ann"}"#),
    ("cloudformation-describe-stacks", CREATED),
    ("ec2-describe-subnets", SUBNETS),
    ("ec2-describe-route-tables", ROUTES),
    ("lambda-get-account-settings", r#"{"AccountLimit": {"ConcurrentExecutions": 1000}}"#),
    ("service-quotas-get-service-quota", r#"{"Quota": {"Value": 64.0}}"#),
    (
        "sns-list-subscriptions-by-topic",
        r#"{"Subscriptions": [{"SubscriptionArn": "arn:1", "Endpoint": "ann@example.org"}]}"#,
    ),
    ("s3api-head-object", r#"{"LastModified": "1970-01-01T00:00:00+00:00"}"#),
    ("ssm-get-parameter", r#"{"Parameter": {"Value": "ami-1"}}"#),
    (
        "ec2-describe-launch-template-versions",
        r#"{"LaunchTemplateVersions": [{"LaunchTemplateData": {"ImageId": "ami-1"}}]}"#,
    ),
    ("ec2-describe-images", r#"{"Images": [{"Architecture": "x86_64"}]}"#),
    ("function-answer", r#"{"actions": []}"#),
];

struct Account {
    dir: TempDir,
    world: World,
}

impl Account {
    /// Without a stack the first look at it finds none.
    async fn new(has_stack: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("answers")).unwrap();
        for (name, text) in
            [("aws", AWS), ("template-aarch64.yaml", "Resources: {}"), ("nodekeeper-agent-x86_64", "agent")]
        {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        std::fs::set_permissions(dir.path().join("aws"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut world = World::new().await;
        world.cluster.reach.aws = AwsCli { program: dir.path().join("aws"), region: "eu-1".into() };
        world.cluster.reach.release = dir.path().to_owned();
        let account = Self { dir, world };
        ACCOUNT.iter().for_each(|(name, text)| account.answers(name, text));
        if !has_stack {
            account.answers("cloudformation-describe-stacks.once.err", NO_STACK);
        }
        account
    }

    fn answers(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join("answers").join(name), text).unwrap();
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default()
    }

    fn policy(&self) -> String {
        self.dir.path().join("policy.toml").to_str().unwrap().to_owned()
    }

    /// `up` with these answers of the person.
    async fn up(&self, answers: &str, more: &[&str]) -> Said {
        let policy = self.policy();
        let line = [&["up", "test", "--policy", &policy][..], more].concat();
        let said = self.world.run_with(&line, answers);
        // The first job waits for a machine, which nobody launches: the row of its end is written here.
        let ends = async {
            loop {
                for job in self.world.store().queue_listed(10).await.unwrap().jobs {
                    self.world.run(&["cancel", &job.job_id.to_string()]).await.done();
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        tokio::select! { said = said => said, () = ends => unreachable!() }
    }
}

#[tokio::test]
async fn up_makes_a_cluster_with_a_policy_of_what_is_there_and_a_second_one_changes_nothing() {
    let mut account = Account::new(false).await;
    let said = account.up("y\ny\n", &[]).await;
    assert!(said.err.contains("nodes of x86_64 in vpc-1: subnet-0a (eu-1a), subnet-0c (eu-1b)"), "{}", said.err);
    assert!(said.err.contains("the first job: nodekeeper run --name hello -- echo hello"), "{}", said.err);
    assert!(said.err.contains("did not succeed: `nodekeeper doctor test`"), "{}", said.err);
    let calls = account.calls();
    for call in [
        "s3api create-bucket --bucket nodekeeper-release-123456789012-eu-1 --create-bucket-configuration LocationConstraint=eu-1",
        "s3api head-bucket --bucket nodekeeper-release-123456789012-eu-1 --expected-bucket-owner 123456789012",
        "--parameter-overrides ClusterName=test VpcId=vpc-1 --region eu-1",
    ] {
        assert!(calls.contains(call), "{call}: {calls}");
    }
    // The agent was there by the name with its digest.
    assert!(!calls.contains("s3 cp"), "{calls}");
    let policy = std::fs::read_to_string(account.policy()).unwrap();
    for line in [
        r#"template = "test-node""#,
        r#"subnets = ["subnet-0a", "subnet-0c"]"#,
        r#"x86_64 = "s3://test-agents/nodekeeper-agent-x86_64-"#,
        r#"s3 = "s3://test-outputs""#,
    ] {
        assert!(policy.contains(line), "{line}: {policy}");
    }

    let (said, changed) = (account.up("y\n", &[]).await, account.calls());
    assert_eq!(
        (said.out.as_str(), changed.matches("VpcId").count()),
        ("the cluster test has this release\n", 1),
        "{}",
        said.err
    );

    // Another agent: new nodes get it, and nothing else of the policy changes.
    std::fs::write(account.dir.path().join("nodekeeper-agent-x86_64"), "a newer agent").unwrap();
    let missing = "An error occurred (404) when calling the HeadObject operation: Not Found";
    account.answers("s3api-head-object.once.err", missing);
    // The upload is interrupted, and then somebody else stores a policy: what is stored stays.
    account.answers("s3-cp.once.err", "upload failed: Connection was closed before we received a valid response");
    let error = account.up("", &["--yes"]).await.error();
    assert!(error.contains("the upload of the agents is not done") && error.contains("goes on there"), "{error}");
    let stored = account.world.store().control().await.unwrap().policy.unwrap();
    let (theirs, _) = change(Some(&stored), &stored);
    let world = account.world.clone();
    account.world.cluster.store = Watched::rival(world.cluster.dynamo.clone(), vec![theirs]);
    let error = account.up("", &["--yes"]).await.error();
    assert!(error.contains("the policy is not done") && error.contains("someone else stored one meanwhile"), "{error}");
    account.world = world;
    let after = account.world.store().control().await.unwrap().policy.unwrap();
    assert_eq!((&after.document, after.version.number()), (&stored.document, 2));
    account.answers("s3api-head-object.once.err", missing);
    let said = account.up("", &["--yes"]).await;
    assert!(said.out.starts_with("~ agent.x86_64: ") && said.out.lines().count() == 3, "{}", said.out);
    assert_eq!(account.calls().matches("s3 cp --only-show-errors").count(), 2, "{}", account.calls());
}

/// In CI nobody presses Ctrl-C.
#[tokio::test]
async fn the_first_job_is_waited_for_a_quarter_of_an_hour_and_not_for_ever() {
    let account = Account::new(false).await;
    let policy = account.policy();
    let paused = async {
        while account.world.store().queue_listed(10).await.unwrap().jobs.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        tokio::time::pause();
        std::future::pending::<()>().await;
    };
    let line = ["up", "test", "--yes", "--policy", &policy];
    let said = tokio::select! { said = account.world.run(&line) => said, () = paused => unreachable!() };
    assert_eq!(said.result.unwrap(), Exit::Failed);
    assert!(
        said.err.contains("it has not ended in 15 minutes, and goes on: `nodekeeper job hello` says"),
        "{}",
        said.err
    );
}

#[tokio::test]
async fn nodes_of_arm64_have_an_image_sizes_and_an_agent_of_arm64() {
    let image =
        "NodeImage=resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64 --region eu-1";
    for (agents, more) in [
        (&["x86_64", "aarch64"][..], &["--yes", "--arch", "arm64"][..]),
        // There is nothing else in this release.
        (&["aarch64"], &["--yes"]),
        (&["aarch64"], &["--yes", "--parameter", "NodeImage=ami-7"]),
    ] {
        let account = Account::new(false).await;
        std::fs::remove_file(account.dir.path().join("nodekeeper-agent-x86_64")).unwrap();
        for arch in agents {
            std::fs::write(account.dir.path().join(format!("nodekeeper-agent-{arch}")), arch).unwrap();
        }
        let said = account.up("", more).await;
        assert!(said.err.contains("nodes of arm64 in vpc-1: "), "{}", said.err);
        let (calls, own) = (account.calls(), more.contains(&"NodeImage=ami-7"));
        assert_eq!((calls.contains(image), calls.contains("VpcId=vpc-1 NodeImage=ami-7")), (!own, own), "{calls}");
        let policy = Policy::from_toml(&std::fs::read_to_string(account.policy()).unwrap()).unwrap();
        assert!(policy.size.is_empty() && policy.several.iter().all(|size| size.arch == Arch::Arm64), "{policy:?}");
        let place = policy.agent.arm64.unwrap().to_string();
        // The digest of the text `aarch64`.
        let (name, digest) = place.rsplit_once("/").unwrap().1.split_once("#sha256=").unwrap();
        assert_eq!((&name[..25], &name[25..]), ("nodekeeper-agent-aarch64-", &digest[..12]));
        assert_eq!(policy.agent.x86_64.is_some(), agents.contains(&"x86_64"));
        // Of a cluster that is there, the image and the policy decide.
        let said = account.up("", &["--yes", "--arch", "arm64"]).await;
        assert!(said.err.contains("--arch is for a new cluster"), "{}", said.err);
        assert_eq!(account.calls().matches("NodeImage=").count(), 1, "{}", account.calls());
    }
    let error = Account::new(false).await.up("", &["--yes", "--arch", "arm64"]).await.error();
    assert!(error.contains("no agent for this --arch"), "{error}");
}

#[tokio::test]
async fn up_changes_nothing_before_the_person_agrees_and_keeps_a_file_that_is_there() {
    let account = Account::new(false).await;
    assert_eq!(account.up("n\n", &[]).await.error(), "nothing was done");
    assert!(!account.calls().contains("create"), "{}", account.calls());
    std::fs::write(account.policy(), POLICY).unwrap();
    let said = account.up("y\nn\n", &[]).await;
    assert!(said.err.contains("policy.toml, which was there"), "{}", said.err);
    assert!(said.out.contains("has no policy: `nodekeeper policy set"), "{}", said.out);
    assert_eq!(std::fs::read_to_string(account.policy()).unwrap(), POLICY);
    assert!(account.world.store().ingest_control().await.unwrap().policy.is_none());
}

#[tokio::test]
async fn without_a_default_network_the_stack_makes_one() {
    let account = Account::new(false).await;
    account.answers("ec2-describe-subnets", r#"{"Subnets": []}"#);
    account.up("", &["--yes"]).await;
    assert!(account.calls().contains("ClusterName=test MakeNetwork=true"), "{}", account.calls());
    assert!(std::fs::read_to_string(account.policy()).unwrap().contains(r#"subnets = ["subnet-0d", "subnet-0e"]"#));
}

fn stack_in(state: &str) -> String {
    CREATED.replace("CREATE_COMPLETE", state)
}

#[tokio::test]
async fn each_failure_of_up_says_why_and_how_to_go_on() {
    let refused =
        |code: &str, message: &str| format!("An error occurred ({code}) when calling the X operation: {message}");
    let (busy, stuck) = (stack_in("UPDATE_IN_PROGRESS"), stack_in("UPDATE_ROLLBACK_FAILED"));
    let foreign = CREATED.replace("\"test\"", "\"other\"");
    let of_two = SUBNETS.replacen("vpc-1", "vpc-2", 1);
    let event = |reason: &str| {
        format!(
            r#"{{"StackEvents": [{{"EventId": "2", "LogicalResourceId": "Other", "ResourceStatus": "CREATE_FAILED",
              "ResourceStatusReason": "Resource creation cancelled"}}, {{"EventId": "1", "LogicalResourceId": "JobsTable",
              "ResourceType": "AWS::DynamoDB::Table", "ResourceStatus": "CREATE_FAILED", "ResourceStatusReason": "{reason}"}}]}}"#
        )
    };
    let (denied, expired) = (refused("AccessDenied", "not you"), refused("ExpiredToken", "The token is over"));
    let taken = refused("403", "Forbidden");
    let (exists, quota) = (event("test-jobs already exists"), event("Table limit exceeded"));
    let few = event("decreases account's UnreservedConcurrentExecution below its minimum value of [100]");
    let no_image = refused("AccessDeniedException", "not authorized to perform: ssm:GetParameters");
    let failed = "Failed to create/update the stack";
    for (plant, says) in [
        (&[("sts-get-caller-identity.err", expired.as_str())][..], "The token is over; sign in again"),
        (&[("sts-get-caller-identity.err", "Unable to locate credentials.")], "set AWS_PROFILE"),
        (
            &[("sts-get-caller-identity.err", "Could not connect to the endpoint URL: \"x\"")],
            "the region has no such service",
        ),
        (
            &[("cloudformation-describe-stacks", busy.as_str())],
            "another deployment of the stack test runs (UPDATE_IN_PROGRESS)",
        ),
        (&[("cloudformation-describe-stacks", stuck.as_str())], "continue-update-rollback --stack-name test"),
        (&[("cloudformation-describe-stacks", foreign.as_str())], "not of a cluster test: choose another name"),
        (
            &[("ec2-describe-subnets", of_two.as_str()), ("cloudformation-describe-stacks.err", NO_STACK)],
            "vpc-1 and vpc-2",
        ),
        (&[("s3api-create-bucket.err", denied.as_str())], "the bucket of the release is not done|must allow it"),
        (&[("s3api-head-bucket.err", taken.as_str())], "the bucket of the release is not done|Forbidden"),
        (&[("cloudformation-package.err", denied.as_str())], "the functions were not uploaded|it goes on there"),
        (
            &[("cloudformation-deploy.err", failed), ("cloudformation-describe-stack-events", exists.as_str())],
            "JobsTable: test-jobs already exists; it is left from an earlier cluster|give the same command again",
        ),
        (
            &[("cloudformation-deploy.err", failed), ("cloudformation-describe-stack-events", quota.as_str())],
            "JobsTable: Table limit exceeded; a quota of the account is used up",
        ),
        (
            &[("cloudformation-deploy.err", failed), ("cloudformation-describe-stack-events", few.as_str())],
            "the stack is not done|the account has too few: give --parameter UrlConcurrency=0",
        ),
        (
            &[("cloudformation-deploy.err", no_image.as_str())],
            "ssm:GetParameters; if a rule of the organization denies it to all, name an image: --parameter NodeImage=ami-",
        ),
        (
            &[("s3-cp.err", denied.as_str()), ("s3api-head-object.err", taken.as_str())],
            "the upload of the agents is not done",
        ),
    ] {
        let account = Account::new(true).await;
        if plant.iter().any(|(name, _)| *name == "cloudformation-describe-stack-events") {
            account.answers("cloudformation-describe-stack-events.once", "{}");
        }
        plant.iter().for_each(|(name, text)| account.answers(name, text));
        let error = account.up("", &["--yes"]).await.error();
        assert!(says.split('|').all(|part| error.contains(part)), "{says}: {error}");
        assert!(!Path::new(&account.policy()).exists());
    }
    let account = Account::new(true).await;
    account.answers("s3api-create-bucket.once.err", "Could not connect to the endpoint URL: \"x\"");
    let error = account.up("", &["--yes"]).await.result.unwrap_err();
    assert_eq!(ErrorKind::of(&error).exit_code(), 75, "{error:#}");
    std::fs::write(account.dir.path().join("SHA256SUMS"), format!("{}  nodekeeper-agent-x86_64\n", "0".repeat(64)))
        .unwrap();
    assert!(account.up("", &["--yes"]).await.error().contains("is not the file that SHA256SUMS names"));
    std::fs::remove_file(account.dir.path().join("template-aarch64.yaml")).unwrap();
    assert!(account.up("", &["--yes"]).await.error().contains("name the directory of a release"));
    std::fs::remove_file(account.dir.path().join("aws")).unwrap();
    assert!(account.world.run(&["doctor", "test"]).await.failed().0.contains("the AWS CLI is not there; install it"));
}

#[tokio::test]
async fn what_a_failed_first_deployment_left_is_deleted_before_the_next_one() {
    for state in ["ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "DELETE_FAILED"] {
        let account = Account::new(true).await;
        account.answers("cloudformation-describe-stacks.once", &stack_in(state));
        account.up("", &["--yes"]).await;
        let calls = account.calls();
        let at = |call: &str| calls.find(call).unwrap_or_else(|| panic!("{state} {call}: {calls}"));
        assert!(
            at("delete-stack") < at("stack-delete-complete") && at("stack-delete-complete") < at("deploy"),
            "{calls}"
        );
    }
}

/// An account with a cluster and a policy.
async fn with_policy() -> Account {
    let account = Account::new(true).await;
    let line = [
        "policy",
        "set",
        &file(
            &account.dir,
            "p.toml",
            &format!(
                "{POLICY}[output]\ns3 = \"s3://outputs/jobs\"\n[agent]\nx86_64 = \"s3://b/a#sha256={}\"\n",
                "0".repeat(64)
            )
            .replace("[launch]", "[launch]\nsubnets = [\"subnet-0a\", \"subnet-0b\"]"),
        ),
    ];
    account.world.run(&line).await.result.unwrap();
    account
}

async fn doctor(account: &Account) -> String {
    let out = account.world.run(&["doctor", "test"]).await.out;
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn doctor_says_what_is_well() {
    let out = doctor(&with_policy().await).await;
    for line in [
        "ok credentials arn:aws:iam",
        "ok subnets in eu-1a, eu-1b, each with a way out",
        "ok agent s3://b/a is there since 1970",
        "ok output s3://outputs/jobs is there",
        "ok image ami-1 of the launch template nodekeeper is for x86_64",
        "ok run poll-and-scale can read",
        "ok launch EC2 would launch a node of each size",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
}

#[tokio::test]
async fn doctor_finds_each_planted_failure_and_says_its_cure() {
    let account = with_policy().await;
    let refused = |code: &str| format!("An error occurred ({code}) when calling the X operation: no");
    let (missing, denied, none) = (refused("404"), refused("AccessDeniedException"), refused("NoSuchEntity"));
    let no_way = ROUTES.replace("0.0.0.0/0", "10.0.0.0/8");
    let no_address = SUBNETS.replace("true", "false");
    let one_zone = SUBNETS.replace("eu-1a", "eu-1b");
    for (name, answer, says) in [
        (
            "lambda-get-account-settings",
            r#"{"AccountLimit": {"ConcurrentExecutions": 10}}"#,
            "look lambda 10 executions at once|1,000",
        ),
        (
            "service-quotas-get-service-quota",
            r#"{"Quota": {"Value": 5.0}}"#,
            "look quota 5 vCPUs|request-service-quota-increase",
        ),
        ("iam-get-role.err", &none, "look spot|create-service-linked-role"),
        ("ssm-get-parameter.err", &denied, "look image|--parameter NodeImage=ami-"),
        (
            "ec2-describe-subnets",
            r#"{"Subnets": []}"#,
            "look network|`nodekeeper up` makes one|WRONG subnets EC2 knows none",
        ),
        ("ec2-describe-subnets", &no_address, "WRONG subnets subnet-0a: its nodes get no public address"),
        ("ec2-describe-subnets", &one_zone, "look subnets all are in one zone"),
        ("ec2-describe-route-tables", &no_way, "WRONG subnets subnet-0a: its route table has no way to the internet"),
        ("s3api-head-object.err", &missing, "WRONG agent s3://b/a is not there"),
        ("s3api-head-object.err", &refused("403"), "look agent not known"),
        ("s3api-head-bucket.err", &missing, "WRONG output the bucket of s3://outputs/jobs is not there"),
        (
            "ec2-describe-images",
            r#"{"Images": [{"Architecture": "arm64"}]}"#,
            "WRONG image ami-1 of the launch template nodekeeper is for arm64|sizes of x86_64 need another",
        ),
        ("ec2-describe-launch-template-versions.err", &denied, "look image not known"),
        (
            "function-answer",
            r#"{"refused": [{"what": "launch", "level": "wrong", "text": "EC2 refuses it", "to_do": "correct it"},
                {"what": "launch", "level": "look", "text": "EC2 throttles"}]}"#,
            "WRONG launch EC2 refuses it: correct it|look launch EC2 throttles",
        ),
        (
            "sts-get-caller-identity.err",
            "An error occurred (SignatureDoesNotMatch) when calling the X operation: Signature expired: now is later",
            "WRONG credentials|set the clock of this machine",
        ),
        ("sts-get-caller-identity.err", &refused("ExpiredToken"), "WRONG credentials|sign in again"),
        ("sts-get-caller-identity.err", "Unable to locate credentials.", "WRONG credentials|set AWS_PROFILE"),
        (
            "sns-list-subscriptions-by-topic",
            r#"{"Subscriptions": []}"#,
            "look alarms nobody gets them|aws sns subscribe",
        ),
        (
            "sns-list-subscriptions-by-topic",
            r#"{"Subscriptions": [{"SubscriptionArn": "PendingConfirmation", "Endpoint": "ann"}]}"#,
            "look alarms ann has not confirmed",
        ),
        (
            "cloudformation-describe-stacks",
            &stack_in("ROLLBACK_COMPLETE"),
            "WRONG stack test in the state ROLLBACK_COMPLETE|makes it anew",
        ),
        (
            "cloudformation-describe-stacks",
            &stack_in("UPDATE_ROLLBACK_FAILED"),
            "WRONG stack the stack test is in the state UPDATE_ROLLBACK_FAILED|continue-update-rollback",
        ),
        (
            "cloudformation-describe-stacks",
            &stack_in("UPDATE_IN_PROGRESS"),
            "another deployment of the stack test runs",
        ),
        ("cloudformation-describe-stacks.err", NO_STACK, "look stack there is none yet: nodekeeper up test"),
        ("lambda-invoke", r#"{"StatusCode": 200, "FunctionError": "Unhandled"}"#, "WRONG run|see its log"),
        (
            "scheduler-list-schedule-groups.err",
            "Could not connect to the endpoint URL",
            "WRONG region|the region has no such service",
        ),
    ] {
        let before = std::fs::read_to_string(account.dir.path().join("answers").join(name)).ok();
        account.answers(name, answer);
        let out = doctor(&account).await;
        assert!(says.split('|').all(|part| out.contains(part)), "{says}: {out}");
        match before {
            Some(before) => account.answers(name, &before),
            None => std::fs::remove_file(account.dir.path().join("answers").join(name)).unwrap(),
        }
    }
}

#[tokio::test]
async fn down_lets_the_nodes_go_first_and_keeps_the_data_unless_told() {
    let account = Account::new(true).await;
    account.world.run(&["policy", "set", &file(&account.dir, "p.toml", POLICY)]).await.done();
    let said = account.world.run(&["down", "test", "--prove-s", "0"]).await;
    assert!(said.out.contains("the stack is gone; what stays are the tables test-nodes,"), "{}", said.out);
    assert!(said.out.contains("the bucket test-outputs, which empties itself in 30 days"), "{}", said.out);
    let calls = account.calls();
    assert!(
        calls.find("s3 rm --recursive --only-show-errors s3://test-agents") < calls.find("delete-stack"),
        "{calls}"
    );
    assert!(!calls.contains("delete-table"));
    let said = account.world.run(&["down", "test", "--prove-s", "0", "--delete-data"]).await.out;
    assert!(said.contains("nothing of the cluster test is left but its logs"), "{said}");
    assert_eq!(account.calls().matches("delete-table").count(), 6);
    assert!(account.calls().contains("s3 rb --force s3://test-outputs"));
}
