"""Dual step's argument, table of products; rows ``first, first + stride, ...`` of CSR."""

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
