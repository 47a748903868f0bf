"""`drago audit`, `report` and `doctor`."""

import os

import numpy as np
import pandas as pd
import pytest

import drago
from drago.advice.methods import ABOUT

from .conftest import TABLES, call


def audited(name, *more):
    frame, target, options = TABLES[name]
    frame.to_csv("data.csv", index=False)
    limits = ["--time-budget", "0", "--repeats", "1"]
    return call("audit", "data.csv", "--target", target, *options, *limits, *more)


@pytest.mark.parametrize(
    "kind", [name if name == "groups" else pytest.param(name, marks=pytest.mark.slow)
             for name in TABLES]
)  # fmt: skip
def test_audits(drago_, pages, kind):
    done = audited(kind, "--report", "a.html", "--title", "ü", "--json")
    assert done.code == 0, done.out
    told = done.json
    assert told["recommended"] in [line["model"] for line in told["models"]]
    assert told["verdict"] and told["code"].startswith("from drago import")
    assert bool(told["groups"]) == (kind == "groups")
    assert os.path.exists("a.html") and told["report"] == "a.html"
    assert isinstance(pages[0]["audit"], drago.Audit) and pages[0]["title"] == "ü"
    assert done.err == ""


@pytest.mark.slow
def test_what_an_audit_prints(drago_, pages):
    done = audited("groups", "--report", "a.html", "--no-rows")
    assert done.code == 0, done.err
    for words in ("mean fit", "robust fit", "Mean loss by group", "île", "Use", "report: a.html",
                  "worst group's excess", "Excess: the loss of a row less", "What was tried",
                  *ABOUT.values()):  # fmt: skip
        assert words in done.out
    assert "audit: pass 1, fold 1" in done.err and "note: The audit stopped early" in done.err
    assert "give it more --time-budget" in done.err
    assert pages[0]["rows"] is False


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"a": [1.5], "y": [2.5]}), "y is 2.5 on all rows"),
        (pd.DataFrame({"a": [1.5, 2.0, 3.0], "y": ["a", "b", "a"]}), "every class needs 8"),
        (pd.DataFrame({"a": [1.5] * 50, "y": np.arange(50.0)}), "no column is left"),
    ],
)
def test_too_little_to_audit(drago_, frame, message):
    frame.to_csv("d.csv", index=False)
    done = drago_("audit", "d.csv", "--target", "y")
    assert done.code == 1 and message in done.err


def test_reports(drago_, five, pages, name):
    folder, _ = five
    frame, target, options = TABLES[name]
    path, data = folder / f"{name}.drago", folder / f"{name}.csv"
    done = drago_("report", path, data, "--out", "r.html", "--no-rows", "--title", "t")
    assert done.code == 0, done.err
    assert f"report on {len(frame)} rows: r.html" in done.out
    with open("r.html", encoding="utf-8") as file:
        assert "ü" in file.read()
    (given,) = pages
    assert len(given["X"]) == len(given["y"]) == len(frame)
    assert (given["groups"] is None) == (not options) and given["rows"] is False
    assert given["title"] == "t"
    assert given["model"].predict(given["X"]).shape == (len(frame),)
    assert list(given["y"]) == list(frame[target])


def test_rows_without_a_target(drago_, five, pages):
    frame = TABLES["regression"][0].copy()
    frame.loc[:9, "target"] = np.nan
    frame.to_csv("d.csv", index=False)
    done = drago_("report", five[0] / "regression.drago", "d.csv", "--out", "r.html")
    assert done.code == 0 and len(pages[0]["y"]) == len(frame) - 10


def test_a_class_that_the_model_does_not_know(drago_, five):
    frame = TABLES["binary"][0].copy()
    frame.loc[3, "target"] = "unklar"
    frame.to_csv("d.csv", index=False)
    done = drago_("certify", five[0] / "binary.drago", "d.csv")
    assert done.code == 1 and "unklar" in done.err


def test_doctor(drago_):
    done = drago_("doctor", "--json")
    assert done.code == 0, done.out
    told = done.json
    assert told["versions"]["drago"] == drago.__version__
    assert told["solve"]["status"] == "optimal" and told["solve"]["seconds"] > 0
    assert told["threads"]["compiled kernels"] in ("v4", "v3", "plain")
    said = drago_("doctor").out
    for words in ("versions", "threads", "cache", "graphics card", "seconds"):
        assert words in said
