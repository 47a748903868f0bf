"""Semismooth Newton on ``P``, with a falling shift cost: the finish where tails are thin.

For a small shift cost ``P`` is smooth only in name: its generalised Hessian changes with every row
that enters or leaves the tail, and Newton steps from far away are cut to nothing. With a larger
shift cost they are good, and ``P`` changes by at most ``(larger - nu) D(q || p)``. So the shift
cost is raised by what the present gap allows, a few steps are made, and it is lowered again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago.bounds import Gradient, curvature_cost, gradient, has_curvature_bound
from drago.losses import UserLoss
from drago.newton import newton_step
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.solvers.base import Iterate, Loop

Vector = npt.NDArray[np.float64]

# How much smaller each stage's allowance is, and the steps that a stage may take.
_FALL = 0.1
_STEPS = 40
# A stage is over when a step promises this share of its allowance.
_DONE = 0.1
_LAST_STEPS = 300
# Halvings of a step before it counts as failed, and the damping tried then.
_HALVINGS = 30
_DAMPINGS = (0.0, 1e-6, 1e-3, 1.0)
# Passes that one step may cost for the method to be worth its while.
_AFFORDABLE = 60.0


@dataclass(frozen=True)
class Newton:
    """Settings of the Newton method; it has none."""

    name = "newton"

    @staticmethod
    def is_affordable(problem: DROProblem) -> bool:
        """Whether the method applies and its steps are cheap enough."""
        try:
            Newton().check(problem)
        except ValueError:
            return False
        return curvature_cost(problem, problem.n_samples) <= _AFFORDABLE

    def check(self, problem: DROProblem) -> None:
        if problem.engine:
            raise ValueError("solver 'newton' works on arrays, but the problem is on tensors.")
        box = problem.constraint.bounds((problem.n_features, problem.n_outputs))
        if box is None or problem.uncertainty.is_users or isinstance(problem.loss, UserLoss):
            raise ValueError(
                "solver 'newton' takes built-in losses and sets, and a Box, NonNegative or no "
                "constraint."
            )
        if not has_curvature_bound(problem):
            raise ValueError(f"solver 'newton' does not know the curvature of {problem.loss!r}.")

    def run(self, problem: DROProblem, loop: Loop) -> str:
        run = _Run(problem, loop)
        # A loose certificate must not send it farther back than to the beginning.
        allowance = min(max(loop.best.gap, 0.0), abs(problem.reference[0]))
        while True:
            spread = max(problem.divergence.value(run.q, problem.p), 1e-6)
            nu = problem.nu + allowance / spread
            last = problem.nu > 0 and nu <= 1.3 * problem.nu
            why = run.minimise(problem.nu if last else nu, 0.0 if last else _DONE * allowance)
            if last or allowance <= 1e-15 * abs(problem.reference[0]):
                return why
            allowance *= _FALL


class _Run:
    """The point, its weights, and the count of what it cost."""

    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        self.problem, self.loop = problem, loop
        self.n_iter, self.passes = 0, 0.5
        self.oracle = problem.dual_oracle()
        self.ev = problem.evaluate(*loop.start)
        self.q = self.oracle.weights(self.ev.losses, problem.nu)
        self.trials = 1
        # A start that was given may be the answer already; its gap is the first allowance.
        value = problem.primal(self.ev.w, self.ev.losses, self.q)
        self._observe(np.inf, value, milestone=loop.was_given_a_start)

    def minimise(self, nu: float, accuracy: float) -> str:
        """Newton steps on P with the shift cost `nu` until one promises less than `accuracy`."""
        problem = self.problem._replace(nu=nu)
        # Afresh: those of the last stage are sums of its steps, and of their roundings.
        ev = self.ev = self.problem.evaluate(self.ev.w, self.ev.b)
        self.passes += 0.5
        q = self.oracle.weights(ev.losses, nu)
        value = problem.primal(ev.w, ev.losses, q)
        idle = 0
        for _ in range(_STEPS if accuracy > 0 else _LAST_STEPS):
            g = gradient(problem, ev, q)
            found, promise = self._search(problem, ev, q, g, value)
            if found is None:
                return "no Newton step lowers the objective"
            gained, (ev, q, value) = value - found[2], found
            self.ev, self.q = ev, q
            self.n_iter += 1
            raised = (nu - self.problem.nu) * problem.divergence.value(q, problem.p)
            self._observe(promise + raised, value + raised)
            idle = idle + 1 if gained <= 1e-15 * abs(value) else 0
            if promise <= accuracy or idle == 20:
                return "the objective does not fall any more"
        return ""

    def _search(
        self, problem: DROProblem, ev: Evaluation, q: Vector, g: Gradient, value: float
    ) -> tuple[tuple[Evaluation, Vector, float] | None, float]:
        """A point below `value` along a Newton step, and what the step promises.

        Where there is no curvature (the linear part of Huber losses along the intercept, say) the
        step is too long for any line search: then it is damped.
        """
        for damping in _DAMPINGS:
            step = newton_step(problem, ev, q, g, self.oracle, damping)
            self.passes += 1.0 + curvature_cost(problem, int(np.count_nonzero(q)))
            if step is None:
                return None, 0.0
            dw, db, draw = step
            slope = float(np.vdot(g.w + problem.mu * ev.w, dw) + np.dot(g.b, db))
            length = 1.0
            for _ in range(_HALVINGS):
                trial = self._try(problem, ev, length, dw, db, draw)
                if trial[2] <= value + 1e-4 * length * min(slope, 0.0):
                    return trial, -0.5 * slope
                length *= 0.5
        return None, 0.0

    def _try(
        self,
        problem: DROProblem,
        ev: Evaluation,
        step: float,
        dw: npt.NDArray[np.float64],
        db: Vector,
        draw: npt.NDArray[np.float64],
    ) -> tuple[Evaluation, Vector, float]:
        w, raw = ev.w + step * dw, ev.raw + step * draw
        b = ev.b + step * db
        self.trials += 1
        inside = problem.constraint.project(w)
        try:
            if inside is not w and (inside != w).any():
                self.passes += 0.5
                trial = problem.evaluate(inside, b)
            else:
                trial = problem.evaluate(w, b, raw)
        except NonFiniteLossError:
            return ev, self.q, np.inf
        q = self.oracle.weights(trial.losses, problem.nu)
        return trial, q, problem.primal(trial.w, trial.losses, q)

    def _observe(self, estimate: float, value: float, milestone: bool = False) -> None:
        n = self.problem.n_samples
        self.loop.observe(
            Iterate(
                w=self.ev.w,
                b=self.ev.b,
                n_iter=self.n_iter,
                n_passes=self.passes,
                n_oracle_calls=self.trials * n,
                evaluation=self.ev,
                q=self.q,
                gap_estimate=estimate,
                primal_estimate=value,
                milestone=milestone,
            )
        )
