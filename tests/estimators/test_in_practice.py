"""The estimators as people use them: pipelines, searches, frames, labels of any kind, callbacks."""

import importlib.util
import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import drago
from drago import CVaR, DROClassifier, DRORegressor, Grouped

KINDS = pytest.mark.parametrize(
    "kind", [DRORegressor, DROClassifier], ids=lambda kind: kind.__name__
)
CITIES = np.array(["Bern", "Köln", "Łódź"])


def make(kind=DRORegressor, n=60, d=4, seed=0, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    z = X @ rng.standard_normal(d) + 0.5 * rng.standard_normal(n)
    if kind is DRORegressor:
        return X, z
    return X, np.argsort(np.argsort(z)) * classes // n


def same(first, second):
    np.testing.assert_array_equal(first.coef_, second.coef_)
    np.testing.assert_array_equal(first.intercept_, second.intercept_)


# ------------------------------------------------------------------- pipelines and frames


@KINDS
def test_a_pipeline_with_a_scaler(kind):
    X, y = make(kind)
    X = X * [1, 100, 1e-3, 1] + [0, 1e4, 0, 5]
    fitted = make_pipeline(StandardScaler(), kind()).fit(X, y)
    assert fitted.score(X, y) > 0.5
    same(fitted[-1], kind().fit(StandardScaler().fit_transform(X), y))
    assert fitted[-1].result_.status == "optimal"


def people(n=90, seed=1):
    """A frame as it comes from a file."""
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "city": CITIES[rng.integers(0, 3, n)],
            "income": rng.lognormal(10, 1, n),
            "member": rng.random(n) < 0.5,
        },
        index=[f"person {i}" for i in range(n)],
    )
    score = 0.05 * frame["age"] + (frame["city"] == "Bern") + rng.standard_normal(n)
    return frame, pd.Series(np.where(score > score.median(), "yes", "no"), frame.index), score


def columns(**settings):
    return ColumnTransformer(
        [
            ("words", OneHotEncoder(handle_unknown="ignore", **settings), ["city", "member"]),
            ("numbers", StandardScaler(), ["age", "income"]),
        ],
        sparse_threshold=1.0,
    )


def test_a_frame_with_words_made_sparse():
    frame, labels, score = people()
    transformed = columns().fit_transform(frame)
    assert sp.issparse(transformed)
    fitted = make_pipeline(columns(), DROClassifier()).fit(frame, labels)
    assert set(fitted.predict(frame)) == {"yes", "no"} and fitted.score(frame, labels) > 0.6
    dense = DROClassifier().fit(transformed.toarray(), labels)
    assert fitted[-1].coef_ == pytest.approx(dense.coef_, abs=0.02)
    other = frame.head(3).assign(city="Oslo")  # never seen
    assert fitted.predict_proba(other).shape == (3, 2)
    regression = make_pipeline(columns(), DRORegressor()).fit(frame, score)
    assert regression.predict(frame).shape == (90,) and regression.score(frame, score) > 0.2


def test_frames_name_their_columns_and_rows():
    pd = pytest.importorskip("pandas")
    frame, labels, _ = people()
    pipe = make_pipeline(columns(sparse_output=False), DROClassifier()).set_output(
        transform="pandas"
    )
    fitted = pipe.fit(frame, labels)[-1]
    names = fitted.feature_names_in_.tolist()
    assert names[-2:] == ["numbers__age", "numbers__income"] and len(names) == 7
    features = pipe[0].transform(frame)
    report = fitted.worst_case_report(features, labels, groups=frame["city"], n_rows=5)
    worst = report.rows["row"]
    assert all(name in frame.index for name in worst)
    at = frame.index.get_indexer(worst)
    assert report.rows["loss"] == pytest.approx(fitted.losses(features, labels)[at])
    assert set(report.groups["group"]) == set(CITIES)
    assert pd.DataFrame(report.rows).shape == (5, 4) and worst[0] in str(report)
    half = features.iloc[::2]
    weight = np.arange(45) % 3
    held_out = fitted.worst_case_report(half, labels[::2], sample_weight=weight)
    assert set(held_out.rows["row"]) <= set(half.index[weight > 0])


def test_columns_of_other_names_are_noticed_as_in_scikit_learn():
    frame, _, score = people()
    frame = frame[["age", "income"]].astype(float)
    fitted, theirs = DRORegressor().fit(frame, score), StandardScaler().fit(frame)
    for wrong in (frame[["income", "age"]], frame.rename(columns={"age": "Age"})):
        with pytest.raises(ValueError, match="feature names should match") as expected:
            theirs.transform(wrong)
        for call in (fitted.predict, lambda X: fitted.losses(X, score)):
            with pytest.raises(ValueError) as raised:
                call(wrong)
            assert str(raised.value) == str(expected.value)
    with pytest.warns(UserWarning, match="X does not have valid feature names, but DRORegressor"):
        fitted.predict(frame.to_numpy())
    with pytest.warns(
        UserWarning, match="X has feature names, but DRORegressor was fitted without"
    ):
        DRORegressor().fit(frame.to_numpy(), score).predict(frame)
    with pytest.raises(ValueError, match="X has 1 features, but DRORegressor is expecting 2"):
        DRORegressor().fit(frame.to_numpy(), score).predict(np.ones((3, 1)))
    # A fit on an array forgets the names.
    assert not hasattr(fitted.fit(frame.to_numpy(), score), "feature_names_in_")


def test_polars_frames():
    pl = pytest.importorskip("polars")
    X, y = make(DROClassifier)
    frame = pl.DataFrame({f"x{i}": X[:, i] for i in range(4)})
    target = pl.Series("city", CITIES[y])
    groups = pl.Series(["a", "b", "c"] * 20)
    settings = {"sample_weight": pl.Series([1, 2, 3] * 20), "groups": groups}
    fitted = DROClassifier(Grouped(CVaR(0.5))).fit(frame, target, **settings)
    assert fitted.feature_names_in_.tolist() == ["x0", "x1", "x2", "x3"]
    plain = {"sample_weight": np.tile([1, 2, 3], 20), "groups": np.tile(["a", "b", "c"], 20)}
    same(fitted, DROClassifier(Grouped(CVaR(0.5))).fit(X, CITIES[y], **plain))
    assert set(fitted.predict(frame)) == {"Bern", "Köln"}
    report = fitted.worst_case_report(frame, target, **settings)
    assert report.rows["row"].dtype == np.intp
    assert report.losses == pytest.approx(fitted.losses(frame, target))


# ----------------------------------------------------------------------- searching


@pytest.mark.parametrize("uncertainty", ["cvar", CVaR(0.7)], ids=str)
def test_a_search_over_the_tail(uncertainty):
    X, y = make()
    tails = [0.1, 0.5, 1.0]
    search = GridSearchCV(DRORegressor(uncertainty), {"uncertainty__tail_fraction": tails}, cv=3)
    search.fit(X, y)
    best = search.best_params_["uncertainty__tail_fraction"]
    assert search.best_estimator_.uncertainty == CVaR(best)
    assert search.estimator.uncertainty == uncertainty  # which is left as it was
    same(search.best_estimator_, DRORegressor(CVaR(best)).fit(X, y))
    scores = search.cv_results_["mean_test_score"]
    for tail, score in zip(tails, scores):
        assert cross_val_score(DRORegressor(CVaR(tail)), X, y, cv=3).mean() == pytest.approx(score)
    assert len(set(scores)) == 3


@KINDS
def test_a_search_over_sets_and_penalties(kind):
    X, y = make(kind)
    grid = [
        {"uncertainty": ["cvar", drago.Chi2Ball(0.3), "simplex"], "l2_reg": [1e-3, 1.0]},
        {"uncertainty": [CVaR(0.3)], "uncertainty__tail_fraction": [0.2, 0.4]},
        {"uncertainty": ["kl_ball"], "uncertainty__radius": [0.1]},
    ]
    search = GridSearchCV(kind("cvar"), grid, cv=3, error_score="raise", n_jobs=1).fit(X, y)
    assert len(search.cv_results_["params"]) == 9
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(X).shape == (60,)
    pipe = make_pipeline(StandardScaler(), kind("cvar"))
    name = f"{kind.__name__.lower()}__uncertainty__tail_fraction"
    assert GridSearchCV(pipe, {name: [0.2, 0.5]}, cv=3).fit(X, y).best_params_[name] in (0.2, 0.5)


def test_parameters_are_set_by_name():
    model = DRORegressor()
    assert model.set_params(uncertainty__risk_aversion=0.3).uncertainty == drago.ESRM(0.3)
    model = DRORegressor("cvar")
    assert model.set_params(uncertainty__tail_fraction=0.3).uncertainty == CVaR(0.3)
    model.set_params(uncertainty="extremile", uncertainty__n_draws=3.0)
    assert model.uncertainty == drago.Extremile(3.0)
    assert model.get_params()["uncertainty__n_draws"] == 3.0
    model.set_params(uncertainty=Grouped(CVaR(0.2)), uncertainty__inner__tail_fraction=0.6)
    assert model.uncertainty == Grouped(CVaR(0.6))
    for wrong in ({"uncertainty__n_draws": 2.0}, {"tail_fraction": 0.2}, {"uncertainty__inner": 3}):
        with pytest.raises((TypeError, ValueError)):
            model.set_params(**wrong)
    with pytest.raises(ValueError, match="tail_fraction must be a number in"):
        DRORegressor("cvar").set_params(uncertainty__tail_fraction=2.0)


@KINDS
def test_clones_and_pickles(kind):
    X, y = make(kind)
    own = {"loss": drago.Huber(0.5)} if kind is DRORegressor else {"class_weight": "balanced"}
    fitted = kind(Grouped(CVaR(0.4)), l2_reg=0.1, solver=drago.LBFGS(memory=5), **own)
    fitted.fit(X, y, groups=np.arange(60) % 4)
    copy = clone(fitted)
    assert copy.get_params()["uncertainty"] == fitted.uncertainty
    assert copy.uncertainty is not fitted.uncertainty
    with pytest.raises(NotFittedError):
        copy.predict(X)
    same(copy.fit(X, y, groups=np.arange(60) % 4), fitted)
    back = pickle.loads(pickle.dumps(fitted))
    same(back, fitted)
    np.testing.assert_array_equal(back.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(back.history_.rel_gap, fitted.history_.rel_gap)
    np.testing.assert_array_equal(back.dual_weights_, fitted.dual_weights_)
    assert back.result_.status == "optimal" and repr(back) == repr(fitted)
    assert "CVaR" in fitted._repr_html_()
    # A change to a copy is none to the original.
    clone(fitted).set_params(uncertainty__inner__tail_fraction=0.9)
    assert fitted.uncertainty == Grouped(CVaR(0.4))


def test_predictions_across_folds_of_whole_groups():
    X, y = make(DROClassifier, n=90, classes=3)
    groups = np.repeat(np.arange(9), 10)
    model = DROClassifier()
    proba = cross_val_predict(
        model, X, CITIES[y], groups=groups, cv=GroupKFold(3), method="predict_proba"
    )
    assert proba.shape == (90, 3) and proba.sum(axis=1) == pytest.approx(1)
    for train, test in GroupKFold(3).split(X, y, groups):
        by_hand = clone(model).fit(X[train], CITIES[y[train]]).predict_proba(X[test])
        np.testing.assert_array_equal(proba[test], by_hand)
    raw = cross_val_predict(
        model, X, y, groups=groups, cv=GroupKFold(3), method="decision_function"
    )
    assert raw.shape == (90, 3)


@pytest.mark.slow
def test_folds_in_two_processes():
    X, y = make(DROClassifier)
    model = DROClassifier(n_jobs=1)
    one = cross_val_score(model, X, y, cv=3, n_jobs=1)
    np.testing.assert_array_equal(one, cross_val_score(model, X, y, cv=3, n_jobs=2))


def test_models_of_models():
    X, y = make(n=40)
    both = MultiOutputRegressor(DRORegressor()).fit(X, np.c_[y, 2 * y])
    assert both.predict(X).shape == (40, 2)
    same(both.estimators_[0], DRORegressor().fit(X, y))
    _, c = make(DROClassifier, n=40, classes=3)
    assert MultiOutputClassifier(DROClassifier()).fit(X, np.c_[c, c > 0]).predict(X).shape == (
        40,
        2,
    )
    assert OneVsRestClassifier(DROClassifier()).fit(X, c).predict_proba(X).shape == (40, 3)
    logged = TransformedTargetRegressor(DRORegressor(), func=np.log, inverse_func=np.exp)
    assert (logged.fit(X, np.exp(y)).predict(X) > 0).all()


# ----------------------------------------------------------------- metadata routing


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def grouped_data(kind):
    X, y = make(kind, n=80)
    rng = np.random.default_rng(4)
    return X, y, rng.integers(0, 4, 80), np.arange(80) % 4


@KINDS
def test_groups_and_weights_are_routed_through_a_pipeline(kind, routing):
    X, y, weight, groups = grouped_data(kind)
    model = kind(Grouped(CVaR(0.5))).set_fit_request(groups=True, sample_weight=True)
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    fitted = make_pipeline(scaler, model).fit(X, y, groups=groups, sample_weight=weight)
    by_hand = clone(model).fit(
        StandardScaler().fit_transform(X), y, groups=groups, sample_weight=weight
    )
    same(fitted[-1], by_hand)
    np.testing.assert_array_equal(fitted[-1].dual_weights_, by_hand.dual_weights_)
    # Without a word on it, scikit-learn asks.
    with pytest.raises(ValueError, match="groups"):
        make_pipeline(StandardScaler(), kind(Grouped())).fit(X, y, groups=groups)


@KINDS
def test_baselines_are_routed_through_a_pipeline_and_a_search(kind, routing):
    X, y, _, _ = grouped_data(kind)
    baseline = np.random.default_rng(0).random(80)
    model = kind(CVaR(0.5)).set_fit_request(baseline=True)
    fitted = make_pipeline(StandardScaler(), model).fit(X, y, baseline=baseline)
    by_hand = clone(model).fit(StandardScaler().fit_transform(X), y, baseline=baseline)
    same(fitted[-1], by_hand)
    assert not np.allclose(
        fitted[-1].coef_, kind(CVaR(0.5)).fit(StandardScaler().fit_transform(X), y).coef_
    )
    search = GridSearchCV(model, {"l2_reg": [1e-3, 1.0]}, cv=KFold(3), error_score="raise")
    search.fit(X, y, baseline=baseline)
    same(
        search.best_estimator_,
        kind(CVaR(0.5), **search.best_params_).fit(X, y, baseline=baseline),
    )


@KINDS
def test_groups_and_weights_are_routed_through_a_search(kind, routing):
    X, y, weight, groups = grouped_data(kind)
    model = kind(Grouped(CVaR(0.5)))
    model.set_fit_request(groups=True, sample_weight=True).set_score_request(sample_weight=True)
    search = GridSearchCV(
        model, {"uncertainty__inner__tail_fraction": [0.3, 0.9]}, cv=KFold(3), error_score="raise"
    ).fit(X, y, groups=groups, sample_weight=weight)
    best = search.best_params_["uncertainty__inner__tail_fraction"]
    by_hand = kind(Grouped(CVaR(best))).fit(X, y, groups=groups, sample_weight=weight)
    same(search.best_estimator_, by_hand)
    train, test = next(KFold(3).split(X))
    first = kind(Grouped(CVaR(0.3))).fit(
        X[train], y[train], groups=groups[train], sample_weight=weight[train]
    )
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(
        first.score(X[test], y[test], sample_weight=weight[test])
    )


@KINDS
def test_the_same_groups_for_the_folds_and_the_set(kind, routing):
    X, y, weight, groups = grouped_data(kind)
    model = kind(Grouped(CVaR(0.5))).set_fit_request(groups=True, sample_weight=True)
    model.set_score_request(sample_weight=False)
    params = {"groups": groups, "sample_weight": weight}
    out = cross_validate(
        model, X, y, cv=GroupKFold(4), params=params, return_estimator=True, error_score="raise"
    )
    for fitted, (train, _) in zip(out["estimator"], GroupKFold(4).split(X, y, groups)):
        assert np.unique(groups[train]).size == 3
        by_hand = clone(model).fit(
            X[train], y[train], groups=groups[train], sample_weight=weight[train]
        )
        same(fitted, by_hand)


# ----------------------------------------------------------------- features in all forms


@KINDS
@pytest.mark.parametrize(
    "form",
    [
        np.asfortranarray,
        lambda X: X.tolist(),
        lambda X: np.repeat(X, 2, axis=0)[::2],
        lambda X: np.repeat(X, 2, axis=1)[:, ::2],
        sp.csr_matrix,
        sp.csc_array,
        sp.coo_array,
        sp.lil_array,
    ],
    ids=["fortran", "lists", "strided rows", "strided columns", "csr", "csc", "coo", "lil"],
)
def test_features_in_any_form(kind, form):
    X, y = make(kind, n=60)
    X[np.abs(X) < 0.3] = 0.0
    given = form(X)
    fitted, plain = kind(tol=1e-8).fit(given, y), kind(tol=1e-8).fit(X, y)
    assert fitted.coef_ == pytest.approx(plain.coef_, abs=1e-3)
    assert fitted.predict(given) == pytest.approx(plain.predict(X), abs=1e-2)
    assert fitted.losses(given, y) == pytest.approx(plain.losses(X, y), abs=1e-2)
    assert fitted.worst_case_report(given, y).n_samples == 60


@KINDS
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, bool, np.float16, object, np.float32])
def test_features_of_any_number(kind, dtype):
    X, y = make(kind)
    X = np.abs(3 * X).astype(int).astype(dtype)
    fitted = kind().fit(X, y)
    assert fitted.coef_.dtype == (np.float32 if dtype is np.float32 else np.float64)
    plain = kind().fit(X.astype(float), y)
    assert fitted.coef_ == pytest.approx(plain.coef_, rel=1e-4)
    # Fewer rows may be multiplied in another order.
    assert fitted.predict(X)[:5] == pytest.approx(fitted.predict(X[:5]), rel=1e-12)


@KINDS
def test_a_read_only_memory_map(kind, tmp_path):
    X, y = make(kind)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    there = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("X", "y")}
    fitted = kind().fit(**there)
    same(fitted, kind().fit(X, y))
    assert fitted.worst_case_report(**there).n_samples == 60
    same(kind(solver="drago").fit(**there), kind(solver="drago").fit(X, y))


@KINDS
def test_what_is_given_is_not_changed(kind):
    X, y = make(kind)
    weight, groups = np.arange(60.0), np.arange(60) % 3
    before = [array.copy() for array in (X, y, weight, groups)]
    fitted = kind().fit(X, y, sample_weight=weight, groups=groups)
    fitted.worst_case_report(X, y, sample_weight=weight, groups=groups)
    for array, copy in zip((X, y, weight, groups), before):
        np.testing.assert_array_equal(array, copy)
        assert array.flags.writeable


@KINDS
def test_more_columns_than_rows(kind):
    X, y = make(kind, n=30, d=3000)
    fitted = kind(l2_reg=0.1).fit(X, y)
    assert fitted.result_.status == "optimal" and fitted.coef_.size == 3000
    assert fitted.score(X, y) > 0.9


@KINDS
def test_columns_that_say_nothing(kind):
    X, y = make(kind)
    plain = kind(tol=1e-8).fit(X, y)
    constant = kind(tol=1e-8).fit(np.c_[X, np.full(60, 7.0), np.zeros(60)], y)
    assert np.ravel(constant.coef_)[-2:] == pytest.approx([0, 0], abs=1e-3)
    assert np.ravel(constant.coef_)[:-2] == pytest.approx(np.ravel(plain.coef_), abs=1e-2)
    nothing = kind().fit(np.ones((60, 2)), y)
    assert nothing.result_.status == "optimal"
    assert nothing.coef_ == pytest.approx(0, abs=1e-9)


@KINDS
def test_one_column(kind):
    X, y = make(kind, d=1)
    fitted = kind().fit(X, y)
    assert fitted.coef_.shape == ((1,) if kind is DRORegressor else (1, 1))
    assert fitted.result_.status == "optimal"


@pytest.mark.parametrize("uncertainty", ["cvar", "extremile", "chi2_ball", "kl_ball", "simplex"])
def test_few_rows(uncertainty):
    one = DRORegressor(uncertainty).fit([[1.0, 2.0]], [5.0])
    assert one.predict([[1.0, 2.0]]) == pytest.approx([5.0], abs=1e-6)
    assert one.dual_weights_.tolist() == [1.0] and one.result_.status == "optimal"
    through_0 = DRORegressor(uncertainty, fit_intercept=False).fit([[1.0, 2.0]], [5.0])
    assert through_0.predict([[1.0, 2.0]]) == pytest.approx([5.0], abs=0.1)
    two = DROClassifier(uncertainty).fit([[0.0], [1.0]], ["no", "yes"])
    assert two.predict([[0.0], [1.0]]).tolist() == ["no", "yes"]
    three = DROClassifier(uncertainty).fit(np.eye(3), CITIES)
    assert three.predict(np.eye(3)).tolist() == CITIES.tolist()


@pytest.mark.parametrize("value", [0.0, 3.5, -1e8])
def test_a_constant_target(value):
    X, _ = make()
    fitted = DRORegressor().fit(X, np.full(60, value))
    assert fitted.result_.status == "optimal" and fitted.shift_cost_ <= 1e-12 * value**2
    assert fitted.predict(X) == pytest.approx(np.full(60, value), rel=1e-9)
    assert fitted.worst_case_report(X, np.full(60, value)).mean_loss == pytest.approx(0, abs=1e-6)


# ----------------------------------------------------------------------- targets


LABELS = {
    "words": CITIES,
    "objects": CITIES.astype(object),
    "numbers": np.array([3, 7, 11]),
    "below 0": np.array([-1, 0, 1]),
    "floats": np.array([1.0, 2.0, 5.0]),
    "bytes": np.array([0, 5, 250], np.uint8),
    "truth": np.array([False, True]),
}


@pytest.mark.parametrize(
    "labels, classes",
    [(name, k) for name, labels in LABELS.items() for k in (2, 3) if k <= labels.size],
)
def test_labels_of_any_kind(labels, classes):
    X, codes = make(DROClassifier, classes=classes)
    names = LABELS[labels][:classes]
    y = names[codes]
    fitted, plain = DROClassifier().fit(X, y), DROClassifier().fit(X, codes)
    same(fitted, plain)
    assert fitted.classes_.dtype == y.dtype and fitted.classes_.tolist() == names.tolist()
    assert fitted.predict(X).dtype == y.dtype
    np.testing.assert_array_equal(fitted.predict(X), names[plain.predict(X)])
    assert fitted.score(X, y) == plain.score(X, codes)
    np.testing.assert_array_equal(fitted.losses(X, y), plain.losses(X, codes))
    same(DROClassifier().fit(X, y.tolist()), plain)
    assert fitted.worst_case_report(X, y, groups=y).groups["group"].dtype == y.dtype
    weight = dict(zip(names.tolist(), (1.0, 2.0, 0.5)))
    by_class = DROClassifier(class_weight=weight).fit(X, y)
    same(by_class, DROClassifier().fit(X, y, sample_weight=[weight[k] for k in y.tolist()]))


@pytest.mark.parametrize("dtype", ["category", "string", "object", "str"])
def test_labels_in_a_series(dtype):
    pd = pytest.importorskip("pandas")
    X, y = make(DROClassifier, classes=3)
    fitted = DROClassifier().fit(X, pd.Series(CITIES[y], dtype=dtype))
    same(fitted, DROClassifier().fit(X, CITIES[y]))
    assert set(fitted.predict(X)) == set(CITIES)
    assert fitted.losses(X, pd.Series(CITIES[y], dtype=dtype)).shape == (60,)


@KINDS
def test_a_target_in_a_column_is_taken_with_a_warning(kind):
    X, y = make(kind)
    theirs = LogisticRegression()
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        theirs.fit(X, (y > 0)[:, None])
    fitted = kind()
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        fitted.fit(X, y[:, None])
    same(fitted, kind().fit(X, y))


@pytest.mark.parametrize("dtype", [np.int64, np.float32, bool, object])
def test_numbers_of_any_kind_as_a_target(dtype):
    X, y = make()
    y = (2 * y).astype(int).astype(dtype)
    fitted = DRORegressor().fit(X, y)
    same(fitted, DRORegressor().fit(X, y.astype(float)))
    same(fitted, DRORegressor().fit(X, y.tolist()))


# ----------------------------------------------------------------------- callbacks


class Recorder:
    """Writes down what it is told."""

    def __init__(self, stop_at=None, error=None):
        self.stop_at, self.error, self.told, self.fitted, self.data = stop_at, error, [], [], []

    def setup(self, estimator, context):
        self.told.append(("setup", context.task_name))

    def teardown(self, estimator, context):
        self.told.append(("teardown", context.task_name))

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        self.told.append(("begin", context.task_name))

    def on_fit_task_end(
        self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None
    ):
        self.told.append(("end", context.task_name))
        self.data.append((X, y, metadata))
        self.fitted.append(fitted_estimator)
        if context.task_name == "certificate" and context.task_id == self.stop_at:
            if self.error is not None:
                raise self.error
            return True
        return None

    def count(self, hook, task):
        return self.told.count((hook, task))


class Travelling(Recorder):
    """Goes on to the estimators inside of others."""

    max_propagation_depth = None


@pytest.fixture
def callbacks():
    return pytest.importorskip("sklearn.callback")


def hard(kind):
    """Data and settings that take a few certificates."""
    settings = {"uncertainty": drago.CVaR(0.15), "divergence": "kl", "l2_reg": 1e-5, "tol": 1e-11}
    return *make(kind, n=300, d=20), settings


@pytest.mark.parametrize("solver", ["auto", "drago"])
@KINDS
def test_a_callback_is_told_of_each_certificate(kind, solver, callbacks):
    X, y, settings = hard(kind)
    heard, weight = Recorder(), np.arange(300.0)
    assert isinstance(heard, callbacks.FitCallback)
    fitted = kind(solver=solver, **settings).set_callbacks(heard)
    fitted.fit(X, y, sample_weight=weight, groups=np.arange(300) % 3)
    assert heard.told[:2] == [("setup", "fit"), ("begin", "fit")]
    assert heard.told[-2:] == [("end", "fit"), ("teardown", "fit")]
    n = len(fitted.history_)
    assert n > 1
    assert heard.count("begin", "certificate") == heard.count("end", "certificate") == n
    for features, target, metadata in heard.data:
        np.testing.assert_array_equal(features, X)
        np.testing.assert_array_equal(target, y)
        assert metadata["sample_weight"] is weight
    # It could use the model as it is at each of them.
    problem = drago.DROProblem(
        X,
        y,
        loss="squared" if kind is DRORegressor else "logistic",
        uncertainty=drago.CVaR(0.15),
        divergence="kl",
        l2_reg=1e-5,
        sample_weight=weight,
        fit_intercept=True,
    )
    for model, record in zip(heard.fitted, fitted.history_.records):
        assert model is not fitted and model.predict(X).shape == (300,)
        reached = problem.objective(model.coef_, model.intercept_)
        assert reached == pytest.approx(record.primal, rel=1e-9)
    same(heard.fitted[-1], fitted)
    # To listen changes nothing.
    alone = kind(solver=solver, **settings)
    same(alone.fit(X, y, sample_weight=weight, groups=np.arange(300) % 3), fitted)


@KINDS
def test_a_callback_stops_a_fit(kind, callbacks):
    X, y, settings = hard(kind)
    heard = Recorder(stop_at=0)
    fitted = kind(**settings).set_callbacks(heard)
    with pytest.warns(ConvergenceWarning, match="stopped by the callback"):
        fitted.fit(X, y)
    assert fitted.result_.status == "stopped" and fitted.predict(X).shape == (300,)
    assert heard.count("end", "certificate") == 1 and heard.count("end", "fit") == 1
    assert heard.told[-1] == ("teardown", "fit")
    full = kind(**settings).fit(X, y)
    assert fitted.n_iter_ < full.n_iter_ and fitted.dual_gap_ > full.dual_gap_
    # Without callbacks it runs to the end again.
    same(fitted.set_callbacks().fit(X, y), full)


@KINDS
def test_ctrl_c_in_a_callback(kind, callbacks):
    X, y, settings = hard(kind)
    heard = Recorder(stop_at=0, error=KeyboardInterrupt())
    fitted = kind(**settings).set_callbacks(heard)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted"),
        pytest.raises(KeyboardInterrupt),
    ):
        fitted.fit(X, y)
    assert fitted.result_.status == "interrupted" and fitted.predict(X).shape == (300,)
    assert heard.told[-2:] == [("end", "fit"), ("teardown", "fit")]


@KINDS
def test_a_callback_that_fails_is_cleared_away(kind, callbacks):
    X, y = make(kind)
    heard = Recorder(stop_at=0, error=RuntimeError("the line is dead"))
    fitted = kind(tol=1e-12).set_callbacks(heard)
    with pytest.raises(RuntimeError, match="the line is dead"):
        fitted.fit(X, y)
    assert heard.told[-1] == ("teardown", "fit")
    assert not hasattr(fitted, "coef_") and not hasattr(fitted, "_callback_fit_ctx")
    assert fitted.set_callbacks().fit(X, y).result_.rel_gap < 1e-10
    # The data is looked at before anybody is told.
    heard = Recorder()
    with pytest.raises(ValueError, match="NaN"):
        kind().set_callbacks(heard).fit(np.full_like(X, np.nan), y)
    assert heard.told == []


@KINDS
def test_callbacks_travel_through_pipelines_and_searches(kind, callbacks):
    X, y = make(kind)
    heard = Travelling()
    pipe = make_pipeline(StandardScaler(), kind(tol=1e-8)).set_callbacks(heard).fit(X, y)
    assert heard.count("end", "certificate") == len(pipe[-1].history_)
    assert any(hasattr(model, "coef_") for model in heard.fitted)
    heard = Travelling()
    search = GridSearchCV(kind(tol=1e-6), {"l2_reg": [0.01, 0.1]}, cv=2)
    search.set_callbacks(heard).fit(X, y)
    assert heard.count("end", "certificate") >= 5  # four fits and the last one
    assert heard.count("setup", "fit") == heard.count("teardown", "fit") == 1
    assert not getattr(search.best_estimator_, "_skl_callbacks", [])
    assert search.predict(X).shape == (60,)


@KINDS
def test_a_progress_bar(kind, callbacks, capsys):
    pytest.importorskip("rich")
    X, y = make(kind)
    fitted = kind(tol=1e-8).set_callbacks(callbacks.ProgressBar()).fit(X, y)
    assert f"{kind.__name__} - fit" in capsys.readouterr().out
    same(fitted, kind(tol=1e-8).fit(X, y))
    search = GridSearchCV(kind(), {"l2_reg": [0.01, 0.1]}, cv=2)
    search.set_callbacks(callbacks.ProgressBar(max_propagation_depth=None)).fit(X, y)
    assert "GridSearchCV - fit" in capsys.readouterr().out


@KINDS
def test_scores_on_the_way(kind, callbacks):
    X, y = make(kind)
    name = "r2" if kind is DRORegressor else "accuracy"
    monitor = callbacks.ScoringMonitor(scoring=name)
    fitted = kind(Grouped(CVaR(0.5)), tol=1e-8).set_callbacks(monitor)
    fitted.fit(X, y, sample_weight=np.arange(60), groups=np.arange(60) % 3)
    log = [row for row in monitor.get_logs().data if row["task_name"] == "certificate"]
    assert len(log) == len(fitted.history_)
    score = fitted.score(X, y, sample_weight=np.arange(60))
    assert log[-1][name] == pytest.approx(score)


@KINDS
def test_copies_of_a_model_with_callbacks(kind, callbacks):
    X, y = make(kind)
    fitted = kind().set_callbacks(Recorder()).fit(X, y)
    back = pickle.loads(pickle.dumps(fitted))
    same(back, fitted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(fitted).fit(X, y)


def test_without_callbacks_in_scikit_learn_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)  # as before 1.9
    path = Path(drago.__file__).parent / "estimators" / "callbacks.py"
    spec = importlib.util.spec_from_file_location("callbacks_before", path)
    before = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(before)
    assert before.with_callbacks(make) is make
    task = before.FitTask(before.CallbackSupport(), None, None, {"sample_weight": None}, dict)
    assert not task.has_callbacks
    task.end()
