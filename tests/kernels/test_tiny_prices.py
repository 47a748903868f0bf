"""A price of moving weight whose inverse overflows counts as none, for every set."""

import numpy as np
import pytest

import drago
from drago.terms.divergences import TINY

SETS = (
    drago.CVaR(0.3),
    drago.Simplex(),
    drago.Extremile(3.0),
    drago.ESRM(5.0),
    drago.Spectrum(integral=lambda u: u**2),
    drago.Chi2Ball(0.5),
    drago.KLBall(0.3),
)
PAIRS = [(s, d) for s in SETS for d in ("chi2", "kl") if s.own_divergence in (None, d)]
LOSSES = {
    "zero": np.zeros(9),
    "level": np.ones(9),
    "ties": np.repeat([0.0, 1.0, 2.0], 3),
    "distinct": np.random.default_rng(0).standard_normal(9),
    "huge": 1e200 * np.random.default_rng(1).standard_normal(9),
}


@pytest.mark.parametrize("u", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize(
    ("uncertainty", "divergence"),
    PAIRS,
    ids=lambda part: part if isinstance(part, str) else part.kind,
)
def test_the_weights_are_those_without_a_price(uncertainty, divergence, u):
    for p in (np.full(9, 1 / 9), np.random.default_rng(2).dirichlet(np.ones(9))):
        vertex = uncertainty.worst_case(u, 0.0, divergence, p)
        for c in (5e-324, 1e-310, TINY):
            q = uncertainty.worst_case(u, c, divergence, p)
            assert uncertainty.violation(q, p) <= 1e-9
            # The price of any move is less than 1e-300.
            assert u @ q >= u @ vertex - 1e-12 * np.abs(u).max() - 1e-300


@pytest.mark.parametrize("solver", ["auto", "lbfgs", "newton", "drago"])
@pytest.mark.parametrize("divergence", ["chi2", "kl"])
@pytest.mark.parametrize("uncertainty", [drago.ESRM(5.0), drago.Extremile(3.0), drago.CVaR(0.2)])
def test_a_constant_target_has_the_trivial_model(uncertainty, divergence, solver):
    """Its losses are 0, and so is the automatic shift cost."""
    X = np.random.default_rng(0).standard_normal((8, 3))
    model = drago.DRORegressor(uncertainty, divergence=divergence, solver=solver)
    model.fit(X, np.ones(8))
    assert model.shift_cost_ == 0.0 and model.result_.status == "optimal"
    assert not model.coef_.any() and model.intercept_ == 1.0
