#!/usr/bin/env python3
"""Compares infra/template.yaml, infra/notify.yaml and infra/accounting.yaml with the rest of the project and with what AWS accepts. Runs offline.

    pip install -r infra/requirements.txt
    nodekeeper contract > contract.json
    infra/check.py --contract contract.json         prints one line for each finding, exits 1 if there is one
    infra/check.py --print-policies ClusterName=c   prints what each role allows, with values worked out

A linter sees little in SAM source. So this check expands the template as a deployment does, lints the expansion and analyses its
policies. Then it works out the expansion's values, for choices of the parameters in which each three values of parameters meet
(`choices`), and compares every resource, property, grant and output with the picture of that choice (`picture.py`). So a parameter
that one of its users ignores is seen, in whatever way to deploy, and nothing can be added that the picture does not have.

`mistakes.py` proves that it finds mistakes.

It does not talk to AWS. `tests/src/callers/permitted/mod.rs` runs the functions with exactly the policies of the template. Two things
only a deployment can show: whether AWS reads the policies as that test does, and whether the account's limits are high
enough.
"""

import argparse
import itertools
import json
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", category=UserWarning)  # pkg_resources, in parliament

import cfnlint.api  # noqa: E402
import parliament  # noqa: E402
from picture import NEEDS, RULES, STREAM_VIEWS, STREAMS, TEXTS, ZONES, Function, Picture, accounting, as_list, granting, notices  # noqa: E402
from plain import expand, yaml_parse  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "infra" / "template.yaml"
NOTIFY = ROOT / "infra" / "notify.yaml"
ACCOUNTING = ROOT / "infra" / "accounting.yaml"

CLUSTER = "demo"
ROLE = "arn:aws:iam::123456789012:role/node"
TEMPLATE_ARN = "arn:aws:ec2:eu-west-1:123456789012:launch-template/lt-0123456789abcdef0"
KEY_ARN = "arn:aws:kms:eu-west-1:123456789012:key/00000000-0000-0000-0000-000000000000"
# Where a stack may be: what is written out for one of these is wrong in the other.
PSEUDO = {
    "AWS::AccountId": "123456789012",
    "AWS::Partition": "aws",
    "AWS::Region": "eu-west-1",
}
CHINA = {
    "AWS::AccountId": "210987654321",
    "AWS::Partition": "aws-cn",
    "AWS::Region": "cn-north-1",
}
# Nothing is there. A class, because it stays the same on the way to another process.
ABSENT = type("ABSENT", (), {})

# Published limits: https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_Projection.html
PROJECTED_BY_INDEX = 20
PROJECTED_BY_TABLE = 100


@dataclass(frozen=True)
class Parameter:
    """What a deployer may choose: the default (ABSENT: it must be given), its rule, and values to try, beside the default."""

    default: Any
    rule: dict[str, Any]
    tried: tuple[Any, ...]
    type_: str = "String"


def text(pattern: str, *tried: str, default: Any = "") -> Parameter:
    return Parameter(default, {"AllowedPattern": pattern} if pattern else {}, tried)


def number(default: int, least: int, most: int | None, *tried: int) -> Parameter:
    return Parameter(default, {"MinValue": least} | ({} if most is None else {"MaxValue": most}), tried, "Number")


def one_of(*words: str, default: str) -> Parameter:
    return Parameter(default, {"AllowedValues": list(words)}, tuple(w for w in words if w != default))


PARAMETERS = {
    "ClusterName": text("[A-Za-z0-9_-]{1,44}", CLUSTER, "other-1", default=ABSENT),
    "NodeRoleArn": text("(arn:aws[a-z-]*:iam::[0-9]{12}:role/.+)?", ROLE),
    "LaunchTemplateArns": Parameter("", {}, ([TEMPLATE_ARN],), "CommaDelimitedList"),
    "VpcId": text("(vpc-[0-9a-f]+)?", "vpc-0123"),
    "MakeNetwork": one_of("true", "false", default="false"),
    "NodeImage": text(
        "ami-[0-9a-f]+|resolve:ssm:/aws/service/.+", "ami-0123456789abcdef0",
        default="resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
    ),
    "NodeRootDevice": text("/dev/(xvda|sda1)", "/dev/sda1", default="/dev/xvda"),
    "NodeVolumeGib": number(30, 8, 16384, 100),
    "NodeVolumeKeyArn": text("(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+)?", KEY_ARN),
    "Architecture": one_of("arm64", "x86_64", default="arm64"),
    "OutputS3": text("([a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._-]+){0,20})?", "demo-logs/nodes"),
    "UrlConcurrency": number(0, 0, 1000, 20),
    "RefusedRequestsAlarm": number(1000, 1, None, 7),
    "NotReadyNodesAlarm": number(0, 0, None, 5),
    "DeletionProtection": one_of("true", "false", default="false"),
    "LogLevel": one_of("error", "warn", "info", "debug", default="info"),
    "HasDashboard": one_of("true", "false", default="false"),
    "AlarmEmail": text("", "a@example.org"),
    "JobEvents": one_of("true", "false", default="false"),
    # What CloudWatch takes, up to five years.
    "LogRetentionDays": Parameter(30, {"AllowedValues": [1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827]}, (365,), "Number"),
    "ScheduleState": one_of("ENABLED", "DISABLED", default="ENABLED"),
}  # fmt: skip
OF_NOTIFY = {
    "Cluster": text("[A-Za-z0-9_-]{1,44}", CLUSTER, "other-1", default=ABSENT),
    "Mail": text("", "a@example.org"),
    "Url": text("(https://.+)?", "https://example.org/hook"),
    "UrlKey": Parameter("none", {"NoEcho": True}, ("secret",)),
}
OF_ACCOUNTING = {
    "Cluster": text("[A-Za-z0-9_-]{1,44}", CLUSTER, "other-1", default=ABSENT),
    "Database": text("[a-z][a-z0-9_]{0,62}", "lab_1", default="nodekeeper"),
}
OF = {TEMPLATE.name: PARAMETERS, NOTIFY.name: OF_NOTIFY, ACCOUNTING.name: OF_ACCOUNTING}
# The stacks beside that of the cluster.
BESIDE = {NOTIFY.name: notices, ACCOUNTING.name: accounting}
# What is chosen together: a role of one's own comes with launch templates, and a place is one.
TOGETHER = {"NodeRoleArn": ("NodeRoleArn", "LaunchTemplateArns")}


def factors(parameters: dict[str, Parameter]) -> list[list[dict[str, Any]]]:
    """What can be chosen: for each parameter its values, as they are in a stack."""
    joined = {name for group in TOGETHER.values() for name in group[1:]}
    found = [[PSEUDO, CHINA]]
    for name in (n for n in parameters if n not in joined):
        group = [parameters[n] for n in TOGETHER.get(name, (name,))]
        rows = zip(*([*([] if p.default is ABSENT else [as_value(p)]), *p.tried] for p in group), strict=True)
        found.append([dict(zip(TOGETHER.get(name, (name,)), row, strict=True)) for row in rows])
    return found


def as_value(parameter: Parameter) -> Any:
    return parameter.default.split(",") if parameter.type_ == "CommaDelimitedList" else parameter.default


@cache
def choices(file: str = TEMPLATE.name) -> list[dict[str, Any]]:
    """Choices of all parameters, so few that each three values of parameters meet in one of them. The first has all defaults."""
    values = factors(OF[file])
    rng, found = random.Random(1), [[0] * len(values)]
    wanted = {
        (a, b, c)
        for x, y, z in itertools.combinations(range(len(values)), 3)
        for a, b, c in itertools.product(*[[(n, i) for i in range(len(values[n]))] for n in (x, y, z)])
    }
    met = lambda row: set(itertools.combinations(enumerate(row), 3))  # noqa: E731
    wanted -= met(found[0])
    while wanted:
        # A triple that has not met yet, and the best of some ways to choose the rest.
        first = min(wanted)
        rows = []
        for _ in range(12):
            row = [rng.randrange(len(of)) for of in values]
            for n, i in first:
                row[n] = i
            rows.append(row)
        best = max(rows, key=lambda row: len(wanted & met(row)))
        found.append(best)
        wanted -= met(best)
    return [{k: v for n, i in enumerate(row) for k, v in values[n][i].items()} for row in found]


@dataclass(frozen=True)
class Contract:
    """What `nodekeeper contract` prints: the tables, functions, metrics and job events of the project."""

    tables: list[dict[str, Any]]
    functions: list[Function]
    # The names of the metrics that each function emits, their namespace, and the alarms of the signs.
    metrics: dict[str, Any]
    # The fields that the row of each ended job has for its event.
    job_event: list[str]

    @staticmethod
    def read(document: dict[str, Any]) -> "Contract":
        rows = [Function(f["name"], f.get("period_s"), tuple(f["routes"])) for f in document["functions"]]
        return Contract(document["tables"], rows, document["metrics"], document["job_event"])

    def checked_functions(self) -> list[Function]:
        """The functions whose needs are known. `check_contract` reports the others."""
        return [f for f in self.functions if f.name in NEEDS]

    def pictures(self) -> "list[Pictured]":
        """The picture for each choice of the parameters."""
        of = [(choice, Picture(self, self.checked_functions(), choice)) for choice in choices()]
        return [(choice, stack(picture.resources(), {k: {"Value": v} for k, v in picture.outputs().items()})) for choice, picture in of]


# ---- Work out the values of the expanded template -----------------------------------------------------------


class Unresolved(Exception):
    """This check cannot work out an expression of the template."""


# Which property names a resource. Nothing refers to others by a name of their own.
NAMED_BY = {
    "AWS::DynamoDB::Table": "TableName", "AWS::Events::EventBus": "Name", "AWS::Lambda::Function": "FunctionName",
    "AWS::Logs::LogGroup": "LogGroupName", "AWS::Scheduler::ScheduleGroup": "Name", "AWS::SQS::Queue": "QueueName",
}  # fmt: skip
# The ARNs, behind the partition.
ARNS = {
    "AWS::CloudWatch::Alarm": "cloudwatch:{place}:alarm:{name}", "AWS::DynamoDB::Table": "dynamodb:{place}:table/{name}",
    "AWS::Events::ApiDestination": "events:{place}:api-destination/{name}", "AWS::Events::Connection": "events:{place}:connection/{name}",
    "AWS::Events::EventBus": "events:{place}:event-bus/{name}", "AWS::Events::Rule": "events:{place}:rule/{name}",
    "AWS::IAM::InstanceProfile": "iam::{account}:instance-profile/{name}", "AWS::IAM::ManagedPolicy": "iam::{account}:policy/{name}",
    "AWS::IAM::Role": "iam::{account}:role/{name}", "AWS::KinesisFirehose::DeliveryStream": "firehose:{place}:deliverystream/{name}",
    "AWS::Lambda::Function": "lambda:{place}:function:{name}", "AWS::Logs::LogGroup": "logs:{place}:log-group:{name}:*",
    "AWS::S3::Bucket": "s3:::{name}", "AWS::SNS::Topic": "sns:{place}:{name}", "AWS::SQS::Queue": "sqs:{place}:{name}",
}  # fmt: skip


class Values:
    """Works out references, conditions and substitutions for one set of parameters."""

    def __init__(self, template: dict[str, Any], parameters: dict[str, Any]) -> None:
        self.resources = template["Resources"]
        self.conditions = template.get("Conditions", {})
        self.held: dict[str, bool] = {}
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
        if condition not in self.held:
            self.held[condition] = self.of(self.conditions[condition])
        return self.held[condition]

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
            case "Fn::GetAZs":
                return ZONES[self.of(arg) or self.parameters["AWS::Region"]]
            case "Fn::Select":
                number, members = self.of(arg)
                if number >= len(members):
                    raise Unresolved(f"a list of {len(members)} has no member {number}")
                return members[number]
            case "Fn::Split":
                return self.of(arg[1]).split(arg[0])
            case "Fn::Join":
                return arg[0].join(map(str, self.of(arg[1])))
            case "Fn::Sub":
                return self.substitute(*arg) if isinstance(arg, list) else self.substitute(arg, {})
        raise Unresolved(f"check.py cannot work out {name}: extend check.py, or do not use it")

    def substitute(self, text: str, names: dict[str, Any]) -> str:
        def value(found: re.Match[str]) -> str:
            name = found[1]
            if name.startswith("!"):
                return f"${{{name[1:]}}}"
            return str(self.of(names[name]) if name in names else self.attribute(*name.split(".", 1)) if "." in name else self.ref(name))

        return re.sub(r"\$\{([^}]*)}", value, text)

    def resource(self, name: str) -> dict[str, Any]:
        if name not in self.resources:
            raise Unresolved(f"nothing is called {name}")
        return self.resources[name]

    def named(self, name: str) -> str:
        """What this resource is called."""
        resource = self.resource(name)
        if resource["Type"] == "AWS::S3::Bucket":
            return f"{self.parameters.get('ClusterName') or self.parameters['Cluster']}-{name.lower()}"
        named_by = NAMED_BY.get(resource["Type"])
        return self.of(resource["Properties"][named_by]) if named_by else name

    def ref(self, name: str) -> Any:
        """As in CloudFormation, a name: only these two are ARNs."""
        if name in self.parameters:
            return self.parameters[name]
        match self.resource(name)["Type"]:
            case "AWS::IAM::ManagedPolicy" | "AWS::SNS::Topic":
                return self.attribute(name, "Arn")
            case "AWS::SQS::Queue":
                return f"URL of {name}"
        return self.named(name)

    def attribute(self, logical_id: str, attribute: str) -> str:
        resource = self.resource(logical_id)
        kind, account = resource["Type"], self.parameters["AWS::AccountId"]
        match attribute:
            case "FunctionUrl" | "GroupId":
                return f"{attribute} of {logical_id}"
            case "QueueName":
                return self.named(logical_id)
            case "StreamArn" if "StreamSpecification" in resource["Properties"]:
                return self.attribute(logical_id, "Arn") + "/stream/2026-01-01"
            case "Arn" if kind in ARNS:
                place = f"{self.parameters['AWS::Region']}:{account}"
                return f"arn:{self.parameters['AWS::Partition']}:" + ARNS[kind].format(place=place, account=account, name=self.named(logical_id))
        raise Unresolved(f"check.py does not know {attribute} of {logical_id}: extend it")


def of_type(resources: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {k: r["Properties"] for k, r in resources.items() if r["Type"] == kind}


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


# ---- What the project defines --------------------------------------------------------------------------------


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


def check_source(source: dict[str, Any], contract: Contract) -> Iterator[str]:
    """How each function is built. The expansion does not show it."""
    expected = {f.logical_id: f.name for f in contract.functions}
    binaries = set()
    for logical_id, resource in source["Resources"].items():
        if resource["Type"] != "AWS::Serverless::Function":
            if "Metadata" in resource:
                yield f"{logical_id}: Metadata: only functions have any"
            continue
        metadata = resource.get("Metadata", {})
        binary = metadata.get("BuildProperties", {}).get("Binary")
        binaries.add(binary)
        if logical_id not in expected:
            yield f"{logical_id}: the template has this function, the table of functions does not"
        elif binary != expected[logical_id]:
            yield f"{logical_id}: builds the binary {binary}, must build {expected[logical_id]}"
        should = {"BuildMethod": "rust-cargolambda", "BuildProperties": {"Binary": binary}}
        if metadata != should:
            yield f"{logical_id}: Metadata is {metadata}, must be {should}"
    folders = {p.parent.name for p in (ROOT / "functions").glob("*/Cargo.toml")}
    for name in sorted(folders ^ binaries, key=str):
        what = "in functions/ but not in the template" if name in folders else "has no folder in functions/"
        yield f"function {name}: {what}"
    code = source["Globals"]["Function"].get("CodeUri")
    if (TEMPLATE.parent / str(code)).resolve() != ROOT:
        yield f"Globals: CodeUri is {code}, must be the workspace"


# ---- The templates against the picture ----------------------------------------------------------------------

# Texts that are JSON, and lists whose order means nothing.
JSON_TEXTS = {"DashboardBody", "InputTemplate", "Pattern"}
UNORDERED = {"AttributeDefinitions", "GlobalSecondaryIndexes", "NonKeyAttributes", "alarms"}
SECTIONS = {"AWSTemplateFormatVersion", "Conditions", "Description", "Outputs", "Parameters", "Resources"}
SECTIONS_OF_SAM = SECTIONS | {"Globals", "Metadata", "Rules", "Transform"}
TRANSFORM = "AWS::Serverless-2016-10-31"
# For `sam validate` only: `lint` takes it out.
EXCEPTED = {"cfn-lint": {"config": {"ignore_checks": ["W1030", "W2506"]}}}


def normal(node: Any, name: str = "") -> Any:
    """The values of a resource as they are compared."""
    if isinstance(node, str) and name in JSON_TEXTS:
        try:
            found = json.loads(node)
        except ValueError:
            return node
        return node if isinstance(found, str) else normal(found)
    if isinstance(node, dict) and "Statement" in node:
        return granting(node)
    if isinstance(node, dict):
        return {k: normal(v, k) for k, v in node.items() if k not in TEXTS}
    if isinstance(node, tuple):
        return tuple(map(normal, node))
    if isinstance(node, list):
        values = [normal(v) for v in node]
        return sorted(values, key=json.dumps) if name in UNORDERED else values
    return node


def differences(is_: Any, should: Any, place: str) -> Iterator[tuple[str, str]]:
    """Each place where they differ, and how."""
    if is_ == should and shown(is_) == shown(should):
        return
    if isinstance(is_, dict) and isinstance(should, dict):
        for key in sorted(is_.keys() | should.keys()):
            way = place if key in ("Properties", "grants", "PolicyDocument", "Policies") else f"{place}.{key}"
            yield from differences(is_.get(key, ABSENT), should.get(key, ABSENT), way)
    elif isinstance(is_, list) and isinstance(should, list) and all(isinstance(v, str) and " " in v for v in is_ + should):
        yield from ((f"{place}: {v}", "may, and need not: take it away") for v in is_ if v not in should)
        yield from ((f"{place}: {v}", "needs this, and may not") for v in should if v not in is_)
    elif isinstance(is_, list) and isinstance(should, list) and len(is_) == len(should):
        for n, (one, other) in enumerate(zip(is_, should, strict=True)):
            yield from differences(one, other, place if len(is_) == 1 else f"{place}.{n}")
    else:
        yield place, f"is {shown(is_)}, must be {shown(should)}"


def shown(value: Any) -> str:
    return "not there" if value is ABSENT else json.dumps(value, sort_keys=True)


# What is in a stack: its resources, and its outputs as "output NAME".
Stack = dict[str, Any]
Pictured = tuple[dict[str, Any], Stack]


def stack(resources: dict[str, Any], outputs: dict[str, Any]) -> Stack:
    return normal(resources) | {f"output {name}": value for name, value in outputs.items()}


def stack_of(template: dict[str, Any], choice: dict[str, Any]) -> Stack:
    """What a template makes of one choice."""
    values = Values(template, choice)
    resources = {name: {k: v for k, v in r.items() if k not in ("Condition", "Metadata")} for name, r in values.live_resources().items()}
    there = {k: o for k, o in template.get("Outputs", {}).items() if "Condition" not in o or values.holds(o["Condition"])}
    return stack(resources, {k: values.of({key: v for key, v in o.items() if key not in ("Condition", "Description")}) for k, o in there.items()})


def check_stacks(template: dict[str, Any], pictures: list[Pictured]) -> Iterator[str]:
    """Each place that differs from the picture of some choice, once, with the parameters that it depends on."""
    found: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for choice, should in pictures:
        is_ = stack_of(template, choice)
        for name in sorted(is_.keys() | should.keys()):
            if name in is_ and name in should:
                differing = differences(is_[name], should[name], name)
            else:
                differing = iter([(name, "is there, and must not be" if name in is_ else "is missing")])
            for where, how in differing:
                found.setdefault(at_home(where, choice), (how, []))[1].append(choice)
    for where, (how, failing) in found.items():
        varied = [k for k in failing[0] if k == "AWS::Region" or not k.startswith("AWS::")]
        same = {k: failing[0][k] for k in varied if all(c[k] == failing[0][k] for c in failing) and any(c[k] != failing[0][k] for c, _ in pictures)}
        when = f" (when {', '.join(f'{k} is {shown(v)}' for k, v in sorted(same.items()))})" if same else ""
        yield f"{where}: {how}{when}"


def at_home(place: str, choice: dict[str, Any]) -> str:
    """The same place in the stack of the first choice, so that a mistake is one finding."""
    home = {**PSEUDO, "ClusterName": CLUSTER}
    for name in ("AWS::AccountId", "AWS::Region", "ClusterName"):
        place = place.replace(choice.get(name, home[name]), home[name])
    return place.replace(f"arn:{choice['AWS::Partition']}:", f"arn:{PSEUDO['AWS::Partition']}:")


def check_parameters(found: dict[str, Any], wanted: dict[str, Parameter]) -> Iterator[str]:
    """Each parameter has the type, the default and the rule that it should have, and says what it is for."""
    for name in sorted(found.keys() | wanted.keys()):
        if name not in wanted or name not in found:
            yield f"parameter {name}: {'not in PARAMETERS of check.py' if name in found else 'missing'}"
            continue
        should = {"Type": wanted[name].type_, **wanted[name].rule} | ({} if wanted[name].default is ABSENT else {"Default": wanted[name].default})
        there = {k: v for k, v in found[name].items() if k not in ("ConstraintDescription", "Description")}
        if there != should:
            yield f"parameter {name}: is {there}, must be {should}"
        if not found[name].get("Description"):
            yield f"parameter {name}: does not say what it is for; give Description"


def check_sections(source: dict[str, Any], known: set[str]) -> Iterator[str]:
    for name in sorted(source.keys() - known):
        yield f"{name}: not known to check.py: add it to SECTIONS, with its check, or take it away"
    if source.get("Transform") != (TRANSFORM if "Transform" in known else None) or '"Fn::Transform"' in json.dumps(source):
        yield f"Transform: must be {TRANSFORM} in template.yaml, and nothing else may change a template"
    if source.get("Metadata", EXCEPTED) != EXCEPTED:
        yield f"Metadata: must be {EXCEPTED}, or a linter would see less"


def check_rules(expansion: dict[str, Any]) -> Iterator[str]:
    """A role of one's own and launch templates of one's own come together, and neither they nor a network of one's own with one of the
    stack. Nothing else is refused."""
    own = [
        {"NodeRoleArn": role, "LaunchTemplateArns": templates, "VpcId": vpc, "MakeNetwork": makes}
        for role, templates, vpc, makes in itertools.product(("", ROLE), ([""], [TEMPLATE_ARN]), ("", "vpc-0123"), ("true", "false"))
    ]
    for choice in [*({"ClusterName": CLUSTER, **one} for one in own), *choices()]:
        role, templates = choice["NodeRoleArn"], choice["LaunchTemplateArns"]
        values = Values(expansion, choice)
        rules = [r for r in expansion.get("Rules", {}).values() if values.of(r["RuleCondition"])]
        refused = not all(values.of(a["Assert"]) for rule in rules for a in rule["Assertions"])
        twice = choice["MakeNetwork"] == "true" and (choice["VpcId"] != "" or role != "")
        if refused != (twice or bool(role) != (templates != [""])):
            given = ", ".join(f"{k} {choice[k]!r}" for k in own[0])
            yield f"Rules: {given} must {'' if not refused else 'not '}be refused"


def check_metrics(contract: Contract, pictures: list[Pictured]) -> Iterator[str]:
    """The functions emit the metrics that the alarms and the dashboard of the picture name. Each sign has its alarm."""
    wanted, told = set(), set()
    for choice, resources in pictures:
        alarms = [r["Properties"] for r in resources.values() if r.get("Type") == "AWS::CloudWatch::Alarm"]
        told |= {a["AlarmName"] for a in alarms}
        wanted |= {(a["Dimensions"][1]["Value"], a["MetricName"]) for a in alarms if a.get("Namespace") == "nodekeeper"}
        if choice["HasDashboard"] == "true":
            graphs = resources["Dashboard"]["Properties"]["DashboardBody"]["widgets"][:-1]
            wanted |= {(m[5], m[1]) for graph in graphs for m in graph["properties"]["metrics"] if m[0] == "nodekeeper"}
    for function, metric in sorted(wanted):
        if contract.metrics["namespace"] != "nodekeeper" or metric not in contract.metrics["names"].get(function, ()):
            yield f"alarms and dashboard: nothing emits nodekeeper {metric} of {function}"
    for sign in contract.metrics["signs"]:
        if f"{CLUSTER}-{sign['alarm']}" not in told:
            yield f"sign {sign['sign']}: there is no alarm {sign['alarm']}"


def check_examples() -> Iterator[str]:
    """Each filter of the picture lets an example of `events/` pass, and each example passes one."""
    filters = {name: {"source": ["aws.ec2"], **pattern} for name, (pattern, _) in RULES.items()}
    filters |= {name: {**pattern, "eventSourceARN": [table], "view": [STREAM_VIEWS[table]]} for name, (table, pattern) in STREAMS.items()}
    passed = set()
    for file in sorted((ROOT / "infra" / "events" / "poll-and-scale").glob("*.json")):
        event = json.loads(file.read_text())
        if record := event.get("Records", [None])[0]:
            table = re.search(r"table/\w+-(\w+)/stream", record["eventSourceARN"])
            event = record | {"eventSourceARN": table and table[1], "view": record["dynamodb"]["StreamViewType"]}
        found = {name for name, pattern in filters.items() if passes(event, pattern)}
        passed |= found
        if not found and file.stem not in ("dry-run", "scheduled"):
            yield f"events/poll-and-scale/{file.name}: no filter of template.yaml lets it pass"
    yield from (f"events/poll-and-scale: has no example that {name} lets pass" for name in sorted(filters.keys() - passed))


def passes(value: Any, pattern: Any) -> bool:
    """What EventBridge says, of patterns as they are here."""
    if isinstance(pattern, dict):
        return all(passes(value.get(key) if isinstance(value, dict) else None, of) for key, of in pattern.items())
    return value in pattern or (value is None and {"exists": False} in pattern)


# ---- All checks ---------------------------------------------------------------------------------------------


def needs_unmet(source: dict[str, Any], expansion: dict[str, Any], contract: Contract) -> Iterator[str]:
    """Everything that the project needs and the template does not have, and everything that it has besides."""
    yield from check_definitions(contract.tables)
    yield from check_contract(contract)
    yield from check_parameters(source["Parameters"], PARAMETERS)
    yield from check_sections(source, SECTIONS_OF_SAM)
    yield from check_source(source, contract)
    yield from check_rules(expansion)
    yield from check_examples()
    pictures = contract.pictures()
    yield from check_stacks(expansion, pictures)
    yield from check_metrics(contract, pictures)
    everything = Values(expansion, {"ClusterName": CLUSTER, "JobEvents": "true", "NodeVolumeKeyArn": KEY_ARN, "OutputS3": "demo-logs/nodes"})
    resources = everything.live_resources()
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


def check_beside(file: str, text: str, contract: Contract) -> Iterator[str]:
    """The same for a stack beside that of the cluster."""
    try:
        source = yaml_parse(text)
        yield from check_parameters(source["Parameters"], OF[file])
        yield from check_sections(source, SECTIONS)
        yield from (f"{name}: Metadata: nothing here has any" for name, r in source["Resources"].items() if "Metadata" in r)
        yield from check_stacks(source, [(c, stack(*BESIDE[file](c, contract.job_event))) for c in choices(file)])
    except Exception as error:  # as above
        yield f"{file}: has a shape that cannot be checked: {type(error).__name__}: {error}"
    yield from lint(text, file)


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
        "--contract", help="what `nodekeeper contract` prints; - for standard input"
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
        arguments.error("--contract is needed: give what `nodekeeper contract` prints")

    start = time.monotonic()
    document = json.load(sys.stdin) if options.contract == "-" else json.loads(Path(options.contract).read_text())
    contract = Contract.read(document)
    findings = list(check(options.template.read_text(), contract))
    for file in BESIDE:
        findings += check_beside(file, (TEMPLATE.parent / file).read_text(), contract)
    for finding in findings:
        print(" ".join(finding.split()))  # a linter's message may have several lines
    print(f"{options.template}: {len(findings) or 'no'} findings in {time.monotonic() - start:.1f} s", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
