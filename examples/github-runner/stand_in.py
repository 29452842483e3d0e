"""A stand-in for GitHub: the calls of its REST API that the controller makes, and what its runner does.

The calls and their answers are as https://docs.github.com/en/rest/actions has them (version 2022-11-28), with the fields that
matter here. How a runner talks to GitHub is not published, so the stand-in has a runner of its own: `run.py`, below.
"""

import base64
import http.server
import json
import re
import threading
import urllib.parse

TOKEN = "a-token"

RUN_SH = '''#!/bin/sh
# In the place of the runner's run.sh.
exec python3 "$(dirname "$0")/run.py" "$@"
'''
RUN_PY = '''
import base64, json, subprocess, sys, time, urllib.request

assert sys.argv[1] == "--jitconfig"
config = json.loads(base64.b64decode(sys.argv[2]))

def call(what, **body):
    body = json.dumps({"secret": config["secret"]} | body).encode()
    with urllib.request.urlopen(config["url"] + what, body, timeout=60) as answer:
        return json.loads(answer.read() or "null")

while not (job := call("/_runner/job")):
    time.sleep(0.2)
code = subprocess.run(["sh", "-c", job["steps"]]).returncode
call("/_runner/end", code=code)
'''


class GitHub:
    """The state of the stand-in."""

    def __init__(self):
        self.lock = threading.RLock()
        self.jobs, self.runners, self.ran, self.registered = {}, {}, [], 0
        self.lose_answers = 0  # Of so many of the next registrations.
        self.is_assigning, self.prefer = True, {}
        self.refused = 0  # How often a busy runner was not removed.
        handler = type("Handler", (Handler,), {"github": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def queue(self, steps, *labels, run=1):
        with self.lock:
            id_ = 1000 + len(self.jobs)
            self.jobs[id_] = {"id": id_, "run_id": run, "status": "queued", "conclusion": None, "labels": list(labels), "runner_id": None, "steps": steps}
            return id_

    def cancel(self, id_):
        with self.lock:
            self.jobs[id_].update(status="completed", conclusion="cancelled")

    def states(self, *ids):
        with self.lock:
            return [self.jobs[id_]["conclusion"] or self.jobs[id_]["status"] for id_ in ids or self.jobs]

    def runs(self, status):
        """A run is queued until a job of it has begun, and ends with its last job."""
        by_run = {}
        for job in self.jobs.values():
            by_run.setdefault(job["run_id"], set()).add(job["status"])
        is_of = {"queued": lambda s: s == {"queued"}, "in_progress": lambda s: s != {"queued"} and s != {"completed"}}[status]
        return [{"id": run, "status": status} for run, statuses in by_run.items() if is_of(statuses)]

    def assign(self, runner):
        """GitHub gives a runner any queued job whose labels it has."""
        fits = [j for j in self.jobs.values() if j["status"] == "queued" and {*j["labels"]} <= {*runner["labels"]}]
        wanted = self.prefer.get(runner["name"])
        fits = [j for j in fits if wanted in (None, j["id"])] if self.is_assigning else []
        if not fits:
            return None
        fits[0].update(status="in_progress", runner_id=runner["id"])
        runner.update(busy=True, job=fits[0])
        self.ran.append(fits[0]["id"])
        return {"steps": fits[0]["steps"]}


class Handler(http.server.BaseHTTPRequestHandler):
    github = None

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
        query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query).items()}
        with self.github.lock:
            if url.path.startswith("/_runner/"):
                return self.runner(url.path, body)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer(401, {"message": "Bad credentials"})
            return self.rest(url.path, query, body)

    do_GET = do_POST = do_DELETE = handle_call

    def listed(self, name, rows, query):
        first = (int(query.get("page", 1)) - 1) * int(query["per_page"])
        return self.answer(200, {"total_count": len(rows), name: rows[first : first + int(query["per_page"])]})

    def rest(self, path, query, body):
        github, shown = self.github, lambda row: {k: v for k, v in row.items() if k not in ("steps", "job", "secret")}
        path = re.fullmatch("/repos/org/repo/actions/(.+)", path)
        what = (self.command, *path[1].split("/")) if path else ()
        match what:
            case ("GET", "runs"):
                return self.listed("workflow_runs", github.runs(query["status"]), query)
            case ("GET", "runs", run, "jobs"):
                return self.listed("jobs", [shown(j) for j in github.jobs.values() if j["run_id"] == int(run)], query)
            case ("GET", "jobs", id_) if int(id_) in github.jobs:
                return self.answer(200, shown(github.jobs[int(id_)]))
            case ("GET", "runners"):
                return self.listed("runners", [shown(r) for r in github.runners.values() if r["name"] == query["name"]], query)
            case ("GET", "runners", id_) if int(id_) in github.runners:
                return self.answer(200, shown(github.runners[int(id_)]))
            case ("DELETE", "runners", id_) if int(id_) in github.runners:
                if github.runners[int(id_)]["busy"]:
                    github.refused += 1
                    return self.answer(422, {"message": "Runner is currently running a job and cannot be deleted."})
                del github.runners[int(id_)]
                return self.answer(204)
            case ("POST", "runners", "generate-jitconfig"):
                return self.register(body)
        return self.answer(404, {"message": "Not Found"})

    def register(self, body):
        github = self.github
        if not all(body.get(name) for name in ("name", "runner_group_id", "labels")):
            return self.answer(422, {"message": "Invalid input"})
        if any(r["name"] == body["name"] for r in github.runners.values()):
            return self.answer(409, {"message": "Already exists"})
        github.registered += 1
        id_, secret = github.registered, f"secret-{github.registered}"
        github.runners[id_] = {"id": id_, "name": body["name"], "labels": body["labels"], "busy": False, "secret": secret}
        if github.lose_answers:
            github.lose_answers -= 1
            return self.connection.close()
        config = base64.b64encode(json.dumps({"url": github.url, "secret": secret}).encode()).decode()
        return self.answer(201, {"runner": {"id": id_, "name": body["name"]}, "encoded_jit_config": config})

    def runner(self, path, body):
        runner = next((r for r in self.github.runners.values() if r["secret"] == body["secret"]), None)
        if not runner:
            return self.answer(404)
        if path == "/_runner/job":
            return self.answer(200, self.github.assign(runner))
        if runner["job"]["status"] != "completed":
            runner["job"].update(status="completed", conclusion="failure" if body["code"] else "success")
        del self.github.runners[runner["id"]]  # It was for one job.
        return self.answer(200)
