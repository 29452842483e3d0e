#!/usr/bin/env python3
"""An engine that is killed again and again, and started again each time, runs each task of a graph once.

    engine.py               12 tasks, 6 kills: half a minute
    engine.py 200 100       so many tasks, so many kills

The engine is a program of the Python client: tasks with keys, of which each follows some before it. It is killed while it submits what
was submitted before, what is new, or while it waits, in half of the cases together with `nodekeeper batch`.
Every check prints a line. The first one that fails ends it with exit code 1.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

from local_stack import ROOT, Local, check

# Requests have other lines each time. A task follows up to three of the ten before it.
ENGINE = """
import random, sys, nodekeeper
count, ledger, done, chance = int(sys.argv[1]), sys.argv[2], 0, random.Random()
def line(task):
    parents = random.Random(task).sample(range(max(0, task - 10), task), min(task, task % 4))
    return {"key": f"task-{task}", "name": f"task-{task}", "command": f"echo {task} >>{ledger}", "after": [f"task-{n}" for n in parents]}
with nodekeeper.Cluster(key="graph") as cluster:
    jobs = []
    while len(jobs) < count:
        print(len(jobs), flush=True)
        jobs += cluster.submit_all([line(task) for task in range(len(jobs), min(count, len(jobs) + chance.randint(1, 4)))])
        if chance.random() < 0.2:
            jobs[0].wait()
    print(count, flush=True)
    cluster.results(jobs)
"""
# The longest run before a kill.
MOST_S = 20


def start(count, ledger, env):
    command = [sys.executable, "-c", ENGINE, str(count), str(ledger)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(engine, chance):
    """Kills the engine, and perhaps the program behind it."""
    behind = pathlib.Path(f"/proc/{engine.pid}/task/{engine.pid}/children").read_text().split()
    engine.kill()
    for child in behind if chance.random() < 0.5 else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
    engine.communicate()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="?", type=int, default=12)
    parser.add_argument("kills", nargs="?", type=int, default=6)
    given = parser.parse_args()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    chance, reached, spread = random.Random(seed), 0, []
    # Jobs write into a directory of this test, which other users may not reach.
    with Local("--tick-s", "1", "--unisolated") as local:
        ledger = pathlib.Path(local.dir.name, "ledger")
        env = local.environment() | {"PYTHONPATH": str(ROOT / "clients/python/src")}
        for _ in range(given.kills):
            engine, began = start(given.tasks, ledger, env), time.monotonic()
            # It says how many tasks are submitted before each request.
            stop = min(given.tasks, chance.randint(chance.choice([0, reached]), reached + 5))
            for line in engine.stdout:
                reached = max(reached, int(line))
                if int(line) >= stop or time.monotonic() - began > MOST_S:
                    break
            time.sleep(chance.uniform(0, 0.2))
            kill(engine, chance)
            spread.append(stop)
        print(f"killed when so many tasks were submitted: {sorted(spread)}", flush=True)
        engine = start(given.tasks, ledger, env)
        _, errors = engine.communicate(timeout=1800)
        check(f"it ends, after {given.kills} kills", engine.returncode == 0, errors)
        ran = sorted(map(int, ledger.read_text().split()))
        check(f"each of {given.tasks} tasks ran once", ran == list(range(given.tasks)), ran)
        jobs = json.loads(local.run("jobs", "--all", "--json", "--limit", "100000").stdout)
        keys = sorted(job["key"] for job in jobs)
        check("no job is there twice", keys == sorted(f"graph/task-{task}" for task in range(given.tasks)), keys)
        check("and all are complete", {job["state"] for job in jobs} == {"complete"}, jobs)


if __name__ == "__main__":
    main()
