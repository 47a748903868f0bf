"""Divergences of long vectors, in one pass."""

from drago.kernels import REDUCE, jit


@jit(fastmath=REDUCE, error_model="numpy")
def chi2(q, p):
    """``1/2 sum_i (q_i - p_i)^2 / p_i``."""
    total = 0.0
    for i in range(q.shape[0]):
        away = q[i] - p[i]
        total += away * away / p[i]
    return 0.5 * total
