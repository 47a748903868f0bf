"""From a folder with a CSV to an HTML report, as a new user does it."""

import os
import re
import subprocess
import sys

import pytest
from sklearn.datasets import load_breast_cancer

from .conftest import TABLES, call


def in_a_new_process(*words):
    done = subprocess.run(
        [sys.executable, "-m", "drago", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def in_this_process(*words):
    done = call(*words)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "run", [in_this_process, pytest.param(in_a_new_process, marks=pytest.mark.slow)]
)
def test_two_commands_after_the_installation(tmp_path, monkeypatch, run):
    """`benchmarks/first_report.py` does the installation too."""
    monkeypatch.chdir(tmp_path)
    load_breast_cancer(as_frame=True).frame.to_csv("patients.csv", index=False)
    run("fit", "patients.csv", "--target", "target", "--model", "patients.drago")
    run("report", "patients.drago", "patients.csv", "--out", "report.html")
    assert sorted(os.listdir(tmp_path)) == ["patients.csv", "patients.drago", "report.html"]
    is_one_page((tmp_path / "report.html").read_text(encoding="utf-8"))


def is_one_page(page):
    """HTML that loads nothing from elsewhere."""
    assert page.startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert len(page.encode()) < 2e6


@pytest.mark.slow
def test_reports_of_five_data_sets(drago_, five, name):
    folder, _ = five
    path, data = folder / f"{name}.drago", folder / f"{name}.csv"
    for more in ([], ["--no-rows", "--title", "<b>ü</b>"]):
        done = drago_("report", path, data, "--out", "r.html", *more)
        assert done.code == 0, done.err
        with open("r.html", encoding="utf-8") as file:
            page = file.read()
        is_one_page(page)
        assert "row 17" not in page and "<b>ü" not in page


@pytest.mark.slow
def test_reports_of_audits(drago_):
    frame, target, options = TABLES["groups"]
    frame.to_csv("d.csv", index=False)
    done = call("audit", "d.csv", "--target", target, *options, "--time-budget", "0", "--report",
                "a.html")  # fmt: skip
    assert done.code == 0, done.err
    with open("a.html", encoding="utf-8") as file:
        is_one_page(file.read())


@pytest.mark.parametrize("n", [1, 2, 5])
def test_reports_of_few_rows(drago_, five, n):
    """A report or a named error."""
    TABLES["regression"][0].iloc[:n].to_csv("few.csv", index=False)
    done = drago_("report", five[0] / "regression.drago", "few.csv", "--out", "r.html")
    assert done.code in (0, 1), done.err
    assert os.path.exists("r.html") == (done.code == 0)


def test_messages_name_options_and_not_arguments():
    from drago.cli.out import on_command_line

    assert on_command_line("give a larger time_limit, or tol=1") == (
        "give a larger --time-limit, or --tol=1"
    )
    assert on_command_line("uncertainty='cvar' needs tail_fraction=") == (
        "--uncertainty cvar needs --tail-fraction"
    )
    for same in ("there is no column 'tol'", "--memory-limit", "the uncertainty is large"):
        assert on_command_line(same) == same


@pytest.mark.parametrize(
    "gap, told", [(1.0, "100%"), (6.6e-28, "less than 0.001%"), (5.7e-5, "0.0057%")]
)
def test_shares_are_numbers_that_people_read(gap, told):
    from drago.cli.commands import _share

    assert _share(gap) == told


def test_columns_are_listed_whole():
    import pandas as pd

    from drago.cli.columns import require_columns

    frame = pd.DataFrame({name: [0] for name in ["region", *(f"measure_{k}" for k in range(30))]})
    with pytest.raises(ValueError, match=r"did you mean 'region'.*'measure_18' and 11 more"):
        require_columns(frame, ["regoin"])
