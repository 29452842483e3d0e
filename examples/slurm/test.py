"""A real slurmctld whose nodes are pilot jobs: they come with Slurm's jobs and go again. Run by tests/examples.py."""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request

from local_stack import PROGRAM, check, wait_until

HERE = pathlib.Path(__file__).parent
PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
# slurmd runs as root, so the pilots do.
NEEDS_ROOT = IS_LONG = True
OPTIONS = ["--tick-s", "1", "--unisolated"]
NODES = 4
IDLE_S = 5  # idle.timeout_s of the local policy


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Slurm:
    """munged, slurmctld and the watch, in a directory of their own."""

    def __init__(self, local):
        self.dir = pathlib.Path(local.dir.name, "slurm")
        self.dir.mkdir()
        self.local, self.processes = local, []
        self.ports = free_ports(NODES + 1)
        self.env = local.environment() | {"SLURM_CONF": str(self.dir / "slurm.conf")}
        for program in (HERE / "pilots", HERE / "resume", HERE / "suspend", HERE.parent / "recipe.py"):
            shutil.copy(program, self.dir)
        shutil.copy(PROGRAM, self.dir / "nodekeeper")
        self.configure()

    def configure(self):
        """The files of the recipe, with the paths, ports and times of this test."""
        for name in ("state", "pilots.d", "spool", "out"):
            (self.dir / name).mkdir()
        (self.dir / "out").chmod(0o1777)
        key = self.dir / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o400)
        host = os.uname().nodename.split(".")[0]
        values = {
            "SlurmctldHost": f"{host}(127.0.0.1)", "StateSaveLocation": self.dir / "state", "SlurmdSpoolDir": f"{self.dir}/spool/%n",
            "SlurmctldPidFile": f"{self.dir}/state/slurmctld.pid", "SlurmdPidFile": f"{self.dir}/spool/%n.pid",
            "SlurmctldLogFile": f"{self.dir}/state/slurmctld.log", "SlurmdLogFile": f"{self.dir}/spool/%n.log",
            "ResumeProgram": self.dir / "resume", "SuspendProgram": self.dir / "suspend", "ResumeFailProgram": self.dir / "suspend",
            # The local system answers only programs of the user who started it.
            "SlurmUser": "root", "ResumeTimeout": 90, "SuspendTime": 6, "SuspendTimeout": 8, "SlurmdTimeout": 30,
        }
        # All nodes are this computer, so each has a port of its own.
        nodes = [f"NodeName=cloud{n} NodeHostname={host} Port={self.ports[n]} CPUs=1 RealMemory=100 State=CLOUD" for n in range(1, NODES + 1)]
        lines = [f"SlurmctldPort={self.ports[0]}", f"AuthInfo=socket={self.dir}/munge.socket,cred_expire=5"]
        for line in (HERE / "slurm.conf").read_text().splitlines():
            name = line.partition("=")[0]
            if name == "NodeName":
                lines += nodes
            elif name in values:
                lines.append(f"{name}={values[name]}")
            else:
                lines.append(line + ",power_save_interval=1" if name == "SlurmctldParameters" else line)
        (self.dir / "slurm.conf").write_text("\n".join(lines) + "\n")
        text = (HERE / "nodekeeper.conf").read_text()
        environment = pathlib.Path(self.local.dir.name, "stack/env").read_text().replace("'", "")
        text = re.sub(r"NODEKEEPER_CLUSTER.*\nAWS_REGION.*\n", lambda _: environment, text)
        text = text.replace("[environment]", f"[environment]\nSLURM_CONF={self.dir}/slurm.conf").replace("/var/spool/slurmctld/nodekeeper", str(self.dir / "pilots.d")).replace("/usr/local/bin", str(self.dir))
        text = text.replace("--conf-server controller:6817", f"-f {self.dir}/slurm.conf").replace("vcpus = 2", "vcpus = 1").replace("7G", "1G")
        text = text.replace("kill_timeout = 30s", "kill_timeout = 5s")
        (self.dir / "nodekeeper.conf").write_text(text)

    def start(self, *command):
        log = open(self.dir / f"{pathlib.Path(command[0]).name}.out", "a", encoding="utf-8")
        process = subprocess.Popen(command, env=self.env, stdout=log, stderr=subprocess.STDOUT, cwd=self.dir)
        self.processes.append(process)
        return process

    def __enter__(self):
        try:
            return self.begin()
        except BaseException:
            self.__exit__()
            raise

    def begin(self):
        d = self.dir
        self.start("munged", "--foreground", "--force", f"--key-file={d}/munge.key", f"--socket={d}/munge.socket", f"--pid-file={d}/munge.pid",
                   f"--log-file={d}/munge.log", f"--seed-file={d}/munge.seed")
        wait_until("munged answers", (d / "munge.socket").exists)
        self.start("slurmctld", "-D")
        wait_until("slurmctld answers", lambda: "UP" in self.run("scontrol", "ping").stdout)
        return self

    def watch(self):
        self.watching = self.pilots("pilots", "watch", "--every", "1", output=subprocess.DEVNULL)
        self.processes.append(self.watching)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def run(self, *line):
        return subprocess.run(line, env=self.env, cwd=self.dir / "out", capture_output=True, text=True, check=False)

    def pilots(self, *line, output=subprocess.PIPE):
        """One of the recipe's programs, as slurmctld runs it: without an environment."""
        return subprocess.Popen([self.dir / line[0], *line[1:]], env={"PATH": os.environ["PATH"]}, stdout=output, stderr=subprocess.STDOUT, text=True)

    def nodes(self):
        """The words of the state of each Slurm node."""
        text = self.run("scontrol", "show", "node", "--oneliner").stdout
        return {name: set(state.split("+")) for name, state in re.findall(r"NodeName=(\S+) .*?\bState=(\S+)", text)}

    def asked(self):
        """The nodes that Slurm wants to be there."""
        return sum("POWERED_DOWN" not in state for state in self.nodes().values())

    def jobs(self):
        """The states of the Slurm jobs that have not ended."""
        return self.run("squeue", "--noheader", "--array", "--format=%T").stdout.split()

    def of_nodekeeper(self, *states):
        jobs = json.loads(self.local.run("jobs", "--all", "--json", "--name", "slurm-*").stdout)
        return [j for j in jobs if not states or j["state"] in states]

    def instances(self):
        """The instances that cost money."""
        return [i for i in json.loads(self.local.get("api/local"))["instances"] if i["state"] in ("pending", "running")]

    def faults(self, **faults):
        """From now on, these faults and no others in the stand-in for EC2."""
        url, body = f"{self.env['AWS_ENDPOINT_URL_EC2']}/_stand-in/faults", json.dumps(faults).encode()
        urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=30).close()

    def is_quiet(self):
        return not self.asked() and not self.of_nodekeeper("queued", "placed") and not self.instances()

    def log(self):
        return (self.dir / "pilots.d/log").read_text()


class Count(threading.Thread):
    """Counts jobs, nodes and instances again and again."""

    def __init__(self, slurm):
        super().__init__(daemon=True)
        self.slurm, self.rows, self.ended, self.began = slurm, [], threading.Event(), time.monotonic()

    def run(self):
        while not self.ended.wait(0.5):
            s = self.slurm
            at, jobs, asked = time.monotonic() - self.began, s.jobs(), s.asked()
            # All jobs of this nodekeeper are pilots.
            pilots, nodes = (json.loads(s.local.get(f"api/{what}?limit=1"))["counts"] for what in ("jobs", "nodes"))
            pilots = pilots.get("queued", 0) + pilots.get("placed", 0)
            nodes = sum(n for state, n in nodes.items() if state != "cleaned")
            # Jobs that have nodes and wait for them are CONFIGURING.
            row = (jobs.count("PENDING"), jobs.count("CONFIGURING"), jobs.count("RUNNING"), asked, pilots, nodes)
            self.rows.append((at, *row, len(s.instances())))

    def table(self):
        """The rows at which something changed."""
        lines, before = ["| s | Slurm jobs: pending | starting | running | Slurm nodes | pilots | nodekeeper nodes | instances |", "|" + " --- |" * 8], None
        for at, *row in self.rows:
            if row != before:
                lines.append(f"| {at:.0f} | " + " | ".join(map(str, row)) + " |")
            before = row
        return "\n".join(lines)

    def longest_without_need(self):
        """For how long there were more instances than Slurm nodes."""
        longest, since = 0, None
        for at, *row in self.rows:
            since = None if row[-1] <= row[3] else at if since is None else since
            longest = max(longest, at - since if since is not None else 0)
        return longest


def test(local):
    with Slurm(local) as slurm:
        try:
            follows_the_queue(slurm)
            dies(slurm)
            one_pilot(slurm)
            down(slurm)
            clear_errors(slurm)
        except SystemExit:
            print(slurm.log(), (slurm.dir / "state/slurmctld.log").read_text()[-5000:], sep="\n")
            raise


def follows_the_queue(slurm):
    check("no job, no instance", slurm.is_quiet(), slurm.nodes())
    count = Count(slurm)
    count.start()
    said = slurm.run("sbatch", "--array=1-12", "--uid=nobody", "--wrap", "sleep 3; echo $(id -un) $SLURM_ARRAY_TASK_ID on $SLURMD_NODENAME: $((SLURM_ARRAY_TASK_ID * 7))")
    check("sbatch takes an array of 12 jobs", said.returncode == 0, said)
    wait_until("all Slurm jobs end", lambda: not slurm.jobs(), 180)
    wait_until("Slurm powers all nodes down, and nodekeeper ends all instances", slurm.is_quiet, 120)
    count.ended.set()
    count.join(60)
    outputs = [(slurm.dir / f"out/slurm-{said.stdout.split()[-1]}_{n}.out").read_text() for n in range(1, 13)]
    check("the output of each job is right, and each ran as its user", all(re.fullmatch(rf"nobody {n} on cloud\d: {n * 7}\n", o) for n, o in enumerate(outputs, 1)), outputs)
    check("four nodes shared the work", len({o.split()[3] for o in outputs}) == NODES, outputs)
    print(count.table(), flush=True)
    most = max(row[-1] for row in count.rows)
    check("there were as many instances as Slurm asked for, and never more", most == NODES == max(row[4] for row in count.rows), most)
    check("one pilot for each node, and each was cancelled by Slurm's suspend", [j["state"] for j in slurm.of_nodekeeper()] == ["cancelled"] * NODES, slurm.of_nodekeeper())
    beyond = count.longest_without_need()
    print(f"        more instances than Slurm nodes: for {beyond:.1f} s at most", flush=True)
    check("an instance outlives its Slurm node by little more than idle.timeout_s", beyond < IDLE_S + 25, beyond)
    check("slurmctld's programs ended without an error", "exit status" not in (slurm.dir / "state/slurmctld.log").read_text(), slurm.log())
    check("resume and suspend did it", "pilots resume" in slurm.log() and "pilots suspend" in slurm.log(), slurm.log())


def dies(slurm):
    """A resume does not reach nodekeeper. Then the instance of the running Slurm job dies."""
    started, settings = slurm.dir / "out/started", slurm.dir / "nodekeeper.conf"
    text = settings.read_text()
    settings.write_text(text.replace(f"nodekeeper = {slurm.dir}", "nodekeeper = /nowhere"))
    slurm.run("sbatch", "--output=dies.out", "--wrap", f"echo $SLURM_RESTART_COUNT >>{started}; until [ -e {slurm.dir}/out/go ]; do sleep 0.2; done; echo done")
    wait_until("a resume fails", lambda: "resume: cloud1: /nowhere/nodekeeper cannot be run" in slurm.log())
    settings.write_text(text)
    slurm.watch()
    wait_until("the watch does it again, and the Slurm job runs", started.exists, 120)
    first = slurm.instances()
    check("on one instance", len(first) == 1, first)
    end = f"{slurm.env['AWS_ENDPOINT_URL_EC2']}/_stand-in/instances/{first[0]['instance_id']}/terminate"
    urllib.request.urlopen(end, b"", timeout=30).close()
    wait_until("its instance died: Slurm requeues the job, and it runs again on a new one", lambda: len(started.read_text().splitlines()) == 2, 240)
    check("another instance", slurm.instances() and slurm.instances()[0]["instance_id"] != first[0]["instance_id"], slurm.instances())
    check("Slurm was told why", "is failed: lost: instance" in slurm.log(), slurm.log())
    (slurm.dir / "out/go").touch()
    wait_until("the job ends", lambda: not slurm.jobs(), 60)
    check("its output is right", "done\n" in (slurm.dir / "out/dies.out").read_text())
    wait_until("all is powered down again", slurm.is_quiet, 120)


def one_pilot(slurm):
    """However often a node is resumed, it has one pilot; a pilot that Slurm does not want goes."""
    slurm.watching.terminate()
    slurm.watching.wait(20)
    # The pilots wait, and no slurmd registers: Slurm itself would end nodes that it did not ask for.
    slurm.faults(shortages=[{"left": 0}])
    file, before = slurm.dir / "pilots.d/cloud2.json", len(slurm.of_nodekeeper())
    calls = [slurm.pilots("resume", "cloud[2-3]") for _ in range(4)]
    said = [call.communicate(timeout=120)[0] for call in calls]
    check("resume four times at once", [call.returncode for call in calls] == [0] * 4, said)
    check("two nodes have two pilots", len(slurm.of_nodekeeper()) == before + 2, slurm.of_nodekeeper())
    pilot = json.loads(file.read_text())
    file.write_text(json.dumps({"token": pilot["token"]}))  # As if it was killed right after it submitted.
    call = slurm.pilots("resume", "cloud2")
    said = call.communicate(timeout=120)[0]
    check("killed after the submission and called again: the same pilot", json.loads(file.read_text()) == pilot and len(slurm.of_nodekeeper()) == before + 2, said)
    slurm.faults()
    slurm.watch()
    wait_until("Slurm does not want these nodes, so the watch ends them", slurm.is_quiet, 120)


def down(slurm):
    """A node that was not resumed in time is used again; one that a person has set down is not."""
    slurm.run("scontrol", "update", "nodename=cloud3", "state=DOWN", "reason=its disk is broken")
    slurm.run("scontrol", "update", "nodename=cloud4", "state=DOWN", "reason=ResumeTimeout reached")
    check("two nodes are down", all("DOWN" in slurm.nodes()[f"cloud{n}"] for n in (3, 4)), slurm.nodes())
    wait_until("the node that was not resumed in time may be used again", lambda: "IDLE" in slurm.nodes()["cloud4"])
    check("the other one stays down", "DOWN" in slurm.nodes()["cloud3"], slurm.nodes())


def clear_errors(slurm):
    settings = slurm.dir / "nodekeeper.conf"
    text = settings.read_text()
    for wrong, wanted in [
        (text.replace("[nodes cloud*]", "[nodes gpu*]"), "no section [nodes …] whose pattern fits cloud1: add one"),
        (text.replace("vcpus = 1", "vcpu = 1"), "vcpu is not known in [nodes cloud*]: remove it"),
        (text.replace("state = ", "states = "), "has no state in [programs]: add it"),
        (text.replace(f"nodekeeper = {slurm.dir}", "nodekeeper = /nowhere"), "/nowhere/nodekeeper cannot be run"),
    ]:
        settings.write_text(wrong)
        call = slurm.pilots("resume", "cloud1")
        said = call.communicate(timeout=60)[0]
        check(f"a mistake in nodekeeper.conf is one clear line: {wanted}", call.returncode == 1 and wanted in said and said.count("\n") == 1, said)
    settings.write_text(text)
