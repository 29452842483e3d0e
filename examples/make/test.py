"""GNU make runs recipes on nodes: all at once, with their exit codes, and Ctrl-C cancels them. Run by tests/examples.py."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

from local_stack import check, wait_until

HERE = pathlib.Path(__file__).parent
PROGRAMS = {"make": "make", "setsid": "util-linux"}
OPTIONS = ["--tick-s", "1"]

FAILING = """
all: bad good
bad good: SHELL = ./node-shell
bad good: .SHELLFLAGS = -c
bad:
\texit 3
good:
\techo "$$GREETING of $$NODEKEEPER_JOB_ID" >out/good
both:
\techo "$(shell echo here)"
"""
ENDLESS = """
all: one two
one two: SHELL = ./node-shell
one two: .SHELLFLAGS = -c
one two:
\techo $$$$ >out/$@ && exec sleep 600
"""


def test(local):
    # Jobs run as other users, so they need a directory that all users reach.
    work = pathlib.Path(local.dir.name, "make")
    shutil.copytree(HERE, work)

    def make(*line, **env):
        command = ["make", *line]
        return subprocess.run(command, cwd=work, env=local.environment() | env, capture_output=True, text=True, check=False)

    def jobs():
        return json.loads(local.run("jobs", "--all", "--json", "--name", "make-*").stdout)

    said = make("-j20")
    total = (work / "out/total").read_text() if said.returncode == 0 else said
    check("make -j20: the primes below 200000", total == "17984\n", total)
    check("nothing is said of files that the job does not get: it has the directory", "does not get" not in said.stderr, said.stderr)
    check("each of 20 recipes was one job, and the sum was made here", [j["state"] for j in jobs()] == ["complete"] * 20, jobs())
    used = {a["node_id"] for j in jobs() for a in json.loads(local.run("job", j["job_id"], "--json").stdout)["all_allocs"]}
    check("what the recipes depend on was made here", (work / "out").stat().st_uid == os.geteuid())
    check("several nodes shared the work", len(used) > 1, used)
    said = make("-j20")
    check("what is made already makes no job", said.returncode == 0 and len(jobs()) == 20, said)

    said = make("-B", "out/1.primes")
    check("it can be made again, by a job of another user", said.returncode == 0 and len(jobs()) == 21, said)

    (work / "failing.mk").write_text(FAILING)
    said = make("-f", "failing.mk", "-k", "-j2", NODE_SHELL_ENV="GREETING", NODE_SHELL_OPTIONS="--vcpus 2", GREETING='it\'s "$HOME"')
    check("the exit code of a recipe comes back", said.returncode == 2 and "Error 3" in said.stderr, said)
    good = (work / "out/good").read_text()
    check("the environment comes as it is", good.startswith('it\'s "$HOME" of 01'), good)
    check("the options of the job are taken", {j["vcpus"] for j in jobs()} == {1, 2}, jobs())
    said = make("-f", "failing.mk", "good", NODE_SHELL_ENV="A-B")
    check("a wrong name of a variable is one clear line", "'A-B', which is not a name" in said.stderr, said)
    said = make("-f", "failing.mk", "both")
    check("other recipes and $(shell) run here", said.stdout.endswith("here\n") and len(jobs()) == 23, said)
    said = subprocess.run([work / "node-shell", "echo"], capture_output=True, text=True, check=False)
    check("node-shell without -c says what to set", said.returncode == 2 and ".SHELLFLAGS" in said.stderr, said)

    (work / "endless.mk").write_text(ENDLESS)
    command = ["make", "-j2", "-f", "endless.mk"]
    process = subprocess.Popen(command, cwd=work, env=local.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    pids = [work / "out/one", work / "out/two"]
    wait_until("two recipes run on nodes", lambda: all(p.exists() and p.read_text() for p in pids))
    pids = [int(p.read_text()) for p in pids]
    check("they are processes", all(pathlib.Path(f"/proc/{pid}").exists() for pid in pids), pids)
    os.killpg(process.pid, signal.SIGINT)  # As Ctrl-C in a terminal does.
    try:
        said = process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = "it did not end"
    check("Ctrl-C ends make", process.returncode not in (0, None) and said != "it did not end", said)
    check("and cancels the jobs", sum(j["state"] == "cancelled" for j in jobs()) == 2, jobs())
    wait_until("and ends their processes", lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
