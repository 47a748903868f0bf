"""Pictures of models and solves, in the way of scikit-learn's displays.

A display is made by one of its class methods (`from_estimator`, `from_predictions`, ...), which
computes what is to be seen and draws it. What was computed is in its attributes, what was drawn in
those that end in an underscore (`ax_`, `figure_`, `line_`, ...). Another curve goes into the same
picture by ``ax=display.ax_``. matplotlib is needed for drawing alone and imported by then.
"""

from drago.plotting.convergence import ConvergenceDisplay
from drago.plotting.groups import FoundGroupsDisplay
from drago.plotting.losses import SortedLossDisplay, TailRiskDisplay
from drago.plotting.simplex import SimplexDisplay
from drago.plotting.trade_off import TradeOffDisplay
from drago.plotting.weights import WeightsDisplay

__all__ = [
    "ConvergenceDisplay",
    "FoundGroupsDisplay",
    "SimplexDisplay",
    "SortedLossDisplay",
    "TailRiskDisplay",
    "TradeOffDisplay",
    "WeightsDisplay",
]
