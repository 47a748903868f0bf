"""DRAGO's iterations where all rows are one block: one output, a capped simplex with chi2.

The same as `drago.solvers.variants.SupportIterations` with `SecantSteps`, which says what they do
and takes a hundred calls to NumPy for each of them.
"""

import math

import numpy as np

from drago.kernels import jit
from drago.kernels.dual_capped import capped_chi2
from drago.kernels.losses import one_single_output


@jit()
def _turn(basis, v, back, out):
    """``out = basis' v``, or ``basis v`` on the way back; a copy without a basis."""
    d = v.shape[0]
    for j in range(d):
        if basis.shape[0] == 0:
            out[j] = v[j]
            continue
        total = 0.0
        for k in range(d):
            total += (basis[j, k] if back else basis[k, j]) * v[k]
        out[j] = total


@jit(error_model="numpy")
def _learn(size, product, curvatures, alpha, largest, boldness, growth):
    """The next step size, from the change of the gradient along the last step.

    `size` is the square of the step's length, `product` its product with that change; `curvatures`
    are those of the last steps, NaN where there are fewer: the oldest is dropped.
    """
    curvature = product / size if size > 0.0 else math.nan
    if not math.isfinite(curvature):
        return alpha
    last = curvatures.shape[0] - 1
    worst = curvature
    for k in range(last):
        curvatures[k] = curvatures[k + 1]
        if curvatures[k] > worst:
            worst = curvatures[k]
    curvatures[last] = curvature
    return min(boldness / worst, largest, growth * alpha) if worst > 0.0 else alpha


@jit(error_model="numpy")
def one_block_steps(
    X, y, code, parameter, p, cap, nu, mu, mean, eigenvalues, basis, along, intercept, n_steps,
    is_fresh, alpha, largest, boldness, growth, curvatures, past_point, past_slope, has_past,
    tau, tau_cost, w, b, raw, losses, slopes, q, gradient, gradient_b,
):  # fmt: skip
    """`n_steps` iterations; ``w, raw, losses, slopes, q, gradient`` and the past are overwritten.

    Points and gradients are those of centred features, with the intercept's as last entry.

    Returns ``b, gradient_b, alpha, tau`` and the cost that the threshold ``tau`` belongs to.
    """
    n, d = X.shape
    u, weighted = np.empty(n), np.empty(n)
    point, slope = np.empty(d + 1), np.empty(d + 1)
    turned, downhill = np.empty(d), np.empty(d)
    for step in range(n_steps):
        if step > 0 or not is_fresh:
            gradient_b = 0.0
            for i in range(n):
                weighted[i] = q[i] * slopes[i]
                gradient_b += weighted[i]
            np.dot(X.T, weighted, gradient)
        point[d], slope[d] = b, gradient_b if intercept else 0.0
        for j in range(d):
            point[j], slope[j] = w[j], gradient[j]
            if intercept:
                point[d] += mean[j] * w[j]
                slope[j] -= mean[j] * gradient_b
        if has_past:
            product = (point[d] - past_point[d]) * (slope[d] - past_slope[d])
            for j in range(d):
                turned[j] = point[j] - past_point[j]
                product += turned[j] * (slope[j] - past_slope[j])
            _turn(basis, turned, False, downhill)
            size = along * (point[d] - past_point[d]) ** 2
            for j in range(d):
                size += eigenvalues[j] * downhill[j] * downhill[j]
            alpha = _learn(size, product, curvatures, alpha, largest, boldness, growth)
        for j in range(d + 1):
            past_point[j], past_slope[j] = point[j], slope[j]
        has_past = True
        near, s, ratio = 1.0 / alpha, nu / alpha, 1.0 / (1.0 + alpha)
        _turn(basis, w, False, turned)
        _turn(basis, slope[:d], False, downhill)
        for j in range(d):
            h = eigenvalues[j]
            turned[j] = (h * near * turned[j] - downhill[j]) / (mu + near * h)
        _turn(basis, turned, True, w)
        if intercept:
            b = point[d] - alpha * gradient_b / along
            for j in range(d):
                b -= mean[j] * w[j]
        np.dot(X, w, raw)
        for i in range(n):
            before = losses[i]
            raw[i] += b
            losses[i], slopes[i] = one_single_output(code, parameter, y[i], raw[i])
            u[i] = losses[i] + s * (q[i] / p[i]) + ratio * (losses[i] - before)
        cost = nu + s
        if not 0.5 * tau_cost <= cost <= 2.0 * tau_cost:
            tau = math.nan
        tau, tau_cost = capped_chi2(u, p, cost, cap, tau, q), cost
    return b, gradient_b, alpha, tau, tau_cost


@jit()
def two_values(losses, p, nu, cap, tau, q, room):
    """``<l, x> - nu D(x || p)`` of the exact weights ``x``, and of `q`; and their threshold."""
    tau = capped_chi2(losses, p, nu, cap, tau, room)
    best, value = 0.0, 0.0
    for i in range(losses.shape[0]):
        x, y = room[i] / p[i] - 1.0, q[i] / p[i] - 1.0
        best += room[i] * losses[i] - 0.5 * nu * p[i] * x * x
        value += q[i] * losses[i] - 0.5 * nu * p[i] * y * y
    return best, value, tau
