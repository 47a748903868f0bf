"""A visit is an evaluation, the weights for it and their gradient, however it reads X."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from joblib import Parallel, delayed

import cases
import drago
from cases import EPS
from drago._threads import limited, threads_for
from drago.problem import NonFiniteLossError
from drago.rows.array_visits import CHI2, KL, Guess, sharper

STORAGES = {
    "dense": np.asarray,
    "float32": lambda X: X.astype(np.float32),
    "in columns": np.asfortranarray,
    "csr": sp.csr_array,
}


def check_visit(problem, oracle, w, b):
    """Against the three operations, by an oracle that has seen nothing."""
    ev, q, g = problem.visit(w, b, oracle)
    raw = problem.rows.predict(w, b)
    losses, dlosses = problem.rows.apply(problem.loss, raw)
    d = problem.n_features
    size = 1.0 + np.abs(raw).max()
    np.testing.assert_allclose(ev.raw, raw, rtol=0, atol=8 * d * EPS * size)
    np.testing.assert_allclose(ev.losses, losses, rtol=0, atol=16 * d * EPS * size**2)
    np.testing.assert_allclose(ev.dlosses, dlosses, rtol=0, atol=16 * d * EPS * size)
    assert problem.violation(q) <= 1e-10
    exact = problem.dual_oracle().weights(ev.losses, problem.nu)
    value = problem.rows.primal(problem.divergence, problem.nu, ev.losses, q)
    best = problem.rows.primal(problem.divergence, problem.nu, ev.losses, exact)
    assert value == pytest.approx(best, rel=1e-12, abs=1e-12)
    again = problem.rows.weighted_sum(q[:, None] * ev.dlosses)
    scale = np.abs(ev.dlosses).max() * problem.rows.longest(False) + 1e-12
    np.testing.assert_allclose(g.w, again, rtol=0, atol=1e-12 * scale)
    total = (q[:, None] * ev.dlosses).sum(axis=0)
    np.testing.assert_allclose(g.b, total, rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("name, divergence", cases.PAIRS)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "multinomial"])
def test_visits_on_the_way_of_a_descent(name, divergence, loss):
    """One oracle sees point after point, so that its guess is that of the point before."""
    for k, (storage, nu) in enumerate([("dense", 0.3), ("csr", 1e-3), ("float32", 0.02)]):
        problem = cases.make(
            loss,
            n=120,
            uncertainty=cases.SETS[name][0],
            divergence=divergence,
            shift_cost=nu,
            fit_intercept=bool(k % 2),
            sample_weight=np.random.default_rng(k).uniform(0.2, 3.0, 120),
        )
        problem = problem._replace(X=STORAGES[storage](problem.X))
        rng, oracle = np.random.default_rng(k), problem.dual_oracle()
        shape = (problem.n_features, problem.n_outputs)
        w, b = rng.standard_normal(shape), 0.1 * np.ones(shape[1]) * (k % 2)
        for step in (0.0, 1e-6, 0.1, 1.0, 30.0):
            w = w + step * rng.standard_normal(shape)
            check_visit(problem, oracle, w, b)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_the_first_guess_comes_from_some_of_the_rows(storage, divergence):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 4)) * (rng.random((20_000, 4)) < 0.5)
    y = X.sum(axis=1) + rng.standard_t(3, 20_000)
    problem = drago.DROProblem(
        STORAGES[storage](X),
        y,
        uncertainty=drago.CVaR(0.1),
        divergence=divergence,
        shift_cost=0.05,
    )
    assert problem.rows.visits_once(problem.loss, 1) == (storage != "in columns")
    check_visit(problem, problem.dual_oracle(), np.full((4, 1), 0.7), np.zeros(1))


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@given(tau=st.floats(-1.0, 4.0), tail=st.sampled_from([0.1, 0.5, 0.9]))
def test_a_guess_sharpened_by_its_sums(divergence, tau, tail):
    """It is the threshold of the exact weights, unless rows change sides on the way there."""
    rng, nu, cap = np.random.default_rng(0), 0.3, 1.0 / tail
    u = rng.standard_normal(400) ** 2
    p = rng.uniform(0.5, 1.5, 400) / 400
    p /= p.sum()
    x = (u - tau) / nu
    if divergence == "chi2":
        kind, first = CHI2, p * np.clip(x, 0.0, cap)
        second = np.where((x > 0) & (x < cap), p, 0.0)
    else:
        kind, ratio = KL, np.exp(x)
        first, second = np.where(ratio < cap, p * ratio, 0.0), np.where(ratio < cap, 0.0, p * cap)
    masses = float(first.sum()), float(second.sum())
    found = sharper(Guess(kind, tau, nu, cap), masses)
    oracle = drago.CVaR(tail).oracle(p, divergence)
    if not np.isfinite(found):
        assert masses[1] == 0.0 if divergence == "chi2" else masses[1] >= 1.0 or masses[0] == 0.0
    y = (u - found) / nu
    ratio = np.clip(y, 0.0, cap) if divergence == "chi2" else np.minimum(np.exp(y), cap)
    stays = (ratio < cap) == (x < cap if divergence == "chi2" else np.exp(x) < cap)
    if divergence == "chi2":
        stays &= (y > 0) == (x > 0)
    if np.isfinite(found) and stays.all():
        np.testing.assert_allclose(oracle.weights(u, nu), p * ratio, rtol=1e-9, atol=1e-12)
    # Wherever the search begins, it ends at the same weights.
    exact = oracle.weights(u, nu)
    oracle.look_near(nu, found)
    np.testing.assert_allclose(oracle.weights(u, nu), exact, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_visit_says_which_losses_are_not_finite(bad):
    problem = cases.make("squared")
    w = np.zeros((problem.n_features, 1))
    w[0] = bad
    with pytest.raises(NonFiniteLossError, match="is NaN or infinite on"):
        problem.visit(w, np.zeros(1), problem.dual_oracle())


def test_the_number_of_threads():
    small, large = 1000, 1 << 22
    assert threads_for(small) == 1
    with limited(4):  # parts of a solve that are too small are done by one
        assert threads_for(small) == 1 and threads_for(large) == threads_for(1 << 19) == 4
    assert threads_for(small, 3) == threads_for(large, 3) == 3
    with limited(2):
        assert threads_for(large) == 2
        with limited(None):
            assert threads_for(large) == 2
        assert threads_for(large, 5) == 5
    assert threads_for(large) >= 1


def test_openmps_limit_is_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_for(1 << 22) == 1
    for nonsense in ("", "none", "0", "-3"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert threads_for(1 << 22) >= 1


@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_workers_of_joblib_have_one_thread(backend):
    with Parallel(n_jobs=2, backend=backend) as parallel:
        assert parallel(delayed(threads_for)(1 << 22) for _ in range(2)) == [1, 1]


@pytest.mark.parametrize("loss, divergence", [("squared", "chi2"), ("logistic", "kl")])
def test_threads_change_no_bit_of_a_solve(loss, divergence, monkeypatch):
    monkeypatch.setattr("drago._threads._WORTH", 1)
    rng = np.random.default_rng(1)
    X = rng.standard_normal((40_000, 30))
    y = X @ rng.standard_normal(30) + rng.standard_normal(40_000)
    y = (y > 0).astype(float) if loss == "logistic" else y
    problem = drago.DROProblem(X, y, loss=loss, divergence=divergence, shift_cost=0.05)
    first, second = (drago.solve(problem, n_threads=k, tol=1e-7) for k in (1, 3))
    assert first.status == "optimal"
    np.testing.assert_array_equal(first.coef, second.coef)
    np.testing.assert_array_equal(first.dual_weights, second.dual_weights)


@pytest.mark.parametrize("kind", ["spread", "tail", "ties"])
def test_a_selection_of_many_rows_is_about_the_heaviest(kind):
    rng = np.random.default_rng(3)
    n = 150_000
    weight = {
        "spread": rng.exponential(size=n),
        "tail": np.maximum(rng.standard_normal(n) - 1.0, 0.0),
        "ties": np.round(rng.random(n), 1),
    }[kind]
    rows = drago.DROProblem(np.ones((n, 1)), weight).rows
    live = int(np.count_nonzero(weight))
    for size in (50, 4000, 40_000, live, n):
        index = rows.heaviest(weight, size).index
        assert 0.9 * min(size, live) <= index.size <= size
        assert size < live or index.size == live
        assert (np.diff(index) > 0).all()
        # Where more of them weigh about the same, within a factor of 2, these are some of them.
        assert weight[index].sum() >= 0.5 * np.sort(weight)[-index.size :].sum()


def test_nominal_weights_that_are_all_alike_are_known_as_such():
    rng = np.random.default_rng(0)
    X, y, n = rng.standard_normal((300, 2)), rng.standard_normal(300), 300
    plain = drago.DROProblem(X, y).rows
    copies = drago.DROProblem(X, y, sample_weight=np.full(n, 2.0)).rows
    other = drago.DROProblem(X, y, sample_weight=rng.uniform(1.0, 2.0, n)).rows
    for rows in (plain, copies, plain.take(np.arange(0, n, 7)), pickle.loads(pickle.dumps(copies))):
        assert rows.shares.size == 1
        assert (rows.p == rows.shares).all()
        assert rows.p.sum() == pytest.approx(1.0)
    uneven = plain.replaced(p=other.p)
    for rows in (other, uneven, other.take(np.arange(0, n, 7)), copies.replaced(p=other.p)):
        assert rows.shares is rows.p
        assert rows.replaced(baseline=np.ones(rows.n_samples)).shares.size == rows.n_samples
    assert plain.with_baseline(y**2).shares.size == 1
