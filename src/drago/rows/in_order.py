"""Work in threads whose results come in a fixed order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def in_order(
    work: Callable[..., Any], turns: Sequence[tuple[Any, ...]], n_threads: int
) -> Iterator[Any]:
    """What `work` returns for each, in their order; in threads, where there are several."""
    if n_threads == 1 or len(turns) == 1:
        for turn in turns:
            yield work(*turn)
        return
    # Left on every way out, an error or an interrupt included: it waits for what has begun.
    with ThreadPoolExecutor(n_threads, "drago-rows") as threads:
        ahead: deque[Future[Any]] = deque()
        try:
            for turn in turns:
                ahead.append(threads.submit(work, *turn))
                if len(ahead) > 2 * n_threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for each in ahead:
                each.cancel()
