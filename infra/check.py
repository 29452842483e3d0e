#!/usr/bin/env python3
"""Holds infra/template.yaml to the rest of the project and to what AWS would accept. Runs offline.

    pip install -r infra/requirements.txt
    nodekeeper init --print-tables > tables.json
    infra/check.py --tables tables.json               one line for each finding; exits 1 if there is one
    infra/check.py --tables tables.json --self-test   plants mistakes and proves that each is caught

Linting SAM source sees little, so the template is expanded as the deployment would expand it, and the
expansion is linted, its policies analysed, and its values, worked out for both ways in which nodes can prove
who they are, compared with what the project needs (`FUNCTIONS` and the tables' definitions).

What it deliberately does not do: talk to AWS. Whether a policy allows all that a function calls, and whether
limits of the account suffice, only a deployment tells.
"""

import argparse
import copy
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", category=UserWarning)  # pkg_resources, in parliament
logging.getLogger("samtranslator").setLevel(logging.ERROR)  # it misses a taker for its metrics
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")  # samtranslator asks boto3 for one; nothing is called

import cfnlint.api  # noqa: E402
import parliament  # noqa: E402
from samtranslator.translator.transform import transform  # noqa: E402
from samtranslator.yaml_helper import yaml_parse  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "infra" / "template.yaml"

# The values with which the expansion is worked out. They look like real ones, so that ARNs can be matched.
CLUSTER = "demo"
ROLE = "arn:aws:iam::123456789012:role/node"
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-west-1",
    "AWS::StackName": "demo-stack",
    "AWS::URLSuffix": "amazonaws.com",
}
MODES = {
    "token": {"ClusterName": CLUSTER, "NodeAuth": "token", "NodeRoleArn": ""},
    "iam": {"ClusterName": CLUSTER, "NodeAuth": "iam", "NodeRoleArn": ROLE},
}
ABSENT = object()

# Published limits: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Projection.html
PROJECTED_BY_INDEX = 20
PROJECTED_BY_TABLE = 100


@dataclass(frozen=True)
class Function:
    """What the project needs of one function; its name is its binary's."""

    logical_id: str
    timeout_s: int
    every_min: int | None = None
    url: str | None = None
    key: bool = False
    urls_in_user_data: bool = False
    ec2: frozenset[str] = frozenset()


FUNCTIONS = {
    "poll-and-scale": Function(
        "PollAndScale", 55, every_min=1, key=True, urls_in_user_data=True,
        ec2=frozenset({
            "ec2:CreateTags", "ec2:DescribeInstances", "ec2:DescribeLaunchTemplateVersions", "ec2:DescribeSubnets",
            "ec2:GetConsoleOutput", "ec2:RunInstances", "ec2:TerminateInstances",
        }),
    ),
    "clean-stale-records": Function(
        "CleanStaleRecords", 55, every_min=5, ec2=frozenset({"ec2:DescribeInstances", "ec2:TerminateInstances"})
    ),
    "heartbeat-ingest": Function("HeartbeatIngest", 20, url="HeartbeatUrl", key=True),
    "sweep-dispatch": Function("SweepDispatch", 55, every_min=1, url="SweepUrl", key=True),
}  # fmt: skip

# Who may assume a role: Lambda for ours, Scheduler for those that SAM makes for the schedules.
TRUSTED = (["lambda.amazonaws.com"], ["scheduler.amazonaws.com"])

# Five missed periods is when a function counts as silent, as in the policy's watchdog.multiplier.
SILENT_PERIODS = 5


# ---- Expanding, and working values out ---------------------------------------------------------------------


class NoManagedPolicies:
    """The template names none; a look-up would need AWS."""

    def load(self) -> dict[str, str]:
        return {}


def expand(source: dict[str, Any]) -> dict[str, Any]:
    """What CloudFormation would be given. Local code has to look packaged, as after `sam package`."""
    packaged = copy.deepcopy(source)
    packaged["Globals"]["Function"]["CodeUri"] = "s3://bucket/code.zip"
    return transform(packaged, {}, NoManagedPolicies())


class Unresolved(Exception):
    """An expression that this check cannot work out."""


class Values:
    """Works out references, conditions and substitutions for one set of parameters."""

    def __init__(self, template: dict[str, Any], parameters: dict[str, Any]) -> None:
        self.resources = template["Resources"]
        self.conditions = template.get("Conditions", {})
        defaults = {k: v["Default"] for k, v in template["Parameters"].items() if "Default" in v}
        self.parameters = {**PSEUDO, **defaults, **parameters}

    def live_resources(self) -> dict[str, dict[str, Any]]:
        """The resources whose condition holds, worked out."""
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
            case "Fn::Equals":
                return self.of(arg[0]) == self.of(arg[1])
            case "Fn::Not":
                return not self.of(arg[0])
            case "Fn::Join":
                return arg[0].join(map(str, self.of(arg[1])))
            case "Fn::Sub":
                return self.substitute(*arg) if isinstance(arg, list) else self.substitute(arg, {})
        raise Unresolved(f"{name} is not known to check.py: teach it, or do without")

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
        named_by = {
            "AWS::DynamoDB::Table": "TableName",
            "AWS::Lambda::Function": "FunctionName",
            "AWS::Logs::LogGroup": "LogGroupName",
            "AWS::Scheduler::ScheduleGroup": "Name",
        }.get(resource["Type"])
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
            "AWS::Events::Rule": lambda: f"arn:aws:events:{account}:rule/{logical_id}",
            "AWS::IAM::Role": lambda: f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/{logical_id}",
            "AWS::Lambda::Function": lambda: f"arn:aws:lambda:{account}:function:{self.ref(logical_id)}",
            "AWS::Logs::LogGroup": lambda: f"arn:aws:logs:{account}:log-group:{self.ref(logical_id)}:*",
            "AWS::SNS::Topic": lambda: f"arn:aws:sns:{account}:{logical_id}",
            "AWS::SecretsManager::Secret": lambda: f"arn:aws:secretsmanager:{account}:secret:{logical_id}-AbCdEf",
        }.get(resource["Type"])
        if attribute == "Arn" and arn:
            return arn()
        if attribute == "StreamArn":
            if "StreamSpecification" not in resource["Properties"]:
                raise Unresolved(f"StreamArn of {logical_id}, which has no stream")
            return self.attribute(logical_id, "Arn") + "/stream/2026-01-01"
        raise Unresolved(f"{attribute} of a {resource['Type']} is not known to check.py: teach it")


def of_type(resources: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {k: r["Properties"] for k, r in resources.items() if r["Type"] == kind}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---- Linters -----------------------------------------------------------------------------------------------


def lint(text: str, what: str) -> Iterator[str]:
    """cfn-lint, in a region that has everything."""
    for found in cfnlint.api.lint(text, regions=["us-east-1"]):
        if found.rule.id == "W1030" and "'NodeRoleArn'" in found.message:
            continue  # empty by default, and used only in iam mode, in which the template's rule demands it
        where = ".".join(map(str, getattr(found, "path", None) or [])) or f"line {found.linenumber}"
        yield f"{what}: {where}: {found.message} ({found.rule.id})"


def policies(resources: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every policy that says what one of our roles may do, with its role."""
    for role, properties in of_type(resources, "AWS::IAM::Role").items():
        for policy in properties.get("Policies", []):
            yield role, policy["PolicyDocument"]
    for name, properties in of_type(resources, "AWS::IAM::Policy").items():
        yield name, properties["PolicyDocument"]


def analyse_policies(resources: dict[str, Any]) -> Iterator[str]:
    """parliament: actions, resources and condition keys that do not exist or do not fit together.

    It wants every resource that an action needs in one statement. RunInstances is granted in two, because its
    condition fits the instance alone: what a statement lacks counts only if all of that action's lack it.
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
            # AWS's own policy for a function that reads a stream binds ListStreams to the table, as ours does.
            if count == granting[action] and action != "dynamodb:ListStreams":
                yield f"{role}: RESOURCE_MISMATCH: {action} needs {resource} (parliament)"


# ---- What the project needs ---------------------------------------------------------------------------------


def check_definitions(tables: list[dict[str, Any]]) -> Iterator[str]:
    """The definitions themselves, against DynamoDB's limits: local engines do not enforce them."""
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


def check_tables(resources: dict[str, Any], tables: list[dict[str, Any]]) -> Iterator[str]:
    """The tables are the defined ones, recoverable, and outlive the stack."""
    there = {p["TableName"]: (k, p) for k, p in of_type(resources, "AWS::DynamoDB::Table").items()}
    wanted = {f"{CLUSTER}-{t['name']}": t for t in tables}
    for name in sorted(there.keys() ^ wanted.keys()):
        yield f"table {name}: {'not defined in the project' if name in there else 'missing'}"
    for name in sorted(there.keys() & wanted.keys()):
        logical_id, properties = there[name]
        yield from check_table(f"table {name}", properties, wanted[name])
        for policy in ("DeletionPolicy", "UpdateReplacePolicy"):
            if resources[logical_id].get(policy) != "Retain":
                yield f"table {name}: {policy} has to be Retain"


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

    ttl = properties.get("TimeToLiveSpecification", {})
    yield from differs("TTL", ttl.get("AttributeName") if ttl.get("Enabled") else None, definition["ttl"])
    recovery = properties.get("PointInTimeRecoverySpecification", {})
    yield from differs("point in time recovery", recovery.get("PointInTimeRecoveryEnabled"), True)

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


def check_source(source: dict[str, Any]) -> Iterator[str]:
    """What the expansion no longer shows: how each function is built."""
    binaries = set()
    for logical_id, resource in source["Resources"].items():
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        metadata = resource.get("Metadata", {})
        binary = metadata.get("BuildProperties", {}).get("Binary")
        binaries.add(binary)
        if metadata.get("BuildMethod") != "rust-cargolambda":
            yield f"{logical_id}: BuildMethod has to be rust-cargolambda"
        if binary not in FUNCTIONS or FUNCTIONS[binary].logical_id != logical_id:
            yield f"{logical_id}: builds the binary {binary}, which is not its own"
    folders = {p.parent.name for p in (ROOT / "functions").glob("*/Cargo.toml")}
    for name in sorted(folders ^ binaries, key=str):
        what = "in functions/ but not in the template" if name in folders else "has no folder in functions/"
        yield f"function {name}: {what}"
    code = source["Globals"]["Function"].get("CodeUri")
    if (TEMPLATE.parent / str(code)).resolve() != ROOT:
        yield f"Globals: CodeUri is {code}, has to be the workspace"


def check_functions(resources: dict[str, Any], mode: str) -> Iterator[str]:
    """Each function runs as it was built, with its whole environment, its log and its schedule."""
    functions = of_type(resources, "AWS::Lambda::Function")
    for logical_id in sorted(functions.keys() - {f.logical_id for f in FUNCTIONS.values()}):
        yield f"{logical_id}: a function that the project does not have"
    for name, wanted in FUNCTIONS.items():
        properties = functions.get(wanted.logical_id)
        if properties is None:
            yield f"{wanted.logical_id}: missing"
            continue
        should = {
            "FunctionName": f"{CLUSTER}-{name}",
            "Runtime": "provided.al2023",
            "Handler": "bootstrap",
            "Architectures": ["arm64"],
            "Timeout": wanted.timeout_s,
            "ReservedConcurrentExecutions": None,
            "LoggingConfig": {"LogGroup": f"/aws/lambda/{CLUSTER}-{name}"},
            "Role": f"arn:aws:iam::{PSEUDO['AWS::AccountId']}:role/{wanted.logical_id}Role",
        }
        for field, value in should.items():
            if properties.get(field) != value:
                yield f"{wanted.logical_id}: {field} is {properties.get(field)}, has to be {value}"
        environment = {"NODEKEEPER_CLUSTER": CLUSTER, "NODEKEEPER_NODE_AUTH": mode, "RUST_LOG": "info"}
        if wanted.key:
            environment["NODEKEEPER_NODE_KEY_SECRET"] = secret_arn(resources)
        if wanted.urls_in_user_data:
            environment["NODEKEEPER_HEARTBEAT_URL"] = "FunctionUrl of HeartbeatUrl"
            environment["NODEKEEPER_SWEEP_URL"] = "FunctionUrl of SweepUrl"
        found = properties.get("Environment", {}).get("Variables", {})
        for variable in sorted(environment.keys() | found.keys()):
            if environment.get(variable) != found.get(variable):
                yield (
                    f"{wanted.logical_id}: environment: {variable} is {found.get(variable)}, "
                    f"has to be {environment.get(variable)}"
                )
        yield from check_schedule(resources, name, wanted)
    for logical_id, properties in of_type(resources, "AWS::Logs::LogGroup").items():
        if "RetentionInDays" not in properties:
            yield f"{logical_id}: keeps its log for ever; give RetentionInDays"


def secret_arn(resources: dict[str, Any]) -> str | None:
    names = list(of_type(resources, "AWS::SecretsManager::Secret"))
    return (
        f"arn:aws:secretsmanager:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:secret:{names[0]}-AbCdEf"
        if names
        else None
    )


def check_schedule(resources: dict[str, Any], name: str, wanted: Function) -> Iterator[str]:
    arn = f"arn:aws:lambda:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:function:{CLUSTER}-{name}"
    schedules = [s for s in of_type(resources, "AWS::Scheduler::Schedule").values() if s["Target"]["Arn"] == arn]
    if wanted.every_min is None:
        if schedules:
            yield f"{wanted.logical_id}: is not a scheduled function"
        return
    expected = "rate(1 minute)" if wanted.every_min == 1 else f"rate({wanted.every_min} minutes)"
    if [s["ScheduleExpression"] for s in schedules] != [expected]:
        yield f"{wanted.logical_id}: schedule is {[s['ScheduleExpression'] for s in schedules]}, has to be {expected}"
    for schedule in schedules:
        if not str(schedule.get("Name", "")).startswith(f"{CLUSTER}-"):
            yield f"{wanted.logical_id}: schedule {schedule.get('Name')}: a second cluster's would have the same name"
        if schedule["Target"].get("RetryPolicy", {}).get("MaximumRetryAttempts") != 0:
            yield f"{wanted.logical_id}: schedule retries; the next tick is the retry"
        if schedule.get("State") != "ENABLED":
            yield f"{wanted.logical_id}: schedule is {schedule.get('State')} by default, has to be ENABLED"
    if wanted.timeout_s >= wanted.every_min * 60:
        yield f"{wanted.logical_id}: may run into its own next run"


def check_events(resources: dict[str, Any]) -> Iterator[str]:
    """EC2's events and new jobs wake poll-and-scale, and nothing else does."""
    arn = f"arn:aws:lambda:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:function:{CLUSTER}-poll-and-scale"
    wanted = {
        "EC2 Spot Instance Interruption Warning": None,
        "EC2 Instance State-change Notification": {"state": ["stopped", "terminated"]},
    }
    found = {}
    for logical_id, rule in of_type(resources, "AWS::Events::Rule").items():
        pattern = rule["EventPattern"]
        for kind in pattern.get("detail-type", ["anything"]):
            found[kind] = pattern.get("detail")
        if pattern.get("source") != ["aws.ec2"] or [t["Arn"] for t in rule["Targets"]] != [arn]:
            yield f"{logical_id}: has to send EC2's events to poll-and-scale"
    for kind in sorted(wanted.keys() ^ found.keys()):
        what = "has to wake poll-and-scale, and no rule does" if kind in wanted else "has no business here"
        yield f"events: {kind}: {what}"
    for kind in sorted(wanted.keys() & found.keys()):
        if found[kind] != wanted[kind]:
            yield f"events: {kind}: filtered for {found[kind]}, has to be for {wanted[kind]}"

    streams = list(of_type(resources, "AWS::Lambda::EventSourceMapping").values())
    if [s["FunctionName"] for s in streams] != [f"{CLUSTER}-poll-and-scale"]:
        yield "events: new jobs have to wake poll-and-scale, through the stream of the jobs table"
    for stream in streams:
        filters = [json.loads(f["Pattern"]) for f in stream.get("FilterCriteria", {}).get("Filters", [])]
        if filters != [{"eventName": ["INSERT"]}]:
            yield "events: the stream has to be filtered for INSERT, or each of our own writes would wake us"
        if stream.get("MaximumRetryAttempts") != 0:
            yield "events: MaximumRetryAttempts of the stream has to be 0, or one failing run blocks the jobs behind it"


def check_urls(resources: dict[str, Any], mode: str) -> Iterator[str]:
    """Each URL has its two permissions, for everybody only where the function itself checks a token."""
    auth, caller = ("NONE", "*") if mode == "token" else ("AWS_IAM", ROLE)
    urls = of_type(resources, "AWS::Lambda::Url")
    granted = []
    for logical_id, grant in of_type(resources, "AWS::Lambda::Permission").items():
        if not grant["Principal"].endswith(".amazonaws.com"):
            granted.append(grant)
        elif "SourceArn" not in grant:
            yield f"{logical_id}: lets {grant['Principal']} invoke on behalf of any account; give SourceArn"
    expected = []
    for name, wanted in FUNCTIONS.items():
        if wanted.url is None:
            continue
        function = f"{CLUSTER}-{name}"
        url = urls.get(wanted.url, {})
        if url.get("AuthType") != auth or not str(url.get("TargetFunctionArn")).endswith(f":function:{function}"):
            yield f"{wanted.url}: has to be the URL of {name} with AuthType {auth} in {mode} mode"
        by_url = {"Action": "lambda:InvokeFunctionUrl", "FunctionUrlAuthType": auth}
        by_invoke = {"Action": "lambda:InvokeFunction", "InvokedViaFunctionUrl": True}
        for grant in (by_url, by_invoke):
            grant = {**grant, "FunctionName": function, "Principal": caller}
            expected.append(grant)
            if grant not in granted:
                yield f"{wanted.url}: needs the permission {json.dumps(grant)} in {mode} mode"
    for logical_id in sorted(urls.keys() - {f.url for f in FUNCTIONS.values()}):
        yield f"{logical_id}: a URL that the project does not have"
    for grant in granted:
        if grant not in expected:
            yield f"permission {json.dumps(grant)}: more than the URLs need in {mode} mode"


def check_least_privilege(resources: dict[str, Any], mode: str) -> Iterator[str]:
    """Every statement names its actions and its resources, and EC2's are bound to the cluster's tag."""
    for role, properties in of_type(resources, "AWS::IAM::Role").items():
        if properties.get("ManagedPolicyArns"):
            yield f"{role}: managed policies grant more than is needed; write the statements out"
        trusted = [s.get("Principal") for s in properties["AssumeRolePolicyDocument"]["Statement"]]
        if any(as_list(t.get("Service")) not in TRUSTED or t.keys() != {"Service"} for t in trusted):
            yield f"{role}: may be assumed by {trusted}; only Lambda, or Scheduler for a schedule, has to"
    ec2_by_role: dict[str, set[str]] = {}
    for role, document in policies(resources):
        for statement in document["Statement"]:
            if statement["Effect"] != "Allow" or "NotAction" in statement or "NotResource" in statement:
                yield f"{role}: only Allow with Action and Resource is checked here"
                continue
            for action in as_list(statement["Action"]):
                yield from check_grant(role, action, as_list(statement["Resource"]), statement.get("Condition", {}))
                if action.startswith("ec2:"):
                    ec2_by_role.setdefault(role, set()).add(action)
    for wanted in FUNCTIONS.values():
        found = ec2_by_role.pop(f"{wanted.logical_id}Role", set())
        if found != wanted.ec2:
            yield f"{wanted.logical_id}Role: EC2 actions that differ from those needed: {sorted(found ^ wanted.ec2)}"
    for role in ec2_by_role:
        yield f"{role}: has no business with EC2"
    passes = any("iam:PassRole" in as_list(s["Action"]) for _, d in policies(resources) for s in d["Statement"])
    if passes != (mode == "iam"):
        yield f"iam:PassRole: {'granted' if passes else 'not granted'} in {mode} mode: goes with NodeRoleArn"


def check_grant(role: str, action: str, granted: list[str], condition: dict[str, Any]) -> Iterator[str]:
    """One action of one statement."""
    service, _, verb = action.partition(":")
    own_tables = f"arn:aws:dynamodb:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:table/{CLUSTER}-"
    equals = condition.get("StringEquals", {})
    if "*" in action:
        yield f"{role}: {action}: name each action"
    if "*" in granted and not action.startswith("ec2:Describe"):
        yield f"{role}: {action} on *: name the resources"
    if service == "dynamodb" and not all(r.startswith(own_tables) for r in granted):
        yield f"{role}: {action}: on more than the cluster's own tables and indexes"
    if action == "dynamodb:DeleteItem" and f"{own_tables}nodes" in granted and role != "CleanStaleRecordsRole":
        yield f"{role}: {action}: only clean-stale-records deletes rows of nodes"
    if service == "secretsmanager" and verb != "GetSecretValue":
        yield f"{role}: {action}: a function only reads the key"
    if action in ("ec2:TerminateInstances", "ec2:GetConsoleOutput"):
        if equals.get("aws:ResourceTag/nodekeeper:cluster") != CLUSTER:
            yield f"{role}: {action}: needs the condition aws:ResourceTag/nodekeeper:cluster = the cluster"
    if action == "ec2:RunInstances" and any(":instance/" in r for r in granted):
        if equals.get("aws:RequestTag/nodekeeper:cluster") != CLUSTER:
            yield f"{role}: {action}: needs the condition aws:RequestTag/nodekeeper:cluster = the cluster"
    if action == "ec2:CreateTags" and equals.get("ec2:CreateAction") != "RunInstances":
        yield f"{role}: {action}: needs the condition ec2:CreateAction = RunInstances"
    if action == "iam:PassRole" and (
        granted != [ROLE] or "ec2.amazonaws.com" not in equals.get("iam:PassedToService", [])
    ):
        yield f"{role}: {action}: only the nodes' role, and only to EC2"


def check_secret(resources: dict[str, Any]) -> Iterator[str]:
    """The master key is 64 characters of hex, which is what the functions read it as."""
    secrets = of_type(resources, "AWS::SecretsManager::Secret")
    if len(secrets) != 1:
        yield f"secrets: has to be one, the nodes' master key; there are {len(secrets)}"
    for name, properties in secrets.items():
        made = properties.get("GenerateSecretString", {})
        left = set("abcdefghijklmnopqrstuvwxyz0123456789") - set(made.get("ExcludeCharacters", ""))
        hex_only = left == set("0123456789abcdef") and made.get("ExcludeUppercase") and made.get("ExcludePunctuation")
        if not hex_only or made.get("IncludeSpace") or made.get("PasswordLength") != 64:
            yield f"{name}: has to be generated as 64 characters out of 0-9a-f"
        if "SecretString" in properties:
            yield f"{name}: a secret in a template is none"


def check_alarms(resources: dict[str, Any]) -> Iterator[str]:
    """Silence is an alarm, and so are errors and throttles, and somebody can be told."""
    alarms = of_type(resources, "AWS::CloudWatch::Alarm")
    topics = [
        f"arn:aws:sns:{PSEUDO['AWS::Region']}:{PSEUDO['AWS::AccountId']}:{t}"
        for t in of_type(resources, "AWS::SNS::Topic")
    ]
    for logical_id, alarm in alarms.items():
        if not alarm.get("AlarmActions") or not set(alarm["AlarmActions"]) <= set(topics):
            yield f"{logical_id}: tells nobody; give AlarmActions"
        if not str(alarm.get("AlarmName", "")).startswith(f"{CLUSTER}-"):
            yield f"{logical_id}: AlarmName does not say which cluster"
    for name, wanted in FUNCTIONS.items():
        for metric in ("Errors", "Throttles"):
            alarm = alarms.get(f"{wanted.logical_id}{metric}", {})
            should = {
                "Namespace": "AWS/Lambda",
                "MetricName": metric,
                "Dimensions": [{"Name": "FunctionName", "Value": f"{CLUSTER}-{name}"}],
                "Statistic": "Sum",
                "Threshold": 1,
                "ComparisonOperator": "GreaterThanOrEqualToThreshold",
                # An idle fleet sends nothing: silence is the other alarm's business.
                "TreatMissingData": "notBreaching",
            }
            for field, value in should.items():
                if alarm.get(field) != value:
                    yield f"{wanted.logical_id}{metric}: {field} is {alarm.get(field)}, has to be {value}"
        if wanted.every_min is not None:
            yield from check_silence(resources, alarms.get(f"{wanted.logical_id}Silent", {}), name, wanted)


def check_silence(resources: dict[str, Any], alarm: dict[str, Any], name: str, wanted: Function) -> Iterator[str]:
    what = f"{wanted.logical_id}Silent"
    should = {"TreatMissingData": "breaching", "Threshold": 1, "ComparisonOperator": "LessThanThreshold"}
    for field, value in should.items():
        if alarm.get(field) != value:
            yield f"{what}: {field} is {alarm.get(field)}, has to be {value}"
    metrics = {m["Id"]: m for m in alarm.get("Metrics", [])}
    stats = {k: m["MetricStat"] for k, m in metrics.items() if "MetricStat" in m}
    read = {
        k: (s["Metric"]["Namespace"], s["Metric"]["MetricName"], s["Metric"]["Dimensions"][0]["Value"])
        for k, s in stats.items()
    }
    function = f"{CLUSTER}-{name}"
    # A function with a URL is also run by nodes, so that its invocations say nothing about its schedule.
    runs = (
        ("AWS/Scheduler", "InvocationAttemptCount", function) if wanted.url else ("AWS/Lambda", "Invocations", function)
    )
    if read != {"runs": runs, "errors": ("AWS/Lambda", "Errors", function)}:
        yield f"{what}: has to read its runs from {runs}, and its errors; it reads {read}"
    if metrics.get("successes", {}).get("Expression") != "runs - errors":
        yield f"{what}: has to watch runs - errors"
    for stat in stats.values():
        minutes = stat["Period"] * alarm.get("EvaluationPeriods", 0) // 60
        if minutes != SILENT_PERIODS * wanted.every_min:
            yield f"{what}: goes off after {minutes} minutes, has to after {SILENT_PERIODS * wanted.every_min}"
    if wanted.url:
        groups = [
            s.get("GroupName")
            for s in of_type(resources, "AWS::Scheduler::Schedule").values()
            if s["Target"]["Arn"].endswith(f":function:{function}")
        ]
        if groups != [function]:
            yield f"{what}: reads the schedule group {function}, but the schedule is in {groups}"


def check_outputs(values: Values, template: dict[str, Any], tables: list[dict[str, Any]]) -> Iterator[str]:
    """What a node's image, an operator or another stack needs to know."""
    found = values.of({k: o["Value"] for k, o in template.get("Outputs", {}).items()})
    should = {
        "HeartbeatUrl": "FunctionUrl of HeartbeatUrl",
        "SweepUrl": "FunctionUrl of SweepUrl",
        **{f"{t['name'].capitalize()}Table": f"{CLUSTER}-{t['name']}" for t in tables},
    }
    for name, value in should.items():
        if found.get(name) != value:
            yield f"output {name}: is {found.get(name)}, has to be {value}"


# ---- All of it ----------------------------------------------------------------------------------------------


def needs_unmet(source: dict[str, Any], expansion: dict[str, Any], tables: list[dict[str, Any]]) -> Iterator[str]:
    """Everything that the project needs, in both modes."""
    yield from check_definitions(tables)
    yield from check_source(source)
    for mode, parameters in MODES.items():
        values = Values(expansion, parameters)
        resources = values.live_resources()
        yield from check_tables(resources, tables)
        yield from check_functions(resources, mode)
        yield from check_events(resources)
        yield from check_urls(resources, mode)
        yield from check_least_privilege(resources, mode)
        yield from check_secret(resources)
        yield from check_alarms(resources)
        yield from check_outputs(values, expansion, tables)
        # The schedules' roles are SAM's own work: what they grant is checked above, their form is not ours.
        yield from analyse_policies({k: r for k, r in resources.items() if k in source["Resources"]})


def check(text: str, tables: list[dict[str, Any]]) -> Iterator[str]:
    """All findings, the cheapest first, each once."""
    try:
        source = yaml_parse(text)
        expansion = expand(source)
    except Exception as error:  # whatever keeps it from being read or expanded is the finding
        yield f"template: cannot be expanded: {str(error) or type(error).__name__}"
        return
    try:
        yield from dict.fromkeys(needs_unmet(source, expansion, tables))
    except (Unresolved, KeyError, TypeError, AttributeError) as error:
        yield f"template: has a shape that cannot be checked: {type(error).__name__}: {error}"
    yield from lint(text, "source")
    yield from lint(json.dumps(expansion), "expansion")


# ---- Self-test ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistake:
    """A change that must be found, and words that the finding must contain."""

    name: str
    make: Callable[[dict[str, Any]], None]
    finding: str


def properties(logical_id: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda t: t["Resources"][logical_id]["Properties"]


def put(logical_id: str, *path: Any, value: Any = ABSENT) -> Callable[[dict[str, Any]], None]:
    """Sets a property, or takes it away."""

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


# One line each, however long: it is a table.
MISTAKES = [
    # Tables
    Mistake("a table is missing", drop("Resources", "EventsTable"), "EventsTable"),
    Mistake("a key of another type", put("NodesTable", "AttributeDefinitions", 0, "AttributeType", value="S"), "attribute types"),
    Mistake("no TTL", put("EventsTable", "TimeToLiveSpecification"), "demo-events: TTL"),
    Mistake("TTL on another attribute", put("JobsTable", "TimeToLiveSpecification", "AttributeName", value="finished_at"), "demo-jobs: TTL"),
    Mistake("TTL switched off", put("AllocsTable", "TimeToLiveSpecification", "Enabled", value=False), "demo-allocs: TTL"),
    Mistake("TTL where none belongs", put("NodesTable", "TimeToLiveSpecification", value={"AttributeName": "expires_at", "Enabled": True}), "demo-nodes: TTL"),
    Mistake("no recovery", put("ControlTable", "PointInTimeRecoverySpecification"), "point in time recovery"),
    Mistake("a table dies with the stack", lambda t: t["Resources"]["NodesTable"].pop("DeletionPolicy"), "DeletionPolicy has to be Retain"),
    Mistake("provisioned capacity", put("JobsTable", "BillingMode", value="PROVISIONED"), "BillingMode"),
    Mistake("command in the queue", lambda t: properties("JobsTable")(t)["GlobalSecondaryIndexes"][0]["Projection"]["NonKeyAttributes"].append("command"), "queue: projected attributes"),
    Mistake("everything in the index of live allocs", index("AllocsTable", "Projection", value={"ProjectionType": "ALL"}), "live: projection"),
    Mistake("an index with another range", index("HandlesTable", "KeySchema", 1, "AttributeName", value="handle"), "due: key"),
    # Functions
    Mistake("the wrong binary", lambda t: t["Resources"]["SweepDispatch"]["Metadata"]["BuildProperties"].update(Binary="heartbeat-ingest"), "builds the binary heartbeat-ingest"),
    Mistake("another build method", lambda t: t["Resources"]["PollAndScale"]["Metadata"].update(BuildMethod="makefile"), "BuildMethod"),
    Mistake("another architecture", lambda t: t["Globals"]["Function"].update(Architectures=["x86_64"]), "Architectures"),
    Mistake("a misspelled runtime", lambda t: t["Globals"]["Function"].update(Runtime="provided.al2024"), "Runtime"),
    Mistake("runs longer than its period", put("PollAndScale", "Timeout", value=90), "Timeout"),
    Mistake("one run at a time", put("PollAndScale", "ReservedConcurrentExecutions", value=1), "ReservedConcurrentExecutions"),
    Mistake("a schedule too slow", put("PollAndScale", "Events", "Schedule", "Properties", "ScheduleExpression", value="rate(10 minutes)"), "schedule is"),
    Mistake("a schedule that is no expression", put("CleanStaleRecords", "Events", "Schedule", "Properties", "ScheduleExpression", value="rate(5 minute)"), "schedule is"),
    Mistake("no schedule", put("SweepDispatch", "Events"), "SweepDispatch: schedule is []"),
    Mistake("schedules of two clusters collide", put("PollAndScale", "Events", "Schedule", "Properties", "Name"), "a second cluster's"),
    Mistake("no key in the environment", put("HeartbeatIngest", "Environment"), "NODEKEEPER_NODE_KEY_SECRET"),
    Mistake("the URLs swapped", put("PollAndScale", "Environment", "Variables", "NODEKEEPER_SWEEP_URL", value={"Fn::GetAtt": ["HeartbeatUrl", "FunctionUrl"]}), "NODEKEEPER_SWEEP_URL"),
    Mistake("the cluster's name missing", lambda t: t["Globals"]["Function"]["Environment"]["Variables"].pop("NODEKEEPER_CLUSTER"), "NODEKEEPER_CLUSTER"),
    Mistake("a log kept for ever", put("HeartbeatIngestLog", "RetentionInDays"), "for ever"),
    Mistake("functions that need each other", put("HeartbeatIngest", "Environment", "Variables", "POLL", value={"Ref": "PollAndScale"}), "ircular"),
    # Events
    Mistake("no spot warnings", put("PollAndScale", "Events", "SpotInterruption"), "Spot Instance Interruption"),
    Mistake("every state change wakes it", put("PollAndScale", "Events", "InstanceEnded", "Properties", "Pattern", "detail"), "State-change"),
    Mistake("our own writes wake us", put("PollAndScale", "Events", "NewJobs", "Properties", "FilterCriteria"), "INSERT"),
    Mistake("a table without the stream", put("JobsTable", "StreamSpecification"), "StreamArn"),
    # URLs
    Mistake("open to all in iam mode", put("SweepUrl", "AuthType", value="NONE"), "SweepUrl"),
    Mistake("only one of the two permissions", drop("Resources", "HeartbeatInvokePermission"), "InvokedViaFunctionUrl"),
    Mistake("anybody may invoke, not only by URL", put("SweepInvokePermission", "InvokedViaFunctionUrl"), "more than the URLs need"),
    Mistake("everybody in iam mode", put("HeartbeatUrlPermission", "Principal", value="*"), "more than the URLs need in iam mode"),
    # Policies
    Mistake("all of DynamoDB", statement("PollAndScaleRole", "Write", lambda s: s.update(Action="dynamodb:*")), "name each action"),
    Mistake("any table", statement("SweepDispatchRole", "Read", lambda s: s.update(Resource="*")), "SweepDispatchRole: dynamodb"),
    Mistake("somebody else's table", statement("HeartbeatIngestRole", "Write", lambda s: s.update(Resource={"Fn::Sub": "arn:aws:dynamodb:${AWS::Region}:${AWS::AccountId}:table/*"})), "own tables"),
    Mistake("an action that does not exist", statement("HeartbeatIngestRole", "Read", lambda s: s["Action"].append("dynamodb:ReadItem")), "UNKNOWN_ACTION"),
    Mistake("any instance may be terminated", statement("CleanStaleRecordsRole", "OwnInstances", lambda s: s.pop("Condition")), "ResourceTag"),
    Mistake("the condition on a request's tag", statement("PollAndScaleRole", "OwnInstances", lambda s: s.update(Condition={"StringEquals": {"aws:RequestTag/nodekeeper:cluster": {"Ref": "ClusterName"}}})), "ResourceTag"),
    Mistake("launches without the tag", statement("PollAndScaleRole", "Launch", lambda s: s.pop("Condition")), "RequestTag"),
    Mistake("tags at any time", statement("PollAndScaleRole", "TagAtLaunch", lambda s: s.pop("Condition")), "CreateAction"),
    Mistake("sweep-dispatch may launch", statement("SweepDispatchRole", "Events", lambda s: s.update(Action=["ec2:RunInstances"])), "SweepDispatchRole: EC2 actions"),
    Mistake("any role may be passed", lambda t: properties("PollAndScaleRole")(t)["Policies"][0]["PolicyDocument"]["Statement"][-1]["Fn::If"][1].update(Resource="*"), "iam:PassRole"),
    Mistake("heartbeats may delete nodes", statement("HeartbeatIngestRole", "Write", lambda s: s["Action"].append("dynamodb:DeleteItem")), "only clean-stale-records"),
    Mistake("a role for every account", put("SweepDispatchRole", "AssumeRolePolicyDocument", "Statement", 0, "Principal", value={"AWS": "*"}), "may be assumed by"),
    Mistake("a managed policy", put("PollAndScaleRole", "ManagedPolicyArns", value=["arn:aws:iam::aws:policy/AdministratorAccess"]), "managed policies"),
    # Secret, alarms, outputs
    Mistake("a key that is no hex", put("NodeKey", "GenerateSecretString", "ExcludeCharacters"), "0-9a-f"),
    Mistake("a key too short", put("NodeKey", "GenerateSecretString", "PasswordLength", value=32), "0-9a-f"),
    Mistake("silence is no alarm", put("PollAndScaleSilent", "TreatMissingData", value="notBreaching"), "TreatMissingData"),
    Mistake("silence hidden by reports", put("SweepDispatchSilent", "Metrics", 1, "MetricStat", "Metric", value={"Namespace": "AWS/Lambda", "MetricName": "Invocations", "Dimensions": [{"Name": "FunctionName", "Value": {"Ref": "SweepDispatch"}}]}), "SweepDispatchSilent: has to read"),
    Mistake("an alarm on another function", put("HeartbeatIngestErrors", "Dimensions", 0, "Value", value={"Ref": "SweepDispatch"}), "HeartbeatIngestErrors"),
    Mistake("an alarm that tells nobody", put("CleanStaleRecordsThrottles", "AlarmActions"), "tells nobody"),
    Mistake("no alarm for silence", drop("Resources", "CleanStaleRecordsSilent"), "CleanStaleRecordsSilent"),
    Mistake("no output for a URL", drop("Outputs", "HeartbeatUrl"), "output HeartbeatUrl"),
    # Only a linter sees these
    Mistake("a property that does not exist", put("NodesTable", "TimeToLive", value={"Enabled": True}), "E3002"),
    Mistake("a parameter used by nothing", lambda t: t["Parameters"].update(Unused={"Type": "String"}), "W2001"),
    Mistake("a retention that does not exist", put("SweepDispatchLog", "RetentionInDays", value=31), "E3030"),
    Mistake("a reference to nothing", put("AlarmSubscription", "Endpoint", value={"Ref": "Email"}), "Email"),
]  # fmt: skip


def self_test(text: str, tables: list[dict[str, Any]]) -> int:
    """Makes each mistake in memory; the number of those that were missed."""
    missed = 0
    for mistake in MISTAKES:
        source = yaml_parse(text)
        mistake.make(source)
        finding = next((f for f in check(json.dumps(source), tables) if mistake.finding in f), None)
        missed += finding is None
        print(f"{'missed' if finding is None else 'caught'}  {mistake.name}" + (f"  <- {finding}" if finding else ""))
    too_wide = copy.deepcopy(tables)
    widest = next(i for t in too_wide for i in t["indexes"] if i["projection"]["type"] == "INCLUDE")
    widest["projection"]["attributes"] = [f"a{n}" for n in range(PROJECTED_BY_INDEX + 1)]
    seen = any("at most 20" in f for f in check_definitions(too_wide))
    missed += not seen
    print(f"{'caught' if seen else 'missed'}  a definition beyond DynamoDB's limit")
    print(f"{len(MISTAKES) + 1 - missed} of {len(MISTAKES) + 1} mistakes caught")
    return missed


def main() -> int:
    arguments = argparse.ArgumentParser(description="Checks infra/template.yaml, offline.")
    arguments.add_argument(
        "--tables", required=True, help="what `nodekeeper init --print-tables` prints; - for standard input"
    )
    arguments.add_argument("--template", type=Path, default=TEMPLATE)
    arguments.add_argument("--self-test", action="store_true", help="also plant mistakes and prove that each is caught")
    options = arguments.parse_args()

    start = time.monotonic()
    tables = json.load(sys.stdin) if options.tables == "-" else json.loads(Path(options.tables).read_text())
    text = options.template.read_text()
    findings = list(check(text, tables))
    for finding in findings:
        print(" ".join(finding.split()))  # linters' messages may have several lines
    print(f"{options.template}: {len(findings) or 'no'} findings in {time.monotonic() - start:.1f} s", file=sys.stderr)
    if findings:
        return 1
    return int(options.self_test and self_test(text, tables) > 0)


if __name__ == "__main__":
    sys.exit(main())
