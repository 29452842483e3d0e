"""Functions as files: what `map` sends to the nodes, and what comes back."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from .errors import WrongRequest

COMMAND = ["call.pyz", f"{sys.version_info.major}.{sys.version_info.minor}", "argument", "result"]
RESULT = "result"


def dump(what: Any) -> bytes:
    """This, as bytes. What the program itself defines goes along, what it imports does not."""
    try:
        import cloudpickle
    except ImportError as error:
        raise WrongRequest("map needs cloudpickle: pip install 'nodekeeper[map]'") from error
    try:
        table, pickled = cloudpickle.Pickler.dispatch_table, io.BytesIO()

        class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
            # The lines of a function count from its first one: it stays the same when something above it changes.
            dispatch_table = ChainMap({CodeType: lambda code: table[CodeType](code.replace(co_firstlineno=1))}, table)

        Pickler(pickled).dump(what)
        return pickled.getvalue()
    except (TypeError, pickle.PicklingError) as error:
        raise WrongRequest(f"{what!r} cannot be sent to a node: {error}") from error


def pack(function: Callable[..., Any]) -> bytes:
    """A program of Python that calls the function. The same function gives the same bytes."""
    pickled = dump(function)
    import cloudpickle

    package = {f"cloudpickle/{path.name}": path for path in sorted(Path(cloudpickle.__file__).parent.glob("*.py"))}
    paths = {**package, "__main__.py": Path(__file__).with_name("call.py")}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name, content in {**{name: path.read_bytes() for name, path in paths.items()}, "function": pickled}.items():
            files.writestr(zipfile.ZipInfo(name), content)
    return archive.getvalue()
