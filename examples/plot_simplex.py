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
"""

import matplotlib.pyplot as plt

from drago import Chi2Ball, CVaR, Extremile, KLBall
from drago.plotting import SimplexDisplay

LOSSES = (1.0, 2.0, 4.0)
SETS = (CVaR(0.5), Extremile(2), Chi2Ball(0.2), KLBall(0.2))

figure, axes = plt.subplots(2, 2, figsize=(8, 6), layout="constrained")
for ax, uncertainty in zip(axes.flat, SETS):
    SimplexDisplay.from_losses(LOSSES, uncertainty, ax=ax)
plt.show()
