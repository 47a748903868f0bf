"""The kernels for several outputs against NumPy, and the certificates that rest on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import drago
from drago import kernels
from drago.certificate.bounds import curvature_bound
from drago.certificate.certify import judge
from drago.certificate.hessian import hessian
from drago.rows.array_curvature import Chosen
from drago.solvers import class_descent
from drago.terms.losses import Multinomial


def problem_of(n=60, d=4, k=5, seed=0, **more):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * np.geomspace(1.0, 0.1, d)
    y = np.append(np.arange(k), rng.integers(k, size=n - k))
    settings = {"uncertainty": drago.CVaR(0.4), "shift_cost": 0.05, "l2_reg": 1e-2} | more
    return drago.DROProblem(X, y, loss="multinomial", **settings)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 140), st.integers(1, 40), st.integers(1, 70))
@example(9, 2, 200)
def test_products_by_tiles(n, d, k):
    """Whatever is left beside whole tiles, and nothing is written beyond."""
    rng = np.random.default_rng(n)
    X, w, b = rng.normal(size=(n, d)), rng.normal(size=(d, k)), rng.normal(size=k)
    room = np.full((n + 2, k), np.nan), np.full((d + 2, k), np.nan)
    (raw, out), sums = (each[1:-1] for each in room), np.empty(k)
    kernels.narrow_predict(X, w, b, raw)
    np.testing.assert_allclose(raw, X @ w + b, rtol=1e-12, atol=1e-12)
    q, slopes = rng.random(n) * (rng.random(n) < 0.6), rng.normal(size=(n, k))
    kernels.narrow_gradient(X, q, slopes, out, sums)
    np.testing.assert_allclose(out, X.T @ (q[:, None] * slopes), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sums, q @ slopes, rtol=1e-12, atol=1e-12)
    assert all(np.isnan(each[[0, -1]]).all() for each in room)
    step = rng.normal(size=(n, k))
    found = kernels.slope_along(q, slopes, step)
    np.testing.assert_allclose(found, (q[:, None] * slopes * step).sum(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        ("narrow_predict", [(3, 2), (3, 2), (2,), (3, 2)]),
        ("narrow_gradient", [(3, 2), (3,), (3, 2), (3, 2), (2,)]),
        ("slope_along", [(3,), (3, 2), (2, 2)]),
    ],
)
def test_arrays_that_do_not_fit(call, shapes):
    with pytest.raises(ValueError, match="do not fit"):
        getattr(kernels, call)(*map(np.ones, shapes))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(2, 50), st.floats(0.01, 300.0), st.integers(0, 99))
def test_softmax_of_many_rows(n, k, size, seed):
    """Losses and slopes keep their digits, also where a loss is near 0."""
    rng = np.random.default_rng(seed)
    raw, y = size * rng.normal(size=(n, k)), rng.integers(k, size=n)
    losses, slopes = np.empty(n), np.empty((n, k))
    assert kernels.multinomial(y, raw, losses, slopes)
    away = raw - raw[np.arange(n), y][:, None]
    others = np.ones((n, k), dtype=bool)
    others[np.arange(n), y] = False
    top = np.maximum(away.max(axis=1, keepdims=True), 0.0)
    rest = np.where(others, np.exp(away - top), 0.0).sum(axis=1)
    expected = np.where(
        top[:, 0] == 0, np.log1p(rest), np.log(rest + np.exp(-top[:, 0])) + top[:, 0]
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-12, atol=1e-300)
    total = rest + np.exp(-top[:, 0])
    pi = np.exp(away - top) / total[:, None]
    pi[np.arange(n), y] = -rest / total
    np.testing.assert_allclose(slopes, pi, rtol=1e-12, atol=1e-300)


def test_softmax_of_rows_that_overflow_or_are_not_finite():
    raw = np.tile(np.linspace(-1.0, 1.0, 20), (7, 1))
    raw[1, 3], raw[2, 3], raw[3, 3], raw[4, 0] = 1000.0, np.inf, np.nan, 1000.0
    raw[5, 0], raw[6, 0] = np.inf, np.nan
    losses, slopes = np.empty(7), np.empty((7, 20))
    assert kernels.multinomial(np.zeros(7, dtype=np.int64), raw, losses, slopes)
    np.testing.assert_allclose(losses[[1, 4]], [1001.0, 0.0], rtol=1e-15)
    np.testing.assert_array_equal(np.flatnonzero(slopes[1]), [0, 3])
    np.testing.assert_array_equal(slopes[1, [0, 3]], [-1.0, 1.0])
    assert np.isfinite(losses[0]) and not np.isfinite(losses[[2, 3, 5, 6]]).any()


def test_a_label_that_is_none():
    assert not kernels.multinomial(
        np.array([0, 3]), np.zeros((2, 3)), np.empty(2), np.empty((2, 3))
    )


@pytest.mark.parametrize("intercept", [False, True])
def test_hessian_of_classes(intercept):
    """The blocks from one square are those of each pair of classes; by differences of P too."""
    problem = problem_of(fit_intercept=intercept, shift_cost=2.0)
    rng = np.random.default_rng(1)
    w, b = rng.normal(size=(4, 5)), rng.normal(size=5) * intercept
    ev = problem.evaluate(w, b)
    q = problem.dual_oracle().weights(ev.losses, problem.nu)
    F = np.column_stack([problem.X, np.ones(60)]) if intercept else problem.X
    pi = problem.loss.probabilities(ev.raw)
    expected = np.zeros((5, F.shape[1], 5, F.shape[1]))
    for i in range(60):
        bent = np.diag(pi[i]) - np.outer(pi[i], pi[i])
        expected += q[i] * np.einsum("ac,j,l->ajcl", bent, F[i], F[i])
    chosen = Chosen(np.flatnonzero(q))
    H = problem.rows.class_hessian(problem.loss, chosen, ev.raw, q, intercept)
    np.testing.assert_allclose(H.reshape(expected.shape), expected, atol=1e-12)
    H = hessian(problem, ev, q, problem.dual_oracle())

    def gradient(t):
        there = problem.evaluate(w + t * dw, b + t * db)
        weights = problem.dual_oracle().weights(there.losses, problem.nu)
        g = problem.gradient(there, weights)
        slope = g.w + problem.mu * there.w
        return (np.vstack([slope, g.b]) if intercept else slope).T.reshape(-1)

    dw, db = rng.normal(size=(4, 5)), rng.normal(size=5) * intercept
    flat = (np.vstack([dw, db]) if intercept else dw).T.reshape(-1)
    found = (gradient(1e-6) - gradient(-1e-6)) / 2e-6
    np.testing.assert_allclose(H @ flat, found, rtol=1e-5, atol=1e-7)


def test_leverages_are_never_too_small():
    problem, rng = problem_of(), np.random.default_rng(2)
    root = rng.normal(size=(20, 20))
    inverse = (root @ root.T).reshape(5, 4, 5, 4)
    found = problem.rows.class_leverages(Chosen(np.arange(60)), inverse, False)
    for i, x in enumerate(problem.X):
        M = np.einsum("j,ajcl,l->ac", x, inverse, x)
        pairs = np.diag(M)[:, None] + np.diag(M) - 2.0 * M
        exact = np.sqrt(pairs.max())
        assert exact <= found[i] * (1 + 1e-12)
        largest = np.sort(np.diag(M))[-2:].sum()
        np.testing.assert_allclose(found[i], np.sqrt(2.0 * largest))


SETS = [
    (drago.CVaR(0.3), "chi2"),
    (drago.CVaR(0.3), "kl"),
    (drago.Simplex(), "kl"),
    (drago.Extremile(2.0), "chi2"),
    (drago.Chi2Ball(1.0), "chi2"),
]


@pytest.mark.parametrize(("uncertainty", "divergence"), SETS)
@pytest.mark.parametrize("intercept", [False, True])
def test_descent_ends_at_the_optimum(uncertainty, divergence, intercept):
    """The compiled iterations and scipy's agree on the optimum, for every kind of set."""
    problem = problem_of(uncertainty=uncertainty, divergence=divergence, fit_intercept=intercept)
    assert class_descent.is_for(problem)
    found = drago.solve(problem, "auto", tol=1e-9)
    assert "classes" in found.message and found.status == "optimal"
    other = drago.solve(problem, drago.LBFGS(), tol=1e-8)
    np.testing.assert_allclose(found.primal, other.primal, rtol=1e-7)
    assert drago.certify(problem, found.coef, found.intercept).rel_gap <= 1e-7


def test_descent_with_a_baseline_and_diagonal_metric():
    rng = np.random.default_rng(3)
    problem = problem_of(baseline=rng.random(60), fit_intercept=True)
    for metric in ("auto", "diagonal"):
        found = drago.solve(problem, drago.LBFGS(metric=metric), tol=1e-8)
        assert found.status == "optimal"
    wide = problem_of(n=12, d=300, k=3)
    assert class_descent.metric_kind(wide) == "diagonal"
    assert drago.solve(wide, tol=1e-6).status == "optimal"


@pytest.mark.parametrize("k", [15, 16, 21, 46])
def test_descent_with_many_classes(k):
    """Up to 15 classes the softmax goes class by class, beyond row by row, filled up."""
    problem = problem_of(n=6 * k, d=3, k=k, fit_intercept=True)
    found = drago.solve(problem, "auto", tol=1e-9)
    assert "classes" in found.message and found.status == "optimal"
    other = drago.solve(problem, drago.LBFGS(), tol=1e-8)
    np.testing.assert_allclose(found.primal, other.primal, rtol=1e-7)


def test_the_first_step_among_many_features_is_not_too_long():
    """With fewer rows than features their mean squares tell too little of the curvature."""
    rng = np.random.default_rng(7)
    y = np.arange(80) % 4
    X = 3.0 * rng.normal(size=(4, 200))[y] / np.sqrt(200.0) + rng.normal(size=(80, 200))
    settings = {"uncertainty": drago.CVaR(0.5), "shift_cost": 0.05, "l2_reg": 1e-2}
    problem = drago.DROProblem(X, y, loss="multinomial", **settings)
    assert class_descent.metric_kind(problem) == "diagonal"
    found = drago.solve(problem, tol=1e-5)
    assert found.status == "optimal" and found.n_iter <= 16


def test_the_search_keeps_to_limits():
    with pytest.warns(ConvergenceWarning, match="max_iter=7"):
        found = drago.solve(problem_of(), drago.LBFGS(metric="auto"), tol=0.0, max_iter=7)
    assert found.n_iter == 7
    found = drago.solve(problem_of(), tol=1e-11)
    assert found.rel_gap <= 1e-11


@pytest.mark.parametrize("tail", [0.1, 0.5])
@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_rows_of_weight_have_their_slopes(tail, spread, monkeypatch):
    """Slopes of the others are left out by where the threshold was before, which is a guess."""
    settings = {"uncertainty": drago.CVaR(tail), "shift_cost": 1e-3, "l2_reg": 1e-4}
    problem = problem_of(n=400, d=8, k=20)
    problem = drago.DROProblem(spread * problem.X, problem.y, loss="multinomial", **settings)
    call, left_out = class_descent.ClassRun._call, []

    def checked(self, *args, **more):
        state = call(self, *args, **more)
        losses, slopes, q = self.here
        there = problem.evaluate(self.theta.reshape(8, 20), np.zeros(20))
        np.testing.assert_allclose(losses, there.losses, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(slopes[q > 0], there.dlosses[q > 0], rtol=1e-9, atol=1e-12)
        left_out.append(np.abs(slopes - there.dlosses).max() > 1e-6)
        return state

    monkeypatch.setattr(class_descent.ClassRun, "_call", checked)
    found = drago.solve(problem, tol=1e-7)
    assert "classes" in found.message and found.status == "optimal"
    assert any(left_out)


def test_curvature_in_the_raw_predictions():
    rng = np.random.default_rng(5)
    problem = problem_of(n=90, k=6)
    slopes = problem.evaluate(rng.normal(size=(4, 6)), np.zeros(6)).dlosses
    q, pi = rng.random(90) * (rng.random(90) < 0.7), slopes.copy()
    pi[np.arange(90), problem.y] += 1.0
    expected = np.diag(q @ pi) - (q[:, None] * pi).T @ pi
    np.testing.assert_allclose(problem.rows.class_curvature(slopes, q), expected, atol=1e-13)


def test_newton_steps_know_the_hessian():
    """From near the optimum they come much nearer than L-BFGS does."""
    problem = problem_of(n=400, d=5, k=4, fit_intercept=True)
    found = drago.solve(problem, tol=1e-12)
    assert found.status == "optimal" and found.n_iter <= 14


@pytest.mark.parametrize("size", [0.1, 3.0, 100.0])
def test_slopes_of_no_sum(size):
    """The compiled ones are those of NumPy, where all classes have weight."""
    rng, loss = np.random.default_rng(6), Multinomial()
    raw, y = size * rng.normal(size=(80, 5)), np.append(np.arange(5), rng.integers(5, size=75))
    q = rng.random(80)
    q /= q.sum()
    alpha, young = loss.balance(y, raw, q)
    expected = super(Multinomial, loss).balance(y, raw, q)
    np.testing.assert_allclose(alpha, expected[0], atol=1e-14)
    np.testing.assert_allclose(young, expected[1], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(q @ alpha, 0.0, atol=1e-15)
    # Without weight on some rows, and on a class.
    rows = drago.DROProblem(raw, y, loss="multinomial", shift_cost=1.0).rows
    for none in (np.arange(80) >= 30, y == 2):
        some = np.where(none, 0.0, q) / q[~none].sum()
        found, cost = rows.balance(loss, raw, some, 5)
        other = super(Multinomial, loss).balance(y, raw, some)
        np.testing.assert_allclose(found[~none], other[0][~none], atol=1e-14)
        np.testing.assert_allclose(cost, some @ other[1], rtol=1e-9, atol=1e-13)


def test_rates_by_ranks():
    """Where a weight is a function of its loss, they are its derivatives."""
    problem = problem_of(n=2000, uncertainty=drago.Chi2Ball(0.1), shift_cost=0.5)
    losses = np.random.default_rng(7).normal(size=2000)
    q, response = problem.dual_oracle().response(losses, problem.nu)
    found = problem.rows.rates(losses, q, problem.nu, False)
    inside = (q > 0) & (np.abs(losses) < 1)
    np.testing.assert_allclose(found[inside], response.rate[inside], rtol=1e-6)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shape", [(150, 4, 5), (60, 30, 12)])
def test_bound_from_steps_on_the_rows_of_weight(intercept, shape):
    """It is above the truth, and close to it; with the Hessian it would be no better."""
    n, d, k = shape
    problem = problem_of(n, d, k, fit_intercept=intercept, l2_reg=1e-3)
    rng = np.random.default_rng(8)
    best = drago.solve(problem, tol=1e-10)
    w, b = problem.to_internal(best.coef, best.intercept)
    ev = problem.evaluate(w + 1e-3 * rng.normal(size=w.shape), b)
    q = problem.dual_oracle().weights(ev.losses, problem.nu)
    gap = judge(problem, ev, predictions=0).gap
    g = problem.gradient(ev, q)
    w, b, _ = problem.rows.class_minimum(ev, q, problem.mu, intercept, 1e-18, np.inf, 2000)
    there = problem.evaluate(w, b)
    least = q @ (ev.losses - there.losses) + 0.5 * problem.mu * ((ev.w**2).sum() - (w**2).sum())
    assert least <= gap * (1 + 1e-9)
    assert gap <= 1.5 * least + 1e-9
    assert gap <= 1.5 * curvature_bound(problem, ev, q, g, n) + 1e-9


def test_arrays_of_classes_that_do_not_fit():
    y, rows, short = np.zeros(3, dtype=np.int64), np.zeros((3, 2)), np.zeros(2)
    assert not kernels.class_curvature(y, rows, short, np.zeros((2, 2)))
    assert not kernels.class_curvature(y + 2, rows, np.zeros(3), np.zeros((2, 2)))
    assert not kernels.class_hessian(rows, y, rows, np.zeros(3), False, np.zeros((3, 3)))
    assert not kernels.class_hessian(rows, y - 1, rows, np.zeros(3), False, np.zeros((4, 4)))
    assert not kernels.class_balance(y, rows, short, 0.5, short, rows, np.zeros(3))
    assert not kernels.class_balance(y + 2, rows, np.zeros(3), 0.5, short, rows, np.zeros(3))
