#!/usr/bin/env python3
"""Thirty jobs as people write them, on one `nodekeeper local`: each with its result compared.

    jobs.py            all of them
    jobs.py NAME…      only these

Every check prints a line. The first one that fails ends it with exit code 1.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

from local_stack import PROGRAM, ROOT, Local, check, wait_until

# What a size with GPUs adds to the policy of a local system.
GPU_SIZE = """
[[size]]
name = "gpu"
instance_type = "g5.12xlarge"
vcpus = 48
memory_mib = 196608
scratch_gib = 100
gpus = 4
gpu_type = "A10G"
gpu_memory_gib = 24
price_per_hour = 5.672
labels = ["nvlink"]
"""
REDUCE = """
import os, socket, time
rank, hosts = int(os.environ['NODEKEEPER_MEMBER']), os.environ['NODEKEEPER_HOSTS'].split(',')
port = 21000 + sum(os.environ['NODEKEEPER_JOB_ID'].encode()) % 9000
if rank == 0:
    with socket.create_server((hosts[0], port)) as server:
        total = 0
        for _ in hosts[1:]:
            peer, _ = server.accept()
            total += int(peer.recv(9))
    print('sum', total, 'of', len(hosts), flush=True)
else:
    for _ in range(200):
        try:
            with socket.create_connection((hosts[0], port), 5) as peer:
                peer.sendall(str(rank * 10).encode())
            break
        except OSError:
            time.sleep(0.1)
"""
GROWS = "import os\nblock = bytearray(90 << 20)\nfor at in range(0, len(block), 4096): block[at] = 1\nimport time; time.sleep(2); print('enough')\n"
CHECKPOINTS = """
import signal, sys, time
def save(*_):
    open('saved/checkpoint', 'w').write('step 7')
    print('saved', flush=True)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(60)
"""


class Person:
    """Somebody who submits jobs from a folder."""

    def __init__(self, local, folder):
        self.local, self.folder = local, pathlib.Path(folder)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, name):
        return (self.folder / name).read_text()

    def do(self, *line, **options):
        return subprocess.run([PROGRAM, *line], env=self.local.environment(), cwd=self.folder, capture_output=True, text=True,
                              check=False, timeout=240, **options)

    def out(self, *line, code=0, **options):
        """What a job prints that ends with this code."""
        ran = self.do("run", "--quiet", *line, **options)
        check(f"it ends with {code}", ran.returncode == code, (line, ran.returncode, ran.stdout[-500:], ran.stderr[-2000:]))
        return ran.stdout

    def job(self, name):
        return json.loads(self.do("job", name, "--json").stdout)

    def submit(self, *line):
        ran = self.do("submit", *line)
        check("it is taken", ran.returncode == 0, (line, ran.stderr))


def is_(seen, wanted):
    check(f"as wanted: {wanted!r}"[:100], seen == wanted, seen)


def python_with_arguments(me):
    me.write("hello.py", "import sys; print('hello', sys.argv[1])\n")
    is_(me.out("--in", "hello.py", "--", "python3", "hello.py", "world"), "hello world\n")


def a_pipeline_of_a_shell(me):
    is_(me.out("--", "sh", "-c", "seq 100 | grep 7 | wc -l"), "19\n")


def standard_input(me):
    is_(me.out("--stdin", "--", "sort", input="b\na\n"), "a\nb\n")


def an_exit_code(me):
    me.out("--", "sh", "-c", "exit 42", code=42)


def both_streams(me):
    ran = me.do("run", "--quiet", "--", "sh", "-c", "echo out; echo err >&2")
    is_((ran.stdout, ran.stderr), ("out\n", "err\n"))


def a_megabyte_of_output(me):
    is_(me.out("--", "sh", "-c", "seq 150000"), "".join(f"{n}\n" for n in range(1, 150001)))


def a_project_folder(me):
    me.write("project/pkg/__init__.py", "WORD = 'package'\n")
    me.write("project/main.py", "import pkg; print(pkg.WORD)\n")
    is_(me.out("--workdir", "project", "--", "python3", "main.py"), "package\n")


def a_result_file(me):
    me.submit("--name", "result", "--wait", "--out", "r.json", "--", "sh", "-c", "echo '{\"x\": 1}' > r.json")
    me.do("fetch", "result")
    is_(json.loads(me.read("r.json")), {"x": 1})


def an_array_over_files(me):
    for n in range(4):
        me.write(f"parts/{n}", f"{n * n}\n")
    me.submit("--name", "squares", "--array", "0-3", "--wait", "--in", "parts", "--out", "root", "--",
              "sh", "-c", "python3 -c 'import sys; print(int(float(sys.stdin.read()) ** 0.5))' < parts/$NODEKEEPER_ARRAY_INDEX > root")
    me.do("fetch", "squares", ".", "roots")
    is_([me.read(f"roots/{n}/root") for n in range(4)], ["0\n", "1\n", "2\n", "3\n"])
    is_(me.out("--in", "job:squares/root=roots", "--", "sh", "-c", "cat roots/0 roots/1 roots/2 roots/3"), "0\n1\n2\n3\n")
    is_(me.do("logs", "squares[2]").returncode, 0)


def a_graph_of_twelve_with_files_between(me):
    me.submit("--name", "split", "--out", "parts", "--", "sh", "-c", "mkdir parts; for n in 0 1 2 3 4 5 6 7 8 9; do echo $n > parts/$n; done")
    takes = []
    for n in range(10):
        me.submit("--name", f"map-{n}", "--in", "job:split/parts", "--out", "r", "--", "sh", "-c", f"echo $(( $(cat parts/{n}) * 2 )) > r")
        takes += ["--in", f"job:map-{n}/r=r{n}"]
    is_(me.out(*takes, "--", "sh", "-c", "cat r? | awk '{ sum += $1 } END { print sum }'"), "90\n")


def a_secret(me):
    line = ["--role", "local-job", "--secret", "PASSWORD=/db/password", "--", "sh", "-c", "echo ${#PASSWORD}"]
    is_(me.out(*line), "13\n")


def a_secret_file(me):
    line = ["--role", "local-job", "--secret-file", "KEY=/db/password", "--", "sh", "-c", "wc -c < $KEY; stat -c %a $KEY"]
    is_(me.out(*line), "13\n400\n")


def a_place_in_s3(me):
    line = ["--role", "local-job", "--out", "f=s3://local/own/f", "--", "sh", "-c", "echo own > f"]
    me.out(*line)
    is_(me.out("--role", "local-job", "--in", "s3://local/own/f=g", "--", "cat", "g"), "own\n")


def variables(me):
    me.write("vars", "# ours\nA=1\nB=two words\n")
    is_(me.out("--env-file", "vars", "--env", "A=3", "--", "sh", "-c", "echo $A $B"), "3 two words\n")


def four_gpus_of_one_machine(me):
    me.submit("--name", "train", "--count", "4", "--gpus", "1", "--gpu-type", "A10G", "--wait", "--", "sh", "-c",
              "echo gpu=$CUDA_VISIBLE_DEVICES; sleep 4")
    jobs = [me.job(job["job_id"]) for job in json.loads(me.do("jobs", "--all", "--name", "train", "--json").stdout)]
    allocs = [alloc for job in jobs for alloc in job["all_allocs"]]
    gpus = {re.search("gpu=(\\S+)", alloc["log_tail"])[1] for alloc in allocs}
    is_((len(allocs), len(gpus), len({alloc["node_id"] for alloc in allocs})), (4, 4, 1))


def a_machine_with_a_label(me):
    is_(me.out("--require", "nvlink", "--", "echo", "fast"), "fast\n")


def three_machines_that_reach_each_other(me):
    me.write("reduce.py", REDUCE)
    ran = me.do("run", "--nodes", "3", "--in", "reduce.py", "--", "python3", "reduce.py")
    check("the first has heard of the others", ran.returncode == 0 and "sum 30 of 3\n" in ran.stdout, (ran.stdout, ran.stderr))


def out_of_memory_and_then_more(me):
    me.write("grows.py", GROWS)
    is_(me.out("--memory", "64", "--retry", "memory=again*2,memory*2,max-memory=256M", "--in", "grows.py", "--", "python3", "grows.py"), "enough\n")


def again_after_an_exit_code(me):
    script = "n=$(cat $NODEKEEPER_CACHE_TRIES/n 2>/dev/null || echo 0); echo $((n + 1)) > $NODEKEEPER_CACHE_TRIES/n; [ $n = 0 ] && exit 75; echo second"
    me.submit("--name", "again", "--wait", "--cache", "tries", "--retry", "exit:75=again*3,pause=1s", "--", "sh", "-c", script)
    job = me.job("again")
    is_((job["state"], job["failed_count"] >= 1), ("complete", True))


def a_checkpoint_before_its_time_is_over(me):
    me.write("long.py", CHECKPOINTS)
    me.do("submit", "--name", "long", "--wait", "--timeout", "6", "--stop-signal", "USR1", "--stop-notice", "3", "--in", "long.py",
          "--keep", "saved", "--", "python3", "long.py")
    job = me.job("long")
    is_(job["cause"]["kind"], "over_time")
    me.do("fetch", "long")
    is_(me.read("saved/checkpoint"), "step 7")


def a_cache_that_stays(me):
    for text in ("one\n", "one\none\n"):
        is_(me.out("--cache", "notes", "--", "sh", "-c", "echo one >> $NODEKEEPER_CACHE_NOTES/f; cat $NODEKEEPER_CACHE_NOTES/f")[:4], text[:4])


def what_runs_too_long(me):
    me.out("--timeout", "1", "--", "sleep", "60", code=124)


def what_writes_too_much(me):
    ran = me.do("run", "--scratch", "1", "--", "sh", "-c", "fallocate -l 1200M big; sleep 60")
    check("it is stopped, and says why", ran.returncode == 137 and "scratch" in ran.stderr, ran.stderr)


def different_jobs_of_a_file(me):
    lines = [{"name": f"line-{n}", "command": ["sh", "-c", f"exit {n}"]} for n in range(3)]
    me.write("jobs.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    me.do("submit", "--file", "jobs.jsonl", "--wait")
    is_([me.job(f"line-{n}").get("exit_code") for n in range(3)], [0, 1, 2])


def after_a_failure(me):
    me.submit("--name", "breaks", "--", "false")
    is_(me.out("--after-any", "breaks", "--", "echo", "cleaned"), "cleaned\n")


def nothing_after_a_failure(me):
    me.submit("--name", "broke", "--", "sh", "-c", "sleep 2; false")
    ran = me.do("run", "--after", "broke", "--", "true")
    check("it never runs", ran.returncode == 125 and "rejected" in ran.stderr, ran)


def a_look_inside(me):
    me.submit("--name", "runs", "--env", "MARK=mine", "--", "sh", "-c", "echo data > f; sleep 600")
    wait_until("it runs", lambda: {alloc["client"] for alloc in me.job("runs")["all_allocs"]} == {"running"})
    ran = wait_until("it can be entered", lambda: (r := me.do("exec", "runs", "--", "sh", "-c", "cat f; echo $MARK")).returncode == 0 and r)
    is_(ran.stdout, "data\nmine\n")


def cancelled(me):
    me.do("cancel", "runs")
    wait_until("it has ended", lambda: me.job("runs")["state"] == "cancelled")


def what_it_used(me):
    me.submit("--name", "spins", "--wait", "--", "python3", "-c", "import time\nwhile time.process_time() < 2: pass")
    usage = me.job("spins")["all_allocs"][0]["usage"]
    check("two seconds of CPU time", 1000 < usage["cpu_ms"] < 4000, usage)


JOBS = [python_with_arguments, a_pipeline_of_a_shell, standard_input, an_exit_code, both_streams, a_megabyte_of_output, a_project_folder,
        a_result_file, an_array_over_files, a_graph_of_twelve_with_files_between, a_secret, a_secret_file, a_place_in_s3, variables,
        four_gpus_of_one_machine, a_machine_with_a_label, three_machines_that_reach_each_other, out_of_memory_and_then_more,
        again_after_an_exit_code, a_checkpoint_before_its_time_is_over, a_cache_that_stays, what_runs_too_long, what_writes_too_much,
        different_jobs_of_a_file, after_a_failure, nothing_after_a_failure, a_look_inside, cancelled, what_it_used]


def main():
    names = sys.argv[1:]
    policy = (ROOT / "local/system/policy.toml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "policy.toml").write_text(policy + GPU_SIZE)
        with Local("--tick-s", "1", "--policy", f"{folder}/policy.toml") as local:
            local.secrets({"/db/password": "correct horse"})
            for job in JOBS:
                if not names or job.__name__ in names:
                    print(f"-- {job.__name__.replace('_', ' ')}", flush=True)
                    job(Person(local, folder))
    print(f"{len(JOBS)} jobs as people write them.")


if __name__ == "__main__":
    main()
