"""A Slurm of this computer: munged, slurmctld and a slurmd with two CPUs, as Debian has them, in a directory of its own."""

import os
import pathlib
import shutil
import subprocess
import tempfile

from local_stack import free_port, wait_until

CPUS = 2
CONFIG = """ClusterName=one
SlurmctldHost=HOST(127.0.0.1)
SlurmctldPort=PORT
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=DIR/munge.socket
StateSaveLocation=DIR/state
SlurmctldPidFile=DIR/slurmctld.pid
SlurmctldLogFile=DIR/slurmctld.log
SlurmdSpoolDir=DIR/spool
SlurmdPidFile=DIR/slurmd.pid
SlurmdLogFile=DIR/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=one NodeHostname=HOST NodeAddr=127.0.0.1 Port=NODE CPUs=CPUS RealMemory=100
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """The programs that Slurm needs and that are not here."""
    programs = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name)]
    return programs + (["root"] if os.geteuid() else [])


class Slurm:
    def __enter__(self):
        self.made = tempfile.TemporaryDirectory(prefix="nodekeeper-slurm-")
        self.dir, self.processes = pathlib.Path(self.made.name), []
        for name in ("state", "spool"):
            (self.dir / name).mkdir()
        values = {"HOST": os.uname().nodename.split(".")[0], "DIR": str(self.dir), "PORT": str(free_port()), "NODE": str(free_port()), "CPUS": str(CPUS)}
        text = CONFIG
        for name in ("SlurmctldPort=PORT", "Port=NODE", "CPUs=CPUS"):
            key, _, value = name.partition("=")
            text = text.replace(name, f"{key}={values[value]}")
        text = text.replace("HOST", values["HOST"]).replace("DIR/", f"{self.dir}/")
        (self.dir / "slurm.conf").write_text(text, encoding="utf-8")
        (self.dir / "munge.key").write_bytes(os.urandom(64))
        (self.dir / "munge.key").chmod(0o400)
        self.env = dict(os.environ, SLURM_CONF=f"{self.dir}/slurm.conf")
        d = self.dir
        try:
            self.start("munged", "--foreground", "--force", f"--key-file={d}/munge.key", f"--socket={d}/munge.socket", f"--pid-file={d}/munge.pid",
                       f"--log-file={d}/munge.log", f"--seed-file={d}/munge.seed")
            wait_until("munged answers", (d / "munge.socket").exists)
            self.start("slurmctld", "-D")
            self.start("slurmd", "-D", "-N", "one")
            wait_until("Slurm has a node", lambda: self.run("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, *command):
        with open(self.dir / f"{command[0]}.out", "wb") as log:
            self.processes.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log, cwd=self.dir))

    def run(self, *line):
        return subprocess.run(line, env=self.env, cwd=self.dir, capture_output=True, text=True, check=False)

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.made.cleanup()
