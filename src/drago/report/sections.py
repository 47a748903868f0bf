"""The sections of a report, each a piece of HTML."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from drago._html import Safe, number, paragraph, table, text
from drago._version import __version__
from drago.advice.table import NAMES, Comparison
from drago.plotting._models import unit_of
from drago.report import pictures, words
from drago.report.facts import TAIL, Facts, calibration_error, label_of
from drago.report.folds import MOST_GROUPS, OWN, Refits
from drago.report.privacy import LEAST, SMALLER

# Groups that are shown, the worst-off ones.
_MOST_GROUPS = 20
_NO_GROUPS = (
    f"No group is shown, to protect the rows of groups that have fewer than {LEAST}: with all rows "
    "and the other groups these could be computed."
)
_PACKAGES = ("numpy", "scipy", "scikit-learn", "pandas")


def scrolled(inner: str, name: str) -> str:
    """A table that may be wider than the screen."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{text(name)}">{inner}</div>'


def figures(*parts: str) -> str:
    """Pictures, and what goes beside them, next to each other where there is room."""
    inner = "".join(part if part.startswith("<figure") else f"<div>{part}</div>" for part in parts)
    return f'<div class="figures">{inner}</div>'


def key_numbers(facts: Facts) -> str:
    """The few figures that come first."""
    worst = facts.worst
    items = {
        "rows": number(facts.n_rows),
        "mean loss": number(worst.mean_loss),
    }
    if facts.tells_tail:
        items[f"loss of the worst {100 * TAIL:g}%"] = number(worst.tail_loss)
    if np.isfinite(facts.score):
        name = "accuracy" if facts.classifies else "R² (share of variance explained)"
        items[name] = f"{facts.score:.3f}".replace("-", "−")
    if facts.calibration is not None:
        items["calibration error"] = f"{calibration_error(facts.calibration):.3f}"
    cells = "".join(
        f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in items.items()
    )
    return f'<dl class="numbers">{cells}</dl>'


def changes(found: Comparison, *, plain: bool, pick: str = "") -> str:
    """The table of models, with the intervals of what they change against the first.

    Parameters
    ----------
    found : Comparison
    plain : bool
        Whether an excess is a loss, because nothing was subtracted.
    pick : str
        A model that is marked.
    """
    first = found.models.index(found.reference)
    names = [name for name in NAMES if np.isfinite(found.table[name]).any()]
    if plain:
        names = [name for name in names if name != "worst_group_excess"]
    columns: dict[str, list[Any]] = {
        "model": [f"{model} (recommended)" if model == pick else model for model in found.models]
    }
    for name in names:
        called = NAMES[name]
        if plain and name == "tail_excess":
            called = "worst tenth's loss"
        cells: list[Any] = []
        for k in range(len(found.models)):
            cell = number(found.table[name][k])
            if k != first:
                low, high = (float(found.table[f"{name}_{end}"][k]) for end in ("low", "high"))
                size = float(found.table[name][first])
                cell += f"<br><small>{words.interval(low, high, size)}</small>"
            cells.append(Safe(cell))
        columns[called] = cells
    if np.isfinite(found.table["calibration"]).any():
        columns["calibration error"] = [number(one, 3) for one in found.table["calibration"]]
    caption = (
        f"Losses on rows that the models were not fitted on ({found.n_rows} rows). In brackets: "
        f"95% interval of the change against the {found.reference}, paired row by row."
    )
    return scrolled(table(columns, caption), "Table of models")


def models(facts: Facts, refits: Refits | str, own: bool = True) -> str:
    """The mean model against the robust one, and this very model."""
    parts = []
    if isinstance(refits, str):
        parts.append(paragraph(refits))
    else:
        drawn = f"{refits.n_rows} rows drawn from {facts.n_rows}" if refits.is_drawn else "the rows"
        parts.append(
            paragraph(
                f"A mean model, and a robust model with the settings of this one, were fitted on "
                f"four fifths of {drawn} and judged on the others, in {refits.n_folds} folds: so "
                "both are judged on rows that they were not fitted on."
            )
        )
        if not refits.is_finished:
            parts.append(paragraph("Some of these fits ended before they reached their tolerance."))
        parts.append(changes(refits.comparison, plain=True))
        if facts.has_groups:
            parts.append(
                paragraph(
                    "Which group is the worst is looked up on other rows than those it is judged "
                    "on, so that chance does not pick it." + _joined(refits.comparison)
                )
            )
    if own:
        worst = facts.worst
        columns: dict[str, list[Any]] = {
            "": ["this model, on these rows"],
            "mean loss": [worst.mean_loss],
        }
        if facts.tells_tail:
            columns["worst tenth's loss"] = [worst.tail_loss]
        if facts.tells_worst_case:
            columns["loss under its worst-case weights"] = [worst.worst_case_loss]
        if facts.has_groups:
            able = worst.groups["loss"][worst.groups["rows"] >= LEAST]
            columns["worst group's loss"] = [float(able[0]) if able.size else np.nan]
        parts.append(
            scrolled(table(columns, "The model as it is, on the rows given"), "This model")
        )
        parts.append(paragraph(words.origin(facts)))
    return "".join(parts)


def _joined(found: Comparison) -> str:
    """That small groups are compared as one, where they are."""
    if SMALLER not in found.groups["group"]:
        return ""
    return f" The {MOST_GROUPS - 1} largest groups are compared, and the others as one."


def groups(facts: Facts, refits: Refits | str) -> str:
    """Each group's loss with its interval, and what robustness changes for it."""
    found = facts.worst.groups
    if not found:
        return paragraph(_NO_GROUPS)
    parts = []
    count = found["rows"].size
    shown = np.arange(min(count, _MOST_GROUPS))
    labels = [label_of(label) for label in found["group"][shown].tolist()]
    loss, low, high = (found[name][shown] for name in ("loss", "low", "high"))
    if facts.worst.losses.min() >= 0:  # and so are their means
        low = np.maximum(low, 0.0)
    unit = unit_of(facts.model)
    parts.append(
        figures(pictures.group_intervals(labels, loss, low, high, unit, facts.worst.mean_loss))
    )
    columns: dict[str, Any] = {
        "group": labels,
        "rows": found["rows"][shown],
        "mean loss": loss,
        "95% interval": [
            f"{number(a)} to {number(b)}" if np.isfinite(a) else "–" for a, b in zip(low, high)
        ],
        "share of rows": [f"{100 * mass:.3g}%" for mass in found["mass"][shown]],
        "share of worst-case weight": [f"{100 * one:.3g}%" for one in found["share"][shown]],
    }
    if isinstance(refits, Refits):
        columns |= _changes_of_groups(refits.comparison, labels)
    caption = "The worst-off group first; each interval holds by itself with 95% confidence"
    parts.append(scrolled(table(columns, caption), "Groups"))
    if count > shown.size:
        parts.append(paragraph(f"And {count - shown.size} more groups, which are better off."))
    return "".join(parts) + _pooled(facts.n_pooled)


def _pooled(count: int) -> str:
    """That so many groups are one."""
    if not count:
        return ""
    return paragraph(
        f"{count} groups are shown as one, {SMALLER}, to protect the rows of those that have fewer "
        f"than {LEAST}, or of which one row has more than a tenth of the weight."
    )


def _changes_of_groups(found: Comparison, labels: Sequence[str]) -> dict[str, list[str]]:
    """What the robust model changes for each group, on rows that were not fitted on."""
    names = ("group", "model", "loss", "change", "low", "high")
    lines = {
        label_of(label): (loss, change, low, high)
        for label, model, loss, change, low, high in zip(*(found.groups[name] for name in names))
        if model == OWN
    }
    cells = []
    for label in labels:
        loss, change, low, high = lines.get(label, (np.nan,) * 4)
        cells.append(f"{words.signed(change, loss)} {words.interval(low, high, loss)}")
    return {"change by robustness": cells}


def audit_groups(found: Comparison, pick: str, unit: str, n_pooled: int = 0) -> str:
    """The groups of an audit under the mean fit, and what the others change for them."""
    if not found.groups["group"]:
        return paragraph(_NO_GROUPS)
    count = len(found.models)
    first = found.models.index(found.reference)
    loss = np.reshape(found.groups["loss"], (-1, count))
    sizes = np.asarray(found.groups["rows"])[::count]
    names = found.groups["group"][::count]
    order = np.argsort(-loss[:, first], kind="stable").tolist()
    shown = order[:_MOST_GROUPS]
    columns: dict[str, list[Any]] = {
        "group": [label_of(names[g]) for g in shown],
        "rows": [int(sizes[g]) for g in shown],
    }
    for k, model in enumerate(found.models):
        called = f"{model} (recommended)" if model == pick else model
        cells: list[Any] = []
        for g in shown:
            cell = number(loss[g, k])
            if k != first:
                low, high = (found.groups[end][g * count + k] for end in ("low", "high"))
                cell += f"<br><small>{words.interval(low, high, loss[g, first])}</small>"
            cells.append(Safe(cell))
        columns[called] = cells
    caption = (
        f"Mean {unit} by group, the worst-off first. In brackets: 95% interval of the change "
        f"against the {found.reference}."
    )
    parts = [scrolled(table(columns, caption), "Groups")]
    if len(order) > len(shown):
        parts.append(paragraph(f"And {len(order) - len(shown)} more groups."))
    return "".join(parts) + _pooled(n_pooled)


def curve(facts: Facts, refits: Refits) -> str:
    """More and less robustness than the model's; empty where nothing may be said of it."""
    if not np.isfinite(refits.curve["worst"]).any():
        return ""
    _, whom = words.metric_of(facts)
    says = (
        f"Models with the settings of this one, but with another {refits.varied}, on rows that "
        "they were not fitted on. To the left of and below the mean model is better for all."
    )
    found = refits.curve
    picture, behind = pictures.trade_off(
        found["model"], found["mean_loss"], found["worst"], f"loss of {whom}",
        unit_of(facts.model), True, says,
    )  # fmt: skip
    return figures(picture, scrolled(behind, "Trade-off"))


def audit_curve(found: Comparison, unit: str) -> str:
    """What was tried, as points; empty where nothing may be said of it."""
    given = np.isfinite(found.table["worst_group_loss"]).any()
    name = "worst_group_loss" if given else "found_group_excess"
    if not np.isfinite(found.table[name]).any():
        return ""
    says = (
        "What was tried, on rows that it was not fitted on. To the left of and below the mean fit "
        "is better for all."
    )
    picture, behind = pictures.trade_off(
        found.models, found.table["mean_loss"], found.table[name], NAMES[name], unit, False, says
    )
    return figures(picture, scrolled(behind, "Trade-off"))


def weights(facts: Facts, rows: bool) -> str:
    """Which rows the worst case is about."""
    worst = facts.worst
    parts = [
        paragraph(
            "The model was fitted for the worst reweighting of the rows that its settings allow. "
            f"The weights are as uneven as if {number(worst.effective_sample_size, 3)} of the "
            f"{facts.n_rows} rows counted equally (effective sample size). A row of weight 2 "
            "counts twice as much as in a plain mean."
        )
    ]
    if getattr(facts.model, "baseline_", None) is not None and facts.baseline is None:
        parts.append(
            paragraph(
                "The model was fitted for the excess over a baseline, which is not known for these "
                "rows: the weights here are those of the plain losses."
            )
        )
    picture = pictures.weight_shares(
        worst.dual_weights, worst.nominal_weights, 0 if rows else LEAST
    )
    if rows:
        p, q = worst.nominal_weights, worst.dual_weights
        ratio = np.divide(q, p, out=np.zeros_like(q), where=p > 0)
        order = np.lexsort((-worst.losses, -ratio))[: min(10, int(np.count_nonzero(q)))]
        columns: dict[str, Any] = {
            "row": [str(label) for label in facts.index[order].tolist()],
            "weight": ratio[order],
            "loss": worst.losses[order],
        }
        if np.ndim(facts.y) == 1:
            columns["target"] = [
                value if isinstance(value, (int, float)) else str(value)
                for value in facts.y[order].tolist()
            ]
        if facts.groups is not None:
            columns["group"] = [label_of(label) for label in facts.groups[order].tolist()]
        caption = (
            "The rows with the largest worst-case weights, by their index; 1 is the weight in the "
            "mean of all rows"
        )
        beside = scrolled(table(columns, caption), "Rows with the largest weights")
        parts.append(figures(picture, beside))
    else:
        parts.append(paragraph("Rows are not named here: row data is left out of this report."))
        parts.append(figures(picture))
    return "".join(parts)


def settings(model: Any, extra: dict[str, Any] | None = None) -> str:
    """What the model was fitted with, and what made this page."""
    items: dict[str, Any] = {"model": type(model).__name__}
    for name in ("uncertainty_", "divergence_", "shift_cost_"):
        value = getattr(model, name, None)
        if value is not None:
            items[name.rstrip("_").replace("_", " ")] = (
                number(value) if isinstance(value, float) else getattr(value, "label", value)
            )
    chosen = getattr(model, "best_params_", None)
    reg = chosen["l2_reg"] if chosen else getattr(model, "l2_reg", None)
    if reg is not None:
        items["l2 penalty"] = number(reg)
    result = getattr(model, "result_", None)
    if result is not None:
        items["solver"] = f"{result.solver}, {result.n_passes:.4g} visits to all rows"
        items["time of the fit"] = f"{result.time:.3g} s"
    items |= extra or {}
    items["as code"] = " ".join(repr(model).split())
    items |= made_by()
    given = model.get_params(deep=False) if hasattr(model, "get_params") else {}
    every = listed({f"{name} =": repr(value) for name, value in given.items()})
    return f"{listed(items)}<details><summary>All parameters</summary>{every}</details>"


def made_by() -> dict[str, str]:
    """Versions and the time."""
    items = {"drago": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        try:
            items[name] = version(name)
        except PackageNotFoundError:
            continue
    items["made at"] = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return items


def listed(items: dict[str, Any]) -> str:
    """Names and values."""
    inner = "".join(
        f"<dt>{text(name)}</dt><dd>{text(value, 300)}</dd>" for name, value in items.items()
    )
    return f'<dl class="list">{inner}</dl>'
