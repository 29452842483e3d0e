"""What the three templates must become: every resource with every property, and every output, for any parameters.

`check.py` works the templates out for many choices of their parameters, and compares each with the picture of the same choice. What the
picture does not have is a finding, so nothing of a template stays unlooked at. Tables, functions, metrics and fields of events come from
the contract, and the rights from the calls that the tests record (`calls.json`, `people.json`).

A policy is compared by what it grants: one line for each effect, action, resource, principal and condition (`granting`). Texts for
people are not compared (`TEXTS`).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The calls of DynamoDB and EC2 that each function makes. The tests record them and compare them with this file.
CALLS = json.loads((HERE / "calls.json").read_text())
# The calls that the commands make, by who may give them: the tests record these too. Reads of tables are left out,
# because everybody may read every table and index.
PEOPLE = json.loads((HERE / "people.json").read_text())
READS = ("BatchGetItem", "GetItem", "Query", "Scan")
VERSION = "2012-10-17"
TEXTS = {"Description", "GroupDescription", "PolicyName", "Sid", "title"}

Resources = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Needs:
    """What one function needs of its block in the template, beyond what the table of functions says."""

    timeout_s: int
    memory_mb: int
    # How often Lambda tries an event again, and how old the event may be then.
    retries: tuple[int, int] = (0, 60)
    # Whether it answers or launches nodes, and so knows their role.
    nodes: bool = False
    # Whether it launches nodes, and writes the URLs into their user data.
    launches: bool = False
    # Whether it tells nodes where they get the credentials of jobs.
    grant_url: bool = False


NEEDS = {
    # A spot warning is the only input whose content no later run can observe. So it is tried once more.
    "poll-and-scale": Needs(55, 512, retries=(1, 120), nodes=True, launches=True),
    "clean-stale-records": Needs(240, 512),
    "heartbeat-ingest": Needs(20, 256, nodes=True, grant_url=True),
    "sweep-dispatch": Needs(55, 256, nodes=True),
    "grant-credentials": Needs(20, 256, nodes=True),
}


@dataclass(frozen=True)
class Function:
    """One row of the table of functions. Its name is also the name of its binary and of its folder."""

    name: str
    period_s: int | None
    routes: tuple[str, ...]

    @property
    def logical_id(self) -> str:
        """poll-and-scale is PollAndScale."""
        return camel(self.name)

    @property
    def short(self) -> str:
        """What is named after it in short: sweep-dispatch has SweepUrl."""
        return self.name.split("-")[0].capitalize()

    @property
    def every_min(self) -> int | None:
        return None if self.period_s is None else self.period_s // 60

    @property
    def needs(self) -> Needs:
        return NEEDS[self.name]


# No object is public.
CLOSED = {"PublicAccessBlockConfiguration": dict.fromkeys(("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"), True)}
# What outlives the stack.
KEPT = {"DeletionPolicy": "RetainExceptOnCreate", "UpdateReplacePolicy": "Retain"}
# What a stream shows of a row: no more than its readers need. The other tables have no stream.
STREAM_VIEWS = {"nodes": "NEW_AND_OLD_IMAGES", "jobs": "NEW_AND_OLD_IMAGES", "allocs": "NEW_IMAGE"}
# Reading the streams of tables is Lambda's part, with the function's role.
STREAM_READERS = {"poll-and-scale": ("allocs", "jobs", "nodes")}
STREAM_VERBS = ("DescribeStream", "GetRecords", "GetShardIterator", "ListStreams")
# A new job, an alloc that ends and a node that becomes ready wake poll-and-scale, and no other write does.
STREAMS = {
    "NewJobs": ("jobs", {"eventName": ["INSERT"]}),
    "EndedAllocs": (
        "allocs",
        {
            "eventName": ["MODIFY"],
            "dynamodb": {
                "NewImage": {"client": {"S": ["complete", "failed"]}, "handed_on": {"BOOL": [{"exists": False}]}},
            },
        },
    ),
    "ReadyNodes": (
        "nodes",
        {
            "eventName": ["MODIFY"],
            "dynamodb": {"OldImage": {"status": {"S": ["syncing"]}}, "NewImage": {"status": {"S": ["ready"]}}},
        },
    ),
}
# The events of EC2 that wake poll-and-scale, and how often they are tried again. A warning is the only one that no later run can see.
WARNINGS = ("EC2 Spot Instance Interruption Warning", "EC2 Capacity Reservation Instance Interruption Warning", "EC2 Instance Rebalance Recommendation")
RULES = {
    "SpotInterruption": ({"detail-type": list(WARNINGS)}, (3, 120)),
    "InstanceEnded": ({"detail-type": ["EC2 Instance State-change Notification"], "detail": {"state": ["stopped", "terminated"]}}, (0, 60)),
}

# What a launch names or makes, and whose it may be. An image or a subnet may be shared by another account.
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ExamplePolicies_EC2.html
# The template of the launch decides what the instance is and may do: a call that names another image is refused.
FIXED = ("image", "key-pair", "placement-group", "security-group", "snapshot")
# The call itself names the subnet and the capacity reservation. Volumes and interfaces are made with the instance.
GIVEN = ("capacity-reservation", "network-interface", "subnet", "volume")
# What a call of CreateFleet names: the fleet, and what its launches use. (It asks for spot by itself.) True: of any account.
FLEET = {"fleet": False, "instance": False, "launch-template": False} | dict.fromkeys((*FIXED, *GIVEN), True)
# What a launch tags.
TAGGED = ("instance", "network-interface", "spot-instances-request", "volume")
# EC2 uses the key of the volumes with the rights of whoever launches.
KEY_VERBS = ("Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo")

SUBNETS = ("FirstSubnet", "SecondSubnet", "ThirdSubnet")
# The zones of the regions of `check.py`: three as almost everywhere, and two as in us-west-1.
ZONES = {"eu-west-1": ["eu-west-1a", "eu-west-1b", "eu-west-1c"], "cn-north-1": ["cn-north-1a", "cn-north-1b"]}

# The saved queries: what they are called, and what they ask. `level`, `message`, `function` and `duration_ms` are fields of the lines
# that the functions print. Metrics have `Cluster`.
WORDS = "fields @timestamp, @log, level, @message"
QUERIES = {
    "TroubleQuery": (
        "errors and warnings",
        f'{WORDS}\n| filter level in ["ERROR", "WARN"] or (not ispresent(level) and not ispresent(Cluster))\n| sort @timestamp desc\n| limit 200',
    ),
    "StoryQuery": ("lines about one job or node", f'{WORDS}\n| filter @message like "PUT THE ID HERE"\n| sort @timestamp'),
    "SlowRunsQuery": (
        "slow runs",
        'filter message = "run"\n| fields @timestamp, function, duration_ms, nodes, jobs, allocs, done, left\n| sort duration_ms desc\n| limit 50',
    ),
}

# A function counts as silent after five missed periods, as in the policy's watchdog.multiplier.
SILENT_PERIODS = 5
# How many of the last runs must find a sign wrong before its alarm rings, as (wrong runs, last runs). The first pair is for a function
# that runs each minute, the second for one that runs more rarely. What lasts for a moment must not ring, and a brake that holds for
# five minutes must.
WRONG_RUNS = (3, 5)
WRONG_RARE_RUNS = (2, 3)
AT_LEAST, MORE, LESS = "GreaterThanOrEqualToThreshold", "GreaterThanThreshold", "LessThanThreshold"


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def granting(document: dict[str, Any]) -> dict[str, Any]:
    """A policy document by what it grants, whatever its statements are."""
    lines = set()
    for statement in as_list(document["Statement"]):
        rest = {k: v for k, v in statement.items() if k not in ("Action", "Condition", "Effect", "Principal", "Resource", "Sid")}
        condition = {test: {key: sorted(as_list(v)) for key, v in keys.items()} for test, keys in statement.get("Condition", {}).items()}
        who = statement.get("Principal", {})
        by = [f" by {kind} {name}" for kind, names in (who if isinstance(who, dict) else {"": who}).items() for name in as_list(names)]
        tail = "".join(f" {word} {json.dumps(what, sort_keys=True)}" for word, what in (("if", condition), ("and", rest)) if what)
        for action in as_list(statement.get("Action", "-")):
            for resource in as_list(statement["Resource"]) if "Resource" in statement else [None]:
                on = "" if resource is None else f" on {resource}"
                lines.update(f"{statement.get('Effect')} {action}{on}{who}{tail}" for who in by or [""])
    return {**{k: v for k, v in document.items() if k != "Statement"}, "grants": sorted(lines)}


class Grants(list[dict[str, Any]]):
    """The statements of a policy that is to be."""

    def allow(self, actions: str | Iterable[str], resources: str | Iterable[str], condition: dict[str, Any] | None = None) -> None:
        actions = [actions] if isinstance(actions, str) else list(actions)
        resources = [resources] if isinstance(resources, str) else list(resources)
        self.append({"Effect": "Allow", "Action": actions, "Resource": resources, "Condition": condition or {}})

    def document(self) -> dict[str, Any]:
        return {"Version": VERSION, "Statement": list(self)}


def trust(service: str) -> dict[str, Any]:
    return {"Version": VERSION, "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}]}


class Place:
    """Where a stack is, and what its ARNs are there."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.p, self.cluster = parameters, parameters.get("ClusterName") or parameters["Cluster"]

    def arn(self, service: str, rest: str, account: str | None = None) -> str:
        place = self.p
        return f"arn:{place['AWS::Partition']}:{service}:{place['AWS::Region']}:{account or place['AWS::AccountId']}:{rest}"

    def iam(self, rest: str) -> str:
        return f"arn:{self.p['AWS::Partition']}:iam::{self.p['AWS::AccountId']}:{rest}"

    def s3(self, rest: str) -> str:
        return f"arn:{self.p['AWS::Partition']}:s3:::{rest}"

    def role(self, service: str, grants: Grants) -> dict[str, Any]:
        return {"AWS::IAM::Role": None, "AssumeRolePolicyDocument": trust(service), "Policies": [{"PolicyDocument": grants.document()}]}


class Picture(Place):
    """The stack of `template.yaml` for one choice of its parameters. `project` is the contract."""

    def __init__(self, project: Any, functions: list[Function], parameters: dict[str, Any]) -> None:
        super().__init__(parameters)
        self.tables, self.functions, self.job_event, self.signs = project.tables, functions, project.job_event, project.metrics["signs"]
        self.makes_bucket = not parameters["OutputS3"]
        self.stored = parameters["OutputS3"] or f"{self.cluster}-outputbucket"
        self.makes_nodes = not parameters["NodeRoleArn"]
        self.makes_network = parameters["MakeNetwork"] == "true"
        self.node_role = self.iam("role/NodeRole") if self.makes_nodes else parameters["NodeRoleArn"]
        of_stack = [self.arn("ec2", "launch-template/NodeTemplate")]
        self.templates = of_stack if self.makes_nodes else parameters["LaunchTemplateArns"]
        self.topics = [self.arn("sns", "AlarmTopic")]

    # ---- Names

    def table(self, name: str) -> str:
        """The ARN of "jobs", of its index "jobs/queue", of its streams "jobs/stream"."""
        table, _, part = name.partition("/")
        below = {"": "", "stream": "/stream/*"}.get(part, f"/index/{part}")
        return self.arn("dynamodb", f"table/{self.cluster}-{table}{below}")

    def function(self, name: str) -> str:
        return self.arn("lambda", f"function:{self.cluster}-{name}")

    # ---- All

    def resources(self) -> Resources:
        found: Resources = {}
        for part in (
            *map(self.of_table, self.tables), *map(self.of_function, self.functions), self.of_events(), self.of_output(), self.of_network(),
            self.of_nodes(), self.of_job_events(), self.of_queries(), self.of_alarms(), self.of_people(), self.of_dashboard(),
        ):  # fmt: skip
            found |= part
        return {name: resource if "Type" in resource else as_resource(resource) for name, resource in found.items()}

    def outputs(self) -> dict[str, Any]:
        """What a node's image, an operator or another stack needs to know."""
        found = {f"{f.short}Url": f"FunctionUrl of {f.short}Url" for f in self.functions if f.routes}
        found |= {f"{t['name'].capitalize()}Table": f"{self.cluster}-{t['name']}" for t in self.tables}
        found |= {f"{who.capitalize()}Policy": self.iam(f"policy/{who.capitalize()}Policy") for who in PEOPLE}
        found |= {"GrantCredentialsRole": self.iam("role/GrantCredentialsRole"), "AlarmTopic": self.topics[0], "OutputS3": f"s3://{self.stored}"}
        if self.makes_nodes:
            found |= {"NodeTemplate": f"{self.cluster}-node", "AgentBucket": f"{self.cluster}-agentbucket"}
        if self.has_job_events:
            found["JobEventBus"] = f"{self.cluster}-jobs"
        if self.makes_network:
            found["Subnets"] = ",".join(SUBNETS)
        return found

    # ---- Tables

    def of_table(self, table: dict[str, Any]) -> Resources:
        """The tables can be restored and outlive the stack."""
        keys = [table["key"], *table["indexes"]]
        types = {part["name"]: part["type"] for key in keys for part in (key["hash"], key.get("range")) if part}
        properties: dict[str, Any] = {
            "AWS::DynamoDB::Table": None,
            "TableName": f"{self.cluster}-{table['name']}",
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()],
            "KeySchema": key_schema(table["key"]),
            "DeletionProtectionEnabled": self.p["DeletionProtection"],
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True},
            "TimeToLiveSpecification": {"AttributeName": table.get("ttl"), "Enabled": True} if table.get("ttl") else None,
            "StreamSpecification": {"StreamViewType": STREAM_VIEWS[table["name"]]} if table["name"] in STREAM_VIEWS else None,
            "GlobalSecondaryIndexes": [self.of_index(index) for index in table["indexes"]] or None,
        }
        return {f"{table['name'].capitalize()}Table": as_resource(properties) | KEPT}

    def of_index(self, index: dict[str, Any]) -> dict[str, Any]:
        projection = {"ProjectionType": index["projection"]["type"]}
        if "attributes" in index["projection"]:
            projection["NonKeyAttributes"] = index["projection"]["attributes"]
        return {"IndexName": index["name"], "KeySchema": key_schema(index), "Projection": projection}

    # ---- Functions

    def of_function(self, function: Function) -> Resources:
        """A function with its role and its log, its schedule if it has a period, and its URL if it has routes."""
        name, needs = f"{self.cluster}-{function.name}", function.needs
        environment = {"NODEKEEPER_CLUSTER": self.cluster, "RUST_LOG": self.p["LogLevel"]}
        if needs.nodes:
            environment["NODEKEEPER_NODE_ROLE"] = self.node_role
        if needs.grant_url:
            environment["NODEKEEPER_GRANT_URL"] = "FunctionUrl of GrantUrl"
        if needs.launches:
            environment |= {"NODEKEEPER_HEARTBEAT_URL": "FunctionUrl of HeartbeatUrl", "NODEKEEPER_SWEEP_URL": "FunctionUrl of SweepUrl"}
        found: Resources = {
            function.logical_id: {
                "AWS::Lambda::Function": None,
                "Architectures": [self.p["Architecture"]],
                "Code": {"S3Bucket": "bucket", "S3Key": "code.zip"},
                "Environment": {"Variables": environment},
                "FunctionName": name,
                "Handler": "bootstrap",
                # Lines that Lambda writes at the start and the end of each request would cost more than the work. RUST_LOG decides about
                # those of the functions.
                "LoggingConfig": {"LogGroup": f"/aws/lambda/{name}", "LogFormat": "JSON", "ApplicationLogLevel": "TRACE", "SystemLogLevel": "WARN"},
                "MemorySize": needs.memory_mb,
                # Runs may overlap. Only what strangers can call has a limit.
                "ReservedConcurrentExecutions": self.p["UrlConcurrency"] or None if function.routes else None,
                "Role": self.iam(f"role/{function.logical_id}Role"),
                "Runtime": "provided.al2023",
                "Tags": [{"Key": "lambda:createdBy", "Value": "SAM"}],
                "Timeout": needs.timeout_s,
            },
            f"{function.logical_id}Log": {
                "AWS::Logs::LogGroup": None, "LogGroupName": f"/aws/lambda/{name}", "RetentionInDays": self.p["LogRetentionDays"],
            },
            f"{function.logical_id}Role": self.role("lambda.amazonaws.com", self.rights(function)),
        }  # fmt: skip
        if function.every_min is not None:
            found |= self.of_schedule(function)
        if function.every_min is not None or not function.routes:
            times, age_s = needs.retries
            found[f"{function.logical_id}EventInvokeConfig"] = {
                "AWS::Lambda::EventInvokeConfig": None, "DestinationConfig": {}, "FunctionName": name, "Qualifier": "$LATEST",
                "MaximumRetryAttempts": times, "MaximumEventAgeInSeconds": age_s,
            }  # fmt: skip
        return found | (self.of_url(function) if function.routes else {})

    def of_schedule(self, function: Function) -> Resources:
        name, role = f"{self.cluster}-{function.name}", f"{function.logical_id}ScheduleRole"
        minutes = "1 minute" if function.every_min == 1 else f"{function.every_min} minutes"
        invoke = Grants()
        invoke.allow("lambda:InvokeFunction", self.function(function.name))
        # SAM makes the role, and writes its policy without a version.
        of_role = self.role("scheduler.amazonaws.com", invoke)
        del of_role["Policies"][0]["PolicyDocument"]["Version"]
        found = {
            role: of_role,
            f"{function.logical_id}Schedule": {
                "AWS::Scheduler::Schedule": None,
                "FlexibleTimeWindow": {"Mode": "OFF"},
                # The alarm of a function that nodes invoke too counts what the schedule did, by its group.
                "GroupName": name if function.routes else None,
                "Name": name,
                "ScheduleExpression": f"rate({minutes})",
                "State": self.p["ScheduleState"],
                # The next scheduled run is the retry.
                "Target": {"Arn": self.function(function.name), "RoleArn": self.iam(f"role/{role}"), "RetryPolicy": retry(0, 60)},
            },
        }
        if function.routes:
            found[f"{function.short}ScheduleGroup"] = {"AWS::Scheduler::ScheduleGroup": None, "Name": name}
        return found

    def of_url(self, function: Function) -> Resources:
        """Only the nodes' role may call it, by two permissions."""
        to = {"AWS::Lambda::Permission": None, "FunctionName": f"{self.cluster}-{function.name}", "Principal": self.node_role}
        return {
            f"{function.short}Url": {"AWS::Lambda::Url": None, "AuthType": "AWS_IAM", "TargetFunctionArn": self.function(function.name)},
            f"{function.short}UrlPermission": {**to, "Action": "lambda:InvokeFunctionUrl", "FunctionUrlAuthType": "AWS_IAM"},
            f"{function.short}InvokePermission": {**to, "Action": "lambda:InvokeFunction", "InvokedViaFunctionUrl": True},
        }

    def of_events(self) -> Resources:
        """What wakes poll-and-scale besides its schedule."""
        arn, found = self.function("poll-and-scale"), {}
        for name, (pattern, tries) in RULES.items():
            rule = f"PollAndScale{name}"
            target = {"Arn": arn, "Id": f"{rule}LambdaTarget", "RetryPolicy": retry(*tries)}
            found[rule] = {"AWS::Events::Rule": None, "EventPattern": {"source": ["aws.ec2"], **pattern}, "Targets": [target]}
            found[f"{rule}Permission"] = {
                "AWS::Lambda::Permission": None, "Action": "lambda:InvokeFunction", "FunctionName": f"{self.cluster}-poll-and-scale",
                "Principal": "events.amazonaws.com", "SourceArn": self.arn("events", f"rule/{rule}"),
            }  # fmt: skip
        for name, (table, pattern) in STREAMS.items():
            found[f"PollAndScale{name}"] = {
                "AWS::Lambda::EventSourceMapping": None,
                "EventSourceArn": f"{self.table(table)}/stream/2026-01-01",
                "FunctionName": f"{self.cluster}-poll-and-scale",
                "FilterCriteria": {"Filters": [{"Pattern": pattern}]},
                # Many rows wake one run, at once. A run that fails holds nothing up: a later one sees everything itself.
                "BatchSize": 1000, "MaximumBatchingWindowInSeconds": 0, "MaximumRetryAttempts": 0, "MaximumRecordAgeInSeconds": 60,
                "StartingPosition": "LATEST",
            }  # fmt: skip
        return found

    # ---- Rights

    def rights(self, function: Function) -> Grants:
        """What a function calls, and nothing else."""
        grants = Grants()
        log = f"log-group:/aws/lambda/{self.cluster}-{function.name}:*"
        grants.allow(("logs:CreateLogStream", "logs:PutLogEvents"), self.arn("logs", log))
        for table in STREAM_READERS.get(function.name, ()):
            grants.allow((f"dynamodb:{verb}" for verb in STREAM_VERBS), self.table(f"{table}/stream"))
        for call in CALLS.get(function.name, []):
            self.allow(grants, call)
        if function.needs.launches:
            self.allow_launches(grants)
        return grants

    def allow(self, grants: Grants, call: str) -> None:
        """The right to make a call of `calls.json` or `people.json`, as narrow as IAM can say it."""
        action, _, table = call.partition(" ")
        tagged = {"StringEquals": {"aws:ResourceTag/nodekeeper:cluster": self.cluster}}
        match action:
            case _ if table:
                grants.allow(action, self.table(table))
            case "ec2:TerminateInstances" | "ec2:GetConsoleOutput":
                grants.allow(action, self.arn("ec2", "instance/*"), tagged)
            case "sts:AssumeRole" | "sts:TagSession":
                # The roles that jobs may have: those of the account with the tag of the cluster.
                grants.allow(action, self.iam("role/*"), tagged)
            case "s3:GetObject" | "s3:PutObject":
                grants.allow(action, self.s3(f"{self.stored}/{self.cluster}/{'files/' if action == 's3:PutObject' else ''}*"))
            case "ec2:CreateFleet":
                grants.allow(action, [self.arn("ec2", f"{kind}/*", "*" if is_any else None) for kind, is_any in FLEET.items()])
            case "ec2:CreateTags":
                # Only in a launch, so that no foreign instance can be tagged into the cluster.
                own = [self.arn("ec2", f"{kind}/*") for kind in TAGGED]
                grants.allow(action, own, {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"]}})
            case "ec2:RunInstances":
                self.allow_run_instances(grants)
            case _:
                # These calls have no resources.
                grants.allow(action, "*")

    def allow_run_instances(self, grants: Grants) -> None:
        """A launch makes an instance with the tag of the cluster, by a template of the cluster."""
        of_template = {"ArnEquals": {"ec2:LaunchTemplate": self.templates}}
        any_of = lambda kinds: [self.arn("ec2", f"{kind}/*", "*") for kind in kinds]  # noqa: E731
        tag = {"StringEquals": {"aws:RequestTag/nodekeeper:cluster": self.cluster}}
        grants.allow("ec2:RunInstances", self.arn("ec2", "instance/*"), of_template | tag)
        grants.allow("ec2:RunInstances", self.templates)
        grants.allow("ec2:RunInstances", any_of(FIXED), of_template | {"Bool": {"ec2:IsLaunchTemplateResource": "true"}})
        grants.allow("ec2:RunInstances", any_of(GIVEN), of_template)
        grants.allow("ec2:RunInstances", any_of(["spot-instances-request"]))

    def allow_launches(self, grants: Grants) -> None:
        """What EC2 does in a launch with the rights of whoever launches."""
        # An image may be a public parameter.
        grants.allow(["ssm:GetParameter", "ssm:GetParameters"], self.arn("ssm", "parameter/aws/service/*", "*"))
        to_ec2 = {"StringEquals": {"iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"]}}
        grants.allow("iam:PassRole", self.node_role, to_ec2)
        if key := self.p["NodeVolumeKeyArn"]:
            by_ec2 = {"StringEquals": {"kms:ViaService": f"ec2.{self.p['AWS::Region']}.amazonaws.com"}}
            grants.allow((f"kms:{verb}" for verb in KEY_VERBS), key, by_ec2)
            grants.allow("kms:CreateGrant", key, {"Bool": {"kms:GrantIsForAWSResource": "true"}})

    def of_people(self) -> Resources:
        """Everybody reads all, and makes the calls of `people.json`."""
        found = {}
        for who, calls in PEOPLE.items():
            grants = Grants()
            for table in self.tables:
                indexes = [self.table(f"{table['name']}/{index['name']}") for index in table["indexes"]]
                grants.allow((f"dynamodb:{verb}" for verb in READS), [self.table(table["name"]), *indexes])
            for call in calls:
                if (who, call) == ("submitter", "dynamodb:UpdateItem nodes"):
                    # A submitter follows outputs, and changes nothing else of a node.
                    grants.allow("dynamodb:UpdateItem", self.table("nodes"), only(["follows", "modified_at", "slot", "version"]))
                else:
                    self.allow(grants, call)
            found[f"{who.capitalize()}Policy"] = {"AWS::IAM::ManagedPolicy": None, "PolicyDocument": grants.document()}
        return found

    # ---- Buckets

    def bucket(self, id_: str) -> Resources:
        """A bucket that is encrypted, closed to the public, and reached by TLS only."""
        name = f"{self.cluster}-{id_.lower()}"
        arn = self.s3(name)
        tls = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": [arn, f"{arn}/*"], "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
        properties = {
            "AWS::S3::Bucket": None,
            "BucketEncryption": {"ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]},
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            **CLOSED,
        }
        policy = {"AWS::S3::BucketPolicy": None, "Bucket": name, "PolicyDocument": {"Version": VERSION, "Statement": [tls]}}
        return {id_: as_resource(properties), f"{id_}Policy": as_resource(policy)}

    def of_output(self) -> Resources:
        """The bucket outlives the stack, and deletes what is old. There is none if another place is named."""
        if not self.makes_bucket:
            return {}
        found = {name: resource | KEPT for name, resource in self.bucket("OutputBucket").items()}
        rule = {"Status": "Enabled", "ExpirationInDays": 30, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}
        found["OutputBucket"]["Properties"]["LifecycleConfiguration"] = {"Rules": [rule]}
        return found

    # ---- Network

    def of_network(self) -> Resources:
        """A subnet in each of three zones, with public addresses and gateway endpoints, and no NAT. In two zones, there are two in the first."""
        if not self.makes_network:
            return {}
        in_network = {"VpcId": "Network"}
        name = lambda text: [{"Key": "Name", "Value": text}]  # noqa: E731
        found: Resources = {
            "Network": {
                "AWS::EC2::VPC": None, "CidrBlock": "10.64.0.0/16", "EnableDnsHostnames": True, "EnableDnsSupport": True, "Tags": name(self.cluster),
            },
            "NetworkGateway": {"AWS::EC2::InternetGateway": None, "Tags": name(self.cluster)},
            "NetworkGatewayAttachment": {"AWS::EC2::VPCGatewayAttachment": None, **in_network, "InternetGatewayId": "NetworkGateway"},
            "Routes": {"AWS::EC2::RouteTable": None, **in_network},
            # A route to a gateway that is not attached yet is refused.
            "RouteOut": as_resource({
                "AWS::EC2::Route": None, "RouteTableId": "Routes", "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "NetworkGateway",
            }) | {"DependsOn": "NetworkGatewayAttachment"},
        }  # fmt: skip
        zones = ZONES[self.p["AWS::Region"]]
        for n, subnet in enumerate(SUBNETS):
            found[subnet] = {
                "AWS::EC2::Subnet": None, **in_network, "AvailabilityZone": zones[n % len(zones)], "CidrBlock": f"10.64.{64 * n}.0/18",
                "MapPublicIpOnLaunch": True, "Tags": name(f"{self.cluster}-{n + 1}"),
            }  # fmt: skip
            found[f"{subnet}Routes"] = {"AWS::EC2::SubnetRouteTableAssociation": None, "SubnetId": subnet, "RouteTableId": "Routes"}
        for id_, service in (("S3Endpoint", "s3"), ("DynamoDbEndpoint", "dynamodb")):
            found[id_] = {
                "AWS::EC2::VPCEndpoint": None, **in_network, "ServiceName": f"com.amazonaws.{self.p['AWS::Region']}.{service}",
                "VpcEndpointType": "Gateway", "RouteTableIds": ["Routes"],
            }  # fmt: skip
        return found

    # ---- Nodes

    def of_nodes(self) -> Resources:
        """The nodes that the stack makes: their metadata, their end, their volume, who reaches them. Nothing with a role of one's own."""
        if not self.makes_nodes:
            return {}
        group = "GroupId of NodeSecurityGroup"
        volume = {"VolumeSize": self.p["NodeVolumeGib"], "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
        if self.p["NodeVolumeKeyArn"]:
            volume["KmsKeyId"] = self.p["NodeVolumeKeyArn"]
        grants = Grants()
        # A job may get to the role's credentials. They fetch the agent, store outputs, and read inputs, but no output.
        grants.allow("s3:GetObject", self.s3(f"{self.cluster}-agentbucket/nodekeeper-agent-*"))
        grants.allow("s3:PutObject", self.s3(f"{self.stored}/{self.cluster}/*"))
        grants.allow("s3:GetObject", self.s3(f"{self.stored}/{self.cluster}/files/*"))
        return {
            **self.bucket("AgentBucket"),
            "NodeRole": self.role("ec2.amazonaws.com", grants),
            "NodeProfile": {"AWS::IAM::InstanceProfile": None, "Roles": ["NodeRole"]},
            "NodeSecurityGroup": {"AWS::EC2::SecurityGroup": None, "VpcId": "Network" if self.makes_network else self.p["VpcId"] or None},
            "NodesReachEachOther": {
                "AWS::EC2::SecurityGroupIngress": None, "GroupId": group, "SourceSecurityGroupId": group, "IpProtocol": "-1",
            },
            "NodeTemplate": {
                "AWS::EC2::LaunchTemplate": None,
                "LaunchTemplateName": f"{self.cluster}-node",
                "LaunchTemplateData": {
                    "ImageId": self.p["NodeImage"],
                    "IamInstanceProfile": {"Arn": self.iam("instance-profile/NodeProfile")},
                    "SecurityGroupIds": [group],
                    "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
                    "InstanceInitiatedShutdownBehavior": "terminate",
                    "BlockDeviceMappings": [{"DeviceName": self.p["NodeRootDevice"], "Ebs": volume}],
                },
            },
        }  # fmt: skip

    # ---- Job events

    @property
    def has_job_events(self) -> bool:
        return self.p["JobEvents"] == "true"

    def of_job_events(self) -> Resources:
        """The pipe puts each end of a job on the cluster's bus, once, with fields that each row has. It tells what it gives up."""
        if not self.has_job_events:
            return {}
        state = lambda exists: {"end": {"M": {"state": {"S": [{"exists": exists}]}}}}  # noqa: E731
        bus, lost = self.arn("events", f"event-bus/{self.cluster}-jobs"), self.arn("sqs", f"{self.cluster}-job-events-lost")
        grants = Grants()
        grants.allow((f"dynamodb:{verb}" for verb in STREAM_VERBS), self.table("jobs/stream"))
        grants.allow("events:PutEvents", bus)
        grants.allow("sqs:SendMessage", lost)
        event = {"cluster": self.cluster, "job_id": "<$.dynamodb.Keys.job_id.S>"}
        event |= {field: f"<$.dynamodb.NewImage.end.M.{field}.S>" for field in self.job_event}
        return {
            "JobEventBus": {"AWS::Events::EventBus": None, "Name": f"{self.cluster}-jobs"},
            "JobEventsLostQueue": {
                "AWS::SQS::Queue": None, "QueueName": f"{self.cluster}-job-events-lost", "MessageRetentionPeriod": 1209600,
                "SqsManagedSseEnabled": True,
            },
            "JobEventsRole": self.role("pipes.amazonaws.com", grants),
            "JobEventsPipe": {
                "AWS::Pipes::Pipe": None,
                "Name": f"{self.cluster}-job-events",
                "RoleArn": self.iam("role/JobEventsRole"),
                "Source": f"{self.table('jobs')}/stream/2026-01-01",
                "SourceParameters": {
                    # The write that ends a job, and no other write of its row.
                    "FilterCriteria": {"Filters": [{"Pattern": {"dynamodb": {"NewImage": state(True), "OldImage": state(False)}}}]},
                    "DynamoDBStreamParameters": {
                        "StartingPosition": "LATEST",
                        # A pipe to a bus takes no larger batch.
                        "BatchSize": 10,
                        "MaximumBatchingWindowInSeconds": 1,
                        "OnPartialBatchItemFailure": "AUTOMATIC_BISECT",
                        "MaximumRetryAttempts": 100,
                        "MaximumRecordAgeInSeconds": 3600,
                        "DeadLetterConfig": {"Arn": lost},
                    },
                },
                "Target": bus,
                "TargetParameters": {
                    "EventBridgeEventBusParameters": {"Source": "nodekeeper", "DetailType": "Job ended"}, "InputTemplate": event,
                },
            },
        }  # fmt: skip

    # ---- Queries

    def of_queries(self) -> Resources:
        """Three saved queries over the logs of all functions."""
        groups = [f"/aws/lambda/{self.cluster}-{function.name}" for function in self.functions]
        named = lambda text, query: {  # noqa: E731
            "AWS::Logs::QueryDefinition": None, "Name": f"nodekeeper/{self.cluster}/{text}", "LogGroupNames": groups, "QueryString": query,
        }  # fmt: skip
        return {id_: named(*of) for id_, of in QUERIES.items()}

    # ---- Alarms

    def of_alarms(self) -> Resources:
        """Each alarm can go off, and has a receiver: on errors, throttles, refusals, silence, and what the runs found."""
        found = {"nodes-not-ready": self.not_ready()} | ({"job-events-lost": self.lost_events()} if self.has_job_events else {})
        for function in self.functions:
            name, of = f"{self.cluster}-{function.name}", function.name
            found[f"{of}-errors"] = counts(name, "Errors", 2) | says(f"{of} has been failing for ten minutes. See its log.")
            throttled = f"{of} has been throttled for ten minutes. See the account's concurrency limit."
            found[f"{of}-throttles"] = counts(name, "Throttles", 2) | says(throttled)
            if function.routes:
                # Strangers may call a URL. What they cost is limited by UrlConcurrency, and this tells somebody.
                refused = f"{of} refuses many requests. Strangers call its URL, or nodes have wrong credentials."
                found[f"{of}-refused"] = counts(name, "Url4xxCount", 1) | when(MORE, self.p["RefusedRequestsAlarm"]) | says(refused)
            if function.every_min is not None:
                found[f"{of}-silent"] = {"InsufficientDataActions": self.topics, **silence(name, function)}
                found |= {f"{of}-signs": self.wrong_signs(function, 1), f"{of}-more-signs": self.wrong_signs(function, 2)}
        told = {"AWS::CloudWatch::Alarm": None, "AlarmActions": self.topics, "OKActions": self.topics}
        resources: Resources = {camel(name): told | {"AlarmName": f"{self.cluster}-{name}"} | alarm for name, alarm in found.items()}
        resources["AlarmTopic"] = {"AWS::SNS::Topic": None, "TopicName": f"{self.cluster}-alarms"}
        if email := self.p["AlarmEmail"]:
            resources["AlarmSubscription"] = {"AWS::SNS::Subscription": None, "TopicArn": self.topics[0], "Protocol": "email", "Endpoint": email}
        return resources

    def of_cluster(self, metric: str, function: str) -> dict[str, Any]:
        dimensions = [{"Name": "Cluster", "Value": self.cluster}, {"Name": "Function", "Value": function}]
        return {"Namespace": "nodekeeper", "MetricName": metric, "Dimensions": dimensions}

    def wrong_signs(self, function: Function, least: int) -> dict[str, Any]:
        """An alarm that goes off when so many signs of a function are wrong in so many of its last runs."""
        enough, of = WRONG_RUNS if function.every_min == 1 else WRONG_RARE_RUNS
        periods = {"Statistic": "Maximum", "Period": function.period_s, "EvaluationPeriods": of, "DatapointsToAlarm": enough}
        *signs, last = [f"`{told['sign']}`" for told in self.signs if told["alarm"] == f"{function.name}-signs"] or ["none"]
        said = f"a sign has been wrong: {', '.join(signs)} or {last}" if least == 1 else f"more than one sign has been wrong, of {', '.join(signs)} and {last}"
        text = f"{'For three minutes' if function.every_min == 1 else 'In two of three runs'} {said}. `nodekeeper status` says which, and what to do. "
        text += f"The metric is SignsWrong of {function.name}, and `wrong` in its log names the signs."
        # A function without a wrong sign emits nothing. Silence has an alarm of its own.
        return self.of_cluster("SignsWrong", function.name) | periods | when(AT_LEAST, least) | says(text)

    def not_ready(self) -> dict[str, Any]:
        """An alarm that goes off when nodes are wanted and not ready for half an hour. An idle cluster emits nothing."""
        # Nodes boot one after the other in a growing fleet, so the most that were not ready in a period say nothing.
        periods = {"Statistic": "Minimum", "Period": 300, "EvaluationPeriods": 6, "DatapointsToAlarm": 6}
        text = "For 30 minutes nodes have been wanted that are not ready. `nodekeeper plan` says what limits launches and which nodes boot."
        return self.of_cluster("NodesNotReady", "poll-and-scale") | periods | when(MORE, self.p["NotReadyNodesAlarm"]) | says(text)

    def lost_events(self) -> dict[str, Any]:
        """The alarm that goes off while there are messages about lost events. SQS has no data of a queue that nobody used for hours."""
        text = "The ends of jobs are not on the bus of the job events. The messages in the queue of the lost events say why. The jobs are in"
        return {
            "Namespace": "AWS/SQS", "MetricName": "ApproximateNumberOfMessagesVisible", "Statistic": "Maximum", "Period": 300, "EvaluationPeriods": 1,
            "Dimensions": [{"Name": "QueueName", "Value": f"{self.cluster}-job-events-lost"}], **when(AT_LEAST, 1),
            **says(f"{text} `nodekeeper jobs --all`. Empty the queue when you know them."),
        }  # fmt: skip

    def of_dashboard(self) -> Resources:
        if self.p["HasDashboard"] != "true":
            return {}
        own = lambda metric, function: ["nodekeeper", metric, "Cluster", self.cluster, "Function", function]  # noqa: E731
        lambda_ = lambda *metrics, of=self.functions: [["AWS/Lambda", m, "FunctionName", f"{self.cluster}-{f.name}"] for f in of for m in metrics]  # noqa: E731
        signs = [own("SignsWrong", f.name) for f in self.functions if f.every_min]
        graphs = [
            ("Maximum", [own("Nodes", "poll-and-scale"), own("Instances", "poll-and-scale")]),
            ("Maximum", [own("Jobs", "poll-and-scale"), own("Allocs", "poll-and-scale")]),
            ("Maximum", [*signs, own("NodesNotReady", "poll-and-scale")]),
            ("Sum", lambda_("Invocations")),
            ("Maximum", lambda_("Duration")),
            ("Sum", lambda_("Url4xxCount", of=[f for f in self.functions if f.routes])),
            ("Sum", lambda_("Errors", "Throttles")),
            ("Maximum", lambda_("ConcurrentExecutions")),
        ]
        alarms = [self.arn("cloudwatch", f"alarm:{name}") for name, alarm in self.of_alarms().items() if "AlarmName" in alarm]
        region = self.p["AWS::Region"]
        widgets = [
            {"type": "metric", "width": 8, "properties": {"region": region, "stat": stat, "period": 60, "metrics": metrics}}
            for stat, metrics in graphs
        ]
        widgets.append({"type": "alarm", "width": 24, "height": 6, "properties": {"alarms": alarms}})
        return {"Dashboard": {"AWS::CloudWatch::Dashboard": None, "DashboardName": self.cluster, "DashboardBody": {"widgets": widgets}}}


def as_resource(properties: dict[str, Any]) -> dict[str, Any]:
    """The first key of a picture's resource is its type. A property that is None is not there."""
    (kind, _), *rest = properties.items()
    return {"Type": kind, "Properties": {key: value for key, value in rest if value is not None}}


def key_schema(key: dict[str, Any]) -> list[dict[str, str]]:
    return [{"AttributeName": part["name"], "KeyType": kind} for part, kind in ((key["hash"], "HASH"), (key.get("range"), "RANGE")) if part]


def retry(times: int, age_s: int) -> dict[str, int]:
    return {"MaximumRetryAttempts": times, "MaximumEventAgeInSeconds": age_s}


def only(attributes: list[str]) -> dict[str, Any]:
    """A call must name attributes, and only these."""
    return {"Null": {"dynamodb:Attributes": "false"}, "ForAllValues:StringEquals": {"dynamodb:Attributes": attributes}}


def when(compared: str, threshold: int, missing: str = "notBreaching") -> dict[str, Any]:
    return {"ComparisonOperator": compared, "Threshold": threshold, "TreatMissingData": missing}


def says(text: str) -> dict[str, Any]:
    return {"AlarmDescription": text}


def counts(function: str, metric: str, periods: int) -> dict[str, Any]:
    """An alarm that goes off when Lambda counts one of these in each of so many periods of five minutes."""
    # An idle fleet sends nothing. Silence has an alarm of its own.
    return {**of_lambda(function, metric), "Statistic": "Sum", "Period": 300, "EvaluationPeriods": periods, **when(AT_LEAST, 1)}


def of_lambda(function: str, metric: str) -> dict[str, Any]:
    return {"Namespace": "AWS/Lambda", "MetricName": metric, "Dimensions": [{"Name": "FunctionName", "Value": function}]}


def silence(name: str, function: Function) -> dict[str, Any]:
    """An alarm that tells when there was no run for five periods: then it has no data any more. It begins without data, and tells nothing."""
    runs = scheduled_runs(name) if function.routes else {**of_lambda(name, "Invocations"), "Statistic": "Sum", "Period": 300}
    lasting, (run, see) = SILENT_PERIODS * (function.period_s or 0), ("successful run", "log") if function.routes else ("run", "schedule")
    text = says(f"{function.name} has had no {run} for {lasting // 60} minutes. See its {see}.")
    return {**runs, "EvaluationPeriods": lasting // 300, **when(LESS, 1, "missing"), **text}


def scheduled_runs(name: str) -> dict[str, Any]:
    """Nodes invoke the function too. So invocations do not show whether its schedule works."""
    # An attempt counts also if the function was not started, and then there may be no error of the function.
    group = [{"Name": "ScheduleGroup", "Value": name}]
    parts = {
        "runs": {"Namespace": "AWS/Scheduler", "MetricName": "InvocationAttemptCount", "Dimensions": group},
        "refused": {"Namespace": "AWS/Scheduler", "MetricName": "TargetErrorCount", "Dimensions": group},
        "errors": of_lambda(name, "Errors"),
    }
    metrics = [{"Id": id_, "ReturnData": False, "MetricStat": {"Metric": of, "Period": 300, "Stat": "Sum"}} for id_, of in parts.items()]
    return {"Metrics": [{"Id": "successes", "Expression": "runs - errors - FILL(refused, 0)", "ReturnData": True}, *metrics]}


def notices(p: dict[str, Any], job_event: list[str]) -> tuple[Resources, dict[str, Any]]:
    """The stack of `notify.yaml`: its resources and its outputs."""
    place, bus = Place(p), f"{p['Cluster']}-jobs"
    topic = place.arn("sns", "FailedJobsTopic")
    publish = {
        "Effect": "Allow", "Action": "sns:Publish", "Principal": {"Service": "events.amazonaws.com"}, "Resource": topic,
        "Condition": {"ArnEquals": {"aws:SourceArn": place.arn("events", "rule/FailedJobs")}},
    }  # fmt: skip
    told = {"cluster": "cluster", "job": "job_id"} | {field: field for field in ("name", "state", "reason") if field in job_event}
    # EventBridge takes a text in quotes only.
    mail = {"InputPathsMap": {k: f"$.detail.{field}" for k, field in told.items()}, "InputTemplate": '"<cluster>: job <job> <name> is <state>: <reason>"'}
    found: Resources = {
        "FailedJobsTopic": {"AWS::SNS::Topic": None, "TopicName": f"{p['Cluster']}-failed-jobs"},
        "FailedJobsTopicPolicy": {"AWS::SNS::TopicPolicy": None, "Topics": [topic], "PolicyDocument": {"Version": VERSION, "Statement": [publish]}},
        "FailedJobs": {
            "AWS::Events::Rule": None, "EventBusName": bus,
            "EventPattern": {"source": ["nodekeeper"], "detail": {"state": ["failed", "rejected"]}},
            "Targets": [{"Id": "topic", "Arn": topic, "InputTransformer": mail}],
        },
    }  # fmt: skip
    if p["Mail"]:
        found["FailedJobsMail"] = {"AWS::SNS::Subscription": None, "TopicArn": topic, "Protocol": "email", "Endpoint": p["Mail"]}
    if p["Url"]:
        receiver, call = place.arn("events", "api-destination/Receiver"), Grants()
        call.allow("events:InvokeApiDestination", receiver)
        targets = [{"Id": "receiver", "Arn": receiver, "RoleArn": place.iam("role/CallRole")}]
        alarms = {"source": ["aws.cloudwatch"], "detail-type": ["CloudWatch Alarm State Change"], "detail": {"alarmName": [{"prefix": f"{p['Cluster']}-"}]}}
        key = {"ApiKeyAuthParameters": {"ApiKeyName": "Authorization", "ApiKeyValue": p["UrlKey"]}}
        found |= {
            "Connection": {"AWS::Events::Connection": None, "AuthorizationType": "API_KEY", "AuthParameters": key},
            "Receiver": {
                "AWS::Events::ApiDestination": None, "ConnectionArn": place.arn("events", "connection/Connection"), "HttpMethod": "POST",
                "InvocationEndpoint": p["Url"],
            },
            "CallRole": place.role("events.amazonaws.com", call),
            "CallForJobs": {"AWS::Events::Rule": None, "EventBusName": bus, "EventPattern": {"source": ["nodekeeper"]}, "Targets": targets},
            "CallForAlarms": {"AWS::Events::Rule": None, "EventPattern": alarms, "Targets": targets},
        }  # fmt: skip
    return {name: as_resource(resource) for name, resource in found.items()}, {"FailedJobsTopic": {"Value": topic}}


def accounting(p: dict[str, Any], job_event: list[str]) -> tuple[Resources, dict[str, Any]]:
    """The stack of `accounting.yaml`: each end of a job is a line in a bucket, below its month, and each field of it a column of the table."""
    place, bucket = Place(p), f"{p['Cluster']}-events"
    stream = place.arn("firehose", "deliverystream/Stream")
    write, send = Grants(), Grants()
    write.allow(("s3:PutObject", "s3:AbortMultipartUpload"), place.s3(f"{bucket}/*"))
    write.allow(("s3:GetBucketLocation", "s3:ListBucket", "s3:ListBucketMultipartUploads"), place.s3(bucket))
    send.allow(("firehose:PutRecord", "firehose:PutRecordBatch"), stream)
    results = {"Id": "results", "Prefix": "results/", "Status": "Enabled", "ExpirationInDays": 30}
    lines = {"Type": "AppendDelimiterToRecord", "Parameters": [{"ParameterName": "Delimiter", "ParameterValue": "\\n"}]}
    # Athena works the months out, so that nobody adds partitions.
    months = {"type": "date", "format": "yyyy-MM", "range": "2026-11,NOW", "interval": "1", "interval.unit": "MONTHS"}
    of_months = {f"projection.month.{key}": value for key, value in months.items()} | {"projection.enabled": "true"}
    found: Resources = {
        "Events": {"AWS::S3::Bucket": None, "LifecycleConfiguration": {"Rules": [results]}, **CLOSED},
        "StreamRole": place.role("firehose.amazonaws.com", write),
        "RuleRole": place.role("events.amazonaws.com", send),
        "Stream": {
            "AWS::KinesisFirehose::DeliveryStream": None, "DeliveryStreamType": "DirectPut",
            "ExtendedS3DestinationConfiguration": {
                "BucketARN": place.s3(bucket), "RoleARN": place.iam("role/StreamRole"), "CompressionFormat": "GZIP",
                "Prefix": "jobs/month=!{timestamp:yyyy-MM}/", "ErrorOutputPrefix": "errors/!{firehose:error-output-type}/",
                "BufferingHints": {"IntervalInSeconds": 300, "SizeInMBs": 5}, "ProcessingConfiguration": {"Enabled": True, "Processors": [lines]},
            },
        },
        "Ends": {
            "AWS::Events::Rule": None, "EventBusName": f"{p['Cluster']}-jobs", "EventPattern": {"source": ["nodekeeper"]},
            "Targets": [{"Id": "stream", "Arn": stream, "RoleArn": place.iam("role/RuleRole"), "InputPath": "$.detail"}],
        },
        "Catalogue": {"AWS::Glue::Database": None, "CatalogId": p["AWS::AccountId"], "DatabaseInput": {"Name": p["Database"]}},
        "Jobs": {
            "AWS::Glue::Table": None, "CatalogId": p["AWS::AccountId"], "DatabaseName": "Catalogue",
            "TableInput": {
                "Name": "jobs", "TableType": "EXTERNAL_TABLE", "PartitionKeys": [{"Name": "month", "Type": "string"}],
                "Parameters": of_months | {"storage.location.template": f"s3://{bucket}/jobs/month=${{month}}/"},
                "StorageDescriptor": {
                    "Location": f"s3://{bucket}/jobs/",
                    "InputFormat": "org.apache.hadoop.mapred.TextInputFormat",
                    "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
                    "SerdeInfo": {"SerializationLibrary": "org.openx.data.jsonserde.JsonSerDe"},
                    "Columns": [{"Name": field, "Type": "string"} for field in ("cluster", "job_id", *job_event)],
                },
            },
        },
        "Questions": {
            "AWS::Athena::WorkGroup": None, "Name": f"{p['Cluster']}-accounting", "RecursiveDeleteOption": True,
            "WorkGroupConfiguration": {"ResultConfiguration": {"OutputLocation": f"s3://{bucket}/results/"}},
        },
    }  # fmt: skip
    resources = {name: as_resource(resource) for name, resource in found.items()}
    resources["Events"] |= dict.fromkeys(KEPT, "Retain")
    return resources, {"Bucket": {"Value": bucket}}
