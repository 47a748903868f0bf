"""How far a reading of rows is, for whoever shows it.

What reads many rows tells how many are done; it need not know who listens, and whoever listens need
not know what is read. Each thread has its own listener, and most have none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Listener(Protocol):
    """Who is told."""

    def begin(self, what: str, total: int | None) -> None:
        """Something begins that reads so many rows, as far as is known, again and again perhaps."""

    def add(self, rows: int) -> None:
        """So many more rows are done."""


class _Local(threading.local):
    listener: Listener | None = None


_LOCAL = _Local()


def begin(what: str, total: int | None) -> None:
    """Tell what is read from now on, and how many rows it has, where that is known."""
    if _LOCAL.listener is not None:
        _LOCAL.listener.begin(what, total)


def tell(rows: int) -> None:
    """Tell that so many more rows are done: a few times a second is enough."""
    if _LOCAL.listener is not None:
        _LOCAL.listener.add(rows)


def listener() -> Listener | None:
    """Who listens in this thread."""
    return _LOCAL.listener


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Have somebody listen to this thread."""
    before, _LOCAL.listener = _LOCAL.listener, listener
    try:
        yield
    finally:
        _LOCAL.listener = before
