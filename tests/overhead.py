#!/usr/bin/env python3
"""What nodekeeper itself adds to a job, beside other programs in the same run: times, ratios, and how they grow.

    overhead.py                 all parts, with small numbers: some ten minutes
    overhead.py starts 500      from submit to start on a node that is up, and from an end to the next start, with the default times
    overhead.py elements 10000  what an element of a pack costs beside its command, which does nothing
    overhead.py jobs 1000       the same of a job of its own
    overhead.py files 10000     jobs with a small file each: submitted, submitted again, waited for and fetched by one process
    overhead.py cpu 200         the CPU time of the agents and of what they start, for a job that does nothing and for one that runs
    overhead.py seats 20000     what a list costs with so many jobs that wait and so many that ended, and with a tenth of them
    overhead.py cold 9          what the start of a function costs until its first answer, beside one that reads the machine's list of
                                authorities: instructions, or CPU time without Debian's `valgrind`

Beside nodekeeper run GNU parallel, HyperQueue (`pip install hyperqueue`) and Slurm (Debian's `slurmctld slurmd slurm-client munge`, as
root), as far as they are there, each with two commands at a time. Machines are noisy: compare the ratios of one run, and not the
times of two. It uses target/release if `cargo build --release` was made, and otherwise target/debug,
and says which. `--floor` ends with exit code 1 if a ratio or an exponent is far above what it was when this was written.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import cold_start
import local_slurm
import local_stack
from local_stack import ROOT, Local

RELEASE = ROOT / "target/release/nodekeeper"
# The highest ratio to GNU parallel, and the highest exponent of growth, which `--floor` accepts.
MOST_OF_AN_ELEMENT = 8.0
MOST_GROWTH = 0.9
# The most seconds of a list or a view, whatever is stored.
MOST_OF_A_LOOK = 1.0
# A function that reads the machine's list of authorities needs at least twice as much.
MOST_OF_A_COLD_START = 0.5
# The most CPU time of an agent for a job that runs, in ms a second.
MOST_OF_A_RUNNING_JOB = 4.0
POLICY = """
[nodes]
max = {nodes}
min = {nodes}
[[size]]
name = "small"
instance_type = "m7a.large"
vcpus = {vcpus}
memory_mib = 8192
price_per_hour = 0.1
[output]
s3 = "s3://local"
[launch]
template = "lt-0123456789abcdef0"
"""
found = []


@contextlib.contextmanager
def fleet(nodes, tick_s, vcpus=2):
    """A local system with so many nodes, which are up."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as policy:
        policy.write(POLICY.format(nodes=nodes, vcpus=vcpus))
        policy.flush()
        with Local("--tick-s", str(tick_s), "--policy", policy.name) as local:
            if nodes:
                local.until("the nodes are up", "api/nodes", lambda seen: sum(n["state"] == "ready" for n in seen["rows"]) == nodes)
            yield local


def line(what, value, unit, note=""):
    print(f"{what:<58}{value:>10.3f} {unit:<4} {note}", flush=True)


def below(what, value, most):
    if value > most:
        found.append(f"{what}: {value:.2f}, at most {most}")


def quantiles(what, seconds):
    seconds.sort()
    for q in (0.5, 0.9, 0.99):
        line(f"{what}, {q:.0%} within", seconds[min(len(seconds) - 1, int(q * len(seconds)))], "s", f"of {len(seconds)}")


def printed_at(local, job):
    """When the command of a job ran, by its own word: it does nothing else."""
    row = json.loads(local.run("job", job, "--json").stdout)
    return float(row["all_allocs"][0]["log_tail"]), row["submitted_at"] / 1000


def starts(count):
    """On a node that is up: jobs that come some seconds after the end of the one before, and a queue of jobs."""
    says = ["--", "date", "+%s.%N"]
    with fleet(1, 60) as local:
        started = []
        for n in range(count):
            time.sleep(0.1 + n % 7)
            local.run("submit", "--wait", "--name", f"alone-{n}", *says)
            began, submitted = printed_at(local, f"alone-{n}")
            started.append(began - submitted)
        quantiles("submit to start", started)
        local.run("submit", "--wait", "--name", "next", "--count", str(count), "--exclusive", *says)
        rows = json.loads(local.run("jobs", "--all", "--name", "next", "--json", "--limit", str(count)).stdout)
        began = sorted(printed_at(local, row["job_id"])[0] for row in rows)
        quantiles("end to next start", [after - before for before, after in zip(began, began[1:], strict=False)])


def each_ms(count, *command, env=None):
    began = time.monotonic()
    subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return (time.monotonic() - began) * 1000 / count


def hyperqueue_ms(count, command=lambda n: ["true"], cores=2):
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig
    with LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=cores))
        client, job = cluster.client(), Job()
        for n in range(count):
            job.program(command(n), stdout=None, stderr=None)
        began = time.monotonic()
        client.wait_for_jobs([client.submit(job)])
        return (time.monotonic() - began) * 1000 / count


def slurm_ms(count):
    """As Debian has it, Slurm looks for jobs to start every second or third second. A hundred jobs show that as well."""
    with local_slurm.Slurm() as slurm:
        count = min(count, 100)
        line = ["sbatch", "--wait", "--quiet", "--output=/dev/null", f"--array=1-{count}", "--wrap", "true"]
        return each_ms(count, *line, env=slurm.env)


def beside(count):
    """What other programs need for a command that does nothing, in ms, if they run so many."""
    times = {}
    if shutil.which("parallel"):
        times["GNU parallel"] = each_ms(count, "parallel", "-j2", "true", "#", ":::", *map(str, range(count)))
    try:
        times["HyperQueue"] = hyperqueue_ms(count)
    except ImportError as missing:
        print(f"left out: HyperQueue ({missing})", flush=True)
    if absent := local_slurm.missing():
        print(f"left out: Slurm ({', '.join(absent)})", flush=True)
    else:
        times["Slurm"] = slurm_ms(count)
    for what, ms in times.items():
        line(f"{what}: `true`", ms, "ms", "each")
    return times


def compared(what, ms, others):
    line(what, ms, "ms", "each; " + ", ".join(f"{ms / other:.3g} × {name}" for name, other in others.items()))


def elements(count):
    others = beside(count)
    with fleet(1, 1) as local:
        command = [local_stack.PROGRAM, "submit", "--wait", "--count", str(count), "--pack", "1000", "--at-once", "2", "--vcpus", "2", "--", "true"]
        ms = each_ms(count, *command, env=local.environment())
    compared(f"packs: {count} elements", ms, others)
    if "GNU parallel" in others:
        below("an element, as a multiple of GNU parallel", ms / others["GNU parallel"], MOST_OF_AN_ELEMENT)


def jobs(count):
    others = beside(count)
    with fleet(2, 1) as local:
        ms = each_ms(count, local_stack.PROGRAM, "submit", "--wait", "--count", str(count), "--", "true", env=local.environment())
    compared(f"jobs: {count}", ms, others)


@contextlib.contextmanager
def counted(urls):
    """The same places behind ports that count what is asked there."""
    counts, loop = collections.Counter(), asyncio.new_event_loop()

    async def pump(reader, writer, counts_too):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                counts.update(found.decode() for found in re.findall(rb"(?i)(?<=x-amz-target: dynamodb_20120810\.)\w+|^(?:GET|PUT|HEAD)(?= )", data) if counts_too)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def listen(url):
        there = urllib.parse.urlparse(url)

        async def relay(reader, writer):
            back, forth = await asyncio.open_connection(there.hostname, there.port)
            await asyncio.gather(pump(reader, forth, True), pump(back, writer, False))

        server = await asyncio.start_server(relay, "127.0.0.1")
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield {name: asyncio.run_coroutine_threadsafe(listen(url), loop).result() for name, url in urls.items()}, counts
    loop.call_soon_threadsafe(loop.stop)


def files(count):
    """What a program does that has many jobs. Each job has a file, makes one, and is fetched as soon as it has ended."""
    nodes, vcpus = 2, 8
    with fleet(nodes, 1, vcpus) as local, tempfile.TemporaryDirectory() as work:
        for n in range(count):
            pathlib.Path(work, f"in-{n}").write_text(f"number {n}\n")
        env = local.environment()
        places = {name: env[name] for name in ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_S3")}
        with counted(places) as (urls, counts):
            batch = subprocess.Popen([local_stack.PROGRAM, "batch"], cwd=work, env=env | urls, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)

            def ask(**request):
                batch.stdin.write(json.dumps(request) + "\n")
                batch.stdin.flush()

            def done(what):
                nonlocal began
                line(f"files: {what}", time.monotonic() - began, "s", ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
                counts.clear()
                began = time.monotonic()

            first = began = time.monotonic()
            given = [{"key": f"f-{n}", "command": ["cp", f"in-{n}", "out"], "in": f"in-{n}", "outputs": ["out"]} for n in range(count)]
            for what in ("submitted", "submitted again"):
                ask(id=0, submit=given)
                jobs = json.loads(batch.stdout.readline())["jobs"]
                done(f"{count} jobs {what}")
            ask(id=1, wait=jobs)
            fetched, ended, asked = 0, [], set()
            while fetched < count:
                answer = json.loads(batch.stdout.readline())
                assert "error" not in answer, answer
                if "ended" in answer:
                    ended.append(answer["ended"]["job_id"])
                fetched += answer["id"] in asked
                # Few at a time: who only writes while the other side only writes, waits for ever.
                while len(asked) < min(len(ended), fetched + 32):
                    job = ended[len(asked)]
                    asked.add(job)
                    ask(id=job, fetch={"job": job, "dir": job})
            done("waited for and fetched")
            got = [pathlib.Path(work, job, "out").read_text() for job in jobs]
            assert got == [f"number {n}\n" for n in range(count)]
            ms = (time.monotonic() - first) * 1000 / count
            line("files: most memory", int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{batch.pid}/status").read_text())[1]) / 1024, "MiB")
            cpu = pathlib.Path(f"/proc/{batch.pid}/stat").read_text().rpartition(")")[2].split()
            line("files: CPU time", (int(cpu[11]) + int(cpu[12])) / os.sysconf("SC_CLK_TCK"), "s")
            batch.stdin.close()
            batch.wait()
        others = {}
        with contextlib.suppress(ImportError):
            copy = lambda n: ["cp", f"{work}/in-{n}", f"{work}/out-{n}"]
            others["HyperQueue"] = hyperqueue_ms(count, copy, nodes * vcpus)
        compared("files", ms, others)


def agents_ms():
    """The CPU time of all agents so far, and of what they started and waited for, in ms."""
    own, started = 0, 0
    for comm in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            # Supervisors and helpers have the name of /proc/self/exe.
            if comm.read_text() == "nodekeeper-agen\n":
                fields = comm.with_name("stat").read_text().rpartition(")")[2].split()
                own += int(fields[11]) + int(fields[12])
                started += int(fields[13]) + int(fields[14])
    tick_ms = 1000 / os.sysconf("SC_CLK_TCK")
    return own * tick_ms, started * tick_ms


def cpu(count):
    with fleet(2, 1) as local:
        local.run("submit", "--wait", "--count", "4", "--", "true")
        own, started = agents_ms()
        local.run("submit", "--wait", "--count", str(count), "--", "true")
        time.sleep(1)
        own, started = agents_ms()[0] - own, agents_ms()[1] - started
        line("CPU time of the agents, for a job of `true`", own / count, "ms")
        line("CPU time of what they start, for a job of `true`", started / count, "ms")
        local.run("submit", "--count", "4", "--name", "long", "--", "sleep", "600")
        while len(json.loads(local.run("jobs", "--state", "running", "--json").stdout)) < 4:
            time.sleep(1)
        seconds, own = 20, agents_ms()[0]
        time.sleep(seconds)
        own = (agents_ms()[0] - own) / 4 / seconds
        line("CPU time of an agent, for a job that runs", own, "ms", "a second")
        below("ms of CPU time a second for a job that runs", own, MOST_OF_A_RUNNING_JOB)


def ended_jobs(local, count):
    """So many jobs with allocs that ended within the last twenty hours: the rows of one that ran, under other ids."""
    import boto3
    from botocore.config import Config
    env = local.environment()
    local.run("submit", "--wait", "--name", "ended", "--", "true")
    job_id = json.loads(local.run("jobs", "--all", "--name", "ended", "--json").stdout)[0]["job_id"]
    database = boto3.client("dynamodb", endpoint_url=env["AWS_ENDPOINT_URL_DYNAMODB"], region_name=env["AWS_REGION"],
                            aws_access_key_id=env["AWS_ACCESS_KEY_ID"], aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
                            aws_session_token=env.get("AWS_SESSION_TOKEN"), config=Config(max_pool_connections=16))
    tables = {name.rpartition("-")[2]: name for name in database.list_tables()["TableNames"]}

    def row(table, **key):
        return database.get_item(TableName=tables[table], Key={name: {"S": value} for name, value in key.items()})["Item"]

    job, alloc = row("jobs", job_id=job_id), row("allocs", alloc_id=f"{job_id}.0.0")
    letters = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    now = int(time.time() * 1000)

    def rows(n):
        at = now - 72_000_000 * (n + 1) // count
        number = at << 80 | random.getrandbits(80)
        id = "".join(letters[number >> 5 * digit & 31] for digit in reversed(range(26)))
        name, at_n = {"S": f"ended-{n}"}, {"N": str(at)}
        return {
            tables["jobs"]: job | {"job_id": {"S": id}, "tail": {"S": id[-1]}, "name": name, "named": {"S": f"ended-{n}#{id}"}, "submitted_at": at_n,
                                   "finished_at": at_n, "rank": {"S": f"{at:015}"}, "queue": {"S": f"complete#{number & 7}"}},
            tables["allocs"]: alloc | {"alloc_id": {"S": f"{id}.0.0"}, "ended": {"S": id[-1]}, "name": name,
                                       "placed_at": {"N": str(at - 60_000)}, "finished_at": at_n},
        }

    def put(first):
        some = [rows(n) for n in range(first, min(first + 12, count))]
        database.batch_write_item(RequestItems={table: [{"PutRequest": {"Item": both[table]}} for both in some] for table in some[0]})

    with concurrent.futures.ThreadPoolExecutor(8) as several:
        list(several.map(put, range(0, count, 12)))


def seats(count):
    """Lists and views with a tenth of the jobs, and with all, ended ones and as many that wait: the exponent says how they grow."""
    times = {}
    for n in (count // 10, count):
        with fleet(1, 60) as local, tempfile.TemporaryDirectory() as work:
            def timed(what, act, *words, ok=(0,)):
                began = time.monotonic()
                said = act(*words)
                assert isinstance(said, str) or said.returncode in ok, said
                times.setdefault(what, []).append(time.monotonic() - began)

            def command(*words, ok=(0,)):
                timed(" ".join(word.replace(str(n // 2), "N") for word in words), local.run, *words, ok=ok)

            ended_jobs(local, n)
            lines = pathlib.Path(work, "waits")
            lines.write_text("".join(json.dumps({"name": f"waits-{i}", "vcpus": 2, "command": ["sleep", "9999"]}) + "\n" for i in range(n)))
            timed("submit --file, of all", local.run, "submit", "--file", str(lines))
            for words in ("jobs", "jobs --state complete", "jobs --all --state complete", f"job waits-{n // 2}", f"history ended-{n // 2}", "cost",
                          "cost --by job", "plan"):
                command(*words.split())
            command("status", ok=(0, 1))
            # Some hundred jobs wait before it: what it would take to start is asked of many plans.
            waiting = json.loads(local.run("jobs", "--queue", "--limit", "300", "--json").stdout)[-1]["job_id"]
            timed("page, a job that waits", local.get, f"api/jobs/{waiting}")
            for page in ("overview", "jobs", "jobs?state=complete&after=9999999999999", "events", "history", "cost", "nodes/0"):
                timed(f"page, {page}", local.get, f"api/{page}")
            timed("cancel, of all", local.run, "cancel", "--yes", "--name", "waits-*")
            timed("jobs --state cancelled", local.run, "jobs", "--state", "cancelled")
    for what, (few, all_of_them) in times.items():
        growth = math.log10(max(all_of_them, 0.001) / max(few, 0.001))
        line(f"{what}, {count} jobs", all_of_them, "s", f"{few:.3f} s with {count // 10}: exponent {growth:.2f}")
        if not what.endswith("of all"):
            below(f"growth of {what}", growth, MOST_GROWTH)
            below(f"seconds of {what}", all_of_them, MOST_OF_A_LOOK)


def cold(count):
    """The first answer of each function that runs without being asked by a job."""
    for name in cold_start.EVENTS:
        own, machine, unit = cold_start.measure(local_stack.PROGRAM.with_name(name), count)
        print(f"first answer of {name}: {own:,} {unit}, and {machine:,} with the machine's list of authorities", flush=True)
        below(f"a cold start of {name} with Amazon's roots", own / machine, MOST_OF_A_COLD_START)


def main():
    parts = {"starts": (starts, 20), "elements": (elements, 5000), "jobs": (jobs, 300), "files": (files, 200), "cpu": (cpu, 100), "seats": (seats, 5000),
             "cold": (cold, 9)}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=parts)
    parser.add_argument("count", nargs="?", type=int)
    parser.add_argument("--floor", action="store_true", help="fail if a ratio or an exponent is far above the usual")
    given = parser.parse_args()
    if RELEASE.exists():
        local_stack.PROGRAM = RELEASE
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    print(f"with {local_stack.PROGRAM.relative_to(ROOT)}, on {os.cpu_count()} cores", flush=True)
    for name, (part, usual) in parts.items():
        if given.part in (None, name):
            part(given.count or usual)
    if given.floor and found:
        raise SystemExit("above the floor: " + "; ".join(found))


if __name__ == "__main__":
    main()
