"""How heavy the rooms are, and what they may weigh (budgets.toml, exceptions.toml).

A number there may fall at any time and must then be lowered. It may rise only with a reason. The exceptions only fall.
"""

import json
import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

from sources import LOCAL, ROOT, Finding, crate_of, files, is_idle, is_test, read, rust, source

BUDGETS = "tests/tidy/budgets.toml"
EXCEPTIONS = "tests/tidy/exceptions.toml"
PAGE = "cli/src/web/page"
# The product on the day on which budgets came: lines and characters.
FIRST = (44448, 1607777)
# How many findings about one thing are shown.
MOST_SHOWN = 6
HEAD = {
    BUDGETS: """\
# What each room may weigh: lines of code, and their characters without indentation. Blank lines, comments and tests do not count.
# `local` is what no deployed program contains: local/system, the stand-ins, and what only tests compile.
# A commit that makes a room heavier raises the number, and says why in a new line of `why`: python tests/tidy --set ROOM 'REASON'.
# A room that has become lighter: python tests/tidy --lower.
""",
    EXCEPTIONS: """\
# What failed when its rule came, by rule: what it is, and how many. `most` is their sum. Every number may only fall:
# python tests/tidy --lower writes what is left. Nothing can be added.
""",
}


def rooms() -> dict[str, tuple[int, int]]:
    """Lines and characters of code by room: a crate, `local`, and what is no Rust: the template with its tools, and the page."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for path in rust():
        if not is_test(path):
            add(found["local" if LOCAL.match(path) else crate_of(path)], source(path).code)
    for path in files():
        if path.startswith(PAGE) and path.endswith((".js", ".css", ".html")) and "/uplot/" not in path:
            add(found[PAGE], [line for line in read(path).splitlines() if not is_idle(line)])
        elif path.startswith("infra/") and (path.endswith((".py", ".yaml", ".sh")) or path in ("infra/package", "infra/restore")):
            add(found["infra"], [line for line in read(path).splitlines() if line.strip() and not line.strip().startswith("#")])
    return {room: (n["lines"], n["characters"]) for room, n in sorted(found.items())}


def add(to: Counter[str], lines: list[str]) -> None:
    to.update(lines=len(lines), characters=sum(len(line.strip()) for line in lines))


def is_product(room: str) -> bool:
    return room not in ("local", "infra", PAGE)


def load(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text())


def earlier(path: str) -> Iterator[dict]:
    """The file in the last commit, and in the one before."""
    for commit in ("HEAD", "HEAD^"):
        out = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True, text=True)
        if out.returncode == 0:
            yield tomllib.loads(out.stdout)


@cache
def changed() -> tuple[str, ...]:
    """The files of the last commit, and those that changed since."""
    out = subprocess.run("git diff --name-only HEAD^ || git diff --name-only HEAD", shell=True, cwd=ROOT, capture_output=True, text=True)
    new = subprocess.run(["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    return tuple(f"{path}:" for path in (out.stdout + new.stdout).split())


def slack(most: int) -> int:
    """How much lighter than its number a room may be until the number has to fall."""
    return max(most // 100, 50)


def check_budgets() -> Iterator[Finding]:
    now, most = rooms(), load(BUDGETS)
    for room in sorted(now.keys() | most.keys()):
        if room not in now or room not in most:
            says = f"python tests/tidy --set {room} 'REASON'" if room in now else f"there is no such room: take it out of {BUDGETS}"
            yield Finding("budget", room, f"{room}: {says}")
            continue
        for count, unit, times in zip(now[room], ("lines", "characters"), (1, 35)):
            limit = most[room][unit]
            if count > limit:
                yield Finding("budget", room, f"{room}: {count} {unit} of code, {count - limit} more than its budget: cut something there, or "
                                              f"python tests/tidy --set {room} 'REASON'")
            elif limit - count > slack(limit // times) * times:
                yield Finding("budget", room, f"{room}: {count} {unit} of code, and its budget is {limit}: python tests/tidy --lower")
    for old in earlier(BUDGETS):
        yield from unexplained(old, most)


def unexplained(old: dict, new: dict) -> Iterator[Finding]:
    """Budgets that rose without a new reason."""
    for room, most in new.items():
        before = old.get(room, {"lines": 0, "characters": 0, "why": []})
        if (most["lines"] > before["lines"] or most["characters"] > before["characters"]) and not set(most.get("why", [])) - set(before["why"]):
            yield Finding("budget", room, f"{room}: its budget rose: a new line of `why` must say for what")


def check_exceptions(findings: list[Finding]) -> Iterator[Finding]:
    """What is found beyond the exceptions, and exceptions that nothing needs."""
    allowed = load(EXCEPTIONS)
    found: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        found[finding.rule, finding.key].append(finding)
    for (rule, key), all_of_it in found.items():
        most = allowed.get(rule, {}).get(key, 0)
        if len(all_of_it) > most:
            here = [one for one in all_of_it if one.says.startswith(changed())] or all_of_it
            for one in here[:MOST_SHOWN]:
                yield one._replace(says=one.says + (f" (one of {len(all_of_it)}; {most} are excepted)" if most else ""))
    for rule, keys in allowed.items():
        total = sum(n for key, n in keys.items() if key != "most")
        if total != keys.get("most"):
            yield Finding("exception", rule, f"{EXCEPTIONS}: [{rule}] has {total} exceptions, and `most` is {keys.get('most')}")
        for key, most in keys.items():
            if key != "most" and len(found[rule, key]) < most:
                yield Finding("exception", key, f"{EXCEPTIONS}: [{rule}] allows {most} for {key}, and there are {len(found[rule, key])}: "
                                                "python tests/tidy --lower")
    for old in earlier(EXCEPTIONS):
        for rule, keys in allowed.items():
            before = old.get(rule, {"most": 0})["most"]
            if keys["most"] > before:
                yield Finding("exception", rule, f"{EXCEPTIONS}: [{rule}] grew from {before} to {keys['most']}: it may only fall")


def lower(findings: list[Finding]) -> None:
    """Writes what is there where it is less than what is allowed."""
    now, most = rooms(), load(BUDGETS)
    for room in [room for room in most if room not in now]:
        del most[room]
    for room, entry in most.items():
        entry["lines"], entry["characters"] = min(entry["lines"], now[room][0]), min(entry["characters"], now[room][1])
    write_budgets(most)
    counts = Counter((finding.rule, finding.key) for finding in findings)
    allowed = load(EXCEPTIONS)
    left = {rule: {k: min(n, counts[rule, k]) for k, n in keys.items() if k != "most"} for rule, keys in allowed.items()}
    write_exceptions(left)


def set_room(room: str, reason: str) -> None:
    now, most = rooms(), load(BUDGETS)
    if room not in now:
        raise SystemExit(f"there is no room {room}; there are: {', '.join(now)}")
    if len(reason.split()) < 3:
        raise SystemExit("say in three words or more what made the room heavier")
    before = most.get(room, {"lines": 0, "characters": 0, "why": []})
    lines, characters = now[room]
    grown = f"{lines - before['lines']:+} lines, {characters - before['characters']:+} characters"
    most[room] = {"lines": lines, "characters": characters, "why": [*before["why"], f"{grown}: {reason}"]}
    write_budgets(most)
    print(f"{room}: {grown}")


def write_budgets(most: dict) -> None:
    out = [HEAD[BUDGETS]]
    for room, entry in sorted(most.items()):
        why = "".join(f"    {json.dumps(one, ensure_ascii=False)},\n" for one in entry["why"])
        out.append(f"[{json.dumps(room)}]\nlines = {entry['lines']}\ncharacters = {entry['characters']}\nwhy = [\n{why}]\n")
    (ROOT / BUDGETS).write_text("\n".join(out))


def write_exceptions(allowed: dict) -> None:
    out = [HEAD[EXCEPTIONS]]
    for rule, keys in sorted(allowed.items()):
        left = {key: n for key, n in sorted(keys.items()) if n}
        if left:
            lines = [f"[{rule}]", f"most = {sum(left.values())}", *(f"{json.dumps(key, ensure_ascii=False)} = {n}" for key, n in left.items())]
            out.append("\n".join(lines) + "\n")
    (ROOT / EXCEPTIONS).write_text("\n".join(out))


def print_counts() -> None:
    now, most = rooms(), load(BUDGETS)
    product = {room: n for room, n in now.items() if is_product(room)}
    tests = [line for path in rust() for line in source(path).lines if is_test(path)]
    inner = sum(1 for path in rust() if not is_test(path) for line in source(path).lines if not is_idle(line)) - sum(
        len(source(path).code) for path in rust() if not is_test(path))
    of_tests: Counter[str] = Counter()
    add(of_tests, [line for line in tests if not is_idle(line)])
    for room, (lines, characters) in now.items():
        allowed = most.get(room, {"lines": 0, "characters": 0})
        print(f"{room:32} {lines:7} lines of {allowed['lines']:7} {characters:9} characters of {allowed['characters']:9}")
    print()
    lines, characters = (sum(n[i] for n in product.values()) for i in (0, 1))
    since = f"{lines - FIRST[0]:+} lines and {characters - FIRST[1]:+} characters since budgets came"
    print(f"{'product (Rust)':32} {lines:7} lines {characters:9} characters: {since}")
    print(f"{'local (Rust)':32} {now['local'][0]:7} lines {now['local'][1]:9} characters")
    print(f"{'tests (Rust)':32} {of_tests['lines'] + inner:7} lines {of_tests['characters']:9} characters in files of tests, {inner} lines beside the product")
    docs = sum(len(read(f).split()) for f in files() if f.startswith("docs/") and f.endswith(".md"))
    exceptions = {rule: keys["most"] for rule, keys in load(EXCEPTIONS).items()}
    print(f"{'docs':32} {docs:7} words")
    print(f"{'exceptions':32} {sum(exceptions.values()):7}: {', '.join(f'{rule} {n}' for rule, n in exceptions.items())}")
