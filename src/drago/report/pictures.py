"""The pictures of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._html import number, table, text
from drago.plotting._models import is_heavy, is_wide
from drago.plotting.losses import tail_means
from drago.report.charts import Axis, Chart, axis_for, legend, thinned
from drago.report.privacy import equal_rows

Vector = npt.NDArray[np.float64]

# Lines that differ by colour and by dash.
STYLES = (("c0", ""), ("c1", "7 3"), ("c2", "2 3"), ("c3", "9 3 2 3"))
SHAPES = ("round", "square", "diamond")
# Units of a picture at which two points are one.
_NEAR = 7.0
_MOST_BINS = 100
_LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def figure(key: str, chart: Chart, title: str, says: str, extra: str = "", behind: str = "") -> str:
    """A picture with its title, what to see in it, and the numbers behind it."""
    numbers = ""
    if behind:
        numbers = (
            f"<details><summary>The numbers behind it</summary>"
            f'<div class="scroll" role="region" tabindex="0" aria-label="Numbers">{behind}</div>'
            "</details>"
        )
    return (
        f'<figure id="{key}"><figcaption><h3>{text(title)}</h3><p>{text(says, None)}</p>'
        f"</figcaption>{extra}{chart.svg(key, title, says)}{numbers}</figure>"
    )


def quantiles(losses: Vector, weight: Vector, levels: Any) -> Vector:
    """The least loss that is not below a share of the rows, by their weights."""
    order = np.argsort(losses, kind="stable")
    mass = np.cumsum(weight[order])
    place = np.searchsorted(mass / mass[-1], np.asarray(levels) - 1e-12)
    return losses[order][np.minimum(place, losses.size - 1)]


def bin_means(losses: Vector, weight: Vector, least: int) -> tuple[Vector, Vector]:
    """The shares in the middle of bins of equal weight and at least so many rows, and their means.

    A row at the end of a bin counts in both, in parts.
    """
    order = np.argsort(losses, kind="stable")
    mass = np.concatenate([[0.0], np.cumsum(weight[order])])
    total = np.concatenate([[0.0], np.cumsum(weight[order] * losses[order])])
    count = max(1, min(_MOST_BINS, int(equal_rows(weight) / least)))
    ends = np.arange(count + 1) / count
    means = np.diff(np.interp(ends * mass[-1], mass, total)) * count / mass[-1]
    return (ends[1:] + ends[:-1]) / 2, means


def sorted_losses(names: Sequence[str], losses: Any, weight: Vector, unit: str, least: int) -> str:
    """Losses from the least to the largest; by means of `least` rows where that is not 0."""
    n = weight.size
    if least:
        found = [bin_means(np.asarray(one), weight, least) for one in losses]
        columns: dict[str, Any] = {"middle of the bin": [f"{100 * x:.3g}%" for x in found[0][0]]}
        columns |= {name: curve for name, (_, curve) in zip(names, found)}
        behind = table(columns, f"Mean losses of {found[0][0].size} bins of equal weight")
    else:
        levels = np.concatenate(
            [np.linspace(0.0, 0.98, min(200, max(2, n))), 1.0 - np.geomspace(0.02, 1.0 / n / 2, 60)]
        )
        levels = np.unique(np.clip(levels, 0.0, 1.0))
        found = [(levels, quantiles(np.asarray(one), weight, levels)) for one in losses]
        columns = {"share of rows": [f"{100 * level:g}%" for level in _LEVELS]}
        for name, one in zip(names, losses):
            columns[name] = quantiles(np.asarray(one), weight, _LEVELS)
        behind = table(columns, "The loss that this share of the rows does not exceed")
    every = np.concatenate([curve for _, curve in found])
    y = axis_for(every, unit, log=any(is_heavy(one) for one in losses))
    chart = Chart(Axis(0.0, 1.0, "rows, from the least loss to the largest", as_share=True), y)
    for k, (share, curve) in enumerate(found):
        chart.line(*thinned(share, curve), STYLES[k][0], dash=STYLES[k][1])
    says = (
        "Rows in the order of their loss. The lower a curve, the better; at the right end are the "
        "rows that are served worst."
    )
    if y.is_log:
        says += " The axis of the losses is logarithmic, because a few are very large."
    key = legend((*STYLES[k], name) for k, name in enumerate(names))
    return figure("sorted", chart, "How the losses are spread", says, key, behind)


def tail_risk(names: Sequence[str], losses: Any, weight: Vector, unit: str, least: int) -> str:
    """The mean loss of the worst share of the rows, as it shrinks."""
    n = equal_rows(weight) if least else weight.size
    p = weight / weight.sum()
    levels = np.geomspace(1.0, min(max(0.005, max(least, 1) / n), 0.5), 80)
    shown = np.array([1.0, 0.5, 0.2, 0.1, 0.05, 0.01])
    if least:  # no two of them closer than so many rows
        levels = np.unique(np.maximum(np.round(levels * n / least), 1.0))[::-1] * least / n
        levels = np.minimum(levels, 1.0)
        shown = np.unique([levels[np.abs(levels - level).argmin()] for level in shown])[::-1]
    shown = shown[shown * n >= max(least, 1)]
    found = [tail_means(np.asarray(one), p, levels) for one in losses]
    every = np.concatenate(found)
    y = axis_for(every, f"mean {unit}", log=is_wide(every))
    x = Axis(
        float(levels.min()), 1.0, "worst share of the rows", is_log=True, as_share=True,
        is_turned=True,
    )  # fmt: skip
    chart = Chart(x, y)
    for k, curve in enumerate(found):
        chart.line(levels, curve, STYLES[k][0], dash=STYLES[k][1])
    columns: dict[str, Any] = {"worst share": [f"{100 * level:.3g}%" for level in shown]}
    for name, one in zip(names, losses):
        columns[name] = tail_means(np.asarray(one), p, shown)
    says = (
        "The mean loss of the worst rows: at the left of all of them, at the right of the few that "
        "are served worst."
    )
    behind = table(columns, "The mean loss of the worst share of the rows")
    key = legend((*STYLES[k], name) for k, name in enumerate(names))
    return figure("tail", chart, "What the worst rows lose", says, key, behind)


def group_intervals(
    labels: Sequence[str], loss: Vector, low: Vector, high: Vector, unit: str, mean: float
) -> str:
    """The mean loss of each group with its interval, and that of all rows as a line."""
    count = len(labels)
    every = np.concatenate([loss, low, high, [mean]])
    x = axis_for(every[np.isfinite(every)], f"mean {unit}")
    chart = Chart(
        x,
        Axis(count - 0.5, -0.5, ""),
        height=64.0 + 24.0 * count,
        left=min(170.0, 18.0 + 6.4 * max(len(label) for label in labels)),
        names=labels,
    )
    chart.rule(x=mean)
    for g in range(count):
        if np.isfinite(low[g]):
            chart.span((low[g], high[g]), (g, g), "c1")
        chart.point(float(loss[g]), g, "c1")
    says = (
        "Mean loss of each group with its 95% interval; the dashed line is the mean of all rows. "
        f"Worst off is {labels[int(np.argmax(loss))]!r}."
    )
    if x.is_log:
        says += " The axis is logarithmic."
    return figure("group-picture", chart, "How the groups fare", says)


def trade_off(
    names: Sequence[str], mean: Any, worst: Any, what: str, unit: str, joined: bool, says: str
) -> tuple[str, str]:
    """Mean loss against that of the worst off, a point for each model; and these as a table."""
    mean, worst = np.asarray(mean, float), np.asarray(worst, float)
    kept = np.isfinite(mean) & np.isfinite(worst)
    names = [name for name, good in zip(names, kept) if good]
    mean, worst = mean[kept], worst[kept]
    chart = Chart(axis_for(mean, f"mean {unit}", room=0.18), axis_for(worst, what, room=0.15))
    chart.rule(x=float(mean[0]))
    chart.rule(y=float(worst[0]))
    if joined:
        chart.line(mean, worst, "grey")
    for k in reversed(range(mean.size)):  # the first one on top
        colour = "c0" if k == 0 else "c1" if joined else f"c{1 + (k - 1) % 6}"
        chart.point(mean[k], worst[k], colour, SHAPES[min(k, 2)] if not joined else SHAPES[k > 0])
    for words, k in _together(names, chart.across(mean), chart.down(worst)):
        chart.name(words, float(mean[k]), float(worst[k]))
    behind = table({"model": names, "mean loss": mean, what: worst}, "The points of the picture")
    return figure(
        "trade-off-picture", chart, "What the worst off gain, and what the mean pays", says
    ), behind


def _together(names: Sequence[str], x: Vector, y: Vector) -> list[tuple[str, int]]:
    """Names of points that lie on one another are joined: a name, and the number of its point."""
    found: list[tuple[list[str], int]] = []
    for k, name in enumerate(names):
        near = [one for one in found if abs(x[one[1]] - x[k]) + abs(y[one[1]] - y[k]) < _NEAR]
        if near:
            near[0][0].append(name)
        else:
            found.append(([name], k))
    return [(", ".join(words), k) for words, k in found]


def calibration(bins: dict[str, Any], of_two: bool, label: str) -> str:
    """Predicted probabilities against frequencies."""
    name = f"predicted probability of {label!r}" if of_two and len(label) < 20 else "probability"
    chart = Chart(Axis(0.0, 1.0, name), Axis(0.0, 1.0, "observed share"))
    chart.line([0.0, 1.0], [0.0, 1.0], "grey", dash="4 4")
    for k in range(bins["rows"].size):
        x = float(bins["predicted"][k])
        chart.span((x, x), (bins["low"][k], bins["high"][k]), "c1")
        chart.point(x, float(bins["observed"][k]), "c1")
    away = float(np.abs(bins["predicted"] - bins["observed"]) @ bins["rows"] / bins["rows"].sum())
    whom = f"the class {label!r}" if of_two else "the class that it predicts"
    says = (
        f"Where the model gives {whom} a probability of 30%, that should be true of 30% of the "
        f"rows: the points should lie on the line. They are {number(away, 2)} away from it on "
        "average. Strokes are 95% intervals."
    )
    columns = {
        "predicted": bins["predicted"], "observed": bins["observed"], "low": bins["low"],
        "high": bins["high"], "rows": bins["rows"],
    }  # fmt: skip
    behind = table(columns, "Predicted and observed, in bins of equal weight")
    return figure("calibration-picture", chart, "Are the probabilities right?", says, "", behind)


def weight_shares(q: Vector, p: Vector, least: int) -> str:
    """How much of the worst-case weight lies on how few rows."""
    there = p > 0
    order = np.argsort(-(q[there] / p[there]), kind="stable")
    x = np.concatenate([[0.0], np.cumsum(p[there][order])])
    y = np.concatenate([[0.0], np.cumsum(q[there][order])])
    n = equal_rows(p)
    steps = 200 if not least else max(1, min(200, int(n / least)))
    grid = np.linspace(0.0, 1.0, steps + 1)
    found = np.interp(grid, x, y)
    chart = Chart(
        Axis(0.0, 1.0, "rows, from the largest weight on", as_share=True),
        Axis(0.0, 1.0, "their share of the weight", as_share=True),
    )
    chart.line([0.0, 1.0], [0.0, 1.0], "grey", dash="4 4")
    chart.line(grid, found, "c1")
    tenth, half = np.interp([0.1, 0.5], x, y)
    says = (
        "How much of the worst-case weight lies on how few rows; the dashed line is a plain mean."
    )
    if 0.1 * n >= least:
        says += (
            f" The tenth of the rows with the largest weights carries {100 * tenth:.3g}% of it, "
            f"half of the rows {100 * half:.3g}%."
        )
    return figure("weights-picture", chart, "How the weight is spread", says)
