"""`DRORegressor` and `DROClassifier` against cvxpy, themselves on repeated rows, and NumPy."""

import re

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse as sp
from scipy.stats import t as student
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

import drago
import reference
from drago import CVaR, DROClassifier, DROProblem, DRORegressor, Grouped
from drago.solvers.class_descent import ClassRun

LOSSES = ("squared", "huber", "logistic", "multinomial")
SETS = {
    "cvar": (CVaR(0.3), ("cvar", 0.3)),
    "extremile": (drago.Extremile(2.5), ("extremile", 2.5)),
    "chi2_ball": (drago.Chi2Ball(0.5), ("chi2_ball", 0.5)),
    "kl_ball": (drago.KLBall(0.3), ("kl_ball", 0.3)),
    "simplex": (drago.Simplex(), ("simplex",)),
}
PAIRS = [
    (name, divergence)
    for name, (uncertainty, _) in SETS.items()
    for divergence in ("chi2", "kl")
    if uncertainty.own_divergence in (None, divergence)
]
WORDS = np.array(["bad", "good", "worse"])
BOTH = pytest.mark.parametrize("loss", ["squared", "logistic"])


def make(loss, n=24, d=3, seed=0):
    """Features, and a target as a user has it: classes are words."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n) + 0.3
    if loss == "logistic":
        return X, WORDS[(z > 0).astype(int)]
    if loss == "multinomial":
        return X, WORDS[np.argsort(np.argsort(z)) * 3 // n]
    return X, z


def model(loss, uncertainty="cvar", **settings):
    """The estimator for a loss."""
    if loss in ("logistic", "multinomial"):
        return DROClassifier(uncertainty, **settings)
    return DRORegressor(uncertainty, loss=drago.Huber(0.7) if loss == "huber" else loss, **settings)


def problem(fitted, loss, X, y, sample_weight=None, groups=None):
    """What a fitted model should have solved, without the estimator's hands on it."""
    return DROProblem(
        X,
        codes(y),
        loss=drago.Huber(0.7) if loss == "huber" else loss,
        uncertainty=fitted.uncertainty_,
        divergence=fitted.divergence,
        shift_cost=fitted.shift_cost_,
        l2_reg=fitted.l2_reg,
        fit_intercept=fitted.fit_intercept,
        constraint=fitted.constraint,
        sample_weight=sample_weight,
        groups=groups,
    )


def codes(y):
    """Words as numbers, numbers as they are."""
    y = np.asarray(y)
    return np.unique(y, return_inverse=True)[1] if y.dtype.kind in "UO" else y


def certified(fitted, loss, X, y, **data):
    """The certificate of a model, on data that is given anew."""
    return drago.certify(
        problem(fitted, loss, X, y, **data), fitted.result_.coef, fitted.result_.intercept
    )


def same(first, second):
    """Whether two models are the same to the last bit."""
    np.testing.assert_array_equal(first.coef_, second.coef_)
    np.testing.assert_array_equal(first.intercept_, second.intercept_)
    assert first.shift_cost_ == second.shift_cost_
    assert first.dual_gap_ == second.dual_gap_ and first.n_iter_ == second.n_iter_


# ------------------------------------------------------------------------- against cvxpy


def compare(fitted, loss, X, y, described, divergence, p=None):
    """The objective to 1e-6; the coefficients as far as strong convexity ties them to it."""
    name = ("huber", 0.7) if loss == "huber" else loss
    args = (X, codes(y), name, described, divergence, fitted.shift_cost_, fitted.l2_reg, p)
    best = reference.solve_problem_detailed(*args, fitted.fit_intercept)
    coef, intercept = fitted.coef_, fitted.intercept_
    if loss != "multinomial":
        coef, intercept = np.ravel(coef), np.ravel(intercept)[0]
    reached = reference.primal_value(*args, coef, intercept)
    assert reached == pytest.approx(best.value, rel=1e-6)
    assert fitted.result_.primal == pytest.approx(reached, rel=1e-9)
    # P(w, b) - P* >= mu/2 ||w - w*||^2, for either of the two.
    below = min(best.value, fitted.result_.dual)
    far = sum(
        np.sqrt(2 * max(value - below, 1e-13) / fitted.l2_reg) for value in (reached, best.primal)
    )
    assert np.linalg.norm(coef - best.w) <= far < 1e-2
    assert intercept == pytest.approx(best.b, abs=1e-3)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "fit_intercept, weighted",
    [
        pytest.param(True, True, id="intercept-weighted"),
        pytest.param(False, False, id="through 0-even", marks=pytest.mark.slow),
        pytest.param(True, False, id="intercept-even", marks=pytest.mark.slow),
        pytest.param(False, True, id="through 0-weighted", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name, divergence", PAIRS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_answer_is_that_of_cvxpy(loss, name, divergence, fit_intercept, weighted):
    uncertainty, described = SETS[name]
    X, y = make(loss)
    weight, p, kept = None, None, np.ones(len(X), bool)
    if weighted:
        weight = np.random.default_rng(1).integers(0, 4, len(X))
        kept = weight > 0
        p = weight[kept] / weight.sum()
    fitted = model(
        loss,
        uncertainty,
        divergence=divergence,
        shift_cost=0.1,
        l2_reg=0.1,
        fit_intercept=fit_intercept,
        tol=1e-9,
    ).fit(X, y, sample_weight=weight)
    compare(fitted, loss, X[kept], y[kept], described, divergence, p)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "weighted",
    [
        pytest.param(True, id="weighted"),
        pytest.param(False, id="even", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name, divergence", PAIRS)
@pytest.mark.parametrize("loss", LOSSES)
def test_groups_are_those_of_cvxpy(loss, name, divergence, weighted):
    inner, described = SETS[name]
    X, y = make(loss, seed=3)
    groups = np.array(["north", "south", "west", "east"])[np.arange(len(X)) * 7 % 4]
    weight = np.random.default_rng(1).integers(1, 4, len(X)) if weighted else None
    fitted = model(
        loss, Grouped(inner), divergence=divergence, shift_cost=0.05, l2_reg=0.1, tol=1e-9
    ).fit(X, y, sample_weight=weight, groups=groups)
    p = None if weight is None else weight / weight.sum()
    compare(fitted, loss, X, y, ("grouped", described, groups), divergence, p)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "constraint, described",
    [(drago.NonNegative(), ("nonnegative",)), (drago.Box(-0.2, 0.3), ("box", -0.2, 0.3))],
    ids=repr,
)
@pytest.mark.parametrize("loss", LOSSES)
def test_constraints_hold_for_the_coefficients_and_not_for_the_intercept(
    loss, constraint, described
):
    X, y = make(loss)
    fitted = model(
        loss, CVaR(0.3), shift_cost=0.1, l2_reg=0.1, constraint=constraint, tol=1e-8
    ).fit(X, y)
    name = ("huber", 0.7) if loss == "huber" else loss
    optimum, w, _ = reference.solve_problem(
        X, codes(y), name, ("cvar", 0.3), "chi2", 0.1, 0.1, None, True, described
    )
    assert fitted.result_.primal == pytest.approx(optimum, rel=1e-6)
    assert np.squeeze(fitted.coef_) == pytest.approx(w, abs=2e-3)


def test_without_robustness_it_is_ridge_and_logistic_regression():
    """What the docstrings say of l2_reg: alpha / n, and 1 / (n C)."""
    X, y = make("squared", n=60)
    ours = DRORegressor(CVaR(1.0), l2_reg=0.05, tol=1e-12).fit(X, y)
    theirs = Ridge(alpha=0.05 * 60).fit(X, y)
    assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-6)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-6)
    for loss in ("logistic", "multinomial"):
        X, y = make(loss, n=60)
        ours = DROClassifier(CVaR(1.0), l2_reg=0.05, tol=1e-12).fit(X, y)
        theirs = LogisticRegression(C=1 / (0.05 * 60), tol=1e-10, max_iter=1000).fit(X, y)
        assert ours.coef_ == pytest.approx(theirs.coef_, abs=1e-5)
        assert ours.intercept_ == pytest.approx(theirs.intercept_, abs=1e-5)
        assert ours.predict_proba(X) == pytest.approx(theirs.predict_proba(X), abs=1e-5)
        assert ours.decision_function(X) == pytest.approx(theirs.decision_function(X), abs=1e-4)


def best_constant(loss, y, weight):
    """The mean loss of the best constant model."""
    p = weight / weight.sum()
    if loss in ("logistic", "multinomial"):
        share = np.bincount(codes(y), weights=p)
        return -np.sum(share * np.log(share))

    def mean(b):
        r = np.abs(y - b)
        bent = 0.7 * (r - 0.35)
        return np.sum(p * (np.where(r > 0.7, bent, r**2 / 2) if loss == "huber" else r**2 / 2))

    return scipy.optimize.minimize_scalar(mean, bounds=(y.min(), y.max()), method="bounded").fun


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_shift_cost_is_a_tenth_of_what_the_best_constant_loses(loss, weighted):
    X, y = make(loss, n=50)
    weight = np.random.default_rng(1).uniform(0.1, 2.0, 50) if weighted else np.ones(50)
    fitted = model(loss).fit(X, y, sample_weight=weight)
    assert fitted.shift_cost_ == pytest.approx(0.1 * best_constant(loss, y, weight), rel=1e-6)


# ---------------------------------------------------------------- units of the target


@pytest.mark.parametrize("factor", [1e-6, -3.0, 1e5])
@pytest.mark.parametrize("uncertainty", ["cvar", "extremile", "chi2_ball", "kl_ball", "simplex"])
def test_the_unit_of_the_target_does_not_matter(uncertainty, factor):
    """Losses, their shift cost and the penalty are all quadratic in (y, w, b)."""
    X, y = make("squared", n=60)
    first = DRORegressor(uncertainty, tol=1e-9).fit(X, y)
    second = DRORegressor(uncertainty, tol=1e-9).fit(X, factor * y)
    assert second.shift_cost_ == pytest.approx(factor**2 * first.shift_cost_, rel=1e-9)
    assert second.coef_ == pytest.approx(factor * first.coef_, rel=1e-4)
    assert second.intercept_ == pytest.approx(factor * first.intercept_, rel=1e-4)
    assert second.result_.primal == pytest.approx(factor**2 * first.result_.primal, rel=1e-8)
    assert second.dual_weights_ == pytest.approx(first.dual_weights_, abs=1e-4)


def test_huber_needs_its_delta_in_the_unit_of_the_target():
    X, y = make("squared", n=60)
    first = DRORegressor(loss=drago.Huber(0.5), tol=1e-9).fit(X, y)
    second = DRORegressor(loss=drago.Huber(50.0), tol=1e-9).fit(X, 100 * y)
    assert second.coef_ == pytest.approx(100 * first.coef_, rel=1e-4)
    third = DRORegressor(loss=drago.Huber(0.5), tol=1e-9).fit(X, 100 * y)
    assert np.abs(third.coef_ / (100 * first.coef_) - 1).max() > 0.1


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("shift", [-7.0, 1e6])
def test_the_origin_of_the_target_does_not_matter(loss, shift):
    X, y = make(loss, n=60)
    first = model(loss, tol=1e-8).fit(X, y)
    second = model(loss, tol=1e-8).fit(X, y + shift)
    assert second.coef_ == pytest.approx(first.coef_, abs=1e-3)
    assert second.intercept_ == pytest.approx(first.intercept_ + shift, abs=1e-3)
    assert second.result_.primal == pytest.approx(first.result_.primal, rel=1e-6)


# ------------------------------------------------------------- weight k is k copies


def copies(n=40, low=0, seed=2):
    return np.random.default_rng(seed).integers(low, 8, n)


def as_given(X, form):
    if form == "float32":
        return X.astype(np.float32)
    return sp.csr_array(np.where(np.abs(X) < 0.4, 0.0, X)) if form == "sparse" else X


def repeat(X, k):
    return X[np.repeat(np.arange(X.shape[0]), k)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("form", ["dense", "sparse", "float32"])
@pytest.mark.parametrize(
    "loss, class_weight",
    [
        *((loss, None) for loss in LOSSES),
        ("logistic", "balanced"),
        ("multinomial", "balanced"),
        ("logistic", {"bad": 0.1, "good": 0.7}),
        ("multinomial", {"bad": 0.1, "good": 0.7, "worse": 1.3}),
    ],
    ids=str,
)
def test_weight_k_is_k_copies_to_the_last_bit(loss, class_weight, form):
    settings = {} if class_weight is None else {"class_weight": class_weight}
    X, y = make(loss, n=40)
    X, k = as_given(X, form), copies()
    weighted = model(loss, **settings).fit(X, y, sample_weight=k)
    repeated = model(loss, **settings).fit(repeat(X, k), repeat(y, k))
    same(weighted, repeated)
    assert weighted.coef_.dtype == weighted.intercept_.dtype == X.dtype
    # And the rows' order is no matter, of the one or of the other.
    order = np.random.default_rng(5).permutation(40)
    shuffled = model(loss, **settings).fit(X[order], y[order], sample_weight=k[order])
    same(weighted, shuffled)
    np.testing.assert_array_equal(shuffled.dual_weights_, weighted.dual_weights_[order])
    order = np.random.default_rng(5).permutation(k.sum())
    same(weighted, model(loss, **settings).fit(repeat(X, k)[order], repeat(y, k)[order]))


@pytest.mark.parametrize("uncertainty", ["extremile", "esrm", "chi2_ball", "kl_ball", "simplex"])
@BOTH
def test_weight_k_is_k_copies_in_every_set(loss, uncertainty):
    X, y = make(loss, n=40)
    k = copies()
    weighted = model(loss, uncertainty).fit(X, y, sample_weight=k)
    same(weighted, model(loss, uncertainty).fit(repeat(X, k), repeat(y, k)))


@BOTH
def test_weight_k_is_k_copies_in_groups(loss):
    X, y = make(loss, n=40)
    k, groups = copies(), np.array(["n", "s", "w"])[np.arange(40) % 3]
    uncertainty = Grouped(CVaR(0.5))
    weighted = model(loss, uncertainty).fit(X, y, sample_weight=k, groups=groups)
    repeated = model(loss, uncertainty).fit(repeat(X, k), repeat(y, k), groups=repeat(groups, k))
    same(weighted, repeated)
    # Equal rows of two groups are two rows.
    twice = model(loss, uncertainty).fit(
        np.vstack([X, X]), np.r_[y, y], groups=["a"] * 40 + ["b"] * 40
    )
    assert twice.dual_weights_[:40].sum() == pytest.approx(0.5)


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_a_class_of_weight_0_is_not_there(class_weight):
    X, y = make("multinomial", n=40)
    weight = np.where(y == "good", 0, copies(low=1))
    there = weight > 0
    weighted = DROClassifier(class_weight=class_weight).fit(X, y, sample_weight=weight)
    without = DROClassifier(class_weight=class_weight)
    without.fit(X[there], y[there], sample_weight=weight[there])
    same(weighted, without)
    assert weighted.classes_.tolist() == ["bad", "worse"] and weighted.coef_.shape == (1, 3)
    assert not weighted.dual_weights_[~there].any()
    by_class = DROClassifier(class_weight={"bad": 1, "good": 0, "worse": 1}).fit(X, y)
    assert by_class.classes_.tolist() == ["bad", "worse"]
    same(by_class, DROClassifier().fit(X[there], y[there]))


@pytest.mark.parametrize("factor", [1e-300, 0.25, 1e307])
@BOTH
def test_the_unit_of_the_weights_does_not_matter(loss, factor):
    X, y = make(loss, n=40)
    X, y, k = np.vstack([X, X]), np.r_[y, y], copies(80, low=1)
    settings = {"class_weight": "balanced"} if loss == "logistic" else {}
    first = model(loss, tol=1e-9, **settings).fit(X, y, sample_weight=k)
    second = model(loss, tol=1e-9, **settings).fit(X, y, sample_weight=factor * k)
    assert second.coef_ == pytest.approx(first.coef_, abs=1e-4)
    assert second.dual_weights_ == pytest.approx(first.dual_weights_, abs=1e-6)
    report = second.worst_case_report(X, y, sample_weight=factor * k)
    assert report.mean_loss == pytest.approx(
        first.worst_case_report(X, y, sample_weight=k).mean_loss, rel=1e-4
    )


def test_balanced_classes_weigh_the_same():
    X, y = make("multinomial", n=40)
    weight = copies(low=1)
    fitted = DROClassifier(CVaR(1.0), class_weight="balanced").fit(X, y, sample_weight=weight)
    mass = np.bincount(codes(y), weights=fitted.dual_weights_)
    assert mass == pytest.approx(np.full(3, 1 / 3))
    by_hand = {word: 1 / weight[y == word].sum() for word in WORDS}
    other = DROClassifier(CVaR(1.0), class_weight=by_hand).fit(X, y, sample_weight=weight)
    assert other.dual_weights_ == pytest.approx(fitted.dual_weights_)


@pytest.mark.parametrize("solver", ["drago", "lbfgs", "newton"])
@BOTH
def test_weight_k_is_k_copies_for_every_solver(loss, solver):
    X, y = make(loss, n=60)
    k = copies(60)
    fitted = model(loss, CVaR(0.4), solver=solver, tol=1e-7).fit(X, y, sample_weight=k)
    assert fitted.result_.solver == solver
    assert certified(fitted, loss, repeat(X, k), repeat(y, k)).rel_gap <= 2e-7


@pytest.mark.parametrize("loss", LOSSES)
def test_weight_k_is_k_copies_where_rows_are_too_many_to_compare(loss):
    X, y = make(loss, n=2700, d=50)
    k = copies(2700)
    assert X.size > 2**17
    fitted = model(loss, l2_reg=0.01).fit(X, y, sample_weight=k)
    assert certified(fitted, loss, repeat(X, k), repeat(y, k)).rel_gap <= 2e-4
    assert not fitted.dual_weights_[k == 0].any()
    again = model(loss, l2_reg=0.01).fit(repeat(X, k), repeat(y, k))
    assert certified(again, loss, X, y, sample_weight=k).rel_gap <= 2e-4
    assert again.shift_cost_ == pytest.approx(fitted.shift_cost_, rel=1e-9)


def test_rows_for_a_users_own_loss_are_left_as_they_are():
    """It may know more of a row than its features."""
    X, y = make("squared", n=40)
    seen = []

    def own(y, raw):
        seen.append(y.copy())
        return 0.5 * (raw - y) ** 2, raw - y

    twice = DRORegressor(loss=own).fit(np.vstack([X, X]), np.r_[y, y])
    assert all(np.array_equal(each, np.r_[y, y]) for each in seen if each.size == 80)
    assert any(each.size == 80 for each in seen)
    assert certified(twice, "squared", X, y).rel_gap <= 2e-4


# ------------------------------------------------------------------ worst-case weights


@pytest.mark.thinned(2)
@pytest.mark.parametrize("solver", ["auto", "drago"])
@pytest.mark.parametrize("name", [*SETS, "grouped"])
@pytest.mark.parametrize("loss", ["squared", "multinomial"])
def test_the_weights_lie_in_the_set_and_attain_the_bound(loss, name, solver):
    uncertainty = Grouped(CVaR(0.5)) if name == "grouped" else SETS[name][0]
    X, y = make(loss, n=40)
    X, y, weight = np.vstack([X, X[:20]]), np.r_[y, y[:20]], copies(60)
    groups = np.r_[np.arange(40), np.arange(20)] % 3 if name == "grouped" else None
    fitted = model(loss, uncertainty, solver=solver, l2_reg=0.1, tol=1e-6)
    fitted.fit(X, y, sample_weight=weight, groups=groups)
    q, there = fitted.dual_weights_, weight > 0
    assert q.shape == (60,) and q.dtype == np.float64
    assert q.sum() == pytest.approx(1, abs=1e-12) and q.min() >= 0
    assert not q[~there].any()
    p = weight[there] / weight.sum()
    labels = None if groups is None else groups[there]
    assert uncertainty.violation(q[there], p, labels) <= 1e-9
    # The rows 0 to 19 are there twice: they share in proportion to their weights.
    one, two = q[:20] * weight[40:], q[40:] * weight[:20]
    assert one == pytest.approx(two, rel=1e-9, abs=1e-15)
    result = fitted.result_
    judge = problem(fitted, loss, X, y, sample_weight=weight, groups=groups)
    best = drago.certify(judge, result.dual_coef, result.dual_intercept, q[there])
    assert best.dual >= result.dual - 1e-9 * abs(result.primal)
    assert best.dual <= result.primal * (1 + 1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_fitted_agrees_with_itself(loss):
    X, y = make(loss, n=40)
    fitted = model(loss).fit(X, y)
    result = fitted.result_
    assert result.status == "optimal" and result.rel_gap <= fitted.tol
    assert fitted.dual_gap_ == result.gap
    assert result.gap == pytest.approx(result.primal - result.dual, abs=1e-12)
    assert fitted.dual_weights_ is result.dual_weights
    assert fitted.history_ is result.history
    assert fitted.n_iter_ == result.n_iter == fitted.history_.n_iter[-1]
    assert fitted.history_.rel_gap[-1] == result.rel_gap
    np.testing.assert_array_equal(np.squeeze(fitted.coef_), result.coef)
    own = problem(fitted, loss, X, y)
    assert own.objective(result.coef, result.intercept) == pytest.approx(result.primal, rel=1e-12)
    assert fitted.losses(X, y) == pytest.approx(own.losses(result.coef, result.intercept))
    assert fitted.n_features_in_ == 3 and not hasattr(fitted, "feature_names_in_")
    if loss in ("squared", "huber"):
        assert fitted.coef_.shape == (3,) and np.isscalar(fitted.intercept_)
        assert fitted.predict(X) == pytest.approx(X @ result.coef + result.intercept)
    else:
        k = 1 if loss == "logistic" else 3
        assert fitted.coef_.shape == (k, 3) and fitted.intercept_.shape == (k,)
        assert fitted.predict_proba(X).sum(axis=1) == pytest.approx(1)
        picked = fitted.predict_log_proba(X)[np.arange(40), codes(y)]
        assert fitted.losses(X, y) == pytest.approx(-picked)
        best = fitted.predict_proba(X).argmax(axis=1)
        assert (fitted.predict(X) == fitted.classes_[best]).all()
        if k == 3:
            assert fitted.intercept_.sum() == pytest.approx(0, abs=1e-12)


def test_probabilities_of_far_points_are_numbers():
    X, y = make("multinomial", n=40)
    for labels in (y, np.where(y == "bad", "bad", "good")):
        fitted = DROClassifier().fit(X, labels)
        with np.errstate(all="raise", under="ignore"):
            log = fitted.predict_log_proba(1e6 * X)
            proba = fitted.predict_proba(1e6 * X)
        assert np.isfinite(log).all() and np.isfinite(proba).all()
        assert proba.sum(axis=1) == pytest.approx(1)


# ------------------------------------------------------------------ starts, seeds, threads


@pytest.mark.thinned(2)
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("solver", ["auto", "drago"])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_warm_start_has_nothing_left_to_do(loss, solver, fit_intercept):
    """The weights too are taken up, though equal rows were made one and put in another order."""
    uncertainty = CVaR(0.5)
    X, y = make(loss, n=60)
    X, y, weight = np.vstack([X, X[:9]]), np.r_[y, y[:9]], copies(69)
    settings = {"solver": solver, "tol": 1e-6, "l2_reg": 0.1, "fit_intercept": fit_intercept}
    fitted = model(loss, uncertainty, warm_start=True, **settings)
    fitted.fit(X, y, sample_weight=weight)
    first = fitted.n_iter_
    assert first > 2
    fitted.fit(X, y, sample_weight=weight)
    # One or two where the bound came from another point.
    assert fitted.n_iter_ <= 2
    assert certified(fitted, loss, X, y, sample_weight=weight).rel_gap <= 2e-6
    # Without it every fit is the first one.
    cold = model(loss, uncertainty, **settings).fit(X, y, sample_weight=weight)
    cold.fit(X, y, sample_weight=weight)
    assert cold.n_iter_ == first


@pytest.mark.parametrize("weighty", range(5))
@BOTH
def test_a_warm_start_where_rows_come_and_go(loss, weighty):
    """Rows without weight hold no weight to start with, whichever they are."""
    X, y = make(loss, n=12)
    fitted = model(loss, CVaR(0.5), warm_start=True, solver="drago", l2_reg=0.1).fit(X, y)
    weight = np.random.default_rng(weighty).integers(0, 2, 12)
    weight[[codes(y).argmin(), codes(y).argmax()]] = 1
    fitted.fit(X, y, sample_weight=weight)
    assert certified(fitted, loss, X, y, sample_weight=weight).rel_gap <= 2e-4
    assert not fitted.dual_weights_[weight == 0].any()


@pytest.mark.parametrize("solver", ["auto", "drago"])
@BOTH
def test_a_warm_start_from_a_neighbour_is_shorter_and_certified(loss, solver):
    X, y = make(loss, n=200, d=10)
    # With chi2 drago's iterations are compiled, and it makes eight of them before it looks.
    settings = {"solver": solver, "tol": 1e-7, "divergence": "kl"}
    fitted = model(loss, CVaR(0.5), warm_start=True, **settings).fit(X, y)
    fitted.set_params(uncertainty__tail_fraction=0.499).fit(X, y)
    cold = model(loss, CVaR(0.499), **settings).fit(X, y)
    assert fitted.n_iter_ < cold.n_iter_
    assert fitted.result_.status == "optimal"
    assert certified(fitted, loss, X, y).rel_gap <= 2e-7
    assert fitted.coef_ == pytest.approx(cold.coef_, abs=1e-2)
    # More rows: the weights are of no use, the coefficients are.
    fitted.fit(np.vstack([X, X + 0.01]), np.r_[y, y])
    assert fitted.result_.status == "optimal" and fitted.dual_weights_.shape == (400,)


def test_a_warm_start_is_left_aside_where_it_does_not_fit():
    X, y = make("multinomial", n=60, d=4)
    fitted = DROClassifier(warm_start=True).fit(X, y)
    for features, labels in [
        (X[:, :2], y),  # columns
        (X, np.where(y == "bad", "bad", "good")),  # fewer classes
        (X, np.char.add(y, "!")),  # as many, but others
        (X, codes(y)),  # of another kind
        (X, y),
    ]:
        fitted.fit(features, labels)
        same(fitted, DROClassifier().fit(features, labels))
        assert fitted.predict(features).dtype == labels.dtype
    # From a fit with an intercept to one without, and back.
    fitted.set_params(fit_intercept=False).fit(X, y)
    assert not fitted.intercept_.any() and fitted.result_.status == "optimal"
    fitted.set_params(fit_intercept=True).fit(X, y)
    assert fitted.intercept_.any() and fitted.result_.status == "optimal"
    # Into a constraint.
    fitted.set_params(constraint=drago.L2Ball(0.1)).fit(X, y)
    assert np.linalg.norm(fitted.coef_) <= 0.1 + 1e-12


def softmax(y, raw):
    """Three classes, as a user's."""
    p = np.exp(raw - raw.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    onehot = np.eye(3)[y.astype(int)]
    return -np.log((p * onehot).sum(axis=1)), p - onehot


softmax.n_outputs = 3


def test_a_users_loss_of_several_outputs_predicts_them_all():
    X, y = make("multinomial", n=60)
    fitted = DRORegressor(loss=softmax, l2_reg=0.1, fit_intercept=False, warm_start=True)
    fitted.fit(X, codes(y))
    built_in = DROClassifier(l2_reg=0.1, fit_intercept=False).fit(X, y)
    assert fitted.coef_.shape == (3, 3)
    assert fitted.predict(X) == pytest.approx(built_in.decision_function(X), abs=0.05)
    assert fitted.losses(X, codes(y)) == pytest.approx(built_in.losses(X, y), abs=0.05)
    assert fitted.set_params(loss="squared").fit(X, codes(y)).coef_.shape == (3,)


def test_random_states():
    X, y = make("squared", n=300)
    method = drago.Drago(primal="blocks")  # which draws blocks
    fits = {}
    for name, seed in [
        ("none", None),
        ("zero", 0),
        ("one", 1),
        ("again", np.int64(1)),
        ("state", np.random.RandomState(3)),
        ("same state", np.random.RandomState(3)),
    ]:
        fits[name] = DRORegressor(solver=method, random_state=seed, tol=1e-6).fit(X, y)
    same(fits["none"], fits["zero"])
    same(fits["one"], fits["again"])
    same(fits["state"], fits["same state"])
    assert (fits["zero"].coef_ != fits["one"].coef_).any()
    for fitted in fits.values():
        assert certified(fitted, "squared", X, y).rel_gap <= 2e-6
    # A RandomState is drawn from: the next fit is another one.
    state = np.random.RandomState(3)
    first, second = (
        DRORegressor(solver=method, random_state=state, tol=1e-6).fit(X, y) for _ in range(2)
    )
    assert (first.coef_ != second.coef_).any()


@pytest.mark.parametrize("solver", ["auto", "drago"])
@pytest.mark.parametrize("n_jobs", [1, 2, -1, np.int64(2)])
def test_threads(n_jobs, solver, monkeypatch):
    monkeypatch.setattr("drago._threads._WORTH", 1)
    X, y = make("squared", n=200)
    fitted = DRORegressor(solver=solver, n_jobs=n_jobs, tol=1e-6).fit(X, y)
    assert certified(fitted, "squared", X, y).rel_gap <= 2e-6


@pytest.mark.parametrize("verbose", [1, True])
@BOTH
def test_verbose_prints_a_line_for_each_certificate(loss, verbose, capsys):
    X, y = make(loss, n=60)
    fitted = model(loss, verbose=verbose, tol=1e-8).fit(X, y)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["passes", "primal", "dual", "gap", "relative", "time", "rows/s"]
    assert len(lines) == len(fitted.history_)
    for line, record in zip(lines, fitted.history_.records):
        passes, primal, dual, gap, relative, time, unit, _ = line.split()
        assert float(passes) == pytest.approx(record.n_passes, abs=0.051)
        assert float(primal) == pytest.approx(record.primal, rel=1e-7)
        assert float(dual) == pytest.approx(record.dual, rel=1e-7)
        assert float(gap) == pytest.approx(record.gap, rel=0.06)
        assert float(relative) == pytest.approx(record.rel_gap, rel=0.06)
        assert float(time) == pytest.approx(record.time, abs=0.0051) and unit == "s"
    model(loss).fit(X, y).worst_case_report(X, y)
    assert capsys.readouterr() == ("", "")


# ------------------------------------------------------------------------- cut short


@pytest.mark.parametrize("limit", [{"max_iter": 2}, {"time_limit": 0.0}], ids=str)
@pytest.mark.parametrize("solver", ["auto", "drago"])
@BOTH
def test_a_fit_that_is_cut_short_can_be_used(loss, solver, limit):
    X, y = make(loss, n=300, d=10)
    fitted = model(loss, solver=solver, tol=1e-10, **limit)
    with pytest.warns(ConvergenceWarning, match=next(iter(limit))):
        fitted.fit(X, y)
    assert fitted.result_.status == next(iter(limit))
    assert np.isfinite(fitted.coef_).all() and fitted.predict(X).shape == (300,)
    assert fitted.dual_weights_.sum() == pytest.approx(1)
    assert 0 < fitted.dual_gap_ < np.inf
    # What is certified of it is true.
    good = model(loss, tol=1e-8).fit(X, y)
    assert fitted.result_.dual <= good.result_.primal + 1e-12
    assert fitted.result_.primal >= good.result_.dual - 1e-12


def interrupting(function, calls):
    """`function`, with a Ctrl-C after so many calls."""
    left = [calls]

    def called(*args, **settings):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return function(*args, **settings)

    return called


@pytest.mark.parametrize("calls", [3, 5])
@pytest.mark.parametrize("loss", LOSSES)
def test_ctrl_c_leaves_the_best_point_and_goes_on_to_the_caller(loss, calls, monkeypatch):
    X, y = make(loss, n=60)
    fitted = model(loss, tol=1e-10, divergence="kl")
    model(loss, divergence="kl").fit(X, y)  # compiled from here on
    if loss == "multinomial":  # compiled: a call makes several iterations
        monkeypatch.setattr(ClassRun, "_call", interrupting(ClassRun._call, 1 + calls // 3))
    else:
        monkeypatch.setattr(DROProblem, "evaluate", interrupting(DROProblem.evaluate, calls))
    with (
        pytest.warns(ConvergenceWarning, match="interrupted"),
        pytest.raises(KeyboardInterrupt, match="interrupted after"),
    ):
        fitted.fit(X, y)
    assert fitted.result_.status == "interrupted"
    assert fitted.predict(X).shape == (60,) and fitted.dual_weights_.sum() == pytest.approx(1)
    assert fitted.n_features_in_ == 3 and fitted.dual_gap_ > 0
    # And the next fit goes on from there, if that is wanted.
    assert fitted.set_params(warm_start=True, tol=1e-6).fit(X, y).result_.status == "optimal"


def test_ctrl_c_in_a_users_loss():
    X, y = make("squared", n=60)
    own = interrupting(lambda y, raw: (0.5 * (raw - y) ** 2, raw - y), 12)
    fitted = DRORegressor(loss=own, tol=1e-10)
    with pytest.warns(ConvergenceWarning), pytest.raises(KeyboardInterrupt):
        fitted.fit(X, y)
    assert fitted.coef_.shape == (3,) and np.isfinite(fitted.coef_).all()


# ------------------------------------------------------------------------- reports


def by_hand(fitted, losses, p):
    """The worst-case loss of a CVaR with chi2 divergence: bisection on the level."""
    cap, nu = 1 / fitted.uncertainty.tail_fraction, fitted.shift_cost_

    def weights(level):
        return p * np.clip((losses - level) / nu, 0, cap)

    level = scipy.optimize.brentq(
        lambda level: weights(level).sum() - 1,
        losses.min() - nu * cap,
        losses.max(),
        xtol=1e-15,
        maxiter=500,
    )
    return weights(level)


def tail(losses, p, fraction):
    """The mean of the worst fraction of the mass, row by row."""
    left, total = fraction, 0.0
    for i in np.argsort(-losses):
        total += min(p[i], left) * losses[i]
        left -= min(p[i], left)
    return total / fraction


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@BOTH
def test_the_report_is_that_of_numpy(loss, weighted):
    X, y = make(loss, n=80)
    fitted = model(loss, CVaR(0.25)).fit(X[:50], y[:50])
    held_out, target = X[50:], y[50:]
    weight = copies(30) if weighted else np.ones(30)
    groups = np.array(["north", "south", "west"])[np.arange(30) % 3]
    report = fitted.worst_case_report(
        held_out, target, groups=groups, sample_weight=weight if weighted else None, n_rows=4
    )
    there = weight > 0
    losses, p, names = fitted.losses(held_out, target)[there], weight[there], groups[there]
    p = p / p.sum()
    q = by_hand(fitted, losses, p)
    assert report.n_samples == there.sum() and report.tail_fraction == 0.25
    assert report.mean_loss == pytest.approx(p @ losses)
    assert report.tail_loss == pytest.approx(tail(losses, p, 0.25))
    assert report.worst_case_loss == pytest.approx(q @ losses)
    assert report.effective_sample_size == pytest.approx(1 / np.sum(q**2))
    assert report.dual_weights[there] == pytest.approx(q, abs=1e-9)
    assert report.nominal_weights[there] == pytest.approx(p)
    assert not report.dual_weights[~there].any() and not report.nominal_weights[~there].any()
    np.testing.assert_array_equal(report.losses[there], losses)
    assert report.mean_loss <= report.worst_case_loss <= report.tail_loss + 1e-12
    # The rows, the heaviest first, by their place in what was given.
    order = np.argsort(-q, kind="stable")[:4]
    assert report.rows["weight"] == pytest.approx(q[order])
    at = report.rows["row"]
    assert weight[at].all()
    assert report.rows["loss"] == pytest.approx(fitted.losses(held_out, target)[at])
    assert report.rows["times"] == pytest.approx(report.rows["weight"] * weight.sum() / weight[at])
    # The groups, the worst first.
    means = {g: p[names == g] @ losses[names == g] / p[names == g].sum() for g in set(names)}
    assert report.groups["group"].tolist() == sorted(means, key=lambda g: -means[g])
    for g, rows, mass, share, mean, low, high in zip(*report.groups.values()):
        assert rows == (names == g).sum() and mean == pytest.approx(means[g])
        parts = p[names == g] / p[names == g].sum() * (losses[names == g] - mean)
        half = student.ppf(0.975, rows - 1) * np.sqrt(rows / (rows - 1) * np.sum(parts**2))
        assert (low, high) == (pytest.approx(mean - half), pytest.approx(mean + half))
        assert mass == pytest.approx(p[names == g].sum())
        assert share == pytest.approx(q[names == g].sum())


@pytest.mark.parametrize("class_weight", ["balanced", {"a": 1, "b": 5, "c": 2}])
def test_a_report_on_the_training_rows_has_the_weights_of_the_fit(class_weight):
    X, y = make("multinomial", n=80)
    y = np.array(["a", "b", "c"])[np.unique(y, return_inverse=True)[1] % 3]
    fitted = DROClassifier(CVaR(0.3), class_weight=class_weight, tol=1e-10).fit(X, y)
    report = fitted.worst_case_report(X, y)
    assert report.dual_weights == pytest.approx(fitted.dual_weights_, abs=1e-5)


def test_a_report_of_a_mean_model_still_has_a_tail():
    X, y = make("squared", n=80)
    report = DRORegressor(CVaR(1.0)).fit(X, y).worst_case_report(X, y)
    assert report.tail_fraction == 0.1 and report.tail_loss > 1.5 * report.mean_loss


def test_what_was_fitted_does_not_change_with_the_parameters():
    X, y = make("squared", n=80)
    fitted = DRORegressor(CVaR(0.2)).fit(X, y)
    before = str(fitted.worst_case_report(X, y))
    fitted.set_params(uncertainty=CVaR(0.7), loss="huber", shift_cost=3.0)
    assert str(fitted.worst_case_report(X, y)) == before


def test_a_large_constant_in_the_target_hides_no_answer():
    """What the features explain is 1e-11 of the trivial model's objective."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    X -= X.mean(axis=0)
    y = 1e6 + X @ [3.0, -2.0, 1.0]
    fitted = DRORegressor(CVaR(1.0), fit_intercept=False, l2_reg=1e-6).fit(X, y)
    assert fitted.coef_ == pytest.approx([3.0, -2.0, 1.0], abs=1e-3)


def test_an_interrupt_before_there_is_an_answer_leaves_the_model_as_it_was(monkeypatch):
    X, y = make("multinomial", n=60)
    fitted = drago.DROClassifierCV("mild", l2_regs=0.1, cv=2, baseline=None).fit(X, y)
    before = fitted.predict(X)
    import drago.estimators.candidates as candidates

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X[:, :1], np.arange(60) % 2)
    np.testing.assert_array_equal(fitted.predict(X), before)


def test_the_level_of_groups_can_be_searched_by_name():
    X, y = make("squared", n=80)
    fitted = DRORegressor(drago.Grouped()).set_params(uncertainty__inner__tail_fraction=0.5)
    assert fitted.fit(X, y, groups=np.arange(80) % 4).uncertainty_ == drago.Grouped(CVaR(0.5))


def test_warnings_point_to_the_line_of_the_caller():
    X, y = make("squared", n=80)
    with pytest.warns(ConvergenceWarning) as caught:
        DRORegressor(max_iter=1, tol=1e-12).fit(X, y)
    assert caught[0].filename == __file__


def test_a_report_can_be_read():
    X, y = make("squared", n=80)
    fitted = DRORegressor().fit(X, y)
    report = fitted.worst_case_report(X, y, groups=np.arange(80) % 2 == 0, n_rows=3)
    lines = str(report).splitlines()
    assert lines[0].startswith("80 rows; the worst-case weights are spread as if over ")
    assert lines[1].split() == ["mean", "loss,", "all", "rows", f"{report.mean_loss:.4g}"]
    assert lines[2].split()[2:4] == ["worst", "10%"]
    assert lines[2].split()[-1] == f"{report.tail_loss:.4g}"
    assert lines[5].split() == ["row", "weight", "times", "loss"]
    assert lines[6].split()[0] == str(report.rows["row"][0])
    assert lines[10].split() == ["group", "rows", "mass", "share", "loss", "low", "high"]
    assert {line.split()[0] for line in lines[11:13]} == {"True", "False"}
    assert len({len(line) for line in lines[5:9]}) == 1  # columns stand in line
    assert repr(report).startswith("WorstCaseReport(80 rows, mean_loss=")
    assert not re.search(r"np\.|array|0x", str(report))
    # Nothing is said of groups or rows that were not asked for.
    assert len(str(fitted.worst_case_report(X, y, n_rows=0)).splitlines()) == 6
    assert fitted.worst_case_report(X, y, n_rows=1000).rows["row"].size <= 80
    assert fitted.worst_case_report(X, y, tail_fraction=1.0).tail_loss == pytest.approx(
        report.mean_loss
    )


@pytest.mark.parametrize("name", [*SETS, "grouped"])
def test_the_report_on_the_training_rows_has_the_fitted_weights(name):
    uncertainty = Grouped(CVaR(0.5)) if name == "grouped" else SETS[name][0]
    X, y = make("logistic", n=60)
    groups = np.arange(60) % 3
    fitted = DROClassifier(uncertainty, tol=1e-9).fit(X, y, groups=groups)
    report = fitted.worst_case_report(X, y, groups=groups)
    assert report.dual_weights == pytest.approx(fitted.dual_weights_, abs=1e-3)
    assert report.tail_fraction == (0.3 if name == "cvar" else 0.1)
    spent = fitted.result_.primal - 0.5 * fitted.l2_reg * np.sum(fitted.coef_**2)
    assert report.worst_case_loss >= spent - 1e-9  # which has paid for the shift


def test_a_report_on_data_without_one_of_the_classes():
    X, y = make("multinomial", n=60)
    fitted = DROClassifier().fit(X, y)
    some = y != "good"
    report = fitted.worst_case_report(X[some], y[some])
    assert report.losses == pytest.approx(fitted.losses(X, y)[some])
    one = fitted.worst_case_report(X[:1], y[:1])
    assert one.dual_weights.tolist() == [1.0] and one.mean_loss == pytest.approx(one.tail_loss)


# ------------------------------------------------------------------------- bad input

X, Y = make("squared")
WORDS_OF = make("logistic")[1]


@pytest.mark.parametrize(
    "settings, error, words",
    [
        ({"loss": "mse"}, ValueError, "loss must be one of 'squared', 'huber', but 'mse'"),
        ({"loss": "logistic"}, ValueError, "loss must .* 'logistic' was given; use DROClassifier"),
        ({"loss": drago.Multinomial()}, ValueError, r"loss must .* Multinomial\(\) was given"),
        ({"loss": 3}, ValueError, "loss must be one of"),
        ({"solver": "adam"}, ValueError, "solver must be one of 'auto', .* but 'adam'"),
        ({"solver": 3}, TypeError, "solver must be one of"),
        ({"uncertainty": "CVAR"}, ValueError, "uncertainty must be one of 'mild'"),
        ({"uncertainty": CVaR}, TypeError, "uncertainty must be a set"),
        ({"uncertainty": Grouped()}, ValueError, "needs to know the group of each row: .*groups="),
        ({"divergence": "tv"}, ValueError, "divergence must be one of"),
        ({"uncertainty": "kl_ball", "divergence": "chi2"}, ValueError, "leave divergence='auto'"),
        ({"shift_cost": np.inf}, ValueError, r"shift_cost must be a number in \[0, inf\)"),
        ({"shift_cost": -1.0}, ValueError, "shift_cost must"),
        ({"shift_cost": "little"}, ValueError, "shift_cost must .* or 'auto'"),
        ({"l2_reg": -1e-3}, ValueError, "l2_reg must"),
        ({"l2_reg": np.nan}, ValueError, "l2_reg must"),
        ({"l2_reg": None}, TypeError, "l2_reg must"),
        ({"fit_intercept": "yes"}, TypeError, "fit_intercept must be True or False"),
        ({"warm_start": "yes"}, TypeError, "warm_start must be True or False"),
        ({"constraint": "box"}, TypeError, "constraint must be None, L2Ball"),
        ({"tol": -1.0}, ValueError, "tol must"),
        ({"max_iter": 0}, ValueError, "max_iter must be an integer >= 1"),
        ({"max_iter": 10.5}, TypeError, "max_iter must"),
        ({"time_limit": -1}, ValueError, "time_limit must"),
        ({"random_state": -1}, ValueError, "random_state must"),
        ({"random_state": "seed"}, TypeError, "random_state must"),
        ({"n_jobs": "all"}, TypeError, "n_jobs must be an integer or None, but 'all'"),
        ({"n_jobs": 0}, ValueError, "n_jobs"),
        ({"verbose": -1}, ValueError, "verbose must"),
        ({"verbose": "yes"}, TypeError, "verbose must"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_that_are_refused(settings, error, words):
    classifies = not settings.keys() & {"loss"}
    for kind, y in [(DRORegressor, Y), (DROClassifier, WORDS_OF)][: 1 + classifies]:
        with pytest.raises(error, match=words):
            kind(**settings).fit(X, y)


HOLES = np.where(np.arange(X.size).reshape(X.shape) == 5, np.nan, X)


@pytest.mark.parametrize(
    "data, words",
    [
        ({"X": HOLES}, "Input X contains NaN"),
        ({"X": X[:, 0]}, "Expected 2D array"),
        ({"X": X[:0], "y": Y[:0]}, "0 sample"),
        ({"X": X.astype(complex)}, "Complex data not supported"),
        ({"X": [["a", "b"]] * 24}, "could not convert string"),
        ({"y": Y[:5]}, "inconsistent numbers of samples"),
        ({"y": np.where(Y > 0, np.nan, Y)}, "Input y contains NaN"),
        ({"y": np.c_[Y, Y, Y]}, "fits one target, but y has 3 columns; .*MultiOutputRegressor"),
        ({"y": WORDS_OF}, "y must hold numbers"),
        ({"y": None}, "requires y to be passed"),
        ({"sample_weight": -np.ones(24)}, "sample_weight must be nonnegative, but entry 0 is -1"),
        ({"sample_weight": np.zeros(24)}, "sample_weight must have a positive entry"),
        (
            {"sample_weight": np.ones(5)},
            r"sample_weight must have one entry per row, shape \(24,\)",
        ),
        ({"sample_weight": np.full(24, np.nan)}, "sample_weight contains 24 NaN"),
        ({"groups": np.arange(5)}, r"groups must have one label per row, shape \(24,\)"),
        ({"groups": [np.nan] * 24}, "groups contains NaN labels"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_data_that_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        DRORegressor(Grouped("cvar")).fit(**({"X": X, "y": Y, "groups": np.arange(24) % 3} | data))


@pytest.mark.parametrize(
    "y, settings, words",
    [
        (Y, {}, "Unknown label type: continuous"),
        (["one"] * 24, {}, "there is one class only: 'one'"),
        (np.ones(24, int), {}, "there is one class only: 1"),
        (np.c_[WORDS_OF, WORDS_OF], {}, "fits one target, but y has 2 columns; .*MultiOutputClass"),
        (np.where(Y > 0, np.nan, 1.0), {}, "Input y contains NaN"),
        (WORDS_OF, {"class_weight": "even"}, "class_weight"),
        (WORDS_OF, {"class_weight": {"bad": -1, "good": 1}}, "class_weight must hold nonnegative"),
        (WORDS_OF, {"class_weight": {"bad": 0, "good": 0}}, "class_weight must .*one of them posi"),
        (WORDS_OF, {"class_weight": {"bad": np.nan, "good": 1}}, "class_weight must"),
        (WORDS_OF, {"class_weight": {"bad": 0, "good": 1}}, "one class only: 'good'"),
        (WORDS_OF, {"class_weight": {"other": 1}}, "class_weight"),
    ],
    ids=[
        "continuous", "one word", "one number", "two columns", "NaN", "even", "negative", "zero",
        "not a number", "one left", "unknown",
    ],
)  # fmt: skip
def test_labels_that_are_refused(y, settings, words):
    with pytest.raises(ValueError, match=words):
        DROClassifier(**settings).fit(X, y)


@pytest.mark.parametrize(
    "labels, target, shown",
    [
        (WORDS, np.array(["bad", "bald", "good"]), "'bald'"),
        (WORDS.astype(object), np.array([1, 2, 3]), "1"),
        (WORDS.astype(object), np.array(["bad", None, "good"]), "None"),
        (np.array([3, 5, 9]), np.array([3, 4, 9]), "4"),
        (np.array([3, 5, 9]), np.array(["3", "5", "9"]), "'3'"),
        (np.array([3, 5, 9]), np.array([3, np.nan, 9]), "nan"),
    ],
)
def test_losses_of_labels_that_were_never_seen(labels, target, shown):
    features, y = make("multinomial", n=30)
    fitted = DROClassifier().fit(features, labels[codes(y)])
    with pytest.raises(ValueError, match=f"y holds the label {shown}, which is none of"):
        fitted.losses(features[:3], target)
    with pytest.raises(ValueError, match=f"y holds the label {shown}, which is none of"):
        fitted.worst_case_report(features[:3], target)


@pytest.mark.parametrize("target", [Y.tolist(), Y.astype(object), Y[:, None], Y.astype("f4")])
def test_losses_take_any_array_of_numbers(target):
    fitted = DRORegressor().fit(X, Y)
    assert fitted.losses(X, target) == pytest.approx(0.5 * (Y - fitted.predict(X)) ** 2, rel=1e-5)


@pytest.mark.parametrize(
    "target, words",
    [
        (WORDS_OF, "y must hold numbers"),
        (np.full(24, np.nan), "y contains 24 NaN"),
        (Y[:3], r"y must have one entry for each of the 24 rows of X, but has shape \(3,\)"),
        (np.c_[Y, Y], "y must have one entry for each"),
        (None, "y must have one entry for each"),
    ],
    ids=["words", "NaN", "short", "two columns", "none"],
)
def test_losses_of_targets_that_are_no_numbers(target, words):
    with pytest.raises(ValueError, match=words):
        DRORegressor().fit(X, Y).losses(X, target)


def test_reports_that_are_refused():
    fitted = DRORegressor(Grouped("cvar")).fit(X, Y, groups=np.arange(24) % 3)
    with pytest.raises(ValueError, match=r"Grouped.* needs to know the group of each row.*groups="):
        fitted.worst_case_report(X, Y)
    for settings, error, words in [
        ({"groups": [1, 2]}, ValueError, "groups must have one label per row"),
        ({"sample_weight": -np.ones(24)}, ValueError, "sample_weight must be nonnegative"),
        ({"tail_fraction": 0}, ValueError, r"tail_fraction must be a number in \(0, 1\]"),
        ({"tail_fraction": 2}, ValueError, r"tail_fraction must be a number in \(0, 1\]"),
        ({"n_rows": -1}, ValueError, "n_rows must"),
        ({"n_rows": 2.5}, TypeError, "n_rows must"),
    ]:
        with pytest.raises(error, match=words):
            fitted.worst_case_report(X, Y, **({"groups": np.arange(24) % 3} | settings))


@pytest.mark.parametrize("kind", [DRORegressor, DROClassifier])
def test_an_unfitted_model_says_so(kind):
    for call in ("predict", "losses", "worst_case_report"):
        with pytest.raises(ValueError, match="not fitted yet"):
            getattr(kind(), call)(X, *([] if call == "predict" else [Y]))


@pytest.mark.parametrize(
    "wrong", [{"tol": -1}, {"solver": "adam"}, {"uncertainty": Grouped()}], ids=str
)
@BOTH
def test_a_fit_that_fails_leaves_the_model_as_it_was(loss, wrong):
    features, y = make("multinomial" if loss == "logistic" else loss, n=30)
    fitted = model(loss).fit(features, y)
    before = {name: value for name, value in vars(fitted).items() if name.endswith("_")}
    settings = fitted.get_params()
    other = WORDS_OF if loss == "logistic" else Y
    with pytest.raises(ValueError):
        fitted.set_params(**wrong).fit(X[:, :2], other)
    after = {name: value for name, value in vars(fitted).items() if name.endswith("_")}
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)
    assert fitted.set_params(**settings).predict(features).shape == (30,)
    # Nor is a model half fitted that never was.
    fresh = model(loss, **wrong)
    with pytest.raises(ValueError):
        fresh.fit(X, other)
    assert not [name for name in vars(fresh) if name.endswith("_")]
    # Warnings that are turned into errors are failures too.
    with pytest.raises(ConvergenceWarning):
        fitted.set_params(max_iter=1, tol=1e-12).fit(X[:, :2], other)
    assert fitted.predict(features).shape == (30,)
