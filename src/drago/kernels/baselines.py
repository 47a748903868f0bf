"""Iterations of SGD, LSVRG and Prospect on rows of a dense or a CSR matrix.

A matrix comes as ``values, indices, starts``: those of CSR, or for a dense one its entries row by
row with `indices` and `starts` empty. Coefficients and gradients are flat, as the rows want them:
one output after the other for a dense matrix, one feature after the other for a sparse one. The
coefficients ``w`` and the intercept ``b`` are changed in place.

The variance-reduced steps move all coordinates, ``w <- r w - eta (g + change x_i)`` with
``r = 1 - eta mu``. On sparse rows a coordinate is only brought up to date when a row needs it:
while no row does, its ``g`` is constant, and m steps are
``w <- r^m w - eta (1 + ... + r^(m-1)) g``.
"""

import math

import numpy as np

from drago.kernels import LEAN, REDUCE, jit
from drago.kernels.dual_balls import chi2_ball, kl_ball
from drago.kernels.dual_capped import capped_chi2, capped_kl
from drago.kernels.dual_spectral import spectral_chi2, spectral_kl, spectral_vertex
from drago.kernels.losses import MULTINOMIAL, one_multinomial, one_single_output

# `DualOracle.family` and `Divergence.code`.
CAPPED, BALL, SPECTRAL = 0, 1, 2
CHI2, KL = 0, 1
# A factor of w that is kept apart is multiplied in before it leaves this range.
_SMALLEST = 1e-50


@jit(fastmath=REDUCE, error_model="numpy", **LEAN)
def _row(indices, starts, d, i):
    """Where the entries of row `i` are."""
    if indices.shape[0] == 0:
        return i * d, (i + 1) * d
    return starts[i], starts[i + 1]


@jit(fastmath=REDUCE, error_model="numpy", **LEAN)
def _predict(values, indices, lo, hi, w, raw):
    """``raw = x'w`` for one row."""
    k = raw.shape[0]
    if indices.shape[0] == 0:
        for c in range(k):
            place, total = c * (hi - lo), 0.0
            for j in range(hi - lo):
                total += values[lo + j] * w[place + j]
            raw[c] = total
        return
    for c in range(k):
        raw[c] = 0.0
    for e in range(lo, hi):
        place = indices[e] * k
        for c in range(k):
            raw[c] += values[e] * w[place + c]


@jit(fastmath=REDUCE, error_model="numpy", **LEAN)
def _add(values, indices, lo, hi, weights, out):
    """``out += x weights'`` for one row."""
    k = weights.shape[0]
    if indices.shape[0] == 0:
        for c in range(k):
            place, weight = c * (hi - lo), weights[c]
            for j in range(hi - lo):
                out[place + j] += values[lo + j] * weight
        return
    for e in range(lo, hi):
        place = indices[e] * k
        for c in range(k):
            out[place + c] += values[e] * weights[c]


@jit(fastmath=REDUCE, error_model="numpy", **LEAN)
def _loss(code, parameter, y, raw, slopes):
    """Loss and slopes of one row."""
    if code == MULTINOMIAL:
        return one_multinomial(int(y), raw, slopes)
    loss, slopes[0] = one_single_output(code, parameter, y, raw[0])
    return loss


# ------------------------------------------------------------------------------------- SGD


@jit(error_model="numpy")
def _batch_weights(family, divergence, parameter, sigma, u, p, nu, memory, q):
    """``argmax <u, q> - nu D(q || p)`` on a batch; `memory` is where the next search starts."""
    none = np.empty(0)
    if family == CAPPED:
        if divergence == CHI2:
            return capped_chi2(u, p, nu, parameter, memory, q)
        return capped_kl(u, p, nu, parameter, memory, q, none)
    if family == BALL:
        if divergence == CHI2:
            return chi2_ball(u, p, nu, parameter, memory, q)[1]
        return kl_ball(u, p, nu, parameter, memory, q, none)[1]
    m = u.shape[0]
    order = np.argsort(u)
    first = np.empty(m + 1, np.int64)
    ratio, one, two = np.empty(m), np.empty(m), np.empty(m)
    _sweep(divergence, u[order], p, sigma, nu, ratio, one, two, first)
    for place in range(m):
        q[order[place]] = ratio[place] * p[place]
    return memory


@jit(error_model="numpy")
def _sweep(divergence, sorted_u, p, sigma, nu, ratio, one, two, first):
    """Ratios q / p of a spectral set, in the order of the losses."""
    if nu == 0.0:
        spectral_vertex(sorted_u, p, sigma, ratio, first)
    elif divergence == CHI2:
        spectral_chi2(sorted_u, p, sigma, nu, ratio, one, two, first)
    else:
        spectral_kl(sorted_u, p, sigma, nu, ratio, one, np.empty(0), first)


@jit(fastmath=REDUCE, error_model="numpy")
def sgd(
    values, indices, starts, y, code, loss_parameter, baseline,
    family, divergence, parameter, sigma, short_sigma,
    w, b, order, batch_size, eta, mu, nu, fit_intercept,
):  # fmt: skip
    """Minibatch steps along the rows of `order`; returns the mean of the batches' robust loss.

    On a batch B, ``q = argmax <l_B(w), q> - nu D(q || 1/|B|)``, and
    ``w <- w - eta (sum_B q_i grad l_i(w) + mu w)``. The last batch may be short; `sigma` and
    `short_sigma` are the spectra of a whole and of that one.
    """
    k = b.shape[0]
    d = w.shape[0] // k
    n = order.shape[0]
    losses, q = np.empty(batch_size), np.empty(batch_size)
    slopes, raw, weights = np.empty((batch_size, k)), np.empty(k), np.empty(k)
    nominal = np.full(batch_size, 1.0 / batch_size)
    memory, scale, shrink, total = math.nan, 1.0, 1.0 - eta * mu, 0.0
    for begin in range(0, n, batch_size):
        m = min(batch_size, n - begin)
        if m < batch_size:
            nominal = np.full(m, 1.0 / m)
            memory = math.nan
        for r in range(m):
            i = order[begin + r]
            lo, hi = _row(indices, starts, d, i)
            _predict(values, indices, lo, hi, w, raw)
            for c in range(k):
                raw[c] = raw[c] * scale + b[c]
            losses[r] = _loss(code, loss_parameter, y[i], raw, slopes[r])
            if baseline.shape[0] > 0:
                losses[r] -= baseline[i]
        u, q_batch = losses[:m], q[:m]
        masses = sigma if m == batch_size else short_sigma
        memory = _batch_weights(
            family, divergence, parameter, masses, u, nominal, nu, memory, q_batch
        )
        scale *= shrink
        if abs(scale) < _SMALLEST:
            for j in range(w.shape[0]):
                w[j] *= scale
            scale = 1.0
        for r in range(m):
            total += q[r] * losses[r] * m
            if q[r] == 0.0:
                continue
            for c in range(k):
                weights[c] = -eta * q[r] * slopes[r, c]
                if fit_intercept:
                    b[c] += weights[c]
                weights[c] /= scale
            lo, hi = _row(indices, starts, d, order[begin + r])
            _add(values, indices, lo, hi, weights, w)
    for j in range(w.shape[0]):
        w[j] *= scale
    return total / n


# ------------------------------------------------------------------------ variance reduction


@jit()
def _powers(steps, shrink):
    """``r^m`` and ``1 + r + ... + r^(m-1)`` for m up to `steps`."""
    power, series = np.empty(steps + 1), np.empty(steps + 1)
    power[0], series[0] = 1.0, 0.0
    for m in range(steps):
        power[m + 1] = power[m] * shrink
        series[m + 1] = series[m] * shrink + 1.0
    return power, series


@jit(fastmath=REDUCE, error_model="numpy", **LEAN)
def _catch_up(indices, lo, hi, k, t, last, power, series, eta, g, w):
    """Bring the coordinates of a sparse row up to step `t`."""
    for e in range(lo, hi):
        j = indices[e]
        m = t - last[j]
        if m > 0:
            for c in range(j * k, (j + 1) * k):
                w[c] = power[m] * w[c] - eta * series[m] * g[c]
            last[j] = t


@jit()
def _catch_up_all(k, t, last, power, series, eta, g, w):
    for j in range(last.shape[0]):
        m = t - last[j]
        for c in range(j * k, (j + 1) * k):
            w[c] = power[m] * w[c] - eta * series[m] * g[c]
        last[j] = t


@jit(fastmath=REDUCE, error_model="numpy", **LEAN)
def _step(values, indices, lo, hi, shrink, eta, g, change, last, t, w):
    """``w <- r w - eta (g + x change')``, for a sparse row on its own coordinates alone."""
    k = change.shape[0]
    if indices.shape[0] == 0:
        for c in range(k):
            place, factor = c * (hi - lo), change[c]
            for j in range(hi - lo):
                step = g[place + j] + values[lo + j] * factor
                w[place + j] = shrink * w[place + j] - eta * step
        return
    for e in range(lo, hi):
        place = indices[e] * k
        for c in range(k):
            step = g[place + c] + values[e] * change[c]
            w[place + c] = shrink * w[place + c] - eta * step
        last[indices[e]] = t + 1


@jit(fastmath=REDUCE, error_model="numpy")
def lsvrg(
    values, indices, starts, y, code, loss_parameter,
    w, b, weights, old_slopes, g, g_b, draws, eta, mu, fit_intercept,
):  # fmt: skip
    """Steps with the rows `draws` between two checkpoints.

    ``w <- w - eta (n qbar_i (grad l_i(w) - grad l_i(wbar)) + gbar + mu w)``, where `weights` are
    the qbar, `old_slopes` the slopes at wbar, and `g`, `g_b` the gradient gbar there.
    """
    n, k = y.shape[0], b.shape[0]
    d = w.shape[0] // k
    raw, slopes = np.empty(k), np.empty(k)
    shrink = 1.0 - eta * mu
    sparse = indices.shape[0] > 0
    last = np.zeros(d if sparse else 0, np.int64)
    power, series = _powers(draws.shape[0] if sparse else 0, shrink)
    for t in range(draws.shape[0]):
        i = draws[t]
        lo, hi = _row(indices, starts, d, i)
        if sparse:
            _catch_up(indices, lo, hi, k, t, last, power, series, eta, g, w)
        _predict(values, indices, lo, hi, w, raw)
        for c in range(k):
            raw[c] += b[c]
        _loss(code, loss_parameter, y[i], raw, slopes)
        for c in range(k):
            slopes[c] = n * weights[i] * (slopes[c] - old_slopes[i, c])
            if fit_intercept:
                b[c] -= eta * (g_b[c] + slopes[c])
        _step(values, indices, lo, hi, shrink, eta, g, slopes, last, t, w)
    if sparse:
        _catch_up_all(k, draws.shape[0], last, power, series, eta, g, w)


@jit(**LEAN)
def _move(order, rank, sorted_u, i, value):
    """Give row `i` another value in a sorted list; what lies between moves by a place."""
    n = order.shape[0]
    place = rank[i]
    while place + 1 < n and sorted_u[place + 1] < value:
        sorted_u[place], order[place] = sorted_u[place + 1], order[place + 1]
        rank[order[place]] = place
        place += 1
    while place > 0 and sorted_u[place - 1] > value:
        sorted_u[place], order[place] = sorted_u[place - 1], order[place - 1]
        rank[order[place]] = place
        place -= 1
    sorted_u[place], order[place], rank[i] = value, i, place


@jit(fastmath=REDUCE, error_model="numpy")
def prospect(
    values, indices, starts, y, code, loss_parameter, baseline,
    family, divergence, parameter, sigma, p,
    w, b, table, q, products, g, g_b, draws, eta, mu, nu, memory, fit_intercept,
):  # fmt: skip
    """Steps with the rows `draws`; the tables and their aggregate are changed in place.

    ``w <- w - eta (n q_i grad l_i(w) - n qhat_i ghat_i + gbar + mu w)``, then `table` gets the
    loss of row i, ``q`` becomes the exact weights of the table, `products` the new ``q_i s_i``,
    and `g`, `g_b` change by what it changed. The losses stay sorted throughout: only row i moves.
    Returns where the next search for the weights starts.
    """
    n, k = y.shape[0], b.shape[0]
    d = w.shape[0] // k
    raw, slopes, change = np.empty(k), np.empty(k), np.empty(k)
    shrink = 1.0 - eta * mu
    sparse = indices.shape[0] > 0
    last = np.zeros(d if sparse else 0, np.int64)
    power, series = _powers(draws.shape[0] if sparse else 0, shrink)
    size = n if family == SPECTRAL else 0
    order = np.argsort(table[:size])
    sorted_u = table[order]
    rank, first = np.empty(size, np.int64), np.empty(size + 1, np.int64)
    ratio, one, two = np.empty(size), np.empty(size), np.empty(size)
    for place in range(size):
        rank[order[place]] = place
        ratio[place] = q[order[place]] / p[place]
    for t in range(draws.shape[0]):
        i = draws[t]
        lo, hi = _row(indices, starts, d, i)
        if sparse:
            _catch_up(indices, lo, hi, k, t, last, power, series, eta, g, w)
        _predict(values, indices, lo, hi, w, raw)
        for c in range(k):
            raw[c] += b[c]
        loss = _loss(code, loss_parameter, y[i], raw, slopes)
        if baseline.shape[0] > 0:
            loss -= baseline[i]
        weight = q[i] if family == CAPPED else ratio[rank[i]] * p[i]
        for c in range(k):
            change[c] = n * (weight * slopes[c] - products[i, c])
            if fit_intercept:
                b[c] -= eta * (g_b[c] + change[c])
        _step(values, indices, lo, hi, shrink, eta, g, change, last, t, w)
        table[i] = loss
        if family == CAPPED:
            if divergence == CHI2:
                memory = capped_chi2(table, p, nu, parameter, memory, q)
            else:
                memory = capped_kl(table, p, nu, parameter, memory, q, np.empty(0))
            weight = q[i]
        else:
            _move(order, rank, sorted_u, i, loss)
            _sweep(divergence, sorted_u, p, sigma, nu, ratio, one, two, first)
            weight = ratio[rank[i]] * p[i]
        for c in range(k):
            change[c] = weight * slopes[c] - products[i, c]
            products[i, c] += change[c]
            g_b[c] += change[c]
        _add(values, indices, lo, hi, change, g)
    if sparse:
        _catch_up_all(k, draws.shape[0], last, power, series, eta, g, w)
    for place in range(size):
        q[order[place]] = ratio[place] * p[place]
    return memory
