"""The modules of each crate, and which file uses which: no circles, and only the arrows that arrows.toml allows."""

import os
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tree_sitter import Node

from sources import ROOT, Finding, files, is_test, read, rust, source, text

# The invariants of the simulation are one thing, `Check`, in many files; what they watch calls them after each write.
ONE_THING = "tests/simulation/src/check/mod.rs"
ARROWS = "tests/tidy/arrows.toml"
Path_ = tuple[str, ...]


class Crate:
    """The modules of one crate, and which file defines which name."""

    def __init__(self, folder: str, roots: list[str]) -> None:
        self.folder = folder
        self.modules: dict[Path_, str] = {}
        self.defined: dict[Path_, set[str]] = defaultdict(set)
        # What `use` makes known in a module: the name, and the path that it stands for. `*` has several.
        self.uses: dict[Path_, list[tuple[str, Path_]]] = defaultdict(list)
        self.mentions: dict[Path_, set[Path_]] = defaultdict(set)
        for root in roots:
            self.module((), root)

    def module(self, at: Path_, path: str) -> None:
        self.modules[at] = path
        self.read(at, source(path).root, path)

    def read(self, at: Path_, body: Node, path: str) -> None:
        for node in body.children:
            match node.type:
                case "mod_item":
                    self.child(at, node, path)
                case "use_declaration":
                    self.uses[at].extend(expand(node.child_by_field_name("argument"), ()))
                    self.mentions[at].update(p for _, p in expand(node.child_by_field_name("argument"), ()))
                case _:
                    if name := node.child_by_field_name("name"):
                        self.defined[at].add(text(name))
                    self.mentions[at].update(paths(node))

    def child(self, at: Path_, node: Node, path: str) -> None:
        inner = (*at, text(node.child_by_field_name("name")))
        # The unit tests of a file may use what is built on it.
        if node.child_by_field_name("body") and source(path).in_test(node):
            return
        if body := node.child_by_field_name("body"):
            self.modules[inner] = path
            self.read(inner, body, path)
        elif file := module_file(path, at, inner[-1], node):
            self.module(inner, file)

    def file_of(self, at: Path_, path: Path_, depth: int = 0) -> str | None:
        """The file that defines what `path`, written in the module `at`, names. None: another crate's."""
        if depth > 8 or not path:
            return None
        head, rest = path[0], path[1:]
        if head == "crate":
            return self.inside((), rest, depth)
        if head == "self":
            return self.inside(at, rest, depth)
        if head == "super":
            return self.file_of(at[:-1], rest if rest[:1] == ("super",) else ("self", *rest), depth + 1)
        if (*at, head) in self.modules:
            return self.inside(at, path, depth)
        for name, full in self.uses[at]:
            if name == head and full != path:
                return self.file_of(at, (*full, *rest), depth + 1)
        return None

    def inside(self, at: Path_, rest: Path_, depth: int) -> str | None:
        while rest and (*at, rest[0]) in self.modules:
            at, rest = (*at, rest[0]), rest[1:]
        if rest and rest[0] not in self.defined[at]:
            for name, full in self.uses[at]:
                found = self.file_of(at, full if name != "*" else (*full, *rest), depth + 1) if name in (rest[0], "*") else None
                if found:
                    return found
        return self.modules.get(at)

    def arrows(self) -> dict[str, set[str]]:
        """From each file to the files that define what it names. A name that is only handed on is no arrow."""
        found: dict[str, set[str]] = defaultdict(set)
        for at, mentions in self.mentions.items():
            handed_on = handed(source(self.modules[at]).root)
            for path in mentions - handed_on:
                file = self.file_of(at, path)
                if file and file != self.modules[at]:
                    found[self.modules[at]].add(file)
        return found


def module_file(path: str, at: Path_, name: str, node: Node) -> str | None:
    named = node.prev_named_sibling
    given = re.search(r'path\s*=\s*"([^"]+)"', text(named)) if named and named.type == "attribute_item" else None
    folder = Path(path).parent if Path(path).name in ("lib.rs", "main.rs", "mod.rs") or not at else Path(path).with_suffix("")
    choices = [folder / given[1]] if given else [folder / f"{name}.rs", folder / name / "mod.rs"]
    return next((os.path.normpath(c) for c in choices if (ROOT / c).is_file()), None)


def expand(node: Node, before: Path_) -> list[tuple[str, Path_]]:
    """What one `use` makes known: the name here, and the whole path."""
    match node.type:
        case "scoped_use_list":
            path = node.child_by_field_name("path")
            return expand(node.child_by_field_name("list"), (*before, *(split(path) if path else ())))
        case "use_list":
            return [each for child in node.named_children if "comment" not in child.type for each in expand(child, before)]
        case "use_as_clause":
            return [(text(node.child_by_field_name("alias")), (*before, *split(node.child_by_field_name("path"))))]
        case "use_wildcard":
            return [("*", (*before, *split(node.named_children[0])))] if node.named_children else [("*", before)]
        case "self":
            return [(before[-1] if before else "self", before)]
        case _:
            path = (*before, *split(node))
            return [(path[-1], path)]


def split(node: Node) -> Path_:
    return tuple(part.strip() for part in text(node).split("::"))


def handed(body: Node) -> set[Path_]:
    """The paths of `pub use`."""
    nodes = [n for n in body.children if n.type == "use_declaration" and n.children[0].type == "visibility_modifier"]
    return {path for n in nodes for _, path in expand(n.child_by_field_name("argument"), ())}


def paths(node: Node) -> Iterator[Path_]:
    """Every path `a::b::c` below this node; in macros, what looks like one. Also single names, which a `use` may explain."""
    if node.type in ("scoped_identifier", "scoped_type_identifier"):
        words = re.sub(r"<.*?>|\s", "", text(node), flags=re.S)
        if re.fullmatch(r"\w+(::\w+)+", words):
            yield tuple(words.split("::"))
            return
    if node.type == "token_tree":
        yield from (tuple(p.split("::")) for p in re.findall(r"\b[a-z_]\w*(?:::\w+)+", text(node)))
        return
    if node.type == "use_declaration":
        yield from (path for _, path in expand(node.child_by_field_name("argument"), ()))
        return
    for child in node.children:
        yield from paths(child)


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected files (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(file: str) -> None:
        index[file] = low[file] = len(index)
        stack.append(file)
        for to in sorted(arrows.get(file, ())):
            if to not in index:
                visit(to)
                low[file] = min(low[file], low[to])
            elif to in stack:
                low[file] = min(low[file], index[to])
        if low[file] == index[file]:
            ring = [stack.pop()]
            while ring[-1] != file:
                ring.append(stack.pop())
            if len(ring) > 1:
                found.append(sorted(ring))

    for file in sorted(arrows):
        if file not in index:
            visit(file)
    return found


@cache
def crates() -> list[Crate]:
    found = []
    for manifest in sorted(f for f in files() if f.endswith("Cargo.toml")):
        folder = Path(manifest).parent
        told = tomllib.loads(read(manifest))
        if "package" not in told:
            continue
        roots = [str(folder / "src" / name) for name in ("lib.rs", "main.rs")]
        for kind in ("bin", "test", "bench"):
            roots += [str(folder / one["path"]) for one in told.get(kind, []) if "path" in one]
        roots += [f for f in rust() if Path(f).parent in (folder / "tests", folder / "benches", folder / "src" / "bin")]
        found += [Crate(str(folder), [root]) for root in dict.fromkeys(roots) if root in rust()]
    return found


@cache
def all_arrows() -> list[tuple[Crate, dict[str, set[str]]]]:
    return [(crate, crate.arrows()) for crate in crates()]


def check_circles() -> Iterator[Finding]:
    seen = set()
    for _, arrows in all_arrows():
        for ring in circles(arrows):
            if tuple(ring) not in seen and ONE_THING not in ring:
                seen.add(tuple(ring))
                ties = [f"{a} -> {b}" for a in ring for b in sorted(arrows[a] & set(ring))]
                yield Finding("circle", ring[0], f"{ring[0]}: {len(ring)} files import each other in a circle: {'; '.join(ties[:12])}")


def room_of(folder: str, path: str, named: set[str]) -> str:
    """A folder directly below `src`, or a file there that arrows.toml names. The other files there are one room, `.`. What a crate takes
    from another place (`#[path]`) is the room of that place's first folder."""
    if not path.startswith(f"{folder}/src/"):
        return Path(path).parts[0]
    parts = Path(path).relative_to(Path(folder) / "src").parts
    room = parts[0].removesuffix(".rs")
    return room if len(parts) > 1 or room in named else "."


def check_arrows() -> Iterator[Finding]:
    """Who may use whom: crates, and the rooms of each crate."""
    allowed = tomllib.loads(read(ARROWS))
    found: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict), {"crates": arrows_of_crates()})
    for crate, arrows in all_arrows():
        product = [p for p in crate.modules.values() if not is_test(p) and "/benches/" not in p]
        if not any(len(Path(p).parts) > len(Path(crate.folder).parts) + 2 for p in product):
            continue
        named = set(allowed.get(crate.folder, ()))
        for a, b in sorted((a, b) for a in product for b in arrows.get(a, ()) if b in product):
            one, other = (room_of(crate.folder, path, named) for path in (a, b))
            if one != other:
                found[crate.folder][one].setdefault(other, f"{a} uses {b}")
    for house in sorted(found.keys() | allowed.keys()):
        for one in sorted(found[house].keys() | allowed.get(house, {}).keys()):
            used, may = found[house][one], set(allowed.get(house, {}).get(one, ()))
            for other in sorted(used.keys() - may):
                yield Finding("arrow", f"{house}: {one} -> {other}", f"{used[other]}: {ARROWS} does not let `{one}` use `{other}` ({house})")
            for other in sorted(may - used.keys()):
                yield Finding("arrow", f"{house}: {one} -> {other}", f"{ARROWS}: `{one}` may use `{other}` ({house}), and does not: take it out")


@cache
def arrows_of_crates() -> dict[str, dict[str, str]]:
    folders = {name: one["path"] for name, one in tomllib.loads(read("Cargo.toml"))["workspace"]["dependencies"].items() if "path" in one}
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for manifest in (f for f in files() if f.endswith("/Cargo.toml")):
        told = tomllib.loads(read(manifest))
        for name in (n for kind in ("dependencies", "dev-dependencies", "build-dependencies") for n in told.get(kind, {})):
            if name in folders:
                found[str(Path(manifest).parent)][folders[name]] = manifest
    return found
