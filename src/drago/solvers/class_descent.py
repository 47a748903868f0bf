"""L-BFGS in a metric for many classes, compiled; for a capped simplex the weights are too.

The iterations are those of `drago.solvers.quasi_newton`, several of them in one call
(`kernels/descend.hpp`). What is decided here is when to ask for a certificate. The bound from
tangents, ``||grad P||^2 / (2 mu)``, costs nothing and is loose for a small mu; a tight one costs a
few steps on the rows of weight. So it is asked for where the gap seems small enough and it costs
less than the iterations which the tangents would still take.

With few unknowns, Newton steps follow on the first iterations: the Hessian of all classes is
compiled too, and it knows how the weights respond to the losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.certificate.cost import descent_cost
from drago.loop.loop import Iterate, Loop
from drago.metric import Metric
from drago.problem import DROProblem
from drago.rows.classes import both_ways, new_point
from drago.solvers.quasi_newton import FLOOR

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _ClassRule:
    """What pays, in nanoseconds, and how much is done at once."""

    call: float = 1e6
    """What a better certificate than that from tangents takes beside visits to the rows."""
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
    floor: float = 1e-3
    """The least curvature of a direction of the classes, as a share of the greatest."""
    first: int = 4
    """So many iterations come before Newton steps: far from the optimum they are too short."""
    unknowns: float = 250.0
    """Newton steps are for at most so many unknowns,"""
    newton: float = 3.0
    """and where their Hessian takes no longer than so many iterations: by"""
    square: float = 0.09
    """the square of the number of unknowns, for each row of weight,"""
    cube: float = 0.1
    """and its cube."""
    when_near: int = 8
    """Where the optimum seems near, it is looked at again after one in so many iterations."""
    close: float = 0.69
    """An estimate is looked at when it is this share of the gap that is wanted."""
    doubt: float = 4.0
    """What a certificate that was not enough adds to the doubt in the next at most, as a factor."""
    few_pairs: int = 10
    """Pairs that are kept where there are fewer rows than features: older ones lead astray there,
    and cost more than the rows."""


_RULE = _ClassRule()


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
        and rows.is_by_rows
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
        w, b = loop.start
        self.theta = w.reshape(-1)
        # The mean square of the features along the directions of the metric.
        self.squares = (metric.eigenvalues - problem.mu) / metric.intercept
        self.basis = both_ways(metric.basis)
        if intercept:
            self.theta = np.append(self.theta, b + self.mean @ w)
        size = self.theta.size
        memory = min(memory, _RULE.few_pairs) if n < d else memory
        memory = max(1, min(memory, 2 * size))
        self.slope = np.empty(size)
        # Where it is, and where it tries: kept, because fresh memory costs more than a step.
        self.here, self.there = new_point(n, k), new_point(n, k)
        self.steps, self.changes = np.empty((memory, size)), np.empty((memory, size))
        self.count = self.next = self.n_iter = self.n_calls = 0
        self.value, self.tau, self.reference = math.inf, math.nan, problem.reference[0]
        self.estimate = self.tangent = math.inf
        self.newton, self.has_step, self.dx = False, False, np.empty(size)
        oracle: Any = problem.dual_oracle()
        self.oracle = oracle
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
            self.squares,
            *self.basis,
        )

    def minimise(self) -> str:
        """Iterations until the loop ends them, or until none helps."""
        loop, pace = self.loop, iteration_time(self.problem)
        at_once = int(min(max(_RULE.at_once / pace, 1.0), _RULE.most))
        self._call(0, 0.0, 0.0, is_start=True)
        self._observe()
        first, state, doubt, effort = self.estimate, 0, 1.0, 1.0
        while state != 2:
            # The last certificate tells how much smaller than the tangents' bound the best one is.
            share = _RULE.close * loop.tol
            share_of_tangent = share / max(loop.goal.factor, 1e-300)
            near = self._is_within(self.estimate, share)
            most = min(at_once, loop.iterations_left(self.n_iter))
            if self.n_iter < _RULE.first:
                most = min(most, _RULE.first - self.n_iter)
            if near:
                most = min(most, max(1, self.n_iter // _RULE.when_near))
            state = self._call(most, 0.0 if near else share, share_of_tangent)
            pays, promised = False, math.inf
            if self.n_iter > 0 and self._is_within(self.estimate, share):
                fallen = math.log(max(first / max(self.estimate, 1e-300), 1.0 + 1e-9))
                wanted = share * (self.reference - self.value)
                left = self.n_iter * math.log(max(self.tangent / wanted, 1.0)) / fallen
                if effort * self._certificate_time(pace) < left * pace:
                    promised = self._promised()
                    pays = self._is_within(doubt * promised, share)
            self._observe(milestone=pays)
            if pays:  # and was not enough
                # No more than that is learnt: a certificate that was given up says little.
                doubt *= min(max(loop.best.gap / (doubt * promised), 2.0), _RULE.doubt)
                effort *= 2.0
            if not self.newton and self.n_iter >= _RULE.first and self._is_for_newton(pace):
                self.newton, self.has_step = True, False
        return "the objective does not fall any more"

    def _promised(self) -> float:
        """About what a certificate with curvature would say.

        The Hessian is about the mean square of the features times that of the losses in the raw
        predictions, as if the one said nothing about the other, plus mu.
        """
        problem = self.problem
        rows: Any = problem.rows
        d, k = problem.n_features, problem.n_outputs
        found, directions = np.linalg.eigh(rows.class_curvature(self.here[1], self.q))
        found = np.maximum(found, _RULE.floor * max(float(found[-1]), 1e-300))
        slope = self.slope[: d * k].reshape(d, k) @ directions
        if self.basis[1].size:
            slope = self.basis[1] @ slope
        total = float((slope**2 / (self.squares[:, None] * found + problem.mu)).sum())
        if problem.fit_intercept:
            total += float(((self.slope[d * k :] @ directions) ** 2 / found).sum())
        return 0.5 * total

    def _is_for_newton(self, pace: float) -> bool:
        """Whether a Newton step pays, given the time of an iteration without."""
        rows: Any = self.problem.rows
        size = float(self.theta.size)
        time = _RULE.square * size * size * rows.count(self.q) + _RULE.cube * size**3
        if rows.groups is not None:
            return False
        return size <= _RULE.unknowns and time <= _RULE.newton * pace

    def _rates(self, losses: Vector, q: Vector, to: Vector) -> None:
        """How the weights respond to the losses, for another set than the capped simplex."""
        rows: Any = self.problem.rows
        to[:] = rows.rates(losses, q, self.problem.nu, not self.problem.divergence.is_chi2)

    def _is_within(self, gap: float, share: float) -> bool:
        """Whether a gap is this share of what was gained over the trivial model."""
        return gap <= share * (self.reference - self.value)

    def _certificate_time(self, pace: float) -> float:
        """About how long a certificate takes that is better than that from tangents."""
        passes = descent_cost(self.problem, self.problem.rows.count(self.q))
        if passes > self.loop.budget.credit(self.passes):
            return math.inf
        return _RULE.call + (passes + 1.0) * pace

    @property
    def q(self) -> Vector:
        """The weights here."""
        return self.here[2]

    def _call(self, most: int, share: float, of_tangent: float, is_start: bool = False) -> int:
        done, trials, self.value, self.estimate, self.tangent, self.tau, *rest = (
            kernels.class_descend(
                *self.given,
                self.theta,
                self.slope,
                *self.here,
                *self.there,
                self.dx,
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
                self.newton,
                self.has_step,
                self.weights,
                self._rates,
            )
        )
        self.count, self.next, state, is_other, self.has_step = rest
        if is_other:
            self.here, self.there = self.there, self.here
        self.n_iter, self.n_calls = self.n_iter + done, self.n_calls + trials
        self.passes += float(trials)
        return int(state)

    def _observe(self, milestone: bool = False) -> None:
        d, k = self.problem.n_features, self.problem.n_outputs
        w, b = self.theta[: d * k].reshape(d, k).copy(), np.zeros(k)
        if self.problem.fit_intercept:
            b = self.theta[d * k :] - self.mean @ w
        self.loop.observe(
            Iterate(
                w=w,
                b=b,
                n_iter=self.n_iter,
                n_passes=self.passes,
                n_oracle_calls=self.n_calls * self.problem.n_samples,
                gap_estimate=self.estimate if self.loop.trusting else self.tangent,
                primal_estimate=self.value,
                milestone=milestone,
                is_measured=True,
                predicts=False,
            )
        )
