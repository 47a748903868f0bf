"""The reproduction of the paper, at a size that says nothing about the paper."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PAPER = Path(__file__).parents[1] / "benchmarks" / "paper"
FIGURES = {
    "uncertainty", "regression_calls", "regression_seconds", "text", "chi2_calls", "chi2_seconds",
    "batch_calls", "batch_seconds", "rates", "cost", "ablation",
}  # fmt: skip
GROUPS = ("regression", "text", "chi2", "batch", "ablation")


def command(*options):
    return subprocess.run(
        [sys.executable, str(PAPER), "--size", "tiny", "--workers", "0", *options],
        capture_output=True,
        text=True,
        check=True,
    )


@pytest.mark.slow
def test_the_command_writes_everything_and_goes_on_where_it_stopped(tmp_path):
    import pyarrow.parquet as pq

    out = tmp_path / "paper"
    first = command("--out", str(out))
    drawn = {path.name for path in (out / "figures").iterdir() if path.stat().st_size > 1000}
    assert drawn == {f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "pdf")}
    for group in GROUPS:
        table = pq.read_table(out / f"{group}.parquet")
        assert {"calls", "seconds", "suboptimality", "method", "seed"} <= set(table.column_names)
        assert np.isfinite(table["suboptimality"].to_numpy()).any()
    report = (out / "report.md").read_text()
    assert first.stdout.strip() in report
    assert first.stdout.count("| **") > 25  # a verdict for each claim
    assert "all are certified to 1e-12" in report
    for missing in ("BROO", "Minimax-APPA", "Wasserstein", "1,000 of the paper's 4,000 rows"):
        assert missing in report

    before = {path: path.stat().st_mtime_ns for path in out.glob("*s/*")}
    second = command("--out", str(out), "--docs", str(tmp_path / "docs"))
    done, total = map(int, re.search(r"(\d+) of (\d+) are there already", second.stderr).groups())
    assert done == total > 100
    assert {path: path.stat().st_mtime_ns for path in out.glob("*s/*")} == before
    assert second.stdout == first.stdout
    page = (tmp_path / "docs" / "paper.md").read_text()
    for name in FIGURES:
        assert f"(paper/{name}.png)" in page
        assert (tmp_path / "docs" / "paper" / f"{name}.png").exists()


@pytest.fixture
def methods(monkeypatch):
    monkeypatch.syspath_prepend(str(PAPER))
    import methods

    return methods


def problem():
    import drago

    data = drago.datasets.make_synthetic(60, 3, tail_heaviness=0.2, random_state=0)
    return drago.DROProblem(
        data.X, data.y, uncertainty=drago.CVaR(0.75), shift_cost=1 / 60, l2_reg=1.0
    )


@pytest.mark.parametrize("name", ["drago-1", "drago-16", "drago-n/d", "drago-lagged", "stationary"])
def test_the_plain_run_is_the_librarys_own(methods, name):
    import drago

    p = problem()
    plain = methods.with_step(methods.METHODS[name].make(p), 0.05)
    own = drago.Drago(**{field: getattr(plain, field) for field in drago.Drago.__annotations__})
    limits = methods.Limits(target=0.0, passes=3.0, seconds=0.0, most_seconds=10.0)
    curves = []
    for method in (plain, own):
        loop = methods.Recorder(p, 1, limits, 0.0, certified=False)
        loop.run(method)
        curves.append(loop.curve)
    assert curves[0].calls == curves[1].calls
    np.testing.assert_array_equal(curves[0].objective, curves[1].objective)


def test_sorting_gives_the_same_weights(methods):
    p = problem()
    oracle, rng = p.dual_oracle(), np.random.default_rng(0)
    sorting = methods.SortedOracle(p.n_samples, 0.75)
    ours, theirs = np.empty(p.n_samples), np.empty(p.n_samples)
    for c in (1e-3, 1.0, 10.0):
        u = rng.exponential(size=p.n_samples)
        oracle.solve_into(u, c, ours)
        sorting.solve_into(u, c, theirs)
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_sgd_takes_the_papers_shift_cost_on_its_batch(methods):
    p = problem()
    settings = methods.METHODS["sgd"].make(p)
    assert settings.batch_nu == pytest.approx(1.0 / settings.batch_size)
