"""DRAGO through `drago.solve`: certified, equal to cvxpy, and with every setting."""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import drago
import reference
from cases import DIVERGENCES, LEVEL, kink, no_worse, thinned
from drago.loop import loop as base
from drago.loop import start
from drago.loop.loop import Iterate
from drago.solvers.drago.constants import theory_step

LOSSES = {
    "squared": "squared",
    "huber": ("huber", 0.7),
    "logistic": "logistic",
    "multinomial": "multinomial",
}
SETS = {
    "cvar": (drago.CVaR(0.3), ("cvar", 0.3)),
    "simplex": (drago.Simplex(), ("simplex",)),
    "extremile": (drago.Extremile(2.5), ("extremile", 2.5)),
    "esrm": (drago.ESRM(3.0), ("esrm", 3.0)),
    "spectrum": (drago.Spectrum(integral=kink), ("spectrum", kink)),
    "chi2_ball": (drago.Chi2Ball(0.5), ("chi2_ball", 0.5)),
    "kl_ball": (drago.KLBall(0.3), ("kl_ball", 0.3)),
    "grouped_cvar": (drago.Grouped(drago.CVaR(0.5)), ("grouped", ("cvar", 0.5))),
    "grouped_kl": (drago.Grouped(drago.KLBall(0.3)), ("grouped", ("kl_ball", 0.3))),
}
OWN = {"chi2_ball": "chi2", "kl_ball": "kl", "grouped_kl": "kl"}
PAIRS = [(name, div) for name in SETS for div in DIVERGENCES if OWN.get(name, div) == div]
CONSTRAINTS = {
    "none": (None, None),
    "box": (drago.Box(-0.4, 0.3), ("box", -0.4, 0.3)),
    "nonnegative": (drago.NonNegative(), ("nonnegative",)),
    "ball": (drago.L2Ball(0.4), ("l2_ball", 0.4)),
}
# Intercept, sample weights, constraint.
WAYS = list(itertools.product((False, True), (False, True), CONSTRAINTS))


def target(loss, z):
    if loss == "logistic":
        return (z > np.median(z)).astype(float)
    if loss == "multinomial":
        return np.argsort(np.argsort(z)) * 3 // len(z)
    return z


def data(loss="squared", n=300, d=4, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, target(loss, X @ rng.standard_normal(d) + noise * rng.standard_normal(n))


def make(X, y, **options):
    kwargs = {"shift_cost": 0.05, "l2_reg": 1e-2, "uncertainty": drago.CVaR(0.2), **options}
    return drago.DROProblem(X, y, **kwargs)


def solve(problem, solver="drago", tol=1e-4, **kwargs):
    """Solve, with the status asserted; a warning is an error here."""
    result = drago.solve(problem, solver, tol=tol, **kwargs)
    assert result.status == "optimal" and result.rel_gap <= tol and result.solver == "drago"
    assert np.isfinite(result.coef).all() and np.isfinite(result.intercept).all()
    return result


def as_far_as_it_goes(problem, solver="drago", **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return drago.solve(problem, solver, **kwargs)


def near(problem, result, other, tol):
    """Whether two certified answers agree as `tol` says they must."""
    span = problem.reference[0] - min(result.dual, other.dual)
    return abs(result.primal - other.primal) <= 1.1 * tol * span


def squared(y, raw):
    return 0.5 * (raw - y) ** 2, raw - y


class Mine:
    """A user's set: CVaR."""

    def worst_case(self, u, c, divergence, p):
        return drago.CVaR(0.3).worst_case(u, c, divergence, p)

    def q_max(self, p):
        return float(p.max() / 0.3)


# --------------------------------------------------------------------------------- with cvxpy


def check_against_cvxpy(loss, name, divergence, intercept, weighted, constraint, seed,
                        solver="drago"):  # fmt: skip
    uncertainty, set_ = SETS[name]
    rng = np.random.default_rng(seed)
    n, d = 9, 3
    X = rng.standard_normal((n, d)) * np.array([1.0, 0.5, 2.0])
    y = target(loss, X @ rng.standard_normal(d) + rng.standard_normal(n))
    weight = rng.exponential(size=n) + 0.05 if weighted else None
    groups = np.array(list("abcabcaab")) if set_[0] == "grouped" else None
    if groups is not None:
        set_ = (*set_, groups)
    W, W_tuple = CONSTRAINTS[constraint]
    nu, mu = float(rng.choice([0.3, 0.05])), float(rng.choice([1.0, 0.05]))
    problem = drago.DROProblem(
        X,
        y,
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=uncertainty,
        divergence=divergence,
        shift_cost=nu,
        l2_reg=mu,
        sample_weight=weight,
        groups=groups,
        fit_intercept=intercept,
        constraint=W,
    )
    p = None if weight is None else weight / weight.sum()
    optimum, w, _ = reference.solve_problem(
        X, y, LOSSES[loss], set_, divergence, nu, mu, p, intercept, W_tuple
    )
    result = as_far_as_it_goes(problem, solver, tol=1e-10, max_iter=20000)
    scale = max(1.0, abs(optimum))
    assert result.gap <= 1e-8 * scale  # where there is little to gain, rel_gap ends at rounding
    assert abs(result.primal - optimum) <= 1e-7 * scale
    assert result.dual <= optimum + 1e-7 * scale
    assert result.coef == pytest.approx(w, abs=2e-3)
    assert problem.constraint.contains(problem.to_internal(result.coef)[0])


@pytest.mark.parametrize("loss, name, divergence", thinned(LOSSES, PAIRS, keep=4))
def test_value_is_that_of_cvxpy(loss, name, divergence):
    """One of the sixteen ways for each loss and set; more of them below."""
    index = list(LOSSES).index(loss) * len(PAIRS) + PAIRS.index((name, divergence))
    check_against_cvxpy(loss, name, divergence, *WAYS[5 * index % len(WAYS)], seed=index)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_value_is_that_of_cvxpy_in_every_way(way):
    for seed, (loss, (name, divergence)) in enumerate(itertools.product(LOSSES, PAIRS)):
        if seed % 4 == WAYS.index(way) % 4:
            check_against_cvxpy(loss, name, divergence, *way, seed=1000 + seed)


SETTINGS = [
    {"metric": "euclidean"},
    {"metric": "diagonal"},
    {"metric": "full"},
    {"start": "paper", "step_size": 0.02},
    {"start": "paper", "step_size": 0.1, "metric": "full"},
    {"start": "paper"},
    {"tables": "lagged", "start": "paper", "step_size": 0.02},
    {"step_size": 0.05},
    {"step_size": 0.05, "dual_step_size": 0.1},
    {"dual_step_size": 0.05},
    {"block_size": "n/d"},
    {"block_size": 1, "primal": "blocks"},
    {"block_size": 7},
    {"block_size": 37},
    {"block_size": 10**6},
    {"primal": "blocks"},
    {"primal": "support"},
    {"primal": "support", "step_size": 0.1},
    {"finish": "newton"},
    {"finish": "lbfgs"},
    {"finish": "none"},
    {"progressive": False},
    {"n_threads": 1},
    {"n_threads": 3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_every_setting_reaches_the_optimum(settings):
    X, y = data(n=100)
    problem = make(X, y, l2_reg=0.1)
    result = solve(problem, drago.Drago(**settings), tol=1e-7)
    optimum, _, _ = reference.solve_problem(X, y, "squared", ("cvar", 0.2), "chi2", 0.05, 0.1)
    assert -1e-9 <= result.primal - optimum <= 1.1e-7 * (problem.reference[0] - optimum)


@pytest.mark.parametrize("settings", SETTINGS[:3] + SETTINGS[10:], ids=str)
def test_every_setting_with_an_intercept_and_sample_weights(settings):
    X, y = data("logistic", 80)
    weight = np.random.default_rng(0).exponential(size=80)
    problem = make(
        X + 2.0, y, loss="logistic", l2_reg=0.1, fit_intercept=True, sample_weight=weight
    )
    result = solve(problem, drago.Drago(**settings), tol=1e-6)
    assert near(problem, result, drago.solve(problem, "lbfgs", tol=1e-8), 1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "metric", [pytest.param("euclidean", marks=pytest.mark.slow), "diagonal", "full", "auto"]
)
@pytest.mark.parametrize("constraint", ["box", "nonnegative", "ball"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_constraints_in_every_metric(metric, constraint, loss):
    tol = 1e-5 if metric == "euclidean" else 1e-6
    rng = np.random.default_rng(0)
    X, y = data(loss, 60)
    X = X @ rng.standard_normal((4, 4))
    W, W_tuple = CONSTRAINTS[constraint]
    problem = make(X, y, loss=loss, constraint=W, l2_reg=0.01, fit_intercept=True)
    result = solve(problem, drago.Drago(metric=metric), tol=tol)
    optimum, _, _ = reference.solve_problem(
        X, y, loss, ("cvar", 0.2), "chi2", 0.05, 0.01, None, True, W_tuple
    )
    assert result.primal - optimum <= 1.1 * tol * (problem.reference[0] - optimum) + 1e-8
    assert result.primal >= optimum - 1e-7
    assert W.contains(problem.to_internal(result.coef)[0])
    free = solve(make(X, y, loss=loss, l2_reg=0.01, fit_intercept=True))
    assert not W.contains(problem.to_internal(free.coef)[0])


# ------------------------------------------------------------------------------ forms of input


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_every_storage_of_the_features_gives_the_same_answer(loss, intercept):
    X, y = data(loss, 200)
    X = X.astype(np.float32).astype(float)
    X[np.abs(X) < 0.5] = 0.0
    options = {"loss": loss, "fit_intercept": intercept, "l2_reg": 0.1}
    best = solve(make(X, y, **options), tol=1e-8)
    single = X.astype(np.float32)
    for other in (np.asfortranarray(X), sp.csr_array(X), single, sp.csr_array(single)):
        problem = make(other, y, **options)
        for settings in ({"primal": "blocks"}, {"primal": "support"}):
            found = solve(problem, drago.Drago(**settings), tol=1e-8)
            assert found.coef == pytest.approx(best.coef, abs=1e-3)
            assert near(problem, found, best, 1e-8)


@pytest.mark.parametrize("name", ["cvar", "extremile", "kl_ball"])
def test_weight_k_is_k_copies(name):
    X, y = data(n=60)
    k = np.random.default_rng(5).integers(0, 4, 60)
    options = {"uncertainty": SETS[name][0], "fit_intercept": True}
    weighted = solve(make(X, y, sample_weight=k, **options), tol=1e-8)
    problem = make(np.repeat(X, k, axis=0), np.repeat(y, k), **options)
    assert near(problem, weighted, solve(problem, tol=1e-8), 1e-8)


def test_user_loss_and_user_set():
    X, y = data(n=200)
    theirs = solve(make(X, y, uncertainty=drago.CVaR(0.3)), tol=1e-7)
    for loss, uncertainty in ((squared, drago.CVaR(0.3)), ("squared", Mine()), (squared, Mine())):
        problem = make(X, y, loss=loss, uncertainty=uncertainty)
        assert near(problem, solve(problem, tol=1e-7), theirs, 1e-7)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("block_size", ["auto", "n/d", 1, 5])
def test_very_few_rows(n, block_size):
    X, y = data(n=n)
    problem = make(X, y + 3.0)
    result = solve(problem, drago.Drago(block_size=block_size), tol=1e-6)
    assert near(problem, result, drago.solve(problem, "lbfgs", tol=1e-8), 1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("intercept", [False, True])
def test_features_of_another_scale(scale, intercept):
    X, y = data()
    plain = make(X, y, fit_intercept=intercept)
    scaled = make(scale * X, y, fit_intercept=intercept, l2_reg=1e-2 * scale**2)
    assert near(plain, solve(plain), solve(scaled), 1e-4)


def test_a_shift_of_the_features_is_taken_by_the_intercept():
    X, y = data()
    here, there = (make(X + c, y, fit_intercept=True) for c in (0.0, 1e3))
    assert near(here, solve(here, tol=1e-6), solve(there, tol=1e-6), 1e-6)


# --------------------------------------------------------------------------- without mu or nu


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("mu", "nu"), [(0.0, 0.1), (0.01, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("finish", ["auto", "newton", "lbfgs", "none"])
def test_without_a_regularisation_or_a_shift_cost(mu, nu, divergence, finish):
    tol = 1e-4 if finish == "auto" else 1e-3
    options = {"uncertainty": drago.CVaR(0.4), "divergence": divergence}
    problem = make(*data(), l2_reg=mu, shift_cost=nu, **options)
    result = solve(problem, drago.Drago(finish=finish), tol=tol)
    best = as_far_as_it_goes(problem, "lbfgs", tol=1e-6)
    assert near(problem, result, best, tol)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("mu", "nu"), [(0.0, 0.1), (0.01, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize("loss", LOSSES)
def test_without_a_regularisation_or_a_shift_cost_the_answer_is_honest(mu, nu, loss):
    """Where the tolerance is not reached, the point is none the worse and the gap is true."""
    problem = make(*data(loss), loss=loss, l2_reg=mu, shift_cost=nu, fit_intercept=True)
    result = as_far_as_it_goes(problem, time_limit=20.0)
    best = as_far_as_it_goes(problem, "lbfgs", tol=1e-6)
    assert result.status in ("optimal", "stalled")
    assert no_worse(result, problem.reference[0])
    assert result.dual <= best.primal + 1e-9 * abs(best.primal)
    assert best.dual <= result.primal + 1e-9 * abs(best.primal)
    if result.status == "stalled":
        assert "no further progress" in result.message
        assert result.rel_gap > 1e-4 or "over ||w|| <=" in result.message


def test_the_mean_of_the_iterates_is_a_candidate_without_a_shift_cost():
    problem = make(*data(), shift_cost=0.0, uncertainty=drago.CVaR(0.4), constraint=drago.L2Ball(1))
    assert solve(problem, tol=1e-3).message.startswith("drago: ")


def test_the_simplex_of_the_nominal_weights_alone_needs_no_shift_cost():
    """CVaR(1) holds p only: nu = 0 is no difficulty there."""
    problem = make(*data(), shift_cost=0.0, uncertainty=drago.CVaR(1.0))
    for settings in ({}, {"start": "paper", "step_size": 0.05}, {"step_size": 0.1}):
        solve(problem, drago.Drago(**settings), tol=1e-6)


# ------------------------------------------------------------------------------ start and finish


def test_the_start_on_a_part_is_named_and_can_be_switched_off():
    problem = make(*data(n=9000))
    on, off = (solve(problem, drago.Drago(progressive=flag), tol=1e-6) for flag in (True, False))
    assert on.message.startswith("drago (started from 2000 of 9000 rows")
    assert off.message.startswith("drago: ") and "started" not in off.message
    assert near(problem, on, off, 1e-6)
    assert on.history.n_passes[0] >= 2000 / 9000  # the work on the part counts
    paper = drago.Drago(start="paper")
    assert paper.progressive is False
    assert "started" not in solve(problem, paper).message


@pytest.mark.parametrize("loss, options", thinned(LOSSES, [
    {}, {"fit_intercept": True}, {"constraint": drago.Box(-0.3, 0.3)}, {"shift_cost": 1e-3},
    {"uncertainty": drago.Extremile(2.0)}, {"sample_weight": np.arange(8200) % 5},
], keep=2), ids=str)  # fmt: skip
def test_the_start_on_a_part_changes_no_answer(loss, options, monkeypatch):
    monkeypatch.setattr("drago.rows.base.RowStore.least_part", 200)
    rule = dataclasses.replace(start._RULE, rows_per_unknown=5)
    monkeypatch.setattr(start, "_RULE", rule)
    problem = make(*data(loss, 8200), loss=loss, **options)
    on, off = (solve(problem, drago.Drago(progressive=flag)) for flag in (True, False))
    assert f"of {problem.n_samples} rows" in on.message and near(problem, on, off, 1e-4)


def test_small_data_are_not_started_on_a_part():
    assert "started" not in solve(make(*data(n=7999))).message


def test_a_part_of_sparse_and_grouped_rows():
    X, y = data(n=9000)
    X[np.abs(X) < 0.7] = 0.0
    groups = np.arange(9000) % 7
    for options in ({}, {"uncertainty": drago.Grouped(drago.CVaR(0.5)), "groups": groups}):
        result = solve(make(sp.csr_array(X), y, **options), tol=1e-5)
        assert "started from 2000 of 9000 rows" in result.message


@pytest.mark.parametrize("step_size", ["theory", 1e-3])
def test_max_iter_holds_for_the_start_on_a_part_too(step_size):
    """A step size as small as the theory's never ends on the part either."""
    problem = make(*data(n=9000))
    solver = drago.Drago(step_size=step_size)
    result = as_far_as_it_goes(problem, solver, tol=1e-8, max_iter=20, time_limit=4.0)
    assert result.status == "max_iter" and result.n_iter == 20
    assert result.n_passes < 500


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("intercept", [False, True])
def test_thin_tails(loss, divergence, intercept):
    problem = make(
        *data(loss, 400, 8),
        loss=loss,
        uncertainty=drago.CVaR(0.1),
        divergence=divergence,
        shift_cost=1e-4,
        l2_reg=1e-3,
        fit_intercept=intercept,
    )
    solve(problem, tol=1e-8)


def test_the_finish_is_named_and_can_be_switched_off():
    problem = make(*data(n=400, d=8), uncertainty=drago.CVaR(0.1), shift_cost=1e-4, l2_reg=1e-3)
    found = {
        name: solve(problem, drago.Drago(finish=name), tol=1e-8)
        for name in ("auto", "newton", "lbfgs", "none")
    }
    assert "finished by newton from iteration" in found["newton"].message
    assert "finished by lbfgs from iteration" in found["lbfgs"].message
    assert "finished by" in found["auto"].message
    assert "finished" not in found["none"].message
    for result in found.values():
        assert near(problem, result, found["newton"], 1e-8)
        assert (np.diff(result.history.n_iter) >= 0).all()
        assert (np.diff(result.history.n_passes) >= 0).all()
        assert (np.diff(result.history.n_oracle_calls) >= 0).all()


def test_no_finish_with_a_step_size_of_ones_own():
    problem = make(*data(n=400, d=8), uncertainty=drago.CVaR(0.1), shift_cost=1e-4, l2_reg=1e-3)
    result = as_far_as_it_goes(problem, drago.Drago(step_size=0.05), tol=1e-10, max_iter=500)
    assert result.message.endswith("(Solver: drago.)")


def test_newton_steps_finish_in_a_ball():
    problem = make(
        *data(n=400, d=8), uncertainty=drago.CVaR(0.1), shift_cost=1e-8, constraint=drago.L2Ball(1)
    )
    for settings in (drago.Drago(), drago.Drago(finish="newton")):
        result = solve(problem, settings, tol=1e-6)
        assert "finished by newton" in result.message
    alone = as_far_as_it_goes(problem, drago.Drago(finish="lbfgs"), tol=1e-6, max_iter=100)
    assert "finished" not in alone.message


# --------------------------------------------------------------------- step sizes and safeguards


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("uncertainty", [drago.Simplex(), drago.KLBall(0.5)])
def test_weights_of_any_size_leave_the_rest_to_another_method(uncertainty, intercept):
    """A set that can move all mass to a row of weight 1e-200 has constants that are no numbers."""
    X, y = data(n=40)
    weight = 10.0 ** np.random.default_rng(0).uniform(-100, 100, 40)
    problem = drago.DROProblem(
        X, y, uncertainty=uncertainty, divergence="kl", shift_cost=0.0, sample_weight=weight,
        fit_intercept=intercept,
    )  # fmt: skip
    assert "finished by" in solve(problem, "drago", tol=1e-4).message
    alone = as_far_as_it_goes(problem, drago.Drago(finish="none"), tol=1e-4)
    assert "no step to take" in alone.message and alone.primal <= problem.reference[0]


def test_without_a_shift_cost_in_the_euclidean_metric():
    """Where mu I is the metric, the strong convexity is 1: with mu in its place it got nowhere."""
    problem = make(*data(), shift_cost=0.0, uncertainty=drago.CVaR(0.5), l2_reg=100.0)
    solve(problem, drago.Drago(metric="euclidean", finish="none"), tol=1e-8)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("settings", [
    {"step_size": 10.0}, {"step_size": 10.0, "metric": "euclidean"},
    {"step_size": 3.0, "start": "paper"}, {"step_size": 1e3, "primal": "support"},
], ids=str)  # fmt: skip
def test_never_worse_than_the_start(loss, settings):
    """With steps far too large too: the trivial model is the least that is returned."""
    problem = make(*data(loss, 200), loss=loss, uncertainty=drago.CVaR(0.1), shift_cost=1e-3)
    result = as_far_as_it_goes(problem, drago.Drago(**settings), max_iter=300)
    assert no_worse(result, problem.reference[0]) and np.isfinite(result.coef).all()
    assert result.dual <= result.primal


def test_a_step_size_that_is_too_large_is_named_or_cut():
    problem = make(*data(n=500), uncertainty=drago.CVaR(0.1), shift_cost=1e-3)
    with pytest.warns(ConvergenceWarning, match=r"step_size=10(\.0)? is too large"):
        result = drago.solve(problem, drago.Drago(step_size=10.0))
    assert result.status == "stalled" and no_worse(result, problem.reference[0])
    solve(problem, tol=1e-5)


def test_the_automatic_step_is_cut_where_it_diverges(monkeypatch):
    monkeypatch.setattr("drago.solvers.drago.run._STEP", 400.0)
    monkeypatch.setattr("drago.solvers.drago.run._EXACT_STEP", 400.0)
    monkeypatch.setattr("drago.solvers.drago.run._LARGEST_STEP", 100.0)
    problem = make(*data(n=500), l2_reg=0.1)
    for settings in ({}, {"finish": "none"}, {"primal": "blocks", "finish": "none"}):
        result = solve(problem, drago.Drago(metric="euclidean", **settings), tol=1e-4)
        assert (np.diff(result.history.n_iter) >= 0).all()
        assert (np.diff(result.history.n_passes) >= 0).all()


def test_the_step_of_the_theory():
    problem = make(*data(), loss="squared")
    m = 8
    expected = 0.25 * min(
        1 / (32 * m),
        problem.mu / (24 * np.e * problem.smoothness * problem.kappa_q),
        np.sqrt(problem.mu * problem.nu) / (36 * np.e**2 * m * problem.lipschitz),
    )
    assert theory_step(problem, m) == pytest.approx(expected, rel=1e-12)
    kl = make(*data(), divergence="kl")
    assert theory_step(kl, m) <= theory_step(problem, m)
    assert theory_step(make(np.zeros((5, 2)), np.arange(5.0)), m) == 1 / (128 * m)


def test_the_theory_converges_where_its_constants_are_good():
    X, y = data("logistic", 200)
    problem = make(0.1 * X, y, loss="logistic", l2_reg=1.0, shift_cost=1.0,
                   uncertainty=drago.CVaR(0.9))  # fmt: skip
    settings = drago.Drago(step_size="theory", block_size=100, metric="euclidean")
    solve(problem, settings, tol=1e-3, max_iter=50000)


# ------------------------------------------------------------------------------- the same again


@pytest.mark.parametrize("settings", [
    {}, {"primal": "blocks"}, {"block_size": "n/d", "primal": "blocks"}, {"progressive": False},
    {"start": "paper", "step_size": 0.05, "metric": "full"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("n", [300, 9000])
def test_same_seed_same_answer_other_seed_same_optimum(settings, n):
    problem = make(*data(n=n))
    first, again, other = (
        solve(problem, drago.Drago(**settings), tol=1e-6, random_state=seed) for seed in (0, 0, 1)
    )
    assert (first.coef == again.coef).all() and first.n_passes == again.n_passes
    assert (first.dual_weights == again.dual_weights).all() and first.n_iter == again.n_iter
    # With a single block nothing is left to chance.
    drawn = drago.Drago(**settings).n_blocks(problem) > 1
    assert (first.coef != other.coef).any() == drawn
    assert near(problem, first, other, 1e-6)


def test_the_callers_arrays_and_random_numbers_are_left_alone():
    X, y = data()
    kept = X.copy(), y.copy()
    np.random.seed(3)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    solve(make(X, y))
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_max_iter_is_kept_exactly():
    problem = make(*data())
    for settings, max_iter in itertools.product(
        ({}, {"primal": "blocks"}, {"block_size": 10, "primal": "blocks"}), (1, 2, 7)
    ):
        with pytest.warns(ConvergenceWarning, match=f"max_iter={max_iter} reached"):
            result = drago.solve(problem, drago.Drago(**settings), tol=1e-12, max_iter=max_iter)
        assert result.n_iter == max_iter and result.status == "max_iter"


# -------------------------------------------------------------------------- settings, refusals


def test_settings_are_frozen_and_shown():
    settings = drago.Drago(step_size=1, block_size=7)
    assert settings.step_size == 1.0 and isinstance(settings.step_size, float)
    assert settings.name == "drago" and hash(settings) == hash(drago.Drago(1, None, 7))
    assert eval(repr(settings), {"Drago": drago.Drago}) == settings
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.metric = "full"


@pytest.mark.parametrize("bad", [
    {"step_size": 0.0}, {"step_size": -1}, {"step_size": np.nan}, {"step_size": np.inf},
    {"step_size": "large"}, {"step_size": None}, {"dual_step_size": 0.0},
    {"dual_step_size": "auto"},
    {"block_size": 0}, {"block_size": "d/n"}, {"block_size": 2.5}, {"metric": "taxi"},
    {"metric": None}, {"start": "late"}, {"tables": "old"}, {"primal": "dual"},
    {"progressive": "yes"}, {"progressive": 2}, {"finish": "never"}, {"finish": None},
    {"n_threads": 0}, {"n_threads": 1.5},
], ids=str)  # fmt: skip
def test_wrong_settings_are_refused_by_name(bad):
    with pytest.raises((TypeError, ValueError), match=next(iter(bad))):
        drago.Drago(**bad)


@pytest.mark.parametrize("settings", [
    {}, {"start": "paper"}, {"step_size": 0.1}, {"step_size": "theory"}
])  # fmt: skip
def test_lagged_tables_are_the_papers_second_algorithm_only(settings):
    with pytest.raises(ValueError, match=r"tables='lagged' .* start='paper' .* step_size"):
        drago.Drago(tables="lagged", **settings)
    drago.Drago(tables="lagged", start="paper", step_size="theory")


def test_an_intercept_needs_the_stationary_start():
    problem = make(*data(), fit_intercept=True)
    with pytest.raises(ValueError, match=r"^solver 'drago' .* only with start='stationary'\.$"):
        drago.solve(problem, drago.Drago(start="paper"))


@pytest.mark.parametrize("options", [{"l2_reg": 0.0}, {"shift_cost": 0.0}])
@pytest.mark.parametrize("settings", [{"step_size": 0.1}, {"start": "paper"}], ids=str)
def test_without_mu_or_nu_the_step_sizes_are_not_free(options, settings):
    problem = make(*data(), **options)
    with pytest.raises(
        ValueError, match="start='stationary' and step_size='auto' or 'theory'"
    ) as e:
        drago.solve(problem, drago.Drago(**settings))
    assert "l2_reg=" in str(e.value) and "shift_cost=" in str(e.value)
    assert str(e.value).endswith(".")


def test_the_number_of_blocks():
    problem = make(*data(n=300, d=4))
    assert drago.Drago(block_size="n/d").n_blocks(problem) == 4
    assert drago.Drago(block_size=100).n_blocks(problem) == 3
    assert drago.Drago(block_size=101).n_blocks(problem) == 3
    assert drago.Drago(block_size=99).n_blocks(problem) == 4
    assert drago.Drago(block_size=1).n_blocks(problem) == 300
    assert drago.Drago(block_size=10**9).n_blocks(problem) == 1
    few, tall = make(*data(n=3, d=4)), make(np.ones((600000, 4)), np.arange(600000.0))
    assert drago.Drago(block_size="n/d").n_blocks(few) == 3
    assert 1 <= drago.Drago().n_blocks(few) <= 3
    assert drago.Drago().n_blocks(tall) == 8


# ---------------------------------------------------------------------------------- the records


@pytest.mark.parametrize("settings", [{}, {"primal": "blocks"}, {"step_size": 0.02}], ids=str)
def test_history_and_counts(settings):
    problem = make(*data(n=9000), shift_cost=0.01)
    result = solve(problem, drago.Drago(**settings), tol=1e-6)
    history = result.history
    assert (np.diff(history.primal) <= LEVEL * np.abs(history.primal[1:])).all()
    for name in ("n_iter", "n_passes", "n_oracle_calls", "time"):
        assert (np.diff(getattr(history, name)) >= 0).all()
    assert result.n_oracle_calls >= problem.n_samples
    assert history.primal[-1] == result.primal and history.n_iter[-1] == result.n_iter


def test_the_result_can_be_certified_again():
    problem = make(*data("multinomial"), loss="multinomial", fit_intercept=True)
    result = solve(problem, tol=1e-6)
    again = drago.certify(problem, result.dual_coef, result.dual_intercept, result.dual_weights)
    assert again.dual >= result.dual - 1e-12 * abs(result.dual)
    assert problem.objective(result.coef, result.intercept) == pytest.approx(result.primal)


def test_a_callback_can_stop_it():
    seen = []
    with pytest.warns(ConvergenceWarning, match="stopped by the callback"):
        result = drago.solve(
            make(*data(), shift_cost=1e-3),
            "drago",
            tol=1e-12,
            callback=lambda state: seen.append(state) or len(seen) == 2,
        )
    assert result.status == "stopped" and len(seen) == 2
    assert result.primal <= seen[-1].primal


@pytest.mark.parametrize("constraint", [drago.Box(-0.5, 0.5), drago.NonNegative()])
@pytest.mark.parametrize("finish", ["lbfgs", "newton", "auto"])
def test_a_finish_stays_inside(constraint, finish):
    """L-BFGS in a rotated metric would leave the box; what a solve returns never does."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 5)) @ rng.standard_normal((5, 5))
    y = X @ [2.0, -1.0, 0.5, 1.0, -2.0] + rng.standard_normal(300)
    problem = drago.DROProblem(
        X, y, uncertainty=drago.CVaR(0.1), shift_cost=1e-3, l2_reg=1e-3, constraint=constraint
    )
    settings = drago.Drago(metric="full", finish=finish)
    result = drago.solve(problem, settings, tol=1e-6)
    assert constraint.contains(result.coef)
    expected = drago.solve(problem, "lbfgs", tol=1e-8)
    assert result.primal >= expected.dual - 1e-9 * abs(expected.dual)
    assert result.status == "optimal"


def test_no_method_gets_a_point_outside_accepted():
    class Outside:
        name = "outside"

        def check(self, problem):
            pass

        def run(self, problem, loop):
            loop.observe(Iterate(np.full((4, 1), 9.0), np.zeros(1), 1, 1.0, 1, milestone=True))
            return "done"

    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 4))
    problem = drago.DROProblem(X, 9.0 * X.sum(axis=1), constraint=drago.Box(-0.1, 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = drago.solve(problem, Outside())
    assert np.abs(result.coef).max() <= 0.1 and result.primal < problem.reference[0]


def test_theory_needs_the_constants_of_the_loss():
    def loss(y, raw):
        return 0.5 * (raw - y) ** 2, raw - y

    X = np.random.default_rng(0).standard_normal((30, 3))
    problem = drago.DROProblem(X, X[:, 0], loss=loss)
    with pytest.raises(ValueError, match="needs to know the curvature"):
        drago.solve(problem, drago.Drago(step_size="theory"))
    mean = drago.DROProblem(X, X[:, 0], uncertainty=drago.CVaR(1.0), shift_cost=0.0)
    with pytest.warns(ConvergenceWarning, match="max_iter=2000 reached"):
        result = drago.solve(mean, drago.Drago(step_size="theory"), tol=1e-3, max_iter=2000)
    assert result.primal < mean.reference[0]


def test_the_euclidean_metric_stays_euclidean_after_a_part(monkeypatch):
    seen, make = [], base.make_metric
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9000, 5))
    problem = drago.DROProblem(X, X.sum(axis=1) + rng.standard_normal(9000), l2_reg=0.1)
    drago.solve(problem, drago.Drago(metric="euclidean"), tol=1e-4)  # compiled from here on
    monkeypatch.setattr(base, "make_metric", lambda *args: seen.append(args[1]) or make(*args))
    result = drago.solve(problem, drago.Drago(metric="euclidean"), tol=1e-4)
    assert result.status == "optimal" and "started from" in result.message
    assert seen.count("euclidean") == 2  # once on the part, once on all rows


def test_newton_keeps_the_start_it_was_given():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 6))
    y = X.sum(axis=1) + rng.standard_normal(300)
    problem = drago.DROProblem(X, y, uncertainty=drago.CVaR(0.1), shift_cost=1e-4, l2_reg=1e-3)
    start = drago.solve(problem, "lbfgs", tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = drago.solve(problem, "newton", tol=1e-14, max_iter=1, warm_start=start)
    assert result.primal <= start.primal * (1 + 1e-12)
