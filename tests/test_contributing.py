"""The recipe for a loss in CONTRIBUTING.md, cooked as it is written."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import drago
import drago.terms.losses
from drago.kernels import single_output
from drago.terms.losses import Loss

ROOT = Path(__file__).parent.parent
RECIPE = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
# What the class has after each step.
STAGES = {"evaluate": ["evaluate"]}
STAGES["second"] = [*STAGES["evaluate"], "second", "curvature", "lipschitz", "concordance"]
STAGES["balance"] = [*STAGES["second"], "has_conjugate", "balance_sums", "balance_with"]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.standard_t(2, size=40)


def cooked(stage):
    """A loss with the steps of the recipe up to a method."""
    names = dict(vars(drago.terms.losses))
    exec(RECIPE, names)
    whole = vars(names["PseudoHuber"])
    return type("PseudoHuber", (Loss,), {name: whole[name] for name in STAGES[stage]})()


def by_function(y, z):
    """The same loss as a user's function."""
    root = np.sqrt(1.0 + (z - y) ** 2)
    return root - 1.0, (z - y) / root


def problem(loss, features=X, **settings):
    settings = {"uncertainty": drago.CVaR(0.3), "shift_cost": 0.1, **settings}
    return drago.DROProblem(features, Y, loss=loss, **settings)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("container", [np.array, sp.csr_array])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_the_recipe_for_a_loss(stage, fit_intercept, container):
    """Every solver that needs no kernel reaches the optimum that the user's function has."""
    loss = cooked(stage)
    assert not loss.has_kernels and loss.name == "pseudohuber"
    given = problem(loss, container(X), fit_intercept=fit_intercept)
    expected = drago.solve(problem(by_function, fit_intercept=fit_intercept), tol=1e-9).primal
    solvers = ["auto", "drago", "lbfgs", "gd"] + (["newton"] if stage != "evaluate" else [])
    for solver in solvers:
        found = drago.solve(given, solver, tol=1e-6)
        assert found.status == "optimal", solver
        # The gap bounds the distance to the optimum, which the other solve has to 1e-9.
        assert -1e-8 <= found.primal - expected <= found.gap + 1e-8, solver
        again = drago.certify(given, found.coef, found.intercept)
        assert again.primal - again.gap <= expected + 1e-8


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_loss_of_the_recipe_against_cvxpy(fit_intercept):
    cp = pytest.importorskip("cvxpy")
    w, b, t = cp.Variable(3), cp.Variable(), cp.Variable()
    residual = X @ w + (b if fit_intercept else 0.0) - Y
    losses = cp.norm(cp.vstack([np.ones(40), residual]), axis=0) - 1.0
    tail = t + cp.sum(cp.pos(losses - t)) / (0.3 * 40)
    expected = cp.Problem(cp.Minimize(tail + 0.05 * cp.sum_squares(w))).solve(solver="CLARABEL")
    given = problem(cooked("balance"), l2_reg=0.1, shift_cost=0.0, fit_intercept=fit_intercept)
    for solver in ("auto", "newton", "drago"):
        found = drago.solve(given, solver, tol=1e-5)
        assert found.status == "optimal", solver
        # Clarabel stops at 1e-8 of the value.
        assert -1e-7 <= found.primal - expected <= found.gap + 1e-7, solver


def test_each_step_of_the_recipe_is_of_use():
    """`second` makes a bound from the curvature, `balance_with` a tight one with an intercept."""
    settings = {"l2_reg": 1e-4, "fit_intercept": True}
    point = drago.solve(problem(by_function, **settings), tol=1e-4)
    gaps = []
    for stage in STAGES:
        given = problem(cooked(stage), **settings)
        found = drago.certify(given, point.coef, point.intercept)
        assert ("curvature" in found.bound) == (stage != "evaluate")
        gaps.append(found.gap)
    assert gaps[1] < 0.5 * gaps[0]
    assert gaps[2] <= gaps[1] * (1 + 1e-12)


def test_derivatives_and_slopes_of_the_recipe():
    loss, h = cooked("balance"), 1e-5
    raw, q = RNG.normal(size=(40, 1)), RNG.dirichlet(np.ones(40))
    up, down = loss.evaluate(Y, raw + h), loss.evaluate(Y, raw - h)
    slopes = loss.evaluate(Y, raw)[1]
    np.testing.assert_allclose(slopes[:, 0], (up[0] - down[0]) / (2 * h), atol=1e-8)
    np.testing.assert_allclose(loss.second(Y, raw), (up[1] - down[1])[:, 0] / (2 * h), atol=1e-8)
    third = (loss.second(Y, raw + h) - loss.second(Y, raw - h)) / (2 * h)
    assert (np.abs(third) <= loss.concordance * loss.second(Y, raw) + 1e-8).all()
    alpha, young = loss.balance(Y, raw, q)
    assert abs(q @ alpha[:, 0]) < 1e-14
    assert (young >= 0).all()


@pytest.mark.parametrize("solver", ["newton", "sgd", "lsvrg", "prospect"])
def test_solvers_that_need_more_say_so(solver):
    with pytest.raises(ValueError, match=f"solver '{solver}' (takes built-in|does not know)"):
        drago.solve(problem(cooked("evaluate")), solver)


def test_an_estimator_takes_the_loss():
    ours = drago.DRORegressor(loss=cooked("balance"), tol=1e-8).fit(X, Y)
    theirs = drago.DRORegressor(loss=by_function, tol=1e-8).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-3)
    np.testing.assert_allclose(ours.losses(X, Y).mean(), theirs.losses(X, Y).mean(), rtol=1e-3)


def test_a_kernel_has_no_values_for_an_unknown_code():
    losses, slopes = np.zeros(40), np.zeros((40, 1))
    assert single_output(7, 0.0, Y, X[:, :1].copy(), losses, slopes)
    assert np.isnan(losses).all() and np.isnan(slopes).all()

    class Miscoded(drago.Squared):
        code = 7

    assert np.isnan(Miscoded().second(Y, X[:, :1].copy())).all()
    with pytest.raises(ValueError, match="'squared' is NaN or infinite on 40 rows"):
        problem(Miscoded()).losses(np.zeros(3))
