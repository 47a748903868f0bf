"""`drago fit`, `predict`, `certify`: five data sets, all formats, and what cannot be done."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import drago

from .conftest import TABLES, call


def fitted(drago_, table, *more, path="model.drago"):
    frame, target, options = table
    frame.to_csv("data.csv", index=False)
    done = drago_("fit", "data.csv", "--target", target, "--model", path, *options, *more)
    assert done.code == 0, done.err
    return done


def test_five_data_sets(drago_, five, name):
    frame, _, options = TABLES[name]
    folder, said = five
    data, path = folder / f"{name}.csv", folder / f"{name}.drago"
    assert said[name].code == 0, said[name].out
    done = said[name].json
    assert done["ok"] and done["status"] == "optimal" and done["rel_gap"] <= 1e-4
    assert done["rows"] == len(frame)
    assert set(done["columns"]["left_out"]) == {"always", "never", "who"}
    assert any("'who' is left out: it has" in note for note in done["notes"])
    assert ("groups" in done) == bool(options)
    assert drago_("certify", path, data).code == 0
    told = drago_("predict", path, data, "--out", "out.csv", "--keep", "who")
    assert told.code == 0 and f"{len(frame)} predictions: out.csv" in told.out
    out = pd.read_csv("out.csv")
    assert out["who"].tolist() == frame["who"].tolist()
    # The model is a plain pipeline, and takes the frame as it is.
    model = drago.load(path)
    again = model.predict(pd.read_csv(data))
    if hasattr(model, "predict_proba"):
        assert (again == out["prediction"]).all()
        assert out.filter(like="probability=").sum(axis=1).to_numpy() == pytest.approx(1.0)
    else:
        assert again == pytest.approx(out["prediction"].to_numpy(), rel=1e-12)


def test_what_is_printed(drago_):
    done = fitted(drago_, TABLES["groups"])
    for words in ("The fit", "status", "optimal", "saved: model.drago", "mean loss"):
        assert words in done.out
    assert "note: column 'always' is left out: it is the same on all rows." in done.err
    assert "Groups, the worst-off first" in done.out
    assert not any(line.endswith(" ") for line in done.out.splitlines())


def test_the_same_bits_in_a_new_process(drago_, five):
    folder, _ = five
    names = list(TABLES)
    for name in names:
        here = f"{names.index(name)}.here.parquet"
        path, data = folder / f"{name}.drago", folder / f"{name}.csv"
        assert drago_("predict", path, data, "--out", here).code == 0
    code = f"""
from drago.cli.app import app
for k, name in enumerate({names!r}):
    app(["predict", f"{folder}/{{name}}.drago", f"{folder}/{{name}}.csv", "--out",
         f"{{k}}.there.parquet"], standalone_mode=False)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for k in range(len(names)):
        here, there = pd.read_parquet(f"{k}.here.parquet"), pd.read_parquet(f"{k}.there.parquet")
        assert list(here) == list(there)
        for column in here:
            a, b = here[column].to_numpy(), there[column].to_numpy()
            assert a.tobytes() == b.tobytes() if a.dtype.kind == "f" else (a == b).all()


def test_weights_of_the_rows_are_saved_when_told(drago_, five):
    assert drago.load(five[0] / "multiclass.drago")[-1].dual_weights_.size == 0
    fitted(drago_, TABLES["multiclass"], "--include-weights")
    assert drago.load("model.drago")[-1].dual_weights_.size == len(TABLES["multiclass"][0])


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet", "feather", "folder"])
def test_formats(drago_, ending):
    frame, target, _ = TABLES["multiclass"]
    path = f"data.{ending}"
    if ending == "folder":
        path = "data"
        os.mkdir(path)
        frame.iloc[:70].to_parquet("data/1.parquet")
        frame.iloc[70:].to_parquet("data/2.parquet")
    elif ending == "parquet":
        frame.to_parquet(path)
    elif ending == "feather":
        frame.to_feather(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    assert drago_("fit", path, "--target", target, "--model", "m").code == 0
    # With pandas before 3, None is a word of its own.
    whole = drago.load("m").predict_proba(frame.where(frame.notna(), np.nan))
    for out in ("out.csv", "out.csv.gz", "out.tsv", "out.parquet", "out.feather"):
        assert drago_("predict", "m", path, "--out", out).code == 0
    read = {"parquet": pd.read_parquet, "feather": pd.read_feather, "gz": pd.read_csv}
    tabs = {"csv": ",", "tsv": "\t"}
    for out in ("out.csv", "out.csv.gz", "out.tsv", "out.parquet", "out.feather"):
        kind = out.rpartition(".")[2]
        found = pd.read_csv(out, sep=tabs[kind]) if kind in tabs else read[kind](out)
        shares = found[[f"probability={k}" for k in range(3)]].to_numpy()
        np.testing.assert_allclose(shares, whole, rtol=1e-10)
    assert sorted(os.listdir()) == sorted(
        {path, "m", "out.csv", "out.csv.gz", "out.tsv", "out.parquet", "out.feather"}
    )


def test_semicolons(drago_):
    frame = pd.DataFrame({"a": np.arange(40.0), "b": np.tile([1.0, 2.0], 20)})
    frame["y"] = frame["a"] + 0.5
    frame.to_csv("d.csv", index=False, sep=";", encoding="utf-8-sig")
    assert drago_("fit", "d.csv", "--target", "y", "--model", "m", "--task", "regression").code == 0


OPTIONS = [
    ["--uncertainty", "cvar"],
    ["--tail-fraction", "0.5"],
    ["--tail-fraction", "0.5", "--uncertainty", "cvar", "--shift-cost", "0.2"],
    ["--uncertainty", "kl_ball", "--l2-reg", "0.1"],
    ["--loss", "huber", "--tol", "1e-6"],
    ["--drop", "age", "--drop", "sex"],
    ["--weights", "größe", "--max-categories", "2"],
    ["--groups", "sex", "--groups", "都市", "--uncertainty", "esrm"],
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_options(drago_, options):
    frame, target, _ = TABLES["regression"]
    frame = frame.assign(größe=np.abs(frame["bmi"]))
    frame["sex"] = (frame["sex"] > 0).astype(int)
    fitted(drago_, (frame, target, options))
    model = drago.load("model.drago")
    last = model[-1]
    if "--tail-fraction" in options:
        assert last.uncertainty == drago.CVaR(0.5)
    if "--drop" in options:
        assert {"age", "sex"}.isdisjoint(model.feature_names_in_)
    if "--weights" in options:
        assert "größe" not in model.feature_names_in_
        assert len(model[0].named_transformers_["words"][1].get_feature_names_out()) == 2
    assert drago_("certify", "model.drago", "data.csv").code == 0


@pytest.mark.parametrize("kind", ["regression", "binary"])
def test_a_baseline_is_estimated_again(drago_, kind):
    """It is not in the file, and the same on the same rows."""
    fitted(drago_, TABLES[kind], "--uncertainty", "excess_tail")
    model = drago.load("model.drago")[-1]
    assert model.baseline_.size == 0
    told = drago_("certify", "model.drago", "data.csv", "--json").json
    assert told["certified"] and told["primal"] == pytest.approx(model.result_.primal, rel=1e-9)


def test_other_rows_are_not_certified(drago_, five):
    frame = TABLES["regression"][0]
    frame.iloc[:100].to_csv("some.csv", index=False)
    done = drago_("certify", five[0] / "regression.drago", "some.csv")
    assert done.code == 3 and "Not certified to 0.0001" in done.out


def test_no_printed_bound_is_negative(drago_):
    """Losses are at least 0, so a bound below 0 says nothing more than 0 does."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
    frame["y"] = frame["a"] + 0.01 * rng.normal(size=60)
    fitted(drago_, (frame, "y", []), "--uncertainty", "simplex", "--l2-reg", "1e-6")
    (10 * frame).assign(y=-frame["y"]).to_csv("other.csv", index=False)
    told = drago_("certify", "model.drago", "other.csv", "--json").json
    assert told["dual"] < 0 and told["gap"] == pytest.approx(told["primal"] - told["dual"])
    done = drago_("certify", "model.drago", "other.csv")
    (line,) = [line for line in done.out.splitlines() if line.startswith("no model is below")]
    assert line.split()[-1] == "0"


@pytest.mark.parametrize("most", [50, 2])
def test_words_that_were_not_there_in_the_fit(drago_, most):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "town": ["Köln", "Łódź", "Ørsta"] * 30})
    frame["town"] = np.where(np.arange(90) < 50, "Köln", frame["town"])
    frame["y"] = frame["a"] + (frame["town"] == "Köln")
    fitted(drago_, (frame, "y", []), "--max-categories", most)
    done = drago_("predict", "model.drago", "data.csv", "--out", "p.csv")
    assert done.code == 0 and "not there in the fit" not in done.err
    frame.loc[3:5, "town"] = ["東京", None, "東京"]
    frame.to_csv("new.csv", index=False)
    done = drago_("predict", "model.drago", "new.csv", "--out", "q.csv")
    assert done.code == 0
    said = "column 'town': 3 rows have a word that was not there in the fit, such as '東京'; "
    what = "the column adds nothing to their predictions."
    if most == 2:
        what = "they are predicted as rows with one of the rarest words of the fit."
    assert said + what in done.err.replace("\n", "")
    # What is said is what happens.
    model = drago.load("model.drago")
    X = frame.loc[3:5, ["a", "town"]]
    found = pd.read_csv("q.csv")["prediction"][3:6].to_numpy()
    if most == 2:
        np.testing.assert_allclose(found, model.predict(X.assign(town="Łódź")))
    else:
        names = model[:-1].get_feature_names_out()
        coef = model[-1].coef_[[name.startswith("numbers__") for name in names]]
        numbers = model[:-1].named_steps["prepare"].named_transformers_["numbers"]
        only = numbers.transform(X[["a"]]) @ coef + model[-1].intercept_
        np.testing.assert_allclose(found, only)


def test_choosing_by_cross_validation(drago_):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(80, 2)), columns=["a", "b"])
    frame["y"] = frame["a"] + rng.normal(size=80)
    fitted(drago_, (frame, "y", []), "--choose", "--include-weights")
    assert isinstance(drago.load("model.drago")[-1], drago.DRORegressorCV)
    assert drago_("certify", "model.drago", "data.csv").code == 0


def test_an_answer_that_is_not_certified(drago_):
    """It is saved all the same, with an exit code of its own and what to do."""
    frame, target, _ = TABLES["regression"]
    frame.to_csv("d.csv", index=False)
    done = drago_("fit", "d.csv", "--target", target, "--model", "m", "--time-limit", "0")
    assert done.code == 3 and "note: " in done.err and os.path.exists("m")
    assert "\nCertified:" not in done.out and "Not certified to" in done.out
    assert "The model is saved; the exit code is 3." in done.out
    told = drago_("certify", "m", "d.csv", "--json")
    assert told.code == 3 and told.json["certified"] is False and told.json["ok"]


# ------------------------------------------------------------------------------- what cannot be


def small(**columns):
    frame = {"a": [1.0, 2.0, 3.0, 5.0] * 5, "y": [1.5, 2.5, 3.5, 4.0] * 5, **columns}
    return pd.DataFrame(frame)


WRONG = {
    "one row of numbers": (pd.DataFrame({"a": [1.5], "y": [2.5]}), 0, ""),
    "one row of a class": (pd.DataFrame({"a": [1.5], "y": ["x"]}), 1, "two classes"),
    "one class": (small(y=["x"] * 20), 1, "at least two classes"),
    "no features": (small()[["y"]], 1, "no column is left to be a feature"),
    "constant features": (small(a=1), 1, "'a': it is the same on all rows"),
    "infinite": (small(a=[np.inf] + [1.0] * 19), 1, "column 'a' is infinite on 1 rows"),
    "an empty target": (small(y=np.nan), 1, "'y' is empty on all 20 rows"),
    "names as target": (small(y=list("abcdefghijklmnopqrst")), 0, ""),
    "a constant target": (small(y=2.5), 0, ""),
    "huge": (small(a=[1e300, -1e300] * 10), 1, "column 'a' holds numbers as large as 1e+300"),
    "large": (small(a=[1e130, -1e130] * 10), 0, ""),
    "tiny": (small(a=[1e-300, -1e-300] * 10), 0, ""),
    "a huge target": (small(y=[1e300, -1e300] * 10), None, ""),
    "all missing but one": (small(a=[1.0] + [np.nan] * 19), 0, ""),
    "dates": (small(a=pd.date_range("2020-01-01", periods=20)), None, ""),
    "lists": (small(b=[[1]] * 20), 0, "note: column 'b' is left out: it holds"),
}


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_odd_tables(drago_, case):
    """An answer or a named error."""
    frame, code, message = WRONG[case]
    if case == "lists":
        frame.to_parquet("d.parquet")
        path = "d.parquet"
    else:
        frame.to_csv("d.csv", index=False)
        path = "d.csv"
    done = drago_("fit", path, "--target", "y", "--model", "m")
    assert done.code in ((0, 1, 3) if code is None else (code, 3 if code == 0 else code)), done.err
    assert message in done.err
    assert os.path.exists("m") == (done.code != 1)
    if done.code != 1:
        assert drago_("predict", "m", path, "--out", "p.csv").code == 0
        assert np.isfinite(pd.read_csv("p.csv").select_dtypes("number").to_numpy()).all()


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory):
    """A folder with a good model, and files that are not what they should be."""
    folder = tmp_path_factory.mktemp("odd")
    small().to_csv(folder / "d.csv", index=False)
    small().rename(columns={"a": "b", "y": "z"}).to_csv(folder / "other.csv", index=False)
    small(a=["1", "viel"] * 10).to_csv(folder / "words.csv", index=False)
    for name, content in {
        "bad.csv": b"a,y\n\xff\xfe,1\n",
        "empty.csv": b"",
        "header.csv": b"a,y\n",
        "ragged.csv": b"a,y\n1,2\n1,2,3,4\n",
        "no.parquet": b"hello",
        "no.feather": b"hello",
        "d.xlsx": b"hello",
    }.items():
        (folder / name).write_bytes(content)
    drago.save(drago.DRORegressor().fit([[1.0], [2.0]], [1.0, 2.0]), folder / "plain")
    done = call("fit", folder / "d.csv", "--target", "y", "--model", folder / "good")
    assert done.code == 0
    return folder


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("fit none.csv --target y --model m", 1, "There is no such file or folder: none.csv"),
        ("fit d.csv --target z --model m", 1, "there is no column 'z'; the columns are 'a', 'y'."),
        ("fit d.csv --target Y --model m --drop why", 1, "there is no column 'Y'; the"),
        ("certify good other.csv", 1, "there is no column 'y'; the"),
        ("fit d.csv --target y --model m --drop yy", 1, "there is no column 'yy'; the columns are"),
        ("fit d.csv --target y --model no/m", 1, "There is no folder for the file: no/m"),
        ("fit d.csv --target y --model .", 1, "A folder is there already: ."),
        ("fit d.xlsx --target y --model m", 1, "d.xlsx is none of .csv"),
        ("fit d.csv --target y", 2, "--model"),
        ("fit d.csv --target y --model m --colour red", 2, "--colour"),
        ("fit d.csv --target y --model m --tol much", 2, "--tol"),
        ("fit d.csv --target y --model m --tail-fraction 7", 1, "--tail-fraction"),
        ("fit d.csv --target y --model m --uncertainty x", 1, "worst_group"),
        ("fit d.csv --target y --model m --uncertainty worst_group", 1, "needs --groups COLUMN"),
        ("fit d.csv --target y --model m --groups z", 1, "no column 'z'"),
        ("fit d.csv --target y --model m --groups y", 1, "'y' is the target, and cannot be a g"),
        ("fit d.csv --target y --model m --task dance", 1, "'auto', 'regression'"),
        ("fit d.csv --target y --model m --loss cubic --task regression", 1, "loss"),
        ("fit d.csv --target y --model m --choose --l2-reg 1", 1, "--choose tries"),
        ("fit bad.csv --target y --model m", 1, "bad.csv is not text in UTF-8"),
        ("fit empty.csv --target y --model m", 1, "empty.csv cannot be read as csv"),
        ("fit header.csv --target y --model m", 1, "header.csv has no rows"),
        ("fit ragged.csv --target y --model m", 1, "ragged.csv cannot be read as csv"),
        ("fit no.parquet --target y --model m", 1, "no.parquet cannot be read as parquet"),
        ("fit no.feather --target y --model m", 1, "no.feather cannot be read as feather"),
        ("predict none d.csv --out p.csv", 1, "There is no model file"),
        ("predict d.csv d.csv --out p.csv", 1, "d.csv is not a drago model"),
        ("predict plain d.csv --out p.csv", 1, "does not say which columns it takes"),
        ("predict good d.csv --out p.xlsx", 1, ".parquet or .feather, not .xlsx"),
        ("predict good other.csv --out p.csv", 1, "there is no column 'a', which the model needs"),
        ("predict good words.csv --out p.csv", 1, "row 1 is 'viel': mend it"),
        ("predict good d.csv --out p.csv --keep z", 1, "no column 'z'"),
        ("report good d.csv --out p.pdf", 1, "a report is HTML"),
        ("audit d.csv --target z", 1, "there is no column 'z'"),
        ("fit no.csv --target y --model m --uncertainty cvr", 1, "did you mean cvar?"),
        ("dance", 2, "dance"),
    ],
)
def test_errors_are_named(odd_files, monkeypatch, words, code, message):
    monkeypatch.chdir(odd_files)
    before = sorted(os.listdir())
    done = call(*words.split())
    assert done.code == code, done.err
    assert message in " ".join(done.err.replace("│", " ").split()), done.err
    assert sorted(os.listdir()) == before
    if code == 1:
        told = call(*words.split(), "--json")
        assert told.code == 1 and told.json["ok"] is False and message in told.json["message"]
        assert told.json["error"].endswith("Error") and told.err == ""


def test_without_what_it_needs_a_line_says_how_to_install_it(tmp_path):
    code = """
import sys
sys.modules["typer"] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "typer" else found(name, *more)
sys.argv = ["drago", "doctor"]
import runpy
runpy.run_module("drago", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "drago: the command needs typer, which is not installed: pip install 'drago[cli]'\n"
    )


def test_help_has_an_example_each(drago_):
    listed = drago_("--help").out
    for name in ("audit", "fit", "predict", "certify", "report", "doctor"):
        assert name in listed
        assert f"Example: drago {name} " in drago_(name, "--help").out
    assert drago_("--version").out == f"drago {drago.__version__}\n"


def test_a_bug_is_a_line_too(drago_, monkeypatch):
    from drago.cli import commands

    def fall(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(commands, "doctor", fall)
    done = drago_("doctor")
    assert done.code == 70 and "ZeroDivisionError: oh" in done.err and "report it" in done.err

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "doctor", stop)
    assert drago_("doctor").code == 130
