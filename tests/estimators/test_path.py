"""`robust_path`, and the estimators that choose their levels by cross-validation."""

import functools
import itertools

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

import drago
from drago.scorers import tail_mean, worst_group_mean

TAILS, COSTS, REGS = (0.2, 1.0, 0.5), ("auto", 0.1), (1e-3, 1.0)


def data(task="regression", n=120, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    raw = X @ rng.normal(size=d) + 0.5
    if task == "regression":
        return X, raw + rng.standard_t(3, n)
    if task == "two":
        return X, (raw + rng.logistic(size=n) > 0).astype(float)
    return X, np.digitize(raw + rng.normal(size=n), [-1.0, 1.0])


# ------------------------------------------------------------------------------ robust_path


@pytest.mark.thinned(2)
@pytest.mark.parametrize("loss, task", [("squared", "regression"), ("multinomial", "three")])
@pytest.mark.parametrize("sparse", [False, True])
def test_each_model_is_the_one_solved_by_itself(loss, task, sparse):
    X, y = data(task)
    X = sp.csr_array(X) if sparse else X
    weight = np.random.default_rng(1).integers(0, 4, y.size)
    path = drago.robust_path(
        X,
        y,
        tail_fractions=TAILS,
        shift_costs=COSTS,
        l2_regs=REGS,
        loss=loss,
        sample_weight=weight,
        tol=1e-9,
    )
    assert len(path) == 12
    levels = list(itertools.product(TAILS, COSTS, REGS))
    for k, (tail, cost, reg) in enumerate(levels):
        problem = drago.DROProblem(
            X,
            y,
            loss=loss,
            uncertainty=drago.CVaR(tail),
            shift_cost=cost,
            l2_reg=reg,
            sample_weight=weight,
            fit_intercept=True,
        )
        assert (path.tail_fractions[k], path.l2_regs[k]) == (tail, reg)
        assert path.shift_costs[k] == problem.shift_cost
        result = path.results[k]
        np.testing.assert_array_equal(result.coef, path.coefs[k])
        np.testing.assert_array_equal(result.intercept, path.intercepts[k])
        assert result.status == "optimal"
        assert drago.certify(problem, path.coefs[k], path.intercepts[k]).rel_gap <= 2e-9
        # Weights are those of all rows that were given.
        assert result.dual_weights.shape == y.shape
        assert (result.dual_weights[weight == 0] == 0).all()
        assert result.dual_weights.sum() == pytest.approx(1.0)


def test_other_sets_vary_by_shift_cost_and_l2_reg():
    X, y = data()
    path = drago.robust_path(X, y, uncertainty="kl_ball", shift_costs=[0.1, 1.0], l2_regs=0.1)
    assert np.isnan(path.tail_fractions).all()
    np.testing.assert_array_equal(path.shift_costs, [0.1, 1.0])
    assert path.coefs.shape == (2, 4)


def test_levels_of_groups():
    X, y = data()
    groups = np.arange(y.size) % 5
    path = drago.robust_path(
        X, y, tail_fractions=[1.0, 0.4], uncertainty=drago.Grouped("cvar"), groups=groups
    )
    problem = drago.DROProblem(
        X, y, uncertainty=drago.Grouped(drago.CVaR(0.4)), groups=groups, fit_intercept=True
    )
    assert drago.certify(problem, path.coefs[1], path.intercepts[1]).rel_gap <= 2e-4


def test_neighbours_save_passes():
    """On a fine grid, against the same models from nothing."""
    X, y = data("two", n=2000, d=20)
    regs = np.geomspace(1.0, 1e-3, 10)
    path = drago.robust_path(X, y, l2_regs=regs, loss="logistic", solver="lbfgs")
    alone = 0.0
    for reg in regs:
        problem = drago.DROProblem(X, y, loss="logistic", l2_reg=reg, fit_intercept=True)
        alone += drago.solve(problem, "lbfgs").n_passes
    # Three quarters, of some ten passes a model; rounding may cost one of them an iteration more.
    assert sum(result.n_passes for result in path.results) < 0.9 * alone


def test_a_time_limit_is_for_all_of_it():
    X, y = data(n=2000, d=30)
    with pytest.warns(ConvergenceWarning, match="time_limit"):
        path = drago.robust_path(X, y, tail_fractions=TAILS, time_limit=0.0)
    assert np.isfinite(path.coefs).all()


def test_an_interrupt_is_passed_on():
    X, y = data()

    def interrupted(y, raw):
        interrupted.calls += 1
        if interrupted.calls == 6:
            raise KeyboardInterrupt
        return 0.5 * (raw - y) ** 2, raw - y

    interrupted.calls = 0
    with pytest.warns(ConvergenceWarning), pytest.raises(KeyboardInterrupt, match="interrupted"):
        drago.robust_path(X, y, l2_regs=REGS, loss=interrupted, shift_costs=0.1)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"tail_fractions": []}, "tail_fractions must hold at least one value"),
        ({"tail_fractions": [0.0]}, "tail_fraction must be a number in"),
        ({"l2_regs": [-1.0]}, "an entry of l2_regs must be"),
        ({"shift_costs": ["some"]}, "an entry of shift_costs must be"),
        ({"l2_regs": ["auto"]}, "an entry of l2_regs must be"),
        ({"tail_fractions": [0.5], "uncertainty": "kl_ball"}, "has no tail fraction"),
    ],
)
def test_bad_levels_are_named(settings, message):
    X, y = data()
    with pytest.raises((ValueError, TypeError), match=message):
        drago.robust_path(X, y, **settings)


# ------------------------------------------------------------------------- chosen by folds


CHOOSING = {"regression": drago.DRORegressorCV, "two": drago.DROClassifierCV}
CHOOSING["three"] = CHOOSING["two"]
LOSSES = {"regression": "squared", "two": "logistic", "three": "multinomial"}


LEVELS = ((0.2, 1.0), ("auto", 0.1), (1e-2, 1.0))


def weighted_data(task, weighted):
    X, y = data(task)
    rng = np.random.default_rng(2)
    weight = rng.integers(1, 4, y.size).astype(float) if weighted else np.ones(y.size)
    return X, y, weight, rng.integers(0, 3, y.size), list(KFold(3).split(X))


@functools.cache
def losses_of_a_plain_loop(task, weighted):
    """The held-out losses of each of the levels, fold by fold; the same for every criterion."""
    X, y, weight, _, folds = weighted_data(task, weighted)
    found = []
    for tail, cost, reg in itertools.product(*LEVELS):
        found.append([])
        for fit, judge in folds:
            problem = drago.DROProblem(
                X[fit],
                y[fit],
                loss=LOSSES[task],
                uncertainty=drago.CVaR(tail),
                shift_cost=cost,
                l2_reg=reg,
                sample_weight=weight[fit],
                fit_intercept=True,
            )
            result = drago.solve(problem, tol=1e-6)
            other = drago.DROProblem(X[judge], y[judge], loss=LOSSES[task], fit_intercept=True)
            found[-1].append(other.losses(result.coef, result.intercept))
    return found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("criterion", ["mean", "tail", "worst_group"])
@pytest.mark.parametrize("task", ["regression", "two", "three"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_choice_is_that_of_a_plain_loop(task, criterion, weighted):
    X, y, weight, groups, folds = weighted_data(task, weighted)
    model = CHOOSING[task](*LEVELS, criterion=criterion, criterion_tail=0.2, cv=folds)
    model.fit(X, y, sample_weight=weight if weighted else None, groups=groups)
    held_out = []
    for by_fold in losses_of_a_plain_loop(task, weighted):
        values = []
        for losses, (_, judge) in zip(by_fold, folds):
            p = weight[judge] / weight[judge].sum()
            if criterion == "worst_group":
                of = [groups[judge] == g for g in range(3)]
                values.append(max((p[k] @ losses[k]) / p[k].sum() for k in of))
            else:
                values.append(tail_mean(losses, p, 0.2 if criterion == "tail" else 1.0))
        held_out.append(values)
    np.testing.assert_allclose(model.cv_results_["loss"], held_out, rtol=0.03)
    best = model.best_index_
    assert np.mean(held_out[best]) <= 1.01 * np.mean(held_out, axis=1).min()
    chosen = model.cv_results_["params"][best]
    assert model.best_params_ == chosen
    single = {"regression": drago.DRORegressor}.get(task, drago.DROClassifier)(
        drago.CVaR(chosen["tail_fraction"]),
        shift_cost=chosen["shift_cost"],
        l2_reg=chosen["l2_reg"],
    ).fit(X, y, sample_weight=weight if weighted else None, groups=groups)
    np.testing.assert_array_equal(model.coef_, single.coef_)
    np.testing.assert_array_equal(model.dual_weights_, single.dual_weights_)
    assert str(model.worst_case_report(X, y)) == str(single.worst_case_report(X, y))


def test_folds_in_parallel_give_the_same():
    X, y = data("two")
    with joblib.parallel_config("threading"):  # processes would spend ten seconds on imports
        one, two = (
            drago.DROClassifierCV((0.5, 0.2), cv=3, n_jobs=jobs).fit(X, y) for jobs in (None, 2)
        )
    np.testing.assert_array_equal(one.cv_results_["loss"], two.cv_results_["loss"])
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_the_worst_class_counts_where_no_groups_are_given():
    X, y = data("two", n=200)
    y = np.where(y == 1, "rare", "usual")
    model = drago.DROClassifierCV((1.0, 0.2), l2_regs=0.01, criterion="worst_group", cv=2)
    model.fit(X, y)
    folds = StratifiedKFold(2).split(X, y)
    expected = []
    for fit, judge in folds:
        inner = drago.DROClassifier(drago.CVaR(1.0), l2_reg=0.01).fit(X[fit], y[fit])
        losses = inner.losses(X[judge], y[judge])
        expected.append(max(losses[y[judge] == c].mean() for c in ("rare", "usual")))
    np.testing.assert_allclose(model.cv_results_["loss"][0], expected, rtol=0.03)


def test_groups_reach_the_set_the_splitter_and_the_criterion():
    X, y = data()
    groups = np.repeat(np.arange(6), 20)
    model = drago.DRORegressorCV(
        (1.0, 0.5), uncertainty=drago.Grouped("cvar"), criterion="worst_group", cv=GroupKFold(3)
    )
    model.fit(X, y, groups=groups)  # a splitter that needs groups, and no warning from others
    drago.DRORegressorCV((1.0, 0.5), uncertainty=drago.Grouped("cvar"), cv=3).fit(
        X, y, groups=groups
    )
    assert model.cv_results_["loss"].shape == (10, 3)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"criterion": "best"}, "criterion must be one of"),
        ({"criterion_tail": 0.0}, "criterion_tail must be"),
        ({"criterion": "worst_group"}, "give groups= to fit"),
        ({"tail_fractions": ()}, "tail_fractions must hold"),
        ({"uncertainty": "esrm"}, "has no tail fraction"),
    ],
)
def test_bad_settings_are_named(settings, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        drago.DRORegressorCV(**settings).fit(X, y)


def test_held_out_rows_count_by_their_sample_weights_alone():
    X, y = data("two")
    plain, weighted = (
        drago.DROClassifierCV((1.0,), l2_regs=1e6, cv=3, criterion="mean", class_weight=weights)
        for weights in (None, {0: 1, 1: 50})
    )
    plain.fit(X, y)
    weighted.fit(X, y)
    # With such an l2_reg a model is its intercept: the odds of the weighted classes.
    rows = [judge for _, judge in StratifiedKFold(3).split(X, y)]
    share = np.array([y[judge].mean() for judge in rows])
    odds = 50 * y.mean() / (1 - y.mean())
    expected = share * np.log1p(1 / odds) + (1 - share) * np.log1p(odds)
    np.testing.assert_allclose(weighted.cv_results_["loss"][0], expected, rtol=0.05)
    assert (plain.cv_results_["loss"] < 0.75).all()


def test_verbose_shows_the_folds(capsys):
    X, y = data("two")
    drago.DROClassifierCV((0.5,), cv=3, verbose=1).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["fold 1", "fold 2", "fold 3"]
    drago.DROClassifierCV((0.5,), cv=3).fit(X, y)
    assert capsys.readouterr().out == ""


def test_a_fold_without_a_class_is_named():
    X, y = data("two", n=20)
    y[:10], y[10:] = 0.0, 1.0
    with pytest.raises(ValueError, match="a fold hold no row of class"):
        drago.DROClassifierCV(cv=KFold(2)).fit(X, y)


# ----------------------------------------------------------------------- what they rest on


def test_worst_group_mean_is_weighted():
    losses, p = np.array([1.0, 3.0, 2.0]), np.array([0.5, 0.25, 0.25])
    assert worst_group_mean(losses, p, ["a", "a", "b"]) == 2.0
    assert worst_group_mean(losses, p, ["a", "b", "b"]) == 2.5


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
    settings = {"tail_fractions": (1.0, 0.3), "l2_regs": 0.1}
    expected = CHOOSING[task](**settings, cv=halves(len(y), "arrays")).fit(X, y)
    model = CHOOSING[task](**settings, cv=halves(len(y), kind)).fit(X, y)
    np.testing.assert_array_equal(model.cv_results_["loss"], expected.cv_results_["loss"])
    assert model.cv_results_["loss"].shape == (2, 2)
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
        CHOOSING[task](cv=cv).fit(X, y)
