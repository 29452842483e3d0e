#!/usr/bin/env python3
"""Checks the rules of the house that need no build (docs/working-here.md#the-house).

    python tests/tidy                      prints one line for each finding, exits 1 if there is one
    python tests/tidy --counts             prints how heavy the rooms are, and what they may weigh
    python tests/tidy --set ROOM 'REASON'  the room may weigh what it weighs now: REASON says what was added
    python tests/tidy --lower              lowers each budget and each exception to what is there
    python tests/tidy --self-test          plants a fault against each rule in a copy of the sources, and looks whether it is found

Reads the Rust sources with tree-sitter, so it sees what the compiler sees, but for what a macro writes. Does not: replace
clippy, which the build runs.
"""

import sys

import budget
import dead
import house
import modules
import names
import pages
from sources import Finding, rust

RULES = (
    modules.check_circles, modules.check_arrows, house.check_sizes, house.check_bools, house.check_allows, house.check_comments,
    house.check_modes, house.check_git, house.check_layout, house.check_folders, names.check_words, names.check_types, names.check_vague,
    dead.check_public, dead.check_resolved, pages.check_sentences, pages.check_places, pages.check_map, pages.check_guide,
)


def findings() -> list[Finding]:
    return [finding for rule in RULES for finding in rule()]


def main() -> None:
    sys.setrecursionlimit(20_000)
    match sys.argv[1:]:
        case []:
            found = [*budget.check_exceptions(findings()), *budget.check_budgets()]
            print("\n".join(dict.fromkeys(one.says for one in found)) if found else f"tidy: {len(rust())} Rust sources, nothing found")
            sys.exit(1 if found else 0)
        case ["--counts"]:
            budget.print_counts()
        case ["--set", room, reason]:
            budget.set_room(room, reason)
        case ["--lower"]:
            budget.lower(findings())
        case ["--self-test"]:
            import plants

            plants.run()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
