"""What a solve says on its way and at its end."""

from __future__ import annotations

import math
import os
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from drago.certificate.certificate import Certificate
from drago.loop.method import Method
from drago.result import Status

if TYPE_CHECKING:
    from drago.loop.loop import Loop


# The rounding of an objective, relative to its size.
_ROUNDING = 1e-12
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


def sentence(
    loop: Loop, method: Method, rel_gap: float, n_iter: int, dual: Certificate, why: str
) -> str:
    """What ran, why it stopped, what is certain, and what could be changed.

    A solve that did not converge says so first, then the cause, the gap and the remedy, and last
    which solver it was.
    """
    reached = f"certified relative gap {rel_gap:.2g} (tol={loop.tol:g})"
    if not loop.problem.is_convex:
        reached = _flatness(loop)
    if dual.restricted_to is not None:
        reached += f", over ||w|| <= {dual.restricted_to:.3g} only (l2_reg is 0)"
    notes = ", ".join(loop.ledger.notes)
    if loop.status in (Status.OPTIMAL, Status.STATIONARY):
        head = f"{loop.why}{method.name}{f' ({notes})' if notes else ''}: "
        note = _trivial_note(loop) if loop.status is Status.OPTIMAL else ""
        return head + f"{loop.status} after {_iterations(n_iter)}, {reached}{note}."
    cause, remedy = _ended(loop, n_iter, why)
    if loop.status is Status.STALLED:
        if not np.isfinite(rel_gap) and loop.problem.is_convex:
            reached = "no bound on the gap is known for this loss without l2_reg"
            if loop.problem.mu > 0:
                reached = "no bound on the gap is known for this loss with an intercept"
        reached += _trivial_note(loop)
        if _is_rounding(loop):
            reached += ". What is left of the gap is rounding, which no solver can remove"
            remedy = "raise tol"
    who = "; ".join(part for part in (loop.why.strip("; ") or method.name, notes) if part)
    mend = f" To mend it, {remedy}." if remedy else ""
    return f"Not converged: {cause}, {reached}.{mend} (Solver: {who}.)"


def _ended(loop: Loop, n_iter: int, why: str) -> tuple[str, str]:
    """Why a solve ended before it converged, and what would help; empty where the user ended it."""
    if loop.status is Status.MAX_ITER:
        return f"max_iter={loop.max_iter} reached", "raise max_iter, or tol if this is good enough"
    if loop.status is Status.TIME_LIMIT:
        cause = f"time_limit={loop.clock.limit:g} s reached after {_iterations(n_iter)}"
        return cause, "raise time_limit, or tol if this is good enough"
    if loop.status is Status.INTERRUPTED:
        return f"interrupted after {_iterations(n_iter)}", ""
    if loop.status is Status.STOPPED:
        return f"stopped by the callback after {_iterations(n_iter)}", ""
    detail = f" ({why.strip(': ')})" if why.strip(": ") else ""
    cause = f"no further progress after {_iterations(n_iter)}{detail}"
    return cause, "raise tol, l2_reg or shift_cost, or scale the features"


def _iterations(n: int) -> str:
    return "1 iteration" if n == 1 else f"{n} iterations"


def _is_rounding(loop: Loop) -> bool:
    """Whether the gap is as small as sums over the rows are exact."""
    best = loop.best.point[0]
    size = max(abs(best.primal), abs(best.reference), best.cancelling)
    return loop.best.gap <= _ROUNDING * size


def _flatness(loop: Loop) -> str:
    """What there is instead of a certificate."""
    slope = loop.best.point[0].stationarity
    size = np.nan if slope is None else slope
    start = max(loop.problem.reference_slope, np.finfo(float).tiny)
    return (
        f"||grad P|| = {size:.3g}, {size / start:.2g} times that at the start (tol={loop.tol:g}); "
        "there is no certificate, because the losses are not declared convex (convex=True)"
    )


def warn(message: str, kind: type[Warning] | None = None) -> None:
    """Say it, as from the first line outside of this package and of scikit-learn.

    Where no `kind` is given, it is that a solve did not converge.
    """
    inside: tuple[str, ...] = (_PACKAGE,)
    with suppress(ImportError):  # the torch engine lives without scikit-learn
        import sklearn
        from sklearn.exceptions import ConvergenceWarning

        kind = kind or ConvergenceWarning
        inside = (_PACKAGE, os.path.dirname(sklearn.__file__) + os.sep)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, kind or UserWarning, stacklevel=level)


def _trivial_note(loop: Loop) -> str:
    """A word where the answer is the trivial model."""
    _, w, _ = loop.best.point
    if w.any() or not math.isfinite(loop.best.gap):
        return ""
    share = loop.best.gap / max(abs(loop.best.primal), np.finfo(float).tiny)
    if share > 0.01:
        return ""
    return f"; the trivial model (coefficients 0) is optimal up to {share:.1g} of its objective"
