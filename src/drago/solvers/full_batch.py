"""First-order methods that visit all rows in each step: gradient descent and AG-OG."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago.loop.loop import Iterate, Loop
from drago.loop.method import Method
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.rows.base import RowVector

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Gradient descent: how the step grows after a success and shrinks at a trial that is too long.
_GROW = 1.5
_SHRINK = 0.5
_TRIALS = 60
# Steps without a lower objective before the method gives up.
_IDLE = 30
# AG-OG: the constant of its step size, the safety on the measured Lipschitz constant, and the
# length of an epoch in units of it.
_OPTIMISM = float(np.sqrt(3.0 + np.sqrt(3.0)))
_SAFETY = 1.5
_EPOCH = 2.0


@dataclass(frozen=True)
class GradientDescent(Method):
    """Settings of (projected) gradient descent on ``P``; it has none.

    ``w <- Proj_W(w - eta (sum_i q_i grad l_i(w) + mu w))`` with the exact weights q and eta by
    backtracking. For shift_cost = 0, where P has kinks, the subgradient method: steps of length
    ``R / sqrt(t)``, R from a first line search.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=1.0, l2_reg=0.1)
    >>> drago.solve(problem, drago.GradientDescent()).rel_gap <= 1e-4
    True
    """

    name = "gd"

    def run(self, problem: DROProblem, loop: Loop) -> str:
        run = _DescentRun(problem, loop)
        if problem.nu > 0 or problem.kappa_q <= 1:
            return run.descend()
        return run.subgradient()


@dataclass(frozen=True)
class _Point:
    """A point, its exact weights, the objective there and its gradient."""

    evaluation: Evaluation
    q: RowVector
    value: float
    grad: Matrix
    grad_b: Vector

    @property
    def square(self) -> float:
        return float(np.vdot(self.grad, self.grad) + np.dot(self.grad_b, self.grad_b))


class _DescentRun:
    """One run of gradient descent, and the count of what it cost."""

    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        self.problem, self.loop = problem, loop
        self.oracle = problem.dual_oracle()
        self.n_iter, self.n_calls = 0, 0
        self.here = self._at(*loop.start)
        self._observe(self.here)

    def _at(self, w: Matrix, b: Vector) -> _Point:
        problem = self.problem
        ev = problem.evaluate(w, b)
        self.n_calls += 1
        q = self.oracle.weights(ev.losses, problem.nu)
        g = problem.gradient(ev, q)
        value = problem.primal(w, ev.losses, q)
        grad_b = g.b if problem.fit_intercept else np.zeros_like(g.b)
        return _Point(ev, q, value, g.w + problem.mu * w, grad_b)

    def _moved(self, here: _Point, eta: float) -> _Point:
        ev = here.evaluation
        w = self.problem.constraint.project(ev.w - eta * here.grad)
        return self._at(w, ev.b - eta * here.grad_b)

    def _search(self, eta: float) -> tuple[_Point | None, float]:
        """A point that lies below the parabola with curvature 1/eta, and its eta."""
        here = self.here
        for _ in range(_TRIALS):
            if self.loop.is_out_of_time:
                self._observe(here)  # which ends the solve
            try:
                trial = self._moved(here, eta)
            except NonFiniteLossError:
                eta *= _SHRINK
                continue
            dw = trial.evaluation.w - here.evaluation.w
            db = trial.evaluation.b - here.evaluation.b
            slope = float(np.vdot(here.grad, dw) + np.dot(here.grad_b, db))
            length = float(np.vdot(dw, dw) + np.dot(db, db))
            if trial.value <= here.value + slope + 0.5 * length / eta + 1e-15 * abs(here.value):
                return trial, eta
            eta *= _SHRINK
        return None, eta

    def descend(self) -> str:
        eta, idle = 1.0 / max(self.problem.mu, 1e-3), 0
        while idle < _IDLE:
            found, eta = self._search(eta)
            if found is None:
                return "no step lowers the objective"
            idle = 0 if found.value < self.here.value else idle + 1
            self.here = found
            self.n_iter += 1
            self._observe(found)
            eta *= _GROW
        return "the objective does not fall any more"

    def subgradient(self) -> str:
        found, eta = self._search(1.0)
        if found is None or self.here.square == 0:
            return "no step lowers the objective"
        radius, here, best = eta * np.sqrt(self.here.square), self.here, self.here
        while True:
            self.n_iter += 1
            here = self._moved(here, radius / np.sqrt(self.n_iter * max(here.square, 1e-300)))
            best = here if here.value < best.value else best
            self._observe(best)

    def _observe(self, point: _Point) -> None:
        problem = self.problem
        estimate = np.inf
        if problem.nu > 0 and problem.mu > 0:
            estimate = point.square / (2.0 * problem.mu)
        elif problem.nu > 0:
            estimate = np.sqrt(point.square) * (1.0 + float(np.linalg.norm(point.evaluation.w)))
        self.loop.observe(
            Iterate(
                w=point.evaluation.w,
                b=point.evaluation.b,
                n_iter=self.n_iter,
                n_passes=float(self.n_calls),
                n_oracle_calls=self.n_calls * problem.n_samples,
                evaluation=point.evaluation,
                gap_estimate=estimate,
                primal_estimate=point.value,
            )
        )


@dataclass(frozen=True)
class AGOG(Method):
    """Settings of AG-OG with restarts (Li, Yuan, Gidel, Gu and Jordan 2023); it has none.

    The accelerated gradient method on the separate parts, ``F(z) = (mu/2)||w||^2 + nu D(q || p)``,
    and the optimistic gradient method on the coupling, ``H(z) = (sum_i q_i grad l_i(w), -l(w))``,
    for ``z = (w, q)`` in the norm ``mu ||w||^2 + nu sum_i q_i^2/p_i``. In an epoch, for
    k = 0, 1, ...::

        z_md   = (1 - a) z_ag + a z                    a = 2 / (k + 2)
        z_half = Proj[z - eta (H(z_half) + grad F(z_md))]
        z_ag   = (1 - a) z_ag + a z_half               eta = (k + 2) / (2 + c L (k + 2))
        z      = Proj[z - eta (H(z_half) + grad F(z_md))]

    with ``c = sqrt(3 + sqrt 3)`` and the Lipschitz constant L of H, which is measured on the way;
    the next epoch starts at z_ag. The projection onto Q is the dual oracle. It takes the chi2
    divergence, whose gradient is Lipschitz, l2_reg > 0, shift_cost > 0, and no intercept.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(50, 2))
    >>> problem = drago.DROProblem(X, X[:, 0], loss="huber", shift_cost=1.0, l2_reg=0.1)
    >>> drago.solve(problem, drago.AGOG(), tol=1e-2).rel_gap <= 1e-2
    True
    """

    name = "agog"

    def check(self, problem: DROProblem) -> None:
        if not problem.divergence.is_chi2 or problem.uncertainty.is_users:
            raise ValueError(
                f"solver {self.name!r} takes divergence='chi2' and built-in sets, but the problem "
                f"has {problem.divergence.name!r} and {problem.uncertainty!r}."
            )
        if problem.mu == 0 or problem.nu == 0 or problem.fit_intercept:
            raise ValueError(
                f"solver {self.name!r} needs l2_reg > 0, shift_cost > 0 and fit_intercept=False."
            )

    def run(self, problem: DROProblem, loop: Loop) -> str:
        return _AGOGRun(problem, loop).run()


@dataclass(frozen=True)
class _Field:
    """A point ``(w, q)`` and the coupling's gradients there."""

    w: Matrix
    q: RowVector
    evaluation: Evaluation
    grad: Matrix

    @property
    def losses(self) -> RowVector:
        return self.evaluation.losses


class _AGOGRun:
    """One run of AG-OG, and the count of what it cost."""

    def __init__(self, problem: DROProblem, loop: Loop) -> None:
        self.problem, self.loop = problem, loop
        self.oracle, self.exact = problem.dual_oracle(), problem.dual_oracle()
        self.n_iter, self.n_calls = 0, 0
        self.lipschitz = 0.0

    def _field(self, w: Matrix, q: RowVector | None) -> _Field:
        """The coupling's gradients at a point; at its exact weights where none are given."""
        problem = self.problem
        ev = problem.evaluate(w, np.zeros(problem.n_outputs))
        self.n_calls += 1
        if q is None:
            q = self.exact.weights(ev.losses, problem.nu)
        return _Field(w, q, ev, problem.gradient(ev, q).w)

    def _step(
        self, w: Matrix, q: RowVector, at: _Field, w_md: Matrix, q_md: RowVector, eta: float
    ) -> tuple[Matrix, RowVector]:
        """``Proj[z - eta (H(at) + grad F(z_md))]``."""
        problem = self.problem
        w = problem.constraint.project(w - eta * (at.grad / problem.mu + w_md))
        # chi2 ascent from q: <l - nu (q_md/p - 1), q'> - (nu/eta) 1/2 sum (q' - q)^2/p.
        rows = problem.rows
        moved = rows.relative(rows.add(rows.scaled(q, 1.0 / eta), q_md, -1.0))
        u = rows.add(at.losses, moved, problem.nu)
        return w, self.oracle.weights(u, problem.nu / eta)

    def _measured(self, a: _Field, b: _Field) -> float:
        """The Lipschitz quotient of the coupling's field between two points."""
        problem = self.problem
        mu, nu, rows = problem.mu, problem.nu, problem.rows
        dw, dg = a.w - b.w, a.grad - b.grad
        dq, dl = rows.add(a.q, b.q, -1.0), rows.add(a.losses, b.losses, -1.0)
        moved = mu * float(np.vdot(dw, dw)) + nu * rows.dot(rows.relative(dq), dq)
        changed = float(np.vdot(dg, dg)) / mu + rows.second_moment(dl) / nu
        return float(np.sqrt(changed / moved)) if moved > 0 else 0.0

    def run(self) -> str:
        here = self._field(self.loop.start[0], self.loop.start_weights)
        gap = self._observe(here, here.evaluation)
        stuck = 0
        while stuck < _IDLE:
            here = self._epoch(here)
            before, gap = gap, self._observe(here, here.evaluation)
            stuck = 0 if gap < before else stuck + 1
        return "the gap does not fall any more"

    def _epoch(self, start: _Field) -> _Field:
        """From one restart to the next; again where the Lipschitz constant proved too small."""
        half, mix = start, self.problem.rows.mix
        w_ag, q_ag = w, q = start.w, start.q
        k = 0
        while k == 0 or k < _EPOCH * _OPTIMISM * self.lipschitz + 4.0:
            a = 2.0 / (k + 2.0)
            eta = (k + 2.0) / (2.0 + _OPTIMISM * self.lipschitz * (k + 2.0))
            w_md, q_md = (1.0 - a) * w_ag + a * w, mix(q_ag, q, a)
            before = half
            half = self._field(*self._step(w, q, before, w_md, q_md, eta))
            self.n_iter += 1
            measured = self._measured(half, before)
            if measured > self.lipschitz:
                self.lipschitz = _SAFETY * measured
                self._observe(half)
                half, k = start, 0
                w_ag, q_ag = w, q = start.w, start.q
                continue
            w_ag, q_ag = (1.0 - a) * w_ag + a * half.w, mix(q_ag, half.q, a)
            w, q = self._step(w, q, half, w_md, q_md, eta)
            self._observe(half)
            k += 1
        return self._field(w_ag, q_ag)

    def _observe(self, at: _Field, evaluation: Evaluation | None = None) -> float:
        """Show a point to the loop; with its evaluation, also the gap there, which it returns."""
        problem, gap, value = self.problem, np.inf, np.inf
        if evaluation is not None:
            exact = self.exact.weights(at.losses, problem.nu)
            value = problem.primal(at.w, at.losses, exact)
            slack = value - problem.primal(at.w, at.losses, at.q)
            grad = at.grad + problem.mu * at.w
            gap = max(slack, 0.0) + float(np.vdot(grad, grad)) / (2.0 * problem.mu)
        self.loop.observe(
            Iterate(
                w=at.w,
                b=np.zeros(problem.n_outputs),
                n_iter=self.n_iter,
                n_passes=float(self.n_calls),
                n_oracle_calls=self.n_calls * problem.n_samples,
                evaluation=at.evaluation,
                q=at.q,
                gap_estimate=gap,
                primal_estimate=value,
            )
        )
        return gap
