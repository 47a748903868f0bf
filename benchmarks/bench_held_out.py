"""What robustness is worth on held-out rows: twenty real data sets with natural groups.

Each set of `suite.py` is split five times, 65% to fit and 35% to judge; features are standardised
by the rows to fit. Every method has the same rows, and what it chooses it chooses on the rows to
fit alone.

    mean            the mean fit, l2_reg 1e-3
    mild            the estimators' default
    cvar            CVaR(0.1) of the plain losses
    esrm 0.2 ...    ESRM of other levels than the default's 0.4
    excess_tail     the preset: CVaR(0.2) of the excess over boosted trees
    worst_group     the preset, with the given groups
    reweighted      the mean fit with groups of equal weight
    tuned mean      the mean fit with l2_reg by cross-validation
    cv              DROClassifierCV / DRORegressorCV as they are, no groups given
    cv groups       the same with the given groups
    found features  the tuned mean fit with dummies of found groups
    audit           what `drago.audit` recommends, with the given groups, by one pass over the rows
    trees           boosted trees

For each method and split the CSV file holds the mean loss, the loss of the worst given group, its
excess (over the out-of-fold losses of boosted trees mixed with the linear fit), the excess of the
worst tenth of the rows, and whether the fit has collapsed on the rows to fit (less than half of the
mean fit's skill there) and said so.

The report compares with the mean fit of the same l2_reg, or with the tuned one (the lower half of
the list): changes in percent, of an excess in percent of the mean fit's mean loss; averages over
the sets of the means over splits, ± half of a 95% interval over the sets; "worst set" is the
largest change of a mean loss, and "breached" counts the sets whose paired 95% interval over the
splits lies above the limit (2% for the first half, 3% for the second). Last, the level of the
default: chosen on every other set (the least loss of the worst group on average, with a mean loss
at most 0.5% above the mean fit's on average and 2% on every set), and judged on the others.

    python benchmarks/bench_held_out.py --csv FILE [--resume] [--report] [--data NAME ...]
                                        [--methods NAME ...] [--splits 5]
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from suite import DRAWN, MAKERS, REAL, DataSet, load

from drago import (
    ESRM,
    CollapseWarning,
    CVaR,
    DROClassifier,
    DROClassifierCV,
    DRORegressor,
    DRORegressorCV,
    GroupFinder,
    audit,
)
from drago.estimators.baseline import out_of_fold_losses
from drago.scorers import row_losses, tail_mean
from drago.terms.losses import as_loss

JUDGED = 0.35
L2_REG = 1e-3
# What each method is compared with, and the limit on the change of a set's mean loss, in percent.
FIXED = ("mild", "cvar", "excess_tail", "worst_group", "reweighted", "trees")
TUNED = ("cv", "cv groups", "found features", "audit", "trees")
DEFAULT = 0.4
LEVELS = (0.2, 0.4, 0.6, 0.8, 1.2)
MOST_ON_AVERAGE = 0.5
LIMITS = {"mean": 2.0, "tuned mean": 3.0}
FIELDS = (
    "data", "split", "method", "mean_loss", "worst_group", "worst_group_excess", "tail_excess",
    "collapsed", "warned", "seconds", "chosen",
)  # fmt: skip


def plain(task: str, *given: Any, **settings: Any) -> Any:
    return (DROClassifier if task == "classification" else DRORegressor)(*given, **settings)


def choosing(task: str, *given: Any, **settings: Any) -> Any:
    return (DROClassifierCV if task == "classification" else DRORegressorCV)(*given, **settings)


def reweighted(task: str, X: Any, y: Any, groups: Any) -> Any:
    codes = np.unique(groups, return_inverse=True)[1]
    return plain(task, CVaR(1.0)).fit(X, y, sample_weight=1.0 / np.bincount(codes)[codes])


def with_found_groups(task: str, X: Any, y: Any, groups: Any) -> Any:
    finder = make_union(FunctionTransformer(), GroupFinder(task=task))
    mean = choosing(task, [], criterion="mean", baseline=None)
    return make_pipeline(finder, StandardScaler(), mean).fit(X, y)


def audited(task: str, X: Any, y: Any, groups: Any) -> Any:
    found = audit(X, y, groups, task=task, n_repeats=1, time_budget=600.0, verbose=0)
    found.model.best_params_ = found.recommended
    return found.model


def trees(task: str, X: Any, y: Any, groups: Any) -> Any:
    kind = HistGradientBoostingClassifier
    if task == "regression":
        kind = HistGradientBoostingRegressor
    return kind(max_iter=100, max_leaf_nodes=15, random_state=0).fit(X, y)


METHODS: dict[str, Callable[[str, Any, Any, Any], Any]] = {
    "mean": lambda task, X, y, g: plain(task, CVaR(1.0)).fit(X, y),
    "mild": lambda task, X, y, g: plain(task).fit(X, y),
    **{
        f"esrm {level}": lambda task, X, y, g, level=level: plain(task, ESRM(level)).fit(X, y)
        for level in LEVELS
        if level != DEFAULT
    },
    "cvar": lambda task, X, y, g: plain(task, "cvar").fit(X, y),
    "excess_tail": lambda task, X, y, g: plain(task, "excess_tail").fit(X, y),
    "worst_group": lambda task, X, y, g: plain(task, "worst_group").fit(X, y, groups=g),
    "reweighted": reweighted,
    "tuned mean": lambda task, X, y, g: choosing(task, [], criterion="mean", baseline=None).fit(
        X, y
    ),
    "cv": lambda task, X, y, g: choosing(task).fit(X, y),
    "cv groups": lambda task, X, y, g: choosing(task).fit(X, y, groups=g),
    "found features": with_found_groups,
    "audit": audited,
    "trees": trees,
}


def splits_of(data: DataSet, count: int) -> list[tuple[Any, Any]]:
    rows, classes = np.arange(len(data.y)), data.y if data.task == "classification" else None
    return [
        tuple(train_test_split(rows, test_size=JUDGED, random_state=seed, stratify=classes))
        for seed in range(count)
    ]


def skill(model: Any, X: Any, y: Any, task: str) -> float:
    """1 - mean loss / that of the best constant, on the rows to fit."""
    if task == "regression":
        constant = 0.5 * float(np.var(y))
    else:
        p = float(np.mean(y))
        constant = -p * np.log(p) - (1.0 - p) * np.log(1.0 - p)
    return 1.0 - float(row_losses(model, X, y).mean()) / constant


def one_split(
    data: DataSet, method: str, fit: Any, judge: Any, baseline: Any, mean_skill: float
) -> dict[str, Any]:
    """What a method does on the rows to judge."""
    X, y, groups = data.X.to_numpy(), data.y, data.groups
    scale = StandardScaler().fit(X[fit])
    here, there = scale.transform(X[fit]), scale.transform(X[judge])
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = METHODS[method](data.task, here, y[fit], groups[fit])
    seconds = time.perf_counter() - began
    warned = any(issubclass(each.category, CollapseWarning) for each in caught)
    losses = row_losses(model, there, y[judge])
    excess = losses - baseline[judge]
    labels = np.unique(groups[judge])
    inside = [groups[judge] == g for g in labels]
    p = np.full(losses.size, 1.0 / losses.size)
    return {
        "data": data.name,
        "method": method,
        "mean_loss": float(losses.mean()),
        "worst_group": max(float(losses[rows].mean()) for rows in inside),
        "worst_group_excess": max(float(excess[rows].mean()) for rows in inside),
        "tail_excess": tail_mean(excess, p, 0.1),
        "collapsed": skill(model, here, y[fit], data.task) < 0.5 * mean_skill,
        "warned": warned,
        "seconds": seconds,
        "chosen": str(getattr(model, "best_params_", "")),
    }


# ----------------------------------------------------------------------------------- the report


def interval(values: Any) -> float:
    """Half of a 95% interval of a mean, by Student."""
    values = np.asarray(values, dtype=float)
    if values.size < 2:
        return float("nan")
    quantile = float(student.ppf(0.975, values.size - 1))
    return quantile * float(values.std(ddof=1)) / float(np.sqrt(values.size))


def shown(values: Any) -> str:
    """A mean with half of its interval; of one value there is none."""
    spread = f" ± {interval(values):5.2f}" if np.size(values) > 1 else ""
    return f"{np.mean(values):+8.2f}{spread}".rjust(16)


def report(rows: list[dict[str, Any]]) -> None:
    """Every method against the mean fit, or against the tuned one."""
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for row in rows:
        values = {name: float(row[name]) for name in FIELDS[3:7]}
        values["collapsed"] = float(row["collapsed"] == "True" or row["collapsed"] is True)
        found.setdefault((row["method"], row["data"]), {})[str(row["split"])] = values
    real = [make.__name__ for make in REAL]
    for against, methods in (("mean", FIXED), ("tuned mean", TUNED)):
        for kind, names in (("real", real), *((make.__name__, [make.__name__]) for make in DRAWN)):
            lines = [_line(found, method, against, names) for method in methods]
            lines = [line for line in lines if line]
            if lines:
                print(f"\nagainst the {against} fit, {kind} sets\n")
                print("\n".join([_HEAD, *lines]))
    levels(found, real)
    minority(found)
    taken = Counter(
        row["chosen"] for row in rows if row["method"] == "audit" and row["data"] in real
    )
    if taken:
        print(
            "\nwhat audit recommends on real sets: "
            + ", ".join(f"{k} {v}" for k, v in taken.items())
        )
    judged = [row for row in rows if row["method"] not in ("mean", "trees", "reweighted")]
    truth = np.array([str(row["collapsed"]) == "True" for row in judged])
    said = np.array([str(row["warned"]) == "True" for row in judged])
    if truth.any() and said.any():
        print(
            f"\ncollapse warning over {len(judged)} fits: {truth.sum()} collapsed, recall "
            f"{(truth & said).sum() / truth.sum():.2f}, precision "
            f"{(truth & said).sum() / said.sum():.2f}"
        )


def changes(found: Any, method: str, against: str, name: str) -> dict[str, list[float]]:
    """What a method changes on one set, in percent, split by split; {} where it is not known."""
    mine, theirs = found.get((method, name)), found.get((against, name))
    change: dict[str, list[float]] = {}
    if not mine or not theirs:
        return change
    for split in (split for split in mine if split in theirs):
        unit = theirs[split]["mean_loss"]
        for key in FIELDS[3:7]:
            away = mine[split][key] - theirs[split][key]
            size = unit if "excess" in key else theirs[split][key]
            change.setdefault(key, []).append(100.0 * away / size)
    return change


def minority(found: Any) -> None:
    """The excess of the worst group where a minority follows a law of its own, in its own unit."""
    names = [name for name in METHODS if (name, "syn_minor") in found]
    if names:
        print("\nexcess of the worst group on syn_minor\n")
    for name in names:
        values = [one["worst_group_excess"] for one in found[name, "syn_minor"].values()]
        print(f"{name:15s} {np.mean(values):7.4f}")


def levels(found: Any, names: list[str]) -> None:
    """The level of the default, chosen on one half of the sets and judged on the other."""
    table: dict[float, Any] = {}
    for level in LEVELS:
        method = "mild" if level == DEFAULT else f"esrm {level}"
        known = [changes(found, method, "mean", name) for name in names]
        if not all(known):
            return
        table[level] = np.array(
            [[np.mean(one[key]) for key in ("mean_loss", "worst_group")] for one in known]
        )
    print("\nlevel of ESRM, chosen on every other real set and judged on the rest\n")
    print(
        f"{'chosen on':12s} {'level':>5s} {'mean loss':>16s} {'worst set':>10s} "
        f"{'worst group':>16s}"
    )
    for first in (0, 1):
        here, there = slice(first, None, 2), slice(1 - first, None, 2)
        allowed = [
            level
            for level, values in table.items()
            if values[here, 0].mean() <= MOST_ON_AVERAGE and values[here, 0].max() <= LIMITS["mean"]
        ]
        best = min(allowed, key=lambda level: table[level][here, 1].mean())
        mean, worst = table[best][there].T
        print(
            f"{'odd sets' if first else 'even sets':12s} {best:5.1f} "
            f"{shown(mean)} {mean.max():+10.2f} "
            f"{shown(worst)}"
        )


_HEAD = (
    f"{'method':15s} {'sets':>4s} {'mean loss':>16s} {'worst set':>10s} {'breached':>8s} "
    f"{'worst group':>16s} {'better':>6s} {'its excess':>16s} {'better':>6s} "
    f"{'excess of tail':>16s} {'collapsed':>9s}"
)


def _line(found: Any, method: str, against: str, names: list[str]) -> str:
    columns: dict[str, list[float]] = {name: [] for name in FIELDS[3:7]}
    breached, collapsed = 0, 0.0
    for name in names:
        change = changes(found, method, against, name)
        if not change:
            continue
        collapsed += sum(
            mine["collapsed"]
            for split, mine in found[method, name].items()
            if split in found[against, name]
        )
        for key, values in change.items():
            columns[key].append(float(np.mean(values)))
        mean = change["mean_loss"]
        breached += np.mean(mean) - interval(mean) > LIMITS[against]
    if not columns["mean_loss"]:
        return ""
    cells = [f"{method:15s} {len(columns['mean_loss']):4d}"]
    for key, values in columns.items():
        cells.append(shown(values))
        if key == "mean_loss":
            cells.append(f"{max(values):+10.2f} {breached:8d}")
        elif key != "tail_excess":
            cells.append(f"{sum(value < 0 for value in values):6d}")
    return " ".join([*cells, f"{collapsed:9.0f}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", metavar="FILE", required=True)
    parser.add_argument("--resume", action="store_true", help="go on where a run was stopped")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--data", nargs="+", choices=MAKERS, default=list(MAKERS), metavar="NAME")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME"
    )
    parser.add_argument("--splits", type=int, default=5)
    options = parser.parse_args()
    path, rows = Path(options.csv), []
    if (options.resume or options.report) and path.exists():
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
    if not options.report:
        measure(options, path, rows)
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
    report(rows)


def measure(options: argparse.Namespace, path: Path, rows: list[dict[str, Any]]) -> None:
    """All that is asked for and not there yet; each line is written when it is known."""
    done = {(row["data"], str(row["split"]), row["method"]) for row in rows}
    with open(path, "a" if rows else "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not rows:
            writer.writeheader()
        for name in options.data:
            wanted = [
                (k, method)
                for k in range(options.splits)
                for method in options.methods
                if (name, str(k), method) not in done
            ]
            if not wanted:
                continue
            began, data = time.perf_counter(), load(name)
            loss = as_loss("logistic" if data.task == "classification" else "squared")
            baseline = out_of_fold_losses(
                "auto", data.X.to_numpy(), data.y, loss, groups=data.groups, with_groups=False
            )
            splits = splits_of(data, options.splits)
            skills: dict[int, float] = {}
            for k, method in wanted:
                fit, judge = splits[k]
                if k not in skills:
                    X = StandardScaler().fit_transform(data.X.to_numpy()[fit])
                    mean = METHODS["mean"](data.task, X, data.y[fit], None)
                    skills[k] = skill(mean, X, data.y[fit], data.task)
                row = one_split(data, method, fit, judge, baseline, skills[k])
                writer.writerow({"split": k, **row})
                file.flush()
            print(f"{name}: {len(wanted)} fits, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
