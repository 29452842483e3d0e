#!/usr/bin/env python3
"""Runs the recipes of examples/ for real: a local system for each, and the test beside the recipe.

    examples.py [--left-out FILE] [RECIPE…]

It needs the programs in target/debug. Debian packages that a recipe needs are installed where that is possible (root,
apt-get). Otherwise the recipe is left out, and its name is printed and written to FILE.

The test of a recipe is examples/RECIPE/test.py. PROGRAMS maps the programs that it needs to Debian packages, OPTIONS are
options of `nodekeeper local`, and `test(local)` runs the recipe. Every check prints a line. The first one that fails ends
everything with exit code 1.
"""

import argparse
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import time

from local_stack import ROOT, Local

EXAMPLES = ROOT / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(programs):
    """The programs that are not there and cannot be installed."""

    def absent():
        return {p: package for p, package in programs.items() if not shutil.which(p)}

    if absent() and os.geteuid() == 0 and shutil.which("apt-get"):
        apt = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "update", "-qq"], env=apt, check=False)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *sorted(set(absent().values()))]
        subprocess.run(install, env=apt, check=False, stdout=subprocess.DEVNULL)
    return absent()


def main():
    all_names = sorted(path.parent.name for path in EXAMPLES.glob("*/test.py"))
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(all_names)} [default: all]")
    arguments.add_argument("--left-out", type=pathlib.Path, help="a file for the names of what is left out")
    given = arguments.parse_args()
    if unknown := set(given.recipes) - set(all_names):
        arguments.error(f"no such recipe: {', '.join(sorted(unknown))}; there are {', '.join(all_names)}")
    # Debian has daemons where an ordinary user does not look.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    left_out = []
    for name in given.recipes or all_names:
        began = time.monotonic()
        recipe = load(name)
        absent = getattr(recipe, "missing", missing)(recipe.PROGRAMS)
        if absent:
            left_out.append(f"examples/{name} (needs {', '.join(absent)}: apt-get install {' '.join(sorted(set(absent.values())))})")
            print(f"NOT CHECKED: {left_out[-1]}", file=sys.stderr)
            continue
        print(f"-- {name}", flush=True)
        with Local(*recipe.OPTIONS) as local:
            recipe.test(local)
        print(f"-- {name} passed ({time.monotonic() - began:.0f} s)", flush=True)
    if given.left_out:
        given.left_out.write_text("".join(f"{line}\n" for line in left_out), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
