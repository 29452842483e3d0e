#!/usr/bin/env python3
"""What the pages show can be used as it stands: their commands and their policies.

    pages.py

It reads the fenced blocks of README.md and docs/. A block of commands (`sh`, or lines that begin with `$ `) may only have
subcommands and options that the program has, calls of AWS that boto3 knows, and scripts of this repository that are there. A block
of TOML is a policy that `policy check` accepts, as are those of examples/policies. A line `…` stands for the file that the comment above it
names. The pages of the policy and of the commands are what reference.py writes. It needs target/debug/nodekeeper, and boto3.
docs/tasks.md has a test of its own, which also runs its commands.
"""

import functools
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib

import boto3
import reference
from botocore import xform_name
from local_stack import PROGRAM, ROOT, Local, check

PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
SIZE = '\n[[size]]\nname = "a"\ntemplate = "lt-1"\ninstance_type = "m7a.large"\nvcpus = 2\nmemory_mib = 8192\nprice_per_hour = 0.1\n'
# Subcommands of the AWS CLI that are not calls.
AWS_OWN = {"s3": {"cp", "ls", "mb", "rm"}, "login": set()}
# Commands of the CLI that stand beside the calls of a service.
AWS_BESIDE = {("cloudformation", "deploy"), ("cloudformation", "package")}


def blocks(page):
    """The fenced blocks of a page: the line, the language, the text."""
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = None
    for number, line in enumerate(lines, 1):
        if line.strip().startswith("```"):
            if begin is None:
                begin = number
            else:
                indent = len(lines[begin - 1]) - len(lines[begin - 1].lstrip())
                text = "\n".join(l[indent:] for l in lines[begin : number - 1])
                yield begin, lines[begin - 1].strip().removeprefix("```"), text
                begin = None


def commands(language, text):
    """The commands of a block, each as words. Substitutions are words like any other."""
    lines = text.replace("\\\n", " ").splitlines()
    if language not in ("sh", "bash"):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        # A quoted text that goes on in the next line is no command of its own.
        try:
            words = tokens(line)
        except ValueError:
            continue
        command = []
        for word in [*words, ";"]:
            if word in (";", "|", "||", "&&", "&", "(", ")", "$(", ";;"):
                if command:
                    yield command
                command = []
            else:
                command.append(word)


def tokens(line):
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&()")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    return list(lexer)


@functools.cache
def help_of(*subcommands):
    ran = subprocess.run([PROGRAM, *subcommands, "--help"], capture_output=True, text=True, check=False)
    return ran.stdout if ran.returncode == 0 else None


def own_command(words):
    """What is wrong with a command of nodekeeper."""
    words = words[: words.index("--")] if "--" in words else words
    path, rest = [], words[1:]
    while rest and not rest[0].startswith("-") and re.search(rf"(?m)^  {re.escape(rest[0])}( |$)", commands_in(help_of(*path))):
        path.append(rest.pop(0))
    if not path and rest and not rest[0].startswith("-"):
        return f"there is no command {rest[0]}"
    known = help_of(*path)
    for word in rest:
        option = re.match(r"--[a-z][a-z0-9-]*", word)
        if option and not re.search(rf"{re.escape(option[0])}\b(?!-)", known):
            return f"`nodekeeper {' '.join(path)}` has no option {option[0]}"
    return None


def commands_in(text):
    return text.partition("Commands:")[2].partition("Options:")[0] if text and "Commands:" in text else ""


def aws_call(words):
    """What is wrong with a call of the AWS CLI."""
    service, *rest = words[1:]
    if service in AWS_OWN:
        return None if not AWS_OWN[service] or rest[0] in AWS_OWN[service] else f"`aws {service}` has no {rest[0]}"
    if (service, rest[0]) in AWS_BESIDE:
        return None
    client = boto3.client(service, region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
    calls = {xform_name(name).replace("_", "-"): name for name in client.meta.service_model.operation_names}
    if rest[0] not in calls:
        return f"`aws {service}` has no {rest[0]}"
    shape = client.meta.service_model.operation_model(calls[rest[0]]).input_shape
    names = {xform_name(name).replace("_", "-") for name in (shape.members if shape else ())}
    for word in rest[1:]:
        name = word.removeprefix("--").removeprefix("no-")
        if word.startswith("--") and name not in names | {"query", "output", "region", "profile"}:
            return f"`aws {service} {rest[0]}` has no option {word}"
    return None


def wrong_command(words):
    while words and re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", words[0]):
        words = words[1:]
    if not words:
        return None
    if words[0] == "nodekeeper":
        return own_command(words)
    if words[0] == "aws" and len(words) > 2:
        return aws_call(words)
    if "/" in words[0] and not words[0].startswith(("/", "~", "$", "./", "target")) and not (ROOT / words[0]).is_file():
        return f"there is no {words[0]}"
    return None


def with_files(text):
    """The block with the files that its lines `…` stand for."""
    out = []
    for line in text.splitlines():
        named = [name for earlier in out for name in re.findall(r"# ([\w/.]+\.sh)\b", earlier)]
        out.append((ROOT / named[-1]).read_text(encoding="utf-8") if line.strip() == "…" and named else line)
    return "\n".join(out) + "\n"


def wrong_toml(text, directory):
    whole = with_files(text)
    try:
        read = tomllib.loads(whole)
    except tomllib.TOMLDecodeError as error:
        return f"no TOML: {error}"
    file = directory / "file.toml"
    file.write_text(whole, encoding="utf-8")
    if "size" not in read:  # a part of a policy
        file.write_text(whole + SIZE, encoding="utf-8")
    ran = subprocess.run([PROGRAM, "policy", "check", str(file)], capture_output=True, text=True, check=False)
    return None if ran.returncode == 0 else ran.stdout + ran.stderr


def rows_cut_off(page):
    """The rows of tables that a blank line cuts off their table."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for number in range(1, len(lines) - 1):
        begins = lines[number].startswith("|") and not lines[number - 1].startswith("|")
        if begins and not re.match(r"\|[ :-]+\|", lines[number + 1]):
            yield f"{page.name}:{number + 1}"


def restore_brings_rows_back():
    """The second step of `infra/restore`, on a local system whose tables were copied. Only AWS has the first."""
    with Local("--functions-url", "http://127.0.0.1:9") as local:
        env = local.environment() | {"AWS_DEFAULT_REGION": local.environment()["AWS_REGION"]}
        keys = {name.lower(): env[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        db = boto3.client("dynamodb", endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"], region_name=env["AWS_REGION"], **keys)
        submit = lambda: local.run("submit", "--", "true").stdout.strip()
        before = submit()
        for table in ("nodes", "jobs", "allocs", "handles", "control", "events"):
            about = db.describe_table(TableName=f"local-{table}")["Table"]
            names = {part["AttributeName"] for part in about["KeySchema"]}
            db.create_table(TableName=f"local-{table}-restored", KeySchema=about["KeySchema"], BillingMode="PAY_PER_REQUEST",
                            AttributeDefinitions=[a for a in about["AttributeDefinitions"] if a["AttributeName"] in names])
            for row in db.scan(TableName=f"local-{table}")["Items"]:
                db.put_item(TableName=f"local-{table}-restored", Item=row)
        after = submit()
        local.run("cancel", before)
        for said in ("1 written, 1 deleted", "0 written, 0 deleted"):
            ran = subprocess.run([sys.executable, ROOT / "infra/restore", "local", "--replace-rows"], env=env,
                                 capture_output=True, text=True, check=False)
            check(f"infra/restore, jobs: {said}", re.search(rf"local-jobs: 1 rows; {said}", ran.stdout), ran.stdout + ran.stderr)
        jobs = local.run("jobs", "--all", "--json").stdout
        check("the job of before waits again, and the later one is gone", before in jobs and "queued" in jobs and after not in jobs, jobs)


def main():
    differs = list(reference.differences())
    check("the policy and the commands are on their pages as the program says them (tests/reference.py writes them)", not differs, differs)
    count = 0
    with tempfile.TemporaryDirectory() as directory:
        for page in PAGES:
            cut = list(rows_cut_off(page))
            check(f"{page.name}: each row belongs to a table", not cut, cut)
            for number, language, text in blocks(page):
                if language == "toml":
                    wrong = [wrong_toml(text, pathlib.Path(directory))]
                else:
                    wrong = [wrong_command(words) for words in commands(language, text)]
                wrong = [what for what in wrong if what]
                count += 1
                if wrong:
                    check(f"{page.name}:{number}", False, wrong)
        for policy in sorted((ROOT / "examples/policies").glob("*.toml")):
            wrong = wrong_toml(policy.read_text(encoding="utf-8"), pathlib.Path(directory))
            check(f"{policy.name} is a policy", not wrong, wrong)
    check("the pages have blocks", count > 30, count)
    first = (ROOT / "examples/policies/first.toml").read_text(encoding="utf-8").rstrip()
    check("operate.md has the first policy of the release", any(text == first for *_, text in blocks(ROOT / "docs/operate.md")))
    restore_brings_rows_back()
    print(f"{count} blocks can be used as they stand.")


if __name__ == "__main__":
    sys.exit(main())
