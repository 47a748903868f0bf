"""The best intercept for given raw predictions: one small convex problem over few numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from drago.problem import DROProblem

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

# |sum q s| relative to its scale at which the intercept counts as found: the value is then right
# to the square of this.
_SLOPE_TOLERANCE = 1e-8


def best_intercept(problem: DROProblem, raw: Matrix) -> Vector:
    """``argmin over b of max over q of sum q l(raw + b) - nu D(q || p)``; no pass over X."""
    oracle = problem.dual_oracle()

    def value_and_slope(b: Vector, nu: float) -> tuple[float, Vector]:
        losses, slopes = problem.loss.evaluate(problem.y, np.ascontiguousarray(raw + b))
        q = oracle.weights(losses, nu)
        penalty = nu * problem.divergence.value(q, problem.p) if nu > 0 else 0.0
        return float(np.dot(q, losses) - penalty), q @ slopes

    if raw.shape[1] == 1:
        return _root(
            problem, raw, lambda b: float(value_and_slope(np.array([b]), problem.nu)[1][0])
        )
    from scipy.optimize import minimize

    b = np.log(np.maximum(_class_shares(problem, raw.shape[1]), 1e-6))
    levels = np.array([problem.nu])
    if problem.nu == 0 and problem.kappa_q > 1:  # kinks: smoothed, less and less
        scale = value_and_slope(b, 0.0)[0]
        levels = np.array([problem.smoothing(scale * 10.0**-k) for k in range(1, 11)])
    for nu in levels:
        b = minimize(
            value_and_slope,
            b,
            args=(nu,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-10},
        ).x
    return b - b.mean()


def _class_shares(problem: DROProblem, k: int) -> Vector:
    if problem.loss.name != "multinomial":
        return np.ones(k)
    return np.array([problem.p[problem.y == c].sum() for c in range(k)])


def _root(problem: DROProblem, raw: Matrix, slope: object) -> Vector:
    """The zero of a nondecreasing slope, by the secant method in a bracket (Illinois)."""
    assert callable(slope)
    if problem.loss.name in ("squared", "huber"):
        offsets = problem.y - raw[:, 0]
        low, high = float(offsets.min()), float(offsets.max())
        middle = float(np.dot(problem.p, offsets))
        if low == high:
            return np.array([low])
    else:
        low, middle, high = -1.0, 0.0, 1.0
    f_low, f_high = slope(low), slope(high)
    for _ in range(60):  # only a loss of unknown kind, or logistic, needs to widen the bracket
        if f_low > 0:
            low, f_low = low - 2.0 * (high - low), slope(low - 2.0 * (high - low))
        elif f_high < 0:
            high, f_high = high + 2.0 * (high - low), slope(high + 2.0 * (high - low))
        else:
            break
    scale = max(abs(f_low), abs(f_high), 1e-300)
    b, kept = middle, 0
    for _ in range(200):
        f = slope(b)
        if abs(f) <= _SLOPE_TOLERANCE * scale:
            break
        if f < 0:
            low, f_low = b, f
            f_high, kept = (0.5 * f_high, kept) if kept == 1 else (f_high, 1)
        else:
            high, f_high = b, f
            f_low, kept = (0.5 * f_low, kept) if kept == -1 else (f_low, -1)
        if high - low <= 1e-14 * (abs(low) + abs(high)):
            break
        step = (low * f_high - high * f_low) / (f_high - f_low) if f_high > f_low else np.nan
        b = step if low < step < high else 0.5 * (low + high)
    return np.array([b])
