"""
Groups in a frame: who gains, who pays
======================================

Drawn patients of three clinics. On the island, where one in seven is treated, the dose works the
other way. Four fits, each judged on patients that it was not fitted on: the mean fit, the clinics
weighted alike, the preset "worst_group", and the same with a shift cost that a search by the worst
clinic's held-out loss has chosen.

The clinic is a column of the frame. It travels through pipelines and searches with it: nothing has
to be routed, and it is no feature. The island's loss falls at the price of the others', by little
with the preset and by more with the search, which sees nothing but the worst clinic. A linear
model cannot serve both laws; `drago.audit` would say so and name what can. Printed are the tables
of `drago.compare`; drawn is the mean loss against that of the worst clinic.

    python examples/plot_groups.py [--folder DIR] [--small]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

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


def draw(n: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Patients, and how they respond."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, 3)), columns=FEATURES)
    table["clinic"] = rng.choice(["north", "south", "island"], n, p=[0.5, 0.35, 0.15])
    effect = np.where(table["clinic"] == "island", -0.5, 1.0)
    return table, (table["age"] + effect * table["dose"] + rng.normal(size=n)).to_numpy()


def main(folder: str = ".", small: bool = False) -> Path:
    """Print the tables, draw the picture and return where it was written."""
    X, y = draw(400 if small else 3000)
    fit, judge, y_fit, y_judge = train_test_split(X, y, test_size=0.5, random_state=0)

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
    table = drago.compare(models, judge, y_judge, groups="clinic")
    print(table, file=sys.stderr)
    print(table.groups_to_frame().round(3).to_string(index=False), file=sys.stderr)

    figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    TradeOffDisplay.from_result(table, ax=ax)
    path = Path(folder) / "plot_groups.png"
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Who gains, who pays.")
    parser.add_argument("--folder", default=".", help="where to write the picture")
    parser.add_argument("--small", action="store_true", help="few rows, for a quick look")
    print(main(**vars(parser.parse_args())))
