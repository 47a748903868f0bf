"""Uncertainty sets: which reweightings ``q`` of the rows the model has to withstand.

All sets are closed and convex, contain the nominal weights ``p`` and lie in the simplex. They are
given by a level, never by an array of length n, so they survive a change of the data (clones,
cross-validation). Their parameters are read and changed by `get_params` and `set_params`, as
scikit-learn expects.

A user's own set is any object with two methods::

    worst_case(u, c, divergence, p)   # argmax over q in Q of <u, q> - c Omega(q)
    q_max(p)                          # the largest weight that a row can get
"""

from __future__ import annotations

from drago.terms.uncertainty.balls import Chi2Ball, KLBall
from drago.terms.uncertainty.base import (
    DualOracle,
    Response,
    UncertaintySet,
    as_uncertainty,
    short_names,
)
from drago.terms.uncertainty.capped import CVaR, Simplex
from drago.terms.uncertainty.grouped import Grouped
from drago.terms.uncertainty.spectral import ESRM, Extremile, SpectralSet, Spectrum
from drago.terms.uncertainty.user import UserSet

__all__ = [
    "ESRM",
    "CVaR",
    "Chi2Ball",
    "DualOracle",
    "Extremile",
    "Grouped",
    "KLBall",
    "Response",
    "Simplex",
    "SpectralSet",
    "Spectrum",
    "UncertaintySet",
    "UserSet",
    "as_uncertainty",
    "short_names",
]
