"""What a solve returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drago.loop.messages import sentence, warn
from drago.loop.method import Method
from drago.result import History, SolverResult, Status

if TYPE_CHECKING:
    from drago.loop.loop import Loop


def result_of(loop: Loop, method: Method, why: str) -> SolverResult:
    """The best point of a solve and what is known of it; a warning where it is not optimal."""
    problem, clock, done = loop.problem, loop.clock, loop.counts
    best, w, b = loop.best.point
    gap, rel_gap = loop.best.gap, loop.best.rel_gap
    dual, dual_w, dual_b = loop.best.bound
    coef, intercept = problem.to_public(w, b)
    dual_coef, dual_intercept = problem.to_public(dual_w, dual_b)
    message = sentence(loop, method, rel_gap, done.n_iter, dual, why)
    elapsed = clock.elapsed  # a warning may import scikit-learn first
    is_heard = not loop.quiet and problem.rows.is_first
    if loop.status not in (Status.OPTIMAL, Status.STATIONARY) and is_heard:
        warn(message)
    weights = problem.rows.export(dual.dual_weights)
    return SolverResult(
        coef=coef,
        intercept=intercept,
        dual_weights=weights,
        primal=best.primal,
        dual=best.primal - gap,
        gap=gap,
        rel_gap=rel_gap,
        status=loop.status,
        message=message,
        bound=dual.bound,
        n_iter=done.n_iter,
        n_passes=loop.budget.total(done.n_passes),
        n_oracle_calls=done.n_oracle_calls,
        time=elapsed,
        solver_time=elapsed - clock.evaluating,
        dual_coef=dual_coef,
        dual_intercept=dual_intercept,
        solver=method.name,
        stationarity=best.stationarity,
        history=History(tuple(loop.ledger.records)),
        n_rounds=problem.rows.n_rounds - loop.rounds_before,
    )
