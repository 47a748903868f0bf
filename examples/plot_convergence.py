"""
How fast, and how far
=====================

Handwritten digits, ten classes, fitted for the worst tenth of the rows by three methods. Each
point is a certificate: a proven bound on what is left to gain, relative to what the model w = 0
leaves. On the left it is drawn against visits to the data, on the right against seconds.

All three get below the tolerance, so all three found the same model. L-BFGS needs the fewest
visits; DRAGO gains little in the first half of its visits and falls steeply in the second;
gradient descent needs more than ten times as many. (It ends far below the tolerance because
certificates cost visits too, so there are few of them on a long way.) The seconds depend on the
machine.

    python examples/plot_convergence.py [--folder DIR] [--small]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from drago import CVaR, DROClassifier
from drago.datasets import load
from drago.plotting import ConvergenceDisplay

SOLVERS = {"L-BFGS": "lbfgs", "DRAGO": "drago", "gradient descent": "gd"}


def main(folder: str = ".", small: bool = False) -> Path:
    """Draw the picture and return where it was written."""
    data = load("digits", prepare="paper")
    rows = slice(200 if small else None)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    for name, solver in SOLVERS.items():
        model = DROClassifier(CVaR(0.1), solver=solver, shift_cost=0.05, l2_reg=0.01, tol=1e-5)
        model.fit(data.X[rows], data.y[rows])
        ConvergenceDisplay.from_estimator(model, x="passes", name=name, ax=axes[0])
        ConvergenceDisplay.from_estimator(model, x="time", name=name, ax=axes[1])
    for ax in axes:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter("")
    axes[1].set_ylabel("")
    axes[1].get_legend().remove()
    path = Path(folder) / "plot_convergence.png"
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Certified gaps of three methods on digits.")
    parser.add_argument("--folder", default=".", help="where to write the picture")
    parser.add_argument("--small", action="store_true", help="few rows, for a quick look")
    print(main(**vars(parser.parse_args())))
