"""Divergence balls: weights within a given distance of the nominal ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago import kernels
from drago._threads import vector_threads
from drago._validation import check_number
from drago.terms.divergences import Divergence, as_divergence
from drago.terms.uncertainty.base import DualOracle, Response, UncertaintySet, Vector, price

# Spreads of losses that the oracle takes as they are.
_SCALE = (1e-100, 1e100)


class _Ball(UncertaintySet):
    """What the balls have in common: ``D(q || p) <= radius`` with `own_divergence`."""

    own_divergence: str

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self._check()

    def _check(self) -> None:
        check_number("radius", self.radius, low=0)

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return BallOracle(self, divergence, p, self.radius)

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        return as_divergence(self.own_divergence)._value(q, p) - self.radius


class Chi2Ball(_Ball):
    """Weights within a chi2 distance: ``1/2 sum_i (q_i - p_i)^2 / p_i <= radius``.

    Parameters
    ----------
    radius : float >= 0
        0 is the mean.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=drago.Chi2Ball(0.1),
    ...                            shift_cost=0.0)
    >>> q = problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> round(float(0.5 * np.sum((q - 0.25) ** 2 / 0.25)), 6)  # all of the radius is used
    0.1
    """

    short_name = "chi2_ball"

    own_divergence = "chi2"

    def __init__(self, radius: float = 1.0) -> None:
        super().__init__(radius)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        return np.minimum(p + np.sqrt(2.0 * self.radius * p * np.maximum(1.0 - p, 0.0)), 1.0) / p


class KLBall(_Ball):
    """Weights within a KL distance: ``sum_i q_i log(q_i / p_i) <= radius``.

    Parameters
    ----------
    radius : float >= 0
        0 is the mean.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=drago.KLBall(0.1),
    ...                            shift_cost=0.0)
    >>> q = problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> round(float(np.sum(q * np.log(4 * q))), 6)
    0.1
    """

    short_name = "kl_ball"

    own_divergence = "kl"

    def __init__(self, radius: float = 0.5) -> None:
        super().__init__(radius)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        # The largest x of a row of mass a solves
        # a x log x + (1 - a x) log((1 - a x) / (1 - a)) = radius.
        mass, back = np.unique(p, return_inverse=True)
        low, high = np.ones_like(mass), 1.0 / mass
        for _ in range(200):
            x = 0.5 * (low + high)
            rest = np.maximum(1.0 - mass * x, 0.0)
            with np.errstate(divide="ignore", invalid="ignore"):
                other = np.where(rest > 0, rest * np.log(rest / (1.0 - mass)), 0.0)
            inside = mass * x * np.log(x) + other <= self.radius
            low, high = np.where(inside, x, low), np.where(inside, high, x)
        return np.where(-np.log(mass) <= self.radius, 1.0 / mass, high)[back]


class BallOracle(DualOracle):
    """``D(q || p) <= radius`` with the ball's own divergence."""

    family = 1
    _remembered = ("_start", "_effective")

    def __init__(self, uncertainty: Any, divergence: Divergence, p: Vector, radius: float) -> None:
        super().__init__(uncertainty, divergence, p)
        self.radius = float(radius)
        self._start = np.nan
        self._effective = np.nan

    @property
    def parameter(self) -> float:
        return self.radius

    def _fill(self, u: Vector, c: float, q: Vector, mirror: Vector) -> None:
        spread = float(u.max() - u.min())
        if not _SCALE[0] < spread < _SCALE[1] and spread > 0:
            # Squares of the losses would leave the range of floating point.
            u, c = (u - u.max()) / spread, min(c / spread, _SCALE[1])
        c = price(c)
        given, n_threads = (u, self.p, c, self.radius, self._start, q), vector_threads(u.size)
        if self.divergence.is_chi2:
            out = kernels.chi2_ball(*given, n_threads)
            self._mirror(q, mirror)
        else:
            out = kernels.kl_ball(*given, mirror, n_threads)
            if c == 0 and out[0] == 0:  # a vertex: the kernel knows no mirror coordinate
                self._mirror(q, mirror)
        self._effective, self._start = out

    def _respond(self, u: Vector, c: float, q: Vector | None) -> tuple[Vector, Response | None]:
        q = self.weights(u, c)
        effective = self._effective
        if not 0 < effective < np.inf:
            return q, None
        rate = self._rate(q, effective)
        free = q > 0
        direction = None
        if effective > c * (1 + 1e-12):
            mean = np.dot(rate[free], u[free]) / rate[free].sum()
            direction = u - mean
        return q, Response(rate, np.where(free, 0, -1), direction)
