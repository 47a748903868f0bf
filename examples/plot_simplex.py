"""
Uncertainty sets and what the shift cost does
=============================================

Three rows with the losses 1, 2 and 4. Each point of a triangle is a weighting of them: a corner
puts all weight on one row, p gives each a third. The filled sets are what the adversary may choose
from. Its objective is the weighted loss minus the shift cost nu times the divergence from p; lines
join points of equal value for one nu, and the thick one touches the set at the maximum.

As nu falls the maximum (dots) leaves p for the rows of larger loss. In the polygons (CVaR,
extremile) it reaches an edge and slides along it to a corner. In the balls, whose shape is that of
the divergence itself, it stops where it meets the edge: from there on the radius decides and not
nu.

    python examples/plot_simplex.py [--folder DIR] [--small]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt

from drago import Chi2Ball, CVaR, Extremile, KLBall
from drago.plotting import SimplexDisplay

LOSSES = (1.0, 2.0, 4.0)
SETS = (CVaR(0.5), Extremile(2), Chi2Ball(0.2), KLBall(0.2))


def main(folder: str = ".", small: bool = False) -> Path:
    """Draw the picture and return where it was written."""
    sets = SETS[:2] if small else SETS
    figure, axes = plt.subplots(
        len(sets) // 2, 2, figsize=(8, 1.5 * len(sets)), layout="constrained"
    )
    for ax, uncertainty in zip(axes.flat, sets):
        SimplexDisplay.from_losses(LOSSES, uncertainty, ax=ax)
    path = Path(folder) / "plot_simplex.png"
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Four uncertainty sets over three rows.")
    parser.add_argument("--folder", default=".", help="where to write the picture")
    parser.add_argument("--small", action="store_true", help="two of the sets, for a quick look")
    print(main(**vars(parser.parse_args())))
