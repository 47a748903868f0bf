"""The code of the README and of the docs runs as it stands."""

import ast
import inspect
import re
import runpy
from pathlib import Path

import pytest

import drago

README = Path(__file__).parents[1] / "README.md"
DOCS = sorted((README.parent / "docs").glob("*.md"))


def blocks(path):
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


BLOCKS = blocks(README)
IN_DOCS = [(path.name, number) for path in DOCS for number in range(len(blocks(path)))]


def test_there_is_code():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_runs(number, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), {})


@pytest.mark.parametrize(("name", "number"), IN_DOCS)
def test_code_of_the_docs_runs(name, number):
    pytest.importorskip("torch")
    code = blocks(README.parent / "docs" / name)[number]
    exec(compile(code, f"{name} block {number}", "exec"), {})


def test_there_is_code_in_the_docs():
    assert ("torch.md", 0) in IN_DOCS


def test_the_table_of_defaults_is_true():
    """Each line against the signatures of those that have such a parameter."""
    text = README.read_text()
    table = text[text.index("| | default |") :].split("\n\n")[0]
    said = dict(re.findall(r"^\| (.*?) \| `?([^`:,; ]+)", table, re.M))
    estimators = drago.DRORegressor, drago.DROClassifier
    everyone = *estimators, drago.DROProblem, drago.robust_path
    of = {
        "`uncertainty` of `DRORegressor`, `DROClassifier`": ("uncertainty", estimators),
        "`uncertainty` of `DROProblem`": ("uncertainty", [drago.DROProblem]),
        "`baseline`": ("baseline", everyone),
        "`divergence`": ("divergence", everyone),
        "`shift_cost`": ("shift_cost", everyone[:3]),
        "`l2_reg`": ("l2_reg", everyone[:3]),
        "`fit_intercept`": ("fit_intercept", (*estimators, drago.robust_path)),
        "`tol`": ("tol", (*estimators, drago.solve, drago.robust_path)),
        "Huber's `delta`": ("delta", [drago.Huber]),
    }
    assert list(said) == ["", *of] or list(said) == list(of)
    for line, (name, owners) in of.items():
        for owner in owners:
            default = inspect.signature(owner).parameters[name].default
            assert default == ast.literal_eval(said[line]), (name, owner)
    assert inspect.signature(drago.DROProblem).parameters["fit_intercept"].default is False


def test_links_lead_somewhere():
    for text in (README, *DOCS):
        for target in re.findall(r"\]\(([^)#:]+)\)", text.read_text()):
            assert (text.parent / target).exists(), (text.name, target)


def test_the_demo_prints_what_the_readme_says(capsys):
    """Up to what rounding on another machine may do to a fit with a tolerance of 1e-4."""
    runpy.run_path(str(README.parent / "examples" / "demo.py"), run_name="__main__")

    def table(text):
        rows = re.findall(
            r"^ *(mean|CVaR 0\.\d) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)%", text, re.M
        )
        return {name: [float(value) for value in values] for name, *values in rows}

    printed, written = table(capsys.readouterr().out), table(README.read_text())
    assert list(printed) == list(written) == ["mean", "CVaR 0.5", "CVaR 0.2", "CVaR 0.1"]
    for name, values in printed.items():
        assert values == pytest.approx(written[name], rel=0.02), name
