"""An MPI program over three nodes: mpirun starts it by ssh, with a key that is a secret. Run by tests/examples.py."""

import json
import pathlib
import subprocess

from local_stack import check

HERE = pathlib.Path(__file__).parent
PROGRAMS = {"mpirun": "openmpi-bin", "mpicc": "libopenmpi-dev", "ssh": "openssh-client", "/usr/sbin/sshd": "openssh-server"}
# Each member needs a user of its own.
NEEDS_ROOT = True
OPTIONS = ["--tick-s", "1"]


def test(local):
    work = pathlib.Path(local.dir.name, "mpi")
    work.mkdir()
    subprocess.run(["mpicc", "-o", work / "sum", HERE / "sum.c"], check=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", work / "key"], check=True)
    local.secrets({"/mpi/key": (work / "key").read_text()})

    def run(*line, nodes="3"):
        files = ["--in", f"{HERE}/over-members", "--in", f"{work}/sum"]
        rights = ["--role", "local-job", "--secret-file", "MPI_KEY=/mpi/key"]
        return local.run("run", "--quiet", "--nodes", nodes, "--vcpus", "2", *rights, *files, "--env", "MPIRUN=mpirun --mca btl tcp,self",
                         "--", *line)

    said = run("./over-members", "./sum")
    check("two processes on each of three nodes", said.stdout == "the sum of 6 ranks is 15; ssh started 6 of them\n", said)
    job = json.loads(local.run("jobs", "--all", "--json").stdout)[0]
    allocs = json.loads(local.run("job", job["job_id"], "--json").stdout)["all_allocs"]
    check("on three nodes", len({alloc["node_id"] for alloc in allocs}) == 3, allocs)
    said = run("./over-members", "sh", "-c", 'exit "$((3 * OMPI_COMM_WORLD_RANK))"', nodes="2")
    check("the exit code of mpirun comes back", said.returncode not in (0, 1), said)
