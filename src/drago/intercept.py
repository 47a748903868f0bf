"""The best intercept for given raw predictions: one small convex problem over few numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from drago import kernels
from drago.rows.classes import new_point

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]
Point = tuple[float, float, float, float]

# |sum q s| relative to sum q |s| at which the intercept counts as found: the value is then right to
# the square of this, however rare a class is.
_SLOPE_TOLERANCE = 1e-8
# The same for each class, relative to the share of the rarest.
_CLASS_TOLERANCE = 1e-6
# The same for a lower bound on the value, relative to it.
_VALUE_TOLERANCE = 1e-15
# Pairs of steps and changes that L-BFGS keeps.
_PAIRS = 20
# Intercepts of classes this near are tried as equal ones.
_TIE = 1e-6
# The least share of a class, and of the objective.
_RAREST = 1e-300
# A step narrows the bracket well if this share of it is left.
_NARROWS = 0.2


def best_intercept(problem: Any, raw: Any) -> Vector:
    """``argmin over b of max over q of sum q l(raw + b) - nu D(q || p)``; no pass over X."""
    oracle, rows, k = problem.dual_oracle(), problem.rows, problem.n_outputs

    def at_weights(b: Vector, nu: float) -> tuple[float, Any, Any]:
        losses, slopes = rows.apply(problem.loss, rows.shift(raw, b))
        q = oracle.weights(losses, nu)
        return rows.primal(problem.divergence, nu, losses, q), q, slopes

    def value_and_slope(b: Vector, nu: float) -> tuple[float, Vector]:
        value, q, slopes = at_weights(b, nu)
        return value, rows.slope_sums(q, slopes)[0]

    if k == 1:

        def at(b: float) -> Point:
            value, q, slopes = at_weights(np.array([b]), problem.nu)
            slope, scale = rows.slope_sums(q, slopes)
            return b, value, float(slope[0]), float(scale[0])

        return _minimum(problem, raw, at)
    from scipy.optimize import minimize

    shares = _class_shares(problem, rows.p)
    b = np.log(np.maximum(shares, _RAREST))
    compiled = _compiled(problem, raw, b)
    if compiled is not None:
        slope = value_and_slope(compiled, problem.nu)[1]
        if np.abs(slope).max() <= _CLASS_TOLERANCE * shares.min():
            return _evened(compiled, lambda b: value_and_slope(b, problem.nu)[0])
    level, q, _ = at_weights(b, problem.nu)
    if rows.baseline is not None:
        level += rows.dot(q, rows.baseline)
    levels = np.array([problem.nu])
    if problem.nu == 0 and problem.kappa_q > 1:  # kinks: smoothed, less and less
        levels = np.array([problem.smoothing(level * 10.0**-k) for k in range(1, 11)])
    # In units in which the value and its curvature are about 1, however rare a class is.
    level = max(level, _RAREST)
    root = np.sqrt(np.maximum(np.maximum(shares, _class_shares(problem, q)), _RAREST) / level)

    def in_units(z: Vector, nu: float) -> tuple[float, Vector]:
        value, slope = value_and_slope(z / root, nu)
        return value / level, slope / (level * root)

    # Where there are no kinks, to the last digits: starts then agree from one engine to another.
    least_fall = 1e-15 if problem.nu == 0 else 0.0
    for nu in levels:
        found = minimize(
            in_units,
            b * root,
            args=(nu,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 500, "ftol": least_fall, "gtol": 1e-12},
        )
        b = found.x / root
    return _evened(b, lambda b: value_and_slope(b, problem.nu)[0])


def _evened(b: Vector, value: Callable[[Vector], float]) -> Vector:
    """Intercepts of mean 0; where classes tie, equal ones if these are no worse."""
    b = b - b.mean()
    # Where classes tie, their numbers are equal to the last bit.
    order = np.argsort(b)
    tied = np.split(order, np.flatnonzero(np.diff(b[order]) > _TIE) + 1)
    even = b.copy()
    for classes in tied:
        even[classes] = b[classes].mean()
    return min(b, even, key=value)


def _compiled(problem: Any, raw: Any, b: Vector) -> Vector | None:
    """The same for many classes and raw predictions of 0, from a start; None where it cannot be."""
    rows, is_users = problem.rows, problem.uncertainty.is_users
    known = problem.loss.has_class_hessian and problem.loss.has_kernels and not is_users
    if not known or problem.nu == 0 or not rows.has("compiled") or raw.any():
        return None
    n, k = raw.shape
    oracle, theta = problem.dual_oracle(), np.append(np.zeros(k), b)
    is_capped, none = problem.uncertainty.is_capped, np.empty((0, 0))
    given = [np.zeros((n, 1)), rows.y, rows.kernel_baseline, rows.p]
    given += [not problem.divergence.is_chi2, True, oracle.cap if is_capped else 0.0, problem.nu]
    # One feature, 0 on all rows.
    given += [1.0, np.zeros(1), np.zeros(1), none, none, theta, np.empty(2 * k)]
    here, there = new_point(n, k), new_point(n, k)
    pairs = np.empty((2, _PAIRS, 2 * k))
    rest = np.empty(2 * k), *pairs, 0, 0
    more = False, False, None if is_capped else oracle.solve_into, None
    start = kernels.class_descend(
        *given, *here, *there, *rest, 0.0, np.nan, True, 0, *[0.0] * 3, *more
    )
    value, tau, is_other = start[2], start[5], start[9]
    if is_other:
        here, there = there, here
    # Until a step promises no more than rounding.
    most, reference, share = 300, 2.0 * value, 1e-18
    goal = value, tau, False, most, reference, share, 0.0
    kernels.class_descend(*given, *here, *there, *rest, *goal, *more)
    return theta[k:]


def _class_shares(problem: Any, weights: Any) -> Vector:
    if not problem.loss.is_classification:
        return np.ones(problem.n_outputs)
    return problem.rows.class_masses(weights, problem.n_outputs)


def _minimum(problem: Any, raw: Any, at: Callable[[float], Point]) -> Vector:
    """The minimum of a convex function of one number.

    Its points are ``(b, value, slope, scale)``, with the size of what cancels in the slope.

    By the secant method on the slope in a bracket (Illinois), which is fast where the function is
    smooth, or by the tangents of both ends, which is fast at a kink: one of them until it narrows
    the bracket too little. Where the tangents meet is also a lower bound on the value.
    """
    likely = None
    if problem.rows.has("witnesses"):
        likely = problem.rows.likely_intercept(problem, raw)
    if likely is not None:
        low, middle, high = at(likely[0]), 0.5 * sum(likely), at(likely[1])
    elif problem.loss.is_of_residuals:
        least, greatest, middle = problem.rows.offsets(raw)
        is_mean = problem.loss.is_quadratic and problem.uncertainty.tail_share == 1
        if is_mean and _is_flat(at(middle)):
            return np.array([middle])
        low, high = at(least), at(greatest)
        if low[0] == high[0]:
            return np.array([low[0]])
    else:
        low, middle, high = at(-1.0), 0.0, at(1.0)
    for _ in range(60):  # only a loss of unknown kind, or logistic, needs to widen the bracket
        width = high[0] - low[0]
        if low[2] > 0:
            low = at(low[0] - 2.0 * width)
        elif high[2] < 0:
            high = at(high[0] + 2.0 * width)
        else:
            break
    best, cancelling = min(low, high, key=_value), 0.0
    if problem.baseline is not None:
        cancelling = max(abs(end) for end in problem.rows.extremes(problem.baseline))
    f_low, f_high = low[2], high[2]  # halved by the secant method
    b, kept, by_tangents, before = middle, 0, True, high[0] - low[0]
    for _ in range(200):
        point = at(b)
        best = min(best, point, key=_value)
        if _is_flat(point):
            return np.array([b])
        if point[2] < 0:
            low, f_low = point, point[2]
            f_high, kept = (0.5 * f_high, kept) if kept == 1 else (high[2], 1)
        else:
            high, f_high = point, point[2]
            f_low, kept = (0.5 * f_low, kept) if kept == -1 else (low[2], -1)
        width = high[0] - low[0]
        meeting = (low[1] - high[1] + high[2] * width) / (high[2] - low[2])
        bound = low[1] + low[2] * meeting
        done = best[1] - bound <= _VALUE_TOLERANCE * max(abs(best[1]), cancelling)
        if done or width <= 1e-14 * (abs(low[0]) + abs(high[0])):
            break
        if width > _NARROWS * before:
            by_tangents = not by_tangents
        before = width
        secant = -f_low * width / (f_high - f_low)
        step = low[0] + (meeting if by_tangents else secant)
        b = step if low[0] < step < high[0] else 0.5 * (low[0] + high[0])
    return np.array([best[0]])


def _value(point: Point) -> float:
    return point[1]


def _is_flat(point: Point) -> bool:
    return abs(point[2]) <= _SLOPE_TOLERANCE * point[3]
