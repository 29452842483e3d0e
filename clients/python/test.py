"""The client does what its page says, and everything may be repeated. Run by tests/examples.py."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

from local_stack import PROGRAM, check, wait_until

HERE = pathlib.Path(__file__).parent
PROGRAMS = {}
PACKAGES = ["cloudpickle==3.1.3", "hatchling==1.33.0", "mypy==2.4.1"]
OPTIONS = ["--tick-s", "1"]
# A program that speaks the protocol and does what a test wants: its first lines say what.
FAKE = """#!{python} -u
import json, os, sys
for number, line in enumerate(sys.stdin):
    request = json.loads(line)
    answer = ANSWERS[min(int(open({count!r}).read()), len(ANSWERS) - 1)]
    open({count!r}, "r+").write(str(int(open({count!r}).read()) + 1))
    if isinstance(answer, int):
        sys.stderr.write("what it said")
        sys.exit(answer) if answer >= 0 else os.kill(os.getpid(), -answer)
    print(answer if isinstance(answer, str) else json.dumps({{"id": request["id"], **answer}}))
"""
# What the program answers, one after the other, and what a submission then gives.
ANSWERS = [
    ([{"error": {"kind": "again", "message": "no database"}}, {"jobs": ["01A"]}], "01A"),
    ([-9, 75, {"jobs": ["01A"]}], "01A"),
    ([{"error": {"kind": "wrong", "message": "no such field"}}], "WrongRequest no such field"),
    ([{"error": {"kind": "failed", "message": "no idea"}}], "NodekeeperError no idea"),
    ([2], "WrongRequest what it said"),
    ([1], "NodekeeperError what it said"),
    (["Welcome!"], "NodekeeperError nodekeeper batch does not answer as it should: "),
    ([{"id": None, "error": {"kind": "wrong", "message": "no request"}}], "NodekeeperError nodekeeper batch does not answer as it should: "),
]
SUBMIT = """
import sys, nodekeeper
try:
    print(nodekeeper.Cluster(program=sys.argv[1]).submit("true").id)
except nodekeeper.NodekeeperError as error:
    print(type(error).__name__, error)
"""
STUDY = """
import os, signal, sys, nodekeeper
cluster = nodekeeper.Cluster(key="study", progress=True)
jobs = cluster.map(lambda n: n + 1, [*range(8), 0]) + [cluster.submit(f"until [ -e {sys.argv[1]} ]; do sleep 0.2; done")]
print(*(job.id for job in jobs), flush=True)
print(cluster._batch._process.pid, flush=True)
print(cluster.results(jobs))
"""

# What two children print that were forked after the cluster was used, one of them with the lock of their parent held.
FORKED = """
import multiprocessing, nodekeeper
cluster = nodekeeper.Cluster()
print(cluster.submit("echo parent").result(), end="", flush=True)
def work(n):
    return cluster.submit(f"echo {n}").result(timeout=60)
with cluster._lock:
    pool = multiprocessing.get_context("fork").Pool(2)
with pool:
    print(pool.map_async(work, ["one", "two"]).get(timeout=100))
"""
# What is said of a file that is not there, and of functions that return nothing that this program can read.
NO_VALUE = """
import os, pickle, sys, nodekeeper
cluster = nodekeeper.Cluster()
class Bad:
    def __reduce__(self):
        return int, ("no number",)
def of(function):
    try:
        return cluster.map(function, [1])[0].result()
    except nodekeeper.NodekeeperError as error:
        return type(error).__name__, str(error).splitlines()[-1]
try:
    cluster.submit("cat data.csv", in_="data.csv")
except nodekeeper.WrongRequest as error:
    print(error)
print(*(of(function) for function in (lambda _: sys.exit(0), lambda _: os._exit(0), lambda _: Bad())), sep="\\n")
"""
# The ids of calls of a function, and what is said of one that fails.
PLACED = """
import nodekeeper
def half(n):
    inner = lambda: 1 / n
    return inner()
cluster = nodekeeper.Cluster(key="placed")
print(*(job.id for job in cluster.map(half, [1, 2, 4])))
try:
    cluster.map(half, [0])[0].result()
except nodekeeper.JobFailed as error:
    print(error)
"""
BYTES = """
import sys, nodekeeper
job = nodekeeper.Cluster().submit(["python3", "-c", "import os; os.write(1, bytes(range(256)))"]).wait()
print(job.logs().stdout_bytes == bytes(range(256)))
try:
    job.result()
except nodekeeper.NodekeeperError as error:
    print(error)
"""


def test(local):
    work = pathlib.Path(local.dir.name, "work")
    work.mkdir(mode=0o755)
    env = {**local.environment(), "PYTHONPATH": str(HERE / "src")}

    def python(*line, **more):
        return subprocess.run([local.python, *line], cwd=work, env={**env, **more}, capture_output=True, text=True, check=False)

    said = python("-m", "mypy", "--strict", "--ignore-missing-imports", "--cache-dir", str(work / "mypy"), HERE / "src")
    check("its types fit", said.returncode == 0, said.stdout)
    said = python("-m", "doctest", "-o", "ELLIPSIS", "-o", "NORMALIZE_WHITESPACE", HERE / "README.md")
    check("its page does what it says", said.returncode == 0, said.stdout + said.stderr)
    fields(local, python)
    errors(python, work)
    repeated(local, python, env, work)
    said = python("-c", FORKED)
    check("a cluster that was used before a fork works in the children", said.stdout == "parent\n['one\\n', 'two\\n']\n", said)
    first, moved = python("-c", PLACED), python("-c", PLACED.replace("def half", "# a comment\n\ndef half"))
    check("a line above a function makes no new job", first.stdout and first.stdout.splitlines()[0] == moved.stdout.splitlines()[0], (first, moved))
    check("an error says the line within the function", "line 1, in <lambda>" in first.stdout and "line 3, in half" in first.stdout, first)
    said = python("-c", NO_VALUE).stdout.splitlines()
    check("an input that is not there is said", said and "--in: data.csv cannot be read: No such file" in said[0], said)
    check("a function that ends the process gave no value", "JobFailed" in said[1] and "called sys.exit" in said[1] and "JobFailed" in said[2], said)
    check("a value that cannot be read is said", "NodekeeperError" in said[3] and "no number" in said[3], said)
    said = python("-c", BYTES)
    check("bytes that are no text come as they are", said.stdout.startswith("True\nwhat job ") and "stdout_bytes has it" in said.stdout, said)
    wheel(local, python, work)


def fields(local, python):
    """The typed fields are those of the program."""
    said = subprocess.run([PROGRAM, "submit", "--file", "-"], env=local.environment(), input='{"no_field": 1}', capture_output=True, text=True, check=False).stderr
    there = {re.sub("_(s|mib|gib)$", "", name) for name in said.partition("not a field of a job: ")[2].strip().split(", ")}
    typed = set(python("-c", "import nodekeeper; print(*nodekeeper.Fields.__annotations__)").stdout.replace("in_", "in").split())
    check("its fields are those of a job", typed == there - {"command", "key", "inputs", "array_limit", "max_failures", "pack"}, typed ^ there)


def errors(python, work):
    for number, (answers, expected) in enumerate(ANSWERS):
        count, fake = work / f"count-{number}", work / f"fake-{number}"
        count.write_text("0")
        text = FAKE.format(python=sys.executable, count=str(count))
        fake.write_text(text.replace("import json", f"ANSWERS = {answers!r}\nimport json", 1))
        fake.chmod(0o755)
        said = python("-c", SUBMIT, fake)
        check(f"{answers} gives {expected}", said.stdout.startswith(expected), said)
    said = python("-c", SUBMIT, "no-such-program")
    check("a program that is not there is a clear error", "WrongRequest no-such-program cannot be run" in said.stdout, said)
    said = python("-c", "import nodekeeper; nodekeeper.Cluster()", PATH="/nowhere")
    check("without the program, it says what to do", "install a wheel that carries it" in said.stderr, said)


def repeated(local, python, env, work):
    """Killed while it waits, and started again: the same jobs. The program behind it may be killed too."""

    def jobs():
        return json.loads(local.run("jobs", "--all", "--json").stdout)

    def start():
        process = subprocess.Popen([local.python, "-c", STUDY, work / "go"], cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return process, process.stdout.readline(), int(process.stdout.readline())

    before = len(jobs())
    first, ids, behind = start()
    first.kill()
    first.wait()
    wait_until("the program behind it ends with it", lambda: not pathlib.Path(f"/proc/{behind}").exists())
    again, ids_again, behind = start()
    check("the same key gives the same jobs", ids == ids_again and len(jobs()) == before + 9, (ids, ids_again))
    os.kill(behind, signal.SIGKILL)
    (work / "go").touch()
    out, err = again.communicate(timeout=120)
    check("it goes on with another program behind it", out == f"{[*range(1, 9), 1, '']}\n", (out, err))
    check("a line says how far it is", "9 of 9 jobs complete, 9 ended" in err, err)


def wheel(local, python, work):
    build = ["-c", f"import os; os.chdir({str(HERE)!r}); from hatchling.build import build_wheel; print(build_wheel({str(work)!r}))"]
    said = python(*build)
    check("no wheel without its program", said.returncode != 0 and "NODEKEEPER_PROGRAM" in said.stderr, said)
    said = python(*build, NODEKEEPER_PROGRAM=str(HERE / "README.md"))
    check("no wheel with something else", said.returncode != 0 and "is no program" in said.stderr, said)
    said = python(*build, NODEKEEPER_PROGRAM=sys.executable)
    subprocess.run([local.python, "-m", "pip", "install", "--quiet", "--target", work / "site", work / said.stdout.split()[-1]], check=True)
    check("the wheel carries the program", os.access(work / "site/bin/nodekeeper", os.X_OK), said)
