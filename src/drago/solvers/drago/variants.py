"""Two variants of DRAGO's iteration: an exact primal gradient, and the paper's Algorithm 2."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drago.files.checkpoint import State
from drago.problem import Evaluation
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import SecantSteps

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class SupportIterations(Iterations):
    """The exact primal gradient over the rows that carry weight, instead of an estimate.

    Where the tail is thin, most rows have the weight 0 and add nothing to ``sum_i q_i grad l_i``:
    its exact value costs no more than a block, and the noise of ``v^P``, which the thin tail makes
    large and which forces small steps, is gone. The tables ``qhat`` and ``ghat`` are not needed.
    """

    # The point and the gradient of the last iteration.
    _past_point: Matrix = np.empty((0, 0))
    _past_slope: Matrix = np.empty((0, 0))
    _ARRAYS = (*Iterations._ARRAYS, "_past_point", "_past_slope", "_slopes")
    kind = "support"

    def state(self) -> State:
        arrays, settings = super().state()
        arrays["_slopes"] = np.zeros(self._slopes.shape)  # the rest of it is what memory held
        for block, slopes in self._known_slopes().items():
            place = 0 if block == self._last_k else 1
            arrays["_slopes"][place, : slopes.shape[0]] = slopes
        return arrays, settings

    def _first_slopes(self, start: Evaluation) -> Matrix:
        return np.empty((0, start.dlosses.shape[1]))  # there is no such table

    def _fill_aggregate(self, start: Evaluation) -> None:
        counts = self.visits, self.n_calls
        self._exact_gradient()
        self.visits, self.n_calls = counts  # the start's own

    def _known_slopes(self) -> dict[int, Matrix]:
        """Those of the blocks that the last iteration visited."""
        known = {}
        if self._last_k >= 0:
            sizes = [rows.stop - rows.start for rows in self.blocks.slices]
            if self._last_j != self._last_k:
                known[self._last_j] = self._slopes[1, : sizes[self._last_j]]
            known[self._last_k] = self._slopes[0, : sizes[self._last_k]]
        return known

    def _exact_gradient(self) -> None:
        found = self.blocks.gradient(self.q, self.w, self.b, self._known_slopes())
        self.aggregate, self.aggregate_b, size = found
        self.visits += size
        self.n_calls += size

    def step(self, i: int, j: int) -> None:
        if not self._is_fresh:
            self._exact_gradient()
        if isinstance(self.steps, SecantSteps):
            self._learn_from_the_last_step(self.steps)
        super().step(i, j)

    def _primal_gradient(self, i: int, scale: float) -> tuple[Matrix, Vector]:
        return self.aggregate, self.aggregate_b

    def _learn_from_the_last_step(self, steps: SecantSteps) -> None:
        """The change of the gradient along the last step, by the length of the step squared."""
        d, point, slope = self.problem.n_features, self._packed(), self.aggregate
        if self.mean is not None:
            slope = slope - np.outer(self.mean, self.aggregate_b)
            slope = np.vstack([slope, self.aggregate_b])
        if self._past_point.size:
            moved = point - self._past_point
            turned = self.metric.rotate(moved[:d])
            size = float(np.vdot(turned, self.metric.eigenvalues[:, None] * turned))
            size += self.metric.intercept * float(np.vdot(moved[d:], moved[d:]))
            if size > 0:
                steps.learn(float(np.vdot(moved, slope - self._past_slope)) / size)
        self._past_point, self._past_slope = point, slope

    def _update_product(self, k: int, slopes: Matrix) -> None:
        pass


class LaggedIterations(Iterations):
    """The paper's Algorithm 2, "Implementation Version", as printed.

    It differs from Algorithm 1 in four places: the tables inside the sums are a whole cycle older,
    the weights of the proximal terms have a further ``1/(1+alpha)`` (`LaggedSteps`), the window of
    past points is ``t-M+1 ... t-1``, and the dual correction of the first iteration is kept.
    """

    _ARRAYS = (*Iterations._ARRAYS, "old_losses", "old_product")
    kind = "lagged"

    def _fill_tables(self, start: Evaluation, q: Vector | str) -> None:
        super()._fill_tables(start, q)
        self.old_losses, self.old_product = self.loss_table.copy(), self.product.copy()

    def _older_product(self, rows: slice) -> Matrix:
        return self.old_product[rows]

    def _older_losses(self, rows: slice) -> Vector:
        return self.old_losses[rows]

    def _table_of_losses(self, rows: slice) -> Vector:
        self.old_losses[rows] = self.loss_table[rows]
        return super()._table_of_losses(rows)

    def _renew_product(self, rows: slice, slopes: Matrix, q: Vector) -> Vector:
        self.old_product[rows] = self.product[rows]
        return super()._renew_product(rows, slopes, q)

    def _window(self, here: Matrix) -> Matrix:
        return self._ring_sum - self._ring[self.t % self.blocks.count]
