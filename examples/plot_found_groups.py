"""
Groups that nobody has named
============================

Who is served worse than they could be, if there is no column that says so? `drago.find_groups`
looks for groups with a rule in words. It compares the losses of a model with what is attainable,
fits a small tree to the difference on one half of the rows, and judges the groups on the other
half, so that a lucky find does not count.

Simulated patients: for those under 20 with a high pressure, the treatment works the other way. A
linear model cannot see that; the search does.
"""

# %%
# No group is given.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, PolynomialFeatures

import drago
from drago.plotting import FoundGroupsDisplay

rng = np.random.default_rng(0)
X = pd.DataFrame({"age": rng.uniform(0, 90, 3000), "pressure": rng.normal(120, 15, 3000)})
X["dose"] = rng.normal(size=3000)
young = (X["age"] < 20) & (X["pressure"] > 115)
y = np.where(young, -1.0, 1.0) * X["dose"] + 0.5 * rng.normal(size=3000)

found = drago.find_groups(X, y, max_groups=5)
print(found)

# %%
# A group stands out (in colour) if it can be served better, and is served worse than all rows.

figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
FoundGroupsDisplay.from_result(found, ax=ax)
plt.show()

# %%
# What to do with it? Often the rules are worth more as features than as groups:
# `drago.GroupFinder` makes them so in a pipeline.

with_groups = make_pipeline(
    make_union(FunctionTransformer(), drago.GroupFinder(max_groups=5)),
    PolynomialFeatures(interaction_only=True),
    LinearRegression(),
)
for name, model in {"plain": LinearRegression(), "with found groups": with_groups}.items():
    print(f"{name}: R2 {cross_val_score(model, X, y).mean():.2f} on held-out rows")
