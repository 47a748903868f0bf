"""DRAGO's iterations where all rows are one block: one output, a capped simplex with chi2.

The same as `drago.solvers.drago.variants.SupportIterations` with `SecantSteps`, which says what
they do and takes a hundred calls to NumPy for each of them.
"""

import math

import numpy as np

from drago.kernels import REDUCE, jit
from drago.kernels.dual_capped import capped_chi2
from drago.kernels.losses import one_single_output


@jit(fastmath=REDUCE)
def _predict(X, columns, w, raw):
    """``raw = X w``, four columns at a time where there is a copy of X by columns."""
    n, d = X.shape
    if columns.shape[0] == 0:
        np.dot(X, w, raw)
        return
    raw[:] = 0.0
    fours = d - d % 4
    for j in range(0, fours, 4):
        c0, c1, c2, c3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
        w0, w1, w2, w3 = w[j], w[j + 1], w[j + 2], w[j + 3]
        for i in range(n):
            raw[i] += (w0 * c0[i] + w1 * c1[i]) + (w2 * c2[i] + w3 * c3[i])
    for j in range(fours, d):
        column, weight = columns[j], w[j]
        for i in range(n):
            raw[i] += weight * column[i]


@jit(fastmath=REDUCE)
def _gradient(X, columns, q, slopes, weighted, out):
    """``out = X' (q slopes)``; returns ``q' slopes``."""
    n, d = X.shape
    total = 0.0
    for i in range(n):
        weighted[i] = q[i] * slopes[i]
        total += weighted[i]
    if columns.shape[0] == 0:
        np.dot(X.T, weighted, out)
        return total
    fours = d - d % 4
    for j in range(0, fours, 4):
        c0, c1, c2, c3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
        s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            s0 += c0[i] * weighted[i]
            s1 += c1[i] * weighted[i]
            s2 += c2[i] * weighted[i]
            s3 += c3[i] * weighted[i]
        out[j], out[j + 1], out[j + 2], out[j + 3] = s0, s1, s2, s3
    for j in range(fours, d):
        column, s = columns[j], 0.0
        for i in range(n):
            s += column[i] * weighted[i]
        out[j] = s
    return total


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
def one_block_start(
    X, columns, y, baseline, code, parameter, p, cap, nu, w, b, losses, slopes, q, gradient
):  # fmt: skip
    """Losses and slopes at ``(w, b)``, the exact weights and the gradient there.

    The losses are those less the `baseline`, which may be empty.

    Returns the gradient's part for the intercept, the weights' threshold and their second moment;
    and whether all losses and slopes are numbers.
    """
    n = X.shape[0]
    raw = np.empty(n)
    _predict(X, columns, w, raw)
    finite = True
    for i in range(n):
        losses[i], slopes[i] = one_single_output(code, parameter, y[i], raw[i] + b)
        if baseline.shape[0] > 0:
            losses[i] -= baseline[i]
        finite &= math.isfinite(losses[i]) & math.isfinite(slopes[i])
    if not finite:
        return math.nan, math.nan, math.nan, False
    tau, moment = capped_chi2(losses, p, nu, cap, math.nan, q), 0.0
    for i in range(n):
        moment += q[i] * q[i] / p[i]
    return _gradient(X, columns, q, slopes, raw, gradient), tau, moment, True


@jit(error_model="numpy")
def one_block_steps(
    X, columns, y, baseline, code, parameter, p, cap, nu, mu, mean, eigenvalues, basis, along,
    intercept, n_steps, is_fresh, alpha, largest, boldness, growth, curvatures, past_point,
    past_slope, has_past, tau, w, b, raw, losses, slopes, q, gradient, gradient_b,
):  # fmt: skip
    """`n_steps` iterations; ``w, raw, losses, slopes, q, gradient`` and the past are overwritten.

    Points and gradients are those of centred features, with the intercept's as last entry.

    Returns ``b, gradient_b, alpha``, the threshold ``tau`` and the cost that it belongs to; then
    the estimates of the gap and of the objective.
    """
    n, d = X.shape
    u, weighted, inverse = np.empty(n), np.empty(n), np.empty(n)
    for i in range(n):
        inverse[i] = 1.0 / p[i]
    point, slope = np.empty(d + 1), np.empty(d + 1)
    turned, downhill, cost = np.empty(d), np.empty(d), nu
    for step in range(n_steps):
        if step > 0 or not is_fresh:
            gradient_b = _gradient(X, columns, q, slopes, weighted, gradient)
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
        _predict(X, columns, w, raw)
        for i in range(n):
            before = losses[i]
            raw[i] += b
            losses[i], slopes[i] = one_single_output(code, parameter, y[i], raw[i])
            if baseline.shape[0] > 0:
                losses[i] -= baseline[i]
            u[i] = losses[i] + s * (q[i] * inverse[i]) + ratio * (losses[i] - before)
        # With u at a fixed point, l + s q/p, the threshold is the same for every s: also for 0.
        tau, cost = capped_chi2(u, p, nu + s, cap, tau, q), nu + s
    capped_chi2(losses, p, nu, cap, tau, u)
    best, value = _two_values(losses, p, inverse, nu, u, q)
    gap, primal = max(best - value, 0.0), best
    for j in range(d):
        slope[j] = gradient[j] + mu * w[j] - (mean[j] * gradient_b if intercept else 0.0)
        primal += 0.5 * mu * w[j] * w[j]
    _turn(basis, slope[:d], False, downhill)
    for j in range(d):
        gap += 0.5 * downhill[j] * downhill[j] / eigenvalues[j]
    if intercept:
        gap += 0.5 * gradient_b * gradient_b / along
    return b, gradient_b, alpha, tau, cost, gap, primal


@jit(fastmath=REDUCE)
def _two_values(losses, p, inverse, nu, x, y):
    """``<l, q> - nu D(q || p)`` of two kinds of weights; `inverse` is 1/p."""
    one, other = 0.0, 0.0
    for i in range(losses.shape[0]):
        u, v = x[i] * inverse[i] - 1.0, y[i] * inverse[i] - 1.0
        one += x[i] * losses[i] - 0.5 * nu * p[i] * u * u
        other += y[i] * losses[i] - 0.5 * nu * p[i] * v * v
    return one, other
