"""Primal step, dual step's argument, tables; rows ``first, first + stride, ...`` of CSR."""

import numpy as np

from drago.kernels import REDUCE, jit


@jit(fastmath=REDUCE)
def csr_predict(data, indices, indptr, first, stride, w, raw):
    """``raw = X_block w``."""
    for r in range(raw.shape[0]):
        row = first + r * stride
        for c in range(w.shape[1]):
            total = 0.0
            for j in range(indptr[row], indptr[row + 1]):
                total += data[j] * w[indices[j], c]
            raw[r, c] = total


@jit(fastmath=REDUCE)
def csr_accumulate(data, indices, indptr, first, stride, weights, out):
    """``out += X_block' weights``."""
    for r in range(weights.shape[0]):
        row = first + r * stride
        for c in range(weights.shape[1]):
            if weights[r, c] != 0.0:
                for j in range(indptr[row], indptr[row + 1]):
                    out[indices[j], c] += data[j] * weights[r, c]


@jit(error_model="numpy")
def proximal_argument(table, s, mirror, u):
    """``u = table + s mirror``."""
    for i in range(u.shape[0]):
        u[i] = table[i] + s * mirror[i]


@jit(error_model="numpy")
def proximal_argument_chi2(table, s, q, p, u):
    """``u = table + s q/p``."""
    for i in range(u.shape[0]):
        u[i] = table[i] + s * (q[i] / p[i])


@jit(error_model="numpy", fastmath=REDUCE)
def proximal_point(here, window, near, far, grad, eigenvalues, basis, mu, weight, out):
    """``argmin <grad, w> + (mu/2)||w||^2`` and proximal terms, in the norm of the metric.

    These pull with `near` to the point `here` and with `far` to each of those whose sum is the
    `window`; `weight` is all of it. Rows beyond the features, an intercept's, are left alone.
    Without a basis it is the standard one.
    """
    d, outputs = out.shape
    past, slope = np.zeros(d), np.zeros(d)
    for c in range(outputs):
        if basis.shape[0] == 0:
            for j in range(d):
                past[j] = near * here[j, c] + far * window[j, c]
                slope[j] = grad[j, c]
        else:
            past[:], slope[:] = 0.0, 0.0
            for i in range(d):
                v, g = near * here[i, c] + far * window[i, c], grad[i, c]
                for j in range(d):
                    past[j] += basis[i, j] * v
                    slope[j] += basis[i, j] * g
        for j in range(d):
            h = eigenvalues[j]
            past[j] = (h * past[j] - slope[j]) / (mu + weight * h)
        for i in range(d):
            if basis.shape[0] == 0:
                out[i, c] = past[i]
                continue
            total = 0.0
            for j in range(d):
                total += basis[i, j] * past[j]
            out[i, c] = total


@jit()
def scaled_change(losses, before, scale):
    """``losses = scale (losses - before)``."""
    for i in range(losses.shape[0]):
        losses[i] = scale * (losses[i] - before[i])


@jit(fastmath=REDUCE)
def renew(slopes, q, product):
    """``slopes = q slopes - product``, which is added to `product`; returns the sum of it."""
    total = 0.0
    for i in range(q.shape[0]):
        change = q[i] * slopes[i] - product[i]
        slopes[i] = change
        product[i] += change
        total += change
    return total
