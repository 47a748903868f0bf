"""Rows that the tests of clusters share: in memory, and in chunks."""

import numpy as np

import drago

N, D, TOL = 3000, 4, 1e-6
SETS = {
    "cvar": drago.CVaR(0.2),
    "mean": drago.CVaR(1.0),
    "simplex": drago.Simplex(),
    "chi2 ball": drago.Chi2Ball(0.5),
    "kl ball": drago.KLBall(0.3),
    "esrm": drago.ESRM(1.0),
    "extremile": drago.Extremile(2.0),
    "groups": drago.Grouped(drago.CVaR(0.5)),
}


def data(loss, n=N, d=D):
    """Features of unequal sizes, a target for the loss, and three groups."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)) * np.resize([1.0, 2.0, 0.5, 1.0], d) + 0.3
    score = X[:, :3] @ np.array([1.0, -0.5, 0.7])
    if loss == "logistic":
        y = (score + rng.logistic(size=n) > 0.5).astype(float)
    elif loss == "multinomial":
        y = np.digitize(score + rng.normal(size=n), [-0.5, 1.0]).astype(float)
    else:
        y = score + rng.standard_t(4, size=n)
    return X, y, np.digitize(X[:, 1] + rng.normal(size=n), [-1.0, 1.5])


def terms(loss, name, divergence="auto", **more):
    return {
        "loss": loss,
        "uncertainty": SETS[name],
        "divergence": divergence,
        "shift_cost": 0.05,
        "l2_reg": 1e-2,
        "fit_intercept": True,
        **more,
    }


def in_chunks(X, y, groups=None, chunk=700):
    import dask.array as da

    found = [da.from_array(X, chunks=(chunk, -1)), da.from_array(y, chunks=chunk)]
    return *found, None if groups is None else da.from_array(groups, chunks=chunk)


def same_bits(first, second):
    """Two results, their weights included."""
    assert first.coef.tobytes() == second.coef.tobytes()
    assert np.array_equal(first.intercept, second.intercept)
    assert (first.gap, first.n_iter) == (second.gap, second.n_iter)
    weights = [np.asarray(result.dual_weights) for result in (first, second)]
    assert weights[0].tobytes() == weights[1].tobytes()
