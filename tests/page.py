#!/usr/bin/env python3
"""Drives the page in a real browser: `nodekeeper local` with invented rows, and with real jobs.

    page.py [--chromium PATH] [--pictures DIR]

It needs the programs in target/debug, Debian's chromium (or another one, by --chromium), and tests/requirements.txt.
Every check prints a line. The first one that fails ends it with exit code 1.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import attacks
import page_rows
from axe_playwright_python.sync_playwright import Axe
from jsonschema import Draft202012Validator
from local_stack import PROGRAM, ROOT, Local, check
from playwright.sync_api import sync_playwright

NARROW = {"width": 400, "height": 800}
WIDE = {"width": 1280, "height": 800}
LAPTOP = {"width": 1366, "height": 768}
DESK = {"width": 1920, "height": 1080}


class Browser:
    """A page of a browser that notes what goes wrong in it."""

    def __init__(self, chromium, local, pictures):
        self.local, self.pictures, self.wrong = local, pictures, []
        self.context = chromium.new_context(viewport=WIDE, color_scheme="light")
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=local.page.rstrip("/"))
        self.page = self.context.new_page()
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.wrong.append(m.text))
        self.page.on("pageerror", lambda e: self.wrong.append(str(e)))
        self.page.on("dialog", lambda d: (self.wrong.append(f"a dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: r.url.startswith((local.page, "data:")) or self.wrong.append(f"asks {r.url}"))

    def open(self, view, id_=""):
        """Opens a view by its address, as from a link that was sent."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.local.page}#/{view}")
        self.ready(view.split("?")[0].split("/")[0] or "overview", id_ or (view.split("?")[0].split("/") + [""])[1])

    def ready(self, name, id_=""):
        self.page.wait_for_function("wanted => document.body.dataset.ready === wanted", arg=f"{name} {id_}", timeout=60_000)

    def picture(self, name, **more):
        if self.pictures:
            self.page.screenshot(path=f"{self.pictures}/{name}.png", **more)

    def accessible(self, what):
        found = Axe().run(self.page, options={"resultTypes": ["violations"]}).response["violations"]
        said = [f"{v['id']}: {v['nodes'][0]['html'][:200]}" for v in found]
        check(f"{what}: axe finds nothing", not found, json.dumps(said, indent=1))

    def fits(self, what):
        too_wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        check(f"{what}: nothing to scroll sideways at {self.page.viewport_size['width']} px", too_wide <= 0, too_wide)

    def quiet(self, what):
        check(f"{what}: no error, no warning, nothing from elsewhere", not self.wrong, self.wrong)

    def text(self, selector="main"):
        return self.page.inner_text(selector)


def empty(browser):
    browser.open("")
    check("an empty cluster says so", "No job runs." in browser.text() and "Nothing happened." in browser.text(), browser.text())
    browser.accessible("an empty cluster")
    browser.picture("empty")
    browser.open("jobs")
    check("an empty list says what to do", "nodekeeper submit" in browser.text(), browser.text())
    browser.quiet("an empty cluster")


def large(browser, job):
    page = browser.page
    page.evaluate("() => { window.long = []; new PerformanceObserver(l => window.long.push(...l.getEntries().map(e => e.duration))).observe({type: 'longtask'}) }")
    began = time.monotonic()
    browser.open("jobs")
    took = time.monotonic() - began
    check("10,000 jobs: the list is there within 20 s of a slow build", took < 20, took)
    rows = page.locator("tbody tr")
    check("10,000 jobs: 100 are shown, and how many there are", rows.count() == 100 and "of at least 2,600 jobs" in browser.text(".pager"), browser.text(".pager"))
    first = rows.first.inner_text()
    check("running jobs come first", "running" in first, first)
    browser.picture("jobs")
    check("a name is text and never markup", "<img src=x" in browser.text() and page.locator("main img").count() == 0)
    page.get_by_role("link", name="next").click()
    page.wait_for_function("() => document.querySelector('.pager').textContent.includes('101 to 200')")
    check("the next part has an address", "offset=100" in page.url, page.url)
    for state, first, later in (("queued", "train-9999", "train-7999"), ("complete", "train-100", "train-600")):
        browser.open(f"jobs?state={state}")
        check(f"a list of {state} jobs begins at its head", first in rows.first.inner_text(), rows.first.inner_text())
        browser.open(f"jobs?state={state}&offset={1900 if state == 'queued' else 400}")
        page.get_by_role("link", name="next").click()
        page.wait_for_function("() => document.querySelector('.pager').textContent.includes('behind those that are shown first')")
        check(f"a list of {state} jobs goes on behind those that are known, and has an address", later in browser.text() and "after=" in page.url, (page.url, browser.text()))
    page.select_option("select[name=state]", "queued")
    page.wait_for_function("() => location.hash.includes('state=queued')")
    page.wait_for_function("() => document.querySelector('tbody').textContent.includes('train-9999')")
    check("another filter on a later part begins at the head of its list", "after=" not in page.url, page.url)
    browser.open("jobs?group=by")
    check("groups say that there are more than are known", "2,000+ queued" in browser.text("tbody"), browser.text("tbody"))
    browser.open("jobs?state=failed%2Crejected")
    check("a filter is in the address", page.locator("tbody tr").count() == 40, browser.text(".pager"))
    page.keyboard.press("/")
    page.keyboard.type("train-77")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    check("a search is in the address", "q=train-77" in page.url, page.url)
    focused = page.evaluate("document.activeElement.name")
    check("typing keeps the focus while the list changes", focused == "q", focused)
    page.get_by_role("link", name="Jobs", exact=True).click()
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 100")
    check("the search box shows the search of the address", page.input_value("input[type=search]") == "", page.input_value("input[type=search]"))
    browser.accessible("a list of jobs")
    browser.open("jobs")
    visible = page.evaluate("[...document.querySelectorAll('tbody tr')].filter(r => r.getBoundingClientRect().bottom <= innerHeight).length")
    check("a laptop's screen has 25 rows of a list", visible >= 25, visible)
    page.keyboard.press("j")
    page.keyboard.press("j")
    check("j goes to the next row", page.evaluate("document.activeElement.closest('tr').rowIndex") == 2)
    page.get_by_role("columnheader", name="Submitted").get_by_role("link").click()
    page.wait_for_function("() => document.querySelector('th[aria-sort=ascending]')")
    check("a sorted list is in the address", "sort=submitted_at" in page.url, page.url)
    browser.open("nodes")
    check("1,000 nodes: 100 are shown, and how many there are", page.locator("tbody tr").count() == 100 and "1,000 slots" in browser.text(".pager"))
    browser.accessible("a list of nodes")
    # The past may take long to read.
    page.route("**/api/history*", lambda route: (time.sleep(2), route.continue_()))
    page.goto("about:blank")
    began = time.monotonic()
    page.goto(browser.local.page)
    page.wait_for_selector("section[data-key=attention]")
    took = time.monotonic() - began
    check(f"10,000 jobs and 1,000 nodes: the first view is there after {took:.1f} s of a slow build, before the past", took < 10 and page.locator("#strip").count() == 0, took)
    browser.ready("overview")
    page.unroute("**/api/history*")
    browser.open("")
    strip = page.locator("#strip")
    check("the strip has a line for each slot", "1,000 slots" in strip.get_attribute("aria-label"), strip.get_attribute("aria-label"))
    asks = browser.text("section[data-key=attention]")
    check("failed jobs are grouped by cause, and broken nodes are named", "40 jobs" in asks and "slot" in asks, asks)
    strip.click(position={"x": 400, "y": 1})
    browser.ready("node", page.url.split("/")[-1])
    browser.open("")
    long = page.evaluate("""async () => {
        const long = []; new PerformanceObserver(l => long.push(...l.getEntries().map(e => e.duration))).observe({type: 'longtask'});
        await new Promise(done => setTimeout(done, 5000)); return Math.max(0, ...long); }""")
    check("10,000 jobs: no stutter above half a second in 5 s of refreshes", long < 500, long)
    summary = browser.text("#summary")
    check("the banner says that not all is well", summary.startswith("Not all is well"), summary)
    said = browser.text("#checks")
    check("the banner says what is wrong and what to do", "has never run" in said and "check its schedule" in said, said)
    status = json.loads(browser.local.run("status", "--json").stdout)
    wrong = [c["what"] for c in status["checks"] if c["level"] == "wrong"]
    check("the banner says what `status` says", all(what in said for what in wrong), (wrong, said))
    browser.accessible("a banner with faults")
    browser.picture("faults")
    browser.open(f"job/{job}")
    check("a link to a job opens it", job in browser.text() and "slot 0" in browser.text(), browser.text())
    browser.quiet("a large cluster")


def notes(browser):
    """Notes that are alike are all there after refreshes, and a page without answers says that it is old."""
    page = browser.page
    alike = [{"what": "node", "level": "wrong", "text": f"slot {n} takes no work", "to_do": "`nodekeeper drain SLOT`"} for n in range(3)]

    def with_alike(route):
        answer = route.fetch()
        told = answer.json()
        told["status"]["checks"] += alike
        route.fulfill(response=answer, json=told)

    page.route("**/api/overview*", with_alike)
    browser.open("")
    page.wait_for_timeout(4_000)
    said = page.locator("#checks > ul > li", has_text="takes no work").all_inner_texts()
    check("notes that are alike stay after refreshes", len(said) == 3, said)
    page.unroute("**/api/overview*")
    browser.open("jobs")
    browser.quiet("before the answers end")
    page.route("**/api/**", lambda route: route.abort())
    page.wait_for_function("() => document.body.classList.contains('old')", timeout=20_000)
    said = browser.text("#summary")
    check("without answers the page says of when it is, and has no verdict", "this is of " in said and "nodekeeper web" in said and page.get_attribute("#banner", "class") == "", said)
    check("its title says so", page.title().startswith("Old"), page.title())
    page.evaluate("location.hash = '#/jobs?state=queued'")
    page.wait_for_function("() => document.querySelector('main h1').textContent === 'Nothing to show'")
    check("no rows of another filter are left", page.locator("tbody tr").count() == 0)
    page.unroute("**/api/**")
    page.wait_for_function("() => !document.body.classList.contains('old') && document.querySelectorAll('tbody tr').length === 100", timeout=30_000)
    check("with answers it is as before", "Old" not in page.title() and "is well" in browser.text("#summary"), browser.text("#summary"))
    browser.wrong.clear()
    # Requests that never end, as over a connection that hangs.
    page.route("**/api/**", lambda route: None)
    page.wait_for_function("() => document.body.classList.contains('old')", timeout=30_000)
    check("a page that waits for an answer says that it is old", "no answer yet" in browser.text("#summary"), browser.text("#summary"))
    page.unroute("**/api/**")
    browser.open("jobs")


def shapes(local):
    """Commands and the page's API have one shape of a job and one of a node."""
    schema = json.loads((ROOT / "docs/shapes.schema.json").read_text(encoding="utf-8"))
    answers = {name: json.loads(local.run(name, "--all", "--json").stdout) for name in ("jobs", "nodes")}
    for name, rows in answers.items():
        for what, some in ((f"{name} --json", rows), (f"/api/{name}", json.loads(local.get(f"api/{name}"))["rows"])):
            wrong = [e.message for e in Draft202012Validator(schema | {"$ref": f"#/$defs/{name}"}).iter_errors(some)]
            check(f"{what} is as docs/shapes.schema.json says", some and not wrong, wrong[:5])


def real(local, browser):
    """Real jobs on real agents: one that fails, one that waits, and some that work."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as policy:
        shares = '[[share]]\nname = "lab"\nmembers = ["*"]\n[[share]]\nname = "night"\nweight = 3\nmembers = ["nobody"]\n'
        policy.write(local.run("policy", "show").stdout.replace("share = []\n", "") + shares)
        policy.flush()
        said = local.run("policy", "set", policy.name)
        check("a policy with shares is stored", said.returncode == 0, said)
    line = ["submit", "--json", "--name"]
    failing = json.loads(local.run(*line, "breaks", "--retry-failed", "1", "--", "sh", "-c", "echo first; echo the disk is full >&2; exit 3").stdout)
    local.run("submit", "--name", "render", "--count", "24", "--vcpus", "2", "--", "sh", "-c", "echo frame; sleep 12")
    local.run("submit", "--name", "too-large", "--vcpus", "512", "--", "true")
    local.run("submit", "--name", "steady", "--count", "2", "--", "sh", "-c", "echo a line of a running job; sleep 600")
    failing = failing["job_id"] if isinstance(failing, dict) else failing[0]["job_id"]
    local.until("real jobs ran, failed and run", "api/jobs", lambda part: part["counts"].get("failed") == 1
                and part["counts"].get("complete", 0) >= 4 and "placed" in part["counts"])
    page = browser.page
    browser.open("?minutes=10")
    text = browser.text()
    check("what needs somebody comes first, then what runs", text.index("Needs somebody") < text.index("breaks") < text.index("Running") < text.index("The fleet"), text)
    for link, view, says in (("of the cluster alone", "events", "policy set"), ("what each cost", "cost", "lab"), ("what each person cost", "cost", "Person")):
        browser.open("?minutes=10")
        page.get_by_role("link", name=link).click()
        browser.ready(view)
        check(f"one click says {link}", says in browser.text(), browser.text())
    browser.open("?minutes=10")
    turns = {row["share"]: row for row in json.loads(local.run("shares", "--json").stdout)}
    shown = dict(zip(["lab", "night"], sorted(page.locator("section[data-key=shares] tbody tr").all_inner_texts()), strict=True))
    check("each share is a row, with whose turn it is", "comes next" in shown["lab"] and "of its 25 %" in shown["lab"] and "0 % of its 75 %" in shown["night"]
          and (turns["lab"]["part"], turns["night"]["part"], turns["lab"]["used"]) == (0.25, 0.75, 1), (shown, turns))
    drawn = page.locator("#chart-nodes canvas").evaluate("c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, n) => n % 4 === 0 && v > 30 && v < 70)")
    check("the chart of the nodes is drawn", drawn and "now" in page.get_attribute("#chart-nodes", "aria-label"))
    check("housekeeping is folded", page.locator("details[data-key=housekeeping]:not([open])").count() == 1)
    browser.accessible("the overview")
    browser.picture("overview", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 1180})
    browser.picture("page")
    page.set_viewport_size(WIDE)
    browser.open("jobs?group=share")
    check("a share is one row with its jobs by state", page.locator("tbody tr").count() == 1 and "complete" in browser.text("tbody") and "1 failed" in browser.text("tbody"), browser.text())
    browser.accessible("jobs by share")
    page.get_by_role("link", name="lab", exact=True).click()
    page.wait_for_function("() => document.querySelector('main').textContent.includes('Only of lab')")
    check("a share opens to its jobs", page.locator("tbody tr").count() >= 3 and "share=lab" in page.url, browser.text())
    browser.open("jobs?share=night")
    check("another share has none of them", page.locator("tbody tr").count() == 0, browser.text())
    local.run("submit", "--name", "long" * 30, "--", "sh", "-c", "exit 8")
    local.run("submit", "--name", "chatter", "--", "sh", "-c", "seq 200; while :; do echo more; sleep 0.5; done")
    local.until("a chatter runs", "api/jobs?q=chatter", lambda part: part["rows"] and part["rows"][0]["state"] == "placed")
    rows = json.loads(local.run("jobs", "--json").stdout)
    running = next(row["job_id"] for row in rows if row["name"] == "steady" and row["state"] == "placed")
    browser.open(f"job/{running}")
    page.wait_for_function("() => document.querySelector('.live')?.textContent.includes('a line of a running job')", timeout=20_000)
    check("a running job shows its last lines", True)
    browser.accessible("a running job")
    chatter = next(row["job_id"] for row in rows if row["name"] == "chatter")
    browser.open(f"job/{chatter}")
    page.wait_for_function("() => document.querySelector('.live')?.textContent.includes('more')", timeout=20_000)
    end = "log => log.scrollHeight - log.clientHeight - log.scrollTop"
    live = page.locator(".live")
    live.evaluate("log => { log.scrollTop = 0; }")
    page.wait_for_timeout(5_000)
    check("whoever has scrolled up in live lines reads on there", live.evaluate("log => log.scrollTop") == 0)
    live.evaluate("log => { log.scrollTop = log.scrollHeight; }")
    page.wait_for_timeout(5_000)
    check("whoever is at the end of live lines follows them", live.evaluate(end) < 4, live.evaluate(end))
    local.run("cancel", chatter)
    browser.open("jobs?q=render")
    page.get_by_role("link", name="render[*]", exact=True).click()
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 24")
    check("an array opens to its elements", "array=" in page.url and "render[11]" in browser.text(), browser.text())
    page.get_by_role("link", name="render[11]", exact=True).click()
    page.wait_for_function("() => document.querySelector('main').textContent.includes('11 of 24 elements')")
    check("an element says of which array it is", True)
    local.run("submit", "--name", "crowd", "--count", "8", "--exclusive", "--", "sleep", "900")
    crowd = local.until("a crowd fills the cluster", "api/jobs?q=crowd&state=queued", lambda part: part["rows"] and "nodes.max" in part["rows"][0].get("waits_because", ""))
    browser.open(f"job/{crowd['rows'][0]['job_id']}")
    check("a waiting job says what it would take", "It would start now if nodes.max were" in browser.text(), browser.text())
    browser.open("?minutes=10")
    page.get_by_role("link", name="breaks", exact=True).first.click()
    browser.ready("job", failing)
    text = browser.text()
    check("a failed job shows its output", "the disk is full" in text and "exit code 3" in text, text)
    check("a failed job tells its story", "retry 1 of 1" in text and text.index("submit") < text.rindex("end job"), text)
    check("the focus is on the new view", page.evaluate("document.activeElement.tagName") == "H1")
    page.get_by_role("button", name=f"Copy {failing}", exact=True).first.click()
    check("an id can be copied whole", page.evaluate("navigator.clipboard.readText()") == failing)
    browser.accessible("a job")
    browser.picture("job", full_page=True)
    browser.open("node/0")
    check("a node shows its lives", page.locator(".lives .part").count() >= 2, browser.text())
    browser.accessible("a node")
    browser.picture("node", full_page=True)
    browser.open("cost?by=name&minutes=60")
    text = browser.text()
    check("what it cost is said to be an estimate", "not a bill" in text and "render" in text, text)
    cost = json.loads(local.run("cost", "--since", "1h", "--by", "name", "--json").stdout)
    check("`cost` reckons the same jobs", {"render", "breaks"} <= {l["what"] for l in cost["lines"]}, cost)
    parts = sum(l["usd"] for l in cost["lines"]) + cost["without_work_usd"]
    check("the lines add up to the total", abs(parts - cost["total_usd"]) < 1e-4, (parts, cost["total_usd"]))
    browser.accessible("costs")
    browser.picture("cost")
    browser.open("events")
    browser.accessible("events")


def keyboard(browser):
    page = browser.page
    browser.open("")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    check("the keyboard reaches the skip link, the views and the checks", seen[0].startswith("Skip") and {"Jobs", "Nodes", "Cost"} <= set(seen), seen)
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    check("the focus can be seen", outline != "none", outline)
    page.get_by_role("link", name="Jobs", exact=True).focus()
    page.keyboard.press("Enter")
    browser.ready("jobs")
    check("Enter opens a view", page.get_attribute("nav a[aria-current]", "href") == "#/jobs")


def looks(browser, job):
    """Narrow and dark."""
    for view in ["", "jobs", "nodes", f"job/{job}", "node/0", "events", "cost?by=job", "cost?by=size"]:
        browser.page.set_viewport_size(NARROW)
        browser.open(view)
        browser.fits(f"#/{view}")
        browser.accessible(f"narrow: #/{view}")
        browser.picture(f"narrow-{view.split('/')[0].split('?')[0] or 'overview'}")
    for size in (LAPTOP, DESK):
        browser.page.set_viewport_size(size)
        for view in ["", "jobs", "jobs?q=longlong", "nodes", f"job/{job}", "events", "cost?by=job"]:
            browser.open(view)
            browser.fits(f"#/{view}")
            browser.picture(f"{size['width']}-{view.replace('/', '-').replace('?', '-') or 'overview'}")
    browser.page.set_viewport_size(NARROW)
    browser.page.emulate_media(color_scheme="dark")
    browser.open("")
    back = browser.page.evaluate("getComputedStyle(document.body).backgroundColor")
    check("dark: the page is dark", all(int(n) < 60 for n in re.findall(r"\d+", back)[:3]), back)
    browser.accessible("narrow and dark")
    browser.open(f"job/{job}")
    browser.accessible("narrow and dark: a job")
    browser.picture("narrow-dark-job")
    browser.page.set_viewport_size(WIDE)
    browser.open("")
    browser.accessible("dark")
    browser.picture("dark", full_page=True)
    browser.page.emulate_media(color_scheme="light")


def web(local):
    """`nodekeeper web` shows this cluster as it would show one in AWS."""
    command = [PROGRAM, "web", "--port", "0"]
    served = subprocess.Popen(command, env=local.environment(), stdout=subprocess.PIPE, text=True)
    said = served.stdout.readline()
    address = re.search(r"http\S+", said)
    check("`web` says where the page is", address and "127.0.0.1" in said, said)
    with urllib.request.urlopen(f"{address[0]}api/overview", timeout=60) as answer:
        overview = json.load(answer)
    check("`web` shows the cluster", (overview["cluster"], overview["local"]) == ("local", False), overview)
    taken = local.run("web", "--port", re.search(r":(\d+)/", said)[1])
    check("a port that is taken is one clear line", taken.returncode == 1 and "give another --port" in taken.stderr
          and taken.stderr.count("\n") == 1, taken.stderr)
    served.send_signal(signal.SIGINT)
    check("Ctrl-C ends `web`", served.wait(20) == 0, served.returncode)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--chromium", default="/usr/bin/chromium")
    arguments.add_argument("--pictures", help="a directory for pictures of the views")
    given = arguments.parse_args()
    if given.pictures:
        pathlib.Path(given.pictures).mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        # Root needs --no-sandbox. The page is ours.
        options = {"executable_path": given.chromium, "args": ["--no-sandbox"] if os.geteuid() == 0 else []}
        chromium = playwright.chromium.launch(**options)
        with Local("--functions-url", "http://127.0.0.1:9") as local:
            browser = Browser(chromium, local, given.pictures)
            empty(browser)
            browser.page.goto("about:blank")
            job = page_rows.large(local.environment())
            local.until("the page knows the head of the queue and the last ends, and that there are more", "api/jobs?limit=1", lambda part: part["all"] == 2_600 and set(part["more"]) == {"queued", "complete"})
            large(browser, job)
            notes(browser)
            web(local)
            browser.context.close()
        with Local("--tick-s", "1", "--unisolated") as local:
            browser = Browser(chromium, local, given.pictures)
            real(local, browser)
            shapes(local)
            keyboard(browser)
            job = json.loads(local.get("api/jobs?q=breaks"))["rows"][0]["job_id"]
            looks(browser, job)
            browser.quiet("real jobs")
            browser.context.close()
        chromium.close()
        # Here evil.example is this machine, as after DNS rebinding.
        options["args"].append("--host-resolver-rules=MAP evil.example 127.0.0.1")
        chromium = playwright.chromium.launch(**options)
        with Local("--tick-s", "1") as local:
            attacks.all_of(local, chromium)
        chromium.close()
    print("The page passed.")


if __name__ == "__main__":
    sys.exit(main())
