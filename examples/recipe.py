"""What the recipes in Python share: settings, calls of nodekeeper, and files that survive a crash.

A recipe turns the requests of another queue into jobs of nodekeeper, one job for each. `Nodekeeper.submit` is what keeps it
from doing that twice: the same text is the same job, however often it is submitted. So a recipe first notes what it is
going to submit, then submits it, and after a crash submits what is noted once more.

It needs Python 3.9 or later and nothing else. Copy it beside the program of the recipe.
"""

import concurrent.futures
import configparser
import fcntl
import hashlib
import json
import logging
import os
import pathlib
import signal
import subprocess
import threading
import urllib.error
import urllib.request

LIVE = ("queued", "placing", "placed", "regrouping")
NUMBERS = ("vcpus", "gpus", "priority", "retry_lost")
TEXTS = ("memory", "scratch", "timeout", "kill_timeout", "lost_after", "instance_type", "market")
# How long one call of a program may take.
CALL_S = 60
# How many things are worked on at the same time.
AT_ONCE = 8


class Mistake(Exception):
    """Something that went wrong, or that a person must correct. Its text says what."""


class Settings:
    """A file with settings. `kind` is the first word of the sections that describe jobs."""

    def __init__(self, path, kind):
        self.path = path
        self.parser = configparser.ConfigParser(interpolation=None)
        self.parser.optionxform = str
        try:
            self.parser.read_string(path.read_text(encoding="utf-8"))
        except (OSError, configparser.Error) as error:
            raise Mistake(f"{path} cannot be read: {error}") from error
        os.environ.update(self.parser["environment"] if "environment" in self.parser else {})
        self.kinds = {s.partition(" ")[2].strip(): self.parser[s] for s in self.parser.sections() if s.startswith(f"{kind} ")}
        for name, section in self.kinds.items():
            if unknown := set(section) - {*NUMBERS, *TEXTS, "command", "exclusive"}:
                raise Mistake(f"{path}: {', '.join(sorted(unknown))} is not known in [{kind} {name}]: remove it")
            if "command" not in section:
                raise Mistake(f"{path}: [{kind} {name}] has no command: give the line that is run on the node")

    def get(self, section, name, default=None):
        value = self.parser.get(section, name, fallback=default)
        if value is None:
            raise Mistake(f"{self.path} has no {name} in [{section}]: add it, as the file of the recipe shows")
        return value

    def state(self):
        """The directory for what is remembered. What is done is logged there too."""
        state = pathlib.Path(self.get("programs", "state"))
        try:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            to_file = logging.FileHandler(state / "log", encoding="utf-8")
        except OSError as error:
            raise Mistake(f"the state cannot be written: {error}: give the directory to the user that runs this") from error
        form = logging.root.handlers[0].formatter
        to_file.setFormatter(logging.Formatter(f"%(asctime)s {form._fmt}" if form else None))
        logging.root.addHandler(to_file)
        return state

    def job(self, kind, name, **env):
        """The attributes of a job of this kind, as `nodekeeper submit --file` takes them."""
        section = self.kinds[kind]
        # The other queue decides what runs again: a second copy would be one that it did not ask for.
        job = {"name": name, "env": env, "retry_lost": 0, "command": section["command"]}
        try:
            job["exclusive"] = section.getboolean("exclusive", fallback=False)
            job.update({n: section.getint(n) for n in NUMBERS if n in section})
        except ValueError as error:
            raise Mistake(f"{self.path}: in the section for {kind}: {error}") from error
        job.update({n: section[n] for n in TEXTS if n in section})
        return job


def call(program, *line, text=None):
    """Runs a program, and returns what it printed."""
    try:
        done = subprocess.run([program, *line], input=text, capture_output=True, text=True, timeout=CALL_S, check=False)
    except OSError as error:
        raise Mistake(f"{program} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Mistake(f"{program} {line[0]} took longer than {CALL_S} s") from error
    if done.returncode != 0:
        raise Mistake(f"{program} {' '.join(line[:3])}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Nodekeeper:
    """The commands of nodekeeper that recipes need."""

    def __init__(self, settings):
        self.program = settings.get("programs", "nodekeeper")

    def submit(self, job, once=False):
        """The id of this job. The same job is submitted only once while it has not ended; with `once`, also after that."""
        text = json.dumps(job, sort_keys=True)
        if once:
            text = json.dumps(job | {"key": f"{job['name']}/{hashlib.sha256(text.encode()).hexdigest()}"}, sort_keys=True)
        return json.loads(call(self.program, "submit", "--file", "-", "--json", text=text))[0]["job_id"]

    def state_of(self, job_id):
        """The state of a job, and its reason. A job that ended long ago is not stored any more."""
        try:
            job = json.loads(call(self.program, "job", job_id, "--json"))
        except Mistake as mistake:
            if "no stored job" in str(mistake):
                return "gone", "it ended long ago"
            raise
        return job["state"], job.get("reason", "its command ended with exit code 0")

    def is_live(self, job_id):
        return self.state_of(job_id)[0] in LIVE

    def cancel(self, job_id):
        """Ends a job. True if this did it, false if it had ended before."""
        try:
            call(self.program, "cancel", job_id)
        except Mistake:
            if self.is_live(job_id):
                raise
            return False
        return True


def each(work, things):
    """Does the work for some things at a time. A mistake with one does not keep the others. True if all is done."""

    def one(thing):
        try:
            work(thing)
        except Mistake as mistake:
            logging.error("%s: %s", thing, mistake)
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        return all(list(threads.map(one, things)))


def read(file):
    """What is noted in this file; `None` if there is none."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Mistake(f"{file} cannot be read: {error}: correct or delete it") from error


def write(file, what):
    """Notes it, so that it is there after a crash, or what was there before."""
    new = file.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as to:
        json.dump(what, to)
        to.flush()
        os.fsync(to.fileno())
    new.rename(file)


class Api:
    """Another service's API in JSON."""

    def __init__(self, base, **headers):
        self.base, self.headers = base.rstrip("/"), {"Content-Type": "application/json", "User-Agent": "nodekeeper-recipe"} | headers

    def call(self, method, path, body=None, also=()):
        """The status and the answer. A status above 299 is a mistake, if it is not in `also`."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, self.headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            if error.code in also:
                return error.code, None
            advice = {401: "the token is wrong or has ended", 403: "the token may not do this, or there were too many calls",
                      404: "it is not there, or the token may not see it", 429: "there were too many calls"}.get(error.code, "")
            raise Mistake(f"{method} {self.base}{path}: {error.code} ({advice or error.reason}): {said[:300]}") from error
        except (OSError, ValueError) as error:
            raise Mistake(f"{method} {self.base}{path}: {error}") from error


def alone(state):
    """Takes care that only one program uses this state. The file that is returned must stay open."""
    lock = open(state / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Mistake(f"another program uses {state}: end it first, or give this one another state") from error
    return lock


def for_ever(look, every_s):
    """Looks again and again, until TERM or Ctrl-C. A mistake is told once, and then again when it changes."""
    told, ended = None, threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    while not ended.is_set():
        try:
            look()
            told = None
        except Mistake as mistake:
            if str(mistake) != told:
                logging.error("%s", mistake)
            told = str(mistake)
        ended.wait(every_s)
