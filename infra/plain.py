"""The template as CloudFormation gets it: what a deployment with SAM makes of it, and what a release has.

Guarantees: both come from `template.yaml`, which stays the only source.
"""

import copy
import logging
import os
import warnings
from typing import Any

warnings.filterwarnings("ignore", category=UserWarning)  # pkg_resources
logging.getLogger("samtranslator").setLevel(logging.ERROR)  # it warns that nobody collects its metrics
os.environ.setdefault("AWS_DEFAULT_REGION", "eu-west-1")  # samtranslator wants a region; it makes no call

import yaml  # noqa: E402
from samtranslator.translator.transform import transform  # noqa: E402
from samtranslator.yaml_helper import yaml_parse  # noqa: E402

FIRST_LINES = "# Plain CloudFormation, made by infra/package from infra/template.yaml, which has the comments.\n"


class NoManagedPolicies:
    """The template names no managed policy. Looking one up would need AWS."""

    def load(self) -> dict[str, str]:
        return {}


def expand(source: dict[str, Any]) -> dict[str, Any]:
    """What CloudFormation gets. The code must look packaged, as it does after `sam package`."""
    packaged = copy.deepcopy(source)
    packaged["Globals"]["Function"]["CodeUri"] = "s3://bucket/code.zip"
    return transform(packaged, {}, NoManagedPolicies())


def binaries(source: dict[str, Any]) -> dict[str, str]:
    """The program of each function, by its logical id."""
    functions = {k: r for k, r in source["Resources"].items() if r["Type"] == "AWS::Serverless::Function"}
    return {k: r["Metadata"]["BuildProperties"]["Binary"] for k, r in functions.items()}


def plain(text: str, in_lambda: str, suffix: str) -> str:
    """The template without SAM, for functions of one architecture: their code is the zip beside it, which `aws cloudformation
    package` uploads."""
    source = yaml_parse(text)
    expanded = expand(source)
    expanded.pop("Metadata", None)  # exceptions of a linter
    expanded["Parameters"]["Architecture"] |= {"Default": in_lambda, "AllowedValues": [in_lambda]}
    for resource in expanded["Resources"].values():
        resource.pop("Metadata", None)  # how SAM builds it
    for logical_id, binary in binaries(source).items():
        expanded["Resources"][logical_id]["Properties"]["Code"] = f"./{binary}{suffix}.zip"
    return FIRST_LINES + yaml.dump(expanded, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


class Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, and each value written out where it is used."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def shown(dumper: Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, shown)
