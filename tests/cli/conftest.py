"""Tables for the command, and how it is called in this process."""

import json

import numpy as np
import pytest

typer = pytest.importorskip("typer", reason="the command needs typer")
pd = pytest.importorskip("pandas", reason="the command needs pandas")

from typer.testing import CliRunner  # noqa: E402

from drago.cli.app import app  # noqa: E402


class Called:
    """What a command said, and its exit code."""

    def __init__(self, result):
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        self.error = result.exception

    @property
    def json(self):
        return json.loads(self.out)


def call(*words):
    """The command in this process: whatever happens ends in an exit code."""
    runner = CliRunner(env={"COLUMNS": "100"})
    called = Called(runner.invoke(app, [str(word) for word in words]))
    assert called.error is None or isinstance(called.error, SystemExit), called.error
    assert "Traceback" not in called.err + called.out
    return called


@pytest.fixture
def drago_(tmp_path, monkeypatch):
    """The command, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return call


def spoiled(frame, seed=0):
    """With words, holes, a constant column, an empty one, names of rows, letters of all kinds."""
    rng = np.random.default_rng(seed)
    frame = frame.copy()
    n = len(frame)
    frame["größe_µ"] = rng.exponential(size=n)
    frame["都市"] = rng.choice(["Köln", "東京", "Łódź", "Ørsta"], n)
    frame["always"] = 7
    frame["never"] = np.nan
    frame["flag"] = rng.random(n) > 0.5
    frame["who"] = [f"row {k}" for k in range(n)]
    for name in [frame.columns[0], "größe_µ", "都市"]:
        frame.loc[rng.random(n) < 0.1, name] = None
    return frame


def tables():
    """Five data sets: frame, target, options of the command."""
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

    diabetes = load_diabetes(as_frame=True).frame
    cancer = load_breast_cancer(as_frame=True).frame.iloc[:300, [0, 1, 2, 3, -1]]
    cancer["target"] = np.where(cancer["target"] == 1, "gutartig", "bösartig")
    iris = load_iris(as_frame=True).frame
    rng = np.random.default_rng(0)
    groups = pd.DataFrame(rng.normal(size=(300, 3)), columns=["age", "dose", "pressure"])
    groups["clinic"] = rng.choice(["north", "south", "île"], 300, p=[0.5, 0.35, 0.15])
    sign = np.where(groups["clinic"] == "île", -1.0, 1.0)
    groups["target"] = sign * groups["dose"] + groups["age"] + rng.normal(size=300)
    heavy = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"])
    heavy["target"] = 1e3 * (heavy["a"] + rng.standard_t(1.2, 300) ** 3)
    return {
        "regression": (spoiled(diabetes), "target", []),
        "binary": (spoiled(cancer), "target", []),
        "multiclass": (spoiled(iris), "target", []),
        "groups": (spoiled(groups), "target", ["--groups", "clinic"]),
        "heavy tails": (spoiled(heavy), "target", []),
    }


TABLES = tables()


@pytest.fixture(scope="session")
def five(tmp_path_factory):
    """A folder with a table and a model of each, and what the fits said."""
    folder = tmp_path_factory.mktemp("five")
    said = {}
    for name, (frame, target, options) in TABLES.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
        said[name] = call("fit", folder / f"{name}.csv", "--target", target, "--model",
                          folder / f"{name}.drago", *options, "--json")  # fmt: skip
    return folder, said


@pytest.fixture(params=TABLES, ids=str)
def name(request):
    return request.param


@pytest.fixture
def pages(monkeypatch):
    """What reports are made of, in place of reports, which have tests of their own."""
    given = []

    def html_report(model, X, y, **more):
        given.append({"model": model, "X": X, "y": y, **more})
        return "<!doctype html><title>ü</title>"

    def audit_report(audit, **more):
        given.append({"audit": audit, **more})
        return "<!doctype html><title>audit</title>"

    monkeypatch.setattr("drago.report.html_report", html_report)
    monkeypatch.setattr("drago.report.audit_report", audit_report)
    return given
