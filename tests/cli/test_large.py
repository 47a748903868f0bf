"""Rows of Parquet that are read in parts, and a million rows of CSV."""

import numpy as np
import pandas as pd
import pytest

import drago

from .conftest import call

LIMIT = ["--memory-limit", "2MB"]


def rows(n, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "größe": rng.normal(size=n),
            "count": rng.integers(0, 9, n),
            "stadt": rng.choice(["Köln", "東京"], n).astype(object),
            "clinic": rng.choice(["n", "s"], n),
            "always": 1,
            "when": pd.date_range("2020-01-01", periods=n, freq="min"),
        }
    )
    frame.loc[rng.random(n) < 0.1, "größe"] = np.nan
    frame.loc[rng.random(n) < 0.1, "stadt"] = None
    frame["y"] = frame["größe"].fillna(0.0) - 0.1 * frame["count"] + rng.standard_t(3, n)
    frame["class"] = np.where(frame["y"] > 0, "ja", "nein")
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "parts"
    path.mkdir()
    for k in range(3):
        rows(4000, k).to_parquet(path / f"{k}.parquet")
    return path


@pytest.mark.parametrize(("target", "other"), [("y", "class"), ("class", "y")])
def test_a_folder_that_does_not_fit(drago_, folder, pages, target, other):
    words = ["fit", folder, "--target", target, "--drop", other, "--groups", "clinic", "--json"]
    done = call(*words, "--model", "m", *LIMIT)
    assert done.code == 0, done.out
    told = done.json
    assert any("read in parts" in note for note in told["notes"])
    assert set(told["columns"]["left_out"]) == {"always", "when", other}
    model = drago.load("m")
    assert "stadt=missing" in model.feature_names_in_.tolist()
    assert call("certify", "m", folder, *LIMIT).code == 0
    assert call("predict", "m", folder, "--out", "p.parquet", *LIMIT).code == 0
    assert call("predict", "m", folder, "--out", "again.parquet").code == 0
    found = pd.read_parquet("p.parquet")
    pd.testing.assert_frame_equal(found, pd.read_parquet("again.parquet"))
    # In memory the answer is about the same: the penalty is on other features.
    assert call(*words, "--model", "whole").code == 0
    assert call("predict", "whole", folder, "--out", "w.parquet").code == 0
    whole = pd.read_parquet("w.parquet")
    column = "prediction" if target == "y" else "probability=ja"
    assert np.corrcoef(found[column], whole[column])[0, 1] > 0.99
    # A pipeline predicts rows that do not fit memory, batch by batch.
    done = call("predict", "whole", folder, "--out", "b.parquet", "--keep", "when", *LIMIT)
    assert done.code == 0, done.err
    batched = pd.read_parquet("b.parquet")
    np.testing.assert_allclose(
        batched.select_dtypes("float"), whole.select_dtypes("float"), rtol=1e-10
    )
    assert batched["when"].is_unique is False and len(batched) == 12_000
    done = call("report", "m", folder, "--out", "r.html", *LIMIT)
    assert done.code == 0, done.err
    given = pages[0]
    assert given["model"].predict(given["X"]).shape == given["y"].shape
    assert set(given["groups"]) == {"n", "s"}


def test_what_parts_cannot_do(drago_, folder):
    words = ["--target", "y", "--drop", "class", "--model", "m", *LIMIT]
    assert call("fit", folder, *words).code == 0
    rows(100, 9).to_csv("d.csv", index=False)
    rows(100, 9).to_parquet("d.parquet")
    for more, message in (
        (["predict", "m", folder, "--out", "p.csv"], "are written to .parquet"),
        (["predict", "m", folder, "--out", "p.parquet", "--keep", "when"], "--keep"),
        (["predict", "m", "d.csv", "--out", "p.parquet"], "takes Parquet"),
        (["certify", "m", "d.parquet"], "certify it on the rows of its fit"),
        (["fit", "d.csv", *words[:-1], "1kB"], "convert it to Parquet"),
    ):
        done = call(*more)
        assert done.code == 1 and message in done.err, done.err
    assert call("predict", "m", "d.parquet", "--out", "p.parquet").code == 0


@pytest.mark.slow
def test_a_million_rows(drago_, pages):
    n = 1_000_000
    frame = rows(n, 0).drop(columns=["when", "class"])
    frame.to_csv("big.csv", index=False)
    words = ["--target", "y", "--groups", "clinic"]
    done = call("fit", "big.csv", *words, "--model", "m", "--json")
    assert done.code == 0, done.out
    assert done.json["rows"] == n and done.json["status"] == "optimal"
    assert call("predict", "m", "big.csv", "--out", "p.parquet").code == 0
    assert len(pd.read_parquet("p.parquet")) == n
    assert call("certify", "m", "big.csv").code == 0
    assert call("report", "m", "big.csv", "--out", "r.html").code == 0
    assert len(pages[0]["y"]) == n
