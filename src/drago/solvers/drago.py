"""DRAGO: the primal-dual variance-reduced method of Mehta, Diakonikolas and Harchaoui (2024).

Algorithm 1 of the paper, t = 1, 2, ..., with blocks I, J drawn at random and K visited in turn::

    v^P = ghat' qhat + (a_{t-1}/a_t) M sum_{i in I} (q_i grad l_i(w_{t-1}) - qhat_i ghat_i)
    w_t = argmin <v^P, w> + (mu/2)||w||^2 + (C/a_t)(1/2)||w - w_{t-1}||_H^2
                 + (c/a_t)(1/2) sum_{s=t-M}^{t-2} ||w - w_s||_H^2
    tables lhat, ghat <- values at w_t on block K
    v^D = lhat + (a_{t-1}/a_t) M sum_{j in J} (l_j(w_t) - lhat_j) e_j
    q_t = argmax <v^D, q> - nu D(q || p) - (A_{t-1}/a_t) nu Bregman_D(q, q_{t-1})
    table qhat <- q_t on block K

where the tables inside the sums are those of the iteration before. Two facts keep it lean. With
linear predictors ``grad l_i = x_i s_i``, so the tables qhat and ghat are one, of ``qhat s``:
a number a row and output. And the older tables equal today's except on the one block that was just
overwritten, so one copy and those b rows suffice.

Rows are dealt out to blocks, ``k, k + M, k + 2M, ...``: sorted data does no harm and X is not
copied. All vectors of length n are kept in the order of the blocks.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._validation import check_integer, check_number, check_option
from drago.metric import Metric, make_metric
from drago.problem import DROProblem
from drago.solvers.base import Iterate, Loop

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# Blocks under block_size="auto"; between 8 and 100 little changes.
_BLOCKS = 16
# Step size under step_size="auto", in a metric and without one, before the safeguard adapts it.
_STEP = 0.1
# The safeguard: by how much the estimated gap may grow over its best before the step is cut.
_GROWTH = 10.0
# And for how many epochs the certified gap may fail to halve.
_PATIENCE = 40
_CUT = 0.3
_LEAST_STEP = 1e-6


@dataclass(frozen=True)
class Drago:
    """Settings of DRAGO.

    Parameters
    ----------
    step_size : float or "auto"
        The alpha of the paper, ``a_t / a_{t-1} = 1 + alpha``. "auto" starts at 0.1 and is cut when
        the method does not converge.
    block_size : int, "auto" or "n/d"
        Rows a block; "n/d" is the paper's.
    metric : {"auto", "euclidean", "diagonal", "full"}
        The norm of the primal steps (`drago.metric`); "euclidean" is the paper's.
    start : {"stationary", "paper"}
        "stationary" runs the recursions as if from long ago, ``A_{t-1}/a_t = 1/alpha``, from the
        exact weights at the starting point; "paper" is ``A_0 = 0`` from the nominal weights.
    """

    step_size: float | str = "auto"
    block_size: int | str = "auto"
    metric: str = "auto"
    start: str = "stationary"
    name = "drago"

    def __post_init__(self) -> None:
        if self.step_size != "auto":
            check_number("step_size", self.step_size, low=0, open_low=True)
        if not isinstance(self.block_size, str):
            check_integer("block_size", self.block_size, low=1)
        else:
            check_option("block_size", self.block_size, ("auto", "n/d"))
        check_option("metric", self.metric, ("auto", "euclidean", "diagonal", "full"))
        check_option("start", self.start, ("stationary", "paper"))

    def check(self, problem: DROProblem) -> None:
        if problem.mu == 0 or (problem.nu == 0 and problem.kappa_q > 1):
            raise ValueError(
                "solver 'drago' needs l2_reg > 0 and shift_cost > 0, but they are "
                f"{problem.mu:g} and {problem.nu:g}; use solver='lbfgs'."
            )
        if problem.fit_intercept and self.start == "paper":
            raise ValueError("solver 'drago' fits an intercept only with start='stationary'.")
        whole = problem.constraint.bounds((problem.n_features, problem.n_outputs))
        free = whole is not None and not np.isfinite(np.concatenate(whole)).any()
        if not free and self.metric != "euclidean":
            raise ValueError(
                f"solver 'drago' handles {problem.constraint!r} with metric='euclidean' only."
            )

    def n_blocks(self, problem: DROProblem) -> int:
        """The number M of blocks."""
        n = problem.n_samples
        if self.block_size == "auto":
            return min(_BLOCKS, n)
        if self.block_size == "n/d":
            return min(n, problem.n_features)
        return -(-n // min(int(self.block_size), n))

    def run(self, problem: DROProblem, loop: Loop) -> str:
        step = _STEP if self.step_size == "auto" else float(self.step_size)
        rng = np.random.default_rng(loop.random_state)
        mean = None
        if problem.fit_intercept:
            mean = problem.weighted_rows(problem.p[:, None])[:, 0]
        metric = make_metric(problem, self.metric, mean)
        blocks = Blocks(problem, self.n_blocks(problem))
        w, b = loop.start
        run = Iterations(problem, blocks, metric, mean, self.start, step, w, b)
        watch = _Watch()
        while True:
            for i, j in rng.integers(0, blocks.count, size=(blocks.count, 2)):
                run.step(int(i), int(j))
            estimate = run.gap_estimate()
            sound = bool(np.isfinite(estimate) and np.isfinite(run.w).all())
            if sound and not watch.diverges(estimate):
                loop.observe(run.iterate(estimate, milestone=watch.suspicious))
                if not watch.stalls(loop.certified_gap):
                    continue
            if self.step_size != "auto":
                return f"step_size={step:g} is too large: the iterates do not converge"
            step *= _CUT
            if step < _LEAST_STEP:
                return "no step size made further progress"
            w, b = loop.best_point()
            spent = run
            run = Iterations(problem, blocks, metric, mean, self.start, step, w, b)
            run.continue_count(spent)
            watch = _Watch(loop.certified_gap)


class _Watch:
    """Tells divergence by the free estimate of the gap, stalling by the certified one."""

    def __init__(self, certified: float = np.inf) -> None:
        self.estimate, self.certified, self.epochs = np.inf, certified, 0

    @property
    def suspicious(self) -> bool:
        """Whether it is time to ask for a certificate."""
        return self.epochs >= _PATIENCE

    def diverges(self, estimate: float) -> bool:
        self.estimate = min(self.estimate, estimate)
        return estimate > _GROWTH * self.estimate

    def stalls(self, certified: float) -> bool:
        if certified <= 0.5 * self.certified and np.isfinite(certified):
            self.certified, self.epochs = certified, 0
            return False
        self.epochs += 1
        return self.epochs > _PATIENCE


class Blocks:
    """Rows dealt out to blocks, and products with one block.

    Parameters
    ----------
    problem : DROProblem
    count : int
        The number M of blocks; block k holds the rows k, k + M, k + 2M, ...
    """

    def __init__(self, problem: DROProblem, count: int) -> None:
        self.problem, self.count = problem, count
        n = problem.n_samples
        sizes = [len(range(k, n, count)) for k in range(count)]
        self.order = np.concatenate([np.arange(k, n, count) for k in range(count)])
        ends = np.concatenate([[0], np.cumsum(sizes)])
        self.slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self.y = np.ascontiguousarray(problem.y[self.order])
        X = problem.X
        if not problem.is_sparse and X.dtype != np.float64:
            self._rows = [None] * count
        elif not problem.is_sparse:
            self._rows = [X[k::count] for k in range(count)]

    def predict(self, k: int, w: Matrix, b: Vector) -> Matrix:
        """Raw predictions of block `k`."""
        X, size = self.problem.X, self.slices[k].stop - self.slices[k].start
        if self.problem.is_sparse:
            from drago.kernels.drago import csr_predict

            raw = np.empty((size, w.shape[1]))
            csr_predict(X.data, X.indices, X.indptr, k, self.count, w, raw)
        elif w.shape[1] == 1:
            raw = (self._block(k) @ w[:, 0])[:, None]
        else:
            raw = self._block(k) @ w
        raw += b
        return raw

    def accumulate(self, k: int, weights: Matrix) -> Matrix:
        """``X_k' weights``."""
        X = self.problem.X
        if self.problem.is_sparse:
            from drago.kernels.drago import csr_accumulate

            out = np.zeros((X.shape[1], weights.shape[1]))
            csr_accumulate(X.data, X.indices, X.indptr, k, self.count, weights, out)
            return out
        if weights.shape[1] == 1:
            return (self._block(k).T @ weights[:, 0])[:, None]
        return self._block(k).T @ weights

    def evaluate(self, k: int, w: Matrix, b: Vector) -> tuple[Vector, Matrix]:
        """Losses and slopes of block `k`."""
        return self.problem.loss.evaluate(self.y[self.slices[k]], self.predict(k, w, b))

    def _block(self, k: int) -> Any:
        rows = self._rows[k]
        if rows is None:
            return self.problem.X[k :: self.count].astype(np.float64)
        return rows


class Iterations:
    """The state of DRAGO and its iteration.

    Coordinates of ``w`` are the standard ones; the intercept is kept as ``shifted = b + mean'w``
    for features centred by their mean, so that the two do not interfere.
    """

    def __init__(
        self,
        problem: DROProblem,
        blocks: Blocks,
        metric: Metric,
        mean: Vector | None,
        start: str,
        step_size: float,
        w: Matrix,
        b: Vector,
    ) -> None:
        self.problem, self.blocks, self.metric, self.mean = problem, blocks, metric, mean
        self.stationary, self.alpha = start == "stationary", step_size
        self.p = np.ascontiguousarray(problem.p[blocks.order])
        groups = None if problem.groups is None else problem.groups[blocks.order]
        self.oracle = problem.uncertainty.oracle(self.p, problem.divergence, groups)
        self.t, self.n_calls, self.visits = 0, 0, 0
        self.w, self.b = w.copy(), b.copy()
        self._ring = np.repeat(self._packed()[None], blocks.count, axis=0)
        self._ring_sum = self._ring.sum(axis=0)
        self._fill_tables()
        self._last_k, self._last_j = -1, -1

    def _fill_tables(self) -> None:
        """One pass: losses, slopes, weights and their aggregate at the starting point."""
        problem, blocks = self.problem, self.blocks
        n, k = problem.n_samples, problem.n_outputs
        # The slopes and weights of the tables are only ever needed as their product qhat s.
        self.loss_table, self.product = np.empty(n), np.empty((n, k))
        for block, rows in enumerate(blocks.slices):
            self.loss_table[rows], self.product[rows] = blocks.evaluate(block, self.w, self.b)
        if self.stationary:
            self.q, self.mirror = self.oracle.step(self.loss_table, problem.nu, 0.0, np.zeros(n))
        else:
            self.q = self.p.copy()
            self.mirror = problem.divergence.mirror(self.q, self.p)
        self.product *= self.q[:, None]
        self.old_product = np.zeros((0, k))
        self.aggregate = np.zeros((problem.n_features, k))
        for block, rows in enumerate(blocks.slices):
            self.aggregate += blocks.accumulate(block, self.product[rows])
        self.aggregate_b = self.product.sum(axis=0)
        self.n_calls += n
        self.visits += n

    def _constants(self) -> tuple[float, float, float]:
        """``a_{t-1}/a_t``, ``A_{t-1}/a_t`` and ``c_{t-1}/a_t`` of this iteration."""
        alpha, m = self.alpha, self.blocks.count
        c = 0.0 if m == 1 else 1.0 / (16.0 * alpha * (1.0 + alpha) * (m - 1) ** 2)
        if self.stationary:
            return 1.0 / (1.0 + alpha), 1.0 / alpha, c
        if self.t == 1:
            return 0.0, 0.0, 0.0
        return 1.0 / (1.0 + alpha), -np.expm1((1 - self.t) * np.log1p(alpha)) / alpha, c

    def _packed(self) -> Matrix:
        """``w`` and, below it, the shifted intercept."""
        if self.mean is None:
            return self.w
        return np.vstack([self.w, self.b + self.mean @ self.w])

    def step(self, i: int, j: int) -> None:
        """One iteration with the blocks I = `i` and J = `j`."""
        self.t += 1
        problem, blocks, m = self.problem, self.blocks, self.blocks.count
        ratio, beta, c = self._constants()
        # Primal: the table before the last overwrite is today's but for that block.
        rows = blocks.slices[i]
        if i == self._last_k:
            fresh, old = self.product[rows], self.old_product
        else:
            _, slopes = blocks.evaluate(i, self.w, self.b)
            fresh, old = self.q[rows][:, None] * slopes, self.product[rows]
            self.n_calls += 0 if i == self._last_j else rows.stop - rows.start
        self.visits += rows.stop - rows.start
        change = (ratio * m) * (fresh - old)
        self._move(self.aggregate + blocks.accumulate(i, change), change.sum(axis=0), beta, c)
        # Table of losses on block K, and its new slopes.
        k = self.t % m
        rows_k = blocks.slices[k]
        losses, slopes = blocks.evaluate(k, self.w, self.b)
        old_losses = self.loss_table[rows_k].copy()
        self.loss_table[rows_k] = losses
        self.n_calls += rows_k.stop - rows_k.start
        # Dual.
        rows_j = blocks.slices[j]
        dual_grad = self.loss_table.copy()
        if j == k:
            dual_grad[rows_j] += (ratio * m) * (losses - old_losses)
        else:
            losses_j, _ = blocks.evaluate(j, self.w, self.b)
            dual_grad[rows_j] += (ratio * m) * (losses_j - self.loss_table[rows_j])
            self.n_calls += rows_j.stop - rows_j.start
        self.q, self.mirror = self.oracle.step(
            dual_grad, problem.nu, beta * problem.nu, self.mirror
        )
        # Tables of weights and slopes on block K, and the aggregate.
        self.old_product = self.product[rows_k].copy()
        self.product[rows_k] = self.q[rows_k][:, None] * slopes
        difference = self.product[rows_k] - self.old_product
        self.aggregate += blocks.accumulate(k, difference)
        self.aggregate_b += difference.sum(axis=0)
        self.visits += (rows_k.stop - rows_k.start) + (rows_j.stop - rows_j.start)
        self._last_k, self._last_j = k, j

    def _move(self, grad: Matrix, change_b: Vector, beta: float, c: float) -> None:
        """The primal step: a proximal step in the metric from a mean of past points."""
        m, mu, h = self.blocks.count, self.problem.mu, self.metric.eigenvalues[:, None]
        here = self._packed()
        past = (beta - (m - 1) * c) * here + c * (self._ring_sum - here)
        d = self.problem.n_features
        grad_b = self.aggregate_b + change_b
        if self.mean is not None:
            grad = grad - np.outer(self.mean, grad_b)
        rotated = self.metric.rotate(np.concatenate([past[:d], grad], axis=1))
        k = self.w.shape[1]
        moved = (h * rotated[:, :k] - rotated[:, k:]) / (mu + beta * h)
        self.w = self.problem.constraint.project(self.metric.back(moved))
        if self.mean is not None:
            shifted = (past[d] - grad_b / self.metric.intercept) / beta
            self.b = shifted - self.mean @ self.w
        place = self.t % m
        packed = self._packed()
        self._ring_sum += packed - self._ring[place]
        self._ring[place] = packed

    def gap_estimate(self) -> float:
        """The gap as the tables see it; no visit to the data."""
        problem = self.problem
        exact = self.oracle.weights(self.loss_table, problem.nu)
        value = [
            float(np.dot(q, self.loss_table)) - problem.nu * problem.divergence.value(q, self.p)
            for q in (exact, self.q)
        ]
        grad = self.aggregate + problem.mu * self.w
        if self.mean is not None:
            grad = grad - np.outer(self.mean, self.aggregate_b)
        rotated = self.metric.rotate(grad)
        inner = 0.5 * float((rotated**2 / self.metric.eigenvalues[:, None]).sum())
        if self.mean is not None:
            inner += 0.5 * float((self.aggregate_b**2).sum()) / self.metric.intercept
        return max(value[0] - value[1], 0.0) + inner

    def iterate(self, estimate: float, milestone: bool = False) -> Iterate:
        """Where the method stands, with rows in the problem's order."""
        q = np.empty_like(self.q)
        q[self.blocks.order] = self.q
        return Iterate(
            w=self.w,
            b=self.b,
            n_iter=self.t,
            n_passes=self.visits / self.problem.n_samples,
            n_oracle_calls=self.n_calls,
            q=q,
            gap_estimate=estimate,
            milestone=milestone,
        )

    def continue_count(self, before: Iterations) -> None:
        """Carry the counts of an abandoned run on."""
        self.t += before.t
        self.visits += before.visits
        self.n_calls += before.n_calls
