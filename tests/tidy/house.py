"""What one file must be like: sizes, nesting, parameters, reasons of `allow`, comments, and where it lies."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tree_sitter import Node

from sources import Finding, files, is_idle, is_test, line_of, name_of, read, rust, source, text

FUNCTION_LINES = 60
# A test is one story, and a table of cases is long.
TEST_LINES = 100
FILE_LINES = 600
NESTING = 5
FOLDER_FILES = 20
# What nests: a block that runs on a condition, again, or later.
NESTS = {"if_expression", "match_expression", "for_expression", "while_expression", "loop_expression", "closure_expression", "async_block"}
# How a fact is named.
STATEMENT = re.compile(r"_?(is|are|has|have|may|can|was|must|holds)(_|$)")
# Whoever reads `reason = "…"` must learn something.
REASON_WORDS = 3
# Where each file and folder is made with a mode, because jobs are other users of the machine (SECURITY.md#files).
WITH_MODES = ("agent/src/", "local/system/")
# What is made there for others: the kernel's files, the job's own, what `--dir` names.
FOR_OTHERS = ("agent/src/isolation/cgroup.rs", "agent/src/isolation/helper.rs", "agent/src/job_files/inputs.rs", "local/system/demo/work.rs")
BY_UMASK = re.compile(r"\b(fs::write|fs::create_dir(_all)?|File::create)$")
# What git should not have.
UNWANTED = re.compile(r"(^|/)(__pycache__|target|node_modules|\.nodekeeper)/|\.(pyc|orig|rej|swp|zip|log)$|~$")


def depths(path: str) -> list[tuple[Node, int]]:
    """What nests in a file, in order, with its depth. `else if` is the same step."""
    found, above = [], []
    nests = [n for kind in NESTS for n in source(path).nodes[kind]]
    for node in sorted((n for n in nests if n.parent.type != "else_clause"), key=lambda n: n.start_byte):
        above = [n for n in above if n.end_byte > node.start_byte] + [node]
        found.append((node, len(above)))
    return found


def check_sizes() -> Iterator[Finding]:
    for path in rust():
        lines = len(source(path).lines)
        if lines > FILE_LINES:
            yield Finding("size", path, f"{path}: {lines} lines; a file has at most {FILE_LINES}")
        nests = depths(path)
        for function in source(path).nodes["function_item"]:
            name, at = name_of(function), f"{path}:{line_of(function)}"
            most = TEST_LINES if source(path).in_test(function) else FUNCTION_LINES
            if (lines := sum(1 for line in text(function).splitlines() if not is_idle(line))) > most:
                yield Finding("size", f"{path}: {name}", f"{at}: {name} has {lines} lines of code; a function has at most {most}")
            inside = [depth for node, depth in nests if function.start_byte <= node.start_byte < function.end_byte]
            if (depth := max(inside, default=0) - min(inside, default=1) + 1) > NESTING:
                yield Finding("size", f"{path}: {name}", f"{at}: {name} is nested {depth} deep; at most {NESTING}")


def check_bools() -> Iterator[Finding]:
    """A `bool` is a fact, and its name a statement. `f(true)` says nothing: an enum of two words does."""
    for path in rust():
        for function in source(path).product("function_item"):
            of_trait = function.parent.parent is not None and function.parent.parent.child_by_field_name("trait") is not None
            for parameter in function.child_by_field_name("parameters").named_children:
                kind, name = parameter.child_by_field_name("type"), parameter.child_by_field_name("pattern")
                if kind is None or text(kind) != "bool" or of_trait or STATEMENT.match(text(name)):
                    continue
                yield Finding("bool", path, f"{path}:{line_of(function)}: {name_of(function)} takes a bool ({text(parameter)}): take an enum that "
                                            "says which is which, or name the fact (is_, has_, may_)")


def check_allows() -> Iterator[Finding]:
    for path in rust():
        for node in source(path).nodes["attribute_item"] + source(path).nodes["inner_attribute_item"]:
            for lint in re.findall(r"\b(?:allow|expect)\((.*?)\)\s*\]", text(node), re.S):
                reason = re.search(r'reason\s*=\s*"(.*?)"', lint, re.S)
                if not reason or len(reason[1].split()) < REASON_WORDS:
                    yield Finding("allow", path, f"{path}:{line_of(node)}: {text(node)}: say in `reason` why, in {REASON_WORDS} words or more")


def check_comments() -> Iterator[Finding]:
    """Two equal comment lines in a row."""
    for path in files():
        marks = r"//[/!]?" if path.endswith((".rs", ".js")) else "#" if path.endswith((".py", ".toml", ".yaml", ".yml", ".sh")) else None
        comment = re.compile(rf"\s*({marks})\s*(\S.*\w.*)$") if marks else None
        lines = read(path).splitlines() if comment else []
        for number, (before, line) in enumerate(zip(lines, lines[1:]), 2):
            if before.strip() == line.strip() and comment.match(line):
                yield Finding("comment-twice", path, f"{path}:{number}: the comment of the line above again")


def check_modes() -> Iterator[Finding]:
    """Whatever the umask is, nobody else reads what is written."""
    for path in (p for p in rust() if p.startswith(WITH_MODES) and p not in FOR_OTHERS):
        for call in source(path).product("call_expression"):
            function = text(call.child_by_field_name("function"))
            opens = function.endswith(".open") and re.search(r"create(_new)?\(true\)", function) and ".mode(" not in function
            if BY_UMASK.search(function) or opens:
                yield Finding("mode", path, f"{path}:{line_of(call)}: the umask decides who may read this: give a mode (SECURITY.md#files)")


def check_git() -> Iterator[Finding]:
    yield from (Finding("git", path, f"{path}: git should not have this file") for path in files() if UNWANTED.search(path))


def check_layout() -> Iterator[Finding]:
    """One way to lay out modules: a module with files below it is `x/mod.rs`."""
    folders = {str(Path(f).parent) for f in rust()}
    for path in rust():
        if path.removesuffix(".rs") in folders:
            yield Finding("layout", path, f"{path}: move it to {path.removesuffix('.rs')}/mod.rs, where its parts are")


def check_folders() -> Iterator[Finding]:
    """A folder shows at one look what it holds. Each file beyond the limit is a finding."""
    for folder, count in Counter(str(Path(f).parent) for f in rust()).items():
        for _ in range(count - FOLDER_FILES):
            yield Finding("folder", folder, f"{folder}: {count} Rust files; a folder has at most {FOLDER_FILES}")
