"""Estimators on sources: the fit, the predictions and the reports of the rows in memory."""

import numpy as np
import pytest
from sklearn.model_selection import KFold

import drago
from drago import CVaR, DROClassifier, DRORegressor
from source_checks import Sliced, files_in

pa = pytest.importorskip("pyarrow", reason="sources of tables need pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

RNG = np.random.default_rng(5)
N = 5000
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=N),
        "b": 1e3 * RNG.normal(size=N) + 5e3,
        "c": RNG.integers(0, 9, N),
        "town": RNG.choice(["x", "y", "z"], N),
        "weight": RNG.integers(0, 3, N).astype(float),
        "sex": RNG.choice(["F", "M"], N),
    }
)
Z = FRAME["a"] - 0.4 * (FRAME["b"] - 5e3) / 1e3 + 0.5 * (FRAME["town"] == "x")
FRAME["y"] = Z + RNG.standard_t(4, N)
FRAME["two"] = np.where(Z + RNG.logistic(size=N) > 0, "yes", "no")
FRAME["three"] = np.digitize(Z + RNG.normal(size=N), [-0.5, 0.7]) * 10
FEATURES = ["a", "b", "c", "town"]
LIMITS = [100_000, "1GB"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("data") / "rows.parquet"
    pq.write_table(pa.Table.from_pandas(FRAME, preserve_index=False), found, row_group_size=700)
    return found


def read(path, target, cache, limit=LIMITS[0], **more):
    return drago.read_parquet(
        path, target, **{"features": FEATURES, **more}, memory_limit=limit, cache_dir=cache
    )


def encoded(frame=FRAME):
    return pd.get_dummies(frame[FEATURES], columns=["town"], prefix_sep="=", dtype=float).astype(
        float
    )


def standardised(X, weight=None):
    mean = np.average(X, axis=0, weights=weight)
    return (X - mean) / np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))


def model_for(target, **settings):
    kind = DRORegressor if target == "y" else DROClassifier
    return kind(CVaR(0.5), shift_cost=0.2, tol=1e-7, **settings)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("target", ["y", "two", "three"])
def test_a_fit_on_a_source_is_that_on_its_rows(tmp_path, path, target, limit):
    source = read(path, target, tmp_path, limit, standardize=True, sample_weight="weight")
    model = model_for(target).fit(source)
    X, y, weight = encoded(), FRAME[target].to_numpy(), FRAME["weight"].to_numpy()
    scaled = standardised(X.to_numpy(), weight)
    there = model_for(target).fit(scaled, y, sample_weight=weight)
    np.testing.assert_allclose(model.result_.primal, there.result_.primal, rtol=1e-6)
    assert model.feature_names_in_.tolist() == X.columns.tolist()
    assert model.n_features_in_ == X.shape[1] and model.result_.status == "optimal"
    # in the unit of the rows, which predict says of arrays, frames and sources alike
    raw = model._raw_prediction(X)
    np.testing.assert_allclose(raw, there._raw_prediction(scaled), atol=2e-3)
    np.testing.assert_allclose(model._raw_prediction(source), raw, atol=1e-9)
    if target == "y":
        np.testing.assert_allclose(model.predict(source), model.predict(X), atol=1e-9)
    else:
        np.testing.assert_array_equal(model.predict(source), model.predict(X))
    np.testing.assert_allclose(model.score(source), model.score(X, y, weight), rtol=1e-9)
    np.testing.assert_allclose(model.losses(source), model.losses(X, y), rtol=1e-9)
    if target != "y":
        np.testing.assert_array_equal(model.classes_, np.unique(y))
        np.testing.assert_allclose(model.predict_proba(source), model.predict_proba(X), atol=1e-12)


@pytest.mark.parametrize("target", ["y", "two"])
def test_reports(tmp_path, path, target):
    source = read(path, target, tmp_path, sample_weight="weight", groups="sex")
    model = model_for(target, max_iter=20_000).fit(
        read(path, target, tmp_path, sample_weight="weight", standardize=True)
    )
    found = model.worst_case_report(source)
    more = {"groups": FRAME["sex"].to_numpy(), "sample_weight": FRAME["weight"].to_numpy()}
    expected = model.worst_case_report(encoded(), FRAME[target].to_numpy(), **more)
    assert str(found) == str(expected)
    with pytest.raises(ValueError, match="groups was given beside Source"):
        model.worst_case_report(source, groups=FRAME["sex"])


@pytest.mark.parametrize("target", ["y", "two", "three"])
def test_predictions_are_written(tmp_path, path, target):
    model = model_for(target).fit(read(path, target, tmp_path, standardize=True))
    out = tmp_path / "out.parquet"
    out.write_text("what was there before")
    assert model.predict_to(read(path, None, tmp_path), out) == N
    found = pq.read_table(out).to_pandas()
    if target == "y":
        np.testing.assert_allclose(found["prediction"], model.predict(encoded()), atol=1e-9)
    else:
        np.testing.assert_array_equal(found["prediction"], model.predict(encoded()))
        names = [f"probability={label}" for label in model.classes_.tolist()]
        assert found.columns.tolist() == ["prediction", *names]
        np.testing.assert_allclose(found[names], model.predict_proba(encoded()), atol=1e-12)
    with pytest.raises(TypeError, match="predict_to takes a source"):
        model.predict_to(encoded(), out)


def test_a_failure_leaves_what_was_there(tmp_path, path):
    model = model_for("y").fit(read(path, "y", tmp_path / "c", standardize=True))
    out = tmp_path / "out.parquet"
    out.write_text("what was there before")

    def batches():
        yield encoded().to_numpy(), np.zeros(N)
        raise OSError("the reader broke")

    with pytest.raises(OSError, match="the reader broke"):
        model.predict_to(drago.from_batches(batches), out)
    assert out.read_text() == "what was there before"
    assert [file.name for file in files_in(tmp_path) if "partial" in file.name] == []


def test_other_files_have_the_features_of_the_fit(tmp_path, path):
    """Their columns in another order, and not all words."""
    model = model_for("y").fit(read(path, "y", tmp_path, standardize=True))
    some = FRAME[FRAME["town"] != "y"][["town", "c", "sex", "b", "a"]]
    pq.write_table(pa.Table.from_pandas(some, preserve_index=False), tmp_path / "new.parquet")
    found = model.predict(drago.read_parquet(tmp_path / "new.parquet"))
    expected = model.predict(encoded()[(FRAME["town"] != "y").to_numpy()])
    np.testing.assert_allclose(found, expected, atol=1e-9)
    pq.write_table(
        pa.Table.from_pandas(some.assign(town="q"), preserve_index=False), tmp_path / "q.parquet"
    )
    with pytest.raises(ValueError, match="column 'town' holds the category 'q'"):
        model.predict(drago.read_parquet(tmp_path / "q.parquet"))
    with pytest.raises(ValueError, match="has no feature 'a'"):
        model.predict(drago.read_parquet(tmp_path / "new.parquet", features=["b", "c", "town"]))
    narrow = drago.from_arrays(np.ones((3, 2)), memory_limit="1GB")
    with pytest.raises(ValueError, match="has 2 features, but DRORegressor was fitted on 6"):
        model.predict(narrow)


def test_models_of_sources_are_saved(tmp_path, path):
    model = model_for("two").fit(read(path, "two", tmp_path, standardize=True))
    drago.save(model, tmp_path / "model.drago")
    back = drago.load(tmp_path / "model.drago")
    source = read(path, None, tmp_path)
    np.testing.assert_array_equal(back.predict(source), model.predict(source))


def test_without_an_intercept_and_unscaled(tmp_path):
    X = RNG.normal(size=(3000, 4)).astype(np.float32)
    y = X @ [1.0, 2.0, 0.0, -1.0] + RNG.normal(size=3000)
    source = drago.from_arrays(Sliced(X), y, memory_limit=50_000, cache_dir=tmp_path)
    model = DRORegressor(CVaR(0.5), fit_intercept=False).fit(source)
    there = DRORegressor(CVaR(0.5), fit_intercept=False).fit(X, y)
    assert model.coef_.dtype == np.float32 and model.intercept_ == 0.0
    np.testing.assert_allclose(model.coef_, there.coef_, atol=0.02)
    assert not hasattr(model, "feature_names_in_")


def test_groups_and_a_baseline_of_the_source(tmp_path):
    X = RNG.normal(size=(3000, 4))
    y = X @ [1.0, 2.0, 0.0, -1.0] + RNG.normal(size=3000)
    groups, baseline = RNG.choice(["a", "b"], 3000), RNG.uniform(size=3000)
    source = drago.from_arrays(
        Sliced(X), y, groups=groups, baseline=baseline, memory_limit=50_000, cache_dir=tmp_path
    )
    model = DRORegressor("worst_group", tol=1e-6).fit(source)
    there = DRORegressor("worst_group", tol=1e-6).fit(X, y, groups=groups, baseline=baseline)
    np.testing.assert_allclose(model.result_.primal, there.result_.primal, rtol=1e-3)


def test_warm_starts(tmp_path, path):
    source = read(path, "two", tmp_path, standardize=True)
    model = model_for("two", warm_start=True).fit(source)
    steps = model.n_iter_
    assert model.fit(source).n_iter_ < steps


@pytest.mark.parametrize(
    "model, message",
    [
        (DROClassifier(class_weight="balanced"), "class_weight='balanced' does not go with"),
        (DROClassifier(baseline=3), "baseline must be None, 'auto' or an estimator"),
        (DROClassifier(device="cpu"), "device='cpu' does not go with Source"),
        (DROClassifier("worst_group"), "name groups= where the source is made"),
        (DROClassifier(group_columns="sex"), "for a source name groups="),
        (drago.DROClassifierCV(cv=KFold(3)), "cv must be None or a number of folds"),
    ],
)
def test_what_a_source_cannot_do(tmp_path, path, model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(read(path, "two", tmp_path))
    assert not hasattr(model, "classes_")


def test_what_is_given_beside_a_source(tmp_path, path):
    source = read(path, "two", tmp_path)
    for given in ({"y": FRAME["two"]}, {"sample_weight": FRAME["weight"]}):
        with pytest.raises(ValueError, match="was given beside Source"):
            DROClassifier().fit(source, **given)
    model = model_for("two").fit(read(path, "two", tmp_path, standardize=True))
    with pytest.raises(ValueError, match="y was given beside Source"):
        model.score(source, FRAME["two"])
    with pytest.raises(ValueError, match="has no target"):
        model.score(read(path, None, tmp_path))
    with pytest.raises(TypeError, match="y was given beside Source"):
        drago.robust_path(source, FRAME["y"])
    for function in (drago.find_groups, drago.audit):
        with pytest.raises(ValueError, match="y was given beside Source"):
            function(source, FRAME["y"])
        with pytest.raises(ValueError, match="has no target"):
            function(read(path, None, tmp_path))


# ---------------------------------------------------------------------- what takes a sample


def test_found_groups_of_a_source(tmp_path, path):
    source = read(path, "y", tmp_path, "1GB")
    found = drago.find_groups(source, max_groups=3)
    there = drago.find_groups(encoded(), FRAME["y"], max_groups=3)
    assert found.rules == there.rules and found.drawn_from is None
    with pytest.warns(UserWarning, match="groups were found on 1000 rows drawn from 5000"):
        found = drago.find_groups(read(path, "two", tmp_path), max_groups=3, random_state=4)
    rows = read(path, "two", tmp_path).sample(1000, random_state=4)
    assert found.n_found_on + found.n_judged_on == 1000 and found.drawn_from == N
    assert set(found.judged_on) < set(rows.numbers)
    assert repr(found).endswith("drawn from 5000)") and "drawn from 5000" in str(found)


def test_a_group_finder_of_a_source(tmp_path, path):
    with pytest.warns(UserWarning, match="groups were found on 1000 rows"):
        finder = drago.GroupFinder(max_groups=3).fit(read(path, "y", tmp_path))
    assert finder.transform(encoded()).shape == (N, finder.found_.n_groups - 1)
    with pytest.raises((TypeError, UserWarning)):
        finder.transform(read(path, "y", tmp_path))


def test_an_audit_of_a_source(tmp_path, path):
    with pytest.warns(UserWarning, match="the audit is made on 1000 rows drawn from 5000"):
        found = drago.audit(
            read(path, "two", tmp_path, groups="sex"), time_budget=0, n_repeats=1, verbose=0
        )
    assert found.comparison.n_rows < 1000
    assert "A source of 5000 rows: this is about 1000 of them" in str(found)
    assert found.model.predict(encoded()).shape == (N,)


# ------------------------------------------------------- everything after a fit, on a source


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("target", ["y", "two", "three"])
def test_after_a_fit_with_groups_and_a_baseline(target, limit, tmp_path):
    X, y = encoded().to_numpy(), FRAME[target].to_numpy()
    baseline = np.abs(FRAME["a"].to_numpy()) / 10
    groups, weight = FRAME["sex"].to_numpy(), FRAME["weight"].to_numpy()
    given = {"sample_weight": weight, "groups": groups, "baseline": baseline}
    X = standardised(X)
    source = drago.from_arrays(Sliced(X), y, **given, memory_limit=limit, cache_dir=tmp_path)
    kind = DRORegressor if target == "y" else DROClassifier
    model = kind("worst_group", tol=1e-8).fit(source)
    there = kind("worst_group", tol=1e-8).fit(X, y, **given)
    np.testing.assert_allclose(model.coef_, there.coef_, atol=2e-3)
    np.testing.assert_allclose(model.losses(source), model.losses(X, y), rtol=1e-9)
    if target == "y":
        np.testing.assert_allclose(model.predict(source), model.predict(X), rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_array_equal(model.predict(source), model.predict(X))
    if target != "y":
        np.testing.assert_allclose(model.predict_proba(source), model.predict_proba(X), rtol=1e-9)
    assert model.score(source) == pytest.approx(model.score(X, y, weight), rel=1e-9)
    report = model.worst_case_report(source)
    other = model.worst_case_report(X, y, **given)
    assert report.worst_case_loss == pytest.approx(other.worst_case_loss, rel=1e-6)
    assert report.groups["group"].tolist() == other.groups["group"].tolist()
    np.testing.assert_allclose(report.dual_weights, other.dual_weights, atol=1e-9)
    settings = {"uncertainty": drago.Grouped(drago.Simplex()), "fit_intercept": True,
                "loss": model.loss_, "shift_cost": model.shift_cost_}  # fmt: skip
    problem = drago.DROProblem(source, **settings)
    result = model.result_
    certificate = drago.certify(problem, result.coef, result.intercept)
    assert certificate.primal == pytest.approx(result.primal, rel=1e-9)
    assert certificate.rel_gap <= 1e-6


def test_a_path_on_a_source(tmp_path, path):
    settings = {"tail_fractions": [1.0, 0.5], "shift_costs": 0.1, "tol": 1e-6}
    found = drago.robust_path(read(path, "y", tmp_path), **settings)
    there = drago.robust_path(encoded().to_numpy(), FRAME["y"], **settings)
    for here, other in zip(found.results, there.results):
        assert here.primal == pytest.approx(other.primal, rel=1e-5)


def test_a_device_and_a_source(tmp_path, path):
    problem = drago.DROProblem(read(path, "y", tmp_path), fit_intercept=True)
    with pytest.raises(ValueError, match=r"rows in files or in parts .*: leave device=None"):
        drago.solve(problem, device="cpu")
