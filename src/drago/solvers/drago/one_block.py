"""DRAGO on small data, compiled: all rows are one block, and an iteration is a few microseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.metric import Metric
from drago.problem import DROProblem, Evaluation
from drago.solvers.compiled import is_capped_chi2
from drago.solvers.drago.blocks import SMALL, Blocks
from drago.solvers.drago.steps import GROWTH, REMEMBERED, SecantSteps
from drago.solvers.drago.variants import SupportIterations
from drago.terms.uncertainty.capped import CappedOracle

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Entries up to which one block is worth it, where the curvature of the losses does not change and
# the tail is so thick that most rows carry weight: not more than this many times their own.
_LARGEST = 1 << 21
_THICK = 4.0
# Entries up to which a copy of X by columns pays: products with it are faster than with its rows,
# but it takes as long as a few of them (`bench_drago.py small`).
_BY_COLUMNS = 1 << 17


@cache
def _kernels() -> Any:
    """Imported once: the statement takes as long as a kernel does on a few rows."""
    from drago.kernels import one_block

    return one_block


def _is_worth_it(problem: DROProblem) -> bool:
    """Whether data that are not small had better be one block; without a copy of the features."""
    X = problem.X
    constant = problem.loss.is_of_residuals and problem.n_entries <= _LARGEST
    as_it_is = X.dtype == np.float64 and bool(X.flags.c_contiguous)
    return constant and as_it_is and problem.kappa_q <= _THICK


class OneBlockIterations(SupportIterations):
    """The same iterations, several in one call where `SecantSteps` choose their length.

    What only single steps need, between calls, is made when they need it. There is no history: the
    last of M = 1 points is the present one.
    """

    oracle: CappedOracle
    _known: tuple[float, float] | None = None  # the estimates, after compiled iterations
    _unsettled = None

    @property
    def least_round(self) -> int:  # type: ignore[override]
        """On small data a look at the estimates takes longer than eight iterations."""
        return 8 if self.problem.n_entries <= SMALL else 4

    @staticmethod
    def is_for(problem: DROProblem, count: int) -> bool:
        """Whether there is compiled code for a problem in `count` blocks."""
        if count > 1 or not is_capped_chi2(problem):
            return False
        return problem.n_entries <= SMALL or _is_worth_it(problem)

    def _begin_history(self) -> None:
        pass

    @classmethod
    def begun(
        cls,
        problem: DROProblem,
        blocks: Blocks,
        metric: Metric,
        mean: Vector | None,
        w: Matrix,
        b: Vector,
    ) -> tuple[OneBlockIterations, float]:
        """Iterations from a point with its exact weights, and the weights' second moment."""
        self = cls.__new__(cls)
        self._prepare(problem, blocks, metric, mean)
        self._begin_at(w.copy(), b.copy())
        n, oracle = problem.n_samples, self.oracle
        self.loss_table, self._q = np.empty(n), np.empty(n)
        self.product, self.mirror = np.empty((0, 1)), np.empty(0)
        self.aggregate = np.empty(w.shape)
        gradient_b, oracle._tau, moment, finite = _kernels().one_block_start(
            *self._data,
            oracle.cap,
            problem.nu,
            self.w[:, 0],
            float(b[0]),
            self.loss_table,
            self._slopes[0, :, 0],
            self._q,
            self.aggregate[:, 0],
        )
        if not finite:
            problem.evaluate(w, b)  # raises, and says which rows are to blame
        oracle._c, self.aggregate_b = problem.nu, np.array([gradient_b])
        self.n_calls = self.visits = n
        return self, moment

    def _prepare(
        self, problem: DROProblem, blocks: Blocks, metric: Metric, mean: Vector | None
    ) -> None:
        self.problem, self.blocks, self.metric, self.mean = problem, blocks, metric, mean
        self.p, self.oracle = problem.p, problem.dual_oracle()
        self._slopes = np.empty((2, problem.n_samples, 1))
        X, basis = blocks.whole, metric.basis
        columns = np.array(X.T, order="C") if X.size <= _BY_COLUMNS else np.empty((0, 0))
        # What the kernels take, in this order.
        self._data = X, columns, blocks.y, problem.loss.code, problem.loss.parameter, self.p
        self._norm = (
            np.zeros(problem.n_features) if mean is None else mean,
            metric.eigenvalues,
            np.empty((0, 0)) if basis is None else np.ascontiguousarray(basis),
            metric.intercept,
            mean is not None,
        )

    @property
    def _ring(self) -> Matrix:
        return self._packed()[None]

    @_ring.setter
    def _ring(self, points: Matrix) -> None:
        pass

    @property
    def _ring_sum(self) -> Matrix:
        return self._packed().copy()  # it is added to in place

    @_ring_sum.setter
    def _ring_sum(self, points: Matrix) -> None:
        pass

    @cached_property
    def _estimator(self) -> CappedOracle:  # type: ignore[override]
        return self.problem.dual_oracle()

    @cached_property
    def _u(self) -> Vector:  # type: ignore[override]
        return np.empty(self.problem.n_samples)

    @cached_property
    def _losses(self) -> Matrix:  # type: ignore[override]
        return np.empty((2, self.problem.n_samples))

    def _fill_aggregate(self, start: Evaluation) -> None:
        self.aggregate, self.aggregate_b = self.problem.gradient(start, self._q)

    def estimates(self) -> tuple[float, float]:
        return super().estimates() if self._known is None else self._known

    def step(self, i: int, j: int) -> None:
        self._known = None
        super().step(i, j)

    def round(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        if refresh or not isinstance(self.steps, SecantSteps):
            return super().round(pairs, refresh)
        return self._several(len(pairs), self.steps)

    def _several(self, count: int, steps: SecantSteps) -> Evaluation:
        """So many iterations, and the losses where they end."""
        problem, oracle, run = self.problem, self.oracle, _kernels().one_block_steps
        n, d, has_past = problem.n_samples, problem.n_features, bool(self._past_point.size)
        unknown = REMEMBERED - len(steps.curvatures)
        curvatures = np.array([math.nan] * unknown + steps.curvatures)
        past = np.zeros((2, d + 1))
        if has_past:
            rows = self._past_point.shape[0]
            past[:, :rows] = self._past_point[:, 0], self._past_slope[:, 0]
        w, gradient = self.w.copy(), self.aggregate.copy()
        raw, slopes = np.empty((n, 1)), self._slopes[0]
        b, gradient_b, steps.alpha, oracle._tau, oracle._c, *known = run(
            *self._data,
            oracle.cap,
            problem.nu,
            problem.mu,
            *self._norm,
            count,
            self._is_fresh,
            steps.alpha,
            steps.largest,
            steps.boldness,
            GROWTH,
            curvatures,
            past[0],
            past[1],
            has_past,
            oracle._tau,
            w[:, 0],
            float(self.b[0]),
            raw[:, 0],
            self.loss_table,
            slopes[:, 0],
            self._q,
            gradient[:, 0],
            float(self.aggregate_b[0]),
        )
        self._known = known[0], known[1]
        steps.curvatures = [met for met in curvatures.tolist() if math.isfinite(met)]
        self.w, self.b = self._mean_w, self._mean_b = w, np.array([b])
        self.aggregate, self.aggregate_b = gradient, np.array([gradient_b])
        self._past_point, self._past_slope = past[:, : d + (self.mean is not None), None]
        self.t += count
        self.visits += 2 * n * count
        self.n_calls += n * count
        self._last_k = self._last_j = 0
        self._is_fresh = False
        # Copies: the next iterations write over these, and an interrupt may come in between.
        return Evaluation(self.w, self.b, raw, self.loss_table.copy(), slopes.copy())
