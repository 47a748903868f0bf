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
"""

import matplotlib.pyplot as plt

from drago import CVaR, DRORegressor
from drago.datasets import load
from drago.plotting import WeightsDisplay

data = load("diabetes", prepare="paper")

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
for shift_cost in (0.02, 0.2):
    model = DRORegressor(CVaR(0.2), shift_cost=shift_cost).fit(data.X, data.y)
    WeightsDisplay.from_estimator(model, data.X, data.y, name=f"shift cost {shift_cost}", ax=ax)
plt.show()
