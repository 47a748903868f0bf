"""L-BFGS against cvxpy, scikit-learn, the paper's data, and data that break careless solvers."""

import itertools
import os
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

import drago
import reference
import twins
from cases import DIVERGENCES, kink, no_worse, thinned

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
}
WAYS = list(itertools.product((False, True), (False, True), CONSTRAINTS))
DATA_DIR = os.environ.get("DRAGO_DATA_DIR")


def target(loss, z):
    """A target for `loss` from the scores z."""
    if loss == "logistic":
        return (z > np.median(z)).astype(float)
    if loss == "multinomial":
        return np.argsort(np.argsort(z)) * 3 // len(z)
    return z


def data(loss="squared", n=80, d=4, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, target(loss, X @ rng.standard_normal(d) + noise * rng.standard_normal(n))


def make(X, y, **options):
    kwargs = {"shift_cost": 0.05, "l2_reg": 1e-2, "uncertainty": drago.CVaR(0.3), **options}
    return drago.DROProblem(X, y, **kwargs)


def solve(problem, tol=1e-4, memory=20):
    """Solve, with the status asserted; a warning is an error here."""
    result = drago.solve(problem, drago.LBFGS(memory), tol=tol)
    assert result.status == "optimal" and result.rel_gap <= tol
    assert np.isfinite(result.coef).all() and np.isfinite(result.intercept).all()
    return result


def as_far_as_it_goes(problem, tol, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return drago.solve(problem, "lbfgs", tol=tol, **options)


# --------------------------------------------------------------------------------- with cvxpy


def check_against_cvxpy(loss, name, divergence, intercept, weighted, constraint, seed):
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
    result = as_far_as_it_goes(problem, 1e-10)
    scale = max(1.0, abs(optimum))
    assert result.gap <= 1e-8 * scale  # where there is little to gain, rel_gap ends at rounding
    assert abs(result.primal - optimum) <= 1e-7 * scale
    assert result.dual <= optimum + 1e-7 * scale
    assert result.coef == pytest.approx(w, abs=2e-3)
    value = reference.primal_value(
        X, y, LOSSES[loss], set_, divergence, nu, mu, p, result.coef, result.intercept
    )
    assert value == pytest.approx(result.primal, rel=1e-10)
    assert problem.constraint.contains(problem.to_internal(result.coef)[0])


@pytest.mark.thinned(3)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("name", "divergence"), PAIRS)
def test_value_is_that_of_cvxpy(loss, name, divergence):
    """One of the twelve ways for each loss and set; all of them below."""
    index = list(LOSSES).index(loss) * len(PAIRS) + PAIRS.index((name, divergence))
    check_against_cvxpy(loss, name, divergence, *WAYS[5 * index % len(WAYS)], seed=index)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_value_is_that_of_cvxpy_in_every_way(way):
    for seed, (loss, (name, divergence)) in enumerate(itertools.product(LOSSES, PAIRS)):
        check_against_cvxpy(loss, name, divergence, *way, seed=1000 + seed)


def test_every_way_is_seen_by_the_quick_test():
    seen = {5 * index % len(WAYS) for index in range(len(LOSSES) * len(PAIRS))}
    assert seen == set(range(len(WAYS)))


def test_l2_ball_is_refused_in_one_sentence():
    problem = make(*data(), constraint=drago.L2Ball(1.0))
    with pytest.raises(ValueError, match=r"^solver 'lbfgs' .*L2Ball\(radius=1\)\.$") as error:
        drago.solve(problem, "lbfgs")
    assert "Box, NonNegative or no constraint" in str(error.value)


# ------------------------------------------------------------------------------ forms of input


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_every_storage_of_the_features_gives_the_same_answer(loss, intercept):
    X, y = data(loss)
    X[np.abs(X) < 0.5] = 0.0
    options = {"loss": loss, "fit_intercept": intercept}
    best = solve(make(X, y, **options), tol=1e-10)
    lists = X.tolist()
    for other in (np.asfortranarray(X), sp.csr_array(X), sp.csc_matrix(X), X[::-1][::-1], lists):
        found = solve(make(other, y, **options), tol=1e-10)
        assert found.coef == pytest.approx(best.coef, abs=1e-5)
        assert found.intercept == pytest.approx(best.intercept, abs=1e-5)
        assert found.primal == pytest.approx(best.primal, rel=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sparse", [False, True])
def test_float32_features_lose_nothing_on_the_way(loss, sparse):
    """The same numbers in float32 and float64 give the same answer: all sums are in float64."""
    X, y = data(loss)
    single = X.astype(np.float32)
    double = single.astype(np.float64)
    given = sp.csr_array(single) if sparse else single
    options = {"loss": loss, "fit_intercept": True}
    best = solve(make(double, y, **options), tol=1e-10)
    problem = make(given, y, **options)
    assert problem.X.dtype == np.float32
    found = solve(problem, tol=1e-10)
    assert found.primal == pytest.approx(best.primal, rel=1e-8)
    assert found.coef == pytest.approx(best.coef, abs=1e-5)
    value = make(double, y, **options).objective(found.coef, found.intercept)
    assert value == pytest.approx(found.primal, rel=1e-12)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["cvar", "extremile", "simplex", "chi2_ball", "kl_ball"])
def test_weight_k_is_k_copies(loss, name):
    X, y = data(loss, n=40)
    k = np.random.default_rng(5).integers(0, 4, 40)
    options = {"loss": loss, "uncertainty": SETS[name][0], "fit_intercept": True}
    weighted = solve(make(X, y, sample_weight=k, **options), tol=1e-12)
    copied = solve(make(np.repeat(X, k, axis=0), np.repeat(y, k), **options), tol=1e-12)
    assert weighted.coef == pytest.approx(copied.coef, abs=1e-6)
    assert weighted.intercept == pytest.approx(copied.intercept, abs=1e-6)
    assert weighted.primal == pytest.approx(copied.primal, rel=1e-9)


def test_scale_of_the_sample_weights_does_not_matter():
    X, y = data()
    weight = np.random.default_rng(0).exponential(size=80)
    first, second = (solve(make(X, y, sample_weight=c * weight), 1e-10) for c in (1.0, 1e9))
    assert first.coef == pytest.approx(second.coef, abs=1e-9)


# ----------------------------------------------------------------------------------- hard data


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_shift_of_the_target_is_taken_by_the_intercept(loss):
    X, y = data()
    near, far = (solve(make(X, y + c, loss=loss, fit_intercept=True), 1e-9) for c in (0.0, 1e6))
    assert far.coef == pytest.approx(near.coef, abs=1e-5)
    assert far.intercept - 1e6 == pytest.approx(near.intercept, abs=1e-5)
    assert far.primal == pytest.approx(near.primal, rel=1e-8)


def test_a_shift_of_the_features_is_taken_by_the_intercept():
    X, y = data()
    near, far = (solve(make(X + c, y, fit_intercept=True), 1e-8) for c in (0.0, 1e3))
    assert far.coef == pytest.approx(near.coef, abs=1e-4)
    assert far.primal == pytest.approx(near.primal, rel=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_features_of_another_scale(loss, intercept, scale):
    """X times c with l2_reg times c^2 is the same problem with coefficients divided by c."""
    X, y = data(loss)
    options = {"loss": loss, "fit_intercept": intercept}
    plain = solve(make(X, y, l2_reg=1e-2, **options))
    scaled = solve(make(scale * X, y, l2_reg=1e-2 * scale**2, **options))
    span = make(X, y, **options).reference[0] - plain.dual
    assert abs(scaled.primal - plain.primal) <= 1.1e-4 * span
    assert scale * scaled.coef == pytest.approx(plain.coef, abs=1e-2)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_the_unit_of_the_features_does_not_matter_next_to_an_intercept(loss, scale):
    """Bit for bit, where the change of unit is exact.

    Neither overflows nor underflows, and the powers of two are even: each product, sum and root
    rounds as before, in any order that the processor takes (the same one for arrays of one shape).
    """
    X, y = data(loss)
    plain = solve(make(X, y, loss=loss, fit_intercept=True))
    scaled = solve(make(scale * X, y, loss=loss, fit_intercept=True, l2_reg=1e-2 * scale**2))
    assert scaled.n_iter == plain.n_iter
    assert (scale * scaled.coef == plain.coef).all()
    assert (np.asarray(scaled.intercept) == np.asarray(plain.intercept)).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_features_of_another_scale_with_a_plain_regularisation(loss, intercept, scale):
    """For 1e6 the gradient has to fall on where the objective is level up to rounding."""
    for seed in range(4):
        X, y = data(loss, seed=seed)
        solve(make(scale * X, y, loss=loss, fit_intercept=intercept))


@pytest.mark.parametrize("seed", range(3))
def test_an_offset_that_hides_the_size_of_a_feature(seed):
    """Time stamps: their variance is lost in the rounding of their square."""
    rng = np.random.default_rng(seed)
    X = 1.7e9 + 10.0 * rng.standard_normal((300, 1))
    y = (X[:, 0] - 1.7e9) / 10.0 + rng.standard_normal(300)
    problem = make(X, y, l2_reg=0.0, fit_intercept=True)
    answer = solve(make((X - 1.7e9) / 10.0, y, l2_reg=0.0, fit_intercept=True))
    result = as_far_as_it_goes(problem, 1e-3)
    assert result.primal <= answer.primal + 1e-3 * (problem.reference[0] - answer.primal)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0, 1000.0 / 3.0])
def test_constant_features_have_no_size(value):
    y = np.random.default_rng(1).standard_normal(200)
    problem = make(np.full((200, 2), value), y, l2_reg=0.0, fit_intercept=True)
    result = as_far_as_it_goes(problem, 1e-6, warm_start=(np.zeros(2), 3.0))
    assert result.rel_gap <= 1e-6  # over a ball: without l2_reg the coefficients are anything
    assert result.primal == pytest.approx(problem.reference[0], rel=1e-6)


def test_a_loss_without_curvature():
    class Absolute:
        curvature, lipschitz = 0.0, 1.0

        def __call__(self, y, raw):
            return np.abs(raw - y), np.where(raw > y, 1.0, -1.0)

    X, y = data()
    problem = make(X, y, loss=Absolute(), fit_intercept=True)
    found = [drago.solve(problem, solver, tol=1e-2) for solver in ("lbfgs", "drago", "auto")]
    assert all(result.status == "optimal" for result in found)


def hard_data(kind, loss):
    rng = np.random.default_rng(3)
    X, y = data(loss, n=40, d=5, seed=3)
    if kind == "constant column":
        X[:, 2] = 3.0
    elif kind == "zero column":
        X[:, 2] = 0.0
    elif kind == "twin columns":
        X[:, 2] = X[:, 1]
    elif kind == "more columns than rows":
        X = rng.standard_normal((40, 100))
    elif kind == "two rows":
        X, y = X[:2], np.array([0, 1]) if loss in ("logistic", "multinomial") else y[:2]
    elif kind == "duplicated rows":
        X, y = np.repeat(X[:8], 5, axis=0), np.repeat(y[::5], 5)
    elif kind == "columns of many scales":
        X = X * 10.0 ** np.arange(-2, 3)
    elif kind == "one column":
        X = X[:, :1]
    elif kind == "an outlier":
        X[0] *= 1e4
    return X, y


HARD = (
    "constant column", "zero column", "twin columns", "more columns than rows", "two rows",
    "duplicated rows", "columns of many scales", "one column", "an outlier",
)  # fmt: skip


@pytest.mark.parametrize("loss, intercept, kind", thinned(LOSSES, [False, True], HARD, keep=4))
def test_hard_data_are_certified(kind, loss, intercept):
    X, y = hard_data(kind, loss)
    for l2_reg in (1.0, 1e-3, 1e-6):
        problem = make(X, y, loss=loss, fit_intercept=intercept, l2_reg=l2_reg)
        result = solve(problem)
        if kind == "zero column":
            assert np.abs(np.atleast_2d(result.coef)[:, 2]).max() <= 1e-8
        if kind == "constant column" and intercept and l2_reg == 1.0:
            assert np.abs(np.atleast_2d(result.coef)[:, 2]).max() <= 1e-2


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_columns_of_hopeless_scales_are_judged_honestly(loss, intercept):
    """Scales from 1e-4 to 1e4 may defeat the method, but never the certificate."""
    X, y = data(loss, n=40, d=5, seed=3)
    scales = 10.0 ** np.arange(-4, 6, 2)
    problem = make(X * scales, y, loss=loss, fit_intercept=intercept, l2_reg=1e-6)
    result = as_far_as_it_goes(problem, 1e-4)
    assert no_worse(result, problem.reference[0]) and result.rel_gap <= 1.0 + 1e-12
    # A point that is good for the problem with equal scales is a witness from above.
    equal = solve(make(X, y, loss=loss, fit_intercept=intercept, l2_reg=1e-6))
    assert result.dual <= problem.objective(equal.coef / scales, equal.intercept)


def test_bounds_do_not_jam_the_method():
    """Kept pairs of steps from before bounds became active can leave L-BFGS-B without descent."""
    rng = np.random.default_rng(25)
    X = rng.standard_normal((9, 3)) * np.array([1.0, 0.5, 2.0])
    y = target("multinomial", X @ rng.standard_normal(3) + rng.standard_normal(9))
    problem = make(
        X, y, loss="multinomial", uncertainty=drago.Chi2Ball(0.5), l2_reg=0.05,
        sample_weight=rng.exponential(size=9) + 0.05, constraint=drago.NonNegative(),
    )  # fmt: skip
    fine = solve(problem, 1e-8, memory=5)
    assert solve(problem, 1e-8).primal == pytest.approx(fine.primal, rel=1e-9)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", ["cvar", "simplex", "extremile", "chi2_ball", "kl_ball"])
def test_separable_classes_with_next_to_no_regularisation(loss, intercept, name):
    X, y = data(loss, noise=0.0, d=3)
    options = {"uncertainty": SETS[name][0], "l2_reg": 1e-6, "shift_cost": 1e-2}
    result = solve(make(X, y, loss=loss, fit_intercept=intercept, **options))
    raw = X @ np.atleast_2d(result.coef).T + result.intercept
    predicted = raw.argmax(axis=1) if loss == "multinomial" else raw[:, 0] > 0
    # Without an intercept the median that parts the classes is not quite at the origin.
    assert (predicted == y).mean() >= (0.99 if intercept else 0.6)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_a_tolerance_beyond_reach_stalls_with_a_tiny_gap(loss, intercept):
    """tol = 0 runs until rounding ends it, without an error and at a gap near rounding."""
    for seed in range(4):
        problem = make(*data(loss, seed=seed), loss=loss, fit_intercept=intercept)
        result = as_far_as_it_goes(problem, 0.0)
        assert result.status in ("stalled", "optimal")
        assert result.rel_gap <= 1e-10


# ---------------------------------------------------------------------------- parts of a user


def poisson(y, raw):
    """exp(z) - y z."""
    return np.exp(raw) - y * raw, np.exp(raw) - y


def softplus_pair(y, raw):
    """Two outputs: log sum exp of (0, z_1, z_2) - z_y."""
    full = np.column_stack([np.zeros(len(raw)), raw])
    label = y.astype(int)
    return twins.losses("multinomial", label, full), twins.dlosses("multinomial", label, full)[
        :, 1:
    ]


softplus_pair.n_outputs = 2


@pytest.mark.parametrize("intercept", [False, True])
def test_a_users_loss_is_certified(intercept):
    rng = np.random.default_rng(0)
    X = 0.5 * rng.standard_normal((100, 3))
    y = rng.poisson(np.exp(X @ [0.5, -0.5, 0.3] + 0.5)).astype(float)
    problem = make(X, y, loss=poisson, fit_intercept=intercept, l2_reg=0.1)
    result = solve(problem, 1e-6)
    assert result.bound == "tangent"
    for _ in range(50):
        coef = result.coef + 0.1 * rng.standard_normal(3)
        b = result.intercept + 0.1 * rng.standard_normal() * intercept
        assert problem.objective(coef, b) >= result.dual


def test_a_users_loss_equals_the_built_in_one():
    X, y = data()

    def mine(y, raw):
        return 0.5 * (raw - y) ** 2, raw - y

    for intercept in (False, True):
        options = {"fit_intercept": intercept, "l2_reg": 0.1}
        found = solve(make(X, y, loss=mine, **options), 1e-8)
        assert found.coef == pytest.approx(solve(make(X, y, **options), 1e-10).coef, abs=1e-4)


def test_a_users_loss_with_two_outputs():
    """One class fixed at the raw prediction 0; checked by the gradient of the objective."""
    X, y = data("multinomial")
    problem = make(X, y.astype(float), loss=softplus_pair, l2_reg=0.1, shift_cost=0.2)
    result = solve(problem, 1e-9)
    assert result.coef.shape == (2, 4) and result.intercept.shape == (2,)
    step = 1e-5 * np.random.default_rng(0).standard_normal((20, 2, 4))
    for one in step:
        slope = problem.objective(result.coef + one) - problem.objective(result.coef - one)
        assert abs(slope) <= 2e-9


class MyCVaR:
    """A user's own set: CVaR once more."""

    def __init__(self, tail):
        self.tail = tail

    def worst_case(self, u, c, divergence, p):
        if self.tail == 1.0:
            return np.asarray(p)
        return drago.CVaR(self.tail).worst_case(u, c, divergence, p)

    def q_max(self, p):
        return min(1.0, float(np.max(p)) / self.tail)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("tail", [0.3, 1.0])
def test_a_users_set_equals_the_built_in_one(loss, divergence, tail):
    X, y = data(loss)
    options = {"loss": loss, "fit_intercept": True, "divergence": divergence}
    mine = solve(make(X, y, uncertainty=MyCVaR(tail), **options), 1e-8)
    theirs = solve(make(X, y, uncertainty=drago.CVaR(tail), **options), 1e-8)
    assert mine.primal == pytest.approx(theirs.primal, rel=1e-7)
    assert mine.coef == pytest.approx(theirs.coef, abs=1e-3)


# ------------------------------------------------------------------------- shift_cost = 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("loss", "uncertainty", "set_"),
    [
        ("squared", drago.CVaR(0.2), ("cvar", 0.2)),
        ("squared", drago.Extremile(3.0), ("extremile", 3.0)),
        ("squared", drago.Chi2Ball(1.0), ("chi2_ball", 1.0)),
        ("squared", drago.KLBall(0.5), ("kl_ball", 0.5)),
        ("huber", drago.Simplex(), ("simplex",)),
    ],
    ids=["cvar", "extremile", "chi2_ball", "kl_ball", "simplex"],
)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("n", [60, 1000])
def test_without_a_shift_cost(loss, uncertainty, set_, intercept, n):
    X, y = data(n=n)
    problem = make(
        X, y, loss=loss, uncertainty=uncertainty, shift_cost=0.0, fit_intercept=intercept
    )
    result = solve(problem, 1e-3)
    if n == 60:
        divergence = problem.divergence.name
        loss = ("huber", 1.0) if loss == "huber" else loss
        optimum, _, _ = reference.solve_problem(
            X, y, loss, set_, divergence, 0.0, problem.mu, None, intercept
        )
        span = problem.reference[0] - optimum
        assert -1e-7 <= result.primal - optimum <= 1.1e-3 * span
        assert result.dual <= optimum + 1e-7


# ------------------------------------------------------------------------- the plain mean


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("shift_cost", [0.0, 0.1])
def test_the_mean_is_scikit_learns_ridge(intercept, shift_cost):
    from sklearn.linear_model import Ridge

    X, y = data()
    mu = 0.03
    problem = make(
        X, y, uncertainty=drago.CVaR(1.0), l2_reg=mu, shift_cost=shift_cost, fit_intercept=intercept
    )
    found = solve(problem, 1e-10)
    ridge = Ridge(alpha=len(y) * mu, fit_intercept=intercept).fit(X, y)
    assert found.coef == pytest.approx(ridge.coef_, abs=1e-4)
    assert found.intercept == pytest.approx(ridge.intercept_, abs=1e-4)


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("loss", ["logistic", "multinomial"])
def test_the_mean_is_scikit_learns_logistic_regression(intercept, loss):
    from sklearn.linear_model import LogisticRegression

    X, y = data(loss)
    mu = 0.03
    problem = make(X, y, loss=loss, uncertainty=drago.CVaR(1.0), l2_reg=mu, fit_intercept=intercept)
    found = solve(problem, 1e-10)
    theirs = LogisticRegression(
        C=1 / (len(y) * mu), fit_intercept=intercept, tol=1e-10, max_iter=10_000
    ).fit(X, y)
    assert np.atleast_2d(found.coef) == pytest.approx(theirs.coef_, abs=1e-4)
    b = np.atleast_1d(found.intercept)
    assert b - b.mean() * (loss == "multinomial") == pytest.approx(
        theirs.intercept_ - theirs.intercept_.mean() * (loss == "multinomial"), abs=1e-4
    )


@pytest.mark.parametrize(
    "uncertainty",
    [drago.Extremile(1.0), drago.ESRM(0.0), drago.Chi2Ball(0.0), drago.KLBall(0.0)],
    ids=repr,
)
@pytest.mark.parametrize("shift_cost", [0.0, 0.1])
def test_every_set_has_the_mean_at_its_end(uncertainty, shift_cost):
    X, y = data()
    mean = solve(make(X, y, uncertainty=drago.CVaR(1.0), fit_intercept=True), 1e-10)
    problem = make(X, y, uncertainty=uncertainty, shift_cost=shift_cost, fit_intercept=True)
    assert solve(problem, 1e-10).coef == pytest.approx(mean.coef, abs=1e-4)


def test_a_single_group_is_the_mean():
    X, y = data()
    mean = solve(make(X, y, uncertainty=drago.CVaR(1.0)), 1e-10)
    one = make(X, y, uncertainty=drago.Grouped(drago.CVaR(0.1)), groups=["all"] * len(y))
    assert solve(one, 1e-10).coef == pytest.approx(mean.coef, abs=1e-4)


def test_groups_of_one_row_are_the_inner_set():
    X, y = data()
    for inner in (drago.CVaR(0.3), drago.Extremile(2.0), drago.KLBall(0.5)):
        plain = solve(make(X, y, uncertainty=inner), 1e-9)
        grouped = make(X, y, uncertainty=drago.Grouped(inner), groups=np.arange(len(y)))
        assert solve(grouped, 1e-9).coef == pytest.approx(plain.coef, abs=1e-4)


# ------------------------------------------------------------------------- no regularisation


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_without_regularisation(loss, intercept):
    X, y = data(loss, noise=3.0 if loss != "huber" else 0.3)
    options = {"loss": loss, "fit_intercept": intercept, "shift_cost": 0.1}
    if loss == "multinomial":  # a common shift of all classes changes nothing: no curvature there
        options["constraint"] = drago.Box(-5.0, 5.0)
    found = solve(make(X, y, l2_reg=0.0, **options))
    nearly = solve(make(X, y, l2_reg=1e-9, **options), 1e-7)
    span = make(X, y, l2_reg=0.0, **options).reference[0] - nearly.primal
    assert -1e-6 <= found.primal - nearly.primal <= 2e-4 * span + 1e-6


def test_without_regularisation_or_curvature_the_gap_is_over_a_ball():
    """All rows with weight lie where the Huber loss is linear: nothing bounds w from afar."""
    X, y = data(noise=3.0)
    problem = make(X, y, loss="huber", shift_cost=0.1, l2_reg=0.0)
    result = as_far_as_it_goes(problem, 1e-4)
    assert np.isfinite(result.gap) and "over ||w|| <=" in result.message


def test_without_regularisation_the_squared_mean_is_least_squares():
    X, y = data()
    found = solve(make(X, y, l2_reg=0.0, uncertainty=drago.CVaR(1.0)), 1e-10)
    assert found.coef == pytest.approx(np.linalg.lstsq(X, y, rcond=None)[0], abs=1e-4)


# ------------------------------------------------------------------------- the paper's data


@pytest.mark.thinned(2)
@pytest.mark.skipif(not DATA_DIR, reason="DRAGO_DATA_DIR is not set")
@pytest.mark.parametrize("l2_reg", [1.0, 1e-2])
@pytest.mark.parametrize(
    "name",
    [
        "yacht", "energy", "concrete", "kin8nm", "power", "acsincome1k", "emotion",
    ],
)  # fmt: skip
def test_the_papers_data(name, l2_reg):
    dataset = drago.datasets.load(name, prepare="paper")
    problem = drago.DROProblem(
        dataset.X,
        dataset.y,
        loss="multinomial" if name == "emotion" else "squared",
        uncertainty=drago.CVaR(0.75),
        shift_cost=1.0 / len(dataset.y),
        l2_reg=l2_reg,
    )
    result = solve(problem, 1e-6)
    assert drago.certify(problem, result.coef).rel_gap <= 1e-6
