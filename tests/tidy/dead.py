"""Public items that only tests use.

A free item is used where a path to it stands. A method is used where it is called on a value that may be of its type: the types of
values are guessed from declarations of the same name, and a value of which nothing is known counts as any type.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tree_sitter import Node, Query, QueryCursor

from modules import arrows_of_crates, expand
from sources import LOCAL, RUST, Finding, crate_of, is_test, line_of, name_of, rust, source, text

# The two crates that all others use.
RESOLVED = ("shared/store", "shared/model")
ANY = None


def check_public() -> Iterator[Finding]:
    """A public item whose name nothing outside of its definition and of tests has."""
    words: Counter[str] = Counter()
    for path in rust():
        if not is_test(path):
            words.update(re.findall(r"\w+", re.sub(r"//.*", "", source(path).text)))
    for path in (p for p in rust() if not is_test(p)):
        for node in source(path).product("function_item", "struct_item", "enum_item", "trait_item", "type_item", "const_item", "static_item"):
            if is_public(node) and words[name_of(node)] == 1:
                yield Finding("dead", f"{path}: {name_of(node)}", f"{path}:{line_of(node)}: nothing but tests uses the public {name_of(node)}")


def is_public(node: Node) -> bool:
    return any(c.type == "visibility_modifier" and text(c) == "pub" for c in node.children)


def owner(node: Node) -> Node | None:
    """The `impl` or `trait` that a function belongs to."""
    above = node.parent.parent if node.parent is not None and node.parent.type == "declaration_list" else None
    return above if above is not None and above.type in ("impl_item", "trait_item") else None


def types_in(node: Node | None) -> frozenset[str]:
    """Every type that a type names: of `Option<Vec<Job>>` all three."""
    return frozenset(re.findall(r"\b[A-Z]\w*", text(node))) if node is not None else frozenset()


# What a library's method gives that has to do with the type it is called on.
KEEPS = set("""clone cloned copied as_ref as_mut as_deref unwrap_or_default ok_or ok_or_else ok iter iter_mut into_iter borrow lock to_owned first
last get get_mut next expect unwrap take values values_mut as_slice""".split())


class Known:
    """What declarations say of the types of values, in the whole workspace."""

    def __init__(self) -> None:
        # The types of the fields of a name, and what functions of a name return.
        self.fields: dict[str, set[str]] = defaultdict(set)
        self.returns: dict[str, set[str]] = defaultdict(set)
        self.derefs: dict[str, set[str]] = defaultdict(set)
        for path in rust():
            for node in source(path).nodes["field_declaration"]:
                self.fields[name_of(node)] |= types_in(node.child_by_field_name("type")) or {"primitive"}
            for node in source(path).nodes["function_item"] + source(path).nodes["function_signature_item"]:
                kind = types_in(node.child_by_field_name("return_type")) or {"primitive"}
                self.returns[name_of(node)] |= {enclosing(node) or "Self" if t == "Self" else t for t in kind}
            for node in source(path).nodes["impl_item"]:
                if (trait := node.child_by_field_name("trait")) and text(trait) == "Deref":
                    self.derefs[enclosing(node.child_by_field_name("body"))] |= types_in(node)

    def types(self, node: Node | None, depth: int = 0) -> frozenset[str] | None:
        """The types that the value of an expression may have to do with. None: any."""
        found = self.guess(node, depth) if node is not None and depth < 12 else ANY
        # A type of one letter is a parameter of a generic function.
        if not found or any(len(kind) == 1 for kind in found):
            return ANY
        return found.union(*(self.derefs[kind] for kind in found if kind in self.derefs))

    def guess(self, node: Node, depth: int) -> frozenset[str] | None:
        match node.type:
            case "self":
                return frozenset({enclosing(node)})
            case "identifier":
                return self.of_name(text(node), node, depth)
            case "field_expression":
                return frozenset(self.fields.get(text(node.child_by_field_name("field")), ()))
            case "call_expression":
                return self.of_call(node, depth)
            case "try_expression" | "await_expression" | "reference_expression" | "parenthesized_expression" | "unary_expression":
                return self.types(node.named_children[-1] if node.named_children else None, depth + 1)
            case "string_literal" | "integer_literal" | "char_literal":
                return frozenset({"primitive"})
            case "struct_expression":
                return types_in(node.child_by_field_name("name"))
        return ANY

    def of_name(self, name: str, node: Node, depth: int = 0) -> frozenset[str] | None:
        """A parameter, or variables that `let` makes. What a pattern or a closure names may be anything."""
        above = node
        while above is not None and above.type != "function_item":
            if above.type == "closure_expression" and re.search(rf"\b{name}\b", text(above.child_by_field_name("parameters"))):
                return ANY
            above = above.parent
        if above is None:
            return ANY
        patterns, values = bindings(above)
        if name in patterns:
            return ANY
        found = [types_in(kind) or frozenset({"primitive"}) if kind is not None else self.types(value, depth + 1) for kind, value in values.get(name, [])]
        return frozenset().union(*found) if found and ANY not in found else ANY

    def of_call(self, node: Node, depth: int) -> frozenset[str] | None:
        called = node.child_by_field_name("function")
        if called.type in ("scoped_identifier", "identifier"):
            path = text(called).split("::")
            kinds = {enclosing(node) if p == "Self" else p for p in path[-2:-1] if p[:1].isupper()}
            return frozenset(self.returns.get(path[-1], set()) | kinds)
        if called.type != "field_expression":
            return ANY
        name, inner = text(called.child_by_field_name("field")), self.types(called.child_by_field_name("value"), depth + 1)
        if inner is ANY or (name not in KEEPS and name not in self.returns):
            return ANY
        return frozenset(inner | self.returns.get(name, set()))


@cache
def bindings(function: Node) -> tuple[set[str], dict[str, list[tuple[Node | None, Node | None]]]]:
    """The names that patterns bind in a function, and those that parameters and plain `let` do, with type and value."""
    patterns: set[str] = set()
    values: dict[str, list[tuple[Node | None, Node | None]]] = defaultdict(list)
    for node in bound(function):
        if node.type in ("parameter", "let_declaration"):
            pattern, kind, value = (node.child_by_field_name(f) for f in ("pattern", "type", "value"))
            if pattern.type in ("identifier", "mut_pattern"):
                values[re.findall(r"\w+", text(pattern))[-1]].append((kind, value))
            else:
                patterns.update(re.findall(r"\w+", text(pattern)))
        else:
            patterns.update(re.findall(r"\w+", text(node)))
    return patterns, values


BINDINGS = Query(RUST, "(parameter) @b (let_declaration) @b (match_pattern . (_) @b) (for_expression pattern: (_) @b) (let_condition pattern: (_) @b)")


def bound(function: Node) -> list[Node]:
    return QueryCursor(BINDINGS).captures(function).get("b", [])


@cache
def known() -> Known:
    return Known()


class Uses:
    """What the product calls, but not what it only hands on with `pub use`."""

    def __init__(self) -> None:
        # By method: the types on whose values it is called, and the crates that call it on a value of which nothing is known.
        self.methods: dict[str, set[str]] = defaultdict(set)
        self.unknown: dict[str, set[str]] = defaultdict(set)
        # The pairs `a::b` of all paths.
        self.pairs: set[tuple[str, str]] = set()
        # By name: the files that call it, or give it to somebody, without a path.
        self.alone: dict[str, set[str]] = defaultdict(set)
        for path in (p for p in rust() if not is_test(p)):
            self.calls(path)
            self.paths(path)
            self.macros(path)

    def calls(self, path: str) -> None:
        for node in source(path).product("call_expression"):
            called = node.child_by_field_name("function")
            if called.type == "generic_function":
                called = called.child_by_field_name("function")
            if called.type == "field_expression":
                self.note(path, text(called.child_by_field_name("field")), known().types(called.child_by_field_name("value")))
            elif called.type == "identifier":
                self.alone[text(called)].add(path)
        for node in source(path).product("arguments"):
            for name in (text(n) for n in node.named_children if n.type == "identifier"):
                self.alone[name].add(path)

    def note(self, path: str, method: str, types: frozenset[str] | None) -> None:
        if types is ANY:
            self.unknown[method].add(crate_of(path))
        else:
            self.methods[method] |= types

    def paths(self, path: str) -> None:
        for node in source(path).product("use_declaration"):
            if not is_public(node):
                for _, full in expand(node.child_by_field_name("argument"), ()):
                    for first, second in [*zip(full, full[1:]), (full[0], full[-1])]:
                        self.pair(path, first, second)
        for node in source(path).product("scoped_identifier"):
            if node.parent.type.startswith(("use_", "scoped_use_", "scoped_identifier")):
                continue
            words = re.sub(r"\s|<[^<>]*>", "", text(node)).split("::")
            for first, second in [*zip(words, words[1:]), (words[0], words[-1])]:
                self.pair(path, enclosing(node) or first if first == "Self" else first, second)

    def pair(self, path: str, first: str, second: str) -> None:
        here = first in ("crate", "super", "self")
        self.pairs.add((f"{crate_of(path)}: {first}" if here else first, second))

    def macros(self, path: str) -> None:
        """In a macro there are words only."""
        for node in source(path).product("token_tree"):
            inner = text(node)
            for field, before, name in re.findall(r"(\.?)(?<!\w)(\w*[)\]?]*)\s*\.(\w+)\(", inner):
                if field or before == "self" or not before.isidentifier():
                    self.note(path, name, known().fields.get(before, ANY) if field else frozenset({enclosing(node)}) if before == "self" else ANY)
                else:
                    self.note(path, name, known().of_name(before, node))
            for first, second in re.findall(r"(\w+)::(?=(\w+))", inner):
                self.pair(path, first, second)
            for name in re.findall(r"(?<![.:\w])([a-z_]\w*)\(", inner):
                self.alone[name].add(path)


def enclosing(node: Node) -> str | None:
    while node is not None and node.type not in ("impl_item", "trait_item"):
        node = node.parent
    kind = node.child_by_field_name("type" if node.type == "impl_item" else "name") if node is not None else None
    return re.split(r"[<:\s]", text(kind).split("::")[-1])[0] if kind is not None else None


def check_resolved() -> Iterator[Finding]:
    """Public functions and methods of `store` and `model` that only tests call, although something else has their name too."""
    uses = Uses()
    for path in (p for p in rust() if crate_of(p) in RESOLVED and not is_test(p) and not LOCAL.match(p)):
        file, crate = Path(path), crate_of(path)
        homes = {f"{crate}: crate", f"{crate}: super", f"{crate}: self", Path(crate).name, file.parent.name if file.stem == "mod" else file.stem}
        for node in source(path).product("function_item"):
            name, kind, above = name_of(node), enclosing(node), owner(node)
            if not is_public(node) or (above is not None and above.child_by_field_name("trait") is not None):
                continue
            if kind is None:
                is_used = any((home, name) in uses.pairs for home in homes) or path in uses.alone[name]
            else:
                is_called = kind in uses.methods[name] or any(crate in below(other) for other in uses.unknown[name])
                is_used = (kind, name) in uses.pairs or (has_self(node) and is_called)
            if not is_used:
                shown = f"{kind}::{name}" if kind else name
                yield Finding("dead", f"{path}: {shown}", f"{path}:{line_of(node)}: nothing but tests calls the public {shown}")


@cache
def below(crate: str) -> frozenset[str]:
    """The crates whose types may be in a crate."""
    found, left = set(), {crate}
    while left:
        found |= left
        left = {other for one in left for other in arrows_of_crates().get(one, {})} - found
    return frozenset(found)


def has_self(node: Node) -> bool:
    return any(p.type == "self_parameter" for p in node.child_by_field_name("parameters").named_children)
