"""The constants of the paper's theory: its step size, and L and G in a metric."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from drago.metric import Metric, subsample
from drago.problem import DROProblem, Evaluation

Vector = npt.NDArray[np.float64]


def theory_step(problem: DROProblem, m: int) -> float:
    """The step size of the paper's theorem, with the constants of its lemmas."""
    nu = problem.nu / (1.0 if problem.divergence.is_chi2 else problem.kappa_q)
    tiny = np.finfo(float).tiny
    step = min(
        1.0 / (32.0 * m),
        problem.mu / (24.0 * math.e * max(problem.smoothness * problem.kappa_q, tiny)),
    )
    if problem.kappa_q > 1:  # otherwise the weights cannot move
        coupling = 36.0 * math.e**2 * m * max(problem.lipschitz, tiny)
        step = min(step, np.sqrt(problem.mu * nu) / coupling)
    return 0.25 * step


def require_constants(problem: DROProblem) -> None:
    for name in ("curvature", "lipschitz"):
        known = np.isfinite(getattr(problem.loss, name)) or problem.loss.is_quadratic
        if not known:
            raise ValueError(
                f"step_size='theory' needs to know the {name} of the loss "
                f"{problem.loss.name!r}: give the function an attribute {name}, or take 'auto'."
            )


def constants_in(
    metric: Metric, problem: DROProblem, start: Evaluation, mean: Vector | None
) -> tuple[float, float]:
    """L and G in the norm of the metric, from a subsample; G at the start where it is not known."""
    index = subsample(problem, 2000)
    sample = problem.rows.sample(index)
    if sample.is_sparse and metric.basis is None:
        rows = sample.X.astype(np.float64)
        square = np.asarray(rows.multiply(rows) @ (1.0 / metric.eigenvalues)).reshape(-1)
    else:
        rows = sample.dense(np.arange(index.size))
        if mean is not None:
            rows = rows - mean
        square = (metric.rotate(rows.T) ** 2 / metric.eigenvalues[:, None]).sum(axis=0)
    square += float(problem.fit_intercept) / metric.intercept
    curvature = problem.loss.curvature if np.isfinite(problem.loss.curvature) else 1.0
    if np.isfinite(problem.loss.lipschitz):
        steepest = float((problem.loss.lipschitz * np.sqrt(square)).max())
    else:
        steepest = problem.rows.steepest_of(start.dlosses, index, np.sqrt(square))
    tiny = np.finfo(float).tiny
    smooth = curvature * float(square.max())
    return max(smooth, tiny), max(steepest, tiny)
