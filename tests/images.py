#!/usr/bin/env python3
"""Images of jobs on a `nodekeeper local`, from a registry that wants a login: Debian's docker-registry.

    images.py

Then the registry has the name of one of Amazon ECR, and its login is what moto's ECR tells. It needs the programs in target/debug. Every check prints a line. The first one that fails ends it with exit code 1.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from local_podman import Podman, can_run
from local_stack import Local, check, free_port, listens, moto, wait_until

# `htpasswd -nbB me secret`, and the login that moto's ECR tells.
LOGIN = "me:secret"
ECR_LOGIN = "AWS:123456789012-auth-token"
PASSWORDS = """me:$2y$05$WhjlowxOlcnvy9adSsBYLOpFR1dcMiGKx8fJ/KRl3uFyyjJOI1hwi
AWS:$2y$05$WhjlowxOlcnvy9adSsBYLOq8hwvlizn9Pqbx3Juzx7ku8iNh79nZS
"""
# A registry of Amazon ECR has the port of HTTPS. Podman tries this one too, if it may.
ECR, ECR_AT = "123456789012.dkr.ecr.us-east-1.amazonaws.com", "127.77.0.1:80"
CONFIG = """version: 0.1
storage: {filesystem: {rootdirectory: DIR/registry}}
http: {addr: "HOST"}
auth: {htpasswd: {realm: test, path: DIR/passwords}}
"""


def start_registry(podman, host, at):
    """A registry with this name in the directory of this podman, at this address."""
    (podman.dir / "passwords").write_text(PASSWORDS, encoding="utf-8")
    (podman.dir / "registry.yml").write_text(CONFIG.replace("DIR", str(podman.dir)).replace("HOST", at), encoding="utf-8")
    insecure = f'unqualified-search-registries = []\n[[registry]]\nlocation = "{host}"\ninsecure = true\n'
    (podman.dir / "registries.conf").write_text(insecure, encoding="utf-8")
    os.environ["CONTAINERS_REGISTRIES_CONF"] = f"{podman.dir}/registries.conf"
    with open(podman.dir / "registry.log", "wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", podman.dir / "registry.yml"], stdout=log, stderr=log)
    address, port = at.split(":")
    wait_until("the registry answers", lambda: listens(int(port), address))
    return process


def push(podman, image, says, login=LOGIN):
    """The tag names an image that says this. The machine keeps no copy of it."""
    podman.make_image(image, says)
    file = podman.dir / "digest"
    podman.run("push", "--creds", login, "--digestfile", str(file), image)
    podman.run("image", "rm", "--force", image)
    return file.read_text(encoding="utf-8").strip()


def job(local, name):
    return json.loads(local.run("job", name, "--json").stdout)


# 30 MB in the shell. Half of the time of a vCPU.
BURNS = """x=$(busybox head -c 30000000 /dev/zero | busybox tr '\\0' x)
until test -e stop; do busybox timeout 0.5 sh -c 'while :; do :; done'; sleep 0.5; done; echo ${#x}"""


def is_used(usage, ran_s):
    """What a job of these commands used in so many seconds."""
    return usage and 0.2 < usage["cpu_ms"] / usage["ran_ms"] < 1 and usage["ran_ms"] > ran_s * 1000 and 28 <= usage["memory_mib"] < 100


def shown_used(local):
    """What a container uses is told while it runs, and when it has ended."""
    allocs = lambda: job(local, "burns")["all_allocs"]
    live = wait_until("a job in a container tells what it uses while it runs", lambda: allocs()[0].get("usage"))
    check("half of a vCPU, and what its shell holds", allocs()[0]["client"] == "running" and is_used(live, 25), live)
    local.run("exec", "burns", "--", "sh", "-c", "echo > stop")
    wait_until("it ends", lambda: job(local, "burns")["state"] == "complete")
    end = allocs()[0]["usage"]
    check("at its end too, and more", is_used(end, 30) and end["cpu_ms"] > live["cpu_ms"] and end["ran_ms"] > live["ran_ms"], (live, end))
    listed = local.run("jobs", "--usage", "--name", "burns").stdout
    check("`jobs --usage` shows it", "burns" in listed and "MiB" in listed and " s" in listed, listed)


def tried(podman, host):
    image = f"{host}/team/app:1"
    first = push(podman, image, "the first")
    with Local("--tick-s", "1") as local:
        secrets = {"/registry/login": json.dumps({"username": "me", "password": "secret"}), "/registry/wrong": "me:wrong"}
        local.secrets(secrets)
        options = ["--image", image, "--retry-lost", "0"]
        login = ["--role", "local-job", "--registry-login"]

        for what, more in (("without a login", []), ("with a wrong one", [*login, "/registry/wrong"])):
            ran = local.run("run", *options, *more, "--", "true")
            check(f"{what}, the job is told what the registry said",
                  ran.returncode != 0 and "cannot be pulled" in ran.stderr and "unauthorized" in ran.stderr, ran)
        absent = local.run("run", "--retry-lost", "0", "--image", f"{host}/team/absent:1", *login, "/registry/login", "--", "true")
        check("an image that is not there is told", "manifest unknown" in absent.stderr or "name unknown" in absent.stderr, absent)
        nodes = json.loads(local.run("nodes", "--json").stdout)
        check("no node is to blame for that", not any(node.get("refuses") for node in nodes), nodes)

        burns = local.run("submit", "--name", "burns", "--image", image, *login, "/registry/login", "--", "sh", "-c", BURNS)
        check("a job that burns and holds is submitted", burns.returncode == 0, burns)

        # It fails once, when the tag has moved.
        script = "cat /etc/image; until test -e go; do sleep 0.1; done; exit 75"
        local.run("submit", "--name", "pinned", *options, *login, "/registry/login", "--retry", "exit:75=again*1,pause=1s",
                  "--timeout", "10m", "--", "sh", "-c", script)
        allocs = lambda: job(local, "pinned").get("all_allocs", [])
        wait_until("it runs", lambda: [alloc["client"] for alloc in allocs()] == ["running"])
        wait_until("while it runs, its alloc knows the bytes of its image", lambda: allocs()[0].get("image_digest") == first)
        second = push(podman, image, "the second")
        check("the tag names other bytes now", second != first)
        local.run("exec", "pinned", "--", "sh", "-c", "echo > go")
        wait_until("it runs again", lambda: sorted(alloc["client"] for alloc in allocs()) == ["failed", "running"])
        check("the job keeps the bytes of its first try", job(local, "pinned")["image_digest"] == first, job(local, "pinned"))
        again = local.run("exec", "pinned", "--", "cat", "/etc/image")
        check("so the second try runs them too", again.stdout == "the first\n", again)
        shown = local.run("job", "pinned").stdout
        check("`job` shows them", f"{image} ({first})" in shown, shown)
        fresh = local.run("run", "--quiet", *options, *login, "/registry/login", "--", "cat", "/etc/image")
        check("a new job gets what the tag names now", fresh.stdout == "the second\n", fresh)

        left = [str(path) for path in pathlib.Path(local.dir.name).rglob("config.json")]
        check("no login is left on a machine", not left, left)
        lists = local.run("jobs", "--all", "--json").stdout + local.run("history", "cluster", "--json").stdout
        logs = "".join(path.read_text(errors="replace") for path in pathlib.Path(f"{local.dir.name}/stack/logs").glob("*.log"))
        check("and none is in a list, an event or a log", '"secret"' not in lists + logs and LOGIN not in lists + logs)
        shown_used(local)
        local.run("cancel", "pinned")
        wait_until("it has ended", lambda: {alloc["client"] for alloc in allocs()} == {"failed"})


def from_ecr(podman, host):
    image = f"{host}/team/app:1"
    push(podman, image, "from ECR", ECR_LOGIN)
    with moto() as url:
        os.environ["AWS_ENDPOINT_URL_ECR"] = url
        with Local("--tick-s", "1") as local:
            line = ["run", "--quiet", "--retry-lost", "0", "--image", image]
            ran = local.run(*line, "--role", "local-job", "--", "cat", "/etc/image")
            check("the role of a job logs in to Amazon ECR", ran.returncode == 0 and ran.stdout == "from ECR\n", ran)
            podman.run("image", "rm", "--force", image)
            ran = local.run(*line, "--", "cat", "/etc/image")
            check("without a role there is no login", ran.returncode != 0 and "unauthorized" in ran.stderr, ran)
            left = [str(path) for path in pathlib.Path(local.dir.name).rglob("config.json")]
            check("and none is left on a machine", not left, left)


def with_registry(host, at, test):
    with Podman() as podman:
        registry = start_registry(podman, host, at)
        try:
            test(podman, host)
        finally:
            registry.kill()
            registry.wait()


def main():
    if "--ecr" in sys.argv:
        with_registry(ECR, ECR_AT, from_ecr)
    elif can_run("docker-registry"):
        host = f"127.0.0.1:{free_port()}"
        with_registry(host, host, tried)
        # The names of hosts are for these processes only.
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hosts:
            hosts.write(f"127.0.0.1 localhost\n{ECR_AT.split(':')[0]} {ECR}\n")
            hosts.flush()
            script = 'mount --bind "$1" /etc/hosts && exec "$2" "$3" --ecr'
            subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", hosts.name, sys.executable, __file__], check=True)


if __name__ == "__main__":
    main()
