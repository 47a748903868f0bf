"""Newton steps on a stage of the proximal method, for one output and a capped simplex with chi2.

The stage's objective is ``P_c(w) = max over q of <q, l(w) + shift> - c Omega(q)`` and the ridge
(`drago.solvers.newton` says where the shift comes from). The unknowns are ``theta = (w, b)``; the
last entry stays 0 where no intercept is fitted. The general, slower way through Python is
`drago.certificate.hessian`. Loops stand where NumPy has a word for it: they compile in a fraction
of the time.
"""

import math

import numpy as np

from drago.kernels import REDUCE, jit
from drago.kernels.dual_capped import capped_chi2
from drago.kernels.losses import one_second, one_single_output

# Rows that are gathered at a time, for one product of matrices.
GATHERED = 256
# Relative distance to the cap below which a weight counts as lying on it.
ON_BOUND = 1e-12
# Rounding of the objective.
ROUNDING = 1e-15


@jit(error_model="numpy")
def _losses(y, baseline, code, parameter, shift, raw, losses, slopes, u):
    """The losses and their slopes, and the losses with the shift added; returns their sum.

    The losses are those less the `baseline`, which may be empty.
    """
    total = 0.0
    for i in range(y.shape[0]):
        losses[i], slopes[i] = one_single_output(code, parameter, y[i], raw[i])
        if baseline.shape[0] > 0:
            losses[i] -= baseline[i]
        u[i] = losses[i] + shift[i]
        total += losses[i]
    return total


@jit(fastmath=REDUCE, error_model="numpy")
def _sums(losses, u, q, p):
    """``<q, losses>``, ``<q, u>`` and ``sum q^2 / p``, over the rows of weight."""
    first, second, third = 0.0, 0.0, 0.0
    for i in range(q.shape[0]):
        if q[i] > 0.0:
            first += q[i] * losses[i]
            second += q[i] * u[i]
            third += q[i] * q[i] / p[i]
    return first, second, third


@jit()
def _value(
    y, baseline, code, parameter, p, cap, c, nu, shift, mu, theta, raw, tau, losses, slopes, q, u
):  # fmt: skip
    """``P_c`` at a point, ``L(w, q)`` at its weights, and the threshold of these.

    Fills the losses, slopes and weights. The divergence is from p, as in the problem. Infinitely
    high where the losses are no numbers.
    """
    if not math.isfinite(_losses(y, baseline, code, parameter, shift, raw, losses, slopes, u)):
        return math.inf, math.inf, tau
    tau = capped_chi2(u, p, c, cap, tau, q)
    loss, shifted, square = _sums(losses, u, q, p)
    away = 0.5 * (square - 1.0)
    ridge = 0.0
    for j in range(theta.shape[0] - 1):
        ridge += 0.5 * mu * theta[j] * theta[j]
    return shifted - c * away + ridge, loss - nu * away + ridge, tau


@jit()
def _add_square(rows, square):
    """``square += rows' rows``."""
    part = np.dot(rows.T, rows)
    for j in range(part.shape[0]):
        for k in range(part.shape[1]):
            square[j, k] += part[j, k]


@jit(error_model="numpy")
def _system(X, y, code, parameter, p, cap, c, raw, slopes, q, intercept, H, r):
    """The generalised Hessian and the gradient, both without the ridge.

    ``H = sum_i q_i l_i'' f_i f_i' + Z' (dq/dl) Z``, with ``dq_i/dl = p_i / c`` on the rows between
    0 and the cap, less what keeps their sum. With ``a_i f_i f_i'`` the terms of the first two sums,
    the rows ``sqrt(a_i) (f_i, gradient's factor / a_i, move's factor / a_i)`` hold all that is
    needed in one square.
    """
    n, d = X.shape
    m = H.shape[0]
    rows, size = np.empty((GATHERED, m + 2)), 0
    square, mass = np.zeros((m + 2, m + 2)), 0.0
    for j in range(m):
        r[j] = 0.0
    for i in range(n):
        if not q[i] > 0.0:
            continue
        s = slopes[i]
        rate = p[i] / c if q[i] < cap * p[i] * (1.0 - ON_BOUND) else 0.0
        root = math.sqrt(q[i] * one_second(code, parameter, y[i], raw[i]) + rate * s * s)
        mass += rate
        if not root > 0.0:  # no curvature
            for j in range(d):
                r[j] += q[i] * s * X[i, j]
            if intercept:
                r[d] += q[i] * s
            continue
        for j in range(d):
            rows[size, j] = root * X[i, j]
        if intercept:
            rows[size, d] = root
        rows[size, m] = q[i] * s / root
        rows[size, m + 1] = rate * s / root
        size += 1
        if size == GATHERED:
            _add_square(rows, square)
            size = 0
    if size > 0:
        _add_square(rows[:size], square)
    share = 1.0 / mass if mass > 0.0 else 0.0
    for j in range(m):
        r[j] += square[j, m]
        for k in range(m):
            H[j, k] = square[j, k] - square[j, m + 1] * (square[k, m + 1] * share)


@jit()
def _add_moments(X, q, scale, extra):
    """``extra_j += scale sum_i q_i x_ij^2``: what curvature there could be."""
    for i in range(X.shape[0]):
        if q[i] > 0.0:
            for j in range(X.shape[1]):
                extra[j] += scale * q[i] * X[i, j] * X[i, j]


@jit(error_model="numpy")
def _solve(H, extra, r, L, x):
    """``(H + diag(extra)) x = -r`` by Cholesky's factors in `L`; whether that went well."""
    m = r.shape[0]
    for j in range(m):
        pivot = H[j, j] + extra[j]
        for k in range(j):
            pivot -= L[j, k] * L[j, k]
        if not pivot > 0.0:
            return False
        root = math.sqrt(pivot)
        L[j, j] = root
        for i in range(j + 1, m):
            value = H[i, j]
            for k in range(j):
                value -= L[i, k] * L[j, k]
            L[i, j] = value / root
    for i in range(m):
        value = -r[i]
        for k in range(i):
            value -= L[i, k] * x[k]
        x[i] = value / L[i, i]
    for i in range(m - 1, -1, -1):
        value = x[i]
        for k in range(i + 1, m):
            value -= L[k, i] * x[k]
        x[i] = value / L[i, i]
    total = 0.0
    for i in range(m):
        total += abs(x[i])
    return math.isfinite(total)


@jit()
def capped_newton(
    X, y, baseline, size, code, parameter, curvature, p, cap, c, nu, shift, constant, mu,
    intercept, dampings, halvings, done, enough, most, tau, theta, raw,
):  # fmt: skip
    """Up to `most` steps from ``theta`` with the raw predictions ``raw``, which is overwritten.

    The `size` is that of what cancels in the objective, 0 without a baseline.

    Ends early when a step promises no more than `done` times what the move of the weights costs,
    or no more than `enough`, or when none lowers the objective.

    Returns
    -------
    steps, trials : int
    tau : float
        The threshold of the weights.
    promise, value, level : float
        Half the decrement of the last step, ``P_c`` and ``L(w, q)`` behind it.
    state : int
        0 when there is more to do, 1 when the promise is small, 2 when no step helps.
    theta, raw, losses, slopes, q : arrays
        Where it ends.
    """
    n, d = X.shape
    m = d + 1 if intercept else d
    H, L = np.empty((m, m)), np.zeros((m, m))
    r, x, extra = np.empty(m), np.empty(m), np.empty(m)
    u, move = np.empty(n), np.empty(n)
    losses, slopes, q = np.empty(n), np.empty(n), np.empty(n)
    raw_, losses_, slopes_, q_ = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    theta_ = theta.copy()
    value, level, tau = _value(
        y, baseline, code, parameter, p, cap, c, nu, shift, mu, theta, raw, tau, losses, slopes,
        q, u,
    )  # fmt: skip
    value += constant
    promise, trials, steps, state = math.inf, 1, 0, 0
    while steps < most and state == 0:
        _system(X, y, code, parameter, p, cap, c, raw, slopes, q, intercept, H, r)
        for j in range(d):
            H[j, j] += mu
            r[j] += mu * theta[j]
        state, rounding = 2, ROUNDING * max(abs(value), size)
        for damping in dampings:
            for j in range(m):
                extra[j] = (1e-13 + damping) * H[j, j]
            if intercept:
                extra[d] += (1e-12 + damping) * curvature
            if damping > 0.0:
                _add_moments(X, q, damping * curvature, extra)
            if not _solve(H, extra, r, L, x):
                continue
            slope = 0.0
            for j in range(m):
                slope += r[j] * x[j]
            np.dot(X, x[:d], move)
            length = 1.0
            for _ in range(halvings):
                constant_part = length * x[d] if intercept else 0.0
                for i in range(n):
                    raw_[i] = raw[i] + (length * move[i] + constant_part)
                for j in range(m):
                    theta_[j] = theta[j] + length * x[j]
                new, new_level, new_tau = _value(
                    y, baseline, code, parameter, p, cap, c, nu, shift, mu, theta_, raw_, tau,
                    losses_, slopes_, q_, u,
                )  # fmt: skip
                new += constant
                trials += 1
                if new <= value + 1e-4 * length * min(slope, 0.0) + rounding:
                    state = 0
                    break
                length *= 0.5
                if -length * slope <= 0.1 * rounding:
                    break
            if state == 0:
                break
        if state == 0:
            theta, theta_ = theta_, theta
            raw, raw_ = raw_, raw
            losses, losses_ = losses_, losses
            slopes, slopes_ = slopes_, slopes
            q, q_ = q_, q
            promise, value, level, tau = -0.5 * slope, new, new_level, new_tau
            steps += 1
            if promise <= max(done * (level - value), enough):
                state = 1
    return steps, trials, tau, promise, value, level, state, theta, raw, losses, slopes, q
