"""DRAGO's iteration: Algorithm 1 of Mehta, Diakonikolas and Harchaoui (2024).

For t = 1, 2, ..., with blocks I, J drawn at random and K visited in turn::

    v^P = ghat' qhat + (a_{t-1}/a_t) M sum_{i in I} (q_i grad l_i(w_{t-1}) - qhat_i ghat_i)
    w_t = argmin <v^P, w> + (mu/2)||w||^2 + (C/a_t)(1/2)||w - w_{t-1}||_H^2
                 + (c/a_t)(1/2) sum_{s=t-M}^{t-2} ||w - w_s||_H^2
    tables lhat, ghat <- values at w_t on block K
    v^D = lhat + (a_{t-1}/a_t) M sum_{j in J} (l_j(w_t) - lhat_j) e_j
    q_t = argmax <v^D, q> - nu D(q || p) - (A_{t-1}/a_t) nu Bregman_D(q, q_{t-1})
    table qhat <- q_t on block K

where the tables inside the sums are those of the iteration before. Three facts keep it lean. With
linear predictors ``grad l_i = x_i s_i``, so the tables qhat and ghat are one, of ``qhat s``: a
number a row and output. The older tables equal today's except on the one block that was just
overwritten. And the sum over that block of what changed is what the aggregate ``ghat' qhat``
changed by, so the data need not be visited for it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from drago.files.checkpoint import State
from drago.loop.loop import Iterate
from drago.metric import Metric, is_box
from drago.problem import DROProblem, Evaluation, NonFiniteLossError
from drago.solvers.drago.blocks import Blocks
from drago.solvers.drago.saved import check_iterations
from drago.solvers.drago.steps import StepRule, Steps, UnregularisedSteps
from drago.solvers.drago.unsettled import Unsettled

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

_NONE = np.empty((0, 0))


@cache
def _kernels() -> Any:
    """Imported once: the statement takes as long as a kernel does on a few rows."""
    from drago.kernels import drago

    return drago


class Iterations:
    """The state of DRAGO and its iteration.

    Coordinates of ``w`` are the standard ones; the intercept is kept as ``shifted = b + mean'w``
    for features centred by their mean, so that the two do not interfere.

    Parameters
    ----------
    problem : DROProblem
    blocks : Blocks
    metric : Metric
    mean : array of shape (n_features,) or None
        Mean of the features, where an intercept is fitted.
    start : Evaluation
        Where to start, and the losses there.
    q : array of shape (n,) or "exact" or "nominal"
        The weights to start with, in the problem's order; "exact" are those at the start.

    Attributes
    ----------
    steps : callable
        ``(t, M, nu) -> Weights``; may be replaced before the first step.
    least_round : int
        Iterations in a round, at the least.
    kind : {"blocks", "support", "lagged"}
        What it is to a saved solve.
    """

    kind = "blocks"
    least_round = 4
    steps: StepRule = Steps(0.1, 0.1, True)

    def __init__(
        self,
        problem: DROProblem,
        blocks: Blocks,
        metric: Metric,
        mean: Vector | None,
        start: Evaluation,
        q: Vector | str = "exact",
    ) -> None:
        self._prepare(problem, blocks, metric, mean)
        self._begin_at(start.w.copy(), start.b.copy())
        self._fill_tables(start, q)

    def _begin_at(self, w: Matrix, b: Vector) -> None:
        self.t, self.n_calls, self.visits = 0, 0, 0
        self._offset = 0  # iterations of abandoned runs
        self.w, self.b = self._mean_w, self._mean_b = w, b
        self._begin_history()
        self._last_k, self._last_j = -1, -1
        self._is_fresh = True  # whether the tables hold the present point
        self._last_change, self._last_change_b = np.zeros(w.shape), np.zeros(b.shape)

    def _begin_history(self) -> None:
        """The last M points, and their sum."""
        packed, count = self._packed(), self.blocks.count
        self._ring, self._ring_sum = np.empty((count, *packed.shape)), count * packed
        self._ring[:] = packed

    def _prepare(
        self, problem: DROProblem, blocks: Blocks, metric: Metric, mean: Vector | None
    ) -> None:
        self.problem, self.blocks, self.metric, self.mean = problem, blocks, metric, mean
        as_it_is = blocks.count == 1 or problem.p.min() == problem.p.max()
        self.p = problem.p if as_it_is else blocks.gather(problem.p)
        if not as_it_is:
            self.p.flags.writeable = False  # as the problem's is: to Numba a type of its own
        groups = None if problem.groups is None else blocks.gather(problem.groups)
        # Each starts its search where its last one ended, so there is one for each purpose.
        self.oracle, self._estimator = (
            problem.uncertainty.oracle(self.p, problem.divergence, groups) for _ in range(2)
        )
        self._u = np.empty(problem.n_samples)
        self._unsettled = Unsettled.made_for(problem, blocks.slices, self.oracle, self._u)
        self._losses = np.empty((2, blocks.largest))
        self._slopes = np.empty((2, blocks.largest, problem.n_outputs))

    @property
    def q(self) -> Vector:
        """The weights, in the order of the blocks."""
        if self._unsettled is not None:
            self._unsettled.write(self._q)
        return self._q

    @q.setter
    def q(self, weights: Vector) -> None:
        self._q = weights
        if self._unsettled is not None:
            self._unsettled.clear()

    def _weights_of(self, block: int) -> Vector:
        if self._unsettled is not None:
            self._unsettled.write(self._q, [block])
        return self._q[self.blocks.slices[block]]

    _COUNTS = ("t", "n_calls", "visits", "_offset", "_last_k", "_last_j", "_is_fresh")
    _ARRAYS: tuple[str, ...] = (
        "w", "b", "_mean_w", "_mean_b", "_ring", "_ring_sum", "loss_table", "product", "q",
        "mirror", "aggregate", "aggregate_b", "_last_change", "_last_change_b",
    )  # fmt: skip

    def state(self) -> State:
        """Everything that the next step depends on."""
        arrays = {name: getattr(self, name) for name in self._ARRAYS}
        counts = {name: int(getattr(self, name)) for name in self._COUNTS}
        memories = self.memories
        return arrays, {
            "counts": counts,
            "oracle": memories["oracle"],
            "estimator": memories["estimator"],
            "rule": type(self.steps).__name__,
            "steps": dict(vars(self.steps)),
            "unsettled": memories["unsettled"],
        }

    @property
    def memories(self) -> dict[str, dict[str, float]]:
        """Where the searches for weights ended, and what the lists of rows, if any, have learnt."""
        lists = {} if self._unsettled is None else dict(self._unsettled.memory)
        searches = {"oracle": self.oracle.memory, "estimator": self._estimator.memory}
        return {**searches, "unsettled": lists}

    @classmethod
    def restored(
        cls,
        problem: DROProblem,
        blocks: Blocks,
        metric: Metric,
        mean: Vector | None,
        state: State,
        rules: tuple[type[Any], ...],
    ) -> Iterations:
        """The iterations that were in this state; `rules` are what their steps may be of."""
        self = cls.__new__(cls)
        self._prepare(problem, blocks, metric, mean)
        by_name = {rule.__name__: rule for rule in rules}
        check_iterations(self, tuple(by_name), state)
        arrays, settings = state
        for name in cls._ARRAYS:
            setattr(self, name, arrays[name])
        for name, value in settings["counts"].items():
            setattr(self, name, value)
        self.oracle.memory = settings["oracle"]
        self._estimator.memory = settings["estimator"]
        if self._unsettled is not None:
            self._unsettled.memory = settings["unsettled"]
        self.steps = object.__new__(by_name[settings["rule"]])
        vars(self.steps).update(settings["steps"])
        return self

    def _fill_tables(self, start: Evaluation, q: Vector | str) -> None:
        """Losses, slopes, weights and their aggregate at the starting point."""
        problem, blocks = self.problem, self.blocks
        n = problem.n_samples
        # The slopes and weights of the tables are only ever needed as their product qhat s.
        self.loss_table, self.product = blocks.gather(start.losses), self._first_slopes(start)
        # The mirror coordinate of chi2, q/p, is not worth a vector of its own.
        self.q = np.empty(n)
        self.mirror = np.empty(n) if problem.divergence.name == "kl" else np.empty(0)
        if isinstance(q, str) and q == "exact":
            self.oracle.solve_into(self.loss_table, problem.nu, self.q, self.mirror)
            if problem.nu == 0 and problem.divergence.name == "kl":
                # A vertex has no mirror coordinate to start from.
                q = 0.5 * (self.q + self.p)
                self.q[:] = q
        else:
            self.q[:] = self.p if isinstance(q, str) else blocks.gather(q)
        if not (isinstance(q, str) and q == "exact") and self.mirror.size:
            problem.divergence._mirror(self.q, self.p, out=self.mirror)
        self._fill_aggregate(start)
        self.n_calls += n
        self.visits += n

    def refresh(self, here: Evaluation) -> None:
        """Fill the tables anew, at the present point, with its exact weights."""
        self._last_k, self._last_j = -1, -1
        self._fill_tables(here, "exact")
        self._is_fresh = True

    def round(self, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
        """A round of iterations, see `run_round`."""
        found = run_round(self, pairs, refresh)
        if self._unsettled is not None:
            self._unsettled.forget(self._q)  # a resumed run has no lists either
        return found

    def _first_slopes(self, start: Evaluation) -> Matrix:
        return self.blocks.gather(start.dlosses)

    def _fill_aggregate(self, start: Evaluation) -> None:
        self.product *= self.q[:, None]
        self.aggregate = np.zeros(self.w.shape)
        for block, rows in enumerate(self.blocks.slices):
            self.aggregate += self.blocks.accumulate(block, self.product[rows])
        self.aggregate_b = self.product.sum(axis=0)

    def _packed(self) -> Matrix:
        """``w`` and, below it, the shifted intercept."""
        if self.mean is None:
            return self.w
        return np.vstack([self.w, self.b + self.mean @ self.w])

    def step(self, i: int, j: int) -> None:
        """One iteration with the blocks I = `i` and J = `j`."""
        self.t += 1
        m = self.blocks.count
        ratio, near, far, dual = self.steps(self.t, m, self.problem.nu)
        grad, grad_b = self._primal_gradient(i, ratio * m)
        self._move(grad, grad_b, near, far)
        k = self.t % m
        self._dual_step(j, k, ratio * m, dual)
        self._last_k, self._last_j, self._is_fresh = k, j, False

    def _primal_gradient(self, i: int, scale: float) -> tuple[Matrix, Vector]:
        """``v^P``, and the same for the intercept."""
        change, change_b = self._primal_correction(i)
        return self.aggregate + scale * change, self.aggregate_b + scale * change_b

    def _primal_correction(self, i: int) -> tuple[Matrix, Vector]:
        """``sum over the block of x (q s - (qhat s before the last overwrite))``."""
        rows = self.blocks.slices[i]
        size = rows.stop - rows.start
        self.visits += size
        if i == self._last_k:
            return self._last_change, self._last_change_b
        self.n_calls += 0 if i == self._last_j else size
        room = self._losses[0, :size], self._slopes[0, :size]
        before = self._older_product(rows)
        q = self._weights_of(i)
        return self.blocks.correction(i, self.w, self.b, q, before, *room)

    def _older_product(self, rows: slice) -> Matrix:
        """The table ``qhat s`` of the iteration before on a block that was not overwritten."""
        return self.product[rows]

    def _dual_step(self, j: int, k: int, scale: float, s: float) -> None:
        """Tables of losses on block `k`, the dual step with block `j`, tables of weights."""
        blocks = self.blocks
        rows_k, rows_j = blocks.slices[k], blocks.slices[j]
        size_k, size_j = rows_k.stop - rows_k.start, rows_j.stop - rows_j.start
        losses_j, slopes = self._losses[1, :size_j], self._slopes[0, :size_k]
        if j == k:
            blocks.evaluate(k, self.w, self.b, losses_j, slopes)
            losses = losses_j.copy()
            _kernels().scaled_change(losses_j, self._older_losses(rows_j), scale)
            self._table_of_losses(rows_k)[:] = losses
        else:
            blocks.losses_of(j, self.w, self.b, losses_j, self._slopes[1, :size_j])
            _kernels().scaled_change(losses_j, self._older_losses(rows_j), scale)
            blocks.evaluate(k, self.w, self.b, self._table_of_losses(rows_k), slopes)
            self.n_calls += size_j
        self._weigh(j, losses_j, k, s)
        self._update_product(k, slopes)
        self.n_calls += size_k
        self.visits += size_k + size_j

    def _weigh(self, j: int, change: Vector, k: int, s: float) -> None:
        """New weights, with a `change` to the table on block `j`; that of block `k` is new."""
        lists, nu = self._unsettled, self.problem.nu
        if lists is not None and lists.step(self.loss_table, self._q, j, change, k, nu, s):
            return
        self._fill_argument(s)
        self._u[self.blocks.slices[j]] += change
        if lists is None:
            self.oracle.solve_into(self._u, nu + s, self._q, self.mirror)
        else:
            before = self.oracle._tau  # type: ignore[attr-defined]
            self.oracle.solve_into(self._u, nu + s, self._q, self.mirror)
            lists.observe(before)

    def _fill_argument(self, s: float) -> None:
        """What the dual oracle takes: the table of losses plus `s` times the mirror coordinate."""
        if self.mirror.size:
            _kernels().proximal_argument(self.loss_table, s, self.mirror, self._u)
        else:
            _kernels().proximal_argument_chi2(self.loss_table, s, self._q, self.p, self._u)

    def _update_product(self, k: int, slopes: Matrix) -> None:
        """The table ``qhat s`` on block `k`, and its aggregate."""
        rows = self.blocks.slices[k]
        self._last_change_b = self._renew_product(rows, slopes, self._weights_of(k))
        self._last_change = self.blocks.accumulate(k, slopes)
        self.aggregate += self._last_change
        self.aggregate_b += self._last_change_b

    def _older_losses(self, rows: slice) -> Vector:
        """The table of losses before this iteration."""
        return self.loss_table[rows]

    def _table_of_losses(self, rows: slice) -> Vector:
        """Where the new losses of a block go."""
        return self.loss_table[rows]

    def _renew_product(self, rows: slice, slopes: Matrix, q: Vector) -> Vector:
        """Set the table to ``q slopes``; `slopes` becomes the change, whose sum is returned."""
        product = self.product[rows]
        if product.shape[1] == 1:
            return np.array([_kernels().renew(slopes[:, 0], q, product[:, 0])])
        slopes *= q[:, None]
        slopes -= product
        product += slopes
        return slopes.sum(axis=0)

    def _window(self, here: Matrix) -> Matrix:
        """The sum of the M - 1 points before the last one, w_{t-M} ... w_{t-2}."""
        return self._ring_sum - here

    def _move(self, grad: Matrix, grad_b: Vector, near: float, far: float) -> None:
        """The primal step: a proximal step in the metric from a mean of past points."""
        problem, metric, m = self.problem, self.metric, self.blocks.count
        mu, weight = problem.mu, near + (m - 1) * far
        here = self._packed()
        window = self._window(here) if far else here
        if self.mean is not None:
            grad = grad - np.outer(self.mean, grad_b)
        basis = _NONE if metric.basis is None else np.ascontiguousarray(metric.basis)
        eigenvalues, moved = metric.eigenvalues, np.empty(grad.shape)
        _kernels().proximal_point(
            here, window, near, far, grad, eigenvalues, basis, mu, weight, moved
        )
        self.w = moved
        if not problem.constraint.is_everything:
            scale = mu + weight * eigenvalues[:, None]
            self.w = metric.project(problem.constraint, moved, scale)
        if self.mean is not None:
            past = near * here[-1] + far * window[-1]
            self.b = (past - grad_b / metric.intercept) / weight - self.mean @ self.w
        place = self.t % m
        packed = self._packed()
        self._ring_sum += packed - self._ring[place]
        self._ring[place] = packed

        self._mean_w, self._mean_b = self._averaged()

    def _averaged(self) -> tuple[Matrix, Vector]:
        """``sum a_t w_t / A_T`` for the variant whose bound is on it; the last point otherwise."""
        if not isinstance(self.steps, UnregularisedSteps):
            return self.w, self.b
        share = self.steps.a / self.steps.total
        return (
            self._mean_w + share * (self.w - self._mean_w),
            self._mean_b + share * (self.b - self._mean_b),
        )

    def average(self) -> tuple[Matrix, Vector]:
        """The weighted mean of the iterates."""
        return self._mean_w, self._mean_b

    def continue_count(self, before: Iterations) -> None:
        """Carry the counts of an abandoned run on."""
        self._offset = before.t + before._offset
        self.visits += before.visits
        self.n_calls += before.n_calls

    def estimates(self) -> tuple[float, float]:
        """The gap and the objective as the tables see them; no visit to the data."""
        problem = self.problem
        if self._unsettled is not None:
            self._unsettled.forget(self._q)  # the lists lie in _u
        best, value = self._values()
        grad = self.aggregate + problem.mu * self.w
        if self.mean is not None:
            grad = grad - np.outer(self.mean, self.aggregate_b)
        if is_box(problem):  # what a bound holds is no slope
            box = problem.constraint.bounds(grad.shape)
            assert box is not None
            held = ((self.w <= box[0]) & (grad > 0)) | ((self.w >= box[1]) & (grad < 0))
            grad = np.where(held, 0.0, grad)
        rotated = self.metric.rotate(grad)
        inner = 0.5 * float((rotated**2 / self.metric.eigenvalues[:, None]).sum())
        if self.mean is not None:
            inner += 0.5 * float((self.aggregate_b**2).sum()) / self.metric.intercept
        primal = best + 0.5 * problem.mu * float(np.vdot(self.w, self.w))
        return max(best - value, 0.0) + inner, primal

    def _values(self) -> tuple[float, float]:
        """``<l, q> - nu D(q || p)`` with the table's losses, of the best weights and of these."""
        nu, exact, table = self.problem.nu, self._u, self.loss_table
        self._estimator.solve_into(table, nu, exact)
        divergence = self.problem.divergence
        best, value = (
            float(np.dot(q, table)) - nu * divergence._value(q, self.p) for q in (exact, self.q)
        )
        return best, value

    @property
    def n_iter(self) -> int:
        """Iterations, those of abandoned runs included."""
        return self.t + self._offset

    def iterate(self, here: Evaluation | None = None, optimism: float = 1.0) -> Iterate:
        """Where the method stands, with rows in the problem's order.

        Parameters
        ----------
        here : Evaluation, optional
            Of this point, where there is one.
        optimism : float
            What the estimate of the gap is multiplied with.
        """
        gap, primal = self.estimates()
        return Iterate(
            w=self.w,
            b=self.b,
            n_iter=self.n_iter,
            n_passes=self.visits / self.problem.n_samples,
            n_oracle_calls=self.n_calls,
            evaluation=here,
            q=self.blocks.scatter(self.q),
            gap_estimate=optimism * gap,
            primal_estimate=primal,
        )


def run_round(state: Any, pairs: Sequence[tuple[int, int]], refresh: bool) -> Evaluation | None:
    """Iterations with these blocks I and J; then, with `refresh`, a visit to all rows.

    Returns that visit, or None where there was none or the losses are no numbers. `state` are the
    iterations of any engine.
    """
    for i, j in pairs:
        state.step(i, j)
    if not refresh or not np.isfinite(state.w).all():
        return None
    try:
        here = state.problem.evaluate(state.w, state.b)
    except NonFiniteLossError:
        return None
    state.refresh(here)
    return here
