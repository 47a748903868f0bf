"""Which problems have whole iterations compiled, by DRAGO on small data and by Newton's method."""

from __future__ import annotations

from drago.problem import DROProblem


def is_capped_chi2(problem: DROProblem) -> bool:
    """Arrays, one output, a loss of our own, no constraint, a capped simplex with chi2."""
    share = problem.uncertainty.tail_share
    return bool(
        problem.uncertainty.is_capped
        and (share is None or share < 1)
        and problem.divergence.is_chi2
        and problem.rows.has("compiled")
        and not problem.is_sparse
        and problem.n_outputs == 1
        and problem.loss.has_kernels
        and problem.constraint.is_everything
    )
