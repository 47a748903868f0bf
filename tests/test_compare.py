"""What `benchmarks/compare.py` makes of measurements; nothing is timed here."""

import math
import sys
from pathlib import Path

import pytest
from scipy import stats

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import compare

OLD = {"1": 2.0, "2": 2.2, "3": 1.9, "4": 2.1}


def times(factors, of=OLD):
    return {run: factor * value for (run, value), factor in zip(of.items(), factors)}


def test_interval_of_the_ratio():
    factors = [1.2, 1.3, 1.15, 1.25]
    found = compare.compare(OLD, times(factors))
    logs = stats.ttest_1samp([math.log(factor) for factor in factors], 0.0)
    low, high = logs.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.ratio == pytest.approx(stats.gmean(factors))
    assert found.old == pytest.approx(2.05) and found.pairs == 4


def test_pairs_are_by_run():
    """The order of the runs does not matter, and a run that one side lacks is left out."""
    new = dict(reversed(times([1.2, 1.3, 1.15, 1.25]).items()))
    assert compare.compare(OLD, new) == compare.compare(OLD, times([1.2, 1.3, 1.15, 1.25]))
    del new["4"]
    assert compare.compare(OLD, new).ratio == pytest.approx(stats.gmean([1.2, 1.3, 1.15]))


@pytest.mark.parametrize(
    "factors, is_slower",
    [
        ([1.2, 1.21, 1.19, 1.2], True),
        ([1.09, 1.08, 1.09, 1.08], False),
        ([1.2, 1.6, 0.9, 1.3], False),  # nobody knows
        ([0.5, 0.5, 0.5, 0.6], False),
        ([math.inf, math.inf, math.inf, 1.0], True),
        ([math.inf, 1.0, 1.0, 1.01], False),
    ],
)
def test_what_is_slower(factors, is_slower):
    assert compare.compare(OLD, times(factors)).is_slower == is_slower


def test_too_little_to_tell():
    one = compare.compare({"1": 1.0}, {"1": 3.0})
    assert one.ratio == pytest.approx(3.0) and not one.is_slower
    none = dict.fromkeys(OLD, math.inf)
    assert not compare.compare(none, none).is_slower
    assert not compare.compare(none, OLD).is_slower


def test_times_of_the_scripts():
    row = {"data": "yacht", "published_ms": "9.1", "drago_ms": "0.5", "first_ms": "0.7"}
    found = compare.times_in("paper", [row | {"lbfgs_ms": "not: 60000", "drago/lbfgs": "0.2"}])
    assert [(time["time"], time["value"]) for time in found] == [
        ("drago_ms", "0.5"),
        ("first_ms", "0.7"),
        ("lbfgs_ms", "inf"),
    ]
    assert {(time["table"], time["row"]) for time in found} == {("paper", "yacht")}
    row = {"problem": "iris CVaR-0.1", "method": "auto"}
    for tol, seconds, status in (("1e-3", "0.1", "optimal"), ("1e-5", "0.5", "time_limit")):
        row |= {f"seconds_{tol}": seconds, f"passes_{tol}": "9", f"status_{tol}": status}
    found = compare.times_in("solvers", [row | {"seconds_1e-7": "", "status_1e-7": "time_limit"}])
    assert [time["value"] for time in found] == ["0.1", "inf", "inf"]
    assert found[0]["row"] == "auto: iris CVaR-0.1"


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """A run that was stopped; the new checkout takes twice as long for one row of two."""
    calls = []

    def make_table(table, checkouts, caches):
        calls.append((table, *checkouts))
        if len(calls) == 4:
            raise KeyboardInterrupt
        found = {}
        for side in checkouts:
            values = {"same": 1.0, "other": 1.0 + (side == "new"), f"of {side}": 1.0}
            named = {"table": table, "time": "cold_ns"}
            found[side] = [named | {"row": row, "value": str(x)} for row, x in values.items()]
        return found

    monkeypatch.setattr(compare, "make_table", make_table)
    path = tmp_path / "found" / "times.csv"
    command = ["compare.py", str(tmp_path / "a"), str(tmp_path / "b"), "--csv", str(path)]
    command += ["--runs", "2", "--tables", "dual", "pass"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(KeyboardInterrupt):
        compare.main()
    return path, command, calls


def test_a_run_goes_on_where_it_was_stopped(measured, monkeypatch, capsys):
    path, command, calls = measured
    rows = compare.read(path)
    assert len(rows) == 3 * 2 * 3  # tables, sides, rows
    monkeypatch.setattr(sys, "argv", [*command, "--resume"])
    assert compare.main() == 1
    assert compare.read(path)[: len(rows)] == rows
    # The fourth was not finished.
    turns = [("new", "old")] * 2 + [("old", "new")] * 3 + [("new", "old")] * 2
    tables = ["dual", "pass", "dual", "pass", "pass", "dual", "pass"]
    assert calls == [(table, *sides) for table, sides in zip(tables, turns)]
    monkeypatch.setattr(sys, "argv", ["compare.py", "--report", "--csv", str(path)])
    capsys.readouterr()
    assert compare.main() == 1
    shown = capsys.readouterr().out
    assert shown.count("slower other") == 2 and "slower same" not in shown
    assert "only in old: dual of old cold_ns" in shown and "only in new: pass of new" in shown
    assert len(calls) == 7


def test_a_run_of_other_commits_is_not_gone_on_with(measured, monkeypatch):
    _, command, _ = measured
    monkeypatch.setattr(compare, "commit_of", lambda checkout: "another")
    monkeypatch.setattr(sys, "argv", [*command, "--resume"])
    with pytest.raises(SystemExit, match="other commits"):
        compare.main()


SCRIPT = """
import sys, drago

def main():
    with open(drago.LOG, "a") as log, open(sys.argv[2], "w") as table:
        table.write("name,seconds\\n")
        for row in range(drago.ROWS):
            log.write(f"{drago.SIDE}{row} ")
            log.flush()
            table.write(f"{row},{drago.ROWS}\\n")
            print("a row", row, flush=True)
"""


@pytest.fixture
def checkouts(tmp_path, monkeypatch):
    """Two checkouts of another package of our name."""
    job = compare.Job("toy", "--csv {csv}", row="{name}", times="seconds")
    monkeypatch.setitem(compare.JOBS, "toy", job)
    folders = {side: tmp_path / side for side in compare.SIDES}
    for (side, folder), rows in zip(folders.items(), (3, 2)):
        (folder / "src" / "drago").mkdir(parents=True)
        (folder / "benchmarks").mkdir()
        constants = f"LOG, SIDE, ROWS = {str(tmp_path / 'log')!r}, {side!r}, {rows}"
        (folder / "src" / "drago" / "__init__.py").write_text(constants)
        (folder / "benchmarks" / "toy.py").write_text(SCRIPT)
    return folders


def test_two_checkouts_take_turns(checkouts, tmp_path):
    """Each with its own source and scripts, whatever is installed."""
    found = compare.make_table("toy", checkouts, tmp_path / "cache")
    for side, rows in (("old", 3), ("new", 2)):
        assert [(time["row"], time["value"]) for time in found[side]] == [
            (str(row), str(rows)) for row in range(rows)
        ]
    assert (tmp_path / "log").read_text().split() == ["old0", "new0", "new1", "old1", "old2"]


def test_another_package_is_not_measured(checkouts, tmp_path):
    (checkouts["new"] / "src").rename(checkouts["new"] / "gone")
    with pytest.raises(SystemExit, match=r"Error.*\s+toy failed in .*new"):
        compare.make_table("toy", checkouts, tmp_path / "cache")
