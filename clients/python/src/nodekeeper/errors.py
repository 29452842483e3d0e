"""What can go wrong. The class says what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster import Job


class NodekeeperError(Exception):
    """Something failed. The other classes say what, where that is known."""


class WrongRequest(NodekeeperError, ValueError):
    """The request must change: a field that does not exist, a key in use with other content, a file that is not there."""


class TryAgain(NodekeeperError):
    """The same call may succeed later, and may be repeated: the database did not answer, or the program was killed."""


class JobFailed(NodekeeperError):
    """A job did not complete. `jobs` has all of them that a call waited for, in order."""

    def __init__(self, jobs: list[Job[Any]], message: str):
        super().__init__(message)
        self.jobs, self.job = jobs, jobs[0]


KINDS: dict[str, type[NodekeeperError]] = {"wrong": WrongRequest, "again": TryAgain, "failed": NodekeeperError}
EXIT_CODES: dict[int, type[NodekeeperError]] = {2: WrongRequest, 75: TryAgain}
