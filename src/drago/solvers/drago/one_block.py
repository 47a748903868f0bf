"""DRAGO on small data, compiled: all rows are one block, and an iteration is a few microseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.metric import Metric
from drago.problem import DROProblem, Evaluation
from drago.rows.tables.array_blocks import SMALL
from drago.rows.tables.arrays import ArrayTables
from drago.rows.tables.base import Tables
from drago.solvers.compiled import is_capped_chi2
from drago.solvers.drago.steps import GROWTH, REMEMBERED, SecantSteps
from drago.solvers.drago.variants import SupportIterations

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Entries up to which one block is worth it, where the curvature of the losses does not change and
# the tail is so thick that most rows carry weight: not more than this many times their own.
_LARGEST = 1 << 21
_THICK = 4.0
# Entries up to which a copy of X by columns pays: products with it are faster than with its rows,
# but it takes as long as a few of them (`bench_drago.py small`).
_BY_COLUMNS = 1 << 17


def _is_worth_it(problem: DROProblem) -> bool:
    """Whether data that are not small had better be one block; without a copy of the features."""
    X = problem.X
    constant = problem.loss.is_of_residuals and problem.n_entries <= _LARGEST
    as_it_is = X.dtype == np.float64 and bool(X.flags.c_contiguous)
    return constant and as_it_is and problem.kappa_q <= _THICK


class OneBlockIterations(SupportIterations):
    """The same iterations, several in one call where `SecantSteps` choose their length.

    There is no history: the last of M = 1 points is the present one.
    """

    tables: ArrayTables

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

    def _remember(self, k: Any) -> None:
        pass

    @classmethod
    def begun(
        cls,
        problem: DROProblem,
        tables: Any,
        metric: Metric,
        mean: Vector | None,
        w: Matrix,
        b: Vector,
    ) -> tuple[OneBlockIterations, float]:
        """Iterations from a point with its exact weights, and the weights' second moment."""
        self = cls.__new__(cls)
        self._prepare(problem, tables, metric, mean)
        self._begin_at(w, b)
        oracle, gradient = tables.oracle, np.empty(w.shape)
        losses, slopes, q = tables.empty()
        gradient_b, oracle._tau, moment, finite = kernels.one_block_start(
            *self._data,
            oracle.cap,
            problem.nu,
            w[:, 0],
            float(b[0]),
            losses,
            slopes[:, 0],
            q,
            gradient[:, 0],
        )
        if not finite:
            problem.evaluate(w, b)  # raises, and says which rows are to blame
        oracle._c = problem.nu
        self._aggregate, self._aggregate_b = gradient, np.array([gradient_b])
        self._count_all()
        return self, moment

    def _prepare(
        self, problem: DROProblem, tables: Tables, metric: Metric, mean: Vector | None
    ) -> None:
        assert isinstance(tables, ArrayTables)
        super()._prepare(problem, tables, metric, mean)
        X, basis, blocks = tables.blocks.whole, metric.basis, tables.blocks
        columns = np.array(X.T, order="C") if X.size <= _BY_COLUMNS else np.empty((0, 0))
        loss, baseline = problem.loss, tables.rows.kernel_baseline
        # What the kernels take, in this order.
        self._data = X, columns, blocks.y, baseline, loss.code, loss.parameter, tables.p
        self._norm = (
            np.zeros(problem.n_features) if mean is None else mean,
            metric.eigenvalues,
            np.empty((0, 0)) if basis is None else np.ascontiguousarray(basis),
            metric.intercept,
            mean is not None,
        )

    def round(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        if refresh or not isinstance(self.steps, SecantSteps):
            return super().round(pairs, refresh)
        return self._several(len(pairs), self.steps)

    def _several(self, count: int, steps: SecantSteps) -> Evaluation:
        """So many iterations, and the losses where they end."""
        problem, tables, run = self.problem, self.tables, kernels.one_block_steps
        oracle, n, d = tables.oracle, problem.n_samples, problem.n_features
        unknown = REMEMBERED - len(steps.curvatures)
        curvatures = np.array([math.nan] * unknown + steps.curvatures)
        past, has_past = np.zeros((2, d + 1)), bool(self._past_point.size)
        if has_past:
            rows = self._past_point.shape[0]
            past[:, :rows] = self._past_point[:, 0], self._past_slope[:, 0]
        w, gradient, raw = self._w.copy(), self._aggregate.copy(), np.empty((n, 1))
        losses, slopes, q = tables.open()
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
            float(self._b[0]),
            raw[:, 0],
            losses,
            slopes[:, 0],
            q,
            gradient[:, 0],
            float(self._aggregate_b[0]),
        )
        steps.curvatures = [met for met in curvatures.tolist() if math.isfinite(met)]
        self._w, self._b = w, np.array([b])
        self._aggregate, self._aggregate_b = gradient, np.array([gradient_b])
        self._past_point, self._past_slope = past[:, : d + (self.mean is not None), None]
        self.t += count
        self._visits += 2 * n * count
        self._calls += n * count
        self._last_k = self._last_j = 0
        self._is_fresh = False
        self._known = known[0], known[1]
        self._known_at = self.t
        # Copies: the next iterations write over these, and an interrupt may come in between.
        return Evaluation(self._w, self._b, raw, losses.copy(), slopes.copy())

    _known_at: int = -1

    def estimates(self) -> tuple[float, float]:
        """After compiled iterations they are known."""
        return self._known if self._known_at == self.t else super().estimates()
