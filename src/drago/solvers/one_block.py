"""DRAGO on small data, compiled: all rows are one block, and an iteration is a few microseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from drago.losses import Huber, Squared
from drago.problem import DROProblem, Evaluation
from drago.solvers.blocks import SMALL
from drago.solvers.compiled import is_capped_chi2
from drago.solvers.steps import GROWTH, REMEMBERED, SecantSteps
from drago.solvers.variants import SupportIterations
from drago.uncertainty.capped import CappedOracle

# Entries up to which one block is worth it, where the curvature of the losses does not change and
# the tail is so thick that most rows carry weight: not more than this many times their own.
_LARGEST = 1 << 21
_THICK = 4.0


def _is_worth_it(problem: DROProblem) -> bool:
    """Whether data that are not small had better be one block; without a copy of the features."""
    X = problem.X
    constant = isinstance(problem.loss, (Squared, Huber)) and problem.n_entries <= _LARGEST
    as_it_is = X.dtype == np.float64 and bool(X.flags.c_contiguous)
    return constant and as_it_is and problem.kappa_q <= _THICK


class OneBlockIterations(SupportIterations):
    """The same iterations, several in one call where `SecantSteps` choose their length."""

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

    def _fill_aggregate(self, start: Evaluation) -> None:
        self.aggregate, self.aggregate_b = self.problem.gradient(start, self._q)

    def _values(self) -> tuple[float, float]:
        from drago.kernels.one_block import two_values

        oracle, table, nu = self._estimator, self.loss_table, self.problem.nu
        assert isinstance(oracle, CappedOracle)
        tau = oracle.remembered(nu)
        best, value, oracle._tau = two_values(table, self.p, nu, oracle.cap, tau, self._q, self._u)
        oracle._c = nu
        return best, value

    def round(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        if refresh or not isinstance(self.steps, SecantSteps):
            return super().round(pairs, refresh)
        return self._several(len(pairs), self.steps)

    def _several(self, count: int, steps: SecantSteps) -> Evaluation:
        """So many iterations, and the losses where they end."""
        from drago.kernels.one_block import one_block_steps

        problem, metric, oracle = self.problem, self.metric, self.oracle
        assert isinstance(oracle, CappedOracle)
        n, d = problem.n_samples, problem.n_features
        intercept, has_past = self.mean is not None, bool(self._past_point.size)
        unknown = REMEMBERED - len(steps.curvatures)
        curvatures = np.array([math.nan] * unknown + steps.curvatures)
        past = np.zeros((2, d + 1))
        if has_past:
            rows = self._past_point.shape[0]
            past[:, :rows] = self._past_point[:, 0], self._past_slope[:, 0]
        w, gradient = self.w[:, 0].copy(), self.aggregate[:, 0].copy()
        raw, slopes = np.empty((n, 1)), self._slopes[0, :n]
        b, gradient_b, alpha, oracle._tau, oracle._c = one_block_steps(
            self.blocks.whole,
            self.blocks.y,
            problem.loss.code,
            problem.loss.parameter,
            self.p,
            oracle.cap,
            problem.nu,
            problem.mu,
            np.zeros(d) if self.mean is None else self.mean,
            metric.eigenvalues,
            np.empty((0, 0)) if metric.basis is None else np.ascontiguousarray(metric.basis),
            metric.intercept,
            intercept,
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
            oracle._c,
            w,
            float(self.b[0]),
            raw[:, 0],
            self.loss_table,
            slopes[:, 0],
            self._q,
            gradient,
            float(self.aggregate_b[0]),
        )
        steps.alpha = alpha
        steps.curvatures = [known for known in curvatures.tolist() if math.isfinite(known)]
        self.w, self.b = w[:, None], np.array([b])
        self.aggregate, self.aggregate_b = gradient[:, None], np.array([gradient_b])
        self._past_point, self._past_slope = past[:, : d + intercept, None]
        self._mean_w, self._mean_b = self.w, self.b
        self._ring[0] = self._packed()
        self._ring_sum = self._ring[0].copy()  # it is added to in place
        self.t += count
        self.visits += 2 * n * count
        self.n_calls += n * count
        self._last_k = self._last_j = 0
        self._is_fresh = False
        # Copies: the next iterations write over these, and an interrupt may come in between.
        return Evaluation(self.w, self.b, raw, self.loss_table.copy(), slopes.copy())
