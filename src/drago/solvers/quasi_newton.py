"""L-BFGS in a metric, for linear predictors: a search along a line costs no visit to the data.

With ``raw(w + t dw) = raw(w) + t X dw`` each iteration takes one product ``X dw`` and one product
``X' (q s)``, however many lengths t are tried; scipy's L-BFGS takes both for each of them. Where a
visit reads X once for losses and gradient, the first length is tried by a visit: most often it is
the last, and then nothing else is read. Next to a point whose losses are known, rows that provably
have no weight are not even read then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.problem import DROProblem, Evaluation, Gradient, NonFiniteLossError
from drago.rows.base import RowVector
from drago.terms.uncertainty import DualOracle

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Features that hardly vary get a curvature in the metric nevertheless: this share of the greatest.
FLOOR = 1e-3
# The conditions of Wolfe: how much of the promised fall, and how much flatter.
_FALL = 1e-4
_FLAT = 0.6
# Differences of the objective below this share of it are rounding.
_ROUNDING = 1e-14
# A promised fall below this share of the objective is too fine for predictions computed afresh.
_FINE = 1e-9
_TRIALS = 25
# Trials in which the bracket has to shrink to a fifth.
_SLOW = 2
# The search gives up before it tries a longer step than this.
_LONGEST = 1e10


@dataclass(frozen=True)
class Along:
    """A point on a line: its length, the objective and the slope there, and what was computed."""

    t: float
    value: float
    slope: float
    evaluation: Evaluation | None
    q: Vector | None
    gradient: Gradient | None = None


class Line:
    """``P`` along ``w + t dw, b + t db``, given its value and slope at t = 0; convex in t.

    With `leaves_out`, rows that have no weight need not be known in what it finds.
    """

    def __init__(
        self,
        problem: DROProblem,
        oracle: DualOracle,
        start: Evaluation,
        value: float,
        slope: float,
        dw: Matrix,
        db: Vector,
        leaves_out: bool = False,
    ) -> None:
        self.problem, self.oracle, self.start = problem, oracle, start
        self.dw, self.db = dw, db
        self.passes, self._leaves_out = 0.0, leaves_out and problem.rows.has("bounds")
        # Where hardly anything is left to gain, predictions that are computed afresh differ by
        # rounding from those along the line, and so would the objective.
        by_visit = problem.rows.visits_once(problem.loss, problem.n_outputs)
        by_visit = by_visit and -slope > _FINE * abs(value)
        if not by_visit and not start.is_whole:
            self.start = start = problem.evaluate(start.w, start.b)
            self.passes += 0.5
        self._draw: RowVector = None if by_visit else self._predicted()
        self._visited: tuple[float, Evaluation] | None = None
        self.n_trials = 0
        self.error: NonFiniteLossError | None = None  # the last trial that had no value
        self.origin = Along(0.0, value, slope, start, None)

    @property
    def draw(self) -> RowVector:
        """How predictions move with t; read off a visit, where there was one."""
        if self._draw is None:
            rows = self.problem.rows
            if self._visited is None or self._visited[0] < 1.0:  # so near that digits were lost
                self._draw = self._predicted()
            else:
                t, there = self._visited
                self._draw = rows.scaled(rows.add(there.raw, self.start.raw, -1.0), 1.0 / t)
        return self._draw

    def _predicted(self) -> RowVector:
        self.passes += 0.5
        return self.problem.rows.predict(self.dw, self.db)

    def _visit(self, t: float) -> Along:
        """The point at length t, and the gradient there, by a visit to the data."""
        problem, start = self.problem, self.start
        w, b = start.w + t * self.dw, start.b + t * self.db
        if self._leaves_out:
            rows: Any = problem.rows
            ev, q, g = rows.visit_near(problem.loss, w, b, self.oracle, problem.nu, start)
        else:
            ev, q, g = problem.visit(w, b, self.oracle)
        self._visited = t, ev
        self.passes += ev.share
        value = problem.primal(w, ev.losses, q)
        slope = float(np.vdot(g.w + problem.mu * w, self.dw) + np.dot(g.b, self.db))
        return Along(t, value, slope, ev, q, g)

    @property
    def _are_whole(self) -> bool:
        """Whether the predictions at both ends are known for all rows."""
        return self.start.is_whole and (self._visited is None or self._visited[1].is_whole)

    def at(self, t: float) -> Along:
        """The point at length t; infinitely high where the losses are not finite."""
        self.n_trials += 1
        problem, start = self.problem, self.start
        try:
            if self._draw is None and (self.n_trials == 1 or not self._are_whole):
                return self._visit(t)
            raw = problem.rows.add(start.raw, self.draw, t)
            ev = problem.evaluate(start.w + t * self.dw, start.b + t * self.db, raw)
        except NonFiniteLossError as error:
            self.error = error
            return Along(t, np.inf, np.inf, None, None)
        q = self.oracle.weights(ev.losses, problem.nu)
        value = problem.primal(ev.w, ev.losses, q)
        weighted = problem.rows.slope_along(q, ev.dlosses, self.draw)
        slope = weighted + problem.mu * float(np.vdot(ev.w, self.dw))
        return Along(t, value, slope, ev, q)

    def search(self, t: float) -> Along | None:
        """A length that meets the conditions of Wolfe, from a first guess; None if none is found.

        The slope rises with t, so its sign tells short points from long ones, and the answer lies
        between them.
        """
        origin = self.origin
        level = origin.value + _ROUNDING * abs(origin.value)
        short, long_ = origin, None
        best: Along | None = None
        widths: list[float] = []
        for _ in range(_TRIALS):
            here = self.at(t)
            fallen = here.value <= origin.value + _FALL * t * origin.slope
            if fallen or (here.value <= level and here.slope <= -0.8 * origin.slope):
                if abs(here.slope) <= -_FLAT * origin.slope:
                    return here
                if here.value < (origin if best is None else best).value:
                    best = here
            if here.slope < 0 and here.value <= level:
                short = here
            else:
                long_ = here
            if long_ is None:
                t = 4.0 * short.t
            else:
                widths.append(long_.t - short.t)
                t = _between(short, long_, widths)
            if not t < _LONGEST or t <= short.t:
                break
        return best


def _between(short: Along, long_: Along, widths: list[float]) -> float:
    """A guess between two ends; `widths` are those of the brackets so far.

    First where a straight line of slopes is 0, which is right for a parabola, next where the two
    tangents meet, which is right for a kink, and the middle where neither narrows the bracket.
    """
    width = long_.t - short.t
    share = 0.1
    if np.isfinite(long_.value) and long_.slope > 0:
        if len(widths) % 2:
            share = short.slope / (short.slope - long_.slope)
        else:
            rise = long_.value - short.value
            share = (long_.slope * width - rise) / ((long_.slope - short.slope) * width)
    if len(widths) > _SLOW and widths[-1] > 0.2 * widths[-1 - _SLOW]:
        share = 0.5
    return short.t + width * min(max(share, 0.02), 0.98)


class Memory:
    """The last pairs of steps and changes of the gradient, and the direction they suggest.

    ``H = g I + [S gY] [[R^-T (D + g Y'Y) R^-1, -R^-T], [-R^-1, 0]] [S gY]'`` with the steps S and
    the changes Y as columns, R the upper triangle of S'Y, D its diagonal and g = s'y / y'y of the
    last pair (Byrd, Nocedal and Schnabel 1994): a few products of matrices, where the usual two
    loops would take four calls a pair.
    """

    def __init__(self, size: int, n: int) -> None:
        self.size, self.count = size, 0
        self._steps, self._changes = np.empty((size, n)), np.empty((size, n))
        self._inner, self._square = np.zeros((size, size)), np.zeros((size, size))

    def clear(self) -> None:
        self.count = 0

    def state(self) -> dict[str, Matrix]:
        """The pairs, and what is known of their products."""
        m = self.count
        pairs = {"steps": self._steps[:m], "changes": self._changes[:m]}
        return pairs | {"inner": self._inner[:m, :m], "square": self._square[:m, :m]}

    def restore(self, state: dict[str, Matrix]) -> None:
        """Go on from what `state` gave."""
        m = self.count = len(state["steps"])
        self._steps[:m], self._changes[:m] = state["steps"], state["changes"]
        self._inner[:m, :m], self._square[:m, :m] = state["inner"], state["square"]

    def add(self, step: Vector, change: Vector) -> None:
        """Take note of a pair, unless it has no curvature."""
        if not np.dot(step, change) > 1e-16 * np.linalg.norm(step) * np.linalg.norm(change):
            return
        if self.count == self.size:
            for kept in (self._steps, self._changes):
                kept[:-1] = kept[1:]
            for kept in (self._inner, self._square):
                kept[:-1, :-1] = kept[1:, 1:]
            self.count -= 1
        k = self.count
        self._steps[k], self._changes[k] = step, change
        self.count = k + 1
        steps, changes = self._steps[: k + 1], self._changes[: k + 1]
        self._inner[: k + 1, k] = steps @ change
        self._square[k, : k + 1] = self._square[: k + 1, k] = changes @ change

    def direction(self, slope: Vector) -> Vector:
        """``-H slope``."""
        from scipy.linalg.blas import dtrsv  # a call of NumPy's costs more than all products

        m = self.count
        if m == 0:
            return -slope
        steps, changes = self._steps[:m], self._changes[:m]
        inner, square = self._inner[:m, :m], self._square[:m, :m]
        scale = inner[-1, -1] / square[-1, -1]
        lower = inner.T  # in the order of BLAS
        first = dtrsv(lower, steps @ slope, lower=1, trans=1)
        middle = inner.diagonal() * first + scale * (square @ first - changes @ slope)
        second = dtrsv(lower, middle, lower=1)
        return -(scale * slope + second @ steps - scale * (first @ changes))
