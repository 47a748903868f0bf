"""The gradient of P against central differences, for every loss, set and divergence.

`DROProblem.gradient` is what the certificate and the Newton method use. L-BFGS has one of its own,
in its own unknowns, and a slope along lines.
"""

import numpy as np
import pytest
import scipy.sparse as sp

import cases
import drago
import reference
from drago.loop.loop import Loop
from drago.solvers.lbfgs import _LBFGSRun
from drago.solvers.quasi_newton import Line

N, D, K = 15, 3, 3
MU = 0.7
STEPS = (1e-5, 1e-6)
RTOL = 1e-6  # of the length of the gradient; differences are accurate to 1e-8

LOSSES = {
    "squared": ("squared", "squared"),
    "huber": (drago.Huber(0.8), ("huber", 0.8)),
    "logistic": ("logistic", "logistic"),
    "multinomial": ("multinomial", "multinomial"),
}
STORAGES = {
    "dense": np.asarray,
    "csr": sp.csr_array,
    "float32": lambda X: X.astype(np.float32),
    "csr_float32": lambda X: sp.csr_array(X.astype(np.float32)),
}


def density(u):
    """A spectrum that starts at 0; its integral is the square."""
    return 2.0 * np.asarray(u)


def grouped(inner):
    uncertainty, described = cases.SETS[inner]
    return drago.Grouped(uncertainty), ("grouped", described, np.arange(N) % 4)


SETS = {
    **cases.SETS,
    "density": (drago.Spectrum(density=density), ("spectrum", np.square)),
    **{f"grouped_{inner}": grouped(inner) for inner in ("cvar", "esrm", "chi2_ball", "kl_ball")},
}
PAIRS = [
    *cases.PAIRS,
    *[(name, "chi2") for name in ("density", "grouped_cvar", "grouped_esrm", "grouped_chi2_ball")],
    *[(name, "kl") for name in ("density", "grouped_cvar", "grouped_esrm", "grouped_kl_ball")],
]


def draw(loss, name, divergence, nu, storage="dense", seed=0, **settings):
    """A random problem with unequal sample weights and an intercept, and the twins' P."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D)).astype(np.float32).astype(np.float64)
    X[rng.random(size=X.shape) < 0.3] = 0.0
    if loss in ("squared", "huber"):
        y = 2 * rng.normal(size=N)
    else:
        y = rng.permutation(np.arange(N) % (2 if loss == "logistic" else K))
    uncertainty, described = SETS[name]
    settings = {"fit_intercept": True, "sample_weight": rng.uniform(0.2, 3.0, N), **settings}
    problem = drago.DROProblem(
        STORAGES[storage](X),
        y,
        loss=LOSSES[loss][0],
        uncertainty=uncertainty,
        divergence=divergence,
        shift_cost=nu,
        l2_reg=MU,
        groups=np.arange(N) % 4,
        **settings,
    )

    def twin(coef, intercept=0.0):
        return reference.primal_value(
            X, y, LOSSES[loss][1], described, divergence, nu, MU, problem.p, coef, intercept
        )

    return problem, twin, rng


def gradient(problem, w, b):
    """The gradient of P, (n_features + 1, n_outputs), the intercept's last."""
    ev = problem.evaluate(w, b)
    g = problem.gradient(ev, problem.dual_oracle().weights(ev.losses, problem.nu))
    return np.vstack([g.w + problem.mu * w, g.b])


def check(problem, functions, rng, n_directions=2):
    """Central differences of `functions` of (coef, intercept) at a random point are the gradient's.

    The directions are random ones, and the intercept's alone where one is fitted.
    """
    k, fitted = problem.n_outputs, problem.fit_intercept
    x = rng.normal(size=(D + 1, k))
    directions = rng.normal(size=(n_directions + int(fitted), D + 1, k))
    if fitted:
        directions[-1, :-1] = 0.0
    else:
        x[-1] = 0.0
        directions[:, -1] = 0.0
    g = gradient(problem, x[:-1], x[-1])
    size = np.linalg.norm(g)
    assert size > 0.05  # or the test would be empty

    def at(function, x):
        return function(*problem.to_public(x[:-1], x[-1]))

    for e in directions / np.linalg.norm(directions, axis=(1, 2), keepdims=True):
        for h in STEPS:
            for function in functions:
                rise = (at(function, x + h * e) - at(function, x - h * e)) / (2 * h)
                assert abs(rise - np.vdot(g, e)) <= RTOL * size


@pytest.mark.parametrize("loss, name, divergence", cases.thinned(LOSSES, PAIRS, keep=3))
def test_gradient_by_differences(loss, name, divergence):
    """P by the library and P by the twins have the same slopes, those of the gradient."""
    for seed, nu in enumerate((1.0, 0.2)):
        problem, twin, rng = draw(loss, name, divergence, nu, seed=seed)
        check(problem, (problem.objective, twin), rng)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_of_every_storage(loss, fit_intercept, storage):
    for seed, (name, divergence) in enumerate([("cvar", "chi2"), ("extremile", "kl")], start=10):
        problem, _, rng = draw(
            loss, name, divergence, 0.3, storage, seed, fit_intercept=fit_intercept
        )
        check(problem, (problem.objective,), rng)


@pytest.mark.parametrize("nu", [1e-2, 1e2])
@pytest.mark.parametrize(("name", "divergence"), cases.PAIRS)
def test_gradient_for_small_and_large_shift_costs(name, divergence, nu):
    """Weights on few rows, and weights next to p."""
    problem, _, rng = draw("logistic", name, divergence, nu, seed=20)
    check(problem, (problem.objective,), rng)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("metric", ["euclidean", "diagonal", "full"])
@pytest.mark.parametrize("loss", LOSSES)
def test_lbfgs_minimises_with_the_gradient_of_its_values(loss, metric, fit_intercept):
    """In a metric and with an intercept the unknowns are scaled, rotated and centred."""
    problem, _, rng = draw(loss, "cvar", "chi2", 0.3, seed=30, fit_intercept=fit_intercept)
    run = _LBFGSRun(problem, Loop(problem, tol=1e-3), drago.LBFGS(metric=metric))
    far = np.full(run.x.size, np.inf)

    def at(x):
        trial = run._evaluate(x, problem.nu, -far, far)
        return trial.value, trial.slope

    x0 = run.x + rng.normal(size=run.x.size)
    slope = at(x0)[1]
    for e in rng.normal(size=(4, x0.size)):
        e /= np.linalg.norm(e)
        for h in STEPS:
            difference = (at(x0 + h * e)[0] - at(x0 - h * e)[0]) / (2 * h)
            assert abs(difference - slope @ e) <= RTOL * np.linalg.norm(slope)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_slope_along_a_line(loss, fit_intercept):
    problem, _, rng = draw(loss, "cvar", "chi2", 0.3, seed=31, fit_intercept=fit_intercept)
    w, dw = rng.normal(size=(2, problem.n_features, problem.n_outputs))
    b, db = rng.normal(size=(2, problem.n_outputs)) * fit_intercept
    start = problem.evaluate(w, b)
    line = Line(problem, problem.dual_oracle(), start, 0.0, 0.0, dw, db)
    for t in (0.0, 0.7, 3.0):
        here = line.at(t)
        coef = problem.to_public(w + t * dw, b + t * db)
        assert here.value == pytest.approx(problem.objective(*coef), rel=1e-12)
        for h in STEPS:
            difference = (line.at(t + h).value - line.at(t - h).value) / (2 * h)
            assert abs(difference - here.slope) <= RTOL * (1 + abs(here.slope))
