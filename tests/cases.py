"""Sets and problems that many tests run over, with the tuples that the witnesses understand."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp

import drago

# What every store is held to: a set and a divergence.
SETS_OF_STORES = {
    "cvar": ("cvar", "chi2"),
    "cvar kl": ("cvar", "kl"),
    "simplex": ("simplex", "chi2"),
    "simplex kl": ("simplex", "kl"),
    "extremile": ("extremile", "chi2"),
    "extremile kl": ("extremile", "kl"),
    "esrm": ("esrm", "chi2"),
    "spectrum": (drago.Spectrum(integral=lambda u: u**3), "kl"),
    "chi2 ball": ("chi2_ball", "auto"),
    "kl ball": ("kl_ball", "auto"),
    "groups": (drago.Grouped("cvar"), "chi2"),
    "groups kl": (drago.Grouped("extremile"), "kl"),
}

EPS = np.finfo(float).eps
# A solve takes a point that is level with its best one, up to 4e-16 of the objective, where the
# gap is smaller. That and a rounding is what a certificate may raise the objective by.
LEVEL = 5e-16


def kink(x):
    """Integral of a spectrum that ignores the lowest 40% and then jumps."""
    return np.maximum(np.asarray(x) - 0.4, 0.0) / 0.6


SETS = {
    "cvar": (drago.CVaR(0.3), ("cvar", 0.3)),
    "cvar_thin": (drago.CVaR(0.01), ("cvar", 0.01)),
    "cvar_mean": (drago.CVaR(1.0), ("cvar", 1.0)),
    "simplex": (drago.Simplex(), ("simplex",)),
    "extremile": (drago.Extremile(2.5), ("extremile", 2.5)),
    "esrm": (drago.ESRM(3.0), ("esrm", 3.0)),
    "spectrum": (drago.Spectrum(integral=kink), ("spectrum", kink)),
    "chi2_ball": (drago.Chi2Ball(0.5), ("chi2_ball", 0.5)),
    "chi2_ball_wide": (drago.Chi2Ball(20.0), ("chi2_ball", 20.0)),
    "kl_ball": (drago.KLBall(0.3), ("kl_ball", 0.3)),
    "kl_ball_tiny": (drago.KLBall(1e-6), ("kl_ball", 1e-6)),
}

DIVERGENCES = ("chi2", "kl")

PAIRS = [
    (name, divergence)
    for name, (uncertainty, _) in SETS.items()
    for divergence in DIVERGENCES
    if uncertainty.own_divergence in (None, divergence)
]


def thinned(*axes, keep, every=1):
    """All combinations for `parametrize`, of which one in `keep` is quick and the others are slow.

    Quick are those whose places along the axes add up to a multiple of `keep`, so that each value
    is seen with several others. Tuples along an axis are spread over several arguments. The mark
    `thinned(keep)` does the same for a test with several parametrisations. With `every`, only those
    are there whose places add up to a multiple of it: with an axis as long, all combinations of the
    others are.
    """
    found = []
    for combination in itertools.product(*map(enumerate, axes)):
        values = [v if isinstance(v, tuple) else (v,) for _, v in combination]
        places = sum(place for place, _ in combination)
        if places % every:
            continue
        quick = places % keep == 0
        marks = () if quick else pytest.mark.slow
        found.append(pytest.param(*itertools.chain(*values), marks=marks))
    return found


def nominal(kind, n, rng):
    """Uniform or random weights with a few tiny ones."""
    if kind == "uniform":
        return np.full(n, 1.0 / n)
    p = rng.exponential(size=n) ** 2 + 1e-5
    return p / p.sum()


def make(loss="squared", n=37, d=4, seed=0, sparse=False, **settings):
    """A small problem that is well conditioned; some rows without entries where sparse."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    if sparse:
        X[rng.random((n, d)) < 0.6] = 0.0
        X[0] = 0.0
    z = X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)
    y = z
    if loss == "logistic":
        y = (z > 0).astype(float)
    elif loss == "multinomial":
        y = np.argsort(np.argsort(z)) * 3 // n
    settings = {"shift_cost": 0.2, "l2_reg": 0.1, "uncertainty": drago.CVaR(0.4)} | settings
    return drago.DROProblem(sp.csr_array(X) if sparse else X, y, loss=loss, **settings)


def no_worse(result, value):
    """Whether a solve ends no higher than an objective that it has seen.

    But for a level point at each certificate, and the sums over the rows in another order.
    """
    rounding = LEVEL * len(result.history) + EPS * result.dual_weights.size
    return result.primal <= value + rounding * abs(value)
