#!/usr/bin/env python3
"""Runs every command of docs/tasks.md on one `nodekeeper local`, from the first row to the last.

    tasks.py

It needs the programs in target/debug. Every task prints a line. The first one that fails ends it with exit code 1.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from local_stack import ROOT, Local, check, wait_until

PAGE = ROOT / "docs/tasks.md"
TASKS = 42
AT_MOST_S = 60

# What each task must say: a regular expression. A list has one for each command of the row. A pair has another exit code
# than 0. A task that has no command yet is None.
SAYS = {
    1: "hello from a node",
    2: r"^\w{26}$",
    3: r"(^\w{26}\n){200}",
    4: r"(^\w{26}\n){200}",
    5: r"(^\w{26}\n){200}",
    6: r"^\w{26}$",
    7: r"^\w{26}$",
    8: r"^\w{26}$",
    9: r"^\w{26}$",
    10: r"(?s)complete.*complete.*complete",
    11: "ended with 3",
    12: r"complete",
    13: r"(?s)steady.*placed",
    14: "flaky +failed",
    15: r"waits because .*6 nodes.*nodes.max|waits because .*nodes.max allows 6 nodes",
    16: r"(?s)wide +queued.*steady +placed",
    17: "hello from a node",
    18: r"(?s)first\n.*last",
    19: r"(?s)first\n.*last",
    20: r"(?s)submit .*retry 1 of 2.*exit code 4.*end_job",
    21: "steady",
    22: r'"name": ?"flaky"',
    23: r"http://127.0.0.1:\d+/",
    24: r"^jobs: ",
    25: r"(?s)/work\n.*PID",
    26: "cancelled",
    27: "cancelled",
    28: r"SLOT +STATE(?s:.*)m7a|in_use",
    29: r"ACTION +SUBJECT|the next run would",
    30: [r"slot \d held", r"slot \d takes work again"],
    31: r"slot \d drains.*by 20\d\d-",
    32: "launch",
    33: r"container +(live|gone)",
    34: r"demand set ci",
    35: "nothing is wrong|all is well",
    36: r"nodes.max.*6.*8",
    37: [(1, r"nodes.max"), r"ACTION +SUBJECT|the next run would"],
    38: ["holds nothing", "nothing to release"],
    39: r"(?s)hello .*total: \$",
    40: "no jobs",
    41: "^01",
    42: "no instance",
}
# These go on until Ctrl-C.
UNTIL_CTRL_C = {21, 23, 24}
# These are about slot 0. Here it is the slot of a job that runs, because idle machines are shut down meanwhile.
ABOUT_A_SLOT = {30, 31, 32, 33}


def rows():
    """The tasks of the page: the number, what it is for, the commands, the steps."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 6 and cells[0].isdigit():
            commands = [span.replace("\\|", "|") for span in re.findall(r"`([^`]+)`", cells[2])]
            yield int(cells[0]), cells[1], commands, cells[2], cells[3]


class Bench:
    """A directory with the files of the page, and the environment of its commands."""

    def __init__(self, local, directory):
        self.local, self.directory = local, pathlib.Path(directory)
        line = lambda n: json.dumps({"name": f"part-{n}", "command": ["sh", "-c", f"echo {n}"]})
        (self.directory / "jobs.jsonl").write_text("".join(f"{line(n)}\n" for n in range(200)), encoding="utf-8")
        policy = (ROOT / "local/system/policy.toml").read_text(encoding="utf-8")
        (self.directory / "policy.toml").write_text(policy.replace("max = 6", "max = 9"), encoding="utf-8")
        profiles = "[default]\nnodekeeper_cluster = local\n[profile lab]\nnodekeeper_cluster = lab\n"
        (self.directory / "profiles").write_text(profiles, encoding="utf-8")
        editor = "sed -i 's/^max = .*/max = 8/'"
        self.environment = local.environment() | {"EDITOR": editor, "AWS_CONFIG_FILE": str(self.directory / "profiles")}
        for name in ("VISUAL", "NODEKEEPER_CLUSTER"):
            self.environment.pop(name, None)

    def sh(self, command):
        """Runs a line of the shell. Returns its exit code and what it said."""
        ran = subprocess.run(["bash", "-c", command], cwd=self.directory, env=self.environment, capture_output=True,
                             text=True, check=False, timeout=AT_MOST_S)
        return ran.returncode, ran.stdout + ran.stderr

    def until_ctrl_c(self, command, says):
        """Runs a line until it says this, and then sends Ctrl-C."""
        with open(self.directory / "said", "w+", encoding="utf-8") as said:
            process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.directory, env=self.environment,
                                       stdout=said, stderr=subprocess.STDOUT)
            seen = lambda: pathlib.Path(said.name).read_text(encoding="utf-8")
            end = time.monotonic() + AT_MOST_S
            while not re.search(says, seen(), re.M) and time.monotonic() < end:
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            return process.wait(AT_MOST_S), seen()

    def jobs(self):
        return json.loads(self.local.run("jobs", "--all", "--json").stdout or "[]")

    def slot(self):
        """The slot on which the job `steady` runs."""
        job = json.loads(self.local.run("job", "steady", "--json").stdout)
        return str(job["all_allocs"][0]["slot"])

    def prepare(self, number):
        """What must be so before the task: other people's work, and time that has passed."""
        states = lambda name: {job["state"] for job in self.jobs() if job.get("name") == name}
        if number == 6:
            # This machine is small, and the 400 jobs would keep the other tasks waiting.
            self.sh("nodekeeper cancel --name 'part-*' --yes; nodekeeper cancel --name 'sweep*' --yes")
        elif number == 13:
            # One job is on a node, so that a job which needs all nodes waits.
            self.sh("nodekeeper submit --name steady --priority 800 -- sleep 600")
            self.sh("nodekeeper submit --name sweep --priority 1 --count 3 -- sleep 600")
            wait_until("a job runs", lambda: states("steady") == {"placed"})
            self.sh("nodekeeper submit --name wide --nodes 6 --exclusive -- true")
        elif number == 14:
            wait_until("a job has failed", lambda: states("flaky") == {"failed"})
        elif number == 15:
            wait_until("a job waits", lambda: "nodes.max" in self.local.run("job", "wide").stdout)
        elif number == 18:
            self.sh("nodekeeper submit --name talks --priority 950 -- sh -c 'echo first; sleep 5; echo last'")
        elif number == 40:
            self.sh("nodekeeper demand delete ci")
            self.sh(f"nodekeeper --cluster lab init")


def task(bench, number, what, commands, cell, steps):
    says = SAYS[number]
    if says is None:
        check(f"{number}: the page says that there is no command yet to {what}", cell.startswith("not yet") and not steps, cell)
        return
    says = says if isinstance(says, list) else [says]
    if len(commands) != len(says) or not steps.isdigit():
        check(f"{number}: as many commands as checks, and a number of steps", False, (cell, steps))
    bench.prepare(number)
    for command, wanted in zip(commands, says):
        if number in ABOUT_A_SLOT:
            command = re.sub(r"\b0\b", bench.slot(), command, count=1)
        code, pattern = wanted if isinstance(wanted, tuple) else (0, wanted)
        if number in UNTIL_CTRL_C:
            ended, said = bench.until_ctrl_c(command, pattern)
            ended = 0 if ended == -signal.SIGINT else ended
        else:
            ended, said = bench.sh(command)
        if number == 5:
            parts = [job for job in bench.jobs() if job.get("name", "").startswith("part-")]
            check("5: each line of the file is one job, although the file was given twice", len(parts) == 200, len(parts))
        check(f"{number}: {command}", ended == code and re.search(pattern, said, re.M), f"exit code {ended}: {said[-2000:]}")


def main():
    tasks = list(rows())
    check(f"the page has {TASKS} tasks", [row[0] for row in tasks] == list(range(1, TASKS + 1)), [row[0] for row in tasks])
    began = time.monotonic()
    with Local("--tick-s", "1") as local, tempfile.TemporaryDirectory(prefix="nodekeeper-tasks-") as directory:
        bench = Bench(local, directory)
        for row in tasks:
            task(bench, *row)
    have = sum(SAYS[row[0]] is not None for row in tasks)
    print(f"{have} of {TASKS} tasks have commands, and all were run, in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
