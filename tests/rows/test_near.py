"""Rows that are not read because they have no weight, and X that is checked while it is read."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning

import drago
from cases import EPS
from drago.rows import array_visits, open
from drago.rows.array_near import ArrayNear
from drago.rows.part import cut

LOSSES = ["squared", "huber", "logistic"]
IN_METRIC = drago.LBFGS(metric="auto")


@pytest.fixture
def small(monkeypatch):
    """Data of any size is taken for large."""
    monkeypatch.setattr(array_visits, "_LARGE", 1)
    monkeypatch.setattr(open, "_LONG", 1)


def make(loss, n=3000, d=64, seed=0, dtype=np.float64, tail=0.1, cost=0.05, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * np.logspace(-1, 1, d)
    z = X @ (rng.standard_normal(d) * np.logspace(1, -1, d)) / np.sqrt(d)
    y = z + rng.standard_normal(n) if loss != "logistic" else (z > 0.1 * rng.logistic(size=n)) * 1.0
    return drago.DROProblem(
        X.astype(dtype), y, loss=loss, uncertainty=drago.CVaR(tail), divergence="chi2",
        shift_cost=cost, l2_reg=1e-3, **options,
    )  # fmt: skip


def check_near(problem, before, w, b, oracle):
    """A near visit against the three operations; returns what it found."""
    ev, q, g = problem.rows.visit_near(problem.loss, w, b, oracle, problem.nu, before)
    exact = problem.evaluate(w, b)
    weights = problem.dual_oracle().weights(exact.losses, problem.nu)
    size = 1.0 + np.abs(exact.raw).max()
    rounding = 16 * problem.n_features * EPS * size**2
    assert (exact.losses <= ev.losses + rounding).all()
    known = ev.losses <= exact.losses + rounding
    assert not weights[~known].any() and not q[~known].any()
    assert known.mean() >= 0.9 * ev.share
    # A threshold is as uncertain as the losses, and weights are by 1 / nu more so.
    np.testing.assert_allclose(q, weights, rtol=0, atol=8 * rounding / problem.nu * weights.max())
    slopes = exact.dlosses[:, 0]
    found = problem.rows.weighted_sum((q * slopes)[:, None])
    scale = np.abs(slopes).max() * problem.rows.longest(False)
    np.testing.assert_allclose(g.w, found, rtol=0, atol=1e-11 * scale)
    np.testing.assert_allclose(g.b, [q @ slopes], rtol=0, atol=1e-11 * scale)
    value = problem.primal(w, exact.losses, weights)
    assert problem.primal(w, ev.losses, q) == pytest.approx(value, rel=1e-12, abs=1e-12)
    return ev


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("baseline", [None, "rows"])
def test_near_visits_on_the_way_of_a_descent(small, loss, dtype, intercept, baseline):
    """Each starts from what the one before has left, bounds among them."""
    rng, shares = np.random.default_rng(1), []
    if baseline is not None:
        baseline = rng.random(3000)
    problem = make(loss, dtype=dtype, fit_intercept=intercept, baseline=baseline)
    oracle = problem.dual_oracle()
    w, b = 0.3 * rng.standard_normal((64, 1)) / 64, np.zeros(1)
    ev = problem.visit(w, b, oracle).evaluation
    assert ev.is_whole
    for step in (1e-2, 1e-3, 1e-4, 0.0, 1.0, 1e-4, 1e-6):
        w = w + step * rng.standard_normal((64, 1)) / 64
        b = b + 0.1 * step * intercept
        ev = check_near(problem, ev, w, b, oracle)
        shares.append(ev.share)
    assert min(shares) < 0.35  # some rows were not read,
    assert shares[4] == 1.0  # and after a long step all of them


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(LOSSES),
    st.integers(0, 10**6),
    st.floats(0.02, 1.0),
    st.floats(-5, 1),
    st.floats(-6, 1),
)
def test_any_near_visit(loss, seed, tail, cost, step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_visits, "_LARGE", 1)
        problem = make(loss, n=1500, seed=seed, tail=tail, cost=10.0**cost)
        rng, oracle = np.random.default_rng(seed), problem.dual_oracle()
        w, b = rng.standard_normal((64, 1)) / 64, np.zeros(1)
        ev = problem.visit(w, b, oracle).evaluation
        for _ in range(3):
            w = w + 10.0**step * rng.standard_normal((64, 1)) / 64
            ev = check_near(problem, ev, w, b, oracle)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("cost", [0.05, 1e-3])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_solve_that_leaves_rows_out(small, monkeypatch, loss, cost, intercept):
    """It ends where one that reads all does, for less, and is certified on all rows."""
    seen, visit = [], ArrayNear.visit_near

    def watched(*given):
        found = visit(*given)
        seen.append(found.evaluation.share)
        return found

    monkeypatch.setattr(ArrayNear, "visit_near", watched)
    problem = make(loss, n=40_000, cost=cost, fit_intercept=intercept)
    result = drago.solve(problem, IN_METRIC, tol=1e-8)
    assert result.status is drago.Status.OPTIMAL and min(seen) < 0.5
    fresh = make(loss, n=40_000, cost=cost, fit_intercept=intercept)
    proof = drago.certify(fresh, result.coef, result.intercept, dual_weights=result.dual_weights)
    # What rows without weight would have told: the same sums in another order.
    assert proof.rel_gap <= 1.01e-8
    assert result.primal == pytest.approx(fresh.objective(result.coef, result.intercept), rel=1e-12)
    monkeypatch.setattr(
        ArrayNear, "visit_near", lambda rows, *given: ArrayNear.visit(rows, *given[:-1])
    )
    plain = drago.solve(fresh, IN_METRIC, tol=1e-8)
    assert result.primal == pytest.approx(plain.primal, rel=1e-7)
    assert result.n_passes < plain.n_passes


def test_threads_change_no_bit_where_rows_are_left_out(monkeypatch):
    monkeypatch.setattr("drago._threads._WORTH", 1)
    problem = make("squared", n=70_000)
    alone, two = (drago.solve(problem, tol=1e-7, n_threads=k) for k in (1, 2))
    assert problem.rows.reach is not None
    np.testing.assert_array_equal(alone.coef, two.coef)
    np.testing.assert_array_equal(alone.dual_weights, two.dual_weights)
    assert alone.gap == two.gap and alone.n_passes == two.n_passes


@pytest.mark.parametrize(
    "set_, is_measured", [(drago.CVaR(0.1), True), (drago.CVaR(0.7), False), ("extremile", False)]
)
def test_rows_are_measured_where_some_may_be_left_out(small, set_, is_measured):
    base = make("squared")
    problem = drago.DROProblem(base.X, base.y, uncertainty=set_)
    drago.solve(problem, IN_METRIC, tol=1e-6)
    assert (problem.rows.reach is not None) == is_measured and not problem.rows.unread


def test_a_solve_taken_up_where_rows_were_left_out(small, monkeypatch, tmp_path):
    """The same bits as without a break, although what was not read comes from the file."""
    monkeypatch.setattr("drago.loop.resume._SHARE", np.inf)  # every iteration is saved
    whole = drago.solve(make("squared", n=20_000), IN_METRIC, tol=1e-10)
    for stop in range(1, whole.n_iter):
        path = tmp_path / f"{stop}.drago"
        with pytest.warns(ConvergenceWarning, match=f"max_iter={stop} reached"):
            drago.solve(
                make("squared", n=20_000),
                IN_METRIC,
                tol=1e-10,
                max_iter=stop,
                checkpoint=path,
                checkpoint_every=0.0,
            )
        assert path.exists()
        later = drago.solve(make("squared", n=20_000), IN_METRIC, tol=1e-10, checkpoint=path)
        np.testing.assert_array_equal(later.coef, whole.coef)
        assert later.n_iter == whole.n_iter


# ----------------------------------------------------------------- X that is checked when read

BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}
READERS = {
    "solve": lambda problem: drago.solve(problem, max_iter=3),
    "lbfgs": lambda problem: drago.solve(problem, drago.LBFGS(), max_iter=3),
    "drago": lambda problem: drago.solve(problem, "drago", max_iter=3),
    "objective": lambda problem: problem.objective(np.ones(problem.n_features)),
    "losses": lambda problem: problem.losses(np.ones(problem.n_features)),
    "certify": lambda problem: drago.certify(problem, np.ones(problem.n_features)),
    "X": lambda problem: problem.X,
    "gradient": lambda problem: problem.gradient(
        problem.evaluate(np.zeros((problem.n_features, 1)), np.zeros(1)), problem.p
    ),
    "take": lambda problem: problem.take(np.arange(1300, 1400)),
    "a copy": lambda problem: copy.deepcopy(problem).X,
    "a pickle": lambda problem: pickle.loads(pickle.dumps(problem)).objective(
        np.ones(problem.n_features)
    ),
    "another set": lambda problem: problem._replace(nu=1.0).objective(np.ones(problem.n_features)),
}
STORAGES = {
    "dense": np.asarray,
    "float32": lambda X: X.astype(np.float32),
    "in columns": np.asfortranarray,
    "csr": sp.csr_array,
}


# With most rows in the tail none can be left out, and X is checked without being measured.
TAILS = [0.1, 0.9]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("tail", TAILS)
def test_what_is_not_finite_is_found_by_whoever_reads_first(small, storage, reader, bad, tail):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2000, 20)), rng.standard_normal(2000)
    X[1357, 11] = BAD[bad]
    problem = drago.DROProblem(STORAGES[storage](X), y, uncertainty=drago.CVaR(tail))
    with pytest.raises(ValueError, match=r"X contains 1 NaN or infinite.*\(1357, 11\)"):
        READERS[reader](problem)
    with pytest.raises(ValueError, match=r"X contains 1 NaN or infinite.*\(1357, 11\)"):
        READERS[reader](problem)  # and again


@pytest.mark.parametrize("storage", ["dense", "in columns", "csr"])
@pytest.mark.parametrize("reader", [name for name in READERS if name != "take"])
@pytest.mark.parametrize("tail", TAILS)
def test_what_would_overflow_is_found_too(small, storage, reader, tail):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2000, 20)), rng.standard_normal(2000)
    X[1357, 11] = 1e200
    problem = drago.DROProblem(STORAGES[storage](X), y, uncertainty=drago.CVaR(tail))
    with pytest.raises(ValueError, match="as large as 1e\\+200, and sums of their squares"):
        READERS[reader](problem)


@pytest.mark.parametrize("scale", [1e-150, 1e-300, 1e100])
def test_features_of_any_size_are_taken_that_were_before(small, scale):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2000, 20)), rng.standard_normal(2000)
    X[:, 3] *= scale
    X[:, 4] = 0.0
    checked = drago.DROProblem(X[:, [3, 4, 5]], y, l2_reg=0.1)
    checked.X  # noqa: B018 (reading it is the check)
    assert np.isfinite(checked.objective(np.array([1.0 / scale**0.5, 1.0, 1.0])))


def test_few_of_the_rows_tell_the_unit(monkeypatch):
    """However long they are, and where there are fewer than are looked at."""
    sizes, gathered = [], array_visits.gathered

    def watched(X, index, *rest):
        sizes.append(index.size * X.shape[1])
        return gathered(X, index, *rest)

    monkeypatch.setattr(array_visits, "gathered", watched)
    X = np.random.default_rng(0).standard_normal((64, 66_000))
    rows = drago.DROProblem(X, np.zeros(64)).rows
    unit = rows._unit()
    assert sizes == [7 * 66_000] and np.isfinite(unit).all() and (unit > 0.1).all()


def test_rows_that_are_almost_0_are_read(small):
    """The squares of their entries are 0, and say nothing."""
    problem = make("squared", n=500)
    X = problem.X.copy()
    X[7], X[8] = 1e-170, 0.0
    problem = problem._replace(X=X)
    oracle = problem.dual_oracle()
    for _ in range(2):  # the first knows no threshold to guess from
        problem.visit(np.ones((64, 1)), np.zeros(1), oracle)
    assert np.flatnonzero(np.isinf(problem.rows.reach[1])).tolist() == [7, 8]


def test_a_part_of_rows_is_sent():
    part = cut(make("squared", n=200).rows, (80,))[1]
    found = pickle.loads(pickle.dumps(part))
    np.testing.assert_array_equal(found.X, part.X)
    assert type(found) is type(part) and not found.unread and not found.has("bounds")


def test_large_data_is_not_read_at_the_door():
    """Whether 32 MB of it are finite is found with the first losses."""
    X = np.zeros((1 << 18, 16))
    X[-1, -1] = np.nan
    problem = drago.DROProblem(X, np.zeros(1 << 18))
    assert problem.rows.unread
    with pytest.raises(ValueError, match="X contains 1 NaN"):
        problem.objective(np.ones(16))
    with pytest.raises(ValueError, match="X contains 1 NaN"):  # little data is
        drago.DROProblem(X[-10_000:], np.zeros(10_000))
    weights = np.ones(1 << 18)
    weights[-1] = 0.0  # rows that are dropped are refused all the same
    with pytest.raises(ValueError, match="X contains 1 NaN"):
        drago.DROProblem(X, np.zeros(1 << 18), sample_weight=weights)
