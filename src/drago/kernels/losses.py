"""Losses and their derivatives with respect to the raw prediction, by loss code.

Each function fills ``losses`` (n) and ``dlosses`` (n x outputs) in one pass over ``raw``
(n x outputs); its name is the loss's. `second` gives the weights of the Hessian.
"""

import math

import numpy as np

from drago.kernels import jit

SQUARED, HUBER, LOGISTIC = 0, 1, 2


@jit(error_model="numpy")
def _one(code, parameter, y, z):
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
    # Logistic, y in {0, 1}: log(1 + exp(-m)) with the margin m = +-z.
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
    for i in range(y.shape[0]):
        losses[i], dlosses[i, 0] = _one(code, parameter, y[i], raw[i, 0])


@jit(error_model="numpy")
def multinomial(y, raw, losses, dlosses):
    """Softmax cross-entropy; ``dlosses`` is softmax minus one-hot."""
    k = raw.shape[1]
    for i in range(y.shape[0]):
        top = raw[i, 0]
        for c in range(1, k):
            top = max(top, raw[i, c])
        total = 0.0
        for c in range(k):
            e = math.exp(raw[i, c] - top)
            dlosses[i, c] = e
            total += e
        # log(total) loses the digits of a loss near 0: there total - 1 is summed without the 1.
        label = y[i]
        if raw[i, label] == top:
            rest = 0.0
            for c in range(k):
                if c != label:
                    rest += dlosses[i, c]
            losses[i] = math.log1p(rest)
        else:
            losses[i] = math.log(total) + top - raw[i, label]
        others = 0.0
        for c in range(k):
            dlosses[i, c] /= total
            if c != label:
                others += dlosses[i, c]
        dlosses[i, label] = -others


@jit(error_model="numpy")
def second_single_output(code, parameter, y, raw):
    """Second derivative of each loss at ``raw`` (n x 1)."""
    n = y.shape[0]
    out = np.empty(n)
    for i in range(n):
        if code == SQUARED:
            out[i] = 1.0
        elif code == HUBER:
            out[i] = 1.0 if abs(raw[i, 0] - y[i]) <= parameter else 0.0
        else:
            e = math.exp(-abs(raw[i, 0]))
            out[i] = e / ((1.0 + e) * (1.0 + e))
    return out
