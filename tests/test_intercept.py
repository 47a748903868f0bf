"""The best intercept of the trivial model, against searches that know nothing of slopes."""

import numpy as np
import pytest
from scipy.optimize import minimize

import drago

RARE = (1.0, 1e-7, 1e-13)
SETS = (drago.CVaR(0.9), drago.CVaR(0.1), drago.Chi2Ball(0.5), drago.ESRM(2.0))


def make(y, weight, **settings):
    X = np.random.default_rng(0).standard_normal((y.size, 2))
    return drago.DROProblem(X, y, fit_intercept=True, sample_weight=weight, **settings)


def lowest(function, low, high):
    """The least value of a convex function of one number, by golden sections."""
    for _ in range(100):
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, right) if function(left) < function(right) else (left, high)
    return function(0.5 * (low + high))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rare", RARE)
@pytest.mark.parametrize("nu", [0.0, 0.1])
@pytest.mark.parametrize("uncertainty", SETS, ids=repr)
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_however_rare_a_class_is(loss, uncertainty, nu, rare):
    y = np.arange(12) % 2.0
    problem = make(y, np.where(y > 0, rare, 1.0), loss=loss, uncertainty=uncertainty, shift_cost=nu)
    best = lowest(lambda b: problem.objective(np.zeros(2), b), -60.0, 10.0)
    # Both are values near a minimum, right to rounding; a wrong threshold shows in the first digit.
    assert problem.reference[0] == pytest.approx(best, rel=1e-9)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rare", [(1e-3, 1e-2), (1e-10, 1e-7), (1e-13, 1e-13)])
@pytest.mark.parametrize("nu", [0.0, 0.1])
@pytest.mark.parametrize("uncertainty", SETS, ids=repr)
def test_however_rare_classes_are(uncertainty, nu, rare):
    y = np.arange(12) % 3
    problem = make(
        y, np.array([1.0, *rare])[y], loss="multinomial", uncertainty=uncertainty, shift_cost=nu
    )
    value, b = problem.reference

    def objective(z):
        return problem.objective(np.zeros((3, 2)), np.array([0.0, *z]))

    for start in (b[1:] - b[0], np.log(rare)):
        corners = start + np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        search = {"xatol": 1e-12, "fatol": 0.0, "maxiter": 400, "initial_simplex": corners}
        found = minimize(objective, start, method="Nelder-Mead", options=search)
        assert value <= found.fun * (1.0 + 1e-9)


@pytest.mark.parametrize("uncertainty", [drago.CVaR(0.5), drago.ESRM(0.4)])
def test_what_was_in_memory_before_does_not_matter(uncertainty, monkeypatch):
    rng = np.random.default_rng(3)
    y, weight = np.arange(40) % 3, rng.uniform(0.5, 2.0, 40)
    found = []
    for junk in (0.0, 1.0, np.nan):

        def filled(n, k, junk=junk):
            return [np.full(shape, junk) for shape in (n, (n, k), n)]

        monkeypatch.setattr("drago.intercept.new_point", filled)
        problem = make(y, weight, loss="multinomial", uncertainty=uncertainty, shift_cost=0.1)
        found.append(problem.reference[1].tobytes())
    assert found[0] == found[1] == found[2]
