"""A program of PyTorch over three nodes: torchrun starts it on each of them. Run by tests/examples.py."""

import json
import pathlib

from local_stack import check

HERE = pathlib.Path(__file__).parent
# PyPI's torch for x86_64 brings gigabytes of CUDA. Debian's has none.
PROGRAMS = {"torchrun": "python3-torch"}
OPTIONS = ["--tick-s", "1"]
# PyTorch 1.13 cannot read its own default `--redirects 0` with Python 3.11. This value means the same, because there is no process 9.
DEBIANS_TORCH = ["--env", "PET_REDIRECTS=9:1", "--env", "PET_TEE=9:1"]


def test(local):
    def run(program, nodes="3"):
        files = ["--in", f"{HERE}/over-members", "--in", f"{HERE}/sum.py"]
        return local.run("run", "--quiet", "--nodes", nodes, "--vcpus", "2", *DEBIANS_TORCH, *files, "--", "./over-members", *program)

    said = run(["sum.py"])
    wanted = "the sum of 6 ranks is 15; they ran on the members [0, 0, 1, 1, 2, 2]\n"
    check("two processes on each of three nodes", said.returncode == 0 and said.stdout == wanted, said)
    job = json.loads(local.run("jobs", "--all", "--json").stdout)[0]
    allocs = json.loads(local.run("job", job["job_id"], "--json").stdout)["all_allocs"]
    check("on three nodes", len({alloc["node_id"] for alloc in allocs}) == 3, allocs)
    said = run(["--no_python", "sh", "-c", 'exit "$((RANK == 3))"'], nodes="2")
    check("a process that fails fails the job", said.returncode == 1 and "failed" in said.stderr, said)
