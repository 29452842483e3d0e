#!/usr/bin/env python3
"""Runs the recipes of examples/ and the clients of clients/ for real: a local system for each, and the test beside it.

    examples.py [--left-out FILE] [RECIPE…]

It needs the programs in target/debug. Debian packages that a recipe needs are installed where that is possible (root,
apt-get). Otherwise the recipe is left out, and its name is printed and written to FILE.

The test of a recipe is examples/RECIPE/test.py. PROGRAMS maps the programs that it needs to Debian packages, PACKAGES are those of
PyPI that `local.python` then has, OPTIONS are options of `nodekeeper local`, and `test(local)` runs the recipe. Every check prints a
line. The first one that fails ends the recipe. Several recipes run three at a time, because most of their time they wait; each prints
when it has ended.
"""

import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import time

from local_stack import ROOT, Local

TESTS = {path.parent.name: path for folder in ("clients", "examples") for path in sorted((ROOT / folder).glob("*/test.py"))}


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", TESTS[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def missing(recipe):
    """What the recipe needs and cannot get here, as a text; empty if it has all."""
    if getattr(recipe, "NEEDS_ROOT", False) and os.geteuid() != 0:
        return "it needs root"

    def absent():
        return {program: package for program, package in recipe.PROGRAMS.items() if not shutil.which(program)}

    if absent() and os.geteuid() == 0 and shutil.which("apt-get"):
        apt = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "update", "-qq"], env=apt, check=False)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *sorted(set(absent().values()))]
        subprocess.run(install, env=apt, check=False, stdout=subprocess.DEVNULL)
    if not absent():
        return pip_install(getattr(recipe, "PACKAGES", []), python_of(recipe))
    packages = " ".join(sorted(set(absent().values())))
    return f"there is no {', '.join(absent())}, and it cannot be installed here: apt-get install {packages}"


def python_of(recipe):
    """The Python that has the packages of the recipe."""
    return ROOT / "target/recipes" / recipe.__name__ / "bin/python"


def pip_install(packages, python):
    """Gives this Python exactly these packages of PyPI, if it has not been given them before. What went wrong, or nothing."""
    given = python.with_name("given")
    wanted = "\n".join(packages)
    if given.exists() and given.read_text(encoding="utf-8") == wanted or not packages:
        return ""
    venv = subprocess.run([sys.executable, "-m", "venv", "--clear", python.parent.parent], check=False)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    if venv.returncode != 0 or subprocess.run(pip, check=False).returncode != 0:
        return f"pip cannot install {', '.join(packages)}"
    given.write_text(wanted, encoding="utf-8")
    return ""


def run(name):
    began = time.monotonic()
    recipe = load(name)
    print(f"-- {name}", flush=True)
    with Local(*recipe.OPTIONS) as local:
        local.python = python_of(recipe)
        recipe.test(local)
    print(f"-- {name} passed ({time.monotonic() - began:.0f} s)", flush=True)


def run_alone(name):
    """In a process of its own. True if it passed."""
    done = subprocess.run([sys.executable, "-u", __file__, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout, end="", flush=True)
    return done.returncode == 0


def main():
    all_names = sorted(TESTS)
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of {', '.join(all_names)} [default: all]")
    arguments.add_argument("--left-out", type=pathlib.Path, help="a file for the names of what is left out")
    given = arguments.parse_args()
    if unknown := set(given.recipes) - set(all_names):
        arguments.error(f"no such recipe: {', '.join(sorted(unknown))}; there are {', '.join(all_names)}")
    # Debian has daemons where an ordinary user does not look.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    wanted, left_out = [], []
    for name in given.recipes or all_names:
        if absent := missing(load(name)):
            left_out.append(f"{TESTS[name].parent.relative_to(ROOT)} ({absent})")
            print(f"NOT CHECKED: {left_out[-1]}", file=sys.stderr, flush=True)
        else:
            wanted.append(name)
    if given.left_out:
        given.left_out.write_text("".join(f"{line}\n" for line in left_out), encoding="utf-8")
    if len(wanted) == 1:
        return run(wanted[0])
    wanted.sort(key=lambda name: not getattr(load(name), "IS_LONG", False))
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        passed = list(threads.map(run_alone, wanted))
    failed = [name for name, ok in zip(wanted, passed, strict=True) if not ok]
    print(f"Failed: {', '.join(failed)}." if failed else f"{len(wanted)} recipes passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
