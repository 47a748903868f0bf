"""DRAGO's iterations where all rows are one block: one output, a capped simplex with chi2.

The same as `drago.solvers.iterations.SupportIterations` with `SecantSteps`, which says what they do
and takes a hundred calls to NumPy for each of them.
"""

import math

import numpy as np

from drago.kernels import jit
from drago.kernels.dual_capped import capped_chi2
from drago.kernels.losses import one_single_output


@jit(error_model="numpy")
def _learn(moved, changed, eigenvalues, basis, along, curvatures, alpha, largest, boldness, growth):
    """The next step size, from the change of the gradient along the last step.

    `curvatures` are those of the last steps, NaN where there are fewer; the oldest is dropped.
    """
    d = eigenvalues.shape[0]
    turned = np.dot(basis.T, moved[:d]) if basis.shape[0] else moved[:d]
    size = along * moved[d] * moved[d]
    for j in range(d):
        size += eigenvalues[j] * turned[j] * turned[j]
    if not size > 0.0:
        return alpha
    curvature = np.dot(moved, changed) / size
    if not math.isfinite(curvature):
        return alpha
    curvatures[:-1] = curvatures[1:]
    curvatures[-1] = curvature
    worst = np.nanmax(curvatures)
    return min(boldness / worst, largest, growth * alpha) if worst > 0.0 else alpha


@jit(error_model="numpy")
def one_block_steps(
    X, y, code, parameter, p, cap, nu, mu, mean, eigenvalues, basis, along, intercept, n_steps,
    is_fresh, alpha, largest, boldness, growth, curvatures, past_point, past_slope, has_past,
    tau, tau_cost, w, b, losses, slopes, q, gradient, gradient_b,
):  # fmt: skip
    """`n_steps` iterations; ``w, losses, slopes, q, gradient`` and the past are overwritten.

    Points and gradients are those of centred features, with the intercept's as last entry.

    Returns ``b, gradient_b, alpha, tau`` and the cost that the threshold ``tau`` belongs to.
    """
    n, d = X.shape
    u, weighted = np.empty(n), np.empty(n)
    point, slope, target = np.empty(d + 1), np.empty(d + 1), np.empty(d)
    for step in range(n_steps):
        if step > 0 or not is_fresh:
            gradient_b = 0.0
            for i in range(n):
                weighted[i] = q[i] * slopes[i]
                gradient_b += weighted[i]
            gradient[:] = np.dot(X.T, weighted)
        point[:d], point[d] = w, b + np.dot(mean, w)
        slope[:d], slope[d] = gradient, gradient_b
        if intercept:
            for j in range(d):
                slope[j] -= mean[j] * gradient_b
        else:
            slope[d] = 0.0
        if has_past:
            alpha = _learn(
                point - past_point, slope - past_slope, eigenvalues, basis, along, curvatures,
                alpha, largest, boldness, growth,
            )  # fmt: skip
        past_point[:], past_slope[:], has_past = point, slope, True
        near, s, ratio = 1.0 / alpha, nu / alpha, 1.0 / (1.0 + alpha)
        turned = np.dot(basis.T, w) if basis.shape[0] else w.copy()
        downhill = np.dot(basis.T, slope[:d]) if basis.shape[0] else slope[:d]
        for j in range(d):
            h = eigenvalues[j]
            target[j] = (h * near * turned[j] - downhill[j]) / (mu + near * h)
        w[:] = np.dot(basis, target) if basis.shape[0] else target
        if intercept:
            b = point[d] - alpha * gradient_b / along - np.dot(mean, w)
        raw = np.dot(X, w)
        for i in range(n):
            before = losses[i]
            losses[i], slopes[i] = one_single_output(code, parameter, y[i], raw[i] + b)
            u[i] = losses[i] + s * (q[i] / p[i]) + ratio * (losses[i] - before)
        cost = nu + s
        if not 0.5 * tau_cost <= cost <= 2.0 * tau_cost:
            tau = math.nan
        tau, tau_cost = capped_chi2(u, p, cost, cap, tau, q), cost
    return b, gradient_b, alpha, tau, tau_cost
