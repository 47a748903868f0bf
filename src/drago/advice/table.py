"""Models side by side on rows that they have not seen: losses, groups, paired intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._frames import as_frame
from drago.scorers import tail_mean

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]

TAIL = 0.1
# Resamples of the rows for the intervals, and rows of them that are held at a time.
_RESAMPLES = 400
_CHUNK = 50
_BINS = 10
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
        that a tree finds in the reference's excess, on other rows) and "tail_excess" (of the worst
        tenth of the rows) the value, its change against the reference, and a paired 95% interval of
        that: "mean_loss", "mean_loss_change", "mean_loss_low", "mean_loss_high", and so on. Last
        "calibration", the mean distance between predicted probabilities and frequencies in ten
        bins; NaN for regressions. NaN where no groups were given.
    groups : dict of arrays
        A line for each given group and model: "group", "rows", "model", "loss", "change", "low",
        "high" (paired intervals, each 95% by itself).
    n_rows : int
    """

    models: list[str]
    reference: str
    table: dict[str, Any]
    groups: dict[str, Any]
    n_rows: int
    losses: Matrix = field(repr=False)

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


@dataclass(frozen=True)
class Judged:
    """Rows on which models are judged.

    Attributes
    ----------
    losses : array of shape (n_models, n_rows)
    weight, baseline : arrays of shape (n_rows,)
    groups : array of shape (n_rows,) or None
        Labels that were given.
    found : array of int of shape (n_rows,) or None
        Numbers of found groups, with others in each part of the rows.
    parts : array of int of shape (n_rows,)
        In which part of the rows groups were found by the same tree.
    calibration : array of shape (n_models,)
    names : array of int of shape (n_rows,) or None
        Which row each is, from 0 on, where some were judged more than once: intervals draw all of
        a row's judgements together.
    """

    losses: Matrix
    weight: Vector
    baseline: Vector
    groups: Array | None
    found: Array | None
    parts: Array
    calibration: Vector
    names: Array | None = None

    @property
    def n_rows(self) -> int:
        """How many rows were judged."""
        return self.weight.size if self.names is None else int(self.names.max()) + 1

    def of_rows(self, values: Array) -> Array:
        """A vector of the rows, for their judgements."""
        return values if self.names is None else values[..., self.names]


def side_by_side(models: list[str], reference: str, judged: Judged, seed: int = 0) -> Comparison:
    """The table of some models."""
    first, n = models.index(reference), judged.n_rows
    metrics = _metrics(judged)
    values = metrics(judged.weight[None, :])[0]
    rng, draws = np.random.default_rng(seed), []
    for _ in range(0, _RESAMPLES, _CHUNK):
        counts = rng.multinomial(n, np.full(n, 1.0 / n), size=_CHUNK)
        draws.append(metrics(judged.of_rows(counts) * judged.weight))
    drawn = np.concatenate(draws)  # resamples x metrics x models
    change = values - values[:, [first]]
    low, high = np.quantile(drawn - drawn[:, :, [first]], [0.025, 0.975], axis=0)
    table: dict[str, Any] = {"model": list(models)}
    for k, name in enumerate(METRICS):
        table[name] = values[k]
        table[f"{name}_change"] = change[k]
        table[f"{name}_low"], table[f"{name}_high"] = low[k], high[k]
    table["calibration"] = judged.calibration
    groups = _by_group(models, first, judged)
    return Comparison(list(models), reference, table, groups, n, judged.losses)


def _metrics(judged: Judged) -> Any:
    """A function from weights (resamples x rows) to metrics (resamples x metrics x models)."""
    losses, excess = judged.losses, judged.losses - judged.baseline
    given = _indicators(judged.groups)
    found = None if judged.found is None else _indicators(judged.found, judged.parts)

    def worst(weight: Matrix, values: Matrix, inside: Any) -> Matrix:
        if inside is None:
            return np.full((weight.shape[0], values.shape[0]), np.nan)
        parts = []
        for codes, count, rows in inside:
            means = np.full((weight.shape[0], values.shape[0], count), -np.inf)
            for g in range(count):
                own = rows[codes == g]
                mass = weight[:, own].sum(axis=1)
                with np.errstate(invalid="ignore", divide="ignore"):
                    means[:, :, g] = (weight[:, own] @ values[:, own].T) / mass[:, None]
            share = weight[:, rows].sum(axis=1, keepdims=True) / weight.sum(axis=1, keepdims=True)
            parts.append(share * np.nanmax(means, axis=2))
        return np.sum(parts, axis=0)

    def tails(weight: Matrix) -> Matrix:
        out = np.empty((weight.shape[0], excess.shape[0]))
        for k, p in enumerate(weight):
            there = p > 0
            q = p[there] / p[there].sum()
            out[k] = [tail_mean(row[there], q, TAIL) for row in excess]
        return out

    def metrics(weight: Matrix) -> Matrix:
        weight = np.asarray(weight, dtype=np.float64)
        mean = weight @ losses.T / weight.sum(axis=1, keepdims=True)
        return np.stack(
            [mean, worst(weight, losses, given), worst(weight, excess, given),
             worst(weight, excess, found), tails(weight)], axis=1,
        )  # fmt: skip

    return metrics


def _indicators(labels: Array | None, parts: Array | None = None) -> Any:
    """Codes, their number and the rows of each part."""
    if labels is None:
        return None
    parts = np.zeros(labels.shape[0]) if parts is None else parts
    out = []
    for part in np.unique(parts):
        rows = np.flatnonzero(parts == part)
        found, codes = np.unique(labels[rows], return_inverse=True)
        out.append((codes.reshape(-1), found.size, rows))
    return out


def _by_group(models: list[str], first: int, judged: Judged) -> dict[str, Any]:
    """Each given group under each model, with paired intervals."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("group", "rows", "model", "loss", "change", "low", "high")
    }
    if judged.groups is None:
        return dict(columns)
    for label in np.unique(judged.groups):
        inside = judged.groups == label
        p = judged.weight[inside] / judged.weight[inside].sum()
        rows = np.flatnonzero(inside) if judged.names is None else judged.names[inside]
        for k, name in enumerate(models):
            away = judged.losses[k, inside] - judged.losses[first, inside]
            change = float(p @ away)
            half = 1.96 * float(np.linalg.norm(np.bincount(rows, p * (away - change))))
            line = (label, np.unique(rows).size, name, float(p @ judged.losses[k, inside]), change,
                    change - half, change + half)  # fmt: skip
            for column, value in zip(columns.values(), line):
                column.append(value)
    return dict(columns)


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


_NAMES = {
    "mean_loss": "mean loss",
    "worst_group_loss": "worst group",
    "worst_group_excess": "its excess",
    "found_group_excess": "found group's excess",
    "tail_excess": "tail's excess",
}


def _lines(found: Comparison) -> list[str]:
    table, first = found.table, found.models.index(found.reference)
    shown = [name for name in METRICS if np.isfinite(table[name]).any()]
    unit = 0.01 * abs(float(table["mean_loss"][first])) or 1.0
    cells = [["", *(_NAMES[name] for name in shown)]]
    has_calibration = np.isfinite(table["calibration"]).any()
    if has_calibration:
        cells[0].append("calibration")
    for k, model in enumerate(found.models):
        line = [model]
        for name in shown:
            text = f"{table[name][k]:.4f}"
            if k != first:
                change, low, high = (table[f"{name}_{end}"][k] for end in ("change", "low", "high"))
                sure = "*" if low > 0 or high < 0 else ""
                text += f" {change / unit:+.1f} ± {0.5 * (high - low) / unit:.1f}{sure}"
            line.append(text)
        if has_calibration:
            line.append(f"{table['calibration'][k]:.3f}")
        cells.append(line)
    widths = [max(map(len, column)) for column in zip(*cells)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in cells]
    return [
        *(row.rstrip() for row in rows),
        f"{found.n_rows} rows; changes against {found.reference!r} in percent of its mean loss, "
        "with half of a paired 95%",
        "interval; * where that excludes 0",
    ]
