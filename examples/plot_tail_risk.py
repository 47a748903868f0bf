"""
When robustness helps, and when it does not
===========================================

Breast cancer: the mean loss of the worst share of the patients, from all of them (left end) to the
worst hundredth (right end). Every patient is judged by a model that was fitted without them, in a
cross-validation of five folds.

With ten of the features (left) the model is too simple for some patients. The fit for the worst
tenth doubles the mean loss over all patients and brings that of the worst hundredth down to about a
third. The curves cross at about 20%, and the fit for the worst half gains next to nothing. With all
thirty features (right) nearly everybody can be fitted, so that robust fits learn the few hard
patients by heart: on new ones they are worse, and the more robust the worse. Look at such a picture
before you choose, and regularise first.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

from drago import CVaR, DROClassifier
from drago.datasets import load
from drago.plotting import TailRiskDisplay

LEVELS = {"mean fit": 1.0, "CVaR 0.5 fit": 0.5, "CVaR 0.2 fit": 0.2, "CVaR 0.1 fit": 0.1}

# %%
# The loss of each patient under a model that was fitted on the other four fifths.


def held_out_losses(X, y, tail_fraction):
    losses = np.empty(y.size)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    for fit, judge in folds.split(X, y):
        scaler = StandardScaler().fit(X[fit])
        model = DROClassifier(CVaR(tail_fraction)).fit(scaler.transform(X[fit]), y[fit])
        losses[judge] = model.losses(scaler.transform(X[judge]), y[judge])
    return losses


# %%
# One curve for each level, and one picture for each number of features.

data = load("breast_cancer")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
for ax, n_features in zip(axes, (10, 30)):
    for name, tail_fraction in LEVELS.items():
        losses = held_out_losses(data.X[:, :n_features], data.y, tail_fraction)
        TailRiskDisplay.from_predictions(losses, name=name, ax=ax)
    ax.set_title(f"{n_features} features", fontsize="medium")
figure.get_layout_engine().set(wspace=0.05)
axes[1].set_ylabel("")
axes[1].get_legend().remove()
plt.show()
