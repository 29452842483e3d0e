"""A `nodekeeper local` for a test in Python, and what such a test checks with."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target/debug/nodekeeper"

# A shell that starts a test in the background makes it ignore Ctrl-C, and every program that it starts. Some tests send
# Ctrl-C to a program.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def check(what, passed, seen=""):
    print(f"{'ok     ' if passed else 'FAILED '} {what}{'' if passed else f': {seen}'}", flush=True)
    if not passed:
        raise SystemExit(1)


def wait_until(what, holds, at_most_s=120):
    """Looks until it holds, with a deadline. Returns what it then gave."""
    deadline = time.monotonic() + at_most_s
    while not (seen := holds()) and time.monotonic() < deadline:
        time.sleep(0.2)
    check(what, seen, f"not within {at_most_s} s")
    return seen


def listens(port, host="127.0.0.1"):
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def moto():
    """The address of moto, in the environment of the tests."""
    port = free_port()
    command = [ROOT / "target/venv/bin/moto_server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("moto answers", lambda: listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


class Local:
    """A `nodekeeper local` in a directory of its own."""

    def __init__(self, *options):
        self.dir = tempfile.TemporaryDirectory(prefix="nodekeeper-test-")
        os.chmod(self.dir.name, 0o755)  # Jobs that are isolated run as other users.
        self.log = open(f"{self.dir.name}/log", "w+", encoding="utf-8")
        command = [PROGRAM, "local", "--no-build", "--port", "0", "--dir", f"{self.dir.name}/stack", *options]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        for _ in range(300):
            said = pathlib.Path(self.log.name).read_text(encoding="utf-8")
            found = re.search(r"page +(http\S+)", said)
            if found and "Ctrl-C" in said:
                self.page = found[1]
                self.dynamo = re.search(r"DynamoDB +(http\S+)", said)[1]
                return self
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit(f"nodekeeper local does not start: {said}")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()
        self.dir.cleanup()

    def environment(self):
        """The environment of a command on this cluster."""
        env = dict(os.environ, PATH=f"{PROGRAM.parent}:{os.environ['PATH']}")
        for entry in pathlib.Path(f"{self.dir.name}/stack/env").read_text(encoding="utf-8").splitlines():
            name, found, value = entry.partition("=")
            if found:
                env[name] = value.strip("'\"")
        return env

    def secrets(self, values):
        """Gives the system these secrets, in place of those that it has."""
        place = pathlib.Path(f"{self.dir.name}/stack/secrets.json")
        place.touch(mode=0o600)
        place.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")

    def run(self, *line):
        """Runs a command on this cluster."""
        return subprocess.run([PROGRAM, *line], env=self.environment(), capture_output=True, text=True, check=False)

    def get(self, path):
        with urllib.request.urlopen(self.page + path, timeout=30) as answer:
            return answer.read().decode()

    def until(self, what, path, holds):
        """Asks until the answer is as wanted. Returns it."""
        for _ in range(200):
            answer = json.loads(self.get(path))
            if holds(answer):
                break
            time.sleep(0.4)
        check(what, holds(answer), json.dumps(answer)[:1000])
        return answer
