"""Names: no word that was renamed, none that says too little, and a type's name once."""

import re
from collections import defaultdict
from collections.abc import Iterator

from sources import Finding, files, line_of, name_of, read, rust, source

GLOSSARY = "docs/glossary.md"
# The glossary has the old words itself, and the changelog quotes what once was.
QUOTING = (GLOSSARY, "CHANGELOG.md")
TYPES = ("struct_item", "enum_item", "trait_item", "type_item")
# A table of types that a macro makes, and a type in it.
MACRO_TABLE = re.compile(r"^\w+! \{$.*?^\}$", re.M | re.S)
MACRO_TYPE = re.compile(r"^ {4}([A-Z]\w*)(?: ends \w+)? \{", re.M)
NAMED = (*TYPES, "function_item", "mod_item", "const_item", "static_item", "enum_variant", "field_declaration")


def tokens(name: str) -> list[str]:
    """`SetAside`, `set_aside`, `set-aside` and `set aside` are the same words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def renamed() -> list[tuple[str, re.Pattern[str]]]:
    """The words of "Words that were renamed", with what finds each in any case and form. "(name)" behind it: this name only, for the word is plain English."""
    table = read(GLOSSARY).partition("## Words that were renamed")[2].partition("\n## ")[0]
    found = []
    for word, kind in re.findall(r"^\| `([^`]+)`( \(name\))? \|", table, re.M):
        found.append((word, re.compile(rf"\b{re.escape(word)}\b" if kind or "::" in word else in_any_form(tokens(word)))))
    return found


def in_any_form(words: list[str]) -> str:
    """Between the words: nothing, a dash, or a space, which may be the end of a line of a comment. In several words also dashes and
    capitals at other places."""
    inside = "[-_]?" if len(words) > 1 else ""
    pattern = r"(?:[-_]|\s+(?://[/!]?[ \t]*)?)?".join(inside.join(f"[{c}{c.upper()}]" for c in word) for word in words)
    first = words[0][0]
    # Behind a small letter only a capital begins a word.
    return rf"(?<![A-Za-z]){pattern}(?![a-z])|(?<=[a-z0-9]){first.upper()}{pattern[4:]}(?![a-z])"


def check_words() -> Iterator[Finding]:
    words = renamed()
    for path in files():
        if not path.endswith((".rs", ".md", ".toml", ".yaml")) or path in QUOTING or path.startswith("tests/tidy/"):
            continue
        content, seen = read(path), set()
        flat = re.sub(r"[-_\s/!]", "", content.lower())
        for word, pattern in words:
            for hit in pattern.finditer(content) if "".join(tokens(word)) in flat else ():
                if hit.start() not in seen:
                    seen.add(hit.start())
                    line = content.count("\n", 0, hit.start()) + 1
                    yield Finding("word", f"{path}: {hit[0]}", f"{path}:{line}: `{hit[0]}` was renamed: {GLOSSARY} says to what")


def check_types() -> Iterator[Finding]:
    """Who reads a type's name knows which type it is."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in rust():
        for node in source(path).product(*TYPES):
            # The types of traits and of their implementations have the trait's names.
            if node.parent is None or node.parent.type != "declaration_list" or node.parent.parent.type == "mod_item":
                places[name_of(node)].append(f"{path}:{line_of(node)}")
        content = read(path)
        for table in MACRO_TABLE.finditer(content):
            for found in MACRO_TYPE.finditer(table[0]):
                line = content.count("\n", 0, table.start() + found.start()) + 1
                places[found[1]].append(f"{path}:{line}")
    for name, where in places.items():
        for place in where if len(where) > 1 else []:
            others = ", ".join(p for p in where if p != place)
            yield Finding("type-name", name, f"{place}: the type {name} has a namesake: {others}")


def check_vague() -> Iterator[Finding]:
    """Words of the glossary's list that say too little in a name. A word stands in many names, so the exceptions count them."""
    table = read(GLOSSARY).partition("## Words that say too little in a name")[2].partition("\n## ")[0]
    vague = set(re.findall(r"`(\w+)`", table))
    for path in rust():
        for node in source(path).product(*NAMED):
            # "Not found" is the word of HTTP and of the shell.
            for word in vague & set(tokens(name_of(node).replace("NotFound", ""))):
                yield Finding("vague-name", word, f"{path}:{line_of(node)}: {name_of(node)}: `{word}` says too little in a name ({GLOSSARY})")
