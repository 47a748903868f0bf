"""The reproduction of the paper, at a size that says nothing about the paper."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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
    rules = [
        line.split(" | ")[-2] for line in first.stdout.splitlines() if re.match(r"\| \d", line)
    ]
    assert len(rules) > 25 and all(len(rule) > 20 for rule in rules)
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
    # Every claim of the table is told, and each with its rule.
    assert page.count("*Counts as confirmed if ") == len(rules)
    for rule in rules:
        assert f"*Counts as confirmed if {rule}.*" in page


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


def test_lsvrg_counts_its_checkpoints_and_one_call_a_step(methods):
    """As the authors' code: n at a checkpoint, where the points are noted, and n until the next."""
    import drago

    p = problem()
    limits = methods.Limits(target=0.0, passes=9.0, seconds=0.0, most_seconds=60.0)
    curve = methods.record(methods.METHODS["lsvrg"], drago.LSVRG(0.01), p, 0, limits, 0.0)
    assert curve.end == "filled"
    assert curve.calls == [60 * (2 * k + 1) for k in range(5)]


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


# ------------------------------------------------------------------------------ verdicts


@pytest.fixture
def claims(methods):
    import claims

    return claims


class Made:
    """Results that were made up: the work of each method on each problem, and tables."""

    def __init__(self, plan, rows, work, tables=None):
        self.plan, self.rows, self.work, self.tables = plan, rows, work, tables

    def runs(self, spec, method):
        return [SimpleNamespace(n=self.rows[spec.data])]

    def reach(self, spec, method, target, axis="seconds"):
        return self.work[spec.data].get(method, np.inf)

    def table(self, name):
        return self.tables[name]

    def least(self, spec, method):
        return 1e-6

    def at(self, spec, method, place, axis="seconds"):
        return 1e-3


ROWS = {"yacht": 244, "energy": 614, "concrete": 824, "acsincome1k": 1000, "kin8nm": 6553}
BIAS = [{"data": "yacht", "nu": 1.0, "batches": 10, "squared": 9.0, "deviation": 1.0, "start": 3.0}]


def made(work):
    import plan
    from problems import Spec

    specs = [Spec(name) for name in work]
    balls = [Spec(name, "chi2", level=1.0) for name in work]
    return Made(replace(plan.tiny(), regression=specs, balls=balls), ROWS, work, {"bias": BIAS})


def the(found, words):
    (one,) = [claim for claim in found if words in claim.text]
    return one


def test_a_thousand_of_four_thousand_rows_are_neither_small_nor_large(claims):
    from problems import Spec

    sizes = {name: Spec(name).size(rows) for name, rows in ROWS.items()}
    assert sizes == dict.fromkeys(("yacht", "energy", "concrete"), "small") | {
        "acsincome1k": "part", "kin8nm": "large"
    }  # fmt: skip
    assert Spec("acsincome1k").size(4000) == "large"
    assert Spec("kin8nm").size(500) == Spec("diabetes").size(60) == "part"

    # b = 1 is good on acsincome alone, which then helps none of the claims on small sets.
    bad = {"drago-1": 9.0, "drago-16": 1.0, "drago-n/d": 1.0, "sgd": 1.0, "lsvrg": 1.0}
    good = bad | {"drago-1": 1.0}
    results = made({name: good if name == "acsincome1k" else bad for name in ROWS})
    for found, words in (
        (claims._regression(results), "b = 1 matches the baselines"),
        (claims._balls(results), "b = 1 performs well on the smaller"),
    ):
        claim = the(found, words)
        assert claim.verdict == "refuted"
        counted, aside = claim.measured.split("Not counted, as neither small nor large: ")
        assert "acsincome" in aside and "acsincome" not in counted
    # Nor does it count against them, and b = 16 is needed on the one large set that is whole.
    results = made({name: bad if name in ("acsincome1k", "kin8nm") else good for name in ROWS})
    assert the(claims._regression(results), "b = 1 matches").verdict == "confirmed"
    assert the(claims._regression(results), "b = 16 is needed").verdict == "confirmed"


def test_a_problem_on_which_none_gets_there_says_nothing(claims):
    work = {"drago-1": 1.0, "drago-16": 1.0, "drago-n/d": 1.0, "sgd": 3.0}
    results = made({"yacht": work, "energy": work, "acsincome1k": {}})
    found = claims._balls(results)
    # It used to be the one set that kept b = 16 from dominating.
    assert the(found, "b = 16 does not dominate").verdict == "refuted"
    assert the(found, "b = n/d has the better").verdict == "confirmed"


def test_every_verdict_has_its_rule_with_its_numbers(claims):
    work = {"drago-1": 1.0, "drago-16": 1.0, "drago-n/d": 1.0, "sgd": 3.0}
    results = made(dict.fromkeys(ROWS, work))
    for claim in claims._regression(results) + claims._balls(results):
        assert re.search(r"\d|half", claim.rule), claim.text
    assert "at most 2 times" in the(claims._regression(results), "b = n/d performs best").rule
    assert "5 standard errors" in the(claims._regression(results), "Minibatch SGD").rule


def test_a_floor_of_noise_alone_is_no_bias(claims):
    results = made({"yacht": {"sgd": 1.0}})
    assert claims._bias(results).verdict == "confirmed"
    results.tables = {"bias": [BIAS[0] | {"squared": 1.0}]}
    assert claims._bias(results).verdict == "in part"


def test_the_bias_of_batches_is_found_and_falls_with_their_size(methods, monkeypatch):
    import sweeps

    found = []
    for size in (8, 64):
        monkeypatch.setattr(sweeps, "BATCH", size)
        (row,) = sweeps.bias([("diabetes", 300, 1.0)], batches=1000)
        assert row["batch"] == size and row["squared"] > 10 * row["deviation"] > 0
        found.append(row["squared"])
    assert found[0] > 4 * found[1]


T = np.arange(1.0, 4001.0)
CURVES = {
    "a fixed factor": (10.0 ** (-T / 100), True),
    "a fixed factor with noise": (
        10.0 ** (-T / 100 + 0.5 * np.random.default_rng(0).standard_normal(T.size)), True
    ),
    "a wild start": (10.0 ** (6.0 - T / 100), True),
    "faster and faster": (10.0 ** (-((T / 100) ** 2)), True),
    "1/t": (1.0 / T, False),
    "1/t^2": (1.0 / T**2, False),
    "1/t^4": (1.0 / (1.0 + T / 20) ** 4, False),
    "a floor": (10.0 ** (-T / 100) + 1e-6, False),
    "a second, tenth as steep slope": (
        np.maximum(10.0 ** (-T / 100), 10.0 ** (-4.5 - T / 1000)), False
    ),
    "back above at the end": (np.where(T < 4000, 10.0 ** (-T / 100), 1e-3), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_what_counts_as_a_linear_rate(methods, name):
    import linear

    y, expected = CURVES[name]
    assert linear.is_linear(linear.places(T, y)) is expected
    # In epochs: few points say the same.
    some = np.arange(0, T.size, 60)
    if name != "back above at the end":
        assert linear.is_linear(linear.places(T[some], y[some])) is expected


def test_where_a_curve_falls_below_for_good(methods):
    import linear

    x = np.arange(6.0)
    y = np.array([1.0, 1e-3, 1e-1, 1e-4, np.inf, 1e-9])
    assert linear.places(x, y) == (5.0, 5.0, 5.0)
    y[4] = 1e-6
    first, middle, last = linear.places(x, y)
    assert first == pytest.approx(2 + 1 / 3) and middle == pytest.approx(3.5)
    assert last == pytest.approx(4 + 2 / 3)


def test_a_rate_is_not_confirmed_by_leaving_out_what_does_not_get_there(claims):
    import theory

    def rows(last):
        work = [(1.0, 10.0), (0.1, 20.0), (0.01, 40.0), (0.001, last)]
        return [
            {"varied": "nu", "nu": nu, "iterations": k, "bound": 1 / nu, "n": 9, "d": 1}
            for nu, k in work
        ]

    for last, verdict in ((80.0, "confirmed"), (np.inf, "refuted"), (4e3, "refuted")):
        results = Made(None, None, None, {"rates": rows(last)})
        (claim,) = theory._rates(results)
        assert claim.verdict == verdict
        assert "stationary start" in claim.measured and "0.5 + 0.15" in claim.rule


def test_the_rates_by_nu_are_measured_for_each_method(claims):
    import theory

    def row(method, nu, last):
        where = {"first": 10.0, "middle": 20.0, "last": last}
        return {"method": method, "nu": nu, "n": 9, "d": 1, "passes": 100.0, "least": 1e-7} | where

    def verdicts(lsvrg, prospect, drago):
        table = [row(name, 1e4, 30.0) for name in ("lsvrg", "prospect", "drago-n/d", "steady-n/d")]
        work = {"lsvrg": lsvrg, "prospect": prospect, "drago-n/d": drago, "steady-n/d": 30.0}
        table += [row(name, 0.01, last) for name, last in work.items()]
        found = theory._needs_shift_cost(Made(None, None, None, {"linear": table}))
        return [claim.verdict for claim in found]

    assert verdicts(np.inf, np.inf, 30.0) == ["confirmed"] * 3
    assert verdicts(30.0, 40.0, np.inf) == ["in part"] * 3
    # A rate that is ten times as slow is one.
    assert verdicts(500.0, 500.0, 30.0) == ["confirmed"] * 3
    assert verdicts(60.0, 300.0, 30.0) == ["confirmed", "in part", "confirmed"]


def test_the_theorems_bound_fails_for_a_large_shift_cost(methods):
    """At T = 1 nothing is random: w_1 = -grad/mu, and the bound goes to 0 as nu grows."""
    import sweeps

    (first, *_) = sweeps.theorem(n=20, d=2, nus=(1e6,), lengths=0.5, seeds=1)
    assert first["T"] == 1 and first["left"] > 100 * first["right"] > 0
    (first, *_) = sweeps.theorem(n=20, d=2, nus=(1e2,), lengths=0.5, seeds=1)
    assert first["left"] < first["right"]


def test_an_addition_that_is_slower_somewhere_is_told_so(methods):
    import improvements

    def side(better, plain):
        exact = np.isfinite(better) and np.isfinite(plain)
        return improvements.Comparison(better, plain, plain / better, exact).side

    sides = [side(1.0, 2.0), side(2.0, 1.0), side(1.0, 1.1), side(np.inf, 1.0), side(1.0, np.inf)]
    assert sides == ["faster", "slower", "even", "slower", "faster"]
    neither = improvements.Comparison(np.inf, np.inf, np.nan, False).side
    assert improvements.summary([*sides, neither]) == (
        "faster on 2, slower on 2, even on 1, not there on 1"
    )
    assert f"{improvements.CLEAR:g}" in improvements.RULE
