#!/usr/bin/env python3
"""Packs on a `nodekeeper local`: many elements in few allocs, with machines that are killed meanwhile.

    packs.py               1,000 elements, which ends in a minute
    packs.py --elements N  the same with N

It needs the programs in target/debug. Every check prints a line. The first one that fails ends it with exit code 1.
"""

import argparse
import json
import random
import subprocess
import time

from local_stack import Local, check, wait_until


def rows(local, name):
    return [job for job in json.loads(local.run("jobs", "--all", "--json").stdout) if job.get("name") == name]


def each_once(elements):
    """Each element has its result, its output and its exit code, whatever becomes of machines and other elements."""
    size = min(1000, max(10, elements // 10))
    # Twenty elements of each pack take a while, so that a pack is there to be seen.
    slow = max(2, size // 20)
    with Local("--tick-s", "1") as local:
        script = ('n=$NODEKEEPER_ARRAY_INDEX; echo "this is $n"; [ $((n % 100)) != 7 ] || exit 3; '
                  f'[ $((n % {slow})) != 1 ] || sleep 0.2')
        local.run("submit", "--name", "many", "--array", f"0-{elements - 1}", "--pack", str(size), "--at-once", "2",
                  "--vcpus", "1", "--retry-lost", "1000", "--", "sh", "-c", script)
        ended = lambda: sum(job["state"] in ("complete", "failed") for job in rows(local, "many"))
        killed, rng = 0, random.Random(1)
        while ended() < len(rows(local, "many")):
            busy = [n for n in json.loads(local.run("nodes", "--json").stdout) if n["allocs"] and n["state"] == "ready"]
            if busy and killed < max(3, elements // 2000):
                victim = rng.choice(busy)["instance_id"]
                killed += subprocess.run(["pkill", "-KILL", "-f", f"machines/{victim}"], check=False).returncode == 0
            time.sleep(0.5)
        jobs = rows(local, "many")
        counts = [job["elements"] for job in jobs]
        check(f"{elements} elements ran in {len(jobs)} jobs, with {killed} machines killed",
              sum(c["elements"] for c in counts) == elements and killed > 0, counts)
        wrong = len(range(7, elements, 100))
        check("each of them succeeded or failed as its command did",
              sum(c["failed"] for c in counts) == wrong and sum(c["complete"] for c in counts) == elements - wrong, counts)
        first = json.loads(local.run("job", jobs[-1]["job_id"], "--json").stdout)
        check("a job says which elements failed, and with which code", "exit:3" in json.dumps(first["elements"]), first["elements"])
        for element, code in ((5, "exit:0"), (7, "exit:3"), (elements - 1, "exit:0")):
            said = local.run("logs", f"many[{element}]")
            check(f"element {element} has its own output", said.stdout == f"this is {element}\n" and code in said.stderr, said)
        failed = local.run("logs", f"many[{elements}]")
        check("one that does not exist is refused", failed.returncode == 1 and "no stored job with the number" in failed.stderr, failed)


def refusals():
    with Local("--tick-s", "1") as local:
        for options, why in (
            (["--count", "5", "--pack", "0"], "1..=1000"), (["--count", "5000", "--pack", "2000"], "1..=1000"),
            (["--count", "5", "--pack", "2", "--image", "alpine"], "--image"), (["--count", "5", "--pack", "2", "--nodes", "2"], "--nodes"),
            (["--count", "5", "--pack", "2", "--out", "x"], "--out"), (["--count", "5", "--at-once", "2"], "--pack"),
            (["--array", "0-100000"], "--pack N"), (["--count", "5", "--pack", "2", "--at-once", "1000"], "1..=256"),
        ):
            refused = local.run("submit", *options, "--", "true")
            check(f"{' '.join(options)} is refused", refused.returncode == 2 and why in refused.stderr, refused)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--elements", type=int, default=1000)
    args = parser.parse_args()
    refusals()
    each_once(args.elements)


if __name__ == "__main__":
    main()
