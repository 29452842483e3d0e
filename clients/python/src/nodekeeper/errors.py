"""What can go wrong. The class says what to do about it."""

from __future__ import annotations


class NodekeeperError(Exception):
    """Something failed. The other classes say what, where that is known."""


class WrongRequest(NodekeeperError, ValueError):
    """The request must change: a field that does not exist, a key in use with other content, a file that is not there."""


class TryAgain(NodekeeperError):
    """The same call may succeed later, and may be repeated: the database did not answer, or the program was killed."""


KINDS: dict[str, type[NodekeeperError]] = {"wrong": WrongRequest, "again": TryAgain, "failed": NodekeeperError}
EXIT_CODES: dict[int, type[NodekeeperError]] = {2: WrongRequest, 75: TryAgain}
