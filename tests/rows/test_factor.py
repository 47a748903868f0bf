"""Cholesky factors that know what rounding may cost: on arrays, and on tensors."""

import numpy as np
import pytest

from drago.rows.factor import Factor


def on_arrays(H):
    return Factor(H)


def on_tensors(H):
    torch = pytest.importorskip("torch")
    from drago.rows.tensor_factor import TensorFactor

    return TensorFactor(torch.from_numpy(H))


both = pytest.mark.parametrize("make", [on_arrays, on_tensors])


def matrix(size, condition, seed=0):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    return (basis * condition ** -np.linspace(0.0, 1.0, size)) @ basis.T


@both
@pytest.mark.parametrize("size", [1, 2, 7, 60])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8])
def test_solutions_and_norms(make, size, condition):
    H = matrix(size, condition)
    H = 0.5 * (H + H.T)
    r = np.random.default_rng(1).standard_normal(size)
    factor, exact = make(H), np.linalg.solve(H, r)
    assert factor.safe and 1.0 <= factor.inflation < 10.0
    # A solution is as good as the condition number lets it be, within a few roundings a row.
    room = 1e2 * size * np.finfo(float).eps * condition
    np.testing.assert_allclose(factor.solve(r), exact, rtol=0, atol=room * np.abs(exact).max())
    several = np.column_stack([r, 2.0 * r, np.ones(size)])
    found, expected = factor.solve(several), np.linalg.solve(H, several)
    np.testing.assert_allclose(found, expected, rtol=0, atol=room * np.abs(expected).max())
    norm = np.sqrt(r @ exact)
    assert (1.0 - room) * norm <= factor.norm(r) <= np.sqrt(factor.inflation) * (1.0 + room) * norm
    root = np.asarray(factor.root)
    inverse = np.linalg.inv(H)
    for found in (root.T @ root, factor.inverse):
        np.testing.assert_allclose(
            found / factor.inflation, inverse, rtol=0, atol=room * np.abs(inverse).max()
        )


@both
@pytest.mark.parametrize(
    "H",
    [
        np.array([[1.0, 2.0], [2.0, 1.0]]),
        np.array([[1.0, 0.0], [0.0, -1.0]]),
        np.zeros((2, 2)),
        np.array([[1.0, np.nan], [np.nan, 1.0]]),
        np.array([[1.0, np.inf], [np.inf, 1.0]]),
        np.array([[1.0, 1.0 - 1e-16], [1.0 - 1e-16, 1.0]]),
    ],
    ids=["indefinite", "negative", "zero", "nan", "infinite", "singular"],
)
def test_what_is_not_safe_says_so(make, H):
    with np.errstate(all="ignore"):
        assert not make(H).safe


@both
def test_a_matrix_that_is_badly_scaled_is_not_badly_conditioned(make):
    scale = 10.0 ** np.arange(-8.0, 9.0, 4.0)
    H = matrix(5, 10.0) * scale[:, None] * scale
    assert make(0.5 * (H + H.T)).inflation < 1.0 + 1e-9
