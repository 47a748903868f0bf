"""Products with some of the rows of a dense matrix."""

from drago.kernels import REDUCE, jit


@jit(fastmath=REDUCE)
def accumulate(X, index, c, out):
    """``out += sum over i in index of c_i x_i``; four rows at a time, for `out` stays in cache."""
    n, d = index.shape[0], X.shape[1]
    whole = n - n % 4
    for r in range(0, whole, 4):
        i0, i1, i2, i3 = index[r], index[r + 1], index[r + 2], index[r + 3]
        c0, c1, c2, c3 = c[i0], c[i1], c[i2], c[i3]
        for j in range(d):
            out[j] += c0 * X[i0, j] + c1 * X[i1, j] + c2 * X[i2, j] + c3 * X[i3, j]
    for r in range(whole, n):
        i = index[r]
        for j in range(d):
            out[j] += c[i] * X[i, j]
