#!/usr/bin/env python3
"""`nodekeeper up`, `doctor` and `down` with the real AWS CLI, against an emulator of AWS (moto).

    target/venv/bin/python tests/up.py            prints the terminal of the three steps, with their seconds

Needs target/debug/nodekeeper. The emulator makes what the stack has of buckets, tables, roles, launch template and functions,
and nobody calls the functions: so this test cancels the first job, which waits for a machine.

Patched in the emulator: it does not know function URLs, and forgets the outputs of a stack that a change set has made. It cannot
update a stack from a template with outputs: a test of `cli` gives `up` a second time.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NODEKEEPER = ROOT / "target" / "debug" / "nodekeeper"
# An image for x86_64 that the emulator has.
AN_IMAGE = "ami-03cf127a"

sys.path.insert(0, str(ROOT / "infra"))
sys.dont_write_bytecode = True

from moto.cloudformation import models as cloudformation  # noqa: E402
from moto.core.common_models import CloudFormationModel  # noqa: E402
from moto.dynamodb.models import Table  # noqa: E402
from moto.ec2.models.launch_templates import LaunchTemplateVersion  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402
from plain import plain  # noqa: E402


def patch():
    """Adds to the emulator what it lacks."""

    def made(cls, resource_name, *_args, **_options):
        url = cls()
        url.physical_resource_id = resource_name
        return url

    members = {
        "__module__": "moto.awslambda.urls",  # the base class takes the name of the service from it
        "cloudformation_name_type": staticmethod(lambda: ""),
        "cloudformation_type": staticmethod(lambda: "AWS::Lambda::Url"),
        "has_cfn_attr": classmethod(lambda cls, attribute: True),
        "get_cfn_attribute": lambda self, attribute: f"http://127.0.0.1:9/{self.physical_resource_id}",
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
        data_of(version, template, number, {**data, "ImageId": AN_IMAGE} if "ImageId" in data else data, description)

    LaunchTemplateVersion.__init__ = with_image


def release(directory):
    """The files of a release, with programs that do nothing."""
    template = (ROOT / "infra" / "template.yaml").read_text()
    (directory / "template-aarch64.yaml").write_text(plain(template, "arm64", "-aarch64"))
    for function in (ROOT / "functions").iterdir():
        with zipfile.ZipFile(directory / f"{function.name}-aarch64.zip", "w") as archive:
            archive.writestr("bootstrap", "")
    for machine in ("x86_64", "aarch64"):
        (directory / f"nodekeeper-agent-{machine}").write_text(f"an agent for {machine}")


class Terminal:
    def __init__(self, directory, environment):
        self.directory, self.environment = directory, environment

    def run(self, line, *, code=0, quiet=False):
        began = time.monotonic()
        done = subprocess.run(
            line.split(), executable=NODEKEEPER, cwd=self.directory, env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False,
        )  # fmt: skip
        if not quiet:
            print(f"$ {line}\n{done.stdout}[{time.monotonic() - began:.0f} s]\n")
        assert done.returncode == code, f"{line}: exit code {done.returncode}, not {code}:\n{done.stdout}"
        return done.stdout

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
    patch()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    # The emulator takes the bucket from the path only at this name.
    endpoint = f"http://localhost:{server.get_host_and_port()[1]}"
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        release(directory)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": scratch, "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-west-1",
        }  # fmt: skip
        try:
            three_steps(Terminal(directory, environment))
        finally:
            server.stop()
    print("tests/up.py: all well")


def three_steps(terminal):
    before = terminal.run("nodekeeper doctor lab")
    needs(before, "stack", "there is none yet: nodekeeper up lab")

    with terminal.cancelling("lab"):
        made = terminal.run("nodekeeper up lab --release . --yes", code=130)
    needs(made, "cluster lab in eu-west-1", "the agent for x86_64", "wrote policy.toml", "stored as version 1", "job ")
    policy = (terminal.directory / "policy.toml").read_text()
    needs(policy, 'template = "lab-node"', "/nodekeeper-agent-x86_64-", 's3 = "s3://')

    checked = terminal.run("nodekeeper policy check policy.toml", quiet=True)
    needs(checked, "policy.toml is valid")
    found = terminal.run("nodekeeper doctor lab", code=1)
    needs(found, "HeartbeatUrl", "does not answer", "is there since", f"{AN_IMAGE} of the launch template lab-node is for x86_64")

    # A second cluster of the account has tables, roles and a policy of its own.
    with terminal.cancelling("other"):
        terminal.run("nodekeeper up other --release . --yes --policy other.toml", code=130, quiet=True)
    # The emulator deletes what the stack retains, too.
    gone = terminal.run("nodekeeper down lab --terminate --prove-s 1")
    needs(gone, "the stack is gone; what stays are the tables lab-nodes")
    there = json.loads(terminal.run("nodekeeper doctor other --json", code=1, quiet=True))
    assert any(check["what"] == "stack" and check["level"] == "well" for check in there), there


if __name__ == "__main__":
    main()
