"""The dual oracle of a spectral set, by one sort and one sweep of pool-adjacent-violators.

Solved here: ``argmax_q <u, q> - c Omega(q)`` over ``{q : q(A) <= G(p(A)) for all A}``. Everything
comes and goes in the order of increasing ``u``, so memory is read from end to end; ``sigma`` is the
spectrum's mass of each row. Along the order,

    chi2:  q_i = p_i (u_i - v_i) / c          KL:  q_i = p_i exp((u_i - v_i) / c)

with ``v`` nondecreasing and constant on pools; a pool B keeps its mass, ``q(B) = sigma(B)``.
Offsets are taken from a row of the pool itself, so that pools far from 0 lose no digits. Each
function fills ``ratio`` = q / p and ``first``, the first row of each pool, and returns the number
of pools.
"""

import math

import numpy as np

from drago.kernels import jit


@jit(error_model="numpy")
def spectral_masses(family, parameter, upper, p):
    """``int s`` over ``[upper - p, upper]`` for the families 1 (extremile) and 2 (ESRM).

    Written as a product, not as a difference of integrals: a small mass keeps all its digits.
    """
    sigma = np.empty(p.shape[0])
    if family == 1:
        for i in range(p.shape[0]):
            share = min(p[i] / upper[i], 1.0)
            log_rest = math.log1p(-share) if share < 1.0 else -math.inf
            sigma[i] = upper[i] ** parameter * -math.expm1(parameter * log_rest)
    else:
        scale = -math.expm1(-parameter)
        for i in range(p.shape[0]):
            sigma[i] = math.exp(-parameter * (1.0 - upper[i])) * -math.expm1(-parameter * p[i])
            sigma[i] /= scale
    return sigma


@jit(error_model="numpy")
def spectral_vertex(u, p, sigma, ratio, first):
    """``c = 0``: each row gets its spectrum mass; ties share in proportion to p."""
    n = u.shape[0]
    start, count = 0, 0
    while start < n:
        end, mass, weight = start, 0.0, 0.0
        while end < n and u[end] == u[start]:
            mass += sigma[end]
            weight += p[end]
            end += 1
        ratio[start:end] = mass / weight
        first[count] = start
        count += 1
        start = end
    return count


@jit(error_model="numpy")
def spectral_chi2(u, p, sigma, c, ratio, mean, weight, first):
    """Ratios ``q / p`` with the chi2 divergence; `mean` and `weight` are workspace."""
    n = u.shape[0]
    # Of each pool: the mean of u above that of its first row, its weight, its mass by weight.
    level = ratio
    inverse = 1.0 / c
    top = -1
    for k in range(n):
        here_mean, here_weight, here_level, start = 0.0, p[k], sigma[k] / p[k], k
        while top >= 0:
            shift = u[start] - u[first[top]] + here_mean - mean[top]
            rise = here_level - level[top]
            if rise < shift * inverse:  # v rises from the pool before to this one
                break
            total = weight[top] + here_weight
            share = here_weight / total
            here_mean = mean[top] + shift * share
            here_level = level[top] + rise * share
            here_weight, start = total, first[top]
            top -= 1
        top += 1
        mean[top], weight[top], level[top], first[top] = here_mean, here_weight, here_level, start
    first[top + 1] = n
    # From the last pool down: a row's place is never before its pool's, which is still needed.
    for b in range(top, -1, -1):
        ref, base = u[first[b]], level[b] - mean[b] * inverse
        for k in range(first[b + 1] - 1, first[b] - 1, -1):
            ratio[k] = max((u[k] - ref) * inverse + base, 0.0)
    return top + 1


@jit(error_model="numpy")
def spectral_kl(u, p, sigma, c, ratio, mass, log_ratio, first):
    """Ratios ``q / p`` with the KL divergence; `mass` is workspace.

    ``log_ratio``, where it is not empty, receives the ratios' logarithms.
    """
    n = u.shape[0]
    # Of each pool: sum p exp((u - its largest u) / c), and its mass.
    scaled = ratio
    inverse = 1.0 / c
    top = -1
    for k in range(n):
        here_scaled, here_mass, start = p[k], sigma[k], k
        while top >= 0:
            exponent = (u[start - 1] - u[k]) * inverse
            decay = scaled[top] * math.exp(exponent) if exponent > -700.0 else 0.0
            # A pool without mass has v = inf and joins the next, also where decay underflows.
            if decay * here_mass < here_scaled * mass[top]:
                break
            here_scaled += decay
            here_mass += mass[top]
            start = first[top]
            top -= 1
        top += 1
        scaled[top], mass[top], first[top] = here_scaled, here_mass, start
    first[top + 1] = n
    keep_log = log_ratio.shape[0] > 0
    # From the last pool down: a row's place is never before its pool's, which is still needed.
    for b in range(top, -1, -1):
        level, ref = mass[b] / scaled[b], u[first[b + 1] - 1]
        log_level = math.log(level) if keep_log else 0.0
        for k in range(first[b + 1] - 1, first[b] - 1, -1):
            exponent = (u[k] - ref) * inverse
            if exponent == 0.0:
                ratio[k] = level
            else:
                ratio[k] = level * math.exp(exponent) if exponent > -700.0 else 0.0
            if keep_log:
                log_ratio[k] = exponent + log_level
    return top + 1


@jit(error_model="numpy")
def scatter(ratio, p, order, q):
    """``q = ratio p``, from the sorted order back to the rows'; ``p`` is in sorted order."""
    for k in range(order.shape[0]):
        q[order[k]] = ratio[k] * p[k]
