"""Model files: bit for bit, whole at every instant, safe to load; pickle, joblib and skops too."""

import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import pickle
import re
import struct
import sys
import warnings
import zipfile

import joblib
import numpy as np
import pytest
import sklearn
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import BaseEstimator, clone

import drago
from drago import DROClassifier, DRORegressor, ModelFileError, load, save
from drago.result import History, Record, SolverResult, Status
from drago.terms.constraints import Everything

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=40)
CODES = np.digitize(Y, [-1.0, 1.0])


def same(a, b):
    """Equal to the last bit and with the same types; NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        if (a.dtype, a.shape, a.flags.f_contiguous) != (b.dtype, b.shape, b.flags.f_contiguous):
            return False
        return same(a.tolist(), b.tolist()) if a.dtype == object else a.tobytes() == b.tobytes()
    if isinstance(a, np.generic):
        return same(np.asarray(a), np.asarray(b))
    if type(a) is float:
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if hasattr(a, "__dict__") and not isinstance(a, Status):
        return same(vars(a), vars(b))
    return a == b


def test_the_comparison_tells_apart():
    """The tests below would pass if everything were the same."""
    values = [
        None, 0, 0.0, -0.0, False, "", np.float64(0), np.float32(0), np.int64(0), [], (), {}, [0],
        (0,), {0: 0}, {"0": 0}, {False: 0}, np.zeros(1), np.zeros(1, "f4"), np.zeros((1, 1)),
        np.array([""]), np.array([""], object), drago.CVaR(), drago.CVaR(0.2), drago.Simplex(),
        Status.OPTIMAL, "optimal", DRORegressor(), DROClassifier(), math.nan, math.inf,
    ]  # fmt: skip
    for k, a in enumerate(values):
        assert [same(a, b) for b in values] == [j == k for j in range(len(values))], a


def fitted(model, y=Y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
        return model.fit(options.pop("X", X), y, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.drago"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def round_trip(path, model):
    save(model, path, include_weights=True)
    back = load(path)
    assert same(model, back)
    return back


# ---------------------------------------------------------------------------------- round trips

SETS = [
    "cvar", drago.CVaR(0.2), drago.CVaR(1), drago.CVaR(np.float32(0.5)), drago.Simplex(),
    drago.Extremile(3), drago.ESRM(2.5), drago.Chi2Ball(0.5), drago.KLBall(), drago.Grouped(),
    drago.Grouped(drago.ESRM(np.float64(0.5))),
]  # fmt: skip
LOSSES = [
    "huber", drago.Squared(), drago.Huber(0.1), drago.Logistic(), drago.Multinomial(),
]  # fmt: skip
CONSTRAINTS = [
    drago.Box(), drago.Box(0, [1.0, math.inf, 3.0]), drago.Box(np.full(3, -np.inf), 2.0),
    drago.NonNegative(), drago.L2Ball(0.3), Everything(),
]  # fmt: skip
SOLVERS = [
    "lbfgs", drago.Drago(), drago.Drago(0.25, block_size=7, finish="none", n_threads=2),
    drago.Drago("theory", metric="euclidean"), drago.LBFGS(memory=5), drago.Newton(),
    drago.SGD(0.1), drago.LSVRG(), drago.Prospect(1e-3), drago.GradientDescent(), drago.AGOG(),
]  # fmt: skip
PARAMS = [
    *({"uncertainty": value} for value in SETS),
    *({"loss": value} for value in LOSSES),
    *({"divergence": value} for value in ("kl", drago.Chi2(), drago.KL())),
    *({"constraint": value} for value in CONSTRAINTS),
    *({"solver": value} for value in SOLVERS),
    {"shift_cost": 0, "l2_reg": np.float32(0.1), "tol": math.inf, "time_limit": 10},
    {"random_state": np.int32(3), "n_jobs": -1, "verbose": True, "max_iter": 2**70},
    {"fit_intercept": np.False_, "warm_start": True, "uncertainty": None, "loss": np.str_("huber")},
]


@pytest.mark.parametrize("params", PARAMS, ids=repr)
def test_parameters(path, params):
    model = DRORegressor(**params)
    back = round_trip(path, model)
    assert same(back.get_params(deep=False), model.get_params(deep=False))
    assert repr(back) == repr(model)
    assert same(clone(back), clone(model))


@pytest.mark.parametrize(
    "weight",
    [
        "balanced", {0: 1, 1: 2.5}, {True: 1.0, False: 3}, {"a": 1, "ü\0": 2}, {np.int64(3): 1},
        {np.str_("a"): np.float32(1)}, {0.5: 1, math.inf: 2}, {np.True_: 1},
    ],
    ids=repr,
)  # fmt: skip
def test_class_weights_keep_their_keys(path, weight):
    assert same(round_trip(path, DROClassifier(class_weight=weight)).class_weight, weight)


@pytest.mark.parametrize(
    "model",
    [
        DRORegressor(),
        DRORegressor(fit_intercept=False, shift_cost=0.0, solver="newton"),
        DRORegressor(drago.KLBall(0.3), loss=drago.Huber(0.5), solver=drago.LBFGS(memory=3)),
        DRORegressor(constraint=drago.Box([-1, 0, 0], 1), solver=drago.Drago(), random_state=3),
        DRORegressor(max_iter=1, solver="gd"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_fitted_regressors(path, model, dtype):
    model = fitted(clone(model), X=X.astype(dtype))
    back = round_trip(path, model)
    assert back.coef_.dtype == back.intercept_.dtype == dtype
    assert same(back.predict(X), model.predict(X))
    assert same(back.losses(X, Y), model.losses(X, Y))
    assert back.result_.status is model.result_.status
    assert repr(back.result_) == repr(model.result_) and len(back.history_) > 0
    assert same(back.history_.rel_gap, model.history_.rel_gap)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["a", "bc"]),
        np.array(["ü", "b\0c", "d"]),
        np.array(["a", "b\0", ""], dtype=object),
        np.array([-3, 7], dtype=np.int16),
        np.array([0, 1, 2], dtype=np.uint8),
        np.array([False, True]),
        np.array([0.0, 1.0, 5.0]),
    ],
    ids=lambda labels: f"{labels.dtype}-{labels.size}",
)
def test_fitted_classifiers(path, labels):
    y = labels[CODES % labels.size]
    model = fitted(DROClassifier(drago.CVaR(0.5), class_weight="balanced"), y)
    back = round_trip(path, model)
    assert back.classes_.dtype == labels.dtype
    for method in ("predict", "predict_proba", "decision_function"):
        assert same(getattr(back, method)(X), getattr(model, method)(X))
    assert back.score(X, y) == model.score(X, y)


def test_names_of_features(path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "ü"])
    model = fitted(DRORegressor(), X=frame)
    back = round_trip(path, model)
    assert back.feature_names_in_.tolist() == ["a", "b", "ü"]
    assert same(back.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame[["b", "a", "ü"]])


def test_grouped(path):
    model = fitted(DRORegressor(drago.Grouped("cvar")), groups=CODES)
    back = round_trip(path, model)
    reports = [str(one.worst_case_report(X, Y, groups=CODES)) for one in (model, back)]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("Model", [drago.DRORegressorCV, drago.DROClassifierCV])
def test_models_chosen_by_cross_validation(path, Model):
    model = Model([drago.CVaR(0.5)], l2_regs=np.array([0.1, 0.01]), baseline=None, cv=2)
    round_trip(path, model)
    fitted(model, CODES)
    back = round_trip(path, model)
    assert same(back.predict(X), model.predict(X)) and back.best_params_ == model.best_params_


def test_a_model_in_a_model(path):
    model = DRORegressor()
    inner = fitted(DROClassifier(), CODES)
    model.models_ = [inner, {"a": (inner, None)}]
    back = round_trip(path, model)
    assert same(back.models_[1]["a"][0].predict(X), inner.predict(X))


def test_a_warm_start_goes_on(path):
    for model, y in (
        (DRORegressor(warm_start=True, max_iter=2, solver="gd"), Y),
        (DROClassifier(warm_start=True, max_iter=2, solver="gd"), CODES),
    ):
        back = round_trip(path, fitted(model, y))
        coef = model.coef_.copy()
        fitted(model, y)
        fitted(back, y)
        assert same(back.coef_, model.coef_) and not same(coef, model.coef_)


def test_a_clone_of_a_loaded_model(path):
    model = fitted(DRORegressor(drago.CVaR(0.2), constraint=drago.Box(-1, [1, 2, 3])))
    back = clone(round_trip(path, model))
    assert not hasattr(back, "coef_") and same(vars(back), vars(clone(model)))
    assert same(fitted(back).coef_, model.coef_)


def test_a_set_of_a_loaded_model_can_be_changed(path):
    back = round_trip(path, fitted(DRORegressor(drago.Grouped(drago.CVaR(0.5))), groups=CODES))
    back.set_params(uncertainty__inner__tail_fraction=0.25)
    assert back.uncertainty == drago.Grouped(drago.CVaR(0.25))


def test_requests_for_metadata(path):
    with sklearn.config_context(enable_metadata_routing=True):
        model = DRORegressor().set_fit_request(groups=True, sample_weight="mass")
        model.set_score_request(sample_weight=False)
    save(model, path)
    back = load(path)
    assert str(back.get_metadata_routing()) == str(model.get_metadata_routing())
    assert "mass" in str(back.get_metadata_routing()) and clone(back).get_params()
    assert not hasattr(round_trip(path, DRORegressor()), "_metadata_request")


SCALARS = hnp.scalar_dtypes().filter(lambda t: t.kind in "biuf" and t.itemsize <= 8)
PLAIN_DTYPES = SCALARS | hnp.unicode_string_dtypes(max_len=4)
ARRAYS = PLAIN_DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
)
OBJECTS = hnp.arrays(object, hnp.array_shapes(min_dims=0, min_side=0), elements=st.text())
NUMBERS = PLAIN_DTYPES.flatmap(lambda dtype: hnp.from_dtype(dtype.newbyteorder("=")))
KEYS = st.booleans() | st.integers() | st.floats() | st.text() | NUMBERS
VALUES = st.recursive(
    st.none() | KEYS | ARRAYS | OBJECTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
@example({"coef_": np.asfortranarray(np.eye(3)[:, :2]), "a.b": np.ones(2), "a/b": np.zeros(2)})
@example({"a": {"tuple": [], "array": 1}, "b": [{"CVaR": {}}], "c": [np.ones(1)] * 2})
@example({"\ud800": "\0", "x" * 200: np.ones(1), "array-1": np.zeros(1), ".array-1": np.ones(2)})
@example({"a": np.array([["a\0", np.str_("b")]], dtype=object), "b": np.empty((0, 3), object)})
@example({"a": np.array(["a\0", ""]), "b": [-0.0, math.nan, -math.inf, 5e-324, -(10**1000)]})
@example({"a": Status.STALLED, "b": History(), "c": Record(1, 2.0, 3, *[0.5] * 6), "d": [True]})
@example({"a": History((Record(1, 2, np.int64(3), *[math.nan] * 6), Record(*range(9))))})
def test_attributes_of_any_kind(folder, attributes):
    model = DRORegressor()
    vars(model).update({f"{name}_": value for name, value in attributes.items()})
    save(model, folder / "any")
    assert same(vars(load(folder / "any")), vars(model))


@pytest.mark.parametrize("name", ["predict", "coef", "_skl_callbacks", "__class__", "set_params"])
def test_attributes_that_no_fit_leaves_are_refused(path, name):
    """They would hide a method, or be taken for something else."""
    model = DRORegressor()
    vars(model)[name] = "x"
    save(model, path)
    with pytest.raises(ModelFileError, match=name):
        load(path)


def test_arrays_that_are_there_twice_are_stored_once(path):
    model = fitted(DRORegressor())
    assert model.dual_weights_ is model.result_.dual_weights
    back = round_trip(path, model)
    assert back.dual_weights_ is back.result_.dual_weights
    assert back.coef_ is not back.result_.coef and back.coef_.flags.writeable


def test_views_and_mapped_arrays(path, tmp_path):
    model = DRORegressor()
    np.save(tmp_path / "a.npy", Y)
    model.mapped_ = np.load(tmp_path / "a.npy", mmap_mode="r")
    model.view_ = np.arange(20.0).reshape(4, 5)[::-2, 1::2]
    model.swapped_ = np.arange(3, dtype=">f4")
    save(model, path)
    back = load(path)
    assert type(back.mapped_) is np.ndarray and np.array_equal(back.mapped_, Y)
    assert np.array_equal(back.view_, model.view_) and same(back.swapped_, model.swapped_)


def test_every_settings_object_and_result_is_covered():
    """A new class of drago's has to find its place in the table."""
    from drago.files.models import _CLASSES

    left_out = {"Certificate", "CheckpointError", "DROProblem", "ModelFileError", "Spectrum"}
    left_out |= {"RobustPath", "WorstCaseReport", "CollapseWarning", "FoundGroups", "GroupFinder"}
    left_out |= {"Audit", "Comparison", "Source", "SourceChangedError", "CacheError"}
    left_out |= {"ClusterError"}
    public = {name for name in drago.__all__ if isinstance(getattr(drago, name), type)}
    assert public - left_out <= set(_CLASSES)
    assert {History, Record, SolverResult, Status} <= set(_CLASSES.values())


# ------------------------------------------------------------------------------------ the file


def test_the_file_is_an_npz_under_exactly_its_name(path):
    model = fitted(DRORegressor(constraint=drago.Box(-1, 1)))
    save(model, path)
    save(model, str(path))
    assert os.listdir(path.parent) == [path.name]
    with np.load(path, allow_pickle=False) as archive:
        assert same(archive["coef_"], model.coef_)
        assert {"dual_weights_", "result_.coef", "constraint.low"} <= set(archive.files)
    with zipfile.ZipFile(path) as archive:
        settings = json.loads(archive.read("drago-model.json"))
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_STORED}
    assert settings["drago"] == drago.__version__ and list(settings["model"]) == ["DRORegressor"]
    assert re.fullmatch(rb"drago model 1 sha256 [0-9a-f]{64}", path.read_bytes()[-85:])


def test_the_same_model_is_the_same_bytes(path, monkeypatch):
    model = fitted(DRORegressor())
    save(model, path)
    content = path.read_bytes()
    monkeypatch.chdir(path.parent)
    save(load(path), "here")
    assert (path.parent / "here").read_bytes() == content
    assert path.stat().st_mode == (path.parent / "here").stat().st_mode


def failing(original, calls, stop, error):
    """A system call that is noted, and fails where it is the one to stop at."""

    def call(*args):
        calls.append(original.__name__)
        if len(calls) == stop:
            raise error
        return original(*args)

    return call


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_an_error_at_any_system_call(path, monkeypatch, error):
    """The old model or the new one is there, and no partial file stays."""
    for stop in range(1, 20):
        save(DRORegressor(tol=0.5), path)
        calls, raised = [], False
        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "open", "close"):
                patch.setattr(os, name, failing(getattr(os, name), calls, stop, error))
            try:
                save(DRORegressor(tol=0.25), path)
            except type(error):
                raised = True
        assert os.listdir(path.parent) == [path.name]
        replaced = "replace" in calls[: stop - 1]
        assert load(path).tol == (0.25 if replaced else 0.5)
        assert raised or replaced
        if len(calls) < stop:
            break
    assert calls == ["fsync", "replace", "open", "fsync", "close"]


# ------------------------------------------------------------------------- what save refuses


def own_loss(y, raw):
    return 0.5 * (raw - y) ** 2, raw - y


class OwnSet:
    def worst_case(self, u, c, divergence, p):
        return p

    def q_max(self, p):
        return p.max()


class OwnCVaR(drago.CVaR):
    pass


class OwnRegressor(DRORegressor):
    pass


class Word(str):
    pass


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


HOLDS_ITSELF: list = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", own_loss, r"DRORegressor\.loss is <function own_loss .* use pickle, joblib or"),
        ("loss", drago.terms.losses.UserLoss(own_loss), r"UserLoss\(own_loss\) \(UserLoss\)"),
        ("uncertainty", OwnSet(), r"DRORegressor\.uncertainty is .*\(OwnSet\), which drago.save"),
        ("uncertainty", OwnCVaR(), r"\(OwnCVaR\), which .* no other classes; use pickle"),
        ("uncertainty", drago.Spectrum(integral=np.square), r"Spectrum.* no functions"),
        ("uncertainty", drago.Grouped(drago.Spectrum(np.ones_like)), r"uncertainty\.inner is Spec"),
        ("uncertainty", drago.CVaR, r"type.*, which drago.save does not store"),
        ("random_state", np.random.RandomState(0), r"random_state is a RandomState.* give an int"),
        ("random_state", np.random.default_rng(0), r"random_state is Generator"),
        ("a_", [1, {"b": (2, print)}], r"DRORegressor\.a_\[1\]\['b'\]\[1\] is <built-in"),
        ("a_", {(1, 2): 3}, r"a_ has the key \(1, 2\) \(tuple\), but .* numbers, bool and str"),
        ("a_", {None: 3}, r"has the key None \(NoneType\)"),
        ("a_", np.array([1, ()], dtype=object), r"a_ is an array of objects, but .* of str, num"),
        ("a_", np.array(["2020-01-01"], "M8[D]"), r"an array of dtype datetime64\[D\], but"),
        ("a_", np.zeros(2, dtype=[("x", "O")]), r"an array of dtype .*\('x', 'O'\)"),
        ("a_", np.array([1j]), r"dtype complex128, but drago.save takes bool, numbers and str"),
        ("a_", np.ma.array([1.0], mask=[True]), r"\(MaskedArray\)"),
        ("a_", np.datetime64("2020-01-01"), r"\(datetime64\)"),
        ("a_", Word("a"), r"'a' \(Word\)"),
        ("a_", b"a", r"\(bytes\)"),
        ("a_", {1, 2}, r"\(set\)"),
        ("a_", BaseEstimator(), r"\(BaseEstimator\)"),
        ("_skl_callbacks", [OwnSet()], r"DRORegressor has the callback .* with set_callbacks\(\)"),
        ("a_", deep(100), r"DRORegressor\.a_\[0\]\[0\]\[\.\.\.\] is nested more than 64 levels"),
        ("a_", HOLDS_ITSELF, r"nested more than 64 levels deep, or holds itself"),
        ("a_", 10**5000, "4300"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_come_back_is_refused_before_a_file_is_touched(path, name, value, message):
    save(DRORegressor(tol=0.5), path)
    model = DRORegressor()
    setattr(model, name, value)
    with pytest.raises((TypeError, ValueError), match=message):
        save(model, path)
    assert os.listdir(path.parent) == [path.name] and load(path).tol == 0.5


@pytest.mark.parametrize("model", [OwnRegressor(), BaseEstimator(), DRORegressor, None, "a"])
def test_other_models_are_refused(path, model):
    with pytest.raises(TypeError, match=r"must be a DRORegressor, .* given; use pickle or joblib"):
        save(model, path)
    assert not path.exists()


def test_links_are_followed_and_stay(path):
    there = path.parent / "elsewhere"
    there.mkdir()
    path.symlink_to(there / "model")  # dangling
    for tol in (0.5, 0.25):
        save(DRORegressor(tol=tol), path)
        assert path.is_symlink() and load(path).tol == load(there / "model").tol == tol
    assert os.listdir(there) == ["model"] and len(os.listdir(path.parent)) == 2
    path.unlink()
    path.symlink_to(there / "nowhere" / "model")
    with pytest.raises(FileNotFoundError, match="There is no folder for the model"):
        save(DRORegressor(), path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_pipes_and_devices_are_not_replaced(path):
    os.mkfifo(path)
    link = path.with_name("link")
    link.symlink_to(os.devnull)
    for name in (path, link):
        before = os.lstat(name)
        with pytest.raises(FileExistsError, match="A model cannot replace a device, a pipe or a"):
            save(DRORegressor(), name)
        after = os.lstat(name)
        assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
            before.st_ino,
            before.st_mode,
            before.st_mtime_ns,
        )
    assert sorted(os.listdir(path.parent)) == ["link", path.name]


def test_places_where_no_file_can_be(path):
    path.mkdir()
    with pytest.raises(IsADirectoryError, match="A model cannot replace a folder"):
        save(DRORegressor(), path)
    with pytest.raises(FileNotFoundError, match="There is no folder for the model"):
        save(DRORegressor(), path / "in" / "none")
    for call in (load, lambda name: save(DRORegressor(), name)):
        with pytest.raises(TypeError, match=r"path must be the path of a file, but 3 was given"):
            call(3)
    assert os.listdir(path) == []


# ------------------------------------------------------------------ damaged and foreign files


@pytest.fixture(scope="module")
def whole(folder):
    save(fitted(DROClassifier(drago.CVaR(0.5)), np.array(["a", "b", "c"])[CODES]), folder / "whole")
    return (folder / "whole").read_bytes()


def refused(path, content, message=""):
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=rf"The model file \S+ cannot be used: .*{message}"):
        load(path)


@given(st.data())
def test_any_damage_is_found(folder, whole, data):
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    more = data.draw(st.binary(min_size=1, max_size=99))
    for content in (
        whole[:place],
        whole[:place] + byte + whole[place + 1 :],
        whole[:place] + whole[place + 1 :],
        whole[:place] + more + whole[place:],
        whole + more,
        more + whole,
    ):
        refused(folder / "damaged", content, "(truncated|changed|not a model)")


def test_the_bytes_at_both_ends_count(folder, whole):
    size = len(whole)
    for place in [*range(0, 60, 3), *range(size - 120, size, 3)]:
        refused(folder / "damaged", whole[:place], "truncated")
        flipped = bytes([whole[place] ^ 1])
        refused(folder / "damaged", whole[:place] + flipped + whole[place + 1 :])


def sealed(model, version=1, label="model", compression=zipfile.ZIP_STORED, **members):
    """An archive with the last line of a model: what anyone could forge."""
    settings = json.dumps({"drago": "9.9", "model": model})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in {f"drago-{label}.json": settings, **members}.items():
            archive.writestr(name, content)
        archive.comment = f"drago {label} {version} sha256 ".encode() + b"0" * 64
    body = buffer.getvalue()[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


EMPTY = {"params": {}, "fitted": {}, "requests": {}}


def test_a_version_of_the_future(path):
    model = {"DRORegressor": EMPTY}
    refused(path, sealed(model, version=2), r"format version 2, but .* drago reads 1: use")
    path.write_bytes(sealed(model))
    assert same(load(path), DRORegressor())


def test_a_checkpoint_is_not_a_model(path):
    from drago.files import checkpoint

    checkpoint.save(path, {"w": X}, {"model": {"DRORegressor": EMPTY}})
    with pytest.raises(ModelFileError, match="it is not a model but a checkpoint of drago"):
        load(path)
    save(DRORegressor(), path)
    with pytest.raises(drago.CheckpointError, match="it is not a checkpoint but a model of drago"):
        checkpoint.load(path)


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_nothing_is_run(path):
    target = path.parent / "touched"
    payload = pickle.dumps(Payload(target))
    array = io.BytesIO()
    np.save(array, np.array([Payload(target)], dtype=object), allow_pickle=True)
    refused(path, payload, "not a model")
    refused(path, pickle.dumps(DRORegressor()), "not a model")
    joblib.dump(Payload(target), path)
    refused(path, path.read_bytes(), "not a model")
    model = {"DRORegressor": {**EMPTY, "fitted": {"coef_": {"array": "w"}}}}
    refused(path, sealed(model, **{"w.npy": array.getvalue()}), "not a model")
    refused(path, sealed(model, **{"w.npy": payload}), "not a model")
    assert not target.exists()


def test_foreign_files(path):
    refused(path, b"", "it is truncated")
    refused(path, b"hello", "it is not a model")
    refused(path, b"drago model 1 sha256 " + b"0" * 64, "its SHA-256 does not match")
    for writer in (np.savez, np.savez_compressed):
        buffer = io.BytesIO()
        writer(buffer, coef_=np.zeros(9))
        refused(path, buffer.getvalue(), "it is not a model")
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("drago-model.json", b"0" * 10**6)
    refused(path, bomb.getvalue(), "it is truncated")
    compressed = sealed({"dict": ["x" * 10**6]}, compression=zipfile.ZIP_DEFLATED)
    assert len(compressed) < 10_000
    refused(path, compressed, "it is compressed")


def test_no_regular_file(path):
    with pytest.raises(FileNotFoundError, match=r"There is no model file: '\S+model.drago'"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(path / "in" / "no" / "folder")
    path.mkdir()
    with pytest.raises(ModelFileError, match=r"it is not a regular file\. Give a whole file that"):
        load(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match="it is not a regular file"):
        load(path)
    path.unlink()
    path.write_text("")
    with pytest.raises(ModelFileError, match="it cannot be read"):
        load(path / "below a file")


def of(**fitted):
    return {"DRORegressor": {**EMPTY, "fitted": {f"{k}_": tree for k, tree in fitted.items()}}}


FORGED = {
    "no model": 3,
    "a set": {"CVaR": {}},
    "a list": [{"DRORegressor": EMPTY}],
    "a class of another package": {"os.system": {"command": "true"}},
    "a module": {"antigravity": EMPTY},
    "a base class": {"DROEstimator": EMPTY},
    "an unknown parameter": {"DRORegressor": {**EMPTY, "params": {"color": 1}}},
    "parts that are missing": {"DRORegressor": {}},
    "parts that are no dict": {"DRORegressor": {**EMPTY, "fitted": []}},
    "an unknown request": {"DRORegressor": {**EMPTY, "requests": {"params": {"dict": []}}}},
    "two kinds": of(a={"CVaR": {}, "Simplex": {}}),
    "no kind": of(a={}),
    "a set out of range": of(a={"CVaR": {"tail_fraction": 5}}),
    "a set with a function": of(a={"Spectrum": {"density": "exec"}}),
    "an array that is not there": of(a={"array": "b"}),
    "an array of a list": of(a={"array": []}),
    "keys that are lists": of(a={"dict": [[[], 1]]}),
    "pairs that are none": of(a={"dict": [[1, 2, 3]]}),
    "a number that does not fit": of(a={"int8": 300}),
    "a number that is none": of(a={"float64": "a"}),
    "objects that are lists": of(a={"objects": {"shape": [1], "items": [[]]}}),
    "objects of another shape": of(a={"objects": {"shape": [2], "items": ["a"]}}),
    "an unknown status": of(a={"Status": "splendid"}),
    "unequal columns": of(a={"History": {"n_iter": [1], "time": [1.0, 2.0]}}),
    "unknown columns": of(a={"History": {"color": [1]}}),
    "a deep tree": of(a=json.loads("[" * 900 + "]" * 900)),
    "a tree that is too deep": of(a=json.loads("[" * 300 + "]" * 300)),
}


@pytest.mark.parametrize("model", FORGED.values(), ids=FORGED.keys())
def test_forged_files(path, model):
    before = set(sys.modules)
    refused(path, sealed(model), r"(drago '9\.9' wrote|it holds no model|not a model)")
    assert "antigravity" not in set(sys.modules) - before


def test_an_unknown_kind_is_named(path):
    refused(path, sealed({"DROSurvival": EMPTY}), "holds a DROSurvival, which is not known")


# --------------------------------------------------------------------- pickle, joblib and skops


def through_skops(model):
    io = pytest.importorskip("skops.io")
    content = io.dumps(model)
    return io.loads(content, trusted=io.get_untrusted_types(data=content))


def through_joblib(model):
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    return joblib.load(buffer)


@pytest.mark.parametrize(
    "through",
    [lambda model: pickle.loads(pickle.dumps(model)), through_joblib, through_skops],
    ids=["pickle", "joblib", "skops"],
)
@pytest.mark.parametrize("Model", [DRORegressor, DROClassifier])
def test_other_ways_to_store_a_model(through, Model, path):
    model = fitted(Model(drago.CVaR(0.5), constraint=drago.Box(-1, 1), solver=drago.LBFGS()), CODES)
    back = through(model)
    assert same(back.predict(X), model.predict(X))
    for name in ("coef_", "dual_weights_", "history_", "uncertainty", "constraint", "solver"):
        assert same(getattr(back, name), getattr(model, name)), name
    assert dataclasses.asdict(back.result_).keys() == dataclasses.asdict(model.result_).keys()
    assert same(fitted(clone(back), CODES).coef_, model.coef_)
    assert same(round_trip(path, back).coef_, model.coef_)  # and from there to a file of ours


def test_pickle_stores_what_a_model_file_does_not():
    model = fitted(DRORegressor(loss=own_loss, random_state=np.random.RandomState(0)))
    back = pickle.loads(pickle.dumps(model))
    assert same(back.predict(X), model.predict(X))
