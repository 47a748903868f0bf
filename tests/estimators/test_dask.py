"""Estimators on Dask collections against the same rows in memory."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression

import drago

da = pytest.importorskip("dask.array", reason="needs dask and distributed")
dd = pytest.importorskip("dask.dataframe", reason="needs dask[dataframe]")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore:there is no Dask client")
N, D = 1500, 3


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    from drago.rows.cluster import open as opening

    monkeypatch.setattr(opening, "RULE", opening._PartRule(parts=4, least=1))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    y = X @ np.array([1.0, -1.0, 0.5]) + rng.standard_t(4, size=N)
    return X, y, np.where(X[:, 0] + rng.normal(size=N) > 0, "a", "b")


def arrays(X, *vectors):
    return da.from_array(X, chunks=(400, -1)), *(da.from_array(v, chunks=400) for v in vectors)


def in_memory(model, X, y, **more):
    return clone(model).fit(X, y, **more)


@pytest.mark.parametrize("uncertainty", ["mild", drago.CVaR(0.2)])
def test_regressors_are_those_in_memory(rows, uncertainty):
    X, y, _ = rows
    model = drago.DRORegressor(uncertainty, tol=1e-9)
    here = in_memory(model, X, y)
    dX, dy = arrays(X, y)
    model.fit(dX, dy)
    np.testing.assert_allclose(model.coef_, here.coef_, atol=2e-4)
    predicted = model.predict(dX)
    assert predicted.chunks == (dX.chunks[0],)  # lazy, in the same blocks
    np.testing.assert_allclose(predicted.compute(), X @ model.coef_ + model.intercept_, atol=1e-12)
    assert model.score(dX, dy) == pytest.approx(model.score(X, y), abs=1e-12)
    weight = np.random.default_rng(1).uniform(size=N)
    scores = model.score(dX, dy, arrays(X, weight)[1]), model.score(X, y, weight)
    assert scores[0] == pytest.approx(scores[1], abs=1e-12)
    np.testing.assert_allclose(model.losses(dX, dy).compute(), model.losses(X, y), atol=1e-12)
    assert model.dual_weights_.sum().compute() == pytest.approx(1.0)


def test_classifiers_take_labels_of_any_kind_and_frames(rows):
    X, _, labels = rows
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    table = dd.from_pandas(frame.assign(label=labels), npartitions=4)
    dX, dy = table[["u", "v", "w"]], table["label"]
    model = drago.DROClassifier(drago.CVaR(0.3), tol=1e-9).fit(dX, dy)
    here = in_memory(model, frame, labels)
    np.testing.assert_allclose(model.coef_, here.coef_, atol=2e-4)
    assert model.classes_.tolist() == ["a", "b"]
    assert model.feature_names_in_.tolist() == ["u", "v", "w"]
    assert np.array_equal(model.predict(dX).compute(), model.predict(frame))
    np.testing.assert_allclose(model.predict_proba(dX).compute(), model.predict_proba(frame))
    np.testing.assert_allclose(
        model.decision_function(dX).compute(), model.decision_function(frame)
    )
    assert model.score(dX, dy) == pytest.approx(model.score(frame, labels), abs=1e-12)
    kept = pickle.loads(pickle.dumps(model))
    assert np.array_equal(kept.predict(frame), model.predict(frame))


def test_groups_weights_and_a_baseline_model(rows):
    X, y, labels = rows
    weight = np.random.default_rng(2).uniform(0.5, 2.0, size=N)
    dX, dy, dgroups, dweight = arrays(X, y, labels, weight)
    model = drago.DRORegressor("worst_group", tol=1e-9)
    model.fit(dX, dy, groups=dgroups, sample_weight=dweight)
    here = in_memory(model, X, y, groups=labels, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, here.coef_, atol=2e-3)
    model = drago.DRORegressor(drago.CVaR(0.2), baseline=LinearRegression(), tol=1e-8)
    model.fit(dX, dy)
    assert model.baseline_.shape == (N,)
    # A model that has seen neither the row nor its fold.
    inside = drago.DRORegressor(drago.CVaR(0.2), tol=1e-8)
    inside.fit(X, y, baseline=model.baseline_.compute())
    np.testing.assert_allclose(model.coef_, inside.coef_, atol=2e-4)
    plain = (y - LinearRegression().fit(X, y).predict(X)) ** 2 / 2
    assert np.corrcoef(plain, model.baseline_.compute())[0, 1] > 0.99


def test_samples_are_said(rows, monkeypatch):
    from drago.estimators import dask as estimators

    X, y, _ = rows
    dX, dy = arrays(X, y)
    monkeypatch.setattr(estimators, "SAMPLE_ROWS", 600)
    with pytest.warns(UserWarning, match="groups were found on 600 of 1500 rows"):
        found = drago.find_groups(dX, dy, max_groups=2)
    assert found.drawn_from == N
    drawn = estimators.Drawn
    with pytest.warns(UserWarning, match="of 1500 rows"):
        some = estimators.drawn(dX, dy, "it was made", 0)
    assert isinstance(some, drawn)
    np.testing.assert_array_equal(some.X, X[some.numbers])
    np.testing.assert_array_equal(some.y, y[some.numbers])


def test_refusals_name_the_remedy(rows):
    X, y, labels = rows
    dX, dy, dlabels = arrays(X, y, labels)
    with pytest.raises(ValueError, match=r"DRORegressorCV does not take.*sample"):
        drago.DRORegressorCV().fit(dX, dy)
    with pytest.raises(ValueError, match="give sample_weight="):
        drago.DROClassifier(class_weight="balanced").fit(dX, dlabels)
    with pytest.raises(ValueError, match="leave device=None"):
        drago.DRORegressor(device="cpu").fit(dX, dy)
    with pytest.raises(ValueError, match="y is missing"):
        drago.DRORegressor().fit(dX)
    with pytest.raises(ValueError, match="one class only: 'a'"):
        drago.DROClassifier().fit(dX, da.full(N, "a", chunks=400))
    model = drago.DRORegressor().fit(dX, dy)
    with pytest.raises(ValueError, match="rows in memory"):
        model.worst_case_report(dX, dy)
