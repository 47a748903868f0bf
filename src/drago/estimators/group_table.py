"""Found groups as a table: how they fare, with intervals that hold for all of them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from drago._frames import as_frame
from drago._html import MOST_LINES, card, table
from drago._validation import refuse_masked
from drago.estimators.columns import Columns
from drago.estimators.rules import Rule, numbers_of

Array = npt.NDArray[Any]
Vector = npt.NDArray[np.float64]

CONFIDENCE = 0.95
# Characters of a rule that are printed.
_WIDTH = 70


@dataclass(frozen=True, repr=False, eq=False)
class FoundGroups:
    """Groups with a rule in words, and how they fare on rows they were not found on.

    ``print(found)`` shows them as a table. Intervals hold for all groups together with a confidence
    of 95%: each is one of Student's at ``1 - 0.05 / n_groups``.

    Attributes
    ----------
    rules : list of str
        The worst group first, by its excess where it was found. Each row fits one of them.
    n_groups : int
    table : dict of arrays
        A line for each rule: "group" (its number), "rule", "rows" and "share" (of the weights),
        "loss" (mean), "excess" (mean), "above" (its excess less that of all rows), each of the
        last three with "_low" and "_high"; all of them of the rows judged. "found" is the excess
        where the group was found, which flatters the search.
    overall : dict
        "loss" and "excess" of all rows judged.
    stands_out : array of shape (n_groups,)
        Whether a group can be served better, and is served worse than all rows: its intervals of
        "excess" and of "above" both lie above 0.
    n_found_on, n_judged_on : int
        Rows that were searched, and others on which the groups are judged.
    judged_on : array of shape (n_judged_on,)
        Which rows these are.
    min_size : int
        Rows that a group had to have where it was found.
    is_excess : bool
        False without a baseline, where the excess is the loss itself.
    feature_names : list of str
    drawn_from : int or None
        How many rows the source has that these were drawn from; None where all were given.

    Examples
    --------
    >>> import numpy as np, drago
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(400, 1))
    >>> y = np.where(X[:, 0] > 0.8, 3.0, 0.0) + 0.1 * rng.normal(size=400)
    >>> found = drago.find_groups(X, y, max_groups=2, baseline=None)
    >>> found.n_groups, found.n_judged_on
    (2, 200)
    >>> sorted(found.table)[:3]
    ['above', 'above_high', 'above_low']
    """

    rules: list[str]
    table: dict[str, Array]
    overall: dict[str, float]
    stands_out: Array
    n_found_on: int
    judged_on: npt.NDArray[np.int64]
    min_size: int
    is_excess: bool
    feature_names: list[str]
    _columns: Columns = field(repr=False)
    _rules: list[Rule] = field(repr=False)
    drawn_from: int | None = None

    @property
    def n_groups(self) -> int:
        return len(self.rules)

    @property
    def n_judged_on(self) -> int:
        return self.judged_on.size

    @property
    def has_words(self) -> bool:
        """Whether there are columns of categories."""
        return any(column.kind == "words" for column in self._columns.all)

    def labels(self, X: Any) -> npt.NDArray[np.int64]:
        """The number of each row's group, by its rule.

        Parameters
        ----------
        X : array or frame of shape (n, n_features)
            Any rows, with the columns of those that were searched. A category that was not seen is
            none of those in the rules; numbers may be missing where some were before.

        Returns
        -------
        array of shape (n,)
        """
        refuse_masked("X", X)
        return numbers_of(self._rules, self._columns.read(X))

    def to_frame(self) -> Any:
        """The table as a frame of pandas."""
        return as_frame(self.table)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        names = ("rule", "rows", "share", "loss", "excess", "excess_low", "excess_high")
        columns: dict[str, Any] = {name: self.table[name] for name in names}
        columns["stands out"] = ["yes" if worse else "" for worse in self.stands_out]
        caption = "Groups, the worst one first; intervals hold for all of them together"
        return card(repr(self), table(columns, caption, most=MOST_LINES))

    def __repr__(self) -> str:
        worse = int(self.stands_out.sum())
        return (
            f"FoundGroups({_counted(self.n_groups)}, {worse} of them worse off, found on "
            f"{self.n_found_on} rows, judged on {self.n_judged_on}{self.origin})"
        )

    @property
    def origin(self) -> str:
        """Where the rows come from, in words: nothing where all were given."""
        return "" if self.drawn_from is None else f", drawn from {self.drawn_from}"


# ---------------------------------------------------------------------------------- judging


@dataclass(frozen=True)
class Mean:
    """A mean, its variance and the degrees of freedom of that; NaN where rows are too few."""

    value: float = np.nan
    variance: float = np.nan
    freedom: float = np.nan

    @classmethod
    def of(cls, values: Vector, weight: Vector) -> Mean:
        """Of some rows."""
        if values.size == 0:
            return cls()
        p = weight / weight.sum()
        mean, rows = float(p @ values), 1.0 / float(p @ p)
        if rows < 1.0 + 1e-9:
            return cls(mean)
        variance = float(p**2 @ (values - mean) ** 2) * rows / (rows - 1.0)
        return cls(mean, variance, rows - 1.0)

    def less(self, other: Mean, factor: float) -> Mean:
        """`factor` times the difference to that of other rows, in the way of Welch."""
        variance = self.variance + other.variance
        mine = self.variance / variance if variance > 0 else 0.5
        freedom = 1.0 / (mine**2 / self.freedom + (1.0 - mine) ** 2 / other.freedom)
        return Mean(factor * (self.value - other.value), factor**2 * variance, freedom)

    def interval(self, tail: float) -> tuple[float, float]:
        """With that much probability beyond either end."""
        if not np.isfinite(self.variance):
            return -np.inf, np.inf
        half = float(stdtrit(self.freedom, 1.0 - tail)) * float(np.sqrt(self.variance))
        return self.value - half, self.value + half


def judge(
    number: Array, weight: Vector, losses: Vector, excess: Vector, count: int
) -> dict[str, Array]:
    """Sizes and means of the groups, with intervals for all of them together."""
    tail = 0.5 * (1.0 - CONFIDENCE) / count
    out: dict[str, list[float]] = {"rows": [], "share": []}
    for k in range(count):
        inside = number == k
        share = float(weight[inside].sum() / weight.sum())
        mine = Mean.of(excess[inside], weight[inside])
        rest = Mean.of(excess[~inside], weight[~inside])
        # The mean of all rows is that of both parts by their shares.
        above = Mean(0.0, 0.0, 1.0) if inside.all() else mine.less(rest, 1.0 - share)
        out["rows"].append(int(inside.sum()))
        out["share"].append(share)
        means = {"loss": Mean.of(losses[inside], weight[inside]), "excess": mine, "above": above}
        for name, mean in means.items():
            ends = (mean.value, *mean.interval(tail))
            for end, value in zip(("", "_low", "_high"), ends):
                out.setdefault(name + end, []).append(value)
    return {name: np.array(column) for name, column in out.items()}


# --------------------------------------------------------------------------------- in words


def _lines(found: FoundGroups) -> list[str]:
    """The table as text."""
    table, many = found.table, found.n_groups
    what = "excess" if found.is_excess else "loss"
    names = ["loss", "excess"] if found.is_excess else ["loss"]
    cells = [["group", "rows", "share", *names, "above", "rule"]]
    digits = {name: _decimals(table[name]) for name in (*names, "above")}
    for k, rule in enumerate(found.rules):
        ends = (f"{table['above' + end][k]:.{digits['above']}f}" for end in ("", "_low", "_high"))
        cells.append([
            f"{k}{'*' if found.stands_out[k] else ' '}",
            str(table["rows"][k]),
            f"{table['share'][k]:.1%}",
            *(f"{table[name][k]:.{digits[name]}f}" for name in names),
            "{} [{}, {}]".format(*ends),
            rule if len(rule) <= _WIDTH else rule[: _WIDTH - 5] + "[...]",
        ])  # fmt: skip
    overall = [f"{found.overall[name]:.{digits[name]}f}" for name in names]
    cells.append(["all ", str(found.n_judged_on), "100.0%", *overall, "", ""])
    widths = [max(map(len, column)) for column in zip(*cells)]
    widths[-1] = 0
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells]
    together = f"95% for all {many} groups together" if many > 1 else "95%"
    return [
        f"{_counted(many)} found on {found.n_found_on} rows, judged on {found.n_judged_on} others"
        f"{found.origin}",
        *(["excess: loss less what is attainable"] if found.is_excess else []),
        f"above:  {what} less that of all rows, [{together}]",
        "",
        *(line.rstrip() for line in lines),
        "",
        _verdict(found, what),
    ]


def _verdict(found: FoundGroups, what: str) -> str:
    if found.n_groups == 1:
        if found.is_excess and found.overall["excess"] == 0.0:
            return "The baseline is the model itself: no row can be served better by it."
        return (
            f"No groups found: no split leaves at least {found.min_size} rows (min_size) on each "
            f"side and explains the {what}. Give more rows, a smaller min_size, or a max_groups of "
            "at least 2."
        )
    worse = [str(k) for k in np.flatnonzero(found.stands_out)]
    if not worse and found.overall["excess"] < 0:
        return (
            "No group stands out. The baseline predicts worse than the model, so it cannot show "
            "what is attainable. Give a stronger estimator as baseline=."
        )
    if not worse:
        return f"No group stands out: where the {what} is above that of all rows, it may be chance."
    who = f"Groups {', '.join(worse)} have" if len(worse) > 1 else f"Group {worse[0]} has"
    return (
        f"* {who} a larger {what} than all rows together ({CONFIDENCE:.0%} confidence, corrected "
        f"for {found.n_groups} groups)."
    )


def _counted(count: int) -> str:
    return f"{count} group{'s' * (count != 1)}"


def _decimals(values: Vector) -> int:
    """So many that the largest of some numbers has three digits."""
    size = np.abs(values[np.isfinite(values)])
    most = float(size.max()) if size.size else 0.0
    return int(np.clip(2 - np.floor(np.log10(most)), 0, 12)) if most > 0 else 1
