"""Two variants of DRAGO's iteration: an exact primal gradient, and the paper's Algorithm 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago.rows.tables.base import Small
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import SecantSteps


class SupportIterations(Iterations):
    """The exact primal gradient over the rows that carry weight, instead of an estimate.

    Where the tail is thin, most rows have the weight 0 and add nothing to ``sum_i q_i grad l_i``:
    its exact value costs no more than a block, and the noise of ``v^P``, which the thin tail makes
    large and which forces small steps, is gone. The tables ``qhat`` and ``ghat`` are not needed.
    """

    kind = "support"
    # The point and the gradient of the last iteration.
    _past_point: Small = np.empty((0, 0))
    _past_slope: Small = np.empty((0, 0))
    _SMALL = (*Iterations._SMALL, "past_point", "past_slope")

    def step(self, i: int, j: int) -> None:
        if isinstance(self.steps, SecantSteps):
            if not self._is_fresh:
                self._exact_gradient()
                self._is_fresh = True
            self._learn_from_the_last_step(self.steps)
        super().step(i, j)

    def _knows(self, i: int) -> bool:
        return self._is_fresh

    def _count(self, i: int, j: int, k: int, known: bool) -> None:
        sizes = self.tables.sizes
        self._visits += sizes[k] + sizes[j]
        self._calls += sizes[k] + (0 if j == k else sizes[j])

    def _exact_gradient(self) -> None:
        grad, grad_b = self.tables.gradient(self._w, self._b)
        self._aggregate = self.tables.kept(self._aggregate, grad)
        self._aggregate_b = self.tables.kept(self._aggregate_b, grad_b)

    def _primal_gradient(self, i: Any, scale: Any, known: Any) -> tuple[Small, Small]:
        if known is not True:
            self._exact_gradient()
        return self._aggregate, self._aggregate_b

    def _learn_from_the_last_step(self, steps: SecantSteps) -> None:
        """The change of the gradient along the last step, by the length of the step squared."""
        d, point, slope = self.problem.n_features, self._packed(), self._aggregate
        if self.mean is not None:
            slope = slope - np.outer(self.mean, self._aggregate_b)
            slope = np.vstack([slope, self._aggregate_b])
        if self._past_point.size:
            moved = point - self._past_point
            turned = self.metric.rotate(moved[:d])
            size = float(np.vdot(turned, self.metric.eigenvalues[:, None] * turned))
            size += self.metric.intercept * float(np.vdot(moved[d:], moved[d:]))
            if size > 0:
                steps.learn(float(np.vdot(moved, slope - self._past_slope)) / size)
        self._past_point, self._past_slope = point, slope

    def _renew(self, k: Any, slopes: Any) -> None:
        pass


class LaggedIterations(Iterations):
    """The paper's Algorithm 2, "Implementation Version", as printed.

    It differs from Algorithm 1 in four places: the tables inside the sums are a whole cycle older,
    the weights of the proximal terms have a further ``1/(1+alpha)`` (`LaggedSteps`), the window of
    past points is ``t-M+1 ... t-1``, and the dual correction of the first iteration is kept.
    """

    kind = "lagged"

    def _window(self, here: Small, k: Any) -> Small:
        return self._ring_sum - self._ring[k]
