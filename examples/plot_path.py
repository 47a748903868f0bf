"""
How much robustness? The whole path
===================================

From the mean (a tail of 1) to the worst twentieth (a tail of 0.05): a model for each level, each
solved from its neighbour's answer, and judged on held-out rows. Breast cancer with ten features,
log loss, mean of 20 random halves.

The path shows what a level costs and what it buys before one is chosen. Here levels down to 0.5 buy
nothing. From there on the loss of the worst-hit tenth falls, and the mean loss rises faster: at a
tail of 0.1 the worst tenth loses a third less, and the mean is almost twice what it was. Whether
that is a good trade, only you can say.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import ShuffleSplit

import drago

LEVELS = np.array([1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05])

data = drago.datasets.load("breast_cancer")
X, y = data.X[:, :10], data.y
mean, tail = np.zeros((2, 20, LEVELS.size))
for k, (fit, judge) in enumerate(ShuffleSplit(20, test_size=0.5, random_state=0).split(X)):
    centre, scale = X[fit].mean(axis=0), X[fit].std(axis=0)
    path = drago.robust_path(
        (X[fit] - centre) / scale, y[fit], loss="logistic", tail_fractions=LEVELS
    )
    raw = (X[judge] - centre) / scale @ path.coefs.T + path.intercepts
    losses = np.logaddexp(0.0, np.where(y[judge][:, None] == 1, -raw, raw))
    worst_last = np.sort(losses, axis=0)
    mean[k], tail[k] = losses.mean(axis=0), worst_last[-len(judge) // 10 :].mean(axis=0)

# %%
# The two losses against the level, with a standard error over the halves.

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for name, losses, colour in (
    ("the worst-hit tenth", tail, "#1d5b79"),
    ("all patients", mean, "#7a7a7a"),
):
    error = losses.std(axis=0) / np.sqrt(len(losses))
    ax.errorbar(LEVELS, losses.mean(axis=0), error, marker="o", capsize=3, label=name, color=colour)
ax.set_xscale("log")
ax.invert_xaxis()
ax.set_xticks(LEVELS, [f"{level:g}" for level in LEVELS])
ax.xaxis.set_minor_formatter("")
ax.set_ylim(bottom=0)
ax.set(
    xlabel="tail_fraction: the share of the rows that the model is fitted for",
    ylabel="mean loss, held-out patients",
)
ax.legend(frameon=False, title="mean loss of")
plt.show()
