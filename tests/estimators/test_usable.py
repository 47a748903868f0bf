"""Answers that people can use: defaults, excess losses, groups from columns, the collapse."""

import inspect
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import drago
from drago import CollapseWarning, CVaR, DROClassifier, DRORegressor, Grouped
from drago.estimators.baseline import folds, out_of_fold_losses
from drago.estimators.collapse import MOST_ROWS, Skill
from drago.estimators.presets import PRESETS
from drago.terms.losses import as_loss

pd = pytest.importorskip("pandas")


def noisy(n=2000, d=5, seed=0):
    """Labels with plenty of noise: the tail of the losses is luck."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    z = X @ np.r_[1.0, -1.0, 0.5, np.zeros(d - 3)]
    return X, np.where(rng.random(n) < 1 / (1 + np.exp(-z)), "yes", "no")


def frame(n=600, seed=0):
    X, y = noisy(n, 3, seed)
    rng = np.random.default_rng(seed + 1)
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    table["race"] = rng.choice(["black", "white", "asian"], n, p=[0.2, 0.75, 0.05])
    table["sex"] = rng.choice(["F", "M"], n)
    return table, y


# ---------------------------------------------------------------------------------- defaults


@pytest.mark.parametrize("kind", [DRORegressor, DROClassifier])
def test_the_default_is_what_the_docstring_says(kind):
    default = inspect.signature(kind).parameters["uncertainty"].default
    assert default == "mild" and PRESETS[default].make() == drago.ESRM(0.4)
    assert '"mild" is ``ESRM(0.4)``' in kind.__doc__
    # Of infinitely many rows, the weight of the worst and of the best one: 1.2 and 0.8.
    r = 0.4
    assert round(r / (1 - np.exp(-r)), 1) == 1.2
    assert round(r * np.exp(-r) / (1 - np.exp(-r)), 1) == 0.8


def test_presets_are_sets_and_what_goes_with_them():
    X, y = noisy(400)
    fitted = DROClassifier("excess_tail").fit(X, y)
    assert fitted.uncertainty_ == CVaR(0.2) and fitted.baseline_.shape == (400,)
    groups = X[:, 3] > 1
    fitted = DROClassifier("worst_group").fit(X, y, groups=groups)
    assert fitted.uncertainty_ == Grouped(drago.Simplex()) and fitted.baseline_ is None
    message = "must be one of 'mild', .*'cvar', .* but 'CVAR' was given. Did you mean 'cvar'?"
    with pytest.raises(ValueError, match=message):
        DROClassifier("CVAR").fit(X, y)
    with pytest.raises(ValueError, match="needs to know the group"):
        DROClassifier("worst_group").fit(X, y)


def test_the_price_of_groups_is_that_of_a_constant_model():
    X, y = noisy(400)
    groups, p = X[:, 3] > 1, np.mean(y == "yes")
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    for kind, share in ((Grouped("simplex"), 1.0), ("cvar", 0.1)):
        fitted = DROClassifier(kind).fit(X, y, groups=groups)
        assert fitted.shift_cost_ == pytest.approx(share * entropy, rel=1e-9)
    fitted = DROClassifier("worst_group", baseline="auto").fit(X, y, groups=groups)
    assert fitted.shift_cost_ == pytest.approx(0.1 * entropy, rel=1e-9)


# ---------------------------------------------------------------------------------- baselines


def test_a_baseline_cures_the_collapse():
    X, y = noisy()
    mean = DROClassifier(CVaR(1.0)).fit(X, y).losses(X, y).mean()
    with pytest.warns(CollapseWarning, match="Try baseline='auto'"):
        raw = DROClassifier("cvar").fit(X, y)
    for baseline in ("auto", LogisticRegression()):
        excess = DROClassifier("cvar", baseline=baseline).fit(X, y)
        assert excess.losses(X, y).mean() < 1.01 * mean < 1.2 * raw.losses(X, y).mean()


def test_the_attainable_is_out_of_fold():
    """Of a model that knows its training rows by heart, on targets that are pure noise."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(500, 4)), rng.normal(size=500)
    model = HistGradientBoostingRegressor(max_iter=200, min_samples_leaf=2, learning_rate=0.5)
    inside = 0.5 * (model.fit(X, y).predict(X) - y) ** 2
    outside = DRORegressor("cvar", baseline=model).fit(X, y).baseline_
    assert inside.mean() < 0.1 < 0.5 * y.var() < outside.mean()


@pytest.mark.parametrize("task", ["squared", "logistic", "multinomial"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_leaks_on_noise(task, seed):
    """No better than the constant model by more than two standard errors."""
    rng = np.random.default_rng(seed)
    n, loss = 600, as_loss(task)
    X = rng.normal(size=(n, 4))
    if task == "squared":
        y = rng.standard_t(4, size=n)
        constant = np.full((n, 1), y.mean())
    else:
        shares = np.array([0.7, 0.3] if task == "logistic" else [0.5, 0.3, 0.2])
        y = rng.choice(shares.size, n, p=shares).astype(float if task == "logistic" else int)
        shares = np.bincount(y.astype(int)) / n
        constant = np.tile(np.log(shares), (n, 1))
        constant = constant if shares.size > 2 else constant[:, 1:] - constant[:, :1]
    gain = loss.evaluate(y, np.ascontiguousarray(constant))[0]
    gain = gain - out_of_fold_losses("auto", X, y, loss, seed=seed)
    assert gain.mean() <= 2.0 * gain.std() / np.sqrt(n)


def test_folds_hold_all_classes_and_groups():
    rng = np.random.default_rng(0)
    y, groups = rng.integers(0, 2, 100).astype(float), rng.integers(0, 3, 100)
    splits = folds(y, True, groups, 0)
    assert len(splits) == 5
    for train, test in splits:
        assert np.intersect1d(train, test).size == 0
        assert len({*zip(y[test], groups[test])}) == 6
    rare = np.zeros(50)
    rare[:3] = 1.0
    assert len(folds(rare, True, None, 0)) == 3
    assert len(folds(rng.normal(size=50), False, None, 0)) == 5
    everyone = np.sort(np.concatenate([test for _, test in folds(y, True, groups, 0)]))
    np.testing.assert_array_equal(everyone, np.arange(100))


def test_numbers_of_ones_own_win():
    X, y = noisy(300)
    own = np.random.default_rng(0).exponential(size=300)
    fitted = DROClassifier("cvar", baseline="auto").fit(X, y, baseline=own)
    np.testing.assert_array_equal(fitted.baseline_, own)
    problem = drago.DROProblem(
        X, (y == "yes") * 1.0, loss="logistic", uncertainty=CVaR(0.1), l2_reg=1e-3,
        fit_intercept=True, baseline=own,
    )  # fmt: skip
    assert drago.certify(problem, fitted.coef_[0], fitted.intercept_[0]).rel_gap <= 2e-4


def test_copies_with_other_baselines_stay_apart():
    X, y = noisy(60)
    twice, labels = np.vstack([X, X]), np.r_[y, y]
    own = np.random.default_rng(0).exponential(size=120)
    apart = DROClassifier("cvar").fit(twice, labels, baseline=own)
    same = DROClassifier("cvar").fit(twice, labels, baseline=np.r_[own[:60], own[:60]])
    once = DROClassifier("cvar").fit(X, y, baseline=own[:60])
    np.testing.assert_allclose(same.coef_, once.coef_, rtol=1e-9)
    assert not np.allclose(apart.coef_, once.coef_, rtol=1e-3)


def test_weights_classes_and_sparse_features():
    X, y = noisy(300)
    three = np.where(X[:, 4] > 1, "perhaps", y)
    weight = np.random.default_rng(0).integers(0, 3, 300)
    for features in (X, sp.csr_array(X), X.astype(np.float32)):
        fitted = DROClassifier("excess_tail").fit(features, three, sample_weight=weight)
        assert fitted.baseline_.shape == (300,) and np.isfinite(fitted.baseline_).all()
        assert fitted.dual_weights_[weight == 0].sum() == 0


@pytest.mark.parametrize("kind, wrong, words", [
    (DRORegressor, "best", "None, 'auto' or an estimator"),
    (DRORegressor, np.ones(300), "go to fit"),
    (DRORegressor, LogisticRegression(), "must be a regressor"),
    (DROClassifier, LinearRegression(), "classifier with predict_proba"),
])  # fmt: skip
def test_what_is_no_baseline_is_refused(kind, wrong, words):
    X, y = noisy(300)
    with pytest.raises(ValueError, match=words):
        kind("cvar", baseline=wrong).fit(X, y if kind is DROClassifier else X[:, 0])


def test_a_report_of_excess_losses():
    X, y = noisy(400)
    fitted = DROClassifier("excess_tail").fit(X, y)
    report = fitted.worst_case_report(X, y, baseline=fitted.baseline_)
    # Within the gap of the fit: chi2 makes the weights a Lipschitz function of the losses.
    away = np.abs(report.dual_weights - fitted.dual_weights_).sum()
    with pytest.warns(UserWarning, match="plain losses"):
        plain = fitted.worst_case_report(X, y)
    assert away < 0.1 < np.abs(plain.dual_weights - report.dual_weights).sum()


# ------------------------------------------------------------------------------------ collapse


def test_skill_by_hand():
    X, y = noisy(500)
    fitted = DROClassifier().fit(X, y)
    p = np.mean(y == "yes")
    entropy = -p * np.log(p) - (1 - p) * np.log(1 - p)
    mean = DROClassifier(CVaR(1.0), tol=1e-8).fit(X, y)
    assert fitted.skill_.fit == pytest.approx(1 - fitted.losses(X, y).mean() / entropy, rel=1e-9)
    # The mean fit is made to a relative gap of 1e-3.
    expected = 1 - mean.losses(X, y).mean() / entropy
    assert fitted.skill_.mean_fit == pytest.approx(expected, rel=2e-3)
    assert not fitted.skill_.has_collapsed


@pytest.mark.parametrize("settings", [
    {}, {"fit_intercept": False}, {"l2_reg": 0.0}, {"l2_reg": 0.5},
], ids=str)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*certified relative gap")  # without a penalty
def test_the_mean_fit_of_a_squared_loss(settings):
    """Features of all sizes, far from 0, and one that is there twice."""
    rng = np.random.default_rng(0)
    X = 5.0 + rng.normal(size=(300, 4)) * [1e-5, 1.0, 1e5, 1.0]
    X[:, 3] = X[:, 1]
    y = X @ [2e4, 0.3, 2e-6, 0.0] + rng.normal(size=300)
    fitted = DRORegressor(CVaR(0.1), **settings).fit(X, y)
    # By least squares: of the residuals, and of the coefficients in the units of the penalty.
    model = {"fit_intercept": True, "l2_reg": 1e-3, **settings}
    wide = np.hstack([X, np.full((300, 1), float(model["fit_intercept"]))])
    ridge = np.sqrt(300 * model["l2_reg"]) * np.eye(4, 5)
    unit = np.linalg.norm(np.vstack([wide, ridge]), axis=0)
    unit[unit == 0] = 1.0
    rows = np.vstack([wide, ridge]) / unit
    theta = np.linalg.lstsq(rows, np.append(y, np.zeros(4)), rcond=1e-12)[0] / unit
    expected = 1.0 - np.mean((y - wide @ theta) ** 2) / y.var()
    assert fitted.skill_.mean_fit == pytest.approx(expected, rel=1e-6)


def test_where_half_of_all_skill_is_there_no_mean_fit_is_made():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    fitted = DRORegressor().fit(X, X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=200))
    assert fitted.skill_.fit > 0.9 and np.isnan(fitted.skill_.mean_fit)


@pytest.mark.parametrize("skill, collapsed", [
    (Skill(0.1, 0.3), True), (Skill(0.2, 0.3), False), (Skill(-0.1, 0.3), True),
    (Skill(-0.1, -0.05), False), (Skill(0.7, np.nan), False), (Skill(np.nan, np.nan), False),
])  # fmt: skip
def test_what_a_collapse_is(skill, collapsed):
    assert skill.has_collapsed == collapsed


def test_many_rows_are_judged_by_some():
    X, y = noisy(3 * MOST_ROWS, 3)
    with pytest.warns(CollapseWarning):
        fitted = DROClassifier("cvar").fit(X, y)
    mean = DROClassifier(CVaR(1.0)).fit(X, y).skill_
    # Of 10,000 rows out of 30,000: a few standard errors of a mean of losses.
    assert fitted.skill_.mean_fit == pytest.approx(mean.fit, abs=0.02)


def test_settings_under_which_the_skill_is_known():
    X, _ = noisy(300)
    target = X @ [0.5, 1.0, 0.0, 0.0, 0.0] + np.random.default_rng(0).normal(size=300)
    for settings in (
        {"fit_intercept": False}, {"constraint": drago.NonNegative()},
        {"constraint": drago.L2Ball(0.5)}, {"loss": "huber"}, {"l2_reg": 0.0},
    ):  # fmt: skip
        assert np.isfinite(DRORegressor(**settings).fit(X, target).skill_.fit)
    constant = DRORegressor().fit(X, np.zeros(300))
    assert np.isnan(constant.skill_.fit)
    own = DRORegressor(loss=lambda y, raw: (0.5 * (raw - y) ** 2, raw - y)).fit(X, target)
    assert np.isnan(own.skill_.fit)


# -------------------------------------------------------------------------------------- groups


def test_groups_are_columns_of_a_frame():
    table, y = frame()
    features, groups = table[["a", "b", "c"]], table["race"]
    named = DROClassifier("worst_group", group_columns="race").fit(table.drop(columns="sex"), y)
    given = DROClassifier("worst_group").fit(features, y, groups=groups)
    assert named.feature_names_in_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(named.coef_, given.coef_)
    # With the column or without it.
    np.testing.assert_array_equal(named.predict(table.drop(columns="sex")), named.predict(features))
    report = named.worst_case_report(table.drop(columns="sex"), y)
    assert set(report.groups["group"]) == {"asian", "black", "white"}


def test_several_columns_are_crossed_and_small_groups_merged():
    table, y = frame()
    with pytest.warns(UserWarning, match=r"fewer than 3% of the 600 rows.*'asian, F' \(\d+\)"):
        fitted = DROClassifier("worst_group", group_columns=["race", "sex"]).fit(table, y)
        labels = drago.cross_groups(table[["race", "sex"]])
        same = DROClassifier("worst_group").fit(
            table[["a", "b", "c"]], y, groups=table[["race", "sex"]]
        )
    assert set(labels) == {"black, F", "black, M", "white, F", "white, M", "other"}
    np.testing.assert_array_equal(fitted.coef_, same.coef_)
    by_hand = DROClassifier("worst_group").fit(table[["a", "b", "c"]], y, groups=labels)
    np.testing.assert_array_equal(fitted.coef_, by_hand.coef_)


def test_crossing_by_hand():
    columns = {"x": [1, 1, 2, 2], "y": ["u", "v", "u", "u"]}
    expected = ["1, u", "1, v", "2, u", "2, u"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (columns, pd.DataFrame(columns), np.array([*columns.values()], object).T):
            assert drago.cross_groups(given).tolist() == expected
    with pytest.warns(UserWarning, match="merged"):
        assert drago.cross_groups(columns, min_share=0.4).tolist() == ["other"] * 2 + ["2, u"] * 2
    for wrong in ({}, {"x": [1, 2], "y": [1]}, 3):
        with pytest.raises(ValueError, match="columns must be a frame"):
            drago.cross_groups(wrong)


def test_groups_in_searches_and_pipelines():
    """The shortest way: the column goes through, and the estimator takes it out."""
    table, y = frame(300)
    table = table.drop(columns="sex")
    model = DROClassifier("worst_group", group_columns="race")
    search = GridSearchCV(model, {"shift_cost": [0.1, 1.0]}, cv=3).fit(table, y)
    assert search.best_estimator_.feature_names_in_.tolist() == ["a", "b", "c"]
    from sklearn.compose import make_column_transformer

    scale = make_column_transformer(
        (StandardScaler(), ["a", "b", "c"]), ("passthrough", ["race"]),
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")  # fmt: skip
    pipe = make_pipeline(scale, model).fit(table, y)
    assert pipe.predict(table).shape == (300,)
    assert pipe[-1].coef_.shape == (1, 3)


@pytest.mark.parametrize("columns, X, words", [
    ("race", np.ones((5, 2)), "X is a ndarray and has no columns"),
    ("rac", None, "'rac'.* is none of"),
    (["race", "se"], None, "'se'.* is none of"),
    ([], None, "must name columns"),
])  # fmt: skip
def test_wrong_columns_are_refused(columns, X, words):
    table, y = frame(50)
    X = table if X is None else X
    with pytest.raises(ValueError, match=words):
        DROClassifier(group_columns=columns).fit(X, y[: len(X)])
    with pytest.raises(ValueError, match="give one of them"):
        DROClassifier(group_columns="race").fit(table, y, groups=y)


def test_a_baseline_that_says_nothing():
    """The constant model as a baseline leaves a number for each class, and no more."""
    X, y = noisy(400)
    fitted = DROClassifier("cvar", baseline=DummyClassifier(strategy="prior")).fit(X, y)
    assert np.unique(fitted.baseline_[y == "yes"]).size <= 5


# ------------------------------------------------------------------------- what users trip over


def test_a_preset_keeps_its_baseline_where_its_level_is_set():
    X, y = noisy(200)
    fitted = DROClassifier("excess_tail").set_params(uncertainty__tail_fraction=0.3).fit(X, y)
    assert fitted.uncertainty_ == CVaR(0.3) and fitted.baseline_ is not None
    plain = DROClassifier("excess_tail").set_params(uncertainty__tail_fraction=0.3, baseline=None)
    assert plain.baseline is None


def test_a_report_without_the_baseline_of_the_fit_warns():
    X, y = noisy(200)
    fitted = DROClassifier("excess_tail").fit(X, y)
    with pytest.warns(UserWarning, match="baseline_ for the training rows"):
        fitted.worst_case_report(X, y)


def test_groups_that_are_needed_or_named():
    X, y = noisy(60)
    for uncertainty in ("worst_group", drago.Grouped(CVaR(0.5))):
        with pytest.raises(ValueError, match=r"give groups= to fit .*group_columns="):
            DROClassifier(uncertainty).fit(X, y)
    with pytest.raises(ValueError, match="group_columns='town' to the estimator"):
        DROClassifier("worst_group").fit(X, y, groups="town")


def test_a_fit_that_did_not_converge_has_not_collapsed():
    X, y = noisy(500)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fitted = DROClassifier("cvar", max_iter=1, tol=1e-12).fit(X, y)
    assert fitted.result_.status != "optimal" and fitted.skill_.has_collapsed
    assert not [each for each in told if issubclass(each.category, CollapseWarning)]


def test_a_baseline_needs_two_rows_of_each_class():
    X = np.arange(4.0).reshape(-1, 1)
    message = r"at least 2 rows of each class .* \{0: 1, 1: 3\}.* in place of 'excess_tail'"
    with pytest.raises(ValueError, match=message):
        DROClassifier("excess_tail").fit(X, ["no", "yes", "yes", "yes"])
