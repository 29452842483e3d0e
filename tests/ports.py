#!/usr/bin/env python3
"""Jobs of a `nodekeeper local` try to fill every port that they reach.

One job opens 20,000 connections, and holds them. Another one does to each port what keeps a connection busy. Meanwhile the nodes send
their heartbeats, the owner is answered at each port, and an honest job gets its role, its secret and its files.
"""

import json
import pathlib
import re
import resource
import subprocess
import sys
import time

from attacks import FOR_JOBS, addresses, curl
from local_stack import Local, check, wait_until

CONNECTIONS = 20_000
# As a service of systemd has it. With more, a process bears more connections, whoever opens them.
DESCRIPTORS = 1024
# A caller has 20 s for each part of a request. The rest is for a busy machine.
AT_MOST_S = 45

FLOOD = r"""
import json, os, resource, socket, sys, time
ports, connections, processes = json.loads(sys.argv[1]), int(sys.argv[2]), 8
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
pipes = []
for part in range(processes):
    read, write = os.pipe()
    pipes.append(read)
    if os.fork() == 0:
        held, opened = [], 0
        for n in range(part, connections, processes):
            one = socket.socket()
            one.settimeout(5)
            try:
                one.connect(('127.0.0.1', ports[n % len(ports)]))
                opened += 1
            except OSError:
                pass
            held.append(one)
        os.write(write, f'{len(held)} {opened}\n'.encode())
        time.sleep(600)
        os._exit(0)
    os.close(write)
tried, opened = map(sum, zip(*(map(int, os.read(pipe, 100).split()) for pipe in pipes)))
print('flood', tried, opened, flush=True)
time.sleep(600)
"""

# Each prints how it ended: after how many seconds, after how many bytes were sent, and what came back.
BUSY = r"""
import json, select, socket, sys, threading, time
ports, at_most_s = json.loads(sys.argv[1]), int(sys.argv[2])
host = b'host: localhost\r\n'
chunk = b'10000\r\n' + b'x' * 0x10000 + b'\r\n'
WAYS = {
    'sends nothing': (b'', b'', 1),
    'a slow head': (b'GET / HTTP/1.1\r\n' + host + b'x: ', b'x', 1),
    'half a body': (b'POST / HTTP/1.1\r\n' + host + b'content-length: 100000\r\n\r\nx', b'', 1),
    'half a body in chunks': (b'PUT /local/x HTTP/1.1\r\n' + host + b'transfer-encoding: chunked\r\n\r\n1\r\nx\r\n', b'', 1),
    'a huge head': (b'GET / HTTP/1.1\r\n' + host, b'x: ' + b'x' * 10000 + b'\r\n', 0),
    'a huge body': (b'POST / HTTP/1.1\r\n' + host + b'transfer-encoding: chunked\r\n\r\n', chunk, 0),
    'never reads': (b'', (b'GET / HTTP/1.1\r\n' + host + b'\r\n') * 1000, 0),
}
found = {}

def has_ended(one, wait_s):
    poll = select.poll()
    poll.register(one, select.POLLRDHUP)
    return any(event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR) for _, event in poll.poll(wait_s * 1000))

def busy(port, way):
    start, piece, pause_s = WAYS[way]
    began, sent, answer, ended = time.monotonic(), 0, b'', False
    one = socket.create_connection(('127.0.0.1', port))
    one.settimeout(1)
    try:
        one.sendall(start)
        while not ended and time.monotonic() - began < at_most_s:
            if piece:
                try:
                    sent += one.send(piece)
                except TimeoutError:
                    pass
            ended = has_ended(one, pause_s if piece else 1)
    except OSError:
        ended = True
    took = time.monotonic() - began
    if way != 'never reads':
        try:
            answer = one.recv(200)
        except OSError:
            pass
    found.setdefault(str(port), {})[way] = [ended, round(took, 1), sent, answer[9:12].decode(errors='replace')]

threads = [threading.Thread(target=busy, args=(port, way)) for port in ports for way in WAYS]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(found))
"""
HONEST = 'test "$X" = "correct horse" && cat given > result'


def ports_of(local):
    """The port of each part, and of each agent."""
    ports = {name: int(address.rpartition(":")[2]) for name, address in addresses(local).items()}
    for file in pathlib.Path(local.dir.name).glob("stack/machines/*/data/credentials-port"):
        ports[f"agent {file.parent.parent.name}"] = int(file.read_text())
    return ports


def owner_is_answered(local):
    for name, address in addresses(local).items():
        began = time.monotonic()
        code = subprocess.run(curl("GET", address, ""), capture_output=True, text=True, check=False).stdout
        check(f"the owner is answered at the port of {name}", code != "000" and time.monotonic() - began < 5, (code, time.monotonic() - began))


def nodes_are_there(local, flood, before):
    """No node was silent, and each sends its heartbeats now."""
    said = local.run("history", "cluster").stdout
    silent = [line for line in said.splitlines() if re.search("silent|lease|disconnect|suspect|down", line) and line not in before]
    check("no node is silent", not silent, silent)
    job = json.loads(local.run("job", flood, "--json").stdout)
    check("the job that fills the ports runs on", "running" in json.dumps(job), job)


def every_way_ends(found, ports):
    names = {str(port): name for name, port in ports.items()}
    for port, ways in found.items():
        for way, (ended, took_s, sent, code) in ways.items():
            name = names[port]
            answers = name.startswith("agent") or name in FOR_JOBS
            check(f"{way} at the port of {name} ends after {took_s} s and {sent} bytes with {code or 'nothing'}",
                  ended and took_s < AT_MOST_S and sent < 64 << 20 and (answers or not code), (ended, answers))


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with_few = lambda few: resource.setrlimit(resource.RLIMIT_NOFILE, (min(few, hard), hard))
    with_few(DESCRIPTORS)
    with Local("--tick-s", "1") as local:
        if "isolated: each runs as a user id of its own" not in pathlib.Path(local.log.name).read_text():
            print("left out: jobs that fill ports, which need root", flush=True)
            return
        local.secrets({"/db/password": "correct horse"})
        # A node with room for all three jobs.
        keeper = local.run("submit", "--vcpus", "1", "--", "sleep", "600").stdout.strip()
        wait_until("a node is there", lambda: '"running"' in local.run("job", keeper, "--json").stdout)
        ports = ports_of(local)
        before = local.run("history", "cluster").stdout.splitlines()
        all_ports = json.dumps(sorted(ports.values()))
        flood = local.run("submit", "--vcpus", "1", "--", "python3", "-c", FLOOD, all_ports, str(CONNECTIONS)).stdout.strip()
        done = wait_until("20,000 connections are tried", lambda: re.search(r"flood (\d+) (\d+)", local.run("logs", flood).stdout))
        check(f"so many were tried, and {done[2]} were opened at first", int(done[1]) == CONNECTIONS, done[0])
        owner_is_answered(local)
        given = pathlib.Path(local.dir.name, "given")
        given.write_text("data")
        began = time.monotonic()
        honest = local.run("run", "--vcpus", "1", "--role", "local-job", "--secret", "X=/db/password", "--in", str(given), "--out", "result", "--",
                           "sh", "-c", HONEST)
        check(f"an honest job gets its role, its secret and its files in {time.monotonic() - began:.0f} s", honest.returncode == 0, honest.stderr)
        nodes_are_there(local, flood, before)
        busy = local.run("run", "--quiet", "--vcpus", "1", "--", "python3", "-c", BUSY, all_ports, str(AT_MOST_S))
        every_way_ends(json.loads(busy.stdout or "{}"), ports)
        owner_is_answered(local)
        nodes_are_there(local, flood, before)
        closed = pathlib.Path(local.log.name).read_text()
        check("what was closed is in the log, with its user", re.search(r"connections are closed: .*user=\D*[1-9]\d{6,}", closed), closed[-2000:])
    print("No port was filled.")


if __name__ == "__main__":
    sys.exit(main())
