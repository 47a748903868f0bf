"""DRAGO against a literal transcription of the paper, and through the certificate."""

import copy
import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import drago
import literal_drago
import reference
from cases import nominal
from drago.metric import make_metric
from drago.solvers.drago import Blocks, Iterations

SETS = {
    "cvar": (drago.CVaR(0.4), ("cvar", 0.4)),
    "extremile": (drago.Extremile(2.0), ("extremile", 2.0)),
    "chi2_ball": (drago.Chi2Ball(0.5), ("chi2_ball", 0.5)),
}
LOSSES = ("squared", "logistic", "multinomial")


def data(loss, n, rng):
    X = rng.standard_normal((n, 4)) * [1.0, 0.5, 2.0, 1.0]
    X[np.abs(X) < 0.3] = 0.0
    z = X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(n)
    if loss == "squared":
        return X, z
    if loss == "logistic":
        return X, (z > 0).astype(float)
    return X, np.digitize(z, [-0.7, 0.7])


def both(loss, name, divergence, n_blocks, start, metric, alpha, n=24, iterations=300, sparse=False,
         weighted=False):  # fmt: skip
    """(w, q) by the library and by the transcription, same blocks drawn."""
    rng = np.random.default_rng(7)
    X, y = data(loss, n, rng)
    uncertainty, _ = SETS[name]
    p = nominal("random" if weighted else "uniform", n, rng)
    nu, mu = 0.2, 0.5
    problem = drago.DROProblem(
        sp.csr_array(X) if sparse else X,
        y,
        loss=loss,
        uncertainty=uncertainty,
        divergence=divergence,
        shift_cost=nu,
        l2_reg=mu,
        sample_weight=p if weighted else None,
    )
    blocks = Blocks(problem, n_blocks)
    norm = make_metric(problem, metric)
    w = np.zeros((problem.n_features, problem.n_outputs))
    run = Iterations(problem, blocks, norm, None, start, alpha, w, np.zeros(problem.n_outputs))
    draws = rng.integers(0, n_blocks, size=(iterations, 2))
    for i, j in draws:
        run.step(int(i), int(j))
    H = np.diag(norm.eigenvalues)
    if norm.basis is not None:
        H = norm.basis @ H @ norm.basis.T
    index = [np.arange(k, n, n_blocks) for k in range(n_blocks)]
    expected = literal_drago.run(
        X,
        y,
        loss,
        uncertainty,
        divergence,
        nu,
        mu,
        p,
        index,
        draws,
        alpha,
        start == "stationary",
        H,
    )
    return (run.w, run.iterate(0.0).q), expected


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name, divergence", [
    ("cvar", "chi2"), ("cvar", "kl"), ("extremile", "chi2"), ("extremile", "kl"),
    ("chi2_ball", "chi2"),
])  # fmt: skip
@pytest.mark.parametrize("n_blocks", [4, 5])
def test_equals_the_literal_algorithm(loss, name, divergence, n_blocks):
    """Blocks that divide n and that do not; dense and sparse; both starts; both metrics."""
    for start, sparse in (("stationary", False), ("paper", True)):
        alpha = 0.05 if start == "stationary" else 0.02
        metric = "euclidean" if start == "paper" else "full"
        found, expected = both(
            loss, name, divergence, n_blocks, start, metric, alpha, sparse=sparse, iterations=60
        )
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("n_blocks", [1, 2, 24])
@pytest.mark.parametrize("start", ["stationary", "paper"])
def test_any_block_size(n_blocks, start):
    """One block, two, and one row a block, with sample weights."""
    alpha = 0.05 if n_blocks < 24 else 0.01
    found, expected = both(
        "squared", "cvar", "chi2", n_blocks, start, "euclidean", alpha, weighted=True
    )
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name, divergence", [
    ("cvar", "chi2"), ("cvar", "kl"), ("extremile", "chi2"), ("extremile", "kl"),
    ("chi2_ball", "chi2"),
])  # fmt: skip
@pytest.mark.parametrize("start", ["stationary", "paper"])
def test_equals_the_literal_algorithm_for_long(loss, name, divergence, start):
    alpha = 0.05 if start == "stationary" else 0.02
    metric = "euclidean" if start == "paper" else "full"
    for n_blocks, sparse in itertools.product((4, 5), (False, True)):
        found, expected = both(
            loss, name, divergence, n_blocks, start, metric, alpha, sparse=sparse, weighted=sparse
        )
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-10)


def test_the_estimators_are_unbiased():
    """Over all blocks I and J, the mean of v^P and v^D is what the exact correction gives."""
    rng = np.random.default_rng(3)
    X, y = data("squared", 11, rng)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.4), shift_cost=0.2, l2_reg=0.5)
    blocks, metric = Blocks(problem, 3), make_metric(problem, "euclidean")
    zero = np.zeros((4, 1)), np.zeros(1)
    run = Iterations(problem, blocks, metric, None, "stationary", 0.1, *zero)
    tables = []
    for i, j in rng.integers(0, 3, size=(7, 2)):
        tables.append((run.loss_table.copy(), run.product.copy()))
        run.step(int(i), int(j))
    order, ratio = blocks.order, 1 / 1.1
    exact = X[order].T @ (run.q * (X[order] @ run.w[:, 0] - y[order]))
    older = X[order].T @ tables[-1][1][:, 0]
    expected_primal = run.aggregate[:, 0] + ratio * (exact - older)
    seen = []
    for i in range(3):
        trial = copy.deepcopy(run)
        trial._move = lambda grad, *rest: seen.append(grad[:, 0])
        trial.step(i, 0)
    np.testing.assert_allclose(np.mean(seen, axis=0), expected_primal, rtol=1e-10)

    seen, before = [], run.loss_table.copy()
    for j in range(3):
        trial = copy.deepcopy(run)
        trial.oracle.step = lambda v, *rest, trial=trial: (
            seen.append(v.copy()) or (trial.q, trial.mirror)
        )
        trial.step(0, j)
    losses = 0.5 * (X[order] @ trial.w[:, 0] - y[order]) ** 2
    expected_dual = trial.loss_table + ratio * (losses - before)
    np.testing.assert_allclose(np.mean(seen, axis=0), expected_dual, rtol=1e-10)


@pytest.mark.parametrize("loss", [*LOSSES, ("huber", 0.7)])
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("intercept", [False, True])
def test_certified_and_equal_to_cvxpy(loss, name, intercept):
    rng = np.random.default_rng(11)
    X, y = data(loss if isinstance(loss, str) else "squared", 8, rng)
    uncertainty, set_ = SETS[name]
    if loss == "multinomial":
        y = np.arange(8) % 3
    if loss == "logistic":
        y = np.arange(8) % 2.0
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(loss[1]) if isinstance(loss, tuple) else loss,
        uncertainty=uncertainty,
        shift_cost=0.1,
        l2_reg=0.1,
        fit_intercept=intercept,
    )
    result = drago.solve(problem, "drago", tol=1e-8)
    optimum, _, _ = reference.solve_problem(
        X, y, loss, set_, problem.divergence.name, 0.1, 0.1, None, intercept
    )
    assert result.status == "optimal" and result.solver == "drago"
    assert result.primal == pytest.approx(optimum, rel=1e-7)


def test_same_seed_same_answer_other_seed_same_optimum():
    rng = np.random.default_rng(0)
    X, y = data("squared", 300, rng)
    problem = drago.DROProblem(X, y, shift_cost=0.1)
    first, again, other = (
        drago.solve(problem, "drago", tol=1e-6, random_state=seed) for seed in (0, 0, 1)
    )
    assert (first.coef == again.coef).all() and first.n_passes == again.n_passes
    assert (first.coef != other.coef).any()
    assert other.primal == pytest.approx(first.primal, rel=1e-5)


@pytest.mark.parametrize(
    "constraint", [drago.NonNegative(), drago.L2Ball(0.5), drago.Box(-0.2, 0.2)]
)
def test_constraints_in_the_euclidean_metric(constraint):
    rng = np.random.default_rng(0)
    X, y = data("squared", 200, rng)
    problem = drago.DROProblem(X, y, shift_cost=0.1, l2_reg=0.5, constraint=constraint)
    result = drago.solve(problem, drago.Drago(metric="euclidean"), tol=1e-5)
    assert result.status == "optimal"
    with pytest.raises(ValueError, match="metric='euclidean'"):
        drago.solve(problem, drago.Drago(metric="full"))


def test_a_step_size_that_is_too_large_is_cut_or_named():
    rng = np.random.default_rng(0)
    X, y = data("squared", 500, rng)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.1), shift_cost=1e-3)
    with pytest.warns(Warning, match="step_size=10 is too large"):
        result = drago.solve(problem, drago.Drago(step_size=10.0))
    assert result.primal <= problem.reference[0] and np.isfinite(result.coef).all()
    assert drago.solve(problem, "drago", tol=1e-5).status == "optimal"


def test_user_loss_and_user_set():
    rng = np.random.default_rng(0)
    X, y = data("squared", 200, rng)

    def squared(y, raw):
        return 0.5 * (raw - y) ** 2, raw - y

    class Mine:
        def worst_case(self, u, c, divergence, p):
            return drago.CVaR(0.3).worst_case(u, c, divergence, p)

        def q_max(self, p):
            return float(p.max() / 0.3)

    kwargs = {"shift_cost": 0.1, "l2_reg": 0.1}
    mine = drago.DROProblem(X, y, loss=squared, uncertainty=Mine(), **kwargs)
    theirs = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.3), **kwargs)
    found, expected = (drago.solve(problem, "drago", tol=1e-7) for problem in (mine, theirs))
    assert found.primal == pytest.approx(expected.primal, rel=1e-6)


def test_float32_and_settings():
    rng = np.random.default_rng(0)
    X, y = data("squared", 300, rng)
    single = drago.DROProblem(X.astype(np.float32), y, shift_cost=0.1)
    double = drago.DROProblem(X.astype(np.float32).astype(float), y, shift_cost=0.1)
    one, two = (drago.solve(problem, "drago", tol=1e-8) for problem in (single, double))
    assert one.primal == pytest.approx(two.primal, rel=1e-8)
    for bad in ({"step_size": 0.0}, {"block_size": 0}, {"block_size": "d/n"}, {"metric": "taxi"},
                {"start": "late"}):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(bad))):
            drago.Drago(**bad)


def test_what_the_method_is_not_for_is_refused():
    X, y = np.eye(4), np.arange(4.0)
    for kwargs in ({"l2_reg": 0.0, "shift_cost": 0.1}, {"l2_reg": 0.1, "shift_cost": 0.0}):
        with pytest.raises(ValueError, match="l2_reg > 0 and shift_cost > 0"):
            drago.solve(drago.DROProblem(X, y, **kwargs), "drago")


def test_counts_follow_the_paper():
    """Initialisation n; then each block that is not known from elsewhere."""
    rng = np.random.default_rng(0)
    X, y = data("squared", 12, rng)
    problem = drago.DROProblem(X, y, shift_cost=0.1)
    blocks = Blocks(problem, 4)
    metric = make_metric(problem, "euclidean")
    run = Iterations(
        problem, blocks, metric, None, "stationary", 0.1, np.zeros((4, 1)), np.zeros(1)
    )
    assert run.n_calls == 12 and run.visits == 12
    run.step(0, 2)  # K = 1: three blocks
    assert run.n_calls == 12 + 9 and run.visits == 12 + 9
    run.step(1, 2)  # I = K_1 and J = K_2: one block
    assert run.n_calls == 12 + 9 + 3 and run.visits == 12 + 18
    run.step(2, 0)  # I = K_2 = J_2; K = 3; J
    assert run.n_calls == 12 + 9 + 3 + 6
