#!/usr/bin/env python3
"""Stops of jobs on a `nodekeeper local`: a program below a script needs three seconds to save its work, and always gets them. A job
that keeps a folder goes on where it was, whatever stops it and how often.

It needs the programs in target/debug. Every check prints a line. The first one that fails ends it with exit code 1.
"""

import contextlib
import json
import pathlib
import tempfile
import urllib.request

from local_podman import Podman, can_run
from local_stack import Local, check, wait_until

IMAGE = "localhost/nodekeeper-stops:1"
# A program that saves its work when it is asked to stop, and the script that people write around it. The program writes before it saves.
PROGRAM = """trap 'echo saving; sleep 3; echo goes on; echo step 42 > kept/ckpt; echo saved; exit 0' TERM USR1
echo training $(cat kept/ckpt 2>/dev/null)
while :; do sleep 0.2; done
"""
SCRIPT = "set -e\nsh program.sh 2>&1 | tee log\necho finished\n"
# Twelve steps, of which the folder has the last one.
STEPS = """at=kept/${NODEKEEPER_ARRAY_INDEX:-0}
n=$(cat $at 2>/dev/null || echo 0)
while [ $n -lt 12 ]; do sleep 0.5; n=$((n + 1)); echo ${NODEKEEPER_ARRAY_INDEX:-0} $n; echo $n > $at.new; mv $at.new $at; done
"""
# A step each half second, and a log that grows all the time.
LOGS = """n=$(cat k/step 2>/dev/null || echo 0); echo from $n
while :; do echo $n >> k/log; done &
while :; do sleep 0.5; n=$((n + 1)); echo $n > k/new; mv k/new k/step; done
"""
FILES = ["--in", "program.sh", "--in", "run.sh", "--keep", "kept"]
KINDS = {
    "process": [*FILES, "--", "bash", "run.sh"],
    "pack": [*FILES, "--count", "2", "--pack", "2", "--", "bash", "run.sh"],
    "container": [*FILES, "--image", IMAGE, "--", "sh", "run.sh"],
}


def node_of(local, job_id):
    alloc = json.loads(local.run("job", job_id, "--json").stdout)["all_allocs"][0]
    return next(n for n in json.loads(local.run("nodes", "--json").stdout) if n.get("node_id") == alloc["node_id"])


def spot_warning(local, job_id):
    path = f"_stand-in/instances/{node_of(local, job_id)['instance_id']}/interrupt?warning_ms=20000"
    event = urllib.request.Request(f"{local.environment()['AWS_ENDPOINT_URL_EC2']}/{path}", method="POST")
    urllib.request.urlopen(event, timeout=30).close()


WAYS = {
    "spot warning": (spot_warning, []),
    "drain": (lambda local, job_id: local.run("drain", str(node_of(local, job_id)["slot"]), "--by", "20s"), []),
    "cancel": (lambda local, job_id: local.run("cancel", job_id), ["--stop-signal", "USR1"]),
    "time limit": (lambda *_: None, ["--timeout", "15"]),
}
NOTICE = ["--stop-signal", "USR1", "--stop-notice", "8"]
WAYS |= {
    "drain with a notice": (WAYS["drain"][0], NOTICE),
    "time limit with a notice": (lambda *_: None, [*NOTICE, "--timeout", "20", "--retry", "timeout=again,pause=1s"]),
}


def main():
    with contextlib.ExitStack() as stack:
        kinds = dict(KINDS)
        if can_run():
            stack.enter_context(Podman()).make_image(IMAGE, "of the image")
        else:
            del kinds["container"]
        local = stack.enter_context(Local("--tick-s", "1"))
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        pathlib.Path("program.sh").write_text(PROGRAM)
        pathlib.Path("run.sh").write_text(SCRIPT)
        pathlib.Path("steps.sh").write_text(STEPS)
        # The policy of a local system allows six machines, and a job that its machine takes with it has one of its own.
        for ways in (["spot warning", "drain"], ["cancel", "time limit"]):
            saved(local, {(way, kind): options for way in ways for kind, options in kinds.items()})
        # The first process is the program, and ends with 0.
        alone = {kind: [*options[:-2], "sh", "program.sh"] for kind, options in kinds.items()}
        saved(local, {(way, kind): options for way in ("drain with a notice", "time limit with a notice") for kind, options in alone.items()})
        goes_on(local, kinds)
        grows(local)


def grows(local):
    """The checkpoint of a running job is stored although a log in its folder grows, and is there after the sudden loss of its node."""
    job = lambda: json.loads(local.run("job", "grows", "--json").stdout)
    said = local.run("submit", "--name", "grows", "--exclusive", "--keep", "k", "--keep-every", "10", "--", "sh", "-c", LOGS)
    check("a job with a log that grows is submitted", said.returncode == 0, said)
    wait_until("its checkpoint is stored", lambda: any(a.get("checkpoint") for a in job()["all_allocs"]))
    instance = node_of(local, job()["job_id"])["instance_id"]
    end = urllib.request.Request(f"{local.environment()['AWS_ENDPOINT_URL_EC2']}/_stand-in/instances/{instance}/terminate", method="POST")
    urllib.request.urlopen(end, timeout=30).close()
    after = lambda: [line for a in job()["all_allocs"][1:] for line in local.run("logs", a["alloc_id"]).stdout.splitlines()]
    wait_until("the next try begins", after)
    check("it goes on where it was", int(after()[0].removeprefix("from ")) > 0, after())
    local.run("cancel", job()["job_id"])


def goes_on(local, kinds):
    """Jobs of twelve steps are stopped by their time limit again and again, and once by EC2. Each try repeats at most a step."""
    options = ["--exclusive", "--keep", "kept", "--in", "steps.sh", "--timeout", "3", "--kill-timeout", "1", "--retry", "timeout=again*20,pause=1s"]
    job = lambda kind: json.loads(local.run("job", f"steps-{kind}", "--json").stdout)
    for kind, more in kinds.items():
        said = local.run("submit", "--name", f"steps-{kind}", *options, *more[len(FILES):more.index("--")], "--", "sh", "steps.sh")
        check(f"steps in a {kind} are submitted", said.returncode == 0, said)
    for kind in kinds:
        wait_until(f"steps in a {kind} run", lambda kind=kind: any(a["client"] == "running" for a in job(kind).get("all_allocs", [])))
        spot_warning(local, job(kind)["job_id"])
    for kind in kinds:
        wait_until(f"steps in a {kind}: complete", lambda kind=kind: job(kind)["state"] == "complete", 240)
        tries = job(kind)["all_allocs"]
        printed = [line for alloc in tries for line in local.run("logs", alloc["alloc_id"]).stdout.splitlines()]
        elements = {line.split()[0] for line in printed}
        whole = {f"{element} {n}" for element in elements for n in range(1, 13)}
        check(f"steps in a {kind}: each is made, and at most one a try and element twice",
              set(printed) == whole and len(printed) <= len(whole) + len(tries) * len(elements), (len(tries), printed))
        check(f"steps in a {kind}: it took several tries", len(tries) > 2, tries)


def saved(local, cases):
    """Runs and stops these jobs, and looks at what each has saved."""
    job = lambda case: json.loads(local.run("job", "-".join(case).replace(" ", "-"), "--json").stdout)
    alloc = lambda case: min(job(case)["all_allocs"], key=lambda alloc: alloc["alloc_id"])
    for (way, kind), options in cases.items():
        name = f"{way}-{kind}".replace(" ", "-")
        said = local.run("submit", "--name", name, "--exclusive", "--kill-timeout", "10", "--retry-lost", "0", *WAYS[way][1], *options)
        check(f"{name} is submitted", said.returncode == 0, said)
    for case in cases:
        wait_until(f"{' '.join(case)} trains", lambda case=case: "training" in local.run("logs", job(case)["job_id"]).stdout)
        WAYS[case[0]][0](local, job(case)["job_id"])
    for case in cases:
        wait_until(f"{' '.join(case)}: it ends", lambda case=case: alloc(case)["client"] in ("complete", "failed", "lost"))
        printed = local.run("logs", alloc(case)["alloc_id"]).stdout
        check(f"{' '.join(case)}: it has saved its work", "saved" in printed and "finished" not in printed, printed)
    for way, kind in (case for case in cases if case[0] == "drain" or "notice" in case[0]):
        after = lambda way=way, kind=kind: [local.run("logs", a["alloc_id"]).stdout for a in job((way, kind))["all_allocs"][1:]]
        wait_until(f"{way} {kind}: the next try begins", lambda after=after: any("training" in said for said in after()))
        check(f"{way} {kind}: it begins with what was saved", any("training step 42" in said for said in after()), after())
    for case in cases:
        to = pathlib.Path("-".join(case).replace(" ", "-"))
        got = local.run("fetch", job(case)["job_id"], ".", str(to))
        check(f"{' '.join(case)}: and a person can fetch it", (to / "kept/ckpt").exists(), got)
        # A drain costs a job no try: it would run again.
        local.run("cancel", job(case)["job_id"])


if __name__ == "__main__":
    main()
