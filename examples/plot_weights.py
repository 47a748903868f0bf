"""
Which rows the adversary picks
==============================

Diabetes, least squares for the worst fifth of the patients, with two shift costs. Each point is a
row of the training data: its loss, and how many times its nominal weight it gets in the worst
case.

Rows of small loss get no weight: the objective does not see them. Above a threshold the weight
rises with the loss, by one nominal weight each time the loss rises by the shift cost, up to the
cap of 1 / 0.2 = 5. With the small shift cost that is nearly a step: about a quarter of the rows
share the weight, most of them alike. With the large one more than two thirds of the rows count,
and only the worst few are at the cap.

    python examples/plot_weights.py [--folder DIR] [--small]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from drago import CVaR, DRORegressor
from drago.datasets import load
from drago.plotting import WeightsDisplay


def main(folder: str = ".", small: bool = False) -> Path:
    """Draw the picture and return where it was written."""
    data = load("diabetes", prepare="paper")
    rows = slice(100 if small else None)
    X, y = data.X[rows], data.y[rows]
    ax = None
    for shift_cost in (0.02, 0.2):
        model = DRORegressor(CVaR(0.2), shift_cost=shift_cost).fit(X, y)
        name = f"shift cost {shift_cost}"
        display = WeightsDisplay.from_estimator(model, X, y, name=name, ax=ax)
        ax = display.ax_
    path = Path(folder) / "plot_weights.png"
    display.figure_.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Worst-case weights against losses.")
    parser.add_argument("--folder", default=".", help="where to write the picture")
    parser.add_argument("--small", action="store_true", help="few rows, for a quick look")
    print(main(**vars(parser.parse_args())))
