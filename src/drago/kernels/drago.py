"""Products with rows ``first, first + stride, ...`` of a CSR matrix, and projections."""

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
def project_box(A, target, low, high, w):
    """``argmin over low <= w <= high of (w - target)' A (w - target)``, from `w`, in place.

    By coordinate descent, until no coordinate moves by more than rounding.
    """
    d = A.shape[0]
    for c in range(w.shape[1]):
        slope = np.zeros(d)
        for j in range(d):
            gap = w[j, c] - target[j, c]
            if gap != 0.0:
                for i in range(d):
                    slope[i] += A[i, j] * gap
        for _ in range(10000):
            moved, size = 0.0, 0.0
            for j in range(d):
                new = min(max(w[j, c] - slope[j] / A[j, j], low[j, c]), high[j, c])
                change = new - w[j, c]
                if change != 0.0:
                    w[j, c] = new
                    for i in range(d):
                        slope[i] += A[i, j] * change
                    moved = max(moved, abs(change))
                size = max(size, abs(new))
            if moved <= 1e-13 * size:
                break
