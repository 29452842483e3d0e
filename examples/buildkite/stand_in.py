"""A stand-in for Buildkite: its Stacks API, and what its agent does with `start --acquire-job`.

The calls and their answers are as https://buildkite.com/docs/apis/agent-api/stacks has them, with the fields that matter here. How
an agent talks to Buildkite is not part of that, so the stand-in has an agent of its own: `AGENT`, below.
"""

import http.server
import json
import re
import threading
import time
import urllib.parse
import uuid

TOKEN = "bkct_a-token"

# In the place of buildkite-agent. Exit code 27: the job cannot be acquired.
AGENT = '''#!/usr/bin/env python3
import json, pathlib, subprocess, sys, urllib.error, urllib.request

assert sys.argv[1:3] == ["start", "--acquire-job"]
url = pathlib.Path(__file__).with_name("url").read_text()

def call(what, **body):
    body = json.dumps({"job": sys.argv[3]} | body).encode()
    with urllib.request.urlopen(url + what, body, timeout=60) as answer:
        return json.loads(answer.read() or "null")

try:
    job = call("/_agent/acquire")
except urllib.error.HTTPError:
    sys.exit(27)
code = subprocess.run(["sh", "-c", job["command"]]).returncode
call("/_agent/end", code=code)
sys.exit(code)
'''


class Buildkite:
    """The state of the stand-in."""

    def __init__(self):
        self.lock = threading.RLock()
        self.jobs, self.stacks, self.acquired, self.finished, self.is_paused = {}, set(), [], {}, False
        self.looks = 0  # How often scheduled jobs were asked for.
        handler = type("Handler", (Handler,), {"buildkite": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def schedule(self, command, queue="default", priority=0):
        with self.lock:
            id_ = str(uuid.uuid4())
            self.jobs[id_] = {"id": id_, "priority": priority, "agent_query_rules": [f"queue={queue}"], "queue": queue, "command": command,
                              "state": "scheduled", "reserved_until": 0}
            return id_

    def states(self, *ids):
        with self.lock:
            return [self.now(self.jobs[id_]) for id_ in ids]

    def now(self, job):
        if job["state"] == "reserved" and job["reserved_until"] < time.monotonic():
            job["state"] = "scheduled"
        return job["state"]

    def cancel(self, id_):
        with self.lock:
            self.jobs[id_]["state"] = "canceled"


class Handler(http.server.BaseHTTPRequestHandler):
    buildkite = None

    def log_message(self, *_):
        pass

    def answer(self, status, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_call(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or "null")
        url = urllib.parse.urlparse(self.path)
        with self.buildkite.lock:
            if url.path.startswith("/_agent/"):
                return self.agent(url.path, body)
            if self.headers.get("Authorization") != f"Token {TOKEN}":
                return self.answer(401, {"message": "Invalid access token"})
            return self.stacks(url.path, dict(urllib.parse.parse_qsl(url.query)), body)

    do_GET = do_POST = do_PUT = handle_call

    def stacks(self, path, query, body):
        service, found = self.buildkite, re.fullmatch("/v3/stacks/(.+)", path)
        what = (self.command, *found[1].split("/")) if found else ()
        if what == ("POST", "register"):
            if not all(body.get(name) for name in ("key", "type", "queue_key")) or not isinstance(body.get("metadata"), dict):
                return self.answer(422, {"message": "Validation failed"})
            service.stacks.add(body["key"])
            return self.answer(201, body | {"state": "connected"})
        if len(what) < 2 or what[1] not in service.stacks:
            return self.answer(404, {"message": "Stack not found"})
        match (what[0], *what[2:]):
            case ("GET", "scheduled-jobs"):
                service.looks += 1
                shown = ("id", "priority", "agent_query_rules")
                jobs = [{k: j[k] for k in shown} for j in service.jobs.values() if service.now(j) == "scheduled" and j["queue"] == query["queue_key"]]
                page = {"has_next_page": False, "end_cursor": None}
                return self.answer(200, {"jobs": jobs, "page_info": page, "cluster_queue": {"id": "q", "dispatch_paused": service.is_paused}})
            case ("PUT", "scheduled-jobs", "batch-reserve"):
                ours = [id_ for id_ in body["job_uuids"] if service.now(service.jobs[id_]) in ("scheduled", "reserved")]
                for id_ in ours:
                    service.jobs[id_].update(state="reserved", reserved_until=time.monotonic() + body["reservation_expiry_seconds"])
                return self.answer(200, {"reserved": ours, "not_reserved": [id_ for id_ in body["job_uuids"] if id_ not in ours]})
            case ("POST", "jobs", "get-states"):
                return self.answer(200, {"states": {id_: service.now(service.jobs[id_]) for id_ in body["job_uuids"] if id_ in service.jobs}})
            case ("POST", "jobs", id_, "finish") if id_ in service.jobs and body.get("detail"):
                service.jobs[id_]["state"] = "finished"
                service.finished[id_] = body
                return self.answer(200, {})
        return self.answer(404, {"message": "Not Found"})

    def agent(self, path, body):
        job = self.buildkite.jobs.get(body["job"])
        if path == "/_agent/acquire":
            if not job or self.buildkite.now(job) not in ("scheduled", "reserved"):
                return self.answer(422, {"message": "Job is not acquirable"})
            job["state"] = "running"
            self.buildkite.acquired.append(job["id"])
            return self.answer(200, {"command": job["command"]})
        if job["state"] == "running":
            job["state"] = "finished"
            self.buildkite.finished[job["id"]] = {"exit_status": body["code"]}
        return self.answer(200)
