"""One line that says how far a wait is, in a terminal and in a notebook."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown(total: int, is_wanted: bool | None) -> Iterator[Callable[[str], None]]:
    """Shows the line on standard error, where somebody sees it move. The function is called with the state of each job that has ended."""
    is_shown = (sys.stderr.isatty() or "ipykernel" in sys.modules) if is_wanted is None else is_wanted
    states: list[str] = []
    began = time.monotonic()

    def show(end: str = "") -> None:
        if is_shown:
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            counts = f"{states.count('complete')} of {total} jobs complete, {len(states)} ended"
            print(f"\r{counts} ({minutes}:{seconds:02})", end=end, file=sys.stderr, flush=True)

    def add(state: str) -> None:
        states.append(state)
        show()

    show()
    try:
        yield add
    finally:
        show("\n")
