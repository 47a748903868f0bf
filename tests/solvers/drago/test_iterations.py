"""DRAGO's iterations against literal transcriptions of the paper, same blocks drawn."""

import copy
import itertools

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import drago
import literal_drago
import literal_support
import literal_variants
from cases import nominal, thinned
from drago.metric import Metric, make_metric
from drago.problem import NonFiniteLossError
from drago.solvers.drago import one_block
from drago.solvers.drago.iterations import Iterations
from drago.solvers.drago.one_block import OneBlockIterations
from drago.solvers.drago.steps import LaggedSteps, SecantSteps, Steps, UnregularisedSteps
from drago.solvers.drago.variants import LaggedIterations, SupportIterations

SETS = {
    "cvar": drago.CVaR(0.4),
    "extremile": drago.Extremile(2.0),
    "chi2_ball": drago.Chi2Ball(0.5),
    "mean": drago.CVaR(1.0),
}
LOSSES = ("squared", "logistic", "multinomial")
PAIRS = [
    ("cvar", "chi2"),
    ("cvar", "kl"),
    ("extremile", "chi2"),
    ("extremile", "kl"),
    ("chi2_ball", "chi2"),
]
NU, MU, N = 0.2, 0.5, 24
# Name of the algorithm: step size and metric.
KINDS = {"stationary": (0.05, "full"), "paper": (0.02, "full"), "lagged": (0.02, "diagonal")}


def data(loss, n=N, seed=7):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4)) * [1.0, 0.5, 2.0, 1.0]
    X[np.abs(X) < 0.3] = 0.0
    z = X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(n)
    if loss == "squared":
        return X, z
    if loss == "logistic":
        return X, (z > 0).astype(float)
    return X, np.digitize(z, [-0.7, 0.7])


def make(X, y, loss="squared", uncertainty="cvar", divergence="auto", nu=NU, mu=MU, **kwargs):
    return drago.DROProblem(
        X,
        y,
        loss=loss,
        uncertainty=SETS[uncertainty],
        divergence=divergence,
        shift_cost=nu,
        l2_reg=mu,
        **kwargs,
    )


def tables_of(problem, kind=OneBlockIterations, n_blocks=1):
    return problem.rows.tables(problem, kind.kind, n_blocks, 1)


def begin(problem, n_blocks, metric="full", kind=Iterations, q="exact", mean=None, start=None):
    """Iterations from w = 0, or from `start`."""
    norm = make_metric(problem, metric, mean) if isinstance(metric, str) else metric
    if start is None:
        start = np.zeros((problem.n_features, problem.n_outputs)), np.zeros(problem.n_outputs)
    tables = tables_of(problem, kind, n_blocks)
    return kind(problem, tables, norm, mean, problem.evaluate(*start), q)


def go(it, draws):
    for i, j in draws:
        it.step(int(i), int(j))
    return it.w, it.weights()


def matrix(metric):
    H = np.diag(metric.eigenvalues)
    return H if metric.basis is None else metric.basis @ H @ metric.basis.T


def rows_of(n, n_blocks):
    return [np.arange(k, n, n_blocks) for k in range(n_blocks)]


def draw(n_blocks, iterations, seed=5):
    return np.random.default_rng(seed).integers(0, n_blocks, size=(iterations, 2))


def same(found, expected, atol=1e-10):
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def check(loss, name, divergence, n_blocks, kind, iterations, storages=(np.asarray, sp.csr_array),
          weighted=False, alpha=None, metric=None, dual_alpha=None):  # fmt: skip
    """The library, with the features stored in each way, against the transcription."""
    X, y = data(loss)
    own_alpha, own_metric = KINDS[kind]
    alpha, metric = alpha or own_alpha, metric or own_metric
    p = nominal("random" if weighted else "uniform", N, np.random.default_rng(1))
    draws = draw(n_blocks, iterations)
    found = []
    for storage in storages:
        weight = p if weighted else None
        problem = make(storage(X), y, loss, name, divergence, sample_weight=weight)
        if kind == "lagged":
            it = begin(problem, n_blocks, metric, LaggedIterations, "nominal")
            it.steps = LaggedSteps(alpha)
        else:
            it = begin(problem, n_blocks, metric, q="exact" if kind == "stationary" else "nominal")
            it.steps = Steps(alpha, dual_alpha or alpha, kind == "stationary")
        found.append(go(it, draws))
        H = matrix(it.metric)
    common = (X, y, loss, SETS[name], divergence, NU, MU, p, rows_of(N, n_blocks), draws, alpha)
    if kind == "lagged":
        expected = literal_variants.run_lagged(*common, H)
    else:
        expected = literal_drago.run(*common, kind == "stationary", H, dual_alpha)
    assert 0.05 < np.abs(expected[0]).max() < 50  # it has moved and not diverged
    for one in found:
        same(one, expected)


# ------------------------------------------------------------------------- the paper's algorithms


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
@pytest.mark.parametrize("n_blocks", [4, 5])
def test_equals_the_literal_algorithm(loss, name, divergence, n_blocks):
    """Blocks that divide n and that do not, dense and sparse; one of the algorithms for each."""
    index = LOSSES.index(loss) + PAIRS.index((name, divergence)) + n_blocks
    check(loss, name, divergence, n_blocks, list(KINDS)[index % 3], 60)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_literal_algorithm_for_long(loss, name, divergence, kind):
    for n_blocks in (4, 5):
        check(loss, name, divergence, n_blocks, kind, 300)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("n_blocks", [1, 2, N])
@pytest.mark.parametrize("kind", KINDS)
def test_any_block_size(n_blocks, kind):
    """All rows in one block, two blocks, and one row a block, with sample weights, for long."""
    alpha = 0.01 if n_blocks == N else 0.05
    check("squared", "cvar", "chi2", n_blocks, kind, 300, (np.asarray,), True, alpha, "euclidean")


@pytest.mark.thinned(2)
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "full"])
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_every_metric_with_sample_weights(metric, divergence):
    check("logistic", "extremile", divergence, 5, "stationary", 60, weighted=True, metric=metric)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["stationary", "paper"])
@pytest.mark.parametrize("dual_alpha", [0.002, 0.01, 0.1])
def test_dual_steps_of_their_own(kind, dual_alpha):
    check("squared", "cvar", "chi2", 5, kind, 100, dual_alpha=dual_alpha)


def test_float32_features_are_worked_on_in_float64():
    X, y = data("logistic")
    single = X.astype(np.float32)
    draws = draw(5, 60)
    double = go(begin(make(single.astype(float), y, "logistic"), 5), draws)
    for given in (single, sp.csr_array(single)):
        assert make(given, y, "logistic").X.dtype == np.float32
        for kind in (Iterations, SupportIterations):
            found = go(begin(make(given, y, "logistic"), 5, kind=kind), draws)
            if kind is Iterations:
                same(found, double, 1e-12)
        same(found, go(begin(make(single.astype(float), y, "logistic"), 5, kind=kind), draws))


# ------------------------------------------------------------------------ the appendix's variant


def check_unregularised(loss, name, divergence, mu, nu, n_blocks, iterations):
    X, y = data(loss)
    problem = make(X, y, loss, name, divergence, nu, mu)
    draws = draw(n_blocks, iterations)
    # Constants below the true ones: with those, nothing would move.
    L, G, kappa = problem.smoothness / 20, 0.05, problem.kappa_q
    # The metric of the solver, mu I or I; L and G in its norm; the strong convexity of the
    # regularisation in it, 1 or 0.
    unit = mu if mu > 0 else 1.0
    smooth, lipschitz = 12 * np.e * kappa * L / unit, 32 * G / np.sqrt(unit)
    it = begin(problem, n_blocks, "euclidean", q="nominal")
    assert (it.metric.eigenvalues == unit).all()
    it.steps = UnregularisedSteps(n_blocks, float(mu > 0), smooth, lipschitz)
    found = go(it, draws)
    nu_1 = (n_blocks * lipschitz / smooth) ** 2
    w, w_bar, q = literal_variants.run_unregularised(
        X, y, loss, SETS[name], divergence, nu, mu, problem.p, rows_of(N, n_blocks), draws,
        G, L, kappa, unit, unit, nu_1, 5 * max(n_blocks - 1, 1),
    )  # fmt: skip
    assert 0.005 < np.abs(w).max() < 50
    same((*found, it.average()[0]), (w, q, w_bar))
    assert not np.allclose(w, w_bar)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("nu", [0.0, 0.2])
@pytest.mark.parametrize("n_blocks", [1, 4, 5])
def test_unregularised_equals_the_literal_variant(mu, nu, n_blocks):
    check_unregularised("squared", "cvar", "chi2", mu, nu, n_blocks, 80)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_unregularised_equals_the_literal_variant_for_long(loss, name, divergence):
    for mu, nu in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2)):
        check_unregularised(loss, name, divergence, mu, nu, 5, 300)


def test_the_average_is_the_last_point_with_other_steps():
    it = begin(make(*data("squared")), 4)
    go(it, draw(4, 10))
    assert (it.average()[0] == it.w).all() and (it.average()[1] == it.b).all()


# ----------------------------------------------------------------------- the exact primal gradient


def check_support(loss, name, divergence, n_blocks, iterations, intercept=False, picked=False,
                  weighted=False, metric="full"):  # fmt: skip
    X, y = data(loss)
    p = nominal("random" if weighted else "uniform", N, np.random.default_rng(1))
    draws = draw(n_blocks, iterations)
    alpha = 0.1
    found = []
    mean = p @ X if intercept else None
    for storage in (np.asarray,) if picked else (np.asarray, sp.csr_array):
        problem = make(
            storage(X), y, loss, name, divergence,
            sample_weight=p if weighted else None, fit_intercept=intercept,
        )  # fmt: skip
        it = begin(problem, n_blocks, metric, SupportIterations, mean=mean)
        it.tables.blocks._copied = it.tables.blocks._copied and not picked
        it.steps = Steps(alpha, alpha, True)
        found.append((*go(it, draws), it.b + mean @ it.w if intercept else it.b))
    H, features, ridge = matrix(it.metric), X, np.full(4, MU)
    if intercept:
        # Centred features and a last one of ones.
        features = np.column_stack([X - mean, np.ones(N)])
        H = np.block([[H, np.zeros((4, 1))], [np.zeros((1, 4)), it.metric.intercept]])
        ridge = np.append(ridge, 0.0)
    w, q = literal_support.run(
        features, y, loss, SETS[name], divergence, NU, ridge, p, rows_of(N, n_blocks), draws,
        alpha, H,
    )  # fmt: skip
    b = w[4] if intercept else np.zeros(w.shape[1])
    assert np.abs(w[:4]).max() > 0.05 and (np.abs(b).max() > 1e-3) == intercept
    for one in found:
        same(one, (w[:4], q, b))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_support_equals_the_literal_twin(loss, name, divergence):
    """All rows, and only those with weight; an intercept in every other case."""
    index = LOSSES.index(loss) + PAIRS.index((name, divergence))
    for n_blocks, picked in ((4, False), (5, True)):
        check_support(
            loss, name, divergence, n_blocks, 40, (index + n_blocks) % 2 == 0, picked, picked
        )


@pytest.mark.thinned(2)
@pytest.mark.parametrize("n_blocks", [1, 2, N])
@pytest.mark.parametrize("picked", [False, True])
def test_support_with_any_block_size(n_blocks, picked):
    check_support("squared", "cvar", "chi2", n_blocks, 100, True, picked, True, "diagonal")


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_support_equals_the_literal_twin_for_long(loss, name, divergence):
    for n_blocks, intercept, picked in ((4, False, True), (5, True, False)):
        check_support(loss, name, divergence, n_blocks, 300, intercept, picked)


# ------------------------------------------------------------------------------- what must hold


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", [Iterations, SupportIterations])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n_blocks", [1, 3, 8])
def test_the_optimum_is_a_fixed_point(kind, loss, n_blocks):
    """With an intercept and sample weights: from the exact optimum nothing moves."""
    X, y = data(loss)
    p = nominal("random", N, np.random.default_rng(1))
    problem = make(X, y, loss, sample_weight=p, fit_intercept=True)
    best = drago.solve(problem, "lbfgs", tol=1e-12)
    w, b = problem.to_internal(best.coef, best.intercept)
    it = begin(problem, n_blocks, kind=kind, mean=p @ X, start=(w, b))
    q = it.weights()
    go(it, draw(n_blocks, 3 * n_blocks))
    same((it.w, it.b, it.weights()), (w, b, q), 1e-4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", [Iterations, SupportIterations])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_converges_to_the_optimum(kind, loss, intercept):
    X, y = data(loss)
    problem = make(X, y, loss, fit_intercept=intercept)
    best = drago.solve(problem, "lbfgs", tol=1e-12)
    w, b = problem.to_internal(best.coef, best.intercept)
    mean = problem.p @ X if intercept else None
    it = begin(problem, 4, kind=kind, mean=mean)
    go(it, draw(4, 800))
    same((it.w, it.b), (w, b), 1e-5)
    gap, primal = it.estimates()
    assert gap <= 1e-8 and primal == pytest.approx(best.primal, rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_estimators_are_unbiased(loss):
    """Over all blocks I and J, the mean of v^P and v^D is what the exact correction gives."""
    n, m, ratio = 11, 3, 1 / 1.1
    X, y = data(loss, n)
    it = begin(make(X, y, loss, fit_intercept=True), m, "euclidean", mean=X.mean(axis=0))
    it.steps = Steps(0.1, 0.1, True)
    for i, j in draw(m, 7):
        older = it.tables.product.copy()
        it.step(int(i), int(j))
    blocks = it.tables.blocks
    Xg = blocks.gather(X)
    ev = it.problem.evaluate(it.w, it.b)
    change = it.tables.q[:, None] * blocks.gather(ev.dlosses) - older
    expected = it._aggregate + ratio * Xg.T @ change, it._aggregate_b + ratio * change.sum(axis=0)
    seen = [copy.deepcopy(it)._primal_gradient(i, ratio * m, it._knows(i)) for i in range(m)]
    for index in range(2):
        found = np.mean([one[index] for one in seen], axis=0)
        np.testing.assert_allclose(found, expected[index], rtol=0, atol=1e-13)
    assert max(np.abs(one[0] - expected[0]).max() for one in seen) > 1e-4

    # The aggregate is what the table adds up to, and the table is q s of the last visits.
    np.testing.assert_allclose(it._aggregate, Xg.T @ it.tables.product, rtol=0, atol=1e-13)

    seen, before = [], it.tables.loss_table.copy()
    for j in range(m):
        trial = copy.deepcopy(it)

        def solve_into(u, c, q, mirror):
            mirror = mirror if mirror.size else q / it.tables.p
            seen.append(u - (c - NU) * mirror)

        trial.tables.oracle.solve_into = solve_into
        trial.step(0, j)
    losses = blocks.gather(it.problem.evaluate(trial.w, trial.b).losses)
    expected = trial.tables.loss_table + ratio * (losses - before)
    np.testing.assert_allclose(np.mean(seen, axis=0), expected, rtol=0, atol=1e-11)
    assert max(np.abs(one - expected).max() for one in seen) > 1e-3


def test_the_exact_gradient_is_exact():
    X, y = data("multinomial")
    for picked in (False, True):
        it = begin(make(X, y, "multinomial"), 5, kind=SupportIterations)
        it.tables.blocks._copied = not picked
        for i, j in draw(5, 20):
            it.step(int(i), int(j))
            ev = it.problem.evaluate(it.w, it.b)
            exact = X.T @ (it.weights()[:, None] * ev.dlosses)
            after = copy.deepcopy(it)
            after._exact_gradient()
            grad, _ = after._primal_gradient(0, 1.0, True)
            np.testing.assert_allclose(grad, exact, rtol=0, atol=1e-13)


def test_counts_follow_the_paper():
    """Initialisation n; then each block that is not known from elsewhere."""
    it = begin(make(*data("squared", 12)), 4, "euclidean")
    assert it.n_calls == 12 and it.visits == 12
    it.step(0, 2)  # K = 1: three blocks
    assert it.n_calls == 12 + 9 and it.visits == 12 + 9
    it.step(1, 2)  # I = K_1 and J = K_2: one block
    assert it.n_calls == 12 + 9 + 3 and it.visits == 12 + 18
    it.step(2, 0)  # I = K_2 = J_2; K = 3; J
    assert it.n_calls == 12 + 9 + 3 + 6 and it.visits == 12 + 27
    iterate = it.iterate()
    assert iterate.n_iter == 3 and iterate.n_oracle_calls == it.n_calls
    assert iterate.n_passes == it.visits / 12


def test_blocks_of_unequal_size_are_counted_by_their_rows():
    it = begin(make(*data("squared", 11)), 4, "euclidean")  # 3, 3, 3 and 2 rows
    it.step(3, 0)  # K = 1
    assert it.n_calls == 11 + 2 + 3 + 3 == it.visits


def test_counts_of_an_abandoned_run_are_carried_on():
    problem = make(*data("squared", 12))
    first, second = begin(problem, 4), begin(problem, 4)
    go(first, [(0, 2), (1, 3)])
    calls, visits = first.n_calls, first.visits
    second.continue_count(first)
    second.step(0, 2)
    assert second.n_calls == calls + 12 + 9 and second.visits == visits + 12 + 9
    assert second.iterate().n_iter == 3


def test_counts_of_the_exact_gradient():
    """No more than the blocks K and J, and the rows with weight."""
    X, y = data("squared", 200)
    problem = make(X, y, nu=1e-3)
    it = begin(problem, 4, kind=SupportIterations)
    it.tables.blocks._copied = False
    it.step(0, 2)
    for _ in range(5):
        calls, visits = it.n_calls, it.visits
        with_weight = int(np.count_nonzero(it.tables.q > 1e-12 / 200))
        assert with_weight < 120
        it.step(0, it.t % 4)
        assert it.n_calls - calls <= 100 + with_weight
        assert it.visits - visits <= 100 + with_weight


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@pytest.mark.parametrize("kind", [Iterations, SupportIterations])
def test_weights_to_start_with(divergence, kind):
    X, y = data("squared")
    problem = make(X, y, divergence=divergence)
    exact = problem.worst_case_weights(problem.losses(np.zeros(4)))
    draws = draw(5, 40)
    same(
        go(begin(problem, 5, kind=kind, q=exact), draws),
        go(begin(problem, 5, kind=kind, q="exact"), draws),
    )
    nominal_, given = (go(begin(problem, 5, kind=kind, q=q), draws) for q in ("nominal", problem.p))
    same(nominal_, given)


@pytest.mark.parametrize("divergence", ["chi2", "kl"])
def test_without_a_shift_cost_the_exact_start_is_finite(divergence):
    """A vertex has weights 0, whose logarithm is no place to start from."""
    X, y = data("squared")
    it = begin(make(X, y, divergence=divergence, nu=0.0), 4, "euclidean")
    it.steps = UnregularisedSteps(4, MU, 1.0, 1.0)
    w, q = go(it, draw(4, 40))
    assert np.isfinite(w).all() and np.isfinite(it.tables.mirror).all() and np.isfinite(q).all()
    assert q.sum() == pytest.approx(1.0) and problem_allows(it.problem, q)


def problem_allows(problem, q):
    return problem.uncertainty.violation(q, problem.p) <= 1e-9


@pytest.mark.parametrize(
    "constraint, kind, loss, metric",
    thinned(
        [drago.NonNegative(), drago.Box(-0.2, 0.3), drago.L2Ball(0.3)],
        [(Iterations, "squared"), (SupportIterations, "multinomial")],
        ["euclidean", "diagonal", "full"],
        keep=3,
    ),
    ids=repr,
)
def test_constraints_hold_at_every_iteration(constraint, kind, metric, loss):
    X, y = data(loss)
    problem = make(X, y, loss, mu=0.01, constraint=constraint)
    it = begin(problem, 3, metric, kind)
    if metric == "euclidean":
        it.steps = Steps(0.002, 0.1, True)
    for i, j in draw(3, {"euclidean": 800, "diagonal": 500, "full": 350}[metric]):
        it.step(int(i), int(j))
        assert constraint.contains(it.w)
    free = make(X, y, loss, mu=0.01)
    assert not constraint.contains(free.to_internal(drago.solve(free).coef)[0])
    assert drago.certify(problem, *problem.to_public(it.w, it.b)).rel_gap <= 1e-4


# ------------------------------------------------------------------------ projections in a metric


def metric_of(d, condition, full, rng):
    weights = condition ** np.linspace(0.0, 1.0, d)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0] if full else None
    return Metric(np.ones(d), basis, 1.0), weights[:, None]


def conditions(constraint, metric, weights, target, found):
    """The worst violation of the optimality conditions, relative to the gradient's size."""
    gradient = metric.back(weights * metric.rotate(found - target))
    size = np.abs(metric.back(weights * metric.rotate(target))).max()
    if isinstance(constraint, drago.L2Ball):
        if np.linalg.norm(found) < constraint.radius * (1 - 1e-12):
            return np.abs(gradient).max() / size
        multiplier = -np.vdot(gradient, found) / constraint.radius**2
        return max(-multiplier, np.abs(gradient + multiplier * found).max()) / size
    low, high = constraint.bounds(found.shape)
    wrong = np.abs(gradient)
    wrong = np.where(found <= low, np.maximum(-gradient, 0.0), wrong)
    wrong = np.where(found >= high, np.maximum(gradient, 0.0), wrong)
    wrong = np.where(low == high, 0.0, wrong)
    return wrong.max() / size


WALLS = [
    drago.NonNegative(),
    drago.Box(-0.2, 0.3),
    drago.Box(high=0.1),
    drago.Box(np.array([-1.0, 0.0, 0.2, -np.inf, -0.1]), np.array([0.5, 0.0, 0.2, 0.3, np.inf])),
    drago.L2Ball(0.4),
    drago.L2Ball(1e-6),
]


@pytest.mark.parametrize("constraint", WALLS, ids=repr)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e6])
def test_projections_satisfy_the_conditions_of_optimality(constraint, full, condition):
    rng = np.random.default_rng(0)
    for outputs in (1, 3):
        metric, weights = metric_of(5, condition, full, rng)
        for scale in (0.1, 1.0, 100.0):
            target = scale * rng.standard_normal((5, outputs))
            kept = target.copy()
            found = metric.project(constraint, target, weights)
            assert (target == kept).all()
            assert constraint.contains(found)
            assert conditions(constraint, metric, weights, target, found) <= 1e-9


@pytest.mark.parametrize("constraint", WALLS[:5], ids=repr)
@pytest.mark.parametrize("full", [False, True])
def test_projections_are_those_of_cvxpy(constraint, full):
    rng = np.random.default_rng(1)
    metric, weights = metric_of(5, 30.0, full, rng)
    target = rng.standard_normal((5, 1))
    found = metric.project(constraint, target, weights)
    z = cp.Variable((5, 1))
    root = np.sqrt(weights) * (np.eye(5) if metric.basis is None else metric.basis.T)
    inside = (
        [cp.norm(z) <= constraint.radius]
        if isinstance(constraint, drago.L2Ball)
        else [
            sign * z[j, 0] <= sign * side[j, 0]
            for sign, side in zip((-1, 1), constraint.bounds((5, 1)))
            for j in range(5)
            if np.isfinite(side[j, 0])
        ]
    )
    cp.Problem(cp.Minimize(cp.sum_squares(root @ (z - target))), inside).solve(cp.CLARABEL)
    np.testing.assert_allclose(found, z.value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("constraint", [*WALLS, drago.DROProblem(np.eye(2), [0, 1]).constraint],
                         ids=repr)  # fmt: skip
def test_a_point_inside_is_its_own_projection(constraint):
    rng = np.random.default_rng(2)
    metric, weights = metric_of(5, 30.0, True, rng)
    target = constraint.project(0.05 * rng.standard_normal((5, 2)))
    assert (metric.project(constraint, target, weights) == target).all()


# ------------------------------------------------------------- steps after the curvature met


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "full"])
def test_curvature_is_that_of_the_objective(intercept, metric):
    """Of the mean squared loss it is known: that of the features, by the metric."""
    X, y = data("squared")
    problem = make(X + 1.0, y, "squared", "mean", fit_intercept=intercept)
    mean = X.mean(axis=0) + 1.0 if intercept else None
    it = begin(problem, 1, metric, SupportIterations, mean=mean)
    it.steps = SecantSteps(0.1, 1e9, 0.9)
    Z = np.column_stack([X + 1.0, np.ones(len(y))]) if intercept else X + 1.0
    points = []
    for _ in range(6):
        points.append(np.append(it.w[:, 0], it.b) if intercept else it.w[:, 0])
        it.step(0, 0)
    expected = []
    for before, after in itertools.pairwise(points):
        moved = after - before
        size = moved[:4] @ matrix(it.metric) @ moved[:4]
        if intercept:
            size += it.metric.intercept * (moved[4] + mean @ moved[:4]) ** 2
        expected.append(np.mean((Z @ moved) ** 2) / size)
    assert it.steps.curvatures == pytest.approx(expected[-4:], rel=1e-6)
    alpha = 0.1
    for k in range(5):
        alpha = min(0.9 / max(expected[max(k - 3, 0) : k + 1]), 2.0 * alpha)
    assert it.steps.alpha == pytest.approx(alpha, rel=1e-6)


def test_steps_are_as_long_as_the_largest_curvature_allows():
    steps = SecantSteps(0.5, 1.5, 1.2)
    met = [(2.0, 0.6), (0.1, 0.6), (-3.0, 0.6), (0.1, 0.6), (0.1, 1.2), (0.1, 1.5), (4.0, 0.3)]
    for curvature, alpha in met:
        steps.learn(curvature)
        assert steps.alpha == pytest.approx(alpha)
    assert steps(3, 1, 0.1) == Steps(0.3, 0.3, True)(3, 1, 0.1)
    flat = SecantSteps(0.5, 1.5, 1.2)
    flat.learn(-1.0)
    assert flat.alpha == 0.5
    flat.learn(np.inf)
    flat.learn(np.nan)
    assert flat.alpha == 0.5 and flat.curvatures == [-1.0]
    assert flat.shorter(0.5) == Steps(0.2, 0.2, True)


# ------------------------------------------------------------------------- one block, compiled


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", ["squared", "huber", "logistic"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("metric", ["full", "diagonal"])
@pytest.mark.parametrize("tail", [0.1, 0.75])
def test_compiled_iterations_are_those_of_python(loss, intercept, metric, tail):
    """In rounds of 1, 3 and 8; what is kept between rounds is the same too."""
    rng = np.random.default_rng(5)
    X, y = data("logistic" if loss == "logistic" else "squared", n=60)
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=drago.CVaR(tail),
        shift_cost=0.05,
        l2_reg=0.1,
        fit_intercept=intercept,
        sample_weight=rng.exponential(size=60) + 0.1,
    )
    assert OneBlockIterations.is_for(problem, 1)
    mean = problem.rows.centre() if intercept else None
    states = []
    for kind in (SupportIterations, OneBlockIterations):
        start = problem.evaluate(*problem.origin)
        it = kind(
            problem, tables_of(problem, kind), make_metric(problem, metric, mean), mean, start
        )
        it.steps = SecantSteps(0.3, 2.0, 1.1)
        states.append(it)
    python, compiled = states
    for size in (1, 3, 8, 8):
        python.round([(0, 0)] * size, False)
        compiled.round([(0, 0)] * size, False)
        (ours, counts), (theirs, expected) = compiled.state(), python.state()
        assert counts["counts"] == expected["counts"]
        assert counts["steps"]["alpha"] == pytest.approx(expected["steps"]["alpha"], rel=1e-6)
        np.testing.assert_allclose(
            counts["steps"]["curvatures"], expected["steps"]["curvatures"], rtol=1e-5
        )
        for name, array in theirs.items():
            assert ours[name].shape == array.shape, name
            scale = max(float(np.abs(array).max(initial=0.0)), 1.0)
            np.testing.assert_allclose(ours[name], array, rtol=0, atol=1e-9 * scale, err_msg=name)
        assert compiled.estimates() == pytest.approx(python.estimates(), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("at", ["origin", "elsewhere"])
def test_a_compiled_start_is_that_of_python(loss, intercept, at):
    """Where nothing but the point is known."""
    problem = make(*data(loss), loss, fit_intercept=intercept, sample_weight=np.arange(1.0, N + 1))
    w, b = problem.origin
    if at == "elsewhere":
        w, b = w + np.arange(4.0)[:, None], b + intercept
    mean = problem.rows.centre() if intercept else None
    metric = make_metric(problem, "full", mean)
    python = OneBlockIterations(problem, tables_of(problem), metric, mean, problem.evaluate(w, b))
    compiled, moment = OneBlockIterations.begun(problem, tables_of(problem), metric, mean, w, b)
    assert moment == pytest.approx(
        float(python.weights() @ (python.weights() / problem.p)), rel=1e-12
    )
    (ours, counts), (theirs, expected) = compiled.state(), python.state()
    assert counts["counts"] == expected["counts"]
    for name in set(theirs) - {"slopes"}:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-12, err_msg=name)
    # And what comes of it.
    for it in (python, compiled):
        it.steps = SecantSteps(0.3, 2.0, 1.1)
        it.round([(0, 0)] * 8, False)
    np.testing.assert_allclose(compiled.w, python.w, rtol=0, atol=1e-9)


def test_a_compiled_start_where_a_loss_overflows():
    X, y = data("squared")
    problem = make(X, 1e160 * y)
    settings = problem, tables_of(problem), make_metric(problem, "full"), None
    with np.errstate(over="ignore"), pytest.raises(NonFiniteLossError, match="first on row"):
        OneBlockIterations.begun(*settings, np.zeros((4, 1)), np.zeros(1))


def test_a_compiled_start_where_only_the_sum_of_the_losses_overflows():
    problem = make(*data("squared"))
    y = problem.y * 1.8e154 / np.abs(problem.y).max()
    problem = make(problem.X, y)
    start = problem.evaluate(np.zeros((4, 1)), np.zeros(1))
    with np.errstate(over="ignore"):
        assert np.isinf(start.losses.sum()) and np.isfinite(start.losses).all()
    metric = make_metric(problem, "full")
    it, moment = OneBlockIterations.begun(
        problem, tables_of(problem), metric, None, start.w, start.b
    )
    assert 1.0 <= moment <= 2.5 * (1 + 1e-12)
    python = OneBlockIterations(problem, tables_of(problem), metric, None, start)
    np.testing.assert_allclose(it.weights(), python.weights(), rtol=1e-12)
    np.testing.assert_allclose(it._aggregate, python._aggregate, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 3, 4, 7, 9])
def test_products_by_columns_are_those_by_rows(d, monkeypatch):
    rng = np.random.default_rng(d)
    X = rng.standard_normal((50, d))
    problem = make(X, X.sum(axis=1) + rng.standard_normal(50))
    found = []
    for most in (0, 50 * d):
        monkeypatch.setattr(one_block, "_BY_COLUMNS", most)
        settings = problem, tables_of(problem), make_metric(problem, "full"), None
        it, _ = OneBlockIterations.begun(*settings, np.zeros((d, 1)), np.zeros(1))
        it.steps = SecantSteps(0.3, 2.0, 1.1)
        here = it.round([(0, 0)] * 8, False)
        found.append((it.w, it.weights(), here.raw, here.losses, here.dlosses))
    for by_rows, by_columns in zip(*found):
        np.testing.assert_allclose(by_columns, by_rows, rtol=0, atol=1e-11)


def test_which_problems_have_compiled_iterations():
    X, y = data("squared")

    def is_for(X=X, count=1, **options):
        problem = make(X, y, **options)
        return OneBlockIterations.is_for(problem, count)

    assert is_for() and is_for(X.astype(np.float32))
    # Beyond small data: only what needs no copy, and has losses of one curvature.
    large, z = np.ones((1 << 18, 8)), np.arange(1 << 18) % 2.0
    for features, loss, expected in (
        (large, "squared", True),
        (large, "logistic", False),
        (large.astype(np.float32), "squared", False),
        (np.asfortranarray(large), "squared", False),
        (np.ones(((1 << 18) + 1, 8)), "squared", False),
    ):
        problem = make(
            features, z[: len(features)] if len(z) >= len(features) else np.append(z, 0.0), loss
        )
        assert OneBlockIterations.is_for(problem, 1) == expected
    assert not is_for(count=2)
    assert not is_for(sp.csr_array(X))
    assert not is_for(uncertainty="extremile")
    assert not is_for(uncertainty="mean")
    assert not is_for(divergence="kl")
    assert not is_for(constraint=drago.NonNegative())


def test_steps_of_one_length_are_taken_as_before():
    """Where the learnt ones gave up, there is nothing to learn."""
    problem = make(*data("squared"))
    states = []
    for kind in (SupportIterations, OneBlockIterations):
        start = problem.evaluate(*problem.origin)
        it = kind(problem, tables_of(problem, kind), make_metric(problem, "full"), None, start)
        it.steps = Steps(0.3, 0.3, True)
        it.round([(0, 0)] * 5, False)
        states.append(it)
    assert (states[0].w == states[1].w).all() and (states[0].weights() == states[1].weights()).all()


def test_points_handed_out_do_not_change():
    """Steps of one length after compiled ones add to what they keep in place."""
    problem = make(*data("squared"))
    start = problem.evaluate(*problem.origin)
    it = OneBlockIterations(problem, tables_of(problem), make_metric(problem, "full"), None, start)
    it.steps = SecantSteps(0.3, 2.0, 1.1)
    it.round([(0, 0)] * 8, False)
    handed, before = it.iterate(), it.w.copy()
    it.steps = it.steps.shorter(0.5)
    it.round([(0, 0)] * 4, False)
    assert (handed.w == before).all() and not (it.w == before).all()
