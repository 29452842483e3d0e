#!/usr/bin/env python3
"""Uses the release of target/package/dist as somebody who has fetched it: python tests/release.py VERSION

It checks the digests, unpacks both archives, checks the policies with the commands of the release, and runs a job on its
`nodekeeper local`.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from local_stack import ROOT, check, free_port, wait_until

DIST = ROOT / "target/package/dist"
VERSION = sys.argv[1]


def run(*command, cwd, **env):
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False)
    check(" ".join(str(part) for part in command[:3]), done.returncode == 0, done.stdout + done.stderr)
    return done.stdout


def unpacked(kind, directory):
    name = f"nodekeeper-{kind}{VERSION}-{os.uname().machine}"
    run("tar", "xzf", DIST / f"{name}.tar.gz", cwd=directory)
    return directory / name


def for_aws(files):
    run("sha256sum", "--quiet", "--check", "SHA256SUMS", cwd=files)
    check("the program says its version", VERSION in run(files / "nodekeeper", "--version", cwd=files))
    for policy in sorted((files / "policies").glob("*.toml")):
        run(files / "nodekeeper", "policy", "check", policy, cwd=files)


def without_aws(files, directory):
    port = free_port()
    command = [files / "nodekeeper", "local", "--port", str(port), "--dir", str(directory / "state")]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL) as system:
        try:
            env = directory / "state/env"
            wait_until("the local system runs", env.exists)
            line = f"set -a; . {env}; set +a; {files}/nodekeeper run -- echo hello"
            check("a job runs on it", "hello" in run("sh", "-c", line, cwd=directory))
        finally:
            system.send_signal(signal.SIGINT)


def main():
    run("sha256sum", "--quiet", "--check", "SHA256SUMS", cwd=DIST)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        for_aws(unpacked("", directory))
        without_aws(unpacked("local-", directory), directory)


main()
