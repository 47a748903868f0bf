"""The progressive start: a large problem is solved on a part of its rows first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drago.loop.method import Method
from drago.loop.protocol import Start
from drago.metric import subsample
from drago.result import Status

if TYPE_CHECKING:
    from drago.loop.loop import Loop

# The part: at least so many rows an unknown, this share of all; and how often it must go into all
# of them to pay.
_ROWS = 20
_SHARE = 8
_WORTH = 4
# How well it is solved, in units of unknowns / rows, and at least.
_TOL = 0.5
_LOOSEST = 1e-2


def start_on_a_part(loop: Loop, method: Method) -> None:
    """Solve on evenly spaced rows first, loosely, and so on: a good start for few passes.

    The optimum on m rows is about ``unknowns / m`` away from that on all of them; there is no use
    in knowing it better than that.
    """
    problem = loop.problem
    if loop.has_start or not method.progressive:
        return
    n, unknowns = problem.n_samples, problem.n_features * problem.n_outputs
    size = max(problem.rows.least_part, _ROWS * unknowns, n // _SHARE)
    if n < _WORTH * size:
        return
    part = problem.take(subsample(problem, size))
    if part.n_classes < problem.n_classes:
        return  # without a class it is another problem
    tol = max(loop.tol, min(_TOL * unknowns / size, _LOOSEST))
    inner = loop.inner(part, tol, max_iter=loop.max_iter, trusting=True)
    result = inner.run(method)
    loop.budget.spend(result.n_passes * size / n)
    loop.start_at = Start(*part.to_internal(result.coef, result.intercept))
    last = inner.last
    if inner.status is Status.OPTIMAL and last is not None:
        error = tol * max(part.reference[0] - last.primal_estimate, 0.0)
        metric, centre = method.metric_at(part, last.w, last.b, error) or (inner.metric, None)
        loop.start_at = Start(last.w, last.b, metric=metric, centre=centre)
    nested = "".join(f" [{note}]" for note in inner.ledger.notes)
    loop.ledger.notes.append(f"started from {size} of {n} rows{nested}")
