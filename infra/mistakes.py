#!/usr/bin/env python3
"""Plants mistakes in the three templates of infra/ and in the contract, and proves that `check.py` finds each of them.

    nodekeeper contract > contract.json
    infra/mistakes.py --contract contract.json                        the chosen mistakes, and 12 drawn ones of each kind
    infra/mistakes.py --contract contract.json --draw 200 --seed 7    other drawn ones

A chosen mistake is one that somebody could make: it has a name and the words of its finding. The drawn mistakes are
systematic: each property, statement and value of a template can be deleted, widened, renamed or changed, and everything that
CloudFormation knows can be added: each property of each resource, statements, events, resources. Each user of a parameter can ignore
it, always or in one of the ways to deploy, and each condition of a statement can be weakened. A drawn mistake may survive only if
`HARMLESS` says why it does not matter, or if the stack is the same with it for many choices of the parameters.
"""

import argparse
import copy
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import check
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from check import ABSENT, PROJECTED_BY_INDEX, Contract, yaml_parse

# ---- Self-test ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A change that the check must find, and the words that the finding must contain."""

    name: str
    make: Callable[[dict[str, Any]], None]
    finding: str
    file: Path = check.TEMPLATE


def properties(logical_id: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda t: t["Resources"][logical_id]["Properties"]


def put(logical_id: str, *path: Any, value: Any = ABSENT) -> Callable[[dict[str, Any]], None]:
    """Sets a property, or removes it."""

    def make(template: dict[str, Any]) -> None:
        *way, last = path
        place: Any = properties(logical_id)(template)
        for step in way:
            place = place[step]
        if value is ABSENT:
            del place[last]
        else:
            place[last] = value

    return make


def statement(role: str, sid: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], None]:
    def make(template: dict[str, Any]) -> None:
        document = properties(role)(template)["Policies"][0]["PolicyDocument"]
        change(next(s for s in document["Statement"] if s.get("Sid") == sid))

    return make


def drop(section: str, name: str) -> Callable[[dict[str, Any]], None]:
    return lambda t: t[section].pop(name)


def index(logical_id: str, *path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return put(logical_id, "GlobalSecondaryIndexes", 0, *path, value=value)


def pattern(template: dict[str, Any], gone: str) -> None:
    """Takes this out of the filter of the pipe."""
    found = properties("JobEventsPipe")(template)["SourceParameters"]["FilterCriteria"]["Filters"][0]
    assert gone in found["Pattern"]
    found["Pattern"] = found["Pattern"].replace(gone, "")


def template_of_event(template: dict[str, Any], old: str, new: str) -> None:
    """Changes the text of the event."""
    found = properties("JobEventsPipe")(template)["TargetParameters"]["InputTemplate"]
    assert old in found["Fn::Sub"]
    found["Fn::Sub"] = found["Fn::Sub"].replace(old, new)


def dashboard(template: dict[str, Any], old: str, new: str) -> None:
    """Changes the text of the dashboard."""
    body = properties("Dashboard")(template)["DashboardBody"]["Fn::Sub"]
    body[0] = body[0].replace(old, new)


def row(function: str, **change: Any) -> Callable[[dict[str, Any]], None]:
    """Changes a row of the table of functions."""
    return lambda c: next(f for f in c["functions"] if f["name"] == function).update(change)


def widest_index(contract: dict[str, Any]) -> dict[str, Any]:
    return next(i for t in contract["tables"] for i in t["indexes"] if i["projection"]["type"] == "INCLUDE")


# A table, so each row is one line, however long.
MISTAKES = [
    # Tables
    Mistake("output ends with the stack", lambda t: t["Resources"]["OutputBucket"].update(DeletionPolicy="Delete"), "OutputBucket.DeletionPolicy"),
    Mistake("TTL where none belongs", put("NodesTable", "TimeToLiveSpecification", value={"AttributeName": "expires_at", "Enabled": True}), "NodesTable.TimeToLiveSpecification"),
    Mistake("command in the queue", lambda t: properties("JobsTable")(t)["GlobalSecondaryIndexes"][0]["Projection"]["NonKeyAttributes"].append("command"), "JobsTable.GlobalSecondaryIndexes.3.Projection.NonKeyAttributes"),
    Mistake("everything in the index of live allocs", index("AllocsTable", "Projection", value={"ProjectionType": "ALL"}), "AllocsTable.GlobalSecondaryIndexes.1.Projection.NonKeyAttributes"),
    # Functions
    Mistake("the wrong binary", lambda t: t["Resources"]["SweepDispatch"]["Metadata"]["BuildProperties"].update(Binary="heartbeat-ingest"), "builds the binary heartbeat-ingest"),
    Mistake("another build method", lambda t: t["Resources"]["PollAndScale"]["Metadata"].update(BuildMethod="makefile"), "BuildMethod"),
    Mistake("another architecture", lambda t: t["Globals"]["Function"].update(Architectures=["x86_64"]), "Architectures"),
    # Nodes
    Mistake("metadata without a token", put("NodeTemplate", "LaunchTemplateData", "MetadataOptions", "HttpTokens", value="optional"), "MetadataOptions"),
    Mistake("nodes may change the agent", statement("NodeRole", "Agent", lambda s: s.update(Action=["s3:GetObject", "s3:PutObject"])), "NodeRole: Allow s3:PutObject on"),
    Mistake("two networks", lambda t: t["Rules"].pop("OneNetwork"), "Rules: NodeRoleArn '', LaunchTemplateArns [''], VpcId 'vpc-0123', MakeNetwork 'true' must be refused"),
    Mistake("a third zone that not every region has", put("ThirdSubnet", "AvailabilityZone", value={"Fn::Select": [2, {"Fn::GetAZs": ""}]}), "a list of 2 has no member 2"),
    Mistake("subnets in one zone", put("SecondSubnet", "AvailabilityZone", value={"Fn::Select": [0, {"Fn::GetAZs": ""}]}), "SecondSubnet.AvailabilityZone"),
    Mistake("a role for whoever asks", put("NodeRole", "AssumeRolePolicyDocument", "Statement", 0, "Principal", value={"AWS": "*"}), "NodeRole.AssumeRolePolicyDocument: Allow sts:AssumeRole by AWS *"),
    Mistake("a misspelled runtime", lambda t: t["Globals"]["Function"].update(Runtime="provided.al2024"), "Runtime"),
    Mistake("a schedule that is no expression", put("CleanStaleRecords", "Events", "Schedule", "Properties", "ScheduleExpression", value="rate(5 minute)"), "CleanStaleRecordsSchedule.ScheduleExpression"),
    Mistake("the URLs swapped", put("PollAndScale", "Environment", "Variables", "NODEKEEPER_SWEEP_URL", value={"Fn::GetAtt": ["HeartbeatUrl", "FunctionUrl"]}), "NODEKEEPER_SWEEP_URL"),
    Mistake("functions that need each other", put("HeartbeatIngest", "Environment", "Variables", "POLL", value={"Ref": "PollAndScale"}), "ircular"),
    # Events
    Mistake("new jobs wait for a batch", put("PollAndScale", "Events", "NewJobs", "Properties", "MaximumBatchingWindowInSeconds", value=5), "PollAndScaleNewJobs.MaximumBatchingWindowInSeconds"),
    Mistake("a stream of whole rows", put("AllocsTable", "StreamSpecification", "StreamViewType", value="NEW_AND_OLD_IMAGES"), "AllocsTable.StreamSpecification.StreamViewType"),
    # URLs
    # Policies
    Mistake("roles of other accounts", statement("GrantCredentialsRole", "RolesOfJobs", lambda s: s.update(Resource="arn:aws:iam::*:role/*")), "GrantCredentialsRole: Allow sts:AssumeRole on"),
    Mistake("somebody else's table", statement("HeartbeatIngestRole", "Nodes", lambda s: s.update(Resource={"Fn::Sub": "arn:aws:dynamodb:${AWS::Region}:${AWS::AccountId}:table/*"})), "HeartbeatIngestRole: Allow dynamodb:BatchGetItem on"),
    Mistake("an action that does not exist", statement("HeartbeatIngestRole", "Nodes", lambda s: s["Action"].append("dynamodb:ReadItem")), "UNKNOWN_ACTION"),
    Mistake("the condition on a request's tag", statement("PollAndScaleRole", "OwnInstances", lambda s: s.update(Condition={"StringEquals": {"aws:RequestTag/nodekeeper:cluster": {"Ref": "ClusterName"}}})), "ResourceTag"),
    Mistake("any launch template", statement("PollAndScaleRole", "LaunchTemplates", lambda s: s.update(Resource={"Fn::Sub": "arn:aws:ec2:${AWS::Region}:${AWS::AccountId}:launch-template/*"})), "PollAndScaleRole: Allow ec2:RunInstances on"),
    Mistake("any parameter", statement("PollAndScaleRole", "Image", lambda s: s.update(Resource={"Fn::Sub": "arn:aws:ssm:${AWS::Region}:*:parameter/*"})), "PollAndScaleRole: Allow ssm:GetParameters on"),
    Mistake("an image's parameter by one call only", statement("PollAndScaleRole", "Image", lambda s: s.update(Action=["ssm:GetParameters"])), "PollAndScaleRole: Allow ssm:GetParameter on"),
    Mistake("sweep-dispatch may launch", statement("SweepDispatchRole", "Events", lambda s: s.update(Action=["ec2:RunInstances"])), "SweepDispatchRole: Allow ec2:RunInstances on"),
    Mistake("heartbeats may delete nodes", statement("HeartbeatIngestRole", "Nodes", lambda s: s["Action"].append("dynamodb:DeleteItem")), "HeartbeatIngestRole: Allow dynamodb:DeleteItem on"),
    Mistake("heartbeats may make jobs", statement("HeartbeatIngestRole", "Jobs", lambda s: s["Action"].append("dynamodb:PutItem")), "HeartbeatIngestRole: Allow dynamodb:PutItem on"),
    Mistake("sweep-dispatch may read jobs", statement("SweepDispatchRole", "Nodes", lambda s: s.update(Resource=[s["Resource"], {"Fn::GetAtt": ["JobsTable", "Arn"]}])), "SweepDispatchRole: Allow dynamodb:ConditionCheckItem on"),
    Mistake("an index that is not allowed", statement("SweepDispatchRole", "HandlesDue", lambda s: s.update(Resource={"Fn::GetAtt": ["HandlesTable", "Arn"]})), "SweepDispatchRole: Allow dynamodb:Query on"),
    Mistake("a function without its log", statement("SweepDispatchRole", "Log", lambda s: s.update(Action="logs:PutLogEvents")), "SweepDispatchRole: Allow logs:CreateLogStream on"),
    Mistake("another function's log", statement("SweepDispatchRole", "Log", lambda s: s.update(Resource={"Fn::GetAtt": ["PollAndScaleLog", "Arn"]})), "SweepDispatchRole: Allow logs:CreateLogStream on"),
    Mistake("a role of one's own without templates", lambda t: t["Rules"].pop("OwnRole"), "must be refused"),
    Mistake("a role for every account", put("SweepDispatchRole", "AssumeRolePolicyDocument", "Statement", 0, "Principal", value={"AWS": "*"}), "SweepDispatchRole.AssumeRolePolicyDocument: Allow sts:AssumeRole by AWS *"),
    Mistake("nodes may read outputs", lambda t: properties("NodeRole")(t)["Policies"][0]["PolicyDocument"]["Statement"][-2].update(Action=["s3:PutObject", "s3:GetObject"]), "NodeRole: Allow s3:GetObject on"),
    Mistake("nodes may write outputs of other clusters", lambda t: properties("NodeRole")(t)["Policies"][0]["PolicyDocument"]["Statement"][-2].update(Resource={"Fn::Sub": "arn:${AWS::Partition}:s3:::demo-logs/nodes/*"}), "NodeRole: Allow s3:PutObject on"),
    Mistake("poll-and-scale may read prices", statement("PollAndScaleRole", "Observe", lambda s: s.update(Action=["ec2:DescribeInstances", "pricing:GetProducts"])), "PollAndScaleRole: Allow pricing:GetProducts on"),
    Mistake("operators may read any bucket", lambda t: properties("OperatorPolicy")(t)["PolicyDocument"]["Statement"][-2].update(Resource="*"), "OperatorPolicy: Allow s3:GetObject on"),
    Mistake("submitters may overwrite outputs", lambda t: properties("SubmitterPolicy")(t)["PolicyDocument"]["Statement"][-1].update(Resource={"Fn::Sub": "arn:${AWS::Partition}:s3:::demo-logs/nodes/${ClusterName}/*"}), "SubmitterPolicy: Allow s3:PutObject on"),
    Mistake("nodes may read what other jobs printed", lambda t: properties("NodeRole")(t)["Policies"][0]["PolicyDocument"]["Statement"][-1].update(Resource={"Fn::Sub": "arn:${AWS::Partition}:s3:::demo-logs/nodes/${ClusterName}/*"}), "NodeRole: Allow s3:GetObject on"),
    Mistake("submitters may not read outputs", lambda t: properties("SubmitterPolicy")(t)["PolicyDocument"]["Statement"].pop(-2), "SubmitterPolicy: Allow s3:GetObject on"),
    # Alarms, outputs
    Mistake("a query that leaves a function out", lambda t: properties("TroubleQuery")(t)["LogGroupNames"].pop(), "TroubleQuery.LogGroupNames"),
    Mistake("silence hidden by reports", put("SweepDispatchSilent", "Metrics", 1, "MetricStat", "Metric", value={"Namespace": "AWS/Lambda", "MetricName": "Invocations", "Dimensions": [{"Name": "FunctionName", "Value": {"Ref": "SweepDispatch"}}]}), "SweepDispatchSilent.Metrics.1.MetricStat.Metric.Dimensions.Name"),
    Mistake("an alarm on another function", put("HeartbeatIngestErrors", "Dimensions", 0, "Value", value={"Ref": "SweepDispatch"}), "HeartbeatIngestErrors"),
    Mistake("an alarm of another name", put("PollAndScaleSigns", "AlarmName", value="x"), "PollAndScaleSigns.AlarmName"),
    Mistake("a mail that does not say where to look", put("SweepDispatchSigns", "AlarmDescription", value="See `nodekeeper status`, and SignsWrong."), "SweepDispatchSigns.AlarmDescription"),
    Mistake("a mail that names a wrong time", put("CleanStaleRecordsSilent", "AlarmDescription", value="clean-stale-records has had no run for 5 minutes. See its schedule."), "CleanStaleRecordsSilent.AlarmDescription"),
    Mistake("an alarm on another function's signs", put("CleanStaleRecordsSigns", "Dimensions", 1, "Value", value="poll-and-scale"), "CleanStaleRecordsSigns.Dimensions.1.Value"),
    Mistake("an alarm on another cluster", put("PollAndScaleSigns", "Dimensions", 0, "Value", value="other"), "PollAndScaleSigns.Dimensions.0.Value"),
    Mistake("an alarm for more signs that one raises", put("PollAndScaleMoreSigns", "Threshold", value=1), "PollAndScaleMoreSigns.Threshold"),
    Mistake("an alarm that a sum raises", put("CleanStaleRecordsSigns", "Statistic", value="Sum"), "CleanStaleRecordsSigns.Statistic"),
    Mistake("an alarm in every fleet that grows", put("NodesNotReady", "Statistic", value="Maximum"), "NodesNotReady.Statistic"),
    Mistake("an alarm that the dashboard does not show", lambda t: dashboard(t, '"${PollAndScaleSigns.Arn}",', ""), "Dashboard.DashboardBody.widgets.8.properties.alarms"),
    Mistake("a graph of another function's metric", lambda t: dashboard(t, '"NodesNotReady", "Cluster", "${ClusterName}", "Function", "poll-and-scale"', '"NodesNotReady", "Cluster", "${ClusterName}", "Function", "sweep-dispatch"'), "Dashboard.DashboardBody.widgets.2.properties.metrics.3.5"),
    Mistake("an alarm of the job events that the dashboard does not show", lambda t: dashboard(t, "${MoreAlarms}", ""), "Dashboard.DashboardBody.widgets.8.properties.alarms"),
    # Job events
    Mistake("a pipe that sends each change of a job", put("JobEventsPipe", "SourceParameters", "FilterCriteria", "Filters", value=[]), "JobEventsPipe.SourceParameters.FilterCriteria.Filters"),
    Mistake("an end is told with each later change", lambda t: pattern(t, ',"OldImage":{"end":{"M":{"state":{"S":[{"exists":false}]}}}}'), "JobEventsPipe.SourceParameters.FilterCriteria.Filters.Pattern.dynamodb.OldImage"),
    Mistake("a stream that does not show what ends", put("JobsTable", "StreamSpecification", "StreamViewType", value="NEW_IMAGE"), "JobsTable.StreamSpecification.StreamViewType"),
    Mistake("a field that no row has", lambda t: template_of_event(t, "end.M.cause.S", "tries.M.cause.M.kind.S"), "JobEventsPipe.TargetParameters.InputTemplate.cause"),
    Mistake("an event with the environment", lambda t: template_of_event(t, '"cluster"', '"env": <$.dynamodb.NewImage.env.M>, "cluster"'), "JobEventsPipe.TargetParameters.InputTemplate"),
    Mistake("lost events for the URL of a queue", put("JobEventsPipe", "SourceParameters", "DynamoDBStreamParameters", "DeadLetterConfig", "Arn", value={"Ref": "JobEventsLostQueue"}), "JobEventsPipe.SourceParameters.DynamoDBStreamParameters.DeadLetterConfig.Arn"),
    Mistake("the pipe puts events on any bus", statement("JobEventsRole", "Bus", lambda s: s.update(Resource={"Fn::Sub": "arn:aws:events:${AWS::Region}:${AWS::AccountId}:event-bus/default"})), "JobEventsRole: Allow events:PutEvents on"),
    Mistake("the pipe reads the jobs table", statement("JobEventsRole", "JobsStream", lambda s: s["Action"].append("dynamodb:DescribeTable")), "JobEventsRole: Allow dynamodb:DescribeTable on"),
    Mistake("the pipe's role for a function", lambda t: properties("JobEventsRole")(t)["AssumeRolePolicyDocument"]["Statement"][0].update(Principal={"Service": "lambda.amazonaws.com"}), "JobEventsRole.AssumeRolePolicyDocument: Allow sts:AssumeRole by Service lambda.amazonaws.com"),
    # Only a linter sees these
    Mistake("a property that does not exist", put("NodesTable", "TimeToLive", value={"Enabled": True}), "E3002"),
    Mistake("a parameter used by nothing", lambda t: t["Parameters"].update(Unused={"Type": "String"}), "W2001"),
    Mistake("a retention that does not exist", put("SweepDispatchLog", "RetentionInDays", value=31), "E3030"),
    Mistake("a reference to nothing", put("AlarmSubscription", "Endpoint", value={"Ref": "Email"}), "Email"),
]  # fmt: skip


# The same for the stacks beside it.
of_file = lambda file: lambda *of: Mistake(*of, file=file)  # noqa: E731
of_notify, of_accounting = of_file(check.NOTIFY), of_file(check.ACCOUNTING)
MISTAKES += [
    of_notify("a text that EventBridge does not take", put("FailedJobs", "Targets", 0, "InputTransformer", "InputTemplate", value="<cluster>: job <job> <name> is <state>: <reason>"), "FailedJobs.Targets.InputTransformer.InputTemplate"),
    of_notify("a rule's name in place of its ARN", put("FailedJobsTopicPolicy", "PolicyDocument", "Statement", 0, "Condition", "ArnEquals", "aws:SourceArn", value={"Ref": "FailedJobs"}), "FailedJobsTopicPolicy: Allow sns:Publish on"),
    of_accounting("events that go with the stack", lambda t: t["Resources"]["Events"].update(DeletionPolicy="Delete"), "Events.DeletionPolicy"),
    of_accounting("events that expire", put("Events", "LifecycleConfiguration", "Rules", 0, "Prefix", value=""), "Events.LifecycleConfiguration.Rules.Prefix"),
    of_accounting("all events in one line", put("Stream", "ExtendedS3DestinationConfiguration", "ProcessingConfiguration"), "Stream.ExtendedS3DestinationConfiguration.ProcessingConfiguration"),
    of_accounting("months that the table does not find", put("Stream", "ExtendedS3DestinationConfiguration", "Prefix", value="jobs/month=!{timestamp:yyyy-MM-dd}/"), "Stream.ExtendedS3DestinationConfiguration.Prefix"),
    of_accounting("events in an envelope", put("Ends", "Targets", 0, "InputPath"), "Ends.Targets.InputPath"),
    of_accounting("a field without a column", lambda t: properties("Jobs")(t)["TableInput"]["StorageDescriptor"]["Columns"].pop(), "Jobs.TableInput.StorageDescriptor.Columns"),
    of_accounting("a stream that writes to any bucket", put("StreamRole", "Policies", 0, "PolicyDocument", "Statement", 0, "Resource", value="*"), "StreamRole: Allow s3:PutObject on *"),
]  # fmt: skip
# The same for the contract: the template must follow what the project defines.
CONTRACT_MISTAKES = [
    Mistake("a period that the template does not have", row("poll-and-scale", period_s=120), "PollAndScaleMoreSigns.DatapointsToAlarm"),
    Mistake("a period that no schedule can have", row("sweep-dispatch", period_s=90), "whole minutes"),
    Mistake("a period for a function without a schedule", row("heartbeat-ingest", period_s=60), "HeartbeatIngestEventInvokeConfig"),
    Mistake("no period for a scheduled function", row("clean-stale-records", period_s=None, routes=["/v1/x"]), "CleanInvokePermission"),
    Mistake("a route without a URL", row("clean-stale-records", routes=["/v1/x"]), "CleanInvokePermission"),
    Mistake("a URL without a route", row("heartbeat-ingest", period_s=60, routes=[]), "HeartbeatIngestEventInvokeConfig"),
    Mistake("a function that nothing runs", row("heartbeat-ingest", routes=[]), "neither a period nor a route"),
    Mistake("a function without a block", lambda c: c["functions"].append({"name": "new-one", "period_s": 60, "routes": []}), "function new-one"),
    Mistake("a block without a function", lambda c: c["functions"].pop(), "the table of functions does not"),
    Mistake("a metric with an alarm that its function does not emit", lambda c: c["metrics"]["names"]["sweep-dispatch"].remove("SignsWrong"), "alarms and dashboard: nothing emits nodekeeper SignsWrong of sweep-dispatch"),
    Mistake("metrics in another namespace", lambda c: c["metrics"].update(namespace="other"), "alarms and dashboard: nothing emits nodekeeper SignsWrong of clean-stale-records"),
    Mistake("a sign that a mail does not name", lambda c: c["metrics"]["signs"].append({"sign": "gpus", "alarm": "poll-and-scale-signs"}), "PollAndScaleSigns.AlarmDescription"),
    Mistake("a sign that no alarm tells", lambda c: c["metrics"]["signs"].append({"sign": "gpus", "alarm": "gpus"}), "sign gpus: there is no alarm gpus"),
    Mistake("a definition beyond DynamoDB's limit", lambda c: widest_index(c)["projection"].update(attributes=[f"a{n}" for n in range(PROJECTED_BY_INDEX + 1)]), "at most 20"),
]  # fmt: skip


CHOSEN = [*MISTAKES, *CONTRACT_MISTAKES]


# ---- Drawn mistakes -----------------------------------------------------------------------------------------


# What a drawn mistake may change: the place in the template, and why no check is needed.
HARMLESS = [
    (r"(^|\.)(Description|ConstraintDescription|AssertDescription|GroupDescription|Sid|PolicyName)(\.Fn::Sub)?$", "a text for people"),
    (r"^(AWSTemplateFormatVersion|Description)", "about the file, not the stack"),
]


@dataclass(frozen=True)
class Drawn:
    """A change of one place of the template."""

    path: tuple[Any, ...]
    kind: str
    value: Any = ABSENT
    file: Path = check.TEMPLATE

    def __str__(self) -> str:
        changed = "" if self.value is ABSENT else f" to {json.dumps(self.value)}"
        return f"{self.file.name}: {self.kind} {'.'.join(map(str, self.path))}{changed}"

    def make(self, template: dict[str, Any]) -> None:
        *way, last = self.path
        place: Any = template
        for step in way:
            place = place[step]
        if self.value is ABSENT:
            del place[last]
        elif last == "append":
            place.append(self.value)
        else:
            place[last] = self.value


# What a function of SAM can have besides, and an event of one.
OF_FUNCTION = {
    "AutoPublishAlias": "live", "DeadLetterQueue": {"Type": "SQS", "TargetArn": "arn:aws:sqs:eu-west-1:123456789012:q"},
    "EphemeralStorage": {"Size": 1024}, "FunctionUrlConfig": {"AuthType": "NONE", "Cors": {"AllowOrigins": ["*"]}},
    "Layers": ["arn:aws:lambda:eu-west-1:210987654321:layer:x:1"],
    "ProvisionedConcurrencyConfig": {"ProvisionedConcurrentExecutions": 1}, "Tags": {"x": "y"}, "Tracing": "Active",
    "VpcConfig": {"SubnetIds": ["subnet-0123456789abcdef0"], "SecurityGroupIds": ["sg-0123456789abcdef0"]},
}  # fmt: skip
OF_EVENT = {"Enabled": False, "Input": '{"dry_run": true}', "KmsKeyArn": check.KEY_ARN, "StartDate": "2030-01-01T00:00:00Z"}
# Resources that no cluster has.
RESOURCES = {
    "AWS::IAM::User": {"ManagedPolicyArns": ["arn:aws:iam::aws:policy/AdministratorAccess"]},
    "AWS::IAM::ManagedPolicy": {"PolicyDocument": {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "iam:CreateUser", "Resource": "*"}]}},
    "AWS::Lambda::Permission": {"Action": "lambda:InvokeFunction", "FunctionName": {"Ref": "PollAndScale"}, "Principal": "210987654321"},
    "AWS::Lambda::Url": {"AuthType": "NONE", "TargetFunctionArn": {"Ref": "PollAndScale"}},
    "AWS::SNS::Topic": {"TopicName": "other"},
    "AWS::EC2::SecurityGroupEgress": {"GroupId": {"Fn::GetAtt": ["NodeSecurityGroup", "GroupId"]}, "IpProtocol": "-1", "CidrIp": "0.0.0.0/0"},
}  # fmt: skip
STATEMENTS = [
    {"Effect": "Allow", "Action": action, "Resource": "*"}
    for action in ("iam:CreateUser", "s3:GetObject", "dynamodb:DeleteTable", "lambda:UpdateFunctionCode", "sts:AssumeRole", "ssm:GetParameter", "ssm:GetParameters")
]


def additions(template: dict[str, Any]) -> Iterator[Drawn]:
    """Everything that can be added at a known place."""
    for logical_id, resource in template["Resources"].items():
        place, there = ("Resources", logical_id), resource.get("Properties", {})
        yield from (Drawn((*place, key), "add", value) for key, value in {"DeletionPolicy": "Retain", "DependsOn": "NodesTable"}.items() if key not in resource)
        known = OF_FUNCTION if resource["Type"].startswith("AWS::Serverless") else schema_of(resource["Type"])
        yield from (Drawn((*place, "Properties", key), "add", value) for key, value in known.items() if key not in there)
        for name in there.get("Events", {}):
            way = (*place, "Properties", "Events", name, "Properties")
            yield from (Drawn((*way, key), "add", value) for key, value in OF_EVENT.items())
    yield from (Drawn(("Resources", "Added"), "add", {"Type": kind, "Properties": of}) for kind, of in RESOURCES.items())
    yield Drawn(("Outputs", "Added"), "add", {"Value": {"Ref": next(iter(template["Resources"]))}})
    for way in statements_in(template["Resources"], ("Resources",)):
        yield from (Drawn((*way, "append"), "add", statement) for statement in STATEMENTS)


def schema_of(kind: str) -> dict[str, Any]:
    """The properties that CloudFormation knows of a type, each with a value of its kind."""
    values = {"string": "x", "boolean": True, "integer": 1, "number": 1, "array": [], "object": {"x": "y"}}
    properties = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", kind).schema["properties"]
    return {name: values.get(str(of.get("type")), {"x": "y"}) for name, of in properties.items()}


def ignored(template: dict[str, Any], parameters: dict[str, check.Parameter]) -> Iterator[Drawn]:
    """Each user of a parameter writes a value out instead: always, or where a condition holds, or where it does not hold."""
    for path, use in nodes(template):
        names = [n for n in parameters if use == {"Ref": n} or (isinstance(use, str) and f"${{{n}}}" in use)]
        for name in names if path[0] in ("Resources", "Outputs", "Globals") and path[-2:] != ("Condition",) else ():
            known = parameters[name]
            for value in [v for v in (known.default, *known.tried) if v is not ABSENT]:
                # A list is no part of a text.
                literal = value if use == {"Ref": name} else use.replace(f"${{{name}}}", str(value)) if not isinstance(value, list) else None
                if literal is None or path[0] == "Globals":
                    continue
                yield Drawn(path, "ignore", literal)
                for condition in template.get("Conditions", {}):
                    if use == {"Ref": name} and "Fn::If" not in path[-2:]:
                        yield Drawn(path, "ignore sometimes", {"Fn::If": [condition, use, literal]})
                        yield Drawn(path, "ignore sometimes", {"Fn::If": [condition, literal, use]})
        if isinstance(use, dict) and "Fn::If" in use:
            condition, one, other = use["Fn::If"]
            yield from (Drawn(path, "choose", of) for of in (one, other, {"Fn::If": [condition, other, one]}))


def weakened(template: dict[str, Any]) -> Iterator[Drawn]:
    """Each condition of a statement in weaker words."""
    for path, condition in nodes(template["Resources"], ("Resources",)):
        if path[-1] != "Condition" or not isinstance(condition, dict):
            continue
        for test, keys in condition.items():
            others = {k: v for k, v in condition.items() if k != test}
            for other in (f"{test}IfExists", f"ForAllValues:{test}", "Null", f"{test}IgnoreCase"):
                yield Drawn(path, "weaken", {**others, other: keys})
            for key, value in keys.items():
                yield Drawn(path, "weaken", {**condition, test: {**keys, key: [value, "*"]}})
                yield Drawn(path, "weaken", {**condition, test: {**keys, f"{key}x": value}})


def confused(template: dict[str, Any]) -> Iterator[Drawn]:
    """A name in place of an ARN."""
    for path, use in nodes(template):
        if isinstance(use, dict) and "Fn::GetAtt" in use:
            logical_id, attribute = use["Fn::GetAtt"] if isinstance(use["Fn::GetAtt"], list) else use["Fn::GetAtt"].split(".")
            yield Drawn(path, "confuse", {"Ref": logical_id})
        elif isinstance(use, str) and ".Arn}" in use:
            yield Drawn(path, "confuse", use.replace(".Arn}", "}", 1))


def opened(template: dict[str, Any]) -> Iterator[Drawn]:
    """Outputs for other stacks, and other macros."""
    for name in template["Outputs"]:
        yield Drawn(("Outputs", name, "Export"), "open", {"Name": name})
    yield Drawn(("Transform",), "open", [check.TRANSFORM, "Other"])
    yield Drawn(("Transform",), "open", "AWS::LanguageExtensions")
    for name in template["Resources"]:
        yield Drawn(("Resources", name, "Properties", "Fn::Transform"), "open", {"Name": "Other"})


def nodes(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key), value
        yield from nodes(value, (*path, key))


def families(file: Path) -> list[Drawn]:
    """Everything that can be drawn for one template."""
    template = yaml_parse(file.read_text())
    found = (*every_mistake(template), *additions(template), *ignored(template, check.OF[file.name]), *weakened(template), *confused(template), *opened(template))
    return [replace(drawn, file=file) for drawn in found if not harmless(drawn)]


def is_the_same(drawn: Drawn, source: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether the stack is the same with a mistake, for many choices of the parameters: then it is none."""
    rng, values = random.Random(0), check.factors(check.OF[drawn.file.name])
    try:
        was, is_ = (check.expand(t) if drawn.file == check.TEMPLATE else t for t in (before, source))
        chosen = [{k: v for of in values for k, v in rng.choice(of).items()} for _ in range(200)]
        return all(check.stack_of(was, choice) == check.stack_of(is_, choice) for choice in chosen)
    except Exception:  # it cannot be worked out, so it is not the same
        return False


def statements_in(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The places of all lists of statements."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        if key == "Statement" and isinstance(value, list):
            yield (*path, key)
        yield from statements_in(value, (*path, key))


def changes(path: tuple[Any, ...], value: Any) -> Iterator[Drawn]:
    """The mistakes at one place."""
    yield Drawn(path, "delete")
    match value:
        case bool():
            yield Drawn(path, "flip", not value)
        case int() | float():
            yield from (Drawn(path, "retime", other) for other in (value * 10, value // 2, 0) if other != value)
        case "*":
            pass
        case str() if path[-1] in ("Resource", "Principal", "Service", "AWS") or "Resource" in path[-2:]:
            yield Drawn(path, "widen", "*")
        case str() if re.fullmatch(r"[a-z0-9]+:[A-Za-z]+", value):
            yield Drawn(path, "widen", f"{value.split(':')[0]}:*")
        case str() if value.isdigit():
            yield Drawn(path, "retime", str(int(value) * 10))
        case str():
            yield Drawn(path, "rename", f"{value}x")
        case {"Fn::GetAtt": _} | {"Fn::Sub": _} | {"Ref": _} if "Resource" in path[-2:]:
            yield Drawn(path, "widen", "*")


def every_mistake(node: Any, path: tuple[Any, ...] = ()) -> Iterator[Drawn]:
    """Each property, statement and value of the template, with each of its mistakes."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        here = (*path, key)
        if path:
            yield from changes(here, value)
        yield from every_mistake(value, here)


def harmless(drawn: Drawn) -> bool:
    place = ".".join(map(str, drawn.path))
    return any(re.search(pattern, place) for pattern, _ in HARMLESS)


# ---- Both ---------------------------------------------------------------------------------------------------


def missed(which: int | Drawn, document: dict[str, Any]) -> str | None:
    """The mistake, if the check does not find it. A chosen mistake is given by its number: functions stay in a process."""
    mistake = CHOSEN[which] if isinstance(which, int) else which
    source, contract = yaml_parse(mistake.file.read_text()), copy.deepcopy(document)
    in_contract = mistake in CONTRACT_MISTAKES
    mistake.make(contract if in_contract else source)
    words = mistake.finding if isinstance(mistake, Mistake) else ""
    text = json.dumps(source)
    try:
        known = Contract.read(contract)
        findings = check.check(text, known) if mistake.file == check.TEMPLATE else check.check_beside(mistake.file.name, text, known)
        found = any(words in finding for finding in findings)
    except Exception as error:  # a linter gave up: the template is not usable
        found = not words or words in str(error)
    if found or (isinstance(mistake, Drawn) and is_the_same(mistake, source, yaml_parse(mistake.file.read_text()))):
        return None
    return mistake.name if isinstance(mistake, Mistake) else str(mistake)


def main() -> int:
    arguments = argparse.ArgumentParser(description="Proves that infra/check.py finds mistakes, offline.")
    arguments.add_argument(
        "--contract", required=True, help="what `nodekeeper contract` prints; - for standard input"
    )
    arguments.add_argument("--draw", type=int, default=12, help="how many mistakes of each kind are drawn")
    arguments.add_argument("--kind", help="draw only mistakes of this kind: add, choose, delete, ignore, open, weaken, …")
    arguments.add_argument("--seed", type=int, default=1, help="another seed draws other mistakes")
    options = arguments.parse_args()

    document = json.load(sys.stdin) if options.contract == "-" else json.loads(Path(options.contract).read_text())
    rng = random.Random(options.seed)
    possible = [drawn for file in (check.TEMPLATE, check.NOTIFY, check.ACCOUNTING) for drawn in families(file)]
    by_kind: dict[str, list[Drawn]] = {}
    for drawn in possible:
        by_kind.setdefault(f"{drawn.file.stem}: {drawn.kind}", []).append(drawn)
    # As many of each kind, so that each family is seen.
    chosen = {k: rng.sample(of, min(options.draw, len(of))) for k, of in by_kind.items() if options.kind in (None, of[0].kind)}
    drawn = [one for of in chosen.values() for one in of]
    with ProcessPoolExecutor() as pool:
        results = list(pool.map(partial(missed, document=document), [*range(len(CHOSEN)), *drawn], chunksize=8))
    survivors = [name for name in results if name]
    for name in survivors:
        print(f"missed: {name}")
    print(f"chosen: {len(CHOSEN)} planted, {sum(1 for r in results[:len(CHOSEN)] if not r)} found", file=sys.stderr)
    for kind, of in sorted(chosen.items()):
        at = [r for one, r in zip(drawn, results[len(CHOSEN):], strict=True) if one in of]
        print(f"{kind}: {len(of)} of {len(by_kind[kind])} planted, {sum(1 for r in at if not r)} found", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
