#!/usr/bin/env python3
"""Attacks a `nodekeeper local`: a page of another site, a program of another user, an isolated job, one without credentials.

    attacks.py            without a browser; page.py runs it with one

Nothing of the stack may answer them. The same requests of the owner are answered, so that each attack could succeed. Every
port that the stack listens on must be in `REQUESTS`.

A job also tries every file and folder of the stack, and of the agents' data directories in it. It may do with them what SECURITY.md lists.
"""

import contextlib
import http.server
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import threading
import urllib.parse

from local_stack import ROOT, Local, check, wait_until

LAUNCH = {"Action": "RunInstances", "Version": "2016-11-15", "ImageId": "ami-1", "InstanceType": "m7a.medium", "MinCount": "1",
          "MaxCount": "1"}
# By port: requests that a simple form or `fetch` of a page can send. The method, the path, the body, and what the owner's
# `curl` gets without credentials.
REQUESTS = {
    "page": [
        ("GET", "/api/overview", "", 200),
        ("GET", "/", "", 200),
        ("PUT", "/metadata/i-1/latest/api/token", "", 200),
    ],
    "dynamo": [("POST", "/", '{"TableName": "local-jobs"}', 400), ("GET", "/", "", 400)],
    "ec2": [
        ("POST", "/", urllib.parse.urlencode(LAUNCH), 401),
        ("GET", f"/?{urllib.parse.urlencode(LAUNCH)}", "", 401),
        ("GET", "/_stand-in/faults", "", 200),
        ("POST", "/_stand-in/faults", '{"boot_failures": 9}', 200),
        ("GET", "/_stand-in/instances", "", 200),
    ],
    "functions": [
        ("POST", "/lambda-url/heartbeat-ingest/v1/nodes/0-00000000000000000000000000/heartbeat", "{}", 401),
    ],
    "rights": [
        ("POST", "/", "Action=AssumeRole&Version=2011-06-15&RoleArn=arn:aws:iam::000000000000:role/local-job&RoleSessionName=x1", 403),
        ("POST", "/", '{"Name": "/secret"}', 403),
    ],
    "s3": [("GET", "/local/local/files/x", "", 403), ("POST", "/local?delete", "<Delete><Object><Key>x</Key></Object></Delete>", 403)],
}
# Jobs use these ports, and have users of their own: they are answered, and refused without a role's signature.
FOR_JOBS = ("rights", "s3")


def addresses(local):
    env = local.environment()
    urls = {"page": local.page, "dynamo": env["AWS_ENDPOINT_URL_DYNAMODB"], "ec2": env["AWS_ENDPOINT_URL_EC2"],
            "functions": env["NODEKEEPER_HEARTBEAT_URL"].partition("/lambda-url")[0], "rights": env["AWS_ENDPOINT_URL_STS"],
            "s3": env["AWS_ENDPOINT_URL_S3"]}
    return {name: url.rstrip("/") for name, url in urls.items()}


def each(local):
    for name, address in addresses(local).items():
        for method, path, body, of_owner in REQUESTS[name]:
            yield method, address + path, body, of_owner


def descendants(pid):
    parents = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pid):
    """The ports that a process and its descendants listen on."""
    sockets = set()
    for process in descendants(pid):
        for fd in pathlib.Path(f"/proc/{process}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(fd))
    lines = [line.split() for table in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", table).read_text().splitlines()[1:]]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def every_port_is_attacked(local):
    ports = {int(address.rpartition(":")[2]) for address in addresses(local).values()}
    # Each agent gives jobs their credentials on a port of its own.
    agents = {int(file.read_text()) for file in pathlib.Path(local.dir.name).glob("stack/machines/*/data/credentials-port")}
    found = listening(local.process.pid)
    check("every port that the stack listens on is attacked", ports <= found <= ports | agents, (found, ports, agents))
    for port in found - ports:
        for path in ["/v1/credentials/01JD0000000000000000000001.0.0", "/v1/credentials/..%2f..", "/"]:
            asked = curl("GET", f"http://127.0.0.1:{port}{path}", "", "-H", "Authorization: " + "0" * 64)
            code = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            check(f"an agent gives nothing without the token of the alloc, GET {path}", code in ("401", "404"), code)


def answer_of_others(local, url):
    """What programs of other users get: nothing, but where jobs must ask."""
    return "403" if url.startswith(tuple(addresses(local)[name] for name in FOR_JOBS)) else "000"


def curl(method, url, body, *more):
    line = ["curl", "-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", "-X", method, *more, url]
    return line + (["-d", body] if body else [])


def state(local):
    """What an attack could change. The owner may read it."""
    ec2 = f"{addresses(local)['ec2']}/_stand-in"
    read = lambda what: json.loads(subprocess.run(["curl", "-sf", f"{ec2}/{what}"], capture_output=True, check=True).stdout)
    return read("faults"), len(read("instances"))


def owner_without_credentials(local):
    for method, url, body, wanted in each(local):
        code = int(subprocess.run(curl(method, url, body), capture_output=True, text=True, check=False).stdout)
        check(f"the owner's curl without credentials, {method} {url}: {wanted}", code == wanted, code)
    ec2 = addresses(local)["ec2"]
    asked = curl("POST", ec2, "{}", "-H", "X-Amz-Target: AWSPriceListService.GetProducts")
    code = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    check("the price list answers nothing without credentials", code == "401", code)
    subprocess.run(["curl", "-sf", "-d", "{}", f"{ec2}/_stand-in/faults"], check=True, capture_output=True)
    check("nothing was launched without credentials", state(local)[1] == 0, state(local))
    mode = os.stat(f"{local.dir.name}/stack/env").st_mode & 0o777
    check("only the owner reads the credentials", mode == 0o600, oct(mode))


def names_of_others(local):
    """DNS rebinding, and a page of another site, by the headers that a browser sends."""
    for name, header in [("another name", "Host: evil.example"), ("another site", "Origin: https://evil.example"),
                         ("a sandboxed page", "Origin: null"), ("a picture", "Sec-Fetch-Site: cross-site")]:
        for method, url, body, _ in each(local):
            code = subprocess.run(curl(method, url, body, "-H", header), capture_output=True, text=True, check=False).stdout
            check(f"{name}, {method} {url}: refused", code in ("403", "405", "421"), code)


def another_user(local):
    if os.geteuid() != 0:
        print("left out: attacks of another user, which need root", flush=True)
        return
    for method, url, body, _ in each(local):
        line = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", *curl(method, url, body)]
        code = subprocess.run(line, capture_output=True, text=True, check=False).stdout
        check(f"another user, {method} {url}: nothing", code == answer_of_others(local, url), code)


def isolated_job(local):
    if "isolated: each runs as a user id of its own" not in pathlib.Path(local.log.name).read_text():
        print("left out: attacks of an isolated job, which need root", flush=True)
        return
    script = "\n".join(shlex.join(curl(method, url, body)) + "; echo" for method, url, body, _ in each(local))
    # The job also sends a request and closes its socket at once: the kernel then shows root as the socket's user.
    ec2 = addresses(local)["ec2"].rpartition(":")[2]
    quick = ("import socket\nfor n in range(200):\n    s = socket.create_connection(('127.0.0.1', %s))\n"
             "    s.sendall(b'POST /_stand-in/faults HTTP/1.1\\r\\nhost: localhost\\r\\ncontent-length: 20\\r\\n\\r\\n"
             "{\"boot_failures\": 77}')\n    s.close()\n" % ec2)
    ran = local.run("run", "--", "sh", "-c", f"{script}\npython3 -c {shlex.quote(quick)}; id -u")
    *codes, uid = ran.stdout.split()
    wanted = [answer_of_others(local, url) for _, url, _, _ in each(local)]
    check(f"a job of user {uid}: nothing", codes == wanted and int(uid) > 1_000_000, (ran.stdout, ran.stderr))


ATTACK = """async requests => {
    const answered = [];
    for (const [method, url, body] of requests) {
        for (const mode of ['cors', 'no-cors']) {
            const init = {method, mode, ...(body ? {body, headers: {'content-type': 'text/plain'}} : {})};
            try { const answer = await fetch(url, init); if (answer.type !== 'opaque') answered.push([mode, method, url, answer.status]); } catch {}
        }
        if (method === 'GET') await new Promise(done => { const i = new Image(); i.onerror = done; i.onload = () => { answered.push(['img', url]); done(); }; i.src = url; });
    }
    return answered;
}"""


def foreign_page(local, chromium):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title>")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    before = state(local)
    requests = [[method, url, body] for method, url, body, _ in each(local)]
    for origin in (f"http://evil.example:{server.server_port}", f"http://127.0.0.1:{server.server_port}"):
        page = chromium.new_page()
        codes = []
        ours = tuple(addresses(local).values())
        page.on("response", lambda r: r.url.startswith(ours) and codes.append((r.request.method, r.url, r.status)))
        page.goto(origin)
        check(f"a page of {origin} reads nothing", (answered := page.evaluate(ATTACK, requests)) == [], answered)
        through = [seen for seen in codes if seen[2] not in (403, 404, 405, 421)]
        check(f"a page of {origin} gets through nowhere", codes and not through, through)
        page.close()
    for name, address in addresses(local).items():
        page = chromium.new_page()
        answer = page.goto(address.replace("127.0.0.1", "evil.example"))
        check(f"{name} under another name answers 421", answer.status == 421, answer.status)
        page.close()
    server.shutdown()
    check("nothing changed", state(local) == before, (before, state(local)))


def all_of(local, chromium=None):
    local.until("the page answers", "api/overview", lambda answer: "now" in answer)
    owner_without_credentials(local)
    names_of_others(local)
    another_user(local)
    if chromium:
        foreign_page(local, chromium)
    before = state(local)[0]
    isolated_job(local)
    every_port_is_attacked(local)
    check("the faults are as before", state(local)[0] == before, state(local)[0])


# What SECURITY.md calls what others may do.
MAY = {"enter": set(), "read": {"read"}, "do everything": {"read", "write", "list", "make"}}
# Tries every path that it is given, those of its own directory, and what it finds in folders that it can list.
PROBE = r"""
import json, os, socket, stat
victim, paths = json.load(open('paths.json'))
own = os.path.dirname(os.getcwd())
paths += [own + path.removeprefix(victim) for path in paths if path.startswith(victim)]
found = {}

def works(path, flags, then=os.close):
    try:
        then(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK))
        return True
    except OSError:
        return False

def made(path):
    name = os.path.join(path, 'a-file-of-the-attack')
    return works(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) and (os.unlink(name) or True)

def connects(path):
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
        return True
    except OSError:
        return False

for path in dict.fromkeys(paths):
    found[path] = []
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        continue
    can = set()
    if stat.S_ISDIR(mode):
        try:
            paths += [os.path.join(path, name) for name in os.listdir(path)]
            can.add('list')
        except OSError:
            pass
        if made(path):
            can.add('make')
    elif not stat.S_ISLNK(mode):
        can |= {word for word, flags in [('read', os.O_RDONLY), ('write', os.O_WRONLY)] if works(path, flags)}
    if stat.S_ISSOCK(mode) and connects(path):
        can.add('connect')
    found[path] = sorted(can)
print(json.dumps([os.path.basename(own), found]))
"""


def exceptions(alloc, cache):
    """What SECURITY.md lets others do: patterns of paths in the stack, for the job with this alloc and this cache."""
    rows = re.findall(r"^\| (`.*`) \| (\w[\w ]*)(?:: ([\w ]+))? \|", (ROOT / "SECURITY.md").read_text().partition('<a id="files"></a>')[2], re.M)
    for paths, may, _ in rows:
        for path in re.findall("`([^`]+)`", paths):
            if may in MAY:
                path = re.escape(path.replace("DATA", "machines/MACHINE/data"))
                for word, stands_for in [("MACHINE", "[^/]+"), ("FILE", "[^/]+"), ("CACHE", re.escape(cache)), ("ALLOC", re.escape(alloc))]:
                    path = path.replace(word, stands_for)
                yield path + ("(/.*)?" if may == "do everything" else ""), MAY[may]


def every_file_is_tried(local):
    stack = pathlib.Path(local.dir.name, "stack")
    if "isolated: each runs as a user id of its own" not in pathlib.Path(local.log.name).read_text():
        print("left out: files and folders, which an isolated job tries, which needs root", flush=True)
        return
    hidden = ["correct horse", "battery-staple", "in-its-environment"]
    local.secrets({"/one": hidden[0], "/other": hidden[1]})
    role = ["--vcpus", "1", "--role", "local-job"]
    local.run("run", "--quiet", *role, "--out", "result", "--", "sh", "-c", "echo mine | tee result")
    # The victim opens all of its own files.
    script = "mkdir sub; echo mine | tee result sub/result here; touch $CACHE/file; chmod -R 777 . /tmp $CACHE; echo ready; exec sleep 300"
    job = local.run("submit", *role, "--secret", "X=/one", "--secret-file", "Y=/other", "--env", f"Z={hidden[2]}", "--cache", "theirs", "--out",
                       "result", "--", "sh", "-c", script.replace("$CACHE", "$NODEKEEPER_CACHE_THEIRS")).stdout.strip()
    wait_until("the victim runs", lambda: "ready" in local.run("logs", job).stdout)
    paths = [str(path) for path in [stack, *stack.rglob("*")]]
    its = next(path for path in paths if path.endswith("/secrets/0"))
    victim = pathlib.Path(its).parent.parent
    given = pathlib.Path(local.dir.name, "paths.json")
    given.write_text(json.dumps([str(victim), paths]))
    ran = local.run("run", "--quiet", *role, "--secret-file", "Y=/other", "--cache", "ours", "--in", str(given), "--", "python3", "-c", PROBE)
    check("a job tries them", ran.returncode == 0, ran.stderr)
    own, found = json.loads(ran.stdout)
    found = {os.path.relpath(path, stack): set(can) for path, can in found.items()}
    allowed = list(exceptions(own, "ours"))
    may = lambda path: set().union(*(may for pattern, may in allowed if re.fullmatch(pattern, path)))
    wrong = {path: sorted(can - may(path)) for path, can in found.items() if can - may(path)}
    check(f"of {len(found)} paths, others can do with none more than SECURITY.md lists", not wrong and len(found) > 20, wrong)
    for name, can in [("work", {"list", "make"}), ("passwd", {"read"}), ("aws-token", {"read"}), ("secrets/0", {"read"})]:
        of_own = [seen for path, seen in found.items() if path.endswith(f"{own}/{name}")]
        check(f"and with its own {name} what it may", of_own == [can], of_own)
    of_victim = {path: can for path, can in found.items() if victim.name in path}
    check(f"and nothing with the {len(of_victim)} paths of the other job", len(of_victim) > 15 and not any(of_victim.values()), of_victim)
    no_secret_in_a_process(local, hidden, victim)


def no_secret_in_a_process(local, hidden, victim):
    """What `ps` shows to another user."""
    env = {name: value for name, value in local.environment().items() if name in ("AWS_SECRET_ACCESS_KEY", "NODEKEEPER_NODE_KEY")}
    tokens = [victim.joinpath("aws-token").read_text()]
    for file in pathlib.Path(local.dir.name).glob("stack/machines/*/node.json"):
        tokens.append(json.loads(file.read_text())["token"])
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; true"
    line = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups", "sh", "-c", look]
    seen = subprocess.run(line, capture_output=True, check=False).stdout
    there = [secret for secret in [*hidden, *tokens, *env.values()] if secret.encode() in seen]
    check("no secret is in the arguments of a process", not there and len(env) == 2 and b"nodekeeper-agent" in seen, (there, list(env)))


def main():
    with Local("--tick-s", "1") as local:
        all_of(local)
        every_file_is_tried(local)
    print("Nothing answered.")


if __name__ == "__main__":
    sys.exit(main())
