"""Choices by cross-validation, and baselines that are fitted, on rows in files."""

import gc
import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeRegressor

import drago
import drago.sources.source
from drago import CVaR, DROClassifier, DROClassifierCV, DRORegressor, DRORegressorCV
from drago.estimators.baseline import out_of_fold_losses
from drago.estimators.source_baseline import losses_on_source
from drago.sources.numbers import folds_of

RNG = np.random.default_rng(11)
N = 3000
X = RNG.normal(size=(N, 5))
GROUPS = RNG.choice(["a", "b", "c"], N, p=[0.6, 0.3, 0.1])
WEIGHT = RNG.integers(0, 3, N).astype(float)
Z = X[:, 0] - 0.5 * X[:, 1] + np.where(GROUPS == "c", -2.0, 1.0) * X[:, 2]
TARGETS = {
    "y": Z + RNG.standard_t(3, N),
    "two": np.where(Z + RNG.logistic(size=N) > 0, "yes", "no"),
    "three": np.digitize(Z + RNG.normal(size=N), [-0.5, 0.7]) * 10,
}
BASELINE = RNG.uniform(0, 0.2, N)


def source_of(target, tmp_path, limit=200_000, features=X, **more):
    """The rows, in files where the limit is low."""
    names = {"X": features, "y": TARGETS[target], **more}
    batches = [
        {name: values[k : k + 700] for name, values in names.items()} for k in range(0, N, 700)
    ]
    return drago.from_batches(batches, cache_dir=tmp_path, memory_limit=limit)


@pytest.fixture
def all_are_judged(monkeypatch):
    """However low the limit of memory is."""
    monkeypatch.setattr(drago.sources.source.Source, "rows_that_fit", lambda self, width: N)


def splits(kept, n_folds, seed=0):
    """The folds of a source for the rows in memory, those of weight 0 among the training rows."""
    own = np.full(N, -1)
    own[kept] = folds_of(np.arange(np.count_nonzero(kept)), n_folds, seed)
    return [(np.flatnonzero(own != k), np.flatnonzero(own == k)) for k in range(n_folds)]


def both(kind, target, tmp_path, *, weighted=False, limit=200_000, source=None, **settings):
    """The same choice on a source and on its rows in memory."""
    source = source or {}
    weight = WEIGHT if weighted else np.ones(N)
    given = {"sample_weight": WEIGHT, **source} if weighted else source
    settings = {"l2_regs": (1.0, 1e-3), "random_state": 3, "tol": 1e-6, **settings}
    there = kind(cv=splits(weight > 0, 3, 3), **settings).fit(X, TARGETS[target], **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here = kind(cv=3, **settings).fit(source_of(target, tmp_path, limit, **given))
    return here, there


@pytest.mark.parametrize("limit", [200_000, "1GB"])
@pytest.mark.parametrize("criterion", ["mean", "tail", "found_group_excess"])
@pytest.mark.parametrize(
    ("kind", "target"),
    [(DRORegressorCV, "y"), (DROClassifierCV, "two"), (DROClassifierCV, "three")],
)
def test_the_choice_is_that_in_memory(kind, target, criterion, limit, tmp_path, all_are_judged):
    here, there = both(
        kind, target, tmp_path, limit=limit, criterion=criterion, baseline=None,
        candidates=[CVaR(0.5), {"uncertainty": CVaR(0.2), "shift_cost": 0.05}],
        weighted=criterion == "tail",
    )  # fmt: skip
    assert here.best_index_ == there.best_index_
    assert here.reference_index_ == there.reference_index_
    for name in ("mean_loss", "criterion", "gain", "gain_error", "split1_mean_loss"):
        np.testing.assert_allclose(
            here.cv_results_[name], there.cv_results_[name], rtol=2e-3, atol=1e-4
        )
    np.testing.assert_allclose(here.shift_cost_, there.shift_cost_, rtol=1e-6)
    np.testing.assert_allclose(here.coef_, there.coef_, atol=3e-3)
    assert here.dual_weights_.size == (np.count_nonzero(WEIGHT) if criterion == "tail" else N)


def test_groups_and_a_baseline_of_the_source(tmp_path, all_are_judged):
    source = {"groups": GROUPS, "baseline": BASELINE}
    here, there = both(
        DRORegressorCV, "y", tmp_path, source=source, candidates="auto", l2_regs=(1e-3,)
    )
    assert here.criterion_ == there.criterion_ == "worst_group_excess"
    assert here.best_params_["baseline"] == there.best_params_["baseline"]
    assert here.best_index_ == there.best_index_
    np.testing.assert_allclose(here.cv_results_["criterion"], there.cv_results_["criterion"],
                               rtol=2e-3)  # fmt: skip


def test_a_baseline_that_is_fitted_is_that_in_memory_where_all_rows_fit(tmp_path, all_are_judged):
    here, there = both(
        DRORegressorCV, "y", tmp_path, baseline=LinearRegression(),
        candidates=[{"uncertainty": CVaR(0.3), "baseline": "auto"}],
    )  # fmt: skip
    assert here.best_index_ == there.best_index_
    np.testing.assert_allclose(here.cv_results_["criterion"], there.cv_results_["criterion"],
                               rtol=2e-3)  # fmt: skip


@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_choice_on_a_sample_says_so(tmp_path, is_sparse):
    features = sparse.csr_matrix(X) if is_sparse else X
    source = source_of("two", tmp_path, 200_000, features)
    model = DROClassifierCV(
        [{"uncertainty": CVaR(0.5), "baseline": "auto"}], l2_regs=(1e-3, 1e-2), cv=2, tol=1e-3,
        baseline=LogisticRegression(),
    )  # fmt: skip
    with pytest.warns(UserWarning) as found:
        model.fit(source)
    texts = [str(each.message) for each in found]
    assert any("candidates were fitted on all rows, but judged on 1000 rows drawn from 3000" in text
               for text in texts)  # fmt: skip
    assert any("baseline=LogisticRegression() was fitted on 1250 rows" in text for text in texts)
    assert model.dual_weights_.size == N and model.score(source) > 0.6


def test_a_class_without_training_rows(tmp_path):
    rare = np.array(["yes", "no"])[RNG.integers(0, 2, N)]
    rare[7] = "maybe"
    source = drago.from_arrays(X, rare, memory_limit="1GB")
    with pytest.raises(ValueError, match="training rows of a fold hold no row of class number 0"):
        DROClassifierCV(CVaR(0.5), cv=2, baseline=None).fit(source)


def test_folds_leave_nothing_behind(tmp_path):
    source = source_of("y", tmp_path)
    model = DRORegressorCV(CVaR(0.5), l2_regs=None, cv=2, baseline=None, criterion="mean")
    with pytest.warns(UserWarning, match="judged on 1000 rows"):
        model.fit(source)
    assert len(list(tmp_path.iterdir())) == 1  # the blocks of the source itself
    del source, model
    gc.collect()
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------- baselines


@pytest.mark.parametrize("model", ["auto", "linear", DecisionTreeRegressor(max_depth=3)])
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_losses_of_all_rows_by_models_of_other_folds(model, groups, tmp_path):
    loss = drago.Squared()
    more = {} if groups is None else {"groups": groups}
    source = source_of("y", tmp_path, "1GB", **more)
    found, sample = losses_on_source(model, source, loss, seed=2)
    assert sample.is_whole
    own = folds_of(np.arange(N), 5, 2)
    expected = np.full(N, np.nan)
    from drago.estimators.baseline import judges_of, with_dummies

    features = X if groups is None or model != "auto" else with_dummies(X, groups)
    cuts = [(np.flatnonzero(own != k), np.flatnonzero(own == k)) for k in range(5)]
    expected = judges_of(model, features, TARGETS["y"], loss, np.ones(N), cuts, 2, None)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    in_memory = out_of_fold_losses(model, X, TARGETS["y"], loss, groups=groups, seed=2)
    assert abs(found.mean() / in_memory.mean() - 1.0) < 0.05


@pytest.mark.parametrize("target", ["y", "two", "three"])
def test_a_fit_with_a_baseline_of_its_own(target, tmp_path):
    kind = DRORegressor if target == "y" else DROClassifier
    source = source_of(target, tmp_path, 200_000)
    with pytest.warns(UserWarning, match="baseline='auto' was fitted on 1250 rows drawn from 3000"):
        model = kind(CVaR(0.5), baseline="auto").fit(source)
    there = kind(CVaR(0.5)).fit(X, TARGETS[target], baseline=model.baseline_)
    np.testing.assert_allclose(model.result_.primal, there.result_.primal, rtol=1e-3)
    linear = kind(CVaR(1.0)).fit(X, TARGETS[target]).losses(X, TARGETS[target]).mean()
    assert 0.7 * linear < model.baseline_.mean() < 1.3 * linear
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(CVaR(0.5), baseline="auto").fit(source_of(target, tmp_path, "1GB"))
