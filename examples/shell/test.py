"""The scripts give what the commands gave, also when they are broken off. Run by tests/examples.py."""

import json
import os
import pathlib
import signal
import subprocess
import threading

from local_stack import check, wait_until

HERE = pathlib.Path(__file__).parent
PROGRAMS = {"jq": "jq"}
OPTIONS = ["--tick-s", "1"]


def test(local):
    work = pathlib.Path(local.dir.name, "work")
    work.mkdir()

    def run(script, *line, text=""):
        command = [HERE / script, *line]
        return subprocess.run(command, env=local.environment(), cwd=work, input=text, capture_output=True, text=True, check=False)

    def jobs():
        return json.loads(local.run("jobs", "--all", "--json").stdout)

    one(run)
    array(run, jobs, local, work)
    each_line(run, jobs, local, work)


def one(run):
    said = run("one.sh", "sh", "-c", "echo a result; exit 0")
    check("one: the output comes back", (said.returncode, said.stdout) == (0, "The command said: a result\n"), said)
    said = run("one.sh", "sh", "-c", "echo no space; exit 7")
    check("one: the exit code comes back", said.returncode == 7 and "exit code 7 and said: no space" in said.stderr, said)
    said = run("one.sh", "no-such-program")
    check("one: a program that is not there is an error", said.returncode not in (0, 2), said)
    said = run("one.sh")
    check("one: without a command it says what to give", said.returncode == 2 and "no command" in said.stderr, said)


def array(run, jobs, local, work):
    said = run("array.sh", "5", "2", "sh", "-c", "echo $((NODEKEEPER_ARRAY_INDEX * NODEKEEPER_ARRAY_INDEX))")
    lines = [f"{n} complete: {n * n}" for n in range(6)]
    check("array: each result, in order", (said.returncode, said.stdout.splitlines()) == (0, lines), said)
    said = run("array.sh", "2", "3", "sh", "-c", "echo tried; [ $NODEKEEPER_ARRAY_INDEX != 1 ]")
    lines = ["0 complete: tried", "1 failed: tried", "2 complete: tried"]
    check("array: one failure is told, and the others are not lost", (said.returncode, said.stdout.splitlines()) == (1, lines), said)
    said = run("array.sh", "many", "3", "true")
    check("array: a wrong number is one clear line", said.returncode == 2 and "'many' is not a number" in said.stderr, said)

    command = [HERE / "array.sh", "3", "4", "sleep", "600"]
    process = subprocess.Popen(command, env=local.environment(), cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until("array: jobs run", lambda: sum(j["state"] == "placed" for j in jobs()) == 4)
    os.killpg(process.pid, signal.SIGINT)  # As Ctrl-C in a terminal does.
    said = process.communicate(timeout=60)[1]
    check("array: an interrupt cancels all jobs", process.returncode == 130 and not [j for j in jobs() if j["state"] in ("placed", "queued")], said)


def each_line(run, jobs, local, work):
    words = ["alpha", "beta gamma", "$(touch /tmp/never) '\"", "delta"]
    count = 'printf %s "$1" | wc -c'
    before = len(jobs())
    said = run("map.sh", "lengths", "sh", "-c", count, "count", text="\n".join(words))
    results = [int((work / f"lengths/{n}.out").read_text()) for n in range(1, 5)]
    check("map: each line has its result", (said.returncode, results) == (0, [len(w) for w in words]), said)
    check("map: a line is a job", len(jobs()) == before + 4, len(jobs()))
    said = run("map.sh", "lengths", "sh", "-c", count, "count", text="\n".join(words))
    check("map: the same again is no new job", said.returncode == 0 and len(jobs()) == before + 4, said)
    said = run("map.sh", "lengths", "sh", "-c", count, "count", text="other")
    check("map: a directory of other work is refused", said.returncode == 2 and "another directory" in said.stderr, said)
    said = run("map.sh", "empty", "true")
    check("map: no line is a clear error", said.returncode == 2 and "no line" in said.stderr, said)
    said = run("map.sh", "failing", "sh", "-c", 'echo "$1"; [ "$1" = good ]', "try", text="good\nbad\n")
    check("map: a failed line is named", said.returncode == 1 and "line 2: failed" in said.stderr, said)
    check("map: the output of the failed line is there", (work / "failing/2.out").read_text() == "bad\n")

    # Broken off while its jobs run, and started again.
    before, line = len(jobs()), ["broken", "sh", "-c", f'until [ -e {work}/go ]; do sleep 0.1; done; echo "done $1"', "late"]
    process = subprocess.Popen([HERE / "map.sh", *line], env=local.environment(), cwd=work, stdin=subprocess.PIPE, text=True, start_new_session=True)
    process.stdin.write("x\ny\n")
    process.stdin.close()
    wait_until("map: jobs run", lambda: sum(j["state"] == "placed" for j in jobs()) == 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    # While the jobs run, the same file is not new. So they end only after it was given again.
    threading.Timer(5, (work / "go").touch).start()
    said = run("map.sh", *line, text="x\ny\n")
    results = [(work / f"broken/{n}.out").read_text() for n in (1, 2)]
    check("map: broken off and started again, it ends the same work", (said.returncode, results) == (0, ["done x\n", "done y\n"]), said)
    check("map: no line ran twice", len(jobs()) == before + 2, (before, len(jobs())))
    check("map: nothing of a line was run here", not pathlib.Path("/tmp/never").exists())
