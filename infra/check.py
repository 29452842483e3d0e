#!/usr/bin/env python3
"""Compares infra/template.yaml with the rest of the project and with what AWS accepts. Runs offline.

    pip install -r infra/requirements.txt
    nodekeeper init --print-contract > contract.json
    infra/check.py --contract contract.json         prints one line for each finding, exits 1 if there is one
    infra/check.py --print-policies ClusterName=c   prints what each role allows, with values worked out

A linter sees little in SAM source. So this check expands the template as a deployment does, lints the
expansion and analyses its policies. Then it works out the expansion's values, once for each way to deploy it
(`MODES`), and compares them with what the project needs: the tables and the functions as the project defines them (the
contract), the calls that the functions make (`calls.json`), and `NEEDS`.

`mistakes.py` proves that it finds mistakes.

It also lints `notify.yaml`. It does not talk to AWS. `tests/src/permitted/mod.rs` runs the functions with exactly the policies of the template. Two things
only a deployment can show: whether AWS reads the policies as that test does, and whether the account's limits are high
enough.
"""

import argparse
import copy
import json
import logging
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", category=UserWarning)  # pkg_resources, in parliament
logging.getLogger("samtranslator").setLevel(logging.ERROR)  # it warns that nobody collects its metrics
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")  # samtranslator wants a region; it makes no call

import cfnlint.api  # noqa: E402
import parliament  # noqa: E402
from samtranslator.translator.transform import transform  # noqa: E402
from samtranslator.yaml_helper import yaml_parse  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "infra" / "template.yaml"
NOTIFY = ROOT / "infra" / "notify.yaml"

# The parameters that the expansion is worked out with. They look real, so that ARNs can be compared.
CLUSTER = "demo"
ROLE = "arn:aws:iam::123456789012:role/node"
TEMPLATE_ARN = "arn:aws:ec2:eu-west-1:123456789012:launch-template/lt-0123456789abcdef0"
OUTPUT = "demo-logs/nodes"
OUTPUT_ARN = f"arn:aws:s3:::{OUTPUT}/{CLUSTER}/*"
FILES_ARN = f"arn:aws:s3:::{OUTPUT}/{CLUSTER}/files/*"
KEY_ARN = "arn:aws:kms:eu-west-1:123456789012:key/00000000-0000-0000-0000-000000000000"
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-west-1",
    "AWS::StackName": "demo-stack",
    "AWS::URLSuffix": "amazonaws.com",
}

# Each mode has the parameters of one way to deploy: as it comes, with other choices, and with everything of one's own.
MODES = {
    "default": {"ClusterName": CLUSTER},
    "chosen": {"ClusterName": CLUSTER, "Architecture": "x86_64", "DeletionProtection": "true", "HasDashboard": "true", "OutputS3": OUTPUT, "NodeRootDevice": "/dev/sda1"},
    "own": {
        "ClusterName": CLUSTER, "NodeRoleArn": ROLE, "LaunchTemplateArns": [TEMPLATE_ARN],
        "NodeVolumeKeyArn": KEY_ARN, "UrlConcurrency": 20, "VpcId": "vpc-0123", "AlarmEmail": "a@example.org",
        "NotReadyNodesAlarm": 5, "JobEvents": "true", "HasDashboard": "true",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """What the values must be in a mode."""

    node_role: str
    launch_templates: list[str]
    architecture: str
    protected: str
    url_concurrency: int | None


EXPECTED = {
    "default": Expected("arn:aws:iam::123456789012:role/NodeRole", [f"{TEMPLATE_ARN[:-20]}NodeTemplate"], "arm64", "false", None),
    "chosen": Expected("arn:aws:iam::123456789012:role/NodeRole", [f"{TEMPLATE_ARN[:-20]}NodeTemplate"], "x86_64", "true", None),
    "own": Expected(ROLE, [TEMPLATE_ARN], "arm64", "false", 20),
}  # fmt: skip
ABSENT = object()
# The roles that jobs may have: those of the account. A condition leaves those with the tag of the cluster.
ROLES_ARN = f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/*"

# Published limits: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Projection.html
PROJECTED_BY_INDEX = 20
PROJECTED_BY_TABLE = 100


@dataclass(frozen=True)
class Needs:
    """What one function needs of its block in the template, beyond what the table of functions says."""

    timeout_s: int
    memory_mb: int
    # How often Lambda tries an event again, and how old the event may be then.
    retries: tuple[int, int] = (0, 60)
    # Whether it answers or launches nodes, and so knows their role.
    nodes: bool = False
    urls_in_user_data: bool = False
    # Whether it tells nodes where they get the credentials of jobs.
    grant_url: bool = False


NEEDS = {
    # A spot warning is the only input whose content no later run can observe. So it is tried once more.
    "poll-and-scale": Needs(55, 512, retries=(1, 120), nodes=True, urls_in_user_data=True),
    "clean-stale-records": Needs(240, 512),
    "heartbeat-ingest": Needs(20, 256, nodes=True, grant_url=True),
    "sweep-dispatch": Needs(55, 256, nodes=True),
    "grant-credentials": Needs(20, 256, nodes=True),
}

# The calls of DynamoDB and EC2 that each function makes. The tests record them and compare them with this file.
CALLS = json.loads((ROOT / "infra" / "calls.json").read_text())

# The calls that the commands make, by who may give them: the tests record these too. Reads of tables are left out,
# because everybody may read every table and index.
PEOPLE = json.loads((ROOT / "infra" / "people.json").read_text())
READS = ("BatchGetItem", "GetItem", "Query", "Scan")

# Reading the streams of tables is Lambda's part, with the function's role.
STREAM_READERS = {"poll-and-scale": ("allocs", "jobs")}


def stream_calls(tables: Iterable[str]) -> set[str]:
    verbs = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
    return {f"dynamodb:{verb} {table}/stream" for verb in verbs for table in tables}


@dataclass(frozen=True)
class Function:
    """One row of the table of functions. Its name is also the name of its binary and of its folder."""

    name: str
    period_s: int | None
    routes: tuple[str, ...]

    @property
    def logical_id(self) -> str:
        """poll-and-scale is PollAndScale."""
        return "".join(word.capitalize() for word in self.name.split("-"))

    @property
    def url(self) -> str | None:
        """The logical id of its URL. Only a function with routes has one: sweep-dispatch has SweepUrl."""
        return f"{self.name.split('-')[0].capitalize()}Url" if self.routes else None

    @property
    def every_min(self) -> int | None:
        return None if self.period_s is None else self.period_s // 60

    @property
    def needs(self) -> Needs:
        return NEEDS[self.name]


@dataclass(frozen=True)
class Contract:
    """What `nodekeeper init --print-contract` prints: the tables, functions, metrics and job events of the project."""

    tables: list[dict[str, Any]]
    functions: list[Function]
    # The names of the metrics that each function emits, their namespace, and the alarms of the signs.
    metrics: dict[str, Any]
    # The fields that the row of each ended job has for its event.
    job_event: list[str]

    @staticmethod
    def read(document: dict[str, Any]) -> "Contract":
        rows = [Function(f["name"], f["period_s"], tuple(f["routes"])) for f in document["functions"]]
        return Contract(document["tables"], rows, document["metrics"], document["job_event"])

    def emits(self, namespace: str, name: str, dimensions: dict[str, str]) -> bool:
        """Whether a function emits this metric, or Lambda does for a function, or SQS for the queue of lost events."""
        if namespace == "AWS/SQS":
            return name == "ApproximateNumberOfMessagesVisible" and dimensions == {"QueueName": f"{CLUSTER}-job-events-lost"}
        if namespace == "AWS/Lambda":
            functions = [{"FunctionName": f"{CLUSTER}-{f.name}"} for f in self.functions]
            return name in LAMBDA_METRICS and dimensions in functions
        names = {f: n for f, n in self.metrics["names"].items() if dimensions == {"Cluster": CLUSTER, "Function": f}}
        return namespace == self.metrics["namespace"] and any(name in n for n in names.values())

    def checked_functions(self) -> list[Function]:
        """The functions whose needs are known. `check_contract` reports the others."""
        return [f for f in self.functions if f.name in NEEDS]


def has_job_events(mode: str) -> bool:
    return MODES[mode].get("JobEvents") == "true"


# What a deployer may choose: the default of each parameter (none: it must be given), and its rule.
PARAMETERS = {
    "ClusterName": (None, {"AllowedPattern": "[A-Za-z0-9_-]{1,44}"}),
    "NodeRoleArn": ("", {"AllowedPattern": "(arn:aws[a-z-]*:iam::[0-9]{12}:role/.+)?"}),
    "LaunchTemplateArns": ("", {}),
    "VpcId": ("", {"AllowedPattern": "(vpc-[0-9a-f]+)?"}),
    "NodeImage": (
        "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        {"AllowedPattern": "ami-[0-9a-f]+|resolve:ssm:/aws/service/.+"},
    ),
    "NodeRootDevice": ("/dev/xvda", {"AllowedPattern": "/dev/(xvda|sda1)"}),
    "NodeVolumeGib": (30, {"MinValue": 8, "MaxValue": 16384}),
    "NodeVolumeKeyArn": ("", {"AllowedPattern": "(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+)?"}),
    "Architecture": ("arm64", {"AllowedValues": ["arm64", "x86_64"]}),
    "OutputS3": ("", {"AllowedPattern": "([a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+){0,20})?"}),
    "UrlConcurrency": (0, {"MinValue": 0, "MaxValue": 1000}),
    "RefusedRequestsAlarm": (1000, {"MinValue": 1}),
    "NotReadyNodesAlarm": (0, {"MinValue": 0}),
    "DeletionProtection": ("false", {"AllowedValues": ["true", "false"]}),
    "LogLevel": ("info", {"AllowedValues": ["error", "warn", "info", "debug"]}),
    "HasDashboard": ("false", {"AllowedValues": ["true", "false"]}),
    "AlarmEmail": ("", {}),
    "JobEvents": ("false", {"AllowedValues": ["true", "false"]}),
    # What CloudWatch takes, up to five years.
    "LogRetentionDays": (
        30,
        {"AllowedValues": [1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827]},
    ),
    "ScheduleState": ("ENABLED", {"AllowedValues": ["ENABLED", "DISABLED"]}),
}

# What a stream may pass on to a function, and how. By the function and the table.
AT_ONCE = {
    "BatchSize": (1000, "so that many jobs wake one run"),
    "MaximumBatchingWindowInSeconds": (0, "so that a job is seen at once"),
    "MaximumRecordAgeInSeconds": (60, "because a later run sees everything itself"),
    "MaximumRetryAttempts": (0, "or a failing run blocks what comes after it"),
    "StartingPosition": ("LATEST", "because earlier records are of no use"),
    "ParallelizationFactor": (None, "because runs wait for each other"),
    "BisectBatchOnFunctionError": (None, "because nothing is tried again"),
    "FunctionResponseTypes": (None, "because the answer of a run names no records"),
}
# A new job and an alloc that ends wake poll-and-scale.
STREAMS: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("poll-and-scale", "jobs"): ({"eventName": ["INSERT"]}, AT_ONCE),
    ("poll-and-scale", "allocs"): (
        {"eventName": ["MODIFY"], "dynamodb": {"NewImage": {"client": {"S": ["complete", "failed"]}}}},
        AT_ONCE,
    ),
}

# Who may assume a role, if it is not one of the functions, which Lambda assumes, and of the schedules, which SAM makes for
# Scheduler.
TRUSTED = {"NodeRole": ["ec2.amazonaws.com"], "JobEventsRole": ["pipes.amazonaws.com"]}

# What a launch names or makes, and whose it may be. An image or a subnet may be shared by another account.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ExamplePolicies_EC2.html
LAUNCHED = {
    "instance": PSEUDO["AWS::AccountId"],
    **dict.fromkeys(("image", "key-pair", "network-interface", "placement-group", "security-group", "snapshot"), "*"),
    **dict.fromkeys(("capacity-reservation", "spot-instances-request", "subnet", "volume"), "*"),
}
# What a call of CreateFleet names: the fleet, and what its launches use. (It asks for spot by itself.)
FLEET = {"fleet": PSEUDO["AWS::AccountId"], "launch-template": PSEUDO["AWS::AccountId"]} | {
    kind: account for kind, account in LAUNCHED.items() if kind != "spot-instances-request"
}
# What a launch tags.
TAGGED = dict.fromkeys(("instance", "network-interface", "spot-instances-request", "volume"), PSEUDO["AWS::AccountId"])

# Everything that may be there. By type: the names of the resources, where F is each function, and all properties that one may
# have. What a name or a property must be is checked elsewhere; what is not here is a finding.
PICTURE = {
    "AWS::CloudWatch::Alarm": ("(F)(Errors|Throttles|Silent|Refused|Signs|MoreSigns)|NodesNotReady|JobEventsLost", "AlarmActions AlarmDescription AlarmName ComparisonOperator DatapointsToAlarm Dimensions(Name Value) EvaluationPeriods MetricName Metrics(Expression Id MetricStat(Metric(Dimensions(Name Value) MetricName Namespace) Period Stat) ReturnData) Namespace OKActions Period Statistic Threshold TreatMissingData"),
    "AWS::CloudWatch::Dashboard": ("Dashboard", "DashboardBody DashboardName"),
    "AWS::DynamoDB::Table": ("[A-Z][a-z]+Table", "AttributeDefinitions(AttributeName AttributeType) BillingMode DeletionProtectionEnabled GlobalSecondaryIndexes(IndexName KeySchema(AttributeName KeyType) Projection(NonKeyAttributes ProjectionType)) KeySchema(AttributeName KeyType) PointInTimeRecoverySpecification(PointInTimeRecoveryEnabled) StreamSpecification(StreamViewType) TableName TimeToLiveSpecification(AttributeName Enabled)"),
    "AWS::EC2::LaunchTemplate": ("NodeTemplate", "LaunchTemplateData(BlockDeviceMappings(DeviceName Ebs(DeleteOnTermination Encrypted KmsKeyId VolumeSize VolumeType)) IamInstanceProfile(Arn) ImageId InstanceInitiatedShutdownBehavior MetadataOptions(HttpEndpoint HttpPutResponseHopLimit HttpTokens) SecurityGroupIds) LaunchTemplateName"),
    "AWS::EC2::SecurityGroup": ("NodeSecurityGroup", "GroupDescription VpcId"),
    "AWS::EC2::SecurityGroupIngress": ("NodesReachEachOther", "Description GroupId IpProtocol SourceSecurityGroupId"),
    "AWS::Events::EventBus": ("JobEventBus", "Name"),
    "AWS::Events::Rule": ("PollAndScale(InstanceEnded|SpotInterruption)", "EventPattern(detail(state) detail-type source) Targets(Arn Id RetryPolicy(MaximumEventAgeInSeconds MaximumRetryAttempts))"),
    "AWS::IAM::InstanceProfile": ("NodeProfile", "Roles"),
    "AWS::IAM::ManagedPolicy": ("(Operator|Reader|Submitter)Policy", "Description PolicyDocument(Statement(Action Condition(ForAllValues:StringEquals(dynamodb:Attributes) Null(dynamodb:Attributes) StringEquals(aws:ResourceTag/nodekeeper:cluster) StringEqualsIfExists(dynamodb:Select)) Effect Resource Sid) Version)"),
    "AWS::IAM::Role": ("(F)(Role|ScheduleRole)|JobEventsRole|NodeRole", "AssumeRolePolicyDocument(Statement(Action Effect Principal(Service)) Version) Description Policies(PolicyDocument(Statement(Action Condition(ArnEquals(ec2:LaunchTemplate) Bool(ec2:IsLaunchTemplateResource kms:GrantIsForAWSResource) StringEquals(aws:RequestTag/nodekeeper:cluster aws:ResourceTag/nodekeeper:cluster ec2:CreateAction iam:PassedToService kms:ViaService)) Effect Resource Sid) Version) PolicyName)"),
    "AWS::Lambda::EventInvokeConfig": ("(F)EventInvokeConfig", "DestinationConfig FunctionName MaximumEventAgeInSeconds MaximumRetryAttempts Qualifier"),
    "AWS::Lambda::EventSourceMapping": ("PollAndScale(EndedAllocs|NewJobs)", "BatchSize BisectBatchOnFunctionError EventSourceArn FilterCriteria(Filters(Pattern)) FunctionName FunctionResponseTypes MaximumBatchingWindowInSeconds MaximumRecordAgeInSeconds MaximumRetryAttempts ParallelizationFactor StartingPosition"),
    "AWS::Lambda::Function": ("F", "Architectures Code(S3Bucket S3Key) Description Environment(Variables(*)) FunctionName Handler LoggingConfig(LogFormat LogGroup SystemLogLevel) MemorySize ReservedConcurrentExecutions Role Runtime Tags(Key Value) Timeout"),
    "AWS::Lambda::Permission": ("(Grant|Heartbeat|Sweep)(Invoke|Url)Permission|PollAndScale(InstanceEnded|SpotInterruption)Permission", "Action FunctionName FunctionUrlAuthType InvokedViaFunctionUrl Principal SourceArn"),
    "AWS::Lambda::Url": ("(Grant|Heartbeat|Sweep)Url", "AuthType TargetFunctionArn"),
    "AWS::Logs::LogGroup": ("(F)Log", "LogGroupName RetentionInDays"),
    "AWS::Pipes::Pipe": ("JobEventsPipe", "Description Name RoleArn Source SourceParameters(DynamoDBStreamParameters(BatchSize DeadLetterConfig(Arn) MaximumBatchingWindowInSeconds MaximumRecordAgeInSeconds MaximumRetryAttempts OnPartialBatchItemFailure StartingPosition) FilterCriteria(Filters(Pattern))) Target TargetParameters(EventBridgeEventBusParameters(DetailType Source) InputTemplate)"),
    "AWS::S3::Bucket": ("AgentBucket", "BucketEncryption(ServerSideEncryptionConfiguration(ServerSideEncryptionByDefault(SSEAlgorithm))) OwnershipControls(Rules(ObjectOwnership)) PublicAccessBlockConfiguration(BlockPublicAcls BlockPublicPolicy IgnorePublicAcls RestrictPublicBuckets)"),
    "AWS::S3::BucketPolicy": ("AgentBucketPolicy", "Bucket PolicyDocument(Statement(Action Condition(Bool(aws:SecureTransport)) Effect Principal Resource Sid) Version)"),
    "AWS::SNS::Subscription": ("AlarmSubscription", "Endpoint Protocol TopicArn"),
    "AWS::SNS::Topic": ("AlarmTopic", "TopicName"),
    "AWS::SQS::Queue": ("JobEventsLostQueue", "MessageRetentionPeriod QueueName SqsManagedSseEnabled"),
    "AWS::Scheduler::Schedule": ("(F)Schedule", "FlexibleTimeWindow(Mode) GroupName Name ScheduleExpression State Target(Arn RetryPolicy(MaximumEventAgeInSeconds MaximumRetryAttempts) RoleArn)"),
    "AWS::Scheduler::ScheduleGroup": ("SweepScheduleGroup", "Name"),
}  # fmt: skip
SECTIONS = {"AWSTemplateFormatVersion", "Conditions", "Description", "Metadata", "Outputs", "Parameters", "Resources", "Rules"}
# Besides its type, its properties and its condition, a resource may have these.
ATTRIBUTES = {"AWS::DynamoDB::Table": {"DeletionPolicy", "UpdateReplacePolicy"}, "AWS::Lambda::Function": {"Metadata"}, "AWS::Lambda::EventInvokeConfig": {"Metadata"}}

# What a stream shows of a row: no more than its readers need. The other tables have no stream.
STREAM_VIEWS = {"jobs": "NEW_AND_OLD_IMAGES", "allocs": "NEW_IMAGE"}

# The metrics of Lambda that the dashboard uses.
# https://docs.aws.amazon.com/lambda/latest/dg/monitoring-metrics-types.html
LAMBDA_METRICS = ("ConcurrentExecutions", "Duration", "Errors", "Invocations", "Throttles", "Url4xxCount")

# A function counts as silent after five missed periods, as in the policy's watchdog.multiplier.
SILENT_PERIODS = 5


# How many of the last runs must find a sign wrong before its alarm rings, as (wrong runs, last runs). The first pair is for a function
# that runs each minute, the second for one that runs more rarely. What lasts for a moment must not ring, and a brake that holds for
# five minutes must.
WRONG_RUNS = (3, 5)
WRONG_RARE_RUNS = (2, 3)


# ---- Expand the template and work out its values -----------------------------------------------------------


class NoManagedPolicies:
    """The template names no managed policy. Looking one up would need AWS."""

    def load(self) -> dict[str, str]:
        return {}


def expand(source: dict[str, Any]) -> dict[str, Any]:
    """What CloudFormation gets. The code must look packaged, as it does after `sam package`."""
    packaged = copy.deepcopy(source)
    packaged["Globals"]["Function"]["CodeUri"] = "s3://bucket/code.zip"
    return transform(packaged, {}, NoManagedPolicies())


class Unresolved(Exception):
    """This check cannot work out an expression of the template."""


class Values:
    """Works out references, conditions and substitutions for one set of parameters."""

    def __init__(self, template: dict[str, Any], parameters: dict[str, Any]) -> None:
        self.resources = template["Resources"]
        self.conditions = template.get("Conditions", {})
        defaults = {
            k: v["Default"].split(",") if v["Type"] == "CommaDelimitedList" else v["Default"]
            for k, v in template["Parameters"].items()
            if "Default" in v
        }
        self.parameters = {**PSEUDO, **defaults, **parameters}

    def live_resources(self) -> dict[str, dict[str, Any]]:
        """The resources whose condition holds, with their values worked out."""
        there = {k: r for k, r in self.resources.items() if "Condition" not in r or self.holds(r["Condition"])}
        return {k: self.of(r) for k, r in there.items()}

    def holds(self, condition: str) -> bool:
        return self.of(self.conditions[condition])

    def of(self, node: Any) -> Any:
        if isinstance(node, list):
            return [v for v in map(self.of, node) if v is not ABSENT]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            ((name, arg),) = node.items()
            if name == "Ref" or name.startswith("Fn::"):
                return self.intrinsic(name, arg)
        worked_out = {k: self.of(v) for k, v in node.items()}
        return {k: v for k, v in worked_out.items() if v is not ABSENT}

    def intrinsic(self, name: str, arg: Any) -> Any:
        match name:
            case "Ref" if arg == "AWS::NoValue":
                return ABSENT
            case "Ref":
                return self.ref(arg)
            case "Fn::GetAtt":
                logical_id, attribute = arg if isinstance(arg, list) else arg.split(".", 1)
                return self.attribute(logical_id, attribute)
            case "Fn::If":
                return self.of(arg[1] if self.holds(arg[0]) else arg[2])
            case "Fn::EachMemberEquals":
                return all(member == self.of(arg[1]) for member in self.of(arg[0]))
            case "Fn::Equals":
                return self.of(arg[0]) == self.of(arg[1])
            case "Fn::Not":
                return not self.of(arg[0])
            case "Fn::Join":
                return arg[0].join(map(str, self.of(arg[1])))
            case "Fn::Sub":
                return self.substitute(*arg) if isinstance(arg, list) else self.substitute(arg, {})
        raise Unresolved(f"check.py cannot work out {name}: extend check.py, or do not use it")

    def substitute(self, text: str, names: dict[str, Any]) -> str:
        out, rest = "", text
        while "${" in rest:
            before, rest = rest.split("${", 1)
            name, rest = rest.split("}", 1)
            if name in names:
                value = self.of(names[name])
            elif "." in name:
                value = self.attribute(*name.split(".", 1))
            else:
                value = self.ref(name)
            out += before + str(value)
        return out + rest

    def ref(self, name: str) -> Any:
        if name in self.parameters:
            return self.parameters[name]
        resource = self.resources.get(name)
        if resource is None:
            raise Unresolved(f"nothing is called {name}")
        if resource["Type"] == "AWS::S3::Bucket":
            return f"{self.parameters['ClusterName']}-{name.lower()}"
        named_by = {
            "AWS::DynamoDB::Table": "TableName",
            "AWS::Events::EventBus": "Name",
            "AWS::Lambda::Function": "FunctionName",
            "AWS::Logs::LogGroup": "LogGroupName",
            "AWS::Scheduler::ScheduleGroup": "Name",
        }.get(resource["Type"])
        if resource["Type"] in ("AWS::EC2::LaunchTemplate", "AWS::IAM::Role", "AWS::IAM::InstanceProfile"):
            return name
        return self.of(resource["Properties"][named_by]) if named_by else self.attribute(name, "Arn")

    def attribute(self, logical_id: str, attribute: str) -> str:
        resource = self.resources.get(logical_id)
        if resource is None:
            raise Unresolved(f"nothing is called {logical_id}")
        if resource["Type"] == "AWS::Lambda::Url":
            return f"{attribute} of {logical_id}"
        account = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}"
        arn = {
            "AWS::DynamoDB::Table": lambda: f"arn:aws:dynamodb:{account}:table/{self.ref(logical_id)}",
            "AWS::CloudWatch::Alarm": lambda: f"arn:aws:cloudwatch:{account}:alarm:{logical_id}",
            "AWS::Events::EventBus": lambda: f"arn:aws:events:{account}:event-bus/{self.ref(logical_id)}",
            "AWS::Events::Rule": lambda: f"arn:aws:events:{account}:rule/{logical_id}",
            "AWS::IAM::InstanceProfile": lambda: f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:instance-profile/{logical_id}",
            "AWS::IAM::ManagedPolicy": lambda: f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:policy/{logical_id}",
            "AWS::IAM::Role": lambda: f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/{logical_id}",
            "AWS::Lambda::Function": lambda: f"arn:aws:lambda:{account}:function:{self.ref(logical_id)}",
            "AWS::Logs::LogGroup": lambda: f"arn:aws:logs:{account}:log-group:{self.ref(logical_id)}:*",
            "AWS::S3::Bucket": lambda: f"arn:aws:s3:::{self.ref(logical_id)}",
            "AWS::SQS::Queue": lambda: f"arn:aws:sqs:{account}:{self.of(resource['Properties']['QueueName'])}",
            "AWS::SNS::Topic": lambda: f"arn:aws:sns:{account}:{logical_id}",
        }.get(resource["Type"])
        if attribute == "Arn" and arn:
            return arn()
        if attribute == "GroupId":
            return f"GroupId of {logical_id}"
        if attribute == "QueueName":
            return self.of(resource["Properties"]["QueueName"])
        if attribute == "StreamArn":
            if "StreamSpecification" not in resource["Properties"]:
                raise Unresolved(f"StreamArn of {logical_id}, which has no stream")
            return self.attribute(logical_id, "Arn") + "/stream/2026-01-01"
        raise Unresolved(f"check.py does not know {attribute} of a {resource['Type']}: extend check.py")


def of_type(resources: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {k: r["Properties"] for k, r in resources.items() if r["Type"] == kind}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- Linters -----------------------------------------------------------------------------------------------


# What a linter says of these parameters is not so.
EXCEPTIONS = {
    # They are empty by default. Then the stack makes what they would name, and nothing refers to them.
    "W1030": ["NodeRoleArn", "LaunchTemplateArns", "NodeVolumeKeyArn"],
    # An image may also be named by `resolve:ssm:`, which EC2 resolves at each launch.
    "W2506": ["NodeImage"],
}


def lint(text: str, what: str) -> Iterator[str]:
    """cfn-lint, for a region that has every service."""
    for found in cfnlint.api.lint(text, regions=["us-east-1"]):
        if found.rule.id in EXCEPTIONS and any(name in json.dumps([found.message, str(found.path)]) for name in EXCEPTIONS[found.rule.id]):
            continue
        where = ".".join(map(str, getattr(found, "path", None) or [])) or f"line {found.linenumber}"
        yield f"{what}: {where}: {found.message} ({found.rule.id})"


def policies(resources: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each role with each policy that says what the role may do."""
    for role, properties in of_type(resources, "AWS::IAM::Role").items():
        for policy in properties.get("Policies", []):
            yield role, policy["PolicyDocument"]
    for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for name, properties in of_type(resources, kind).items():
            yield name, properties["PolicyDocument"]


def analyse_policies(resources: dict[str, Any]) -> Iterator[str]:
    """parliament finds actions, resources and condition keys that do not exist or do not fit together.

    It wants every resource that an action needs in one statement. The template grants RunInstances in two
    statements, because its condition applies to the instance only. So a missing resource is a finding only if
    every statement for that action lacks it.
    """
    for role, document in policies(resources):
        granting = Counter(a for s in document["Statement"] for a in as_list(s["Action"]))
        lacking: Counter[tuple[str, str]] = Counter()
        for found in parliament.analyze_policy_string(json.dumps(document)).findings:
            if found.issue == "RESOURCE_MISMATCH":
                lacking.update((d["action"], d["required_format"]) for d in found.detail)
                continue
            detail = f": {found.detail}" if found.detail else ""
            yield f"{role}: {found.issue}{detail} (parliament)"
        for (action, resource), count in lacking.items():
            # The template grants ListStreams on the table's streams, as AWS's own policy for stream readers does.
            if count == granting[action] and action != "dynamodb:ListStreams":
                yield f"{role}: RESOURCE_MISMATCH: {action} needs {resource} (parliament)"


# ---- What the project needs ---------------------------------------------------------------------------------


def check_definitions(tables: list[dict[str, Any]]) -> Iterator[str]:
    """The tables' definitions are within DynamoDB's limits. Local engines do not enforce these limits."""
    for table in tables:
        listed = [len(i["projection"].get("attributes", [])) for i in table["indexes"]]
        for index, count in zip(table["indexes"], listed, strict=True):
            if count > PROJECTED_BY_INDEX:
                yield (
                    f"table {table['name']}: index {index['name']} projects {count} attributes; "
                    f"DynamoDB takes at most {PROJECTED_BY_INDEX} an index"
                )
        if sum(listed) > PROJECTED_BY_TABLE:
            yield f"table {table['name']}: {sum(listed)} projected attributes; at most {PROJECTED_BY_TABLE} are taken"


# Tables whose rows live for an hour: they need no backup, and go with the stack.
SHORT_LIVED = ("output",)


def check_tables(resources: dict[str, Any], tables: list[dict[str, Any]]) -> Iterator[str]:
    """The template has exactly the defined tables. They can be restored, and they outlive the stack, unless short-lived."""
    there = {p["TableName"]: (k, p) for k, p in of_type(resources, "AWS::DynamoDB::Table").items()}
    wanted = {f"{CLUSTER}-{t['name']}": t for t in tables}
    for name in sorted(there.keys() ^ wanted.keys()):
        yield f"table {name}: {'not defined in the project' if name in there else 'missing'}"
    for name in sorted(there.keys() & wanted.keys()):
        logical_id, properties = there[name]
        yield from check_table(f"table {name}", properties, wanted[name])
        kept = ("Delete", "Delete") if wanted[name]["name"] in SHORT_LIVED else ("RetainExceptOnCreate", "Retain")
        for policy, wanted_policy in zip(("DeletionPolicy", "UpdateReplacePolicy"), kept, strict=True):
            if resources[logical_id].get(policy) != wanted_policy:
                yield f"table {name}: {policy} must be {wanted_policy}"


def key_schema(*parts: dict[str, str] | None) -> list[dict[str, str]]:
    return [
        {"AttributeName": part["name"], "KeyType": kind}
        for part, kind in zip(parts, ("HASH", "RANGE"), strict=True)
        if part
    ]


def check_table(what: str, properties: dict[str, Any], definition: dict[str, Any]) -> Iterator[str]:
    def differs(part: str, is_: Any, should: Any) -> Iterator[str]:
        if is_ != should:
            yield f"{what}: {part} is {json.dumps(is_)}, defined as {json.dumps(should)}"

    key = definition["key"]
    parts = [key["hash"], key["range"]] + [p for i in definition["indexes"] for p in (i["hash"], i["range"])]
    types = {p["name"]: p["type"] for p in parts if p}
    yield from differs("key", properties["KeySchema"], key_schema(key["hash"], key["range"]))
    declared = {a["AttributeName"]: a["AttributeType"] for a in properties["AttributeDefinitions"]}
    yield from differs("attribute types", declared, types)
    yield from differs("BillingMode", properties.get("BillingMode"), "PAY_PER_REQUEST")

    stream = properties.get("StreamSpecification", {}).get("StreamViewType")
    yield from differs("stream", stream, STREAM_VIEWS.get(definition["name"]))
    ttl = properties.get("TimeToLiveSpecification", {})
    yield from differs("TTL", ttl.get("AttributeName") if ttl.get("Enabled") else None, definition["ttl"])
    recovery = properties.get("PointInTimeRecoverySpecification", {})
    is_kept = definition["name"] not in SHORT_LIVED
    yield from differs("point in time recovery", recovery.get("PointInTimeRecoveryEnabled", False), is_kept)

    there = {i["IndexName"]: i for i in properties.get("GlobalSecondaryIndexes", [])}
    yield from differs("list of indexes", sorted(there), sorted(i["name"] for i in definition["indexes"]))
    for index in definition["indexes"]:
        if index["name"] not in there:
            continue
        found, part = there[index["name"]], f"index {index['name']}"
        yield from differs(f"{part}: key", found["KeySchema"], key_schema(index["hash"], index["range"]))
        projection = found["Projection"]
        yield from differs(f"{part}: projection", projection["ProjectionType"], index["projection"]["type"])
        yield from differs(
            f"{part}: projected attributes",
            sorted(projection.get("NonKeyAttributes", [])),
            sorted(index["projection"].get("attributes", [])),
        )


def check_contract(contract: Contract) -> Iterator[str]:
    """This check knows what each function of the table needs, and a schedule can have the function's period."""
    names = {f.name for f in contract.functions}
    for name in sorted(names ^ NEEDS.keys()):
        what = "NEEDS in check.py has no row for it" if name in names else "not in the table of functions"
        yield f"function {name}: {what}"
    for function in contract.functions:
        if function.period_s is not None and (function.period_s < 60 or function.period_s % 60):
            yield f"function {function.name}: runs every {function.period_s} s, but a schedule counts whole minutes"
        if function.period_s is None and not function.routes:
            yield f"function {function.name}: has neither a period nor a route, so nothing would ever run it"


def check_parameters(source: dict[str, Any]) -> Iterator[str]:
    """Each parameter has the default and the rule that it should have, and says what it is for."""
    found = source["Parameters"]
    for name in sorted(found.keys() | PARAMETERS.keys()):
        if name not in PARAMETERS or name not in found:
            yield f"parameter {name}: {'not in PARAMETERS of check.py' if name in found else 'missing'}"
            continue
        default, rule = PARAMETERS[name]
        about = ("ConstraintDescription", "Default", "Description", "Type")
        there = {k: v for k, v in found[name].items() if k not in about}
        if found[name].get("Default") != default or there != rule:
            yield f"parameter {name}: has default {found[name].get('Default')!r} and rule {there}, must be {default!r} and {rule}"
        if not found[name].get("Description"):
            yield f"parameter {name}: does not say what it is for; give Description"


def check_source(source: dict[str, Any], contract: Contract) -> Iterator[str]:
    """How each function is built. The expansion does not show it."""
    expected = {f.logical_id: f.name for f in contract.functions}
    binaries = set()
    for logical_id, resource in source["Resources"].items():
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        metadata = resource.get("Metadata", {})
        binary = metadata.get("BuildProperties", {}).get("Binary")
        binaries.add(binary)
        if metadata.get("BuildMethod") != "rust-cargolambda":
            yield f"{logical_id}: BuildMethod must be rust-cargolambda"
        if logical_id not in expected:
            yield f"{logical_id}: the template has this function, the table of functions does not"
        elif binary != expected[logical_id]:
            yield f"{logical_id}: builds the binary {binary}, must build {expected[logical_id]}"
    folders = {p.parent.name for p in (ROOT / "functions").glob("*/Cargo.toml")}
    for name in sorted(folders ^ binaries, key=str):
        what = "in functions/ but not in the template" if name in folders else "has no folder in functions/"
        yield f"function {name}: {what}"
    code = source["Globals"]["Function"].get("CodeUri")
    if (TEMPLATE.parent / str(code)).resolve() != ROOT:
        yield f"Globals: CodeUri is {code}, must be the workspace"


def parsed(shape: str) -> dict[str, Any]:
    """The properties of a shape: "A B(C)" is {"A": {}, "B": {"C": {}}}."""
    stack: list[dict[str, Any]] = [{}]
    for word in re.findall(r"[^\s()]+|[()]", shape):
        if word == "(":
            stack.append(stack[-1][next(reversed(stack[-1]))])
        elif word == ")":
            stack.pop()
        else:
            stack[-1][word] = {}
    return stack[0]


def unknown_properties(node: Any, shape: dict[str, Any], way: str) -> Iterator[str]:
    for value in node if isinstance(node, list) else ():
        yield from unknown_properties(value, shape, way)
    for key, value in node.items() if isinstance(node, dict) and "*" not in shape else ():
        # What a shape does not go into is one value: it is compared as a whole.
        if key in shape:
            yield from unknown_properties(value, shape[key], f"{way}.{key}")
        elif shape or way.count(".") == 0:
            yield f"{way}.{key}"


def check_picture(expansion: dict[str, Any], resources: dict[str, Any], contract: Contract) -> Iterator[str]:
    """Nothing is there that `PICTURE` does not have."""
    functions = "|".join(f.logical_id for f in contract.functions)
    for name in sorted(expansion.keys() - SECTIONS):
        yield f"{name}: not known to check.py: add it to SECTIONS, with its check, or take it away"
    for logical_id, resource in resources.items():
        names, shape = PICTURE.get(resource["Type"], ("", ""))
        names = re.sub(r"\bF\b", functions, names)
        if not re.fullmatch(names, logical_id):
            yield f"{logical_id}: a {resource['Type']} of this name is not in PICTURE of check.py"
            continue
        for key in sorted(resource.keys() - {"Type", "Properties", "Condition"} - ATTRIBUTES.get(resource["Type"], set())):
            yield f"{logical_id}: {key} is not in ATTRIBUTES of check.py"
        for place in unknown_properties(resource["Properties"], parsed(shape), logical_id):
            yield f"{place}: not in PICTURE of check.py"


def check_rules(expansion: dict[str, Any]) -> Iterator[str]:
    """A role of one's own and launch templates of one's own come together."""
    for role in ("", ROLE):
        for templates in ([""], [TEMPLATE_ARN]):
            values = Values(expansion, {"ClusterName": CLUSTER, "NodeRoleArn": role, "LaunchTemplateArns": templates})
            rules = [r for r in expansion.get("Rules", {}).values() if values.of(r["RuleCondition"])]
            refused = not all(values.of(a["Assert"]) for rule in rules for a in rule["Assertions"])
            if refused != (bool(role) != (templates != [""])):
                yield f"Rules: NodeRoleArn {role!r} with LaunchTemplateArns {templates} must {'' if not refused else 'not '}be refused"


def check_functions(resources: dict[str, Any], contract: Contract, mode: str) -> Iterator[str]:
    """Each function of the table has its block, with the right environment, log and schedule."""
    functions = of_type(resources, "AWS::Lambda::Function")
    for wanted in contract.checked_functions():
        name = wanted.name
        properties = functions.get(wanted.logical_id)
        if properties is None:
            yield f"{wanted.logical_id}: missing"
            continue
        should = {
            "FunctionName": f"{CLUSTER}-{name}",
            "Runtime": "provided.al2023",
            "Handler": "bootstrap",
            "Architectures": [EXPECTED[mode].architecture],
            "Timeout": wanted.needs.timeout_s,
            "MemorySize": wanted.needs.memory_mb,
            "ReservedConcurrentExecutions": EXPECTED[mode].url_concurrency if wanted.routes else None,
            # Lines that Lambda writes at the start and the end of each request would cost more than the work.
            "LoggingConfig": {"LogGroup": f"/aws/lambda/{CLUSTER}-{name}", "LogFormat": "JSON", "SystemLogLevel": "WARN"},
            "Role": f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/{wanted.logical_id}Role",
            "Tags": [{"Key": "lambda:createdBy", "Value": "SAM"}],
        }
        for field, value in should.items():
            if properties.get(field) != value:
                yield f"{wanted.logical_id}: {field} is {properties.get(field)}, must be {value}"
        environment = {"NODEKEEPER_CLUSTER": CLUSTER, "RUST_LOG": "info"}
        if wanted.needs.nodes:
            environment["NODEKEEPER_NODE_ROLE"] = EXPECTED[mode].node_role
        if wanted.needs.grant_url:
            environment["NODEKEEPER_GRANT_URL"] = "FunctionUrl of GrantUrl"
        if wanted.needs.urls_in_user_data:
            environment["NODEKEEPER_HEARTBEAT_URL"] = "FunctionUrl of HeartbeatUrl"
            environment["NODEKEEPER_SWEEP_URL"] = "FunctionUrl of SweepUrl"
        found = properties.get("Environment", {}).get("Variables", {})
        for variable in sorted(environment.keys() | found.keys()):
            if environment.get(variable) != found.get(variable):
                yield (
                    f"{wanted.logical_id}: environment: {variable} is {found.get(variable)}, "
                    f"must be {environment.get(variable)}"
                )
        yield from check_schedule(resources, wanted)
        invoked = of_type(resources, "AWS::Lambda::EventInvokeConfig").get(f"{wanted.logical_id}EventInvokeConfig", {})
        retries = (invoked.get("MaximumRetryAttempts"), invoked.get("MaximumEventAgeInSeconds"))
        if not (wanted.routes and wanted.every_min is None) and retries != wanted.needs.retries:
            yield f"{wanted.logical_id}: events are tried again {retries} (times, seconds), must be {wanted.needs.retries}"
    for logical_id, properties in of_type(resources, "AWS::Logs::LogGroup").items():
        if "RetentionInDays" not in properties:
            yield f"{logical_id}: keeps its log forever; give RetentionInDays"


def check_schedule(resources: dict[str, Any], wanted: Function) -> Iterator[str]:
    """A function with a period has one schedule of that period. A function without a period has none."""
    arn = f"arn:aws:lambda:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:function:{CLUSTER}-{wanted.name}"
    schedules = [s for s in of_type(resources, "AWS::Scheduler::Schedule").values() if s["Target"]["Arn"] == arn]
    if wanted.every_min is None:
        if schedules:
            yield f"{wanted.logical_id}: has a schedule, but no period in the table of functions"
        return
    expected = "rate(1 minute)" if wanted.every_min == 1 else f"rate({wanted.every_min} minutes)"
    if [s["ScheduleExpression"] for s in schedules] != [expected]:
        yield f"{wanted.logical_id}: schedule is {[s['ScheduleExpression'] for s in schedules]}, must be {expected}"
    for schedule in schedules:
        group = f"{CLUSTER}-{wanted.name}" if wanted.routes else None
        if schedule.get("GroupName") != group:
            yield f"{wanted.logical_id}: schedule is in the group {schedule.get('GroupName')}, must be in {group}, whose runs {wanted.logical_id}Silent counts"
        if schedule.get("Name") != f"{CLUSTER}-{wanted.name}":
            yield f"{wanted.logical_id}: schedule {schedule.get('Name')}: a second cluster would use the same name"
        if schedule["Target"].get("RetryPolicy") != {"MaximumRetryAttempts": 0, "MaximumEventAgeInSeconds": 60}:
            yield f"{wanted.logical_id}: schedule retries; the next scheduled run is the retry"
        if schedule.get("State") != "ENABLED":
            yield f"{wanted.logical_id}: schedule is {schedule.get('State')} by default, must be ENABLED"
    if wanted.needs.timeout_s >= wanted.every_min * 60:
        yield f"{wanted.logical_id}: a run may still be running when the next one starts"


def check_events(resources: dict[str, Any]) -> Iterator[str]:
    """EC2's events, new jobs and ended allocs wake poll-and-scale. No other event does."""
    arn = f"arn:aws:lambda:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:function:{CLUSTER}-poll-and-scale"
    wanted = {
        "EC2 Spot Instance Interruption Warning": None,
        "EC2 Capacity Reservation Instance Interruption Warning": None,
        "EC2 Instance Rebalance Recommendation": None,
        "EC2 Instance State-change Notification": {"state": ["stopped", "terminated"]},
    }
    found = {}
    for logical_id, rule in of_type(resources, "AWS::Events::Rule").items():
        pattern = rule["EventPattern"]
        for kind in pattern.get("detail-type", ["anything"]):
            found[kind] = pattern.get("detail")
        is_warning = "EC2 Spot Instance Interruption Warning" in pattern.get("detail-type", [])
        retry = {"MaximumRetryAttempts": 3 if is_warning else 0, "MaximumEventAgeInSeconds": 120 if is_warning else 60}
        if any(target.get("RetryPolicy") != retry for target in rule["Targets"]):
            yield f"{logical_id}: must have the RetryPolicy {retry}"
        if pattern.get("source") != ["aws.ec2"] or [t["Arn"] for t in rule["Targets"]] != [arn]:
            yield f"{logical_id}: must send EC2's events to poll-and-scale"
    for kind in sorted(wanted.keys() ^ found.keys()):
        what = "must wake poll-and-scale, and no rule does" if kind in wanted else "must not wake poll-and-scale"
        yield f"events: {kind}: {what}"
    for kind in sorted(wanted.keys() & found.keys()):
        if found[kind] != wanted[kind]:
            yield f"events: {kind}: filtered for {found[kind]}, must be filtered for {wanted[kind]}"

    streams: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for stream in of_type(resources, "AWS::Lambda::EventSourceMapping").values():
        table = stream["EventSourceArn"].partition("/stream/")[0].rpartition(f"{CLUSTER}-")[2]
        streams.setdefault((stream["FunctionName"].removeprefix(f"{CLUSTER}-"), table), []).append(stream)
    for function, table in sorted(STREAMS.keys() ^ streams.keys()):
        what = f"must wake {function}, and does not" if (function, table) in STREAMS else f"must not wake {function}"
        yield f"events: the stream of the {table} table: {what}"
    for function, table in sorted(STREAMS.keys() & streams.keys()):
        for stream in streams[function, table]:
            yield from check_stream(function, table, stream)


def check_stream(function: str, table: str, stream: dict[str, Any]) -> Iterator[str]:
    """One stream wakes a function: for what it should see, and without getting stuck."""
    what = f"events: the stream of the {table} table, for {function}"
    wanted, should = STREAMS[function, table]
    filters = [json.loads(f["Pattern"]) for f in stream.get("FilterCriteria", {}).get("Filters", [])]
    if filters != [wanted]:
        yield f"{what}: must be filtered for {wanted}, or each write of our own would wake it"
    for field, (value, why) in should.items():
        if stream.get(field) != value:
            yield f"{what}: {field} is {stream.get(field)}, must be {value}, {why}"


def check_job_events(resources: dict[str, Any], contract: Contract, mode: str) -> Iterator[str]:
    """The pipe puts each end of a job on the cluster's bus, once, with fields that each row has. It tells what it gives up."""
    account = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}"
    state = lambda exists: {"end": {"M": {"state": {"S": [{"exists": exists}]}}}}  # noqa: E731
    template = {
        "cluster": CLUSTER,
        "job_id": "<$.dynamodb.Keys.job_id.S>",
        **{field: f"<$.dynamodb.NewImage.end.M.{field}.S>" for field in contract.job_event},
    }
    should = {
        "JobEventBus": {"Name": f"{CLUSTER}-jobs"},
        "JobEventsLostQueue": {"QueueName": f"{CLUSTER}-job-events-lost", "MessageRetentionPeriod": 1209600, "SqsManagedSseEnabled": True},
        "JobEventsPipe": {
            "Name": f"{CLUSTER}-job-events",
            "RoleArn": f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/JobEventsRole",
            "Source": f"arn:aws:dynamodb:{account}:table/{CLUSTER}-jobs/stream/2026-01-01",
            "SourceParameters": {
                # The write that ends a job, and no other write of its row.
                "FilterCriteria": [{"dynamodb": {"NewImage": state(True), "OldImage": state(False)}}],
                "DynamoDBStreamParameters": {
                    "StartingPosition": "LATEST",
                    # A pipe to a bus takes no larger batch.
                    "BatchSize": 10,
                    "MaximumBatchingWindowInSeconds": 1,
                    "OnPartialBatchItemFailure": "AUTOMATIC_BISECT",
                    "MaximumRetryAttempts": 100,
                    "MaximumRecordAgeInSeconds": 3600,
                    "DeadLetterConfig": {"Arn": f"arn:aws:sqs:{account}:{CLUSTER}-job-events-lost"},
                },
            },
            "Target": f"arn:aws:events:{account}:event-bus/{CLUSTER}-jobs",
            "TargetParameters": {
                "EventBridgeEventBusParameters": {"Source": "nodekeeper", "DetailType": "Job ended"},
                "InputTemplate": template,
            },
        },
    }  # fmt: skip
    for name, wanted in should.items():
        found = copy.deepcopy(resources.get(name, {}).get("Properties"))
        if not has_job_events(mode):
            if found is not None:
                yield f"{name}: must not be there in {mode} mode"
            continue
        if found and name == "JobEventsPipe":
            found.pop("Description", None)
            source, target = found["SourceParameters"], found["TargetParameters"]
            source["FilterCriteria"] = [json.loads(f["Pattern"]) for f in source["FilterCriteria"]["Filters"]]
            target["InputTemplate"] = json.loads(target["InputTemplate"])
        for field in sorted(wanted.keys() | (found or {}).keys()):
            if (found or {}).get(field) != wanted.get(field):
                yield f"{name}: {field} is {(found or {}).get(field)}, must be {wanted.get(field)}"


def check_urls(resources: dict[str, Any], contract: Contract, mode: str) -> Iterator[str]:
    """A function has a URL exactly when it has routes. Only the nodes' role may call it, by its two permissions."""
    auth, caller = "AWS_IAM", EXPECTED[mode].node_role
    urls = of_type(resources, "AWS::Lambda::Url")
    granted = []
    for logical_id, grant in of_type(resources, "AWS::Lambda::Permission").items():
        if not grant["Principal"].endswith(".amazonaws.com"):
            granted.append(grant)
        elif "SourceArn" not in grant:
            yield f"{logical_id}: lets {grant['Principal']} invoke on behalf of any account; give SourceArn"
    expected = []
    for wanted in contract.checked_functions():
        if wanted.url is None:
            continue
        function = f"{CLUSTER}-{wanted.name}"
        url = urls.get(wanted.url, {})
        if url.get("AuthType") != auth or not str(url.get("TargetFunctionArn")).endswith(f":function:{function}"):
            yield f"{wanted.url}: must be the URL of {wanted.name} with AuthType {auth} in {mode} mode"
        by_url = {"Action": "lambda:InvokeFunctionUrl", "FunctionUrlAuthType": auth}
        by_invoke = {"Action": "lambda:InvokeFunction", "InvokedViaFunctionUrl": True}
        for grant in (by_url, by_invoke):
            grant = {**grant, "FunctionName": function, "Principal": caller}
            expected.append(grant)
            if grant not in granted:
                yield f"{wanted.url}: needs the permission {json.dumps(grant)} in {mode} mode"
    for logical_id in sorted(urls.keys() - {f.url for f in contract.functions}):
        yield f"{logical_id}: a URL, but no function of the table has routes for it"
    for grant in granted:
        if grant not in expected:
            yield f"permission {json.dumps(grant)}: more than the URLs need in {mode} mode"


def check_least_privilege(resources: dict[str, Any], contract: Contract, mode: str) -> Iterator[str]:
    """Every statement names its actions and its resources. EC2 actions are limited to the cluster's tag."""
    for role, properties in of_type(resources, "AWS::IAM::Role").items():
        if properties.get("ManagedPolicyArns"):
            yield f"{role}: managed policies grant more than is needed; write the statements out"
        statements = properties["AssumeRolePolicyDocument"]["Statement"]
        trusted = [s.get("Principal") for s in statements]
        if any((s.get("Effect"), as_list(s.get("Action"))) != ("Allow", ["sts:AssumeRole"]) for s in statements):
            yield f"{role}: who assumes it needs sts:AssumeRole and nothing else"
        by_name = ["scheduler.amazonaws.com"] if role.endswith("ScheduleRole") else ["lambda.amazonaws.com"]
        allowed = TRUSTED.get(role, by_name)
        if any(as_list(t.get("Service")) != allowed or t.keys() != {"Service"} for t in trusted):
            yield f"{role}: may be assumed by {trusted}; allow only {allowed}"
    granted_by_role: dict[str, set[str]] = {}
    for role, document in policies(resources):
        for statement in document["Statement"]:
            if statement["Effect"] != "Allow" or "NotAction" in statement or "NotResource" in statement:
                yield f"{role}: only Allow with Action and Resource is checked here"
                continue
            for action in as_list(statement["Action"]):
                condition = statement.get("Condition", {})
                yield from check_grant(role, action, as_list(statement["Resource"]), condition, EXPECTED[mode])
                granted_by_role.setdefault(role, set()).update(calls_of(action, as_list(statement["Resource"])))
    for wanted in contract.checked_functions():
        found = granted_by_role.pop(f"{wanted.logical_id}Role", set())
        needed = set(CALLS.get(wanted.name, [])) | stream_calls(STREAM_READERS.get(wanted.name, ()))
        needed |= {"logs:CreateLogStream", "logs:PutLogEvents"} | (launch_calls(mode) if wanted.needs.urls_in_user_data else set())
        if wanted.every_min is not None and granted_by_role.pop(f"{wanted.logical_id}ScheduleRole", None) != {"lambda:InvokeFunction"}:
            yield f"{wanted.logical_id}ScheduleRole: must allow to invoke the function, and nothing else"
        for call in sorted(found - needed):
            yield f"{wanted.logical_id}Role: {call}: the function never makes this call; take the permission away"
        for call in sorted(needed - found):
            yield f"{wanted.logical_id}Role: {call}: the function makes this call; allow it"
    if has_job_events(mode):
        needed = stream_calls(["jobs"]) | {"events:PutEvents", "sqs:SendMessage"}
        for call in sorted(granted_by_role.pop("JobEventsRole", set()) ^ needed):
            yield f"JobEventsRole: {call}: the pipe makes the calls {sorted(needed)}, and no others"
    for who, calls in PEOPLE.items():
        policy = f"{who.capitalize()}Policy"
        needed = set(calls) | reads_of_everything(contract.tables, who)
        if not MODES[mode].get("OutputS3"):
            needed = {call for call in needed if not call.startswith("s3:")}
        found = granted_by_role.pop(policy, set())
        for call in sorted(found - needed):
            yield f"{policy}: {call}: no command of the {who} makes this call; take the permission away"
        for call in sorted(needed - found):
            yield f"{policy}: {call}: a command of the {who} makes this call; allow it"
    launched = {
        arn
        for role, document in policies(resources)
        for statement in document["Statement"]
        if "ec2:RunInstances" in as_list(statement["Action"])
        for arn in as_list(statement["Resource"])
    }
    for arn in sorted(set(ec2_arns(LAUNCHED)) - launched):
        yield f"PollAndScaleRole: ec2:RunInstances: not on {arn}, which a launch needs"
    # `check_nodes` compares the nodes' role word by word.
    granted_by_role.pop("NodeRole", None)
    for role, found in granted_by_role.items():
        if found:
            yield f"{role}: grants {sorted(found)}, but belongs to no function that needs it"
    yield from check_hidden(resources, contract)
    yield from check_follow(resources)


def launch_calls(mode: str) -> set[str]:
    """What EC2 does with the rights of whoever launches."""
    key = ("CreateGrant", "Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")
    of_key = {f"kms:{verb}" for verb in key} if MODES[mode].get("NodeVolumeKeyArn") else set()
    return {"iam:PassRole", "ssm:GetParameters"} | of_key


def reads_of_everything(tables: list[dict[str, Any]], who: str) -> set[str]:
    """All reads of all tables and indexes. A reader does not query rows with an environment: no command does."""
    reads = set()
    for table in tables:
        hidden = who == "reader" and table["without_env"] is not None
        reads.update(f"dynamodb:{verb} {table['name']}" for verb in READS if not (hidden and verb == "Query"))
        reads.update(f"dynamodb:{verb} {table['name']}/{index['name']}" for index in table["indexes"] for verb in READS)
    return reads


def check_hidden(resources: dict[str, Any], contract: Contract) -> Iterator[str]:
    """A reader reads rows that have an environment only by the names of all other attributes."""
    document = resources.get("ReaderPolicy", {}).get("Properties", {}).get("PolicyDocument", {"Statement": []})
    for table in contract.tables:
        if table["without_env"] is None:
            continue
        arn = f"arn:aws:dynamodb:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:table/{CLUSTER}-{table['name']}"
        should = {
            # The call must name attributes ...
            "Null": {"dynamodb:Attributes": "false"},
            "StringEqualsIfExists": {"dynamodb:Select": "SPECIFIC_ATTRIBUTES"},
            # ... and only these.
            "ForAllValues:StringEquals": {"dynamodb:Attributes": table["without_env"]},
        }
        for statement in document["Statement"]:
            if arn in as_list(statement["Resource"]) and statement.get("Condition") != should:
                yield f"ReaderPolicy: {table['name']}: a reader may see environments; the condition must be {json.dumps(should)}"


def check_follow(resources: dict[str, Any]) -> Iterator[str]:
    """A submitter asks nodes for output, and changes nothing else of a node."""
    document = resources.get("SubmitterPolicy", {}).get("Properties", {}).get("PolicyDocument", {"Statement": []})
    arn = f"arn:aws:dynamodb:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:table/{CLUSTER}-nodes"
    should = {
        "Null": {"dynamodb:Attributes": "false"},
        "ForAllValues:StringEquals": {"dynamodb:Attributes": ["follows", "modified_at", "slot", "version"]},
    }
    for statement in document["Statement"]:
        writes = "dynamodb:UpdateItem" in as_list(statement["Action"])
        if writes and arn in as_list(statement["Resource"]) and statement.get("Condition") != should:
            yield f"SubmitterPolicy: nodes: a submitter may change nodes; the condition must be {json.dumps(should)}"


def calls_of(action: str, granted: list[str]) -> set[str]:
    """The calls that a grant allows, in the form of `calls.json`: DynamoDB actions with their table, and all others alone."""
    if not action.startswith("dynamodb:"):
        return {action}
    prefix = f"arn:aws:dynamodb:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:table/{CLUSTER}-"
    tables = {arn.removeprefix(prefix).replace("/index/", "/").replace("/stream/*", "/stream") for arn in granted}
    return {f"{action} {table}" for table in tables}


def check_grant(
    role: str, action: str, granted: list[str], condition: dict[str, Any], expected: Expected
) -> Iterator[str]:
    """One action of one statement."""
    service = action.partition(":")[0]
    own_tables = f"arn:aws:dynamodb:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:table/{CLUSTER}-"
    equals = condition.get("StringEquals", {})
    if "*" in action:
        yield f"{role}: {action}: name each action"
    if "*" in granted and not action.startswith("ec2:Describe") and action not in ("pricing:GetProducts", "servicequotas:ListServiceQuotas"):
        yield f"{role}: {action} on *: name the resources"
    if service == "dynamodb" and not all(r.startswith(own_tables) for r in granted):
        yield f"{role}: {action}: on more than the cluster's own tables and indexes"
    if action == "dynamodb:DeleteItem" and f"{own_tables}nodes" in granted and role != "CleanStaleRecordsRole":
        yield f"{role}: {action}: only clean-stale-records deletes rows of nodes"
    account = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}"
    own = {"events": f"arn:aws:events:{account}:event-bus/{CLUSTER}-jobs", "sqs": f"arn:aws:sqs:{account}:{CLUSTER}-job-events-lost"}
    if service in own and granted != [own[service]]:
        yield f"{role}: {action}: on {granted}, must be only {own[service]}"
    if action in ("sts:AssumeRole", "sts:TagSession") and (role != "GrantCredentialsRole" or granted != [ROLES_ARN]):
        yield f"{role}: {action} on {granted}: only grant-credentials takes roles, and only {ROLES_ARN}"
    if action in ("ec2:TerminateInstances", "ec2:GetConsoleOutput", "sts:AssumeRole", "sts:TagSession"):
        if equals.get("aws:ResourceTag/nodekeeper:cluster") != CLUSTER:
            yield f"{role}: {action}: needs the condition aws:ResourceTag/nodekeeper:cluster = the cluster"
    if action == "ec2:RunInstances" and any(":instance/" in r for r in granted):
        if equals.get("aws:RequestTag/nodekeeper:cluster") != CLUSTER:
            yield f"{role}: {action}: needs the condition aws:RequestTag/nodekeeper:cluster = the cluster"
    if action == "ec2:RunInstances":
        yield from check_launch(role, granted, condition, expected.launch_templates)
        unknown = set(granted) - set(expected.launch_templates) - set(ec2_arns(LAUNCHED))
        if unknown:
            yield f"{role}: {action}: on {sorted(unknown)}, which no launch needs"
    if action == "ec2:CreateTags" and sorted(granted) != sorted(ec2_arns(TAGGED)):
        yield f"{role}: {action}: on {granted}, must be {ec2_arns(TAGGED)}"
    calls = ["CreateFleet", "RunInstances"]
    if action == "ec2:CreateTags" and equals.get("ec2:CreateAction") != calls:
        yield f"{role}: {action}: needs the condition ec2:CreateAction = {calls}"
    if action == "ec2:CreateFleet" and sorted(granted) != sorted(ec2_arns(FLEET)):
        yield f"{role}: {action}: on {granted}, must be {ec2_arns(FLEET)}"
    stored = FILES_ARN if action == "s3:PutObject" else OUTPUT_ARN
    if service == "s3" and role != "NodeRole" and granted != [stored]:
        yield f"{role}: {action}: only what is stored of this cluster, {stored}"
    log = role.removesuffix("Role")
    name = "-".join(word.lower() for word in re.findall("[A-Z][a-z]+", log))
    if service == "logs" and granted != [f"arn:aws:logs:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:log-group:/aws/lambda/{CLUSTER}-{name}:*"]:
        yield f"{role}: {action}: on {granted}, must be only the function's own log"
    if service == "kms" and granted != [KEY_ARN]:
        yield f"{role}: {action}: only the key of the nodes' volumes"
    if service == "ssm" and any(":parameter/aws/service/" not in arn for arn in granted):
        yield f"{role}: {action}: only public parameters"
    to = ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]
    if action == "iam:PassRole" and (granted != [expected.node_role] or equals.get("iam:PassedToService") != to):
        yield f"{role}: {action}: only the nodes' role, and only to EC2"


def ec2_arns(kinds: dict[str, str]) -> list[str]:
    return [f"arn:aws:ec2:{PSEUDO['AWS::Region']}:{account}:{kind}/*" for kind, account in kinds.items()]


def check_launch(
    role: str, granted: list[str], condition: dict[str, Any], templates: list[str]
) -> Iterator[str]:
    """RunInstances starts only what the cluster's launch templates say."""
    named = as_list(condition.get("ArnEquals", {}).get("ec2:LaunchTemplate", []))
    kinds = {arn.split(":", 5)[5].split("/")[0] for arn in granted}
    if kinds == {"launch-template"}:
        if granted != templates:
            yield f"{role}: ec2:RunInstances: may start {granted}, must be limited to {templates}"
    elif kinds - {"spot-instances-request"} and named != templates:
        yield f"{role}: ec2:RunInstances on {sorted(kinds)}: needs the condition ec2:LaunchTemplate = {templates}"
    fixed = kinds & {"image", "key-pair", "placement-group", "security-group", "snapshot"}
    if fixed and condition.get("Bool", {}).get("ec2:IsLaunchTemplateResource") != "true":
        yield f"{role}: ec2:RunInstances on {sorted(fixed)}: a call could name another one; IsLaunchTemplateResource"


def check_nodes(resources: dict[str, Any], mode: str) -> Iterator[str]:
    """The nodes that the stack makes: their metadata, their end, their volume, who reaches them."""
    made = [k for k in ("AgentBucket", "AgentBucketPolicy", "NodeRole", "NodeProfile", "NodeSecurityGroup", "NodeTemplate") if k in resources]
    if mode == "own":
        yield from (f"{name}: made although NodeRoleArn names a role" for name in made)
        return
    template = of_type(resources, "AWS::EC2::LaunchTemplate").get("NodeTemplate", {})
    data = template.get("LaunchTemplateData", {})
    volume = {
        "VolumeSize": 30, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True,
    }  # fmt: skip
    should = {
        "ImageId": "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        "IamInstanceProfile": {"Arn": f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:instance-profile/NodeProfile"},
        "SecurityGroupIds": ["GroupId of NodeSecurityGroup"],
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "BlockDeviceMappings": [{"DeviceName": MODES[mode].get("NodeRootDevice", "/dev/xvda"), "Ebs": volume}],
    }
    if template.get("LaunchTemplateName") != f"{CLUSTER}-node":
        yield f"NodeTemplate: its name is {template.get('LaunchTemplateName')}, must be {CLUSTER}-node"
    for field in sorted(should.keys() | data.keys()):
        if data.get(field) != should.get(field):
            yield f"NodeTemplate: {field} is {data.get(field)}, must be {should.get(field)}"
    if resources.get("NodeProfile", {}).get("Properties", {}).get("Roles") != ["NodeRole"]:
        yield "NodeProfile: must have the role NodeRole"
    role = resources.get("NodeRole", {}).get("Properties", {})
    bucket = f"arn:aws:s3:::{CLUSTER}-agentbucket"
    fetch = [{"Sid": "Agent", "Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{bucket}/nodekeeper-agent-*"}]
    allowed = [statement for policy in role.get("Policies", []) for statement in policy["PolicyDocument"]["Statement"]]
    if MODES[mode].get("OutputS3"):
        fetch.append({"Sid": "Output", "Effect": "Allow", "Action": "s3:PutObject", "Resource": OUTPUT_ARN})
        fetch.append({"Sid": "Files", "Effect": "Allow", "Action": "s3:GetObject", "Resource": FILES_ARN})
    if set(role) - {"AssumeRolePolicyDocument", "Description", "Policies"} or allowed != fetch:
        yield "NodeRole: must allow nothing but to fetch the agent, to store outputs and to read inputs: a job may get to its credentials"
    yield from check_bucket(resources, bucket)
    group = resources.get("NodeSecurityGroup", {}).get("Properties", {})
    if group.keys() - {"GroupDescription", "VpcId"}:
        yield "NodeSecurityGroup: must have no rules of its own"
    own = "GroupId of NodeSecurityGroup"
    for name, rule in of_type(resources, "AWS::EC2::SecurityGroupIngress").items():
        if (rule.get("GroupId"), rule.get("SourceSecurityGroupId"), rule.get("IpProtocol")) != (own, own, "-1"):
            yield f"{name}: must let only the nodes of the cluster reach each other"


def check_bucket(resources: dict[str, Any], arn: str) -> Iterator[str]:
    """The bucket of the agent is closed to the public and to plain HTTP."""
    should = {
        "BucketEncryption": {
            "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
        },
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "PublicAccessBlockConfiguration": dict.fromkeys(
            ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True
        ),
    }
    if list(of_type(resources, "AWS::S3::Bucket").values()) != [should]:
        yield f"AgentBucket: there must be one bucket, with {json.dumps(should)}"
    only_tls = {
        "Sid": "OnlyTls", "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": [arn, f"{arn}/*"],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }  # fmt: skip
    policies = [p["PolicyDocument"]["Statement"] for p in of_type(resources, "AWS::S3::BucketPolicy").values()]
    if policies != [[only_tls]]:
        yield f"AgentBucketPolicy: must be {json.dumps(only_tls)}"


def check_alarms(resources: dict[str, Any], contract: Contract, mode: str) -> Iterator[str]:
    """Each alarm can go off, and has a receiver: on errors, throttles, refusals, silence, and what the runs found."""
    alarms = of_type(resources, "AWS::CloudWatch::Alarm")
    expected = {"NodesNotReady": not_ready(mode)}
    for wanted in contract.checked_functions():
        function = f"{CLUSTER}-{wanted.name}"
        expected[f"{wanted.logical_id}Errors"] = {"AlarmName": f"{function}-errors", **counts(function, "Errors", 2)}
        expected[f"{wanted.logical_id}Throttles"] = {"AlarmName": f"{function}-throttles", **counts(function, "Throttles", 2)}
        if wanted.routes:
            # Strangers may call a URL. What they cost is limited by UrlConcurrency, and this tells somebody.
            refused = {"ComparisonOperator": "GreaterThanThreshold", "Threshold": 1000}
            expected[f"{wanted.logical_id}Refused"] = {
                "AlarmName": f"{function}-refused", **counts(function, "Url4xxCount", 1), **refused
            }  # fmt: skip
        if wanted.every_min is not None:
            expected[f"{wanted.logical_id}Silent"] = {"AlarmName": f"{function}-silent", **silence(function, wanted)}
            expected[f"{wanted.logical_id}Signs"] = {"AlarmName": f"{function}-signs", **wrong_signs(wanted, 1)}
            expected[f"{wanted.logical_id}MoreSigns"] = {"AlarmName": f"{function}-more-signs", **wrong_signs(wanted, 2)}
    if has_job_events(mode):
        expected["JobEventsLost"] = LOST_EVENTS
    yield from check_told(alarms, contract)
    topics = [f"arn:aws:sns:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:{t}" for t in of_type(resources, "AWS::SNS::Topic")]
    if [t.get("TopicName") for t in of_type(resources, "AWS::SNS::Topic").values()] != [f"{CLUSTER}-alarms"]:
        yield f"AlarmTopic: there must be one topic, {CLUSTER}-alarms"
    email = MODES[mode].get("AlarmEmail")
    told = [{"TopicArn": topic, "Protocol": "email", "Endpoint": email} for topic in topics if email]
    subscribed = list(of_type(resources, "AWS::SNS::Subscription").values())
    if len(subscribed) != len(told) or any(subscription not in told for subscription in subscribed):
        yield f"AlarmSubscription: must be {told} in {mode} mode"
    for name in sorted(expected.keys() | alarms.keys()):
        alarm, should = alarms.get(name, {}), expected.get(name, {})
        if alarm.get("AlarmActions") != topics:
            yield f"{name}: has no receiver; give AlarmActions"
        if alarm.get("OKActions") != topics:
            yield f"{name}: does not say when it is over; give OKActions"
        if not alarm.get("AlarmDescription"):
            yield f"{name}: does not say what it means; give AlarmDescription"
        for field in sorted((should.keys() | alarm.keys()) - {"AlarmActions", "AlarmDescription", "OKActions"}):
            if alarm.get(field) != should.get(field):
                yield f"{name}: {field} is {alarm.get(field)}, must be {should.get(field)}"
        if "MetricName" in alarm:
            dimensions = {d["Name"]: d["Value"] for d in alarm.get("Dimensions", [])}
            if not contract.emits(alarm.get("Namespace", ""), alarm["MetricName"], dimensions):
                yield f"{name}: nothing emits {alarm.get('Namespace')} {alarm['MetricName']} {dimensions}"


# The alarm that goes off while there are messages about lost events.
LOST_EVENTS = {
    "AlarmName": f"{CLUSTER}-job-events-lost",
    "Namespace": "AWS/SQS",
    "MetricName": "ApproximateNumberOfMessagesVisible",
    "Dimensions": [{"Name": "QueueName", "Value": f"{CLUSTER}-job-events-lost"}],
    "Statistic": "Maximum",
    "Period": 300,
    "EvaluationPeriods": 1,
    "Threshold": 1,
    "ComparisonOperator": "GreaterThanOrEqualToThreshold",
    # SQS has no data of a queue that nobody used for hours.
    "TreatMissingData": "notBreaching",
}


def check_told(alarms: dict[str, Any], contract: Contract) -> Iterator[str]:
    """Each sign that a function tells has its alarms, and whoever gets a mail learns where to look for which sign it is."""
    by_name = {alarm.get("AlarmName"): alarm.get("AlarmDescription", "") for alarm in alarms.values()}
    for told in contract.metrics["signs"]:
        names = [told["alarm"]]
        if told["alarm"].endswith("-signs"):
            names.append(f"{told['alarm'].removesuffix('signs')}more-signs")
        for name in (f"{CLUSTER}-{name}" for name in names):
            if name not in by_name:
                yield f"sign {told['sign']}: the alarm {name} is missing"
            elif told["alarm"].endswith("-signs"):
                for word in (f"`{told['sign']}`", "`nodekeeper status`", "SignsWrong"):
                    if word not in by_name[name]:
                        yield f"sign {told['sign']}: the description of {name} does not say {word}"


def wrong_signs(function: Function, least: int) -> dict[str, Any]:
    """An alarm that goes off when so many signs of a function are wrong in so many of its last runs."""
    enough, of = WRONG_RUNS if function.every_min == 1 else WRONG_RARE_RUNS
    return {
        "Namespace": "nodekeeper",
        "MetricName": "SignsWrong",
        "Dimensions": [{"Name": "Cluster", "Value": CLUSTER}, {"Name": "Function", "Value": function.name}],
        "Statistic": "Maximum",
        "Period": function.period_s,
        "EvaluationPeriods": of,
        "DatapointsToAlarm": enough,
        "Threshold": least,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        # A function without a wrong sign emits nothing. Silence has an alarm of its own.
        "TreatMissingData": "notBreaching",
    }


def not_ready(mode: str) -> dict[str, Any]:
    """An alarm that goes off when nodes are wanted and not ready for half an hour."""
    return {
        "AlarmName": f"{CLUSTER}-nodes-not-ready",
        "Namespace": "nodekeeper",
        "MetricName": "NodesNotReady",
        "Dimensions": [{"Name": "Cluster", "Value": CLUSTER}, {"Name": "Function", "Value": "poll-and-scale"}],
        # Nodes boot one after the other in a growing fleet, so the most that were not ready in a period say nothing.
        "Statistic": "Minimum",
        "Period": 300,
        "EvaluationPeriods": 6,
        "DatapointsToAlarm": 6,
        "Threshold": MODES[mode].get("NotReadyNodesAlarm", 0),
        "ComparisonOperator": "GreaterThanThreshold",
        # An idle cluster emits nothing.
        "TreatMissingData": "notBreaching",
    }


def counts(function: str, metric: str, periods: int) -> dict[str, Any]:
    """An alarm that goes off when Lambda counts one of these in each of so many periods of five minutes."""
    return {
        "Namespace": "AWS/Lambda",
        "MetricName": metric,
        "Dimensions": [{"Name": "FunctionName", "Value": function}],
        "Statistic": "Sum",
        "Period": 300,
        "EvaluationPeriods": periods,
        "Threshold": 1,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        # An idle fleet sends nothing. Silence has an alarm of its own.
        "TreatMissingData": "notBreaching",
    }


def silence(function: str, wanted: Function) -> dict[str, Any]:
    """An alarm that goes off when there was no run for five periods."""
    return {
        **(scheduled_runs(function) if wanted.routes else runs(function)),
        "EvaluationPeriods": SILENT_PERIODS * (wanted.every_min or 0) * 60 // 300,
        "Threshold": 1,
        "ComparisonOperator": "LessThanThreshold",
        # A function that never runs produces no data.
        "TreatMissingData": "breaching",
    }


def runs(function: str) -> dict[str, Any]:
    """Each invocation is a run. Errors have an alarm of their own."""
    dimensions = [{"Name": "FunctionName", "Value": function}]
    return {"Namespace": "AWS/Lambda", "MetricName": "Invocations", "Dimensions": dimensions, "Statistic": "Sum", "Period": 300}


def scheduled_runs(function: str) -> dict[str, Any]:
    """Nodes invoke the function too. So invocations do not show whether its schedule works."""
    # An attempt counts also if the function was not started, and then there may be no error of the function.
    parts = {
        "runs": ("AWS/Scheduler", "InvocationAttemptCount", "ScheduleGroup"),
        "refused": ("AWS/Scheduler", "TargetErrorCount", "ScheduleGroup"),
        "errors": ("AWS/Lambda", "Errors", "FunctionName"),
    }
    metrics = [{"Id": "successes", "Expression": "runs - errors - FILL(refused, 0)", "ReturnData": True}]
    for name, (namespace, metric, dimension) in parts.items():
        dimensions = [{"Name": dimension, "Value": function}]
        metric_of = {"Namespace": namespace, "MetricName": metric, "Dimensions": dimensions}
        metrics.append({"Id": name, "ReturnData": False, "MetricStat": {"Metric": metric_of, "Period": 300, "Stat": "Sum"}})
    return {"Metrics": metrics}


def check_dashboard(resources: dict[str, Any], contract: Contract, mode: str) -> Iterator[str]:
    """Each graph shows a metric that something emits, and the dashboard shows all alarms."""
    dashboards = list(of_type(resources, "AWS::CloudWatch::Dashboard").values())
    wanted = 1 if MODES[mode].get("HasDashboard") == "true" else 0
    if len(dashboards) != wanted:
        yield f"dashboard: {len(dashboards)} in {mode} mode, must be {wanted}"
    for dashboard in dashboards:
        widgets = json.loads(dashboard["DashboardBody"])["widgets"]
        for properties in (w["properties"] for w in widgets if w["type"] == "metric"):
            for namespace, name, *dimensions in properties["metrics"]:
                pairs = dict(zip(dimensions[::2], dimensions[1::2], strict=True))
                if not contract.emits(namespace, name, pairs):
                    yield f"dashboard: {properties['title']}: nothing emits {namespace} {name} {pairs}"
        shown = {a for w in widgets if w["type"] == "alarm" for a in w["properties"]["alarms"]}
        account = f"{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}"
        alarms = {f"arn:aws:cloudwatch:{account}:alarm:{name}" for name in of_type(resources, "AWS::CloudWatch::Alarm")}
        for arn in sorted(shown ^ alarms):
            yield f"dashboard: {arn}: {'not an alarm of the stack' if arn in shown else 'an alarm that it does not show'}"


def check_outputs(values: Values, template: dict[str, Any], contract: Contract) -> Iterator[str]:
    """The stack says what a node's image, an operator or another stack needs to know."""
    found = values.of({k: o["Value"] for k, o in template.get("Outputs", {}).items()})
    should = {
        **{f.url: f"FunctionUrl of {f.url}" for f in contract.functions if f.url},
        **{f"{t['name'].capitalize()}Table": f"{CLUSTER}-{t['name']}" for t in contract.tables},
        "JobEventBus": f"{CLUSTER}-jobs",
        "GrantCredentialsRole": f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/GrantCredentialsRole",
    }
    for name in sorted(found.keys() - should.keys() - {"AgentBucket", "AlarmTopic", "NodeTemplate", *(f"{w.capitalize()}Policy" for w in PEOPLE)}):
        yield f"output {name}: nobody needs it"
    for name, value in should.items():
        if found.get(name) != value:
            yield f"output {name}: is {found.get(name)}, must be {value}"


# ---- All checks ---------------------------------------------------------------------------------------------


def needs_unmet(source: dict[str, Any], expansion: dict[str, Any], contract: Contract) -> Iterator[str]:
    """Everything that the project needs and the template does not have, in each mode."""
    yield from check_definitions(contract.tables)
    yield from check_contract(contract)
    yield from check_parameters(source)
    yield from check_source(source, contract)
    yield from check_rules(expansion)
    for mode, parameters in MODES.items():
        values = Values(expansion, parameters)
        resources = values.live_resources()
        yield from check_picture(expansion, resources, contract)
        yield from check_tables(resources, contract.tables)
        for name, table in of_type(resources, "AWS::DynamoDB::Table").items():
            is_kept = table["TableName"].removeprefix(f"{CLUSTER}-") not in SHORT_LIVED
            if is_kept and table.get("DeletionProtectionEnabled") != EXPECTED[mode].protected:
                yield f"{name}: DeletionProtectionEnabled must be the parameter DeletionProtection"
        yield from check_functions(resources, contract, mode)
        yield from check_events(resources)
        yield from check_job_events(resources, contract, mode)
        yield from check_urls(resources, contract, mode)
        yield from check_least_privilege(resources, contract, mode)
        yield from check_nodes(resources, mode)
        yield from check_alarms(resources, contract, mode)
        yield from check_dashboard(resources, contract, mode)
        yield from check_outputs(values, expansion, contract)
        # SAM makes the schedules' roles. What they grant is checked above; how they are written is SAM's choice.
        yield from analyse_policies({k: r for k, r in resources.items() if k in source["Resources"]})


def check(text: str, contract: Contract) -> Iterator[str]:
    """All findings, each once. The cheap checks come first."""
    try:
        source = yaml_parse(text)
        expansion = expand(source)
    except Exception as error:  # the reason why the template cannot be read or expanded is the finding
        yield f"template: cannot be expanded: {str(error) or type(error).__name__}"
        return
    try:
        yield from dict.fromkeys(needs_unmet(source, expansion, contract))
    except Exception as error:  # whatever is missing or of another kind is the finding
        yield f"template: has a shape that cannot be checked: {type(error).__name__}: {error}"
    # The template tells `sam validate` to ignore two rules. Here only the parameters are excepted that need it.
    yield from lint(text.replace("ignore_checks: [W1030, W2506]", "ignore_checks: []"), "source")
    yield from lint(json.dumps({k: v for k, v in expansion.items() if k != "Metadata"}), "expansion")


def parameter(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is no parameter: write PARAMETER=VALUE")
    return name, value


def documents(text: str, parameters: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What each role and each managed policy of the template allows: its policy documents by its logical id."""
    resources = Values(expand(yaml_parse(text)), {"ClusterName": CLUSTER, **parameters}).live_resources()
    roles = of_type(resources, "AWS::IAM::Role")
    allowed = {name: [p["PolicyDocument"] for p in role.get("Policies", [])] for name, role in roles.items()}
    managed = of_type(resources, "AWS::IAM::ManagedPolicy")
    return allowed | {name: [policy["PolicyDocument"]] for name, policy in managed.items()}


def main() -> int:
    arguments = argparse.ArgumentParser(description="Checks infra/template.yaml, offline.")
    arguments.add_argument(
        "--contract", help="what `nodekeeper init --print-contract` prints; - for standard input"
    )
    arguments.add_argument("--template", type=Path, default=TEMPLATE)
    arguments.add_argument(
        "--print-policies", nargs="*", metavar="PARAMETER=VALUE", type=parameter,
        help="only print what each role and managed policy allows, as JSON, with these parameters of the template",
    )  # fmt: skip
    options = arguments.parse_args()
    if options.print_policies is not None:
        print(json.dumps(documents(options.template.read_text(), dict(options.print_policies))))
        return 0
    if options.contract is None:
        arguments.error("--contract is needed: give what `nodekeeper init --print-contract` prints")

    start = time.monotonic()
    document = json.load(sys.stdin) if options.contract == "-" else json.loads(Path(options.contract).read_text())
    text = options.template.read_text()
    findings = [*check(text, Contract.read(document)), *lint(NOTIFY.read_text(), NOTIFY.name)]
    for finding in findings:
        print(" ".join(finding.split()))  # a linter's message may have several lines
    print(f"{options.template}: {len(findings) or 'no'} findings in {time.monotonic() - start:.1f} s", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
