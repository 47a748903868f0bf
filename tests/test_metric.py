"""The metric against LAPACK's decomposition of the same matrix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drago
from drago import metric
from drago.kernels import jacobi
from drago.metric import make_metric


def decomposed(A):
    A, V = A.copy(), np.empty(A.shape)
    jacobi(A, V)
    return np.diag(A), V


@settings(max_examples=200)
@given(st.integers(1, 8), st.integers(0, 10), st.integers(0, 2**31), st.floats(-150.0, 150.0))
def test_rotations(d, rank, seed, exponent):
    """Of any rank and size; columns of very different size keep their digits."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((rank, d)) * 10.0 ** rng.uniform(-6, 0, size=d)
    A = rows.T @ rows * 10.0**exponent
    values, V = decomposed(A)
    size = np.abs(A).max(initial=0.0)
    np.testing.assert_allclose(V.T @ V, np.eye(d), rtol=0, atol=1e-13)
    # Rotations end where the squares of what is left are rounding: it is left of A itself, too.
    np.testing.assert_allclose((V * values) @ V.T, A, rtol=0, atol=2e-8 * size)
    np.testing.assert_allclose(
        np.sort(values), np.linalg.eigvalsh(A), rtol=0, atol=1e-13 * size * max(d, rank)
    )


@pytest.mark.parametrize(
    "A", [np.zeros((3, 3)), np.eye(5), np.ones((4, 4)), np.diag([1e-300, 1.0, 1e300])]
)
def test_matrices_with_nothing_to_turn(A):
    values, V = decomposed(A)
    np.testing.assert_allclose((V * values) @ V.T, A, atol=1e-15)


def problem_of(X, **settings):
    y = np.arange(len(X)) % 2.0
    return drago.DROProblem(X, y, **{"shift_cost": 0.1, "l2_reg": 0.3, **settings})


@pytest.mark.parametrize("kind", ["rows as they are", "Fortran order", "float32", "many rows"])
@pytest.mark.parametrize("centred", [False, True])
def test_few_features_as_many(kind, centred, monkeypatch):
    rng = np.random.default_rng(3)
    n = 5000 if kind == "many rows" else 70
    X = rng.standard_normal((n, 5)) @ rng.standard_normal((5, 5)) + 2.0
    X = {"Fortran order": np.asfortranarray, "float32": np.float32}.get(kind, np.asarray)(X)
    problem = problem_of(X, sample_weight=rng.uniform(0.5, 2.0, size=n), loss="logistic")
    mean = X.mean(axis=0).astype(float) if centred else None
    ours = make_metric(problem, "full", mean)
    monkeypatch.setattr(metric, "FEW", 0)
    theirs = make_metric(problem, "full", mean)
    assert ours.intercept == theirs.intercept
    matrices = [(m.basis * m.eigenvalues) @ m.basis.T for m in (ours, theirs)]
    np.testing.assert_allclose(*matrices, rtol=0, atol=1e-8 * theirs.eigenvalues.max())
    np.testing.assert_allclose(np.sort(ours.eigenvalues), theirs.eigenvalues, rtol=1e-10)


def test_directions_that_no_row_sees():
    X = np.zeros((20, 3))
    X[:, 1] = np.arange(20.0)
    found = make_metric(problem_of(X, l2_reg=0.0), "full")
    greatest = (X[:, 1] ** 2).mean()
    expected = [metric.FLOOR * greatest, metric.FLOOR * greatest, greatest]
    np.testing.assert_allclose(np.sort(found.eigenvalues), expected, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-100, 1e-80, 1e80, 1e140])
def test_features_whose_products_of_squares_overflow(scale):
    X = np.random.default_rng(0).standard_normal((30, 3)) @ [[1, 0.9, 0], [0, 1, 0.5], [0, 0, 1]]
    found = make_metric(problem_of(scale * X, l2_reg=0.0), "full")
    expected = np.linalg.eigvalsh(X.T @ X / 30) * scale**2
    np.testing.assert_allclose(np.sort(found.eigenvalues), expected, rtol=1e-12)
