"""
Groups in a frame: who gains, who pays
======================================

Simulated patients of three clinics. On the island, where one in seven is treated, the dose works
the other way. Four fits, each judged on patients that it was not fitted on: the mean fit, the
clinics weighted alike, the preset "worst_group", and the same with a shift cost that a search by
the worst clinic's held-out loss has chosen.
"""

# %%
# The clinic is a column of the frame. It travels through pipelines and searches with the frame, so
# that nothing has to be routed, and it is not a feature.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import drago
from drago import CVaR, DRORegressor
from drago.plotting import TradeOffDisplay

FEATURES = ["age", "dose", "pressure"]

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.normal(size=(3000, 3)), columns=FEATURES)
X["clinic"] = rng.choice(["north", "south", "island"], 3000, p=[0.5, 0.35, 0.15])
effect = np.where(X["clinic"] == "island", -0.5, 1.0)
y = X["age"] + effect * X["dose"] + rng.normal(size=3000)
fit, judge, y_fit, y_judge = train_test_split(X, y, test_size=0.5, random_state=0)

# %%
# Four models. The scaler leaves the clinic alone and hands it on.

scale = make_column_transformer(
    (StandardScaler(), FEATURES), remainder="passthrough", verbose_feature_names_out=False
).set_output(transform="pandas")
mean = make_pipeline(scale, DRORegressor(CVaR(1.0), group_columns="clinic"))
robust = make_pipeline(scale, DRORegressor("worst_group", group_columns="clinic"))
search = GridSearchCV(
    robust,
    {"droregressor__shift_cost": [0.01, 0.03, 0.1, 0.3, 1.0]},
    scoring=drago.worst_group_scorer("clinic"),
)
alike = 1.0 / fit.groupby("clinic")["clinic"].transform("size")
models = {
    "mean fit": mean.fit(fit, y_fit),
    "clinics weighted alike": clone(mean).fit(fit, y_fit, droregressor__sample_weight=alike),
    "worst_group": robust.fit(fit, y_fit),
    "worst_group, searched": search.fit(fit, y_fit),
}

# %%
# `drago.compare` makes the table, with 95% intervals. The island's loss falls at the price of the
# others': by little with the preset, and by more with the search, which sees nothing but the worst
# clinic.

comparison = drago.compare(models, judge, y_judge, groups="clinic")
print(comparison)
print(comparison.groups_to_frame().round(3).to_string(index=False))

# %%
# A linear model cannot serve both laws. `drago.audit` would say so, and name what can.

figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
TradeOffDisplay.from_result(comparison, ax=ax)
plt.show()
