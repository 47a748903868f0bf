"""What ends a solve with success, and whether a method's free estimates say that it is near."""

from __future__ import annotations

import math

import numpy as np

from drago.certificate.certificate import Certificate, relative
from drago.loop.best import Best
from drago.loop.protocol import Iterate
from drago.problem import DROProblem

# An estimate calls for a certificate below this share of what is wanted: an estimate of the gap, or
# of the square of a slope.
_OF_GAP = 0.7
_OF_SLOPE = 0.5
_TINY = 1e-300


class Goal:
    """A certified relative gap of at most `tol`, or a slope, where no gap can be known.

    For losses that are not declared convex there is no bound: ``||grad P||`` has to fall to `tol`
    times what it is at the trivial model.

    Parameters
    ----------
    problem : DROProblem
    tol : float

    Attributes
    ----------
    factor : float
        The gap that was certified, or foreseen, divided by the method's estimate of it, at the last
        certificate.
    """

    def __init__(self, problem: DROProblem, tol: float) -> None:
        self._problem, self.tol = problem, tol
        self.factor = 1.0

    def is_certified(self, best: Best) -> bool:
        """Whether the gap is small enough."""
        return best.is_certified(self.tol)

    def is_stationary(self, best: Best) -> bool:
        """Whether the best point is a stationary one, where that is all that can be known."""
        found = best.point[0].stationarity
        return found is not None and found <= self.tol * self._problem.reference_slope

    def seems_reached(self, iterate: Iterate, best: Best) -> bool:
        """Whether a certificate is expected to say so."""
        expected = self.factor * iterate.gap_estimate
        if not self._problem.is_convex:
            return expected <= _OF_SLOPE * (self.tol * self._problem.reference_slope) ** 2
        primal, reference = _objective(iterate, best)
        cancelling = best.point[0].cancelling
        return relative(expected, primal, reference, cancelling) <= _OF_GAP * self.tol

    def estimate_wanted(self, iterate: Iterate | None, best: Best) -> float:
        """What a method's estimate of the gap has to fall to."""
        if not self._problem.is_convex:
            return (self.tol * self._problem.reference_slope) ** 2 / max(self.factor, _TINY)
        primal, reference = _objective(iterate, best)
        return self.tol * max(reference - primal, 0.0) / max(self.factor, _TINY)

    def learn(self, certificate: Certificate, iterate: Iterate) -> None:
        """Compare a method's estimate with the certificate of its point, or what that foresaw."""
        found = measure(certificate, min(certificate.gap, certificate.foreseen))
        known = math.isfinite(found) and math.isfinite(iterate.gap_estimate)
        if known and iterate.gap_estimate > 0:
            self.factor = found / iterate.gap_estimate


def measure(certificate: Certificate, gap: float) -> float:
    """What has to become small: the certified gap, or ``||grad P||^2`` without one."""
    slope = certificate.stationarity
    return gap if slope is None else slope**2


def _objective(iterate: Iterate | None, best: Best) -> tuple[float, float]:
    """The best objective, known or estimated, and that of the trivial model."""
    found = best.point[0]
    estimate = np.inf if iterate is None else iterate.primal_estimate
    return min(found.primal, estimate), found.reference
