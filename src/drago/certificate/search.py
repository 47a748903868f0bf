"""The search for the best gap at a point: candidate weights, and bounds from cheap to costly."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from drago._interrupts import poll
from drago.certificate.bounds import curvature_bound, newton_like_step, tangent_bound
from drago.certificate.certificate import Certificate, lower_bound, relative
from drago.certificate.cost import affordable_rows, curvature_cost, descent_cost, few_rows
from drago.certificate.hessian import newton_step
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.rows.base import Gradient, RowVector
from drago.terms.uncertainty import DualOracle

# How far outside the set given weights may lie, in mass: what rounding leaves.
FEASIBILITY = 1e-9
# Passes that a certificate may spend where nobody counts them.
AMPLE = 1e4
# The rounding of a difference of two values of the objective, relative to these.
_CANCELLED = 1e-15


@dataclass(frozen=True)
class _BoundRule:
    """Which bounds are tried in which order, by what they cost."""

    costly: float = 2.0
    """The Hessian of all rows of weight comes last where it costs more passes than this."""
    cheap: float = 0.5
    """In that case the heaviest rows come first, as many as so many passes pay for,"""
    few: int = 5
    """With many classes all of them come first, up to so many times a few."""
    approaches: int = 3
    """and next at most so many steps towards the minimum with the Hessian of a few rows."""
    at_once: float = 0.35
    """All rows of weight come first where they cost at most so many passes,"""
    at_once_here: float = 0.1
    """and where a look at few rows costs next to nothing, so many."""
    growth: int = 8
    """Where a bound took too few rows, the next one takes at least so many times as many."""
    longest: int = 500
    """Steps toward the minimum for fixed weights with many classes are no more than this."""
    rest: float = 0.05
    """They end where the rest is this share of the gap that is wanted,"""
    least_rest: float = 1e-4
    """or, where none is wanted, this share of what was known."""
    good_enough: float = 1.5
    """Predictions end when the gap is at most this many times what they have gained."""
    hopeless: float = 1.1
    """A look ends where all rows would give a bound this many times the one that is wanted."""


_RULE = _BoundRule()


class GapSearch:
    """The best gap at one point over candidate weights and bounds."""

    def __init__(
        self,
        problem: DROProblem,
        ev: Evaluation,
        oracle: DualOracle,
        target: float,
        credit: float,
        exact: tuple[RowVector, Gradient] | None = None,
        is_late: Callable[[], bool] = lambda: False,
        is_look: bool = False,
    ) -> None:
        self.problem, self.ev, self.oracle = problem, ev, oracle
        self.target, self.credit, self._is_late = target, credit, is_late
        self.exact = oracle.weights(ev.losses, problem.nu) if exact is None else exact[0]
        self._here = None if exact is None else exact[1]
        self.primal = problem.primal(ev.w, ev.losses, self.exact)
        self.gap, self.bound, self.weights = np.inf, "none", self.exact
        self.reference, self.cancelling = problem.reference[0], problem.cancelling
        self.passes = 0.0
        self.tried_curvature = False
        self.is_look, self._is_hopeless, self.foreseen = is_look, False, math.inf
        self.rest: float | None = None  # what steps toward a minimum may leave, if that is given
        self.known: tuple[RowVector | None, float] = (None, np.inf)  # some weights and their slack
        self._counted: tuple[RowVector | None, int] = (None, 0)

    def gradient(self, ev: Evaluation, q: RowVector) -> Gradient:
        if q is self.exact and ev is self.ev and self._here is not None:
            return self._here
        self.passes += 0.5
        return self.problem.gradient(ev, q)

    def run(self, q: RowVector | None, predictions: int) -> None:
        if q is not None:
            self._complete()
        # Without a shift cost the exact weights are a corner of the set, and seldom optimal.
        first = q is not None and self.problem.nu == 0 and self._is_small(self._slack(q))
        if q is not None and first:
            self.try_all(q, self.gradient(self.ev, q))
            if self._is_enough():
                return
        here = self.gradient(self.ev, self.exact)
        self.try_all(self.exact, here)
        if self._is_enough():
            return
        if self._is_cut_short():
            return
        if not (q is None or first) and self._has_hope(self._slack(q)):
            self.try_all(q, self.gradient(self.ev, q))
        if predictions and self._wants_more():
            self._complete()
            self._predict(here, predictions)

    def _complete(self) -> None:
        """Read what was left out because it has no weight: in other weights it may have some."""
        if not self.ev.is_whole:
            self.ev = self.problem.evaluate(self.ev.w, self.ev.b)
            self.passes += 0.5

    def try_all(self, q: RowVector, g: Gradient) -> None:
        """The bounds for some weights, cheap ones first."""
        self._is_hopeless = False
        self._try_tangent(q, g)
        if not self._wants_more():
            return
        if self._is_for_descent(q):
            self._descend(q)
            return
        tried, hopeful = 0, True
        if self._is_costly(q):
            tried = self._try_curvature(q, g, most=affordable_rows(self.problem, _RULE.cheap))
            if self._wants_more():
                hopeful = self._approach(q, g)
        if hopeful and self._wants_more():
            self._try_curvature(q, g, tried)

    def _has_hope(self, part: float) -> bool:
        """Whether the target, or half the best gap, could be reached with this part of it.

        Without a target anything better will do.
        """
        if part <= (0.5 if self.target > 0 else 1.0) * self.gap:
            return True
        return self._is_small(part)

    def result(self) -> Certificate:
        restricted_to = None
        problem = self.problem
        known = math.isfinite(self.gap)
        if not known and (self.tried_curvature or affordable_rows(problem, AMPLE) == 0):
            # mu = 0 and no other bound to be had: the minimum of the tangents over a ball.
            radius = max(2.0 * float(np.linalg.norm(self.ev.w)), 1.0)
            g = self.gradient(self.ev, self.exact)
            self.gap = tangent_bound(problem, self.ev, self.exact, g, radius)
            if np.isfinite(self.gap):
                restricted_to = radius
                self.bound, self.weights = f"tangent, ||w|| <= {radius:.3g}", self.exact
        return Certificate(
            primal=self.primal,
            dual=lower_bound(self.gap, self.primal, self.reference, self.cancelling),
            gap=self.gap,
            rel_gap=relative(self.gap, self.primal, self.reference, self.cancelling),
            dual_weights=self.weights,
            bound=self.bound,
            restricted_to=restricted_to,
            reference=self.reference,
            cancelling=self.cancelling,
            n_passes=self.passes,
            foreseen=self.foreseen,
        )

    def _count(self, q: RowVector) -> int:
        """Rows of weight; asked for several times in turn."""
        if self._counted[0] is not q:
            self._counted = q, self.problem.rows.count(q)
        return self._counted[1]

    def _is_small(self, gap: float) -> bool:
        return relative(gap, self.primal, self.reference, self.cancelling) <= self.target

    def _is_enough(self) -> bool:
        return self._is_small(self.gap)

    def _wants_more(self) -> bool:
        if self._is_enough() or self._is_cut_short() or self._is_hopeless:
            return False
        if affordable_rows(self.problem, self.credit) > 0:
            return True
        return descent_cost(self.problem, self.problem.rows.count(self.exact)) <= self.credit

    def _is_cut_short(self) -> bool:
        """Whether there is no time for more; the curvature of a few rows is always tried."""
        return self.tried_curvature and self._is_late()

    def _try_tangent(self, q: RowVector, g: Gradient) -> None:
        self._require_feasible(q)
        inner = tangent_bound(self.problem, self.ev, q, g)
        self.passes += 0.5 * self.problem.fit_intercept
        self._keep(inner + self._slack(q), "tangent", q)

    def _try_curvature(
        self, q: RowVector, g: Gradient, tried: int = 0, most: int | None = None
    ) -> int:
        """Try the curvature of the heaviest rows: few at first, then as many as it seems to take.

        The bound falls about like one over the number of rows, which tells how many are needed.
        Returns how many rows were tried; a later call, told of them as `tried`, begins with more.
        """
        problem, support = self.problem, self._count(q)
        slack = self._slack(q)
        if slack >= self.gap:
            return tried
        room = self.target * (self.reference - self.primal) - slack
        cheap = problem.rows.has_cheap_gram(problem.loss)
        is_here = problem.rows.has("compiled")
        at_once = _RULE.at_once_here if is_here else _RULE.at_once
        cheap = cheap or curvature_cost(problem, support) <= at_once
        size = support if cheap else max(few_rows(problem), _RULE.growth * tried)
        while True:
            limit = min(affordable_rows(problem, self.credit), support)
            if most is not None:
                limit = min(limit, most)
            if tried >= limit:
                return tried
            tried = limit if self.target == 0 or 2 * size > limit else size
            inner = curvature_bound(problem, self.ev, q, g, tried, room)
            self.tried_curvature = True
            self._spend(curvature_cost(problem, tried))
            self._keep(inner + slack, "curvature", q)
            if self._is_enough() or self._is_cut_short():
                return tried
            self._look_ahead(inner * tried / support, slack)
            if self._is_hopeless:
                return tried
            size = _RULE.growth * tried
            if np.isfinite(inner) and room > 0:
                size = max(size, int(min(1.5 * tried * inner / room, 1e15)))

    def _look_ahead(self, with_all: float, slack: float) -> None:
        """End a look where about this is what the curvature of all rows of weight would give.

        For quadratic losses: there few rows, which have no less weight than others, tell it well.
        """
        if not (self.is_look and self.problem.loss.is_quadratic and math.isfinite(with_all)):
            return
        if not self._is_small(with_all / _RULE.hopeless + slack):
            self._is_hopeless = True
            self.foreseen = min(self.foreseen, with_all + slack)

    def _keep(self, gap: float, bound: str, q: RowVector) -> None:
        if gap < self.gap:
            self.gap, self.bound, self.weights = gap, bound, q

    def _is_costly(self, q: RowVector) -> bool:
        """Whether the Hessian of all rows of weight takes longer than a few passes."""
        problem, rows = self.problem, self._count(q)
        if problem.loss.has_class_hessian and rows <= _RULE.few * few_rows(problem):
            return False  # a few rows would cost about as much
        return curvature_cost(problem, rows) > _RULE.costly

    def _is_for_descent(self, q: RowVector) -> bool:
        """Whether the minimum for these weights is found in a few steps of compiled code."""
        return descent_cost(self.problem, self._count(q)) <= self.credit

    def _descend(self, q: RowVector) -> None:
        """Bound ``min over w' of L(w', q)`` by tangents at a point near it, see `_approach`.

        With many classes a few steps on the rows of weight lead there, which cost much less than
        a Hessian of all classes, and the bound is no worse.
        """
        problem, ev, slack = self.problem, self.ev, self._slack(q)
        rows: Any = problem.rows
        if slack >= self.gap:
            return
        share = self._count(q) / problem.n_samples
        most = int(min(max((self.credit - 1.0) / share, 1.0), _RULE.longest))
        room = self.target * (self.reference - self.primal) - slack
        wanted = _RULE.rest * room if room > 0 else _RULE.least_rest * (self.gap - slack)
        if self.rest is not None or not math.isfinite(wanted):
            wanted = self.rest or 0.0
        fall = room if room > 0 else np.inf
        given = (ev, q, problem.mu, problem.fit_intercept)
        is_patient = most == _RULE.longest  # nobody counts them
        w, b, n_steps = rows.class_minimum(*given, wanted, fall, most, is_patient)
        self.tried_curvature = True
        self._spend(1.0 + n_steps * share)
        with suppress(NonFiniteLossError):
            there = problem.evaluate(w, b)
            fall = rows.dot(q, rows.add(ev.losses, there.losses, -1.0))
            fall += 0.5 * problem.mu * float(np.vdot(ev.w - there.w, ev.w + there.w))
            inner = tangent_bound(problem, there, q, problem.gradient(there, q))
            rounding = _CANCELLED * problem.size_of(self.primal)
            self._keep(slack + max(fall, 0.0) + inner + rounding, "curvature", q)

    def _approach(self, q: RowVector, g: Gradient) -> bool:
        """Bound ``min over w' of L(w', q)`` from points nearer to it, at a pass each.

        ``L(w, q) - min L(., q) = [L(w, q) - L(v, q)] + [L(v, q) - min L(., q)]`` for every v. Steps
        with the Hessian of a few rows lead to a v where even a loose bound on the second bracket
        is small, long before the Hessian of all rows would be known. False when the first bracket
        alone is too large: then no bound will do with these weights.
        """
        problem, ev = self.problem, self.ev
        if not problem.constraint.is_everything:
            return True
        n_rows = min(few_rows(problem), affordable_rows(problem, self.credit))
        if n_rows == 0:
            return True
        step = newton_like_step(problem, ev, q, n_rows)
        self._spend(curvature_cost(problem, n_rows))
        fallen, slack = 0.0, self._slack(q)
        for _ in range(_RULE.approaches):
            if not self._wants_more() or self.credit < 2.0:
                break
            dw, db = step(g, ev.w)
            try:
                there = problem.evaluate(ev.w - dw, ev.b - db)
            except NonFiniteLossError:
                break
            fall = problem.rows.dot(q, problem.rows.add(ev.losses, there.losses, -1.0))
            fall += 0.5 * problem.mu * float(np.vdot(dw, ev.w + there.w))
            self._spend(1.0)
            if not fall > 0:
                break
            ev, fallen = there, fallen + fall
            g = problem.gradient(ev, q)
            inner = min(
                tangent_bound(problem, ev, q, g), curvature_bound(problem, ev, q, g, n_rows)
            )
            self.tried_curvature = True
            self._spend(curvature_cost(problem, n_rows))
            gap = slack + fallen + inner + _CANCELLED * problem.size_of(self.primal)
            self._keep(gap, "curvature", q)
            if not self._is_small(slack + fallen):
                return False
        return True

    def _spend(self, passes: float) -> None:
        poll()
        self.passes += passes
        self.credit -= passes

    def _require_feasible(self, q: RowVector) -> None:
        """A gap from weights outside Q would be worth nothing: never trust an oracle blindly."""
        problem = self.problem
        violation = problem.violation(q)
        if not violation <= FEASIBILITY:
            raise ArithmeticError(
                f"the weights of {problem.uncertainty!r} violate it by {violation:.2g}; "
                "if the set is your own, check its worst_case, otherwise please report this."
            )

    def _slack(self, q: RowVector) -> float:
        """``L(w, exact) - L(w, q)``."""
        if self.known[0] is not q:
            self.known = (q, self._distance(q))
        return self.known[1]

    def _distance(self, q: RowVector) -> float:
        """The slack from the rows, or from two objectives where the rows cannot tell it."""
        problem, losses = self.problem, self.ev.losses
        if q is self.exact:
            return 0.0
        found = problem.rows.slack(problem.divergence, problem.nu, losses, self.exact, q)
        if found is None:
            values = [problem.primal(self.ev.w, losses, x) for x in (self.exact, q)]
            return max(values[0] - values[1], 0.0) + _CANCELLED * problem.size_of(values[0])
        if found == -math.inf:
            raise ArithmeticError(
                "the exact weights are beaten by others of the set; if the set is your own, check "
                "its worst_case, otherwise please report this."
            )
        return found

    # ------------------------------------------------------------ predicted weights

    def _predict(self, g: Gradient, most: int) -> None:
        """Try the exact weights at points that Newton steps on P lead to.

        Near a kink (small nu) the weights at w itself are far from the optimal ones and no bound
        on the rest can mend that. The steps need not be good: any weights are valid.
        """
        problem, ev, q = self.problem, self.ev, self.exact
        value = self.primal
        for _ in range(most):
            if not self._wants_more() or affordable_rows(problem, self.credit) == 0:
                return
            if self.gap <= _RULE.good_enough * (self.primal - value):
                return  # no certificate could be much better: value is attained
            cost = 2.0 * curvature_cost(problem, problem.rows.hessian_rows(q)) + 2.0
            step = newton_step(problem, ev, q, g, self.oracle) if cost <= self.credit else None
            if step is None:
                return
            self._spend(cost)
            w, b, raw = step
            length = 1.0
            for _ in range(12):
                trial_w = problem.constraint.project(ev.w + w)
                if not problem.constraint.has_bounds or (trial_w != ev.w + w).any():
                    trial_raw = problem.rows.predict(trial_w, ev.b + b)
                    self.passes += 0.5
                else:
                    trial_raw = problem.rows.add(ev.raw, raw, length)
                trial_value = np.inf
                with suppress(NonFiniteLossError):  # a wild step is no more than a bad one
                    trial = problem.evaluate(trial_w, ev.b + b, trial_raw)
                    weights = self.oracle.weights(trial.losses, problem.nu)
                    trial_value = problem.primal(trial.w, trial.losses, weights)
                if trial_value < value:
                    break
                w, b, length = 0.25 * w, 0.25 * b, 0.25 * length
            else:
                return
            ev, q, value = trial, weights, trial_value
            at_start = self.gradient(self.ev, q)
            self._try_tangent(q, at_start)
            self._try_curvature(q, at_start)
            g = self.gradient(ev, q)
