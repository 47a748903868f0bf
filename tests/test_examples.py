"""The scripts in examples/ that draw a picture: run as a user would, on few rows."""

import ast
import runpy
import sys
from pathlib import Path

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import image, pyplot

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("plot_*.py"))

all_scripts = pytest.mark.parametrize("script", SCRIPTS, ids=[path.stem for path in SCRIPTS])


@pytest.fixture(autouse=True)
def _no_figures_left():
    yield
    pyplot.close("all")


def test_there_is_one_for_each_display():
    assert {path.stem for path in SCRIPTS} >= {
        "plot_convergence",
        "plot_groups",
        "plot_simplex",
        "plot_sorted_losses",
        "plot_tail_risk",
        "plot_weights",
    }


@all_scripts
def test_says_how_to_run_it_and_what_is_seen(script):
    text = ast.get_docstring(ast.parse(script.read_text()))
    title, underline = text.splitlines()[:2]
    assert underline == "=" * len(title)
    assert f"python examples/{script.name} [--folder DIR] [--small]" in text


@all_scripts
def test_writes_a_picture(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--folder", str(tmp_path), "--small"])
    runpy.run_path(str(script), run_name="__main__")
    path = tmp_path / f"{script.stem}.png"
    assert capsys.readouterr().out.strip() == str(path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 5000
    pixels = image.imread(path)
    height, width = pixels.shape[:2]
    assert height >= 400 and width >= 600
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
