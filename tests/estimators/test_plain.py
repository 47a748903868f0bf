"""`to_sklearn`: plain models that predict the same, and what becomes of them in ONNX."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

import drago
from drago import DROClassifier, DRORegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(size=60)
CLASSES = np.array(["a", "b", "ü"])[np.digitize(Y, [-1.0, 1.0])]
SIDES = Y > 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [True, False])
def test_regressors(dtype, intercept):
    model = DRORegressor(drago.CVaR(0.5), fit_intercept=intercept).fit(X.astype(dtype), Y)
    plain = model.to_sklearn()
    assert type(plain) is Ridge and plain.coef_.dtype == dtype
    np.testing.assert_allclose(
        plain.predict(X.astype(dtype)),
        model.predict(X.astype(dtype)),
        rtol=1e-5 if dtype is np.float32 else 1e-12,
        atol=1e-5 if dtype is np.float32 else 1e-12,
    )
    assert plain.score(X, Y) == pytest.approx(model.score(X, Y))
    plain.coef_[:] = 0.0  # a copy
    assert model.coef_.any()


@pytest.mark.parametrize("labels", [SIDES, CLASSES, SIDES.astype(int)], ids=["bool", "str", "int"])
@pytest.mark.parametrize("Model", [DROClassifier, drago.DROClassifierCV])
def test_classifiers(labels, Model):
    levels = {"l2_regs": [0.1], "baseline": None, "cv": 2, "candidates": [drago.CVaR(0.5)]}
    model = Model(**(levels if Model is drago.DROClassifierCV else {})).fit(X, labels)
    plain = model.to_sklearn()
    assert type(plain) is LogisticRegression
    assert (plain.predict(X) == model.predict(X)).all()
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        np.testing.assert_allclose(
            getattr(plain, method)(X), getattr(model, method)(X), rtol=1e-10, atol=1e-12
        )
    assert not hasattr(clone(plain), "coef_")


def test_names_and_refusals():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcd")).assign(group=SIDES)
    model = DRORegressor("worst_group", group_columns="group").fit(frame, Y)
    plain = model.to_sklearn()
    assert plain.feature_names_in_.tolist() == list("abcd") and plain.n_features_in_ == 4
    np.testing.assert_allclose(plain.predict(frame[list("abcd")]), model.predict(frame))
    with pytest.raises(NotFittedError):
        DRORegressor().to_sklearn()


def as_onnx(pipeline, types):
    """Predictions of a pipeline by onnxruntime, in float32."""
    skl2onnx = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: drago[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: drago[onnx]")
    plain = Pipeline([*pipeline.steps[:-1], ("model", pipeline[-1].to_sklearn())])
    options = {"zipmap": False} if hasattr(plain[-1], "classes_") else None
    options = None if options is None else {id(plain[-1]): options}
    content = skl2onnx.to_onnx(plain, initial_types=types, options=options)
    return runtime.InferenceSession(content.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("labels", [None, SIDES.astype(int), CLASSES], ids=["numbers", "2", "3"])
def test_onnx(labels):
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: drago[onnx]")
    from skl2onnx.common.data_types import FloatTensorType

    last = DRORegressor() if labels is None else DROClassifier()
    model = make_pipeline(StandardScaler(), last).fit(X, Y if labels is None else labels)
    session = as_onnx(model, [("X", FloatTensorType([None, 4]))])
    found = session.run(None, {"X": X.astype(np.float32)})
    if labels is None:
        np.testing.assert_allclose(found[0][:, 0], model.predict(X), rtol=1e-4, atol=1e-5)
    else:
        assert (found[0] == model.predict(X)).all()
        np.testing.assert_allclose(found[1], model.predict_proba(X), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [False, True])
def test_onnx_of_a_pipeline_from_a_file(tmp_path, words):
    """The default one of the command, for numbers; with words, one without imputers for them."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed: drago[onnx]")
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    from drago.cli.columns import Plan, pipeline_of

    frame = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "w": RNG.choice(["Köln", "東京"], 60)})
    plan = Plan("y", [], None, ["a", "b"], ["w"] if words else [])
    model = pipeline_of(plan, DROClassifier())
    types = [(name, FloatTensorType([None, 1])) for name in plan.numbers]
    given = {name: frame[[name]].to_numpy(dtype=np.float32) for name in plan.numbers}
    if words:
        model[0].transformers[1][1].steps.pop(0)
        types.append(("w", StringTensorType([None, 1])))
        given["w"] = frame[["w"]].to_numpy(dtype=object)
    model.fit(frame[plan.features], CLASSES)
    drago.save(model, tmp_path / "m")
    found = as_onnx(drago.load(tmp_path / "m"), types).run(None, given)
    np.testing.assert_allclose(found[1], model.predict_proba(frame), rtol=1e-4, atol=1e-5)
