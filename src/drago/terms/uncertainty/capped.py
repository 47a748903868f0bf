"""CVaR and the simplex: weights between 0 and a multiple of the nominal ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from drago import kernels
from drago._threads import vector_threads
from drago._validation import check_number
from drago.terms.divergences import LONG, Divergence
from drago.terms.uncertainty.base import (
    EMPTY,
    DualOracle,
    Response,
    UncertaintySet,
    Vector,
    price,
)

# Relative distance to the cap below which a weight counts as lying on it.
ON_BOUND = 1e-12


class _Capped(UncertaintySet):
    """``0 <= q_i <= cap p_i``."""

    is_capped = True
    _cap = np.inf

    def _violation(self, q: Vector, p: Vector, groups: Any) -> float:
        total, below, above = self._outside(q, p)
        return max(0.0, abs(total - 1.0), below, above)

    def _excess(self, q: Vector, p: Vector, groups: Any) -> float:
        return self._outside(q, p)[2]

    def _outside(self, q: Vector, p: Vector) -> tuple[float, float, float]:
        """The sum of q, and the masses below 0 and above the cap."""
        if q.size <= LONG:  # as are those of groups, wherever the rows are
            below, above = np.maximum(-q, 0.0).sum(), np.maximum(q - self._cap * p, 0.0).sum()
            return float(q.sum()), float(below), float(above)
        q, p = np.ascontiguousarray(q), np.ascontiguousarray(p)
        return kernels.outside(q, p, self._cap, vector_threads(q.size))


class CVaR(_Capped):
    """The mean loss of the worst share of the rows: ``0 <= q_i <= p_i / tail_fraction``.

    Parameters
    ----------
    tail_fraction : float in (0, 1]
        The share of the rows, by weight, that counts: 1 is the mean of all losses, toward 0 it is
        the largest loss.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=drago.CVaR(0.5),
    ...                            shift_cost=0.0)
    >>> problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0]))  # the worse half
    array([0. , 0. , 0.5, 0.5])
    """

    short_name = "cvar"

    def __init__(self, tail_fraction: float = 0.1) -> None:
        self.tail_fraction = tail_fraction
        self._check()

    def _check(self) -> None:
        check_number("tail_fraction", self.tail_fraction, low=0, high=1, open_low=True)

    @property
    def tail_share(self) -> float:  # type: ignore[override]
        return float(self.tail_fraction)

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return CappedOracle(self, divergence, p, self._cap)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        return np.minimum(self._cap, 1.0 / p)

    @property
    def _cap(self) -> float:  # type: ignore[override]
        return 1.0 / self.tail_fraction


class Simplex(_Capped):
    """All weights are allowed: the single worst row, unless a shift cost spreads the weight.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((4, 1)), np.zeros(4), uncertainty=drago.Simplex(),
    ...                            shift_cost=0.0)
    >>> problem.worst_case_weights(np.array([1.0, 2.0, 3.0, 4.0]))  # the single worst row
    array([0., 0., 0., 1.])
    """

    short_name = "simplex"

    def _oracle(self, p: Vector, divergence: Divergence, groups: Any) -> DualOracle:
        return CappedOracle(self, divergence, p)

    def _max_ratios(self, p: Vector, groups: Any) -> Vector:
        return 1.0 / p


class CappedOracle(DualOracle):
    """``0 <= q_i <= cap p_i``: CVaR and, with ``cap = inf``, the simplex.

    With chi2 the nominal weights may be one number, that of every row.
    """

    family = 0
    _remembered = ("_tau", "_c")

    def __init__(
        self, uncertainty: Any, divergence: Divergence, p: Vector, cap: float = np.inf
    ) -> None:
        super().__init__(uncertainty, divergence, p)
        # A cap that no weight can reach is none.
        self.cap = float(cap) if cap * p[0] < 1.0 or cap * p.min() < 1.0 else np.inf
        self._tau = np.nan
        self._c = np.nan

    @property
    def parameter(self) -> float:
        return self.cap

    def remembered(self, c: float) -> float:
        """The last threshold, worth remembering only on the same problem scale; otherwise NaN."""
        return self._tau if 0.5 * self._c <= c <= 2.0 * self._c else np.nan

    def guess(self, c: float) -> tuple[int, float, float]:
        if self.cap <= 1:
            return 1, -np.inf, 1.0  # all rows are at the cap
        if price(c) == 0:
            return super().guess(c)
        return 1 if self.divergence.is_chi2 else 2, self.remembered(c), self.cap

    def look_near(self, c: float, tau: float) -> None:
        if np.isfinite(tau):
            self._tau, self._c = tau, c

    def _fill(self, u: Vector, c: float, q: Vector, mirror: Vector) -> None:
        tau, is_chi2 = self.remembered(c), self.divergence.is_chi2
        if is_chi2:
            tau = kernels.capped_chi2(u, self.p, c, self.cap, tau, q, vector_threads(u.size))
        else:
            room = mirror if c > 0 else EMPTY
            tau = kernels.capped_kl(u, self.p, c, self.cap, tau, q, room, vector_threads(u.size))
        if mirror.size and (is_chi2 or c == 0):
            self._mirror(q, mirror)
        self._tau, self._c = tau, c

    def _respond(self, u: Vector, c: float, q: Vector | None) -> tuple[Vector, Response | None]:
        q = self.weights(u, c) if q is None else q
        if c == 0:
            return q, None
        if self.cap <= 1:
            return q, Response(self._rate(q, c), np.full(q.size, -1))
        free = (q > 0) & (q < self.cap * self.p * (1 - ON_BOUND))
        return q, Response(self._rate(q, c), np.where(free, 0, -1))
