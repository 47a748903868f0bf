"""
Before and after
================

A plain fit is good on average, and the average can hide a group that it serves badly. Here 600
simulated patients are treated in three clinics. On the island, where one patient in ten lives, the
same dose does less. A line through all patients is a line through the other two clinics.

A robust fit gives badly served clinics more weight, within limits, and takes the line whose
weighted loss is smallest in that worst case. The island gets a better line, and the others pay for
it: the north's loss rises most. Both fits are judged on other patients than they were fitted on.
"""

# %%
# First the patients. The clinic is a column of the frame, and no feature of the model.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from drago import CVaR, DRORegressor

CLINICS = ["north", "south", "island"]


def draw(n, seed):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"dose": rng.uniform(0, 4, n)})
    table["clinic"] = rng.choice(CLINICS, n, p=[0.5, 0.4, 0.1])
    effect = table["clinic"].map({"north": 2.0, "south": 1.8, "island": 0.6})
    return table, effect * table["dose"] + rng.normal(scale=0.8, size=n)


patients, response = draw(600, seed=0)
others, their_response = draw(5000, seed=1)

# %%
# Two fits. `CVaR(1.0)` is the plain mean; "worst_group" lets the clinics' shares change. The shift
# cost is the price of such a change: the lower it is, the more the island counts.

before = DRORegressor(CVaR(1.0), group_columns="clinic").fit(patients, response)
after = DRORegressor("worst_group", shift_cost=1.0, group_columns="clinic").fit(patients, response)

# %%
# The mean loss by clinic, half the squared error, on the other patients.

models = {"before: mean fit": before, "after: robust fit": after}
losses = pd.DataFrame(
    {name: 0.5 * (model.predict(others) - their_response) ** 2 for name, model in models.items()}
)
by_clinic = losses.groupby(others["clinic"]).mean().loc[CLINICS]
by_clinic.loc["everybody"] = losses.mean()
print(by_clinic.round(2))

# %%
# On the left are the two lines, on the right what they cost whom.

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
colours = {"before: mean fit": "#7a7a7a", "after: robust fit": "#1d5b79"}
for clinics, colour in ((["north", "south"], "#c9d6de"), (["island"], "#d1495b")):
    shown = patients["clinic"].isin(clinics)
    left.scatter(
        patients["dose"][shown], response[shown], s=9, color=colour, label=" and ".join(clinics)
    )
doses = pd.DataFrame({"dose": [0.0, 4.0], "clinic": "north"})
for name, model in models.items():
    left.plot(doses["dose"], model.predict(doses), lw=3, color=colours[name], label=name)
left.set(xlabel="dose", ylabel="response", title="600 patients of three clinics")
left.legend(fontsize="small", frameon=False)

places = np.arange(len(by_clinic))
for shift, (name, values) in zip((-0.2, 0.2), by_clinic.items()):
    bars = right.bar(places + shift, values, width=0.38, color=colours[name], label=name)
    right.bar_label(bars, fmt="%.2f", fontsize="small", padding=2)
right.set_xticks(places, by_clinic.index)
right.margins(y=0.12)
right.set(ylabel="mean loss, other patients", title="who gains, who pays")
right.legend(fontsize="small", frameon=False)
right.spines[["top", "right"]].set_visible(False)
left.spines[["top", "right"]].set_visible(False)
plt.show()
