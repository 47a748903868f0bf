"""Newton steps in an `L2Ball`: the step itself, and answers where DRAGO alone stalls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drago
import reference
from cases import thinned
from drago.certificate.hessian import _step_in_ball

LOSSES = {
    "squared": "squared",
    "huber": ("huber", 0.7),
    "logistic": "logistic",
    "multinomial": "multinomial",
}
SETS = {
    "cvar": (drago.CVaR(0.3), ("cvar", 0.3), "chi2"),
    "esrm": (drago.ESRM(3.0), ("esrm", 3.0), "kl"),
    "chi2_ball": (drago.Chi2Ball(0.5), ("chi2_ball", 0.5), "chi2"),
}


def data(loss, n=60, d=25, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X[:, :3].sum(axis=1) + rng.standard_normal(n)
    if loss == "logistic":
        return X, (z > 0).astype(float)
    return X, np.digitize(z, [-1.0, 1.0]) if loss == "multinomial" else z


@given(
    seed=st.integers(0, 10**6), d=st.integers(1, 6), intercept=st.booleans(), scale=st.floats(-6, 6)
)
def test_the_step_minimises_the_model(seed, d, intercept, scale):
    """By its optimality conditions: a multiplier that is 0 inside, and no slope but along w."""
    rng = np.random.default_rng(seed)
    m, radius = d + intercept, 10.0**scale
    A = rng.standard_normal((m + 2, m))
    H, r = A.T @ A, rng.standard_normal(m)
    is_coef = np.arange(m) < d
    at = np.where(is_coef, rng.standard_normal(m), 0.0)
    at *= radius * rng.uniform() / np.linalg.norm(at)
    step = _step_in_ball(H, r, at, is_coef, radius)
    there = (at + step)[is_coef]
    slope = r + H @ step
    size = np.abs(r).max() + np.linalg.norm(H) * np.linalg.norm(step)
    assert np.linalg.norm(there) <= radius * (1 + 1e-9)
    if np.linalg.norm(there) < radius * (1 - 1e-6):
        multiplier = 0.0
    else:
        multiplier = -float(slope[is_coef] @ there) / float(there @ there)
        assert multiplier >= -1e-7 * size / radius
    slope[is_coef] += multiplier * there
    # Solving with H loses cond(H) roundings, of which 1e-16 times 1e6 leaves this.
    assert np.abs(slope).max() <= 1e-7 * size


@pytest.mark.parametrize(
    ("loss", "name", "intercept"), thinned(LOSSES, SETS, (False, True), keep=4)
)
def test_newton_in_a_ball_against_cvxpy(loss, name, intercept):
    uncertainty, described, divergence = SETS[name]
    X, y = data(loss, n=40, d=3)
    problem = drago.DROProblem(
        X, y, loss=drago.Huber(0.7) if loss == "huber" else loss, uncertainty=uncertainty,
        divergence=divergence, shift_cost=0.1, l2_reg=0.1,
        fit_intercept=intercept, constraint=drago.L2Ball(0.3),
    )  # fmt: skip
    result = drago.solve(problem, "newton", tol=1e-8)
    assert result.status == "optimal" and np.linalg.norm(result.coef) <= 0.3 * (1 + 1e-12)
    optimum, *_ = reference.solve_problem(
        X, y, LOSSES[loss], described, divergence, 0.1, 0.1, None, intercept, ("l2_ball", 0.3)
    )
    assert result.primal == pytest.approx(optimum, rel=1e-6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("nu", [1e-6, 1e-8, 1e-10, 0.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_auto_in_a_ball_with_little_shift_cost(loss, nu):
    X, y = data(loss)
    problem = drago.DROProblem(
        X, y, loss=loss, uncertainty=drago.CVaR(0.1), shift_cost=nu, constraint=drago.L2Ball(0.1)
    )
    result = drago.solve(problem)
    assert result.status == "optimal" and result.rel_gap <= 1e-4
    assert np.linalg.norm(result.coef) <= 0.1 * (1 + 1e-12)
