"""What a release promises: one version, true bounds, types, three commands to a report."""

import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import drago

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOWER = re.compile(r"([\w-]+)(?:\[[\w,]+\])?>=([\d.]+)")


def test_the_version_has_one_home():
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    homes = [path for path in (ROOT / "src").rglob("*.py") if "__version__ =" in path.read_text()]
    assert homes == [ROOT / "src" / "drago" / "_version.py"]
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", drago.__version__)
    assert f"## {drago.__version__.split('.dev')[0]}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_oldest_constraints_are_the_lower_bounds():
    """Of what is needed, and of what the tests use: `make test-oldest` tries exactly these."""
    text = (ROOT / "constraints-oldest.txt").read_text()
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text, re.MULTILINE))
    needed = [*PROJECT["dependencies"], *EXTRAS["test"]]
    lowest = dict(LOWER.match(requirement).groups() for requirement in needed)
    assert set(lowest) <= set(pinned)

    def parts(number):
        return [int(part) for part in number.split(".")]

    for name, number in lowest.items():
        same = parts(pinned[name])[: len(parts(number))]
        assert same == parts(number), (name, pinned[name], number)


def test_every_extra_agrees_on_its_lower_bounds():
    bounds = {}
    for requirements in [PROJECT["dependencies"], *EXTRAS.values()]:
        for requirement in requirements:
            if found := LOWER.match(requirement):
                assert bounds.setdefault(found[1], found[2]) == found[2], requirement


USER = """
    import numpy as np
    import numpy.typing as npt

    import drago
    from drago import CVaR, DROClassifier, DROProblem, DRORegressor, SolverResult


    def fit(X: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> SolverResult:
        problem = DROProblem(X, y, uncertainty=CVaR(0.1), shift_cost=0.05, fit_intercept=True)
        result = drago.solve(problem, tol=1e-6)
        gap: float = drago.certify(problem, result.coef, result.intercept).rel_gap
        print(gap, result.status, result.message)
        return result


    X = np.random.default_rng(0).normal(size=(100, 3))
    y = X[:, 0]
    model: DRORegressor = DRORegressor("mild", l2_reg=0.1).fit(X, y)
    predictions = model.predict(X)
    report = model.worst_case_report(X, y, groups=y > 0)
    loss: float = report.tail_loss
    classes = DROClassifier("worst_group").fit(X, y > 0, groups=y > 0).predict_proba(X)
    comparison = drago.compare({"model": model}, X, y, baseline=None)
    names: list[str] = comparison.models
    drago.save(model, "model.drago")
    again = drago.load("model.drago")
    source = drago.from_arrays(X, y)
    sets: list[drago.CVaR] = [CVaR(level) for level in (0.1, 0.2)]
    fit(X, y)
"""


def test_a_users_script_is_strictly_typed(tmp_path):
    api = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(USER))
    settings = tmp_path / "mypy.ini"
    # scikit-learn and others have no types of their own; drago has (py.typed).
    settings.write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\n")
    options = ["--strict", "--config-file", str(settings), "--follow-imports=silent"]
    options += ["--cache-dir", str(ROOT / ".mypy_cache" / "user")]
    said, errors, status = api.run([*options, str(script)])
    assert status == 0, said + errors


def test_types_are_part_of_the_package():
    assert (Path(drago.__file__).parent / "py.typed").exists()


@pytest.mark.slow
@pytest.mark.skipif("cli" not in EXTRAS, reason="there is no command yet")
def test_from_a_csv_to_a_report_in_three_commands(tmp_path):
    """The commands of the README, in an empty folder, on a data set of scikit-learn."""
    from markdown import blocks

    pytest.importorskip("pandas")
    from sklearn.datasets import load_diabetes

    (commands,) = [b.code for b in blocks(ROOT / "README.md") if b.said.startswith("run by")]
    frame = load_diabetes(as_frame=True).frame.rename(columns={"target": "y"})
    frame.to_csv(tmp_path / "data.csv", index=False)
    commands = commands.replace("python -m venv", f"{sys.executable} -m venv")
    commands = commands.replace("PATH/TO/drago", str(ROOT))
    assert len(commands.strip().splitlines()) == 3
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    page = (tmp_path / "out.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and len(page) < 2_000_000


@pytest.mark.slow
def test_a_wheel_installs_into_an_empty_environment(tmp_path):
    pytest.importorskip("hatchling")
    import smoke

    assert version("drago")
    copy = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(
        ".*", "build", "dist", "scratch", "results", "__pycache__", "*.so"
    )
    shutil.copytree(ROOT, copy, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(copy)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    smoke.try_out(wheel)
