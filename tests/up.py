#!/usr/bin/env python3
"""`nodekeeper up`, `doctor` and `down` with the real AWS CLI, against an emulator of AWS (moto), and the three steps of the README.

    target/venv/bin/python tests/up.py            prints the terminal of the three steps, with their seconds
    target/venv/bin/python tests/up.py --write    writes it into the README, too

Needs target/debug/nodekeeper. The emulator makes what the stack has of buckets, roles, launch template and functions. The tables,
EC2 and the running functions of the first cluster are those of a `nodekeeper local`, so its jobs run. Nobody calls the functions of
the others: so this test cancels their first job, which waits for a machine.

Patched in the emulator: it does not know function URLs, and forgets the outputs of a stack that a change set has made. It cannot
update a stack from a template with outputs: a test of `cli` gives `up` a second time.
"""

import contextlib
import hashlib
import json
import logging
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
from pathlib import Path

import boto3
from local_stack import Local

ROOT = Path(__file__).resolve().parent.parent
NODEKEEPER = ROOT / "target" / "debug" / "nodekeeper"
README, OPERATE = ROOT / "README.md", ROOT / "docs" / "operate.md"
VERSION = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
# Images that the emulator has.
IMAGES = {"x86_64": "ami-03cf127a", "arm64": "ami-0e9271c829888680e"}
REGION = "eu-west-1"
# What the commands take from the local system.
OF_LOCAL = """ACCESS_KEY_ID SECRET_ACCESS_KEY REGION
  ENDPOINT_URL_DYNAMODB ENDPOINT_URL_EC2 ENDPOINT_URL_PRICING ENDPOINT_URL_SERVICE_QUOTAS"""

sys.path.insert(0, str(ROOT / "infra"))
sys.dont_write_bytecode = True

from moto.cloudformation import models as cloudformation  # noqa: E402
from moto.core.common_models import CloudFormationModel  # noqa: E402
from moto.dynamodb.models import Table  # noqa: E402
from moto.ec2.models.launch_templates import LaunchTemplateVersion  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402
from plain import plain  # noqa: E402


def patch(urls):
    """Adds to the emulator what it lacks. The function URLs are these, by their names in the stack."""

    def made(cls, resource_name, *_args, **_options):
        url = cls()
        url.physical_resource_id = resource_name
        return url

    members = {
        "__module__": "moto.awslambda.urls",  # the base class takes the name of the service from it
        "cloudformation_name_type": staticmethod(lambda: ""),
        "cloudformation_type": staticmethod(lambda: "AWS::Lambda::Url"),
        "has_cfn_attr": classmethod(lambda cls, attribute: True),
        "get_cfn_attribute": lambda self, attribute: urls.get(self.physical_resource_id.split("-")[1], "http://127.0.0.1:9/"),
        "create_from_cloudformation_json": classmethod(made),
        "update_from_cloudformation_json": classmethod(lambda cls, old, *_: old),
        "delete_from_cloudformation_json": classmethod(lambda cls, *_: None),
        "delete": lambda self, *_: None,
    }
    type("FunctionUrl", (CloudFormationModel,), members)
    apply = cloudformation.ChangeSet.apply

    def apply_with_outputs(change_set):
        apply(change_set)
        stack = change_set.stack
        stack.template, stack.template_dict = change_set.template, change_set.template_dict
        stack.output_map = stack._create_output_map()

    cloudformation.ChangeSet.apply = apply_with_outputs
    make_table = Table.create_from_cloudformation_json.__func__

    def make_table_without_protection(cls, resource_name, resource, *rest, **options):
        # The emulator takes the text "false" for true.
        resource["Properties"].pop("DeletionProtectionEnabled", None)
        return make_table(cls, resource_name, resource, *rest, **options)

    Table.create_from_cloudformation_json = classmethod(make_table_without_protection)
    data_of = LaunchTemplateVersion.__init__

    def with_image(version, template, number, data, description):
        # The emulator does not look up an image that a parameter names.
        image = IMAGES["arm64" if data.get("ImageId", "").endswith("arm64") else "x86_64"]
        data_of(version, template, number, {**data, "ImageId": image} if "ImageId" in data else data, description)

    LaunchTemplateVersion.__init__ = with_image


def release(directory):
    """An archive of a release whose functions and agents do nothing, and the digests beside it."""
    name = f"nodekeeper-{VERSION}-{os.uname().machine}"
    files = directory / name
    files.mkdir(parents=True)
    template = (ROOT / "infra" / "template.yaml").read_text()
    for machine, of_lambda in (("x86_64", "x86_64"), ("aarch64", "arm64")):
        (files / f"template-{machine}.yaml").write_text(plain(template, of_lambda, f"-{machine}"))
        for function in (ROOT / "functions").iterdir():
            with zipfile.ZipFile(files / f"{function.name}-{machine}.zip", "w") as archive:
                archive.writestr("bootstrap", "")
        (files / f"nodekeeper-agent-{machine}").write_text(f"an agent for {machine}")
    shutil.copy(NODEKEEPER, files)
    archive = directory / f"{name}.tar.gz"
    subprocess.run(["tar", "--use-compress-program=gzip -1", "-cf", archive, name], cwd=directory, check=True)
    (directory / "SHA256SUMS").write_text(f"{digest(archive)}  {archive.name}\n")
    shutil.rmtree(files)


def digest(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


# The AWS CLI asks the emulator for everything, by the name of a region that it knows.
AWS = """#!{python}
import os, sys
words = [word.replace("local-1", {region!r}) for word in sys.argv[1:]]
given = {{name: value for name, value in os.environ.items() if not name.startswith("AWS_ENDPOINT_URL_")}}
os.execve({aws!r}, ["aws", *words], given | {{"AWS_REGION": {region!r}}})
"""


class Terminal:
    def __init__(self, directory, environment):
        self.directory, self.environment = directory, environment
        # What it has shown, line by line of a person.
        self.recorded = []

    def run(self, line, *, code=0, quiet=False):
        """Runs a line in a shell on a terminal, and answers its questions with y. Returns what the terminal shows."""
        began, shown, (reader, writer) = time.monotonic(), b"", pty.openpty()
        process = subprocess.Popen(
            ["sh", "-c", line], cwd=self.directory, env=self.environment, stdin=writer, stdout=writer, stderr=writer, start_new_session=True
        )  # fmt: skip
        os.close(writer)
        # The read fails when nobody has the terminal any more.
        with contextlib.suppress(OSError):
            while part := os.read(reader, 65536):
                shown += part
                if shown.endswith(b"[y/N] "):
                    os.write(reader, b"y\n")
        os.close(reader)
        text = shown.decode().replace("\r", "")
        self.recorded.append(f"$ {line}\n{text}[{time.monotonic() - began:.0f} s]\n")
        if not quiet:
            print(self.recorded[-1], flush=True)
        assert process.wait(300) == code, f"{line}: exit code {process.returncode}, not {code}:\n{text}"
        return text

    @contextlib.contextmanager
    def cancelling(self, cluster):
        """Cancels the first job of this cluster."""
        over = threading.Event()

        def cancel():
            while not over.wait(0.5):
                line = ["nodekeeper", "--cluster", cluster, "cancel", "--yes", "--name", "hello"]
                subprocess.run(line, executable=NODEKEEPER, env=self.environment, capture_output=True, check=False)

        thread = threading.Thread(target=cancel)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def needs(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in:\n{text}"


def main():
    urls = {}
    patch(urls)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    # The emulator takes the bucket from the path only at this name.
    endpoint = f"http://localhost:{server.get_host_and_port()[1]}"
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        empty, dist, programs = (scratch / name for name in ("empty", "dist", "programs"))
        for folder in (empty, programs):
            folder.mkdir()
        release(dist)
        (programs / "aws").write_text(AWS.format(python=sys.executable, aws=str(Path(sys.executable).parent / "aws"), region=REGION))
        (programs / "aws").chmod(0o755)
        emulated = {
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(scratch), "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION, "AWS_DEFAULT_REGION": REGION,
            "NO_COLOR": "1",
        }  # fmt: skip
        try:
            with system(scratch, endpoint) as local:
                urls |= {f"{name}Url": local[f"NODEKEEPER_{name.upper()}_URL"] for name in ("Heartbeat", "Sweep", "Grant")}
                of_local = {f"AWS_{name}": local[f"AWS_{name}"] for name in OF_LOCAL.split()}
                shown = three_steps(Terminal(empty, {**emulated, **of_local, "AWS_ENDPOINT_URL_S3": endpoint}), dist)
            several_clusters(Terminal(empty / f"nodekeeper-{VERSION}-{os.uname().machine}", emulated), endpoint)
        finally:
            server.stop()
    recorded(shown, sys.argv[1:] == ["--write"])
    print("tests/up.py: all well")


def client(service, endpoint):
    return boto3.client(service, endpoint_url=endpoint, region_name=REGION, aws_access_key_id="test", aws_secret_access_key="test")


@contextlib.contextmanager
def system(scratch, endpoint):
    """The environment of a local system in which the cluster lab has tables and no policy yet, and the emulator's subnets."""
    subnets = [subnet["SubnetId"] for subnet in client("ec2", endpoint).describe_subnets()["Subnets"]]
    first = (ROOT / "examples" / "policies" / "first.toml").read_text()
    (scratch / "local.toml").write_text(re.sub(r"(?m)^subnets = .*", f"subnets = {json.dumps(subnets)}", first))
    # Its machines store outputs at the emulator.
    os.environ["AWS_ENDPOINT_URL_S3"] = endpoint
    with Local("--cluster", "lab", "--policy", str(scratch / "local.toml"), "--no-user-data") as local:
        env = local.environment()
        keys = {name.lower(): env[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        db = boto3.client("dynamodb", endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"], region_name=env["AWS_REGION"], **keys)
        db.delete_item(TableName="lab-control", Key={"key": {"S": "policy"}})
        yield env


def three_steps(terminal, dist):
    """From an empty directory to a job, and back. Returns what the README shows of it."""
    name, empty = f"nodekeeper-{VERSION}-{os.uname().machine}", terminal.directory
    fetch = re.search(r"(?m)^1\. .*\n   ```sh\n((?:   .*\n)+)   ```", OPERATE.read_text())[1]
    terminal.run(re.sub(r"FROM=\S+", f"FROM=file://{dist}", fetch), quiet=True)
    shutil.rmtree(empty / name)
    terminal.run(f"tar xzf {name}.tar.gz && cd {name}")
    terminal.directory = empty / name
    needs(terminal.run("./nodekeeper doctor lab"), "stack", "there is none yet: nodekeeper up lab")
    made = terminal.run("./nodekeeper up lab")
    needs(made, f"the agent for {os.uname().machine}", "wrote policy.toml", "stored as version 1", "the cluster works")
    needs(terminal.run("NODEKEEPER_CLUSTER=lab ./nodekeeper run -- uname -m"), f"\n{os.uname().machine}\n")
    shown = [terminal.recorded[n].replace("local-1", REGION) for n in (1, 3, 4)]
    policy = (terminal.directory / "policy.toml").read_text()
    needs(policy, 'template = "lab-node"', "/nodekeeper-agent-x86_64-", 's3 = "s3://')
    needs(terminal.run("./nodekeeper policy check policy.toml", quiet=True), "policy.toml is valid")
    found = terminal.run("./nodekeeper doctor lab", code=1)
    needs(found, "heartbeat-ingest answers", "is there since", f"{IMAGES['x86_64']} of the launch template lab-node is for x86_64")
    compare = block("jobs --arrivals").replace("now.toml", "policy.toml").replace("spot.toml", f"{ROOT}/examples/policies/spot.toml")
    programs = f"export NODEKEEPER_CLUSTER=lab PATH={NODEKEEPER.parent}:$PATH"
    needs(terminal.run(f"set -e; {programs}\n{compare}", quiet=True), "instances launched")
    # The emulator deletes what the stack retains, too.
    gone = terminal.run("./nodekeeper down lab --prove-s 1")
    needs(gone, "the stack is gone; what stays are the tables lab-nodes")
    return shown


def several_clusters(terminal, endpoint):
    """Each cluster of an account has a stack, roles, a bucket and a policy of its own. One is of a release for x86_64 alone, one has
    nodes of arm64."""
    one = terminal.directory / "x86_64"
    one.mkdir()
    for file in terminal.directory.glob("*-x86_64*"):
        shutil.copy(file, one)
    for cluster, more in (("other", "--yes --release x86_64"), ("arm", "--arch arm64")):
        with terminal.cancelling(cluster):
            made = terminal.run(f"./nodekeeper up {cluster} {more} --policy {cluster}.toml", code=130, quiet=True)
    needs(made, "nodes of arm64 in vpc-", "stored as version 1")
    policy = tomllib.loads((terminal.directory / "arm.toml").read_text())
    assert [size["arch"] for size in policy["size"]] == ["arm64"] and policy["launch"]["template"] == "arm-node", policy
    assert list(tomllib.loads((terminal.directory / "other.toml").read_text())["agent"]) == ["x86_64"]
    s3, stacks = (client(name, endpoint) for name in ("s3", "cloudformation"))
    for cluster, arch in (("other", "x86_64"), ("arm", "arm64")):
        # The emulator does not give its functions an architecture: this is what the template has for it.
        parameters = stacks.describe_stacks(StackName=cluster)["Stacks"][0]["Parameters"]
        assert {"ParameterKey": "Architecture", "ParameterValue": arch} in parameters, parameters
    for arch, machine in (("x86_64", "x86_64"), ("arm64", "aarch64")):
        place, expected = policy["agent"][arch].split("#sha256=")
        bucket, key = place.removeprefix("s3://").split("/", 1)
        stored = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        assert stored.decode() == f"an agent for {machine}" and hashlib.sha256(stored).hexdigest() == expected, place
    terminal.run("./nodekeeper down other --terminate --prove-s 1", quiet=True)
    # The emulator deletes what the stack retains, too.
    needs(terminal.run("./nodekeeper down other", code=2, quiet=True), f"there is no cluster other in {REGION}")
    ec2 = client("ec2", endpoint)
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "nodekeeper:cluster", "Value": "other"}]}]
    left = ec2.run_instances(ImageId=IMAGES["x86_64"], MinCount=1, MaxCount=1, TagSpecifications=tags)["Instances"][0]["InstanceId"]
    needs(terminal.run("./nodekeeper down other --terminate --delete-data", code=1, quiet=True), "terminate-instances", left)
    ec2.terminate_instances(InstanceIds=[left])
    there = terminal.run("./nodekeeper doctor arm", code=1, quiet=True)
    needs(there, "arm in the state CREATE_COMPLETE", f"{IMAGES['arm64']} of the launch template arm-node is for arm64")
    assert there.count("is there since") == 2, there
    by_hand(terminal)


def block(part):
    """The commands of docs/operate.md around this part."""
    return next(commands for commands in re.findall(r"(?m)^```sh\n((?:.+\n)+?)```", OPERATE.read_text()) if part in commands)


def by_hand(terminal):
    """The commands of docs/operate.md that do without `up`."""
    account = "export NODEKEEPER_CLUSTER=hand PATH=$PWD:$PATH"
    deploy, policy = block("aws s3 mb").split("aws s3 cp")
    deploy = re.sub(r"\bNAME\b", "hand", deploy.replace("s3://BUCKET", "s3://by-hand").replace("--s3-bucket BUCKET", "--s3-bucket by-hand"))
    terminal.run(f"set -e; {account}\n{deploy}", quiet=True)
    output = "aws cloudformation describe-stacks --stack-name hand --output text --query \"Stacks[0].Outputs[?OutputKey=='AgentBucket'].OutputValue\""
    policy = policy.replace("AGENTBUCKET", f"$({output})").replace("policy.toml", "other.toml")
    needs(terminal.run(f"set -e; {account}\naws s3 cp{policy}", quiet=True), "other.toml is valid", "stored as version 1")
    # Left out: the stacks of notifications and accounting. The emulator lacks most of what they are made of.
    left = re.sub(r"\bNAME\b", "hand", block("--no-deletion-protection-enabled"))
    terminal.run(f"set -e\n{left}", quiet=True)
    to = "$HOME/.local/share"
    terminal.run(f"set -e; {account}; mkdir {to} -p; nodekeeper completion bash > {to}/nodekeeper", quiet=True)


def recorded(shown, write):
    """The README shows what the terminal shows, but for names that AWS chooses, seconds, and how far others were at a moment."""
    pattern, text = r"(?s)(?<=```\n)\$ tar xzf nodekeeper-.*?(?=```\n)", README.read_text()
    if write:
        README.write_text(re.sub(pattern, lambda _: "\n".join(shown), text))
    before, now = (alike(part) for part in (re.search(pattern, text)[0], "\n".join(shown)))
    assert write or before == now, f"the README shows another terminal (--write writes it anew):\n{before}\nnow:\n{now}"


def alike(text):
    """The terminal without what differs each time."""
    at_a_moment = re.compile(r"job \w+ (waits: |is placed )|  \d+ resources?, last ")
    text = "\n".join(line for line in text.splitlines() if not at_a_moment.match(line))
    return re.sub(r"\[\d+ s\]|[0-9A-Z]{26}|(?<=job )[0-9A-Z]{8}|(?<=vpc-)\w+|(?<=subnet-)\w+|x86_64|aarch64", "…", text)


if __name__ == "__main__":
    main()
