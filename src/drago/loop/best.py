"""The best point and the best bound of a solve so far."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from drago.certificate.certificate import Certificate, relative

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Entry = tuple[Certificate, Matrix, Vector]


class Best:
    """The best point and the best bound, kept apart: one point need not have both.

    Parameters
    ----------
    certificate, w, b : the first candidate

    Attributes
    ----------
    point, dual : tuple (certificate, w, b)
        Those of the lowest objective, and those of the highest lower bound.
    gap, rel_gap : float
        The smaller of the best point's own gap and its distance to the best bound; and the same
        relative to what the trivial model leaves to gain.
    """

    point: Entry
    dual: Entry
    gap: float
    rel_gap: float

    def __init__(self, certificate: Certificate, w: Matrix, b: Vector) -> None:
        self.put((certificate, w, b), (certificate, w, b))

    def put(self, point: Entry, dual: Entry) -> None:
        """Let these be the best."""
        self.point, self.dual = point, dual
        best, bound = point[0], dual[0]
        self.gap = best.gap
        if bound is not best and math.isfinite(bound.dual):
            size = max(abs(best.primal), best.cancelling)
            across = max(best.primal - bound.dual, 0.0) + 1e-15 * size
            self.gap = min(best.gap, across)
        self.rel_gap = relative(self.gap, best.primal, best.reference, best.cancelling)

    def keep(self, certificate: Certificate, w: Matrix, b: Vector) -> None:
        """Take note of another candidate."""
        entry, point, dual = (certificate, w.copy(), b.copy()), self.point, self.dual
        # A bound over a ball says nothing about points found later, outside of it.
        if certificate.dual > dual[0].dual and certificate.restricted_to is None:
            dual = entry
        best = point[0]
        rounding = 4e-16 * max(abs(best.primal), best.cancelling)
        lower = certificate.primal < best.primal - rounding
        level = certificate.primal <= best.primal + rounding and certificate.gap < best.gap
        self.put(entry if lower or level else point, dual)

    @property
    def primal(self) -> float:
        """The lowest objective."""
        return self.point[0].primal

    @property
    def bound(self) -> Entry:
        """The entry whose lower bound the gap rests on."""
        return self.point if self.gap >= self.point[0].gap else self.dual

    def is_certified(self, tol: float) -> bool:
        """Whether the gap is within the tolerance, over all of space."""
        return self.rel_gap <= tol and self.bound[0].restricted_to is None
