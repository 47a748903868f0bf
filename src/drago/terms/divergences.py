"""Divergences between the weights ``q`` and the nominal weights ``p``.

Both are n-invariant and agree to second order around ``p``. Each comes with the function ``Omega``
that the dual oracle works with (the divergence up to a constant) and with its gradient, the
*mirror* coordinate in which proximal steps are linear.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago._threads import vector_threads
from drago._validation import check_option, check_vector

Vector = npt.NDArray[np.float64]


# The least price of moving weight whose inverse is a number; less than that counts as 0.
TINY = float(np.finfo(np.float64).tiny)
# Rows at a time: so few that BLAS does not wake a second thread for a dot product.
LONG = 1 << 13


class Divergence:
    """Base of `Chi2` and `KL`."""

    name: str
    code: int
    """What the kernels know it by."""
    is_chi2: bool = False
    """Whether it is chi2, with which the weights are piecewise linear in the losses."""
    is_steep: bool = False
    """Whether its slope is infinite at a weight of 0: no step leads away from such a weight."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def value(self, q: npt.ArrayLike, p: npt.ArrayLike) -> float:
        """``D(q || p)``."""
        return self._value(*_pair(q, p))

    def mirror(self, q: npt.ArrayLike, p: npt.ArrayLike) -> Vector:
        """The gradient of ``Omega`` at ``q``, up to a constant."""
        return self._mirror(*_pair(q, p))

    # What solvers call: the vectors of a problem were checked at its door.

    def _value(self, q: Vector, p: Vector) -> float:
        """A few rows at a time, because long temporary arrays are slow."""
        if q.size <= LONG:
            return self._sum(q, p)
        starts = range(0, q.size, LONG)
        return sum(self._sum(q[k : k + LONG], p[k : k + LONG]) for k in starts)

    def _sum(self, q: Vector, p: Vector) -> float:
        """The sum over some rows."""
        raise NotImplementedError  # pragma: no cover

    def _mirror(self, q: Vector, p: Vector, out: Vector | None = None) -> Vector:
        raise NotImplementedError  # pragma: no cover

    def _rate(self, q: Vector, p: Vector) -> Vector:
        """The derivative of each weight with respect to its mirror coordinate."""
        raise NotImplementedError  # pragma: no cover

    def _largest(self, kappa: float) -> float:
        """An upper bound on ``D(q || p)`` for all ``q`` with ``q_i <= kappa p_i``."""
        raise NotImplementedError  # pragma: no cover


def _pair(q: npt.ArrayLike, p: npt.ArrayLike) -> tuple[Vector, Vector]:
    """Two vectors of one length."""
    p = check_vector("p", p, np.size(p))
    return check_vector("q", q, p.size), p


class Chi2(Divergence):
    """Squared relative changes: ``D(q || p) = 1/2 sum_i (q_i - p_i)^2 / p_i``.

    With ``Omega(q) = 1/2 sum_i q_i^2 / p_i``. Weights can become 0.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((2, 1)), [0.0, 0.0], uncertainty="simplex",
    ...                            divergence=drago.Chi2(), shift_cost=1.0)
    >>> problem.worst_case_weights(np.array([0.0, 2.0]))  # a row may end at 0
    array([0., 1.])
    """

    name, code, is_chi2 = "chi2", 0, True

    def _largest(self, kappa: float) -> float:
        return 0.5 * (kappa - 1.0)

    def _value(self, q: Vector, p: Vector) -> float:
        if q.size <= LONG:
            away = q - p
            return 0.5 * float(np.dot(away, away / p))
        return kernels.chi2_divergence(q, p, vector_threads(q.size))

    def _mirror(self, q: Vector, p: Vector, out: Vector | None = None) -> Vector:
        return np.divide(q, p, out=out)

    def _rate(self, q: Vector, p: Vector) -> Vector:
        return p


class KL(Divergence):
    """The relative entropy ``D(q || p) = Omega(q) = sum_i q_i log(q_i / p_i)``.

    No weight becomes 0.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.zeros((2, 1)), [0.0, 0.0], uncertainty="simplex",
    ...                            divergence=drago.KL(), shift_cost=1.0)
    >>> problem.worst_case_weights(np.array([0.0, 2.0])).round(3)  # every row keeps some weight
    array([0.119, 0.881])
    """

    name, code, is_steep = "kl", 1, True

    def _largest(self, kappa: float) -> float:
        return float(np.log(kappa))

    def _sum(self, q: Vector, p: Vector) -> float:
        # x log x - (x - 1) is summed instead of x log x: equal because q and p have the same sum,
        # and accurate when q is close to p.
        ratio = q / p
        logs = np.log(ratio, out=np.zeros_like(ratio), where=ratio > 0)
        return float(np.dot(p, ratio * logs - (ratio - 1.0)))

    def _mirror(self, q: Vector, p: Vector, out: Vector | None = None) -> Vector:
        with np.errstate(divide="ignore"):
            return np.log(q / p, out=out)

    def _rate(self, q: Vector, p: Vector) -> Vector:
        return q


_BY_NAME: dict[str, type[Divergence]] = {"chi2": Chi2, "kl": KL}


def as_divergence(divergence: Any, default: str = "chi2") -> Divergence:
    """A divergence from an object or a name; "auto" is `default`."""
    if isinstance(divergence, Divergence):
        return divergence
    name = check_option("divergence", divergence, ["auto", *_BY_NAME])
    return _BY_NAME[default if name == "auto" else name]()
