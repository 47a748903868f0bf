"""Dual steps on lists of rows against dual steps on all rows."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import drago
import literal_drago
from cases import nominal, thinned
from drago.metric import Metric, make_metric
from drago.rows.tables import unsettled as module
from drago.rows.tables.unsettled import Unsettled
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.steps import LaggedSteps, Steps, UnregularisedSteps
from drago.solvers.drago.variants import LaggedIterations, SupportIterations

SETS = {"cvar 0.1": drago.CVaR(0.1), "cvar 0.5": drago.CVaR(0.5), "simplex": drago.Simplex()}


def problem_of(uncertainty, nu, weighted=False, mu=0.1, n=1200):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4)) * [1.0, 0.5, 2.0, 1.0]
    y = X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(n)
    p = nominal("random", n, rng) if weighted else None
    return drago.DROProblem(
        X, y, uncertainty=uncertainty, shift_cost=nu, l2_reg=mu, sample_weight=p
    )


def run(problem, kind, least_rows, iterations, monkeypatch, steps=None, n_blocks=6):
    """The iterations after some steps, and how many of these were on all rows."""
    monkeypatch.setattr(module, "LEAST_ROWS", least_rows)
    start = problem.evaluate(np.zeros((4, 1)), np.zeros(1))
    lagged = kind is LaggedIterations
    q = "nominal" if lagged or steps is not None else "exact"
    metric = make_metric(problem, "full") if steps is None else Metric(np.ones(4), None, 1.0)
    tables = problem.rows.tables(problem, kind.kind, n_blocks, 1)
    it = kind(problem, tables, metric, None, start, q)
    it.steps = steps or (LaggedSteps(0.05) if lagged else Steps(0.05, 0.05, True))
    on_all = []
    fill = tables._fill_argument
    tables._fill_argument = lambda *given: (on_all.append(given), fill(*given))
    for i, j in np.random.default_rng(1).integers(0, n_blocks, size=(iterations, 2)).tolist():
        it.step(i, j)
    return it, len(on_all)


def agree(one, other):
    np.testing.assert_allclose(one.w, other.w, rtol=0, atol=1e-11)
    np.testing.assert_allclose(one.weights(), other.weights(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(one.tables.loss_table, other.tables.loss_table, rtol=0, atol=1e-10)
    np.testing.assert_allclose(one.estimates(), other.estimates(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "kind, name, nu, weighted",
    thinned(
        [Iterations, SupportIterations, LaggedIterations], SETS, [0.1, 1e-3], [False, True], keep=3
    ),
)
def test_the_lists_change_nothing(kind, name, nu, weighted, monkeypatch):
    problem = problem_of(SETS[name], nu, weighted)
    found, on_all = run(problem, kind, 0, 200, monkeypatch)
    expected, all_of_them = run(problem, kind, np.inf, 200, monkeypatch)
    assert all_of_them == 200 and expected.tables._unsettled is None
    # Elsewhere the threshold moves too far in 200 steps, or the lists are too long.
    if kind is not LaggedIterations and (name, nu) not in (("cvar 0.5", 0.1), ("simplex", 1e-3)):
        assert on_all < 130  # at most 80, if a list is left when rounding has no part in it
    assert np.abs(expected.w).max() > 0.1
    agree(found, expected)


@pytest.mark.parametrize("name", SETS)
def test_without_a_shift_cost(name, monkeypatch):
    problem = problem_of(SETS[name], 0.0, mu=0.0)
    found, expected = (
        run(problem, Iterations, least, 200, monkeypatch, UnregularisedSteps(6, 0.0, 5.0, 1.0))
        for least in (0, np.inf)
    )
    assert found[1] < 180 and np.abs(expected[0].w).max() > 0.1
    agree(found[0], expected[0])


def test_equals_the_literal_algorithm(monkeypatch):
    n, n_blocks, iterations = 600, 6, 120
    problem = problem_of(SETS["cvar 0.1"], 0.05, n=n)
    it, on_all = run(problem, Iterations, 0, iterations, monkeypatch)
    assert on_all < 80
    metric = it.metric
    H = metric.basis @ np.diag(metric.eigenvalues) @ metric.basis.T
    draws = np.random.default_rng(1).integers(0, n_blocks, size=(iterations, 2))
    rows = [np.arange(k, n, n_blocks) for k in range(n_blocks)]
    w, q = literal_drago.run(
        problem.X, problem.y, "squared", SETS["cvar 0.1"], "chi2", 0.05, 0.1, problem.p, rows,
        draws, 0.05, True, H, None,
    )  # fmt: skip
    np.testing.assert_allclose(it.w, w, rtol=0, atol=1e-10)
    np.testing.assert_allclose(it.weights(), q, rtol=0, atol=1e-10)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    tail=st.sampled_from([0.05, 0.3, 0.9, None]),
    nu=st.sampled_from([0.0, 1e-6, 1e-2, 1.0]),
    s=st.sampled_from([1e-3, 0.1, 10.0]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    levels=st.sampled_from([0, 3]),
    weighted=st.booleans(),
    size=st.sampled_from([40, 3]),
)
def test_any_sequence_of_steps(seed, tail, nu, s, scale, levels, weighted, size):
    """Tables and changes at random, equal losses, lists without room: the same weights."""
    rng = np.random.default_rng(seed)
    n, slices = 240, [slice(k, k + size) for k in range(0, 240, size)]
    p = nominal("random" if weighted else "uniform", n, rng)
    uncertainty = drago.Simplex() if tail is None else drago.CVaR(tail)
    mine, plain = (uncertainty.oracle(p, drago.Chi2()) for _ in range(2))
    hypothesis.assume(mine.cap > 1)

    def losses(count):
        drawn = rng.exponential(size=count)
        return scale * (np.round(drawn * levels) if levels else drawn)

    nu, s = nu * scale, s * scale
    table = losses(n)
    q, expected = np.empty(n), np.empty(n)
    for oracle, weights in ((mine, q), (plain, expected)):
        oracle.solve_into(table, nu, weights)
    lists = Unsettled(slices, mine, np.empty(n))
    lists.memory["moved"] = scale * rng.choice([1e-3, 0.1])
    for _ in range(12):
        j, k = rng.integers(0, len(slices), size=2)
        table[slices[k]] += rng.choice([0.0, 0.01, 1.0]) * (losses(size) - scale)
        change = rng.choice([0.0, 0.01, 3.0]) * (losses(size) - scale)
        u = table + s * expected / p
        u[slices[j]] += change
        plain.solve_into(u, nu + s, expected)
        if not lists.step(table, q, int(j), change, int(k), nu, s):
            u = table + s * q / p
            u[slices[j]] += change
            before = mine.memory["_tau"]
            mine.solve_into(u, nu + s, q)
            lists.observe(before)
        lists.write(q)
        np.testing.assert_allclose(q, expected, rtol=0, atol=1e-9)
        expected[:] = q  # rounding is not to add up


def test_weights_of_listed_rows_are_written_when_asked_for(monkeypatch):
    problem = problem_of(SETS["cvar 0.1"], 0.05)
    it, _ = run(problem, Iterations, 0, 50, monkeypatch)
    tables = it.tables
    lists = tables._unsettled
    assert sum(lists._is_listed) >= 4 and lists._sizes.sum() < 240
    stale = tables._q.copy()
    q = tables.q.copy()
    assert (stale != q).any() and q.sum() == pytest.approx(1.0, abs=1e-12)
    it.round([(0, 1)], False)
    assert not any(lists._is_listed)


def test_no_lists_where_they_are_of_no_use():
    small = problem_of(SETS["cvar 0.1"], 0.1)
    oracle = small.dual_oracle()
    slices = [slice(0, 300)] * 4
    assert Unsettled.made_for(small.divergence, slices, oracle, np.empty(1200)) is None
    n = module.LEAST_ROWS
    X, y = np.ones((n, 1)), np.arange(n, dtype=float)

    def made(count, **settings):
        problem = drago.DROProblem(X, y, shift_cost=0.1, **settings)
        oracle = problem.dual_oracle()
        return Unsettled.made_for(problem.divergence, [slice(0, n)] * count, oracle, np.empty(n))

    assert made(4, uncertainty=drago.CVaR(0.1)) is not None
    assert made(3, uncertainty=drago.CVaR(0.1)) is None
    assert made(n // 63, uncertainty=drago.CVaR(0.1)) is None
    assert made(4, uncertainty=drago.CVaR(0.1), divergence="kl") is None
    assert made(4, uncertainty=drago.CVaR(1.0)) is None
    assert made(4, uncertainty=drago.Chi2Ball(1.0)) is None
