"""The time of a solve: what counts, what it went into, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Timed:
    """A context that tells `add` how many seconds it took."""

    def __init__(self, now: Callable[[], float], add: Callable[[float], None]) -> None:
        self._now, self._add = now, add

    def __enter__(self) -> None:
        self._began = self._now()

    def __exit__(self, *_: object) -> None:
        self._add(self._now() - self._began)


class Clock:
    """The clock of a solve, which starts when it is made.

    Parameters
    ----------
    limit : float or None
        Seconds that the solve may take; those before a resumption do not count.
    now : callable, optional
        Tells the time in seconds; by default that of the machine.
    spent : float
        Seconds of the limit that were gone before.
    said : callable, optional
        From a number of this process to that of the one that decides, where several solve a
        problem together.

    Attributes
    ----------
    pace : float
        Seconds that a pass over the rows took last; 0 before that is known.
    evaluating : float
        Seconds that went into certificates and callbacks, those before a resumption included.
    """

    def __init__(
        self,
        limit: float | None = None,
        now: Callable[[], float] | None = None,
        spent: float = 0.0,
        said: Callable[[float], float] = float,
    ) -> None:
        self.limit, self.evaluating, self.pace = limit, 0.0, 0.0
        self._said = said
        self._spent, self._visited = spent, (0.0, 0.0)
        self._now = time.perf_counter if now is None else now
        self._began = self._rested = self._now()
        self._earlier = 0.0  # seconds before a resumption

    @property
    def elapsed(self) -> float:
        """Seconds so far, those before a resumption included."""
        return self._earlier + self._now() - self._began

    @property
    def left(self) -> float | None:
        """Seconds to the limit, where there is one."""
        if self.limit is None:
            return None
        return self._said(max(self.limit - self._spent - (self._now() - self._began), 0.0))

    @property
    def is_late(self) -> bool:
        """Whether the limit is reached."""
        return self.left == 0.0

    def visited(self, n_passes: float) -> None:
        """Take note of how many passes over the rows a method has made."""
        seconds = self._now() - self._began - self.evaluating
        before, passes = self._visited
        if n_passes > passes:
            self.pace = (seconds - before) / (n_passes - passes)
            if self.limit is not None:
                self.pace = self._said(self.pace)
        self._visited = seconds, n_passes

    def is_late_for(self, passes: float) -> bool:
        """Whether so many passes would end after the limit; never in the first half of it."""
        left = self.left
        if left is None:
            return False
        return bool(self._said(left <= min(passes * self.pace, 0.5 * (self.limit or 0.0))))

    def of_evaluations(self) -> Timed:
        """Count the time of what happens inside, but not as the method's."""
        return Timed(self._now, self._evaluate)

    def _evaluate(self, spent: float) -> None:
        self.evaluating += spent

    def rest(self) -> None:
        """Take note of a moment at which the solve could be resumed."""
        self._rested = self._now()

    @property
    def is_running_out(self) -> bool:
        """Whether the limit may come before the next rest."""
        if self.limit is None:
            return False
        now = self._now()
        ahead = self._spent + now - self._began + 2.0 * (now - self._rested)
        return bool(self._said(ahead >= self.limit))

    def resume(self, elapsed: float, evaluating: float) -> None:
        """Go on from what a clock showed before."""
        self._earlier, self.evaluating = elapsed, evaluating
