#!/usr/bin/env python3
"""Drives `nodekeeper top` in a pseudo terminal: with invented rows of a large cluster, and with real jobs.

    top.py

It needs the programs in target/debug and tests/requirements.txt. Every check prints a line. The first one that fails
ends it with exit code 1.
"""

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import page_rows
from local_stack import PROGRAM, Local, check

# What a program writes to a terminal: a control sequence, or one character.
PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|(.)", re.DOTALL)
# The beginning of an escape sequence at the end of a text. It may be empty.
BEGUN = re.compile(r"(?:\x1b(?:\[[0-9;?]*)?)?\Z")


class Terminal:
    """A program on a pseudo terminal, with the screen that it draws."""

    def __init__(self, local, *line, columns=110, rows=30, **variables):
        self.columns, self.rows, self.raw = columns, rows, ""
        self.lines = [[" "] * columns for _ in range(rows)]
        self.at = (0, 0)
        self.begun, self.decode = "", codecs.getincrementaldecoder("utf-8")("replace").decode
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        env = {**local.environment(), "TERM": "xterm-256color", **variables}
        self.process = subprocess.Popen([PROGRAM, *line], env=env, stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        start_new_session=True)

    def read(self, seconds):
        """Takes what the program writes within this time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.master], [], [], left)[0]:
                self.take()
                return

    def take(self):
        self.draw(self.decode(os.read(self.master, 65536)))

    def draw(self, text):
        # One read may end within an escape sequence: its beginning waits for the rest.
        text = self.begun + text
        self.begun = BEGUN.search(text)[0]
        text = text.removesuffix(self.begun)
        self.raw += text
        for numbers, command, char in PART.findall(text):
            row, column = self.at
            if command == "H":
                row, column = ([int(n or 1) - 1 for n in numbers.split(";")] + [0, 0])[:2] if numbers else (0, 0)
            elif command == "J":
                self.lines = [[" "] * self.columns for _ in range(self.rows)]
            elif char == "\r":
                column = 0
            elif char == "\n":
                row += 1
            elif char and row < self.rows and column < self.columns:
                self.lines[row][column] = char
                column += 1
            self.at = (row, column)

    def screen(self):
        return "\n".join("".join(line).rstrip() for line in self.lines)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def until(self, what, holds, seconds=60):
        """Waits until the screen is as wanted."""
        end = time.monotonic() + seconds
        while not holds(self.screen()) and time.monotonic() < end and self.process.poll() is None:
            self.read(0.2)
        check(what, holds(self.screen()), f"\n{self.screen()}")

    def ends(self, what, code=0):
        end = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.2)
        while select.select([self.master], [], [], 0.2)[0]:
            self.take()
        check(f"{what}: top ends with exit code {code}", self.process.poll() == code, self.process.poll())
        check(f"{what}: the terminal is as before", termios.tcgetattr(self.slave) == self.before)
        left = self.raw.rfind("\x1b[?1049l")
        check(f"{what}: the screen is given back", left > self.raw.rfind("\x1b[?1049h") >= 0, self.raw[-300:])
        check(f"{what}: the cursor is shown", self.raw.rfind("\x1b[?25h") > self.raw.rfind("\x1b[?25l"), self.raw[-300:])
        os.close(self.master)
        os.close(self.slave)


def no_terminal(local):
    said = local.run("top")
    check("without a terminal it says so in one line", said.returncode == 1 and said.stderr.count("\n") == 1
          and "nodekeeper status" in said.stderr and "nodekeeper jobs" in said.stderr, said.stderr)


def large(local):
    """10,000 jobs and 1,000 nodes."""
    top = Terminal(local, "top")
    top.until("1,000 nodes: the list is there", lambda s: "SLOT" in s and "ready" in s)
    wrong = [c for c in json.loads(local.run("status", "--json").stdout)["checks"] if c["level"] == "wrong"]
    check("it says what `status` says", wrong and "not all is well" in top.screen() and wrong[0]["what"] in top.screen(), top.screen())
    top.press("2")
    top.until("10,000 jobs: the list is there", lambda s: "JOB" in s and "placed" in s)
    # The list has the head of the queue: a job of it.
    name = re.findall(r"train-\d+", top.screen())[-1]
    top.press(f"/{name}")
    top.until("a filter is typed", lambda s: f"/{name}_" in s and name in s.split(f"/{name}_")[0])
    began = time.monotonic()
    top.press("\x1b[F")
    top.press("\x1b")
    top.until("Esc takes the filter away", lambda s: "? help" in s)
    top.press("\x1b[F")
    top.until("a key is answered within two seconds of a slow build", lambda s: "why" in s.lower() and time.monotonic() - began < 2)
    check("text of users cannot control the terminal", "\x1b[31m<" not in top.raw)
    top.process.send_signal(signal.SIGTERM)
    top.ends("a signal")


def real(local):
    """A job that runs, one that waits, and one node."""
    local.run("submit", "--name", "speaks", "--", "sh", "-c", "echo the disk is full; exit 3")
    running = local.run("submit", "--name", "steady", "--", "sleep", "600").stdout.strip()
    local.run("submit", "--name", "too-large", "--vcpus", "512", "--", "true")
    local.until("a job runs and one failed", "api/jobs", lambda part: part["counts"].get("failed") and "placed" in part["counts"])
    top = Terminal(local, "top", NO_COLOR="1")
    top.until("a node is there", lambda s: "SLOT" in s and "ready" in s)
    top.press("\t")
    top.until("Tab shows the jobs", lambda s: "steady" in s and "speaks" in s and "too-large" in s)
    top.press("/speaks\rl")
    top.until("l shows the output", lambda s: "the disk is full" in s and "exit code 3" in s)
    top.press("w")
    top.until("w shows the story", lambda s: "what happened" in s and "submit" in s)
    top.press("\x1b")
    top.until("Esc goes back", lambda s: "WHY" in s)
    top.press("\x1b")
    top.until("Esc shows all", lambda s: "steady" in s)
    top.press("/steady\rc")
    top.until("c asks what will happen", lambda s: "[y/n] Cancel job" in s and "steady? It is stopped on 1 node" in s)
    top.press("n")
    top.until("n changes nothing", lambda s: "nothing was changed" in s)
    state = json.loads(local.run("job", "--json", running).stdout)["state"]
    check("the job still runs", state == "placed", state)
    top.press("c")
    top.until("c asks again", lambda s: "[y/n] Cancel job" in s)
    top.press("y")
    top.until("y cancels", lambda s: f"{running} cancelled" in s)
    state = json.loads(local.run("job", "--json", running).stdout)["state"]
    check("the job is cancelled", state == "cancelled", state)
    colours = re.findall(r"\x1b\[(?:3[0-9]|38;[0-9;]+)m", top.raw)
    check("NO_COLOR takes the colours away", not colours, colours[:5])
    top.press("?")
    top.until("? shows the keys", lambda s: "drain the node, after a question" in s)
    top.press("\x03")
    top.ends("Ctrl-C")
    top = Terminal(local, "top", columns=40, rows=12)
    top.until("40 columns are enough", lambda s: "1 nodes" in s and "2 jobs" in s)
    top.press("2")
    top.until("40 columns show the jobs", lambda s: "JOB" in s and "STATE" in s)
    check("colours are used", re.search(r"\x1b\[38;5;[0-9]+m|\x1b\[3[0-9]m", top.raw), top.raw[:500])
    top.press("q")
    top.ends("q")


def colours(local):
    """The colours of tables: on a terminal, if nobody says otherwise."""
    def said(*line, **variables):
        env = {**local.environment(), **variables}
        return subprocess.run([PROGRAM, *line], env=env, capture_output=True, text=True, check=False).stdout

    def shown(*line, **variables):
        terminal = Terminal(local, *line, columns=300, **variables)
        while terminal.process.poll() is None:
            terminal.read(0.2)
        while select.select([terminal.master], [], [], 0.2)[0]:
            terminal.take()
        return terminal.raw

    plain = said("nodes")
    check("a table in a pipe has no colours", "ready" in plain and "\x1b" not in plain, plain[:300])
    check("--color always colours it", "\x1b[" in said("nodes", "--color", "always") and "\x1b[" in said("status", "--color", "always"))
    check("--color always wins over NO_COLOR", "\x1b[38" in said("nodes", "--color", "always", NO_COLOR="1"))
    check("CLICOLOR_FORCE colours it, and NO_COLOR wins", "\x1b[38" in said("nodes", CLICOLOR_FORCE="1")
          and "\x1b" not in said("nodes", CLICOLOR_FORCE="1", NO_COLOR="1"))
    check("JSON never has colours", "\x1b" not in said("nodes", "--json", "--color", "always"))
    check("a terminal gets colours", "\x1b[38" in shown("nodes"))
    check("NO_COLOR and --color never take them away", "\x1b[" not in shown("nodes", NO_COLOR="1")
          and "\x1b[" not in shown("nodes", "--color", "never"))


def broken(local):
    """A cluster that cannot be read."""
    top = Terminal(local, "top", NODEKEEPER_CLUSTER="nowhere")
    top.until("what cannot be read is said on the screen", lambda s: "cannot read for" in s and "nowhere-" in s)
    top.press("q")
    top.ends("a cluster that is not there")


def main():
    with Local("--functions-url", "http://127.0.0.1:9") as local:
        no_terminal(local)
        page_rows.large(local.environment())
        large(local)
        colours(local)
        broken(local)
    with Local("--tick-s", "1", "--unisolated") as local:
        real(local)
    print("top passed.")


if __name__ == "__main__":
    sys.exit(main())
