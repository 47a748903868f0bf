"""
Who is served how well
======================

Breast cancer with ten features: logistic regression for the mean and for the worst tenth of the
patients, judged on the half of the patients that was held out. The losses are sorted, so a curve
shows how many patients have it how bad.

The mean fit is nearly perfect for four patients in five and very sure of itself on some that it
gets wrong. The robust fit lowers the mean loss of the worst tenth (dashed) by about a third and
the largest loss by two thirds. All others pay: it is less sure of everybody, and its mean loss
over all patients is more than twice that of the mean fit.
"""

import matplotlib.pyplot as plt
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from drago import CVaR, DROClassifier
from drago.datasets import load
from drago.plotting import SortedLossDisplay

data = load("breast_cancer")
X, X_held_out, y, y_held_out = train_test_split(
    data.X[:, :10], data.y, test_size=0.5, random_state=0
)

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for tail_fraction, name in ((1.0, "mean fit"), (0.1, "CVaR 0.1 fit")):
    model = make_pipeline(StandardScaler(), DROClassifier(CVaR(tail_fraction))).fit(X, y)
    SortedLossDisplay.from_estimator(
        model, X_held_out, y_held_out, tail_fraction=0.1, name=name, ax=ax
    )
plt.show()
