"""The commands of Slurm give jobs of nodekeeper, and programs that speak Slurm run unchanged. Run by tests/examples.py."""

import json
import pathlib
import subprocess

from local_stack import check, wait_until

HERE = pathlib.Path(__file__).parent
PROGRAMS = {}
PACKAGES = ["parsl==2026.10.26", "pytest==9.2.0", "submitit==1.5.4"]
# Jobs run the Python of this test and write into its directory, which other users may not reach.
OPTIONS = ["--tick-s", "1", "--unisolated"]

SCRIPT = """#!/bin/bash
#SBATCH --job-name=demo --cpus-per-task=2  # a comment
#SBATCH --output=%x-%4j.out
#SBATCH --error=demo.err
#SBATCH --time=0-00:30 --mem=200M
#SBATCH -n 2

#SBATCH --job-name=late
echo "$SLURM_JOB_NAME $SLURM_JOB_ID $SLURM_CPUS_PER_TASK $*"; echo oops >&2; pwd
srun --output=task-%t.txt sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS'
srun -n3 --output=more-%t.txt sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS, $SLURM_NPROCS'
srun -n1 sh -c 'exit 3'
"""
MISTAKES = [
    (["sbatch", "--time=x", "--wrap=true"], "x is no time"),
    (["sbatch", "--array=a", "--wrap=true"], "a is no array"),
    (["sbatch", "--mem=4Q", "--wrap=true"], "4Q is no amount of memory"),
    (["sbatch", "--gres=fpga", "--wrap=true"], "fpga is no number of GPUs"),
    (["sbatch", "--nodes=2", "--wrap=true"], "a job has one node here"),
    (["sbatch", "--frob", "--wrap=true"], "unrecognized arguments: --frob"),
    (["sbatch", "--dependency=singleton", "--wrap=true"], "singleton: is not known here"),
    (["sbatch", "--dependency=afterok:1:999", "--wrap=true"], "Invalid job id specified: 999"),
    (["sbatch", "test.py"], "this does not look like a batch script"),
    (["sbatch", "missing.sh"], "missing.sh"),
    (["sacct", "-o", "Frob"], "the field Frob is not known here"),
    (["squeue", "-o", "%y"], "the field %y is not known here"),
    (["scancel"], "say which jobs"),
    (["scancel", "-s", "USR1", "1"], "a signal is not sent here"),
    (["srun", "--array=0-3", "true"], "unrecognized arguments: --array"),
]
# What names mean, of an array with the indexes 0 to 3 whose number stands for {}: the indexes, and what is said of other names.
NAMES = [
    ("{}", "0123", ""), ("{}_1", "1", ""), ("{}_[0-1]", "01", ""), ("{}_[0,2-3%2]", "023", ""), ("{}_[1-3:2]", "13", ""), ("{}.batch", "0123", ""),
    ("{}_2,{}_0", "02", ""), ("{}_[0,3],{}_2.0", "023", ""), ("{}_[2-9]", "23", "Invalid job id specified: {}_[2-9]"),
    ("{}_4", "", "Invalid job id specified: {}_4"), ("99999", "", "Invalid job id specified: 99999"),
    ("{}_1,99999,0", "1", "Invalid job id specified: 99999, 0"), ("{}_x", "", "{}_x is no number of a job"), ("{}_[]", "", "{}_[] is no number of a job"),
    ("{}_[a]", "", "a is no array"),
]
SUBMITIT = """
import submitit
executor = submitit.AutoExecutor(folder="submitit/%j")
executor.update_parameters(timeout_min=5, slurm_array_parallelism=2, mem_gb=0.3, name="sub")
print(type(executor._executor).__name__, executor.submit(pow, 2, 5).result())
jobs = executor.map_array(pow, [1, 2, 3], [2, 2, 2])
print([job.result() for job in jobs])
def bad():
    raise RuntimeError("no luck")
try:
    executor.submit(bad).result()
except submitit.core.utils.FailedJobError as error:
    print("no luck" in str(error))
"""
# submitit's own tests, which are for its executor on one machine: here with that of Slurm. Others look into that executor.
SUBMITIT_PLUGIN = """
import submitit.local.local as local
from submitit.slurm.slurm import SlurmExecutor
class OnCluster(SlurmExecutor):
    def update_parameters(self, **given):
        names = self._equivalence_dict()
        super().update_parameters(**{names.get(name, name): value for name, value in given.items()})
local.LocalExecutor = OnCluster
"""
SUBMITIT_TESTS = ["map_array", "submit_array", "local_error", "pickle_output", "first_task", "stdout", "load_submission", "nested_pickling",
                  "(weird_dir and not n0)"]
PARSL = """
import parsl, sys, os
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider
blocks = dict(nodes_per_block=1, cores_per_node=1, init_blocks=2, max_blocks=2, exclusive=False, walltime="00:10:00")
path = "export PATH=" + os.path.dirname(sys.executable) + ":$PATH"
provider = SlurmProvider(partition="any", launcher=SrunLauncher(), worker_init=path, **blocks)
parsl.load(Config(run_dir="parsl", executors=[HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=1, provider=provider)]))
@parsl.python_app
def square(number):
    return number * number
print(sum(square(number).result() for number in range(10)))
parsl.dfk().cleanup()
"""


def test(local):
    work = pathlib.Path(local.dir.name, "work")
    work.mkdir()
    env = local.environment() | {"NODEKEEPER_SLURM_STATE": f"{local.dir.name}/state"}
    # The commands come first: a real Slurm may be here too. Programs of Parsl are beside its Python.
    env["PATH"] = f"{HERE}:{local.python.parent}:{env['PATH']}"

    def run(*line, text=None):
        return subprocess.run(line, env=env, cwd=work, input=text, capture_output=True, text=True, check=False)

    commands(run, work)
    names(run)
    ends(run, local)
    for line, expected in MISTAKES:
        said = run(line[0], *[str(HERE / word) if word == "test.py" else word for word in line[1:]])
        check(f"{' '.join(line)} is a clear error", said.returncode in (1, 2) and expected in said.stderr and "Traceback" not in said.stderr, said)
    said = run(local.python, "-c", SUBMITIT)
    wanted = "SlurmExecutor 32\n[1, 4, 9]\nTrue\n"
    check("submitit runs unchanged", said.stdout == wanted, said)
    (work / "on_cluster.py").write_text(SUBMITIT_PLUGIN)
    suite = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "on_cluster", "--basetemp", work / "own", "-k", " or ".join(SUBMITIT_TESTS)]
    said = run(local.python, *suite, "--pyargs", "submitit.local.test_local", "submitit.test_pickle")
    check("submitit's own tests pass", said.returncode == 0 and "14 passed" in said.stdout, said)
    said = run(local.python, "-c", PARSL)
    check("Parsl runs unchanged", said.stdout == "285\n", said)
    wait_until("and ends its jobs", lambda: run("squeue", "-h").stdout == "")


def commands(run, work):
    (work / "job.sh").write_text(SCRIPT)
    said = run("sbatch", "--parsable", "-c", "1", "job.sh", "a", "b c")
    number = said.stdout.strip()
    check("sbatch gives a number", number == "1", said)
    said = run("sbatch", "--array=0-4:2%1", "--wrap=echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $SLURM_JOB_ID; [ $SLURM_ARRAY_TASK_ID != 2 ]")
    check("and a sentence", said.stdout == "Submitted batch job 2\n", said)
    said = run("squeue", "-h", "-o", "%i|%A|%j|%T|%u", "-t", "all", "-j", "2")
    check("squeue shows an array by its indexes", [line.split("|")[:3] for line in said.stdout.splitlines()] ==
          [["2_0", "2", "wrap"], ["2_2", "4", "wrap"], ["2_4", "6", "wrap"]], said)
    said = run("sbatch", "--wait", f"--dependency=afterany:{number}:2", "--wrap=exit 4")
    check("sbatch --wait ends as the job, after what it follows", said.returncode == 4 and said.stdout.split()[-1] == "7", said)
    check("and says how that ended", said.stderr.startswith("sbatch: job 7 is FAILED: "), said)
    said = run("sbatch", "--wait", "--output=missing/%j.out", "--wrap=true")
    check("and why its files cannot be written", said.returncode == 1 and "No such file or directory: 'missing/" in said.stderr, said)
    said = run("sacct", "-X", "-n", "-P", "-o", "jobid,jobname,state,exitcode", "-j", f"{number},2", "-j", "7")
    wanted = ["1|late|FAILED|3:0", "2_0|wrap|COMPLETED|0:0", "2_2|wrap|FAILED|1:0", "2_4|wrap|COMPLETED|0:0", "7|wrap|FAILED|4:0"]
    check("sacct shows how they ended", said.stdout.splitlines() == wanted, said)
    made = {name: (work / name).read_text() for name in ("late-0001.out", "demo.err", "slurm-2_4.out", "task-1.txt", "more-2.txt")}
    wanted = {"late-0001.out": f"late 1 1 a b c\n{work}\n", "demo.err": "oops\n", "slurm-2_4.out": "2 4 6\n", "task-1.txt": "1 of 2\n", "more-2.txt": "2 of 3, 3\n"}
    check("what they print is where Slurm writes it", made == wanted, made)
    said = run("srun", "sh", "-c", "pwd; exit 5")
    check("srun runs here what it is given, and ends as it", (said.returncode, said.stdout) == (5, f"{work}\n"), said)
    said = run("srun", "-n3", "--output=srun-%t.txt", "--export=ALL,WORD=two words", "sh", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS $WORD")
    made = [(work / f"srun-{task}.txt").read_text() for task in range(3)] if said.returncode == 0 else said
    check("srun -n starts so many tasks", made == [f"{task} of 3 two words\n" for task in range(3)], made)
    said = run("srun", "-n3", "sh", "-c", "echo $SLURM_PROCID")
    check("whose output is here", (said.returncode, sorted(said.stdout.split())) == (0, ["0", "1", "2"]), said)
    said = run("sacct", "-n", "-P", "-o", "jobname,state,alloccpus")
    check("and it is a job with a number", said.stdout.splitlines()[-1] == "sh|COMPLETED|3", said)
    said = run("sbatch", text="#!/bin/sh\necho from standard input >stdin.txt\n")
    wait_until("a script from standard input runs", lambda: (work / "stdin.txt").exists())


def names(run):
    """Each command takes the same names for the same jobs, and no command takes a wrong one for nothing."""
    number = run("sbatch", "--parsable", "--array=0-3", "--wrap=sleep 600").stdout.strip()

    def left():
        return "".join(line.removeprefix(f"{number}_") for line in run("squeue", "-h", "-o", "%i", "-j", number).stdout.split())

    for name, indexes, error in [*NAMES, (str(int(number) + 2), "2", "")]:
        name, error = name.replace("{}", number), error.replace("{}", number)
        said = run("squeue", "-h", "-o", "%i", "-j", name)
        is_right = said.stdout.split() == [f"{number}_{index}" for index in indexes] and error in said.stderr and (said.returncode != 0) == bool(error)
        check(f"squeue -j {name}", is_right and bool(said.stderr) == bool(error), said)
    said = run("sacct", "-n", "-j", "99999")
    check("sacct knows nothing of an unknown job, as that of Slurm", (said.returncode, said.stdout, said.stderr) == (0, "", ""), said)
    for name, code, rest in [(f"{number}_[0-1]", 0, "23"), (f"99999,{number}_3", 1, "2"), ("99999", 1, "2"), (number, 0, "")]:
        said = run("scancel", name)
        check(f"scancel {name}", (said.returncode, left(), "Invalid job id" in said.stderr) == (code, rest, code == 1), (said, left()))


def ends(run, local):
    """Slurm's words for how jobs end."""
    numbers = {wanted: run("sbatch", "--parsable", *options).stdout.strip() for wanted, options in {
        "TIMEOUT": ["--time=0:02", "--wrap=sleep 60"],
        "OUT_OF_MEMORY": ["--mem=30M", "--wrap=exec python3 -c 'import time; much = bytes(1) * 200_000_000; time.sleep(30)'"],
        "CANCELLED": ["--job-name=mine", "--wrap=sleep 600"],
        "RUNNING": ["--wrap=sleep 600"],
    }.items()}

    def state(wanted):
        return run("sacct", "-n", "-P", "-o", "state", "-j", numbers[wanted]).stdout.strip()

    wait_until("it runs", lambda: state("CANCELLED") == "RUNNING" and state("RUNNING") == "RUNNING")
    said = run("squeue", "-h", "-o", "%N %R", "-j", numbers["RUNNING"])
    check("squeue says where", len(set(said.stdout.split())) == 1 and said.stdout.startswith("slot-"), said)
    check("scancel ends jobs by name", run("scancel", "--name", "mine").returncode == 0)
    for wanted in numbers:
        wait_until(f"a job is {wanted}", lambda wanted=wanted: state(wanted) == wanted)
    # What nodekeeper has forgotten, sacct still knows.
    check("scancel ends jobs by number", run("scancel", numbers["RUNNING"]).returncode == 0)
    jobs = {job["job_id"]: job for job in json.loads(local.run("jobs", "--all", "--json").stdout)}
    check("each submission made its jobs once", len(jobs) == 18, len(jobs))
