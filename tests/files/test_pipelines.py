"""Pipelines in model files: the same bits in a new process, and nothing that is not known."""

import hashlib
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import sklearn
from sklearn.compose import ColumnTransformer, make_column_selector, make_column_transformer
from sklearn.decomposition import PCA
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

import drago
from drago import DROClassifier, DRORegressor, ModelFileError, load, save
from drago.files import models, transformers

from .test_models import EMPTY, refused, same, sealed

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=60)
TRANSFORMERS = [
    StandardScaler(),
    StandardScaler(with_mean=False),
    MinMaxScaler((-1, 1)),
    MaxAbsScaler(),
    RobustScaler(),
    Normalizer(),
    QuantileTransformer(n_quantiles=7, output_distribution="normal", random_state=3),
    PowerTransformer(),
    PolynomialFeatures(2, include_bias=False),
    FunctionTransformer(),
    VarianceThreshold(),
    SimpleImputer(strategy="median", add_indicator=True),
    MissingIndicator(features="all"),
    OrdinalEncoder(encoded_missing_value=-1, dtype=np.float32),
    OneHotEncoder(handle_unknown="ignore", sparse_output=False),
    OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=4, dtype=float),
    make_union(StandardScaler(), PolynomialFeatures(2)),
    make_column_transformer((StandardScaler(), [0, 2]), remainder="passthrough"),
    make_column_transformer(
        (StandardScaler(), slice(0, 2)), (MinMaxScaler(), [False, False, True])
    ),
    make_column_transformer(("drop", [0]), remainder=RobustScaler()),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.drago"


def holes(X):
    X = np.round(X, 0)
    X[::7, 1] = np.nan
    return X


def takes_holes(step):
    return isinstance(step, (SimpleImputer, MissingIndicator, OrdinalEncoder, OneHotEncoder))


def bits(model, X):
    names = ("predict", "predict_proba", "decision_function")
    return b"".join(
        np.asarray(getattr(model, name)(X)).tobytes() for name in names if hasattr(model, name)
    )


@pytest.mark.parametrize("step", TRANSFORMERS, ids=lambda step: repr(step)[:50])
def test_each_transformer(path, step):
    rows = holes(X) if takes_holes(step) else X
    model = make_pipeline(sklearn.clone(step), DRORegressor()).fit(rows, Y)
    save(model, path)
    back = load(path)
    assert bits(back, rows) == bits(model, rows)
    assert repr(back) == repr(model)
    assert same(vars(back[0]), vars(model[0]))
    before = path.read_bytes()
    save(back, path)
    assert path.read_bytes() == before
    again = sklearn.clone(back).fit(rows, Y)
    assert bits(again, rows) == bits(model, rows)


def test_every_known_class_is_tried():
    tried = {type(step).__name__ for step in TRANSFORMERS} | {"Pipeline"}
    assert tried == set(transformers.known())
    assert {"FeatureUnion", "ColumnTransformer"} <= tried
    assert FeatureUnion in transformers.known().values()


def frame():
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    table = pandas.DataFrame(
        {
            "größe": rng.normal(size=80),
            "stadt": rng.choice(["Köln", "Łódź", "東京"], 80).astype(object),
            "flag": rng.random(80) > 0.5,
        }
    )
    table.loc[::9, "größe"] = np.nan
    table.loc[::11, "stadt"] = np.nan
    return table


def mixed():
    numbers = Pipeline(
        [
            ("fill", SimpleImputer(strategy="median", add_indicator=True)),
            ("scale", StandardScaler()),
        ]
    )
    words = Pipeline(
        [
            ("fill", SimpleImputer(strategy="constant", fill_value="missing")),
            ("encode", OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=3)),
        ]
    )
    parts = [("numbers", numbers, ["größe", "flag"]), ("words", words, ["stadt"])]
    return make_pipeline(ColumnTransformer(parts), DROClassifier(drago.CVaR(0.5)))


def test_a_frame_with_words_and_holes_in_a_new_process(path):
    table = frame()
    model = mixed().fit(table, np.where(RNG.random(80) > 0.5, "ja", "nein"))
    save(model, path)
    table.to_pickle(path.with_name("table.pkl"))
    code = f"""
import pandas, sys, drago
table = pandas.read_pickle({str(path.with_name("table.pkl"))!r})
model = drago.load({str(path)!r})
sys.stdout.buffer.write(model.predict_proba(table).tobytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == model.predict_proba(table).tobytes()
    assert load(path).predict(table).tolist() == model.predict(table).tolist()


def test_skops_stores_what_a_model_file_does_not():
    skops = pytest.importorskip("skops.io")
    model = make_pipeline(PCA(2), DRORegressor()).fit(X, Y)
    content = skops.dumps(model)
    unknown = skops.get_untrusted_types(data=content)
    assert all(name.startswith("drago.") for name in unknown)
    back = skops.loads(content, trusted=unknown)
    assert bits(back, X) == bits(model, X)


# ------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: make_pipeline(model)])
def test_weights_of_the_rows_are_left_out_unless_wanted(path, wrap):
    model = wrap(DRORegressor(drago.CVaR(0.5), warm_start=True))
    model.fit(X, Y)
    last = model[-1] if hasattr(model, "steps") else model
    last.baseline_ = Y.copy()
    save(model, path)
    small = path.stat().st_size
    back = load(path)
    found = back[-1] if hasattr(back, "steps") else back
    assert found.dual_weights_.size == found.result_.dual_weights.size == found.baseline_.size == 0
    assert bits(back, X) == bits(model, X)
    assert found.result_.gap == last.result_.gap and len(found.history_) == len(last.history_)
    back.fit(X, Y)  # a warm start without weights
    save(model, path, include_weights=True)
    back = load(path)
    found = back[-1] if hasattr(back, "steps") else back
    assert same(found.dual_weights_, last.dual_weights_) and same(found.baseline_, Y)
    assert path.stat().st_size > small + X.shape[0] * 8
    with pytest.raises(TypeError, match="include_weights"):
        save(model, path, include_weights="yes")


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (make_pipeline(PCA(2), DRORegressor()), r"steps\[0\]\[1\] is PCA.*joblib or skops"),
        (make_pipeline(FunctionTransformer(np.log), DRORegressor()), r"func is <ufunc 'log'>"),
        (Pipeline([("m", DRORegressor())], memory="/tmp/x"), r"memory='/tmp/x' is not stored"),
        (
            make_pipeline(
                make_column_transformer((StandardScaler(), make_column_selector())), DRORegressor()
            ),
            r"make_column_selector",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(path, model, message):
    with pytest.raises(TypeError, match=message):
        save(model, path)
    assert not path.exists()


def test_a_private_attribute_of_another_version_is_refused(path):
    model = make_pipeline(StandardScaler(), DRORegressor()).fit(X, Y)
    model[0]._news = 1
    with pytest.raises(TypeError, match=r"'_news' is not known as an attribute of a fitted Stan"):
        save(model, path)


def of(kind, params=None, fitted=None):
    inner = {kind: {"params": params or {}, "fitted": fitted or {}, "requests": {}}}
    steps = [{"tuple": ["a", inner]}]
    return {"Pipeline": {**EMPTY, "params": {"steps": steps}}}


@pytest.mark.parametrize(
    "model",
    [
        of("StandardScaler", fitted={"transform": 1}),
        of("StandardScaler", fitted={"__class__": 1}),
        of("StandardScaler", fitted={"_news": 1}),
        of("StandardScaler", {"color": 1}),
        of("Pipeline", {"steps": [], "memory": "/tmp"}),
        of("FunctionTransformer", {"func": {"function": "os.system"}}),
        of("PCA"),
        of("OneHotEncoder", {"dtype": {"type": "os.system"}}),
        of("OneHotEncoder", {"dtype": {"dtype": "M8[D]"}}),
        of("OneHotEncoder", {"dtype": {"dtype": "i4,i4"}}),
        of("OneHotEncoder", {"dtype": {"slice": [1, 2, 3, 4]}}),
        {"StandardScaler": EMPTY},
    ],
)
def test_forged_files(path, model):
    refused(path, sealed(model), r"(drago '9\.9' wrote|it holds no model)")


def test_another_version_of_scikit_learn_is_said(path, monkeypatch):
    model = make_pipeline(StandardScaler(), DRORegressor()).fit(X, Y)
    monkeypatch.setattr(transformers, "version", lambda: "1.0.0")
    save(model, path)
    monkeypatch.undo()
    with pytest.warns(InconsistentVersionWarning, match=r"Pipeline from version 1\.0\.0"):
        load(path)


def test_notes(path):
    models.write(DRORegressor(), path, notes={"target": "ü", "columns": ["a"]})
    model, notes = models.read(path)
    assert isinstance(model, DRORegressor) and notes == {"target": "ü", "columns": ["a"]}
    save(model, path)
    assert models.read(path)[1] == {}


# -------------------------------------------------------------------------------------- fuzzing


def mutated(content, rng):
    """A few bytes flipped, cut or inserted, at random places."""
    out = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(out)) if out else 0
        kind = rng.choice(["flip", "set", "cut", "insert", "truncate", "move"])
        length = rng.choice([1, 1, 2, 8, 64, 1000])
        if kind == "flip" and out:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == "set" and out:
            out[place] = rng.randrange(256)
        elif kind == "cut":
            del out[place : place + length]
        elif kind == "insert":
            out[place:place] = rng.randbytes(length)
        elif kind == "truncate":
            del out[place:]
        else:
            there = rng.randrange(len(out)) if out else 0
            out[place : place + length] = out[there : there + length]
    return bytes(out)


def resealed(content):
    """With the sum that it should have: what only somebody who wants to would do."""
    body = content[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def fuzz(path, count, seal):
    table = frame()
    model = mixed().fit(table, np.where(RNG.random(80) > 0.5, "ja", "nein"))
    save(model, path)
    whole, told, rng = path.read_bytes(), bits(model, table), random.Random(0)
    refused_ones = 0
    for _ in range(count):
        content = resealed(mutated(whole[:-64], rng) + whole[-64:]) if seal else mutated(whole, rng)
        path.write_bytes(content)
        try:
            back = load(path)
        except ModelFileError as error:
            assert str(path) in str(error)
            refused_ones += 1
        else:
            if not seal:  # nobody repairs a sum by chance
                assert content == whole or bits(back, table) == told
            assert isinstance(back, Pipeline)
    return refused_ones


@pytest.mark.parametrize(
    "count", [400, pytest.param(10_000, marks=pytest.mark.slow)], ids=["quick", "slow"]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.InconsistentVersionWarning")
@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize("seal", [False, True], ids=["damaged", "forged"])
def test_a_changed_file_is_refused_or_equal(path, count, seal):
    """With a sum that fits, it is refused or another model: never anything else."""
    assert fuzz(path, count, seal) > 0.3 * count
    assert os.listdir(path.parent) == [path.name]
