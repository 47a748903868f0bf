"""
How fast, and how far
=====================

Handwritten digits, ten classes, fitted for the worst tenth of the rows by three methods. Each
point is a certificate: a proven bound on what is left to gain, relative to what the model w = 0
leaves. On the left it is drawn against passes over the data, on the right against seconds.

All three get below the tolerance, so all three found the same model. L-BFGS needs the fewest
passes; DRAGO gains little in the first half of its passes and falls steeply in the second;
gradient descent needs more than ten times as many. (It ends far below the tolerance because
certificates cost passes too, so there are few of them on a long way.) The seconds depend on the
machine.
"""

import matplotlib.pyplot as plt

from drago import CVaR, DROClassifier
from drago.datasets import load
from drago.plotting import ConvergenceDisplay

data = load("digits", prepare="paper")

figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for name, solver in {"L-BFGS": "lbfgs", "DRAGO": "drago", "gradient descent": "gd"}.items():
    model = DROClassifier(CVaR(0.1), solver=solver, shift_cost=0.05, l2_reg=0.01, tol=1e-5)
    model.fit(data.X, data.y)
    ConvergenceDisplay.from_estimator(model, x="passes", name=name, ax=axes[0])
    ConvergenceDisplay.from_estimator(model, x="time", name=name, ax=axes[1])
for ax in axes:
    ax.set_xscale("log")
    ax.xaxis.set_minor_formatter("")
axes[1].set_ylabel("")
axes[1].get_legend().remove()
plt.show()
