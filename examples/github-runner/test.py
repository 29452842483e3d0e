"""Queued workflow jobs of a stand-in for GitHub get runners, each one, and cancelled ones lose them. Run by tests/examples.py."""

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess

from local_stack import PROGRAM, check, wait_until

HERE = pathlib.Path(__file__).parent
PROGRAMS = {"python3": "python3"}
OPTIONS = ["--tick-s", "1"]

spec = importlib.util.spec_from_file_location("github_stand_in", HERE / "stand_in.py")
stand_in = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stand_in)


class Recipe:
    """The controller with its files in a directory of its own."""

    def __init__(self, local, github):
        self.local, self.github, self.dir = local, github, pathlib.Path(local.dir.name, "github")
        self.dir.mkdir()
        for file in (HERE / "controller", HERE.parent / "recipe.py"):
            shutil.copy(file, self.dir)
        runner = self.dir / "actions-runner"
        runner.mkdir()
        (runner / "run.sh").write_text(stand_in.RUN_SH)
        (runner / "run.sh").chmod(0o755)
        (runner / "run.py").write_text(stand_in.RUN_PY)
        (self.dir / "token").write_text(stand_in.TOKEN)
        self.settings = self.dir / "nodekeeper.conf"
        text = (HERE / "nodekeeper.conf").read_text()
        environment = pathlib.Path(local.dir.name, "stack/env").read_text().replace("'", "")
        text = re.sub(r"NODEKEEPER_CLUSTER.*\nAWS_REGION.*\n", lambda _: environment, text)
        for old, new in [("/usr/local/bin/nodekeeper", PROGRAM), ("/var/lib/nodekeeper-github", self.dir / "state"), ("https://api.github.com", github.url),
                         ("/etc/nodekeeper-github/token", self.dir / "token"), ("OWNER/NAME OWNER/OTHER", "org/repo"),
                         ("/opt/actions-runner", runner), ("vcpus = 2", "vcpus = 1"), ("7G", "512M"), ("exclusive = true", "exclusive = false")]:
            assert old in text, old
            text = text.replace(old, str(new))
        self.settings.write_text(text + "\n[label nodekeeper-large]\ncommand = echo this image has no runner; exit 3\nvcpus = 2\n")

    def controller(self):
        return subprocess.Popen([self.dir / "controller", "--every", "0.5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def jobs(self):
        return json.loads(self.local.run("jobs", "--all", "--json").stdout)

    def noted(self):
        return sorted((self.dir / "state").glob("*.json"))

    def is_settled(self):
        return not self.noted() and not self.github.runners and not [j for j in self.jobs() if j["state"] in ("queued", "placed")]


def test(local):
    github = stand_in.GitHub()
    recipe = Recipe(local, github)
    running = [recipe.controller()]
    try:
        run_all(recipe, github)
        surplus(recipe, github)
        crashes(recipe, github, running)
        no_runner(recipe, github)
        mistakes(recipe)
    except SystemExit:
        print((recipe.dir / "state/log").read_text(), github.states(), github.runners, local.run("jobs", "--all").stdout, local.run("nodes").stdout, sep="\n")
        raise
    finally:
        for process in running:
            process.kill()
        github.server.shutdown()
    wait_until("without work no instance stays", lambda: not [i for i in json.loads(local.get("api/local"))["instances"] if i["state"] == "running"])


def run_all(recipe, github):
    made = recipe.dir / "made"
    made.mkdir()
    made.chmod(0o1777)
    ids = [github.queue(f"echo {n} >>{made}/{n}", "self-hosted", "nodekeeper", run=n % 3) for n in range(7)]
    ids.append(github.queue("exit 1", "self-hosted", "linux", "nodekeeper", run=2))
    other = [github.queue("true", "ubuntu-latest", run=2), github.queue("true", "nodekeeper", "gpu", run=1)]
    wait_until("8 workflow jobs run, and one fails as it should", lambda: github.states(*ids) == ["success"] * 7 + ["failure"])
    check("each did its work once", [(made / str(n)).read_text() for n in range(7)] == [f"{n}\n" for n in range(7)])
    check("each was given to one runner", sorted(github.ran) == ids, github.ran)
    wait_until("the runners are gone, here and at GitHub", recipe.is_settled)
    # A runner may end between two looks of the controller at one moment. Then there is one too many, and it is cancelled.
    ends = sorted(job["state"] for job in recipe.jobs())
    check("a runner was a job, and none too many stayed", ends[-8:] == ["complete"] * 8 and set(ends[:-8]) <= {"cancelled"} and len(ends) <= 9, ends)
    check("GitHub knew each", github.registered == len(ends), (github.registered, ends))
    check("workflow jobs with other labels are left alone", github.states(*other) == ["queued"] * 2, github.states())


def surplus(recipe, github):
    """A is cancelled before it runs. Then A's runner runs B, and A is cancelled: B goes on, and B's runner is not needed."""
    before, github.is_assigning = len(recipe.jobs()), False
    first = github.queue("true", "nodekeeper")
    wait_until("a runner waits for a workflow job", lambda: [j for j in recipe.jobs() if j["state"] == "placed"])
    github.cancel(first)
    wait_until("its workflow job is cancelled: it is removed, and its job is cancelled", lambda: recipe.is_settled() and recipe.jobs()[0]["state"] == "cancelled")

    go = recipe.dir / "made/go"
    a, b = github.queue("true", "nodekeeper"), github.queue(f"until [ -e {go} ]; do sleep 0.1; done", "nodekeeper")
    github.prefer = {f"nodekeeper-{a}-1": b, f"nodekeeper-{b}-1": -1}
    github.is_assigning = True
    wait_until("the runner that A asked for runs B", lambda: github.states(a, b) == ["queued", "in_progress"])
    wait_until("B's runner is there", lambda: len(recipe.jobs()) == before + 3)
    github.cancel(a)
    log = recipe.dir / "state/log"
    wait_until("A is cancelled, and GitHub does not remove its busy runner", lambda: github.refused)
    check("so it is kept", github.states(b) == ["in_progress"] and len(recipe.noted()) == 2, recipe.noted())
    go.touch()
    wait_until("B ends well", lambda: github.states(b) == ["success"])
    wait_until("the runner that nobody needs is cancelled", recipe.is_settled)
    states = sorted(j["state"] for j in recipe.jobs()[:2])
    check("one runner worked, one was cancelled", states == ["cancelled", "complete"], (states, log.read_text()))
    github.prefer = {}


def crashes(recipe, github, running):
    github.lose_answers = 1
    before = len(recipe.jobs())
    id_ = github.queue("true", "nodekeeper")
    wait_until("the answer to a registration is lost: the runner is registered anew", lambda: github.states(id_) == ["success"])
    wait_until("and nothing is left of the first one", recipe.is_settled)
    check("there was one job", len(recipe.jobs()) == before + 1, recipe.jobs()[:3])

    github.is_assigning = False
    id_ = github.queue("true", "nodekeeper")
    file = recipe.dir / f"state/{id_}.json"
    wait_until("a runner is submitted", lambda: file.exists() and "job_id" in json.loads(file.read_text()))
    running[0].kill()
    running[0].wait(30)
    noted = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in noted.items() if name != "job_id"}))
    running[0] = recipe.controller()
    wait_until("killed right after the submission and started again: it finds the same job", lambda: json.loads(file.read_text()) == noted)
    check("there is still one job", len(recipe.jobs()) == before + 2, recipe.jobs()[:3])
    github.is_assigning = True
    wait_until("and the workflow job runs", lambda: github.states(id_) == ["success"] and recipe.is_settled())


def no_runner(recipe, github):
    """An image whose runner does not start."""
    before = len(recipe.jobs())
    id_ = github.queue("true", "nodekeeper-large")
    log = recipe.dir / "state/log"
    wait_until("runners that do not start are tried three times", lambda: "3 runners have ended without it" in log.read_text())
    check("and not more often", len(recipe.jobs()) == before + 3, recipe.jobs()[:5])
    github.cancel(id_)
    wait_until("the workflow job is cancelled: nothing is left", recipe.is_settled)


def mistakes(recipe):
    def ends(wanted):
        process = recipe.controller()
        said = process.communicate(timeout=60)[0]
        check(f"one clear line: {wanted}", process.returncode == 1 and wanted in said and said.count("\n") == 1, said)

    ends("another program uses")
    text = recipe.settings.read_text()
    for old, new, wanted in [("[github]", "[gitlab]", "has no repositories in [github]: add it"), ("vcpus", "vcpu", "vcpu is not known in [label nodekeeper]"),
                             (f"token_file = {recipe.dir}", "token_file = /nowhere", "the token cannot be read")]:
        recipe.settings.write_text(text.replace(old, new))
        ends(wanted)
    recipe.settings.write_text(text.replace(str(recipe.dir / "state"), str(recipe.dir / "state2")))
    (recipe.dir / "token").write_text("wrong")
    process = recipe.controller()
    log = recipe.dir / "state2/log"
    wait_until("a wrong token is a clear error", lambda: log.exists() and "401 (the token is wrong or has ended)" in log.read_text())
    process.terminate()
    check("TERM ends the controller", process.wait(30) == 0, process.returncode)
