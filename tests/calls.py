#!/usr/bin/env python3
"""Holds every recorded call to AWS against AWS's own models, which botocore contains. Needs no network.

    NODEKEEPER_RECORDED_CALLS=target/calls.jsonl cargo test …    records the requests of tests (tests/src/recorded.rs)
    python tests/calls.py target/calls.jsonl                     prints each finding once, and exits 1 if there is one

Guarantees: of each call it checks the operation, unknown and missing parameters, types, enums, patterns, and the least and the most of
numbers, lengths and lists, as the wire has them: forms (EC2, STS), JSON (DynamoDB, prices, quotas, secrets) and REST (S3). Then it
plants mistakes in the recorded calls, one of each kind in each operation, and finds them: a check that finds nothing proves nothing.
Does not: know what a service only says in words. The stand-ins know that.
"""

import copy
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape

# What any request to S3 may have besides the parameters of its operation.
HEADERS_OF_HTTP = {
    "accept", "accept-encoding", "amz-sdk-invocation-id", "amz-sdk-request", "authorization", "connection", "content-length", "content-type", "host",
    "transfer-encoding", "user-agent", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token", "x-amz-user-agent",
}  # fmt: skip
# The services that must be among the calls: without them, something was not recorded.
WANTED = {"dynamodb", "ec2", "s3"}
# People name instance types, and EC2 gets new ones each month.
OPEN_ENUMS = {"InstanceType"}
NUMBERS = {"integer": int, "long": int, "float": float, "double": float}


@cache
def model(service: str) -> ServiceModel:
    name = {"servicequotas": "service-quotas"}.get(service, service)
    return botocore.session.get_session().get_service_model(name)


class Unknown(Exception):
    """A call that no model has."""


@dataclass
class Call:
    """A recorded call: its operation, and its parameters as the model of the operation names them."""

    service: str
    operation: str
    given: Any

    @property
    def model(self) -> OperationModel:
        return model(self.service).operation_model(self.operation)

    def findings(self) -> Iterator[str]:
        shape = self.model.input_shape
        if shape is not None:
            yield from (f"{self.service} {self.operation}: {what}" for what in check(self.given, shape, ""))


def read(line: dict[str, Any]) -> Call:
    headers = line["headers"]
    signed = re.search(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request", headers.get("authorization", ""))
    if signed is None:
        raise Unknown(f"{line['method']} {line['uri']}: is not signed")
    service = signed[1]
    if service == "s3":
        return read_rest(line, headers)
    if target := headers.get("x-amz-target"):
        prefix, _, operation = target.rpartition(".")
        if model(service).metadata.get("targetPrefix") != prefix or operation not in model(service).operation_names:
            raise Unknown(f"{service}: no operation is called {target}")
        return Call(service, operation, json.loads(line["body"]))
    form = dict(parse_qsl(line["body"] or urlsplit(line["uri"]).query, keep_blank_values=True, strict_parsing=True))
    operation, version = form.pop("Action", ""), form.pop("Version", "")
    if operation not in model(service).operation_names or version != model(service).api_version:
        raise Unknown(f"{service}: no operation is called {operation!r} in the version {version!r}")
    tree: dict[str, Any] = {}
    for name, value in form.items():
        *way, last = name.split(".")
        place = tree
        for step in way:
            place = place.setdefault(step, {})
        place[last] = value
    return Call(service, operation, of_form(tree, model(service).operation_model(operation).input_shape, service == "ec2"))


def wire_name(name: str, shape: Shape, is_ec2: bool) -> str:
    """How a form calls a member: EC2 writes its names large."""
    if is_ec2 and "queryName" in shape.serialization:
        return shape.serialization["queryName"]
    written = shape.serialization.get("name", name)
    return written[:1].upper() + written[1:] if is_ec2 else written


def of_form(node: Any, shape: Shape, is_ec2: bool) -> Any:
    """The parameters of a form in the words of the model. What the model does not know keeps its name, and is a finding later."""
    if shape.type_name == "structure" and isinstance(node, dict):
        known = {wire_name(name, member, is_ec2): (name, member) for name, member in shape.members.items()}
        found = {}
        for key, value in node.items():
            name, member = known.get(key, (key, None))
            found[name] = value if member is None else of_form(value, member, is_ec2)
        return found
    if shape.type_name == "list" and isinstance(node, dict):
        entries = node if is_ec2 or shape.serialization.get("flattened") else node.get("member", node)
        if not isinstance(entries, dict) or sorted(entries, key=lambda n: (len(n), n)) != [str(n + 1) for n in range(len(entries))]:
            return node
        return [of_form(entries[str(n + 1)], shape.member, is_ec2) for n in range(len(entries))]
    kind = NUMBERS.get(shape.type_name)
    try:
        return kind(node) if kind and isinstance(node, str) else {"true": True, "false": False}.get(node, node) if shape.type_name == "boolean" else node
    except ValueError:
        return node


def read_rest(line: dict[str, Any], headers: dict[str, str]) -> Call:
    """A call of S3, by its method, its path and what it asks of an object."""
    url = urlsplit(line["uri"])
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    bucket, _, key = url.path.lstrip("/").partition("/")
    path = "/{Bucket}" + ("/{Key+}" if key else "")
    fitting = []
    for name in model("s3").operation_names:
        http = model("s3").operation_model(name).http
        where, _, fixed = http["requestUri"].partition("?")
        wanted = dict(parse_qsl(fixed, keep_blank_values=True))
        if http["method"] == line["method"] and where == path and all(query.get(k) == v for k, v in wanted.items()):
            fitting.append((missing_of(name, {**query, **headers}), -len(wanted), name, wanted))
    if not fitting:
        raise Unknown(f"s3: no operation is {line['method']} {path} with {sorted(query)}")
    _, _, operation, wanted = min(fitting)
    shape = model("s3").operation_model(operation).input_shape
    given: dict[str, Any] = {"Bucket": unquote(bucket)} | ({"Key": unquote(key)} if key else {})
    places = {(member.serialization.get("location"), member.serialization.get("name", name).lower()): (name, member) for name, member in shape.members.items()}
    rest = {("querystring", k.lower()): v for k, v in query.items() if k not in wanted and k != "x-id"}
    rest |= {("header", k): v for k, v in headers.items() if ("header", k) in places or k not in HEADERS_OF_HTTP and not k.startswith("x-amz-meta-")}
    for place, value in rest.items():
        name, member = places.get(place, (f"{place[0]} {place[1]}", None))
        given[name] = value if member is None else of_form(value, member, is_ec2=False)
    return Call("s3", operation, given)


def missing_of(operation: str, given: dict[str, str]) -> int:
    """How many required parts a call lacks for this operation: to read an object is not to list its parts, and to store is not to copy."""
    shape = model("s3").operation_model(operation).input_shape
    wanted = [shape.members[n].serialization for n in shape.required_members]
    return sum(1 for s in wanted if s.get("location") in ("querystring", "header") and s["name"] not in given)


def check(value: Any, shape: Shape, place: str) -> Iterator[str]:
    """What is wrong with a value, and where."""
    kinds = {"structure": dict, "map": dict, "list": list, "string": str, "boolean": bool, "blob": str, "timestamp": (int, float, str), "char": str, **NUMBERS}
    kind = (int, float) if shape.type_name in ("float", "double") else kinds[shape.type_name]
    if not isinstance(value, kind) or (isinstance(value, bool) and shape.type_name != "boolean"):
        yield f"{place or 'the call'}: {shown(value)} is no {shape.type_name}"
        return
    least, most = shape.metadata.get("min"), shape.metadata.get("max")
    size = value if shape.type_name in NUMBERS else len(value) if hasattr(value, "__len__") else None
    # The models give some of EC2's limits for one of several meanings of a number only.
    if size is not None and ((least is not None and size < least) or (most is not None and size > most)):
        yield f"{place}: {shown(value)} is not between {least} and {most}"
    match shape.type_name:
        case "structure":
            yield from check_structure(value, shape, place)
        case "list":
            for entry in value:
                yield from check(entry, shape.member, f"{place}[]")
        case "map":
            for key, entry in value.items():
                yield from check(key, shape.key, f"{place} (name)")
                yield from check(entry, shape.value, f"{place}.*")
        case "string":
            if shape.enum and shape.name not in OPEN_ENUMS and value not in shape.enum:
                yield f"{place}: {value!r} is none of {', '.join(shape.enum[:6])}…"
            if (pattern := shape.metadata.get("pattern")) and not fits(pattern, value):
                yield f"{place}: {value!r} does not fit {pattern}"


def check_structure(value: dict[str, Any], shape: Shape, place: str) -> Iterator[str]:
    for name in sorted(value.keys() - shape.members.keys()):
        yield f"{place}.{name}: unknown".lstrip(".")
    for name in sorted(set(shape.required_members) - value.keys()):
        yield f"{place}.{name}: required, and not there".lstrip(".")
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        yield f"{place}: must have exactly one of {', '.join(shape.members)}"
    for name in sorted(value.keys() & shape.members.keys()):
        yield from check(value[name], shape.members[name], f"{place}.{name}".lstrip("."))


def fits(pattern: str, value: str) -> bool:
    try:
        return re.search(rf"^(?:{pattern})$", value, re.S) is not None
    except re.error:  # Java's expressions are not all Python's
        return True


def shown(value: Any) -> str:
    return json.dumps(value)[:60]


# ---- Planted mistakes -----------------------------------------------------------------------------------------


def places(value: Any, shape: Shape, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Shape]]:
    yield way, value, shape
    if shape.type_name == "structure" and isinstance(value, dict):
        for name in value.keys() & shape.members.keys():
            yield from places(value[name], shape.members[name], (*way, name))
    elif shape.type_name == "list" and isinstance(value, list):
        for n, entry in enumerate(value):
            yield from places(entry, shape.member, (*way, n))
    elif shape.type_name == "map" and isinstance(value, dict):
        for key, entry in value.items():
            yield from places(entry, shape.value, (*way, key))


def mistakes(call: Call) -> Iterator[tuple[str, str, Call]]:
    """Each kind of mistake at each place of a call: the kind, the place, and the call with it."""
    for way, value, shape in places(call.given, call.model.input_shape):
        where = ".".join("[]" if isinstance(step, int) else str(step) for step in way)
        wrong: list[tuple[str, Any]] = []
        if shape.type_name == "structure":
            wrong.append(("unknown", {**value, "Planted": "x"}))
            wrong += [("required", {k: v for k, v in value.items() if k != name}) for name in shape.required_members if name in value]
        elif shape.type_name in (*NUMBERS, "boolean", "list", "map"):
            wrong.append(("type", "planted"))
        elif shape.type_name == "string":
            wrong.append(("type", {"planted": 1}))
        if shape.type_name == "string" and shape.enum and shape.name not in OPEN_ENUMS:
            wrong.append(("enum", f"{value}-planted"))
        if shape.type_name == "string" and "pattern" in shape.metadata and not fits(shape.metadata["pattern"], "\x01"):
            wrong.append(("pattern", "\x01"))
        if shape.metadata.get("max") and shape.type_name in ("string", *NUMBERS):
            most = shape.metadata["max"]
            wrong.append(("limit", most + 1 if shape.type_name in NUMBERS else "x" * (most + 1)))
        for kind, other in wrong:
            yield kind, where, Call(call.service, call.operation, put(copy.deepcopy(call.given), way, other))


def put(given: Any, way: tuple[Any, ...], value: Any) -> Any:
    if not way:
        return value
    place = given
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    return given


def plant(calls: list[Call]) -> Iterator[str]:
    """One mistake of each kind at each place of each operation. Says which were not found."""
    planted: dict[str, Counter[str]] = defaultdict(Counter)
    seen = set()
    for call in calls:
        for kind, where, wrong in mistakes(call):
            if (call.service, call.operation, kind, where) in seen:
                continue
            seen.add((call.service, call.operation, kind, where))
            is_found = next(wrong.findings(), None) is not None
            planted[kind].update(planted=1, found=int(is_found))
            if not is_found:
                yield f"{call.service} {call.operation}: the planted mistake ({kind}) at {where or 'the call'} was not found"
    for kind, counts in sorted(planted.items()):
        print(f"{kind}: {counts['planted']} planted, {counts['found']} found")
    for kind in ("unknown", "required", "type", "enum", "pattern", "limit"):
        if not planted[kind]["planted"]:
            yield f"no call has a place for a mistake of the kind {kind}"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    findings: Counter[str] = Counter()
    calls: dict[str, Call] = {}
    count = 0
    with open(sys.argv[1]) as lines:
        for line in map(json.loads, lines):
            count += 1
            try:
                call = read(line)
            except (Unknown, ValueError) as error:
                findings[str(error)] += 1
                continue
            findings.update(set(call.findings()))
            calls.setdefault(json.dumps([call.service, call.operation, outline(call.given)]), call)
    made = sorted({f"{c.service}:{c.operation}" for c in calls.values()})
    print(f"{count} calls, {len(calls)} of different outline, {len(made)} operations: {', '.join(made)}")
    for service in sorted(WANTED - {c.service for c in calls.values()}):
        findings[f"no call of {service} was recorded"] += 1
    findings.update(plant(list(calls.values())))
    for finding, times in findings.most_common():
        print(f"{finding} ({times} times)")
    sys.exit(1 if findings else 0)


def outline(value: Any) -> Any:
    """What a call has, without its values: calls of the same outline offer the same places for mistakes."""
    if isinstance(value, dict):
        return {k: outline(v) for k, v in sorted(value.items())}
    return [outline(v) for v in value[:1]] if isinstance(value, list) else type(value).__name__


if __name__ == "__main__":
    main()
