"""What a bound may cost: the price of a Hessian, in visits to all rows."""

from __future__ import annotations

import math

from drago.problem import DROProblem

# Unknowns beyond which a dense factorisation is not attempted.
_MOST_UNKNOWNS = 2000
# Iterations that it takes to the minimum for fixed weights, about.
_DESCENT = 8.0
# Rows for each unknown with which a curvature bound begins to be of use.
_ROWS_PER_UNKNOWN = 20


def has_curvature_bound(problem: DROProblem) -> bool:
    """Whether a curvature bound is known for the problem's loss."""
    loss = problem.loss
    known = loss.is_bent or math.isfinite(loss.concordance)
    return loss.has_class_hessian or (known and problem.n_outputs == 1)


def n_unknowns(problem: DROProblem) -> int:
    """Number of unknowns, the intercepts included."""
    return (problem.n_features + int(problem.fit_intercept)) * problem.n_outputs


def few_rows(problem: DROProblem) -> int:
    """How many rows a curvature bound takes to be of use."""
    return _ROWS_PER_UNKNOWN * n_unknowns(problem)


def _pass_cost(problem: DROProblem) -> float:
    """Multiplications of matrix algebra that take as long as one pass over the data."""
    return 16.0 * max(problem.n_entries, problem.n_samples) * problem.n_outputs


def curvature_cost(problem: DROProblem, n_rows: float) -> float:
    """What a factorised Hessian of so many rows costs, in passes."""
    m = float(n_unknowns(problem))
    return (n_rows * m**2 + 2.0 * m**3) / _pass_cost(problem)


def descent_cost(problem: DROProblem, n_rows: float) -> float:
    """What the minimum for fixed weights on so many rows costs with many classes, in passes.

    Infinite where it is not compiled.
    """
    can = problem.loss.has_class_hessian and problem.loss.has_kernels and problem.mu > 0
    can = can and problem.constraint.is_everything and not problem.is_sparse
    if not (can and problem.rows.has("compiled")):
        return math.inf
    return 1.0 + _DESCENT * n_rows / problem.n_samples


def affordable_rows(problem: DROProblem, passes: float) -> int:
    """How many rows a curvature bound may use for that many passes; 0 if too few to be of use."""
    if not has_curvature_bound(problem) or n_unknowns(problem) > _MOST_UNKNOWNS:
        return 0
    m = float(n_unknowns(problem))
    rows = min((passes * _pass_cost(problem) - 2.0 * m**3) / m**2, float(problem.n_samples))
    return int(rows) if rows >= min(problem.n_samples, few_rows(problem)) else 0
