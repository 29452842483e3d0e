#!/usr/bin/env python3
"""Jobs with a role and with secrets on a `nodekeeper local`: what boto3 gets in a job, and what nobody else gets.

The service that gives the credentials is tried with each wrong question in `tests/src/callers/rights.rs`, and against moto's STS.
"""

import concurrent.futures
import json
import pathlib
import sys

from local_stack import PROGRAM, ROOT, Local, check, wait_until

# What the secrets of the local system are.
SECRETS = {
    "/db/password": "correct horse",
    "arn:aws:secretsmanager:local-1:000000000000:secret:db-AbCdEf": json.dumps({"user": "me", "password": "battery"}),
}
# boto3 finds the credentials by itself: nothing here says where they are.
WHO_AM_I = """
import boto3, json
arn = boto3.client('sts').get_caller_identity()['Arn']
value = boto3.client('ssm').get_parameter(Name='/db/password', WithDecryption=True)['Parameter']['Value']
print(json.dumps([arn, value]))
"""
# A session of the job's role ends after so many seconds.
SESSION_S = 12
# It calls for two sessions and more, and tries the first session again when it has ended.
RENEWS = """
import boto3, botocore.exceptions, json, time
session = boto3.Session()
now = lambda: session.get_credentials().get_frozen_credentials()
first, keys, until = now(), set(), time.time() + 26
while time.time() < until:
    session.client('sts').get_caller_identity()
    keys.add(now().access_key)
    time.sleep(1)
old = dict(zip(('aws_access_key_id', 'aws_secret_access_key', 'aws_session_token'), first))
try:
    ended = boto3.client('sts', **old).get_caller_identity()
except botocore.exceptions.ClientError as error:
    ended = error.response['Error']['Code']
print(json.dumps([len(keys), ended]))
"""
# A program with the SDK for Rust, which looks for credentials as every one does by default. Its requests go to this job, which
# notes who signs them.
RUST = r"""
import http.server, json, os, re, subprocess, sys, threading, time, urllib.request
signed = []
class Tables(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        signed.append(re.search('Credential=([^/]*)/', self.headers['authorization'])[1])
        body = b'{"Items": [], "Count": 0, "ScannedCount": 0, "Responses": {}, "UnprocessedKeys": {}}'
        self.send_response(200)
        self.send_header('content-type', 'application/x-amz-json-1.0')
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Tables)
threading.Thread(target=server.serve_forever, daemon=True).start()
given = {name: value for name, value in os.environ.items() if not name.startswith('AWS_ENDPOINT')}
assert not any(name in given for name in ('AWS_ACCESS_KEY_ID', 'AWS_PROFILE')), given
url = f'http://127.0.0.1:{server.server_port}'
token = open(given['AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE']).read()
ask = urllib.request.Request(given['AWS_CONTAINER_CREDENTIALS_FULL_URI'], headers={'Authorization': token})
first = json.load(urllib.request.urlopen(ask))['AccessKeyId']
watch = subprocess.Popen([sys.argv[1], 'jobs', '--watch'], stdout=subprocess.DEVNULL, env={**given, 'AWS_ENDPOINT_URL': url, 'NODEKEEPER_CLUSTER': 'x'})
time.sleep(26)
watch.terminate()
watch.wait()
print(json.dumps([bool(signed) and signed[0] == first, len(set(signed))]))
"""
# Another job tries everything that it can see of the first.
STEAL = r"""
import os, urllib.error, urllib.request
found = []
uri = os.environ['VICTIM_URI']
got = []
for token in ['', '0' * 64, open(os.environ['AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE']).read()]:
    try:
        got.append(urllib.request.urlopen(urllib.request.Request(uri, headers={'Authorization': token})).read())
    except urllib.error.HTTPError as error:
        found.append(error.code)
for path in [os.environ['VICTIM_TOKEN'], os.environ['VICTIM_SECRET'], os.path.dirname(os.environ['VICTIM_SECRET'])]:
    try:
        got.append(os.listdir(path) if os.path.isdir(path) else open(path).read())
    except OSError as error:
        found.append(type(error).__name__)
print(got, found)
"""
PYTHON = ROOT / "target/venv/bin/python"


def completes(local, what, *line, wanted=None):
    ran = local.run("run", "--quiet", *line)
    check(what, ran.returncode == 0 and (wanted is None or ran.stdout.strip() == wanted), (ran.stdout, ran.stderr))
    return ran.stdout.strip()


def is_rejected(local, what, said, *line):
    ran = local.run("run", *line)
    check(what, ran.returncode != 0 and said in ran.stderr, (ran.returncode, ran.stdout, ran.stderr))


def boto3_finds_its_way(role):
    """In jobs of the own user, because others may not reach the Python environment of the tests."""
    with Local("--tick-s", "1", "--unisolated") as local:
        local.secrets(SECRETS)
        arn, value = json.loads(completes(local, "boto3 has the role of its job", *role, "--", str(PYTHON), "-c", WHO_AM_I))
        check("it is a session of the role, named after the alloc", arn.startswith("arn:aws:sts::000000000000:assumed-role/local-job/01"), arn)
        check("and reads a secret with it", value == "correct horse", value)
        pathlib.Path(f"{local.dir.name}/stack/session-seconds").write_text(str(SESSION_S))
        with concurrent.futures.ThreadPoolExecutor() as both:
            python = both.submit(local.run, "run", "--quiet", *role, "--", str(PYTHON), "-c", RENEWS)
            rust = both.submit(local.run, "run", "--quiet", *role, "--", str(PYTHON), "-c", RUST, str(PROGRAM))
        sessions, ended = json.loads(python.result().stdout or "[0, 0]")
        check("boto3 in a running job renews them before they end", sessions >= 3 and ended == "InvalidClientTokenId", python.result())
        is_first, sessions = json.loads(rust.result().stdout or "[0, 0]")
        check("the SDK for Rust in a job has the role of its job too", is_first, rust.result())
        check("and renews them", sessions >= 3, rust.result())


def main():
    role = ["--role", "local-job"]
    boto3_finds_its_way(role)
    with Local("--tick-s", "1") as local:
        local.secrets(SECRETS)
        place = "arn:aws:secretsmanager:local-1:000000000000:secret:db-AbCdEf"
        script = 'test "$(stat -c %a "$KEY")" = 400; printf "%s %s" "$PASSWORD" "$(cat "$KEY")"'
        completes(local, "secrets are a variable and a file that only the job reads", *role, "--secret", f"PASSWORD={place}#password",
                  "--secret-file", "KEY=/db/password", "--", "sh", "-ec", script, wanted="battery correct horse")
        shown = local.run("jobs", "--all", "--json").stdout + local.run("history", "cluster", "--json").stdout
        logs = "".join(path.read_text(errors="replace") for path in pathlib.Path(f"{local.dir.name}/stack/logs").glob("*.log"))
        check("no secret is in a list, an event or a log", "battery" not in shown + logs and "correct horse" not in shown + logs)
        completes(local, "a job without a role has none", "--", "sh", "-c", "env | grep -c AWS_ || true", wanted="0")

        is_rejected(local, "a secret that is not there", "the secret X cannot be read: ParameterNotFound", *role, "--secret", "X=/absent", "--", "true")
        is_rejected(local, "a field that is not there", "it has no field colour", *role, "--secret", f"X={place}#colour", "--", "true")
        is_rejected(local, "a role that the policy does not list", "the policy lists no role admin", "--role", "admin", "--", "true")
        is_rejected(local, "a secret without a role", "a secret is read with the role of the job", "--secret", "X=/db/password", "--", "true")
        is_rejected(local, "a place that is none", 'the place of the secret "X" must be the ARN', *role, "--secret", "X=db", "--", "true")

        attacked(local, role)
        local.secrets('{"/db/password": "x"')
        is_rejected(local, "secrets that are no JSON", "secrets.json, which is no JSON: ", *role, "--secret", "X=/db/password", "--", "true")
        local.secrets(SECRETS)
        place = pathlib.Path(f"{local.dir.name}/stack/secrets.json")
        for mode in (0o644, 0o640, 0o606, 0o620):
            place.chmod(mode)
            is_rejected(local, f"secrets with mode {mode:o}", f"other users can read or change it: chmod 600 {place}", *role, "--secret", "X=/db/password", "--", "true")
        place.chmod(0o600)
        completes(local, "and with mode 600", *role, "--secret", "X=/db/password", "--", "sh", "-c", "echo $X", wanted="correct horse")
    print("Jobs have the rights that they were given, and no others.")


def attacked(local, role):
    """A job of the same node, with a role of its own, tries to get what a running job has."""
    script = 'echo "$AWS_CONTAINER_CREDENTIALS_FULL_URI $AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE $KEY"; exec sleep 300'
    victim = local.run("submit", *role, "--secret-file", "KEY=/db/password", "--vcpus", "1", "--", "sh", "-c", script).stdout.strip()
    shown = wait_until("the victim runs", lambda: local.run("logs", victim).stdout.split())
    uri, token, secret = shown
    if "isolated: each runs as a user id of its own" in pathlib.Path(local.log.name).read_text():
        env = ["--env", f"VICTIM_URI={uri}", "--env", f"VICTIM_TOKEN={token}", "--env", f"VICTIM_SECRET={secret}"]
        stolen = completes(local, "another job tries", *role, *env, "--", "python3", "-c", STEAL)
        check("and gets nothing", stolen == "[] [401, 401, 401, 'PermissionError', 'PermissionError', 'PermissionError']", stolen)
    else:
        print("left out: attacks of an isolated job, which need root", flush=True)
    local.run("cancel", victim)
    wait_until("its token and its secret are gone with its alloc", lambda: not any(pathlib.Path(file).exists() for file in (token, secret)))


if __name__ == "__main__":
    sys.exit(main())
