"""What is known for certain about a point, and the relative gap."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drago._html import card, pairs, paragraph
from drago.problem import DROProblem

Vector = npt.NDArray[np.float64]

# Relative rounding of P_0, a sum over the rows, and of a gap at a point that is no better.
_ROUNDING = 1e-12
_NOTHING = 256 * np.finfo(float).eps
# Relative rounding of a sum of terms that cancel.
_CANCELLED = 1e-15


@dataclass(frozen=True)
class Certificate:
    """What is proven about a point: how far from the optimum it can be at most.

    Attributes
    ----------
    primal : float
        The objective ``P(w)`` at the point.
    dual : float
        A lower bound on the optimal value ``P*``: ``primal - gap``, less what rounding may have
        lost where the objective is above that of the model with all coefficients at 0.
    gap : float
        An upper bound on ``P(w) - P*``.
    rel_gap : float
        0 is optimal, 1 is no proven gain over a model with all coefficients 0. It is
        ``gap / (P_0 - dual)``, with ``P_0`` the objective at w = 0 and its best intercept.
    dual_weights : array of shape (n,)
        The weights that attain the bound.
    bound : str
        Which of the proofs gave the bound; all are valid. "tangent" or "curvature", or
        "tangent, ||w|| <= R" when only the gap over a ball of radius R is known (mu = 0 and no
        constraint).
    restricted_to : float or None
        That radius.
    reference : float
        ``P_0``.
    n_passes : float
        What it cost, in visits to all rows; a product with X is half a visit.
    cancelling : float
        The greatest ``|loss_i - baseline_i|`` of the model with all coefficients at 0; 0 without a
        baseline. It says how much rounding can have lost in the objective.
    stationarity : float or None
        ``||grad P(w)||`` of a problem that is not known to be convex. There is no bound then: the
        gap is infinite.
    foreseen : float
        About the gap that more effort would give, where a look ended early because that is too
        large; otherwise infinite.

    Examples
    --------
    >>> import numpy as np, drago
    >>> problem = drago.DROProblem(np.eye(3), [1.0, 2.0, 6.0], shift_cost=0.1)
    >>> certificate = drago.certify(problem, np.zeros(3))
    >>> certificate.rel_gap  # w = 0 has gained nothing yet
    1.0
    >>> bool(certificate.dual <= drago.solve(problem).primal <= certificate.primal)
    True
    """

    primal: float
    dual: float
    gap: float
    rel_gap: float
    dual_weights: Vector
    bound: str
    restricted_to: float | None
    reference: float
    n_passes: float = 0.0
    cancelling: float = 0.0
    stationarity: float | None = None
    foreseen: float = math.inf

    def __repr__(self) -> str:
        return (
            f"Certificate(primal={self.primal:.8g}, dual={self.dual:.8g}, gap={self.gap:.2g}, "
            f"rel_gap={self.rel_gap:.2g}, bound={self.bound!r})"
        )

    def _repr_html_(self) -> str:
        facts = {
            "objective (primal)": self.primal,
            "lower bound (dual)": self.dual,
            "gap": self.gap,
            "relative gap": self.rel_gap,
            "objective of the model without features": self.reference,
            "bound": self.bound,
        }
        said = "Nothing is known for certain about how far this point is from the best one."
        if math.isfinite(self.gap):
            said = (
                f"No point has an objective below {self.dual:.6g}; this one has {self.primal:.6g}."
            )
            if self.restricted_to is not None:
                said += f" This holds for points of norm at most {self.restricted_to:.4g}."
        return card("Certificate", paragraph(said), pairs(facts))


def uncertified(problem: DROProblem, primal: float) -> Certificate:
    """What is known of a point whose objective alone was computed."""
    return Certificate(
        primal=primal,
        dual=-np.inf,
        gap=np.inf,
        rel_gap=np.inf,
        dual_weights=problem.p,
        bound="none",
        restricted_to=None,
        reference=problem.reference[0],
        cancelling=problem.cancelling,
    )


def lower_bound(gap: float, primal: float, reference: float, cancelling: float) -> float:
    """``primal - gap``, less what rounding may have lost.

    Far from the optimum both are huge, and their difference is what rounding leaves of it; with a
    baseline, so is the objective itself.
    """
    lost = _ROUNDING * max(primal - reference, 0.0) + _CANCELLED * cancelling
    return primal - gap - lost


def relative(gap: float, primal: float, reference: float, cancelling: float) -> float:
    """``gap / (P_0 - dual)``.

    Where both of them are no more than rounding, the trivial model is optimal, and this is 0.
    An objective above ``P_0`` by rounding counts as equal to it.
    """
    if not math.isfinite(gap):
        return np.inf
    size = max(abs(reference), cancelling, sys.float_info.min)
    above = primal - reference
    span = gap if 0.0 < above <= 4.0 * sys.float_info.epsilon * size else gap - above
    if span <= _ROUNDING * size and gap <= _NOTHING * size:
        return 0.0
    return gap / max(span, _ROUNDING * size)
