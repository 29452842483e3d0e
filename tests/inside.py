#!/usr/bin/env python3
"""Looks into jobs that run, on a `nodekeeper local`: `nodekeeper exec` and `shell`.

    inside.py

It needs the programs in target/debug. Every check prints a line. The first one that fails ends it with exit code 1.
"""

import json
import os
import subprocess

from local_podman import Podman, can_run
from local_stack import PROGRAM, Local, check, wait_until

IMAGE = "localhost/nodekeeper-inside:1"


def in_containers():
    """Jobs with and without an image on one machine, by the podman of this computer."""
    with Podman() as podman:
        podman.make_image(IMAGE, "of the image")
        with Local("--tick-s", "1") as local:
            local.run("submit", "--name", "boxed", "--image", IMAGE, "--", "sleep", "600")
            plain = local.run("run", "--quiet", "--", "sh", "-c", "cat /etc/image 2>/dev/null || echo no image")
            check("a job without an image is a process of the machine", plain.stdout == "no image\n", plain)
            boxed = lambda: json.loads(local.run("job", "boxed", "--json").stdout)["all_allocs"]
            wait_until("a job with one runs", lambda: {alloc["client"] for alloc in boxed()} == {"running"})
            ran = local.run("exec", "boxed", "--", "sh", "-c", "cat /etc/image; id -u; exit 7")
            check("in its container, where a person can look",
                  ran.returncode == 7 and ran.stdout.startswith("of the image\n") and "\n0\n" not in ran.stdout, ran)
            local.run("cancel", "boxed")
            wait_until("it has ended", lambda: {alloc["client"] for alloc in boxed()} <= {"failed", "complete"})
            left = podman.run("ps", "--all", "--quiet")
            check("and nothing of it is left", left == "", left)


def main():
    as_processes()
    if can_run():
        in_containers()


def as_processes():
    with Local("--tick-s", "1") as local:
        local.run("submit", "--name", "talks", "--env", "MARK=of the job", "--", "sh", "-c", "echo $$ > own; sleep 600")
        local.run("submit", "--name", "pair", "--nodes", "2", "--", "sleep", "600")
        client = lambda name: {a["client"] for a in json.loads(local.run("job", name, "--json").stdout)["all_allocs"]}
        early = local.run("exec", "talks", "--", "true")
        check("before it runs, exec says so", early.returncode == 1 and "it" in early.stderr, early)
        for name in ("talks", "pair"):
            wait_until(f"{name} runs", lambda name=name: client(name) == {"running"})

        script = "echo $MARK; id -u; stat -c %u /proc/$(cat own); cat; exit 7"
        inside = subprocess.run([PROGRAM, "exec", "talks", "--", "sh", "-c", script], input="typed\n", text=True,
                                env=local.environment() | {"CALLERS": "own"}, capture_output=True, check=False)
        said = inside.stdout.splitlines()
        check("a command inside has the environment of the job, and its caller's input",
              said[:1] == ["of the job"] and said[-1:] == ["typed"], inside)
        check("it has the user of the job", len(said) == 4 and said[1] == said[2], inside)
        check("it ends with the exit code of the command", inside.returncode == 7, inside)
        if os.geteuid() == 0:
            check("which is not the caller's user", said[1] != "0", said)

        shell = subprocess.run([PROGRAM, "shell", "talks"], input="pwd\nexit 3\n", text=True, env=local.environment(),
                               capture_output=True, check=False)
        check("a shell begins in the directory of the job",
              shell.returncode == 3 and shell.stdout.strip().endswith("/work"), shell)

        several = local.run("exec", "pair", "--", "true")
        check("a job of two members wants to know which",
              several.returncode == 2 and "--member, one of 0, 1" in several.stderr, several)
        second = local.run("exec", "pair", "--member", "1", "--", "sh", "-c", "echo $NODEKEEPER_MEMBER")
        check("--member says it", second.stdout == "1\n", second)

        told = local.run("history", "talks").stdout
        check("the history says who looked into it, and with what", "enter_alloc" in told and "echo $MARK" in told, told)

        local.run("cancel", "talks")
        wait_until("talks has ended", lambda: client("talks") == {"failed"} or client("talks") == {"complete"})
        late = local.run("exec", "talks", "--", "true")
        check("after its end, exec says where its output is",
              late.returncode == 1 and "it has ended: `nodekeeper logs talks`" in late.stderr, late)


if __name__ == "__main__":
    main()
