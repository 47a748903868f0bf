"""Losses and their derivatives with respect to the raw prediction, by loss code.

Each function fills ``losses`` (n) and ``dlosses`` (n x outputs) in one pass over ``raw``
(n x outputs); its name is the loss's. `second` gives the weights of the Hessian. A code that no
single-output loss has gives NaN.
"""

import math

import numpy as np

from drago.kernels import LEAN, jit

SQUARED, HUBER, LOGISTIC, MULTINOMIAL = 0, 1, 2, 3


@jit(error_model="numpy")
def one_single_output(code, parameter, y, z):
    """Value and derivative of one single-output loss at the raw prediction ``z``."""
    if code == SQUARED:
        r = z - y
        return 0.5 * r * r, r
    if code == HUBER:
        r = z - y
        if r > parameter:
            return parameter * (r - 0.5 * parameter), parameter
        if r < -parameter:
            return parameter * (-r - 0.5 * parameter), -parameter
        return 0.5 * r * r, r
    if code != LOGISTIC:
        return math.nan, math.nan
    # y in {0, 1}: log(1 + exp(-m)) with the margin m = +-z.
    m = z if y > 0.5 else -z
    if m > 0:
        e = math.exp(-m)
        s = e / (1.0 + e)
        value = math.log1p(e)
    else:
        e = math.exp(m)
        s = 1.0 / (1.0 + e)
        value = math.log1p(e) - m
    return value, (-s if y > 0.5 else s)


@jit(error_model="numpy")
def single_output(code, parameter, y, raw, losses, dlosses):
    """Whether the arrays fit together; only then they are filled."""
    n = y.shape[0]
    if raw.shape != (n, 1) or losses.shape != (n,) or dlosses.shape != (n, 1):
        return False
    for i in range(n):
        losses[i], dlosses[i, 0] = one_single_output(code, parameter, y[i], raw[i, 0])
    return True


@jit(error_model="numpy", **LEAN)
def one_multinomial(label, raw, slopes):
    """Softmax cross-entropy of one row; fills its `slopes`, softmax minus one-hot."""
    k = raw.shape[0]
    top = raw[0]
    for c in range(1, k):
        top = max(top, raw[c])
    total = 0.0
    for c in range(k):
        e = math.exp(raw[c] - top)
        slopes[c] = e
        total += e
    # log(total) loses the digits of a loss near 0: there total - 1 is summed without the 1.
    if raw[label] == top:
        rest = 0.0
        for c in range(k):
            if c != label:
                rest += slopes[c]
        loss = math.log1p(rest)
    else:
        loss = math.log(total) + top - raw[label]
    others = 0.0
    for c in range(k):
        slopes[c] /= total
        if c != label:
            others += slopes[c]
    slopes[label] = -others
    return loss


@jit(error_model="numpy")
def multinomial(y, raw, losses, dlosses):
    """Softmax cross-entropy; ``dlosses`` is softmax minus one-hot.

    Returns whether the arrays fit together and each label is the number of an output.
    """
    n, k = raw.shape
    if y.shape[0] != n or losses.shape != (n,) or dlosses.shape != (n, k):
        return False
    for i in range(n):
        if not 0 <= y[i] < k:
            return False
        losses[i] = one_multinomial(y[i], raw[i], dlosses[i])
    return True


@jit(error_model="numpy")
def one_second(code, parameter, y, z):
    """Second derivative of one single-output loss at the raw prediction ``z``."""
    if code == SQUARED:
        return 1.0
    if code == HUBER:
        return 1.0 if abs(z - y) <= parameter else 0.0
    if code != LOGISTIC:
        return math.nan
    e = math.exp(-abs(z))
    return e / ((1.0 + e) * (1.0 + e))


@jit(error_model="numpy")
def second_single_output(code, parameter, y, raw):
    """Second derivative of each loss at ``raw`` (n x 1)."""
    n = y.shape[0]
    out = np.empty(n)
    for i in range(n):
        out[i] = one_second(code, parameter, y[i], raw[i, 0])
    return out
