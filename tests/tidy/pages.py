"""The documents: short sentences and cells, and what they name exists where they say."""

import re
from collections.abc import Iterator

from sources import ROOT, Finding, files, read, rust, source

SENTENCE_WORDS = 40
CELL = 400
GUIDE = "docs/working-here.md"
MAP = "docs/architecture.md"
# Rows that a newcomer looks for first.
ROWS = ("an action", "a field that planning reads", "a launch error code", "an end's cause")


def blocks(page: str) -> Iterator[tuple[int, str, bool]]:
    """The paragraphs, items and cells of a page, each in one line, with its line and whether it is a cell. Without what is code."""
    lines = re.sub(r"```.*?```|<!--.*?-->", lambda m: "\n" * m[0].count("\n"), page, flags=re.S).splitlines()
    began, parts = 0, []
    for number, line in enumerate([*lines, ""], 1):
        row, item = line.lstrip().startswith("|"), re.match(r"\s*([-*+]|\d+\.)\s|#|>\s", line)
        if parts and (row or item or not line.strip()):
            yield began, " ".join(parts), False
            parts = []
        if row:
            yield from ((number, cell.strip(), True) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|")))
        elif line.strip() and not line.startswith("#"):
            began = began if parts else number
            parts.append(line.strip())


def sentences(block: str) -> list[str]:
    return re.split(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`])", block)


def check_sentences() -> Iterator[Finding]:
    for path in (f for f in files() if f.startswith("docs/") and f.endswith(".md")):
        for line, block, is_cell in blocks(read(path)):
            for sentence in sentences(block):
                if (words := len(re.findall(r"\S*\w\S*", sentence))) > SENTENCE_WORDS:
                    yield Finding("sentence", path, f"{path}:{line}: a sentence of {words} words, at most {SENTENCE_WORDS}: {sentence[:60]}…")
            if is_cell and len(block) > CELL:
                yield Finding("cell", path, f"{path}:{line}: a cell of {len(block)} characters, at most {CELL}: {block[:60]}…")


def defines(path: str) -> set[str]:
    """What a file or a folder defines: its items, fields, variants and modules. Of what is no Rust, every word."""
    inner = [f for f in files() if f == path or f.startswith(path.rstrip("/") + "/")]
    names = set()
    for file in inner:
        if file.endswith(".rs"):
            names.update(re.findall(r"\b(?:fn|struct|enum|trait|type|mod|const|static|macro_rules!)\s+(\w+)", read(file)))
            names.update(m.decode() for node in source(file).nodes["enum_variant"] + source(file).nodes["field_declaration"]
                         for m in [node.child_by_field_name("name").text])
            # What a macro makes.
            names.update(name for node in source(file).nodes["token_tree"] for name in re.findall(r"\b([A-Z]\w*) \{", node.text.decode()))
            names.update(re.split(r"[/.]", file))
        elif file.endswith((".js", ".py", ".toml", ".yaml", ".json", ".sh")) or "." not in file:
            names.update(re.findall(r"\w+", read(file)))
    return names


def check_places() -> Iterator[Finding]:
    """Every path that the two pages name exists, and defines the names that stand before "in", "of" or "below" it."""
    folders = {parent for f in files() for parent in parents(f)}
    for page in (MAP, GUIDE):
        content = read(page) if page == MAP else section(page, "Where a change goes")
        for word in re.findall(r"`([\w./-]+/[\w./-]*)`", content):
            if word.rstrip("/") not in folders and word not in files():
                yield Finding("place", page, f"{page}: `{word}` does not exist")
        for names, path in re.findall(r"((?:`[\w:]+(?:\(\))?`(?:,| and| or)? )+)(?:in|of|below)\s+`([\w./-]+/[\w./-]*)`", re.sub(r"\s+", " ", content)):
            for name in re.findall(r"`([\w:]+)", names):
                if (ROOT / path).exists() and name.split("::")[-1] not in defines(path):
                    yield Finding("place", page, f"{page}: `{path}` defines no `{name}`")


def parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def section(page: str, title: str) -> str:
    found = re.search(rf"## {title}\n(.*?)(?=\n## |\Z)", read(page), re.S)
    return found[1] if found else ""


def check_map() -> Iterator[Finding]:
    """A row of the map names things of the crates that it is about."""
    for row in re.findall(r"^\| `[^|]*\|.*\|$", section(MAP, "Map"), re.M):
        where, what = (cell.strip() for cell in row.strip("|").split("|", 1))
        inner = set().union(*(defines(path.rstrip("*/")) for path in re.findall(r"`([^`]+)`", where)))
        for name in re.findall(r"`([\w:]+)`", what):
            if name.split("::")[-1] not in inner and not is_path(name):
                yield Finding("place", MAP, f"{MAP}: nothing of {where} is called `{name}`")


def is_path(name: str) -> bool:
    return any(f.startswith(f"{name}/") for f in files())


def check_guide() -> Iterator[Finding]:
    """"Where a change goes": what its rows name is in the sources, and the rows for the usual changes are there."""
    guide = section(GUIDE, "Where a change goes")
    others = [f for f in files() if f.endswith((".js", ".py", ".toml", ".yaml"))]
    sources = {word for f in [*rust(), *others] if not f.startswith("tests/tidy/") for word in re.findall(r"\w+", read(f))}
    for word in re.findall(r"`([A-Za-z_][\w:]*)(?:\(\))?`", guide):
        if word.split("::")[-1] not in sources:
            yield Finding("place", GUIDE, f"{GUIDE}: nothing in the sources is named `{word}`")
    for change in ROWS:
        if not re.search(rf"^\| \**{change}\b", guide, re.I | re.M):
            yield Finding("place", GUIDE, f"{GUIDE}: there is no row for {change}")
