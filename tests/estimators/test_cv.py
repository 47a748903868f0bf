"""The estimators that choose their question by cross-validation, under a cap."""

import functools
import inspect

import joblib
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

import drago
from drago.estimators import candidates as module
from drago.estimators.choice import HeldOut, choose
from drago.scorers import tail_mean

CHOOSING = {"regression": drago.DRORegressorCV, "two": drago.DROClassifierCV}
CHOOSING["three"] = CHOOSING["two"]
LOSSES = {"regression": "squared", "two": "logistic", "three": "multinomial"}
REGS = (1.0, 1e-2)
# As they are given, and as (set, cost, excess).
TRIED = [
    drago.CVaR(0.5),
    {"uncertainty": drago.CVaR(0.2), "shift_cost": 0.1, "baseline": "auto"},
]


def data(task="regression", n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    raw = X @ rng.normal(size=d) + 0.5
    if task == "regression":
        return X, raw + rng.standard_t(3, n)
    if task == "two":
        return X, (raw + rng.logistic(size=n) > 0).astype(float)
    return X, np.digitize(raw + rng.normal(size=n), [-1.0, 1.0])


def weighted_data(task, weighted):
    X, y = data(task)
    rng = np.random.default_rng(2)
    weight = rng.integers(1, 4, y.size).astype(float) if weighted else np.ones(y.size)
    own = rng.exponential(size=y.size)
    return X, y, weight, rng.integers(0, 3, y.size), own, list(KFold(3).split(X))


@functools.cache
def plain_loop(task, weighted):
    """The held-out loss of each row for each level, by the slow way."""
    X, y, weight, _, own, folds = weighted_data(task, weighted)
    levels = [(drago.CVaR(1.0), "auto", None), (drago.CVaR(0.5), "auto", None)]
    levels.append((drago.CVaR(0.2), 0.1, own))
    found = np.empty((6, y.size))
    for k, (level, cost, baseline) in enumerate(levels):
        for j, reg in enumerate(REGS):
            for fit, judge in folds:
                problem = drago.DROProblem(
                    X[fit], y[fit], loss=LOSSES[task], uncertainty=level, shift_cost=cost,
                    l2_reg=reg, sample_weight=weight[fit], fit_intercept=True,
                    baseline=None if baseline is None else baseline[fit],
                )  # fmt: skip
                result = drago.solve(problem, tol=1e-6)
                other = drago.DROProblem(X[judge], y[judge], loss=LOSSES[task], fit_intercept=True)
                found[2 * k + j, judge] = other.losses(result.coef, result.intercept)
    return found


def by_hand(losses, weight, groups, own, criterion):
    p = weight / weight.sum()
    excess = losses - own if "excess" in criterion else losses
    if criterion == "mean":
        return float(p @ losses)
    if criterion.startswith("tail"):
        return tail_mean(excess, p, 0.2)
    return max((p[k] @ excess[k]) / p[k].sum() for k in (groups == g for g in range(3)))


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "criterion", ["mean", "tail", "worst_group", "worst_group_excess", "tail_excess"]
)
@pytest.mark.parametrize("task", ["regression", "two", "three"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_choice_is_that_of_a_plain_loop(task, criterion, weighted):
    X, y, weight, groups, own, folds = weighted_data(task, weighted)
    model = CHOOSING[task](
        TRIED, l2_regs=REGS, criterion=criterion, criterion_tail=0.2, cv=folds, max_mean_loss=1.2
    )
    given = {"sample_weight": weight if weighted else None, "groups": groups, "baseline": own}
    model.fit(X, y, **given)
    losses, found = plain_loop(task, weighted), model.cv_results_
    p = weight / weight.sum()
    # Fits to a relative gap of 1e-4 against 1e-6: the losses of single rows differ by more.
    np.testing.assert_allclose(found["mean_loss"], losses @ p, rtol=0.02)
    values = np.array([by_hand(each, weight, groups, own, criterion) for each in losses])
    size = np.abs(losses).mean()
    np.testing.assert_allclose(found["criterion"], values, rtol=0, atol=0.03 * size)
    reference = int(np.argmin(found["mean_loss"][:2]))
    assert model.reference_index_ == reference
    np.testing.assert_array_equal(
        found["allowed"], found["mean_loss"] <= 1.2 * found["mean_loss"][reference]
    )
    np.testing.assert_array_equal(found["gain"], found["criterion"][reference] - found["criterion"])
    allowed = np.flatnonzero(found["allowed"])
    best = allowed[np.argmin(found["criterion"][allowed])]
    wins = found["gain"][best] > found["gain_error"][best]
    assert model.best_index_ == (best if wins else reference)
    chosen = found["params"][model.best_index_]
    assert model.best_params_ == chosen
    single = {"regression": drago.DRORegressor}.get(task, drago.DROClassifier)(
        chosen["uncertainty"], shift_cost=chosen["shift_cost"], l2_reg=chosen["l2_reg"]
    )
    if chosen["baseline"] is None:
        del given["baseline"]
    single.fit(X, y, **given)
    np.testing.assert_array_equal(model.coef_, single.coef_)


def test_the_error_is_that_of_paired_differences():
    rng = np.random.default_rng(0)
    losses = rng.exponential(size=(3, 50))
    groups = rng.integers(0, 2, 50)
    fold = HeldOut(losses, np.ones(50), np.zeros(50), groups)
    mean_fits = np.array([True, False, False])
    found = choose([fold], mean_fits, "worst_group", 0.1, np.inf)
    worst = groups == np.argmax([losses[0][groups == g].mean() for g in (0, 1)])
    away = losses[0][worst] - losses[1][worst]
    error = away.std(ddof=1) / np.sqrt(worst.sum())
    assert found.gain_error[1] == pytest.approx(error, rel=1e-12)
    assert found.gain_error[0] == 0.0
    found = choose([fold], mean_fits, "mean", 0.1, np.inf)
    assert found.gain_error[2] == pytest.approx((losses[0] - losses[2]).std(ddof=1) / np.sqrt(50))


def test_weight_k_is_k_rows():
    rng = np.random.default_rng(0)
    losses, groups = rng.exponential(size=(2, 50)), rng.integers(0, 2, 50)
    weight = rng.integers(1, 4, 50)
    rows = np.repeat(np.arange(50), weight)
    mean_fits, zeros = np.array([True, False]), np.zeros(rows.size)
    for criterion in ("mean", "worst_group", "tail"):
        one = choose(
            [HeldOut(losses, weight * 1.0, zeros[:50], groups)], mean_fits, criterion, 0.1, 2
        )
        two = choose(
            [HeldOut(losses[:, rows], np.ones(rows.size), zeros, groups[rows])],
            mean_fits, criterion, 0.1, 2,
        )  # fmt: skip
        np.testing.assert_allclose(one.criterion, two.criterion, rtol=1e-12)
        if criterion != "tail":  # whose rows are cut at a quantile
            np.testing.assert_allclose(one.gain_error, two.gain_error, rtol=1e-12)


def test_the_cap_and_the_standard_error():
    """A model that is better in the worst group, by how much and at what price."""
    groups = np.repeat([0, 1], 100)
    base = np.where(groups == 1, 2.0, 1.0)
    noise = np.random.default_rng(0).normal(size=200)

    def chosen(gain, price, spread, cap=1.02):
        other = base - np.where(groups == 1, gain, -price) + spread * noise
        fold = HeldOut(np.array([base, other]), np.ones(200), np.zeros(200), groups)
        return choose([fold], np.array([True, False]), "worst_group", 0.1, cap).best

    assert chosen(0.2, 0.1, 0.0) == 1
    assert chosen(0.2, 0.4, 0.0) == 0  # too dear
    assert chosen(0.2, 0.4, 0.0, cap=1.5) == 1
    assert chosen(0.2, 0.1, 5.0) == 0  # within a standard error
    assert chosen(-0.1, 0.0, 0.0) == 0


def test_found_groups_are_those_of_each_fold():
    """Numbers of groups mean nothing from fold to fold: the worst of each counts."""
    one = HeldOut(np.array([[1.0, 3.0]]), np.ones(2), np.zeros(2), np.array([0, 1]))
    two = HeldOut(np.array([[5.0, 1.0]]), np.ones(2), np.zeros(2), np.array([0, 1]))
    given = choose([one, two], np.array([True]), "worst_group_excess", 0.1, 1.02)
    found = choose([one, two], np.array([True]), "found_group_excess", 0.1, 1.02)
    assert given.criterion[0] == 3.0 and found.criterion[0] == 4.0


# -------------------------------------------------------------------------------- what is tried


def names(model):
    found = model.cv_results_
    return [
        (repr(level), baseline is not None)
        for level, baseline, reg in zip(found["uncertainty"], found["baseline"], found["l2_reg"])
        if reg == model.best_params_["l2_reg"]
    ]


def test_what_auto_tries():
    X, y = data("two")
    groups = np.arange(y.size) % 2
    settings = {"l2_regs": 0.01, "cv": 3}
    plain = [("CVaR(tail_fraction=1.0)", False), ("ESRM(risk_aversion=0.4)", False)]
    plain += [("CVaR(tail_fraction=0.9)", False)]
    excess = [(f"CVaR(tail_fraction={t})", True) for t in (0.5, 0.3, 0.1)]
    one = drago.DROClassifierCV(**settings, baseline=None).fit(X, y)
    assert names(one) == plain and one.criterion_ == "found_group_excess"
    two = drago.DROClassifierCV(**settings).fit(X, y, groups=groups)
    assert names(two)[:6] == plain + excess and two.criterion_ == "worst_group_excess"
    assert [name for name, _ in names(two)[6:]] == ["Grouped(inner=Simplex())"] * 5
    costs = two.cv_results_["shift_cost"]
    # Of plain losses 1 and 0.3 constant models, of the excess 0.3, 0.1 and 0.03.
    np.testing.assert_allclose(np.array(costs[6:]) / costs[6], [1.0, 0.3, 0.3, 0.1, 0.03])


def test_the_defaults_are_those_documented():
    for kind in (drago.DRORegressorCV, drago.DROClassifierCV):
        defaults = {
            name: given.default for name, given in inspect.signature(kind).parameters.items()
        }
        assert defaults["candidates"] == "auto" and defaults["criterion"] == "auto"
        assert defaults["max_mean_loss"] == 1.02 and defaults["baseline"] == "auto"
        said = " ".join(kind.__doc__.split())
        assert '"auto" is "mild" and ``CVaR(0.9)``; with a baseline also ``CVaR`` of 0.5' in said
        assert "``CVaR`` of 0.5, 0.3 and 0.1 of the excess" in said


def test_nothing_is_found_on_noise_but_the_mean_fit():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 4)), rng.normal(size=400)
    model = drago.DRORegressorCV(cv=3).fit(X, y, groups=np.arange(400) % 3)
    found = model.cv_results_
    assert found["mean_loss"][model.best_index_] <= 1.02 * found["mean_loss"].min()
    assert not model.skill_.has_collapsed


def test_a_minority_with_another_law_is_served():
    """It is recognisable by its first feature; no groups are given."""
    rng = np.random.default_rng(0)
    n = 1500
    X, minority = rng.normal(size=(n, 3)), rng.random(n) < 0.12
    X[:, 0] = np.where(minority, 3.0, 0.0) + 0.5 * X[:, 0]
    z = np.where(minority, 2.0 * X[:, 1] + 1.0, 2.0 * X[:, 1] - X[:, 2])
    y = z + 0.3 * rng.normal(size=n)
    settings = {"l2_regs": 1e-3, "cv": 3, "max_mean_loss": 1.2}
    model = drago.DRORegressorCV(**settings).fit(X, y)
    mean = drago.DRORegressor(drago.CVaR(1.0)).fit(X, y)
    assert model.best_index_ != model.reference_index_
    assert model.losses(X, y)[minority].mean() < 0.9 * mean.losses(X, y)[minority].mean()


@pytest.mark.parametrize("baseline", [None, LinearRegression()], ids=str)
def test_baselines(baseline):
    X, y = data()
    model = drago.DRORegressorCV(cv=3, l2_regs=0.01, baseline=baseline).fit(X, y)
    assert (model.baseline_ is None) == (model.best_params_["baseline"] is None)
    assert any(each is not None for each in model.cv_results_["baseline"]) == (baseline is not None)


# ----------------------------------------------------------------------------------- folds


def test_folds_in_parallel_give_the_same():
    X, y = data("two")
    with joblib.parallel_config("threading"):  # processes would spend ten seconds on imports
        one, two = (
            drago.DROClassifierCV("mild", cv=3, n_jobs=jobs, baseline=None).fit(X, y)
            for jobs in (None, 2)
        )
    np.testing.assert_array_equal(one.cv_results_["mean_loss"], two.cv_results_["mean_loss"])
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_the_worst_class_counts_where_no_groups_are_given():
    X, y = data("two", n=200)
    y = np.where(y == 1, "rare", "usual")
    model = drago.DROClassifierCV(
        [], l2_regs=0.01, criterion="worst_group", cv=2, baseline=None
    ).fit(X, y)
    losses = np.empty(200)
    for fit, judge in StratifiedKFold(2).split(X, y):
        inner = drago.DROClassifier(drago.CVaR(1.0), l2_reg=0.01).fit(X[fit], y[fit])
        losses[judge] = inner.losses(X[judge], y[judge])
    expected = max(losses[y == c].mean() for c in ("rare", "usual"))
    np.testing.assert_allclose(model.cv_results_["criterion"][0], expected, rtol=0.03)


def test_groups_reach_the_set_the_splitter_and_the_criterion():
    X, y = data()
    groups = np.repeat(np.arange(6), 20)
    settings = {"candidates": drago.Grouped("cvar"), "baseline": None}
    model = drago.DRORegressorCV(**settings, criterion="worst_group", cv=GroupKFold(3))
    model.fit(X, y, groups=groups)  # a splitter that needs groups, and no warning from others
    drago.DRORegressorCV(**settings, cv=3).fit(X, y, groups=groups)
    assert len(model.cv_results_["params"]) == 10
    assert model.cv_results_["split2_mean_loss"].shape == (10,)


def test_the_results_are_a_frame():
    pandas = pytest.importorskip("pandas")
    X, y = data()
    model = drago.DRORegressorCV("mild", cv=2, baseline=None).fit(X, y)
    table = pandas.DataFrame(model.cv_results_)
    assert len(table) == 10 and {"l2_reg", "mean_loss", "allowed"} <= set(table.columns)
    assert table.loc[model.best_index_, "params"] == model.best_params_


@pytest.mark.parametrize("settings, message", [
    ({"criterion": "best"}, "criterion must be one of"),
    ({"criterion_tail": 0.0}, "criterion_tail must be"),
    ({"max_mean_loss": 0.9}, r"max_mean_loss must be a number in \[1"),
    ({"criterion": "worst_group"}, "give groups= to fit"),
    ({"candidates": {"level": 0.5}}, "an entry of candidates must be"),
    ({"candidates": "worst"}, "uncertainty must be one of .* Did you mean 'worst_group'"),
    ({"candidates": "excess_tail", "baseline": None}, "needs a baseline"),
    ({"candidates": {"uncertainty": "cvar", "shift_cost": -1.0}}, "shift_cost of a candidate"),
    ({"l2_regs": ()}, "l2_regs must hold"),
    ({"baseline": "trees"}, "baseline must be None, 'auto' or an estimator"),
])  # fmt: skip
def test_bad_settings_are_named(settings, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        drago.DRORegressorCV(**settings).fit(X, y)


def test_held_out_rows_count_by_their_sample_weights_alone():
    X, y = data("two")
    plain, weighted = (
        drago.DROClassifierCV(
            [], l2_regs=1e6, cv=3, criterion="mean", class_weight=weights, baseline=None
        ).fit(X, y)
        for weights in (None, {0: 1, 1: 50})
    )
    # With such an l2_reg a model is its intercept: the odds of the weighted classes.
    odds = 50 * y.mean() / (1 - y.mean())
    expected = y.mean() * np.log1p(1 / odds) + (1 - y.mean()) * np.log1p(odds)
    np.testing.assert_allclose(weighted.cv_results_["mean_loss"][0], expected, rtol=0.05)
    assert (plain.cv_results_["mean_loss"] < 0.75).all()


def test_verbose_shows_the_folds(capsys):
    X, y = data("two")
    settings = {"cv": 3, "baseline": None}
    drago.DROClassifierCV("mild", **settings, verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [f"fold {k} of 3" for k in (1, 2, 3)]
    drago.DROClassifierCV("mild", **settings).fit(X, y)
    assert capsys.readouterr().out == ""


def test_a_fold_without_a_class_is_named():
    X, y = data("two", n=20)
    y[:10], y[10:] = 0.0, 1.0
    with pytest.raises(ValueError, match="a fold hold no row of class"):
        drago.DROClassifierCV(cv=KFold(2), baseline=None).fit(X, y)


def test_an_interrupt_keeps_the_folds_that_were_done(monkeypatch):
    X, y = data("two")
    whole, calls = module.Fold.__call__, []

    def once(self, *rows):
        calls.append(rows)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return whole(self, *rows)

    monkeypatch.setattr(module.Fold, "__call__", once)
    model = drago.DROClassifierCV("mild", cv=5, baseline=None)
    with pytest.raises(KeyboardInterrupt, match="rests on the folds before"):
        model.fit(X, y)
    assert "split1_mean_loss" in model.cv_results_ and "split2_mean_loss" not in model.cv_results_
    assert model.predict(X).shape == y.shape and model.result_.status == "optimal"


def test_baselines_of_a_fold_know_nothing_of_its_other_rows(monkeypatch):
    """What is attainable on training rows comes from models of training rows."""
    X, y = data(n=60)
    seen = []

    class Spy(LinearRegression):
        def fit(self, X, y, sample_weight=None):
            seen.append(y.copy())
            return super().fit(X, y)

    folds = list(KFold(3).split(X))
    drago.DRORegressorCV("excess_tail", cv=folds, l2_regs=0.1, baseline=Spy()).fit(X, y)
    # Five models for all rows, which judge the rows held out; then three for each fold.
    assert len(seen) == 5 + 9
    for k, (_, test) in enumerate(folds):
        for values in seen[5 + 3 * k : 8 + 3 * k]:
            assert np.intersect1d(values, y[test]).size == 0


# ------------------------------------------------------------------------- splits of one's own


def halves(n, kind):
    """Two folds: the even rows and the odd ones, in the ways that scikit-learn takes them."""
    even, odd = np.arange(0, n, 2), np.arange(1, n, 2)
    pairs = [(even, odd), (odd, even)]
    if kind == "lists":
        return [(train.tolist(), test.tolist()) for train, test in pairs]
    if kind == "masks":
        return [tuple(np.isin(np.arange(n), rows) for rows in pair) for pair in pairs]
    return (pair for pair in pairs) if kind == "generator" else pairs


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["arrays", "lists", "masks", "generator"])
@pytest.mark.parametrize("task", ["regression", "two"])
def test_splits_may_be_given(task, kind):
    X, y = data(task, n=60)
    settings = {"candidates": drago.CVaR(0.3), "l2_regs": 0.1, "baseline": None}
    expected = CHOOSING[task](**settings, cv=halves(len(y), "arrays")).fit(X, y)
    model = CHOOSING[task](**settings, cv=halves(len(y), kind)).fit(X, y)
    for name in ("split0_mean_loss", "split1_mean_loss", "criterion"):
        np.testing.assert_array_equal(model.cv_results_[name], expected.cv_results_[name])
        assert model.cv_results_[name].shape == (2,)
    if kind == "generator":  # it gives its splits once
        with pytest.raises(ValueError, match=r"gives no splits; .*a generator gives them once"):
            model.fit(X, y)
        assert model.best_params_ == expected.best_params_  # the model is still there


@pytest.mark.parametrize(
    ("cv", "what"),
    [
        ([], r"cv=\[\] gives no splits"),
        ([([0, 1, 2], [])], "at least one of each"),
        ([([], [0, 1])], "at least one of each"),
        ([([0.5, 1.0], [2])], "by their numbers"),
        ([([[0, 1]], [2])], "by their numbers"),
        ([(["a"], [2])], "by their numbers"),
        ([([0, 1, 2], [10**6])], "rows up to 1000000, but there are"),
        ([(np.ones(3, bool), [0])], "by their numbers"),
    ],
)
@pytest.mark.parametrize("task", ["regression", "two"])
def test_splits_that_are_none_are_named(task, cv, what):
    X, y = data(task, n=60)
    with pytest.raises(ValueError, match=what):
        CHOOSING[task](cv=cv, baseline=None).fit(X, y)


def test_a_single_row_does_not_decide():
    """A group of one row has no standard error, and is not called the worst."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(300, 3)), rng.normal(size=300)
        y[-1] = 10.0
        groups = np.repeat([0, 1, 2], [150, 149, 1])
        found = drago.DRORegressorCV(cv=3, baseline=None).fit(X, y, groups=groups)
        assert np.isfinite(found.cv_results_["gain_error"]).all()
        assert abs(found.cv_results_["criterion"]).max() < 10.0  # its loss is about 50


def test_the_unit_of_weights_does_not_matter():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(200, 3)), rng.normal(size=200)
        y[:20] += 3.0 * X[:20, 0]
        weight = rng.uniform(0.5, 1.5, 200)
        one, many = (
            drago.DRORegressorCV(criterion="tail_excess", cv=3, baseline=None).fit(
                X, y, sample_weight=unit * weight
            )
            for unit in (1.0, 1000.0)
        )
        np.testing.assert_allclose(
            one.cv_results_["gain_error"], many.cv_results_["gain_error"], rtol=1e-6
        )
        assert one.best_index_ == many.best_index_
