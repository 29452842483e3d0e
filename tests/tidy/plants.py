"""Plants a fault against each rule in a copy of the sources. One run must find all of them, and nothing else."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sources import ROOT, files

# What is planted, in which file, and a part of the line that must be found. Text is added at the end, a pair replaces.
PLANTS: list[tuple[str, str, str | tuple[str, str], str]] = [
    ("the page uses a command", "cli/src/web/api.rs", "use crate::commands::planted as _;\n", "let `web` use `commands`"),
    ("a crate uses one that it may not", "shared/history/Cargo.toml", ("[dependencies]\n", "[dependencies]\ns3.workspace = true\n"),
     "let `shared/history` use `shared/s3`"),
    ("an arrow that nobody needs", "tests/tidy/arrows.toml", ('view = ["console"]', 'view = ["console", "web"]'), "`view` may use `web`"),
    ("a comment twice", "shared/model/src/control/brake.rs", "// Planted twice.\n// Planted twice.\n", "the comment of the line above again"),
    ("a dead function with a usual name", "shared/store/src/store.rs", "impl Store {\n    pub fn list(&self) {}\n}\n", "calls the public Store::list"),
    ("a dead free function with a usual name", "shared/model/src/control/brake.rs", "pub fn write() {}\n", "calls the public write"),
    ("a dead function with a name of its own", "agent/src/stops.rs", "pub fn planted_dead() {}\n", "uses the public planted_dead"),
    ("renamed words in a page", "docs/local.md", "\nA row is Set\naside.\n", "`Set\naside` was renamed"),
    ("a renamed word as a type", "agent/src/stops.rs", "pub(crate) struct SetASide;\n", "`SetASide` was renamed"),
    ("a renamed word in a name", "agent/src/output/capture.rs", "fn my_belief_of() {}\n", "`belief` was renamed"),
    ("a private name that says too little", "cli/src/aws.rs", "fn told_said_seen() {}\n", "told_said_seen: `said` says too little"),
    ("550 lines", "shared/history/src/lib.rs", "const fn planted() {}\n" * 550, "more than its budget"),
    ("long lines", "shared/s3/src/lib.rs", f'const PLANTED: &str = "{"x" * 3000}";\n', "characters of code, "),
    ("a room that became light", "tests/tidy/budgets.toml", ('["shared/files"]\nlines = ', '["shared/files"]\nlines = 1'), ", and its budget is 1"),
    ("a budget that rose without a reason", "", "", "shared/files: its budget rose"),
    ("a type's name twice", "shared/files/src/lib.rs", "pub(crate) struct NodeRecord;\n", "the type NodeRecord has a namesake"),
    ("a type's name twice, one in a table of types", "shared/files/src/lib.rs", "sections! {\n    NodeRecord { a: u32 }\n}\n", "the type NodeRecord has a namesake"),
    ("an exception that nothing needs", "tests/tidy/exceptions.toml", '\n[type-name]\nmost = 1\n"Planted" = 1\n', "[type-name] allows 1 for Planted"),
    ("more exceptions than before", "tests/tidy/exceptions.toml", '\n[cell]\nmost = 1\n"docs/tasks.md" = 1\n', "[cell] grew from 0 to 1"),
    ("a file that does not exist", "docs/architecture.md", "`shared/planted/gone.rs`\n", "`shared/planted/gone.rs` does not exist"),
    ("a name that is not there", "docs/architecture.md", "— `planted_name` in `shared/model/src/run/alloc.rs`\n", "defines no `planted_name`"),
    ("a module that the map names", "docs/architecture.md", ("(`listed`)", "(`lists`)"), "is called `lists`"),
    ("a row of the guide", "docs/working-here.md", ("`LAMBDAS`", "`LAMBDAZ`"), "named `LAMBDAZ`"),
    ("a long sentence", "docs/local.md", "\n" + "word " * 41 + "end.\n", "a sentence of 42 words"),
    ("a long cell", "docs/local.md", f"\n| a | {'word. ' * 80}|\n", "a cell of 479 characters"),
    ("a long file", "tests/src/planted.rs", "// Planted.\n\n" * 301, "602 lines; a file has at most"),
    ("a long function", "agent/src/contact/backoff.rs", "fn planted_long() {\n" + "    planted();\n" * 60 + "}\n", "planted_long has"),
    ("deep nesting", "agent/src/contact/backoff.rs", f"fn planted_deep() {{ {'if a { ' * 6}{'} ' * 6}}}\n", "planted_deep is nested 6 deep"),
    ("a bool that says nothing", "agent/src/contact/backoff.rs", "fn planted_bool(deep: bool) {}\n", "planted_bool takes a bool"),
    ("an `allow` without a reason", "agent/src/contact/backoff.rs", "#[allow(dead_code)]\nfn planted_allow() {}\n", "say in `reason` why"),
    ("a file whose mode the umask decides", "agent/src/contact/backoff.rs", "fn planted_mode() {\n    std::fs::write(\"a\", \"b\");\n}\n", "the umask decides"),
    ("another one", "local/system/functions/wake.rs", "fn planted_open() {\n    File::options().create(true).open(\"a\");\n}\n", "wake.rs"),
    ("a circle", "shared/files/src/digest.rs", "use crate::folder::planted as _;\n", "import each other in a circle"),
    ("a file that git should not have", "planted.orig", "\n", "planted.orig: git should not have this file"),
    ("a module beside its folder", "agent/src/usage.rs", "\n", "move it to agent/src/usage/mod.rs"),
    ("a full folder", "", "", "Rust files; a folder has at most"),
]


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for path in files():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, copy / path)
        git(copy, "init", "--quiet")
        git(copy, "add", "--all")
        git(copy, "-c", "user.name=tidy", "-c", "user.email=tidy@localhost", "commit", "--quiet", "--no-verify", "-m", "before")
        for _, path, change, _ in PLANTS:
            plant(copy, path, change)
        for n in range(20):
            plant(copy, f"shared/remove-tree/src/planted_{n}.rs", "\n")
        out = subprocess.run([sys.executable, copy / "tests/tidy"], capture_output=True, text=True)
    missed = [what for what, _, _, finding in PLANTS if finding not in out.stdout]
    print(f"tidy: {len(PLANTS)} faults planted, {len(PLANTS) - len(missed)} found")
    if missed or out.returncode != 1:
        sys.exit(f"not found: {', '.join(missed)}\n{out.stdout[-6000:]}{out.stderr[-2000:]}")


def git(copy: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=copy, check=True, capture_output=True)


def plant(copy: Path, path: str, change: str | tuple[str, str]) -> None:
    if not path:
        return
    before = (copy / path).read_text() if (copy / path).exists() else ""
    if isinstance(change, tuple) and change[0] not in before:
        sys.exit(f"tests/tidy/plants.py: {path} does not have {change[0]!r} any more")
    (copy / path).write_text(before.replace(*change, 1) if isinstance(change, tuple) else before + change)
