"""The first answer of a function's process: what its start costs, counted in instructions or in CPU time.

It runs the function as Lambda does, with a stand-in for the runtime's API and for a DynamoDB without rows, once with Amazon's root
certificates and once with the machine's list of authorities.
"""

import hashlib
import hmac
import http.server
import json
import re
import resource
import shutil
import signal
import subprocess
import threading

# In the first region a function believes only Amazon, in the second one what its machine believes.
OWN, MACHINE = "us-east-1", "us-gov-west-1"
NODE = "0-01ARZ3NDEKTSV4RRFFQ69G5FAV"
KEY = "5a" * 32
TOKEN = hmac.new(bytes.fromhex(KEY), f"nodekeeper/v1/cold/{NODE}".encode(), hashlib.sha256).hexdigest()
BEAT = {"instance_id": "i-1", "boot_id": "b", "as_of": 0}
EVENT = {
    "version": "2.0", "rawPath": f"/v1/nodes/{NODE}/heartbeat", "isBase64Encoded": False, "body": json.dumps(BEAT),
    "headers": {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"},
    "requestContext": {"http": {"method": "POST", "path": f"/v1/nodes/{NODE}/heartbeat"}},
}
# What each function is started by.
EVENTS = {"heartbeat-ingest": EVENT, "sweep-dispatch": {}, "clean-stale-records": {}, "poll-and-scale": {}}


class Stand(http.server.BaseHTTPRequestHandler):
    """Gives one invocation, takes its answer, and is a DynamoDB without rows."""

    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"{}", **headers):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.server.given.is_set():
            self.server.over.wait()
            return
        self.server.given.set()
        self.answer(200, json.dumps(self.server.event).encode(), **{
            "Lambda-Runtime-Aws-Request-Id": "1", "Lambda-Runtime-Deadline-Ms": "9999999999999",
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:us-east-1:1:function:f",
        })

    def do_POST(self):
        body = self.body()
        if "runtime" not in self.path:
            self.answer(200, b'{"Items": [], "Count": 0, "ScannedCount": 0}' if self.headers["X-Amz-Target"].endswith("Scan") else b"{}")
            return
        self.answer(202)
        self.server.answered = body.decode()
        self.server.done.set()

    def body(self):
        if length := self.headers.get("Content-Length"):
            return self.rfile.read(int(length))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """The function ends in the midst of a call."""


def first_answer(program, counted, region):
    """The instructions to the first answer, or with `counted` false the CPU time in seconds."""
    server = Server(("127.0.0.1", 0), Stand)
    server.given, server.done, server.over, server.answered = threading.Event(), threading.Event(), threading.Event(), None
    server.event = EVENTS[program.name]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"127.0.0.1:{server.server_port}"
    environment = {
        "AWS_LAMBDA_RUNTIME_API": at, "AWS_LAMBDA_FUNCTION_NAME": "f", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128",
        "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_REGION": region, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_ENDPOINT_URL_DYNAMODB": f"http://{at}", "NODEKEEPER_CLUSTER": "cold", "NODEKEEPER_NODE_KEY": KEY,
        "NODEKEEPER_HEARTBEAT_URL": "https://h", "NODEKEEPER_SWEEP_URL": "https://s",
    }
    words = [str(program)]
    if counted:
        words = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert server.done.wait(300), "no answer"
        finally:
            server.over.set()
            process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[1]
    server.shutdown()
    assert server.answered and "no policy is stored" in server.answered, (server.answered, said[-2000:])
    if counted:
        return int(re.search(r"Collected : (\d+)", said)[1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(program, count):
    """What the first answer costs, the same with the machine's list, and what is counted."""
    counted = shutil.which("valgrind") is not None
    times = range(1 if counted else count)
    own, machine = ([first_answer(program, counted, region) for _ in times] for region in (OWN, MACHINE))
    middle = len(times) // 2
    return sorted(own)[middle], sorted(machine)[middle], "instructions" if counted else "s of CPU time"
