"""Puts the program `nodekeeper` of a release into the wheel, as one of its scripts."""

import os
import pathlib

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The number of an architecture in an ELF header, and its name in the tag of a wheel.
MACHINES = {62: "x86_64", 183: "aarch64"}


class Program(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        if version == "editable":
            return  # That uses the program in PATH.
        program = pathlib.Path(os.environ.get("NODEKEEPER_PROGRAM") or "nodekeeper").resolve()
        if not program.is_file():
            raise SystemExit(f"NODEKEEPER_PROGRAM must name the program nodekeeper that the wheel carries, and {program} is no file")
        header = program.open("rb").read(20)
        machine = MACHINES.get(int.from_bytes(header[18:20], "little"))
        if header[:4] != b"\x7fELF" or machine is None:
            raise SystemExit(f"{program} is no program for Linux on {' or '.join(MACHINES.values())}")
        build_data["shared_scripts"] = {str(program): "nodekeeper"}
        # A program of a release is static, so it runs with any C library.
        build_data["tag"] = f"py3-none-manylinux_2_17_{machine}.musllinux_1_1_{machine}"
