"""The files of the repository as the rules read them. Each is read and parsed once."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import tree_sitter_rust
from tree_sitter import Language, Node, Parser, Query, QueryCursor

ROOT = Path(__file__).resolve().parents[2]
RUST = Language(tree_sitter_rust.language())
PARSER = Parser(RUST)
KINDS = (
    "function_item", "function_signature_item", "struct_item", "enum_item", "trait_item", "type_item", "mod_item", "const_item", "static_item",
    "enum_variant", "field_declaration", "impl_item", "attribute_item", "inner_attribute_item", "parameter", "let_declaration", "call_expression",
    "scoped_identifier", "arguments", "token_tree", "use_declaration",
    "if_expression", "match_expression", "for_expression", "while_expression", "loop_expression", "closure_expression", "async_block",
)
QUERY = Query(RUST, "\n".join(f"({kind}) @{kind}" for kind in KINDS))
# A crate or a file that only the system on one machine has, or that only tests compile. No deployed program contains it.
LOCAL = re.compile(r"^local/|^shared/model/src/fixtures\.rs$|^shared/store/src/rows/defaults\.rs$")


class Finding(NamedTuple):
    """`key` names what fails for `exceptions.toml`, `says` the place and what to do."""

    rule: str
    key: str
    says: str


def text(node: Node) -> str:
    return node.text.decode()


def name_of(node: Node) -> str:
    return text(node.child_by_field_name("name"))


def line_of(node: Node) -> int:
    return node.start_point.row + 1


class Source:
    """A Rust file: its tree, its nodes by kind, and which of its bytes only tests compile."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.text = (ROOT / path).read_text()
        self.lines = self.text.splitlines()
        self.root = PARSER.parse(self.text.encode()).root_node

    @cached_property
    def nodes(self) -> dict[str, list[Node]]:
        found = QueryCursor(QUERY).captures(self.root)
        return {kind: sorted(found.get(kind, []), key=lambda n: n.start_byte) for kind in KINDS}

    @cached_property
    def test_items(self) -> list[Node]:
        found = []
        for attribute in self.nodes["attribute_item"]:
            if re.search(r"\bcfg\((all\(|any\()?test\b|^#\[(tokio::)?test\b", text(attribute)):
                item = attribute.next_named_sibling
                while item is not None and item.type in ("attribute_item", "line_comment", "block_comment"):
                    item = item.next_named_sibling
                found += [item] if item is not None else []
        return found

    def in_test(self, node: Node) -> bool:
        return is_test(self.path) or any(i.start_byte <= node.start_byte < i.end_byte for i in self.test_items)

    def product(self, *kinds: str) -> Iterator[Node]:
        """The nodes of these kinds that no test contains."""
        return (node for kind in kinds for node in self.nodes[kind] if not self.in_test(node))

    @cached_property
    def code(self) -> list[str]:
        """The lines that are neither blank nor comment nor test."""
        test = set()
        for item in self.test_items:
            test.update(range(item.start_point.row, item.end_point.row + 1))
            before = item.prev_named_sibling
            while before is not None and before.type in ("attribute_item", "line_comment", "block_comment"):
                test.update(range(before.start_point.row, before.end_point.row + (before.end_point.column > 0)))
                before = before.prev_named_sibling
        return [line for row, line in enumerate(self.lines) if row not in test and not is_idle(line)]


def is_idle(line: str) -> bool:
    return not line.strip() or line.strip().startswith("//")


@cache
def source(path: str) -> Source:
    return Source(path)


@cache
def files() -> tuple[str, ...]:
    """What git has, and what it would take."""
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    return tuple(sorted({f for f in out.stdout.splitlines() if (ROOT / f).is_file()}))


@cache
def rust() -> tuple[str, ...]:
    return tuple(f for f in files() if f.endswith(".rs"))


@cache
def read(path: str) -> str:
    return (ROOT / path).read_text()


def is_test(path: str) -> bool:
    return path.startswith("tests/") or "/tests/" in path or path.endswith(("/tests.rs", "/testing.rs")) or "/benches/" in path


@cache
def crate_of(path: str) -> str:
    """The folder of the crate that a file belongs to."""
    return next((str(p) for p in Path(path).parents if (ROOT / p / "Cargo.toml").is_file()), ".")
