"""The dual oracles of the divergence balls, ``D(q || p) <= radius``, without sorting.

Solved here: ``argmax_q <u, q> - c Omega(q)``. With the multiplier ``lambda`` of the radius,

    chi2 ball:  q_i = p_i max((u_i - tau) / (c + lambda), 0)
    KL ball:    q_i ~ p_i exp(u_i / (c + lambda))

so the answer depends on ``c`` and the radius only through ``c + lambda``.
"""

import math

import numpy as np

from drago.kernels import REDUCE, jit
from drago.kernels.dual_capped import capped_chi2, capped_kl, capped_vertex


@jit(fastmath=REDUCE, error_model="numpy")
def _moments(u, p, centre, threshold):
    """Mass, mean and variance of ``u - centre`` where it exceeds ``threshold``, mass elsewhere."""
    mass, first, second, dropped = 0.0, 0.0, 0.0, 0.0
    for i in range(u.shape[0]):
        share, d = p[i], u[i] - centre
        above = d > threshold
        w = share if above else 0.0
        mass += w
        dropped += 0.0 if above else share
        first += w * d
        second += w * d * d
    mean = first / mass
    return mass, mean, max(second / mass - mean * mean, 0.0), dropped


@jit(error_model="numpy")
def _chi2_ball_sorted(u, p, radius):
    """Centre, offset and cut of the ball's boundary, by one sort."""
    n = u.shape[0]
    order = np.argsort(u)
    top = u[order[n - 1]]
    rest = np.zeros(n + 1)  # mass below each place
    for k in range(n):
        rest[k + 1] = rest[k] + p[order[k]]
    mass, mean, spread = 0.0, 0.0, 0.0
    # Rows join from the top; with k of them the cut is right when the next row lies below it.
    for k in range(n - 1, -1, -1):
        i = order[k]
        d = u[i] - top
        mass += p[i]
        step = d - mean
        mean += step * (p[i] / mass)
        spread += p[i] * step * (d - mean)
        room = 2.0 * radius * mass - rest[k]
        if room <= 0.0:
            continue
        cut = math.sqrt(spread / mass / room)
        if k == 0 or u[order[k - 1]] - top <= mean - cut:
            return top, mean, cut
    return top, mean, 0.0


@jit(error_model="numpy")
def chi2_ball(u, p, c, radius, tau, q):
    """Exact weights in the chi2 ball; returns ``c + lambda`` and the next call's ``tau``.

    On the boundary the rows above ``tau = m - y`` carry the weight, ``m`` their mean, ``V`` their
    variance and ``M`` their mass: ``y = sqrt(V / ((1 + 2 radius) M - 1))`` and
    ``q_i = p_i (u_i - m + y) / (M y)``. Repeating that formula from all rows raises ``tau``
    monotonically to the answer.
    """
    n = u.shape[0]
    if radius == 0.0:
        for i in range(n):
            q[i] = p[i]
        return math.inf, tau
    if c > 0.0:
        tau = capped_chi2(u, p, c, math.inf, tau, q)
    else:
        capped_vertex(u, p, math.inf, q)
    excess = 0.0
    for i in range(n):
        excess += p[i] * (q[i] / p[i] - 1.0) ** 2
    if excess <= 2.0 * radius * (1.0 + 1e-13):
        return c, tau
    # The mean is centre + offset: differences to a nearby centre are exact.
    top = u.max()
    centre, offset, cut, last = top + _moments(u, p, top, -math.inf)[1], 0.0, math.inf, -1.0
    threshold = -math.inf
    done = False
    for _ in range(60):
        mass, mean, variance, dropped = _moments(u, p, centre, offset - cut)
        room = 2.0 * radius * mass - dropped  # (1 + 2 radius) mass - 1 without the 1
        if not room > 0.0:
            break
        threshold = centre + (offset - cut)
        done = mass == last
        shifted = centre + mean
        offset = mean - (shifted - centre)
        centre = shifted
        cut = math.sqrt(variance / room)
        if done:
            break
        last = mass
    if not done:
        centre, offset, cut = _chi2_ball_sorted(u, p, radius)
    total = 0.0
    for i in range(n):
        q[i] = p[i] * max((u[i] - centre) - offset + cut, 0.0)
        total += q[i]
    if cut == 0.0:  # the rows that take part are tied, or so close that squares underflow
        total = 0.0
        for i in range(n):
            q[i] = p[i] if u[i] > threshold else 0.0
            total += q[i]
    for i in range(n):
        q[i] /= total
    return total, tau


@jit(fastmath=REDUCE, error_model="numpy")
def _tilt_near(u, p, centre, offset, theta):
    """Divergence of ``q ~ p exp(theta u)``, variance of ``u`` under it.

    ``centre + offset`` is the mean of u. Differences to 1 are summed without the 1, so a tiny
    divergence keeps its digits.
    """
    total, first, second = 0.0, 0.0, 0.0
    for i in range(u.shape[0]):
        d = (u[i] - centre) - offset
        e = math.expm1(theta * d)
        total += p[i] * (e - theta * d)
        first += p[i] * (e * d)
        second += p[i] * ((e + 1.0) * d * d)
    mean = first / (1.0 + total)
    variance = max(second / (1.0 + total) - mean * mean, 0.0)
    return theta * mean - math.log1p(total), variance


@jit(fastmath=REDUCE, error_model="numpy")
def _tilt_far(u, p, top, theta):
    """The same from ``top``, the maximum of u: nothing overflows."""
    total, first, second = 0.0, 0.0, 0.0
    for i in range(u.shape[0]):
        d = u[i] - top
        e = p[i] * math.exp(theta * d)
        total += e
        first += e * d
        second += e * d * d
    mean = first / total
    return theta * mean - math.log(total), max(second / total - mean * mean, 0.0)


@jit(error_model="numpy")
def kl_ball(u, p, c, radius, theta, q, log_ratio):
    """Exact weights in the KL ball; returns ``c + lambda`` and the next call's ``theta``.

    ``theta = 1 / (c + lambda)`` solves ``D(theta) = radius``; Newton's method in a bracket on
    ``sqrt(2 D)``, which starts out linear in ``theta``.
    """
    n = u.shape[0]
    if radius == 0.0:
        for i in range(n):
            q[i] = p[i]
        for i in range(log_ratio.shape[0]):
            log_ratio[i] = 0.0
        return math.inf, theta
    top = u.max()
    mean, variance = 0.0, 0.0
    for i in range(n):
        mean += p[i] * (u[i] - top)
    centre = top + mean
    offset = 0.0  # what rounding leaves of the mean; losses that are almost tied need it
    for i in range(n):
        offset += p[i] * (u[i] - centre)
    for i in range(n):
        variance += p[i] * ((u[i] - centre) - offset) ** 2
    tiny = radius < 1e-2
    if c > 0.0:
        hi = 1.0 / c
        inside = variance == 0.0
        if not inside:
            near = tiny and hi * (top - centre) < 30.0
            spent = _tilt_near(u, p, centre, offset, hi)[0] if near else _tilt_far(u, p, top, hi)[0]
            inside = spent <= radius
        if inside:
            capped_kl(u, p, c, math.inf, math.nan, q, log_ratio)
            return c, theta
    else:
        hi = math.inf
        tied = 0.0
        for i in range(n):
            tied += p[i] if u[i] == top else 0.0
        if -math.log(tied) <= radius:
            capped_vertex(u, p, math.inf, q)
            return 0.0, theta
    lo = 0.0
    cold = min(math.sqrt(2.0 * radius / variance), 0.5 * hi)
    if not (1e-6 * cold < theta < min(hi, 1e6 * cold)):
        theta = cold
    target = math.sqrt(2.0 * radius)
    for _ in range(200):
        if tiny and theta * (top - centre) < 30.0:
            spent, spread = _tilt_near(u, p, centre, offset, theta)
        else:
            spent, spread = _tilt_far(u, p, top, theta)
        if spent > radius:
            hi = theta
        else:
            lo = theta
        root = math.sqrt(2.0 * max(spent, 0.0))
        step = math.nan
        if spread > 0.0:
            step = theta - (root - target) * root / (theta * spread)
        if not (lo < step < hi):
            if hi == math.inf:
                step = 4.0 * theta
            elif lo > 0.0:
                step = math.sqrt(lo * hi)
            else:
                step = cold if cold < 0.5 * hi else 0.125 * hi
        if abs(step - theta) <= 4e-16 * theta or abs(spent - radius) <= 1e-14 * radius:
            break
        theta = step
    capped_kl(u, p, 1.0 / theta, math.inf, math.nan, q, log_ratio)
    return 1.0 / theta, theta
