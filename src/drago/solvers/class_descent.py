"""L-BFGS in a metric for many classes, compiled; for a capped simplex the weights are too.

The iterations are those of `drago.solvers.quasi_newton`, several of them in one call
(`kernels/descend.hpp`). What is decided here is when to ask for a certificate. The bound from
tangents, ``||grad P||^2 / (2 mu)``, costs nothing and is loose for a small mu; the bound from the
curvature is tight and costs a Hessian, whose size is that of all classes together. So it is asked
for where the gap seems small enough and it costs less than the iterations which the tangents
would still take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.certificate.cost import affordable_rows, n_unknowns
from drago.loop.loop import Iterate, Loop
from drago.metric import Metric
from drago.problem import DROProblem, Evaluation
from drago.solvers.quasi_newton import FLOOR

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _ClassRule:
    """When a certificate with curvature pays, in nanoseconds, and how much is done at once."""

    call: float = 2.5e6
    """What such a certificate takes beside its products,"""
    product: float = 0.6
    """for each multiplication of these,"""
    row: float = 500.0
    """and for each row and class."""
    iteration: float = 2e4
    """What an iteration takes beside the rows,"""
    entry: float = 20.0
    """for each row and class,"""
    feature: float = 0.3
    """and for each feature of these."""
    full: float = 8.0
    """The metric is diagonal where the directions of a full one take so many iterations."""
    direction: float = 5.0
    """Nanoseconds for the cube of the number of features, in these."""
    at_once: float = 2e8
    """Iterations of one call take so long: an interrupt waits for it."""
    most: int = 32
    """And are no more than this."""
    again: float = 0.25
    """After a certificate failed, the next one waits until the tangents' bound fell so far."""
    close: float = 0.69
    """An estimate is looked at when it is this share of the gap that is wanted."""
    fresh: int = 50
    """Iterations after which the raw predictions, sums of so many steps, are computed afresh."""


_RULE = _ClassRule()
_NO_MATRIX = np.empty((0, 0))
_NONE = np.empty(0)


def is_for(problem: DROProblem) -> bool:
    """Whether the iterations are compiled for the problem."""
    share = problem.uncertainty.tail_share
    rows: Any = problem.rows
    return bool(
        problem.loss.has_class_hessian
        and problem.loss.has_kernels
        and problem.n_outputs > 1
        and problem.nu > 0
        and problem.mu > 0
        and not problem.uncertainty.is_users
        and (share is None or share < 1)
        and problem.constraint.is_everything
        and rows.has("compiled")
        and rows.is_plain
        and rows.X.flags.c_contiguous
    )


def iteration_time(problem: DROProblem) -> float:
    """About how long an iteration takes, in nanoseconds."""
    by_class = _RULE.entry + _RULE.feature * problem.n_features
    return _RULE.iteration + by_class * problem.n_samples * problem.n_outputs


def metric_kind(problem: DROProblem) -> str:
    """The metric that is worth its while."""
    full = _RULE.direction * float(problem.n_features) ** 3
    return "auto" if full <= _RULE.full * iteration_time(problem) else "diagonal"


class ClassRun:
    """One run: the point, the pairs of L-BFGS, and the count of what it cost."""

    def __init__(self, problem: DROProblem, loop: Loop, memory: int, kind: str) -> None:
        self.problem, self.loop = problem, loop
        d, k, n = problem.n_features, problem.n_outputs, problem.n_samples
        intercept = problem.fit_intercept
        self.mean, self.passes = np.zeros(d), 0.0
        if loop.start_centre is not None:
            self.mean = loop.start_centre
        elif intercept:
            self.mean, self.passes = problem.rows.centre(), 0.5
        kind = metric_kind(problem) if kind == "auto" else kind
        metric: Metric = loop.make_metric(kind, self.mean if intercept else None, FLOOR)
        basis, turned = _NO_MATRIX, _NO_MATRIX
        if metric.basis is not None:
            basis = np.ascontiguousarray(metric.basis)
            turned = np.ascontiguousarray(metric.basis.T)
        w, b = loop.start
        self.theta = w.reshape(-1)
        if intercept:
            self.theta = np.append(self.theta, b + self.mean @ w)
        size = self.theta.size
        memory = max(1, min(memory, 2 * size))
        self.slope = np.empty(size)
        self.raw, self.slopes = np.empty((n, k)), np.empty((n, k))
        self.losses, self.q = np.empty(n), np.empty(n)
        self.steps, self.changes = np.empty((memory, size)), np.empty((memory, size))
        self.count = self.next = self.n_iter = self.n_calls = self.refreshed = 0
        self.value, self.tau, self.reference = math.inf, math.nan, problem.reference[0]
        self.estimate = self.tangent = math.inf
        oracle: Any = problem.dual_oracle()
        rows: Any = problem.rows
        self.weights = None if problem.uncertainty.is_capped else oracle.solve_into
        self.given = (
            rows.X,
            rows.y,
            rows.kernel_baseline,
            problem.p,
            not problem.divergence.is_chi2,
            intercept,
            oracle.cap if problem.uncertainty.is_capped else 0.0,
            problem.nu,
            problem.mu,
            self.mean,
            metric.eigenvalues,
            basis,
            turned,
            metric.intercept,
        )

    def minimise(self) -> str:
        """Iterations until the loop ends them, or until none helps."""
        loop, pace = self.loop, iteration_time(self.problem)
        at_once = int(min(max(_RULE.at_once / pace, 1.0), _RULE.most))
        self._call(0, 0.0, 0.0, is_start=True)
        self.passes += 1.0
        self._observe()
        first, tried, state = self.estimate, math.inf, 0
        while state != 2:
            # The last certificate tells how much smaller than the tangents' bound the best one is.
            share = _RULE.close * loop.tol
            share_of_tangent = share / max(loop.goal.factor, 1e-300)
            near = self._is_within(self.estimate, share)
            most = min(at_once, loop.iterations_left(self.n_iter))
            state = self._call(most, 0.0 if near else share, share_of_tangent)
            pays = False
            is_near = self.n_iter > 0 and self._is_within(self.estimate, share)
            if is_near and self.tangent <= _RULE.again * tried:
                rate = math.log(max(first / max(self.estimate, 1e-300), 1.0 + 1e-9)) / self.n_iter
                wanted = share * (self.reference - self.value)
                left = math.log(max(self.tangent / wanted, 1.0)) / rate
                pays = self._certificate_time() < left * pace
                tried = self.tangent if pays else tried
            self._observe(milestone=pays)
            if self.n_iter - self.refreshed >= _RULE.fresh:
                self._call(0, 0.0, 0.0, is_start=True)
                self.passes, self.refreshed = self.passes + 1.0, self.n_iter
        return "the objective does not fall any more"

    def _is_within(self, gap: float, share: float) -> bool:
        """Whether a gap is this share of what was gained over the trivial model."""
        return gap <= share * (self.reference - self.value)

    def _certificate_time(self) -> float:
        """About how long a certificate with curvature takes, in nanoseconds."""
        credit = self.loop.budget.credit(self.passes)
        if affordable_rows(self.problem, credit) == 0:
            return math.inf
        rows, size = self.problem.rows.count(self.q), float(n_unknowns(self.problem))
        products = _RULE.product * size * size * (rows + 2.0 * size)
        by_row = _RULE.row * self.problem.n_samples * self.problem.n_outputs
        return _RULE.call + by_row + products

    def _call(self, most: int, share: float, of_tangent: float, is_start: bool = False) -> int:
        done, trials, self.value, self.estimate, self.tangent, self.tau, *rest = (
            kernels.class_descend(
                *self.given,
                self.theta,
                self.slope,
                self.raw,
                self.losses,
                self.slopes,
                self.q,
                self.steps,
                self.changes,
                self.count,
                self.next,
                self.value,
                self.tau,
                is_start,
                most,
                self.reference,
                share,
                of_tangent,
                self.weights,
            )
        )
        self.count, self.next, state = rest
        self.n_iter, self.n_calls = self.n_iter + done, self.n_calls + trials
        self.passes += float(done)
        return int(state)

    def _observe(self, milestone: bool = False) -> None:
        d, k = self.problem.n_features, self.problem.n_outputs
        w, b = self.theta[: d * k].reshape(d, k).copy(), np.zeros(k)
        if self.problem.fit_intercept:
            b = self.theta[d * k :] - self.mean @ w
        # Copies: the next call writes over all of it.
        raw, losses, slopes = self.raw.copy(), self.losses.copy(), self.slopes.copy()
        self.loop.observe(
            Iterate(
                w=w,
                b=b,
                n_iter=self.n_iter,
                n_passes=self.passes,
                n_oracle_calls=self.n_calls * self.problem.n_samples,
                evaluation=Evaluation(w, b, raw, losses, slopes),
                gap_estimate=self.estimate if self.loop.trusting else self.tangent,
                primal_estimate=self.value,
                milestone=milestone,
                is_sum=True,
                is_measured=True,
                predicts=False,
            )
        )
