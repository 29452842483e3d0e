"""The podman of this computer with a storage of its own, and an image that has only busybox."""

import os
import pathlib
import shutil
import subprocess
import tempfile

# What podman needs on any machine: also on one with version 1 of control groups, and with a low limit of open files.
CONTAINERS = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "DIR/run"
"""
STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "DIR/storage"\nrunroot = "DIR/run-storage"\n'


def can_run(*more):
    """Whether containers run here. Says what is missing, also of these programs."""
    programs = ("podman", "runc", "catatonit", "busybox", *more)
    missing = [name for name in programs if not shutil.which(name)] + (["root"] if os.geteuid() else [])
    if missing:
        print(f"left out: containers need {', '.join(missing)}", flush=True)
    return not missing


class Podman:
    """For this process and those that it starts, until the end of the block."""

    def __enter__(self):
        self.made = tempfile.TemporaryDirectory(prefix="nodekeeper-podman-")
        self.dir = pathlib.Path(self.made.name)
        for file, text in (("containers.conf", CONTAINERS), ("storage.conf", STORAGE)):
            (self.dir / file).write_text(text.replace("DIR", self.made.name), encoding="utf-8")
        os.environ["CONTAINERS_CONF"] = f"{self.dir}/containers.conf"
        os.environ["CONTAINERS_STORAGE_CONF"] = f"{self.dir}/storage.conf"
        return self

    def __exit__(self, *_):
        self.made.cleanup()

    def run(self, *args):
        done = subprocess.run(["podman", *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout.strip()

    def make_image(self, name, says):
        """An image with a file /etc/image that says this."""
        root = self.dir / "image"
        shutil.rmtree(root, ignore_errors=True)
        for part in ("bin", "tmp", "etc"):
            (root / part).mkdir(parents=True)
        shutil.copy(shutil.which("busybox"), root / "bin/busybox")
        for applet in ("sh", "cat", "id", "sleep"):
            (root / "bin" / applet).symlink_to("busybox")
        (root / "etc/image").write_text(says + "\n", encoding="utf-8")
        subprocess.run(["tar", "-C", root, "-cf", self.dir / "image.tar", "."], check=True)
        self.run("import", str(self.dir / "image.tar"), name)
