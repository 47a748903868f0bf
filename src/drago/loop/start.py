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
    """The part has at least so many rows an unknown."""
    one_in: int = 16
    """It has at least one in so many of all rows."""
    worth: int = 4
    """It pays where there are at least so many times as many rows in all."""
    tol: float = 0.5
    """The relative gap to which it is solved, in units of unknowns / rows of the part."""
    loosest: float = 1e-2
    """The largest such gap."""
    share: float = 0.25
    """It may take this share of the time limit at least: without it there is no answer to speak of,
    and whoever is late already is late by that."""


_RULE = _PartRule()


def start_on_a_part(loop: Loop, method: Method) -> None:
    """Solve the problem on evenly spaced rows first, loosely: a good start for few passes.

    Where these are still many, that solve starts on a part of them in turn.
    The optimum on m rows is about ``unknowns / m`` away from that on all of them; there is no use
    in knowing it better than that.
    """
    problem = loop.problem
    if loop.has_start or not method.progressive:
        return
    n, unknowns = problem.n_samples, problem.n_features * problem.n_outputs
    size = max(problem.rows.least_part, _RULE.rows_per_unknown * unknowns, n // _RULE.one_in)
    size = min(size, problem.rows.most_part)
    if n < _RULE.worth * size:
        return
    part = problem.take(subsample(problem, size))
    if part.n_classes < problem.n_classes:
        return  # without a class it is another problem
    tol = max(loop.tol, min(_RULE.tol * unknowns / size, _RULE.loosest))
    inner = loop.inner(part, tol, max_iter=loop.max_iter, trusting=True)
    if loop.time_left is not None and loop.clock.limit is not None:
        inner.clock.limit = max(loop.time_left, _RULE.share * loop.clock.limit)
    result = inner.run(method)
    loop.budget.spend(result.n_passes * size / n)
    loop.start_at = Start(*part.to_internal(result.coef, result.intercept))
    last = inner.last
    if inner.status is Status.OPTIMAL and last is not None:
        error = tol * max(part.reference[0] - last.primal_estimate, 0.0)
        metric, centre = method.metric_at(part, last, error) or (inner.metric, None)
        loop.start_at = Start(last.w, last.b, metric=metric, centre=centre)
    nested = "".join(f" [{note}]" for note in inner.ledger.notes)
    loop.ledger.notes.append(f"started from {size} of {n} rows{nested}")
