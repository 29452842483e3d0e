"""A cluster, its jobs, and what a program does with them.

Guarantees: a call may be repeated after any error, and in another process: a job has a key, and one key never makes a second job.
Does not: keep anything. What is known of a job is what the cluster says.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack

from . import functions
from .batch import Answer, Batch, find_program
from .errors import NodekeeperError, TryAgain, WrongRequest
from .fields import Fields
from .progress import shown

T = TypeVar("T")
Row = dict[str, Any]
# How long to wait before a call is made again that may succeed later.
PAUSES_S = (0.5, 1, 2, 4, 8, 16, 30)
# How much of the errors of a failed job its exception shows.
LINES_SHOWN = 20


@dataclass(frozen=True)
class Logs:
    """What a job printed. A part of it may be missing: its node was lost, for example. `stdout` lacks what is not UTF-8."""

    stdout: str
    stderr: str
    missing: bool
    stdout_bytes: bytes


@dataclass(eq=False)
class Job(Generic[T]):
    """A job of a cluster. `row` is what was last known of it: as a row of `nodekeeper jobs --json`."""

    cluster: Cluster
    id: str
    row: Row = field(default_factory=dict, repr=False)
    _value: Callable[[Job[T]], T] = field(kw_only=True, repr=False)

    @property
    def state(self) -> str:
        return str(self.row.get("state", "queued"))

    def wait(self, timeout: float | None = None) -> Job[T]:
        return self.cluster.wait([self], timeout)[0]

    def result(self, timeout: float | None = None) -> T:
        """What the job gave: the value of a function of `map`, otherwise its standard output."""
        return self.cluster.results([self], timeout)[0]

    def logs(self) -> Logs:
        answer = self.cluster._ask(logs=self.id)
        stdout = base64.b64decode(answer["stdout_base64"]) if "stdout_base64" in answer else answer["stdout"].encode()
        return Logs(answer["stdout"], answer["stderr"], answer["missing"], stdout)

    def fetch(self, folder: str | os.PathLike[str] = ".", path: str = ".") -> None:
        """Gets the files that the job keeps (`outputs`) into this folder."""
        self.cluster._ask(fetch={"job": self.id, "path": path, "dir": os.path.abspath(folder)})

    def cancel(self) -> None:
        self.cluster.cancel([self])

    def failure(self) -> str:
        """Why it did not complete, with the end of what it printed on standard error."""
        message = f"job {self.row.get('name') or self.id} is {self.state}: {self.row.get('reason', 'no reason is known')}"
        with suppress(NodekeeperError):
            message = "\n".join([message, *self.logs().stderr.splitlines()[-LINES_SHOWN:]])
        return message


class JobFailed(NodekeeperError):
    """A job did not complete. `jobs` has all of them that a call waited for, in order."""

    def __init__(self, jobs: list[Job[Any]], message: str):
        super().__init__(message)
        self.jobs, self.job = jobs, jobs[0]


class Cluster(AbstractContextManager["Cluster"]):
    """A cluster, by its name, or as the environment says.

    A job has a key, and the same key is the same job. `key=` of a call is that key. Without it, the content of the job is the key,
    below the key of the `Cluster`: so a script with `Cluster(key="study-1")` finds its jobs when it is run again. A `Cluster` without
    a key begins anew.

    Local paths of `in_` and `workdir` are those of the folder in which the `Cluster` was made.
    """

    def __init__(self, name: str | None = None, *, key: str | None = None, program: str | None = None,
                 progress: bool | None = None):
        self._command = [program or find_program(), *(["--cluster", name] if name else [])]
        self._key, self._run = key, key or f"run-{secrets.token_hex(8)}"
        self._progress, self._folder = progress, Path.cwd()
        here = weakref.ref(self._begin())
        # A child has no thread of its parent, so it needs a program of its own.
        os.register_at_fork(after_in_child=lambda: (cluster := here()) and cluster._begin())

    def _begin(self) -> Cluster:
        self._lock = threading.Lock()
        self._batch: Batch | None = None
        self._ends: dict[str, futures.Future[Row]] = {}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the program behind it. The jobs go on."""
        with self._lock:
            batch, self._batch = self._batch, None
        if batch:
            batch.close()

    def submit(self, command: str | Sequence[str], *, key: str | None = None, **fields: Unpack[Fields]) -> Job[str]:
        """Submits a job. A command that is one text is a line for the shell."""
        return self.submit_all([{"command": command, "key": key, **fields}])[0]

    def submit_all(self, lines: Iterable[Mapping[str, Any]]) -> list[Job[str]]:
        """Submits a job for each of these lines, in one request: their fields, `command` and `key`."""
        return self._submit(lines, _printed)

    def map(self, function: Callable[[Any], T], inputs: Iterable[Any], *, key: str | None = None, python: str = "python3",
            **fields: Unpack[Fields]) -> list[Job[T]]:
        """Calls the function with each input, each call as a job. Their nodes need this version of Python, and nothing else.

        With `key`, the jobs have the keys `KEY/0`, `KEY/1`, and so on.
        """
        more = fields.pop("in_", ())
        more = [more] if isinstance(more, str) else list(more)
        name = fields.pop("name", getattr(function, "__name__", "call"))
        with tempfile.TemporaryDirectory(prefix="nodekeeper-") as folder:
            program = Path(folder, functions.COMMAND[0])
            program.write_bytes(functions.pack(function))
            lines = []
            for number, argument in enumerate(inputs):
                content = functions.dump(argument)
                given = Path(folder, hashlib.sha256(content).hexdigest())
                given.write_bytes(content)
                lines.append({"command": [python, *functions.COMMAND], "name": name, **fields, "key": key and f"{key}/{number}",
                              "in": [f"{program}={program.name}", f"{given}=argument", *more],
                              "outputs": [functions.RESULT, *fields.get("outputs", ())]})
            return self._submit(lines, _returned)

    def job(self, name: str) -> Job[str]:
        """A job that is there, by its id, a part of it, or its name."""
        row = self._ask(list=[name])["rows"][0]
        return Job(self, row["job_id"], row, _value=_printed)

    def refresh(self, jobs: Iterable[Job[Any]]) -> None:
        """Asks how these jobs are now."""
        asked = {job.id: job for job in jobs}
        for row in self._ask(list=list(asked))["rows"] if asked else ():
            asked[row["job_id"]].row = row

    def as_completed(self, jobs: Iterable[Job[T]], timeout: float | None = None) -> Iterator[Job[T]]:
        """These jobs, each as soon as it has ended."""
        waiting = {job: None for job in jobs}
        deadline = None if timeout is None else time.monotonic() + timeout
        with shown(len(waiting), self._progress) as add:
            for pause in (*PAUSES_S, None):
                ends = self.ends(waiting)
                try:
                    for end in futures.as_completed(ends, None if deadline is None else max(0, deadline - time.monotonic())):
                        for job in ends[end] if end.exception() is None else ():
                            job.row = end.result()
                            add(job.state)
                            del waiting[job]
                            yield job
                except futures.TimeoutError:
                    raise TimeoutError(f"{len(waiting)} jobs have not ended within {timeout} s") from None
                errors = [error for end in ends if (error := end.exception())]
                if not errors:
                    return
                if pause is None or not isinstance(errors[0], TryAgain):
                    raise errors[0]
                time.sleep(pause)

    def ends(self, jobs: Iterable[Job[T]]) -> dict[futures.Future[Row], list[Job[T]]]:
        """The row of each job once it has ended, as a future, and the jobs that it is of: for programs that wait for other things too."""
        ends: dict[futures.Future[Row], list[Job[T]]] = {}
        new: dict[str, futures.Future[Row]] = {}
        batch = self._ready()
        with self._lock:
            for job in jobs:
                end = self._ends.get(job.id)
                if end is None or end.done() and end.exception():
                    end = self._ends[job.id] = new[job.id] = futures.Future()
                ends.setdefault(end, []).append(job)
        if new:
            asked = batch.ask({"wait": list(new)}, lambda row: new[row["job_id"]].set_result(row))
            asked.add_done_callback(lambda asked: _fail(new.values(), asked.exception() or NodekeeperError("a wait left out a job")))
        return ends

    def wait(self, jobs: Iterable[Job[T]], timeout: float | None = None) -> list[Job[T]]:
        """These jobs, in their order, when all of them have ended."""
        jobs = list(jobs)
        list(self.as_completed(jobs, timeout))
        return jobs

    def results(self, jobs: Iterable[Job[T]], timeout: float | None = None) -> list[T]:
        """What these jobs gave, in their order, when all of them have ended. It is an error if one of them did not complete."""
        jobs = list(jobs)
        with futures.ThreadPoolExecutor(16) as threads:
            values = {job: threads.submit(job._value, job) for job in self.as_completed(jobs, timeout) if job.state == "complete"}
        if failed := [job for job in jobs if job not in values]:
            raise JobFailed(failed, f"{len(failed)} of {len(jobs)} did not complete: {failed[0].failure()}")
        return [values[job].result() for job in jobs]

    def cancel(self, jobs: Iterable[Job[Any]], *, yes: bool = False) -> None:
        """Ends these jobs. What has ended stays as it is. A job that somebody else submitted needs `yes`."""
        jobs = list(jobs)
        try:
            self._ask(cancel={"jobs": [job.id for job in jobs], "yes": yes})
        except NodekeeperError:
            self.refresh(jobs)
            if not all("finished_at" in job.row for job in jobs):
                raise

    def _submit(self, lines: Iterable[Mapping[str, Any]], value: Callable[[Job[T]], T]) -> list[Job[T]]:
        complete = [self._with_key({name.rstrip("_"): given for name, given in line.items() if given is not None}) for line in lines]
        # The same line twice is one job.
        texts = [json.dumps(line, sort_keys=True, default=list) for line in complete]
        unique = dict(zip(texts, complete, strict=True))
        ids = self._ask(submit=list(unique.values()))["jobs"] if unique else []
        jobs = {text: Job(self, job, {"name": unique[text].get("name")}, _value=value) for text, job in zip(unique, ids, strict=True)}
        return [jobs[text] for text in texts]

    def _with_key(self, line: dict[str, Any]) -> dict[str, Any]:
        if key := line.get("key"):
            return {**line, "key": f"{self._key}/{key}" if self._key else key}
        if "workdir" in line:
            raise WrongRequest("a job with a workdir needs a key of its own: give key=…")
        given = line.get("in", [])
        files = [self._digest(text) for text in ([given] if isinstance(given, str) else given)]
        # The name of a temporary file is no content.
        content = json.dumps({**line, "in": files}, sort_keys=True, default=list)
        return {**line, "key": f"{self._run}/{hashlib.sha256(content.encode()).hexdigest()[:32]}"}

    def _digest(self, text: str) -> list[str]:
        """What an input is: of a local file its content and its name."""
        path, name = (text, text) if (self._folder / text).exists() else text.rpartition("=")[::2]
        file = self._folder / path
        # The program says what is wrong with a file that is not there.
        if not path or text.startswith(("s3://", "job:")) or not file.exists():
            return [text]
        if file.is_dir():
            raise WrongRequest(f"a job with the folder {path} needs a key of its own: give key=…")
        return [hashlib.sha256(file.read_bytes()).hexdigest(), name, str(os.access(file, os.X_OK))]

    def _ask(self, **request: Any) -> Answer:
        """The answer to a request, which is repeated for a minute if the cluster does not answer."""
        for pause in PAUSES_S:
            try:
                return self._ready().ask(request).result()
            except TryAgain:
                time.sleep(pause)
        return self._ready().ask(request).result()

    def _ready(self) -> Batch:
        with self._lock:
            if self._batch is None or self._batch.end:
                self._batch = Batch(self._command, self._folder)
            return self._batch


def _fail(ends: Iterable[futures.Future[Row]], error: BaseException) -> None:
    """Gives this error to all that have not ended."""
    for end in (end for end in ends if not end.done()):
        end.set_exception(error)


def _printed(job: Job[Any]) -> str:
    try:
        return job.logs().stdout_bytes.decode()
    except UnicodeDecodeError as error:
        raise NodekeeperError(f"what job {job.id} printed is not UTF-8: logs().stdout_bytes has it") from error


def _returned(job: Job[Any]) -> Any:
    with tempfile.TemporaryDirectory(prefix="nodekeeper-") as folder:
        job.fetch(folder, functions.RESULT)
        try:
            return pickle.loads(Path(folder, functions.RESULT).read_bytes())
        except Exception as error:
            raise NodekeeperError(f"what the function of job {job.id} returned cannot be read here: {error!r}") from error
