"""Models side by side on rows that they have not seen: losses, groups, paired intervals."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._frames import as_frame
from drago._html import card, paragraph, table
from drago.estimators.choice import eligible
from drago.estimators.report import half_width

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

TAIL = 0.1
# Resamples of the rows for the intervals, and rows of them that are held at a time.
_RESAMPLES = 400
_CHUNK = 50
_BINS = 10
# Changes below this share of the reference's mean loss are rounding.
_EQUAL = 1e-9
# Characters of a line of text.
_WIDTH = 90
# Groups that are printed, the worst-off ones.
_SHOWN = 10
METRICS = ("mean_loss", "worst_group_loss", "worst_group_excess", "found_group_excess",
           "tail_excess")  # fmt: skip


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """What several models lose on rows that they have not seen; ``print(comparison)`` shows it.

    Attributes
    ----------
    models : list of str
    reference : str
        What the others are compared with.
    table : dict of arrays
        A line for each model: "model", and for "mean_loss", "worst_group_loss" (of the given group
        that fares worst), "worst_group_excess", "found_group_excess" (of the worst of the groups
        that a tree finds on other rows) and "tail_excess" (of the worst tenth of the rows) the
        value, its change against the reference, and a paired 95% interval of
        that: "mean_loss", "mean_loss_change", "mean_loss_low", "mean_loss_high", and so on. Last
        "calibration", the mean distance between predicted probabilities and frequencies in ten
        bins; NaN for regressions. NaN where no groups were given.
    groups : dict of arrays
        A line for each given group and model: "group", "rows", "model", "loss", "change", "low",
        "high" (paired intervals, each 95% by itself).
    worst_group : label or None
        The given group with the largest excess under the reference.
    n_rows : int

    Notes
    -----
    Which group is the worst under a model is looked up on other parts of the rows than those on
    which its loss is then counted (other folds, the other half): the largest of several means
    would be too large, and the more so the more a model's losses spread. Groups of fewer than 10
    rows are not called the worst, unless all are as small.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = X[:, 0] + rng.normal(size=100)
    >>> fitted = {name: drago.DRORegressor(name).fit(X[:50], y[:50]) for name in ("mild", "cvar")}
    >>> comparison = drago.compare(fitted, X[50:], y[50:], baseline=None)
    >>> comparison.models, comparison.n_rows
    (['mild', 'cvar'], 50)
    >>> comparison.table["mean_loss"].shape
    (2,)
    """

    models: list[str]
    reference: str
    table: dict[str, Any]
    groups: dict[str, Any]
    worst_group: Any
    n_rows: int
    judged: Judged = field(repr=False)
    seed: int = field(default=0, repr=False)

    def to_frame(self) -> Any:
        """The table as a frame of pandas."""
        return as_frame(self.table)

    def groups_to_frame(self) -> Any:
        """The table of groups as a frame of pandas."""
        return as_frame(self.groups)

    def line(self, model: str) -> dict[str, Any]:
        """What is known of a model."""
        k = self.models.index(model)
        return {name: column[k] for name, column in self.table.items()}

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.models)}; {self.n_rows} rows)"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        cells = _cells(self)
        parts = [table(dict(zip(cells[0], zip(*cells[1:]))), f"{self.n_rows} rows")]
        parts.append(paragraph(" ".join(legend(self))))
        if self.groups["group"]:
            cells, more = _group_cells(self)
            parts.append(table(dict(zip(cells[0], zip(*cells[1:])))))
            parts += [paragraph(line) for line in more]
        return card(repr(self), *parts)


@dataclass(frozen=True)
class Judged:
    """Rows on which models are judged.

    Attributes
    ----------
    losses : array of shape (n_models, n_rows)
    weight, baseline : arrays of shape (n_rows,)
    groups : array of shape (n_rows,) or None
        Labels that were given.
    parts : array of int of shape (n_rows,)
        In which part, from 0 on, a row was judged.
    found : array of int of shape (n_parts, n_rows) or None
        Numbers of the groups that were found for each part without it; for all rows.
    calibration : array of shape (n_models,)
    names : array of int of shape (n_rows,) or None
        Which row each is, from 0 on, where some were judged more than once: intervals draw all of
        a row's judgements together.
    least : int
        Rows below which nothing is said of some of them: NaN in place of a mean over fewer, or over
        rows of which one has more than that part of the weight.
    """

    losses: Matrix
    weight: Vector
    baseline: Vector
    groups: Array | None
    parts: Array
    found: Array | None
    calibration: Vector
    names: Array | None = None
    least: int = 0

    @property
    def n_rows(self) -> int:
        """How many rows were judged."""
        return self.weight.size if self.names is None else int(self.names.max()) + 1

    @property
    def row_weight(self) -> Vector:
        """The weight of each row, of all its judgements together."""
        if self.names is None:
            return self.weight
        return np.bincount(self.names, self.weight).astype(np.float64)

    @property
    def row_losses(self) -> Matrix:
        """The loss of each row under each model, the mean of its judgements."""
        if self.names is None:
            return self.losses
        sums = [np.bincount(self.names, self.weight * each) for each in self.losses]
        return np.array(sums) / self.row_weight

    def of_rows(self, values: Array) -> Array:
        """A vector of the rows, for their judgements."""
        return values if self.names is None else values[..., self.names]


def side_by_side(models: list[str], reference: str, judged: Judged, seed: int = 0) -> Comparison:
    """The table of some models."""
    first, n = models.index(reference), judged.n_rows
    metrics = metrics_of(judged)
    values = metrics(judged.weight[None, :], judged.least)[0]
    rng, draws = np.random.default_rng(seed), []
    for _ in range(0, _RESAMPLES, _CHUNK):
        counts = rng.multinomial(n, np.full(n, 1.0 / n), size=_CHUNK)
        draws.append(metrics(judged.of_rows(counts) * judged.weight))
    drawn = np.concatenate(draws)  # resamples x metrics x models
    change = values - values[:, [first]]
    low, high = np.quantile(drawn - drawn[:, :, [first]], [0.025, 0.975], axis=0)
    for ends in (change, low, high):
        ends[~np.isfinite(change)] = np.nan
        ends[np.abs(ends) <= _EQUAL * abs(values[0, first])] = 0.0
    table: dict[str, Any] = {"model": list(models)}
    for k, name in enumerate(METRICS):
        table[name] = values[k]
        table[f"{name}_change"] = change[k]
        table[f"{name}_low"], table[f"{name}_high"] = low[k], high[k]
    table["calibration"] = judged.calibration
    groups, worst = _by_group(models, first, judged)
    return Comparison(list(models), reference, table, groups, worst, n, judged, seed)


def metrics_of(judged: Judged) -> Any:
    """A function from weights (resamples x rows) to metrics (resamples x metrics x models).

    It takes the least number of rows, too, that a metric may be about.
    """
    losses, excess = judged.losses, judged.losses - judged.baseline
    worst = {
        "worst_group_loss": _worst_group(judged, losses, judged.groups),
        "worst_group_excess": _worst_group(judged, excess, judged.groups),
        "found_group_excess": _worst_group(judged, excess, judged.found),
    }

    worst_first = np.argsort(-excess, axis=1)
    heaviest = float(judged.row_weight.max())

    def tails(weight: Matrix, least: int) -> Matrix:
        out = np.full((weight.shape[0], excess.shape[0]), np.nan)
        too_few = TAIL * float(weight.sum(axis=1).min()) < least * heaviest * (1.0 - 1e-9)
        if too_few or not np.isfinite(excess).all():
            return out
        p = weight / weight.sum(axis=1, keepdims=True)
        for k, order in enumerate(worst_first):  # sorted once, and not for each resample
            q = p[:, order]
            taken = np.clip(TAIL - (np.cumsum(q, axis=1) - q), 0.0, q)
            out[:, k] = taken @ excess[k, order] / TAIL
        return out

    def metrics(weight: Matrix, least: int = 0) -> Matrix:
        weight = np.asarray(weight, dtype=np.float64)
        mean = weight @ losses.T / weight.sum(axis=1, keepdims=True)
        of_groups = [means(weight, least * heaviest) for means in worst.values()]
        return np.stack([mean, *of_groups, tails(weight, least)], axis=1)

    return metrics


def _worst_group(judged: Judged, values: Matrix, labels: Array | None) -> Any:
    """A function from weights (resamples x rows) to means over worst groups (resamples x models).

    Which group is a model's worst on a part of the rows is looked up on the others, with the same
    weights: so resamples tell how much the choice adds to the spread. `labels` are the same for all
    parts, or have a line for each of them.
    """
    if labels is None or not np.isfinite(values).all():
        return lambda weight, _: np.full((weight.shape[0], values.shape[0]), np.nan)
    names = np.arange(judged.weight.size) if judged.names is None else judged.names
    parts = []
    for part in np.unique(judged.parts):
        here = np.flatnonzero(judged.parts == part)
        codes = labels if labels.ndim == 1 else labels[int(part)]
        codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
        there = np.flatnonzero(~np.isin(names, names[here]))
        if not there.size:  # a single part: nothing else to look it up on
            there = here
        once = there[np.unique(names[there], return_index=True)[1]]
        enough = eligible(codes[once], np.ones(once.size))
        parts.append(
            [
                (here[codes[here] == g], there[codes[there] == g], g < enough.size and enough[g])
                for g in range(int(codes.max()) + 1)
            ]
        )

    def sums_over(weight: Matrix, rows: Array) -> tuple[Matrix, Matrix]:
        """Of weighted values (resamples x models), and of weights (resamples x 1)."""
        inside = weight[:, rows]
        return inside @ values[:, rows].T, inside.sum(axis=1, keepdims=True)

    def means(weight: Matrix, least: float) -> Matrix:
        shape = weight.shape[0], values.shape[0]
        sums, masses = np.zeros(shape), np.zeros(shape)
        for groups in parts:
            elsewhere = np.full((len(groups), *shape), -np.inf)
            for mean, (_, there, is_able) in zip(elsewhere, groups):
                if is_able:
                    total, mass = sums_over(weight, there)
                    np.divide(total, mass, out=mean, where=mass > 0)
            worst = elsewhere.argmax(axis=0)
            for g, (here, _, _) in enumerate(groups):
                total, mass = sums_over(weight, here)
                sums += np.where(worst == g, total, 0.0)
                masses += np.where(worst == g, mass, 0.0)
        masses[masses < least * (1.0 - 1e-9)] = np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            return sums / masses

    return means


def _by_group(models: list[str], first: int, judged: Judged) -> tuple[dict[str, Any], Any]:
    """Each given group under each model, with paired intervals; and the worst one."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("group", "rows", "model", "loss", "change", "low", "high")
    }
    if judged.groups is None:
        return dict(columns), None
    excess: dict[Any, float] = {}
    unknown = not np.isfinite(judged.baseline).all()
    labels, codes = np.unique(judged.groups, return_inverse=True)
    once = np.arange(codes.size)
    if judged.names is not None:
        once = np.unique(judged.names, return_index=True)[1]
    able = dict(zip(labels.tolist(), eligible(codes.reshape(-1)[once], np.ones(once.size))))
    for label in labels.tolist():
        inside = judged.groups == label
        p = judged.weight[inside] / judged.weight[inside].sum()
        rows = np.flatnonzero(inside) if judged.names is None else judged.names[inside]
        if able[label]:
            away = judged.losses[first] - (0.0 if unknown else judged.baseline)
            excess[label] = float(p @ away[inside])
        for k, name in enumerate(models):
            away = judged.losses[k, inside] - judged.losses[first, inside]
            change = float(p @ away)
            half = half_width(np.bincount(rows, p * (away - change)), np.unique(rows).size)
            line = (label, np.unique(rows).size, name, float(p @ judged.losses[k, inside]), change,
                    change - half, change + half)  # fmt: skip
            for column, value in zip(columns.values(), line):
                column.append(value)
    return dict(columns), max(excess, key=lambda label: excess[label])


def calibration_error(probabilities: Matrix, labels: Array, weight: Vector) -> float:
    """The mean distance between the confidence of a classifier and how often it is right.

    For two classes, between the probability of the second one and its frequency. In ten bins of
    equal size.
    """
    if probabilities.shape[1] == 2:
        confidence, right = probabilities[:, 1], labels == 1
    else:
        confidence = probabilities.max(axis=1)
        right = probabilities.argmax(axis=1) == labels
    order = np.argsort(confidence, kind="stable")
    total = 0.0
    for rows in np.array_split(order, min(_BINS, order.size)):
        p = weight[rows]
        if p.sum() > 0:
            total += abs(float(p @ confidence[rows] - p @ right[rows]))
    return total / float(weight.sum())


NAMES = {
    "mean_loss": "mean loss",
    "worst_group_loss": "worst group's loss",
    "worst_group_excess": "worst group's excess",
    "found_group_excess": "worst found group's excess",
    "tail_excess": "worst tenth's excess",
}


def _shown(found: Comparison) -> list[str]:
    """The columns that have values."""
    return [name for name in METRICS if np.isfinite(found.table[name]).any()]


def legend(found: Comparison, shown: list[str] | None = None) -> list[str]:
    """What the columns mean, in sentences; of all that have values, unless some are named."""
    shown = _shown(found) if shown is None else shown
    lines = [
        f"In brackets: 95% interval of the change against {found.reference!r}, paired row by row."
    ]
    if any(name.endswith("excess") for name in shown):
        lines.append(
            "Excess: the loss of a row less what a baseline loses on it: boosted trees mixed with "
            "a linear model, unless another was given. Above 0 the row could be served better; "
            "below 0 it is served better than by the baseline."
        )
    if "tail_excess" in shown:
        lines.append("Worst tenth: the tenth of the rows with the largest excess.")
    if "found_group_excess" in shown:
        lines.append("Found groups: parts of the rows with a high excess, found by a small tree.")
    if any(name.startswith("worst_group") for name in shown):
        lines.append(
            "Worst group: it is picked on one part of the rows and measured on another, so that "
            "bad luck is not counted. So it can differ from the table by group, and even lie "
            "below it."
        )
    return lines


def _cells(found: Comparison) -> list[list[str]]:
    """The table of models as text, its head first."""
    table, first, shown = found.table, found.models.index(found.reference), _shown(found)
    cells = [["", *(NAMES[name] for name in shown)]]
    has_calibration = np.isfinite(table["calibration"]).any()
    if has_calibration:
        cells[0].append("calibration")
    for k, model in enumerate(found.models):
        line = [model]
        for name in shown:
            text = f"{table[name][k]:.4f}"
            if k != first:
                text += f" [{table[f'{name}_low'][k]:+.3f}, {table[f'{name}_high'][k]:+.3f}]"
            line.append(text)
        if has_calibration:
            line.append(f"{table['calibration'][k]:.3f}")
        cells.append(line)
    return cells


def _lines(found: Comparison) -> list[str]:
    table = _aligned(_cells(found))
    return [f"{found.n_rows} rows", "", *table, "", *_wrapped(legend(found)), *_group_lines(found)]


def _group_lines(found: Comparison) -> list[str]:
    if not found.groups["group"]:
        return []
    cells, more = _group_cells(found)
    return ["", *_aligned(cells), *more]


def _group_cells(found: Comparison) -> tuple[list[list[str]], list[str]]:
    """The loss of each given group under each model, the worst-off first; and what is left out."""
    count = len(found.models)
    loss = np.reshape(found.groups["loss"], (-1, count))
    order = np.argsort(-loss[:, found.models.index(found.reference)], kind="stable")
    cells = [["loss by group", "rows", *found.models]]
    for k in order[:_SHOWN]:
        label, rows = (found.groups[name][k * count] for name in ("group", "rows"))
        cells.append([str(label), str(rows), *(f"{value:.4f}" for value in loss[k])])
    more = [f"and {order.size - _SHOWN} more groups"] if order.size > _SHOWN else []
    return cells, more


def _wrapped(lines: list[str]) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, _WIDTH)]


def _aligned(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in cells]
    return [line.rstrip() for line in lines]
