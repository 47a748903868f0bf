"""Ctrl-C during a solve: held until a moment at which nothing is half done.

Python runs a signal's handler between any two of its instructions, and one that raises
`KeyboardInterrupt` inside of a compiled call ends in a SystemError ("returned a result with an
exception set"). So a solve keeps the first signal and lets the handler that was there before, the
user's own or Python's, have it where the loop asks for it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

Handler = Callable[[int, FrameType | None], Any]
P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """What stands between Ctrl-C and a solve, as a context.

    Outside of `hold` signals go to the handler that was there before, at once. A second signal
    does so in any case. What an interrupt makes of a compiled call leaves the context as the plain
    `KeyboardInterrupt` that it was.

    Attributes
    ----------
    is_pending : bool
        Whether a signal is kept.
    is_urgent : bool
        Whether a second one came before the first was answered: nobody is to wait for an answer.
    """

    agree: Callable[[bool], bool] | None = None
    """Whether a signal is kept by any of the processes that solve a problem together."""

    def __init__(self, before: Handler | None = None) -> None:
        self.is_pending = self.is_urgent = False
        self._before = before
        self._depth = 0
        self._holds = self._has_one = False
        self._signal: tuple[int, FrameType | None] = (0, None)

    def hold(self) -> None:
        """Keep a signal from now on, until the context ends."""
        self._holds = True

    def poll(self) -> None:
        """Let the handler that was there before have the signal that was kept, if there is one."""
        if self.agree is not None:
            if self.agree(self.is_pending):
                self.is_pending = False
                raise KeyboardInterrupt
        elif self.is_pending:
            self.is_pending = False
            assert self._before is not None
            self._before(*self._signal)
            self._has_one = False  # it did not want to end anything

    def __enter__(self) -> Guard:
        global _ACTIVE
        self._depth += 1
        if self._depth == 1 and self._before is not None:
            _ACTIVE = self
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _ACTIVE
        self._depth -= 1
        if self._depth == 0 and self._before is not None:
            _ACTIVE = None
            if signal.getsignal(signal.SIGINT) == self._handle:  # nobody has set another since
                signal.signal(signal.SIGINT, self._before)
            if error is None:
                self.poll()
        if isinstance(error, SystemError) and isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt(*error.__cause__.args) from None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holds and not self._has_one:
            self.is_pending = self._has_one = True
            self._signal = number, frame
            return
        self.is_pending, self.is_urgent = False, self._has_one
        assert self._before is not None
        self._before(number, frame)


_ACTIVE: Guard | None = None


def guard() -> Guard:
    """The guard in force, or a new one; one that does nothing where no signal can arrive."""
    if threading.current_thread() is not threading.main_thread():
        return Guard()
    if _ACTIVE is not None:
        return _ACTIVE
    before = signal.getsignal(signal.SIGINT)
    return Guard(before if callable(before) else None)


def poll() -> None:
    """A moment at which a solve in this thread can be interrupted."""
    if _ACTIVE is not None and (_ACTIVE.is_pending or _ACTIVE.agree is not None):
        guard().poll()


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """`function` under a guard: what calls kernels on behalf of a user."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        with guard():
            return function(*args, **kwargs)

    return guarded
