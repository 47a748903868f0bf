"""The progressive start: a large problem is solved on a part of its rows first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from drago.loop.method import Method
from drago.loop.protocol import Start
from drago.metric import subsample
from drago.result import Status

if TYPE_CHECKING:
    from drago.loop.loop import Loop


@dataclass(frozen=True)
class _PartRule:
    """How large the part is, when it pays, and how well it is solved."""

    rows_per_unknown: int = 20
    """Rows of the part for each unknown, at least,"""
    one_in: int = 8
    """and one in so many rows."""
    worth: int = 4
    """It pays where all rows are at least so many times those of the part."""
    tol: float = 0.5
    """Its relative gap, in units of unknowns / rows,"""
    loosest: float = 1e-2
    """and at most."""


_RULE = _PartRule()


def start_on_a_part(loop: Loop, method: Method) -> None:
    """Solve on evenly spaced rows first, loosely, and so on: a good start for few passes.

    The optimum on m rows is about ``unknowns / m`` away from that on all of them; there is no use
    in knowing it better than that.
    """
    problem = loop.problem
    if loop.has_start or not method.progressive:
        return
    n, unknowns = problem.n_samples, problem.n_features * problem.n_outputs
    size = max(problem.rows.least_part, _RULE.rows_per_unknown * unknowns, n // _RULE.one_in)
    if n < _RULE.worth * size:
        return
    part = problem.take(subsample(problem, size))
    if part.n_classes < problem.n_classes:
        return  # without a class it is another problem
    tol = max(loop.tol, min(_RULE.tol * unknowns / size, _RULE.loosest))
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
