"""Newton's method on tensors: how weights respond, Hessians of all rows and of a sample."""

# ruff: noqa: E402  (nothing below can be imported without torch)

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cases
import drago
from drago.certificate.hessian import hessian
from drago.result import Status
from drago.rows import tensor_curvature
from drago.rows.tensors import to_host

LOSSES = ("squared", "huber", "logistic")
SETS = {
    "simplex": drago.Simplex(),
    "cvar": drago.CVaR(0.3),
    "mean": drago.CVaR(1.0),
    "one": drago.CVaR(1e-4),
}
capped = pytest.mark.parametrize("name", SETS)
divergences = pytest.mark.parametrize("divergence", ["chi2", "kl"])


def make(loss="squared", name="cvar", divergence="chi2", n=150, **settings):
    weight = np.random.default_rng(5).uniform(0.1, 2.0, size=n)
    common = {"sample_weight": weight, "fit_intercept": True, "divergence": divergence}
    return cases.make(loss, n=n, uncertainty=SETS[name], **(common | settings))


def evaluated(problem, seed=0):
    rng = np.random.default_rng(seed)
    w = 0.3 * rng.standard_normal((problem.n_features, 1))
    return problem.evaluate(w, 0.2 * rng.standard_normal(1))


@divergences
@capped
@pytest.mark.parametrize("price", [1e-6, 0.1, 10.0])
def test_mirror_and_rates_are_those_of_arrays(name, divergence, price):
    """Up to the rounding of exponents, ``u / price``; weights that underflow have a mirror too."""
    on_arrays = make(name=name, divergence=divergence)
    on_tensors = on_arrays.moved("cpu")
    u = evaluated(on_arrays).losses
    there = torch.from_numpy(u.copy())
    q, mirror = on_arrays.dual_oracle().with_mirror(u, price)
    found, its_mirror = on_tensors.dual_oracle().with_mirror(there, price)
    size = np.abs(u).max() / price
    np.testing.assert_allclose(to_host(found), q, rtol=1e-14 * (10 + size), atol=1e-290)
    heavy = q > 1e-250
    finite = to_host(its_mirror)
    assert np.isfinite(finite).all()
    np.testing.assert_allclose(finite[heavy], mirror[heavy], rtol=0, atol=1e-14 * (10 + size))
    assert (np.diff(finite[np.argsort(u)]) >= -1e-12 * (1 + size)).all() or divergence == "chi2"

    response = on_arrays.dual_oracle().response(u, price, q)[1]
    rate = to_host(on_tensors.dual_oracle().response(there, price, torch.from_numpy(q))[1].rate)
    expected = np.where(response.pool >= 0, response.rate, 0.0)
    np.testing.assert_allclose(rate, expected, rtol=1e-14, atol=0)


@divergences
@capped
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_hessian_is_that_of_arrays(loss, fit_intercept, name, divergence):
    """A sum of 150 products, of which another is subtracted: 1e-12 of the largest entry."""
    on_arrays = make(loss, name, divergence, fit_intercept=fit_intercept)
    on_tensors = on_arrays.moved("cpu")
    found = []
    for problem in (on_arrays, on_tensors):
        ev, oracle = evaluated(problem), problem.dual_oracle()
        found.append(hessian(problem, ev, oracle.weights(ev.losses, problem.nu), oracle))
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=1e-12 * np.abs(found[0]).max())


def sampled(monkeypatch, rows_per_unknown):
    monkeypatch.setattr(tensor_curvature, "_LEAST_DRAWN", 1)
    monkeypatch.setattr(tensor_curvature, "_ROWS_PER_UNKNOWN", rows_per_unknown)


@divergences
@pytest.mark.parametrize("name", ["simplex", "cvar"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_sample_gives_about_the_same_hessian(loss, name, divergence, monkeypatch):
    """With k rows an unknown, eigenvalues relative to the true ones are off by about 2 / sqrt(k).

    Along the common move of all rows, little is left of a difference, and the error is larger: a
    factor of 3 is allowed.
    """
    problem = make(loss, name, divergence, n=30_000, shift_cost=1.0).moved("cpu")
    ev, oracle = evaluated(problem), problem.dual_oracle()
    q = oracle.weights(ev.losses, problem.nu)
    exact = hessian(problem, ev, q, oracle)
    sampled(monkeypatch, 256)
    assert problem.rows.hessian_rows(q) == 256 * (problem.n_features + 1)
    found = hessian(problem, ev, q, oracle)
    assert not np.array_equal(found, exact)
    root = np.linalg.inv(np.linalg.cholesky(exact))
    relative = np.linalg.eigvalsh(root @ found @ root.T)
    assert relative.min() > 1 / 3 and relative.max() < 3, relative
    assert np.median(np.abs(relative - 1.0)) < 0.25, relative


def test_a_sample_draws_rows_by_their_weight():
    rows = make(n=1000).moved("cpu").rows
    weight = torch.zeros(1000, dtype=torch.float64)
    weight[[7, 500, 999]] = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    place, times = rows._drawn(weight, 7)
    counted = torch.zeros(1000, dtype=torch.float64).index_add(0, place, times)
    assert counted[[500, 999]].tolist() == [1.0, 1.0]
    assert counted.sum() in (2.0, 2.0 + 8.0 / 7.0)  # the lightest one by chance
    light = torch.ones(1000, dtype=torch.float64)
    place, times = rows._drawn(light, 10)
    assert place.tolist() == list(range(49, 1000, 100)) and times.sum() == 1000.0
    nothing, times = rows._drawn(torch.zeros(1000, dtype=torch.float64), 400)
    assert nothing.shape == (400,) and not times.any()


@pytest.mark.thinned(3)
@divergences
@pytest.mark.parametrize("name", ["simplex", "cvar", "mean"])
@pytest.mark.parametrize("few", [False, True], ids=["all", "sampled"])
@pytest.mark.parametrize("shift_cost", [0.0, 0.01])
@pytest.mark.parametrize("loss", LOSSES)
def test_solves_are_certified(loss, shift_cost, few, name, divergence, monkeypatch):
    if few:
        sampled(monkeypatch, 128)
    problem = make(loss, name, divergence, n=2000, shift_cost=shift_cost)
    least = drago.solve(problem, "newton", tol=1e-9).primal
    for solver in ("newton", "auto"):
        result = drago.solve(problem, solver, tol=1e-6, device="cpu")
        assert result.status is Status.OPTIMAL, result.message
        assert result.solver == "newton" or solver == "auto"
        # Where nothing is to be gained, values differ by the rounding of a mean.
        assert abs(result.primal - least) <= 1.1e-6 * (problem.reference[0] - least) + 1e-14


def test_auto_takes_it_where_hessians_are_cheap():
    cheap = make("huber", n=3000).moved("cpu")
    assert "auto took newton, on a device" in drago.solve(cheap).message
    assert "lbfgs" in drago.solve(make("huber", "cvar", n=60, d=200).moved("cpu")).message


@pytest.mark.parametrize(
    "problem",
    [
        cases.make("multinomial", uncertainty=drago.CVaR(0.3)),
        cases.make("squared", uncertainty=drago.ESRM(1.0)),
        cases.make("squared", uncertainty=drago.KLBall(0.5)),
    ],
    ids=["classes", "spectrum", "ball"],
)
def test_what_it_does_not_know_is_refused(problem):
    with pytest.raises(ValueError, match="how the weights respond"):
        drago.solve(problem, "newton", device="cpu")
