"""How many threads work on arrays takes: visits to rows, and searches for their weights."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Entries of X from which there is a second thread: by default, and where somebody said how many
# there may be. Who says so has cores with nothing else to do, and it gains a little sooner.
_LARGE, _WORTH = 1 << 20, 1 << 19
_limit: ContextVar[int | None] = ContextVar("limit", default=None)


@contextmanager
def limited(n_threads: int | None) -> Iterator[None]:
    """So many threads for visits to large data within; None leaves it as it is."""
    token = None if n_threads is None else _limit.set(n_threads)
    try:
        yield
    finally:
        if token is not None:
            _limit.reset(token)


def threads_for(n_entries: int, n_threads: int | None = None) -> int:
    """As many threads as a visit that reads so many numbers shall have.

    As many as were asked for here. Otherwise one on small data, and on large data as many as were
    allowed, or all cores that the process may use, but for ``OMP_NUM_THREADS``, which limits them,
    and workers of joblib, which get one each.
    """
    if n_threads is not None:
        return n_threads
    allowed = _limit.get()
    if allowed is not None:
        return 1 if n_entries < _WORTH else allowed
    return 1 if n_entries < _LARGE else _available()


def vector_threads(size: int) -> int:
    """As many for a search for the weights of so many rows: it looks at them a few times."""
    return threads_for(4 * size)


def _available() -> int:
    joblib = sys.modules.get("joblib")
    if joblib is not None and joblib.parallel.get_active_backend()[0].nesting_level:
        return 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1  # pragma: no cover
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdecimal() and int(limit) > 0 else cores
