"""What a solve has found and says of it: the best point, the history, and words for the message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drago.loop.best import Best, Entry
from drago.loop.clock import Clock
from drago.loop.protocol import Iterate, Progress
from drago.problem import DROProblem
from drago.result import Record


class Ledger:
    """The book of a solve.

    Parameters
    ----------
    problem : DROProblem
    clock : Clock
        Gives the time of each record, and is told how long callbacks take.
    callback : callable or None
        Called with a `Progress` by `report`.

    Attributes
    ----------
    records : list of Record
        One for each certificate.
    notes : list of str
        What the message says of the way, such as who finished.
    """

    def __init__(
        self, problem: DROProblem, clock: Clock, callback: Callable[[Progress], Any] | None = None
    ) -> None:
        self._problem, self._clock, self._callback = problem, clock, callback
        self._best: Best | None = None
        self.records: list[Record] = []
        self.notes: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether there is a first candidate."""
        return self._best is not None

    def open(self, first: Entry) -> None:
        """Begin with a candidate: nothing worse is ever returned."""
        self._best = Best(*first)

    @property
    def best(self) -> Best:
        """The best point and the best bound so far."""
        assert self._best is not None
        return self._best

    def write(self, iterate: Iterate, n_passes: float) -> None:
        """A line of the history: what is best after an iterate, for so many passes in all."""
        elapsed, primal, gap = self._clock.elapsed, self.best.primal, self.best.gap
        self.records.append(
            Record(
                n_iter=iterate.n_iter,
                n_passes=n_passes,
                n_oracle_calls=iterate.n_oracle_calls,
                time=elapsed,
                solver_time=elapsed - self._clock.evaluating,
                primal=primal,
                dual=primal - gap,
                gap=gap,
                rel_gap=self.best.rel_gap,
            )
        )

    def report(self) -> bool:
        """Tell the callback of the last line; whether it has had enough."""
        if self._callback is None:
            return False
        if self._problem.rows.is_shared:
            return bool(self._problem.rows.said(self._problem.rows.is_first and self._tell()))
        return self._tell()

    def _tell(self) -> bool:
        assert self._callback is not None
        _, w, b = self.best.point
        coef, intercept = self._problem.to_public(w, b)
        last = self.records[-1]
        progress = Progress(
            n_iter=last.n_iter,
            coef=coef,
            intercept=intercept,
            primal=last.primal,
            dual=last.dual,
            gap=last.gap,
            rel_gap=last.rel_gap,
            n_passes=last.n_passes,
            time=last.time,
        )
        with self._clock.of_evaluations():
            try:
                return bool(self._callback(progress))
            except StopIteration:
                return True
