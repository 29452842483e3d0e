#!/usr/bin/env python3
"""The questions of infra/accounting.sql on the events of jobs that ran on a `nodekeeper local`.

The events are made as the pipe makes them: the row of each ended job in the template's own text. The SQL runs in SQLite, which gets the
three functions of Athena that the questions use.
"""

import datetime
import json
import re
import sqlite3
import sys
import tempfile

import boto3
from local_stack import ROOT, Local, check

INFRA = ROOT / "infra"
# The jobs of ann, as the command names them, and what is said of each.
JOBS = [
    ["--name", "good", "--label", "team=vision", "--label", "run=7", "--", "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"],
    ["--name", "bad", "--label", "run=8", "--label", "team=audio", "--", "sh", "-c", "exit 3"],
    ["--name", "bare", "--", "sleep", "1"],
]


def pipe(row):
    """The event of this row, as the pipe of the template makes it; `None` if the row makes none."""
    if "end" not in row:
        return None
    text = re.search(r"InputTemplate: !Sub \|\n((?: {10}.*\n)+)", (INFRA / "template.yaml").read_text(encoding="utf-8"))[1]

    def value(place):
        at = row
        for name in place[1].removeprefix("$.dynamodb.").replace("Keys.", "").replace("NewImage.", "").split("."):
            at = at[name]
        return at

    return json.loads(re.sub(r"<([^>]*)>", value, text.replace("${ClusterName}", "demo")))


def seconds(a, b):
    return (datetime.datetime.fromisoformat(b) - datetime.datetime.fromisoformat(a)) // datetime.timedelta(seconds=1)


def engine(events):
    """A table with these events, and the functions of Athena."""
    db = sqlite3.connect(":memory:")
    columns = re.findall(r"- { Name: (\w+), Type: string }", (INFRA / "accounting.yaml").read_text(encoding="utf-8"))
    check("the table has a column for each field of an event", sorted(columns) == sorted(events[0]), set(columns) ^ set(events[0]))
    names = [*columns, "month"]
    db.execute(f"create table jobs ({', '.join(json.dumps(name) + ' text' for name in names)})")
    for event in events:
        places = ", ".join(f":{name}" for name in names)
        db.execute(f"insert into jobs values ({places})", {**event, "month": "2027-01"})
    found = lambda text, form, group: (match := re.search(form, text)) and match[group]
    db.create_function("regexp_extract", 3, found)
    db.create_function("from_iso8601_timestamp", 1, lambda text: datetime.datetime.fromisoformat(text).isoformat())
    db.create_function("date_diff", 3, lambda _, a, b: seconds(a, b))
    return db


def ask(db):
    """The answers to all questions, as rows with names."""
    text = (INFRA / "accounting.sql").read_text(encoding="utf-8")
    answers = []
    for question in re.sub(r"--.*", "", text).split(";"):
        if question.strip():
            cursor = db.execute(question)
            answers.append([dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor])
    return answers


def main():
    with Local() as local, tempfile.NamedTemporaryFile("w", suffix=".toml") as policy:
        env = local.environment()
        policy.write(local.run("policy", "show").stdout.replace("share = []\n", "") + '[[share]]\nname = "lab"\nmembers = ["*"]\n')
        policy.flush()
        said = local.run("policy", "set", policy.name)
        check("a policy with a share is stored", said.returncode == 0, said)
        ids = [local.run("submit", "--wait", "--json", *job) for job in JOBS]
        ids = [json.loads(said.stdout)[0]["job_id"] for said in ids]
        running = local.run("submit", "--name", "stopped", "--", "sleep", "1000").stdout.strip()
        local.until("a job runs", f"api/jobs/{running}", lambda job: any(a.get("started_at") for a in job["all_allocs"]))
        local.run("cancel", running)
        local.until("its alloc has stopped", f"api/jobs/{running}", lambda job: all(a.get("finished_at") for a in job["all_allocs"]))
        keys = {"aws_access_key_id": env["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": env["AWS_SECRET_ACCESS_KEY"]}
        db = boto3.client("dynamodb", endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"], region_name=env["AWS_REGION"], **keys)
        rows = db.scan(TableName=f"{env['NODEKEEPER_CLUSTER']}-jobs")["Items"]
        stored = {job: json.loads(local.run("job", job, "--json").stdout) for job in [*ids, running]}
    events = [event for row in rows if (event := pipe(row))]
    check("each ended job has an event", {event["job_id"] for event in events} == set(stored), events)
    me = stored[running]["by"]
    check("each event says who, and whose share", all((event["by"], event["share"]) == (me, "lab") for event in events), events)
    check("each of these jobs cost something", all(float(event["usd"]) > 0 for event in events), events)
    # The same jobs as bob's. Each event comes twice.
    theirs = [{**event, "by": "bob", "share": "others", "job_id": f"B{event['job_id']}"} for event in events if event["name"] == "good"]
    people, teams, days, waits, lost = ask(engine([*events, *theirs, *events]))
    usd = {name: sum(job.get("usd", 0) for job in stored.values() if job["name"] == name) for name in ("good", "bad", "bare", "stopped")}
    near = lambda a, b: abs(a - b) < 2e-6
    by = {row["by"]: row for row in people}
    check("what each person's jobs cost, with their shares", by[me]["jobs"] == 4 and by["bob"]["jobs"] == 1 and near(by[me]["usd"], sum(usd.values()))
          and near(by["bob"]["usd"], usd["good"]) and (by[me]["share"], by["bob"]["share"]) == ("lab", "others"), people)
    team = {row["team"]: row for row in teams}
    check("what each team's jobs cost", near(team["vision"]["usd"], 2 * usd["good"]) and near(team["audio"]["usd"], usd["bad"])
          and team[None]["jobs"] == 2, teams)
    cpu_h = sum(float(event["cpu_s"] or 0) for event in [*events, *theirs]) / 3600
    check("what each day cost", sum(row["jobs"] for row in days) == 5 and near(sum(row["usd"] for row in days), sum(usd.values()) + usd["good"])
          and near(sum(row["cpu_h"] for row in days), cpu_h), days)
    waited = lambda of: [seconds(event["submitted_at"], event["started_at"]) for event in of]
    check("how long jobs waited", {row["by"]: (row["jobs"], row["longest_s"], row["mean_s"]) for row in waits}
          == {by: (len(of), max(of), sum(of) / len(of)) for by, of in ((me, waited(events)), ("bob", waited(theirs)))}, waits)
    check("what was lost", {(row["name"], row["cause"]): row["jobs"] for row in lost} == {("bad", "exited"): 1, ("stopped", "cancelled"): 1}
          and near(sum(row["usd"] for row in lost), usd["bad"] + usd["stopped"]), lost)


if __name__ == "__main__":
    sys.exit(main())
