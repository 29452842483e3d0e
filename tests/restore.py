#!/usr/bin/env python3
"""`infra/restore` brings each row back, against an emulator of AWS (moto) in this process.

    python tests/restore.py target/contract.json

The tables are those of the contract. The emulator takes a few rows of each write only, as a busy table does.
"""

import contextlib
import io
import json
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import boto3
from moto import mock_aws

sys.dont_write_bytecode = True
LOADER = SourceFileLoader("restore", str(Path(__file__).resolve().parent.parent / "infra" / "restore"))
MOMENT = "2026-11-25T09:00:00Z"


class Busy:
    """A client whose tables take seven rows of a write, and whose scans must see what was written before."""

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def batch_write_item(self, RequestItems):
        ((table, rows),) = RequestItems.items()
        assert len(rows) <= 25, "DynamoDB takes 25 rows at once"
        self.client.batch_write_item(RequestItems={table: rows[:7]})
        return {"UnprocessedItems": {table: rows[7:]} if rows[7:] else {}}

    def get_paginator(self, name):
        pages = self.client.get_paginator(name)
        if name == "scan":
            paginate = pages.paginate
            pages.paginate = lambda **of: paginate(**of) if of.get("ConsistentRead") else sys.exit("a scan that may miss what was written")
        return pages


def keys(table):
    return [part for part in (table["key"]["hash"], table["key"].get("range")) if part]


def row(table, number, text):
    """A row whose key has this number. Two rows of a table with a range have the same hash."""
    hash_, *range_ = keys(table)
    value = lambda part, n: {part["type"]: str(n)}
    key = {hash_["name"]: value(hash_, number // 2 if range_ else number)} | {part["name"]: value(part, number) for part in range_}
    return key | {"text": {"S": text}}


def rows(client, name):
    items = client.get_paginator("scan").paginate(TableName=name, ConsistentRead=True).build_full_result()["Items"]
    return sorted(json.dumps(item, sort_keys=True) for item in items)


@mock_aws
def main():
    tables = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["tables"]
    restore = module_from_spec(spec_from_loader(LOADER.name, LOADER))
    LOADER.exec_module(restore)
    client = boto3.client("dynamodb", region_name="eu-west-1")
    restore.boto3 = type("Boto", (), {"client": lambda _: Busy(client)})
    name = lambda table: f"demo-{table['name']}"
    for table in tables:
        schema = [{"AttributeName": part["name"], "KeyType": kind} for part, kind in zip(keys(table), ("HASH", "RANGE"), strict=False)]
        types = [{"AttributeName": part["name"], "AttributeType": part["type"]} for part in keys(table)]
        client.create_table(TableName=name(table), KeySchema=schema, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST")
        for number in range(30):
            client.put_item(TableName=name(table), Item=row(table, number, "then"))
    then = {name(table): rows(client, name(table)) for table in tables}

    def run(*arguments):
        sys.argv = ["restore", "demo", *arguments]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return restore.main()

    try:
        run(MOMENT.removesuffix("Z"))
        sys.exit("a moment without a time zone is taken")
    except SystemExit as e:
        assert e.code == 2, e
    # Given twice, as after a lost connection.
    assert run(MOMENT) == 0 and run(MOMENT) == 0
    for table in tables:
        for number in range(10, 50):
            client.put_item(TableName=name(table), Item=row(table, number, "later"))
        gone = row(table, 0, "")
        client.delete_item(TableName=name(table), Key={part["name"]: gone[part["name"]] for part in keys(table)})
    assert run("--replace-rows") == 0
    for table in tables:
        assert rows(client, name(table)) == then[name(table)], f"{name(table)} is not as it was"
    print(f"restore: {len(tables)} tables are as they were")


if __name__ == "__main__":
    main()
