"""Workflows of Snakemake run on nodes without a shared disk, and no job runs twice. Run by tests/examples.py."""

import json
import pathlib
import random
import subprocess
import time

from local_stack import check

HERE = pathlib.Path(__file__).parent
PROGRAMS = {"git": "git"}
PACKAGES = ["pytest==9.2.0", "snakemake==9.27.1"]
# Jobs run the Python of this test, which other users may not reach.
OPTIONS = ["--tick-s", "1", "--unisolated"]
IS_LONG = True

# Each file is made from the one before it. Every run of a job leaves a line in the ledger.
GRAPH = """
rule all:
    input: "all.txt"
rule first:
    output: "a/{n}"
    shell: "echo a{wildcards.n} >>LEDGER; sleep 0.2; echo {wildcards.n} >{output}"
rule second:
    input: "a/{n}"
    output: "b/{n}"
    shell: "echo b{wildcards.n} >>LEDGER; cat {input} {input} >{output}"
rule last:
    input: expand("b/{n}", n=range(COUNT)), expand("data/{n}", n=range(100))
    output: "all.txt"
    shell: "echo last >>LEDGER; cat {input} >{output}"
"""
KINDS = """
configfile: "config/config.yaml"
rule all:
    input: "out/total", "out/pages", "made/flag", "retried"
rule words:
    input: "data/words.txt"
    output: temp("out/words")
    log: "logs/words.log"
    benchmark: "logs/words.tsv"
    resources: mem_mb=50, disk_mb=100, runtime=5, nodekeeper='{"priority": 700}'
    shell: "echo {config[greeting]} >{log}; sort {input} >{output}"
rule count:
    input: "out/words"
    output: "out/total"
    threads: 2
    script: "scripts/count.py"
rule pages:
    input: "out/words"
    output: directory("out/pages")
    shell: "mkdir {output}; for word in $(cat {input}); do echo $word >{output}/$word; done"
rule flag:
    output: touch("made/flag")
rule retried:
    output: "retried"
    retries: 1
    resources: again=lambda wildcards, attempt: attempt
    shell: "test {resources.again} = 2; echo {resources.again} >{output}"
rule failing:
    output: "never"
    log: "logs/failing.log"
    shell: "echo the reason >{log}; echo on the terminal >&2; exit 3"
rule outside:
    output: "../outside"
    shell: "touch {output}"
rule large:
    output: "large"
    resources: mem_mb=99_000_000
    shell: "touch {output}"
"""
COUNT = """
words = open(snakemake.input[0]).read().split()
open(snakemake.output[0], "w").write(f"{len(words)} words, {snakemake.threads} threads, {snakemake.config['greeting']}")
"""


def test(local):
    # Nothing is shared, although all nodes are this machine: a job has a directory of its own, and only what it is sent.
    env = local.environment() | {"PYTHONPATH": f"{HERE}:{HERE.parent / 'python/src'}"}

    def line(*words):
        return [local.python, "-m", "snakemake", "--executor", "nodekeeper", "--nodekeeper-python", local.python, "--jobs", "50", *words]

    def snakemake(work, *words):
        return subprocess.run(line(*words), cwd=work, env=env, capture_output=True, text=True, check=False)

    suite = [local.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", f"{local.dir.name}/suite", HERE / "tests.py"]
    said = subprocess.run(suite, env=env, capture_output=True, text=True, check=False)
    check("the test suite of the interface passes", said.returncode == 0 and "2 passed" in said.stdout, said.stdout[-3000:])
    kinds(local, snakemake)
    killed(local, line, env)


def kinds(local, snakemake):
    work = pathlib.Path(local.dir.name, "kinds")
    for name, text in {"Snakefile": KINDS, "scripts/count.py": COUNT, "config/config.yaml": "greeting: hello\n", "data/words.txt": "to be or not\n"}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    said = snakemake(work)
    check("scripts, configurations, folders, retries", said.returncode == 0, said.stderr[-3000:])
    made = {name: (work / name).read_text().strip() for name in ("out/total", "out/pages/be", "retried", "logs/words.log")}
    wanted = {"out/total": "4 words, 2 threads, hello", "out/pages/be": "be", "retried": "2", "logs/words.log": "hello"}
    check("what the jobs made is here", made == wanted and (work / "made/flag").exists() and (work / "logs/words.tsv").exists(), made)
    check("what is temporary is gone", not (work / "out/words").exists())
    jobs = {job["name"]: job for job in json.loads(local.run("jobs", "--all", "--json").stdout)}
    needs = [jobs["words"][name] for name in ("memory_mib", "scratch_gib", "priority")] + [jobs["count"]["vcpus"]]
    check("a job gets what its rule asks for", needs == [300, 1, 700, 2], needs)
    said = snakemake(work, "never")
    check("a failure says why, and its log is here", "non-zero exit status 3" in said.stderr and "on the terminal" in said.stderr
          and (work / "logs/failing.log").read_text() == "the reason\n", said.stderr)
    said = snakemake(work, "../outside")
    check("a file outside of the working directory is a clear error", "../outside is outside of the working directory" in said.stderr, said.stderr)
    said = snakemake(work, "large")
    check("a job that fits no size is a clear error", said.returncode == 1 and "large" in said.stderr and "nodekeeper" in said.stderr, said.stderr)
    said = snakemake(work, "--nodekeeper-fields", "{spot}", "large")
    check("wrong fields are a clear error", "are no JSON object: {spot}" in said.stderr, said.stderr)


def killed(local, line, env):
    """The engine is killed again and again. The last job has more inputs than a job of nodekeeper may have."""
    count, chance = 16, random.Random(61)
    work, ledger = pathlib.Path(local.dir.name, "graph"), pathlib.Path(local.dir.name, "ledger")
    work.mkdir()
    (work / "data").mkdir()
    for number in range(100):
        (work / "data" / str(number)).write_text(f"data{number}\n")
    (work / "Snakefile").write_text(GRAPH.replace("LEDGER", str(ledger)).replace("COUNT", str(count)))
    notes, errors, kills, deadline = work / ".snakemake/incomplete", work / "stderr", 0, time.monotonic() + 1500
    while time.monotonic() < deadline:
        with errors.open("w") as stderr:
            process = subprocess.Popen(line("--nolock", "--rerun-incomplete"), cwd=work, env=env, stdout=stderr, stderr=stderr)
        # Killed while it submits, when it notes what it is going to do, or while jobs run, when they write into the ledger.
        watches_notes = chance.random() < 0.5
        seen, changes = None, chance.randint(2, 5)
        while process.poll() is None and changes:
            time.sleep(0.05)
            now = sorted(notes.rglob("*")) if watches_notes else ledger.exists() and ledger.stat().st_size
            seen, changes = now, changes - (now != seen)
        time.sleep(chance.uniform(0, 0.5))
        if process.poll() is not None:
            break
        process.kill()
        process.wait()
        kills += 1
    check(f"the workflow ends, after {kills} kills of the engine", kills and process.returncode == 0, errors.read_text()[-3000:])
    ran = sorted(ledger.read_text().split())
    check("each of its jobs ran once", ran == sorted([f"{rule}{n}" for rule in "ab" for n in range(count)] + ["last"]), ran)
    made = [str(n) for n in range(count) for _ in "ab"] + [f"data{n}" for n in range(100)]
    check("with what came before", (work / "all.txt").read_text().split() == made)
