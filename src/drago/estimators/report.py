"""Who is hit worst: a small table of the rows and groups on which the adversary puts its weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drago._frames import as_frame
from drago._html import card, pairs, paragraph, table
from drago.scorers import tail_mean

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

# Rows and groups that are printed, the worst-off ones.
_SHOWN = 15
_INTERVALS = (
    "mass, share: of the normal and of the worst-case weights. low, high: the ends of the 95%\n"
    "interval of the mean loss (each interval is 95% on its own, so among many groups a few will\n"
    "not contain the true value; NaN for a group of one row)"
)


@dataclass(frozen=True)
class WorstCaseReport:
    """How a model does where it does worst; ``print(report)`` shows it as a table.

    Attributes
    ----------
    n_samples : int
        Rows of positive weight.
    mean_loss, tail_loss, worst_case_loss : float
        The mean of the losses; that of their worst `tail_fraction`; that under the worst-case
        weights ``q`` of the model's own set and shift cost.
    tail_fraction : float
    effective_sample_size : float
        ``1 / sum q_i^2``: over how many rows the worst-case weights are spread, as if evenly.
    losses, nominal_weights, dual_weights : arrays of shape (n,)
        Of all rows that were given: their losses, the nominal weights ``p`` and the worst-case
        weights ``q``, both 0 for rows of weight 0.
    rows : dict of arrays
        The rows of the largest weight: "row", "weight", "times" (weight over nominal weight),
        "loss".
    groups : dict of arrays
        The group with the largest loss first; empty without groups. "group"; "rows"; "mass", its
        share of the nominal weights; "share", its share of the worst-case weights; "loss", its mean
        loss; "low" and "high", the ends of the 95% interval of that. Each interval is 95% on its
        own, so among many groups a few will not contain the true value; NaN for a group of one row.

    Examples
    --------
    >>> import numpy as np, drago
    >>> X = np.arange(10.0).reshape(-1, 1)
    >>> y = np.where(X[:, 0] < 9, X[:, 0], 14.0)
    >>> report = drago.DRORegressor().fit(X, y).worst_case_report(X, y, groups=X[:, 0] > 4)
    >>> report.mean_loss < report.tail_loss
    True
    >>> [bool(group) for group in report.groups["group"]]  # the worst-off group first
    [True, False]
    """

    n_samples: int
    mean_loss: float
    tail_loss: float
    worst_case_loss: float
    tail_fraction: float
    effective_sample_size: float
    losses: Vector
    nominal_weights: Vector
    dual_weights: Vector
    rows: dict[str, Array]
    groups: dict[str, Array]

    def __str__(self) -> str:
        lines = [
            f"{self.n_samples} rows; the worst-case weights are spread as if over "
            f"{self.effective_sample_size:.1f} of them (effective sample size)",
            *(f"{name:<39} {value:.4g}" for name, value in self._losses().items()),
            "",
            *_first(self.rows, "rows"),
        ]
        if self.groups:
            lines += ["", *_first(self.groups, "groups"), _INTERVALS]
        return "\n".join(lines)

    def _losses(self) -> dict[str, float]:
        """The losses with their names."""
        return {
            "mean loss, all rows": self.mean_loss,
            f"mean loss, worst {self.tail_fraction * 100:.4g}% of the rows": self.tail_loss,
            "mean loss under the worst-case weights": self.worst_case_loss,
        }

    def to_frame(self) -> Any:
        """All rows as a frame of pandas: "loss", "nominal_weight" and worst-case "weight"."""
        return as_frame(
            {
                "loss": self.losses,
                "nominal_weight": self.nominal_weights,
                "weight": self.dual_weights,
            }
        )

    def rows_to_frame(self) -> Any:
        """The rows of the largest weight as a frame of pandas."""
        return as_frame(self.rows)

    def groups_to_frame(self) -> Any:
        """The table of groups as a frame of pandas; without lines where there are none."""
        return as_frame(self.groups)

    def _repr_html_(self) -> str:
        facts = {
            "rows": self.n_samples,
            "effective sample size of the worst-case weights": self.effective_sample_size,
            **self._losses(),
        }
        parts = [pairs(facts), table(self.rows, "Rows of the largest weight", most=_SHOWN)]
        if self.groups:
            parts.append(table(self.groups, "Groups, the worst-off first", most=_SHOWN))
            parts.append(paragraph(_INTERVALS))
        return card("Worst-case report", *parts)

    def __repr__(self) -> str:
        return (
            f"WorstCaseReport({self.n_samples} rows, mean_loss={self.mean_loss:.4g}, "
            f"tail_loss={self.tail_loss:.4g}, worst_case_loss={self.worst_case_loss:.4g})"
        )


def make_report(
    losses: Vector,
    p: Vector,
    q: Vector,
    *,
    tail_fraction: float,
    n_rows: int,
    index: Array,
    groups: Array | None,
) -> WorstCaseReport:
    """The report for losses, nominal weights and worst-case weights.

    Parameters
    ----------
    losses, p, q : arrays of shape (n,)
        Rows with ``p = 0`` count for nothing.
    tail_fraction : float
    n_rows : int
        How many of the rows to name.
    index : array of shape (n,)
        What the rows are called.
    groups : array of shape (n,) or None
        Labels.
    """
    order = np.lexsort((-losses, -q))[: min(n_rows, np.count_nonzero(q))]
    rows = {
        "row": index[order],
        "weight": q[order],
        "times": q[order] / p[order],
        "loss": losses[order],
    }
    table: dict[str, Array] = {}
    if groups is not None:
        there = p > 0
        labels, codes = np.unique(groups[there], return_inverse=True)
        codes = codes.reshape(-1)
        mass = np.bincount(codes, weights=p[there])
        loss = np.bincount(codes, weights=(p * losses)[there]) / mass
        apart = (p[there] / mass[codes]) * (losses[there] - loss[codes])
        half = np.array(
            [half_width(apart[codes == g], int((codes == g).sum())) for g in range(labels.size)]
        )
        worst = np.argsort(-loss, kind="stable")
        columns = {
            "group": labels,
            "rows": np.bincount(codes),
            "mass": mass,
            "share": np.bincount(codes, weights=q[there]),
            "loss": loss,
            "low": loss - half,
            "high": loss + half,
        }
        table = {name: column[worst] for name, column in columns.items()}
    return WorstCaseReport(
        n_samples=int(np.count_nonzero(p)),
        mean_loss=float(p @ losses),
        tail_loss=tail_mean(losses[p > 0], p[p > 0], tail_fraction),
        worst_case_loss=float(q @ losses),
        tail_fraction=tail_fraction,
        effective_sample_size=float(1.0 / (q @ q)),
        losses=losses,
        nominal_weights=p,
        dual_weights=q,
        rows=rows,
        groups=table,
    )


def half_width(terms: Array, n_rows: int) -> float:
    """Half of the 95% interval of a weighted mean, by Student; NaN for a single row.

    `terms` are ``p_i (l_i - mean)`` with p of sum 1, whose squares add up to an estimate of the
    variance; ``m / (m - 1)`` allows for a mean that comes from the same m rows.
    """
    from scipy.stats import t as student

    if n_rows < 2:
        return float("nan")
    square = float(terms @ terms) * n_rows / (n_rows - 1.0)
    return float(student.ppf(0.975, n_rows - 1)) * float(np.sqrt(square))


def _first(columns: dict[str, Array], what: str) -> list[str]:
    """The first lines of a table, and how many more there are."""
    lines = _table({name: column[:_SHOWN] for name, column in columns.items()})
    more = len(next(iter(columns.values()))) - _SHOWN
    return [*lines, f"and {more} more {what}"] if more > 0 else lines


def _table(columns: dict[str, Array]) -> list[str]:
    """The columns as lines of text."""
    cells = [
        [name, *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in column)]
        for name, column in ((name, column.tolist()) for name, column in columns.items())
    ]
    widths = [max(map(len, column)) for column in cells]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in zip(*cells)
    ]
