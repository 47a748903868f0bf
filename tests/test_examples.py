"""The scripts in examples/: run as a user would, and each plot_*.py draws a picture."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import image, pyplot

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCRIPTS = sorted(EXAMPLES.glob("plot_*.py"))
# It starts processes of its own, and is run in one (see below).
ELSEWHERE = {"plot_dask"}
DRAWN = [path for path in SCRIPTS if path.stem not in ELSEWHERE]

all_scripts = pytest.mark.parametrize("script", DRAWN, ids=[path.stem for path in DRAWN])


@pytest.fixture(autouse=True)
def _no_figures_left():
    yield
    pyplot.close("all")


def test_there_is_one_for_each_display():
    text = "".join(path.read_text() for path in SCRIPTS)
    used = set(re.findall(r"\b(\w+Display)\.from_", text))
    import drago.plotting

    assert used == {name for name in drago.plotting.__all__ if name.endswith("Display")}


@all_scripts
def test_says_what_is_seen(script):
    text = ast.get_docstring(ast.parse(script.read_text()))
    title, underline, blank = text.splitlines()[:3]
    assert underline == "=" * len(title) and blank == ""


@all_scripts
@pytest.mark.filterwarnings("ignore:.*non-interactive")
def test_draws_a_picture(script, tmp_path):
    runpy.run_path(str(script), run_name="__main__")
    assert len(pyplot.get_fignums()) == 1
    path = tmp_path / "picture.png"
    pyplot.savefig(path, dpi=100)
    pixels = image.imread(path)
    height, width = pixels.shape[:2]
    assert height >= 300 and width >= 600
    assert pixels[..., :3].std() > 0.02
    # Nothing runs out of the picture: its border is white.
    edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    assert all((edge[..., :3] == 1.0).all() for edge in edges)


@pytest.mark.slow
def test_a_network_is_trained(monkeypatch, capsys):
    pytest.importorskip("torch")
    script = EXAMPLES / "robust_digits.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--small"])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("mean", "CVaR 0.2", "KL ball 0.5", "classes"))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("autograd_logistic", ("DROClassifier", "nn.Module, drago", "largest difference")),
        ("custom_loss", ("mean", "CVaR 0.5", "CVaR 0.2")),
    ],
)
def test_autograd_is_certified(name, shown, monkeypatch, capsys):
    pytest.importorskip("torch")
    script = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--small"])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(word in printed for word in shown)


@pytest.mark.slow
def test_files_larger_than_the_limit(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    script = EXAMPLES / "larger_than_memory.py"
    given = ["--folder", str(tmp_path), "--gigabytes", "0.06", "--limit", "60MB"]
    monkeypatch.setattr(sys, "argv", [str(script), *given])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert "fit, optimal" in printed and "250000 predictions" in printed


@pytest.mark.slow
def test_a_cluster_draws_a_picture(tmp_path):
    pytest.importorskip("distributed")
    given = [str(EXAMPLES / "plot_dask.py"), "--folder", str(tmp_path), "--small"]
    done = subprocess.run([sys.executable, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "plot_dask.png").stat().st_size > 5000
