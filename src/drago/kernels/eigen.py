"""The metric of a few features; by way of LAPACK it takes longer (`bench_drago.py small`)."""

import math

import numpy as np

from drago.kernels import REDUCE, jit

# Sweeps of Jacobi's method at most: from some sweep on it squares what is left with each.
_SWEEPS = 30


@jit(fastmath=REDUCE)
def _second_moments(X, p, mean):
    """``sum_i p_i (x_i - mean)(x_i - mean)'`` and its trace."""
    n, d = X.shape
    columns = np.empty((d, n))
    for i in range(n):
        for j in range(d):
            columns[j, i] = X[i, j] - mean[j]
    out, size = np.empty((d, d)), 0.0
    for j in range(d):
        for k in range(j + 1):
            one, other, total = columns[j], columns[k], 0.0
            for i in range(n):
                total += p[i] * one[i] * other[i]
            out[j, k] = out[k, j] = total
        size += out[j, j]
    return out, size


@jit()
def _rotate(A, j, k, cosine, sine):
    """Turn the columns `j` and `k`."""
    for i in range(A.shape[0]):
        a, b = A[i, j], A[i, k]
        A[i, j], A[i, k] = cosine * a - sine * b, sine * a + cosine * b


@jit(error_model="numpy")
def jacobi(A, V):
    """Fill `V` with the eigenvectors of a symmetric matrix; its diagonal becomes the eigenvalues.

    By Jacobi's cyclic method: rotations in the plane of two coordinates make one entry after the
    other zero, until those off the diagonal are so small that their squares are rounding.
    """
    d = A.shape[0]
    for j in range(d):
        for k in range(d):
            V[j, k] = 1.0 if j == k else 0.0
    for _ in range(_SWEEPS):
        done = True
        for j in range(d - 1):
            for k in range(j + 1, d):
                if abs(A[j, k]) <= 1e-9 * math.sqrt(abs(A[j, j])) * math.sqrt(abs(A[k, k])):
                    continue
                done = False
                ratio = (A[k, k] - A[j, j]) / (2.0 * A[j, k])
                tangent = math.copysign(1.0, ratio) / (abs(ratio) + math.hypot(ratio, 1.0))
                cosine = 1.0 / math.hypot(tangent, 1.0)
                _rotate(A, j, k, cosine, tangent * cosine)
                _rotate(A.T, j, k, cosine, tangent * cosine)
                _rotate(V, j, k, cosine, tangent * cosine)
        if done:
            break


@jit()
def curvature_of_rows(X, p, mean, floor, curvature, mu, eigenvalues, basis):
    """Fill in those of ``curvature * moments + mu``; returns whether they are finite.

    The moments' least eigenvalue is `floor` times the greatest, or more.
    """
    moments, size = _second_moments(X, p, mean)
    if not math.isfinite(size):
        return False
    jacobi(moments, basis)
    greatest, total = 1e-300, 0.0
    for j in range(X.shape[1]):
        greatest = max(greatest, moments[j, j])
    for j in range(X.shape[1]):
        eigenvalues[j] = curvature * max(moments[j, j], floor * greatest) + mu
        total += eigenvalues[j]
    return math.isfinite(total)
