"""Scheduled jobs of a stand-in for Buildkite get agents, each one, and cancelled ones lose them. Run by tests/examples.py."""

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

spec = importlib.util.spec_from_file_location("buildkite_stand_in", HERE / "stand_in.py")
stand_in = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stand_in)


class Recipe:
    """The controller with its files in a directory of its own."""

    def __init__(self, local, buildkite):
        self.local, self.buildkite, self.dir = local, buildkite, pathlib.Path(local.dir.name, "buildkite")
        self.dir.mkdir()
        for file in (HERE / "controller", HERE.parent / "recipe.py"):
            shutil.copy(file, self.dir)
        agent = self.dir / "buildkite-agent"
        agent.write_text(stand_in.AGENT)
        agent.chmod(0o755)
        (self.dir / "url").write_text(buildkite.url)
        (self.dir / "token").write_text(stand_in.TOKEN)
        self.settings = self.dir / "nodekeeper.conf"
        text = (HERE / "nodekeeper.conf").read_text()
        environment = pathlib.Path(local.dir.name, "stack/env").read_text().replace("'", "")
        text = re.sub(r"NODEKEEPER_CLUSTER.*\nAWS_REGION.*\n", lambda _: environment, text)
        for old, new in [("/usr/local/bin/nodekeeper", PROGRAM), ("/var/lib/nodekeeper-buildkite", self.dir / "state"),
                         ("https://agent.buildkite.com", buildkite.url), ("/etc/nodekeeper-buildkite/token", self.dir / "token"),
                         ("command = buildkite-agent", f"command = {agent}"), ("vcpus = 2", "vcpus = 1"), ("7G", "512M")]:
            assert old in text, old
            text = text.replace(old, str(new))
        self.settings.write_text(text + "\n[queue broken]\ncommand = echo this image has no agent; exit 3\n")

    def controller(self):
        return subprocess.Popen([self.dir / "controller", "--every", "0.5"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def jobs(self):
        return json.loads(self.local.run("jobs", "--all", "--json").stdout)

    def has_no_instance(self):
        return not [i for i in json.loads(self.local.get("api/local"))["instances"] if i["state"] == "running"]

    def is_settled(self):
        return not [*(self.dir / "state").glob("*.json")] and not [j for j in self.jobs() if j["state"] in ("queued", "placed")]


def test(local):
    buildkite = stand_in.Buildkite()
    recipe = Recipe(local, buildkite)
    running = [recipe.controller()]
    try:
        run_all(recipe, buildkite)
        cancelled(recipe, buildkite)
        killed(recipe, buildkite, running)
        no_agent(recipe, buildkite)
        mistakes(recipe)
    except SystemExit:
        print((recipe.dir / "state/log").read_text(), local.run("jobs", "--all").stdout, local.run("nodes").stdout, sep="\n")
        raise
    finally:
        for process in running:
            process.kill()
        buildkite.server.shutdown()
    wait_until("without work no instance stays", recipe.has_no_instance)


def run_all(recipe, buildkite):
    made = recipe.dir / "made"
    made.mkdir()
    made.chmod(0o1777)
    buildkite.is_paused = True
    ids = [buildkite.schedule(f"echo {n} >>{made}/{n}", priority=n) for n in range(7)] + [buildkite.schedule("exit 4")]
    other = buildkite.schedule("true", queue="hosted")
    wait_until("the controller registers, and looks several times", lambda: buildkite.stacks == {"nodekeeper"} and buildkite.looks >= 3 * 2)
    check("a paused queue gets no agents", recipe.jobs() == [] and buildkite.states(*ids) == ["scheduled"] * 8, recipe.jobs())
    buildkite.is_paused = False
    wait_until("8 jobs run", lambda: buildkite.states(*ids) == ["finished"] * 8)
    codes = [buildkite.finished[id_]["exit_status"] for id_ in ids]
    check("their exit codes are right", codes == [0] * 7 + [4], codes)
    check("each did its work once", [(made / str(n)).read_text() for n in range(7)] == [f"{n}\n" for n in range(7)])
    check("each was taken by one agent", sorted(buildkite.acquired) == sorted(ids), buildkite.acquired)
    wait_until("the agents are gone", recipe.is_settled)
    check("an agent was a job, and there was none too many", len(recipe.jobs()) == 8, recipe.jobs())
    check("Buildkite's priorities are nodekeeper's", {j["priority"] for j in recipe.jobs()} == set(range(500, 507)), recipe.jobs())
    check("jobs of other queues are left alone", buildkite.states(other) == ["scheduled"], other)


def cancelled(recipe, buildkite):
    """A job is cancelled while its agent waits, because the policy allows no node."""
    # The policy forbids new nodes only: a node that is still there would run the agent.
    wait_until("the nodes of the jobs before are gone", recipe.has_no_instance)
    policy = recipe.local.run("policy", "show")
    limited = recipe.dir / "policy.toml"
    limited.write_text(re.sub(r"(?m)^max = 6$", "max = 0", policy.stdout))
    said = recipe.local.run("policy", "set", str(limited))
    check("a policy that allows no node", said.returncode == 0 and "max = 0" in limited.read_text(), (said, policy.stdout[:500]))
    id_ = buildkite.schedule("true")
    wait_until("an agent waits for a node", lambda: buildkite.states(id_) == ["reserved"] and recipe.jobs()[0]["state"] == "queued")
    buildkite.cancel(id_)
    wait_until("its job is cancelled: it is cancelled too", lambda: recipe.jobs()[0]["state"] == "cancelled" and recipe.is_settled())
    # Without its version, which is not the stored one any more.
    limited.write_text(policy.stdout.partition("\n")[2])
    check("nodes are allowed again", recipe.local.run("policy", "set", str(limited)).returncode == 0)


def killed(recipe, buildkite, running):
    before, go = len(recipe.jobs()), recipe.dir / "made/go"
    id_ = buildkite.schedule(f"until [ -e {go} ]; do sleep 0.1; done")
    file = recipe.dir / f"state/{id_}.json"
    wait_until("an agent works", lambda: buildkite.states(id_) == ["running"] and "job_id" in json.loads(file.read_text()))
    running[0].kill()
    running[0].wait(30)
    noted = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in noted.items() if name != "job_id"}))
    running[0] = recipe.controller()
    wait_until("killed right after the submission and started again: it finds the same job", lambda: json.loads(file.read_text()) == noted)
    go.touch()
    wait_until("its agent ends well", lambda: buildkite.states(id_) == ["finished"] and recipe.is_settled())
    check("there was one job", len(recipe.jobs()) == before + 1, recipe.jobs()[:3])


def no_agent(recipe, buildkite):
    """An image whose agent does not start."""
    before = len(recipe.jobs())
    id_ = buildkite.schedule("true", queue="broken")
    wait_until("the job is failed with the reason", lambda: "3 agents ended without taking it" in buildkite.finished.get(id_, {}).get("detail", ""))
    check("three agents were tried, and not more", len(recipe.jobs()) == before + 3, recipe.jobs()[:5])
    wait_until("nothing is left", recipe.is_settled)


def mistakes(recipe):
    def ends(wanted):
        process = recipe.controller()
        said = process.communicate(timeout=60)[0]
        check(f"one clear line: {wanted}", process.returncode == 1 and wanted in said and said.count("\n") == 1, said)

    ends("another program uses")
    text = recipe.settings.read_text()
    for old, new, wanted in [("[buildkite]", "[build]", "has no attempts in [buildkite]: add it"), ("[queue ", "[queues ", "has no section [queue …]"),
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
