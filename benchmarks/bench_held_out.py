"""What robustness buys on held-out rows: robust models against the mean one, on real data.

Each set is split five times, four fifths to fit and one fifth to judge. Every model has its levels
chosen by cross-validation on the rows to fit alone: the mean fit has its `l2_reg` tuned for the
mean loss, as one usually does, and once more for the loss of the worst tenth, so that what
robustness does is not mistaken for what tuning does. Features are standardised, the target of a
regression too, by the rows to fit.

Columns: the mean loss, the mean loss of the worst tenth, and of the worst-off group: the class in a
classification, the third of the target (low, middle, high) in a regression; and for classifications
the recall of the worst class. Means over the splits, and for the tail how many splits it was better
in than with the mean fit.

    DRAGO_DATA_DIR=... python benchmarks/bench_held_out.py [--csv FILE] [--data NAME [NAME ...]]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tables import Table, write_csv

from drago import Chi2Ball, DROClassifierCV, DRORegressorCV, Grouped
from drago.datasets import load
from drago.scorers import row_losses, tail_mean, worst_group_mean

SPLITS = 5
TAIL = 0.1
L2_REGS = (1.0, 0.1, 1e-2, 1e-3, 1e-4)
TAILS = (0.5, 0.2, 0.1)
DATA = {
    "breast_cancer": "classes",
    "wine": "classes",
    "emotion": "classes",
    "diabetes": "regression",
    "yacht": "regression",
    "energy": "regression",
    "concrete": "regression",
    "kin8nm": "regression",
    "power": "regression",
}


def models(task: str) -> dict[str, dict[str, Any]]:
    """What each model is given beyond the grid of `l2_regs`."""
    found: dict[str, dict[str, Any]] = {
        "mean": {"tail_fractions": (1.0,), "criterion": "mean"},
        "mean, tuned for the tail": {"tail_fractions": (1.0,)},
        "CVaR": {"tail_fractions": TAILS},
        "chi2 ball": {"tail_fractions": None, "uncertainty": Chi2Ball(1.0)},
    }
    if task == "classes":
        found["CVaR of classes"] = {
            "tail_fractions": (0.5, 0.2),
            "uncertainty": Grouped("cvar"),
            "criterion": "worst_group",
        }
    return found


def one_split(
    task: str, X: Any, y: Any, fit: Any, judge: Any, settings: dict[str, Any]
) -> tuple[float, ...]:
    """Mean, tail and worst-group loss, and the worst class's recall, on the rows to judge."""
    choosing = DROClassifierCV if task == "classes" else DRORegressorCV
    model = make_pipeline(StandardScaler(), choosing(l2_regs=L2_REGS, **settings))
    name = model.steps[-1][0]
    if task == "regression":
        y = (y - y[fit].mean()) / y[fit].std()
    extra = {f"{name}__groups": y[fit]} if isinstance(settings.get("uncertainty"), Grouped) else {}
    model.fit(X[fit], y[fit], **extra)
    losses = row_losses(model, X[judge], y[judge])
    p = np.full(losses.size, 1.0 / losses.size)
    groups = y[judge]
    recall = np.nan
    if task == "classes":
        right = model.predict(X[judge]) == groups
        recall = min(float(right[groups == label].mean()) for label in np.unique(groups))
    else:
        groups = np.digitize(groups, np.quantile(y[fit], [1 / 3, 2 / 3]))
    return (
        float(losses.mean()),
        tail_mean(losses, p, TAIL),
        worst_group_mean(losses, p, groups),
        recall,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", metavar="FILE")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA), metavar="NAME")
    options = parser.parse_args()
    table = Table(
        {
            "data": "14s",
            "model": "25s",
            "mean": "8.3f",
            "worst 10%": "10.3f",
            "worst group": "12.3f",
            "worst recall": "13.2f",
            "tail better": "12s",
        }
    )
    for name in options.data:
        task = DATA[name]
        data = load(name)
        X, y = np.asarray(data.X), np.asarray(data.y)
        kind = StratifiedKFold if task == "classes" else KFold
        splits = list(kind(SPLITS, shuffle=True, random_state=0).split(X, y))
        plain = None
        for label, settings in models(task).items():
            rows = np.array([one_split(task, X, y, *split, settings) for split in splits])
            plain = rows if plain is None else plain
            better = int((rows[:, 1] < plain[:, 1]).sum())
            mean, tail, group, recall = rows.mean(axis=0)
            table.add(
                {
                    "data": name,
                    "model": label,
                    "mean": mean,
                    "worst 10%": tail,
                    "worst group": group,
                    "worst recall": None if np.isnan(recall) else recall,
                    "tail better": "" if rows is plain else f"{better} of {SPLITS}",
                    "n": y.size,
                    "std of tail": rows[:, 1].std(ddof=1),
                }
            )
    write_csv(options.csv, table.rows)


if __name__ == "__main__":
    main()
