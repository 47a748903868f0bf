"""The Gram matrix of some rows, against NumPy."""

import numpy as np
import pytest

from drago import kernels

EPS = np.finfo(float).eps


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(
    "n, d, size", [(1, 1, 1), (5, 3, 0), (70, 8, 41), (900, 50, 900), (40_000, 7, 30_001),
                   (700, 127, 350), (600, 130, 600)]
)  # fmt: skip
def test_against_numpy(n, d, size, intercept, dtype):
    rng = np.random.default_rng(n + d)
    X = rng.standard_normal((n, d)).astype(dtype)
    weight = rng.exponential(size=n)
    index = np.sort(rng.choice(n, size, replace=False))
    F = X[index].astype(np.float64)
    longest = (F**2).sum(1).max(initial=0.0)
    F = np.column_stack([F, np.ones(size)]) if intercept else F
    exact, terms = (G.T @ (weight[index][:, None] * G) for G in (F, np.abs(F)))
    out = np.full((d + intercept, d + intercept), np.nan)
    found = kernels.gram(X, index, weight, intercept, 1, out)
    # Of each term the root, two products and the square of the root; and a sum of all of them.
    np.testing.assert_allclose(out, exact, rtol=0, atol=(size + 8) * EPS * terms.max(initial=0.0))
    assert found == pytest.approx(longest, rel=(d + 2) * EPS)
    np.testing.assert_array_equal(out, out.T)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_threads_change_no_bit(dtype):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60_000, 21)).astype(dtype)
    weight, index = rng.exponential(size=60_000), np.arange(0, 60_000, 2)
    found = []
    for n_threads in (1, 2, 5):
        out = np.empty((22, 22))
        found.append((kernels.gram(X, index, weight, True, n_threads, out), out))
    for longest, out in found[1:]:
        assert longest == found[0][0]
        np.testing.assert_array_equal(out, found[0][1])
