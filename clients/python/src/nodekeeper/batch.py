"""The program behind the client: `nodekeeper batch`, which takes requests and gives answers as lines of JSON.

Guarantees: every request ends, with an answer or with an error, also when the program dies.
Does not: repeat a request. `Cluster` does, because it knows that it may.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from .errors import EXIT_CODES, KINDS, NodekeeperError, TryAgain, WrongRequest

Answer = dict[str, Any]
# How long the program may take to end. It would go on while somebody waits for a job.
END_S = 2


def find_program() -> str:
    """The program that the wheel carries; of another installation the one that a shell would start."""
    program = shutil.which("nodekeeper", path=sysconfig.get_path("scripts")) or shutil.which("nodekeeper")
    if program is None:
        raise WrongRequest("there is no program nodekeeper in PATH: install a wheel that carries it, or give Cluster(program=…)")
    return program


class Batch:
    """One `nodekeeper batch`. It may be asked by several threads at the same time."""

    def __init__(self, command: Sequence[str], folder: Path):
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        try:
            # In a group of its own: Ctrl-C is for the caller, who may still want to cancel jobs.
            self._process = subprocess.Popen([*command, "batch"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                             stderr=self._errors, text=True, encoding="utf-8", process_group=0)
        except OSError as error:
            raise WrongRequest(f"{command[0]} cannot be run: {error}") from error
        assert self._process.stdin and self._process.stdout
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Future[Answer], Callable[[Answer], None]]] = {}
        self.end: NodekeeperError | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def ask(self, request: Answer, on_ended: Callable[[Answer], None] = lambda row: None) -> Future[Answer]:
        """Sends a request. A wait calls `on_ended` with the row of each job that has ended, from a thread of its own."""
        future: Future[Answer] = Future()
        with self._lock:
            if self.end:
                future.set_exception(self.end)
                return future
            number = next(self._numbers)
            self._open[number] = future, on_ended
            # If it has ended, the thread that reads gives the error to every open request.
            with contextlib.suppress(OSError):
                self._requests.write(json.dumps({"id": number, **request}) + "\n")
                self._requests.flush()
        return future

    def close(self) -> None:
        """Ends the program."""
        with self._lock, contextlib.suppress(OSError):
            self._requests.close()
        self._thread.join(END_S)
        self._process.kill()

    def _read(self) -> None:
        end = None
        try:
            for line in self._answers:
                self._take(json.loads(line))
        except (ValueError, LookupError, TypeError) as error:
            # It is no program of this protocol, and what else it says cannot be trusted.
            self._process.kill()
            end = NodekeeperError(f"nodekeeper batch does not answer as it should: {error}")
        self._answers.close()
        with self._lock:
            self.end = end or self._why_ended()
            unanswered, self._open = self._open, {}
        for future, _ in unanswered.values():
            future.set_exception(self.end)

    def _take(self, answer: Answer) -> None:
        has_more = "ended" in answer
        with self._lock:
            future, on_ended = self._open[answer["id"]] if has_more else self._open.pop(answer["id"])
        if has_more:
            on_ended(answer["ended"])
        elif error := answer.get("error"):
            future.set_exception(KINDS.get(error["kind"], NodekeeperError)(error["message"]))
        else:
            future.set_result(answer)

    def _why_ended(self) -> NodekeeperError:
        code = self._process.wait()
        self._errors.seek(0)
        stderr = self._errors.read().strip()
        if code <= 0:
            return TryAgain(f"nodekeeper batch was killed by signal {-code}" if code else "nodekeeper batch has ended")
        return EXIT_CODES.get(code, NodekeeperError)(stderr or f"nodekeeper batch ended with exit code {code}")
