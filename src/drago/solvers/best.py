"""The best point and the best bound of a solve so far."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from drago.certificate import Certificate, relative

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Entry = tuple[Certificate, Matrix, Vector]


class Best:
    """Kept apart, for the best bound is not always that of the best point.

    Parameters
    ----------
    certificate, w, b : the first candidate

    Attributes
    ----------
    point, dual : tuple (certificate, w, b)
        Of the lowest objective, and of the highest lower bound.
    """

    def __init__(self, certificate: Certificate, w: Matrix, b: Vector) -> None:
        self.point: Entry = (certificate, w, b)
        self.dual: Entry = self.point

    def keep(self, certificate: Certificate, w: Matrix, b: Vector) -> None:
        """Take note of another candidate."""
        entry = (certificate, w.copy(), b.copy())
        # A bound over a ball says nothing about points found later, outside of it.
        if certificate.dual > self.dual[0].dual and certificate.restricted_to is None:
            self.dual = entry
        best = self.point[0]
        rounding = 4e-16 * abs(best.primal)
        lower = certificate.primal < best.primal - rounding
        level = certificate.primal <= best.primal + rounding and certificate.gap < best.gap
        if lower or level:
            self.point = entry

    @property
    def primal(self) -> float:
        """The lowest objective."""
        return self.point[0].primal

    @property
    def gap(self) -> float:
        """The smaller of the best point's own gap and its distance to the best bound."""
        best, dual = self.point[0], self.dual[0]
        if dual is best or not np.isfinite(dual.dual):
            return best.gap
        across = max(best.primal - dual.dual, 0.0) + 1e-15 * abs(best.primal)
        return min(best.gap, across)

    @property
    def rel_gap(self) -> float:
        """That gap, relative to what the trivial model leaves to gain."""
        return relative(self.gap, self.primal, self.point[0].reference)

    @property
    def bound(self) -> Entry:
        """What the gap rests on."""
        return self.point if self.gap >= self.point[0].gap else self.dual

    def is_certified(self, tol: float) -> bool:
        """Whether the gap is within the tolerance, over all of space."""
        return self.rel_gap <= tol and self.bound[0].restricted_to is None
