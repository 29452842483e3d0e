"""Functions as files: what `map` sends to the nodes, and what comes back."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
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
        return bytes(cloudpickle.dumps(what))
    except (TypeError, pickle.PicklingError) as error:
        raise WrongRequest(f"{what!r} cannot be sent to a node: {error}") from error


def pack(function: Callable[..., Any]) -> bytes:
    """A program of Python that calls the function. The same function gives the same bytes."""
    pickled = dump(function)
    import cloudpickle

    names = {"cloudpickle/__init__.py": cloudpickle.__file__, "cloudpickle/cloudpickle.py": cloudpickle.cloudpickle.__file__,
             "__main__.py": str(Path(__file__).with_name("call.py"))}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        for name, content in {**{name: Path(path).read_bytes() for name, path in names.items()}, "function": pickled}.items():
            files.writestr(zipfile.ZipInfo(name), content)
    return archive.getvalue()
