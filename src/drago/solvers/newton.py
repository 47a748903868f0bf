"""Semismooth Newton on ``P``, by proximal steps in the weights: for thin tails and kinks.

For a small shift cost ``P`` is smooth only in name: its generalised Hessian changes with every row
that enters or leaves the tail, and Newton steps from far away are cut to nothing. So the weights
are held near those of the stage before, ``q0``::

    P_c(w) = max over q in Q of  L(w, q) - c Bregman_D(q, q0)

For a moderate c that is smooth, and a few Newton steps minimise it. Unlike a larger shift cost it
does not move the optimum, because at the optimal weights it costs nothing. The minimum's weights
are the next ``q0``, and c falls. Each stage is a proximal step of the dual problem (the method of
multipliers), so that a handful of them is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.certificate.cost import curvature_cost, has_curvature_bound
from drago.certificate.hessian import newton_step
from drago.loop.loop import Iterate, Loop
from drago.loop.method import Method
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.solvers.compiled import is_capped_chi2

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# The first c, as a share of the one that would change the objective as much as the start is wrong.
_FIRST = 0.1
# A stage of one step lets c fall to this, a stage of k steps to the k-th root of it, or so.
_FALL = 0.2
_SLOWEST = 0.7
_STEPS = 40
# A stage is over when a step promises this share of what the move of its weights costs.
_DONE = 0.5
# Or no more than this share of the gap that is wanted.
_ENOUGH = 0.1
# Where c is this share of the shift cost it is left out, and the stage is the last.
_LITTLE = 0.3
_LAST_STEPS = 300
# The smallest c, as a share of the first: where losses fall to nothing, there is no end to it.
_LEAST = 1e-15
# Steps in a row that gain nothing before a stage gives up, and stages before the method does.
_IDLE = 5
# Compiled steps between two looks at the clock: so many up to these entries.
_AT_ONCE = {1 << 22: 8, 1 << 24: 2}
# Steps after which the raw predictions, sums of so many, are computed afresh.
_FRESH = 20
# Relative rounding of the objective.
_ROUNDING = 1e-15
# Halvings of a step before it counts as failed, and the damping tried then.
_HALVINGS = 30
_DAMPINGS = (0.0, 1e-6, 1e-3, 1.0)
# Passes that one step may cost for the method to be worth its while, and to be cheap.
_AFFORDABLE = 60.0
_CHEAP = 2.0


@dataclass(frozen=True)
class Newton(Method):
    """Settings of the Newton method; it has none.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> drago.solve(problem, drago.Newton(), tol=1e-10).rel_gap <= 1e-10
    True
    """

    name = "newton"
    needs = ("responses",)

    @staticmethod
    def is_affordable(problem: DROProblem) -> bool:
        """Whether the method applies and its steps are cheap enough."""
        try:
            Newton().check(problem)
        except ValueError:
            return False
        return curvature_cost(problem, problem.rows.hessian_rows()) <= _AFFORDABLE

    @staticmethod
    def is_cheap_on_device(problem: DROProblem) -> bool:
        """Whether the rows are on a device, and a sample of them gives a Hessian for little."""
        if problem.rows.is_on_host or not Newton.is_affordable(problem):
            return False
        return curvature_cost(problem, problem.rows.hessian_rows()) <= _CHEAP

    @staticmethod
    def is_compiled(problem: DROProblem) -> bool:
        """Whether its steps are compiled for the problem."""
        return _CompiledStage.is_for(problem)

    def check(self, problem: DROProblem) -> None:
        rows = problem.rows
        known = rows.has("responses") and rows.responds(problem.uncertainty, problem.n_outputs)
        if not known:
            raise ValueError(
                "solver 'newton' needs to know how the weights respond to the losses, which the "
                "rows here do not offer: take solver='auto' or 'lbfgs'."
            )
        own = problem.uncertainty.is_users or problem.loss.is_users
        known = problem.constraint.has_bounds or problem.constraint.radius is not None
        if own or not known:
            raise ValueError(
                "solver 'newton' takes built-in losses and sets, and a Box, NonNegative, L2Ball or "
                "no constraint."
            )
        if not (has_curvature_bound(problem) and math.isfinite(problem.loss.curvature)):
            raise ValueError(f"solver 'newton' does not know the curvature of {problem.loss!r}.")

    def run(self, problem: DROProblem, loop: Loop) -> str:
        run = _NewtonRun(problem, loop)
        c = run.first_c()
        idle, least = 0, _LEAST * c
        while idle < _IDLE and c >= least:
            before, last = run.level, c <= _LITTLE * problem.nu
            steps = run.minimise(0.0 if last else c)
            if last:
                break
            # Numbers that overflow do not fall either.
            still = not math.isfinite(run.level)
            if math.isfinite(before):
                still = still or abs(run.level - before) <= _ROUNDING * problem.size_of(before)
            idle = idle + 1 if still else 0
            c *= min(_FALL ** (1.0 / steps), _SLOWEST)
        else:
            if problem.nu > 0:
                run.minimise(0.0)
        return "the objective does not fall any more"


@dataclass(frozen=True)
class _Move:
    """What a few steps of a stage have led to."""

    steps: int
    promise: float
    """Half of Newton's decrement at the last of them."""
    value: float
    """``P_c`` after them."""
    level: float
    """``L(w, q)`` after them; ``level - value`` is what the move of the weights costs."""
    is_over: bool
    """Whether more steps are of no use to the stage."""


class _NewtonRun:
    """One run: where the method stands, and the count of what it cost."""

    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        self.problem, self.loop = problem, loop
        self.n_iter, self.n_trials, self.passes = 0, 1, 0.5
        # Each remembers where its searches ended, for one shift cost.
        self.oracle, self.exact = problem.dual_oracle(), problem.dual_oracle()
        self.ev = problem.evaluate(*loop.start)
        self.q = self.exact.weights(self.ev.losses, problem.nu)
        # The weights that a stage stays near to, in mirror coordinates, at first p; and
        # D(q0) - <mirror, q0>, the part of the Bregman divergence that has no q in it.
        self.mirror, self.base = problem.rows.scaled(self.q, 0.0), 0.0
        self.refreshed = 0
        self.level = np.inf  # L(w, q) at the end of the last stage
        self.has_compiled_twin = _CompiledStage.is_for(problem)
        self.stage_of = _CompiledStage if self.has_compiled_twin else _Stage
        # A start that was given may be the answer already; its gap decides on the first c.
        value = problem.primal(self.ev.w, self.ev.losses, self.q)
        self._observe(np.inf, value, milestone=loop.was_given_a_start)

    def first_c(self) -> float:
        """What would change ``P`` by a share of what is to be gained, less for a good start.

        The weights are expected to move as far as those at the start have, where their losses
        differ, and otherwise as far as they can.
        """
        problem = self.problem
        if problem.kappa_q <= 1:
            return 1.0  # no weight moves: any will do
        spread, farthest = problem.distance(self.q), 1.0 / problem.smoothing(1.0)
        gain = np.sqrt(problem.scale * self.loop.start_error)
        return float(_FIRST * gain / (spread if spread > 1e-3 * farthest else farthest))

    def minimise(self, c: float) -> int:
        """Newton steps on ``P_c`` until one promises little; returns how many."""
        stage = self.stage_of(self, c)
        steps, most, idle, value = 0, _STEPS if c > 0 else _LAST_STEPS, 0, np.inf
        while steps < most and idle < _IDLE:
            move = stage.advance(min(most - steps, self.loop.iterations_left(self.n_iter)))
            steps, self.n_iter = steps + move.steps, self.n_iter + move.steps
            still = value - move.value <= _ROUNDING * self.problem.size_of(move.value)
            idle = idle + 1 if still else 0
            value = move.value
            if move.steps:
                self._observe(self._estimate(c, move), move.level)
            if move.is_over:
                break
            if self.n_iter - self.refreshed >= _FRESH:
                self.ev = self.problem.evaluate(self.ev.w, self.ev.b)
                self.refreshed, self.passes = self.n_iter, self.passes + 0.5
        self.level = move.level
        self.mirror, self.base = stage.mirror()
        return max(steps, 1)

    def _estimate(self, c: float, move: _Move) -> float:
        """The gap: what the last step promised, and ``P(w) - L(w, q)``; inf where it is large."""
        if c == 0:
            return move.promise
        if not move.is_over or move.promise > self.loop.estimate_wanted:
            return np.inf
        q = self.exact.weights(self.ev.losses, self.problem.nu)
        excess = self.problem.primal(self.ev.w, self.ev.losses, q) - move.level
        return move.promise + max(excess, 0.0)

    def _observe(self, estimate: float, value: float, milestone: bool = False) -> None:
        self.loop.observe(
            Iterate(
                w=self.ev.w,
                b=self.ev.b,
                n_iter=self.n_iter,
                n_passes=self.passes,
                n_oracle_calls=self.n_trials * self.problem.n_samples,
                # Later ones are sums of steps, and of their roundings: not for certificates.
                evaluation=self.ev if self.n_iter == 0 else None,
                q=self.q,
                gap_estimate=estimate,
                primal_estimate=value,
                milestone=milestone,
                is_measured=True,
            )
        )


class _Stage:
    """The objective ``P_c``: that of a larger shift cost, at losses with ``c mirror(q0)`` added."""

    def __init__(self, run: _NewtonRun, c: float) -> None:
        self.run, self.c = run, c
        self.problem = run.problem._replace(nu=run.problem.nu + c)
        self.shift, self.constant = run.problem.rows.scaled(run.mirror, c), c * run.base
        self.seen: tuple[Evaluation, Vector, float] | None = None  # a point, and `_at` of it
        self.tau = np.nan  # the threshold of the weights, where the search remembers it here

    def advance(self, most: int) -> _Move:
        """One step from where the run stands."""
        run = self.run
        if self.seen is None or self.seen[0] is not run.ev:
            self.seen = run.ev, *self._at(run.ev)
        promise = self._search(*self.seen[1:])
        _, q, value = self.seen
        run.q = q
        level = run.problem.primal(run.ev.w, run.ev.losses, q)
        if promise is None:
            return _Move(0, 0.0, value, level, is_over=True)
        return _Move(1, promise, value, level, self._is_over(promise, level - value))

    def _is_over(self, promise: float, moved: float) -> bool:
        """The last stage, without c, goes on until the loop ends it."""
        enough = _ENOUGH * self.run.loop.estimate_wanted
        return self.c > 0 and promise <= max(_DONE * moved, enough)

    def mirror(self) -> tuple[Vector, float]:
        """The mirror coordinates of the present weights, and what a later stage needs with them."""
        run = self.run
        rows = self.problem.rows
        shifted = rows.add(run.ev.losses, self.shift)
        q, mirror = run.oracle.with_mirror(shifted, self.problem.nu)
        return mirror, self.problem.distance(q) - rows.dot(mirror, q)

    def _at(self, ev: Evaluation) -> tuple[Vector, float]:
        """The weights and the objective at a point."""
        shifted = self.problem.rows.add(ev.losses, self.shift)
        q = self.run.oracle.weights(shifted, self.problem.nu)
        return q, self.problem.primal(ev.w, shifted, q) + self.constant

    def _search(self, q: Vector, value: float) -> float | None:
        """Take a Newton step to a lower point; what it promised, or None where there is none.

        Where there is no curvature (the linear part of Huber losses along the intercept, say) the
        step is too long for any line search: then it is damped.
        """
        problem, run = self.problem, self.run
        ev, rounding = run.ev, _ROUNDING * run.problem.size_of(value)
        g = problem.gradient(ev, q)
        shifted = ev._replace(losses=problem.rows.add(ev.losses, self.shift))
        for damping in _DAMPINGS:
            step = newton_step(problem, shifted, q, g, run.oracle, damping)
            run.passes += 1.0 + curvature_cost(problem, problem.rows.hessian_rows(q))
            if step is None:
                return None
            slope = float(np.vdot(g.w + problem.mu * ev.w, step[0]) + np.dot(g.b, step[1]))
            length = 1.0
            for turn in range(_HALVINGS):
                trial = self._try(ev, length, *step)
                wanted = value + 1e-4 * length * min(slope, 0.0) + rounding
                there = math.inf
                if trial is not None:
                    weights, there = self._at(trial)
                    if there <= wanted:
                        run.ev, self.seen = trial, (trial, weights, there)
                        return -0.5 * slope
                # Half of a step is mostly enough; if not, or if a trial waits for its value as on a
                # device, it shall tell more than yes or no. Compiled trials cost next to nothing.
                halve = problem.rows.is_on_host and (turn == 0 or run.has_compiled_twin)
                length *= 0.5 if halve else _shorter(there - value, length * slope)
                if -length * slope <= 0.1 * rounding:
                    break
        return None

    def _try(
        self, ev: Evaluation, step: float, dw: Matrix, db: Vector, draw: Matrix
    ) -> Evaluation | None:
        """The evaluation after a step of this length; None where the losses are not finite."""
        problem = self.problem
        w, b = ev.w + step * dw, ev.b + step * db
        self.run.n_trials += 1
        inside = problem.constraint.project(w)
        try:
            if inside is not w and (inside != w).any():
                self.run.passes += 0.5
                return problem.evaluate(inside, b)
            return problem.evaluate(w, b, problem.rows.add(ev.raw, draw, step))
        except NonFiniteLossError:
            return None


def _shorter(rise: float, slope: float) -> float:
    """The share of a step at which a parabola through what is known of it is lowest.

    `rise` is the change of the objective at its end, `slope` what it promised.
    """
    above = rise - slope
    return min(max(-0.5 * slope / above, 0.2), 0.5) if 0.0 < above < math.inf else 0.5


class _CompiledStage(_Stage):
    """The same, compiled: for one output, dense features, and a capped simplex with chi2."""

    @staticmethod
    def is_for(problem: DROProblem) -> bool:
        if not is_capped_chi2(problem):
            return False
        return problem.rows.is_plain and problem.rows.is_by_rows  # type: ignore[attr-defined]

    def advance(self, most: int) -> _Move:
        """A few steps: so many that an interruption is not kept waiting for long."""
        run, problem, ev = self.run, self.problem, self.run.ev
        steps, trials, self.tau, promise, value, level, state, *there = kernels.capped_newton(
            problem.X,
            problem.y,
            problem.rows.kernel_baseline,  # type: ignore[attr-defined]
            run.problem.cancelling,
            problem.loss.code,
            problem.loss.parameter,
            problem.loss.curvature,
            problem.p,
            run.oracle.cap,
            problem.nu,
            run.problem.nu,
            self.shift,
            self.constant,
            problem.mu,
            problem.fit_intercept,
            np.array(_DAMPINGS),
            _HALVINGS,
            _DONE,
            _ENOUGH * run.loop.estimate_wanted,
            min(most, next((k for size, k in _AT_ONCE.items() if problem.n_entries <= size), 1)),
            self.tau,
            np.append(ev.w[:, 0], ev.b),
            ev.raw[:, 0],
        )
        theta, raw, losses, slopes, q = there
        run.q = q
        run.ev = Evaluation(theta[:-1, None], theta[-1:], raw[:, None], losses, slopes[:, None])
        run.n_trials += trials
        run.passes += steps * (1.0 + curvature_cost(problem, int(np.count_nonzero(q))))
        is_over = state == 2 or self._is_over(promise, level - value)
        return _Move(steps, promise, value, level, is_over)

    def mirror(self) -> tuple[Vector, float]:
        q, p = self.run.q, self.problem.p
        mirror = self.problem.divergence._mirror(q, p)
        return mirror, self.problem.distance(q) - float(np.dot(mirror, q))
