#!/usr/bin/env python3
"""Runs what two pages show, each on one `nodekeeper local`, from the top to the end.

    tasks.py            both
    tasks.py tasks      every command of docs/tasks.md
    tasks.py jobs       the jobs of docs/using-a-cluster.md: their files, their commands, and what these print

It needs the programs in target/debug. Every command prints a line. The first one that fails ends it with exit code 1.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

from local_stack import ROOT, Local, check, wait_until

PAGE = ROOT / "docs/tasks.md"
JOBS_PAGE = ROOT / "docs/using-a-cluster.md"
TASKS = 29
AT_MOST_S = 120

# What each task must say: a regular expression. A list has one for each command of the row. A pair has another exit code than 0.
SAYS = {
    1: r"(?s)steady.*placed",
    2: "flaky +failed",
    3: r"waits because .*6 nodes.*nodes.max|waits because .*nodes.max allows 6 nodes",
    4: r"(?s)wide +queued.*steady +placed",
    5: "hello from a node",
    6: r"(?s)first\n.*last",
    7: r"(?s)first\n.*last",
    8: r"(?s)submit .*retry 1 of 2.*exit code 4.*end_job",
    9: "steady",
    10: r'"name": ?"flaky"',
    11: r"http://127.0.0.1:\d+/",
    12: r"^jobs: ",
    13: r"(?s)/work\n.*PID",
    14: "cancelled",
    15: "cancelled",
    16: r"SLOT +STATE(?s:.*)m7a|in_use",
    17: r"ACTION +SUBJECT|the next run would",
    18: [r"slot \d held", r"slot \d takes work again"],
    19: r"slot \d drains.*by 20\d\d-",
    20: "launch",
    21: r"container +(live|gone)",
    22: r"demand set ci",
    23: "nothing is wrong|all is well",
    24: ["", "", r"nodes.max.*6.*8"],
    25: [r"nodes.max", r"ACTION +SUBJECT|the next run would"],
    26: ["holds nothing", "nothing to release"],
    27: r"(?s)hello .*total: \$",
    28: (1, "table lab-control does not exist"),
    29: "no instance",
}
# These go on until Ctrl-C.
UNTIL_CTRL_C = {9, 11, 12}
# These are about slot 0. Here it is the slot of a job that runs, because idle machines are shut down meanwhile.
ABOUT_A_SLOT = {18, 19, 20, 21}


def rows():
    """The tasks of the page: the number and the commands."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 4 and cells[0].isdigit():
            yield int(cells[0]), [span.replace("\\|", "|") for span in re.findall(r"`([^`]+)`", cells[2])]


class Bench:
    """A directory with the files of the page, and the environment of its commands."""

    def __init__(self, local, directory):
        self.local, self.directory = local, pathlib.Path(directory)
        policy = (ROOT / "local/system/policy.toml").read_text(encoding="utf-8")
        (self.directory / "policy.toml").write_text(policy.replace("max = 6", "max = 9"), encoding="utf-8")
        profiles = "[default]\nnodekeeper_cluster = local\n[profile lab]\nnodekeeper_cluster = lab\n"
        (self.directory / "profiles").write_text(profiles, encoding="utf-8")
        self.environment = local.environment() | {"AWS_CONFIG_FILE": str(self.directory / "profiles")}
        self.environment.pop("NODEKEEPER_CLUSTER", None)

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
        if number == 1:
            self.sh("nodekeeper submit --wait --name hello --memory 100M -- sh -c 'echo hello from a node'")
            self.sh("nodekeeper submit --name flaky --retry-failed 2 -- sh -c 'echo the disk is full; exit 4'")
            # One job is on a node, so that a job which needs all nodes waits.
            self.sh("nodekeeper submit --name steady --priority 800 -- sleep 600")
            self.sh("nodekeeper submit --name sweep --priority 1 --count 3 -- sleep 600")
            wait_until("a job runs", lambda: states("steady") == {"placed"})
            self.sh("nodekeeper submit --name wide --nodes 6 --exclusive -- true")
        elif number == 2:
            wait_until("a job has failed", lambda: states("flaky") == {"failed"})
        elif number == 3:
            wait_until("a job waits", lambda: "nodes.max" in self.local.run("job", "wide").stdout)
        elif number == 6:
            self.sh("nodekeeper submit --name talks --priority 950 -- sh -c 'echo first; sleep 5; echo last'")
        elif number == 28:
            self.sh("nodekeeper demand set ci --size small --count 0")


def task(bench, number, commands):
    says = SAYS[number] if isinstance(SAYS[number], list) else [SAYS[number]]
    if len(commands) != len(says):
        check(f"{number}: as many commands as checks", False, commands)
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
        check(f"{number}: {command}", ended == code and re.search(pattern, said, re.M), f"exit code {ended}: {said[-2000:]}")


def run_tasks():
    tasks = list(rows())
    check(f"the page has {TASKS} tasks", [row[0] for row in tasks] == list(range(1, TASKS + 1)), [row[0] for row in tasks])
    began = time.monotonic()
    with Local("--tick-s", "1") as local, tempfile.TemporaryDirectory(prefix="nodekeeper-tasks-") as directory:
        bench = Bench(local, directory)
        for row in tasks:
            task(bench, *row)
    print(f"{TASKS} tasks in {time.monotonic() - began:.0f} s")


def run_jobs():
    """Its blocks are files, whose first lines are their names, or commands with what they print, where the page shows that."""
    page = JOBS_PAGE.read_text(encoding="utf-8")
    with Local("--tick-s", "1") as local, tempfile.TemporaryDirectory(prefix="nodekeeper-jobs-") as directory:
        local.secrets({"/db/password": "correct horse"})
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S):
            if language:
                (pathlib.Path(directory) / text.split()[1]).write_text(text, encoding="utf-8")
                continue
            for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.M):
                ran = subprocess.run(["bash", "-c", command], cwd=directory, env=local.environment(), capture_output=True, text=True,
                                     check=False, timeout=AT_MOST_S)
                wanted = ".*".join(map(re.escape, shown.split("…")))
                said = f"exit code {ran.returncode}: {ran.stdout[-2000:]}{ran.stderr[-2000:]}"
                check(command, ran.returncode == 0 and (not shown or re.fullmatch(wanted, ran.stdout, re.S)), said)


if __name__ == "__main__":
    for part in sys.argv[1:] or ["tasks", "jobs"]:
        {"tasks": run_tasks, "jobs": run_jobs}[part]()
