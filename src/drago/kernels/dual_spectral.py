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
def spectral_chi2(u, p, sigma, c, ratio, first):
    """Ratios ``q / p`` with the chi2 divergence."""
    n = u.shape[0]
    # Of each pool: its first u, the mean of u above that, its weight and its mass by weight.
    ref, mean, weight, level = np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    inverse = 1.0 / c
    top = -1
    for k in range(n):
        top += 1
        first[top] = k
        ref[top], mean[top], weight[top], level[top] = u[k], 0.0, p[k], sigma[k] / p[k]
        while top > 0:
            shift = ref[top] - ref[top - 1] + mean[top] - mean[top - 1]
            rise = level[top] - level[top - 1]
            if rise < shift * inverse:  # v rises from the pool before to this one
                break
            total = weight[top - 1] + weight[top]
            share = weight[top] / total
            mean[top - 1] += shift * share
            level[top - 1] += rise * share
            weight[top - 1] = total
            top -= 1
    first[top + 1] = n
    for b in range(top + 1):
        base = level[b] - mean[b] * inverse
        for k in range(first[b], first[b + 1]):
            ratio[k] = max((u[k] - ref[b]) * inverse + base, 0.0)
    return top + 1


@jit(error_model="numpy")
def spectral_kl(u, p, sigma, c, ratio, log_ratio, first):
    """Ratios ``q / p`` with the KL divergence; ``log_ratio``, where not empty, their logarithms."""
    n = u.shape[0]
    # Of each pool: its largest u, sum p exp((u - ref) / c), and its mass.
    ref, scaled, mass = np.empty(n), np.empty(n), np.empty(n)
    inverse = 1.0 / c
    top = -1
    for k in range(n):
        top += 1
        first[top] = k
        ref[top], scaled[top], mass[top] = u[k], p[k], sigma[k]
        while top > 0:
            exponent = (ref[top - 1] - ref[top]) * inverse
            decay = scaled[top - 1] * math.exp(exponent) if exponent > -700.0 else 0.0
            # A pool without mass has v = inf and joins the next, also where decay underflows.
            if decay * mass[top] < scaled[top] * mass[top - 1]:
                break
            ref[top - 1] = ref[top]
            scaled[top - 1] = decay + scaled[top]
            mass[top - 1] += mass[top]
            top -= 1
    first[top + 1] = n
    keep_log = log_ratio.shape[0] > 0
    for b in range(top + 1):
        level = mass[b] / scaled[b]
        log_level = math.log(level) if keep_log else 0.0
        for k in range(first[b], first[b + 1]):
            exponent = (u[k] - ref[b]) * inverse
            if exponent == 0.0:
                ratio[k] = level
            else:
                ratio[k] = level * math.exp(exponent) if exponent > -700.0 else 0.0
            if keep_log:
                log_ratio[k] = exponent + log_level
    return top + 1
